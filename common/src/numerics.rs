//! Numerical methods that several crates need, each implemented once.
//!
//! * [`statistics`]: mean, medians and sample quantiles, each named by its standard definition.
//! * [`student`]: Student's t distribution.
//! * [`cholesky`]: symmetric positive definite systems, by Cholesky factorisation.
//! * [`gauss_jordan`]: small systems with several right-hand sides, by Gauss-Jordan elimination.
//! * [`isotonic`]: isotonic regression, by pooling adjacent violators.
//! * [`interpolation`]: linear and monotone cubic interpolation.
//!
//! All functions are deterministic: they add in the order of their input and contain no randomness.

pub mod cholesky;
pub mod gauss_jordan;
pub mod interpolation;
pub mod isotonic;
pub mod statistics;
pub mod student;

pub use cholesky::Cholesky;
pub use interpolation::{EndSlopes, MonotoneCubic, lerp};
pub use isotonic::{non_decreasing, non_increasing};
pub use statistics::{mean, median, median_high};
