//! The study behind an estimate: searches, parts, seeds and totals.
//!
//! Stages, each of independent tasks that run in parallel ([`super::tasks`]):
//!
//! 1. Draws: the jobs and the baseline of each seed.
//! 2. The price searches on exact surfaces, for each declaration of restartable jobs, and the runs on
//!    predictions at price 0. The points of the curve ([`super::points`]) share the runs of one search.
//! 3. At the prices that were found: the runs on predictions, the runs without each part, and the further
//!    seeds.
//! 4. Further prices on predictions, where a bound is exceeded or not reached.

use std::sync::Mutex;

use wattle_simulator::replay::is_recorded;
use wattle_simulator::trace::Trace;
use wattle_simulator::{Restartable, Scenario, SimulationError};

use super::draw::{Draw, Draws};
use super::points::{Behind, Measured};
use super::runs::{Count, Features, Found, Jobs, PREDICTED_COST, Pooled, Progress, Runner};
use super::sample::Sample;
use super::tasks::{Results, Study, Task, design};
use super::totals::{mean, rounded, totals};
use super::{End, Parts, SavingBound, SavingError, SavingEstimate, SavingInput, SavingOptions};
use crate::aim::{AimRun, Priced};
use crate::baseline::BaselineKind;
use crate::lateness::{Lateness, Projects, Reference};
use crate::parallel::in_parallel;
use crate::schedule::{Schedule, Times};

/// Largest number of simulated jobs. A restartable job takes longer to simulate, since more placements
/// are compared.
pub(super) fn jobs_max(options: &SavingOptions, scenario: &Scenario) -> usize {
    let jobs = scenario.jobs.len().max(1);
    let restartable = scenario.jobs.iter().filter(|job| job.can_stop).count();
    (options.jobs_max * 2 * jobs / (2 * jobs + restartable)).max(1)
}

/// The prices of points in the order of the bounds, each once.
fn distinct(found: &Found, bounds: usize) -> Vec<f64> {
    let mut prices: Vec<f64> = Vec::new();
    for price in (0..bounds).map(|bound| found.at(bound).price) {
        if !prices.iter().any(|known| known.total_cmp(&price).is_eq()) {
            prices.push(price);
        }
    }
    prices
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
    let all = Jobs { world, trace, cluster, carbon, prices, load: options.load };
    let scenario_all = all.scenario(input.restartable, options.seed)?;
    let progress = Progress { report: Mutex::new(Count { done: 0, of: 0, report: progress }) };
    let runner = Runner { world, options, progress: &progress };
    let jobs_max = jobs_max(&options, &scenario_all);
    // Every job of a simulation has a time limit, stated or drawn.
    let baseline = if is_recorded(trace) { BaselineKind::Recorded } else { BaselineKind::Backfill };
    let draws = Draws { input, all, baseline, jobs_max, runner: &runner };
    let sample = draws.sample(options.seed);
    let simulated = sample.as_ref().map_or(trace.jobs.len(), |sample| sample.trace.jobs.len());
    let design = design(input, &options, &scenario_all, simulated, jobs_max);
    let mut study = Study { draws, design, reference: None };
    study.expect(simulated, sample.as_ref().map_or(0, |_| trace.jobs.len()));

    let draw = |seed: &u64| study.draws.draw(*seed);
    let draws = in_parallel(&study.design.seeds, options.threads, draw, &mut |_| ())?;
    study.reference = match options.bound {
        SavingBound::Later(_) => Some(Reference {
            completion_s: draws.iter().flat_map(|d| d.baseline.completion_s.clone()).collect(),
            projects: Projects::default(),
        }),
        SavingBound::MaxSlowdown(_) => None,
    };
    let Study { draws: drawer, design, reference } = &study;
    let backfill = |draw: &Draw| match baseline {
        BaselineKind::Backfill => Ok(draw.baseline.clone()),
        _ => runner.baseline(&draw.scenario, BaselineKind::Backfill),
    };
    let backfilled = in_parallel(&draws, options.threads, backfill, &mut |_| ())?;
    let baseline_all = sample.as_ref().map(|_| drawer.baseline_all(options.seed)).transpose()?;
    let own_jobs: Vec<Scenario> = draws.iter().map(|draw| draw.scenario.clone()).collect();
    let redeclare = |(_, end): &(usize, Restartable)| drawer.redeclared(&draws, end);
    let others = design.others.iter().map(redeclare).collect::<Result<Vec<_>, _>>()?;
    let (bounds, shown) = (&design.bounds, design.shown);
    let mut tasks: Vec<Task<'_>> = study.predicted(&draws, 0.0).collect();
    tasks.extend(draws.iter().map(|draw| Task::Run(&draw.scenario, design.features, 0.0)));
    let mut at_zero = study.solve(&tasks)?.runs;
    let exact_at_zero = Pooled::of(at_zero.split_off(draws.len()));
    let at_zero = Pooled::of(at_zero);
    // With fixed sizes the mean completion time of a few hundred jobs varies by several per cent with any change,
    // so the price on exact surfaces is searched relative to the run at price 0.
    let ratio = ratio(&at_zero, &exact_at_zero);
    let on_exact: Vec<SavingBound> = bounds.iter().map(|bound| bound.on_exact(ratio)).collect();
    let mut tasks = vec![Task::Search(&own_jobs, &on_exact)];
    tasks.extend(others.iter().map(|jobs| Task::Search(jobs, &on_exact[shown..=shown])));
    let mut searches = study.solve(&tasks)?.searches.into_iter();
    let Some(exact) = searches.next() else { return Err(SavingError::NoJobs) };
    let own = &exact.at(shown).run;

    let prices = distinct(&exact, bounds.len());
    let mut tasks: Vec<Task<'_>> = Vec::new();
    for price in prices.iter().copied().filter(|price| *price > 0.0) {
        tasks.extend(study.predicted(&draws, price));
    }
    for (_, features) in &design.parts {
        let price = exact.at(shown).price;
        tasks.extend(draws.iter().map(|draw| Task::Run(&draw.scenario, *features, price)));
    }
    for &price in &prices {
        tasks.extend(design.further.iter().map(|seed| Task::Seed(*seed, price)));
    }
    let Results { mut runs, saved_kwh: saved_further, .. } = study.solve(&tasks)?;
    let positive: Vec<f64> = prices.iter().copied().filter(|price| *price > 0.0).collect();
    let without = runs.split_off(positive.len() * draws.len());

    // The search on predictions has the runs at price 0 and at the prices on exact surfaces.
    let mut predicted: Vec<Priced<Pooled>> = Vec::new();
    let mut runs = runs.into_iter();
    predicted.push(priced(0.0, at_zero, reference.as_ref()));
    for price in positive {
        let run = Pooled::of(runs.by_ref().take(draws.len()).collect());
        let own = Reference {
            completion_s: predicted[0].run.completion_s().to_vec(),
            ..Reference::default()
        };
        predicted.push(priced(price, run, Some(reference.as_ref().unwrap_or(&own))));
    }
    let run_at_price = |price: f64| -> Result<Pooled, SimulationError> {
        runner.progress.expect(PREDICTED_COST * simulated * draws.len());
        let features = Features { exact: false, ..design.features };
        let run = |draw: &Draw| runner.run(&draw.scenario, features, price);
        in_parallel(&draws, options.threads, run, &mut |_| ()).map(Pooled::of)
    };
    // The point that is shown first, since the others use its runs.
    let others = (0..bounds.len()).filter(|bound| *bound != shown);
    for bound in std::iter::once(shown).chain(others) {
        if exact.at(bound).price > 0.0 {
            let (share, is_shown) = (bounds[bound], bound == shown);
            let reference = reference.as_ref();
            runner.search_on_predictions(
                share,
                is_shown,
                reference,
                &mut predicted,
                run_at_price,
            )?;
        }
    }
    let predicted = Found::of(predicted, bounds);

    let all_kwh = baseline_all.as_ref().map(|all| all.energy_kwh);
    let mut points: Vec<Measured> = Vec::new();
    for (place, bound) in bounds.iter().enumerate() {
        let (exact, main) = (exact.at(place), predicted.at(place));
        let is_exact = |known: &f64| known.total_cmp(&exact.price).is_eq();
        let further = prices.iter().position(is_exact).unwrap_or(0) * design.further.len();
        let further = saved_further.iter().skip(further).take(design.further.len());
        let pairs = draws.iter().zip(&exact.run.runs);
        let of_draws = pairs.map(|(draw, run)| drawer.saved_kwh(draw, run));
        let behind = Behind {
            bound: *bound,
            is_within: predicted.is_within(place),
            price: main.price,
            main: &main.run,
            saved_seeds: if design.seeds_are_equal {
                Vec::new()
            } else {
                of_draws.chain(further.copied()).collect()
            },
        };
        points.push(behind.measure(drawer, &draws, all_kwh));
    }
    let curve: Vec<_> = points.iter().map(|measured| measured.point).collect();
    let seeds = if design.seeds_are_equal { 0 } else { draws.len() + design.further.len() };
    let main = &predicted.at(shown).run;
    let slowdown = predicted.at(shown).lateness.unwrap_or_default().mean;
    let Measured { point, schedules, scale, by_seeds, by_model, error } = points.swap_remove(shown);
    if point.baseline.energy_kwh <= 0.0 || schedules.iter().any(|(_, after)| after.finished == 0) {
        return Err(SavingError::NoJobs);
    }

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

    let mean_saved_of = |pooled: &Pooled| {
        let runs = draws.iter().zip(&pooled.runs);
        scale * mean(runs.map(|(draw, run)| drawer.saved_kwh(draw, run)))
    };
    // Each relative to the baseline over its own period.
    let share_of = |pooled: &Pooled| {
        let runs = || draws.iter().zip(&pooled.runs);
        let before = |(draw, run)| drawer.one_period(draw, run).0.energy_kwh;
        let saved_kwh = mean(runs().map(|(draw, run)| drawer.saved_kwh(draw, run)));
        saved_kwh / mean(runs().map(before)).max(f64::MIN_POSITIVE)
    };
    // An end differs from the run on predictions as its search on exact surfaces differs from the own.
    let completion_of = |pooled: &Pooled| {
        let runs = draws.iter().zip(&pooled.runs);
        mean(runs.map(|(draw, run)| Times::of(run, &draw.baseline).completion_s_mean))
    };
    let end_of = |pooled: &Pooled| End {
        energy_kwh: rounded(mean_saved_of(main) + mean_saved_of(pooled) - mean_saved_of(own)),
        energy_share: rounded(share_of(main) + share_of(pooled) - share_of(own)),
        jct_s_mean: completion_of(main) + completion_of(pooled) - completion_of(own),
    };
    let mut ends = [end_of(own); 2];
    for ((place, _), other) in design.others.iter().zip(searches) {
        ends[*place] = end_of(&other.at(0).run);
    }

    let time_limits = backfilled.iter().flat_map(|run| &run.notes).next().cloned();
    let backfilled: Vec<Schedule> = backfilled
        .into_iter()
        .zip(&schedules)
        .zip(&draws)
        .map(|((run, (before, _)), draw)| run.over(before.makespan_s, false, &draw.scenario))
        .collect();
    let pairs = backfilled.iter().zip(&schedules).map(|(run, (_, after))| (run, after));
    let backfill = totals(pairs, scale);
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
        baseline_kind: baseline,
        curve: match options.bound {
            SavingBound::Later(_) => curve,
            SavingBound::MaxSlowdown(_) => Vec::new(),
        },
        is_within: point.is_within,
        baseline: point.baseline,
        backfill,
        wattle: point.wattle,
        saved: point.saved,
        parts: left_out,
        ends,
        price: point.price,
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
        seeds,
        by_seeds,
        by_model,
        error,
    };
    estimate.assumptions = made.assumptions(&estimate);
    Ok(estimate)
}

/// Mean completion time of one run relative to another's of the same jobs; 1 where the other completes fewer jobs.
fn ratio(run: &Pooled, other: &Pooled) -> f64 {
    let completion_s = other.completion_s().to_vec();
    let reference = Reference { completion_s, ..Reference::default() };
    1.0 + reference.lateness(run.completion_s()).unwrap_or_default().mean
}

/// A run with its lateness; without a reference it is the one at price 0, which is its own.
fn priced(price: f64, run: Pooled, reference: Option<&Reference>) -> Priced<Pooled> {
    let lateness = match reference {
        Some(reference) => reference.lateness(run.completion_s()),
        None => Some(Lateness::default()),
    };
    Priced { price, run, lateness }
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
