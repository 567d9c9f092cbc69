//! EaCO: jobs share GPUs as long as all deadlines hold; they are observed, and undone otherwise.
//!
//! The rule is that of EaCO (arXiv 2412.08294, Algorithms 1 and 2). Jobs are served in arrival order.
//! Candidates for a job are GPU sets of its size on which every GPU is below thresholds of utilisation and
//! peak memory and has enough memory left. The fullest candidate on which all predicted deadlines hold, the
//! job's and its co-tenants', is chosen. Every job there is then observed for an epoch. If all deadlines hold
//! at the measured speeds the placement is final; otherwise the new job is undone at its epoch's end and
//! placed again. An exclusive job gets free GPUs.
//!
//! Our own choices, where the paper leaves them open:
//! * Thresholds: a GPU accepts a further job up to 70 % utilisation and 90 % of its memory, and holds two
//!   jobs. Above about 70 % the published pairs begin to slow each other.
//! * The paper enumerates all subsets of GPUs. Here the candidates are those that can be first in its own
//!   order: within a node the GPUs of each group with the same tenants, and the fullest GPUs of all groups;
//!   for a job larger than a node the exact sets of running jobs of that size. Free GPUs come last, by first
//!   fit. A set is never partly occupied and partly free.
//! * Memory is checked on each GPU, since jobs are data-parallel.
//! * If no candidate and no free GPUs remain the job waits, and so do all jobs behind it.
//! * A job without a profile runs exclusively until it has one; a prior for its declared class counts. A job
//!   with a deadline and no predicted completion does not share.
//! * A new job whose surface has not arrived yet is held for a few seconds before it counts as unknown;
//!   otherwise no job would share while a GPU is free.
//! * Jobs under observation get no further co-tenant, which would falsify the measurement.
//! * A job that cannot be stopped shares only if no job there has a deadline.
//! * A set on which a job was undone is not tried again for it. After three undos it runs exclusively.
//! * A job that reports no epochs counts as observed after ten minutes.

mod candidates;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use wattle_common::job::GpuSetting;

use crate::allocation::capacity::{FreeCapacity, Scope};
use crate::allocation::feasibility::infeasible;
use crate::allocation::first_fit::{first_fit, no_room};
use crate::plan::input::PlanningInput;
use crate::plan::reason::{NotShared, Reason};
use crate::plan::{Blocked, Decision, Plan};
use crate::policies::colocation_trial::{
    UNDOS_MAX, Verdict, WITHOUT_EPOCHS, broken_deadline, judge,
};
use crate::policies::{Build, Capabilities, Policy, PolicyEntry, Reads};
use crate::state::gpu_set::{GpuSet, JobKey, NodeKey};
use crate::state::job::{Job, State};
use crate::state::job_forecast::{end, profile, relative_speed};

/// Parameters that the paper leaves open.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EacoConfig {
    /// Utilisation above which a GPU accepts no further job, per cent.
    pub utilization_percent_max: f64,
    /// Peak memory above which a GPU accepts no further job, per cent.
    pub memory_percent_max: f64,
    /// The number of undos after which a job runs exclusively.
    pub undos_max: usize,
    /// How long a job that reports no epochs is observed.
    pub observation_without_epochs: Duration,
    /// How long after its submission a job waits for its first surface.
    pub surface_patience: Duration,
}

impl Default for EacoConfig {
    fn default() -> Self {
        Self {
            utilization_percent_max: 70.0,
            memory_percent_max: 90.0,
            undos_max: UNDOS_MAX,
            observation_without_epochs: WITHOUT_EPOCHS,
            // A surface takes tens of milliseconds over the bus; a demonstration's clock may run a
            // hundred times faster.
            surface_patience: Duration::from_secs(10),
        }
    }
}

/// EaCO.
#[derive(Clone, Copy, Debug, Default)]
pub struct Eaco {
    /// Its parameters.
    pub config: EacoConfig,
}

impl Eaco {
    /// Its line in the table of policies.
    pub const ENTRY: PolicyEntry = PolicyEntry {
        name: "eaco",
        rule: "jobs share the fullest GPUs on which all deadlines hold, are observed for an epoch and undone otherwise",
        source: "EaCO, arXiv 2412.08294",
        build: Build::Plain(|| Box::new(Eaco::default())),
    };
}

impl Policy for Eaco {
    fn name(&self) -> &str {
        Self::ENTRY.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { reads: Reads::Heads, shares_gpus: true, ..Capabilities::default() }
    }

    fn solve(&self, input: PlanningInput<'_>) -> Plan {
        let mut plan = Plan::default();
        let mut partial = PartialPlan::new(input);
        for (key, job) in input.state.observed() {
            match self.judge(input, key, job) {
                Some(decision) => plan.decisions.push(decision),
                None => partial.watch(job),
            }
        }
        // A job whose placement is confirmed may get a co-tenant in the same round. One that is undone
        // holds its GPUs until it has stopped and gets none.
        for decision in &plan.decisions {
            if matches!(decision, Decision::Undo { .. }) {
                partial.watched.insert(decision.job());
            }
        }
        for (key, job) in input.state.queue() {
            if self.surface_may_come(&partial, job) {
                plan.blocked = Some(Blocked { job: key, reason: Reason::SurfaceAwaited });
                break;
            }
            let alone = match self.shared_placement(&partial, key, job) {
                Ok(start) => {
                    partial.add(key, &start);
                    plan.decisions.push(start);
                    continue;
                }
                Err(alone) => alone,
            };
            if let Some((on, _)) = first_fit(&partial.capacity, job) {
                let reason = Reason::FreeGpus { not_shared: alone };
                let start = Decision::start(key, on, reason);
                partial.add(key, &start);
                plan.decisions.push(start);
            } else if let Some(reason) = infeasible(input.state, job) {
                plan.decisions.push(Decision::Reject { job: key, reason });
            } else {
                plan.blocked = Some(Blocked {
                    job: key,
                    reason: no_room(&partial.capacity, job, Some(alone)),
                });
                break;
            }
        }
        plan
    }
}

impl Eaco {
    /// Whether a surface that may still arrive could make the job share.
    fn surface_may_come(&self, partial: &PartialPlan<'_>, job: &Job) -> bool {
        let input = partial.input;
        let some_job_runs = input.state.running().next().is_some() || !partial.placed.is_empty();
        // A submission in the future comes from a wrong clock and is not waited for.
        let fresh = job.facts.submitted_at <= input.now()
            && input.now().since(job.facts.submitted_at) < self.config.surface_patience;
        let never_shares = job.facts.exclusive || job.undone_on.len() >= self.config.undos_max;
        job.surface.is_none() && fresh && some_job_runs && !never_shares
    }

    /// The decision about an observed placement; `None` while the observation continues.
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

    /// A placement with co-tenants, or why there is none.
    fn shared_placement(
        &self,
        partial: &PartialPlan<'_>,
        key: JobKey,
        job: &Job,
    ) -> Result<Decision, NotShared> {
        if job.facts.exclusive {
            return Err(NotShared::Exclusive);
        }
        if job.undone_on.len() >= self.config.undos_max {
            return Err(NotShared::UndoneOften);
        }
        let known = |node: &crate::Node| profile(job, &node.facts.gpu_type).is_some();
        if !partial.input.state.nodes().iter().any(known) {
            return Err(NotShared::Unknown);
        }
        let candidates = self.candidates(partial, job);
        let mut cannot_stop = false;
        for (i, candidate) in candidates.iter().enumerate() {
            if job.undone_on.contains(&candidate.on) {
                continue;
            }
            let beside = partial.jobs_on(&candidate.on);
            let at_stake = job.facts.deadline.is_some()
                || beside.iter().any(|(_, other)| other.facts.deadline.is_some());
            if at_stake && !job.facts.can_stop {
                cannot_stop = true;
                continue;
            }
            if at_stake && !self.deadlines_hold(partial, key, job, candidate, &beside) {
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
                    speed: partial.speed(key, job, &candidate.on, None).filter(|_| at_stake),
                },
            });
        }
        Err(if cannot_stop { NotShared::CannotStop } else { NotShared::NoCandidate })
    }

    fn deadlines_hold(
        &self,
        partial: &PartialPlan<'_>,
        key: JobKey,
        job: &Job,
        candidate: &candidates::Candidate,
        beside: &[(JobKey, &Job)],
    ) -> bool {
        let now = partial.input.now();
        let holds = |tenant: &Job, on: &GpuSet, speed: Option<f64>| {
            let Some(deadline) = tenant.facts.deadline else { return true };
            speed
                .and_then(|speed| end(now, tenant, on.gpu_count(), on.node_count(), speed))
                .is_some_and(|end| end <= deadline)
        };
        holds(job, &candidate.on, partial.speed(key, job, &candidate.on, None))
            && beside.iter().all(|&(other_key, other)| {
                partial.set_of(other_key, other).is_some_and(|on| {
                    let newcomer = Some((job, &candidate.on));
                    holds(other, on, partial.speed(other_key, other, on, newcomer))
                })
            })
    }
}

/// The input with the decisions made so far.
struct PartialPlan<'a> {
    input: PlanningInput<'a>,
    capacity: FreeCapacity<'a>,
    added: BTreeMap<(NodeKey, u32), Vec<JobKey>>,
    placed: BTreeMap<JobKey, GpuSet>,
    /// Jobs that get no further co-tenant.
    watched: BTreeSet<JobKey>,
}

impl<'a> PartialPlan<'a> {
    fn new(input: PlanningInput<'a>) -> Self {
        // A stopping job is no co-tenant for long enough to predict anything.
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
        if let Some(seen) = job.state.trial() {
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

    /// The jobs on any GPU of `on`, each once.
    fn jobs_on(&self, on: &GpuSet) -> Vec<(JobKey, &'a Job)> {
        let keys: BTreeSet<JobKey> =
            on.gpus().flat_map(|(node, gpu)| self.tenants(node, gpu)).collect();
        keys.into_iter().filter_map(|key| self.input.state.job(key).map(|job| (key, job))).collect()
    }

    fn set_of<'b>(&'b self, key: JobKey, job: &'b Job) -> Option<&'b GpuSet> {
        self.placed.get(&key).or_else(|| job.state.gpus())
    }

    /// The predicted speed of a job on `on`, that of its slowest GPU, with `newcomer` there as well.
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
            let gpu_type = &self.input.state.node(node).facts.gpu_type;
            let there = relative_speed(job, gpu_type, gpus, nodes, &neighbours)?;
            slowest = slowest.min(there);
            last = Some(others);
            last_joined = with.is_some();
        }
        Some(slowest)
    }
}
