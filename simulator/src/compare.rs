//! Policies against each other at equal energy, and against the limit, on scenarios fixed here.
//!
//! Every policy is run over its own knob: the elastic ones over the price of a joule, the others over
//! a fixed clock (AFS over its floor too). What they reach are frontiers of completion time over
//! energy, on which dominated points are left out, and only frontiers are compared, at matched
//! totals ([`crate::frontier`]). Everybody has the same cluster, jobs, sleep rule and horizon. Beside
//! the policies stands the lower bound ([`crate::bound`]) of the same jobs.
//!
//! What it must not do: bend a scenario to a policy, extrapolate, or hide a run that was not good.

mod run;
mod scenarios;
mod table;

use serde::Serialize;

use crate::frontier::Spread;
use crate::outcome::PolicyOutcome;
use crate::simulation::RunOptions;

pub use run::{CompareOptions, Knobs, compare_case};
pub use scenarios::{Case, CompareError, NAMES, cases};
pub use table::to_table;

/// What counts as spent energy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Accounting {
    /// What cards draw above idle; equal, for matching, to everything always on over one horizon.
    AboveIdle,
    /// Whole nodes, awake or asleep, with one sleep rule for every policy.
    SleepAll,
}

impl Accounting {
    /// All there are.
    pub const ALL: [Self; 2] = [Self::AboveIdle, Self::SleepAll];

    /// Its name in options and reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AboveIdle => "above-idle",
            Self::SleepAll => "sleep-all",
        }
    }
}

/// Policies of one case beside each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The scenario's name.
    pub scenario: &'static str,
    /// Offered load.
    pub load: f64,
    /// What counts as spent.
    pub accounting: Accounting,
    /// How neighbours slow each other.
    pub world: &'static str,
    /// Which workloads, where the scenario has variants.
    pub workload: &'static str,
    /// The orders of the jobs over the arrivals.
    pub seeds: Vec<u64>,
    /// Whether the policies saw true surfaces.
    pub oracle: bool,
    /// The tighter lower bound, of the first order.
    pub bounds: Bounds,
    /// Every run.
    pub policies: Vec<Swept>,
    /// Completion times at equal energy: each policy against each other one.
    pub equal_energy: Vec<EqualEnergy>,
    /// How these spread, over totals and orders.
    pub summary: Vec<Summary>,
    /// Distance to the bound, of each frontier point of the first order.
    pub above_bound: Vec<AboveBound>,
}

/// Lower bounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bounds {
    /// The least energy any schedule spends.
    pub energy_kwh: f64,
    /// The least mean completion time any schedule reaches.
    pub jct_s_mean: f64,
    /// Completion time that no schedule goes below, over energy.
    pub frontier: Vec<(f64, f64)>,
    /// The same, were there no other jobs.
    pub alone: Vec<(f64, f64)>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Swept {
    /// What came of it.
    #[serde(flatten)]
    pub outcome: PolicyOutcome,
    /// The policy without its knob.
    pub family: String,
    /// What was turned: a price, or a clock in MHz.
    pub knob: f64,
    /// The order of the jobs.
    pub order: u64,
    /// What counts as spent, kWh over the horizon all runs of an order share.
    pub counted_kwh: f64,
    /// How it was run, besides its jobs and its policy.
    #[serde(skip)]
    pub options: RunOptions,
    /// Spent beyond a budget, as a share; null without one.
    pub budget_overrun: Option<f64>,
}

/// One total on the baseline's frontier.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EqualEnergy {
    /// The policy.
    pub policy: String,
    /// The baseline.
    pub baseline: String,
    /// The order of the jobs.
    pub order: u64,
    /// What both may spend.
    pub energy_kwh: f64,
    /// The baseline's completion time over the policy's; null: the policy does not spend so little.
    pub jct_ratio: Option<f64>,
}

/// A policy against a baseline, over totals and orders.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The policy.
    pub policy: String,
    /// The baseline.
    pub baseline: String,
    /// Over all totals that both reach, in every order.
    pub spread: Option<Spread>,
    /// Totals that the policy does not reach.
    pub not_reachable: usize,
}

/// A frontier point's distance to the bound.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AboveBound {
    /// The policy.
    pub policy: String,
    /// What it spent.
    pub energy_kwh: f64,
    /// Its completion time over the bound's; null where the bound says nobody spends so little.
    pub ratio: Option<f64>,
}
