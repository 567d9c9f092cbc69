//! Grid events: what an operator requests, what an entered event would be, and the minutes of a report as CSV.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use wattle_common::EventId;
use wattle_common::event::report::{event_report, needed_from};
use wattle_common::messages::EventReply;
use wattle_common::subject::RequestTopic;
use wattle_runtime::site_minutes;
use wattle_view::event_report;

use super::actions::{answer, failed, not_signed_in, operator, refuse};
use super::{Shared, guard, now};
use crate::announced::{Announced, Requested};
use crate::pages::announcement;
use crate::patch::without_nulls;

/// `POST /api/event`: announces, changes, cancels or declines an event.
pub(super) async fn request(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let bus = match operator(&shared, &headers, "only operators announce and change events") {
        Ok(bus) => bus,
        Err(refusal) => return *refusal,
    };
    let requested = match serde_json::from_slice::<Requested>(&body) {
        Ok(requested) => requested.request(now().at),
        Err(error) => Err(error.to_string()),
    };
    let request = match requested {
        Ok(request) => request,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, error),
    };
    match bus.request(&bus.request_subject(RequestTopic::EventSet), &request).await {
        Ok(EventReply::Stored { record, .. }) => {
            answer(StatusCode::OK, &json!({ "event": record.event.event.as_str() }))
        }
        Ok(EventReply::Refused { error }) => refuse(StatusCode::CONFLICT, error),
        Err(error) => failed(&error),
    }
}

/// `POST /api/event/review`: what an entered event would be. Nothing changes.
pub(super) async fn review(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if guard::person(&shared, &headers).is_none() {
        return not_signed_in();
    }
    let announced = match serde_json::from_slice::<Announced>(&body) {
        Ok(announced) => announced.event(now().at),
        Err(error) => Err(error.to_string()),
    };
    // What is wrong is an answer too: it changes with each key.
    let shown = match announced {
        Ok(event) => without_nulls(announcement(&event, &shared.model())),
        Err(error) => json!({ "error": error }),
    };
    answer(StatusCode::OK, &shown)
}

/// `GET /api/event.csv`: the minutes of an event's report.
pub(super) async fn csv(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Query(parameters): Query<BTreeMap<String, String>>,
) -> Response {
    if shared.config.require_sign_in && guard::reader(&shared, &headers).is_none() {
        return not_signed_in();
    }
    let id = EventId::new(parameters.get("event").map(String::as_str).unwrap_or_default());
    let found = id.ok().and_then(|id| {
        let model = shared.model();
        let record = model.events.as_ref()?.events.get(&id)?.clone();
        let jobs = model.event_jobs.events.get(&id).cloned().unwrap_or_default();
        Some((record, jobs))
    });
    let Some((record, jobs)) = found else {
        return refuse(StatusCode::NOT_FOUND, "no such event");
    };
    let site = match site_minutes::read(&shared.bus, needed_from(&record)).await {
        Ok(site) => site,
        Err(error) => return failed(&error),
    };
    let report = event_report(&record, &jobs, &site, now().at);
    let name = format!("attachment; filename=\"{}.csv\"", record.event.event);
    let kind = [
        (header::CONTENT_TYPE, "text/csv; charset=utf-8".to_owned()),
        (header::CONTENT_DISPOSITION, name),
    ];
    (kind, event_report::csv(&report)).into_response()
}
