//! What can go wrong with the bus, by what the caller does about it.

use std::path::PathBuf;

use wattle_common::codec::{CodecError, PAYLOAD_LEN_MAX};

/// Anything that the client underneath says.
pub(super) type Source = Box<dyn std::error::Error + Send + Sync>;

/// Why the bus did not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// The server is away; nothing was sent. Try again, or live without.
    #[error("nats server at {url} does not answer; nothing was sent")]
    Away {
        /// Where it should be.
        url: String,
    },
    /// The server takes nothing more for now; nothing was sent. As [`Self::Away`].
    #[error("nats server takes no more messages for now; nothing was sent")]
    Busy,
    /// No answer in time. It may have been done: ask again in a way that does no harm then.
    #[error("no answer in time to: {what}; it may have been done or not")]
    Timeout {
        /// What was asked.
        what: String,
    },
    /// Somebody else was first: read again, decide again.
    #[error("key `{key}` of bucket {bucket} has changed since it was read")]
    Conflict {
        /// The bucket.
        bucket: String,
        /// The key.
        key: String,
    },
    /// Nobody serves the subject.
    #[error("nobody answers on {subject}; is the service running?")]
    NoResponder {
        /// The subject.
        subject: String,
    },
    /// The service that was asked answered with an error.
    #[error("the service answered: {message} (code {code})")]
    Service {
        /// Its code, as HTTP's.
        code: u16,
        /// What it says.
        message: String,
    },
    /// The message is too large to send.
    #[error(
        "a message of {len} bytes to {subject} is too large; at most {PAYLOAD_LEN_MAX} are sent"
    )]
    TooLarge {
        /// Its subject.
        subject: String,
        /// Its size.
        len: usize,
    },
    /// What arrived is not what it should be.
    #[error("what arrived is not what was expected")]
    Codec(#[from] CodecError),
    /// The server has no JetStream, or not yet: one that starts greets before its streams answer.
    #[error(
        "nats server at {url} has no JetStream; start it with -js, or with a jetstream block in its configuration"
    )]
    NoJetStream {
        /// Where it is.
        url: String,
    },
    /// A stream of that name is there and is not what Wattle needs.
    #[error(
        "stream {stream} on the nats server has {found} where Wattle needs {needed}; rename or delete it (nats stream rm {stream})"
    )]
    Foreign {
        /// The stream.
        stream: String,
        /// What it has.
        found: String,
        /// What it needs.
        needed: String,
    },
    /// A file that the configuration names cannot be used.
    #[error("cannot use {}, which the nats table of the configuration names", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: Source,
    },
    /// The server or the client refused: permissions, a wrong subject, a full store.
    #[error("cannot {what}")]
    Refused {
        /// What was asked.
        what: String,
        /// Why not.
        #[source]
        source: Source,
    },
}

impl BusError {
    pub(super) fn refused(what: impl Into<String>, source: impl Into<Source>) -> Self {
        Self::Refused { what: what.into(), source: source.into() }
    }

    /// Whether the same call may succeed later, without anybody changing anything.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Away { .. } | Self::Busy | Self::Timeout { .. } | Self::NoJetStream { .. }
        )
    }
}
