//! The number of cases of the longest property tests.

/// The environment variable that selects all cases; `tests/full` sets it to `all`.
pub const CASES_ENV: &str = "WATTLE_CASES";

/// A part of a property test's cases in the gate, all of them on request.
///
/// # Panics
/// If the variable has another value.
#[must_use]
pub fn cases(gate: u32, all: u32) -> u32 {
    match std::env::var(CASES_ENV).as_deref() {
        Err(std::env::VarError::NotPresent) => gate,
        Ok("all") => all,
        other => panic!("{CASES_ENV} is {other:?}; the only value is `all`"),
    }
}
