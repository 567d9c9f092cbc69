//! Where the predictor scores itself, and its intervals follow from the scores.

use std::collections::BTreeMap;

use wattle_common::id::{JobId, WorkloadId};
use wattle_common::messages::{Estimate, JobWindow, SurfacePoint};
use wattle_common::numerics::median_high;

use super::Predictor;
use crate::calibration::{Aspect, Calibration, Experience, Place, Quantity, Scores, score};
use crate::interval::{product, stretched, time_of};
use crate::job::Job;
use crate::model::cap::Card;
use crate::surface::{Configuration, SPEED_MAX, SPEED_MIN};
use wattle_common::observation::Observation;

impl Predictor {
    /// Predicts what `windows` show, from what was known before them, and takes down how far it was
    /// off. Learns nothing of the jobs. A job never heard of cannot be predicted.
    pub fn score(&mut self, windows: &[JobWindow]) {
        let mut by_job: BTreeMap<(&JobId, &str), Vec<Observation>> = BTreeMap::new();
        for window in windows.iter().filter(|w| self.jobs.contains_key(&w.job)) {
            let Ok(seen) = Observation::of(window, |job| self.neighbour_class(job)) else {
                continue;
            };
            // A doubled window was scored when it first came.
            let known = self.jobs.get(&window.job).is_some_and(|job| job.has(&seen));
            if !known {
                by_job.entry((&window.job, &window.gpu_type)).or_default().push(seen);
            }
        }
        let mut found = Vec::new();
        for ((id, kind), seen) in &by_job {
            let Some(job) = self.jobs.get(*id) else { continue };
            // Of another kind of card nothing that was learned of the job holds.
            if job.gpu_type.as_deref().is_some_and(|k| k != *kind) {
                continue;
            }
            let card = self.cards.card(kind);
            let class = self.class_of(id, job);
            let experience = Experience::of(job.windows(), &card, class.as_ref());
            let wanted: Vec<Configuration> = seen.iter().map(configuration).collect();
            let points = self.raw_points(id, job, (kind, &card), &wanted);
            let alone: Vec<Configuration> = wanted
                .iter()
                .filter(|at| !at.neighbours.is_empty())
                .map(|at| Configuration { neighbours: Vec::new(), ..at.clone() })
                .collect();
            let mut alone = self.raw_points(id, job, (kind, &card), &alone).into_iter();
            for ((seen, at), point) in seen.iter().zip(&wanted).zip(points) {
                let place = experience.place(at, |class| self.met(kind, class));
                let mut put = |quantity, score: Option<f64>| {
                    let put = |s| ((*kind).to_owned(), quantity, place.clone(), (*id).clone(), s);
                    found.extend(score.map(put));
                };
                // An inferred rate is a relative speed, and says nothing of the level.
                let rate = seen.rate.filter(|_| !seen.rate_inferred);
                let speed = rate.zip(point.steps_per_s.as_ref());
                put(Quantity::Speed, speed.and_then(|(rate, e)| score(rate, e)));
                if !seen.alone() {
                    let expected = alone.next().and_then(|p| p.steps_per_s).map(|e| e.mean);
                    // What it did alone, where that was seen; a method's own level may be off.
                    let alone = rate_alone(job.windows(), seen).or(expected);
                    let kept = rate.zip(alone).map(|(rate, alone)| rate / alone);
                    let kept = kept.map(|k| k.min(SPEED_MAX));
                    put(Quantity::Relative, kept.and_then(|k| score(k, &point.relative_speed)));
                }
                let watts = seen.gpu_power_w;
                put(Quantity::Power, watts.and_then(|w| score(w, &point.gpu_power_w)));
                let joules = rate.zip(watts).map(|(rate, watts)| watts / rate);
                let energy = joules.zip(energy(&point));
                put(Quantity::Energy, energy.and_then(|(j, e)| score(j, &e)));
            }
        }
        for (kind, quantity, place, job, score) in found {
            self.calibration.push(&kind, quantity, &place, &job, score);
        }
        self.calibration.settle();
    }

    /// `points` of `wanted` with the intervals that earlier scores ask for.
    pub(super) fn calibrated(
        &self,
        id: &JobId,
        job: &Job,
        (kind, card): (&str, &Card),
        wanted: &[Configuration],
        mut points: Vec<SurfacePoint>,
    ) -> Vec<SurfacePoint> {
        let class = self.class_of(id, job);
        let experience = Experience::of(job.windows(), card, class.as_ref());
        let most = if card.cap_known { 1.1 * card.cap_default_w } else { 5_000.0 };
        // Hundreds of points lie in a few places.
        let mut known: Vec<(Place, [f64; 3])> = Vec::new();
        for (point, at) in points.iter_mut().zip(wanted) {
            let place = experience.place(at, |class| self.met(kind, class));
            let met = known.iter().find(|(seen, _)| *seen == place).map(|(_, by)| *by);
            let [speed, relative, power] = met.unwrap_or_else(|| {
                let by = |quantity| self.calibration.stretch(kind, quantity, &place);
                let speed = by(Quantity::Speed);
                let beside = place.aspect() == Aspect::Beside;
                let relative = if beside { by(Quantity::Relative) } else { speed };
                let found = [speed, relative, by(Quantity::Power)];
                known.push((place, found));
                found
            });
            if let Some(rate) = &mut point.steps_per_s {
                *rate = stretched(rate, speed, 1e-9, 1e9);
            }
            point.relative_speed = stretched(&point.relative_speed, relative, SPEED_MIN, SPEED_MAX);
            let high = most.max(point.gpu_power_w.high);
            let low = point.gpu_power_w.low.min(0.3 * card.idle_w);
            point.gpu_power_w = stretched(&point.gpu_power_w, power, low, high);
        }
        points
    }

    /// What energy a step of `job` is expected to take on each of its cards, J. Its interval is
    /// calibrated on energies: what speed and power err by together is not known from either.
    #[must_use]
    pub fn predict_energy(&self, job: &JobId, at: &Configuration) -> Option<Estimate> {
        let known = self.jobs.get(job)?;
        let kind = self.kind_of(known);
        let card = self.cards.card(kind);
        let point = self.raw_points(job, known, (kind, &card), std::slice::from_ref(at)).pop()?;
        let expected = energy(&point)?;
        let class = self.class_of(job, known);
        let experience = Experience::of(known.windows(), &card, class.as_ref());
        let place = experience.place(at, |class| self.met(kind, class));
        let factor = self.calibration.stretch(kind, Quantity::Energy, &place);
        Some(stretched(&expected, factor, 0.0, f64::MAX))
    }

    /// Whether jobs of `class` were seen beside others.
    fn met(&self, kind: &str, class: &WorkloadId) -> bool {
        let kept = self.history.class(kind, class);
        kept.is_some_and(|c| c.jobs.iter().any(|(_, s)| !s.shared.is_empty()))
    }

    /// How far it was off so far.
    #[must_use]
    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    /// Goes by these scores from now on.
    pub fn calibrate(&mut self, calibration: Calibration) {
        self.calibration = calibration;
        self.calibration.settle();
    }

    /// Scores to be stored, by kind of card and name.
    pub fn take_changed_scores(&mut self) -> Vec<(String, String, Scores)> {
        self.calibration.take_changed()
    }

    /// Takes in scores as they were stored; false where they are not such as this version stores.
    pub fn restore_scores(&mut self, kind: &str, name: &str, stored: Scores) -> bool {
        self.calibration.restore(kind, name, stored)
    }
}

/// The energy of a step on one card, J, as if speed and power erred apart.
fn energy(point: &SurfacePoint) -> Option<Estimate> {
    Some(product(&point.gpu_power_w, &time_of(point.steps_per_s.as_ref()?)))
}

/// Steps a second that a job did alone where `beside` was seen: the median.
fn rate_alone(windows: &[Observation], beside: &Observation) -> Option<f64> {
    let same = |w: &&Observation| {
        w.alone()
            && w.shape() == beside.shape()
            && w.setting() == beside.setting()
            && !w.rate_inferred
    };
    median_high(windows.iter().filter(same).filter_map(|w| w.rate))
}

/// The configuration a window was seen in.
fn configuration(seen: &Observation) -> Configuration {
    Configuration {
        gpus: seen.gpus,
        nodes: seen.nodes,
        cap: seen.cap_w.map(wattle_common::Power::from_w_f64),
        clock_max: seen.clock_mhz_max.map(|f| wattle_common::Frequency::from_mhz(f.round() as u32)),
        global_batch: seen.global_batch,
        neighbours: seen.neighbours.clone(),
    }
}
