//! What an operator may set of the predictor's library: its name and its limits.
//!
//! The models' own constants are not here; they lie beside the formula they belong to, with their
//! source. The shell reads these keys from the `[model]` table of `deploy/predictor.toml`.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use wattle_common::config::non_zero;
use wattle_common::id::PredictorId;

use crate::method::Method;

/// The predictor's name and limits. Everything it keeps is bounded by one of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PredictorConfig {
    /// Its name in the surfaces it publishes.
    pub name: PredictorId,
    /// How it makes its points.
    #[serde(default)]
    pub method: Method,
    /// The kind of GPU assumed of a job that has not run yet, until windows show another.
    #[serde(default)]
    pub gpu_type_default: Option<String>,
    /// Jobs it keeps windows of; beyond that the one not heard of for longest is forgotten.
    #[serde(deserialize_with = "non_zero")]
    pub jobs_max: u64,
    /// Windows kept for each job; beyond that the fullest configuration loses its oldest.
    #[serde(deserialize_with = "non_zero")]
    pub windows_per_job_max: u64,
    /// Workload classes remembered beyond the life of their jobs, for each kind of GPU together.
    #[serde(deserialize_with = "non_zero")]
    pub classes_max: u64,
    /// Points of one surface; what matters most comes first.
    #[serde(deserialize_with = "non_zero")]
    pub points_max: u64,
    /// Least time between two surfaces of one job, milliseconds.
    #[serde(deserialize_with = "non_zero")]
    pub publish_interval_ms: u64,
    /// Whether to propose what running jobs should be looked at in next ([`crate::probe`]).
    #[serde(default = "probe")]
    pub probe: bool,
    /// How long a look lasts, milliseconds: the placer orders, the cap takes hold, and a window
    /// fills.
    #[serde(default = "probe_ms", deserialize_with = "non_zero")]
    pub probe_ms: u64,
    /// Energy that one job's cards may draw while they are looked at, all looks together, Wh.
    #[serde(default = "probe_energy_wh_max")]
    pub probe_energy_wh_max: u64,
}

const fn probe() -> bool {
    true
}
/// The profiler's first early window takes 15 s from the second on in which things settle.
const fn probe_ms() -> u64 {
    30_000
}
/// Ten looks of half a minute at 24 cards of 250 W.
const fn probe_energy_wh_max() -> u64 {
    500
}

impl PredictorConfig {
    /// What `deploy/predictor.toml` ships with.
    ///
    /// # Panics
    /// Never: the name is an id.
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
            probe: probe(),
            probe_ms: probe_ms(),
            probe_energy_wh_max: probe_energy_wh_max(),
        }
    }

    /// Least time between two surfaces of one job.
    #[must_use]
    pub const fn publish_interval(&self) -> Duration {
        Duration::from_millis(self.publish_interval_ms)
    }
}
