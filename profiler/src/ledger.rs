//! Accounts the node's energy in ledger entries, each counted exactly once.
//!
//! An entry is written to the state file before it is published, together with the GPUs' counters
//! at its end, and is removed there once the bus has acknowledged it. A service that is killed in
//! between finds the entry at its next start and publishes it again under the same message id.
//! While an entry is pending no other is closed, so that a bus that is away for a day causes one
//! long entry and no queue.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use wattle_common::bounds::{CLOCK_TOLERANCE, LEDGER_SPAN_MAX, OutOfBounds, check_ledger_entry};
use wattle_common::messages::{JobEnergy, LedgerEntry};
use wattle_common::topology::GPUS_PER_NODE_MAX;
use wattle_common::units::{Energy, EnergyMeter};
use wattle_common::{GpuIndex, JobId, NodeId, Power, Timestamp};

/// The state that outlives the service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// End of the last entry.
    pub until_us: Timestamp,
    /// The GPUs at that instant.
    pub gpus: Vec<GpuCounter>,
    /// The last entry, until the bus has acknowledged it.
    #[serde(default)]
    pub pending: Option<LedgerEntry>,
}

impl State {
    /// Checks the numbers of a stored state. One from the distant past is refused too: its entry of the
    /// ledger would span more than an entry may.
    ///
    /// # Errors
    /// The first field outside its limits.
    pub fn check(&self, node: &NodeId, now: Timestamp) -> Result<(), OutOfBounds> {
        let refused =
            |field, value: String, expected: String| Err(OutOfBounds { field, value, expected });
        let expected = format!("within {} s before {now}", LEDGER_SPAN_MAX.as_secs());
        if self.until_us > now + CLOCK_TOLERANCE || now.since(self.until_us) > LEDGER_SPAN_MAX {
            return refused("until_us", self.until_us.to_string(), expected);
        }
        let max = GPUS_PER_NODE_MAX as usize;
        if self.gpus.len() > max {
            let gpus = self.gpus.len().to_string();
            return refused("number of gpus", gpus, format!("at most {max}"));
        }
        let Some(pending) = &self.pending else { return Ok(()) };
        if pending.node != *node {
            return refused("pending.node", pending.node.to_string(), node.to_string());
        }
        check_ledger_entry(pending, now)
    }
}

/// One GPU at the end of the last entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuCounter {
    /// Its UUID, which is stable over a reboot; its index is not.
    pub uuid: String,
    /// The reading of its energy counter, if it has one.
    #[serde(default)]
    pub energy_mj_counter: Option<Energy>,
    /// The lowest power read while it was idle.
    #[serde(default)]
    pub idle_mw: Option<Power>,
}

/// A job's part of the open interval.
#[derive(Clone, Debug, Default)]
struct JobShare {
    energy: Energy,
    user: Option<String>,
}

/// The open interval.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    node: NodeId,
    host_power: Power,
    /// Start of the interval: the first reading.
    from: Option<Timestamp>,
    gpus: BTreeMap<GpuIndex, Energy>,
    jobs: BTreeMap<JobId, JobShare>,
    pub(crate) pending: Option<LedgerEntry>,
}

impl Ledger {
    pub(crate) fn new(node: NodeId, host_power: Power) -> Self {
        Self {
            node,
            host_power,
            from: None,
            gpus: BTreeMap::new(),
            jobs: BTreeMap::new(),
            pending: None,
        }
    }

    /// Starts the first interval.
    pub(crate) fn begin(&mut self, at: Timestamp) {
        self.from.get_or_insert(at);
    }

    pub(crate) const fn from(&self) -> Option<Timestamp> {
        self.from
    }

    /// Adds energy of a GPU.
    pub(crate) fn spend(&mut self, gpu: GpuIndex, energy: Energy) {
        *self.gpus.entry(gpu).or_default() += energy;
    }

    /// Adds energy attributed to a job of this user, if the user is known.
    pub(crate) fn attribute(&mut self, job: &JobId, user: Option<&String>, energy: Energy) {
        if !self.jobs.contains_key(job) {
            self.jobs.insert(job.clone(), JobShare::default());
        }
        let share = self.jobs.get_mut(job).expect("inserted above");
        share.energy += energy;
        if share.user.is_none() {
            share.user = user.cloned();
        }
    }

    /// The jobs with energy in the open interval.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = &JobId> {
        self.jobs.keys()
    }

    /// Energy attributed to a job in the open interval.
    pub(crate) fn attributed(&self, job: &JobId) -> Energy {
        self.jobs.get(job).map_or(Energy::ZERO, |share| share.energy)
    }

    /// Closes the interval and opens the next; the entry is pending until
    /// [`Ledger::acknowledged`]. `None` while another is pending, or for an empty interval.
    pub(crate) fn close(&mut self, now: Timestamp, gpu_count: u32) -> Option<&LedgerEntry> {
        let from = self.from.filter(|from| *from < now)?;
        if self.pending.is_some() {
            return None;
        }
        // Metered from the epoch, so that the entries sum to power x time to the millijoule.
        let host = |at: Timestamp| {
            let mut meter = EnergyMeter::default();
            meter.add(self.host_power, at.since(Timestamp::EPOCH));
            meter.total()
        };
        let entry = LedgerEntry {
            node: self.node.clone(),
            from_us: from,
            until_us: now,
            energy_mj_gpus: (0..gpu_count).map(|gpu| self.gpus.get(&gpu).copied()).collect(),
            energy_mj_host: host(now).saturating_sub(host(from)),
            jobs: std::mem::take(&mut self.jobs)
                .into_iter()
                .map(|(job, share)| JobEnergy { job, energy_mj: share.energy, user: share.user })
                .collect(),
        };
        self.gpus.clear();
        self.from = Some(now);
        Some(self.pending.insert(entry))
    }

    /// Removes the pending entry that begins at `from`; returns whether there was one.
    pub(crate) fn acknowledged(&mut self, from: Timestamp) -> bool {
        self.pending.take_if(|entry| entry.from_us == from).is_some()
    }
}
