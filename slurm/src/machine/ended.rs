//! Jobs that have ended in Slurm, and jobs that Slurm no longer has.

use std::time::Duration;

use wattle_common::id::UserId;
use wattle_common::job::JobPhase;
use wattle_common::messages::{JobProcesses, LaunchState, ReachedLimit};
use wattle_common::units::Energy;
use wattle_common::{JobId, Timestamp};
use wattle_site::terms::PREFIX;
use wattle_site::{Known, Level, Status, Terms};

use super::look::{Case, Look, Round};
use super::managed::{is_completion, status};
use super::{Action, Alarm, SlurmMachine};
use crate::command::Command;
use crate::intake;
use crate::past::{PastRun, PastState};
use crate::tag::Tag;
use crate::view::SlurmState;

/// Exit code of a program that SIGTERM ended.
const TERMINATED: i32 = 143;
/// Exit code of a program that SIGKILL ended.
const KILLED: i32 = 137;
/// How long the ledger may take to contain the end of a job.
const LEDGER_DELAY_S: u64 = 600;
/// How long after its end the energy of a job is written.
const ENERGY_AGE_S: u64 = 86_400;

/// An exit code as a shell reports it: 128 plus the signal.
const fn code_of(exit: Option<(i32, i32)>) -> i32 {
    match exit {
        Some((_, signal)) if signal > 0 => 128 + signal,
        Some((code, _)) => code,
        None => 0,
    }
}

/// Limits of a job, as far as they are known.
#[derive(Clone, Copy, Default)]
struct Limits {
    /// Memory on one node, MiB.
    memory_mib: Option<u32>,
    time: Option<Duration>,
}

/// The end of a run.
fn end_of(state: SlurmState, exit: Option<(i32, i32)>, limits: Limits) -> LaunchState {
    match state {
        SlurmState::Completed => LaunchState::exited(0),
        SlurmState::TimedOut => {
            let limit = limits.time.map(|time| ReachedLimit::Seconds(time.as_secs()));
            LaunchState::Exited { code: TERMINATED, limit }
        }
        SlurmState::OutOfMemory => {
            let limit = limits.memory_mib.map(|mib| ReachedLimit::MemoryMib(mib.into()));
            LaunchState::Exited { code: KILLED, limit }
        }
        SlurmState::Failed => {
            // A state that is a failure although the code is 0, such as a failed boot.
            let code = code_of(exit);
            LaunchState::exited(if code == 0 { 1 } else { code })
        }
        SlurmState::NodeFailed => {
            let error = "its node failed, and the job does not permit a requeue";
            LaunchState::refused(error.to_owned())
        }
        SlurmState::Cancelled
        | SlurmState::Pending
        | SlurmState::Configuring
        | SlurmState::Running
        | SlurmState::Completing => LaunchState::STOPPED,
    }
}

impl SlurmMachine {
    /// A job of Wattle that has ended in Slurm.
    pub(super) fn over(
        &mut self,
        round: &mut Round<'_>,
        case: Case<'_>,
        known: &Known,
    ) -> Option<Status> {
        let Case { id, job, order } = case;
        if known.phase.is_final() {
            return None;
        }
        let released = self.state.released.get(id).copied();
        let newest = known.attempt.max(released.map_or(0, |released| released.attempt));
        // Whatever attempt is ordered: the job is over.
        let attempt = order.map_or(newest, |order| order.attempt);
        let terms = Terms::parse(&job.comment, self.settings.offset_s).unwrap_or_default();
        let end = job.ended_at.unwrap_or(round.look.now);
        let is_checkpoint = released.is_some_and(|released| {
            // Of a later release slurmctld has lost its memory; this run was judged before.
            released.restarts > job.restarts
                || (released.restarts == job.restarts
                    && !is_completion(end, Some(&released), &terms))
        });
        let is_declared = terms.checkpoint_exit == Some(code_of(job.exit));
        let to_queue = matches!(known.stops_for(), None | Some(JobPhase::Queued));
        let requeues = job.requeue
            && job.is_batch
            && !self.memory.refusals.contains_key(&job.id)
            && match job.state {
                SlurmState::Completed => is_checkpoint && to_queue,
                SlurmState::Failed => is_declared || (is_checkpoint && to_queue),
                SlurmState::NodeFailed => true,
                _ => false,
            };
        if requeues {
            self.command(round, job.id, Command::RequeueHold(job.id));
            let state = if case.stops() { LaunchState::Stopping } else { LaunchState::Running };
            return Some(status(job, attempt, state));
        }
        Some(self.end(round, case, known, attempt))
    }

    /// The end of an attempt; a cancelled job is cancelled in Wattle, too.
    pub(super) fn end(
        &mut self,
        round: &mut Round<'_>,
        case: Case<'_>,
        known: &Known,
        attempt: u32,
    ) -> Status {
        let job = case.job;
        if job.state == SlurmState::Cancelled {
            return status(job, attempt, self.cancelled(round, case.id, known, case.stops()));
        }
        let gpus = known.placement.as_ref().and_then(|placement| placement.shares.first());
        let gpus = gpus.map_or(job.gpus_per_node, |share| share.gpus.len() as u32);
        let memory_mib = Some(job.needs.memory_mib_with(gpus)).filter(|mib| *mib > 0);
        let limits = Limits { memory_mib, time: job.time_limit };
        status(job, attempt, end_of(job.state, job.exit, limits))
    }

    /// A job that was cancelled in Slurm: the placer must not start it again, so it is cancelled there
    /// before its attempt is reported as stopped.
    fn cancelled(
        &mut self,
        round: &mut Round<'_>,
        id: &JobId,
        known: &Known,
        stops: bool,
    ) -> LaunchState {
        let is_accepted = known.stops_for() == Some(JobPhase::Cancelled);
        if !is_accepted {
            self.cancel_record(round, id);
        }
        if stops { LaunchState::STOPPED } else { LaunchState::Stopping }
    }

    /// The jobs with live records that Slurm does not have.
    pub(super) fn absent(&mut self, round: &mut Round<'_>) {
        let Look { now, view, jobs, orders } = round.look;
        let absent: Vec<(JobId, Known)> = self
            .records
            .iter()
            .filter(|(id, known)| {
                known.is_site && !known.phase.is_final() && !jobs.contains_key(*id)
            })
            .map(|(id, known)| (id.clone(), known.clone()))
            .collect();
        for (id, known) in absent {
            let slurm_id = intake::slurm_id(&id).filter(|id| !view.unreadable.contains(id));
            let Some(slurm_id) = slurm_id else { continue };
            let since = *self.memory.absent_since.entry(id.clone()).or_insert(*now);
            let order = orders.get(&id);
            if let Some(state) = self.end_of_absent(round, &id, &known, since) {
                let (last, on) = self.end_without_order(&id, &known);
                let attempt = order.map_or(last, |order| order.attempt);
                let processes = JobProcesses::Slurm { job: slurm_id, uid: 0 };
                let log_path = String::new();
                let admission = known.admission.clone();
                let status = Status { admission, attempt, state, processes, on, since, log_path };
                round.status.insert(id, status);
            }
        }
    }

    fn end_of_absent(
        &mut self,
        round: &mut Round<'_>,
        id: &JobId,
        known: &Known,
        since: Timestamp,
    ) -> Option<LaunchState> {
        let now = round.look.now;
        let stops = round.look.orders.get(id).is_some_and(|order| order.stop);
        if self.settings.has_accounting {
            let user = known.user.clone().unwrap_or_default();
            let runs = self.runs_of(round, id, &user, u32::MAX, since)?;
            let end = runs.last().and_then(|run| match run.state {
                PastState::Job(state) if state.is_final() => Some((state, run.exit, run.ended_at)),
                PastState::Job(_) | PastState::Requeued => None,
            });
            if let Some((state, exit, ended_at)) = end {
                self.memory.ended_absent.extend(ended_at.map(|at| (id.clone(), at)));
                return Some(match state {
                    SlurmState::Cancelled => self.cancelled(round, id, known, stops),
                    _ => end_of(state, Some(exit), Limits::default()),
                });
            }
            self.request_past_again(now, id);
        }
        if now < since + self.settings.absence_max {
            return None;
        }
        self.alarm(now, Alarm::Vanished { job: id.clone() }, round.out);
        Some(self.cancelled(round, id, known, stops))
    }

    /// The runs of a job in the accounting database, without those of other jobs that had its Slurm id;
    /// `None` until they are read.
    pub(super) fn runs_of(
        &mut self,
        round: &mut Round<'_>,
        id: &JobId,
        user: &str,
        restarts: u32,
        submitted_at: Timestamp,
    ) -> Option<Vec<PastRun>> {
        let is_tagged = self.records.get(id).is_none_or(|known| !known.placed_by_site);
        let tag = intake::suffix(id).filter(|_| is_tagged).map(str::to_owned);
        let user = UserId::of_local(user);
        let runs = self.past_of(round, id, restarts, submitted_at)?;
        let is_its = |run: &&PastRun| {
            let other = Tag::parse(&run.admin_comment).is_some_and(|found| Some(found.id) != tag);
            UserId::of_local(&run.user) == user && !(is_tagged && other)
        };
        Some(runs.iter().filter(is_its).cloned().collect())
    }

    /// Writes the energy of ended jobs into Slurm's accounting database.
    pub(super) fn write_energy(&self, round: &mut Round<'_>) {
        if self.settings.level < Level::Caps || !self.settings.has_accounting {
            return;
        }
        let Look { now, view, .. } = *round.look;
        for (id, known) in &self.records {
            let (Some(ended_at), Some(energy)) = (known.ended_at, known.energy) else { continue };
            let slurm_id = intake::slurm_id(id);
            let job = slurm_id.and_then(|id| view.jobs.get(&id));
            // The record has the time at which this service reported the end. Slurm's times are whole seconds.
            let in_slurm =
                job.and_then(|job| job.ended_at).or(self.memory.ended_absent.get(id).copied());
            let in_slurm = in_slurm.map(|at| at + Duration::from_secs(1));
            let end = in_slurm.map_or(ended_at, |at| at.min(ended_at));
            let is_counted = known.energy_until.is_some_and(|until| until >= end)
                || now.since(ended_at).as_secs() >= LEDGER_DELAY_S;
            let is_due = known.phase.is_final()
                && is_counted
                && now.since(ended_at).as_secs() < ENERGY_AGE_S
                && !self.state.energy.contains(id);
            let Some(slurm_id) = slurm_id.filter(|_| is_due) else { continue };
            let comment = job.map_or("", |job| job.admin_comment.as_str());
            // A comment of another program stays.
            let is_free = comment.is_empty() || comment.starts_with(PREFIX);
            let is_over = job.is_none_or(|job| job.state.is_final());
            if is_free && is_over && self.memory.may_command(now, slurm_id) {
                if round.commands >= super::COMMANDS_MAX {
                    return;
                }
                let text = energy_text(id, known, energy);
                round.commands += 1;
                round.out.push(Action::Command(Command::SetAdminComment { id: slurm_id, text }));
            }
        }
    }

    /// The energy of a job was written.
    pub(super) fn energy_written(&mut self, slurm_id: u32, out: &mut Vec<Action>) {
        let is_its = |(id, known): &(&JobId, &Known)| {
            intake::slurm_id(id) == Some(slurm_id) && known.phase.is_final()
        };
        let written: Vec<JobId> =
            self.records.iter().filter(is_its).map(|(id, _)| id.clone()).collect();
        for id in written {
            if self.state.energy.insert(id.clone()) {
                out.push(Action::StoreEnergy(id));
            }
        }
    }
}

/// The administrator's comment with the energy, and with the tag of a job that has one.
fn energy_text(id: &JobId, known: &Known, energy: Energy) -> String {
    let tag = intake::suffix(id).filter(|_| !known.placed_by_site);
    let tag = tag.map_or_else(String::new, |tag| format!("tag={tag} "));
    format!("{PREFIX} {tag}energy_j={:.0}", energy.as_j())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_become_exit_codes() {
        for (state, exit, expected) in [
            (SlurmState::Completed, (0, 0), LaunchState::exited(0)),
            (SlurmState::Failed, (3, 0), LaunchState::exited(3)),
            (SlurmState::Failed, (0, 11), LaunchState::exited(139)),
            (SlurmState::Failed, (0, 0), LaunchState::exited(1)),
            (SlurmState::TimedOut, (0, 1), LaunchState::exited(143)),
        ] {
            let end = end_of(state, Some(exit), Limits::default());
            assert_eq!(end, expected, "{state:?} {exit:?}");
        }
        let time = Some(Duration::from_mins(2));
        let limits = Limits { memory_mib: Some(512), time };
        let ended = |code, limit| LaunchState::Exited { code, limit: Some(limit) };
        let killed = ended(137, ReachedLimit::MemoryMib(512));
        assert_eq!(end_of(SlurmState::OutOfMemory, None, limits), killed);
        let terminated = ended(143, ReachedLimit::Seconds(120));
        assert_eq!(end_of(SlurmState::TimedOut, None, limits), terminated);
        let unknown = end_of(SlurmState::OutOfMemory, None, Limits::default());
        assert_eq!(unknown, LaunchState::exited(137));
    }
}
