//! Nodes that sleep and wake, and those that do not as they should.

use wattle_common::job::JobPhase;
use wattle_common::messages::{NodeSleep, SleepState};

use crate::config::node_sleep::SleepConfig;
use crate::live::tests::spec;
use crate::live::tests::world::World;
use crate::policies::{Fifo, Policy, Sleeping};

/// Two nodes of two GPUs that sleep after a minute, by the rule that all policies have.
fn world() -> World {
    let mut world = World::new(2, 2);
    world.policy = || -> Box<dyn Policy> { Box::new(Sleeping::new(Box::new(Fifo))) };
    world.config.sleep = SleepConfig {
        wake_command: Some(vec!["wake".to_owned()]),
        idle_before_sleep_s: 60,
        sleep_timeout_s: 40,
        wake_timeout_s: 60,
        wake_time_s: 20,
        ..SleepConfig::default()
    };
    for node in ["n0", "n1"] {
        world.nap(node).can = true;
    }
    world.restart();
    world
}

fn state(world: &World, node: &str) -> Option<SleepState> {
    world.desired(node).sleep.map(|NodeSleep { state, .. }| state)
}

fn alarms(world: &World) -> Vec<&str> {
    world.log.iter().map(String::as_str).filter(|line| line.starts_with("alarm")).collect()
}

fn woken(world: &World) -> usize {
    world.log.iter().filter(|line| line.starts_with("wake ")).count()
}

#[test]
fn who_is_not_needed_sleeps_and_is_neither_lost_nor_forgotten() {
    let mut world = world();
    world.pass(50);
    assert_eq!(state(&world, "n0"), None, "it stays for a minute");
    world.pass(20);
    assert_eq!(state(&world, "n0"), Some(SleepState::EnteringSleep));
    assert!(world.nap("n0").asleep);
    world.pass(30);
    assert_eq!(state(&world, "n0"), Some(SleepState::Asleep));
    // Far beyond the time after which a silent node is lost.
    world.pass(400);
    assert_eq!(state(&world, "n1"), Some(SleepState::Asleep));
    assert_eq!((alarms(&world), woken(&world)), (vec![], 0));
    // A placer that restarts knows who sleeps, and what they have.
    world.restart();
    world.pass(60);
    assert_eq!(state(&world, "n1"), Some(SleepState::Asleep));
    assert!(matches!(
        world.ask_submit(spec("large", 4)),
        wattle_common::messages::Reply::Accepted { .. }
    ));
}

#[test]
fn as_many_wake_as_somebody_waits_for_and_stay_for_a_while() {
    let mut world = world();
    world.pass(120);
    world.submit(spec("a", 2));
    world.pass(3);
    assert_eq!(state(&world, "n0"), Some(SleepState::Waking));
    assert_eq!(state(&world, "n1"), Some(SleepState::Asleep), "one is enough");
    assert_eq!(world.record("a").phase, JobPhase::Queued);
    world.pass(25);
    assert_eq!(state(&world, "n0"), None);
    assert_ne!(world.record("a").phase, JobPhase::Queued);
    world.pass(40);
    assert_eq!(world.record("a").phase, JobPhase::Finished);
    assert_eq!(state(&world, "n0"), None, "its minute has not passed");
    world.pass(90);
    assert_eq!(state(&world, "n0"), Some(SleepState::Asleep));
    assert_eq!((alarms(&world), woken(&world)), (vec![], 1));
}

#[test]
fn who_is_needed_while_it_falls_asleep_is_woken_once_it_sleeps() {
    let mut world = world();
    world.pass(66);
    assert_eq!(state(&world, "n0"), Some(SleepState::EnteringSleep));
    world.submit(spec("a", 4));
    world.pass(5);
    assert_eq!(woken(&world), 0, "a wake command would come too early");
    world.pass(60);
    assert_ne!(world.record("a").phase, JobPhase::Queued);
    assert_eq!((alarms(&world), woken(&world)), (vec![], 2));
}

#[test]
fn a_node_that_does_not_wake_is_told_and_unhealthy_until_it_is_heard_of() {
    let mut world = world();
    world.pass(120);
    world.nap("n0").deaf = true;
    world.submit(spec("a", 2));
    world.pass(70);
    assert_eq!(state(&world, "n0"), Some(SleepState::WakeFailed));
    let told = "alarm n0 was not heard of within 60 s of its wake command";
    assert!(alarms(&world)[0].starts_with(told), "{:?}", alarms(&world));
    // Another is woken in its place.
    world.pass(40);
    assert_eq!(world.record("a").phase, JobPhase::Finished);
    world.restart();
    world.pass(10);
    assert_eq!(state(&world, "n0"), Some(SleepState::WakeFailed), "a restart forgets nothing");
    world.nap("n0").asleep = false;
    world.pass(3);
    assert_eq!(state(&world, "n0"), None);
    world.submit(spec("wide", 4));
    world.pass(30);
    assert_eq!(world.record("wide").phase, JobPhase::Finished);
}

#[test]
fn a_wake_command_that_fails_is_told_and_tried_again() {
    let mut world = world();
    world.pass(120);
    world.nap("n0").deaf = true;
    world.submit(spec("a", 2));
    world.pass(2);
    let node = wattle_common::NodeId::new("n0").unwrap();
    world.tell(crate::live::tests::Event::WakeAnswered(node, Some("no route".to_owned())));
    assert_eq!(
        alarms(&world),
        ["alarm the wake command of n0 failed, and is tried again: no route"]
    );
    world.nap("n0").deaf = false;
    world.pass(40);
    assert_eq!(world.record("a").phase, JobPhase::Finished);
    assert_eq!(woken(&world), 2);
}

#[test]
fn a_node_that_cannot_sleep_stays_awake_and_takes_jobs() {
    let mut world = world();
    world.nap("n0").fails = Some("`suspend` ended with exit status: 1".to_owned());
    world.nap("n1").can = false;
    world.restart();
    world.pass(100);
    assert_eq!(alarms(&world), ["alarm n0 stays awake: `suspend` ended with exit status: 1"]);
    assert_eq!((state(&world, "n0"), state(&world, "n1")), (None, None));
    world.submit(spec("wide", 4));
    world.pass(20);
    assert_eq!(world.record("wide").phase, JobPhase::Finished);
}

#[test]
fn without_a_wake_command_nobody_sleeps() {
    let mut world = world();
    world.config.sleep.wake_command = None;
    world.restart();
    world.pass(200);
    assert_eq!((state(&world, "n0"), state(&world, "n1")), (None, None));
}

#[test]
fn who_was_woken_by_hand_is_awake() {
    let mut world = world();
    world.pass(120);
    world.nap("n1").asleep = false;
    world.pass(3);
    assert_eq!(state(&world, "n1"), None);
    world.submit(spec("a", 2));
    world.pass(5);
    assert_eq!(world.record("a").placement.as_ref().unwrap().to_string(), "n1:0,1");
    assert_eq!(woken(&world), 0);
}

/// Sleep, wake and sleep again; `kill_at` is the write before which the placer is killed.
fn story(kill_at: Option<usize>) -> World {
    let mut world = world();
    world.kill_at = kill_at.map(|write| write + world.writes);
    world.submit(spec("early", 2));
    world.pass(110);
    world.submit(spec("wakes-one", 2));
    world.pass(1);
    world.submit(spec("wakes-both", 4));
    // A restart counts the minute and the silence anew.
    world.pass(300);
    world
}

#[test]
fn killed_before_any_write_nobody_oversleeps() {
    let calm = story(None);
    assert!(woken(&calm) >= 2, "{}", calm.log.join("\n"));
    for kill_at in 0..calm.writes {
        let mut world = story(Some(kill_at));
        let told = format!("killed before write {kill_at}:\n{}", world.log.join("\n"));
        for job in ["early", "wakes-one", "wakes-both"] {
            assert_eq!(world.record(job).phase, JobPhase::Finished, "{job}, {told}");
        }
        assert_eq!(alarms(&world), Vec::<&str>::new(), "{told}");
        for node in ["n0", "n1"] {
            assert_eq!(state(&world, node), Some(SleepState::Asleep), "{node}, {told}");
            assert!(world.nap(node).asleep, "{node}, {told}");
        }
    }
}
