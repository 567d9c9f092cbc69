//! A job id that was submitted before: what nodes and the ledger have of the earlier submission is not of the
//! later one.

use std::time::Duration;

use wattle_common::Energy;
use wattle_common::job::JobPhase;
use wattle_common::messages::{JobEnergy, LaunchState};

use super::*;
use crate::live::tests::world::World;

/// A world with a node, whose jobs never complete.
fn long_world() -> World {
    let mut world = World::new(1, 2);
    world.long = true;
    world.pass(20);
    world
}

fn owned(job: &str, user: &str) -> JobSpec {
    JobSpec { user: Some(user.to_owned()), ..spec(job, 1) }
}

/// Submits `a` again, and checks that it runs.
fn runs_again(world: &mut World, earlier: &JobRecord) {
    world.long = true;
    assert_eq!(world.request_submit(spec("a", 1)), accepted("a", 1));
    world.pass(10);
    let record = world.record("a");
    assert!(record.admission > earlier.admission, "{record:?}");
    assert_eq!((record.phase, record.attempt), (JobPhase::Running, 1), "{:?}", world.log);
    assert_eq!((record.exit_code, record.energy_mj), (None, None));
    assert!(world.is_live("n0", "a", 1));
}

#[test]
fn a_job_runs_after_the_store_with_its_earlier_submission_was_lost() {
    let mut world = World::new(1, 2);
    world.pass(20);
    world.submit(spec("a", 1));
    world.pass(20);
    let earlier = world.record("a").clone();
    assert_eq!(earlier.phase, JobPhase::Finished);
    world.lose_store();
    world.pass(30);
    runs_again(&mut world, &earlier);
}

#[test]
fn a_job_runs_after_the_record_of_its_earlier_submission_was_forgotten() {
    let mut world = World::new(1, 2);
    world.config.ended_kept = 1;
    world.restart();
    world.pass(20);
    world.submit(spec("a", 1));
    world.pass(20);
    let earlier = world.record("a").clone();
    world.submit(spec("b", 1));
    world.pass(20);
    assert!(!world.jobs.contains_key(&job_id("a")), "forgotten");
    runs_again(&mut world, &earlier);
    // Also after a restart of the placer.
    world.restart();
    world.pass(20);
    assert_eq!(world.record("a").phase, JobPhase::Running);
}

/// The id is submitted before the node has reported that an earlier submission runs.
#[test]
fn a_run_of_an_earlier_submission_is_stopped_and_not_adopted() {
    let mut world = long_world();
    world.submit(spec("a", 1));
    world.pass(10);
    let earlier = world.record("a").clone();
    world.lose_store();
    assert_eq!(world.request_submit(spec("a", 1)), accepted("a", 1));
    world.pass(30);
    let record = world.record("a");
    assert!(record.admission > earlier.admission, "{record:?}");
    assert_eq!((record.phase, record.attempt), (JobPhase::Running, 1), "{:?}", world.log);
    assert!(record.reasons[0].decision.starts_with("placed on"), "{record:?}");
    let alarm = "alarm n0 runs an earlier submission of a";
    assert!(world.log.iter().any(|line| line.starts_with(alarm)), "{:?}", world.log);
}

/// A backup has an earlier submission of the id as queued; the later one runs.
#[test]
fn a_record_of_an_earlier_submission_gives_way_to_the_later_one() {
    let mut world = long_world();
    world.config.ended_kept = 0;
    world.restart();
    world.submit(spec("b", 2));
    world.pass(10);
    world.submit(spec("a", 1));
    world.pass(10);
    assert_eq!(world.record("a").phase, JobPhase::Queued);
    let backup = (world.jobs.clone(), world.orders.clone(), world.now);
    world.cancel("a");
    world.cancel("b");
    world.pass(10);
    assert!(world.jobs.is_empty());
    world.submit(spec("a", 1));
    world.pass(10);
    let later = world.record("a").clone();
    assert_eq!(later.phase, JobPhase::Running);
    world.restore_store(backup.0, backup.1, backup.2);
    world.pass(60);
    let record = world.record("a");
    assert_eq!(record.admission, later.admission, "{:?}", world.log);
    assert_eq!((record.phase, record.attempt), (JobPhase::Running, 1));
}

#[test]
fn energy_and_progress_of_an_earlier_submission_do_not_count() {
    let mut world = long_world();
    world.submit(spec("a", 1));
    world.pass(10);
    let (admission, now) = (world.record("a").admission.clone(), world.now);
    let earlier = Some(AdmissionId::accepted(Timestamp::from_s(1), 1));
    let entry = |from, admission| LedgerEntry {
        jobs: vec![JobEnergy {
            job: job_id("a"),
            admission,
            energy_mj: Energy::from_j(100),
            user: None,
            project: None,
            compared: None,
        }],
        ..wattle_testkit::ledger_entry("n0", from, from + Duration::from_secs(1), Energy::ZERO)
    };
    world.deliver(Event::EnergyMetered(Box::new(entry(now, earlier.clone()))));
    assert_eq!(world.record("a").energy_mj, None);
    world.deliver(Event::EnergyMetered(Box::new(entry(now, admission.clone()))));
    assert_eq!(world.record("a").energy_mj, Some(Energy::from_j(100)));
    // A profiler of an earlier version names no submission.
    world.deliver(Event::EnergyMetered(Box::new(entry(now + Duration::from_secs(1), None))));
    assert_eq!(world.record("a").energy_mj, Some(Energy::from_j(200)));
    let mut progress = |admission, step| {
        world.deliver(Event::Progressed(JobProgressed {
            job: job_id("a"),
            admission,
            node: NodeId::new("n0").unwrap(),
            attempt: 1,
            at_us: now,
            step,
            steps_total: None,
            epoch: Some(u32::try_from(step).unwrap()),
            steps_per_epoch: None,
            steps_per_s: None,
        }));
        world.record("a").step
    };
    assert_eq!(progress(earlier, 9), None);
    assert_eq!(progress(admission, 2), Some(2));
}

/// Many short jobs of one user do not displace the records of another.
#[test]
fn each_user_has_a_share_of_the_ended_records() {
    let mut world = World::new(1, 2);
    world.config.ended_kept = 4;
    world.restart();
    world.pass(20);
    for job in ["ada-1", "ada-2"] {
        world.submit(owned(job, "ada"));
        world.pass(10);
    }
    for number in 0..12 {
        world.submit(owned(&format!("bob-{number}"), "bob"));
        world.pass(10);
    }
    let kept: Vec<&str> = world.jobs.keys().map(JobId::as_str).collect();
    assert_eq!(kept, ["ada-1", "ada-2", "bob-10", "bob-11"]);
    // Also for a placer that has read the records, and when the bucket is nearly full.
    world.restart();
    world.submit(owned("eve-1", "eve"));
    world.pass(10);
    let kept = |world: &World| world.jobs.keys().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(kept(&world), ["ada-2", "bob-10", "bob-11", "eve-1"]);
    world.deliver(Event::JobsNearlyFull);
    assert_eq!(kept(&world), ["ada-2", "bob-11", "eve-1"]);
}

#[test]
fn the_jobs_of_a_user_that_have_not_ended_are_counted() {
    let mut world = World::new(1, 2);
    world.pass(20);
    let bytes = |world: &World, user| world.placer.unfinished_bytes(user);
    world.submit(owned("a", "ada"));
    let one = bytes(&world, "ada");
    assert!((100..10_000).contains(&one), "{one}");
    assert_eq!(bytes(&world, "bob"), 0);
    world.submit(owned("b", "ada"));
    assert_eq!(bytes(&world, "ada"), 2 * one);
    world.restart();
    assert_eq!(bytes(&world, "ada"), 2 * one, "read from the records");
    world.pass(30);
    assert_eq!(world.record("b").phase, JobPhase::Finished);
    assert_eq!(bytes(&world, "ada"), 0);
}

/// A program that fails at once: its output stays where it ran.
#[test]
fn the_record_of_an_ended_job_has_its_nodes() {
    let mut world = long_world();
    world.submit(spec("a", 1));
    world.pass(5);
    world.set_state("n0", "a", LaunchState::exited(1));
    world.pass(5);
    let record = world.record("a");
    assert_eq!((record.phase, record.placement.as_ref()), (JobPhase::Failed, None));
    let nodes: Vec<String> = record.output_nodes().iter().map(ToString::to_string).collect();
    assert_eq!(nodes, ["n0"]);
}
