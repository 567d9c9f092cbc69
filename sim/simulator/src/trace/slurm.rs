//! The export of Slurm's accounting, `sacct -P` (slurm.schedmd.com/sacct.html, version 25.11).
//!
//! ```sh
//! SLURM_TIME_FORMAT=%s sacct -aDPX -S 2024-05-06 -E 2024-05-13 \
//!   -o JobID,JobName,User,Partition,Submit,Eligible,Start,End,Elapsed,State,ReqTRES,AllocTRES,NNodes,NodeList
//! ```
//!
//! `-a` is all users, `-X` leaves out steps, `-P` separates columns by `|`, and `-D` includes every
//! run of a requeued job: without it sacct lists the last run only, and since a requeue resets the
//! submission, the earlier runs and their energy are missing. Any of sacct's fields may be present,
//! in any order. A file without a header is read if its rows have exactly the columns above.
//!
//! Rules, each reported in a note:
//!
//! | row | replayed as |
//! |---|---|
//! | `COMPLETED` | a job with the time it ran |
//! | `FAILED`, `OUT_OF_MEMORY`, `TIMEOUT`, `DEADLINE`, `NODE_FAIL`, `PREEMPTED`, `REQUEUED`, `CANCELLED` after its start | the same: it used its GPUs for that time |
//! | running, suspended or completing | a job that ends at the time of the export |
//! | pending, or `CANCELLED` before its start | left out |
//! | `BOOT_FAIL` (its nodes did not boot), `REVOKED` (ran on another cluster of the federation) | left out |
//! | `123_4`, a task of an array; `123+1`, a component of a heterogeneous job | a job of its own |
//! | `123_[5-9%2]`, tasks that have not started | left out |
//! | `123.batch`, `123.extern`, `123.0`: steps | left out, the job's row has their time |
//! | further rows of one JobID: requeued, resized (`RESIZING`), or the number was used again | a job of its own for each run ([`super::slurm_runs`]) |
//! | no GPU; a slice of a GPU (MIG); a share of one (`gres/shard`, `gres/mps`) | left out |
//!
//! `Elapsed` excludes the time a job was suspended. The GPUs are those of `AllocTRES`; `ReqTRES`
//! counts where `AllocTRES` has none, as for generic resources with the flag `no_consume`, and names
//! the type where `AllocTRES` does not. A type is also read from `Constraints`, if it names exactly
//! one. The word `can_checkpoint=yes` or `=no` in `Comment` states whether a job can resume from a
//! checkpoint (`sbatch --comment`; Slurm stores comments with `AccountingStoreFlags=job_comment`).
//! `Timelimit`, or `TimelimitRaw` in minutes, is the time limit of a run; in state `TIMEOUT` it is `Elapsed` where neither
//! column states it. `Priority` is Slurm's priority. `Account` is the job's project. Jobs of one user with one name are recurring. Slurm does not record workloads; they are drawn.

use std::cmp::Ordering;
use std::time::Duration;

use wattle_common::datasheet;
use wattle_common::gpu_type::gpu_type_of;
use wattle_slurm::SlurmState;
use wattle_slurm::text::hostlist;
use wattle_slurm::text::state::{base_name, state};
use wattle_slurm::text::values;

use super::format::{CSV, Format};
use super::row::{Row, RowNotes, fit_id, flag, span};
use super::slurm_cells::{Gpus, elapsed, gres, instant, tres};
use super::{ROUNDING, RowError, TraceJob};

/// The columns of the documented export.
pub(super) const EXPORT: [&str; 14] = [
    "JobID",
    "JobName",
    "User",
    "Partition",
    "Submit",
    "Eligible",
    "Start",
    "End",
    "Elapsed",
    "State",
    "ReqTRES",
    "AllocTRES",
    "NNodes",
    "NodeList",
];

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
        "Partition",
        "Eligible",
        "Start",
        "State",
        "NNodes",
        "AllocNodes",
        "ReqNodes",
        "NodeList",
        "Constraints",
        "Comment",
        "Cluster",
        "Account",
        "Suspended",
        "Timelimit",
        "TimelimitRaw",
        "Priority",
    ],
    row,
    repeats: true,
    is_headless: is_documented_row,
    headless: &EXPORT,
    ..CSV
};

/// Whether these cells are a job's and not a header: one starts with a digit, and none is a column
/// name.
pub(super) fn is_row(cells: &[String]) -> bool {
    let number = |cell: &String| cell.starts_with(|c: char| c.is_ascii_digit());
    cells.len() > 2 && cells.iter().any(number) && !cells.iter().any(|cell| FORMAT.reads(cell))
}

/// Whether these cells are a row of the documented export, in its column order.
fn is_documented_row(cells: &[String]) -> bool {
    // `-p` ends each row with a separator.
    let cells = match cells {
        [cells @ .., last] if last.is_empty() && cells.len() == FORMAT.headless.len() => cells,
        cells => cells,
    };
    cells.len() == FORMAT.headless.len()
        && is_row(cells)
        && cells[4..8].iter().all(|cell| instant("Start", cell, &mut RowNotes::default()).is_ok())
        && elapsed("Elapsed", &cells[8]).is_ok()
        && [&cells[10], &cells[11]].iter().all(|cell| cell.is_empty() || cell.contains('='))
}

/// What a job's state implies.
#[derive(Clone, Copy)]
enum Phase {
    /// It ended; the note, unless it completed.
    Ended(Option<&'static str>),
    /// It was running at the time of the export.
    Running,
    /// It was in the queue at the time of the export.
    Queued,
}

/// The rule for a state. `CANCELLED by 1004` and the shortened `CANCELLED+` are `CANCELLED`.
fn phase(text: &str) -> Result<Phase, RowError> {
    let name = base_name(text);
    // A run that ended by a requeue or a change of size is in the accounting database as such.
    if !matches!(name, "REQUEUED" | "RESIZING") {
        match state(text) {
            Some(SlurmState::Pending) => return Ok(Phase::Queued),
            Some(SlurmState::Configuring | SlurmState::Running | SlurmState::Completing) => {
                return Ok(Phase::Running);
            }
            _ => {}
        }
    }
    Ok(Phase::Ended(match name {
        "" | "COMPLETED" => None,
        "FAILED" => Some("in state FAILED, replayed for the time of the run"),
        "OUT_OF_MEMORY" => Some("in state OUT_OF_MEMORY, replayed for the time of the run"),
        "TIMEOUT" => Some("in state TIMEOUT (time limit), replayed for the time of the run"),
        "DEADLINE" => Some("in state DEADLINE, replayed for the time of the run"),
        "NODE_FAIL" => Some("in state NODE_FAIL, replayed for the time of the run"),
        "PREEMPTED" => Some("in state PREEMPTED, replayed for the time of the run"),
        "REQUEUED" => Some("in state REQUEUED, replayed for the time of the run"),
        "CANCELLED" => Some("CANCELLED after the start, replayed for the time of the run"),
        "RESIZING" => Some("in state RESIZING, replayed for the time before the change of size"),
        "BOOT_FAIL" => return Err(RowError::BootFailure),
        "REVOKED" => return Err(RowError::Revoked),
        _ => Some("in an unknown State, replayed for the time of the run"),
    }))
}

fn row(row: &Row<'_>, notes: &mut RowNotes) -> Result<TraceJob, RowError> {
    check_width(row)?;
    let id = row.required("JobID")?;
    if id.contains('.') {
        return Err(RowError::Step);
    }
    let phase = phase(row.text("State").unwrap_or_default())?;
    let times = Times::of(row, notes);
    if id.contains('[') || matches!(phase, Phase::Queued) || times.never_started() {
        return Err(RowError::NeverRan);
    }
    let submit =
        instant("Submit", row.required("Submit")?, notes)?.ok_or(RowError::Unknown("Submit"))?;
    let mut started = times.start.clone().and_then(Result::ok).flatten();
    let ended = times.end.clone().and_then(Result::ok).flatten();
    let duration = duration(row, phase, &times, notes)?;
    let eligible_at =
        row.text("Eligible").and_then(|cell| instant("Eligible", cell, notes).ok().flatten());
    let inferred = inferred_start(row, (started, ended), eligible_at, duration);
    if let Some(start) = inferred.filter(|_| !notes.is_local) {
        notes.add(
            "whose Start is the eligible time, start inferred from End, Elapsed and Suspended",
        );
        started = Some(start);
    }
    // A job with a dependency or a begin time could not have started earlier.
    let eligible = match eligible_at {
        Some(at) if at > submit => {
            notes.add("eligible after the submission, submitted at that time");
            started.map_or(at, |start| at.min(start.max(submit)))
        }
        _ => submit,
    };
    let Gpus { count, gpu_type, slices, shares } = gpus(row, notes)?;
    if slices {
        return Err(RowError::Slice);
    }
    if count == 0 {
        return Err(if shares { RowError::Share } else { RowError::NoGpu });
    }
    if id.contains('+') {
        notes.add("read as a component of a heterogeneous job, a job of its own");
    }
    let id = fit_id(id).ok_or(RowError::IdTooLong("JobID"))?;
    let mut job = TraceJob::new(id, eligible, duration, count);
    job.user = row.text("User").map(str::to_owned);
    job.account = row.text("Account").map(str::to_owned);
    let name = row.text("JobName");
    job.recurs_as = job.user.as_ref().zip(name).map(|(user, name)| format!("{user}/{name}"));
    job.gpu_type = gpu_type.or_else(|| constrained_type(row.text("Constraints")?));
    job.started = started;
    // A running job ends at the time of the export.
    notes.has_end = started.is_none_or(|start| ended.is_some_and(|end| end >= start));
    job.ended = match (started, ended) {
        (Some(start), Some(end)) if end >= start => Some(end),
        (Some(start), _) => Some(start + duration),
        (None, ended) => ended,
    };
    job.can_checkpoint = row.text("Comment").and_then(declared_checkpoint);
    job.time_limit = time_limit(row, duration, notes);
    job.site_priority = row.priority("Priority").unwrap_or_else(|_| {
        notes.add("with a Priority that is no integer, not used");
        0
    });
    job.cluster = row.text("Cluster").map(str::to_owned);
    // A job that did not start in several partitions ran in one.
    job.partition = row.text("Partition").filter(|list| !list.contains(',')).map(str::to_owned);
    let nodes = ["AllocNodes", "NNodes"].iter().find_map(|column| row.count(column));
    job.nodes = nodes.and_then(|nodes| u32::try_from(nodes).ok());
    if let Some(list) = row.text("NodeList") {
        match hostlist::expand(list) {
            Ok(nodes) => job.node_names = nodes,
            Err(_) => notes.add("with a NodeList that is not a list of host names, not used"),
        }
    }
    Ok(job)
}

/// The time limit of the run; `None` where it is not stated, and for `UNLIMITED` and `Partition_Limit`.
fn time_limit(row: &Row<'_>, ran: Duration, notes: &mut RowNotes) -> Option<Duration> {
    let raw = |minutes: u64| Some(Duration::from_secs(minutes.saturating_mul(60)));
    let stated = match (row.count("TimelimitRaw"), row.text("Timelimit")) {
        (Some(minutes), _) => raw(minutes),
        (None, Some(text)) => values::time_limit(text).unwrap_or_else(|_| {
            notes.add("with a Timelimit that is no duration, not used");
            None
        }),
        (None, None) => None,
    };
    let reached = row.text("State").filter(|state| base_name(state) == "TIMEOUT").map(|_| ran);
    let limit = stated.filter(|limit| !limit.is_zero()).or(reached);
    limit.and_then(|limit| span(limit.as_secs_f64()))
}

/// The start of a job whose stated start is its eligible time, though it ran and was suspended for less than the
/// time from there to its end; `None` for any other job. The JSON of Slurm before 23.02 has such starts.
fn inferred_start(
    row: &Row<'_>,
    (started, ended): (Option<Duration>, Option<Duration>),
    eligible: Option<Duration>,
    ran: Duration,
) -> Option<Duration> {
    let cell = row.text("Suspended")?;
    let suspended = match cell.parse() {
        Ok(seconds) => span(seconds)?,
        Err(_) => elapsed("Suspended", cell).ok()?,
    };
    let start = ended?.checked_sub(ran + suspended)?;
    (started == eligible && start > started? + ROUNDING).then_some(start)
}

/// Rejects a row with another number of cells than the header.
fn check_width(row: &Row<'_>) -> Result<(), RowError> {
    let cells = row.record.len();
    match cells.cmp(&row.width) {
        Ordering::Less => Err(RowError::Width("fewer")),
        Ordering::Equal => Ok(()),
        Ordering::Greater => Err(RowError::Width("more")),
    }
}

/// A cell with a date: missing, invalid, unknown or known.
type Date = Option<Result<Option<Duration>, RowError>>;

/// The recorded start and end.
struct Times {
    start: Date,
    end: Date,
}

impl Times {
    fn of(row: &Row<'_>, notes: &mut RowNotes) -> Self {
        let mut at = |column| row.text(column).map(|cell| instant(column, cell, notes));
        Self { start: at("Start"), end: at("End") }
    }
    fn never_started(&self) -> bool {
        matches!(self.start, Some(Ok(None)))
    }
}

/// The time the job ran.
fn duration(
    row: &Row<'_>,
    phase: Phase,
    times: &Times,
    notes: &mut RowNotes,
) -> Result<Duration, RowError> {
    notes.has_duration = ["ElapsedRaw", "Elapsed"].iter().any(|name| row.text(name).is_some());
    let ran = if let Some(raw) = row.text("ElapsedRaw") {
        let seconds: f64 = raw.parse().map_err(|_| RowError::NotANumber("ElapsedRaw"))?;
        span(seconds).ok_or(RowError::NotATime("ElapsedRaw"))?
    } else if let Some(text) = row.text("Elapsed") {
        elapsed("Elapsed", text)?
    } else {
        let start = times.start.clone().unwrap_or(Ok(None))?.ok_or(RowError::Unknown("Start"))?;
        let end = times.end.clone().unwrap_or(Ok(None))?.ok_or(RowError::Unknown("End"))?;
        end.checked_sub(start).ok_or(RowError::EndBeforeStart)?
    };
    if ran.is_zero() {
        return Err(RowError::NeverRan);
    }
    match phase {
        _ if matches!(times.end, Some(Ok(None))) => {
            notes.add("still running, read as ended at the time of the export");
        }
        Phase::Running => notes.add("still running, read as ended at the time of the export"),
        Phase::Ended(Some(what)) => notes.add(what),
        Phase::Ended(None) | Phase::Queued => {}
    }
    Ok(ran)
}

/// The allocated GPUs, else the requested ones. The older GRES columns count GPUs per node.
fn gpus(row: &Row<'_>, notes: &mut RowNotes) -> Result<Gpus, RowError> {
    let of = |column| row.text(column).map_or(Ok(Gpus::default()), |cell| tres(column, cell));
    let (allocated, requested) = (of("AllocTRES")?, of("ReqTRES")?);
    let slices = allocated.slices || requested.slices;
    let shares = allocated.shares || requested.shares;
    if allocated.count > 0 {
        if requested.count > 0 && requested.count != allocated.count {
            notes.add("with other GPUs allocated than requested, counted as allocated");
        }
        let gpu_type = allocated.gpu_type.or(requested.gpu_type);
        return Ok(Gpus { count: allocated.count, gpu_type, slices, shares });
    }
    if requested.count > 0 {
        if row.text("AllocTRES").is_some() {
            notes.add("without GPUs in AllocTRES, counted as in ReqTRES");
        }
        return Ok(Gpus { slices, shares, ..requested });
    }
    let nodes = ["AllocNodes", "NNodes", "ReqNodes"].iter().find_map(|column| row.count(column));
    for column in ["AllocGRES", "ReqGRES"] {
        if let Some(cell) = row.text(column) {
            let gpus = gres(column, cell)?;
            let count = u64::from(gpus.count).saturating_mul(nodes.unwrap_or(1));
            if count > 0 {
                let count =
                    u32::try_from(count).map_err(|_| RowError::NotAPositiveInteger(column))?;
                return Ok(Gpus { count, ..gpus });
            }
        }
    }
    Ok(Gpus { slices, shares, ..Gpus::default() })
}

/// The GPU type among the features that a job requires, as in `a100&ib`; `None` unless they name
/// exactly one.
fn constrained_type(constraints: &str) -> Option<String> {
    let words = constraints.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-');
    let mut types: Vec<String> =
        words.map(gpu_type_of).filter(|gpu_type| datasheet::is_known(gpu_type)).collect();
    types.sort();
    types.dedup();
    if let [_] = types[..] { types.pop() } else { None }
}

/// The word `can_checkpoint=...` of a comment.
fn declared_checkpoint(comment: &str) -> Option<bool> {
    let words = comment.split(|c: char| c.is_whitespace() || c == ',' || c == ';');
    words.filter_map(|word| word.strip_prefix("can_checkpoint=")).find_map(flag)
}
