//! Settings of the predictor's library: its name and its limits.
//!
//! The constants of the models are next to their formulas, with their sources. The service reads these keys
//! from the `[model]` table of `deploy/predictor.toml`; limits that only bound the code are not in the file.

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
    #[serde(skip, default = "windows_per_job_max")]
    pub windows_per_job_max: u64,
    /// Largest number of workload classes in the history, over all GPU types.
    #[serde(skip, default = "classes_max")]
    pub classes_max: u64,
    /// Largest number of points of a surface; the most relevant ones come first.
    #[serde(skip, default = "points_max")]
    pub points_max: u64,
    /// Smallest time between two surfaces of one job, ms.
    #[serde(deserialize_with = "non_zero")]
    pub publish_interval_ms: u64,
}

const fn windows_per_job_max() -> u64 {
    40
}

const fn classes_max() -> u64 {
    400
}

/// A point is about 300 bytes in a message.
const fn points_max() -> u64 {
    256
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
            windows_per_job_max: windows_per_job_max(),
            classes_max: classes_max(),
            points_max: points_max(),
            publish_interval_ms: 10_000,
        }
    }

    /// Smallest time between two surfaces of one job.
    #[must_use]
    pub const fn publish_interval(&self) -> Duration {
        Duration::from_millis(self.publish_interval_ms)
    }
}
