//! Windows and process measurements for the benchmarks.
#![allow(dead_code, reason = "each benchmark uses its part")]

use std::time::Duration;

use wattle_common::messages::JobWindow;
use wattle_common::{Power, Timestamp};
use wattle_predictor::PredictorConfig;
use wattle_predictor::method::Method;
use wattle_predictor::predictor::Predictor;
use wattle_testkit::{job_window, neighbour, workload};

pub(crate) const METHODS: [Method; 2] = [Method::Physical, Method::Statistical];

pub(crate) fn now(minute: u64) -> Timestamp {
    Timestamp::from_s(60 * minute + 60)
}

pub(crate) fn predictor(method: Method) -> Predictor {
    Predictor::new(PredictorConfig { method, ..PredictorConfig::shipped() })
}

/// A minute of a job: a third of them free, a third under caps, a third co-located with a neighbour.
pub(crate) fn window_of(job: &str, class: &str, minute: u64) -> JobWindow {
    let from = Timestamp::from_s(60 * minute);
    // A rate by class, and small deterministic noise.
    let of_class = class.bytes().map(u64::from).sum::<u64>() % 17;
    let noise = 1.0 + 0.01 * ((minute * 7 + of_class) % 5) as f64;
    let cap_w = if minute % 3 == 1 { [150, 200, 125, 175][(minute / 3 % 4) as usize] } else { 250 };
    let power_w = (120.0 + 6.0 * of_class as f64).min(0.97 * cap_w as f64);
    let speed = (cap_w as f64 / 250.0).powf(0.3) * if minute % 3 == 2 { 0.8 } else { 1.0 };
    JobWindow {
        workload: Some(workload(class)),
        gpus: vec![0, 1],
        gpus_total: 2,
        cap_mw: Some(Power::from_w(cap_w)),
        neighbours: if minute % 3 == 2 {
            vec![neighbour("other", Some("class-7"))]
        } else {
            Vec::new()
        },
        steps: Some(600),
        steps_per_s: Some((1.0 + of_class as f64) * speed * noise),
        steps_per_s_error: Some(0.02),
        early: false,
        power_mw_gpus: Some(Power::from_w_f64(2.0 * power_w * noise)),
        utilization_gpu_percent: Some(30.0 + 4.0 * of_class as f64),
        utilization_gpu_percent_job: Some(30.0 + 4.0 * of_class as f64),
        utilization_memory_percent: Some(2.0 * of_class as f64),
        memory_mib_max_job: Some(9_000),
        ..job_window(job, from, from + Duration::from_secs(60))
    }
}

/// Processor time of this process, seconds.
pub(crate) fn processor_s() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let spent: Option<f64> = text.split_whitespace().next().and_then(|ns| ns.parse().ok());
    spent.expect("Linux counts it") / 1e9
}

/// A figure of this process's memory, MB.
pub(crate) fn megabytes(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap_or_default();
    line.split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse().ok())
        .map_or(0, |kib: u64| kib / 1_000)
}
