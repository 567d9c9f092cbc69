//! The jobs' records, reduced to what lists show, in the order of a list.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use wattle_common::job::JobPhase;
use wattle_common::messages::{JobCounts, JobRecord};
use wattle_common::{JobId, Timestamp};

/// Most ended jobs that are kept; of more, the earliest submitted ones are forgotten.
const ENDED_MAX: usize = 20_000;

/// The phases in which a job holds GPUs.
const ON_GPUS: [JobPhase; 3] = [JobPhase::Starting, JobPhase::Running, JobPhase::Stopping];

type SortKey = (u8, Reverse<Timestamp>, JobId);

/// The jobs of the cluster.
#[derive(Clone, Debug, Default)]
pub struct Jobs {
    entries: BTreeMap<JobId, JobRecord>,
    sorted: BTreeSet<SortKey>,
    counts: JobCounts,
}

/// The record without command, environment, reasons, alternatives and output, which no list shows.
fn reduced(mut record: JobRecord) -> JobRecord {
    let spec = &mut record.spec;
    spec.command = Vec::new();
    spec.environment = Vec::new();
    spec.working_dir = None;
    record.reasons = Vec::new();
    record.log_paths = Vec::new();
    record.restarts = Vec::new();
    record.left_sizes = Vec::new();
    record.prediction_last = None;
    if let Some(prediction) = &mut record.prediction_placed {
        prediction.alternatives = Vec::new();
        prediction.basis = None;
    }
    record
}

fn sort_key(record: &JobRecord) -> SortKey {
    let (group, submitted, job) = record.list_order();
    (group, submitted, job.clone())
}

impl Jobs {
    /// Adds or replaces a record.
    pub fn insert(&mut self, record: JobRecord) {
        self.remove(&record.spec.job);
        let record = reduced(record);
        *self.counts.entry(record.phase).or_default() += 1;
        self.sorted.insert(sort_key(&record));
        self.entries.insert(record.spec.job.clone(), record);
        let ended: u64 =
            self.counts.iter().filter(|(phase, _)| phase.is_final()).map(|(_, count)| count).sum();
        if ended > ENDED_MAX as u64
            && let Some((_, _, last)) = self.sorted.last().cloned()
        {
            self.remove(&last);
        }
    }

    /// Removes a job.
    pub fn remove(&mut self, job: &JobId) {
        let Some(record) = self.entries.remove(job) else { return };
        self.sorted.remove(&sort_key(&record));
        if let Some(count) = self.counts.get_mut(&record.phase) {
            *count = count.saturating_sub(1);
        }
    }

    /// The record of a job, without what lists do not show.
    #[must_use]
    pub fn get(&self, job: &JobId) -> Option<&JobRecord> {
        self.entries.get(job)
    }

    /// Number of jobs in a phase.
    #[must_use]
    pub fn count(&self, phase: JobPhase) -> u64 {
        self.counts.get(&phase).copied().unwrap_or_default()
    }

    /// Number of jobs with GPUs: starting, running and stopping ones.
    #[must_use]
    pub fn on_gpus(&self) -> u64 {
        ON_GPUS.map(|phase| self.count(phase)).iter().sum()
    }

    /// The active jobs by phase: `1 starting, 2 running, 3 queued`. Running and queued ones are always named.
    #[must_use]
    pub fn words(&self) -> String {
        let named = ON_GPUS.into_iter().chain([JobPhase::Queued]).filter(|phase| {
            self.count(*phase) > 0 || matches!(phase, JobPhase::Running | JobPhase::Queued)
        });
        named.map(|phase| format!("{} {phase}", self.count(phase))).collect::<Vec<_>>().join(", ")
    }

    /// All jobs in the order of a list.
    pub fn listed(&self) -> impl Iterator<Item = &JobRecord> {
        self.sorted.iter().filter_map(|(_, _, job)| self.entries.get(job))
    }

    /// A part of the jobs of these groups in the order of a list, and the number of all of them.
    #[must_use]
    pub fn part(&self, groups: [u8; 2], skip: usize, count: usize) -> (Vec<&JobRecord>, usize) {
        let [first, last] = groups;
        let ids = self.ids_since(first).take_while(|(group, ..)| *group <= last);
        let records = ids.skip(skip).take(count).filter_map(|(_, _, job)| self.entries.get(job));
        let total = (first..=last).map(|group| self.in_group(group)).sum();
        (records.collect(), total)
    }

    /// Number of jobs of a group.
    fn in_group(&self, group: u8) -> usize {
        let all = match group {
            0 => self.on_gpus(),
            1 => self.count(JobPhase::Queued),
            _ => [JobPhase::Finished, JobPhase::Failed, JobPhase::Cancelled]
                .map(|phase| self.count(phase))
                .iter()
                .sum(),
        };
        usize::try_from(all).unwrap_or(usize::MAX)
    }

    /// The jobs of one group in the order of a list: 0 with GPUs, 1 queued, 2 ended.
    pub fn group(&self, group: u8) -> impl Iterator<Item = &JobRecord> {
        self.listed_from(group).take_while(move |record| record.list_order().0 == group)
    }

    fn listed_from(&self, group: u8) -> impl Iterator<Item = &JobRecord> {
        let ids = self.ids_since(group);
        ids.filter_map(|(_, _, job)| self.entries.get(job))
    }

    fn ids_since(&self, group: u8) -> impl Iterator<Item = &SortKey> {
        let first = JobId::new("0").map(|job| (group, Reverse(Timestamp::FOREVER), job));
        first.map(|first| self.sorted.range(first..)).into_iter().flatten()
    }

    /// The jobs that hold GPUs of a node, as their records state it.
    pub fn on_node(&self, node: &wattle_common::NodeId) -> impl Iterator<Item = &JobRecord> {
        self.group(0).filter(move |record| {
            let shares = record.placement.iter().flat_map(|placement| &placement.shares);
            shares.into_iter().any(|share| share.node == *node)
        })
    }
}

#[cfg(test)]
mod tests {
    use wattle_testkit as testkit;

    use super::*;

    fn record(job: &str, phase: JobPhase, submitted_s: u64) -> JobRecord {
        let mut spec = testkit::job_spec(job, 1);
        spec.submitted_at_us = Timestamp::from_s(submitted_s);
        spec.environment = vec![("TOKEN".to_owned(), "secret".to_owned())];
        testkit::job_record(spec, phase)
    }

    fn ids<'a>(records: impl Iterator<Item = &'a JobRecord>) -> Vec<String> {
        records.map(|record| record.spec.job.to_string()).collect()
    }

    #[test]
    fn jobs_are_listed_by_group_and_time_of_submission() {
        let mut jobs = Jobs::default();
        jobs.insert(record("old", JobPhase::Queued, 1));
        jobs.insert(record("new", JobPhase::Queued, 2));
        jobs.insert(record("runs", JobPhase::Running, 1));
        jobs.insert(record("done", JobPhase::Finished, 3));
        assert_eq!(ids(jobs.listed()), ["runs", "new", "old", "done"]);
        assert_eq!(ids(jobs.group(1)), ["new", "old"]);
        let part = |groups, skip| {
            let (records, total) = jobs.part(groups, skip, 2);
            (ids(records.into_iter()), total)
        };
        assert_eq!(part([0, 1], 1), (vec!["new".to_owned(), "old".to_owned()], 3));
        assert_eq!(part([2, 2], 0), (vec!["done".to_owned()], 1));
        jobs.insert(record("old", JobPhase::Running, 1));
        assert_eq!((jobs.on_gpus(), jobs.count(JobPhase::Queued)), (2, 1));
        assert_eq!(ids(jobs.group(0)), ["old", "runs"]);
        jobs.remove(&testkit::job("old"));
        assert_eq!((jobs.on_gpus(), ids(jobs.listed()).len()), (1, 3));
    }

    #[test]
    fn a_job_that_starts_or_stops_does_not_count_as_running() {
        let mut jobs = Jobs::default();
        assert_eq!(jobs.words(), "0 running, 0 queued");
        jobs.insert(record("a", JobPhase::Starting, 1));
        assert_eq!((jobs.words().as_str(), jobs.on_gpus()), ("1 starting, 0 running, 0 queued", 1));
        jobs.insert(record("b", JobPhase::Stopping, 2));
        jobs.insert(record("c", JobPhase::Running, 3));
        jobs.insert(record("d", JobPhase::Queued, 4));
        assert_eq!(jobs.words(), "1 starting, 1 running, 1 stopping, 1 queued");
    }

    #[test]
    fn environments_are_not_kept_and_ended_jobs_are_bounded() {
        let mut jobs = Jobs::default();
        jobs.insert(record("first", JobPhase::Running, 0));
        for number in 0..ENDED_MAX + 10 {
            jobs.insert(record(&format!("j{number}"), JobPhase::Finished, number as u64 + 1));
        }
        assert_eq!(jobs.entries.len(), ENDED_MAX + 1);
        assert!(jobs.get(&testkit::job("j0")).is_none(), "the oldest is forgotten");
        let kept = jobs.get(&testkit::job("first")).unwrap();
        assert!(kept.spec.environment.is_empty() && kept.spec.command.is_empty());
    }
}
