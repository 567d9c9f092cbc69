//! The reactive sleep rule, the same for every policy.
//!
//! A node on which nobody has been for five minutes sleeps (the dynamic resource sleep of
//! github.com/HKBU-HPML/GPU-DVFS-Job-Schedule, arXiv 2104.00486, whose default is five of its time
//! units; an operator may set another, [`crate::PlanningLimits::idle_before_sleep`]), and wakes when a job waits that does
//! not fit what is awake and free. It looks neither at who may come next nor at what waking costs.
//! Only where [`crate::PlanningLimits::nodes_sleep`] allows it.
//!
//! Our own choices: a node that has woken stays awake for at least as long as waking took it; nobody
//! falls asleep while a job waits for GPUs that are there but asleep, waking, taken apart or just
//! being freed, so that no node is woken again at once; as many nodes are woken as the head of the
//! queue and those behind it ask for, in order, until somebody asks for more than there is. Policies
//! that share out all nodes, asleep or not, wake theirs through [`crate::allocation::transition`] and are left
//! alone here.

use std::collections::BTreeSet;

use crate::allocation::feasibility::{same_shape, suits};
use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{Decision, NodeDecision, Plan};
use crate::policies::{Capabilities, Policy};
use crate::state::gpu_set::{JobKey, NodeKey, lowest};
use crate::state::job::Job;
use crate::state::node::{Node, Wakefulness};

/// A policy whose unused nodes sleep.
pub struct Sleeping {
    inner: Box<dyn Policy>,
}

impl Sleeping {
    /// `inner`, and the rule after it.
    #[must_use]
    pub fn new(inner: Box<dyn Policy>) -> Self {
        Self { inner }
    }
}

impl Policy for Sleeping {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn solve(&self, input: PlanningInput<'_>) -> Plan {
        let mut plan = self.inner.solve(input);
        if input.limits.nodes_sleep {
            let after = After::of(input, &plan);
            after.wake(&mut plan);
            if !after.somebody_needs_them(&plan) {
                after.put_to_sleep(&mut plan);
            }
        }
        plan
    }
}

/// Nodes that nobody will be on sleep, whoever waits for them: what waits is held back for another
/// reason than room.
pub(crate) fn put_to_sleep(input: PlanningInput<'_>, plan: &mut Plan) {
    After::of(input, plan).put_to_sleep(plan);
}

/// How things will be once the plan is carried out.
struct After<'a> {
    input: PlanningInput<'a>,
    /// Free GPUs of each node that is awake.
    free: Vec<u64>,
    /// Jobs that will not wait any more.
    decided: BTreeSet<JobKey>,
    /// Nodes the policy itself decides about.
    ordered: BTreeSet<NodeKey>,
}

impl<'a> After<'a> {
    fn of(input: PlanningInput<'a>, plan: &Plan) -> Self {
        let mut free: Vec<u64> = input.state.nodes().iter().map(Node::free).collect();
        for decision in &plan.decisions {
            if let Decision::Start { on, .. } = decision {
                for spot in &on.by_node {
                    free[spot.node.index()] &= !spot.gpus;
                }
            }
        }
        let decided = plan.decisions.iter().map(Decision::job).collect();
        let ordered = plan.nodes.iter().map(NodeDecision::node).collect();
        Self { input, free, decided, ordered }
    }

    /// Wakes what the job at which the policy stopped, and those behind it, ask for beyond what is
    /// awake and free.
    fn wake(&self, plan: &mut Plan) {
        let Some(blocked) =
            plan.blocked.as_ref().filter(|blocked| for_want_of_room(&blocked.reason))
        else {
            return;
        };
        let nodes = self.input.state.nodes();
        if !nodes.iter().any(|node| node.wakefulness == Wakefulness::Asleep) {
            return;
        }
        let mut free = self.free.clone();
        // What each node that is asleep or waking would still give.
        let is_up = |node: &Node| node.wakefulness == Wakefulness::Awake;
        let healthy = |node: &Node| node.facts.healthy.count_ones();
        let mut left: Vec<u32> =
            nodes.iter().map(|node| if is_up(node) { 0 } else { healthy(node) }).collect();
        let (mut asked, mut woken) = (0, Vec::new());
        let queue = self.input.state.queue().skip_while(|(key, _)| *key != blocked.job);
        for (_, job) in queue.filter(|(key, _)| !self.decided.contains(key)) {
            let Some(chosen) = self.nodes_for(job, &free, &left) else { break };
            for at in chosen {
                let share = job.facts.request.min.min(nodes[at].facts.gpus);
                if is_up(&nodes[at]) {
                    free[at] &= !lowest(free[at], share);
                    continue;
                }
                left[at] -= share;
                asked += share;
                let node = NodeKey(at as u32);
                if nodes[at].wakefulness == Wakefulness::Asleep && !woken.contains(&node) {
                    woken.push(node);
                }
            }
        }
        let reason = Reason::Woken { gpus: asked };
        let wakes = |node| NodeDecision::Wake { node, reason: reason.clone() };
        plan.nodes.extend(woken.into_iter().map(wakes));
    }

    /// The nodes that a job would have: one, or whole ones that are all alike; those of which the
    /// fewest have to be waited for, and then woken. `None` where it asks for more than there is.
    fn nodes_for(&self, job: &Job, free: &[u64], left: &[u32]) -> Option<Vec<usize>> {
        let nodes = self.input.state.nodes();
        let asked = job.facts.request.min;
        let suit = || (0..nodes.len()).filter(|&at| suits(&nodes[at].facts, job));
        let can_give = |at: &usize| {
            let (node, share) = (&nodes[*at], asked.min(nodes[*at].facts.gpus));
            let is_ordered = self.ordered.contains(&NodeKey(*at as u32));
            share > 0
                && match node.wakefulness {
                    Wakefulness::Awake => free[*at].count_ones() >= share,
                    Wakefulness::Waking => left[*at] >= share,
                    Wakefulness::Asleep => left[*at] >= share && !is_ordered,
                }
        };
        let one_holds_it = suit().any(|at| nodes[at].facts.gpus >= asked);
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for at in suit().filter(can_give) {
            let like =
                |group: &&mut Vec<usize>| same_shape(&nodes[group[0]].facts, &nodes[at].facts);
            match groups.iter_mut().find(like) {
                Some(group) if !one_holds_it => group.push(at),
                _ if !one_holds_it || nodes[at].facts.gpus >= asked => groups.push(vec![at]),
                _ => {}
            }
        }
        let up = |at: &usize| match nodes[*at].wakefulness {
            Wakefulness::Awake => 0,
            Wakefulness::Waking => 1,
            Wakefulness::Asleep => 2,
        };
        let chosen = groups.into_iter().filter_map(|mut group| {
            group.sort_by_key(up);
            let wanted = asked.div_ceil(nodes[group[0]].facts.gpus) as usize;
            group.truncate(wanted);
            (group.len() == wanted).then_some(group)
        });
        chosen.min_by_key(|group| {
            let how_many = |least| group.iter().filter(|at| up(at) >= least).count();
            (how_many(1), how_many(2))
        })
    }

    /// Whether a job waits that could go where nobody is now.
    fn somebody_needs_them(&self, plan: &Plan) -> bool {
        let Some(blocked) = &plan.blocked else { return false };
        if matches!(blocked.reason, Reason::Awaits { .. }) {
            return true;
        }
        let Some(job) = self.input.state.job(blocked.job) else { return false };
        let there = self.input.state.nodes().iter().zip(&self.free);
        let there = there.filter(|(node, _)| suits(&node.facts, job)).map(|(node, free)| {
            if node.is_awake() { free.count_ones() } else { node.facts.healthy.count_ones() }
        });
        for_want_of_room(&blocked.reason) && job.facts.request.min <= there.sum()
    }

    fn put_to_sleep(&self, plan: &mut Plan) {
        let after = self.input.limits.idle_before_sleep;
        for (key, node) in self.input.state.keyed_nodes() {
            let unused = self.free[key.index()] == node.facts.healthy && node.is_empty();
            if !node.is_awake() || !unused || node.facts.healthy == 0 || self.ordered.contains(&key)
            {
                continue;
            }
            let stays = node.facts.watts.map_or(after, |watts| watts.wakes_in.max(after));
            let idle = self.input.now().since(node.idle_since);
            if idle >= stays {
                let reason = Reason::Unused { idle };
                plan.nodes.push(NodeDecision::Sleep { node: key, reason });
            } else {
                let then = node.idle_since + stays;
                plan.again_at = Some(plan.again_at.map_or(then, |at| at.min(then)));
            }
        }
    }
}

fn for_want_of_room(reason: &Reason) -> bool {
    matches!(reason, Reason::NoRoom { .. })
}
