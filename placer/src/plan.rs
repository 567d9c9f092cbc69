//! What a policy decides.
//!
//! A plan is complete: whoever carries it out makes no choice of its own. It is a list in the order
//! in which it must be applied.

use crate::reason::Because;
use crate::set::{GpuSet, JobKey};

/// What is to be done, in this order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The decisions; none where everything is as it should be.
    pub decisions: Vec<Decision>,
    /// The first job that waits although its turn has come, and why.
    pub blocked: Option<Blocked>,
}

impl Plan {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.decisions.is_empty()
    }
}

/// A job that waits, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Blocked {
    /// The job.
    pub job: JobKey,
    /// Why.
    pub because: Because,
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
        /// Watch it and its neighbours for an epoch each; then settle or undo.
        observe: bool,
        /// Why.
        because: Because,
    },
    /// Take an observed job off its GPUs again: checkpoint, stop, back to its place in the queue.
    Undo {
        /// The job.
        job: JobKey,
        /// Why.
        because: Because,
    },
    /// The observed placement stands.
    Settle {
        /// The job.
        job: JobKey,
        /// Why.
        because: Because,
    },
    /// The job can never be placed here: no cluster of this inventory gives what it asks for.
    Reject {
        /// The job; it is queued.
        job: JobKey,
        /// Why.
        because: Because,
    },
}

impl Decision {
    /// The job it is about.
    #[must_use]
    pub const fn job(&self) -> JobKey {
        match self {
            Self::Start { job, .. }
            | Self::Undo { job, .. }
            | Self::Settle { job, .. }
            | Self::Reject { job, .. } => *job,
        }
    }
    /// Why.
    #[must_use]
    pub const fn because(&self) -> &Because {
        match self {
            Self::Start { because, .. }
            | Self::Undo { because, .. }
            | Self::Settle { because, .. }
            | Self::Reject { because, .. } => because,
        }
    }
}
