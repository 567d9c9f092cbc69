//! Server-sent events: the content of a page, and then what changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::sync::broadcast;

use super::{Shared, guard, now};
use crate::pages::content;
use crate::topic::Topic;

/// The topic of a request for content, or the response to a wrong request.
fn topic(
    shared: &Shared,
    headers: &HeaderMap,
    parameters: &BTreeMap<String, String>,
) -> Result<Topic, Box<Response>> {
    if shared.config.require_sign_in && guard::person(shared, headers).is_none() {
        return Err(Box::new(
            (StatusCode::UNAUTHORIZED, "sign in to see this page").into_response(),
        ));
    }
    Topic::parse(parameters)
        .ok_or_else(|| Box::new((StatusCode::NOT_FOUND, "no such page").into_response()))
}

/// `/events`: follows a page.
pub(super) async fn follow(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Query(parameters): Query<BTreeMap<String, String>>,
) -> Response {
    let topic = match topic(&shared, &headers, &parameters) {
        Ok(topic) => topic,
        Err(refusal) => return *refusal,
    };
    let begun = {
        let mut model = shared.model();
        shared.hub().follow(&topic, &mut model, now())
    };
    let Ok((first, receiver)) = begun else {
        return (StatusCode::SERVICE_UNAVAILABLE, "too many viewers").into_response();
    };
    let events = stream::unfold((Some(first), receiver), |(first, mut receiver)| async {
        if let Some(first) = first {
            return Some((Ok::<Bytes, std::convert::Infallible>(first), (None, receiver)));
        }
        match receiver.recv().await {
            Ok(event) => Some((Ok(event), (None, receiver))),
            // It connects again and receives everything.
            Err(broadcast::error::RecvError::Lagged(_) | broadcast::error::RecvError::Closed) => {
                None
            }
        }
    });
    let kind = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        // Proxies such as nginx would collect events otherwise.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (kind, Body::from_stream(events)).into_response()
}

/// `/api/content`: the content of a page once.
pub(super) async fn once(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Query(parameters): Query<BTreeMap<String, String>>,
) -> Response {
    match topic(&shared, &headers, &parameters) {
        Ok(topic) => {
            let text = content(&topic, &shared.model(), now()).to_string();
            ([(header::CONTENT_TYPE, "application/json")], text).into_response()
        }
        Err(refusal) => *refusal,
    }
}
