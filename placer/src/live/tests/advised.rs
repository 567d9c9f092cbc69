//! Nodes whose power agents only advise, under power limits: they count with the caps that they have.

use proptest::prelude::*;
use wattle_common::Power;
use wattle_testkit::cases;

use crate::live::tests::power_shares::{limit, metered, pass};
use crate::live::tests::spec;
use crate::live::tests::world::World;

fn advised(nodes: usize, which: &[&str]) -> World {
    let mut world = metered(nodes);
    for node in which {
        world.advises_only(node, true);
    }
    world.pass(2);
    world
}

fn caps(world: &World, node: &str) -> Vec<Option<Power>> {
    world.desired(node).gpus.iter().map(|gpu| gpu.cap_mw).collect()
}

fn is_alarmed(world: &World) -> bool {
    world.log.iter().any(|line| line.contains("does not confirm its caps"))
}

#[test]
fn an_advised_node_counts_with_its_real_caps_in_the_limit() {
    let mut world = advised(2, &["n0", "n1"]);
    // Hosts 600 W and idle GPUs 200 W leave 300 W above idle: one GPU at its default cap of 250 W, no second.
    limit(&mut world, 1.1);
    for job in ["a", "b", "c"] {
        world.submit(spec(job, 1));
    }
    pass(&mut world, 120, 2, 1_100);
    let started = |world: &World| {
        ["n0", "n1"].map(|node| world.desired(node).jobs.len()).into_iter().sum::<usize>()
    };
    assert_eq!(started(&world), 1, "{:?}", world.log);
    assert!(!is_alarmed(&world), "{:?}", world.log);
    // With ordered caps that are set, all three fit.
    for node in ["n0", "n1"] {
        world.advises_only(node, false);
    }
    pass(&mut world, 120, 2, 1_100);
    assert_eq!(started(&world), 3, "{:?}", world.log);
}

#[test]
fn a_node_with_a_gpu_that_supports_no_cap_counts_with_its_real_caps() {
    let mut world = metered(1);
    world.supports_no_cap("n0", 1);
    world.pass(2);
    // The host's 300 W and the idle GPUs' 100 W leave 300 W above idle. Both GPUs count with 250 W each.
    limit(&mut world, 0.7);
    world.submit(spec("a", 2));
    pass(&mut world, 120, 1, 700);
    assert!(world.desired("n0").jobs.is_empty(), "{:?}", world.log);
    limit(&mut world, 0.85);
    pass(&mut world, 120, 1, 850);
    assert_eq!(world.desired("n0").jobs.len(), 1, "{:?}", world.log);
    assert!(!is_alarmed(&world), "what cannot be lowered is not awaited: {:?}", world.log);
}

#[test]
fn raises_elsewhere_do_not_wait_for_an_advised_node() {
    let mut world = advised(2, &["n0"]);
    world.submit(spec("a", 2));
    pass(&mut world, 5, 2, 10_000);
    limit(&mut world, 1.35);
    world.submit(spec("b", 2));
    pass(&mut world, 60, 2, 1_350);
    // a has n0 at 500 W; 1350 W less hosts 600 W leave 250 W for b.
    let lowered = caps(&world, "n1");
    let w = Power::from_w;
    assert!(lowered.iter().flatten().all(|cap| *cap <= w(125)), "{lowered:?} {:?}", world.log);
    assert_eq!(world.desired("n1").jobs.len(), 1);
    limit(&mut world, 1.55);
    pass(&mut world, 5, 2, 1_550);
    let raised = caps(&world, "n1");
    assert!(raised.iter().flatten().all(|cap| *cap > w(125)), "{raised:?}");
    assert!(!is_alarmed(&world), "{:?}", world.log);
}

#[test]
fn a_silent_advised_node_counts_with_its_caps() {
    let mut world = advised(2, &["n0"]);
    limit(&mut world, 1.25);
    world.submit(spec("a", 2));
    pass(&mut world, 20, 2, 1_250);
    let on_n0 = world.desired("n0").jobs.len() == 1;
    world.cut_off("n0", true);
    pass(&mut world, 300, 2, 1_250);
    assert!(!on_n0 || is_alarmed(&world), "{:?}", world.log);
    world.cut_off("n0", false);
    pass(&mut world, 120, 2, 1_250);
}

/// A history that exceeded the limit: the start on the advised node preceded the reduction on a silent one.
#[test]
fn a_start_on_an_advised_node_waits_for_reductions_elsewhere() {
    let mut world = advised(3, &["n1"]);
    limit(&mut world, 1.6);
    pass(&mut world, 54, 3, 1_600);
    world.submit(spec("first", 2));
    pass(&mut world, 4, 3, 1_600);
    world.cut_off("n0", true);
    pass(&mut world, 8, 3, 1_600);
    world.submit(spec("second", 1));
    pass(&mut world, 300, 3, 1_600);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(12, 40)))]

    /// The limit holds in every second with the real caps of a node that only advises.
    #[test]
    fn the_limit_holds_with_an_advised_node(
        steps in prop::collection::vec((0u8..5, 0usize..3, 1u64..40), 1..12),
    ) {
        const NODES: usize = 3;
        let mut world = advised(NODES, &["n1"]);
        limit(&mut world, 1.6);
        pass(&mut world, 10, NODES, 1_600);
        let mut jobs = 0;
        for (step, which, seconds) in steps {
            match step {
                0..=2 => {
                    world.submit(spec(&format!("j{jobs}"), 1 + which as u32 % 2));
                    jobs += 1;
                }
                3 if jobs > 0 => world.cancel(&format!("j{}", which % jobs)),
                _ => world.cut_off(&format!("n{which}"), seconds % 2 == 0),
            }
            pass(&mut world, 4 * seconds, NODES, 1_600);
        }
    }
}
