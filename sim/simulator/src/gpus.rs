//! The cluster's GPUs: tenants, power and speeds, computed by the world.
//!
//! The world's state of a set of tenants is constant, so it is computed once. Sums over the cluster
//! are integers updated by differences, without rounding error.

use std::collections::BTreeMap;

use wattle_common::job::GpuSetting;
use wattle_common::topology::ClusterShape;
use wattle_placer::state::gpu_set::bits;
use wattle_placer::{GpuSet, NodeKey};
use wattle_world::{GpuModel, GpuState, Setting, Tenant, Workload, World};

use crate::scenario::ScenarioError;

/// A job as the world sees it: index of its workload, number of GPUs, number of nodes.
pub(crate) type Shape = (u32, u32, u32);

/// A job's GPUs with the same co-tenants.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Part {
    /// The co-tenants, in the order of their starts.
    pub(crate) others: Vec<u32>,
    /// Number of these GPUs.
    pub(crate) gpus: u32,
    /// Power of one of these GPUs in watts.
    pub(crate) power_w: f64,
}

struct Gpu {
    /// Jobs with their shapes, in the order of their starts.
    tenants: Vec<(u32, Shape)>,
    /// Cap and clock: index into `settings`.
    setting: u32,
    /// Index into `states`.
    state: u32,
}

struct Node {
    /// Index into `models`.
    model: u32,
    gpus: Vec<Gpu>,
    /// Number of tenants, summed over GPUs.
    busy: u32,
    /// Power while asleep; `None` while awake.
    asleep_mw: Option<u64>,
}

impl Node {
    /// Number of free GPUs, if the node has a job.
    fn fragmented(&self) -> u64 {
        if self.busy == 0 {
            return 0;
        }
        self.gpus.iter().filter(|gpu| gpu.tenants.is_empty()).count() as u64
    }
}

/// All GPUs of the cluster.
pub(crate) struct Gpus<'w> {
    world: &'w World,
    models: Vec<&'w GpuModel>,
    workloads: Vec<&'w Workload>,
    nodes: Vec<Node>,
    /// Index of the state by model, setting and tenants.
    known: BTreeMap<(u32, u32, Vec<Shape>), u32>,
    /// Index of the state by model, setting and the only tenant: a key without allocation.
    known_single: BTreeMap<(u32, u32, Shape), u32>,
    /// All settings used so far; the first is the default.
    settings: Vec<GpuSetting>,
    states: Vec<GpuState>,
    /// Power of all GPUs and hosts in mW.
    pub(crate) power_mw: u64,
    /// Power of all GPUs above idle power in mW.
    pub(crate) above_idle_mw: u64,
    /// Sum of the utilizations of all GPUs, in millionths.
    pub(crate) utilization_ppm: u64,
    /// Number of nodes with a job.
    pub(crate) nodes_active: u64,
    /// Number of free GPUs on nodes with a job.
    pub(crate) fragmented: u64,
    /// Number of awake nodes.
    pub(crate) nodes_awake: u64,
}

impl<'w> Gpus<'w> {
    pub(crate) fn new(
        world: &'w World,
        cluster: &ClusterShape,
        workloads: Vec<&'w Workload>,
    ) -> Result<Self, ScenarioError> {
        let mut all = Self {
            world,
            models: Vec::new(),
            workloads,
            nodes: Vec::new(),
            known: BTreeMap::new(),
            known_single: BTreeMap::new(),
            settings: vec![GpuSetting::DEFAULT],
            states: Vec::new(),
            power_mw: 0,
            above_idle_mw: 0,
            utilization_ppm: 0,
            nodes_active: 0,
            fragmented: 0,
            nodes_awake: cluster.node_count() as u64,
        };
        for (gpus, gpu_type) in cluster.nodes() {
            let model = match all.models.iter().position(|known| known.gpu_type == gpu_type) {
                Some(index) => index,
                None => {
                    all.models.push(world.gpu(gpu_type).ok_or_else(|| {
                        ScenarioError::UnknownGpu {
                            gpu_type: gpu_type.to_owned(),
                            known: world
                                .gpus()
                                .map(|g| g.gpu_type.as_str())
                                .collect::<Vec<_>>()
                                .join(", "),
                        }
                    })?);
                    all.models.len() - 1
                }
            };
            all.power_mw += world.host_power_of(all.models[model], gpus).as_mw();
            let state = all.state_of(model as u32, 0, &[]);
            let idle_mw = all.states[state as usize].power.as_mw();
            all.power_mw += idle_mw * u64::from(gpus);
            let empty = (0..gpus).map(|_| Gpu { tenants: Vec::new(), setting: 0, state });
            let empty = empty.collect();
            all.nodes.push(Node { model: model as u32, gpus: empty, busy: 0, asleep_mw: None });
        }
        Ok(all)
    }

    /// The GPU model of a node.
    pub(crate) fn model(&self, node: NodeKey) -> &'w GpuModel {
        self.models[self.nodes[node.index()].model as usize]
    }

    /// The GPU model of the first node.
    pub(crate) fn first_model(&self) -> &'w GpuModel {
        self.models[0]
    }

    /// The GPU models, in node order.
    pub(crate) fn models(&self) -> impl Iterator<Item = &'w GpuModel> {
        self.models.iter().copied()
    }

    /// Sets the power of a sleeping node; `None` wakes it.
    pub(crate) fn sleep(&mut self, node: NodeKey, asleep_mw: Option<u64>) {
        let index = node.index();
        let awake_mw = self.idle_mw(node);
        let power = |asleep: Option<u64>| asleep.unwrap_or(awake_mw);
        let before = std::mem::replace(&mut self.nodes[index].asleep_mw, asleep_mw);
        self.power_mw = self.power_mw + power(asleep_mw) - power(before);
        self.nodes_awake =
            self.nodes_awake + u64::from(before.is_some()) - u64::from(asleep_mw.is_some());
    }

    /// Power of a node.
    pub(crate) fn node_mw(&self, node: NodeKey) -> u64 {
        let Node { model, gpus, asleep_mw, .. } = &self.nodes[node.index()];
        if let Some(asleep_mw) = asleep_mw {
            return *asleep_mw;
        }
        let host = self.world.host_power_of(self.models[*model as usize], gpus.len() as u32);
        let state = |gpu: &Gpu| self.states[gpu.state as usize].power.as_mw();
        host.as_mw() + gpus.iter().map(state).sum::<u64>()
    }

    /// The state of each GPU of a node.
    pub(crate) fn gpu_states(&self, node: NodeKey) -> impl Iterator<Item = &GpuState> {
        let gpus = self.nodes[node.index()].gpus.iter();
        gpus.map(|gpu| &self.states[gpu.state as usize])
    }

    /// Power of an awake node without a job.
    fn idle_mw(&self, node: NodeKey) -> u64 {
        let (model, gpus) = (self.model(node), self.nodes[node.index()].gpus.len() as u32);
        self.world.host_power_of(model, gpus).as_mw() + model.idle.as_mw() * u64::from(gpus)
    }

    /// Sets a GPU's cap and clock; appends every job whose speed may have changed.
    pub(crate) fn set(
        &mut self,
        node: NodeKey,
        gpu: u32,
        setting: GpuSetting,
        changed: &mut Vec<u32>,
    ) {
        let known = self.settings.iter().position(|known| *known == setting);
        let setting = known.unwrap_or_else(|| {
            self.settings.push(setting);
            self.settings.len() - 1
        }) as u32;
        let state = &mut self.nodes[node.index()].gpus[gpu as usize];
        if std::mem::replace(&mut state.setting, setting) != setting {
            self.refresh(node.index(), gpu as usize, changed);
        }
    }

    /// The setting of a GPU.
    pub(crate) fn setting(&self, node: NodeKey, gpu: u32) -> GpuSetting {
        self.settings[self.nodes[node.index()].gpus[gpu as usize].setting as usize]
    }

    /// Puts a job on its GPUs; appends every job whose speed may have changed.
    pub(crate) fn add(&mut self, job: u32, shape: Shape, on: &GpuSet, changed: &mut Vec<u32>) {
        for node_gpus in &on.by_node {
            let node = node_gpus.node.index();
            let free_before = self.nodes[node].fragmented();
            if self.nodes[node].busy == 0 {
                self.nodes_active += 1;
            }
            self.nodes[node].busy += node_gpus.gpus.count_ones();
            for gpu in bits(node_gpus.gpus) {
                self.nodes[node].gpus[gpu as usize].tenants.push((job, shape));
                self.refresh(node, gpu as usize, changed);
            }
            self.fragmented = self.fragmented + self.nodes[node].fragmented() - free_before;
        }
        changed.push(job);
    }

    /// Takes a job off its GPUs; appends every other job whose speed may have changed.
    pub(crate) fn remove(&mut self, job: u32, on: &GpuSet, changed: &mut Vec<u32>) {
        for node_gpus in &on.by_node {
            let node = node_gpus.node.index();
            let free_before = self.nodes[node].fragmented();
            self.nodes[node].busy -= node_gpus.gpus.count_ones();
            if self.nodes[node].busy == 0 {
                self.nodes_active -= 1;
            }
            for gpu in bits(node_gpus.gpus) {
                self.nodes[node].gpus[gpu as usize].tenants.retain(|(tenant, _)| *tenant != job);
                self.refresh(node, gpu as usize, changed);
            }
            self.fragmented = self.fragmented + self.nodes[node].fragmented() - free_before;
        }
    }

    /// The speed of a job relative to exclusive use of its GPUs: that of its slowest GPU.
    pub(crate) fn speed(&self, job: u32, on: &GpuSet) -> f64 {
        let mut slowest = f64::INFINITY;
        for (node, gpu) in on.gpus() {
            let gpu = &self.nodes[node.index()].gpus[gpu as usize];
            let state = &self.states[gpu.state as usize];
            if let Some(i) = gpu.tenants.iter().position(|(tenant, _)| *tenant == job) {
                slowest = slowest.min(state.tenants[i].speed);
            }
        }
        if slowest.is_finite() { slowest } else { 0.0 }
    }

    /// A job's share of the power of its GPUs above idle, mW. The power of a GPU is divided equally
    /// among its jobs.
    pub(crate) fn above_idle_mw_of(&self, on: &GpuSet) -> f64 {
        let of_gpu = |(node, gpu): (NodeKey, u32)| {
            let Node { model, gpus, .. } = &self.nodes[node.index()];
            let gpu = &gpus[gpu as usize];
            let power = self.states[gpu.state as usize].power;
            let above = power.saturating_sub(self.models[*model as usize].idle).as_mw();
            above as f64 / gpu.tenants.len().max(1) as f64
        };
        on.gpus().map(of_gpu).sum()
    }

    /// A job's number of GPUs; each is divided equally among its jobs.
    pub(crate) fn shares_of(&self, on: &GpuSet) -> f64 {
        let tenants = |(node, gpu): (NodeKey, u32)| {
            self.nodes[node.index()].gpus[gpu as usize].tenants.len().max(1) as f64
        };
        on.gpus().map(|gpu| 1.0 / tenants(gpu)).sum()
    }

    /// Power of an awake node without a job, W.
    pub(crate) fn idle_w(&self, node: NodeKey) -> f64 {
        self.idle_mw(node) as f64 / 1e3
    }

    /// A job's GPUs grouped by co-tenants. GPUs with the same co-tenants in the same order are one
    /// part.
    pub(crate) fn parts(&self, job: u32, on: &GpuSet) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        for (node, gpu) in on.gpus() {
            let gpu = &self.nodes[node.index()].gpus[gpu as usize];
            let others = || gpu.tenants.iter().map(|(tenant, _)| *tenant).filter(|t| *t != job);
            match parts.iter_mut().find(|part| part.others.iter().copied().eq(others())) {
                Some(part) => part.gpus += 1,
                None => parts.push(Part {
                    others: others().collect(),
                    gpus: 1,
                    power_w: self.states[gpu.state as usize].power.as_w(),
                }),
            }
        }
        parts
    }

    /// The state of a job's first GPU, and the job's index among its tenants.
    pub(crate) fn first_gpu(&self, job: u32, on: &GpuSet) -> Option<(&GpuState, usize)> {
        let (node, gpu) = on.gpus().next()?;
        let gpu = &self.nodes[node.index()].gpus[gpu as usize];
        let place = gpu.tenants.iter().position(|(tenant, _)| *tenant == job)?;
        Some((&self.states[gpu.state as usize], place))
    }

    /// Whether any of these GPUs has a job.
    pub(crate) fn is_occupied(&self, on: &GpuSet) -> bool {
        let mut gpus = on.gpus();
        gpus.any(|(node, gpu)| !self.nodes[node.index()].gpus[gpu as usize].tenants.is_empty())
    }

    /// The co-tenants on a job's GPUs.
    pub(crate) fn neighbours(&self, job: u32, on: &GpuSet) -> Vec<u32> {
        let gpus = on.gpus().map(|(node, gpu)| &self.nodes[node.index()].gpus[gpu as usize]);
        let mut others: Vec<u32> = gpus
            .flat_map(|gpu| gpu.tenants.iter().map(|(tenant, _)| *tenant))
            .filter(|tenant| *tenant != job)
            .collect();
        others.sort_unstable();
        others.dedup();
        others
    }

    /// Updates the state of a GPU and the sums.
    fn refresh(&mut self, node: usize, index: usize, changed: &mut Vec<u32>) {
        let Node { model, gpus, .. } = &mut self.nodes[node];
        let model = *model;
        let gpu = &mut gpus[index];
        changed.extend(gpu.tenants.iter().map(|(tenant, _)| *tenant));
        let tenants = std::mem::take(&mut gpu.tenants);
        let (before, setting) = (gpu.state, gpu.setting);
        let after = self.state_of(model, setting, &tenants);
        let gpu = &mut self.nodes[node].gpus[index];
        gpu.tenants = tenants;
        gpu.state = after;
        let (before, after) = (&self.states[before as usize], &self.states[after as usize]);
        self.power_mw = self.power_mw + after.power.as_mw() - before.power.as_mw();
        let idle = self.models[model as usize].idle;
        let above = |state: &GpuState| state.power.saturating_sub(idle).as_mw();
        self.above_idle_mw = self.above_idle_mw + above(after) - above(before);
        self.utilization_ppm = self.utilization_ppm + ppm(after) - ppm(before);
    }

    /// Index of the state of a GPU with these tenants.
    fn state_of(&mut self, model: u32, setting: u32, tenants: &[(u32, Shape)]) -> u32 {
        if let [(_, shape)] = tenants
            && let Some(&state) = self.known_single.get(&(model, setting, *shape))
        {
            return state;
        }
        let shapes: Vec<Shape> = tenants.iter().map(|(_, shape)| *shape).collect();
        let key = (model, setting, shapes);
        if let Some(&state) = self.known.get(&key) {
            return state;
        }
        let world_tenants: Vec<Tenant<'_>> = key
            .2
            .iter()
            .map(|&(workload, gpus, nodes)| Tenant {
                workload: self.workloads[workload as usize],
                gpus,
                nodes,
            })
            .collect();
        let GpuSetting { cap_mw, clock_mhz_max } = self.settings[setting as usize];
        let world_setting = Setting { cap: cap_mw, clock_max: clock_mhz_max };
        let state =
            self.world.gpu_state(self.models[model as usize], world_setting, &world_tenants);
        let index = self.states.len() as u32;
        self.states.push(state);
        if let [shape] = key.2[..] {
            self.known_single.insert((model, setting, shape), index);
        }
        self.known.insert(key, index);
        index
    }
}

fn ppm(state: &GpuState) -> u64 {
    (state.utilization_gpu.clamp(0.0, 1.0) * 1e6).round() as u64
}
