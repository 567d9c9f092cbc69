//! Comparison of policies at equal energy, and with lower bounds, on fixed scenarios.
//!
//! Every policy is run over its tuning parameter: PowerFlow, GreenFlow and Wattle over the energy
//! price, the others over a fixed clock (AFS over its floor too). Policies are compared by their
//! frontiers of completion time over energy, at equal totals ([`crate::frontier`]). All policies have
//! the same cluster, jobs and horizon, and the same sleep rule unless the accounting differs. The
//! lower bounds ([`crate::bound`]) are for the same jobs in the same world.
//!
//! Below power limits each policy is run as it is, at several limits, and compared with the bound and with
//! the other policies at each limit ([`LimitComparison`]).
//!
//! Scenarios are not tuned to a policy, nothing is extrapolated, and all runs are reported.

mod judge;
mod limit_table;
mod limits;
mod options;
mod power_limits;
mod run;
mod scenarios;
mod table;
mod waterfall;

use serde::Serialize;

use wattle_saving::spread::ChangeSpread;
use wattle_saving::spread::RatioSpread;
use wattle_simulator::PolicyOutcome;
use wattle_simulator::RunOptions;

pub use limit_table::limits_table;
pub use options::{
    Accounting, CompareOptions, Knobs, Neighbours, SurfaceError, Surfaces, policy_of,
};
pub use power_limits::{LimitComparison, LimitRun, LimitSummary, SHARES};
pub use run::Comparer;
pub use scenarios::{
    Case, CaseFilter, CompareError, JobSequences, NAMES, POWER_LIMITS, Worlds, cases, policies,
};
pub use table::{Form, side_by_side, to_table, waterfall_table};
pub use waterfall::Cause;

/// The comparison of policies on one case.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The scenario's name.
    pub scenario: &'static str,
    /// Offered load.
    pub load: f64,
    /// The energy that counts.
    pub accounting: Accounting,
    /// The co-location model; `alone` without sharing.
    pub world: Neighbours,
    /// The variant of the workloads, where the scenario has several.
    pub workload: &'static str,
    /// Whether some jobs have deadlines.
    pub deadlines: bool,
    /// The orders of the jobs, or the draws.
    pub seeds: Vec<u64>,
    /// Jobs of the first order.
    pub jobs: usize,
    /// Whether the surfaces were true.
    pub oracle: bool,
    /// The surfaces that policies received.
    pub surfaces: Surfaces,
    /// Knowledge of job lengths: `known`, `reported`, `unknown` or `past`.
    pub lengths: &'static str,
    /// Horizon of the first order, seconds.
    pub horizon_s: f64,
    /// Lower bounds of the first order.
    pub bounds: Bounds,
    /// Every run.
    pub policies: Vec<Swept>,
    /// Completion times at equal energy, for each pair of policies.
    pub equal_energy: Vec<EqualEnergy>,
    /// The same at equal emissions; empty without a carbon series.
    pub equal_carbon: Vec<EqualCarbon>,
    /// Spreads of these ratios over totals and orders.
    pub summary: Vec<Summary>,
    /// Distance to the bound, of each frontier point of the first order.
    pub above_bound: Vec<AboveBound>,
    /// The same over emissions; empty without a carbon series.
    pub above_carbon_bound: Vec<AboveCarbonBound>,
    /// Untuned policies against the first of them.
    pub untuned: Vec<Untuned>,
    /// Causes of the distance to the bound, of the requested policies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waterfalls: Vec<Waterfall>,
    /// Notes.
    pub notes: Vec<String>,
}

/// Causes of a policy's distance to the bound, at equal energy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Waterfall {
    /// The policy.
    pub policy: String,
    /// Number of compared energies over all orders; 0 where no energy is reached by all lines.
    pub totals: usize,
    /// From the bound without contention to the policy's own run; the added times sum up to the last
    /// one's completion time.
    pub causes: Vec<Cause>,
}

/// Lower bounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bounds {
    /// Least energy of any schedule.
    pub energy_kwh: f64,
    /// Least mean completion time of any schedule.
    pub jct_s_mean: f64,
    /// The bound with contention, over energy.
    pub frontier: Vec<(f64, f64)>,
    /// The bound without contention.
    pub alone: Vec<(f64, f64)>,
    /// Least emissions of any schedule, where there is a carbon series.
    pub carbon_kg: Option<f64>,
    /// The bound over emissions in kg; empty without a carbon series.
    pub carbon_frontier: Vec<(f64, f64)>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Swept {
    /// The outcome.
    #[serde(flatten)]
    pub outcome: PolicyOutcome,
    /// The policy without its tuning parameter.
    pub family: String,
    /// The tuning parameter: an energy price, or a clock in MHz; 0 without one, as under `+zeus`.
    pub knob: f64,
    /// The order of the jobs.
    pub order: u64,
    /// Counted energy over the order's horizon, kWh.
    pub counted_kwh: f64,
    /// Counted emissions over the horizon, kg; null without a carbon series.
    pub counted_kg: Option<f64>,
    /// The options of the run.
    #[serde(skip)]
    pub options: RunOptions,
    /// Overrun of a budget, as a share; null without one.
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
    /// The energy of both.
    pub energy_kwh: f64,
    /// The baseline's mean completion time over the policy's; null where the policy does not reach
    /// the energy.
    pub jct_ratio: Option<f64>,
    /// The same of the medians, at the same settings.
    pub jct_p50_ratio: Option<f64>,
    /// The same of the 99th percentiles, at the same settings.
    pub jct_p99_ratio: Option<f64>,
}

/// One total of emissions on the baseline's frontier.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EqualCarbon {
    /// The policy.
    pub policy: String,
    /// The baseline.
    pub baseline: String,
    /// The order of the jobs.
    pub order: u64,
    /// The emissions of both.
    pub carbon_kg: f64,
    /// As in [`EqualEnergy`].
    pub jct_ratio: Option<f64>,
}

/// A policy against a baseline, over totals and orders.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The policy.
    pub policy: String,
    /// The baseline.
    pub baseline: String,
    /// Over the totals that both reach, in all orders.
    pub spread: Option<RatioSpread>,
    /// The same of the medians.
    pub spread_p50: Option<RatioSpread>,
    /// The same of the 99th percentiles.
    pub spread_p99: Option<RatioSpread>,
    /// At equal emissions.
    pub spread_carbon: Option<RatioSpread>,
    /// Number of compared energies.
    pub totals: usize,
    /// Number of these that the policy does not reach.
    pub not_reachable: usize,
}

/// A frontier point's distance to the bounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AboveBound {
    /// The policy.
    pub policy: String,
    /// Its energy.
    pub energy_kwh: f64,
    /// Ratio of its completion time to the bound; null below the bound's least energy.
    pub ratio: Option<f64>,
    /// Ratio to the bound without contention.
    pub ratio_alone: Option<f64>,
}

/// A frontier point's distance to the bound on emissions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AboveCarbonBound {
    /// The policy.
    pub policy: String,
    /// Its emissions.
    pub carbon_kg: f64,
    /// Ratio of its completion time to the bound; null below the bound's least emissions.
    pub ratio: Option<f64>,
}

/// A policy at the top clock against the first of them: relative changes over the orders.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Untuned {
    /// The policy.
    pub policy: String,
    /// The policy it is compared with.
    pub baseline: String,
    /// Counted energy.
    pub energy: Option<ChangeSpread>,
    /// Mean time on GPUs.
    pub runtime: Option<ChangeSpread>,
    /// Mean time from submission to completion.
    pub jct: Option<ChangeSpread>,
    /// Mean number of nodes with a job.
    pub active_nodes: Option<ChangeSpread>,
    /// Jobs that missed their deadline, of all jobs, mean over the orders.
    pub missed_share: f64,
}
