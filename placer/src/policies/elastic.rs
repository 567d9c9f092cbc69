//! The start of every elastic policy: which jobs have an open size, and how many GPUs they share.
//!
//! The size of a job is open if its surface states the speed at several sizes. A running job without a
//! surface keeps its GPUs. A queued one gets its minimum in arrival order before GPUs are shared out,
//! since only a run can measure it.

use wattle_common::job::GpuSetting;

use crate::allocation::capacity::{FreeCapacity, Scope, TypeCounts};
use crate::allocation::feasibility::{infeasible, some_node_suits};
use crate::allocation::settling::{Growth, is_held, plan_when_settled, tried_sizes};
use crate::allocation::transition::{Target, plan_transition};
use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{Decision, Plan};
use crate::state::gpu_set::{GpuSet, JobKey};
use crate::state::job::{Job, State};
use crate::state::job_forecast::is_unmeasured;
use crate::state::operating_points::{OperatingPoint, OperatingPoints};

/// A job whose size is open.
#[derive(Debug)]
pub struct ElasticJob<'a> {
    /// Its key.
    pub key: JobKey,
    /// The job.
    pub job: &'a Job,
    /// Its operating points on the GPU type chosen for it.
    pub points: &'a OperatingPoints,
    /// The only size it may have: it runs and cannot stop, or keeps its size during a grid event.
    pub fixed_size: Option<u32>,
    /// Its size, if it runs and has not settled ([`crate::allocation::settling`]).
    pub held: Option<u32>,
    /// The largest size that the limits of its accounts permit.
    pub gpus_max: u32,
    /// Sizes that it left and that nothing new is known of.
    pub tried_sizes: Vec<u32>,
    growth: Option<Growth>,
}

impl<'a> ElasticJob<'a> {
    /// A job that may have every size of these operating points within the limits of its accounts.
    pub fn new(
        input: PlanningInput<'_>,
        key: JobKey,
        job: &'a Job,
        points: &'a OperatingPoints,
    ) -> Self {
        let gpus_max = input.sizes_max.and_then(|sizes| sizes.get(&key).copied());
        Self {
            gpus_max: gpus_max.unwrap_or(u32::MAX),
            key,
            job,
            points,
            fixed_size: None,
            held: None,
            tried_sizes: Vec::new(),
            growth: None,
        }
    }

    /// The same job with the sizes that settling permits.
    fn settling(self, input: PlanningInput<'_>, fixed_size: Option<u32>) -> Self {
        let Self { key, job, points, gpus_max, .. } = self;
        let held = job.state.gpus().filter(|_| is_held(input, job)).map(GpuSet::gpu_count);
        let held = held.filter(|&gpus| !points.with_gpus(gpus).is_empty());
        // For a while an event leaves it fewer GPUs.
        let promised = input.limits.promises.known(key).and_then(|promise| promise.gpus_max);
        let promised = promised.filter(|&most| {
            fixed_size.is_none() && held.is_none() && points.sizes().any(|gpus| gpus <= most)
        });
        Self {
            gpus_max: promised.map_or(gpus_max, |most| most.min(gpus_max)),
            fixed_size,
            held,
            tried_sizes: tried_sizes(input, job, points),
            growth: Growth::of(input, job, points),
            ..self
        }
    }

    /// Its operating points with this many GPUs; none if it may not have them.
    pub fn with_gpus(&self, gpus: u32) -> &'a [OperatingPoint] {
        if self.may_have(gpus) { self.points.with_gpus(gpus) } else { &[] }
    }

    /// The sizes it may have, ascending.
    pub fn sizes(&self) -> impl Iterator<Item = u32> {
        self.points.sizes().filter(|&gpus| self.may_have(gpus))
    }

    /// Whether its operating points have one size only.
    pub fn has_one_size(&self) -> bool {
        let points = self.points.points();
        points.first().map(|point| point.gpus) == points.last().map(|point| point.gpus)
    }

    fn may_have(&self, gpus: u32) -> bool {
        let rates = || self.points.with_gpus(gpus).iter().map(|point| point.steps_per_s);
        self.fixed_size.or(self.held).is_none_or(|size| size == gpus)
            && gpus <= self.gpus_max
            && !self.tried_sizes.contains(&gpus)
            && self.growth.is_none_or(|growth| growth.pays(gpus, rates().fold(0.0, f64::max)))
    }

    /// Its GPU type.
    pub fn gpu_type(&self) -> &'a str {
        &self.points.gpu_type
    }
}

/// The jobs with open sizes and the GPUs they share.
#[derive(Debug)]
pub struct Sizing<'a> {
    /// Running jobs that cannot stop first, then all others, each in arrival order.
    pub jobs: Vec<ElasticJob<'a>>,
    /// Targets that do not depend on the policy.
    pub fixed: Vec<Target>,
    /// The GPUs left of each type, awake or asleep.
    pub free: TypeCounts<'a>,
    /// Rejections of jobs that can never be placed.
    pub rejected: Vec<Decision>,
}

/// Whether a running job keeps its number of GPUs: it cannot stop, or its promise during a grid event forbids a change.
fn keeps_size(input: PlanningInput<'_>, key: JobKey, job: &Job) -> bool {
    let gpus = job.state.gpus().map_or(0, GpuSet::gpu_count);
    let promise = input.limits.promises.of(key, job, (gpus, job.state.gpus()), input.now());
    !job.facts.can_stop || promise.is_some_and(|promise| promise.keeps_size())
}

impl<'a> Sizing<'a> {
    /// The jobs of this input, and the GPUs left to them.
    #[must_use]
    pub fn of(input: PlanningInput<'a>) -> Self {
        let free = FreeCapacity::new(input.state, Scope::All).type_counts();
        let mut sizing = Self { jobs: Vec::new(), fixed: Vec::new(), free, rejected: Vec::new() };
        // Arrival order alone, so that a job that is stopped to be moved keeps its place.
        let mut all: Vec<(JobKey, &Job)> =
            input.state.running().chain(input.state.queue()).collect();
        let stays = |key: JobKey, job: &Job| {
            matches!(job.state, State::Running { .. }) && keeps_size(input, key, job)
        };
        all.sort_by_key(|(key, job)| (!stays(*key, job), job.arrival));
        for (key, job) in all {
            sizing.add(input, key, job);
        }
        sizing
    }

    fn add(&mut self, input: PlanningInput<'a>, key: JobKey, job: &'a Job) {
        let running = match &job.state {
            State::Running { on, setting, .. } => Some((on, *setting)),
            // It stops to wait in the queue: its GPUs go to other jobs.
            State::Stopping { .. } if job.next_gpus.is_none() => return,
            // It stops to be moved, and counts as the queued job it will be.
            State::Stopping { .. } | State::Queued => None,
        };
        if job.state == State::Queued
            && let Some(reason) = infeasible(input.state, job)
        {
            self.rejected.push(Decision::Reject { job: key, reason });
            return;
        }
        let points = points(input, job)
            .filter(|points| !points.points().is_empty() && self.free.has_type(&points.gpu_type));
        let fixed_size =
            running.filter(|_| keeps_size(input, key, job)).map(|(on, _)| on.gpu_count());
        if let Some(points) = points
            && fixed_size.is_none_or(|size| !points.with_gpus(size).is_empty())
        {
            self.jobs.push(ElasticJob::new(input, key, job, points).settling(input, fixed_size));
            return;
        }
        let (gpus, gpu_type, setting) = match running {
            Some((on, setting)) => {
                let gpu_type = input.state.node(on.by_node[0].node).facts.gpu_type.clone();
                (on.gpu_count(), gpu_type, setting)
            }
            None => {
                let next = job.next_gpu_type.as_deref().map(str::to_owned);
                let most_free = || {
                    let types = self.free.by_name().into_iter();
                    let types = types.filter(|(name, _)| some_node_suits(input.state, job, name));
                    types.max_by_key(|(_, free)| *free).map(|(name, _)| name)
                };
                let gpu_type = next.unwrap_or_else(|| most_free().unwrap_or_default().to_owned());
                (job.next_gpus.unwrap_or(job.facts.request.min), gpu_type, GpuSetting::DEFAULT)
            }
        };
        if self.free.take(&gpu_type, gpus) {
            let reason = Reason::Share { gpus };
            self.fixed.push(Target { jobs: vec![key], gpus, gpu_type, setting, reason });
        }
    }

    /// The plan for these targets and the fixed ones. `before`: how many jobs come before a stopped one.
    pub fn plan(mut self, input: PlanningInput<'_>, shared: Vec<Target>, before: u32) -> Plan {
        let mut targets = self.all_targets(shared);
        measure_at_default(input, &mut targets);
        let mut plan = self.plan_for(input, &targets, before);
        // If no job waits, only a change of size or GPU type could follow.
        let starts = plan.decisions.iter().filter(|d| matches!(d, Decision::Start { .. })).count();
        let stops = plan.decisions.iter().any(|d| matches!(d, Decision::Stop { .. }));
        if stops || starts < input.state.queue_len() || some_job_may_change(input) {
            plan_when_settled(input, &mut plan);
        }
        plan
    }

    /// The fixed targets and these.
    pub fn all_targets(&mut self, shared: Vec<Target>) -> Vec<Target> {
        let mut targets = std::mem::take(&mut self.fixed);
        targets.extend(shared);
        targets
    }

    /// The plan for all targets.
    pub fn plan_for(self, input: PlanningInput<'_>, targets: &[Target], before: u32) -> Plan {
        let mut plan = plan_transition(input, targets, &Reason::Outranked { before });
        plan.decisions.extend(self.rejected);
        plan
    }
}

/// Sets the default setting for jobs without a measurement.
pub fn measure_at_default(input: PlanningInput<'_>, targets: &mut [Target]) {
    for target in targets {
        let mut jobs = target.jobs.iter().filter_map(|&job| input.state.job(job));
        if jobs.any(is_unmeasured) {
            target.setting = GpuSetting::DEFAULT;
        }
    }
}

/// Whether some job has several sizes or GPU types.
fn some_job_may_change(input: PlanningInput<'_>) -> bool {
    input.state.running().chain(input.state.queue()).any(|(_, job)| {
        let points = job.operating_points.as_deref().map_or(&[][..], OperatingPoints::points);
        let sizes = points.first().zip(points.last()).filter(|(a, b)| a.gpus != b.gpus);
        sizes.is_some() || !job.other_surfaces.is_empty()
    })
}

/// The operating points before GPU types are chosen: on the type that the job has or is moved to,
/// otherwise on the first type of its surfaces that the cluster has.
fn points<'a>(input: PlanningInput<'_>, job: &'a Job) -> Option<&'a OperatingPoints> {
    if let Some(gpu_type) = job.next_gpu_type.as_deref().or_else(|| input.state.gpu_type_of(job)) {
        return job.operating_points_on(gpu_type);
    }
    let mut known = job.all_operating_points().map(|points| &**points);
    known.find(|points| {
        !points.points().is_empty() && some_node_suits(input.state, job, &points.gpu_type)
    })
}
