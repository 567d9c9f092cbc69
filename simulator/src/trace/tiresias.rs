//! The format of Tiresias' simulator (github.com/SymbioticLab/Tiresias), times in seconds.
//! `iterations` and `interval` follow from the other columns and are not read. Two columns of our
//! own may be added: `workload`, an id of the catalog, and `deadline`, on the clock of
//! `submit_time`.

use super::{Format, Row, TraceJob};

pub(super) const FORMAT: Format = Format {
    name: "Tiresias",
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
};

fn row(row: &Row<'_>) -> Result<TraceJob, String> {
    Ok(TraceJob {
        id: row.id("job_id")?,
        submit: row.seconds("submit_time")?,
        duration: row.seconds("duration")?,
        gpus: row.gpus("num_gpu")?,
        model: row.text("model_name").map(str::to_owned),
        workload: row.text("workload").map(str::to_owned),
        deadline: match row.text("deadline") {
            Some(_) => Some(row.seconds("deadline")?),
            None => None,
        },
    })
}
