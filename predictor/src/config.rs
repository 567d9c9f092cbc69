//! Settings of the predictor's library: its name and its limits.
//!
//! The constants of the models are next to their formulas, with their sources. The service reads these keys
//! from the `[model]` table of `deploy/predictor.toml`.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use wattle_common::config::non_zero;
use wattle_common::id::PredictorId;

use crate::method::Method;

/// Name and limits of the predictor. Everything that it keeps is bounded by one of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PredictorConfig {
    /// Predictor name in its surfaces.
    pub name: PredictorId,
    /// Prediction method.
    #[serde(default)]
    pub method: Method,
    /// GPU type assumed for a job without windows.
    #[serde(default)]
    pub gpu_type_default: Option<String>,
    /// Largest number of jobs; beyond, the least recently updated one is dropped.
    #[serde(deserialize_with = "non_zero")]
    pub jobs_max: u64,
    /// Largest number of windows of a job; beyond, the most frequent configuration loses its oldest one.
    #[serde(deserialize_with = "non_zero")]
    pub windows_per_job_max: u64,
    /// Largest number of workload classes in the history, over all GPU types.
    #[serde(deserialize_with = "non_zero")]
    pub classes_max: u64,
    /// Largest number of points of a surface; the most relevant ones come first.
    #[serde(deserialize_with = "non_zero")]
    pub points_max: u64,
    /// Smallest time between two surfaces of one job, ms.
    #[serde(deserialize_with = "non_zero")]
    pub publish_interval_ms: u64,
}

impl PredictorConfig {
    /// The values in `deploy/predictor.toml`.
    ///
    /// # Panics
    /// Never: the name is a valid id.
    #[must_use]
    pub fn shipped() -> Self {
        Self {
            name: PredictorId::new("physical").expect("letters only"),
            method: Method::default(),
            gpu_type_default: None,
            jobs_max: 20_000,
            windows_per_job_max: 40,
            classes_max: 400,
            points_max: 256,
            publish_interval_ms: 10_000,
        }
    }

    /// Smallest time between two surfaces of one job.
    #[must_use]
    pub const fn publish_interval(&self) -> Duration {
        Duration::from_millis(self.publish_interval_ms)
    }
}
