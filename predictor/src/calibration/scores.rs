//! Scores of one quantity, aspect and horizon by family, and their quantiles.
//!
//! Bounded in families and in scores of each.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use wattle_common::id;
use wattle_common::numerics::statistics::{conformal_index, quantile_weibull};
use wattle_common::numerics::student::{NORMAL_95, percentile_95};

use super::SCORE_MAX;
use super::new_family::{Claim, of_new_family};
use super::stratum::{Aspect, Horizon, Stratum};

/// Nominal coverage of an interval.
const COVERED: f64 = 0.9;
/// Scores kept of each family, the newest ones.
pub const SCORES_MAX: usize = 256;
/// Families kept; beyond, the one with the fewest scores is dropped.
pub const FAMILIES_MAX: usize = 64;
/// Scores from which on a family has its own quantile: its rank is the second largest then, so that one
/// outlier does not set it.
const OWN_MIN: usize = 20;
/// Smallest number of jobs among the scores: fewer say nothing of the next job, and would make a job's
/// surface depend on the order of its own windows.
const JOBS_MIN: usize = 3;
/// Scores from which on a family is used for the quantile of an unseen family: fewer do not determine
/// its scale.
const GROUP_MIN: usize = 3;
/// Up to this many scores the quantile over all jobs is computed with each one.
const PROMPT_MAX: usize = 512;
/// Beyond, once one in this many scores is new.
const NEW_SHARE_DIVISOR: usize = 64;
/// Fewer values have no 90 % quantile: rank `0.9 (n + 1)` is beyond them.
const NINE: usize = 9;

/// Scores of one quantity, aspect and horizon, by family.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    pub(super) families: BTreeMap<String, VecDeque<(u32, f32)>>,
    /// Computed from `families`.
    #[serde(skip)]
    quantiles: Quantiles,
    /// Scores since the last storing.
    #[serde(skip)]
    pub(super) news: usize,
    /// Scores since the quantile over all jobs was computed.
    #[serde(skip)]
    since_update: usize,
    #[serde(skip)]
    sorted: Sorted,
}

/// Sorted scores, kept between calls. Empty until the first [`Scores::update_quantiles`].
#[derive(Clone, Debug, Default, PartialEq)]
struct Sorted {
    /// Whether all scores are in `all`.
    is_complete: bool,
    /// All scores in ascending order.
    all: Vec<f32>,
    /// Families whose scores changed since the last update.
    changed: BTreeSet<String>,
}

impl Sorted {
    fn add(&mut self, score: f32) {
        let at = self.all.partition_point(|s| s.total_cmp(&score).is_le());
        self.all.insert(at, score);
    }

    fn remove(&mut self, score: f32) {
        if let Ok(at) = self.all.binary_search_by(|s| s.total_cmp(&score)) {
            self.all.remove(at);
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Quantiles {
    own: BTreeMap<String, f64>,
    pooled: Option<f64>,
    /// 90 % quantile of an unseen family.
    new: Option<f64>,
    /// Quantiles over jobs of equal weight: by family, and over all jobs.
    own_jobs: BTreeMap<String, f64>,
    jobs: Option<f64>,
}

/// 90 % quantile for a new job, given (job, score): each job has the same weight, and the new job has the
/// same weight at infinity. `None` for fewer than nine jobs.
fn quantile_of_jobs(scores: &[(u32, f32)]) -> Option<f64> {
    let mut jobs: Vec<u32> = scores.iter().map(|(job, _)| *job).collect();
    jobs.sort_unstable();
    let weights: Vec<(u32, f64)> =
        jobs.chunk_by(|a, b| a == b).map(|same| (same[0], 1.0 / same.len() as f64)).collect();
    let rank = COVERED * (weights.len() as f64 + 1.0);
    if rank > weights.len() as f64 {
        return None;
    }
    let weight = |job: u32| {
        let at = weights.binary_search_by_key(&job, |(known, _)| *known);
        at.map_or(0.0, |at| weights[at].1)
    };
    let mut sorted: Vec<(f32, f64)> = scores.iter().map(|(job, s)| (*s, weight(*job))).collect();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut below = 0.0;
    sorted.into_iter().find_map(|(score, weight)| {
        below += weight;
        // Tolerance for rounding of the sum.
        (below + 1e-9 >= rank).then_some(f64::from(score))
    })
}

/// Whether `jobs` contains at least [`JOBS_MIN`] different jobs.
fn enough(jobs: impl Iterator<Item = u32>) -> bool {
    let mut found = [0; JOBS_MIN];
    let mut count = 0;
    for job in jobs {
        if !found[..count].contains(&job) {
            found[count] = job;
            count += 1;
        }
        if count == JOBS_MIN {
            return true;
        }
    }
    false
}

impl Scores {
    pub(super) fn push(&mut self, family: &str, job: u32, score: f64) {
        if !self.families.contains_key(family) && self.families.len() >= FAMILIES_MAX {
            let fewest = self.families.iter().min_by_key(|(_, s)| s.len());
            if let Some(name) = fewest.map(|(name, _)| name.clone()) {
                let gone = self.families.remove(&name).unwrap_or_default();
                gone.iter().for_each(|(_, score)| self.sorted.remove(*score));
                self.sorted.changed.insert(name);
            }
        }
        let ring = self.families.entry(family.to_owned()).or_default();
        if ring.len() >= SCORES_MAX {
            let gone = ring.pop_front();
            gone.iter().for_each(|(_, score)| self.sorted.remove(*score));
        }
        // Finer than the quantile's own error.
        let score = ((score * 1e3).round() / 1e3) as f32;
        ring.push_back((job, score));
        if self.sorted.is_complete {
            self.sorted.add(score);
            if !self.sorted.changed.contains(family) {
                self.sorted.changed.insert(family.to_owned());
            }
        }
        self.news += 1;
        self.since_update += 1;
    }

    /// Computes the quantiles again after new scores; `claim`: whether the models' own intervals count in that
    /// of an unseen family.
    pub(super) fn update_quantiles(&mut self, claim: Claim) {
        if !self.sorted.is_complete {
            self.sorted.is_complete = true;
            self.sorted.all = self.families.values().flatten().map(|(_, score)| *score).collect();
            self.sorted.all.sort_unstable_by(f32::total_cmp);
            self.sorted.changed = self.families.keys().cloned().collect();
        }
        for name in std::mem::take(&mut self.sorted.changed) {
            self.settle_family(&name);
        }
        // Among thousands of scores a few new ones have no effect, and sorting costs.
        let total = self.sorted.all.len();
        if total < PROMPT_MAX || self.since_update * NEW_SHARE_DIVISOR >= total {
            let ring = |ring: &VecDeque<(u32, f32)>| ring.iter().map(|(_, score)| *score).collect();
            let groups: Vec<Vec<f32>> =
                self.families.values().filter(|r| r.len() >= GROUP_MIN).map(ring).collect();
            self.quantiles.new = of_new_family(&groups, COVERED, claim);
            let tagged: Vec<(u32, f32)> = self.families.values().flatten().copied().collect();
            self.quantiles.jobs = quantile_of_jobs(&tagged);
            self.since_update = 0;
        }
        let all_jobs = self.families.values().flatten().map(|(job, _)| *job);
        let counts = total >= NINE && enough(all_jobs);
        let pooled = conformal_index(total, COVERED).map(|at| f64::from(self.sorted.all[at]));
        self.quantiles.pooled = pooled.filter(|_| counts);
    }

    /// Computes one family's own quantiles.
    fn settle_family(&mut self, name: &str) {
        let of = &mut self.quantiles;
        of.own.remove(name);
        of.own_jobs.remove(name);
        let Some(ring) = self.families.get(name) else { return };
        let tagged: Vec<(u32, f32)> = ring.iter().copied().collect();
        if let Some(own) = quantile_of_jobs(&tagged) {
            of.own_jobs.insert(name.to_owned(), own);
        }
        let mut scores: Vec<f64> = tagged.iter().map(|(_, score)| f64::from(*score)).collect();
        let Some(own) = quantile_weibull(&mut scores, COVERED) else { return };
        if scores.len() >= OWN_MIN && enough(tagged.iter().map(|(job, _)| *job)) {
            of.own.insert(name.to_owned(), own);
        }
    }

    pub(super) fn stretch(&self, place: &Stratum) -> Option<f64> {
        let of = &self.quantiles;
        let new = matches!(place.horizon, Horizon::NewAspect | Horizon::NewJob);
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
        if new || place.aspect == Aspect::Shape && place.horizon != Horizon::SameConfig {
            // With one family only, its intervals are not narrowed for others.
            let found = of.new.unwrap_or(pooled.max(1.0));
            return Some(if place.unobserved { found.max(self.unlike_any()) } else { found });
        }
        // The noise of a family without scores is unknown.
        let unseen = place.aspect == Aspect::Setting
            && place.horizon == Horizon::SimilarConfig
            && !self.families.contains_key(&place.family);
        Some(of.new.filter(|_| unseen).map_or(pooled, |new| new.max(pooled)))
    }

    /// Least factor for a job whose communication was not observed: it may be unlike that of the K families
    /// seen, so the models' interval is that of Student's t with K degrees of freedom, at least 2.
    fn unlike_any(&self) -> f64 {
        let families = self.families.values().filter(|ring| ring.len() >= GROUP_MIN).count();
        percentile_95(families.max(2) as f64) / NORMAL_95
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
    use wattle_common::rng::Stream;

    #[test]
    fn family_quantile_is_interpolated() {
        let mut nine: Vec<f64> = (1..=9).map(f64::from).collect();
        // Between the 22nd and the 23rd.
        let mut few: Vec<f64> = (1..=24).map(f64::from).collect();
        assert!((quantile_weibull(&mut few, COVERED).unwrap() - 22.5).abs() < 1e-9);
        assert_eq!(quantile_weibull(&mut nine, COVERED), Some(9.0));
        assert_eq!(quantile_weibull(&mut [], COVERED), None);
    }

    /// With families that come and go and full rings.
    #[test]
    fn incremental_order_equals_computing_from_scratch() {
        let mut rng = Stream::new(3, "order");
        let mut scores = Scores::default();
        for i in 0..4_000 {
            let family = format!("f{}", rng.below(2) * rng.below(80));
            scores.push(&family, rng.below(9) as u32, rng.normal().abs());
            if rng.below(3) == 0 {
                scores.update_quantiles(Claim::Counted);
            }
            if i % 400 == 399 {
                scores.update_quantiles(Claim::Counted);
                let families = scores.families.clone();
                let mut computed = Scores { families, ..Scores::default() };
                computed.update_quantiles(Claim::Counted);
                // Computed less often.
                computed.quantiles.jobs = scores.quantiles.jobs;
                computed.quantiles.new = scores.quantiles.new;
                assert_eq!(
                    (&computed.quantiles, &computed.sorted),
                    (&scores.quantiles, &scores.sorted)
                );
            }
        }
        assert!(scores.families.len() == FAMILIES_MAX && scores.sorted.all.len() > PROMPT_MAX);
    }

    #[test]
    fn a_job_has_the_same_weight_whatever_its_number_of_scores() {
        // Nine jobs with a hundred small scores each, and one job with a single large score.
        let mut scores: Vec<(u32, f32)> =
            (0..9).flat_map(|job| (0..100).map(move |i| (job, i as f32 / 100.0))).collect();
        assert!((quantile_of_jobs(&scores).unwrap() - 0.99).abs() < 1e-6);
        scores.push((9, 5.0));
        assert!((quantile_of_jobs(&scores).unwrap() - 5.0).abs() < 1e-6);
        assert_eq!(quantile_of_jobs(&scores[..800]), None, "eight jobs are too few");
    }
}
