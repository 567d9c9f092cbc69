//! From who should have how many GPUs to the steps that bring it about.
//!
//! Elastic policies decide in numbers: this job on eight GPUs at that clock, those two together on
//! four. What that means for GPUs that are taken already is the same for all of them and stands
//! here. Who has the right size keeps its place; everybody else is stopped where it is and started
//! on an aligned block ([`crate::allocation::buddy`] says why), the smallest free one that holds it, on few nodes.
//! A start that needs GPUs of a job still stopping waits for the next round, and so does one on a
//! node that sleeps, which is woken. Whole nodes are taken below as few leaf switches as may be
//! ([`network`]). Where GPUs enough are free but no block of them, the block
//! cheapest to clear is cleared, if what is moved is less than what gains by it.
//!
//! It must not decide who gets what: a target that is not here means that the job waits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wattle_common::job::GpuSetting;

use crate::allocation::blocks::{aligned, is_split};
use crate::allocation::network::{switches, together};
use crate::allocation::room::{Alike, Room};
use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{Blocked, Decision, NodeDecision, Plan};
use crate::state::gpu_set::{GpuSet, JobKey, NodeGpus, NodeKey, ones};
use crate::state::job::State;
use crate::state::node::Wakefulness;

/// Jobs that are to share one set of GPUs, mostly one job alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The jobs, each of which gets all the GPUs.
    pub jobs: Vec<JobKey>,
    /// How many GPUs.
    pub gpus: u32,
    /// Their kind; empty: any one kind.
    pub kind: String,
    /// What they are set to.
    pub setting: GpuSetting,
    /// Why.
    pub reason: Reason,
}

/// The steps from how things are to `targets`. Running jobs that no target names are stopped,
/// because of `unwanted`; those that cannot stop stay, and their target, if they have one, must
/// have their size.
#[must_use]
pub fn plan_transition(input: PlanningInput<'_>, targets: &[Target], unwanted: &Reason) -> Plan {
    let mut named: Vec<JobKey> = targets.iter().flat_map(|target| &target.jobs).copied().collect();
    named.sort_unstable();
    let keys = input.state.running().map(|(key, _)| key);
    let leavers: Vec<JobKey> = keys.filter(|key| named.binary_search(key).is_err()).collect();
    arrange_some(input, targets, &leavers, unwanted)
}

/// The same where of those whom no target names only `leavers` are stopped, because of `unwanted`:
/// everybody else stays as it is.
pub(crate) fn arrange_some(
    input: PlanningInput<'_>,
    targets: &[Target],
    leavers: &[JobKey],
    unwanted: &Reason,
) -> Plan {
    let mut steps = Steps::new(input);
    let claims = steps.claim(targets);
    steps.stop_the_rest(targets, &claims, leavers, unwanted);
    steps.join(targets, &claims);
    steps.place(targets, &claims);
    steps.plan
}

/// Whether the job runs alone, on so many GPUs of this kind (empty: any) as they come, so that there is
/// nothing to be done for it.
pub(crate) fn has_its_own(input: PlanningInput<'_>, job: JobKey, gpus: u32, kind: &str) -> bool {
    match input.state.job(job).map(|job| &job.state) {
        Some(State::Running { on, setting, .. }) => {
            setting.is_default() && is_right(input, on, gpus, kind) && is_exclusive(input, on)
        }
        _ => false,
    }
}

/// Whether no two jobs share any of these GPUs.
fn is_exclusive(input: PlanningInput<'_>, on: &GpuSet) -> bool {
    on.gpus().all(|(node, gpu)| input.state.node(node).tenants(gpu).len() < 2)
}

/// Whether these are so many GPUs, and of this kind unless it is empty.
fn is_right(input: PlanningInput<'_>, on: &GpuSet, gpus: u32, kind: &str) -> bool {
    // No job is on GPUs of two kinds.
    let first = on.by_node.first().map(|spot| input.state.node(spot.node).facts.gpu_type.as_str());
    on.gpu_count() == gpus && (kind.is_empty() || first == Some(kind))
}

struct Steps<'a> {
    input: PlanningInput<'a>,
    room: Room<'a>,
    /// GPUs of each node on which somebody is started.
    started: Vec<u64>,
    stopping: BTreeSet<JobKey>,
    plan: Plan,
}

impl<'a> Steps<'a> {
    fn new(input: PlanningInput<'a>) -> Self {
        Self {
            input,
            room: Room::new(input.state),
            started: vec![0; input.state.nodes().len()],
            stopping: BTreeSet::new(),
            plan: Plan::default(),
        }
    }

    /// Which targets have their GPUs already: those of a running member, of the right size and kind.
    fn claim(&self, targets: &[Target]) -> Vec<Option<&'a GpuSet>> {
        // Only GPUs that several jobs are on could be claimed twice.
        let mut taken: BTreeSet<&GpuSet> = BTreeSet::new();
        let on = |key: &JobKey| match &self.input.state.job(*key)?.state {
            State::Running { on, .. } => Some(on),
            State::Queued | State::Stopping { .. } => None,
        };
        targets
            .iter()
            .map(|target| {
                let sets = target.jobs.iter().filter_map(on);
                let mut sets =
                    sets.filter(|on| is_right(self.input, on, target.gpus, &target.kind));
                sets.find(|&on| is_exclusive(self.input, on) || taken.insert(on))
            })
            .collect()
    }

    /// Everybody who runs elsewhere than where it should.
    fn stop_the_rest(
        &mut self,
        targets: &[Target],
        claims: &[Option<&GpuSet>],
        leavers: &[JobKey],
        unwanted: &Reason,
    ) {
        let mut all: Vec<(JobKey, Option<usize>)> =
            leavers.iter().map(|&job| (job, None)).collect();
        for (at, target) in targets.iter().enumerate() {
            all.extend(target.jobs.iter().map(|&job| (job, Some(at))));
        }
        all.sort_unstable();
        for (key, at) in all {
            let Some(job) = self.input.state.job(key) else { continue };
            let State::Running { on, setting, .. } = &job.state else { continue };
            let target = at.map(|at| &targets[at]);
            if let Some(target) = target
                && at.is_some_and(|at| claims[at] == Some(on))
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
                next_kind: target
                    .filter(|target| !target.kind.is_empty())
                    .map(|target| Arc::from(target.kind.as_str())),
                reason: target.map_or(unwanted, |target| &target.reason).clone(),
            });
        }
    }

    /// Waiting jobs whose target has its GPUs already join it there, once nobody else is on them.
    fn join(&mut self, targets: &[Target], claims: &[Option<&GpuSet>]) {
        for (target, claim) in targets.iter().zip(claims) {
            let Some(on) = claim.filter(|_| target.jobs.iter().any(|&job| self.waits(job))) else {
                continue;
            };
            let foreign = on.gpus().any(|(node, gpu)| {
                self.input.state.node(node).tenants(gpu).iter().any(|t| !target.jobs.contains(t))
            });
            let sound = on.by_node.iter().all(|spot| {
                let node = self.input.state.node(spot.node);
                node.is_awake() && spot.gpus & !node.facts.healthy == 0
            });
            if foreign || !sound {
                continue;
            }
            for &job in &target.jobs {
                self.start(job, on, target);
            }
        }
    }

    /// Starts a job if it waits.
    fn start(&mut self, job: JobKey, on: &GpuSet, target: &Target) {
        if self.input.state.job(job).is_some_and(|known| known.state == State::Queued) {
            on.by_node.iter().for_each(|spot| self.started[spot.node.index()] |= spot.gpus);
            self.plan.decisions.push(Decision::Start {
                job,
                on: on.clone(),
                setting: target.setting,
                observe: false,
                reason: target.reason.clone(),
            });
        }
    }

    /// The targets that have no GPUs yet, largest first: blocks of powers of two that fit in sum
    /// then always fit one by one.
    fn place(&mut self, targets: &[Target], claims: &[Option<&GpuSet>]) {
        let mut open: Vec<&Target> = targets
            .iter()
            .zip(claims)
            .filter(|(target, claim)| claim.is_none() && target.gpus > 0)
            .map(|(target, _)| target)
            // Whoever is on its way here still holds GPUs elsewhere.
            .filter(|target| target.jobs.iter().any(|&job| self.waits(job)))
            .collect();
        open.sort_by_key(|target| std::cmp::Reverse(target.gpus));
        let mut unplaced = Vec::new();
        for target in open {
            match self.block(target) {
                Some(on) => {
                    self.room.take(&on);
                    for &job in &target.jobs {
                        self.start(job, &on, target);
                    }
                }
                None => unplaced.push(target),
            }
        }
        if unplaced.is_empty() {
            return;
        }
        self.plan.blocked = unplaced.iter().find_map(|target| {
            let job = target.jobs.iter().copied().find(|&job| self.waits(job))?;
            Some(Blocked { job, reason: Reason::Awaits { gpus: target.gpus } })
        });
        self.wake(&unplaced);
        let nothing_moves = self.stopping.is_empty()
            && self.plan.nodes.is_empty()
            && self.input.state.nodes().iter().all(|n| n.wakefulness != Wakefulness::Waking)
            && !self.anyone_is_stopping();
        // Largest first; where nothing can be cleared for one, the next is looked after.
        if nothing_moves {
            let _ = unplaced.iter().any(|target| self.clear_a_block(target));
        }
    }

    fn waits(&self, job: JobKey) -> bool {
        self.input.state.job(job).is_some_and(|job| job.state == State::Queued)
    }

    fn anyone_is_stopping(&self) -> bool {
        self.input.state.running().any(|(_, job)| matches!(job.state, State::Stopping { .. }))
    }

    /// What a node must be for a target: its kind of GPU, and the least memory of each, MiB. `None`
    /// where two kinds are asked for.
    fn asked<'t>(&'t self, target: &'t Target) -> Option<(Option<&'t str>, u64)> {
        let jobs = || target.jobs.iter().filter_map(|&job| self.input.state.job(job));
        let memory_mib = jobs().filter_map(|job| job.facts.memory_mib_max).sum();
        let by_job = jobs().find_map(|job| job.facts.gpu_type.as_deref());
        let kind = Some(target.kind.as_str()).filter(|kind| !kind.is_empty());
        let differ = kind.zip(by_job).is_some_and(|(one, other)| one != other);
        (!differ).then_some((kind.or(by_job), memory_mib))
    }

    fn of_kind<'t>(
        &'t self,
        target: &'t Target,
    ) -> impl Iterator<Item = (NodeKey, &'a crate::Node)> + use<'a, 't> {
        let asked = self.asked(target);
        self.input.state.keyed_nodes().filter(move |(_, node)| {
            asked.is_some_and(|(kind, memory_mib)| {
                kind.is_none_or(|kind| node.facts.gpu_type == kind)
                    && node.facts.memory_mib >= memory_mib
            })
        })
    }

    /// Free GPUs for a target: inside one node if any node is large enough, else whole nodes.
    fn block(&self, target: &Target) -> Option<GpuSet> {
        let gpus = target.gpus;
        let (kind, memory_mib) = self.asked(target)?;
        let suits = |class: &Alike<'_>| {
            kind.is_none_or(|kind| class.kind == kind) && class.memory_mib >= memory_mib
        };
        let classes = || self.room.classes().filter(move |(class, _)| suits(class));
        if classes().any(|(class, _)| class.gpus >= gpus) {
            let best =
                classes().filter(|(class, _)| class.gpus >= gpus).filter_map(|(class, nodes)| {
                    let chosen = aligned(class.free, gpus, class.gpus, class.board)?;
                    // On one board if it can be; the fullest node first, so that whole nodes stay
                    // whole.
                    let key = *nodes.first()?;
                    Some((is_split(chosen, class.board), class.free.count_ones(), key, chosen))
                });
            return best.min().map(|(_, _, key, chosen)| GpuSet::on(key, chosen));
        }
        // Whole nodes of one kind and size, next to each other where there are any such.
        let mut whole: BTreeMap<(&str, u32), Vec<NodeKey>> = BTreeMap::new();
        for (class, nodes) in classes().filter(|(class, _)| class.is_whole()) {
            whole.entry((class.kind, class.gpus)).or_default().extend(nodes);
        }
        whole.into_iter().find_map(|((_, size), mut nodes)| {
            nodes.sort_unstable();
            let wanted = gpus.div_ceil(size) as usize;
            let chosen = together(self.input.state, &nodes, wanted)?;
            let mut left = gpus;
            let by_node = chosen.iter().map(|&node| {
                let here = left.min(size);
                left -= here;
                NodeGpus { node, gpus: ones(here) }
            });
            Some(GpuSet { by_node: by_node.collect() })
        })
    }

    /// Wakes the nodes that the targets without room need beside what is free, becomes free or wakes
    /// already. Whom the fewest nodes suit comes first, the others take what is left.
    fn wake(&mut self, unplaced: &[&Target]) {
        let nodes = self.input.state.nodes();
        let mut left: Vec<u32> =
            self.input.state.keyed_nodes().map(|at| self.comes_free(at)).collect();
        let mut unplaced = unplaced.to_vec();
        unplaced.sort_by_key(|target| self.of_kind(target).count());
        let mut orders: BTreeMap<NodeKey, u32> = BTreeMap::new();
        for target in unplaced {
            let sleeps = |node: &NodeKey| {
                nodes[node.index()].wakefulness == Wakefulness::Asleep && !orders.contains_key(node)
            };
            // Of nodes that could hold it together, those of which the fewest have to be woken.
            let missing = |class: &Vec<NodeKey>| {
                let there = class.iter().filter(|node| !sleeps(node));
                let there = there.map(|node| left[node.index()]).sum::<u32>();
                target.gpus.saturating_sub(there)
            };
            let all =
                |class: &Vec<NodeKey>| -> u32 { class.iter().map(|node| left[node.index()]).sum() };
            let mut classes = self.classes(target);
            classes.retain(|class| all(class) >= target.gpus);
            let Some(mut class) = classes.into_iter().min_by_key(missing) else { continue };
            class.sort_by_key(|node| (sleeps(node), *node));
            let mut wanted = target.gpus;
            for node in class {
                if wanted == 0 {
                    break;
                }
                let taken = wanted.min(left[node.index()]);
                if taken == 0 {
                    continue;
                }
                left[node.index()] -= taken;
                wanted -= taken;
                if nodes[node.index()].wakefulness == Wakefulness::Asleep {
                    *orders.entry(node).or_default() += target.gpus;
                }
            }
        }
        let wake = |(node, gpus)| NodeDecision::Wake { node, reason: Reason::Woken { gpus } };
        self.plan.nodes.extend(orders.into_iter().map(wake));
    }

    /// GPUs of a node that are free, or are so once those who leave have gone and it has woken.
    fn comes_free(&self, (key, node): (NodeKey, &crate::Node)) -> u32 {
        if node.wakefulness != Wakefulness::Awake {
            return node.facts.healthy.count_ones();
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
        (self.room.on(key) | left & node.facts.healthy).count_ones()
    }

    /// The nodes that could be part of a target's place if they were awake and free, those together
    /// that could hold it together: of one kind, and of one size where it takes several whole ones.
    /// What one node can hold is never spread over several.
    fn classes(&self, target: &Target) -> Vec<Vec<NodeKey>> {
        let inside = self.of_kind(target).any(|(_, node)| node.facts.gpus >= target.gpus);
        let mut classes: BTreeMap<(&str, u32), Vec<NodeKey>> = BTreeMap::new();
        for (key, node) in self.of_kind(target).filter(|(_, node)| could_be_part(node, target)) {
            let size = if inside { 0 } else { node.facts.gpus };
            if !inside || node.facts.gpus >= target.gpus {
                classes.entry((&node.facts.gpu_type, size)).or_default().push(key);
            }
        }
        classes.into_values().collect()
    }

    /// Enough GPUs are free for the target, but not together: the aligned span with the least on it
    /// is cleared. Whether one is.
    fn clear_a_block(&mut self, target: &Target) -> bool {
        let free: u32 = self.of_kind(target).map(|(key, _)| self.room.on(key).count_ones()).sum();
        if free < target.gpus {
            return false;
        }
        let Some(jobs) = self.cheapest_span(target) else { return false };
        for key in jobs {
            let job = self.input.state.job(key);
            let next_gpus = job.and_then(crate::Job::gpus_meant);
            let next_kind = job.and_then(|job| self.input.state.gpu_type_of(job)).map(Arc::from);
            let reason = Reason::Defragmented { gpus: target.gpus };
            self.stopping.insert(key);
            self.plan.decisions.retain(|decision| decision.job() != key);
            self.plan.decisions.push(Decision::Stop { job: key, next_gpus, next_kind, reason });
        }
        true
    }

    /// The jobs to move, where moving them frees a block for the target and is less than it. Who is
    /// started at this very instant is not moved, or moving would have no end.
    fn cheapest_span(&self, target: &Target) -> Option<BTreeSet<JobKey>> {
        let mut spans: Vec<GpuSet> = Vec::new();
        let size = self.of_kind(target).map(|(_, node)| node.facts.gpus).max()?;
        if target.gpus <= size {
            let width = target.gpus.next_power_of_two();
            for (key, node) in self.of_kind(target).filter(|(_, node)| node.is_awake()) {
                for first in (0..node.facts.gpus).step_by(width as usize) {
                    if first + target.gpus <= node.facts.gpus {
                        spans.push(GpuSet::on(key, ones(target.gpus) << first));
                    }
                }
            }
        } else {
            let wanted = target.gpus.div_ceil(size) as usize;
            let nodes: Vec<NodeKey> = self
                .of_kind(target)
                .filter(|(_, node)| node.facts.gpus == size && node.is_awake())
                .map(|(key, _)| key)
                .collect();
            spans.extend(nodes.chunks_exact(wanted).map(|run| GpuSet {
                by_node: run.iter().map(|&node| NodeGpus { node, gpus: ones(size) }).collect(),
            }));
        }
        let tenants_of = |span: &GpuSet| -> Option<(u32, BTreeSet<JobKey>)> {
            let mut there = BTreeSet::new();
            for (node, gpu) in span.gpus() {
                let healthy = self.input.state.node(node).facts.healthy >> gpu & 1 == 1;
                if !healthy || self.started[node.index()] >> gpu & 1 == 1 {
                    return None;
                }
                there.extend(self.input.state.node(node).tenants(gpu).iter().copied());
            }
            // Those who share their GPUs move together: what counts is the GPUs.
            let mut moved: BTreeMap<NodeKey, u64> = BTreeMap::new();
            for &key in &there {
                let job = self.input.state.job(key)?;
                let fresh = matches!(&job.state, State::Running { since, .. } if *since == self.input.now());
                if fresh || !job.facts.can_stop {
                    return None;
                }
                for spot in &job.state.gpus()?.by_node {
                    *moved.entry(spot.node).or_default() |= spot.gpus;
                }
            }
            let moved: u32 = moved.values().map(|gpus| gpus.count_ones()).sum();
            (moved < target.gpus).then_some((moved, there))
        };
        let switched = |span: &GpuSet| {
            switches(self.input.state, span.by_node.iter().map(|spot| spot.node)).len()
        };
        let cost = |span| tenants_of(span).map(|(moved, jobs)| (moved, switched(span), jobs));
        let costs = spans.iter().filter_map(cost);
        costs.min_by_key(|(moved, below, _)| (*moved, *below)).map(|(_, _, jobs)| jobs)
    }
}

/// Whether the target could be on this node, or on it and others like it, if it were free.
fn could_be_part(node: &crate::Node, target: &Target) -> bool {
    let facts = &node.facts;
    let healthy = facts.healthy & ones(facts.gpus);
    if facts.gpus >= target.gpus {
        return aligned(healthy, target.gpus, facts.gpus, node.gpus_per_board).is_some();
    }
    facts.gpus > 0 && healthy == ones(facts.gpus)
}
