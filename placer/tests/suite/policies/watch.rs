//! Whoever packs watches: new pairs are observed, and those that lose are undone, once.

use std::time::Duration;

use wattle_common::Timestamp;
use wattle_placer::{Decision, JobFacts, JobKey, Problem, Progress, Reason, State, policy};

use crate::policies::helpers::{arrive, cluster, decide, facts, learn};

const PACKERS: [&str; 3] = ["fifo-packed", "gandiva", "wattle"];

/// All of them report so many steps, of 50 in an epoch.
fn report(problem: &mut Problem, jobs: &[JobKey], step: u64) {
    let at = problem.now;
    for &key in jobs {
        let said = Progress {
            at,
            step,
            steps_total: Some(100_000),
            steps_per_epoch: Some(50),
            ..Progress::default()
        };
        problem.job_progressed(key, said);
    }
}

fn pass(problem: &mut Problem, seconds: u64) {
    problem.now = problem.now + Duration::from_secs(seconds);
}

fn runs(problem: &Problem, key: JobKey) -> bool {
    matches!(problem.job(key).unwrap().state, State::Running { .. })
}

/// One GPU, an old job there, and a newcomer beside it. Both are light: alone they make a step a
/// second, and together 1.96 are expected.
fn paired(name: &str) -> (Problem, JobKey, JobKey) {
    let policy = policy(name).unwrap();
    let mut problem = cluster(&[1]);
    problem.now = Timestamp::from_s(100);
    let old = arrive(&mut problem, facts("old", 1), Some(0));
    report(&mut problem, &[old], 0);
    let plan = decide(&mut problem, &*policy);
    let [Decision::Start { observe: false, .. }] = &plan.decisions[..] else { panic!("{plan:?}") };
    pass(&mut problem, 10);
    let new = arrive(&mut problem, facts("new", 1), Some(0));
    report(&mut problem, &[old, new], 0);
    let plan = decide(&mut problem, &*policy);
    let [Decision::Start { job, observe, .. }] = &plan.decisions[..] else {
        panic!("{name}: {plan:?}")
    };
    assert!(*job == new && *observe, "{name}: a new pair is observed: {plan:?}");
    report(&mut problem, &[old, new], 0);
    (problem, old, new)
}

#[test]
fn a_pair_that_loses_is_undone_and_not_tried_again() {
    for name in PACKERS {
        let packer = policy(name).unwrap();
        let (mut problem, old, new) = paired(name);
        pass(&mut problem, 60);
        report(&mut problem, &[old, new], 27);
        assert!(decide(&mut problem, &*packer).is_empty(), "{name}: not before an epoch is over");
        // 0.45 steps a second each: less together than in turns.
        pass(&mut problem, 60);
        report(&mut problem, &[old, new], 54);
        let plan = decide(&mut problem, &*packer);
        let [Decision::Undo { job, reason: Reason::PairLoses { sum, .. } }] = plan.decisions[..]
        else {
            panic!("{name}: {plan:?}")
        };
        assert!(job == new && (sum - 0.9).abs() < 1e-6, "{name}: {plan:?}");
        problem.job_stopped(new);
        for _ in 0..20 {
            let plan = decide(&mut problem, &*packer);
            assert!(plan.is_empty(), "{name}: the set is not tried again: {plan:?}");
            assert_eq!(plan.blocked.map(|blocked| blocked.job), Some(new), "{name}");
            pass(&mut problem, 60);
        }
        assert!(runs(&problem, old), "{name}");
        // It may go where it was undone once nobody is there.
        problem.job_ended(old);
        decide(&mut problem, &*packer);
        assert!(runs(&problem, new), "{name}");
    }
}

#[test]
fn a_pair_that_does_more_than_in_turns_stays() {
    for name in PACKERS {
        let packer = policy(name).unwrap();
        let (mut problem, old, new) = paired(name);
        pass(&mut problem, 90);
        report(&mut problem, &[old, new], 54);
        let plan = decide(&mut problem, &*packer);
        let [Decision::Settle { job, reason: Reason::PairHolds { sum: Some(sum), .. } }] =
            plan.decisions[..]
        else {
            panic!("{name}: {plan:?}")
        };
        assert!(job == new && (sum - 1.2).abs() < 1e-6, "{name}: {plan:?}");
        // What was kept is not judged again.
        pass(&mut problem, 600);
        report(&mut problem, &[old, new], 60);
        assert!(decide(&mut problem, &*packer).is_empty(), "{name}");
        assert!(runs(&problem, old) && runs(&problem, new), "{name}");
    }
}

#[test]
fn who_was_undone_three_times_runs_alone() {
    for name in ["fifo-packed", "gandiva"] {
        let packer = policy(name).unwrap();
        let mut problem = cluster(&[1, 1, 1, 1]);
        let mut everybody: Vec<JobKey> =
            (0..4).map(|i| arrive(&mut problem, facts(&format!("old{i}"), 1), Some(0))).collect();
        report(&mut problem, &everybody, 0);
        decide(&mut problem, &*packer);
        let new = arrive(&mut problem, facts("new", 1), Some(0));
        everybody.push(new);
        for (undone, step) in [(0, 0), (1, 100), (2, 200)] {
            assert_eq!(problem.job(new).unwrap().undone_on.len(), undone, "{name}");
            decide(&mut problem, &*packer);
            assert!(runs(&problem, new), "{name} tries another set");
            report(&mut problem, &everybody, step);
            pass(&mut problem, 300);
            report(&mut problem, &everybody, step + 100);
            decide(&mut problem, &*packer);
            problem.job_stopped(new);
        }
        let plan = decide(&mut problem, &*packer);
        assert!(plan.is_empty() && plan.blocked.is_some(), "{name}: {plan:?}");
    }
}

/// Nothing is undone of whom nobody knows how fast it is alone.
#[test]
fn wattle_undoes_for_a_deadline_that_could_be_met_alone() {
    let wattle = policy("wattle").unwrap();
    for (deadline_s, undone) in [(110_000, true), (200_000, false), (50_000, false)] {
        let mut problem = cluster(&[1]);
        problem.now = Timestamp::from_s(100);
        let deadline = Some(Timestamp::from_s(deadline_s));
        let old = arrive(&mut problem, JobFacts { deadline, ..facts("old", 1) }, Some(0));
        report(&mut problem, &[old], 0);
        decide(&mut problem, &*wattle);
        pass(&mut problem, 10);
        let new = arrive(&mut problem, facts("new", 1), Some(0));
        learn(&mut problem, new, 0);
        report(&mut problem, &[old, new], 0);
        decide(&mut problem, &*wattle);
        assert!(runs(&problem, new), "{deadline_s}");
        report(&mut problem, &[old, new], 0);
        // 100,000 steps at 0.7 a second take 142,857 s.
        pass(&mut problem, 100);
        report(&mut problem, &[old, new], 70);
        let plan = decide(&mut problem, &*wattle);
        let taken_off = |d: &Decision| matches!(d, Decision::Undo { job, .. } if *job == new);
        assert_eq!(plan.decisions.iter().any(taken_off), undone, "{deadline_s}: {plan:?}");
    }
}
