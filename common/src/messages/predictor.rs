//! The champion and the scores of all predictors.
//!
//! Several predictors may run on the same windows. The placer reads the champion's surfaces; the
//! challengers are only scored.
//!
//! * **Publisher:** only the registry.
//! * **Listeners:** `wattle predictors`; every predictor watches the key `champion` and proposes the
//!   surfaces of all its jobs whenever it is written.
//! * **How often:** the champion at a promotion, when the registry starts, and when a silent champion
//!   responds again; a predictor's status when it changes, at most once in `status_interval_ms`.
//! * **Delivery:** key-value bucket `predictors`, keys `champion` and `status.<predictor>`; the last
//!   value of a key is current.
//! * **Lost or doubled:** each value is complete.

use serde::{Deserialize, Serialize};

use crate::generation::is_unknown;
use crate::id::PredictorId;
use crate::time::Timestamp;

/// The predictor whose surfaces the placer reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Champion {
    /// Its name.
    pub predictor: PredictorId,
    /// When it became champion.
    pub since_us: Timestamp,
    /// Number of changes of the champion ([`crate::generation`]).
    #[serde(default, skip_serializing_if = "is_unknown")]
    pub generation: u64,
}

/// State of a predictor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PredictorState {
    /// It responds, and the placer reads its surfaces.
    Champion,
    /// It responds and is only scored.
    Challenger,
    /// Its service is gone, or it left closed windows unanswered.
    Silent,
    /// Its proposals are refused: impossible values, or not a surface.
    Failing,
}

/// State and scores of a predictor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PredictorStatus {
    /// Its name.
    pub name: PredictorId,
    /// Its version in NATS's service API; absent: not registered.
    #[serde(default)]
    pub version: Option<String>,
    /// When this was written.
    pub at_us: Timestamp,
    /// The newest champion that it reflects.
    #[serde(default, skip_serializing_if = "is_unknown")]
    pub observed_generation: u64,
    /// Its state.
    pub state: PredictorState,
    /// Whether it is the champion, in any state.
    pub champion: bool,
    /// The current problem, for people; absent: none.
    #[serde(default)]
    pub error: Option<String>,
    /// Its last proposal or reply to NATS's `$SRV.PING`.
    #[serde(default)]
    pub last_active_us: Option<Timestamp>,
    /// Accepted surfaces.
    pub proposals: u64,
    /// Refused surfaces.
    pub refused: u64,
    /// Windows for which its surface had no point although it should have.
    pub windows_uncovered: u64,
    /// Prediction error of steps per second.
    pub speed: Scores,
    /// Prediction error of the power of a GPU.
    pub power: Scores,
    /// Time from a window's end to the proposal; absent: no proposal yet.
    #[serde(default)]
    pub latency: Option<Latency>,
}

/// Prediction error of a quantity, by the registry's knowledge of the job at the prediction. Absent:
/// nothing was scored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// No window of the job yet.
    #[serde(default)]
    pub prior: Option<Score>,
    /// Windows of the job, none in this configuration.
    #[serde(default)]
    pub new_config: Option<Score>,
    /// Windows of the job in this configuration.
    #[serde(default)]
    pub same_config: Option<Score>,
}

/// Mean over the newest scored windows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// Number of windows.
    pub windows: u64,
    /// Mean of |predicted - measured| / measured, per cent.
    pub mape_percent: f64,
    /// Share of windows within the predicted 90 % interval, per cent.
    pub coverage90_percent: f64,
}

/// Time from a window's end to the proposal that follows it, in the system's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// Number of proposals.
    pub proposals: u64,
    /// Median, milliseconds.
    pub ms_p50: u64,
    /// 90th percentile, milliseconds.
    pub ms_p90: u64,
}
