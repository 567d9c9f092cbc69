//! What a person asks of the registry: let this predictor serve.
//!
//! * **Publisher:** `wattle predictors promote`, any NATS client.
//! * **Listeners:** registry, through the NATS service API.
//! * **How often:** when asked.
//! * **Delivery:** request and reply ([`PromoteReply`]). The reply comes only after the new champion
//!   is stored.
//! * **Lost or doubled:** ask again; who serves already goes on serving.

use serde::{Deserialize, Serialize};

use crate::id::PredictorId;

/// Let this predictor serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromotePredictor {
    /// Its name.
    pub predictor: PredictorId,
}

/// The registry's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "answer")]
pub enum PromoteReply {
    /// It serves, and that is stored.
    Promoted {
        /// Who serves now.
        predictor: PredictorId,
        /// Who served before.
        before: PredictorId,
        /// What is wrong with the new one, if something is.
        #[serde(default)]
        warning: Option<String>,
    },
    /// Nothing has changed.
    Refused {
        /// What is wrong and what to do about it.
        error: String,
    },
}
