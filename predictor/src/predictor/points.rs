//! Predictions for single configurations, and the models that they come from.

use std::borrow::Cow;
use std::sync::Arc;

use wattle_common::id::{JobId, WorkloadId};
use wattle_common::messages::SurfacePoint;

use super::Predictor;
use crate::configurations::Configuration;
use crate::job::{Context, Job, JobModel, Profiles};
use crate::method::physical::Physical;
use crate::model::cap::GpuSpec;
use crate::model::cap_forms::FormChoice;
use crate::pooled::Pooled;

impl Predictor {
    /// Prediction for `job` in one configuration.
    #[must_use]
    pub fn predict(&self, job: &JobId, at: &Configuration) -> Option<SurfacePoint> {
        self.predict_all(job, std::slice::from_ref(at))?.pop()
    }

    /// Predictions for `job` in each of `wanted`. Fastest where configurations with equal neighbours
    /// are adjacent.
    #[must_use]
    pub fn predict_all(&self, job: &JobId, wanted: &[Configuration]) -> Option<Vec<SurfacePoint>> {
        let known = self.jobs.get(job)?;
        let gpu_type = self.gpu_type_of(known);
        let gpu = self.gpu_types.spec(gpu_type);
        let points = self.raw_points(job, known, (gpu_type, &gpu), wanted);
        Some(self.calibrated(job, known, (gpu_type, &gpu), wanted, points))
    }

    /// Predictions of the method, with uncalibrated intervals.
    pub(super) fn raw_points(
        &self,
        job: &JobId,
        known: &Job,
        on: (&str, &GpuSpec),
        wanted: &[Configuration],
    ) -> Vec<SurfacePoint> {
        if wanted.is_empty() {
            return Vec::new();
        }
        self.statistical_points((job, known), on, wanted).unwrap_or_else(|| {
            let model = self.model_of(job, known, on.0, on.1);
            self.physical_points(job, known, on, &model, wanted)
        })
    }

    /// Predictions of the physical method.
    pub(super) fn physical_points(
        &self,
        job: &JobId,
        known: &Job,
        (gpu_type, gpu): (&str, &GpuSpec),
        model: &JobModel,
        wanted: &[Configuration],
    ) -> Vec<SurfacePoint> {
        let class_id = self.class_of(job, known);
        let class = self.class_seen(job, known, gpu_type, class_id.as_ref());
        let profiles = self.profiles(gpu_type, wanted.iter().flat_map(|at| &at.neighbours));
        let pooled = self.pooled(gpu_type);
        Physical::new(model, gpu, class.as_deref(), &profiles, &pooled).points(wanted)
    }

    pub(super) fn profiles<'a>(
        &self,
        gpu_type: &str,
        classes: impl Iterator<Item = &'a WorkloadId>,
    ) -> Profiles {
        let mut profiles = Profiles::new();
        for class in classes {
            if !profiles.contains_key(class) {
                let kept = self.history.profile(gpu_type, class, None);
                profiles.insert(class.clone(), kept.unwrap_or_default());
            }
        }
        profiles
    }

    /// Forms of the response of time to caps on a GPU type, with their shares.
    #[must_use]
    pub fn cap_forms(&self, gpu_type: &str) -> FormChoice {
        self.pooled(gpu_type).transfer.forms().clone()
    }

    pub(super) fn pooled(&self, gpu_type: &str) -> Arc<Pooled> {
        let known = self.pooled.get(gpu_type).map(|(pooled, _)| Arc::clone(pooled));
        known.unwrap_or_else(|| Arc::new(Pooled::prior()))
    }

    pub(super) fn model_of(
        &self,
        id: &JobId,
        job: &Job,
        gpu_type: &str,
        gpu: &GpuSpec,
    ) -> Cow<'_, JobModel> {
        match self.models.get(id) {
            Some(model) => Cow::Borrowed(model),
            None => Cow::Owned(self.fit(id, job, gpu_type, gpu)),
        }
    }

    pub(super) fn fit(&self, id: &JobId, job: &Job, gpu_type: &str, gpu: &GpuSpec) -> JobModel {
        let class = self.class_of(id, job);
        let own = own_contribution(id, job);
        let class = class.and_then(|w| self.history.profile(gpu_type, &w, own));
        let class = class.unwrap_or_default();
        let profiles = self.profiles(gpu_type, job.windows().iter().flat_map(|w| &w.neighbours));
        let pooled = match own {
            Some(own) => Pooled::without(self.pooled(gpu_type), own),
            None => self.pooled(gpu_type),
        };
        JobModel::fit(job, Context { gpu, class: &class, profiles: &profiles, pooled: &pooled })
    }
}

/// The job, if its class has a summary of it. Without windows of its own, what its class has under its id is of an
/// earlier submission of the name, which is another job of the class.
pub(super) fn own_contribution<'a>(id: &'a JobId, job: &Job) -> Option<&'a JobId> {
    Some(id).filter(|_| !job.windows().is_empty())
}
