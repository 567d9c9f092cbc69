//! Nodes that sleep and wake, with failures of both.

use wattle_common::job::JobPhase;
use wattle_common::messages::{NodeSleep, SleepState};

use crate::config::node_sleep::SleepConfig;
use crate::live::tests::spec;
use crate::live::tests::world::World;
use crate::policies::policy;

/// Two nodes of two GPUs that sleep after an idle minute, by the rule common to all policies.
fn world() -> World {
    let mut world = World::new(2, 2);
    world.policy = || policy("fifo").unwrap();
    world.config.sleep = SleepConfig {
        wake_command: Some(vec!["wake".to_owned()]),
        idle_before_sleep_s: 60,
        sleep_timeout_s: 40,
        wake_timeout_s: 60,
        wake_time_s: 20,
        ..SleepConfig::default()
    };
    for node in ["n0", "n1"] {
        world.simulated_sleep(node).can = true;
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
fn an_idle_node_sleeps_and_stays_in_the_inventory() {
    let mut world = world();
    world.pass(50);
    assert_eq!(state(&world, "n0"), None, "idle for less than a minute");
    world.pass(20);
    assert_eq!(state(&world, "n0"), Some(SleepState::EnteringSleep));
    assert!(world.simulated_sleep("n0").asleep);
    world.pass(30);
    assert_eq!(state(&world, "n0"), Some(SleepState::Asleep));
    // Longer than the time after which a silent node is lost.
    world.pass(400);
    assert_eq!(state(&world, "n1"), Some(SleepState::Asleep));
    assert_eq!((alarms(&world), woken(&world)), (vec![], 0));
    // A restarted placer still has the sleeping nodes and their GPUs.
    world.restart();
    world.pass(60);
    assert_eq!(state(&world, "n1"), Some(SleepState::Asleep));
    assert!(matches!(
        world.request_submit(spec("large", 4)),
        wattle_common::messages::Reply::Accepted { .. }
    ));
}

#[test]
fn only_needed_nodes_wake_and_they_sleep_again_when_idle() {
    let mut world = world();
    world.pass(120);
    world.submit(spec("a", 2));
    world.pass(3);
    assert_eq!(state(&world, "n0"), Some(SleepState::Waking));
    assert_eq!(state(&world, "n1"), Some(SleepState::Asleep), "one node suffices");
    assert_eq!(world.record("a").phase, JobPhase::Queued);
    world.pass(25);
    assert_eq!(state(&world, "n0"), None);
    assert_ne!(world.record("a").phase, JobPhase::Queued);
    world.pass(40);
    assert_eq!(world.record("a").phase, JobPhase::Finished);
    assert_eq!(state(&world, "n0"), None, "idle for less than a minute");
    world.pass(90);
    assert_eq!(state(&world, "n0"), Some(SleepState::Asleep));
    assert_eq!((alarms(&world), woken(&world)), (vec![], 1));
}

#[test]
fn a_node_needed_while_entering_sleep_is_woken_once_asleep() {
    let mut world = world();
    world.pass(66);
    assert_eq!(state(&world, "n0"), Some(SleepState::EnteringSleep));
    world.submit(spec("a", 4));
    world.pass(5);
    assert_eq!(woken(&world), 0, "no wake command before the node is asleep");
    world.pass(60);
    assert_ne!(world.record("a").phase, JobPhase::Queued);
    assert_eq!((alarms(&world), woken(&world)), (vec![], 2));
}

#[test]
fn a_failed_wake_raises_an_alarm_and_excludes_the_node_until_it_reports() {
    let mut world = world();
    world.pass(120);
    world.simulated_sleep("n0").ignores_orders = true;
    world.submit(spec("a", 2));
    world.pass(70);
    assert_eq!(state(&world, "n0"), Some(SleepState::WakeFailed));
    let expected = "alarm n0 sent no report within 60 s of its wake command";
    assert!(alarms(&world)[0].starts_with(expected), "{:?}", alarms(&world));
    // The other node is woken instead.
    world.pass(40);
    assert_eq!(world.record("a").phase, JobPhase::Finished);
    world.restart();
    world.pass(10);
    assert_eq!(state(&world, "n0"), Some(SleepState::WakeFailed), "persisted across a restart");
    world.simulated_sleep("n0").asleep = false;
    world.pass(3);
    assert_eq!(state(&world, "n0"), None);
    world.submit(spec("wide", 4));
    world.pass(30);
    assert_eq!(world.record("wide").phase, JobPhase::Finished);
}

#[test]
fn a_failed_wake_command_raises_an_alarm_and_is_retried() {
    let mut world = world();
    world.pass(120);
    world.simulated_sleep("n0").ignores_orders = true;
    world.submit(spec("a", 2));
    world.pass(2);
    let node = wattle_common::NodeId::new("n0").unwrap();
    world.deliver(crate::live::tests::Event::WakeAnswered(node, Some("no route".to_owned())));
    assert_eq!(alarms(&world), ["alarm the wake command of n0 failed and is retried: no route"]);
    world.simulated_sleep("n0").ignores_orders = false;
    world.pass(40);
    assert_eq!(world.record("a").phase, JobPhase::Finished);
    assert_eq!(woken(&world), 2);
}

#[test]
fn a_node_that_cannot_sleep_stays_awake_and_runs_jobs() {
    let mut world = world();
    world.simulated_sleep("n0").fails = Some("`suspend` ended with exit status: 1".to_owned());
    world.simulated_sleep("n1").can = false;
    world.restart();
    world.pass(100);
    assert_eq!(
        alarms(&world),
        [
            "alarm the sleep command of n0 failed and the node stays awake: `suspend` ended with exit status: 1"
        ]
    );
    assert_eq!((state(&world, "n0"), state(&world, "n1")), (None, None));
    world.submit(spec("wide", 4));
    world.pass(20);
    assert_eq!(world.record("wide").phase, JobPhase::Finished);
}

#[test]
fn no_node_sleeps_without_a_wake_command() {
    let mut world = world();
    world.config.sleep.wake_command = None;
    world.restart();
    world.pass(200);
    assert_eq!((state(&world, "n0"), state(&world, "n1")), (None, None));
}

#[test]
fn a_node_woken_by_hand_is_awake() {
    let mut world = world();
    world.pass(120);
    world.simulated_sleep("n1").asleep = false;
    world.pass(3);
    assert_eq!(state(&world, "n1"), None);
    world.submit(spec("a", 2));
    world.pass(5);
    assert_eq!(world.record("a").placement.as_ref().unwrap().to_string(), "n1:0,1");
    assert_eq!(woken(&world), 0);
}

/// Sleep, wake and sleep again; `kill_at` is the write before which the placer is killed.
fn scenario(kill_at: Option<usize>) -> World {
    let mut world = world();
    world.kill_at = kill_at.map(|write| write + world.writes);
    world.submit(spec("early", 2));
    world.pass(110);
    world.submit(spec("wakes-one", 2));
    world.pass(1);
    world.submit(spec("wakes-both", 4));
    // A restart resets the idle time and the time since the last report.
    world.pass(300);
    world
}

#[test]
fn nodes_wake_and_sleep_correctly_after_a_kill_before_any_write() {
    let undisturbed = scenario(None);
    assert!(woken(&undisturbed) >= 2, "{}", undisturbed.log.join("\n"));
    for kill_at in 0..undisturbed.writes {
        let mut world = scenario(Some(kill_at));
        let context = format!("killed before write {kill_at}:\n{}", world.log.join("\n"));
        for job in ["early", "wakes-one", "wakes-both"] {
            assert_eq!(world.record(job).phase, JobPhase::Finished, "{job}, {context}");
        }
        assert_eq!(alarms(&world), Vec::<&str>::new(), "{context}");
        for node in ["n0", "n1"] {
            assert_eq!(state(&world, node), Some(SleepState::Asleep), "{node}, {context}");
            assert!(world.simulated_sleep(node).asleep, "{node}, {context}");
        }
    }
}
