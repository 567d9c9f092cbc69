//! Configuration of the registry's library: first champion, timeouts and limits. Those that only bound the code
//! are not in the configuration file.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use wattle_common::config::non_zero;
use wattle_common::id::PredictorId;

/// First champion, timeouts and limits. One of these bounds everything that the registry keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegistryConfig {
    /// The champion until a predictor is promoted.
    pub champion: PredictorId,
    /// GPU type assumed in the prior of a job that has not run yet.
    #[serde(default)]
    pub gpu_type_default: Option<String>,
    /// A job without a surface receives a prior after this time, milliseconds.
    #[serde(deserialize_with = "non_zero")]
    pub first_prior_after_ms: u64,
    /// A predictor that leaves a window unanswered for this time is silent, milliseconds. At least
    /// three times the predictors' `publish_interval_ms`.
    #[serde(deserialize_with = "non_zero")]
    pub silent_after_ms: u64,
    /// A prior replaces the last surface of a champion that has been silent for this time,
    /// milliseconds.
    #[serde(deserialize_with = "non_zero")]
    pub prior_after_ms: u64,
    /// A challenger without a sign of life for this time is removed, milliseconds.
    #[serde(skip, default = "forget_after_ms")]
    pub forget_after_ms: u64,
    /// Least time between two status reports of one predictor, milliseconds.
    #[serde(deserialize_with = "non_zero")]
    pub status_interval_ms: u64,
    /// Largest number of predictors; further ones are ignored.
    #[serde(skip, default = "predictors_max")]
    pub predictors_max: u64,
    /// Largest number of jobs; beyond it the job without news for longest is dropped.
    #[serde(deserialize_with = "non_zero")]
    pub jobs_max: u64,
    /// Largest number of jobs whose windows are scored. For each job, predictor and GPU type the
    /// last two proposals are kept, at most 18 kB each.
    #[serde(deserialize_with = "non_zero")]
    pub jobs_scored_max: u64,
}

const fn forget_after_ms() -> u64 {
    86_400_000
}

const fn predictors_max() -> u64 {
    8
}

impl RegistryConfig {
    /// The values of `deploy/registry.toml`.
    ///
    /// # Panics
    /// Never: the name is a valid id.
    #[must_use]
    pub fn shipped() -> Self {
        Self {
            champion: PredictorId::new("physical").expect("letters only"),
            gpu_type_default: None,
            first_prior_after_ms: 5_000,
            silent_after_ms: 60_000,
            prior_after_ms: 600_000,
            forget_after_ms: forget_after_ms(),
            status_interval_ms: 5_000,
            predictors_max: predictors_max(),
            jobs_max: 20_000,
            jobs_scored_max: 500,
        }
    }

    pub(crate) const fn first_prior_after(&self) -> Duration {
        Duration::from_millis(self.first_prior_after_ms)
    }

    pub(crate) const fn silent_after(&self) -> Duration {
        Duration::from_millis(self.silent_after_ms)
    }

    pub(crate) const fn prior_after(&self) -> Duration {
        Duration::from_millis(self.prior_after_ms)
    }

    pub(crate) const fn forget_after(&self) -> Duration {
        Duration::from_millis(self.forget_after_ms)
    }

    pub(crate) const fn status_interval(&self) -> Duration {
        Duration::from_millis(self.status_interval_ms)
    }

    /// Period of the registry's checks: short enough that no timeout is exceeded by half.
    pub(crate) fn check_interval(&self) -> Duration {
        (self.first_prior_after() / 2).min(self.silent_after() / 4).min(self.status_interval())
    }
}
