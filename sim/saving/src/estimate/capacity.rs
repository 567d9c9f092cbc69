//! How many nodes fit below a power limit with Wattle, and how small the limit of the given nodes may be.
//!
//! The target is the mean completion time of the baseline of [`super::estimate`], which has no limit: the
//! recorded schedule, or FIFO at default settings. The policy `wattle`, with free energy, is simulated on the
//! given nodes below several limits; its mean completion time falls with the limit. The least limit that
//! reaches the target answers both questions: more nodes bring more jobs in proportion, so a number of nodes
//! below a limit is per node like half of them below half of it. At the same load a larger cluster has
//! shorter queues, which the estimate leaves out.
//!
//! * Curves are runs on exact surfaces, one for each seed, after the first only near its least limit. The run at
//!   the least limit is made on predictions; where it misses the target, runs at higher limits find the least limit
//!   on predictions, and those of all curves are raised by that ratio.
//! * Parts, on the first seed: the least limit of FIFO below limits (order), without caps and clocks, where a
//!   limit counts each used GPU with its default cap, without other sizes, and without node sleep.
//! * The interval combines the spread over seeds and the prediction errors of power and speed, which are assumed
//!   to be the same for all workloads. It begins at no node where a seed reaches the target at no limit.
//! * A large trace is sampled ([`super::sample`]); the limit of a sample is in proportion to its nodes.

mod least_limit;
mod screen;

use std::sync::Mutex;

use serde::Serialize;
use wattle_common::Power;
use wattle_common::topology::ClusterShape;
use wattle_simulator::SimulationError;
use wattle_simulator::replay::is_recorded;
use wattle_simulator::text::pluralize;
use wattle_world::World;

use self::least_limit::{LeastLimit, least_limit};
use super::draw::{Draw, Draws};
use super::interval::{prediction_error, spread};
use super::runs::{Count, Features, Jobs, PREDICTED_COST, Progress, Runner};
use super::study::jobs_max;
use super::totals::{mean, rounded, totals};
use super::{SavingError, SavingInput, SavingOptions, Totals, assumptions};
use crate::baseline::BaselineKind;
use crate::parallel::in_parallel;
use crate::schedule::{Schedule, Times};

/// The limits of a curve, as shares of the power of all nodes with all GPUs at their default caps.
const SHARES: [f64; 7] = [1.0, 0.75, 0.6, 0.5, 0.42, 0.35, 0.28];

/// No run is made below a limit at which the mean completion time is this many times the target: it only grows.
const FAR: f64 = 1.5;

/// Further seeds are run at limits within this factor of the least one of the first seed.
const NEAR: f64 = 1.5;

/// Relative difference of mean completion times that counts as none: policies start a job some seconds after it
/// could start.
const SAME_TIME: f64 = 0.01;

/// Relative change of the least limit by predictions below which the run on predictions is not repeated.
const SAME_LIMIT: f64 = 0.01;

/// Largest number of simulated jobs relative to that of [`super::estimate`], whose runs have no limit and are
/// shorter.
const JOBS_SHARE: f64 = 0.3;

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// No limit reaches the target: no more nodes fit.
    NotReached,
    /// The least limit was found.
    Found,
    /// Every examined limit reaches the target: the number of nodes is a lower bound.
    AtLeast,
}

/// Nodes that fit more than without a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CapacityParts {
    /// Without another order of jobs than FIFO's.
    pub order: f64,
    /// Without caps and clocks.
    pub settings: f64,
    /// Without other numbers of GPUs than requested; null where no job is resized.
    pub sizes: Option<f64>,
    /// Without node sleep; null where nodes do not sleep.
    pub sleep: Option<f64>,
}

/// An estimate of the capacity below a power limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CapacityEstimate {
    /// The trace's name.
    pub trace: String,
    /// The cluster.
    pub cluster: String,
    /// Number of jobs of the trace.
    pub jobs: usize,
    /// Number of nodes of the cluster.
    pub nodes: usize,
    /// The power limit, kW.
    pub limit_kw: f64,
    /// Whether the baseline is the recorded schedule; otherwise it is FIFO.
    pub recorded: bool,
    /// Whether any job may be stopped, moved and resized.
    pub can_stop: bool,
    /// Whether a least limit was found.
    pub answer: Answer,
    /// Nodes that fit below the limit besides the given ones; negative where those do not fit.
    pub more_nodes: i64,
    /// Lower end of its 90 % interval.
    pub more_nodes_low: f64,
    /// Its upper end.
    pub more_nodes_high: f64,
    /// The least limit of the given nodes, kW; the highest examined one where no limit reaches the target.
    pub least_limit_kw: f64,
    /// The baseline, without a limit.
    pub baseline: Totals,
    /// Wattle's schedule on the given nodes below the least limit.
    pub wattle: Totals,
    /// Time of that schedule above its limit, s.
    pub exceeded_s: f64,
    /// The parts, in nodes; absent without an answer.
    pub parts: Option<CapacityParts>,
    /// Mean completion time of Wattle over the limit of the given nodes, as (kW, s), ascending.
    pub curve: Vec<(f64, f64)>,
    /// The same of FIFO.
    pub fifo: Vec<(f64, f64)>,
    /// What the estimate assumes, and how it was made.
    pub assumptions: Vec<String>,
}

/// Power of all nodes with GPUs at their default caps, and without jobs, W.
fn power_range(world: &World, cluster: &ClusterShape, sleeps: bool) -> (f64, f64) {
    let nodes = cluster.nodes().filter_map(|(gpus, gpu_type)| {
        let gpu = world.gpu(gpu_type)?;
        let (host_w, count) = (world.host_power_of(gpu, gpus).as_w(), f64::from(gpus));
        let idle_w = host_w + count * gpu.idle.as_w();
        let least_w = if sleeps { gpu.sleep.power.as_w() } else { idle_w };
        Some((host_w + count * gpu.cap_default.as_w(), least_w))
    });
    nodes.fold((0.0, 0.0), |(most, least), node| (most + node.0, least + node.1))
}

/// What is run at each limit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Variant {
    Wattle(Features),
    Fifo,
}

/// Runs of one draw below limits, from the highest on. It ends where the target is far.
struct Sweep<'d> {
    draw: &'d Draw,
    variant: Variant,
    limits_w: Vec<f64>,
}

/// A run below a limit.
struct LimitedRun {
    limit_w: f64,
    /// Mean completion time, s; infinite where jobs are unfinished.
    jct_s: f64,
    schedule: Schedule,
}

/// The mean completion times over limits.
fn curve(runs: &[LimitedRun]) -> Vec<(f64, f64)> {
    runs.iter().map(|run| (run.limit_w, run.jct_s)).collect()
}

/// The longest mean completion time that counts as the baseline's, s.
fn target_s(draw: &Draw) -> f64 {
    Times::of(&draw.baseline, &draw.baseline).completion_s_mean * (1.0 + SAME_TIME)
}

struct Study<'a> {
    draws: Draws<'a>,
    limits_w: Vec<f64>,
}

impl Study<'_> {
    fn run(
        &self,
        draw: &Draw,
        variant: Variant,
        limit_w: f64,
    ) -> Result<Schedule, SimulationError> {
        let (runner, limit) = (self.draws.runner, Power::from_w_f64(limit_w));
        match variant {
            Variant::Fifo => runner.fifo_below(&draw.scenario, limit),
            Variant::Wattle(features) => {
                runner.run(&draw.scenario, Features { limit: Some(limit), ..features }, 0.0)
            }
        }
    }

    /// The runs of each sweep, in the order of the sweeps and of their limits.
    fn run_all(&self, sweeps: &[Sweep<'_>]) -> Result<Vec<Vec<LimitedRun>>, SavingError> {
        let threads = self.draws.runner.options.threads;
        Ok(in_parallel(sweeps, threads, |sweep| self.run_sweep(sweep), &mut |_| ())?)
    }

    fn run_sweep(&self, sweep: &Sweep<'_>) -> Result<Vec<LimitedRun>, SimulationError> {
        let Sweep { draw, variant, ref limits_w } = *sweep;
        let mut runs = Vec::with_capacity(limits_w.len());
        for &limit_w in limits_w {
            let schedule = self.run(draw, variant, limit_w)?;
            let is_complete = schedule.finished >= draw.baseline.finished;
            let jct_s = Times::of(&schedule, &draw.baseline).completion_s_mean;
            let jct_s = if is_complete { jct_s } else { f64::INFINITY };
            runs.push(LimitedRun { limit_w, jct_s, schedule });
            // FIFO's runs are short, and its curve is drawn.
            let far_s = if variant == Variant::Fifo { f64::MAX } else { FAR * target_s(draw) };
            if jct_s > far_s {
                break;
            }
        }
        let left = limits_w.len() - runs.len();
        self.draws.runner.progress.add(left * draw.scenario.jobs.len());
        Ok(runs)
    }

    /// The limits near the least one, at which further seeds are run.
    fn near(&self, least: LeastLimit) -> Vec<f64> {
        let highest_w = self.limits_w.iter().copied().fold(0.0, f64::max);
        let least_w = least.value().unwrap_or(highest_w);
        let range = least_w / NEAR..=least_w * NEAR;
        self.limits_w.iter().copied().filter(|limit_w| range.contains(limit_w)).collect()
    }
}

/// Estimates how many nodes fit below `limit`. Of `options`, the bound on completion times is not used.
/// `progress` receives a count and its final value.
///
/// # Errors
/// If the trace cannot run on the cluster, a simulation fails, or the nodes exceed the limit without jobs.
pub fn capacity(
    input: &SavingInput<'_>,
    limit: Power,
    options: SavingOptions,
    progress: &mut (dyn FnMut(usize, usize) + Send),
) -> Result<CapacityEstimate, SavingError> {
    let SavingInput { world, trace, cluster, .. } = *input;
    let (most_all_w, least_all_w) = power_range(world, cluster, options.sleep);
    if limit.as_w() <= least_all_w {
        let [limit, least] = [limit.as_w(), least_all_w].map(|w| screen::kw(w / 1e3));
        let remedy = if options.sleep {
            "give a higher limit"
        } else {
            "give a higher limit, or let unused nodes sleep (without --no-sleep)"
        };
        return Err(SavingError::LimitTooLow { limit, least, remedy });
    }
    let all = Jobs { world, trace, cluster, carbon: None, prices: None, load: options.load };
    let scenario_all = all.scenario(input.restartable, options.seed)?;
    let progress = Progress { report: Mutex::new(Count { done: 0, of: 0, report: progress }) };
    let runner = Runner { world, options, progress: &progress };
    let jobs_max = (JOBS_SHARE * jobs_max(&options, &scenario_all) as f64).ceil() as usize;
    let recorded = is_recorded(trace);
    let kind = if recorded { BaselineKind::Recorded } else { BaselineKind::Fifo };
    let draws = Draws { input, all, baseline: kind, jobs_max, runner: &runner };
    let sample = draws.sample(options.seed);
    let simulated = sample.as_ref().map_or(cluster, |sample| &sample.cluster);
    let jobs = sample.as_ref().map_or(trace.jobs.len(), |sample| sample.trace.jobs.len());
    let (most_w, least_w) = power_range(world, simulated, options.sleep);
    // From the simulated nodes to all nodes.
    let scale = most_all_w / most_w.max(f64::MIN_POSITIVE);
    let limits_w: Vec<f64> =
        SHARES.iter().map(|share| share * most_w).filter(|limit_w| *limit_w > least_w).collect();
    let is_drawn = scenario_all.workloads.iter().any(|share| share.drawn) || sample.is_some();
    let count = if is_drawn { options.seeds.max(1) } else { 1 };
    let seeds: Vec<u64> = (0..count).map(|more| options.seed.wrapping_add(more)).collect();

    let features = Features::all(&options);
    let can_stop = scenario_all.jobs.iter().any(|job| job.can_stop);
    let mut without =
        vec![Variant::Fifo, Variant::Wattle(Features { settings: false, ..features })];
    without.extend(
        (can_stop && features.sizes)
            .then_some(Variant::Wattle(Features { sizes: false, ..features })),
    );
    without.extend(options.sleep.then_some(Variant::Wattle(Features { sleep: false, ..features })));
    let baselines = if recorded { 0 } else { seeds.len() };
    let first_curves = (1 + without.len()) * limits_w.len();
    progress.expect(jobs * (first_curves + 2 * PREDICTED_COST + baselines));

    let study = Study { draws, limits_w };
    let draw = |seed: &u64| study.draws.draw(*seed);
    let draws = in_parallel(&seeds, options.threads, draw, &mut |_| ())?;
    let Some(first) = draws.first() else { return Err(SavingError::NoJobs) };
    let target_of_first_s = target_s(first);
    if target_of_first_s <= 0.0 {
        return Err(SavingError::NoJobs);
    }
    let sweep = |variant| Sweep { draw: first, variant, limits_w: study.limits_w.clone() };
    let variants = [Variant::Wattle(features)].into_iter().chain(without.iter().copied());
    let sweeps: Vec<Sweep<'_>> = variants.map(sweep).collect();
    let mut curves: Vec<Vec<(f64, f64)>> =
        study.run_all(&sweeps)?.iter().map(|runs| curve(runs)).collect();
    let parts_curves = curves.split_off(1);

    // The run on predictions at the least limit on exact surfaces takes about as long as the further seeds together.
    let exact = least_limit(&curves[0], target_of_first_s);
    let highest_w = study.limits_w.iter().copied().fold(0.0, f64::max);
    // Where no limit reaches the target, the run without a binding limit is one of the curve.
    let is_reached = !matches!(exact, LeastLimit::None);
    let main_variant = Variant::Wattle(Features { exact: !is_reached, ..features });
    let exact_w = exact.value().unwrap_or(highest_w);
    let near = study.near(exact);
    let at_exact = Sweep { draw: first, variant: main_variant, limits_w: vec![exact_w] };
    let further = draws[1..].iter().map(|draw| {
        let variant = Variant::Wattle(features);
        Sweep { draw, variant, limits_w: near.clone() }
    });
    progress.expect(jobs * (draws.len() - 1) * near.len());
    let sweeps: Vec<Sweep<'_>> = [at_exact].into_iter().chain(further).collect();
    let mut runs = study.run_all(&sweeps)?;
    curves.extend(runs[1..].iter().map(|runs| curve(runs)));
    let Some(at_exact) = runs.swap_remove(0).pop() else { return Err(SavingError::NoJobs) };

    let mean_s = |schedule: &Schedule| Times::of(schedule, &first.baseline).completion_s_mean;
    let mut on_predictions = vec![(exact_w, mean_s(&at_exact.schedule))];
    let mut main = at_exact.schedule;
    // A limit that is not reached, or reached by every run, is not between two runs.
    if matches!(exact, LeastLimit::At(_)) {
        let mut higher: Vec<f64> = study.limits_w.clone();
        higher.retain(|limit_w| *limit_w > exact_w * (1.0 + SAME_LIMIT));
        higher.sort_by(f64::total_cmp);
        for limit_w in higher {
            if mean_s(&main) <= target_of_first_s {
                break;
            }
            progress.expect(jobs * PREDICTED_COST);
            main = study.run(first, main_variant, limit_w)?;
            on_predictions.push((limit_w, mean_s(&main)));
        }
    }
    let corrected_w = least_limit(&on_predictions, target_of_first_s).value().unwrap_or(highest_w);
    let higher = (corrected_w / exact_w).max(1.0);
    let least_of =
        |curve: &[(f64, f64)], draw: &Draw| least_limit(curve, target_s(draw)).scaled(higher);
    let found: Vec<LeastLimit> =
        curves.iter().zip(&draws).map(|(curve, draw)| least_of(curve, draw)).collect();
    if on_predictions.len() > 1 {
        main = study.run(first, main_variant, corrected_w)?;
    }
    // The steps of runs that were not needed.
    progress.finish();

    let nodes = cluster.node_count();
    // Nodes that fit below the limit in place of the given ones.
    let fitting = |least: LeastLimit| {
        least.value().map(|limit_w| nodes as f64 * limit.as_w() / (scale * limit_w))
    };
    let by_seed: Vec<f64> = found.iter().filter_map(|&least| fitting(least)).collect();
    let missing = found.len() - by_seed.len();
    let answer = match found[0] {
        _ if 2 * missing > found.len() => Answer::NotReached,
        LeastLimit::None => Answer::NotReached,
        LeastLimit::AtMost(_) => Answer::AtLeast,
        LeastLimit::At(_) => Answer::Found,
    };
    let fits = match answer {
        Answer::NotReached => nodes as f64,
        _ => mean(by_seed.iter().copied()),
    };
    let error = prediction_error(main.prediction.as_ref());
    let (by_seeds, by_model) = (spread(&by_seed), fits * error.unwrap_or(0.0) * NORMAL_90);
    let half_width = by_seeds.hypot(by_model);
    // No number of nodes is certain where a seed reaches the target at no limit.
    let fits_low = if missing > 0 { 0.0 } else { (fits - half_width).max(0.0) };
    let least_limit_kw = match answer {
        Answer::NotReached => scale * highest_w / 1e3,
        _ => limit.as_w() * nodes as f64 / fits / 1e3,
    };
    let parts = (answer != Answer::NotReached).then(|| {
        let own = fitting(found[0]).unwrap_or(fits);
        // Where no limit reaches the target without a part, all of the nodes are due to it.
        let part = |variant: Variant| {
            let at = without.iter().position(|known| *known == variant)?;
            let fitting = fitting(least_of(&parts_curves[at], first)).unwrap_or(0.0);
            Some(rounded(own - fitting))
        };
        CapacityParts {
            order: part(Variant::Fifo).unwrap_or_default(),
            settings: part(Variant::Wattle(Features { settings: false, ..features }))
                .unwrap_or_default(),
            sizes: part(Variant::Wattle(Features { sizes: false, ..features })),
            sleep: part(Variant::Wattle(Features { sleep: false, ..features }))
                .filter(|_| options.sleep),
        }
    });
    let exceeded_s = main.exceeded_s;
    let (before, after) = study.draws.one_period(first, &main);
    let pair = [(&before, &after)];
    let baseline = totals(pair.iter().copied(), scale);
    let wattle = totals(pair.iter().map(|&(before, after)| (after, before)), scale);
    let to_all = |curve: &[(f64, f64)]| {
        let mut points: Vec<(f64, f64)> =
            curve.iter().filter(|point| point.1.is_finite()).copied().collect();
        for (w, s) in &mut points {
            (*w, *s) = (rounded(scale * *w / 1e3), rounded(*s));
        }
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    };
    let mut estimate = CapacityEstimate {
        trace: trace.name.clone(),
        cluster: cluster.to_string(),
        jobs: trace.jobs.len(),
        nodes,
        limit_kw: limit.as_w() / 1e3,
        recorded,
        can_stop,
        answer,
        more_nodes: (fits + 1e-9).floor() as i64 - nodes as i64,
        more_nodes_low: rounded(fits_low - nodes as f64),
        more_nodes_high: rounded(fits + half_width - nodes as f64),
        least_limit_kw: rounded(least_limit_kw),
        baseline,
        wattle,
        exceeded_s,
        parts,
        curve: to_all(&curves[0]),
        fifo: to_all(&parts_curves[0]),
        assumptions: Vec::new(),
    };
    let mut all = vec![assumptions::baseline(kind)];
    all.extend(assumptions::suspended(trace).filter(|_| recorded));
    all.extend(options.load.map(assumptions::load));
    all.push(format!(
        "As soon: a mean completion time at most {:.0} % longer than the baseline's.",
        100.0 * SAME_TIME
    ));
    let unfinished = first.scenario.jobs.len() - first.baseline.finished;
    all.extend((unfinished > 0).then(|| {
        format!("{} left out that the baseline does not complete.", pluralize(unfinished, "job"))
    }));
    all.push(
        "More nodes are of the same kinds and bring more jobs in proportion, at the same load; their shorter \
         queues are left out."
            .to_owned(),
    );
    all.extend(assumptions::drawn(&scenario_all, trace.jobs.len()));
    all.push(assumptions::restarts(input.restartable, options.share));
    all.extend(options.sizes.assumption().filter(|_| can_stop).map(str::to_owned));
    all.extend(options.sleep.then(assumptions::sleep));
    all.extend(sample.as_ref().map(|sample| {
        format!("{}; the limit in proportion to its nodes.", assumptions::simulated_on(sample))
    }));
    if answer != Answer::NotReached {
        all.push(screen::interval_of(by_seed.len(), by_seeds, error, by_model));
    }
    if missing > 0 {
        all.push(format!(
            "In {missing} of {} seeds no limit reaches the baseline's completion time.",
            found.len()
        ));
    }
    all.extend(is_reached.then(|| screen::predictions(higher)));
    all.extend((exceeded_s > 0.0).then(|| screen::exceeded(exceeded_s)));
    all.push(
        "The nodes have no limit but this one: neither breakers, cooling nor GPUs' share of it."
            .to_owned(),
    );
    all.push(assumptions::work());
    estimate.assumptions = all;
    Ok(estimate)
}

/// Half-width of a 90 % interval of a normal error whose mean absolute value is 1.
const NORMAL_90: f64 = 1.645 * 1.253_314_137;
