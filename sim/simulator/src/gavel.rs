//! Catalog entries for the jobs of Gavel's traces: speeds on V100, P100 and K80.
//!
//! Gavel (stanford-futuredata/gavel, MIT) measured 26 job types on one GPU, and some of them on 2,
//! 4 and 8, of three GPU types; the tables are in `sim/simulator/catalog`. Each job type on each
//! GPU count is a workload of its own, since its batch grows with the GPUs. Gavel did not measure
//! power: a job's power above idle is a chosen share of that of a full GPU (`catalog/gavel.toml`,
//! docs/world.md). The result is the text of a catalog file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::OnceLock;

use serde::Deserialize;
use wattle_world::World;

/// Steps per second of one job type on one GPU count, by GPU type.
type Rates = BTreeMap<&'static str, f64>;

/// `catalog/gavel.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Choices {
    model: Vec<Model>,
    gpu: Vec<Gpu>,
    spread: Vec<Spread>,
}

/// A model, for all its job types.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    name: String,
    dataset: String,
    family: String,
    scaling: String,
    intensity: f64,
    memory_mib: Memory,
}

/// Device memory of a job, MiB.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Memory {
    fixed: u32,
    per_hundred: u32,
}

/// A GPU type, with its idle power and the power of a full GPU above it, W.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Gpu {
    name: String,
    idle_w: f64,
    full_w: f64,
}

/// Speeds of a job on several nodes, relative to one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Spread {
    gpus: u32,
    nodes: Vec<u32>,
    speed: Vec<f64>,
}

impl Choices {
    fn get() -> &'static Self {
        static CHOICES: OnceLock<Choices> = OnceLock::new();
        CHOICES.get_or_init(|| {
            let text = include_str!("../catalog/gavel.toml");
            toml::from_str(text).expect("a test reads the shipped file")
        })
    }
}

/// Steps of an epoch: a choice, since the trace has steps only.
const EPOCH: u32 = 1_000;

/// The measured rates by job type and GPU count.
fn rates() -> &'static BTreeMap<(String, u32), Rates> {
    static RATES: OnceLock<BTreeMap<(String, u32), Rates>> = OnceLock::new();
    RATES.get_or_init(|| {
        let mut rates = BTreeMap::new();
        add_rows(include_str!("../catalog/gavel.csv"), &mut rates);
        add_rows(include_str!("../catalog/gavel_k80.csv"), &mut rates);
        rates
    })
}

/// Adds the rows of one file, whose last columns are GPU types.
fn add_rows(text: &'static str, rates: &mut BTreeMap<(String, u32), Rates>) {
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let gpu_types: Vec<&str> = lines.next().unwrap_or_default().split(',').skip(2).collect();
    for line in lines {
        let mut cells: Vec<&str> = line.split(',').collect();
        let values = cells.split_off(cells.len().saturating_sub(gpu_types.len()));
        let [job_type, gpus] = cells[..] else { continue };
        let Ok(gpus) = gpus.parse() else { continue };
        let row = rates.entry((job_type.to_owned(), gpus)).or_default();
        let read = gpu_types
            .iter()
            .zip(values)
            .filter_map(|(name, rate)| Some((*name, rate.parse().ok()?)));
        row.extend(read);
    }
}

/// Steps per second of a job type, such as `ResNet-18 (batch size 64)`, on `gpus` V100s.
pub(crate) fn v100_rate(job_type: &str, gpus: u32) -> Option<f64> {
    rates().get(&(job_type.to_owned(), gpus))?.get("v100").copied()
}

/// The model of a job type, and its batch per GPU.
pub(crate) fn model_and_batch(job_type: &str) -> (&str, Option<u32>) {
    match job_type.split_once(" (batch size ") {
        Some((model, batch)) => (model, batch.trim_end_matches(')').parse().ok()),
        None => (job_type, None),
    }
}

/// The id of a job type's workload on `gpus` GPUs: `ResNet-18-b64-x4`; the batch is per GPU.
#[must_use]
pub fn workload_id(job_type: &str, gpus: u32) -> String {
    let (model, batch) = model_and_batch(job_type);
    let batch = batch.map_or_else(String::new, |batch| format!("-b{batch}"));
    format!("{model}{batch}-x{gpus}")
}

/// Text of a catalog file with all job types.
#[must_use]
pub fn toml() -> String {
    let mut toml = "# Generated from Gavel's tables; do not edit.\n".to_owned();
    let choices = Choices::get();
    for Spread { gpus, nodes, speed } in &choices.spread {
        let row = format!(
            "\n[[spread]]\nname = \"gavel\"\ngpus = {gpus}\nnodes = {nodes:?}\nspeed = {speed:?}\n"
        );
        toml.push_str(&row);
    }
    for ((job_type, gpus), rates) in rates() {
        let (name, batch) = model_and_batch(job_type);
        let Some(model) = choices.model.iter().find(|model| model.name == name) else { continue };
        entry(&mut toml, model, job_type, batch.unwrap_or(1), *gpus, rates);
    }
    toml
}

/// The built-in catalog with these entries.
///
/// # Panics
/// Never: a test reads the tables.
#[must_use]
pub fn world() -> World {
    let toml = toml();
    let mut files = World::builtin_files().to_vec();
    files.push(("gavel.toml", &toml));
    World::from_toml(&files).expect("a test reads the tables")
}

fn entry(toml: &mut String, model: &Model, job_type: &str, batch: u32, gpus: u32, rates: &Rates) {
    let id = workload_id(job_type, gpus);
    let Model { name, dataset, family, scaling, intensity, memory_mib } = model;
    let batch_size = batch * gpus;
    let memory = memory_mib.fixed + memory_mib.per_hundred * batch / 100;
    write!(
        toml,
        r#"
[[workload]]
id = "{id}"
model = "{name}"
dataset = "{dataset}"
batch_size = {batch_size}
gpus = {gpus}
steps_per_epoch = {EPOCH}
epochs = 30
memory_mib = {memory}
family = "{family}"
scaling = "{scaling}"
scaling_of_step = true
spread = "gavel"
source = "stanford-futuredata/gavel (MIT); power and memory are choices"
"#
    )
    .expect("a String takes every text");
    for Gpu { name: gpu_type, idle_w, full_w } in &Choices::get().gpu {
        let Some(rate) = rates.get(gpu_type.as_str()) else { continue };
        let epoch_s = f64::from(EPOCH) / rate;
        let power_w = idle_w + full_w * intensity;
        write!(
            toml,
            r#"[[workload.measured]]
gpu = "{gpu_type}"
epoch_s = [{epoch_s:.6}]
power_w = [{power_w:.1}]
"#
        )
        .expect("a String takes every text");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattle_world::{Setting, Tenant};

    #[test]
    fn speeds_equal_the_measured_rates() {
        let world = world();
        let speed = |id: &str, kind: &str, gpus: u32, nodes: u32| {
            let workload = world.workload(id).unwrap();
            workload.steps_per_s(world.gpu(kind).unwrap(), gpus, nodes)
        };
        let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-4;
        assert!(close(speed("ResNet-50-b64-x1", "v100", 1, 1), 4.39));
        assert!(close(speed("ResNet-50-b64-x1", "k80", 1, 1), 0.746));
        assert!(close(
            speed("Transformer-b128-x8", "p100", 8, 1),
            speed("Transformer-b128-x8", "p100", 8, 2)
        ));
        // Speed falls on more nodes.
        assert!(
            speed("Transformer-b128-x8", "p100", 8, 4)
                < 0.5 * speed("Transformer-b128-x8", "p100", 8, 2)
        );
        for Gpu { name: kind, idle_w, full_w } in &Choices::get().gpu {
            let gpu = world.gpu(kind).unwrap();
            let job = world.workload("CycleGAN-x1").unwrap();
            let tenant = [Tenant { workload: job, gpus: 1, nodes: 1 }];
            let drawn = world.gpu_state(gpu, Setting::default(), &tenant).power.as_w();
            assert!((gpu.idle.as_w() - idle_w).abs() < 1e-9, "{kind}");
            assert!((drawn - idle_w - 0.9 * full_w).abs() < 0.1, "{kind} {drawn}");
        }
        // Jobs that did not fit the K80 do not fit it here.
        let large = world.workload("ResNet-50-b128-x1").unwrap();
        assert!(large.memory_mib > world.gpu("k80").unwrap().memory_mib);
        assert_eq!(rates().len(), 83);
    }
}
