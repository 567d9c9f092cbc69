//! The traces of SenseTime's Helios clusters, `cluster_log.csv` (github.com/S-Lab-System-Group/HeliosData;
//! Hu et al., SC'21). Times are those of China without an offset; its clocks do not change.
//!
//! The run is from `start_time` to `end_time`. `duration` is documented as their difference, and is used where
//! `end_time` is missing. `queue` follows from the others.

use std::time::Duration;

use super::format::{CSV, Format};
use super::row::{Row, RowNotes};
use super::slurm_cells::instant;
use super::{RowError, TraceJob};

pub(super) static FORMAT: Format = Format {
    name: "Helios",
    key: "helios",
    calendar: true,
    required: &[
        "job_id",
        "user",
        "vc",
        "gpu_num",
        "cpu_num",
        "node_num",
        "state",
        "submit_time",
        "start_time",
        "end_time",
    ],
    optional: &["duration", "queue"],
    row,
    ..CSV
};

pub(super) fn row(row: &Row<'_>, notes: &mut RowNotes) -> Result<TraceJob, RowError> {
    let id = row.id("job_id")?;
    let gpus = match row.seconds("gpu_num")?.as_secs() {
        0 => return Err(RowError::NoGpu),
        gpus => u32::try_from(gpus).map_err(|_| RowError::NotAPositiveInteger("gpu_num"))?,
    };
    let mut at = |column| match row.text(column) {
        None => Ok(None),
        Some(cell) => instant(column, cell, notes).map_err(|_| RowError::NotATime(column)),
    };
    let (submit, start, end) = (at("submit_time")?, at("start_time")?, at("end_time")?);
    notes.is_local = false;
    let submit = submit.ok_or(RowError::Unknown("submit_time"))?;
    let Some(start) = start else { return Err(RowError::NeverRan) };
    let duration = match end {
        Some(end) => end.checked_sub(start).ok_or(RowError::EndBeforeStart)?,
        None => row.optional_seconds("duration")?.unwrap_or(Duration::ZERO),
    };
    if duration.is_zero() {
        return Err(RowError::NeverRan);
    }
    notes.has_end = end.is_some();
    match row.text("state") {
        None | Some("COMPLETED") => {}
        Some("CANCELLED") => notes.add("in state CANCELLED, replayed for the time of the run"),
        Some("FAILED") => notes.add("in state FAILED, replayed for the time of the run"),
        Some(_) => notes.add("in another state than COMPLETED, replayed for the time of the run"),
    }
    Ok(TraceJob {
        user: row.text("user").map(str::to_owned),
        account: row.text("vc").map(str::to_owned),
        partition: row.text("vc").map(str::to_owned),
        started: Some(start),
        ended: Some(start + duration),
        nodes: row.count("node_num").and_then(|nodes| u32::try_from(nodes).ok()),
        ..TraceJob::new(id, submit, duration, gpus)
    })
}
