//! Jobs that cannot stop, under a power limit of the site or of a feeder that falls.
//!
//! Only lower settings reduce the power of a job that cannot stop. Such a job starts only if the least power of all
//! of them fits every limit until its predicted end, whatever other jobs run. The nodes of these jobs count whole,
//! since they stay awake. A job whose end is not predicted counts without an end.
//!
//! Before the policy plans, a queued job counts with the share of its GPUs in their nodes, because it may get GPUs of a
//! node that stays awake; within the limits of feeders it does not count yet. The plan then shows its nodes. A job that does not fit there is *refused* for the round: the
//! round is planned again without it, so that it neither holds GPUs from the jobs behind it nor wakes a node.

use std::collections::{BTreeMap, BTreeSet};

use wattle_common::time::scaled;
use wattle_common::{LimitOverTime, Power, Timestamp};

use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{AwaitedStart, Decision, Plan};
use crate::power::bounds::Bound;
use crate::power::energy_cost::Charge;
use crate::power::limits::least_gpu_w;
use crate::power::model::{JobGpus, least_by_node};
use crate::state::gpu_set::{GpuSet, JobKey, NodeKey};
use crate::state::job::{Job, State};
use crate::state::job_forecast::remaining_alone;
use crate::state::node::Node;
use crate::state::operating_points::OperatingPoint;

/// Factor on the predicted time to the end of a job, because predictions have errors.
const END_MARGIN: f64 = 1.5;

/// A job that does not start in this round, with the GPUs that it was to get.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Refusal {
    /// Its GPUs.
    pub(crate) on: GpuSet,
    /// The limit that it does not fit.
    pub(crate) reason: Reason,
    /// When it would fit first, by the changes of the limit and the predicted ends of the other jobs; `None`: later than
    /// an unused node stays awake.
    pub(crate) fits_at: Option<Timestamp>,
}

/// The refused jobs of a round.
pub(crate) type Refusals = BTreeMap<JobKey, Refusal>;

/// What a job that cannot stop demands until its end.
#[derive(Clone)]
struct Demand {
    /// Its predicted end.
    end: Timestamp,
    /// The least power of its GPUs above idle, watts.
    watts: f64,
    /// Its nodes. Empty for a queued job: its power then includes the share of its GPUs in their nodes.
    nodes: Vec<NodeKey>,
    /// The part of its power that counts within each limit.
    parts: Vec<f64>,
}

/// A limit over time of the site or a feeder.
struct Limit<'a> {
    over_time: &'a LimitOverTime,
    /// Its nodes.
    bound: Bound,
    /// The least power of its nodes without jobs, with what counts beside them, watts.
    baseline_w: f64,
}

/// Jobs that cannot stop, and the limits that they must fit.
pub(crate) struct Unstoppable<'a> {
    input: PlanningInput<'a>,
    limits: Vec<Limit<'a>>,
    jobs: Vec<Demand>,
}

impl<'a> Unstoppable<'a> {
    /// The running jobs; `None` without a limit over time, or where the power of some node is unknown.
    pub(crate) fn running(input: PlanningInput<'a>) -> Option<Self> {
        let mut over_time = input.limits.over_time().peekable();
        over_time.peek()?;
        let least = least_by_node(input)?;
        let limits = over_time.filter_map(|(feeder, over_time)| {
            let bound = Bound::of_events(input, feeder, Power::ZERO)?;
            let nodes = bound.shares(input.state);
            let nodes_w = nodes.map(|(node, share)| share * least[node.index()].as_w());
            let baseline_w = nodes_w.sum::<f64>() + bound.static_w();
            Some(Limit { over_time, bound, baseline_w })
        });
        let mut found = Self { input, limits: limits.collect(), jobs: Vec::new() };
        for (_, job) in input.state.running().filter(|(_, job)| !job.facts.can_stop) {
            let (State::Running { on, .. } | State::Stopping { on, .. }) = &job.state else {
                continue;
            };
            let Some(gpu_type) = input.state.gpu_type_of(job) else { continue };
            let gpus = JobGpus::on(input, job, gpu_type, on);
            let demand = found.demand(gpus, on);
            found.jobs.push(demand);
        }
        Some(found)
    }

    /// The demand of a job on these GPUs, from now on.
    fn demand(&self, gpus: JobGpus<'_>, on: &GpuSet) -> Demand {
        let (end, watts) = self.end_and_power(gpus, on.node_count());
        let parts = self.limits.iter().map(|limit| limit.bound.part_of(on)).collect();
        Demand { end, watts, nodes: on.by_node.iter().map(|here| here.node).collect(), parts }
    }

    /// The least demand of a queued job.
    fn queued_demand(&self, gpus: JobGpus<'_>, nodes: u32) -> Demand {
        let (end, gpus_w) = self.end_and_power(gpus, nodes);
        let share_w = Charge::on(self.input, gpus.gpu_type).share_w();
        // Its nodes are not known.
        let part = |limit: &Limit<'_>| if limit.bound.is_local() { 0.0 } else { 1.0 };
        let parts = self.limits.iter().map(part).collect();
        Demand { end, watts: gpus_w + f64::from(gpus.gpus) * share_w, nodes: Vec::new(), parts }
    }

    /// What awake nodes draw beyond their power asleep at an instant, of the present jobs and of `added`, within a limit,
    /// watts.
    fn nodes_w(&self, limit: &Limit<'_>, at: Timestamp, added: &Demand) -> f64 {
        let present = self.jobs.iter().filter(|job| job.end > at).chain([added]);
        let nodes: BTreeSet<NodeKey> = present.flat_map(|job| job.nodes.iter().copied()).collect();
        let node_w = |key: NodeKey| {
            let facts = &self.input.state.node(key).facts;
            let share_w = Charge::on(self.input, &facts.gpu_type).share_w();
            limit.bound.share(key) * share_w * f64::from(facts.gpus)
        };
        nodes.into_iter().map(node_w).sum()
    }

    /// The predicted end of a job that runs from now on, and the least power of its GPUs above idle, watts.
    fn end_and_power(&self, gpus: JobGpus<'_>, nodes: u32) -> (Timestamp, f64) {
        let (input, charge) = (self.input, Charge::on(self.input, gpus.gpu_type));
        let least_w = (least_gpu_w(input, gpus) - charge.idle_w()).max(0.0);
        let points = gpus.job.operating_points_on(gpus.gpu_type);
        let points = points.map(|points| points.with_gpus(gpus.gpus)).unwrap_or_default();
        let by_rate =
            |a: &&OperatingPoint, b: &&OperatingPoint| a.steps_per_s.total_cmp(&b.steps_per_s);
        let slowest = points.iter().min_by(by_rate).zip(points.iter().max_by(by_rate));
        // At the lowest caps, which a limit may select. Below the slowest operating point the speed is not known: it is
        // assumed to fall in proportion to the power above idle.
        let slowdown = slowest.map(|(slowest, fastest)| {
            let slowest_w = (slowest.gpu_power_w - charge.idle_w()).max(least_w);
            fastest.steps_per_s / slowest.steps_per_s * (slowest_w / least_w)
        });
        let alone = remaining_alone(input.now(), gpus.job, gpus.gpus, nodes);
        let left = alone.zip(slowdown.filter(|slowdown| slowdown.is_finite()));
        let left = left.map(|(left, slowdown)| scaled(left, slowdown * END_MARGIN));
        let end = left.map_or(Timestamp::FOREVER, |left| input.now() + left);
        (end, f64::from(gpus.gpus) * least_w)
    }

    /// Adds a job if the limits permit it; otherwise returns the first limit that does not.
    fn add(&mut self, added: Demand) -> Option<Reason> {
        let exceeded = self.exceeded(&added, self.input.now());
        if exceeded.is_none() {
            self.jobs.push(added);
        }
        exceeded
    }

    /// The first limit that a job exceeds which starts at `from` and ends as it is predicted to.
    fn exceeded(&self, added: &Demand, from: Timestamp) -> Option<Reason> {
        let within = self.limits.iter().enumerate().filter(|(index, _)| added.parts[*index] > 0.0);
        for (index, limit) in within {
            let until = added.end.min(limit.over_time.repeats_from(from));
            let changes = limit.over_time.changes(from).take_while(|at| *at < until);
            for at in std::iter::once(from).chain(changes) {
                let Some(most) = limit.over_time.at(at) else { continue };
                let present = self.jobs.iter().filter(|job| job.end > at).chain([added]);
                let gpus_w: f64 = present.map(|job| job.parts[index] * job.watts).sum();
                let drawn_w = limit.baseline_w + self.nodes_w(limit, at, added) + gpus_w;
                if drawn_w > most.as_w() {
                    return Some(Reason::LowestLimit {
                        drawn: Power::from_w_f64(drawn_w),
                        most,
                        at,
                        feeder: limit.bound.target_of().map(|feeder| feeder.as_str().into()),
                    });
                }
            }
        }
        None
    }

    /// The first instant up to `until` at which the limits permit a job: a change of the limit or a predicted end.
    fn fits_at(&self, added: &Demand, until: Timestamp) -> Option<Timestamp> {
        let now = self.input.now();
        let changes = self
            .limits
            .iter()
            .flat_map(|limit| limit.over_time.changes(now).take_while(|at| *at <= until));
        let ends = self.jobs.iter().map(|job| job.end).filter(|end| *end > now && *end <= until);
        let instants: BTreeSet<Timestamp> = changes.chain(ends).collect();
        instants.into_iter().find(|&at| {
            let end = added.end + at.since(now);
            self.exceeded(&Demand { end, ..added.clone() }, at).is_none()
        })
    }

    /// Adds the job of a start if it cannot stop and fits. Returns the refusal if it does not fit.
    fn refuse(&mut self, key: JobKey, on: &GpuSet) -> Option<Refusal> {
        let job = self.input.state.job(key).filter(|job| !job.facts.can_stop)?;
        let gpu_type = &self.input.state.node(on.by_node.first()?.node).facts.gpu_type;
        let gpus = JobGpus::on(self.input, job, gpu_type, on);
        let demand = self.demand(gpus, on);
        let reason = self.add(demand.clone())?;
        let nodes = on.by_node.iter().map(|here| self.input.state.node(here.node));
        let idle = nodes.map(|node| self.input.limits.idle_before_sleep_of(node)).min();
        let fits_at = self.fits_at(&demand, self.input.now() + idle.unwrap_or_default());
        Some(Refusal { on: on.clone(), reason, fits_at })
    }

    /// Removes the starts of a plan that do not fit.
    pub(crate) fn refuse_starts(&mut self, plan: &mut Plan, refused: &mut Refusals) {
        plan.decisions.retain(|decision| {
            let Decision::Start { job, on, .. } = decision else { return true };
            let refusal = self.refuse(*job, on);
            let is_refused = refusal.is_some();
            refused.extend(refusal.map(|refusal| (*job, refusal)));
            !is_refused
        });
    }

    /// Removes the awaited starts of a plan that do not fit, with the wake-ups for them.
    pub(crate) fn refuse_awaited(&mut self, plan: &mut Plan, refused: &mut Refusals) {
        let awaited = plan.awaited.len();
        plan.awaited.retain(|AwaitedStart { job, on, .. }| {
            let refusal = self.refuse(*job, on);
            let is_refused = refusal.is_some();
            refused.extend(refusal.map(|refusal| (*job, refusal)));
            !is_refused
        });
        if plan.awaited.len() < awaited {
            plan.drop_unused_wakes();
        }
    }
}

/// The queued jobs that cannot stop and that do not fit a limit during their run even on their fewest GPUs, in the
/// order of the queue. Those that are `refused` demand nothing. One that fits soon is left to the plan, which shows the
/// nodes that stay awake for it.
pub(crate) fn jobs_over_lowest_limit(
    input: PlanningInput<'_>,
    refused: &Refusals,
) -> BTreeMap<JobKey, Reason> {
    let mut found = BTreeMap::new();
    let Some(mut unstoppable) = Unstoppable::running(input) else { return found };
    let counts = |(key, job): &(JobKey, &Job)| !job.facts.can_stop && !refused.contains_key(key);
    for (key, job) in input.state.queue().filter(counts) {
        let gpus = job.facts.request.min;
        let demand = |node: &Node| {
            let nodes = gpus.div_ceil(node.facts.gpus.max(1));
            unstoppable.queued_demand(JobGpus::of(node, job, gpus), nodes)
        };
        let mut types = BTreeSet::new();
        let nodes = input.state.nodes().iter();
        let one_of_each = nodes.filter(|node| types.insert(node.facts.gpu_type.as_str()));
        let least = one_of_each.map(demand).reduce(|a, b| if b.watts < a.watts { b } else { a });
        let Some(demand) = least else { continue };
        let soon = input.now() + input.limits.idle_before_sleep;
        if let Some(reason) = unstoppable.add(demand.clone())
            && unstoppable.fits_at(&demand, soon).is_none()
        {
            found.insert(key, reason);
        }
    }
    found
}
