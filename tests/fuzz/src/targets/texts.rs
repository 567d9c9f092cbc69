//! Targets of a single parser: telemetry, subjects, traces, accounting files, progress lines, submissions.

use wattle_common::Timestamp;
use wattle_common::bounds::check_progress_line;
use wattle_common::codec::{decode_telemetry, encode_telemetry};
use wattle_common::id::{JobId, NodeId, UserId};
use wattle_common::progress::Progress;
use wattle_common::subject::{PredictorKey, Reporter, Subject};
use wattle_web::submission::{Form, Submission};

pub(super) const SUBJECT_WORDS: &[&str] = &[
    ".",
    "*",
    ">",
    ".v1.",
    "main",
    "gpu.sampled",
    "job.submitted",
    "user",
    "operator",
    "local",
    "n0",
    "power.",
    "status.",
    "window.closed",
    "order.recorded",
];

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Telemetry is read again as it was written.
pub(super) fn codec(bytes: &[u8]) {
    if let Ok(batch) = decode_telemetry(bytes) {
        let again = decode_telemetry(&encode_telemetry(&batch)).expect("written telemetry is read");
        assert_eq!(again, batch);
    }
}

/// Each line is a subject, a key or an id; what is read is written as it was.
pub(super) fn subjects(bytes: &[u8]) {
    for line in text(bytes).lines() {
        if let Ok(subject) = line.parse::<Subject>() {
            assert_eq!(subject.to_string(), line);
        }
        if let Some((reporter, node)) = Reporter::parse(line) {
            assert_eq!(reporter.key(&node), line);
        }
        if let Some(key) = PredictorKey::parse(line) {
            assert_eq!(key.to_string(), line);
        }
        for id in [
            JobId::new(line).map(|id| id.to_string()),
            NodeId::new(line).map(|id| id.to_string()),
            UserId::new(line).map(|id| id.to_string()),
        ]
        .into_iter()
        .flatten()
        {
            assert!(id == line && !id.contains(['.', '*', '>', ' ']), "{id}");
        }
    }
}

/// A trace of any format: read, or a clear error of one line.
pub(super) fn traces(bytes: &[u8]) {
    for format in wattle_simulator::trace::formats().map(Some).chain([None]) {
        read(bytes, format);
    }
}

/// Slurm's accounting file.
pub(super) fn sacct(bytes: &[u8]) {
    read(bytes, Some("sacct"));
}

fn read(bytes: &[u8], format: Option<&str>) {
    match wattle_simulator::trace::parse_as("trace", bytes, format) {
        Ok(trace) => {
            for job in &trace.jobs {
                let sum = job.submit.checked_add(job.duration);
                assert!(sum.is_some(), "times of a job overflow: {job:?}");
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A progress line: read again as it was written.
pub(super) fn progress(bytes: &[u8]) {
    if let Ok(line) = Progress::parse(bytes) {
        let _ = check_progress_line(&line);
        let again = Progress::parse(line.to_string().as_bytes());
        assert_eq!(again.as_ref(), Ok(&line));
    }
}

/// A form without an error makes a request, and its command has a program.
pub(super) fn submission(bytes: &[u8]) {
    let text = text(bytes);
    let command = Form { command: text.clone(), ..Form::default() };
    let read = serde_json::from_str::<Submission>(&text).ok();
    let by_command = Submission { form: command, number: "1".to_owned(), person: None };
    for submission in read.into_iter().chain([by_command]) {
        let review = submission.form.review();
        if let Ok(request) = submission.request(None, Timestamp::EPOCH) {
            assert!(review.errors.is_empty(), "{review:?}");
            assert_eq!(request.spec.command, review.words);
            assert!(!request.spec.command[0].is_empty());
        }
    }
}
