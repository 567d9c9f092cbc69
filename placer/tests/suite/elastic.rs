//! The elastic policies in small examples with known results, and their transitions on random ones.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{SETTLED, Site, gpu_power, job_facts, node_facts, node_watts};
use proptest::prelude::*;
use wattle_baselines::policy;
use wattle_common::job::{GpuRequest, GpuSetting};
use wattle_common::messages::{Estimate, Surface, SurfacePoint};
use wattle_common::{Frequency, Power};
use wattle_placer::power::model::expected_power;
use wattle_placer::{Decision, JobFacts, JobKey, NodeFacts, Plan, Policy, State, check};
use wattle_testkit::point;

/// Sizes 1 to 16 on an A100, each doubling with this speed-up; the lower clock has 0.8 times the speed and two
/// thirds of the power.
fn surface(gain: f64) -> Surface {
    surface_on("a100", 1.0, gain)
}

/// The same on a GPU type with this relative speed.
fn surface_on(gpu_type: &str, speed: f64, gain: f64) -> Surface {
    let clocks = [(None, 1.0, 360.0), (Some(1_080), 0.8, 240.0)];
    let points = (0..5).flat_map(|doublings| {
        clocks.map(|(clock, slower, watts)| SurfacePoint {
            clock_mhz_max: clock.map(Frequency::from_mhz),
            ..point(1 << doublings, speed * gain.powi(doublings) * slower, watts)
        })
    });
    Surface {
        utilization_gpu_percent: Some(90.0),
        memory_mib_max: Some(8_000),
        ..wattle_testkit::surface("any", gpu_type, points)
    }
}

fn cluster(nodes: u32, price: f64) -> Site {
    let mut site = Site::new();
    add_nodes(&mut site, "a100", nodes, 8);
    site.inventory_known(true);
    site.limits.price = price;
    site
}

fn add_nodes(site: &mut Site, gpu_type: &str, nodes: u32, gpus: u32) {
    for i in 0..nodes {
        let facts = node_facts(&format!("{gpu_type}-n{i}"), gpu_type, gpus, 81_920);
        site.node_known(NodeFacts { watts: Some(node_watts(60, 1_000, 60, 180)), ..facts });
    }
}

/// A power limit: nodes without jobs and this share of what their GPUs draw above that.
fn limit_of(site: &mut Site, share: f64) -> Power {
    let draw = gpu_power(60, 400, 100, 1_000);
    site.gpu_power_known(["a100", "v100", "k80"].map(|name| (name.to_owned(), draw)).into());
    let idle = expected_power(site.input());
    let gpus: u32 = site.nodes().iter().map(|node| node.facts.gpus).sum();
    idle + Power::from_w_f64(share * 340.0 * f64::from(gpus))
}

fn arrive(site: &mut Site, name: &str, request: GpuRequest, gain: f64) -> JobKey {
    let key = submit(site, name, request);
    site.surface_known(key, Arc::new(surface(gain)));
    key
}

fn submit(site: &mut Site, name: &str, request: GpuRequest) -> JobKey {
    let submitted_at = site.now();
    site.job_arrived(JobFacts { submitted_at, ..job_facts(name, request) })
}

const ANY: GpuRequest = GpuRequest { min: 1, max: 16 };

/// Solves and applies until a plan is empty, with immediate stops. Returns the number of plans.
fn converge(site: &mut Site, policy: &dyn Policy) -> usize {
    for round in 0..40 {
        let plan: Plan = site.plan(policy);
        let violations = check(site.input(), &plan);
        assert!(violations.is_empty(), "{violations:?} in {plan:?}");
        if plan.is_empty() {
            let limit = site.limits.power_max;
            assert!(limit.is_none_or(|limit| expected_power(site.input()) <= limit), "{plan:?}");
            return round;
        }
        site.apply(&plan);
        for decision in &plan.decisions {
            if let Decision::Stop { job, .. } = decision {
                site.job_stopped(*job);
            }
        }
    }
    panic!("{} does not converge", policy.name());
}

#[test]
fn gpus_go_to_jobs_that_scale_until_energy_is_costly() {
    let powerflow = policy("powerflow").unwrap();
    let mut site = cluster(2, 0.0);
    let scales = arrive(&mut site, "scales", ANY, 1.9);
    let flat = arrive(&mut site, "flat", ANY, 1.1);
    converge(&mut site, powerflow.as_ref());
    let (most, little) = (site.size(scales).0, site.size(flat).0);
    assert!(most == 8 && little <= 8, "{most} {little}");
    // A price that no step meets: every job is at its least size and lowest-power clock.
    site.limits.price = 100.0;
    site.pass(SETTLED);
    converge(&mut site, powerflow.as_ref());
    let lowest = GpuSetting { clock_mhz_max: Some(Frequency::from_mhz(1_080)), cap_mw: None };
    assert_eq!(site.size(scales), (1, lowest));
    assert_eq!(site.size(flat), (1, lowest));
}

#[test]
fn equal_jobs_share_equally_at_any_remaining_work() {
    let mut site = cluster(2, 0.0);
    let keys: Vec<JobKey> = (0..4).map(|i| arrive(&mut site, &format!("j{i}"), ANY, 1.8)).collect();
    converge(&mut site, policy("powerflow").unwrap().as_ref());
    assert!(keys.iter().all(|&key| site.size(key).0 == 4));
}

#[test]
fn a_rigid_job_keeps_its_size_and_the_last_one_waits() {
    let mut site = cluster(1, 0.0);
    let rigid = arrive(&mut site, "rigid", GpuRequest::exactly(8), 1.9);
    let late = arrive(&mut site, "late", ANY, 1.9);
    let powerflow = policy("powerflow").unwrap();
    converge(&mut site, powerflow.as_ref());
    assert_eq!((site.size(rigid).0, site.size(late).0), (8, 0));
    let blocked = site.plan(&*powerflow).blocked.unwrap();
    assert_eq!(blocked.job, late);
}

#[test]
fn greenflow_is_powerflow_at_constant_intensity_and_saves_while_the_grid_is_dirty() {
    let plan = |name: &str, ratio: f64| {
        let mut site = cluster(2, 1.0);
        site.limits.carbon_ratio = ratio;
        let keys = [arrive(&mut site, "a", ANY, 1.9), arrive(&mut site, "b", ANY, 1.4)];
        converge(&mut site, policy(name).unwrap().as_ref());
        keys.map(|key| site.size(key))
    };
    assert_eq!(plan("greenflow", 1.0), plan("powerflow", 1.0));
    assert_eq!(plan("powerflow", 3.0), plan("powerflow", 1.0));
    let gpus = |sizes: [(u32, GpuSetting); 2]| sizes.iter().map(|(gpus, _)| gpus).sum::<u32>();
    assert!(gpus(plan("greenflow", 3.0)) < gpus(plan("greenflow", 0.3)));
}

#[test]
fn a_sleeping_node_is_woken_for_a_queued_job() {
    let mut site = cluster(2, 0.0);
    for node in 0..2 {
        site.wakefulness_changed(
            wattle_placer::NodeKey::at(node),
            wattle_placer::Wakefulness::Asleep,
        );
    }
    let job = arrive(&mut site, "a", GpuRequest::exactly(8), 1.9);
    let powerflow = policy("powerflow").unwrap();
    let plan = site.plan(&*powerflow);
    assert!(plan.decisions.is_empty() && plan.nodes.len() == 1, "{plan:?}");
    site.apply(&plan);
    assert!(site.plan(&*powerflow).is_empty(), "one is waking already");
    site.wakefulness_changed(plan.nodes[0].node(), wattle_placer::Wakefulness::Awake);
    converge(&mut site, powerflow.as_ref());
    assert_eq!(site.size(job).0, 8);
}

/// Something every ten minutes: a job ends, where it is its turn and any is there, or one arrives; and
/// each time plans must converge.
fn arrive_and_leave(
    site: &mut Site,
    policy: &dyn Policy,
    ends: impl Iterator<Item = bool>,
    mut arrive: impl FnMut(&mut Site, usize) -> JobKey,
) {
    let mut alive: Vec<JobKey> = Vec::new();
    for (i, ends) in ends.enumerate() {
        site.pass(Duration::from_secs(600));
        if ends && !alive.is_empty() {
            let gone = alive.remove(i % alive.len());
            site.job_ended(gone);
        } else {
            alive.push(arrive(site, i));
        }
        converge(site, policy);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Jobs arrive and leave in any order; at every instant the plans are valid and converge.
    #[test]
    fn plans_are_valid_and_settle(
        nodes in 1u32..6,
        price in prop_oneof![Just(0.0), 0.1f64..3.0],
        events in prop::collection::vec((0u32..4, 1u32..6, 1.05f64..2.0, any::<bool>()), 1..40),
    ) {
        for name in ["powerflow", "greenflow"] {
            let policy = policy(name).unwrap();
            let mut site = cluster(nodes, price);
            let ends = events.iter().map(|event| event.0 == 0);
            arrive_and_leave(&mut site, policy.as_ref(), ends, |site, i| {
                let (_, doublings, gain, rigid) = events[i];
                let max = 1 << (doublings - 1);
                let min = if rigid { max } else { 1 };
                arrive(site, &format!("j{i}"), GpuRequest { min, max }, gain)
            });
        }
    }
}

/// A setting that a guess recommends may be one that never shows it was wrong.
#[test]
fn a_job_without_a_measurement_starts_at_the_default_setting() {
    let lowest = GpuSetting { clock_mhz_max: Some(Frequency::from_mhz(1_080)), cap_mw: None };
    for name in ["powerflow", "wattle"] {
        let policy = policy(name).unwrap();
        let mut site = cluster(1, 100.0);
        let key = arrive(&mut site, "new", ANY, 1.9);
        let measured = |windows: u32, width: f64| {
            let mut surface = surface(1.9);
            surface.windows = windows;
            for point in &mut surface.points {
                let watts = point.gpu_power_w.mean;
                point.gpu_power_w =
                    Estimate { mean: watts, low: watts / width, high: watts * width };
            }
            Arc::new(surface)
        };
        site.surface_known(key, measured(0, 1.5));
        converge(&mut site, policy.as_ref());
        assert_eq!(site.size(key), (1, GpuSetting::DEFAULT), "{name}, of a guess");
        site.pass(Duration::from_secs(60));
        site.surface_known(key, measured(1, 1.5));
        converge(&mut site, policy.as_ref());
        assert_eq!(site.size(key), (1, lowest), "{name}, once measured");
        // What is surely known needs no look.
        let sure = arrive(&mut site, "sure", ANY, 1.9);
        site.surface_known(sure, measured(0, 1.0));
        converge(&mut site, policy.as_ref());
        assert_eq!(site.size(sure), (1, lowest), "{name}, of what is sure");
    }
}

/// A job that is so much faster on a V100 than on a K80.
fn arrive_on_both(
    site: &mut Site,
    name: &str,
    request: GpuRequest,
    faster: f64,
    gain: f64,
) -> JobKey {
    let key = submit(site, name, request);
    site.surface_known(key, Arc::new(surface_on("v100", faster, gain)));
    site.surface_known(key, Arc::new(surface_on("k80", 1.0, gain)));
    key
}

fn mixed(nodes: u32, gpus: u32, price: f64) -> Site {
    let mut site = cluster(0, price);
    add_nodes(&mut site, "v100", nodes, gpus);
    add_nodes(&mut site, "k80", nodes, gpus);
    site
}

fn kind(site: &Site, key: JobKey) -> Option<&str> {
    let State::Running { on, .. } = &site.job(key).unwrap().state else { return None };
    Some(&site.node(on.by_node[0].node).facts.gpu_type)
}

const OF_KINDS: [&str; 5] = ["afs", "powerflow", "greenflow", "powerflow@1080", "wattle"];

#[test]
fn a_gpu_type_goes_to_the_job_that_gains_most_from_it() {
    for name in OF_KINDS {
        let policy = policy(name).unwrap();
        for price in [0.0, 0.5] {
            for first in [4.0, 1.2] {
                let mut site = mixed(1, 1, price);
                let one = GpuRequest::exactly(1);
                let a = arrive_on_both(&mut site, "a", one, first, 1.0);
                let b = arrive_on_both(&mut site, "b", one, 4.8 / first, 1.0);
                converge(&mut site, policy.as_ref());
                let (much, slight) = if first > 2.0 { (a, b) } else { (b, a) };
                let kinds = [kind(&site, much), kind(&site, slight)];
                assert_eq!(kinds, [Some("v100"), Some("k80")], "{name} at {price}, {first}");
            }
        }
    }
}

#[test]
fn a_running_job_changes_its_gpu_type_only_if_that_pays_for_a_restart() {
    for name in OF_KINDS {
        let policy = policy(name).unwrap();
        let one = GpuRequest::exactly(1);
        let mut site = mixed(1, 1, 0.0);
        let slight = arrive_on_both(&mut site, "slight", one, 1.2, 1.0);
        converge(&mut site, policy.as_ref());
        assert_eq!(kind(&site, slight), Some("v100"), "{name}: no other job needs it");
        // Hardly more is gained by the change than a restart takes of an hour.
        site.pass(Duration::from_secs(600));
        let hardly = arrive_on_both(&mut site, "hardly", one, 1.205, 1.0);
        converge(&mut site, policy.as_ref());
        assert_eq!(kind(&site, slight), Some("v100"), "{name}");
        assert_eq!(kind(&site, hardly), Some("k80"), "{name}");
        site.job_ended(hardly);
        site.pass(Duration::from_secs(600));
        let much = arrive_on_both(&mut site, "much", one, 4.0, 1.0);
        converge(&mut site, policy.as_ref());
        assert_eq!(kind(&site, much), Some("v100"), "{name}");
        assert_eq!(kind(&site, slight), Some("k80"), "{name}");
        // Free GPUs of a faster type are used, too.
        site.job_ended(much);
        site.pass(Duration::from_secs(600));
        converge(&mut site, policy.as_ref());
        assert_eq!(kind(&site, slight), Some("v100"), "{name}");
    }
}

#[test]
fn elastic_jobs_do_not_crowd_onto_the_fast_gpus() {
    for name in ["afs", "powerflow"] {
        let mut site = mixed(1, 8, 0.0);
        let keys: Vec<JobKey> =
            (0..3).map(|i| arrive_on_both(&mut site, &format!("j{i}"), ANY, 1.5, 1.8)).collect();
        converge(&mut site, policy(name).unwrap().as_ref());
        let on_k80 = keys.iter().filter(|&&key| kind(&site, key) == Some("k80")).count();
        assert_eq!(on_k80, 1, "{name}");
        assert_eq!(keys.iter().map(|&key| site.size(key).0).sum::<u32>(), 16, "{name}");
    }
}

#[test]
fn a_job_with_one_surface_does_not_wait_while_another_gpu_type_is_free() {
    for name in ["afs", "powerflow", "wattle"] {
        let mut site = mixed(1, 2, 0.0);
        let one = GpuRequest::exactly(1);
        let keys: Vec<JobKey> = (0..4)
            .map(|i| {
                let key = submit(&mut site, &format!("j{i}"), one);
                site.surface_known(key, Arc::new(surface_on("v100", 1.0, 1.0)));
                key
            })
            .collect();
        converge(&mut site, policy(name).unwrap().as_ref());
        let on = |wanted| keys.iter().filter(|&&key| kind(&site, key) == Some(wanted)).count();
        assert_eq!((on("v100"), on("k80")), (2, 2), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The same on two kinds, where some jobs are known on one of them only, and some cannot stop; also below a limit
    /// of the power, a share of what the GPUs draw at most, and where unused nodes sleep.
    #[test]
    fn plans_for_two_gpu_types_are_valid_and_settle(
        nodes in 1u32..3,
        price in prop_oneof![Just(0.0), 0.1f64..3.0],
        limit in prop_oneof![Just(None), (0.2f64..1.0).prop_map(Some)],
        nodes_sleep in any::<bool>(),
        events in prop::collection::vec((0u32..5, 1u32..5, 1.05f64..2.0, 0.3f64..5.0, 0u32..5), 1..30),
    ) {
        for name in ["afs", "powerflow", "wattle", "powerflow+zeus"] {
            let policy = policy(name).unwrap();
            let mut site = mixed(nodes, 4, price);
            site.limits.nodes_sleep = nodes_sleep;
            site.limits.power_max = limit.map(|share| limit_of(&mut site, share));
            let ends = events.iter().map(|event| event.0 == 0);
            arrive_and_leave(&mut site, policy.as_ref(), ends, |site, i| {
                let (what, doublings, gain, faster, known) = events[i];
                let max = 1 << (doublings - 1);
                let request = GpuRequest { min: if what == 1 { max } else { 1 }, max };
                let name = format!("j{i}");
                match known {
                    0 => {
                        let key = submit(site, &name, request);
                        site.surface_known(key, Arc::new(surface_on("k80", faster, gain)));
                        key
                    }
                    1 => submit(site, &name, request),
                    _ => arrive_on_both(site, &name, request, faster, gain),
                }
            });
        }
    }
}
