//! Power limits beyond the plan: caps that nodes have not acknowledged yet.
//!
//! * A cap rises only after every node under a power limit has reported the reductions of the same plan, so
//!   that the limit also holds between two plans. A node that has not carried out its last reduction gets no
//!   higher cap.
//! * Between two reports a node may carry out several orders. Until it reports the last one, each GPU may have
//!   the highest cap of the last report and of every order since then ([`ReplacedCaps`]).
//! * A node that is silent, or does not carry out a reduction, may still draw what its last caps permit. It
//!   counts with them in every plan until it reports, and no cap waits for it any longer.
//! * A node whose power agent only advises keeps its caps. It counts with them in every plan, and no cap waits
//!   for it. The start of a job there adds the power of these caps at once, so it waits like a cap that rises.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use wattle_common::job::JobPhase;
use wattle_common::messages::{AppliedGpu, DesiredGpu, DesiredJob, LaunchState, SleepState};
use wattle_common::{GpuIndex, NodeId, Power, Timestamp};

use crate::live::job_records::JobRecords;
use crate::live::nodes::{NodeState, Nodes};
use crate::live::site_jobs::placed_by_site;
use crate::live::{LiveController, Turn};
use crate::state::node::{FixedCaps, UnconfirmedCaps};

/// Most replaced orders of which the caps are kept separately for each node.
const REPLACED_MAX: usize = 16;

/// The caps of orders that were replaced before the node reported their successors, with their generations,
/// ascending.
#[derive(Default)]
pub(super) struct ReplacedCaps(VecDeque<(u64, BTreeMap<GpuIndex, Power>)>);

impl ReplacedCaps {
    /// Adds an order. Beyond the largest number, the two oldest become one with the higher cap of each GPU.
    fn add(&mut self, generation: u64, caps: BTreeMap<GpuIndex, Power>) {
        self.0.push_back((generation, caps));
        if self.0.len() > REPLACED_MAX
            && let Some((_, oldest)) = self.0.pop_front()
            && let Some((_, next)) = self.0.front_mut()
        {
            raise_to(next, oldest);
        }
    }

    /// Removes the orders before the one that the node has reported.
    fn forget(&mut self, reported: u64) {
        self.0.retain(|(generation, _)| *generation >= reported);
    }
}

/// Raises caps to the higher ones of these.
fn raise_to(
    caps: &mut BTreeMap<GpuIndex, Power>,
    others: impl IntoIterator<Item = (GpuIndex, Power)>,
) {
    for (gpu, cap) in others {
        let known = caps.entry(gpu).or_insert(cap);
        *known = cap.max(*known);
    }
}

/// The generation of the order that the node's last power report reflects.
fn reported_generation(state: &NodeState) -> u64 {
    state.power.as_ref().map_or(0, |(report, _)| report.observed_generation)
}

/// Notes the caps of the order in force, which an order with these settings replaces.
pub(super) fn note_replaced(state: &mut NodeState, gpus: &[DesiredGpu]) {
    let reported = reported_generation(state);
    state.replaced_caps.forget(reported);
    let last = state.desired.as_ref();
    let last = last.filter(|last| last.generation >= reported && last.gpus != gpus);
    if let Some((generation, caps)) = last.map(|last| (last.generation, caps(state, &last.gpus))) {
        state.replaced_caps.add(generation, caps);
    }
}

/// The highest cap of each GPU by the order in force and by those that the node may still carry out.
fn highest_ordered(state: &NodeState) -> BTreeMap<GpuIndex, Power> {
    let in_force = state.desired.as_ref().map(|last| caps(state, &last.gpus));
    let mut highest = in_force.unwrap_or_default();
    let reported = reported_generation(state);
    let replaced = state.replaced_caps.0.iter().filter(|(generation, _)| *generation >= reported);
    for (_, caps) in replaced {
        raise_to(&mut highest, caps.clone());
    }
    highest
}

/// The cap that a GPU has without an ordered one.
fn default_cap(gpu: &AppliedGpu) -> Option<Power> {
    gpu.cap_mw_default.or(gpu.cap_mw_max)
}

/// The cap of each GPU that has one by these settings.
fn caps(state: &NodeState, gpus: &[DesiredGpu]) -> BTreeMap<GpuIndex, Power> {
    let reported = state.power.iter().flat_map(|(report, _)| &report.gpus);
    let cap = |gpu: &AppliedGpu| {
        let ordered = gpus.iter().find(|ordered| ordered.gpu == gpu.gpu);
        ordered.and_then(|ordered| ordered.cap_mw).or_else(|| default_cap(gpu))
    };
    reported.filter_map(|gpu| Some((gpu.gpu, cap(gpu)?))).collect()
}

/// Whether a GPU of the node may have a higher cap than these settings or the order in force.
fn has_higher_caps(state: &NodeState, gpus: &[DesiredGpu]) -> bool {
    let mut caps = caps(state, gpus);
    if let Some(last) = &state.desired {
        for (gpu, ordered) in self::caps(state, &last.gpus) {
            caps.entry(gpu).and_modify(|cap| *cap = (*cap).min(ordered));
        }
    }
    let ordered = highest_ordered(state);
    let reported = state.power.iter().flat_map(|(report, _)| &report.gpus);
    // Caps of GPUs in MIG mode are not Wattle's, and a GPU without caps cannot lower one.
    reported.filter(|gpu| gpu.sets_caps()).any(|gpu| {
        let at_most =
            gpu.cap_mw.map(|cap| ordered.get(&gpu.gpu).map_or(cap, |other| cap.max(*other)));
        at_most.zip(caps.get(&gpu.gpu)).is_some_and(|(at_most, next)| at_most > *next)
    })
}

/// Whether the node's power agent only advises: ordered caps are not set.
fn advises(state: &NodeState) -> bool {
    state.power.as_ref().is_some_and(|(report, _)| report.advise_only)
}

/// The settings with the caps of the order in force where they would rise on these GPUs.
fn without_raises(
    state: &NodeState,
    gpus: &[DesiredGpu],
    holds: impl Fn(GpuIndex) -> bool,
) -> Vec<DesiredGpu> {
    let next = caps(state, gpus);
    let in_force = match &state.desired {
        Some(last) => caps(state, &last.gpus),
        None => state
            .power
            .iter()
            .flat_map(|(report, _)| &report.gpus)
            .filter_map(|gpu| Some((gpu.gpu, gpu.cap_mw?)))
            .collect(),
    };
    let mut gpus: BTreeMap<GpuIndex, DesiredGpu> = gpus.iter().map(|gpu| (gpu.gpu, *gpu)).collect();
    for (gpu, cap) in next.into_iter().filter(|(gpu, _)| holds(*gpu)) {
        if let Some(before) = in_force.get(&gpu).filter(|before| **before < cap) {
            let unset = DesiredGpu { gpu, cap_mw: None, clock_mhz_max: None };
            gpus.entry(gpu).or_insert(unset).cap_mw = Some(*before);
        }
    }
    gpus.into_values().collect()
}

impl Nodes {
    /// Notes which nodes have not reported a reduction yet; called before orders are written.
    pub(in crate::live) fn note_reductions(&mut self, now: Timestamp, controller: &LiveController) {
        let limits = controller.limits();
        if !limits.is_power_limited() {
            return;
        }
        let limited: Vec<NodeId> =
            self.states.keys().filter(|node| limits.limits_power_of(node)).cloned().collect();
        for node in limited {
            let gpus = self.caps_of(&node, controller);
            let state = self.state_mut(&node);
            let answers = state.launch.is_some() && state.sleep.is_none();
            let reduces = answers && !advises(state) && has_higher_caps(state, &gpus);
            state.reduces_since = reduces.then(|| state.reduces_since.unwrap_or(now));
        }
    }

    /// Whether caps under a power limit wait: a node has not reported its reductions, and no plan has counted
    /// it with its caps yet.
    pub(super) fn raises_wait(&self, controller: &LiveController) -> bool {
        let is_counted = |node: &NodeId| {
            let state = controller.state();
            state.node_key(node).is_some_and(|key| state.node(key).unconfirmed.is_some())
        };
        controller.limits().is_power_limited()
            && (self.plan_is_outdated
                || self
                    .states
                    .iter()
                    .any(|(node, state)| state.reduces_since.is_some() && !is_counted(node)))
    }

    /// The jobs that may be ordered now, and whether a start is left for later.
    ///
    /// A start that an earlier placer decided and did not order waits for the first plan in which the power of
    /// its GPUs is known: until then its GPUs have no caps within the limit.
    pub(super) fn startable(
        &self,
        node: &NodeId,
        jobs: Vec<DesiredJob>,
        raises_wait: bool,
        records: &JobRecords,
        controller: &LiveController,
    ) -> (Vec<DesiredJob>, bool) {
        let is_planned = is_metered(node, controller) && !self.plan_is_outdated;
        let limited = controller.limits().limits_power_of(node);
        let state = self.states.get(node).filter(|_| limited);
        let state = state.filter(|state| !is_planned || (raises_wait && advises(state)));
        let Some(state) = state else { return (jobs, false) };
        let starts = |job: &DesiredJob| {
            let record = records.get(&job.job);
            let mut ordered = state.desired.iter().flat_map(|last| &last.jobs);
            // The site's scheduler starts the jobs that it places.
            record.is_some_and(|record| {
                record.phase == JobPhase::Starting && !placed_by_site(&record.spec)
            }) && !ordered.any(|last| {
                (&last.job, &last.admission, last.attempt)
                    == (&job.job, &job.admission, job.attempt)
            })
        };
        let all = jobs.len();
        let others: Vec<DesiredJob> = jobs.into_iter().filter(|job| !starts(job)).collect();
        let is_left = others.len() < all;
        (others, is_left)
    }

    /// The settings that may be ordered now, and whether a raise is left for later.
    pub(super) fn orderable(
        &self,
        node: &NodeId,
        gpus: Vec<DesiredGpu>,
        raises_wait: bool,
        records: &JobRecords,
        controller: &LiveController,
    ) -> (Vec<DesiredGpu>, bool) {
        let limited = controller.limits().limits_power_of(node);
        let state = self.states.get(node).filter(|state| limited && !advises(state));
        let Some(state) = state else { return (gpus, false) };
        let waits = raises_wait || state.reduces_since.is_some() || !is_metered(node, controller);
        let stopping = stopping_gpus(state, records);
        let lowered = without_raises(state, &gpus, |gpu| waits || stopping.contains(&gpu));
        let waits = waits && caps(state, &lowered) != caps(state, &gpus);
        (lowered, waits)
    }

    /// The caps of the GPUs with jobs of a node that does not obey: silent, or with caps above its order.
    /// `None` if it obeys, or no power limit covers it.
    fn unconfirmed_caps(
        &self,
        now: Timestamp,
        node: &NodeId,
        controller: &LiveController,
    ) -> Option<UnconfirmedCaps> {
        let state = self.states.get(node)?;
        if !controller.limits().limits_power_of(node) {
            return None;
        }
        if let Some(sleep) = state.sleep {
            // It draws the power of a node without jobs until it sleeps.
            let key = controller.state().node_key(node)?;
            let facts = &controller.state().node(key).facts;
            let falls_asleep = sleep.state == SleepState::EnteringSleep;
            let watts = facts.watts.filter(|_| falls_asleep)?;
            let awake = watts.host + (0..facts.gpus).map(|_| watts.gpu_idle).sum::<Power>();
            let power = awake.saturating_sub(watts.asleep);
            return Some(UnconfirmedCaps { gpus: 0, power });
        }
        let patience = self.config.node_stale_after();
        let is_late = |at: Timestamp| now.since(at.max(self.reports_valid_from)) > patience;
        let (report, power_at) = state.power.as_ref()?;
        let (launch, launch_at) = state.launch.as_ref()?;
        let silent = is_late(*power_at) || is_late(*launch_at);
        let refuses = state.reduces_since.is_some_and(is_late);
        if !silent && !refuses {
            return None;
        }
        let ordered = if advises(state) { BTreeMap::new() } else { highest_ordered(state) };
        let cap_at_most = |gpu: &AppliedGpu| {
            let reported = gpu.cap_mw.or_else(|| default_cap(gpu));
            reported.max(ordered.get(&gpu.gpu).copied()).unwrap_or_default()
        };
        // The GPUs of the jobs that run, and of those that the node may start before it reports.
        let mut busy: Vec<GpuIndex> = launch
            .jobs
            .iter()
            .filter(|job| matches!(job.state, LaunchState::Running | LaunchState::Stopping))
            .flat_map(|job| &job.gpus)
            .chain(state.desired.iter().flat_map(|last| last.jobs.iter().flat_map(|job| &job.gpus)))
            .copied()
            .collect();
        busy.sort_unstable();
        busy.dedup();
        let gpus = report.gpus.iter().filter(|gpu| busy.contains(&gpu.gpu));
        // Caps are rounded up to entire watts.
        let rounded = |gpu| cap_at_most(gpu).saturating_sub(Power::from_w(1));
        let power = gpus.clone().map(rounded).sum();
        Some(UnconfirmedCaps { gpus: gpus.count() as u32, power })
    }

    /// Counts a node on which a cap is not set with the caps that it has: its power agent only advises, or one of
    /// its GPUs supports no cap.
    pub(super) fn count_fixed(&mut self, turn: &mut Turn<'_>, node: &NodeId) {
        let Some(state) = self.states.get(node) else { return };
        let reported = state.power.iter().flat_map(|(report, _)| &report.gpus);
        let cap = |gpu: &AppliedGpu| gpu.cap_mw.or_else(|| default_cap(gpu));
        let is_fixed = advises(state) || reported.clone().any(|gpu| gpu.cap_unsupported);
        let caps = is_fixed.then(|| FixedCaps { highest: reported.filter_map(cap).max() });
        let Some(key) = turn.controller.state().node_key(node) else { return };
        if turn.controller.state().node(key).fixed_caps != caps {
            turn.controller.events().caps_fixed(key, caps);
            self.outdate_plan();
            turn.outbox.plan_soon();
        }
    }

    /// Counts a node that does not obey with the power that its caps permit, and raises an alarm.
    pub(super) fn count_unconfirmed(&mut self, turn: &mut Turn<'_>, node: &NodeId) {
        let caps = self.unconfirmed_caps(turn.now, node, turn.controller);
        let Some(key) = turn.controller.state().node_key(node) else { return };
        if turn.controller.state().node(key).unconfirmed == caps {
            return;
        }
        let known = turn.controller.state().node(key).unconfirmed.is_some_and(|caps| caps.gpus > 0);
        turn.controller.events().power_unconfirmed(key, caps);
        self.outdate_plan();
        turn.outbox.plan_soon();
        if let Some(caps) = caps.filter(|caps| !known && caps.gpus > 0) {
            turn.outbox.alarm(format!(
                "{node} does not confirm its caps: its GPUs with jobs count with {} W in the power limit \
                 until it does; check its network, its power agent and its launcher",
                caps.power.as_mw() / 1_000
            ));
        }
    }
}

/// Whether the power of the node's GPUs and host is known. After a restart it is not until the ledger's next
/// entry; then a plan has no caps.
fn is_metered(node: &NodeId, controller: &LiveController) -> bool {
    let state = controller.state();
    state.node_key(node).is_some_and(|key| {
        let gpu_type = &state.node(key).facts.gpu_type;
        state.gpu_power(gpu_type).is_some()
    })
}

/// The GPUs of the jobs that stop on a node. Plans have no setting of such a job; it keeps its cap until it
/// has stopped.
fn stopping_gpus(state: &NodeState, records: &JobRecords) -> BTreeSet<GpuIndex> {
    let ordered = state.desired.iter().flat_map(|last| &last.jobs);
    let stops = ordered.filter(|job| {
        let record = records.get(&job.job);
        record.is_some_and(|record| record.phase == JobPhase::Stopping)
    });
    stops.flat_map(|job| job.gpus.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_replaced_orders_keep_their_highest_caps() {
        let mut replaced = ReplacedCaps::default();
        for generation in 1..=100 {
            let cap = if generation == 3 { 300 } else { 100 + generation };
            replaced.add(generation, BTreeMap::from([(0, Power::from_w(cap))]));
        }
        assert_eq!(replaced.0.len(), REPLACED_MAX);
        let highest = |replaced: &ReplacedCaps| replaced.0.iter().map(|(_, caps)| caps[&0]).max();
        assert_eq!(highest(&replaced), Some(Power::from_w(300)));
        replaced.forget(90);
        assert_eq!(replaced.0.len(), 11);
        assert_eq!(highest(&replaced), Some(Power::from_w(200)));
    }
}
