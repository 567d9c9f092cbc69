//! Budgets in whole simulations: windows are kept, GreenFlow is PowerFlow where the grid never changes,
//! a power limit holds, and what waiting for a cleaner grid takes is told.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::time::Duration;

use wattle_common::job::GpuRequest;
use wattle_common::{Budget, Carbon, Energy, Power};
use wattle_placer::policy;
use wattle_simulator::{
    CarbonSeries, Forecast, PolicyOutcome, RunOptions, Scenario, generator, run_with,
};
use wattle_world::World;

/// Jobs as in Philly's on a small cluster, for some days.
fn scenario(world: &World, seed: u64) -> Scenario {
    let trace = generator::generate(120, seed);
    let cluster = "4x8:v100".parse().unwrap();
    let mut scenario = Scenario::from_trace(world, &trace, &cluster, seed).unwrap();
    // Nobody needs more than such a budget feeds.
    for job in &mut scenario.jobs {
        job.gpus = GpuRequest::exactly(job.gpus.min.min(8));
    }
    scenario.set_load(world, 0.6).unwrap();
    scenario
}

fn run(world: &World, scenario: &Scenario, name: &str, options: RunOptions) -> PolicyOutcome {
    let options = RunOptions { nodes_sleep: true, oracle: true, ..options };
    run_with(world, scenario, policy(name).unwrap().as_ref(), &options).unwrap()
}

fn energy(kwh: u64) -> Budget {
    Budget { energy_mj: Some(Energy::from_j(kwh * 3_600_000)), ..Budget::default() }
}

#[test]
fn windows_are_kept_and_cost_time() {
    let world = World::builtin();
    for seed in [1, 2] {
        let scenario = scenario(&world, seed);
        for name in ["fifo", "powerflow", "eaco"] {
            let free = run(&world, &scenario, name, RunOptions::default());
            assert!(free.budget_overrun.is_none() && free.spending.is_none());
            let a_day = free.energy_kwh / (free.makespan_s / 86_400.0);
            let kwh = (0.8 * a_day) as u64;
            let options = RunOptions { budget: Some(energy(kwh)), ..RunOptions::default() };
            let kept = run(&world, &scenario, name, options);
            assert_eq!(kept.finished, kept.jobs, "{name}");
            let (overrun, spending) = (kept.budget_overrun.unwrap(), kept.spending.unwrap());
            assert!(overrun <= 0.01, "{name}, seed {seed}: {overrun}, {spending:?}");
            let spent: f64 = spending.windows.iter().map(|window| window.energy_kwh).sum();
            assert!((spent - kept.energy_kwh).abs() < 0.01 * spent, "{spent}");
            assert!(kept.jct_s_mean > free.jct_s_mean, "{name}: nothing is free");
        }
    }
}

/// An energy budget, and the carbon budget that it is at one intensity: the very same run.
#[test]
fn greenflow_is_powerflow_under_a_budget_where_the_grid_never_changes() {
    let world = World::builtin();
    let mut scenario = scenario(&world, 3);
    let by_energy = RunOptions { budget: Some(energy(20)), ..RunOptions::default() };
    let powerflow = run(&world, &scenario, "powerflow", by_energy);
    scenario.carbon =
        Some(CarbonSeries::parse("flat.csv", "at_s,g_per_kwh\n0,250\n3600,250\n").unwrap());
    let carbon = Budget { carbon_ug: Some(Carbon::from_ug(5_000_000_000)), ..Budget::default() };
    let by_carbon = RunOptions { budget: Some(carbon), ..RunOptions::default() };
    let greenflow = run(&world, &scenario, "greenflow", by_carbon);
    let figures = |o: &PolicyOutcome| {
        (o.energy_kwh, o.jct_s_mean, o.jct_s_p99, o.migrations, o.rescales, o.makespan_s)
    };
    assert_eq!(figures(&greenflow), figures(&powerflow));
    let spending = powerflow.spending.unwrap();
    assert!(spending.price_mean > 0.1, "the budget binds: {}", spending.price_mean);
}

#[test]
fn what_is_drawn_never_exceeds_the_limit() {
    let world = World::builtin();
    let scenario = scenario(&world, 4);
    for name in ["fifo", "eaco", "powerflow", "tiresias"] {
        let free = run(&world, &scenario, name, RunOptions::default());
        let limit = Budget { power_mw: Some(Power::from_w(5_000)), ..Budget::default() };
        let options = RunOptions { budget: Some(limit), ..RunOptions::default() };
        let kept = run(&world, &scenario, name, options);
        let spending = kept.spending.unwrap();
        assert_eq!(spending.power_exceeded_s, Some(0.0), "{name}: {}", spending.power_kw_peak);
        assert_eq!(kept.finished, free.finished, "{name}");
        assert!(kept.budget_overrun.is_none(), "there is no window");
    }
}

#[test]
fn waiting_for_a_cleaner_grid_saves_carbon_costs_time_and_misses_no_deadline() {
    let world = World::builtin();
    let mut scenario = scenario(&world, 5);
    let rows =
        (0..24 * 40).map(|h| format!("{},{}\n", h * 3_600, if h % 24 < 14 { 120 } else { 480 }));
    let text = format!("at_s,g_per_kwh\n{}", rows.collect::<String>());
    scenario.carbon = Some(CarbonSeries::parse("day.csv", &text).unwrap());
    for job in &mut scenario.jobs {
        // Short ones, so that they would be in time without waiting.
        if let wattle_simulator::Work::Lasts(span) = job.work {
            job.deadline = Some(job.submit + 3 * span + Duration::from_secs(40 * 3_600));
            job.duration_estimate = Some(span);
        }
    }
    let forecast = Forecast::Perfect;
    let now = run(&world, &scenario, "fifo", RunOptions { forecast, ..RunOptions::default() });
    assert_eq!((now.deferred_s_mean, now.deadlines_missed), (None, 0));
    for job in &mut scenario.jobs {
        job.slack = Some(Duration::from_secs(12 * 3_600));
    }
    for forecast in [Forecast::Perfect, Forecast::Persistence] {
        let options = RunOptions { forecast, ..RunOptions::default() };
        let waited = run(&world, &scenario, "fifo", options);
        assert_eq!((waited.finished, waited.deadlines_missed), (waited.jobs, 0), "{forecast:?}");
        let mean = waited.deferred_s_mean.unwrap();
        assert!(mean > 600.0 && mean < 12.0 * 3_600.0, "{mean}");
        assert!(waited.carbon_kg < now.carbon_kg, "{forecast:?}: {:?}", waited.carbon_kg);
        assert!(waited.jct_s_mean > now.jct_s_mean);
    }
}
