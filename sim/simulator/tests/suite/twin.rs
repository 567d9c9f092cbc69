//! The twin of a run is the run of the baseline: its completion times and energy on the same jobs.

use wattle_common::aim::Baseline;
use wattle_placer::policy;
use wattle_simulator::{Lengths, PolicyOutcome, RunOptions, Scenario, generator, run_with};
use wattle_world::World;

fn scenario(world: &World, load: f64, seed: u64) -> Scenario {
    let cluster = "4x8:v100".parse().unwrap();
    let trace = generator::generate(200, seed);
    let mut scenario = Scenario::from_trace(world, &trace, &cluster, seed).unwrap();
    scenario.set_load(world, load).unwrap();
    scenario
}

fn run(world: &World, scenario: &Scenario, name: &str, options: &RunOptions) -> PolicyOutcome {
    run_with(world, scenario, policy(name).unwrap().as_ref(), options).unwrap()
}

/// Completion time and energy above idle of the twin relative to a run of its policy, minus 1.
fn errors(scenario: &Scenario, name: &str, baseline: Baseline, options: &RunOptions) -> (f64, f64) {
    let world = World::builtin();
    let alone = run(&world, scenario, baseline.name(), &RunOptions::default());
    let options = RunOptions { twin: Some(baseline), ..options.clone() };
    let twin = run(&world, scenario, name, &options).twin.expect("it ran beside the policy");
    assert_eq!(twin.jobs as usize, alone.finished, "{twin:?}");
    let completion = twin.jct_s_mean.unwrap() / alone.jct_s_mean.unwrap() - 1.0;
    (completion, twin.energy_kwh_above_idle / alone.energy_kwh_above_idle - 1.0)
}

#[test]
fn a_twin_of_its_own_policy_is_the_run() {
    let world = World::builtin();
    let exact = RunOptions { oracle: true, ..RunOptions::default() };
    for (name, baseline) in [("fifo", Baseline::Fifo), ("backfill", Baseline::Backfill)] {
        let (completion, _) = errors(&scenario(&world, 0.9, 3), name, baseline, &exact);
        assert!(completion.abs() < 1e-9, "{name}: {completion}");
    }
}

#[test]
fn a_twin_beside_wattle_is_the_run_of_the_baseline() {
    let world = World::builtin();
    for (load, seed) in [(0.5, 3), (0.8, 4), (1.1, 5)] {
        for lengths in [Lengths::Reported, Lengths::Unknown] {
            for price in [0.0, 0.002] {
                let options = RunOptions { price, lengths, ..RunOptions::default() };
                let of = scenario(&world, load, seed);
                let (completion, energy) = errors(&of, "wattle", Baseline::Backfill, &options);
                eprintln!("{load} {lengths:?} {price}: {completion:.4} {energy:.4}");
                assert!(completion.abs() < 0.03, "{load} {lengths:?} {price}: {completion}");
                assert!(energy.abs() < 0.02, "{load} {lengths:?} {price}: {energy}");
            }
        }
    }
}

#[test]
fn measure_aims() {
    let world = World::builtin();
    for (load, seed) in [(0.5, 3), (0.8, 4), (1.1, 5)] {
        let of = scenario(&world, load, seed);
        for baseline in [Baseline::Backfill, Baseline::Fifo] {
            let before = run(&world, &of, baseline.name(), &RunOptions::default());
            for share in [0.0, 0.03, 0.1] {
                let aim = Some(wattle_common::aim::AimBound { baseline: Some(baseline), share });
                let options = RunOptions { aim, ..RunOptions::default() };
                let after = run(&world, &of, "wattle", &options);
                let twin = after.twin.clone().unwrap();
                eprintln!(
                    "{load} {baseline} {share}: later {:+.3} by the twin {:+.3}, energy {:+.3} above idle {:+.3}",
                    after.jct_s_mean.unwrap() / before.jct_s_mean.unwrap() - 1.0,
                    twin.later.unwrap(),
                    after.energy_kwh / before.energy_kwh - 1.0,
                    after.energy_kwh_above_idle / before.energy_kwh_above_idle - 1.0,
                );
            }
        }
    }
}
