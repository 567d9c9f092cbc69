//! Lone elastic jobs settle in simulated runs.

use std::time::Duration;

use wattle_baselines::policy;
use wattle_common::job::GpuRequest;
use wattle_simulator::{RunOptions, Scenario, run_recorded, trace};
use wattle_world::World;

/// Ten times the restart cost on one GPU, s.
const SETTLES_S: u64 = 310;

/// A lone job of half an hour on one GPU, with up to four, of every workload of the catalog. Its size is
/// measured, tried and kept.
#[test]
fn a_lone_job_of_any_workload_settles() {
    let world = World::builtin();
    let csv = "job_id,submit_s,duration_s,num_gpus,vc\na,0,1800,1,x\n";
    let trace = trace::parse("lone.csv", csv.as_bytes()).unwrap();
    let cluster = "1x4:v100".parse().unwrap();
    let scenario = Scenario::from_trace(&world, &trace, &cluster, 7).unwrap();
    for workload in world.workloads() {
        let mut scenario = scenario.clone();
        scenario.jobs[0].workload = workload.id.clone();
        scenario.jobs[0].gpus = GpuRequest { min: 1, max: 4 };
        for name in ["afs", "powerflow", "greenflow", "wattle"] {
            let policy = policy(name).unwrap();
            let options = RunOptions::default();
            let run = run_recorded(&world, &scenario, policy.as_ref(), &options, &mut |_, _| {});
            let (outcome, recording) = run.unwrap();
            let placements = &recording.jobs[0].placements;
            let sizes: Vec<u32> = placements.iter().map(|p| p.on.gpu_count()).collect();
            let context = format!("{name}, {}: {sizes:?}", workload.id);
            assert!(sizes.len() <= 3, "{context}");
            assert_eq!(outcome.restarts_max as usize, sizes.len() - 1, "{context}");
            assert_eq!(outcome.early_stops, 0, "{context}");
            for moved in &placements[..placements.len() - 1] {
                let ran = Duration::from_micros(moved.until_us - moved.from_us);
                assert!(ran.as_secs() >= SETTLES_S, "{context} after {ran:?}");
            }
        }
    }
}

/// The demonstration: 24 jobs on eight GPUs, which share GPUs.
#[test]
fn wattle_stops_no_job_early_or_shortly_before_its_end() {
    let world = World::builtin();
    let csv = include_bytes!("../../../../deploy/demo/trace.csv");
    let trace = trace::parse("trace.csv", csv).unwrap();
    let cluster = "2x4:v100".parse().unwrap();
    let wattle = policy("wattle").unwrap();
    for seed in 7..10 {
        let scenario = Scenario::from_trace(&world, &trace, &cluster, seed).unwrap();
        let options = RunOptions::default();
        let run = run_recorded(&world, &scenario, wattle.as_ref(), &options, &mut |_, _| {});
        let (outcome, recording) = run.unwrap();
        assert_eq!(outcome.early_stops, 0);
        let pieces: usize = recording.jobs.iter().map(|job| job.placements.len()).sum();
        assert!(pieces > recording.jobs.len() + 10, "jobs hardly move: {pieces}");
    }
}
