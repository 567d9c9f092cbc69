//! The runs of an estimate.

use std::sync::Mutex;

use wattle_common::job::{GpuRequest, Sharing};
use wattle_common::topology::ClusterShape;
use wattle_placer::policy;
use wattle_simulator::replay::{is_recorded, replay};
use wattle_simulator::trace::Trace;
use wattle_simulator::{Restartable, RunOptions, Scenario, SimulationError, Work, run_detailed};
use wattle_world::World;

use super::interval::{model_error, spread};
use super::sample::Sample;
use super::schedule::{Schedule, Times};
use super::{End, Parts, Saved, SavingError, SavingEstimate, SavingInput, SavingOptions, Totals};
use crate::aim::{AimOutcome, AimSearch, RUNS_MAX, least_energy};
use crate::compare::parallel::in_parallel;

/// Most GPUs of a resized job, as in the measured tables.
const GPUS_MAX: u32 = 64;
/// The policy of the estimate.
const POLICY: &str = "wattle";

/// What a run may use.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Features {
    settings: bool,
    share: Sharing,
    sizes: bool,
    sleep: bool,
}

/// Jobs on a cluster, complete or sampled.
struct Jobs<'a> {
    world: &'a World,
    trace: &'a Trace,
    cluster: &'a ClusterShape,
    carbon: Option<&'a wattle_simulator::CarbonSeries>,
}

impl Jobs<'_> {
    /// The jobs as submitted.
    fn scenario(&self, restartable: &Restartable, seed: u64) -> Result<Scenario, SavingError> {
        let mut scenario = Scenario::from_trace(self.world, self.trace, self.cluster, seed)?;
        scenario.carbon = self.carbon.cloned();
        restartable.apply(&mut scenario, self.trace);
        Ok(scenario)
    }
}

/// Opens the sizes of the jobs that can be resized: any power of two up to [`GPUS_MAX`] and the
/// cluster. Their work is fixed as the steps of the recorded run.
fn open_sizes(world: &World, scenario: &mut Scenario) {
    let cluster = scenario.cluster.clone();
    let most = GPUS_MAX.min(cluster.gpu_count() as u32).max(1);
    for job in scenario.jobs.iter_mut().filter(|job| job.can_stop) {
        let gpus = job.gpus.min.max(1);
        let mut groups = cluster.groups().iter();
        let group = job.gpu_type.as_deref().map_or_else(
            || cluster.groups().first(),
            |requested| groups.find(|group| group.gpu_type == requested),
        );
        let known = group.and_then(|group| {
            let gpu = world.gpu(&group.gpu_type)?;
            let workload = world.workload(job.workload.as_str())?;
            let nodes = gpus.div_ceil(group.gpus_per_node.max(1));
            Some(workload.steps_per_s(gpu, gpus, nodes))
        });
        let Some(steps_per_s) = known else { continue };
        if let Work::Lasts(span) = job.work {
            job.work = Work::Steps(((span.as_secs_f64() * steps_per_s).round() as u64).max(1));
        }
        let own = 1 << gpus.ilog2();
        job.gpus = GpuRequest { min: 1, max: (1 << most.ilog2()).max(own) };
    }
}

/// Progress over all runs, in jobs that ended.
struct Progress<'a> {
    report: Mutex<Count<'a>>,
}

struct Count<'a> {
    done: usize,
    of: usize,
    report: &'a mut (dyn FnMut(usize, usize) + Send),
}

impl Progress<'_> {
    fn add(&self, jobs: usize) {
        let Ok(mut count) = self.report.lock() else { return };
        count.done = (count.done + jobs).min(count.of);
        let (done, of) = (count.done, count.of);
        (count.report)(done, of);
    }
}

/// Everything a run needs besides its scenario.
struct Runner<'a> {
    world: &'a World,
    options: SavingOptions,
    progress: &'a Progress<'a>,
}

impl Runner<'_> {
    /// One run of the policy.
    fn run(
        &self,
        scenario: &Scenario,
        features: Features,
        price: f64,
    ) -> Result<Schedule, SimulationError> {
        let models = scenario.cluster.groups().iter();
        let clocks = models.filter_map(|group| Some(self.world.gpu(&group.gpu_type)?.clock_max()));
        let top = clocks.map(|clock| clock.as_mhz()).max().unwrap_or_default();
        let name = if features.settings { POLICY.to_owned() } else { format!("{POLICY}@{top}") };
        let mut open = None;
        if features.sizes && scenario.jobs.iter().any(|job| job.can_stop) {
            let mut resized = scenario.clone();
            open_sizes(self.world, &mut resized);
            open = Some(resized);
        }
        let scenario = open.as_ref().unwrap_or(scenario);
        let options = RunOptions {
            price,
            nodes_sleep: features.sleep,
            share: features.share,
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
        let mut report = |ended: usize, _| {
            self.progress.add(ended - last);
            last = ended;
        };
        let (outcome, detail) =
            run_detailed(self.world, scenario, policy.as_ref(), options, &mut report)?;
        let left = scenario.jobs.len() - last;
        self.progress.add(left);
        Ok(Schedule::simulated(outcome, detail, options.nodes_sleep))
    }

    /// FIFO with exclusive GPUs at default settings, all nodes awake.
    fn fifo(&self, scenario: &Scenario) -> Result<Schedule, SimulationError> {
        self.simulate(scenario, "fifo", &RunOptions::default())
    }

    /// The run of least energy within the bound.
    fn search(
        &self,
        scenario: &Scenario,
        features: Features,
    ) -> Result<AimOutcome<Schedule>, SimulationError> {
        let range = policy(POLICY)?.capabilities().prices;
        let (least, most) = range.map_or((1e-5, 1.0), |range| (range.least, range.most));
        let search = AimSearch::within(self.options.max_slowdown, least, most);
        let mut runs = 0;
        let aim = least_energy(&search, |price| {
            runs += 1;
            self.run(scenario, features, price)
        })?;
        self.progress.add((RUNS_MAX - runs) * scenario.jobs.len());
        Ok(aim)
    }
}

/// A task of the second stage.
enum Task {
    /// The run without one part.
    Without(Features),
    /// The baseline and Wattle's schedule under another seed.
    Seed(u64),
}

/// The result of a task.
enum Done {
    Without(Schedule),
    Seed { saved_kwh: f64 },
}

/// Estimates the saving. `progress` receives the numbers of ended jobs and of the jobs of all runs.
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
    let sample =
        Sample::of(trace, input.cluster, options.jobs_max, options.nodes_max, options.seed);
    let part = sample.as_ref().map(|sample| Jobs {
        trace: &sample.trace,
        cluster: &sample.cluster,
        ..all
    });
    let simulated = part.as_ref().unwrap_or(&all);
    let recorded = is_recorded(trace);

    let scenario = simulated.scenario(input.restartable, options.seed)?;
    let scenario_all = all.scenario(input.restartable, options.seed)?;
    let features =
        Features { settings: true, share: options.share, sizes: true, sleep: options.sleep };
    let ends = [Restartable::None, Restartable::All];
    let own_end = ends.iter().position(|end| same_jobs(simulated, end, &scenario, options.seed));
    let parts = leave_one_out(features, &scenario);
    let searches = 1 + ends.len() - usize::from(own_end.is_some());
    let fifo_all = if recorded || sample.is_none() { 0 } else { trace.jobs.len() };
    let runs = searches * RUNS_MAX + parts.len() + options.seeds as usize * 2 + 1;
    let of = runs * scenario.jobs.len() + fifo_all;
    let progress = Progress { report: Mutex::new(Count { done: 0, of, report: progress }) };
    let runner = Runner { world, options, progress: &progress };

    // The baseline of all jobs, and of the simulated ones.
    let baseline_of = |jobs: &Jobs<'_>, scenario: &Scenario| -> Result<Schedule, SavingError> {
        if recorded {
            Ok(Schedule::recorded(replay(world, scenario, jobs.trace)?))
        } else {
            Ok(runner.fifo(scenario)?)
        }
    };
    let baseline_all = baseline_of(&all, &scenario_all)?;
    let baseline_part = |all_jobs: &Schedule, scenario: &Scenario| match &sample {
        None => Ok(all_jobs.clone()),
        Some(_) if recorded => Ok(restricted(all_jobs, scenario, world)),
        Some(_) => baseline_of(simulated, scenario),
    };
    let baseline = baseline_part(&baseline_all, &scenario)?;

    // The price of each declaration of restartable jobs.
    let mut declared = vec![scenario.clone()];
    for (i, end) in ends.iter().enumerate() {
        if own_end != Some(i) {
            declared.push(simulated.scenario(end, options.seed)?);
        }
    }
    let searched = in_parallel(
        &declared,
        options.threads,
        |scenario| runner.search(scenario, features),
        &mut |_| (),
    )?;
    let mut searched = searched.into_iter();
    let own = searched.next().ok_or(SavingError::NoJobs)?;
    let (price, slowdown) = (own.price(), own.slowdown());
    let wattle = own.into_run();

    // Leave-one-out runs and further seeds.
    let mut tasks: Vec<Task> = parts.iter().map(|(_, features)| Task::Without(*features)).collect();
    tasks.extend((1..=options.seeds).map(|more| Task::Seed(options.seed.wrapping_add(more))));
    let work = |task: &Task| -> Result<Done, SavingError> {
        match task {
            Task::Without(features) => Ok(Done::Without(runner.run(&scenario, *features, price)?)),
            Task::Seed(seed) => {
                let scenario = simulated.scenario(input.restartable, *seed)?;
                let before = if sample.is_some() && recorded {
                    let scenario_all = all.scenario(input.restartable, *seed)?;
                    restricted(&baseline_of(&all, &scenario_all)?, &scenario, world)
                } else {
                    baseline_of(simulated, &scenario)?
                };
                let after = runner.run(&scenario, features, price)?;
                if recorded {
                    progress.add(scenario.jobs.len());
                }
                let (before, after) = over_one_period(before, after, options.sleep, &scenario);
                Ok(Done::Seed { saved_kwh: before.energy_kwh - after.energy_kwh })
            }
        }
    };
    let done = in_parallel(&tasks, options.threads, work, &mut |_| ())?;

    let saved_by = |schedule: &Schedule| {
        let pair = over_one_period(baseline.clone(), schedule.clone(), options.sleep, &scenario);
        pair.0.energy_kwh - pair.1.energy_kwh
    };
    let end_of = |schedule: &Schedule| End {
        energy_kwh: saved_by(schedule),
        jct_s_mean: Times::of(schedule, &baseline).completion_s_mean,
    };
    let own_as_end = end_of(&wattle);
    let mut of_ends = [own_as_end; 2];
    for (i, of_end) in of_ends.iter_mut().enumerate() {
        if own_end != Some(i) {
            *of_end = searched.next().map_or(own_as_end, |aim| end_of(aim.run()));
        }
    }
    let mut without = parts.iter().map(|(part, _)| *part);
    let mut left_out = Parts::default();
    let mut saved_seeds = vec![own_as_end.energy_kwh];
    for done in done {
        match done {
            Done::Without(schedule) => {
                let sleeps = options.sleep && without.clone().next() != Some(Part::Sleep);
                let (with, schedule) =
                    pair_for_part(&wattle, schedule, options.sleep, sleeps, &scenario);
                let more = schedule.energy_kwh - with.energy_kwh;
                match without.next() {
                    Some(Part::Settings) => left_out.settings = more,
                    Some(Part::Packing) => left_out.packing = more,
                    Some(Part::Sizes) => left_out.sizes = more,
                    Some(Part::Sleep) => left_out.sleep = more,
                    None => {}
                }
            }
            Done::Seed { saved_kwh } => saved_seeds.push(saved_kwh),
        }
    }

    let by_seeds = spread(&saved_seeds);
    let by_model = model_error(&scenario, &baseline, &wattle);
    let error = super::interval::prediction_error(&wattle);
    let (before, after) = over_one_period(baseline, wattle, options.sleep, &scenario);
    if before.energy_kwh <= 0.0 || after.finished == 0 {
        return Err(SavingError::NoJobs);
    }
    // From the sample to all jobs.
    let full_kwh = match &sample {
        Some(_) => baseline_all.energy_kwh,
        None => before.energy_kwh,
    };
    let scale = full_kwh / before.energy_kwh;
    let totals = |schedule: &Schedule, other: &Schedule| {
        let times = Times::of(schedule, other);
        Totals {
            energy_kwh: rounded(schedule.energy_kwh * scale),
            jct_s_mean: rounded(times.completion_s_mean),
            jct_s_p95: rounded(times.completion_s_p95),
            wait_s_mean: rounded(times.wait_s_mean),
            wait_s_p95: rounded(times.wait_s_p95),
            carbon_kg: schedule.carbon_kg.map(|kg| rounded(kg * scale)),
        }
    };
    let (baseline_totals, wattle_totals) = (totals(&before, &after), totals(&after, &before));
    let saved_kwh = baseline_totals.energy_kwh - wattle_totals.energy_kwh;
    let half_width = by_seeds.hypot(by_model) * scale;
    let in_full = |part: f64| rounded(part * scale);
    let mut estimate = SavingEstimate {
        trace: trace.name.clone(),
        cluster: input.cluster.to_string(),
        jobs: trace.jobs.len(),
        period_s: if sample.is_some() { baseline_all.makespan_s } else { before.makespan_s },
        recorded,
        baseline: baseline_totals,
        wattle: wattle_totals,
        saved: Saved {
            energy_kwh: rounded(saved_kwh),
            energy_kwh_low: rounded(saved_kwh - half_width),
            energy_kwh_high: rounded(saved_kwh + half_width),
            cost: None,
            carbon_kg: None,
        },
        parts: Parts {
            settings: in_full(left_out.settings),
            packing: in_full(left_out.packing),
            sizes: in_full(left_out.sizes),
            sleep: in_full(left_out.sleep),
        },
        ends: of_ends.map(|end| End { energy_kwh: in_full(end.energy_kwh), ..end }),
        price,
        slowdown,
        options,
        assumptions: Vec::new(),
        schedules: vec![("baseline", before), ("wattle", after)],
    };
    let made = Made {
        sample: sample.as_ref(),
        restartable: input.restartable,
        scenario: &scenario_all,
        by_seeds: by_seeds * scale,
        by_model: by_model * scale,
        error,
    };
    estimate.assumptions = made.assumptions(&estimate);
    if sample.is_some() {
        estimate.schedules.push(("baseline-all", baseline_all));
    }
    Ok(estimate)
}

/// How an estimate was made.
pub(super) struct Made<'a> {
    pub(super) sample: Option<&'a Sample>,
    pub(super) restartable: &'a Restartable,
    pub(super) scenario: &'a Scenario,
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

/// Whether `restartable` declares the same jobs of the scenario.
fn same_jobs(jobs: &Jobs<'_>, restartable: &Restartable, scenario: &Scenario, seed: u64) -> bool {
    let pairs = scenario.jobs.iter().zip(&jobs.trace.jobs);
    pairs.into_iter().all(|(job, traced)| {
        restartable.permits(&job.id, traced.can_checkpoint, seed) == job.can_stop
    })
}

/// Both schedules counted until the last completion of either. Nodes of the baseline are awake.
fn over_one_period(
    baseline: Schedule,
    wattle: Schedule,
    sleeps: bool,
    scenario: &Scenario,
) -> (Schedule, Schedule) {
    let period_s = baseline.makespan_s.max(wattle.makespan_s);
    (baseline.over(period_s, false, scenario), wattle.over(period_s, sleeps, scenario))
}

/// The complete run and the run without a part, counted over one period.
fn pair_for_part(
    with: &Schedule,
    without: Schedule,
    sleeps_with: bool,
    sleeps_without: bool,
    scenario: &Scenario,
) -> (Schedule, Schedule) {
    let period_s = with.makespan_s.max(without.makespan_s);
    let with = with.clone().over(period_s, sleeps_with, scenario);
    (with, without.over(period_s, sleeps_without, scenario))
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
        completion_s: detail.jobs.iter().map(|job| job.completion_s()).collect(),
        finished: detail.jobs.iter().filter(|job| job.end_s.is_some()).count(),
        detail,
        ..all.clone()
    }
}

/// Rounds to a millionth, which removes rounding errors from the output.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}
