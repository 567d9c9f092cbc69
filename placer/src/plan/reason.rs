//! The reason of a decision, as data; `Display` formats it for users ([`text`]).
//!
//! A simulation takes thousands of decisions in a tenth of a second and displays few of them, so text is
//! formatted only on request. Every variant holds the quantities that the decision was based on.

mod text;

use std::sync::Arc;
use std::time::Duration;

use wattle_common::job::GpuSetting;
use wattle_common::{JobId, Power, Timestamp};

use crate::accounts::Account;

/// Highest market price of a GPU-second, s of completion time. Above it demand exceeds supply at every
/// price.
pub(crate) const GPU_PRICE_MAX: f64 = 1e9;

/// Reason of a decision.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// Head of the queue, on the first free GPUs in node order.
    FirstFit,
    /// Head of the queue, larger than a node, on the first completely free nodes.
    WholeNodes {
        /// Number of nodes.
        nodes: u32,
    },
    /// Too few GPUs are free where the job could run.
    NoRoom {
        /// GPUs requested.
        requested: u32,
        /// GPU type requested, if any.
        gpu_type: Option<Arc<str>>,
        /// Free GPUs of the cluster that the job may use.
        free: u32,
        /// Free GPUs of the node with the most.
        free_on_one_node: u32,
        /// Why the job was not co-located either, if the policy co-locates jobs.
        not_shared: Option<NotShared>,
        /// The start that backfilled jobs do not delay; absent: none is reserved.
        reserved_at: Option<Timestamp>,
    },
    /// Started before the head of the queue.
    Backfilled {
        /// The head of the queue.
        head: JobId,
        /// The start reserved for it; absent: the healthy GPUs do not hold it.
        reserved_at: Option<Timestamp>,
        /// Whether the time limit of the started job ends before that start. Otherwise the head does not need the
        /// job's GPUs.
        ends_before: bool,
    },
    /// The job has just arrived and the predictor's surface is pending.
    SurfaceAwaited,
    /// Other jobs have precedence, or no job gets GPUs.
    Outranked {
        /// Number of jobs with precedence; 0: the policy gives GPUs to no job.
        before: u32,
    },
    /// Allocated step by step while completion time saved per energy exceeds the energy price.
    EfficientStep {
        /// GPUs allocated.
        gpus: u32,
        /// Relative completion time saved over relative energy spent, of the last step taken.
        ratio: f64,
        /// Lowest accepted ratio.
        price: f64,
    },
    /// Allocated at the market price of a GPU-second.
    Market {
        /// GPUs allocated.
        gpus: u32,
        /// Whether the job permits no other number.
        is_only_size: bool,
        /// Value of the job's progress, s of completion time per second.
        value: f64,
        /// Price, s of completion time per GPU-second; above 1e9 no price clears the market.
        gpu_price: f64,
        /// Price of power below a limit, seconds of completion time per joule; 0 where it is not scarce.
        power_price: f64,
    },
    /// The job's assigned GPUs are still occupied, asleep or fragmented.
    Awaits {
        /// GPUs assigned.
        gpus: u32,
    },
    /// Co-located because demand exceeds the number of GPUs.
    Paired {
        /// Co-tenant.
        beside: JobId,
        /// Sum of both jobs' predicted normalised speeds.
        sum: f64,
        /// Sum below which the pair is separated.
        threshold: f64,
    },
    /// The operating point at the energy price, for a policy that sets none.
    Priced {
        /// Least relative time saved over relative energy spent of a step.
        price: f64,
    },
    /// The GPU setting of a running job changes.
    Reset {
        /// New setting.
        setting: GpuSetting,
    },
    /// The policy's share of the GPUs for the job.
    Share {
        /// GPUs allocated.
        gpus: u32,
    },
    /// Not started: its account holds its quota.
    Quota {
        /// The account.
        account: Account,
        /// GPUs.
        gpus_max: u32,
    },
    /// Not started: its account holds its share of contended GPUs.
    FairShare {
        /// The account.
        account: Account,
        /// GPUs, rounded.
        share: u32,
    },
    /// Not admitted: the site's power draw with it would exceed the admission limit.
    HeldBack {
        /// Power draw with the job, complete nodes; absent: that of its GPUs is not known yet.
        drawn: Option<Power>,
        /// Admission limit.
        below: Power,
    },
    /// Not started: it cannot stop, and with it the jobs that cannot stop exceed a power limit during its run.
    LowestLimit {
        /// The least power of these jobs and of all nodes.
        drawn: Power,
        /// The power limit.
        most: Power,
        /// Start of the limit.
        at: Timestamp,
        /// The feeder that it limits; absent: the site.
        feeder: Option<Arc<str>>,
    },
    /// Preempted: the minimum power of the running jobs exceeds the rest of the budget.
    Paused {
        /// Minimum power draw, complete nodes.
        drawn: Power,
        /// Preemption limit.
        above: Power,
    },
    /// Stopped, not started or lowered: the settings with the most work per joule exceed the power limit.
    PowerLimit {
        /// Power limit.
        most: Option<Power>,
    },
    /// Stopped, not started or lowered: the settings with the most work per joule exceed the power limit of a feeder
    /// or a node.
    LocalLimit {
        /// The feeder or node.
        name: Arc<str>,
        /// The feeder whose loss gives it this much power; absent: every feeder is in operation.
        lost: Option<Arc<str>>,
        /// Its power limit.
        most: Power,
    },
    /// Lowered below the bound on its slowdown, because nothing else can give power.
    SlowdownBoundExceeded {
        /// The bound on the slowdown, thousandths.
        permille: u32,
        /// The power limit.
        most: Power,
    },
    /// Placed by the rules of the site's scheduler: CPUs, memory, the same GPU indices on each node.
    SiteRules {
        /// Number of nodes.
        nodes: u32,
    },
    /// Not started: no node with free GPUs has the CPUs and the memory, or no indices are free on all nodes.
    NoHostRoom {
        /// Number of nodes.
        nodes: u32,
        /// GPUs planned.
        gpus: u32,
    },
    /// Deferred within its slack until the grid is cleaner.
    Deferred {
        /// Carbon intensity now, g/kWh.
        now: f64,
        /// Carbon intensity it is expected to fall to, g/kWh.
        below: f64,
        /// Latest end of the deferral.
        until: Timestamp,
    },
    /// Moved, so that a block of GPUs becomes free for another job.
    Defragmented {
        /// GPUs of the block.
        gpus: u32,
    },
    /// Woken for queued jobs.
    Woken {
        /// GPUs these jobs need.
        gpus: u32,
    },
    /// The node was idle for the time after which nodes sleep.
    Unused {
        /// Idle time.
        idle: Duration,
    },
    /// No node and no set of equal nodes has enough GPUs.
    TooLarge {
        /// GPUs requested.
        requested: u32,
        /// GPUs of the cluster, of the requested type if any.
        gpus: u32,
        /// GPU type requested, if any.
        gpu_type: Option<Arc<str>>,
    },
    /// No GPU has the memory that the job declares.
    TooMuchMemory {
        /// Memory declared for each GPU, MiB.
        memory_mib: u64,
        /// GPU type requested, if any.
        gpu_type: Option<Arc<str>>,
    },
    /// No node has GPUs of the requested type.
    NoSuchGpuType {
        /// GPU type requested.
        gpu_type: Arc<str>,
        /// GPU types of the cluster.
        available: Vec<String>,
    },
    /// Co-located with the job with which the sum of normalised speeds is largest.
    Packed {
        /// Co-tenant.
        beside: JobId,
        /// Sum of both jobs' predicted normalised speeds.
        sum: f64,
        /// Sum that had to be exceeded.
        threshold: f64,
        /// Number of pairs evaluated.
        tried: u32,
    },
    /// Co-located on the GPUs with the highest utilization where all deadlines are met.
    Fullest {
        /// Co-tenants.
        beside: Vec<JobId>,
        /// Sum of their GPU utilizations, per cent.
        utilization_percent: f64,
        /// Rank of the candidate, from 1 (highest utilization).
        choice: u32,
        /// Number of candidates.
        candidates: u32,
        /// The job's predicted speed there relative to exclusive GPUs, if a deadline was checked.
        speed: Option<f64>,
    },
    /// On free GPUs, because the job could not be co-located.
    FreeGpus {
        /// Why it is not co-located.
        not_shared: NotShared,
    },
    /// The early observation has ended and all deadlines are met.
    DeadlinesHold {
        /// Jobs observed.
        tenants: u32,
        /// Duration of the observation.
        after: Duration,
    },
    /// The co-location trial has ended without evidence that time-sharing would be faster.
    PairHolds {
        /// Jobs observed.
        tenants: u32,
        /// Duration of the trial.
        after: Duration,
        /// Sum of the measured speeds, each relative to exclusive GPUs; `None` if one is unknown.
        sum: Option<f64>,
    },
    /// The co-location trial has ended and time-sharing would be faster.
    PairLoses {
        /// Duration of the trial.
        after: Duration,
        /// Sum of the measured speeds, each relative to exclusive GPUs.
        sum: f64,
    },
    /// An observed job has no co-tenant any more.
    NeighboursGone,
    /// The early observation has ended and a deadline would be missed.
    DeadlineBroken {
        /// Job with the deadline.
        job: JobId,
        /// Its deadline.
        deadline: Timestamp,
        /// Completion time at its measured speed.
        end: Timestamp,
    },
}

/// Why a job was not co-located.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotShared {
    /// The job requests exclusive GPUs.
    Exclusive,
    /// Its speed or memory is unknown.
    Unknown,
    /// The job cannot be stopped, so a co-location that breaks a deadline could not be undone.
    CannotStop,
    /// Its co-location was undone too often.
    UndoneOften,
    /// No occupied GPUs were within the thresholds and deadlines.
    NoCandidate,
}
