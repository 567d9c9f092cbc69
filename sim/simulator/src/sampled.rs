//! Sampled jobs: the jobs of a large scenario whose windows the predictor learns.
//!
//! Jobs of one class have the same speed and power in the world, so the windows of many of them differ in
//! noise only, and learning all of them would take most of the time of a run. In a sample:
//!
//! * The predictor learns the windows of the first [`LEARNED_FIRST`] jobs of each class and request, then
//!   those of one job in [`LEARNED_EVERY`], beyond [`LEARNED_MANY`] those of one in [`LEARNED_RARELY`].
//! * Any other job gets, with its first window, the newest surface of a sampled job of its class and request,
//!   and keeps it.
//! * Jobs of one class and request share a prior. It is computed again when the class has a quarter more
//!   windows, as for a queued job, and after [`PRIOR_USES`] jobs.

use std::collections::BTreeMap;
use std::sync::Arc;

use wattle_common::WorkloadId;
use wattle_common::messages::Surface;
use wattle_placer::{JobFacts, OperatingPoints};

/// Sampled jobs of a class and request before others are left out.
const LEARNED_FIRST: u32 = 8;
/// Of the later jobs one in this many is sampled.
const LEARNED_EVERY: u32 = 8;
/// After this many jobs one in [`LEARNED_RARELY`]: by then another measurement hardly changes a surface.
const LEARNED_MANY: u32 = 128;
const LEARNED_RARELY: u32 = 32;
/// The most jobs with one prior.
const PRIOR_USES: u32 = 16;

/// A surface with its operating points.
pub(crate) type SurfaceWithPoints = (Arc<Surface>, Arc<OperatingPoints>);

/// Jobs that share surfaces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Request {
    class: Option<WorkloadId>,
    gpus: (u32, u32),
    can_stop: bool,
    gpu_type: Option<Arc<str>>,
}

impl Request {
    fn of(job: &JobFacts) -> Self {
        Self {
            class: job.workload.clone(),
            gpus: (job.request.min, job.request.max),
            can_stop: job.can_stop,
            gpu_type: job.gpu_type.clone(),
        }
    }
}

/// The prior of jobs with one request.
struct Prior {
    /// Learned windows of the class when it was computed.
    learned: u32,
    uses: u32,
    surfaces: Vec<SurfaceWithPoints>,
}

/// The jobs of one request.
#[derive(Default)]
struct Jobs {
    /// Number of jobs that had a window.
    measured: u32,
    /// The newest surface of a sampled one.
    newest: Option<SurfaceWithPoints>,
    prior: Option<Prior>,
}

/// The sample and the surfaces that jobs share.
#[derive(Default)]
pub(crate) struct Sample(BTreeMap<Request, Jobs>);

impl Sample {
    /// The surface of a job that is left out of the sample, at its first window; `None` for a sampled job.
    pub(crate) fn left_out(&mut self, job: &JobFacts) -> Option<SurfaceWithPoints> {
        let jobs = self.0.entry(Request::of(job)).or_default();
        let number = jobs.measured;
        jobs.measured = number.saturating_add(1);
        let every = if number < LEARNED_MANY { LEARNED_EVERY } else { LEARNED_RARELY };
        let is_sampled = number < LEARNED_FIRST || number.is_multiple_of(every);
        jobs.newest.clone().filter(|_| !is_sampled)
    }

    /// A window of a sampled job was learned, with this surface.
    pub(crate) fn learned(&mut self, job: &JobFacts, surface: &Arc<Surface>) {
        let points = Arc::new(OperatingPoints::of_job(surface, job));
        let jobs = self.0.entry(Request::of(job)).or_default();
        jobs.newest = Some((Arc::clone(surface), points));
    }

    /// The prior of a job whose class has this many learned windows, if it is still valid.
    pub(crate) fn prior(&mut self, job: &JobFacts, learned: u32) -> Option<Vec<SurfaceWithPoints>> {
        let prior = self.0.get_mut(&Request::of(job))?.prior.as_mut()?;
        prior.uses += 1;
        let is_used_up = prior.uses > PRIOR_USES && learned > prior.learned;
        let is_outdated = learned * 4 > prior.learned * 5;
        (!is_used_up && !is_outdated).then(|| prior.surfaces.clone())
    }

    /// Keeps the prior of a job whose class has this many learned windows.
    pub(crate) fn keep_prior(
        &mut self,
        job: &JobFacts,
        learned: u32,
        surfaces: &[SurfaceWithPoints],
    ) {
        let jobs = self.0.entry(Request::of(job)).or_default();
        jobs.prior = Some(Prior { learned, uses: 1, surfaces: surfaces.to_vec() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattle_common::JobId;
    use wattle_common::job::GpuRequest;
    use wattle_testkit as testkit;

    fn job(gpus: u32) -> JobFacts {
        let facts = JobFacts::new(JobId::new("j").unwrap(), GpuRequest::exactly(gpus));
        JobFacts { workload: WorkloadId::new("resnet50").ok(), ..facts }
    }

    fn surface() -> Arc<Surface> {
        Arc::new(testkit::surface("j", "v100", vec![testkit::point(1, 1.0, 200.0)]))
    }

    #[test]
    fn first_jobs_of_a_request_are_learned_then_ever_fewer() {
        let mut sample = Sample::default();
        let mut learned = [0, 0];
        for number in 0..400 {
            let gpus = 1 + number % 2;
            if sample.left_out(&job(gpus)).is_none() {
                learned[gpus as usize - 1] += 1;
                sample.learned(&job(gpus), &surface());
            }
        }
        // Numbers 0 to 7, then 8, 16, ..., 120, then 128, 160 and 192.
        assert_eq!(learned, [26, 26]);
    }

    #[test]
    fn prior_is_shared_until_its_class_has_a_quarter_more_windows() {
        let mut sample = Sample::default();
        let prior = vec![(surface(), Arc::new(OperatingPoints::default()))];
        assert!(sample.prior(&job(1), 0).is_none());
        sample.keep_prior(&job(1), 8, &prior);
        assert!(sample.prior(&job(1), 10).is_some() && sample.prior(&job(2), 10).is_none());
        assert!(sample.prior(&job(1), 11).is_none());
        for _ in 0..2 * PRIOR_USES {
            sample.prior(&job(1), 8);
        }
        assert!(sample.prior(&job(1), 8).is_some(), "nothing was learned since");
        assert!(sample.prior(&job(1), 9).is_none());
    }
}
