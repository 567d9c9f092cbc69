//! The format of Chronus' simulator (github.com/S-Lab-System-Group/ChronusArtifact): Tiresias'
//! columns, a user, and deadlines.
//!
//! Times are minutes. Nothing in the artifact says so, its traces do: submissions end 9 minutes
//! short of two weeks and no job is longer than three days, and its lease term of 60 is an hour.
//! `expect_time_list` is the time allowed from the submission on, or several of them joined by `-`,
//! of which the first counts, as there. A `best` job has its submission in that column, which
//! means nothing; `iterations`, `interval`, the value of being done in time and `best_effort`,
//! which repeats `job_type`, are not used.

use super::format::{CSV, Format};
use super::row::{Odd, Row, span};
use super::{DeadlineKind, TraceJob};

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

fn row(row: &Row<'_>, odd: &mut Odd) -> Result<TraceJob, String> {
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
            odd.say("had a job_type other than strict, soft and best, and count as best");
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
            _ => odd.say("had no time in expect_time_list, and so no deadline"),
        }
    }
    Ok(job)
}
