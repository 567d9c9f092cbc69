//! Bounds on what is drawn, the same for every policy: whatever it plans is made to keep them.
//!
//! * [`crate::PlanningLimits::power_max`] is never exceeded by what a plan is expected to draw. First settings are
//!   lowered, to the highest watts for each card at which all that is planned fits: a card that draws
//!   less anyway is left alone. If even the lowest do not fit, what the plan would start last is not
//!   started, nodes are not woken, and at last those that came last are stopped with a checkpoint,
//!   where they can be.
//! * [`crate::PlanningLimits::admission_limit`] only keeps what is new from starting, where all together would draw
//!   more even at their min_power; who is resized goes on.
//! * [`crate::PlanningLimits::preemption_limit`] pauses what runs, where that alone draws more even at its min_power:
//!   those that came last are stopped with a checkpoint, where they can be.
//! * Where energy has a price and the policy chooses no settings, each job's is chosen here, as
//!   PowerFlow chooses clocks: from the min_power up, as long as a step wins enough time for its
//!   energy. So every policy can be steered by a budget.
//!
//! What is lowered here is restored here. The policy sees what stands and plans on; the same input
//! always gives the same answer, so that a plan carried out leaves nothing to do.

use std::collections::{BTreeMap, BTreeSet};

use wattle_common::Power;
use wattle_common::job::GpuSetting;

use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{Blocked, Decision, NodeDecision, Plan};
use crate::policies::{Policy, put_to_sleep};
use crate::power::energy_cost::Charge;
use crate::power::model::{Cards, PowerEstimate, baseline_w, card_w, idle_w};
use crate::state::gpu_set::{GpuSet, JobKey, NodeGpus};
use crate::state::job::{Job, State};
use crate::state::operating_points::OperatingPoint;

/// Caps that are tried where no menu says anything: parts of what a card draws at most.
const CAP_PARTS: u32 = 20;

/// `plan` with every bound kept.
pub(crate) fn keep(policy: &dyn Policy, input: PlanningInput<'_>, plan: Plan) -> Plan {
    let bounded =
        [input.limits.power_max, input.limits.admission_limit, input.limits.preemption_limit];
    let bounded = bounded.iter().any(Option::is_some);
    let sets = !policy.capabilities().sets_cards
        && (input.limits.price_sets_clocks
            || bounded
            || input.state.running().any(|(_, job)| is_set(job)));
    if !bounded && !sets {
        return plan;
    }
    Bounded::of(policy, input, &plan).keep()
}

fn is_set(job: &Job) -> bool {
    matches!(&job.state, State::Running { setting, .. } if !setting.is_default())
}

/// What becomes of a job's draw.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// It runs, and goes on.
    Runs,
    /// It draws until it has stopped.
    Leaves,
    /// It is to start; in the order of the plan.
    Starts { is_new: bool },
}

/// A job and the ways it may be set, the one that is wanted first, each drawing less than the last.
struct Item<'a> {
    key: JobKey,
    job: &'a Job,
    on: &'a GpuSet,
    role: Role,
    ways: Vec<(GpuSetting, f64)>,
    chosen: usize,
    /// What all its cards draw above idle at its min_power, watts: the most that may be.
    thrifty_w: f64,
    /// The same as expected.
    expected_w: f64,
}

impl Item<'_> {
    fn watts(&self) -> f64 {
        self.ways[self.chosen].1
    }
    fn least_w(&self) -> f64 {
        self.ways.last().map_or(0.0, |way| way.1)
    }
}

struct Bounded<'a> {
    input: PlanningInput<'a>,
    thrift: PowerEstimate,
    plan: &'a Plan,
    items: Vec<Item<'a>>,
    /// How many of the nodes that the plan wakes do wake, the first ones.
    wakes: usize,
    /// What is not started after all, and why.
    held: BTreeSet<JobKey>,
    held_by: Option<Blocked>,
    stopped: BTreeMap<JobKey, Reason>,
}

fn wakes(node: &NodeDecision) -> bool {
    matches!(node, NodeDecision::Wake { .. })
}

/// What nodes are to do, where only the first so many of them wake.
fn first_wakes(nodes: &[NodeDecision], most: usize) -> impl Iterator<Item = &NodeDecision> {
    let mut woken = 0;
    nodes.iter().filter(move |node| {
        woken += usize::from(wakes(node));
        !wakes(node) || woken <= most
    })
}

/// The ways a job may be set on so many cards of a kind, from what is wanted down.
fn ways(
    input: PlanningInput<'_>,
    job: &Job,
    kind: &str,
    gpus: u32,
    wanted: GpuSetting,
) -> Vec<(GpuSetting, f64)> {
    let mut ways = vec![(wanted, card_w(input, job, kind, gpus, wanted))];
    if input.limits.power_max.is_none() {
        return ways;
    }
    let menu = job.menu_on(kind);
    let mut lower: Vec<(GpuSetting, f64)> = menu
        .map_or(&[][..], |menu| menu.with_gpus(gpus))
        .iter()
        .map(|choice| (choice.setting, card_w(input, job, kind, gpus, choice.setting)))
        .collect();
    lower.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if let Some(draw) = input.state.gpu_power(kind)
        && let Some(least) = draw.cap_least
    {
        let part = |k: u32| draw.most.scale(f64::from(k) / f64::from(CAP_PARTS));
        let caps = (1..CAP_PARTS).rev().map(part).filter(|cap| *cap > least).chain([least]);
        let floor = lower.last().map_or(f64::INFINITY, |way| way.1);
        let clock_mhz_max = lower.last().map_or(wanted, |way| way.0).clock_mhz_max;
        let capped = |cap: Power| (GpuSetting { cap_mw: Some(cap), clock_mhz_max }, cap.as_w());
        lower.extend(caps.filter(|cap| cap.as_w() < floor).map(capped));
    }
    for way in lower {
        if ways.last().is_some_and(|last| way.1 < last.1) {
            ways.push(way);
        }
    }
    ways
}

/// The setting at which a step up no longer wins `price` of time for its energy.
fn priced(input: PlanningInput<'_>, job: &Job, kind: &str, gpus: u32) -> GpuSetting {
    let menu = job.menu_on(kind);
    let choices = menu.map_or(&[][..], |menu| menu.with_gpus(gpus));
    if input.limits.price <= 0.0 {
        return GpuSetting::DEFAULT;
    }
    let charge = Charge::on(input, kind);
    let joules = |choice: &OperatingPoint| charge.joules_a_step(choice);
    let least = choices.iter().min_by(|a, b| joules(a).total_cmp(&joules(b)));
    let Some(mut at) = least else { return GpuSetting::DEFAULT };
    loop {
        let gain = |to: &OperatingPoint| {
            let won = 1.0 - at.steps_per_s / to.steps_per_s;
            let spent = joules(to) / joules(at) - 1.0;
            if spent > 0.0 { won / spent } else { f64::INFINITY }
        };
        let faster = choices.iter().filter(|to| to.steps_per_s > at.steps_per_s);
        match faster.max_by(|a, b| gain(a).total_cmp(&gain(b))) {
            Some(to) if gain(to) >= input.limits.price => at = to,
            _ => return at.setting,
        }
    }
}

impl<'a> Bounded<'a> {
    fn of(policy: &dyn Policy, input: PlanningInput<'a>, plan: &'a Plan) -> Self {
        let sets = policy.capabilities().sets_cards;
        let thrift = PowerEstimate::under(policy);
        // The most that may be, and what is expected.
        let thrifty_w = |job: &Job, on: &GpuSet, setting: GpuSetting| {
            let Some(spot) = on.by_node.first() else { return [0.0; 2] };
            let node = input.state.node(spot.node);
            let (kind, gpus) = (&node.facts.gpu_type, on.gpu_count());
            let most = thrift.of(input, job, kind, gpus, setting);
            let expected = thrift.expected(input, job, kind, gpus, setting);
            [most, expected]
                .map(|(gpus, card_w)| f64::from(gpus) * (card_w - idle_w(input, node)).max(0.0))
        };
        let mut bounded = Self {
            input,
            thrift,
            plan,
            items: Vec::new(),
            wakes: plan.nodes.iter().filter(|node| wakes(node)).count(),
            held: BTreeSet::new(),
            held_by: None,
            stopped: BTreeMap::new(),
        };
        let leaves: BTreeSet<JobKey> = plan
            .decisions
            .iter()
            .filter(|d| matches!(d, Decision::Stop { .. } | Decision::Undo { .. }))
            .map(Decision::job)
            .collect();
        let wanted = |job: &Job, kind: &str, gpus: u32, by_policy: GpuSetting| {
            if sets {
                by_policy
            } else if input.limits.price_sets_clocks {
                priced(input, job, kind, gpus)
            } else {
                GpuSetting::DEFAULT
            }
        };
        for (key, job) in input.state.running() {
            let Some(kind) = input.state.gpu_type_of(job) else { continue };
            let (on, now, role) = match &job.state {
                State::Running { on, setting, .. } if leaves.contains(&key) => {
                    (on, *setting, Role::Leaves)
                }
                State::Running { on, setting, .. } => (on, *setting, Role::Runs),
                State::Stopping { on } => (on, GpuSetting::DEFAULT, Role::Leaves),
                State::Queued => continue,
            };
            let gpus = on.gpu_count();
            let ways = if role == Role::Leaves {
                vec![(now, card_w(input, job, kind, gpus, now))]
            } else {
                let set = plan.decisions.iter().find_map(|decision| match decision {
                    Decision::Set { job, setting, .. } if *job == key => Some(*setting),
                    _ => None,
                });
                let setting = wanted(job, kind, gpus, set.unwrap_or(now));
                ways(input, job, kind, gpus, setting)
            };
            let [thrifty_w, expected_w] = thrifty_w(job, on, ways[0].0);
            bounded.items.push(Item { key, job, on, role, ways, chosen: 0, thrifty_w, expected_w });
        }
        for decision in &plan.decisions {
            let Decision::Start { job: key, on, setting, .. } = decision else { continue };
            let (Some(job), Some(spot)) = (input.state.job(*key), on.by_node.first()) else {
                continue;
            };
            let kind = &input.state.node(spot.node).facts.gpu_type;
            let setting = wanted(job, kind, on.gpu_count(), *setting);
            let ways = ways(input, job, kind, on.gpu_count(), setting);
            let role = Role::Starts { is_new: job.next_gpus.is_none() };
            let ([thrifty_w, expected_w], key) = (thrifty_w(job, on, ways[0].0), *key);
            bounded.items.push(Item { key, job, on, role, ways, chosen: 0, thrifty_w, expected_w });
        }
        bounded
    }
}

impl<'a> Bounded<'a> {
    fn keep(mut self) -> Plan {
        if let Some(above) = self.input.limits.preemption_limit {
            self.pause(above.as_w());
        }
        if let Some(below) = self.input.limits.admission_limit {
            self.hold_new(below.as_w());
        }
        if let Some(most) = self.input.limits.power_max {
            self.fit(most.as_w());
        }
        self.changed()
    }

    /// What is drawn if each job that is not held back or stopped draws what `of` says, watts.
    fn total_w(&self, of: impl Fn(&Item<'a>) -> f64) -> f64 {
        let mut cards = Cards::new(self.input);
        for item in &self.items {
            if !self.held.contains(&item.key) && !self.stopped.contains_key(&item.key) {
                cards.add(item.on, of(item));
            }
        }
        self.baseline_w() + cards.above_idle_w()
    }

    fn baseline_w(&self) -> f64 {
        self.empty_with_w(self.wakes)
    }

    /// The same where so many nodes wake.
    fn empty_with_w(&self, woken: usize) -> f64 {
        let nodes = first_wakes(&self.plan.nodes, woken).cloned().collect();
        baseline_w(self.input, &Plan { nodes, ..Plan::default() })
    }

    /// What who waits for a node to wake adds at its min_power, watts: the most that may be, or if it
    /// will be alone what is expected.
    fn waiting_w(&self, is_alone: bool) -> f64 {
        let blocked = self.plan.blocked.as_ref().map(|blocked| blocked.job);
        let waits = blocked.or_else(|| self.input.state.queue().next().map(|(key, _)| key));
        let job = waits.and_then(|key| self.input.state.job(key));
        let to_wake = self.plan.nodes.iter().find(|node| wakes(node));
        let (Some(job), Some(to_wake)) = (job, to_wake) else { return 0.0 };
        let node = self.input.state.node(to_wake.node());
        let (gpus, kind) = (job.facts.request.min, &node.facts.gpu_type);
        let watts = if is_alone { PowerEstimate::expected } else { PowerEstimate::of };
        let (gpus, card_w) = watts(self.thrift, self.input, job, kind, gpus, GpuSetting::DEFAULT);
        f64::from(gpus) * (card_w - idle_w(self.input, node)).max(0.0)
    }

    /// From the first new job on with which more than `below` would be drawn even if everybody were
    /// at its min_power, nothing new starts and no node wakes; and no more of them wake than leave
    /// room for who waits. Who would be alone counts as expected, not as the most that it may draw:
    /// held back until that is known, it would never be measured.
    fn hold_new(&mut self, below: f64) {
        let is_new = |item: &&Item<'_>| item.role == Role::Starts { is_new: true };
        let stays = |item: &&Item<'_>| !is_new(item) && !self.stopped.contains_key(&item.key);
        let mut jobs: f64 = self.items.iter().filter(stays).map(|item| item.thrifty_w).sum();
        let empty = self.empty_with_w(0);
        let mut is_alone = !self.items.iter().any(|item| stays(&item));
        for i in 0..self.items.len() {
            if self.items[i].role != (Role::Starts { is_new: true }) {
                continue;
            }
            let item = &self.items[i];
            jobs += if std::mem::take(&mut is_alone) { item.expected_w } else { item.thrifty_w };
            if empty + jobs > below {
                self.hold(i, empty + jobs, below);
                let rest = self.items[i..].iter().filter(is_new).map(|item| item.key);
                self.held.extend(rest);
                self.wakes = 0;
                return;
            }
        }
        let (most, waiting) = (self.wakes, self.waiting_w(is_alone));
        let with = |woken: usize| self.empty_with_w(woken) + jobs + waiting;
        let fits = (1..=most).rev().find(|&woken| with(woken) <= below).unwrap_or(0);
        if fits < most {
            let (drawn, below) = (with(most), Power::from_w_f64(below));
            let reason = Reason::HeldBack { drawn: Power::from_w_f64(drawn), below };
            let waits = self.plan.blocked.as_ref().map(|blocked| blocked.job);
            self.held_by = waits.map(|job| Blocked { job, reason });
        }
        self.wakes = fits;
    }

    fn hold(&mut self, item: usize, drawn: f64, below: f64) {
        let key = self.items[item].key;
        self.held.insert(key);
        let (drawn, below) = (Power::from_w_f64(drawn), Power::from_w_f64(below));
        self.held_by = Some(Blocked { job: key, reason: Reason::HeldBack { drawn, below } });
    }

    /// Lowers settings, then keeps from starting, then stops, until no more than `most` is drawn.
    fn fit(&mut self, most: f64) {
        if self.total_w(Item::watts) <= most {
            return;
        }
        while self.wakes > 0 && self.total_w(Item::least_w) > most {
            self.wakes -= 1;
        }
        let starts = |item: &Item<'_>| matches!(item.role, Role::Starts { .. });
        for i in (0..self.items.len()).rev().filter(|&i| starts(&self.items[i])).collect::<Vec<_>>()
        {
            let least = self.total_w(Item::least_w);
            if least <= most {
                break;
            }
            if !self.held.contains(&self.items[i].key) {
                self.hold(i, least, most);
            }
        }
        self.stop_newest(most);
        let mut levels: Vec<f64> =
            self.items.iter().flat_map(|item| item.ways.iter().map(|way| way.1)).collect();
        levels.sort_by(f64::total_cmp);
        levels.dedup();
        // The highest level at which all fits; below the lowest there is nothing more to do.
        let fits = |level: f64| self.total_w(|item| item.ways[at_level(item, level)].1) <= most;
        let level = levels.partition_point(|&level| fits(level)).saturating_sub(1);
        let level = levels.get(level).copied().unwrap_or(0.0);
        for item in &mut self.items {
            item.chosen = at_level(item, level);
        }
    }

    /// Those that came last go first, as long as even at the min_power more than `above` is drawn. Who
    /// is alone counts as expected, as when it started.
    fn pause(&mut self, above: f64) {
        let empty = self.empty_with_w(0);
        for i in self.newest() {
            let goes_on = |item: &&Item<'_>| {
                matches!(item.role, Role::Runs | Role::Starts { is_new: false })
                    && !self.stopped.contains_key(&item.key)
            };
            let there: Vec<&Item<'_>> = self.items.iter().filter(goes_on).collect();
            let drawn = empty
                + match there[..] {
                    [alone] => alone.expected_w,
                    _ => there.iter().map(|item| item.thrifty_w).sum::<f64>(),
                };
            if drawn <= above {
                return;
            }
            let (drawn_w, above) = (Power::from_w_f64(drawn), Power::from_w_f64(above));
            let reason = Reason::Paused { drawn: drawn_w, above };
            self.stopped.insert(self.items[i].key, reason);
        }
    }

    /// Those that came last go first.
    fn stop_newest(&mut self, most: f64) {
        for i in self.newest() {
            if self.total_w(Item::least_w) <= most {
                return;
            }
            let reason = Reason::PowerLimit { most: self.input.limits.power_max };
            self.stopped.entry(self.items[i].key).or_insert(reason);
        }
    }

    /// What runs and can stop, who came last first.
    fn newest(&self) -> Vec<usize> {
        let can_stop = |item: &Item<'_>| item.role == Role::Runs && item.job.facts.can_stop;
        let mut found: Vec<usize> =
            (0..self.items.len()).filter(|&i| can_stop(&self.items[i])).collect();
        found.sort_unstable_by_key(|&i| std::cmp::Reverse(self.items[i].job.arrival));
        found
    }

    /// The plan as it is now.
    fn changed(self) -> Plan {
        let input = self.input;
        let mut plan = Plan {
            decisions: Vec::with_capacity(self.plan.decisions.len()),
            nodes: first_wakes(&self.plan.nodes, self.wakes).cloned().collect(),
            again_at: self.plan.again_at,
            blocked: self.plan.blocked.clone(),
            deferred: self.plan.deferred,
            cache: self.plan.cache.clone(),
        };
        let is_short = plan.nodes.len() < self.plan.nodes.len();
        let chosen = |key: JobKey| {
            let item = self.items.iter().find(|item| item.key == key);
            item.map(|item| item.ways[item.chosen].0)
        };
        for decision in &self.plan.decisions {
            let key = decision.job();
            match decision {
                Decision::Set { .. } => {}
                Decision::Start { .. } if self.held.contains(&key) => {}
                // It was to be beside somebody who is stopped.
                Decision::Start { on, .. }
                    if self.is_on(on, |item| self.stopped.contains_key(&item.key)) => {}
                _ if self.stopped.contains_key(&key) => {}
                Decision::Start { on, setting, observe, reason, .. } => {
                    // Beside whom it was to be watched may be held back.
                    let is_there = |item: &Item<'_>| {
                        let runs = item.role == Role::Runs;
                        runs || plan.decisions.iter().any(|earlier| earlier.job() == item.key)
                    };
                    let observe = *observe && self.is_on(on, is_there);
                    plan.decisions.push(Decision::Start {
                        job: key,
                        on: on.clone(),
                        setting: chosen(key).unwrap_or(*setting),
                        observe,
                        reason: reason.clone(),
                    });
                }
                _ => plan.decisions.push(decision.clone()),
            }
        }
        for item in &self.items {
            let State::Running { setting: now, .. } = &item.job.state else { continue };
            if let Some(reason) = self.stopped.get(&item.key) {
                plan.decisions.push(Decision::Stop {
                    job: item.key,
                    next_gpus: None,
                    next_kind: None,
                    reason: reason.clone(),
                });
                continue;
            }
            let setting = item.ways[item.chosen].0;
            if item.role == Role::Runs && setting != *now {
                let reason = self.reason(item.key, setting);
                plan.decisions.push(Decision::Set { job: item.key, setting, reason });
            }
        }
        if let Some(held_by) = self.held_by {
            plan.blocked = Some(held_by);
        }
        if input.limits.nodes_sleep && (!self.held.is_empty() || is_short) {
            // The policy counted them as used.
            put_to_sleep(input, &mut plan);
        }
        plan
    }

    /// Whether one of these jobs is, or was to be, on these GPUs.
    fn is_on(&self, on: &GpuSet, which: impl Fn(&Item<'_>) -> bool) -> bool {
        self.items.iter().filter(|item| which(item)).any(|item| {
            let shares = |a: &NodeGpus, b: &NodeGpus| a.node == b.node && a.gpus & b.gpus != 0;
            item.on.by_node.iter().any(|own| on.by_node.iter().any(|spot| shares(own, spot)))
        })
    }

    /// The policy's own reason where the setting is its own.
    fn reason(&self, key: JobKey, setting: GpuSetting) -> Reason {
        let own = self.plan.decisions.iter().find(|decision| {
            matches!(decision, Decision::Set { job, setting: s, .. } if *job == key && *s == setting)
        });
        own.map_or(Reason::Reset { setting }, |decision| decision.reason().clone())
    }
}

/// The first way of a job that draws no more than `level`, or its last.
fn at_level(item: &Item<'_>, level: f64) -> usize {
    let at = item.ways.iter().position(|way| way.1 <= level);
    at.unwrap_or(item.ways.len() - 1)
}
