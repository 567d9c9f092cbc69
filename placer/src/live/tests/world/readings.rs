//! The readings that profilers send of the simulated nodes.

use wattle_common::messages::{AppliedGpu, GpuSummary, LaunchState, NodeSummary};
use wattle_common::{JobId, Power};

use super::World;

impl World {
    /// The readings of a node over the last seconds, whose GPUs drew this with their jobs.
    pub(in crate::live::tests) fn readings(
        &self,
        node: &str,
        seconds: u64,
        drawn: impl Fn(&AppliedGpu, &[JobId]) -> Power,
    ) -> NodeSummary {
        let (power, launch) = self.reports(node);
        let gpus = power.gpus.iter().map(|applied| {
            let live = launch.jobs.iter().filter(|job| job.gpus.contains(&applied.gpu));
            let live = live
                .filter(|job| matches!(job.state, LaunchState::Running | LaunchState::Stopping));
            let jobs: Vec<_> = live.map(|job| job.job.clone()).collect();
            GpuSummary {
                gpu: applied.gpu,
                power_mw_mean: Some(drawn(applied, &jobs)),
                energy_mj_total: None,
                utilization_gpu_percent_mean: None,
                meter: None,
                memory_used_mib: None,
                memory_free_mib: None,
                clock_mhz: None,
                cap_mw: applied.cap_mw,
                cap_mw_enforced: None,
                temperature_c: None,
                throttle_reasons: None,
                jobs,
                error: None,
            }
        });
        NodeSummary {
            node: power.node.clone(),
            at_us: self.now,
            span_ms: 1_000 * seconds,
            observed_generation: 0,
            samples: 10,
            readings_failed: 0,
            gpus: gpus.collect(),
            jobs: Vec::new(),
            power_mw_host: None,
            ledger_from_us: None,
        }
    }
}
