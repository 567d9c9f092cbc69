//! Metrics of the twin: what was saved against the site's former scheduler.

use wattle_runtime::metrics::{Gauge, Gauges, Metrics};

use crate::live::measures::TwinMeasures;

/// The gauges of the twin.
#[derive(Clone)]
pub(super) struct TwinGauges {
    saved: Gauges<1>,
    saved_bounds: Gauges<1>,
    energy: Gauge,
    nodes: Gauges<1>,
    times: Gauges<2>,
    jobs: Gauges<1>,
}

impl TwinGauges {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Self {
            saved: metrics.gauges(
                "wattle_cluster_saved_joules",
                "Energy saved against the site's former scheduler since the twin began, by part: settings (caps and \
                 clocks, by prediction), sleep (sleeping nodes), sharing (shared GPUs), sizes (other numbers of GPUs \
                 than requested), other (restarts and errors of prediction)",
                ["part"],
            ),
            saved_bounds: metrics.gauges(
                "wattle_cluster_saved_bound_joules",
                "Bounds of the 90 % interval of the sum of wattle_cluster_saved_joules: low, high",
                ["bound"],
            ),
            nodes: metrics.gauges(
                "wattle_cluster_node_seconds",
                "Time of the nodes since the twin began, in which their energy counts: awake, asleep",
                ["state"],
            ),
            energy: metrics.gauge(
                "wattle_twin_energy_joules",
                "Energy under the site's former scheduler since the twin began, by prediction: compared jobs above \
                 idle power and nodes without jobs",
            ),
            times: metrics.gauges(
                "wattle_cluster_job_seconds_mean",
                "Mean completion or waiting time of the jobs that completed in the cluster and in its twin, in either",
                ["time", "schedule"],
            ),
            jobs: metrics.gauges(
                "wattle_twin_jobs",
                "Jobs of the twin: waiting or running in it, or completed in both schedules",
                ["state"],
            ),
        }
    }

    pub(super) fn set(&self, twin: Option<TwinMeasures>) {
        let Some(TwinMeasures { total, waiting, running }) = twin else { return };
        self.saved.set(["settings"], Some(total.settings_j));
        self.saved.set(["sleep"], Some(total.slept_j));
        self.saved.set(["sharing"], Some(total.sharing_j));
        self.saved.set(["sizes"], Some(total.sizes_j));
        self.saved.set(["other"], Some(total.rest_of_jobs_saved_j()));
        let (saved_j, error_j) = (total.saved_j(), total.saved_error_j());
        self.saved_bounds.set(["low"], Some(saved_j - error_j));
        self.saved_bounds.set(["high"], Some(saved_j + error_j));
        self.nodes.set(["awake"], Some(total.node_s - total.node_s_asleep));
        self.nodes.set(["asleep"], Some(total.node_s_asleep));
        self.energy.set([], Some(total.energy_j_twin()));
        let mean = |sum: f64| (total.jobs > 0).then(|| sum / total.jobs as f64);
        self.times.set(["completion", "cluster"], mean(total.completion_s));
        self.times.set(["completion", "twin"], mean(total.completion_s_twin));
        self.times.set(["waiting", "cluster"], mean(total.wait_s));
        self.times.set(["waiting", "twin"], mean(total.wait_s_twin));
        self.jobs.set(["waiting"], Some(waiting as f64));
        self.jobs.set(["running"], Some(running as f64));
        self.jobs.set(["completed"], Some(total.jobs as f64));
    }
}
