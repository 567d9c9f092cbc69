//! Calibration of intervals by conformal prediction.
//!
//! Each window is predicted before it is learned. The score of a prediction is its error in units of half
//! the interval that the models gave:
//!
//! ```text
//! s = ln(seen / mean) / ln(high / mean)   above the mean,   ln(mean / seen) / ln(mean / low)   below
//! ```
//!
//! Later intervals are multiplied by the 90 % quantile of the scores, the `ceil((n + 1) 0.9)`-th smallest
//! of n: split conformal prediction, corrected for small samples (Vovk, Gammerman, Shafer, "Algorithmic
//! Learning in a Random World", 2005). Scores are kept by stratum: what is new in the configuration
//! ([`Aspect`]), the evidence on the job ([`Horizon`]), and the family of its class, because families
//! differ in noise. A family with enough scores uses its own quantile, interpolated so that it covers
//! 90 % and not more. A family with fewer scores uses those of all families where the job itself is known.
//! Where it is not, for a family without scores, and for a new shape, where the form of the model errs,
//! the quantile is that of an unseen family ([`new_family`]).
//!
//! Scores of one job are dependent, so for a new job the number of jobs counts. A new job of a known
//! family uses the family's quantile over jobs or, if these are too few, that over all jobs: each of J
//! jobs has weight 1/(J + 1), whatever its number of scores, and the new job has the same weight at
//! infinity (Lee, Barber and Willett, "Distribution-free inference with hierarchical data", 2023; Dunn,
//! Wasserman and Ramdas, JASA 2022). Such a quantile exists from nine jobs on.
//!
//! Models differ in communication far more than in computation. A prediction between GPUs of a job that was
//! seen on one GPU, or between nodes of a job that was seen on one node, has at least the models' own
//! interval, with Student's t over the number of families instead of a normal distribution.
//!
//! Errors of speed and power are correlated, so energy is scored itself: the interval of their product
//! under independence is multiplied by its own quantile.
//!
//! Bounded in families and in scores of each. Independent of the models.

mod new_family;
mod scores;
mod stratum;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use wattle_common::hash::fnv1a;
use wattle_common::id::{self, JobId};
use wattle_common::messages::Estimate;

use new_family::Claim;
pub use scores::{FAMILIES_MAX, SCORES_MAX, Scores};
pub use stratum::{Aspect, Horizon, SeenConfigurations, Stratum};

/// GPU types kept.
const GPU_TYPES_MAX: usize = crate::gpu_types::GPU_TYPES_MAX;
/// Bounds of the factor: scores are rounded to the lower one, and beyond the upper one an interval is
/// useless.
const STRETCH: std::ops::RangeInclusive<f64> = 1e-3..=20.0;
/// Larger scores are errors of the window.
const SCORE_MAX: f64 = 1e3;
/// Smallest half-width in a score: an interval at its bound may have none.
const HALF_MIN: f64 = 1e-3;

/// Scored quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quantity {
    /// Steps a second.
    Speed,
    /// Speed of a co-located job relative to exclusive GPUs.
    RelativeSpeed,
    /// Power of a GPU.
    Power,
    /// Energy of a step on one GPU.
    Energy,
}

/// Error of a prediction in units of half its interval.
#[must_use]
pub fn score(seen: f64, expected: &Estimate) -> Option<f64> {
    let off = (seen / expected.mean).ln();
    let half =
        if off >= 0.0 { expected.high / expected.mean } else { expected.mean / expected.low };
    let score = off.abs() / half.ln().max(HALF_MIN);
    score.is_finite().then_some(score.min(SCORE_MAX))
}

/// Hash that distinguishes jobs (FNV-1a, folded).
fn tag(job: &str) -> u32 {
    let hash = fnv1a(job.as_bytes());
    (hash ^ (hash >> 32)) as u32
}

type Key = (Quantity, Aspect, Horizon);

const QUANTITIES: [(&str, Quantity); 4] = [
    ("speed", Quantity::Speed),
    ("relative", Quantity::RelativeSpeed),
    ("power", Quantity::Power),
    ("energy", Quantity::Energy),
];
const ASPECTS: [(&str, Aspect); 3] =
    [("setting", Aspect::Setting), ("shape", Aspect::Shape), ("colocation", Aspect::Colocation)];
const HORIZONS: [(&str, Horizon); 4] = [
    ("same_config", Horizon::SameConfig),
    ("similar_config", Horizon::SimilarConfig),
    ("new_aspect", Horizon::NewAspect),
    ("new_job", Horizon::NewJob),
];

/// Whether the models' own intervals count for an unseen family: not where a job is known under several
/// settings, since its own readings tie the curve and the families differ by noise.
fn claim((_, aspect, horizon): Key) -> Claim {
    if aspect == Aspect::Setting && horizon == Horizon::SimilarConfig {
        Claim::Ignored
    } else {
        Claim::Counted
    }
}

fn word<T: PartialEq>(names: &[(&'static str, T)], value: &T) -> &'static str {
    names.iter().find(|(_, v)| v == value).map_or("", |(name, _)| name)
}

fn value<T: Copy>(names: &[(&str, T)], word: Option<&str>) -> Option<T> {
    names.iter().find(|(name, _)| Some(*name) == word).map(|(_, value)| *value)
}

/// All scores, by GPU type.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calibration {
    gpu_types: BTreeMap<String, BTreeMap<Key, Scores>>,
    /// Scores that arrived since their quantiles were computed.
    changed: BTreeSet<(String, Key)>,
}

impl Calibration {
    /// Adds a score of a prediction of `job`; [`Calibration::update_quantiles`] makes it effective.
    pub fn push(
        &mut self,
        gpu_type: &str,
        quantity: Quantity,
        place: &Stratum,
        job: &JobId,
        score: f64,
    ) {
        let job = place.newcomer.as_ref().map_or(job.as_str(), |class| class.as_str());
        self.put(gpu_type, quantity, place, tag(job), score);
    }

    fn put(&mut self, gpu_type: &str, quantity: Quantity, place: &Stratum, job: u32, score: f64) {
        if !self.gpu_types.contains_key(gpu_type) && self.gpu_types.len() >= GPU_TYPES_MAX {
            return;
        }
        let key = (quantity, place.aspect, place.horizon);
        let scores = self.gpu_types.entry(gpu_type.to_owned()).or_default().entry(key).or_default();
        scores.push(&place.family, job, score);
        self.changed.insert((gpu_type.to_owned(), key));
    }

    /// Adds all scores of `other`.
    pub fn absorb(&mut self, other: &Self) {
        for (gpu_type, rings) in &other.gpu_types {
            for (key, scores) in rings {
                for (family, ring) in &scores.families {
                    let place = Stratum {
                        aspect: key.1,
                        horizon: key.2,
                        family: family.clone(),
                        unobserved: false,
                        newcomer: None,
                    };
                    for (job, score) in ring {
                        self.put(gpu_type, key.0, &place, *job, f64::from(*score));
                    }
                }
            }
        }
    }

    /// Computes the quantiles of changed scores again.
    pub fn update_quantiles(&mut self) {
        for (gpu_type, key) in std::mem::take(&mut self.changed) {
            if let Some(scores) = self.gpu_types.get_mut(&gpu_type).and_then(|k| k.get_mut(&key)) {
                scores.update_quantiles(claim(key));
            }
        }
    }

    /// Factor for both halves of an interval; 1 without scores.
    #[must_use]
    pub fn stretch(&self, gpu_type: &str, quantity: Quantity, place: &Stratum) -> f64 {
        let key = (quantity, place.aspect, place.horizon);
        let found =
            self.gpu_types.get(gpu_type).and_then(|k| k.get(&key)).and_then(|s| s.stretch(place));
        found.map_or(1.0, |q| q.clamp(*STRETCH.start(), *STRETCH.end()))
    }

    /// Records to be stored: those of which more than a sixteenth changed.
    pub fn take_changed(&mut self) -> Vec<(String, String, Scores)> {
        let mut out = Vec::new();
        for (gpu_type, rings) in &mut self.gpu_types {
            for (key, scores) in rings {
                let all: usize = scores.families.values().map(VecDeque::len).sum();
                if scores.news > all / 16 {
                    scores.news = 0;
                    let (q, a, h) = (
                        word(&QUANTITIES, &key.0),
                        word(&ASPECTS, &key.1),
                        word(&HORIZONS, &key.2),
                    );
                    out.push((gpu_type.clone(), format!("{q}-{a}-{h}"), scores.clone()));
                }
            }
        }
        out
    }

    /// Restores a stored record; false where it is invalid.
    pub fn restore(&mut self, gpu_type: &str, name: &str, mut stored: Scores) -> bool {
        let mut words = name.split('-');
        let key = value(&QUANTITIES, words.next())
            .zip(value(&ASPECTS, words.next()))
            .zip(value(&HORIZONS, words.next()))
            .map(|((q, a), h)| (q, a, h));
        let room = self.gpu_types.contains_key(gpu_type) || self.gpu_types.len() < GPU_TYPES_MAX;
        let Some(key) = key.filter(|_| room && words.next().is_none()) else { return false };
        if id::check(gpu_type).is_err() || !stored.is_sane() {
            return false;
        }
        stored.update_quantiles(claim(key));
        self.gpu_types.entry(gpu_type.to_owned()).or_default().insert(key, stored);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattle_common::rng::Stream;

    fn place(family: &str, horizon: Horizon) -> Stratum {
        let (aspect, family) = (Aspect::Setting, family.to_owned());
        Stratum { aspect, horizon, family, unobserved: false, newcomer: None }
    }

    fn job(i: usize) -> JobId {
        JobId::new(&format!("j{i}")).unwrap()
    }

    #[test]
    fn three_jobs_are_needed_to_stretch_an_interval() {
        let mut calibration = Calibration::default();
        let known = place("a", Horizon::SimilarConfig);
        for (i, expected) in [(0, 1.0), (1, 1.0), (2, 3.0)] {
            for _ in 0..30 {
                calibration.push("v100", Quantity::Speed, &known, &job(i), 3.0);
            }
            calibration.update_quantiles();
            let found = calibration.stretch("v100", Quantity::Speed, &known);
            assert!((found - expected).abs() < 1e-9, "{i} {found}");
        }
    }

    fn filled(groups: &[(&str, f64, usize)], horizon: Horizon) -> Calibration {
        let mut calibration = Calibration::default();
        let mut rng = Stream::new(1, "scores");
        for (family, scale, n) in groups {
            for i in 0..*n {
                let score = scale * rng.normal().abs() / 1.645;
                let place = place(family, horizon);
                calibration.push("v100", Quantity::Speed, &place, &job(i % 5), score);
            }
        }
        calibration.update_quantiles();
        calibration
    }

    fn stretch(calibration: &Calibration, family: &str, horizon: Horizon) -> f64 {
        calibration.stretch("v100", Quantity::Speed, &place(family, horizon))
    }

    #[test]
    fn score_is_in_units_of_half_the_interval() {
        let expected = Estimate { mean: 10.0, low: 5.0, high: 12.5 };
        assert!((score(12.5, &expected).unwrap() - 1.0).abs() < 1e-12);
        assert!((score(2.5, &expected).unwrap() - 2.0).abs() < 1e-12);
        let bound = Estimate { mean: 1.0, low: 1.0, high: 1.0 };
        assert!(score(1.1, &bound).unwrap() > 50.0);
        assert_eq!(score(0.0, &expected), None);
    }

    /// A calibrated interval covers 90 % of values of the same distribution.
    #[test]
    fn a_familys_own_scores_make_its_intervals_true() {
        let calibration =
            filled(&[("noisy", 4.0, 200), ("calm", 0.5, 200)], Horizon::SimilarConfig);
        let mut rng = Stream::new(2, "new");
        for (family, scale) in [("noisy", 4.0), ("calm", 0.5)] {
            let q = stretch(&calibration, family, Horizon::SimilarConfig);
            let inside = (0..2_000).filter(|_| scale * rng.normal().abs() / 1.645 <= q).count();
            assert!((1_700..=1_920).contains(&inside), "{family}: {inside} of 2000");
        }
    }

    #[test]
    fn an_unseen_family_is_treated_as_one_more_family() {
        let like = [("a", 1.0, 60), ("b", 1.1, 60), ("c", 0.9, 60), ("d", 1.0, 60)];
        let unlike = [("a", 1.0, 60), ("b", 3.0, 60), ("c", 6.0, 60), ("d", 1.0, 60)];
        let new = |groups| stretch(&filled(groups, Horizon::NewAspect), "new", Horizon::NewAspect);
        let (like, far) = (new(&like), new(&unlike));
        assert!((0.8..1.3).contains(&like), "{like}");
        let fresh = filled(&unlike, Horizon::NewAspect);
        assert!(far > stretch(&fresh, "b", Horizon::NewAspect), "{far}");
        let known = filled(&unlike, Horizon::SimilarConfig);
        // A known job of an unseen family: as wide as for the noisier ones.
        let similar = |family| stretch(&known, family, Horizon::SimilarConfig);
        assert!(similar("new") > similar("a") && similar("new") > 2.0, "{}", similar("new"));
        assert!((stretch(&known, "new", Horizon::NewAspect) - 1.0).abs() < 1e-12);
    }

    /// Scores of four families whose intervals were twice too wide.
    #[test]
    fn unobserved_communication_keeps_a_wide_interval() {
        let mut calibration = Calibration::default();
        let mut rng = Stream::new(3, "links");
        let shape = |family: &str, unobserved| Stratum {
            aspect: Aspect::Shape,
            unobserved,
            ..place(family, Horizon::NewAspect)
        };
        for i in 0..200 {
            let score = 0.5 * rng.normal().abs() / 1.645;
            let family = format!("f{}", i % 4);
            calibration.push("v100", Quantity::Speed, &shape(&family, true), &job(i % 12), score);
        }
        calibration.update_quantiles();
        let of =
            |unobserved| calibration.stretch("v100", Quantity::Speed, &shape("new", unobserved));
        // Student's t with four degrees of freedom: about 2.13 / 1.645.
        assert!(of(false) < 0.9 && (of(true) - 1.296).abs() < 0.02, "{} {}", of(false), of(true));
    }

    #[test]
    fn scores_are_bounded_and_restored_from_storage() {
        let mut calibration = Calibration::default();
        for i in 0..FAMILIES_MAX + 5 {
            for k in 0..=i.min(SCORES_MAX + 5) {
                let place = place(&format!("f{i}"), Horizon::NewAspect);
                calibration.push("v100", Quantity::Power, &place, &job(k % 5), 1.5);
            }
        }
        calibration.update_quantiles();
        let changed = calibration.take_changed();
        assert!(changed.len() == 1 && calibration.take_changed().is_empty());
        let (gpu_type, name, scores) = changed[0].clone();
        assert_eq!((gpu_type.as_str(), name.as_str()), ("v100", "power-setting-new_aspect"));
        assert_eq!(scores.families.len(), FAMILIES_MAX);
        let text = serde_json::to_string(&scores).unwrap();
        let back: Scores = serde_json::from_str(&text).unwrap();
        let mut other = Calibration::default();
        assert!(other.restore(&gpu_type, &name, back.clone()));
        let unseen = place("f60", Horizon::NewAspect);
        assert!((other.stretch("v100", Quantity::Power, &unseen) - 1.5).abs() < 1e-6);
        assert!(!other.restore(&gpu_type, "power-setting", back.clone()));
        let mut bad = back;
        bad.families.entry("f60".into()).or_default().push_back((1, f32::NAN));
        assert!(!other.restore(&gpu_type, &name, bad));
    }
}
