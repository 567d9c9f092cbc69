//! The twin of the cluster: which events it receives, and when it follows.

use std::time::Duration;

use wattle_common::aim::Baseline;
use wattle_common::{JobId, Timestamp};

use crate::controller::{Controller, PolicyHandle};
use crate::state::job::JobFacts;
use crate::twin::{Departure, Twin};

/// Time between two steps of the twin.
const STEP: Duration = Duration::from_secs(60);

/// The twin, with its next step.
#[derive(Clone, Debug)]
pub(super) struct Followed {
    pub(super) twin: Twin,
    next: Timestamp,
}

impl<P: PolicyHandle> Controller<P> {
    /// Runs a twin with this policy beside the cluster from now on.
    pub fn set_twin(&mut self, twin: Twin) {
        self.followed = Some(Followed { twin, next: self.state.now() });
    }

    /// A twin with this policy, under the site's quotas, that begins now.
    #[must_use]
    pub fn new_twin(&self, baseline: Baseline) -> Twin {
        Twin::new(baseline, self.limits.accounts.clone(), self.state.now())
    }

    /// The twin, if there is one.
    #[must_use]
    pub fn twin(&self) -> Option<&Twin> {
        self.followed.as_ref().map(|followed| &followed.twin)
    }

    /// The energy of a job of the cluster that is known now ([`Twin::metered`]).
    pub fn job_metered(&mut self, job: &JobId, energy_j: f64, settings_j: f64, unmetered: bool) {
        if let Some(followed) = &mut self.followed {
            followed.twin.metered(job, energy_j, settings_j, unmetered);
        }
    }

    /// A job waits in the queue of the site's scheduler, which places it: the twin knows it before the controller does.
    pub fn job_waits_at_site(&mut self, facts: &JobFacts) {
        if let Some(followed) = &mut self.followed {
            followed.twin.waits_at_site(facts, self.state.now());
        }
    }

    /// A job has left that queue without having been placed.
    pub fn job_left_site(&mut self, job: &JobId) {
        if let Some(followed) = &mut self.followed {
            followed.twin.departed(&self.state, job, Departure::Cancelled);
        }
    }

    /// When the twin follows next, while it or the cluster has jobs.
    pub(super) fn twin_step_at(&self) -> Option<Timestamp> {
        let followed = self.followed.as_ref()?;
        let has_jobs = self.state.job_count() > 0 || followed.twin.presence() != (0, 0);
        has_jobs.then_some(followed.next)
    }

    /// The twin follows the cluster, if a step is due.
    pub fn follow_twin(&mut self, now: Timestamp) {
        if let Some(Followed { twin, next }) = self.followed.as_mut().filter(|f| f.next <= now) {
            twin.advance(&self.state);
            *next = now + STEP;
        }
    }
}
