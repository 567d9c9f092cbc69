//! Jobs that Wattle places: one step for each state in Slurm.

use wattle_common::job::JobPhase;
use wattle_common::messages::{JobProcesses, LaunchState};
use wattle_common::{JobId, Timestamp};
use wattle_site::{JobOrder, Known, Released, Status, Terms};

use super::look::{Case, Round};
use super::memory::Memory;
use super::{Action, Alarm, SlurmMachine, gres};
use crate::command::{Command, Place};
use crate::intake;
use crate::tag::Tag;
use crate::view::{SlurmJob, SlurmState};

/// Slurm's reason for a job that its owner, or the intake plugin for it, holds.
const HELD_BY_USER: &str = "JobHeldUser";

impl SlurmMachine {
    /// Takes the next step of a job that Wattle places; returns the state of its newest attempt.
    pub(super) fn managed(&mut self, round: &mut Round<'_>, case: Case<'_>) -> Option<Status> {
        let Case { id, job, .. } = case;
        if !self.owner_agrees(id, job) {
            self.alarm(round.look.now, Alarm::Owner { job: id.clone() }, round.out);
            return None;
        }
        let Some(known) = self.records.get(id).cloned() else {
            self.unrecorded(round, case);
            return None;
        };
        match job.state {
            SlurmState::Pending => self.pending(round, case, &known),
            SlurmState::Configuring | SlurmState::Running | SlurmState::Completing => {
                self.running(round, case, &known)
            }
            _ => self.over(round, case, &known),
        }
    }

    /// A job that the placer does not have.
    fn unrecorded(&mut self, round: &mut Round<'_>, case: Case<'_>) {
        let job = case.job;
        let Some(tag) = Tag::parse(&job.admin_comment) else { return };
        match job.state {
            SlurmState::Pending => {
                let is_users = job.held && job.reason == HELD_BY_USER;
                if is_users && tag.held_by_owner {
                    return;
                }
                // Held as an administrator: its owner cannot release it.
                if !job.held || is_users {
                    round.to_hold.push(job.id);
                }
                // The tasks of an array are jobs of their own.
                let has_tasks = self.settings.level.places() && self.split(round, job);
                if job.held && !job.waits && !has_tasks {
                    self.submit(round, case, Some(&tag));
                }
            }
            SlurmState::Configuring | SlurmState::Running => {
                self.submit(round, case, Some(&tag));
            }
            _ => {}
        }
    }

    fn pending(&mut self, round: &mut Round<'_>, case: Case<'_>, known: &Known) -> Option<Status> {
        let Case { id, job, order } = case;
        let released = self.state.released.get(id).copied();
        if known.phase.is_final() {
            self.command(round, job.id, Command::Cancel(job.id));
            return None;
        }
        if !job.held {
            let is_patient = released.is_some_and(|released| {
                released.restarts == job.restarts
                    && round.look.now < released.at_us + self.settings.start_patience
            });
            // One that has run is pending because slurmctld has lost its start.
            if !is_patient || known.has_run() || case.stops() {
                self.memory.reasons.insert(job.id, job.reason.clone());
                round.to_hold.push(job.id);
            }
            return None;
        }
        let last = released.map(|released| released.attempt);
        let last = last.or_else(|| known.has_run().then_some(known.attempt));
        if let Some(last) = last.filter(|last| order.is_none_or(|order| order.attempt <= *last)) {
            let state = self.end_of_pending(round, case, released)?;
            // An older order is over, too: its number is used up.
            return Some(status(job, order.map_or(last, |order| order.attempt), state));
        }
        let order = order?;
        if order.stop {
            return Some(status(job, order.attempt, LaunchState::STOPPED));
        }
        if !order.complete || known.attempt > order.attempt {
            return None;
        }
        if released.is_some() || job.restarts > 0 {
            // A requeue sets a begin time, which the placement clears.
            if self.has_completed(round, case)? {
                return Some(status(job, order.attempt, LaunchState::exited(0)));
            }
        } else if job.waits {
            return None;
        }
        self.place(round, case, order)
    }

    /// How the newest attempt of a job ended that waits, held, in Slurm; `None` while it is not known.
    fn end_of_pending(
        &mut self,
        round: &mut Round<'_>,
        case: Case<'_>,
        released: Option<Released>,
    ) -> Option<LaunchState> {
        let job = case.job;
        if self.has_completed(round, case)? {
            return Some(LaunchState::exited(0));
        }
        if case.stops() {
            return Some(LaunchState::STOPPED);
        }
        let has_not_run = released.is_some_and(|released| released.restarts >= job.restarts);
        let error = if has_not_run {
            let Memory { refusals, reasons, .. } = &self.memory;
            let refusal = refusals.get(&job.id).or_else(|| reasons.get(&job.id));
            format!("Slurm did not start it: {}", refusal.unwrap_or(&job.reason))
        } else {
            format!("Slurm put it back into the queue: {}", job.reason)
        };
        Some(LaunchState::Lost { error })
    }

    /// Whether the last run of a pending job completed; `None` while it is not known.
    fn has_completed(&mut self, round: &mut Round<'_>, case: Case<'_>) -> Option<bool> {
        let Case { id, job, .. } = case;
        if !self.settings.has_accounting {
            return Some(false);
        }
        let runs = self.runs_of(round, id, &job.user, job.restarts, job.submitted_at)?;
        let ran: Vec<_> = runs.iter().filter(|run| run.started_at.is_some()).collect();
        let is_complete = ran.len() >= job.restarts as usize
            && ran.last().is_none_or(|run| run.ended_at.is_some());
        if is_complete {
            // Runs before the last release were judged when they ended.
            let released = self.state.released.get(id);
            let from = released.map_or(Timestamp::EPOCH, |released| second(released.at_us));
            let last = ran.last().filter(|run| run.started_at.is_some_and(|start| start >= from));
            let completed_at = last.and_then(|run| run.completed_at());
            let terms = Terms::parse(&job.comment, self.settings.offset_s).unwrap_or_default();
            return Some(completed_at.is_some_and(|end| is_completion(end, released, &terms)));
        }
        // The database is behind slurmctld, for a limited time.
        self.request_past_again(round.look.now, id).then_some(false)
    }

    /// Releases a job on the GPUs of its order.
    fn place(&mut self, round: &mut Round<'_>, case: Case<'_>, order: &JobOrder) -> Option<Status> {
        let Case { id, job, .. } = case;
        if !self.may_command(round, job.id) {
            return None;
        }
        let mut held = gres::held_by_others(round.look.view, job.id);
        held.extend(round.given.iter().cloned());
        // A job that holds a GPU without an order for it must leave first: Slurm waits for that.
        held.retain(|(node, gpu)| self.orders.is_shared(node, *gpu, id));
        let gres = match gres::text(self.settings.level, &order.shares, &held) {
            Ok(gres) => gres,
            Err(error) => {
                let refused = LaunchState::refused(error.to_string());
                return Some(status(job, order.attempt, refused));
            }
        };
        for share in &order.shares {
            round.given.extend(share.gpus.iter().map(|gpu| (share.node.clone(), *gpu)));
        }
        self.memory.reasons.remove(&job.id);
        let (attempt, restarts) = (order.attempt, job.restarts);
        let at_us = round.look.now;
        let released = Released { attempt, restarts, at_us, stop_at_us: None, is_signalled: false };
        self.store_release(id, released, round.out);
        let mut nodes: Vec<_> = order.shares.iter().map(|share| share.node.clone()).collect();
        nodes.sort();
        let admin_comment = job.admin_comment.clone();
        let place = Place { id: job.id, admin_comment, gres, nodes, extra: Vec::new() };
        self.command(round, job.id, Command::Place(place));
        None
    }

    /// Stores the release of an attempt, or that a run was found. `released`: `at_us` is not after its start.
    fn store_release(&mut self, id: &JobId, released: Released, out: &mut Vec<Action>) {
        self.state.released.insert(id.clone(), released);
        out.push(Action::StoreReleased(id.clone(), released));
        // The rows of earlier runs do not show the end of this one.
        self.memory.past.remove(id);
    }

    fn running(&mut self, round: &mut Round<'_>, case: Case<'_>, known: &Known) -> Option<Status> {
        let Case { id, job, order } = case;
        let completes = job.state == SlurmState::Completing;
        if known.phase.is_final() {
            if !completes {
                self.command(round, job.id, Command::Cancel(job.id));
            }
            return None;
        }
        let attempt = if completes {
            // Slurm counts the restart before the processes have ended.
            let released = self.state.released.get(id);
            let released = released.filter(|released| released.restarts <= job.restarts);
            let attempt = released.map_or(known.attempt, |released| released.attempt);
            let is_named = known.has_gpus() || order.is_some_and(|order| order.attempt == attempt);
            Some(attempt).filter(|_| is_named)?
        } else {
            self.attempt_of_run(round, case, known)
        };
        let order = order.filter(|order| order.attempt == attempt);
        let stops = order.is_some_and(|order| order.stop);
        if job.state == SlurmState::Configuring && order.is_some() && !stops {
            return None;
        }
        let state = if stops && self.stop(round, case, known) {
            LaunchState::Stopping
        } else {
            LaunchState::Running
        };
        Some(Status { on: job.on.clone(), ..status(job, attempt, state) })
    }

    /// The attempt of a run: the released one, or a new one that the placer adopts.
    fn attempt_of_run(&mut self, round: &mut Round<'_>, case: Case<'_>, known: &Known) -> u32 {
        let (Case { id, job, order }, now) = (case, round.look.now);
        let started_at = job.started_at.unwrap_or(now).min(now);
        let released = self.state.released.get(id).copied();
        let newest = order.map_or(0, |order| order.attempt).max(known.attempt);
        // Whether the placer still expects this attempt to run. A record that is behind has a lower number.
        let is_expected = |attempt: u32| {
            attempt > newest || (attempt == newest && (known.attempt < attempt || known.has_gpus()))
        };
        let found = Released {
            attempt: 0,
            restarts: job.restarts,
            at_us: started_at,
            stop_at_us: None,
            is_signalled: false,
        };
        let found = match released {
            Some(released) if released.restarts == job.restarts => {
                if is_expected(released.attempt) {
                    return released.attempt;
                }
                // The same run under another number.
                Released { attempt: newest.max(released.attempt) + 1, ..released }
            }
            // slurmctld has lost a later start: this run has ended before, and was judged then.
            Some(released) if released.restarts > job.restarts => {
                Released { attempt: newest.max(released.attempt) + 1, at_us: now, ..found }
            }
            Some(released) => Released { attempt: newest.max(released.attempt) + 1, ..found },
            // The state folder is not that of the process that released it.
            None if known.has_gpus() && is_placed_so(known, job) => {
                Released { attempt: known.attempt, ..found }
            }
            None => Released { attempt: newest + 1, ..found },
        };
        self.store_release(id, found, round.out);
        found.attempt
    }

    /// Stops a run as ordered; returns whether it stops.
    fn stop(&mut self, round: &mut Round<'_>, case: Case<'_>, known: &Known) -> bool {
        let (Case { id, job, .. }, now) = (case, round.look.now);
        // The record is stored before the order, but may arrive after it.
        let Some(next) = known.stops_for() else { return false };
        if job.state == SlurmState::Completing {
            return true;
        }
        if next != JobPhase::Queued {
            self.command(round, job.id, Command::Cancel(job.id));
            return true;
        }
        let signal = known.checkpoint_signal.as_deref();
        let Some(signal) = signal.filter(|_| job.requeue && job.is_batch) else {
            self.alarm(now, Alarm::NoConsent { job: id.clone() }, round.out);
            return false;
        };
        let signal = signal.strip_prefix("SIG").unwrap_or(signal);
        if !self.may_command(round, job.id) {
            return true;
        }
        // Slurm sends SIGTERM with the requeue.
        let by_requeue = signal == "TERM" || job.state == SlurmState::Configuring;
        let released = self.state.released.get(id);
        let is_signalled = released.is_some_and(|released| released.is_signalled);
        let stop_at = released.and_then(|released| released.stop_at_us);
        if stop_at.is_none()
            && let Some(released) = self.state.released.get_mut(id)
        {
            released.stop_at_us = Some(now);
            round.out.push(Action::StoreReleased(id.clone(), *released));
        }
        let is_due = stop_at.is_some_and(|at| now >= at + self.settings.checkpoint_grace);
        if by_requeue || is_due {
            self.command(round, job.id, Command::RequeueHold(job.id));
        } else if !is_signalled {
            let checkpoint = Command::Checkpoint { id: job.id, signal: signal.to_owned() };
            self.command(round, job.id, checkpoint);
        }
        true
    }
}

impl SlurmMachine {
    /// Slurm has answered the command that sends the checkpoint signal to a job. Stored after it: a process that
    /// ends in between, or whose command had no answer, sends the signal again.
    pub(super) fn signalled(&mut self, slurm_id: u32, out: &mut Vec<Action>) {
        for (id, released) in &mut self.state.released {
            let is_its = intake::slurm_id(id) == Some(slurm_id) && released.stop_at_us.is_some();
            if is_its && !std::mem::replace(&mut released.is_signalled, true) {
                out.push(Action::StoreReleased(id.clone(), *released));
            }
        }
    }
}

/// The second of an instant, as Slurm's times are.
pub(super) const fn second(at: Timestamp) -> Timestamp {
    Timestamp::from_s(at.as_us() / 1_000_000)
}

/// Whether an end with code 0 at this time is a completion: it is not if a stop was requested before, and the
/// owner has declared no other code for a checkpoint.
pub(super) fn is_completion(end: Timestamp, released: Option<&Released>, terms: &Terms) -> bool {
    let stop_at = released.and_then(|released| released.stop_at_us);
    terms.checkpoint_exit.is_some() || stop_at.is_none_or(|stop_at| end < second(stop_at))
}

/// Whether a run is on the nodes of its record.
fn is_placed_so(known: &Known, job: &SlurmJob) -> bool {
    let Some(placement) = &known.placement else { return false };
    let nodes = |shares: &[wattle_common::job::NodeShare]| {
        let mut nodes: Vec<_> = shares.iter().map(|share| share.node.clone()).collect();
        nodes.sort();
        nodes
    };
    nodes(&placement.shares) == nodes(&job.on)
}

/// The state of an attempt that holds what its order names; the caller adds the submission.
pub(super) fn status(job: &SlurmJob, attempt: u32, state: LaunchState) -> Status {
    let since = match state {
        LaunchState::Running | LaunchState::Stopping => job.started_at,
        _ => job.ended_at,
    };
    Status {
        admission: None,
        attempt,
        state,
        processes: JobProcesses::Slurm { job: job.id, uid: job.uid },
        on: Vec::new(),
        since: since.unwrap_or(job.submitted_at),
        log_path: job.output.clone(),
    }
}
