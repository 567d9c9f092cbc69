//! The NATS service API: registration, discovery and requests.
//!
//! Every service registers, including those without requests, so `nats micro ls` and `$SRV.PING` show
//! the complete system with versions and error counts.

// The client's signature; never iterated here.
use std::collections::BTreeMap;
#[expect(clippy::disallowed_types, reason = "async_nats takes metadata as a HashMap")]
use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use async_nats::service::endpoint::Endpoint;
use async_nats::service::{self, ServiceExt};
use async_nats::{HeaderMap, Message};
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use wattle_common::codec::{self, CodecError};
use wattle_common::subject::{Requester, Subject, Topic};

use super::{ANSWER_WITHIN, Bus, BusError, bounded};
use crate::{clock, instance, log_count};

/// Most services of one discovery.
const SERVICES_MAX: usize = 1_024;
/// The error code of a service that has too many requests; the request may be repeated.
pub const SERVICE_BUSY: u16 = 503;
/// The beginning of every subject of replies.
const REPLIES: &str = "_INBOX.";
const ERROR: &str = "Nats-Service-Error";
const ERROR_CODE: &str = "Nats-Service-Error-Code";

/// A registered service, until it is stopped or dropped.
pub struct Service {
    bus: Bus,
    /// `None` after its end.
    service: Option<service::Service>,
}

/// A service's reply to `$SRV.PING` or `$SRV.INFO`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct FoundService {
    /// The id of this registration, unique among all services.
    #[serde(default)]
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its metadata.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// A sentence on the purpose of the service; only in `$SRV.INFO`.
    #[serde(default)]
    pub description: Option<String>,
    /// Its endpoints; not in `$SRV.PING`.
    #[serde(default)]
    pub endpoints: Vec<FoundEndpoint>,
}

impl FoundService {
    /// Its name without `wattle-`: `placer`.
    #[must_use]
    pub fn short_name(&self) -> &str {
        self.name.trim_start_matches("wattle-")
    }

    /// A value of its metadata; empty if it is absent.
    #[must_use]
    pub fn entry(&self, key: &str) -> &str {
        self.metadata.get(key).map_or("", String::as_str)
    }

    /// Its node or predictor; empty if it serves the cluster.
    #[must_use]
    pub fn of(&self) -> String {
        [self.entry("node"), self.entry("predictor")].concat()
    }

    /// `active` or `standby`.
    #[must_use]
    pub fn state(&self) -> &str {
        let state = self.entry("state");
        if state.is_empty() { "active" } else { state }
    }
}

/// An endpoint of a service; the numbers are 0 except in `$SRV.STATS`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct FoundEndpoint {
    /// Its name.
    pub name: String,
    /// The subject of its requests, or a pattern.
    pub subject: String,
    /// Requests since the service was registered.
    #[serde(rename = "num_requests")]
    pub requests: u64,
    /// Of these, the ones that were answered with an error.
    #[serde(rename = "num_errors")]
    pub errors: u64,
    /// Mean time until the answer, nanoseconds.
    #[serde(rename = "average_processing_time")]
    pub mean_ns: u64,
    /// Data of any program.
    data: serde_json::Value,
}

impl FoundEndpoint {
    /// The statistics of its process; `None` for a program that reports none.
    #[must_use]
    pub fn process(&self) -> Option<ProcessStatistics> {
        ProcessStatistics::deserialize(&self.data).ok()
    }
}

/// The data of an endpoint in `$SRV.STATS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStatistics {
    /// Connections to the server; each after the first is a reconnection.
    pub bus_connections: u64,
    /// Wall time since the process was started, seconds.
    pub up_s: u64,
    /// Log lines of level error.
    pub errors_logged: u64,
    /// Log lines of level warn.
    pub warnings_logged: u64,
}

/// The requests to one subject of a service.
pub struct Requests(Endpoint);

/// One request.
pub struct Request {
    /// Its subject.
    pub subject: String,
    /// Its payload.
    pub payload: Bytes,
    inner: service::Request,
}

impl Bus {
    /// Registers this process as a service of the cluster. The entries of its metadata distinguish it from
    /// others of the same name: `node`, `predictor`, and `state`, which is `active` or `standby`.
    ///
    /// # Errors
    /// If `name` has other characters than letters, digits, `-` and `_`.
    #[expect(clippy::disallowed_types, reason = "async_nats takes metadata as a HashMap")]
    pub async fn register(
        &self,
        name: &str,
        description: &str,
        entries: &[(&str, &str)],
    ) -> Result<Service, BusError> {
        let mut metadata = HashMap::from([
            ("cluster".to_owned(), self.cluster().to_string()),
            ("pid".to_owned(), std::process::id().to_string()),
            ("host".to_owned(), instance::machine()),
        ]);
        for (key, value) in entries {
            metadata.insert((*key).to_owned(), (*value).to_owned());
        }
        let connections = self.shared.reached.clone();
        let statistics = move |_, _| {
            let (errors_logged, warnings_logged) = log_count::lines();
            let up = clock::wall_now().since(clock::started_at());
            serde_json::json!(ProcessStatistics {
                bus_connections: *connections.borrow(),
                up_s: up.as_secs(),
                errors_logged,
                warnings_logged,
            })
        };
        let service = self
            .shared
            .client
            .now(ServiceExt::service_builder)
            .stats_handler(statistics)
            .description(description)
            .metadata(metadata)
            // Every process receives all requests: of two processes, only the one that holds the lease
            // answers, and none is lost because it was sent to the other.
            .queue_group(self.consumer_name())
            .start(name, env!("CARGO_PKG_VERSION"));
        let service = bounded::sent(service)
            .await?
            .map_err(|source| BusError::refused(format!("register {name}"), source))?;
        self.flush().await;
        Ok(Service { bus: self.clone(), service: Some(service) })
    }

    /// All processes that reply as service `name` of this cluster within `patience`.
    ///
    /// # Errors
    /// If the server is away, or refuses.
    pub async fn services(
        &self,
        name: &str,
        patience: Duration,
    ) -> Result<Vec<FoundService>, BusError> {
        self.found("PING", Some(name), patience).await
    }

    /// All services of this cluster that reply within `patience`.
    ///
    /// # Errors
    /// As [`Self::services`].
    pub async fn all_services(&self, patience: Duration) -> Result<Vec<FoundService>, BusError> {
        self.found("PING", None, patience).await
    }

    /// As [`Self::all_services`], with descriptions and the statistics of the endpoints.
    ///
    /// # Errors
    /// As [`Self::services`].
    pub async fn all_statistics(&self, patience: Duration) -> Result<Vec<FoundService>, BusError> {
        let (mut found, statistics) = tokio::try_join!(
            self.found("INFO", None, patience),
            // Without metadata: which cluster it is of is known by the id.
            self.answers("STATS", None, patience),
        )?;
        for statistics in statistics {
            let known = found.iter_mut().find(|service| service.id == statistics.id);
            if let Some(service) = known {
                service.endpoints = statistics.endpoints;
            }
        }
        Ok(found)
    }

    /// Whether a service `name` of this cluster reports an endpoint on `subject` within `patience`.
    ///
    /// # Errors
    /// As [`Self::services`].
    pub async fn serves(
        &self,
        name: &str,
        subject: impl fmt::Display,
        patience: Duration,
    ) -> Result<bool, BusError> {
        let subject = subject.to_string();
        let found = self.found("INFO", Some(name), patience).await?;
        Ok(found.iter().flat_map(|s| &s.endpoints).any(|endpoint| endpoint.subject == subject))
    }

    /// The replies of the services of this cluster.
    async fn found(
        &self,
        verb: &str,
        name: Option<&str>,
        patience: Duration,
    ) -> Result<Vec<FoundService>, BusError> {
        let mut found = self.answers(verb, name, patience).await?;
        let cluster = self.cluster().as_str();
        found.retain(|found| found.metadata.get("cluster").is_some_and(|name| name == cluster));
        Ok(found)
    }

    /// The replies of all services on the server.
    async fn answers(
        &self,
        verb: &str,
        name: Option<&str>,
        patience: Duration,
    ) -> Result<Vec<FoundService>, BusError> {
        self.check_connected()?;
        let subject = match name {
            Some(name) => format!("$SRV.{verb}.{name}"),
            None => format!("$SRV.{verb}"),
        };
        let what = || format!("discover services by {subject}");
        let inbox = self.new_inbox();
        let mut answers = self.subscriber(inbox.clone()).await?;
        let sent = self
            .shared
            .client
            .send(|client| client.publish_with_reply(subject.clone(), inbox, Bytes::new()));
        sent.await?.map_err(|source| BusError::refused(what(), source))?;
        let mut found = Vec::new();
        let gather = async {
            while let Some(answer) = answers.next().await {
                let reply = serde_json::from_slice::<FoundService>(&answer.payload);
                if found.len() < SERVICES_MAX {
                    found.extend(reply);
                }
            }
        };
        // There is no last reply, so gathering ends by time.
        let _ = tokio::time::timeout(patience, gather).await;
        Ok(found)
    }
}

impl Service {
    /// Serves the requests to `subject` (a `Subject`, or a pattern); its metadata name the payloads. Every process that serves a subject
    /// receives all its requests.
    ///
    /// # Errors
    /// If the subject is invalid.
    #[expect(clippy::disallowed_types, reason = "async_nats takes metadata as a HashMap")]
    pub async fn endpoint(&self, subject: impl fmt::Display) -> Result<Requests, BusError> {
        let subject = subject.to_string();
        let service = self.service.as_ref();
        let service = service.ok_or_else(|| BusError::refused("serve", "the service has ended"))?;
        let payloads = Topic::of_pattern(&subject).and_then(Topic::payloads);
        let metadata = payloads.map_or_else(HashMap::new, |(request, reply)| {
            HashMap::from(
                [("request", request), ("reply", reply)]
                    .map(|(key, value)| (key.to_owned(), value.to_owned())),
            )
        });
        let endpoint = service.endpoint_builder().metadata(metadata);
        let endpoint = endpoint.name(endpoint_name(&subject)).add(&subject);
        let endpoint = bounded::sent(endpoint)
            .await?
            .map_err(|source| BusError::refused(format!("serve {subject}"), source))?;
        self.bus.flush().await;
        Ok(Requests(endpoint))
    }

    /// Stops the service.
    pub async fn stop(mut self) {
        self.end();
        self.bus.flush().await;
    }

    fn end(&mut self) {
        // Stopping does not wait; without it, discovery would still find the service.
        let _ = self.service.take().and_then(|service| service.stop().now_or_never());
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.end();
    }
}

/// An endpoint's name: the subject's noun and participle.
fn endpoint_name(subject: &str) -> String {
    let name: Vec<&str> = subject.split('.').skip(3).take(2).collect();
    let name = if name.is_empty() { subject.to_owned() } else { name.join("-") };
    name.replace(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_')), "-")
}

impl Requests {
    /// The next request; `None` after the service is stopped. Cancel-safe.
    pub async fn next(&mut self) -> Option<Request> {
        let inner = self.0.next().await?;
        Some(Request {
            subject: inner.message.subject.to_string(),
            payload: inner.message.payload.clone(),
            inner,
        })
    }
}

impl Request {
    /// Decodes the request.
    ///
    /// # Errors
    /// If it is not a `T`; [`Self::refuse`] it.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, CodecError> {
        codec::decode_json(&self.payload)
    }

    /// Sends the reply.
    ///
    /// # Errors
    /// If it cannot be sent, or none was requested.
    pub async fn respond<T: Serialize>(&self, answer: &T) -> Result<(), BusError> {
        self.send(Ok(codec::encode_json(answer).into())).await
    }

    /// Replies with an error, which the service's statistics count; `code` as in HTTP: 400 for a wrong
    /// request, 500 for an internal error.
    ///
    /// # Errors
    /// As [`Self::respond`].
    pub async fn refuse(&self, code: u16, message: &str) -> Result<(), BusError> {
        // A header is one line.
        let status = message.replace(['\r', '\n'], " ");
        self.send(Err(service::error::Error { status, code: usize::from(code) })).await
    }

    /// The person who sent it, if its subject names one.
    #[must_use]
    pub fn requester(&self) -> Option<Requester> {
        self.subject.parse::<Subject>().ok()?.requester().cloned()
    }

    async fn send(&self, answer: Result<Bytes, service::error::Error>) -> Result<(), BusError> {
        // A service may write subjects that the requester may not: a key of a bucket, for example.
        let reply = self.inner.message.reply.as_deref().unwrap_or_default();
        if !reply.starts_with(REPLIES) {
            let what = format!("reply to `{reply}`");
            return Err(BusError::refused(what, "replies are sent to _INBOX subjects only"));
        }
        match tokio::time::timeout(ANSWER_WITHIN, self.inner.respond(answer)).await {
            Ok(sent) => sent.map_err(|source| BusError::refused("reply", source)),
            Err(_) => Err(BusError::Busy),
        }
    }
}

/// The error in a reply's headers.
pub(super) fn error_of(answer: &Message) -> Option<BusError> {
    let headers: &HeaderMap = answer.headers.as_ref()?;
    let message = headers.get(ERROR)?.to_string();
    let code = headers.get(ERROR_CODE).and_then(|code| code.as_str().parse().ok()).unwrap_or(500);
    Some(BusError::Service { code, message })
}
