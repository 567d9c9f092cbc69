//! The export of Slurm's accounting, `sacct -P`: columns separated by `|`, with a header.
//!
//! ```sh
//! sacct -aPX -S 2024-05-01 -E 2024-06-01 \
//!   -o JobID,JobName,User,Submit,Eligible,Start,End,Elapsed,State,AllocTRES,ReqTRES,NNodes
//! ```
//!
//! Any of sacct's fields may be present, in any order (slurm.schedmd.com/sacct.html). Rows of steps
//! (`123.batch`, `123.extern`, `123.0`) are skipped. A job that never ran has no duration and is
//! left out; a job that was still running has its duration so far; both are noted. Jobs of one user
//! with one name are recurring. Slurm does not record workloads; they are drawn.

use std::time::Duration;

use super::TraceJob;
use super::format::{CSV, Format};
use super::row::{Row, RowNotes, fit_id, span};
use super::slurm_cells::{Gpus, elapsed, gres, instant, tres};

pub(super) static FORMAT: Format = Format {
    name: "Slurm sacct -P",
    key: "sacct",
    delimiter: b'|',
    calendar: true,
    required: &["JobID", "Submit"],
    one_of: &[&["Elapsed", "ElapsedRaw", "End"], &["AllocTRES", "ReqTRES", "AllocGRES", "ReqGRES"]],
    optional: &[
        "JobName",
        "User",
        "Eligible",
        "Start",
        "State",
        "NNodes",
        "AllocNodes",
        "ReqNodes",
    ],
    row,
    ..CSV
};

/// Whether these cells are a job's and not a header: one starts with a digit, and none is a column
/// name.
pub(super) fn is_row(cells: &[String]) -> bool {
    let number = |cell: &String| cell.starts_with(|c: char| c.is_ascii_digit());
    cells.len() > 2 && cells.iter().any(number) && !cells.iter().any(|cell| FORMAT.reads(cell))
}

fn row(row: &Row<'_>, notes: &mut RowNotes) -> Result<TraceJob, String> {
    let id = row.required("JobID")?;
    if id.contains('.') {
        return Err("it is a step of a job".to_owned());
    }
    let state = row.text("State").and_then(|state| state.split_whitespace().next()).unwrap_or("");
    let started = row.text("Start").map(instant);
    let never = |cell: &Option<Result<Option<Duration>, _>>| matches!(cell, Some(Ok(None)));
    if id.contains('[') || state == "PENDING" || never(&started) {
        return Err("it never ran".to_owned());
    }
    let submit = known("Submit", instant(row.required("Submit")?))?.ok_or("Submit is unknown")?;
    // A job with a dependency or a begin time could not have started earlier.
    let eligible = match row.text("Eligible").map(instant) {
        Some(Ok(Some(at))) if at > submit => {
            notes.add("eligible after the submission, submitted at that time");
            at
        }
        _ => submit,
    };
    let started_at = started.clone().and_then(Result::ok).flatten();
    let duration = duration(row, state, started, notes)?;
    let Gpus { count, kind } = gpus(row)?;
    if count == 0 {
        return Err("it had no GPU".to_owned());
    }
    if kind.as_ref().is_some_and(|kind| kind.contains("g.")) {
        notes.add("with slices of GPUs, counted as full GPUs");
    }
    let id = fit_id(id).ok_or("JobID is longer than an id allows")?;
    let mut job = TraceJob::new(id, eligible, duration, count);
    job.user = row.text("User").map(str::to_owned);
    let name = row.text("JobName");
    job.recurs_as = job.user.as_ref().zip(name).map(|(user, name)| format!("{user}/{name}"));
    job.gpu_type = kind;
    job.started = started_at;
    // A running job ends at the time of the export.
    let ended = row.text("End").map(instant).and_then(Result::ok).flatten();
    job.ended = ended.or(started_at.map(|start| start + duration));
    Ok(job)
}

fn known<T>(column: &str, cell: Result<T, String>) -> Result<T, String> {
    cell.map_err(|problem| format!("{column} {problem}"))
}

/// The job's duration.
fn duration(
    row: &Row<'_>,
    state: &str,
    started: Option<Result<Option<Duration>, String>>,
    notes: &mut RowNotes,
) -> Result<Duration, String> {
    let ended = row.text("End").map(instant);
    let running =
        matches!(state, "RUNNING" | "SUSPENDED" | "COMPLETING") || matches!(ended, Some(Ok(None)));
    let ran = if let Some(raw) = row.text("ElapsedRaw") {
        let seconds: f64 = raw.parse().map_err(|_| "ElapsedRaw is not a number")?;
        span(seconds).ok_or("ElapsedRaw is negative or not a time")?
    } else if let Some(text) = row.text("Elapsed") {
        known("Elapsed", elapsed(text))?
    } else {
        let start = known("Start", started.unwrap_or(Ok(None)))?.ok_or("Start is missing")?;
        let end = known("End", ended.unwrap_or(Ok(None)))?.ok_or("it has not ended")?;
        end.checked_sub(start).ok_or("End is before Start")?
    };
    if ran.is_zero() {
        return Err("it never ran".to_owned());
    }
    if running {
        notes.add("still running, read as ended at the time of the export");
    }
    Ok(ran)
}

/// The allocated GPUs, else the requested ones. The older GRES columns count GPUs per node.
fn gpus(row: &Row<'_>) -> Result<Gpus, String> {
    for column in ["AllocTRES", "ReqTRES"] {
        if let Some(cell) = row.text(column) {
            let gpus = known(column, tres(cell))?;
            if gpus.count > 0 {
                return Ok(gpus);
            }
        }
    }
    let nodes = ["AllocNodes", "NNodes", "ReqNodes"].iter().find_map(|column| row.count(column));
    for column in ["AllocGRES", "ReqGRES"] {
        if let Some(cell) = row.text(column) {
            let gpus = known(column, gres(cell))?;
            let count = u64::from(gpus.count) * nodes.unwrap_or(1);
            if count > 0 {
                let count = u32::try_from(count).map_err(|_| format!("{column} is too large"))?;
                return Ok(Gpus { count, kind: gpus.kind });
            }
        }
    }
    Ok(Gpus { count: 0, kind: None })
}
