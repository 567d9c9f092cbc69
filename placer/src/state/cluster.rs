//! The state of the cluster, updated by events.
//!
//! Each event method records one fact; none of them decides anything. Each takes time proportional
//! to what changed, never to the length of the queue: a simulation calls them tens of thousands of
//! times a second.

mod job_events;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use wattle_common::job::{NodeShare, Placement, Sharing};
use wattle_common::topology::{self, GPUS_PER_NODE_MAX};
use wattle_common::{JobId, NodeId, Timestamp};

use crate::state::gpu_set::{GpuSet, JobKey, NodeGpus, NodeKey, bits, ones};
use crate::state::job::Job;
use crate::state::node::{FixedCaps, GpuPower, UnconfirmedCaps, Wakefulness};
pub use crate::state::node::{Node, NodeFacts};
use crate::state::operating_points::OperatingPoints;
use crate::state::restarts::{Knowledge, MeasuredRestart, RestartCosts};
use crate::state::work_history::SizeHistory;

/// Undone GPU sets kept for each job. A job with this many is no longer co-located.
pub const UNDONE_SETS_MAX: usize = 16;

/// The nodes and jobs of the cluster, with their measurements.
#[derive(Clone, Debug, Default)]
pub struct ClusterState {
    now: Timestamp,
    nodes: Vec<Node>,
    node_keys: Arc<BTreeMap<NodeId, NodeKey>>,
    /// The first node of each GPU type with known power.
    metered: Arc<BTreeMap<String, NodeKey>>,
    gpu_power: Arc<BTreeMap<String, GpuPower>>,
    inventory_complete: bool,
    jobs: Vec<Option<Arc<Job>>>,
    unused: Vec<JobKey>,
    job_keys: Arc<BTreeMap<JobId, JobKey>>,
    queue: BTreeMap<u64, JobKey>,
    running: BTreeSet<JobKey>,
    observed: BTreeSet<JobKey>,
    arrivals: u64,
    work_history: Arc<SizeHistory>,
    restart_costs: Arc<RestartCosts>,
    competition: u64,
    allocation_revision: u64,
    surface_revision: u64,
    has_settings: bool,
    sharing: Sharing,
    /// GPU types whose clock cannot be locked on some node.
    without_locks: Arc<BTreeSet<String>>,
}

impl ClusterState {
    /// A cluster without nodes and jobs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    // Reading.

    /// The time of the last event.
    #[must_use]
    pub const fn now(&self) -> Timestamp {
        self.now
    }
    /// The nodes in node order: the order in which they were first known.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }
    /// One node.
    #[must_use]
    pub fn node(&self, key: NodeKey) -> &Node {
        &self.nodes[key.index()]
    }
    /// All nodes with their keys, in node order.
    pub fn keyed_nodes(&self) -> impl Iterator<Item = (NodeKey, &Node)> {
        self.nodes.iter().enumerate().map(|(i, node)| (NodeKey(i as u32), node))
    }
    /// The node of that id.
    #[must_use]
    pub fn node_key(&self, id: &NodeId) -> Option<NodeKey> {
        self.node_keys.get(id).copied()
    }
    /// The queued or running job of that id.
    #[must_use]
    pub fn job_key(&self, id: &JobId) -> Option<JobKey> {
        self.job_keys.get(id).copied()
    }
    /// One queued or running job.
    #[must_use]
    pub fn job(&self, key: JobKey) -> Option<&Job> {
        self.jobs.get(key.index()).and_then(Option::as_deref)
    }
    /// The queued jobs, by priority and then by arrival.
    pub fn queue(&self) -> impl Iterator<Item = (JobKey, &Job)> {
        self.queue.values().filter_map(|&key| self.job(key).map(|job| (key, job)))
    }
    /// The predicted cost of a restart of a job on this number of GPUs.
    #[must_use]
    pub fn restart_cost(&self, job: &Job, gpus: u32) -> Duration {
        self.restart_costs.predicted(job.facts.workload.as_ref(), &job.restarts, gpus)
    }
    /// The predicted cost of a restart divided by the typical cost of the formula
    /// ([`crate::state::restarts::typical_cost`]).
    #[must_use]
    pub fn restart_cost_factor(&self, job: &Job) -> f64 {
        self.restart_costs.factor(job.facts.workload.as_ref(), &job.restarts)
    }
    /// The present knowledge of the sizes of a job with these operating points.
    pub(crate) fn knowledge(&self, points: Option<&OperatingPoints>, price: f64) -> Knowledge {
        let rate = |points: &OperatingPoints, gpus: u32| {
            let rates = points.with_gpus(gpus).iter().map(|point| point.steps_per_s);
            (gpus, rates.fold(0.0, f64::max))
        };
        let rates = points.map(|points| points.sizes().map(|gpus| rate(points, gpus)).collect());
        Knowledge {
            rates: rates.unwrap_or_default(),
            price,
            competition: self.competition,
            gpus: self.nodes.iter().map(|node| node.facts.healthy.count_ones()).sum(),
        }
    }
    /// Number of jobs that have arrived since the start.
    pub(crate) const fn arrivals(&self) -> u64 {
        self.arrivals
    }
    /// Number of jobs that are queued or hold GPUs.
    pub(crate) fn job_count(&self) -> usize {
        self.queue.len() + self.running.len()
    }
    /// Number of queued jobs.
    #[must_use]
    pub fn queue_len(&self) -> usize {
        self.queue.len()
    }
    /// The jobs that hold GPUs, in the order of their keys.
    pub fn running(&self) -> impl Iterator<Item = (JobKey, &Job)> {
        self.running.iter().filter_map(|&key| self.job(key).map(|job| (key, job)))
    }
    /// The jobs whose placement is being observed, in the order of their keys.
    pub fn observed(&self) -> impl Iterator<Item = (JobKey, &Job)> {
        self.observed.iter().filter_map(|&key| self.job(key).map(|job| (key, job)))
    }
    /// Number of GPUs of all nodes, healthy or not.
    #[must_use]
    pub fn gpu_count(&self) -> u32 {
        self.nodes.iter().map(|node| node.facts.gpus).sum()
    }
    /// The GPUs of `set` as a placement of node ids and GPU indices.
    #[must_use]
    pub fn placement(&self, set: &GpuSet) -> Placement {
        let share = |part: &NodeGpus| NodeShare {
            node: self.node(part.node).facts.id.clone(),
            gpus: bits(part.gpus).collect(),
        };
        Placement { shares: set.by_node.iter().map(share).collect() }
    }
    /// The set of a placement; `None` where it names an unknown node or GPU.
    #[must_use]
    pub fn gpu_set(&self, placement: &Placement) -> Option<GpuSet> {
        let mut set = GpuSet::default();
        for share in &placement.shares {
            let node = self.node_key(&share.node)?;
            let mut gpus = 0;
            for &gpu in &share.gpus {
                if gpu >= self.node(node).tenants.len() as u32 {
                    return None;
                }
                gpus |= 1 << gpu;
            }
            set.by_node.push(NodeGpus { node, gpus });
        }
        Some(set)
    }

    /// The GPU type of the nodes a job is on.
    #[must_use]
    pub fn gpu_type_of(&self, job: &Job) -> Option<&str> {
        let first = job.state.gpus()?.by_node.first()?;
        Some(&self.node(first.node).facts.gpu_type)
    }
    /// Whether one of these GPUs is on a node that is advised only: its power agent sets no caps or clocks.
    #[must_use]
    pub fn has_fixed_caps(&self, on: &GpuSet) -> bool {
        on.by_node.iter().any(|here| self.node(here.node).fixed_caps.is_some())
    }
    /// The power of a GPU type, once it is known.
    #[must_use]
    pub fn gpu_power(&self, gpu_type: &str) -> Option<&GpuPower> {
        self.gpu_power.get(gpu_type)
    }
    /// The first node of a GPU type with known power.
    #[must_use]
    pub fn metered_node(&self, gpu_type: &str) -> Option<&Node> {
        self.metered.get(gpu_type).map(|&key| self.node(key))
    }
    /// Whether every node of the cluster is known. Until then no job is rejected as too large.
    #[must_use]
    pub const fn inventory_complete(&self) -> bool {
        self.inventory_complete
    }
    /// The work of completed jobs.
    #[must_use]
    pub fn work_history(&self) -> &SizeHistory {
        &self.work_history
    }
    /// Counts the events that void an earlier allocation: changed nodes and undone co-locations.
    #[must_use]
    pub const fn allocation_revision(&self) -> u64 {
        self.allocation_revision
    }
    /// Counts the surfaces received for jobs that hold GPUs.
    #[must_use]
    pub const fn surface_revision(&self) -> u64 {
        self.surface_revision
    }

    /// Whether any job ever had another cap or clock than the site's.
    #[must_use]
    pub const fn has_settings(&self) -> bool {
        self.has_settings
    }

    /// The same cluster without these queued jobs.
    #[must_use]
    pub fn without(&self, hidden: &BTreeSet<JobKey>) -> Self {
        let mut rest = self.clone();
        rest.queue.retain(|_, key| !hidden.contains(key));
        rest
    }

    // Events of the cluster.

    /// Time has reached `now`.
    pub const fn advance_to(&mut self, now: Timestamp) {
        self.now = now;
    }

    /// Whether every node of the cluster is known from now on.
    pub const fn inventory_known(&mut self, complete: bool) {
        self.inventory_complete = complete;
    }

    /// The power of each GPU type was measured or reported.
    pub fn gpu_power_known(&mut self, gpu_power: BTreeMap<String, GpuPower>) {
        if *self.gpu_power != gpu_power {
            self.gpu_power = Arc::new(gpu_power);
        }
    }

    /// The clock of a GPU of this type cannot be locked: points with a clock are left out of surfaces that arrive
    /// from now on.
    pub fn locks_unsupported(&mut self, gpu_type: &str) {
        if !self.without_locks.contains(gpu_type) {
            Arc::make_mut(&mut self.without_locks).insert(gpu_type.to_owned());
        }
    }

    /// A job completed earlier, before this state began: its work in seconds on one GPU.
    pub fn work_remembered(&mut self, work_s: f64) {
        Arc::make_mut(&mut self.work_history).ended(work_s);
    }

    /// A restart of a job was measured earlier, before this state began.
    pub fn restart_remembered(
        &mut self,
        workload: Option<&wattle_common::WorkloadId>,
        measured: &MeasuredRestart,
    ) {
        Arc::make_mut(&mut self.restart_costs).add(workload, measured);
    }

    // Events of nodes.

    /// A node was added or has changed. A new node is the last in node order.
    pub fn node_known(&mut self, mut facts: NodeFacts) -> NodeKey {
        facts.gpus = facts.gpus.min(GPUS_PER_NODE_MAX);
        facts.healthy &= ones(facts.gpus);
        let gpus = facts.gpus as usize;
        if let Some(&key) = self.node_keys.get(&facts.id) {
            let node = &mut self.nodes[key.index()];
            if *node.facts == facts {
                return key;
            }
            self.allocation_revision += 1;
            let tenants = Arc::make_mut(&mut node.tenants);
            tenants.resize(gpus.max(tenants.len()), Vec::new());
            node.facts = Arc::new(facts);
            self.find_metered();
            return key;
        }
        self.allocation_revision += 1;
        let key = NodeKey(self.nodes.len() as u32);
        Arc::make_mut(&mut self.node_keys).insert(facts.id.clone(), key);
        if facts.watts.is_some() && !self.metered.contains_key(&facts.gpu_type) {
            Arc::make_mut(&mut self.metered).insert(facts.gpu_type.clone(), key);
        }
        self.nodes.push(Node::new(facts, self.now));
        key
    }

    /// Finds the nodes with known power again, after one has changed.
    fn find_metered(&mut self) {
        let mut metered = BTreeMap::new();
        for (index, node) in self.nodes.iter().enumerate() {
            if node.facts.watts.is_some() && !metered.contains_key(&node.facts.gpu_type) {
                metered.insert(node.facts.gpu_type.clone(), NodeKey(index as u32));
            }
        }
        if *self.metered != metered {
            self.metered = Arc::new(metered);
        }
    }

    /// A node is connected to this leaf switch. Jobs of several nodes are placed below few switches.
    pub fn switch_known(&mut self, key: NodeKey, switch: Option<u32>) {
        self.nodes[key.index()].switch = switch;
    }

    /// The number of GPUs on each of a node's boards. A job that fits one board is kept on one. A
    /// number that blocks of GPUs would not align with is ignored ([`topology::check_board`]).
    pub fn boards_known(&mut self, key: NodeKey, gpus_per_board: Option<u32>) {
        let node = &mut self.nodes[key.index()];
        let fits = |board: &u32| topology::check_board(node.facts.gpus, *board).is_ok();
        node.gpus_per_board = gpus_per_board.filter(fits);
    }

    /// A node does not confirm its caps, so that its GPUs may draw more than planned; or it does again.
    pub fn power_unconfirmed(&mut self, key: NodeKey, caps: Option<UnconfirmedCaps>) {
        self.nodes[key.index()].unconfirmed = caps;
    }

    /// The power agent of a node only advises, so that its GPUs keep these caps; or it sets caps.
    pub fn caps_fixed(&mut self, key: NodeKey, caps: Option<FixedCaps>) {
        self.nodes[key.index()].fixed_caps = caps;
    }

    /// A node reports whether it is awake.
    pub fn wakefulness_changed(&mut self, key: NodeKey, wakefulness: Wakefulness) {
        let node = &mut self.nodes[key.index()];
        if node.wakefulness != wakefulness {
            node.wakefulness = wakefulness;
            node.idle_since = self.now;
        }
    }
}

/// A job, to be changed; copies of the state keep the old one.
fn one_of(jobs: &mut [Option<Arc<Job>>], key: JobKey) -> Option<&mut Job> {
    jobs.get_mut(key.index())?.as_mut().map(Arc::make_mut)
}
