//! Numbers of the models that no table gives, each beside its formula; here is what they are.
//!
//! A number that was settled by judgement must not have been tuned to what it is scored on. So each
//! can be halved and doubled by anyone who has measured files: with the feature `vary` (for
//! developers, in no shipped build) `examples/sensitivity.rs` does so and prints how every scored
//! row moves. Without that feature a constant is its value and costs nothing.

/// A number settled by judgement.
#[derive(Debug)]
pub struct Constant {
    name: &'static str,
    value: f64,
}

impl Constant {
    /// `name` is `file: WHAT`.
    #[must_use]
    pub const fn new(name: &'static str, value: f64) -> Self {
        Self { name, value }
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Its value.
    #[must_use]
    #[inline]
    pub fn get(&self) -> f64 {
        #[cfg(feature = "vary")]
        if let Some((name, factor)) = varied::FACTOR.get()
            && *name == self.name
        {
            return self.value * factor;
        }
        self.value
    }
}

/// The least deviation that is believed of anything read or drawn through readings: no window repeats
/// better than a percent (NVML's power sensors are good to that at best).
pub const LEAST_SD: Constant = Constant::new("LEAST_SD", 0.01);

/// All of the models of caps and clocks.
pub const ALL: &[&Constant] = &[
    &LEAST_SD,
    &super::cap::BITE,
    &super::cap::CORNER,
    &super::cap::BELIEF_WIDTH,
    &super::clock::CORNER_SD,
    &super::shape::POWER_BELIEVED,
    &super::shape::REACH_BELIEVED,
    &super::shape::BELIEF_SD,
    &super::transfer::WANDER_BELIEVED_TIME,
    &super::transfer::WANDER_BELIEVED_POWER,
    &crate::job::curve::BETWEEN_SHARE,
    &crate::job::held::CLOCK_WANDER_TIME,
    &crate::job::held::CLOCK_WANDER_POWER,
    &crate::job::held::SHIFT_SHARE,
];

/// One constant multiplied, for the whole process.
#[cfg(feature = "vary")]
pub mod varied {
    use std::sync::OnceLock;

    pub(super) static FACTOR: OnceLock<(String, f64)> = OnceLock::new();

    /// Multiplies the constant called `name` from now on; false where one was multiplied before.
    pub fn multiply(name: &str, factor: f64) -> bool {
        FACTOR.set((name.to_owned(), factor)).is_ok()
    }
}
