//! The runs of one case: every policy over its knob, in every order; then who is ahead where.

use std::collections::BTreeMap;
use std::sync::Arc;

use wattle_placer::{Reads, policy};
use wattle_world::World;

use crate::bound::{BoundFrontier, BoundJob, BoundOption, PricedSearch, contention_free, priced};
use crate::frontier::{Frontier, FrontierPoint, Spread, compare};
use crate::oracle::{Oracle, clocks};
use crate::scenario::{Scenario, Work};
use crate::simulation::{Lengths, RunOptions, SimulationError, run_with};

use super::{AboveBound, Accounting, Bounds, Case, Comparison, EqualEnergy, Summary, Swept};

/// Prices of a joule that the stepwise policies are run at: the least time won per energy spent,
/// both relative, that is still taken. From everything that helps to hardly anything.
const STEP_PRICES: [f64; 15] =
    [0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0, 1.3, 1.8, 2.5, 4.0];
/// The same for `wattle`, in seconds of completion time per joule.
const TIME_PRICES: [f64; 15] =
    [1e-5, 3e-5, 1e-4, 2e-4, 3e-4, 5e-4, 8e-4, 1.2e-3, 2e-3, 3e-3, 5e-3, 1e-2, 3e-2, 1e-1, 3e-1];
/// Least gains of a doubling that AFS is run with, relative.
const FLOORS: [f64; 4] = [0.0, 0.25, 0.5, 0.8];

/// How densely knobs are turned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Knobs {
    /// Every setting.
    #[default]
    Full,
    /// Every third: to look at a scenario, not to quote it.
    Quick,
}

/// What is compared, and how far.
#[derive(Clone, Debug)]
pub struct CompareOptions {
    /// Policies, without knobs.
    pub policies: Vec<String>,
    /// Job orders, from 0.
    pub orders: u64,
    /// Whether surfaces are true ones.
    pub oracle: bool,
    /// From when on a job's length is known.
    pub lengths: Lengths,
    /// How densely knobs are turned.
    pub knobs: Knobs,
}

/// A setting of a policy: how it is spelled, and its price.
struct Setting {
    spelled: String,
    price: f64,
    knob: f64,
}

/// The settings a policy is run at.
fn settings(family: &str, elastic: bool, mhz: &[u32], knobs: Knobs) -> Vec<Setting> {
    let all: Vec<Setting> = match family {
        "wattle" => priced_at(family, &TIME_PRICES),
        "afs" => FLOORS
            .iter()
            .flat_map(|floor| {
                mhz.iter().map(move |mhz| Setting {
                    spelled: format!("afs:{floor}@{mhz}"),
                    price: 0.0,
                    knob: f64::from(*mhz),
                })
            })
            .collect(),
        _ if elastic => priced_at(family, &STEP_PRICES),
        _ => (mhz.iter())
            .map(|mhz| Setting {
                spelled: format!("{family}@{mhz}"),
                price: 0.0,
                knob: f64::from(*mhz),
            })
            .collect(),
    };
    let every = if knobs == Knobs::Quick { 3 } else { 1 };
    all.into_iter().step_by(every).collect()
}

fn priced_at(family: &str, prices: &[f64]) -> Vec<Setting> {
    let setting = |&price| Setting { spelled: family.to_owned(), price, knob: price };
    prices.iter().map(setting).collect()
}

/// Runs a case. `progress` hears of every run, with its number and how many there are.
///
/// # Errors
/// Where a policy or workload is not known.
///
/// # Panics
/// Never: a case has jobs, and bounds of jobs that ran exist.
pub fn compare_case(
    world: &World,
    case: &Case,
    options: &CompareOptions,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> Result<Comparison, SimulationError> {
    let gpu = case.rigid.cluster.groups().first().and_then(|group| world.gpu(&group.gpu_kind));
    let mhz: Vec<u32> = gpu.map_or_else(Vec::new, |gpu| {
        let top = std::iter::once(gpu.clock_max());
        top.chain(clocks(gpu)).map(wattle_common::Frequency::as_mhz).collect()
    });
    let mut plans = Vec::new();
    for family in &options.policies {
        let elastic = policy(family)?.is_elastic();
        plans.extend(
            settings(family, elastic, &mhz, options.knobs).into_iter().map(|s| (family, s)),
        );
    }
    let total = plans.len() * options.orders as usize;
    let mut runs: Vec<Swept> = Vec::with_capacity(total);
    for order in 0..options.orders {
        let (rigid, elastic) = (case.rigid(order), case.elastic(order));
        let first = runs.len();
        for (family, setting) in &plans {
            progress(runs.len() + 1, total, &setting.spelled);
            let policy = policy(&setting.spelled)?;
            let run_options = RunOptions {
                oracle: options.oracle,
                price: setting.price,
                nodes_sleep: case.accounting == Accounting::SleepAll,
                lengths: options.lengths,
                // Nobody shares in a case without a world of neighbours.
                tenants_max: case.world.is_empty().then_some(1),
                ..RunOptions::default()
            };
            let scenario = if policy.is_elastic() { &elastic } else { &rigid };
            let outcome = run_with(world, scenario, policy.as_ref(), &run_options)?;
            let (family, knob) = ((*family).clone(), setting.knob);
            let (counted_kwh, budget_overrun) = (0.0, None);
            let options = run_options;
            runs.push(Swept { outcome, family, knob, order, counted_kwh, options, budget_overrun });
        }
        count(world, case, &mut runs[first..]);
    }
    let limits = limits(world, case, runs.iter().filter(|run| run.order == 0));
    Ok(judge(case, options, runs, &limits))
}

/// What each run of one order spent, over the horizon of the longest.
fn count(world: &World, case: &Case, runs: &mut [Swept]) {
    let horizon_s = runs.iter().map(|run| run.outcome.makespan_s).fold(0.0, f64::max);
    let asleep_w = asleep_w(world, case);
    for run in runs {
        run.counted_kwh = match case.accounting {
            Accounting::AboveIdle => run.outcome.energy_kwh_above_idle,
            Accounting::SleepAll => {
                let rest_s = horizon_s - run.outcome.makespan_s;
                run.outcome.energy_kwh + asleep_w * rest_s / 3.6e6
            }
        };
    }
}

/// What the whole cluster draws asleep, watts.
fn asleep_w(world: &World, case: &Case) -> f64 {
    let nodes = case.rigid.cluster.nodes().filter_map(|(_, kind)| world.gpu(kind));
    nodes.map(|gpu| gpu.asleep.power.as_w()).sum()
}

/// The lower bounds on the first order's jobs, counted as the runs are.
struct Limits {
    alone: BoundFrontier,
    tight: BoundFrontier,
}

impl Limits {
    fn told(&self) -> Bounds {
        Bounds {
            energy_kwh: self.tight.thriftiest().0,
            jct_s_mean: self.tight.fastest().1,
            frontier: self.tight.points().to_vec(),
            alone: self.alone.points().to_vec(),
        }
    }
}

fn limits<'a>(world: &World, case: &Case, runs: impl Iterator<Item = &'a Swept>) -> Limits {
    let horizon_s = runs.map(|run| run.outcome.makespan_s).fold(0.0, f64::max);
    let jobs = bound_jobs(world, &case.elastic(0), case.accounting);
    let gpus = case.rigid.cluster.gpu_count() as u32;
    let shift_kwh = match case.accounting {
        Accounting::AboveIdle => 0.0,
        Accounting::SleepAll => asleep_w(world, case) * horizon_s / 3.6e6,
    };
    let alone = contention_free(&jobs, gpus).expect("jobs that ran can be bounded");
    let tight = priced(&jobs, gpus, &PricedSearch::default()).expect("as above");
    Limits { alone: alone.shifted_kwh(shift_kwh), tight: tight.frontier.shifted_kwh(shift_kwh) }
}

/// The jobs as the bounds see them: what the world says of every size and clock, charged as runs are.
fn bound_jobs(world: &World, scenario: &Scenario, accounting: Accounting) -> Vec<BoundJob> {
    let mut oracle = Oracle::new(world, scenario, Reads::All);
    let Some(gpu) = scenario.cluster.groups().first().and_then(|g| world.gpu(&g.gpu_kind)) else {
        return Vec::new();
    };
    let host_w = world.host_power(gpu).saturating_sub(gpu.asleep.power).as_w();
    let share_w = match accounting {
        Accounting::AboveIdle => 0.0,
        Accounting::SleepAll => gpu.idle.as_w() + host_w / f64::from(gpu.node_gpus.max(1)),
    };
    let mut known: BTreeMap<&str, Arc<[BoundOption]>> = BTreeMap::new();
    let mut jobs = Vec::with_capacity(scenario.jobs.len());
    for job in &scenario.jobs {
        let Some(workload) = world.workload(job.workload.as_str()) else { continue };
        let options = known.entry(job.workload.as_str()).or_insert_with(|| {
            let shape = oracle.expected_shape(workload, job.gpus.min);
            let now = wattle_common::Timestamp::EPOCH;
            let whole = oracle.whole(now, &job.id, shape, job.gpus, gpu);
            let (_, menu) = whole.expect("an oracle for policies that read all has whole surfaces");
            let option = |choice: &wattle_placer::Choice| BoundOption {
                gpus: choice.gpus,
                steps_per_s: choice.steps_per_s,
                power_w: f64::from(choice.gpus)
                    * (choice.card_power_w - gpu.idle.as_w() + share_w).max(0.0),
            };
            menu.choices().iter().map(option).collect()
        });
        let Work::Steps(steps) = job.work else { continue };
        jobs.push(BoundJob {
            arrival_s: job.submit.as_secs_f64(),
            work: steps as f64,
            options: options.clone(),
        });
    }
    jobs
}

/// Frontiers, and who is ahead where.
fn judge(case: &Case, options: &CompareOptions, runs: Vec<Swept>, limits: &Limits) -> Comparison {
    let frontier = |family: &str, order: u64| {
        let points = runs.iter().enumerate().filter(|(_, run)| {
            run.family == family && run.order == order && run.outcome.finished == run.outcome.jobs
        });
        Frontier::of(points.filter_map(|(setting, run)| {
            let (total, jct_s) = (run.counted_kwh, run.outcome.jct_s_mean?);
            Some(FrontierPoint { total, jct_s, setting })
        }))
    };
    let (mut equal_energy, mut summary, mut above_bound) = (Vec::new(), Vec::new(), Vec::new());
    for ours in &options.policies {
        for theirs in options.policies.iter().filter(|theirs| *theirs != ours) {
            let (mut ratios, mut not_reachable) = (Vec::new(), 0);
            for order in 0..options.orders {
                let (Some(policy), Some(baseline)) =
                    (frontier(ours, order), frontier(theirs, order))
                else {
                    continue;
                };
                let matched = compare(&policy, &baseline);
                not_reachable += matched.not_reachable();
                ratios.extend(matched.ratios.iter().filter_map(|matched| matched.ratio));
                equal_energy.extend(matched.ratios.iter().map(|matched| EqualEnergy {
                    policy: ours.clone(),
                    baseline: theirs.clone(),
                    order,
                    energy_kwh: matched.total,
                    jct_ratio: matched.ratio,
                }));
            }
            let (policy, baseline) = (ours.clone(), theirs.clone());
            summary.push(Summary { policy, baseline, spread: Spread::of(ratios), not_reachable });
        }
        let above = frontier(ours, 0).map(|frontier| frontier.above_bound(&limits.tight));
        above_bound.extend(above.into_iter().flatten().map(|(energy_kwh, ratio)| AboveBound {
            policy: ours.clone(),
            energy_kwh,
            ratio,
        }));
    }
    Comparison {
        scenario: case.scenario,
        load: case.rigid.load.unwrap_or(case.load),
        accounting: case.accounting,
        world: case.world,
        workload: "",
        seeds: (0..options.orders).collect(),
        oracle: options.oracle,
        bounds: limits.told(),
        policies: runs,
        equal_energy,
        summary,
        above_bound,
    }
}
