//! From memory: the most like readings of any job, relative to that job's own level.
//!
//! A reading's *deviation* is what it shows beyond the crude formula and its job's level. At a
//! place, the [`NEAREST`] readings of least distance are weighted by its inverse square; distance is
//! a variance: how far the crude formula's difference between the two places may be wrong
//! ([`Place::reach`]), and how far two such jobs differ. The formula itself stands among the
//! neighbours, as one at the distance from the job's own reference, so that where nothing is near,
//! the answer is the formula and its doubt. The spread of the neighbours about their mean is the
//! rest of the interval.
//!
//! Nothing is fitted. Other jobs' readings considered are at most [`OTHERS_MAX`] for each job asked
//! about, those of its own class first, then of the jobs most like it.

use wattle_common::id::JobId;

use crate::method::crude::{Place, Quantity, REPEAT_SD};
use crate::method::reading::{Reading, Readings, SeenJob};
use crate::method::{Answer, log_normal};

/// Readings that make an answer.
pub const NEAREST: usize = 8;
/// Other jobs' readings considered.
pub const OTHERS_MAX: usize = 96;

/// How far two jobs of one class differ at equal places, as a deviation of the logarithm: single
/// runs repeat within 1-3 %.
const CLASS_SD: f64 = 0.03;
/// The same of jobs of different classes that look alike.
const OTHER_SD: f64 = 0.08;
/// How it grows with each unit of unlikeness: networks of the Zeus traces differ by about a tenth
/// at the middle caps.
const UNLIKE_SD: f64 = 0.06;

/// One reading of one job, as a neighbour.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    place: Place,
    /// Deviation of the rate from its own job's level.
    relative: Option<f64>,
    /// Deviation of the rate from the level of the job asked about.
    rate: Option<f64>,
    /// Deviation of the power from its own job's level.
    power: Option<f64>,
    /// How far its job differs from the one asked about, as a variance.
    apart: f64,
}

/// The nearest candidates, nearest first: variance and index.
type Nearest = [(f64, usize); NEAREST];

/// Answers about one job.
#[derive(Debug)]
pub struct Neighbours {
    candidates: Vec<Candidate>,
    /// Where the job's own level is known from; none for a job that was not seen.
    home: Option<Place>,
    rate_level: Option<(f64, f64)>,
    power_level: (f64, f64),
    /// Whether the rate's level is its class's.
    borrowed: bool,
    inferred: bool,
}

/// How unlike two jobs are: differences of busy share, memory traffic and power, in units that
/// each matter about as much.
fn unlike(a: &SeenJob, b: &SeenJob) -> f64 {
    let busy = (a.traits.busy - b.traits.busy) / 0.2;
    let memory = (a.traits.memory_busy - b.traits.memory_busy) / 0.2;
    let power = (a.traits.power_w.max(1.0) / b.traits.power_w.max(1.0)).ln() / 0.3;
    (busy * busy + memory * memory + power * power).sqrt()
}

/// Other jobs, most like first, and how far each differs, as a variance.
fn by_likeness<'a>(
    readings: &'a Readings,
    kind: &str,
    id: &JobId,
    seen: &SeenJob,
) -> Vec<(f64, bool, &'a SeenJob)> {
    let mut others: Vec<(f64, bool, &SeenJob)> = readings
        .jobs(kind)
        .filter(|(other, _)| *other != id)
        .map(|(_, other)| {
            let same = seen.class.is_some() && seen.class == other.class;
            let by_likeness = UNLIKE_SD * unlike(seen, other);
            let sd = if same { CLASS_SD } else { OTHER_SD.hypot(by_likeness) };
            (sd * sd, same, other)
        })
        .collect();
    others.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.2.updated_at_us.cmp(&a.2.updated_at_us)));
    others
}

impl Neighbours {
    /// Questions about the job `id` seen as `seen`.
    #[must_use]
    pub fn new(readings: &Readings, kind: &str, id: &JobId, seen: &SeenJob) -> Self {
        let unseen = |what| {
            let level = |of: &SeenJob| of.level(what).map(|(mean, _)| mean);
            readings.unseen(kind, seen.class.as_ref(), what, level)
        };
        let own = seen.level(Quantity::Rate);
        let rate_level = own.or_else(|| unseen(Quantity::Rate));
        let power_level = seen.level(Quantity::Power).or_else(|| unseen(Quantity::Power));
        let mut candidates = Vec::new();
        let mut push = |of: &SeenJob, apart: f64, same: bool, most: usize| {
            let (rate, power) = (of.level(Quantity::Rate), of.level(Quantity::Power));
            let beyond =
                |r: &Reading, what, level: Option<(f64, f64)>| Some(r.left(what)? - level?.0);
            // Beside a level that is its class's, only readings of the class tell where it is.
            let base = if own.is_some() { rate } else { rate_level.filter(|_| same) };
            candidates.extend(of.readings.iter().take(most).map(|r| Candidate {
                place: r.place,
                relative: beyond(r, Quantity::Rate, rate),
                rate: beyond(r, Quantity::Rate, base),
                power: beyond(r, Quantity::Power, power),
                apart,
            }));
            candidates.len()
        };
        let most = push(seen, 0.0, true, usize::MAX) + OTHERS_MAX;
        for (apart, same, other) in by_likeness(readings, kind, id, seen) {
            if push(other, apart, same, OTHERS_MAX) >= most {
                break;
            }
        }
        candidates.truncate(most);
        Self {
            candidates,
            home: seen.readings.first().map(|r| r.place.reference(&seen.traits)),
            rate_level,
            power_level: power_level.unwrap_or((0.0, 0.5)),
            borrowed: own.is_none(),
            inferred: seen.inferred,
        }
    }

    fn nearest(&self, place: &Place, what: Quantity) -> Nearest {
        let mut nearest = [(f64::INFINITY, 0); NEAREST];
        for (i, candidate) in self.candidates.iter().enumerate() {
            let seen = match what {
                Quantity::Rate => candidate.relative,
                Quantity::Power => candidate.power,
            };
            if seen.is_none() {
                continue;
            }
            let variance = candidate.place.reach(place, what).0 + candidate.apart;
            if variance < nearest[NEAREST - 1].0 {
                let at = nearest.partition_point(|(v, _)| *v <= variance);
                nearest[at..].rotate_right(1);
                nearest[at] = (variance, i);
            }
        }
        nearest
    }

    /// The neighbours' mean deviation and the variance of one more, where the formula itself is
    /// off by a variance of `formula`.
    fn blend(
        &self,
        nearest: &Nearest,
        of: fn(&Candidate) -> Option<f64>,
        formula: f64,
    ) -> (f64, f64) {
        let known = || {
            let near = nearest.iter().filter(|(variance, _)| variance.is_finite());
            near.filter_map(|(variance, i)| Some((*variance, of(&self.candidates[*i])?)))
        };
        // Squared: what a far reading says of this place is not noise but bias.
        let weight = |variance: f64| 1.0 / (variance * variance);
        let whole = weight(formula) + known().map(|(v, _)| weight(v)).sum::<f64>();
        let mean = known().map(|(v, d)| d * weight(v)).sum::<f64>() / whole;
        let least = known().map(|(v, _)| v).fold(formula, f64::min);
        let scatter = known().map(|(v, d)| (d - mean).powi(2) * weight(v)).sum::<f64>() / whole;
        (mean, least + scatter)
    }

    /// ln of steps a second and its variance, where a level is known.
    fn rate(&self, place: &Place, nearest: &Nearest) -> Option<(f64, f64)> {
        let (level, variance) = self.rate_level?;
        let formula = match self.home {
            Some(home) if !self.borrowed => home.reach(place, Quantity::Rate).0,
            _ => variance + REPEAT_SD * REPEAT_SD,
        };
        let (deviation, doubt) = self.blend(nearest, |c| c.rate, formula);
        let variance = if self.borrowed { doubt } else { doubt + variance };
        Some((level + place.crude(Quantity::Rate) + deviation, variance))
    }

    /// The answer at `place`; `reference` is the same GPUs alone at the default.
    #[must_use]
    pub fn answer(&self, place: &Place, reference: &Place) -> Answer {
        let crude = |what| place.crude(what) - reference.crude(what);
        let near = self.nearest(place, Quantity::Rate);
        let direct = self.rate(place, &near);
        let (mut relative, mut rate) = ((0.0, 0.0), direct);
        if !place.is_reference() {
            let near_reference = self.nearest(reference, Quantity::Rate);
            let formula = reference.reach(place, Quantity::Rate).0;
            let there = self.blend(&near, |c| c.relative, formula);
            let here = self.blend(&near_reference, |c| c.relative, REPEAT_SD * REPEAT_SD);
            relative = (crude(Quantity::Rate) + there.0 - here.0, there.1);
            // By way of the reference, where that is surer than straight.
            let alone = self.rate(reference, &near_reference);
            rate = direct.zip(alone).map(|(direct, alone)| {
                let (mean, variance) = (alone.0 + relative.0, alone.1 + relative.1);
                let (mean, variance) = if variance < direct.1 { (mean, variance) } else { direct };
                (mean.min(alone.0), variance)
            });
        }
        let home = self.home.unwrap_or(*reference);
        let formula = home.reach(place, Quantity::Power).0;
        let power = self.blend(&self.nearest(place, Quantity::Power), |c| c.power, formula);
        let level = self.power_level;
        Answer {
            rate: rate.filter(|_| !self.inferred).map(log_normal),
            relative: log_normal(relative),
            power: log_normal((
                place.crude(Quantity::Power) + power.0 + level.0,
                power.1 + level.1,
            )),
        }
    }
}
