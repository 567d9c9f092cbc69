//! Jobs that cannot stop, under a power limit that falls.
//!
//! Only lower settings reduce the power of a job that cannot stop. Such a job starts only if the least power of all
//! of them fits every limit until its predicted end, whatever other jobs run. The nodes of these jobs count whole,
//! since they stay awake. A job whose end is not predicted counts without an end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wattle_common::time::scaled;
use wattle_common::{Power, PowerSeries, Timestamp};

use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{Decision, Plan};
use crate::power::energy_cost::Charge;
use crate::power::limits::least_gpu_w;
use crate::power::model::{JobGpus, least_baseline};
use crate::state::gpu_set::{GpuSet, JobKey, NodeKey};
use crate::state::job::State;
use crate::state::job_forecast::remaining_alone;
use crate::state::node::Node;
use crate::state::operating_points::OperatingPoint;

/// Factor on the predicted time to the end of a job, because predictions have errors.
const END_MARGIN: f64 = 1.5;

/// What a job that cannot stop demands until its end.
struct Demand {
    /// Its predicted end.
    end: Timestamp,
    /// The least power of its GPUs above idle, watts.
    watts: f64,
    /// Its nodes. Empty for a queued job: its power then includes the share of its GPUs in their nodes.
    nodes: Vec<NodeKey>,
}

/// Jobs that cannot stop, and the limits that they must fit.
struct Unstoppable<'a> {
    input: PlanningInput<'a>,
    series: &'a PowerSeries,
    /// The least power of the cluster without jobs, watts.
    baseline_w: f64,
    jobs: Vec<Demand>,
}

impl<'a> Unstoppable<'a> {
    /// The running jobs; `None` without a limit over time, or where the power of some node is unknown.
    fn running(input: PlanningInput<'a>) -> Option<Self> {
        let series = input.limits.power_series.as_deref()?;
        let baseline_w = least_baseline(input)?.as_w();
        let mut found = Self { input, series, baseline_w, jobs: Vec::new() };
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
        Demand { end, watts, nodes: on.by_node.iter().map(|here| here.node).collect() }
    }

    /// The least demand of a queued job.
    fn queued_demand(&self, gpus: JobGpus<'_>, nodes: u32) -> Demand {
        let (end, gpus_w) = self.end_and_power(gpus, nodes);
        let share_w = Charge::on(self.input, gpus.gpu_type).share_w();
        Demand { end, watts: gpus_w + f64::from(gpus.gpus) * share_w, nodes: Vec::new() }
    }

    /// What awake nodes draw beyond their power asleep at an instant, of the present jobs and of `added`, watts.
    fn nodes_w(&self, at: Timestamp, added: &Demand) -> f64 {
        let present = self.jobs.iter().filter(|job| job.end > at).chain([added]);
        let nodes: BTreeSet<NodeKey> = present.flat_map(|job| job.nodes.iter().copied()).collect();
        let node_w = |key: NodeKey| {
            let facts = &self.input.state.node(key).facts;
            Charge::on(self.input, &facts.gpu_type).share_w() * f64::from(facts.gpus)
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
        let mut at = self.input.now();
        let until = added.end.min(at + Duration::from_secs(self.series.period_s));
        loop {
            let most = self.series.at(at);
            let present = self.jobs.iter().filter(|job| job.end > at);
            let gpus_w = present.map(|job| job.watts).sum::<f64>() + added.watts;
            let drawn_w = self.baseline_w + self.nodes_w(at, &added) + gpus_w;
            if drawn_w > most.as_w() {
                return Some(Reason::LowestLimit { drawn: Power::from_w_f64(drawn_w), most, at });
            }
            at = self.series.changes_after(at);
            if at >= until {
                self.jobs.push(added);
                return None;
            }
        }
    }
}

/// The queued jobs that cannot stop and that do not fit a limit during their run even on their fewest GPUs, in the
/// order of the queue.
pub(crate) fn jobs_over_lowest_limit(input: PlanningInput<'_>) -> BTreeMap<JobKey, Reason> {
    let mut found = BTreeMap::new();
    let Some(mut unstoppable) = Unstoppable::running(input) else { return found };
    for (key, job) in input.state.queue().filter(|(_, job)| !job.facts.can_stop) {
        let gpus = job.facts.request.min;
        let demand = |node: &Node| {
            let nodes = gpus.div_ceil(node.facts.gpus.max(1));
            unstoppable.queued_demand(JobGpus::of(node, job, gpus), nodes)
        };
        let mut types = BTreeSet::new();
        let nodes = input.state.nodes().iter();
        let one_of_each = nodes.filter(|node| types.insert(node.facts.gpu_type.as_str()));
        let least = one_of_each.map(demand).reduce(|a, b| if b.watts < a.watts { b } else { a });
        if let Some(reason) = least.and_then(|demand| unstoppable.add(demand)) {
            found.insert(key, reason);
        }
    }
    found
}

/// Removes the starts of jobs that cannot stop and that do not fit a limit during their run with the GPUs that the plan
/// gives them.
pub(crate) fn hold_back_starts(
    input: PlanningInput<'_>,
    plan: &mut Plan,
) -> BTreeMap<JobKey, Reason> {
    let mut found = BTreeMap::new();
    let Some(mut unstoppable) = Unstoppable::running(input) else { return found };
    plan.decisions.retain(|decision| {
        let Decision::Start { job: key, on, .. } = decision else { return true };
        let job = input.state.job(*key).filter(|job| !job.facts.can_stop);
        let (Some(job), Some(here)) = (job, on.by_node.first()) else { return true };
        let gpu_type = &input.state.node(here.node).facts.gpu_type;
        let gpus = JobGpus::on(input, job, gpu_type, on);
        let demand = unstoppable.demand(gpus, on);
        unstoppable.add(demand).is_none_or(|reason| {
            found.insert(*key, reason);
            false
        })
    });
    found
}
