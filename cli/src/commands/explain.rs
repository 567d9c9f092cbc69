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
use wattle_common::messages::{
    BudgetStatus, FeedersStatus, JobWindow, PowerMargin, SetBudget, Surface,
};
use wattle_common::subject::{
    BUDGET_SET, BUDGET_STATUS, Bucket, FEEDERS_STATUS, StreamName, Subject,
};
use wattle_common::{JobId, Timestamp, codec};
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

/// What a power limit does to the jobs.
#[derive(Default)]
struct LimitEffects {
    /// The correction of predicted power, below the limit of the site or of feeders.
    margin: Option<PowerMargin>,
    /// What more power would change, where the site's limit binds now.
    cost: Option<String>,
}

impl LimitEffects {
    async fn of(bus: &Bus, now: Timestamp) -> anyhow::Result<Self> {
        if !job_records::reads_storage(bus) {
            return Ok(Self::default());
        }
        let bucket = bus.bucket(Bucket::Budget).await?;
        let status = bucket.get::<BudgetStatus>(BUDGET_STATUS).await?.map(|(status, _)| status);
        let mut effects = Self::default();
        if let Some(status) = status {
            effects.margin = status.power_margin;
            let set = bucket.get::<SetBudget>(BUDGET_SET).await?;
            let limit = set.and_then(|(set, _)| set.budget.power_at(now));
            let cost = status.limit_cost.filter(|cost| cost.price_s_per_kwh > 0.0);
            effects.cost = cost.zip(limit).map(|(cost, limit)| cost.sentence(limit));
        }
        if effects.margin.is_none() {
            let of_feeders = bucket.get::<FeedersStatus>(FEEDERS_STATUS).await?;
            effects.margin = of_feeders.and_then(|(status, _)| status.power_margin);
        }
        Ok(effects)
    }
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
        let now = clock::now();
        let limit = LimitEffects::of(&bus, now).await?;
        let view = JobView::new(record, &summaries, now);
        if command.json {
            let all = serde_json::json!({
                "record": view,
                "surface": surface,
                "measured": measured,
                "prediction": prediction,
                "power_margin": limit.margin,
                "limit_cost": limit.cost,
            });
            return print_json(&all);
        }
        let (surface, prediction) = (surface.as_ref(), prediction.as_ref());
        print(&text::describe(&view, surface, &measured, prediction, &limit, command.details, now))
    })
}
