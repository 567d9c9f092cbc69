//! The runs of a case: every policy over its tuning parameter, in every order of the jobs.
//!
//! Runs that are equal in several cases of the same jobs are made once: a policy that does not
//! co-locate is independent of the co-location model, and a run depends on the sleep rule of its
//! own policy only.

use std::collections::BTreeMap;
use std::sync::Arc;

use wattle_baselines::policy;
use wattle_common::Energy;
use wattle_common::time::span_s;

use super::judge::judge;
use super::limits::{Charged, Limits, limits};
use super::options::{
    Accounting, CompareOptions, Knobs, Neighbours, Surfaces, name_of, policy_of, shares,
};
use super::scenarios::{self, Case, JobSequences, Worlds};
use super::{Comparison, Swept};
use wattle_saving::parallel::in_parallel;
use wattle_simulator::PolicyOutcome;
use wattle_simulator::Scenario;
use wattle_simulator::carbon::CarbonSeries;
use wattle_simulator::selectable_clocks;
use wattle_simulator::{RunOptions, SimulationError, run_with};

/// Energy prices of the greedy policies: the least accepted ratio of relative speedup to relative
/// energy, from accepting nearly every step to almost none.
const STEP_PRICES: [f64; 15] =
    [0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0, 1.3, 1.8, 2.5, 4.0];
/// Energy prices of `wattle`, seconds of completion time per joule.
const TIME_PRICES: [f64; 15] =
    [1e-5, 3e-5, 1e-4, 2e-4, 3e-4, 5e-4, 8e-4, 1.2e-3, 2e-3, 3e-3, 5e-3, 1e-2, 3e-2, 1e-1, 3e-1];
/// Least relative gains of a doubling for AFS.
const FLOORS: [f64; 4] = [0.0, 0.25, 0.5, 0.8];

/// A setting of a policy: its name, energy price and tuning parameter.
pub(super) struct Setting {
    pub(super) spelled: String,
    price: f64,
    knob: f64,
}

impl Setting {
    /// A policy as it is, with free energy.
    pub(super) fn untuned(family: &str) -> Self {
        Self { spelled: policy_of(family).0.to_owned(), price: 0.0, knob: 0.0 }
    }
}

/// The settings of a policy; the first is the untuned one.
fn settings(family: &str, elastic: bool, mhz: &[u32], knobs: Knobs) -> Vec<Setting> {
    let priced_at = |prices: &[f64]| -> Vec<Setting> {
        let setting = |&price| Setting { spelled: family.to_owned(), price, knob: price };
        prices.iter().map(setting).collect()
    };
    let clocked = |family: &str| -> Vec<Setting> {
        let setting = |&mhz: &u32| {
            let spelled = format!("{family}@{mhz}");
            Setting { spelled, price: 0.0, knob: f64::from(mhz) }
        };
        mhz.iter().map(setting).collect()
    };
    if family.contains('+') {
        // A policy that chooses settings itself has one run.
        return vec![Setting { spelled: family.to_owned(), price: 0.0, knob: 0.0 }];
    }
    let all: Vec<Setting> = match name_of(family) {
        "wattle" => priced_at(&TIME_PRICES),
        "afs" if family == "afs" => {
            FLOORS.iter().flat_map(|floor| clocked(&format!("afs:{floor}"))).collect()
        }
        "afs" => clocked(family),
        _ if elastic => priced_at(&STEP_PRICES),
        _ => clocked(family),
    };
    let every = if knobs == Knobs::Few { 3 } else { 1 };
    all.into_iter().step_by(every).collect()
}

/// The properties that distinguish runs of the same jobs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Run {
    pub(super) order: usize,
    spelled: String,
    price_bits: u64,
    sleeps: bool,
    /// Whether jobs may be deferred to a cleaner grid.
    defers: bool,
    /// `Alone` for policies without co-location, in every case.
    world: Neighbours,
}

/// The properties that a bound depends on.
pub(super) type Bounded = (Charged, Neighbours);

/// A computation.
enum Task {
    Run(Run),
    Bound(Bounded),
}
enum Done {
    Run(Run, Box<PolicyOutcome>),
    Bound(Bounded, Limits),
}

/// Makes comparisons, and caches results for further cases of the same jobs.
pub struct Comparer<'w> {
    pub(super) worlds: &'w Worlds,
    pub(super) options: CompareOptions,
    /// The jobs of the cached results.
    jobs: Option<Arc<JobSequences>>,
    ran: BTreeMap<Run, PolicyOutcome>,
    bounds: BTreeMap<Bounded, Limits>,
}

impl<'w> Comparer<'w> {
    /// A comparer with an empty cache.
    #[must_use]
    pub fn new(worlds: &'w Worlds, options: CompareOptions) -> Self {
        let (ran, bounds) = (BTreeMap::new(), BTreeMap::new());
        Self { worlds, options, jobs: None, ran, bounds }
    }

    /// Compares the policies on a case. `progress` receives the numbers of finished and of all
    /// computations.
    ///
    /// # Errors
    /// Where a policy or a workload is unknown.
    pub fn compare(
        &mut self,
        case: &Case,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Comparison, SimulationError> {
        if self.jobs.as_ref().is_none_or(|jobs| !Arc::ptr_eq(jobs, &case.jobs)) {
            self.ran.clear();
            self.bounds.clear();
            self.jobs = Some(case.jobs.clone());
        }
        let families = if self.options.policies.is_empty() {
            scenarios::policies(case.scenario, case.world)
        } else {
            self.options.policies.clone()
        };
        let mut swept = Vec::new();
        for family in &families {
            swept.extend(self.settings(case, family)?.into_iter().map(|setting| (family, setting)));
        }
        let bounded = bounded(case);
        let mut tasks = Vec::new();
        if !self.bounds.contains_key(&bounded) {
            tasks.push(Task::Bound(bounded));
        }
        for order in 0..case.jobs.rigid.len() {
            for (family, setting) in &swept {
                let run = run_of(case, order, family, setting);
                if !self.ran.contains_key(&run) {
                    tasks.push(Task::Run(run));
                }
            }
        }
        let work = |task: &Task| self.work(case, task);
        let of = tasks.len();
        let done =
            in_parallel(&tasks, self.options.threads, work, &mut |count| progress(count, of))?;
        for done in done {
            match done {
                Done::Run(run, outcome) => drop(self.ran.insert(run, *outcome)),
                Done::Bound(bounded, limits) => drop(self.bounds.insert(bounded, limits)),
            }
        }
        let mut runs = Vec::new();
        let mut horizon_s = 0.0;
        for order in 0..case.jobs.rigid.len() {
            let first = runs.len();
            for (family, setting) in &swept {
                let run = run_of(case, order, family, setting);
                let outcome = self.ran[&run].clone();
                runs.push(swept_run(family, setting, order, outcome, self.options_of(&run)));
            }
            let span_s = self.count(case, &case.jobs.rigid[order], &mut runs[first..]);
            horizon_s = if order == 0 { span_s } else { horizon_s };
        }
        let floor = self.floor(case, &case.jobs.rigid[0], horizon_s);
        let limits = self.bounds[&bounded].shifted(floor.0, floor.1);
        Ok(judge(case, &self.options, &families, runs, &limits, horizon_s))
    }

    /// The settings of a family.
    pub(super) fn settings(
        &self,
        case: &Case,
        family: &str,
    ) -> Result<Vec<Setting>, SimulationError> {
        let (spelled, _) = policy_of(family);
        let elastic = policy(spelled)?.capabilities().is_elastic;
        Ok(settings(spelled, elastic, &self.clocks(case), self.options.knobs))
    }

    /// Energy and emissions common to every schedule of these jobs, under this accounting, kWh and kg.
    pub(super) fn floor(&self, case: &Case, scenario: &Scenario, horizon_s: f64) -> (f64, f64) {
        let watts = match case.accounting {
            Accounting::AboveIdle => 0.0,
            Accounting::SleepNone => self.idle_w(case),
            Accounting::SleepAll | Accounting::SleepPacking => self.asleep_w(case),
        };
        let kg = scenario.carbon.as_ref();
        let kg = kg.map(|series| emitted_kg(scenario, series, watts, (0.0, horizon_s)));
        (watts * horizon_s / 3.6e6, kg.unwrap_or(0.0))
    }

    fn work(&self, case: &Case, task: &Task) -> Result<Done, SimulationError> {
        match task {
            Task::Run(run) => {
                let outcome = self.run(&case.jobs, run)?;
                Ok(Done::Run(run.clone(), Box::new(outcome)))
            }
            Task::Bound(bounded) => {
                Ok(Done::Bound(*bounded, self.limits(case, &case.jobs.elastic[0], *bounded)))
            }
        }
    }

    /// The bounds on an order's jobs.
    pub(super) fn limits(
        &self,
        case: &Case,
        scenario: &Scenario,
        (charged, neighbours): Bounded,
    ) -> Limits {
        // Surfaces of the world know clocks alone.
        let caps = self.options.surfaces == Surfaces::Predicted
            || self.options.policies.iter().any(|policy| policy.contains('+'));
        let world = self.worlds.of(neighbours);
        let limit = self.options.budget.as_ref().and_then(|budget| budget.power_mw);
        let watts = limit.map(|limit| limit.as_w() - self.rest_w(case, charged));
        limits(world, scenario, charged, neighbours, caps, watts, self.options.bound.as_ref())
    }

    fn run(&self, jobs: &JobSequences, run: &Run) -> Result<PolicyOutcome, SimulationError> {
        self.run_as(jobs, run, &self.options_of(run))
    }

    /// A run under other conditions than the comparison's own.
    pub(super) fn run_as(
        &self,
        jobs: &JobSequences,
        run: &Run,
        options: &RunOptions,
    ) -> Result<PolicyOutcome, SimulationError> {
        let policy = policy(&run.spelled)?;
        let orders = if policy.capabilities().is_elastic { &jobs.elastic } else { &jobs.rigid };
        run_with(self.worlds.of(run.world), &orders[run.order], policy.as_ref(), options)
    }

    pub(super) fn options_of(&self, run: &Run) -> RunOptions {
        RunOptions {
            oracle: self.options.surfaces.are_of_the_world(),
            surface_noise: self.options.surfaces.surface_noise(run.order as u64),
            price: f64::from_bits(run.price_bits),
            nodes_sleep: run.sleeps,
            lengths: self.options.lengths,
            tenants_max: (run.world == Neighbours::Alone).then_some(1),
            budget: self.options.budget.clone(),
            events: self.options.events.clone(),
            forecast: self.options.forecast,
            no_deferral: !run.defers,
            ..RunOptions::default()
        }
    }

    /// The clocks that are swept, the top one first.
    fn clocks(&self, case: &Case) -> Vec<u32> {
        let group = case.jobs.rigid[0].cluster.groups().first();
        let gpu = group.and_then(|group| self.worlds.of(case.world).gpu(&group.gpu_type));
        gpu.map_or_else(Vec::new, |gpu| {
            let top = std::iter::once(gpu.clock_max());
            top.chain(selectable_clocks(gpu)).map(wattle_common::Frequency::as_mhz).collect()
        })
    }

    /// Energy of each run of one order over the horizon of the longest run; returns that horizon.
    pub(super) fn count(&self, case: &Case, scenario: &Scenario, runs: &mut [Swept]) -> f64 {
        let horizon_s = runs.iter().map(|run| run.outcome.makespan_s).fold(0.0, f64::max);
        let (asleep_w, idle_w) = (self.asleep_w(case), self.idle_w(case));
        for run in runs.iter_mut() {
            let makespan_s = run.outcome.makespan_s;
            let carbon = run.outcome.carbon_kg.zip(scenario.carbon.as_ref());
            let emits = |series, watts, span| emitted_kg(scenario, series, watts, span);
            if case.accounting == Accounting::AboveIdle {
                // All nodes are awake all the time, so what is idle never changes.
                run.counted_kwh = run.outcome.energy_kwh_above_idle;
                run.counted_kg =
                    carbon.map(|(kg, series)| kg - emits(series, idle_w, (0.0, makespan_s)));
                continue;
            }
            let rest_w = if case.accounting.sleeps(&run.family) { asleep_w } else { idle_w };
            run.counted_kwh = run.outcome.energy_kwh + rest_w * (horizon_s - makespan_s) / 3.6e6;
            run.counted_kg =
                carbon.map(|(kg, series)| kg + emits(series, rest_w, (makespan_s, horizon_s)));
        }
        horizon_s
    }

    /// Power draw that no schedule avoids, W.
    pub(super) fn rest_w(&self, case: &Case, charged: Charged) -> f64 {
        match charged {
            Charged::AboveIdle => self.idle_w(case),
            Charged::Awake => self.asleep_w(case),
        }
    }

    /// Power draw of the sleeping cluster, W.
    fn asleep_w(&self, case: &Case) -> f64 {
        let (world, cluster) = (self.worlds.of(case.world), &case.jobs.rigid[0].cluster);
        let nodes = cluster.nodes().filter_map(|(_, kind)| world.gpu(kind));
        nodes.map(|gpu| gpu.sleep.power.as_w()).sum()
    }

    /// Power draw of the awake cluster without jobs, W.
    pub(super) fn idle_w(&self, case: &Case) -> f64 {
        let (world, cluster) = (self.worlds.of(case.world), &case.jobs.rigid[0].cluster);
        let nodes = cluster.nodes().filter_map(|(gpus, kind)| {
            let gpu = world.gpu(kind)?;
            Some(world.host_power_of(gpu, gpus).as_w() + f64::from(gpus) * gpu.idle.as_w())
        });
        nodes.sum()
    }
}

/// Emissions of a constant power from one instant of a run to another, kg; seconds from its first
/// arrival.
fn emitted_kg(
    scenario: &Scenario,
    series: &CarbonSeries,
    watts: f64,
    (from_s, until_s): (f64, f64),
) -> f64 {
    let first = scenario.jobs.iter().map(|job| job.submit).min().unwrap_or_default();
    let at = |s: f64| first + span_s(s);
    let energy = Energy::from_j((watts * (until_s - from_s)).round() as u64);
    series.emitted(energy, at(from_s), at(until_s)).as_g() / 1e3
}

/// A run, not yet counted.
pub(super) fn swept_run(
    family: &str,
    setting: &Setting,
    order: usize,
    mut outcome: PolicyOutcome,
    options: RunOptions,
) -> Swept {
    // Stated once, for the swept run.
    let budget_overrun = outcome.budget_overrun.take();
    Swept {
        outcome,
        options,
        family: family.to_owned(),
        knob: setting.knob,
        order: order as u64,
        counted_kwh: 0.0,
        counted_kg: None,
        budget_overrun,
    }
}

pub(super) fn run_of(case: &Case, order: usize, family: &str, setting: &Setting) -> Run {
    Run {
        order,
        spelled: setting.spelled.clone(),
        price_bits: setting.price.to_bits(),
        sleeps: case.accounting.sleeps(family),
        defers: policy_of(family).1,
        world: if shares(family) { case.world } else { Neighbours::Alone },
    }
}

pub(super) fn bounded(case: &Case) -> Bounded {
    let charged = match case.accounting {
        Accounting::AboveIdle | Accounting::SleepNone => Charged::AboveIdle,
        Accounting::SleepAll | Accounting::SleepPacking => Charged::Awake,
    };
    (charged, case.world)
}
