//! Which world of neighbours is asked: how much jobs that share a card slow each other.
//!
//! Nothing decides a comparison of policies that pack more than this, and the public measurements
//! disagree: V100s lose much between compute-bound jobs, an RTX 3090 little. So both are here,
//! apart, and whoever compares shows both. What a shared card draws is the same in either.

use crate::Curve;

/// A world of neighbours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Interference {
    /// Pairs measured on V100 and P100, by family, wherever both families were (Gavel); every other
    /// set of tenants by the queue fitted on `EaCO`'s tables (sharing.rs). Other cards carry the
    /// V100's pairs.
    #[default]
    Pairs,
    /// One curve for all: the speed of each tenant by how much of the card all of them together
    /// take when alone (Lucid, pairs on an RTX 3090).
    Mild,
}

impl Interference {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Pairs, Self::Mild];

    /// Its name in configuration and output: `pairs` or `mild`.
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

/// What the catalog says of jobs that share a card.
#[derive(Clone, Debug)]
pub(crate) struct Sharing {
    pub(crate) interference: Interference,
    /// Extra time for each neighbour, relative to a step alone (sharing.rs).
    pub(crate) delay_per_neighbour: f64,
    pub(crate) mild: Mild,
}

/// The curve of [`Interference::Mild`].
#[derive(Clone, Debug)]
pub(crate) struct Mild {
    /// Sum of the tenants' shares of the card -> how much longer each takes, relative to alone.
    delay: Curve,
}

impl Mild {
    /// The curve through (sum of shares, speed); `None` where speeds are not in (0, 1] and falling.
    pub(crate) fn through(points: &[(f64, f64)]) -> Option<Self> {
        let shares = points.iter().all(|(sum, speed)| *sum > 0.0 && *speed > 0.0 && *speed <= 1.0);
        let falls = points.windows(2).all(|w| w[0].1 >= w[1].1);
        let delays: Vec<(f64, f64)> = points.iter().map(|(s, v)| (*s, 1.0 / v - 1.0)).collect();
        let delay = Curve::through(&delays).filter(|_| shares && falls)?;
        Some(Self { delay })
    }

    /// How much longer each of the tenants takes for the others, relative to alone.
    ///
    /// Only pairs were measured, so sums end at 2. Beyond the last point the card does no more
    /// work than there: the tenants share it in proportion to what each would take.
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

    fn mild() -> Mild {
        Mild::through(&[(0.5, 1.0), (1.1, 0.93), (1.9, 0.68)]).unwrap()
    }

    #[test]
    fn it_goes_through_its_points_and_then_shares_a_full_card() {
        let speed = |busy: &[f64]| 1.0 / (1.0 + mild().delay(busy));
        for (busy, expected) in [
            (&[1.0][..], 1.0),
            (&[0.1, 0.2], 1.0),
            (&[0.6, 0.5], 0.93),
            (&[0.95, 0.95], 0.68),
            // Four full jobs do as much together as 1.9 of them: 0.68 x 1.9 / 4.
            (&[1.0, 1.0, 1.0, 1.0], 0.323),
        ] {
            assert!((speed(busy) - expected).abs() < 1e-9, "{busy:?}: {}", speed(busy));
        }
        for wrong in [&[(0.5, 1.1)][..], &[(0.5, 0.9), (0.6, 0.95)], &[(0.0, 1.0)], &[]] {
            assert!(Mild::through(wrong).is_none(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn one_more_never_helps(busy in prop::collection::vec(0.0f64..=1.0, 1..12)) {
            let (few, many) = (mild().delay(&busy[..busy.len() - 1]), mild().delay(&busy));
            prop_assert!(many.is_finite() && many + 1e-12 >= few, "{few} {many}");
        }
    }
}
