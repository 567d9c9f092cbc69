//! The routes of the page.

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use tokio::net::TcpListener;
use wattle_runtime::shell::Shutdown;

use super::{Shared, actions, assets, connections, events, grid_events, guard, links, submit};

/// Most bytes of a request's body.
const BODY_LEN_MAX: usize = 16 << 10;
/// Most bytes of a submission: more than the placer accepts, so that it states its limit.
const SUBMISSION_LEN_MAX: usize = 128 << 10;

/// Serves the page until shutdown. Open streams of events end with it.
pub(super) async fn serve(
    listener: TcpListener,
    shared: Arc<Shared>,
    connections_max: usize,
    shutdown: &Shutdown,
) {
    let session = get(actions::session).post(actions::sign_in).delete(actions::sign_out);
    let long = || DefaultBodyLimit::max(SUBMISSION_LEN_MAX);
    let mut router = Router::new()
        .route("/events", get(events::follow))
        .route("/api/content", get(events::once))
        .route("/api/session", session)
        .route(links::PATH, get(links::sign_in))
        .route("/api/log", get(actions::log))
        .route("/api/cancel", post(actions::cancel))
        .route("/api/submit", post(submit::submit).layer(long()))
        .route("/api/submit/review", post(submit::review).layer(long()))
        .route("/api/budget", post(actions::budget))
        .route("/api/budget/review", post(actions::review_budget))
        .route("/api/event", post(grid_events::request))
        .route("/api/event/review", post(grid_events::review))
        .route("/api/event.csv", get(grid_events::csv))
        .route("/assets/{*path}", get(assets::file));
    for page in assets::PAGES {
        router = router.route(page, get(assets::page));
    }
    let router = router
        .layer(from_fn_with_state(Arc::clone(&shared), guard::check))
        .layer(DefaultBodyLimit::max(BODY_LEN_MAX))
        .with_state(shared);
    let served = connections::serve(listener, router, connections_max, connections::HEAD_WITHIN);
    shutdown.or(served).await;
}
