//! What bounds the mean completion time of Wattle's schedule in an estimate.

use crate::lateness::Allowed;

/// The shares of the curve by which jobs may complete later on average than under the baseline.
pub const LATER_SHARES: [f64; 3] = [0.0, 0.05, 0.1];

/// What bounds the mean completion time of Wattle's schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SavingBound {
    /// The share by which jobs may complete later on average than under the baseline.
    Later(f64),
    /// The same relative to the same policy with free energy.
    MaxSlowdown(f64),
}

impl SavingBound {
    /// The permitted lateness.
    pub(super) const fn allowed(self) -> Allowed {
        match self {
            Self::Later(share) | Self::MaxSlowdown(share) => Allowed::mean(share),
        }
    }

    /// The bound on exact surfaces that stands for this one on predictions, where mean completion at price 0 on
    /// predictions is `ratio` times as long as on exact surfaces.
    pub(super) fn on_exact(self, ratio: f64) -> Self {
        match self {
            Self::Later(share) => Self::Later((1.0 + share) / ratio - 1.0),
            own @ Self::MaxSlowdown(_) => own,
        }
    }

    /// The bounds of the points of an estimate with this one, ascending: a curve where they relate to the baseline.
    pub(super) fn points(self) -> Vec<Self> {
        let Self::Later(own) = self else { return vec![self] };
        let mut shares = LATER_SHARES.to_vec();
        shares.push(own);
        shares.sort_by(f64::total_cmp);
        shares.dedup_by(|a, b| a.total_cmp(b).is_eq());
        shares.into_iter().map(Self::Later).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_share_is_one_of_the_points() {
        let later = |shares: &[f64]| shares.iter().copied().map(SavingBound::Later).collect();
        let of = |share: f64| -> Vec<SavingBound> { SavingBound::Later(share).points() };
        let expected: Vec<SavingBound> = later(&LATER_SHARES);
        assert_eq!((of(0.0), of(0.05)), (expected.clone(), expected));
        assert_eq!(of(0.03), later(&[0.0, 0.03, 0.05, 0.1]) as Vec<_>);
        let own = SavingBound::MaxSlowdown(0.05);
        assert_eq!(own.points(), [own]);
    }
}
