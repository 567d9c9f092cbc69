//! `wattle explain`: predicted and measured speed and power of a job, what alternatives would cost, and
//! the decisions with their reasons and consequences, oldest first.
//!
//! A running job is explained from its current surface, which planning uses, an ended one from the
//! predictions in its record. Measurements come from the stored windows.

mod alternatives;
mod decisions;
mod expected;
mod measured;
mod text;

use anyhow::Context as _;
use clap::Args;
use wattle_common::messages::{BudgetStatus, FeedersStatus, JobWindow, PowerMargin, Surface};
use wattle_common::subject::{BUDGET_STATUS, Bucket, FEEDERS_STATUS, StreamName, Subject};
use wattle_common::{JobId, codec};
use wattle_runtime::bus::Bus;
use wattle_runtime::clock;

use crate::connection::{Connection, block_on};
use crate::job_name::JobName;
use crate::job_records;
use crate::output::{print, print_json, usage};
use crate::summaries;
use wattle_view::job::JobView;
use wattle_view::measured::measured;
use wattle_view::prediction::current;

/// Explain the placement of a job.
#[derive(Args)]
#[command(
    after_help = "W/GPU is the power of one GPU with all jobs on it. Predictions have their 90 % interval.\n\
        The energy of a configuration with co-tenants is not shown: the jobs share it.\n\n\
        Example:\n  wattle explain train-18f2c"
)]
pub(crate) struct Explain {
    /// The job, as in `wattle jobs`, or a prefix that only it has
    job: JobName,
    #[command(flatten)]
    connection: Connection,
    /// Print the prices and ratios behind each decision, too
    #[arg(long)]
    details: bool,
    /// Print the record, the surface, the measurements and the prediction with alternatives as JSON
    #[arg(long)]
    json: bool,
}

/// The stored windows of a job, oldest first.
async fn stored_windows(bus: &Bus, job: &JobId) -> anyhow::Result<Vec<JobWindow>> {
    let filter = Subject::windows_of(bus.cluster(), job);
    let mut replay = bus.replay(StreamName::Windows, Some(&filter)).await?;
    let mut windows = Vec::new();
    while let Some(payload) = replay.next().await? {
        windows.extend(codec::decode_json::<JobWindow>(&payload).ok());
    }
    Ok(windows)
}

/// The correction of predicted power below the limit of the site or of feeders.
async fn power_margin(bus: &Bus) -> anyhow::Result<Option<PowerMargin>> {
    if !job_records::reads_storage(bus) {
        return Ok(None);
    }
    let bucket = bus.bucket(Bucket::Budget).await?;
    let of_site = bucket.get::<BudgetStatus>(BUDGET_STATUS).await?;
    if let Some(margin) = of_site.and_then(|(status, _)| status.power_margin) {
        return Ok(Some(margin));
    }
    let of_feeders = bucket.get::<FeedersStatus>(FEEDERS_STATUS).await?;
    Ok(of_feeders.and_then(|(status, _)| status.power_margin))
}

/// Runs the command.
pub(crate) fn run(command: Explain) -> anyhow::Result<()> {
    block_on(async {
        let bus = command.connection.open().await?;
        let job = command.job.resolve(&bus).await?;
        let record = job_records::one(&bus, &job)
            .await?
            .ok_or_else(|| usage(format!("no job `{job}`; `wattle jobs --all` lists all jobs")))?;
        let (mut surface, mut windows) = (None, Vec::new());
        if job_records::reads_storage(&bus) {
            let surfaces = bus.bucket(Bucket::Surfaces).await?;
            let found = surfaces.get::<Surface>(job.as_str()).await.ok().flatten();
            surface = found.map(|(surface, _)| surface).filter(|one| record.has_surface(one));
            windows =
                stored_windows(&bus, &job).await.context("the measured windows cannot be read")?;
            windows.retain(|window| record.has_window(window));
        }
        let measured = measured(&windows, record.prediction_placed.as_deref());
        let nodes = record.placement.iter().flat_map(|placement| &placement.shares);
        let nodes = nodes.map(|share| share.node.clone()).collect();
        let summaries = summaries::of(&bus, nodes).await;
        let prediction = current(&record, surface.as_ref());
        let margin = power_margin(&bus).await?;
        let now = clock::now();
        let view = JobView::new(record, &summaries, now);
        if command.json {
            let all = serde_json::json!({
                "record": view,
                "surface": surface,
                "measured": measured,
                "prediction": prediction,
                "power_margin": margin,
            });
            return print_json(&all);
        }
        let (surface, prediction) = (surface.as_ref(), prediction.as_ref());
        let (margin, details) = (margin.as_ref(), command.details);
        print(&text::describe(&view, surface, &measured, prediction, margin, details, now))
    })
}
