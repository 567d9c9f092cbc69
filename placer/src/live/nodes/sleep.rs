//! Node sleep: execution of a policy's `Sleep` and `Wake` decisions.
//!
//! A decision becomes the node's sleep state, which is stored in the bucket `desired`
//! (`NodeDesired.sleep`) before the command runs:
//!
//! ```text
//! awake --Sleep--> entering sleep --silent--> asleep --Wake--> waking --report--> awake
//!   ^                |  sleep command fails,    |                |
//!   |                |  or reports continue     | report         | silent for wake_timeout_s: alarm
//!   '----------------+--------------------------'                v
//!   '------------------------- report ------------------- wake failed
//! ```
//!
//! # Where the commands run
//! A node puts itself to sleep: its power agent runs the operator's `sleep_command` with the node's
//! root rights. A sleeping node cannot wake itself, so the placer's service runs `wake_command`
//! ([`crate::live::Action::WakeNode`]), as Slurm's controller runs its ResumeProgram. Access to the nodes'
//! management controllers is configured in one place. Nodes sleep only if both commands are set.
//!
//! # Restarts
//! The state is stored before the command runs, and a restart runs the command again. Both commands
//! must be idempotent.
//!
//! A sleeping node is silent but not lost, and its GPUs count as healthy. A node that reports is awake.
//!
//! # Nodes of the site's scheduler
//! Only the scheduler puts them to sleep; it would count a node that Wattle puts to sleep as failed. Its service
//! reports them as asleep ([`wattle_common::messages::SiteNode::asleep`]). The scheduler wakes a node for a job,
//! so a `Wake` decision runs no command: the node counts as awake, and the job that is placed on it wakes it.
//! Without a job it counts as asleep again after `wake_time_s`.

use wattle_common::messages::{LaunchState, NodeSleep, SleepState};
use wattle_common::{NodeId, Timestamp};

use crate::live::job_records::JobRecords;
use crate::live::nodes::{NodeState, Nodes};
use crate::live::{Action, Turn};
use crate::{NodeDecision, Wakefulness};

impl NodeState {
    /// The sleep state that policies see. A node that failed to wake is awake without healthy GPUs, like
    /// a lost node.
    pub(super) fn wakefulness(&self) -> Wakefulness {
        match self.sleep.map(|sleep| sleep.state) {
            None if self.is_asleep_at_site() && self.woken_by_job_at.is_none() => {
                Wakefulness::Asleep
            }
            None | Some(SleepState::WakeFailed) => Wakefulness::Awake,
            Some(SleepState::EnteringSleep | SleepState::Asleep) => Wakefulness::Asleep,
            Some(SleepState::Waking) => Wakefulness::Waking,
        }
    }

    /// Whether the site's scheduler reports it as asleep, or as booting for a job.
    pub(super) fn is_asleep_at_site(&self) -> bool {
        let site = self.launch.as_ref().and_then(|(report, _)| report.site.as_ref());
        site.is_some_and(|site| site.asleep)
    }

    /// Whether both of its services reported after `since`.
    fn reported_after(&self, since: Timestamp) -> bool {
        self.power.as_ref().is_some_and(|(_, at)| *at > since)
            && self.launch.as_ref().is_some_and(|(_, at)| *at > since)
    }

    pub(super) fn is_in(&self, state: SleepState) -> bool {
        self.sleep.is_some_and(|sleep| sleep.state == state)
    }
}

impl Nodes {
    /// Whether a decision about a node can be carried out now.
    pub(in crate::live) fn is_possible(
        &self,
        now: Timestamp,
        node: &NodeId,
        decision: &NodeDecision,
        jobs: &JobRecords,
    ) -> bool {
        match decision {
            NodeDecision::Sleep { .. } => self.may_sleep(now, node, jobs),
            // While the node falls asleep, a wake command would be lost.
            NodeDecision::Wake { .. } => self.states.get(node).is_some_and(|state| {
                let sleeps_at_site = state.sleep.is_none() && state.is_asleep_at_site();
                state.is_in(SleepState::Asleep) || sleeps_at_site
            }),
        }
    }

    /// Whether the node supports sleep, reports, and has no process of any job.
    fn may_sleep(&self, now: Timestamp, node: &NodeId, jobs: &JobRecords) -> bool {
        let Some(state) = self.states.get(node) else { return false };
        let can = state.power.as_ref().is_some_and(|(report, _)| report.can_sleep);
        let runs =
            state.launch.iter().flat_map(|(report, _)| &report.jobs).any(|launched| {
                matches!(launched.state, LaunchState::Running | LaunchState::Stopping)
            });
        // The site's scheduler would count a silent node as failed.
        let is_of_site = state.launch.as_ref().is_some_and(|(report, _)| report.site.is_some());
        let is_free = !runs && jobs.on_node(node).next().is_none() && !is_of_site;
        can && is_free && state.sleep.is_none() && self.is_fresh(now, node)
    }

    /// Records a decision as the node's sleep state. The cluster's state is changed afterwards.
    pub(in crate::live) fn decided(&mut self, turn: &mut Turn<'_>, decision: &NodeDecision) {
        let node = turn.controller.state().node(decision.node()).facts.id.clone();
        if self.states.get(&node).is_some_and(NodeState::is_asleep_at_site) {
            self.state_mut(&node).woken_by_job_at = Some(turn.now);
            turn.outbox.plan_soon();
            return;
        }
        let state = match decision {
            NodeDecision::Sleep { .. } => SleepState::EnteringSleep,
            NodeDecision::Wake { .. } => SleepState::Waking,
        };
        self.set_sleep(turn, &node, Some(state));
    }

    fn set_sleep(&mut self, turn: &mut Turn<'_>, node: &NodeId, state: Option<SleepState>) {
        self.state_mut(node).sleep = state.map(|state| NodeSleep { state, since_us: turn.now });
        self.order(node);
        if state == Some(SleepState::Waking) {
            self.to_wake.insert(node.clone());
        }
        self.count_unconfirmed(turn, node);
        turn.outbox.plan_soon();
    }

    /// After a restart: runs the wake command of waking nodes again, and wakes sleeping nodes without
    /// a stored report.
    pub(in crate::live) fn restore_sleep(&mut self, turn: &mut Turn<'_>) {
        let sleeping = self.states.iter().filter_map(|(node, state)| {
            state.sleep.map(|sleep| (node.clone(), sleep.state, state.power.is_some()))
        });
        for (node, is, known) in sleeping.collect::<Vec<_>>() {
            if !self.config.sleep.is_on() && is != SleepState::WakeFailed {
                turn.outbox.alarm(format!(
                    "{node} is {}, and the placer has no sleep.wake_command: wake the node by hand, \
                     or set the command",
                    is.label()
                ));
            }
            match is {
                SleepState::Waking => {
                    self.to_wake.insert(node);
                }
                // Its report was lost, so policies do not know its GPUs and would not wake it.
                SleepState::Asleep if !known => {
                    self.set_sleep(turn, &node, Some(SleepState::Waking));
                }
                _ => {}
            }
        }
    }

    /// Ends the wait for a job that wakes a node of the site's scheduler.
    fn watch_sleep_at_site(&mut self, now: Timestamp, node: &NodeId, jobs: &JobRecords) {
        let patience = self.config.sleep.wake_time();
        let has_jobs = jobs.on_node(node).next().is_some();
        let Some(state) = self.states.get_mut(node) else { return };
        let is_over = !state.is_asleep_at_site()
            || (!has_jobs && state.woken_by_job_at.is_some_and(|at| now.since(at) >= patience));
        if is_over {
            state.woken_by_job_at = None;
        }
    }

    /// Updates a node's sleep state from its reports and timeouts.
    pub(super) fn watch_sleep(&mut self, turn: &mut Turn<'_>, node: &NodeId, jobs: &JobRecords) {
        self.watch_sleep_at_site(turn.now, node, jobs);
        let Some(state) = self.states.get(node) else { return };
        let Some(NodeSleep { state: is, since_us }) = state.sleep else { return };
        // Time during which the bus or the placer was away does not count.
        let from = since_us.max(self.reports_valid_from);
        let lasts = turn.now.since(from);
        let reports = state.power.iter().map(|(_, at)| *at);
        let last_report =
            reports.chain(state.launch.iter().map(|(_, at)| *at)).fold(from, Timestamp::max);
        let answer = state.power.as_ref().and_then(|(report, _)| report.sleep_result.clone());
        let failed = answer
            .filter(|answer| answer.requested_at_us == since_us)
            .and_then(|answer| answer.error);
        let next = match is {
            SleepState::EnteringSleep => {
                if let Some(error) = failed {
                    turn.outbox.alarm(format!(
                        "the sleep command of {node} failed and the node stays awake: {error}"
                    ));
                    None
                } else if turn.now.since(last_report) > self.config.node_stale_after() {
                    Some(SleepState::Asleep)
                } else if lasts >= self.config.sleep.sleep_timeout() {
                    turn.outbox.alarm(format!(
                        "{node} still reports {} s after it was ordered to sleep and counts as awake: \
                         check its sleep_command, or raise the placer's sleep.sleep_timeout_s",
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
                turn.outbox.alarm(format!(
                    "{node} sent no report within {} s of its wake command and gets no jobs until \
                     it reports; check the node, or raise the placer's sleep.wake_timeout_s",
                    lasts.as_secs()
                ));
                Some(SleepState::WakeFailed)
            }
            SleepState::Asleep | SleepState::Waking | SleepState::WakeFailed => return,
        };
        self.set_sleep(turn, node, next);
    }

    /// A wake command ended.
    pub(in crate::live) fn wake_answered(
        &mut self,
        turn: &mut Turn<'_>,
        node: &NodeId,
        error: Option<String>,
    ) {
        let Some(state) = self.states.get_mut(node) else { return };
        let Some(error) = error.filter(|_| state.is_in(SleepState::Waking)) else { return };
        state.wake_again = true;
        turn.outbox.alarm(format!("the wake command of {node} failed and is retried: {error}"));
    }

    /// Retries failed wake commands.
    pub(in crate::live) fn wake_again(&mut self) {
        for (node, state) in &mut self.states {
            if std::mem::take(&mut state.wake_again) && state.is_in(SleepState::Waking) {
                self.to_wake.insert(node.clone());
            }
        }
    }

    /// Runs the wake commands, after the sleep states are stored. A node that has reported meanwhile is awake.
    pub(in crate::live) fn wake(&mut self, out: &mut Vec<Action>) {
        for node in std::mem::take(&mut self.to_wake) {
            if self.states.get(&node).is_some_and(|state| state.is_in(SleepState::Waking)) {
                out.push(Action::WakeNode(node));
            }
        }
    }
}
