//! Scoring of predictions against arriving windows, and calibrated intervals.

use std::collections::BTreeMap;

use wattle_common::id::{JobId, WorkloadId};
use wattle_common::messages::{Estimate, JobWindow, SurfacePoint};
use wattle_common::numerics::median_high;
use wattle_common::observation::Observation;

use super::Predictor;
use crate::calibration::{
    Aspect, Calibration, Quantity, Scores, SeenConfigurations, Stratum, score,
};
use crate::configurations::Configuration;
use crate::job::Job;
use crate::method::physical::{SPEED_MAX, SPEED_MIN};
use crate::model::cap::GpuSpec;
use crate::statistics::interval::{product, stretched, time_of};

impl Predictor {
    /// Scores predictions of `windows`, made with the knowledge from before them. Nothing is learned
    /// of the jobs. Windows of unknown jobs are skipped.
    pub fn score(&mut self, windows: &[JobWindow]) {
        let mut by_job: BTreeMap<(&JobId, &str), Vec<Observation>> = BTreeMap::new();
        for window in windows.iter().filter(|w| self.jobs.contains_key(&w.job)) {
            let Ok(seen) = Observation::of(window, |job| self.neighbour_class(job)) else {
                continue;
            };
            // A repeated window was scored when it first arrived.
            let known = self.jobs.get(&window.job).is_some_and(|job| job.has(&seen));
            if !known {
                by_job.entry((&window.job, &window.gpu_type)).or_default().push(seen);
            }
        }
        let mut found = Vec::new();
        for ((id, gpu_type), seen) in &by_job {
            let Some(job) = self.jobs.get(*id) else { continue };
            // Windows on another GPU type do not apply.
            if job.gpu_type.as_deref().is_some_and(|k| k != *gpu_type) {
                continue;
            }
            let gpu = self.gpu_types.spec(gpu_type);
            let class = self.class_of(id, job);
            let seen_configurations = SeenConfigurations::of(job.windows(), &gpu, class.as_ref());
            let wanted: Vec<Configuration> = seen.iter().map(configuration).collect();
            let points = self.raw_points(id, job, (gpu_type, &gpu), &wanted);
            let exclusive: Vec<Configuration> = wanted
                .iter()
                .filter(|at| !at.neighbours.is_empty())
                .map(|at| Configuration { neighbours: Vec::new(), ..at.clone() })
                .collect();
            let mut exclusive = self.raw_points(id, job, (gpu_type, &gpu), &exclusive).into_iter();
            for ((seen, at), point) in seen.iter().zip(&wanted).zip(points) {
                let place =
                    seen_configurations.place(at, |class| self.seen_colocated(gpu_type, class));
                let mut put = |quantity, score: Option<f64>| {
                    let put =
                        |s| ((*gpu_type).to_owned(), quantity, place.clone(), (*id).clone(), s);
                    found.extend(score.map(put));
                };
                // An inferred rate is valid as a relative speed only.
                let rate = seen.rate.filter(|_| !seen.rate_inferred);
                let speed = rate.zip(point.steps_per_s.as_ref());
                put(Quantity::Speed, speed.and_then(|(rate, e)| score(rate, e)));
                if !seen.is_exclusive() {
                    let expected = exclusive.next().and_then(|p| p.steps_per_s).map(|e| e.mean);
                    // The observed exclusive rate is preferred to the model's.
                    let exclusive = exclusive_rate(job.windows(), seen).or(expected);
                    let kept = rate.zip(exclusive).map(|(rate, exclusive)| rate / exclusive);
                    let kept = kept.map(|k| k.min(SPEED_MAX));
                    put(
                        Quantity::RelativeSpeed,
                        kept.and_then(|k| score(k, &point.relative_speed)),
                    );
                }
                let watts = seen.gpu_power_w;
                put(Quantity::Power, watts.and_then(|w| score(w, &point.gpu_power_w)));
                let joules = rate.zip(watts).map(|(rate, watts)| watts / rate);
                let energy = joules.zip(energy(&point));
                put(Quantity::Energy, energy.and_then(|(j, e)| score(j, &e)));
            }
        }
        for (gpu_type, quantity, place, job, score) in found {
            self.calibration.push(&gpu_type, quantity, &place, &job, score);
        }
        self.calibration.update_quantiles();
    }

    /// `points` of `wanted` with calibrated intervals.
    pub(super) fn calibrated(
        &self,
        id: &JobId,
        job: &Job,
        (gpu_type, gpu): (&str, &GpuSpec),
        wanted: &[Configuration],
        mut points: Vec<SurfacePoint>,
    ) -> Vec<SurfacePoint> {
        let class = self.class_of(id, job);
        let seen_configurations = SeenConfigurations::of(job.windows(), gpu, class.as_ref());
        let most = if gpu.cap_known { 1.1 * gpu.cap_default_w } else { 5_000.0 };
        // Hundreds of points share a few strata.
        let mut known: Vec<(Stratum, [f64; 3])> = Vec::new();
        for (point, at) in points.iter_mut().zip(wanted) {
            let place = seen_configurations.place(at, |class| self.seen_colocated(gpu_type, class));
            let cached = known.iter().find(|(seen, _)| *seen == place).map(|(_, by)| *by);
            let [speed, relative, power] = cached.unwrap_or_else(|| {
                let by = |quantity| self.calibration.stretch(gpu_type, quantity, &place);
                let speed = by(Quantity::Speed);
                let colocated = place.aspect() == Aspect::Colocation;
                let relative = if colocated { by(Quantity::RelativeSpeed) } else { speed };
                let found = [speed, relative, by(Quantity::Power)];
                known.push((place, found));
                found
            });
            if let Some(rate) = &mut point.steps_per_s {
                *rate = stretched(rate, speed, 1e-9, 1e9);
            }
            point.relative_speed = stretched(&point.relative_speed, relative, SPEED_MIN, SPEED_MAX);
            let high = most.max(point.gpu_power_w.high);
            let low = point.gpu_power_w.low.min(0.3 * gpu.idle_w);
            point.gpu_power_w = stretched(&point.gpu_power_w, power, low, high);
        }
        points
    }

    /// Predicted energy of one step of `job` on each of its GPUs, J. Its interval is calibrated on
    /// energies, because errors of speed and power are correlated.
    #[must_use]
    pub fn predict_energy(&self, job: &JobId, at: &Configuration) -> Option<Estimate> {
        let known = self.jobs.get(job)?;
        let gpu_type = self.gpu_type_of(known);
        let gpu = self.gpu_types.spec(gpu_type);
        let point =
            self.raw_points(job, known, (gpu_type, &gpu), std::slice::from_ref(at)).pop()?;
        let expected = energy(&point)?;
        let class = self.class_of(job, known);
        let seen_configurations = SeenConfigurations::of(known.windows(), &gpu, class.as_ref());
        let place = seen_configurations.place(at, |class| self.seen_colocated(gpu_type, class));
        let factor = self.calibration.stretch(gpu_type, Quantity::Energy, &place);
        Some(stretched(&expected, factor, 0.0, f64::MAX))
    }

    /// Whether jobs of `class` were seen co-located.
    fn seen_colocated(&self, gpu_type: &str, class: &WorkloadId) -> bool {
        let kept = self.history.class(gpu_type, class);
        kept.is_some_and(|c| c.jobs.iter().any(|(_, s)| !s.shared.is_empty()))
    }

    /// Scores so far.
    #[must_use]
    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    /// Replaces the scores.
    pub fn calibrate(&mut self, calibration: Calibration) {
        self.calibration = calibration;
        self.calibration.update_quantiles();
    }

    /// Scores to be stored: GPU type, name, scores.
    pub fn take_changed_scores(&mut self) -> Vec<(String, String, Scores)> {
        self.calibration.take_changed()
    }

    /// Restores stored scores; false where they are invalid.
    pub fn restore_scores(&mut self, gpu_type: &str, name: &str, stored: Scores) -> bool {
        self.calibration.restore(gpu_type, name, stored)
    }
}

/// Energy of a step on one GPU, J, treating the errors of speed and power as independent.
fn energy(point: &SurfacePoint) -> Option<Estimate> {
    Some(product(&point.gpu_power_w, &time_of(point.steps_per_s.as_ref()?)))
}

/// Median exclusive step rate in the shape and setting of the co-located window `shared`.
fn exclusive_rate(windows: &[Observation], shared: &Observation) -> Option<f64> {
    let same = |w: &&Observation| {
        w.is_exclusive()
            && w.shape() == shared.shape()
            && w.setting() == shared.setting()
            && !w.rate_inferred
    };
    median_high(windows.iter().filter(same).filter_map(|w| w.rate))
}

/// Configuration of a window.
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
