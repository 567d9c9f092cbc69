//! The settings that are due: the node's limit over all caps, ramps, and the order of raises.
//!
//! A cap rises only if the sum of the highest caps that the GPUs may have, pending ones included, stays
//! within the node's limit. So it waits until the driver has acknowledged that others have fallen.

use std::time::Duration;

use wattle_common::{GpuIndex, Power, Timestamp};

use super::{Action, PowerMachine};
use crate::gpu_state::GpuState;
use crate::node_limit::{CapRequest, common_level};
use crate::note::Note;

/// How caps move to their targets now.
#[derive(Clone, Copy)]
struct Ramp {
    /// Largest step; zero: at once.
    step: Power,
    /// Time between two steps.
    every: Duration,
    /// Whether caps fall at once.
    falls_at_once: bool,
}

/// The sum that the caps of the node may have, and the highest that they may add up to now.
#[derive(Clone, Copy)]
struct Room {
    limit: Option<Power>,
    sum: Power,
    /// Cap of a GPU that was never read.
    unread: Power,
}

impl Room {
    /// Whether this GPU's cap may be set to `cap` now.
    fn permits(self, state: &GpuState, cap: Power) -> bool {
        let own = state.cap_at_most(self.unread);
        let Some(limit) = self.limit.filter(|_| cap > own) else { return true };
        self.sum.saturating_sub(own) + cap <= limit
    }
}

impl PowerMachine {
    /// Issues the settings that are due, and a report if it changed.
    pub(super) fn drive(&mut self, now: Timestamp, heartbeat: bool, out: &mut Vec<Action>) {
        self.apply_node_limit(out);
        if self.sets_gpus() {
            let ramp = self.ramp();
            let mut room = self.room();
            for (gpu, state) in self.gpus.iter_mut().filter(|(_, state)| state.is_managed()) {
                let before = state.cap_at_most(room.unread);
                drive_cap(*gpu, state, now, ramp, room, out);
                room.sum = room.sum.saturating_sub(before) + state.cap_at_most(room.unread);
                drive_clock(*gpu, state, out);
            }
        }
        self.report(now, heartbeat, out);
    }

    /// Whether settings are issued now.
    fn sets_gpus(&self) -> bool {
        self.driver_error.is_none() && !self.settings.advise_only
    }

    /// Whether no GPU that answers is known to have another cap or lock than in its safe state. A driver
    /// that refuses settings may leave such GPUs behind at the stop.
    #[must_use]
    pub fn leaves_nothing_behind(&self) -> bool {
        let keeps_lock = |gpu: &GpuState| gpu.clock.flatten().is_some();
        let keeps_cap = |gpu: &GpuState| gpu.target.cap.is_some() && gpu.cap != gpu.target.cap;
        let gpus = self.gpus.values().filter(|gpu| gpu.healthy);
        self.is_safe() && !gpus.into_iter().any(|gpu| keeps_lock(gpu) || keeps_cap(gpu))
    }

    /// Lowers the targets to the node's limit.
    fn apply_node_limit(&mut self, out: &mut Vec<Action>) {
        let Some(limit) = self.settings.node_limit else { return };
        let unread = self.cap_of_unread();
        let caps: Vec<CapRequest> = self.gpus.values().map(|gpu| gpu.cap_request(unread)).collect();
        let level = common_level(&caps, limit);
        for (state, cap) in self.gpus.values_mut().zip(&caps) {
            if let CapRequest::Settable { .. } = cap {
                state.target.cap = Some(cap.at(level.unwrap_or(Power::ZERO)));
            }
        }
        let missed = level.err();
        if let Some(lowest) = missed
            && self.limit_missed.is_none()
        {
            out.push(Action::Log(Note::NodeLimitMissed { limit, lowest }));
        }
        self.limit_missed = missed;
        let unbounded = self.gpus.iter().find(|(_, gpu)| gpu.is_unbounded()).map(|(gpu, _)| *gpu);
        if let Some(gpu) = unbounded
            && self.limit_unbounded.is_none()
        {
            out.push(Action::Log(Note::NodeLimitUnbounded { limit, gpu }));
        }
        self.limit_unbounded = unbounded;
    }

    fn ramp(&self) -> Ramp {
        let is_bounded = self.in_force.bound.as_ref().is_some_and(|bound| bound.cap_mw.is_some());
        let limited = is_bounded || self.lease.as_ref().is_some_and(|lease| lease.power_limited);
        Ramp {
            step: if self.lease.is_some() { self.settings.ramp_step } else { Power::ZERO },
            every: self.settings.ramp_every,
            falls_at_once: limited || self.settings.node_limit.is_some(),
        }
    }

    fn room(&self) -> Room {
        let unread = self.cap_of_unread();
        let sum = self.gpus.values().map(|gpu| gpu.cap_at_most(unread)).sum();
        Room { limit: self.settings.node_limit, sum, unread }
    }

    /// Cap of a GPU that was never read, because it is lost: the highest that any other GPU supports.
    fn cap_of_unread(&self) -> Power {
        let highest = |gpu: &GpuState| gpu.facts.cap_range.map(|(_, highest)| highest);
        self.gpus.values().filter_map(highest).max().unwrap_or_default()
    }

    /// The time of the next step of a ramp. A step that waits for other GPUs follows their results.
    pub(super) fn next_step(&self) -> Option<Timestamp> {
        let (ramp, room) = (self.ramp(), self.room());
        let due = |gpu: &&GpuState| {
            gpu.is_managed() && next_cap(gpu, ramp).is_some_and(|cap| room.permits(gpu, cap))
        };
        let gpus = self.gpus.values().filter(|_| self.sets_gpus());
        gpus.filter(due).map(|gpu| gpu.step_at).min()
    }
}

/// The cap to be set next, if it can be set at all.
fn next_cap(state: &GpuState, ramp: Ramp) -> Option<Power> {
    if state.cap_pending.is_some() || state.cap_blocked {
        return None;
    }
    state.next_cap(ramp.step, ramp.falls_at_once)
}

fn drive_cap(
    gpu: GpuIndex,
    state: &mut GpuState,
    now: Timestamp,
    ramp: Ramp,
    room: Room,
    out: &mut Vec<Action>,
) {
    // An error is cleared once the GPU has its target: targets change, and other programs may set
    // GPUs too.
    if state.target.cap.is_none() || state.cap == state.target.cap {
        state.cap_error = None;
    }
    let Some(cap) = next_cap(state, ramp) else { return };
    let falls = ramp.falls_at_once && state.cap.is_some_and(|current| cap < current);
    let due = ramp.step == Power::ZERO || falls || now >= state.step_at;
    if due && room.permits(state, cap) {
        state.cap_pending = Some(cap);
        if ramp.step != Power::ZERO {
            state.step_at = now + ramp.every;
        }
        out.push(Action::SetCap { gpu, cap });
    }
}

fn drive_clock(gpu: GpuIndex, state: &mut GpuState, out: &mut Vec<Action>) {
    // What cannot be locked cannot be locked by another program either.
    let is_verified = !state.clock_unverified || state.clock_unsupported;
    let reached = state.clock == Some(state.target.clock) && is_verified;
    if reached {
        state.clock_error = None;
    }
    if !state.clock_pending && !state.clock_blocked && !reached {
        state.clock_pending = true;
        state.clock_unverified = false;
        out.push(Action::SetClock { gpu, clock: state.target.clock });
    }
}
