//! The restart cost of a job: time on its new GPUs without progress.
//!
//! ElasticFlow (pkusys/ElasticFlow, Apache-2.0) charges a change of size, measured on A100 nodes:
//! `2 + 2 (log2 n + 1)` seconds to regroup on `n` GPUs, and 27 s for a restart of the process. The policies and
//! the simulator's engine use the same cost.

use std::time::Duration;

/// Time without progress at a start on `gpus` GPUs of a job that has run before.
#[must_use]
pub fn restart(gpus: u32) -> Duration {
    let doublings = f64::from(gpus.max(1)).log2();
    Duration::from_secs_f64(27.0 + 2.0 + 2.0 * (doublings + 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_of_a_restart_is_that_of_elasticflow() {
        assert_eq!(restart(1).as_secs(), 31);
        assert_eq!(restart(8).as_secs(), 37);
        assert_eq!(restart(0), restart(1));
    }
}
