//! The format of Gavel's simulator (github.com/stanford-futuredata/gavel): ten columns between
//! tabs and no header, times in seconds.
//!
//! A job is a type, `ResNet-18 (batch size 64)`, and a number of steps; the batch is that of one
//! GPU, and so many times larger over all of them. How long it takes follows from the steps a second
//! that Gavel measured of that type, on the kind of GPU it gets where its workloads are in the
//! catalog ([`crate::gavel`]), else on V100s of one node (`catalog/gavel.csv`). `SLO` is the time
//! allowed on V100s as a multiple of that, or negative. The commands, the folder, and the weight of a
//! job in fair sharing have no use here.

use super::TraceJob;
use super::format::{CSV, Format};
use super::row::{Odd, Row, fit_id, span};
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

fn row(row: &Row<'_>, odd: &mut Odd) -> Result<TraceJob, String> {
    if row.record.len() != FORMAT.required.len() {
        return Err(format!("it does not have {} columns", FORMAT.required.len()));
    }
    let (job_type, gpus) = (row.needed("job_type")?, row.gpus("scale_factor")?);
    let submit = row.seconds("arrival_time")?;
    let steps = row.count("total_steps").ok_or("total_steps is no whole number above 0")?;
    let rate = v100_rate(job_type, gpus).ok_or_else(|| {
        format!(
            "no steps a second are known of {} on {}",
            sanitize(job_type),
            pluralize(gpus, "GPU")
        )
    })?;
    let duration = span(steps as f64 / rate).ok_or("total_steps take too long")?;
    // The rows have no ids: they are numbered as they stand.
    let id = fit_id(&format!("{}", row.line - 1)).ok_or("the file has too many lines")?;
    let mut job = TraceJob::new(id, submit, duration, gpus);
    let (model, batch) = model_and_batch(job_type);
    job.measured_as = Some((workload_id(job_type, gpus), steps));
    job.model = Some(model.to_owned());
    job.batch = batch.and_then(|batch: u32| batch.checked_mul(gpus));
    // Beside others its steps are one GPU's, of a batch of its own; the measured time holds then.
    job.iterations = (gpus == 1).then_some(steps);
    match row.text("SLO").map(str::parse::<f64>) {
        Some(Ok(slo)) if slo > 0.0 && slo.is_finite() => {
            let allowed = span(duration.as_secs_f64() * slo);
            job.deadline = allowed.map(|allowed| submit + allowed);
        }
        Some(Ok(slo)) if slo < 0.0 => {}
        _ => odd.say("had an SLO that is no number other than 0, and so no deadline"),
    }
    Ok(job)
}
