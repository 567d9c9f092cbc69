//! Applies a plan to the cluster's state.

use crate::plan::{Decision, NodeDecision, Plan};
use crate::state::cluster::ClusterState;
use crate::state::node::Wakefulness;

impl Plan {
    /// Applies the decisions to `state`, from which this plan was made. A stopped job holds its GPUs as
    /// stopping until [`ClusterState::job_stopped`].
    pub fn apply_to(&self, state: &mut ClusterState) {
        for decision in &self.decisions {
            match decision {
                Decision::Start { job, on, setting, observe, .. } => {
                    state.job_placed(*job, on.clone(), *setting, *observe);
                }
                Decision::Stop { job, next_gpus, next_gpu_type, .. } => {
                    state.job_stopping(*job);
                    state.job_continues_on(*job, *next_gpus, next_gpu_type.clone());
                }
                Decision::Set { job, setting, .. } => state.job_set(*job, *setting),
                Decision::Undo { job, .. } => state.job_undone(*job),
                Decision::Settle { job, .. } => state.observation_ended(*job),
                Decision::Reject { job, .. } => state.job_ended(*job),
            }
        }
        for decision in &self.nodes {
            let wakefulness = match decision {
                NodeDecision::Sleep { .. } => Wakefulness::Asleep,
                NodeDecision::Wake { .. } => Wakefulness::Waking,
            };
            state.wakefulness_changed(decision.node(), wakefulness);
        }
    }
}
