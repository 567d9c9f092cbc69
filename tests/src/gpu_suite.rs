//! Measurements of a GPU under real training: accuracy of its sensors, and interference of co-located
//! jobs.
//!
//! The profiler's sampler, socket and state machine run in this process; training runs in child
//! processes. The NVML library and the training command are arguments, so the same code runs on a real
//! GPU with PyTorch and, in every test run, on a simulated one with `wattle-simjob`. It never sets a
//! cap or a clock.

mod profiler;
mod record;
mod run;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use wattle_gpu::Driver;
use wattle_gpu::nvml::NvmlDriver;
use wattle_runtime::clock;

pub use record::{Machine, Record, family};
pub use run::{JobMeasurement, Run};

/// The measurements to make.
#[derive(Clone, Debug)]
pub struct Plan {
    /// NVML library; default: the system's.
    pub library: Option<PathBuf>,
    /// GPU index.
    pub gpu: u32,
    /// Training command with the placeholder `{model}`.
    pub train: Vec<String>,
    /// Models to train exclusively.
    pub models: Vec<String>,
    /// Pairs of models to co-locate on the GPU.
    pub pairs: Vec<(String, String)>,
    /// Duration of each measurement, seconds of system time.
    pub seconds: u64,
    /// Settling time before it, from the first report of every job, seconds of system time.
    pub settle: u64,
    /// Output directory.
    pub out: PathBuf,
    /// Name of the record; default: the GPU type.
    pub name: Option<String>,
}

/// Timeout for the first report of every job (wall time); a first start compiles kernels.
const START_TIMEOUT: Duration = Duration::from_secs(300);
/// Duration of the initial idle measurement, seconds of system time.
const IDLE_S: u64 = 5;

/// Makes the measurements and writes the record; returns its files.
///
/// # Errors
/// If the driver fails, or a file exists or cannot be written. Failed training runs are part of the
/// record.
pub async fn perform(plan: &Plan) -> Result<(Record, Vec<PathBuf>)> {
    let driver = NvmlDriver::open(plan.library.as_deref())?;
    let count = driver.count()?;
    if plan.gpu >= count {
        bail!("--gpu {}: this machine has {count} GPUs", plan.gpu);
    }
    let info = driver.info(plan.gpu)?;
    drop(driver);
    let name = plan.name.clone().unwrap_or_else(|| info.gpu_type.clone());
    let files = record::Files::create(&plan.out, &name, clock::now())?;

    let directory = tempfile::tempdir().context("cannot create a temporary directory")?;
    let mut profiler = profiler::Profiler::start(plan, directory.path())?;
    let idle = profiler.measure_idle(Duration::from_secs(IDLE_S)).await?;
    let mut record = Record::new(Machine::of(&info), plan, &idle);
    let exclusive = plan.models.iter().map(|model| vec![model.clone()]);
    let co_located = plan.pairs.iter().map(|(one, other)| vec![one.clone(), other.clone()]);
    for models in exclusive.chain(co_located) {
        tracing::info!(models = models.join(" + "), "training");
        let run = run::measure(&mut profiler, plan, directory.path(), &models).await?;
        if let Some(failed) = &run.failed {
            tracing::warn!(models = models.join(" + "), failed, "training failed");
        }
        record.runs.push(run);
    }
    let written = files.write(&record)?;
    Ok((record, written))
}
