//! The policy `wattle` in small examples and on random problems.

mod kept_sizes;
mod power_limit;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::support::{SETTLED, Site, gpu_power, job_facts, node_facts, node_watts};
use proptest::prelude::*;
use wattle_common::job::{GpuRequest, GpuSetting};
use wattle_common::messages::{Surface, SurfacePoint};
use wattle_common::{Frequency, JobId, Timestamp};
use wattle_placer::{
    Decision, GpuSet, JobFacts, JobKey, NodeFacts, NodeGpus, NodeKey, Plan, Progress, Reason,
    check, policy,
};
use wattle_testkit::{exactly, point, workload};

const CLOCKS: [u32; 4] = [1_335, 1_215, 1_080, 900];
const IDLE_W: f64 = 60.0;

/// How the speed of a job depends on GPUs, clock and co-tenants.
#[derive(Clone, Copy, Debug)]
struct Kind {
    /// Speed grows with GPUs to the power of this, up to `peak` GPUs.
    grows: f64,
    peak: u32,
    /// Steps per second on one GPU.
    rate: f64,
    /// Relative speed with a co-tenant.
    shared: f64,
    memory_mib: u64,
}

const ROOT: Kind = Kind { grows: 0.5, peak: 1_024, rate: 1.0, shared: 0.4, memory_mib: 20_000 };

impl Kind {
    fn point(self, gpus: u32, clock: Option<u32>, is_shared: bool) -> SurfacePoint {
        let slower = clock.map_or(1.0, |mhz| f64::from(mhz) / 1_410.0);
        let n = f64::from(gpus);
        let grown = n.min(f64::from(self.peak)).powf(self.grows);
        let relative = if is_shared { self.shared } else { 1.0 };
        let rate = self.rate * grown * slower.sqrt() * relative;
        let power = IDLE_W + 300.0 * (0.35 + 0.65 * grown / n) * slower.powi(2);
        SurfacePoint {
            clock_mhz_max: clock.map(Frequency::from_mhz),
            neighbours: is_shared.then(|| workload("any")).into_iter().collect(),
            relative_speed: exactly(relative),
            ..point(gpus, rate, if is_shared { 1.2 * power } else { power })
        }
    }

    fn surface(self, job: &JobId) -> Surface {
        let points = (0..7).map(|k| 1 << k).flat_map(|gpus| {
            let clocks = CLOCKS.map(|clock| self.point(gpus, Some(clock), false));
            let default = [self.point(gpus, None, false)];
            default.into_iter().chain(clocks).chain([self.point(gpus, None, true)])
        });
        Surface {
            class: Some(workload("any")),
            utilization_gpu_percent: Some(50.0),
            memory_mib_max: Some(self.memory_mib),
            ..wattle_testkit::surface(job.as_str(), "a100", points)
        }
    }
}

fn cluster(sizes: &[u32]) -> Site {
    let mut site = Site::new();
    for (i, &gpus) in sizes.iter().enumerate() {
        let facts = node_facts(&format!("n{i}"), "a100", gpus, 80_000);
        site.node_known(NodeFacts { watts: Some(node_watts(60, 1_000, 50, 120)), ..facts });
    }
    site.inventory_known(true);
    site.limits.tenants_max = 1;
    site
}

fn facts(name: &str, min: u32, max: u32) -> JobFacts {
    job_facts(name, GpuRequest { min, max })
}

/// A job with this number of steps, or of unknown length.
fn arrive(site: &mut Site, facts: JobFacts, kind: Kind, steps: Option<u64>) -> JobKey {
    let key = site.job_arrived(facts);
    let id = site.job(key).unwrap().facts.id.clone();
    site.surface_known(key, Arc::new(kind.surface(&id)));
    if steps.is_some() {
        progress(site, key, 0, steps);
    }
    key
}

fn progress(site: &mut Site, key: JobKey, step: u64, steps_total: Option<u64>) {
    let at = site.now();
    site.job_progressed(key, Progress { at, step, steps_total, ..Progress::default() });
}

/// Solves, checks and applies until nothing is left; stops take effect at once. Each plan, once
/// applied, must leave nothing to do but what waits for a stop.
fn converge(site: &mut Site) -> Vec<Plan> {
    let wattle = policy("wattle").unwrap();
    let mut plans = Vec::new();
    let mut moved = Vec::new();
    loop {
        let plan = site.plan(&*wattle);
        assert_eq!(check(site.input(), &plan), [], "{plan:?}");
        moved.extend(moves_at_one_size(site, &plan));
        if plan.is_empty() {
            every_move_serves_a_start(site, &moved, &plans);
            // A job that started at this instant keeps its GPUs.
            site.pass(Duration::from_secs(1));
            return plans;
        }
        site.apply(&plan);
        let again = site.plan(&*wattle);
        assert!(again.is_empty(), "{plan:?}\nleft to do: {again:?}");
        site.complete_stops();
        plans.push(plan);
        assert!(plans.len() < 20, "it does not converge: {plans:?}");
    }
}

fn overlaps(a: &GpuSet, b: &GpuSet) -> bool {
    let meet =
        |here: &NodeGpus, there: &NodeGpus| here.node == there.node && here.gpus & there.gpus != 0;
    a.by_node.iter().any(|here| b.by_node.iter().any(|there| meet(here, there)))
}

/// The jobs without a co-tenant that a plan stops although they continue on as many GPUs, with the GPUs that they leave.
fn moves_at_one_size(site: &Site, plan: &Plan) -> Vec<(JobKey, GpuSet)> {
    let left = plan.decisions.iter().filter_map(|decision| {
        let Decision::Stop { job: key, next_gpus: Some(next), .. } = decision else { return None };
        let on = site.job(*key)?.state.gpus()?;
        let others = site.running().filter(|(other, _)| other != key);
        let is_shared =
            others.filter_map(|(_, job)| job.state.gpus()).any(|gpus| overlaps(on, gpus));
        (on.gpu_count() == *next && !is_shared).then(|| (*key, on.clone()))
    });
    left.collect()
}

/// Each of these jobs that is on as many GPUs of the same nodes again has left GPUs on which another job started.
fn every_move_serves_a_start(site: &Site, moved: &[(JobKey, GpuSet)], plans: &[Plan]) {
    let counts = |on: &GpuSet| -> BTreeMap<NodeKey, u32> {
        on.by_node.iter().map(|here| (here.node, here.gpus.count_ones())).collect()
    };
    for (key, left) in moved {
        let Some(now) = site.job(*key).and_then(|job| job.state.gpus()) else { continue };
        let is_needed = plans.iter().flat_map(|plan| &plan.decisions).any(|decision| {
            matches!(decision, Decision::Start { job, on, .. } if job != key && overlaps(left, on))
        });
        assert!(counts(now) != counts(left) || is_needed, "{key:?} left {left:?}: {plans:?}");
    }
}

/// GPUs of a running job.
fn gpus(site: &Site, key: JobKey) -> u32 {
    site.size(key).0
}

#[test]
fn a_single_job_gets_the_gpus_that_pay() {
    for (peak, expected) in [(64, 16), (8, 8), (1, 1)] {
        let mut site = cluster(&[8, 8]);
        let job = arrive(&mut site, facts("j", 1, 64), Kind { peak, ..ROOT }, Some(9_000));
        let plans = converge(&mut site);
        assert_eq!(plans.len(), 1);
        // Energy is free: the fastest clock.
        assert_eq!(site.size(job), (expected, GpuSetting::DEFAULT));
    }
}

#[test]
fn equal_jobs_get_equal_sizes_in_one_transition() {
    let mut site = cluster(&[8, 8]);
    let one = arrive(&mut site, facts("one", 1, 64), ROOT, Some(90_000));
    converge(&mut site);
    assert_eq!(gpus(&site, one), 16);
    site.pass(SETTLED);
    let two = arrive(&mut site, facts("two", 1, 64), ROOT, Some(90_000));
    let plans = converge(&mut site);
    assert_eq!([gpus(&site, one), gpus(&site, two)], [8, 8]);
    // Stopped to be moved to eight, then both start.
    assert!(
        matches!(plans[0].decisions[..], [Decision::Stop { next_gpus: Some(8), .. }]),
        "{plans:?}"
    );
    assert_eq!(plans.len(), 2);
    assert!(matches!(
        plans[1].decisions[0].reason(),
        Reason::Market { gpus: 8, gpu_price, .. } if *gpu_price > 0.0
    ));
}

#[test]
fn costly_energy_leads_to_few_gpus_and_low_clocks() {
    let mut last = f64::INFINITY;
    for (price, expected) in [(0.0, None), (0.001, Some(16)), (0.3, Some(1))] {
        let mut site = cluster(&[8, 8]);
        site.limits.price = price;
        let job = arrive(&mut site, facts("j", 1, 64), ROOT, Some(9_000));
        converge(&mut site);
        let (gpus, setting) = site.size(job);
        let clock = setting.clock_mhz_max.map(Frequency::as_mhz);
        let watts = f64::from(gpus) * (ROOT.point(gpus, clock, false).gpu_power_w.mean - IDLE_W);
        assert!(watts < last, "{watts} W at {price}");
        last = watts;
        assert!(expected.is_none_or(|most| gpus <= most), "{gpus} at {price}");
        assert_eq!(clock.is_none(), price == 0.0, "{setting}");
    }
}

#[test]
fn short_jobs_go_first_when_gpus_are_short() {
    let mut site = cluster(&[1]);
    let long = arrive(&mut site, facts("long", 1, 1), ROOT, Some(900_000));
    let short = arrive(&mut site, facts("short", 1, 1), ROOT, Some(900));
    let plan = converge(&mut site).remove(0);
    assert_eq!([gpus(&site, long), gpus(&site, short)], [0, 1]);
    assert_eq!(plan.blocked.unwrap().job, long);
    assert!(plan.again_at.is_some());
}

/// Among many jobs a departure waits for the next full round, at most a minute. Many at once do not.
#[test]
fn many_departures_lead_to_a_full_round_at_once() {
    let mut site = cluster(&[8; 5]);
    let jobs: Vec<JobKey> = (0..60)
        .map(|i| arrive(&mut site, facts(&format!("j{i:02}"), 1, 1), ROOT, Some(90_000)))
        .collect();
    converge(&mut site);
    let running = |site: &Site| {
        let held = |key: &&JobKey| site.job(**key).is_some_and(|job| job.state.gpus().is_some());
        jobs.iter().filter(held).copied().collect::<Vec<_>>()
    };
    let first = running(&site);
    assert_eq!(first.len(), 40);
    for &key in &first[..4] {
        site.job_ended(key);
    }
    converge(&mut site);
    assert_eq!(running(&site).len(), 36, "the last allocation is in force");
    for &key in &first[4..12] {
        site.job_ended(key);
    }
    converge(&mut site);
    assert_eq!(running(&site).len(), 40);
}

#[test]
fn young_jobs_go_first_when_lengths_are_unknown() {
    let mut site = cluster(&[1]);
    let old = arrive(&mut site, facts("old", 1, 1), ROOT, None);
    // Three hours of work are behind it.
    progress(&mut site, old, 10_800, None);
    for hours in [1, 1, 1, 2, 2, 4, 8, 30, 50, 60, 70] {
        site.work_remembered(f64::from(hours) * 3_600.0);
    }
    let young = arrive(&mut site, facts("young", 1, 1), ROOT, None);
    let plan = converge(&mut site).remove(0);
    assert_eq!([gpus(&site, old), gpus(&site, young)], [0, 1]);
    assert_eq!(plan.again_at, Some(Timestamp::from_s(1_800)));
}

/// An old job that needs 27 hours more goes before one that needs 20, if that is known.
#[test]
fn age_counts_less_for_a_job_of_unknown_length() {
    let hours = |hours: u64| hours * 3_600;
    for (known, first) in [(true, [1, 0]), (false, [0, 1])] {
        let stated = |length_s: u64| known.then_some(length_s);
        let mut site = cluster(&[1]);
        let old = arrive(&mut site, facts("old", 1, 1), ROOT, stated(hours(30)));
        site.advance_to(Timestamp::from_s(hours(20)));
        progress(&mut site, old, hours(3), stated(hours(30)));
        // Half of all past jobs were of 20 hours or more, half of those beyond three of 30 or more.
        for size in [1, 1, 4, 8, 15, 20, 30, 50, 60, 70, 80] {
            site.work_remembered(f64::from(size) * 3_600.0);
        }
        let young = JobFacts { submitted_at: site.now(), ..facts("young", 1, 1) };
        let young = arrive(&mut site, young, ROOT, stated(hours(20)));
        converge(&mut site);
        assert_eq!([gpus(&site, old), gpus(&site, young)], first, "known: {known}");
    }
}

#[test]
fn a_small_gain_is_not_worth_a_restart() {
    let mut site = cluster(&[8, 8]);
    let jobs =
        ["a", "b", "c"].map(|name| arrive(&mut site, facts(name, 1, 64), ROOT, Some(50_000)));
    converge(&mut site);
    // One is nearly done: no job is moved for its last seconds.
    progress(&mut site, jobs[2], 49_990, Some(50_000));
    let before = jobs.map(|job| gpus(&site, job));
    converge(&mut site);
    assert_eq!(jobs.map(|job| gpus(&site, job)), before);
    site.job_finished(jobs[2]);
    site.pass(SETTLED);
    converge(&mut site);
    assert_eq!([gpus(&site, jobs[0]), gpus(&site, jobs[1])], [8, 8]);
}

#[test]
fn deadlines_are_met_and_long_waits_end() {
    let mut site = cluster(&[8]);
    for i in 0..8 {
        arrive(&mut site, facts(&format!("j{i}"), 1, 1), ROOT, Some(2_000));
    }
    // 2.8 times the speed of one GPU is 8 GPUs; one GPU would be enough by the other deadline.
    let deadline = |s: u64| Some(Timestamp::from_s(s));
    let tight = JobFacts { deadline: deadline(4_000), ..facts("tight", 1, 8) };
    let tight = arrive(&mut site, tight, ROOT, Some(10_000));
    converge(&mut site);
    assert_eq!(gpus(&site, tight), 8);
    site.job_ended(tight);

    // Nine hours of work, and it has waited for four times that and an hour.
    let old = arrive(&mut site, facts("old", 1, 1), ROOT, Some(32_400));
    converge(&mut site);
    assert_eq!(gpus(&site, old), 0);
    site.advance_to(Timestamp::from_s(4 * 32_400 + 3_700));
    converge(&mut site);
    assert_eq!(gpus(&site, old), 1);
}

#[test]
fn a_job_without_a_surface_gets_its_minimum() {
    let mut site = cluster(&[8]);
    let known = arrive(&mut site, facts("known", 1, 8), ROOT, Some(9_000));
    let stranger = site.job_arrived(facts("stranger", 2, 8));
    converge(&mut site);
    assert_eq!([gpus(&site, known), gpus(&site, stranger)], [4, 2]);
}

#[test]
fn pairs_are_formed_only_where_they_gain() {
    let light = Kind { shared: 0.95, ..ROOT };
    for (kinds, exclusive, tenants_max, running) in [
        ([light; 4], false, 2, 4),
        // Pairs that lose, an exclusive job, too much memory for two, sharing not allowed.
        ([ROOT; 4], false, 2, 2),
        ([light; 4], true, 2, 3),
        ([Kind { memory_mib: 50_000, ..light }; 4], false, 2, 2),
        ([light; 4], false, 1, 2),
    ] {
        let mut site = cluster(&[2]);
        site.limits.tenants_max = tenants_max;
        let mut keys = Vec::new();
        for (i, kind) in kinds.into_iter().enumerate() {
            let facts =
                JobFacts { exclusive: exclusive && i == 0, ..facts(&format!("j{i}"), 1, 1) };
            // The first is the shortest, so that it runs in any case.
            keys.push(arrive(&mut site, facts, kind, Some(3_000 * (i as u64 + 1))));
        }
        converge(&mut site);
        let there = keys.iter().filter(|&&key| gpus(&site, key) > 0).count();
        assert_eq!(there, running, "{kinds:?} {exclusive} {tenants_max}");
        // Co-tenants stay together while nothing changes.
        site.advance_to(Timestamp::from_s(60));
        assert!(converge(&mut site).is_empty());
    }
}

#[test]
fn no_more_pairs_are_formed_than_gpus_are_short() {
    let light = Kind { shared: 0.95, ..ROOT };
    for (jobs, alike) in [(5, true), (5, false), (7, true), (7, false)] {
        let mut site = cluster(&[4]);
        site.limits.tenants_max = 2;
        let keys: Vec<JobKey> = (0..jobs)
            .map(|i| {
                let steps = if alike { 30_000 } else { 20_000 + 4_000 * i };
                arrive(&mut site, facts(&format!("j{i}"), 1, 1), light, Some(steps))
            })
            .collect();
        converge(&mut site);
        assert!(keys.iter().all(|&key| gpus(&site, key) == 1), "{jobs} {alike}");
        assert_eq!(used(&site, &keys), 4, "{jobs} {alike}");
        // Nor do they stay shared each other once there is room again.
        for &key in &keys[4..] {
            site.job_finished(key);
        }
        site.pass(SETTLED);
        converge(&mut site);
        assert_eq!(used(&site, &keys[..4]), 4, "{jobs} {alike}");
    }
}

/// How many different sets of GPUs jobs have.
fn used(site: &Site, keys: &[JobKey]) -> usize {
    let set = |key: &JobKey| site.job(*key).unwrap().state.gpus().map(|set| format!("{set:?}"));
    keys.iter().filter_map(set).collect::<BTreeSet<_>>().len()
}

#[derive(Clone, Debug)]
enum Step {
    Arrives {
        kind: Kind,
        min: u32,
        max: u32,
        steps: Option<u64>,
        exclusive: bool,
        can_stop: bool,
        deadline_s: Option<u64>,
    },
    Unknown {
        gpus: u32,
    },
    Ends(prop::sample::Index),
    Advances {
        s: u64,
    },
}

fn kind() -> impl Strategy<Value = Kind> {
    (0.1f64..1.0, 0u32..7, 0.1f64..20.0, 0.3f64..1.0, 1_000u64..60_000).prop_map(
        |(grows, peak, rate, shared, memory_mib)| Kind {
            grows,
            peak: 1 << peak,
            rate,
            shared,
            memory_mib,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let arrives = (
        kind(),
        0u32..4,
        0u32..5,
        prop::option::weighted(0.7, 10u64..1_000_000),
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.9),
        prop::option::weighted(0.15, 100u64..200_000),
    )
        .prop_map(|(kind, least, more, steps, exclusive, can_stop, deadline_s)| {
            let (min, max) = (1 << least, 1 << (least + more).min(6));
            Step::Arrives { kind, min, max, steps, exclusive, can_stop, deadline_s }
        });
    prop_oneof![
        6 => arrives,
        1 => (1u32..5).prop_map(|gpus| Step::Unknown { gpus }),
        2 => any::<prop::sample::Index>().prop_map(Step::Ends),
        3 => (1u64..20_000).prop_map(|s| Step::Advances { s }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Whatever happens: no plan breaks a rule, no more GPUs are given than there are, and what was
    /// applied is not made again, after any number of stops and starts.
    #[test]
    fn plans_are_valid_and_settle(
        sizes in prop_oneof![Just(vec![8; 4]), Just(vec![8; 2]), Just(vec![4, 4, 8]), Just(vec![2, 6])],
        price in prop_oneof![Just(0.0), 1e-5f64..0.3],
        tenants_max in 1u32..3,
        nodes_sleep in any::<bool>(),
        steps in prop::collection::vec(step(), 1..30),
    ) {
        let mut site = cluster(&sizes);
        (site.limits.price, site.limits.tenants_max, site.limits.nodes_sleep) = (price, tenants_max, nodes_sleep);
        let room: u32 = sizes.iter().sum();
        for (i, step) in steps.into_iter().enumerate() {
            match step {
                Step::Arrives { kind, min, max, steps, exclusive, can_stop, deadline_s } => {
                    let deadline = deadline_s.map(|s| site.now() + Duration::from_secs(s));
                    let submitted_at = site.now();
                    let facts = JobFacts { exclusive, can_stop, deadline, submitted_at, ..facts(&format!("j{i}"), min, max) };
                    arrive(&mut site, facts, kind, steps);
                }
                Step::Unknown { gpus } => {
                    site.job_arrived(facts(&format!("j{i}"), gpus, gpus));
                }
                Step::Ends(which) => {
                    let keys: Vec<JobKey> = site.running().map(|(key, _)| key).collect();
                    if !keys.is_empty() {
                        site.job_finished(keys[which.index(keys.len())]);
                    }
                }
                Step::Advances { s } => {
                    site.pass(Duration::from_secs(s));
                    let keys: Vec<JobKey> = site.running().map(|(key, _)| key).collect();
                    for key in keys {
                        let known = site.job(key).unwrap().progress.unwrap_or_default();
                        progress(&mut site, key, known.step + s / 2, known.steps_total);
                    }
                }
            }
            converge(&mut site);
            if tenants_max == 1 {
                let given: u32 = site.running().map(|(key, _)| gpus(&site, key)).sum();
                prop_assert!(given <= room);
            }
        }
    }

    /// The costlier energy is, the less power a single job gets.
    #[test]
    fn costlier_energy_never_leads_to_more_power(kind in kind(), prices in prop::collection::vec(1e-6f64..1.0, 2..8)) {
        let mut prices = prices;
        prices.sort_by(f64::total_cmp);
        let mut last = f64::INFINITY;
        for price in prices {
            let mut site = cluster(&[8, 8]);
            site.limits.price = price;
            let job = arrive(&mut site, facts("j", 1, 64), kind, Some(100));
            converge(&mut site);
            let (gpus, setting) = site.size(job);
            let point = kind.point(gpus, setting.clock_mhz_max.map(Frequency::as_mhz), false);
            let watts = f64::from(gpus) * (point.gpu_power_w.mean - IDLE_W).max(1.0);
            prop_assert!(watts <= last + 1e-9, "{watts} W after {last} W at {price}");
            last = watts;
        }
    }
}
