//! `wattle cancel`: cancels a queued or running job.

use std::time::Duration;

use clap::Args;
use wattle_common::JobId;
use wattle_common::duration::parse_span;
use wattle_common::messages::{CancelJob, Reply};
use wattle_common::subject::RequestTopic;
use wattle_runtime::bus::Bus;

use crate::connection::{Connection, block_on};
use crate::job_end;
use crate::job_name::JobName;
use crate::job_records;
use crate::output::{print, print_json, usage};
use crate::takeover;
use crate::wait::Wait;

/// Cancel a job.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  wattle cancel train-18f2c\n  wattle cancel --wait --timeout 10m train"
)]
pub(crate) struct Cancel {
    /// The job, as in `wattle jobs`, or a prefix that only it has
    job: JobName,
    /// Wait until the job has ended; a running job first writes its checkpoint
    #[arg(long)]
    wait: bool,
    /// Longest wait, then exit code 124: 90s, 45m
    #[arg(long, value_name = "SPAN", value_parser = parse_span, requires = "wait")]
    timeout: Option<Duration>,
    #[command(flatten)]
    connection: Connection,
    /// Print the answer as JSON; with --wait also the end of the job
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
        let reply = cancel(&bus, job).await?;
        let job = match &reply {
            Reply::Accepted { job, .. } => job,
            Reply::Refused { error } => return Err(usage(error.clone())),
        };
        if !command.json {
            print(&format!("{job} is being cancelled"))?;
        } else if !command.wait {
            print_json(&reply)?;
        }
        if command.wait {
            let otherwise =
                format!("{job} is still being cancelled; `wattle jobs` shows its phase");
            let wait = Wait { timeout: command.timeout, otherwise: &otherwise, slow: None };
            job_end::until_ended(&bus, job, &reply, &wait, command.json).await?;
        }
        Ok(())
    })
}
