//! Policies against each other at equal energy, and against the limit, on scenarios fixed here.
//!
//! Every policy is run over its own knob: the elastic ones over the price of a joule, the others
//! over a fixed clock (AFS over its floor too). What they reach are frontiers of completion time
//! over energy, on which dominated points are left out, and only frontiers are compared, at matched
//! totals ([`crate::frontier`]). Everybody has the same cluster, jobs and horizon, and, where the
//! accounting does not say otherwise, the same sleep rule. Beside the policies stands the lower
//! bound ([`crate::bound`]) of the same jobs in the same world.
//!
//! What it must not do: bend a scenario to a policy, extrapolate, or hide a run that was not good.

mod judge;
mod limits;
mod options;
mod parallel;
mod run;
mod scenarios;
mod table;
mod waterfall;

use serde::Serialize;

use crate::frontier::RatioSpread;
use crate::saving::ChangeSpread;
use wattle_simulator::PolicyOutcome;
use wattle_simulator::RunOptions;

pub use options::{
    Accounting, CompareOptions, Knobs, Neighbours, SurfaceError, Surfaces, policy_of,
};
pub use run::Comparer;
pub use scenarios::{Case, CaseFilter, CompareError, NAMES, Orders, Worlds, cases, policies};
pub use table::{side_by_side, to_table, waterfall_table};
pub use waterfall::Cause;

/// Policies of one case beside each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The scenario's name.
    pub scenario: &'static str,
    /// Offered load.
    pub load: f64,
    /// What counts as spent.
    pub accounting: Accounting,
    /// How neighbours slow each other; `alone` where nobody shares.
    pub world: Neighbours,
    /// Which workloads, where the scenario has variants.
    pub workload: &'static str,
    /// Whether some jobs have deadlines.
    pub deadlines: bool,
    /// The orders of the jobs over the arrivals, or of the draws.
    pub seeds: Vec<u64>,
    /// Jobs of the first order.
    pub jobs: usize,
    /// Whether the policies saw true surfaces.
    pub oracle: bool,
    /// What the policies saw.
    pub surfaces: Surfaces,
    /// From when on a job's length was known: `known`, `reported`, `unknown`.
    pub lengths: &'static str,
    /// Over how long every run of the first order is charged, seconds.
    pub horizon_s: f64,
    /// The tighter lower bound, of the first order.
    pub bounds: Bounds,
    /// Every run.
    pub policies: Vec<Swept>,
    /// Completion times at equal energy: each policy against each other one.
    pub equal_energy: Vec<EqualEnergy>,
    /// The same at equal emissions; empty without a carbon series.
    pub equal_carbon: Vec<EqualCarbon>,
    /// How these spread, over totals and orders.
    pub summary: Vec<Summary>,
    /// Distance to the bound, of each frontier point of the first order.
    pub above_bound: Vec<AboveBound>,
    /// The same over emissions; empty without a carbon series.
    pub above_carbon_bound: Vec<AboveCarbonBound>,
    /// Policies with their knob left alone, against the first of them.
    pub untuned: Vec<Untuned>,
    /// What keeps policies from the bound, of those it was asked of.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waterfalls: Vec<Waterfall>,
    /// What a reader should know.
    pub notes: Vec<String>,
}

/// What keeps a policy from the bound, at equal energy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Waterfall {
    /// The policy.
    pub policy: String,
    /// Energies at which every line was read, over all orders; 0: there was none that all reach.
    pub totals: usize,
    /// From the bound of jobs that have the cluster to themselves to the policy as it ran; what
    /// each adds sums up to the last one's completion time.
    pub causes: Vec<Cause>,
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
    /// The least any schedule emits, however long it waits, where there is a carbon series.
    pub carbon_kg: Option<f64>,
    /// Completion time that no schedule goes below, over emissions in kg; empty without a series.
    pub carbon_frontier: Vec<(f64, f64)>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Swept {
    /// What came of it.
    #[serde(flatten)]
    pub outcome: PolicyOutcome,
    /// The policy without its knob.
    pub family: String,
    /// What was turned: a price, or a clock in MHz; 0 where nothing is, as under `+zeus`.
    pub knob: f64,
    /// The order of the jobs.
    pub order: u64,
    /// What counts as spent, kWh over the horizon all runs of an order share.
    pub counted_kwh: f64,
    /// What counts as emitted, kg over that horizon; null without a carbon series.
    pub counted_kg: Option<f64>,
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
    /// The baseline's mean completion time over the policy's; null: the policy does not spend so
    /// little.
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
    /// What both may emit.
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
    /// Over all totals that both reach, in every order.
    pub spread: Option<RatioSpread>,
    /// The same of the medians.
    pub spread_p50: Option<RatioSpread>,
    /// The same of the 99th percentiles.
    pub spread_p99: Option<RatioSpread>,
    /// At equal emissions.
    pub spread_carbon: Option<RatioSpread>,
    /// Totals of energy that were compared.
    pub totals: usize,
    /// Those of them that the policy does not reach.
    pub not_reachable: usize,
}

/// A frontier point's distance to the bounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AboveBound {
    /// The policy.
    pub policy: String,
    /// What it spent.
    pub energy_kwh: f64,
    /// Its completion time over the bound's; null where the bound says nobody spends so little.
    pub ratio: Option<f64>,
    /// The same over the bound of jobs that have the cluster to themselves.
    pub ratio_alone: Option<f64>,
}

/// A frontier point's distance to the bound on emissions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AboveCarbonBound {
    /// The policy.
    pub policy: String,
    /// What it emitted.
    pub carbon_kg: f64,
    /// Its completion time over the bound's; null where the bound says nobody emits so little.
    pub ratio: Option<f64>,
}

/// A policy at the top clock against the first such one, as a relative change over the orders.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Untuned {
    /// The policy.
    pub policy: String,
    /// What it is compared with.
    pub baseline: String,
    /// Energy that counts.
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
