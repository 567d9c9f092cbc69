//! The jobs and nodes of one run, from which its totals can be computed.
//!
//! Energy of a run = energy above idle of its jobs + energy of its nodes without jobs:
//!
//! ```text
//! energy_kwh = sum over jobs of energy_kwh
//!            + sum over nodes of (awake_s * awake_w + asleep_s * asleep_w) / 3.6e6
//! ```
//!
//! The power above idle of a GPU with several jobs is divided equally among them.

use wattle_common::{JobId, NodeId};

/// The jobs and nodes of a run, in the order of the scenario and of the cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Detail {
    /// The jobs.
    pub jobs: Vec<JobOutcome>,
    /// The nodes.
    pub nodes: Vec<NodeOutcome>,
}

/// A job of a run. Times are in seconds from the start of the trace.
#[derive(Clone, Debug, PartialEq)]
pub struct JobOutcome {
    /// Its id.
    pub id: JobId,
    /// Number of GPUs of its last placement; 0 without one.
    pub gpus: u32,
    /// Submission, s.
    pub submit_s: f64,
    /// First start, s.
    pub start_s: Option<f64>,
    /// Completion, s.
    pub end_s: Option<f64>,
    /// Time on GPUs, restarts included, s.
    pub on_gpus_s: f64,
    /// Energy of its GPUs above idle power, kWh.
    pub energy_kwh: f64,
}

impl JobOutcome {
    /// From submission to completion, s.
    #[must_use]
    pub fn completion_s(&self) -> Option<f64> {
        self.end_s.map(|end_s| end_s - self.submit_s)
    }
}

/// A node of a run, from the first submission to the last completion.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeOutcome {
    /// Its id.
    pub id: NodeId,
    /// Its GPU type.
    pub gpu_type: String,
    /// Number of its GPUs.
    pub gpus: u32,
    /// Time awake, s.
    pub awake_s: f64,
    /// Time asleep, s.
    pub asleep_s: f64,
    /// Power awake without a job, W.
    pub awake_w: f64,
    /// Power asleep, W.
    pub asleep_w: f64,
}

impl NodeOutcome {
    /// Energy without jobs, kWh.
    #[must_use]
    pub fn energy_kwh(&self) -> f64 {
        (self.awake_s * self.awake_w + self.asleep_s * self.asleep_w) / 3.6e6
    }
}
