//! Plans of every policy under the power limits of groups of nodes and of single nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use wattle_baselines::{NAMES, policy};
use wattle_common::Power;
use wattle_common::job::{GpuRequest, GpuSetting};
use wattle_placer::plan::check::Violation;
use wattle_placer::power::groups::{PowerBound, PowerGroup};
use wattle_placer::power::model::enforced_cap;
use wattle_placer::{Decision, GpuPower, NodeKey, Plan, Policy, Reason, check};

use crate::policies::helpers::{arrive, cluster, facts};
use crate::support::{Site, job_facts};

const HOST_W: u64 = 300;
const IDLE_W: u64 = 40;
const MOST_W: u64 = 250;
const LEAST_W: u64 = 100;

fn limited(sizes: &[u32], bounds: Vec<PowerBound>) -> Site {
    let mut site = cluster(sizes);
    let w = Power::from_w;
    let draw =
        GpuPower { idle: w(IDLE_W), most: w(MOST_W), cap_min: Some(w(LEAST_W)), host: w(HOST_W) };
    site.gpu_power_known([("v100".to_owned(), draw)].into());
    site.limits.power_bounds = Arc::new(bounds);
    site.limits.caps_enforced = true;
    site
}

fn group(nodes: &[usize], limit_w: u64) -> PowerBound {
    PowerBound::Group(Arc::new(PowerGroup {
        name: "rack".to_owned(),
        nodes: nodes.iter().map(|i| wattle_testkit::node(&format!("n{i}"))).collect(),
        limit_kw: limit_w as f64 / 1e3,
    }))
}

fn converge(site: &mut Site, policy: &dyn Policy) -> Vec<Plan> {
    let mut plans = Vec::new();
    for _ in 0..60 {
        let plan = site.plan(policy);
        assert_eq!(check(site.input(), &plan), [], "{} made {plan:?}", policy.name());
        site.apply(&plan);
        site.complete_stops();
        let ended = plan.is_empty();
        plans.push(plan);
        if ended {
            return plans;
        }
    }
    panic!("{} does not converge", policy.name());
}

/// The caps of a node's GPUs: of all, and of those with jobs.
fn caps_w(site: &Site, node: usize) -> (u64, u64, u64) {
    let (key, known) = site.keyed_nodes().nth(node).unwrap();
    let cap = |gpu| enforced_cap(site.input(), key, gpu).map_or(MOST_W, |cap| cap.as_mw() / 1_000);
    let busy = |gpu: &u32| !known.tenants(*gpu).is_empty();
    let all: u64 = (0..known.facts.gpus).map(cap).sum();
    let of_jobs: u64 = (0..known.facts.gpus).filter(busy).map(cap).sum();
    let idle = (0..known.facts.gpus).filter(|gpu| !busy(gpu)).count() as u64;
    (all, of_jobs, idle)
}

/// Power of a node by the caps that are ordered.
fn node_w(site: &Site, node: usize) -> u64 {
    let (_, of_jobs, idle) = caps_w(site, node);
    HOST_W + of_jobs + idle * IDLE_W
}

#[test]
fn a_group_limit_affects_only_its_nodes() {
    let fifo = policy("fifo").unwrap();
    // n0: a host and two GPUs with the power that does most work per joule, 130 W each.
    let mut site = limited(&[2, 2], vec![group(&[0], HOST_W + 2 * 130)]);
    let keys = ["a", "b", "c", "d"].map(|name| arrive(&mut site, facts(name, 1), Some(2)));
    converge(&mut site, &*fifo);
    assert!(node_w(&site, 0) <= HOST_W + 2 * 130, "{}", node_w(&site, 0));
    let on = |site: &Site, node: usize| {
        (0..2).filter(|gpu| !site.node(NodeKey::at(node)).tenants(*gpu).is_empty()).count()
    };
    assert_eq!((on(&site, 0), on(&site, 1)), (2, 2));
    let default = keys.iter().filter(|key| site.size(**key).1 == GpuSetting::DEFAULT).count();
    assert_eq!(default, 2, "the jobs on n1 have no cap");
    // A limit below that power stops the last job of the group only.
    site.limits.power_bounds = Arc::new(vec![group(&[0], HOST_W + LEAST_W + IDLE_W)]);
    let plans = converge(&mut site, &*fifo);
    let stopped: Vec<&Reason> = plans
        .iter()
        .flat_map(|plan| &plan.decisions)
        .filter(|decision| matches!(decision, Decision::Stop { .. }))
        .map(Decision::reason)
        .collect();
    assert_eq!(stopped.len(), 1);
    assert_eq!(stopped[0].to_string(), "no power left within the limit of rack, 0.44 kW");
    assert_eq!((on(&site, 0), on(&site, 1)), (1, 2));
}

/// A job of two GPUs of 133.7 W under limits of the site: none, one that fits, and one that fits only at the
/// GPUs' lowest cap.
#[test]
fn caps_are_entire_watts_within_the_limit() {
    let fifo = policy("fifo").unwrap();
    let mut site = limited(&[2], Vec::new());
    let key = arrive(&mut site, facts("a", 2), None);
    let job = site.job(key).unwrap().facts.id.clone();
    let learn = |site: &mut Site, gpu_w: f64| {
        let points = [wattle_testkit::point(2, 1.0, gpu_w)];
        let surface = wattle_testkit::surface(job.as_str(), "v100", points);
        site.surface_known(key, Arc::new(surface));
    };
    let caps = |site: &Site| [0, 1].map(|gpu| enforced_cap(site.input(), NodeKey::at(0), gpu));
    learn(&mut site, 133.7);
    converge(&mut site, &*fifo);
    assert_eq!(caps(&site), [None, None], "no limit, no cap");
    site.limits.power_max = Some(Power::from_w(HOST_W + 2 * 134));
    assert_eq!(caps(&site), [Some(Power::from_w(133)); 2], "rounded down");
    learn(&mut site, 80.0);
    assert_eq!(caps(&site), [Some(Power::from_w(LEAST_W)); 2], "the lowest cap of the GPU");
    learn(&mut site, 400.0);
    assert_eq!(caps(&site), [None, None], "the highest power is the default cap");
    site.limits.power_max = None;
    site.limits.power_bounds = Arc::new(vec![group(&[1], HOST_W)]);
    learn(&mut site, 133.7);
    assert_eq!(caps(&site), [None, None], "the limit of another node");
}

#[test]
fn the_checker_finds_a_start_above_a_bound() {
    let fifo = policy("fifo").unwrap();
    let mut site = limited(&[2, 2], Vec::new());
    arrive(&mut site, facts("a", 2), Some(2));
    let plan = site.plan(&*fifo);
    assert_eq!(check(site.input(), &plan), []);
    for (bound, name) in [
        (group(&[0, 1], 2 * HOST_W + 4 * IDLE_W + 100), "rack"),
        (PowerBound::Node(wattle_testkit::node("n0"), Power::from_w(300)), "n0"),
    ] {
        site.limits.power_bounds = Arc::new(vec![bound]);
        let found = check(site.input(), &plan);
        let is_own = |found: &Violation| matches!(found, Violation::PowerExceeded { bound, .. } if bound == name);
        assert!(found.len() == 1 && is_own(&found[0]), "{found:?}");
    }
    site.limits.power_bounds = Arc::new(vec![group(&[1], HOST_W)]);
    assert_eq!(check(site.input(), &plan), [], "the job is not in this group");
    site.limits.power_bounds = Arc::default();
    site.limits.power_max = Some(Power::from_w(2 * HOST_W + 4 * IDLE_W + 100));
    assert_eq!(check(site.input(), &plan).len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Under every policy the caps that are ordered keep each group and each node within its limit, unless
    /// its baseline or lowest caps exceed it.
    #[test]
    fn no_group_and_no_node_exceeds_its_limit(
        sizes in prop::collection::vec(1u32..9, 2..5),
        which in 0..NAMES.len(),
        groups in prop::collection::vec((0usize..4, 0usize..4, 300u64..4_000), 0..3),
        own in prop::option::of((0usize..4, 100u64..2_000)),
        site_w in prop::option::of(500u64..6_000),
        jobs in prop::collection::vec((1u32..5, 1u32..3, prop::option::of(0usize..3)), 1..10),
    ) {
        let policy = policy(NAMES[which]).unwrap();
        let n = sizes.len();
        let mut limits: BTreeMap<usize, Vec<(Vec<usize>, u64)>> = BTreeMap::new();
        let mut bounds = Vec::new();
        for (i, (from, to, limit_w)) in groups.into_iter().enumerate() {
            let (from, to) = (from % n, to % n);
            let nodes: Vec<usize> = (from.min(to)..=from.max(to)).collect();
            bounds.push(group(&nodes, limit_w));
            limits.entry(i).or_default().push((nodes, limit_w));
        }
        let own = own.map(|(node, limit_w)| (node % n, limit_w));
        if let Some((node, limit_w)) = own {
            let id = wattle_testkit::node(&format!("n{node}"));
            bounds.push(PowerBound::Node(id, Power::from_w(limit_w)));
        }
        let mut site = limited(&sizes, bounds);
        site.limits.power_max = site_w.map(Power::from_w);
        for (i, (gpus, times, class)) in jobs.into_iter().enumerate() {
            let request = GpuRequest { min: gpus, max: gpus * times };
            arrive(&mut site, job_facts(&format!("j{i}"), request), class);
            converge(&mut site, &*policy);
            let gpus_of = |nodes: &[usize]| nodes.iter().map(|i| u64::from(sizes[*i])).sum::<u64>();
            for (nodes, limit_w) in limits.values().flatten() {
                let power: u64 = nodes.iter().map(|node| node_w(&site, *node)).sum();
                let empty = HOST_W * nodes.len() as u64 + IDLE_W * gpus_of(nodes);
                let most = (*limit_w).max(empty);
                prop_assert!(power <= most, "{} draws {power} of {most}", policy.name());
            }
            if let Some((node, limit_w)) = own {
                let (all, ..) = caps_w(&site, node);
                let least = LEAST_W * u64::from(sizes[node]);
                prop_assert!(all <= limit_w.max(least), "{}: {all} of {limit_w}", policy.name());
            }
        }
    }
}
