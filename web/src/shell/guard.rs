//! Protects the page: permitted host names, requests that change something, and their senders.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use wattle_runtime::bus::Bus;

use super::Shared;
use super::sessions::Person;
use super::streams::Viewer;
use crate::config::Config;

/// The cookie of a session.
pub(super) const COOKIE: &str = "wattle_session";
/// The header of requests that change something. Another site's page cannot set it.
const CHANGE: HeaderName = HeaderName::from_static("x-wattle");
/// Time in which a request is received and answered, wall time.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

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
        // A body that is sent too slowly; the stream of an answer has no limit.
        tokio::time::timeout(ANSWER_WITHIN, next.run(request)).await.unwrap_or_else(|_| {
            (StatusCode::REQUEST_TIMEOUT, "the request was not complete in time\n").into_response()
        })
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

/// The person of the request's session.
pub(super) fn reader(shared: &Shared, headers: &HeaderMap) -> Option<Person> {
    let token = token(headers)?;
    let has_link = || shared.links.as_ref().is_some_and(|links| links.knows(token));
    let by_link = || has_link().then(|| Person::of_link(&shared.bus, token));
    shared.sessions.get(token).or_else(by_link)
}

/// The connection of the session's person, with which the request acts.
pub(super) fn person(shared: &Shared, headers: &HeaderMap) -> Option<Bus> {
    reader(shared, headers).map(|person| person.bus)
}

/// For what a stream of events counts: the person's key, else the address. A proxy on this machine states
/// that of its client.
pub(super) fn viewer(
    person: Option<&Person>,
    headers: &HeaderMap,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
) -> Viewer {
    if let Some(key) = person.and_then(|person| person.bus.public_key()) {
        return Viewer::Person(key.to_owned());
    }
    let forwarded = text(headers, "x-forwarded-for").filter(|_| peer.ip().is_loopback());
    // The last one is the proxy's; those before it are the client's own words.
    let client = forwarded.and_then(|all| all.rsplit(',').next()).map(str::trim);
    let client = client.and_then(|client| client.parse::<IpAddr>().ok());
    Viewer::Address(client.unwrap_or_else(|| peer.ip()).to_string())
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
    fn a_visitor_counts_by_its_own_address() {
        let of = |peer: &str, forwarded: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(forwarded) = forwarded {
                headers.insert("x-forwarded-for", forwarded.parse().unwrap());
            }
            viewer(None, &headers, ConnectInfo(peer.parse().unwrap()))
        };
        let at = |address: &str| Viewer::Address(address.to_owned());
        assert_eq!(of("10.0.0.5:4000", None), at("10.0.0.5"));
        assert_eq!(of("10.0.0.5:4000", Some("10.0.0.9")), at("10.0.0.5"), "it is no proxy");
        assert_eq!(of("127.0.0.1:4000", Some("10.9.9.9, 10.0.0.9")), at("10.0.0.9"));
        assert_eq!(of("127.0.0.1:4000", Some("x")), at("127.0.0.1"));
    }

    #[test]
    fn token_is_read_from_the_cookie() {
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, HeaderValue::from_static("a=b; wattle_session=17; c=d"));
        assert_eq!(token(&headers), Some("17"));
        assert_eq!(token(&HeaderMap::new()), None);
    }
}
