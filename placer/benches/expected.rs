//! The time of one forecast of all starts and ends: `cargo bench -p wattle-placer --bench expected`.
//!
//! Jobs request 1 to 16 GPUs with lengths over four decades; those that fit run, the others are queued. The goal for
//! 10,000 jobs on 1,000 nodes is 5 % of a core with a forecast every ten seconds, 500 ms.

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

#[path = "../tests/suite/support.rs"]
mod support;

use std::sync::Arc;

use crate::support::{job_facts, node_facts};
use wattle_common::Timestamp;
use wattle_common::job::GpuRequest;
use wattle_common::rng::Stream;
use wattle_placer::controller::{Controller, ControllerConfig};
use wattle_placer::expected::{EVERY, Expected};
use wattle_placer::{JobFacts, OperatingPoints, Policy, Progress, Round, policy};

/// As in the binaries.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Nodes of four GPUs, and jobs.
const SCALES: [(u32, u32); 3] = [(10, 100), (100, 1_000), (1_000, 10_000)];
const WORKLOADS: u32 = 14;
const SIZES: [u32; 8] = [1, 1, 1, 1, 2, 4, 8, 16];

fn main() {
    divan::main();
}

/// The jobs have arrived, and a round has started those that fit.
fn cluster(name: &str, (nodes, jobs): (u32, u32)) -> (Controller<Box<dyn Policy>>, Round) {
    let mut controller = Controller::new(ControllerConfig::default(), policy(name).unwrap());
    let state = controller.events();
    state.inventory_known(true);
    for i in 0..nodes {
        state.node_known(node_facts(&format!("n{i}"), "v100", 4, 16_000));
    }
    let mut stream = Stream::new(7, "bench");
    for i in 0..jobs {
        let gpus = *stream.pick(&SIZES).unwrap();
        let request = GpuRequest { min: gpus, max: gpus };
        let facts = JobFacts { can_stop: false, ..job_facts(&format!("j{i}"), request) };
        let key = controller.admit(facts).unwrap();
        let rate = 2.0 + f64::from(i % WORKLOADS);
        let surface =
            wattle_testkit::surface("any", "v100", [wattle_testkit::point(gpus, rate, 200.0)]);
        let points = Arc::new(OperatingPoints::of(&surface, request));
        let state = controller.events();
        state.surface_with_points_known(key, Arc::new(surface), points);
        let steps_total = Some((10_000.0 * (2.0 * stream.normal()).exp()) as u64 + 1);
        state.job_progressed(key, Progress { steps_total, ..Progress::default() });
    }
    controller.set_expected(Expected::new(Timestamp::EPOCH));
    let round = controller.plan();
    controller.apply(&round.plan);
    (controller, round)
}

#[divan::bench(args = SCALES, consts = [0, 1, 2], sample_count = 20, sample_size = 1)]
fn forecast<const POLICY: usize>(bencher: divan::Bencher<'_, '_>, scale: (u32, u32)) {
    let (mut controller, round) = cluster(["fifo", "backfill", "wattle"][POLICY], scale);
    let mut now = Timestamp::EPOCH;
    bencher.bench_local(|| {
        now = now + EVERY;
        controller.advance_to(now);
        assert!(controller.follow_expected(&round.reports));
    });
}
