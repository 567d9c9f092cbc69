//! Feeders in simulations: no limit is exceeded, whole or with a single feeder lost.

use wattle_baselines::{NAMES, policy};
use wattle_common::feeders::{FeederTree, Place};
use wattle_common::job::GpuRequest;
use wattle_simulator::{RunOptions, Scenario, generator, run_with};
use wattle_testkit::{connection, feeder};
use wattle_world::World;

/// Two sides. n0 and n1 run on one of them, n2 is on the first only, n3 needs both.
fn tree(limit_w: u64) -> FeederTree {
    let feeders = vec![
        feeder("board-a", None, 2 * limit_w, 100),
        feeder("board-b", None, 2 * limit_w, 0),
        feeder("pdu-a", Some("board-a"), limit_w, 50),
        feeder("pdu-b", Some("board-b"), limit_w, 0),
    ];
    let both = ["pdu-a", "pdu-b"];
    let connections = vec![
        connection(&["n0", "n1"], &both, 1),
        connection(&["n2"], &["pdu-a"], 1),
        connection(&["n3"], &both, 2),
    ];
    FeederTree::new(feeders, connections).unwrap()
}

fn scenario(world: &World, limit_w: u64) -> Scenario {
    let trace = generator::generate(40, 4);
    let mut scenario =
        Scenario::from_trace(world, &trace, &"4x8:v100".parse().unwrap(), 4).unwrap();
    for job in &mut scenario.jobs {
        job.gpus = GpuRequest::exactly(job.gpus.min.min(8));
    }
    scenario.set_load(world, 0.6).unwrap();
    scenario.set_feeders(world, tree(limit_w)).unwrap();
    scenario
}

/// Also with predicted surfaces, which have errors: caps enforce the reserved power.
#[test]
fn no_feeder_exceeds_its_limit_with_any_other_one_lost() {
    let world = World::builtin();
    let scenario = scenario(&world, 3_600);
    let runs = NAMES.map(|name| (name, true)).into_iter().chain([("fifo", false)]);
    for (name, oracle) in runs {
        let options = RunOptions { nodes_sleep: true, oracle, ..RunOptions::default() };
        let kept = run_with(&world, &scenario, policy(name).unwrap().as_ref(), &options).unwrap();
        assert_eq!(kept.finished, kept.jobs, "{name}");
        assert_eq!(kept.feeders.len(), 4);
        for used in &kept.feeders {
            assert_eq!(used.power_exceeded_s.to_bits(), 0, "{name}: {used:?}");
            assert!(used.power_kw_peak <= used.power_kw_peak_worst, "{name}: {used:?}");
            assert!(used.power_kw_peak_worst <= used.limit_kw, "{name}: {used:?}");
        }
        let pdu = kept.feeders.iter().find(|used| used.name == "pdu-a").unwrap();
        assert!(pdu.power_kw_peak_worst > 3.0, "{name}: the limit binds: {pdu:?}");
        assert_eq!(pdu.lost.as_deref(), Some("board-b"), "{name}");
    }
}

#[test]
fn a_node_on_no_feeder_and_a_limit_below_the_idle_draw_are_refused() {
    let world = World::builtin();
    let mut scenario = scenario(&world, 3_600);
    let low = scenario.set_feeders(&world, tree(1_000)).unwrap_err();
    assert_eq!(low.place, Place::Feeder(2));
    assert!(low.problem.contains("if board-b is lost: give at least"), "{low}");
    let part =
        FeederTree::new(vec![feeder("a", None, 9_000, 0)], vec![connection(&["n0"], &["a"], 1)]);
    let missing = scenario.set_feeders(&world, part.unwrap()).unwrap_err();
    assert!(missing.problem.starts_with("node n1 of the simulated cluster is on no feeder"));
}
