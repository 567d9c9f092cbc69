//! The expected starts and ends of jobs: which events they receive, and when they follow.

use crate::controller::{Controller, PolicyHandle};
use crate::expected::Expected;
use crate::pipeline::StageReports;
use crate::plan::{Decision, Plan};

impl<P: PolicyHandle> Controller<P> {
    /// Computes expected times of jobs from now on.
    pub fn set_expected(&mut self, expected: Expected) {
        self.expected = Some(expected);
    }

    /// The expected times of jobs, if they are computed.
    #[must_use]
    pub const fn expected(&self) -> Option<&Expected> {
        self.expected.as_ref()
    }

    /// A round has been applied: new expected times follow from it, if they are due. Returns whether there are some.
    pub fn follow_expected(&mut self, reports: &StageReports) -> bool {
        let Some(mut expected) = self.expected.take() else { return false };
        let is_new = expected.follow(self.input(), self.can, reports);
        self.expected = Some(expected);
        is_new
    }

    /// The starts and rejections of a plan.
    pub(super) fn note_decisions(&mut self, plan: &Plan) {
        let now = self.state.now();
        let Some(expected) = &mut self.expected else { return };
        for decision in &plan.decisions {
            match decision {
                Decision::Start { job, .. } => expected.started(*job, now),
                Decision::Reject { job, .. } => expected.left(*job),
                Decision::Stop { .. }
                | Decision::Set { .. }
                | Decision::Undo { .. }
                | Decision::Confirm { .. } => {}
            }
        }
    }
}
