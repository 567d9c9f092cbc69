//! The Philly format: rows of Microsoft's Philly traces (Jeon et al., ATC'19) as CSV, times in
//! seconds. They name no model; `vc`, the virtual cluster, places nobody here.

use super::{Format, Row, TraceJob};

pub(super) const FORMAT: Format = Format {
    name: "Philly",
    required: &["job_id", "submit_s", "duration_s", "num_gpus", "vc"],
    optional: &[],
    row,
};

fn row(row: &Row<'_>) -> Result<TraceJob, String> {
    Ok(TraceJob {
        id: row.id("job_id")?,
        submit: row.seconds("submit_s")?,
        duration: row.seconds("duration_s")?,
        gpus: row.gpus("num_gpus")?,
        model: None,
        workload: None,
        deadline: None,
    })
}
