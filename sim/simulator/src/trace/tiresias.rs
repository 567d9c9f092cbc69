//! The format of Tiresias' simulator (github.com/SymbioticLab/Tiresias), times in seconds.
//! `iterations` and `interval` follow from the other columns and are not read. Two columns are an
//! extension: `workload`, an id of the catalog, and `deadline`, on the clock of `submit_time`.

use super::format::{CSV, Format};
use super::row::{Row, RowNotes};
use super::{RowError, TraceJob};

pub(super) static FORMAT: Format = Format {
    name: "Tiresias",
    key: "tiresias",
    required: &[
        "job_id",
        "num_gpu",
        "submit_time",
        "iterations",
        "model_name",
        "duration",
        "interval",
    ],
    optional: &["workload", "deadline"],
    row,
    ..CSV
};

fn row(row: &Row<'_>, _: &mut RowNotes) -> Result<TraceJob, RowError> {
    let (id, submit) = (row.id("job_id")?, row.seconds("submit_time")?);
    Ok(TraceJob {
        model: row.text("model_name").map(str::to_owned),
        workload: row.text("workload").map(str::to_owned),
        deadline: row.optional_seconds("deadline")?,
        ..TraceJob::new(id, submit, row.seconds("duration")?, row.gpus("num_gpu")?)
    })
}
