//! `grid-caiso`: a day with two peaks, as a field trial re-enacted that of the Californian grid of 14 August 2020, on the
//! site of the trial ([`crate::field_trial`]).
//!
//! On that day demand was highest at 17:00, and demand less sun and wind, by the forecast of the day before, at 18:55. The
//! trial's GPUs (ai-emerald/emerald-ai-demo-may-2025, Apache-2.0) drew 92.0 kW on average from 14:00 to 14:50; 19.4 %
//! less from 15:15 to 17:45, after a ramp of ten minutes from 15:05; and 31.8 % less from 18:05 to 20:00, after another
//! from 17:50. From 20:06 they returned within ten minutes.

use wattle_simulator::SimulationError;

use crate::field_trial::{self, Peak, Row, START_S};

/// Its name.
pub const NAME: &str = "grid-caiso";

const MINUTE_S: u64 = 60;
const RAMP_S: u64 = 10 * MINUTE_S;
/// From 15:05 to 17:50.
const FIRST_S: u64 = 165 * MINUTE_S;
/// From 17:50 to 20:06.
const SECOND_S: u64 = 136 * MINUTE_S;

/// The two events. The second one begins where the first ends.
const PEAKS: [Peak; 2] = [
    Peak {
        name: "demand-peak",
        less: 19,
        start_s: START_S,
        ramp_down_s: RAMP_S,
        duration_s: FIRST_S - RAMP_S,
        ramp_up_s: 0,
    },
    Peak {
        name: "net-demand-peak",
        less: 32,
        start_s: START_S + FIRST_S,
        ramp_down_s: RAMP_S,
        duration_s: SECOND_S - RAMP_S,
        ramp_up_s: RAMP_S,
    },
];

/// Compares the rules and the policies, with this number of draws of the noise of measurements.
///
/// # Errors
/// On a failure of a simulation.
pub fn compare(policies: &[String], draws: u64) -> Result<Vec<Row>, SimulationError> {
    field_trial::compare(&[PEAKS.to_vec()], policies, draws)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field_trial::POLICIES;
    use crate::field_trial::tests::policies_are_close_to_the_best;

    #[test]
    fn both_targets_and_every_promise_hold() {
        let rows = compare(&POLICIES.map(str::to_owned), 1).unwrap();
        assert!(rows.iter().all(|row| row.less == [19, 32]));
        // Plans follow the short ramps a minute ahead.
        policies_are_close_to_the_best(&rows, [0.99, 0.98]);
    }
}
