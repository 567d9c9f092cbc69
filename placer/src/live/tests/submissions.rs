//! Submissions and cancellations: what is stored, acknowledged and refused.

use wattle_common::Timestamp;
use wattle_common::id::SubmissionId;
use wattle_common::job::{GpuRequest, JobPhase, JobSpec};
use wattle_common::messages::SubmitJob;

use crate::live::tests::world::World;
use crate::live::tests::{accepted, refused, spec};

#[test]
fn job_is_stored_then_acknowledged_then_ordered() {
    let mut world = World::new(1, 2);
    world.pass(1);
    let before = world.log.len();
    world.submit(spec("a", 1));
    world.pass(2);
    let writes: Vec<&str> = world.log[before..]
        .iter()
        .map(String::as_str)
        .filter(|line| !line.starts_with("renew"))
        .collect();
    assert_eq!(
        writes,
        ["a queued", "answer a accepted", "a starting", "order n0 2: a.1", "a running"]
    );
    let reasons = &world.record("a").reasons;
    assert_eq!(reasons[0].decision, "placed on n0:0");
    world.pass(10);
    assert_eq!(world.record("a").phase, JobPhase::Finished);
    assert_eq!(world.record("a").exit_code, Some(0));
    assert!(world.desired("n0").jobs.is_empty());
}

#[test]
fn invalid_submissions_are_refused_with_a_reason() {
    let mut world = World::new(2, 2);
    world.set_gpu_type("n1", "p100");
    world.pass(20);
    let mut no_command = spec("a", 1);
    no_command.command.clear();
    let mut late = spec("a", 1);
    late.deadline_at_us = Some(Timestamp::from_s(5));
    let mut signal = spec("a", 1);
    signal.checkpoint_signal = Some("SIGKILL".to_owned());
    let mut long = spec("a", 1);
    long.command = vec!["x".repeat(40_000)];
    let mut none = spec("a", 1);
    none.gpus = GpuRequest { min: 0, max: 0 };
    let mut memory = spec("a", 1);
    memory.memory_mib_max = Some(1 << 40);
    let of_gpu_type =
        |kind: &str, gpus| JobSpec { gpu_type: Some(kind.to_owned()), ..spec("a", gpus) };
    let mut project = spec("a", 1);
    project.project = Some("-p".parse().unwrap());
    for (spec, why) in [
        (spec("-rf", 1), "invalid id `-rf`: it begins with a dash"),
        (project, "invalid id `-p`"),
        (no_command, "the command is empty"),
        (late, "has passed"),
        (signal, "invalid checkpoint signal `SIGKILL`"),
        (long, "put the command into a script"),
        (none, "invalid number of GPUs"),
        (memory, "no GPU of the cluster has that much"),
        (of_gpu_type("k80", 1), "requests GPUs of type k80; the cluster has: p100, v100"),
        (of_gpu_type("../k80", 1), "invalid GPU type `../k80`: `wattle nodes` lists the GPU types"),
        (of_gpu_type("p100", 3), "3 GPUs of type p100; the cluster's 2 cannot provide them"),
        (spec("a", 5), "requests 5 GPUs; the cluster of 4 cannot provide them"),
    ] {
        let reply = world.request_submit(spec);
        assert!(refused(&reply).contains(why), "{reply:?}");
    }
    assert!(world.jobs.is_empty(), "refused jobs are not stored");
    // Without a submission id, an equal specification is accepted again; another one is refused.
    assert_eq!(world.request_submit(spec("a", 1)), accepted("a", 1));
    let mut short = spec("a", 1);
    short.checkpoint_signal = Some("USR1".to_owned());
    assert_eq!(world.request_submit(short), accepted("a", 1));
    let reply = world.request_submit(spec("a", 2));
    assert!(refused(&reply).contains("job `a` exists already ("), "{reply:?}");
    assert_eq!(world.jobs.len(), 1);
    let reply = world.request_cancel("unknown");
    assert!(refused(&reply).contains("unknown job `unknown`"), "{reply:?}");
}

/// A repeated request is acknowledged, also after a restart; a second submission is refused, even with
/// an equal specification.
#[test]
fn a_known_job_id_is_refused_to_another_submission() {
    let submit = |world: &mut World, id: &str| {
        let submission = Some(SubmissionId::new(id).unwrap());
        world.request_submission(SubmitJob { spec: spec("a", 1), submission, user_proven: false })
    };
    let mut world = World::new(1, 2);
    world.long = true;
    world.pass(20);
    let accepted = accepted("a", 1);
    assert_eq!(submit(&mut world, "first"), accepted);
    world.pass(60);
    assert_eq!(submit(&mut world, "first"), accepted);
    let reply = submit(&mut world, "second");
    assert!(refused(&reply).contains("exists already (running); choose another id"), "{reply:?}");
    world.restart();
    world.pass(20);
    assert_eq!(submit(&mut world, "first"), accepted);
    world.request_cancel("a");
    world.pass(60);
    let reply = submit(&mut world, "second");
    assert!(refused(&reply).contains("(cancelled)"), "{reply:?}");
}

#[test]
fn no_job_is_too_large_before_the_inventory_is_complete() {
    let mut world = World::new(2, 2);
    assert_eq!(world.request_submit(spec("big", 64)), accepted("big", 1));
    world.pass(30);
    let record = world.record("big");
    assert_eq!(record.phase, JobPhase::Failed);
    assert!(record.error.as_ref().unwrap().contains("cannot provide them"), "{record:?}");
}

#[test]
fn cancelled_job_stops_and_stays_cancelled() {
    let mut world = World::new(1, 2);
    world.submit(spec("a", 2));
    world.submit(spec("b", 2));
    world.pass(3);
    assert_eq!(world.record("b").reasons[0].decision, "waits");
    assert_eq!(world.request_cancel("b"), accepted("b", 2));
    assert_eq!(world.record("b").phase, JobPhase::Cancelled, "it held no GPUs");
    assert_eq!(world.request_cancel("a"), accepted("a", 2));
    assert_eq!(world.request_cancel("a"), accepted("a", 2), "repeated request");
    assert_eq!((world.record("a").phase, world.record("a").generation), (JobPhase::Stopping, 2));
    assert!(world.desired("n0").jobs[0].stop);
    world.pass(3);
    assert_eq!(world.record("a").phase, JobPhase::Cancelled);
    world.restart();
    assert_eq!(world.request_cancel("a"), accepted("a", 2), "repeated request");
    assert_eq!(world.record("a").generation, 2);
    world.submit(spec("c", 1));
    world.pass(12);
    assert!(refused(&world.request_cancel("c")).contains("has finished already"));
}
