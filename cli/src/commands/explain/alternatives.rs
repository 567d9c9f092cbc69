//! The predicted time and energy of the alternatives to a job's placement, as text.

use std::time::Duration;

use wattle_common::Energy;
use wattle_common::duration::span;
use wattle_common::messages::Prediction;
use wattle_view::alternatives::{Cost, Work, costs};

use super::measured::three_digits;
use crate::output::{Align, Table};
use crate::quantity::{EnergyUnit, clock};

/// Relative to the placement: `58 min later, -7 % energy`.
fn against(cost: &Cost, placed: &Cost) -> String {
    let later = cost.time_s - placed.time_s;
    let time = if later.abs() < 0.005 * placed.time_s {
        "as fast".to_owned()
    } else if later > 0.0 {
        format!("{} later", span(later))
    } else {
        format!("{} sooner", span(-later))
    };
    match (cost.energy_j, placed.energy_j) {
        (Some(energy), Some(before)) if before > 0.0 => {
            format!("{time}, {:+.0} % energy", 100.0 * (energy - before) / before)
        }
        _ => time,
    }
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
            format!("least energy: {}: {}", least.label, against(least, placed))
        } else {
            "least energy: its placement".to_owned()
        });
    }
    if let Some(fastest) = others.iter().min_by(|a, b| a.time_s.total_cmp(&b.time_s)) {
        words.push(if fastest.time_s < placed.time_s {
            format!("fastest: {}: {}", fastest.label, against(fastest, placed))
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
        .chain(others.iter().map(|cost| (cost, against(cost, first))))
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
