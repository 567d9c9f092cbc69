//! What a person may do: sign in, read a log, cancel a job, set the budget.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use wattle_common::messages::{BudgetReply, CancelJob, OutputReply, ReadOutput, Reply, SetBudget};
use wattle_common::subject::{Rank, RequestTopic, Subject};
use wattle_common::time::span_s;
use wattle_common::{Budget, JobId, NodeId};
use wattle_runtime::bus::{Bus, BusError};
use wattle_runtime::shell::chain;

use super::{Shared, guard, now};
use crate::pages::allowance;
use crate::patch::without_nulls;

pub(super) fn answer(status: StatusCode, value: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

pub(super) fn refuse(status: StatusCode, error: impl ToString) -> Response {
    answer(status, &json!({ "error": error.to_string() }))
}

pub(super) fn failed(error: &BusError) -> Response {
    let text = match error {
        BusError::NoResponder { .. } => "no service answers this request".to_owned(),
        BusError::Disconnected { .. } => {
            "the NATS server cannot be reached: try again later".to_owned()
        }
        other => chain(other),
    };
    refuse(StatusCode::BAD_GATEWAY, text)
}

pub(super) fn not_signed_in() -> Response {
    refuse(StatusCode::UNAUTHORIZED, "sign in first")
}

/// The person of a connection, and what the person may do.
fn described(bus: &Bus) -> Value {
    let person = bus.requester();
    json!({
        "name": person.user.as_str(),
        "rank": person.rank.as_str(),
        "changes": person.rank != Rank::Monitor,
        "operates": person.may_operate(),
    })
}

/// `GET /api/session`: the person of the session, whether people have keys, and whether pages need a session.
pub(super) async fn session(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    let person = guard::person(&shared, &headers).map(|bus| described(&bus));
    let (keys, required) = (shared.bus.has_own_key(), shared.config.require_sign_in);
    answer(StatusCode::OK, &json!({ "person": person, "keys": keys, "required": required }))
}

pub(super) fn cookie(value: &str, age_s: u32, is_secure: bool) -> HeaderValue {
    let secure = if is_secure { "; Secure" } else { "" };
    let text = format!(
        "{}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age_s}{secure}",
        guard::COOKIE
    );
    HeaderValue::from_str(&text).expect("ASCII")
}

pub(super) fn is_https(headers: &HeaderMap) -> bool {
    let origin = headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok());
    origin.is_some_and(|origin| origin.starts_with("https://"))
}

/// `POST /api/session` with the text of a key file: signs in.
pub(super) async fn sign_in(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: String,
) -> Response {
    match shared.sessions.begin(&shared.config, &body).await {
        Ok((token, bus)) => {
            tracing::info!(person = %bus.requester(), "signed in");
            let mut response = answer(StatusCode::OK, &json!({ "person": described(&bus) }));
            let cookie = cookie(&token, 8 * 3_600, is_https(&headers));
            response.headers_mut().insert(header::SET_COOKIE, cookie);
            response
        }
        Err(error) => refuse(StatusCode::FORBIDDEN, error),
    }
}

/// `DELETE /api/session`: signs out.
pub(super) async fn sign_out(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    if let Some(token) = guard::token(&headers) {
        shared.sessions.end(token);
        if let Some(links) = &shared.links {
            links.end(token);
        }
    }
    let mut response = answer(StatusCode::OK, &json!({}));
    response.headers_mut().insert(header::SET_COOKIE, cookie("", 0, is_https(&headers)));
    response
}

/// `GET /api/log`: the output of a job on a node from a byte on.
pub(super) async fn log(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Query(parameters): Query<BTreeMap<String, String>>,
) -> Response {
    let Some(bus) = guard::person(&shared, &headers) else { return not_signed_in() };
    let get = |key: &str| parameters.get(key).map(String::as_str).unwrap_or_default();
    let (Ok(job), Ok(node)) = (JobId::new(get("job")), NodeId::new(get("node"))) else {
        return refuse(StatusCode::BAD_REQUEST, "name a job and a node");
    };
    let offset = get("offset").parse().unwrap_or(0);
    let subject = Subject::of_output(bus.cluster().clone(), node, bus.requester().clone());
    match bus.request::<_, OutputReply>(&subject, &ReadOutput { job, offset }).await {
        Ok(OutputReply::Output { bytes, data }) => {
            let text = String::from_utf8_lossy(&data);
            let next = offset + data.len() as u64;
            answer(StatusCode::OK, &json!({ "bytes": bytes, "next": next, "text": text }))
        }
        Ok(OutputReply::Refused { error }) => refuse(StatusCode::FORBIDDEN, error),
        Err(error) => failed(&error),
    }
}

/// The body of a cancellation.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cancel {
    job: JobId,
}

/// `POST /api/cancel`: cancels a job.
pub(super) async fn cancel(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let Some(bus) = guard::person(&shared, &headers) else { return not_signed_in() };
    if bus.requester().rank == Rank::Monitor {
        return refuse(StatusCode::FORBIDDEN, "a monitor changes nothing");
    }
    let Ok(Cancel { job }) = serde_json::from_slice(&body) else {
        return refuse(StatusCode::BAD_REQUEST, "name a job");
    };
    let subject = bus.request_subject(RequestTopic::JobCancelled);
    match bus.request(&subject, &CancelJob { job }).await {
        Ok(Reply::Accepted { .. }) => answer(StatusCode::OK, &json!({})),
        Ok(Reply::Refused { error }) => refuse(StatusCode::CONFLICT, error),
        Err(error) => failed(&error),
    }
}

/// The body of a budget; without a limit there is none.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Limits {
    energy_kwh: Option<f64>,
    carbon_kg: Option<f64>,
    power_kw: Option<f64>,
    window_h: Option<f64>,
}

impl Limits {
    /// The budget, or the response to wrong limits.
    fn budget(body: &[u8]) -> Result<Budget, Box<Response>> {
        let refused =
            |error: &dyn std::fmt::Display| Box::new(refuse(StatusCode::BAD_REQUEST, error));
        let limits: Self = serde_json::from_slice(body).map_err(|error| refused(&error))?;
        let window = limits.window_h.filter(|hours| *hours > 0.0);
        let window = window.map(|hours| span_s(hours * 3_600.0));
        Budget::from_human(limits.energy_kwh, limits.carbon_kg, limits.power_kw, window)
            .map_err(|error| refused(&error))
    }
}

/// `POST /api/budget/review`: what a budget would allow. Nothing changes.
pub(super) async fn review_budget(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if guard::person(&shared, &headers).is_none() {
        return not_signed_in();
    }
    match Limits::budget(&body) {
        Ok(budget) => {
            let allows = allowance(&budget, &shared.model(), now());
            answer(StatusCode::OK, &without_nulls(allows))
        }
        Err(refusal) => *refusal,
    }
}

/// The connection of an operator, with which the request acts; `refusal` is the answer to another person.
pub(super) fn operator(
    shared: &Shared,
    headers: &HeaderMap,
    refusal: &str,
) -> Result<Bus, Box<Response>> {
    let Some(bus) = guard::person(shared, headers) else { return Err(Box::new(not_signed_in())) };
    // The NATS server refuses it too, without an answer.
    if bus.requester().may_operate() {
        Ok(bus)
    } else {
        Err(Box::new(refuse(StatusCode::FORBIDDEN, refusal)))
    }
}

/// `POST /api/budget`: sets the budget.
pub(super) async fn budget(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let bus = match operator(&shared, &headers, "only operators set the budget") {
        Ok(bus) => bus,
        Err(refusal) => return *refusal,
    };
    let budget = match Limits::budget(&body) {
        Ok(budget) => budget,
        Err(refusal) => return *refusal,
    };
    let subject = bus.request_subject(RequestTopic::BudgetSet);
    match bus.request(&subject, &SetBudget { budget, intensity: None }).await {
        Ok(BudgetReply::Stored { .. }) => answer(StatusCode::OK, &json!({})),
        Ok(BudgetReply::Refused { error }) => refuse(StatusCode::CONFLICT, error),
        Err(error) => failed(&error),
    }
}
