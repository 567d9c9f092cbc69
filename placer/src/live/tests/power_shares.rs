//! Power limits of the site, of feeders and of nodes while caps change, nodes are silent or refuse caps.

use std::time::Duration;

use proptest::prelude::*;
use serde_spanned::Spanned;
use wattle_common::job::JobPhase;
use wattle_common::messages::{LaunchState, LedgerEntry, SetBudget};
use wattle_common::{Budget, FeederId, Power};
use wattle_testkit::cases;

use crate::config::feeders::{FeederConfig, Names, NodeConfig};
use crate::live::Event;
use crate::live::tests::kinds::surface;
use crate::live::tests::spec;
use crate::live::tests::world::World;

const GPUS: u32 = 2;
pub(super) const IDLE: Power = Power::from_w(50);
pub(super) const HOST: Power = Power::from_w(300);

/// Nodes whose power is metered; jobs never end.
pub(super) fn metered(nodes: usize) -> World {
    let mut world = World::new(nodes, GPUS);
    world.long = true;
    world.pass(3);
    meter(&mut world, nodes, IDLE);
    world
}

/// Each GPU has drawn this mean power for a minute.
pub(super) fn meter(world: &mut World, nodes: usize, gpu: Power) {
    let span = Duration::from_secs(60);
    for node in 0..nodes {
        let metered = LedgerEntry {
            unknown: Vec::new(),
            node: wattle_testkit::node(&format!("n{node}")),
            from_us: world.now - span,
            until_us: world.now,
            energy_mj_gpus: vec![Some(gpu.over(span)); GPUS as usize],
            energy_mj_host: HOST.over(span),
            jobs: Vec::new(),
        };
        world.deliver(Event::EnergyMetered(Box::new(metered)));
    }
}

pub(super) fn limit(world: &mut World, kw: f64) {
    let budget = Budget::from_human(None, None, Some(kw), None).unwrap();
    world.deliver(Event::BudgetSet(7, Box::new(SetBudget { budget, intensity: None })));
}

/// The most that a node may draw: its host, the caps of GPUs with live jobs, and idle GPUs. A job starts at
/// the lowest cap before unreachable nodes are counted, so that cap counts as idle.
pub(super) fn draw(world: &World, node: usize) -> Power {
    let (power, launch) = world.reports(&format!("n{node}"));
    let is_live = |gpu: u32| {
        launch.jobs.iter().any(|job| {
            matches!(job.state, LaunchState::Running | LaunchState::Stopping)
                && job.gpus.contains(&gpu)
        })
    };
    let gpu = |gpu: &wattle_common::messages::AppliedGpu| {
        let cap = gpu.cap_mw.unwrap();
        if is_live(gpu.gpu) && Some(cap) > gpu.cap_mw_min { cap } else { IDLE }
    };
    HOST + power.gpus.iter().map(gpu).sum::<Power>()
}

fn total(world: &World, nodes: std::ops::Range<usize>) -> Power {
    nodes.map(|node| draw(world, node)).sum()
}

/// Passes time and checks the limit in every second.
pub(super) fn pass(world: &mut World, seconds: u64, nodes: usize, most_w: u64) {
    for _ in 0..seconds {
        world.pass(1);
        let total = total(world, 0..nodes);
        let most = Power::from_w(most_w);
        assert!(total <= most, "{total} of {most}");
    }
}

#[test]
fn a_cap_rises_after_the_others_have_fallen() {
    let mut world = metered(2);
    // Hosts 600 W and idle GPUs 200 W leave 250 W: one job at 250 W, or three at 133 W.
    limit(&mut world, 1.0);
    world.submit(spec("a", 1));
    pass(&mut world, 20, 2, 1_000);
    let cap = |world: &World, node: &str, gpu: u32| {
        world.desired(node).gpus.iter().find(|known| known.gpu == gpu).and_then(|gpu| gpu.cap_mw)
    };
    let before = cap(&world, "n0", 0);
    assert!(before.is_none() || before > Some(Power::from_w(200)), "{before:?}");
    // The first job falls before the second one rises above the lowest cap.
    world.submit(spec("b", 1));
    pass(&mut world, 20, 2, 1_000);
    world.cancel("a");
    pass(&mut world, 60, 2, 1_000);
    let order = world.desired("n0");
    assert_eq!(order.jobs.len(), 1);
    let raised = order.gpus.iter().filter_map(|gpu| gpu.cap_mw).max();
    assert!(raised > Some(Power::from_w(150)) || order.gpus.len() < 2, "{order:?}");
}

/// The power of hosts and idle GPUs is metered again after a restart. Until then jobs keep their GPUs and caps.
#[test]
fn a_restart_changes_no_job_and_no_cap() {
    let mut world = metered(2);
    limit(&mut world, 1.1);
    for job in ["a", "b", "c"] {
        world.submit(spec(job, 1));
    }
    pass(&mut world, 40, 2, 1_100);
    let orders = |world: &World| {
        let order = |node| (world.desired(node).jobs.clone(), world.desired(node).gpus.clone());
        ["n0", "n1"].map(order)
    };
    let before = orders(&world);
    assert_eq!(before[0].0.len() + before[1].0.len(), 3);
    world.restart();
    pass(&mut world, 60, 2, 1_100);
    assert_eq!(orders(&world), before, "{:?}", world.log);
    world.submit(spec("d", 1));
    pass(&mut world, 20, 2, 1_100);
    assert_eq!(orders(&world), before, "no job starts before its power is known");
}

/// After a restart no idle GPU was metered, and busy ones have drawn more than the limit, before it was set.
#[test]
fn the_power_of_busy_gpus_before_the_limit_stops_no_job_after_a_restart() {
    let mut world = metered(2);
    limit(&mut world, 1.1);
    for job in ["a", "b", "c", "d"] {
        world.submit(spec(job, 1));
    }
    pass(&mut world, 40, 2, 1_100);
    let orders = |world: &World| ["n0", "n1"].map(|node| world.desired(node).jobs.clone());
    let before = orders(&world);
    assert_eq!(before[0].len() + before[1].len(), 4);
    world.restart();
    pass(&mut world, 5, 2, 1_100);
    meter(&mut world, 2, Power::from_w(240));
    pass(&mut world, 60, 2, 1_100);
    assert_eq!(orders(&world), before, "{:?}", world.log);
}

#[test]
fn the_cap_of_a_job_that_stops_does_not_rise() {
    let mut world = metered(2);
    // Hosts 600 W and idle GPUs 200 W leave 200 W for three jobs.
    limit(&mut world, 1.0);
    for job in ["a", "b", "c"] {
        world.submit(spec(job, 1));
    }
    pass(&mut world, 40, 2, 1_000);
    world.slow_stop = true;
    world.cancel("a");
    pass(&mut world, 60, 2, 1_000);
    assert_eq!(world.record("a").phase, JobPhase::Stopping);
    world.slow_stop = false;
    pass(&mut world, 60, 2, 1_000);
}

/// The placer is killed between the record of a start and its order, before any cap was ordered.
#[test]
fn a_start_that_was_not_ordered_waits_until_its_power_is_known() {
    let mut world = metered(2);
    // Hosts 600 W and idle GPUs 200 W leave 170 W: a is predicted to draw 200 W at its default cap of 250 W.
    limit(&mut world, 0.97);
    world.submit(spec("a", 1));
    world.deliver(Event::SurfaceKnown(Box::new(surface("a", "v100", 1.0))));
    world.kill_at = Some(world.writes + 1);
    // The next placer knows neither the prediction nor the power of the GPUs.
    pass(&mut world, 20, 2, 970);
    assert!(world.log.iter().any(|line| line.contains("killed")), "{:?}", world.log);
    assert_eq!(world.record("a").phase, JobPhase::Starting);
    assert!(world.desired("n0").jobs.is_empty(), "{:?}", world.log);
    meter(&mut world, 2, IDLE);
    pass(&mut world, 20, 2, 970);
    assert!(world.is_live("n0", "a", 1), "{:?}", world.log);
    assert_eq!(world.record("a").phase, JobPhase::Running);
}

/// A node that has reported its lowest caps may have carried out a raise since.
#[test]
fn no_cap_rises_before_an_unreported_raise_is_reduced() {
    let mut world = metered(2);
    // Hosts 600 W and idle GPUs 200 W leave 400 W: two GPUs at 250 W, or four at 150 W.
    limit(&mut world, 1.2);
    pass(&mut world, 5, 2, 1_200);
    let caps = |world: &World, node: &str| {
        let caps = world.reports(node).0.gpus.into_iter().filter_map(|gpu| gpu.cap_mw);
        caps.map(|cap| cap.as_mw() / 1_000).collect::<Vec<_>>()
    };
    assert_eq!(caps(&world, "n0"), [100, 100]);
    world.submit(spec("a", 2));
    world.pass_without_reports();
    assert!(world.is_live("n0", "a", 1));
    assert_eq!(caps(&world, "n0"), [250, 250]);
    // The order that reduces a's caps for b does not arrive.
    world.cut_off("n0", true);
    world.submit(spec("b", 2));
    pass(&mut world, 10, 2, 1_200);
    assert!(world.is_live("n1", "b", 1));
    assert_eq!([caps(&world, "n0"), caps(&world, "n1")], [[250, 250], [100, 100]]);
    // Silent for longer, it counts with the raise, not with the order in force.
    pass(&mut world, 60, 2, 1_200);
    assert_eq!(caps(&world, "n0"), [250, 250]);
    assert!(world.log.iter().any(|line| line.contains("count with 498 W")), "{:?}", world.log);
    world.cut_off("n0", false);
    pass(&mut world, 60, 2, 1_200);
    assert_eq!(world.record("b").phase, JobPhase::Running, "{:?}", world.log);
    assert_eq!([caps(&world, "n0"), caps(&world, "n1")], [[150, 150], [150, 150]]);
}

#[test]
fn a_silent_node_counts_with_the_caps_that_it_may_have() {
    let mut world = metered(2);
    limit(&mut world, 1.2);
    for job in ["a", "b"] {
        world.submit(spec(job, 1));
    }
    pass(&mut world, 20, 2, 1_200);
    // Both jobs run on n0 at up to 250 W. Cut off, they continue, and are placed again elsewhere.
    world.cut_off("n0", true);
    pass(&mut world, 300, 2, 1_200);
    assert!(world.log.iter().any(|line| line.contains("n0 does not confirm its caps")));
    assert!(world.is_live("n0", "a", 1) && world.is_live("n0", "b", 1));
    world.cut_off("n0", false);
    pass(&mut world, 120, 2, 1_200);
}

#[test]
fn a_node_that_refuses_its_caps_counts_with_them() {
    let mut world = metered(2);
    world.submit(spec("a", 2));
    world.pass(5);
    world.refuses_caps("n0", Some("permission denied"));
    limit(&mut world, 1.25);
    world.pass(60);
    world.submit(spec("b", 2));
    // Hosts 600 W and two GPUs at 250 W leave 150 W: less than b needs.
    world.pass(60);
    assert!(world.desired("n1").jobs.is_empty(), "{:?}", world.log);
    world.refuses_caps("n0", None);
    world.pass(60);
    assert_eq!(world.desired("n1").jobs.len(), 1);
}

/// Configures feeders without parents, and nodes with their feeds, of which one suffices.
pub(super) fn put_on_feeders(
    world: &mut World,
    feeders: &[(&str, f64)],
    nodes: &[(&str, &[&str])],
) {
    let id = |name: &str| FeederId::new(name).unwrap();
    let feeder = |(name, limit_w): &(&str, f64)| FeederConfig {
        name: id(name),
        parent: None,
        limit_w: Some(*limit_w),
        voltage: None,
        amperage: None,
        phases: None,
        power_factor: None,
        max_utilization: None,
        static_load_w: 0.0,
    };
    let node = |(name, feeds): &(&str, &[&str])| NodeConfig {
        name: Names::One(wattle_testkit::node(name)),
        feeds: feeds.iter().map(|feed| id(feed)).collect(),
        min_feeds: 1,
        idle_w: None,
    };
    world.config.feeder = feeders.iter().map(|config| Spanned::new(0..0, feeder(config))).collect();
    world.config.node = nodes.iter().map(|config| Spanned::new(0..0, node(config))).collect();
}

/// n0 is on both feeders, n1 on the first, n2 on the second: what each carries, whole and with the other lost.
fn carried(world: &World) -> [[Power; 2]; 2] {
    let drawn = [0, 1, 2].map(|node| draw(world, node));
    let half = drawn[0].scale(0.5);
    [[half + drawn[1], drawn[0] + drawn[1]], [half + drawn[2], drawn[0] + drawn[2]]]
}

/// The caps of the agents keep each feeder within its limit with the other one lost, in every second: while jobs
/// start, while a node that carries the load of both is silent, and when it returns.
#[test]
fn caps_hold_each_limit_with_the_other_feeder_lost() {
    let mut world = metered(3);
    // Two hosts and four idle GPUs draw 800 W; 1,150 W are left for 350 W of jobs on n0 and one of the others.
    let feeds: [(&str, &[&str]); 3] = [("n0", &["a", "b"]), ("n1", &["a"]), ("n2", &["b"])];
    put_on_feeders(&mut world, &[("a", 1_150.0), ("b", 1_150.0)], &feeds);
    world.restart();
    meter(&mut world, 3, IDLE);
    let most = Power::from_w(1_150);
    let watch = |world: &mut World, seconds: u64| {
        for _ in 0..seconds {
            world.pass(1);
            let carried = carried(world);
            assert!(carried.iter().flatten().all(|power| *power <= most), "{carried:?}");
        }
    };
    for job in ["a", "b", "c", "d", "e", "f"] {
        world.submit(spec(job, 1));
        watch(&mut world, 10);
    }
    let busy = |world: &World| ["n0", "n1", "n2"].map(|node| world.desired(node).jobs.len());
    assert!(busy(&world).iter().sum::<usize>() >= 4, "{:?}", busy(&world));
    assert!(["n0", "n1", "n2"].iter().all(|node| world.desired(node).power_limited));
    let status = world.feeders.clone().unwrap();
    let worst = status.feeders.iter().map(|feeder| feeder.lost.as_ref().map(ToString::to_string));
    assert_eq!(worst.collect::<Vec<_>>(), [Some("b".to_owned()), Some("a".to_owned())]);
    assert!(status.feeders.iter().all(|feeder| feeder.power_mw_worst <= most), "{status:?}");
    // Silent, n0 keeps its jobs at the caps that it has, and counts with them.
    world.cut_off("n0", true);
    watch(&mut world, 200);
    world.cut_off("n0", false);
    watch(&mut world, 120);
    assert!(world.log.iter().all(|line| !line.contains("is on no feeder")), "{:?}", world.log);
}

/// What the configuration of feeders lacks is an alarm.
#[test]
fn a_node_on_no_feeder_and_a_limit_below_the_idle_draw_are_alarmed() {
    let mut world = metered(2);
    put_on_feeders(&mut world, &[("a", 390.0)], &[("n0", &["a"])]);
    world.restart();
    meter(&mut world, 2, IDLE);
    world.pass(10);
    let has = |words: &str| world.log.iter().any(|line| line.contains(words));
    assert!(has("n1 is on no feeder"), "{:?}", world.log);
    let low = "the limit of feeder a, 390 W, is below what its nodes draw without jobs: give at least 400 W";
    assert!(has(low), "{:?}", world.log);
}

#[test]
fn feeders_and_nodes_have_limits_of_their_own() {
    let mut world = metered(3);
    put_on_feeders(&mut world, &[("rack-1", 950.0)], &[("n0", &["rack-1"]), ("n1", &["rack-1"])]);
    world.set_node_limit("n2", Power::from_w(320));
    world.restart();
    // The power of hosts and idle GPUs is metered again.
    let span = Duration::from_secs(60);
    for node in ["n0", "n1", "n2"] {
        let metered = LedgerEntry {
            unknown: Vec::new(),
            node: wattle_testkit::node(node),
            from_us: world.now - span,
            until_us: world.now,
            energy_mj_gpus: vec![Some(IDLE.over(span)); GPUS as usize],
            energy_mj_host: HOST.over(span),
            jobs: Vec::new(),
        };
        world.deliver(Event::EnergyMetered(Box::new(metered)));
    }
    for job in ["a", "b", "c", "d", "e", "f"] {
        world.submit(spec(job, 1));
    }
    for _ in 0..120 {
        world.pass(1);
        let rack = total(&world, 0..2);
        assert!(rack <= Power::from_w(950 + 4), "{rack}");
    }
    let orders = ["n0", "n1", "n2"].map(|node| world.desired(node).clone());
    assert!(orders.iter().all(|order| order.power_limited));
    let jobs: Vec<usize> = orders.iter().map(|order| order.jobs.len()).collect();
    // 950 W less hosts 600 W and idle GPUs leave two GPUs at their lowest cap of 100 W and two idle ones.
    assert_eq!(jobs[0] + jobs[1], 3, "{jobs:?}");
    assert_eq!(jobs[2], 2, "{jobs:?}");
    let caps: Power = orders[2].gpus.iter().filter_map(|gpu| gpu.cap_mw).sum();
    assert!(caps <= Power::from_w(320) && orders[2].gpus.len() == 2, "{caps}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(16, 60)))]

    /// The limit holds in every second while jobs come and go, limits change within what is feasible, and
    /// nodes are cut off and return.
    #[test]
    fn the_site_limit_holds_in_every_second(
        steps in prop::collection::vec((0u8..6, 0usize..3, 1u64..40), 1..14),
    ) {
        const NODES: usize = 3;
        let mut world = metered(NODES);
        limit(&mut world, 1.6);
        pass(&mut world, 10, NODES, 1_600);
        let mut jobs = 0;
        for (step, which, seconds) in steps {
            let node = format!("n{which}");
            match step {
                0..=2 => {
                    world.submit(spec(&format!("j{jobs}"), 1 + which as u32 % GPUS));
                    jobs += 1;
                }
                3 if jobs > 0 => world.cancel(&format!("j{}", which % jobs)),
                4 => world.cut_off(&node, true),
                _ => world.cut_off(&node, false),
            }
            pass(&mut world, 4 * seconds, NODES, 1_600);
        }
    }
}
