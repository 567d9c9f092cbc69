//! HTTP to a provider or another server: one request with a time-out, a limit of the answer, and no redirect.
//!
//! Certificates are those of the system. A proxy is taken from `HTTPS_PROXY` and `NO_PROXY`. Redirects are not
//! followed, because the credential would go to another host.

use std::sync::Arc;
use std::time::Duration;

use ureq::http::Response;
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};
use ureq::{Agent, Body};

use crate::parse_error::ParseError;
use crate::retry;

/// Largest answer, bytes: a forecast of three days in steps of five minutes has 90 kB.
pub const BYTES_MAX: u64 = 4 << 20;

/// Largest answer of an error that is examined for a message, bytes.
const MESSAGE_BYTES_MAX: u64 = 64 << 10;

/// A provider's message for an error text.
fn quoted(message: &Option<String>) -> String {
    message.as_ref().map_or(String::new(), |message| format!(", it reports `{message}`"))
}

/// The message in the answer of an error: a text of the JSON object under a usual name, or the first line of a text
/// that is no page. What was sent as a credential is left out.
fn message(body: &[u8], headers: &[Header<'_>]) -> Option<String> {
    const NAMES: [&str; 6] = ["message", "error", "detail", "title", "error_description", "msg"];
    /// Longest message shown, characters.
    const CHARS_MAX: usize = 200;
    let text = String::from_utf8_lossy(body);
    let json = serde_json::from_str::<serde_json::Value>(&text).ok();
    let found = match &json {
        Some(serde_json::Value::String(text)) => Some(text.as_str()),
        Some(json) => {
            let mut fields = NAMES.iter().filter_map(|name| {
                let field = json.get(name)?;
                // `{"error": {"message": ...}}`.
                field.as_str().or_else(|| field.get("message")?.as_str())
            });
            fields.find(|text| !text.trim().is_empty())
        }
        None => text.lines().map(str::trim).find(|line| !line.is_empty()),
    }?;
    if found.trim_start().starts_with('<') {
        return None;
    }
    let mut shown = found.to_owned();
    for secret in headers.iter().flat_map(|(_, value)| value.split(' ')).filter(|s| s.len() > 3) {
        shown = shown.replace(secret, "...");
    }
    let is_shown = |c: &char| !c.is_control() && *c != '`';
    let shown: String = shown.chars().filter(is_shown).take(CHARS_MAX).collect();
    Some(shown).filter(|shown| !shown.trim().is_empty())
}

/// Why a provider has no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// No connection, or the time-out.
    #[error("{url} does not answer: {cause}")]
    Unreachable {
        /// The address without its query.
        url: String,
        /// What failed.
        cause: String,
    },
    /// Status 401.
    #[error(
        "{url} refuses the credential (401){}: renew credential_file; some providers answer so for a zone that \
         the account does not have",
        quoted(.message)
    )]
    Unauthorized {
        /// The address.
        url: String,
        /// The provider's message.
        message: Option<String>,
    },
    /// Status 403.
    #[error(
        "{url} forbids this account the data (403){}: check the subscription and the zone",
        quoted(.message)
    )]
    Forbidden {
        /// The address.
        url: String,
        /// The provider's message.
        message: Option<String>,
    },
    /// Status 429, or 503 with `Retry-After`.
    #[error("{url} limits the requests ({status}){}: raise poll_s", quoted(.message))]
    Limited {
        /// The address.
        url: String,
        /// The provider's message.
        message: Option<String>,
        /// The status.
        status: u16,
        /// The requested pause.
        retry_after: Option<Duration>,
    },
    /// Another status.
    #[error("{url} answers with status {status}{}", quoted(.message))]
    Status {
        /// The address.
        url: String,
        /// The provider's message.
        message: Option<String>,
        /// The status.
        status: u16,
    },
    /// An answer of success without a body.
    #[error(
        "{url} answers with no body (status {status}): the provider has no values for this zone and time, or a proxy \
         answers in its place; check the zone and the address"
    )]
    EmptyAnswer {
        /// The address.
        url: String,
        /// The status.
        status: u16,
    },
    /// A longer answer than [`BYTES_MAX`].
    #[error("{url} answers with more than {BYTES_MAX} bytes")]
    TooLarge {
        /// The address.
        url: String,
    },
    /// An answer that cannot be used.
    #[error("{source_name}: {error}")]
    Parse {
        /// The address or file.
        source_name: String,
        /// What is wrong.
        #[source]
        error: ParseError,
    },
    /// Only values of the past.
    #[error("{source_name} has no current value, the newest ended at {ended}")]
    Stale {
        /// The provider or file.
        source_name: String,
        /// The end of the newest value.
        ended: String,
    },
    /// The credential's file.
    #[error(transparent)]
    Credential(#[from] crate::credential::CredentialError),
    /// A file.
    #[error("{path} cannot be read: {source}")]
    File {
        /// The file.
        path: String,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
}

impl ReadError {
    /// The pause that the provider requested.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Limited { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// Sends requests to one provider.
#[derive(Clone, Debug)]
pub struct Http {
    agent: Agent,
}

/// A header with its value.
pub type Header<'a> = (&'a str, String);

impl Http {
    /// A client whose requests take at most `timeout`.
    #[must_use]
    pub fn new(timeout: Duration) -> Self {
        let found = rustls_native_certs::load_native_certs().certs;
        let roots: Vec<Certificate<'static>> =
            found.iter().map(|der| Certificate::from_der(der.as_ref()).to_owned()).collect();
        let tls = TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .root_certs(RootCerts::Specific(Arc::new(roots)))
            .build();
        let config = Agent::config_builder()
            .timeout_global(Some(timeout))
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .user_agent(concat!("wattle/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls)
            .build();
        Self { agent: config.into() }
    }

    /// The answer to a GET request.
    ///
    /// # Errors
    /// [`ReadError`] for no answer, a status other than 2xx, an empty and a long answer.
    pub fn get(&self, url: &str, headers: &[Header<'_>]) -> Result<Vec<u8>, ReadError> {
        let mut request = self.agent.get(url).header("accept", "application/json");
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let (status, body) = read(url, headers, request.call())?;
        if body.iter().all(u8::is_ascii_whitespace) {
            return Err(ReadError::EmptyAnswer { url: shown(url), status });
        }
        Ok(body)
    }

    /// The answer to a request with a body of this type, as `application/json`. The answer may be empty.
    ///
    /// # Errors
    /// [`ReadError`] for no answer, a status other than 2xx, and a long answer.
    pub fn send(
        &self,
        method: Method,
        url: &str,
        headers: &[Header<'_>],
        (kind, body): (&str, &[u8]),
    ) -> Result<Vec<u8>, ReadError> {
        let request = match method {
            Method::Post => self.agent.post(url),
            Method::Put => self.agent.put(url),
        };
        let mut request = request.header("accept", "application/json").header("content-type", kind);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        Ok(read(url, headers, request.send(body))?.1)
    }
}

/// A request that writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// It creates something.
    Post,
    /// It replaces something.
    Put,
}

/// An address without its query: queries have zones and times, which are noise in a log.
fn shown(url: &str) -> String {
    url.split('?').next().unwrap_or(url).to_owned()
}

/// The status and the body of an answer.
fn read(
    url: &str,
    headers: &[Header<'_>],
    answer: Result<Response<Body>, ureq::Error>,
) -> Result<(u16, Vec<u8>), ReadError> {
    let unreachable =
        |error: &ureq::Error| ReadError::Unreachable { url: shown(url), cause: error.to_string() };
    let mut answer = answer.map_err(|error| unreachable(&error))?;
    let status = answer.status().as_u16();
    let header = answer.headers().get("retry-after").and_then(|value| value.to_str().ok());
    let retry_after = header.and_then(retry::retry_after);
    if !(200..=299).contains(&status) {
        let body = answer.body_mut().with_config().limit(MESSAGE_BYTES_MAX).read_to_vec();
        let (url, message) = (shown(url), message(&body.unwrap_or_default(), headers));
        return Err(match status {
            401 => ReadError::Unauthorized { url, message },
            403 => ReadError::Forbidden { url, message },
            429 => ReadError::Limited { url, message, status, retry_after },
            503 if retry_after.is_some() => {
                ReadError::Limited { url, message, status, retry_after }
            }
            _ => ReadError::Status { url, message, status },
        });
    }
    match answer.body_mut().with_config().limit(BYTES_MAX).read_to_vec() {
        Ok(body) => Ok((status, body)),
        Err(ureq::Error::BodyExceedsLimit(_)) => Err(ReadError::TooLarge { url: shown(url) }),
        Err(error) => Err(unreachable(&error)),
    }
}
