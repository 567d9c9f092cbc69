//! Applies a plan to the cluster's state.

use crate::allocation::settling::is_early_stop;
use crate::plan::{Decision, NodeDecision, Plan};
use crate::state::cluster::ClusterState;
use crate::state::gpu_set::JobKey;
use crate::state::job::Job;
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
                    count_early_stop(state, *job);
                    if let Some(next) = next_gpus
                        && state.job(*job).and_then(Job::intended_gpus) != Some(*next)
                    {
                        state.size_left(*job, self.price);
                    }
                    state.job_stopping(*job);
                    state.job_continues_on(*job, *next_gpus, next_gpu_type.clone());
                }
                Decision::Set { job, setting, .. } => {
                    state.job_set(*job, *setting, self.limit_binds);
                }
                Decision::Undo { job, .. } => {
                    count_early_stop(state, *job);
                    state.job_undone(*job);
                }
                Decision::Confirm { job, .. } => state.trial_ended(*job),
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

/// Counts a stop before the job has run for ten times its restart cost, or shortly before its end.
fn count_early_stop(state: &mut ClusterState, key: JobKey) {
    if state.job(key).is_some_and(|job| is_early_stop(state, job)) {
        state.stopped_early(key);
    }
}
