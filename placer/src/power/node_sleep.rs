//! The reactive sleep rule, the same for every policy.
//!
//! A node that has been idle for five minutes sleeps (the dynamic resource sleep of
//! github.com/HKBU-HPML/GPU-DVFS-Job-Schedule, arXiv 2104.00486, whose default is five of its time units; an
//! operator may set another time, [`crate::PlanningLimits::idle_before_sleep`]). It wakes when a job waits
//! that does not fit the awake and free nodes. The rule considers neither future arrivals nor the cost of
//! waking. It applies only where [`crate::PlanningLimits::nodes_sleep`] allows it.
//!
//! Our own choices:
//! * A node stays awake at least as long as its waking took.
//! * While the expected power exceeds the power limit, as when a lower limit begins, an unused node sleeps at
//!   once, even if a job waits for GPUs: its idle draw is power that jobs could have, and no job starts meanwhile.
//! * A node with unhealthy GPUs stays awake, because while it sleeps their recovery is not reported, and a job
//!   that needs them would wait for good.
//! * Otherwise no node goes to sleep while a job waits for GPUs that exist but are asleep, waking, fragmented or
//!   being freed, so that no node is woken again at once.
//! * As many nodes are woken as the queue needs in order, from its first blocked job on, up to a job that
//!   needs more than exists. The starts that these nodes are woken for are part of the plan
//!   ([`AwaitedStart`]), so that no node wakes for a start that a power limit prevents.
//! * A node of a start that a power limit prevents stays awake where the limit permits it within the time after which
//!   the node would sleep.
//! * Policies that share out sleeping nodes wake them through [`crate::allocation::transition`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wattle_common::job::GpuSetting;

use crate::allocation::capacity::{FreeCapacity, Scope};
use crate::allocation::feasibility::{same_shape, suits};
use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{AwaitedStart, Decision, NodeDecision, Plan};
use crate::power::model::expected_power;
use crate::state::gpu_set::{GpuSet, JobKey, NodeGpus, NodeKey, lowest};
use crate::state::job::Job;
use crate::state::node::Wakefulness;

/// Time from a node's sleep until its power is planned for jobs, below a power limit.
const AFTER_SLEEP: Duration = Duration::from_secs(1);

/// Applies the sleep rule to a plan. No node wakes for the jobs that are `held_back`, and those that are `needed` soon
/// stay awake. Returns the decisions that it adds.
pub(crate) fn apply(
    input: PlanningInput<'_>,
    held_back: &BTreeMap<JobKey, Reason>,
    needed: &BTreeSet<NodeKey>,
    plan: &mut Plan,
) -> Vec<NodeDecision> {
    if !input.limits.nodes_sleep {
        return Vec::new();
    }
    let planned = plan.nodes.len();
    let mut after = AfterPlan::new(input, needed, plan);
    after.decided.extend(held_back.keys());
    after.wake(plan);
    if after.is_exceeded || !after.needs_idle_nodes(plan) {
        after.put_to_sleep(plan);
    }
    plan.nodes[planned..].to_vec()
}

/// Puts unused nodes to sleep although jobs wait: they are held back for another reason than room. Those that are
/// `needed` soon stay awake. Returns the decisions that it adds.
pub(crate) fn put_to_sleep(
    input: PlanningInput<'_>,
    needed: &BTreeSet<NodeKey>,
    plan: &mut Plan,
) -> Vec<NodeDecision> {
    let planned = plan.nodes.len();
    AfterPlan::new(input, needed, plan).put_to_sleep(plan);
    plan.nodes[planned..].to_vec()
}

/// What the queue needs of nodes that are not awake.
#[derive(Default)]
struct Needs {
    /// The number of their GPUs.
    gpus: u32,
    /// The nodes to wake.
    nodes: Vec<NodeKey>,
    /// The starts that wait for these and for waking nodes.
    starts: Vec<AwaitedStart>,
}

/// The cluster once the plan is carried out.
struct AfterPlan<'a> {
    input: PlanningInput<'a>,
    /// Free GPUs, with those of nodes that are asleep or waking.
    free: FreeCapacity<'a>,
    /// Jobs that the plan decides about, and those that are held back.
    decided: BTreeSet<JobKey>,
    /// Nodes that the plan decides about.
    ordered: BTreeSet<NodeKey>,
    /// Nodes on which a job is expected to start soon.
    needed: &'a BTreeSet<NodeKey>,
    /// Whether the expected power exceeds the site's limit before the plan.
    is_exceeded: bool,
}

impl<'a> AfterPlan<'a> {
    fn new(input: PlanningInput<'a>, needed: &'a BTreeSet<NodeKey>, plan: &Plan) -> Self {
        let mut free = FreeCapacity::new(input.state, Scope::IdleOrAsleep);
        for decision in &plan.decisions {
            if let Decision::Start { on, .. } = decision {
                free.take(on);
            }
        }
        let decided = plan.decisions.iter().map(Decision::job).collect();
        let ordered = plan.nodes.iter().map(NodeDecision::node).collect();
        let limit = input.limits.power_max;
        let is_exceeded = limit.is_some_and(|limit| expected_power(input) > limit);
        Self { input, free, decided, ordered, needed, is_exceeded }
    }

    /// Wakes the nodes that the blocked job and those behind it need beyond awake and free GPUs.
    fn wake(&self, plan: &mut Plan) {
        let Some(blocked) = plan.blocked.as_ref().filter(|blocked| lacks_room(&blocked.reason))
        else {
            return;
        };
        let nodes = self.input.state.nodes();
        if !nodes.iter().any(|node| node.wakefulness == Wakefulness::Asleep) {
            return;
        }
        // A woken node may attract jobs that another node was counted for, so the count is repeated until it
        // wakes no further node. Then the applied plan leaves nothing to do.
        let mut woken = Vec::new();
        loop {
            let needs = self.nodes_to_wake(blocked.job, &woken);
            if needs.nodes.is_empty() {
                plan.awaited.extend(needs.starts);
                return;
            }
            let reason = Reason::Woken { gpus: needs.gpus };
            let wake = |&node: &NodeKey| NodeDecision::Wake { node, reason: reason.clone() };
            plan.nodes.extend(needs.nodes.iter().map(wake));
            woken.extend(needs.nodes);
        }
    }

    /// What the queue from `first` on needs of nodes that are not awake, beside those already `woken`.
    fn nodes_to_wake(&self, first: JobKey, woken: &[NodeKey]) -> Needs {
        let mut free = self.free.clone();
        let mut needs = Needs::default();
        let queue = self.input.state.queue().skip_while(|(key, _)| *key != first);
        for (key, job) in queue.filter(|(key, _)| !self.decided.contains(key)) {
            let Some(chosen) = self.nodes_for(job, &free, woken) else { break };
            let on_node = |node: NodeKey| {
                let share = job.facts.request.min.min(self.input.state.node(node).facts.gpus);
                NodeGpus { node, gpus: lowest(free.free(node), share) }
            };
            let on = GpuSet { by_node: chosen.into_iter().map(on_node).collect() };
            free.take(&on);
            let is_awake = |here: &&NodeGpus| self.input.state.node(here.node).is_awake();
            for here in on.by_node.iter().filter(|here| !is_awake(here)) {
                needs.gpus += here.gpus.count_ones();
                let is_asleep = self.wakefulness(here.node, woken) == Wakefulness::Asleep;
                if is_asleep && !needs.nodes.contains(&here.node) {
                    needs.nodes.push(here.node);
                }
            }
            if !on.by_node.iter().all(|here| is_awake(&here)) {
                let setting = GpuSetting::DEFAULT;
                needs.starts.push(AwaitedStart { job: key, on, setting });
            }
        }
        needs
    }

    /// The state of a node once `woken` are waking.
    fn wakefulness(&self, key: NodeKey, woken: &[NodeKey]) -> Wakefulness {
        if woken.contains(&key) {
            Wakefulness::Waking
        } else {
            self.input.state.node(key).wakefulness
        }
    }

    /// The nodes that a job would get: one node, or entirely free nodes of one shape. Of several choices the
    /// one with the fewest nodes to wait for, then to wake. `None` if the job needs more than exists.
    fn nodes_for(
        &self,
        job: &Job,
        free: &FreeCapacity<'_>,
        woken: &[NodeKey],
    ) -> Option<Vec<NodeKey>> {
        let requested = job.facts.request.min;
        let node = |key: NodeKey| self.input.state.node(key);
        let suitable = || {
            let nodes = self.input.state.keyed_nodes();
            nodes.filter(|(_, node)| suits(&node.facts, job)).map(|(key, _)| key)
        };
        let has_share = |key: &NodeKey| {
            let share = requested.min(node(*key).facts.gpus);
            let stays_asleep =
                self.wakefulness(*key, woken) == Wakefulness::Asleep && self.ordered.contains(key);
            share > 0 && free.free(*key).count_ones() >= share && !stays_asleep
        };
        let fits_a_node = suitable().any(|key| node(key).facts.gpus >= requested);
        let mut groups: Vec<Vec<NodeKey>> = Vec::new();
        for key in suitable().filter(has_share) {
            let is_same =
                |group: &&mut Vec<NodeKey>| same_shape(&node(group[0]).facts, &node(key).facts);
            match groups.iter_mut().find(is_same) {
                Some(group) if !fits_a_node => group.push(key),
                _ if !fits_a_node || node(key).facts.gpus >= requested => groups.push(vec![key]),
                _ => {}
            }
        }
        let delay = |key: &NodeKey| match self.wakefulness(*key, woken) {
            Wakefulness::Awake => 0,
            Wakefulness::Waking => 1,
            Wakefulness::Asleep => 2,
        };
        let chosen = groups.into_iter().filter_map(|mut group| {
            group.sort_by_key(delay);
            let count = requested.div_ceil(node(group[0]).facts.gpus) as usize;
            group.truncate(count);
            (group.len() == count).then_some(group)
        });
        chosen.min_by_key(|group| {
            let count = |least| group.iter().filter(|key| delay(key) >= least).count();
            (count(1), count(2))
        })
    }

    /// Whether the blocked job could use idle nodes.
    fn needs_idle_nodes(&self, plan: &Plan) -> bool {
        let Some(blocked) = &plan.blocked else { return false };
        if matches!(blocked.reason, Reason::Awaits { .. }) {
            return true;
        }
        let Some(job) = self.input.state.job(blocked.job) else { return false };
        let nodes = self.input.state.keyed_nodes().filter(|(_, node)| suits(&node.facts, job));
        let free: u32 = nodes.map(|(key, _)| self.free.free(key).count_ones()).sum();
        lacks_room(&blocked.reason) && job.facts.request.min <= free
    }

    fn put_to_sleep(&self, plan: &mut Plan) {
        for (key, node) in self.input.state.keyed_nodes() {
            let is_unused = self.free.free(key) == node.facts.healthy && node.is_empty();
            let may_sleep = node.is_awake() && !node.facts.is_damaged() && is_unused;
            let is_needed = self.needed.contains(&key) && !self.is_exceeded;
            if !may_sleep || is_needed || self.ordered.contains(&key) {
                continue;
            }
            let idle_min = self.input.limits.idle_before_sleep_of(node);
            let idle = self.input.now().since(node.idle_since);
            if idle >= idle_min || self.is_exceeded {
                let reason = Reason::Unused { idle };
                plan.nodes.push(NodeDecision::Sleep { node: key, reason });
                // The power that it no longer draws is free for jobs once it sleeps.
                if self.input.limits.is_power_limited() {
                    let then = self.input.now() + AFTER_SLEEP;
                    plan.again_at = Some(plan.again_at.map_or(then, |at| at.min(then)));
                }
            } else {
                let then = node.idle_since + idle_min;
                plan.again_at = Some(plan.again_at.map_or(then, |at| at.min(then)));
            }
        }
    }
}

fn lacks_room(reason: &Reason) -> bool {
    matches!(reason, Reason::NoRoom { .. })
}
