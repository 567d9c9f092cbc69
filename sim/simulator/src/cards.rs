//! The cluster's cards as the world sees them: who is on each, what it draws, how fast it lets run.
//!
//! The world's answer for a set of tenants never changes, so each is asked for once. Sums over the
//! cluster are kept as integers and moved by differences: they never drift.

use std::collections::BTreeMap;

use wattle_common::job::GpuSetting;
use wattle_common::topology::ClusterShape;
use wattle_placer::state::gpu_set::bits;
use wattle_placer::{GpuSet, NodeKey};
use wattle_world::{GpuModel, GpuState, Setting, Tenant, Workload, World};

use crate::scenario::ScenarioError;

/// What a job is, as far as a card goes: index of its workload, GPUs, nodes.
pub(crate) type Shape = (u32, u32, u32);

/// Some of a job's cards, which it shares with the same others.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Part {
    /// Who else is there, in the order they came.
    pub(crate) others: Vec<u32>,
    pub(crate) cards: u32,
    /// Power of one of them, watts.
    pub(crate) power_w: f64,
}

struct Card {
    /// Jobs in the order they came, with their shapes.
    tenants: Vec<(u32, Shape)>,
    /// Its cap and clock, by their place in `settings`.
    setting: u32,
    /// Which of the known states it is in.
    state: u32,
}

struct NodeCards {
    kind: u32,
    cards: Vec<Card>,
    busy: u32,
    /// What it draws asleep, while it is.
    asleep_mw: Option<u64>,
}

impl NodeCards {
    /// Cards with no job, where others have one.
    fn free_beside(&self) -> u64 {
        if self.busy == 0 {
            return 0;
        }
        self.cards.iter().filter(|card| card.tenants.is_empty()).count() as u64
    }
}

/// All cards of the cluster.
pub(crate) struct Cards<'w> {
    world: &'w World,
    kinds: Vec<&'w GpuModel>,
    workloads: Vec<&'w Workload>,
    nodes: Vec<NodeCards>,
    /// By kind and setting.
    known: BTreeMap<(u32, u32, Vec<Shape>), u32>,
    /// The usual case, looked up without building a list.
    known_alone: BTreeMap<(u32, u32, Shape), u32>,
    /// Every setting there was; the first is the default.
    settings: Vec<GpuSetting>,
    states: Vec<GpuState>,
    /// Power of all cards and hosts, mW.
    pub(crate) power_mw: u64,
    /// Power of all cards above what they draw idle, mW.
    pub(crate) above_idle_mw: u64,
    /// Busy shares of all cards, each in millionths.
    pub(crate) utilization_ppm: u64,
    /// Nodes with a job.
    pub(crate) nodes_active: u64,
    /// GPUs with no job on nodes that have one.
    pub(crate) fragmented: u64,
    /// Nodes that are not asleep.
    pub(crate) nodes_awake: u64,
}

impl<'w> Cards<'w> {
    pub(crate) fn new(
        world: &'w World,
        cluster: &ClusterShape,
        workloads: Vec<&'w Workload>,
    ) -> Result<Self, ScenarioError> {
        let mut cards = Self {
            world,
            kinds: Vec::new(),
            workloads,
            nodes: Vec::new(),
            known: BTreeMap::new(),
            known_alone: BTreeMap::new(),
            settings: vec![GpuSetting::DEFAULT],
            states: Vec::new(),
            power_mw: 0,
            above_idle_mw: 0,
            utilization_ppm: 0,
            nodes_active: 0,
            fragmented: 0,
            nodes_awake: cluster.node_count() as u64,
        };
        for (gpus, kind) in cluster.nodes() {
            let kind = match cards.kinds.iter().position(|known| known.gpu_type == kind) {
                Some(index) => index,
                None => {
                    cards.kinds.push(
                        world.gpu(kind).ok_or_else(|| ScenarioError::UnknownGpu {
                            gpu_type: kind.to_owned(),
                            known: world
                                .gpus()
                                .map(|g| g.gpu_type.as_str())
                                .collect::<Vec<_>>()
                                .join(", "),
                        })?,
                    );
                    cards.kinds.len() - 1
                }
            };
            cards.power_mw += world.host_power_of(cards.kinds[kind], gpus).as_mw();
            let state = cards.state_of(kind as u32, 0, &[]);
            let idle_mw = cards.states[state as usize].power.as_mw();
            cards.power_mw += idle_mw * u64::from(gpus);
            let empty = (0..gpus).map(|_| Card { tenants: Vec::new(), setting: 0, state });
            let empty = empty.collect();
            cards.nodes.push(NodeCards {
                kind: kind as u32,
                cards: empty,
                busy: 0,
                asleep_mw: None,
            });
        }
        Ok(cards)
    }

    /// The GPU model of a node.
    pub(crate) fn model(&self, node: NodeKey) -> &'w GpuModel {
        self.kinds[self.nodes[node.index()].kind as usize]
    }

    /// The GPU model of the first node.
    pub(crate) fn first_model(&self) -> &'w GpuModel {
        self.kinds[0]
    }

    /// The GPU models there are, in node order.
    pub(crate) fn models(&self) -> impl Iterator<Item = &'w GpuModel> {
        self.kinds.iter().copied()
    }

    /// A node falls asleep, and draws so much, or is awake again.
    pub(crate) fn sleep(&mut self, node: NodeKey, asleep_mw: Option<u64>) {
        let index = node.index();
        let awake_mw = self.idle_mw(node);
        let draws = |asleep: Option<u64>| asleep.unwrap_or(awake_mw);
        let before = std::mem::replace(&mut self.nodes[index].asleep_mw, asleep_mw);
        self.power_mw = self.power_mw + draws(asleep_mw) - draws(before);
        self.nodes_awake =
            self.nodes_awake + u64::from(before.is_some()) - u64::from(asleep_mw.is_some());
    }

    /// What a node draws awake with no job.
    fn idle_mw(&self, node: NodeKey) -> u64 {
        let (model, gpus) = (self.model(node), self.nodes[node.index()].cards.len() as u32);
        self.world.host_power_of(model, gpus).as_mw() + model.idle.as_mw() * u64::from(gpus)
    }

    /// A GPU has this cap and clock from now on; appends every job whose speed may have changed.
    pub(crate) fn set(
        &mut self,
        node: NodeKey,
        gpu: u32,
        setting: GpuSetting,
        touched: &mut Vec<u32>,
    ) {
        let known = self.settings.iter().position(|known| *known == setting);
        let setting = known.unwrap_or_else(|| {
            self.settings.push(setting);
            self.settings.len() - 1
        }) as u32;
        let card = &mut self.nodes[node.index()].cards[gpu as usize];
        if std::mem::replace(&mut card.setting, setting) != setting {
            self.refresh(node.index(), gpu as usize, touched);
        }
    }

    /// What a card is set to.
    pub(crate) fn setting(&self, node: NodeKey, gpu: u32) -> GpuSetting {
        self.settings[self.nodes[node.index()].cards[gpu as usize].setting as usize]
    }

    /// Puts a job on its GPUs; appends every job whose speed may have changed.
    pub(crate) fn add(&mut self, job: u32, shape: Shape, on: &GpuSet, touched: &mut Vec<u32>) {
        for spot in &on.by_node {
            let node = spot.node.index();
            let free_before = self.nodes[node].free_beside();
            if self.nodes[node].busy == 0 {
                self.nodes_active += 1;
            }
            self.nodes[node].busy += spot.gpus.count_ones();
            for gpu in bits(spot.gpus) {
                self.nodes[node].cards[gpu as usize].tenants.push((job, shape));
                self.refresh(node, gpu as usize, touched);
            }
            self.fragmented = self.fragmented + self.nodes[node].free_beside() - free_before;
        }
        touched.push(job);
    }

    /// Takes a job off its GPUs; appends every other job whose speed may have changed.
    pub(crate) fn remove(&mut self, job: u32, on: &GpuSet, touched: &mut Vec<u32>) {
        for spot in &on.by_node {
            let node = spot.node.index();
            let free_before = self.nodes[node].free_beside();
            self.nodes[node].busy -= spot.gpus.count_ones();
            if self.nodes[node].busy == 0 {
                self.nodes_active -= 1;
            }
            for gpu in bits(spot.gpus) {
                self.nodes[node].cards[gpu as usize].tenants.retain(|(tenant, _)| *tenant != job);
                self.refresh(node, gpu as usize, touched);
            }
            self.fragmented = self.fragmented + self.nodes[node].free_beside() - free_before;
        }
    }

    /// The speed of a job relative to running alone where it is: that of its slowest card.
    pub(crate) fn speed(&self, job: u32, on: &GpuSet) -> f64 {
        let mut slowest = f64::INFINITY;
        for (node, gpu) in on.gpus() {
            let card = &self.nodes[node.index()].cards[gpu as usize];
            let state = &self.states[card.state as usize];
            if let Some(i) = card.tenants.iter().position(|(tenant, _)| *tenant == job) {
                slowest = slowest.min(state.tenants[i].speed);
            }
        }
        if slowest.is_finite() { slowest } else { 0.0 }
    }

    /// A job's cards by who else is on them: their other tenants, how many cards, and the power of
    /// one of them. Cards with the same tenants in the same order are one entry.
    pub(crate) fn parts(&self, job: u32, on: &GpuSet) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        for (node, gpu) in on.gpus() {
            let card = &self.nodes[node.index()].cards[gpu as usize];
            let others = || card.tenants.iter().map(|(tenant, _)| *tenant).filter(|t| *t != job);
            match parts.iter_mut().find(|part| part.others.iter().copied().eq(others())) {
                Some(part) => part.cards += 1,
                None => parts.push(Part {
                    others: others().collect(),
                    cards: 1,
                    power_w: self.states[card.state as usize].power.as_w(),
                }),
            }
        }
        parts
    }

    /// One of a job's cards, what it does, and the job's place among its tenants.
    pub(crate) fn first_card(&self, job: u32, on: &GpuSet) -> Option<(&GpuState, usize)> {
        let (node, gpu) = on.gpus().next()?;
        let card = &self.nodes[node.index()].cards[gpu as usize];
        let place = card.tenants.iter().position(|(tenant, _)| *tenant == job)?;
        Some((&self.states[card.state as usize], place))
    }

    /// Whether somebody is on any of these GPUs.
    pub(crate) fn is_occupied(&self, on: &GpuSet) -> bool {
        let mut gpus = on.gpus();
        gpus.any(|(node, gpu)| !self.nodes[node.index()].cards[gpu as usize].tenants.is_empty())
    }

    /// Everyone else on a job's GPUs.
    pub(crate) fn neighbours(&self, job: u32, on: &GpuSet) -> Vec<u32> {
        let cards = on.gpus().map(|(node, gpu)| &self.nodes[node.index()].cards[gpu as usize]);
        let mut others: Vec<u32> = cards
            .flat_map(|card| card.tenants.iter().map(|(tenant, _)| *tenant))
            .filter(|tenant| *tenant != job)
            .collect();
        others.sort_unstable();
        others.dedup();
        others
    }

    fn refresh(&mut self, node: usize, gpu: usize, touched: &mut Vec<u32>) {
        let NodeCards { kind, cards, .. } = &mut self.nodes[node];
        let kind = *kind;
        let card = &mut cards[gpu];
        touched.extend(card.tenants.iter().map(|(tenant, _)| *tenant));
        let tenants = std::mem::take(&mut card.tenants);
        let (before, setting) = (card.state, card.setting);
        let after = self.state_of(kind, setting, &tenants);
        let card = &mut self.nodes[node].cards[gpu];
        card.tenants = tenants;
        card.state = after;
        let (before, after) = (&self.states[before as usize], &self.states[after as usize]);
        self.power_mw = self.power_mw + after.power.as_mw() - before.power.as_mw();
        let idle = self.kinds[kind as usize].idle;
        let above = |state: &GpuState| state.power.saturating_sub(idle).as_mw();
        self.above_idle_mw = self.above_idle_mw + above(after) - above(before);
        self.utilization_ppm = self.utilization_ppm + ppm(after) - ppm(before);
    }

    fn state_of(&mut self, kind: u32, setting: u32, tenants: &[(u32, Shape)]) -> u32 {
        if let [(_, shape)] = tenants
            && let Some(&state) = self.known_alone.get(&(kind, setting, *shape))
        {
            return state;
        }
        let shapes: Vec<Shape> = tenants.iter().map(|(_, shape)| *shape).collect();
        let key = (kind, setting, shapes);
        if let Some(&state) = self.known.get(&key) {
            return state;
        }
        let there: Vec<Tenant<'_>> = key
            .2
            .iter()
            .map(|&(workload, gpus, nodes)| Tenant {
                workload: self.workloads[workload as usize],
                gpus,
                nodes,
            })
            .collect();
        let GpuSetting { cap_mw, clock_mhz_max } = self.settings[setting as usize];
        let setting_of_card = Setting { cap: cap_mw, clock_max: clock_mhz_max };
        let state = self.world.gpu_state(self.kinds[kind as usize], setting_of_card, &there);
        let index = self.states.len() as u32;
        self.states.push(state);
        if let [shape] = key.2[..] {
            self.known_alone.insert((kind, setting, shape), index);
        }
        self.known.insert(key, index);
        index
    }
}

fn ppm(state: &GpuState) -> u64 {
    (state.utilization_gpu.clamp(0.0, 1.0) * 1e6).round() as u64
}
