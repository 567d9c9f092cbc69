//! The lease of a service: of several processes with one name, the holder is active and the others are on
//! standby.
//!
//! * **Publisher:** the processes of the service; each write names the revision it replaces.
//! * **Listeners:** the other processes of the service, `wattle services`.
//! * **How often:** at every third of the lease.
//! * **Delivery:** key-value bucket `leases`, key = service; the last value of a key is current.
//! * **Lost or doubled:** a write that was not stored is repeated; a process that cannot renew its lease
//!   stops working at the end of it.
//!
//! [`crate::lease`] has the rules. No time in the value decides: an observer measures with its own clock
//! how long the value's revision has not changed.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// The value of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceLease {
    /// The process that holds it or held it last.
    pub holder: LeaseHolder,
    /// Its length, wall time, milliseconds.
    pub length_ms: u64,
    /// When the holder acquired it, by the holder's clock; for people.
    pub since_us: Timestamp,
    /// Whether the holder has released it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub released: bool,
}

/// A process that competes for a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseHolder {
    /// Host, process and start: unique.
    pub instance: String,
    /// The id of the host's last boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
    /// The host's process namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_namespace: Option<String>,
    /// The process, in this namespace.
    pub pid: u32,
}
