//! Requests to the placer and the registry, repeated while another process takes over.
//!
//! Every request may be repeated: a repetition changes nothing more.

use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use wattle_common::lease::SERVICE_LEASE_DEFAULT;
use wattle_common::subject::RequestTopic;
use wattle_runtime::bus::{Bus, BusError};

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
        if !may_pass || waited >= TAKEOVER_MAX {
            return Err(error)
                .context(format!("the {service} did not answer; is wattle-{service} running?"));
        }
        if waited >= NOTE_AFTER && !std::mem::replace(&mut noted, true) {
            note(&format!(
                "the {service} does not answer; repeating the request for up to {} s, as another one may \
                 take over",
                TAKEOVER_MAX.as_secs()
            ));
        }
        tokio::time::sleep(PAUSE).await;
    }
}
