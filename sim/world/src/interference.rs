//! Interference models: how much co-located jobs slow each other.
//!
//! The public measurements disagree: compute-bound jobs lose much on V100s and little on an RTX
//! 3090. The choice dominates comparisons of co-locating policies, so both models are provided and
//! comparisons report both. The power of a shared GPU is the same in either.

use crate::Curve;

/// An interference model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Interference {
    /// Measured pair speeds on V100 and P100 (Gavel) where both workload families were measured;
    /// otherwise the queueing model fitted to `EaCO`'s tables (sharing.rs). Other GPU types use the
    /// V100's pairs.
    #[default]
    Pairs,
    /// One curve for all workloads: speed as a function of summed GPU utilisation (Lucid, pairs on
    /// an RTX 3090).
    Mild,
}

impl Interference {
    /// All models.
    pub const ALL: [Self; 2] = [Self::Pairs, Self::Mild];

    /// Name in configuration and output: `pairs` or `mild`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pairs => "pairs",
            Self::Mild => "mild",
        }
    }
}

impl std::fmt::Display for Interference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The catalog's parameters of GPU sharing.
#[derive(Clone, Debug)]
pub(crate) struct Sharing {
    pub(crate) interference: Interference,
    /// Extra time per co-tenant, relative to an exclusive step (sharing.rs).
    pub(crate) delay_per_neighbour: f64,
    pub(crate) mild: MildCurve,
}

/// The curve of [`Interference::Mild`].
#[derive(Clone, Debug)]
pub(crate) struct MildCurve {
    /// Sum of the tenants' busy shares -> relative delay of each.
    delay: Curve,
}

impl MildCurve {
    /// The curve through points (sum of busy shares, speed); `None` unless speeds are in (0, 1] and
    /// non-increasing.
    pub(crate) fn through(points: &[(f64, f64)]) -> Option<Self> {
        let shares = points.iter().all(|(sum, speed)| *sum > 0.0 && *speed > 0.0 && *speed <= 1.0);
        let falls = points.windows(2).all(|w| w[0].1 >= w[1].1);
        let delays: Vec<(f64, f64)> = points.iter().map(|(s, v)| (*s, 1.0 / v - 1.0)).collect();
        let delay = Curve::through(&delays).filter(|_| shares && falls)?;
        Some(Self { delay })
    }

    /// Relative delay of each tenant, given their busy shares under exclusive use.
    ///
    /// Only pairs were measured, so measured sums end at 2. Beyond the last point the total
    /// throughput stays constant and tenants share it in proportion to their busy shares.
    pub(crate) fn delay(&self, busy: &[f64]) -> f64 {
        if busy.len() < 2 {
            return 0.0;
        }
        let sum: f64 = busy.iter().sum();
        let (last, _) = self.delay.last();
        (1.0 + self.delay.at(sum)) * (sum / last).max(1.0) - 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mild() -> MildCurve {
        MildCurve::through(&[(0.5, 1.0), (1.1, 0.93), (1.9, 0.68)]).unwrap()
    }

    #[test]
    fn curve_meets_its_points_and_keeps_throughput_beyond_them() {
        let speed = |busy: &[f64]| 1.0 / (1.0 + mild().delay(busy));
        for (busy, expected) in [
            (&[1.0][..], 1.0),
            (&[0.1, 0.2], 1.0),
            (&[0.6, 0.5], 0.93),
            (&[0.95, 0.95], 0.68),
            // Four saturating jobs have the throughput of 1.9 of them: 0.68 x 1.9 / 4.
            (&[1.0, 1.0, 1.0, 1.0], 0.323),
        ] {
            assert!((speed(busy) - expected).abs() < 1e-9, "{busy:?}: {}", speed(busy));
        }
        for wrong in [&[(0.5, 1.1)][..], &[(0.5, 0.9), (0.6, 0.95)], &[(0.0, 1.0)], &[]] {
            assert!(MildCurve::through(wrong).is_none(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn adding_a_tenant_never_reduces_delay(busy in prop::collection::vec(0.0f64..=1.0, 1..12)) {
            let (few, many) = (mild().delay(&busy[..busy.len() - 1]), mild().delay(&busy));
            prop_assert!(many.is_finite() && many + 1e-12 >= few, "{few} {many}");
        }
    }
}
