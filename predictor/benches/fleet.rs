//! Ten thousand jobs at one window a minute each: the time of a core it takes to keep their
//! surfaces current, and the memory: `cargo bench -p wattle-predictor --bench fleet`.
//!
//! The jobs are of 200 classes, know 20 windows each, and get one more: each is learned from and
//! answered with a surface. Each method runs in a process of its own, so that its peak memory
//! (`VmHWM` of `/proc/self/status`) is its own.

#![allow(clippy::print_stdout, reason = "the figures are what it is for")]

mod common;

use std::process::Command;

use common::{METHODS, megabytes, now, predictor, processor_s, window_of};
use wattle_common::id::{JobId, WorkloadId};
use wattle_common::job::GpuRequest;
use wattle_predictor::job::Job;
use wattle_predictor::method::Method;
use wattle_predictor::observation::Observation;
use wattle_predictor::predictor::Predictor;

const JOBS: u64 = 10_000;
const CLASSES: u64 = 200;
const WINDOWS: u64 = 20;
/// Jobs that taught each class before.
const TEACHERS: u64 = 8;

fn main() {
    let asked = std::env::args().nth(1);
    match METHODS.into_iter().find(|m| asked.as_deref() == Some(&name(*m))) {
        Some(method) => measure(method),
        None => {
            let program = std::env::current_exe().expect("a program has a path");
            for method in METHODS {
                let run = Command::new(&program).arg(name(method)).status();
                assert!(run.is_ok_and(|status| status.success()), "{method:?} failed");
            }
        }
    }
}

fn name(method: Method) -> String {
    format!("{method:?}").to_lowercase()
}

fn class(job: u64) -> String {
    format!("class-{}", job % CLASSES)
}

/// A predictor that knows all jobs and their classes.
fn knowing(method: Method) -> Predictor {
    let mut teacher = predictor(Method::Physical);
    for job in 0..CLASSES * TEACHERS {
        for minute in 0..5 {
            let _ =
                teacher.learn(now(minute), &window_of(&format!("old-{job}"), &class(job), minute));
        }
    }
    let mut known = predictor(method);
    for (kind, class, kept) in teacher.take_changed_classes() {
        assert!(known.restore_class(&kind, class, kept));
    }
    drop(teacher);
    for job in 0..JOBS {
        let class = class(job);
        let workload = WorkloadId::new(&class).expect("an id");
        let request = GpuRequest { min: 1, max: 8 };
        let mut kept = Job::new(now(0), Some(workload), request, Some("v100".into()));
        for minute in 0..WINDOWS {
            let window = window_of(&format!("job-{job}"), &class, minute);
            kept.add(Observation::of(&window, |_| None).expect("a sound window"), 40);
        }
        assert!(known.restore_job(JobId::new(&format!("job-{job}")).expect("an id"), kept));
    }
    known
}

fn measure(method: Method) {
    let mut known = knowing(method);
    let start = processor_s();
    known.refit_pooled();
    let pooled = processor_s() - start;
    let windows: Vec<_> =
        (0..JOBS).map(|job| window_of(&format!("job-{job}"), &class(job), WINDOWS)).collect();
    let (start, mut points) = (processor_s(), 0);
    for window in &windows {
        let _ = known.learn(now(WINDOWS), window);
        points += known.surface(now(WINDOWS), &window.job).expect("a known job").points.len();
    }
    let both = processor_s() - start;
    let start = processor_s();
    for window in &windows {
        divan::black_box(known.surface(now(WINDOWS), &window.job));
    }
    let answered = processor_s() - start;
    println!(
        "{}: {JOBS} jobs, {points} points: {both:.1} s of a core to learn and answer, {answered:.1} s \
         of it to answer: {:.1} % of one core at one window a minute; one pooled refit {:.0} ms; \
         memory {} MB at the peak",
        name(method),
        100.0 * both / 60.0,
        1e3 * pooled,
        megabytes("VmHWM:"),
    );
}
