//! A closed window: how one job ran on one node between two instants, in one configuration.
//!
//! A window never spans a change of cap, clock, neighbours or placement: a change closes it.
//!
//! * **Publisher:** profiler.
//! * **Listeners:** predictor.
//! * **How often:** once a minute for each running job, more often in its early epochs.
//! * **Delivery:** JetStream stream `windows`, acknowledged.
//! * **Lost or doubled:** a lost one costs accuracy only; (job, node, `from_us`) recognises a
//!   doubled one.

use serde::{Deserialize, Serialize};

use crate::id::{GpuIndex, JobId, NodeId, WorkloadId};
use crate::time::Timestamp;
use crate::units::{Energy, Frequency, Power};

/// How one job ran on one node between two instants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobWindow {
    /// The job.
    pub job: JobId,
    /// Its declared workload.
    #[serde(default)]
    pub workload: Option<WorkloadId>,
    /// The node this was seen on.
    pub node: NodeId,
    /// The GPUs' kind.
    pub gpu_type: String,
    /// Which start of the job.
    pub attempt: u32,
    /// Its beginning.
    pub from_us: Timestamp,
    /// Its end.
    pub until_us: Timestamp,
    /// The job's GPUs on this node.
    pub gpus: Vec<GpuIndex>,
    /// The job's GPUs on all nodes.
    pub gpus_total: u32,
    /// Nodes it is spread over.
    pub nodes_total: u32,
    /// Samples in one step over all its GPUs (global batch size), where the job reports it.
    #[serde(default)]
    pub global_batch: Option<u32>,
    /// The cap on its GPUs, where it is known and equal on all.
    #[serde(default)]
    pub cap_mw: Option<Power>,
    /// Mean SM clock.
    #[serde(default)]
    pub clock_mhz_mean: Option<Frequency>,
    /// The locked highest clock, if one was.
    #[serde(default)]
    pub clock_mhz_max: Option<Frequency>,
    /// Who else was on its GPUs, by job id.
    #[serde(default)]
    pub neighbours: Vec<Neighbour>,
    /// Steps done in the window, where the job reports them.
    #[serde(default)]
    pub steps: Option<u64>,
    /// Steps a second, from the first to the last report inside the window.
    #[serde(default)]
    pub steps_per_s: Option<f64>,
    /// How sure that is: half the width of its 90 % interval, as a share of it.
    #[serde(default)]
    pub steps_per_s_error: Option<f64>,
    /// Whether the step rate was inferred from the cards' rhythm, because the job reports none: it
    /// is a relative speed then, since a period may hold several steps or a part of one.
    #[serde(default)]
    pub steps_inferred: bool,
    /// Steps done since the job's beginning, at the window's end.
    #[serde(default)]
    pub step: Option<u64>,
    /// Epochs completed at the window's end.
    #[serde(default)]
    pub epoch: Option<u32>,
    /// Whether the job's profile is not settled yet.
    pub early: bool,
    /// Mean power of its GPUs here, summed over them, all tenants together.
    #[serde(default)]
    pub power_mw_cards: Option<Power>,
    /// The part of it attributed to this job: what is above idle by share of busy time, idle split
    /// evenly among the tenants.
    #[serde(default)]
    pub power_mw_job: Option<Power>,
    /// Energy of its GPUs here, all tenants together.
    #[serde(default)]
    pub energy_mj_cards: Option<Energy>,
    /// Mean busy share of its GPUs here, all tenants together, per cent.
    #[serde(default)]
    pub utilization_gpu_percent: Option<f64>,
    /// This job's part of it, per cent.
    #[serde(default)]
    pub utilization_gpu_percent_job: Option<f64>,
    /// Mean memory traffic share, per cent.
    #[serde(default)]
    pub utilization_memory_percent: Option<f64>,
    /// Peak device memory of this job on one GPU, MiB.
    #[serde(default)]
    pub memory_mib_max_job: Option<u64>,
    /// Sampling instants it rests on.
    pub samples: u32,
}

/// A job that shared the window's GPUs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Neighbour {
    /// The job.
    pub job: JobId,
    /// Its declared workload.
    #[serde(default)]
    pub workload: Option<WorkloadId>,
}
