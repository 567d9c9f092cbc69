//! Bounds of caps for the time in which no placer answers, under a power limit over time.
//!
//! While a placer runs, its plans follow the limit. Power agents follow these bounds without one: from each change of
//! the limit on, no cap exceeds the highest common power per GPU with which the present jobs fit the limit; during a grid
//! event a GPU whose job promises more has what the promise needs, where all promises fit. Where even the lowest caps
//! exceed the limit, the lowest caps are all that an agent can do, because it stops no job.
//!
//! Nodes do not rise on a ramp up, and at its end the shares from before the event hold again: from then on the bounds
//! are those of jobs at the default setting.

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::messages::CapBound;
use wattle_common::messages::desired::CAPS_AHEAD_MAX;
use wattle_common::{GpuIndex, LimitOverTime, Power, Timestamp};

use crate::controller::budget::LIMIT_LEAD;
use crate::plan::input::PlanningInput;
use crate::power::limits::settings_of;
use crate::power::model::{
    JobGpus, baseline_w, expected_by_node, idle_w, reserved_power, whole_nodes,
};
use crate::state::gpu_set::NodeKey;
use crate::state::job::{Job, State};
use wattle_common::job::GpuSetting;

/// Bounds are named for a day; from its end on the lowest one holds.
const HORIZON: Duration = Duration::from_secs(86_400);

/// Least time between two changes that are not joined; it doubles until all fit.
const JOINED_LEAST: Duration = Duration::from_secs(30);

/// Most changes of the limit that are read.
const CHANGES_MAX: usize = 10_000;

/// The bounds of the caps of every node.
#[derive(Debug, Default)]
pub(crate) struct CapsAhead {
    /// Each from an instant on: the highest common cap, and whether promises raise those of their GPUs.
    steps: Vec<(Timestamp, Option<Power>, bool)>,
    /// The caps that promises need, by node.
    floors: BTreeMap<NodeKey, BTreeMap<GpuIndex, Power>>,
    /// The end of the events that have begun.
    pub(crate) event_until: Option<Timestamp>,
}

impl CapsAhead {
    /// The bounds from the next change of the limit on; empty without a limit that changes.
    pub(crate) fn of(input: PlanningInput<'_>) -> Self {
        let Some(limit) = input.limits.power_over_time.as_deref() else { return Self::default() };
        let now = input.now();
        // Plans follow an event that begins soon.
        let event_until = limit.targets().returned(now, now + LIMIT_LEAD);
        let limit = limit.held();
        let (present, returned) = (FittingCap::present(input), FittingCap::returned(input));
        let mut steps: Vec<(Timestamp, Option<Power>, bool)> = Vec::new();
        let instants = instants(&limit, now);
        let ends = instants.iter().skip(1).copied().chain([Timestamp::FOREVER]);
        for (&from, until) in instants.iter().zip(ends) {
            let returns = event_until.is_some_and(|at| until > at);
            let fitting = if returns { &returned } else { &present };
            let is_event = !returns && limit.targets().least(from, until).is_some();
            let cap = limit.least(from, until).map(|least| fitting.below(least, is_event));
            let (cap, keeps) = cap.unwrap_or((None, false));
            let is_same = steps.last().is_some_and(|last| (last.1, last.2) == (cap, keeps));
            if !is_same {
                steps.push((from, cap, keeps));
            }
        }
        let mut floors: BTreeMap<NodeKey, BTreeMap<GpuIndex, Power>> = BTreeMap::new();
        for gpu in present.gpus.iter().filter(|gpu| gpu.floor_w > 0.0) {
            let cap = Power::from_w(gpu.floor_w as u64);
            floors.entry(gpu.node).or_default().insert(gpu.gpu, cap);
        }
        Self { steps, floors, event_until }
    }

    /// The bounds of the caps of a node, ascending by time.
    pub(crate) fn on(&self, node: Option<NodeKey>) -> Vec<CapBound> {
        let floors = node.and_then(|node| self.floors.get(&node));
        let of_step = |&(from_us, cap_mw, keeps): &(Timestamp, Option<Power>, bool)| {
            let above = floors.into_iter().flatten().filter(|_| keeps);
            let above = above.filter(|(_, floor)| cap_mw.is_some_and(|cap| **floor > cap));
            CapBound { from_us, cap_mw, gpus: above.map(|(gpu, cap)| (*gpu, *cap)).collect() }
        };
        self.steps.iter().map(of_step).collect()
    }
}

/// The changes of the limit within [`HORIZON`] and the one after, joined where they are more than an order can hold: then
/// the lowest limit until the next instant holds from the first of them on, as on the ramp of an event.
fn instants(limit: &LimitOverTime, now: Timestamp) -> Vec<Timestamp> {
    let end = now + HORIZON;
    let all: Vec<Timestamp> = limit.changes(now).take(CHANGES_MAX).collect();
    let within = all.iter().take_while(|at| **at <= end).count();
    let all = &all[..all.len().min(within + 1)];
    let mut least = Duration::ZERO;
    loop {
        let mut kept: Vec<Timestamp> = Vec::new();
        for &at in all {
            if kept.last().is_none_or(|last| at.since(*last) >= least) {
                kept.push(at);
            }
        }
        if kept.len() <= CAPS_AHEAD_MAX {
            return kept;
        }
        least = (2 * least).max(JOINED_LEAST);
    }
}

/// A GPU with jobs, watts.
#[derive(Clone, Copy)]
struct BusyGpu {
    node: NodeKey,
    gpu: GpuIndex,
    /// The power reserved for it.
    watts: f64,
    /// Its lowest cap.
    least_w: f64,
    /// What the promise of its job needs, rounded up; 0 without one.
    floor_w: f64,
}

impl BusyGpu {
    fn lowest_w(&self, keeps: bool) -> f64 {
        if keeps { self.least_w.max(self.floor_w) } else { self.least_w }
    }
}

/// The highest common cap of all GPUs at which the present jobs fit a limit.
struct FittingCap {
    /// The expected power of all nodes; `None`: not known for some node.
    expected_w: Option<f64>,
    /// The GPUs with jobs.
    gpus: Vec<BusyGpu>,
}

impl FittingCap {
    /// With the present settings.
    fn present(input: PlanningInput<'_>) -> Self {
        let expected = expected_by_node(input);
        let expected_w = expected.map(|nodes| nodes.into_iter().map(Power::as_w).sum());
        let watts = |node: NodeKey, gpu: u32| reserved_power(input, node, gpu);
        Self { expected_w, gpus: busy_gpus(input, watts) }
    }

    /// With every job at the default setting, on GPUs with their default caps.
    fn returned(input: PlanningInput<'_>) -> Self {
        let watts = |key: NodeKey, gpu: u32| {
            let node = input.state.node(key);
            let most = input.state.gpu_power(&node.facts.gpu_type)?.most.as_w();
            let idle = idle_w(input, node);
            let above = node.tenants(gpu).iter().filter_map(|&key| {
                let job = input.state.job(key)?;
                let on = job.state.gpus()?;
                let gpus = JobGpus::on(input, job, &node.facts.gpu_type, on);
                Some((gpus.predicted_w(input, GpuSetting::DEFAULT) - idle).max(0.0))
            });
            Some((idle + above.sum::<f64>()).min(most))
        };
        let gpus = busy_gpus(input, watts);
        let baseline_w = baseline_w(input, whole_nodes(input), std::iter::empty());
        let above = |gpu: &BusyGpu| gpu.watts - idle_w(input, input.state.node(gpu.node));
        let is_known = expected_by_node(input).is_some();
        let expected_w = is_known.then(|| baseline_w + gpus.iter().map(above).sum::<f64>());
        Self { expected_w, gpus }
    }

    /// The cap, and whether the promises fit beside it, if they may. No cap: the present ones fit. The lowest cap where
    /// none fits, or where the power is not known.
    fn below(&self, limit: Power, may_keep: bool) -> (Option<Power>, bool) {
        let excess_w = self.expected_w.map_or(f64::INFINITY, |expected| expected - limit.as_w());
        if excess_w <= 0.0 {
            return (None, false);
        }
        let saved_w = |cap_w: u64, keeps: bool| -> f64 {
            let saved = |gpu: &BusyGpu| gpu.watts - gpu.lowest_w(keeps).max(cap_w as f64);
            self.gpus.iter().map(|gpu| saved(gpu).max(0.0)).sum()
        };
        let keeps = may_keep && saved_w(0, true) >= excess_w;
        let highest = self.gpus.iter().map(|gpu| gpu.watts).fold(0.0, f64::max) as u64;
        let (mut fits, mut above) = (0, highest + 1);
        while above - fits > 1 {
            let middle = u64::midpoint(fits, above);
            if saved_w(middle, keeps) >= excess_w { fits = middle } else { above = middle }
        }
        // Agents set the nearest cap that a GPU supports.
        (Some(Power::from_w(fits)), keeps)
    }
}

/// The GPUs with jobs of which the power is known.
fn busy_gpus(
    input: PlanningInput<'_>,
    watts: impl Fn(NodeKey, u32) -> Option<f64>,
) -> Vec<BusyGpu> {
    let mut busy = Vec::new();
    for (key, node) in input.state.keyed_nodes().filter(|(_, node)| node.is_awake()) {
        let limits = input.state.gpu_power(&node.facts.gpu_type);
        let least = limits.and_then(|limits| limits.cap_min).unwrap_or(Power::ZERO);
        for gpu in (0..node.facts.gpus).filter(|gpu| !node.tenants(*gpu).is_empty()) {
            let Some(watts) = watts(key, gpu) else { continue };
            let jobs = node.tenants(gpu).iter().filter_map(|&job| input.state.job(job));
            let floor_w = jobs.filter_map(|job| promised_w(input, job)).fold(0.0, f64::max);
            busy.push(BusyGpu { node: key, gpu, watts, least_w: least.as_w(), floor_w });
        }
    }
    busy
}

/// What the promise of a running job needs of each of its GPUs during an event, watts, rounded up.
fn promised_w(input: PlanningInput<'_>, job: &Job) -> Option<f64> {
    let State::Running { on, .. } = &job.state else { return None };
    let key = input.state.job_key(&job.facts.id)?;
    let known = input.limits.promises.known(key);
    // Before an event its allowance is spread over all of it.
    let begins = job.facts.flexibility.map(|promised| 1.0 - promised.loss());
    let floor = known.map(|promise| promise.floor).or(begins)?;
    let gpus = known.map_or(on.gpu_count(), |promise| promise.gpus);
    let node = input.state.node(on.by_node.first()?.node);
    let settings = settings_of(input, job, &node.facts.gpu_type, gpus, gpus)?;
    let lowest = settings.iter().rfind(|setting| setting.0 + 1e-9 >= floor)?;
    Some((lowest.1 + idle_w(input, node)).ceil())
}
