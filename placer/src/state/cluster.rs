//! The state of the cluster, updated by events.
//!
//! Each event method records one fact; none of them decides anything. Each takes time proportional
//! to what changed, never to the length of the queue: a simulation calls them tens of thousands of
//! times a second.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use wattle_common::job::{GpuSetting, NodeShare, Placement, Sharing};
use wattle_common::messages::Surface;
use wattle_common::topology::{self, GPUS_PER_NODE_MAX};
use wattle_common::{JobId, NodeId, Timestamp};

use crate::state::gpu_set::{GpuSet, JobKey, NodeGpus, NodeKey, bits, ones};
use crate::state::job::{Job, JobFacts, Mark, Observation, Progress, State};
use crate::state::node::{GpuPower, Wakefulness};
pub use crate::state::node::{Node, NodeFacts};
use crate::state::operating_points::OperatingPoints;
use crate::state::restarts::{Knowledge, LeftSize, MeasuredRestart, RestartCosts};
use crate::state::work_history::SizeHistory;

/// Undone GPU sets kept for each job. A job with this many is no longer co-located.
pub const UNDONE_SETS_MAX: usize = 16;

/// The nodes and jobs of the cluster, with their measurements.
#[derive(Clone, Debug, Default)]
pub struct ClusterState {
    now: Timestamp,
    nodes: Vec<Node>,
    node_keys: Arc<BTreeMap<NodeId, NodeKey>>,
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
    /// That cost over the formula's ([`crate::state::restarts::typical_cost`]).
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
    /// The power of a GPU type, once it is known.
    #[must_use]
    pub fn gpu_power(&self, gpu_type: &str) -> Option<&GpuPower> {
        self.gpu_power.get(gpu_type)
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
            return key;
        }
        self.allocation_revision += 1;
        let key = NodeKey(self.nodes.len() as u32);
        Arc::make_mut(&mut self.node_keys).insert(facts.id.clone(), key);
        self.nodes.push(Node::new(facts, self.now));
        key
    }

    /// A node is lost: no job is placed there. The caller decides about its jobs.
    pub fn node_lost(&mut self, key: NodeKey) {
        self.allocation_revision += 1;
        Arc::make_mut(&mut self.nodes[key.index()].facts).healthy = 0;
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

    /// A node reports whether it is awake.
    pub fn wakefulness_changed(&mut self, key: NodeKey, wakefulness: Wakefulness) {
        let node = &mut self.nodes[key.index()];
        if node.wakefulness != wakefulness {
            node.wakefulness = wakefulness;
            node.idle_since = self.now;
        }
    }

    // Events of jobs.

    /// The site's rule on sharing GPUs, for jobs that arrive from now on.
    pub const fn sharing_known(&mut self, sharing: Sharing) {
        self.sharing = sharing;
    }

    /// A job was accepted. A known job keeps its key and its place in the queue.
    ///
    /// A job that the site's rule does not permit to share GPUs becomes exclusive here, for every
    /// policy.
    pub fn job_arrived(&mut self, mut facts: JobFacts) -> JobKey {
        if let Some(key) = self.job_key(&facts.id) {
            return key;
        }
        facts.exclusive |= !self.sharing.permits(facts.consents_to_sharing);
        let key = self.unused.pop().unwrap_or(JobKey(self.jobs.len() as u32));
        if key.index() == self.jobs.len() {
            self.jobs.push(None);
        }
        // Higher priority first, then earlier arrival.
        let arrival = u64::from(u8::MAX - facts.priority) << 56 | self.arrivals;
        self.arrivals += 1;
        self.competition += 1;
        Arc::make_mut(&mut self.job_keys).insert(facts.id.clone(), key);
        self.queue.insert(arrival, key);
        self.jobs[key.index()] = Some(Arc::new(Job::new(facts, arrival)));
        key
    }

    /// A queued job holds these GPUs already: its placement is restored after a restart.
    pub fn job_restored(
        &mut self,
        key: JobKey,
        on: GpuSet,
        setting: GpuSetting,
        since: Timestamp,
        observing: bool,
    ) {
        self.hold(key, on, setting, since, observing);
    }

    /// The GPU time and run time of a restored job before its present placement. Called after
    /// [`Self::job_restored`].
    pub fn job_usage_restored(&mut self, key: JobKey, gpu_time: Duration, run_time: Duration) {
        if let Some(job) = one_of(&mut self.jobs, key) {
            (job.attained, job.ran) = (gpu_time, run_time);
        }
    }

    /// A job completed. Returns its work in seconds on one GPU, where that is known, and remembers it.
    pub fn job_finished(&mut self, key: JobKey) -> Option<f64> {
        let work_s = self.job(key).and_then(|job| {
            let work_s = job.progress?.step as f64 / job.unit_rate()?;
            (work_s.is_finite() && work_s > 0.0).then_some(work_s)
        });
        work_s.into_iter().for_each(|work_s| self.work_remembered(work_s));
        self.job_ended(key);
        work_s
    }

    /// A job ended (completed, failed or cancelled): its GPUs are free and its key may be reused.
    pub fn job_ended(&mut self, key: JobKey) {
        self.release(key);
        let Some(job) = self.jobs.get_mut(key.index()).and_then(Option::take) else { return };
        self.queue.remove(&job.arrival);
        Arc::make_mut(&mut self.job_keys).remove(&job.facts.id);
        self.competition += 1;
        self.unused.push(key);
    }

    /// A job stopped before its end (preempted, undone, or its node was lost). It returns to its
    /// place in the queue.
    pub fn job_stopped(&mut self, key: JobKey) {
        self.release(key);
        if let Some(job) = one_of(&mut self.jobs, key) {
            job.restarts.stopped(self.now, job.progress.is_some());
            job.attained = job.gpu_time(self.now);
            job.ran = job.run_time(self.now);
            job.state = State::Queued;
            self.queue.insert(job.arrival, key);
        }
    }

    /// A job reported its progress. A report older than the last one is ignored.
    pub fn job_progressed(&mut self, key: JobKey, progress: Progress) {
        let Some(job) = one_of(&mut self.jobs, key) else { return };
        let last = job.progress.unwrap_or_default();
        if progress.at < last.at {
            return;
        }
        // A value missing from this report keeps its last known value.
        job.progress = Some(Progress {
            steps_total: progress.steps_total.or(last.steps_total),
            epoch: progress.epoch.or(last.epoch),
            steps_per_epoch: progress.steps_per_epoch.or(last.steps_per_epoch),
            steps_per_s: progress.steps_per_s.or(last.steps_per_s),
            ..progress
        });
        let measured = job.restarts.progressed(progress.at, progress.step, progress.steps_per_s);
        if let Some(measured) = measured {
            let workload = job.facts.workload.as_ref();
            Arc::make_mut(&mut self.restart_costs).add(workload, &measured);
        }
        for &watched in &self.observed {
            let Some(Job { state: State::Running { observation: Some(observation), .. }, .. }) =
                one_of(&mut self.jobs, watched)
            else {
                continue;
            };
            let since = observation.since;
            for mark in observation.marks.iter_mut().filter(|mark| mark.job == key) {
                // Until its first step the job is still starting.
                let starting = mark.from.is_none_or(|(_, step)| progress.step <= step);
                if starting && progress.at >= since {
                    mark.from = Some((progress.at, progress.step));
                }
            }
        }
    }

    /// A predictor's surface for a job arrived.
    pub fn surface_known(&mut self, key: JobKey, surface: Arc<Surface>) {
        if let Some(job) = self.job(key) {
            // A job that cannot be stopped keeps its GPUs to its end: optimism would not be
            // corrected.
            let read =
                if job.facts.can_stop { OperatingPoints::optimistic } else { OperatingPoints::of };
            let mut operating_points = read(&surface, job.facts.request);
            if let Some(permille) = job.facts.max_slowdown_permille {
                operating_points.limit_slowdown(f64::from(permille) / 1e3);
            }
            let operating_points = Arc::new(operating_points);
            let queued = job.state == State::Queued;
            self.surface_with_points_known(key, surface, operating_points);
            self.surface_revision += u64::from(!queued);
        }
    }

    /// As [`Self::surface_known`], with operating points that were read before: jobs with the same
    /// surface may share them.
    pub fn surface_with_points_known(
        &mut self,
        key: JobKey,
        surface: Arc<Surface>,
        operating_points: Arc<OperatingPoints>,
    ) {
        let Some(job) = one_of(&mut self.jobs, key) else { return };
        job.surface_received(surface, operating_points);
        if !job.other_surfaces.is_empty()
            && let Some(part) = job.state.gpus().and_then(|on| on.by_node.first())
        {
            job.use_gpu_type(&self.nodes[part.node.index()].facts.gpu_type);
        }
    }

    /// A queued job was given these GPUs, with or without early observation.
    pub fn job_placed(&mut self, key: JobKey, on: GpuSet, setting: GpuSetting, observing: bool) {
        self.hold(key, on, setting, self.now, observing);
    }

    /// The caps and clocks of a running job's GPUs were changed.
    pub fn job_set(&mut self, key: JobKey, setting: GpuSetting) {
        if let Some(Job { state: State::Running { setting: current, .. }, .. }) =
            one_of(&mut self.jobs, key)
        {
            *current = setting;
            self.has_settings |= !setting.is_default();
            self.restart_observations_with(key);
        }
    }

    /// A running job was requested to stop. It holds its GPUs until [`Self::job_stopped`].
    pub fn job_stopping(&mut self, key: JobKey) {
        self.stop(key, false);
    }

    /// An observed job was requested to stop because its placement did not hold: that set of GPUs is
    /// not tried again for it.
    pub fn job_undone(&mut self, key: JobKey) {
        self.stop(key, true);
    }

    /// A stopping job will continue at once on this many GPUs, of this type.
    pub fn job_continues_on(&mut self, key: JobKey, gpus: Option<u32>, gpu_type: Option<Arc<str>>) {
        if let Some(job) = one_of(&mut self.jobs, key) {
            (job.next_gpus, job.next_gpu_type) = (gpus, gpu_type);
        }
    }

    /// A running job is about to leave its size for another, at this energy price.
    pub(crate) fn size_left(&mut self, key: JobKey, price: f64) {
        let Some(job) = self.job(key) else { return };
        let (Some(gpus), Some(gpu_type)) = (job.state.gpus(), self.gpu_type_of(job)) else {
            return;
        };
        let known = self.knowledge(job.operating_points_on(gpu_type), price);
        let size = LeftSize { gpus: gpus.gpu_count(), gpu_type: Arc::from(gpu_type), known };
        if let Some(job) = one_of(&mut self.jobs, key) {
            job.restarts.left(size);
        }
    }

    /// A plan stops a job before it has run for ten times its restart cost.
    pub(crate) fn stopped_early(&mut self, key: JobKey) {
        if let Some(job) = one_of(&mut self.jobs, key) {
            job.restarts.early_stops += 1;
        }
    }

    /// The measured restarts of a restored job, its early stops and the sizes it left. Called after all jobs
    /// are restored.
    pub fn job_restarts_restored(
        &mut self,
        key: JobKey,
        measured: impl IntoIterator<Item = MeasuredRestart>,
        early_stops: u32,
        left_sizes: Vec<LeftSize>,
    ) {
        let competition = self.competition;
        if let Some(job) = one_of(&mut self.jobs, key) {
            measured.into_iter().for_each(|restart| job.restarts.remember(restart));
            job.restarts.early_stops = early_stops;
            job.restarts.left_sizes = left_sizes;
            // The jobs that compete are the restored ones.
            let left = job.restarts.left_sizes.iter_mut();
            left.for_each(|size| size.known.competition = competition);
        }
    }

    /// The observation of a job's placement ended, and the placement holds.
    pub fn observation_ended(&mut self, key: JobKey) {
        self.observed.remove(&key);
        if let Some(Job { state: State::Running { observation, .. }, .. }) =
            one_of(&mut self.jobs, key)
        {
            *observation = None;
        }
    }

    /// Restarts the observations in which `key` takes part: their measurements are of other settings.
    fn restart_observations_with(&mut self, key: JobKey) {
        for &watched in &self.observed {
            let Some(Job { state: State::Running { observation: Some(observation), .. }, .. }) =
                one_of(&mut self.jobs, watched)
            else {
                continue;
            };
            if observation.marks.iter().any(|mark| mark.job == key) {
                observation.since = self.now;
                observation.marks.iter_mut().for_each(|mark| mark.from = None);
            }
        }
    }

    fn stop(&mut self, key: JobKey, undone: bool) {
        self.observed.remove(&key);
        self.allocation_revision += u64::from(undone);
        let Some(job) = one_of(&mut self.jobs, key) else { return };
        job.attained = job.gpu_time(self.now);
        job.ran = job.run_time(self.now);
        (job.next_gpus, job.next_gpu_type) = (None, None);
        if let State::Running { on, setting, .. } = &mut job.state {
            let (on, setting) = (std::mem::take(on), *setting);
            job.restarts.stop_requested = Some(self.now);
            if undone && job.undone_on.len() < UNDONE_SETS_MAX {
                job.undone_on.push(on.clone());
            }
            job.state = State::Stopping { on, setting };
        }
    }

    fn hold(
        &mut self,
        key: JobKey,
        on: GpuSet,
        setting: GpuSetting,
        since: Timestamp,
        observing: bool,
    ) {
        let Some(job) = one_of(&mut self.jobs, key) else { return };
        self.queue.remove(&job.arrival);
        let mut marks = Vec::new();
        for part in &on.by_node {
            let node = &mut self.nodes[part.node.index()];
            node.occupied |= part.gpus;
            for gpu in bits(part.gpus) {
                let tenants = &mut Arc::make_mut(&mut node.tenants)[gpu as usize];
                if observing {
                    marks.extend(tenants.iter().map(|&job| Mark { job, from: None }));
                }
                tenants.push(key);
            }
        }
        let observation = observing.then(|| {
            marks.push(Mark { job: key, from: None });
            marks.sort_by_key(|mark| mark.job);
            marks.dedup_by_key(|mark| mark.job);
            Observation { since, marks }
        });
        self.has_settings |= !setting.is_default();
        let step = job.progress.map_or(0, |progress| progress.step);
        job.restarts.resumed(since, on.gpu_count(), step);
        (job.next_gpus, job.next_gpu_type) = (None, None);
        if !job.other_surfaces.is_empty()
            && let Some(part) = on.by_node.first()
        {
            job.use_gpu_type(&self.nodes[part.node.index()].facts.gpu_type);
        }
        job.state = State::Running { on, setting, since, observation };
        self.running.insert(key);
        if observing {
            self.observed.insert(key);
        }
    }

    fn release(&mut self, key: JobKey) {
        let Some(on) = self.job(key).and_then(|job| job.state.gpus()).cloned() else { return };
        for part in &on.by_node {
            let node = &mut self.nodes[part.node.index()];
            for gpu in bits(part.gpus) {
                let tenants = &mut Arc::make_mut(&mut node.tenants)[gpu as usize];
                tenants.retain(|&tenant| tenant != key);
                if tenants.is_empty() {
                    node.occupied &= !(1 << gpu);
                }
            }
            if node.occupied == 0 {
                node.idle_since = self.now;
            }
        }
        self.running.remove(&key);
        self.observed.remove(&key);
        for &watched in &self.observed {
            if let Some(Job {
                state: State::Running { observation: Some(observation), .. }, ..
            }) = one_of(&mut self.jobs, watched)
            {
                observation.marks.retain(|mark| mark.job != key);
            }
        }
    }
}

/// A job, to be changed; copies of the state keep the old one.
fn one_of(jobs: &mut [Option<Arc<Job>>], key: JobKey) -> Option<&mut Job> {
    jobs.get_mut(key.index())?.as_mut().map(Arc::make_mut)
}
