//! The predicted time and energy of a job's placement and of the alternatives to it.

use serde::Serialize;
use wattle_common::job::JobPhase;
use wattle_common::messages::{JobRecord, Prediction, SurfacePoint};

use crate::label;

/// The work over which alternatives are compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// Steps.
    pub steps: f64,
    /// The work in words: `the 4500 steps that remain`.
    pub words: String,
}

impl Work {
    /// The remaining steps of a job, all steps of an ended one, or 1000 if the steps are not known.
    pub fn of(record: &JobRecord) -> Self {
        let done = record.step.unwrap_or(0);
        if record.phase.is_final() {
            let steps = match record.phase {
                JobPhase::Finished => record.steps_total.or(record.step),
                _ => record.step,
            };
            if let Some(steps) = steps.filter(|steps| *steps > 0) {
                return Self { steps: steps as f64, words: format!("its {steps} steps") };
            }
        } else if let Some(left) = record.steps_total.map(|total| total.saturating_sub(done))
            && left > 0
        {
            let words = if done == 0 {
                format!("its {left} steps")
            } else {
                format!("the {left} steps that remain")
            };
            return Self { steps: left as f64, words };
        }
        Self { steps: 1_000.0, words: "1000 steps".to_owned() }
    }
}

/// Time and energy of one configuration for some work.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// The configuration, or how it differs from the placement.
    pub label: String,
    /// Predicted steps per second.
    pub rate: f64,
    /// Predicted power of one GPU with all jobs on it, watts.
    pub gpu_power_w: f64,
    /// Time for the work, seconds.
    pub time_s: f64,
    /// Energy of its GPUs for the work, joules; absent for shared GPUs, whose energy other jobs share.
    pub energy_j: Option<f64>,
}

impl Cost {
    /// The cost of a point; `None` without an absolute speed.
    fn of(point: &SurfacePoint, label: String, steps: f64) -> Option<Self> {
        let rate = point.steps_per_s?.mean;
        if !(rate > 0.0 && rate.is_finite()) {
            return None;
        }
        let (time_s, gpu_power_w) = (steps / rate, point.gpu_power_w.mean);
        let exclusive = point.neighbours.is_empty();
        let energy_j = exclusive.then(|| gpu_power_w * f64::from(point.gpus) * time_s);
        Some(Self { label, rate, gpu_power_w, time_s, energy_j })
    }
}

/// The workloads of a point's co-tenants.
fn neighbours(point: &SurfacePoint) -> Vec<&str> {
    let name = |class: &str| class == wattle_common::observation::UNKNOWN;
    let classes = point.neighbours.iter().map(wattle_common::WorkloadId::as_str);
    classes.map(|class| if name(class) { "another job" } else { class }).collect()
}

/// How an alternative differs from the placement: `4 GPUs`, `at 150 W`, `with bert-b8`.
fn difference(point: &SurfacePoint, placed: &SurfacePoint) -> String {
    let setting = |p: &SurfacePoint| (p.cap_mw, p.clock_mhz_max);
    let mut parts = Vec::new();
    if point.gpus != placed.gpus {
        parts.push(label(point.gpus, None, None, &[]));
    }
    // Co-tenants before the setting: a narrow table cuts the end.
    if point.neighbours != placed.neighbours {
        let with = neighbours(point);
        parts.push(if with.is_empty() {
            "exclusive".to_owned()
        } else {
            format!("with {}", with.join(", "))
        });
    }
    if setting(point) != setting(placed) {
        parts.push(match setting(point) {
            (Some(cap), _) => format!("at {:.0} W", cap.as_w()),
            (None, Some(clock)) => format!("at {} MHz", clock.as_mhz()),
            (None, None) => "at defaults".to_owned(),
        });
    }
    if parts.is_empty() { label(point.gpus, None, None, &[]) } else { parts.join(", ") }
}

/// The placement first, then the alternatives. Empty if the placement has no predicted speed.
#[must_use]
pub fn costs(prediction: &Prediction, work: &Work) -> Vec<Cost> {
    let Some(placed) = &prediction.placed else { return Vec::new() };
    let own = neighbours(placed);
    let own = label(placed.gpus, placed.cap_mw, placed.clock_mhz_max, &own);
    let Some(first) = Cost::of(placed, own, work.steps) else { return Vec::new() };
    let others = prediction.alternatives.iter();
    let others = others.filter_map(|point| Cost::of(point, difference(point, placed), work.steps));
    std::iter::once(first).chain(others).collect()
}
