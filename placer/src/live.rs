//! The live placer: events of the cluster in, records and orders out.
//!
//! A state machine without I/O around a [`Controller`], which decides. It adds stored records, generations,
//! leases, the inventory of nodes and alarms, which the simulator does not need. Each order follows
//! from a record that is stored first.
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
//! A node's sleep state is stored in its order before the sleep or wake command runs
//! ([`nodes`]).
//!
//! A restart loses on which GPUs a job was undone and the measurements of an observation (it starts
//! again).
//!
//! A lost store is recognised by the nodes' reports, and their running jobs are adopted ([`adoption`]).
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
mod grid;
mod job_energy;
mod job_records;
mod lifecycle;
mod listing;
pub mod measures;
mod nodes;
mod outbox;
mod planning;
mod raised_alarms;
mod restarts;
mod restore;
mod rounds;
mod site_jobs;

use std::sync::Arc;

use wattle_common::job::JobPhase;
use wattle_common::messages::{
    AimStatus, BudgetRecord, BudgetReply, BudgetStatus, CancelJob, GridStatus, JobProgressed,
    JobRecord, LaunchReport, LedgerEntry, NodeDesired, PowerReport, Reply, SetBudget, SubmitJob,
    Surface,
};
use wattle_common::{JobId, Machine, NodeId, Timestamp};
use wattle_grid::{Signal, SignalSeries};

use crate::config::Config;
use crate::controller::Controller;
use crate::{Policy, Progress};

use adoption::StoreComparison;
use budget::Spending;
use grid::GridSignals;
use job_records::JobRecords;
use nodes::Nodes;
use outbox::Outbox;
use rounds::Rounds;

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
    /// A user submits a job.
    Submitted(RequestNumber, Box<SubmitJob>),
    /// A user cancels a job.
    Cancelled(RequestNumber, CancelJob),
    /// A user sets the budget.
    BudgetSet(RequestNumber, Box<SetBudget>),
    /// A node's energy ledger has a new entry.
    EnergyMetered(Box<LedgerEntry>),
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
    /// Store the state of the energy aim.
    StoreAimStatus(AimStatus),
    /// Store the sources of carbon intensity and electricity price.
    StoreGridStatus(Box<GridStatus>),
    /// Delete the mark of a restored store: the records are compared with the nodes' reports.
    ForgetRestoration,
    /// Answer a submission or cancellation.
    Answer(RequestNumber, Reply),
    /// Answer a budget request.
    AnswerBudget(RequestNumber, BudgetReply),
    /// Report a fault to the operator that the placer cannot fix.
    Alarm(String),
}

/// The controller of a live cluster.
type LiveController = Controller<Box<dyn Policy>>;

/// The live placer.
pub struct Placer {
    config: Arc<Config>,
    controller: LiveController,
    jobs: JobRecords,
    nodes: Nodes,
    rounds: Rounds,
    comparison: StoreComparison,
    tick_at: Timestamp,
    outbox: Outbox,
    spending: Spending,
    /// Carbon intensity and electricity price of the configured providers.
    grid: GridSignals,
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
        let mut placer = Self {
            controller: Controller::new(config.controller(), policy),
            jobs: JobRecords::new(&config),
            nodes: Nodes::new(Arc::clone(&config), now),
            rounds: Rounds::new(config.round_delay(), now),
            comparison: StoreComparison::new(&config),
            tick_at: now,
            outbox: Outbox::default(),
            spending: Spending::new(&config),
            grid: GridSignals::new(&config.grid, now),
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

    fn surface_known(&mut self, surface: Surface) {
        if let Some(key) = self.controller.state().job_key(&surface.job) {
            // The power reserved for its GPUs may rise.
            self.nodes.outdate_plan();
            for surface in surface.by_gpu_type() {
                self.controller.events().surface_known(key, Arc::new(surface));
            }
        }
    }

    fn progressed(&mut self, now: Timestamp, message: &JobProgressed) {
        let Some(key) = self.jobs.key(&message.job) else { return };
        if !self.jobs.progressed(now, message) {
            return;
        }
        self.controller.events().job_progressed(key, Progress::from(message));
        if self.controller.reads() != crate::Reads::Nothing {
            self.outbox.plan_soon();
        }
    }

    /// Puts the carbon intensity of the provider in force.
    fn use_carbon(&mut self, now: Timestamp) {
        if let Some(series) = self.grid.carbon_series() {
            self.spending.use_intensity(
                now,
                series,
                &mut self.nodes,
                &mut self.controller,
                &mut self.outbox,
            );
        }
    }

    /// Follows values of the grid that end, where they are due.
    fn look_at_grid(&mut self, now: Timestamp) {
        if self.grid.look(now, &mut self.outbox) {
            self.use_carbon(now);
        }
    }

    /// Updates a node in the cluster's state from its reports.
    fn refresh(&mut self, now: Timestamp, node: &NodeId) {
        self.nodes.refresh(now, node, &self.jobs, &mut self.controller, &mut self.outbox);
    }

    /// Emits the changes of this event in the order that survives a kill.
    fn flush(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        while let Some(job) = self.jobs.next_to_reconcile() {
            self.reconcile(now, &job);
        }
        self.jobs.store(now, self.controller.state(), out);
        self.nodes.write_orders(now, &mut self.jobs, &self.controller, out);
        self.nodes.wake(out);
        self.comparison.store(out);
        self.spending.store(now, &self.nodes, &self.controller, out);
        self.grid.store(now, self.spending.generation(), out);
        self.outbox.send_replies(out);
        self.jobs.forget_ended(self.config.ended_kept, out);
        self.outbox.raise_alarms(now, out);
        if self.outbox.take_plan() {
            self.rounds.soon(now);
        }
    }

    /// Updates the state by an event. The caller flushes the changes.
    fn process(&mut self, now: Timestamp, event: Event, out: &mut Vec<Action>) {
        if !bounds::is_within(now, &event, &self.nodes, &mut self.outbox) {
            return;
        }
        match event {
            Event::Batch(events) => {
                for event in events {
                    self.process(now, event, out);
                }
            }
            Event::Submitted(number, request) => {
                let reply = self.submitted(now, *request);
                self.outbox.reply(number, reply);
            }
            Event::Cancelled(number, request) => {
                let reply = self.cancelled(now, &request.job);
                self.outbox.reply(number, reply);
            }
            Event::BudgetSet(number, request) => {
                let reply = self.spending.set(
                    now,
                    *request,
                    self.grid.carbon_provider(),
                    &mut self.nodes,
                    &mut self.controller,
                    &mut self.outbox,
                );
                self.outbox.reply_budget(number, reply);
            }
            Event::EnergyMetered(entry) => {
                self.jobs.count_energy(&entry);
                self.spending.metered(
                    now,
                    &entry,
                    &mut self.nodes,
                    &mut self.controller,
                    &mut self.outbox,
                );
            }
            Event::PowerReported(report) => {
                let node = report.node.clone();
                self.nodes.power_reported(now, report, &mut self.outbox);
                self.nodes.order_raises();
                self.refresh(now, &node);
                self.jobs.reconcile_on(&node);
            }
            Event::LaunchReported(report) => {
                let node = report.node.clone();
                if self.nodes.launch_reported(now, report, &mut self.outbox) {
                    self.comparison.reported(now, &node, true, &self.jobs, &mut self.nodes);
                }
                self.follow_site(now, &node);
                self.refresh(now, &node);
                self.jobs.reconcile_on(&node);
            }
            Event::SurfaceKnown(surface) => {
                let job = surface.job.clone();
                self.surface_known(*surface);
                self.predict_unpredicted(&job);
                if self.controller.reads() != crate::Reads::Nothing {
                    self.outbox.plan_soon();
                }
            }
            Event::Progressed(message) => self.progressed(now, &message),
            Event::JobsNearlyFull => self.jobs.forget_part_of_ended(ENDED_PARTS, out),
            Event::SubmissionNotStored(job) => self.not_stored(&job),
            Event::WakeAnswered(node, error) => {
                self.nodes.wake_answered(&node, error, &mut self.outbox);
            }
            Event::GridRead(signal, result) => {
                if self.grid.read(now, signal, result) {
                    self.use_carbon(now);
                }
                self.look_at_grid(now);
            }
            Event::StoreIncomplete => self.store_all_again(),
            Event::BusReturned => self.nodes.bus_returned(now),
        }
    }

    /// Stores every record and the budget again, and renews every order.
    fn store_all_again(&mut self) {
        self.jobs.store_all();
        self.nodes.renew_all();
        self.spending.store_again();
        self.grid.store_again();
        self.outbox.alarm(format!(
            "the server has lost acknowledged values: the {} job records, the orders and the budget are stored \
             again; entries of the ledger may be missing",
            self.jobs.len()
        ));
    }

    fn tick(&mut self, now: Timestamp) {
        self.tick_at = now + self.config.tick();
        self.nodes.wake_again();
        self.nodes.note_reductions(now, &self.controller);
        self.nodes.order_raises();
        let nodes: Vec<NodeId> = self.nodes.ids().cloned().collect();
        for node in &nodes {
            self.refresh(now, node);
            if self.nodes.is_lost(now, node) {
                self.jobs.reconcile_on(node);
            }
        }
        self.jobs.store_noted(now);
        self.outbox.plan_soon();
    }
}

/// Whether a job of this phase holds GPUs.
const fn has_gpus(phase: JobPhase) -> bool {
    matches!(phase, JobPhase::Starting | JobPhase::Running | JobPhase::Stopping)
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
        if self.comparison.at().is_some_and(|at| now >= at) {
            self.comparison.compare(
                now,
                &mut self.jobs,
                &mut self.nodes,
                &mut self.controller,
                &mut self.outbox,
            );
        }
        self.nodes.renew(now);
        self.look_at_grid(now);
        self.spending.control(now, &self.nodes, &mut self.controller, &mut self.outbox);
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
        [Some((self.tick_at, "tick")), round, adoption, renewal, control, grid]
            .into_iter()
            .flatten()
            .min_by_key(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests;
