//! Windows.

use wattle_common::messages::{JobWindow, Neighbour};
use wattle_common::{Power, Timestamp};

use crate::id;

/// A window of one exclusive V100 at its default cap: 10 steps/s, 180 W, 60 % busy.
#[must_use]
pub fn job_window(job: &str, from: Timestamp, until: Timestamp) -> JobWindow {
    JobWindow {
        job: id::job(job),
        admission: None,
        workload: None,
        node: id::node("n0"),
        gpu_type: "v100".to_owned(),
        attempt: 1,
        from_us: from,
        until_us: until,
        gpus: vec![0],
        gpus_total: 1,
        nodes_total: 1,
        global_batch: None,
        cap_mw: Some(Power::from_w(250)),
        clock_mhz_mean: None,
        clock_mhz_max: None,
        neighbours: Vec::new(),
        steps: None,
        steps_per_s: Some(10.0),
        steps_per_s_error: Some(0.03),
        steps_inferred: false,
        step: None,
        epoch: None,
        early: true,
        power_mw_gpus: Some(Power::from_w(180)),
        power_mw_job: None,
        energy_mj_gpus: None,
        utilization_gpu_percent: Some(60.0),
        utilization_gpu_percent_job: Some(60.0),
        utilization_memory_percent: Some(30.0),
        memory_mib_max_job: Some(8_000),
        samples: 600,
    }
}

/// A co-tenant of a window, with its declared workload where it has one.
#[must_use]
pub fn neighbour(job: &str, workload: Option<&str>) -> Neighbour {
    Neighbour { job: id::job(job), workload: workload.map(id::workload) }
}
