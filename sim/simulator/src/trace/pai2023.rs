//! The pods of Alibaba's PAI of 2023, `openb_pod_list_*.csv` (github.com/alibaba/clusterdata,
//! cluster-trace-gpu-v2023; Weng et al., ATC'23). Times are seconds.
//!
//! Each pod is a job with `num_gpu` GPUs. It arrives at `creation_time` and runs from `scheduled_time` to
//! `deletion_time`. A pod with a part of a GPU (`gpu_milli` below 1,000) is left out.

use super::format::{CSV, Format};
use super::pai2020::gpu_type;
use super::row::{Row, RowNotes};
use super::{RowError, TraceJob};

pub(super) static FORMAT: Format = Format {
    name: "PAI 2023",
    key: "pai2023",
    required: &["name", "num_gpu", "gpu_milli", "creation_time", "deletion_time"],
    optional: &["cpu_milli", "memory_mib", "gpu_spec", "qos", "pod_phase", "scheduled_time"],
    row,
    ..CSV
};

fn row(row: &Row<'_>, notes: &mut RowNotes) -> Result<TraceJob, RowError> {
    let id = row.id("name")?;
    let gpus = match row.gpus("num_gpu") {
        Err(RowError::Zero(_)) => return Err(RowError::NoGpu),
        other => other?,
    };
    if row.optional_seconds("gpu_milli")?.is_some_and(|milli| milli.as_secs() < 1_000) {
        return Err(RowError::PartOfGpu);
    }
    let submit = row.seconds("creation_time")?;
    let start = row.optional_seconds("scheduled_time")?.ok_or(RowError::NeverRan)?;
    let end = row.seconds("deletion_time")?;
    let duration = end.checked_sub(start).ok_or(RowError::EndBeforeStart)?;
    if duration.is_zero() {
        return Err(RowError::NeverRan);
    }
    match row.text("pod_phase") {
        Some("Failed") => notes.add("in phase Failed, replayed for the time of the run"),
        Some("Running") => notes.add("in phase Running, read as ended at its deletion"),
        _ => {}
    }
    Ok(TraceJob {
        gpu_type: gpu_type(row.text("gpu_spec")),
        started: Some(start),
        ended: Some(end),
        nodes: Some(1),
        ..TraceJob::new(id, submit, duration, gpus)
    })
}
