//! Server-sent events: the content of a page, and then what changes.
//!
//! A stream ends with the session of its person, and when another viewer displaces it; its last event names
//! the cause, so that the page does not connect again at once.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, Extension, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::sync::broadcast::error::RecvError;

use super::connections::Activity;
use super::hub::Begun;
use super::sessions::Person;
use super::{Shared, guard, now};
use crate::pages::content;
use crate::topic::Topic;

/// The last event of a stream that another viewer has displaced.
const DISPLACED: &[u8] = b"event: ended\ndata: \"displaced\"\n\n";
/// The last event of a stream whose session has ended.
const SIGNED_OUT: &[u8] = b"event: ended\ndata: \"signed-out\"\n\n";

/// The topic of a request for content, or the response to a wrong request.
fn topic(
    shared: &Shared,
    person: Option<&Person>,
    parameters: &BTreeMap<String, String>,
) -> Result<Topic, Box<Response>> {
    if shared.config.require_sign_in && person.is_none() {
        return Err(Box::new(
            (StatusCode::UNAUTHORIZED, "sign in to see this page").into_response(),
        ));
    }
    Topic::parse(parameters)
        .ok_or_else(|| Box::new((StatusCode::NOT_FOUND, "no such page").into_response()))
}

/// Whether the session of the page's address, if it is one, has not ended.
fn is_known(shared: &Shared, link: Option<&str>) -> bool {
    link.is_none_or(|token| shared.links.as_ref().is_some_and(|links| links.knows(token)))
}

/// An open stream, which counts until it is dropped.
struct Following {
    shared: Arc<Shared>,
    begun: Begun,
    person: Option<Person>,
    is_first: bool,
    is_over: bool,
}

impl Drop for Following {
    fn drop(&mut self) {
        self.shared.hub().leave(self.begun.number);
    }
}

impl Following {
    /// The next event; `None`: the stream ends.
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        if self.is_over {
            return None;
        }
        if std::mem::take(&mut self.is_first) {
            return Some((Ok(self.begun.first.clone()), self));
        }
        let shared = Arc::clone(&self.shared);
        let Self { begun, person, .. } = &mut self;
        let link = person.as_ref().and_then(|person| person.link.clone());
        let session_ends = async {
            match person {
                // It never changes, and fails when the session has ended.
                Some(Person { alive: Some(alive), .. }) => drop(alive.changed().await),
                _ => std::future::pending().await,
            }
        };
        let event = tokio::select! {
            biased;
            _ = &mut begun.displaced => Err(DISPLACED),
            () = session_ends => Err(SIGNED_OUT),
            event = begun.events.recv() => match event {
                Ok(event) if is_known(&shared, link.as_deref()) => Ok(event),
                Ok(_) => Err(SIGNED_OUT),
                // It connects again and receives everything.
                Err(RecvError::Lagged(_) | RecvError::Closed) => return None,
            },
        };
        self.is_over = event.is_err();
        Some((Ok(event.unwrap_or_else(Bytes::from_static)), self))
    }
}

/// `/events`: follows a page.
pub(super) async fn follow(
    State(shared): State<Arc<Shared>>,
    peer: ConnectInfo<SocketAddr>,
    Extension(connection): Extension<Arc<Activity>>,
    headers: HeaderMap,
    Query(parameters): Query<BTreeMap<String, String>>,
) -> Response {
    let person = guard::reader(&shared, &headers);
    let topic = match topic(&shared, person.as_ref(), &parameters) {
        Ok(topic) => topic,
        Err(refusal) => return *refusal,
    };
    let viewer = guard::viewer(person.as_ref(), &headers, peer);
    let begun = {
        let mut model = shared.model();
        shared.hub().follow(&viewer, &topic, &mut model, now())
    };
    let Ok(begun) = begun else {
        return (StatusCode::SERVICE_UNAVAILABLE, "too many viewers").into_response();
    };
    connection.follows();
    let following = Following { shared, begun, person, is_first: true, is_over: false };
    let events = stream::unfold(following, Following::next);
    let kind = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        // The connection counts as that of a stream, so it ends with it.
        (header::CONNECTION, "close"),
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
    let person = guard::reader(&shared, &headers);
    match topic(&shared, person.as_ref(), &parameters) {
        Ok(topic) => {
            let text = content(&topic, &shared.model(), now()).to_string();
            ([(header::CONTENT_TYPE, "application/json")], text).into_response()
        }
        Err(refusal) => *refusal,
    }
}
