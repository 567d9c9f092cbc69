//! Late jobs and a budget that no job can start under: an alarm once, and a number for the metrics.

use std::time::Duration;

use wattle_common::Budget;

use super::budget::{minutes, set};
use super::spec;
use super::world::World;
use crate::live::measures::Findings;

fn alarms(world: &World) -> Vec<&str> {
    world.log.iter().filter_map(|line| line.strip_prefix("alarm ")).collect()
}

#[test]
fn an_impossible_and_then_missed_deadline_is_an_alarm_each_once() {
    let mut world = World::new(1, 1);
    world.long = true;
    let mut late = spec("late", 1);
    late.deadline_at_us = Some(world.now + Duration::from_secs(600));
    late.duration_ms_estimate = Some(13_200_000);
    world.submit(late);
    let mut waits = spec("waits", 1);
    waits.deadline_at_us = Some(world.now + Duration::from_secs(900));
    world.submit(waits);
    world.pass(60);
    let found = alarms(&world);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("late will miss its deadline by 3.5 h, by prediction"),
        "{found:?}"
    );
    let expected = Findings { late_predicted: 1, ..Findings::default() };
    assert_eq!(world.placer.measures().findings, expected);
    world.pass(1_200);
    let found = alarms(&world);
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(
        found[1].starts_with("late is ") && found[1].contains(" past its deadline"),
        "{found:?}"
    );
    assert!(found[2].starts_with("waits is "), "{found:?}");
    let expected = Findings { late: 2, ..Findings::default() };
    assert_eq!(world.placer.measures().findings, expected);
    world.cancel("late");
    world.cancel("waits");
    world.pass(30);
    assert_eq!(world.placer.measures().findings, Findings::default(), "they have ended");
}

#[test]
fn a_budget_below_the_idle_draw_is_an_alarm_once_while_it_lasts() {
    let mut world = World::new(1, 2);
    world.pass(5);
    // Idle: two GPUs of 50 W and a host of 300 W.
    minutes(&mut world, 2, 2, 50);
    let below = Budget::from_human(Some(5.0), None, None, None).unwrap();
    set(&mut world, below);
    minutes(&mut world, 30, 2, 50);
    let found = alarms(&world);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("no job can start: the idle cluster draws 0.4 kW"), "{found:?}");
    assert!(world.placer.measures().findings.below_idle);
    set(&mut world, Budget::from_human(Some(50.0), None, None, None).unwrap());
    minutes(&mut world, 1, 2, 50);
    assert!(!world.placer.measures().findings.below_idle);
}
