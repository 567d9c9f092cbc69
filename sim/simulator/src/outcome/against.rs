//! A policy against a baseline of the same jobs, and how its energy aim was held.

use serde::Serialize;

/// The schedule with which the policies of an outcome are compared, where it is none of theirs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Baseline {
    /// Its name: `backfill`, `fifo` or `recorded`.
    pub schedule: String,
    /// Mean time from submission to completion, s; null where no job completed.
    pub jct_s_mean: Option<f64>,
    /// Energy of whole nodes over its makespan, kWh.
    pub energy_kwh: f64,
}

/// The mean completion time of one project relative to the baseline's, minus 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProjectChange {
    /// The project: the account of its jobs, or their user.
    pub project: String,
    /// The change; -0.1 is a tenth sooner.
    pub completion_mean: f64,
}

/// Changes against a baseline: another schedule of the same jobs, or the first policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Against {
    /// The name of the baseline.
    pub baseline: String,
    /// Energy over the own makespan relative to the baseline's over its own, minus 1; null where that is zero.
    pub energy: Option<f64>,
    /// Mean completion time relative to the baseline's, minus 1, over the jobs that complete in both; null where
    /// the policy completes fewer jobs.
    pub completion_mean: Option<f64>,
    /// The project whose mean completion time grows most; null where the trace has neither accounts nor users.
    pub project_worst: Option<ProjectChange>,
}

/// How the energy aim of a run was held.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AimHeld {
    /// The schedule to which the bound relates: `own`, which is the same policy with free energy, `backfill`,
    /// `fifo` or `recorded`.
    pub reference: String,
    /// The greatest permitted mean completion time relative to it, minus 1.
    pub allowed: f64,
    /// The same of each project; absent without a bound on projects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_project: Option<f64>,
    /// Mean completion time relative to the reference, minus 1; null where the run completes fewer jobs.
    pub completion_mean: Option<f64>,
    /// The energy price of the run, in the policy's unit.
    pub price: f64,
    /// Whether the run is within the bound. Otherwise not even free energy is, at which the run was made.
    pub is_within: bool,
}
