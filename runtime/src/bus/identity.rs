//! What the server proves about the identity of this process and of the senders of requests.
//!
//! On a server with the keys of the role table each person's key may publish only on subjects with its own
//! rank and name. On a server with one key for everything, as `wattle up` starts it, the key proves the
//! right to command, and the name of a person is only declared ([`Rank::Local`]).
//!
//! [`Rank::Local`]: wattle_common::subject::Rank::Local

use std::sync::atomic::Ordering;
use std::time::Duration;

use wattle_common::JobId;
use wattle_common::messages::{JobsReply, ReadJobs};
use wattle_common::subject::{RequestTopic, Requester};

use super::{Bus, BusError};

/// Interval in which a refusal of the server is looked for, wall time.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Most attempts to receive an answer: a placer may be taking over.
const TRIES_MAX: u32 = 4;
/// One job, which need not exist.
const JOB: &str = "none";

impl Bus {
    /// The person on whose behalf this process sends requests, as the key's file states it.
    #[must_use]
    pub fn requester(&self) -> &Requester {
        &self.shared.requester
    }

    /// Whether the server has checked the key of this process.
    #[must_use]
    pub fn has_key(&self) -> bool {
        self.shared.key.is_some()
            && self.shared.client.now(|client| client.server_info().auth_required)
    }

    /// Whether the server has checked the key of this process, and the key's file names an identity of the
    /// role table: then the server proves the sender of a request.
    #[must_use]
    pub fn has_own_key(&self) -> bool {
        self.has_key() && self.shared.has_role
    }

    /// The public key of the connection, which the server has proven if it checks keys.
    #[must_use]
    pub fn public_key(&self) -> Option<&str> {
        self.shared.key.as_deref()
    }

    /// Whether the connection is over: the server refuses its key, or it has given up.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let is_over = self.shared.refused.load(Ordering::Relaxed)
            || self.shared.ended.load(Ordering::Relaxed);
        is_over && !self.is_connected()
    }

    /// Whether the server permits this process to send requests in the name of its requester, which the
    /// key's file only claims. Sends a request that changes nothing; a message that the server has refused
    /// before counts as its refusal.
    ///
    /// # Errors
    /// If the server is away, or neither refuses the request nor delivers its answer.
    pub async fn has_proven_requester(&self) -> Result<bool, BusError> {
        let subject = self.request_subject(RequestTopic::JobRequested);
        let job = JobId::new(JOB).ok();
        let request = ReadJobs { job, ..ReadJobs::default() };
        let refused = async {
            while !self.shared.forbidden.load(Ordering::Relaxed) {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        let answered = async {
            let mut tries = 0;
            loop {
                tries += 1;
                match self.request::<_, JobsReply>(&subject, &request).await {
                    Err(BusError::Timeout { .. }) if tries < TRIES_MAX => {}
                    // The server has accepted the request, also where it has no receiver.
                    Ok(_)
                    | Err(
                        BusError::NoResponder { .. }
                        | BusError::Service { .. }
                        | BusError::Codec { .. },
                    ) => return Ok(true),
                    Err(error) => return Err(error),
                }
            }
        };
        tokio::select! {
            biased;
            () = refused => Ok(false),
            answered = answered => answered,
        }
    }
}
