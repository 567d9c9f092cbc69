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
mod lookup;
mod managed;
mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wattle_common::bounds::OrderVersion;
use wattle_common::id::{SubmissionId, UserId};
use wattle_common::job::JobSpec;
use wattle_common::messages::{JobRecord, LaunchReport, NodeDesired};
use wattle_common::{GpuIndex, JobId, Machine, NodeId, RaisedAlarms, Timestamp};
use wattle_site::{Known, Level, Orders, PersistedState, Released, Reports, Status};

use crate::command::{Command, SlurmError};
use crate::intake;
use crate::past::PastRun;
use crate::view::{SlurmJob, SlurmState, SlurmView};

pub use alarm::Alarm;

use lookup::Past;

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

/// The decisions about the jobs of one Slurm cluster.
pub struct SlurmMachine {
    settings: Settings,
    state: PersistedState,
    orders: Orders,
    records: BTreeMap<JobId, Known>,
    view: Option<SlurmView>,
    /// By job, because Slurm gives an id again after a crash.
    past: BTreeMap<JobId, Past>,
    to_look_up: BTreeMap<JobId, Timestamp>,
    /// When a submission or cancellation may be repeated.
    ask_at: BTreeMap<JobId, Timestamp>,
    /// When a job may get a command again after a failed one.
    command_at: BTreeMap<u32, Timestamp>,
    /// Why Slurm refused the last command for a job.
    refusals: BTreeMap<u32, String>,
    /// Jobs whose signal is sent again.
    to_signal: BTreeSet<u32>,
    absent_since: BTreeMap<JobId, Timestamp>,
    /// Ends of jobs that Slurm no longer has, from the accounting database.
    ended_absent: BTreeMap<JobId, Timestamp>,
    alarms: RaisedAlarms<Alarm>,
    /// Slurm's reasons of jobs that were taken back.
    reasons: BTreeMap<u32, String>,
    /// Number of commands of this round.
    commands: usize,
    /// Number of pending jobs that may get commands.
    pending: usize,
    /// GPUs that jobs of this round were given.
    given: BTreeSet<(NodeId, GpuIndex)>,
    to_hold: Vec<u32>,
    /// Since when Slurm counts a GPU as used that no job has.
    leaked_since: BTreeMap<(NodeId, GpuIndex), Timestamp>,
    status: BTreeMap<JobId, Status>,
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
            view: None,
            past: BTreeMap::new(),
            to_look_up: BTreeMap::new(),
            ask_at: BTreeMap::new(),
            command_at: BTreeMap::new(),
            refusals: BTreeMap::new(),
            to_signal: BTreeSet::new(),
            absent_since: BTreeMap::new(),
            ended_absent: BTreeMap::new(),
            alarms: RaisedAlarms::new(alarm::ALARMS_MAX),
            reasons: BTreeMap::new(),
            commands: 0,
            pending: 0,
            given: BTreeSet::new(),
            to_hold: Vec::new(),
            leaked_since: BTreeMap::new(),
            status: BTreeMap::new(),
        }
    }

    fn round(&mut self, now: Timestamp, view: SlurmView, out: &mut Vec<Action>) {
        if self.orders.take_new() {
            out.push(Action::StoreObeyed(self.state.obeyed.clone()));
        }
        let orders = self.orders.of_jobs();
        let identified = self.identify(&view);
        self.commands = 0;
        self.given.clear();
        self.status.clear();
        self.pending = identified.values().filter(|job| job.state == SlurmState::Pending).count();
        for (id, job) in &identified {
            let order = orders.get(id);
            let status = if self.is_managed(id, job) {
                self.managed(now, &view, job, id, order, out)
            } else {
                self.left(now, job, id, order, out)
            };
            if let Some(status) = status {
                self.status.insert(id.clone(), status);
            }
        }
        self.absent(now, &view, &identified, &orders, out);
        self.write_energy(now, &view, out);
        self.hold(out);
        self.look_up(now, out);
        self.forget(&view, &identified, out);
        self.find_leaks(now, &view, out);
        self.view = Some(view);
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
    fn may_command(&self, now: Timestamp, id: u32) -> bool {
        self.settings.level.places()
            && self.commands < COMMANDS_MAX
            && self.command_at.get(&id).is_none_or(|at| now >= *at)
    }

    fn command(
        &mut self,
        now: Timestamp,
        id: u32,
        command: Command,
        out: &mut Vec<Action>,
    ) -> bool {
        let may = self.may_command(now, id);
        if may {
            self.commands += 1;
            out.push(Action::Command(command));
        }
        may
    }

    /// Holds jobs, in few commands.
    fn hold(&mut self, out: &mut Vec<Action>) {
        let ids = std::mem::take(&mut self.to_hold);
        if self.settings.level.places() {
            let commands = ids.chunks(HOLD_MAX).map(|ids| Command::Hold(ids.to_vec()));
            out.extend(commands.map(Action::Command));
        }
    }

    fn command_ended(
        &mut self,
        now: Timestamp,
        command: Command,
        result: Result<(), SlurmError>,
        out: &mut Vec<Action>,
    ) {
        let ids = command.ids();
        let Err(error) = result else {
            for id in ids {
                self.command_at.remove(&id);
                self.refusals.remove(&id);
            }
            if let Command::SetAdminComment { id, .. } = command {
                self.energy_written(id, out);
            }
            return;
        };
        if let (Command::Checkpoint { id, .. }, true) = (&command, error.is_temporary()) {
            // The signal may not have arrived.
            self.to_signal.insert(*id);
        }
        // A command for many jobs may have failed for one of them.
        let is_single = ids.len() == 1;
        for id in ids.into_iter().filter(|_| is_single) {
            if !error.is_temporary() {
                self.refusals.insert(id, error.to_string());
            }
            if !matches!(command, Command::Hold(_)) {
                self.command_at.insert(id, now + self.settings.retry);
            }
        }
        self.alarm(now, Alarm::Command { command, error: error.to_string() }, out);
    }

    fn alarm(&mut self, now: Timestamp, alarm: Alarm, out: &mut Vec<Action>) {
        if self.alarms.is_new(now, &alarm.key()) {
            out.push(Action::Alarm(alarm));
        }
    }

    /// Forgets what concerns jobs that both Slurm and the placer are done with.
    fn forget(
        &mut self,
        view: &SlurmView,
        identified: &BTreeMap<JobId, &SlurmJob>,
        out: &mut Vec<Action>,
    ) {
        let records = &self.records;
        let is_done = |id: &JobId| {
            !identified.contains_key(id)
                && intake::slurm_id(id).is_none_or(|id| !view.unreadable.contains(&id))
                && records.get(id).is_none_or(|known| known.phase.is_final())
        };
        let done: Vec<JobId> =
            self.state.released.keys().filter(|id| is_done(id)).cloned().collect();
        for id in done {
            self.state.released.remove(&id);
            out.push(Action::Forget(id));
        }
        self.past.retain(|id, _| {
            identified.contains_key(id)
                || records.get(id).is_some_and(|known| !known.phase.is_final())
        });
        let live: BTreeSet<u32> = records
            .iter()
            .filter(|(_, known)| !known.phase.is_final())
            .filter_map(|(id, _)| intake::slurm_id(id))
            .collect();
        let is_needed = |id: &u32| live.contains(id) || view.jobs.contains_key(id);
        self.command_at.retain(|id, _| is_needed(id));
        self.to_signal.retain(|id| is_needed(id));
        self.refusals.retain(|id, _| is_needed(id));
        self.ask_at.retain(|id, _| identified.contains_key(id) || records.contains_key(id));
        self.absent_since.retain(|id, _| records.contains_key(id) && !identified.contains_key(id));
        self.ended_absent.retain(|id, _| records.contains_key(id));
    }
}

impl Machine for SlurmMachine {
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Timestamp, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Viewed(view) => self.round(now, view, out),
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
