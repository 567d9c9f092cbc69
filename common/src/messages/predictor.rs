//! Who serves among the predictors, and how each of them does.
//!
//! Several predictors may run side by side on the same windows. What the champion says reaches the
//! placer; the others (the challengers) are scored in its shadow.
//!
//! * **Publisher:** registry, alone.
//! * **Listeners:** `wattle predictors`; every predictor watches the key `champion`: whenever it is
//!   written, a predictor proposes the surfaces of all its jobs anew.
//! * **How often:** the champion when one is promoted, when the registry starts, and when a champion
//!   that was silent speaks again; a predictor's status when it changes, at most once in some
//!   seconds.
//! * **Delivery:** key-value bucket `predictors`, keys `champion` and `status.<predictor>`. The last
//!   value stands.
//! * **Lost or doubled:** whole, not a difference.

use serde::{Deserialize, Serialize};

use crate::id::PredictorId;
use crate::time::Timestamp;

/// The predictor whose surfaces the placer reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Champion {
    /// Its name.
    pub predictor: PredictorId,
    /// Since when it serves.
    pub since_us: Timestamp,
}

/// How a predictor does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PredictorState {
    /// It serves.
    Champion,
    /// It is scored, and nobody acts by it.
    Shadow,
    /// Its service is gone, or windows were closed and it said nothing.
    Silent,
    /// What it says is refused: values that cannot be, or no surface at all.
    Failing,
}

/// How a predictor does, with what it has been scored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PredictorStatus {
    /// Its name.
    pub name: PredictorId,
    /// Its version, as it registered with NATS's service API; absent: it has not.
    #[serde(default)]
    pub version: Option<String>,
    /// When this was written.
    pub at_us: Timestamp,
    /// How it does.
    pub state: PredictorState,
    /// Whether it is the champion, whatever its state.
    pub champion: bool,
    /// What is wrong with it, for people; absent: nothing.
    #[serde(default)]
    pub trouble: Option<String>,
    /// When it last gave a sign of life: a proposal, or an answer to NATS's `$SRV.PING`.
    #[serde(default)]
    pub last_heard_us: Option<Timestamp>,
    /// Surfaces taken from it.
    pub proposals: u64,
    /// Surfaces refused.
    pub refused: u64,
    /// Windows its surfaces should have had a point for and had none.
    pub windows_uncovered: u64,
    /// How well it foretold steps a second.
    pub speed: Scores,
    /// How well it foretold the power of a card.
    pub power: Scores,
    /// How long after a window's end it proposed; absent: it never has.
    #[serde(default)]
    pub latency: Option<Latency>,
}

/// How well a quantity was foretold, by what the registry had seen of the job when the predictor
/// spoke. Absent: nothing could be scored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// No window of the job.
    #[serde(default)]
    pub prior: Option<Score>,
    /// Windows of the job, none of them in this configuration.
    #[serde(default)]
    pub elsewhere: Option<Score>,
    /// Windows of the job in this configuration.
    #[serde(default)]
    pub again: Option<Score>,
}

/// A mean over the newest windows that were scored.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// How many.
    pub windows: u64,
    /// Mean of |foretold - seen| / seen, per cent.
    pub mape_percent: f64,
    /// How many of them lay within the foretold 90 % interval, per cent.
    pub coverage90_percent: f64,
}

/// Time from a window's end to the proposal that follows it, the system's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// Over how many proposals.
    pub proposals: u64,
    /// Half of them were faster, milliseconds.
    pub ms_p50: u64,
    /// Nine of ten were faster, milliseconds.
    pub ms_p90: u64,
}
