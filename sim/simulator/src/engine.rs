//! The virtual clock and the queue of events, around the placer's own library.
//!
//! At each instant completions come first, then what was to be looked at, then arrivals; then the
//! policy decides, every plan is checked, and the world says how fast everyone runs from there on.
//! Nothing is decided here. Starting a job costs no time; a job that is undone goes back to the end
//! of its last epoch, where its checkpoint lies.

mod comparing;
mod deciding;
mod metering;
mod nodes;
mod probing;
pub(crate) mod recording;
mod running;

mod watching;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use wattle_common::{NodeId, Timestamp};
use wattle_placer::controller::budget::ActiveBudget;
use wattle_placer::controller::{Controller, ControllerConfig};
use wattle_placer::{JobFacts, NodeFacts, Policy, Reads};
use wattle_world::{Workload, World};

use crate::cards::Cards;
use crate::engine::metering::{Reading, put_in_force, starvation};
use crate::engine::nodes::watts;
use crate::engine::recording::{Recorder, Recording};
use crate::engine::running::Running;
use crate::meter::Meter;
use crate::oracle::Oracle;
use crate::outcome::{Finished, PolicyOutcome, seconds, times, us};
use crate::prediction_error::Tally;
use crate::profiles::Profiles;
use crate::scenario::Scenario;
use crate::simulation::{RunOptions, SimulationError};
use crate::spending::Watch;
use crate::text::pluralize;

/// A hundred thousand years in microseconds: no sum of two such times overflows.
const US_MAX: u64 = 100_000 * 31_557_600 * 1_000_000;

/// What is to happen, in the order in which it does at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// The job has done its work.
    Completes,
    /// The job has run an epoch since the observation it takes part in began.
    RanAnEpoch,
    /// An observed job that was started anew makes progress from now on.
    GoesOn,
    /// A window of the job closes.
    WindowCloses,
    /// A node has woken up.
    NodeWakes,
    /// A probe's time is over.
    ProbeEnds,
}

/// One policy's run through a scenario.
pub(crate) struct Engine<'s> {
    scenario: &'s Scenario,
    options: &'s RunOptions,
    controller: Controller<&'s dyn Policy>,
    cards: Cards<'s>,
    meter: Meter<'s>,
    /// The meter as it stood at the last completion, where the run ends: jobs that come later and
    /// are rejected add nothing.
    until_last: Meter<'s>,
    first_us: u64,
    /// What writes the surfaces, where the policy reads any: the predictor, or the oracle.
    profiles: Option<Profiles>,
    oracle: Option<Oracle<'s>>,
    /// What was foretold against what happened, where anything is.
    tally: Option<Tally>,
    jobs: Vec<Running<'s>>,
    /// Which job a key stands for.
    by_key: Vec<u32>,
    due: BinaryHeap<Reverse<(u64, Due, u32, u32)>>,
    now_us: u64,
    /// When the policy wants to be asked again.
    again_us: Option<u64>,
    /// How often in a row it was asked so while nothing ran and nothing came of it.
    idle_looks: usize,
    /// What the policy, or what stands around it, reads of surfaces.
    reads: Reads,
    /// The meter's last reading, under a budget.
    reading: Option<Reading>,
    watch: Watch,
    /// Whether somebody waits for want of energy or power.
    held_back: bool,
    /// How many jobs wait for a cleaner grid, and for how long all of them have.
    deferred: u32,
    deferred_us: u64,
    /// Jobs whose configuration has changed at this instant.
    touched: Vec<u32>,
    finished: Vec<Finished>,
    rejected: Vec<String>,
    outcome: Counts,
    /// Who listens, where anybody does.
    recorder: Option<Box<Recorder>>,
    /// Who hears how many jobs have ended, and of how many, where anybody does.
    progress: Option<&'s mut dyn FnMut(usize, usize)>,
}

#[derive(Default)]
struct Counts {
    migrations: usize,
    rescales: usize,
    restart_gpu_us: u64,
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
            jobs.push(Running {
                spec,
                workload: workloads[index],
                workload_index: index as u32,
                key: None,
                on: None,
                work_us: 0.0,
                steps_per_us: 0.0,
                base: 1.0,
                done_us: 0.0,
                rate: 0.0,
                at_us: 0,
                resume_us: 0,
                stopped_on: None,
                version: 0,
                configured_us: 0,
                window_from_us: 0,
                windows: 0,
                started_us: 0,
                ran_us: 0,
                attempts: 0,
                prior_of: None,
                stretch: None,
            });
        }
        let cards = Cards::new(world, &scenario.cluster, workloads)?;
        let mut config = ControllerConfig {
            price: options.price,
            nodes_sleep: options.nodes_sleep,
            probe: options.probe,
            ..ControllerConfig::default()
        };
        config.tenants_max = options.tenants_max.unwrap_or(config.tenants_max);
        let mut controller = Controller::new(config, policy);
        let state = controller.events();
        let below = scenario.cluster.switches().zip(scenario.cluster.boards());
        for (i, ((gpus, kind), (switch, board))) in scenario.cluster.nodes().zip(below).enumerate()
        {
            let node = state.node_known(NodeFacts {
                id: node_id(i),
                gpu_type: kind.to_owned(),
                gpus,
                memory_mib: world.gpu(kind).map_or(0, |gpu| gpu.memory_mib),
                healthy: u64::MAX,
                watts: world.gpu(kind).map(|gpu| watts(world, gpu, gpus)),
            });
            state.switch_known(node, switch);
            state.boards_known(node, board);
        }
        state.inventory_known(true);
        let first_us = scenario.jobs.iter().map(|job| us(job.submit)).min().unwrap_or(0);
        let meter = Meter::starting(first_us, scenario.carbon.as_ref());
        let reading = put_in_force(&mut controller, world, scenario, options, first_us);
        // Bounds on what is drawn read what everybody draws.
        let reads_what =
            if options.budget.is_some() { Reads::All } else { policy.capabilities().reads };
        let reads = reads_what != Reads::Nothing;
        let oracle = options.oracle;
        let profiles = (reads && !oracle)
            .then(|| Profiles::new(scenario.seed, reads_what, options.probe.enabled));
        Ok(Self {
            scenario,
            options,
            controller,
            cards,
            until_last: meter.clone(),
            meter,
            first_us,
            profiles,
            oracle: (reads && oracle)
                .then(|| Oracle::new(world, scenario, reads_what, options.surface_noise)),
            tally: reads.then(Tally::default),
            jobs,
            by_key: Vec::new(),
            due: BinaryHeap::new(),
            now_us: first_us,
            again_us: None,
            idle_looks: 0,
            reads: reads_what,
            reading,
            watch: Watch::default(),
            held_back: false,
            deferred: 0,
            deferred_us: 0,
            touched: Vec::new(),
            finished: Vec::with_capacity(scenario.jobs.len()),
            rejected: Vec::new(),
            outcome: Counts::default(),
            recorder: None,
            progress: None,
        })
    }

    /// Tells `progress` how many jobs have ended, and of how many, whenever one has.
    pub(crate) fn with_progress(mut self, progress: &'s mut dyn FnMut(usize, usize)) -> Self {
        self.progress = Some(progress);
        self
    }

    pub(crate) fn run(mut self) -> Result<PolicyOutcome, SimulationError> {
        let last_completion_us = self.run_through()?;
        Ok(self.finish(last_completion_us))
    }

    /// Runs, and keeps what happened.
    pub(crate) fn run_recorded(mut self) -> Result<(PolicyOutcome, Recording), SimulationError> {
        self.recorder = Some(Box::new(Recorder::new(self.scenario, self.first_us)));
        let last_completion_us = self.run_through()?;
        let recorder = self.recorder.take().expect("it was put there above");
        Ok((self.finish(last_completion_us), recorder.told(last_completion_us)))
    }

    /// Until nothing happens any more; the last completion.
    fn run_through(&mut self) -> Result<u64, SimulationError> {
        self.remember_past();
        let mut arrivals: Vec<u32> = (0..self.jobs.len() as u32).collect();
        arrivals.sort_by_key(|&job| self.jobs[job as usize].spec.submit);
        let mut arrivals = arrivals.into_iter().peekable();
        let mut last_completion_us = self.now_us;
        loop {
            let arrival = arrivals.peek().map(|&job| us(self.jobs[job as usize].spec.submit));
            let due = self.due.peek().map(|Reverse((at, ..))| *at);
            let steers = self.controller.control_at().map(Timestamp::as_us);
            let again = self.again_us.into_iter().chain(steers).min();
            let again = again.filter(|_| self.may_look_again(arrival.is_some()));
            let Some(now_us) = arrival.into_iter().chain(due).chain(again).min() else { break };
            if now_us > US_MAX {
                return Err(SimulationError::TooLong {
                    policy: self.controller.policy().name().to_owned(),
                });
            }
            let mut something = false;
            // Void events must not move the meter: after the last completion nothing counts.
            let mut reached = false;
            if again == Some(now_us) {
                something = self.again_us == Some(now_us);
                self.again_us = self.again_us.filter(|at| *at > now_us);
                reached = true;
                self.reach(now_us);
                something |= self.control();
                // However often the price is looked at, a queue of which nothing runs is stuck.
                self.idle_looks += usize::from(!something);
            }
            while let Some(&Reverse((at, what, job, version))) = self.due.peek()
                && at == now_us
            {
                self.due.pop();
                if what == Due::ProbeEnds {
                    if !std::mem::replace(&mut reached, true) {
                        self.reach(now_us);
                    }
                    something |= self.end_probes();
                    continue;
                }
                if what == Due::NodeWakes {
                    if !std::mem::replace(&mut reached, true) {
                        self.reach(now_us);
                    }
                    self.woken(job);
                    something = true;
                    continue;
                }
                if self.jobs[job as usize].version != version
                    || self.jobs[job as usize].on.is_none()
                {
                    continue;
                }
                if !std::mem::replace(&mut reached, true) {
                    self.reach(now_us);
                }
                match what {
                    Due::Completes => {
                        self.complete(job);
                        last_completion_us = now_us;
                        self.until_last = self.meter.clone();
                    }
                    Due::RanAnEpoch => self.report(job),
                    Due::GoesOn => {
                        self.report(job);
                        self.expect_epochs(&[job]);
                        continue;
                    }
                    Due::WindowCloses => self.close_window(job),
                    Due::NodeWakes | Due::ProbeEnds => {}
                }
                something = true;
            }
            while let Some(job) =
                arrivals.next_if(|&job| us(self.jobs[job as usize].spec.submit) == now_us)
            {
                if !std::mem::replace(&mut reached, true) {
                    self.reach(now_us);
                }
                self.arrive(job);
                something = true;
            }
            if something {
                self.reconfigure();
                self.decide()?;
            }
        }
        Ok(last_completion_us)
    }

    fn reach(&mut self, now_us: u64) {
        self.record_levels(now_us);
        let span_us = now_us.saturating_sub(self.now_us);
        if let Some(budget) = self.controller.budget() {
            let most = budget.controller().budget().power_mw;
            let (drawn, position) = (self.cards.power_mw, budget.position());
            self.watch.saw(drawn, span_us, most, position, self.held_back);
        }
        self.deferred_us += u64::from(self.deferred) * span_us;
        self.meter.advance(now_us, &self.cards);
        self.now_us = now_us;
        self.controller.advance_to(Timestamp::from_us(now_us));
    }

    /// Whether the policy reads surfaces, and is told of progress.
    fn is_informed(&self) -> bool {
        self.tally.is_some()
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_us(self.now_us)
    }

    fn arrive(&mut self, job: u32) {
        let spec = self.jobs[job as usize].spec;
        let facts = JobFacts {
            id: spec.id.clone(),
            workload: Some(spec.workload.clone()),
            request: spec.gpus,
            exclusive: spec.exclusive,
            priority: spec.priority,
            can_stop: spec.can_stop,
            deadline: spec.deadline.map(|at| Timestamp::from_us(us(at))),
            slack: spec.slack.filter(|_| !self.options.no_deferral),
            duration_alone: self.duration_said(job),
            memory_mib_max: self.memory_said(job),
            gpu_type: spec.gpu_type.as_deref().map(Arc::from),
            submitted_at: self.now(),
        };
        let key = self.controller.events().job_arrived(facts);
        if self.by_key.len() <= key.index() {
            self.by_key.resize(key.index() + 1, u32::MAX);
        }
        self.by_key[key.index()] = job;
        self.jobs[job as usize].key = Some(key);
        self.say_length(job, key);
        let now = self.now();
        if let Some(profiles) = &mut self.profiles {
            let asked = spec.gpu_type.as_deref();
            let kind = asked.unwrap_or(&self.scenario.cluster.groups()[0].gpu_type);
            profiles.arrived(now, &spec.id, &spec.workload, spec.gpus, kind);
        }
    }

    fn complete(&mut self, job: u32) {
        let now_us = self.now_us;
        self.record_completion(job);
        self.end_stretch(job);
        if self.is_informed() {
            self.report(job);
        }
        let running = &mut self.jobs[job as usize];
        running.version += 1;
        running.ran_us += now_us - running.started_us;
        let on = running.on.take();
        let spec = running.spec;
        if spec.deadline.is_some_and(|deadline| now_us > us(deadline)) {
            self.outcome.deadlines_missed += 1;
        }
        let jct_us = now_us - us(spec.submit);
        self.finished.push(Finished { jct_us, ran_us: running.ran_us });
        if let Some(progress) = &mut self.progress {
            progress(self.finished.len(), self.scenario.jobs.len());
        }
        let key = running.key.take();
        if let Some(on) = &on {
            self.cards.remove(job, on, &mut self.touched);
        }
        if let Some(key) = key {
            self.controller.job_completed(key);
        }
        // Under a power limit the next plan sets every GPU.
        if let Some(on) = on.filter(|_| self.controller.limits().power_max.is_none()) {
            self.set_gpus(on.gpus());
        }
        if let Some(profiles) = &mut self.profiles {
            profiles.ended(&spec.id);
        }
    }

    /// Whoever was touched runs at a new speed from now on.
    fn reconfigure(&mut self) {
        let now_us = self.now_us;
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        for &job in &touched {
            let running = &mut self.jobs[job as usize];
            let Some(on) = &running.on else { continue };
            let speed = self.cards.speed(job, on);
            running.catch_up(now_us);
            running.rate = speed * running.base;
            running.version += 1;
            running.configured_us = now_us.max(running.resume_us);
            running.window_from_us = running.configured_us;
            running.windows = 0;
            let at = running.will_have_done(running.work_us);
            self.due.push(Reverse((at, Due::Completes, job, running.version)));
            if self.is_informed() {
                self.begin_stretch(job);
                self.report(job);
                self.expect_window(job);
            }
        }
        if self.is_informed() && !touched.is_empty() {
            self.expect_epochs(&touched);
        }
        touched.clear();
        self.touched = touched;
    }

    fn finish(mut self, last_completion_us: u64) -> PolicyOutcome {
        self.meter_the_rest(last_completion_us);
        let budget = self.controller.budget().filter(|_| self.options.budget.is_some());
        let budget = budget.map(ActiveBudget::controller);
        let spending = budget.map(|controller| self.watch.outcome(controller));
        let budget_overrun =
            budget.filter(|controller| controller.budget().has_window()).and_then(|_| {
                let windows = spending.iter().flat_map(|spending| &spending.windows);
                windows.map(|window| window.overrun).reduce(f64::max)
            });
        let may_wait = self.scenario.jobs.iter().any(|job| job.slack.is_some());
        let deferred_s = seconds(self.deferred_us as f64 / self.jobs.len().max(1) as f64);
        let times = times(&self.finished);
        let mut notes = Vec::new();
        let jobs = self.jobs.len();
        let waiting = jobs - self.finished.len() - self.rejected.len();
        /// Rejections told one by one.
        const TOLD_MAX: usize = 5;
        notes.extend(self.rejected.iter().take(TOLD_MAX).cloned());
        if self.rejected.len() > TOLD_MAX {
            let more = self.rejected.len() - TOLD_MAX;
            notes.push(format!("rejected besides: {}", pluralize(more, "job")));
        }
        if waiting > 0 {
            let why = starvation(&self.controller);
            let why = why.map_or_else(String::new, |why| format!(": {why}"));
            notes.push(format!("{} never found a place{why}", pluralize(waiting, "job")));
        }
        let meter = self.until_last;
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
            oracle: self.oracle.is_some(),
            jobs,
            finished: self.finished.len(),
            jct_s_mean: times.mean,
            jct_s_p50: times.p50,
            jct_s_p95: times.p95,
            jct_s_p99: times.p99,
            wait_s_mean: times.wait,
            runtime_s_mean: times.run,
            makespan_s: seconds((last_completion_us - self.first_us) as f64),
            energy_kwh: meter.energy_kwh(),
            energy_kwh_above_idle: meter.energy_kwh_above_idle(),
            carbon_kg: meter.carbon_kg(),
            active_nodes_mean: meter.active_nodes_mean(),
            fragmented_gpus_mean: meter.fragmented_gpus_mean(),
            awake_nodes_mean: meter.awake_nodes_mean(),
            gpu_utilization_mean: meter.utilization_mean(self.scenario.cluster.gpu_count()),
            rescales: self.outcome.rescales,
            migrations: self.outcome.migrations,
            restart_gpu_h: (self.outcome.restart_gpu_us as f64 / 3.6e3).round() / 1e6,
            wall_s: 0.0,
            rejected: self.rejected.len(),
            shared_starts: self.outcome.shared_starts,
            undone: self.outcome.undone,
            deadlines_missed: self.outcome.deadlines_missed,
            budget_overrun,
            spending,
            deferred_s_mean: may_wait.then_some(deferred_s),
            prediction: self.tally.map(|tally| tally.outcome(self.oracle.is_some())),
            notes,
        }
    }
}

/// Simulated nodes are called as those of `wattle up` are.
fn node_id(index: usize) -> NodeId {
    NodeId::new(&format!("n{index}")).expect("a letter and digits are an id")
}
