//! What a service's `main` needs around its work: logs, and the wish to stop.

use std::io::IsTerminal;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;
use wattle_common::env;

/// What is logged where `WATTLE_LOG` says nothing: our own news, and others' warnings.
const LOG_DEFAULT: &str = "info,async_nats=warn";

/// Starts logging to stderr: text where a person reads it, one JSON object per line elsewhere.
///
/// `WATTLE_LOG` says what is logged, as in `debug` or `info,wattle_placer=debug`. Calling it again
/// changes nothing.
pub fn start_logging() {
    let wanted = std::env::var(env::LOG).ok().filter(|text| !text.is_empty());
    let (filter, wrong) = match EnvFilter::try_new(wanted.as_deref().unwrap_or(LOG_DEFAULT)) {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new(LOG_DEFAULT), Some(error)),
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = if std::io::stderr().is_terminal() {
        builder.with_target(false).try_init()
    } else {
        builder.json().flatten_event(true).try_init()
    };
    if started.is_ok()
        && let Some(error) = wrong
    {
        tracing::warn!(variable = env::LOG, %error, using = LOG_DEFAULT, "log filter not understood");
    }
}

/// An error with its causes, for a log line: an error's own text leaves out what caused it.
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
        // Some libraries do repeat their cause.
        let this_text = this.to_string();
        if !text.ends_with(&this_text) {
            text.push_str(": ");
            text.push_str(&this_text);
        }
        cause = this.source();
    }
    text
}

/// The wish that this service stops. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Shutdown(CancellationToken);

impl Shutdown {
    /// Listens for SIGTERM and SIGINT from now on. Needs a tokio runtime.
    ///
    /// # Errors
    /// Where the system does not let it listen.
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

    /// Asks for the stop, as a signal would.
    pub fn request(&self) {
        self.0.cancel();
    }

    /// Whether it was asked for.
    #[must_use]
    pub fn requested(&self) -> bool {
        self.0.is_cancelled()
    }

    /// The result of `work`, or `None` where the stop is asked for first: for what waits as long as
    /// it takes, such as [`crate::bus::Bus::connect`].
    pub async fn or<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.0.run_until_cancelled(work).await
    }

    /// Returns once it is asked for.
    pub async fn wait(&self) {
        self.0.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_says_what_caused_it_once() {
        use std::io::Error;
        let cause = Error::other(Error::other("disk full"));
        let error =
            crate::bus::BusError::Refused { what: "store it".to_owned(), source: cause.into() };
        assert_eq!(chain(&error), "cannot store it: disk full");
    }

    #[tokio::test]
    async fn a_wish_reaches_every_clone() {
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
    async fn a_signal_is_a_wish() {
        let shutdown = Shutdown::listen().unwrap();
        let id = std::process::id().to_string();
        let sent = std::process::Command::new("sh").args(["-c", "kill -TERM $0", &id]).status();
        assert!(sent.unwrap().success());
        let heard = tokio::time::timeout(std::time::Duration::from_secs(30), shutdown.wait()).await;
        heard.expect("the signal is heard");
    }
}
