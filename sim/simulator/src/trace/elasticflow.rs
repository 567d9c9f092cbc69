//! The format of ElasticFlow's simulator (github.com/pkusys/ElasticFlow), times in seconds.
//!
//! `batch_size` is the global batch. `iteration` is the number of steps, which take `duration` on
//! `num_gpu` GPUs by ElasticFlow's throughput tables. `ddl` is the deadline on the clock of
//! `submit_time`: its conversion to Chronus' format uses `ddl - submit_time` as the allowed time.

use super::format::{CSV, Format};
use super::row::{Row, RowNotes};
use super::{RowError, TraceJob};

pub(super) static FORMAT: Format = Format {
    name: "ElasticFlow",
    key: "elasticflow",
    required: &[
        "job_id",
        "submit_time",
        "model_name",
        "batch_size",
        "num_gpu",
        "duration",
        "iteration",
        "ddl",
    ],
    // Equal to `iteration` and `duration` in the published traces.
    optional: &["real_iteration", "real_duration"],
    row,
    ..CSV
};

fn row(row: &Row<'_>, notes: &mut RowNotes) -> Result<TraceJob, RowError> {
    let (id, submit) = (row.id("job_id")?, row.seconds("submit_time")?);
    let mut job = TraceJob::new(id, submit, row.seconds("duration")?, row.gpus("num_gpu")?);
    job.model = row.text("model_name").map(str::to_owned);
    job.batch = row.count("batch_size").and_then(|batch| u32::try_from(batch).ok());
    if job.batch.is_none() {
        notes.add("without a positive integer batch_size");
    }
    job.iterations = row.count("iteration");
    if job.iterations.is_none() {
        notes.add("without a positive integer iteration, so that `duration` is used");
    }
    if row.text("ddl").is_some() {
        let deadline = row.seconds("ddl")?;
        if deadline <= submit {
            notes.add("with a deadline not after the submission, which is ignored");
        } else {
            job.deadline = Some(deadline);
        }
    }
    Ok(job)
}
