//! A part of a job's output on one node.
//!
//! * **Publisher:** `wattle logs`, any NATS client.
//! * **Listeners:** the node's launcher, through the NATS service API.
//! * **How often:** on request.
//! * **Delivery:** request and reply ([`OutputReply`]), JSON. A reply has at most
//!   [`OUTPUT_LEN_MAX`] bytes of output, so a client requests long output in several parts.
//! * **Lost or doubled:** repeat the request; it changes nothing.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::id::JobId;

/// Most bytes of output in one reply; as base64 they stay below a server's limit of 1 MiB.
pub const OUTPUT_LEN_MAX: u32 = 256 << 10;

/// Request: a part of a job's output on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadOutput {
    /// The job.
    pub job: JobId,
    /// First byte to read.
    #[serde(default)]
    pub offset: u64,
}

/// The launcher's reply to [`ReadOutput`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "result")]
pub enum OutputReply {
    /// The output.
    Output {
        /// Length of the output on this node; 0 if there is none.
        bytes: u64,
        /// Output from the requested byte on, base64; empty at its end.
        #[serde(rename = "data_base64", serialize_with = "encode", deserialize_with = "decode")]
        data: Vec<u8>,
    },
    /// The output cannot be read.
    Refused {
        /// The cause and the remedy.
        error: String,
    },
}

fn encode<S: Serializer>(data: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&STANDARD.encode(data))
}

fn decode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    STANDARD.decode(text).map_err(serde::de::Error::custom)
}
