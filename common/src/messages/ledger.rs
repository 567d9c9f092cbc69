//! What a node really spent between two instants.
//!
//! * **Publisher:** profiler.
//! * **Listeners:** placer, where a budget stands; reports (the table of `wattle up`).
//! * **How often:** once a minute, and at the profiler's stop.
//! * **Delivery:** JetStream stream `ledger`, acknowledged, with (node, `from_us`) as message id.
//! * **Lost or doubled:** stored before it counts; the id keeps a doubled one out. What was spent
//!   while no profiler ran is in the next entry where the cards have an energy counter.

use serde::{Deserialize, Serialize};

use crate::id::{JobId, NodeId};
use crate::time::Timestamp;
use crate::units::Energy;

/// What a node spent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerEntry {
    /// The node.
    pub node: NodeId,
    /// Beginning of the interval.
    pub from_us: Timestamp,
    /// End of the interval.
    pub until_us: Timestamp,
    /// Energy of each GPU in the order of their indices; absent where a card gave no reading.
    pub energy_mj_gpus: Vec<Option<Energy>>,
    /// Energy of the rest of the node, from the constant host power in the configuration.
    pub energy_mj_host: Energy,
    /// The GPUs' energy as attributed to jobs; what idle cards spent is not in it.
    pub jobs: Vec<JobEnergy>,
}

/// A job's part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEnergy {
    /// The job.
    pub job: JobId,
    /// Energy attributed to it.
    pub energy_mj: Energy,
}
