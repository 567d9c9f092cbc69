//! Nodes of several GPU types, predictions per type, GPUs that have not been read, and the work history of
//! finished jobs.

use wattle_common::job::JobPhase;
use wattle_common::messages::{Estimate, SurfacePoint};

use super::*;
use crate::live::tests::world::World;

#[test]
fn a_job_that_requests_a_gpu_type_waits_for_it_and_runs_on_it() {
    let policies: [fn() -> Box<dyn Policy>; 2] =
        [|| crate::policy("fifo").unwrap(), || crate::policy("wattle").unwrap()];
    for policy in policies {
        let mut world = World::new(2, 2);
        world.policy = policy;
        world.set_gpu_type("n1", "p100");
        world.restart();
        world.pass(20);
        let of_type = |job: &str| JobSpec { gpu_type: Some("p100".to_owned()), ..spec(job, 2) };
        world.submit(of_type("a"));
        world.submit(of_type("b"));
        world.pass(4);
        assert_eq!(world.record("a").reasons[0].decision, "placed on n1:0,1");
        assert_eq!(world.record("b").phase, JobPhase::Queued);
        // GPUs of the other type stay free.
        let waits = world.record("b").reasons.first();
        let expected = "requests 2 GPUs of type p100; 0 free, at most 0 on one node";
        assert!(waits.is_none_or(|waits| waits.reason == expected), "{waits:?}");
        assert!(waits.is_some() || policy().name() != "fifo");
        // The requested type persists across a restart.
        world.restart();
        world.pass(20);
        assert_eq!(world.record("b").phase, JobPhase::Finished);
        assert!(world.record("b").reasons.iter().any(|r| r.decision == "placed on n1:0,1"));
    }
}

/// A surface with one point, one GPU of this type.
pub(super) fn surface(job: &str, gpu_type: &str, steps_per_s: f64) -> Surface {
    let exactly = |mean| Estimate { mean, low: mean, high: mean };
    Surface {
        job: job_id(job),
        admission: None,
        predictor: "physical".parse().unwrap(),
        at_us: Timestamp::from_s(1_000),
        gpu_type: gpu_type.to_owned(),
        windows: 0,
        basis: None,
        class: None,
        utilization_gpu_percent: None,
        utilization_memory_percent: None,
        memory_mib_max: None,
        points: vec![SurfacePoint {
            gpus: 1,
            nodes: 1,
            cap_mw: None,
            clock_mhz_max: None,
            global_batch: None,
            neighbours: vec![],
            steps_per_s: Some(exactly(steps_per_s)),
            relative_speed: exactly(1.0),
            gpu_power_w: exactly(200.0),
        }],
        other_gpu_types: vec![],
    }
}

#[test]
fn a_job_predicted_on_several_gpu_types_gets_the_best() {
    let policies: [fn() -> Box<dyn Policy>; 2] =
        [|| crate::policy("powerflow").unwrap(), || crate::policy("wattle").unwrap()];
    for policy in policies {
        for (on_p100, node) in [(4.0, "n1"), (0.25, "n0")] {
            let mut world = World::new(2, 1);
            world.policy = policy;
            world.set_gpu_type("n1", "p100");
            world.restart();
            world.pass(20);
            world.submit(spec("a", 1));
            let elsewhere = vec![surface("a", "p100", on_p100)];
            let surface = Surface { other_gpu_types: elsewhere, ..surface("a", "v100", 1.0) };
            world.deliver(Event::SurfaceKnown(Box::new(surface)));
            world.pass(3);
            let placed = &world.record("a").reasons[0].decision;
            assert_eq!(*placed, format!("placed on {node}:0"), "{}", policy().name());
        }
    }
}

#[test]
fn the_surface_of_another_submission_of_the_name_does_not_count() {
    let placed = |own: bool| {
        let mut world = World::new(2, 1);
        world.policy = || crate::policy("wattle").unwrap();
        world.set_gpu_type("n1", "p100");
        world.restart();
        world.pass(20);
        world.submit(spec("a", 1));
        let before = Some(AdmissionId::accepted(Timestamp::from_s(1), 1));
        let admission = if own { world.record("a").admission.clone() } else { before };
        assert!(admission.is_some());
        // Four times as fast on n1.
        let elsewhere = vec![surface("a", "p100", 4.0)];
        let surface =
            Surface { admission, other_gpu_types: elsewhere, ..surface("a", "v100", 1.0) };
        world.deliver(Event::SurfaceKnown(Box::new(surface)));
        world.pass(3);
        world.record("a").reasons[0].decision.clone()
    };
    assert_eq!([placed(true), placed(false)], ["placed on n1:0", "placed on n0:0"]);
}

#[test]
fn an_unread_gpu_does_not_hide_its_node_and_type() {
    let mut world = World::new(2, 2);
    world.set_gpu_type("n1", "p100");
    world.config.nodes_expected = Some(2);
    world.unread("n1", &[0]);
    world.restart();
    world.pass(20);
    let of_type =
        |job: &str, gpus| JobSpec { gpu_type: Some("p100".to_owned()), ..spec(job, gpus) };
    world.submit(of_type("one", 1));
    world.submit(of_type("two", 2));
    world.pass(4);
    assert_eq!(world.record("one").reasons[0].decision, "placed on n1:1");
    assert_eq!(world.record("two").phase, JobPhase::Queued);
    world.unread("n1", &[]);
    world.pass(60);
    assert_eq!(world.record("two").phase, JobPhase::Finished);
}

#[test]
fn no_job_fails_for_its_gpu_type_before_all_types_are_known() {
    let mut world = World::new(2, 2);
    world.set_gpu_type("n1", "p100");
    world.config.nodes_expected = Some(2);
    world.unread("n1", &[0, 1]);
    world.restart();
    world.pass(20);
    world.submit(JobSpec { gpu_type: Some("p100".to_owned()), ..spec("a", 2) });
    world.submit(JobSpec { gpu_type: Some("h200".to_owned()), ..spec("b", 1) });
    world.pass(20);
    assert_eq!(world.record("a").phase, JobPhase::Queued, "{:?}", world.record("a").reasons);
    world.unread("n1", &[]);
    world.pass(60);
    assert_eq!(world.record("a").phase, JobPhase::Finished);
    // All types are known now, and h200 is not among them.
    assert_eq!(world.record("b").phase, JobPhase::Failed);
}

#[test]
fn the_work_history_persists_across_a_restart() {
    let mut world = World::new(1, 2);
    world.pass(20);
    world.submit(spec("a", 1));
    world.deliver(Event::SurfaceKnown(Box::new(surface("a", "v100", 2.0))));
    world.pass(3);
    world.deliver(Event::Progressed(JobProgressed {
        job: job_id("a"),
        admission: None,
        node: NodeId::new("n0").unwrap(),
        attempt: 1,
        at_us: world.now,
        step: 400,
        steps_total: None,
        epoch: None,
        steps_per_epoch: None,
        steps_per_s: None,
    }));
    world.pass(30);
    assert_eq!(world.record("a").phase, JobPhase::Finished);
    assert_eq!(world.record("a").work_s, Some(200.0));
    world.restart();
    let sizes = &world.placer.controller.state().work_history();
    assert_eq!((sizes.len(), sizes.mean_s()), (1, Some(200.0)));
}
