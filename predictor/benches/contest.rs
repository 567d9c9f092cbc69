//! The registry at thousands of jobs: `cargo bench -p wattle-predictor --bench contest`.
//!
//! Three predictors propose the whole surface of every job once a minute, each job closes a window a
//! minute, and every payload is decoded from the JSON in which it comes, as in the service. What is
//! passed on is encoded. The bus itself is not in these figures. Each number of jobs runs in a
//! process of its own, so that its peak memory (`VmHWM` of `/proc/self/status`) is its own.

#![allow(clippy::print_stdout, reason = "the figures are what it is for")]

mod common;

use std::process::Command;

use common::{megabytes, now, predictor, processor_s, window_of};
use wattle_common::id::{JobId, PredictorId};
use wattle_common::job::GpuRequest;
use wattle_common::messages::{JobWindow, Surface};
use wattle_common::{Machine, Timestamp, codec};
use wattle_predictor::Method;
use wattle_predictor::registry::config::RegistryConfig;
use wattle_predictor::registry::{Action, Event, Registry};

const JOBS: [u64; 3] = [1_000, 5_000, 10_000];
const PREDICTORS: [&str; 3] = ["physical", "statistical", "neighbour"];
/// Minutes before the one that is measured: errors and records have filled.
const MINUTES: u64 = 4;

fn main() {
    let asked = std::env::args().nth(1).and_then(|word| word.parse().ok());
    match JOBS.into_iter().find(|jobs| asked == Some(*jobs)) {
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

fn name(job: u64) -> JobId {
    JobId::new(&format!("job-{job}")).expect("an id")
}

/// A surface as the shipped predictor publishes it, as JSON.
fn surface() -> Vec<u8> {
    let mut predictor = predictor(Method::Physical);
    for class in 0..16 {
        for minute in 0..6 {
            let window = window_of(&format!("old-{class}"), &format!("class-{class}"), minute);
            let _ = predictor.learn(now(minute), &window);
        }
    }
    let surface = predictor.surface(now(6), &JobId::new("old-0").expect("an id"));
    codec::encode_json(&surface.expect("a known job"))
}

/// What went over the registry's threshold, and what left it.
#[derive(Default)]
struct Traffic {
    proposals: u64,
    bytes_in: u64,
    passed_on: u64,
}

fn minute(registry: &mut Registry, jobs: u64, at: u64, template: &[u8]) -> Traffic {
    let (mut out, mut traffic) = (Vec::new(), Traffic::default());
    for job in 0..jobs {
        let window = window_of(name(job).as_str(), &format!("class-{}", job % 16), at);
        let bytes = codec::encode_json(&window);
        let until: Timestamp = window.until_us;
        let window: JobWindow = codec::decode_json(&bytes).expect("it was encoded so");
        registry.handle(until, Event::WindowClosed(Box::new(window)), &mut out);
        for predictor in PREDICTORS {
            let mut surface: Surface = codec::decode_json(template).expect("it was encoded so");
            let predictor = PredictorId::new(predictor).expect("letters only");
            (surface.job, surface.predictor) = (name(job), predictor.clone());
            surface.at_us = until;
            let surface = Ok(Box::new(surface));
            traffic.proposals += 1;
            traffic.bytes_in += template.len() as u64;
            let event = Event::Proposed { predictor, job: name(job), surface };
            registry.handle(until, event, &mut out);
        }
        for action in out.drain(..) {
            if let Action::WriteSurface(surface) = action {
                divan::black_box(codec::encode_json(&*surface));
                traffic.passed_on += 1;
            }
        }
    }
    registry.wake(now(at), &mut out);
    traffic
}

fn measure(jobs: u64) {
    let template = surface();
    let config = RegistryConfig::shipped();
    let mut registry = Registry::new(now(0), config, None, Vec::new());
    let mut out = Vec::new();
    let found = PREDICTORS.map(|name| {
        (PredictorId::new(name).expect("letters only"), env!("CARGO_PKG_VERSION").to_owned())
    });
    registry.handle(now(0), Event::ServicesFound(found.into()), &mut out);
    for job in 0..jobs {
        let gpus = GpuRequest { min: 1, max: 8 };
        let event = Event::JobDescribed {
            job: name(job),
            workload: None,
            gpus,
            gpu_type: None,
            started: true,
        };
        registry.handle(now(0), event, &mut out);
    }
    drop(out);
    for at in 0..MINUTES {
        let _ = minute(&mut registry, jobs, at, &template);
    }
    let start = processor_s();
    let traffic = minute(&mut registry, jobs, MINUTES, &template);
    let spent = processor_s() - start;
    println!(
        "{jobs} jobs: {} proposals of {} kB and {jobs} windows in, {} surfaces out in a minute: \
         {spent:.1} s of a core, {:.1} % of one; {:.0} us a proposal; memory {} MB at the peak",
        traffic.proposals,
        traffic.bytes_in / traffic.proposals / 1_000,
        traffic.passed_on,
        100.0 * spent / 60.0,
        1e6 * spent / traffic.proposals as f64,
        megabytes("VmHWM:"),
    );
}
