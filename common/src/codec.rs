//! Encoding and decoding of messages.
//!
//! Control and state messages are JSON, for people and other languages. Telemetry is bincode 2
//! behind a frame of four bytes: magic, codec, schema major, schema minor. bincode cannot add a
//! field compatibly, so a changed layout has a new schema number. Only this module names bincode.
//! The size of decoded payloads is limited.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::messages::TelemetryBatch;

/// Largest payload accepted, in bytes: NATS's own default limit.
pub const PAYLOAD_LEN_MAX: usize = 1 << 20;

/// First byte of every binary payload. No JSON text starts with it.
pub const MAGIC: u8 = 0xE5;
/// Second byte: bincode 2, standard configuration, through serde.
pub const CODEC_BINCODE2: u8 = 1;
/// Third and fourth byte: the telemetry layout's version.
pub const TELEMETRY_SCHEMA: [u8; 2] = [1, 0];

const FRAME: [u8; 4] = [MAGIC, CODEC_BINCODE2, TELEMETRY_SCHEMA[0], TELEMETRY_SCHEMA[1]];

/// Why bytes are not a message.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// Larger than [`PAYLOAD_LEN_MAX`].
    #[error("payload of {0} bytes; at most {PAYLOAD_LEN_MAX} are read")]
    TooLarge(usize),
    /// No frame at the beginning.
    #[error("not framed telemetry: it begins with {0:02x?}")]
    NotFramed(Vec<u8>),
    /// A codec or schema that this version does not read.
    #[error(
        "telemetry of codec {codec}, schema {major}.{minor}; this version reads codec {CODEC_BINCODE2}, schema 1.0: upgrade the reader"
    )]
    Unreadable {
        /// The codec's number.
        codec: u8,
        /// The schema's major version.
        major: u8,
        /// The schema's minor version.
        minor: u8,
    },
    /// Bytes that do not match the declared layout.
    #[error("corrupt telemetry")]
    Corrupt(#[source] bincode::error::DecodeError),
    /// Extra bytes after the message.
    #[error("corrupt telemetry: {0} bytes left over")]
    Trailing(usize),
    /// Not the expected JSON.
    #[error("invalid JSON for {what}")]
    Json {
        /// The message that was expected.
        what: &'static str,
        /// The parser's error.
        #[source]
        source: serde_json::Error,
    },
}

fn config() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<PAYLOAD_LEN_MAX>()
}

/// A telemetry batch as bytes.
///
/// # Panics
/// Never: every value of the type can be encoded.
#[must_use]
pub fn encode_telemetry(batch: &TelemetryBatch) -> Vec<u8> {
    let mut bytes = FRAME.to_vec();
    bincode::serde::encode_into_std_write(batch, &mut bytes, bincode::config::standard())
        .expect("writing to a Vec cannot fail, and the layout has no map of unknown length");
    bytes
}

/// Reads a telemetry batch.
///
/// # Errors
/// [`CodecError`] states why the bytes are not a batch.
pub fn decode_telemetry(bytes: &[u8]) -> Result<TelemetryBatch, CodecError> {
    if bytes.len() > PAYLOAD_LEN_MAX {
        return Err(CodecError::TooLarge(bytes.len()));
    }
    let not_framed = || CodecError::NotFramed(bytes.iter().take(4).copied().collect());
    let (frame, body) = bytes.split_at_checked(FRAME.len()).ok_or_else(not_framed)?;
    if frame[0] != MAGIC {
        return Err(not_framed());
    }
    if frame != FRAME {
        return Err(CodecError::Unreadable { codec: frame[1], major: frame[2], minor: frame[3] });
    }
    let (batch, read) =
        bincode::serde::decode_from_slice(body, config()).map_err(CodecError::Corrupt)?;
    if read != body.len() {
        return Err(CodecError::Trailing(body.len() - read));
    }
    Ok(batch)
}

/// A message as JSON.
///
/// # Panics
/// Never: every message type has a JSON form.
#[must_use]
pub fn encode_json<T: Serialize>(message: &T) -> Vec<u8> {
    serde_json::to_vec(message).expect("messages are structs of plain values")
}

/// Reads a message from JSON; unknown fields are ignored.
///
/// # Errors
/// If the payload is too large or not the JSON of `T`.
pub fn decode_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    if bytes.len() > PAYLOAD_LEN_MAX {
        return Err(CodecError::TooLarge(bytes.len()));
    }
    serde_json::from_slice(bytes).map_err(|source| {
        let path = std::any::type_name::<T>();
        CodecError::Json { what: path.rsplit("::").next().unwrap_or(path), source }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{JobId, NodeId};
    use crate::messages::{GpuSample, TenantSample};
    use crate::{Energy, Frequency, Power, Timestamp};
    use proptest::prelude::*;

    fn sample() -> impl Strategy<Value = GpuSample> {
        let tenant = (any::<u32>(), any::<bool>(), prop::option::of(0u8..=100)).prop_map(
            |(pid, known, utilization_gpu_percent)| TenantSample {
                job: known.then(|| JobId::new("job-1").unwrap()),
                pid,
                memory_used_mib: Some(1_024),
                utilization_gpu_percent,
            },
        );
        let reading = prop::option::of(any::<u64>());
        (
            any::<u64>(),
            0u32..16,
            reading.clone(),
            reading,
            prop::option::of(any::<u32>()),
            prop::collection::vec(tenant, 0..4),
        )
            .prop_map(|(at, gpu, power, energy, clock, tenants)| GpuSample {
                at_us: Timestamp::from_us(at),
                gpu,
                power_mw: power.map(Power::from_mw),
                energy_mj: energy.map(Energy::from_mj),
                utilization_gpu_percent: Some(97),
                utilization_memory_percent: None,
                memory_used_mib: Some(16_000),
                clock_mhz: clock.map(Frequency::from_mhz),
                cap_mw: Some(Power::from_w(250)),
                temperature_c: Some(61),
                throttle_reasons: Some(4),
                tenants,
            })
    }

    fn batch() -> impl Strategy<Value = TelemetryBatch> {
        (any::<u64>(), prop::collection::vec(sample(), 0..20)).prop_map(|(sequence, samples)| {
            TelemetryBatch { node: NodeId::new("n0").unwrap(), sequence, samples }
        })
    }

    proptest! {
        #[test]
        fn telemetry_round_trips(batch in batch()) {
            prop_assert_eq!(decode_telemetry(&encode_telemetry(&batch)).unwrap(), batch);
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..400), framed in any::<bool>()) {
            if framed && bytes.len() >= 4 {
                bytes[..4].copy_from_slice(&FRAME);
            }
            let _ = decode_telemetry(&bytes);
        }

        #[test]
        fn truncated_or_extended_payload_is_an_error(batch in batch(), cut in 1usize..8) {
            let bytes = encode_telemetry(&batch);
            prop_assert!(decode_telemetry(&bytes[..bytes.len() - cut.min(bytes.len())]).is_err());
            let mut grown = bytes;
            grown.push(0);
            prop_assert!(matches!(decode_telemetry(&grown), Err(CodecError::Trailing(1))));
        }
    }

    #[test]
    fn foreign_frames_are_identified() {
        assert!(matches!(decode_telemetry(b"{\"a\":1}"), Err(CodecError::NotFramed(_))));
        let newer = [MAGIC, CODEC_BINCODE2, 2, 0, 9, 9];
        let error = decode_telemetry(&newer).unwrap_err().to_string();
        assert!(error.contains("schema 2.0") && error.contains("upgrade"), "{error}");
        // A declared length of 2^60 samples must be rejected.
        let mut huge = FRAME.to_vec();
        huge.extend([2, b'n', b'0', 0, 253, 255, 255, 255, 255, 255, 255, 255, 15]);
        assert!(matches!(decode_telemetry(&huge), Err(CodecError::Corrupt(_))));
        let big = vec![b'1'; PAYLOAD_LEN_MAX + 1];
        assert!(matches!(decode_json::<u64>(&big), Err(CodecError::TooLarge(_))));
    }
}
