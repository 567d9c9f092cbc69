//! Which decisions about nodes can be carried out now.

use crate::controller::{Controller, PolicyHandle};
use crate::plan::{NodeDecision, Plan};
use crate::state::node::Node;

impl<P: PolicyHandle> Controller<P> {
    /// Removes from `plan` the decisions about nodes that `possible` refuses: a later round decides
    /// them again. The policy knows which nodes should sleep; only the caller knows which can.
    pub fn keep_possible(&self, plan: &mut Plan, possible: impl Fn(&Node, &NodeDecision) -> bool) {
        plan.nodes.retain(|decision| possible(self.state.node(decision.node()), decision));
    }
}
