//! One job: its windows, and the models fitted to them.
//!
//! The order of fitting is the order of dependence: busy share, power alone, what caps and clocks do
//! to power, step rates together with what caps and clocks do to them ([`held`]), and at last what
//! neighbours did beyond all that. Each step starts from the class's history where there is one. The
//! formulas are the models' own.

mod alone;
pub(crate) mod curve;
pub mod held;
mod levels;
mod order;
mod power;
mod settings;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use wattle_common::Timestamp;
use wattle_common::id::{NodeId, WorkloadId};
use wattle_common::job::GpuRequest;
use wattle_common::numerics::median_high;

use crate::fit::{Belief, Posterior, Row, fit};
use crate::history::{self, AtSetting, Level, PowerLevel, Profile, SharedSet, Stored, Summary};
use crate::interval::LogNormal;
use crate::job::held::{Answer, Half, Held, Prepared};
use crate::job::power::PowerAlone;
use crate::model::cap::{self, Card};
use crate::model::constant::LEAST_SD;
use crate::model::interference::Mix;
use crate::model::pairs::Traits;
use crate::model::throughput::Throughput;
use crate::pooled::{self, Pooled};
use crate::prior;
use crate::workload_name::WorkloadName;
use wattle_common::observation::{JobShape, Observation, POWER_SD, UNKNOWN};

/// Configurations fitted together with the time curve.
const GROUPS_MAX: usize = history::LEVELS_MAX;
/// Sets of neighbours looked at; beyond the sets kept, only what a job did beside one other stays.
const SETS_FITTED_MAX: usize = 64;

/// What is known of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Its declared workload.
    pub workload: Option<WorkloadId>,
    /// How many GPUs it takes.
    pub gpus: GpuRequest,
    /// Whether its owner's word is known, or only windows.
    pub described: bool,
    /// The GPUs' kind.
    pub gpu_type: Option<String>,
    /// When it was last heard of.
    pub heard_at_us: Timestamp,
    /// Its windows, by beginning and node.
    windows: Vec<Observation>,
}

impl Job {
    /// A job without windows.
    #[must_use]
    pub fn new(
        now: Timestamp,
        workload: Option<WorkloadId>,
        gpus: GpuRequest,
        gpu_type: Option<String>,
    ) -> Self {
        Self { workload, gpus, described: false, gpu_type, heard_at_us: now, windows: Vec::new() }
    }

    /// Its windows, oldest first.
    #[must_use]
    pub fn windows(&self) -> &[Observation] {
        &self.windows
    }

    /// Whether a window is known already.
    #[must_use]
    pub fn has(&self, window: &Observation) -> bool {
        let key = |o: &Observation| (o.from_us, o.node.clone());
        self.windows.binary_search_by_key(&key(window), key).is_ok()
    }

    /// Windows on another kind of card say nothing of this one.
    pub fn start_over(&mut self) {
        self.windows.clear();
    }

    /// Takes in a window; false where it is known already. Beyond `max` the fullest configuration
    /// loses its oldest, so that a rare one is not pushed out by the daily ones.
    pub fn add(&mut self, window: Observation, max: usize) -> bool {
        let key = |o: &Observation| -> (Timestamp, NodeId) { (o.from_us, o.node.clone()) };
        let at = match self.windows.binary_search_by_key(&key(&window), key) {
            Ok(_) => return false,
            Err(at) => at,
        };
        self.windows.insert(at, window);
        if self.windows.len() > max {
            let group = |o: &Observation| {
                let whole = |v: Option<f64>| v.map(|v| v as u64);
                (o.shape(), whole(o.cap_w), whole(o.clock_mhz_max), o.neighbours.clone())
            };
            let mut counts = BTreeMap::new();
            for window in &self.windows {
                *counts.entry(group(window)).or_insert(0usize) += 1;
            }
            let fullest = counts.values().copied().max().unwrap_or(0);
            if let Some(i) = self.windows.iter().position(|w| counts[&group(w)] == fullest) {
                self.windows.remove(i);
            }
        }
        true
    }

    /// Whether values read back from storage are such as this version stores.
    #[must_use]
    pub fn is_sane(&self, max: usize) -> bool {
        self.windows.len() <= max
            && self.windows.iter().all(Observation::is_sane)
            && self.gpus.min > 0
            && self.gpus.min <= self.gpus.max
    }
}

/// What a job's neighbours are expected to be, by class.
pub type Profiles = BTreeMap<WorkloadId, Arc<Profile>>;

/// What a fit may look at beside the job's own windows.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The card.
    pub card: &'a Card,
    /// What other jobs of its class were.
    pub class: &'a Profile,
    /// What its neighbours are.
    pub profiles: &'a Profiles,
    /// What is pooled over the jobs of this kind of card.
    pub pooled: &'a Pooled,
}

/// A job's models, fitted.
#[derive(Clone, Debug)]
pub struct JobModel {
    /// Windows they rest on.
    pub windows: u32,
    /// Busy share alone, 0 to 1.
    pub busy: Belief,
    /// Whether that was seen, of this job or of its class.
    pub busy_seen: bool,
    /// Memory traffic share alone, 0 to 1.
    pub memory_busy: Option<f64>,
    /// Peak device memory, MiB.
    pub memory_mib: Option<u64>,
    /// One card's power alone at the default.
    power: PowerAlone,
    /// Under caps and clocks.
    pub held: Held,
    /// What its own cards drew at the default, by its GPUs.
    powers: Vec<PowerLevel>,
    /// What was seen under caps and clocks, taken at its word.
    settings: Vec<AtSetting>,
    /// Step rates of the configurations seen, then what caps and clocks do to them, together.
    speed: Posterior,
    groups: Vec<JobShape>,
    throughput: Throughput,
    /// What it did beside others, by their classes.
    pub shared: Vec<SharedSet>,
    /// Whether its rates are inferred from its cards' rhythm: they compare with each other only, so
    /// they give relative speeds and no level.
    pub inferred: bool,
    /// What makes it like other jobs.
    traits: Traits,
    /// What it did beside one other at a time.
    singles: Vec<(WorkloadId, Stored)>,
}

impl JobModel {
    /// Fits `job`'s windows.
    #[must_use]
    pub fn fit(job: &Job, context: Context<'_>) -> Self {
        let windows = &*rates_of_one_kind(job.windows());
        let inferred = windows.iter().any(|w| w.rate.is_some() && w.rate_inferred);
        let traits = pooled::traits(job.workload.as_ref(), context.class);
        // The class's levels are steps as jobs count them; an inferred period may be another unit.
        let class = without_levels(context.class, inferred);
        let context = Context { class: &class, ..context };
        let (busy, busy_seen) = alone::busy(windows, context.class);
        let power = alone::power(job, context);
        let own_gpus = windows.last().map_or(job.gpus.max, |w| w.gpus);
        let ln_power = power.ln_watts(own_gpus).0;
        let transfer = &context.pooled.transfer;
        let family = job.workload.as_ref().map(|w| WorkloadName::of(w.as_str()).family);
        let kin = family.is_some_and(|family| transfer.knows(family));
        let class = &context.class.settings;
        let mut model = Self {
            windows: windows.len() as u32,
            busy,
            busy_seen,
            memory_busy: median_high(
                windows.iter().filter(|w| w.alone()).filter_map(|w| w.memory_busy),
            )
            .or(context.class.memory_busy),
            memory_mib: windows
                .iter()
                .filter_map(|w| w.memory_mib)
                .max()
                .or(context.class.memory_mib),
            power,
            held: Held::expected(context.card, (transfer, kin), ln_power, windows, class),
            powers: Vec::new(),
            settings: Vec::new(),
            speed: Posterior::of_beliefs(&[]),
            groups: Vec::new(),
            throughput: Throughput::fit(Vec::new(), None, &context.pooled.throughput),
            shared: Vec::new(),
            inferred,
            traits,
            singles: Vec::new(),
        };
        let (held_power, power_default_seen) = model.fit_held_power(windows, context);
        let (held_speed, speed_default_seen) = model.fit_speed(windows, context);
        let default_seen = (speed_default_seen, power_default_seen);
        model.held.learn(held_speed, held_power, default_seen);
        let demand = |gpus| model.ln_power_alone(gpus).0;
        model.settings = settings::raw(windows, &model.held, context.card, demand);
        model.powers = alone::powers(job, context.card);
        model.fit_shared(windows, context);
        model
    }

    /// The logarithm of one card's power alone at the default, watts.
    #[must_use]
    pub fn ln_power_alone(&self, gpus: u32) -> (f64, f64) {
        self.power.ln_watts(gpus)
    }

    /// Steps a second alone at the default, as a logarithm.
    #[must_use]
    pub fn ln_rate(&self, at: JobShape) -> Option<LogNormal> {
        self.throughput.ln_rate(at)
    }

    /// Steps a second alone under a setting, of which the slow-down is known to be `slow`: for a
    /// configuration that was seen, level and curve together, because what one of them is wrong by
    /// the other makes good.
    #[must_use]
    pub fn ln_rate_set(&self, shape: JobShape, at: &Prepared, slow: Answer) -> Option<LogNormal> {
        let shape = self.throughput.named(shape);
        let level = self.throughput.ln_rate(shape)?;
        let variance = match self.groups.iter().position(|g| self.throughput.named(*g) == shape) {
            Some(i) => self.speed.at(&self.speed_row(i, at.columns())).1 + slow.form,
            None => level.variance + slow.fitted + slow.form,
        };
        Some(LogNormal { mean: level.mean - slow.mean, variance, dof: level.dof })
    }

    /// How much its step rates, and its cards' power, scatter beside what windows promise, as
    /// ratios of deviations.
    #[must_use]
    pub fn noise(&self) -> (f64, f64) {
        (self.speed.noise_ratio().clamp(0.7, 4.0), self.power.noise_ratio().clamp(0.7, 4.0))
    }

    /// What makes it like other jobs.
    #[must_use]
    pub fn traits(&self) -> Traits {
        let mut traits = self.traits.clone();
        traits.busy = self.busy_seen.then_some(self.busy.mean);
        traits.memory_busy = self.memory_busy;
        traits.ln_memory = self.memory_mib.map(|mib| (mib.max(1) as f64).ln());
        traits
    }

    /// The logarithm of its slow-down beside one job of `class`, `me` being its own traits, from
    /// all pairs seen but not from its own habit.
    #[must_use]
    pub fn pair_slow(
        &self,
        me: &Traits,
        class: &WorkloadId,
        profiles: &Profiles,
        pooled: &Pooled,
    ) -> (f64, f64) {
        let mix = self.mix(std::slice::from_ref(class), profiles);
        let nothing = Profile::default();
        let profile = profiles.get(class).map_or(&nothing, |known| &**known);
        let declared = Some(class).filter(|c| c.as_str() != UNKNOWN);
        let partner = pooled::traits(declared, profile);
        pooled.pair(me, &partner, &mix, self.busy_seen && profile.busy.is_some())
    }

    /// The tenants of a card, this job among `neighbours`.
    #[must_use]
    pub fn mix(&self, neighbours: &[WorkloadId], profiles: &Profiles) -> Mix {
        let mut mix = Mix {
            neighbours: neighbours.len(),
            sum: self.busy.mean,
            sum_variance: self.busy.sd * self.busy.sd,
        };
        for class in neighbours {
            let busy = profiles.get(class).and_then(|p| p.busy).unwrap_or(prior::UTILIZATION);
            mix.sum += busy.mean;
            mix.sum_variance += busy.sd * busy.sd;
        }
        mix
    }

    /// The features of the step-rate fit: one level each, and the slow-down with its sign.
    fn speed_row(&self, group: usize, columns: &[f64]) -> Vec<f64> {
        let mut row = vec![0.0; self.groups.len() + self.held.width()];
        row[group] = 1.0;
        for (cell, x) in row[self.groups.len()..].iter_mut().zip(columns) {
            *cell = -x;
        }
        row
    }

    /// What caps and clocks do to power, and whether the default was seen.
    fn fit_held_power(&self, windows: &[Observation], context: Context<'_>) -> (Posterior, bool) {
        let mut rows = self.held.class_rows(Half::Power, &context.class.settings, 0);
        let power = |w: &Observation| Some((w.gpu_power_w?.ln(), POWER_SD));
        let shifts = order::shifts(windows, context.card, power);
        for (window, shift) in windows.iter().zip(shifts).filter(|(w, _)| w.alone()) {
            let demand = self.ln_power_alone(window.gpus).0;
            let (x, mean, open) = self.held.columns(Half::Power, window.setting(), demand);
            let Some(watts) = window.gpu_power_w.filter(|_| x.iter().any(|x| *x != 0.0)) else {
                continue;
            };
            // What the default is off by all readings have in common; it tells none from another.
            // One power under one cap repeats better than another window of the job at large does.
            let sd = LEAST_SD.get().hypot(open.sqrt());
            rows.push(Row { x, y: watts.ln() + shift - demand - mean, sd });
        }
        (fit(&rows, &self.held.beliefs(Half::Power)), self.power.is_seen)
    }

    /// Step rates, and what caps and clocks do to them; whether the default was seen.
    fn fit_speed(&mut self, windows: &[Observation], context: Context<'_>) -> (Posterior, bool) {
        let rated = || windows.iter().rev().filter(|w| w.rate.is_some());
        let shifts = order::shifts(windows, context.card, |w| Some((w.rate?.ln(), w.rate_sd)));
        for window in rated() {
            let group = window.shape();
            if !self.groups.contains(&group) && self.groups.len() < GROUPS_MAX {
                self.groups.push(group);
            }
        }
        let alone_in = |shape: JobShape| rated().any(|w| w.alone() && w.shape() == shape);
        let beside = rated().filter(|w| !w.alone() && !alone_in(w.shape())).count() as f64;
        let levels = self.groups.len();
        let mut rows = self.held.class_rows(Half::Slow, &context.class.settings, levels);
        for (window, shift) in windows.iter().zip(shifts).rev().filter(|(w, _)| w.rate.is_some()) {
            // What neighbours cost is only expected here: windows beside them tell the level where
            // none alone does. All of them err together, so that many are no surer than one.
            if !window.alone() && alone_in(window.shape()) {
                continue;
            }
            let Some(group) = self.groups.iter().position(|g| *g == window.shape()) else {
                continue;
            };
            let (offset, variance) = self.neighbours_slow(window, context);
            let demand = self.ln_power_alone(window.gpus).0;
            let (columns, slow, open) = self.held.columns(Half::Slow, window.setting(), demand);
            rows.push(Row {
                x: self.speed_row(group, &columns),
                y: window.rate.map_or(0.0, f64::ln) + shift + offset + slow,
                sd: (window.rate_sd * window.rate_sd + beside * variance + open).sqrt(),
            });
        }
        let middle = median_high(rows.iter().filter(|r| r.x[..levels].contains(&1.0)).map(|r| r.y));
        let middle = middle.unwrap_or(0.0);
        let beliefs: Vec<Belief> = self
            .groups
            .iter()
            .map(|g| {
                context.class.levels.get(g).copied().unwrap_or(Belief { mean: middle, sd: 3.0 })
            })
            .chain(self.held.beliefs(Half::Slow))
            .collect();
        self.speed = fit(&rows, &beliefs);
        if !self.inferred {
            let own = self.groups.iter().zip(0..).map(|(g, i)| (*g, self.speed.mean(i)));
            let like = context.class.levels.iter().map(|(g, level)| (*g, level.mean));
            // On its fewest GPUs; its own word comes before its class's.
            self.traits.ln_rate = own.chain(like).min_by_key(|(g, _)| *g).map(|(_, rate)| rate);
        }
        self.fit_throughput(windows, context);
        let default = |w: &&Observation| w.alone() && cap::is_default(context.card, w.setting());
        let default_seen = !context.class.levels.is_empty() || rated().any(|w| default(&w));
        (self.speed.part(levels..beliefs.len()), default_seen)
    }

    /// What the pooled curve expects a window's neighbours to have cost it; nothing for none.
    fn neighbours_slow(&self, window: &Observation, context: Context<'_>) -> (f64, f64) {
        if window.alone() {
            return (0.0, 0.0);
        }
        let mix = self.mix(&window.neighbours, context.profiles);
        let me = self.traits();
        let pair = |class: &WorkloadId| {
            let alone = self.mix(std::slice::from_ref(class), context.profiles);
            (alone, self.pair_slow(&me, class, context.profiles, context.pooled))
        };
        let pairs: Vec<_> = window.neighbours.iter().map(pair).collect();
        match pairs.as_slice() {
            [(_, slow)] => *slow,
            pairs => context.pooled.interference.slowdown_of_pairs(&mix, pairs),
        }
    }

    /// What each set of neighbours did, where the job's own speed and power alone are known.
    fn fit_shared(&mut self, windows: &[Observation], context: Context<'_>) {
        let known_alone = |shape: JobShape| {
            context.class.levels.contains_key(&shape)
                || windows.iter().any(|w| w.alone() && w.rate.is_some() && w.shape() == shape)
        };
        let mut sets: BTreeMap<&[WorkloadId], (Vec<Row>, Vec<Row>)> = BTreeMap::new();
        let mut newest: Vec<&[WorkloadId]> = Vec::new();
        for window in windows.iter().rev().filter(|w| !w.alone()) {
            if !sets.contains_key(window.neighbours.as_slice()) && sets.len() == SETS_FITTED_MAX {
                continue;
            }
            if !newest.contains(&window.neighbours.as_slice()) {
                newest.push(&window.neighbours);
            }
            let (slow, power) = sets.entry(&window.neighbours).or_default();
            let row = |y: f64, variance: f64| Row { x: vec![1.0], y, sd: variance.sqrt() };
            let at = self.held.prepare(window.setting());
            let under = self.held.answer(&at, self.ln_power_alone(window.gpus).0, 0.0).0;
            if let Some(rate) = window.rate
                && known_alone(window.shape())
                && let Some(alone) = self.ln_rate_set(window.shape(), &at, under)
            {
                let variance = alone.variance + window.rate_sd * window.rate_sd;
                slow.push(row(alone.mean - rate.ln(), variance));
            }
            if let Some((ln_ratio, variance)) = self.power_ratio(window, context) {
                power.push(row(ln_ratio, variance));
            }
        }
        let one = |rows: &[Row]| -> Option<Stored> {
            (!rows.is_empty()).then(|| fit(rows, &[Belief { mean: 0.0, sd: 2.0 }]).belief(0).into())
        };
        newest.truncate(history::SETS_MAX);
        let (kept, singles) = (&mut self.shared, &mut self.singles);
        let shared = sets
            .into_iter()
            .map(|(set, (slow, power))| SharedSet {
                neighbours: set.to_vec(),
                slow: one(&slow),
                power: one(&power),
            })
            .filter(|set| set.slow.is_some() || set.power.is_some());
        for set in shared {
            if let ([one], Some(slow)) = (set.neighbours.as_slice(), set.slow) {
                singles.push((one.clone(), slow));
            }
            if newest.contains(&set.neighbours.as_slice()) {
                kept.push(set);
            }
        }
    }

    /// A shared card's power above idle over its tenants' own added up, as a logarithm.
    fn power_ratio(&self, window: &Observation, context: Context<'_>) -> Option<(f64, f64)> {
        let card_w = window.gpu_power_w?;
        if !self.power.is_seen || !cap::is_free(context.card, card_w, window.setting()) {
            return None;
        }
        let idle = context.card.idle_w;
        let mut sum = (self.ln_power_alone(window.gpus).0.exp() - idle).max(1.0);
        for class in &window.neighbours {
            let alone = context.profiles.get(class)?.ln_power?;
            sum += (alone.mean.exp() - idle).max(1.0);
        }
        let above = card_w - idle;
        (above > 1.0).then(|| {
            let share = POWER_SD * card_w / above;
            ((above / sum).ln(), share * share + 0.03 * 0.03)
        })
    }

    /// What is kept of it when it is gone.
    #[must_use]
    pub fn summary(&self, job: &Job) -> Summary {
        let own_busy = job.windows().iter().any(|w| w.busy.is_some() || w.busy_job.is_some());
        Summary {
            levels: (self.groups.iter().enumerate())
                .filter(|_| !self.inferred)
                .map(|(i, shape)| Level {
                    gpus: shape.gpus,
                    nodes: shape.nodes,
                    global_batch: shape.batch,
                    ln_rate: self.speed.belief(i).into(),
                })
                .collect(),
            busy: own_busy.then(|| self.busy.into()),
            memory_busy: self.memory_busy,
            memory_mib: self.memory_mib,
            ln_power: self.power.is_seen.then(|| self.power.level().into()),
            powers: self.powers.clone(),
            settings: self.settings.clone(),
            shared: self.shared.clone(),
            singles: self.singles.clone(),
            scaling: self.throughput.constants().filter(|_| !self.inferred),
        }
    }
}

/// The windows without their inferred rates where any is reported: the job's own word wins, and the
/// two are not of one unit.
fn rates_of_one_kind(windows: &[Observation]) -> Cow<'_, [Observation]> {
    let has = |inferred| windows.iter().any(|w| w.rate.is_some() && w.rate_inferred == inferred);
    if !(has(true) && has(false)) {
        return Cow::Borrowed(windows);
    }
    let mut windows = windows.to_vec();
    for window in windows.iter_mut().filter(|w| w.rate_inferred) {
        window.rate = None;
    }
    Cow::Owned(windows)
}

fn without_levels(class: &Profile, inferred: bool) -> Cow<'_, Profile> {
    let mut class = Cow::Borrowed(class);
    if inferred {
        class.to_mut().levels.clear();
    }
    class
}
