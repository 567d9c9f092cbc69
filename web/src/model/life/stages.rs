//! What a job does over its life: it waits, starts and runs.

use wattle_common::Timestamp;
use wattle_common::job::JobPhase;
use wattle_common::messages::JobRecord;
use wattle_common::messages::job_record::WAITS;

use super::Life;

/// What the job does over a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It waits for GPUs.
    Waits,
    /// It waits, then its processes start; when it got its GPUs is not known.
    WaitsOrStarts,
    /// It has GPUs, and its processes start.
    Starts,
    /// It runs.
    Runs,
    /// Not known: no window is of this time.
    Unknown,
}

/// A stage of the life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// What the job does.
    pub doing: Doing,
    /// Beginning.
    pub from: Timestamp,
    /// End; `None`: it continues.
    pub until: Option<Timestamp>,
    /// The number of the start, of a stage with GPUs.
    pub attempt: Option<u32>,
}

impl Life {
    /// The stages of the life: between two starts the job waits until the decision that placed it.
    #[must_use]
    pub fn stages(&self, record: &JobRecord) -> Vec<Stage> {
        let mut stages = Stages { stages: Vec::new(), at: record.spec.submitted_at_us };
        for start in &self.starts {
            stages.wait(record, start.from, start.attempt);
            stages.until(Doing::Runs, Some(start.until), Some(start.attempt));
        }
        let last = self.starts.last().map(|start| start.attempt);
        let since = record.phase_since_us;
        let is_last = last == Some(record.attempt);
        match record.phase {
            JobPhase::Queued => {
                if is_last {
                    stages.until(Doing::Runs, Some(since), last);
                }
                stages.until(Doing::Waits, None, None);
            }
            JobPhase::Starting => {
                stages.until(Doing::Waits, Some(since), None);
                stages.until(Doing::Starts, None, Some(record.attempt));
            }
            // Its next window is not closed yet.
            JobPhase::Running | JobPhase::Stopping if is_last => {
                stages.until(Doing::Runs, None, last);
            }
            JobPhase::Running => {
                stages.wait(record, since, record.attempt);
                stages.until(Doing::Runs, None, Some(record.attempt));
            }
            JobPhase::Stopping => stages.until(Doing::Unknown, None, None),
            JobPhase::Finished | JobPhase::Failed if is_last => {
                stages.until(Doing::Runs, record.ended_at_us, last);
            }
            // It may have been cancelled while it ran or while it waited.
            JobPhase::Finished | JobPhase::Failed | JobPhase::Cancelled => {
                let doing = if record.attempt == 0 { Doing::Waits } else { Doing::Unknown };
                stages.until(doing, record.ended_at_us, None);
            }
        }
        stages.stages
    }
}

/// Stages that follow each other.
struct Stages {
    stages: Vec<Stage>,
    /// End of the last one.
    at: Timestamp,
}

impl Stages {
    /// Adds a stage from the end of the last one on; none if it ended before.
    fn until(&mut self, doing: Doing, until: Option<Timestamp>, attempt: Option<u32>) {
        if until.is_some_and(|until| until <= self.at) {
            return;
        }
        // The end of a start is that of its last window, or later.
        match self.stages.last_mut().filter(|last| (last.doing, last.attempt) == (doing, attempt)) {
            Some(last) => last.until = until,
            None => self.stages.push(Stage { doing, from: self.at, until, attempt }),
        }
        self.at = until.unwrap_or(self.at);
    }

    /// Adds the wait before a start: the last decision before it, which is no reason to wait, placed the job.
    fn wait(&mut self, record: &JobRecord, runs: Timestamp, attempt: u32) {
        let decided = record.reasons.iter().filter(|one| one.decision != WAITS);
        let placed = decided.map(|one| one.at_us).filter(|at| (self.at..=runs).contains(at)).max();
        match placed {
            Some(placed) => {
                self.until(Doing::Waits, Some(placed), None);
                self.until(Doing::Starts, Some(runs), Some(attempt));
            }
            None => self.until(Doing::WaitsOrStarts, Some(runs), None),
        }
    }
}

#[cfg(test)]
mod tests {
    use wattle_common::messages::RecordedReason;
    use wattle_testkit as testkit;

    use super::*;
    use crate::model::life::tests::{at, window};

    fn record(phase: JobPhase, attempt: u32, since_s: u64) -> JobRecord {
        let mut spec = testkit::job_spec("a", 1);
        spec.submitted_at_us = at(10);
        let reason = |(decision, s): (&str, u64)| -> RecordedReason {
            let at_us = at(s);
            let text = serde_json::json!({ "at_us": at_us, "policy": "wattle", "decision": decision, "reason": "" });
            serde_json::from_value(text).unwrap()
        };
        let reasons = [(WAITS, 10), ("placed on n0:0", 90), ("taken off n0:0", 155), (WAITS, 200)];
        JobRecord {
            attempt,
            phase_since_us: at(since_s),
            reasons: reasons.into_iter().chain([("placed on n0:1", 290)]).map(reason).collect(),
            ..testkit::job_record(spec, phase)
        }
    }

    fn stages(life: &Life, record: &JobRecord) -> String {
        let stage = |stage: &Stage| {
            let until = stage.until.map_or_else(String::new, |until| format!("{}", until.as_s()));
            format!("{:?} {}-{until}", stage.doing, stage.from.as_s())
        };
        life.stages(record).iter().map(stage).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn a_job_waits_between_its_starts() {
        let life = Life::of(&[window(1, 100, 160), window(2, 300, 360)]);
        let before = "Waits 10-90, Starts 90-100, Runs 100-160, Waits 160-290, Starts 290-300, ";
        let is = |phase, attempt, since_s, rest: &str| {
            let found = stages(&life, &record(phase, attempt, since_s));
            assert_eq!(found, format!("{before}{rest}"), "{phase}");
        };
        is(JobPhase::Running, 2, 302, "Runs 300-");
        is(JobPhase::Queued, 2, 362, "Runs 300-362, Waits 362-");
        is(JobPhase::Starting, 3, 400, "Runs 300-360, Waits 360-400, Starts 400-");
        is(JobPhase::Running, 3, 410, "Runs 300-360, WaitsOrStarts 360-410, Runs 410-");
        let ended = JobRecord { ended_at_us: Some(at(365)), ..record(JobPhase::Finished, 2, 365) };
        assert_eq!(stages(&life, &ended), format!("{before}Runs 300-365"));
        let ended = JobRecord { phase: JobPhase::Cancelled, ..ended };
        assert_eq!(stages(&life, &ended), format!("{before}Runs 300-360, Unknown 360-365"));
    }

    #[test]
    fn a_job_without_a_window_waits() {
        let mut waits = record(JobPhase::Queued, 0, 10);
        assert_eq!(stages(&Life::default(), &waits), "Waits 10-");
        (waits.phase, waits.ended_at_us) = (JobPhase::Cancelled, Some(at(50)));
        assert_eq!(stages(&Life::default(), &waits), "Waits 10-50");
        // Its reasons are dropped, and its first window is not closed.
        let mut runs = record(JobPhase::Running, 1, 95);
        runs.reasons.clear();
        assert_eq!(stages(&Life::default(), &runs), "WaitsOrStarts 10-95, Runs 95-");
    }
}
