//! The study behind an estimate: searches, parts, seeds and totals.
//!
//! Stages, each of independent tasks that run in parallel:
//!
//! 1. Draws: the jobs and the baseline of each seed.
//! 2. The price search on exact surfaces, for each declaration of restartable jobs, and the runs on
//!    predictions at price 0.
//! 3. At the price that was found: the runs on predictions, the runs without each part, and the further
//!    seeds.
//! 4. Further prices on predictions, where the bound is exceeded or not reached.

use std::sync::Mutex;

use wattle_simulator::replay::is_recorded;
use wattle_simulator::trace::Trace;
use wattle_simulator::{Restartable, Scenario, SimulationError};

use super::draw::{Draw, Draws};
use super::interval::{model_error, prediction_error, spread};
use super::parts::{Part, leave_one_out};
use super::runs::{Count, Features, Jobs, PREDICTED_COST, Pooled, Progress, Runner};
use super::sample::Sample;
use super::{End, Parts, Saved, SavingError, SavingEstimate, SavingInput, SavingOptions, Totals};
use crate::aim::{AimOutcome, RUNS_MAX};
use crate::parallel::in_parallel;
use crate::schedule::{Schedule, Times};

pub(super) fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    if count > 0.0 { sum / count } else { 0.0 }
}

/// An independent part of a study.
enum Task<'a> {
    /// A price search on exact surfaces.
    Search(&'a [Scenario]),
    /// A run at a price.
    Run(&'a Scenario, Features, f64),
    /// The saving under a further seed at a price, on exact surfaces.
    Seed(u64, f64),
}

enum Done {
    Search(Box<AimOutcome<Pooled>>),
    Run(Box<Schedule>),
    Seed(f64),
}

/// The results of tasks, each kind in the order of the tasks.
#[derive(Default)]
struct Results {
    searches: Vec<AimOutcome<Pooled>>,
    runs: Vec<Schedule>,
    saved_kwh: Vec<f64>,
}

/// What is simulated: how many jobs, with which seeds, and which parts.
struct Design {
    features: Features,
    parts: Vec<(Part, Features)>,
    /// Seeds of the totals.
    seeds: Vec<u64>,
    /// Further seeds of the interval.
    further: Vec<u64>,
    /// The declarations of restartable jobs besides that of the input, with their places in
    /// [`SavingEstimate::ends`].
    others: Vec<(usize, Restartable)>,
    /// Whether every seed gives the same runs on exact surfaces.
    seeds_are_equal: bool,
}

struct Study<'a> {
    draws: Draws<'a>,
    design: Design,
}

impl Study<'_> {
    fn work(&self, task: &Task<'_>) -> Result<Done, SavingError> {
        let (runner, features) = (self.draws.runner, self.design.features);
        Ok(match *task {
            Task::Search(scenarios) => Done::Search(Box::new(runner.search(scenarios, features)?)),
            Task::Run(scenario, features, price) => {
                Done::Run(Box::new(runner.run(scenario, features, price)?))
            }
            Task::Seed(seed, price) => {
                let draw = self.draws.draw(seed)?;
                let after = runner.run(&draw.scenario, features, price)?;
                Done::Seed(self.draws.saved_kwh(&draw, &after))
            }
        })
    }

    fn solve(&self, tasks: &[Task<'_>]) -> Result<Results, SavingError> {
        let threads = self.draws.runner.options.threads;
        let mut results = Results::default();
        for done in in_parallel(tasks, threads, |task| self.work(task), &mut |_| ())? {
            match done {
                Done::Search(aim) => results.searches.push(*aim),
                Done::Run(schedule) => results.runs.push(*schedule),
                Done::Seed(saved_kwh) => results.saved_kwh.push(saved_kwh),
            }
        }
        Ok(results)
    }

    /// Runs on predictions of all draws at a price.
    fn predicted<'d>(&self, draws: &'d [Draw], price: f64) -> impl Iterator<Item = Task<'d>> {
        let features = Features { exact: false, ..self.design.features };
        draws.iter().map(move |draw| Task::Run(&draw.scenario, features, price))
    }

    /// Announces the simulation steps to the progress.
    fn expect(&self, jobs: usize, all_jobs: usize) {
        let Design { parts, seeds, further, others, .. } = &self.design;
        let baselines = usize::from(!self.draws.recorded);
        // One of backfilling.
        let plain = 1 + parts.len() + baselines;
        let of_seed = (1 + others.len()) * RUNS_MAX + 2 * PREDICTED_COST + plain;
        let of_further = 1 + baselines;
        self.draws.runner.progress.expect(
            jobs * (seeds.len() * of_seed + further.len() * of_further) + baselines * all_jobs,
        );
    }
}

/// Designs a study of `jobs` simulated jobs. `scenario` has all jobs of the trace.
fn design(
    input: &SavingInput<'_>,
    options: &SavingOptions,
    scenario: &Scenario,
    jobs: usize,
    jobs_max: usize,
) -> Design {
    let features = Features::all(options);
    let drawn = scenario.workloads.iter().any(|share| share.drawn);
    let by_seed = matches!(input.restartable, Restartable::Share(_));
    let seeds_are_equal = !drawn && !by_seed && jobs == scenario.jobs.len();
    // Small traces are simulated with several seeds, since the times of few jobs depend on chance.
    let fitting = (jobs_max as f64 / jobs.max(1) as f64).round() as u64;
    let count = if seeds_are_equal { 1 } else { fitting.clamp(1, options.seeds.max(1)) };
    let mut seeds = (0..options.seeds.max(1)).map(|more| options.seed.wrapping_add(more));
    let totals: Vec<u64> = seeds.by_ref().take(count as usize).collect();
    let further = if seeds_are_equal { Vec::new() } else { seeds.collect() };
    let declares = |end: &Restartable| {
        let mut pairs = scenario.jobs.iter().zip(&input.trace.jobs);
        pairs.all(|(job, traced)| {
            end.permits(&job.id, traced.can_checkpoint, options.seed) == job.can_stop
        })
    };
    let ends = [Restartable::None, Restartable::All];
    let own = ends.iter().position(declares);
    let others = ends.into_iter().enumerate().filter(|(i, _)| own != Some(*i)).collect();
    let parts = leave_one_out(features, scenario);
    Design { features, parts, seeds: totals, further, others, seeds_are_equal }
}

/// Largest number of simulated jobs. A restartable job takes longer to simulate, since more placements
/// are compared.
pub(super) fn jobs_max(options: &SavingOptions, scenario: &Scenario) -> usize {
    let jobs = scenario.jobs.len().max(1);
    let restartable = scenario.jobs.iter().filter(|job| job.can_stop).count();
    (options.jobs_max * 2 * jobs / (2 * jobs + restartable)).max(1)
}

/// Estimates the saving. `progress` receives a count and its final value, which grows where the search
/// on predictions needs further prices.
///
/// # Errors
/// If the trace cannot run on the cluster, or a simulation fails.
pub fn estimate(
    input: &SavingInput<'_>,
    options: SavingOptions,
    progress: &mut (dyn FnMut(usize, usize) + Send),
) -> Result<SavingEstimate, SavingError> {
    let (world, trace) = (input.world, input.trace);
    let SavingInput { cluster, carbon, prices, .. } = *input;
    let all = Jobs { world, trace, cluster, carbon, prices };
    let scenario_all = all.scenario(input.restartable, options.seed)?;
    let progress = Progress { report: Mutex::new(Count { done: 0, of: 0, report: progress }) };
    let runner = Runner { world, options, progress: &progress };
    let jobs_max = jobs_max(&options, &scenario_all);
    let recorded = is_recorded(trace);
    let draws = Draws { input, all, recorded, jobs_max, runner: &runner };
    let sample = draws.sample(options.seed);
    let simulated = sample.as_ref().map_or(trace.jobs.len(), |sample| sample.trace.jobs.len());
    let design = design(input, &options, &scenario_all, simulated, jobs_max);
    let study = Study { draws, design };
    study.expect(simulated, sample.as_ref().map_or(0, |_| trace.jobs.len()));
    let Study { draws: drawer, design } = &study;

    let draw = |seed: &u64| drawer.draw(*seed);
    let draws = in_parallel(&design.seeds, options.threads, draw, &mut |_| ())?;
    let backfill = |draw: &Draw| runner.backfill(&draw.scenario);
    let backfilled = in_parallel(&draws, options.threads, backfill, &mut |_| ())?;
    let baseline_all = sample.as_ref().map(|_| drawer.baseline_all(options.seed)).transpose()?;
    let own_jobs: Vec<Scenario> = draws.iter().map(|draw| draw.scenario.clone()).collect();
    let redeclare = |(_, end): &(usize, Restartable)| drawer.redeclared(&draws, end);
    let others = design.others.iter().map(redeclare).collect::<Result<Vec<_>, _>>()?;
    let mut tasks = vec![Task::Search(&own_jobs)];
    tasks.extend(study.predicted(&draws, 0.0));
    tasks.extend(others.iter().map(|jobs| Task::Search(jobs)));
    let Results { searches, runs: at_zero, .. } = study.solve(&tasks)?;
    let mut searches = searches.into_iter();
    let Some(own) = searches.next() else { return Err(SavingError::NoJobs) };
    let exact_price = own.price();
    let own = own.into_run();

    let is_priced = exact_price > 0.0;
    let mut tasks: Vec<Task<'_>> = Vec::new();
    if is_priced {
        tasks.extend(study.predicted(&draws, exact_price));
    }
    for (_, features) in &design.parts {
        tasks.extend(draws.iter().map(|draw| Task::Run(&draw.scenario, *features, exact_price)));
    }
    tasks.extend(design.further.iter().map(|seed| Task::Seed(*seed, exact_price)));
    let Results { mut runs, saved_kwh: saved_further, .. } = study.solve(&tasks)?;
    let without = runs.split_off(if is_priced { draws.len() } else { 0 });

    // The search on predictions has its first two prices.
    let mut known = vec![(0.0, Pooled::of(at_zero))];
    if is_priced {
        known.push((exact_price, Pooled::of(runs)));
    } else {
        runner.progress.add(PREDICTED_COST * simulated * draws.len());
    }
    let run_at_price = |price: f64| -> Result<Pooled, SimulationError> {
        if let Some(at) = known.iter().position(|(known, _)| known.total_cmp(&price).is_eq()) {
            return Ok(known.swap_remove(at).1);
        }
        runner.progress.expect(PREDICTED_COST * simulated * draws.len());
        let features = Features { exact: false, ..design.features };
        let run = |draw: &Draw| runner.run(&draw.scenario, features, price);
        in_parallel(&draws, options.threads, run, &mut |_| ()).map(Pooled::of)
    };
    let main = runner.search_on_predictions(is_priced.then_some(exact_price), run_at_price)?;
    let (price, slowdown) = (main.price(), main.lateness().unwrap_or_default().mean);
    let main = main.into_run();

    let schedules: Vec<(Schedule, Schedule)> =
        draws.iter().zip(&main.runs).map(|(draw, run)| drawer.one_period(draw, run)).collect();
    let energy_kwh = mean(schedules.iter().map(|(before, _)| before.energy_kwh));
    if energy_kwh <= 0.0 || schedules.iter().any(|(_, after)| after.finished == 0) {
        return Err(SavingError::NoJobs);
    }
    // From the simulated jobs to all jobs.
    let scale = baseline_all.as_ref().map_or(1.0, |all| all.energy_kwh / energy_kwh);

    let mut left_out = Parts::default();
    for ((part, features), without) in design.parts.iter().zip(without.chunks(draws.len())) {
        let more = draws.iter().zip(&own.runs).zip(without).map(|((draw, with), without)| {
            let period_s = with.makespan_s.max(without.makespan_s);
            let with = with.clone().over(period_s, options.sleep, &draw.scenario);
            let without = without.clone().over(period_s, features.sleep, &draw.scenario);
            without.energy_kwh - with.energy_kwh
        });
        *left_out.of(*part) = rounded(scale * mean(more));
    }

    let saved_of = |pooled: &Pooled| -> Vec<f64> {
        let runs = draws.iter().zip(&pooled.runs);
        runs.map(|(draw, run)| scale * drawer.saved_kwh(draw, run)).collect()
    };
    let mean_saved_of = |pooled: &Pooled| mean(saved_of(pooled).into_iter());
    let mut saved_seeds = if design.seeds_are_equal { Vec::new() } else { saved_of(&own) };
    saved_seeds.extend(saved_further.into_iter().map(|saved_kwh| scale * saved_kwh));
    let by_seeds = spread(&saved_seeds);
    let pairs = || draws.iter().zip(&main.runs);
    let by_models =
        pairs().filter_map(|(draw, run)| model_error(&draw.scenario, &draw.baseline, run));
    let by_models: Vec<f64> = by_models.collect();
    let errors: Vec<f64> =
        main.runs.iter().filter_map(|run| prediction_error(run.prediction.as_ref())).collect();
    // Runs without a measured error contribute nothing.
    let by_model = if by_models.is_empty() { 0.0 } else { scale * mean(by_models.into_iter()) };
    let error = (!errors.is_empty()).then(|| mean(errors.into_iter()));

    // An end differs from the run on predictions as its search on exact surfaces differs from the own.
    let completion_of = |pooled: &Pooled| {
        let runs = draws.iter().zip(&pooled.runs);
        mean(runs.map(|(draw, run)| Times::of(run, &draw.baseline).completion_s_mean))
    };
    let end_of = |pooled: &Pooled| End {
        energy_kwh: rounded(mean_saved_of(&main) + mean_saved_of(pooled) - mean_saved_of(&own)),
        jct_s_mean: completion_of(&main) + completion_of(pooled) - completion_of(&own),
    };
    let mut ends = [end_of(&own); 2];
    for ((place, _), other) in design.others.iter().zip(searches) {
        ends[*place] = end_of(other.run());
    }

    let before = totals(schedules.iter().map(|(before, after)| (before, after)), scale);
    let after = totals(schedules.iter().map(|(before, after)| (after, before)), scale);
    let time_limits = backfilled.iter().flat_map(|run| &run.notes).next().cloned();
    let backfilled: Vec<Schedule> = backfilled
        .into_iter()
        .zip(&schedules)
        .zip(&draws)
        .map(|((run, (before, _)), draw)| run.over(before.makespan_s, false, &draw.scenario))
        .collect();
    let pairs = backfilled.iter().zip(&schedules).map(|(run, (_, after))| (run, after));
    let backfill = totals(pairs, scale);
    let saved_kwh = before.energy_kwh - after.energy_kwh;
    let half_width = by_seeds.hypot(by_model);
    let of_simulated = || mean(schedules.iter().map(|(before, _)| before.makespan_s));
    let period_s = baseline_all.as_ref().map_or_else(of_simulated, |all| all.makespan_s);
    let mut listed = Vec::new();
    for (seed, (before, after)) in design.seeds.iter().zip(schedules) {
        listed.push(("baseline", *seed, before));
        listed.push(("wattle", *seed, after));
    }
    listed.extend(baseline_all.map(|all| ("baseline-all", options.seed, all)));
    let mut estimate = SavingEstimate {
        trace: trace.name.clone(),
        cluster: input.cluster.to_string(),
        jobs: trace.jobs.len(),
        origin: trace.origin,
        period_s,
        recorded,
        baseline: before,
        backfill,
        wattle: after,
        saved: Saved {
            energy_kwh: rounded(saved_kwh),
            energy_kwh_low: rounded(saved_kwh - half_width),
            // A schedule saves at most all of the baseline's energy.
            energy_kwh_high: rounded((saved_kwh + half_width).min(before.energy_kwh)),
            cost: None,
            carbon_kg: None,
        },
        parts: left_out,
        ends,
        price,
        slowdown,
        options,
        assumptions: Vec::new(),
        schedules: listed,
    };
    let made = Made {
        trace: input.trace,
        time_limits: time_limits.as_deref(),
        sample: sample.as_ref(),
        restartable: input.restartable,
        scenario: &scenario_all,
        simulated_seeds: design.seeds.len(),
        seeds: saved_seeds.len(),
        by_seeds,
        by_model,
        error,
    };
    estimate.assumptions = made.assumptions(&estimate);
    Ok(estimate)
}

/// Means over the draws of the first schedule of each pair; times are over the jobs that complete in
/// both. `scale` is from the simulated jobs to all.
pub(super) fn totals<'s>(
    pairs: impl Iterator<Item = (&'s Schedule, &'s Schedule)> + Clone,
    scale: f64,
) -> Totals {
    let of = |part: fn(&Times) -> f64| {
        rounded(mean(pairs.clone().map(|(own, other)| part(&Times::of(own, other)))))
    };
    let scaled = |part: fn(&Schedule) -> Option<f64>| {
        let has_all = pairs.clone().all(|(own, _)| part(own).is_some());
        let value = mean(pairs.clone().filter_map(|(own, _)| part(own)));
        has_all.then(|| rounded(scale * value))
    };
    Totals {
        energy_kwh: rounded(scale * mean(pairs.clone().map(|(own, _)| own.energy_kwh))),
        jct_s_mean: of(|times| times.completion_s_mean),
        jct_s_p95: of(|times| times.completion_s_p95),
        wait_s_mean: of(|times| times.wait_s_mean),
        wait_s_p95: of(|times| times.wait_s_p95),
        carbon_kg: scaled(|own| own.carbon_kg),
        cost: scaled(|own| own.cost),
    }
}

/// How an estimate was made.
pub(super) struct Made<'a> {
    pub(super) trace: &'a Trace,
    /// Where the time limits of backfilling are from.
    pub(super) time_limits: Option<&'a str>,
    pub(super) sample: Option<&'a Sample>,
    pub(super) restartable: &'a Restartable,
    pub(super) scenario: &'a Scenario,
    /// Number of seeds of the totals, and of the interval.
    pub(super) simulated_seeds: usize,
    pub(super) seeds: usize,
    /// Half-widths of the interval, kWh.
    pub(super) by_seeds: f64,
    pub(super) by_model: f64,
    /// The prediction error behind `by_model`.
    pub(super) error: Option<f64>,
}

/// Rounds to a millionth, which removes rounding errors from the output.
pub(super) fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}
