//! Power limits, enforced on the plan of any policy.
//!
//! * [`Bound`]s bound the expected power of the site, of feeders and of single nodes at any instant
//!   ([`PlanningLimits::power_max`](crate::PlanningLimits::power_max),
//!   [`PlanningLimits::power_bounds`](crate::PlanningLimits::power_bounds)). Settings are lowered first, to
//!   the highest power per GPU at which the plan fits, but not below a job's floor: the setting with the most
//!   work per charged joule ([`settings`]). If the floors do not suffice, the last awaited starts of the plan and
//!   their nodes' wake-ups are dropped ([`awaited`]), then the last starts are held back, then the jobs that
//!   arrived last are stopped with a checkpoint, if they can be. Until these have stopped they have their settings
//!   of least power. Only the jobs that are left then, the first one or those that cannot stop, go below their
//!   floors. A bound of some nodes affects only the jobs on them. During a grid event the promise of a job is its
//!   floor, and within the site's limit settings have the greatest weighted speed in place of a common power
//!   ([`promised`]).
//! * [`PlanningLimits::admission_limit`](crate::PlanningLimits::admission_limit) holds back new jobs with
//!   which the minimum power would exceed it. Jobs that change their size continue.
//! * [`PlanningLimits::preemption_limit`](crate::PlanningLimits::preemption_limit) pauses the jobs that
//!   arrived last while the minimum power of running jobs exceeds it.
//! * Where energy has a price and the policy chooses no settings, they are chosen here by PowerFlow's rule
//!   ([`settings`]), so that a budget can steer every policy.
//!
//! Settings that were lowered here are raised here. The same input gives the same plan, so a plan that was
//! applied leaves nothing to do.

mod amended_plan;
mod awaited;
mod item;
mod promised;
mod settings;

use std::collections::{BTreeMap, BTreeSet};

use wattle_common::Power;
use wattle_common::job::GpuSetting;

use crate::plan::capabilities::Capabilities;
use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{AwaitedStart, Blocked, Decision, NodeDecision, Plan, SettingChange};
use crate::power::bounds::{Bound, Counted, held_back};
use crate::power::limits::item::{Item, Role};
use crate::power::limits::settings::{floor, ladder, priced_setting, promised_floor};

pub(crate) use crate::power::limits::settings::{economical_setting, least_gpu_w, settings_of};
use crate::power::model::{
    Estimate, JobGpus, PowerEstimate, PowerSum, baseline_w, idle_w, whole_nodes,
};
use crate::state::gpu_set::{GpuSet, JobKey, NodeGpus, NodeKey};
use crate::state::job::{Job, State};

/// What the limits changed in a round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PowerLimitsReport {
    /// Jobs that do not start.
    pub held_back: BTreeMap<JobKey, Reason>,
    /// Running jobs that are stopped.
    pub stopped: BTreeMap<JobKey, Reason>,
    /// Settings that differ from the plan's.
    pub settings: BTreeMap<JobKey, SettingChange>,
    /// Nodes that are not woken.
    pub not_woken: Vec<NodeKey>,
    /// Decisions about the nodes of jobs that do not start.
    pub put_to_sleep: Vec<NodeDecision>,
    /// Whether a limit holds jobs back or lowers a setting, in this round or since an earlier one.
    pub binds: bool,
}

impl PowerLimitsReport {
    /// Whether the limits changed the plan.
    #[must_use]
    pub fn has_changes(&self) -> bool {
        *self != Self { binds: self.binds, ..Self::default() }
    }
}

/// Changes the plan until it is within all limits. Nodes that are `needed` soon stay awake.
pub(crate) fn enforce(
    policy: Capabilities,
    input: PlanningInput<'_>,
    needed: &BTreeSet<NodeKey>,
    plan: &mut Plan,
) -> PowerLimitsReport {
    let limits = input.limits;
    let is_limited = limits.is_power_limited()
        || limits.admission_limit.is_some()
        || limits.preemption_limit.is_some();
    let has_setting =
        |job: &Job| matches!(&job.state, State::Running { setting, .. } if !setting.is_default());
    let chooses_settings = !policy.sets_gpus
        && (limits.price_sets_clocks
            || is_limited
            || input.state.running().any(|(_, job)| has_setting(job)));
    if !is_limited && !chooses_settings {
        return PowerLimitsReport::default();
    }
    let mut limited = LimitedPlan::new(policy, input, plan);
    limited.needed.extend(needed);
    limited.pause_for_events();
    if let Some(limit) = limits.preemption_limit {
        limited.pause_newest(limit.as_w());
    }
    if let Some(limit) = limits.admission_limit {
        limited.hold_back_new(limit.as_w());
    }
    let bounds = Bound::all(input);
    let mut drawn = None;
    for (index, bound) in bounds.iter().enumerate() {
        if limited.admit_awaited(bound) {
            drawn = None;
        }
        let by_node = drawn.get_or_insert_with(|| limited.by_node_w());
        if !limited.is_clearly_within(bound, by_node) {
            limited.fit(index, bound);
            drawn = None;
        }
    }
    for bound in &bounds {
        limited.wait_for_stops(bound);
    }
    let (amended, report) = limited.into_plan(&bounds);
    *plan = amended;
    report
}

/// A plan and the changes that the limits make to it.
struct LimitedPlan<'a> {
    input: PlanningInput<'a>,
    reduction: PowerEstimate,
    /// Whether the energy price chooses the settings, in place of the policy.
    is_priced: bool,
    plan: &'a Plan,
    items: Vec<Item<'a>>,
    /// The starts that wait for nodes to wake, while a node is to wake for them.
    awaited: Vec<Item<'a>>,
    /// The nodes that the plan wakes and that are not woken.
    not_woken: BTreeSet<NodeKey>,
    /// The nodes that do not sleep.
    needed: BTreeSet<NodeKey>,
    /// Starts that are held back.
    held_back: BTreeMap<JobKey, Reason>,
    /// The first job that waits for power.
    blocked: Option<Blocked>,
    /// Running jobs that are stopped.
    stopped: BTreeMap<JobKey, Reason>,
    /// Running jobs whose settings do not change.
    keep_settings: BTreeSet<JobKey>,
}

impl<'a> LimitedPlan<'a> {
    fn new(policy: Capabilities, input: PlanningInput<'a>, plan: &'a Plan) -> Self {
        let mut limited = Self {
            input,
            reduction: PowerEstimate::under(policy),
            is_priced: !policy.sets_gpus && input.limits.price_sets_clocks,
            plan,
            items: Vec::new(),
            awaited: Vec::new(),
            not_woken: BTreeSet::new(),
            needed: BTreeSet::new(),
            held_back: BTreeMap::new(),
            blocked: None,
            stopped: BTreeMap::new(),
            keep_settings: BTreeSet::new(),
        };
        let desired = |gpus: JobGpus<'_>, setting: GpuSetting| {
            if policy.sets_gpus {
                setting
            } else if input.limits.price_sets_clocks {
                priced_setting(input, gpus)
            } else {
                GpuSetting::DEFAULT
            }
        };
        let stops = |d: &&Decision| matches!(d, Decision::Stop { .. } | Decision::Undo { .. });
        let stopping: BTreeSet<JobKey> =
            plan.decisions.iter().filter(stops).map(Decision::job).collect();
        let set: BTreeMap<JobKey, GpuSetting> = plan
            .decisions
            .iter()
            .filter_map(|decision| match decision {
                Decision::Set { job, setting, .. } => Some((*job, *setting)),
                _ => None,
            })
            .collect();
        for (key, job) in input.state.running() {
            let Some(gpu_type) = input.state.gpu_type_of(job) else { continue };
            let (on, present, role) = match &job.state {
                State::Running { on, setting, .. } if stopping.contains(&key) => {
                    (on, *setting, Role::Stops)
                }
                State::Running { on, setting, .. } => (on, *setting, Role::Continues),
                State::Stopping { on, setting } => (on, *setting, Role::Stops),
                State::Queued => continue,
            };
            let gpus = JobGpus::on(input, job, gpu_type, on);
            let planned = set.get(&key).copied().unwrap_or(present);
            let first = if role == Role::Stops { present } else { desired(gpus, planned) };
            let ladder = ladder(input, gpus, first);
            limited.items.push(limited.item(key, gpus, on, role, planned, ladder));
        }
        let start = |limited: &Self, key: JobKey, on: &'a GpuSet, setting: GpuSetting| {
            let (job, here) = input.state.job(key).zip(on.by_node.first())?;
            let gpu_type = &input.state.node(here.node).facts.gpu_type;
            let gpus = JobGpus::on(input, job, gpu_type, on);
            let role = Role::Starts { is_new: job.next_gpus.is_none() };
            let ladder = ladder(input, gpus, desired(gpus, setting));
            Some(limited.item(key, gpus, on, role, setting, ladder))
        };
        for decision in &plan.decisions {
            let Decision::Start { job, on, setting, .. } = decision else { continue };
            limited.items.extend(start(&limited, *job, on, *setting));
        }
        if plan.nodes.iter().any(NodeDecision::is_wake) {
            for AwaitedStart { job, on, setting } in &plan.awaited {
                limited.awaited.extend(start(&limited, *job, on, *setting));
            }
        }
        limited
    }

    fn item(
        &self,
        key: JobKey,
        gpus: JobGpus<'a>,
        on: &'a GpuSet,
        role: Role,
        planned: GpuSetting,
        ladder: Vec<(GpuSetting, f64)>,
    ) -> Item<'a> {
        let minimum = |estimate| {
            let Some(here) = on.by_node.first() else { return 0.0 };
            let (node, setting) = (self.input.state.node(here.node), ladder[0].0);
            self.reduction.minimum_above_idle_w(self.input, node, gpus, setting, estimate)
        };
        let (minimum_w, minimum_expected_w) =
            (minimum(Estimate::Upper), minimum(Estimate::Expected));
        let job = gpus.job;
        let promise =
            self.input.limits.promises.of(key, job, (gpus.gpus, Some(on)), self.input.now());
        let idle_w = |here: &NodeGpus| idle_w(self.input, self.input.state.node(here.node));
        let idle_w = on.by_node.first().map_or(0.0, idle_w);
        // The work of a job that stops counts no more.
        let floor = match (role, &promise) {
            (Role::Stops, _) => ladder.len() - 1,
            (_, Some(promise)) => promised_floor(gpus, promise, &ladder, idle_w),
            (_, None) => floor(self.input, gpus, &ladder),
        };
        Item {
            key,
            job,
            on,
            role,
            promise,
            floor,
            ladder,
            chosen: 0,
            lowered_by: None,
            planned,
            minimum_w,
            minimum_expected_w,
        }
    }

    /// Jobs that the limits stop draw power until they have stopped: what does not fit beside them starts and
    /// wakes in a later round.
    fn wait_for_stops(&mut self, bound: &Bound) {
        if self.stopped.is_empty() {
            return;
        }
        let is_start = |i: &usize| {
            let item = &self.items[*i];
            item.starts() && !self.held_back.contains_key(&item.key) && bound.covers_any(item.on)
        };
        let starts: Vec<usize> = (0..self.items.len()).rev().filter(is_start).collect();
        let power_w = |n: usize| self.with_stopping_w(bound, &starts[..n], Item::chosen_w);
        let count = fewest(starts.len(), |n| power_w(n) <= bound.limit_w);
        if let Some(last) = count.checked_sub(1) {
            let reason = bound.hold_reason(power_w(last));
            self.hold_back(&starts[..count], starts[last], reason);
        }
        if self.with_stopping_w(bound, &[], Item::chosen_w) > bound.limit_w {
            let wakes = self.node_decisions().filter(|decision| decision.is_wake());
            let wakes = wakes.map(NodeDecision::node).filter(|node| bound.covers(*node));
            let wakes: Vec<NodeKey> = wakes.collect();
            self.not_woken.extend(wakes);
        }
    }

    /// Expected power within a bound while stopped jobs still run, at their lowest settings, if each other job
    /// has this power of each GPU; without these items, watts.
    fn with_stopping_w(
        &self,
        bound: &Bound,
        without: &[usize],
        gpu_w: impl Fn(&Item<'a>) -> f64,
    ) -> f64 {
        let without: BTreeSet<JobKey> = without.iter().map(|&i| self.items[i].key).collect();
        let counts = |item: &&Item<'a>| {
            bound.covers_any(item.on)
                && !self.held_back.contains_key(&item.key)
                && !without.contains(&item.key)
        };
        let mut sum = PowerSum::new(self.input);
        for item in self.items.iter().filter(counts) {
            let stops = self.stopped.contains_key(&item.key);
            sum.add(item.on, if stops { item.lowest_w() } else { gpu_w(item) });
        }
        sum.bounded_w(bound, self.node_decisions())
    }

    /// Whether an item is neither held back nor stopped.
    fn remains(&self, item: &Item<'a>) -> bool {
        !self.held_back.contains_key(&item.key) && !self.stopped.contains_key(&item.key)
    }

    /// Expected power within a bound if each remaining job has this power of each GPU, watts.
    fn bounded_w(&self, bound: &Bound, gpu_w: impl Fn(&Item<'a>) -> f64) -> f64 {
        self.bounded_without_w(bound, &[], gpu_w)
    }

    /// Expected power within a bound if each remaining job has this power of each GPU, without these items, watts.
    fn bounded_without_w(
        &self,
        bound: &Bound,
        without: &[usize],
        gpu_w: impl Fn(&Item<'a>) -> f64,
    ) -> f64 {
        let without: BTreeSet<JobKey> = without.iter().map(|&i| self.items[i].key).collect();
        let mut sum = PowerSum::new(self.input);
        let counts = |item: &&Item<'a>| {
            bound.covers_any(item.on) && self.remains(item) && !without.contains(&item.key)
        };
        for item in self.items.iter().filter(counts) {
            sum.add(item.on, gpu_w(item));
        }
        sum.bounded_w(bound, self.node_decisions())
    }

    /// The node decisions without the wake-ups that are dropped.
    fn node_decisions(&self) -> impl Iterator<Item = &'a NodeDecision> {
        let is_dropped = |decision: &NodeDecision| {
            decision.is_wake() && self.not_woken.contains(&decision.node())
        };
        self.plan.nodes.iter().filter(move |decision| !is_dropped(decision))
    }

    /// Baseline power of the cluster without the wake-ups of the plan, watts.
    fn baseline_w(&self) -> f64 {
        let decisions = self.plan.nodes.iter().filter(|decision| !decision.is_wake());
        baseline_w(self.input, whole_nodes(self.input), decisions)
    }

    /// Admission. From the first new job on with which the minimum power would exceed `limit_w`, no new job
    /// starts and no node wakes. Otherwise nodes wake for as many awaited starts as the limit admits.
    /// A job alone is admitted on its mean power; otherwise it is never measured.
    fn hold_back_new(&mut self, limit_w: f64) {
        let stays = |item: &&Item<'_>| !item.is_new() && !self.stopped.contains_key(&item.key);
        let mut jobs_w: f64 = self.items.iter().filter(stays).map(|item| item.minimum_w).sum();
        let baseline_w = self.baseline_w();
        let mut is_first = !self.items.iter().any(|item| stays(&item));
        for i in 0..self.items.len() {
            let item = &self.items[i];
            if !item.is_new() {
                continue;
            }
            let is_alone = std::mem::take(&mut is_first);
            jobs_w += if is_alone { item.minimum_expected_w } else { item.minimum_w };
            if baseline_w + jobs_w > limit_w {
                let rest = (i..self.items.len()).filter(|&i| self.items[i].is_new());
                let rest: Vec<usize> = rest.collect();
                self.hold_back(&rest, i, held_back(baseline_w + jobs_w, limit_w));
                let awaited: Vec<usize> = (0..self.awaited.len()).collect();
                self.drop_awaited(&awaited, None);
                return;
            }
        }
        self.admit_awaited_new(jobs_w, is_first, limit_w);
    }

    /// Holds back these items, of which `first` is the first in the plan.
    fn hold_back(&mut self, items: &[usize], first: usize, reason: Reason) {
        for &item in items {
            self.held_back.entry(self.items[item].key).or_insert_with(|| reason.clone());
        }
        self.blocked = Some(Blocked { job: self.items[first].key, reason });
    }

    /// The power of each node at the chosen settings, in node order, watts.
    fn by_node_w(&self) -> Vec<f64> {
        let mut sum = PowerSum::new(self.input);
        for item in self.items.iter().filter(|item| self.remains(item)) {
            sum.add(item.on, item.chosen_w());
        }
        sum.by_node_w(self.node_decisions())
    }

    /// Whether the plan is within a feeder's limit by more than rounding, so that nothing gives way for it. A large
    /// site has many feeders, of which few bind.
    fn is_clearly_within(&self, bound: &Bound, by_node_w: &[f64]) -> bool {
        if !bound.is_local() || bound.counted == Counted::Caps {
            return false;
        }
        let is_known = |key: NodeKey| {
            self.input.state.gpu_power(&self.input.state.node(key).facts.gpu_type).is_some()
        };
        let mut drawn_w = 0.0;
        for (key, share) in bound.shares(self.input.state) {
            if !is_known(key) {
                return false;
            }
            drawn_w += share * by_node_w[key.index()];
        }
        drawn_w < bound.limit_w - 1e-6
    }

    /// A power bound: holds back starts, stops jobs, and lowers settings until the expected power is within it.
    fn fit(&mut self, index: usize, bound: &Bound) {
        let limit_w = bound.limit_w;
        let covered = |item: &Item<'_>| bound.covers_any(item.on);
        let is_known = self.items.iter().all(|item| !covered(item) || self.is_power_known(item));
        if is_known && self.bounded_w(bound, Item::chosen_w) <= limit_w {
            return;
        }
        let fits = |power_w: f64| is_known && power_w <= limit_w;
        let is_start = |i: &usize| self.items[*i].starts() && covered(&self.items[*i]);
        let starts: Vec<usize> = (0..self.items.len()).rev().filter(is_start).collect();
        let mut stoppable = self.newest_stoppable();
        stoppable.retain(|&i| covered(&self.items[i]));
        let others = self.items.iter().any(|item| {
            covered(item)
                && matches!(item.role, Role::Continues | Role::Stops)
                && !stoppable.iter().any(|&i| self.items[i].key == item.key)
        });
        // In the order in which they give way. One that would be left alone goes below its floor instead.
        let in_turn: Vec<usize> = starts.iter().chain(&stoppable).copied().collect();
        let fewest_at = |gpu_w: fn(&Item<'a>) -> f64| {
            fewest(in_turn.len(), |n| fits(self.bounded_without_w(bound, &in_turn[..n], gpu_w)))
        };
        let mut count = fewest_at(Item::floor_w);
        if !others && count == in_turn.len() && is_known {
            count = fewest_at(Item::lowest_w).max(count.saturating_sub(1));
        }
        let held = count.min(starts.len());
        let is_held_back = |n: &usize| self.held_back.contains_key(&self.items[starts[*n]].key);
        if let Some(last) = (0..held).rev().find(|n| !is_held_back(n)) {
            let power_w = self.bounded_without_w(bound, &starts[..last], Item::floor_w);
            self.hold_back(&starts[..held], starts[last], bound.hold_reason(power_w));
            self.keep_awake(bound, &starts[last..held], power_w);
        }
        if !is_known {
            // After a restart, until the ledger's next entry: running jobs keep their settings.
            let kept = self.items.iter().filter(|item| covered(item)).map(|item| item.key);
            self.keep_settings.extend(kept);
            return;
        }
        for &i in &in_turn[held..count] {
            self.stopped.entry(self.items[i].key).or_insert_with(|| bound.stop_reason());
        }
        // Nothing else can give where the floors of the jobs that are left exceed the limit, together with the
        // jobs that are stopped until these have stopped.
        let to_floor = self.with_stopping_w(bound, &[], Item::floor_w) <= limit_w;
        // Jobs without a promise go below their floors before those with one.
        let keeps_promises = to_floor || {
            let least_w = |item: &Item<'a>| match item.promise {
                Some(_) => item.floor_w(),
                None => item.lowest_w(),
            };
            self.with_stopping_w(bound, &[], least_w) <= limit_w
        };
        let last = |item: &Item<'_>| {
            let at_floor = to_floor || (keeps_promises && item.promise.is_some());
            if at_floor { item.floor } else { item.ladder.len() - 1 }
        };

        let rungs = self.items.iter().filter(|item| covered(item));
        let mut levels: Vec<f64> =
            rungs.flat_map(|item| item.ladder[..=last(item)].iter().map(|rung| rung.1)).collect();
        levels.sort_by(f64::total_cmp);
        levels.dedup();
        // The highest power per GPU that fits, or the lowest one if none does. Other bounds may have lowered
        // a job already.
        let rung = |item: &Item<'_>, gpu_w: f64| {
            if !covered(item) {
                return item.chosen;
            }
            item.rung_at(gpu_w, last(item)).max(item.chosen)
        };
        let fits = |gpu_w: f64| {
            self.with_stopping_w(bound, &[], |item| item.ladder[rung(item, gpu_w)].1) <= limit_w
        };
        let chosen = self.by_weight(bound, last).unwrap_or_else(|| {
            let level = levels.partition_point(|&gpu_w| fits(gpu_w)).saturating_sub(1);
            let gpu_w = levels.get(level).copied().unwrap_or(0.0);
            self.items.iter().map(|item| rung(item, gpu_w)).collect()
        });
        for (item, lower) in self.items.iter_mut().zip(chosen) {
            if lower > item.chosen {
                (item.chosen, item.lowered_by) = (lower, Some(index));
            }
        }
    }

    /// Preemption. Stops the jobs that arrived last while the minimum power of running jobs exceeds
    /// `limit_w`. A job alone counts with its mean power, as at its admission.
    fn pause_newest(&mut self, limit_w: f64) {
        let baseline_w = self.baseline_w();
        let continues = |item: &&Item<'_>| {
            matches!(item.role, Role::Continues | Role::Starts { is_new: false })
                && !self.stopped.contains_key(&item.key)
        };
        let stoppable = self.newest_stoppable();
        let power_w = |paused: usize| {
            let paused: BTreeSet<JobKey> =
                stoppable[..paused].iter().map(|&i| self.items[i].key).collect();
            let running = self.items.iter().filter(continues);
            let running: Vec<&Item<'_>> =
                running.filter(|item| !paused.contains(&item.key)).collect();
            baseline_w
                + match running[..] {
                    [alone] => alone.minimum_expected_w,
                    _ => running.iter().map(|item| item.minimum_w).sum::<f64>(),
                }
        };
        // The power of a job's GPUs is not known yet.
        if power_w(0).is_infinite() {
            return;
        }
        let count = fewest(stoppable.len(), |n| power_w(n) <= limit_w);
        let (drawn, above) = (Power::from_w_f64(power_w(0)), Power::from_w_f64(limit_w));
        let paused: Vec<JobKey> = stoppable[..count].iter().map(|&i| self.items[i].key).collect();
        let reason = Reason::Paused { drawn, above };
        self.stopped.extend(paused.into_iter().map(|job| (job, reason.clone())));
    }

    /// Whether the power of the job's GPUs and their hosts is known: their node's type was metered.
    fn is_power_known(&self, item: &Item<'_>) -> bool {
        item.on.by_node.iter().all(|here| {
            let gpu_type = &self.input.state.node(here.node).facts.gpu_type;
            self.input.state.gpu_power(gpu_type).is_some()
        })
    }

    /// The running jobs that can stop, the last arrival first.
    fn newest_stoppable(&self) -> Vec<usize> {
        // A promise decides about the pauses of its job ([`Self::pause_for_events`]).
        let can_stop = |item: &Item<'_>| {
            item.role == Role::Continues && item.job.facts.can_stop && item.promise.is_none()
        };
        let mut found: Vec<usize> =
            (0..self.items.len()).filter(|&i| can_stop(&self.items[i])).collect();
        found.sort_unstable_by_key(|&i| std::cmp::Reverse(self.items[i].job.arrival));
        found
    }
}

/// The least number of omissions, at most `most`, that is sufficient. Each further omission lowers the power.
fn fewest(most: usize, suffices: impl Fn(usize) -> bool) -> usize {
    let counts: Vec<usize> = (0..most).collect();
    counts.partition_point(|&count| !suffices(count))
}
