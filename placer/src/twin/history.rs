//! The past of the twin's schedule: its inputs and checkpoints.
//!
//! The run time of a job becomes known when it ends in the cluster, which may be after its end in the twin. Then the
//! schedule returns to the last checkpoint before the earliest instant that depends on it, and applies the inputs again.
//! Corrections are gathered for [`GATHERED`], because jobs end often and each return costs the time since the
//! checkpoint.
//!
//! The estimate of a job that waits in the cluster may prove too short once it runs there: it returns to the schedule
//! in the same way while it runs.
//!
//! Checkpoints are [`INTERVAL`] apart, and [`CHECKPOINTS_MAX`] are kept. A correction of an earlier instant counts
//! for the job itself, and for the others from the oldest checkpoint on ([`History::corrected_late`]).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::aim::Baseline;
use wattle_common::messages::TwinJob;

use super::Submission;
use super::schedule::{Run, RunTimes, Schedule};
use crate::accounts::rules::AccountRules;
use crate::state::job::{Job, JobFacts};
use crate::state::node::NodeFacts;

/// Time between two checkpoints.
const INTERVAL: Duration = Duration::from_hours(1);
/// Most checkpoints: two days.
const CHECKPOINTS_MAX: usize = 48;
/// Most inputs that are kept for a return.
const INPUTS_MAX: usize = 200_000;
/// Time for which corrections of the past are gathered.
const GATHERED: Duration = Duration::from_mins(5);

/// Leaf switch and GPUs per board of a node, where known.
type Place = (Option<u32>, Option<u32>);

/// An input of the schedule.
#[derive(Clone, Debug)]
pub(super) enum Input {
    /// A job arrives.
    Submitted(Submission, Arc<JobFacts>),
    /// A job is cancelled.
    Withdrawn(Submission),
    /// The nodes with their places.
    Nodes(Arc<[NodeFacts]>, Arc<[Place]>),
}

/// The schedule with its past.
#[derive(Clone, Debug)]
pub(super) struct History {
    schedule: Schedule,
    /// Earlier states, the oldest first; at least one.
    checkpoints: VecDeque<Schedule>,
    /// The inputs since the oldest checkpoint.
    inputs: VecDeque<(Timestamp, Input)>,
    /// Number of inputs before them.
    dropped: u64,
    run_times: RunTimes,
    /// The earliest instant that is to be corrected.
    outdated_from: Option<Timestamp>,
    returned_at: Timestamp,
    corrected_late: u64,
}

impl History {
    pub(super) fn new(baseline: Baseline, accounts: Arc<AccountRules>, now: Timestamp) -> Self {
        let schedule = Schedule::new(baseline, accounts, now);
        Self {
            checkpoints: VecDeque::from([schedule.clone()]),
            schedule,
            inputs: VecDeque::new(),
            dropped: 0,
            run_times: BTreeMap::new(),
            outdated_from: None,
            returned_at: now,
            corrected_late: 0,
        }
    }

    /// Adds an input. Inputs arrive in the order of their instants.
    pub(super) fn add(&mut self, at: Timestamp, input: Input) {
        let at = at.max(self.inputs.back().map_or(self.schedule.now(), |(last, _)| *last));
        self.inputs.push_back((at, input));
    }

    /// The run time of a job that has ended in the cluster.
    pub(super) fn run_time_known(&mut self, submission: Submission, run_time: Option<Duration>) {
        let Some(run_time) = run_time else { return };
        self.run_times.insert(submission, run_time);
        let now = self.schedule.now();
        let Some(end) = self.schedule.end_with(submission, run_time) else { return };
        let ended = self.schedule.run(submission).and_then(|run| run.end);
        let earliest = ended.map_or(end, |ended| ended.min(end));
        if ended == Some(end) || earliest >= now {
            self.schedule.run_time_known(submission, run_time);
            return;
        }
        if earliest < self.begins_at() {
            // The queue remains as it was; the job's own end is that of its run time.
            self.corrected_late += 1;
            let all = std::iter::once(&mut self.schedule).chain(&mut self.checkpoints);
            all.for_each(|schedule| schedule.end_corrected(submission, run_time));
        }
        self.correct_from(earliest);
        self.schedule.run_time_known(submission, run_time);
    }

    /// A new estimate of the run time of a job that is present in the cluster. One that has ended in the schedule, and
    /// would still run by the new estimate, returns to it.
    pub(super) fn run_time_estimated(&mut self, submission: Submission, run_time: Duration) {
        if let Some(ended) = self.schedule.run(submission).and_then(|run| run.end) {
            let end = self.schedule.end_with(submission, run_time);
            if end.is_some_and(|end| end > self.schedule.now()) && ended >= self.begins_at() {
                self.run_times.insert(submission, run_time);
                self.correct_from(ended);
            }
            return;
        }
        self.run_times.insert(submission, run_time);
        self.schedule.run_time_known(submission, run_time);
    }

    /// The schedule from an instant on is to be corrected.
    fn correct_from(&mut self, earliest: Timestamp) {
        let from = self.outdated_from.map_or(earliest, |from| from.min(earliest));
        self.outdated_from = Some(from);
    }

    /// Follows the inputs and ends until `now`.
    pub(super) fn advance(&mut self, now: Timestamp) {
        let is_gathered = now.since(self.returned_at) >= GATHERED;
        if let Some(from) = self.outdated_from.take_if(|_| is_gathered) {
            self.returned_at = now;
            self.return_to(from);
        }
        loop {
            let next_input = self.inputs.get(self.applied_of_kept()).map(|(at, _)| *at);
            let next = next_input.into_iter().chain(self.schedule.next_at()).min();
            let Some(at) = next.filter(|at| *at <= now) else { break };
            self.keep_checkpoint(at);
            self.schedule.advance_to(at);
            self.schedule.end_due();
            let due = self
                .inputs
                .range(self.applied_of_kept()..)
                .take_while(|(input_at, _)| *input_at <= at);
            due.for_each(|(_, input)| self.schedule.apply(input));
            self.schedule.plan(&self.run_times);
        }
        self.schedule.advance_to(now);
        self.drop_oldest();
    }

    /// Number of the kept inputs that were applied.
    const fn applied_of_kept(&self) -> usize {
        (self.schedule.applied - self.dropped) as usize
    }

    /// Corrects the past and follows the ends until nothing is left.
    pub(super) fn complete(&mut self) {
        if let Some(from) = self.outdated_from.take() {
            self.return_to(from);
        }
        self.advance(Timestamp::FOREVER);
    }

    /// Returns to the last checkpoint before an instant.
    fn return_to(&mut self, from: Timestamp) {
        while self.checkpoints.len() > 1
            && self.checkpoints.back().is_some_and(|last| last.now() > from)
        {
            self.checkpoints.pop_back();
        }
        if let Some(last) = self.checkpoints.back() {
            self.schedule = last.clone();
            self.schedule.run_times_known(&self.run_times);
        }
    }

    /// Keeps the state before the events of `at`, where a checkpoint is due.
    fn keep_checkpoint(&mut self, at: Timestamp) {
        let last = self.checkpoints.back().map_or(Timestamp::EPOCH, Schedule::now);
        if at.since(last) >= INTERVAL && self.schedule.now() > last {
            self.checkpoints.push_back(self.schedule.clone());
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        while self.checkpoints.len() > 1
            && (self.checkpoints.len() > CHECKPOINTS_MAX || self.inputs.len() > INPUTS_MAX)
        {
            self.checkpoints.pop_front();
            let applied = self.checkpoints.front().map_or(self.dropped, |first| first.applied);
            self.inputs.drain(..(applied - self.dropped) as usize);
            self.dropped = applied;
        }
    }

    /// The instant of the oldest checkpoint: nothing before it changes any more.
    pub(super) fn begins_at(&self) -> Timestamp {
        self.checkpoints.front().map_or(Timestamp::EPOCH, Schedule::now)
    }

    /// The instant that the schedule has reached.
    pub(super) const fn now(&self) -> Timestamp {
        self.schedule.now()
    }

    /// The life of a job for storage; the rest is empty.
    pub(super) fn stored(&self, submission: Submission) -> TwinJob {
        self.schedule.stored(submission)
    }

    /// A job is in the schedule at the instant that it has reached; `begun`: it has started or ended.
    pub(super) fn restore(
        &mut self,
        submission: Submission,
        facts: &JobFacts,
        begun: Option<&TwinJob>,
    ) {
        self.schedule.restore(submission, facts, begun);
    }

    /// Orders inputs that were added by record by their instants.
    pub(super) fn in_order(&mut self) {
        let applied = self.applied_of_kept();
        self.inputs.make_contiguous()[applied..].sort_by_key(|(at, _)| *at);
    }

    /// Nothing before the present instant changes any more.
    pub(super) fn keep_first(&mut self) {
        let applied = self.schedule.applied;
        self.inputs.drain(..(applied - self.dropped) as usize);
        self.dropped = applied;
        self.checkpoints = VecDeque::from([self.schedule.clone()]);
    }

    /// Whether a job has left the schedule by an instant.
    pub(super) fn has_left(&self, submission: Submission, by: Timestamp) -> bool {
        let left = self.run(submission).and_then(|run| run.end.or(run.withdrawn));
        left.is_some_and(|left| left <= by)
    }

    /// The life of a job.
    pub(super) fn run(&self, submission: Submission) -> Option<&Run> {
        self.schedule.run(submission)
    }

    /// Forgets a job that has left.
    pub(super) fn forget(&mut self, submission: Submission) {
        self.run_times.remove(&submission);
        self.schedule.forget(submission);
        self.checkpoints.iter_mut().for_each(|checkpoint| checkpoint.forget(submission));
    }

    pub(super) fn presence(&self) -> (usize, usize) {
        self.schedule.presence()
    }

    pub(super) fn running(&self) -> impl Iterator<Item = (Submission, u32)> {
        self.schedule.running()
    }

    pub(super) fn present_jobs(&self) -> impl Iterator<Item = &Job> {
        self.schedule.present_jobs()
    }

    pub(super) const fn corrected_late(&self) -> u64 {
        self.corrected_late
    }
}
