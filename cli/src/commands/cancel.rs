//! `wattle cancel`: cancels a queued or running job.

use clap::Args;
use wattle_common::JobId;
use wattle_common::messages::{CancelJob, Reply};
use wattle_common::subject::RequestTopic;
use wattle_runtime::bus::Bus;

use crate::connection::{Connection, block_on};
use crate::job_name::JobName;
use crate::job_records;
use crate::output::{print, print_json, usage};
use crate::takeover;

/// Cancel a job.
#[derive(Args)]
#[command(after_help = "Example:\n  wattle cancel train-18f2c")]
pub(crate) struct Cancel {
    /// The job, as in `wattle jobs`, or a prefix that only it has
    job: JobName,
    #[command(flatten)]
    connection: Connection,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

/// Requests the cancellation of `job`.
pub(crate) async fn cancel(bus: &Bus, job: JobId) -> anyhow::Result<Reply> {
    takeover::request(bus, RequestTopic::JobCancelled, "placer", &CancelJob { job }).await
}

/// Runs the command.
pub(crate) fn run(command: Cancel) -> anyhow::Result<()> {
    block_on(async {
        let bus = command.connection.open().await?;
        job_records::require_change(&bus)?;
        let job = command.job.resolve(&bus).await?;
        match cancel(&bus, job).await? {
            reply @ Reply::Accepted { .. } if command.json => print_json(&reply),
            Reply::Accepted { job, .. } => print(&format!("{job} is being cancelled")),
            Reply::Refused { error } => Err(usage(error)),
        }
    })
}
