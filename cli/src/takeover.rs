//! Requests to the placer and the registry, repeated while another process takes over or the service is
//! busy.
//!
//! Every request may be repeated: a repetition changes nothing more.

use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use wattle_common::lease::SERVICE_LEASE_DEFAULT;
use wattle_common::subject::RequestTopic;
use wattle_runtime::bus::{Bus, BusError, SERVICE_BUSY};

use crate::output::note;

/// Longest time without an answer, wall time: two lease times, within which another process takes over,
/// and its start.
pub(crate) const TAKEOVER_MAX: Duration = SERVICE_LEASE_DEFAULT.saturating_mul(2);
/// Pause before a request is repeated, wall time.
const PAUSE: Duration = Duration::from_millis(200);
/// Time without an answer after which the user is informed, wall time.
const NOTE_AFTER: Duration = Duration::from_secs(1);

/// Sends a request to `service` (`placer`, `registry`) until it is answered.
pub(crate) async fn request<T: Serialize, R: DeserializeOwned>(
    bus: &Bus,
    topic: RequestTopic,
    service: &str,
    message: &T,
) -> anyhow::Result<R> {
    let subject = bus.request_subject(topic);
    let began = tokio::time::Instant::now();
    let mut noted = false;
    loop {
        let error = match bus.request(&subject, message).await {
            Ok(reply) => return Ok(reply),
            Err(error) => error,
        };
        let may_pass = error.is_transient() || matches!(error, BusError::NoResponder { .. });
        let waited = began.elapsed();
        let is_busy = matches!(error, BusError::Service { code: SERVICE_BUSY, .. });
        if is_busy && waited >= TAKEOVER_MAX {
            return Err(error.into());
        }
        if !may_pass || waited >= TAKEOVER_MAX {
            return Err(error)
                .context(format!("the {service} did not answer; is wattle-{service} running?"));
        }
        if waited >= NOTE_AFTER && !std::mem::replace(&mut noted, true) {
            let cause = if is_busy {
                format!("the {service} has too many requests")
            } else {
                format!("the {service} does not answer, and another one may take over")
            };
            note(&format!("{cause}; repeating the request for up to {} s", TAKEOVER_MAX.as_secs()));
        }
        tokio::time::sleep(PAUSE).await;
    }
}
