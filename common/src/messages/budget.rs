//! Energy and carbon budgets: the request, the budget in force, and its consumption.
//!
//! * **Publisher:** `wattle budget set`, any NATS client ([`SetBudget`]); only the placer
//!   ([`BudgetRecord`], [`BudgetStatus`]).
//! * **Listeners:** placer, through the NATS service API; `wattle budget show`; the placer itself
//!   when it restarts.
//! * **How often:** a budget when it is set; the status with each entry of the energy ledger and at
//!   each change of the price.
//! * **Delivery:** request and reply ([`BudgetReply`]), sent after the budget is stored; key-value
//!   bucket `budget`, keys `set` and `status`; the last value of a key is current.
//! * **Lost or doubled:** repeat the request: setting the same budget again continues its window. The
//!   status is complete and names the ledger entries it counts, so no entry counts twice. It reflects a
//!   request from the reply's generation on ([`BudgetStatus::observed_generation`]).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::aim::{AimBound, Baseline};
use crate::budget::Budget;
use crate::duration::span;
use crate::generation::is_unknown;
use crate::id::NodeId;
use crate::messages::grid::Origin;
use crate::time::Timestamp;
use crate::units::{Carbon, CarbonIntensity, Energy, Power};

/// Most steps of an [`IntensitySeries`]: a year of quarter hours, which fits in one message.
pub const STEPS_MAX: usize = 36_000;

/// Request: put this budget in force; a budget without limits ends the current one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetBudget {
    /// The limits.
    pub budget: Budget,
    /// Carbon intensity of the grid; absent: keep the current series, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intensity: Option<IntensitySeries>,
}

/// Carbon intensity over time: a periodic step function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntensitySeries {
    /// Display name.
    pub name: String,
    /// Start of the first step.
    pub starts_at_us: Timestamp,
    /// Seconds since the start, ascending from 0, and the intensity from then on.
    pub steps: Vec<(u64, CarbonIntensity)>,
    /// Period after which the series repeats, seconds.
    pub period_s: u64,
    /// Seconds since the start, ascending, and how the values from then on were obtained; empty: from a file
    /// of the user.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<(u64, Origin)>,
}

/// The placer's reply to [`SetBudget`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "result")]
pub enum BudgetReply {
    /// The budget is stored and in force.
    Stored {
        /// The budget.
        budget: Budget,
        /// The generation with which it is stored ([`BudgetRecord::generation`]).
        #[serde(default, skip_serializing_if = "is_unknown")]
        generation: u64,
    },
    /// Nothing changed.
    Refused {
        /// The cause and the remedy.
        error: String,
    },
}

/// The budget in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetRecord {
    /// Number of changes of the budget and its carbon intensity ([`crate::generation`]).
    #[serde(default, skip_serializing_if = "is_unknown")]
    pub generation: u64,
    /// The limits.
    pub budget: Budget,
    /// When it was set: start of its first window.
    pub since_us: Timestamp,
    /// Carbon intensity of the grid, if given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intensity: Option<IntensitySeries>,
}

/// State of the energy aim's controller, for display and for the placer's restart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AimStatus {
    /// When this was written.
    pub at_us: Timestamp,
    /// The scheduler relative to which completion times count; absent: the time aim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Baseline>,
    /// Bound on the increase of mean completion time over the reference's, a share.
    pub max_slowdown: f64,
    /// Time that all jobs have spent queued or running, job-seconds. Each second's weight decays
    /// exponentially with a time constant of a day.
    pub present_s: f64,
    /// Estimated delay of these jobs relative to the reference, job-seconds, with the same weights. Negative: they
    /// complete earlier.
    pub delay_s: f64,
    /// Energy price from 0 (free) to 1 (the highest of the policy's range).
    pub price: f64,
    /// The energy price in the policy's own unit.
    pub policy_price: f64,
    /// Bound on the same increase for the jobs of each project, a share; absent: projects are not bounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_project_slowdown: Option<f64>,
    /// The projects with the most job-seconds, at most [`AIM_PROJECTS_MAX`]; empty where projects are not bounded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub projects: Vec<AimProject>,
}

/// Largest number of projects of which the energy aim bounds each.
pub const AIM_PROJECTS_MAX: usize = 256;

/// The jobs of a project under the energy aim, as those of the cluster in [`AimStatus`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AimProject {
    /// The project, or the user of jobs without one.
    pub project: String,
    /// Time that its jobs have spent queued or running, job-seconds.
    pub present_s: f64,
    /// Their estimated delay relative to the reference, job-seconds.
    pub delay_s: f64,
    /// The energy price that its bound permits, from 0 to 1.
    pub price: f64,
}

/// The increase of a mean completion time, a share, by Little's law; absent before jobs were present.
fn increase(present_s: f64, delay_s: f64) -> Option<f64> {
    let without_delay = present_s - delay_s;
    (without_delay > 0.0).then(|| delay_s / without_delay)
}

impl AimProject {
    /// The estimated increase of the mean completion time of its jobs, a share; absent before it had jobs.
    #[must_use]
    pub fn slowdown(&self) -> Option<f64> {
        increase(self.present_s, self.delay_s)
    }
}

impl AimStatus {
    /// The bound.
    #[must_use]
    pub const fn bound(&self) -> AimBound {
        AimBound {
            baseline: self.baseline,
            share: self.max_slowdown,
            project: self.max_project_slowdown,
        }
    }

    /// The estimated increase of mean completion time, a share; absent before jobs were present.
    #[must_use]
    pub fn slowdown(&self) -> Option<f64> {
        increase(self.present_s, self.delay_s)
    }

    /// The project whose jobs complete latest relative to the reference, by estimate, and their increase of mean
    /// completion time, a share; absent where projects are not bounded or had no jobs.
    #[must_use]
    pub fn latest_project(&self) -> Option<(&str, f64)> {
        let later = self.projects.iter().filter_map(|p| Some((p.project.as_str(), p.slowdown()?)));
        later.max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

/// Consumption of the budget and the controller's output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BudgetStatus {
    /// When this was written.
    pub at_us: Timestamp,
    /// The newest budget for which a planning round was made. The orders of that round are stored before this
    /// status.
    #[serde(default, skip_serializing_if = "is_unknown")]
    pub observed_generation: u64,
    /// Start of the current window.
    pub window_from_us: Timestamp,
    /// End of the current window.
    pub window_until_us: Timestamp,
    /// Energy consumed in the window, from the energy ledger.
    pub energy_mj: Energy,
    /// Carbon emitted in the window; absent: the intensity is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carbon_ug: Option<Carbon>,
    /// Consumption of the previous window beyond its budget, as a share of the budget; absent: there
    /// was no previous window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overrun_previous: Option<f64>,
    /// Energy price from 0 (free) to 1 (every job runs at its lowest-power operating point).
    pub price: f64,
    /// Integral of the control law, from 0 to 1. It differs from `price` while admission is closed, when the
    /// price is 1; absent: the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_integral: Option<f64>,
    /// The energy price in the policy's own unit.
    pub policy_price: f64,
    /// Expected power draw, complete nodes.
    pub power_mw_expected: Power,
    /// Power draw with no job running and every node asleep that can sleep; absent: not known yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_mw_baseline: Option<Power>,
    /// Constant power draw that consumes exactly the window's budget; absent: no window is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_mw_budget_mean: Option<Power>,
    /// Carbon intensity now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intensity_mg_per_kwh: Option<CarbonIntensity>,
    /// What the power limit costs; absent: there is none, or the policy has no price of power.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_cost: Option<LimitCost>,
    /// The correction of predicted power by measured power; absent: no power limit of the site.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_margin: Option<PowerMargin>,
    /// End of the last counted ledger entry of each node.
    pub counted_until_us: BTreeMap<NodeId, Timestamp>,
}

/// What a power limit costs, by the policy's price of power.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitCost {
    /// The price of power now, seconds of completion time per kilowatt-hour; 0: the limit does not bind now.
    pub price_s_per_kwh: f64,
    /// By how much one more kilowatt would have shortened the mean completion time of the jobs of about the last
    /// day, s; absent: fewer than ten jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved_s_per_kw: Option<f64>,
}

/// The correction of predicted power by measured power below a power limit, and what it leaves unused.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PowerMargin {
    /// Expected over predicted power above idle of the running jobs.
    pub correction: f64,
    /// Running jobs that draw less than predicted.
    pub jobs_below: u32,
    /// Running jobs that draw more.
    pub jobs_above: u32,
    /// Running jobs that were measured for long enough at their present settings.
    pub jobs_measured: u32,
    /// Measured over predicted power above idle of the jobs that draw less or more, the mean of about the last
    /// [`Self::MEASURED_OVER_S`]; absent: there are none, or they were not measured since their last change of setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_ratio: Option<f64>,
    /// The power that plans count for these jobs above the measured one, as a share of the predicted one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_margin: Option<f64>,
    /// The share of the site's limit that was unused while jobs waited, of about the last hour, by measured power;
    /// absent: no job waited, there is no such limit, or a node is not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unused_share: Option<f64>,
}

impl PowerMargin {
    /// The time constant of the mean of measured power, seconds.
    pub const MEASURED_OVER_S: f64 = 10.0;
}

/// The largest share of a limit for which its cost is stated: the figure holds for small changes.
const SMALL_CHANGE: f64 = 0.05;

impl LimitCost {
    /// What a little more power than `limit` would change, as a sentence.
    #[must_use]
    pub fn sentence(&self, limit: Power) -> String {
        let Some(saved_s_per_kw) = self.saved_s_per_kw else {
            return if self.price_s_per_kwh > 0.0 {
                "the power limit binds; what more power would save is known after ten completed jobs"
                    .into()
            } else {
                "the power limit does not bind".into()
            };
        };
        // 1, 10, 100 W and so on.
        let more_w = 10f64.powf((limit.as_w() * SMALL_CHANGE).max(1.0).log10().floor());
        let saved_s = saved_s_per_kw * more_w / 1e3;
        if saved_s < 1.0 {
            return "the power limit has hardly delayed the jobs of the last day".to_owned();
        }
        let more =
            if more_w < 1e3 { format!("{more_w} W") } else { format!("{} kW", more_w / 1e3) };
        let saved = span(saved_s);
        format!(
            "the power limit binds: {more} more would complete jobs about {saved} sooner on average"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_of_a_limit_is_stated_for_a_small_change() {
        let stated = |price_s_per_kwh: f64, saved_s_per_kw: Option<f64>, limit_w: u64| {
            LimitCost { price_s_per_kwh, saved_s_per_kw }.sentence(Power::from_w(limit_w))
        };
        let decides =
            "the power limit binds: 1 kW more would complete jobs about 4 min sooner on average";
        assert_eq!(stated(9.0, Some(240.0), 28_000), decides);
        assert!(stated(9.0, Some(9_000.0), 1_000).starts_with("the power limit binds: 10 W more"));
        assert!(stated(9.0, Some(2.0), 2_000_000).contains("100 kW more"));
        assert_eq!(
            stated(9.0, Some(0.5), 28_000),
            "the power limit has hardly delayed the jobs of the last day"
        );
        assert!(stated(9.0, None, 28_000).contains("after ten completed jobs"));
        assert_eq!(stated(0.0, None, 28_000), "the power limit does not bind");
    }
}
