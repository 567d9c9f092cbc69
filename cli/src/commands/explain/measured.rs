//! The measured speed and power of a job as text, next to their prediction.

use wattle_common::messages::Estimate;
use wattle_common::time::span_s;
use wattle_view::label;
use wattle_view::measured::Measured;

use crate::output::{Align, Table};
use crate::quantity::clock;

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
