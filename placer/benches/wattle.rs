//! The time of one round of the policy `wattle`, and its growth with GPUs and jobs:
//! `cargo bench -p wattle-placer --bench wattle`.
//!
//! Jobs are of 14 workloads, each with 7 sizes and 12 clocks, with lengths over four decades, and two jobs wait for
//! each GPU. The goals for 10,000 GPUs and 25,000 jobs are one second for a first full round and a tenth of a second
//! after one event, in a full round as well as in an incremental one.

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

#[path = "../tests/suite/support.rs"]
mod support;

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Site, job_facts, node_facts};
use wattle_common::job::GpuRequest;
use wattle_common::messages::{Surface, SurfacePoint};
use wattle_common::rng::Stream;
use wattle_common::{Frequency, Power};
use wattle_placer::{GpuPower, JobFacts, OperatingPoints, Progress, policy};

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
const WORKLOADS: u32 = 14;
const ANY: GpuRequest = GpuRequest { min: 1, max: 64 };

fn main() {
    divan::main();
}

fn surface(workload: u32) -> Surface {
    let grows = 0.15 + 0.05 * f64::from(workload);
    let sizes = (0..7).map(|k| 1_u32 << k);
    let points = sizes.flat_map(|gpus| {
        let (n, grown) = (f64::from(gpus), f64::from(gpus).powf(grows));
        (0..12).map(move |step| {
            let slower = 1.0 - 0.03 * f64::from(step);
            let power_w = 60.0 + 300.0 * (0.35 + 0.65 * grown / n) * slower.powi(2);
            SurfacePoint {
                clock_mhz_max: (step > 0).then(|| Frequency::from_mhz(1_410 - 40 * step)),
                ..wattle_testkit::point(gpus, grown * slower, power_w)
            }
        })
    });
    Surface {
        windows: 1,
        memory_mib_max: Some(20_000),
        ..wattle_testkit::surface("any", "a100", points)
    }
}

/// All jobs are queued.
fn from_nothing((nodes, jobs): (u32, u32)) -> Site {
    let mut site = Site::new();
    site.inventory_known(true);
    site.limits.price = 1e-3;
    site.limits.tenants_max = 1;
    for i in 0..nodes {
        site.node_known(node_facts(&format!("n{i}"), "a100", 8, 80_000));
    }
    let known: Vec<(Arc<Surface>, Arc<OperatingPoints>)> = (0..WORKLOADS)
        .map(|kind| {
            let surface = surface(kind);
            let operating_points = OperatingPoints::of(&surface, ANY);
            (Arc::new(surface), Arc::new(operating_points))
        })
        .collect();
    let mut stream = Stream::new(7, "bench");
    for i in 0..jobs {
        arrive(&mut site, &mut stream, i, &known[(i % WORKLOADS) as usize]);
    }
    site
}

fn arrive(
    site: &mut Site,
    stream: &mut Stream,
    i: u32,
    (surface, operating_points): &(Arc<Surface>, Arc<OperatingPoints>),
) {
    let submitted_at = site.now();
    let key = site.job_arrived(JobFacts { submitted_at, ..job_facts(&format!("j{i}"), ANY) });
    site.surface_with_points_known(key, surface.clone(), operating_points.clone());
    let steps_total = Some((10_000.0 * (2.0 * stream.normal()).exp()) as u64 + 1);
    site.job_progressed(key, Progress { steps_total, ..Progress::default() });
}

/// The same below a limit of half the power of the GPUs above idle.
fn from_nothing_below_limit(scale: (u32, u32)) -> Site {
    const HOST_W: u64 = 300;
    const IDLE_W: u64 = 60;
    const MOST_W: u64 = 400;
    let mut site = from_nothing(scale);
    let draw = GpuPower {
        idle: Power::from_w(IDLE_W),
        most: Power::from_w(MOST_W),
        cap_min: Some(Power::from_w(100)),
        host: Power::from_w(HOST_W),
    };
    site.gpu_power_known([("a100".to_owned(), draw)].into());
    let node_w = HOST_W + 8 * IDLE_W + 4 * (MOST_W - IDLE_W);
    site.limits.power_max = Some(Power::from_w(u64::from(scale.0) * node_w));
    site
}

/// The allocation has settled.
fn at_rest(mut site: Site) -> Site {
    let wattle = policy("wattle").unwrap();
    loop {
        let plan = site.plan(&*wattle);
        if plan.is_empty() {
            return site;
        }
        site.apply(&plan);
        site.complete_stops();
    }
}

#[divan::bench(args = SCALES, sample_count = 5, sample_size = 1)]
fn first_full_round(bencher: divan::Bencher<'_, '_>, scale: (u32, u32)) {
    let site = from_nothing(scale);
    let wattle = policy("wattle").unwrap();
    bencher.bench_local(|| site.plan(&*wattle));
}

#[divan::bench(args = SCALES, sample_count = 5, sample_size = 1)]
fn first_full_round_below_limit(bencher: divan::Bencher<'_, '_>, scale: (u32, u32)) {
    let site = from_nothing_below_limit(scale);
    let wattle = policy("wattle").unwrap();
    bencher.bench_local(|| site.plan(&*wattle));
}

/// A full round below the limit after one job has completed.
#[divan::bench(args = SCALES, sample_count = 5, sample_size = 1)]
fn full_round_below_limit(bencher: divan::Bencher<'_, '_>, scale: (u32, u32)) {
    let mut site = at_rest(from_nothing_below_limit(scale));
    let (gone, _) = site.running().next().expect("a job runs");
    site.job_finished(gone);
    // The last prices remain, from which the search begins.
    site.pass(Duration::from_secs(61));
    let wattle = policy("wattle").unwrap();
    bencher.bench_local(|| site.plan(&*wattle));
}

/// An incremental round: one job has completed and one has arrived.
#[divan::bench(args = SCALES, sample_count = 5, sample_size = 1)]
fn incremental_round(bencher: divan::Bencher<'_, '_>, scale: (u32, u32)) {
    let mut site = at_rest(from_nothing(scale));
    let (gone, job) = site.running().next().expect("a job runs");
    let known =
        job.surface.clone().zip(job.operating_points.clone()).expect("every job has a surface");
    site.job_finished(gone);
    arrive(&mut site, &mut Stream::new(8, "bench"), scale.1, &known);
    let wattle = policy("wattle").unwrap();
    bencher.bench_local(|| site.plan(&*wattle));
}

/// A full round after one job has completed.
#[divan::bench(args = SCALES, sample_count = 5, sample_size = 1)]
fn full_round(bencher: divan::Bencher<'_, '_>, scale: (u32, u32)) {
    let mut site = at_rest(from_nothing(scale));
    let (gone, _) = site.running().next().expect("a job runs");
    site.job_finished(gone);
    site.cache = None;
    let wattle = policy("wattle").unwrap();
    bencher.bench_local(|| site.plan(&*wattle));
}

/// The same where two jobs may share a GPU but no surface predicts it.
#[divan::bench(args = SCALES, sample_count = 5, sample_size = 1)]
fn full_round_with_sharing(bencher: divan::Bencher<'_, '_>, scale: (u32, u32)) {
    let mut site = at_rest(from_nothing(scale));
    site.limits.tenants_max = 2;
    site.cache = None;
    let (gone, _) = site.running().next().expect("a job runs");
    site.job_finished(gone);
    let wattle = policy("wattle").unwrap();
    bencher.bench_local(|| site.plan(&*wattle));
}
