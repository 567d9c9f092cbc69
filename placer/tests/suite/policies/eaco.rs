//! EaCO in small examples.

use std::time::Duration;

use wattle_common::Timestamp;
use wattle_placer::{Decision, JobFacts, Problem, Progress, Reason, policy};

use crate::policies::helpers::{arrive, cluster, decide, facts, learn, show};

#[test]
fn eaco_waits_a_moment_for_a_surface() {
    let mut problem = cluster(&[1, 1]);
    problem.now = Timestamp::from_s(100);
    let new = |name: &str| JobFacts { submitted_at: Timestamp::from_s(100), ..facts(name, 1) };
    // Nobody is there it could share with.
    arrive(&mut problem, new("first"), None);
    let mine = JobFacts { exclusive: true, ..new("mine") };
    let policy = policy("eaco").unwrap();
    assert_eq!(decide(&mut problem, &*policy).decisions.len(), 1);
    let first = problem.job_key(&"first".parse().unwrap()).unwrap();
    learn(&mut problem, first, 0);
    let light = arrive(&mut problem, new("light"), None);
    let plan = decide(&mut problem, &*policy);
    expect_test::expect![[r#"
        light waits: it has only just come; what is known of its kind is being looked up
    "#]]
    .assert_eq(&show(&problem, &plan));
    let mut never = problem.clone();
    learn(&mut problem, light, 0);
    let plan = decide(&mut problem, &*policy);
    assert!(show(&problem, &plan).starts_with("light on n0:0, observed"), "{plan:?}");
    // Whoever is exclusive does not wait; whose surface does not come waits ten seconds.
    arrive(&mut problem, mine, None);
    assert_eq!(decide(&mut problem, &*policy).decisions.len(), 1);
    never.now = Timestamp::from_s(109);
    assert!(decide(&mut never, &*policy).is_empty());
    never.now = Timestamp::from_s(110);
    let plan = decide(&mut never, &*policy);
    assert!(show(&never, &plan).starts_with("light on n1:0: free GPUs"), "{plan:?}");
}

#[test]
fn eaco_fills_the_fullest_and_watches() {
    let mut problem = cluster(&[1, 1, 1]);
    // Later than anybody's surface is waited for.
    problem.now = Timestamp::from_s(60);
    arrive(&mut problem, JobFacts { exclusive: true, ..facts("mine", 1) }, Some(0));
    arrive(&mut problem, facts("light", 1), Some(0));
    // The heavy one is above 70 % busy, which matters only to who comes after it: it joins.
    arrive(&mut problem, facts("heavy", 1), Some(2));
    arrive(&mut problem, facts("middle", 1), Some(1));
    arrive(&mut problem, facts("stranger", 1), None);
    let plan = decide(&mut problem, &*policy("eaco").unwrap());
    expect_test::expect![[r#"
        mine on n0:0: free GPUs: it is exclusive
        light on n1:0: free GPUs: no occupied GPUs are within thresholds and deadlines
        heavy on n1:0, observed: candidate 1 of 1, fullest first; beside light at 10 % busy; nobody has a deadline
        middle on n2:0: free GPUs: no occupied GPUs are within thresholds and deadlines
        stranger waits: asks for 1 GPU; 0 free, at most 0 on one node; not beside others: nothing was measured of its kind yet, so it runs alone first
    "#]]
    .assert_eq(&show(&problem, &plan));
}

#[test]
fn eaco_undoes_what_breaks_a_deadline_and_does_not_try_it_again() {
    let eaco = policy("eaco").unwrap();
    let mut problem = cluster(&[1]);
    // 1,000 steps at one a second: done at 1,000 s. Its deadline leaves 10 %; light beside light
    // is predicted at 0.98, and turns out to run at half speed.
    let deadline = Some(Timestamp::from_s(1_100));
    let urgent = arrive(&mut problem, JobFacts { deadline, ..facts("urgent", 1) }, Some(0));
    let report = |problem: &mut Problem, key, step| {
        let at = problem.now;
        let progress = Progress {
            at,
            step,
            steps_total: Some(1_000),
            steps_per_epoch: Some(50),
            ..Progress::default()
        };
        problem.job_progressed(key, progress);
    };
    decide(&mut problem, &*eaco);
    report(&mut problem, urgent, 0);
    let newcomer = arrive(&mut problem, facts("newcomer", 1), Some(0));
    let plan = decide(&mut problem, &*eaco);
    assert!(matches!(&plan.decisions[..], [Decision::Start { observe: true, .. }]), "{plan:?}");
    report(&mut problem, urgent, 0);
    report(&mut problem, newcomer, 0);
    for s in [50, 100] {
        problem.now = Timestamp::from_s(s);
        assert!(decide(&mut problem, &*eaco).is_empty(), "not before an epoch of both is over");
        report(&mut problem, urgent, s / 2);
        report(&mut problem, newcomer, s / 2);
    }
    let plan = eaco.solve(&problem);
    expect_test::expect![[r#"
        newcomer undone: at its measured speed urgent would end at 2000.000000s, deadline 1100.000000s
    "#]]
    .assert_eq(&show(&problem, &plan));
    decide(&mut problem, &*eaco);
    problem.job_stopped(newcomer);
    let plan = decide(&mut problem, &*eaco);
    assert!(plan.is_empty() && plan.blocked.is_some(), "the same set is not tried again: {plan:?}");
    problem.job_ended(urgent);
    let plan = decide(&mut problem, &*eaco);
    assert!(
        matches!(&plan.decisions[..], [Decision::Start { job, observe: false, .. }] if *job == newcomer)
    );
}

#[test]
fn eaco_settles_when_deadlines_hold_or_the_neighbour_has_gone() {
    let eaco = policy("eaco").unwrap();
    for neighbour_ends in [false, true] {
        let mut problem = cluster(&[1]);
        let old = arrive(&mut problem, facts("old", 1), Some(0));
        let new = arrive(&mut problem, facts("new", 1), Some(0));
        decide(&mut problem, &*eaco);
        for (s, step) in [(0, 0), (60, 50)] {
            problem.now = Timestamp::from_s(s);
            for key in [old, new] {
                let at = problem.now;
                problem.job_progressed(
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
            problem.job_ended(old);
        }
        let plan = decide(&mut problem, &*eaco);
        let [Decision::Settle { job, reason }] = &plan.decisions[..] else { panic!("{plan:?}") };
        assert_eq!(*job, new);
        assert_eq!(*reason == Reason::NeighboursGone, neighbour_ends);
    }
}

#[test]
fn a_job_that_cannot_stop_joins_only_where_no_deadline_is_at_stake() {
    let eaco = policy("eaco").unwrap();
    for deadline in [None, Some(Timestamp::from_s(1_000_000))] {
        let mut problem = cluster(&[1, 1]);
        let duration_alone = Some(Duration::from_secs(100));
        arrive(&mut problem, JobFacts { deadline, duration_alone, ..facts("first", 1) }, Some(0));
        arrive(&mut problem, JobFacts { can_stop: false, ..facts("stubborn", 1) }, Some(0));
        let plan = decide(&mut problem, &*eaco);
        let on = |i: usize| match &plan.decisions[i] {
            Decision::Start { on, observe, .. } => (on.clone(), *observe),
            other => panic!("{other:?}"),
        };
        assert_eq!(on(0).0 == on(1).0, deadline.is_none());
        assert!(!on(1).1, "what cannot be undone is not observed");
    }
}
