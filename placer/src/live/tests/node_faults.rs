//! Nodes that cannot start jobs.

use wattle_common::job::JobPhase;
use wattle_common::messages::{JobRecord, LaunchState};

use super::spec;
use super::world::World;

fn alarms(world: &World, text: &str) -> usize {
    let is_alarm = |line: &&String| line.starts_with("alarm ") && line.contains(text);
    world.log.iter().filter(is_alarm).count()
}

fn submit(world: &mut World, count: usize) {
    for at in 0..count {
        world.submit(spec(&format!("j{at}"), 1));
    }
}

fn records(world: &World) -> Vec<&JobRecord> {
    world.jobs.values().collect()
}

/// Jobs that run on a node, now or as recorded in their reasons.
fn placed_on(world: &World, node: &str) -> usize {
    let on = format!("placed on {node}:");
    let reasons = records(world).into_iter().flat_map(|record| &record.reasons);
    reasons.filter(|reason| reason.decision.starts_with(&on)).count()
}

#[test]
fn one_broken_node_of_two_costs_no_job() {
    let mut world = World::new(2, 2);
    // Starts that a node prevents do not count.
    world.config.attempts_max = 1;
    world.restart();
    world.set_broken("n0", true);
    submit(&mut world, 30);
    world.pass(300);
    let phases: Vec<JobPhase> = records(&world).iter().map(|record| record.phase).collect();
    assert_eq!(phases, vec![JobPhase::Finished; 30], "{:#?}", world.log);
    let prevented: u32 = records(&world).iter().map(|record| record.attempts_prevented).sum();
    assert_eq!((placed_on(&world, "n0"), prevented), (2, 2), "it gets no job after the first");
    let first = world.record("j0");
    assert_eq!((first.attempt, first.start_count()), (2, 1));
    let reason = "n0 could not start it: no space left on device";
    assert!(first.reasons.iter().any(|known| known.reason == reason), "{:?}", first.reasons);
    assert_eq!(alarms(&world, "n0 cannot start jobs"), 1);
    assert_eq!(alarms(&world, "free the disk"), 1);
    let counts = world.placer.measures().nodes;
    assert_eq!((counts.ready, counts.faulty), (1, 1));
    // It works again.
    world.set_broken("n0", false);
    world.pass(1);
    for name in ["a", "b", "c"] {
        world.submit(spec(name, 1));
    }
    world.pass(20);
    assert_eq!(placed_on(&world, "n0"), 4, "{:#?}", world.log);
    assert!(records(&world).iter().all(|record| record.phase == JobPhase::Finished));
    assert_eq!(world.placer.measures().nodes.ready, 2);
}

#[test]
fn jobs_wait_while_every_node_is_broken() {
    let mut world = World::new(2, 2);
    world.config.attempts_max = 1;
    world.restart();
    world.set_broken("n0", true);
    world.set_broken("n1", true);
    submit(&mut world, 6);
    world.pass(60);
    assert!(records(&world).iter().all(|record| record.phase == JobPhase::Queued));
    let head = world.record("j0").reasons.last().unwrap();
    assert_eq!(head.decision, "waits");
    let cause = "n0 and 1 more cannot start jobs (no space left on device; wattle nodes)";
    assert!(head.reason.ends_with(cause), "{}", head.reason);
    let prevented: u32 = records(&world).iter().map(|record| record.attempts_prevented).sum();
    assert!(prevented <= 4, "{prevented} starts on four GPUs");
    // The placer is restarted and knows the faults from the stored reports.
    world.restart();
    world.pass(30);
    let again: u32 = records(&world).iter().map(|record| record.attempts_prevented).sum();
    assert_eq!(again, prevented);
    world.set_broken("n1", false);
    world.pass(60);
    assert!(records(&world).iter().all(|record| record.phase == JobPhase::Finished));
}

#[test]
fn a_job_on_two_nodes_does_not_fail_with_the_one_that_cannot_start_it() {
    let mut world = World::new(3, 2);
    world.long = true;
    world.set_broken("n1", true);
    world.submit(spec("wide", 4));
    world.pass(1);
    assert_eq!(world.record("wide").placement.as_ref().unwrap().to_string(), "n0:0,1 n1:0,1");
    // The other rank fails because it has no peer.
    world.set_state("n0", "wide", LaunchState::exited(1));
    world.pass(10);
    let record = world.record("wide");
    assert_eq!((record.phase, record.attempts_prevented), (JobPhase::Running, 1), "{record:#?}");
    assert_eq!(record.placement.as_ref().unwrap().to_string(), "n0:0,1 n2:0,1");
    assert_eq!((record.exit_code, &record.error), (None, &None));
}

#[test]
fn jobs_of_a_broken_node_continue_and_its_own_faults_stay_a_jobs() {
    let mut world = World::new(1, 2);
    world.long = true;
    world.submit(spec("runs", 1));
    world.pass(5);
    world.set_broken("n0", true);
    world.submit(spec("later", 1));
    world.pass(200);
    let runs = world.record("runs");
    assert_eq!((runs.phase, runs.attempt), (JobPhase::Running, 1));
    assert_eq!(world.record("later").phase, JobPhase::Queued);
    world.set_broken("n0", false);
    world.refuse.insert("later".parse().unwrap());
    world.pass(5);
    let later = world.record("later");
    assert_eq!((later.phase, later.attempts_prevented), (JobPhase::Failed, 1));
    assert_eq!(alarms(&world, "cannot start jobs"), 1);
}

#[test]
fn a_stop_without_a_checkpoint_is_recorded_and_raises_an_alarm() {
    let mut world = World::new(2, 1);
    world.long = true;
    world.submit(spec("a", 1));
    world.pass(5);
    let stop = |world: &mut World, node: &str| {
        world.set_unhealthy(node, 0, true);
        world.pass(10);
        world.set_unhealthy(node, 0, false);
    };
    let unsaved = |world: &World| {
        let reasons = &world.record("a").reasons;
        let known = reasons.iter().filter(|one| one.decision == "stopped without a checkpoint");
        assert_eq!(known.count() as u32, world.record("a").stops_unsaved);
        world.record("a").stops_unsaved
    };
    stop(&mut world, "n0");
    assert_eq!((world.record("a").attempt, unsaved(&world)), (2, 0), "it wrote one");
    world.killed_by = Some(10);
    stop(&mut world, "n1");
    assert_eq!((world.record("a").attempt, unsaved(&world)), (3, 1));
    let reasons = &world.record("a").reasons;
    let text = "SIGUSR1 ended its program on n1 after the request for a checkpoint: its work since its last \
                checkpoint is lost";
    assert!(reasons.iter().any(|known| known.reason.starts_with(text)), "{reasons:?}");
    assert_eq!(alarms(&world, "a was stopped without a checkpoint"), 1);
    // Nothing is to continue after a cancellation.
    world.cancel("a");
    world.pass(10);
    assert_eq!((world.record("a").phase, unsaved(&world)), (JobPhase::Cancelled, 1));
}
