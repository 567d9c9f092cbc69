//! The feeders with their limits, and what the plan in force draws on each.
//!
//! * **Publisher:** the active placer, if its configuration has feeders.
//! * **Listeners:** `wattle nodes --power`, the web page.
//! * **How often:** after each planning round that changes it, and at least once per minute.
//! * **Delivery:** key-value bucket `budget`, key `feeders`; the last value is current.
//! * **Lost or doubled:** the status is complete; the next one replaces it.
//!
//! Measured power is not part of it: a listener sums the readings of the nodes by their feeds
//! ([`crate::feeders::FeederTree`]).

use serde::{Deserialize, Serialize};

use crate::feeders::{Connection, Feeder};
use crate::id::FeederId;
use crate::messages::budget::PowerMargin;
use crate::time::Timestamp;
use crate::units::Power;

/// The feeders, and how the nodes are connected to them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeedersStatus {
    /// When this was written.
    pub at_us: Timestamp,
    /// The feeders, in the order of the configuration.
    pub feeders: Vec<FeederStatus>,
    /// The feeds of the nodes.
    pub connections: Vec<Connection>,
    /// The correction of predicted power by measured power; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_margin: Option<PowerMargin>,
}

/// A feeder and what the plan in force draws on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeederStatus {
    /// Its name, place and limit.
    pub feeder: Feeder,
    /// Expected power with every feeder in operation, static load included. A silent node counts with its caps.
    pub power_mw_expected: Power,
    /// The highest expected power with every feeder in operation or any single one lost.
    pub power_mw_worst: Power,
    /// The feeder whose loss gives the highest power; absent: no loss raises it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<FeederId>,
}
