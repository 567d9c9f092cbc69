//! The controller of the energy aim holds its bound: in a simulation, the mean completion time relative to a
//! run at price 0 stays near the bound, and energy is saved.

use wattle_common::aim::AimBound;
use wattle_placer::policy;
use wattle_simulator::{PolicyOutcome, RunOptions, Scenario, generator, run_with};
use wattle_world::World;

fn run(world: &World, scenario: &Scenario, name: &str, bound: Option<f64>) -> PolicyOutcome {
    let aim = bound.map(|share| AimBound::mean(None, share));
    let options = RunOptions { aim, ..RunOptions::default() };
    run_with(world, scenario, policy(name).unwrap().as_ref(), &options).unwrap()
}

#[test]
fn the_controller_of_the_energy_aim_holds_its_bound() {
    let world = World::builtin();
    let cluster = "4x8:v100".parse().unwrap();
    let trace = generator::generate(150, 7);
    let mut scenario = Scenario::from_trace(&world, &trace, &cluster, 7).unwrap();
    scenario.set_load(&world, 0.8).unwrap();
    let time = run(&world, &scenario, "wattle", None);
    let energy_of = |bound: f64| {
        let aim = run(&world, &scenario, "wattle", Some(bound));
        let slowdown = aim.jct_s_mean.unwrap() / time.jct_s_mean.unwrap() - 1.0;
        assert!((-0.02..=bound + 0.04).contains(&slowdown), "{bound}: {slowdown}");
        aim.energy_kwh_above_idle / time.energy_kwh_above_idle
    };
    let (little, more) = (energy_of(0.01), energy_of(0.05));
    assert!(more < 0.9 && more < little && little < 1.0, "{little} {more}");
}

#[test]
fn a_policy_without_an_energy_price_has_no_aim() {
    let world = World::builtin();
    let cluster = "2x8:v100".parse().unwrap();
    let trace = generator::generate(30, 7);
    let scenario = Scenario::from_trace(&world, &trace, &cluster, 7).unwrap();
    let with = run(&world, &scenario, "fifo", Some(0.05));
    assert_eq!(with, run(&world, &scenario, "fifo", None));
}
