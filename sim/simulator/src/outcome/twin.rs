//! The twin of a run: the schedule of the site's former scheduler as a live placer computes it.

use serde::Serialize;
use wattle_placer::twin::Twin;

use super::seconds;

/// The schedule of a run's twin, over the jobs that completed in both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TwinOutcome {
    /// The policy of the twin.
    pub policy: String,
    /// Number of these jobs.
    pub jobs: u64,
    /// Their mean time from submission to completion in the twin.
    pub jct_s_mean: Option<f64>,
    /// Their mean time in the queue of the twin.
    pub wait_s_mean: Option<f64>,
    /// Predicted energy of their GPUs in the twin above idle power.
    pub energy_kwh_above_idle: f64,
    /// That energy minus the energy of their GPUs above idle power in the run.
    pub saved_kwh_above_idle: f64,
    /// Half the width of its 90 % interval.
    pub saved_kwh_error: f64,
    /// Mean completion time of the run relative to that of the twin, minus 1.
    pub later: Option<f64>,
}

impl TwinOutcome {
    pub(crate) fn of(twin: &Twin) -> Self {
        let sums = twin.completed().total();
        let mean = |sum: f64| (sums.jobs > 0).then(|| seconds(sum / sums.jobs as f64 * 1e6));
        Self {
            policy: twin.baseline().to_string(),
            jobs: sums.jobs,
            jct_s_mean: mean(sums.completion_s_twin),
            wait_s_mean: mean(sums.wait_s_twin),
            energy_kwh_above_idle: (sums.gpu_j_twin - sums.gpu_j_twin_idle) / 3.6e6,
            saved_kwh_above_idle: sums.jobs_saved_j() / 3.6e6,
            saved_kwh_error: sums.saved_error_j() / 3.6e6,
            later: sums.later(),
        }
    }
}
