//! The study behind an estimate: draws of the seeds, searches, parts and totals.

use std::sync::Mutex;

use wattle_common::job::Sharing;
use wattle_simulator::replay::{is_recorded, replay};
use wattle_simulator::{Restartable, Scenario, SimulationError};
use wattle_world::World;

use super::interval::{model_error, prediction_error, spread};
use super::runs::{
    Count, Features, Jobs, PREDICTED_COST, Pooled, Progress, RUNS_ON_PREDICTIONS, Runner,
};
use super::sample::Sample;
use super::schedule::{Schedule, Times};
use super::{End, Parts, Saved, SavingError, SavingEstimate, SavingInput, SavingOptions, Totals};
use crate::aim::RUNS_MAX;
use crate::compare::parallel::in_parallel;

/// The jobs with the workloads and the noise of one seed, and their baseline.
struct Draw {
    seed: u64,
    scenario: Scenario,
    baseline: Schedule,
}

/// A study: its input, and the draws of the seeds.
struct Study<'a> {
    input: &'a SavingInput<'a>,
    all: Jobs<'a>,
    recorded: bool,
    sampled: bool,
    runner: Runner<'a>,
}

impl Study<'_> {
    fn options(&self) -> &SavingOptions {
        &self.runner.options
    }

    fn sample(&self, seed: u64) -> Option<Sample> {
        let SavingOptions { jobs_max, nodes_min, .. } = *self.options();
        Sample::of(self.all.trace, self.all.cluster, jobs_max, nodes_min, seed)
    }

    /// The baseline of all jobs.
    fn baseline_all(&self, seed: u64) -> Result<Schedule, SavingError> {
        let scenario = self.all.scenario(self.input.restartable, seed)?;
        if self.recorded {
            return Ok(Schedule::recorded(replay(self.all.world, &scenario, self.all.trace)?));
        }
        Ok(self.runner.fifo(&scenario)?)
    }

    fn draw(&self, seed: u64) -> Result<Draw, SavingError> {
        let sample = self.sample(seed);
        let jobs = self.all.of(sample.as_ref());
        let scenario = jobs.scenario(self.input.restartable, seed)?;
        let baseline = match (self.recorded, self.sampled) {
            (true, true) => restricted(&self.baseline_all(seed)?, &scenario, self.all.world),
            (true, false) => self.baseline_all(seed)?,
            (false, _) => self.runner.fifo(&scenario)?,
        };
        Ok(Draw { seed, scenario, baseline })
    }

    /// The scenarios of the draws with another declaration of restartable jobs.
    fn redeclared(
        &self,
        draws: &[Draw],
        restartable: &Restartable,
    ) -> Result<Vec<Scenario>, SavingError> {
        let redeclare = |draw: &Draw| {
            let sample = self.sample(draw.seed);
            self.all.of(sample.as_ref()).scenario(restartable, draw.seed)
        };
        draws.iter().map(redeclare).collect()
    }

    /// Energy of the baseline less that of a schedule of the same jobs, kWh.
    fn saved_kwh(&self, draw: &Draw, schedule: &Schedule) -> f64 {
        let (before, after) = self.one_period(draw, schedule);
        before.energy_kwh - after.energy_kwh
    }

    /// Both schedules counted until the last completion of either. Nodes of the baseline are awake.
    fn one_period(&self, draw: &Draw, schedule: &Schedule) -> (Schedule, Schedule) {
        let period_s = draw.baseline.makespan_s.max(schedule.makespan_s);
        let before = draw.baseline.clone().over(period_s, false, &draw.scenario);
        (before, schedule.clone().over(period_s, self.options().sleep, &draw.scenario))
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    if count > 0.0 { sum / count } else { 0.0 }
}

/// A task of the second stage.
enum Task {
    /// A run of the draw at this index with these features.
    Run(usize, Features),
    /// The saving under a further seed.
    Seed(u64),
}

/// The result of a task.
enum Done {
    Run(Box<Schedule>),
    Seed(f64),
}

/// Estimates the saving. `progress` receives a count and its final value.
///
/// # Errors
/// If the trace cannot run on the cluster, or a simulation fails.
pub fn estimate(
    input: &SavingInput<'_>,
    options: SavingOptions,
    progress: &mut (dyn FnMut(usize, usize) + Send),
) -> Result<SavingEstimate, SavingError> {
    let (world, trace) = (input.world, input.trace);
    let all = Jobs { world, trace, cluster: input.cluster, carbon: input.carbon };
    let recorded = is_recorded(trace);
    let features = Features {
        settings: true,
        share: options.share,
        sizes: true,
        sleep: options.sleep,
        exact: true,
    };
    let progress = Progress { report: Mutex::new(Count { done: 0, of: 1, report: progress }) };
    let runner = Runner { world, options, progress: &progress };
    let sampled = trace.jobs.len() > options.jobs_max;
    let study = Study { input, all, recorded, sampled, runner };
    let sample = study.sample(options.seed);

    // Small traces are simulated with several seeds, since the times of few jobs depend on chance.
    let simulated = sample.as_ref().map_or(trace.jobs.len(), |sample| sample.trace.jobs.len());
    let seeds = (options.jobs_max / simulated.max(1)).clamp(1, options.seeds.max(1) as usize);
    let seeds: Vec<u64> = (0..seeds as u64).map(|more| options.seed.wrapping_add(more)).collect();
    let scenario_all = study.all.scenario(input.restartable, options.seed)?;
    let parts = leave_one_out(features, &scenario_all);
    let declares = |end: &Restartable| {
        let pairs = scenario_all.jobs.iter().zip(&trace.jobs);
        pairs.into_iter().all(|(job, traced)| {
            end.permits(&job.id, traced.can_checkpoint, options.seed) == job.can_stop
        })
    };
    let ends = [Restartable::None, Restartable::All];
    let own_end = ends.iter().position(declares);
    let others = ends.iter().enumerate().filter(|(i, _)| own_end != Some(*i)).count();
    let further = options.seeds.saturating_sub(seeds.len() as u64);
    progress.expect(
        ((1 + others) * RUNS_MAX + RUNS_ON_PREDICTIONS * PREDICTED_COST + 1 + parts.len())
            * seeds.len()
            * simulated
            + further as usize * simulated
            + if recorded { 0 } else { seeds.len() * simulated + trace.jobs.len() },
    );

    let draw = |seed: &u64| study.draw(*seed);
    let draws = in_parallel(&seeds, options.threads, draw, &mut |_| ())?;
    let Some(first) = draws.first() else { return Err(SavingError::NoJobs) };
    let baseline_all = match sampled {
        true => study.baseline_all(options.seed)?,
        false => first.baseline.clone(),
    };
    // Of the simulated jobs, applied to all jobs.
    let scale = if sampled && first.baseline.energy_kwh > 0.0 {
        baseline_all.energy_kwh / first.baseline.energy_kwh
    } else {
        1.0
    };

    // The price of each declaration of restartable jobs. The first is continued on predictions.
    let mut declared: Vec<Vec<Scenario>> =
        vec![draws.iter().map(|draw| draw.scenario.clone()).collect()];
    for (i, end) in ends.iter().enumerate() {
        if own_end != Some(i) {
            declared.push(study.redeclared(&draws, end)?);
        }
    }
    let order: Vec<usize> = (0..declared.len()).collect();
    let search = |&i: &usize| -> Result<_, SimulationError> {
        let exact = study.runner.search(&declared[i], features, None, RUNS_MAX)?;
        if i > 0 {
            return Ok((exact, None));
        }
        let start = (exact.price() > 0.0).then(|| exact.price());
        let features = Features { exact: false, ..features };
        let main = study.runner.search(&declared[i], features, start, RUNS_ON_PREDICTIONS)?;
        Ok((exact, Some(main)))
    };
    let mut searched = in_parallel(&order, options.threads, search, &mut |_| ())?.into_iter();
    let Some((own, Some(main))) = searched.next() else { return Err(SavingError::NoJobs) };
    let own = own.into_run();
    let (price, slowdown) = (main.price(), main.slowdown());
    let main = main.into_run();

    // Runs on exact surfaces at that price, with and without each part, and with further seeds.
    let with = std::iter::once(features).chain(parts.iter().map(|(_, features)| *features));
    let mut tasks: Vec<Task> = with
        .flat_map(|features| (0..draws.len()).map(move |draw| Task::Run(draw, features)))
        .collect();
    let last = seeds.last().copied().unwrap_or(options.seed);
    tasks.extend((1..=further).map(|more| Task::Seed(last.wrapping_add(more))));
    let work = |task: &Task| -> Result<Done, SavingError> {
        match task {
            Task::Run(draw, features) => Ok(Done::Run(Box::new(study.runner.run(
                &draws[*draw].scenario,
                *features,
                price,
            )?))),
            Task::Seed(seed) => {
                let draw = study.draw(*seed)?;
                let after = study.runner.run(&draw.scenario, features, price)?;
                Ok(Done::Seed(study.saved_kwh(&draw, &after)))
            }
        }
    };
    let done = in_parallel(&tasks, options.threads, work, &mut |_| ())?;
    let mut runs = Vec::new();
    let mut saved_further = Vec::new();
    for done in done {
        match done {
            Done::Run(schedule) => runs.push(*schedule),
            Done::Seed(saved_kwh) => saved_further.push(scale * saved_kwh),
        }
    }
    let (exact, without) = runs.split_at(draws.len());
    let mut left_out = Parts::default();
    for ((part, features), without) in parts.iter().zip(without.chunks(draws.len())) {
        let more = draws.iter().zip(exact).zip(without).map(|((draw, with), without)| {
            let period_s = with.makespan_s.max(without.makespan_s);
            let with = with.clone().over(period_s, options.sleep, &draw.scenario);
            let without = without.clone().over(period_s, features.sleep, &draw.scenario);
            without.energy_kwh - with.energy_kwh
        });
        *left_out.of(*part) = rounded(scale * mean(more));
    }

    let mut saved_seeds: Vec<f64> =
        draws.iter().zip(exact).map(|(draw, run)| scale * study.saved_kwh(draw, run)).collect();
    saved_seeds.extend(saved_further);
    let by_seeds = spread(&saved_seeds);
    let pairs = || draws.iter().zip(&main.runs);
    let by_model =
        scale * mean(pairs().map(|(draw, run)| model_error(&draw.scenario, &draw.baseline, run)));
    let error = mean(main.runs.iter().map(prediction_error));

    // An end differs from the run on predictions as its search on exact surfaces differs from the own.
    let saved_of = |pooled: &Pooled| {
        scale * mean(draws.iter().zip(&pooled.runs).map(|(draw, run)| study.saved_kwh(draw, run)))
    };
    let completion_of = |pooled: &Pooled| {
        let runs = draws.iter().zip(&pooled.runs);
        mean(runs.map(|(draw, run)| Times::of(run, &draw.baseline).completion_s_mean))
    };
    let end_of = |pooled: &Pooled| End {
        energy_kwh: rounded(saved_of(&main) + saved_of(pooled) - saved_of(&own)),
        jct_s_mean: completion_of(&main) + completion_of(pooled) - completion_of(&own),
    };
    let mut of_ends = [end_of(&own); 2];
    for (i, of_end) in of_ends.iter_mut().enumerate() {
        if own_end != Some(i) {
            *of_end = searched.next().map_or(*of_end, |(aim, _)| end_of(aim.run()));
        }
    }

    let schedules: Vec<(Schedule, Schedule)> =
        pairs().map(|(draw, run)| study.one_period(draw, run)).collect();
    let energy_kwh = mean(schedules.iter().map(|(before, _)| before.energy_kwh));
    if energy_kwh <= 0.0 || schedules.iter().any(|(_, after)| after.finished == 0) {
        return Err(SavingError::NoJobs);
    }
    let before = totals(schedules.iter().map(|(before, after)| (before, after)), scale);
    let after = totals(schedules.iter().map(|(before, after)| (after, before)), scale);
    let saved_kwh = before.energy_kwh - after.energy_kwh;
    let half_width = by_seeds.hypot(by_model);
    let period_s = if sampled {
        baseline_all.makespan_s
    } else {
        mean(schedules.iter().map(|(before, _)| before.makespan_s))
    };
    let mut listed = Vec::new();
    for (seed, (before, after)) in seeds.iter().zip(schedules) {
        listed.push(("baseline", *seed, before));
        listed.push(("wattle", *seed, after));
    }
    let mut estimate = SavingEstimate {
        trace: trace.name.clone(),
        cluster: input.cluster.to_string(),
        jobs: trace.jobs.len(),
        period_s,
        recorded,
        baseline: before,
        wattle: after,
        saved: Saved {
            energy_kwh: rounded(saved_kwh),
            energy_kwh_low: rounded(saved_kwh - half_width),
            energy_kwh_high: rounded(saved_kwh + half_width),
            cost: None,
            carbon_kg: None,
        },
        parts: left_out,
        ends: of_ends,
        price,
        slowdown,
        options,
        assumptions: Vec::new(),
        schedules: listed,
    };
    let made = Made {
        sample: sample.as_ref(),
        restartable: input.restartable,
        scenario: &scenario_all,
        simulated_seeds: seeds.len(),
        seeds: saved_seeds.len(),
        by_seeds,
        by_model,
        error,
    };
    estimate.assumptions = made.assumptions(&estimate);
    if sampled {
        estimate.schedules.push(("baseline-all", options.seed, baseline_all));
    }
    Ok(estimate)
}

/// Means over the draws of the first schedule of each pair; times are over the jobs that complete in
/// both. `scale` is from the simulated jobs to all.
fn totals<'s>(
    pairs: impl Iterator<Item = (&'s Schedule, &'s Schedule)> + Clone,
    scale: f64,
) -> Totals {
    let of = |part: fn(&Times) -> f64| {
        rounded(mean(pairs.clone().map(|(own, other)| part(&Times::of(own, other)))))
    };
    let has_carbon = pairs.clone().all(|(own, _)| own.carbon_kg.is_some());
    let carbon_kg = mean(pairs.clone().filter_map(|(own, _)| own.carbon_kg));
    Totals {
        energy_kwh: rounded(scale * mean(pairs.clone().map(|(own, _)| own.energy_kwh))),
        jct_s_mean: of(|times| times.completion_s_mean),
        jct_s_p95: of(|times| times.completion_s_p95),
        wait_s_mean: of(|times| times.wait_s_mean),
        wait_s_p95: of(|times| times.wait_s_p95),
        carbon_kg: has_carbon.then(|| rounded(scale * carbon_kg)),
    }
}

impl Parts {
    fn of(&mut self, part: Part) -> &mut f64 {
        match part {
            Part::Settings => &mut self.settings,
            Part::Packing => &mut self.packing,
            Part::Sizes => &mut self.sizes,
            Part::Sleep => &mut self.sleep,
        }
    }
}

/// How an estimate was made.
pub(super) struct Made<'a> {
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
    pub(super) error: f64,
}

/// A part of the saving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Settings,
    Packing,
    Sizes,
    Sleep,
}

/// The runs with one part left out. A part that the run does not use has no run.
fn leave_one_out(all: Features, scenario: &Scenario) -> Vec<(Part, Features)> {
    let mut parts = vec![(Part::Settings, Features { settings: false, ..all })];
    // The policy shares GPUs between jobs that can stop, so that it can undo a pair.
    let can_stop = scenario.jobs.iter().any(|job| job.can_stop);
    if can_stop && all.share == Sharing::Any {
        parts.push((Part::Packing, Features { share: Sharing::Never, ..all }));
    }
    if can_stop {
        parts.push((Part::Sizes, Features { sizes: false, ..all }));
    }
    if all.sleep {
        parts.push((Part::Sleep, Features { sleep: false, ..all }));
    }
    parts
}

/// The recorded schedule of a sample: its jobs in the schedule of all jobs, on the sample's nodes.
fn restricted(all: &Schedule, scenario: &Scenario, world: &World) -> Schedule {
    let by_id: std::collections::BTreeMap<_, _> =
        all.detail.jobs.iter().map(|job| (&job.id, job)).collect();
    let jobs: Vec<_> =
        scenario.jobs.iter().filter_map(|job| by_id.get(&job.id).map(|&job| job.clone())).collect();
    let first = jobs.iter().map(|job| job.submit_s).fold(f64::INFINITY, f64::min);
    let last = jobs.iter().filter_map(|job| job.end_s).fold(first, f64::max);
    let makespan_s = last - first;
    let mut detail = all.detail.clone();
    let sampled = scenario.cluster.nodes().enumerate();
    detail.nodes = sampled
        .filter_map(|(i, (gpus, gpu_type))| {
            let known = all.detail.nodes.iter().find(|node| node.gpu_type == gpu_type)?;
            let id = all.detail.nodes.get(i).unwrap_or(known).id.clone();
            let asleep_w = world.gpu(gpu_type).map_or(0.0, |gpu| gpu.sleep.power.as_w());
            let (awake_s, gpu_type) = (makespan_s, gpu_type.to_owned());
            Some(wattle_simulator::NodeOutcome {
                id,
                gpu_type,
                gpus,
                awake_s,
                asleep_s: 0.0,
                awake_w: known.awake_w,
                asleep_w,
            })
        })
        .collect();
    let idle_kwh: f64 = detail.nodes.iter().map(wattle_simulator::NodeOutcome::energy_kwh).sum();
    let jobs_kwh: f64 = jobs.iter().map(|job| job.energy_kwh).sum();
    let energy_kwh = idle_kwh + jobs_kwh;
    detail.jobs = jobs;
    Schedule {
        energy_kwh,
        // The mean intensity of the recorded schedule.
        carbon_kg: all.carbon_kg.map(|kg| kg * energy_kwh / all.energy_kwh.max(f64::MIN_POSITIVE)),
        makespan_s,
        rest_w: detail.nodes.iter().map(|node| node.awake_w).sum(),
        completion_s: detail.jobs.iter().map(wattle_simulator::JobOutcome::completion_s).collect(),
        finished: detail.jobs.iter().filter(|job| job.end_s.is_some()).count(),
        detail,
        ..all.clone()
    }
}

/// Rounds to a millionth, which removes rounding errors from the output.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}
