//! A predictor under evaluation, fed with a file's readings as windows.
//!
//! One reading becomes one window of a minute. Readings reach the predictor only through
//! [`Predictor::learn_all`]. Intervals are calibrated by the code of the service, on scores that the
//! protocol selects: never on those of the evaluated readings.

use std::time::Duration;

use wattle_common::id::{JobId, NodeId, WorkloadId};
use wattle_common::messages::{Estimate, JobWindow, Neighbour, SurfacePoint};
use wattle_common::{Frequency, Power, Timestamp};

use wattle_measurements::reader::FileGpu;
use wattle_predictor::calibration::Calibration;
use wattle_predictor::configurations::Configuration;
use wattle_predictor::method::Method;
use wattle_predictor::model::cap_forms::FormChoice;
use wattle_predictor::predictor::Learned;
use wattle_predictor::{Predictor, PredictorConfig};

/// Windows of one job: raised from the operator's limit so that it holds a complete table.
const WINDOWS_MAX: u64 = 4_096;

/// One reading of one job.
#[derive(Clone, Debug)]
pub(crate) struct Shown<'a> {
    pub(crate) class: &'a WorkloadId,
    pub(crate) at: Configuration,
    /// Steps/s.
    pub(crate) rate: Option<f64>,
    pub(crate) gpu_power_w: Option<f64>,
}

/// A predictor under evaluation.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    predictor: Predictor,
    gpu_type: String,
    minutes: u64,
}

/// One exclusive GPU at the default setting.
pub(crate) fn alone() -> Configuration {
    Configuration {
        gpus: 1,
        nodes: 1,
        cap: None,
        clock_max: None,
        global_batch: None,
        neighbours: Vec::new(),
    }
}

/// A cap of `watts`.
pub(crate) fn cap(watts: f64) -> Option<Power> {
    Some(Power::from_w_f64(watts))
}

/// A locked clock of `mhz`.
pub(crate) fn clock(mhz: u32) -> Option<Frequency> {
    Some(Frequency::from_mhz(mhz))
}

/// Job of a class: each class of a file is one job.
pub(crate) fn job_of(class: &WorkloadId) -> JobId {
    JobId::new(class.as_str()).expect("a class is an id, as a job is")
}

impl Trial {
    pub(crate) fn new(file_gpu: &FileGpu, method: Method) -> Self {
        let config = PredictorConfig {
            windows_per_job_max: WINDOWS_MAX,
            method,
            ..PredictorConfig::shipped()
        };
        Self { predictor: Predictor::new(config), gpu_type: file_gpu.gpu_type.clone(), minutes: 0 }
    }

    /// Learns `readings`; with `pool`, fits the pooled models again.
    pub(crate) fn learn(&mut self, readings: &[Shown<'_>], pool: bool) {
        let windows: Vec<JobWindow> = readings.iter().map(|r| self.window(r)).collect();
        let before = self.predictor.calibration().clone();
        let now = Timestamp::from_s(60 * self.minutes);
        let learned = self.predictor.learn_all(now, &windows);
        // The protocol selects the scores.
        self.predictor.calibrate(before);
        debug_assert!(learned.iter().all(|l| *l == Learned::Something), "{learned:?}");
        if pool {
            self.predictor.refit_pooled();
        }
    }

    /// Scores of the predictions of `readings`, without learning them.
    pub(crate) fn scores(&self, readings: &[Shown<'_>]) -> Calibration {
        let mut copy = self.clone();
        copy.predictor.calibrate(Calibration::default());
        let windows: Vec<JobWindow> = readings.iter().map(|r| copy.window(r)).collect();
        copy.predictor.score(&windows);
        copy.predictor.calibration().clone()
    }

    /// Calibrates with `scores` and no others.
    pub(crate) fn calibrate<'a>(&mut self, scores: impl Iterator<Item = &'a Calibration>) {
        let mut all = Calibration::default();
        for one in scores {
            all.absorb(one);
        }
        self.predictor.calibrate(all);
    }

    /// Learns the readings of the job of `class` from scratch, with the current pooled models.
    pub(crate) fn again(&mut self, class: &WorkloadId, readings: &[Shown<'_>]) {
        self.predictor.forget(&job_of(class));
        self.learn(readings, false);
    }

    /// Prediction for the job of `class`.
    pub(crate) fn predict(&self, class: &WorkloadId, at: &Configuration) -> Option<SurfacePoint> {
        self.predictor.predict(&job_of(class), at)
    }

    /// Forms of the response of time to caps, with their shares.
    pub(crate) fn cap_forms(&self) -> FormChoice {
        self.predictor.cap_forms(&self.gpu_type)
    }

    /// Predicted energy of one step on one GPU, J.
    pub(crate) fn energy(&self, class: &WorkloadId, at: &Configuration) -> Option<Estimate> {
        self.predictor.predict_energy(&job_of(class), at)
    }

    fn window(&mut self, shown: &Shown<'_>) -> JobWindow {
        let from = Timestamp::from_s(60 * self.minutes);
        self.minutes += 1;
        let at = &shown.at;
        let here = at.gpus.div_ceil(at.nodes);
        JobWindow {
            job: job_of(shown.class),
            admission: None,
            workload: Some(shown.class.clone()),
            node: NodeId::new("node").expect("letters only"),
            gpu_type: self.gpu_type.clone(),
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
