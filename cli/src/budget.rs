//! The budget options shared by several commands, and the text form of a budget.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use wattle_common::duration::parse_span;
use wattle_common::duration::span;
use wattle_common::{Budget, Power, PowerSeries, Timestamp};
use wattle_runtime::shell::chain;
use wattle_simulator::input_file::{self, SERIES_BYTES_MAX};

use crate::output::usage;
use crate::quantity::number;

/// The budget options.
#[derive(Args, Clone, Debug, Default)]
pub struct BudgetOptions {
    /// Energy budget per window, whole nodes
    #[arg(long, value_name = "KWH", value_parser = |text: &str| number::<f64>(text, "kWh"))]
    pub energy_kwh: Option<f64>,
    /// Carbon budget per window; needs a carbon intensity series
    #[arg(long, value_name = "KG", value_parser = |text: &str| number::<f64>(text, "kg"))]
    pub carbon_kg: Option<f64>,
    /// Power limit at every instant, whole nodes
    #[arg(long, value_name = "KW", value_parser = |text: &str| number::<f64>(text, "kW"))]
    pub power_kw: Option<f64>,
    /// Power limit over time, whole nodes: time,kw (times of day in UTC, HH:MM, repeated every day) or at_s,kw
    /// (seconds from now on, repeated at its end)
    #[arg(long, value_name = "FILE")]
    pub power_series: Option<PathBuf>,
    /// Length of a window: 90m, 24h, 7d [default: 24h]
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    pub window: Option<Duration>,
}

impl BudgetOptions {
    /// The budget of a simulation; `None` without limits.
    pub fn in_simulation(&self) -> anyhow::Result<Option<Budget>> {
        self.budget(Timestamp::EPOCH)
    }

    /// The budget from `now` on; `None` without limits.
    pub fn budget(&self, now: Timestamp) -> anyhow::Result<Option<Budget>> {
        let Self { energy_kwh, carbon_kg, power_kw, ref power_series, window } = *self;
        let mut budget = Budget::from_human(energy_kwh, carbon_kg, power_kw, window)
            .map_err(|error| usage(error.to_string()))?;
        if let Some(path) = power_series {
            let text = input_file::read(path, SERIES_BYTES_MAX).map_err(|error| {
                let name = path.display();
                usage(format!("cannot read the power limits {name}: {}", chain(&error)))
            })?;
            let series = PowerSeries::parse(&String::from_utf8_lossy(&text), now)
                .map_err(|error| usage(format!("--power-series {}: {error}", path.display())))?;
            budget.power_series = Some(series);
        }
        if budget.is_none() && window.is_some() {
            return Err(usage("--window needs a budget: give --energy-kwh or --carbon-kg"));
        }
        Ok(Some(budget).filter(|budget| !budget.is_none()))
    }
}

/// Formats the limits: `120 kWh and 30 kg per 24 h, at most 9.5 kW`.
pub(crate) fn limits(budget: &Budget) -> String {
    let energy = budget.energy_mj.map(|energy| format!("{} kWh", tidy(energy.as_kwh())));
    let carbon = budget.carbon_ug.map(|carbon| format!("{} kg", tidy(carbon.as_kg())));
    let windowed: Vec<String> = [energy, carbon].into_iter().flatten().collect();
    let mut parts = Vec::new();
    if !windowed.is_empty() {
        let window = span(budget.window().as_secs_f64());
        parts.push(format!("{} per {window}", windowed.join(" and ")));
    }
    if let Some(power) = budget.power_mw {
        parts.push(format!("at most {} kW", kw(power)));
    }
    if let Some(series) = &budget.power_series {
        let (least, most) = series.range();
        let period = span(series.period_s as f64);
        parts.push(format!("at most {} to {} kW over {period}", kw(least), kw(most)));
    }
    if parts.is_empty() { "no limit".to_owned() } else { parts.join(", ") }
}

/// Kilowatts.
pub(crate) fn kw(power: Power) -> f64 {
    tidy(power.as_w() / 1e3)
}

/// Rounded to three decimals.
pub(crate) fn tidy(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}
