//! What a model needs of a window, checked: the one door through which windows come in.
//!
//! A window comes from outside. Whatever is not finite, not positive or beyond physics is dropped
//! field by field, and a window of which nothing is left is refused. No model checks again.

use serde::{Deserialize, Serialize};
use wattle_common::Timestamp;
use wattle_common::id::{self, NodeId, WorkloadId};
use wattle_common::messages::JobWindow;

use crate::model::cap::Setting;
use crate::model::throughput::JobShape;

/// GPUs and nodes beyond this are a mistake.
const GPUS_MAX: u32 = 65_536;
/// A single card beyond this power is a mistake, watts.
const CARD_POWER_W_MAX: f64 = 5_000.0;
/// Steps a second beyond this are a mistake.
const RATE_MAX: f64 = 1e7;
/// Neighbours on one card beyond this are a mistake.
const NEIGHBOURS_MAX: usize = 16;
/// The least deviation believed of a step rate, as a share: no window repeats better.
const RATE_SD_MIN: f64 = 0.01;
/// Believed where a window does not say: single readings of one configuration scatter by 1-3 %
/// (Zeus traces, repeated configurations).
const RATE_SD: f64 = 0.02;
/// A card's mean power over a window: the sensor's own 1-2 % and the job's phases.
pub const POWER_SD: f64 = 0.02;

/// The name of a class that is not known.
pub const UNKNOWN: &str = "unknown";

/// The class of a job that declared nothing.
///
/// # Panics
/// Never: the word is an id.
#[must_use]
pub fn unknown() -> WorkloadId {
    WorkloadId::new(UNKNOWN).expect("letters only")
}

/// One window of one job on one node, as models see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// Its beginning; with the node it tells a doubled window.
    pub from_us: Timestamp,
    /// The node.
    pub node: NodeId,
    /// GPUs on all nodes.
    pub gpus: u32,
    /// Nodes spread over.
    pub nodes: u32,
    /// Global batch size.
    #[serde(default)]
    pub global_batch: Option<u32>,
    /// The cap, watts.
    pub cap_w: Option<f64>,
    /// The locked highest clock, MHz.
    pub clock_mhz_max: Option<f64>,
    /// Mean clock, MHz.
    pub clock_mhz_mean: Option<f64>,
    /// Classes of the neighbours, sorted.
    pub neighbours: Vec<WorkloadId>,
    /// Steps a second.
    pub rate: Option<f64>,
    /// Its deviation, as a share.
    pub rate_sd: f64,
    /// Whether the rate was inferred, and so is a relative speed only.
    #[serde(default)]
    pub rate_inferred: bool,
    /// Mean power of one of its cards, all tenants together, watts.
    pub gpu_power_w: Option<f64>,
    /// Busy share of its cards, all tenants together, 0 to 1.
    pub busy: Option<f64>,
    /// This job's part of it, 0 to 1.
    pub busy_job: Option<f64>,
    /// Memory traffic share, all tenants together, 0 to 1.
    pub memory_busy: Option<f64>,
    /// Peak device memory of this job on one GPU, MiB.
    pub memory_mib: Option<u64>,
}

impl Observation {
    /// What `window` says. `class_of` names a neighbour's class by its job where the window does
    /// not.
    ///
    /// # Errors
    /// Where nothing in it can be used: what is wrong.
    pub fn of(
        window: &JobWindow,
        class_of: impl Fn(&wattle_common::JobId) -> Option<WorkloadId>,
    ) -> Result<Self, &'static str> {
        let seconds = window.until_us.since(window.from_us).as_secs_f64();
        if seconds <= 0.0 {
            return Err("it ends before it begins");
        }
        if id::check(&window.gpu_type).is_err() {
            return Err("its gpu kind is no name");
        }
        let (gpus, nodes) = (window.gpus_total, window.nodes_total);
        if gpus == 0 || gpus > GPUS_MAX || nodes == 0 || nodes > gpus {
            return Err("its numbers of gpus and nodes cannot be");
        }
        if window.neighbours.len() > NEIGHBOURS_MAX {
            return Err("it names more neighbours than a card can have");
        }
        let mut neighbours: Vec<WorkloadId> = window
            .neighbours
            .iter()
            .map(|n| n.workload.clone().or_else(|| class_of(&n.job)).unwrap_or_else(unknown))
            .collect();
        neighbours.sort();
        let (rate, rate_sd) = rate(window, seconds);
        let cards = window.gpus.len() as f64;
        let energy_w = window.energy_mj_gpus.map(|e| e.as_j() / seconds);
        let power_w = window.power_mw_gpus.map(wattle_common::Power::as_w).or(energy_w);
        let gpu_power_w = power_w
            .map(|w| w / cards)
            .filter(|w| w.is_finite() && *w > 1.0 && *w < CARD_POWER_W_MAX);
        if rate.is_none() && gpu_power_w.is_none() {
            return Err("it has neither a step rate nor a power");
        }
        Ok(Self {
            from_us: window.from_us,
            node: window.node.clone(),
            gpus,
            nodes,
            global_batch: window.global_batch.filter(|batch| *batch > 0),
            cap_w: window
                .cap_mw
                .map(wattle_common::Power::as_w)
                .filter(|w| *w > 1.0 && *w < CARD_POWER_W_MAX),
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
            memory_mib: window.memory_mib_max_job.filter(|m| *m > 0 && *m < 1 << 32),
        })
    }

    /// Whether the job had its cards to itself.
    #[must_use]
    pub fn alone(&self) -> bool {
        self.neighbours.is_empty()
    }

    /// Where its steps were taken.
    #[must_use]
    pub fn shape(&self) -> JobShape {
        JobShape { gpus: self.gpus, nodes: self.nodes, batch: self.global_batch }
    }

    /// How its cards were set.
    #[must_use]
    pub fn setting(&self) -> Setting {
        Setting { cap_w: self.cap_w, clock_mhz_max: self.clock_mhz_max }
    }

    /// Whether values read back from storage are such as [`Observation::of`] makes.
    #[must_use]
    pub fn is_sane(&self) -> bool {
        let inside =
            |v: Option<f64>, max: f64| v.is_none_or(|v| v.is_finite() && v >= 0.0 && v <= max);
        self.gpus > 0
            && self.gpus <= GPUS_MAX
            && self.nodes > 0
            && self.nodes <= self.gpus
            && self.neighbours.len() <= NEIGHBOURS_MAX
            && inside(self.cap_w.map(|w| w - 1.0), CARD_POWER_W_MAX)
            && inside(self.clock_mhz_max.map(|f| f - 10.0), 20_000.0)
            && inside(self.clock_mhz_mean.map(|f| f - 10.0), 20_000.0)
            && self.rate.is_none_or(|r| r.is_finite() && r > 0.0 && r <= RATE_MAX)
            && self.rate_sd.is_finite()
            && self.rate_sd >= RATE_SD_MIN
            && inside(self.gpu_power_w.map(|w| w - 1.0), CARD_POWER_W_MAX)
            && [self.busy, self.busy_job, self.memory_busy].into_iter().all(|v| inside(v, 1.0))
    }
}

/// Steps a second and their deviation as a share.
fn rate(window: &JobWindow, seconds: f64) -> (Option<f64>, f64) {
    let usable = |r: &f64| r.is_finite() && *r > 0.0 && *r < RATE_MAX;
    if let Some(rate) = window.steps_per_s.filter(usable) {
        let sd = match window.steps_per_s_error {
            // Half a 90 % interval is 1.645 deviations.
            Some(error) if error.is_finite() && error >= 0.0 => error.min(1.0) / 1.645,
            _ => RATE_SD,
        };
        return (Some(rate), sd.max(RATE_SD_MIN));
    }
    // Counting whole steps is off by up to one at either end.
    match window.steps.filter(|s| *s > 0) {
        Some(steps) => {
            let rate = steps as f64 / seconds;
            (Some(rate).filter(usable), RATE_SD.hypot(0.6 / steps as f64))
        }
        None => (None, RATE_SD),
    }
}

/// A clock in MHz; what no card runs at is no reading.
fn clock(frequency: Option<wattle_common::Frequency>) -> Option<f64> {
    frequency.map(|f| f64::from(f.as_mhz())).filter(|f| *f > 10.0 && *f < 20_000.0)
}

/// Per cent as a share of 1; what is not between 0 and 100 is no reading.
fn share(percent: Option<f64>) -> Option<f64> {
    percent.filter(|p| p.is_finite() && (0.0..=100.0).contains(p)).map(|p| p / 100.0)
}
