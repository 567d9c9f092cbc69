//! The simulator's event loop: virtual clock, hardware, trace and measurement around the placer's
//! controller.
//!
//! At each instant the loop processes scheduled events, then arrivals. The controller then plans,
//! every plan is checked and applied, and the world determines the new speeds. The engine makes no
//! scheduling decision. A first start costs no time. An undone job returns to its last checkpoint,
//! which is at the end of an epoch.

mod detail;
mod events;
mod grid_events;
mod job;
mod lifecycle;
mod measured_power;
mod metering;
mod nodes;
mod outcome;
mod planning;
mod predictions;
pub(crate) mod recording;
mod reports;

use std::sync::Arc;

use wattle_common::{NodeId, Timestamp};
use wattle_placer::controller::{Controller, ControllerConfig};
use wattle_placer::expected::Expected;
use wattle_placer::twin::policy_of;
use wattle_placer::{FixedCaps, NodeFacts, Policy, Reads};
use wattle_world::{Workload, World};

use crate::detail::Detail;
use crate::engine::detail::SleepTimes;
use crate::engine::events::{Event, EventQueue};
use crate::engine::grid_events::GridEvents;
use crate::engine::job::{JobTable, SimulatedJob};
use crate::engine::measured_power::CORRECTED_ROUNDS_MAX;
use crate::engine::metering::{MeterReading, install_budget};
use crate::engine::nodes::watts;
use crate::engine::recording::{Recorder, Recording};
use crate::feeders::FeederMeter;
use crate::gpus::Gpus;
use crate::meter::Meter;
use crate::oracle::Oracle;
use crate::outcome::{Finished, PolicyOutcome, us};
use crate::prediction_error::Tally;
use crate::profiles::Profiles;
use crate::scenario::Scenario;
use crate::simulation::{RunOptions, SimulationError};
use crate::spending::{Held, SpendingMeter};
use crate::time_limits::TimeLimits;

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
    /// The time limits of the jobs, if the policy reads them.
    time_limits: Option<TimeLimits>,
    events: EventQueue,
    prediction: Prediction<'s>,
    replan: Replan,
    budget: BudgetUse,
    grid_events: Option<GridEvents>,
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
    /// Whether measured power has corrected predicted power since the last plan.
    is_corrected: bool,
}

/// Use of the budget and carbon deferral.
struct BudgetUse {
    /// The meter's last reading; `None` if nothing is controlled.
    reading: Option<MeterReading>,
    spending: SpendingMeter,
    /// The power of the feeders, where there are any.
    feeders: Option<FeederMeter>,
    /// Whether the last plan was made below a power limit.
    caps_enforced: bool,
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
            aim: options.aim,
            nodes_sleep: options.nodes_sleep,
            share: options.share,
            feeders: Arc::new(scenario.feeders.clone()),
            ..ControllerConfig::default()
        };
        config.tenants_max = options.tenants_max.unwrap_or(config.tenants_max);
        if let Some(most) = options.restarts_per_day_max {
            (config.restarts.per_day_max, config.restarts.elastic_per_day_max) = (most, most);
        }
        let tenants_max = config.tenants_max;
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
                memory_mib: world.gpu(gpu_type).map(|gpu| gpu.memory_mib),
                healthy: u64::MAX,
                watts: world.gpu(gpu_type).map(|gpu| watts(world, gpu, gpus)),
                host: None,
                partitions: Vec::new(),
            });
            state.switch_known(node, switch);
            state.boards_known(node, board);
            if options.fixed_caps {
                let highest = world.gpu(gpu_type).map(|gpu| gpu.cap_default);
                state.caps_fixed(node, Some(FixedCaps { highest }));
            }
        }
        state.inventory_known(true);
        let start_us = scenario.jobs.iter().map(|job| us(job.submit)).min().unwrap_or(0);
        let meter = Meter::starting(start_us, scenario);
        controller.advance_to(Timestamp::from_us(start_us));
        let twin = options.twin.or_else(|| options.aim?.baseline);
        if let Some(baseline) = twin {
            controller.set_twin(controller.new_twin(baseline));
        }
        controller.set_aim(None, Timestamp::from_us(start_us));
        let reading = install_budget(&mut controller, world, scenario, options, start_us);
        if options.expected_times {
            let expected = Expected::new(Timestamp::from_us(start_us)).beside_limits();
            controller.set_expected(expected);
        }
        let grid_events = GridEvents::new(
            &options.events,
            options.plans_events,
            Timestamp::from_us(start_us),
            scenario,
        );
        let reads_all = options.expected_times || grid_events.is_some();
        let reads = if reads_all { Reads::All } else { controller.reads() };
        let reads_any = reads != Reads::Nothing;
        let oracle = options.oracle;
        let prediction = Prediction {
            reads,
            profiles: (reads_any && !oracle).then(|| {
                let is_sampled = options.learning.is_sampled(scenario.jobs.len());
                let models = scenario.cluster.groups().iter();
                let models = models.filter_map(|group| world.gpu(&group.gpu_type));
                let caps_min = models.map(|gpu| (gpu.gpu_type.clone(), gpu.cap_min)).collect();
                Profiles::new(scenario.seed, reads, is_sampled, caps_min, tenants_max)
            }),
            oracle: (reads_any && oracle).then(|| {
                Oracle::new(world, scenario, reads, options.surface_noise)
                    .with_caps(options.oracle_caps)
            }),
            errors: reads_any.then(Tally::default),
        };
        let of_twin = twin.map(|baseline| policy_of(baseline).capabilities());
        let reads_limits = controller.capabilities().reads_time_limits
            || of_twin.is_some_and(|capabilities| capabilities.reads_time_limits)
            || options.expected_times;
        let time_limits = reads_limits.then(|| TimeLimits::new(world, scenario));
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
            time_limits,
            events: EventQueue::default(),
            prediction,
            replan: Replan::default(),
            budget: BudgetUse {
                reading,
                spending: SpendingMeter::default(),
                feeders: FeederMeter::new(scenario),
                caps_enforced: false,
                admission_closed: false,
                deferred: 0,
                deferred_us: 0,
            },
            grid_events,
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
            let event = self.grid_events.as_ref().and_then(GridEvents::next_at);
            let control = control.into_iter().chain(event.map(Timestamp::as_us));
            let replan = self.replan.at_us.into_iter().chain(control).chain(self.correction_at());
            let replan = replan.min();
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
                plan_again |= self.follow_grid_events() | self.control();
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
            for _ in 0..CORRECTED_ROUNDS_MAX {
                if !std::mem::take(&mut self.replan.is_corrected) && !plan_again {
                    break;
                }
                plan_again = false;
                self.reconfigure();
                self.plan_until_stable()?;
                // The conditions of the next measurements.
                self.replan.is_corrected = self.measure_power(self.now_us);
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
                Event::WindowClosed => self.close_window(index),
                Event::NodeAwake => {
                    self.node_awake(index);
                    true
                }
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
        self.replan.is_corrected |= self.measure_power(now_us);
        let span_us = now_us.saturating_sub(self.now_us);
        if let Some(active) = self.controller.budget() {
            // A change of the limit is an event, so that one limit holds since the last one.
            let limit = active.controller().budget().power_at(Timestamp::from_us(self.now_us));
            let (power_mw, position) = (self.hardware.gpus.power_mw, active.position());
            let closed = self.budget.admission_closed;
            let waits = self.controller.state().queue_len() > 0;
            let held = Held { position, closed, waits };
            self.budget.spending.add(power_mw, span_us, limit, held);
        }
        self.meter_grid_events(now_us);
        if let Some(feeders) = &mut self.budget.feeders {
            feeders.add(&self.hardware.gpus, span_us);
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
            running.charge(now_us, above_idle_mw, self.hardware.gpus.shares_of(on));
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
}

/// Name of a simulated node, as in `wattle up`.
pub(crate) fn node_id(index: usize) -> NodeId {
    NodeId::new(&format!("n{index}")).expect("a letter and digits are an id")
}
