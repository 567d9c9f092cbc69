//! What must hold of every policy, and what each one's rule says in small examples.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking, too")]

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use wattle_common::job::{CardSetting, GpuRequest};
use wattle_common::messages::{Estimate, Surface, SurfacePoint};
use wattle_common::{JobId, NodeId, Timestamp, WorkloadId};
use wattle_placer::policy::NAMES;
use wattle_placer::{
    Because, Decision, JobFacts, JobKey, NodeFacts, Plan, Policy, Problem, Progress, check, policy,
};

const CLASSES: [(&str, f64, u64); 3] =
    [("light", 10.0, 2_000), ("middle", 45.0, 6_000), ("heavy", 95.0, 9_000)];

/// How fast a job of one class runs beside one of another.
fn beside(class: usize, other: usize) -> f64 {
    [[0.98, 0.95, 0.70], [0.96, 0.85, 0.50], [0.90, 0.60, 0.38]][class][other]
}

fn node(i: usize, gpus: u32) -> NodeFacts {
    let id = NodeId::new(&format!("n{i}")).unwrap();
    NodeFacts {
        id,
        gpu_kind: "v100".into(),
        gpus,
        memory_mib: 16_384,
        healthy: u64::MAX,
        watts: None,
    }
}

fn cluster(sizes: &[u32]) -> Problem {
    let mut problem = Problem::new();
    for (i, &gpus) in sizes.iter().enumerate() {
        problem.node_known(node(i, gpus));
    }
    problem.inventory_complete = true;
    problem
}

fn facts(name: &str, gpus: u32) -> JobFacts {
    JobFacts {
        id: JobId::new(name).unwrap(),
        workload: None,
        request: GpuRequest::exactly(gpus),
        exclusive: false,
        can_stop: true,
        deadline: None,
        duration_alone: None,
        memory_mib_max: None,
        submitted_at: Timestamp::EPOCH,
    }
}

fn surface(job: &JobId, class: usize, gpus: u32) -> Surface {
    let exactly = |mean| Estimate { mean, low: mean, high: mean };
    let point = |neighbour: Option<usize>| SurfacePoint {
        gpus,
        nodes: 1,
        cap_mw: None,
        clock_mhz_max: None,
        global_batch: None,
        neighbours: neighbour.map(|n| WorkloadId::new(CLASSES[n].0).unwrap()).into_iter().collect(),
        steps_per_s: neighbour.is_none().then(|| exactly(1.0)),
        relative_speed: exactly(neighbour.map_or(1.0, |n| beside(class, n))),
        card_power_w: exactly(200.0),
    };
    Surface {
        job: job.clone(),
        predictor: "test".parse().unwrap(),
        at_us: Timestamp::EPOCH,
        gpu_kind: "v100".into(),
        windows: 3,
        basis: None,
        class: Some(WorkloadId::new(CLASSES[class].0).unwrap()),
        utilization_gpu_percent: Some(CLASSES[class].1),
        utilization_memory_percent: None,
        memory_mib_max: Some(CLASSES[class].2),
        probe: None,
        points: [None, Some(0), Some(1), Some(2)].into_iter().map(point).collect(),
    }
}

fn arrive(problem: &mut Problem, facts: JobFacts, class: Option<usize>) -> JobKey {
    let key = problem.job_arrived(facts);
    let facts = problem.job(key).unwrap().facts.clone();
    if let Some(class) = class {
        problem.surface_known(key, Arc::new(surface(&facts.id, class, facts.request.min)));
    }
    key
}

/// Solves, checks, applies, and solves again.
fn decide(problem: &mut Problem, policy: &dyn Policy) -> Plan {
    let plan = policy.solve(problem);
    assert_eq!(check(problem, &plan), [], "{} made {plan:?}", policy.name());
    problem.apply(&plan);
    let again = policy.solve(problem);
    assert!(again.is_empty(), "{}: {plan:?} left {again:?} to do", policy.name());
    plan
}

/// The plan as text: who goes where, and why.
fn show(problem: &Problem, plan: &Plan) -> String {
    let name =
        |key: JobKey| problem.job(key).map_or("(gone)".to_owned(), |job| job.facts.id.to_string());
    let mut text = String::new();
    for decision in &plan.decisions {
        let what = match decision {
            Decision::Start { on, observe, .. } => {
                format!("on {}{}", problem.placement(on), if *observe { ", observed" } else { "" })
            }
            Decision::Undo { .. } => "undone".to_owned(),
            Decision::Stop { .. } => "stopped".to_owned(),
            Decision::Set { setting, .. } => format!("set to {setting}"),
            Decision::Settle { .. } => "settled".to_owned(),
            Decision::Reject { .. } => "rejected".to_owned(),
        };
        text += &format!("{} {what}: {}\n", name(decision.job()), decision.because());
    }
    if let Some(blocked) = &plan.blocked {
        text += &format!("{} waits: {}\n", name(blocked.job), blocked.because);
    }
    text
}

#[derive(Clone, Debug)]
enum Step {
    Arrives {
        gpus: u32,
        class: Option<usize>,
        exclusive: bool,
        can_stop: bool,
        deadline_s: Option<u64>,
    },
    Ends(prop::sample::Index),
    Advances {
        s: u64,
    },
    Fails {
        node: usize,
        gpus: u64,
    },
    Learns {
        which: prop::sample::Index,
        class: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let arrives = (
        1u32..18,
        prop::option::weighted(0.8, 0usize..3),
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.8),
        prop::option::weighted(0.3, 1u64..4_000),
    )
        .prop_map(|(gpus, class, exclusive, can_stop, deadline_s)| {
            // Mostly small ones, as in real traces.
            let gpus = if gpus > 9 { gpus - 8 } else { gpus.min(2) };
            Step::Arrives { gpus, class, exclusive, can_stop, deadline_s }
        });
    prop_oneof![
        5 => arrives,
        2 => any::<prop::sample::Index>().prop_map(Step::Ends),
        3 => (1u64..300).prop_map(|s| Step::Advances { s }),
        1 => (0usize..4, any::<u64>()).prop_map(|(node, gpus)| Step::Fails { node, gpus }),
        1 => (any::<prop::sample::Index>(), 0usize..3).prop_map(|(which, class)| Step::Learns { which, class }),
    ]
}

proptest! {
    /// Whatever happens: no plan breaks a rule, and an applied plan leaves nothing to do.
    #[test]
    fn plans_are_sound_and_complete(
        sizes in prop::collection::vec(prop_oneof![Just(2u32), Just(4), Just(8)], 1..5),
        tenants_max in 1u32..4,
        steps in prop::collection::vec(step(), 1..60),
        name in prop::sample::select(NAMES.to_vec()),
    ) {
        let policy = policy(name).unwrap();
        let mut problem = cluster(&sizes);
        problem.tenants_max = tenants_max;
        for (i, step) in steps.into_iter().enumerate() {
            match step {
                Step::Arrives { gpus, class, exclusive, can_stop, deadline_s } => {
                    let deadline = deadline_s.map(|s| problem.now + Duration::from_secs(s));
                    let duration_alone = deadline_s.map(|s| Duration::from_secs(s / 2));
                    let facts = JobFacts { exclusive, can_stop, deadline, duration_alone, ..facts(&format!("j{i}"), gpus) };
                    arrive(&mut problem, facts, class);
                }
                Step::Ends(which) => {
                    let keys: Vec<JobKey> = problem.running().map(|(key, _)| key).collect();
                    if !keys.is_empty() {
                        problem.job_ended(keys[which.index(keys.len())]);
                    }
                }
                Step::Advances { s } => {
                    problem.now = problem.now + Duration::from_secs(s);
                    let reports: Vec<(JobKey, u64)> = problem.running()
                        .map(|(key, job)| (key, job.progress.map_or(0, |p| p.step) + s / (1 + key.index() as u64 % 3)))
                        .collect();
                    for (key, step) in reports {
                        let at = problem.now;
                        problem.job_progressed(key, Progress { at, step, steps_total: Some(3_000), steps_per_epoch: Some(100), ..Progress::default() });
                    }
                }
                Step::Fails { node: i, gpus } => if let Some(&size) = sizes.get(i) {
                    problem.node_known(NodeFacts { healthy: gpus, ..node(i, size) });
                },
                Step::Learns { which, class } => {
                    let keys: Vec<JobKey> = problem.running().map(|(key, _)| key).collect();
                    if !keys.is_empty() {
                        let key = keys[which.index(keys.len())];
                        let facts = problem.job(key).unwrap().facts.clone();
                        problem.surface_known(key, Arc::new(surface(&facts.id, class, facts.request.min)));
                    }
                }
            }
            decide(&mut problem, &*policy);
            // Who was asked to stop has stopped before the next thing happens.
            let stopping: Vec<JobKey> = problem.running()
                .filter(|(_, job)| matches!(job.state, wattle_placer::State::Stopping { .. }))
                .map(|(key, _)| key).collect();
            for key in stopping {
                problem.job_stopped(key);
                decide(&mut problem, &*policy);
            }
        }
    }
}

#[test]
fn fifo_blocks_at_its_head_and_rejects_what_can_never_run() {
    let mut problem = cluster(&[4, 4, 4]);
    for (name, gpus) in [("a", 3), ("b", 2), ("huge", 13), ("c", 6), ("d", 1)] {
        problem.job_arrived(facts(name, gpus));
    }
    let fifo = policy("fifo").unwrap();
    let plan = fifo.solve(&problem);
    expect_test::expect![[r#"
        a on n0:0,1,2: first in the queue; first room in node order
        b on n1:0,1: first in the queue; first room in node order
        huge rejected: asks for 13 GPUs; the cluster of 12 can never give them
        c waits: asks for 6 GPUs; 7 free, at most 4 on one node
    "#]]
    .assert_eq(&show(&problem, &plan));
    decide(&mut problem, &*fifo);
    problem.job_ended(problem.job_key(&JobId::new("b").unwrap()).unwrap());
    let plan = fifo.solve(&problem);
    expect_test::expect![[r#"
        c on n1:0,1,2,3 n2:0,1: first in the queue; first 2 wholly free nodes
        d on n0:3: first in the queue; first room in node order
    "#]]
    .assert_eq(&show(&problem, &plan));
}

#[test]
fn nothing_is_rejected_before_all_nodes_are_known() {
    let mut problem = cluster(&[4]);
    problem.inventory_complete = false;
    problem.job_arrived(facts("large", 8));
    let plan = decide(&mut problem, &*policy("fifo").unwrap());
    assert!(plan.is_empty() && plan.blocked.is_some());
    problem.node_known(node(1, 4));
    assert_eq!(decide(&mut problem, &*policy("fifo").unwrap()).decisions.len(), 1);
}

#[test]
fn fifo_packed_fills_first_then_takes_the_best_partner() {
    let mut problem = cluster(&[2]);
    arrive(&mut problem, facts("middle", 1), Some(1));
    arrive(&mut problem, facts("light", 1), Some(0));
    // 0.95 + 0.96 beside the middle one; 0.98 + 0.98 beside the light one.
    arrive(&mut problem, facts("third", 1), Some(0));
    // With the middle one that is left: 0.60 + 0.50.
    arrive(&mut problem, facts("heavy", 1), Some(2));
    let plan = decide(&mut problem, &*policy("fifo-packed").unwrap());
    expect_test::expect![[r#"
        middle on n0:0: first in the queue; first room in node order
        light on n0:1: first in the queue; first room in node order
        third on n0:1: no free GPUs; with light the normalised speeds sum to 1.96 > 1.5 (best of 2)
        heavy waits: asks for 1 GPU; 0 free, at most 0 on one node
    "#]]
    .assert_eq(&show(&problem, &plan));
}

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
    problem.surface_known(first, Arc::new(surface(&"first".parse().unwrap(), 0, 1)));
    let light = arrive(&mut problem, new("light"), None);
    let plan = decide(&mut problem, &*policy);
    expect_test::expect![[r#"
        light waits: it has only just come; what is known of its kind is being looked up
    "#]]
    .assert_eq(&show(&problem, &plan));
    let mut never = problem.clone();
    problem.surface_known(light, Arc::new(surface(&"light".parse().unwrap(), 0, 1)));
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
        let [Decision::Settle { job, because }] = &plan.decisions[..] else { panic!("{plan:?}") };
        assert_eq!(*job, new);
        assert_eq!(*because == Because::NeighboursGone, neighbour_ends);
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

#[test]
fn the_checker_sees_what_policies_must_not_do() {
    use wattle_placer::{GpuSet, Violation};
    let mut problem = cluster(&[2, 2]);
    let n0 = problem.node_key(&NodeId::new("n0").unwrap()).unwrap();
    problem.node_known(NodeFacts { healthy: 0b01, ..node(1, 2) });
    let n1 = problem.node_key(&NodeId::new("n1").unwrap()).unwrap();
    let job =
        |problem: &mut Problem, name: &str, gpus, class| arrive(problem, facts(name, gpus), class);
    let heavy = job(&mut problem, "heavy", 1, Some(2));
    let other = job(&mut problem, "other", 1, Some(2));
    let third = job(&mut problem, "third", 1, None);
    let two = job(&mut problem, "two", 2, Some(0));
    let mine = arrive(&mut problem, JobFacts { exclusive: true, ..facts("mine", 1) }, Some(0));
    let start = |job, on: &GpuSet| Decision::Start {
        setting: CardSetting::DEFAULT,
        job,
        on: on.clone(),
        observe: false,
        because: Because::FirstFit,
    };
    let because = Because::FirstFit;
    let first = GpuSet::on(n0, 0b01);
    let cases = [
        (vec![start(heavy, &first), start(heavy, &first)], "Twice"),
        (vec![start(heavy, &first), start(other, &first)], "Memory"),
        (vec![start(heavy, &first), start(third, &first)], "Memory"),
        (vec![start(two, &first)], "WrongCount"),
        (vec![start(two, &GpuSet::on(n1, 0b11))], "Unhealthy"),
        (vec![start(two, &GpuSet::on(n0, 0b101))], "NoSuchPlace"),
        (vec![start(heavy, &GpuSet::default())], "NoSuchPlace"),
        (vec![start(heavy, &first), start(mine, &first)], "Exclusive"),
        (
            vec![Decision::Start {
                setting: CardSetting::DEFAULT,
                job: heavy,
                on: first.clone(),
                observe: true,
                because: because.clone(),
            }],
            "NothingToObserve",
        ),
        (vec![Decision::Undo { job: heavy, because: because.clone() }], "NotObserved"),
        (vec![Decision::Settle { job: heavy, because: because.clone() }], "NotObserved"),
        (vec![Decision::Reject { job: heavy, because }], "WronglyRejected"),
    ];
    for (decisions, expected) in cases {
        let found: Vec<Violation> = check(&problem, &Plan { decisions, ..Plan::default() });
        assert!(
            found.iter().any(|v| format!("{v:?}").starts_with(expected)),
            "{expected}: {found:?}"
        );
    }
    problem.tenants_max = 1;
    let light = job(&mut problem, "light", 1, Some(0));
    let both = vec![start(light, &first), start(heavy, &first)];
    let found = check(&problem, &Plan { decisions: both, ..Plan::default() });
    assert!(matches!(found[..], [Violation::TooManyTenants { tenants: 2, .. }]), "{found:?}");
}
