//! Which jobs of Slurm are Wattle's, their ids, and their submission to the placer.

use std::collections::BTreeMap;

use wattle_common::JobId;
use wattle_common::id::{SubmissionId, UserId};
use wattle_site::{Level, Terms};

use super::look::{Case, Round};
use super::{Action, Alarm, SlurmMachine};
use crate::command::Command;
use crate::intake;
use crate::tag::Tag;
use crate::view::{SlurmJob, SlurmView};

/// Most tasks of an array that become jobs in one round.
const SPLIT_MAX: usize = 20;
/// Pending jobs up to which further tasks of arrays become jobs.
const PENDING_MAX: usize = 1_000;

impl SlurmMachine {
    /// The jobs of the view that are, or may become, Wattle's, by their ids.
    pub(super) fn identify<'a>(&self, view: &'a SlurmView) -> BTreeMap<JobId, &'a SlurmJob> {
        let mut live: BTreeMap<u32, Vec<&JobId>> = BTreeMap::new();
        for (id, _) in self.records.iter().filter(|(_, known)| !known.phase.is_final()) {
            if let Some(slurm_id) = intake::slurm_id(id) {
                live.entry(slurm_id).or_default().push(id);
            }
        }
        let mut jobs = BTreeMap::new();
        for job in view.jobs.values() {
            let tag = Tag::parse(&job.admin_comment);
            // A requeue changes the submission time, so a job without a tag is found by its record.
            let known = live.get(&job.id).into_iter().flatten().find(|id| {
                let placed_by_site =
                    self.records.get(**id).is_some_and(|known| known.placed_by_site);
                tag.is_none() && placed_by_site && self.owner_agrees(id, job)
            });
            let id = match known {
                Some(id) => Some((*id).clone()),
                None => intake::job_id(job.id, tag.as_ref(), job.submitted_at),
            };
            let is_eligible = self.settings.partitions.contains(&job.partition)
                && (tag.is_some() || job.on.iter().any(|share| !share.gpus.is_empty()));
            if let Some(id) = id.filter(|id| is_eligible || self.records.contains_key(id)) {
                jobs.insert(id, job);
            }
        }
        jobs
    }

    /// Gives tasks of arrays an id of their own; returns whether the job has further tasks.
    pub(super) fn split(&self, round: &mut Round<'_>, job: &SlurmJob) -> bool {
        let Some((_, tasks)) = job.unsplit_tasks.split_last() else { return false };
        if tasks.is_empty() {
            return false;
        }
        let room = PENDING_MAX.saturating_sub(round.pending).min(SPLIT_MAX);
        let tasks = &tasks[..room.min(tasks.len())];
        if !tasks.is_empty() {
            round.pending += tasks.len();
            let split = Command::SplitArray { id: job.id, tasks: tasks.to_vec() };
            self.command(round, job.id, split);
        }
        true
    }

    /// Whether the record of a job, if there is one, has the owner that Slurm has.
    pub(super) fn owner_agrees(&self, id: &JobId, job: &SlurmJob) -> bool {
        let known = self.records.get(id);
        known.is_none_or(|known| known.is_of(&intake::user_of(job)))
    }

    /// Whether Wattle places the job.
    pub(super) fn is_managed(&self, id: &JobId, job: &SlurmJob) -> bool {
        match self.records.get(id) {
            Some(known) => !known.placed_by_site && self.settings.level.places(),
            None => {
                let tagged = Tag::parse(&job.admin_comment).is_some();
                tagged && self.settings.level.places() && job.is_batch && !job.is_special
            }
        }
    }

    /// Submits a job, unless it was submitted a short time ago.
    pub(super) fn submit(&mut self, round: &mut Round<'_>, case: Case<'_>, tag: Option<&Tag>) {
        let (Case { id, job, .. }, now) = (case, round.look.now);
        if !self.memory.may_request(now, id, self.settings.retry) {
            return;
        }
        let terms = Terms::parse(&job.comment, self.settings.offset_s).unwrap_or_else(|error| {
            self.alarm(now, Alarm::Terms { job: id.clone(), error: error.to_string() }, round.out);
            Terms::default()
        });
        let mut spec = intake::spec(id.clone(), job, tag, &terms, &self.settings.gpu_types);
        // Below the level `share` Slurm gives each GPU to one job.
        spec.exclusive |= self.settings.level < Level::Share;
        let submission = intake::suffix(id).and_then(|suffix| SubmissionId::new(suffix).ok());
        let Some(submission) = submission else { return };
        round.out.push(Action::Submit(Box::new(spec), submission));
    }

    /// Cancels a job in Wattle as its owner, unless that was requested a short time ago.
    pub(super) fn cancel_record(&mut self, round: &mut Round<'_>, id: &JobId) {
        let user = self.records.get(id).and_then(|known| known.user.clone());
        let Some(user) = user.and_then(|user| UserId::new(&user).ok()) else { return };
        if self.memory.may_request(round.look.now, id, self.settings.retry) {
            round.out.push(Action::Cancel(id.clone(), user));
        }
    }
}
