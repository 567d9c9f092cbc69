//! The elastic policies on small problems, by hand, and their arrangement on random ones.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use wattle_common::job::{GpuRequest, GpuSetting};
use wattle_common::messages::{Estimate, Surface, SurfacePoint};
use wattle_common::{Frequency, NodeId, Power, Timestamp};
use wattle_placer::{
    Decision, JobFacts, JobKey, NodeFacts, NodeWatts, Plan, Policy, Problem, State, check, policy,
};

fn exactly(value: f64) -> Estimate {
    Estimate { mean: value, low: value, high: value }
}

/// Sizes 1 to 16, each doubling worth `gain`; a lower clock is 0.8 times as fast for 0.6 the power.
fn surface(gain: f64) -> Surface {
    surface_on("a100", 1.0, gain)
}

/// The same on a kind of GPU that is so much faster.
fn surface_on(kind: &str, faster: f64, gain: f64) -> Surface {
    let mut points = Vec::new();
    for doublings in 0..5u32 {
        for (clock, speed, watts) in [(None, 1.0, 360.0), (Some(1_080), 0.8, 240.0)] {
            points.push(SurfacePoint {
                gpus: 1 << doublings,
                nodes: (1 << doublings) / 8 + u32::from(doublings < 3),
                cap_mw: None,
                clock_mhz_max: clock.map(Frequency::from_mhz),
                global_batch: None,
                neighbours: Vec::new(),
                steps_per_s: Some(exactly(faster * gain.powi(doublings as i32) * speed)),
                relative_speed: exactly(1.0),
                gpu_power_w: exactly(watts),
            });
        }
    }
    Surface {
        job: "any".parse().unwrap(),
        predictor: "test".parse().unwrap(),
        at_us: Timestamp::EPOCH,
        gpu_type: kind.to_owned(),
        windows: 3,
        basis: None,
        class: None,
        utilization_gpu_percent: Some(90.0),
        utilization_memory_percent: None,
        memory_mib_max: Some(8_000),
        points,
        other_gpu_types: Vec::new(),
        probe: None,
    }
}

fn cluster(nodes: u32, price: f64) -> Problem {
    let mut problem = Problem::new();
    add_nodes(&mut problem, "a100", nodes, 8);
    problem.inventory_complete = true;
    problem.price = price;
    problem
}

fn add_nodes(problem: &mut Problem, kind: &str, nodes: u32, gpus: u32) {
    for i in 0..nodes {
        problem.node_known(NodeFacts {
            id: NodeId::new(&format!("{kind}-n{i}")).unwrap(),
            gpu_type: kind.to_owned(),
            gpus,
            memory_mib: 81_920,
            healthy: u64::MAX,
            watts: Some(NodeWatts {
                card_idle: Power::from_w(60),
                host: Power::from_w(1_000),
                asleep: Power::from_w(60),
                wakes_in: Duration::from_secs(180),
            }),
        });
    }
}

fn arrive(problem: &mut Problem, name: &str, request: GpuRequest, gain: f64) -> JobKey {
    let key = submit(problem, name, request);
    problem.surface_known(key, Arc::new(surface(gain)));
    key
}

fn submit(problem: &mut Problem, name: &str, request: GpuRequest) -> JobKey {
    problem.job_arrived(JobFacts {
        id: name.parse().unwrap(),
        workload: None,
        request,
        exclusive: false,
        priority: 0,
        can_stop: true,
        deadline: None,
        slack: None,
        duration_alone: None,
        memory_mib_max: None,
        gpu_type: None,
        submitted_at: problem.now,
    })
}

const ANY: GpuRequest = GpuRequest { min: 1, max: 16 };

/// Solves and applies until nothing is left to do, stopping at once whoever is stopped.
fn settle(problem: &mut Problem, policy: &dyn Policy) -> usize {
    for round in 0..40 {
        let plan: Plan = policy.solve(problem);
        let violations = check(problem, &plan);
        assert!(violations.is_empty(), "{violations:?} in {plan:?}");
        if plan.is_empty() {
            return round;
        }
        problem.apply(&plan);
        for decision in &plan.decisions {
            if let Decision::Stop { job, .. } = decision {
                problem.job_stopped(*job);
            }
        }
    }
    panic!("{} does not come to rest", policy.name());
}

fn size(problem: &Problem, key: JobKey) -> (u32, GpuSetting) {
    match &problem.job(key).unwrap().state {
        State::Running { on, setting, .. } => (on.gpu_count(), *setting),
        _ => (0, GpuSetting::DEFAULT),
    }
}

#[test]
fn who_scales_gets_the_gpus_and_a_price_takes_them_away() {
    let powerflow = policy("powerflow").unwrap();
    let mut problem = cluster(2, 0.0);
    let scales = arrive(&mut problem, "scales", ANY, 1.9);
    let flat = arrive(&mut problem, "flat", ANY, 1.1);
    settle(&mut problem, powerflow.as_ref());
    let (most, little) = (size(&problem, scales).0, size(&problem, flat).0);
    assert!(most == 8 && little <= 8, "{most} {little}");
    // A price that no step meets: everybody is back at the least, at the thrifty clock.
    problem.price = 100.0;
    settle(&mut problem, powerflow.as_ref());
    let thrifty = GpuSetting { clock_mhz_max: Some(Frequency::from_mhz(1_080)), cap_mw: None };
    assert_eq!(size(&problem, scales), (1, thrifty));
    assert_eq!(size(&problem, flat), (1, thrifty));
}

#[test]
fn equal_jobs_share_equally_whatever_they_have_left() {
    let mut problem = cluster(2, 0.0);
    let keys: Vec<JobKey> =
        (0..4).map(|i| arrive(&mut problem, &format!("j{i}"), ANY, 1.8)).collect();
    settle(&mut problem, policy("powerflow").unwrap().as_ref());
    assert!(keys.iter().all(|&key| size(&problem, key).0 == 4));
}

#[test]
fn a_rigid_job_stays_as_asked_and_one_too_many_waits() {
    let mut problem = cluster(1, 0.0);
    let rigid = arrive(&mut problem, "rigid", GpuRequest::exactly(8), 1.9);
    let late = arrive(&mut problem, "late", ANY, 1.9);
    let powerflow = policy("powerflow").unwrap();
    settle(&mut problem, powerflow.as_ref());
    assert_eq!((size(&problem, rigid).0, size(&problem, late).0), (8, 0));
    let blocked = powerflow.solve(&problem).blocked.unwrap();
    assert_eq!(blocked.job, late);
}

#[test]
fn greenflow_is_powerflow_under_constant_intensity_and_thriftier_when_the_grid_is_dirty() {
    let plan = |name: &str, ratio: f64| {
        let mut problem = cluster(2, 1.0);
        problem.carbon_ratio = ratio;
        let keys = [arrive(&mut problem, "a", ANY, 1.9), arrive(&mut problem, "b", ANY, 1.4)];
        settle(&mut problem, policy(name).unwrap().as_ref());
        keys.map(|key| size(&problem, key))
    };
    assert_eq!(plan("greenflow", 1.0), plan("powerflow", 1.0));
    assert_eq!(plan("powerflow", 3.0), plan("powerflow", 1.0));
    let gpus = |sizes: [(u32, GpuSetting); 2]| sizes.iter().map(|(gpus, _)| gpus).sum::<u32>();
    assert!(gpus(plan("greenflow", 3.0)) < gpus(plan("greenflow", 0.3)));
}

#[test]
fn a_node_that_sleeps_is_woken_for_who_waits() {
    let mut problem = cluster(2, 0.0);
    for node in 0..2 {
        problem.node_is(wattle_placer::NodeKey::at(node), wattle_placer::Wakefulness::Asleep);
    }
    let job = arrive(&mut problem, "a", GpuRequest::exactly(8), 1.9);
    let powerflow = policy("powerflow").unwrap();
    let plan = powerflow.solve(&problem);
    assert!(plan.decisions.is_empty() && plan.nodes.len() == 1, "{plan:?}");
    problem.apply(&plan);
    assert!(powerflow.solve(&problem).is_empty(), "one is waking already");
    problem.node_is(plan.nodes[0].node(), wattle_placer::Wakefulness::Awake);
    settle(&mut problem, powerflow.as_ref());
    assert_eq!(size(&problem, job).0, 8);
}

/// Something every ten minutes: a job ends, where it is its turn and any is there, or one arrives; and
/// each time plans must come to rest.
fn come_and_go(
    problem: &mut Problem,
    policy: &dyn Policy,
    ends: impl Iterator<Item = bool>,
    mut arrive: impl FnMut(&mut Problem, usize) -> JobKey,
) {
    let mut alive: Vec<JobKey> = Vec::new();
    for (i, ends) in ends.enumerate() {
        problem.now = problem.now + Duration::from_secs(600);
        if ends && !alive.is_empty() {
            let gone = alive.remove(i % alive.len());
            problem.job_ended(gone);
        } else {
            alive.push(arrive(problem, i));
        }
        settle(problem, policy);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Jobs come and go in any order; at every instant the plans hold, and come to rest.
    #[test]
    fn plans_hold_and_come_to_rest(
        nodes in 1u32..6,
        price in prop_oneof![Just(0.0), 0.1f64..3.0],
        events in prop::collection::vec((0u32..4, 1u32..6, 1.05f64..2.0, any::<bool>()), 1..40),
    ) {
        for name in ["powerflow", "greenflow"] {
            let policy = policy(name).unwrap();
            let mut problem = cluster(nodes, price);
            let ends = events.iter().map(|event| event.0 == 0);
            come_and_go(&mut problem, policy.as_ref(), ends, |problem, i| {
                let (_, doublings, gain, rigid) = events[i];
                let max = 1 << (doublings - 1);
                let min = if rigid { max } else { 1 };
                arrive(problem, &format!("j{i}"), GpuRequest { min, max }, gain)
            });
        }
    }
}

/// A setting that a guess recommends may be one that never shows it was wrong.
#[test]
fn who_was_never_measured_is_first_looked_at_as_the_site_sets_its_cards() {
    let thrifty = GpuSetting { clock_mhz_max: Some(Frequency::from_mhz(1_080)), cap_mw: None };
    for name in ["powerflow", "wattle"] {
        let policy = policy(name).unwrap();
        let mut problem = cluster(1, 100.0);
        let key = arrive(&mut problem, "new", ANY, 1.9);
        let said = |windows: u32, width: f64| {
            let mut said = surface(1.9);
            said.windows = windows;
            for point in &mut said.points {
                let watts = point.gpu_power_w.mean;
                point.gpu_power_w =
                    Estimate { mean: watts, low: watts / width, high: watts * width };
            }
            Arc::new(said)
        };
        problem.surface_known(key, said(0, 1.5));
        settle(&mut problem, policy.as_ref());
        assert_eq!(size(&problem, key), (1, GpuSetting::DEFAULT), "{name}, of a guess");
        problem.now = problem.now + Duration::from_secs(60);
        problem.surface_known(key, said(1, 1.5));
        settle(&mut problem, policy.as_ref());
        assert_eq!(size(&problem, key), (1, thrifty), "{name}, once measured");
        // What is surely known needs no look.
        let sure = arrive(&mut problem, "sure", ANY, 1.9);
        problem.surface_known(sure, said(0, 1.0));
        settle(&mut problem, policy.as_ref());
        assert_eq!(size(&problem, sure), (1, thrifty), "{name}, of what is sure");
    }
}

/// A job that is so much faster on a V100 than on a K80.
fn arrive_on_both(
    problem: &mut Problem,
    name: &str,
    request: GpuRequest,
    faster: f64,
    gain: f64,
) -> JobKey {
    let key = submit(problem, name, request);
    problem.surface_known(key, Arc::new(surface_on("v100", faster, gain)));
    problem.surface_known(key, Arc::new(surface_on("k80", 1.0, gain)));
    key
}

fn mixed(nodes: u32, gpus: u32, price: f64) -> Problem {
    let mut problem = cluster(0, price);
    add_nodes(&mut problem, "v100", nodes, gpus);
    add_nodes(&mut problem, "k80", nodes, gpus);
    problem
}

fn kind(problem: &Problem, key: JobKey) -> Option<&str> {
    let State::Running { on, .. } = &problem.job(key).unwrap().state else { return None };
    Some(&problem.node(on.by_node[0].node).facts.gpu_type)
}

const OF_KINDS: [&str; 5] = ["afs", "powerflow", "greenflow", "powerflow@1080", "wattle"];

#[test]
fn the_kind_goes_to_who_gains_most_by_it_whoever_came_first() {
    for name in OF_KINDS {
        let policy = policy(name).unwrap();
        for price in [0.0, 0.5] {
            for first in [4.0, 1.2] {
                let mut problem = mixed(1, 1, price);
                let one = GpuRequest::exactly(1);
                let a = arrive_on_both(&mut problem, "a", one, first, 1.0);
                let b = arrive_on_both(&mut problem, "b", one, 4.8 / first, 1.0);
                settle(&mut problem, policy.as_ref());
                let (much, slight) = if first > 2.0 { (a, b) } else { (b, a) };
                let kinds = [kind(&problem, much), kind(&problem, slight)];
                assert_eq!(kinds, [Some("v100"), Some("k80")], "{name} at {price}, {first}");
            }
        }
    }
}

#[test]
fn who_runs_changes_its_kind_only_where_that_pays_for_a_restart() {
    for name in OF_KINDS {
        let policy = policy(name).unwrap();
        let one = GpuRequest::exactly(1);
        let mut problem = mixed(1, 1, 0.0);
        let slight = arrive_on_both(&mut problem, "slight", one, 1.2, 1.0);
        settle(&mut problem, policy.as_ref());
        assert_eq!(kind(&problem, slight), Some("v100"), "{name}: nobody else wants it");
        // Hardly more is gained by the change than a restart takes of an hour.
        problem.now = problem.now + Duration::from_secs(600);
        let hardly = arrive_on_both(&mut problem, "hardly", one, 1.205, 1.0);
        settle(&mut problem, policy.as_ref());
        assert_eq!(kind(&problem, slight), Some("v100"), "{name}");
        assert_eq!(kind(&problem, hardly), Some("k80"), "{name}");
        problem.job_ended(hardly);
        problem.now = problem.now + Duration::from_secs(600);
        let much = arrive_on_both(&mut problem, "much", one, 4.0, 1.0);
        settle(&mut problem, policy.as_ref());
        assert_eq!(kind(&problem, much), Some("v100"), "{name}");
        assert_eq!(kind(&problem, slight), Some("k80"), "{name}");
        // Free cards of a better kind are taken, too.
        problem.job_ended(much);
        problem.now = problem.now + Duration::from_secs(600);
        settle(&mut problem, policy.as_ref());
        assert_eq!(kind(&problem, slight), Some("v100"), "{name}");
    }
}

#[test]
fn elastic_jobs_do_not_crowd_onto_the_fast_cards() {
    for name in ["afs", "powerflow"] {
        let mut problem = mixed(1, 8, 0.0);
        let keys: Vec<JobKey> =
            (0..3).map(|i| arrive_on_both(&mut problem, &format!("j{i}"), ANY, 1.5, 1.8)).collect();
        settle(&mut problem, policy(name).unwrap().as_ref());
        let on_k80 = keys.iter().filter(|&&key| kind(&problem, key) == Some("k80")).count();
        assert_eq!(on_k80, 1, "{name}");
        assert_eq!(keys.iter().map(|&key| size(&problem, key).0).sum::<u32>(), 16, "{name}");
    }
}

#[test]
fn who_is_known_on_one_kind_only_does_not_wait_while_another_is_free() {
    for name in ["afs", "powerflow", "wattle"] {
        let mut problem = mixed(1, 2, 0.0);
        let one = GpuRequest::exactly(1);
        let keys: Vec<JobKey> = (0..4)
            .map(|i| {
                let key = submit(&mut problem, &format!("j{i}"), one);
                problem.surface_known(key, Arc::new(surface_on("v100", 1.0, 1.0)));
                key
            })
            .collect();
        settle(&mut problem, policy(name).unwrap().as_ref());
        let on = |wanted| keys.iter().filter(|&&key| kind(&problem, key) == Some(wanted)).count();
        assert_eq!((on("v100"), on("k80")), (2, 2), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The same on two kinds, where some jobs are known on one of them only, and some cannot stop.
    #[test]
    fn plans_for_two_kinds_hold_and_come_to_rest(
        nodes in 1u32..3,
        price in prop_oneof![Just(0.0), 0.1f64..3.0],
        events in prop::collection::vec((0u32..5, 1u32..5, 1.05f64..2.0, 0.3f64..5.0, 0u32..5), 1..30),
    ) {
        for name in ["afs", "powerflow", "wattle", "powerflow+zeus"] {
            let policy = policy(name).unwrap();
            let mut problem = mixed(nodes, 4, price);
            let ends = events.iter().map(|event| event.0 == 0);
            come_and_go(&mut problem, policy.as_ref(), ends, |problem, i| {
                let (what, doublings, gain, faster, known) = events[i];
                let max = 1 << (doublings - 1);
                let request = GpuRequest { min: if what == 1 { max } else { 1 }, max };
                let name = format!("j{i}");
                match known {
                    0 => {
                        let key = submit(problem, &name, request);
                        problem.surface_known(key, Arc::new(surface_on("k80", faster, gain)));
                        key
                    }
                    1 => submit(problem, &name, request),
                    _ => arrive_on_both(problem, &name, request, faster, gain),
                }
            });
        }
    }
}
