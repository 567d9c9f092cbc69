//! Protects the page: permitted host names, requests that change something, and their senders.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use wattle_runtime::bus::Bus;

use super::Shared;
use crate::config::Config;

/// The cookie of a session.
pub(super) const COOKIE: &str = "wattle_session";
/// The header of requests that change something. Another site's page cannot set it.
const CHANGE: HeaderName = HeaderName::from_static("x-wattle");

/// No content but the page's own, no script in it, and no other site around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; manifest-src 'self'; form-action 'self'; base-uri 'none'; \
    frame-ancestors 'none'";

/// The host of a `Host` header, without its port.
fn host_name(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    }
}

fn is_loopback(host: &str) -> bool {
    let name = host_name(host);
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Whether the page may be reached under this name. Otherwise a site could let its own name point to
/// this machine and read the page in a visitor's browser.
fn is_own_host(config: &Config, host: &str) -> bool {
    let name = host_name(host);
    let is_listen = |address: IpAddr| address == config.listen.ip() || config.permit_insecure;
    is_loopback(host)
        || name.parse::<IpAddr>().is_ok_and(is_listen)
        || config.hosts.iter().any(|own| own.eq_ignore_ascii_case(name))
}

fn text(headers: &HeaderMap, name: impl header::AsHeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// Whether a request that changes something comes from the page itself.
fn is_own_request(headers: &HeaderMap, host: &str) -> bool {
    let from_own_origin = match text(headers, header::ORIGIN) {
        Some(origin) => origin.split_once("://").is_some_and(|(_, origin)| origin == host),
        None => true,
    };
    headers.contains_key(CHANGE) && from_own_origin
}

/// Checks every request, and adds the headers that protect the page.
pub(super) async fn check(
    State(shared): State<Arc<Shared>>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    let host = text(headers, header::HOST).unwrap_or_default().to_owned();
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let mut response = if !is_own_host(&shared.config, &host) {
        let text = "this name is not one of the page: add it to `hosts` in web.toml\n";
        (StatusCode::MISDIRECTED_REQUEST, text).into_response()
    } else if !is_read && !is_own_request(headers, &host) {
        (StatusCode::FORBIDDEN, "this request does not come from the page\n").into_response()
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// The token of the request's session.
pub(super) fn token(headers: &HeaderMap) -> Option<&str> {
    let cookies = text(headers, header::COOKIE)?.split(';').map(str::trim);
    cookies
        .filter_map(|cookie| cookie.split_once('='))
        .find(|(name, _)| *name == COOKIE)
        .map(|c| c.1)
}

/// The connection of the session's person, with which the request acts.
pub(super) fn person(shared: &Shared, headers: &HeaderMap) -> Option<Bus> {
    let token = token(headers)?;
    let has_link = || shared.links.as_ref().is_some_and(|links| links.knows(token));
    shared.sessions.get(token).or_else(|| has_link().then(|| shared.bus.clone()))
}

#[cfg(test)]
mod tests {
    use wattle_runtime::bus::BusConfig;

    use wattle_common::config::MetricsConfig;

    use super::*;

    fn config(hosts: &[&str]) -> Config {
        Config {
            cluster: wattle_common::ClusterId::new("main").unwrap(),
            listen: "127.0.0.1:8620".parse().unwrap(),
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            permit_insecure: false,
            require_sign_in: false,
            sign_in_file: None,
            viewers_max: 1,
            metrics: MetricsConfig::default(),
            nats: BusConfig::at("nats://127.0.0.1:4222"),
        }
    }

    #[test]
    fn only_own_names_are_served() {
        let config = config(&["wattle.example.org"]);
        let own = ["localhost:8620", "127.0.0.1:8620", "[::1]:8620", "Wattle.Example.org"];
        assert!(own.iter().all(|host| is_own_host(&config, host)));
        for other in ["", "evil.example", "evil.example:8620", "10.0.0.5", "localhost.evil.example"]
        {
            assert!(!is_own_host(&config, other), "{other}");
        }
    }

    #[test]
    fn changes_need_the_header_and_the_own_origin() {
        let mut headers = HeaderMap::new();
        assert!(!is_own_request(&headers, "localhost:8620"));
        headers.insert(CHANGE, HeaderValue::from_static("1"));
        assert!(is_own_request(&headers, "localhost:8620"));
        headers.insert(header::ORIGIN, HeaderValue::from_static("http://localhost:8620"));
        assert!(is_own_request(&headers, "localhost:8620"));
        assert!(!is_own_request(&headers, "localhost:1"));
        headers.insert(header::ORIGIN, HeaderValue::from_static("null"));
        assert!(!is_own_request(&headers, "localhost:8620"));
    }

    #[test]
    fn token_is_read_from_the_cookie() {
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, HeaderValue::from_static("a=b; wattle_session=17; c=d"));
        assert_eq!(token(&headers), Some("17"));
        assert_eq!(token(&HeaderMap::new()), None);
    }
}
