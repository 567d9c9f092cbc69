//! Running jobs survive the loss of the store.

use wattle_common::job::JobPhase;

use super::spec;
use super::world::World;

/// `b` and `c` on one node, `a` on two others.
fn running() -> World {
    let mut world = World::new(3, 4);
    world.long = true;
    world.submit(spec("b", 1));
    world.submit(spec("c", 3));
    world.submit(spec("a", 8));
    world.pass(20);
    for job in ["a", "b", "c"] {
        assert_eq!(world.record(job).phase, JobPhase::Running, "{job}");
    }
    world
}

fn alarms(world: &World) -> Vec<&str> {
    world.log.iter().filter_map(|line| line.strip_prefix("alarm ")).collect()
}

/// The server loses acknowledged messages: an ended and a running job, and all orders.
#[test]
fn lost_values_are_stored_again() {
    let mut world = running();
    world.cancel("b");
    world.pass(10);
    let (ended, runs) = (world.record("b").clone(), world.record("a").clone());
    assert_eq!(ended.phase, JobPhase::Cancelled);
    let generation = world.desired("n0").generation;
    world.lose_values(&["a", "b"]);
    assert_eq!(*world.record("b"), ended);
    assert_eq!((world.record("a").phase, world.record("a").attempt), (runs.phase, 1));
    assert_eq!(world.desired("n0").generation, generation);
    assert!(alarms(&world)[0].contains("the 3 job records"), "{:?}", alarms(&world));
    world.pass(20);
    for job in ["a", "c"] {
        assert_eq!((world.record(job).phase, world.record(job).attempt), (JobPhase::Running, 1));
    }
}

#[test]
fn jobs_continue_and_are_adopted_after_the_store_was_lost() {
    let mut world = running();
    let placed: Vec<_> = ["a", "b", "c"].map(|job| world.record(job).placement.clone()).into();
    world.lose_store();
    world.pass(30);
    for (job, placement) in ["a", "b", "c"].iter().zip(placed) {
        let record = world.record(job);
        assert_eq!((record.phase, record.attempt), (JobPhase::Running, 1), "{:?}", world.log);
        assert_eq!(record.placement, placement);
        let reason = &record.reasons[0];
        assert!(reason.decision.starts_with("adopted on n"), "{reason:?}");
    }
    assert_eq!(alarms(&world).len(), 1, "{:?}", alarms(&world));
    assert!(
        alarms(&world)[0].contains("lost running jobs of n0, n1, n2: a, b, c (3 in all)"),
        "{:?}",
        alarms(&world)
    );
    assert_eq!(world.desired("n0").jobs.len() + world.desired("n1").jobs.len(), 3);
    // Their GPUs are not given to another job, and they end like other jobs.
    world.submit(spec("d", 1));
    world.pass(10);
    assert_eq!(world.record("d").phase, JobPhase::Queued);
    world.cancel("b");
    world.pass(10);
    assert_eq!(world.record("b").phase, JobPhase::Cancelled);
    assert_eq!(world.record("d").phase, JobPhase::Running);
    world.long = false;
    world.pass(20);
    assert_eq!(world.record("a").phase, JobPhase::Finished);
    assert_eq!(world.record("c").phase, JobPhase::Finished);
}

#[test]
fn adopted_job_is_not_restarted_without_its_command() {
    let mut world = running();
    world.lose_store();
    world.pass(30);
    world.reboot("n0");
    world.pass(20);
    let record = world.record("b");
    assert_eq!((record.phase, record.attempt), (JobPhase::Failed, 1));
    assert!(record.error.as_ref().unwrap().contains("submit it again"), "{record:?}");
}

#[test]
fn older_copy_of_the_store_adopts_newer_starts() {
    let mut world = World::new(1, 4);
    world.long = true;
    world.submit(spec("b", 4));
    world.submit(spec("c", 4));
    world.pass(20);
    assert_eq!(world.record("c").phase, JobPhase::Queued);
    let (jobs, orders) = (world.jobs.clone(), world.orders.clone());
    world.cancel("b");
    world.pass(20);
    assert_eq!(world.record("c").phase, JobPhase::Running);
    (world.jobs, world.orders) = (jobs, orders);
    world.restart();
    world.pass(30);
    let record = world.record("c");
    assert_eq!((record.phase, record.attempt), (JobPhase::Running, 1), "{:?}", world.log);
    assert!(!record.spec.command.is_empty(), "its record was known");
}

#[test]
fn orphan_of_a_forgotten_job_is_stopped() {
    let mut world = running();
    world.cut_off("n0", true);
    world.pass(125);
    // The record is gone, but the store still has the node's orders.
    world.config.ended_kept = 0;
    world.restart();
    world.cancel("b");
    world.pass(5);
    assert!(world.is_live("n0", "b", 1));
    world.cut_off("n0", false);
    world.pass(10);
    assert!(!world.is_live("n0", "b", 1));
    assert!(alarms(&world).is_empty(), "{:?}", alarms(&world));
}

/// Jobs run, end and start after the backup; each is recorded as its node knows it, and none starts again.
#[test]
fn restored_backup_is_compared_with_the_nodes_before_any_job_starts() {
    let mut world = World::new(2, 4);
    world.long = true;
    for job in ["a", "b", "c", "d", "e"] {
        world.submit(spec(job, 4));
    }
    world.pass(20);
    let phases = ["a", "b", "c"].map(|job| world.record(job).phase);
    assert_eq!(phases, [JobPhase::Running, JobPhase::Running, JobPhase::Queued]);
    let (jobs, orders, at) = (world.jobs.clone(), world.orders.clone(), world.now);
    // After the backup: `a` and `b` end, `c` and `d` run and end, `e` and a later job run.
    world.long = false;
    world.pass(10);
    assert_eq!(world.record("a").phase, JobPhase::Finished);
    world.submit(spec("later", 4));
    world.pass(5);
    world.long = true;
    world.pass(10);
    for job in ["c", "d"] {
        assert_eq!(world.record(job).phase, JobPhase::Finished, "{job}");
    }
    for job in ["e", "later"] {
        assert_eq!(world.record(job).phase, JobPhase::Running, "{job}");
    }
    let placed = ["e", "later"].map(|job| world.record(job).placement.clone());
    world.restore_store(jobs, orders, at);
    world.submit(spec("next", 4));
    world.pass(10);
    assert_eq!(world.record("next").phase, JobPhase::Queued, "it waits for the comparison");
    assert!(world.restored.is_some());
    world.pass(20);
    assert!(world.restored.is_none());
    for job in ["a", "b", "c", "d"] {
        let record = world.record(job);
        assert_eq!((record.phase, record.attempt), (JobPhase::Finished, 1), "{job}: {record:#?}");
    }
    for (job, placement) in ["e", "later"].iter().zip(placed) {
        let record = world.record(job);
        assert_eq!((record.phase, record.attempt), (JobPhase::Running, 1), "{job}: {record:#?}");
        assert_eq!(record.placement, placement);
    }
    assert!(!world.record("e").spec.command.is_empty(), "its record was in the backup");
    let alarms = alarms(&world).join("\n");
    assert!(alarms.contains("lost running jobs of n0, n1: e, later (2 in all)"), "{alarms}");
    assert!(alarms.contains("2 jobs ended meanwhile: c, d"), "{alarms}");
    world.long = false;
    world.pass(30);
    for job in ["e", "later", "next"] {
        assert_eq!(world.record(job).phase, JobPhase::Finished, "{job}");
    }
    // Every order since is newer than those that the nodes had obeyed: they carried them out.
    assert!(world.idle());
}

#[test]
fn job_that_its_node_no_longer_knows_is_reported_and_not_started_again() {
    let mut world = World::new(1, 4);
    world.long = true;
    world.submit(spec("a", 4));
    world.pass(20);
    let (jobs, orders, at) = (world.jobs.clone(), world.orders.clone(), world.now);
    world.long = false;
    world.pass(10);
    assert_eq!(world.record("a").phase, JobPhase::Finished);
    world.forget_run("n0", "a");
    // With and without the mark.
    for mark in [true, false] {
        let (jobs, orders) = (jobs.clone(), orders.clone());
        if mark {
            world.restore_store(jobs, orders, at);
        } else {
            (world.jobs, world.orders) = (jobs, orders);
            world.restart();
        }
        world.pass(30);
        let record = world.record("a");
        assert_eq!((record.phase, record.attempt), (JobPhase::Failed, 1), "{record:#?}");
        assert!(record.error.as_ref().unwrap().contains("no record of the result"), "{record:?}");
        assert!(alarms(&world).join("\n").contains("unknown result"), "{:?}", alarms(&world));
    }
}

#[test]
fn restored_store_of_unchanged_nodes_changes_nothing() {
    let mut world = running();
    let (jobs, orders, at) = (world.jobs.clone(), world.orders.clone(), world.now);
    world.pass(5);
    world.restore_store(jobs, orders, at);
    world.pass(40);
    for job in ["a", "b", "c"] {
        assert_eq!((world.record(job).phase, world.record(job).attempt), (JobPhase::Running, 1));
    }
    assert!(alarms(&world).is_empty(), "{:?}", alarms(&world));
}

#[test]
fn job_that_moved_after_the_backup_is_found_on_its_new_node() {
    let mut world = World::new(2, 4);
    world.long = true;
    world.submit(spec("a", 4));
    world.pass(20);
    let (jobs, orders, at) = (world.jobs.clone(), world.orders.clone(), world.now);
    assert_eq!(world.record("a").placement.as_ref().unwrap().shares[0].node.as_str(), "n0");
    world.set_unhealthy("n0", 0, true);
    world.pass(20);
    assert_eq!(world.record("a").placement.as_ref().unwrap().shares[0].node.as_str(), "n1");
    world.set_unhealthy("n0", 0, false);
    world.restore_store(jobs, orders, at);
    world.pass(30);
    let record = world.record("a");
    assert_eq!((record.phase, record.attempt), (JobPhase::Running, 2), "{record:#?}");
    assert_eq!(record.placement.as_ref().unwrap().shares[0].node.as_str(), "n1");
    assert!(world.is_live("n1", "a", 2) && !world.is_live("n0", "a", 1));
}

/// A node that cannot be reached during the comparison runs jobs that the backup does not have.
#[test]
fn a_node_that_reports_late_is_compared_before_its_first_order() {
    for silent_s in [25, 60, 200] {
        let mut world = World::new(2, 4);
        world.long = true;
        world.submit(spec("a", 4));
        world.submit(spec("b", 4));
        world.submit(spec("c", 4));
        world.pass(20);
        let (jobs, orders, at) = (world.jobs.clone(), world.orders.clone(), world.now);
        let node = world.record("b").placement.as_ref().unwrap().shares[0].node.to_string();
        world.cancel("c");
        world.cancel("b");
        world.submit(spec("later", 4));
        world.pass(20);
        assert_eq!(world.record("later").phase, JobPhase::Running);
        world.cut_off(&node, true);
        world.restore_store(jobs, orders, at);
        world.pass(silent_s);
        // A placer that starts meanwhile knows that the node was not compared.
        world.restart();
        world.pass(30);
        world.cut_off(&node, false);
        world.pass(40);
        for job in ["a", "later"] {
            let record = world.record(job);
            assert_eq!((record.phase, record.attempt), (JobPhase::Running, 1), "{:#?}", world.log);
        }
        assert!(world.is_live(&node, "later", 1), "{silent_s} s");
        assert!(world.restored.is_none(), "all nodes were compared");
        world.long = false;
        world.pass(40);
        assert_eq!(world.record("later").phase, JobPhase::Finished);
        assert!(world.idle());
    }
}

/// A job of two nodes is adopted where one of them reports; the other one reports later.
#[test]
fn a_part_on_a_node_that_reports_late_belongs_to_the_adopted_job() {
    for is_lost in [false, true] {
        let mut world = World::new(3, 4);
        world.long = true;
        world.submit(spec("b", 4));
        world.pass(20);
        let (jobs, orders, at) = (world.jobs.clone(), world.orders.clone(), world.now);
        world.submit(spec("a", 8));
        world.pass(20);
        let placed = world.record("a").placement.clone().unwrap();
        assert_eq!(placed.shares.len(), 2, "{placed}");
        for share in &placed.shares {
            let late = share.node.as_str();
            world.cut_off(late, true);
            if is_lost {
                world.lose_store();
            } else {
                world.restore_store(jobs.clone(), orders.clone(), at);
            }
            world.pass(60);
            assert_eq!(world.record("a").placement.as_ref().unwrap().shares.len(), 1);
            world.cut_off(late, false);
            world.pass(40);
            let record = world.record("a");
            assert_eq!((record.phase, record.attempt), (JobPhase::Running, 1), "{:#?}", world.log);
            let mut shares = record.placement.clone().unwrap().shares;
            shares.sort();
            assert_eq!(shares, placed.shares, "{late}");
            for share in &shares {
                assert!(world.is_live(share.node.as_str(), "a", 1), "{late}: {:#?}", world.log);
            }
        }
        world.long = false;
        world.pass(60);
        assert_eq!(world.record("a").phase, JobPhase::Finished);
        assert!(world.idle());
    }
}
