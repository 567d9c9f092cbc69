//! The scores of one quantity, aspect and horizon, by family, and the quantiles that follow.
//!
//! Bounded in families and in scores for each. What a score is, is not known here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use wattle_common::id;

use super::SCORE_MAX;
use super::place::{Aspect, Horizon, Place};

/// The share of what will be seen that an interval is to hold.
const COVERED: f64 = 0.9;
/// Scores of one family kept, the newest.
pub const SCORES_MAX: usize = 256;
/// Families kept; beyond, the one with the fewest scores makes room.
pub const FAMILIES_MAX: usize = 64;
/// Scores from which on a family speaks for itself: the quantile's place is the second largest
/// then, so one wild score does not make it.
const OWN_MIN: usize = 20;
/// Jobs that scores must come from before they count: those of one job, or of two, say nothing of
/// the next, and a job's surface does not depend then on the order its own windows came in.
const JOBS_MIN: usize = 3;
/// Scores from which on a family is one of those that a new one may be like.
const GROUP_MIN: usize = 5;
/// Up to so many scores the quantile over all jobs is worked out at every one.
const PROMPT_MAX: usize = 512;
/// Beyond, once a share of one in so many of them is new.
const SETTLED_BY: usize = 64;
/// Fewer than nine of anything have no 90 % quantile: `0.9 (n + 1)` is beyond them.
const NINE: usize = 9;

/// The scores of one quantity, aspect and horizon, by family.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    pub(super) families: BTreeMap<String, VecDeque<(u32, f32)>>,
    /// Follows from them.
    #[serde(skip)]
    quantiles: Quantiles,
    /// Since it was stored.
    #[serde(skip)]
    pub(super) news: usize,
    /// Since the quantile over all jobs was worked out.
    #[serde(skip)]
    unsettled: usize,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Quantiles {
    own: BTreeMap<String, f64>,
    pooled: Option<f64>,
    /// What a family like the others stays within, nine times in ten.
    new: Option<f64>,
    /// Of the worst family.
    worst: Option<f64>,
    /// By family, over its jobs, each of the same weight; and over all jobs.
    own_jobs: BTreeMap<String, f64>,
    jobs: Option<f64>,
}

/// The quantile of one more job than those that gave `scores`: a job counts the same however many it
/// gave, and the new one as much, as if beyond all. `None` for too few jobs to say.
fn quantile_of_jobs(scores: &[(u32, f32)]) -> Option<f64> {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for (job, _) in scores {
        *counts.entry(*job).or_default() += 1;
    }
    let asked = COVERED * (counts.len() as f64 + 1.0);
    if asked > counts.len() as f64 {
        return None;
    }
    let mut sorted = scores.to_vec();
    sorted.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut below = 0.0;
    sorted.into_iter().find_map(|(job, score)| {
        below += 1.0 / counts[&job] as f64;
        // A sum of shares is not exact.
        (below + 1e-9 >= asked).then_some(f64::from(score))
    })
}

/// The `ceil(0.9 (n + 1))`-th smallest; the largest where there are too few for it. At least nine in
/// ten: for scores of several families, which are not of one law.
fn quantile(values: &mut [f32]) -> Option<f64> {
    let n = values.len();
    let rank = ((n as f64 + 1.0) * COVERED).ceil() as usize;
    let at = rank.min(n).checked_sub(1)?;
    let (_, value, _) = values.select_nth_unstable_by(at, f32::total_cmp);
    Some(f64::from(*value))
}

/// The value in place `0.9 (n + 1)`, between two of them in proportion: one more of the same law lies
/// below it nine times in ten, no more often and no less. Where n is small, rounding the place up
/// would hold some two in a hundred more than was asked for.
fn between(values: &mut [f32]) -> Option<f64> {
    let last = values.len().checked_sub(1)?;
    let place = ((values.len() as f64 + 1.0) * COVERED - 1.0).clamp(0.0, last as f64);
    let (at, part) = (place.floor() as usize, place.fract());
    let (_, low, above) = values.select_nth_unstable_by(at, f32::total_cmp);
    let low = f64::from(*low);
    let high = above.iter().copied().min_by(f32::total_cmp).map_or(low, f64::from);
    Some(low + part * (high - low))
}

/// What a new family needs, by what each of the others did (`descending`): the 90 % quantile of
/// families; of fewer than twenty the second worst, so that one wild family does not make it; and
/// of fewer than nine, which have no such quantile, at least what the models claim themselves, which
/// is 1: so few families cannot show that the next needs less.
fn of_new_family(descending: &[f64]) -> Option<f64> {
    let rank = ((descending.len() as f64 + 1.0) * COVERED).ceil() as usize;
    let from_top = descending.len().saturating_sub(rank).max(1);
    let found = *descending.get(from_top).or(descending.first())?;
    Some(if descending.len() < NINE { found.max(1.0) } else { found })
}

impl Scores {
    pub(super) fn push(&mut self, family: &str, job: u32, score: f64) {
        if !self.families.contains_key(family) && self.families.len() >= FAMILIES_MAX {
            let fewest = self.families.iter().min_by_key(|(_, s)| s.len());
            if let Some(name) = fewest.map(|(name, _)| name.clone()) {
                self.families.remove(&name);
            }
        }
        let ring = self.families.entry(family.to_owned()).or_default();
        if ring.len() >= SCORES_MAX {
            ring.pop_front();
        }
        // A thousandth is more than the quantile is sure to.
        ring.push_back((job, ((score * 1e3).round() / 1e3) as f32));
        self.news += 1;
        self.unsettled += 1;
    }

    /// Works out the quantiles, once scores came.
    pub(super) fn settle(&mut self) {
        let enough = |jobs: &BTreeSet<u32>| jobs.len() >= JOBS_MIN;
        // Of thousands of scores a few new ones move it by nothing, and all must be put in order.
        let total: usize = self.families.values().map(VecDeque::len).sum();
        let over_all = total < PROMPT_MAX || self.unsettled * SETTLED_BY >= total;
        let mut all: Vec<f32> = Vec::new();
        let mut all_jobs: BTreeSet<u32> = BTreeSet::new();
        let mut groups: Vec<f64> = Vec::new();
        let mut tagged: Vec<(u32, f32)> = Vec::new();
        self.quantiles.own.clear();
        self.quantiles.own_jobs.clear();
        self.quantiles.worst = None;
        for (name, ring) in &self.families {
            let mut scores: Vec<f32> = ring.iter().map(|(_, score)| *score).collect();
            let jobs: BTreeSet<u32> = ring.iter().map(|(job, _)| *job).collect();
            all.extend(&scores);
            let own_jobs: Vec<(u32, f32)> = ring.iter().copied().collect();
            if let Some(own) = quantile_of_jobs(&own_jobs) {
                self.quantiles.own_jobs.insert(name.clone(), own);
            }
            if over_all {
                tagged.extend(own_jobs);
            }
            let (Some(own), Some(group)) = (between(&mut scores), quantile(&mut scores)) else {
                continue;
            };
            let worst = self.quantiles.worst.get_or_insert(group);
            *worst = worst.max(group);
            if scores.len() >= OWN_MIN && enough(&jobs) {
                self.quantiles.own.insert(name.clone(), own);
            }
            if scores.len() >= GROUP_MIN {
                groups.push(group);
            }
            all_jobs.extend(jobs);
        }
        groups.sort_by(|a, b| b.total_cmp(a));
        self.quantiles.new = of_new_family(&groups);
        if over_all {
            self.quantiles.jobs = quantile_of_jobs(&tagged);
            self.unsettled = 0;
        }
        let enough = all.len() >= NINE && enough(&all_jobs);
        self.quantiles.pooled = quantile(&mut all).filter(|_| enough);
    }

    pub(super) fn stretch(&self, place: &Place) -> Option<f64> {
        let of = &self.quantiles;
        let new = matches!(place.horizon, Horizon::Fresh | Horizon::Unmet);
        if new && self.families.contains_key(&place.family) {
            let own = of.own_jobs.get(&place.family).copied();
            if let Some(found) = own.or(of.jobs) {
                return Some(found);
            }
        }
        if let Some(own) = of.own.get(&place.family) {
            return Some(*own);
        }
        let pooled = of.pooled?;
        let family = match (place.aspect, place.horizon) {
            (_, Horizon::Again) => None,
            (Aspect::Shape, _) => of.worst,
            _ => of.new.filter(|_| new),
        };
        Some(family.map_or(pooled, |family| family.max(pooled)))
    }

    pub(super) fn is_sane(&self) -> bool {
        self.families.len() <= FAMILIES_MAX
            && self.families.iter().all(|(name, ring)| {
                id::check(name).is_ok()
                    && ring.len() <= SCORES_MAX
                    && ring.iter().all(|(_, s)| (0.0..=SCORE_MAX as f32).contains(s))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quantile_is_corrected_for_few_scores() {
        let mut nine: Vec<f32> = (1..=9).map(|i| i as f32).collect();
        assert_eq!(quantile(&mut nine), Some(9.0));
        let mut many: Vec<f32> = (1..=99).rev().map(|i| i as f32).collect();
        assert_eq!(quantile(&mut many), Some(90.0));
        assert_eq!((quantile(&mut []), quantile(&mut [2.0])), (None, Some(2.0)));
        // Between the 22nd and the 23rd.
        let mut few: Vec<f32> = (1..=24).map(|i| i as f32).collect();
        assert!((between(&mut few).unwrap() - 22.5).abs() < 1e-9);
        assert_eq!((between(&mut nine), between(&mut [])), (Some(9.0), None));
    }

    #[test]
    fn a_job_counts_once_however_many_its_scores() {
        // Nine calm jobs of a hundred scores each, and one wild one of a single score.
        let mut scores: Vec<(u32, f32)> =
            (0..9).flat_map(|job| (0..100).map(move |i| (job, i as f32 / 100.0))).collect();
        assert!((quantile_of_jobs(&scores).unwrap() - 0.99).abs() < 1e-6);
        scores.push((9, 5.0));
        assert!((quantile_of_jobs(&scores).unwrap() - 5.0).abs() < 1e-6);
        assert_eq!(quantile_of_jobs(&scores[..800]), None, "eight jobs cannot tell");
    }

    #[test]
    fn few_families_cannot_say_that_the_next_needs_less() {
        assert_eq!(of_new_family(&[]), None);
        assert_eq!(of_new_family(&[0.5]), Some(1.0));
        assert_eq!(of_new_family(&[9.0, 3.0, 0.5, 0.2]), Some(3.0));
        assert_eq!(of_new_family(&[0.9, 0.8, 0.5, 0.2]), Some(1.0));
        assert_eq!(of_new_family(&[0.5; NINE]), Some(0.5));
        let many: Vec<f64> = (1..=64).rev().map(f64::from).collect();
        assert_eq!(of_new_family(&many), Some(59.0));
    }
}
