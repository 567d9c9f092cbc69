//! Constants of the models that were set by judgement.
//!
//! Such a constant must not be tuned to the data that it is evaluated on. With the feature `vary`
//! (for developers, in no shipped build) `examples/sensitivity.rs` halves and doubles each one and
//! prints the change of every evaluated row. Without that feature a constant is its value and has
//! no cost.

/// A constant set by judgement.
#[derive(Debug)]
pub struct Constant {
    name: &'static str,
    value: f64,
}

impl Constant {
    /// `name` is `file: CONSTANT`.
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

/// Smallest standard deviation of a reading or of a curve through readings: no window repeats better
/// than 1 % (the accuracy of NVML's power sensors at best).
pub const LEAST_SD: Constant = Constant::new("LEAST_SD", 0.01);

/// Multiplication of one constant, for the process.
#[cfg(feature = "vary")]
pub mod varied {
    use std::sync::OnceLock;

    pub(super) static FACTOR: OnceLock<(String, f64)> = OnceLock::new();

    /// Multiplies the constant `name`; false where one was multiplied before.
    pub fn multiply(name: &str, factor: f64) -> bool {
        FACTOR.set((name.to_owned(), factor)).is_ok()
    }
}
