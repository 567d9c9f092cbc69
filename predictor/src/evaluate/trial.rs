//! A predictor of the service's own, fed with a file's readings as windows.
//!
//! One reading is one window of a minute. Nothing of a reading reaches a prediction but through
//! [`Predictor::learn_all`]. Intervals are calibrated by the same code as the service's, on scores
//! that the protocol names: never on those of what is asked.

use std::time::Duration;

use wattle_common::id::{JobId, NodeId, WorkloadId};
use wattle_common::messages::{Estimate, JobWindow, Neighbour, SurfacePoint};
use wattle_common::{Frequency, Power, Timestamp};

use super::reader::Card;
use crate::calibration::Calibration;
use crate::predictor::Learned;
use crate::surface::Configuration;
use crate::{Predictor, PredictorConfig};

/// A whole table must fit into a job: the operator's limit on windows is lifted to this.
const WINDOWS_MAX: u64 = 4_096;

/// One reading of one job.
#[derive(Clone, Debug)]
pub(super) struct Shown<'a> {
    pub(super) class: &'a WorkloadId,
    pub(super) at: Configuration,
    /// Steps a second.
    pub(super) rate: Option<f64>,
    pub(super) gpu_power_w: Option<f64>,
}

/// A predictor under trial.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    predictor: Predictor,
    kind: String,
    minutes: u64,
}

/// A job alone on one card, nothing set.
pub(super) fn alone() -> Configuration {
    Configuration {
        gpus: 1,
        nodes: 1,
        cap: None,
        clock_max: None,
        global_batch: None,
        neighbours: Vec::new(),
    }
}

/// Watts as a cap.
pub(super) fn cap(watts: f64) -> Option<Power> {
    Some(Power::from_w_f64(watts))
}

/// MHz as a clock.
pub(super) fn clock(mhz: u32) -> Option<Frequency> {
    Some(Frequency::from_mhz(mhz))
}

/// The job that stands for a class: each class of a file is one job.
pub(super) fn job_of(class: &WorkloadId) -> JobId {
    JobId::new(class.as_str()).expect("a class is an id, as a job is")
}

impl Trial {
    pub(super) fn new(card: &Card) -> Self {
        let config = PredictorConfig {
            windows_per_job_max: WINDOWS_MAX,
            method: card.method,
            ..PredictorConfig::shipped()
        };
        Self { predictor: Predictor::new(config), kind: card.kind.clone(), minutes: 0 }
    }

    /// Learns `readings`, and fits what is pooled over jobs where `pool`.
    pub(super) fn learn(&mut self, readings: &[Shown<'_>], pool: bool) {
        let windows: Vec<JobWindow> = readings.iter().map(|r| self.window(r)).collect();
        let before = self.predictor.calibration().clone();
        let now = Timestamp::from_s(60 * self.minutes);
        let learned = self.predictor.learn_all(now, &windows);
        // Which scores count is the protocol's to say.
        self.predictor.calibrate(before);
        debug_assert!(learned.iter().all(|l| *l == Learned::Something), "{learned:?}");
        if pool {
            self.predictor.refit_pooled();
        }
    }

    /// How far the trial's predictions of `readings` are off, in halves of their intervals. Nothing
    /// is learned of them.
    pub(super) fn scores(&self, readings: &[Shown<'_>]) -> Calibration {
        let mut copy = self.clone();
        copy.predictor.calibrate(Calibration::default());
        let windows: Vec<JobWindow> = readings.iter().map(|r| copy.window(r)).collect();
        copy.predictor.score(&windows);
        copy.predictor.calibration().clone()
    }

    /// Goes by `scores`, and no others, from now on.
    pub(super) fn calibrate<'a>(&mut self, scores: impl Iterator<Item = &'a Calibration>) {
        let mut all = Calibration::default();
        for one in scores {
            all.absorb(one);
        }
        self.predictor.calibrate(all);
    }

    /// Forgets the job of `class` and learns its readings again, by what is pooled now.
    pub(super) fn again(&mut self, class: &WorkloadId, readings: &[Shown<'_>]) {
        self.predictor.forget(&job_of(class));
        self.learn(readings, false);
    }

    /// What is expected of the job of `class`.
    pub(super) fn predict(&self, class: &WorkloadId, at: &Configuration) -> Option<SurfacePoint> {
        self.predictor.predict(&job_of(class), at)
    }

    /// What energy a step of it is expected to take on one card, J.
    pub(super) fn energy(&self, class: &WorkloadId, at: &Configuration) -> Option<Estimate> {
        self.predictor.predict_energy(&job_of(class), at)
    }

    fn window(&mut self, shown: &Shown<'_>) -> JobWindow {
        let from = Timestamp::from_s(60 * self.minutes);
        self.minutes += 1;
        let at = &shown.at;
        let here = at.gpus.div_ceil(at.nodes);
        JobWindow {
            job: job_of(shown.class),
            workload: Some(shown.class.clone()),
            node: NodeId::new("node").expect("letters only"),
            gpu_type: self.kind.clone(),
            attempt: 1,
            from_us: from,
            until_us: from + Duration::from_secs(60),
            gpus: (0..here).collect(),
            gpus_total: at.gpus,
            nodes_total: at.nodes,
            global_batch: at.global_batch,
            cap_mw: at.cap,
            clock_mhz_mean: None,
            clock_mhz_max: at.clock_max,
            neighbours: at
                .neighbours
                .iter()
                .map(|class| Neighbour { job: job_of(class), workload: Some(class.clone()) })
                .collect(),
            steps: None,
            steps_per_s: shown.rate,
            steps_per_s_error: None,
            steps_inferred: false,
            step: None,
            epoch: None,
            early: false,
            power_mw_gpus: shown.gpu_power_w.map(|w| Power::from_w_f64(w * f64::from(here))),
            power_mw_job: None,
            energy_mj_gpus: None,
            utilization_gpu_percent: None,
            utilization_gpu_percent_job: None,
            utilization_memory_percent: None,
            memory_mib_max_job: None,
            samples: 600,
        }
    }
}
