//! Requests to the placer and the registry, repeated while another process takes over or the service is
//! busy; the user is informed.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use wattle_common::subject::RequestTopic;
use wattle_runtime::bus::{Bus, BusError};

use crate::output::note;

/// Time without an answer after which the user is informed, wall time.
const NOTE_AFTER: Duration = Duration::from_secs(1);

/// Sends a request to `service` (`placer`, `registry`) until it is answered.
pub(crate) async fn request<T: Serialize, R: DeserializeOwned>(
    bus: &Bus,
    topic: RequestTopic,
    service: &str,
    message: &T,
) -> anyhow::Result<R> {
    let mut noted = false;
    let reply = bus.request_repeatedly(topic, message, |error, waited| {
        if waited < NOTE_AFTER || std::mem::replace(&mut noted, true) {
            return;
        }
        let cause = if error.is_busy() {
            format!("the {service} has too many requests")
        } else {
            format!("the {service} does not answer, and another one may take over")
        };
        let limit = Bus::TAKEOVER_MAX.as_secs();
        note(&format!("{cause}; repeating the request for up to {limit} s"));
    });
    match reply.await {
        Ok(reply) => Ok(reply),
        Err(error) if error.is_busy() => Err(error.into()),
        Err(error) => Err(unanswered(error, service)),
    }
}

/// The error of a request that was not answered, or not sent.
pub(crate) fn unanswered(error: BusError, service: &str) -> anyhow::Error {
    let is_unsent = error.is_value_refused();
    let error = anyhow::Error::new(error);
    if is_unsent {
        return error;
    }
    error.context(format!("the {service} did not answer; is wattle-{service} running?"))
}

/// Whether a request was certainly not sent: the message is too large.
pub(crate) fn is_unsent(error: &anyhow::Error) -> bool {
    error.downcast_ref::<BusError>().is_some_and(BusError::is_value_refused)
}
