//! Comparison of policies below power limits: completion time over the limit, with the lower bound.
//!
//! A limit is a share of the peak, the highest power of FIFO at default settings without a limit in the first order
//! of the jobs, with all nodes awake. Policies run as they are, with free energy: a limit that binds
//! sets the trade between power and time. A run that exceeded its limit or left jobs unfinished has no ratio to
//! the bound, which holds for schedules within the limit. All nodes are awake at the start: below their draw
//! no job runs until enough of them sleep, so that time above the limit is no exception to the bound.

use serde::Serialize;
use wattle_common::{Budget, Power};
use wattle_simulator::{PolicyOutcome, RunOptions, SimulationError};

use super::judge::time_limits;
use super::limits::over_power;
use super::options::{Accounting, Knobs, Surfaces};
use super::run::{Comparer, Setting, bounded, run_of};
use super::scenarios::{self, Case};
use crate::bound::BoundFrontier;
use wattle_saving::parallel::in_parallel;
use wattle_saving::spread::RatioSpread;

/// The limits, as shares of the peak.
pub const SHARES: [f64; 5] = [1.0, 0.8, 0.65, 0.5, 0.4];

/// The comparison of policies below power limits on one case.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LimitComparison {
    /// The scenario's name.
    pub scenario: &'static str,
    /// Offered load.
    pub load: f64,
    /// Whether unused nodes sleep.
    pub accounting: Accounting,
    /// The variant: GPU type, and fixed or elastic jobs.
    pub workload: &'static str,
    /// The orders of the jobs.
    pub seeds: Vec<u64>,
    /// Number of jobs.
    pub jobs: usize,
    /// The surfaces that policies received.
    pub surfaces: Surfaces,
    /// Knowledge of job lengths.
    pub lengths: &'static str,
    /// The power of which limits are shares, kW.
    pub peak_kw: f64,
    /// The lower bound of the first order, as (kW, mean completion time in s).
    pub bound: Vec<(f64, f64)>,
    /// Every run.
    pub runs: Vec<LimitRun>,
    /// Each policy at each limit, over the orders.
    pub summary: Vec<LimitSummary>,
    /// Notes.
    pub notes: Vec<String>,
}

/// One run below a limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LimitRun {
    /// The outcome.
    #[serde(flatten)]
    pub outcome: PolicyOutcome,
    /// The policy.
    pub family: String,
    /// The order of the jobs.
    pub order: u64,
    /// The limit as a share of the peak.
    pub limit_share: f64,
    /// The limit, kW.
    pub limit_kw: f64,
    /// Time above the limit, s.
    pub exceeded_s: f64,
    /// The lower bound on the mean completion time at this limit, s.
    pub bound_s: Option<f64>,
    /// Mean completion time over the bound; null for a run that exceeded its limit or left jobs unfinished.
    pub ratio: Option<f64>,
}

/// A policy at a limit: means over the orders.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LimitSummary {
    /// The policy.
    pub policy: String,
    /// The limit as a share of the peak.
    pub limit_share: f64,
    /// The limit, kW.
    pub limit_kw: f64,
    /// Mean completion time, s; null where a run completed no job.
    pub jct_s_mean: Option<f64>,
    /// Its 95th percentile, s.
    pub jct_s_p95: Option<f64>,
    /// Its 99th percentile, s.
    pub jct_s_p99: Option<f64>,
    /// Energy of whole nodes until the end of each run, kWh.
    pub energy_kwh: f64,
    /// Longest time above the limit of a run, s.
    pub exceeded_s: f64,
    /// Ratio to the bound of each order.
    pub ratio: Option<RatioSpread>,
}

/// Time in which unused nodes fall asleep at the start of a run, s.
const FALLS_ASLEEP_S: f64 = 300.0;

enum Task<'a> {
    Bound(usize),
    Run(&'a str, usize, f64),
}

enum Done {
    Bound(Option<BoundFrontier>),
    Run(Box<PolicyOutcome>),
}

impl Comparer<'_> {
    /// Compares the policies below power limits on a case. `progress` receives the numbers of finished and of all
    /// computations.
    ///
    /// # Errors
    /// Where a policy or a workload is unknown.
    pub fn compare_limits(
        &self,
        case: &Case,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<LimitComparison, SimulationError> {
        let families = if self.options.policies.is_empty() {
            scenarios::policies(case.scenario, case.world)
        } else {
            self.options.policies.clone()
        };
        let peak_w = self.peak_w(case)?;
        let rest_w = self.rest_w(case, bounded(case).0);
        let every = if self.options.knobs == Knobs::Few { 3 } else { 1 };
        // Below the draw of nodes without jobs no schedule holds a limit.
        let shares: Vec<f64> = SHARES.into_iter().step_by(every).collect();
        let (held, below): (Vec<f64>, Vec<f64>) =
            shares.into_iter().partition(|share| share * peak_w > rest_w);
        let orders = case.jobs.rigid.len();
        let mut tasks: Vec<Task<'_>> = (0..orders).map(Task::Bound).collect();
        for order in 0..orders {
            for family in &families {
                tasks.extend(held.iter().map(|&share| Task::Run(family, order, share)));
            }
        }
        let work = |task: &Task<'_>| -> Result<Done, SimulationError> {
            Ok(match *task {
                Task::Bound(order) => Done::Bound(self.bound_over(case, order, peak_w, &held)),
                Task::Run(family, order, share) => {
                    Done::Run(Box::new(self.below(case, family, order, share * peak_w)?))
                }
            })
        };
        let of = tasks.len();
        let done = in_parallel(&tasks, self.options.threads, work, &mut |n| progress(n, of))?;
        let mut bounds: Vec<Option<BoundFrontier>> = Vec::new();
        let mut runs = Vec::new();
        for (task, done) in tasks.iter().zip(done) {
            match (task, done) {
                (Task::Run(family, order, share), Done::Run(outcome)) => {
                    let bound = bounds.get(*order).and_then(Option::as_ref);
                    let limit_w = share * peak_w;
                    // Nodes fall asleep before the limit can be held.
                    let settles = case.accounting.sleeps(family) && limit_w < self.idle_w(case);
                    let spared_s = if settles { FALLS_ASLEEP_S } else { 0.0 };
                    let limit = (*share, limit_w, spared_s);
                    runs.push(judged(family, *order, limit, bound, *outcome));
                }
                (_, Done::Bound(bound)) => bounds.push(bound),
                (Task::Bound(_), Done::Run(_)) => {}
            }
        }
        let first = bounds.into_iter().next().flatten();
        let bound = first.map_or_else(Vec::new, |bound| {
            bound.points().iter().map(|&(w, s)| (w / 1e3, s)).collect()
        });
        let mut notes: Vec<String> = below
            .into_iter()
            .map(|share| {
                format!(
                    "{:.0} % of the peak is below the {:.1} kW of nodes without jobs, so no schedule holds it",
                    100.0 * share,
                    rest_w / 1e3
                )
            })
            .collect();
        let exceeded = runs.iter().filter(|run| run.exceeded_s > 0.0);
        notes.extend(exceeded.map(|run| {
            format!(
                "{}, order {}: above {:.1} kW for {:.0} s",
                run.family, run.order, run.limit_kw, run.exceeded_s
            )
        }));
        notes.extend(time_limits(runs.iter().map(|run| (run.family.as_str(), &run.outcome))));
        let summary = families.iter().flat_map(|family| {
            let runs = &runs;
            held.iter().filter_map(move |&share| summary(runs, family, share))
        });
        let summary = summary.collect();
        Ok(LimitComparison {
            scenario: case.scenario,
            load: case.load,
            accounting: case.accounting,
            workload: case.workload,
            seeds: (0..orders as u64).collect(),
            jobs: case.jobs.rigid[0].jobs.len(),
            surfaces: self.options.surfaces,
            lengths: self.options.lengths_name(),
            peak_kw: peak_w / 1e3,
            bound,
            runs,
            summary,
            notes,
        })
    }

    /// The highest power of FIFO below a limit that never binds, all nodes awake, W.
    fn peak_w(&self, case: &Case) -> Result<f64, SimulationError> {
        let nodes = case.jobs.rigid[0].cluster.nodes();
        let most_w: f64 = nodes
            .filter_map(|(gpus, kind)| {
                let world = self.worlds.of(case.world);
                let gpu = world.gpu(kind)?;
                Some(world.host_power_of(gpu, gpus).as_w() + f64::from(gpus) * gpu.cap_max.as_w())
            })
            .sum();
        let awake = Case { accounting: Accounting::SleepNone, ..case.clone() };
        let outcome = self.below(&awake, "fifo", 0, most_w)?;
        Ok(outcome.spending.map_or(most_w, |spending| 1e3 * spending.power_kw_peak))
    }

    /// The bound over the limits of complete nodes, W; `None` where a job has no option.
    fn bound_over(
        &self,
        case: &Case,
        order: usize,
        peak_w: f64,
        shares: &[f64],
    ) -> Option<BoundFrontier> {
        let charged = bounded(case).0;
        let rest_w = self.rest_w(case, charged);
        let limits_w: Vec<f64> = shares.iter().map(|share| share * peak_w - rest_w).collect();
        let world = self.worlds.of(case.world);
        let search = self.options.bound.as_ref();
        let bound = over_power(world, &case.jobs.elastic[order], charged, search, &limits_w);
        // From the power of jobs to that of complete nodes.
        bound.ok().map(|bound| bound.shifted(rest_w))
    }

    fn below(
        &self,
        case: &Case,
        family: &str,
        order: usize,
        limit_w: f64,
    ) -> Result<PolicyOutcome, SimulationError> {
        let run = run_of(case, order, family, &Setting::untuned(family));
        let power_mw = Some(Power::from_w_f64(limit_w));
        let budget = Some(Budget { power_mw, ..Budget::default() });
        self.run_as(&case.jobs, &run, &RunOptions { budget, ..self.options_of(&run) })
    }
}

fn judged(
    family: &str,
    order: usize,
    (limit_share, limit_w, spared_s): (f64, f64, f64),
    bound: Option<&BoundFrontier>,
    outcome: PolicyOutcome,
) -> LimitRun {
    let spending = outcome.spending.as_ref();
    let exceeded_s = spending.and_then(|spending| spending.power_exceeded_s).unwrap_or(0.0);
    let bound_s = bound.and_then(|bound| bound.jct_s_at(limit_w));
    let within = exceeded_s <= spared_s && outcome.finished == outcome.jobs;
    let ratio = outcome.jct_s_mean.zip(bound_s.filter(|bound_s| *bound_s > 0.0));
    LimitRun {
        family: family.to_owned(),
        order: order as u64,
        limit_share,
        limit_kw: limit_w / 1e3,
        exceeded_s,
        bound_s,
        ratio: ratio.filter(|_| within).map(|(jct_s, bound_s)| jct_s / bound_s),
        outcome,
    }
}

/// Whether two shares are one of the limits.
fn same(a: f64, b: f64) -> bool {
    a.total_cmp(&b).is_eq()
}

fn summary(runs: &[LimitRun], family: &str, share: f64) -> Option<LimitSummary> {
    let own = || runs.iter().filter(|run| run.family == family && same(run.limit_share, share));
    let first = own().next()?;
    let count = own().count() as f64;
    let mean = |of: fn(&PolicyOutcome) -> Option<f64>| {
        own().map(|run| of(&run.outcome)).sum::<Option<f64>>().map(|sum| sum / count)
    };
    Some(LimitSummary {
        policy: family.to_owned(),
        limit_share: share,
        limit_kw: first.limit_kw,
        jct_s_mean: mean(|outcome| outcome.jct_s_mean),
        jct_s_p95: mean(|outcome| outcome.jct_s_p95),
        jct_s_p99: mean(|outcome| outcome.jct_s_p99),
        energy_kwh: mean(|outcome| Some(outcome.energy_kwh)).unwrap_or(0.0),
        exceeded_s: own().map(|run| run.exceeded_s).fold(0.0, f64::max),
        ratio: RatioSpread::of(own().filter_map(|run| run.ratio)),
    })
}
