//! Numbers outside their limits in messages: ignored with an alarm, without any other effect.

use std::time::Duration;

use wattle_common::codec::{self, PAYLOAD_LEN_MAX};
use wattle_common::job::{JobPhase, JobSpec};
use wattle_common::messages::{BudgetReply, LedgerEntry, Reply, SetBudget};
use wattle_common::{Budget, Energy, NodeId, Power, Timestamp};

use crate::live::Event;
use crate::live::tests::spec;
use crate::live::tests::world::World;

fn alarms(world: &World) -> Vec<&str> {
    world.log.iter().filter_map(|line| line.strip_prefix("alarm ")).collect()
}

fn entry(from: Timestamp, until: Timestamp) -> LedgerEntry {
    LedgerEntry {
        energy_mj_gpus: vec![Some(Energy::from_j(60 * 250))],
        ..wattle_testkit::ledger_entry("n0", from, until, Energy::from_j(60 * 300))
    }
}

/// A cluster with an energy budget of one-hour windows.
fn budgeted() -> World {
    let mut world = World::new(1, 2);
    world.pass(2);
    let window = Some(Duration::from_secs(3_600));
    let budget = Budget::from_human(Some(5.0), None, None, window).unwrap();
    let request = SetBudget { budget: budget.clone(), intensity: None };
    world.deliver(Event::BudgetSet(1, Box::new(request)));
    assert_eq!(world.budget_reply.take(), Some(BudgetReply::Stored { budget, generation: 1 }));
    world
}

#[test]
fn ledger_entry_outside_its_limits_is_ignored_with_an_alarm() {
    let mut world = budgeted();
    let (from, day) = (world.now, Duration::from_secs(86_400));
    world.pass(60);
    let window_until = world.budget_status.as_ref().unwrap().window_until_us;
    let mut energetic = entry(from, world.now);
    energetic.energy_mj_gpus[0] = Some(Energy::from_mj(u64::MAX));
    for wrong in [
        entry(from, Timestamp::FOREVER),
        entry(Timestamp::FOREVER, Timestamp::FOREVER),
        entry(from, world.now + day),
        entry(Timestamp::EPOCH, Timestamp::FOREVER),
        energetic,
    ] {
        world.deliver(Event::EnergyMetered(Box::new(wrong)));
    }
    let status = world.budget_status.as_ref().unwrap();
    assert_eq!((status.energy_mj, status.window_until_us), (Energy::ZERO, window_until));
    assert!(alarms(&world).iter().any(|alarm| alarm.contains("ledger") && alarm.contains("n0")));
    // The node's own entry still counts.
    world.deliver(Event::EnergyMetered(Box::new(entry(from, world.now))));
    let status = world.budget_status.as_ref().unwrap();
    assert_eq!(status.energy_mj, Energy::from_j(60 * 550));
    assert_eq!(status.window_until_us, window_until);
}

#[test]
fn report_dated_far_ahead_does_not_hide_later_reports() {
    let mut world = World::new(1, 2);
    world.pass(20);
    let last = |world: &World| world.reports("n0");
    let (mut power, mut launch) = last(&world);
    (power.at_us, launch.at_us) = (Timestamp::FOREVER, Timestamp::FOREVER);
    launch.jobs.clear();
    world.deliver(Event::PowerReported(power));
    world.deliver(Event::LaunchReported(launch));
    assert!(alarms(&world).iter().any(|alarm| alarm.contains("at_us")), "{:?}", world.log);
    // Less than a day ahead, as with a wrong clock: accepted, and the next report counts as newer.
    let (mut power, mut launch) = last(&world);
    let ahead = world.now + Duration::from_secs(3_600);
    (power.at_us, launch.at_us) = (ahead, ahead);
    world.deliver(Event::PowerReported(power));
    world.deliver(Event::LaunchReported(launch));
    world.submit(spec("a", 1));
    world.pass(30);
    assert_eq!(world.record("a").phase, JobPhase::Finished);
    assert_eq!(world.record("a").attempt, 1);
}

#[test]
fn surface_outside_its_limits_is_ignored_with_an_alarm() {
    let mut world = World::new(1, 2);
    world.submit(spec("a", 1));
    world.pass(2);
    let point = wattle_testkit::point(1, 10.0, 200.0);
    let mut absurd = wattle_testkit::surface("a", "v100", vec![point]);
    absurd.memory_mib_max = Some(u64::MAX);
    absurd.at_us = world.now;
    world.deliver(Event::SurfaceKnown(Box::new(absurd)));
    let alarms = alarms(&world);
    assert!(alarms.iter().any(|alarm| alarm.contains("the surface of a")), "{alarms:?}");
}

#[test]
fn absurd_generation_in_a_report_or_a_stored_order_is_not_continued() {
    let mut world = World::new(1, 2);
    world.pass(2);
    let n0 = NodeId::new("n0").unwrap();
    let generation = world.desired("n0").generation;
    let (mut power, mut launch) = world.reports("n0");
    (power.observed_generation, launch.observed_generation) = (u64::MAX, u64::MAX);
    world.deliver(Event::PowerReported(power));
    world.deliver(Event::LaunchReported(launch));
    world.submit(spec("a", 1));
    world.pass(2);
    assert!(world.desired("n0").generation < generation + 10);
    assert_eq!(world.record("a").phase, JobPhase::Running);
    // A forged order in the bucket is replaced by one that the node accepts.
    let forged = world.orders.get_mut(&n0).unwrap();
    let obeyed = forged.generation;
    (forged.generation, forged.jobs) = (u64::MAX, vec![]);
    world.orders_may_be_forged = true;
    world.restart();
    world.wake();
    let next = world.desired("n0");
    assert!((obeyed..obeyed + 10).contains(&next.generation), "{}", next.generation);
    assert_eq!(next.jobs.len(), 1);
}

#[test]
fn garbage_in_the_stored_budget_is_ignored_with_an_alarm() {
    let mut world = budgeted();
    world.pass(2);
    for change in [
        (|world: &mut World| world.budget.as_mut().unwrap().budget.window_ms = 0) as fn(&mut World),
        |world| world.budget.as_mut().unwrap().budget.window_ms = u64::MAX,
        |world| world.budget.as_mut().unwrap().since_us = Timestamp::FOREVER,
        |world| world.budget_status.as_mut().unwrap().window_from_us = Timestamp::FOREVER,
        |world| world.budget_status.as_mut().unwrap().price = f64::MAX,
    ] {
        let kept = (world.budget.clone(), world.budget_status.clone());
        let before = alarms(&world).len();
        change(&mut world);
        world.restart();
        world.pass(3);
        assert!(alarms(&world).len() > before, "no alarm");
        (world.budget, world.budget_status) = kept;
    }
    // A window that began in 1970 is closed without a step for each window since.
    world.budget.as_mut().unwrap().since_us = Timestamp::EPOCH;
    world.budget.as_mut().unwrap().budget.window_ms = 60_000;
    world.budget_status = None;
    world.now = Timestamp::from_s(2_000_000_000);
    world.restart();
    world.pass(1);
    let limit = Budget::from_human(None, None, Some(9.0), None).unwrap();
    assert_eq!(limit.power_mw, Some(Power::from_w(9_000)));
    let request = SetBudget { budget: limit.clone(), intensity: None };
    world.deliver(Event::BudgetSet(9, Box::new(request)));
    assert_eq!(
        world.budget_reply.take(),
        Some(BudgetReply::Stored { budget: limit, generation: 2 })
    );
}

#[test]
fn order_of_many_long_commands_fits_into_a_message() {
    let mut world = World::new(1, 64);
    world.long = true;
    world.pass(2);
    for at in 0..34 {
        let mut long = spec(&format!("j{at}"), 1);
        long.command.push("x".repeat(31_000));
        assert!(matches!(world.request_submit(long), Reply::Accepted { .. }));
    }
    world.pass(5);
    let order = world.desired("n0");
    assert_eq!(order.jobs.len(), 34);
    assert!(codec::encode_json(order).len() < PAYLOAD_LEN_MAX);
    assert!((0..34).all(|at| world.record(&format!("j{at}")).phase == JobPhase::Running));
    // A few jobs are ordered with their commands.
    let mut world = World::new(1, 64);
    world.submit(spec("a", 1));
    world.pass(2);
    assert!(!world.desired("n0").jobs[0].command.is_empty());
}

#[test]
fn job_with_absurd_numbers_is_refused() {
    let mut world = World::new(1, 2);
    world.pass(2);
    let refused = |change: fn(&mut JobSpec)| {
        let mut wrong = spec("a", 1);
        change(&mut wrong);
        match World::new(1, 2).request_submit(wrong) {
            Reply::Refused { error } => error,
            Reply::Accepted { .. } => panic!("accepted"),
        }
    };
    assert!(refused(|spec| spec.gpus.max = u32::MAX).contains("gpus.max = 4294967295"));
    assert!(refused(|spec| spec.slack_ms = Some(u64::MAX)).contains("slack_ms"));
    assert!(refused(|spec| spec.duration_ms_estimate = Some(u64::MAX)).contains("duration"));
    assert!(refused(|spec| spec.time_limit_ms = Some(u64::MAX)).contains("time_limit_ms"));
}

#[test]
fn oldest_ended_jobs_are_forgotten_when_the_bucket_is_nearly_full() {
    let mut world = World::new(1, 4);
    for at in 0..20 {
        world.submit(spec(&format!("j{at:02}"), 1));
    }
    world.pass(120);
    assert_eq!(world.jobs.len(), 20);
    world.deliver(Event::JobsNearlyFull);
    assert_eq!(world.jobs.len(), 18, "a sixteenth, rounded up");
    for _ in 0..40 {
        world.deliver(Event::JobsNearlyFull);
    }
    assert!(world.jobs.is_empty());
}
