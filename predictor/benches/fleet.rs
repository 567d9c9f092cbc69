//! Processor time and memory for 10 000 jobs with one window per minute each:
//! `cargo bench -p wattle-predictor --bench fleet`.
//!
//! The jobs belong to 200 classes and have 20 windows each; one more window per job is learned and a
//! surface predicted. Each method runs in its own process, so that the peak memory (`VmHWM` of
//! `/proc/self/status`) is separate. The last run is the physical method at the default limits of jobs
//! and windows.

#![allow(clippy::print_stdout, reason = "prints measurements")]

mod common;

use std::process::Command;

use common::{METHODS, megabytes, now, predictor, processor_s, window_of};
use wattle_common::id::{JobId, WorkloadId};
use wattle_common::job::GpuRequest;
use wattle_common::observation::Observation;
use wattle_predictor::PredictorConfig;
use wattle_predictor::job::Job;
use wattle_predictor::method::Method;
use wattle_predictor::predictor::Predictor;

const JOBS: u64 = 10_000;
const CLASSES: u64 = 200;
const WINDOWS: u64 = 20;
/// Completed jobs of each class.
const TEACHERS: u64 = 8;

/// Argument that selects the limits.
const LIMITS: &str = "limits";

fn main() {
    let argument = std::env::args().nth(1).unwrap_or_default();
    if argument == LIMITS {
        let limits = PredictorConfig::shipped();
        return measure(Method::Physical, limits.jobs_max, limits.windows_per_job_max);
    }
    if let Some(method) = METHODS.into_iter().find(|m| argument == name(*m)) {
        return measure(method, JOBS, WINDOWS);
    }
    let program = std::env::current_exe().expect("a program has a path");
    for part in METHODS.map(name).into_iter().chain([LIMITS.to_owned()]) {
        let run = Command::new(&program).arg(&part).status();
        assert!(run.is_ok_and(|status| status.success()), "{part} failed");
    }
}

fn name(method: Method) -> String {
    format!("{method:?}").to_lowercase()
}

fn class(job: u64) -> String {
    format!("class-{}", job % CLASSES)
}

/// A predictor with all jobs and their classes.
fn trained(method: Method, jobs: u64, windows: u64) -> Predictor {
    let mut teacher = predictor(Method::Physical);
    for job in 0..CLASSES * TEACHERS {
        for minute in 0..5 {
            let _ =
                teacher.learn(now(minute), &window_of(&format!("old-{job}"), &class(job), minute));
        }
    }
    let mut known = predictor(method);
    for (gpu_type, class, kept) in teacher.take_changed_classes() {
        assert!(known.restore_class(&gpu_type, class, kept));
    }
    drop(teacher);
    for job in 0..jobs {
        let class = class(job);
        let workload = WorkloadId::new(&class).expect("an id");
        let request = GpuRequest { min: 1, max: 8 };
        let mut kept = Job::new(now(0), Some(workload), request, Some("v100".into()));
        for minute in 0..windows {
            let window = window_of(&format!("job-{job}"), &class, minute);
            kept.add(Observation::of(&window, |_| None).expect("a sound window"), 40);
        }
        assert!(known.restore_job(JobId::new(&format!("job-{job}")).expect("an id"), kept));
    }
    known
}

fn measure(method: Method, jobs: u64, windows: u64) {
    let mut known = trained(method, jobs, windows);
    let start = processor_s();
    known.refit_pooled();
    let pooled = processor_s() - start;
    let news: Vec<_> =
        (0..jobs).map(|job| window_of(&format!("job-{job}"), &class(job), windows)).collect();
    let (start, mut points) = (processor_s(), 0);
    for window in &news {
        let _ = known.learn(now(windows), window);
        points += known.surface(now(windows), &window.job).expect("a known job").points.len();
    }
    let both = processor_s() - start;
    let start = processor_s();
    for window in &news {
        divan::black_box(known.surface(now(windows), &window.job));
    }
    let predicted = processor_s() - start;
    println!(
        "{}: {jobs} jobs of {windows} windows, {points} points: {both:.1} s of a core to learn and predict, {predicted:.1} s \
         of it to predict: {:.1} % of one core at one window a minute; one pooled refit {:.0} ms; \
         memory {} MB at the peak",
        name(method),
        100.0 * both / 60.0,
        1e3 * pooled,
        megabytes("VmHWM:"),
    );
}
