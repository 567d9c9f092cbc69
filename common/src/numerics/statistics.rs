//! Mean, medians and sample quantiles.
//!
//! The literature knows several sample quantiles. Each function names the definition that it
//! implements, with its type in Hyndman and Fan ("Sample Quantiles in Statistical Packages", The
//! American Statistician 50, 1996). Ranks below are counted from 1 in ascending order; between two
//! ranks the value is interpolated linearly. All of them return `None` for an empty sample.

use super::lerp;

/// Arithmetic mean.
#[must_use]
pub fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

/// Median: the middle value, or the mean of the two middle values of an even number of values.
#[must_use]
pub fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let sorted = sorted(values);
    let last = sorted.len().checked_sub(1)?;
    Some(f64::midpoint(sorted[last / 2], sorted[sorted.len() / 2]))
}

/// High median: the middle value, or the larger of the two middle values of an even number of
/// values. It is always one of the values.
#[must_use]
pub fn median_high(values: impl Iterator<Item = f64>) -> Option<f64> {
    let sorted = sorted(values);
    sorted.get(sorted.len() / 2).copied()
}

/// Quantile at rank `(n - 1) q + 1`: type 7, the default of R and NumPy.
#[must_use]
pub fn quantile_linear(values: &mut [f64], q: f64) -> Option<f64> {
    let last = values.len().checked_sub(1)?;
    at_rank(values, q * last as f64)
}

/// Quantile at rank `(n + 1) q`, or the smallest or largest value where that rank does not exist:
/// type 6, Weibull's. The next value of an exchangeable sequence lies below it with probability `q`.
#[must_use]
pub fn quantile_weibull(values: &mut [f64], q: f64) -> Option<f64> {
    let last = values.len().checked_sub(1)?;
    at_rank(values, ((values.len() as f64 + 1.0) * q - 1.0).clamp(0.0, last as f64))
}

/// Index, counted from 0 in ascending order, of the quantile that split conformal prediction uses:
/// rank `ceil((n + 1) q)`, or `n` where that rank does not exist. The next value of an exchangeable
/// sequence lies below it with probability `q` or more (Vovk, Gammerman and Shafer, "Algorithmic
/// Learning in a Random World", 2005).
#[must_use]
pub fn conformal_index(n: usize, q: f64) -> Option<usize> {
    let rank = ((n as f64 + 1.0) * q).ceil() as usize;
    rank.min(n).checked_sub(1)
}

/// Normalised likelihoods `exp(-deviance / 2)` of alternatives, given each one's deviance (minus
/// twice its log likelihood, up to a common constant; a sum of squared standardised residuals). They
/// sum to 1.
#[must_use]
pub fn likelihood_weights(deviances: &[f64]) -> Vec<f64> {
    let least = deviances.iter().copied().fold(f64::INFINITY, f64::min);
    let likelihoods: Vec<f64> = deviances.iter().map(|d| (-(d - least) / 2.0).exp()).collect();
    let sum: f64 = likelihoods.iter().sum();
    likelihoods.into_iter().map(|likelihood| likelihood / sum).collect()
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Value at a fractional index, counted from 0 in ascending order. Reorders `values`.
fn at_rank(values: &mut [f64], index: f64) -> Option<f64> {
    let (whole, part) = (index.floor() as usize, index.fract());
    let (_, low, above) = values.select_nth_unstable_by(whole, f64::total_cmp);
    let low = *low;
    let high = above.iter().copied().min_by(f64::total_cmp).unwrap_or(low);
    Some(lerp(low, high, part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_differ_for_an_even_number_of_values() {
        let values = || [4.0, 1.0, 3.0, 2.0].into_iter();
        assert_eq!((median(values()), median_high(values())), (Some(2.5), Some(3.0)));
        assert_eq!(median(values().take(3)), median_high(values().take(3)));
        assert_eq!((median(values().take(0)), median_high(values().take(0))), (None, None));
        assert_eq!((mean(values()), mean(values().take(0))), (Some(2.5), None));
    }

    /// The example of R's `quantile(1:5, 0.4, type = t)`.
    #[test]
    fn quantiles_follow_their_definitions() {
        let values = || [5.0, 3.0, 1.0, 2.0, 4.0];
        let close = |a: Option<f64>, b: f64| assert!((a.unwrap() - b).abs() < 1e-12, "{a:?} {b}");
        close(quantile_linear(&mut values(), 0.4), 2.6);
        close(quantile_weibull(&mut values(), 0.4), 2.4);
        close(quantile_weibull(&mut values(), 0.99), 5.0);
        assert_eq!(quantile_linear(&mut [], 0.5), None);
        assert_eq!(quantile_weibull(&mut [], 0.5), None);
    }

    #[test]
    fn likelihoods_are_normalised() {
        let weights = likelihood_weights(&[1000.0, 1000.0 + 2.0 * 3f64.ln()]);
        assert!((weights[0] - 0.75).abs() < 1e-12 && (weights[1] - 0.25).abs() < 1e-12);
        assert!(likelihood_weights(&[]).is_empty());
    }

    #[test]
    fn conformal_quantile_is_corrected_for_small_samples() {
        for (n, index) in [(0, None), (1, Some(0)), (9, Some(8)), (99, Some(89))] {
            assert_eq!(conformal_index(n, 0.9), index, "{n}");
        }
    }
}
