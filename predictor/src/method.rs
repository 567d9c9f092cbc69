//! Prediction methods: physical models, or a regression over the readings of all jobs.
//!
//! Both methods share the service, the store, jobs, windows and history; only the points of a surface
//! differ. The physical method is [`physical`]. The statistical one learns the
//! residuals of a crude formula ([`crude`]) from readings of all jobs ([`reading`]) by linfa's elastic
//! net ([`statistical`]) and predicts logarithms, from which this file makes points within physical
//! bounds. The intervals of both methods are calibrated by past prediction errors
//! ([`crate::calibration`]).

pub mod crude;
pub mod physical;
pub mod reading;
pub mod statistical;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use wattle_common::id::{JobId, WorkloadId};
use wattle_common::messages::{Estimate, SurfacePoint};
use wattle_common::numerics::mean;

use crate::configurations::Configuration;
use crate::history::{Class, Profile};
use crate::job::{Job, Profiles};
use crate::model::cap::GpuSpec;
use crate::statistics::interval::LogNormal;
use crude::Place;
use reading::{Readings, SeenJob};
use statistical::{Fitted, FittedJob};

/// Smallest and largest speed relative to exclusive GPUs at the default setting.
const SPEED: (f64, f64) = (1e-3, 1.05);
/// Degrees of freedom of an interval from few readings.
pub const DOF: f64 = 8.0;
/// The statistical method is fitted again after `rows / REFIT_SHARE` new readings, and at least
/// [`REFIT_MIN`].
const REFIT_SHARE: usize = 2;
const REFIT_MIN: usize = 4;

/// Prediction method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// Models of the hardware, fitted to each job: [`crate::model`].
    #[default]
    Physical,
    /// An elastic net on engineered features over all jobs: [`statistical`].
    Statistical,
}

/// Prediction for one configuration, in logarithms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogPrediction {
    /// Steps/s; `None` where the job's level is not known.
    pub rate: Option<LogNormal>,
    /// Speed relative to the same GPUs without co-tenants at the default setting.
    pub relative: LogNormal,
    /// Power of one GPU, watts.
    pub power: LogNormal,
}

/// A job with its context, as the statistical method needs it.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Its id.
    pub id: &'a JobId,
    /// Its declaration and windows.
    pub job: &'a Job,
    /// Its class, declared or confidently matched.
    pub class_id: Option<&'a WorkloadId>,
    /// The GPU type.
    pub gpu_type: &'a str,
    /// Properties of the GPU type.
    pub gpu: &'a GpuSpec,
    /// Profile of its class without the job itself.
    pub class: &'a Profile,
    /// Profiles of the classes of its neighbours.
    pub profiles: &'a Profiles,
}

/// State of the statistical method; empty under the physical one.
#[derive(Clone, Debug, Default)]
pub struct Learner {
    method: Method,
    readings: Readings,
    /// By GPU type: the fit, and the number of readings since.
    fitted: BTreeMap<String, (Fitted, usize)>,
}

impl Learner {
    /// A learner without readings.
    #[must_use]
    pub fn new(method: Method) -> Self {
        Self { method, ..Self::default() }
    }

    /// Whether the method is the statistical one.
    #[must_use]
    pub fn learns(&self) -> bool {
        self.method == Method::Statistical
    }

    /// Updates the readings of a job.
    pub fn learn(&mut self, of: Subject<'_>) {
        let seen = SeenJob::of(of.job, of.gpu, of.class, of.profiles);
        if self.readings.put(of.gpu_type, of.id, seen) {
            let rows = self.rows(of.gpu_type);
            let (_, new) = self.fitted.entry(of.gpu_type.to_owned()).or_default();
            *new += 1;
            if *new >= (rows / REFIT_SHARE).clamp(REFIT_MIN, statistical::ROWS_MAX / 2) {
                self.refit(of.gpu_type);
            }
        }
    }

    /// Adds the readings of completed jobs from the history of a class.
    pub fn restore(
        &mut self,
        gpu_type: &str,
        class: &WorkloadId,
        kept: &Class,
        gpu: &GpuSpec,
        profiles: &Profiles,
    ) {
        for (id, summary) in &kept.jobs {
            if !self.readings.knows(gpu_type, id) {
                let at = kept.updated_at_us;
                let seen = SeenJob::of_summary(class, at, summary, gpu, profiles);
                self.readings.put(gpu_type, id, seen);
                self.fitted.entry(gpu_type.to_owned()).or_default().1 += 1;
            }
        }
    }

    /// Fits each GPU type that has new readings.
    pub fn refit_all(&mut self) {
        let gpu_types: Vec<String> = self.fitted.keys().cloned().collect();
        for gpu_type in gpu_types {
            if self.fitted.get(&gpu_type).is_some_and(|(_, new)| *new > 0) {
                self.refit(&gpu_type);
            }
        }
    }

    fn rows(&self, gpu_type: &str) -> usize {
        self.readings.jobs(gpu_type).map(|(_, seen)| seen.readings.len()).sum()
    }

    fn refit(&mut self, gpu_type: &str) {
        let jobs: Vec<&SeenJob> = self.readings.jobs(gpu_type).map(|(_, seen)| seen).collect();
        self.fitted.insert(gpu_type.to_owned(), (Fitted::fit(&jobs), 0));
    }

    /// Points of the configurations `wanted`; `None` for the physical method.
    #[must_use]
    pub fn points(&self, of: Subject<'_>, wanted: &[Configuration]) -> Option<Vec<SurfacePoint>> {
        if !self.learns() {
            return None;
        }
        let mut seen = SeenJob::of(of.job, of.gpu, of.class, of.profiles);
        seen.class = of.class_id.cloned();
        if seen.readings.is_empty() && of.class.ln_power.is_none() {
            // Without any reading, the mean ln power over all jobs is expected.
            let logs: Vec<f64> = self
                .readings
                .jobs(of.gpu_type)
                .map(|(_, s)| s.traits.power_w.max(1.0).ln())
                .collect();
            if let Some(ln_power) = mean(logs.iter().copied()).filter(|_| logs.len() > 2) {
                seen.traits.power_w = ln_power.exp();
            }
        }
        let unfitted = Fitted::default();
        let fitted = self.fitted.get(of.gpu_type).map_or(&unfitted, |(fitted, _)| fitted);
        let job = FittedJob::new(fitted, &self.readings, of.gpu_type, &seen);
        let one = |at: &Configuration| {
            let place = Place::of(at, of.gpu, &seen.traits, of.profiles);
            point(at, job.predict(&place, &place.reference(&seen.traits)), of.gpu)
        };
        Some(wanted.iter().map(one).collect())
    }

    /// Description of the evidence, for users; `None` for the physical method.
    #[must_use]
    pub fn basis(&self, gpu_type: &str, job: &Job, id: &JobId) -> Option<String> {
        if !self.learns() {
            return None;
        }
        let others = self.readings.jobs(gpu_type).filter(|(other, _)| *other != id);
        let same_class = others
            .clone()
            .filter(|(_, seen)| seen.class.is_some() && seen.class == job.workload)
            .count();
        let (all, windows) = (others.count(), job.windows().len());
        let evidence = match self.fitted.get(gpu_type) {
            Some((fitted, _)) if fitted.rows() > 0 => {
                format!("elastic net over {} readings", fitted.rows())
            }
            _ => "a crude formula".to_owned(),
        };
        let of_class =
            job.workload.as_ref().map_or(String::new(), |c| format!(", {same_class} of {c}"));
        let prefix = if windows == 0 { "prior: " } else { "" };
        Some(format!(
            "{prefix}{evidence}; {windows} windows of this job, {all} other jobs{of_class} on {gpu_type}"
        ))
    }
}

/// Mean and variance as [`LogNormal`].
fn log_normal((mean, variance): (f64, f64)) -> LogNormal {
    LogNormal { mean, variance, dof: DOF }
}

/// A prediction as a surface's point. Neither a cap nor a neighbour makes a job faster.
fn point(at: &Configuration, prediction: LogPrediction, gpu: &GpuSpec) -> SurfacePoint {
    let most = if gpu.cap_known { 1.1 * gpu.cap_default_w } else { 5_000.0 };
    let relative = prediction.relative;
    let relative_speed = if relative.mean.abs() + relative.variance < 1e-12 {
        Estimate { mean: 1.0, low: 1.0, high: 1.0 }
    } else {
        LogNormal { mean: relative.mean.min(0.0), ..relative }.estimate(SPEED.0, SPEED.1)
    };
    SurfacePoint {
        gpus: at.gpus,
        nodes: at.nodes,
        cap_mw: at.cap,
        clock_mhz_max: at.clock_max,
        global_batch: at.global_batch,
        neighbours: at.neighbours.clone(),
        steps_per_s: prediction.rate.map(|rate| rate.estimate(1e-9, 1e9)),
        relative_speed,
        gpu_power_w: prediction.power.estimate(0.3 * gpu.idle_w, most),
    }
}
