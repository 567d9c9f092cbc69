//! Limits of the NATS server that are below what Wattle needs: each names its value, the value needed, and the line of
//! nats-server's configuration.

use std::fmt;

use async_nats::jetstream;
use async_nats::jetstream::ErrorCode;
use wattle_common::codec::PAYLOAD_LEN_MAX;
use wattle_common::subject::{Bucket, StreamName};

use super::{Bus, BusError, kv, stream};

/// The oldest version of nats-server that is used, as major and minor number.
const VERSION_MIN: (u32, u32) = (2, 9);
/// The oldest version that is used for several servers: older ones lose acknowledged values under faults
/// (docs/measurements/nats.md).
const VERSION_OF_CLUSTER_MIN: (u32, u32) = (2, 11);

/// A limit of the NATS server that is below what Wattle needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Limit {
    /// It accepts shorter messages only; in bytes.
    Payload(usize),
    /// It is too old.
    Version {
        /// Its version.
        version: String,
        /// Whether it belongs to a cluster of servers.
        is_clustered: bool,
    },
    /// It has no JetStream.
    JetStream,
    /// It has JetStream, but the account of this connection has none.
    AccountJetStream,
    /// Its storage for all accounts is smaller than the sizes that Wattle reserves.
    Storage,
    /// The storage of this connection's account is smaller than the sizes that Wattle reserves.
    AccountStorage,
}

impl Limit {
    /// The line of nats-server's configuration that removes it.
    #[must_use]
    pub fn remedy(&self) -> String {
        let size = storage_needed().div_ceil(1 << 30);
        match self {
            Self::Payload(_) => {
                "set `max_payload: 1MB` in nats-server's configuration, or remove its max_payload, and \
                 restart it"
                    .to_owned()
            }
            Self::Version { .. } => {
                "install a newer nats-server (deploy/ensure-nats-server has a tested one), one server \
                 after the other"
                    .to_owned()
            }
            Self::JetStream => {
                "start it with -js, or add `jetstream { store_dir: \"/var/lib/nats\" }` to its \
                 configuration"
                    .to_owned()
            }
            Self::AccountJetStream => {
                "add `jetstream: enabled` to this account in the accounts block of nats-server's \
                 configuration"
                    .to_owned()
            }
            Self::Storage => format!(
                "set `max_file_store: {size}GB` in the jetstream block of nats-server's configuration; \
                 without the line it is a share of the free disk of store_dir"
            ),
            Self::AccountStorage => format!(
                "set `max_store: {size}GB` in the jetstream block of this account in nats-server's \
                 configuration"
            ),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let needed = storage_needed();
        match self {
            Self::Payload(max) => write!(
                f,
                "it accepts messages of at most {max} bytes (max_payload), and {PAYLOAD_LEN_MAX} are needed"
            ),
            Self::Version { version, is_clustered: true } => write!(
                f,
                "it is version {version} and belongs to a cluster of servers, which needs {}: older \
                 ones lose acknowledged values",
                shown(VERSION_OF_CLUSTER_MIN)
            ),
            Self::Version { version, is_clustered: false } => {
                write!(f, "it is version {version}, and {} is needed", shown(VERSION_MIN))
            }
            Self::JetStream => f.write_str("it has no JetStream"),
            Self::AccountJetStream => {
                f.write_str("it has JetStream, but the account of this connection has none")
            }
            Self::Storage => write!(
                f,
                "its storage is too small: {needed} bytes are reserved for each cluster of Wattle on each \
                 server that keeps a copy"
            ),
            Self::AccountStorage => write!(
                f,
                "the storage of the account of this connection is too small: {needed} bytes are \
                 reserved for each cluster of Wattle and copy"
            ),
        }
    }
}

/// What a NATS server states about itself when a client connects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerLimits {
    /// Its version.
    pub version: String,
    /// Whether it belongs to a cluster of servers.
    pub is_clustered: bool,
    /// Most bytes of a message.
    pub max_payload: usize,
}

impl ServerLimits {
    /// Those that are below what Wattle needs.
    #[must_use]
    pub fn too_low(&self) -> Vec<Limit> {
        let Self { version, is_clustered, max_payload } = self;
        let needed = if *is_clustered { VERSION_OF_CLUSTER_MIN } else { VERSION_MIN };
        let is_old = numbers(version).is_none_or(|version| version < needed);
        let old = is_old
            .then(|| Limit::Version { version: version.clone(), is_clustered: *is_clustered });
        let payload = (*max_payload < PAYLOAD_LEN_MAX).then_some(Limit::Payload(*max_payload));
        old.into_iter().chain(payload).collect()
    }
}

/// Major and minor number of a version such as `2.9.11`.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

fn shown((major, minor): (u32, u32)) -> String {
    format!("{major}.{minor} or later")
}

/// Bytes that the server reserves for the buckets and streams of one cluster, with one copy.
fn storage_needed() -> u64 {
    let buckets = Bucket::ALL.into_iter().map(kv::len_max);
    let streams = StreamName::ALL.into_iter().map(stream::len_max);
    buckets.chain(streams).map(i64::unsigned_abs).sum()
}

impl Bus {
    /// What the connected server states about itself.
    #[must_use]
    pub fn server_limits(&self) -> ServerLimits {
        let info = self.shared.client.now(async_nats::Client::server_info);
        ServerLimits {
            version: info.version,
            is_clustered: info.cluster.is_some_and(|name| !name.is_empty()),
            max_payload: info.max_payload,
        }
    }

    /// Logs each limit of the server that is too low.
    pub(crate) fn log_limits(&self) {
        for limit in self.server_limits().too_low() {
            let remedy = limit.remedy();
            tracing::error!(url = self.url(), "limit of the nats server: {limit}: {remedy}");
        }
    }

    /// Refuses a cluster of servers that loses acknowledged values.
    ///
    /// # Errors
    /// [`BusError::Limit`].
    pub(super) fn check_version(&self) -> Result<(), BusError> {
        let too_low = self.server_limits().too_low();
        match too_low.into_iter().find(|limit| matches!(limit, Limit::Version { .. })) {
            Some(limit) => Err(self.limit(limit)),
            None => Ok(()),
        }
    }

    pub(super) fn limit(&self, limit: Limit) -> BusError {
        BusError::Limit { url: self.url().to_owned(), limit }
    }

    /// The error of a message of `len` bytes.
    pub(super) fn too_large(&self, subject: &str, len: usize, server_max: usize) -> BusError {
        let subject = subject.to_owned();
        if len > PAYLOAD_LEN_MAX {
            return BusError::TooLarge { subject, len };
        }
        let (url, limit) = (self.url().to_owned(), Limit::Payload(server_max));
        BusError::TooLargeForServer { subject, len, url, limit }
    }

    /// The error of a call for which no JetStream is there.
    pub(super) fn no_jetstream(&self) -> BusError {
        let has_jetstream = self.shared.client.now(|client| client.server_info().jetstream);
        let url = self.url().to_owned();
        let limit = if has_jetstream { Limit::AccountJetStream } else { Limit::JetStream };
        BusError::NoJetStream { url, limit }
    }

    /// The limit that refuses a new stream.
    pub(super) fn storage_limit(&self, reply: &jetstream::Error) -> Option<BusError> {
        let limit = match reply.error_code() {
            ErrorCode::STORAGE_RESOURCES_EXCEEDED | ErrorCode::INSUFFICIENT_RESOURCES => {
                Limit::Storage
            }
            ErrorCode::ACCOUNT_RESOURCES_EXCEEDED => Limit::AccountStorage,
            _ => return None,
        };
        Some(self.limit(limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_has_its_value_the_value_needed_and_a_line() {
        let server = |version: &str, is_clustered, max_payload| ServerLimits {
            version: version.to_owned(),
            is_clustered,
            max_payload,
        };
        let too_low = |version: &str, is_clustered, max_payload| {
            let limits = server(version, is_clustered, max_payload).too_low();
            limits.iter().map(|limit| format!("{limit}: {}", limit.remedy())).collect::<Vec<_>>()
        };
        for (version, is_old) in [
            ("2.9.10", true),
            ("2.10.26", true),
            ("2.11.0", false),
            ("2.15.1", false),
            ("3.0.0-beta", false),
        ] {
            assert!(too_low(version, false, 1 << 20).is_empty(), "{version}");
            assert_eq!(too_low(version, true, 1 << 20).len(), usize::from(is_old), "{version}");
        }
        for version in ["2.8.4", "1.4", "unknown", ""] {
            assert!(too_low(version, false, 1 << 20)[0].contains("2.9 or later"), "{version}");
        }
        let small = too_low("2.15.1", true, 8_192);
        assert!(small[0].contains("8192") && small[0].contains("`max_payload: 1MB`"), "{small:?}");
    }

    #[test]
    fn the_storage_needed_is_that_of_all_buckets_and_streams() {
        // As the server states it for one cluster (`reserved_storage` of /jsz).
        assert_eq!(storage_needed(), 3_154_116_608);
        assert!(Limit::Storage.remedy().contains("max_file_store: 3GB"));
    }
}
