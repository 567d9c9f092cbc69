//! The format of Gavel's simulator (github.com/stanford-futuredata/gavel): ten tab-separated
//! columns without a header, times in seconds.
//!
//! A job has a type, such as `ResNet-18 (batch size 64)`, and a number of steps; the batch is per
//! GPU. Its duration follows from the steps per second that Gavel measured: on the GPU type it runs
//! on where the catalog has its workload ([`crate::gavel`]), else on V100s of one node
//! (`catalog/gavel.csv`). `SLO` is the allowed time as a multiple of the duration on V100s; a
//! negative value means none. The command, the folder, and the weight in fair sharing are not used.

use super::format::{CSV, Format};
use super::row::{Row, RowNotes, fit_id, span};
use super::{RowError, TraceJob};
use crate::gavel::{model_and_batch, v100_rate, workload_id};
use crate::text::{pluralize, sanitize};

pub(super) static FORMAT: Format = Format {
    name: "Gavel",
    key: "gavel",
    delimiter: b'\t',
    has_header: false,
    required: &[
        "job_type",
        "command",
        "working_directory",
        "num_steps_arg",
        "needs_data_dir",
        "total_steps",
        "scale_factor",
        "priority_weight",
        "SLO",
        "arrival_time",
    ],
    row,
    ..CSV
};

fn row(row: &Row<'_>, notes: &mut RowNotes) -> Result<TraceJob, RowError> {
    if row.record.len() != FORMAT.required.len() {
        let problem = format!("it does not have {} columns", FORMAT.required.len());
        return Err(RowError::Other(problem.into()));
    }
    let (job_type, gpus) = (row.required("job_type")?, row.gpus("scale_factor")?);
    let submit = row.seconds("arrival_time")?;
    let steps = row.count("total_steps").ok_or(RowError::NotAPositiveInteger("total_steps"))?;
    let rate = v100_rate(job_type, gpus).ok_or_else(|| RowError::NoRate {
        job_type: sanitize(job_type),
        gpus: pluralize(gpus, "GPU"),
    })?;
    let duration = span(steps as f64 / rate).ok_or(RowError::NotATime("total_steps"))?;
    // Rows have no ids; a job's id is its row number.
    let id = fit_id(&format!("{}", row.line - 1)).ok_or(RowError::IdTooLong("line"))?;
    let mut job = TraceJob::new(id, submit, duration, gpus);
    let (model, batch) = model_and_batch(job_type);
    job.measured_as = Some((workload_id(job_type, gpus), steps));
    job.model = Some(model.to_owned());
    job.batch = batch.and_then(|batch: u32| batch.checked_mul(gpus));
    // With several GPUs the steps are those of the per-GPU batch, and the duration is used.
    job.iterations = (gpus == 1).then_some(steps);
    match row.text("SLO").map(str::parse::<f64>) {
        Some(Ok(slo)) if slo > 0.0 && slo.is_finite() => {
            let allowed = span(duration.as_secs_f64() * slo);
            job.deadline = allowed.map(|allowed| submit + allowed);
        }
        Some(Ok(slo)) if slo < 0.0 => {}
        _ => notes.add("with an invalid SLO, read as without a deadline"),
    }
    Ok(job)
}
