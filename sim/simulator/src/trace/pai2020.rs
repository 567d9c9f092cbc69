//! The tasks of Alibaba's PAI of 2020, `pai_task_table.csv` (github.com/alibaba/clusterdata,
//! cluster-trace-gpu-v2020; Weng et al., NSDI'22). Times are seconds.
//!
//! Each task is a job with `plan_gpu` hundredths of a GPU for each of its `inst_num` instances, each of which counts
//! as on a node of its own. A task with a part
//! of a GPU is left out, since sharing inside a GPU is not simulated. The published table has neither column names
//! nor submissions, so a task arrives when it starts.

use super::format::{CSV, Format};
use super::row::{Row, RowNotes, fit_id};
use super::{RowError, TraceJob};

pub(super) static FORMAT: Format = Format {
    name: "PAI 2020",
    key: "pai2020",
    required: &[
        "job_name",
        "task_name",
        "inst_num",
        "status",
        "start_time",
        "end_time",
        "plan_gpu",
    ],
    optional: &["plan_cpu", "plan_mem", "gpu_type"],
    row,
    headless: &[
        "job_name",
        "task_name",
        "inst_num",
        "status",
        "start_time",
        "end_time",
        "plan_cpu",
        "plan_mem",
        "plan_gpu",
        "gpu_type",
    ],
    is_headless: is_task,
    ..CSV
};

/// Whether these cells are a row of the published table of tasks.
fn is_task(cells: &[String]) -> bool {
    let is_number = |cell: &String| cell.is_empty() || cell.parse::<f64>().is_ok();
    let is_status = ["Terminated", "Failed", "Running", "Waiting", "Interrupted"];
    cells.len() == FORMAT.headless.len()
        && is_status.contains(&cells[3].as_str())
        && [2, 4, 5, 6, 7, 8].iter().all(|&i| is_number(&cells[i]))
}

/// The GPU type that a trace of PAI names. `MISC` and the codes that the operator keeps to itself name none.
pub(super) fn gpu_type(name: Option<&str>) -> Option<String> {
    let is_named = |name: &&str| {
        let is_code = name.len() <= 2 && name.starts_with('G');
        !is_code && !matches!(*name, "MISC" | "CPU" | "nan") && !name.contains('|')
    };
    // V100M32 is a V100 with 32 GB.
    name.filter(is_named).map(|name| match name.split_once('M') {
        Some((card, memory))
            if !card.is_empty()
                && !memory.is_empty()
                && memory.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            format!("{}-{memory}gb", card.to_ascii_lowercase())
        }
        _ => name.to_ascii_lowercase(),
    })
}

fn row(row: &Row<'_>, notes: &mut RowNotes) -> Result<TraceJob, RowError> {
    let percent = row.optional_seconds("plan_gpu")?.map_or(0, |percent| percent.as_millis());
    // Hundredths of a GPU, in thousandths of them.
    const GPU: u128 = 100_000;
    if percent == 0 {
        return Err(RowError::NoGpu);
    }
    if percent % GPU != 0 {
        return Err(RowError::PartOfGpu);
    }
    let instances = row.optional_seconds("inst_num")?.map_or(1, |count| count.as_secs());
    let gpus = u32::try_from(percent / GPU * u128::from(instances))
        .ok()
        .filter(|gpus| *gpus > 0)
        .ok_or(RowError::NotAPositiveInteger("inst_num"))?;
    let start = match row.text("status") {
        Some("Waiting") => return Err(RowError::NeverRan),
        _ => row.optional_seconds("start_time")?.ok_or(RowError::NeverRan)?,
    };
    let end = row.optional_seconds("end_time")?.ok_or(RowError::Unknown("end_time"))?;
    let duration = end.checked_sub(start).ok_or(RowError::EndBeforeStart)?;
    if duration.is_zero() {
        return Err(RowError::NeverRan);
    }
    match row.text("status") {
        None | Some("Terminated") => {}
        Some("Failed") => notes.add("with status Failed, replayed for the time of the run"),
        Some(_) => {
            notes.add("with another status than Terminated, replayed for the time of the run");
        }
    }
    let name =
        format!("{}-{}", row.required("job_name")?, row.text("task_name").unwrap_or_default());
    let id = fit_id(&name).ok_or(RowError::IdTooLong("job_name"))?;
    Ok(TraceJob {
        gpu_type: gpu_type(row.text("gpu_type")),
        started: Some(start),
        ended: Some(end),
        nodes: u32::try_from(instances).ok(),
        ..TraceJob::new(id, start, duration, gpus)
    })
}
