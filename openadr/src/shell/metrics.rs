//! Metrics of the connection with an OpenADR server: polls, events, requests, reports.

use wattle_common::messages::EventRequest;
use wattle_runtime::metrics::{Counters, Gauge, Gauges, Metrics};

use crate::machine::{Answer, Measures};

const REQUESTS: [&str; 3] = ["add", "change", "cancel"];
const RESULTS: [&str; 3] = ["stored", "refused", "unanswered"];

/// The metrics of one service. Clones share them.
#[derive(Clone)]
pub struct OpenAdrMetrics {
    active: Gauge,
    reachable: Gauge,
    polls: Counters<1>,
    events: Gauges<1>,
    ignored: Gauge,
    requests: Counters<2>,
    reports: Counters<1>,
}

fn truth(is: bool) -> Option<f64> {
    Some(f64::from(u8::from(is)))
}

const fn result(succeeded: bool) -> &'static str {
    if succeeded { "succeeded" } else { "failed" }
}

impl OpenAdrMetrics {
    /// Registers the metrics.
    #[must_use]
    pub fn new(metrics: &Metrics) -> Self {
        let all = Self {
            active: metrics.gauge(
                "wattle_openadr_active",
                "Whether this service works: 1, or 0 on standby",
            ),
            reachable: metrics.gauge(
                "wattle_openadr_reachable",
                "Whether the events were read at the last poll of the OpenADR server: 1 or 0",
            ),
            polls: metrics.counters(
                "wattle_openadr_polls_total",
                "Polls of the OpenADR server: succeeded or failed",
                ["result"],
            ),
            events: metrics.gauges(
                "wattle_openadr_events",
                "Events of the OpenADR server that are followed, and events that cannot be used or that the placer \
                 refuses",
                ["state"],
            ),
            ignored: metrics.gauge(
                "wattle_openadr_ignored_kinds",
                "Kinds of payloads and reports that are ignored; the log names each once",
            ),
            requests: metrics.counters(
                "wattle_openadr_requests_total",
                "Requests to the placer (add, change or cancel): stored, refused or unanswered",
                ["request", "result"],
            ),
            reports: metrics.counters(
                "wattle_openadr_reports_total",
                "Reports to the OpenADR server: succeeded or failed",
                ["result"],
            ),
        };
        all.active.set([], Some(0.0));
        for counters in [&all.polls, &all.reports] {
            counters.begin([["succeeded"], ["failed"]]);
        }
        for request in REQUESTS {
            all.requests.begin(RESULTS.map(|result| [request, result]));
        }
        all
    }

    pub(super) fn is_active(&self, active: bool) {
        self.active.set([], truth(active));
        if !active {
            self.reachable.set([], None);
        }
    }

    pub(super) fn set(&self, measures: Measures) {
        self.reachable.set([], measures.is_reachable.and_then(truth));
        self.events.set(["followed"], Some(measures.followed as f64));
        self.events.set(["refused"], Some(measures.refused as f64));
        self.ignored.set([], Some(measures.ignored as f64));
    }

    pub(super) fn polled(&self, succeeded: bool) {
        self.polls.increment([result(succeeded)]);
    }

    pub(super) fn reported(&self, succeeded: bool) {
        self.reports.increment([result(succeeded)]);
    }

    pub(super) fn answered(&self, request: &EventRequest, answer: &Answer) {
        let request = match request {
            EventRequest::Add { .. } => "add",
            EventRequest::Change { .. } => "change",
            EventRequest::Cancel { .. } | EventRequest::Decline { .. } => "cancel",
        };
        let result = match answer {
            Answer::Stored(_) => "stored",
            Answer::Refused(_) => "refused",
            Answer::Absent(_) => "unanswered",
        };
        self.requests.increment([request, result]);
    }
}
