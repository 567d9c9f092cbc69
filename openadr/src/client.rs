//! The client of an OpenADR server: lists programs and events, creates and updates reports.
//!
//! A token is obtained with the client's id and secret (OAuth 2 client credentials), kept in memory, and renewed before it
//! expires and after a refusal. All calls block; the shell makes them on a thread of their own.

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::time::span_s;
use wattle_grid::credential::Credential;
use wattle_grid::http::{Header, Http, Method, ReadError};

use crate::config::Config;
use crate::machine::{Failure, Listing};
use crate::translate;
use crate::wire::{self, LISTED_MAX, PAGE, Refused, Report, StoredReport, Token};

/// Share of its validity after which a token is renewed.
const RENEWED_AT: f64 = 0.8;
/// Most bytes of a list.
const LIST_BYTES_MAX: usize = 16 << 20;
/// Most reports whose ids are remembered.
const KNOWN_MAX: usize = 4_096;

/// A token.
struct Held {
    token: String,
    /// When to renew it, of the client's clock.
    renew_at: Option<Duration>,
}

/// The client.
pub struct Client {
    config: Config,
    http: Http,
    /// Time since some instant, which no step of the wall clock changes.
    elapsed: fn() -> Duration,
    token: Option<Held>,
    /// The server's ids of reports, by event and name.
    known: BTreeMap<(String, String), String>,
}

/// Percent-encodes a value of a query or a form.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// An error of the server, with the remedy.
fn failure(error: ReadError) -> Failure {
    let retry_after = error.retry_after();
    let given = |message: Option<String>| {
        message.map_or_else(String::new, |message| format!(", it reports `{message}`"))
    };
    let reason = match error {
        ReadError::Unauthorized { url, message } => format!(
            "{url} refuses this client (401){}: check client_id and client_secret_file",
            given(message)
        ),
        ReadError::Forbidden { url, message } => format!(
            "{url} forbids this client the request (403){}: its account needs the scopes of a VEN and the targets",
            given(message)
        ),
        ReadError::Limited { url, message, status, .. } => {
            format!("{url} limits the requests ({status}){}: raise poll_ms", given(message))
        }
        ReadError::EmptyAnswer { url, status } => {
            format!("{url} answers with no body (status {status}): check url")
        }
        other => other.to_string(),
    };
    Failure { reason, retry_after }
}

fn without_pause(reason: String) -> Failure {
    Failure { reason, retry_after: None }
}

impl Client {
    /// A client of the configured server.
    #[must_use]
    pub fn new(config: Config, elapsed: fn() -> Duration) -> Self {
        let http = Http::new(Duration::from_millis(config.request_wall_ms));
        Self { config, http, elapsed, token: None, known: BTreeMap::new() }
    }

    /// A new token.
    fn log_in(&mut self, id: &str) -> Result<String, Failure> {
        let path = self.config.client_secret_file.clone().unwrap_or_default();
        let secret = Credential::read(&path, "secret of the OpenADR client").map_err(|error| {
            without_pause(error.to_string().replace("credential_file", "client_secret_file"))
        })?;
        let url = self.config.token_url();
        let mut form = format!(
            "grant_type=client_credentials&client_id={}&client_secret={}",
            encoded(id),
            encoded(secret.secret())
        );
        if let Some(scope) = &self.config.scope {
            form.push_str(&format!("&scope={}", encoded(scope)));
        }
        let kind = "application/x-www-form-urlencoded";
        let began = (self.elapsed)();
        let body =
            self.http.send(Method::Post, &url, &[], (kind, form.as_bytes())).map_err(|error| {
                let failed = failure(error);
                // A server may repeat what it received.
                Failure { reason: failed.reason.replace(secret.secret(), "..."), ..failed }
            })?;
        let token: Token = serde_json::from_slice(&body)
            .map_err(|_| without_pause(format!("{url} answers without an access_token in JSON")))?;
        let is_plain = |byte: u8| (b'!'..=b'~').contains(&byte);
        if token.access_token.is_empty() || !token.access_token.bytes().all(is_plain) {
            return Err(without_pause(format!(
                "{url} answers with a token that is no text for a header"
            )));
        }
        let renew_at = token.expires_in.map(|seconds| began + span_s(seconds * RENEWED_AT));
        self.token = Some(Held { token: token.access_token.clone(), renew_at });
        Ok(token.access_token)
    }

    /// The answer of a call, which receives the headers. After a refusal of a token that was known before, it is repeated
    /// with a new one.
    fn call(
        &mut self,
        call: impl Fn(&Http, &[Header<'_>]) -> Result<Vec<u8>, ReadError>,
    ) -> Result<Vec<u8>, CallError> {
        let Some(id) = self.config.client_id.clone() else {
            return call(&self.http, &[]).map_err(CallError::Read);
        };
        let now = (self.elapsed)();
        let is_valid = |held: &&Held| held.renew_at.is_none_or(|at| now < at);
        let held = self.token.as_ref().filter(is_valid).map(|held| held.token.clone());
        let was_known = held.is_some();
        let token = held.map_or_else(|| self.log_in(&id), Ok).map_err(CallError::LogIn)?;
        let headers = |token: String| [("authorization", format!("Bearer {token}"))];
        match call(&self.http, &headers(token)) {
            // Before 3.1 a server answers an expired token with 403.
            Err(ReadError::Unauthorized { .. } | ReadError::Forbidden { .. }) if was_known => {
                self.token = None;
                let token = self.log_in(&id).map_err(CallError::LogIn)?;
                call(&self.http, &headers(token)).map_err(CallError::Read)
            }
            result => result.map_err(CallError::Read),
        }
    }

    /// All elements of a list, page by page; `query` begins with `&`.
    fn list<T>(
        &mut self,
        path: &str,
        query: &str,
        read: impl Fn(serde_json::Value) -> T,
    ) -> Result<Vec<T>, Failure> {
        let mut all = Vec::new();
        let mut bytes = 0;
        loop {
            let url =
                format!("{}/{path}?skip={}&limit={PAGE}{query}", self.config.base(), all.len());
            let body =
                self.call(|http, headers| http.get(&url, headers)).map_err(CallError::failure)?;
            bytes += body.len();
            if bytes > LIST_BYTES_MAX {
                return Err(without_pause(format!("{path}: more than {LIST_BYTES_MAX} bytes")));
            }
            let page =
                wire::elements(&body).map_err(|error| without_pause(format!("{path}: {error}")))?;
            let is_last = page.len() < PAGE;
            all.extend(page.into_iter().map(&read));
            if all.len() > LISTED_MAX {
                return Err(without_pause(format!("{path}: more than {LISTED_MAX} are listed")));
            }
            if is_last {
                return Ok(all);
            }
        }
    }

    /// The configured programs and their events.
    ///
    /// # Errors
    /// If a list cannot be read.
    pub fn poll(&mut self) -> Result<Listing, Failure> {
        let targets: String = self
            .config
            .targets
            .iter()
            .map(|target| format!("&targets={}", encoded(target)))
            .collect();
        let (mut readable, mut refused) = (Vec::new(), Vec::new());
        for program in self.list("programs", &targets, wire::read)? {
            match program {
                Ok(program) => readable.push(program),
                Err(Refused { reason, .. }) => refused.push(reason),
            }
        }
        let (programs, missing) = translate::chosen(readable, &self.config.programs);
        let mut events = Vec::new();
        for id in programs.keys() {
            let query = format!("&programID={}{targets}", encoded(id));
            events.extend(self.list("events", &query, wire::read)?);
            if events.len() > LISTED_MAX {
                return Err(without_pause(format!("events: more than {LISTED_MAX} are listed")));
            }
        }
        Ok(Listing { programs, missing, refused, events })
    }

    /// Creates a report, or replaces the one of this event and name.
    ///
    /// # Errors
    /// If the server does not accept it.
    pub fn report(&mut self, report: &Report) -> Result<(), Failure> {
        let key = (report.event_id.clone(), report.report_name.clone());
        let known = match self.known.get(&key) {
            Some(id) => Some(id.clone()),
            None => self.find(report)?,
        };
        let body = serde_json::to_vec(report).map_err(|error| without_pause(error.to_string()))?;
        let (method, url) = match &known {
            Some(id) => (Method::Put, format!("{}/reports/{id}", self.config.base())),
            None => (Method::Post, format!("{}/reports", self.config.base())),
        };
        let sent = self
            .call(|http, headers| http.send(method, &url, headers, ("application/json", &body)));
        let id = match sent {
            Ok(answer) => known.or_else(|| id_of(&answer)),
            Err(error) => {
                // It was deleted, or created by another process: it is looked for again.
                self.known.remove(&key);
                return Err(error.failure());
            }
        };
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.extend(id.map(|id| (key, id)));
        Ok(())
    }

    /// The server's id of the report of this event and name.
    fn find(&mut self, report: &Report) -> Result<Option<String>, Failure> {
        let (event, client) = (encoded(&report.event_id), encoded(&report.client_name));
        let query = format!("&eventID={event}&clientName={client}");
        let reports = self.list("reports", &query, wire::read::<StoredReport>)?;
        let mut reports = reports.into_iter().flatten();
        let name = Some(&report.report_name);
        Ok(reports.find(|stored| stored.report_name.as_ref() == name).map(|stored| stored.id))
    }
}

/// Why a call has no answer.
enum CallError {
    /// There is no token.
    LogIn(Failure),
    /// The call failed.
    Read(ReadError),
}

impl CallError {
    fn failure(self) -> Failure {
        match self {
            Self::LogIn(failed) => failed,
            Self::Read(error) => failure(error),
        }
    }
}

/// The id of an object that the server has created.
fn id_of(answer: &[u8]) -> Option<String> {
    let stored: StoredReport = serde_json::from_slice(answer).ok()?;
    Some(stored.id).filter(|id| wire::is_id(id))
}
