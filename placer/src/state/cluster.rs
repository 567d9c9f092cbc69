//! Everything a decision rests on, as one value that is fed event by event.
//!
//! Update methods say what happened; nothing here decides. Each takes time in proportion to what
//! changed, never to the length of the queue, since a simulation calls them tens of thousands of
//! times a second.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use wattle_common::job::{GpuSetting, NodeShare, Placement};
use wattle_common::messages::Surface;
use wattle_common::topology::{self, GPUS_PER_NODE_MAX};
use wattle_common::{JobId, NodeId, Power, Timestamp};

use crate::plan::{Decision, NodeDecision, Plan};
use crate::policies::IDLE_BEFORE_SLEEP;
use crate::power::budget::GridForecast;
use crate::power::model::CardPower;
use crate::power::operating_points::OperatingPoints;
use crate::state::allocation_cache::AllocationCache;
use crate::state::gpu_set::{GpuSet, JobKey, NodeGpus, NodeKey, bits, ones};
use crate::state::job::{Job, JobFacts, Mark, Observation, Progress, State};
use crate::state::node::Wakefulness;
pub use crate::state::node::{Node, NodeFacts};
use crate::state::work_history::SizeHistory;

/// Jobs that may share a GPU unless the caller says otherwise: our own choice. The published
/// tables of EaCO (arXiv 2412.08294) stop paying beyond three, and every tenant more is risk.
pub const TENANTS_MAX_DEFAULT: u32 = 2;

/// GPU sets remembered for a job it was taken off; beyond them no policy should try again.
pub const UNDONE_SETS_MAX: usize = 16;

/// Everything a decision rests on.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The instant to decide for.
    pub now: Timestamp,
    /// Most jobs on one GPU, whatever a policy would like.
    pub tenants_max: u32,
    /// What a joule is worth, in the unit of the policy that reads it: 0, energy is free; the more,
    /// the more completion time is given up to save it.
    pub price: f64,
    /// The grid's carbon intensity now, relative to its expected mean over the budget's window; 1
    /// where nothing is known of it.
    pub carbon_ratio: f64,
    /// Whether jobs' settings follow the price also where the policy itself chooses none.
    pub price_sets_clocks: bool,
    /// What may be drawn at every instant, whole nodes; absent: no matter.
    pub power_max: Option<Power>,
    /// Whether cards are held to what they are promised by caps: then none is promised less than the
    /// lowest cap it takes.
    pub caps_enforced: bool,
    /// What may be drawn before anything new starts; absent: no matter.
    pub admission_limit: Option<Power>,
    /// What may be drawn at the thriftiest before running work is paused; absent: no matter.
    pub preemption_limit: Option<Power>,
    /// What is known and expected of the grid, where anything is.
    pub grid: Option<Arc<GridForecast>>,
    /// What cards of each kind draw, where that is known.
    pub draws: BTreeMap<String, CardPower>,
    /// Whether nodes may sleep when nobody is on them.
    pub nodes_sleep: bool,
    /// How long nobody must have been on a node before it sleeps, at least.
    pub nodes_stay: Duration,
    /// Whether all nodes have been heard of. Until then no job is called too large.
    pub inventory_complete: bool,
    /// How much work jobs turned out to be.
    pub sizes: SizeHistory,
    /// What was last shared out; void once nodes change.
    pub standing: Option<Arc<AllocationCache>>,
    nodes: Vec<Node>,
    node_keys: Arc<BTreeMap<NodeId, NodeKey>>,
    jobs: Vec<Option<Arc<Job>>>,
    unused: Vec<JobKey>,
    job_keys: Arc<BTreeMap<JobId, JobKey>>,
    queue: BTreeMap<u64, JobKey>,
    running: BTreeSet<JobKey>,
    observed: BTreeSet<JobKey>,
    arrivals: u64,
}

impl Default for Problem {
    fn default() -> Self {
        Self::new()
    }
}

impl Problem {
    /// What a joule is worth at the grid's present intensity, in the policy's unit: the price times
    /// [`Self::carbon_ratio`].
    #[must_use]
    pub fn price_now(&self) -> f64 {
        self.price * self.carbon_ratio
    }

    /// No node, no job.
    #[must_use]
    pub fn new() -> Self {
        Self {
            now: Timestamp::EPOCH,
            tenants_max: TENANTS_MAX_DEFAULT,
            price: 0.0,
            carbon_ratio: 1.0,
            price_sets_clocks: false,
            power_max: None,
            caps_enforced: false,
            admission_limit: None,
            preemption_limit: None,
            grid: None,
            draws: BTreeMap::new(),
            nodes_sleep: false,
            nodes_stay: IDLE_BEFORE_SLEEP,
            inventory_complete: false,
            sizes: SizeHistory::default(),
            standing: None,
            nodes: Vec::new(),
            node_keys: Arc::default(),
            jobs: Vec::new(),
            unused: Vec::new(),
            job_keys: Arc::default(),
            queue: BTreeMap::new(),
            running: BTreeSet::new(),
            observed: BTreeSet::new(),
            arrivals: 0,
        }
    }

    // What is read of it.

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
    /// The job of that id, while it waits or runs.
    #[must_use]
    pub fn job_key(&self, id: &JobId) -> Option<JobKey> {
        self.job_keys.get(id).copied()
    }
    /// One job, while it waits or runs.
    #[must_use]
    pub fn job(&self, key: JobKey) -> Option<&Job> {
        self.jobs.get(key.index()).and_then(Option::as_deref)
    }
    /// The jobs that wait, first come first.
    pub fn queue(&self) -> impl Iterator<Item = (JobKey, &Job)> {
        self.queue.values().filter_map(|&key| self.job(key).map(|job| (key, job)))
    }
    /// How many jobs have ever come.
    pub(crate) const fn arrivals(&self) -> u64 {
        self.arrivals
    }
    /// How many jobs wait or hold GPUs.
    pub(crate) fn job_count(&self) -> usize {
        self.queue.len() + self.running.len()
    }
    /// How many jobs wait.
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
    /// How many GPUs the nodes have, healthy or not.
    #[must_use]
    pub fn gpu_count(&self) -> u32 {
        self.nodes.iter().map(|node| node.facts.gpus).sum()
    }
    /// The GPUs of `set` by the names everyone else uses.
    #[must_use]
    pub fn placement(&self, set: &GpuSet) -> Placement {
        let share = |spot: &NodeGpus| NodeShare {
            node: self.node(spot.node).facts.id.clone(),
            gpus: bits(spot.gpus).collect(),
        };
        Placement { shares: set.by_node.iter().map(share).collect() }
    }
    /// The set of a placement; `None` where it names a node or GPU that is not known.
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

    /// The same problem in which these queued jobs are not seen.
    #[must_use]
    pub fn without(&self, hidden: &BTreeSet<JobKey>) -> Self {
        let mut rest = self.clone();
        rest.queue.retain(|_, key| !hidden.contains(key));
        rest
    }

    // What happened to nodes.

    /// A node is there, or has changed. A new one comes last in node order.
    pub fn node_known(&mut self, mut facts: NodeFacts) -> NodeKey {
        facts.gpus = facts.gpus.min(GPUS_PER_NODE_MAX);
        facts.healthy &= ones(facts.gpus);
        let gpus = facts.gpus as usize;
        if let Some(&key) = self.node_keys.get(&facts.id) {
            let node = &mut self.nodes[key.index()];
            if *node.facts == facts {
                return key;
            }
            self.standing = None;
            let tenants = Arc::make_mut(&mut node.tenants);
            tenants.resize(gpus.max(tenants.len()), Vec::new());
            node.facts = Arc::new(facts);
            return key;
        }
        self.standing = None;
        let key = NodeKey(self.nodes.len() as u32);
        Arc::make_mut(&mut self.node_keys).insert(facts.id.clone(), key);
        self.nodes.push(Node::new(facts, self.now));
        key
    }

    /// A node does not answer: nothing new is placed there. Its jobs are the caller's to judge.
    pub fn node_lost(&mut self, key: NodeKey) {
        self.standing = None;
        Arc::make_mut(&mut self.nodes[key.index()].facts).healthy = 0;
    }

    /// A node is below this leaf switch: jobs of several nodes are kept below few.
    pub fn node_is_below(&mut self, key: NodeKey, switch: Option<u32>) {
        self.nodes[key.index()].switch = switch;
    }

    /// A node has so many GPUs on each board: what a board can hold is kept on one. Boards that blocks
    /// of GPUs would lie across are nothing to go by ([`topology::check_board`]).
    pub fn node_has_boards(&mut self, key: NodeKey, gpus_per_board: Option<u32>) {
        let node = &mut self.nodes[key.index()];
        let fits = |board: &u32| topology::check_board(node.facts.gpus, *board).is_ok();
        node.gpus_per_board = gpus_per_board.filter(fits);
    }

    /// A node reports whether it is awake.
    pub fn node_is(&mut self, key: NodeKey, wakefulness: Wakefulness) {
        let node = &mut self.nodes[key.index()];
        if node.wakefulness != wakefulness {
            node.wakefulness = wakefulness;
            node.idle_since = self.now;
        }
    }

    // What happened to jobs.

    /// A job was accepted. One that is known already keeps its key and its place.
    pub fn job_arrived(&mut self, facts: JobFacts) -> JobKey {
        if let Some(key) = self.job_key(&facts.id) {
            return key;
        }
        let key = self.unused.pop().unwrap_or(JobKey(self.jobs.len() as u32));
        if key.index() == self.jobs.len() {
            self.jobs.push(None);
        }
        // More priority comes first, whenever it came.
        let arrival = u64::from(u8::MAX - facts.priority) << 56 | self.arrivals;
        self.arrivals += 1;
        Arc::make_mut(&mut self.job_keys).insert(facts.id.clone(), key);
        self.queue.insert(arrival, key);
        self.jobs[key.index()] = Some(Arc::new(Job::new(facts, arrival)));
        key
    }

    /// A queued job turns out to hold GPUs already: the caller has just restarted.
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

    /// GPU time that a job of a caller that has just restarted had before its present placement, and
    /// for how long it ran: told last of what is restored of it.
    pub fn job_had(&mut self, key: JobKey, gpu_time: Duration, run_time: Duration) {
        if let Some(job) = one_of(&mut self.jobs, key) {
            (job.attained, job.ran) = (gpu_time, run_time);
        }
    }

    /// A job has done all its work, and is over. How much it was is remembered and given back, where it
    /// is known: seconds alone on one GPU.
    pub fn job_finished(&mut self, key: JobKey) -> Option<f64> {
        let work_s = self.job(key).and_then(|job| {
            let work_s = job.progress?.step as f64 / job.unit_rate()?;
            (work_s.is_finite() && work_s > 0.0).then_some(work_s)
        });
        work_s.into_iter().for_each(|work_s| self.sizes.ended(work_s));
        self.job_ended(key);
        work_s
    }

    /// A job is over (finished, failed, cancelled): its GPUs are free and its key may be reused.
    pub fn job_ended(&mut self, key: JobKey) {
        self.release(key);
        let Some(job) = self.jobs.get_mut(key.index()).and_then(Option::take) else { return };
        self.queue.remove(&job.arrival);
        Arc::make_mut(&mut self.job_keys).remove(&job.facts.id);
        self.unused.push(key);
    }

    /// A job has stopped before its end (undone, or its node was lost): back to its place in the
    /// queue.
    pub fn job_stopped(&mut self, key: JobKey) {
        self.release(key);
        if let Some(job) = one_of(&mut self.jobs, key) {
            job.attained = job.gpu_time(self.now);
            job.ran = job.run_time(self.now);
            job.state = State::Queued;
            self.queue.insert(job.arrival, key);
        }
    }

    /// A job says how far it is. Reports that come late are ignored.
    pub fn job_progressed(&mut self, key: JobKey, progress: Progress) {
        let Some(job) = one_of(&mut self.jobs, key) else { return };
        let last = job.progress.unwrap_or_default();
        if progress.at < last.at {
            return;
        }
        // A report that leaves out what an earlier one said does not unsay it.
        job.progress = Some(Progress {
            steps_total: progress.steps_total.or(last.steps_total),
            epoch: progress.epoch.or(last.epoch),
            steps_per_epoch: progress.steps_per_epoch.or(last.steps_per_epoch),
            steps_per_s: progress.steps_per_s.or(last.steps_per_s),
            ..progress
        });
        for &watched in &self.observed {
            let Some(Job { state: State::Running { observation: Some(seen), .. }, .. }) =
                one_of(&mut self.jobs, watched)
            else {
                continue;
            };
            let since = seen.since;
            for mark in seen.marks.iter_mut().filter(|mark| mark.job == key) {
                // Until it makes a step, it is still being started.
                let stands = mark.from.is_none_or(|(_, step)| progress.step <= step);
                if stands && progress.at >= since {
                    mark.from = Some((progress.at, progress.step));
                }
            }
        }
    }

    /// A predictor says what it expects of a job.
    pub fn surface_known(&mut self, key: JobKey, surface: Arc<Surface>) {
        if let Some(job) = self.job(key) {
            // Who cannot stop keeps for good what it is given on hope.
            let read =
                if job.facts.can_stop { OperatingPoints::hopeful } else { OperatingPoints::of };
            let menu = Arc::new(read(&surface, job.facts.request));
            let waits = job.state == State::Queued;
            self.surface_and_menu_known(key, surface, menu);
            if let Some(standing) = self.standing.as_mut().filter(|_| !waits) {
                Arc::make_mut(standing).something_changed();
            }
        }
    }

    /// As [`Self::surface_known`], with the surface's menu, which jobs of one kind may share.
    pub fn surface_and_menu_known(
        &mut self,
        key: JobKey,
        surface: Arc<Surface>,
        menu: Arc<OperatingPoints>,
    ) {
        let Some(job) = one_of(&mut self.jobs, key) else { return };
        job.hear(surface, menu);
        if !job.elsewhere.is_empty()
            && let Some(spot) = job.state.gpus().and_then(|on| on.by_node.first())
        {
            job.turn_to(&self.nodes[spot.node.index()].facts.gpu_type);
        }
    }

    /// The plan is being carried out. Whoever applies a plan has made it from this very problem.
    pub fn apply(&mut self, plan: &Plan) {
        self.standing.clone_from(&plan.standing);
        for decision in &plan.decisions {
            match decision {
                Decision::Start { job, on, setting, observe, .. } => {
                    self.hold(*job, on.clone(), *setting, self.now, *observe);
                }
                Decision::Stop { job, next_gpus, next_kind, .. } => {
                    self.stop(*job, false);
                    if let Some(job) = one_of(&mut self.jobs, *job) {
                        (job.next_gpus, job.next_kind) = (*next_gpus, next_kind.clone());
                    }
                }
                Decision::Set { job, setting, .. } => {
                    if let Some(Job { state: State::Running { setting: now, .. }, .. }) =
                        one_of(&mut self.jobs, *job)
                    {
                        *now = *setting;
                        self.observe_anew(*job);
                    }
                }
                Decision::Undo { job, .. } => self.stop(*job, true),
                Decision::Settle { job, .. } => {
                    self.observed.remove(job);
                    if let Some(Job { state: State::Running { observation, .. }, .. }) =
                        one_of(&mut self.jobs, *job)
                    {
                        *observation = None;
                    }
                }
                Decision::Reject { job, .. } => self.job_ended(*job),
            }
        }
        for decision in &plan.nodes {
            match decision {
                NodeDecision::Sleep { node, .. } => self.node_is(*node, Wakefulness::Asleep),
                NodeDecision::Wake { node, .. } => self.node_is(*node, Wakefulness::Waking),
            }
        }
    }

    /// The cards of a job were set anew: what was seen of it and its neighbours was seen under
    /// another setting.
    fn observe_anew(&mut self, key: JobKey) {
        for &watched in &self.observed {
            let Some(Job { state: State::Running { observation: Some(seen), .. }, .. }) =
                one_of(&mut self.jobs, watched)
            else {
                continue;
            };
            if seen.marks.iter().any(|mark| mark.job == key) {
                seen.since = self.now;
                seen.marks.iter_mut().for_each(|mark| mark.from = None);
            }
        }
    }

    /// A running job is asked to stop for a reason other than a plan's.
    pub fn job_stopping(&mut self, key: JobKey) {
        self.stop(key, false);
    }

    fn stop(&mut self, key: JobKey, undone: bool) {
        self.observed.remove(&key);
        if undone {
            self.standing = None;
        }
        let Some(job) = one_of(&mut self.jobs, key) else { return };
        job.attained = job.gpu_time(self.now);
        job.ran = job.run_time(self.now);
        (job.next_gpus, job.next_kind) = (None, None);
        if let State::Running { on, .. } = &mut job.state {
            let on = std::mem::take(on);
            if undone && job.undone_on.len() < UNDONE_SETS_MAX {
                job.undone_on.push(on.clone());
            }
            job.state = State::Stopping { on };
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
        for spot in &on.by_node {
            let node = &mut self.nodes[spot.node.index()];
            node.occupied |= spot.gpus;
            for gpu in bits(spot.gpus) {
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
        (job.next_gpus, job.next_kind) = (None, None);
        if !job.elsewhere.is_empty()
            && let Some(spot) = on.by_node.first()
        {
            job.turn_to(&self.nodes[spot.node.index()].facts.gpu_type);
        }
        job.state = State::Running { on, setting, since, observation };
        self.running.insert(key);
        if observing {
            self.observed.insert(key);
        }
    }

    fn release(&mut self, key: JobKey) {
        let Some(on) = self.job(key).and_then(|job| job.state.gpus()).cloned() else { return };
        for spot in &on.by_node {
            let node = &mut self.nodes[spot.node.index()];
            for gpu in bits(spot.gpus) {
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
            if let Some(Job { state: State::Running { observation: Some(seen), .. }, .. }) =
                one_of(&mut self.jobs, watched)
            {
                seen.marks.retain(|mark| mark.job != key);
            }
        }
    }
}

/// A job, to be changed: apart from now on in this problem, where copies of the problem have it too.
fn one_of(jobs: &mut [Option<Arc<Job>>], key: JobKey) -> Option<&mut Job> {
    jobs.get_mut(key.index())?.as_mut().map(Arc::make_mut)
}
