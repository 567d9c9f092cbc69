//! How long one round of the policy `wattle` takes, and how that grows with GPUs and jobs:
//! `cargo bench -p wattle-placer --bench wattle`.
//!
//! Jobs are of 14 kinds, each with 7 sizes and 12 clocks, and of lengths over four decades, about two
//! waiting for each GPU. The goals are for 10,000 GPUs and 25,000 jobs: one second from nothing,
//! a tenth of a second after one event, whether everybody is weighed anew or what was shared out
//! last stands.

#![allow(clippy::unwrap_used, reason = "a benchmark says what broke by panicking")]

#[path = "../tests/suite/support.rs"]
mod support;

use std::sync::Arc;

use crate::support::Site;
use wattle_common::job::GpuRequest;
use wattle_common::messages::{Estimate, Surface, SurfacePoint};
use wattle_common::rng::Stream;
use wattle_common::{Frequency, NodeId, Timestamp};
use wattle_placer::{JobFacts, NodeFacts, OperatingPoints, Progress, State, policy};

/// As in the binaries.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Nodes of eight GPUs, and jobs.
const SCALES: [(u32, u32); 8] = [
    (16, 100),
    (125, 2_500),
    (312, 6_250),
    (625, 12_500),
    (1_250, 25_000),
    // More jobs on as many GPUs.
    (125, 5_000),
    (125, 12_500),
    (125, 25_000),
];
const KINDS: u32 = 14;
const ANY: GpuRequest = GpuRequest { min: 1, max: 64 };

fn main() {
    divan::main();
}

fn surface(kind: u32) -> Surface {
    let exactly = |mean| Estimate { mean, low: mean, high: mean };
    let grows = 0.15 + 0.05 * f64::from(kind);
    let mut points = Vec::new();
    for gpus in (0..7).map(|k| 1_u32 << k) {
        for step in 0..12 {
            let slower = 1.0 - 0.03 * f64::from(step);
            let (n, grown) = (f64::from(gpus), f64::from(gpus).powf(grows));
            points.push(SurfacePoint {
                gpus,
                nodes: gpus.div_ceil(8),
                cap_mw: None,
                clock_mhz_max: (step > 0).then(|| Frequency::from_mhz(1_410 - 40 * step)),
                global_batch: None,
                neighbours: Vec::new(),
                steps_per_s: Some(exactly(grown * slower)),
                relative_speed: exactly(1.0),
                gpu_power_w: exactly(60.0 + 300.0 * (0.35 + 0.65 * grown / n) * slower.powi(2)),
            });
        }
    }
    Surface {
        job: "any".parse().unwrap(),
        predictor: "bench".parse().unwrap(),
        at_us: Timestamp::EPOCH,
        gpu_type: "a100".into(),
        windows: 1,
        basis: None,
        class: None,
        utilization_gpu_percent: None,
        utilization_memory_percent: None,
        memory_mib_max: Some(20_000),
        points,
        other_gpu_types: Vec::new(),
        probe: None,
    }
}

/// Everybody waits and nobody runs.
fn from_nothing((nodes, jobs): (u32, u32)) -> Site {
    let mut site = Site::new();
    site.inventory_known(true);
    site.limits.price = 1e-3;
    site.limits.tenants_max = 1;
    for i in 0..nodes {
        site.node_known(NodeFacts {
            id: NodeId::new(&format!("n{i}")).unwrap(),
            gpu_type: "a100".into(),
            gpus: 8,
            memory_mib: 80_000,
            healthy: u64::MAX,
            watts: None,
        });
    }
    let known: Vec<(Arc<Surface>, Arc<OperatingPoints>)> = (0..KINDS)
        .map(|kind| {
            let surface = surface(kind);
            let menu = OperatingPoints::of(&surface, ANY);
            (Arc::new(surface), Arc::new(menu))
        })
        .collect();
    let mut stream = Stream::new(7, "bench");
    for i in 0..jobs {
        arrive(&mut site, &mut stream, i, &known[(i % KINDS) as usize]);
    }
    site
}

fn arrive(
    site: &mut Site,
    stream: &mut Stream,
    i: u32,
    (surface, menu): &(Arc<Surface>, Arc<OperatingPoints>),
) {
    let submitted_at = site.now();
    let key = site.job_arrived(JobFacts {
        id: format!("j{i}").parse().unwrap(),
        workload: None,
        request: ANY,
        exclusive: false,
        priority: 0,
        can_stop: true,
        deadline: None,
        slack: None,
        duration_alone: None,
        memory_mib_max: None,
        gpu_type: None,
        submitted_at,
    });
    site.surface_and_menu_known(key, surface.clone(), menu.clone());
    let steps_total = Some((10_000.0 * (2.0 * stream.normal()).exp()) as u64 + 1);
    site.job_progressed(key, Progress { steps_total, ..Progress::default() });
}

/// Everybody who should run does.
fn at_rest(scale: (u32, u32)) -> Site {
    let mut site = from_nothing(scale);
    let wattle = policy("wattle").unwrap();
    loop {
        let plan = wattle.solve(site.input());
        if plan.is_empty() {
            return site;
        }
        site.apply(&plan);
        let stopping: Vec<_> = site
            .running()
            .filter(|(_, job)| matches!(job.state, State::Stopping { .. }))
            .map(|(key, _)| key)
            .collect();
        stopping.into_iter().for_each(|key| site.job_stopped(key));
    }
}

#[divan::bench(args = SCALES, sample_count = 5, sample_size = 1)]
fn nobody_runs_yet(bencher: divan::Bencher<'_, '_>, scale: (u32, u32)) {
    let site = from_nothing(scale);
    let wattle = policy("wattle").unwrap();
    bencher.bench_local(|| wattle.solve(site.input()));
}

/// One job is done and one has come, while what was shared out stands.
#[divan::bench(args = SCALES, sample_count = 5, sample_size = 1)]
fn one_comes_for_one(bencher: divan::Bencher<'_, '_>, scale: (u32, u32)) {
    let mut site = at_rest(scale);
    let (gone, job) = site.running().next().expect("somebody runs");
    let known = job.surface.clone().zip(job.menu.clone()).expect("everybody is known");
    site.job_finished(gone);
    arrive(&mut site, &mut Stream::new(8, "bench"), scale.1, &known);
    let wattle = policy("wattle").unwrap();
    bencher.bench_local(|| wattle.solve(site.input()));
}

/// One job is done and everybody is weighed: who gets its GPUs?
#[divan::bench(args = SCALES, sample_count = 5, sample_size = 1)]
fn one_job_is_done(bencher: divan::Bencher<'_, '_>, scale: (u32, u32)) {
    let mut site = at_rest(scale);
    let (gone, _) = site.running().next().expect("somebody runs");
    site.job_finished(gone);
    site.cache = None;
    let wattle = policy("wattle").unwrap();
    bencher.bench_local(|| wattle.solve(site.input()));
}

/// As before, where two may share a GPU but no surface says what comes of it.
#[divan::bench(args = SCALES, sample_count = 5, sample_size = 1)]
fn one_job_is_done_and_two_may_share(bencher: divan::Bencher<'_, '_>, scale: (u32, u32)) {
    let mut site = at_rest(scale);
    site.limits.tenants_max = 2;
    site.cache = None;
    let (gone, _) = site.running().next().expect("somebody runs");
    site.job_finished(gone);
    let wattle = policy("wattle").unwrap();
    bencher.bench_local(|| wattle.solve(site.input()));
}
