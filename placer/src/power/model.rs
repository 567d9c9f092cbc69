//! The power model: what GPUs, nodes and the cluster draw, entire nodes included.
//!
//! | quantity | meaning | used for |
//! |---|---|---|
//! | **baseline** | all nodes without jobs: hosts and idle GPUs, sleeping nodes asleep | every sum |
//! | **expected** | baseline plus the expected power above idle of each job at its setting | the power limit |
//! | **minimum** | the same with every job at its lowest-power operating point ([`PowerEstimate`]) | admission, preemption, the budget |
//! | **reserved** | the expected power of one GPU with all its jobs, at least the lowest cap | the cap of that GPU |
//!
//! The power of a job comes from its operating points. Without one it is the GPU's highest power. Co-located
//! jobs add their power above idle. No GPU exceeds its cap. With enforced caps no GPU counts less than its
//! lowest cap. Below a power limit measurements correct the expected power of a running job
//! ([`crate::power::correction`]). On a node whose caps are fixed, because its power agent only advises, jobs run at the default
//! setting; in the power limit each GPU with a job counts with the cap that it has. Nothing is decided here.

use std::collections::{BTreeMap, BTreeSet};

use wattle_common::Power;
use wattle_common::job::GpuSetting;

use crate::plan::NodeDecision;
use crate::plan::capabilities::Capabilities;
use crate::plan::input::PlanningInput;
use crate::power::bounds::{Bound, Counted};
use crate::power::correction::FACTOR_LEAST;
use crate::power::energy_cost::Charge;
use crate::power::step::least_energy;
use crate::state::gpu_set::{GpuSet, NodeGpus, NodeKey, bits};
use crate::state::job::{Job, State};
use crate::state::node::{Node, Wakefulness};
use crate::state::operating_points::OperatingPoint;

/// Power of one idle GPU of a node, watts.
pub(crate) fn idle_w(input: PlanningInput<'_>, node: &Node) -> f64 {
    let by_node = node.facts.watts.map(|watts| watts.gpu_idle);
    let by_type = input.state.gpu_power(&node.facts.gpu_type).map(|power| power.idle);
    by_node.or(by_type).unwrap_or(Power::ZERO).as_w()
}

/// The cap of each GPU of a node that is advised only, watts; infinite if not known.
fn fixed_w(input: PlanningInput<'_>, node: &Node) -> Option<f64> {
    let caps = node.fixed_caps?;
    let most = || input.state.gpu_power(&node.facts.gpu_type).map(|power| power.most);
    Some(caps.highest.or_else(most).map_or(f64::INFINITY, Power::as_w))
}

/// Power of a node without jobs, watts.
fn node_baseline_w(input: PlanningInput<'_>, node: &Node, is_asleep: bool) -> f64 {
    let by_type = input.state.gpu_power(&node.facts.gpu_type);
    let host = node.facts.watts.map(|watts| watts.host).or(by_type.map(|power| power.host));
    match node.facts.watts.filter(|_| is_asleep) {
        Some(watts) => watts.asleep.as_w(),
        None => {
            host.unwrap_or(Power::ZERO).as_w() + f64::from(node.facts.gpus) * idle_w(input, node)
        }
    }
}

/// Power of an awake node without jobs, watts.
pub(crate) fn awake_w(input: PlanningInput<'_>, node: &Node) -> f64 {
    node_baseline_w(input, node, false)
}

/// What a GPU of a node without a job counts with within a bound, watts.
pub(crate) fn least_counted_w(input: PlanningInput<'_>, node: &Node, counted: Counted) -> f64 {
    let limits = input.state.gpu_power(&node.facts.gpu_type);
    let least = limits.and_then(|power| power.cap_min).filter(|_| counted == Counted::Caps);
    idle_w(input, node).max(least.unwrap_or(Power::ZERO).as_w())
}

/// Power of each node without jobs as it is, in node order, watts.
pub(crate) fn baseline_by_node_w(input: PlanningInput<'_>) -> Vec<f64> {
    let is_asleep = |node: &Node| node.wakefulness == Wakefulness::Asleep;
    input.state.nodes().iter().map(|node| node_baseline_w(input, node, is_asleep(node))).collect()
}

/// Baseline power of these nodes by their shares, once these node decisions are carried out, watts.
pub(crate) fn baseline_w<'n>(
    input: PlanningInput<'_>,
    nodes: impl Iterator<Item = (NodeKey, f64)>,
    decisions: impl Iterator<Item = &'n NodeDecision>,
) -> f64 {
    let sleeps = |decision: &NodeDecision| matches!(decision, NodeDecision::Sleep { .. });
    let decided: BTreeMap<NodeKey, bool> =
        decisions.map(|decision| (decision.node(), sleeps(decision))).collect();
    let is_asleep = |key, node: &Node| {
        decided.get(&key).copied().unwrap_or(node.wakefulness == Wakefulness::Asleep)
    };
    let watts = |(key, share): (NodeKey, f64)| {
        let node = input.state.node(key);
        share * node_baseline_w(input, node, is_asleep(key, node))
    };
    nodes.map(watts).sum()
}

/// Every node with all of its power.
pub(crate) fn whole_nodes(input: PlanningInput<'_>) -> impl Iterator<Item = (NodeKey, f64)> {
    input.state.keyed_nodes().map(|(key, _)| (key, 1.0))
}

/// The least baseline power: nodes that may sleep are asleep. `None` if it is unknown for some node.
#[must_use]
pub fn least_baseline(input: PlanningInput<'_>) -> Option<Power> {
    let all_known = is_power_known(input);
    all_known.then(|| Power::from_w_f64(least_nodes_w(input).sum()))
}

/// The least baseline power of each node, in node order. `None` if it is unknown for some node.
#[must_use]
pub fn least_by_node(input: PlanningInput<'_>) -> Option<Vec<Power>> {
    let all_known = is_power_known(input);
    all_known.then(|| least_nodes_w(input).map(Power::from_w_f64).collect())
}

fn least_nodes_w(input: PlanningInput<'_>) -> impl Iterator<Item = f64> {
    input
        .state
        .nodes()
        .iter()
        .map(move |node| node_baseline_w(input, node, input.limits.nodes_sleep))
}

/// Whether there are nodes and the power of each without jobs is known.
fn is_power_known(input: PlanningInput<'_>) -> bool {
    let is_known = |node: &Node| {
        node.facts.watts.is_some() || input.state.gpu_power(&node.facts.gpu_type).is_some()
    };
    let nodes = input.state.nodes();
    !nodes.is_empty() && nodes.iter().all(is_known)
}

/// Which power of an operating point counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Estimate {
    /// The mean.
    Expected,
    /// The upper end of the prediction interval.
    Upper,
}

impl Estimate {
    fn of(self, point: &OperatingPoint) -> f64 {
        match self {
            Self::Expected => point.gpu_power_w,
            Self::Upper => point.gpu_power_w_max,
        }
    }
}

/// GPUs of one type for one job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobGpus<'j> {
    pub(crate) job: &'j Job,
    pub(crate) gpu_type: &'j str,
    pub(crate) gpus: u32,
    /// Whether their caps and clocks are not set, so that the job runs at the default whatever its setting.
    pub(crate) is_fixed: bool,
}

impl<'j> JobGpus<'j> {
    /// The GPUs of a placement.
    pub(crate) fn on(
        input: PlanningInput<'_>,
        job: &'j Job,
        gpu_type: &'j str,
        on: &GpuSet,
    ) -> Self {
        Self { job, gpu_type, gpus: on.gpu_count(), is_fixed: input.state.has_fixed_caps(on) }
    }

    /// A number of GPUs of one node.
    pub(crate) fn of(node: &'j Node, job: &'j Job, gpus: u32) -> Self {
        let is_fixed = node.fixed_caps.is_some();
        Self { job, gpu_type: &node.facts.gpu_type, gpus, is_fixed }
    }

    /// Expected power of one GPU at a setting with this job exclusively, watts; infinite if unbounded.
    pub(crate) fn expected_w(&self, input: PlanningInput<'_>, setting: GpuSetting) -> f64 {
        self.power_w(input, setting, Estimate::Expected)
    }

    /// As [`Self::expected_w`], at most the prediction where measurements exceed it: a cap is not raised for a GPU
    /// that exceeds it.
    fn reserved_w(&self, input: PlanningInput<'_>, setting: GpuSetting) -> f64 {
        self.corrected_w(input, setting, Estimate::Expected, self.factor(input).min(1.0))
    }

    /// Whether a correction can lower its expected power: not where it counts with the lowest cap of its GPUs.
    pub(crate) fn can_be_lowered(&self, input: PlanningInput<'_>, setting: GpuSetting) -> bool {
        let least_w = self.corrected_w(input, setting, Estimate::Expected, FACTOR_LEAST);
        least_w < self.predicted_w(input, setting)
    }

    /// Expected power without the correction by measurements, watts.
    pub(crate) fn predicted_w(&self, input: PlanningInput<'_>, setting: GpuSetting) -> f64 {
        self.corrected_w(input, setting, Estimate::Expected, 1.0)
    }

    /// The correction of its power above idle by measurements ([`crate::power::correction`]).
    fn factor(&self, input: PlanningInput<'_>) -> f64 {
        input.limits.power_factors.of(self.job.arrival)
    }

    /// What a GPU of the job draws at this cap by measurements ([`crate::power::correction`]), watts.
    pub(crate) fn drawn_w(&self, input: PlanningInput<'_>, cap: Power) -> f64 {
        let shares = input.limits.power_factors.drawn(self.job.arrival);
        cap.as_w() * shares.map_or(1.0, |shares| shares.at(cap.as_w()))
    }

    fn power_w(&self, input: PlanningInput<'_>, setting: GpuSetting, estimate: Estimate) -> f64 {
        let factor = match estimate {
            Estimate::Expected => self.factor(input),
            // The reserve of budgets counts the upper end of predictions.
            Estimate::Upper => 1.0,
        };
        self.corrected_w(input, setting, estimate, factor)
    }

    fn corrected_w(
        &self,
        input: PlanningInput<'_>,
        setting: GpuSetting,
        estimate: Estimate,
        factor: f64,
    ) -> f64 {
        let setting = if self.is_fixed { GpuSetting::DEFAULT } else { setting };
        let uncapped = GpuSetting { cap_mw: None, ..setting };
        let known = self.job.operating_points_on(self.gpu_type).and_then(|points| {
            let point = |setting| points.point(self.gpus, setting);
            point(setting).or_else(|| point(uncapped)).or_else(|| point(GpuSetting::DEFAULT))
        });
        let limits = input.state.gpu_power(self.gpu_type);
        let most = limits.map_or(f64::INFINITY, |power| power.most.as_w());
        let cap = setting.cap_mw.map_or(f64::INFINITY, |cap| self.drawn_w(input, cap));
        let least = limits.and_then(|power| power.cap_min);
        let least = least.filter(|_| input.limits.caps_enforced).unwrap_or(Power::ZERO).as_w();
        let idle = limits.map_or(0.0, |power| power.idle.as_w());
        let scaled = |watts: f64, factor: f64| {
            if factor.total_cmp(&1.0).is_eq() {
                watts
            } else {
                idle + factor * (watts - idle).max(0.0)
            }
        };
        let predicted = known.map_or(most, |point| estimate.of(point));
        // Lowered before the cap, at which a job draws the cap; raised after it, because it is exceeded.
        let capped = scaled(predicted, factor.min(1.0)).max(least).min(cap).min(most);
        scaled(capped, factor.max(1.0))
    }
}

/// The GPUs that a job holds, and their setting.
fn held_gpus(job: &Job) -> Option<(&GpuSet, GpuSetting)> {
    match &job.state {
        State::Running { on, setting, .. } | State::Stopping { on, setting } => {
            Some((on, *setting))
        }
        State::Queued => None,
    }
}

/// Power above idle of the GPUs of the cluster, watts, as jobs are added.
pub(crate) struct PowerSum<'a> {
    input: PlanningInput<'a>,
    above_idle_w: Vec<Vec<f64>>,
}

impl<'a> PowerSum<'a> {
    pub(crate) fn new(input: PlanningInput<'a>) -> Self {
        let gpus = |node: &Node| vec![0.0; node.facts.gpus as usize];
        Self { input, above_idle_w: input.state.nodes().iter().map(gpus).collect() }
    }

    /// Adds a job with this power of each GPU, idle power included. A GPU whose cap is fixed counts with
    /// its cap, because no order bounds its power.
    pub(crate) fn add(&mut self, on: &GpuSet, gpu_w: f64) {
        for here in &on.by_node {
            let node = self.input.state.node(here.node);
            match fixed_w(self.input, node) {
                None => self.raise(here, gpu_w, |present, added| present + added),
                Some(cap_w) => self.raise(here, cap_w, f64::max),
            }
        }
    }

    /// Adds a job with this power of each GPU, also where caps are fixed.
    fn add_expected(&mut self, on: &GpuSet, gpu_w: f64) {
        for here in &on.by_node {
            self.raise(here, gpu_w, |present, added| present + added);
        }
    }

    fn raise(&mut self, here: &NodeGpus, gpu_w: f64, sum: impl Fn(f64, f64) -> f64) {
        let node = self.input.state.node(here.node);
        let above_idle = (gpu_w - idle_w(self.input, node)).max(0.0);
        for gpu in bits(here.gpus) {
            if let Some(watts) = self.above_idle_w[here.node.index()].get_mut(gpu as usize) {
                *watts = sum(*watts, above_idle);
            }
        }
    }

    /// The sum over all GPUs, each at most at its highest power.
    pub(crate) fn total_w(&self) -> f64 {
        self.total_of(whole_nodes(self.input))
    }

    /// The sum over the GPUs of nodes, each at most at its highest power, by the shares of the nodes.
    fn total_of(&self, nodes: impl Iterator<Item = (NodeKey, f64)>) -> f64 {
        nodes.map(|(key, share)| share * self.node_w(key, self.input.state.node(key))).sum()
    }

    /// The sum over the GPUs of a node, each at most at its highest power.
    fn node_w(&self, key: NodeKey, node: &Node) -> f64 {
        let limits = self.input.state.gpu_power(&node.facts.gpu_type);
        let most = limits.map_or(f64::INFINITY, |power| power.most.as_w());
        let most = most.max(fixed_w(self.input, node).unwrap_or(0.0));
        let idle = idle_w(self.input, node);
        let most = (most - idle).max(0.0);
        let gpus = &self.above_idle_w[key.index()];
        let planned = gpus.iter().map(|watts| watts.min(most)).sum::<f64>();
        let may_draw = node.unconfirmed.unwrap_or_default();
        planned.max(may_draw.power.as_w() - idle * f64::from(may_draw.gpus))
    }

    /// The power of each node once these node decisions are carried out, in node order, watts.
    pub(crate) fn by_node_w<'n>(
        &self,
        decisions: impl Iterator<Item = &'n NodeDecision>,
    ) -> Vec<f64> {
        let wakes = decisions.filter(|decision| matches!(decision, NodeDecision::Wake { .. }));
        let woken: BTreeSet<NodeKey> = wakes.map(NodeDecision::node).collect();
        let of_node = |(key, node): (NodeKey, &Node)| {
            let is_asleep = node.wakefulness == Wakefulness::Asleep && !woken.contains(&key);
            node_baseline_w(self.input, node, is_asleep) + self.node_w(key, node)
        };
        self.input.state.keyed_nodes().map(of_node).collect()
    }

    /// The caps of the GPUs of a bound's nodes, watts: no cap is below the lowest that its GPU supports.
    fn caps_w(&self, bound: &Bound) -> f64 {
        let of_node = |((key, node), gpus): ((NodeKey, &Node), &Vec<f64>)| {
            let limits = self.input.state.gpu_power(&node.facts.gpu_type);
            let Some(limits) = limits.filter(|_| bound.covers(key)) else { return 0.0 };
            let least = limits.cap_min.unwrap_or(Power::ZERO).as_w();
            let idle = idle_w(self.input, node);
            gpus.iter().map(|watts| (idle + watts).max(least).min(limits.most.as_w())).sum::<f64>()
        };
        self.input.state.keyed_nodes().zip(&self.above_idle_w).map(of_node).sum()
    }

    /// The power that a bound limits, once these node decisions are carried out, watts. A node that is put to
    /// sleep counts as awake until it sleeps.
    pub(crate) fn bounded_w<'n>(
        &self,
        bound: &Bound,
        decisions: impl Iterator<Item = &'n NodeDecision>,
    ) -> f64 {
        let wakes = decisions.filter(|decision| matches!(decision, NodeDecision::Wake { .. }));
        let nodes = || bound.shares(self.input.state);
        match bound.counted {
            Counted::Nodes => baseline_w(self.input, nodes(), wakes) + self.total_of(nodes()),
            Counted::Caps => self.caps_w(bound),
        }
    }
}

/// Expected power of the cluster as it is.
#[must_use]
pub fn expected_power(input: PlanningInput<'_>) -> Power {
    let mut sum = PowerSum::new(input);
    for (_, job) in input.state.running() {
        let Some((on, setting)) = held_gpus(job) else { continue };
        let Some(gpu_type) = input.state.gpu_type_of(job) else { continue };
        let watts = JobGpus::on(input, job, gpu_type, on).expected_w(input, setting);
        sum.add_expected(on, if watts.is_finite() { watts } else { 0.0 });
    }
    Power::from_w_f64(baseline_w(input, whole_nodes(input), std::iter::empty()) + sum.total_w())
}

/// Power by which measurements lower the expected power of running jobs below their predictions, watts; negative
/// where they raise it.
pub(crate) fn corrected_by_w(input: PlanningInput<'_>) -> f64 {
    if input.limits.power_factors.is_empty() {
        return 0.0;
    }
    let of_job = |(_, job)| {
        let job: &Job = job;
        let (on, setting) = held_gpus(job)?;
        let gpus = JobGpus::on(input, job, input.state.gpu_type_of(job)?, on);
        let off = gpus.predicted_w(input, setting) - gpus.expected_w(input, setting);
        Some(f64::from(gpus.gpus) * off)
    };
    input.state.running().filter_map(of_job).filter(|watts| watts.is_finite()).sum()
}

/// Expected power of each node as it is, in node order, as power limits count it: a node that does not confirm its
/// caps, or whose caps are fixed, with its caps. `None` where the power of a node is not known.
#[must_use]
pub fn expected_by_node(input: PlanningInput<'_>) -> Option<Vec<Power>> {
    least_baseline(input)?;
    let mut sum = PowerSum::new(input);
    for (_, job) in input.state.running() {
        let Some((on, setting)) = held_gpus(job) else { continue };
        let gpu_type = input.state.gpu_type_of(job)?;
        let watts = JobGpus::on(input, job, gpu_type, on).expected_w(input, setting);
        sum.add(on, watts);
    }
    let by_node = sum.by_node_w(std::iter::empty());
    let known = by_node.into_iter().map(|watts| watts.is_finite().then_some(watts));
    known.map(|watts| Some(Power::from_w_f64(watts?))).collect()
}

/// Power reserved for a GPU with its present jobs, watts. `None` if unbounded.
pub(crate) fn reserved_power(input: PlanningInput<'_>, node: NodeKey, gpu: u32) -> Option<f64> {
    let node = input.state.node(node);
    let gpu_type = &node.facts.gpu_type;
    let limits = input.state.gpu_power(gpu_type)?;
    let idle = idle_w(input, node);
    let above_idle = node.tenants(gpu).iter().filter_map(|&key| {
        let job = input.state.job(key)?;
        let (on, setting) = held_gpus(job)?;
        let gpus = JobGpus::on(input, job, gpu_type, on);
        Some((gpus.reserved_w(input, setting) - idle).max(0.0))
    });
    let watts = (idle + above_idle.sum::<f64>()).min(limits.most.as_w());
    Some(watts.max(limits.cap_min.unwrap_or(Power::ZERO).as_w()))
}

/// Power reserved for the present jobs, complete nodes. `None` if it is unknown for a GPU type.
#[must_use]
pub fn reserved_power_sum(input: PlanningInput<'_>) -> Option<Power> {
    let mut watts = baseline_w(input, whole_nodes(input), std::iter::empty());
    for (key, node) in input.state.keyed_nodes().filter(|(_, node)| node.is_awake()) {
        for gpu in 0..node.facts.gpus {
            watts += reserved_power(input, key, gpu)? - idle_w(input, node);
        }
    }
    Some(Power::from_w_f64(watts))
}

/// The cap that enforces the power reserved for a GPU, where a power limit of its node is in force. Entire
/// watts, rounded down: GPUs accept no finer caps, and the sum of the caps is within the limit; during a grid event what
/// they draw of the caps by measurements. `None` where the GPU's highest power is reserved, which its default cap enforces.
#[must_use]
pub fn enforced_cap(input: PlanningInput<'_>, node: NodeKey, gpu: u32) -> Option<Power> {
    let facts = &input.state.node(node).facts;
    if !input.limits.limits_power_of(&facts.id) {
        return None;
    }
    let watts = reserved_power(input, node, gpu)?;
    let limits = input.state.gpu_power(&facts.gpu_type)?;
    let least = limits.cap_min.unwrap_or(Power::ZERO).as_w().ceil().max(1.0);
    let drawn = match input.state.node(node).tenants(gpu) {
        [key] => {
            input.state.job(*key).and_then(|job| input.limits.power_factors.drawn(job.arrival))
        }
        _ => None,
    };
    let watts = drawn.map_or(watts, |shares| shares.cap_w(watts));
    let cap = Power::from_w(watts.floor().max(least) as u64);
    (cap < limits.most).then_some(cap)
}

/// How far the power of a running job can be reduced under a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerEstimate {
    /// Not at all: its setting does not depend on the price.
    Fixed,
    /// To its lowest-power setting.
    Settings,
    /// To its lowest-power setting on its fewest GPUs, if it can be stopped.
    Sizes,
}

impl PowerEstimate {
    /// The reduction that a policy can make.
    #[must_use]
    pub const fn under(capabilities: Capabilities) -> Self {
        match (capabilities.prices, capabilities.sets_gpus) {
            (Some(_), _) => Self::Sizes,
            (None, true) => Self::Fixed,
            (None, false) => Self::Settings,
        }
    }

    /// The number of GPUs of a job at its lowest-power operating point (least energy of a training step),
    /// and the power of each, watts.
    fn minimum(
        self,
        input: PlanningInput<'_>,
        job: JobGpus<'_>,
        setting: GpuSetting,
        estimate: Estimate,
    ) -> (u32, f64) {
        let present = (job.gpus, job.power_w(input, setting, estimate));
        if job.is_fixed {
            return present;
        }
        let Some(points) = job.job.operating_points_on(job.gpu_type) else { return present };
        let size = match self {
            Self::Fixed => return present,
            Self::Sizes if job.job.facts.can_stop => points.sizes().next().unwrap_or(job.gpus),
            Self::Settings | Self::Sizes => job.gpus,
        };
        let least = least_energy(&Charge::on(input, job.gpu_type), points.with_gpus(size));
        let least = least.map(|point| (size, estimate.of(point)));
        least.filter(|(_, watts)| *watts <= present.1 || size < job.gpus).unwrap_or(present)
    }

    /// The minimum power of a job above idle on nodes like `node`, watts.
    pub(crate) fn minimum_above_idle_w(
        self,
        input: PlanningInput<'_>,
        node: &Node,
        job: JobGpus<'_>,
        setting: GpuSetting,
        estimate: Estimate,
    ) -> f64 {
        let (gpus, gpu_w) = self.minimum(input, job, setting, estimate);
        f64::from(gpus) * (gpu_w - idle_w(input, node)).max(0.0)
    }
}

/// Bounds of the cluster's minimum power, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinimumPower {
    /// By the upper end of each prediction, and the highest power of the GPUs of jobs without operating
    /// points: a budget must not be exceeded because a prediction was too low.
    pub upper: Power,
    /// By the mean of each prediction, and the lowest cap of the GPUs of jobs without operating points.
    pub lower: Power,
}

impl From<Power> for MinimumPower {
    fn from(power: Power) -> Self {
        Self { upper: power, lower: power }
    }
}

/// Minimum power of the cluster with its running jobs.
#[must_use]
pub fn min_power(input: PlanningInput<'_>, reduction: PowerEstimate) -> MinimumPower {
    let baseline = baseline_w(input, whole_nodes(input), std::iter::empty());
    let (mut upper_w, mut lower_w) = (baseline, baseline);
    for (_, job) in input.state.running() {
        let Some((on, setting)) = held_gpus(job) else { continue };
        let Some(gpu_type) = input.state.gpu_type_of(job) else { continue };
        let Some(here) = on.by_node.first() else { continue };
        let node = input.state.node(here.node);
        let gpus = JobGpus::on(input, job, gpu_type, on);
        let above_idle_w =
            |estimate| reduction.minimum_above_idle_w(input, node, gpus, setting, estimate);
        let upper = above_idle_w(Estimate::Upper);
        upper_w += if upper.is_finite() { upper } else { 0.0 };
        lower_w += if job.operating_points_on(gpu_type).is_some() {
            above_idle_w(Estimate::Expected)
        } else {
            let cap_min = input.state.gpu_power(gpu_type).and_then(|power| power.cap_min);
            let least = cap_min.filter(|_| !gpus.is_fixed).unwrap_or(Power::ZERO);
            f64::from(gpus.gpus) * (least.as_w() - idle_w(input, node)).max(0.0)
        };
    }
    MinimumPower { upper: Power::from_w_f64(upper_w), lower: Power::from_w_f64(lower_w) }
}

/// Least expected power of the cluster with this queued job as the only one, watts, on the nodes where it
/// needs least. By the mean of its prediction: only a run could narrow it.
pub(crate) fn alone_w(input: PlanningInput<'_>, reduction: PowerEstimate, job: &Job) -> f64 {
    let gpus = job.facts.request.min;
    let least = |node: &Node| node_baseline_w(input, node, input.limits.nodes_sleep);
    let baseline: f64 = input.state.nodes().iter().map(least).sum();
    let added = input.state.nodes().iter().map(|node| {
        let job = JobGpus::of(node, job, gpus);
        let (gpus, gpu_w) = reduction.minimum(input, job, GpuSetting::DEFAULT, Estimate::Expected);
        let nodes = gpus.div_ceil(node.facts.gpus.max(1));
        let waking = (node_baseline_w(input, node, false) - least(node)).max(0.0);
        f64::from(gpus) * (gpu_w - idle_w(input, node)).max(0.0) + f64::from(nodes) * waking
    });
    baseline + added.reduce(f64::min).unwrap_or(0.0)
}
