//! From target numbers of GPUs to the decisions that reach them.
//!
//! A policy states targets: this job on eight GPUs at that clock, those two sharing four. The steps
//! from the current allocation to the targets are the same for every policy:
//!
//! * A job that has its target's number of GPUs keeps them. Every other running job is stopped and
//!   started again on a block of the buddy allocator ([`super::buddy`]).
//! * A start that needs GPUs of a job that is still stopping waits for a later round. So does one on
//!   a node that sleeps, which is woken.
//! * If enough GPUs are free but no block of them, the block with the fewest GPUs in use is cleared,
//!   provided that this moves fewer GPUs than the target needs.
//!
//! Which job gets how many GPUs is decided by the policy alone: a job without a target waits.

mod blocks;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wattle_common::job::GpuSetting;

use crate::allocation::buddy::gpus_in_node;
use crate::allocation::capacity::{FreeCapacity, Scope};
use crate::allocation::network::switches;
use crate::allocation::settling::is_held;
use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{AwaitedStart, Blocked, Decision, NodeDecision, Plan};
use crate::power::headroom::Headroom;
use crate::state::gpu_set::{GpuSet, JobKey, NodeGpus, NodeKey, lowest, ones};
use crate::state::job::State;
use crate::state::node::{Node, Wakefulness};

/// Jobs that are to have one set of GPUs: usually one job, otherwise co-tenants.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The jobs, each of which gets all the GPUs.
    pub jobs: Vec<JobKey>,
    /// The number of GPUs.
    pub gpus: u32,
    /// The GPU type; empty: any one type.
    pub gpu_type: String,
    /// The setting of the GPUs.
    pub setting: GpuSetting,
    /// Why.
    pub reason: Reason,
}

impl Target {
    /// GPUs of any one type for one job, exclusively, at the default setting.
    #[must_use]
    pub fn exclusive(job: JobKey, gpus: u32) -> Self {
        Self {
            jobs: vec![job],
            gpus,
            gpu_type: String::new(),
            setting: GpuSetting::DEFAULT,
            reason: Reason::Share { gpus },
        }
    }
}

/// The decisions that lead to `targets`. Running jobs without a target are stopped, with
/// `stop_reason`. Jobs that cannot stop continue; a target of such a job must have its present size.
#[must_use]
pub fn plan_transition(input: PlanningInput<'_>, targets: &[Target], stop_reason: &Reason) -> Plan {
    let mut named: Vec<JobKey> = targets.iter().flat_map(|target| &target.jobs).copied().collect();
    named.sort_unstable();
    let keys = input.state.running().map(|(key, _)| key);
    let leaving: Vec<JobKey> = keys.filter(|key| named.binary_search(key).is_err()).collect();
    plan_partial_transition(input, targets, &leaving, stop_reason)
}

/// [`plan_transition`] for some of the jobs: of those without a target only `leaving` are stopped, and
/// all others stay as they are.
#[must_use]
pub fn plan_partial_transition(
    input: PlanningInput<'_>,
    targets: &[Target],
    leaving: &[JobKey],
    stop_reason: &Reason,
) -> Plan {
    let mut transition = Transition::new(input);
    let kept = transition.kept_sets(targets);
    transition.stop_or_set(targets, &kept, leaving, stop_reason);
    transition.join_kept_sets(targets, &kept);
    transition.place(targets, &kept);
    transition.plan
}

/// Whether the job runs exclusively at the default setting on this number of GPUs of this type (empty:
/// any), so that no decision is needed.
#[must_use]
pub fn is_in_place(input: PlanningInput<'_>, job: JobKey, gpus: u32, gpu_type: &str) -> bool {
    match input.state.job(job).map(|job| &job.state) {
        Some(State::Running { on, setting, .. }) => {
            setting.is_default() && matches(input, on, gpus, gpu_type) && is_exclusive(input, on)
        }
        _ => false,
    }
}

/// Whether each of these GPUs has at most one job.
fn is_exclusive(input: PlanningInput<'_>, on: &GpuSet) -> bool {
    on.gpus().all(|(node, gpu)| input.state.node(node).tenants(gpu).len() < 2)
}

/// Whether the set has this number of GPUs, of this type unless it is empty.
fn matches(input: PlanningInput<'_>, on: &GpuSet, gpus: u32, gpu_type: &str) -> bool {
    // All GPUs of a job have the same type.
    let first = on.by_node.first().map(|here| input.state.node(here.node).facts.gpu_type.as_str());
    on.gpu_count() == gpus && (gpu_type.is_empty() || first == Some(gpu_type))
}

/// A transition while it is being planned.
struct Transition<'a> {
    input: PlanningInput<'a>,
    capacity: FreeCapacity<'a>,
    /// GPUs of each node on which this plan starts a job.
    started: Vec<u64>,
    stopping: BTreeSet<JobKey>,
    /// What the limits of feeders and nodes leave, while jobs are placed; absent without such limits.
    headroom: Option<Headroom<'a>>,
    /// The GPUs of targets that fit the limits only on nodes that are not awake, by their first queued job.
    reserved: BTreeMap<JobKey, GpuSet>,
    plan: Plan,
}

impl<'a> Transition<'a> {
    fn new(input: PlanningInput<'a>) -> Self {
        Self {
            input,
            capacity: FreeCapacity::new(input.state, Scope::Idle),
            started: vec![0; input.state.nodes().len()],
            stopping: BTreeSet::new(),
            headroom: None,
            reserved: BTreeMap::new(),
            plan: Plan::default(),
        }
    }

    /// For each target the set of GPUs it already has: that of a running member, of the right number
    /// and type.
    fn kept_sets(&self, targets: &[Target]) -> Vec<Option<&'a GpuSet>> {
        // Two targets could keep the same set only if it is shared.
        let mut kept: BTreeSet<&GpuSet> = BTreeSet::new();
        let on = |key: &JobKey| match &self.input.state.job(*key)?.state {
            State::Running { on, .. } => Some(on),
            State::Queued | State::Stopping { .. } => None,
        };
        targets
            .iter()
            .map(|target| {
                let sets = target.jobs.iter().filter_map(on);
                let mut sets: Vec<&GpuSet> = sets
                    .filter(|on| matches(self.input, on, target.gpus, &target.gpu_type))
                    .collect();
                if sets.len() > 1 {
                    sets.sort_by_key(|on| !self.is_held_on(on));
                }
                sets.into_iter().find(|&on| is_exclusive(self.input, on) || kept.insert(on))
            })
            .collect()
    }

    /// Whether a job on these GPUs has not settled.
    fn is_held_on(&self, on: &GpuSet) -> bool {
        let tenants = on.gpus().flat_map(|(node, gpu)| self.input.state.node(node).tenants(gpu));
        let mut jobs = tenants.filter_map(|&job| self.input.state.job(job));
        jobs.any(|job| is_held(self.input, job))
    }

    /// Stops the running jobs that are to leave or to move, and changes the setting of those that stay.
    fn stop_or_set(
        &mut self,
        targets: &[Target],
        kept: &[Option<&GpuSet>],
        leaving: &[JobKey],
        stop_reason: &Reason,
    ) {
        let mut all: Vec<(JobKey, Option<usize>)> =
            leaving.iter().map(|&job| (job, None)).collect();
        for (index, target) in targets.iter().enumerate() {
            all.extend(target.jobs.iter().map(|&job| (job, Some(index))));
        }
        all.sort_unstable();
        for (key, index) in all {
            let Some(job) = self.input.state.job(key) else { continue };
            let State::Running { on, setting, .. } = &job.state else { continue };
            let target = index.map(|index| &targets[index]);
            if let Some(target) = target
                && index.is_some_and(|index| kept[index] == Some(on))
            {
                if *setting != target.setting {
                    let (setting, reason) = (target.setting, target.reason.clone());
                    self.plan.decisions.push(Decision::Set { job: key, setting, reason });
                }
                continue;
            }
            if !job.facts.can_stop {
                continue;
            }
            self.stopping.insert(key);
            self.plan.decisions.push(Decision::Stop {
                job: key,
                next_gpus: target.map(|target| target.gpus),
                next_gpu_type: target
                    .filter(|target| !target.gpu_type.is_empty())
                    .map(|target| Arc::from(target.gpu_type.as_str())),
                reason: target.map_or(stop_reason, |target| &target.reason).clone(),
            });
        }
    }

    /// Starts the queued members of targets whose GPUs are kept, once no other job is on those GPUs.
    fn join_kept_sets(&mut self, targets: &[Target], kept: &[Option<&GpuSet>]) {
        for (target, kept) in targets.iter().zip(kept) {
            let Some(on) = kept.filter(|_| self.first_queued(target).is_some()) else { continue };
            let has_other_jobs = on.gpus().any(|(node, gpu)| {
                self.input.state.node(node).tenants(gpu).iter().any(|t| !target.jobs.contains(t))
            });
            let is_usable = on.by_node.iter().all(|here| {
                let node = self.input.state.node(here.node);
                node.is_awake() && here.gpus & !node.facts.healthy == 0
            });
            if is_usable && !has_other_jobs {
                self.start(target, on);
            }
        }
    }

    /// Starts the queued jobs of a target.
    fn start(&mut self, target: &Target, on: &GpuSet) {
        for &job in &target.jobs {
            if !self.is_queued(job) {
                continue;
            }
            on.by_node.iter().for_each(|here| self.started[here.node.index()] |= here.gpus);
            self.plan.decisions.push(Decision::Start {
                job,
                on: on.clone(),
                setting: target.setting,
                observe: false,
                reason: target.reason.clone(),
            });
        }
    }

    /// Places the targets without GPUs, the largest first: blocks of powers of two that fit in sum then
    /// also fit one by one.
    fn place(&mut self, targets: &[Target], kept: &[Option<&GpuSet>]) {
        let mut open: Vec<&Target> = targets
            .iter()
            .zip(kept)
            .filter(|(target, kept)| kept.is_none() && target.gpus > 0)
            .map(|(target, _)| target)
            // A job that is still stopping holds its old GPUs; it is placed once it is queued.
            .filter(|target| self.first_queued(target).is_some())
            .collect();
        open.sort_by_key(|target| std::cmp::Reverse(target.gpus));
        if !open.is_empty() {
            self.headroom = Headroom::after(self.input, &self.plan);
        }
        let mut unplaced = Vec::new();
        for target in open {
            match self.block_for(target) {
                Some(on) => {
                    self.capacity.take(&on);
                    self.start(target, &on);
                }
                None => unplaced.push(target),
            }
        }
        if unplaced.is_empty() {
            return;
        }
        self.plan.blocked = unplaced.iter().find_map(|target| {
            let job = self.first_queued(target)?;
            Some(Blocked { job, reason: Reason::Awaits { gpus: target.gpus } })
        });
        self.wake_nodes(&unplaced);
        let capacity_will_change = !self.stopping.is_empty()
            || !self.plan.nodes.is_empty()
            || self.input.state.nodes().iter().any(|n| n.wakefulness == Wakefulness::Waking)
            || self.some_job_is_stopping();
        // The largest first; if no block can be cleared for it, the next.
        if !capacity_will_change && unplaced.iter().any(|target| self.clear_block(target)) {
            // The GPUs of the moving jobs count as becoming free, which may bring a sleeping node into use.
            self.wake_nodes(&unplaced);
        }
    }

    fn is_queued(&self, job: JobKey) -> bool {
        self.input.state.job(job).is_some_and(|job| job.state == State::Queued)
    }

    fn first_queued(&self, target: &Target) -> Option<JobKey> {
        target.jobs.iter().copied().find(|&job| self.is_queued(job))
    }

    fn some_job_is_stopping(&self) -> bool {
        self.input.state.running().any(|(_, job)| matches!(job.state, State::Stopping { .. }))
    }

    /// Wakes the nodes that the unplaced targets need beyond the GPUs that are free, becoming free or
    /// waking. The target with the fewest suitable nodes comes first.
    fn wake_nodes(&mut self, unplaced: &[&Target]) {
        let nodes = self.input.state.nodes();
        let mut left: Vec<u64> =
            self.input.state.keyed_nodes().map(|node| self.expected_free(node)).collect();
        let in_order = unplaced;
        let mut unplaced = unplaced.to_vec();
        unplaced.sort_by_key(|target| self.suitable_nodes(target).count());
        let mut orders: BTreeMap<NodeKey, u32> = BTreeMap::new();
        for target in unplaced {
            let reserved = self.first_queued(target).and_then(|job| self.reserved.get(&job));
            if let Some(on) = reserved.cloned() {
                for here in &on.by_node {
                    left[here.node.index()] &= !here.gpus;
                    if nodes[here.node.index()].wakefulness == Wakefulness::Asleep {
                        *orders.entry(here.node).or_default() += target.gpus;
                    }
                }
                self.await_nodes(target, on);
                continue;
            }
            let is_asleep = |node: &NodeKey| {
                nodes[node.index()].wakefulness == Wakefulness::Asleep && !orders.contains_key(node)
            };
            // Of the groups of nodes that could hold the target, the one with the fewest GPUs to wake.
            let missing = |group: &Vec<NodeKey>| {
                let awake = group.iter().filter(|node| !is_asleep(node));
                let awake = awake.map(|node| left[node.index()].count_ones()).sum::<u32>();
                target.gpus.saturating_sub(awake)
            };
            let total = |group: &Vec<NodeKey>| -> u32 {
                group.iter().map(|node| left[node.index()].count_ones()).sum()
            };
            let mut groups = self.candidate_groups(target);
            groups.retain(|group| total(group) >= target.gpus);
            let Some(mut group) = groups.into_iter().min_by_key(missing) else { continue };
            group.sort_by_key(|node| (is_asleep(node), *node));
            let mut needed = target.gpus;
            let mut on = GpuSet::default();
            for node in group {
                let gpus = lowest(left[node.index()], needed);
                if gpus == 0 {
                    continue;
                }
                left[node.index()] &= !gpus;
                needed -= gpus.count_ones();
                on.by_node.push(NodeGpus { node, gpus });
                if nodes[node.index()].wakefulness == Wakefulness::Asleep {
                    *orders.entry(node).or_default() += target.gpus;
                }
            }
            self.await_nodes(target, on);
        }
        let order = |start: &AwaitedStart| {
            in_order.iter().position(|target| target.jobs.contains(&start.job))
        };
        self.plan.awaited.sort_by_key(order);
        let wake = |(node, gpus)| NodeDecision::Wake { node, reason: Reason::Woken { gpus } };
        self.plan.nodes.extend(orders.into_iter().map(wake));
    }

    /// The queued jobs of a target start on these GPUs once their nodes are awake.
    fn await_nodes(&mut self, target: &Target, on: GpuSet) {
        let is_awake = |here: &NodeGpus| self.input.state.node(here.node).is_awake();
        if on.by_node.iter().all(is_awake) {
            return;
        }
        for &job in &target.jobs {
            if !self.is_queued(job) {
                continue;
            }
            let start = AwaitedStart { job, on: on.clone(), setting: target.setting };
            self.plan.awaited.push(start);
        }
    }

    /// The GPUs of a node that will be free once stopping jobs have left and the node is awake.
    fn expected_free(&self, (key, node): (NodeKey, &Node)) -> u64 {
        if !node.is_awake() {
            return node.facts.healthy;
        }
        let leaves = |job: &JobKey| {
            let known = self.input.state.job(*job);
            self.stopping.contains(job)
                || known.is_some_and(|job| matches!(job.state, State::Stopping { .. }))
        };
        let is_left = |gpu: &u32| {
            let tenants = node.tenants(*gpu);
            !tenants.is_empty() && tenants.iter().all(leaves)
        };
        let left = (0..node.facts.gpus).filter(is_left).fold(0, |bits, gpu| bits | 1 << gpu);
        self.capacity.free(key) | left & node.facts.healthy
    }

    /// The nodes that could hold the target if they were awake and free, in groups that could hold it
    /// together: one GPU type, and one size if it needs several nodes. A target that one node can hold
    /// is never spread over several.
    fn candidate_groups(&self, target: &Target) -> Vec<Vec<NodeKey>> {
        let fits_a_node =
            self.suitable_nodes(target).any(|(_, node)| node.facts.gpus >= target.gpus);
        let mut groups: BTreeMap<(&str, u32), Vec<NodeKey>> = BTreeMap::new();
        let candidates = self.suitable_nodes(target).filter(|(_, node)| could_hold(node, target));
        for (key, node) in candidates {
            let size = if fits_a_node { 0 } else { node.facts.gpus };
            if !fits_a_node || node.facts.gpus >= target.gpus {
                groups.entry((&node.facts.gpu_type, size)).or_default().push(key);
            }
        }
        groups.into_values().collect()
    }

    /// Clears a block for a target for which enough GPUs are free, but no block. Returns whether one
    /// is cleared.
    fn clear_block(&mut self, target: &Target) -> bool {
        let nodes = self.suitable_nodes(target);
        let free: u32 = nodes.map(|(key, _)| self.capacity.free(key).count_ones()).sum();
        if free < target.gpus {
            return false;
        }
        let Some(jobs) = self.cheapest_block_to_clear(target) else { return false };
        for key in jobs {
            let job = self.input.state.job(key);
            let next_gpus = job.and_then(crate::Job::intended_gpus);
            let next_gpu_type =
                job.and_then(|job| self.input.state.gpu_type_of(job)).map(Arc::from);
            let reason = Reason::Defragmented { gpus: target.gpus };
            self.stopping.insert(key);
            self.plan.decisions.retain(|decision| decision.job() != key);
            self.plan.decisions.push(Decision::Stop { job: key, next_gpus, next_gpu_type, reason });
        }
        true
    }

    /// The jobs on the block whose jobs have the fewest GPUs, if these are fewer than the target's.
    fn cheapest_block_to_clear(&self, target: &Target) -> Option<BTreeSet<JobKey>> {
        let costs = self.aligned_blocks(target)?.into_iter().filter_map(|block| {
            let (moved_gpus, jobs) = self.jobs_to_move(&block, target)?;
            let nodes = block.by_node.iter().map(|here| here.node);
            Some((moved_gpus, switches(self.input.state, nodes).len(), jobs))
        });
        costs.min_by_key(|(gpus, switches, _)| (*gpus, *switches)).map(|(_, _, jobs)| jobs)
    }

    /// The aligned blocks of awake nodes that could hold the target.
    fn aligned_blocks(&self, target: &Target) -> Option<Vec<GpuSet>> {
        let size = self.suitable_nodes(target).map(|(_, node)| node.facts.gpus).max()?;
        let awake = || self.suitable_nodes(target).filter(|(_, node)| node.is_awake());
        if target.gpus <= size {
            let width = target.gpus.next_power_of_two() as usize;
            let blocks = awake().flat_map(|(key, node)| {
                let firsts = (0..node.facts.gpus).step_by(width);
                let firsts = firsts.filter(|first| first + target.gpus <= node.facts.gpus);
                firsts.map(move |first| GpuSet::on(key, ones(target.gpus) << first))
            });
            return Some(blocks.collect());
        }
        let equal = awake().filter(|(_, node)| node.facts.gpus == size);
        let nodes: Vec<NodeKey> = equal.map(|(key, _)| key).collect();
        let runs = nodes.chunks_exact(target.gpus.div_ceil(size) as usize);
        let block = |run: &[NodeKey]| GpuSet {
            by_node: run.iter().map(|&node| NodeGpus { node, gpus: ones(size) }).collect(),
        };
        Some(runs.map(block).collect())
    }

    /// The jobs on a block and the number of their GPUs; `None` if the block cannot be cleared, or
    /// not at a cost below the target's size. A job that has not settled is not moved.
    fn jobs_to_move(&self, block: &GpuSet, target: &Target) -> Option<(u32, BTreeSet<JobKey>)> {
        let mut jobs = BTreeSet::new();
        for (node, gpu) in block.gpus() {
            let is_healthy = self.input.state.node(node).facts.healthy >> gpu & 1 == 1;
            if !is_healthy || self.started[node.index()] >> gpu & 1 == 1 {
                return None;
            }
            jobs.extend(self.input.state.node(node).tenants(gpu).iter().copied());
        }
        // Co-tenants move together, so their GPUs count once.
        let mut moved: BTreeMap<NodeKey, u64> = BTreeMap::new();
        for &key in &jobs {
            let job = self.input.state.job(key)?;
            if !job.facts.can_stop || is_held(self.input, job) {
                return None;
            }
            for here in &job.state.gpus()?.by_node {
                *moved.entry(here.node).or_default() |= here.gpus;
            }
        }
        let moved: u32 = moved.values().map(|gpus| gpus.count_ones()).sum();
        (moved < target.gpus).then_some((moved, jobs))
    }
}

/// Whether the node, alone or with equal nodes, could hold the target if it were awake and free.
fn could_hold(node: &Node, target: &Target) -> bool {
    let facts = &node.facts;
    let healthy = facts.healthy & ones(facts.gpus);
    if facts.gpus >= target.gpus {
        let (board, is_damaged) = (node.gpus_per_board, facts.is_damaged());
        return gpus_in_node(healthy, target.gpus, facts.gpus, board, is_damaged).is_some();
    }
    facts.gpus > 0 && healthy == ones(facts.gpus)
}
