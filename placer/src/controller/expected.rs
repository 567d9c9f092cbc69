//! The expected starts and ends of jobs: which events they receive, and when they follow. The consequences of decisions.

use std::collections::BTreeMap;

use wattle_common::messages::{Consequence, WhatIf};

use crate::controller::{Controller, PolicyHandle};
use crate::expected::consequences::{Compared, compared, consequences};
use crate::expected::{Expected, what_if};
use crate::pipeline::StageReports;
use crate::plan::{Decision, Plan};
use crate::state::gpu_set::JobKey;

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

    /// What the present jobs would use and when they would complete at other settings, after a round with these reports.
    #[must_use]
    pub fn what_if(&self, reports: &StageReports) -> Option<WhatIf> {
        what_if(self.input(), self.can, reports)
    }

    /// The decisions of a plan that is about to be applied, beside what they replace.
    pub(crate) fn compared(&self, plan: &Plan) -> BTreeMap<JobKey, Compared> {
        compared(&self.state, plan)
    }

    /// The consequences of the decisions of a plan that has been applied.
    pub(crate) fn consequences(
        &self,
        compared: BTreeMap<JobKey, Compared>,
        reports: &StageReports,
    ) -> BTreeMap<JobKey, Consequence> {
        consequences(self.input(), self.can, reports, compared)
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
