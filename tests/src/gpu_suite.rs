//! Real training on a card, watched by the profiler: what its sensors are worth, and what jobs do to
//! each other on one card.
//!
//! The profiler's own sampler, socket and machine run in this process; training runs beside it. Which
//! NVML library and which training command are arguments, so the same code runs on a real card with
//! PyTorch and, in every test run, on a simulated one with `wattle-simjob`. It only reads the card:
//! no cap and no clock is ever set.

mod record;
mod run;
mod watch;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use wattle_gpu::Driver;
use wattle_gpu::nvml::NvmlDriver;
use wattle_runtime::clock;

pub use record::{Machine, Record, family};
pub use run::{JobSeen, Run};

/// What to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The NVML library, where it is not the system's.
    pub library: Option<PathBuf>,
    /// The card.
    pub gpu: u32,
    /// The training command; `{model}` stands for the model.
    pub train: Vec<String>,
    /// Models, each trained alone.
    pub models: Vec<String>,
    /// Pairs of them, each trained together on the card.
    pub pairs: Vec<(String, String)>,
    /// How long each is measured, in the system's time.
    pub seconds: u64,
    /// How long it runs before that, from the first report of every job.
    pub settle: u64,
    /// Where the record goes.
    pub out: PathBuf,
    /// What the record is named after; the card's kind where it is not said.
    pub name: Option<String>,
}

/// Wall time within which every job of a run must have reported: a first start compiles kernels.
const START_WITHIN: Duration = Duration::from_secs(300);
/// System's time for which the idle card is watched first.
const IDLE_S: u64 = 5;

/// Runs the plan and writes its record; where that lies.
///
/// # Errors
/// Where the driver does not answer, a file is there already or cannot be written. A training that
/// fails does not end the suite: the record says so.
pub async fn perform(plan: &Plan) -> Result<(Record, Vec<PathBuf>)> {
    let driver = NvmlDriver::open(plan.library.as_deref())?;
    let count = driver.count()?;
    if plan.gpu >= count {
        bail!("--gpu {}: this machine has {count} cards", plan.gpu);
    }
    let info = driver.info(plan.gpu)?;
    drop(driver);
    let name = plan.name.clone().unwrap_or_else(|| info.gpu_type.clone());
    let files = record::Files::claim(&plan.out, &name, clock::now())?;

    let folder = tempfile::tempdir().context("no temporary folder")?;
    let mut watch = watch::Watch::start(plan, folder.path())?;
    let idle = watch.idle(Duration::from_secs(IDLE_S)).await?;
    let mut record = Record::new(Machine::of(&info), plan, &idle);
    let alone = plan.models.iter().map(|model| vec![model.clone()]);
    let together = plan.pairs.iter().map(|(one, other)| vec![one.clone(), other.clone()]);
    for models in alone.chain(together) {
        tracing::info!(models = models.join(" + "), "training");
        let run = run::measure(&mut watch, plan, folder.path(), &models).await?;
        if let Some(failed) = &run.failed {
            tracing::warn!(models = models.join(" + "), failed, "training failed");
        }
        record.runs.push(run);
    }
    let written = files.write(&record)?;
    Ok((record, written))
}
