//! What the cluster is expected to draw, whole nodes: as it is, and once a plan is carried out.
//!
//! A node that is awake draws its host and its idle cards; a card with a job draws what the job's menu
//! says of its setting, and where nothing is known of the job, the most that such a card draws. Jobs
//! that share a card add what each draws above idle. A cap is never exceeded: the card holds it.
//! Nothing is decided here.

use std::collections::BTreeMap;

use wattle_common::Power;
use wattle_common::job::GpuSetting;

use crate::plan::input::PlanningInput;
use crate::plan::{NodeDecision, Plan};
use crate::policies::Policy;
use crate::power::energy_cost::Charge;
use crate::state::gpu_set::{GpuSet, NodeKey};
use crate::state::job::{Job, State};
use crate::state::node::{Node, Wakefulness};
use crate::state::operating_points::OperatingPoint;

/// What a card of this kind draws idle, watts.
pub(crate) fn idle_w(input: PlanningInput<'_>, node: &Node) -> f64 {
    let said = node.facts.watts.map(|watts| watts.card_idle);
    let kind = input.state.gpu_power(&node.facts.gpu_type).map(|draw| draw.idle);
    said.or(kind).unwrap_or(Power::ZERO).as_w()
}

/// What a node draws with no job on it, awake or asleep, watts.
fn empty_node_w(input: PlanningInput<'_>, node: &Node, asleep: bool) -> f64 {
    let kind = input.state.gpu_power(&node.facts.gpu_type);
    let host = node.facts.watts.map(|watts| watts.host).or(kind.map(|draw| draw.host));
    match node.facts.watts.filter(|_| asleep) {
        Some(watts) => watts.asleep.as_w(),
        None => {
            host.unwrap_or(Power::ZERO).as_w() + f64::from(node.facts.gpus) * idle_w(input, node)
        }
    }
}

/// What all nodes draw with no job on them once the plan's nodes sleep and wake, watts.
pub(crate) fn baseline_w(input: PlanningInput<'_>, plan: &Plan) -> f64 {
    let mut ordered = BTreeMap::new();
    for decision in &plan.nodes {
        let sleeps = matches!(decision, NodeDecision::Sleep { .. });
        ordered.insert(decision.node(), sleeps);
    }
    let asleep = |key, node: &Node| {
        ordered.get(&key).copied().unwrap_or(node.wakefulness == Wakefulness::Asleep)
    };
    let nodes = input.state.keyed_nodes();
    nodes.map(|(key, node)| empty_node_w(input, node, asleep(key, node))).sum()
}

/// What a card of `kind` draws with this job alone on it, watts; infinite where nothing bounds it.
pub(crate) fn card_w(
    input: PlanningInput<'_>,
    job: &Job,
    kind: &str,
    gpus: u32,
    setting: GpuSetting,
) -> f64 {
    card_w_by(|choice| choice.gpu_power_w, input, job, kind, gpus, setting)
}

/// The same by what is told of a choice.
fn card_w_by(
    watts: impl Fn(&OperatingPoint) -> f64,
    input: PlanningInput<'_>,
    job: &Job,
    kind: &str,
    gpus: u32,
    setting: GpuSetting,
) -> f64 {
    let menu = job.menu_on(kind);
    let uncapped = GpuSetting { cap_mw: None, ..setting };
    let known = menu.and_then(|menu| {
        let choice = |setting| menu.choice(gpus, setting);
        choice(setting).or_else(|| choice(uncapped)).or_else(|| choice(GpuSetting::DEFAULT))
    });
    let most = input.state.gpu_power(kind).map_or(f64::INFINITY, |draw| draw.most.as_w());
    let cap = setting.cap_mw.map_or(f64::INFINITY, Power::as_w);
    let least = input.state.gpu_power(kind).and_then(|draw| draw.cap_least);
    let least = least.filter(|_| input.limits.caps_enforced).unwrap_or(Power::ZERO).as_w();
    known.map_or(most, watts).max(least).min(cap).min(most)
}

/// What a card may draw with the jobs that are on it, or none, watts: all of it that is counted.
/// `None` where nothing bounds it.
fn reserved_power(input: PlanningInput<'_>, node: NodeKey, gpu: u32) -> Option<f64> {
    let facts = input.state.node(node);
    let kind = &facts.facts.gpu_type;
    let draw = input.state.gpu_power(kind)?;
    let idle = idle_w(input, facts);
    let above = facts.tenants(gpu).iter().filter_map(|&key| {
        let job = input.state.job(key)?;
        let (on, setting) = match &job.state {
            State::Running { on, setting, .. } => (on, *setting),
            State::Stopping { on } => (on, GpuSetting::DEFAULT),
            State::Queued => return None,
        };
        Some((card_w(input, job, kind, on.gpu_count(), setting) - idle).max(0.0))
    });
    let watts = (idle + above.sum::<f64>()).min(draw.most.as_w());
    // No cap is lower, and an idle card draws less than any.
    Some(watts.max(draw.cap_least.unwrap_or(Power::ZERO).as_w()))
}

/// The cap that holds a card to what it may draw, where a power limit stands. Whole watts: cards take
/// no finer ones, and neither does a window's configuration.
#[must_use]
pub fn enforced_cap(input: PlanningInput<'_>, node: NodeKey, gpu: u32) -> Option<Power> {
    input.limits.power_max?;
    let watts = reserved_power(input, node, gpu)?;
    Some(Power::from_w(watts.ceil().max(1.0) as u64))
}

/// Watts of cards above idle, by node and GPU.
pub(crate) struct Cards<'a> {
    input: PlanningInput<'a>,
    above_w: Vec<Vec<f64>>,
}

impl<'a> Cards<'a> {
    pub(crate) fn new(input: PlanningInput<'a>) -> Self {
        let cards = |node: &Node| vec![0.0; node.facts.gpus as usize];
        Self { input, above_w: input.state.nodes().iter().map(cards).collect() }
    }

    /// A job draws so much, idle and all, on each of these.
    pub(crate) fn add(&mut self, on: &GpuSet, card_w: f64) {
        for spot in &on.by_node {
            let node = self.input.state.node(spot.node);
            let above = (card_w - idle_w(self.input, node)).max(0.0);
            for gpu in crate::state::gpu_set::bits(spot.gpus) {
                if let Some(watts) = self.above_w[spot.node.index()].get_mut(gpu as usize) {
                    *watts += above;
                }
            }
        }
    }

    /// All of them, none above what such a card draws at most.
    pub(crate) fn above_idle_w(&self) -> f64 {
        let of = |(node, cards): (&Node, &Vec<f64>)| {
            let most = self.input.state.gpu_power(&node.facts.gpu_type);
            let most = most.map_or(f64::INFINITY, |draw| draw.most.as_w());
            let most = (most - idle_w(self.input, node)).max(0.0);
            cards.iter().map(|watts| watts.min(most)).sum::<f64>()
        };
        self.input.state.nodes().iter().zip(&self.above_w).map(of).sum()
    }
}

/// What is drawn now, by what is expected of each job as it is set.
#[must_use]
pub fn drawn(input: PlanningInput<'_>) -> Power {
    let mut cards = Cards::new(input);
    for (_, job) in input.state.running() {
        let (on, setting) = match &job.state {
            State::Running { on, setting, .. } => (on, *setting),
            State::Stopping { on } => (on, GpuSetting::DEFAULT),
            State::Queued => continue,
        };
        let Some(kind) = input.state.gpu_type_of(job) else { continue };
        let watts = card_w(input, job, kind, on.gpu_count(), setting);
        cards.add(on, if watts.is_finite() { watts } else { 0.0 });
    }
    Power::from_w_f64(baseline_w(input, &Plan::default()) + cards.above_idle_w())
}

/// How far a job's draw can be brought down while it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerEstimate {
    /// Not at all: somebody has chosen its setting for good.
    Fixed,
    /// To its min_power setting.
    Settings,
    /// To its min_power setting on the fewest GPUs it may have, where it can be stopped.
    Sizes,
}

impl PowerEstimate {
    /// What can be done under a policy.
    #[must_use]
    pub fn under(policy: &dyn Policy) -> Self {
        match (policy.capabilities().prices, policy.capabilities().sets_cards) {
            (Some(_), _) => Self::Sizes,
            (None, true) => Self::Fixed,
            (None, false) => Self::Settings,
        }
    }

    /// The GPUs of a job that has so many, so set, and the watts of each once it is at its min_power:
    /// at the least energy a step. Where its power is not sure, the most that it may be: a budget that
    /// is reserved_power to hold is not to be overrun by what was foretold too low.
    pub(crate) fn of(
        self,
        input: PlanningInput<'_>,
        job: &Job,
        kind: &str,
        gpus: u32,
        setting: GpuSetting,
    ) -> (u32, f64) {
        self.of_by(|choice| choice.card_power_w_most, input, job, kind, gpus, setting)
    }

    /// The same as it is expected to be, where its power is not sure.
    pub(crate) fn expected(
        self,
        input: PlanningInput<'_>,
        job: &Job,
        kind: &str,
        gpus: u32,
        setting: GpuSetting,
    ) -> (u32, f64) {
        self.of_by(|choice| choice.gpu_power_w, input, job, kind, gpus, setting)
    }

    fn of_by(
        self,
        power_w: impl Fn(&OperatingPoint) -> f64,
        input: PlanningInput<'_>,
        job: &Job,
        kind: &str,
        gpus: u32,
        setting: GpuSetting,
    ) -> (u32, f64) {
        let as_it_is = (gpus, card_w_by(&power_w, input, job, kind, gpus, setting));
        let Some(menu) = job.menu_on(kind) else {
            return as_it_is;
        };
        let size = match self {
            Self::Fixed => return as_it_is,
            Self::Settings => gpus,
            Self::Sizes if job.facts.can_stop => menu.sizes().next().unwrap_or(gpus),
            Self::Sizes => gpus,
        };
        let charge = Charge::on(input, kind);
        let joules = |choice: &&OperatingPoint| charge.joules_a_step(choice);
        let choices = menu.with_gpus(size).iter();
        let least = choices.min_by(|a, b| joules(a).total_cmp(&joules(b)));
        let least = least.map(|choice| (size, power_w(choice)));
        least.filter(|(_, watts)| *watts <= as_it_is.1 || size < gpus).unwrap_or(as_it_is)
    }
}

/// What would be drawn if every running job were at its min_power.
#[must_use]
pub fn min_power(input: PlanningInput<'_>, thrift: PowerEstimate) -> Power {
    of_running(input, |job, gpus, setting| {
        Some(thrift.of(input, job, input.state.gpu_type_of(job)?, gpus, setting))
    })
}

/// What the whole cluster draws at least with nobody on it, the nodes asleep that may sleep; `None`
/// where that is not known of every node.
#[must_use]
pub fn empty(input: PlanningInput<'_>) -> Option<Power> {
    let is_known = |node: &Node| {
        node.facts.watts.is_some() || input.state.gpu_power(&node.facts.gpu_type).is_some()
    };
    let nodes = input.state.nodes();
    let known = !nodes.is_empty() && nodes.iter().all(is_known);
    let watts = nodes.iter().map(|node| empty_node_w(input, node, input.limits.nodes_sleep)).sum();
    known.then(|| Power::from_w_f64(watts))
}

/// What the whole cluster is expected to draw at least with this waiting job on it, at its min_power,
/// and nobody else: on the nodes that need least for it, the others asleep where they may sleep. Not
/// the most that may be: of a job that never runs nothing surer will ever be known.
pub(crate) fn alone_w(input: PlanningInput<'_>, thrift: PowerEstimate, job: &Job) -> f64 {
    let gpus = job.facts.request.min;
    let rest = |node: &Node| empty_node_w(input, node, input.limits.nodes_sleep);
    let all: f64 = input.state.nodes().iter().map(rest).sum();
    let on_one_kind = input.state.nodes().iter().map(|node| {
        let kind = &node.facts.gpu_type;
        let (gpus, card_w) = thrift.expected(input, job, kind, gpus, GpuSetting::DEFAULT);
        let nodes = gpus.div_ceil(node.facts.gpus.max(1));
        let wakes = (empty_node_w(input, node, false) - rest(node)).max(0.0);
        f64::from(gpus) * (card_w - idle_w(input, node)).max(0.0) + f64::from(nodes) * wakes
    });
    all + on_one_kind.reduce(f64::min).unwrap_or(0.0)
}

/// The empty cluster and what each running job adds: `of` says on how many GPUs, and what each draws.
fn of_running(
    input: PlanningInput<'_>,
    of: impl Fn(&Job, u32, GpuSetting) -> Option<(u32, f64)>,
) -> Power {
    let mut watts = baseline_w(input, &Plan::default());
    for (_, job) in input.state.running() {
        let (on, setting) = match &job.state {
            State::Running { on, setting, .. } => (on, *setting),
            State::Stopping { on } => (on, GpuSetting::DEFAULT),
            State::Queued => continue,
        };
        let Some((gpus, card_w)) = of(job, on.gpu_count(), setting) else { continue };
        let idle =
            on.by_node.first().map_or(0.0, |spot| idle_w(input, input.state.node(spot.node)));
        let above = if card_w.is_finite() { (card_w - idle).max(0.0) } else { 0.0 };
        watts += f64::from(gpus) * above;
    }
    Power::from_w_f64(watts)
}
