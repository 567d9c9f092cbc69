//! Plans: the decisions of a planning round, in the order in which they must be applied.
//!
//! A plan is complete. Applying it requires no further decision.

mod apply;
pub mod capabilities;
pub mod check;
pub(crate) mod check_power;
mod check_site;
pub mod input;
pub mod reason;
pub mod violation_text;

use std::sync::Arc;

use wattle_common::Timestamp;
use wattle_common::job::GpuSetting;

use crate::plan::input::PolicyCache;
use crate::plan::reason::Reason;
use crate::state::gpu_set::{GpuSet, JobKey, NodeKey};

/// The decisions of a planning round, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The decisions about jobs; empty if nothing changes.
    pub decisions: Vec<Decision>,
    /// The decisions about nodes.
    pub nodes: Vec<NodeDecision>,
    /// The starts that wait for nodes to wake, in the order in which the power limits admit them. Every node that this
    /// plan wakes is in one of them. They are planned again once the nodes are awake.
    pub awaited: Vec<AwaitedStart>,
    /// The latest time of the next planning round; absent: at the next event.
    pub again_at: Option<Timestamp>,
    /// The first queued job that could not be placed.
    pub blocked: Option<Blocked>,
    /// The energy price at which it was made.
    pub price: f64,
    /// The price of power at which it fills the power limit, seconds of completion time per joule; 0: the limit does
    /// not bind, or the policy has no price of power.
    pub power_price: f64,
    /// Whether a power limit binds: it has a price, holds jobs back or lowers a setting.
    pub limit_binds: bool,
    /// The policy's cache for its next round, valid once this plan is applied.
    pub cache: Option<PolicyCache>,
}

impl Plan {
    /// Whether the plan has no decisions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.decisions.is_empty() && self.nodes.is_empty()
    }

    /// Wakes no node that no awaited start uses.
    pub(crate) fn drop_unused_wakes(&mut self) {
        let awaited = &self.awaited;
        let is_used = |node: NodeKey| awaited.iter().any(|start| start.uses(node));
        self.nodes.retain(|decision| !decision.is_wake() || is_used(decision.node()));
    }
}

/// A start that waits for one of its nodes to wake.
#[derive(Clone, Debug, PartialEq)]
pub struct AwaitedStart {
    /// The job; it is queued.
    pub job: JobKey,
    /// GPUs as many as it gets, on the nodes on which it is expected to start.
    pub on: GpuSet,
    /// The cap and clock of its GPUs.
    pub setting: GpuSetting,
}

impl AwaitedStart {
    /// Whether it has GPUs on this node.
    #[must_use]
    pub fn uses(&self, node: NodeKey) -> bool {
        self.on.by_node.iter().any(|here| here.node == node)
    }
}

/// A job that could not be placed, and the reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Blocked {
    /// The job.
    pub job: JobKey,
    /// The reason.
    pub reason: Reason,
}

/// Another cap or clock than a policy planned.
#[derive(Clone, Debug, PartialEq)]
pub struct SettingChange {
    /// The setting of the job's start, of its change, or its present one.
    pub from: GpuSetting,
    /// The setting in its place.
    pub to: GpuSetting,
    /// The reason.
    pub reason: Reason,
}

/// A decision about a node.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeDecision {
    /// The node goes to sleep. It has no jobs.
    Sleep {
        /// The node.
        node: NodeKey,
        /// The reason.
        reason: Reason,
    },
    /// The node wakes.
    Wake {
        /// The node.
        node: NodeKey,
        /// The reason.
        reason: Reason,
    },
}

impl NodeDecision {
    /// The node.
    #[must_use]
    pub const fn node(&self) -> NodeKey {
        match self {
            Self::Sleep { node, .. } | Self::Wake { node, .. } => *node,
        }
    }

    /// Whether it wakes the node.
    #[must_use]
    pub const fn is_wake(&self) -> bool {
        matches!(self, Self::Wake { .. })
    }
}

/// A decision about a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Start the job on these GPUs.
    Start {
        /// The job; it is queued.
        job: JobKey,
        /// Its GPUs.
        on: GpuSet,
        /// The cap and clock of its GPUs.
        setting: GpuSetting,
        /// Observe it and its co-tenants for an epoch each; then confirm or undo.
        observe: bool,
        /// The reason.
        reason: Reason,
    },
    /// Preempt a running job: it checkpoints, stops and returns to its position in the queue.
    Stop {
        /// The job.
        job: JobKey,
        /// The number of GPUs on which it continues at once; `None`: it is queued.
        next_gpus: Option<u32>,
        /// The type of those GPUs; `None`: any.
        next_gpu_type: Option<Arc<str>>,
        /// The reason.
        reason: Reason,
    },
    /// Change the cap and clock of a running job's GPUs.
    Set {
        /// The job.
        job: JobKey,
        /// The cap and clock of its GPUs.
        setting: GpuSetting,
        /// The reason.
        reason: Reason,
    },
    /// Undo an observed placement: the job checkpoints, stops and returns to its position in the queue.
    Undo {
        /// The job.
        job: JobKey,
        /// The reason.
        reason: Reason,
    },
    /// Keep an observed placement.
    Confirm {
        /// The job.
        job: JobKey,
        /// The reason.
        reason: Reason,
    },
    /// Reject the job: the cluster's inventory can never satisfy its request.
    Reject {
        /// The job; it is queued.
        job: JobKey,
        /// The reason.
        reason: Reason,
    },
}

impl Decision {
    /// Starts a job at the site's cap and clock, without observation.
    #[must_use]
    pub const fn start(job: JobKey, on: GpuSet, reason: Reason) -> Self {
        Self::Start { job, on, setting: GpuSetting::DEFAULT, observe: false, reason }
    }
    /// The job.
    #[must_use]
    pub const fn job(&self) -> JobKey {
        match self {
            Self::Start { job, .. }
            | Self::Stop { job, .. }
            | Self::Set { job, .. }
            | Self::Undo { job, .. }
            | Self::Confirm { job, .. }
            | Self::Reject { job, .. } => *job,
        }
    }
    /// The reason.
    #[must_use]
    pub const fn reason(&self) -> &Reason {
        match self {
            Self::Start { reason, .. }
            | Self::Stop { reason, .. }
            | Self::Set { reason, .. }
            | Self::Undo { reason, .. }
            | Self::Confirm { reason, .. }
            | Self::Reject { reason, .. } => reason,
        }
    }
}
