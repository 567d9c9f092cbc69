//! The registry with thousands of jobs: `cargo bench -p wattle-registry --bench fleet`.
//!
//! Three predictors propose a surface of 256 points for every job once a minute, and each job closes
//! a window a minute. Every payload is decoded from JSON and every surface in force is encoded, as
//! in the service; the bus is not included. Each number of jobs runs in its own process, so that
//! peak memory (`VmHWM` of `/proc/self/status`) is separate.

#![allow(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::process::Command;
use std::time::Duration;

use wattle_common::id::{JobId, NodeId, PredictorId, WorkloadId};
use wattle_common::job::GpuRequest;
use wattle_common::messages::{Estimate, JobWindow, Surface, SurfacePoint};
use wattle_common::{Machine, Power, Timestamp, codec};
use wattle_registry::{Action, Event, Registry, RegistryConfig};

const JOBS: [u64; 3] = [1_000, 5_000, 10_000];
const PREDICTORS: [&str; 3] = ["physical", "statistical", "python-mean"];
/// Points of a surface, as many as the shipped predictors publish.
const POINTS: u32 = 256;
/// Minutes before the measured one, in which error records fill.
const WARM_UP: u64 = 4;

fn main() {
    let requested = std::env::args().nth(1).and_then(|word| word.parse().ok());
    match JOBS.into_iter().find(|jobs| requested == Some(*jobs)) {
        Some(jobs) => measure(jobs),
        None => {
            let program = std::env::current_exe().expect("a program has a path");
            for jobs in JOBS {
                let run = Command::new(&program).arg(jobs.to_string()).status();
                assert!(run.is_ok_and(|status| status.success()), "{jobs} jobs failed");
            }
        }
    }
}

fn job(number: u64) -> JobId {
    JobId::new(&format!("job-{number}")).expect("an id")
}

fn start_of(minute: u64) -> Timestamp {
    Timestamp::from_s(60 * minute)
}

/// A surface over caps and neighbours, as JSON.
fn surface() -> Vec<u8> {
    let estimate = |mean: f64| Estimate { mean, low: 0.917_342 * mean, high: 1.083_914 * mean };
    let point = |i: u32| {
        let class = |n: u32| WorkloadId::new(&format!("class-{n}")).expect("an id");
        SurfacePoint {
            gpus: 2,
            nodes: 1,
            cap_mw: (!i.is_multiple_of(8)).then(|| Power::from_w(250 - 20 * u64::from(i % 8))),
            clock_mhz_max: None,
            global_batch: None,
            neighbours: (0..(i / 8).min(1)).map(|_| class(i / 8)).collect(),
            steps_per_s: Some(estimate(9.876_543 - 0.1 * f64::from(i % 8))),
            relative_speed: estimate(0.987_654 - 0.01 * f64::from(i % 8)),
            gpu_power_w: estimate(143.219_876 - 5.0 * f64::from(i % 8)),
        }
    };
    codec::encode_json(&Surface {
        job: job(0),
        admission: None,
        predictor: PredictorId::new(PREDICTORS[0]).expect("letters only"),
        at_us: start_of(0),
        gpu_type: "v100".into(),
        windows: 6,
        basis: Some("6 windows of this job on v100".into()),
        class: None,
        utilization_gpu_percent: Some(60.0),
        utilization_memory_percent: Some(30.0),
        memory_mib_max: Some(9_000),
        points: (0..POINTS).map(point).collect(),
        other_gpu_types: Vec::new(),
    })
}

/// A window of a minute, as JSON.
fn window(number: u64, minute: u64) -> Vec<u8> {
    let from = start_of(minute);
    let cap_w = if minute % 3 == 1 { 200 } else { 250 };
    codec::encode_json(&JobWindow {
        job: job(number),
        admission: None,
        workload: Some(WorkloadId::new(&format!("class-{}", number % 16)).expect("an id")),
        node: NodeId::new("n0").expect("an id"),
        gpu_type: "v100".into(),
        attempt: 1,
        from_us: from,
        until_us: from + Duration::from_secs(60),
        gpus: vec![0, 1],
        gpus_total: 2,
        nodes_total: 1,
        global_batch: None,
        cap_mw: Some(Power::from_w(cap_w)),
        clock_mhz_mean: None,
        clock_mhz_max: None,
        neighbours: Vec::new(),
        steps: Some(600),
        steps_per_s: Some(10.0),
        steps_per_s_error: Some(0.02),
        steps_inferred: false,
        step: None,
        epoch: None,
        early: false,
        power_mw_gpus: Some(Power::from_w(280)),
        power_mw_job: None,
        energy_mj_gpus: None,
        utilization_gpu_percent: Some(60.0),
        utilization_gpu_percent_job: Some(60.0),
        utilization_memory_percent: Some(30.0),
        memory_mib_max_job: Some(9_000),
        samples: 600,
    })
}

/// Messages in and out.
#[derive(Default)]
struct Traffic {
    proposals: u64,
    bytes_in: u64,
    surfaces_out: u64,
}

fn run_minute(registry: &mut Registry, jobs: u64, minute: u64, template: &[u8]) -> Traffic {
    let (mut out, mut traffic) = (Vec::new(), Traffic::default());
    for number in 0..jobs {
        let window: JobWindow = codec::decode_json(&window(number, minute)).expect("valid JSON");
        let until = window.until_us;
        registry.handle(until, Event::WindowClosed(Box::new(window)), &mut out);
        for predictor in PREDICTORS {
            let mut surface: Surface = codec::decode_json(template).expect("valid JSON");
            let predictor = PredictorId::new(predictor).expect("letters only");
            (surface.job, surface.predictor) = (job(number), predictor.clone());
            surface.at_us = until;
            traffic.proposals += 1;
            traffic.bytes_in += template.len() as u64;
            let surface = Ok(Box::new(surface));
            let event = Event::Proposed { predictor, job: job(number), surface };
            registry.handle(until, event, &mut out);
        }
        for action in out.drain(..) {
            if let Action::WriteSurface(surface) = action {
                divan::black_box(codec::encode_json(&*surface));
                traffic.surfaces_out += 1;
            }
        }
    }
    registry.wake(start_of(minute + 1), &mut out);
    traffic
}

fn measure(jobs: u64) {
    let template = surface();
    let start = start_of(1);
    let mut registry = Registry::new(start, RegistryConfig::shipped(), None, Vec::new());
    let mut out = Vec::new();
    let found = PREDICTORS.map(|name| {
        (PredictorId::new(name).expect("letters only"), env!("CARGO_PKG_VERSION").to_owned())
    });
    registry.handle(start, Event::ServicesFound(found.into()), &mut out);
    for number in 0..jobs {
        let event = Event::JobDescribed {
            admission: None,
            job: job(number),
            workload: None,
            gpus: GpuRequest { min: 1, max: 8 },
            gpu_type: None,
            started: true,
        };
        registry.handle(start, event, &mut out);
    }
    drop(out);
    for minute in 0..WARM_UP {
        run_minute(&mut registry, jobs, minute, &template);
    }
    let before = processor_s();
    let traffic = run_minute(&mut registry, jobs, WARM_UP, &template);
    let spent = processor_s() - before;
    println!(
        "{jobs} jobs: {} proposals of {} kB and {jobs} windows in, {} surfaces out in a minute: \
         {spent:.1} s of processor time, {:.1} % of one core; {:.0} us per proposal; peak memory \
         {} MB",
        traffic.proposals,
        traffic.bytes_in / traffic.proposals / 1_000,
        traffic.surfaces_out,
        100.0 * spent / 60.0,
        1e6 * spent / traffic.proposals as f64,
        peak_memory_mb(),
    );
}

/// Processor time of this process, seconds.
fn processor_s() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let spent: Option<f64> = text.split_whitespace().next().and_then(|ns| ns.parse().ok());
    spent.expect("Linux provides schedstat") / 1e9
}

/// Peak memory of this process, MB.
fn peak_memory_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or_default();
    line.split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse().ok())
        .map_or(0, |kib: u64| kib / 1_000)
}
