//! The options that say what may be spent, the same for every command that takes them.

use std::time::Duration;

use clap::Args;
use wattle_common::Budget;

use crate::commands::submit::parse_span;
use crate::output::usage;

/// What may be spent.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct BudgetOptions {
    /// Energy that may be spent in each window, whole nodes
    #[arg(long, value_name = "KWH")]
    pub(crate) energy_kwh: Option<f64>,
    /// Carbon that may be emitted in each window; needs a grid's carbon intensity
    #[arg(long, value_name = "KG")]
    pub(crate) carbon_kg: Option<f64>,
    /// Power that is never exceeded, whole nodes
    #[arg(long, value_name = "KW")]
    pub(crate) power_kw: Option<f64>,
    /// How long a window is: 90m, 24h, 7d [default: 24h]
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    pub(crate) window: Option<Duration>,
}

impl BudgetOptions {
    /// The budget, where one is asked for.
    pub(crate) fn budget(&self) -> anyhow::Result<Option<Budget>> {
        let Self { energy_kwh, carbon_kg, power_kw, window } = *self;
        let budget = Budget::from_human(energy_kwh, carbon_kg, power_kw, window)
            .map_err(|error| usage(error.to_string()))?;
        if budget.is_none() && window.is_some() {
            return Err(usage(
                "--window says how long a budget lasts; give one: --energy-kwh or --carbon-kg",
            ));
        }
        Ok(Some(budget).filter(|budget| !budget.is_none()))
    }
}
