//! A plan's violations as sentences with the ids of jobs and nodes.

use std::fmt;

use crate::plan::check::Violation;
use crate::state::cluster::ClusterState;
use crate::state::gpu_set::{JobKey, NodeKey};

/// The sentences of violations, joined by semicolons.
#[must_use]
pub fn sentences(state: &ClusterState, violations: &[Violation]) -> String {
    let sentences = violations.iter().map(|violation| Sentence { state, violation }.to_string());
    sentences.collect::<Vec<_>>().join("; ")
}

/// A violation of a plan that was made for `state`.
struct Sentence<'a> {
    state: &'a ClusterState,
    violation: &'a Violation,
}

/// `job ID`, or that the state does not have the job.
struct JobName<'a>(&'a ClusterState, JobKey);

impl fmt::Display for JobName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.job(self.1) {
            Some(job) => write!(f, "job {}", job.facts.id),
            None => f.write_str("an unknown job"),
        }
    }
}

/// `node ID`, or that the state does not have the node.
struct NodeName<'a>(&'a ClusterState, NodeKey);

impl fmt::Display for NodeName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.nodes().get(self.1.index()) {
            Some(node) => write!(f, "node {}", node.facts.id),
            None => f.write_str("an unknown node"),
        }
    }
}

impl fmt::Display for Sentence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let job = |key: &JobKey| JobName(self.state, *key);
        let node = |key: &NodeKey| NodeName(self.state, *key);
        match self.violation {
            Violation::UnknownJob(key) => write!(f, "a decision concerns {}", job(key)),
            Violation::Twice(key) => write!(f, "{} has two incompatible decisions", job(key)),
            Violation::NotQueued(key) => {
                write!(f, "{} is started or rejected but not queued", job(key))
            }
            Violation::NotObserved(key) => {
                write!(f, "{} is confirmed or undone but not in a trial", job(key))
            }
            Violation::CannotStop(key) => {
                write!(f, "{} is stopped or undone but cannot checkpoint", job(key))
            }
            Violation::NotSettled(key) => {
                write!(f, "{} is moved or resized but is not settled", job(key))
            }
            Violation::NoSuchPlace(key) => write!(
                f,
                "{} is placed on no GPU, on an unknown node or GPU, or twice on a node",
                job(key)
            ),
            Violation::WrongCount { job: key, got } => {
                write!(f, "{} is placed on {got} GPUs, outside its requested range", job(key))
            }
            Violation::MixedGpuTypes(key) => {
                write!(f, "{} is placed on GPUs of several types", job(key))
            }
            Violation::WrongGpuType(key) => {
                write!(f, "{} is placed on GPUs of another type than it requests", job(key))
            }
            Violation::Unhealthy { job: key, node: on, gpu } => {
                write!(f, "{} is placed on GPU {gpu} of {}, which is unhealthy", job(key), node(on))
            }
            Violation::Exclusive { job: key, beside } => {
                write!(f, "{} shares a GPU with {}, which is not permitted", job(key), job(beside))
            }
            Violation::TooManyTenants { job: key, tenants } => {
                write!(f, "{} is placed on a GPU that would have {tenants} jobs", job(key))
            }
            Violation::MemoryExceeded { job: key, node: on, gpu } => write!(
                f,
                "{} does not fit the memory of GPU {gpu} of {} beside the other jobs, or its peak memory \
                 is unknown",
                job(key),
                node(on)
            ),
            Violation::NotRunning(key) => {
                write!(f, "{} is stopped or gets a setting but does not run", job(key))
            }
            Violation::NodeTwice(key) => {
                write!(f, "{} is unknown or has more than one decision", node(key))
            }
            Violation::NotIdle(key) => {
                write!(f, "{} is put to sleep but is in use or not awake", node(key))
            }
            Violation::NotAsleep(key) => write!(f, "{} is woken but not asleep", node(key)),
            Violation::Asleep { job: key, node: on } => {
                write!(f, "{} is placed on {}, which is not awake", job(key), node(on))
            }
            Violation::NothingToObserve(key) => {
                write!(f, "{} starts a trial without co-tenants", job(key))
            }
            Violation::PowerExceeded { bound, power_w } => {
                let bound = if bound.is_empty() { "the site" } else { bound.as_str() };
                write!(f, "the power of {bound} would be {power_w} W, above its limit")
            }
            Violation::WrongNodes(key) => write!(
                f,
                "{} is placed on another number of nodes than it requests, on different GPU indices, or \
                 outside its partition",
                job(key)
            ),
            Violation::HostExceeded { job: key, node: on } => {
                write!(f, "the CPUs or the memory of {} do not suffice for {}", node(on), job(key))
            }
            Violation::WronglyRejected(key) => {
                write!(f, "{} is rejected although the cluster may hold it", job(key))
            }
        }
    }
}
