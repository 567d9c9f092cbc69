//! The live placer: events of the cluster in, records and orders out.
//!
//! A state machine without I/O around a [`Controller`], which decides. It adds stored records, generations,
//! leases, the inventory of nodes and alarms, which the simulator does not need. Each order follows
//! from a record that is stored first.
//!
//! Each concern is a struct that owns its state, and knows what an event has changed of it: the jobs' records
//! ([`job_records`]), the nodes with their orders ([`nodes`]), the comparison with a lost store ([`adoption`]),
//! the budget ([`budget`]), the grid's events ([`events`]) and signals ([`grid`]), the planning rounds ([`planning`]), and the rest that
//! an event leaves for its end ([`outbox`]). A method takes the other concerns that it reads or changes.
//! [`Placer`] passes events to them and writes their changes in order.
//!
//! # What survives a kill at any instant
//! The buckets hold all persistent state. Each event is written in this order, and each write begins
//! after the one before is acknowledged:
//!
//! 1. job records (bucket `jobs`): phase, attempt, placement, next phase of a stopping job;
//! 2. the orders of the nodes concerned (bucket `desired`), generation + 1;
//! 3. the reply to the request.
//!
//! A node's order is a function of the records: every starting, running or stopping job whose
//! placement names the node, with `stop` for a stopping job. After a restart all orders are computed
//! again, and those that differ from the stored ones are written. A kill at each point:
//! * before a submission is stored: it was not acknowledged, and the client submits again;
//! * stored, not acknowledged: a repeated submission is recognised by its equal specification;
//! * recorded as starting, not ordered: the order is computed and written. The record holds the
//!   attempt, so an order that was written already is the same one;
//! * recorded as stopping, not ordered: likewise; `next_phase` holds why it stops;
//! * ended on its node, not recorded: the order still names the job, so the launcher still reports
//!   how it ended;
//! * recorded as ended or queued again, still ordered: the order is computed without it.
//!
//! A node's sleep state is stored in its order before the sleep or wake command runs ([`nodes`]).
//!
//! A restart loses on which GPUs a job was undone and the measurements of an observation (it starts
//! again).
//!
//! A lost store is recognised by the nodes' reports, and their running jobs are adopted ([`adoption`]).
//!
//! # Identity
//! A job's id is a name that a person chooses, and that is free again once its record is gone. What nodes report
//! counts for a record only if it is of the same submission ([`wattle_common::admission`]).
//!
//! # Silent nodes
//! A node with late heartbeats gets no new jobs; after `node_lost_after_ms` its jobs are queued
//! again. When it returns, its launcher stops the jobs that are no longer ordered; until it reports
//! so, their GPUs are not used. While the bus or the placer itself is away no node is lost. A node
//! that is alive but cut off may run an old attempt until it returns.

mod admission;
mod adoption;
mod bounds;
mod budget;
mod events;
mod expected;
mod feeders;
mod grid;
mod job_energy;
mod job_records;
mod lifecycle;
mod listing;
mod measured_power;
pub mod measures;
mod nodes;
mod outbox;
mod planning;
mod restarts;
mod restore;
mod site_jobs;
mod site_power;
mod twin;
mod verdict;

use std::sync::Arc;

use wattle_common::event::{EventBook, EventPerformances};
use wattle_common::messages::{
    AimStatus, BudgetRecord, BudgetReply, BudgetStatus, CancelJob, EventReply, EventRequest,
    ExpectedStatus, FeedersStatus, GridStatus, JobProgressed, JobRecord, LaunchReport, LedgerEntry,
    NodeDesired, NodeSummary, PowerReport, Reply, SetBudget, SiteMinute, SubmitJob, Surface,
    TwinOpen, TwinStatus, WhatIf,
};
use wattle_common::{AdmissionId, JobId, Machine, NodeId, Timestamp};
use wattle_grid::{Signal, SignalSeries};

use crate::config::Config;
use crate::controller::Controller;
use crate::{Policy, Progress};

use adoption::StoreComparison;
use budget::Spending;
use events::GridEvents;
use expected::ExpectedStore;
use feeders::Feeders;
use grid::GridSignals;
use job_records::JobRecords;
use measured_power::NodeReadings;
use nodes::Nodes;
use outbox::Outbox;
use planning::Rounds;
use site_power::SitePower;
use twin::TwinStore;
use verdict::{Seen, Verdict};

pub use restore::PersistedState;

/// When the bucket is nearly full, one in this many ended jobs is forgotten at once.
const ENDED_PARTS: usize = 16;

/// The number of a request, counted by the service.
pub type RequestNumber = u64;

/// An input of the live placer.
#[derive(Clone, Debug)]
pub enum Event {
    /// Events that arrived together. Their changes are stored together, and the last change of a value
    /// counts.
    Batch(Vec<Self>),
    /// A user submits a job. If it is accepted, this is its identity.
    Submitted(RequestNumber, AdmissionId, Box<SubmitJob>),
    /// A user cancels a job.
    Cancelled(RequestNumber, CancelJob),
    /// A user sets the budget.
    BudgetSet(RequestNumber, Box<SetBudget>),
    /// A person or a source announces or changes a grid event.
    EventSet(RequestNumber, Box<EventRequest>),
    /// A node's energy ledger has a new entry.
    EnergyMetered(Box<LedgerEntry>),
    /// A profiler has read its GPUs for a second.
    NodeSummarized(Box<NodeSummary>),
    /// A power agent reports its GPUs.
    PowerReported(PowerReport),
    /// A launcher reports its jobs.
    LaunchReported(LaunchReport),
    /// A predictor published a job's surface.
    SurfaceKnown(Box<Surface>),
    /// A job reports its progress.
    Progressed(JobProgressed),
    /// The bus is connected again. Heartbeats missing until now do not count as silence.
    BusReturned,
    /// The server has lost acknowledged values: all are stored again.
    StoreIncomplete,
    /// The bucket `jobs` is nearly full: the oldest ended jobs are forgotten.
    JobsNearlyFull,
    /// The record of a submitted job was not stored, because the bucket is full.
    SubmissionNotStored(JobId),
    /// A node's wake command ended, with its error if it failed.
    WakeAnswered(NodeId, Option<String>),
    /// A read of the carbon intensity or the electricity price has ended.
    GridRead(Signal, Result<Box<SignalSeries>, String>),
}

/// An output of the live placer. Actions are executed in order, each after the one before is
/// acknowledged.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Store the record in the bucket `jobs`.
    StoreJob(Box<JobRecord>),
    /// Delete an old record from the bucket `jobs`.
    ForgetJob(JobId),
    /// Store the order in the bucket `desired`.
    StoreDesired(NodeDesired),
    /// Run the operator's wake command for this node in the background and return
    /// [`Event::WakeAnswered`]. It may run more than once.
    WakeNode(NodeId),
    /// Store the budget in force in the bucket `budget`.
    StoreBudget(Box<BudgetRecord>),
    /// Store the budget's status in the bucket `budget`.
    StoreBudgetStatus(Box<BudgetStatus>),
    /// Store the grid events in the bucket `budget`.
    StoreEvents(Box<EventBook>),
    /// Store what jobs lose over grid events.
    StoreEventJobs(Box<EventPerformances>),
    /// Store the power of the site in a minute, in the stream `site`.
    StoreSiteMinute(Box<SiteMinute>),
    /// Store the state of the energy aim.
    StoreAimStatus(AimStatus),
    /// Store the sources of carbon intensity and electricity price.
    StoreGridStatus(Box<GridStatus>),
    /// Store the power of each feeder.
    StoreFeedersStatus(Box<FeedersStatus>),
    /// Store the sums of the twin and its open jobs.
    StoreTwin(Box<(TwinStatus, TwinOpen)>),
    /// Store the errors of the expected starts and ends.
    StoreExpected(Box<ExpectedStatus>),
    /// Store what the jobs would use at other settings.
    StoreWhatIf(Box<WhatIf>),
    /// Delete the mark of a restored store: the records are compared with the nodes' reports.
    ForgetRestoration,
    /// Answer a submission or cancellation.
    Answer(RequestNumber, Reply),
    /// Answer a budget request.
    AnswerBudget(RequestNumber, BudgetReply),
    /// Answer a request about a grid event.
    AnswerEvent(RequestNumber, EventReply),
    /// Report a fault to the operator that the placer cannot fix.
    Alarm(String),
}

/// The controller of a live cluster.
type LiveController = Controller<Box<dyn Policy>>;

/// The handling of one event or wake.
struct Turn<'a> {
    now: Timestamp,
    controller: &'a mut LiveController,
    outbox: &'a mut Outbox,
}

/// The live placer: each concern owns its state and what it writes of it.
pub struct Placer {
    config: Arc<Config>,
    controller: LiveController,
    jobs: JobRecords,
    nodes: Nodes,
    comparison: StoreComparison,
    spending: Spending,
    events: GridEvents,
    site_power: SitePower,
    feeders: Feeders,
    grid: GridSignals,
    rounds: Rounds,
    verdict: Verdict,
    readings: NodeReadings,
    twin: TwinStore,
    expected: ExpectedStore,
    outbox: Outbox,
    tick_at: Timestamp,
}

impl Placer {
    /// A placer that continues from the persisted state.
    #[must_use]
    pub fn new(
        config: Config,
        policy: Box<dyn Policy>,
        persisted: PersistedState,
        now: Timestamp,
    ) -> Self {
        let config = Arc::new(config);
        let controller = config.controller();
        let mut placer = Self {
            feeders: Feeders::new(Arc::clone(&controller.feeders)),
            controller: Controller::new(controller, policy),
            jobs: JobRecords::new(&config),
            nodes: Nodes::new(Arc::clone(&config), now),
            comparison: StoreComparison::new(&config),
            spending: Spending::new(&config),
            events: GridEvents::new(),
            site_power: SitePower::new(now),
            grid: GridSignals::new(&config.grid, now),
            rounds: Rounds::new(config.round_delay(), now),
            verdict: Verdict::default(),
            readings: NodeReadings::new(now),
            twin: TwinStore::new(now),
            expected: ExpectedStore::new(now),
            outbox: Outbox::new(),
            tick_at: now,
            config,
        };
        placer.controller.advance_to(now);
        placer.restore(persisted, now);
        placer
    }

    /// Number of planning rounds since the start.
    #[must_use]
    pub const fn rounds(&self) -> u64 {
        self.rounds.made()
    }

    /// Whether readings of power count: a power limit is in force.
    #[must_use]
    pub fn reads_power(&self) -> bool {
        self.controller.limits().is_power_limited()
    }

    /// Updates the state by an event. The caller flushes the changes.
    fn process(&mut self, now: Timestamp, event: Event, out: &mut Vec<Action>) {
        let Self {
            controller,
            jobs,
            nodes,
            comparison,
            spending,
            events,
            site_power,
            grid,
            readings,
            outbox,
            ..
        } = self;
        let turn = &mut Turn { now, controller, outbox };
        if !bounds::is_within(turn, &event, nodes) {
            return;
        }
        match event {
            Event::Batch(events) => {
                for event in events {
                    self.process(now, event, out);
                }
            }
            Event::Submitted(number, admission, request) => {
                let complete = nodes.inventory_complete(now, turn.controller.state());
                let reply = jobs.submit(turn, *request, admission, complete);
                turn.outbox.reply(number, reply);
            }
            Event::Cancelled(number, request) => {
                let reply = jobs.cancel(turn, &request.job, nodes);
                turn.outbox.reply(number, reply);
            }
            Event::BudgetSet(number, request) => {
                let provider = grid.carbon_provider();
                let reply = spending.set(turn, *request, provider, nodes);
                turn.outbox.reply_budget(number, reply);
            }
            Event::EventSet(number, request) => {
                let reply = events.request(turn, *request, spending, nodes);
                turn.outbox.reply_event(number, reply);
            }
            Event::EnergyMetered(entry) => {
                events.metered(&entry);
                jobs.count_energy(&entry);
                twin::meter(&entry, jobs, turn.controller);
                spending.metered(turn, &entry, nodes);
                site_power.metered(&entry);
            }
            Event::NodeSummarized(summary) => {
                if readings.summarized(turn, &summary, nodes, spending) {
                    events.look(turn);
                }
            }
            Event::PowerReported(report) => {
                let node = report.node.clone();
                nodes.power_reported(turn, report);
                // The report may show the reductions for which other caps wait.
                nodes.order_raises();
                nodes.refresh(turn, &node, jobs);
                jobs.reconcile_on(&node);
            }
            Event::LaunchReported(report) => {
                let node = report.node.clone();
                if nodes.launch_reported(turn, report) {
                    comparison.reported(now, &node, true, jobs, nodes, turn.outbox);
                }
                // Before the node's free GPUs are counted: the site's scheduler may have taken some.
                jobs.follow_site(turn, &node, nodes);
                nodes.refresh(turn, &node, jobs);
                jobs.reconcile_on(&node);
            }
            Event::SurfaceKnown(surface) => {
                let job = surface.job.clone();
                self.surface_known(*surface);
                self.jobs.predict_unpredicted(&job, self.controller.state());
                self.plan_by_surfaces();
            }
            Event::Progressed(message) => {
                let key = jobs.key(&message.job);
                if let Some(key) = key.filter(|_| jobs.progressed(now, &message)) {
                    turn.controller.events().job_progressed(key, Progress::from(&message));
                    self.plan_by_surfaces();
                }
            }
            Event::JobsNearlyFull => jobs.forget_part_of_ended(ENDED_PARTS, out),
            Event::SubmissionNotStored(job) => jobs.not_stored(&job, turn.controller),
            Event::WakeAnswered(node, error) => nodes.wake_answered(turn, &node, error),
            Event::GridRead(signal, result) => {
                if grid.read(now, signal, result) {
                    self.use_carbon(now);
                }
                self.look_at_grid(now);
            }
            Event::StoreIncomplete => self.store_all_again(),
            Event::BusReturned => {
                nodes.bus_returned(now);
                site_power.bus_returned(now);
            }
        }
    }

    /// Emits the changes of this event in the order that survives a kill.
    fn flush(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        let Self { controller, jobs, nodes, outbox, .. } = self;
        while let Some(job) = jobs.next_to_reconcile() {
            jobs.reconcile(&mut Turn { now, controller, outbox }, &job, nodes);
        }
        jobs.store(now, controller.state(), out);
        nodes.write_orders(now, jobs, controller, out);
        // After the sleep states are stored with the orders.
        nodes.wake(out);
        // After the compared records are stored.
        self.comparison.store(out);
        // The status names the planned budget, so it follows the orders of that plan.
        self.spending.store(now, nodes, controller, out);
        self.events.store(out);
        self.site_power.store(out);
        self.grid.store(now, self.spending.generation(), out);
        self.feeders.store(now, controller, outbox, out);
        self.twin.store(now, controller, out);
        self.expected.store(now, controller, out);
        // A client may rely on all that was stored before its reply.
        outbox.send_replies(out);
        jobs.forget_ended(self.config.ended_kept, out);
        outbox.raise_alarms(now, out);
        if outbox.take_plan() {
            self.rounds.soon(now);
        }
        if outbox.take_submitted() && controller.reads() != crate::Reads::Nothing {
            self.rounds.postpone(now);
        }
    }

    /// A job's surface was published. One of another submission of the name does not count.
    fn surface_known(&mut self, surface: Surface) {
        let is_its = self.jobs.get(&surface.job).is_some_and(|record| record.has_surface(&surface));
        if let Some(key) = self.controller.state().job_key(&surface.job).filter(|_| is_its) {
            // The power reserved for its GPUs may rise.
            self.nodes.outdate_plan();
            for surface in surface.by_gpu_type() {
                self.controller.events().surface_known(key, Arc::new(surface));
            }
        }
    }

    /// Plans soon if plans depend on surfaces and progress.
    fn plan_by_surfaces(&mut self) {
        if self.controller.reads() != crate::Reads::Nothing {
            self.outbox.plan_soon();
        }
    }

    /// Puts the carbon intensity of the provider in force.
    fn use_carbon(&mut self, now: Timestamp) {
        let Self { controller, nodes, outbox, .. } = self;
        if let Some(series) = self.grid.carbon_series() {
            self.spending.use_intensity(&mut Turn { now, controller, outbox }, series, nodes);
        }
    }

    /// Follows values of the grid that end, where they are due.
    fn look_at_grid(&mut self, now: Timestamp) {
        let Self { controller, outbox, .. } = self;
        if self.grid.look(&mut Turn { now, controller, outbox }) {
            self.use_carbon(now);
        }
    }

    /// Stores every record and the budget again, and renews every order.
    fn store_all_again(&mut self) {
        self.jobs.store_all();
        self.nodes.renew_all();
        self.spending.store_again();
        self.events.store_again();
        self.grid.store_again();
        self.outbox.alarm(format!(
            "the server has lost acknowledged values: the {} job records, the orders, the budget and the events are \
             stored again; entries of the ledger may be missing",
            self.jobs.len()
        ));
    }

    /// Follows the passing of time: what nodes have not reported, and what was not stored.
    fn tick(&mut self, now: Timestamp) {
        let Self { controller, jobs, nodes, outbox, .. } = self;
        let turn = &mut Turn { now, controller, outbox };
        self.tick_at = now + self.config.tick();
        turn.controller.follow_twin(now);
        nodes.wake_again();
        nodes.note_reductions(now, turn.controller);
        nodes.order_raises();
        let ids: Vec<NodeId> = nodes.ids().cloned().collect();
        for node in &ids {
            nodes.refresh(turn, node, jobs);
            if nodes.is_lost(now, node) {
                jobs.reconcile_on(node);
            }
        }
        jobs.store_noted(now);
        turn.outbox.plan_soon();
        let Self {
            controller,
            jobs,
            nodes,
            spending,
            events,
            site_power,
            grid,
            readings,
            verdict,
            outbox,
            ..
        } = self;
        let turn = &mut Turn { now, controller, outbox };
        readings.look(turn, nodes, spending);
        events.look(turn);
        site_power.sample(turn, grid);
        site_power.close(turn, nodes, spending, events);
        let (status, aim) = (spending.status(now, nodes, controller), controller.aim_status());
        let (budget, status, aim) = (spending.record(), status.as_ref(), aim.as_ref());
        verdict.look(jobs.all(), Seen { now, budget, status, aim }, outbox);
    }
}

impl Machine for Placer {
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Timestamp, event: Event, out: &mut Vec<Action>) {
        self.nodes.notice_absence(now, &mut self.outbox);
        self.controller.advance_to(now);
        self.process(now, event, out);
        self.flush(now, out);
    }

    fn wake(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        self.nodes.notice_absence(now, &mut self.outbox);
        self.controller.advance_to(now);
        if now >= self.tick_at {
            self.tick(now);
        }
        let Self { controller, jobs, nodes, outbox, .. } = self;
        if self.comparison.at().is_some_and(|at| now >= at) {
            self.comparison.compare(&mut Turn { now, controller, outbox }, jobs, nodes);
        }
        nodes.renew(now);
        self.look_at_grid(now);
        let Self { controller, nodes, events, outbox, .. } = self;
        let turn = &mut Turn { now, controller, outbox };
        events.follow(turn, nodes);
        self.spending.control(turn, nodes);
        // Ended jobs release their GPUs before planning.
        self.flush(now, out);
        if !self.comparison.is_awaited() && self.rounds.at().is_some_and(|at| now >= at) {
            self.rounds.begin();
            self.round(now);
            self.flush(now, out);
        }
    }

    fn next_wake(&self) -> Option<(Timestamp, &'static str)> {
        let round = self.rounds.at().filter(|_| !self.comparison.is_awaited());
        let round = round.map(|at| (at, "a planning round is due"));
        let adoption =
            self.comparison.at().map(|at| (at, "the records are compared with the nodes"));
        let renewal = self.nodes.renewal().map(|at| (at, "a lease renewal is due"));
        let control =
            self.controller.control_at().map(|at| (at, "a control step of the budget is due"));
        let grid = self.grid.look_at().map(|at| (at, "a value of the grid ends"));
        let event = self.events.follow_at().map(|at| (at, "a grid event begins or is over"));
        [Some((self.tick_at, "tick")), round, adoption, renewal, control, grid, event]
            .into_iter()
            .flatten()
            .min_by_key(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests;
