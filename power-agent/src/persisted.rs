//! The state that outlives a power agent: the caps that it found, the caps of a power limit, and the steps of a grid event.
//!
//! Instants are those of this node's clock. It may be set while no agent runs: within a boot of the machine the instants
//! move with it ([`PersistedCaps::on_clock`]), and in any case a step that was in force stays so ([`PersistedCaps::reached_us`]).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use wattle_common::messages::CapBound;
use wattle_common::{GpuIndex, Power, Timestamp};

use crate::config::Settings;
use crate::gpu_state::GpuFacts;

/// Caps by GPU; a GPU that is not named has its default cap as its share.
pub type Shares = BTreeMap<GpuIndex, Power>;

/// A difference of clocks below this does not move instants, microseconds.
const CLOCK_STEP_MIN_US: u128 = 1_000_000;

/// Caps that a restarted agent needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersistedCaps {
    /// Cap of each GPU, by UUID, before this agent first set one: the site's own cap, which is set
    /// again when the agent stops.
    #[serde(default)]
    pub found: BTreeMap<String, Power>,
    /// Whether the found caps have been set again since; the next agent then reads them again.
    #[serde(default)]
    pub restored: bool,
    /// Last ordered cap of each GPU under a power limit of the site or of its group: its share of the
    /// limit. Absent: no limit is in force.
    #[serde(default)]
    pub limited: Option<Shares>,
    /// Bounds of every cap under a power limit that changes with time, ascending by time.
    #[serde(default)]
    pub ahead: Vec<CapBound>,
    /// During a grid event, the shares from before it, and when they hold again.
    #[serde(default)]
    pub returns: Option<Return>,
    /// When the last bound or return that was in force began. None before it holds again, also where the clock was set
    /// back.
    #[serde(default)]
    pub reached_us: Option<Timestamp>,
    /// The boot of the machine in which this was stored, with its instant by the clock of the agent.
    #[serde(default)]
    pub boot: Option<Boot>,
}

/// The shares from before a grid event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Return {
    /// The end of the event's ramp up, from which on they hold again.
    pub at_us: Timestamp,
    /// The shares; absent: no limit was in force.
    pub limited: Option<Shares>,
}

/// A boot of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boot {
    /// The kernel's id of it.
    pub id: String,
    /// When it was, by the clock of the process that states it.
    pub at_us: Timestamp,
}

/// What bounds the caps without an order, at an instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InForce {
    /// The bound of every cap; absent: the shares alone bound the caps.
    pub bound: Option<CapBound>,
    /// Whether the shares from before a grid event hold again.
    pub returned: bool,
}

impl InForce {
    /// The bound of a GPU's cap, as far as the GPU supports it.
    pub(crate) fn bound_of(&self, gpu: GpuIndex, facts: &GpuFacts) -> Option<Power> {
        let bound = self.bound.as_ref()?.of(gpu)?;
        Some(facts.nearest_cap(bound).unwrap_or(bound))
    }
}

impl PersistedCaps {
    /// The same by the clock of a process that states this boot. If it is the same one, the clock was set by as much as
    /// the instants of the boot differ.
    #[must_use]
    pub fn on_clock(mut self, boot: Option<Boot>) -> Self {
        let same = self.boot.as_ref().zip(boot.as_ref()).filter(|(then, now)| then.id == now.id);
        if let Some((then, now)) = same {
            self.move_by(i128::from(now.at_us.as_us()) - i128::from(then.at_us.as_us()));
        }
        self.boot = boot;
        self
    }

    fn move_by(&mut self, us: i128) {
        if us.unsigned_abs() < CLOCK_STEP_MIN_US {
            return;
        }
        let bounds = self.ahead.iter_mut().map(|bound| &mut bound.from_us);
        let returns = self.returns.iter_mut().map(|returns| &mut returns.at_us);
        for at in bounds.chain(returns).chain(&mut self.reached_us) {
            *at = moved(*at, us);
        }
    }

    /// The cap of a GPU without a lease: the configured one or the GPU's default, and under a power limit
    /// at most its share and the bound in force.
    #[must_use]
    pub fn safe_cap(
        &self,
        gpu: GpuIndex,
        facts: &GpuFacts,
        settings: &Settings,
        in_force: &InForce,
    ) -> Option<Power> {
        self.bounded(gpu, facts, facts.safe_cap(settings.safe_cap), in_force)
    }

    /// The cap of a GPU after the agent has stopped: the one that it found, with the same bounds.
    #[must_use]
    pub fn final_cap(
        &self,
        gpu: GpuIndex,
        facts: &GpuFacts,
        settings: &Settings,
        in_force: &InForce,
    ) -> Option<Power> {
        let found = self.found.get(&facts.uuid).copied();
        self.bounded(gpu, facts, facts.safe_cap(found.or(settings.safe_cap)), in_force)
    }

    fn bounded(
        &self,
        gpu: GpuIndex,
        facts: &GpuFacts,
        cap: Option<Power>,
        in_force: &InForce,
    ) -> Option<Power> {
        let before = self.returns.as_ref().filter(|_| in_force.returned);
        let shares = before.map_or(self.limited.as_ref(), |returns| returns.limited.as_ref());
        let share = shares.and_then(|shares| shares.get(&gpu).copied().or(facts.cap_default));
        let share = share.and_then(|share| facts.nearest_cap(share));
        let bound = in_force.bound_of(gpu, facts);
        Some([share, bound].into_iter().flatten().fold(cap?, Power::min))
    }

    /// The instants at which bounds begin, and that of the return.
    fn instants(&self) -> impl Iterator<Item = Timestamp> + '_ {
        let bounds = self.ahead.iter().map(|bound| bound.from_us);
        bounds.chain(self.returns.as_ref().map(|returns| returns.at_us))
    }

    /// The instant at this time of the clock: none before one that was reached.
    fn instant(&self, now: Timestamp) -> Timestamp {
        now.max(self.reached_us.unwrap_or(Timestamp::EPOCH))
    }

    /// What bounds the caps without an order at this time of the clock.
    #[must_use]
    pub fn in_force(&self, now: Timestamp) -> InForce {
        let at = self.instant(now);
        InForce {
            bound: self.ahead.iter().rev().find(|bound| bound.from_us <= at).cloned(),
            returned: self.returns.as_ref().is_some_and(|returns| returns.at_us <= at),
        }
    }

    /// When that changes next.
    #[must_use]
    pub fn next_change(&self, now: Timestamp) -> Option<Timestamp> {
        let at = self.instant(now);
        self.instants().filter(|from| *from > at).min()
    }

    /// Notes what has been in force. Returns whether that is new.
    pub(crate) fn reach(&mut self, now: Timestamp) -> bool {
        let at = self.instant(now);
        let reached = self.instants().filter(|from| *from <= at).max();
        let is_new = reached.is_some() && reached != self.reached_us;
        if is_new {
            self.reached_us = reached;
        }
        is_new
    }

    /// Keeps the caps of an order that is in force: shares of a power limit if it is `limited`, bounds ahead, and the end
    /// of a grid event, to which the shares of the last order without an event belong.
    pub(crate) fn keep(
        &mut self,
        limited: Option<Shares>,
        ahead: Vec<CapBound>,
        event_until: Option<Timestamp>,
    ) {
        let before = self.returns.take().map(|returns| returns.limited);
        self.returns = event_until.map(|at_us| {
            let limited = before.unwrap_or_else(|| self.limited.clone());
            Return { at_us, limited }
        });
        (self.limited, self.ahead, self.reached_us) = (limited, ahead, None);
    }

    /// The caps of an order that has expired before it was received: its shares only lower the known ones, because the
    /// order may be older than those, and its steps hold where none are known.
    pub(crate) fn keep_of_expired(
        &mut self,
        limited: Option<Shares>,
        ahead: Vec<CapBound>,
        event_until: Option<Timestamp>,
    ) {
        let is_new = self.ahead.is_empty() && self.returns.is_none();
        if let (None, Some(at_us)) = (&self.returns, event_until) {
            // With other steps the end is not known until the next order.
            let at_us = if is_new { at_us } else { Timestamp::FOREVER };
            self.returns = Some(Return { at_us, limited: self.limited.clone() });
        }
        if is_new {
            self.ahead = ahead;
        }
        let Some(shares) = limited else { return };
        let known = self.limited.get_or_insert_default();
        for (gpu, share) in shares {
            let known = known.entry(gpu).or_insert(share);
            *known = (*known).min(share);
        }
    }
}

/// An instant this much later; negative: earlier.
pub(crate) fn moved(at: Timestamp, us: i128) -> Timestamp {
    let moved = (i128::from(at.as_us()) + us).clamp(0, i128::from(u64::MAX));
    Timestamp::from_us(u64::try_from(moved).unwrap_or(u64::MAX))
}
