//! Job events outside planning: restore after a restart, stop, completion, end.

use std::time::Duration;

use crate::controller::{Controller, PolicyHandle};
use crate::state::gpu_set::JobKey;
use crate::state::job::JobFacts;
use crate::twin::Departure;

impl<P: PolicyHandle> Controller<P> {
    /// A job that was accepted before a restart.
    pub fn restore(&mut self, facts: JobFacts) -> JobKey {
        if let Some(followed) = &mut self.followed {
            followed.twin.submitted(&facts, self.state.now());
        }
        self.state.job_arrived(facts)
    }

    /// The usage of a restored job before its present placement.
    pub fn restore_usage(&mut self, key: JobKey, gpu_time: Duration, run_time: Duration) {
        self.state.job_usage_restored(key, gpu_time, run_time);
    }

    /// All processes of a preempted, undone or lost job are gone: it returns to the queue.
    pub fn job_stopped(&mut self, key: JobKey) {
        self.state.job_stopped(key);
    }

    /// A job completed its work. Returns the work in seconds on one GPU, where that is known.
    pub fn job_completed(&mut self, key: JobKey) -> Option<f64> {
        self.limit_cost.job_completed(self.state.now());
        if let Some(expected) = &mut self.expected {
            expected.completed(key, self.state.now());
        }
        self.departed(key, Departure::Completed);
        self.state.job_finished(key)
    }

    /// A job failed, was cancelled or was rejected, and all its processes are gone.
    pub fn job_ended(&mut self, key: JobKey, departure: Departure) {
        if let Some(expected) = &mut self.expected {
            expected.left(key);
        }
        self.departed(key, departure);
        self.state.job_ended(key);
    }

    fn departed(&mut self, key: JobKey, departure: Departure) {
        let job = self.state.job(key).map(|job| job.facts.id.clone());
        if let (Some(followed), Some(job)) = (&mut self.followed, job) {
            followed.twin.departed(&self.state, &job, departure);
        }
    }
}
