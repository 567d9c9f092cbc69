//! Comparison of policies at equal totals: completion time over energy or emissions.
//!
//! A policy run at several settings of its tuning parameter (a clock, a floor, a price) is a set of
//! points. Its frontier is the set of points that no other of its points dominates, so that no
//! policy is compared with a badly tuned one. Two frontiers are compared at equal totals over the
//! baseline's range. A total below a policy's least is not reachable for it and is reported as
//! such; above its largest total its best time holds, since using less is allowed. Nothing is
//! extrapolated.
//!
//! Between adjacent points a frontier is interpolated linearly, for both policies alike.

use wattle_saving::spread::RatioSpread;

use crate::bound::BoundFrontier;

/// Number of totals at which two frontiers are compared.
pub const COMPARED: usize = 16;

/// The least total compared, relative to the baseline's least. Close to a policy's least energy its
/// completion time grows steeply, and ratios have no meaning.
pub const FROM_LEAST: f64 = 1.1;

/// The outcome of one setting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FrontierPoint {
    /// Energy or emissions over the horizon, kWh or kg, above zero.
    pub total: f64,
    /// Mean completion time in seconds, above zero.
    pub jct_s: f64,
    /// The caller's index of the setting.
    pub setting: usize,
}

/// A policy's points that none dominates: totals ascend, times descend.
#[derive(Debug, Clone, PartialEq)]
pub struct Frontier {
    points: Vec<FrontierPoint>,
}

impl Frontier {
    /// The frontier of these points. Points without a positive total and time are skipped. `None`
    /// when none is left.
    #[must_use]
    pub fn of(points: impl IntoIterator<Item = FrontierPoint>) -> Option<Self> {
        let real = |value: f64| value.is_finite() && value > 0.0;
        let mut all: Vec<_> =
            points.into_iter().filter(|point| real(point.total) && real(point.jct_s)).collect();
        all.sort_by(|a, b| {
            a.total
                .total_cmp(&b.total)
                .then(a.jct_s.total_cmp(&b.jct_s))
                .then(a.setting.cmp(&b.setting))
        });
        let mut points: Vec<FrontierPoint> = Vec::new();
        for point in all {
            if points.last().is_none_or(|last| point.jct_s < last.jct_s) {
                points.push(point);
            }
        }
        (!points.is_empty()).then_some(Self { points })
    }

    /// Its points, by ascending total.
    #[must_use]
    pub fn points(&self) -> &[FrontierPoint] {
        &self.points
    }

    /// Its least total.
    #[must_use]
    pub fn least(&self) -> f64 {
        self.points[0].total
    }

    /// The total of its fastest point.
    #[must_use]
    pub fn largest(&self) -> f64 {
        self.points[self.points.len() - 1].total
    }

    /// The mean completion time within a total, seconds; `None` where it is not reachable.
    #[must_use]
    pub fn jct_s_at(&self, total: f64) -> Option<f64> {
        if total.is_nan() {
            return None;
        }
        let next = self.points.partition_point(|point| point.total <= total);
        let from = self.points.get(next.checked_sub(1)?)?;
        let Some(to) = self.points.get(next) else { return Some(from.jct_s) };
        let share = (total - from.total) / (to.total - from.total);
        Some(from.jct_s + share * (to.jct_s - from.jct_s))
    }

    /// The totals at which policies are compared with it: geometrically spaced from [`FROM_LEAST`]
    /// times its least to its largest. A shorter frontier is compared at its largest total only.
    #[must_use]
    pub fn compared_at(&self) -> Vec<f64> {
        let (from, to) = (self.least() * FROM_LEAST, self.largest());
        if from >= to {
            return vec![to];
        }
        let last = COMPARED - 1;
        // The last total is exact; a rounded one could miss the last point.
        (0..COMPARED)
            .map(|i| match i {
                0 => from,
                i if i == last => to,
                i => from * (to / from).powf(i as f64 / last as f64),
            })
            .collect()
    }

    /// Ratio of each of its points to a lower bound, as (total, ratio); `None` where the total is
    /// below the bound's least.
    #[must_use]
    pub fn above_bound(&self, bound: &BoundFrontier) -> Vec<(f64, Option<f64>)> {
        self.points
            .iter()
            .map(|point| (point.total, bound.above(point.total, point.jct_s)))
            .collect()
    }
}

/// Two frontiers at one total.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MatchedRatio {
    /// The total of both.
    pub total: f64,
    /// The baseline's completion time over the policy's; above 1 the policy is faster. `None` where
    /// the policy does not reach the total.
    pub ratio: Option<f64>,
}

/// A policy against a baseline along the baseline's frontier.
#[derive(Debug, Clone, PartialEq)]
pub struct Matched {
    /// By ascending total.
    pub ratios: Vec<MatchedRatio>,
    /// Over the reachable totals; `None` without any.
    pub spread: Option<RatioSpread>,
}

impl Matched {
    /// Number of the baseline's totals that the policy does not reach.
    #[must_use]
    pub fn not_reachable(&self) -> usize {
        self.ratios.iter().filter(|matched| matched.ratio.is_none()).count()
    }
}

/// Compares a policy with a baseline at equal totals along the baseline's frontier.
#[must_use]
pub fn compare(policy: &Frontier, baseline: &Frontier) -> Matched {
    let ratios: Vec<MatchedRatio> = baseline
        .compared_at()
        .into_iter()
        .map(|total| {
            let times = baseline.jct_s_at(total).zip(policy.jct_s_at(total));
            MatchedRatio { total, ratio: times.map(|(theirs, ours)| theirs / ours) }
        })
        .collect();
    let spread = RatioSpread::of(ratios.iter().filter_map(|matched| matched.ratio));
    Matched { ratios, spread }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::bound::{BoundJob, BoundOption, contention_free};

    fn frontier(points: &[(f64, f64)]) -> Frontier {
        let point = |(setting, &(total, jct_s))| FrontierPoint { total, jct_s, setting };
        Frontier::of(points.iter().enumerate().map(point)).unwrap()
    }

    #[test]
    fn dominated_points_are_left_out() {
        let points = [(12.0, 30.0), (10.0, 50.0), (14.0, 31.0), (12.0, 40.0), (20.0, 30.0)];
        let kept = frontier(&points);
        let settings: Vec<_> = kept.points().iter().map(|point| point.setting).collect();
        assert_eq!(settings, [1, 0]);
        assert!(Frontier::of([]).is_none());
        let nothing_finished = FrontierPoint { total: 3.0, jct_s: f64::NAN, setting: 0 };
        assert!(Frontier::of([nothing_finished]).is_none());
    }

    #[test]
    fn small_totals_are_not_reachable_and_large_ones_are_capped() {
        let curve = frontier(&[(10.0, 50.0), (20.0, 30.0)]);
        assert_eq!(curve.jct_s_at(9.9), None);
        assert_eq!(curve.jct_s_at(f64::NAN), None);
        assert_eq!(curve.jct_s_at(10.0), Some(50.0));
        assert_eq!(curve.jct_s_at(15.0), Some(40.0));
        assert_eq!(curve.jct_s_at(99.0), Some(30.0));
    }

    #[test]
    fn totals_run_from_a_tenth_above_the_least_to_the_largest() {
        let totals = frontier(&[(10.0, 50.0), (44.0, 30.0)]).compared_at();
        assert_eq!(totals.len(), COMPARED);
        assert!((totals[0] - 11.0).abs() < 1e-12, "{totals:?}");
        assert_eq!(totals.last(), Some(&44.0));
        let steps: Vec<_> = totals.windows(2).map(|pair| pair[1] / pair[0]).collect();
        assert!(steps.iter().all(|step| (step / steps[0] - 1.0).abs() < 1e-9), "{steps:?}");
        // A single setting has one total.
        assert_eq!(frontier(&[(10.0, 50.0)]).compared_at(), [10.0]);
    }

    #[test]
    fn comparison_covers_only_reachable_energies() {
        let baseline = frontier(&[(10.0, 60.0), (40.0, 30.0)]);
        // Twice as fast everywhere, but it cannot spend less than 20.
        let policy = frontier(&[(20.0, 25.0), (40.0, 15.0)]);
        let matched = compare(&policy, &baseline);
        let below: Vec<_> = matched.ratios.iter().map(|matched| matched.total < 20.0).collect();
        let missing: Vec<_> =
            matched.ratios.iter().map(|matched| matched.ratio.is_none()).collect();
        assert_eq!(below, missing);
        assert_eq!(matched.not_reachable(), missing.iter().filter(|missing| **missing).count());
        let spread = matched.spread.unwrap();
        for ratio in [spread.smallest, spread.largest, spread.geometric_mean] {
            assert!((ratio - 2.0).abs() < 1e-9, "{spread:?}");
        }
        // Conversely, the baseline's largest total exceeds all of the policy's.
        assert_eq!(compare(&baseline, &policy).not_reachable(), 0);
        let costly = frontier(&[(100.0, 1.0)]);
        assert_eq!(compare(&costly, &baseline).spread, None);
    }

    #[test]
    fn the_geometric_mean_of_two_and_a_half_is_one() {
        let spread = RatioSpread::of([2.0, 0.5]).unwrap();
        assert!((spread.geometric_mean - 1.0).abs() < 1e-12);
        assert_eq!((spread.smallest, spread.largest), (0.5, 2.0));
        assert_eq!(RatioSpread::of([]), None);
    }

    #[test]
    fn points_below_the_bounds_least_total_have_no_ratio() {
        let options: Arc<[BoundOption]> =
            [BoundOption { gpus: 1, steps_per_s: 1.0, power_w: 100.0 }].into();
        let bound =
            contention_free(&[BoundJob { arrival_s: 0.0, work: 3.6e4, options }], 1).unwrap();
        let points = frontier(&[(0.5, 50_000.0), (1.0, 45_000.0), (2.0, 36_000.0)]);
        let above = points.above_bound(&bound);
        assert_eq!(above, [(0.5, None), (1.0, Some(1.25)), (2.0, Some(1.0))]);
    }

    proptest! {
        #[test]
        fn a_frontier_compared_with_itself_is_one(
            points in prop::collection::vec((1.0_f64..100.0, 1.0_f64..100.0), 1..12)
        ) {
            let curve = frontier(&points);
            prop_assert!(curve.points().windows(2).all(|p| p[0].total < p[1].total && p[0].jct_s > p[1].jct_s));
            // No point is dominated by a point that was left out.
            for &(total, jct_s) in &points {
                prop_assert!(curve.jct_s_at(total).is_some_and(|best| best <= jct_s * (1.0 + 1e-12)));
            }
            let matched = compare(&curve, &curve);
            prop_assert!(matched.ratios.iter().all(|m| m.ratio == Some(1.0)), "{matched:?}");
        }
    }
}
