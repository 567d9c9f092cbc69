//! What Slurm's accounting exports: `sacct -P`, columns between `|` under a header.
//!
//! ```sh
//! sacct -aPX -S 2024-05-01 -E 2024-06-01 \
//!   -o JobID,JobName,User,Submit,Eligible,Start,End,Elapsed,State,AllocTRES,ReqTRES,NNodes
//! ```
//!
//! Any of sacct's fields may stand there, in any order (slurm.schedmd.com/sacct.html). A job is
//! its own row; its steps (`123.batch`, `123.extern`, `123.0`) are parts of it. A job that never
//! ran left no length, and one that still ran has only run so far; both are said. Jobs of one user
//! with one name are runs of the same thing. What a job computed Slurm does not know: its workload
//! is drawn.

use std::time::Duration;

use super::TraceJob;
use super::format::{CSV, Format};
use super::row::{Odd, Row, fit_id, span};
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

/// Whether these cells are a job's and no header: a job's number stands first or so, a column's name
/// nowhere.
pub(super) fn is_row(cells: &[String]) -> bool {
    let number = |cell: &String| cell.starts_with(|c: char| c.is_ascii_digit());
    cells.len() > 2 && cells.iter().any(number) && !cells.iter().any(|cell| FORMAT.reads(cell))
}

fn row(row: &Row<'_>, odd: &mut Odd) -> Result<TraceJob, String> {
    let id = row.needed("JobID")?;
    if id.contains('.') {
        return Err("it is a step, which is part of its job".to_owned());
    }
    let state = row.text("State").and_then(|state| state.split_whitespace().next()).unwrap_or("");
    let started = row.text("Start").map(instant);
    let never = |cell: &Option<Result<Option<Duration>, _>>| matches!(cell, Some(Ok(None)));
    if id.contains('[') || state == "PENDING" || never(&started) {
        return Err("it never ran".to_owned());
    }
    let submit = known("Submit", instant(row.needed("Submit")?))?.ok_or("Submit is unknown")?;
    // A job that had to wait for another one, or for a time, could not have begun before.
    let eligible = match row.text("Eligible").map(instant) {
        Some(Ok(Some(at))) if at > submit => {
            odd.say("became eligible after the submission, and so arrived then");
            at
        }
        _ => submit,
    };
    let duration = duration(row, state, started, odd)?;
    let Gpus { count, kind } = gpus(row)?;
    if count == 0 {
        return Err("it had no GPU".to_owned());
    }
    if kind.as_ref().is_some_and(|kind| kind.contains("g.")) {
        odd.say("had slices of GPUs, which count as whole ones");
    }
    let id = fit_id(id).ok_or("JobID is longer than an id may be")?;
    let mut job = TraceJob::new(id, eligible, duration, count);
    job.user = row.text("User").map(str::to_owned);
    let name = row.text("JobName");
    job.recurs_as = job.user.as_ref().zip(name).map(|(user, name)| format!("{user}/{name}"));
    job.gpu_type = kind;
    Ok(job)
}

fn known<T>(column: &str, cell: Result<T, String>) -> Result<T, String> {
    cell.map_err(|problem| format!("{column} {problem}"))
}

/// How long it ran.
fn duration(
    row: &Row<'_>,
    state: &str,
    started: Option<Result<Option<Duration>, String>>,
    odd: &mut Odd,
) -> Result<Duration, String> {
    let ended = row.text("End").map(instant);
    let running =
        matches!(state, "RUNNING" | "SUSPENDED" | "COMPLETING") || matches!(ended, Some(Ok(None)));
    let ran = if let Some(raw) = row.text("ElapsedRaw") {
        let seconds: f64 = raw.parse().map_err(|_| "ElapsedRaw is no number")?;
        span(seconds).ok_or("ElapsedRaw is negative or no time")?
    } else if let Some(text) = row.text("Elapsed") {
        known("Elapsed", elapsed(text))?
    } else {
        let start = known("Start", started.unwrap_or(Ok(None)))?.ok_or("Start is not there")?;
        let end = known("End", ended.unwrap_or(Ok(None)))?.ok_or("it has not ended")?;
        end.checked_sub(start).ok_or("End is before Start")?
    };
    if ran.is_zero() {
        return Err("it never ran".to_owned());
    }
    if running {
        odd.say("still ran and count as ended when the table was made");
    }
    Ok(ran)
}

/// Its GPUs: what it got, or else what it asked for. The older columns count those of a node.
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
