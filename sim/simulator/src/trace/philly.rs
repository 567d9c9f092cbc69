//! The Philly format: rows of Microsoft's Philly traces (Jeon et al., ATC'19) as CSV, times in
//! seconds. Rows have no model; `vc`, the virtual cluster, is read as the user.
//!
//! Five columns are an extension: `start_s` and `end_s`, the recorded start and end on the clock of
//! `submit_s`; `can_checkpoint` (`true` or `false`); `time_limit_s`, the time limit of the run; `priority`, the
//! priority that the site's scheduler gave the job, an integer, higher first.

use super::format::{CSV, Format};
use super::row::{Row, RowNotes};
use super::{RowError, TraceJob};

pub(super) static FORMAT: Format = Format {
    name: "Philly",
    key: "philly",
    required: &["job_id", "submit_s", "duration_s", "num_gpus"],
    optional: &["vc", "start_s", "end_s", "can_checkpoint", "time_limit_s", "priority"],
    row,
    ..CSV
};

fn row(row: &Row<'_>, _: &mut RowNotes) -> Result<TraceJob, RowError> {
    let (id, submit) = (row.id("job_id")?, row.seconds("submit_s")?);
    Ok(TraceJob {
        user: row.text("vc").map(str::to_owned),
        started: row.optional_seconds("start_s")?,
        ended: row.optional_seconds("end_s")?,
        can_checkpoint: row.flag("can_checkpoint")?,
        time_limit: row.optional_seconds("time_limit_s")?.filter(|limit| !limit.is_zero()),
        site_priority: row.priority("priority")?,
        ..TraceJob::new(id, submit, row.seconds("duration_s")?, row.gpus("num_gpus")?)
    })
}
