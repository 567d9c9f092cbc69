//! What the cluster may spend, what a person asks of it, and what has been spent.
//!
//! * **Publisher:** `wattle budget set`, any NATS client ([`SetBudget`]); placer, alone
//!   ([`BudgetRecord`], [`BudgetStatus`]).
//! * **Listeners:** placer, through the NATS service API; `wattle budget show`; the placer itself
//!   when it restarts.
//! * **How often:** a budget when it is set; the status with each entry of the energy ledger and when
//!   the price moves.
//! * **Delivery:** request and reply ([`BudgetReply`]), which comes only after the budget is stored;
//!   key-value bucket `budget`, keys `set` and `status`. The last value stands.
//! * **Lost or doubled:** ask again: the same budget set twice goes on with its window. Status is
//!   whole, not a difference; what it counts of the ledger it names, so no entry counts twice.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::budget::Budget;
use crate::id::NodeId;
use crate::time::Timestamp;
use crate::units::{Carbon, CarbonIntensity, Energy, Power};

/// Most steps of a series: a year of quarter hours, and what a message can carry.
pub const STEPS_MAX: usize = 36_000;

/// Keep to this budget from now on; one without any limit ends the one that stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetBudget {
    /// What may be spent.
    pub budget: Budget,
    /// The grid's carbon intensity; absent: the one that stands, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intensity: Option<Intensities>,
}

/// Carbon intensity over time; each value holds until the next, and after the end it begins anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intensities {
    /// What it is called.
    pub name: String,
    /// When the first value holds.
    pub starts_at_us: Timestamp,
    /// Seconds from there, ascending from 0, and the intensity from then on.
    pub steps: Vec<(u64, CarbonIntensity)>,
    /// After how many seconds it begins anew.
    pub period_s: u64,
}

/// The placer's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "answer")]
pub enum BudgetReply {
    /// It stands, and is stored.
    Stored {
        /// The budget.
        budget: Budget,
    },
    /// Nothing has changed.
    Refused {
        /// What is wrong and what to do about it.
        error: String,
    },
}

/// The budget that stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetRecord {
    /// What may be spent.
    pub budget: Budget,
    /// Since when: its first window began then.
    pub since_us: Timestamp,
    /// The grid's carbon intensity, where it was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intensity: Option<Intensities>,
}

/// What has been spent, and what is done about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BudgetStatus {
    /// When this was written.
    pub at_us: Timestamp,
    /// When the window that runs began.
    pub window_from_us: Timestamp,
    /// When it ends.
    pub window_until_us: Timestamp,
    /// Spent in it, from the energy ledger.
    pub energy_mj: Energy,
    /// Emitted in it; absent where no intensity is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carbon_ug: Option<Carbon>,
    /// What the window before spent beyond the budget, as a share of it; absent: there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overrun_before: Option<f64>,
    /// The price of energy, from 0 (free) to 1 (everybody is at the thriftiest).
    pub price: f64,
    /// The same in the policy's own unit.
    pub price_of_policy: f64,
    /// What is expected to be drawn, whole nodes.
    pub power_mw_expected: Power,
    /// What is drawn at least with no job anywhere, nodes asleep that may sleep; absent: not known yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_mw_empty: Option<Power>,
    /// What the budget of a window feeds in the mean; absent: nothing is limited over a window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_mw_fed: Option<Power>,
    /// The intensity now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intensity_mg_per_kwh: Option<CarbonIntensity>,
    /// Until when each node's ledger is counted.
    pub counted_until_us: BTreeMap<NodeId, Timestamp>,
}
