//! The format of Chronus' simulator (github.com/S-Lab-System-Group/ChronusArtifact): Tiresias'
//! columns, a user, and deadlines.
//!
//! Times are minutes. The artifact does not document this, but its traces show it: submissions end
//! 9 minutes before two weeks, no job is longer than three days, and its lease term of 60 is an
//! hour. `expect_time_list` is the allowed time after submission, or several values joined by `-`,
//! of which the first is used, as in the simulator. For a `best` job the column repeats the
//! submission time and is ignored. `iterations`, `interval`, `expect_value_list` and `best_effort`
//! are not used.

use super::format::{CSV, Format};
use super::row::{Row, RowNotes, span};
use super::{DeadlineKind, RowError, TraceJob};

const MINUTE: u32 = 60;

pub(super) static FORMAT: Format = Format {
    name: "Chronus",
    key: "chronus",
    required: &[
        "job_id",
        "user",
        "num_gpu",
        "submit_time",
        "model_name",
        "duration",
        "expect_time_list",
        "job_type",
    ],
    optional: &["iterations", "interval", "expect_value_list", "best_effort"],
    row,
    ..CSV
};

fn row(row: &Row<'_>, notes: &mut RowNotes) -> Result<TraceJob, RowError> {
    let minutes = |column| row.seconds(column).map(|minutes| minutes.saturating_mul(MINUTE));
    let (id, submit) = (row.id("job_id")?, minutes("submit_time")?);
    let mut job = TraceJob::new(id, submit, minutes("duration")?, row.gpus("num_gpu")?);
    job.user = row.text("user").map(str::to_owned);
    job.model = row.text("model_name").map(str::to_owned);
    job.deadline_kind = match row.text("job_type") {
        Some("strict") => DeadlineKind::Strict,
        Some("soft") => DeadlineKind::Soft,
        Some("best") => DeadlineKind::BestEffort,
        _ => {
            notes.add("with a job_type other than strict, soft and best, read as best");
            DeadlineKind::BestEffort
        }
    };
    if job.deadline_kind != DeadlineKind::BestEffort {
        let first = row.text("expect_time_list").and_then(|list| list.split('-').next());
        match first.and_then(|text| text.parse::<u64>().ok()) {
            Some(allowed) if allowed > 0 => {
                let allowed = span(allowed as f64 * f64::from(MINUTE));
                job.deadline = allowed.map(|allowed| submit + allowed);
            }
            _ => notes.add("without a time in expect_time_list, read as without a deadline"),
        }
    }
    Ok(job)
}
