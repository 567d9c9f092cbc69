//! Use of a budget by a run, per window.

use serde::Serialize;
use wattle_common::Power;
use wattle_placer::power::budget::BudgetController;

/// Use of a budget by a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Spending {
    /// The windows; the last one until the end of the run.
    pub windows: Vec<WindowSpent>,
    /// Peak power of whole nodes.
    pub power_kw_peak: f64,
    /// Time above the power limit; null without a limit.
    pub power_exceeded_s: Option<f64>,
    /// The share of the power limit that was unused while jobs waited, mean over that time; absent: no limit, or no
    /// job waited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_unused_share: Option<f64>,
    /// The share of planning rounds in which the enforcement of the limit changed the policy's plan; absent: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rounds_enforced_share: Option<f64>,
    /// Energy price from 0 (free) to 1 (all jobs at their most efficient operating point), mean
    /// over time.
    pub price_mean: f64,
    /// Time during which admission was closed for lack of energy.
    pub admission_closed_s: f64,
    /// Preemptions because the rest of a window's budget did not suffice even at the lowest power.
    pub preemptions: u32,
}

/// Use of the budget in one window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WindowSpent {
    /// Energy of whole nodes.
    pub energy_kwh: f64,
    /// Emissions; 0 without a carbon series.
    pub carbon_kg: f64,
    /// Overrun, as a share of the budget.
    pub overrun: f64,
}

/// Accumulates [`Spending`].
#[derive(Clone, Debug, Default)]
pub(crate) struct SpendingMeter {
    peak_mw: u64,
    exceeded_us: u64,
    /// Time in which jobs waited below a limit, and the integral of the unused share of the limit.
    waited_us: u64,
    unused_us: f64,
    priced_us: f64,
    admission_closed_us: u64,
    span_us: u64,
    preemptions: u32,
    /// Planning rounds, and those whose plans the enforcement of limits changed.
    rounds: u64,
    rounds_enforced: u64,
}

/// How a budget holds jobs back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    /// The energy price, from 0 to 1.
    pub(crate) position: f64,
    /// Whether it blocks the head of the queue.
    pub(crate) closed: bool,
    /// Whether any job waits.
    pub(crate) waits: bool,
}

impl SpendingMeter {
    /// Adds an interval of constant power.
    pub(crate) fn add(&mut self, power_mw: u64, span_us: u64, limit: Option<Power>, held: Held) {
        let Held { position, closed, waits } = held;
        if span_us == 0 {
            return;
        }
        self.peak_mw = self.peak_mw.max(power_mw);
        if limit.is_some_and(|limit| power_mw > limit.as_mw()) {
            self.exceeded_us += span_us;
        }
        if let Some(limit) = limit.filter(|_| waits) {
            let unused =
                limit.as_mw().saturating_sub(power_mw) as f64 / limit.as_mw().max(1) as f64;
            self.waited_us += span_us;
            self.unused_us += unused * span_us as f64;
        }
        self.priced_us += position * span_us as f64;
        self.admission_closed_us += if closed { span_us } else { 0 };
        self.span_us += span_us;
    }

    /// Adds a planning round.
    pub(crate) fn add_round(&mut self, is_enforced: bool) {
        self.rounds += 1;
        self.rounds_enforced += u64::from(is_enforced);
    }

    /// Adds the preemption of a running job.
    pub(crate) const fn add_preemption(&mut self) {
        self.preemptions += 1;
    }

    /// The totals.
    pub(crate) fn outcome(&self, controller: &BudgetController) -> Spending {
        let rounded = |value: f64| (value * 1e6).round() / 1e6;
        let ledger = controller.ledger();
        let open = Some(ledger.open()).filter(|open| open.energy_j > 0.0);
        let windows = ledger.closed().iter().chain(open).map(|window| WindowSpent {
            energy_kwh: rounded(window.energy_j / 3.6e6),
            carbon_kg: rounded(window.carbon_g / 1e3),
            overrun: rounded(controller.overrun(window)),
        });
        let limited = controller.budget().limits_power();
        Spending {
            windows: windows.collect(),
            power_kw_peak: rounded(self.peak_mw as f64 / 1e6),
            power_exceeded_s: limited.then(|| rounded(self.exceeded_us as f64 / 1e6)),
            power_unused_share: (self.waited_us > 0)
                .then(|| rounded(self.unused_us / self.waited_us as f64)),
            rounds_enforced_share: limited
                .then(|| rounded(self.rounds_enforced as f64 / self.rounds.max(1) as f64)),
            price_mean: rounded(self.priced_us / self.span_us.max(1) as f64),
            admission_closed_s: rounded(self.admission_closed_us as f64 / 1e6),
            preemptions: self.preemptions,
        }
    }
}
