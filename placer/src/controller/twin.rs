//! The twin of the cluster: which events it receives, and when it follows.

use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::aim::Baseline;

use crate::controller::{Controller, PolicyHandle};
use crate::twin::Twin;

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

    /// When the twin follows next, while it or the cluster has jobs.
    pub(super) fn twin_step_at(&self) -> Option<Timestamp> {
        let followed = self.followed.as_ref()?;
        let has_jobs = self.state.job_count() > 0 || followed.twin.presence() != (0, 0);
        has_jobs.then_some(followed.next)
    }

    /// The twin follows the cluster, if a step is due.
    pub(super) fn follow_twin(&mut self, now: Timestamp) {
        if self.twin_step_at().is_none_or(|at| now < at) {
            return;
        }
        if let Some(Followed { twin, next }) = &mut self.followed {
            twin.advance(&self.state);
            *next = now + STEP;
        }
    }
}
