//! Spans for OpenTelemetry: they are sent to a collector by OTLP over HTTP, encoded as JSON.
//!
//! The service never waits for the collector. Spans are queued; if the queue is full or the collector does not
//! accept them, they are dropped and counted. Ids are hashes of names, so several processes, also after a
//! restart, can add spans to one trace without exchanging ids.
//!
//! Protocol: OpenTelemetry specification, OTLP 1.x, "OTLP/HTTP" and "JSON Protobuf Encoding": ids are
//! hexadecimal, times are nanoseconds since 1970 as decimal texts.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use ureq::Agent;
use wattle_common::Timestamp;
use wattle_common::config::TracesConfig;
use wattle_common::hash::fnv1a;

use crate::metrics::{Counters, Metrics};

/// Spans that wait to be sent.
const QUEUED_MAX: usize = 4_096;
/// Most spans in one request.
const BATCH: usize = 512;
/// How long spans are collected before they are sent, wall time.
const DELAY: Duration = Duration::from_secs(1);
/// Longest time of a request, wall time.
const TIMEOUT: Duration = Duration::from_secs(5);
/// `SPAN_KIND_INTERNAL`.
const KIND_INTERNAL: u8 = 1;
/// `STATUS_CODE_ERROR`.
const STATUS_ERROR: u8 = 2;

/// An interval in the life of something: a job, a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// The name of its trace: all spans of one name are one trace.
    pub trace: String,
    /// Its name within the trace, unique there: `running 2`. The first word is shown as its name.
    pub id: String,
    /// The id of the span that it is part of.
    pub parent: Option<String>,
    /// Its start.
    pub start: Timestamp,
    /// Its end.
    pub end: Timestamp,
    /// Further facts; names begin with `wattle.`.
    pub attributes: Vec<(&'static str, Value)>,
    /// Why it failed; absent: it did not.
    pub error: Option<String>,
}

impl Span {
    fn trace_id(&self) -> String {
        let half = |part: &str| fnv1a(format!("{part} {}", self.trace).as_bytes());
        format!("{:016x}{:016x}", half("high"), half("low"))
    }

    fn span_id(&self, id: &str) -> String {
        format!("{:016x}", fnv1a(format!("{} {id}", self.trace).as_bytes()))
    }

    fn encode(&self) -> Value {
        let mut value = json!({
            "traceId": self.trace_id(),
            "spanId": self.span_id(&self.id),
            "name": self.id.split(' ').next().unwrap_or_default(),
            "kind": KIND_INTERNAL,
            "startTimeUnixNano": nanoseconds(self.start),
            "endTimeUnixNano": nanoseconds(self.end.max(self.start)),
            "attributes": attributes(&self.attributes),
        });
        if let Some(parent) = &self.parent {
            value["parentSpanId"] = self.span_id(parent).into();
        }
        if let Some(error) = &self.error {
            value["status"] = json!({ "code": STATUS_ERROR, "message": error });
        }
        value
    }
}

fn nanoseconds(at: Timestamp) -> String {
    format!("{}000", at.as_us())
}

fn attributes(of: &[(&'static str, Value)]) -> Value {
    let encode = |(key, value): &(&'static str, Value)| {
        let value = match value {
            Value::Bool(value) => json!({ "boolValue": value }),
            // The encoding has 64-bit integers as texts.
            Value::Number(number) if !number.is_f64() => json!({ "intValue": number.to_string() }),
            Value::Number(number) => json!({ "doubleValue": number }),
            Value::String(text) => json!({ "stringValue": text }),
            other => json!({ "stringValue": other.to_string() }),
        };
        json!({ "key": key, "value": value })
    };
    of.iter().map(encode).collect()
}

/// The body of a request.
fn request(service: &str, cluster: &str, spans: &[Span]) -> Value {
    let resource = [
        ("service.name", service.into()),
        ("service.version", env!("CARGO_PKG_VERSION").into()),
        ("wattle.cluster", cluster.into()),
    ];
    let spans: Vec<Value> = spans.iter().map(Span::encode).collect();
    json!({ "resourceSpans": [{
        "resource": { "attributes": attributes(&resource) },
        "scopeSpans": [{ "scope": { "name": "wattle" }, "spans": spans }],
    }] })
}

/// The counters of sent and dropped spans.
#[must_use]
pub fn counters(metrics: &Metrics) -> Counters<1> {
    metrics.counters(
        "wattle_trace_spans_total",
        "Spans for OpenTelemetry: sent to the collector, or dropped because it did not accept them",
        ["result"],
    )
}

/// Sends spans to a collector, in the background. Clones share the queue.
#[derive(Clone)]
pub struct Exporter {
    queue: mpsc::Sender<Span>,
    counts: Counters<1>,
    /// Its end ends the pause before the last spans are sent.
    _ends: Arc<SyncSender<()>>,
}

impl Exporter {
    /// Starts to export; `None` without an address in the configuration.
    #[must_use]
    pub fn start(
        config: &TracesConfig,
        service: &'static str,
        cluster: &str,
        counts: Counters<1>,
    ) -> Option<Self> {
        let url = config.otlp_url.clone()?;
        let (queue, spans) = mpsc::channel(QUEUED_MAX);
        let (ends, ended) = sync_channel(1);
        let (cluster, counted) = (cluster.to_owned(), counts.clone());
        // A thread of its own: it blocks, and the end of the process does not wait for it.
        let thread = std::thread::Builder::new().name("traces".to_owned()).spawn(move || {
            let encode = |spans: &[Span]| request(service, &cluster, spans).to_string();
            export(&url, spans, &ended, &counted, encode);
        });
        if let Err(error) = thread {
            tracing::error!(%error, "no thread for the export of spans; they are dropped");
        }
        Some(Self { queue, counts, _ends: Arc::new(ends) })
    }

    /// Sends a span, unless the queue is full.
    pub fn send(&self, span: Span) {
        if self.queue.try_send(span).is_err() {
            self.counts.add(["dropped"], 1.0);
        }
    }
}

/// Sends the spans of the queue until it is closed.
fn export(
    url: &str,
    mut spans: mpsc::Receiver<Span>,
    ended: &Receiver<()>,
    counts: &Counters<1>,
    encode: impl Fn(&[Span]) -> String,
) {
    // The collector is the site's own: without a proxy and without TLS.
    let config = Agent::config_builder().timeout_global(Some(TIMEOUT)).max_redirects(0).proxy(None);
    let agent = Agent::from(config.http_status_as_error(false).build());
    let (mut batch, mut was_refused) = (Vec::new(), false);
    while spans.blocking_recv_many(&mut batch, BATCH) > 0 {
        let _ = ended.recv_timeout(DELAY);
        while batch.len() < BATCH
            && let Ok(span) = spans.try_recv()
        {
            batch.push(span);
        }
        let sent = send(&agent, url, encode(&batch));
        let result = if sent.is_ok() { "sent" } else { "dropped" };
        counts.add([result], batch.len() as f64);
        batch.clear();
        let was = std::mem::replace(&mut was_refused, sent.is_err());
        match sent {
            Err(error) if !was => {
                let what = "the collector of traces does not accept spans; they are dropped";
                tracing::warn!(url, error, "{what}");
            }
            Ok(()) if was => tracing::info!(url, "the collector of traces accepts spans again"),
            _ => {}
        }
    }
}

fn send(agent: &Agent, url: &str, body: String) -> Result<(), String> {
    if !url.starts_with("http://") {
        return Err("its address begins with something else than http://".to_owned());
    }
    match agent.post(url).header("content-type", "application/json").send(body) {
        Ok(answer) if answer.status().is_success() => Ok(()),
        Ok(answer) => Err(format!("HTTP status {}", answer.status())),
        Err(ureq::Error::Timeout(_)) => Err(format!("no answer within {} s", TIMEOUT.as_secs())),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(id: &str, parent: Option<&str>) -> Span {
        Span {
            trace: "main/job-1".to_owned(),
            id: id.to_owned(),
            parent: parent.map(str::to_owned),
            start: Timestamp::from_s(10),
            end: Timestamp::from_us(12_000_001),
            attributes: vec![
                ("wattle.gpus", 2.into()),
                ("wattle.energy_j", 1.5.into()),
                ("wattle.user", "ada".into()),
            ],
            error: None,
        }
    }

    #[test]
    fn spans_are_encoded_as_otlp_requires() {
        let body = request("wattle-placer", "main", &[span("running 1", Some("job"))]);
        let encoded = &body["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
        assert_eq!(encoded["name"], "running");
        assert_eq!(encoded["startTimeUnixNano"], "10000000000");
        assert_eq!(encoded["endTimeUnixNano"], "12000001000");
        let ids =
            ["traceId", "spanId", "parentSpanId"].map(|key| encoded[key].as_str().unwrap().len());
        assert_eq!(ids, [32, 16, 16]);
        assert_eq!(
            encoded["attributes"].to_string(),
            r#"[{"key":"wattle.gpus","value":{"intValue":"2"}},{"key":"wattle.energy_j","value":{"doubleValue":1.5}},{"key":"wattle.user","value":{"stringValue":"ada"}}]"#
        );
        assert!(encoded.get("status").is_none());
        let failed = Span { error: Some("exit code 1".to_owned()), ..span("job", None) }.encode();
        assert_eq!(failed["status"]["code"], 2);
        assert!(failed.get("parentSpanId").is_none());
        let resource = body["resourceSpans"][0]["resource"]["attributes"].to_string();
        assert!(resource.contains("wattle-placer"), "{resource}");
    }

    #[test]
    fn parents_are_found_by_name() {
        let (parent, child) = (span("job", None).encode(), span("queued 1", Some("job")).encode());
        assert_eq!(parent["spanId"], child["parentSpanId"]);
        assert_eq!(parent["traceId"], child["traceId"]);
        assert_ne!(parent["spanId"], child["spanId"]);
        let other = Span { trace: "main/job-2".to_owned(), ..span("job", None) }.encode();
        assert_ne!(parent["traceId"], other["traceId"]);
        assert_ne!(parent["spanId"], other["spanId"]);
    }

    #[test]
    fn a_span_does_not_end_before_its_start() {
        let span = Span { end: Timestamp::from_s(9), ..span("job", None) };
        assert_eq!(span.encode()["endTimeUnixNano"], "10000000000");
    }
}
