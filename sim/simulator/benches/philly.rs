//! How long all 82,247 jobs of the Philly table take on 320 nodes of 8 A100, and how much memory:
//! `cargo bench -p wattle-simulator --bench philly -- fifo` (or `wattle`, `tiresias`, `srtf`).
//!
//! `PHILLY_JOBS=10000` uses the first 10,000 jobs.
//!
//! As `wattle-lab compare philly --oracle --world alone` runs them: true surfaces, lengths known, any
//! number of GPUs from one to 64 where the policy is elastic. Needs the table below `WATTLE_DATA`
//! (or the folder beside the workspace). The goals are 60 s for `wattle`, 2 s for `fifo`, 2 GB for
//! all.

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]
#![allow(clippy::print_stdout, reason = "a benchmark prints its trace and results")]

use std::path::PathBuf;

use wattle_baselines::policy;
use wattle_common::job::GpuRequest;
use wattle_common::topology::ClusterShape;
use wattle_simulator::{Lengths, RunOptions, Scenario, Work, run_with, trace};
use wattle_world::World;

/// As in the binaries.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The largest size of an elastic job, as in the scenario `philly` of `wattle-lab compare`.
const GPUS_MAX: u32 = 64;

fn main() {
    divan::main();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find(|line| line.starts_with("VmHWM"));
    println!(
        "memory at its peak: {}",
        peak.unwrap_or("not known").trim_start_matches("VmHWM:").trim()
    );
}

fn table() -> Option<PathBuf> {
    let data = std::env::var_os("WATTLE_DATA").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
        PathBuf::from,
    );
    let file = data.join("traces/philly_jobs.csv.gz");
    file.is_file().then_some(file)
}

fn scenario(world: &World, file: &std::path::Path, elastic: bool) -> Scenario {
    let mut trace = trace::read(file).unwrap();
    if let Some(jobs) = std::env::var("PHILLY_JOBS").ok().and_then(|jobs| jobs.parse().ok()) {
        trace.keep_first(jobs);
    }
    let mut scenario =
        Scenario::from_trace(world, &trace, &"320x8:a100".parse::<ClusterShape>().unwrap(), 7)
            .unwrap();
    let gpu = world.gpu("a100").unwrap();
    for job in &mut scenario.jobs {
        let workload = world.workload(job.workload.as_str()).unwrap();
        if let Work::Lasts(span) = job.work {
            let rate = workload.steps_per_s(gpu, job.gpus.min, job.gpus.min.div_ceil(8));
            job.work = Work::Steps(((span.as_secs_f64() * rate).round() as u64).max(1));
        }
        if elastic {
            job.gpus = GpuRequest { min: 1, max: GPUS_MAX };
        }
    }
    scenario
}

#[divan::bench(args = ["fifo", "srtf", "tiresias", "wattle"], sample_count = 1, sample_size = 1)]
fn philly(bencher: divan::Bencher<'_, '_>, name: &str) {
    let Some(file) = table() else {
        println!("the table is not there; see WATTLE_DATA");
        return;
    };
    let world = World::builtin();
    let policy = policy(name).unwrap();
    let scenario = scenario(&world, &file, policy.capabilities().is_elastic);
    let options = RunOptions {
        oracle: true,
        lengths: Lengths::Known,
        tenants_max: Some(1),
        ..RunOptions::default()
    };
    bencher.bench_local(|| {
        let outcome = run_with(&world, &scenario, &*policy, &options).unwrap();
        println!(
            "{name}: {} jobs, mean completion {:.0} s, {:.1} MWh, {} rescales",
            outcome.finished,
            outcome.jct_s_mean.unwrap_or_default(),
            outcome.energy_kwh_above_idle / 1e3,
            outcome.rescales
        );
    });
}
