//! How long FIFO and Tiresias take on 5,000 jobs and 32 nodes of 4 GPUs: parsed, built, simulated,
//! checked.
//!
//! Run with `cargo bench -p wattle-simulator`. With `$WATTLE_DATA` (or the folder beside the
//! workspace) the trace is the public one of tests/suite/peer.rs; without it, a seeded one of the same
//! shape. The goal is 0.16 s for the simulation; the peer takes 8.0 s.

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]
#![allow(clippy::print_stdout, reason = "a benchmark prints its trace and results")]

use std::path::PathBuf;

use wattle_baselines::policy;
use wattle_common::rng::Stream;
use wattle_simulator::{Restarts, RunOptions, Scenario, run_with, trace};
use wattle_world::World;

/// As in the binaries.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    println!("on {}", machine());
    if published().is_none() {
        println!("the public trace is not there; a seeded one of the same shape is used");
    }
    divan::main();
}

/// The processor's name, which every figure needs.
fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or("an unknown processor", |(_, name)| name).to_owned()
}

fn published() -> Option<Vec<u8>> {
    let data = std::env::var_os("WATTLE_DATA").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
        PathBuf::from,
    );
    std::fs::read(data.join("traces/philly_5k_tiresias_format.csv")).ok()
}

/// 5,000 jobs like the public ones: as many of each size, as long in the mean, as densely packed.
fn made() -> Vec<u8> {
    let mut stream = Stream::new(7, "bench");
    let mut at = 0.0;
    let mut text =
        "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n".to_owned();
    for i in 0..5_000 {
        let gpus = match stream.below(5_000) {
            0..3 => 16,
            3..22 => 8,
            22..81 => 4,
            81..117 => 2,
            _ => 1,
        };
        // A mean of 4,850 s with the long tail of real jobs.
        let duration = (1_000.0 * (1.78 * stream.normal()).exp()).min(1.7e6).round();
        text += &format!("{i},{gpus},{},1000,resnet50,{duration},0\n", f64::round(at));
        at += -300.0 * (1.0 - stream.unit()).ln();
    }
    text.into_bytes()
}

fn scenario(world: &World) -> Scenario {
    let bytes = published().unwrap_or_else(made);
    let trace = trace::parse("5k", &bytes).unwrap();
    Scenario::from_trace(world, &trace, &"32x4:v100".parse().unwrap(), 7).unwrap()
}

#[divan::bench]
fn simulate_fifo(bencher: divan::Bencher<'_, '_>) {
    let world = World::builtin();
    let scenario = scenario(&world);
    let options = RunOptions::default();
    let fifo = policy("fifo").unwrap();
    bencher.bench_local(|| run_with(&world, &scenario, &*fifo, &options).unwrap());
}

/// Tiresias's queues, with restarts free as the peer has them. The peer takes 18.7 s.
#[divan::bench(sample_count = 20)]
fn simulate_tiresias(bencher: divan::Bencher<'_, '_>) {
    let world = World::builtin();
    let scenario = scenario(&world);
    let tiresias = policy("tiresias").unwrap();
    let options = RunOptions { restarts: Restarts::Free, ..RunOptions::default() };
    bencher.bench_local(|| run_with(&world, &scenario, &*tiresias, &options).unwrap());
}

#[divan::bench]
fn read_and_build(bencher: divan::Bencher<'_, '_>) {
    let world = World::builtin();
    bencher.bench(|| scenario(&world));
}

/// For comparison: with profiles, predictions and observations.
#[divan::bench(sample_count = 3, sample_size = 1)]
fn simulate_eaco(bencher: divan::Bencher<'_, '_>) {
    let world = World::builtin();
    let scenario = scenario(&world);
    let options = RunOptions::default();
    let eaco = policy("eaco").unwrap();
    bencher.bench_local(|| run_with(&world, &scenario, &*eaco, &options).unwrap());
}
