//! The jobs: their records, which are stored, and their keys in the cluster's state.
//!
//! Records are changed only here. [`JobRecords::change`] marks a record to be stored at the end of the event and
//! derives the rest from the difference:
//! * the jobs that hold GPUs of each node;
//! * the nodes whose orders differ in this job;
//! * what the records of each user occupy, with the ended jobs, the oldest first ([`occupancy`]).
//!
//! Progress and the like may be frequent, so [`JobRecords::note`] stores them later. The phase of a record and the
//! state of its job in the cluster change together ([`phases`], [`decisions`]).

mod decisions;
mod occupancy;
mod phases;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Index};
use std::time::Duration;

use wattle_common::job::{GpuSetting, JobPhase, Placement};
use wattle_common::messages::{ExpectedTimes, JobProgressed, JobRecord, Prediction};
use wattle_common::{AdmissionId, JobId, NodeId, Timestamp, codec};

use self::occupancy::{Measure, Occupancy};
pub(super) use self::phases::departure;
use crate::config::Config;
use crate::live::expected::{STORED_MAX, differ};
use crate::live::{Action, restarts};
use crate::{ClusterState, JobKey};

/// A job's record and its transient state.
struct Tracked {
    record: JobRecord,
    /// Its key in the cluster's state, until it has ended.
    key: Option<JobKey>,
    /// Size of its specification, bytes.
    bytes: u64,
    /// When the record was last stored.
    stored_at: Timestamp,
    /// Whether a change since then is to be stored later.
    unsaved: bool,
    /// The expected times of the stored record.
    expected_stored: Option<Box<ExpectedTimes>>,
}

impl Tracked {
    /// Updates the record's GPU time and restarts from the cluster's state.
    fn count(&mut self, state: &ClusterState) {
        let job = self.key.and_then(|key| state.job(key));
        let ms = |time: Duration| u64::try_from(time.as_millis()).ok().filter(|ms| *ms > 0);
        let then = self.record.phase_since_us;
        self.record.gpu_time_ms = job.and_then(|job| ms(job.gpu_time(then)));
        if let Some(job) = job {
            restarts::store(state, job, &mut self.record);
        }
    }
}

/// The part of a record from which the orders of its nodes follow.
#[derive(PartialEq)]
struct Ordered {
    placement: Placement,
    setting: GpuSetting,
    attempt: u32,
    stops: bool,
}

impl Ordered {
    /// `None`: no order contains the job.
    fn of(record: &JobRecord) -> Option<Self> {
        let placement = record.placement.as_ref().filter(|_| record.phase.has_gpus())?;
        Some(Self {
            placement: placement.clone(),
            setting: record.setting,
            attempt: record.attempt,
            stops: record.phase == JobPhase::Stopping,
        })
    }
}

/// The owner of a job; empty without one.
fn user_of(record: &JobRecord) -> &str {
    record.spec.user.as_deref().unwrap_or_default()
}

/// The records of all jobs, and what the event being handled has changed of them.
pub(super) struct JobRecords {
    jobs: BTreeMap<JobId, Tracked>,
    /// The jobs that hold GPUs of each node.
    by_node: BTreeMap<NodeId, BTreeSet<JobId>>,
    occupancy: Occupancy,
    to_store: BTreeSet<JobId>,
    /// The nodes whose orders differ in a job.
    to_order: BTreeSet<NodeId>,
    /// The jobs whose phases may follow from other reports than before.
    to_reconcile: BTreeSet<JobId>,
    /// Most starts of a job.
    attempts_max: u32,
    /// Longest time that a noted change is not stored.
    store_after: Duration,
}

impl Index<&JobId> for JobRecords {
    type Output = JobRecord;

    /// # Panics
    /// If the job is unknown.
    fn index(&self, job: &JobId) -> &JobRecord {
        &self.jobs[job].record
    }
}

impl JobRecords {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            jobs: BTreeMap::new(),
            by_node: BTreeMap::new(),
            occupancy: Occupancy::default(),
            to_store: BTreeSet::new(),
            to_order: BTreeSet::new(),
            to_reconcile: BTreeSet::new(),
            attempts_max: config.attempts_max,
            store_after: config.progress_store(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    pub(super) fn contains(&self, job: &JobId) -> bool {
        self.jobs.contains_key(job)
    }

    pub(super) fn get(&self, job: &JobId) -> Option<&JobRecord> {
        self.jobs.get(job).map(|tracked| &tracked.record)
    }

    /// The job's key in the cluster's state; `None` if it has ended, or waits in the queue of the site's scheduler.
    pub(super) fn key(&self, job: &JobId) -> Option<JobKey> {
        self.jobs.get(job)?.key
    }

    /// All records, by job.
    pub(super) fn all(&self) -> impl Iterator<Item = &JobRecord> {
        self.jobs.values().map(|tracked| &tracked.record)
    }

    /// The records of the jobs after one, by job.
    pub(super) fn after(&self, job: Option<&JobId>) -> impl Iterator<Item = &JobRecord> {
        let from = job.map_or(Bound::Unbounded, Bound::Excluded);
        let jobs = self.jobs.range::<JobId, _>((from, Bound::Unbounded));
        jobs.map(|(_, tracked)| &tracked.record)
    }

    /// The jobs that hold GPUs of a node.
    pub(super) fn on_node(&self, node: &NodeId) -> impl Iterator<Item = &JobId> {
        self.by_node.get(node).into_iter().flatten()
    }

    /// Adds a record that is stored already.
    fn insert_stored(&mut self, record: JobRecord, key: Option<JobKey>, stored_at: Timestamp) {
        let job = record.spec.job.clone();
        // A job that waits in the queue of the site's scheduler has a record already.
        self.vacate(&job);
        let bytes = codec::encode_json(&record.spec).len() as u64;
        if record.phase.is_final() {
            let at = record.ended_at_us.unwrap_or_default();
            self.occupancy.add_ended(user_of(&record), at, job.clone(), bytes);
        } else {
            self.occupancy.add(user_of(&record), bytes);
        }
        let ordered = Ordered::of(&record);
        let (unsaved, expected_stored) = (false, record.expected.clone());
        let tracked = Tracked { record, key, bytes, stored_at, unsaved, expected_stored };
        self.jobs.insert(job.clone(), tracked);
        self.order(&job, None, ordered);
    }

    /// Adds the record of a submitted job.
    pub(super) fn submitted(&mut self, now: Timestamp, record: JobRecord, key: Option<JobKey>) {
        self.to_store.insert(record.spec.job.clone());
        self.insert_stored(record, key, now);
    }

    /// Removes a submitted job that was never started and whose record is not stored. Returns its key.
    pub(super) fn remove_submitted(&mut self, job: &JobId) -> Option<JobKey> {
        self.get(job).filter(|record| record.phase == JobPhase::Queued && record.attempt == 0)?;
        self.remove(job)
    }

    /// Removes the record of a job that holds no GPUs. Returns its key.
    pub(super) fn remove(&mut self, job: &JobId) -> Option<JobKey> {
        self.to_store.remove(job);
        self.vacate(job);
        self.jobs.remove(job)?.key
    }

    /// Counts a record no longer, if there is one.
    fn vacate(&mut self, job: &JobId) {
        let Some(Tracked { record, bytes, .. }) = self.jobs.get(job) else { return };
        if record.phase.is_final() {
            self.occupancy.remove_ended(user_of(record), job);
        } else {
            self.occupancy.remove(user_of(record), *bytes);
        }
    }

    /// Changes a record, which is stored at the end of the event.
    pub(super) fn change<R>(
        &mut self,
        job: &JobId,
        change: impl FnOnce(&mut JobRecord) -> R,
    ) -> Option<R> {
        let Tracked { record, bytes, .. } = self.jobs.get_mut(job)?;
        let (before, had_ended) = (Ordered::of(record), record.phase.is_final());
        let result = change(record);
        if record.phase.is_final() && !had_ended {
            let (user, at) = (user_of(record), record.ended_at_us.unwrap_or_default());
            self.occupancy.remove(user, *bytes);
            self.occupancy.add_ended(user, at, job.clone(), *bytes);
            record.expected = None;
        }
        let after = Ordered::of(record);
        // Its output stays on the nodes that it leaves.
        for share in before.iter().chain(&after).flat_map(|ordered| &ordered.placement.shares) {
            if !record.ran_on.contains(&share.node) {
                record.ran_on.insert(share.node.clone());
            }
        }
        self.to_store.insert(job.clone());
        self.order(job, before, after);
        Some(result)
    }

    /// Follows a job from node to node, and marks the nodes whose orders differ.
    fn order(&mut self, job: &JobId, before: Option<Ordered>, after: Option<Ordered>) {
        if before == after {
            return;
        }
        for share in before.into_iter().flat_map(|ordered| ordered.placement.shares) {
            if let Some(jobs) = self.by_node.get_mut(&share.node) {
                jobs.remove(job);
            }
            self.to_order.insert(share.node);
        }
        for share in after.into_iter().flat_map(|ordered| ordered.placement.shares) {
            self.by_node.entry(share.node.clone()).or_default().insert(job.clone());
            self.to_order.insert(share.node);
        }
    }

    /// Changes a record, which is stored with its next change or after the time for progress. The change
    /// concerns neither the phase nor the placement.
    fn note(&mut self, job: &JobId, change: impl FnOnce(&mut JobRecord)) {
        if let Some(tracked) = self.jobs.get_mut(job) {
            change(&mut tracked.record);
            tracked.unsaved = true;
        }
    }

    /// Notes the expected times of the present jobs. Of those that differ significantly from the stored ones, the
    /// [`STORED_MAX`] that were stored the longest ago are stored later.
    pub(super) fn expected<'e>(&mut self, of: impl Fn(JobKey) -> Option<&'e ExpectedTimes>) {
        let mut changed: Vec<(Timestamp, &mut Tracked)> = Vec::new();
        for tracked in self.jobs.values_mut() {
            let Some(times) = tracked.key.and_then(&of) else { continue };
            tracked.record.expected = Some(Box::new(times.clone()));
            if !tracked.unsaved && differ(tracked.expected_stored.as_deref(), times) {
                changed.push((tracked.stored_at, tracked));
            }
        }
        changed.sort_by_key(|(stored_at, _)| *stored_at);
        changed.into_iter().take(STORED_MAX).for_each(|(_, tracked)| tracked.unsaved = true);
    }

    /// Adds a job's report of its progress, unless it is of an earlier attempt, or of a node that still runs an
    /// orphan. Returns whether it counts.
    pub(super) fn progressed(&mut self, now: Timestamp, message: &JobProgressed) -> bool {
        let Some(Tracked { record, stored_at, .. }) = self.jobs.get(&message.job) else {
            return false;
        };
        let first = record.placement.as_ref().and_then(|placement| placement.shares.first());
        let (known, of) = (record.admission.as_ref(), message.admission.as_ref());
        let is_its = AdmissionId::has_run(known, of, message.at_us);
        let is_late = message.attempt != record.attempt || !is_its;
        if is_late || first.is_none_or(|share| share.node != message.node) {
            return false;
        }
        let new_epoch = message.epoch.is_some() && record.epoch < message.epoch;
        let is_due = now.since(*stored_at) >= self.store_after;
        self.note(&message.job, |record| {
            record.step = Some(message.step);
            record.step_at_us = Some(message.at_us);
            record.steps_per_s = message.steps_per_s.or(record.steps_per_s);
            record.epoch = message.epoch.or(record.epoch);
            record.steps_total = message.steps_total.or(record.steps_total);
        });
        if new_epoch || is_due {
            self.to_store.insert(message.job.clone());
        }
        true
    }

    /// Notes the first prediction of a job that was placed without one.
    pub(super) fn predicted_late(&mut self, job: &JobId, prediction: Prediction) {
        self.note(job, |record| record.prediction_placed = Some(Box::new(prediction)));
    }

    /// Derives the phase of every job from its nodes' reports at the end of the event.
    pub(super) fn reconcile_all(&mut self) {
        self.to_reconcile.extend(self.jobs.keys().cloned());
    }

    /// Derives the phases of the jobs that hold GPUs of a node from its reports at the end of the event.
    pub(super) fn reconcile_on(&mut self, node: &NodeId) {
        self.to_reconcile.extend(self.by_node.get(node).into_iter().flatten().cloned());
    }

    pub(super) fn next_to_reconcile(&mut self) -> Option<JobId> {
        self.to_reconcile.pop_first()
    }

    /// The nodes whose orders differ in a job since the last call.
    pub(super) fn take_to_order(&mut self) -> BTreeSet<NodeId> {
        std::mem::take(&mut self.to_order)
    }

    /// Stores every record again.
    pub(super) fn store_all(&mut self) {
        self.to_store.extend(self.jobs.keys().cloned());
    }

    /// Stores the noted changes that were not stored for long enough.
    pub(super) fn store_noted(&mut self, now: Timestamp) {
        let is_due =
            |tracked: &Tracked| tracked.unsaved && now.since(tracked.stored_at) >= self.store_after;
        let due = self.jobs.iter().filter(|(_, tracked)| is_due(tracked));
        self.to_store.extend(due.map(|(job, _)| job.clone()));
    }

    /// Stores the marked records.
    pub(super) fn store(&mut self, now: Timestamp, state: &ClusterState, out: &mut Vec<Action>) {
        for job in std::mem::take(&mut self.to_store) {
            if let Some(tracked) = self.jobs.get_mut(&job) {
                tracked.count(state);
                tracked.stored_at = now;
                tracked.unsaved = false;
                tracked.expected_stored.clone_from(&tracked.record.expected);
                out.push(Action::StoreJob(Box::new(tracked.record.clone())));
            }
        }
    }

    /// Forgets ended jobs beyond `kept`: the oldest of the users with most of them.
    pub(super) fn forget_ended(&mut self, kept: usize, out: &mut Vec<Action>) {
        self.forget(kept, Measure::Count, out);
    }

    /// Forgets ended jobs, one of each `parts`: the oldest of the users whose ended jobs are the largest.
    pub(super) fn forget_part_of_ended(&mut self, parts: usize, out: &mut Vec<Action>) {
        let ended = self.occupancy.ended();
        self.forget(ended - ended.div_ceil(parts), Measure::Bytes, out);
    }

    fn forget(&mut self, kept: usize, measure: Measure, out: &mut Vec<Action>) {
        while self.occupancy.ended() > kept {
            let Some(job) = self.occupancy.pop_ended(measure) else { break };
            self.jobs.remove(&job);
            out.push(Action::ForgetJob(job));
        }
    }

    /// Size of the specifications of a user's jobs that have not ended, bytes.
    pub(super) fn unfinished_bytes(&self, user: &str) -> u64 {
        self.occupancy.unfinished_bytes(user)
    }
}
