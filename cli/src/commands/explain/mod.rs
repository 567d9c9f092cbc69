//! `wattle explain`: predicted and measured speed and power of a job, what alternatives would cost, and
//! the decisions with their reasons, oldest first.
//!
//! A running job is explained from its current surface, which planning uses, an ended one from the
//! predictions in its record. Measurements come from the stored windows.

mod alternatives;
mod measured;
mod text;

use anyhow::Context as _;
use clap::Args;
use wattle_common::messages::{JobRecord, JobWindow, Prediction, Surface};
use wattle_common::subject::{Bucket, StreamName, Subject};
use wattle_common::{Frequency, JobId, Power, codec};
use wattle_placer::prediction::{Configuration, prediction};
use wattle_runtime::bus::Bus;
use wattle_runtime::clock;

use self::measured::measured;
use crate::connection::{Connection, block_on};
use crate::job_name::JobName;
use crate::job_records;
use crate::job_view::JobView;
use crate::output::{print, print_json, usage};
use crate::summaries;

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
    /// Print the record, the surface, the measurements and the prediction with alternatives as JSON
    #[arg(long)]
    json: bool,
}

/// A configuration in words: `2 GPUs at 150 W`, `1 GPU shared with bert-b8`.
fn label(gpus: u32, cap: Option<Power>, clock: Option<Frequency>, neighbours: &[&str]) -> String {
    let mut text = format!("{gpus} GPU{}", if gpus == 1 { "" } else { "s" });
    if let Some(cap) = cap {
        text.push_str(&format!(" at {:.0} W", cap.as_w()));
    }
    if let Some(clock) = clock {
        text.push_str(&format!(" at {} MHz", clock.as_mhz()));
    }
    if !neighbours.is_empty() {
        text.push_str(&format!(" shared with {}", neighbours.join(", ")));
    }
    text
}

/// The prediction that explains a job now: of the current surface while it has one, else the last one
/// of its record.
fn current(record: &JobRecord, surface: Option<&Surface>) -> Option<Prediction> {
    let last = record.prediction_last.as_deref().or(record.prediction_placed.as_deref());
    let Some(surface) = surface.filter(|_| !record.phase.is_final()) else { return last.cloned() };
    let placed = record.prediction_placed.as_deref().filter(|_| record.placement.is_some());
    // The surface of the GPU type that it holds.
    let surface = placed
        .and_then(|placed| {
            let mut all = std::iter::once(surface).chain(&surface.other_gpu_types);
            all.find(|surface| surface.gpu_type == placed.gpu_type)
        })
        .unwrap_or(surface);
    let (gpus, nodes) = match &record.placement {
        Some(placement) => (placement.gpu_count(), placement.node_count()),
        None => {
            let gpus = record.spec.gpus.min;
            let of_size = surface.points.iter().filter(|point| point.gpus == gpus);
            (gpus, of_size.map(|point| point.nodes).min().unwrap_or(1))
        }
    };
    let neighbours = placed.and_then(|p| p.placed.as_ref()).map(|point| point.neighbours.clone());
    let here = Configuration {
        gpus,
        nodes,
        setting: record.setting,
        neighbours: neighbours.unwrap_or_default(),
    };
    Some(prediction(surface, record.spec.gpus, &here, surface.at_us))
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
            surface = found.map(|(surface, _)| surface);
            windows =
                stored_windows(&bus, &job).await.context("the measured windows cannot be read")?;
        }
        let measured = measured(&windows, record.prediction_placed.as_deref());
        let nodes = record.placement.iter().flat_map(|placement| &placement.shares);
        let nodes = nodes.map(|share| share.node.clone()).collect();
        let summaries = summaries::of(&bus, nodes).await;
        let prediction = current(&record, surface.as_ref());
        let now = clock::now();
        let view = JobView::new(record, &summaries, now);
        if command.json {
            let all = serde_json::json!({
                "record": view,
                "surface": surface,
                "measured": measured,
                "prediction": prediction,
            });
            return print_json(&all);
        }
        print(&text::describe(&view, surface.as_ref(), &measured, prediction.as_ref(), now))
    })
}
