//! The machine: publication rate, and a job's start and end.

use crate::common::{class, job, window};
use wattle_common::job::GpuRequest;
use wattle_common::messages::JobWindow;
use wattle_common::{AdmissionId, Machine, Timestamp};
use wattle_predictor::{Action, Event, PredictorConfig, PredictorMachine};

fn machine() -> PredictorMachine {
    PredictorMachine::new(PredictorConfig::shipped())
}

fn described(name: &str) -> Event {
    described_submission(name, None)
}

fn described_submission(name: &str, admission: Option<AdmissionId>) -> Event {
    Event::JobDescribed {
        job: job(name),
        admission,
        workload: Some(class("a")),
        gpus: GpuRequest::exactly(1),
        gpu_type: Some("v100".into()),
    }
}

fn closed(name: &str, minute: u64) -> Event {
    Event::WindowClosed(Box::new(window(name, Some("a"), minute)))
}

/// Handles an event; the resulting actions as text.
fn handle(machine: &mut PredictorMachine, at_s: u64, event: Event) -> Vec<String> {
    let mut out = Vec::new();
    machine.handle(Timestamp::from_s(at_s), event, &mut out);
    short(out)
}

fn short(out: Vec<Action>) -> Vec<String> {
    out.into_iter()
        .map(|action| match action {
            Action::PublishSurface(s) => format!("{} after {}", s.job, s.windows),
            Action::ForgetJob(job) => format!("remove {job}"),
            Action::ReportUnusable { job, error } => format!("{job}: {error}"),
            Action::ReportOutOfBounds { job, error } => format!("{job}: {error}"),
        })
        .collect()
}

#[test]
fn publication_rate_is_limited_and_the_newest_surface_is_published() {
    let mut m = machine();
    assert_eq!(handle(&mut m, 100, described("j")), ["j after 0"]);
    assert!(handle(&mut m, 101, described("j")).is_empty(), "an unchanged description");
    assert_eq!(
        handle(&mut m, 102, closed("j", 0)),
        ["j after 1"],
        "the first window ignores the interval"
    );
    assert!(handle(&mut m, 103, closed("j", 1)).is_empty());
    assert!(handle(&mut m, 104, closed("j", 9)).is_empty());
    let (at, _) = m.next_wake().unwrap();
    assert_eq!(at, Timestamp::from_s(112));
    let mut out = Vec::new();
    m.wake(at, &mut out);
    assert_eq!(short(out), ["j after 3"]);
    assert!(m.next_wake().is_none());
    assert_eq!(handle(&mut m, 130, closed("j", 2)), ["j after 4"]);
    assert!(handle(&mut m, 131, closed("j", 2)).is_empty(), "a duplicate window");
    assert!(m.next_wake().is_none());
}

#[test]
fn window_from_the_future_is_ignored() {
    let mut m = machine();
    assert_eq!(handle(&mut m, 100, described("j")), ["j after 0"]);
    let mut forged = window("j", Some("a"), 0);
    forged.until_us = Timestamp::FOREVER;
    forged.from_us = Timestamp::from_us(u64::MAX - 60_000_000);
    let reported = handle(&mut m, 101, Event::WindowClosed(Box::new(forged)));
    assert!(reported[0].starts_with("j: until_us ="), "{reported:?}");
    assert_eq!(handle(&mut m, 102, closed("j", 0)), ["j after 1"]);
}

#[test]
fn queued_job_is_published_again_as_its_class_learns() {
    let mut m = machine();
    assert_eq!(handle(&mut m, 100, described("waits")), ["waits after 0"]);
    assert_eq!(handle(&mut m, 100, described("runs")), ["runs after 0"]);
    let mut other = described("other");
    if let Event::JobDescribed { workload, .. } = &mut other {
        *workload = Some(class("b"));
    }
    assert_eq!(handle(&mut m, 100, other), ["other after 0"]);
    let known = |m: &PredictorMachine| {
        let surface = m.predictor().surface(Timestamp::from_s(120), &job("waits")).unwrap();
        surface.utilization_gpu_percent.is_some() && surface.memory_mib_max.is_some()
    };
    assert!(!known(&m));
    assert_eq!(handle(&mut m, 120, closed("runs", 0)), ["waits after 0", "runs after 1"]);
    assert!(known(&m));
    for minute in 1..20 {
        handle(&mut m, 120 + 20 * minute, closed("runs", minute));
    }
    // After twenty windows one more changes little.
    assert_eq!(handle(&mut m, 900, closed("runs", 20)), ["runs after 21"]);
}

#[test]
fn late_windows_of_an_ended_job_are_ignored() {
    let mut m = machine();
    handle(&mut m, 100, described("j"));
    handle(&mut m, 101, closed("j", 0));
    assert_eq!(handle(&mut m, 102, Event::JobEnded(job("j"), None)), ["remove j"]);
    assert!(m.next_wake().is_none(), "no surface of it is due");
    assert!(handle(&mut m, 103, closed("j", 1)).is_empty());
    assert!(handle(&mut m, 104, Event::JobEnded(job("j"), None)).is_empty());
    assert!(handle(&mut m, 105, Event::JobEnded(job("never-seen"), None)).is_empty());
    assert_eq!(m.predictor().job_count(), 0);
}

/// A window of this submission of job `j`.
fn closed_submission(minute: u64, of: &Option<AdmissionId>) -> Event {
    let window = JobWindow { admission: of.clone(), ..window("j", Some("a"), minute) };
    Event::WindowClosed(Box::new(window))
}

#[test]
fn a_name_that_is_submitted_again_begins_without_windows() {
    let [first, second, third] =
        [1, 2, 3].map(|s| Some(AdmissionId::accepted(Timestamp::from_s(s), 1)));
    let mut m = machine();
    handle(&mut m, 100, described_submission("j", first.clone()));
    assert_eq!(handle(&mut m, 101, closed_submission(0, &first)), ["j after 1"]);
    handle(&mut m, 102, Event::JobEnded(job("j"), first.clone()));
    assert!(handle(&mut m, 103, described_submission("j", first.clone())).is_empty());
    assert_eq!(handle(&mut m, 120, described_submission("j", second.clone())), ["j after 0"]);
    let surface = |m: &PredictorMachine| m.surface(Timestamp::from_s(120), &job("j")).unwrap();
    assert_eq!(surface(&m).admission, second);
    // The earlier one was a job of its class.
    assert_eq!(surface(&m).basis.as_deref(), Some("prior: 1 jobs of a seen on v100"));
    assert!(surface(&m).utilization_gpu_percent.is_some(), "which the prior uses");
    assert!(handle(&mut m, 130, closed_submission(1, &first)).is_empty(), "a late window");
    assert!(handle(&mut m, 131, Event::JobEnded(job("j"), first.clone())).is_empty());
    assert_eq!(handle(&mut m, 140, closed_submission(2, &second)), ["j after 1"]);
    // A window may arrive before the record.
    assert_eq!(handle(&mut m, 160, closed_submission(3, &third)), ["remove j", "j after 1"]);
    assert!(handle(&mut m, 161, described_submission("j", second)).is_empty());
    assert_eq!(surface(&m).admission, third);
    handle(&mut m, 162, Event::JobEnded(job("j"), None));
    assert_eq!(m.predictor().job_count(), 0, "its record was deleted");
}

#[test]
fn unusable_window_is_reported() {
    let mut bad = window("j", None, 0);
    bad.gpus_total = 0;
    assert_eq!(
        handle(&mut machine(), 1, Event::WindowClosed(Box::new(bad))),
        ["j: its numbers of GPUs and nodes are impossible"]
    );
}

/// Published jobs and their GPU types, the job's own type first.
fn gpu_types(out: Vec<Action>) -> Vec<String> {
    let published = out.into_iter().filter_map(|action| match action {
        Action::PublishSurface(surface) => Some(surface),
        _ => None,
    });
    published
        .map(|surface| {
            let job = surface.job.clone();
            let gpu_types: Vec<String> = surface.by_gpu_type().map(|on| on.gpu_type).collect();
            format!("{job} on {}", gpu_types.join(", "))
        })
        .collect()
}

#[test]
fn surface_covers_every_gpu_type() {
    let mut m = machine();
    let handle = |m: &mut PredictorMachine, at_s: u64, event: Event| {
        let (now, mut out) = (Timestamp::from_s(at_s), Vec::new());
        m.handle(now, event, &mut out);
        while m.next_wake().is_some_and(|(at, _)| at <= now) {
            m.wake(now, &mut out);
        }
        gpu_types(out)
    };
    let any = |name: &str| Event::JobDescribed {
        job: job(name),
        admission: None,
        workload: Some(class("a")),
        gpus: GpuRequest::exactly(1),
        gpu_type: None,
    };
    let seen = |gpu_type: &str| Event::GpuTypeFound(gpu_type.to_owned());
    assert!(handle(&mut m, 90, seen("v100")).is_empty());
    assert_eq!(handle(&mut m, 100, any("waits")), ["waits on v100"]);
    assert_eq!(handle(&mut m, 100, described("bound")), ["bound on v100"]);
    assert!(handle(&mut m, 101, seen("v100")).is_empty(), "a known type");
    assert!(handle(&mut m, 101, seen("no gpu_type")).is_empty(), "an invalid name");
    // A node with another GPU type joins: jobs without a required type are published again.
    assert_eq!(handle(&mut m, 120, seen("p100")), ["bound on v100", "waits on v100, p100"]);

    // Windows of its class on that type give its prior there.
    let rate = |m: &PredictorMachine| {
        let surface = m.surface(Timestamp::from_s(200), &job("waits")).unwrap();
        let there = surface.by_gpu_type().find(|on| on.gpu_type == "p100").unwrap();
        assert_eq!((there.job.as_str(), there.windows), ("waits", 0));
        there.points.iter().find(|p| p.cap_mw.is_none() && p.gpus == 1).unwrap().steps_per_s
    };
    assert_eq!(rate(&m), None);
    let mut there = window("runs", Some("a"), 0);
    there.gpu_type = "p100".into();
    let published = handle(&mut m, 200, Event::WindowClosed(Box::new(there)));
    // A job without windows has the type of the last window.
    assert!(published.contains(&"waits on p100, v100".to_owned()), "{published:?}");
    assert!(published.contains(&"runs on p100, v100".to_owned()), "{published:?}");
    let rate = rate(&m).unwrap();
    assert!((8.0..12.0).contains(&rate.mean), "{rate:?}");
}
