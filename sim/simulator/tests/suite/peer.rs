//! The simulator against one written elsewhere, on a public trace.
//!
//! The 5,000 jobs of Philly in Tiresias' format (github.com/SymbioticLab/Tiresias), 32 nodes of 4
//! GPUs, under the peer's `fifo` and `dlas-gpu`: its mean completion times are 33,863 s and 7,977
//! s, its makespans 1,795,409 s and 1,797,553 s. The trace is not part of this repository: the
//! tests look for it in `$WATTLE_DATA` or beside the workspace, and say loudly where it is not.

#![allow(clippy::print_stdout, reason = "what it reached is shown with the test")]

use std::io::Write as _;
use std::path::PathBuf;

use crate::named::run;
use wattle_baselines::policy;
use wattle_common::rng::Stream;
use wattle_placer::allocation::capacity::{FreeCapacity, Scope};
use wattle_placer::allocation::first_fit::first_fit;
use wattle_placer::{Decision, Plan, PlanningInput, Policy};
use wattle_simulator::{Restarts, RunOptions, Scenario, run_with, trace};
use wattle_world::World;

fn data() -> PathBuf {
    std::env::var_os("WATTLE_DATA").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
        PathBuf::from,
    )
}

fn scenario(world: &World) -> Option<Scenario> {
    of_file(world, "philly_5k_tiresias_format.csv", "32x4:v100")
}

fn of_file(world: &World, file: &str, cluster: &str) -> Option<Scenario> {
    let path = data().join("traces").join(file);
    if !path.exists() {
        let why = format!("{} is not there; set WATTLE_DATA to the folder of data", path.display());
        // Past what a passing test's output is swallowed by.
        writeln!(std::io::stderr(), "NOT RUN, peers are unchecked: {why}").expect("stderr is open");
        return None;
    }
    let trace = trace::read(&path).unwrap();
    Some(Scenario::from_trace(world, &trace, &cluster.parse().unwrap(), 7).unwrap())
}

#[test]
fn fifo_agrees_with_its_peer_to_the_second() {
    let world = World::builtin();
    let Some(scenario) = scenario(&world) else { return };
    let outcome = run(&world, &scenario, &["fifo"]).unwrap();
    let fifo = &outcome.policies[0];
    println!("{}", outcome.to_table());
    println!("{}", outcome.to_json());
    assert_eq!((fifo.jobs, fifo.finished), (5_000, 5_000));
    assert_eq!(fifo.jct_s_mean.unwrap().round() as u64, 33_863);
    assert_eq!(fifo.makespan_s.round() as u64, 1_795_409);
}

/// The peer charges nothing for a restart, and counts GPUs where jobs here need them together.
#[test]
fn tiresias_agrees_with_its_peer_within_three_per_cent() {
    let world = World::builtin();
    let Some(scenario) = scenario(&world) else { return };
    let options = RunOptions { restarts: Restarts::Free, ..RunOptions::default() };
    let tiresias = policy("tiresias").unwrap();
    let free = run_with(&world, &scenario, &*tiresias, &options).unwrap();
    let charged = run_with(&world, &scenario, &*tiresias, &RunOptions::default()).unwrap();
    for outcome in [&free, &charged] {
        println!(
            "mean {:?} s, makespan {} s, {} restarts of {} GPU hours",
            outcome.jct_s_mean, outcome.makespan_s, outcome.migrations, outcome.restart_gpu_h
        );
        assert_eq!((outcome.jobs, outcome.finished), (5_000, 5_000));
    }
    let mean = free.jct_s_mean.unwrap();
    assert!((mean / 7_976.9 - 1.0).abs() < 0.03, "{mean} s");
    assert!((free.makespan_s / 1_797_553.0 - 1.0).abs() < 0.03, "{} s", free.makespan_s);
    assert!(free.restart_gpu_h.abs() < 1e-9);
    assert!(charged.restart_gpu_h > 0.0 && charged.jct_s_mean > free.jct_s_mean);
}

/// Gavel's trace of one of Philly's virtual clusters under its `fifo`, 16 GPUs each of three kinds:
/// 105,060 s on average. That code gives a job the last by name of the kinds that have room, so
/// V100s first, then P100s, then K80s: the cluster's order here. It counts GPUs of a kind, wherever
/// they are, and plans in rounds of six minutes.
#[test]
fn fifo_on_three_kinds_agrees_with_gavel_within_five_per_cent() {
    const PEER_S: f64 = 105_060.0;
    let world = wattle_simulator::gavel::world();
    let mean = |cluster: &str| {
        let scenario = of_file(&world, "gavel_msr_e13805.trace", cluster)?;
        let outcome = run(&world, &scenario, &["fifo"]).unwrap();
        let fifo = &outcome.policies[0];
        assert_eq!((fifo.jobs, fifo.finished), (504, 504));
        let mean = fifo.jct_s_mean.unwrap();
        println!("{cluster}: mean {mean:.0} s, {:+.1} %", 100.0 * (mean / PEER_S - 1.0));
        Some(mean)
    };
    let Some(counted) = mean("1x16:v100,1x16:p100,1x16:k80") else { return };
    assert!((counted / PEER_S - 1.0).abs() < 0.05, "{counted} s where GPUs are only counted");
    let in_nodes = mean("4x4:v100,4x4:p100,4x4:k80").unwrap();
    assert!((in_nodes / PEER_S - 1.0).abs() < 0.05, "{in_nodes} s on nodes of four");
    // The order of kinds is what decides: slowest first takes most of twice as long.
    let slow_first = mean("4x4:k80,4x4:p100,4x4:v100").unwrap();
    assert!(slow_first > 1.5 * in_nodes, "{slow_first} s with the slowest kind first");
    // Drawn at random, as the peer's code is meant to, they take longer too.
    let scenario = of_file(&world, "gavel_msr_e13805.trace", "4x4:v100,4x4:p100,4x4:k80").unwrap();
    let draws = 0..20;
    let means: Vec<f64> = draws
        .map(|seed| {
            let drawn = run_with(&world, &scenario, &AnyKind(seed), &RunOptions::default());
            drawn.unwrap().jct_s_mean.unwrap()
        })
        .collect();
    let least = means.iter().copied().fold(f64::INFINITY, f64::min);
    let all = means.iter().sum::<f64>() / means.len() as f64;
    println!("kinds at random: mean {all:.0} s over {} draws, at least {least:.0} s", means.len());
    assert!(least > 1.1 * PEER_S, "{means:?}");
}

/// FIFO that draws a kind for each job among those with room.
struct AnyKind(u64);

impl Policy for AnyKind {
    fn name(&self) -> &str {
        "fifo, kinds at random"
    }

    fn solve(&self, input: PlanningInput<'_>) -> Plan {
        let mut plan = Plan::default();
        let mut capacity = FreeCapacity::new(input.state, Scope::Idle);
        for (key, job) in input.state.queue() {
            let on = |kind: &str| {
                let mut request = job.clone();
                request.facts.gpu_type = Some(kind.into());
                first_fit(&capacity, &request)
            };
            let mut found: Vec<_> = ["k80", "p100", "v100"].into_iter().filter_map(on).collect();
            if found.is_empty() {
                break;
            }
            let at = Stream::new(self.0, job.facts.id.as_str()).below(found.len() as u64);
            let (on, reason) = found.swap_remove(at as usize);
            capacity.take(&on);
            plan.decisions.push(Decision::start(key, on, reason));
        }
        plan
    }
}
