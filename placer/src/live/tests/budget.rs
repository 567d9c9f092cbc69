//! A budget live: stored, steered by the ledger, remembered, and a power limit that caps hold.

use std::time::Duration;

use wattle_common::job::{JobPhase, JobSpec};
use wattle_common::messages::{
    BudgetReply, BudgetStatus, IntensitySeries, JobEnergy, LedgerEntry, SetBudget,
};
use wattle_common::{Budget, CarbonIntensity, Energy, NodeId, Power, Timestamp};

use crate::live::Event;
use crate::live::tests::spec;
use crate::live::tests::world::World;

fn set(world: &mut World, budget: Budget) -> BudgetReply {
    let asked = SetBudget { budget, intensity: None };
    world.tell(Event::BudgetSet(7, Box::new(asked)));
    world.budget_reply.take().expect("every request is answered")
}

fn energy(kwh: f64, window_s: u64) -> Budget {
    let window = Some(Duration::from_secs(window_s));
    Budget::from_human(Some(kwh), None, None, window).unwrap()
}

/// What node `n0` spent: so many watts on each card, and 300 W beside them.
fn entry(from: Timestamp, until: Timestamp, cards: usize, watts: u64) -> LedgerEntry {
    let span = until.since(from);
    LedgerEntry {
        node: NodeId::new("n0").unwrap(),
        from_us: from,
        until_us: until,
        energy_mj_gpus: vec![Some(Power::from_w(watts).over(span)); cards],
        energy_mj_host: Power::from_w(300).over(span),
        jobs: Vec::<JobEnergy>::new(),
    }
}

/// So many minutes, with an entry a minute.
fn minutes(world: &mut World, n: u64, cards: usize, watts: u64) {
    for _ in 0..n {
        let from = world.now;
        world.pass(60);
        let told = entry(from, world.now, cards, watts);
        world.tell(Event::EnergyMetered(Box::new(told)));
    }
}

/// Kilojoules spent: a minute of 1.1 kW is 66.
fn whole_kj(status: &BudgetStatus) -> u64 {
    (status.energy_mj.as_j() / 1e3).round() as u64
}

fn status(world: &World) -> &BudgetStatus {
    world.budget_status.as_ref().expect("a status is stored")
}

#[test]
fn the_price_follows_the_ledger_and_outlives_a_restart() {
    let mut world = World::new(1, 4);
    world.long = true;
    world.submit(spec("a", 4));
    world.pass(2);
    let budget = energy(0.5, 3_600);
    assert_eq!(set(&mut world, budget), BudgetReply::Stored { budget });
    assert!(status(&world).price <= 0.0);
    // 1.1 kW, of which 0.5 kW may be drawn in the mean.
    minutes(&mut world, 3, 4, 200);
    let before = status(&world).clone();
    assert!(before.price > 0.3, "{before:?}");
    assert_eq!(whole_kj(&before), 198);
    // The same entry once more, and one that overlaps it: counted once.
    let now = world.now;
    let again = entry(now - Duration::from_secs(60), now, 4, 200);
    world.tell(Event::EnergyMetered(Box::new(again)));
    assert_eq!(status(&world).energy_mj, before.energy_mj);
    world.restart();
    minutes(&mut world, 1, 4, 200);
    let after = status(&world);
    assert_eq!(whole_kj(after), 264);
    assert!(after.price >= before.price, "{after:?}");
    assert_eq!(after.window_from_us, before.window_from_us);
    // The same budget again goes on; another begins anew.
    set(&mut world, budget);
    assert_eq!(whole_kj(status(&world)), 264);
    set(&mut world, energy(50.0, 3_600));
    assert_eq!(status(&world).energy_mj, Energy::ZERO);
    minutes(&mut world, 20, 4, 200);
    assert!(status(&world).price <= 0.0, "more than enough");
}

#[test]
fn a_power_limit_is_held_by_caps() {
    let mut world = World::new(1, 4);
    world.long = true;
    let limit = Budget::from_human(None, None, Some(0.9), None).unwrap();
    set(&mut world, limit);
    for job in ["a", "b", "c", "d"] {
        world.submit(spec(job, 1));
    }
    world.pass(5);
    assert!(world.desired("n0").jobs.is_empty(), "nobody knows what the node itself draws yet");
    minutes(&mut world, 1, 4, 50);
    world.pass(10);
    let order = world.desired("n0").clone();
    assert_eq!(order.gpus.len(), 4, "every card is held");
    let caps: Vec<Power> = order.gpus.iter().filter_map(|gpu| gpu.cap_mw).collect();
    let all: Power = caps.iter().copied().sum();
    assert!(!order.jobs.is_empty());
    assert!(all + Power::from_w(300) <= Power::from_w(900), "{caps:?}");
    // Lower: who cannot be fed any more is stopped, and the caps with it.
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

/// What a budget must be above, so that who sets it can be told.
#[test]
fn the_status_says_what_is_drawn_without_jobs_and_what_the_budget_feeds() {
    let mut world = World::new(1, 4);
    set(&mut world, energy(5.0, 86_400));
    assert_eq!(status(&world).power_mw_baseline, None, "nothing has been metered yet");
    minutes(&mut world, 1, 4, 50);
    let (empty, fed) = (status(&world).power_mw_baseline, status(&world).power_mw_budget_mean);
    assert_eq!(empty, Some(Power::from_w(300 + 4 * 50)));
    // 5 kWh in a day are 208.3 W, of which half a per cent is kept in hand.
    assert!(fed.is_some_and(|fed| (207..=208).contains(&(fed.as_mw() / 1_000))), "{fed:?}");
    set(&mut world, Budget::from_human(None, None, Some(0.1), None).unwrap());
    let status = status(&world);
    assert_eq!((status.power_mw_baseline, status.power_mw_budget_mean), (empty, None));
}

/// The grid alone is no limit: whoever may wait for it does.
#[test]
fn the_grid_is_followed_without_any_limit() {
    let mut world = World::new(1, 1);
    world.away(100_000);
    world.pass(5);
    let steps = [(0, 500.0), (3_600, 100.0)];
    let steps = steps.map(|(at, g)| (at, CarbonIntensity::from_g_per_kwh(g))).to_vec();
    let (name, starts_at_us) = ("grid".to_owned(), world.now - Duration::from_secs(86_400));
    let intensity = Some(IntensitySeries { name, starts_at_us, steps, period_s: 86_400 });
    let asked = SetBudget { budget: Budget::default(), intensity };
    world.tell(Event::BudgetSet(7, Box::new(asked)));
    assert!(matches!(world.budget_reply, Some(BudgetReply::Stored { .. })));
    let patient = JobSpec { slack_ms: Some(7_200_000), ..spec("patient", 1) };
    world.submit(patient);
    world.pass(5);
    assert_eq!(world.record("patient").phase, JobPhase::Queued, "the grid is dirty");
    let now = status(&world).intensity_mg_per_kwh;
    assert_eq!(now, Some(CarbonIntensity::from_g_per_kwh(500.0)));
    world.pass(3_700);
    assert_ne!(world.record("patient").phase, JobPhase::Queued, "it has become clean");
}

#[test]
fn what_is_no_budget_is_refused() {
    let mut world = World::new(1, 1);
    let no_window = Budget { window_ms: 5, ..Budget::default() };
    let BudgetReply::Refused { error } = set(&mut world, no_window) else { panic!("it is not") };
    assert!(error.contains("window"), "{error}");
    let carbon = Budget::from_human(None, Some(1.0), None, None).unwrap();
    let BudgetReply::Refused { error } = set(&mut world, carbon) else { panic!("it is not") };
    assert!(error.contains("--carbon"), "{error}");
    let steps = vec![(5, CarbonIntensity::from_g_per_kwh(1.0))];
    let name = "x".to_owned();
    let intensity = Some(IntensitySeries { name, starts_at_us: world.now, steps, period_s: 9 });
    let asked = SetBudget { budget: carbon, intensity };
    world.tell(Event::BudgetSet(8, Box::new(asked)));
    assert!(matches!(world.budget_reply, Some(BudgetReply::Refused { .. })));
    assert!(world.budget.is_none() && world.budget_status.is_none());
}
