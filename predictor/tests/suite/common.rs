//! Windows of a synthetic job, whose formulas differ from those of the models.
#![allow(dead_code, reason = "each test file uses its part")]

use std::time::Duration;

use wattle_common::id::WorkloadId;
use wattle_common::messages::{JobWindow, Surface, SurfacePoint};
use wattle_common::rng::Stream;
use wattle_common::{Frequency, Power, Timestamp};
use wattle_predictor::configurations::Configuration;
pub(crate) use wattle_testkit::{job, workload as class};
use wattle_testkit::{job_window, neighbour};

/// One exclusive GPU at the default setting, with the job's own batch.
pub(crate) fn one_gpu() -> Configuration {
    Configuration {
        gpus: 1,
        nodes: 1,
        cap: None,
        clock_max: None,
        global_batch: None,
        neighbours: Vec::new(),
    }
}

/// Response of a synthetic job to a cap: time rises as a power of the cap below its power; power is the
/// soft minimum of its demand and a little less than the cap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Truth {
    pub(crate) rate: f64,
    pub(crate) demand_w: f64,
    pub(crate) steepness: f64,
    pub(crate) busy: f64,
}

impl Truth {
    pub(crate) fn speed(&self, cap_w: f64) -> f64 {
        let over = (self.demand_w / cap_w).powf(4.0);
        1.0 / (1.0 + self.steepness * (over - (self.demand_w / 250.0).powf(4.0)).max(0.0))
    }

    pub(crate) fn power(&self, cap_w: f64) -> f64 {
        let soft = self.demand_w.powf(-12.0) + (0.97 * cap_w).powf(-12.0);
        soft.powf(-1.0 / 12.0)
    }
}

/// One GPU of one job for one minute.
pub(crate) fn window(job_id: &str, workload: Option<&str>, minute: u64) -> JobWindow {
    let from = Timestamp::from_s(60 * minute);
    JobWindow {
        workload: workload.map(class),
        ..job_window(job_id, from, from + Duration::from_secs(60))
    }
}

/// Two windows at a free clock, then two under a lock at 1,050 MHz: 0.855 of the speed at 150 W.
pub(crate) fn windows_under_a_lock(job_id: &str) -> [JobWindow; 4] {
    [
        (1, None, 10.0, 200),
        (2, None, 10.1, 201),
        (3, Some(1_050), 8.6, 150),
        (4, Some(1_050), 8.5, 149),
    ]
    .map(|(minute, clock, rate, watts)| JobWindow {
        clock_mhz_mean: Some(Frequency::from_mhz(clock.unwrap_or(1_380))),
        clock_mhz_max: clock.map(Frequency::from_mhz),
        steps_per_s: Some(rate),
        power_mw_gpus: Some(Power::from_w(watts)),
        ..window(job_id, None, minute)
    })
}

/// Window of `truth` under a cap, with noise on rate and power.
pub(crate) fn seen(
    truth: &Truth,
    job_id: &str,
    minute: u64,
    cap_w: f64,
    noise: f64,
    rng: &mut Stream,
) -> JobWindow {
    let mut seen = window(job_id, Some("invented"), minute);
    seen.cap_mw = Some(Power::from_w(cap_w as u64));
    seen.steps_per_s = Some(truth.rate * truth.speed(cap_w) * (noise * rng.normal()).exp());
    seen.steps_per_s_error = Some(1.645 * noise);
    seen.power_mw_gpus = Some(Power::from_w_f64(truth.power(cap_w) * (noise * rng.normal()).exp()));
    seen.utilization_gpu_percent = Some(100.0 * truth.busy);
    seen.utilization_gpu_percent_job = Some(100.0 * truth.busy);
    seen
}

/// The same window with neighbours.
pub(crate) fn colocated(mut window: JobWindow, neighbours: &[&str]) -> JobWindow {
    window.neighbours =
        neighbours.iter().map(|n| neighbour(&format!("job-{n}"), Some(n))).collect();
    window
}

/// Point of a surface on one GPU with a cap and neighbours.
pub(crate) fn point<'a>(
    surface: &'a Surface,
    cap_w: Option<u64>,
    neighbours: &[&str],
) -> &'a SurfacePoint {
    let wanted: Vec<WorkloadId> = neighbours.iter().map(|n| class(n)).collect();
    surface
        .points
        .iter()
        .find(|p| p.gpus == 1 && p.cap_mw == cap_w.map(Power::from_w) && p.neighbours == wanted)
        .unwrap_or_else(|| panic!("no point at {cap_w:?} with {neighbours:?}"))
}
