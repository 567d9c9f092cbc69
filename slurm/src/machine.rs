//! Decides what Slurm must do and what is reported, from Slurm's view, the desired states and the records.
//!
//! Pure and level-triggered: each view of Slurm is compared with what is desired, and each job advances by
//! at most one command. A view is read after the commands of the round before have ended, so no command is
//! based on an outdated view. The rules:
//! * A job that Wattle places is pending and held, or was released by this service. A pending job that is not
//!   held, and was not released a short time ago, is held: Slurm releases jobs after a node failure, an
//!   owner's requeue, or a crash in which slurmctld lost its newest state.
//! * An attempt is released at most once. The release is stored before the command, so the process may be
//!   killed after each action.
//! * A job that may have run before is placed only after its last run was looked up: a completed job must not
//!   run again because Slurm lost its completion or accepted a requeue after it.
//! * A job that runs without an order is never stopped for that. It is reported as a new attempt, which the
//!   placer adopts.
//! * Jobs that Slurm places itself are reported as they run, and nothing else happens to them.

mod alarm;
mod ended;
mod gres;
mod identify;
mod leaked;
mod left;
mod look;
mod lookup;
mod managed;
mod memory;
mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wattle_common::bounds::OrderVersion;
use wattle_common::id::{SubmissionId, UserId};
use wattle_common::job::JobSpec;
use wattle_common::messages::{JobRecord, LaunchReport, NodeDesired};
use wattle_common::{JobId, Machine, NodeId, RaisedAlarms, Timestamp};
use wattle_site::{Known, Level, Orders, PersistedState, Released, Reports, Status};

use crate::command::{Command, SlurmError};
use crate::intake;
use crate::past::PastRun;
use crate::view::SlurmView;

pub use alarm::Alarm;

use look::{Case, Look, Round};
use memory::Memory;

/// Commands of one round; the remaining ones follow in the next round.
const COMMANDS_MAX: usize = 50;
/// Most jobs in one command that holds jobs.
const HOLD_MAX: usize = 200;

/// How the machine works.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What Wattle decides.
    pub level: Level,
    /// The partitions whose GPU jobs are Wattle's.
    pub partitions: BTreeSet<String>,
    /// Node features that name a GPU type.
    pub gpu_types: Vec<String>,
    /// How long a released job may wait in Slurm before it is taken back.
    pub start_patience: Duration,
    /// How long a job has to write its checkpoint after its signal.
    pub checkpoint_grace: Duration,
    /// How long a job may be absent from Slurm and from its accounting database.
    pub absence_max: Duration,
    /// Interval of reports while nothing changes.
    pub heartbeat: Duration,
    /// Longest lease of an order.
    pub lease_max: Duration,
    /// Interval after which a refused command or submission is repeated.
    pub retry: Duration,
    /// Whether Slurm has an accounting database.
    pub has_accounting: bool,
    /// Seconds by which the site's local time is ahead of UTC.
    pub offset_s: i64,
}

/// An input of the machine.
#[derive(Clone, Debug)]
pub enum Event {
    /// Slurm was read, after all commands of the machine had ended.
    Viewed(SlurmView),
    /// The placer wrote the desired state of a node.
    DesiredChanged(NodeDesired),
    /// The placer wrote a record.
    RecordChanged(Box<JobRecord>),
    /// The placer removed a record.
    RecordRemoved(JobId),
    /// The placer answered a submission or cancellation, or did not.
    Answered {
        /// The job.
        job: JobId,
        /// Why it was refused; absent: it was accepted, or there was no answer.
        refused: Option<String>,
    },
    /// A command ended.
    CommandEnded(Command, Result<(), SlurmError>),
    /// The accounting database was read.
    PastRead {
        /// The jobs.
        ids: Vec<u32>,
        /// Their runs.
        runs: Result<Vec<PastRun>, SlurmError>,
    },
}

/// An output of the machine.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Submit a job to the placer as its user, with this submission.
    Submit(Box<JobSpec>, SubmissionId),
    /// Cancel a job as this user.
    Cancel(JobId, UserId),
    /// Send a command to Slurm.
    Command(Command),
    /// Read the runs of these jobs from the accounting database, from this instant on.
    Lookup {
        /// Slurm's job ids.
        ids: Vec<u32>,
        /// Submission time of the oldest.
        since: Timestamp,
    },
    /// Store a node's report in the bucket `actual`.
    Report(LaunchReport),
    /// Store the newest released attempt of a job, before the actions that follow.
    StoreReleased(JobId, Released),
    /// Remove what is stored of a job.
    Forget(JobId),
    /// Store the versions of the last orders of all nodes.
    StoreObeyed(BTreeMap<NodeId, OrderVersion>),
    /// Store that the energy of a job is in the accounting database.
    StoreEnergy(JobId),
    /// Report to the operator.
    Alarm(Alarm),
}

/// What the last look has found, which is reported until the next one.
struct Found {
    view: SlurmView,
    status: BTreeMap<JobId, Status>,
}

/// The decisions about the jobs of one Slurm cluster.
///
/// Each kind of state has its own place: `state` is what the state folder stores, `orders` and `records` what
/// the placer wrote last, `memory` what is lost with the process. What one look computes is in a [`Round`].
pub struct SlurmMachine {
    settings: Settings,
    state: PersistedState,
    orders: Orders,
    records: BTreeMap<JobId, Known>,
    memory: Memory,
    alarms: RaisedAlarms<Alarm>,
    found: Option<Found>,
    reports: Reports,
}

impl SlurmMachine {
    /// A machine that continues from `state`; `instance`: this process, in reports.
    #[must_use]
    pub fn new(settings: Settings, state: PersistedState, instance: String) -> Self {
        Self {
            reports: Reports::new(instance, settings.heartbeat),
            settings,
            state,
            orders: Orders::default(),
            records: BTreeMap::new(),
            memory: Memory::default(),
            alarms: RaisedAlarms::new(alarm::ALARMS_MAX),
            found: None,
        }
    }

    fn viewed(&mut self, now: Timestamp, view: SlurmView, out: &mut Vec<Action>) {
        if self.orders.take_new() {
            out.push(Action::StoreObeyed(self.state.obeyed.clone()));
        }
        let (jobs, orders) = (self.identify(&view), self.orders.of_jobs());
        let look = Look { now, view: &view, jobs, orders };
        let mut round = Round::new(&look, out);
        for (id, &job) in &look.jobs {
            let case = Case { id, job, order: look.orders.get(id) };
            let status = if self.is_managed(id, job) {
                self.managed(&mut round, case)
            } else {
                self.left(&mut round, case)
            };
            if let Some(status) = status {
                let known = self.records.get(id);
                let admission = known.and_then(|known| known.admission.clone());
                round.status.insert(id.clone(), Status { admission, ..status });
            }
        }
        self.absent(&mut round);
        self.write_energy(&mut round);
        self.hold(&mut round);
        self.look_up(&mut round);
        self.forget(&mut round);
        self.find_leaks(&mut round);
        let status = round.status;
        self.found = Some(Found { view, status });
        self.report(now, out);
    }

    /// Keeps a desired state, unless it is older than the last one or absurd.
    fn obey(&mut self, now: Timestamp, desired: NodeDesired, out: &mut Vec<Action>) {
        let node = desired.node.clone();
        let lease_max = self.settings.lease_max;
        match self.orders.obey(now, desired, &mut self.state.obeyed, lease_max) {
            Ok(true) => self.reports.make_due(now, &node),
            Ok(false) => {}
            Err(error) => self.alarm(now, Alarm::Order { node, error: error.to_string() }, out),
        }
    }

    /// Keeps the records of Slurm's jobs, and of others whose orders must be refused.
    fn record_changed(&mut self, record: &JobRecord) {
        let job = &record.spec.job;
        if record.phase.is_final() && intake::slurm_id(job).is_none() {
            self.records.remove(job);
        } else {
            self.records.insert(job.clone(), Known::of(record));
        }
    }

    /// Whether a job may get a command now.
    fn may_command(&self, round: &Round<'_>, id: u32) -> bool {
        self.settings.level.places()
            && round.commands < COMMANDS_MAX
            && self.memory.may_command(round.look.now, id)
    }

    /// Sends a command for a job, if it may get one now.
    fn command(&self, round: &mut Round<'_>, id: u32, command: Command) {
        if self.may_command(round, id) {
            round.commands += 1;
            round.out.push(Action::Command(command));
        }
    }

    /// Holds jobs, in few commands.
    fn hold(&self, round: &mut Round<'_>) {
        if self.settings.level.places() {
            let commands = round.to_hold.chunks(HOLD_MAX).map(|ids| Command::Hold(ids.to_vec()));
            round.out.extend(commands.map(Action::Command));
        }
    }

    fn command_ended(
        &mut self,
        now: Timestamp,
        command: Command,
        result: Result<(), SlurmError>,
        out: &mut Vec<Action>,
    ) {
        if let Command::Checkpoint { id, .. } = command
            && !result.as_ref().is_err_and(SlurmError::is_temporary)
        {
            self.signalled(id, out);
        }
        if let Err(error) = result {
            self.memory.failed(&command, &error, now + self.settings.retry);
            self.alarm(now, Alarm::Command { command, error: error.to_string() }, out);
            return;
        }
        self.memory.succeeded(&command);
        if let Command::SetAdminComment { id, .. } = command {
            self.energy_written(id, out);
        }
    }

    fn alarm(&mut self, now: Timestamp, alarm: Alarm, out: &mut Vec<Action>) {
        if self.alarms.is_new(now, &alarm.key()) {
            out.push(Action::Alarm(alarm));
        }
    }

    /// Forgets what concerns jobs that both Slurm and the placer are done with.
    fn forget(&mut self, round: &mut Round<'_>) {
        let Look { view, jobs, .. } = round.look;
        let is_done = |id: &JobId| {
            !jobs.contains_key(id)
                && intake::slurm_id(id).is_none_or(|id| !view.unreadable.contains(&id))
                && self.records.get(id).is_none_or(|known| known.phase.is_final())
        };
        for (id, _) in self.state.released.extract_if(.., |id, _| is_done(id)) {
            round.out.push(Action::Forget(id));
        }
        self.memory.forget(round.look, &self.records);
    }
}

impl Machine for SlurmMachine {
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Timestamp, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Viewed(view) => self.viewed(now, view, out),
            Event::DesiredChanged(desired) => self.obey(now, desired, out),
            Event::RecordChanged(record) => self.record_changed(&record),
            Event::RecordRemoved(job) => {
                self.records.remove(&job);
            }
            Event::Answered { job, refused: Some(error) } => {
                self.alarm(now, Alarm::Refused { job, error }, out);
            }
            // Its record shows whether it was accepted.
            Event::Answered { refused: None, .. } => {}
            Event::CommandEnded(command, result) => self.command_ended(now, command, result, out),
            Event::PastRead { ids, runs } => self.past_read(&ids, runs),
        }
    }

    fn wake(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        self.report(now, out);
    }

    fn next_wake(&self) -> Option<(Timestamp, &'static str)> {
        self.reports.next_wake().map(|at| (at, "heartbeat"))
    }
}
