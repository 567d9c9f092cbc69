//! `grid-srp`: the grid event of a field trial for the utility SRP, on the site of the trial ([`crate::field_trial`]).
//!
//! The event reduces the power of the GPUs for three hours, with ramps of 15 minutes.

use wattle_simulator::SimulationError;

use crate::field_trial::{self, Peak, Row, START_S};

/// Its name.
pub const NAME: &str = "grid-srp";
/// By how many per cent less than before the GPUs draw.
pub const DEPTHS: [u32; 4] = [25, 31, 35, 40];

const fn event(less: u32) -> Peak {
    Peak {
        name: "srp",
        less,
        start_s: START_S,
        ramp_down_s: 900,
        duration_s: 3 * 3_600,
        ramp_up_s: 900,
    }
}

/// Compares the rules and the policies at these depths, with this number of draws of the noise of measurements.
///
/// # Errors
/// On a failure of a simulation.
pub fn compare(
    depths: &[u32],
    policies: &[String],
    draws: u64,
) -> Result<Vec<Row>, SimulationError> {
    let sets: Vec<Vec<Peak>> = depths.iter().map(|less| vec![event(*less)]).collect();
    field_trial::compare(&sets, policies, draws)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field_trial::POLICIES;
    use crate::field_trial::tests::{policies_are_close_to_the_best, row};

    #[test]
    fn policies_keep_every_promise_close_to_the_best() {
        let policies = POLICIES.map(str::to_owned);
        let rows = compare(&[31, 40], &policies, 1).unwrap();
        assert!(row(&rows[rows.len() / 2..], "uniform cap").broken == ["infer-flex1"]);
        for rows in rows.chunk_by(|a, b| a.less == b.less) {
            policies_are_close_to_the_best(rows, [0.9945, 0.98]);
        }
    }
}
