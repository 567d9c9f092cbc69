//! Speed and power of a job as measured, by configuration, next to their prediction.

use std::collections::BTreeMap;

use serde::Serialize;
use wattle_common::messages::{JobWindow, Prediction, SurfacePoint};
use wattle_common::{Frequency, Power};

/// A configuration as it is measured.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Configuration {
    /// GPUs on all nodes.
    pub gpus: u32,
    /// Number of nodes.
    pub nodes: u32,
    /// The cap in force.
    pub cap_mw: Option<Power>,
    /// The locked clock.
    pub clock_mhz_max: Option<Frequency>,
    /// Workloads, else ids, of its co-tenants, sorted.
    pub neighbours: Vec<String>,
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

    /// Whether a predicted point holds for this. A point at the default cap names no cap, so it holds for
    /// `highest`, the highest cap that a measurement or a prediction of the job has.
    fn is_at(&self, point: &SurfacePoint, highest: Option<Power>) -> bool {
        (point.gpus, point.nodes) == (self.gpus, self.nodes)
            && point.clock_mhz_max == self.clock_mhz_max
            && point.cap_mw.or(highest) == self.cap_mw.or(highest)
            && point.neighbours.len() == self.neighbours.len()
    }
}

/// The measured windows of one configuration.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// The configuration.
    #[serde(flatten)]
    pub configuration: Configuration,
    /// Measured time, seconds.
    pub span_s: f64,
    /// Mean speed.
    pub steps_per_s: Option<f64>,
    /// Mean power of one of its GPUs with all co-tenants, watts.
    pub gpu_power_w: Option<f64>,
    /// The prediction at the placement.
    pub predicted: Option<SurfacePoint>,
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
pub fn measured(windows: &[JobWindow], prediction: Option<&Prediction>) -> Vec<Measured> {
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
    let caps = all.iter().map(|(at, _)| at.cap_mw).chain(points().map(|point| point.cap_mw));
    let highest = caps.flatten().max();
    all.into_iter()
        .map(|(configuration, sums)| Measured {
            predicted: points().find(|point| configuration.is_at(point, highest)).cloned(),
            span_s: sums.span_s,
            steps_per_s: mean(sums.rate),
            gpu_power_w: mean(sums.power),
            configuration,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use wattle_common::Timestamp;
    use wattle_testkit as testkit;

    use super::*;

    #[test]
    fn a_prediction_at_the_default_cap_holds_for_no_lower_cap() {
        let window = |watts| {
            let (from, until) = (Timestamp::from_s(60), Timestamp::from_s(120));
            JobWindow {
                gpus: vec![0, 1],
                gpus_total: 2,
                nodes_total: 1,
                cap_mw: Some(Power::from_w(watts)),
                clock_mhz_max: None,
                neighbours: Vec::new(),
                ..testkit::job_window("a", from, until)
            }
        };
        let capped = |watts: u64| SurfacePoint {
            cap_mw: Some(Power::from_w(watts)),
            ..testkit::point(2, 1.5, watts as f64)
        };
        let prediction = Prediction {
            at_us: Timestamp::from_s(60),
            predictor: testkit::predictor("physical"),
            gpu_type: "v100".to_owned(),
            windows: 3,
            basis: None,
            placed: Some(testkit::point(2, 2.0, 210.0)),
            alternatives: vec![capped(125), capped(175)],
        };
        let all = measured(&[window(250), window(125), window(150)], Some(&prediction));
        let caps = |one: &Measured| one.predicted.as_ref().map(|point| point.cap_mw);
        let expected = [Some(None), Some(Some(Power::from_w(125))), None];
        assert_eq!(all.iter().map(caps).collect::<Vec<_>>(), expected);
    }
}
