//! The A100 jobs made of measured files, against numbers worked out by hand from those files.

use std::io::Write as _;
use std::path::PathBuf;

use wattle_common::Frequency;
use wattle_measurements::Source;
use wattle_simulator::measured::{CLOCKS_MHZ, Measured, MeasuredError, jobs, workload_id};
use wattle_world::{GpuState, Interference, Setting, Tenant, World};

fn data() -> PathBuf {
    let beside = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    std::env::var_os("WATTLE_DATA").map_or_else(beside, PathBuf::from)
}

/// Prints past the test harness, which captures the output of passing tests.
fn not_run(why: &str) {
    writeln!(std::io::stderr(), "NOT RUN, the A100 jobs are unchecked: {why}")
        .expect("stderr is open");
}

/// The world with the measured entries; `None` with a message without files.
fn world() -> Option<World> {
    let data = data();
    if !data.join("elasticflow").is_dir() {
        let why = format!("no measurements in {}; set WATTLE_DATA", data.display());
        not_run(&why);
        return None;
    }
    let measured = Measured::find(&data).unwrap();
    assert!(measured.problems.is_empty(), "{:?}", measured.problems);
    Some(measured.world().unwrap())
}

fn gpu_state(world: &World, id: &str, gpus: u32, mhz: Option<u32>) -> GpuState {
    let a100 = world.gpu("a100").unwrap();
    let workload = world.workload(id).unwrap();
    let setting = Setting { cap: None, clock_max: mhz.map(Frequency::from_mhz) };
    world.gpu_state(a100, setting, &[Tenant { workload, gpus, nodes: gpus.div_ceil(8) }])
}

fn near(value: f64, expected: f64, by: f64) {
    assert!((value - expected).abs() <= by, "{value}, expected {expected}");
}

#[test]
fn speed_ups_are_those_of_the_files() {
    let Some(world) = world() else { return };
    let a100 = world.gpu("a100").unwrap();
    for (id, one, ups) in [
        ("bert-b128-a100", 3.57493, &[1.0, 1.59, 2.36, 2.80, 3.01, 3.01, 3.01][..]),
        ("resnet50-b256-a100", 1.84337, &[1.0, 1.87, 3.36, 5.63, 8.22, 9.67, 10.22]),
        ("gpt2-b256-a100", 4.09734, &[1.0, 1.70, 2.79, 3.82, 4.36, 4.60, 4.60]),
        ("vgg16-b256-a100", 1.31366, &[1.0, 1.92, 3.53, 6.09, 9.61, 12.46, 15.72]),
        // Not measured on 64.
        ("deepspeech2-b32-a100", 3.02316, &[1.0, 1.77, 2.50, 3.25, 4.26, 4.78, 4.78]),
    ] {
        let workload = world.workload(id).unwrap();
        for (i, up) in ups.iter().enumerate() {
            let gpus = 1 << i;
            let rate = workload.steps_per_s(a100, gpus, gpus.div_ceil(8));
            near(rate / one, *up, 0.006);
            near(gpu_state(&world, id, gpus, None).tenants[0].steps_per_s / rate, 1.0, 1e-9);
        }
    }
    for (model, batch) in jobs() {
        assert!(world.workload(&workload_id(model, batch)).is_some(), "{model} {batch}");
    }
    assert_eq!(jobs().count(), 14);
}

/// The trace's own durations are its iterations at these rates: all 876 jobs, VGG-16's too.
#[test]
fn the_trace_runs_at_these_rates() {
    let Some(world) = world() else { return };
    let path = data().join("traces/elasticflow_philly_103959.csv");
    let Ok(mut trace) = csv::Reader::from_path(&path) else {
        let why = format!("no trace at {}", path.display());
        not_run(&why);
        return;
    };
    let columns = trace.headers().unwrap().clone();
    let at = |name: &str| columns.iter().position(|c| c == name).unwrap();
    let (model, batch, gpus) = (at("model_name"), at("batch_size"), at("num_gpu"));
    let (steps, seconds) = (at("iteration"), at("duration"));
    let a100 = world.gpu("a100").unwrap();
    let (mut rows, mut gpu_h) = (0, 0.0);
    for row in trace.records().map(Result::unwrap) {
        let number = |i: usize| row[i].parse::<f64>().unwrap();
        let id = workload_id(&row[model], row[batch].parse().unwrap());
        let gpus: u32 = row[gpus].parse().unwrap();
        let takes = number(steps) / world.workload(&id).unwrap().steps_per_s(a100, gpus, 1);
        // Whole seconds are written.
        near(takes, number(seconds), 1.0 + 5e-4 * number(seconds));
        gpu_h += f64::from(gpus) * takes / 3_600.0;
        rows += 1;
    }
    assert_eq!(rows, 876);
    near(gpu_h, 42_816.0, 10.0);
}

/// A core-bound job on one GPU follows the sweep: of 400 W at 1410 MHz, 0.70 of the energy and 1.21
/// of the time at 1080.
#[test]
fn the_clock_acts_as_in_the_sweep() {
    let Some(world) = world() else { return };
    let a100 = world.gpu("a100").unwrap();
    assert!(CLOCKS_MHZ.iter().all(|mhz| a100.clocks.contains(&Frequency::from_mhz(*mhz))));
    let id = "gpt2-b256-a100";
    let (top_w, intensity) = (gpu_state(&world, id, 1, Some(1410)).power.as_w(), 0.95);
    near(top_w, 60.0 + 340.0 * intensity, 0.01);
    for (mhz, time, energy) in [
        (1335, 1.015, 0.94),
        (1260, 1.06, 0.85),
        (1215, 1.09, 0.80),
        (1170, 1.13, 0.76),
        (1080, 1.21, 0.70),
        (870, 1.48, 0.73),
    ] {
        let now = gpu_state(&world, id, 1, Some(mhz));
        near(1.0 / now.tenants[0].speed, time, 0.006);
        // As of a job of intensity 1, that draws 400 W at the top.
        let full_w = 60.0 + (now.power.as_w() - 60.0) / intensity;
        near(full_w / 400.0 / now.tenants[0].speed, energy, 0.006);
    }
    // Eight GPUs: BERT computes for 2.796 / 8 = 0.3495 of a step, and only that stretches.
    let eight = gpu_state(&world, "bert-b128-a100", 8, Some(1080));
    near(1.0 / eight.tenants[0].speed, 1.0 + 0.3495 * 0.21, 0.002);
    // VGG-16 on one GPU: 0.9 of a step.
    let vgg = gpu_state(&world, "vgg16-b64-a100", 1, Some(1080));
    near(1.0 / vgg.tenants[0].speed, 1.0 + 0.9 * 0.21, 0.002);
}

/// 340 W x intensity x (0.35 + 0.65 x scaling efficiency) above 60 W.
#[test]
fn power_falls_with_the_share_that_computes() {
    let Some(world) = world() else { return };
    for (id, gpus, expected_w) in [
        ("bert-b128-a100", 1, 366.0),
        // 306 x (0.35 + 0.65 x 0.3495) = 176.6
        ("bert-b128-a100", 8, 236.6),
        // 255 x (0.35 + 0.65 x 8.220 / 16) = 174.4
        ("resnet50-b256-a100", 16, 234.4),
        // 187 x (0.35 + 0.65 x 8.734 / 64) = 82.0
        ("deepspeech2-b64-a100", 64, 142.0),
    ] {
        near(gpu_state(&world, id, gpus, None).power.as_w(), expected_w, 0.15);
    }
}

/// Pairs by family as on the V100, and by utilisation in the mild world; memory has its limits.
#[test]
fn pairs_are_carried_by_family_and_memory_counts() {
    let Some(world) = world() else { return };
    let mild = world.clone().with_interference(Interference::Mild);
    let of = |world: &World, ids: &[&str]| {
        let a100 = world.gpu("a100").unwrap();
        let tenants: Vec<Tenant<'_>> = ids
            .iter()
            .map(|id| Tenant { workload: world.workload(id).unwrap(), gpus: 4, nodes: 1 })
            .collect();
        let state = world.gpu_state(a100, Setting::default(), &tenants);
        let speeds: Vec<f64> = state.tenants.iter().map(|t| t.speed).collect();
        (speeds, world.fits(a100, &tenants))
    };
    let (bert, resnet) = ("bert-b128-a100", "resnet50-b256-a100");
    let (speech, gpt) = ("deepspeech2-b64-a100", "gpt2-b256-a100");
    for (ids, expected) in [
        ([bert, gpt], [0.75, 0.75]),
        ([speech, speech], [0.64, 0.64]),
        ([bert, speech], [0.75, 0.72]),
        ([resnet, resnet], [0.38, 0.38]),
        ([resnet, bert], [0.48, 0.26]),
    ] {
        let (speeds, fits) = of(&world, &ids);
        near(speeds[0], expected[0], 0.02);
        near(speeds[1], expected[1], 0.02);
        assert!(fits, "{ids:?}");
    }
    // 0.945 + 0.5775 of the GPU: 0.80 at 1.5, a little less here.
    near(of(&mild, &[bert, speech]).0[0], 0.79, 0.01);
    near(of(&mild, &[bert, gpt]).0[0], 0.68, 0.01);
    // 28.5 GB each: two fit 80 GB, three do not.
    assert!(of(&world, &[gpt, gpt]).1 && !of(&world, &[gpt, gpt, gpt]).1);
}

#[test]
fn missing_files_are_named_with_their_source() {
    let none = Measured::from_sources(&[]).unwrap_err().to_string();
    assert!(none.contains("by clock") && none.contains("ml-energy/zeus"), "{none}");
    let source = |place: &str, text: String| Source {
        file: place.to_owned(),
        place: place.to_owned(),
        text,
    };
    let mut sweep = "stage,instruction,frequency,time,energy\n".to_owned();
    for mhz in CLOCKS_MHZ {
        sweep += &format!("0,forward,{mhz},{},{mhz}\n", 1410.0 / f64::from(mhz));
    }
    let sweep = source("bloom+a100_sxm_bf16.csv", sweep);
    let table = |file: &str, rate: f64| {
        source(file, format!("global_batch_size,1,2\n64,{rate},3\n128,1,1.5\n"))
    };
    let error = Measured::from_sources(std::slice::from_ref(&sweep)).unwrap_err().to_string();
    assert!(error.contains("`bert` at global batch 64"), "{error}");
    let copies = [
        sweep,
        table("a/throughputs_A100/bert.csv", 2.0),
        table("b/throughputs_A100/bert.csv", 2.5),
        // Curves of other GPUs are not used.
        table("b/throughputs_T4/bert.csv", 9.0),
    ];
    let error = Measured::from_sources(&copies).unwrap_err();
    assert!(matches!(&error, MeasuredError::Twice { what, .. } if what == "bert"), "{error}");
    let missing = Measured::find(&PathBuf::from("no/such/folder")).unwrap_err();
    assert!(matches!(&missing, MeasuredError::Unreadable { .. }), "{missing}");
}
