//! Which jobs had which GPUs, as far as the page has seen it: it begins with the service.

use std::collections::{BTreeMap, VecDeque};

use wattle_common::job::Placement;
use wattle_common::messages::JobRecord;
use wattle_common::{JobId, Timestamp};

/// Most past placements that are kept.
const PAST_MAX: usize = 20_000;
/// Most times without a view that are kept.
const GAPS_MAX: usize = 50;

/// A placement that a job has now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The GPUs.
    pub placement: Placement,
    /// Since when.
    pub from: Timestamp,
    attempt: u32,
}

/// A placement that a job had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Past {
    /// The job.
    pub job: JobId,
    /// The GPUs.
    pub placement: Placement,
    /// Since when.
    pub from: Timestamp,
    /// Until when.
    pub until: Timestamp,
}

/// The placements of all jobs that the page has seen.
#[derive(Clone, Debug, Default)]
pub struct Occupancy {
    held: BTreeMap<JobId, Held>,
    past: VecDeque<Past>,
    /// Since when placements are followed; `None`: not yet.
    since: Option<Timestamp>,
    /// When no changes were received.
    gaps: VecDeque<(Timestamp, Option<Timestamp>)>,
}

impl Occupancy {
    /// Takes a job's record.
    pub fn follow(&mut self, record: &JobRecord) {
        let job = &record.spec.job;
        let placement = record.placement.as_ref().filter(|_| record.phase.has_gpus());
        let is_same = |held: &Held| {
            held.attempt == record.attempt && placement.is_some_and(|now| *now == held.placement)
        };
        if self.held.get(job).is_some_and(is_same) {
            return;
        }
        if let Some(Held { placement, from, .. }) = self.held.remove(job) {
            let until = record.phase_since_us.max(from);
            self.past.push_back(Past { job: job.clone(), placement, from, until });
            while self.past.len() > PAST_MAX {
                self.past.pop_front();
            }
        }
        if let Some(placement) = placement.cloned() {
            let (from, attempt) = (record.phase_since_us, record.attempt);
            self.held.insert(job.clone(), Held { placement, from, attempt });
        }
    }

    /// Forgets what a removed job has; when it ended is not known.
    pub fn remove(&mut self, job: &JobId) {
        self.held.remove(job);
    }

    /// Notes whether changes are received.
    pub fn tick(&mut self, connected: bool, now: Timestamp) {
        let open = self.gaps.back_mut().filter(|(_, until)| until.is_none());
        match (connected, open) {
            (true, Some((_, until))) => *until = Some(now),
            (false, None) if self.since.is_some() => {
                self.gaps.push_back((now, None));
                while self.gaps.len() > GAPS_MAX {
                    self.gaps.pop_front();
                }
            }
            _ => {}
        }
        if connected {
            self.since.get_or_insert(now);
        }
    }

    /// What a job has now.
    #[must_use]
    pub fn held(&self) -> &BTreeMap<JobId, Held> {
        &self.held
    }

    /// What jobs had, the newest last.
    pub fn past(&self) -> impl DoubleEndedIterator<Item = &Past> {
        self.past.iter()
    }

    /// Since when placements are followed; `None`: not yet.
    #[must_use]
    pub const fn since(&self) -> Option<Timestamp> {
        self.since
    }

    /// The times in which no changes were received; the end of the last one is absent while it lasts.
    pub fn gaps(&self) -> impl Iterator<Item = (Timestamp, Option<Timestamp>)> {
        self.gaps.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use wattle_common::job::JobPhase;
    use wattle_testkit as testkit;

    use super::*;

    fn at(s: u64) -> Timestamp {
        Timestamp::from_s(s)
    }

    fn record(phase: JobPhase, attempt: u32, since_s: u64, gpus: &[u32]) -> JobRecord {
        JobRecord {
            attempt,
            phase_since_us: at(since_s),
            placement: (!gpus.is_empty()).then(|| testkit::placement([("n0", gpus.to_vec())])),
            ..testkit::job_record(testkit::job_spec("a", 1), phase)
        }
    }

    #[test]
    fn a_placement_lasts_from_its_start_to_the_next_phase_without_it() {
        let mut seen = Occupancy::default();
        seen.follow(&record(JobPhase::Queued, 0, 5, &[]));
        seen.follow(&record(JobPhase::Starting, 1, 10, &[0]));
        seen.follow(&record(JobPhase::Running, 1, 12, &[0]));
        assert_eq!(seen.held()[&testkit::job("a")].from, at(10), "it has its GPUs since its start");
        seen.follow(&record(JobPhase::Stopping, 1, 40, &[0]));
        assert_eq!(seen.past().count(), 0);
        seen.follow(&record(JobPhase::Queued, 1, 44, &[]));
        // The phase between was not received.
        seen.follow(&record(JobPhase::Running, 2, 60, &[0]));
        seen.follow(&record(JobPhase::Running, 3, 90, &[1]));
        seen.follow(&record(JobPhase::Finished, 3, 99, &[]));
        let spans: Vec<_> = seen.past().map(|past| (past.from, past.until)).collect();
        assert_eq!(spans, [(at(10), at(44)), (at(60), at(90)), (at(90), at(99))]);
        assert!(seen.held().is_empty());
    }

    #[test]
    fn a_time_without_changes_is_a_gap() {
        let mut seen = Occupancy::default();
        seen.tick(false, at(1));
        seen.tick(true, at(2));
        seen.tick(false, at(10));
        seen.tick(false, at(11));
        assert_eq!(seen.gaps().collect::<Vec<_>>(), [(at(10), None)]);
        seen.tick(true, at(15));
        seen.tick(true, at(16));
        assert_eq!((seen.since(), seen.gaps().next()), (Some(at(2)), Some((at(10), Some(at(15))))));
    }

    #[test]
    fn memory_is_bounded() {
        let mut seen = Occupancy::default();
        for number in 0..PAST_MAX as u32 + 10 {
            seen.follow(&record(JobPhase::Running, number + 1, u64::from(number), &[0]));
        }
        assert_eq!((seen.past().count(), seen.held().len()), (PAST_MAX, 1));
    }
}
