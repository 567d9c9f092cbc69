//! Nodes that sleep: what comes of a policy's `Sleep` and `Wake`.
//!
//! The policy decides; here its decision becomes a state of the node, which lies in the bucket
//! `desired` (`NodeDesired.sleep`) before anything is done about it:
//!
//! ```text
//! awake --Sleep--> falling asleep --silent--> asleep --Wake--> waking --heard of--> awake
//!   ^                |  its command fails,       |                |
//!   |                |  or it goes on talking    | heard of       | silent for wake_timeout_s: an alarm
//!   '----------------+---------------------------'                v
//!   '-----------------------heard of------------------------- not woken
//! ```
//!
//! # Who runs the commands
//! A node puts itself to sleep: its own power agent runs the operator's `sleep_command`, with the
//! rights of the node's root, which no other machine should have. It cannot wake itself, so the
//! placer's shell runs `wake_command` ([`crate::live::Action::WakeNode`]), as Slurm's controller runs its
//! ResumeProgram: it is the one process that must be awake for anything to happen at all, and who
//! reaches the nodes' management controllers is told in one configuration instead of in each node's.
//!
//! # What survives a kill
//! The state is stored first. Killed between the storing and the command, the command is run after
//! the restart; killed after it, it is run once more. So both must do no harm when they are repeated.
//!
//! A node that sleeps is silent, and not lost. Its cards count as healthy, since they will be. One
//! that is heard of is awake, whoever woke it. Only where both commands are set does a node sleep.

use wattle_common::messages::{LaunchState, NodeSleep, SleepState};
use wattle_common::{NodeId, Timestamp};

use crate::live::Placer;
use crate::live::inventory::NodeState;
use crate::{NodeDecision, Wakefulness};

impl NodeState {
    /// What policies are told. One that did not wake is as one that is lost: awake, without cards.
    pub(super) fn wakefulness(&self) -> Wakefulness {
        match self.sleep.map(|sleep| sleep.state) {
            None | Some(SleepState::WakeFailed) => Wakefulness::Awake,
            Some(SleepState::EnteringSleep | SleepState::Asleep) => Wakefulness::Asleep,
            Some(SleepState::Waking) => Wakefulness::Waking,
        }
    }

    /// Whether both of its services were heard of after `since`.
    fn reported_after(&self, since: Timestamp) -> bool {
        self.power.as_ref().is_some_and(|(_, at)| *at > since)
            && self.launch.as_ref().is_some_and(|(_, at)| *at > since)
    }

    pub(super) fn is_in(&self, state: SleepState) -> bool {
        self.sleep.is_some_and(|sleep| sleep.state == state)
    }
}

impl Placer {
    /// Whether a decision about a node can be carried out now.
    pub(super) fn is_possible(
        &self,
        now: Timestamp,
        node: &NodeId,
        decision: &NodeDecision,
    ) -> bool {
        match decision {
            NodeDecision::Sleep { .. } => self.may_sleep(now, node),
            // While the node falls asleep, a wake command would be lost.
            NodeDecision::Wake { .. } => {
                self.nodes.get(node).is_some_and(|state| state.is_in(SleepState::Asleep))
            }
        }
    }

    /// Whether the node can sleep, is heard of, and really has no process of any job.
    fn may_sleep(&self, now: Timestamp, node: &NodeId) -> bool {
        let Some(state) = self.nodes.get(node) else { return false };
        let can = state.power.as_ref().is_some_and(|(report, _)| report.can_sleep);
        let runs =
            state.launch.iter().flat_map(|(report, _)| &report.jobs).any(|launched| {
                matches!(launched.state, LaunchState::Running | LaunchState::Stopping)
            });
        can && !runs && state.jobs.is_empty() && state.sleep.is_none() && self.is_fresh(now, node)
    }

    /// Takes a decision over into the node's state. The problem does not know of it yet.
    pub(super) fn node_decided(&mut self, now: Timestamp, decision: &NodeDecision) {
        let node = self.controller.state().node(decision.node()).facts.id.clone();
        let is = match decision {
            NodeDecision::Sleep { .. } => SleepState::EnteringSleep,
            NodeDecision::Wake { .. } => SleepState::Waking,
        };
        self.sleep_is(now, &node, Some(is));
    }

    fn sleep_is(&mut self, now: Timestamp, node: &NodeId, state: Option<SleepState>) {
        self.node_mut(node).sleep = state.map(|state| NodeSleep { state, since_us: now });
        self.to_order.insert(node.clone());
        if state == Some(SleepState::Waking) {
            self.to_wake.insert(node.clone());
        }
        self.plan_soon(now);
    }

    /// After a restart: who was being woken is woken, and nobody is left asleep unknown.
    pub(super) fn restore_sleep(&mut self, now: Timestamp) {
        let sleeping = self.nodes.iter().filter_map(|(node, state)| {
            state.sleep.map(|sleep| (node.clone(), sleep.state, state.power.is_some()))
        });
        for (node, is, known) in sleeping.collect::<Vec<_>>() {
            if !self.config.sleep.is_on() && is != SleepState::WakeFailed {
                self.alarms.push(format!(
                    "{node} is {}, and the placer has no sleep.wake_command any more: wake it by \
                     hand, or set the command again",
                    is.label()
                ));
            }
            match is {
                SleepState::Waking => {
                    self.to_wake.insert(node);
                }
                // Its report was lost: no policy knows what it would be woken for.
                SleepState::Asleep if !known => self.sleep_is(now, &node, Some(SleepState::Waking)),
                _ => {}
            }
        }
    }

    /// Looks whether a node has fallen asleep, woken, or failed to.
    pub(super) fn watch_sleep(&mut self, now: Timestamp, node: &NodeId) {
        let Some(state) = self.nodes.get(node) else { return };
        let Some(NodeSleep { state: is, since_us }) = state.sleep else { return };
        // While the bus or the placer was away, silence and slowness say nothing.
        let from = since_us.max(self.reports_valid_from);
        let lasts = now.since(from);
        let heard = state.power.iter().map(|(_, at)| *at);
        let heard = heard.chain(state.launch.iter().map(|(_, at)| *at)).fold(from, Timestamp::max);
        let answer = state.power.as_ref().and_then(|(report, _)| report.sleep_result.clone());
        let failed = answer
            .filter(|answer| answer.requested_at_us == since_us)
            .and_then(|answer| answer.error);
        let next = match is {
            SleepState::EnteringSleep => {
                if let Some(error) = failed {
                    self.alarms.push(format!("{node} stays awake: {error}"));
                    None
                } else if now.since(heard) > self.config.node_stale_after() {
                    Some(SleepState::Asleep)
                } else if lasts >= self.config.sleep.sleep_timeout() {
                    self.alarms.push(format!(
                        "{node} goes on talking {} s after it was ordered to sleep: see what its \
                         sleep_command does, or raise the placer's sleep.sleep_timeout_s",
                        lasts.as_secs()
                    ));
                    None
                } else {
                    return;
                }
            }
            SleepState::Asleep | SleepState::Waking | SleepState::WakeFailed
                if state.reported_after(since_us) =>
            {
                None
            }
            SleepState::Waking if lasts >= self.config.sleep.wake_timeout() => {
                self.alarms.push(format!(
                    "{node} sent no report within {} s of its wake command and gets no jobs until \
                     it reports; check the node, or raise the placer's sleep.wake_timeout_s",
                    lasts.as_secs()
                ));
                Some(SleepState::WakeFailed)
            }
            SleepState::Asleep | SleepState::Waking | SleepState::WakeFailed => return,
        };
        self.sleep_is(now, node, next);
    }

    /// A wake command has ended.
    pub(super) fn wake_answered(&mut self, node: &NodeId, error: Option<String>) {
        let Some(state) = self.nodes.get_mut(node) else { return };
        let Some(error) = error.filter(|_| state.is_in(SleepState::Waking)) else { return };
        state.wake_again = true;
        self.alarms.push(format!("the wake command of {node} failed, and is tried again: {error}"));
    }

    /// Tries failed wake commands again.
    pub(super) fn wake_again(&mut self) {
        for (node, state) in &mut self.nodes {
            if std::mem::take(&mut state.wake_again) && state.is_in(SleepState::Waking) {
                self.to_wake.insert(node.clone());
            }
        }
    }
}
