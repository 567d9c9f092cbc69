//! Orders to nodes: lease, generation, the site's cap.

use wattle_common::{GpuIndex, Power};

use crate::live::tests::spec;
use crate::live::tests::world::World;

#[test]
fn lease_is_renewed_after_a_third_with_the_same_generation() {
    let mut world = World::new(1, 1);
    world.pass(3);
    let first = world.desired("n0").clone();
    world.pass(15);
    assert!(world.desired("n0").issued_at_us == first.issued_at_us);
    world.pass(5);
    let renewed = world.desired("n0");
    assert_eq!(renewed.generation, first.generation);
    assert!(renewed.issued_at_us > first.issued_at_us);
    assert_eq!(renewed.expires_at_us.since(renewed.issued_at_us).as_secs(), 60);
}

#[test]
fn generation_exceeds_observed_generation_after_orders_are_lost() {
    let mut world = World::new(1, 2);
    world.long = true;
    world.submit(spec("a", 1));
    world.pass(3);
    let generation = world.desired("n0").generation;
    world.orders.clear();
    world.restart();
    world.pass(3);
    assert!(world.desired("n0").generation > generation);
    assert_eq!(world.desired("n0").jobs.len(), 1);
}

#[test]
fn site_cap_is_ordered_for_every_gpu() {
    let mut world = World::new(1, 2);
    world.config.gpu_cap_w = Some(150);
    world.config.gpu_clock_mhz_max = Some(1_200);
    world.restart();
    world.pass(3);
    let caps: Vec<(GpuIndex, Option<Power>)> =
        world.desired("n0").gpus.iter().map(|gpu| (gpu.gpu, gpu.cap_mw)).collect();
    assert_eq!(caps, [(0, Some(Power::from_w(150))), (1, Some(Power::from_w(150)))]);
}
