//! The A100 jobs of the ElasticFlow trace, as catalog entries made of measured files.
//!
//! Files below a folder give what was measured: iterations a second by global batch and GPUs
//! (pkusys/ElasticFlow), and time and energy of a large model's step by locked clock (Perseus, in
//! ml-energy/zeus). Those files stay where they are; only choices and derived figures stand here,
//! each named as what it is. What comes out is the text of a catalog file, read with the built-in
//! ones by [`World::from_toml`], so that these jobs are told from others by data alone. This module
//! decides nothing and simulates nothing.
//!
//! A choice is a guess that nobody measured: `intensity`, `core_bound`, [`WAITING_SHARE`],
//! [`DYNAMIC_W`], memory, and which family of the pair table a model is like.

use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use wattle_evaluation::{ClockSweep, ModelRates, Problem, Source};
use wattle_world::{CatalogError, World};

/// The card they were measured on.
const KIND: &str = "a100";
/// Its power with no tenant, W, as the catalog has it (a test compares).
const IDLE_W: f64 = 60.0;
/// Power above idle of a job of intensity 1 on one GPU at the top clock, W: what is left of the
/// card's 400. A choice.
const DYNAMIC_W: f64 = 340.0;
/// Share of its dynamic power that a job draws while it waits for its other GPUs. A choice.
const WAITING_SHARE: f64 = 0.35;
/// Share of time on the card for each unit of intensity: a choice, so that a job that draws nearly
/// all a card can is on it all the time.
const BUSY_BY_INTENSITY: f64 = 1.05;
/// The clocks of the sweep that are kept, MHz: from where energy rises again to the top.
pub const CLOCKS_MHZ: [u32; 12] =
    [870, 930, 990, 1035, 1080, 1125, 1170, 1215, 1260, 1305, 1335, 1410];
/// The card's lowest clock, MHz. Below the sweep speed and power fall with the clock: carried.
const CLOCK_MIN_MHZ: u32 = 210;
/// The model whose sweep is taken where there are several.
const SWEEP_OF: &str = "bloom";
/// GPU counts of a job.
const GPUS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
/// A file larger than this is none of these.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// A header is within so many bytes.
const HEADER_BYTES: u64 = 64 << 10;
/// Folders below each other at most; deeper ones are a loop.
const DEPTH_MAX: usize = 32;

/// What is chosen for a model.
struct Model {
    name: &'static str,
    /// Global batches of the trace.
    batches: &'static [u32],
    /// What ElasticFlow trained it on, and samples in an epoch.
    dataset: (&'static str, u32),
    /// Epochs of a whole training, for who has no trace: a choice.
    epochs: u32,
    /// Dynamic power as a share of [`DYNAMIC_W`]: a guess.
    intensity: f64,
    /// Share of the computing part of a step that answers to the core clock: a guess.
    core_bound: f64,
    /// What it is like in the table of pairs (V100), and in that of spreading over nodes.
    like: (&'static str, &'static str),
    /// Device memory: MiB a sample, and beside the samples. Estimates, of the same kind as the
    /// catalog's others, and well below the 40 GB that the largest batch ran in.
    memory_mib: (u32, u32),
}

/// The trace's six models. Families: BERT and GPT-2 are Transformers, `DeepSpeech2` is recurrent as
/// the table's LM is, the three large convolutional networks are like its ResNet-50.
const MODELS: [Model; 6] = [
    Model {
        name: "bert",
        batches: &[64, 128],
        dataset: ("cola", 8_551),
        epochs: 30,
        intensity: 0.9,
        core_bound: 1.0,
        like: ("transformer", "vgg16"),
        memory_mib: (100, 2_600),
    },
    Model {
        name: "deepspeech2",
        batches: &[32, 64],
        dataset: ("librispeech", 281_241),
        epochs: 30,
        intensity: 0.55,
        core_bound: 0.7,
        like: ("lm", "resnet101"),
        memory_mib: (160, 1_300),
    },
    Model {
        name: "gpt2",
        batches: &[128, 256],
        dataset: ("aclimdb", 25_000),
        epochs: 30,
        intensity: 0.95,
        core_bound: 1.0,
        like: ("transformer", "vgg16"),
        memory_mib: (100, 2_900),
    },
    Model {
        name: "inception3",
        batches: &[64, 128],
        dataset: ("imagenet", 1_281_167),
        epochs: 90,
        intensity: 0.7,
        core_bound: 0.8,
        like: ("resnet50", "inception_v3"),
        memory_mib: (90, 1_200),
    },
    Model {
        name: "resnet50",
        batches: &[64, 128, 256],
        dataset: ("imagenet", 1_281_167),
        epochs: 90,
        intensity: 0.75,
        core_bound: 0.85,
        like: ("resnet50", "resnet101"),
        memory_mib: (82, 1_200),
    },
    Model {
        name: "vgg16",
        batches: &[64, 128, 256],
        dataset: ("imagenet", 1_281_167),
        epochs: 90,
        intensity: 0.9,
        core_bound: 0.9,
        like: ("resnet50", "vgg16"),
        memory_mib: (110, 2_500),
    },
];

/// VGG-16, whose file is missing in some copies of the data: steps/s on one GPU and speed-ups over
/// [`GPUS`], by batch. Derived from ElasticFlow's `throughputs_A100/vgg16.csv` (Apache-2.0); on 1, 2
/// and 4 GPUs the trace itself (iterations over duration) gives the same to 0.01 %. A file below the
/// folder goes before this.
const VGG16: [(u32, f64, [f64; 7]); 3] = [
    (64, 5.0530, [1.0, 1.788, 2.920, 3.825, 5.124, 6.047, 5.845]),
    (128, 2.6248, [1.0, 1.857, 3.322, 5.171, 6.880, 8.997, 9.823]),
    (256, 1.3137, [1.0, 1.920, 3.534, 6.087, 9.608, 12.463, 15.724]),
];

/// Why there are no such entries.
#[derive(Debug, thiserror::Error)]
pub enum MeasuredError {
    /// A folder or file cannot be read.
    #[error("{path}: cannot be read; name a folder that this user may read")]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// Something is not there.
    #[error("no {what} in any file; it is in {from}")]
    Missing {
        /// What.
        what: String,
        /// The public source of it.
        from: &'static str,
    },
    /// Two files say different things of one model.
    #[error("{first} and {second} both have `{what}`, and differ; keep one of them")]
    Twice {
        /// What.
        what: String,
        /// One file.
        first: String,
        /// The other.
        second: String,
    },
    /// The figures make no catalog.
    #[error("the measured figures make no catalog")]
    Catalog(#[from] CatalogError),
}

/// Where the rates come from.
const RATES_FROM: &str = "pkusys/ElasticFlow, ElasticFlow/scheduler/throughputs_A100";
/// Where the clock sweep comes from.
const SWEEP_FROM: &str = "ml-energy/zeus, the Perseus stage profiles of an A100 (SOSP'24 data)";

/// The entries, and what they were made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Text of a catalog file, for [`World::from_toml`] beside the built-in ones.
    pub toml: String,
    /// The files used, in the order of their names.
    pub files: Vec<String>,
    /// What in them could not be used.
    pub problems: Vec<Problem>,
}

/// The id of a model's jobs at a global batch: `bert-b64-a100`.
#[must_use]
pub fn workload_id(model: &str, batch: u32) -> String {
    format!("{model}-b{batch}-{KIND}")
}

/// Every model and global batch that has an entry.
pub fn jobs() -> impl Iterator<Item = (&'static str, u32)> {
    MODELS.iter().flat_map(|m| m.batches.iter().map(|b| (m.name, *b)))
}

impl Measured {
    /// What the files below `dir` give, however deep they lie.
    ///
    /// # Errors
    /// [`MeasuredError`] says what is missing, and where it is published.
    pub fn find(dir: &Path) -> Result<Self, MeasuredError> {
        let mut sources = Vec::new();
        walk(dir, dir, 0, &mut sources)?;
        Self::from_sources(&sources)
    }

    /// What these files give; which is which is known by their columns and places.
    ///
    /// # Errors
    /// [`MeasuredError`] says what is missing, and where it is published.
    pub fn from_sources(sources: &[Source]) -> Result<Self, MeasuredError> {
        let mut sources: Vec<&Source> = sources.iter().collect();
        sources.sort_by(|a, b| a.file.cmp(&b.file));
        let (mut rates, mut sweeps) = (Vec::new(), Vec::new());
        let mut problems = Vec::new();
        for source in sources {
            if let Some((found, wrong)) = wattle_evaluation::model_rates(source)
                && found.gpu_type == KIND
                && MODELS.iter().any(|m| m.name == found.model)
            {
                rates.push((source.file.clone(), found));
                problems.extend(wrong);
            } else if let Some((found, wrong)) = wattle_evaluation::clock_sweep(source)
                && found.gpu_type == KIND
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
        let mut toml = "# Made of measured files; not to be edited.\n".to_owned();
        for model in &MODELS {
            let found = of_model(&rates, model.name)?;
            files.extend(found.map(|(file, _)| file.clone()));
            for &batch in model.batches {
                let speeds = speeds(model.name, found.map(|(_, rates)| rates), batch)?;
                entry(&mut toml, model, batch, &speeds, &clock);
            }
        }
        files.sort();
        files.dedup();
        Ok(Self { toml, files, problems })
    }

    /// The built-in catalog and these entries.
    ///
    /// # Errors
    /// Where the figures make no catalog.
    pub fn world(&self) -> Result<World, CatalogError> {
        let mut files = World::builtin_files().to_vec();
        files.push(("measured.toml", &self.toml));
        World::from_toml(&files)
    }
}

/// Every small file of one of the two formats below `dir`, in the order of names.
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
        let format = wattle_evaluation::recognise(&String::from_utf8_lossy(&start));
        if matches!(
            format,
            Some(wattle_evaluation::Format::Throughputs | wattle_evaluation::Format::Stages)
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

/// The one file of a model; `None` where there is none. Copies that say the same are one.
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

/// Steps a second by GPUs, ascending from one. More GPUs never make a job slower: its owner would
/// leave them idle.
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
        None if model == "vgg16" => {
            let row = VGG16.iter().find(|(b, _, _)| *b == batch);
            row.map_or(Vec::new(), |(_, one, ups)| {
                GPUS.iter().zip(ups).map(|(gpus, up)| (*gpus, one * up)).collect()
            })
        }
        None => Vec::new(),
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

/// The sweep at [`CLOCKS_MHZ`], each reading the mean of itself and its neighbours. Power is what
/// the sweep's energy over its time gives for a whole card that draws 400 W at the top, less idle.
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
    let id = workload_id(model.name, batch);
    let (dataset, samples) = model.dataset;
    let steps = samples.div_ceil(batch);
    let one = speeds[0].1;
    let list = |items: &mut dyn Iterator<Item = String>| items.collect::<Vec<_>>().join(", ");
    let gpus = list(&mut speeds.iter().map(|(gpus, _)| gpus.to_string()));
    let ups = list(&mut speeds.iter().map(|(_, speed)| format!("{:.6}", speed / one)));
    let clock = list(&mut clock.iter().map(|(mhz, s, a)| format!("[{mhz}, {s:.6}, {a:.6}]")));
    let (family, spread) = model.like;
    let memory = model.memory_mib.0 * batch + model.memory_mib.1;
    let (name, epochs, core_bound) = (model.name, model.epochs, model.core_bound);
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
gpu = "{KIND}"
epoch_s = [{epoch_s:.6}]
power_w = [{power_w:.3}]
busy = {busy:.4}
core_bound = {core_bound}
clock = [{clock}]
"#
    )
    .expect("a String takes every text");
}
