//! Access of the statistical method to the predictor's state.

use wattle_common::id::{JobId, WorkloadId};
use wattle_common::messages::SurfacePoint;

use super::Predictor;
use super::points::own_contribution;
use crate::configurations::Configuration;
use crate::history::Class;
use crate::job::{Job, Profiles};
use crate::method::Subject;
use crate::model::cap::GpuSpec;

impl Predictor {
    /// Calls `ask` with the state of a job that the statistical method needs for `wanted`.
    fn with_subject<T>(
        &self,
        (id, job): (&JobId, &Job),
        (gpu_type, gpu): (&str, &GpuSpec),
        wanted: &[Configuration],
        ask: impl FnOnce(Subject<'_>) -> T,
    ) -> T {
        let matched = self.class_of(id, job);
        let class = matched
            .as_ref()
            .and_then(|w| self.history.profile(gpu_type, w, own_contribution(id, job)));
        let class = class.unwrap_or_default();
        let of_wanted = wanted.iter().flat_map(|at| &at.neighbours);
        let seen = job.windows().iter().flat_map(|w| &w.neighbours);
        let profiles = self.profiles(gpu_type, of_wanted.chain(seen));
        let matched = matched.as_ref();
        ask(Subject {
            id,
            job,
            class_id: matched,
            gpu_type,
            gpu,
            class: &class,
            profiles: &profiles,
        })
    }

    /// Predictions of the statistical method; `None` with the physical method.
    pub(super) fn statistical_points(
        &self,
        known: (&JobId, &Job),
        on: (&str, &GpuSpec),
        wanted: &[Configuration],
    ) -> Option<Vec<SurfacePoint>> {
        if !self.learner.learns() {
            return None;
        }
        self.with_subject(known, on, wanted, |subject| self.learner.points(subject, wanted))
    }

    /// Updates the statistical method with the state of a job.
    pub(super) fn teach(&mut self, id: &JobId, gpu_type: &str, gpu: &GpuSpec) {
        if !self.learner.learns() {
            return;
        }
        let Some(job) = self.jobs.get(id) else { return };
        // Taken out because the method reads the rest of `self`.
        let mut learner = std::mem::take(&mut self.learner);
        self.with_subject((id, job), (gpu_type, gpu), &[], |subject| learner.learn(subject));
        self.learner = learner;
    }

    /// Updates the statistical method with the history of a class.
    pub(super) fn restore(&mut self, gpu_type: &str, class: &WorkloadId, kept: &Class) {
        if !self.learner.learns() {
            return;
        }
        let sets = kept.jobs.iter().flat_map(|(_, s)| &s.shared).flat_map(|s| &s.neighbours);
        let profiles: Profiles = self.profiles(gpu_type, sets);
        let gpu = self.gpu_types.spec(gpu_type);
        self.learner.restore(gpu_type, class, kept, &gpu, &profiles);
    }
}
