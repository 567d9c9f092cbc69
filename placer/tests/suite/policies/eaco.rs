//! EaCO in small examples.

use std::time::Duration;

use crate::support::Site;
use wattle_common::Timestamp;
use wattle_placer::{Decision, JobFacts, Progress, Reason, policy};

use crate::policies::helpers::{arrive, cluster, decide, facts, learn, show};

#[test]
fn eaco_waits_a_moment_for_a_surface() {
    let mut site = cluster(&[1, 1]);
    site.advance_to(Timestamp::from_s(100));
    let new = |name: &str| JobFacts { submitted_at: Timestamp::from_s(100), ..facts(name, 1) };
    // There is no job to share with.
    arrive(&mut site, new("first"), None);
    let mine = JobFacts { exclusive: true, ..new("mine") };
    let policy = policy("eaco").unwrap();
    assert_eq!(decide(&mut site, &*policy).decisions.len(), 1);
    let first = site.job_key(&"first".parse().unwrap()).unwrap();
    learn(&mut site, first, 0);
    let light = arrive(&mut site, new("light"), None);
    let plan = decide(&mut site, &*policy);
    expect_test::expect![[r#"
        light waits: new job; the first prediction of its speed and power is pending
    "#]]
    .assert_eq(&show(&site, &plan));
    let mut never = site.clone();
    learn(&mut site, light, 0);
    let plan = decide(&mut site, &*policy);
    assert!(show(&site, &plan).starts_with("light on n0:0, observed"), "{plan:?}");
    // An exclusive job does not wait; one without a surface waits ten seconds.
    arrive(&mut site, mine, None);
    assert_eq!(decide(&mut site, &*policy).decisions.len(), 1);
    never.advance_to(Timestamp::from_s(109));
    assert!(decide(&mut never, &*policy).is_empty());
    never.advance_to(Timestamp::from_s(110));
    let plan = decide(&mut never, &*policy);
    assert!(show(&never, &plan).starts_with("light on n1:0: free GPUs"), "{plan:?}");
}

#[test]
fn eaco_fills_the_fullest_gpus_and_observes() {
    let mut site = cluster(&[1, 1, 1]);
    // Later than the wait for any surface.
    site.advance_to(Timestamp::from_s(60));
    arrive(&mut site, JobFacts { exclusive: true, ..facts("mine", 1) }, Some(0));
    arrive(&mut site, facts("light", 1), Some(0));
    // The heavy job exceeds 70 % utilisation, which matters only to later jobs: it joins.
    arrive(&mut site, facts("heavy", 1), Some(2));
    arrive(&mut site, facts("middle", 1), Some(1));
    arrive(&mut site, facts("stranger", 1), None);
    let plan = decide(&mut site, &*policy("eaco").unwrap());
    expect_test::expect![[r#"
        mine on n0:0: free GPUs: the job is exclusive
        light on n1:0: free GPUs: no occupied GPUs can be shared within the limits of utilization, memory and deadlines
        heavy on n1:0, observed: on the busiest suitable GPUs, 10 % utilized by job light; no job has a deadline
        middle on n2:0: free GPUs: no occupied GPUs can be shared within the limits of utilization, memory and deadlines
        stranger waits: requests 1 GPU; 0 free, at most 0 on one node; not co-located: its workload has no measurement yet, so it first runs alone
    "#]]
    .assert_eq(&show(&site, &plan));
}

#[test]
fn eaco_undoes_a_placement_that_breaks_a_deadline() {
    let eaco = policy("eaco").unwrap();
    let mut site = cluster(&[1]);
    // 1,000 steps at one per second end at 1,000 s, 10 % before the deadline. Two light jobs have a
    // predicted speed of 0.98 and run at half speed.
    let deadline = Some(Timestamp::from_s(1_100));
    let urgent = arrive(&mut site, JobFacts { deadline, ..facts("urgent", 1) }, Some(0));
    let report = |site: &mut Site, key, step| {
        let at = site.now();
        let progress = Progress {
            at,
            step,
            steps_total: Some(1_000),
            steps_per_epoch: Some(50),
            ..Progress::default()
        };
        site.job_progressed(key, progress);
    };
    decide(&mut site, &*eaco);
    report(&mut site, urgent, 0);
    let newcomer = arrive(&mut site, facts("newcomer", 1), Some(0));
    let plan = decide(&mut site, &*eaco);
    assert!(matches!(&plan.decisions[..], [Decision::Start { observe: true, .. }]), "{plan:?}");
    report(&mut site, urgent, 0);
    report(&mut site, newcomer, 0);
    for s in [50, 100] {
        site.advance_to(Timestamp::from_s(s));
        assert!(decide(&mut site, &*eaco).is_empty(), "not before an epoch of both is over");
        report(&mut site, urgent, s / 2);
        report(&mut site, newcomer, s / 2);
    }
    let plan = site.plan(&*eaco);
    expect_test::expect![[r#"
        newcomer undone: job urgent, at its measured speed, would end at 1970-01-01 00:33:20 UTC; its deadline is 1970-01-01 00:18:20 UTC
    "#]]
    .assert_eq(&show(&site, &plan));
    decide(&mut site, &*eaco);
    site.job_stopped(newcomer);
    let plan = decide(&mut site, &*eaco);
    assert!(plan.is_empty() && plan.blocked.is_some(), "the same set is not tried again: {plan:?}");
    site.job_ended(urgent);
    let plan = decide(&mut site, &*eaco);
    assert!(
        matches!(&plan.decisions[..], [Decision::Start { job, observe: false, .. }] if *job == newcomer)
    );
}

#[test]
fn eaco_settles_when_deadlines_hold_or_the_co_tenant_has_left() {
    let eaco = policy("eaco").unwrap();
    for neighbour_ends in [false, true] {
        let mut site = cluster(&[1]);
        let old = arrive(&mut site, facts("old", 1), Some(0));
        let new = arrive(&mut site, facts("new", 1), Some(0));
        decide(&mut site, &*eaco);
        for (s, step) in [(0, 0), (60, 50)] {
            site.advance_to(Timestamp::from_s(s));
            for key in [old, new] {
                let at = site.now();
                site.job_progressed(
                    key,
                    Progress {
                        at,
                        step,
                        steps_total: Some(1_000),
                        steps_per_epoch: Some(50),
                        ..Progress::default()
                    },
                );
            }
        }
        if neighbour_ends {
            site.job_ended(old);
        }
        let plan = decide(&mut site, &*eaco);
        let [Decision::Confirm { job, reason }] = &plan.decisions[..] else { panic!("{plan:?}") };
        assert_eq!(*job, new);
        assert_eq!(*reason == Reason::NeighboursGone, neighbour_ends);
    }
}

#[test]
fn a_job_that_cannot_stop_shares_only_without_deadlines() {
    let eaco = policy("eaco").unwrap();
    for deadline in [None, Some(Timestamp::from_s(1_000_000))] {
        let mut site = cluster(&[1, 1]);
        let duration_alone = Some(Duration::from_secs(100));
        arrive(&mut site, JobFacts { deadline, duration_alone, ..facts("first", 1) }, Some(0));
        arrive(&mut site, JobFacts { can_stop: false, ..facts("stubborn", 1) }, Some(0));
        let plan = decide(&mut site, &*eaco);
        let on = |i: usize| match &plan.decisions[i] {
            Decision::Start { on, observe, .. } => (on.clone(), *observe),
            other => panic!("{other:?}"),
        };
        assert_eq!(on(0).0 == on(1).0, deadline.is_none());
        assert!(!on(1).1, "what cannot be undone is not observed");
    }
}
