//! Intervals: from a mean and a variance to an estimate with a 90 % interval.
//!
//! Models work in logarithms, where noise is relative; here the result becomes a quantity again, within
//! its physical bounds.

use wattle_common::messages::Estimate;
use wattle_common::numerics::student::percentile_95;

/// Mean and variance of a quantity's natural logarithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogNormal {
    /// Expected logarithm.
    pub mean: f64,
    /// Variance of the logarithm.
    pub variance: f64,
    /// Degrees of freedom of the variance.
    pub dof: f64,
}

impl LogNormal {
    /// `value` without error.
    #[must_use]
    pub fn exactly(value: f64) -> Self {
        Self { mean: value.ln(), variance: 0.0, dof: 1e6 }
    }

    /// Product of two independent quantities.
    #[must_use]
    pub fn times(self, other: Self) -> Self {
        let widest = if self.variance >= other.variance { self.dof } else { other.dof };
        Self { mean: self.mean + other.mean, variance: self.variance + other.variance, dof: widest }
    }

    /// Mean and 90 % interval, limited to `[low, high]`.
    #[must_use]
    pub fn estimate(self, low: f64, high: f64) -> Estimate {
        // A factor of e^4 either way is already uninformative, and larger ones would overflow.
        let half = (percentile_95(self.dof) * self.variance.max(0.0).sqrt()).min(4.0);
        let bounded = |ln: f64| {
            let value = if ln.is_finite() { ln.exp().clamp(low, high) } else { high };
            five_digits(value)
        };
        Estimate {
            mean: bounded(self.mean),
            low: bounded(self.mean - half),
            high: bounded(self.mean + half),
        }
    }
}

/// `estimate` with both halves of its interval multiplied by `factor`, in logarithms, within
/// `[low, high]` and around the mean.
#[must_use]
pub fn stretched(estimate: &Estimate, factor: f64, low: f64, high: f64) -> Estimate {
    let mean = estimate.mean;
    let half = |ratio: f64| (factor * ratio.ln().max(0.0)).min(4.0).exp();
    Estimate {
        mean,
        low: five_digits((mean / half(mean / estimate.low)).max(low)).min(mean),
        high: five_digits((mean * half(estimate.high / mean)).min(high)).max(mean),
    }
}

/// Time of a step at a step rate.
#[must_use]
pub fn time_of(rate: &Estimate) -> Estimate {
    Estimate { mean: 1.0 / rate.mean, low: 1.0 / rate.high, high: 1.0 / rate.low }
}

/// Product of two estimates with independent errors: squared half-widths add up, in logarithms.
#[must_use]
pub fn product(a: &Estimate, b: &Estimate) -> Estimate {
    let half = |of: &dyn Fn(&Estimate) -> f64| of(a).hypot(of(b)).exp();
    let mean = a.mean * b.mean;
    Estimate {
        mean,
        low: mean / half(&|e| (e.mean / e.low).ln()),
        high: mean * half(&|e| (e.high / e.mean).ln()),
    }
}

/// Rounded to five significant digits, which are enough, and keep surfaces small. Preserves order, and
/// bounds that have five digits.
fn five_digits(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return value;
    }
    // Powers of ten up to 10^22 are exact, so a multiplication or division by one rounds once.
    let digits = 4 - value.log10().floor() as i32;
    let scale = 10f64.powi(digits.abs());
    if digits >= 0 { (value * scale).round() / scale } else { (value / scale).round() * scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretched_interval_keeps_its_mean_and_bounds() {
        let one = Estimate { mean: 2.0, low: 1.0, high: 3.0 };
        let twice = stretched(&one, 2.0, 0.0, 4.0);
        assert_eq!(twice, Estimate { mean: 2.0, low: 0.5, high: 4.0 });
        assert_eq!(stretched(&one, 1.0, 0.0, 9.0), one);
        let sure = LogNormal::exactly(1.0).estimate(0.0, 2.0);
        assert_eq!(stretched(&sure, 20.0, 0.0, 2.0), sure);
    }

    #[test]
    fn bounds_and_order_are_kept() {
        let wide = LogNormal { mean: 0.5, variance: 9.0, dof: 4.0 }.estimate(0.01, 1.05);
        assert_eq!((wide.mean, wide.high), (1.05, 1.05));
        assert!(wide.low >= 0.01 && wide.low <= wide.mean);
        assert!((five_digits(123_456.0) - 123_460.0).abs() < 1e-9);
        assert!((five_digits(0.012_345_67) - 0.012_346).abs() < 1e-12);
        let sure = LogNormal::exactly(0.8).estimate(0.0, 1.0);
        assert!((sure.high - sure.low).abs() < 1e-9);
    }

    #[test]
    fn products_and_step_times() {
        let one = Estimate { mean: 2.0, low: 1.0, high: 4.0 };
        let sure = Estimate { mean: 3.0, low: 3.0, high: 3.0 };
        let both = product(&one, &sure);
        assert!((both.mean - 6.0).abs() < 1e-9 && (both.low - 3.0).abs() < 1e-9);
        assert_eq!(time_of(&one), Estimate { mean: 0.5, low: 0.25, high: 1.0 });
    }
}
