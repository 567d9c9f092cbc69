//! Bounds of caps for the time in which no placer answers, under power limits over time: of the site, and of feeders on
//! their nodes.
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
use crate::power::bounds::Bound;
use crate::power::limits::settings_of;
use crate::power::model::{JobGpus, baseline_w, expected_by_node, idle_w, reserved_power};
use crate::state::gpu_set::NodeKey;
use crate::state::job::{Job, State};
use wattle_common::job::GpuSetting;

/// Bounds are named for a day; from its end on the lowest one holds.
const HORIZON: Duration = Duration::from_secs(86_400);

/// Least time between two changes that are not joined; it doubles until all fit.
const JOINED_LEAST: Duration = Duration::from_secs(30);

/// Most changes of the limit that are read.
const CHANGES_MAX: usize = 10_000;

/// From an instant on the highest common cap, and whether promises raise those of their GPUs.
type Step = (Timestamp, Option<Power>, bool);

/// The bounds by one limit over time.
#[derive(Debug)]
struct ByLimit {
    /// The site or the feeder.
    bound: Bound,
    steps: Vec<Step>,
    /// The end of its events that have begun.
    event_until: Option<Timestamp>,
}

/// The bounds of the caps of every node.
#[derive(Debug, Default)]
pub(crate) struct CapsAhead {
    limits: Vec<ByLimit>,
    /// The caps that promises need, by node.
    floors: BTreeMap<NodeKey, BTreeMap<GpuIndex, Power>>,
}

impl CapsAhead {
    /// The bounds from the next change of each limit on; empty without a limit that changes.
    pub(crate) fn of(input: PlanningInput<'_>) -> Self {
        let mut found = Self::default();
        for (feeder, limit) in input.limits.over_time() {
            let Some(bound) = Bound::of_events(input, feeder, Power::ZERO) else { continue };
            let present = FittingCap::present(input, &bound);
            for gpu in present.gpus.iter().filter(|gpu| gpu.floor_w > 0.0) {
                let cap = Power::from_w(gpu.floor_w as u64);
                found.floors.entry(gpu.node).or_default().insert(gpu.gpu, cap);
            }
            found.limits.push(by_limit(input, bound, limit, &present));
        }
        found
    }

    /// The bounds of the caps of a node, ascending by time: at each instant the lowest one of all limits.
    pub(crate) fn on(&self, node: Option<NodeKey>) -> Vec<CapBound> {
        let of_node = self.of_node(node).map(|limit| limit.steps.clone());
        let steps = of_node.reduce(|one, other| lower(&one, &other)).unwrap_or_default();
        let floors = node.and_then(|node| self.floors.get(&node));
        let of_step = |&(from_us, cap_mw, keeps): &Step| {
            let above = floors.into_iter().flatten().filter(|_| keeps);
            let above = above.filter(|(_, floor)| cap_mw.is_some_and(|cap| **floor > cap));
            CapBound { from_us, cap_mw, gpus: above.map(|(gpu, cap)| (*gpu, *cap)).collect() }
        };
        steps.iter().map(of_step).collect()
    }

    /// The end of the events of a node that have begun.
    pub(crate) fn event_until(&self, node: Option<NodeKey>) -> Option<Timestamp> {
        self.of_node(node).filter_map(|limit| limit.event_until).max()
    }

    /// The limits of a node; of one that is not known, those of the site.
    fn of_node(&self, node: Option<NodeKey>) -> impl Iterator<Item = &ByLimit> {
        self.limits.iter().filter(move |limit| match node {
            Some(node) => limit.bound.covers(node),
            None => !limit.bound.is_local(),
        })
    }
}

/// The bounds by one limit over time.
fn by_limit(
    input: PlanningInput<'_>,
    bound: Bound,
    limit: &LimitOverTime,
    present: &FittingCap,
) -> ByLimit {
    let now = input.now();
    // Plans follow an event that begins soon.
    let event_until = limit.targets().returned(now, now + LIMIT_LEAD);
    let limit = limit.held();
    let returned = FittingCap::returned(input, &bound);
    let mut steps: Vec<Step> = Vec::new();
    let instants = instants(&limit, now);
    let ends = instants.iter().skip(1).copied().chain([Timestamp::FOREVER]);
    for (&from, until) in instants.iter().zip(ends) {
        let returns = event_until.is_some_and(|at| until > at);
        let fitting = if returns { &returned } else { present };
        let is_event = !returns && limit.targets().least(from, until).is_some();
        let cap = limit.least(from, until).map(|least| fitting.below(least, is_event));
        let (cap, keeps) = cap.unwrap_or((None, false));
        let is_same = steps.last().is_some_and(|last| (last.1, last.2) == (cap, keeps));
        if !is_same {
            steps.push((from, cap, keeps));
        }
    }
    ByLimit { bound, steps, event_until }
}

/// The lower cap of two at each instant, in at most as many steps as an order can hold. Where one of them forbids to raise
/// a cap for a promise, none is raised.
fn lower(one: &[Step], other: &[Step]) -> Vec<Step> {
    let at = |steps: &[Step], at: Timestamp| {
        let begun = steps.partition_point(|step| step.0 <= at);
        begun.checked_sub(1).map_or((None, true), |step| (steps[step].1, steps[step].2))
    };
    let mut instants: Vec<Timestamp> = one.iter().chain(other).map(|step| step.0).collect();
    instants.sort_unstable();
    instants.dedup();
    let mut steps: Vec<Step> = Vec::new();
    for from in instants {
        let ((one, one_keeps), (other, other_keeps)) = (at(one, from), at(other, from));
        let cap = one.into_iter().chain(other).min();
        // A limit without a bound forbids nothing.
        let keeps = (one.is_none() || one_keeps) && (other.is_none() || other_keeps);
        let keeps = keeps && cap.is_some();
        if steps.last().is_none_or(|last| (last.1, last.2) != (cap, keeps)) {
            steps.push((from, cap, keeps));
        }
    }
    let mut least = Duration::ZERO;
    loop {
        let mut joined: Vec<Step> = Vec::new();
        for &(from, cap, keeps) in &steps {
            match joined.last_mut().filter(|last| from.since(last.0) < least) {
                Some(last) => {
                    last.1 = last.1.into_iter().chain(cap).min();
                    last.2 &= keeps || cap.is_none();
                }
                None => joined.push((from, cap, keeps)),
            }
        }
        if joined.len() <= CAPS_AHEAD_MAX {
            return joined;
        }
        least = (2 * least).max(JOINED_LEAST);
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
    /// The part of its power that counts.
    share: f64,
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
    /// The expected power within the limit; `None`: not known for some node.
    expected_w: Option<f64>,
    /// The GPUs with jobs.
    gpus: Vec<BusyGpu>,
}

impl FittingCap {
    /// With the present settings.
    fn present(input: PlanningInput<'_>, bound: &Bound) -> Self {
        let expected_w = expected_by_node(input).map(|by_node| {
            let nodes = bound.shares(input.state);
            let nodes_w = nodes.map(|(node, share)| share * by_node[node.index()].as_w());
            nodes_w.sum::<f64>() + bound.static_w()
        });
        let watts = |node: NodeKey, gpu: u32| reserved_power(input, node, gpu);
        Self { expected_w, gpus: busy_gpus(input, bound, watts) }
    }

    /// With every job at the default setting, on GPUs with their default caps.
    fn returned(input: PlanningInput<'_>, bound: &Bound) -> Self {
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
        let gpus = busy_gpus(input, bound, watts);
        let nodes = bound.shares(input.state);
        let baseline_w = baseline_w(input, nodes, std::iter::empty()) + bound.static_w();
        let above =
            |gpu: &BusyGpu| gpu.share * (gpu.watts - idle_w(input, input.state.node(gpu.node)));
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
            self.gpus.iter().map(|gpu| gpu.share * saved(gpu).max(0.0)).sum()
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

/// The GPUs with jobs within a bound of which the power is known.
fn busy_gpus(
    input: PlanningInput<'_>,
    bound: &Bound,
    watts: impl Fn(NodeKey, u32) -> Option<f64>,
) -> Vec<BusyGpu> {
    let mut busy = Vec::new();
    for (key, share) in bound.shares(input.state) {
        let node = input.state.node(key);
        if !node.is_awake() {
            continue;
        }
        let limits = input.state.gpu_power(&node.facts.gpu_type);
        let least = limits.and_then(|limits| limits.cap_min).unwrap_or(Power::ZERO);
        for gpu in (0..node.facts.gpus).filter(|gpu| !node.tenants(*gpu).is_empty()) {
            let Some(watts) = watts(key, gpu) else { continue };
            let jobs = node.tenants(gpu).iter().filter_map(|&job| input.state.job(job));
            let floor_w = jobs.filter_map(|job| promised_w(input, job)).fold(0.0, f64::max);
            busy.push(BusyGpu { node: key, gpu, share, watts, least_w: least.as_w(), floor_w });
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The steps of a node within two limits are the lowest cap of both, and fit an order.
    #[test]
    fn of_two_limits_the_lower_cap_holds_at_each_instant() {
        let at = |s: u64| Timestamp::from_s(1_000 + s);
        let w = |watts| Some(Power::from_w(watts));
        let one = [(at(0), w(200), true), (at(100), w(150), true), (at(300), None, false)];
        let other = [(at(50), w(180), true), (at(200), w(120), false), (at(400), None, false)];
        let both = [
            (at(0), w(200), true),
            (at(50), w(180), true),
            (at(100), w(150), true),
            (at(200), w(120), false),
            (at(400), None, false),
        ];
        assert_eq!(lower(&one, &other), both);
        assert_eq!(lower(&other, &one), both);
        // Two ramps whose steps alternate.
        let ramp = |first: u64| -> Vec<Step> {
            (0..12).map(|step| (at(first + 20 * step), w(300 - 10 * step), true)).collect()
        };
        let (one, other) = (ramp(0), ramp(10));
        let joined = lower(&one, &other);
        assert!(joined.len() <= CAPS_AHEAD_MAX, "{joined:?}");
        let cap_at = |steps: &[Step], s: u64| {
            steps.iter().rev().find(|step| step.0 <= at(s)).and_then(|step| step.1)
        };
        for s in 0..300 {
            let least = [&one, &other].iter().filter_map(|steps| cap_at(steps, s)).min();
            assert!(cap_at(&joined, s) <= least, "{s}");
        }
    }
}
