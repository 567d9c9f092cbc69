//! Decides which cap and clock each GPU is to have now.
//!
//! At any instant each GPU has one target: that of the newest desired state while its lease runs,
//! else the safe state. A lease lasts as long as the order states, at most `lease_max`, less the order's
//! age when it was received ([`crate::order_age`]), by this process's clock: the node's and the placer's
//! clock may differ. At most one cap and one clock are being set on a GPU at a time, and the
//! result of one triggers the next. So results may come late or never (a hung driver), and no
//! settings accumulate.
//!
//! Beyond the lease the agent follows the steps that the last order names under a power limit that changes, as during a
//! grid event ([`crate::persisted`], decisions 12 and 13): caps fall on time, and the shares from before an event hold
//! again at its end.
//!
//! With `advise_only` the targets are reported and no setting is issued.
//!
//! Caps move to a lease's target by the ramp, and to the safe state at once. Under a power limit, of the
//! site or of this node, they fall at once. [`drive`] keeps the sum of the caps within the node's limit.
//!
//! A request to sleep is carried out once for each instant that it carries, and only while its
//! lease runs and it names no job. A node that has slept reads the request again when it wakes,
//! perhaps before the placer has withdrawn it.

mod drive;
mod event;
mod readings;
mod targets;

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::bounds::{OrderVersion, check_order};
use wattle_common::messages::{
    AppliedGpu, CapBound, DesiredGpu, NodeDesired, PowerReport, SleepResult, SleepState,
};
use wattle_common::{Frequency, GpuIndex, Machine, NodeId, Power, Timestamp};

use crate::config::Settings;
use crate::gpu_state::{GpuState, SetError};
use crate::note::Note;
use crate::order_age::OrderAge;
use crate::persisted::{InForce, PersistedCaps, Shares, moved};

pub use event::{Action, Event};
use targets::{Bounds, set_target};

/// A change of the difference of clocks below this does not move the steps of orders.
const CLOCK_DIFFERENCE_MIN: Duration = Duration::from_secs(1);

/// The desired state that is in force.
#[derive(Clone, Debug)]
struct Lease {
    generation: u64,
    length: Duration,
    until: Timestamp,
    /// Whether the caps are this node's share of a power limit.
    power_limited: bool,
    gpus: BTreeMap<GpuIndex, DesiredGpu>,
}

/// The power agent of one node.
#[derive(Clone, Debug)]
pub struct PowerMachine {
    node: NodeId,
    /// This process, in reports.
    instance: String,
    settings: Settings,
    gpus: BTreeMap<GpuIndex, GpuState>,
    order_age: OrderAge,
    /// Version of the newest desired state accepted, expired or not.
    newest: Option<OrderVersion>,
    /// The last refused version, so that a repeated one is logged once.
    refused: Option<OrderVersion>,
    observed_generation: u64,
    lease: Option<Lease>,
    stopping: bool,
    read_at: Timestamp,
    /// When the pending [`Action::ReadGpus`] was issued.
    reading_since: Option<Timestamp>,
    /// When the last answered one was issued.
    last_read: Option<Timestamp>,
    /// Why no GPU can be read, while that is so.
    driver_error: Option<String>,
    reported: Option<PowerReport>,
    /// The instant of the newest sleep request that was carried out.
    last_sleep: Option<Timestamp>,
    /// Caps that outlive the agent.
    caps: PersistedCaps,
    /// What bounds the caps under a power limit over time.
    in_force: InForce,
    /// When that changes next.
    next_change: Option<Timestamp>,
    /// By how much this node's clock is ahead of the placer's, as the steps of orders count it, microseconds.
    clock_ahead_us: i128,
    /// Whether caps are stored. Otherwise a cap found at the start may be that of a killed agent.
    stores_caps: bool,
    sleep_result: Option<SleepResult>,
    /// The lowest possible sum of the caps, while it exceeds the node's limit.
    limit_missed: Option<Power>,
    /// A GPU that answers and states no cap, while the node has a limit.
    limit_unbounded: Option<GpuIndex>,
}

impl PowerMachine {
    /// A machine that reads the GPUs at its first wake and brings them to their safe state, because
    /// an earlier service may have left caps behind.
    #[must_use]
    pub fn new(node: NodeId, settings: Settings) -> Self {
        Self {
            node,
            instance: String::new(),
            settings,
            gpus: BTreeMap::new(),
            order_age: OrderAge::default(),
            newest: None,
            refused: None,
            observed_generation: 0,
            lease: None,
            stopping: false,
            read_at: Timestamp::EPOCH,
            reading_since: None,
            last_read: None,
            driver_error: None,
            reported: None,
            last_sleep: None,
            caps: PersistedCaps::default(),
            in_force: InForce::default(),
            next_change: None,
            clock_ahead_us: 0,
            stores_caps: true,
            sleep_result: None,
            limit_missed: None,
            limit_unbounded: None,
        }
    }

    /// Names this process in its reports.
    #[must_use]
    pub fn instance(mut self, instance: String) -> Self {
        self.instance = instance;
        self
    }

    /// Stores no caps: GPUs get their safe cap when the agent stops.
    #[must_use]
    pub const fn without_stored_caps(mut self) -> Self {
        self.stores_caps = false;
        self
    }

    /// Continues with the caps of an earlier agent.
    #[must_use]
    pub fn with_caps(mut self, caps: PersistedCaps) -> Self {
        self.caps = caps;
        if std::mem::take(&mut self.caps.restored) {
            self.caps.found.clear();
        }
        self
    }

    /// The caps that outlive a stopped agent: every GPU has its found cap again.
    #[must_use]
    pub fn caps_after_stop(&self) -> PersistedCaps {
        PersistedCaps { restored: true, ..self.caps.clone() }
    }

    /// Whether every GPU that answers and is managed is in its safe state, so that the service may end.
    #[must_use]
    pub fn is_safe(&self) -> bool {
        if self.settings.advise_only {
            return self.lease.is_none();
        }
        self.lease.is_none()
            && self.gpus.values().filter(|gpu| gpu.is_managed()).all(|gpu| {
                (gpu.reached() || gpu.cap_blocked || gpu.clock_blocked)
                    && gpu.cap_pending.is_none()
                    && !gpu.clock_pending
            })
    }

    fn desired(&mut self, now: Timestamp, desired: NodeDesired, out: &mut Vec<Action>) {
        if self.stopping {
            return;
        }
        if desired.node != self.node {
            out.push(Action::Log(Note::WrongNode { node: desired.node }));
            return;
        }
        let version = OrderVersion::of(&desired);
        if self.newest == Some(version) {
            return; // the bus sends the last value again after each reconnect
        }
        if let Err(refused) = check_order(&desired, self.newest, now, self.settings.lease_max) {
            if self.refused.replace(version) != Some(version) {
                out.push(Action::Log(Note::Refused(refused)));
            }
            return;
        }
        let newer_generation =
            self.newest.is_none_or(|newest| newest.generation != version.generation);
        self.newest = Some(version);
        let length = desired.expires_at_us.since(desired.issued_at_us).min(self.settings.lease_max);
        let age = self.order_age.received(now, desired.issued_at_us, length);
        let until = age.map_or(now, |age| now + length.saturating_sub(age));
        self.note_clock(now, desired.issued_at_us, age);
        // A newer order of the same length cannot expire before the one that it replaces.
        let replaced = self.lease.as_ref().filter(|lease| lease.length <= length);
        let until = replaced.map_or(until, |lease| until.max(lease.until));
        if until <= now {
            out.push(Action::Log(Note::Expired { generation: desired.generation, age }));
            self.lease = None;
            self.keep_share_of_expired(&desired, out);
        } else {
            self.observed_generation = desired.generation;
            self.sleep(&desired, out);
            self.keep_share(&desired, out);
            let power_limited = desired.power_limited;
            let gpus: BTreeMap<_, _> = desired.gpus.into_iter().map(|g| (g.gpu, g)).collect();
            // Logged once per generation, because it is renewed every few seconds.
            if newer_generation && !self.gpus.is_empty() {
                for gpu in gpus.keys().filter(|gpu| !self.gpus.contains_key(gpu)) {
                    out.push(Action::Log(Note::UnknownGpu { gpu: *gpu }));
                }
            }
            let generation = version.generation;
            self.lease = Some(Lease { generation, length, until, power_limited, gpus });
        }
        self.follow_steps(now, out);
        self.set_targets(out);
    }

    /// Notes the difference of the clocks of placer and node, by an order that is known to be this old. The clocks of a
    /// cluster differ by less than a second; a smaller change is delay.
    fn note_clock(&mut self, now: Timestamp, issued_at: Timestamp, age: Option<Duration>) {
        let Some(age) = age else { return };
        let us = |at: Timestamp| i128::from(at.as_us());
        let ahead_us = us(now) - us(issued_at) - age.as_micros() as i128;
        if (ahead_us - self.clock_ahead_us).unsigned_abs() >= CLOCK_DIFFERENCE_MIN.as_micros() {
            self.clock_ahead_us = ahead_us;
        }
    }

    /// The steps of an order by this node's clock.
    fn steps(&self, desired: &NodeDesired) -> (Option<Shares>, Vec<CapBound>, Option<Timestamp>) {
        let here = |at| moved(at, self.clock_ahead_us);
        let mut ahead = desired.caps_ahead.clone();
        ahead.iter_mut().for_each(|bound| bound.from_us = here(bound.from_us));
        let limited = desired.power_limited.then(|| shares(desired));
        (limited, ahead, desired.event_until_us.map(here))
    }

    /// Carries out a new request to sleep, if the desired state names no job.
    fn sleep(&mut self, desired: &NodeDesired, out: &mut Vec<Action>) {
        let Some(sleep) = desired.sleep.filter(|sleep| sleep.state == SleepState::EnteringSleep)
        else {
            return;
        };
        let requested_at_us = sleep.since_us;
        if !desired.jobs.is_empty() || self.last_sleep == Some(requested_at_us) {
            return;
        }
        self.last_sleep = Some(requested_at_us);
        if self.settings.can_sleep {
            self.sleep_result = None;
            out.push(Action::Log(Note::EntersSleep));
            out.push(Action::Sleep(requested_at_us));
        } else {
            let error = "the node has no sleep_command: set it in its power-agent.toml".to_owned();
            self.sleep_ended(SleepResult { requested_at_us, error: Some(error) }, out);
        }
    }

    fn sleep_ended(&mut self, result: SleepResult, out: &mut Vec<Action>) {
        if let Some(error) = &result.error {
            out.push(Action::Log(Note::SleepFailed { error: error.clone() }));
        }
        self.sleep_result = Some(result);
    }

    /// Keeps the ordered caps for the time after the lease, if they are shares of a power limit, and the steps of one.
    fn keep_share(&mut self, desired: &NodeDesired, out: &mut Vec<Action>) {
        let before = self.caps.clone();
        let (limited, ahead, event_until) = self.steps(desired);
        self.caps.keep(limited, ahead, event_until);
        if self.caps != before {
            out.push(Action::StoreCaps(self.caps.clone()));
        }
    }

    /// An expired order still names this node's share of a power limit and its steps: a new agent may have no other.
    fn keep_share_of_expired(&mut self, desired: &NodeDesired, out: &mut Vec<Action>) {
        let before = self.caps.clone();
        let (limited, ahead, event_until) = self.steps(desired);
        self.caps.keep_of_expired(limited, ahead, event_until);
        if self.caps != before {
            out.push(Action::StoreCaps(self.caps.clone()));
        }
    }

    /// Gives every GPU its current target.
    fn set_targets(&mut self, out: &mut Vec<Action>) {
        let bounds = Bounds::of(&self.settings, &self.caps, &self.in_force, self.stopping);
        for (gpu, state) in &mut self.gpus {
            set_target(state, *gpu, self.lease.as_ref(), bounds, out);
        }
    }

    fn cap_set(
        &mut self,
        gpu: GpuIndex,
        cap: Power,
        result: Result<(), SetError>,
        out: &mut Vec<Action>,
    ) {
        let Some(state) = self.gpus.get_mut(&gpu) else { return };
        state.cap_pending = None;
        match result {
            Ok(()) => {
                state.cap_last = Some(cap);
                if state.healthy {
                    state.cap = Some(cap);
                }
                state.cap_error = None;
            }
            Err(error) if error.unsupported => {
                state.cap_unsupported = true;
                self.unsupported(gpu, out);
            }
            Err(error) => {
                state.cap_blocked = true;
                store_error(&mut state.cap_error, gpu, error.message, out);
            }
        }
    }

    fn clock_set(
        &mut self,
        gpu: GpuIndex,
        clock: Option<Frequency>,
        result: Result<(), SetError>,
        out: &mut Vec<Action>,
    ) {
        let Some(state) = self.gpus.get_mut(&gpu) else { return };
        state.clock_pending = false;
        match result {
            Ok(()) => {
                state.clock = Some(clock);
                state.clock_error = None;
            }
            // A clock that cannot be locked is unlocked.
            Err(error) if error.unsupported => {
                state.clock = Some(None);
                state.clock_unsupported = true;
                self.unsupported(gpu, out);
            }
            Err(error) => {
                state.clock_blocked = true;
                store_error(&mut state.clock_error, gpu, error.message, out);
            }
        }
    }

    /// The driver does not support a setting of this GPU: from now on it is advice.
    fn unsupported(&mut self, gpu: GpuIndex, out: &mut Vec<Action>) {
        let bounds = Bounds::of(&self.settings, &self.caps, &self.in_force, self.stopping);
        let Some(state) = self.gpus.get_mut(&gpu) else { return };
        state.facts = state.supported(state.facts.clone());
        set_target(state, gpu, self.lease.as_ref(), bounds, out);
        readings::note_unsupported(gpu, state, out);
    }

    fn report(&mut self, now: Timestamp, heartbeat: bool, out: &mut Vec<Action>) {
        if self.gpus.is_empty() && self.driver_error.is_none() {
            return; // nothing has been read yet, and an empty inventory would be wrong
        }
        let gpus_per_board = self.settings.gpus_per_board.filter(|_| self.boards().is_ok());
        let advises = self.settings.advise_only;
        let gpus = self.gpus.iter().map(|(gpu, state)| AppliedGpu {
            gpu: *gpu,
            uuid: state.facts.uuid.clone(),
            gpu_type: state.facts.gpu_type.clone(),
            memory_mib: state.facts.memory_mib,
            healthy: state.healthy && self.driver_error.is_none(),
            cap_mw: state.cap,
            cap_mw_default: state.facts.cap_default,
            cap_mw_min: state.facts.cap_range.map(|(min, _)| min),
            cap_mw_max: state.facts.cap_range.map(|(_, max)| max),
            clock_mhz_max: state.clock.flatten(),
            clock_mhz_supported_min: state.facts.clock_range.map(|(lowest, _)| lowest),
            clock_mhz_supported_max: state.facts.clock_range.map(|(_, highest)| highest),
            cap_mw_advised: state.target.cap.filter(|_| advises).or(state.advised.cap),
            clock_mhz_max_advised: state.target.clock.filter(|_| advises).or(state.advised.clock),
            last_error: state.last_error(),
            no_meter: state.no_meter,
            cap_unsupported: state.has_no_cap(),
            clock_unsupported: state.has_no_lock(),
            health: Some(state.conditions.report()),
        });
        let report = PowerReport {
            node: self.node.clone(),
            instance: self.instance.clone(),
            at_us: now.advanced_past(self.reported.as_ref().map(|last| last.at_us)),
            observed_generation: self.observed_generation,
            lease_until_us: self.lease.as_ref().map(|lease| lease.until),
            gpus: gpus.collect(),
            can_sleep: self.settings.can_sleep,
            sleep_result: self.sleep_result.clone(),
            switch: self.settings.switch.clone(),
            gpus_per_board,
            // A limit that is not held would permit other nodes more power.
            node_limit_mw: self.settings.node_limit.filter(|_| !advises),
            advise_only: advises,
            driver_error: self.driver_error.clone(),
            read_at_us: self.last_read,
        };
        let changed = self.reported.as_mut().is_none_or(|last| {
            (last.at_us, last.read_at_us) = (report.at_us, report.read_at_us);
            *last != report
        });
        if changed || heartbeat {
            self.reported = Some(report.clone());
            out.push(Action::Report(report));
        }
    }

    /// Ends an expired lease, and puts the next step of the caps in force. It is called first for every event and
    /// wake, so that no setting of an expired lease is issued.
    fn expire(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        let expired = self.lease.take_if(|lease| lease.until <= now);
        if let Some(lease) = &expired {
            out.push(Action::Log(Note::LeaseEnded { generation: lease.generation }));
        }
        let last = self.in_force.clone();
        let changed = self.follow_steps(now, out);
        let bound = |in_force: &InForce| in_force.bound.as_ref().and_then(|bound| bound.cap_mw);
        let next = &self.in_force;
        if bound(&last) != bound(next) {
            out.push(Action::Log(Note::CapsBounded { bound: bound(next) }));
        }
        if next.returned && !last.returned && self.lease.is_none() {
            out.push(Action::Log(Note::EventOver));
        }
        if expired.is_some() || changed {
            self.set_targets(out);
        }
    }

    /// Puts what bounds the caps now in force. Returns whether that has changed.
    fn follow_steps(&mut self, now: Timestamp, out: &mut Vec<Action>) -> bool {
        if self.caps.reach(now) {
            out.push(Action::StoreCaps(self.caps.clone()));
        }
        self.next_change = self.caps.next_change(now);
        let next = self.caps.in_force(now);
        let last = std::mem::replace(&mut self.in_force, next);
        last != self.in_force
    }

    fn read(&mut self, now: Timestamp, out: &mut Vec<Action>) -> bool {
        if now < self.read_at {
            return false;
        }
        self.read_at = now + self.settings.heartbeat;
        if let Some(since) = self.reading_since {
            // The driver hangs. No second reading is issued, and the GPUs are reported as unhealthy.
            self.driver_failed(now, format!("the driver has not answered since {since}"), out);
            return true;
        }
        self.reading_since = Some(now);
        out.push(Action::ReadGpus);
        false
    }
}

impl Machine for PowerMachine {
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Timestamp, event: Event, out: &mut Vec<Action>) {
        self.expire(now, out);
        let mut heartbeat = false;
        match event {
            Event::DesiredChanged(desired) => self.desired(now, desired, out),
            Event::GpusRead(reads) => {
                self.gpus_read(now, reads, out);
                heartbeat = true;
            }
            Event::GpusUnreadable(error) => {
                // A driver that is loaded again has default settings.
                self.gpus.values_mut().for_each(GpuState::forget_settings);
                self.driver_failed(now, error, out);
                self.schedule_read(now);
                heartbeat = true;
            }
            Event::CapSet { gpu, cap, result } => self.cap_set(gpu, cap, result, out),
            Event::ClockSet { gpu, clock, result } => {
                self.clock_set(gpu, clock, result, out);
            }
            Event::SleepEnded(result) => self.sleep_ended(result, out),
            Event::StopRequested => {
                self.stopping = true;
                self.lease = None;
                self.set_targets(out);
                for state in self.gpus.values_mut() {
                    state.cap_blocked = false;
                    state.clock_blocked = false;
                }
            }
        }
        self.drive(now, heartbeat, out);
    }

    fn wake(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        self.expire(now, out);
        let heartbeat = self.read(now, out);
        self.drive(now, heartbeat, out);
    }

    fn next_wake(&self) -> Option<(Timestamp, &'static str)> {
        let lease = self.lease.as_ref().map(|lease| (lease.until, "the lease ends"));
        let step = self.next_step().map(|at| (at, "the ramp's next step"));
        let read = Some((self.read_at, "heartbeat"));
        let bound = self.next_change.map(|at| (at, "a bound of the caps begins"));
        [lease, step, read, bound].into_iter().flatten().min_by_key(|(at, _)| *at)
    }
}

/// The caps of an order, by GPU.
fn shares(desired: &NodeDesired) -> Shares {
    desired.gpus.iter().filter_map(|gpu| gpu.cap_mw.map(|cap| (gpu.gpu, cap))).collect()
}

fn store_error(current: &mut Option<String>, gpu: GpuIndex, error: String, out: &mut Vec<Action>) {
    if current.as_ref() != Some(&error) {
        out.push(Action::Log(Note::NotApplied { gpu, error: error.clone() }));
        *current = Some(error);
    }
}
