//! Catalog entries for the A100 jobs of the ElasticFlow trace, from measured files.
//!
//! The measured files are in a data folder, outside this repository: iterations per second by
//! global batch and GPU count (pkusys/ElasticFlow), and time and energy of a large model's step by
//! locked clock (Perseus, in ml-energy/zeus). `catalog/elasticflow.toml` holds the remaining
//! inputs, most of which are choices that no source measured; [`WAITING_SHARE`] and [`DYNAMIC_W`]
//! are choices too. The result is the text of a catalog file for [`World::from_toml`].

use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::Deserialize;
use wattle_measurements::{ClockSweep, ModelRates, Problem, Source};
use wattle_world::{CatalogError, World};

/// The GPU type of the measurements.
const GPU_TYPE: &str = "a100";
/// Idle power of that GPU, W, as in the catalog (a test compares).
const IDLE_W: f64 = 60.0;
/// Power above idle of a job of intensity 1 on one GPU at the top clock, W: the rest of the GPU's
/// 400 W. A choice.
const DYNAMIC_W: f64 = 340.0;
/// Share of its dynamic power that a job draws while it waits for communication. A choice.
const WAITING_SHARE: f64 = 0.35;
/// Busy share of a GPU per unit of intensity: a choice, so that a job near the highest power is
/// busy all the time.
const BUSY_BY_INTENSITY: f64 = 1.05;
/// The clocks kept of the sweep, MHz: from the one of least energy to the top.
pub const CLOCKS_MHZ: [u32; 12] =
    [870, 930, 990, 1035, 1080, 1125, 1170, 1215, 1260, 1305, 1335, 1410];
/// The GPU's lowest clock, MHz. Below the sweep, speed and power are extrapolated in proportion.
const CLOCK_MIN_MHZ: u32 = 210;
/// The preferred model where the folder has several sweeps.
const SWEEP_OF: &str = "bloom";
/// GPU counts of the rates.
const GPUS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Larger files are skipped.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Bytes read to recognize a file by its header.
const HEADER_BYTES: u64 = 64 << 10;
/// Largest folder depth; guards against loops of links.
const DEPTH_MAX: usize = 32;

/// `catalog/elasticflow.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Choices {
    model: Vec<Model>,
    fallback: Vec<FallbackRates>,
}

/// A model of the trace.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    name: String,
    batches: Vec<u32>,
    dataset: String,
    samples: u32,
    epochs: u32,
    intensity: f64,
    core_bound: f64,
    family: String,
    spread: String,
    memory_mib: Memory,
}

/// Device memory of a job, MiB.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Memory {
    per_sample: u32,
    fixed: u32,
}

/// Rates of a model whose file may be missing: steps/s on one GPU, and speedups on [`GPUS`].
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FallbackRates {
    model: String,
    batch: u32,
    steps_per_s: f64,
    speedups: Vec<f64>,
}

impl Choices {
    fn get() -> &'static Self {
        static CHOICES: OnceLock<Choices> = OnceLock::new();
        CHOICES.get_or_init(|| {
            let text = include_str!("../catalog/elasticflow.toml");
            toml::from_str(text).expect("a test reads the shipped file")
        })
    }
}

/// Why entries cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum MeasuredError {
    /// A folder or file cannot be read.
    #[error("cannot read {path}; give a readable folder")]
    Unreadable {
        /// The path.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
    /// A measurement is missing.
    #[error("no {what} in any file; it is published in {from}")]
    Missing {
        /// The measurement.
        what: String,
        /// Its public source.
        from: &'static str,
    },
    /// Two files have different measurements of one model.
    #[error("{first} and {second} both have `{what}`, and differ; keep one of them")]
    Twice {
        /// The model.
        what: String,
        /// One file.
        first: String,
        /// The other.
        second: String,
    },
    /// The measurements give an invalid catalog.
    #[error("the measured files give an invalid catalog")]
    Catalog(#[from] CatalogError),
}

/// Source of the rates.
const RATES_FROM: &str = "pkusys/ElasticFlow, ElasticFlow/scheduler/throughputs_A100";
/// Source of the clock sweep.
const SWEEP_FROM: &str = "ml-energy/zeus, the Perseus stage profiles of an A100 (SOSP'24 data)";

/// Catalog entries, and the files they come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Text of a catalog file, for [`World::from_toml`].
    pub toml: String,
    /// The files used, by name.
    pub files: Vec<String>,
    /// Rows that could not be used.
    pub problems: Vec<Problem>,
}

/// The id of a model's jobs at a global batch: `bert-b64-a100`.
#[must_use]
pub fn workload_id(model: &str, batch: u32) -> String {
    format!("{model}-b{batch}-{GPU_TYPE}")
}

/// Every model and global batch with an entry.
pub fn jobs() -> impl Iterator<Item = (&'static str, u32)> {
    let models = Choices::get().model.iter();
    models.flat_map(|m| m.batches.iter().map(|batch| (m.name.as_str(), *batch)))
}

impl Measured {
    /// The entries from the files in `dir` and its subfolders.
    ///
    /// # Errors
    /// [`MeasuredError`] names what is missing and where it is published.
    pub fn find(dir: &Path) -> Result<Self, MeasuredError> {
        let mut sources = Vec::new();
        walk(dir, dir, 0, &mut sources)?;
        Self::from_sources(&sources)
    }

    /// The entries from these files, whose formats are recognized by columns and paths.
    ///
    /// # Errors
    /// [`MeasuredError`] names what is missing and where it is published.
    pub fn from_sources(sources: &[Source]) -> Result<Self, MeasuredError> {
        let choices = Choices::get();
        let mut sources: Vec<&Source> = sources.iter().collect();
        sources.sort_by(|a, b| a.file.cmp(&b.file));
        let (mut rates, mut sweeps) = (Vec::new(), Vec::new());
        let mut problems = Vec::new();
        for source in sources {
            if let Some((found, wrong)) = wattle_measurements::model_rates(source)
                && found.gpu_type == GPU_TYPE
                && choices.model.iter().any(|m| m.name == found.model)
            {
                rates.push((source.file.clone(), found));
                problems.extend(wrong);
            } else if let Some((found, wrong)) = wattle_measurements::clock_sweep(source)
                && found.gpu_type == GPU_TYPE
            {
                sweeps.push((source.file.clone(), found));
                problems.extend(wrong);
            }
        }
        let wanted = sweeps.iter().find(|(_, sweep)| sweep.model == SWEEP_OF).or(sweeps.first());
        let (sweep_file, sweep) = wanted.ok_or_else(|| MeasuredError::Missing {
            what: "time and energy of an A100 by clock".to_owned(),
            from: SWEEP_FROM,
        })?;
        let clock = clock_curve(sweep)?;
        let mut files = vec![sweep_file.clone()];
        let mut toml = "# Generated from measured files; do not edit.\n".to_owned();
        for model in &choices.model {
            let found = of_model(&rates, &model.name)?;
            files.extend(found.map(|(file, _)| file.clone()));
            for &batch in &model.batches {
                let speeds = speeds(&model.name, found.map(|(_, rates)| rates), batch)?;
                entry(&mut toml, model, batch, &speeds, &clock);
            }
        }
        files.sort();
        files.dedup();
        Ok(Self { toml, files, problems })
    }

    /// The built-in catalog with these entries.
    ///
    /// # Errors
    /// Where the entries give an invalid catalog.
    pub fn world(&self) -> Result<World, CatalogError> {
        let mut files = World::builtin_files().to_vec();
        files.push(("measured.toml", &self.toml));
        World::from_toml(&files)
    }
}

/// Collects the files of the two formats in `dir` and its subfolders, by name.
fn walk(root: &Path, dir: &Path, depth: usize, out: &mut Vec<Source>) -> Result<(), MeasuredError> {
    let unreadable = |path: &Path| {
        let path = path.to_owned();
        move |source| MeasuredError::Unreadable { path, source }
    };
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir).map_err(unreadable(dir))? {
        paths.push(entry.map_err(unreadable(dir))?.path());
    }
    paths.sort();
    for path in paths {
        let Ok(about) = fs::metadata(&path) else { continue };
        if about.is_dir() && depth < DEPTH_MAX {
            walk(root, &path, depth + 1, out)?;
        }
        let table = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("csv"));
        if !table || !about.is_file() || about.len() > FILE_BYTES_MAX {
            continue;
        }
        let mut start = Vec::new();
        let file = fs::File::open(&path).map_err(unreadable(&path))?;
        file.take(HEADER_BYTES).read_to_end(&mut start).map_err(unreadable(&path))?;
        let format = wattle_measurements::recognise(&String::from_utf8_lossy(&start));
        if matches!(
            format,
            Some(wattle_measurements::Format::Throughputs | wattle_measurements::Format::Stages)
        ) {
            let text = fs::read(&path).map_err(unreadable(&path))?;
            out.push(Source {
                file: path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned(),
                place: path.to_string_lossy().into_owned(),
                text: String::from_utf8_lossy(&text).into_owned(),
            });
        }
    }
    Ok(())
}

/// The file of a model; `None` without one. Identical copies count as one.
fn of_model<'a>(
    rates: &'a [(String, ModelRates)],
    model: &str,
) -> Result<Option<&'a (String, ModelRates)>, MeasuredError> {
    let mut of = rates.iter().filter(|(_, r)| r.model == model);
    let Some(first) = of.next() else { return Ok(None) };
    match of.find(|(_, other)| other.rates != first.1.rates) {
        None => Ok(Some(first)),
        Some((second, _)) => Err(MeasuredError::Twice {
            what: model.to_owned(),
            first: first.0.clone(),
            second: second.clone(),
        }),
    }
}

/// Steps per second by GPU count, ascending from one. The speed is made non-decreasing, since a job
/// may leave GPUs idle.
fn speeds(
    model: &str,
    rates: Option<&ModelRates>,
    batch: u32,
) -> Result<Vec<(u32, f64)>, MeasuredError> {
    let mut speeds: Vec<(u32, f64)> = match rates {
        Some(rates) => rates
            .rates
            .iter()
            .filter(|r| r.batch == batch && GPUS.contains(&r.gpus))
            .map(|r| (r.gpus, r.steps_per_s))
            .collect(),
        None => {
            let mut fallback = Choices::get().fallback.iter();
            let row = fallback.find(|row| row.model == model && row.batch == batch);
            row.map_or(Vec::new(), |row| {
                let ups = GPUS.iter().zip(&row.speedups);
                ups.map(|(gpus, up)| (*gpus, row.steps_per_s * up)).collect()
            })
        }
    };
    if speeds.first().is_none_or(|(gpus, _)| *gpus != 1) {
        let what = format!("steps/s of `{model}` at global batch {batch} on one A100");
        return Err(MeasuredError::Missing { what, from: RATES_FROM });
    }
    let mut top = 0.0_f64;
    for (_, speed) in &mut speeds {
        top = top.max(*speed);
        *speed = top;
    }
    Ok(speeds)
}

/// MHz, speed, and power above idle, relative to the top clock.
type ClockPoint = (u32, f64, f64);

/// The sweep at [`CLOCKS_MHZ`], smoothed over adjacent clocks. Power is the sweep's energy over its
/// time, scaled to 400 W at the top clock, minus idle power.
fn clock_curve(sweep: &ClockSweep) -> Result<Vec<ClockPoint>, MeasuredError> {
    let smooth = |mhz: u32| {
        let at = sweep.clocks.iter().position(|c| c.mhz == mhz).ok_or_else(|| {
            let what = format!("time and energy of an A100 at {mhz} MHz");
            MeasuredError::Missing { what, from: SWEEP_FROM }
        })?;
        let near = &sweep.clocks[at.saturating_sub(1)..(at + 2).min(sweep.clocks.len())];
        let mean = |sum: f64| sum / near.len() as f64;
        let time: f64 = near.iter().map(|c| c.time_s).sum();
        let energy: f64 = near.iter().map(|c| c.energy_j).sum();
        Ok::<_, MeasuredError>((mean(time), mean(energy)))
    };
    let (top_time, top_energy) = smooth(CLOCKS_MHZ[CLOCKS_MHZ.len() - 1])?;
    let mut points = Vec::new();
    for mhz in CLOCKS_MHZ {
        let (time, energy) = smooth(mhz)?;
        let (time, energy) = (time / top_time, energy / top_energy);
        let active = ((IDLE_W + DYNAMIC_W) * energy / time - IDLE_W) / DYNAMIC_W;
        points.push((mhz, 1.0 / time, active));
    }
    let (mhz, speed, active) = points[0];
    let low = f64::from(CLOCK_MIN_MHZ) / f64::from(mhz);
    points.insert(0, (CLOCK_MIN_MHZ, speed * low, active * low));
    Ok(points)
}

fn entry(
    toml: &mut String,
    model: &Model,
    batch: u32,
    speeds: &[(u32, f64)],
    clock: &[ClockPoint],
) {
    let id = workload_id(&model.name, batch);
    let (dataset, samples) = (&model.dataset, model.samples);
    let steps = samples.div_ceil(batch);
    let one = speeds[0].1;
    let list = |items: &mut dyn Iterator<Item = String>| items.collect::<Vec<_>>().join(", ");
    let gpus = list(&mut speeds.iter().map(|(gpus, _)| gpus.to_string()));
    let ups = list(&mut speeds.iter().map(|(_, speed)| format!("{:.6}", speed / one)));
    let clock = list(&mut clock.iter().map(|(mhz, s, a)| format!("[{mhz}, {s:.6}, {a:.6}]")));
    let (family, spread) = (&model.family, &model.spread);
    let memory = model.memory_mib.per_sample * batch + model.memory_mib.fixed;
    let (name, epochs, core_bound) = (&model.name, model.epochs, model.core_bound);
    let epoch_s = f64::from(steps) / one;
    let power_w = IDLE_W + DYNAMIC_W * model.intensity;
    let busy = (BUSY_BY_INTENSITY * model.intensity).min(1.0);
    write!(
        toml,
        r#"
[[scaling]]
name = "{id}"
gpus = [{gpus}]
speed = [{ups}]

[[workload]]
id = "{id}"
model = "{name}"
dataset = "{dataset}"
batch_size = {batch}
gpus = 1
steps_per_epoch = {steps}
epochs = {epochs}
memory_mib = {memory}
family = "{family}"
scaling = "{id}"
scaling_of_step = true
spread = "{spread}"
waiting_share = {WAITING_SHARE}
source = "pkusys/ElasticFlow (Apache-2.0); ml-energy/zeus SOSP'24 stage profiles (Apache-2.0); power, memory and core-bound share are choices"
[[workload.measured]]
gpu = "{GPU_TYPE}"
epoch_s = [{epoch_s:.6}]
power_w = [{power_w:.3}]
busy = {busy:.4}
core_bound = {core_bound}
clock = [{clock}]
"#
    )
    .expect("a String takes every text");
}
