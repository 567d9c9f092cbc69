//! EaCO: put jobs together as long as everybody's deadline holds, watch, and undo what was wrong.
//!
//! The rule is that of EaCO (arXiv 2412.08294, Algorithms 1 and 2). Jobs are taken in the order of
//! their arrival. Candidates for a job are GPU sets of its size on which every GPU is within a
//! threshold of utilisation and one of peak memory, and has memory left for it. The fullest
//! candidate on which all predicted deadlines hold, the newcomer's and its neighbours', is taken.
//! Then one epoch of every job there is observed; if at the measured speeds all deadlines still
//! hold, the placement is final, otherwise the newcomer is undone at its epoch's end and placed
//! anew. A job that is exclusive gets free GPUs.
//!
//! What the paper leaves open, and what we chose:
//! * It prints no thresholds. Ours: a GPU takes a newcomer up to 70 % busy and 90 % of its memory,
//!   and holds two jobs: above about 70 % the published pairs begin to slow each other.
//! * It enumerates all subsets of GPUs. We look at those that can come first in its own order:
//!   within a node, the GPUs of each group with the same tenants, and the fullest ones of all; for a
//!   job larger than a node, the exact sets of running jobs of that size. Free GPUs come last, by
//!   first fit; a set is never part occupied and part free.
//! * PersistedState is tested on each GPU, since our jobs are data-parallel.
//! * When no candidate is left and no GPU is free the job waits, and so does everybody behind it.
//! * A job whose profile nobody knows runs alone until it is known; a prior for its declared class
//!   counts as history. A job with a deadline whose end cannot be predicted is not put with others.
//! * A job whose surface has not come yet, which takes the predictor a moment, is waited for a few
//!   seconds before it counts as unknown; otherwise nobody would ever share while a GPU is free.
//! * While a placement is observed, its jobs get no further neighbour: that would falsify it.
//! * A job that cannot be stopped is put with others only where nobody has a deadline.
//! * A set a job was undone on is not tried again for it, and after three undos it runs alone.
//! * A job that reports no epochs counts as observed after ten minutes.

mod candidates;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use wattle_common::job::GpuSetting;

use crate::allocation::capacity::{FreeCapacity, Scope};
use crate::allocation::feasibility::infeasible;
use crate::allocation::first_fit::{first_fit, no_room};
use crate::plan::input::PlanningInput;
use crate::plan::reason::{Alone, Reason};
use crate::plan::{Blocked, Decision, Plan};
use crate::policies::colocation_trial::{
    UNDOS_MAX, Verdict, WITHOUT_EPOCHS, broken_deadline, judge,
};
use crate::policies::{Build, Capabilities, Policy, PolicyEntry, Reads};
use crate::state::gpu_set::{GpuSet, JobKey, NodeKey};
use crate::state::job::{Job, State};
use crate::state::job_forecast::{end, profile, relative_speed};

/// What the paper leaves to whoever builds it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EacoConfig {
    /// A GPU that is busier takes no newcomer, per cent.
    pub utilization_percent_max: f64,
    /// A GPU whose peak memory is fuller takes no newcomer, per cent.
    pub memory_percent_max: f64,
    /// A job undone so often runs alone.
    pub undos_max: usize,
    /// How long a job that reports no epochs is observed.
    pub observation_without_epochs: Duration,
    /// How long after its submission a job's first surface is waited for.
    pub surface_patience: Duration,
}

impl Default for EacoConfig {
    fn default() -> Self {
        Self {
            utilization_percent_max: 70.0,
            memory_percent_max: 90.0,
            undos_max: UNDOS_MAX,
            observation_without_epochs: WITHOUT_EPOCHS,
            // The way over the bus and back takes tens of milliseconds; a demonstration's clock may
            // run a hundred times as fast.
            surface_patience: Duration::from_secs(10),
        }
    }
}

/// EaCO.
#[derive(Clone, Copy, Debug, Default)]
pub struct Eaco {
    /// Its thresholds.
    pub config: EacoConfig,
}

/// Its line in the table of policies.
pub(super) const ENTRY: PolicyEntry = PolicyEntry {
    name: "eaco",
    rule: "jobs share the fullest GPUs on which all deadlines hold, are observed for an epoch and undone otherwise",
    source: "EaCO, arXiv 2412.08294",
    build: Build::Plain(|| Box::new(Eaco::default())),
};

impl Policy for Eaco {
    fn name(&self) -> &str {
        ENTRY.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { reads: Reads::Heads, shares_gpus: true, ..Capabilities::default() }
    }

    fn solve(&self, input: PlanningInput<'_>) -> Plan {
        let mut plan = Plan::default();
        let mut growing = Growing::new(input);
        for (key, job) in input.state.observed() {
            match self.judge(input, key, job) {
                Some(decision) => plan.decisions.push(decision),
                None => growing.watch(job),
            }
        }
        // Who is settled now may get a neighbour in the same round; who is undone still holds its
        // GPUs until it has stopped, and nobody is put beside it.
        for decision in &plan.decisions {
            if matches!(decision, Decision::Undo { .. }) {
                growing.watched.insert(decision.job());
            }
        }
        for (key, job) in input.state.queue() {
            if self.surface_may_come(&growing, job) {
                plan.blocked = Some(Blocked { job: key, reason: Reason::SurfaceAwaited });
                break;
            }
            let alone = match self.shared_place(&growing, key, job) {
                Ok(start) => {
                    growing.add(key, &start);
                    plan.decisions.push(start);
                    continue;
                }
                Err(alone) => alone,
            };
            if let Some((on, _)) = first_fit(&growing.capacity, job) {
                let reason = Reason::Idle { alone };
                let start = Decision::start(key, on, reason);
                growing.add(key, &start);
                plan.decisions.push(start);
            } else if let Some(reason) = infeasible(input.state, job) {
                plan.decisions.push(Decision::Reject { job: key, reason });
            } else {
                plan.blocked = Some(Blocked {
                    job: key,
                    reason: no_room(&growing.capacity, job, Some(alone)),
                });
                break;
            }
        }
        plan
    }
}

impl Eaco {
    /// Whether a surface that could still come might put the job beside somebody.
    fn surface_may_come(&self, growing: &Growing<'_>, job: &Job) -> bool {
        let input = growing.input;
        let somebody = input.state.running().next().is_some() || !growing.placed.is_empty();
        // A submission that lies ahead is another machine's clock, and nothing to wait for.
        let fresh = job.facts.submitted_at <= input.now()
            && input.now().since(job.facts.submitted_at) < self.config.surface_patience;
        let never_shares = job.facts.exclusive || job.undone_on.len() >= self.config.undos_max;
        job.surface.is_none() && fresh && somebody && !never_shares
    }

    /// What becomes of an observed placement; `None` while the observation goes on.
    fn judge(&self, input: PlanningInput<'_>, key: JobKey, job: &Job) -> Option<Decision> {
        let without_epochs = self.config.observation_without_epochs;
        judge(input, key, job, without_epochs, |seen, after| {
            let otherwise = Reason::DeadlinesHold { tenants: seen.marks.len() as u32, after };
            match broken_deadline(input, seen, |_, _, _| true) {
                Some(reason) => Verdict::Broken { reason, otherwise },
                None => Verdict::Holds(otherwise),
            }
        })
    }

    /// A place beside others, or why there is none.
    fn shared_place(
        &self,
        growing: &Growing<'_>,
        key: JobKey,
        job: &Job,
    ) -> Result<Decision, Alone> {
        if job.facts.exclusive {
            return Err(Alone::Exclusive);
        }
        if job.undone_on.len() >= self.config.undos_max {
            return Err(Alone::UndoneOften);
        }
        let known = |node: &crate::Node| profile(job, &node.facts.gpu_type).is_some();
        if !growing.input.state.nodes().iter().any(known) {
            return Err(Alone::Unknown);
        }
        let candidates = self.candidates(growing, job);
        let mut cannot_stop = false;
        for (i, candidate) in candidates.iter().enumerate() {
            if job.undone_on.contains(&candidate.on) {
                continue;
            }
            let beside = growing.jobs_on(&candidate.on);
            let at_stake = job.facts.deadline.is_some()
                || beside.iter().any(|(_, other)| other.facts.deadline.is_some());
            if at_stake && !job.facts.can_stop {
                cannot_stop = true;
                continue;
            }
            if at_stake && !self.deadlines_hold(growing, key, job, candidate, &beside) {
                continue;
            }
            return Ok(Decision::Start {
                job: key,
                on: candidate.on.clone(),
                setting: GpuSetting::DEFAULT,
                observe: job.facts.can_stop,
                reason: Reason::Fullest {
                    beside: beside.iter().map(|(_, other)| other.facts.id.clone()).collect(),
                    utilization_percent: candidate.utilization_percent,
                    choice: i as u32 + 1,
                    candidates: candidates.len() as u32,
                    speed: growing.speed(key, job, &candidate.on, None).filter(|_| at_stake),
                },
            });
        }
        Err(if cannot_stop { Alone::CannotStop } else { Alone::NoCandidate })
    }

    fn deadlines_hold(
        &self,
        growing: &Growing<'_>,
        key: JobKey,
        job: &Job,
        candidate: &candidates::Candidate,
        beside: &[(JobKey, &Job)],
    ) -> bool {
        let now = growing.input.now();
        let holds = |tenant: &Job, on: &GpuSet, speed: Option<f64>| {
            let Some(deadline) = tenant.facts.deadline else { return true };
            speed
                .and_then(|speed| end(now, tenant, on.gpu_count(), on.node_count(), speed))
                .is_some_and(|end| end <= deadline)
        };
        holds(job, &candidate.on, growing.speed(key, job, &candidate.on, None))
            && beside.iter().all(|&(other_key, other)| {
                growing.set_of(other_key, other).is_some_and(|on| {
                    let newcomer = Some((job, &candidate.on));
                    holds(other, on, growing.speed(other_key, other, on, newcomer))
                })
            })
    }
}

/// The input with what the plan has decided so far.
struct Growing<'a> {
    input: PlanningInput<'a>,
    capacity: FreeCapacity<'a>,
    added: BTreeMap<(NodeKey, u32), Vec<JobKey>>,
    placed: BTreeMap<JobKey, GpuSet>,
    /// Jobs that get no further neighbour.
    watched: BTreeSet<JobKey>,
}

impl<'a> Growing<'a> {
    fn new(input: PlanningInput<'a>) -> Self {
        // A job that is being stopped will not be a neighbour for long enough to predict anything.
        let stopping =
            |(key, job): (JobKey, &Job)| matches!(job.state, State::Stopping { .. }).then_some(key);
        Self {
            input,
            capacity: FreeCapacity::new(input.state, Scope::Idle),
            added: BTreeMap::new(),
            placed: BTreeMap::new(),
            watched: input.state.running().filter_map(stopping).collect(),
        }
    }

    fn watch(&mut self, job: &Job) {
        if let Some(seen) = job.state.observation() {
            self.watched.extend(seen.marks.iter().map(|mark| mark.job));
        }
    }

    fn add(&mut self, key: JobKey, start: &Decision) {
        let Decision::Start { on, observe, .. } = start else { return };
        if *observe {
            let beside: Vec<JobKey> = self.jobs_on(on).iter().map(|(other, _)| *other).collect();
            self.watched.extend(beside);
            self.watched.insert(key);
        }
        self.capacity.take(on);
        for place in on.gpus() {
            self.added.entry(place).or_default().push(key);
        }
        self.placed.insert(key, on.clone());
    }

    /// The jobs on one GPU.
    fn tenants(&self, node: NodeKey, gpu: u32) -> impl Iterator<Item = JobKey> {
        let added = self.added.get(&(node, gpu)).map_or(&[][..], Vec::as_slice);
        self.input.state.node(node).tenants(gpu).iter().chain(added).copied()
    }

    /// Everyone on some GPU of `on`, each once.
    fn jobs_on(&self, on: &GpuSet) -> Vec<(JobKey, &'a Job)> {
        let keys: BTreeSet<JobKey> =
            on.gpus().flat_map(|(node, gpu)| self.tenants(node, gpu)).collect();
        keys.into_iter().filter_map(|key| self.input.state.job(key).map(|job| (key, job))).collect()
    }

    fn set_of<'b>(&'b self, key: JobKey, job: &'b Job) -> Option<&'b GpuSet> {
        self.placed.get(&key).or_else(|| job.state.gpus())
    }

    /// The predicted speed of a job on `on`, as slow as its slowest GPU, with `newcomer` there too.
    fn speed(
        &self,
        key: JobKey,
        job: &Job,
        on: &GpuSet,
        newcomer: Option<(&Job, &GpuSet)>,
    ) -> Option<f64> {
        let mut slowest = 1.0f64;
        let mut last: Option<Vec<JobKey>> = None;
        let joined = |node: NodeKey, gpu: u32| {
            newcomer.filter(|(_, set)| {
                set.by_node.iter().any(|spot| spot.node == node && spot.gpus >> gpu & 1 == 1)
            })
        };
        let mut last_joined = false;
        for (node, gpu) in on.gpus() {
            let others: Vec<JobKey> =
                self.tenants(node, gpu).filter(|other| *other != key).collect();
            let with = joined(node, gpu);
            // Most of a job's GPUs have the same tenants.
            if last.as_ref() == Some(&others) && last_joined == with.is_some() {
                continue;
            }
            let neighbours: Vec<&Job> = others
                .iter()
                .filter_map(|&other| self.input.state.job(other))
                .chain(with.map(|(job, _)| job))
                .collect();
            let (gpus, nodes) = (on.gpu_count(), on.node_count());
            let kind = &self.input.state.node(node).facts.gpu_type;
            let there = relative_speed(job, kind, gpus, nodes, &neighbours)?;
            slowest = slowest.min(there);
            last = Some(others);
            last_joined = with.is_some();
        }
        Some(slowest)
    }
}
