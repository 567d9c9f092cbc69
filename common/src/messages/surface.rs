//! What a predictor says of a job: its speed and power over the configurations it could run in.
//!
//! The placer sees surfaces, never coefficients, so any predictor in any language can serve.
//!
//! It crosses the bus twice. Every predictor proposes its own:
//!
//! * **Publisher:** each predictor.
//! * **Listeners:** registry.
//! * **How often:** after each window that changes it, at most once in ten seconds for each job; all
//!   of them when the key `champion` of the bucket `predictors` is written.
//! * **Delivery:** core subject `surface.proposed.<predictor>.<job>`.
//! * **Lost or doubled:** whole, not a difference; the next says more.
//!
//! What the champion proposes is passed on to the placer:
//!
//! * **Publisher:** registry.
//! * **Listeners:** placer, `wattle explain`.
//! * **How often:** as the champion proposes; a prior where it stays silent.
//! * **Delivery:** key-value bucket `surfaces`, key = job. The last value stands.
//! * **Lost or doubled:** without one, the placer treats the job as unknown: it may run alone, and
//!   is not given neighbours.

use serde::{Deserialize, Serialize};

use crate::id::{JobId, PredictorId, WorkloadId};
use crate::time::Timestamp;
use crate::units::{Frequency, Power};

/// Most workload classes a surface's neighbours' axis may name.
pub const NEIGHBOUR_CLASSES_MAX: usize = 16;

/// Kinds of GPU that one message speaks of at most.
pub const KINDS_MAX: usize = 8;

/// Points of all kinds together that one message has at most where it speaks of several: of some 300
/// bytes each they stay below a server's limit of 1 MiB.
pub const POINTS_MAX: usize = 8 * 256;

/// What a predictor says of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Surface {
    /// The job.
    pub job: JobId,
    /// Who says so.
    pub predictor: PredictorId,
    /// When.
    pub at_us: Timestamp,
    /// The GPUs' kind it holds for.
    pub gpu_type: String,
    /// Windows of this job it rests on; 0 means it is a prior.
    pub windows: u32,
    /// What it rests on, for people: `12 windows of this job`, `prior: nothing like it was seen`.
    #[serde(default)]
    pub basis: Option<String>,
    /// Which class of workload the job is taken for, as others' neighbours' axis names it.
    #[serde(default)]
    pub class: Option<WorkloadId>,
    /// Busy share alone, per cent.
    #[serde(default)]
    pub utilization_gpu_percent: Option<f64>,
    /// Memory traffic share alone, per cent.
    #[serde(default)]
    pub utilization_memory_percent: Option<f64>,
    /// Peak device memory on one GPU, MiB.
    #[serde(default)]
    pub memory_mib_max: Option<u64>,
    /// The configurations, in no order.
    pub points: Vec<SurfacePoint>,
    /// What should be looked at next, if the placer will.
    #[serde(default)]
    pub probe: Option<Probe>,
    /// The same of the job on other kinds of GPU, where it could be given several: a whole surface
    /// for each, of the same job and predictor, with nothing in this field.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<Self>,
}

impl Surface {
    /// What it says of each kind of GPU, apart: first of its own.
    pub fn by_kind(mut self) -> impl Iterator<Item = Self> {
        let elsewhere = std::mem::take(&mut self.elsewhere);
        std::iter::once(self).chain(elsewhere)
    }
}

/// A proposal to run a job in another setting for a little while, because that would teach.
///
/// The placer may refuse it: it knows what else the cards are for. It is a proposal as long as it
/// stands on the surface; one that was followed, or no longer pays, is gone from the next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// GPUs on all nodes.
    pub gpus: u32,
    /// Nodes spread over.
    pub nodes: u32,
    /// The cap to look at; absent: the one that stands.
    #[serde(default)]
    pub cap_mw: Option<Power>,
    /// The locked highest clock to look at; absent: the one that stands, or none.
    #[serde(default)]
    pub clock_mhz_max: Option<Frequency>,
    /// How long to stay there, milliseconds of the system's time.
    pub duration_ms: u64,
    /// What it is expected to teach: the fall of the mean interval width over the caps (the clocks, the
    /// sizes) of the surface, as a share.
    pub gain: f64,
    /// Work lost to it (time not gained while there), as a share of its duration; negative: won.
    pub cost_time: f64,
    /// Why, for people.
    #[serde(default)]
    pub reason: Option<String>,
}

/// One configuration and what is expected of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SurfacePoint {
    /// GPUs on all nodes.
    pub gpus: u32,
    /// Nodes spread over.
    pub nodes: u32,
    /// The cap; absent: the card's default.
    #[serde(default)]
    pub cap_mw: Option<Power>,
    /// The locked highest clock; absent: not locked.
    #[serde(default)]
    pub clock_mhz_max: Option<Frequency>,
    /// Global batch size; absent: the job's own, as last seen.
    #[serde(default)]
    pub global_batch: Option<u32>,
    /// Classes of the jobs it shares its GPUs with, sorted; empty: alone. An unknown one is
    /// `unknown`.
    #[serde(default)]
    pub neighbours: Vec<WorkloadId>,
    /// Steps a second; absent where only the relative speed is known.
    #[serde(default)]
    pub steps_per_s: Option<Estimate>,
    /// Speed relative to this job alone on the same GPUs at default cap and clock.
    pub relative_speed: Estimate,
    /// Power of one of its cards, all tenants together, watts.
    pub card_power_w: Estimate,
}

/// An expected value with its 90 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Expected value.
    pub mean: f64,
    /// Lower end of the 90 % interval.
    pub low: f64,
    /// Upper end of the 90 % interval.
    pub high: f64,
}
