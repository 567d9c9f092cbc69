//! Plans of every policy under the power limits of feeders and of single nodes.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use wattle_baselines::{NAMES, policy};
use wattle_common::feeders::{Connection, Feeder, FeederLimit, FeederTree};
use wattle_common::job::{GpuRequest, GpuSetting};
use wattle_common::{FeederId, Power};
use wattle_placer::plan::check::Violation;
use wattle_placer::power::bounds::{PowerBound, PowerBounds};
use wattle_placer::power::model::enforced_cap;
use wattle_placer::{Decision, GpuPower, JobFacts, NodeKey, Plan, Policy, Reason, check};
use wattle_testkit::cases;

use crate::policies::helpers::{arrive, cluster, facts};
use crate::support::{Site, job_facts};

const HOST_W: u64 = 300;
const IDLE_W: u64 = 40;
const MOST_W: u64 = 250;
const LEAST_W: u64 = 100;

fn limited(sizes: &[u32], bounds: impl Into<PowerBounds>) -> Site {
    let mut site = cluster(sizes);
    let w = Power::from_w;
    let draw =
        GpuPower { idle: w(IDLE_W), most: w(MOST_W), cap_min: Some(w(LEAST_W)), host: w(HOST_W) };
    site.gpu_power_known([("v100".to_owned(), draw)].into());
    site.limits.power_bounds = Arc::new(bounds.into());
    site.limits.caps_enforced = true;
    site
}

/// A feeder that carries all power of these nodes.
pub(super) fn feeder(nodes: &[usize], limit_w: u64) -> PowerBound {
    PowerBound::Feeder(Arc::new(FeederLimit {
        feeder: FeederId::new("rack").unwrap(),
        lost: None,
        limit: Power::from_w(limit_w),
        static_load: Power::ZERO,
        shares: nodes.iter().map(|i| (wattle_testkit::node(&format!("n{i}")), 1.0)).collect(),
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
fn the_limit_of_a_feeder_affects_only_its_nodes() {
    let fifo = policy("fifo").unwrap();
    // n0: a host and two GPUs with the power that does most work per joule, 130 W each.
    let mut site = limited(&[2, 2], vec![feeder(&[0], HOST_W + 2 * 130)]);
    let keys = ["a", "b", "c", "d"].map(|name| arrive(&mut site, facts(name, 1), Some(2)));
    converge(&mut site, &*fifo);
    assert!(node_w(&site, 0) <= HOST_W + 2 * 130, "{}", node_w(&site, 0));
    let on = |site: &Site, node: usize| {
        (0..2).filter(|gpu| !site.node(NodeKey::at(node)).tenants(*gpu).is_empty()).count()
    };
    assert_eq!((on(&site, 0), on(&site, 1)), (2, 2));
    let default = keys.iter().filter(|key| site.size(**key).1 == GpuSetting::DEFAULT).count();
    assert_eq!(default, 2, "the jobs on n1 have no cap");
    // A limit below that power stops the last job on the feeder only.
    site.limits.power_bounds = Arc::new(vec![feeder(&[0], HOST_W + LEAST_W + IDLE_W)].into());
    let plans = converge(&mut site, &*fifo);
    let stopped: Vec<&Reason> = plans
        .iter()
        .flat_map(|plan| &plan.decisions)
        .filter(|decision| matches!(decision, Decision::Stop { .. }))
        .map(Decision::reason)
        .collect();
    assert_eq!(stopped.len(), 1);
    assert_eq!(stopped[0].to_string(), "not enough power within the limit of rack, 0.44 kW");
    assert_eq!((on(&site, 0), on(&site, 1)), (1, 2));
}

/// A job of two GPUs of 133.7 W under limits of the site: none, one that fits, and one that fits only at the
/// GPUs' lowest cap.
#[test]
fn caps_are_entire_watts_within_the_limit() {
    let fifo = policy("fifo").unwrap();
    let mut site = limited(&[2], PowerBounds::default());
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
    site.limits.power_bounds = Arc::new(vec![feeder(&[1], HOST_W)].into());
    learn(&mut site, 133.7);
    assert_eq!(caps(&site), [None, None], "the limit of another node");
}

#[test]
fn the_checker_finds_a_start_above_a_bound() {
    let fifo = policy("fifo").unwrap();
    let mut site = limited(&[2, 2], PowerBounds::default());
    arrive(&mut site, facts("a", 2), Some(2));
    let plan = site.plan(&*fifo);
    assert_eq!(check(site.input(), &plan), []);
    for (bound, name) in [
        (feeder(&[0, 1], 2 * HOST_W + 4 * IDLE_W + 100), "rack"),
        (PowerBound::Node(wattle_testkit::node("n0"), Power::from_w(300)), "n0"),
    ] {
        site.limits.power_bounds = Arc::new(vec![bound].into());
        let found = check(site.input(), &plan);
        let is_own = |found: &Violation| matches!(found, Violation::PowerExceeded { bound, .. } if bound == name);
        assert!(found.len() == 1 && is_own(&found[0]), "{found:?}");
    }
    site.limits.power_bounds = Arc::new(vec![feeder(&[1], HOST_W)].into());
    assert_eq!(check(site.input(), &plan), [], "the job is not on this feeder");
    site.limits.power_bounds = Arc::default();
    site.limits.power_max = Some(Power::from_w(2 * HOST_W + 4 * IDLE_W + 100));
    assert_eq!(check(site.input(), &plan).len(), 1);
}

/// A tree with two supplies, of nodes on one side or both: the feeders by parent and static load, and the nodes by
/// feeds and the least number of them.
#[derive(Clone, Debug)]
struct Shape {
    feeders: Vec<(Option<usize>, u64)>,
    nodes: Vec<(Vec<usize>, usize)>,
}

impl Shape {
    fn above(&self, feeder: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(feeder), |at| self.feeders[*at].0)
    }

    /// What each feeder carries if a node draws this much and this feeder is lost, watts.
    fn carried(&self, node_w: impl Fn(usize) -> u64, lost: Option<usize>) -> Vec<f64> {
        let has_supply = |feeder: usize| self.above(feeder).all(|above| Some(above) != lost);
        let mut carried = vec![0.0; self.feeders.len()];
        for (feeder, (_, load_w)) in self.feeders.iter().enumerate() {
            if has_supply(feeder) {
                self.above(feeder).for_each(|above| carried[above] += *load_w as f64);
            }
        }
        for (node, (feeds, least)) in self.nodes.iter().enumerate() {
            let left: Vec<usize> = feeds.iter().copied().filter(|f| has_supply(*f)).collect();
            if left.len() >= *least {
                let part = node_w(node) as f64 / left.len() as f64;
                for feed in left {
                    self.above(feed).for_each(|above| carried[above] += part);
                }
            }
        }
        carried
    }

    fn losses(&self) -> impl Iterator<Item = Option<usize>> {
        (0..self.feeders.len()).map(Some).chain([None])
    }

    /// The tree with limits of this much above what the feeders carry without jobs, watts.
    fn tree(&self, sizes: &[u32], spare_w: &[u64]) -> (FeederTree, Vec<f64>) {
        let empty = |node: usize| HOST_W + IDLE_W * u64::from(sizes[node]);
        let mut limits = vec![0.0_f64; self.feeders.len()];
        for lost in self.losses() {
            let carried = self.carried(empty, lost);
            limits.iter_mut().zip(carried).for_each(|(limit, carried)| *limit = limit.max(carried));
        }
        for (at, limit) in limits.iter_mut().enumerate() {
            *limit = limit.ceil() + spare_w[at % spare_w.len()] as f64;
        }
        let name = |at: usize| FeederId::new(&format!("f{at}")).unwrap();
        let feeders = self.feeders.iter().enumerate().map(|(at, (parent, load_w))| Feeder {
            name: name(at),
            parent: parent.map(name),
            limit_mw: Power::from_w_f64(limits[at]),
            static_load_mw: Power::from_w(*load_w),
        });
        let connections = self.nodes.iter().enumerate().map(|(at, (feeds, least))| Connection {
            nodes: [wattle_testkit::node(&format!("n{at}"))].into(),
            feeds: feeds.iter().map(|feed| name(*feed)).collect(),
            min_feeds: *least as u32,
        });
        (FeederTree::new(feeders.collect(), connections.collect()).unwrap(), limits)
    }
}

/// A tree of up to seven feeders for up to five nodes.
fn shape() -> impl Strategy<Value = Shape> {
    let feeders = prop::collection::vec((prop::option::weighted(0.7, 0usize..6), 0u64..3), 1..8);
    let feeds = prop::collection::btree_set(0usize..8, 1..4);
    let nodes = prop::collection::vec((feeds, 1usize..4), 5);
    (feeders, nodes).prop_map(|(feeders, nodes)| {
        let count = feeders.len();
        let feeder = |(at, (parent, load)): (usize, (Option<usize>, u64))| {
            (parent.filter(|parent| *parent < at), load * 100)
        };
        let node = |(feeds, least): (BTreeSet<usize>, usize)| {
            let feeds: BTreeSet<usize> = feeds.into_iter().map(|feed| feed % count).collect();
            let least = least.min(feeds.len());
            (feeds.into_iter().collect(), least)
        };
        Shape {
            feeders: feeders.into_iter().enumerate().map(feeder).collect(),
            nodes: nodes.into_iter().map(node).collect(),
        }
    })
}

/// One job of two GPUs on a node with two feeds: what each side has is enough for half of its power, and with the
/// other one lost not for all.
#[test]
fn a_limit_holds_with_the_other_feed_lost() {
    let fifo = policy("fifo").unwrap();
    let shape = Shape { feeders: vec![(None, 0), (None, 0)], nodes: vec![(vec![0, 1], 1)] };
    let (tree, limits) = shape.tree(&[2], &[200]);
    assert_eq!(limits, [580.0, 580.0]);
    let mut site = limited(&[2], PowerBounds::of_feeders(&tree));
    let key = arrive(&mut site, facts("a", 2), Some(2));
    converge(&mut site, &*fifo);
    assert!(node_w(&site, 0) <= 580, "{}", node_w(&site, 0));
    assert_ne!(site.size(key).1, GpuSetting::DEFAULT);
    // What a plan draws above it is refused by the name of the lost feeder.
    let mut site = limited(&[2], PowerBounds::default());
    arrive(&mut site, facts("a", 2), Some(2));
    let plan = site.plan(&*fifo);
    site.limits.power_bounds = Arc::new(PowerBounds::of_feeders(&tree));
    let found = check(site.input(), &plan);
    let names = found.iter().map(|found| match found {
        Violation::PowerExceeded { bound, .. } => bound.as_str(),
        _ => "another",
    });
    assert_eq!(names.collect::<Vec<_>>(), ["f0 without f1", "f1 without f0"]);
    // A node that needs both feeds draws half from each at any time.
    let both = Shape { nodes: vec![(vec![0, 1], 2)], ..shape };
    let (tree, limits) = both.tree(&[2], &[200]);
    assert_eq!(limits, [390.0, 390.0]);
    site.limits.power_bounds = Arc::new(PowerBounds::of_feeders(&tree));
    assert_eq!(check(site.input(), &plan), []);
}

#[test]
fn a_reason_names_the_lost_feeder() {
    let fifo = policy("fifo").unwrap();
    let shape = Shape { feeders: vec![(None, 100), (None, 0)], nodes: vec![(vec![0, 1], 1)] };
    let (tree, _) = shape.tree(&[2], &[50]);
    let mut site = limited(&[2], PowerBounds::of_feeders(&tree));
    arrive(&mut site, facts("a", 2), Some(2));
    let plan = site.plan(&*fifo);
    assert!(plan.decisions.is_empty(), "{plan:?}");
    let blocked = plan.blocked.unwrap().reason.to_string();
    assert_eq!(blocked, "not enough power within the limit of f0, 0.53 kW, if f1 is lost");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(200, 2_000)))]

    /// Under every policy the caps that are ordered keep each feeder, whole and with any single feeder lost, and each
    /// node within its limit, unless its lowest caps exceed it.
    #[test]
    fn no_feeder_and_no_node_exceeds_its_limit(
        sizes in prop::collection::vec(1u32..9, 2..6),
        which in 0..NAMES.len(),
        shape in shape(),
        spare_w in prop::collection::vec(0u64..1_500, 1..8),
        own in prop::option::of((0usize..5, 100u64..2_000)),
        site_w in prop::option::of(500u64..6_000),
        jobs in prop::collection::vec((1u32..5, 1u32..3, prop::option::of(0usize..3)), 1..10),
    ) {
        let policy = policy(NAMES[which]).unwrap();
        let n = sizes.len();
        let shape = Shape { nodes: shape.nodes[..n].to_vec(), ..shape };
        let (tree, limits) = shape.tree(&sizes, &spare_w);
        let bounds = PowerBounds::of_feeders(&tree);
        let mut bounds: Vec<PowerBound> = bounds.iter().cloned().collect();
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
            for lost in shape.losses() {
                let carried = shape.carried(|node| node_w(&site, node), lost);
                for (feeder, (carried, limit)) in carried.iter().zip(&limits).enumerate() {
                    prop_assert!(
                        *carried <= limit + 1e-6,
                        "{}: f{feeder} carries {carried} of {limit} without {lost:?}",
                        policy.name()
                    );
                }
            }
            if let Some((node, limit_w)) = own {
                let (all, ..) = caps_w(&site, node);
                let least = LEAST_W * u64::from(sizes[node]);
                prop_assert!(all <= limit_w.max(least), "{}: {all} of {limit_w}", policy.name());
            }
        }
    }

    /// Where limits fall below what jobs draw that cannot be stopped, these alone are left on a feeder above its
    /// limit, each at the lowest cap of its GPUs.
    #[test]
    fn a_feeder_above_its_limit_has_only_jobs_that_cannot_stop_at_the_lowest_caps(
        sizes in prop::collection::vec(1u32..9, 2..6),
        which in 0..NAMES.len(),
        shape in shape(),
        spare_w in prop::collection::vec(300u64..2_500, 1..8),
        jobs in prop::collection::vec((1u32..5, any::<bool>()), 1..10),
    ) {
        let policy = policy(NAMES[which]).unwrap();
        let shape = Shape { nodes: shape.nodes[..sizes.len()].to_vec(), ..shape };
        let (tree, _) = shape.tree(&sizes, &spare_w);
        let mut site = limited(&sizes, PowerBounds::of_feeders(&tree));
        for (i, (gpus, can_stop)) in jobs.into_iter().enumerate() {
            let request = GpuRequest { min: gpus, max: gpus };
            let facts = JobFacts { can_stop, ..job_facts(&format!("j{i}"), request) };
            arrive(&mut site, facts, Some(i % 3));
            converge(&mut site, &*policy);
        }
        let spare_w: Vec<u64> = spare_w.iter().map(|watts| watts / 4).collect();
        let (tree, limits) = shape.tree(&sizes, &spare_w);
        site.limits.power_bounds = Arc::new(PowerBounds::of_feeders(&tree));
        converge(&mut site, &*policy);
        for lost in shape.losses() {
            let carried = shape.carried(|node| node_w(&site, node), lost);
            for feeder in (0..limits.len()).filter(|at| carried[*at] > limits[*at] + 1e-6) {
                for (node, gpus) in sizes.iter().enumerate() {
                    let part = |other: usize| u64::from(other == node) * 1_000;
                    let without = shape.carried(|_| 0, lost)[feeder];
                    if shape.carried(part, lost)[feeder] <= without {
                        continue;
                    }
                    let key = NodeKey::at(node);
                    for gpu in 0..*gpus {
                        let tenants = site.node(key).tenants(gpu).to_vec();
                        let fixed = tenants.iter().all(|job| !site.job(*job).unwrap().facts.can_stop);
                        prop_assert!(fixed, "{}: f{feeder} without {lost:?}", policy.name());
                        // Jobs on one GPU add their power above idle.
                        let jobs = tenants.len() as u64;
                        let least = IDLE_W + jobs * (LEAST_W - IDLE_W);
                        let cap = enforced_cap(site.input(), key, gpu);
                        prop_assert!(jobs == 0 || cap == Some(Power::from_w(least)), "{cap:?}");
                    }
                }
            }
        }
    }
}
