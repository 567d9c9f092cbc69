//! FIFO-packed: first come, first served; pairs once the cluster is full.
//!
//! The rule is Gavel's packing FIFO (github.com/stanford-futuredata/gavel). Free GPUs are filled first. Then
//! the first queued job is tried with every running exclusive job of the same size. It shares with the one with
//! which the sum of both normalised speeds is largest, if that sum exceeds 1.5. The first job that cannot be
//! packed blocks the rest. At most two jobs share a GPU, and a pair lasts until one of them completes.
//!
//! Our own choices: speeds are predicted (Gavel reads them from its table); a job without a prediction is not
//! packed; the peak memory of both must fit. After a job was packed, the next one is again tried on free GPUs
//! first, so that a plan leaves nothing to do. A cluster with sleeping nodes is not full: a job that they
//! could hold waits for them. A new pair is observed for an epoch and undone if it is slower than the jobs in
//! turns ([`super::colocation_trial`]).

use crate::allocation::capacity::{FreeCapacity, Scope};
use crate::allocation::feasibility::{infeasible, suits};
use crate::allocation::first_fit::{first_fit, no_room};
use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{Blocked, Decision, Plan};
use crate::policies::colocation_trial::may_share;
use crate::policies::{Build, Capabilities, Policy, PolicyEntry, Reads};
use crate::state::gpu_set::{GpuSet, JobKey};
use crate::state::job::Job;
use crate::state::job_forecast::{profile, relative_speed};

/// The sum of normalised speeds a pair must exceed: Gavel's own figure.
pub const PACK_ABOVE: f64 = 1.5;

/// First come, first served; pairs once the cluster is full.
#[derive(Clone, Copy, Debug)]
pub struct FifoPacked {
    /// The sum of normalised speeds a pair must exceed.
    pub pack_above: f64,
}

impl Default for FifoPacked {
    fn default() -> Self {
        Self { pack_above: PACK_ABOVE }
    }
}

impl FifoPacked {
    /// Its line in the table of policies.
    pub const ENTRY: PolicyEntry = PolicyEntry {
        name: "fifo-packed",
        rule: "FIFO; on a full cluster a job shares with the co-tenant of the highest summed speed above 1.5",
        source: "Gavel, packing FIFO",
        build: Build::Plain(|| Box::new(FifoPacked::default())),
    };
}

impl Policy for FifoPacked {
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
        let mut plan = Plan::default();
        let mut capacity = FreeCapacity::new(input.state, Scope::Idle);
        // Exclusive jobs; collected once a job does not fit.
        let mut singles: Option<Vec<(JobKey, GpuSet)>> = None;
        for (key, job) in input.state.queue() {
            if let Some((on, reason)) = first_fit(&capacity, job) {
                capacity.take(&on);
                if let Some(singles) = &mut singles {
                    singles.push((key, on.clone()));
                }
                plan.decisions.push(Decision::start(key, on, reason));
                continue;
            }
            if let Some(reason) = infeasible(input.state, job) {
                plan.decisions.push(Decision::Reject { job: key, reason });
                continue;
            }
            if fits_once_awake(&capacity.with_scope(Scope::IdleOrAsleep), job) {
                plan.blocked = Some(Blocked { job: key, reason: no_room(&capacity, job, None) });
                break;
            }
            let singles = singles.get_or_insert_with(|| find_singles(input, &plan));
            match self.best_partner(input, job, singles) {
                Some((chosen, reason)) => {
                    let (_, on) = singles.remove(chosen);
                    plan.decisions.push(Decision::start(key, on, reason));
                }
                None => {
                    plan.blocked =
                        Some(Blocked { job: key, reason: no_room(&capacity, job, None) });
                    break;
                }
            }
        }
        plan
    }
}

impl FifoPacked {
    fn best_partner(
        &self,
        input: PlanningInput<'_>,
        job: &Job,
        singles: &[(JobKey, GpuSet)],
    ) -> Option<(usize, Reason)> {
        if job.facts.exclusive || input.limits.tenants_max < 2 || !may_share(job) {
            return None;
        }
        let mut best: Option<(usize, f64)> = None;
        let mut tried = 0;
        for (i, (other, on)) in singles.iter().enumerate() {
            let Some(other) = input.state.job(*other) else { continue };
            let parted = job.undone_on.contains(on) || !may_share(other);
            if on.gpu_count() != job.facts.request.min || other.facts.exclusive || parted {
                continue;
            }
            let Some(sum) = self.normalised_sum(input, job, other, on) else { continue };
            tried += 1;
            if sum > self.pack_above && best.is_none_or(|(_, most)| sum > most) {
                best = Some((i, sum));
            }
        }
        let (chosen, sum) = best?;
        let beside = input.state.job(singles[chosen].0)?.facts.id.clone();
        Some((chosen, Reason::Packed { beside, sum, threshold: self.pack_above, tried }))
    }

    /// The sum of their normalised speeds; `None` if unknown or their memory does not fit.
    fn normalised_sum(
        &self,
        input: PlanningInput<'_>,
        a: &Job,
        b: &Job,
        on: &GpuSet,
    ) -> Option<f64> {
        let (gpus, nodes) = (on.gpu_count(), on.node_count());
        for spot in &on.by_node {
            let facts = &input.state.node(spot.node).facts;
            let (a, b) = (profile(a, &facts.gpu_type)?, profile(b, &facts.gpu_type)?);
            // An unhealthy GPU accepts no further job.
            if !facts.holds(a.memory_mib + b.memory_mib) || spot.gpus & !facts.healthy != 0 {
                return None;
            }
        }
        let gpu_type = &input.state.node(on.by_node.first()?.node).facts.gpu_type;
        Some(
            relative_speed(a, gpu_type, gpus, nodes, &[b])?
                + relative_speed(b, gpu_type, gpus, nodes, &[a])?,
        )
    }
}

/// Whether the job would fit once sleeping and waking nodes, whose GPUs `capacity` includes, are awake.
fn fits_once_awake(capacity: &FreeCapacity<'_>, job: &Job) -> bool {
    let requested = job.facts.request.min;
    let (mut on_entire_nodes, mut some_asleep) = (0, false);
    let nodes = capacity.state().keyed_nodes().filter(|(_, node)| suits(&node.facts, job));
    for (key, node) in nodes {
        let free = capacity.free(key).count_ones();
        if node.facts.gpus >= requested {
            if !node.is_awake() && free >= requested {
                return true;
            }
        } else if free == node.facts.gpus {
            on_entire_nodes += node.facts.gpus;
            some_asleep |= !node.is_awake();
        }
    }
    some_asleep && on_entire_nodes >= requested
}

fn find_singles(input: PlanningInput<'_>, plan: &Plan) -> Vec<(JobKey, GpuSet)> {
    let alone = |key: JobKey, on: &GpuSet| {
        on.gpus().all(|(node, gpu)| input.state.node(node).tenants(gpu) == [key])
    };
    let running = input.state.running().filter_map(|(key, job)| match &job.state {
        crate::State::Running { on, .. } if alone(key, on) => Some((key, on.clone())),
        _ => None,
    });
    let started = plan.decisions.iter().filter_map(|decision| match decision {
        Decision::Start { job, on, .. } => Some((*job, on.clone())),
        _ => None,
    });
    running.chain(started).collect()
}
