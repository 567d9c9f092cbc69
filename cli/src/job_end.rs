//! The end of a job for which `wattle submit --wait` and `wattle cancel --wait` wait.

use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;
use wattle_common::JobId;
use wattle_common::job::JobPhase;
use wattle_common::messages::{JobRecord, ReachedLimit, Reply};
use wattle_runtime::bus::Bus;

use crate::job_records;
use crate::output::{note, print_json};
use crate::wait::Wait;

/// Exit code for a job that ended without an exit code of its own: it was cancelled, or did not start.
pub(crate) const NO_EXIT_CODE: u8 = 125;

/// Longest time without a record of an accepted job, wall time: a server that follows another one may not have
/// it yet, and a placer stores it again after a loss.
const MISSING_MAX: Duration = Duration::from_secs(30);

/// The phase of a job as a sentence: `t-1 has finished`.
pub(crate) fn phase(record: &JobRecord) -> String {
    let verb = match record.phase {
        JobPhase::Finished | JobPhase::Failed => "has",
        JobPhase::Cancelled => "was",
        _ => "is",
    };
    format!("{} {verb} {}", record.spec.job, record.phase)
}

/// The phase of an ended job, and why it failed.
pub(crate) fn text(record: &JobRecord) -> String {
    match &record.error {
        Some(error) => format!("{}: {error}", phase(record)),
        None => phase(record),
    }
}

/// The exit code of `wattle submit --wait`: that of the job.
pub(crate) fn exit_code(record: &JobRecord) -> u8 {
    match (record.phase, record.exit_code) {
        (JobPhase::Finished, _) => 0,
        (JobPhase::Failed, Some(code)) => {
            u8::try_from(code).ok().filter(|code| *code > 0).unwrap_or(NO_EXIT_CODE)
        }
        _ => NO_EXIT_CODE,
    }
}

/// The answer to a request, with the last known state of its job.
#[derive(Serialize)]
struct Waited<'a> {
    #[serde(flatten)]
    reply: &'a Reply,
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<JobPhase>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<ReachedLimit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

/// Waits until the job of an accepted request has ended. With `json` its last known state is printed, whatever
/// ends the wait.
///
/// # Errors
/// As [`Wait::until`], or if the job has no record any more.
pub(crate) async fn until_ended(
    bus: &Bus,
    job: &JobId,
    reply: &Reply,
    wait: &Wait<'_>,
    json: bool,
) -> anyhow::Result<JobRecord> {
    note(&format!("waiting for the end of {job}; Ctrl-C ends only the wait"));
    let mut last: Option<JobRecord> = None;
    let mut seen_at = Instant::now();
    let waited = wait
        .until(async || {
            let found = job_records::look(bus, job).await;
            if found.is_err() {
                // While the server is away nothing is missing.
                seen_at = Instant::now();
            }
            match found? {
                Some(record) => {
                    seen_at = Instant::now();
                    last = Some(record);
                }
                None if seen_at.elapsed() < MISSING_MAX => return Ok(None),
                None => anyhow::bail!(
                    "{job} has no record any more: the server has lost it, or it ended and was removed \
                     (ended_kept in the placer's configuration)"
                ),
            }
            Ok(last.clone().filter(|record| record.phase.is_final()))
        })
        .await;
    if json {
        let last = last.as_ref();
        print_json(&Waited {
            reply,
            phase: last.map(|record| record.phase),
            exit_code: last.and_then(|record| record.exit_code),
            limit: last.and_then(|record| record.limit),
            error: last.and_then(|record| record.error.as_deref()),
        })?;
    }
    let ended = waited?;
    note(&text(&ended));
    Ok(ended)
}

#[cfg(test)]
mod tests {
    use wattle_testkit::{job_record, job_spec};

    use super::*;

    fn ended(phase: JobPhase, exit_code: Option<i32>, error: Option<&str>) -> JobRecord {
        let error = error.map(str::to_owned);
        JobRecord { exit_code, error, ..job_record(job_spec("t-1", 1), phase) }
    }

    #[test]
    fn the_exit_code_is_that_of_the_job() {
        for (phase, code, expected) in [
            (JobPhase::Finished, Some(0), 0),
            (JobPhase::Finished, None, 0),
            (JobPhase::Failed, Some(3), 3),
            (JobPhase::Failed, Some(137), 137),
            (JobPhase::Failed, Some(255), 255),
            // A code that no process can have, and one that would mean success.
            (JobPhase::Failed, Some(256), NO_EXIT_CODE),
            (JobPhase::Failed, Some(-1), NO_EXIT_CODE),
            (JobPhase::Failed, Some(0), NO_EXIT_CODE),
            (JobPhase::Failed, None, NO_EXIT_CODE),
            (JobPhase::Cancelled, None, NO_EXIT_CODE),
            (JobPhase::Cancelled, Some(0), NO_EXIT_CODE),
        ] {
            assert_eq!(exit_code(&ended(phase, code, None)), expected, "{phase} {code:?}");
        }
    }

    #[test]
    fn the_end_is_stated_with_its_cause() {
        assert_eq!(text(&ended(JobPhase::Finished, Some(0), None)), "t-1 has finished");
        assert_eq!(text(&ended(JobPhase::Cancelled, None, None)), "t-1 was cancelled");
        let failed = ended(JobPhase::Failed, Some(3), Some("exit code 3 on n0"));
        assert_eq!(text(&failed), "t-1 has failed: exit code 3 on n0");
    }

    #[test]
    fn json_has_the_answer_and_the_end() {
        let reply = Reply::Accepted { job: JobId::new("t-1").unwrap(), generation: 1 };
        let waited = Waited {
            reply: &reply,
            phase: Some(JobPhase::Failed),
            exit_code: Some(3),
            limit: None,
            error: Some("exit code 3"),
        };
        let expected = serde_json::json!({
            "result": "accepted", "job": "t-1", "generation": 1, "phase": "failed", "exit_code": 3,
            "error": "exit code 3"
        });
        assert_eq!(serde_json::to_value(&waited).unwrap(), expected);
    }
}
