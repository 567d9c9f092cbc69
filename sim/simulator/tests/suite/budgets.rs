//! Budgets in simulations: GreenFlow equals PowerFlow on a constant grid, and power limits and
//! carbon budgets hold whatever the forecast.

use wattle_baselines::{NAMES, policy};
use wattle_common::job::GpuRequest;
use wattle_common::{Budget, Carbon, Energy, Power};
use wattle_simulator::{
    CarbonSeries, PolicyOutcome, RunOptions, Scenario, gather, generator, run_with,
};
use wattle_world::World;

/// Jobs as in Philly's on a small cluster, for some days.
fn scenario(world: &World, seed: u64, jobs: usize) -> Scenario {
    let trace = generator::generate(jobs, seed);
    let cluster = "4x8:v100".parse().unwrap();
    let mut scenario = Scenario::from_trace(world, &trace, &cluster, seed).unwrap();
    // No job exceeds the budget's power.
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

/// An energy budget and the equivalent carbon budget at constant intensity give the same run.
#[test]
fn greenflow_equals_powerflow_on_a_constant_grid() {
    let world = World::builtin();
    let mut scenario = scenario(&world, 3, 120);
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

/// Also with predicted surfaces, which have errors: caps enforce the reserved power.
#[test]
fn power_never_exceeds_the_limit() {
    let world = World::builtin();
    let scenario = scenario(&world, 4, 50);
    let limit = Budget { power_mw: Some(Power::from_w(4_000)), ..Budget::default() };
    for name in NAMES {
        for oracle in [true, false] {
            let options = RunOptions {
                budget: Some(limit.clone()),
                nodes_sleep: true,
                oracle,
                ..RunOptions::default()
            };
            let policy = policy(name).unwrap();
            let kept = run_with(&world, &scenario, policy.as_ref(), &options).unwrap();
            let spending = kept.spending.unwrap();
            let peak = spending.power_kw_peak;
            assert_eq!(spending.power_exceeded_s, Some(0.0), "{name}: {peak} kW, {oracle}");
            assert!(peak > 3.5, "{name}: the limit binds: {peak} kW");
            assert_eq!(kept.finished, kept.jobs, "{name}, {oracle}");
            assert!(kept.budget_overrun.is_none(), "there is no window");
        }
    }
}

/// A job whose expected power fits the budget is admitted although its power interval exceeds it.
#[test]
fn uncertain_power_does_not_starve_jobs_that_fit_the_budget() {
    let world = World::builtin();
    let trace = generator::generate(60, 3);
    let mut scenario =
        Scenario::from_trace(&world, &trace, &"4x8:v100".parse().unwrap(), 3).unwrap();
    scenario.set_load(&world, 0.8).unwrap();
    for oracle in [true, false] {
        let options = RunOptions {
            budget: Some(energy(70)),
            nodes_sleep: true,
            oracle,
            ..RunOptions::default()
        };
        let kept = run_with(&world, &scenario, policy("fifo").unwrap().as_ref(), &options).unwrap();
        assert_eq!(kept.finished, kept.jobs, "{oracle}: {:?}", kept.notes);
        assert!(kept.budget_overrun.unwrap() <= 0.01, "{oracle}: {:?}", kept.budget_overrun);
    }
}

/// The intensity doubles every other day at noon, which persistence never predicts.
#[test]
fn a_carbon_budget_holds_under_a_wrong_forecast() {
    let world = World::builtin();
    let mut scenario = scenario(&world, 5, 120);
    let hour = |i: u64| if i % 48 >= 36 { 400 } else { 200 };
    let rows: String = (0..48).map(|i| format!("{},{}\n", i * 3_600, hour(i))).collect();
    let rows = format!("at_s,g_per_kwh\n{rows}");
    scenario.carbon = Some(CarbonSeries::parse("swings.csv", &rows).unwrap());
    let mut preemptions = 0;
    for name in ["fifo", "tiresias", "greenflow", "wattle"] {
        let free = run(&world, &scenario, name, RunOptions::default());
        let budget =
            Budget { carbon_ug: Some(Carbon::from_ug(8_000_000_000)), ..Budget::default() };
        let options = RunOptions { budget: Some(budget), ..RunOptions::default() };
        let kept = run(&world, &scenario, name, options);
        assert!(kept.budget_overrun.unwrap() <= 0.01, "{name}: {:?}", kept.budget_overrun);
        assert_eq!(kept.finished, free.finished, "{name}");
        preemptions += kept.spending.unwrap().preemptions;
    }
    assert!(preemptions > 0, "the forecast is wrong enough");
}

/// The outcome without the oracle mark.
fn without_oracle_mark(outcome: PolicyOutcome) -> PolicyOutcome {
    PolicyOutcome { oracle: false, ..outcome }
}

/// The table names the policy with unfinished jobs next to a run that finished all.
fn assert_table_names_unfinished_jobs(world: &World, scenario: &Scenario, starved: &PolicyOutcome) {
    let tiresias = run(world, scenario, "tiresias", RunOptions::default());
    let table =
        gather(scenario, [tiresias, starved.clone()].map(without_oracle_mark).to_vec()).to_table();
    let (jobs, finished) = (starved.jobs, starved.finished);
    let other = format!(
        "means are over different jobs: fifo finished {finished} of {jobs}, tiresias finished {jobs}"
    );
    assert!(table.contains(&other), "{table}");
    assert!(table.contains("note: fifo: ") && !table.contains("note: tiresias"), "{table}");
    assert!(
        table.lines().filter(|line| line.contains("different jobs")).all(|line| line.len() <= 80)
    );
}

#[test]
fn an_insufficient_budget_is_reported() {
    let world = World::builtin();
    let scenario = scenario(&world, 6, 120);
    // Four sleeping nodes still draw power, and a reserve is withheld.
    for (kwh, why) in
        [(1, "the budget sustains 0.04 kW on average; enlarge"), (8, "each queued job needs more")]
    {
        let options = RunOptions { budget: Some(energy(kwh)), ..RunOptions::default() };
        let starved = run(&world, &scenario, "fifo", options);
        assert!(starved.finished < starved.jobs);
        assert_table_names_unfinished_jobs(&world, &scenario, &starved);
        let note = starved.notes.iter().find(|note| note.contains("never started"));
        assert!(note.is_some_and(|note| note.contains(why)), "{kwh} kWh: {:?}", starved.notes);
    }
}
