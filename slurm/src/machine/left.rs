//! Jobs that Slurm places: they are reported as they run.

use wattle_common::JobId;
use wattle_common::job::{JobPhase, NodeShare};
use wattle_common::messages::LaunchState;
use wattle_site::{Known, Status};

use super::look::{Case, Round};
use super::managed::status;
use super::{Alarm, SlurmMachine};
use crate::command::Command;
use crate::view::SlurmState;

impl SlurmMachine {
    /// Follows a job that Slurm places; returns the state of its newest attempt.
    pub(super) fn left(&mut self, round: &mut Round<'_>, case: Case<'_>) -> Option<Status> {
        let Case { id, job, order } = case;
        let now = round.look.now;
        if !self.owner_agrees(id, job) {
            self.alarm(now, Alarm::Owner { job: id.clone() }, round.out);
            return None;
        }
        if job.state == SlurmState::Running {
            self.memory.ran_on.insert(id.clone(), job.on.clone());
        }
        let Some(known) = self.records.get(id).cloned() else {
            if job.state == SlurmState::Running {
                self.submit(round, case, None);
            }
            return None;
        };
        if known.phase.is_final() {
            let is_live = matches!(job.state, SlurmState::Configuring | SlurmState::Running);
            if is_live && known.phase == JobPhase::Cancelled {
                self.command(round, job.id, Command::Cancel(job.id));
            }
            return None;
        }
        let attempt = job.restarts + 1;
        let stops = case.stops();
        match job.state {
            SlurmState::Pending => {
                // Its run ended by a requeue; it is the placer's newest attempt.
                let error = format!("Slurm put it back into the queue: {}", job.reason);
                known.has_gpus().then(|| status(job, known.attempt, LaunchState::Lost { error }))
            }
            SlurmState::Configuring => None,
            SlurmState::Running => {
                let is_requested = known.stops_for() == Some(JobPhase::Cancelled);
                let cancels = is_requested && self.settings.level.places();
                if cancels {
                    self.command(round, job.id, Command::Cancel(job.id));
                } else if is_requested {
                    self.alarm(now, Alarm::NotOurs { job: id.clone() }, round.out);
                }
                let state =
                    if stops && cancels { LaunchState::Stopping } else { LaunchState::Running };
                Some(Status { on: job.on.clone(), ..status(job, attempt, state) })
            }
            SlurmState::Completing => {
                // Slurm counts a restart before the processes have ended.
                let attempt = if known.has_gpus() { known.attempt } else { attempt };
                let state = if stops { LaunchState::Stopping } else { LaunchState::Running };
                Some(Status { on: job.on.clone(), ..status(job, attempt, state) })
            }
            _ => {
                let (last, on) = self.end_without_order(id, &known);
                let attempt = order.map_or(last, |order| order.attempt);
                Some(Status { on, ..self.end(round, case, &known, attempt) })
            }
        }
    }

    /// The attempt that has ended if no order names it, and the GPUs on which it ran. It is the attempt after the
    /// recorded one if the placer has not recorded its start; otherwise it is the recorded one, and its order has
    /// the GPUs (empty here).
    pub(super) fn end_without_order(&self, id: &JobId, known: &Known) -> (u32, Vec<NodeShare>) {
        let ran_on = self.memory.ran_on.get(id);
        match ran_on.filter(|_| known.placed_by_site && !known.has_gpus()) {
            Some(on) => (known.attempt + 1, on.clone()),
            None => (known.attempt, Vec::new()),
        }
    }
}
