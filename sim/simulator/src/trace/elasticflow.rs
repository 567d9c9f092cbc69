//! The format of ElasticFlow's simulator (github.com/pkusys/ElasticFlow), times in seconds:
//! `batch_size` is the global batch, `iteration` the steps that take `duration` on `num_gpu` GPUs
//! by its own throughput tables, and `ddl` the deadline on the clock of `submit_time` (its own
//! conversion to Chronus' format takes `ddl - submit_time` for the time allowed).

use super::TraceJob;
use super::format::{CSV, Format};
use super::row::{Odd, Row};

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
    // What its authors changed for tests of theirs; the same as the plain ones in what they publish.
    optional: &["real_iteration", "real_duration"],
    row,
    ..CSV
};

fn row(row: &Row<'_>, odd: &mut Odd) -> Result<TraceJob, String> {
    let (id, submit) = (row.id("job_id")?, row.seconds("submit_time")?);
    let mut job = TraceJob::new(id, submit, row.seconds("duration")?, row.gpus("num_gpu")?);
    job.model = row.text("model_name").map(str::to_owned);
    job.batch = row.count("batch_size").and_then(|batch| u32::try_from(batch).ok());
    if job.batch.is_none() {
        odd.say("had no batch size that is a whole number above 0");
    }
    job.iterations = row.count("iteration");
    if job.iterations.is_none() {
        odd.say("had no whole number of iterations above 0, so that `duration` counts");
    }
    if row.text("ddl").is_some() {
        let deadline = row.seconds("ddl")?;
        if deadline <= submit {
            odd.say("had a deadline no later than the submission, which was left out");
        } else {
            job.deadline = Some(deadline);
        }
    }
    Ok(job)
}
