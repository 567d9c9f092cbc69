//! Parts of every program: the start of logging, an error with its causes in one line, and shutdown.
//!
//! The shell of a service, which uses them, is [`crate::service`].

use std::io::IsTerminal;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};
use wattle_common::env;

/// Default log filter: info for Wattle, warnings for the NATS client.
const LOG_DEFAULT: &str = "info,async_nats=warn";

/// Starts logging to stderr: text on a terminal, one JSON object per line elsewhere.
///
/// A flood of lines from one place in the code is limited ([`crate::log_limit`]). `WATTLE_LOG` sets the
/// filter, as in `debug` or `info,wattle_placer=debug`. A second call has no
/// effect.
pub fn start_logging() {
    let configured = std::env::var(env::LOG).ok().filter(|text| !text.is_empty());
    let (filter, wrong) = match EnvFilter::try_new(configured.as_deref().unwrap_or(LOG_DEFAULT)) {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new(LOG_DEFAULT), Some(error)),
    };
    let terminal = std::io::stderr().is_terminal();
    let lines = crate::log_lines::LogLines::new(std::io::stderr, !terminal);
    let lines = tracing_subscriber::fmt::layer().with_writer(lines);
    let limit = crate::log_limit::limit();
    let registry = tracing_subscriber::registry().with(filter).with(crate::log_count::CountLines);
    let started = if terminal {
        registry.with(lines.with_target(false).with_ansi(false).with_filter(limit)).try_init()
    } else {
        registry.with(lines.json().flatten_event(true).with_filter(limit)).try_init()
    };
    if started.is_ok()
        && let Some(error) = wrong
    {
        tracing::warn!(variable = env::LOG, %error, using = LOG_DEFAULT, "invalid log filter");
    }
}

/// An error with its causes in one line; the error's own text does not include them.
///
/// ```
/// let wrong: std::num::ParseIntError = "x".parse::<u8>().unwrap_err();
/// assert_eq!(wattle_runtime::shell::chain(&wrong), "invalid digit found in string");
/// ```
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(this) = cause {
        // Some libraries repeat the cause in the error.
        let this_text = this.to_string();
        if !text.ends_with(&this_text) {
            text.push_str(": ");
            text.push_str(&this_text);
        }
        cause = this.source();
    }
    text
}

/// The shutdown signal of a service. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Shutdown(CancellationToken);

impl Shutdown {
    /// Listens for SIGTERM and SIGINT. Requires a tokio runtime.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn listen() -> std::io::Result<Self> {
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let shutdown = Self::default();
        let token = shutdown.0.clone();
        tokio::spawn(async move {
            let signal = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
                () = token.cancelled() => return,
            };
            tracing::info!(signal, "stopping");
            token.cancel();
        });
        Ok(shutdown)
    }

    /// Requests shutdown, like a signal.
    pub fn request(&self) {
        self.0.cancel();
    }

    /// Whether shutdown was requested.
    #[must_use]
    pub fn requested(&self) -> bool {
        self.0.is_cancelled()
    }

    /// The result of `work`, or `None` if shutdown comes first; for work without a time limit, such as
    /// [`crate::bus::Bus::connect`].
    pub async fn or<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.0.run_until_cancelled(work).await
    }

    /// Returns when shutdown is requested.
    pub async fn wait(&self) {
        self.0.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_contains_each_cause_once() {
        use std::io::Error;
        let cause = Error::other(Error::other("disk full"));
        let error =
            crate::bus::BusError::Refused { what: "store it".to_owned(), source: cause.into() };
        assert_eq!(chain(&error), "cannot store it: disk full");
    }

    #[tokio::test]
    async fn request_reaches_every_clone() {
        let shutdown = Shutdown::listen().unwrap();
        let clone = shutdown.clone();
        assert!(!clone.requested());
        assert_eq!(clone.or(async { 7 }).await, Some(7));
        shutdown.request();
        clone.wait().await;
        assert!(clone.requested());
        assert_eq!(clone.or(std::future::pending::<()>()).await, None);
    }

    #[tokio::test]
    async fn signal_requests_shutdown() {
        let shutdown = Shutdown::listen().unwrap();
        let id = std::process::id().to_string();
        let sent = std::process::Command::new("sh").args(["-c", "kill -TERM $0", &id]).status();
        assert!(sent.unwrap().success());
        let received =
            tokio::time::timeout(std::time::Duration::from_secs(30), shutdown.wait()).await;
        received.expect("the signal is received");
    }
}
