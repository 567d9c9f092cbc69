//! The GPU suite: on the simulated node in every run, on real GPUs if `GPU_TESTS=1`.
//!
//! Both tests start the same binary with another NVML library and training command. The real test
//! requires PyTorch for the `python3` in the path, changes no settings of the GPU, and writes its record
//! to `GPU_SUITE_OUT` (default: a temporary directory, printed). A skipped test prints NOT RUN.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use wattle_common::env;
use wattle_runtime::testing::{Weight, turn};
use wattle_tests::simulated_clock::SimulatedClock;
use wattle_tests::{program, repository};

/// Seconds of system time per second of wall time.
const RATE: &str = "20";
const MODELS: [&str; 2] = ["resnet50-imagenet-b64", "bert-squad-b32"];

fn suite() -> Command {
    Command::new(env!("CARGO_BIN_EXE_wattle-gpu-suite"))
}

/// A simulated node, and the clock that waits for the processes on it.
fn node(state: &Path, gpus: &str) -> SimulatedClock {
    let mut create = Command::new(program("wattle-simnode"));
    create.arg("create").arg("--state").arg(state);
    create.args(["--node", "n0", "--gpus", gpus, "--gpu-type", "v100", "--rate", RATE]);
    assert!(create.status().unwrap().success());
    SimulatedClock::start(&[state.to_owned()])
}

fn simulated(state: &Path, out: &Path, models: &[&str], seconds: &str) -> Command {
    let train =
        format!("{} --workload {{model}} --steps 100000000", program("wattle-simjob").display());
    let mut suite = suite();
    suite.env(env::CLOCK, state).env(env::SIM_NODE, state);
    suite.arg("--nvml-library").arg(program("libnvml_sim.so")).arg("--out").arg(out);
    suite.args(["--train", &train, "--models", &models.join(",")]);
    suite.args(["--seconds", seconds, "--settle", "5", "--name", "simulated"]);
    suite
}

fn text(output: &Output) -> String {
    let all = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&all).into_owned()
}

/// The record's file with this ending.
fn file(out: &Path, ending: &str) -> String {
    let files = std::fs::read_dir(out).unwrap().map(|file| file.unwrap().path());
    let mut named = files.filter(|path| path.to_string_lossy().ends_with(ending));
    std::fs::read_to_string(named.next().unwrap()).unwrap()
}

/// The row of the page's table under `heading` that begins with `first`.
fn row<'a>(page: &'a str, heading: &str, first: &str) -> Vec<&'a str> {
    let section = page.split("\n## ").find(|section| section.starts_with(heading)).unwrap();
    let line = section.lines().find(|line| line.starts_with(&format!("| {first} |"))).unwrap();
    line.trim_matches('|').split('|').map(str::trim).collect()
}

fn number(cell: &str) -> f64 {
    cell.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn simulated_gpu() {
    let _turn = turn(Weight::Long);
    let folder = tempfile::tempdir().unwrap();
    let (state, out) = (folder.path().join("n0"), folder.path().join("out"));
    // A sample must not be late by simulated seconds: the counter is compared with the integral of samples.
    let _clock = node(&state, "2");

    let done = simulated(&state, &out, &MODELS, "60").output().unwrap();
    assert!(done.status.success(), "{}", text(&done));
    let page = file(&out, ".md");
    let tables: toml::Table = toml::from_str(&file(&out, ".toml")).unwrap();
    let list = |key: &str| tables[key].as_array().unwrap().clone();
    assert_eq!((list("exclusive").len(), list("pair").len()), (2, 2), "{page}");

    for entry in list("exclusive") {
        let model = entry["workload"].as_str().unwrap();
        let (rate, watts) =
            (entry["steps_per_s"].as_float().unwrap(), entry["power_w"].as_float().unwrap());
        assert!(rate > 0.1 && (30.0..250.0).contains(&watts), "{entry}");
        assert!(entry["memory_mib"].as_integer().unwrap() > 0 && entry["batch_size"].is_integer());
        let shown = row(&page, "Exclusive use", model);
        assert!((number(shown[4]) - watts / rate).abs() < 0.01 * watts / rate, "{shown:?}");
        // The energy counter equals the integral of power.
        let sensors = row(&page, "Sensors", model);
        assert!((number(sensors[3]) - 1.0).abs() < 0.01, "{sensors:?}");
        assert!(number(sensors[4]) < 50.0, "{sensors:?}");
        // Simulated power is constant between events, so no period may be detected.
        assert!(sensors[5].starts_with("refused"), "{sensors:?}");
    }
    let pair = row(&page, "Co-located pairs", MODELS[0]);
    let exclusive: Vec<f64> =
        MODELS.iter().map(|model| number(row(&page, "Exclusive use", model)[3])).collect();
    let (speeds, together) = ([number(pair[2]), number(pair[3])], number(pair[5]));
    assert!(speeds.iter().all(|speed| (0.2..1.02).contains(speed)), "{pair:?}");
    assert!(
        together > exclusive[0].min(exclusive[1]) && together < exclusive[0] + exclusive[1],
        "{pair:?}"
    );
    let samples = file(&out, "-samples.csv");
    let of_pair = samples.lines().filter(|line| line.contains(" + ")).count();
    assert!(samples.lines().count() > 100 && of_pair > 30, "{}", samples.lines().count());

    let again = simulated(&state, &out, &MODELS, "60").output().unwrap();
    assert!(!again.status.success() && text(&again).contains("never overwritten"));
    assert_eq!(file(&out, ".md"), page);
}

#[test]
fn usage_errors_state_the_cause() {
    let folder = tempfile::tempdir().unwrap();
    let fails = |arguments: &[&str], code: i32, words: &str| {
        let mut suite = suite();
        suite.arg("--out").arg(folder.path()).args(arguments);
        let done = suite.output().unwrap();
        assert_eq!(done.status.code(), Some(code), "{}", text(&done));
        assert!(text(&done).contains(words), "{}", text(&done));
    };
    fails(&["--train", "python3 train.py"], 2, "{model}");
    fails(&["--models", "a,b", "--pairs", "a+c"], 2, "c is not in --models");
    fails(&["--nvml-library", "/nowhere/libnvidia-ml.so"], 1, "/nowhere/libnvidia-ml.so");
}

#[test]
fn failed_training_is_part_of_the_record() {
    let folder = tempfile::tempdir().unwrap();
    let (state, out) = (folder.path().join("n0"), folder.path().join("out"));
    let _clock = node(&state, "1");
    let done = simulated(&state, &out, &["no-such-model"], "5").output().unwrap();
    assert_eq!(done.status.code(), Some(1), "{}", text(&done));
    assert!(file(&out, ".md").contains("unknown workload"), "{}", file(&out, ".md"));
}

#[test]
fn real_gpus() {
    if std::env::var("GPU_TESTS").as_deref() != Ok("1") {
        let _ = writeln!(
            std::io::stderr(),
            "\nNOT RUN: set GPU_TESTS=1 to run the suite on a GPU of this machine, with PyTorch (read-only)"
        );
        return;
    }
    let out = std::env::var_os("GPU_SUITE_OUT").map_or_else(
        || std::env::temp_dir().join(format!("wattle-gpu-suite-{}", std::process::id())),
        Into::into,
    );
    let train = format!("python3 {} --model {{model}}", repository("tests/gpu/train.py").display());
    let done = suite().arg("--out").arg(&out).args(["--train", &train]).output().unwrap();
    let _ = writeln!(std::io::stderr(), "\n{}", text(&done));
    assert!(done.status.success());
}
