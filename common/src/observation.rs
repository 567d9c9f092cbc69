//! A [`JobWindow`] checked and converted to numbers: what predictors learn from and the registry
//! scores against.
//!
//! A window comes from outside. Values that are not finite, not positive or physically impossible
//! are dropped field by field; a window without a usable step rate or power is rejected. Consumers
//! check nothing again.

use serde::{Deserialize, Serialize};

use crate::bounds::{self, GPUS_MAX, MEMORY_MIB_MAX, NEIGHBOURS_MAX, RATE_MAX};
use crate::id::{self, JobId, NodeId, WorkloadId};
use crate::messages::JobWindow;
use crate::time::Timestamp;
use crate::units::{Frequency, Power};

/// Largest accepted power of one GPU, watts.
const GPU_POWER_W_MAX: f64 = bounds::GPU_POWER_W_MAX as f64;
/// Smallest assumed relative standard deviation of a step rate.
const RATE_SD_MIN: f64 = 0.01;
/// Assumed relative standard deviation of a step rate where the window states no error: single
/// readings of one configuration scatter by 1-3 % (Zeus traces, repeated configurations).
const RATE_SD: f64 = 0.02;
/// Relative standard deviation of a GPU's mean power over a window: sensor error of 1-2 % and the
/// job's phases.
pub const POWER_SD: f64 = 0.02;

/// The workload id that stands for any workload not known.
pub const UNKNOWN: &str = "unknown";

/// The workload of a job that declared none.
///
/// # Panics
/// Never: the word is a valid id.
#[must_use]
pub fn unknown() -> WorkloadId {
    WorkloadId::new(UNKNOWN).expect("letters only")
}

/// Number of GPUs and nodes of a job, with its global batch size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobShape {
    /// GPUs on all nodes.
    pub gpus: u32,
    /// Nodes.
    pub nodes: u32,
    /// Global batch size, where reported.
    pub batch: Option<u32>,
}

/// Power cap and locked clock of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// Cap, watts; `None`: the default.
    pub cap_w: Option<f64>,
    /// Highest locked clock, MHz; `None`: not locked.
    pub clock_mhz_max: Option<f64>,
}

impl Setting {
    /// The setting in a message's units.
    #[must_use]
    pub fn new(cap: Option<Power>, clock: Option<Frequency>) -> Self {
        Self {
            cap_w: cap.map(Power::as_w),
            clock_mhz_max: clock.map(|clock| f64::from(clock.as_mhz())),
        }
    }
}

/// Why a window cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnusableWindow {
    /// Its end is not after its start.
    #[error("its end is not after its start")]
    EmptyPeriod,
    /// Its GPU type is not a valid name.
    #[error("its gpu_type is not a valid name")]
    InvalidGpuType,
    /// Its numbers of GPUs and nodes are impossible.
    #[error("its numbers of GPUs and nodes are impossible")]
    InvalidShape,
    /// It names too many neighbours.
    #[error("it names more than {NEIGHBOURS_MAX} neighbours")]
    TooManyNeighbours,
    /// It has neither a usable step rate nor a usable power.
    #[error("it has neither a usable step rate nor a usable power")]
    NoReading,
}

/// One window of one job on one node, with unusable values removed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// Start of the window; with the node it identifies a duplicate.
    pub from_us: Timestamp,
    /// The node.
    pub node: NodeId,
    /// GPUs on all nodes.
    pub gpus: u32,
    /// Nodes the job runs on.
    pub nodes: u32,
    /// Global batch size.
    #[serde(default)]
    pub global_batch: Option<u32>,
    /// The cap, watts.
    pub cap_w: Option<f64>,
    /// Highest locked clock, MHz.
    pub clock_mhz_max: Option<f64>,
    /// Mean clock, MHz.
    pub clock_mhz_mean: Option<f64>,
    /// Workloads of the co-tenants, sorted.
    pub neighbours: Vec<WorkloadId>,
    /// Steps per second.
    pub rate: Option<f64>,
    /// Relative standard deviation of `rate`.
    pub rate_sd: f64,
    /// Whether `rate` was inferred: it is then comparable only with other inferred rates.
    #[serde(default)]
    pub rate_inferred: bool,
    /// Mean power of one of its GPUs, all tenants together, watts.
    pub gpu_power_w: Option<f64>,
    /// Utilization of its GPUs, all tenants together, 0 to 1.
    pub busy: Option<f64>,
    /// This job's part of `busy`, 0 to 1.
    pub busy_job: Option<f64>,
    /// Memory utilization, all tenants together, 0 to 1.
    pub memory_busy: Option<f64>,
    /// Peak device memory of this job on one GPU, MiB.
    pub memory_mib: Option<u64>,
}

impl Observation {
    /// Checks and converts `window`. `class_of` returns the workload of a neighbour for which the
    /// window names none.
    ///
    /// # Errors
    /// Where the window is inconsistent or has no usable reading.
    pub fn of(
        window: &JobWindow,
        class_of: impl Fn(&JobId) -> Option<WorkloadId>,
    ) -> Result<Self, UnusableWindow> {
        let seconds = window.until_us.since(window.from_us).as_secs_f64();
        if seconds <= 0.0 {
            return Err(UnusableWindow::EmptyPeriod);
        }
        if id::check(&window.gpu_type).is_err() {
            return Err(UnusableWindow::InvalidGpuType);
        }
        let (gpus, nodes) = (window.gpus_total, window.nodes_total);
        if gpus == 0 || gpus > GPUS_MAX || nodes == 0 || nodes > gpus {
            return Err(UnusableWindow::InvalidShape);
        }
        if window.neighbours.len() > NEIGHBOURS_MAX {
            return Err(UnusableWindow::TooManyNeighbours);
        }
        let mut neighbours: Vec<WorkloadId> = window
            .neighbours
            .iter()
            .map(|n| n.workload.clone().or_else(|| class_of(&n.job)).unwrap_or_else(unknown))
            .collect();
        neighbours.sort();
        let (rate, rate_sd) = rate(window, seconds);
        let energy_w = window.energy_mj_gpus.map(|e| e.as_j() / seconds);
        let power_w = window.power_mw_gpus.map(Power::as_w).or(energy_w);
        let gpu_power_w = power_w
            .map(|w| w / window.gpus.len() as f64)
            .filter(|w| w.is_finite() && *w > 1.0 && *w < GPU_POWER_W_MAX);
        if rate.is_none() && gpu_power_w.is_none() {
            return Err(UnusableWindow::NoReading);
        }
        Ok(Self {
            from_us: window.from_us,
            node: window.node.clone(),
            gpus,
            nodes,
            global_batch: window.global_batch.filter(|batch| *batch > 0),
            cap_w: window.cap_mw.map(Power::as_w).filter(|w| *w > 1.0 && *w < GPU_POWER_W_MAX),
            clock_mhz_max: clock(window.clock_mhz_max),
            clock_mhz_mean: clock(window.clock_mhz_mean),
            neighbours,
            rate,
            rate_sd,
            rate_inferred: window.steps_inferred,
            gpu_power_w,
            busy: share(window.utilization_gpu_percent),
            busy_job: share(window.utilization_gpu_percent_job),
            memory_busy: share(window.utilization_memory_percent),
            memory_mib: window.memory_mib_max_job.filter(|m| *m > 0 && *m <= MEMORY_MIB_MAX),
        })
    }

    /// Whether the job shared its GPUs with no other job.
    #[must_use]
    pub fn is_exclusive(&self) -> bool {
        self.neighbours.is_empty()
    }

    /// GPUs, nodes and batch.
    #[must_use]
    pub fn shape(&self) -> JobShape {
        JobShape { gpus: self.gpus, nodes: self.nodes, batch: self.global_batch }
    }

    /// Cap and clock.
    #[must_use]
    pub fn setting(&self) -> Setting {
        Setting { cap_w: self.cap_w, clock_mhz_max: self.clock_mhz_max }
    }

    /// Whether a stored observation is within the limits that [`Observation::of`] enforces.
    #[must_use]
    pub fn is_sane(&self) -> bool {
        let inside =
            |v: Option<f64>, max: f64| v.is_none_or(|v| v.is_finite() && v >= 0.0 && v <= max);
        self.gpus > 0
            && self.gpus <= GPUS_MAX
            && self.nodes > 0
            && self.nodes <= self.gpus
            && self.neighbours.len() <= NEIGHBOURS_MAX
            && inside(self.cap_w.map(|w| w - 1.0), GPU_POWER_W_MAX)
            && inside(self.clock_mhz_max.map(|f| f - 10.0), 20_000.0)
            && inside(self.clock_mhz_mean.map(|f| f - 10.0), 20_000.0)
            && self.rate.is_none_or(|r| r.is_finite() && r > 0.0 && r <= RATE_MAX)
            && self.rate_sd.is_finite()
            && self.rate_sd >= RATE_SD_MIN
            && inside(self.gpu_power_w.map(|w| w - 1.0), GPU_POWER_W_MAX)
            && [self.busy, self.busy_job, self.memory_busy].into_iter().all(|v| inside(v, 1.0))
            && self.memory_mib.is_none_or(|m| m <= MEMORY_MIB_MAX)
    }
}

/// Steps per second and their relative standard deviation.
fn rate(window: &JobWindow, seconds: f64) -> (Option<f64>, f64) {
    let usable = |r: &f64| r.is_finite() && *r > 0.0 && *r < RATE_MAX;
    if let Some(rate) = window.steps_per_s.filter(usable) {
        let sd = match window.steps_per_s_error {
            // Half a 90 % interval is 1.645 standard deviations.
            Some(error) if error.is_finite() && error >= 0.0 => error.min(1.0) / 1.645,
            _ => RATE_SD,
        };
        return (Some(rate), sd.max(RATE_SD_MIN));
    }
    // A count of steps is off by up to one at either end.
    match window.steps.filter(|s| *s > 0) {
        Some(steps) => {
            let rate = steps as f64 / seconds;
            (Some(rate).filter(usable), RATE_SD.hypot(0.6 / steps as f64))
        }
        None => (None, RATE_SD),
    }
}

/// A clock in MHz, where plausible.
fn clock(frequency: Option<Frequency>) -> Option<f64> {
    frequency.map(|f| f64::from(f.as_mhz())).filter(|f| *f > 10.0 && *f < 20_000.0)
}

/// Per cent as a share of 1, where within 0 to 100.
fn share(percent: Option<f64>) -> Option<f64> {
    percent.filter(|p| p.is_finite() && (0.0..=100.0).contains(p)).map(|p| p / 100.0)
}
