//! Ids from text.

use wattle_common::id::{JobId, NodeId, PredictorId, WorkloadId};

/// A job's id.
///
/// # Panics
/// If `text` is not an id, as for every function of this crate that takes an id as text.
#[must_use]
pub fn job(text: &str) -> JobId {
    JobId::new(text).expect("a valid job id")
}

/// A node's id.
#[must_use]
pub fn node(text: &str) -> NodeId {
    NodeId::new(text).expect("a valid node id")
}

/// A workload's id.
#[must_use]
pub fn workload(text: &str) -> WorkloadId {
    WorkloadId::new(text).expect("a valid workload id")
}

/// A predictor's id.
#[must_use]
pub fn predictor(text: &str) -> PredictorId {
    PredictorId::new(text).expect("a valid predictor id")
}
