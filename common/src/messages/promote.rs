//! Request to the registry: make a predictor the champion.
//!
//! * **Publisher:** `wattle predictors promote`, any NATS client.
//! * **Listeners:** registry, through the NATS service API.
//! * **How often:** on request.
//! * **Delivery:** request and reply ([`PromoteReply`]). The reply is sent after the new champion is
//!   stored.
//! * **Lost or doubled:** repeat the request; promoting the champion changes nothing.

use serde::{Deserialize, Serialize};

use crate::generation::is_unknown;
use crate::id::PredictorId;

/// Request: make this predictor the champion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromotePredictor {
    /// Its name.
    pub predictor: PredictorId,
}

/// The registry's reply to [`PromotePredictor`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "result")]
pub enum PromoteReply {
    /// The new champion is stored.
    Promoted {
        /// The champion.
        predictor: PredictorId,
        /// The champion before.
        previous: PredictorId,
        /// The generation with which the champion is stored ([`super::Champion::generation`]).
        #[serde(default, skip_serializing_if = "is_unknown")]
        generation: u64,
        /// The new champion's current problem, if it has one.
        #[serde(default)]
        warning: Option<String>,
    },
    /// Nothing changed.
    Refused {
        /// The cause and the remedy.
        error: String,
    },
}
