//! The predicted time and energy of a job's placement and of the alternatives to it.

use std::time::Duration;

use wattle_common::Energy;
use wattle_common::job::JobPhase;
use wattle_common::messages::{JobRecord, Prediction, SurfacePoint};

use super::label;
use super::measured::three_digits;
use crate::output::{Align, Table, span};
use crate::quantity::{EnergyUnit, clock};

/// The work over which alternatives are compared.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Work {
    /// Steps.
    pub(crate) steps: f64,
    /// The work in words: `the 4500 steps that remain`.
    pub(crate) words: String,
}

impl Work {
    /// The remaining steps of a job, all steps of an ended one, or 1000 if the steps are not known.
    pub(crate) fn of(record: &JobRecord) -> Self {
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
#[derive(Clone, Debug)]
struct Cost {
    label: String,
    rate: f64,
    gpu_power_w: f64,
    time_s: f64,
    /// Absent for shared GPUs, whose energy other jobs share.
    energy_j: Option<f64>,
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

    /// Relative to the placement: `58 min later, -7 % energy`.
    fn against(&self, placed: &Self) -> String {
        let later = self.time_s - placed.time_s;
        let time = if later.abs() < 0.005 * placed.time_s {
            "as fast".to_owned()
        } else if later > 0.0 {
            format!("{} later", span(later))
        } else {
            format!("{} sooner", span(-later))
        };
        match (self.energy_j, placed.energy_j) {
            (Some(energy), Some(before)) if before > 0.0 => {
                format!("{time}, {:+.0} % energy", 100.0 * (energy - before) / before)
            }
            _ => time,
        }
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
    if setting(point) != setting(placed) {
        parts.push(match setting(point) {
            (Some(cap), _) => format!("at {:.0} W", cap.as_w()),
            (None, Some(clock)) => format!("at {} MHz", clock.as_mhz()),
            (None, None) => "at default cap and clock".to_owned(),
        });
    }
    if point.neighbours != placed.neighbours {
        let with = neighbours(point);
        parts.push(if with.is_empty() {
            "exclusive".to_owned()
        } else {
            format!("with {}", with.join(", "))
        });
    }
    if parts.is_empty() { label(point.gpus, None, None, &[]) } else { parts.join(", ") }
}

/// The placement first, then the alternatives. Empty if the placement has no predicted speed.
fn costs(prediction: &Prediction, work: &Work) -> Vec<Cost> {
    let Some(placed) = &prediction.placed else { return Vec::new() };
    let own = neighbours(placed);
    let own = label(placed.gpus, placed.cap_mw, placed.clock_mhz_max, &own);
    let Some(first) = Cost::of(placed, own, work.steps) else { return Vec::new() };
    let others = prediction.alternatives.iter();
    let others = others.filter_map(|point| Cost::of(point, difference(point, placed), work.steps));
    std::iter::once(first).chain(others).collect()
}

/// The alternatives in words: the one of least energy and the fastest one.
fn words(costs: &[Cost]) -> Vec<String> {
    let [placed, others @ ..] = costs else { return Vec::new() };
    let mut words = Vec::new();
    let least = others.iter().filter(|cost| cost.energy_j.is_some());
    let least = least
        .min_by(|a, b| a.energy_j.unwrap_or_default().total_cmp(&b.energy_j.unwrap_or_default()));
    if let (Some(least), Some(before)) = (least, placed.energy_j) {
        words.push(if least.energy_j.is_some_and(|energy| energy < before) {
            format!("least energy: {}: {}", least.label, least.against(placed))
        } else {
            "least energy: its placement".to_owned()
        });
    }
    if let Some(fastest) = others.iter().min_by(|a, b| a.time_s.total_cmp(&b.time_s)) {
        words.push(if fastest.time_s < placed.time_s {
            format!("fastest: {}: {}", fastest.label, fastest.against(placed))
        } else {
            "fastest: its placement".to_owned()
        });
    }
    words
}

/// The section of the alternatives; empty without a predicted speed of the placement.
pub(crate) fn section(prediction: &Prediction, work: &Work, placed: &str) -> String {
    let costs = costs(prediction, work);
    let Some((first, others)) = costs.split_first().filter(|(_, others)| !others.is_empty()) else {
        return String::new();
    };
    let joules = |cost: &Cost| cost.energy_j.map(|j| Energy::from_mj((j * 1e3) as u64));
    let unit = EnergyUnit::of(costs.iter().filter_map(joules).max().unwrap_or_default());
    let heading = if unit.name() == "kWh" { "kWh" } else { "Wh" };
    let mut table = Table::new(&[
        ("CONFIGURATION", Align::Left),
        ("STEPS/s", Align::Right),
        ("W/GPU", Align::Right),
        ("TIME", Align::Right),
        (heading, Align::Right),
        ("AGAINST", Align::Left),
    ]);
    for (cost, against) in std::iter::once((first, placed.to_owned()))
        .chain(others.iter().map(|cost| (cost, cost.against(first))))
    {
        table.row(vec![
            cost.label.clone(),
            three_digits(cost.rate),
            format!("{:.0}", cost.gpu_power_w),
            clock(Duration::try_from_secs_f64(cost.time_s).unwrap_or_default()),
            joules(cost).map(|energy| unit.number(energy)).unwrap_or_default(),
            against,
        ]);
    }
    let lines = words(&costs).join("\n");
    format!("{lines}\n{}", table.fit(0, crate::quantity::WIDTH).render(false))
}
