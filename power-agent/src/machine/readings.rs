//! Readings of the GPUs: new, changed, lost and recovered devices, and a driver that fails and returns.

use wattle_common::messages::GpuConditionKind;
use wattle_common::{Frequency, GpuIndex, Timestamp, topology};

use super::targets::{Bounds, set_target};
use super::{Action, PowerMachine};
use crate::conditions::Change;
use crate::gpu_state::{GpuFacts, GpuState, GpuStatus};
use crate::note::Note;

/// Excess of a GPU's clock over its lock at which the lock counts as lost: two of the 15 MHz steps
/// in which NVIDIA GPUs offer their clocks.
const CLOCK_SLACK: Frequency = Frequency::from_mhz(30);

impl PowerMachine {
    /// Updates every GPU from a reading.
    pub(super) fn gpus_read(
        &mut self,
        now: Timestamp,
        reads: Vec<(GpuIndex, Result<GpuStatus, String>)>,
        out: &mut Vec<Action>,
    ) {
        if self.driver_error.take().is_some() {
            out.push(Action::Log(Note::DriverReturned));
        }
        let known = self.gpus.len();
        let missing: Vec<GpuIndex> = self
            .gpus
            .keys()
            .filter(|gpu| reads.iter().all(|(read, _)| read != *gpu))
            .copied()
            .collect();
        for gpu in missing {
            self.gpu_lost(now, gpu, "the driver no longer lists it".to_owned(), out);
        }
        for (gpu, read) in reads {
            match read {
                Ok(read) => self.gpu_read(now, gpu, read, out),
                Err(error) => self.gpu_lost(now, gpu, error, out),
            }
        }
        if self.gpus.len() != known
            && let Err(error) = self.boards()
        {
            out.push(Action::Log(Note::InvalidBoards { error: error.to_string() }));
        }
        self.schedule_read(now);
    }

    /// Whether the number of GPUs fits the configured boards.
    pub(super) fn boards(&self) -> Result<(), topology::BoardError> {
        let board = self.settings.gpus_per_board;
        board.map_or(Ok(()), |board| topology::check_board(self.gpus.len() as u32, board))
    }

    /// No GPU can be read, or the driver does not answer. It is logged once, whatever the later errors are.
    pub(super) fn driver_failed(&mut self, now: Timestamp, error: String, out: &mut Vec<Action>) {
        for state in self.gpus.values_mut() {
            state.conditions.driver_failed(now, error.clone());
        }
        if self.driver_error.is_none() {
            out.push(Action::Log(Note::DriverFailed { error: error.clone() }));
        }
        self.driver_error = Some(error);
    }

    fn gpu_read(&mut self, now: Timestamp, gpu: GpuIndex, read: GpuStatus, out: &mut Vec<Action>) {
        let lease = self.lease.as_ref();
        if let Some(cap) = read.cap
            && self.stores_caps
            && !self.caps.found.contains_key(&read.facts.uuid)
        {
            self.caps.found.insert(read.facts.uuid.clone(), cap);
            out.push(Action::StoreCaps(self.caps.clone()));
        }
        let bounds = Bounds::of(&self.settings, &self.caps, &self.in_force, self.stopping);
        let state = self.gpus.entry(gpu).or_insert_with(|| {
            let mut state = GpuState::new(read.facts.clone());
            set_target(&mut state, gpu, lease, bounds, out);
            state
        });
        // Of a GPU that could not be read at the service's start only the index is known.
        let facts = state.supported(read.facts);
        if state.facts != facts {
            state.facts = facts;
            set_target(state, gpu, lease, bounds, out);
        }
        note_unsupported(gpu, state, out);
        state.no_meter = read.no_meter;
        if !state.healthy {
            state.healthy = true;
            state.cap = None;
            out.push(Action::Log(Note::Recovered { gpu }));
        }
        if state.has_restarted(read.energy_total) {
            state.forget_settings();
            out.push(Action::Log(Note::Restarted { gpu }));
        }
        note_changes(gpu, state.conditions.read(now, read.health), out);
        if state.is_mig() {
            state.forget_settings();
        }
        if let (Some(set), false) = (state.cap, state.cap_pending.is_some())
            && read.cap != Some(set)
            && !self.settings.advise_only
        {
            out.push(Action::Log(Note::CapChanged { gpu, set, found: read.cap }));
        }
        if let (Some(Some(set)), Some(found)) = (state.clock, read.clock)
            && found > set + CLOCK_SLACK
        {
            out.push(Action::Log(Note::ClockAboveLock { gpu, set, found }));
        }
        state.cap = read.cap;
        state.cap_last = read.cap.or(state.cap_last);
        state.cap_blocked = false;
        state.clock_blocked = false;
        // NVML cannot read a lock, so it is set again after each reading, which corrects a change by
        // another program in either direction.
        state.clock_unverified = true;
    }

    fn gpu_lost(&mut self, now: Timestamp, gpu: GpuIndex, error: String, out: &mut Vec<Action>) {
        let unknown = || GpuFacts {
            uuid: String::new(),
            gpu_type: String::new(),
            memory_mib: None,
            cap_default: None,
            cap_range: None,
            clock_range: None,
        };
        let first = !self.gpus.contains_key(&gpu);
        let state = self.gpus.entry(gpu).or_insert_with(|| GpuState::new(unknown()));
        state.conditions.lost(now, error.clone());
        if state.healthy || first {
            out.push(Action::Log(Note::Lost { gpu, error }));
        }
        state.healthy = false;
        state.forget_settings();
    }

    /// Schedules the next reading one heartbeat from now.
    pub(super) fn schedule_read(&mut self, now: Timestamp) {
        self.last_read = self.reading_since.take().or(self.last_read);
        self.read_at = now + self.settings.heartbeat;
    }
}

/// Logs, once, which settings a GPU does not support.
pub(super) fn note_unsupported(gpu: GpuIndex, state: &mut GpuState, out: &mut Vec<Action>) {
    let (no_cap, no_lock) = (state.has_no_cap(), state.has_no_lock());
    let (cap_noted, lock_noted) = std::mem::replace(&mut state.noted, (no_cap, no_lock));
    if no_cap && !cap_noted {
        out.push(Action::Log(Note::NoCap { gpu }));
    }
    if no_lock && !lock_noted {
        out.push(Action::Log(Note::NoLock { gpu }));
    }
}

/// Logs conditions that begin or end. A GPU or a driver that fails and returns has its own notes.
fn note_changes(gpu: GpuIndex, changes: Vec<Change>, out: &mut Vec<Action>) {
    for Change { condition, began, detail } in changes {
        match condition {
            GpuConditionKind::DriverFailed | GpuConditionKind::Lost => {}
            _ if began => out.push(Action::Log(Note::ConditionBegan { gpu, condition, detail })),
            _ => out.push(Action::Log(Note::ConditionEnded { gpu, condition })),
        }
    }
}
