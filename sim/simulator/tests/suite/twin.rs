//! The twin of a run is the run of the baseline: its completion times and energy on the same jobs.

use wattle_common::aim::{AimBound, Baseline};
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

/// A twin relative to a run of its policy.
#[derive(Debug)]
struct Error {
    /// Relative error of the mean completion time, and of the energy above idle.
    completion: f64,
    energy: f64,
    /// Error of the saved share of the energy above idle, and half the width of its interval.
    saved: f64,
    width: f64,
}

fn error(scenario: &Scenario, name: &str, baseline: Baseline, options: &RunOptions) -> Error {
    let world = World::builtin();
    let alone = run(&world, scenario, baseline.name(), &RunOptions::default());
    let options = RunOptions { twin: Some(baseline), ..options.clone() };
    let of = run(&world, scenario, name, &options);
    let twin = of.twin.clone().expect("it ran beside the policy");
    assert_eq!(twin.jobs as usize, alone.finished, "{twin:?}");
    let truth = 1.0 - of.energy_kwh_above_idle / alone.energy_kwh_above_idle;
    Error {
        completion: twin.jct_s_mean.unwrap() / alone.jct_s_mean.unwrap() - 1.0,
        energy: twin.energy_kwh_above_idle / alone.energy_kwh_above_idle - 1.0,
        saved: twin.saved_kwh_above_idle / twin.energy_kwh_above_idle - truth,
        width: twin.saved_kwh_error / twin.energy_kwh_above_idle,
    }
}

#[test]
fn a_twin_of_its_own_policy_is_the_run() {
    let world = World::builtin();
    for (name, baseline) in [("fifo", Baseline::Fifo), ("backfill", Baseline::Backfill)] {
        let of = scenario(&world, 0.9, 3);
        let error = error(&of, name, baseline, &RunOptions::default());
        assert!(error.completion.abs() < 1e-9, "{name}: {error:?}");
    }
}

#[test]
fn a_twin_beside_wattle_is_the_run_of_the_baseline() {
    let world = World::builtin();
    let mut errors = Vec::new();
    for (load, seed) in [(0.5, 3), (0.8, 4), (1.1, 5)] {
        for lengths in [Lengths::Reported, Lengths::Unknown] {
            let of = scenario(&world, load, seed);
            let options = RunOptions { price: 0.002, lengths, ..RunOptions::default() };
            errors.push(error(&of, "wattle", Baseline::Backfill, &options));
        }
    }
    let most =
        |of: fn(&Error) -> f64| errors.iter().map(|error| of(error).abs()).fold(0.0, f64::max);
    assert!(most(|error| error.completion) < 0.03, "{errors:#?}");
    assert!(most(|error| error.energy) < 0.025, "{errors:#?}");
    assert!(most(|error| error.saved) < 0.02, "{errors:#?}");
    assert!(most(|error| error.width) < 0.05, "{errors:#?}");
    let mean =
        |of: fn(&Error) -> f64| errors.iter().map(|error| of(error).abs()).sum::<f64>() / 6.0;
    assert!(mean(|error| error.energy) < 0.015 && mean(|error| error.saved) < 0.01, "{errors:#?}");
    // Of 90 % intervals.
    let covered = errors.iter().filter(|error| error.saved.abs() < error.width).count();
    assert!(covered >= 5, "{errors:#?}");
}

/// Mean completion time under the aim relative to the baseline, minus 1: of the runs and by the twin.
fn later(load: f64, baseline: Baseline, share: f64) -> (f64, f64) {
    let world = World::builtin();
    let of = scenario(&world, load, 4);
    let before = run(&world, &of, baseline.name(), &RunOptions::default());
    let aim = Some(AimBound::mean(Some(baseline), share));
    let after = run(&world, &of, "wattle", &RunOptions { aim, ..RunOptions::default() });
    let later = after.jct_s_mean.unwrap() / before.jct_s_mean.unwrap() - 1.0;
    (later, after.twin.unwrap().later.unwrap())
}

#[test]
fn the_aim_relative_to_a_baseline_holds() {
    for share in [0.0, 0.05] {
        let (later, by_twin) = later(0.8, Baseline::Backfill, share);
        assert!(later <= share + 0.02, "{share}: {later}");
        assert!((later - by_twin).abs() < 0.02, "{share}: {later}, by the twin {by_twin}");
    }
}
