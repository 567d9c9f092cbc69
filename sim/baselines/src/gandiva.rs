//! Gandiva: random pairs once the cluster is too small.
//!
//! The rule is that of Gavel's packing Gandiva (`Gandiva_Packing` in
//! github.com/stanford-futuredata/gavel, after Xiao et al., Gandiva, OSDI 2018). While all jobs together
//! request no more GPUs than exist, no GPU is shared. Otherwise jobs of equal size are paired at random, and
//! a pair is dissolved once the sum of both normalised speeds is below 1.
//!
//! Our own choices:
//! * *At random* is by a hash of both ids, so the same input gives the same pairs.
//! * Gavel pairs blindly and reads the speeds a round later. Here a pair with a predicted sum below 1 or
//!   without a prediction is not formed, and a pair whose prediction falls below 1 is dissolved.
//! * At least one job of a new pair is queued: two running jobs are not put together.
//! * Gavel shares time equally among all pairs and singles, in rounds. Here no job is stopped for another
//!   job's turn: free GPUs go to queued jobs in arrival order, and jobs that do not fit are passed over.
//! * A new pair is observed for an epoch and undone if it is slower than the jobs in turns
//!   ([`wattle_placer::policies::colocation_trial`]).
//! * The peak memory of both must fit; otherwise the sum of their speeds counts as 0. Exclusive jobs do not
//!   share.

use std::collections::{BTreeMap, BTreeSet};

use wattle_common::JobId;
use wattle_common::hash::fnv1a;
use wattle_common::job::GpuSetting;

use wattle_placer::allocation::capacity::{FreeCapacity, Scope, TypeCounts};
use wattle_placer::allocation::feasibility::{HealthyCluster, infeasible, suits};
use wattle_placer::allocation::settling::{is_held, plan_when_settled};
use wattle_placer::allocation::transition::{Target, plan_transition};
use wattle_placer::plan::input::PlanningInput;
use wattle_placer::plan::reason::Reason;
use wattle_placer::plan::{Blocked, Decision, Plan};
use wattle_placer::policies::colocation_trial::may_share;
use wattle_placer::policies::{Build, Capabilities, Policy, PolicyEntry, Reads};
use wattle_placer::state::gpu_set::{GpuSet, JobKey};
use wattle_placer::state::job::{Job, State};
use wattle_placer::state::job_forecast::{profile, relative_speed};

/// The sum of normalised speeds below which a pair is dissolved: Gavel's own figure.
pub const DISSOLVE_BELOW: f64 = 1.0;

/// Random pairs once the cluster is too small.
#[derive(Clone, Copy, Debug)]
pub struct Gandiva {
    /// The sum of normalised speeds below which a pair is dissolved.
    pub dissolve_below: f64,
}

impl Default for Gandiva {
    fn default() -> Self {
        Self { dissolve_below: DISSOLVE_BELOW }
    }
}

/// A round while it is being planned.
struct Round<'a> {
    input: PlanningInput<'a>,
    dissolve_below: f64,
    targets: Vec<Target>,
    /// GPUs that no target has.
    free: TypeCounts<'a>,
    /// Jobs that are exclusive on their GPUs.
    singles: Vec<(JobKey, &'a GpuSet)>,
    /// Jobs that are separated from a co-tenant.
    separated: Vec<JobKey>,
}

impl Gandiva {
    /// Its line in the table of policies.
    pub const ENTRY: PolicyEntry = PolicyEntry {
        name: "gandiva",
        rule: "random pairs of equal size once demand exceeds the GPUs, dissolved where they are slower than in turns",
        source: "Xiao et al., Gandiva, OSDI 2018, as in Gavel",
        build: Build::Plain(|| Box::new(Gandiva::default())),
    };
}

impl Policy for Gandiva {
    fn name(&self) -> &str {
        Self::ENTRY.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            reads: Reads::Heads,
            shares_gpus: true,
            has_trials: true,
            ..Capabilities::default()
        }
    }

    fn solve(&self, input: PlanningInput<'_>) -> Plan {
        let healthy = HealthyCluster::of(input.state);
        let mut rejected = Vec::new();
        let mut waiting: Vec<(JobKey, &Job)> = Vec::new();
        for (key, job) in input.state.queue() {
            if let Some(reason) = infeasible(input.state, job) {
                rejected.push(Decision::Reject { job: key, reason });
            } else if healthy.could_start(job) {
                waiting.push((key, job));
            }
        }
        let has = |job: &Job| job.state.gpus().map_or(0, GpuSet::gpu_count);
        let mut free = FreeCapacity::new(input.state, Scope::All).type_counts();
        waiting.iter().for_each(|(_, job)| free.expect(input.state, job, job.facts.request.min));
        let demand = input.state.running().map(|(_, job)| has(job)).sum::<u32>()
            + waiting.iter().map(|(_, job)| job.facts.request.min).sum::<u32>();
        let crowded = demand > free.total();
        let mut round = Round {
            input,
            dissolve_below: self.dissolve_below,
            targets: Vec::new(),
            free,
            singles: Vec::new(),
            separated: Vec::new(),
        };
        round.keep(crowded);
        round.place_separated();
        let first_waiting = round.admit(&waiting, crowded);
        let before = round.targets.len() as u32;
        let mut plan = plan_transition(input, &round.targets, &Reason::Outranked { before });
        plan.decisions.extend(rejected);
        plan_when_settled(input, &mut plan);
        if plan.blocked.is_none() {
            let reason = Reason::Outranked { before };
            plan.blocked = first_waiting.map(|job| Blocked { job, reason });
        }
        plan
    }
}

impl<'a> Round<'a> {
    /// Running jobs keep their GPUs. A pair is separated if it is too slow, or if there are enough GPUs.
    fn keep(&mut self, crowded: bool) {
        let mut there: BTreeMap<&'a GpuSet, Vec<(JobKey, &'a Job)>> = BTreeMap::new();
        let mut moving: BTreeMap<&'a GpuSet, Vec<(JobKey, &'a Job)>> = BTreeMap::new();
        for (key, job) in self.input.state.running() {
            match &job.state {
                State::Running { on, .. } => there.entry(on).or_default().push((key, job)),
                State::Stopping { on, .. } if job.next_gpus.is_some() => {
                    moving.entry(on).or_default().push((key, job));
                }
                State::Stopping { .. } | State::Queued => {}
            }
        }
        for (&on, jobs) in &mut there {
            // The job that cannot stop or has not settled keeps the GPUs, otherwise the earlier one.
            let leaves = |job: &Job| job.facts.can_stop && !is_held(self.input, job);
            jobs.sort_by_key(|(_, job)| (leaves(job), job.arrival));
            self.free.take_kept(self.input.state, jobs[0].1, on.gpu_count());
            let stuck = jobs.get(1).is_some_and(|(_, job)| !leaves(job));
            if jobs.len() == 1 || stuck || (crowded && self.is_worth(jobs, on)) {
                self.targets.push(target_for(jobs, on));
            } else {
                self.targets.push(target_for(&jobs[..1], on));
                self.separated.extend(jobs[1..].iter().map(|&(key, _)| key));
            }
            if let [(key, _)] = jobs[..] {
                self.singles.push((key, on));
            }
        }
        for (on, jobs) in moving {
            // Both are being moved, or one of them is.
            let both = !there.contains_key(on) && crowded && self.is_worth(&jobs, on);
            if both && self.free.take_for(self.input.state, jobs[0].1, on.gpu_count()).is_some() {
                self.targets.push(target_for(&jobs, on));
            } else {
                self.separated.extend(jobs.iter().map(|&(key, _)| key));
            }
        }
    }

    fn is_worth(&self, jobs: &[(JobKey, &'a Job)], on: &GpuSet) -> bool {
        match jobs {
            [(_, a), (_, b)] => self.sum(a, b, on).is_none_or(|sum| sum >= self.dissolve_below),
            _ => true,
        }
    }

    /// Separated jobs get GPUs of their own, if there are some.
    fn place_separated(&mut self) {
        let mut separated = std::mem::take(&mut self.separated);
        separated.sort_by_key(|&key| self.input.state.job(key).map(|job| job.arrival));
        for key in separated {
            let Some(job) = self.input.state.job(key) else { continue };
            let Some(gpus) = job.state.gpus().map(GpuSet::gpu_count) else { continue };
            if let Some(gpu_type) = self.free.take_for(self.input.state, job, gpus) {
                self.targets
                    .push(Target { gpu_type: gpu_type.to_owned(), ..Target::exclusive(key, gpus) });
            }
        }
    }

    /// Queued jobs in arrival order, each with a partner if the cluster is crowded. Returns the first one
    /// without GPUs.
    fn admit(&mut self, waiting: &[(JobKey, &'a Job)], crowded: bool) -> Option<JobKey> {
        let mut settled: BTreeSet<JobKey> = BTreeSet::new();
        let mut first = None;
        for (index, &(key, job)) in waiting.iter().enumerate() {
            if settled.contains(&key) {
                continue;
            }
            let gpus = job.facts.request.min;
            let fits = self.free.fits(self.input.state, job, gpus);
            let may = !job.facts.exclusive && may_share(job);
            let shares = crowded && may && self.input.limits.tenants_max >= 2;
            let running = if shares { self.running_partner(job, gpus) } else { None };
            let others = waiting[index + 1..].iter().filter(|(key, _)| !settled.contains(key));
            let queued = if shares && fits {
                self.queued_partner(job, gpus, others, running.as_ref())
            } else {
                None
            };
            if let Some((other, target)) = queued {
                self.free.take(&target.gpu_type, gpus);
                settled.insert(other);
                self.targets.push(Target { jobs: vec![key, other], ..target });
            } else if let Some(Partner { at, reason, .. }) = running {
                let (single, _) = self.singles.remove(at);
                let target = self.targets.iter_mut().find(|target| target.jobs == [single]);
                if let Some(target) = target {
                    target.jobs.push(key);
                    target.reason = reason;
                }
            } else if let Some(gpu_type) = self.free.take_for(self.input.state, job, gpus) {
                self.targets
                    .push(Target { gpu_type: gpu_type.to_owned(), ..Target::exclusive(key, gpus) });
            } else {
                first.get_or_insert(key);
            }
        }
        first
    }

    /// The running exclusive job that chance pairs with `job`.
    fn running_partner(&self, job: &Job, gpus: u32) -> Option<Partner> {
        let candidates = self.singles.iter().enumerate().filter_map(|(at, &(key, on))| {
            let other = self.input.state.job(key)?;
            let may = !other.facts.exclusive && may_share(other) && !job.undone_on.contains(on);
            (on.gpu_count() == gpus && may)
                .then(|| (chance(&job.facts.id, &other.facts.id), at, other, on))
        });
        let mut candidates: Vec<_> = candidates.collect();
        candidates.sort_by_key(|&(chance, at, ..)| (chance, at));
        candidates.into_iter().find_map(|(chance, at, other, on)| {
            let sum = self.sum(job, other, on).filter(|sum| *sum >= self.dissolve_below)?;
            Some(Partner { chance, at, reason: self.paired(other, sum) })
        })
    }

    /// The queued job that chance pairs with `job`, if it comes before the running one, and their target.
    fn queued_partner<'b>(
        &self,
        job: &Job,
        gpus: u32,
        others: impl Iterator<Item = &'b (JobKey, &'a Job)>,
        single: Option<&Partner>,
    ) -> Option<(JobKey, Target)>
    where
        'a: 'b,
    {
        let gpu_type = job.surface.as_ref()?.gpu_type.as_str();
        if self.free.of_type(gpu_type) < gpus {
            return None;
        }
        let memory = Some(least_memory(self.input, gpu_type)?);
        let nodes = fewest_nodes(self.input, gpu_type, job, gpus);
        let mut candidates: Vec<_> = others
            .filter(|(_, other)| other.facts.request.min == gpus)
            .filter(|(_, other)| !other.facts.exclusive && may_share(other))
            .map(|&(key, other)| (chance(&job.facts.id, &other.facts.id), key, other))
            .filter(|(chance, ..)| single.is_none_or(|single| *chance < single.chance))
            .collect();
        candidates.sort_by_key(|&(chance, key, _)| (chance, key));
        candidates.into_iter().find_map(|(_, key, other)| {
            let sum = sum(job, other, gpu_type, memory, gpus, nodes)?;
            let reason = self.paired(other, sum);
            (sum >= self.dissolve_below).then(|| {
                (
                    key,
                    Target {
                        gpu_type: gpu_type.to_owned(),
                        reason,
                        ..Target::exclusive(key, gpus)
                    },
                )
            })
        })
    }

    fn paired(&self, other: &Job, sum: f64) -> Reason {
        let beside = other.facts.id.clone();
        Reason::Paired { beside, sum, threshold: self.dissolve_below }
    }

    /// The sum of their normalised speeds on these GPUs; `None` if unknown or a GPU is unhealthy.
    fn sum(&self, a: &Job, b: &Job, on: &GpuSet) -> Option<f64> {
        let mut total = None;
        for spot in &on.by_node {
            let facts = &self.input.state.node(spot.node).facts;
            if spot.gpus & !facts.healthy != 0 {
                return None;
            }
            let (gpus, nodes) = (on.gpu_count(), on.node_count());
            total = Some(sum(a, b, &facts.gpu_type, facts.memory_mib, gpus, nodes)?);
        }
        total
    }
}

/// A target for jobs on these GPUs.
fn target_for(jobs: &[(JobKey, &Job)], on: &GpuSet) -> Target {
    let gpus = on.gpu_count();
    Target {
        jobs: jobs.iter().map(|&(key, _)| key).collect(),
        gpus,
        gpu_type: String::new(),
        setting: GpuSetting::DEFAULT,
        reason: Reason::Share { gpus },
    }
}

/// A running exclusive job as a partner.
struct Partner {
    chance: u64,
    /// Its index among the singles.
    at: usize,
    reason: Reason,
}

/// The sum of both jobs' normalised speeds when co-located: 0 if their memory does not fit, `None` if
/// unknown.
fn sum(
    a: &Job,
    b: &Job,
    gpu_type: &str,
    memory_mib: Option<u64>,
    gpus: u32,
    nodes: u32,
) -> Option<f64> {
    let needed = profile(a, gpu_type)?.memory_mib + profile(b, gpu_type)?.memory_mib;
    if needed > memory_mib? {
        return Some(0.0);
    }
    Some(
        relative_speed(a, gpu_type, gpus, nodes, &[b])?
            + relative_speed(b, gpu_type, gpus, nodes, &[a])?,
    )
}

/// The least device memory of the GPUs of a type, MiB.
fn least_memory(input: PlanningInput<'_>, gpu_type: &str) -> Option<u64> {
    let nodes = input.state.nodes().iter().filter(|node| node.facts.gpu_type == gpu_type);
    nodes.map(|node| node.facts.memory_mib).min().flatten()
}

/// The fewest nodes of a type on which a job can have this many GPUs.
fn fewest_nodes(input: PlanningInput<'_>, gpu_type: &str, job: &Job, gpus: u32) -> u32 {
    let nodes = input.state.nodes().iter().filter(|node| node.facts.gpu_type == gpu_type);
    let sizes = nodes.filter(|node| suits(&node.facts, job)).map(|node| node.facts.gpus);
    gpus.div_ceil(sizes.max().unwrap_or(1).max(1)).max(1)
}

/// A pseudo-random number for two jobs: FNV-1a over both ids in either order.
fn chance(a: &JobId, b: &JobId) -> u64 {
    let (a, b) = (a.as_str().min(b.as_str()), a.as_str().max(b.as_str()));
    fnv1a(a.as_bytes().iter().chain(b"/").chain(b.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_is_symmetric_and_differs_between_pairs() {
        let id = |name: &str| JobId::new(name).unwrap();
        assert_eq!(chance(&id("a"), &id("b")), chance(&id("b"), &id("a")));
        assert_ne!(chance(&id("a"), &id("b")), chance(&id("a"), &id("c")));
    }
}
