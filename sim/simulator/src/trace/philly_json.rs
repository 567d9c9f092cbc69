//! Microsoft's Philly jobs as they were published: `cluster_job_log`, a JSON array of jobs with their attempts
//! (github.com/msr-fiddle/philly-traces; Jeon et al., ATC'19).
//!
//! Each attempt with a start, an end and GPUs is a run of its own on its servers; the first arrives at
//! `submitted_time`, each later one when the attempt before it ended. Times are local times without an offset.

use csv::StringRecord;
use serde::Deserialize;

use super::format::{CSV, Format};
use super::row::{Row, RowNotes, fit_id};
use super::slurm_cells::instant;
use super::{RowError, TraceJob};

pub(super) static FORMAT: Format = Format {
    name: "Philly cluster_job_log",
    key: "philly",
    calendar: true,
    headless: &["jobid", "vc", "user", "status", "submitted", "start", "end", "gpus", "servers"],
    row,
    repeats: true,
    json: Some(records),
    ..CSV
};

#[derive(Deserialize)]
struct Job {
    jobid: String,
    #[serde(default)]
    vc: Option<String>,
    #[serde(default)]
    user: Option<String>,
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    submitted_time: Option<String>,
    #[serde(default)]
    attempts: Vec<Attempt>,
}

#[derive(Deserialize)]
struct Attempt {
    #[serde(default)]
    start_time: Option<String>,
    #[serde(default)]
    end_time: Option<String>,
    #[serde(default)]
    detail: Vec<Server>,
}

#[derive(Deserialize)]
struct Server {
    ip: String,
    #[serde(default)]
    gpus: Vec<String>,
}

/// One record for each attempt, and one without GPUs for a job that never ran.
fn records(object: &[u8]) -> Result<Vec<StringRecord>, RowError> {
    let job: Job = serde_json::from_slice(object).map_err(|error| RowError::json(&error))?;
    let plain = |text: &Option<String>| text.clone().unwrap_or_default();
    let record = |attempt: Option<&Attempt>| {
        let servers = attempt.map_or(&[][..], |attempt| &attempt.detail);
        let gpus: usize = servers.iter().map(|server| server.gpus.len()).sum();
        let names: Vec<&str> = servers.iter().map(|server| server.ip.as_str()).collect();
        StringRecord::from(vec![
            job.jobid.clone(),
            plain(&job.vc),
            plain(&job.user),
            plain(&job.status),
            plain(&job.submitted_time),
            attempt.map_or(String::new(), |attempt| plain(&attempt.start_time)),
            attempt.map_or(String::new(), |attempt| plain(&attempt.end_time)),
            gpus.to_string(),
            names.join(" "),
        ])
    };
    if job.attempts.is_empty() {
        return Ok(vec![record(None)]);
    }
    Ok(job.attempts.iter().map(|attempt| record(Some(attempt))).collect())
}

fn row(row: &Row<'_>, notes: &mut RowNotes) -> Result<TraceJob, RowError> {
    let mut known = |column| {
        let cell = row.text(column).ok_or(RowError::Unknown(column))?;
        instant(column, cell, notes)
            .map_err(|_| RowError::NotATime(column))?
            .ok_or(RowError::Unknown(column))
    };
    let times = [known("submitted"), known("start"), known("end")];
    let gpus = match row.gpus("gpus") {
        Err(RowError::Zero(_)) => return Err(RowError::NoGpu),
        other => other?,
    };
    let [submit, start, end] = times;
    let (submit, start, end) = (submit?, start?, end?);
    let duration = end.checked_sub(start).ok_or(RowError::EndBeforeStart)?;
    if duration.is_zero() {
        return Err(RowError::NeverRan);
    }
    notes.has_end = true;
    match row.text("status") {
        Some("Killed") => notes.add("with status Killed, replayed for the time of the run"),
        Some("Failed") => notes.add("with status Failed, replayed for the time of the run"),
        _ => {}
    }
    let id = fit_id(row.required("jobid")?).ok_or(RowError::IdTooLong("jobid"))?;
    let node_names: Vec<String> =
        row.text("servers").unwrap_or_default().split(' ').map(str::to_owned).collect();
    Ok(TraceJob {
        user: row.text("user").or_else(|| row.text("vc")).map(str::to_owned),
        account: row.text("vc").map(str::to_owned),
        started: Some(start),
        ended: Some(end),
        nodes: u32::try_from(node_names.len()).ok(),
        node_names,
        ..TraceJob::new(id, submit, duration, gpus)
    })
}
