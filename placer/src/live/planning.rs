//! The planning rounds: when one is due, and its steps.

use std::time::Duration;

use wattle_common::Timestamp;

use crate::live::{Placer, Turn, expected};
use crate::{Decision, Round};

/// The planning rounds: their number and the time of the next one.
pub(super) struct Rounds {
    at: Option<Timestamp>,
    /// Until when submissions may postpone it.
    latest: Timestamp,
    made: u64,
    /// The time during which events are collected before a round.
    delay: Duration,
}

impl Rounds {
    /// The first round follows after the delay.
    pub(super) fn new(delay: Duration, now: Timestamp) -> Self {
        Self { at: Some(now + delay), latest: now + 2 * delay, made: 0, delay }
    }

    /// Number of rounds since the start.
    pub(super) const fn made(&self) -> u64 {
        self.made
    }

    /// When the next round is due.
    pub(super) const fn at(&self) -> Option<Timestamp> {
        self.at
    }

    /// A round follows after the delay.
    pub(super) fn soon(&mut self, now: Timestamp) {
        self.by(now, now);
    }

    /// A round follows at `at`, and not before the delay.
    pub(super) fn by(&mut self, now: Timestamp, at: Timestamp) {
        let at = at.max(now + self.delay);
        if self.at.is_none_or(|due| at < due) {
            (self.at, self.latest) = (Some(at), at + self.delay);
        }
    }

    /// The round that is due waits for the delay, in which the predictors answer a submission: a round without the
    /// job's predictions takes jobs off their GPUs which the next one puts back. Further submissions do not make it
    /// later than one delay.
    pub(super) fn postpone(&mut self, now: Timestamp) {
        let at = self.latest.min(now + self.delay);
        self.at = self.at.map(|due| due.max(at));
    }

    /// A round begins; the next one is not due yet.
    pub(super) const fn begin(&mut self) {
        self.at = None;
        self.made += 1;
    }
}

impl Placer {
    /// Makes a plan and carries it out.
    pub(super) fn round(&mut self, now: Timestamp) {
        let inventory_complete = self.nodes.inventory_complete(now, self.controller.state());
        self.controller.events().inventory_known(inventory_complete);
        let Round { mut plan, reports } = self.controller.plan();
        self.controller.keep_possible(&mut plan, |node, decision| {
            self.nodes.is_possible(now, &node.facts.id, decision, &self.jobs)
        });
        let violations = self.controller.check(&plan);
        if !violations.is_empty() {
            // No change rather than an invalid one.
            self.outbox.alarm(format!(
                "the plan of policy {} is invalid and was discarded: {}; fix the policy or configure another",
                self.controller.policy().name(),
                self.controller.sentences(&violations)
            ));
            return;
        }
        let Self { controller, jobs, nodes, outbox, .. } = self;
        let turn = &mut Turn { now, controller, outbox };
        for decision in &plan.nodes {
            nodes.decided(turn, decision);
        }
        let faults = nodes.faults();
        jobs.carry_out(now, &plan, &reports, faults.as_deref(), turn.controller);
        if plan.decisions.iter().any(|decision| matches!(decision, Decision::Start { .. })) {
            self.events.jobs_start(now);
        }
        if turn.controller.follow_expected(&reports) {
            expected::note(turn.controller, jobs);
            self.expected.compute_what_if(now, turn.controller, &reports);
        }
        if let Some(at) = plan.again_at {
            self.rounds.by(now, at);
        }
        self.nodes.planned();
        self.spending.planned();
        if self.controller.limits().is_power_limited() || self.nodes.is_power_limited() {
            // The power reserved for each GPU may have changed, and its cap with it; or a limit has ended.
            self.nodes.order_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(count: u64) -> Timestamp {
        Timestamp::from_us(1_000 * count)
    }

    #[test]
    fn submissions_postpone_a_round_by_one_delay_at_most() {
        let mut rounds = Rounds::new(Duration::from_millis(100), ms(0));
        assert_eq!(rounds.at(), Some(ms(100)));
        rounds.soon(ms(60));
        rounds.postpone(ms(60));
        assert_eq!(rounds.at(), Some(ms(160)));
        rounds.soon(ms(150));
        rounds.postpone(ms(150));
        assert_eq!(rounds.at(), Some(ms(200)), "within one delay of the first time");
        rounds.begin();
        // A round that is due much later comes sooner.
        rounds.by(ms(200), ms(9_000));
        rounds.soon(ms(300));
        rounds.postpone(ms(300));
        assert_eq!(rounds.at(), Some(ms(400)));
    }
}
