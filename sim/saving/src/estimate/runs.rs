//! Single runs and price searches on the jobs of a trace.

use std::sync::Mutex;

use wattle_common::job::Sharing;
use wattle_common::topology::ClusterShape;
use wattle_common::{Budget, Power};
use wattle_placer::{Reads, policy};
use wattle_simulator::replay::is_recorded;
use wattle_simulator::trace::Trace;
use wattle_simulator::{
    CarbonSeries, PriceSeries, Restartable, RunOptions, Scenario, SimulationError, run_detailed,
};
use wattle_world::World;

use super::sample::Sample;
use super::sizes::Sizes;
use super::{SavingBound, SavingError, SavingOptions};
use crate::aim::{AimRun, AimSearch, Priced, RUNS_MAX, RUNS_MAX_TO_BASELINE, best, search};
use crate::baseline::BaselineKind;
use crate::lateness::Reference;
use crate::schedule::Schedule;

/// The policy of the estimate.
const POLICY: &str = "wattle";

/// The first price of a search on exact surfaces, s/J. Under a bound of 5 % the selected prices of the
/// traces in docs/measurements/aim-and-budgets.md are between 2e-4 and 7e-3.
const FIRST_PRICE: f64 = 6e-4;

/// A search ends at a feasible run whose slowdown is at least this share of the bound: on exact
/// surfaces, and on predictions, where a run takes longer.
const CLOSE_EXACT: f64 = 0.85;
const CLOSE_ON_PREDICTIONS: f64 = 0.7;

/// Largest number of further runs of a search on exact surfaces that shares those of another bound.
const RUNS_FURTHER: usize = 4;

/// Largest number of prices of the search on predictions relative to price 0, which is included.
const RUNS_ON_PREDICTIONS: usize = 4;

/// Largest number of further prices for each bound relative to the baseline.
const FURTHER_ON_PREDICTIONS: usize = 1;

/// How far below the bound the search on predictions may end for a point that is not shown in detail: half of the
/// distance between two points.
const CLOSE_BESIDE: f64 = 0.025;

/// Factor between prices of the search on predictions while the bound is not bracketed. Its first price
/// is that of the search on exact surfaces.
const FACTOR_ON_PREDICTIONS: f64 = 2.0;

/// What a run may use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Features {
    pub(super) settings: bool,
    pub(super) share: Sharing,
    pub(super) sizes: bool,
    pub(super) sleep: bool,
    /// Whether the policy reads the world's surfaces in place of predictions.
    pub(super) exact: bool,
    /// The power limit of all nodes.
    pub(super) limit: Option<Power>,
}

impl Features {
    /// All features that the options permit, on exact surfaces and without a limit.
    pub(super) const fn all(options: &SavingOptions) -> Self {
        Self {
            settings: true,
            share: options.share,
            sizes: !matches!(options.sizes, Sizes::Trace),
            sleep: options.sleep,
            exact: true,
            limit: None,
        }
    }
}

/// Jobs on a cluster, complete or sampled.
pub(super) struct Jobs<'a> {
    pub(super) world: &'a World,
    pub(super) trace: &'a Trace,
    pub(super) cluster: &'a ClusterShape,
    pub(super) carbon: Option<&'a CarbonSeries>,
    pub(super) prices: Option<&'a PriceSeries>,
    /// The load to which the arrival times are scaled, complete or sampled.
    pub(super) load: Option<f64>,
}

impl<'a> Jobs<'a> {
    /// The jobs of a sample; without one, these.
    pub(super) fn of<'b>(&self, sample: Option<&'b Sample>) -> Jobs<'b>
    where
        'a: 'b,
    {
        let (trace, cluster) =
            sample.map_or((self.trace, self.cluster), |sample| (&sample.trace, &sample.cluster));
        Jobs { trace, cluster, ..*self }
    }

    /// The jobs as submitted, at the load.
    pub(super) fn scenario(
        &self,
        restartable: &Restartable,
        seed: u64,
    ) -> Result<Scenario, SavingError> {
        let mut scenario = Scenario::from_trace(self.world, self.trace, self.cluster, seed)?;
        scenario.carbon = self.carbon.cloned();
        scenario.prices = self.prices.cloned();
        restartable.apply(&mut scenario, self.trace);
        if let Some(load) = self.load {
            if is_recorded(self.trace) {
                return Err(SavingError::RecordedLoad);
            }
            scenario.set_load(self.world, load)?;
        }
        Ok(scenario)
    }
}

/// The budget of a power limit.
fn budget(limit: Option<Power>) -> Option<Budget> {
    limit.map(|limit| Budget { power_mw: Some(limit), ..Budget::default() })
}

/// Time of a job of a run on predictions relative to one on exact surfaces (measured: 12 to 22).
pub(super) const PREDICTED_COST: usize = 15;

/// Progress over all runs, in ended jobs times the cost of the run.
pub(super) struct Progress<'a> {
    pub(super) report: Mutex<Count<'a>>,
}

pub(super) struct Count<'a> {
    pub(super) done: usize,
    pub(super) of: usize,
    pub(super) report: &'a mut (dyn FnMut(usize, usize) + Send),
}

impl Progress<'_> {
    /// Adds to the final count.
    pub(super) fn expect(&self, jobs: usize) {
        if let Ok(mut count) = self.report.lock() {
            count.of += jobs;
        }
    }

    /// Reports the final count.
    pub(super) fn finish(&self) {
        self.add(usize::MAX / 2);
    }

    pub(super) fn add(&self, jobs: usize) {
        let Ok(mut count) = self.report.lock() else { return };
        count.done = (count.done + jobs).min(count.of);
        let (done, of) = (count.done, count.of);
        (count.report)(done, of);
    }
}

/// Everything a run needs besides its scenario.
pub(super) struct Runner<'a> {
    pub(super) world: &'a World,
    pub(super) options: SavingOptions,
    pub(super) progress: &'a Progress<'a>,
}

impl Runner<'_> {
    /// One run of the policy.
    pub(super) fn run(
        &self,
        scenario: &Scenario,
        features: Features,
        price: f64,
    ) -> Result<Schedule, SimulationError> {
        let models = scenario.cluster.groups().iter();
        let clocks = models.filter_map(|group| Some(self.world.gpu(&group.gpu_type)?.clock_max()));
        let top = clocks.map(wattle_common::Frequency::as_mhz).max().unwrap_or_default();
        let name = if features.settings { POLICY.to_owned() } else { format!("{POLICY}@{top}") };
        let mut open = None;
        if features.sizes && scenario.jobs.iter().any(|job| job.can_stop) {
            let mut resized = scenario.clone();
            self.options.sizes.open(self.world, &mut resized);
            open = Some(resized);
        }
        let scenario = open.as_ref().unwrap_or(scenario);
        let options = RunOptions {
            price,
            nodes_sleep: features.sleep,
            share: features.share,
            oracle: features.exact,
            budget: budget(features.limit),
            // A limit without caps is held by starting fewer jobs.
            fixed_caps: !features.settings && features.limit.is_some(),
            ..RunOptions::default()
        };
        self.simulate(scenario, &name, &options)
    }

    fn simulate(
        &self,
        scenario: &Scenario,
        name: &str,
        options: &RunOptions,
    ) -> Result<Schedule, SimulationError> {
        let policy = policy(name)?;
        let mut last = 0;
        let predicts = !options.oracle && policy.capabilities().reads != Reads::Nothing;
        let cost = if predicts { PREDICTED_COST } else { 1 };
        let mut report = |ended: usize, _| {
            self.progress.add(cost * (ended - last));
            last = ended;
        };
        let (outcome, detail) =
            run_detailed(self.world, scenario, policy.as_ref(), options, &mut report)?;
        let left = scenario.jobs.len() - last;
        self.progress.add(cost * left);
        Ok(Schedule::simulated(outcome, detail, options.nodes_sleep))
    }

    /// FIFO or EASY backfilling with exclusive GPUs at default settings, all nodes awake.
    pub(super) fn baseline(
        &self,
        scenario: &Scenario,
        kind: BaselineKind,
    ) -> Result<Schedule, SimulationError> {
        self.simulate(scenario, &kind.to_string(), &RunOptions::default())
    }

    /// FIFO with exclusive GPUs below a power limit, with the exact power of jobs.
    pub(super) fn fifo_below(
        &self,
        scenario: &Scenario,
        limit: Power,
    ) -> Result<Schedule, SimulationError> {
        let options = RunOptions {
            budget: budget(Some(limit)),
            nodes_sleep: self.options.sleep,
            oracle: true,
            ..RunOptions::default()
        };
        self.simulate(scenario, "fifo", &options)
    }

    /// The runs of searches with several bounds on exact surfaces, which share their runs.
    pub(super) fn searches(
        &self,
        scenarios: &[Scenario],
        features: Features,
        bounds: &[SavingBound],
        reference: Option<&Reference>,
    ) -> Result<Found, SimulationError> {
        let mut runs = Vec::new();
        for bound in bounds {
            let aim = AimSearch { start: FIRST_PRICE, ..self.aim(*bound, CLOSE_EXACT)? };
            // The first search with a price above 0 has no run from which it could begin.
            let further = if runs.len() < 2 { aim.runs_max } else { RUNS_FURTHER };
            let aim = AimSearch { runs_max: runs.len() + further, ..aim };
            search(&aim, reference, &mut runs, |price| {
                let run = |scenario| self.run(scenario, features, price);
                scenarios.iter().map(run).collect::<Result<_, _>>().map(Pooled::of)
            })?;
        }
        let jobs: usize = scenarios.iter().map(|scenario| scenario.jobs.len()).sum();
        self.progress.add(runs_of(bounds).saturating_sub(runs.len()) * jobs);
        Ok(Found::of(runs, bounds))
    }

    /// Adds the runs of a search on predictions to `runs`, which hold those at price 0 and at the prices of the
    /// searches on exact surfaces.
    pub(super) fn search_on_predictions(
        &self,
        bound: SavingBound,
        is_shown: bool,
        reference: Option<&Reference>,
        runs: &mut Vec<Priced<Pooled>>,
        run_at_price: impl FnMut(f64) -> Result<Pooled, SimulationError>,
    ) -> Result<(), SimulationError> {
        let further = match bound {
            SavingBound::Later(_) => FURTHER_ON_PREDICTIONS,
            SavingBound::MaxSlowdown(_) => RUNS_ON_PREDICTIONS.saturating_sub(runs.len()),
        };
        let mut aim = AimSearch {
            factor: FACTOR_ON_PREDICTIONS,
            runs_max: runs.len() + further,
            ..self.aim(bound, CLOSE_ON_PREDICTIONS)?
        };
        if !is_shown {
            aim.floor = aim.allowed.mean - CLOSE_BESIDE;
        }
        search(&aim, reference, runs, run_at_price)
    }

    /// A search, which ends at this share of a bound that relates to price 0.
    fn aim(&self, bound: SavingBound, close: f64) -> Result<AimSearch, SimulationError> {
        let range = policy(POLICY)?.capabilities().prices;
        let (least, most) = range.map_or((1e-5, 1.0), |range| (range.least, range.most));
        Ok(match bound {
            SavingBound::Later(_) => AimSearch::to_baseline(bound.allowed(), least, most),
            SavingBound::MaxSlowdown(share) => {
                AimSearch::within(share, least, most).closing_at(close)
            }
        })
    }
}

/// Largest number of runs of searches on exact surfaces with these bounds.
pub(super) fn runs_of(bounds: &[SavingBound]) -> usize {
    let first = match bounds.first() {
        Some(SavingBound::Later(_)) => RUNS_MAX_TO_BASELINE,
        _ => RUNS_MAX,
    };
    first + RUNS_FURTHER * bounds.len().saturating_sub(1)
}

/// The runs of searches with several bounds, and the selected one of each.
pub(super) struct Found {
    pub(super) runs: Vec<Priced<Pooled>>,
    /// The place of the run of least energy within each bound; `None` where no run is within.
    best: Vec<Option<usize>>,
}

impl Found {
    pub(super) fn of(runs: Vec<Priced<Pooled>>, bounds: &[SavingBound]) -> Self {
        let best = bounds.iter().map(|bound| best(&runs, bound.allowed())).collect();
        Self { runs, best }
    }

    /// The run within a bound; that at price 0, the fastest, where none is.
    pub(super) fn at(&self, bound: usize) -> &Priced<Pooled> {
        &self.runs[self.best[bound].unwrap_or(0)]
    }

    /// Whether a run is within a bound.
    pub(super) fn is_within(&self, bound: usize) -> bool {
        self.best[bound].is_some()
    }
}

/// The runs of one price, one for each draw.
pub(super) struct Pooled {
    pub(super) runs: Vec<Schedule>,
    /// Completion times of all runs.
    completion_s: Vec<Option<f64>>,
}

impl Pooled {
    pub(super) fn of(runs: Vec<Schedule>) -> Self {
        let completion_s = runs.iter().flat_map(|run| run.completion_s.clone()).collect();
        Self { runs, completion_s }
    }
}

impl AimRun for Pooled {
    fn energy_kwh(&self) -> f64 {
        self.runs.iter().map(AimRun::energy_kwh).sum()
    }
    fn makespan_s(&self) -> f64 {
        self.runs.iter().map(AimRun::makespan_s).fold(0.0, f64::max)
    }
    fn rest_w(&self) -> f64 {
        self.runs.iter().map(AimRun::rest_w).sum()
    }
    fn completion_s(&self) -> &[Option<f64>] {
        &self.completion_s
    }
    fn energy_kwh_over(&self, period_s: f64) -> f64 {
        self.runs.iter().map(|run| run.energy_kwh_over(period_s)).sum()
    }
}
