//! Jobs that are given back to Slurm.

use wattle_slurm::give_back::{GiveBack, give_back};
use wattle_slurm::{SlurmJob, SlurmState};

use crate::rounds::pending;
use crate::rules::untagged;

fn job(gres: &str) -> SlurmJob {
    SlurmJob {
        gres: gres.to_owned(),
        admin_comment: "wattle: tag=a1 nodes=2 gpus_per_node=2".to_owned(),
        reason: "JobHeldAdmin".to_owned(),
        ..pending(true)
    }
}

#[test]
fn a_job_gets_the_request_that_it_was_submitted_with() {
    let given = give_back(&job("gpu:g1:1")).unwrap();
    let expected = GiveBack {
        id: 1,
        admin_comment: "wattle: tag=a1 nodes=2 gpus_per_node=2".to_owned(),
        nodes: 2,
        gres: Some("gpu:2".to_owned()),
        typed_gres: "gpu:g0:1,gpu:g1:1".to_owned(),
        release: true,
    };
    assert_eq!(given, expected);
    let text = |gres: &str| {
        let given = give_back(&job(gres)).unwrap();
        (given.gres, given.typed_gres)
    };
    let submitted = Some("gpu:2".to_owned());
    assert_eq!(text("gpu:2").0, None, "as submitted");
    let indices = "gpu:g1:1,gpu:g3:1".to_owned();
    assert_eq!(text(&indices), (submitted.clone(), indices), "types of the same number stay");
    assert_eq!(text("gpu:v100:2"), (submitted, "gpu:g0:1,gpu:g1:1".to_owned()));
}

#[test]
fn only_pending_jobs_with_a_tag_are_given_back() {
    assert!(give_back(&job("gpu:2")).is_some());
    assert_eq!(give_back(&untagged(job("gpu:2"))), None);
    for state in [SlurmState::Running, SlurmState::Completing, SlurmState::Completed] {
        assert_eq!(give_back(&SlurmJob { state, ..job("gpu:2") }), None, "{state:?}");
    }
}

#[test]
fn the_hold_of_an_owner_stays() {
    let released = |held, reason: &str, held_by_owner: bool| {
        let mark = if held_by_owner { " held_by_owner" } else { "" };
        let job = job("gpu:2");
        let admin_comment = format!("{}{mark}", job.admin_comment);
        let reason = reason.to_owned();
        give_back(&SlurmJob { held, reason, admin_comment, ..job }).unwrap().release
    };
    assert!(released(true, "JobHeldAdmin", false));
    assert!(!released(false, "Resources", false), "it is not held");
    assert!(released(true, "JobHeldAdmin", true), "its owner has released it");
    assert!(released(true, "JobHeldUser", false), "held by the intake");
    assert!(!released(true, "JobHeldUser", true));
}
