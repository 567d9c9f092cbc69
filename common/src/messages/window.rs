//! A closed window: measurements of one job on one node between two instants, in one configuration.
//!
//! A change of cap, clock, co-tenants or placement closes the window.
//!
//! * **Publisher:** profiler.
//! * **Listeners:** predictors, registry.
//! * **How often:** once a minute for each running job, more often in its early epochs.
//! * **Delivery:** JetStream stream `windows`, acknowledged.
//! * **Lost or doubled:** a lost window reduces accuracy; (job, node, `from_us`) identifies a doubled
//!   one.

use serde::{Deserialize, Serialize};

use crate::id::{AdmissionId, GpuIndex, JobId, NodeId, WorkloadId};
use crate::time::Timestamp;
use crate::units::{Energy, Frequency, Power};

/// Measurements of one job on one node between two instants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobWindow {
    /// The job.
    pub job: JobId,
    /// The submission that it is of; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<AdmissionId>,
    /// Its declared workload.
    #[serde(default)]
    pub workload: Option<WorkloadId>,
    /// The node.
    pub node: NodeId,
    /// GPU type of the node.
    pub gpu_type: String,
    /// Number of this start of the job, from 1.
    pub attempt: u32,
    /// Start of the window.
    pub from_us: Timestamp,
    /// End of the window.
    pub until_us: Timestamp,
    /// The job's GPUs on this node.
    pub gpus: Vec<GpuIndex>,
    /// The job's GPUs on all nodes.
    pub gpus_total: u32,
    /// Number of the job's nodes.
    pub nodes_total: u32,
    /// Global batch size (samples in one step over all its GPUs), if reported.
    #[serde(default)]
    pub global_batch: Option<u32>,
    /// The cap of its GPUs, if known and equal on all.
    #[serde(default)]
    pub cap_mw: Option<Power>,
    /// Mean SM clock.
    #[serde(default)]
    pub clock_mhz_mean: Option<Frequency>,
    /// Upper limit of the locked SM clock; absent: not locked.
    #[serde(default)]
    pub clock_mhz_max: Option<Frequency>,
    /// Its co-tenants, by job id.
    #[serde(default)]
    pub neighbours: Vec<Neighbour>,
    /// Steps in the window, if the job reports them.
    #[serde(default)]
    pub steps: Option<u64>,
    /// Steps per second, from the first to the last report inside the window.
    #[serde(default)]
    pub steps_per_s: Option<f64>,
    /// Relative error of that: half the width of its 90 % interval, as a share of it.
    #[serde(default)]
    pub steps_per_s_error: Option<f64>,
    /// Whether the step rate was inferred from the period of the GPUs' readings, because the job
    /// reports none. It is then a relative speed: a period may hold several steps or part of one.
    #[serde(default)]
    pub steps_inferred: bool,
    /// Steps since the job's beginning, at the window's end.
    #[serde(default)]
    pub step: Option<u64>,
    /// Completed epochs at the window's end.
    #[serde(default)]
    pub epoch: Option<u32>,
    /// Whether the job is in its first epochs or has its first windows on this placement.
    pub early: bool,
    /// Mean power of its GPUs on this node, summed over them, all tenants together.
    #[serde(default)]
    pub power_mw_gpus: Option<Power>,
    /// The part attributed to this job: power above idle by share of busy time, idle power evenly
    /// among the tenants.
    #[serde(default)]
    pub power_mw_job: Option<Power>,
    /// Energy of its GPUs on this node, all tenants together.
    #[serde(default)]
    pub energy_mj_gpus: Option<Energy>,
    /// Mean busy share of its GPUs on this node, all tenants together, per cent.
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
    /// Number of sampling instants.
    pub samples: u32,
}

/// A co-tenant of the window's job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Neighbour {
    /// The job.
    pub job: JobId,
    /// Its declared workload.
    #[serde(default)]
    pub workload: Option<WorkloadId>,
}
