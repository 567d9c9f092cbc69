//! Which jobs are accepted.

use wattle_common::Timestamp;
use wattle_common::job::GpuRequest;

use crate::accounts::rules::Refusal;
use crate::allocation::feasibility::infeasible;
use crate::controller::{Controller, PolicyHandle};
use crate::plan::reason::Reason;
use crate::state::gpu_set::JobKey;
use crate::state::job::{Job, JobFacts};

/// Why a job is not accepted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NotAdmitted {
    /// Too many jobs are queued or running.
    #[error("{jobs_max} jobs are queued or running; wait until some have ended, or raise jobs_max")]
    TooManyJobs {
        /// The limit.
        jobs_max: usize,
    },
    /// The number of GPUs is invalid.
    #[error("invalid number of GPUs `{0}`: expected a number or a range, as in 4 or 1..8")]
    Gpus(GpuRequest),
    /// The deadline has passed.
    #[error("its deadline {deadline} has passed; it is {now} now")]
    DeadlinePassed {
        /// The deadline.
        deadline: Timestamp,
        /// The time of submission.
        now: Timestamp,
    },
    /// A quota or a project's members exclude it.
    #[error(transparent)]
    Account(#[from] Refusal),
    /// The cluster can never run it.
    #[error("{0}")]
    NeverFits(Reason),
}

impl<P: PolicyHandle> Controller<P> {
    /// Accepts a job into the queue.
    ///
    /// # Errors
    /// Where a limit or the cluster's hardware excludes it.
    pub fn admit(&mut self, facts: JobFacts) -> Result<JobKey, NotAdmitted> {
        let (jobs_max, now) = (self.config.jobs_max, self.state.now());
        if self.state.job_count() >= jobs_max {
            return Err(NotAdmitted::TooManyJobs { jobs_max });
        }
        if facts.request.min == 0 || facts.request.min > facts.request.max {
            return Err(NotAdmitted::Gpus(facts.request));
        }
        if let Some(deadline) = facts.deadline.filter(|deadline| *deadline <= now) {
            return Err(NotAdmitted::DeadlinePassed { deadline, now });
        }
        let present = self.state.running().chain(self.state.queue());
        self.limits.accounts.admit(&facts, present.map(|(_, job)| &job.facts))?;
        let job = Job::new(facts, 0);
        if let Some(reason) = infeasible(&self.state, &job) {
            return Err(NotAdmitted::NeverFits(reason));
        }
        if let Some(followed) = &mut self.followed {
            followed.twin.begin(&self.state);
            followed.twin.submitted(&job.facts, now);
        }
        Ok(self.state.job_arrived(job.facts))
    }
}
