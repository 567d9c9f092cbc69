//! Providers against a local server with recorded answers, which also fails in every known way.
//!
//! No account of a provider was available: the answers in `tests/recorded` are modelled after the providers'
//! public documentation, with its field names and units, and were not recorded from the real services.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::float_cmp, reason = "exact figures are meant")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use wattle_common::Timestamp;
use wattle_common::messages::Origin;
use wattle_grid::client::{CarbonClient, read_prices};
use wattle_grid::config::{CarbonConfig, GridConfig};
use wattle_grid::http::ReadError;
use wattle_grid::poller::{Clocks, Poller};
use wattle_grid::{instant, poller};

/// The time of the recorded answers.
const NOW: &str = "2026-04-25T18:20:00Z";

fn now() -> Timestamp {
    instant::parse(NOW).unwrap()
}

fn recorded(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What the server does with a request.
#[derive(Clone, Debug)]
enum Answer {
    /// Status, one more header, and body.
    Http(u16, String, String),
    /// Headers, then silence.
    Hang,
    /// The connection is closed.
    Close,
}

fn ok(body: impl Into<String>) -> Answer {
    Answer::Http(200, String::new(), body.into())
}

fn status(status: u16) -> Answer {
    Answer::Http(status, String::new(), r#"{"message":"recorded refusal"}"#.to_owned())
}

/// A server whose answers are set by path, and which remembers the requests.
struct Server {
    url: String,
    answers: Arc<Mutex<BTreeMap<String, Answer>>>,
    requests: Arc<Mutex<Vec<String>>>,
    /// Held by connections that hang; closed with the server.
    released: Arc<(Mutex<bool>, Condvar)>,
}

impl Drop for Server {
    fn drop(&mut self) {
        *self.released.0.lock().unwrap() = true;
        self.released.1.notify_all();
    }
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = Self {
            url,
            answers: Arc::default(),
            requests: Arc::default(),
            released: Arc::default(),
        };
        let (answers, requests, released) =
            (server.answers.clone(), server.requests.clone(), server.released.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answers, requests, released) =
                    (answers.clone(), requests.clone(), released.clone());
                std::thread::spawn(move || serve(stream, &answers, &requests, &released));
            }
        });
        server
    }

    fn answer(&self, path: &str, answer: Answer) -> &Self {
        self.answers.lock().unwrap().insert(path.to_owned(), answer);
        self
    }

    /// The request lines and headers of a path, in order.
    fn requests(&self, path: &str) -> Vec<String> {
        let requests = self.requests.lock().unwrap();
        requests.iter().filter(|request| request.contains(path)).cloned().collect()
    }
}

fn serve(
    mut stream: TcpStream,
    answers: &Mutex<BTreeMap<String, Answer>>,
    requests: &Mutex<Vec<String>>,
    released: &(Mutex<bool>, Condvar),
) {
    let mut head = String::new();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).unwrap_or(0) == 0 {
            return;
        }
    }
    let target = head.split(' ').nth(1).unwrap_or("").to_owned();
    requests.lock().unwrap().push(head);
    let path = target.split('?').next().unwrap_or("").to_owned();
    let answer = answers.lock().unwrap().get(&path).cloned();
    let text = match answer.unwrap_or_else(|| status(404)) {
        Answer::Http(status, header, body) => format!(
            "HTTP/1.1 {status} X\r\n{header}Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ),
        Answer::Close => return,
        Answer::Hang => {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"zone\"");
            let mut done = released.0.lock().unwrap();
            while !*done {
                done = released.1.wait(done).unwrap();
            }
            return;
        }
    };
    let _ = stream.write_all(text.as_bytes());
}

/// A provider's configuration against a server.
fn config(
    folder: &TempDir,
    server: &str,
    provider: &str,
    zone: &str,
    secret: &str,
) -> CarbonConfig {
    let path = folder.path().join("secret");
    std::fs::write(&path, secret).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let text = format!(
        "[carbon]\nprovider = \"{provider}\"\nzone = \"{zone}\"\nurl = \"{server}\"\npoll_s = 1\n\
         credential_file = \"{}\"\nfallback_g_per_kwh = 380\ntimeout_ms = 400\n",
        path.display()
    );
    let config: GridConfig = toml::from_str(&text).unwrap();
    config.check().unwrap();
    config.carbon.unwrap()
}

fn maps(folder: &TempDir, server: &Server) -> CarbonClient {
    server
        .answer("/v3/carbon-intensity/latest", ok(recorded("electricity-maps-latest.json")))
        .answer("/v3/carbon-intensity/history", ok(recorded("electricity-maps-history.json")))
        .answer("/v3/carbon-intensity/forecast", ok(recorded("electricity-maps-forecast.json")));
    CarbonClient::new(config(folder, &server.url, "electricity-maps", "DE", "t0ken\n"))
}

fn value(series: &wattle_grid::SignalSeries, at: &str) -> Option<(f64, Origin)> {
    let interval = series.at(instant::parse(at).unwrap())?;
    Some(((interval.value * 10.0).round() / 10.0, interval.origin))
}

#[test]
fn electricity_maps_has_past_present_and_forecast() {
    let (folder, server) = (TempDir::new().unwrap(), Server::start());
    let series = maps(&folder, &server).read(now(), now()).unwrap();
    assert!(!series.is_end_assumed, "the forecast states the end");
    assert_eq!(value(&series, "2026-04-25T17:30Z"), Some((287.0, Origin::Measured)));
    assert_eq!(value(&series, NOW), Some((302.0, Origin::Estimated)), "latest, not the forecast");
    assert_eq!(value(&series, "2026-04-25T19:10Z"), Some((326.0, Origin::Forecast)));
    let sent = server.requests("/v3/carbon-intensity/latest?zone=DE ");
    assert!(sent[0].to_ascii_lowercase().contains("auth-token: t0ken\r\n"), "{sent:?}");
}

#[test]
fn an_account_without_forecast_has_the_present_value() {
    let (folder, server) = (TempDir::new().unwrap(), Server::start());
    let mut client = maps(&folder, &server);
    server.answer("/v3/carbon-intensity/forecast", status(403));
    let series = client.read(now(), now()).unwrap();
    assert_eq!(value(&series, NOW), Some((302.0, Origin::Estimated)));
    assert_eq!(value(&series, "2026-04-25T19:10Z"), None);
    assert!(series.is_end_assumed, "a forecast of an earlier read continues");
    // Its hour is over, and the next value is not there yet.
    let late = instant::parse("2026-04-25T20:30Z").unwrap();
    let series = client.read(late, late).unwrap();
    assert_eq!(
        value(&series, "2026-04-25T20:30Z"),
        Some((302.0, Origin::Estimated)),
        "held for 2 h"
    );
    assert!(series.is_end_assumed);
    // An empty forecast is the same as none.
    server.answer("/v3/carbon-intensity/forecast", ok(r#"{"zone":"DE","forecast":[]}"#));
    assert!(client.read(now(), now()).is_ok());
}

#[test]
fn every_failure_has_a_name_and_a_remedy() {
    let (folder, server) = (TempDir::new().unwrap(), Server::start());
    let mut client = maps(&folder, &server);
    let limited = Answer::Http(429, "Retry-After: 120\r\n".into(), String::new());
    let other_zone = recorded("electricity-maps-latest.json").replace("\"DE\"", "\"FR\"");
    let redirect = Answer::Http(302, format!("Location: {}/stolen\r\n", server.url), String::new());
    for (answer, part) in [
        (status(401), "refuses the credential (401), it reports `recorded refusal`: renew"),
        (status(403), "check the subscription and the zone"),
        (limited, "limits the requests (429): raise poll_s"),
        (status(500), "answers with status 500"),
        (redirect, "answers with status 302"),
        (Answer::Hang, "does not answer: timeout"),
        (Answer::Close, "does not answer"),
        (ok("<html>maintenance</html>"), "is not the provider's JSON"),
        (ok(""), "answers with no body"),
        (ok(other_zone), "the answer is for zone `FR`, not `DE`"),
        (ok("x".repeat(5 << 20)), "answers with more than"),
    ] {
        let name = format!("{answer:?}").chars().take(60).collect::<String>();
        server.answer("/v3/carbon-intensity/latest", answer);
        let error = client.read(now(), now()).unwrap_err();
        assert!(error.to_string().contains(part), "{name}: {error}");
        assert!(!error.to_string().contains("t0ken"), "{error}");
        let pause = error.retry_after();
        assert_eq!(pause, part.contains("429").then_some(Duration::from_secs(120)), "{name}");
    }
    assert_eq!(server.requests("/stolen").len(), 0, "a redirect is not followed");
}

#[test]
fn old_values_are_stale() {
    let (folder, server) = (TempDir::new().unwrap(), Server::start());
    let mut client = maps(&folder, &server);
    let later = instant::parse("2026-05-02T12:00Z").unwrap();
    let error = client.read(later, later).unwrap_err();
    assert!(matches!(error, ReadError::Stale { .. }), "{error}");
    assert!(error.to_string().contains("the newest ended at 2026-04-2"), "{error}");
}

#[test]
fn no_server_is_an_error_at_once() {
    let folder = TempDir::new().unwrap();
    // A port that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}");
    let mut client = CarbonClient::new(config(&folder, &url, "electricity-maps", "DE", "t"));
    let error = client.read(now(), now()).unwrap_err();
    assert!(matches!(error, ReadError::Unreachable { .. }), "{error}");
}

#[test]
fn watttime_logs_in_once_and_again_when_the_token_is_refused() {
    let (folder, server) = (TempDir::new().unwrap(), Server::start());
    server
        .answer("/login", ok(r#"{"token":"first"}"#))
        .answer("/v3/forecast", ok(recorded("watttime-forecast.json")))
        .answer("/v3/historical", ok(recorded("watttime-historical.json")));
    let config = config(&folder, &server.url, "watttime", "CAISO_NORTH", "ada:s3cret");
    let mut client = CarbonClient::new(config);
    let series = client.read(now(), now()).unwrap();
    // 870 lbs/MWh x 0.45359237 kg/lb.
    assert_eq!(value(&series, "2026-04-25T18:22Z"), Some((394.6, Origin::Forecast)));
    assert_eq!(value(&series, "2026-04-25T18:12Z"), Some((381.0, Origin::Measured)));
    client.read(now(), now()).unwrap();
    let logins = server.requests("/login");
    assert_eq!(logins.len(), 1, "the token is kept");
    assert!(logins[0].contains("Basic YWRhOnMzY3JldA=="), "{logins:?}");
    assert!(server.requests("/v3/forecast")[0].contains("Bearer first"));
    // After 25 minutes, and after a refusal, there is a new token.
    client.read(now(), now() + Duration::from_secs(1_600)).unwrap();
    assert_eq!(server.requests("/login").len(), 2);
    server.answer("/v3/forecast", status(401));
    let error = client.read(now(), now() + Duration::from_secs(1_700)).unwrap_err();
    assert!(matches!(error, ReadError::Unauthorized { .. }), "{error}");
    assert_eq!(server.requests("/login").len(), 3, "one more attempt, not a loop");
}

#[test]
fn watttime_without_subscription_is_forbidden() {
    let (folder, server) = (TempDir::new().unwrap(), Server::start());
    server
        .answer("/login", ok(r#"{"token":"first"}"#))
        .answer("/v3/forecast", status(403))
        .answer("/v3/historical", status(403));
    let config = config(&folder, &server.url, "watttime", "PJM_DC", "ada:s3cret");
    let error = CarbonClient::new(config).read(now(), now()).unwrap_err();
    assert!(matches!(error, ReadError::Forbidden { .. }), "{error}");
}

#[test]
fn carbon_aware_sdk_has_ratings_and_forecast() {
    let (folder, server) = (TempDir::new().unwrap(), Server::start());
    server
        .answer("/emissions/forecasts/current", ok(recorded("carbon-aware-sdk-forecast.json")))
        .answer("/emissions/bylocation", ok(recorded("carbon-aware-sdk-observed.json")));
    let config = config(&folder, &server.url, "carbon-aware-sdk", "northeurope", "unused");
    let mut client = CarbonClient::new(config);
    let series = client.read(now(), now()).unwrap();
    assert_eq!(value(&series, NOW), Some((532.0, Origin::Forecast)));
    assert_eq!(value(&series, "2026-04-25T17:30Z"), Some((470.5, Origin::Measured)));
    server.answer("/emissions/forecasts/current", ok("[]"));
    server.answer("/emissions/bylocation", status(500));
    let error = client.read(now(), now()).unwrap_err().to_string();
    assert!(error.contains("no value"), "{error}");
}

#[test]
fn prices_are_read_from_a_file_in_the_configured_currency() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("prices.xml");
    std::fs::write(&path, recorded("entsoe-day-ahead.xml")).unwrap();
    let read = |currency: &str, now: Timestamp| {
        let file = path.display();
        let text = format!(
            "[price]\nfile = \"{file}\"\ncurrency = \"{currency}\"\nfallback_per_kwh = 0.21\n"
        );
        read_prices(&toml::from_str::<GridConfig>(&text).unwrap().price.unwrap(), now)
    };
    let series = read("EUR", now()).unwrap();
    assert_eq!(series.at(now()).unwrap().value, 0.142_5);
    assert!(read("CHF", now()).unwrap_err().to_string().contains("the unit is `EUR`"));
    let later = now() + Duration::from_secs(3 * 86_400);
    assert!(matches!(read("EUR", later), Err(ReadError::Stale { .. })));
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(read("EUR", now()), Err(ReadError::File { .. })));
}

#[test]
fn reads_are_reported_while_wanted_and_a_hanging_server_delays_no_other_read() {
    let (folder, server) = (TempDir::new().unwrap(), Server::start());
    drop(maps(&folder, &server));
    server.answer("/v3/carbon-intensity/latest", Answer::Hang);
    let carbon = Some(config(&folder, &server.url, "electricity-maps", "DE", "t"));
    let config = GridConfig { carbon, price: None };
    let (sender, reads) = std::sync::mpsc::sync_channel::<poller::Read>(8);
    let clocks = Clocks { now, wall: now };
    let poller = Poller::start(&config, clocks, move |read| sender.try_send(read).is_ok()).unwrap();
    let patience = Duration::from_secs(30);
    let read = reads.recv_timeout(patience).expect("a report");
    assert!(read.result.unwrap_err().contains("does not answer"));
    // The thread ends with the poller, and drops its sender.
    drop(poller);
    assert!(reads.recv_timeout(patience).is_err(), "no further read");
}

/// A provider's own words are in the error, without the credential and without a page of HTML.
#[test]
fn the_providers_message_is_shown() {
    let (folder, server) = (TempDir::new().unwrap(), Server::start());
    let mut client = maps(&folder, &server);
    let http = |code, body: &str| Answer::Http(code, String::new(), body.to_owned());
    for (answer, parts) in [
        (
            http(401, r#"{"status":"error","message":"Request unauthorized for zoneKey=DE"}"#),
            &["`Request unauthorized for zoneKey=DE`", "a zone"][..],
        ),
        (
            http(403, r#"{"error":"Forbidden: your subscription does not include this endpoint"}"#),
            &["`Forbidden: your subscription does not include this endpoint`"],
        ),
        (
            http(400, r#"{"errors":{"zone":["The zone is unknown."]},"title":"Bad request"}"#),
            &["`Bad request`"],
        ),
        (http(500, "out of order \u{1b}[31m"), &["`out of order"]),
        (http(401, r#"{"message":"invalid token t0ken"}"#), &["`invalid token ...`"]),
        (http(502, "<html><body>proxy</body></html>"), &["answers with status 502"]),
        (http(204, ""), &["no body", "204", "zone"]),
        (http(200, ""), &["no body", "200"]),
        (http(200, " \n"), &["no body"]),
    ] {
        let name = format!("{answer:?}");
        server.answer("/v3/carbon-intensity/latest", answer);
        let error = client.read(now(), now()).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{name}: {error}");
        for never in ["t0ken", "<html", "\u{1b}", "EOF"] {
            assert!(!error.contains(never), "{name}: {error}");
        }
    }
}
