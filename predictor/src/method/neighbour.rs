//! Nearest-neighbour regression on readings of all jobs, relative to each job's level.
//!
//! The *deviation* of a reading is its residual of the crude formula minus its job's level. The
//! prediction at a place is the mean deviation of the [`NEAREST`] readings, weighted by the inverse
//! square of the distance. The distance is a variance: of the formula's error between the two places
//! ([`Place::difference`]), plus that between the two jobs. The formula itself is one more neighbour
//! with deviation 0, at the distance of the job's reference, so that without near readings the
//! prediction is the formula with its uncertainty. The scatter of the neighbours is added to the
//! variance.
//!
//! Nothing is fitted. At most [`OTHERS_MAX`] readings of other jobs are considered, of the same class
//! first, then of the most similar jobs.

use wattle_common::id::JobId;

use crate::method::crude::{Place, Quantity, REPEAT_SD};
use crate::method::reading::{Reading, Readings, SeenJob};
use crate::method::{LogPrediction, log_normal};

/// Readings used for one prediction.
pub const NEAREST: usize = 8;
/// Other jobs' readings considered.
pub const OTHERS_MAX: usize = 96;

/// Standard deviation of the logarithm between two jobs of one class in one configuration: single
/// runs repeat within 1-3 %.
const CLASS_SD: f64 = 0.03;
/// The same between jobs of different classes with equal traits.
const OTHER_SD: f64 = 0.08;
/// Its increase per unit of dissimilarity: networks of the Zeus traces differ by about a tenth at the
/// middle caps.
const DISSIMILARITY_SD: f64 = 0.06;

/// One reading of one job, as a neighbour.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    place: Place,
    /// Deviation of the rate from its own job's level.
    relative: Option<f64>,
    /// Deviation of the rate from the level of the predicted job.
    rate: Option<f64>,
    /// Deviation of the power from its own job's level.
    power: Option<f64>,
    /// Variance between its job and the predicted one.
    apart: f64,
}

/// The nearest candidates, nearest first: variance and index.
type Nearest = [(f64, usize); NEAREST];

/// Predictions for one job.
#[derive(Debug)]
pub struct Neighbours {
    candidates: Vec<Candidate>,
    /// Reference of the job's newest reading; `None` for a job without readings.
    reference: Option<Place>,
    rate_level: Option<(f64, f64)>,
    power_level: (f64, f64),
    /// Whether the rate's level is that of the class.
    class_level: bool,
    inferred: bool,
}

/// Dissimilarity of two jobs: Euclidean distance of busy share, memory traffic and ln power, in units
/// of about equal effect.
fn dissimilarity(a: &SeenJob, b: &SeenJob) -> f64 {
    let busy = (a.traits.busy - b.traits.busy) / 0.2;
    let memory = (a.traits.memory_busy - b.traits.memory_busy) / 0.2;
    let power = (a.traits.power_w.max(1.0) / b.traits.power_w.max(1.0)).ln() / 0.3;
    (busy * busy + memory * memory + power * power).sqrt()
}

/// Other jobs, most similar first: variance between the jobs, whether the class is the same, the job.
fn by_similarity<'a>(
    readings: &'a Readings,
    gpu_type: &str,
    id: &JobId,
    seen: &SeenJob,
) -> Vec<(f64, bool, &'a SeenJob)> {
    let mut others: Vec<(f64, bool, &SeenJob)> = readings
        .jobs(gpu_type)
        .filter(|(other, _)| *other != id)
        .map(|(_, other)| {
            let same = seen.class.is_some() && seen.class == other.class;
            let by_traits = DISSIMILARITY_SD * dissimilarity(seen, other);
            let sd = if same { CLASS_SD } else { OTHER_SD.hypot(by_traits) };
            (sd * sd, same, other)
        })
        .collect();
    others.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.2.updated_at_us.cmp(&a.2.updated_at_us)));
    others
}

impl Neighbours {
    /// Prepares predictions for the job `id` with the readings `seen`.
    #[must_use]
    pub fn new(readings: &Readings, gpu_type: &str, id: &JobId, seen: &SeenJob) -> Self {
        let unseen = |what| {
            let level = |of: &SeenJob| of.level(what).map(|(mean, _)| mean);
            readings.unseen(gpu_type, seen.class.as_ref(), what, level)
        };
        let own = seen.level(Quantity::Rate);
        let rate_level = own.or_else(|| unseen(Quantity::Rate));
        let power_level = seen.level(Quantity::Power).or_else(|| unseen(Quantity::Power));
        let mut candidates = Vec::new();
        let mut push = |of: &SeenJob, apart: f64, same: bool, most: usize| {
            let (rate, power) = (of.level(Quantity::Rate), of.level(Quantity::Power));
            let beyond =
                |r: &Reading, what, level: Option<(f64, f64)>| Some(r.residual(what)? - level?.0);
            // With the level of the class, only readings of the class have an absolute rate.
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
        for (apart, same, other) in by_similarity(readings, gpu_type, id, seen) {
            if push(other, apart, same, OTHERS_MAX) >= most {
                break;
            }
        }
        candidates.truncate(most);
        Self {
            candidates,
            reference: seen.readings.first().map(|r| r.place.reference(&seen.traits)),
            rate_level,
            power_level: power_level.unwrap_or((0.0, 0.5)),
            class_level: own.is_none(),
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
            let variance = candidate.place.difference(place, what).0 + candidate.apart;
            if variance < nearest[NEAREST - 1].0 {
                let at = nearest.partition_point(|(v, _)| *v <= variance);
                nearest[at..].rotate_right(1);
                nearest[at] = (variance, i);
            }
        }
        nearest
    }

    /// Weighted mean deviation of the neighbours and its predictive variance; `formula` is the
    /// variance of the formula itself.
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
        // Squared, because the error of a distant reading is bias rather than noise.
        let weight = |variance: f64| 1.0 / (variance * variance);
        let total = weight(formula) + known().map(|(v, _)| weight(v)).sum::<f64>();
        let mean = known().map(|(v, d)| d * weight(v)).sum::<f64>() / total;
        let least = known().map(|(v, _)| v).fold(formula, f64::min);
        let scatter = known().map(|(v, d)| (d - mean).powi(2) * weight(v)).sum::<f64>() / total;
        (mean, least + scatter)
    }

    /// ln of steps/s and its variance; `None` without a level.
    fn rate(&self, place: &Place, nearest: &Nearest) -> Option<(f64, f64)> {
        let (level, variance) = self.rate_level?;
        let formula = match self.reference {
            Some(from) if !self.class_level => from.difference(place, Quantity::Rate).0,
            _ => variance + REPEAT_SD * REPEAT_SD,
        };
        let (deviation, spread) = self.blend(nearest, |c| c.rate, formula);
        let variance = if self.class_level { spread } else { spread + variance };
        Some((level + place.crude(Quantity::Rate) + deviation, variance))
    }

    /// Prediction at `place`; `reference` is the same GPUs without co-tenants at the default setting.
    #[must_use]
    pub fn predict(&self, place: &Place, reference: &Place) -> LogPrediction {
        let crude = |what| place.crude(what) - reference.crude(what);
        let near = self.nearest(place, Quantity::Rate);
        let direct = self.rate(place, &near);
        let (mut relative, mut rate) = ((0.0, 0.0), direct);
        if !place.is_reference() {
            let near_reference = self.nearest(reference, Quantity::Rate);
            let formula = reference.difference(place, Quantity::Rate).0;
            let there = self.blend(&near, |c| c.relative, formula);
            let here = self.blend(&near_reference, |c| c.relative, REPEAT_SD * REPEAT_SD);
            relative = (crude(Quantity::Rate) + there.0 - here.0, there.1);
            // Through the reference, where that has the smaller variance.
            let exclusive = self.rate(reference, &near_reference);
            rate = direct.zip(exclusive).map(|(direct, exclusive)| {
                let (mean, variance) = (exclusive.0 + relative.0, exclusive.1 + relative.1);
                let (mean, variance) = if variance < direct.1 { (mean, variance) } else { direct };
                (mean.min(exclusive.0), variance)
            });
        }
        let from = self.reference.unwrap_or(*reference);
        let formula = from.difference(place, Quantity::Power).0;
        let power = self.blend(&self.nearest(place, Quantity::Power), |c| c.power, formula);
        let level = self.power_level;
        LogPrediction {
            rate: rate.filter(|_| !self.inferred).map(log_normal),
            relative: log_normal(relative),
            power: log_normal((
                place.crude(Quantity::Power) + power.0 + level.0,
                power.1 + level.1,
            )),
        }
    }
}
