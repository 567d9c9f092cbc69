//! Budgets in the simulated cluster: stored, controlled by the ledger, persisted; power limits by caps.

use std::time::Duration;

use wattle_common::job::{JobPhase, JobSpec};
use wattle_common::messages::{
    BudgetReply, BudgetStatus, IntensitySeries, JobEnergy, LedgerEntry, SetBudget,
};
use wattle_common::{Budget, CarbonIntensity, Energy, NodeId, Power, Timestamp};

use crate::live::Event;
use crate::live::tests::spec;
use crate::live::tests::world::World;

pub(super) fn set(world: &mut World, budget: Budget) -> BudgetReply {
    let request = SetBudget { budget, intensity: None };
    world.deliver(Event::BudgetSet(7, Box::new(request)));
    world.budget_reply.take().expect("every request gets a reply")
}

fn energy(kwh: f64, window_s: u64) -> Budget {
    let window = Some(Duration::from_secs(window_s));
    Budget::from_human(Some(kwh), None, None, window).unwrap()
}

/// Energy of node `n0`: `watts` on each of its GPUs, and 300 W of the host.
fn entry(from: Timestamp, until: Timestamp, gpus: usize, watts: u64) -> LedgerEntry {
    let span = until.since(from);
    LedgerEntry {
        node: NodeId::new("n0").unwrap(),
        from_us: from,
        until_us: until,
        energy_mj_gpus: vec![Some(Power::from_w(watts).over(span)); gpus],
        energy_mj_host: Power::from_w(300).over(span),
        jobs: Vec::<JobEnergy>::new(),
        unknown: Vec::new(),
    }
}

/// Passes `n` minutes with one ledger entry a minute.
pub(super) fn minutes(world: &mut World, n: u64, gpus: usize, watts: u64) {
    for _ in 0..n {
        let from = world.now;
        world.pass(60);
        let metered = entry(from, world.now, gpus, watts);
        world.deliver(Event::EnergyMetered(Box::new(metered)));
    }
}

/// Energy spent, rounded to kJ: a minute of 1.1 kW is 66.
fn rounded_kj(status: &BudgetStatus) -> u64 {
    (status.energy_mj.as_j() / 1e3).round() as u64
}

fn status(world: &World) -> &BudgetStatus {
    world.budget_status.as_ref().expect("a status is stored")
}

#[test]
fn the_price_follows_the_ledger_and_persists_across_a_restart() {
    let mut world = World::new(1, 4);
    world.long = true;
    world.submit(spec("a", 4));
    world.pass(2);
    let budget = energy(0.5, 3_600);
    let stored = BudgetReply::Stored { budget: budget.clone(), generation: 1 };
    assert_eq!(set(&mut world, budget.clone()), stored);
    assert!(status(&world).price <= 0.0);
    // 1.1 kW against a sustainable mean of 0.5 kW.
    minutes(&mut world, 3, 4, 200);
    let before = status(&world).clone();
    assert!(before.price > 0.3, "{before:?}");
    assert_eq!(rounded_kj(&before), 198);
    // A repeated entry that overlaps the last one is counted once.
    let now = world.now;
    let again = entry(now - Duration::from_secs(60), now, 4, 200);
    world.deliver(Event::EnergyMetered(Box::new(again)));
    assert_eq!(status(&world).energy_mj, before.energy_mj);
    world.restart();
    minutes(&mut world, 1, 4, 200);
    let after = status(&world);
    assert_eq!(rounded_kj(after), 264);
    assert!(after.price >= before.price, "{after:?}");
    assert_eq!(after.window_from_us, before.window_from_us);
    // Setting the same budget continues its window; another budget starts a new one.
    set(&mut world, budget);
    assert_eq!(rounded_kj(status(&world)), 264);
    set(&mut world, energy(50.0, 3_600));
    assert_eq!(status(&world).energy_mj, Energy::ZERO);
    minutes(&mut world, 20, 4, 200);
    assert!(status(&world).price <= 0.0, "the budget exceeds demand");
}

/// While admission is closed the price is 1; a restart continues with the integral, not with 1.
#[test]
fn the_integral_persists_while_admission_is_closed() {
    let mut world = World::new(1, 4);
    world.long = true;
    world.submit(spec("a", 4));
    world.pass(2);
    set(&mut world, energy(12.0, 86_400));
    minutes(&mut world, 30, 4, 200);
    let before = status(&world).clone();
    assert!(before.price >= 1.0, "{before:?}");
    let integral = before.price_integral.unwrap();
    assert!((0.001..0.9).contains(&integral), "{before:?}");
    world.restart();
    minutes(&mut world, 1, 4, 200);
    let after = status(&world).price_integral.unwrap();
    // A control step changes it by less than a fifth.
    assert!((0.8 * integral..0.9).contains(&after), "from {integral} to {after}");
}

#[test]
fn a_power_limit_is_enforced_by_caps() {
    let mut world = World::new(1, 4);
    world.long = true;
    let limit = Budget::from_human(None, None, Some(0.9), None).unwrap();
    set(&mut world, limit);
    for job in ["a", "b", "c", "d"] {
        world.submit(spec(job, 1));
    }
    world.pass(5);
    assert!(world.desired("n0").jobs.is_empty(), "the power of the host is unknown");
    minutes(&mut world, 1, 4, 50);
    world.pass(10);
    let order = world.desired("n0").clone();
    assert_eq!(order.gpus.len(), 4, "every GPU has a cap");
    let caps: Vec<Power> = order.gpus.iter().filter_map(|gpu| gpu.cap_mw).collect();
    let all: Power = caps.iter().copied().sum();
    assert!(!order.jobs.is_empty());
    assert!(all + Power::from_w(300) <= Power::from_w(900), "{caps:?}");
    // At a lower limit, jobs without sufficient power are stopped and their caps removed.
    let lower = Budget::from_human(None, None, Some(0.75), None).unwrap();
    set(&mut world, lower);
    world.pass(30);
    let caps = world.desired("n0").gpus.iter().filter_map(|gpu| gpu.cap_mw);
    let all: Power = caps.sum();
    assert!(all + Power::from_w(300) <= Power::from_w(750), "{all}");
    set(&mut world, Budget::default());
    world.pass(30);
    assert_eq!((world.desired("n0").jobs.len(), world.desired("n0").gpus.len()), (4, 0));
}

/// Many jobs may wait for power; the numbers of the first one's reason are those of the present limit.
#[test]
fn the_reason_of_the_first_job_that_waits_for_power_is_current() {
    let mut world = World::new(1, 4);
    world.long = true;
    minutes(&mut world, 1, 4, 50);
    let limit = |kw| Budget::from_human(None, None, Some(kw), None).unwrap();
    let reason = |world: &World, job: &str| {
        let last = world.record(job).reasons.last().map(|reason| reason.reason.clone());
        last.unwrap_or_default()
    };
    set(&mut world, limit(0.51));
    for job in ["a", "b"] {
        world.submit(spec(job, 1));
    }
    world.pass(120);
    assert!(reason(&world, "a").contains("0.51 kW"), "{}", reason(&world, "a"));
    set(&mut world, limit(0.52));
    world.pass(120);
    assert!(reason(&world, "a").contains("0.52 kW"), "{}", reason(&world, "a"));
}

/// Passes seconds until the status reflects this budget.
fn until_reflected(world: &mut World, generation: u64) {
    for _ in 0..60 {
        if status(world).observed_generation >= generation {
            return;
        }
        world.pass(1);
    }
    panic!("no planning round for budget {generation}: {:?}", world.log);
}

/// A reader that waits for the generation of the reply sees the plan under the budget; a status from before does
/// not satisfy it.
#[test]
fn the_status_reflects_a_budget_after_the_orders_of_its_planning_round() {
    let mut world = World::new(1, 4);
    world.long = true;
    minutes(&mut world, 1, 4, 50);
    let generation = |reply: BudgetReply| match reply {
        BudgetReply::Stored { generation, .. } => generation,
        BudgetReply::Refused { error } => panic!("{error}"),
    };
    let limit = |kw| Budget::from_human(None, None, Some(kw), None).unwrap();
    assert_eq!(generation(set(&mut world, limit(0.9))), 1);
    assert_eq!(world.budget.as_ref().unwrap().generation, 1);
    assert_eq!(status(&world).observed_generation, 0, "{:?}", world.log);
    until_reflected(&mut world, 1);
    // The caps of the plan are ordered before the status is stored.
    let caps = world.desired("n0").gpus.iter().filter_map(|gpu| gpu.cap_mw);
    assert!(caps.sum::<Power>() + Power::from_w(300) <= Power::from_w(900), "{:?}", world.log);
    let stated = world.log.iter().position(|line| line == "status of budget 1").unwrap();
    assert!(world.log[stated - 1].starts_with("order n0 "), "{:?}", world.log);

    // A repeated request is reflected already; another budget is not.
    assert_eq!(generation(set(&mut world, limit(0.9))), 1);
    assert_eq!(status(&world).observed_generation, 1);
    assert_eq!(generation(set(&mut world, limit(0.75))), 2);
    assert_eq!(status(&world).observed_generation, 1);
    // After a restart the count continues, and the next round is made for the stored budget.
    world.restart();
    until_reflected(&mut world, 2);
    let caps = world.desired("n0").gpus.iter().filter_map(|gpu| gpu.cap_mw);
    assert!(caps.sum::<Power>() + Power::from_w(300) <= Power::from_w(750), "{:?}", world.log);
    assert_eq!(generation(set(&mut world, Budget::default())), 3);
    until_reflected(&mut world, 3);
    assert!(world.desired("n0").gpus.is_empty(), "no cap without a limit");
}

/// A budget that an earlier version has stored counts from the next request on.
#[test]
fn a_budget_without_a_generation_gets_one() {
    let mut world = World::new(1, 1);
    set(&mut world, energy(5.0, 3_600));
    until_reflected(&mut world, 1);
    world.budget.as_mut().unwrap().generation = 0;
    world.budget_status.as_mut().unwrap().observed_generation = 0;
    world.restart();
    world.pass(10);
    assert_eq!(status(&world).observed_generation, 0);
    let BudgetReply::Stored { generation, .. } = set(&mut world, energy(5.0, 3_600)) else {
        panic!("refused")
    };
    assert_eq!(generation, 1);
    until_reflected(&mut world, 1);
}

/// The operator compares both to see whether a budget is feasible.
#[test]
fn the_status_reports_the_baseline_and_the_mean_power_of_the_budget() {
    let mut world = World::new(1, 4);
    set(&mut world, energy(5.0, 86_400));
    assert_eq!(status(&world).power_mw_baseline, None, "nothing has been metered yet");
    minutes(&mut world, 1, 4, 50);
    let (baseline, mean) = (status(&world).power_mw_baseline, status(&world).power_mw_budget_mean);
    assert_eq!(baseline, Some(Power::from_w(300 + 4 * 50)));
    // 5 kWh in a day are 208.3 W, less a reserve of half a per cent.
    assert!(mean.is_some_and(|mean| (207..=208).contains(&(mean.as_mw() / 1_000))), "{mean:?}");
    set(&mut world, Budget::from_human(None, None, Some(0.1), None).unwrap());
    let status = status(&world);
    assert_eq!((status.power_mw_baseline, status.power_mw_budget_mean), (baseline, None));
}

/// The lowest power of a busy GPU is not reported as that of an idle one.
#[test]
fn the_baseline_of_a_busy_cluster_is_unknown_until_a_gpu_is_idle() {
    let mut world = World::new(1, 4);
    set(&mut world, energy(5.0, 86_400));
    let meter = |world: &mut World, watts, attributed: u64| {
        let from = world.now;
        world.pass(60);
        let span = world.now.since(from);
        let mut metered = entry(from, world.now, 4, watts);
        let energy_mj = Power::from_w(attributed).over(span);
        metered.jobs.push(JobEnergy {
            job: wattle_testkit::job("a"),
            admission: None,
            energy_mj,
            user: None,
            project: None,
            compared: None,
        });
        world.deliver(Event::EnergyMetered(Box::new(metered)));
        status(world).power_mw_baseline.map(|power| power.as_w().round())
    };
    assert_eq!(meter(&mut world, 250, 4 * 250), None);
    assert_eq!(meter(&mut world, 40, 0), Some(300.0 + 4.0 * 40.0));
    assert_eq!(meter(&mut world, 250, 4 * 250), Some(300.0 + 4.0 * 40.0));
}

/// Jobs with slack are deferred also without any limit.
#[test]
fn carbon_deferral_needs_no_limit() {
    let mut world = World::new(1, 1);
    world.bus_outage(100_000);
    world.pass(5);
    let steps = [(0, 500.0), (3_600, 100.0)];
    let steps = steps.map(|(at, g)| (at, CarbonIntensity::from_g_per_kwh(g))).to_vec();
    let (name, starts_at_us) = ("grid".to_owned(), world.now - Duration::from_secs(86_400));
    let intensity =
        Some(IntensitySeries { name, starts_at_us, steps, period_s: 86_400, origins: Vec::new() });
    let request = SetBudget { budget: Budget::default(), intensity };
    world.deliver(Event::BudgetSet(7, Box::new(request)));
    assert!(matches!(world.budget_reply, Some(BudgetReply::Stored { .. })));
    let patient = JobSpec { slack_ms: Some(7_200_000), ..spec("patient", 1) };
    world.submit(patient);
    world.pass(5);
    assert_eq!(world.record("patient").phase, JobPhase::Queued, "high carbon intensity");
    let now = status(&world).intensity_mg_per_kwh;
    assert_eq!(now, Some(CarbonIntensity::from_g_per_kwh(500.0)));
    world.pass(3_700);
    assert_ne!(world.record("patient").phase, JobPhase::Queued, "the carbon intensity has fallen");
}

#[test]
fn invalid_budgets_are_refused() {
    let mut world = World::new(1, 1);
    let no_window = Budget { window_ms: 5, ..Budget::default() };
    let BudgetReply::Refused { error } = set(&mut world, no_window) else { panic!("accepted") };
    assert!(error.contains("window"), "{error}");
    let carbon = Budget::from_human(None, Some(1.0), None, None).unwrap();
    let BudgetReply::Refused { error } = set(&mut world, carbon.clone()) else {
        panic!("accepted")
    };
    assert!(error.contains("--carbon"), "{error}");
    let steps = vec![(5, CarbonIntensity::from_g_per_kwh(1.0))];
    let name = "x".to_owned();
    let intensity = Some(IntensitySeries {
        name,
        starts_at_us: world.now,
        steps,
        period_s: 9,
        origins: Vec::new(),
    });
    let request = SetBudget { budget: carbon, intensity };
    world.deliver(Event::BudgetSet(8, Box::new(request)));
    assert!(matches!(world.budget_reply, Some(BudgetReply::Refused { .. })));
    assert!(world.budget.is_none() && world.budget_status.is_none());
}
