//! Requests that are repeated while another process takes over or the service is busy.
//!
//! Only for requests that may be repeated: a repetition changes nothing more.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use wattle_common::lease::SERVICE_LEASE_DEFAULT;
use wattle_common::subject::RequestTopic;

use super::{Bus, BusError, SERVICE_BUSY};

/// Pause before a request is repeated, wall time.
const PAUSE: Duration = Duration::from_millis(200);

impl BusError {
    /// Whether the service has refused the request because of too many others.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        matches!(self, Self::Service { code: SERVICE_BUSY, .. })
    }
}

impl Bus {
    /// Longest time in which [`Bus::request_repeatedly`] repeats a request, wall time: two lease times,
    /// within which another process takes over, and its start.
    pub const TAKEOVER_MAX: Duration = SERVICE_LEASE_DEFAULT.saturating_mul(2);

    /// Sends a request of this process's person to the placer or registry until it is answered, for at
    /// most [`Self::TAKEOVER_MAX`]. `waits` receives the error and the time since the first request before
    /// each repetition.
    ///
    /// # Errors
    /// The last error, if it cannot pass or the time is over.
    pub async fn request_repeatedly<T: Serialize, R: DeserializeOwned>(
        &self,
        topic: RequestTopic,
        message: &T,
        mut waits: impl FnMut(&BusError, Duration),
    ) -> Result<R, BusError> {
        let subject = self.request_subject(topic);
        let began = tokio::time::Instant::now();
        loop {
            let error = match self.request(&subject, message).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            let may_pass = error.is_transient() || matches!(error, BusError::NoResponder { .. });
            let waited = began.elapsed();
            if !may_pass || waited >= Self::TAKEOVER_MAX {
                return Err(error);
            }
            waits(&error, waited);
            tokio::time::sleep(PAUSE).await;
        }
    }
}
