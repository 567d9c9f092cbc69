//! The jobs of Gavel's traces, as catalog entries: how fast each runs on V100, P100 and K80.
//!
//! Gavel (stanford-futuredata/gavel, MIT) measured 26 types of jobs on one GPU, and some of them on
//! 2, 4 and 8, of three kinds; the tables are in `sim/simulator/catalog`. Each type on each number of
//! GPUs is a workload of its own, since its batch grows with its GPUs. What comes out is the text
//! of a catalog file, read with the built-in ones, so that these jobs are told from others by data
//! alone. Gavel says nothing of power: what a type draws is a share of what a full card of the kind
//! draws above idle, and that share, like memory, is a choice (docs/world.md).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::OnceLock;

use wattle_world::World;

/// Steps a second of one type on one number of GPUs, by kind.
type Rates = BTreeMap<&'static str, f64>;

/// What is chosen for all types of one model.
struct Model {
    name: &'static str,
    dataset: &'static str,
    /// Its family in the table of pairs.
    family: &'static str,
    /// The strong-scaling row it would follow on other numbers of GPUs than it was measured on.
    scaling: &'static str,
    /// Active power as a share of a full card's: a guess.
    intensity: f64,
    /// Device memory: MiB beside the samples, and for a hundred of them. Estimates, held between
    /// the pairs that Gavel ran side by side on the K80's 12 GB and what it could not run there.
    memory_mib: (u32, u32),
}

const MODELS: [Model; 7] = [
    Model {
        name: "ResNet-18",
        dataset: "cifar10",
        family: "resnet18",
        scaling: "resnet50",
        intensity: 0.6,
        memory_mib: (1_000, 400),
    },
    Model {
        name: "ResNet-50",
        dataset: "imagenet",
        family: "resnet50",
        scaling: "resnet50",
        intensity: 0.95,
        memory_mib: (1_500, 8_500),
    },
    Model {
        name: "Transformer",
        dataset: "multi30k",
        family: "transformer",
        scaling: "bert",
        intensity: 0.9,
        memory_mib: (1_200, 3_800),
    },
    Model {
        name: "LM",
        dataset: "wikitext2",
        family: "lm",
        scaling: "deepspeech2",
        intensity: 0.7,
        memory_mib: (1_000, 4_000),
    },
    Model {
        name: "Recommendation",
        dataset: "ml20m",
        family: "recommendation",
        scaling: "bert",
        intensity: 0.4,
        memory_mib: (1_000, 55),
    },
    Model {
        name: "A3C",
        dataset: "pong",
        family: "a3c",
        scaling: "resnet50",
        intensity: 0.25,
        memory_mib: (1_000, 0),
    },
    Model {
        name: "CycleGAN",
        dataset: "monet2photo",
        family: "cyclegan",
        scaling: "resnet50",
        intensity: 0.9,
        memory_mib: (5_000, 0),
    },
];

/// Kind, idle power, and a full card's power above it, W, as the catalog has them (a test compares).
const KINDS: [(&str, f64, f64); 3] =
    [("v100", 30.0, 193.4), ("p100", 30.0, 140.6), ("k80", 26.0, 109.0)];

/// Steps that are called an epoch: the trace tells steps alone. A choice.
const EPOCH: u32 = 1_000;

/// All types with their GPUs.
fn rates() -> &'static BTreeMap<(String, u32), Rates> {
    static RATES: OnceLock<BTreeMap<(String, u32), Rates>> = OnceLock::new();
    RATES.get_or_init(|| {
        let mut rates = BTreeMap::new();
        take_in(include_str!("../catalog/gavel.csv"), &mut rates);
        take_in(include_str!("../catalog/gavel_k80.csv"), &mut rates);
        rates
    })
}

/// Adds the rows of one file, whose last columns are kinds.
fn take_in(text: &'static str, rates: &mut BTreeMap<(String, u32), Rates>) {
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let kinds: Vec<&str> = lines.next().unwrap_or_default().split(',').skip(2).collect();
    for line in lines {
        let mut cells: Vec<&str> = line.split(',').collect();
        let values = cells.split_off(cells.len().saturating_sub(kinds.len()));
        let [job_type, gpus] = cells[..] else { continue };
        let Ok(gpus) = gpus.parse() else { continue };
        let row = rates.entry((job_type.to_owned(), gpus)).or_default();
        let read =
            kinds.iter().zip(values).filter_map(|(kind, rate)| Some((*kind, rate.parse().ok()?)));
        row.extend(read);
    }
}

/// Steps a second of `job_type` on so many V100s, as in `ResNet-18 (batch size 64)`.
pub(crate) fn v100_rate(job_type: &str, gpus: u32) -> Option<f64> {
    rates().get(&(job_type.to_owned(), gpus))?.get("v100").copied()
}

/// Model and batch on each GPU of a type.
pub(crate) fn model_and_batch(job_type: &str) -> (&str, Option<u32>) {
    match job_type.split_once(" (batch size ") {
        Some((model, batch)) => (model, batch.trim_end_matches(')').parse().ok()),
        None => (job_type, None),
    }
}

/// The id of a type's workload on so many GPUs: `ResNet-18-b64-x4`, where the batch is one GPU's.
#[must_use]
pub fn workload_id(job_type: &str, gpus: u32) -> String {
    let (model, batch) = model_and_batch(job_type);
    let batch = batch.map_or_else(String::new, |batch| format!("-b{batch}"));
    format!("{model}{batch}-x{gpus}")
}

/// Text of a catalog file with all types.
#[must_use]
pub fn toml() -> String {
    let mut toml = "# Made of Gavel's tables; not to be edited.\n".to_owned();
    // Within one node, or eight GPUs on two nodes of four, is how the table was measured; else what
    // is left is the median of Gavel's own rows for V100s that are not together.
    for (gpus, nodes, left) in [
        (2, "[1, 2]", "[1.0, 0.51]"),
        (4, "[1, 2]", "[1.0, 0.5]"),
        (8, "[1, 2, 3]", "[1.0, 1.0, 0.3]"),
    ] {
        let row = format!(
            "\n[[spread]]\nname = \"gavel\"\ngpus = {gpus}\nnodes = {nodes}\nspeed = {left}\n"
        );
        toml.push_str(&row);
    }
    for ((job_type, gpus), rates) in rates() {
        let (name, batch) = model_and_batch(job_type);
        let Some(model) = MODELS.iter().find(|model| model.name == name) else { continue };
        entry(&mut toml, model, job_type, batch.unwrap_or(1), *gpus, rates);
    }
    toml
}

/// The built-in catalog and these entries.
///
/// # Panics
/// Never: a test reads it.
#[must_use]
pub fn world() -> World {
    let toml = toml();
    let mut files = World::builtin_files().to_vec();
    files.push(("gavel.toml", &toml));
    World::from_toml(&files).expect("the tables are read by a test")
}

fn entry(toml: &mut String, model: &Model, job_type: &str, batch: u32, gpus: u32, rates: &Rates) {
    let id = workload_id(job_type, gpus);
    let Model { name, dataset, family, scaling, intensity, memory_mib } = model;
    let batch_size = batch * gpus;
    let memory = memory_mib.0 + memory_mib.1 * batch / 100;
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
    for (kind, idle_w, full_w) in KINDS {
        let Some(rate) = rates.get(kind) else { continue };
        let epoch_s = f64::from(EPOCH) / rate;
        let power_w = idle_w + full_w * intensity;
        write!(
            toml,
            r#"[[workload.measured]]
gpu = "{kind}"
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
    fn each_kind_runs_a_type_as_fast_as_was_measured() {
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
        // Torn apart it loses.
        assert!(
            speed("Transformer-b128-x8", "p100", 8, 4)
                < 0.5 * speed("Transformer-b128-x8", "p100", 8, 2)
        );
        for (kind, idle_w, full_w) in KINDS {
            let gpu = world.gpu(kind).unwrap();
            let job = world.workload("CycleGAN-x1").unwrap();
            let tenant = [Tenant { workload: job, gpus: 1, nodes: 1 }];
            let drawn = world.gpu_state(gpu, Setting::default(), &tenant).power.as_w();
            assert!((gpu.idle.as_w() - idle_w).abs() < 1e-9, "{kind}");
            assert!((drawn - idle_w - 0.9 * full_w).abs() < 0.1, "{kind} {drawn}");
        }
        // What did not fit the K80 is not called fit for it.
        let large = world.workload("ResNet-50-b128-x1").unwrap();
        assert!(large.memory_mib > world.gpu("k80").unwrap().memory_mib);
        assert_eq!(rates().len(), 83);
    }
}
