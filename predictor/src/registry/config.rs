//! What an operator may set of the registry: who serves at first, its patience, its limits.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use wattle_common::config::non_zero;
use wattle_common::id::PredictorId;

/// The registry's patience and limits. Everything it keeps is bounded by one of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegistryConfig {
    /// Who serves where nobody was promoted yet.
    pub champion: PredictorId,
    /// The kind of GPU assumed of a job that has not run yet, where a prior is needed.
    #[serde(default)]
    pub gpu_type_default: Option<String>,
    /// A job of which the champion has said nothing for so long gets a prior, milliseconds.
    #[serde(deserialize_with = "non_zero")]
    pub first_prior_after_ms: u64,
    /// A predictor that leaves windows unanswered for so long is silent, milliseconds. At least
    /// three times the interval at which predictors propose.
    #[serde(deserialize_with = "non_zero")]
    pub silent_after_ms: u64,
    /// While the champion is silent its last surface stands; after so long a prior takes its place,
    /// milliseconds.
    #[serde(deserialize_with = "non_zero")]
    pub prior_after_ms: u64,
    /// A challenger not heard of for so long is no longer listed, milliseconds.
    #[serde(deserialize_with = "non_zero")]
    pub forget_after_ms: u64,
    /// Least time between two statuses of one predictor, milliseconds.
    #[serde(deserialize_with = "non_zero")]
    pub status_interval_ms: u64,
    /// Predictors listed; one more is refused.
    #[serde(deserialize_with = "non_zero")]
    pub predictors_max: u64,
    /// Jobs whose surfaces are passed on; beyond that the one not heard of for longest is dropped.
    #[serde(deserialize_with = "non_zero")]
    pub jobs_max: u64,
    /// Jobs at a time whose windows are scored. The two last proposals of every predictor are kept
    /// of each, 18 kB at most: with eight predictors, at most 300 kB for each job.
    #[serde(deserialize_with = "non_zero")]
    pub jobs_scored_max: u64,
}

impl RegistryConfig {
    /// What `deploy/registry.toml` ships with.
    ///
    /// # Panics
    /// Never: the name is an id.
    #[must_use]
    pub fn shipped() -> Self {
        Self {
            champion: PredictorId::new("physical").expect("letters only"),
            gpu_type_default: None,
            first_prior_after_ms: 5_000,
            silent_after_ms: 60_000,
            prior_after_ms: 600_000,
            forget_after_ms: 86_400_000,
            status_interval_ms: 5_000,
            predictors_max: 8,
            jobs_max: 20_000,
            jobs_scored_max: 500,
        }
    }

    pub(super) const fn first_after(&self) -> Duration {
        Duration::from_millis(self.first_prior_after_ms)
    }

    pub(super) const fn silent_after(&self) -> Duration {
        Duration::from_millis(self.silent_after_ms)
    }

    pub(super) const fn prior_after(&self) -> Duration {
        Duration::from_millis(self.prior_after_ms)
    }

    pub(super) const fn forget_after(&self) -> Duration {
        Duration::from_millis(self.forget_after_ms)
    }

    pub(super) const fn status_interval(&self) -> Duration {
        Duration::from_millis(self.status_interval_ms)
    }

    /// How often the machine looks around: often enough that no patience is overdrawn by a half.
    pub(super) fn tick(&self) -> Duration {
        (self.first_after() / 2).min(self.silent_after() / 4).min(self.status_interval())
    }
}
