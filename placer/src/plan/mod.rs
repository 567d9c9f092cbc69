//! What a policy decides.
//!
//! A plan is complete: whoever carries it out makes no choice of its own. It is a list in the order
//! in which it must be applied.

mod apply;
pub mod check;
pub mod input;
pub mod reason;

use std::sync::Arc;

use wattle_common::Timestamp;
use wattle_common::job::GpuSetting;

use crate::plan::input::PolicyCache;
use crate::plan::reason::Reason;
use crate::state::gpu_set::{GpuSet, JobKey, NodeKey};

/// What is to be done, in this order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The decisions; none where everything is as it should be.
    pub decisions: Vec<Decision>,
    /// What nodes are to do.
    pub nodes: Vec<NodeDecision>,
    /// When to be asked again at the latest, if nothing happens before.
    pub again_at: Option<Timestamp>,
    /// The first job that waits although its turn has come, and why.
    pub blocked: Option<Blocked>,
    /// How many jobs wait for a cleaner grid, as their owners let them.
    pub deferred: u32,
    /// What the policy keeps for its next round once this plan is applied.
    pub cache: Option<PolicyCache>,
}

impl Plan {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.decisions.is_empty() && self.nodes.is_empty()
    }
}

/// A job that waits, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Blocked {
    /// The job.
    pub job: JobKey,
    /// Why.
    pub reason: Reason,
}

/// What a node is to do.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeDecision {
    /// Go to sleep: nobody is on it.
    Sleep {
        /// The node.
        node: NodeKey,
        /// Why.
        reason: Reason,
    },
    /// Wake up.
    Wake {
        /// The node.
        node: NodeKey,
        /// Why.
        reason: Reason,
    },
}

impl NodeDecision {
    /// The node it is about.
    #[must_use]
    pub const fn node(&self) -> NodeKey {
        match self {
            Self::Sleep { node, .. } | Self::Wake { node, .. } => *node,
        }
    }
}

/// One decision.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Start the job on these GPUs.
    Start {
        /// The job; it is queued.
        job: JobKey,
        /// Its GPUs.
        on: GpuSet,
        /// What they are set to.
        setting: GpuSetting,
        /// Watch it and its neighbours for an epoch each; then settle or undo.
        observe: bool,
        /// Why.
        reason: Reason,
    },
    /// Take a running job off its GPUs: checkpoint, stop, back to its place in the queue, from where
    /// it goes on with nothing lost.
    Stop {
        /// The job.
        job: JobKey,
        /// On how many GPUs it is meant to go on at once; `None`: it is to wait.
        next_gpus: Option<u32>,
        /// Of which kind those are; `None`: whichever.
        next_gpu_type: Option<Arc<str>>,
        /// Why.
        reason: Reason,
    },
    /// Set the cards of a running job anew; it goes on running.
    Set {
        /// The job.
        job: JobKey,
        /// What they are set to.
        setting: GpuSetting,
        /// Why.
        reason: Reason,
    },
    /// Take an observed job off its GPUs again: checkpoint, stop, back to its place in the queue.
    Undo {
        /// The job.
        job: JobKey,
        /// Why.
        reason: Reason,
    },
    /// The observed placement stands.
    Settle {
        /// The job.
        job: JobKey,
        /// Why.
        reason: Reason,
    },
    /// The job can never be placed here: no cluster of this inventory gives what it asks for.
    Reject {
        /// The job; it is queued.
        job: JobKey,
        /// Why.
        reason: Reason,
    },
}

impl Decision {
    /// Starts a job on cards as the site sets them, with nothing to observe.
    #[must_use]
    pub const fn start(job: JobKey, on: GpuSet, reason: Reason) -> Self {
        Self::Start { job, on, setting: GpuSetting::DEFAULT, observe: false, reason }
    }
    /// The job it is about.
    #[must_use]
    pub const fn job(&self) -> JobKey {
        match self {
            Self::Start { job, .. }
            | Self::Stop { job, .. }
            | Self::Set { job, .. }
            | Self::Undo { job, .. }
            | Self::Settle { job, .. }
            | Self::Reject { job, .. } => *job,
        }
    }
    /// Why.
    #[must_use]
    pub const fn reason(&self) -> &Reason {
        match self {
            Self::Start { reason, .. }
            | Self::Stop { reason, .. }
            | Self::Set { reason, .. }
            | Self::Undo { reason, .. }
            | Self::Settle { reason, .. }
            | Self::Reject { reason, .. } => reason,
        }
    }
}
