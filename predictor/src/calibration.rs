//! Intervals that mean what they say, by how far earlier ones were off.
//!
//! Each window is predicted before it is learned. Its score is how far what was seen lies from what
//! was expected, in halves of the 90 % interval that the models gave:
//!
//! ```text
//! s = ln(seen / mean) / ln(high / mean)   above the mean,   ln(mean / seen) / ln(mean / low)   below
//! ```
//!
//! The interval to come is stretched by the 90 % quantile of the scores, the
//! `ceil((n + 1) 0.9)`-th smallest of n: split conformal prediction with its correction for few
//! scores (Vovk, Gammerman, Shafer, "Algorithmic Learning in a Random World", 2005). Scores are kept
//! apart by what the configuration asks beyond what was seen of the job ([`Aspect`]), by how well
//! the job is known there ([`Horizon`]), and by the family of its class: one family may be noisier
//! than all others. A family with scores enough is stretched by its own, whose quantile is taken between
//! two of them so that it holds nine in ten and no more. One without takes all
//! families' scores together where the job itself is known there. Where it is not, and in a new
//! shape, where the form errs and not a reading, families differ by more than their scores show:
//! there it takes what nine in ten scores of one more family stay below ([`family`]).
//!
//! Scores of one job go together, so where a job is new what counts is how many jobs gave scores. A
//! new job of a known family takes its family's quantile over jobs, or where these are too few all
//! jobs': each of J jobs has the weight 1/(J + 1) in it, whatever the number of its scores, and the
//! new one as much, beyond all of them (Lee, Barber and Willett, "Distribution-free inference with
//! hierarchical data", 2023; Dunn, Wasserman and Ramdas, JASA 2022). Nine jobs are the fewest of
//! which there is such a quantile.
//!
//! Speed and power have errors in common, so energy is scored itself: the interval of a product of
//! two that err apart is stretched by how far products were off.
//!
//! Nothing here knows what the models are. Bounded in families and in scores for each.

mod family;
mod place;
mod scores;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use wattle_common::hash::fnv1a;
use wattle_common::id::{self, JobId};
use wattle_common::messages::Estimate;

pub use place::{Aspect, Experience, Horizon, Place};
pub use scores::{FAMILIES_MAX, SCORES_MAX, Scores};

/// Kinds of card kept.
const GPU_TYPES_MAX: usize = crate::cards::GPU_TYPES_MAX;
/// No interval is drawn together further than a score is sure to, nor stretched to more than any
/// use: beyond, no score is believed.
const STRETCH: std::ops::RangeInclusive<f64> = 1e-3..=20.0;
/// A score beyond is a mistake in the window, not in the interval.
const SCORE_MAX: f64 = 1e3;
/// The least half-width a score is measured in: an interval at its bound may have none.
const HALF_MIN: f64 = 1e-3;

/// What is scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quantity {
    /// Steps a second.
    Speed,
    /// Speed beside others, relative to the job alone.
    Relative,
    /// Power of a card.
    Power,
    /// Energy of a step on one card.
    Energy,
}

/// How far `seen` lies from what was expected, in halves of the interval.
#[must_use]
pub fn score(seen: f64, expected: &Estimate) -> Option<f64> {
    let off = (seen / expected.mean).ln();
    let half =
        if off >= 0.0 { expected.high / expected.mean } else { expected.mean / expected.low };
    let score = off.abs() / half.ln().max(HALF_MIN);
    score.is_finite().then_some(score.min(SCORE_MAX))
}

/// Enough of a job's name to tell it from others (FNV-1a, folded).
fn tag(job: &str) -> u32 {
    let hash = fnv1a(job.as_bytes());
    (hash ^ (hash >> 32)) as u32
}

type Key = (Quantity, Aspect, Horizon);

const QUANTITIES: [(&str, Quantity); 4] = [
    ("speed", Quantity::Speed),
    ("relative", Quantity::Relative),
    ("power", Quantity::Power),
    ("energy", Quantity::Energy),
];
const ASPECTS: [(&str, Aspect); 3] =
    [("setting", Aspect::Setting), ("shape", Aspect::Shape), ("beside", Aspect::Beside)];
const HORIZONS: [(&str, Horizon); 4] = [
    ("again", Horizon::Again),
    ("known", Horizon::Known),
    ("fresh", Horizon::Fresh),
    ("unmet", Horizon::Unmet),
];

fn word<T: PartialEq>(names: &[(&'static str, T)], value: &T) -> &'static str {
    names.iter().find(|(_, v)| v == value).map_or("", |(name, _)| name)
}

fn value<T: Copy>(names: &[(&str, T)], word: Option<&str>) -> Option<T> {
    names.iter().find(|(name, _)| Some(*name) == word).map(|(_, value)| *value)
}

/// All scores, by kind of card.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calibration {
    kinds: BTreeMap<String, BTreeMap<Key, Scores>>,
    /// Where scores came since the quantiles were worked out.
    unsettled: BTreeSet<(String, Key)>,
}

impl Calibration {
    /// Takes down a score of a prediction of `job`; [`Calibration::settle`] makes it count.
    pub fn push(&mut self, kind: &str, quantity: Quantity, place: &Place, job: &JobId, score: f64) {
        let job = place.newcomer.as_ref().map_or(job.as_str(), |class| class.as_str());
        self.put(kind, quantity, place, tag(job), score);
    }

    fn put(&mut self, kind: &str, quantity: Quantity, place: &Place, job: u32, score: f64) {
        if !self.kinds.contains_key(kind) && self.kinds.len() >= GPU_TYPES_MAX {
            return;
        }
        let key = (quantity, place.aspect, place.horizon);
        let scores = self.kinds.entry(kind.to_owned()).or_default().entry(key).or_default();
        scores.push(&place.family, job, score);
        self.unsettled.insert((kind.to_owned(), key));
    }

    /// Takes in all scores of `other`.
    pub fn absorb(&mut self, other: &Self) {
        for (kind, rings) in &other.kinds {
            for (key, scores) in rings {
                for (family, ring) in &scores.families {
                    let place = Place {
                        aspect: key.1,
                        horizon: key.2,
                        family: family.clone(),
                        newcomer: None,
                    };
                    for (job, score) in ring {
                        self.put(kind, key.0, &place, *job, f64::from(*score));
                    }
                }
            }
        }
    }

    /// Works the quantiles out anew where scores came.
    pub fn settle(&mut self) {
        for (kind, key) in std::mem::take(&mut self.unsettled) {
            if let Some(scores) = self.kinds.get_mut(&kind).and_then(|k| k.get_mut(&key)) {
                scores.settle();
            }
        }
    }

    /// What to stretch an interval's halves by; 1 where nothing is known.
    #[must_use]
    pub fn stretch(&self, kind: &str, quantity: Quantity, place: &Place) -> f64 {
        let key = (quantity, place.aspect, place.horizon);
        let found = self.kinds.get(kind).and_then(|k| k.get(&key)).and_then(|s| s.stretch(place));
        found.map_or(1.0, |q| q.clamp(*STRETCH.start(), *STRETCH.end()))
    }

    /// Records that changed enough to be stored: all while they are few, then every sixteenth part.
    pub fn take_changed(&mut self) -> Vec<(String, String, Scores)> {
        let mut out = Vec::new();
        for (kind, rings) in &mut self.kinds {
            for (key, scores) in rings {
                let all: usize = scores.families.values().map(VecDeque::len).sum();
                if scores.news > all / 16 {
                    scores.news = 0;
                    let (q, a, h) = (
                        word(&QUANTITIES, &key.0),
                        word(&ASPECTS, &key.1),
                        word(&HORIZONS, &key.2),
                    );
                    out.push((kind.clone(), format!("{q}-{a}-{h}"), scores.clone()));
                }
            }
        }
        out
    }

    /// Takes in a record as it was stored; false where it is not such as this version stores.
    pub fn restore(&mut self, kind: &str, name: &str, mut stored: Scores) -> bool {
        let mut words = name.split('-');
        let key = value(&QUANTITIES, words.next())
            .zip(value(&ASPECTS, words.next()))
            .zip(value(&HORIZONS, words.next()))
            .map(|((q, a), h)| (q, a, h));
        let room = self.kinds.contains_key(kind) || self.kinds.len() < GPU_TYPES_MAX;
        let Some(key) = key.filter(|_| room && words.next().is_none()) else { return false };
        if id::check(kind).is_err() || !stored.is_sane() {
            return false;
        }
        stored.settle();
        self.kinds.entry(kind.to_owned()).or_default().insert(key, stored);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattle_common::rng::Stream;

    fn place(family: &str, horizon: Horizon) -> Place {
        Place { aspect: Aspect::Setting, horizon, family: family.to_owned(), newcomer: None }
    }

    fn job(i: usize) -> JobId {
        JobId::new(&format!("j{i}")).unwrap()
    }

    #[test]
    fn scores_of_one_job_stretch_nothing() {
        let mut calibration = Calibration::default();
        let known = place("a", Horizon::Known);
        for (i, expected) in [(0, 1.0), (1, 1.0), (2, 3.0)] {
            for _ in 0..30 {
                calibration.push("v100", Quantity::Speed, &known, &job(i), 3.0);
            }
            calibration.settle();
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
        calibration.settle();
        calibration
    }

    fn stretch(calibration: &Calibration, family: &str, horizon: Horizon) -> f64 {
        calibration.stretch("v100", Quantity::Speed, &place(family, horizon))
    }

    #[test]
    fn a_score_counts_halves_of_the_interval() {
        let expected = Estimate { mean: 10.0, low: 5.0, high: 12.5 };
        assert!((score(12.5, &expected).unwrap() - 1.0).abs() < 1e-12);
        assert!((score(2.5, &expected).unwrap() - 2.0).abs() < 1e-12);
        let bound = Estimate { mean: 1.0, low: 1.0, high: 1.0 };
        assert!(score(1.1, &bound).unwrap() > 50.0);
        assert_eq!(score(0.0, &expected), None);
    }

    /// Of what comes from the same law, a stretched interval holds 90 %.
    #[test]
    fn a_familys_own_scores_make_its_intervals_true() {
        let calibration = filled(&[("noisy", 4.0, 200), ("calm", 0.5, 200)], Horizon::Known);
        let mut rng = Stream::new(2, "new");
        for (family, scale) in [("noisy", 4.0), ("calm", 0.5)] {
            let q = stretch(&calibration, family, Horizon::Known);
            let inside = (0..2_000).filter(|_| scale * rng.normal().abs() / 1.645 <= q).count();
            assert!((1_700..=1_920).contains(&inside), "{family}: {inside} of 2000");
        }
    }

    #[test]
    fn a_family_never_seen_is_one_of_the_families() {
        let like = [("a", 1.0, 60), ("b", 1.1, 60), ("c", 0.9, 60), ("d", 1.0, 60)];
        let unlike = [("a", 1.0, 60), ("b", 3.0, 60), ("c", 6.0, 60), ("d", 1.0, 60)];
        let new = |groups| stretch(&filled(groups, Horizon::Fresh), "new", Horizon::Fresh);
        let (like, far) = (new(&like), new(&unlike));
        assert!((0.8..1.3).contains(&like), "{like}");
        let fresh = filled(&unlike, Horizon::Fresh);
        assert!(far > stretch(&fresh, "b", Horizon::Fresh), "{far}");
        let known = filled(&unlike, Horizon::Known);
        assert!(stretch(&known, "new", Horizon::Known) <= far);
        assert!((stretch(&known, "new", Horizon::Fresh) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn scores_are_bounded_and_come_back_from_storage() {
        let mut calibration = Calibration::default();
        for i in 0..FAMILIES_MAX + 5 {
            for k in 0..=i.min(SCORES_MAX + 5) {
                let place = place(&format!("f{i}"), Horizon::Fresh);
                calibration.push("v100", Quantity::Power, &place, &job(k % 5), 1.5);
            }
        }
        calibration.settle();
        let changed = calibration.take_changed();
        assert!(changed.len() == 1 && calibration.take_changed().is_empty());
        let (kind, name, scores) = changed[0].clone();
        assert_eq!((kind.as_str(), name.as_str()), ("v100", "power-setting-fresh"));
        assert_eq!(scores.families.len(), FAMILIES_MAX);
        let text = serde_json::to_string(&scores).unwrap();
        let back: Scores = serde_json::from_str(&text).unwrap();
        let mut other = Calibration::default();
        assert!(other.restore(&kind, &name, back.clone()));
        let asked = place("f60", Horizon::Fresh);
        assert!((other.stretch("v100", Quantity::Power, &asked) - 1.5).abs() < 1e-6);
        assert!(!other.restore(&kind, "power-setting", back.clone()));
        let mut bad = back;
        bad.families.entry("f60".into()).or_default().push_back((1, f32::NAN));
        assert!(!other.restore(&kind, &name, bad));
    }
}
