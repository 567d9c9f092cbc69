//! A policy whose planning inputs are recorded.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use wattle_baselines::policy;
use wattle_common::job::GpuSetting;
use wattle_common::messages::Surface;
use wattle_common::{JobId, Timestamp};
use wattle_placer::{
    Capabilities, GpuSet, Job, Plan, PlanningInput, PlanningLimits, Policy, Progress, State,
};

/// What one planning round reads.
#[derive(Clone, Debug)]
pub(super) struct Round {
    pub(super) at: Timestamp,
    pub(super) jobs: BTreeMap<JobId, JobSeen>,
    limits: PlanningLimits,
}

/// The part of a job that events outside planning change, and its GPUs.
#[derive(Clone, Debug)]
pub(super) struct JobSeen {
    pub(super) surfaces: Vec<Arc<Surface>>,
    pub(super) progress: Option<Progress>,
    held: Option<(GpuSet, GpuSetting)>,
    /// First report of a job since an observation began, of every observation.
    marks: Vec<(JobId, (Timestamp, u64))>,
}

impl Round {
    fn of(input: PlanningInput<'_>) -> Self {
        let state = input.state;
        // Hidden jobs are not in the queue of the input, but in its table.
        let jobs = state.running().chain(state.queue());
        let seen = |job: &Job| {
            let others = job.other_surfaces.iter().map(|known| &known.surface);
            let marks = job.state.trial().into_iter().flat_map(|seen| &seen.marks);
            JobSeen {
                surfaces: job.surface.iter().chain(others).cloned().collect(),
                progress: job.progress,
                held: match &job.state {
                    State::Running { on, setting, .. } => Some((on.clone(), *setting)),
                    State::Queued | State::Stopping { .. } => None,
                },
                marks: marks
                    .filter_map(|mark| Some((state.job(mark.job)?.facts.id.clone(), mark.from?)))
                    .collect(),
            }
        };
        Self {
            at: input.now(),
            jobs: jobs.map(|(_, job)| (job.facts.id.clone(), seen(job))).collect(),
            limits: input.limits.clone(),
        }
    }

    /// The GPUs with cap and clock of every running job.
    pub(super) fn held(&self) -> BTreeMap<&JobId, &(GpuSet, GpuSetting)> {
        self.jobs.iter().filter_map(|(id, job)| Some((id, job.held.as_ref()?))).collect()
    }

    /// The energy price and the power limits, to five digits: a ledger entry has whole millijoules.
    pub(super) fn limits(&self) -> String {
        let limits = &self.limits;
        let watts = |power: Option<wattle_common::Power>| power.map(|power| power.as_w().round());
        format!(
            "price {:.5e}, limits {:?} {:?} {:?}",
            limits.price,
            watts(limits.power_max),
            watts(limits.admission_limit),
            watts(limits.preemption_limit)
        )
    }

    /// The first report of this job since an observation began, if any.
    pub(super) fn mark(&self, job: &JobId) -> Option<(Timestamp, u64)> {
        let marks = self.jobs.values().flat_map(|seen| &seen.marks);
        marks.filter(|(id, _)| id == job).map(|(_, from)| *from).max()
    }
}

/// A policy and the inputs of its rounds, in order.
#[derive(Clone)]
pub(super) struct ObservedPolicy {
    name: String,
    rounds: Arc<Mutex<Vec<Round>>>,
}

impl ObservedPolicy {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), rounds: Arc::default() }
    }

    /// The rounds. A round that was repeated with newer surfaces, before its plan was applied, is
    /// omitted.
    pub(super) fn rounds(&self) -> Vec<Round> {
        let mut rounds: Vec<Round> = Vec::new();
        for round in self.rounds.lock().unwrap().iter() {
            let repeats = |last: &Round| {
                let same_jobs = last.jobs.keys().eq(round.jobs.keys());
                last.at == round.at && same_jobs && last.held() == round.held()
            };
            match rounds.last_mut().filter(|last| repeats(last)) {
                Some(last) => *last = round.clone(),
                None => rounds.push(round.clone()),
            }
        }
        rounds
    }
}

impl Policy for ObservedPolicy {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        policy(&self.name).unwrap().capabilities()
    }

    fn solve(&self, input: PlanningInput<'_>) -> Plan {
        self.rounds.lock().unwrap().push(Round::of(input));
        policy(&self.name).unwrap().solve(input)
    }

    fn fixed_setting(&self, job: &Job, gpu_type: &str, gpus: u32) -> Option<GpuSetting> {
        policy(&self.name).unwrap().fixed_setting(job, gpu_type, gpus)
    }
}
