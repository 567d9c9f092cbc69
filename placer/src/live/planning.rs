//! One planning round: plan, check, carry out.

use wattle_common::Timestamp;

use crate::live::Placer;

impl Placer {
    pub(super) fn round(&mut self, now: Timestamp) {
        let inventory_complete = self.nodes.inventory_complete(now, self.controller.state());
        self.controller.events().inventory_known(inventory_complete);
        let mut plan = self.controller.plan();
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
        for decision in &plan.nodes {
            self.nodes.decided(now, decision, &mut self.controller, &mut self.outbox);
        }
        self.jobs.carry_out(now, &plan, &mut self.controller);
        if let Some(at) = plan.again_at {
            self.rounds.by(now, at);
        }
        self.nodes.planned();
        self.spending.planned();
        if self.controller.limits().is_power_limited() {
            // The power reserved for each GPU may have changed, and its cap with it.
            self.nodes.order_all();
        }
    }
}
