//! Rows of one JobID: the runs of a requeued or resized job, or jobs that use a number again.
//!
//! Slurm adds a row for each run. A requeue resets the submission (sacct, field `Submit`), and two
//! jobs with one number have different submissions too. Each run is replayed as a job of its own, so that
//! GPU time and energy are those that were used. A run whose row repeats the submission of the first
//! one arrives when the run before it ended. The same run in two rows, as in exports of overlapping
//! periods, is read once, from the row with the later end.

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::JobId;

use super::row::fit_id;
use super::{ROUNDING, RowError, TraceJob};

const OVERLAP: &str = "that overlaps another run of its JobID, so that two clusters may be in the export; \
                       export one (sacct -M), or add the column Cluster";

/// One job as read, with its line and the notes on it.
pub(super) struct ReadJob {
    pub(super) job: TraceJob,
    pub(super) line: u64,
    pub(super) notes: Vec<&'static str>,
    /// Whether its times are local ones, without an offset.
    pub(super) is_local: bool,
    /// Whether its duration is stated besides its start and end.
    pub(super) has_duration: bool,
    /// Whether its end is stated; otherwise it is the start plus the duration.
    pub(super) has_end: bool,
}

/// Gives each run of a repeated id its own id and submission. `leave_out` receives the reason and
/// the line of each row that is left out.
pub(super) fn separate(
    jobs: Vec<ReadJob>,
    mut leave_out: impl FnMut(&RowError, u64),
) -> Vec<ReadJob> {
    let mut runs: BTreeMap<JobId, Vec<usize>> = BTreeMap::new();
    for (i, read) in jobs.iter().enumerate() {
        runs.entry(read.job.id.clone()).or_default().push(i);
    }
    runs.retain(|_, rows| rows.len() > 1);
    let mut jobs: Vec<Option<ReadJob>> = jobs.into_iter().map(Some).collect();
    for (id, mut rows) in runs {
        let ended = |read: &ReadJob| read.job.ended.unwrap_or(read.job.duration);
        let start = |read: &ReadJob| read.job.started.unwrap_or(read.job.submit);
        // Sorted by start; of the same run, the row with the later end is last.
        rows.sort_by_key(|&row| jobs[row].as_ref().map(|read| (start(read), ended(read))));
        let mut before: Option<(Duration, Duration)> = None;
        let mut number = 1;
        for (i, &row) in rows.iter().enumerate() {
            let next = rows.get(i + 1).and_then(|&next| jobs[next].as_ref()).map(start);
            let Some(read) = jobs[row].as_mut() else { continue };
            if next == Some(start(read)) {
                leave_out(&RowError::DuplicateRun, read.line);
                jobs[row] = None;
                continue;
            }
            if let Some((submit, end)) = before {
                number += 1;
                if start(read) + ROUNDING < end {
                    read.notes.push(OVERLAP);
                }
                let run = fit_id(&format!("{id}-run{number}"));
                let Some(run) = run else {
                    leave_out(&RowError::IdTooLong("JobID"), read.line);
                    jobs[row] = None;
                    continue;
                };
                read.job.id = run;
                read.notes.push("read as a further run of the JobID, a job of its own");
                if read.job.submit <= submit {
                    let started = start(read);
                    read.job.submit = end.min(started).max(read.job.submit);
                }
            }
            before = Some((read.job.submit, ended(read)));
        }
    }
    jobs.into_iter().flatten().collect()
}
