//! The spread of changes and of ratios over several runs.

use std::fmt;

use serde::Serialize;

/// A relative change over seeds: mean, least and greatest; -0.1 is a tenth less.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ChangeSpread {
    /// Mean over the seeds.
    pub mean: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl ChangeSpread {
    /// The spread of one change per seed; `None` where a change is missing or the list is empty.
    #[must_use]
    pub fn of(changes: &[Option<f64>]) -> Option<Self> {
        let changes: Vec<f64> = changes.iter().copied().collect::<Option<_>>()?;
        let n = changes.len();
        let rounded = |change: f64| (change * 1e6).round() / 1e6;
        (n > 0).then(|| Self {
            mean: rounded(changes.iter().sum::<f64>() / n as f64),
            min: rounded(changes.iter().copied().fold(f64::INFINITY, f64::min)),
            max: rounded(changes.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
        })
    }
}

impl fmt::Display for ChangeSpread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [mean, min, max] = [self.mean, self.min, self.max].map(|change| 100.0 * change);
        write!(f, "{mean:+.1} % ({min:+.1} to {max:+.1})")
    }
}

/// The range and the geometric mean of ratios.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RatioSpread {
    /// The smallest.
    pub smallest: f64,
    /// The largest.
    pub largest: f64,
    /// The geometric mean.
    pub geometric_mean: f64,
}

impl RatioSpread {
    /// `None` without ratios.
    #[must_use]
    pub fn of(ratios: impl IntoIterator<Item = f64>) -> Option<Self> {
        let (mut smallest, mut largest, mut logs, mut count) = (f64::INFINITY, 0.0_f64, 0.0, 0_u32);
        for ratio in ratios {
            smallest = smallest.min(ratio);
            largest = largest.max(ratio);
            logs += ratio.ln();
            count += 1;
        }
        let geometric_mean = (logs / f64::from(count)).exp();
        (count > 0).then_some(Self { smallest, largest, geometric_mean })
    }
}
