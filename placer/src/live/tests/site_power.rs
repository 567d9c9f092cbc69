//! The power of the site by minute: its energy is that of the ledger, each minute once, over restarts and absences.

use std::collections::BTreeSet;
use std::time::Duration;

use wattle_common::event::{Depth, GridEvent, Participation};
use wattle_common::messages::site_minute::MINUTE;
use wattle_common::messages::{EventReply, EventRequest, LedgerEntry, SetBudget, SiteMinute};
use wattle_common::{Budget, Energy, EventId, Power, Timestamp};

use super::power_shares::metered;
use super::spec;
use super::world::World;
use crate::live::Event;

const NODES: usize = 2;
const GPU_W: u64 = 100;
const HOST_W: u64 = 50;
/// Above what the site draws.
const TARGET_W: u64 = 550;

/// Node `n` was metered for a minute that ended `ago_s` seconds ago.
fn meter(world: &mut World, node: usize, ago_s: u64) {
    let until = world.now - Duration::from_secs(ago_s);
    let entry = LedgerEntry {
        energy_mj_gpus: vec![Some(Power::from_w(GPU_W).over(MINUTE)); 2],
        ..wattle_testkit::ledger_entry(
            &format!("n{node}"),
            until - MINUTE,
            until,
            Power::from_w(HOST_W).over(MINUTE),
        )
    };
    world.deliver(Event::EnergyMetered(Box::new(entry)));
}

/// Two nodes, with a placer that has read no entry of the ledger.
fn fresh() -> World {
    let mut world = metered(NODES);
    world.ledger.clear();
    world.site_minutes.clear();
    world.restart();
    world
}

/// Minutes pass; the entries of the two nodes end at different times.
fn run(world: &mut World, minutes: u64) {
    for _ in 0..minutes {
        world.pass(30);
        meter(world, 0, 0);
        world.pass(30);
        meter(world, 1, 0);
    }
}

fn energy_of_ledger(world: &World, from: Timestamp, until: Timestamp) -> f64 {
    let parts = world.ledger.iter().map(|entry| {
        let span_s = entry.until_us.since(entry.from_us).as_secs_f64();
        let within_s = entry.until_us.min(until).since(entry.from_us.max(from)).as_secs_f64();
        (entry.gpus() + entry.energy_mj_host).as_j() * within_s / span_s
    });
    parts.sum()
}

/// Each minute is there once, and they have the energy of the ledger.
fn check(world: &World) -> (Timestamp, Timestamp) {
    let minutes = &world.site_minutes;
    let starts: BTreeSet<Timestamp> = minutes.iter().map(|minute| minute.minute_us).collect();
    assert_eq!(starts.len(), minutes.len(), "a minute is stored twice");
    let (from, until) = (minutes[0].minute_us, minutes.last().unwrap().until());
    let energy: Energy = minutes.iter().map(|minute| minute.energy_mj).sum();
    let ledger_j = energy_of_ledger(world, from, until);
    assert!((energy.as_j() - ledger_j).abs() < 0.01, "{} J, {ledger_j} J", energy.as_j());
    (from, until)
}

#[test]
fn each_minute_has_the_energy_of_the_ledger_once_over_restarts() {
    let mut world = fresh();
    run(&mut world, 4);
    for _ in 0..5 {
        // A placer is lost between the entries of two nodes; the last entry is delivered again.
        world.pass(30);
        meter(&mut world, 0, 0);
        world.restart();
        let last = world.ledger.last().unwrap().clone();
        world.deliver(Event::EnergyMetered(Box::new(last)));
        world.ledger.pop();
        world.pass(30);
        meter(&mut world, 1, 0);
        run(&mut world, 2);
    }
    let (from, until) = check(&world);
    assert!(until.since(from) >= 17 * MINUTE, "{from} {until}");
    let complete = |minute: &&SiteMinute| minute.is_complete();
    assert_eq!(world.site_minutes.iter().filter(complete).count(), world.site_minutes.len());
    let watts = (NODES as u64 * (2 * GPU_W + HOST_W)) as f64;
    let powers = world.site_minutes.iter().map(|minute| minute.power().unwrap().as_w());
    assert!(powers.skip(1).all(|power_w| (power_w - watts).abs() < 0.01));
}

#[test]
fn a_minute_without_some_node_has_no_power() {
    let mut world = fresh();
    run(&mut world, 3);
    let before = world.site_minutes.len();
    // One node is silent.
    for _ in 0..8 {
        world.pass(60);
        meter(&mut world, 0, 0);
    }
    let later = &world.site_minutes[before + 1..];
    assert!(!later.is_empty(), "a silent node does not end the records");
    assert!(later.iter().all(|minute| minute.power().is_none() && minute.metered < minute.nodes));
    check(&world);
}

#[test]
fn a_minute_states_what_was_in_force() {
    let mut world = fresh();
    world.submit(spec("a", 1));
    run(&mut world, 3);
    let power_mw = Some(Power::from_w(2_000));
    let budget = Budget { power_mw, ..Budget::default() };
    world.deliver(Event::BudgetSet(8, Box::new(SetBudget { budget, intensity: None })));
    let event = GridEvent {
        event: EventId::new("peak").unwrap(),
        source: "utility".to_owned(),
        feeder: None,
        start_us: world.now + MINUTE,
        ramp_down_s: 0,
        depth: Depth::Target { power_mw: Power::from_w(TARGET_W) },
        duration_s: 300,
        ramp_up_s: 0,
        priority: 0,
        participation: Participation::Mandatory,
    };
    let (start, end) = (event.start_us, event.end());
    world.deliver(Event::EventSet(7, Box::new(EventRequest::Add { event })));
    let reply = world.event_reply.take();
    assert!(matches!(reply, Some(EventReply::Stored { .. })), "{reply:?}");
    run(&mut world, 9);
    check(&world);
    let at = |at: Timestamp| {
        let found =
            world.site_minutes.iter().find(|minute| minute.minute_us <= at && at < minute.until());
        found.unwrap_or_else(|| panic!("no minute at {at}"))
    };
    let within = at(start + 2 * MINUTE);
    assert_eq!((within.limit_mw, within.target_mw), (power_mw, Some(Power::from_w(TARGET_W))));
    assert_eq!(at(start - MINUTE - MINUTE).target_mw, None);
    // The return is limited too.
    assert_eq!(at(end + MINUTE).target_mw, Some(Power::from_w(TARGET_W)));
}
