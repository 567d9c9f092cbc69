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
//! than all others. A family with scores enough is stretched by its own. One without takes all
//! families' scores together; where the job itself is not known there either, it takes the larger
//! of that and of the second-worst family's, because a new family is more like one of the families
//! than like their mean.
//!
//! Nothing here knows what the models are. Bounded in families and in scores for each.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use wattle_common::id::{self, JobId, WorkloadId};
use wattle_common::messages::Estimate;

use crate::model::cap::Card;
use crate::observation::Observation;
use crate::surface::Configuration;
use crate::workload_name::WorkloadName;

/// The share of what will be seen that an interval is to hold.
const COVERED: f64 = 0.9;
/// Scores of one family kept, the newest.
pub const SCORES_MAX: usize = 256;
/// Families kept; beyond, the one with the fewest scores makes room.
pub const FAMILIES_MAX: usize = 64;
/// Kinds of card kept.
const KINDS_MAX: usize = crate::cards::KINDS_MAX;
/// Scores from which on a family speaks for itself: the quantile's place is the second largest
/// then, so one wild score does not make it.
const OWN_MIN: usize = 20;
/// Jobs that scores must come from before they count: those of one job, or of two, say nothing of
/// the next, and a job's surface does not depend then on the order its own windows came in.
const JOBS_MIN: usize = 3;
/// Scores from which on a family is one of those that a new one may be like.
const GROUP_MIN: usize = 5;
/// No interval is stretched or drawn together further than this: beyond, no score is believed.
const STRETCH: std::ops::RangeInclusive<f64> = 0.02..=20.0;
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
}

/// In what a configuration differs from those seen of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Aspect {
    /// In cap or clock only.
    Setting,
    /// In GPUs, nodes or batch.
    Shape,
    /// In its neighbours.
    Beside,
}

/// How well the job is known in that respect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Horizon {
    /// It was seen in this very configuration.
    Again,
    /// It was seen in others like it: two settings, shapes around this one, other neighbours.
    Known,
    /// It was seen, but never in this respect.
    Fresh,
    /// It was never seen.
    Unmet,
}

/// Where in the records a prediction belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    aspect: Aspect,
    horizon: Horizon,
    family: String,
}

impl Place {
    /// In what it is new.
    #[must_use]
    pub fn aspect(&self) -> Aspect {
        self.aspect
    }
}

/// GPUs, nodes, global batch.
type Shape = (u32, u32, Option<u32>);

/// What was seen of a job, as far as it tells how new a configuration is.
#[derive(Clone, Debug)]
pub struct Experience<'a> {
    card: &'a Card,
    windows: &'a [Observation],
    /// Those it had alone.
    shapes: BTreeSet<Shape>,
    /// More than one cap or clock was seen.
    settings: bool,
    /// Some neighbour was seen.
    company: bool,
    family: String,
}

fn family(class: Option<&WorkloadId>) -> String {
    let name = class.map_or(crate::observation::UNKNOWN, WorkloadId::as_str);
    WorkloadName::of(name).family.to_owned()
}

/// A cap in watts and a clock in MHz that mean the same whether they were named or not.
fn setting(card: &Card, cap_w: Option<f64>, clock_mhz: Option<f64>) -> (u64, u64) {
    let cap = cap_w.filter(|w| *w < 0.99 * card.cap_default_w);
    let clock = clock_mhz.filter(|f| card.clock_mhz_top.is_none_or(|top| *f < 0.99 * top));
    (cap.map_or(0, |w| w.round() as u64), clock.map_or(0, |f| f.round() as u64))
}

impl<'a> Experience<'a> {
    /// What `windows` show of a job of `class`.
    #[must_use]
    pub fn of(windows: &'a [Observation], card: &'a Card, class: Option<&WorkloadId>) -> Self {
        let settings: BTreeSet<_> =
            windows.iter().map(|w| setting(card, w.cap_w, w.clock_mhz_max)).collect();
        let alone = windows.iter().filter(|w| w.alone());
        Self {
            card,
            windows,
            shapes: alone.map(|w| (w.gpus, w.nodes, w.global_batch)).collect(),
            settings: settings.len() > 1,
            company: windows.iter().any(|w| !w.alone()),
            family: family(class),
        }
    }

    /// Where a prediction of `at` belongs; `met` says whether a class was ever seen beside others.
    #[must_use]
    pub fn place(&self, at: &Configuration, met: impl Fn(&WorkloadId) -> bool) -> Place {
        let place = |aspect, horizon| Place { aspect, horizon, family: self.family.clone() };
        let beside = !at.neighbours.is_empty();
        let same = |seen: Option<u32>| at.global_batch.is_none_or(|b| seen.is_none_or(|s| s == b));
        let here =
            |(gpus, nodes, batch): Shape| gpus == at.gpus && nodes == at.nodes && same(batch);
        let shape = self.shapes.iter().any(|s| here(*s));
        let aspect = match (beside, shape) {
            (true, _) => Aspect::Beside,
            (false, true) => Aspect::Setting,
            (false, false) => Aspect::Shape,
        };
        if self.windows.is_empty() {
            return place(aspect, Horizon::Unmet);
        }
        let cap_w = at.cap.map(wattle_common::Power::as_w);
        let clock = at.clock_max.map(|f| f64::from(f.as_mhz()));
        let asked = setting(self.card, cap_w, clock);
        let again = self.windows.iter().any(|w| {
            here((w.gpus, w.nodes, w.global_batch))
                && setting(self.card, w.cap_w, w.clock_mhz_max) == asked
                && w.neighbours == at.neighbours
        });
        if again {
            return place(aspect, Horizon::Again);
        }
        let known = match aspect {
            Aspect::Setting => self.settings,
            Aspect::Shape => self.around(at),
            Aspect::Beside => {
                if let Some(new) = at.neighbours.iter().find(|n| self.company && !met(n)) {
                    // What is new is the neighbour, so its family tells how far off it may be.
                    return Place { family: family(Some(new)), ..place(aspect, Horizon::Fresh) };
                }
                self.company
            }
        };
        place(aspect, if known { Horizon::Known } else { Horizon::Fresh })
    }

    /// Whether shapes seen lie on either side of `at`.
    fn around(&self, at: &Configuration) -> bool {
        let inside = |of: fn(&Shape) -> u32, value: u32| {
            let (min, max) = (self.shapes.iter().map(of).min(), self.shapes.iter().map(of).max());
            min.zip(max).is_some_and(|(min, max)| (min..=max).contains(&value))
        };
        let batch: fn(&Shape) -> u32 = |s| s.2.unwrap_or(0) / s.0.max(1);
        self.shapes.len() > 1
            && inside(|s| s.0, at.gpus)
            && inside(|s| s.1, at.nodes)
            && at.global_batch.is_none_or(|b| inside(batch, b / at.gpus.max(1)))
    }
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

/// The scores of one quantity, aspect and horizon, by family.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    families: BTreeMap<String, VecDeque<(u32, f32)>>,
    /// Follows from them.
    #[serde(skip)]
    quantiles: Quantiles,
    /// Since it was stored.
    #[serde(skip)]
    news: usize,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Quantiles {
    own: BTreeMap<String, f64>,
    pooled: Option<f64>,
    /// Of the second-worst family, or of the only one.
    second: Option<f64>,
}

/// The `ceil((n + 1) 0.9)`-th smallest; the largest where there are too few for it.
fn quantile(values: &mut [f32]) -> Option<f64> {
    let n = values.len();
    let rank = ((n as f64 + 1.0) * COVERED).ceil() as usize;
    let at = rank.min(n).checked_sub(1)?;
    let (_, value, _) = values.select_nth_unstable_by(at, f32::total_cmp);
    Some(f64::from(*value))
}

impl Scores {
    fn push(&mut self, family: &str, job: u32, score: f64) {
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
    }

    /// Works out the quantiles, once scores came.
    fn settle(&mut self) {
        let enough = |jobs: &BTreeSet<u32>| jobs.len() >= JOBS_MIN;
        let mut all: Vec<f32> = Vec::new();
        let mut all_jobs: BTreeSet<u32> = BTreeSet::new();
        let mut groups: Vec<f64> = Vec::new();
        self.quantiles.own.clear();
        for (name, ring) in &self.families {
            let mut scores: Vec<f32> = ring.iter().map(|(_, score)| *score).collect();
            let jobs: BTreeSet<u32> = ring.iter().map(|(job, _)| *job).collect();
            all.extend(&scores);
            let Some(own) = quantile(&mut scores) else { continue };
            if scores.len() >= OWN_MIN && enough(&jobs) {
                self.quantiles.own.insert(name.clone(), own);
            }
            if scores.len() >= GROUP_MIN {
                groups.push(own);
            }
            all_jobs.extend(jobs);
        }
        groups.sort_by(|a, b| b.total_cmp(a));
        self.quantiles.second = groups.get(1).or(groups.first()).copied();
        // Fewer than nine have no 90 % quantile.
        let enough = all.len() >= 9 && enough(&all_jobs);
        self.quantiles.pooled = quantile(&mut all).filter(|_| enough);
    }

    fn stretch(&self, place: &Place) -> Option<f64> {
        if let Some(own) = self.quantiles.own.get(&place.family) {
            return Some(*own);
        }
        let pooled = self.quantiles.pooled?;
        Some(match place.horizon {
            Horizon::Again | Horizon::Known => pooled,
            Horizon::Fresh | Horizon::Unmet => self.quantiles.second.unwrap_or(0.0).max(pooled),
        })
    }

    fn is_sane(&self) -> bool {
        self.families.len() <= FAMILIES_MAX
            && self.families.iter().all(|(name, ring)| {
                id::check(name).is_ok()
                    && ring.len() <= SCORES_MAX
                    && ring.iter().all(|(_, s)| (0.0..=SCORE_MAX as f32).contains(s))
            })
    }
}

/// Enough of a job's name to tell it from others (FNV-1a, folded).
fn tag(job: &JobId) -> u32 {
    let hash = job.as_str().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    (hash ^ (hash >> 32)) as u32
}

type Key = (Quantity, Aspect, Horizon);

const QUANTITIES: [(&str, Quantity); 3] =
    [("speed", Quantity::Speed), ("relative", Quantity::Relative), ("power", Quantity::Power)];
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
        self.put(kind, quantity, place, tag(job), score);
    }

    fn put(&mut self, kind: &str, quantity: Quantity, place: &Place, job: u32, score: f64) {
        if !self.kinds.contains_key(kind) && self.kinds.len() >= KINDS_MAX {
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
                    let place = Place { aspect: key.1, horizon: key.2, family: family.clone() };
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
        let room = self.kinds.contains_key(kind) || self.kinds.len() < KINDS_MAX;
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
        Place { aspect: Aspect::Setting, horizon, family: family.to_owned() }
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

    #[test]
    fn the_quantile_is_corrected_for_few_scores() {
        let mut nine: Vec<f32> = (1..=9).map(|i| i as f32).collect();
        assert_eq!(quantile(&mut nine), Some(9.0));
        let mut many: Vec<f32> = (1..=99).map(|i| i as f32).collect();
        assert_eq!(quantile(&mut many), Some(90.0));
        assert_eq!(quantile(&mut []), None);
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
    fn a_family_never_seen_takes_the_second_worst() {
        let groups = [("a", 1.0, 60), ("b", 3.0, 60), ("c", 6.0, 60), ("d", 1.0, 60)];
        let fresh = filled(&groups, Horizon::Fresh);
        let b = stretch(&fresh, "b", Horizon::Fresh);
        let new = stretch(&fresh, "new", Horizon::Fresh);
        assert!(new >= b && new < stretch(&fresh, "c", Horizon::Fresh), "{b} {new}");
        let known = filled(&groups, Horizon::Known);
        assert!(stretch(&known, "new", Horizon::Known) <= new);
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
