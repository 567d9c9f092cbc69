//! Windows of measurements, and the registry's choice of a champion.

use std::time::Duration;

use super::{
    DATE_TOLERANCE, INTEGER_MAX, LEDGER_SPAN_MAX, OutOfBounds, at_most, check_gpus, invalid,
    not_ahead,
};
use crate::messages::{Champion, JobWindow};
use crate::time::Timestamp;

/// Checks the times and counts of a window. [`crate::observation::Observation`] checks its readings.
///
/// # Errors
/// The first field outside its limits.
pub fn check_window(window: &JobWindow, now: Timestamp) -> Result<(), OutOfBounds> {
    // A window from the future would outdate all that follow it.
    not_ahead("until_us", window.until_us, now, DATE_TOLERANCE)?;
    let span: Duration = window.until_us.since(window.from_us);
    if span > LEDGER_SPAN_MAX {
        let expected = format_args!("at most {} s before until_us", LEDGER_SPAN_MAX.as_secs());
        return Err(invalid("from_us", window.from_us, expected));
    }
    check_gpus("gpus", &window.gpus)?;
    at_most("steps", window.steps.unwrap_or(0), INTEGER_MAX)?;
    at_most("step", window.step.unwrap_or(0), INTEGER_MAX)
}

/// Checks the stored champion.
///
/// # Errors
/// If its promotion is dated in the future, which would delay priors until then.
pub fn check_champion(champion: &Champion, now: Timestamp) -> Result<(), OutOfBounds> {
    not_ahead("since_us", champion.since_us, now, DATE_TOLERANCE)
}
