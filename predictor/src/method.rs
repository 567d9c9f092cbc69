//! The ways a predictor may answer: by the physical models, by statistics, or by its memory.
//!
//! One service, one store, one set of jobs, windows, history and cards; only the points of a
//! surface differ. The physical method is [`crate::surface`]; the other two are here. They learn
//! from the same readings ([`reading`]) what a crude formula ([`crude`]) leaves over, answer in
//! logarithms, and this file makes points of that within physical bounds. The intervals that any of
//! the three claims are stretched by how far it was off so far, by the same [`crate::calibration`].

pub mod crude;
pub mod neighbour;
pub mod reading;
pub mod statistical;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use wattle_common::id::{JobId, WorkloadId};
use wattle_common::messages::{Estimate, SurfacePoint};

use crate::history::{Class, Profile};
use crate::job::{Job, Profiles};
use crate::model::cap::GpuSpec;
use crate::statistics::interval::LogNormal;
use crate::surface::Configuration;
use crude::Place;
use neighbour::Neighbours;
use reading::{Readings, SeenJob};
use statistical::{Fitted, Statistician};

/// The slowest and fastest a job is believed to run relative to itself alone at the default.
const SPEED: (f64, f64) = (1e-3, 1.05);
/// Degrees of freedom of an interval that rests on a handful of readings.
pub const DOF: f64 = 8.0;
/// The statistical method is fitted anew once this share of its rows is new, at the least after
/// [`REFIT_MIN`] readings.
const REFIT_SHARE: usize = 2;
const REFIT_MIN: usize = 4;

/// How a predictor makes points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// Models of the hardware, fitted to each job: [`crate::model`].
    #[default]
    Physical,
    /// An elastic net on engineered features over all jobs: [`statistical`].
    Statistical,
    /// The most like readings of any job: [`neighbour`].
    Neighbour,
}

/// What a method answers of one configuration, in logarithms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answer {
    /// Steps a second; none where no level is known.
    pub rate: Option<LogNormal>,
    /// Speed relative to the same GPUs alone at the default.
    pub relative: LogNormal,
    /// One card's power, watts.
    pub power: LogNormal,
}

/// A job that is asked about.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Its name.
    pub id: &'a JobId,
    /// What is known of it.
    pub job: &'a Job,
    /// Its class, declared or surely alike.
    pub class_id: Option<&'a WorkloadId>,
    /// The kind of card.
    pub kind: &'a str,
    /// The card.
    pub card: &'a GpuSpec,
    /// What other jobs of its class were.
    pub class: &'a Profile,
    /// What its neighbours are.
    pub profiles: &'a Profiles,
}

/// What the learned methods keep; empty for the physical one.
#[derive(Clone, Debug, Default)]
pub struct Learner {
    method: Method,
    readings: Readings,
    /// By kind of card: the fit, and readings since.
    fitted: BTreeMap<String, (Fitted, usize)>,
}

impl Learner {
    /// One that knows nothing yet.
    #[must_use]
    pub fn new(method: Method) -> Self {
        Self { method, ..Self::default() }
    }

    /// Whether it learns at all.
    #[must_use]
    pub fn learns(&self) -> bool {
        self.method != Method::Physical
    }

    /// Learns what is now known of a job.
    pub fn learn(&mut self, of: Subject<'_>) {
        let seen = SeenJob::of(of.job, of.card, of.class, of.profiles);
        if self.readings.put(of.kind, of.id, seen) && self.method == Method::Statistical {
            let rows = self.rows(of.kind);
            let (_, waited) = self.fitted.entry(of.kind.to_owned()).or_default();
            *waited += 1;
            if *waited >= (rows / REFIT_SHARE).clamp(REFIT_MIN, statistical::ROWS_MAX / 2) {
                self.refit(of.kind);
            }
        }
    }

    /// Learns what the history kept of a class, of jobs that are gone.
    pub fn restore(
        &mut self,
        kind: &str,
        class: &WorkloadId,
        kept: &Class,
        card: &GpuSpec,
        profiles: &Profiles,
    ) {
        for (id, summary) in &kept.jobs {
            if !self.readings.knows(kind, id) {
                let at = kept.updated_at_us;
                let seen = SeenJob::of_summary(class, at, summary, card, profiles);
                self.readings.put(kind, id, seen);
                self.fitted.entry(kind.to_owned()).or_default().1 += 1;
            }
        }
    }

    /// Fits anew what is fitted over all jobs, wherever readings came since.
    pub fn refit_all(&mut self) {
        let kinds: Vec<String> = self.fitted.keys().cloned().collect();
        for kind in kinds {
            if self.fitted.get(&kind).is_some_and(|(_, waited)| *waited > 0) {
                self.refit(&kind);
            }
        }
    }

    fn rows(&self, kind: &str) -> usize {
        self.readings.jobs(kind).map(|(_, seen)| seen.readings.len()).sum()
    }

    fn refit(&mut self, kind: &str) {
        if self.method == Method::Statistical {
            let jobs: Vec<&SeenJob> = self.readings.jobs(kind).map(|(_, seen)| seen).collect();
            self.fitted.insert(kind.to_owned(), (Fitted::fit(&jobs), 0));
        }
    }

    /// The points of `wanted`; `None` for the physical method, which answers elsewhere.
    #[must_use]
    pub fn points(&self, of: Subject<'_>, wanted: &[Configuration]) -> Option<Vec<SurfacePoint>> {
        if !self.learns() {
            return None;
        }
        let mut seen = SeenJob::of(of.job, of.card, of.class, of.profiles);
        seen.class = of.class_id.cloned();
        if seen.readings.is_empty() && of.class.ln_power.is_none() {
            // Of a job nobody knows, the power of any other is expected.
            let logs: Vec<f64> =
                self.readings.jobs(of.kind).map(|(_, s)| s.traits.power_w.max(1.0).ln()).collect();
            if logs.len() > 2 {
                seen.traits.power_w = (logs.iter().sum::<f64>() / logs.len() as f64).exp();
            }
        }
        let believed = Fitted::default();
        let fitted = self.fitted.get(of.kind).map_or(&believed, |(fitted, _)| fitted);
        let place = |at: &Configuration| Place::of(at, of.card, &seen.traits, of.profiles);
        let make = |answer: &dyn Fn(&Place, &Place) -> Answer| {
            let one = |at: &Configuration| {
                let place = place(at);
                point(at, answer(&place, &place.reference(&seen.traits)), of.card)
            };
            wanted.iter().map(one).collect()
        };
        Some(if self.method == Method::Statistical {
            let asked = Statistician::new(fitted, &self.readings, of.kind, &seen);
            make(&|place, reference| asked.answer(place, reference))
        } else {
            let asked = Neighbours::new(&self.readings, of.kind, of.id, &seen);
            make(&|place, reference| asked.answer(place, reference))
        })
    }

    /// What an answer rests on, for people; `None` for the physical method.
    #[must_use]
    pub fn basis(&self, kind: &str, job: &Job, id: &JobId) -> Option<String> {
        let others = self.readings.jobs(kind).filter(|(other, _)| *other != id);
        let like = others
            .clone()
            .filter(|(_, seen)| seen.class.is_some() && seen.class == job.workload)
            .count();
        let (all, windows) = (others.count(), job.windows().len());
        let how = match self.method {
            Method::Physical => return None,
            Method::Statistical => match self.fitted.get(kind) {
                Some((fitted, _)) if fitted.rows() > 0 => {
                    format!("elastic net over {} readings", fitted.rows())
                }
                _ => "a crude formula".to_owned(),
            },
            Method::Neighbour if all == 0 && windows == 0 => "a crude formula".to_owned(),
            Method::Neighbour => "nearest readings".to_owned(),
        };
        let kin = job.workload.as_ref().map_or(String::new(), |c| format!(", {like} of {c}"));
        let word = if windows == 0 { "prior: " } else { "" };
        Some(format!("{word}{how}; {windows} windows of this job, {all} other jobs{kin} on {kind}"))
    }
}

/// A variance as [`LogNormal`].
fn log_normal((mean, variance): (f64, f64)) -> LogNormal {
    LogNormal { mean, variance, dof: DOF }
}

/// An answer as a surface's point. Neither a cap nor a neighbour makes a job faster.
fn point(at: &Configuration, answer: Answer, card: &GpuSpec) -> SurfacePoint {
    let most = if card.cap_known { 1.1 * card.cap_default_w } else { 5_000.0 };
    let relative = answer.relative;
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
        steps_per_s: answer.rate.map(|rate| rate.estimate(1e-9, 1e9)),
        relative_speed,
        gpu_power_w: answer.power.estimate(0.3 * card.idle_w, most),
    }
}
