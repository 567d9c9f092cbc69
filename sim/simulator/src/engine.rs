//! The simulator's event loop: virtual clock, hardware, trace and measurement around the placer's
//! controller.
//!
//! At each instant the loop processes scheduled events, then arrivals. The controller then plans,
//! every plan is checked and applied, and the world determines the new speeds. The engine makes no
//! scheduling decision. A first start costs no time. An undone job returns to its last checkpoint,
//! which is at the end of an epoch.

mod detail;
mod events;
mod job;
mod metering;
mod nodes;
mod planning;
mod predictions;
mod probing;
pub(crate) mod recording;
mod reports;

use std::sync::Arc;
use std::time::Duration;

use wattle_common::{NodeId, Timestamp};
use wattle_placer::controller::budget::ActiveBudget;
use wattle_placer::controller::{Controller, ControllerConfig};
use wattle_placer::{JobFacts, NodeFacts, Policy, Reads};
use wattle_world::{Workload, World};

use crate::detail::Detail;
use crate::engine::detail::SleepTimes;
use crate::engine::events::{Event, EventQueue};
use crate::engine::job::{JobTable, SimulatedJob};
use crate::engine::metering::{Reading, install_budget, starvation};
use crate::engine::nodes::watts;
use crate::engine::recording::{Recorder, Recording};
use crate::gpus::Gpus;
use crate::meter::Meter;
use crate::oracle::Oracle;
use crate::outcome::{Finished, PolicyOutcome, seconds, times, us};
use crate::prediction_error::Tally;
use crate::profiles::Profiles;
use crate::scenario::Scenario;
use crate::simulation::{RunOptions, SimulationError};
use crate::spending::SpendingMeter;
use crate::text::pluralize;

/// A hundred thousand years in microseconds. The sum of two such times does not overflow.
const US_MAX: u64 = 100_000 * 31_557_600 * 1_000_000;

/// The run of one policy through a scenario.
pub(crate) struct Engine<'s> {
    scenario: &'s Scenario,
    options: &'s RunOptions,
    controller: Controller<&'s dyn Policy>,
    /// The first submission.
    start_us: u64,
    now_us: u64,
    hardware: Hardware<'s>,
    jobs: JobTable<'s>,
    events: EventQueue,
    prediction: Prediction<'s>,
    replan: Replan,
    budget: BudgetUse,
    totals: Totals<'s>,
    recorder: Option<Box<Recorder>>,
    sleep_times: SleepTimes,
    /// Receives the numbers of completed jobs and of all jobs at each completion.
    progress: Option<&'s mut dyn FnMut(usize, usize)>,
}

/// The cluster's GPUs and its energy meter.
struct Hardware<'s> {
    gpus: Gpus<'s>,
    meter: Meter<'s>,
    /// Jobs whose configuration has changed at this instant.
    changed: Vec<u32>,
}

/// The source of surfaces and the prediction errors; empty for policies that read no surfaces.
struct Prediction<'s> {
    /// Which surfaces the policy or the power limits read.
    reads: Reads,
    profiles: Option<Profiles>,
    oracle: Option<Oracle<'s>>,
    errors: Option<Tally>,
}

/// When to plan without an event.
#[derive(Default)]
struct Replan {
    /// The time that the last plan requested.
    at_us: Option<u64>,
    /// Consecutive plans without an effect while no job runs.
    idle_plans: usize,
}

/// Use of the budget and carbon deferral.
struct BudgetUse {
    /// The meter's last reading; `None` if nothing is controlled.
    reading: Option<Reading>,
    spending: SpendingMeter,
    /// Whether the budget or the power limit blocks the head of the queue.
    admission_closed: bool,
    /// Number of jobs deferred to a lower carbon intensity.
    deferred: u32,
    /// Sum of the deferral times of all jobs.
    deferred_us: u64,
}

/// Totals for the outcome.
struct Totals<'s> {
    last_completion_us: u64,
    /// The meter at the last completion, which is the end of the run. Later arrivals that are
    /// rejected add no energy.
    meter: Meter<'s>,
    finished: Vec<Finished>,
    rejected: Vec<String>,
    migrations: usize,
    rescales: usize,
    restart_gpu_us: u64,
    /// Most restarts of one job.
    restarts_max: u32,
    early_stops: u32,
    shared_starts: usize,
    undone: usize,
    deadlines_missed: usize,
}

impl<'s> Engine<'s> {
    pub(crate) fn new(
        world: &'s World,
        scenario: &'s Scenario,
        policy: &'s dyn Policy,
        options: &'s RunOptions,
    ) -> Result<Self, SimulationError> {
        let mut workloads: Vec<&Workload> = Vec::new();
        let mut jobs = Vec::with_capacity(scenario.jobs.len());
        for spec in &scenario.jobs {
            let id = spec.workload.as_str();
            let index = match workloads.iter().position(|known| known.id == spec.workload) {
                Some(index) => index,
                None => {
                    workloads.push(world.workload(id).ok_or_else(|| {
                        SimulationError::UnknownWorkload {
                            job: spec.id.clone(),
                            workload: spec.workload.clone(),
                        }
                    })?);
                    workloads.len() - 1
                }
            };
            jobs.push(SimulatedJob::new(spec, workloads[index], index as u32));
        }
        let gpus = Gpus::new(world, &scenario.cluster, workloads)?;
        let mut config = ControllerConfig {
            price: options.price,
            max_slowdown: options.max_slowdown,
            nodes_sleep: options.nodes_sleep,
            probe: options.probe,
            share: options.share,
            ..ControllerConfig::default()
        };
        config.tenants_max = options.tenants_max.unwrap_or(config.tenants_max);
        let mut controller = Controller::new(config, policy);
        let state = controller.events();
        let locations = scenario.cluster.switches().zip(scenario.cluster.boards());
        for (i, ((gpus, gpu_type), (switch, board))) in
            scenario.cluster.nodes().zip(locations).enumerate()
        {
            let node = state.node_known(NodeFacts {
                id: node_id(i),
                gpu_type: gpu_type.to_owned(),
                gpus,
                memory_mib: world.gpu(gpu_type).map_or(0, |gpu| gpu.memory_mib),
                healthy: u64::MAX,
                watts: world.gpu(gpu_type).map(|gpu| watts(world, gpu, gpus)),
            });
            state.switch_known(node, switch);
            state.boards_known(node, board);
        }
        state.inventory_known(true);
        let start_us = scenario.jobs.iter().map(|job| us(job.submit)).min().unwrap_or(0);
        let meter = Meter::starting(start_us, scenario.carbon.as_ref());
        controller.set_aim(None, Timestamp::from_us(start_us));
        let reading = install_budget(&mut controller, world, scenario, options, start_us);
        let reads = controller.reads();
        let reads_any = reads != Reads::Nothing;
        let oracle = options.oracle;
        let prediction = Prediction {
            reads,
            profiles: (reads_any && !oracle)
                .then(|| Profiles::new(scenario.seed, reads, options.probe.enabled)),
            oracle: (reads_any && oracle)
                .then(|| Oracle::new(world, scenario, reads, options.surface_noise)),
            errors: reads_any.then(Tally::default),
        };
        let totals = Totals {
            last_completion_us: start_us,
            meter: meter.clone(),
            finished: Vec::with_capacity(scenario.jobs.len()),
            rejected: Vec::new(),
            migrations: 0,
            rescales: 0,
            restart_gpu_us: 0,
            restarts_max: 0,
            early_stops: 0,
            shared_starts: 0,
            undone: 0,
            deadlines_missed: 0,
        };
        Ok(Self {
            scenario,
            options,
            controller,
            start_us,
            now_us: start_us,
            hardware: Hardware { gpus, meter, changed: Vec::new() },
            jobs: JobTable::new(jobs),
            events: EventQueue::default(),
            prediction,
            replan: Replan::default(),
            budget: BudgetUse {
                reading,
                spending: SpendingMeter::default(),
                admission_closed: false,
                deferred: 0,
                deferred_us: 0,
            },
            totals,
            recorder: None,
            sleep_times: SleepTimes::of(scenario.cluster.node_count()),
            progress: None,
        })
    }

    /// Reports the numbers of completed jobs and of all jobs to `progress` at each completion.
    pub(crate) fn with_progress(mut self, progress: &'s mut dyn FnMut(usize, usize)) -> Self {
        self.progress = Some(progress);
        self
    }

    pub(crate) fn run(mut self) -> Result<PolicyOutcome, SimulationError> {
        self.run_events()?;
        Ok(self.finish())
    }

    /// Runs, and returns the jobs and nodes.
    pub(crate) fn run_detailed(mut self) -> Result<(PolicyOutcome, Detail), SimulationError> {
        self.run_events()?;
        let detail = self.detail();
        Ok((self.finish(), detail))
    }

    /// Runs and records the run.
    pub(crate) fn run_recorded(mut self) -> Result<(PolicyOutcome, Recording), SimulationError> {
        self.recorder = Some(Box::new(Recorder::new(self.scenario, self.start_us)));
        self.run_events()?;
        let recorder = self.recorder.take().expect("the recorder was set above");
        let recording = recorder.into_recording(self.totals.last_completion_us);
        Ok((self.finish(), recording))
    }

    /// Processes events until none is left.
    fn run_events(&mut self) -> Result<(), SimulationError> {
        self.add_work_history();
        let mut arrivals = self.jobs.by_submission().into_iter().peekable();
        loop {
            let arrival = arrivals.peek().map(|&job| us(self.jobs[job].spec.submit));
            let control = self.controller.control_at().map(Timestamp::as_us);
            let replan = self.replan.at_us.into_iter().chain(control).min();
            let replan = replan.filter(|_| self.may_replan(arrival.is_some()));
            let next = arrival.into_iter().chain(self.events.next_at()).chain(replan).min();
            let Some(now_us) = next else { break };
            if now_us > US_MAX {
                return Err(SimulationError::TooLong {
                    policy: self.controller.policy().name().to_owned(),
                });
            }
            let mut plan_again = false;
            // Void events do not advance the meter, since the run ends at the last completion.
            let mut advanced = false;
            if replan == Some(now_us) {
                plan_again = self.replan.at_us == Some(now_us);
                self.replan.at_us = self.replan.at_us.filter(|at| *at > now_us);
                self.advance_once(&mut advanced, now_us);
                plan_again |= self.control();
                // Bounds the number of control steps while no job runs.
                self.replan.idle_plans += usize::from(!plan_again);
            }
            plan_again |= self.process_events(now_us, &mut advanced);
            while let Some(job) = arrivals.next_if(|&job| us(self.jobs[job].spec.submit) == now_us)
            {
                self.advance_once(&mut advanced, now_us);
                self.arrive(job);
                plan_again = true;
            }
            if plan_again {
                self.reconfigure();
                self.settle()?;
            }
        }
        Ok(())
    }

    /// Processes the events of this instant. Returns whether a plan may differ after them.
    fn process_events(&mut self, now_us: u64, advanced: &mut bool) -> bool {
        let mut plan_again = false;
        while let Some(next) = self.events.pop_at(now_us) {
            let index = next.index;
            if next.event.is_of_configuration() && !self.jobs[index].runs_in(next.version) {
                continue;
            }
            self.advance_once(advanced, now_us);
            plan_again |= match next.event {
                Event::Completed => {
                    self.complete(index);
                    self.totals.last_completion_us = now_us;
                    self.totals.meter = self.hardware.meter.clone();
                    true
                }
                Event::EpochCompleted => {
                    self.report(index);
                    true
                }
                Event::Resumed => {
                    self.report(index);
                    self.schedule_epochs(&[index]);
                    false
                }
                Event::WindowClosed => {
                    self.close_window(index);
                    true
                }
                Event::NodeAwake => {
                    self.node_awake(index);
                    true
                }
                Event::ProbeEnded => self.end_probes(),
            };
        }
        plan_again
    }

    fn advance_once(&mut self, advanced: &mut bool, now_us: u64) {
        if !std::mem::replace(advanced, true) {
            self.advance_to(now_us);
        }
    }

    /// Advances the clock and accounts for the time since the last event.
    fn advance_to(&mut self, now_us: u64) {
        self.record_levels(now_us);
        let span_us = now_us.saturating_sub(self.now_us);
        if let Some(active) = self.controller.budget() {
            let limit = active.controller().budget().power_mw;
            let (power_mw, position) = (self.hardware.gpus.power_mw, active.position());
            let closed = self.budget.admission_closed;
            self.budget.spending.add(power_mw, span_us, limit, position, closed);
        }
        self.budget.deferred_us += u64::from(self.budget.deferred) * span_us;
        self.hardware.meter.advance(now_us, &self.hardware.gpus);
        self.now_us = now_us;
        self.controller.advance_to(Timestamp::from_us(now_us));
    }

    /// Whether surfaces and progress are reported to the controller.
    fn reports_surfaces(&self) -> bool {
        self.prediction.errors.is_some()
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_us(self.now_us)
    }

    fn arrive(&mut self, job: u32) {
        let spec = self.jobs[job].spec;
        let facts = JobFacts {
            id: spec.id.clone(),
            workload: Some(spec.workload.clone()),
            request: spec.gpus,
            exclusive: spec.exclusive,
            consents_to_sharing: false,
            max_slowdown_permille: None,
            priority: spec.priority,
            can_stop: spec.can_stop,
            deadline: spec.deadline.map(|at| Timestamp::from_us(us(at))),
            slack: spec.slack.filter(|_| !self.options.no_deferral),
            duration_alone: self.declared_duration(job),
            memory_mib_max: self.declared_memory(job),
            gpu_type: spec.gpu_type.as_deref().map(Arc::from),
            submitted_at: self.now(),
        };
        let key = match self.controller.admit(facts) {
            Ok(key) => key,
            Err(error) => {
                self.reject(job, error.to_string());
                return;
            }
        };
        self.jobs.assign(job, key);
        self.report_length(job, key);
        let now = self.now();
        if let Some(profiles) = &mut self.prediction.profiles {
            let requested = spec.gpu_type.as_deref();
            let gpu_type = requested.unwrap_or(&self.scenario.cluster.groups()[0].gpu_type);
            profiles.arrived(now, &spec.id, &spec.workload, spec.gpus, gpu_type);
        }
    }

    /// Counts a job that the controller does not admit, or rejects in a plan.
    fn reject(&mut self, job: u32, reason: String) {
        let id = &self.jobs[job].spec.id;
        self.totals.rejected.push(format!("job {id} was rejected: {reason}"));
        if let Some(recorder) = &mut self.recorder {
            recorder.rejected(job, reason);
        }
    }

    fn complete(&mut self, job: u32) {
        let now_us = self.now_us;
        self.record_completion(job);
        self.end_segment(job);
        if self.reports_surfaces() {
            self.report(job);
        }
        let running = &mut self.jobs[job];
        running.charge(now_us, 0.0);
        running.ended_us = Some(now_us);
        running.version += 1;
        running.ran_us += now_us - running.started_us;
        let on = running.on.take();
        let spec = running.spec;
        if spec.deadline.is_some_and(|deadline| now_us > us(deadline)) {
            self.totals.deadlines_missed += 1;
        }
        let jct_us = now_us - us(spec.submit);
        self.totals.finished.push(Finished { jct_us, ran_us: running.ran_us });
        if let Some(progress) = &mut self.progress {
            progress(self.totals.finished.len(), self.scenario.jobs.len());
        }
        self.totals.restarts_max = self.totals.restarts_max.max(running.attempts.saturating_sub(1));
        let key = running.key.take();
        let known = key.and_then(|key| self.controller.state().job(key));
        self.totals.early_stops += known.map_or(0, |job| job.restarts.early_stops);
        if let Some(on) = &on {
            self.hardware.gpus.remove(job, on, &mut self.hardware.changed);
        }
        if let Some(key) = key {
            self.controller.job_completed(key);
        }
        // Under a power limit the next plan sets every GPU.
        if let Some(on) = on.filter(|_| self.controller.limits().power_max.is_none()) {
            self.set_gpus(on.gpus());
        }
        if let Some(profiles) = &mut self.prediction.profiles {
            profiles.ended(&spec.id);
        }
    }

    /// Computes the new speeds of jobs whose configuration has changed.
    fn reconfigure(&mut self) {
        let now_us = self.now_us;
        let mut changed = std::mem::take(&mut self.hardware.changed);
        changed.sort_unstable();
        changed.dedup();
        for &job in &changed {
            let running = &mut self.jobs[job];
            let Some(on) = &running.on else { continue };
            let speed = self.hardware.gpus.speed(job, on);
            let above_idle_mw = self.hardware.gpus.above_idle_mw_of(on);
            running.charge(now_us, above_idle_mw);
            running.catch_up(now_us);
            running.rate = speed * running.base;
            running.version += 1;
            running.configured_us = now_us.max(running.resume_us);
            running.window_from_us = running.configured_us;
            running.windows = 0;
            let at = running.completion_of(running.work_us);
            self.events.schedule(at, Event::Completed, job, running.version);
            if self.reports_surfaces() {
                self.begin_segment(job);
                self.report(job);
                self.schedule_window(job);
            }
        }
        if self.reports_surfaces() && !changed.is_empty() {
            self.schedule_epochs(&changed);
        }
        changed.clear();
        self.hardware.changed = changed;
    }

    /// The outcome, up to the last completion.
    fn finish(mut self) -> PolicyOutcome {
        let last_completion_us = self.totals.last_completion_us;
        self.read_final_meter();
        let budget = self.controller.budget().filter(|_| self.options.budget.is_some());
        let budget = budget.map(ActiveBudget::controller);
        let spending = budget.map(|controller| self.budget.spending.outcome(controller));
        let budget_overrun =
            budget.filter(|controller| controller.budget().has_window()).and_then(|_| {
                let windows = spending.iter().flat_map(|spending| &spending.windows);
                windows.map(|window| window.overrun).reduce(f64::max)
            });
        let may_wait = self.scenario.jobs.iter().any(|job| job.slack.is_some());
        let deferred_s = seconds(self.budget.deferred_us as f64 / self.jobs.len().max(1) as f64);
        let times = times(&self.totals.finished);
        let mut notes = Vec::new();
        let jobs = self.jobs.len();
        let waiting = jobs - self.totals.finished.len() - self.totals.rejected.len();
        /// Most rejections with a note of their own.
        const LISTED_MAX: usize = 5;
        let rejected = &self.totals.rejected;
        notes.extend(rejected.iter().take(LISTED_MAX).cloned());
        if rejected.len() > LISTED_MAX {
            let more = rejected.len() - LISTED_MAX;
            notes.push(format!("also rejected: {}", pluralize(more, "job")));
        }
        if waiting > 0 {
            let why = starvation(&self.controller);
            let why = why.map_or_else(String::new, |why| format!(": {why}"));
            notes.push(format!("{} never started{why}", pluralize(waiting, "job")));
        }
        let unfinished = (0..self.jobs.len() as u32)
            .map(|job| &self.jobs[job])
            .filter(|job| job.ended_us.is_none())
            .map(|job| job.spec.id.clone())
            .collect();
        let totals = self.totals;
        let meter = totals.meter;
        if let Some(series) = &self.scenario.carbon
            && Duration::from_micros(last_completion_us) > series.period()
        {
            let days = series.period().as_secs_f64() / 86_400.0;
            notes.push(format!(
                "the carbon series {} of {days:.1} days is shorter than the run and was repeated",
                series.name
            ));
        }
        PolicyOutcome {
            policy: self.controller.policy().name().to_owned(),
            oracle: self.prediction.oracle.is_some(),
            jobs,
            finished: totals.finished.len(),
            unfinished,
            jct_s_mean: times.mean,
            jct_s_p50: times.p50,
            jct_s_p95: times.p95,
            jct_s_p99: times.p99,
            wait_s_mean: times.wait,
            runtime_s_mean: times.run,
            makespan_s: seconds((last_completion_us - self.start_us) as f64),
            energy_kwh: meter.energy_kwh(),
            energy_kwh_above_idle: meter.energy_kwh_above_idle(),
            carbon_kg: meter.carbon_kg(),
            active_nodes_mean: meter.active_nodes_mean(),
            fragmented_gpus_mean: meter.fragmented_gpus_mean(),
            awake_nodes_mean: meter.awake_nodes_mean(),
            gpu_utilization_mean: meter.utilization_mean(self.scenario.cluster.gpu_count()),
            rescales: totals.rescales,
            migrations: totals.migrations,
            restarts_max: totals.restarts_max,
            early_stops: totals.early_stops,
            restart_gpu_h: (totals.restart_gpu_us as f64 / 3.6e3).round() / 1e6,
            wall_s: 0.0,
            rejected: totals.rejected.len(),
            shared_starts: totals.shared_starts,
            undone: totals.undone,
            deadlines_missed: totals.deadlines_missed,
            budget_overrun,
            spending,
            deferred_s_mean: may_wait.then_some(deferred_s),
            prediction: self
                .prediction
                .errors
                .map(|errors| errors.outcome(self.prediction.oracle.is_some())),
            notes,
        }
    }
}

/// Name of a simulated node, as in `wattle up`.
fn node_id(index: usize) -> NodeId {
    NodeId::new(&format!("n{index}")).expect("a letter and digits are an id")
}
