//! A registry with two predictors and one job, and what they send it.

use std::time::Duration;

use wattle_common::job::GpuRequest;
use wattle_common::messages::{Estimate, JobWindow, PredictorStatus, Surface, SurfacePoint};
use wattle_common::{AdmissionId, Machine, Power, Timestamp};
use wattle_registry::RegistryConfig;
use wattle_registry::{Action, Event, Registry};
use wattle_testkit::{job, job_window, predictor as named};

pub(crate) fn at(seconds: u64) -> Timestamp {
    Timestamp::from_s(1_000 + seconds)
}

pub(crate) fn estimate(mean: f64) -> Estimate {
    wattle_testkit::estimate(mean, 0.05)
}

/// A surface of one GPU under some caps: (watts, steps per second, watts of the GPU).
pub(crate) fn surface(
    name: &str,
    of: &str,
    when: Timestamp,
    caps: &[(Option<u64>, f64, f64)],
) -> Surface {
    let point = |(cap, rate, power): &(Option<u64>, f64, f64)| SurfacePoint {
        cap_mw: cap.map(Power::from_w),
        steps_per_s: Some(estimate(*rate)),
        relative_speed: estimate(0.9),
        gpu_power_w: estimate(*power),
        ..wattle_testkit::point(1, *rate, *power)
    };
    Surface {
        predictor: named(name),
        at_us: when,
        windows: 1,
        ..wattle_testkit::surface(of, "v100", caps.iter().map(point))
    }
}

pub(crate) fn on(kind: &str, surface: Surface) -> Surface {
    Surface { gpu_type: kind.into(), ..surface }
}

/// A window of ten steps per second and 180 W under a cap, closed at `until`.
pub(crate) fn closed(of: &str, until: Timestamp, cap: u64) -> JobWindow {
    let from = until - Duration::from_secs(15);
    JobWindow { cap_mw: Some(Power::from_w(cap)), ..job_window(of, from, until) }
}

pub(crate) struct Bench {
    pub(crate) registry: Registry,
    pub(crate) out: Vec<Action>,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let config =
            RegistryConfig { jobs_scored_max: 4, jobs_max: 8, ..RegistryConfig::shipped() };
        let mut bench =
            Self { registry: Registry::new(at(0), config, None, Vec::new()), out: Vec::new() };
        bench.found(0, &["physical", "rival"]);
        bench.describe(0, "a");
        bench
    }

    pub(crate) fn event(&mut self, seconds: u64, event: Event) {
        self.registry.handle(at(seconds), event, &mut self.out);
    }

    pub(crate) fn found(&mut self, seconds: u64, names: &[&str]) {
        let found = names.iter().map(|name| (named(name), "1.2.3".to_owned())).collect();
        self.event(seconds, Event::ServicesFound(found));
    }

    pub(crate) fn describe(&mut self, seconds: u64, name: &str) {
        self.describe_submission(seconds, name, None);
    }

    pub(crate) fn describe_submission(
        &mut self,
        seconds: u64,
        name: &str,
        admission: Option<AdmissionId>,
    ) {
        let gpus = GpuRequest::exactly(1);
        let event = Event::JobDescribed {
            job: job(name),
            admission,
            workload: None,
            gpus,
            gpu_type: None,
            started: false,
        };
        self.event(seconds, event);
    }

    pub(crate) fn propose(&mut self, seconds: u64, surface: Surface) {
        let (predictor, job) = (surface.predictor.clone(), surface.job.clone());
        let surface = Ok(Box::new(surface));
        self.event(seconds, Event::Proposed { predictor, job, surface });
    }

    pub(crate) fn close(&mut self, seconds: u64, window: JobWindow) {
        self.event(seconds, Event::WindowClosed(Box::new(window)));
    }

    pub(crate) fn wake(&mut self, seconds: u64) {
        self.registry.wake(at(seconds), &mut self.out);
    }

    /// The surfaces written for the placer since the last call.
    pub(crate) fn written(&mut self) -> Vec<Surface> {
        let written = self.out.drain(..).filter_map(|action| match action {
            Action::WriteSurface(surface) => Some(*surface),
            _ => None,
        });
        written.collect()
    }

    pub(crate) fn status(&self, seconds: u64, name: &str) -> PredictorStatus {
        self.registry.status(at(seconds), &named(name)).unwrap()
    }
}
