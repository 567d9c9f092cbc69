//! The state that outlives the profiler, and its continuation by a later run.
//!
//! A later run continues the ledger from the counters of the earlier one, so that the energy of the time
//! without a profiler is known. Dates follow these rules:
//!
//! * In the same boot of the node, the dates of the state are moved by the step of the clock, if it was set
//!   since: the time since the state was written is that of the node's boot-time clock.
//! * After a restart of the node, the counters of the earlier boot are void: a counter contains the energy
//!   since the restart, and the time before it is unmeasured.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use wattle_common::bounds::{LEDGER_SPAN_MAX, OutOfBounds, check_ledger_entry};
use wattle_common::messages::{JobEnergy, LedgerEntry, UnknownCause, UnknownEnergy};
use wattle_common::topology::GPUS_PER_NODE_MAX;
use wattle_common::units::Energy;
use wattle_common::{GpuIndex, NodeId, Power, Timestamp};

use crate::gap::{OpenGap, TenantKey};

/// A boot of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boot {
    /// Its id.
    pub id: String,
    /// When it was, by the clock of this run.
    pub at_us: Timestamp,
}

/// The state that outlives the service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// When it was written: the end of the last entry, or an instant of the open interval.
    pub until_us: Timestamp,
    /// The GPUs at that instant.
    pub gpus: Vec<GpuCounter>,
    /// The last entry, until the bus has acknowledged it.
    #[serde(default)]
    pub pending: Option<LedgerEntry>,
    /// The open interval; absent: it begins at `until_us`.
    #[serde(default)]
    pub open: Option<OpenInterval>,
    /// The boot in which it was written; absent: unknown.
    #[serde(default)]
    pub boot: Option<Boot>,
}

/// The ledger's open interval.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenInterval {
    /// Its start.
    pub from_us: Timestamp,
    /// Energy of each GPU in index order; absent: no reading.
    pub energy_mj_gpus: Vec<Option<Energy>>,
    /// Energy of the rest of the node.
    pub energy_mj_host: Energy,
    /// Energy attributed to jobs.
    pub jobs: Vec<JobEnergy>,
    /// Energy without a known owner.
    #[serde(default)]
    pub unknown: Vec<UnknownEnergy>,
}

/// One GPU at its last reading.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuCounter {
    /// Its index.
    #[serde(default)]
    pub gpu: GpuIndex,
    /// Its UUID, which is stable over a reboot; its index is not.
    pub uuid: String,
    /// The reading of its energy counter, if it has one.
    #[serde(default)]
    pub energy_mj_counter: Option<Energy>,
    /// Whether the node was restarted since, which resets the counter.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reset: bool,
    /// The lowest power read while it was idle.
    #[serde(default)]
    pub idle_mw: Option<Power>,
    /// When it was read; absent: when the state was written.
    #[serde(default)]
    pub read_at_us: Option<Timestamp>,
    /// The energy until then whose owner is not decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undecided: Option<OpenGap>,
    /// Its tenants at that instant.
    #[serde(default)]
    pub tenants: Vec<TenantKey>,
}

/// A state whose dates and counters are valid for this run.
#[derive(Clone, Debug)]
pub(crate) struct Resumed {
    pub(crate) state: State,
    /// Why no reading was made since.
    pub(crate) cause: UnknownCause,
    /// Since when the node is on, if it was restarted.
    pub(crate) on_since: Option<Timestamp>,
}

impl State {
    /// Checks the numbers of a stored state. One from the distant past is refused too: its entry of the
    /// ledger would span more than an entry may.
    ///
    /// # Errors
    /// The first field outside its limits.
    pub fn check(
        &self,
        node: &NodeId,
        now: Timestamp,
        boot: Option<&Boot>,
        step_min: Duration,
    ) -> Result<(), OutOfBounds> {
        let refused =
            |field, value: String, expected: String| Err(OutOfBounds { field, value, expected });
        let (max, gpus) = (GPUS_PER_NODE_MAX as usize, self.gpus.len());
        if gpus > max {
            return refused("number of gpus", gpus.to_string(), format!("at most {max}"));
        }
        if let Some(gpu) = self.gpus.iter().map(|gpu| gpu.gpu).find(|gpu| *gpu as usize >= max) {
            return refused("gpus.gpu", gpu.to_string(), format!("below {max}"));
        }
        let resumed = self.clone().resume(now, boot, step_min).state;
        let from = resumed.open.as_ref().map_or(resumed.until_us, |open| open.from_us);
        let reads = resumed.gpus.iter().filter_map(|gpu| gpu.read_at_us);
        let first = reads.fold(from, Timestamp::min);
        if now.since(first) > LEDGER_SPAN_MAX {
            let expected = format!("within {} s before {now}", LEDGER_SPAN_MAX.as_secs());
            return refused("until_us", self.until_us.to_string(), expected);
        }
        if let Some(open) = &resumed.open {
            check_ledger_entry(&open.clone().into_entry(node.clone(), resumed.until_us), now)?;
        }
        let Some(pending) = &self.pending else { return Ok(()) };
        if pending.node != *node {
            return refused("pending.node", pending.node.to_string(), node.to_string());
        }
        // Its dates are those of an earlier clock.
        check_ledger_entry(pending, now.max(pending.until_us))
    }

    /// Converts the state to the clock and the boot of this run. A difference of the clocks below
    /// `step_min` is no step.
    pub(crate) fn resume(
        mut self,
        now: Timestamp,
        boot: Option<&Boot>,
        step_min: Duration,
    ) -> Resumed {
        let (mut cause, mut on_since) = (UnknownCause::ProfilerAway, None);
        match (&self.boot, boot) {
            (Some(before), Some(boot)) if before.id != boot.id => {
                cause = UnknownCause::NodeRestarted;
                on_since = Some(boot.at_us.min(now));
                for gpu in &mut self.gpus {
                    gpu.reset = true;
                }
            }
            (Some(before), Some(boot)) => {
                let (before, after) = (before.at_us, boot.at_us);
                if after.since(before).max(before.since(after)) >= step_min {
                    cause = UnknownCause::ClockSet;
                    self.map_dates(|at| at + after.since(before) - before.since(after));
                }
            }
            _ => {}
        }
        // A clock that was set back over a restart of the node: moved, so that intervals keep their length.
        let excess = self.until_us.since(on_since.unwrap_or(now));
        self.map_dates(|at| at - excess);
        Resumed { state: self, cause, on_since }
    }

    /// Changes all dates but those of the pending entry, which may be stored already.
    fn map_dates(&mut self, map: impl Fn(Timestamp) -> Timestamp) {
        self.until_us = map(self.until_us);
        for read_at in self.gpus.iter_mut().filter_map(|gpu| gpu.read_at_us.as_mut()) {
            *read_at = map(*read_at);
        }
        for gap in self.gpus.iter_mut().filter_map(|gpu| gpu.undecided.as_mut()) {
            gap.from_us = map(gap.from_us);
            gap.until_us = map(gap.until_us);
        }
        let Some(open) = &mut self.open else { return };
        open.from_us = map(open.from_us);
        for unknown in &mut open.unknown {
            unknown.from_us = map(unknown.from_us);
            unknown.until_us = map(unknown.until_us);
        }
    }
}

impl OpenInterval {
    /// The entry, if the interval ended now.
    pub(crate) fn into_entry(self, node: NodeId, until: Timestamp) -> LedgerEntry {
        LedgerEntry {
            node,
            from_us: self.from_us,
            until_us: until,
            energy_mj_gpus: self.energy_mj_gpus,
            energy_mj_host: self.energy_mj_host,
            jobs: self.jobs,
            unknown: self.unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP_MIN: Duration = Duration::from_secs(2);

    fn state(boot_at: u64) -> State {
        let gpu = GpuCounter {
            read_at_us: Some(Timestamp::from_s(6_990)),
            uuid: "GPU-0".to_owned(),
            ..GpuCounter::default()
        };
        State {
            until_us: Timestamp::from_s(7_000),
            gpus: vec![gpu],
            boot: Some(boot("a", boot_at)),
            ..State::default()
        }
    }

    fn boot(id: &str, at: u64) -> Boot {
        Boot { id: id.to_owned(), at_us: Timestamp::from_s(at) }
    }

    #[test]
    fn a_step_of_the_clock_moves_the_dates() {
        let now = Timestamp::from_s(10_000);
        let resume = |at| state(1_000).resume(now, Some(&boot("a", at)), STEP_MIN);
        let same = resume(1_001);
        assert_eq!(
            (same.cause, same.state.until_us),
            (UnknownCause::ProfilerAway, Timestamp::from_s(7_000))
        );
        // Set forward by 2,500 s: the profiler was away for 500 s.
        let forward = resume(3_500);
        assert_eq!(
            (forward.cause, forward.state.until_us),
            (UnknownCause::ClockSet, Timestamp::from_s(9_500))
        );
        assert_eq!(forward.state.gpus[0].read_at_us, Some(Timestamp::from_s(9_490)));
        let back = state(1_000).resume(Timestamp::from_s(6_100), Some(&boot("a", 0)), STEP_MIN);
        assert_eq!(back.state.until_us, Timestamp::from_s(6_000));
        // Never later than now.
        assert_eq!(resume(9_000).state.until_us, now);
    }

    #[test]
    fn a_restart_of_the_node_voids_the_counters() {
        let now = Timestamp::from_s(10_000);
        let resumed = state(1_000).resume(now, Some(&boot("b", 9_000)), STEP_MIN);
        assert_eq!(resumed.cause, UnknownCause::NodeRestarted);
        assert!(resumed.state.gpus[0].reset);
        assert_eq!(resumed.on_since, Some(Timestamp::from_s(9_000)));
        assert_eq!(resumed.state.until_us, Timestamp::from_s(7_000));
    }

    #[test]
    fn states_of_another_clock_and_distant_ones_are_judged_by_the_time_that_passed() {
        let node = NodeId::new("n0").unwrap();
        let check = |at: u64, boot: Boot| {
            let result = state(1_000).check(&node, Timestamp::from_s(at), Some(&boot), STEP_MIN);
            result.err().map(|error| error.field)
        };
        assert_eq!(check(7_100, boot("a", 1_000)), None);
        // The clock was set by a year.
        assert_eq!(check(31_007_100, boot("a", 31_001_000)), None);
        assert_eq!(check(31_007_100, boot("a", 1_000)), Some("until_us"));
        let mut state = state(1_000);
        state.gpus[0].gpu = 64;
        let refused = state.check(&node, Timestamp::from_s(7_100), None, STEP_MIN);
        assert_eq!(refused.unwrap_err().field, "gpus.gpu");
    }
}
