//! Speed and power of a job as measured, by configuration, next to their prediction.

use std::collections::BTreeMap;

use serde::Serialize;
use wattle_common::messages::{Estimate, JobWindow, Prediction, SurfacePoint};
use wattle_common::{Frequency, Power};

use super::label;
use crate::output::{Align, Table};
use crate::quantity::clock;
use wattle_common::time::span_s;

/// A configuration as it is measured.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Configuration {
    /// GPUs on all nodes.
    pub(crate) gpus: u32,
    /// Number of nodes.
    pub(crate) nodes: u32,
    /// The cap in force.
    pub(crate) cap_mw: Option<Power>,
    /// The locked clock.
    pub(crate) clock_mhz_max: Option<Frequency>,
    /// Workloads, else ids, of its co-tenants, sorted.
    pub(crate) neighbours: Vec<String>,
}

impl Configuration {
    fn of(window: &JobWindow) -> Self {
        let name = |neighbour: &wattle_common::messages::Neighbour| match &neighbour.workload {
            Some(workload) => workload.to_string(),
            None => neighbour.job.to_string(),
        };
        let mut neighbours: Vec<String> = window.neighbours.iter().map(name).collect();
        neighbours.sort();
        Self {
            gpus: window.gpus_total,
            nodes: window.nodes_total,
            cap_mw: window.cap_mw,
            clock_mhz_max: window.clock_mhz_max,
            neighbours,
        }
    }

    /// Whether a predicted point holds for this. A point at the default cap names no cap.
    fn is_at(&self, point: &SurfacePoint) -> bool {
        (point.gpus, point.nodes) == (self.gpus, self.nodes)
            && point.clock_mhz_max == self.clock_mhz_max
            && point.cap_mw.is_none_or(|cap| Some(cap) == self.cap_mw)
            && point.neighbours.len() == self.neighbours.len()
    }
}

/// The measured windows of one configuration.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measured {
    /// The configuration.
    #[serde(flatten)]
    pub(crate) configuration: Configuration,
    /// Measured time, seconds.
    pub(crate) span_s: f64,
    /// Mean speed.
    pub(crate) steps_per_s: Option<f64>,
    /// Mean power of one of its GPUs with all co-tenants, watts.
    pub(crate) gpu_power_w: Option<f64>,
    /// The prediction at the placement.
    pub(crate) predicted: Option<SurfacePoint>,
}

/// Sums over the windows of one configuration.
#[derive(Default)]
struct Sums {
    order: usize,
    /// Time of one node.
    span_s: f64,
    rate: (f64, f64),
    power: (f64, f64),
}

fn mean((sum, weight): (f64, f64)) -> Option<f64> {
    (weight > 0.0).then(|| sum / weight)
}

/// The measurements by configuration, in order of their first window.
pub(crate) fn measured(windows: &[JobWindow], prediction: Option<&Prediction>) -> Vec<Measured> {
    let mut found: BTreeMap<Configuration, Sums> = BTreeMap::new();
    for (order, window) in windows.iter().enumerate() {
        let span = window.until_us.since(window.from_us).as_secs_f64();
        let sums = found
            .entry(Configuration::of(window))
            .or_insert_with(|| Sums { order, ..Sums::default() });
        sums.span_s += span / f64::from(window.nodes_total.max(1));
        let rate = match (window.steps_per_s, window.steps) {
            (Some(rate), _) => Some(rate),
            (None, Some(steps)) if span > 0.0 => Some(steps as f64 / span),
            _ => None,
        };
        // An inferred rate counts periods of the power, which need not be steps.
        if let Some(rate) = rate.filter(|_| !window.steps_inferred) {
            sums.rate = (sums.rate.0 + rate * span, sums.rate.1 + span);
        }
        if let Some(power) = window.power_mw_gpus {
            let gpus = window.gpus.len() as f64;
            sums.power = (sums.power.0 + power.as_w() * span, sums.power.1 + gpus * span);
        }
    }
    let mut all: Vec<(Configuration, Sums)> = found.into_iter().collect();
    all.sort_by_key(|(_, sums)| sums.order);
    let points = || {
        let placed = prediction.and_then(|p| p.placed.as_ref());
        placed.into_iter().chain(prediction.into_iter().flat_map(|p| &p.alternatives))
    };
    all.into_iter()
        .map(|(configuration, sums)| Measured {
            predicted: points().find(|point| configuration.is_at(point)).cloned(),
            span_s: sums.span_s,
            steps_per_s: mean(sums.rate),
            gpu_power_w: mean(sums.power),
            configuration,
        })
        .collect()
}

/// A number with three significant digits, without an exponent.
pub(crate) fn three_digits(value: f64) -> String {
    let digits = if value.abs() > 0.0 { value.abs().log10().floor() } else { 0.0 };
    format!("{value:.*}", (2.0 - digits).clamp(0.0, 6.0) as usize)
}

/// An estimate: `10.2 ±11 %`, with half of its 90 % interval.
fn estimate(estimate: &Estimate) -> String {
    let half = (estimate.high - estimate.low) / 2.0 / estimate.mean;
    let percent = 100.0 * half;
    // Below one percent a whole number would claim certainty.
    let digits = usize::from(percent < 0.95);
    format!("{} ±{percent:.digits$} %", three_digits(estimate.mean))
}

/// The table of measured configurations.
pub(crate) fn table(all: &[Measured]) -> Table {
    let mut table = Table::new(&[
        ("CONFIGURATION", Align::Left),
        ("TIME", Align::Right),
        ("STEPS/s", Align::Right),
        ("PREDICTED", Align::Right),
        ("W/GPU", Align::Right),
        ("PREDICTED", Align::Right),
    ]);
    for one in all {
        let here = &one.configuration;
        let predicted = one.predicted.as_ref();
        let neighbours: Vec<&str> = here.neighbours.iter().map(String::as_str).collect();
        table.row(vec![
            label(here.gpus, here.cap_mw, here.clock_mhz_max, &neighbours),
            clock(span_s(one.span_s.max(0.0))),
            one.steps_per_s.map(three_digits).unwrap_or_default(),
            predicted.and_then(|p| p.steps_per_s.as_ref()).map(estimate).unwrap_or_default(),
            one.gpu_power_w.map(|w| format!("{w:.0}")).unwrap_or_default(),
            predicted.map(|p| estimate(&p.gpu_power_w)).unwrap_or_default(),
        ]);
    }
    table
}

/// The deviation of a measured value: `4 % above the prediction`, and whether the interval covers it.
fn deviation(measured: f64, predicted: &Estimate) -> String {
    let percent = 100.0 * (measured - predicted.mean) / predicted.mean;
    let side = if percent < 0.0 { "below" } else { "above" };
    let covered = (predicted.low..=predicted.high).contains(&measured);
    let interval = if covered { "within" } else { "outside" };
    if percent.abs() < 0.5 {
        return "as predicted".to_owned();
    }
    format!("{:.0} % {side} the prediction, {interval} its 90 % interval", percent.abs())
}

/// The newest measured configuration with a prediction, in words.
pub(crate) fn words(all: &[Measured]) -> Vec<String> {
    let Some((one, point)) = all.iter().rev().find_map(|one| Some((one, one.predicted.as_ref()?)))
    else {
        return Vec::new();
    };
    let mut words = Vec::new();
    if let (Some(rate), Some(predicted)) = (one.steps_per_s, &point.steps_per_s) {
        words.push(format!("speed: {}", deviation(rate, predicted)));
    }
    if let Some(watts) = one.gpu_power_w {
        words.push(format!("power: {}", deviation(watts, &point.gpu_power_w)));
    }
    words
}
