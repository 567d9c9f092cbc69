//! Errors of the bus, grouped by the caller's reaction.

use std::path::PathBuf;

use async_nats::jetstream::ErrorCode;
use wattle_common::ClusterId;
use wattle_common::codec::{CodecError, PAYLOAD_LEN_MAX};

use super::connect::OPENED_WITHIN;
use super::{Limit, SERVICE_BUSY};

/// An error of the client library.
pub(super) type Source = Box<dyn std::error::Error + Send + Sync>;

/// Why a call of the bus failed.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// The server is not connected; nothing was sent. Retry, or continue without.
    #[error("nats server at {url} is not connected; nothing was sent")]
    Disconnected {
        /// Its address.
        url: String,
    },
    /// The server accepts no messages now; nothing was sent. As [`Self::Disconnected`].
    #[error("nats server accepts no messages now; nothing was sent")]
    Busy,
    /// No reply in time. The request may have been carried out; a retry must be idempotent.
    #[error("timeout: {what}; it may have been carried out")]
    Timeout {
        /// The operation.
        what: String,
    },
    /// The server has no such stream, and has not created it in time: this key may not create it, or the server is
    /// slow.
    #[error("stream {stream} does not exist and was not created in time")]
    Missing {
        /// The stream.
        stream: String,
    },
    /// Another write came first: read the value and decide again.
    #[error("key `{key}` of bucket {bucket} has changed since it was read")]
    Conflict {
        /// The bucket.
        bucket: String,
        /// The key.
        key: String,
    },
    /// No service on the subject.
    #[error("no service answers on {subject}; is it running?")]
    NoResponder {
        /// The subject.
        subject: String,
    },
    /// The service replied with an error.
    #[error("the service replied with an error: {message} (code {code})")]
    Service {
        /// Its code, as in HTTP.
        code: u16,
        /// The error text.
        message: String,
    },
    /// The message is too large; nothing was sent.
    #[error(
        "a message of {len} bytes to {subject} was not sent: it is larger than {PAYLOAD_LEN_MAX} bytes"
    )]
    TooLarge {
        /// Its subject.
        subject: String,
        /// Its size.
        len: usize,
    },
    /// The message is too large for the server; nothing was sent.
    #[error(
        "a message of {len} bytes to {subject} was not sent: the nats server at {url} is limited, {limit}: {}",
        limit.remedy()
    )]
    TooLargeForServer {
        /// Its subject.
        subject: String,
        /// Its size.
        len: usize,
        /// The server's address.
        url: String,
        /// The limit.
        limit: Limit,
    },
    /// A limit of the server is below what Wattle needs.
    #[error("the nats server at {url} cannot be used: {limit}: {}", limit.remedy())]
    Limit {
        /// Its address.
        url: String,
        /// The limit.
        limit: Limit,
    },
    /// The server has no room for the value: a full bucket, stream, account or disk.
    #[error("cannot {what}: the server's storage for it is full")]
    Full {
        /// The operation.
        what: String,
        /// The server's error.
        #[source]
        source: Source,
    },
    /// The payload cannot be decoded.
    #[error("received payload cannot be decoded")]
    Codec(#[from] CodecError),
    /// The server or the account has no JetStream; a starting server accepts connections before JetStream is
    /// ready.
    #[error("the nats server at {url} cannot store anything: {limit}: {}", limit.remedy())]
    NoJetStream {
        /// Its address.
        url: String,
        /// Which of the two.
        limit: Limit,
    },
    /// The cluster has no buckets: no placer has created them.
    #[error(
        "cluster `{cluster}` has no storage on the nats server at {url}: start its placer, which creates \
         it, or name another cluster with --cluster"
    )]
    NoStorage {
        /// Its address.
        url: String,
        /// The cluster.
        cluster: ClusterId,
    },
    /// The server has not answered in time whether the cluster has buckets: it is slow, or this key may not read
    /// them.
    #[error(
        "the nats server at {url} has not opened the storage of cluster `{cluster}` within {} s: if the server is \
         busy, repeat the command; otherwise this key may not read that cluster: name another with --cluster",
        OPENED_WITHIN.as_secs()
    )]
    StorageUnanswered {
        /// Its address.
        url: String,
        /// The cluster.
        cluster: ClusterId,
    },
    /// A stream of that name exists with another configuration.
    #[error(
        "stream {stream} on the nats server has {found} where Wattle needs {needed}; rename or delete it (nats stream rm {stream})"
    )]
    Foreign {
        /// The stream.
        stream: String,
        /// Its configuration.
        found: String,
        /// The required configuration.
        needed: String,
    },
    /// The address is not one of a NATS server.
    #[error(
        "`{url}` is not the address of a nats server: write it as nats://HOST:4222 (or tls://, ws://, wss://)"
    )]
    Address {
        /// The address without a password.
        url: String,
        /// The cause.
        #[source]
        source: Source,
    },
    /// The address contains a user or password.
    #[error(
        "the address of the nats server at {url} contains a user or a password, which other users of \
         this machine can read: use the key file of `wattle keys` with --credentials or \
         credentials_file"
    )]
    PasswordInAddress {
        /// The address without them.
        url: String,
    },
    /// The server is not on loopback and the connection would not be protected.
    #[error(
        "nats server at {url} is not on loopback and the connection lacks {missing} \
         (permit_insecure = true in the [nats] table permits it)"
    )]
    Insecure {
        /// Its address.
        url: String,
        /// What is missing, and the remedy.
        missing: &'static str,
    },
    /// The server does not accept the credentials, or requires some.
    #[error("nats server at {url} refuses the connection: {reason}")]
    Unauthorized {
        /// Its address.
        url: String,
        /// What was presented, and the remedy.
        reason: &'static str,
    },
    /// A file for the connection cannot be used.
    #[error("cannot use {} for the connection to the nats server", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Source,
    },
    /// Refused by the server or client: permissions, a wrong subject, a full store.
    #[error("cannot {what}")]
    Refused {
        /// The operation.
        what: String,
        /// The cause.
        #[source]
        source: Source,
    },
}

impl BusError {
    pub(super) fn file(path: &std::path::Path, source: impl Into<Source>) -> Self {
        Self::File { path: path.to_owned(), source: source.into() }
    }

    pub(super) fn refused(what: impl Into<String>, source: impl Into<Source>) -> Self {
        Self::Refused { what: what.into(), source: source.into() }
    }

    /// Whether the server or the client does not store this value, although others may be stored.
    #[must_use]
    pub const fn is_value_refused(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::TooLarge { .. } | Self::TooLargeForServer { .. })
    }

    /// The limit of the server that causes it.
    #[must_use]
    pub const fn limit(&self) -> Option<&Limit> {
        match self {
            Self::Limit { limit, .. }
            | Self::NoJetStream { limit, .. }
            | Self::TooLargeForServer { limit, .. } => Some(limit),
            _ => None,
        }
    }

    /// Whether the server has no such stream.
    pub(super) fn is_not_found(&self) -> bool {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(this) = cause {
            if let Some(reply) = this.downcast_ref::<async_nats::jetstream::Error>() {
                return reply.error_code() == ErrorCode::STREAM_NOT_FOUND;
            }
            cause = this.source();
        }
        false
    }

    /// Whether the same call may succeed later without intervention.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Disconnected { .. }
                | Self::Busy
                | Self::Timeout { .. }
                | Self::Missing { .. }
                | Self::NoJetStream { .. }
                | Self::Service { code: SERVICE_BUSY, .. }
        )
    }
}
