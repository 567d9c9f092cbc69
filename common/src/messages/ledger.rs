//! The energy ledger: measured energy of a node over an interval.
//!
//! * **Publisher:** profiler.
//! * **Listeners:** placer (budgets, energy of each job); reports (`wattle energy`, the table of
//!   `wattle up`).
//! * **How often:** once a minute, and when the profiler stops.
//! * **Delivery:** JetStream stream `ledger`, acknowledged, with (node, `from_us`) as message id.
//! * **Lost or doubled:** stored before it counts; the message id removes duplicates. Where GPUs have
//!   an energy counter, the next entry covers the time without a profiler.

use serde::{Deserialize, Serialize};

use crate::id::{JobId, NodeId};
use crate::time::Timestamp;
use crate::units::Energy;

/// Energy of a node over an interval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerEntry {
    /// The node.
    pub node: NodeId,
    /// Start of the interval.
    pub from_us: Timestamp,
    /// End of the interval.
    pub until_us: Timestamp,
    /// Energy of each GPU in index order; absent: no reading.
    pub energy_mj_gpus: Vec<Option<Energy>>,
    /// Energy of the rest of the node, from the configured constant host power.
    pub energy_mj_host: Energy,
    /// GPU energy attributed to jobs; the energy of idle GPUs is not attributed.
    pub jobs: Vec<JobEnergy>,
}

/// Energy attributed to one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEnergy {
    /// The job.
    pub job: JobId,
    /// Its energy.
    pub energy_mj: Energy,
    /// The user who submitted it, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}
