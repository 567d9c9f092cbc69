//! Changes of a job's phase outside plans. The record and the job's state in the cluster change together.

use wattle_common::job::JobPhase;
use wattle_common::messages::{JobRecord, Prediction};
use wattle_common::{JobId, NodeId, Timestamp};

use crate::live::job_records::JobRecords;
use crate::live::nodes::Nodes;
use crate::live::site_jobs::placed_by_site;
use crate::live::{LiveController, Turn};
use crate::twin::Departure;
use crate::{ClusterState, JobFacts, prediction};

/// How a job leaves in this phase.
pub(in crate::live) fn departure(phase: JobPhase) -> Departure {
    match phase {
        JobPhase::Finished => Departure::Completed,
        JobPhase::Failed => Departure::Failed,
        JobPhase::Queued => Departure::WaitsAtSite,
        _ => Departure::Cancelled,
    }
}

impl JobRecords {
    /// Adds a stored record, and its job to the cluster's state unless it has ended or waits in the queue of the
    /// site's scheduler.
    pub(in crate::live) fn restore(&mut self, record: &JobRecord, controller: &mut LiveController) {
        let is_planned = record.phase.has_gpus() || !placed_by_site(&record.spec);
        let key = (is_planned && !record.phase.is_final())
            .then(|| controller.restore(JobFacts::from(&record.spec)));
        self.insert_stored(record.clone(), key, record.phase_since_us);
    }

    /// Adds the GPUs of a stored record to the cluster's state, after its job.
    pub(in crate::live) fn restore_placement(
        record: &JobRecord,
        nodes: &mut Nodes,
        controller: &mut LiveController,
    ) {
        let Some(key) = controller.state().job_key(&record.spec.job) else { return };
        let Some(placement) = record.placement.as_ref().filter(|_| record.phase.has_gpus()) else {
            return;
        };
        for share in &placement.shares {
            let gpus = share.gpus.iter().max().map_or(0, |gpu| gpu + 1);
            nodes.add_for_placement(&share.node, gpus, controller);
        }
        if let Some(on) = controller.state().gpu_set(placement) {
            let (setting, since) = (record.setting, record.phase_since_us);
            controller.events().job_restored(key, on, setting, since, record.observing);
            if record.phase == JobPhase::Stopping {
                controller.events().job_stopping(key);
            }
        }
    }

    /// All nodes run the job.
    pub(in crate::live) fn started(&mut self, now: Timestamp, job: &JobId) {
        // In the cluster's state it runs since it holds its GPUs.
        self.change(job, |record| {
            record.enter(JobPhase::Running, now);
            record.started_at_us = record.started_at_us.or(Some(now));
        });
    }

    /// Records that the job stops, and its phase after that.
    pub(in crate::live) fn request_stop(
        &mut self,
        turn: &mut Turn<'_>,
        job: &JobId,
        next: JobPhase,
    ) {
        let known = self.change(job, |record| {
            // A job may stop already: then only the phase after it differs.
            if record.phase != JobPhase::Stopping {
                record.enter(JobPhase::Stopping, turn.now);
            }
            record.next_phase = Some(next);
            record.observing = false;
        });
        if known.is_none() {
            return;
        }
        if let Some(key) = self.key(job) {
            turn.controller.events().job_stopping(key);
        }
        // Its processes may be gone already.
        self.to_reconcile.insert(job.clone());
    }

    /// Records a job's phase after all its processes are gone: `requested`, or failed if it cannot be started
    /// again. Returns the nodes that it has left.
    pub(in crate::live) fn ended(
        &mut self,
        turn: &mut Turn<'_>,
        job: &JobId,
        requested: JobPhase,
    ) -> Vec<NodeId> {
        let last = self.last_prediction(job, turn.controller.state());
        let attempts_max = self.attempts_max;
        let left = self.change(job, |record| {
            if last.is_some() {
                record.prediction_last = last.map(Box::new);
            }
            let placement = record.placement.take();
            record.enter(requested, turn.now);
            record.next_phase = None;
            record.observing = false;
            if requested == JobPhase::Queued
                && let Some(error) = obstacle(record, attempts_max)
            {
                record.phase = JobPhase::Failed;
                record.error = Some(error);
            }
            if record.phase == JobPhase::Finished {
                record.exit_code = Some(0);
                record.error = None;
            }
            if record.phase.is_final() {
                record.ended_at_us = Some(turn.now);
            }
            placement.into_iter().flat_map(|placement| placement.shares).map(|share| share.node)
        });
        let Some(left) = left else { return Vec::new() };
        let left = left.collect();
        let Some(key) = self.key(job) else { return left };
        let record = &self[job];
        if record.phase == JobPhase::Finished {
            self.forget_key(job);
            let work_s = turn.controller.job_completed(key);
            self.change(job, |record| record.work_s = work_s);
        } else if record.phase.is_final() || placed_by_site(&record.spec) {
            // A job placed by the site waits in the queue of its scheduler, not in this one.
            let departure = departure(record.phase);
            self.forget_key(job);
            turn.controller.job_ended(key, departure);
        } else {
            turn.controller.job_stopped(key);
        }
        let work = turn.controller.twin().and_then(|twin| twin.work_of_left(job));
        if let Some(work) = work.filter(|_| self[job].phase.is_final()) {
            self.change(job, |record| record.twin_work = Some(Box::new(work)));
        }
        left
    }

    /// Releases the GPUs that an outdated record assigns to the job.
    pub(in crate::live) fn release(&mut self, turn: &mut Turn<'_>, job: &JobId) {
        if !self.get(job).is_some_and(|record| record.phase.has_gpus()) {
            return;
        }
        self.change(job, |record| {
            record.placement = None;
            record.enter(JobPhase::Queued, turn.now);
            record.next_phase = None;
            record.observing = false;
        });
        if let Some(key) = self.key(job) {
            turn.controller.events().job_stopping(key);
            turn.controller.job_stopped(key);
        }
    }

    /// Replaces the record of a job that its nodes run, or adds it; [`Self::restore_placement`] follows.
    pub(in crate::live) fn runs_as(&mut self, turn: &mut Turn<'_>, record: &JobRecord) {
        let job = &record.spec.job;
        if self.key(job).is_none() {
            // Its record was lost, or it has waited in the queue of the site's scheduler.
            self.restore(record, turn.controller);
        }
        self.change(job, |known| known.clone_from(record));
        self.to_reconcile.insert(job.clone());
    }

    /// Ends a job that holds no GPUs.
    pub(in crate::live) fn close(&mut self, turn: &mut Turn<'_>, job: &JobId, phase: JobPhase) {
        self.change(job, |record| {
            record.enter(phase, turn.now);
            record.ended_at_us = Some(turn.now);
        });
        if let Some(key) = self.key(job) {
            self.forget_key(job);
            turn.controller.job_ended(key, departure(phase));
        } else {
            turn.controller.job_left_site(job);
        }
    }

    pub(super) fn forget_key(&mut self, job: &JobId) {
        if let Some(tracked) = self.jobs.get_mut(job) {
            tracked.key = None;
        }
    }

    /// The prediction for a job on the GPUs that it still holds.
    pub(in crate::live) fn last_prediction(
        &self,
        job: &JobId,
        state: &ClusterState,
    ) -> Option<Prediction> {
        let key = self.key(job)?;
        prediction::on(state, key, state.job(key)?.state.gpus()?, self[job].setting)
    }
}

/// Why a stopped job cannot be started again.
fn obstacle(record: &JobRecord, attempts_max: u32) -> Option<String> {
    // The site's scheduler limits the starts of the jobs that it places, and has the program of all its jobs.
    if record.start_count() >= attempts_max && !placed_by_site(&record.spec) {
        return Some(format!(
            "started {} times without completing: see its reasons, or raise the placer's \
             attempts_max",
            record.start_count()
        ));
    }
    (record.spec.command.is_empty() && record.spec.site.is_none()).then(|| {
        "an adopted job cannot be started again, because the store has lost its command: \
         submit it again"
            .to_owned()
    })
}
