//! What a run spent of its budget, window by window.

use serde::Serialize;
use wattle_common::Power;
use wattle_placer::power::budget::BudgetController;

/// What a run spent of its budget.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Spending {
    /// Each window, the last one as far as the run went.
    pub windows: Vec<WindowSpent>,
    /// The most that was drawn at one instant, whole nodes.
    pub power_kw_peak: f64,
    /// For how long more was drawn than may be; null without a limit.
    pub power_exceeded_s: Option<f64>,
    /// The price of energy, from 0 (free) to 1 (all are at their thriftiest), mean over time.
    pub price_mean: f64,
    /// For how long nothing new was started for want of energy.
    pub held_back_s: f64,
    /// How often a running job was paused, since even at the thriftiest the rest of a window's budget
    /// would not have fed it.
    pub pauses: u32,
}

/// What was spent in one window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WindowSpent {
    /// Whole nodes.
    pub energy_kwh: f64,
    /// Emissions; 0 without a carbon series.
    pub carbon_kg: f64,
    /// Spent beyond the budget, as a share of it.
    pub overrun: f64,
}

/// Counts what [`Spending`] tells.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watch {
    peak_mw: u64,
    exceeded_us: u64,
    priced_us: f64,
    held_us: u64,
    span_us: u64,
    pauses: u32,
}

impl Watch {
    /// So much was drawn for a while, at a price.
    pub(crate) fn saw(
        &mut self,
        power_mw: u64,
        span_us: u64,
        most: Option<Power>,
        position: f64,
        held: bool,
    ) {
        if span_us == 0 {
            return;
        }
        self.peak_mw = self.peak_mw.max(power_mw);
        if most.is_some_and(|most| power_mw > most.as_mw()) {
            self.exceeded_us += span_us;
        }
        self.priced_us += position * span_us as f64;
        self.held_us += if held { span_us } else { 0 };
        self.span_us += span_us;
    }

    /// A running job was paused.
    pub(crate) const fn paused(&mut self) {
        self.pauses += 1;
    }

    /// What came of it.
    pub(crate) fn outcome(&self, steering: &BudgetController) -> Spending {
        let tidy = |value: f64| (value * 1e6).round() / 1e6;
        let ledger = steering.ledger();
        let open = Some(ledger.open()).filter(|open| open.energy_j > 0.0);
        let windows = ledger.closed().iter().chain(open).map(|window| WindowSpent {
            energy_kwh: tidy(window.energy_j / 3.6e6),
            carbon_kg: tidy(window.carbon_g / 1e3),
            overrun: tidy(steering.overrun(window)),
        });
        let limited = steering.budget().power_mw.is_some();
        Spending {
            windows: windows.collect(),
            power_kw_peak: tidy(self.peak_mw as f64 / 1e6),
            power_exceeded_s: limited.then(|| tidy(self.exceeded_us as f64 / 1e6)),
            price_mean: tidy(self.priced_us / self.span_us.max(1) as f64),
            held_back_s: tidy(self.held_us as f64 / 1e6),
            pauses: self.pauses,
        }
    }
}
