//! `--wait`: a command reads the stored state until its request has the effect that it waits for.
//!
//! A server that is away is reported and read again, so a wait ends only with its condition, its time limit, a
//! signal, or an error that lasts. Each of these has an exit code of its own; the request itself stays in
//! effect whatever ends the wait.

use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;
use wattle_runtime::bus::BusError;

use crate::output::{Exit, note};

/// Exit code of a wait whose time limit has passed, as of `timeout`.
pub(crate) const TIMED_OUT: u8 = 124;
/// Exit codes of a wait that a signal has ended: 128 plus its number.
const INTERRUPTED: u8 = 128 + 2;
const TERMINATED: u8 = 128 + 15;

/// The first pause between two readings, which doubles up to the longest, wall time.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Time without the condition after which the user is informed, wall time.
const SLOW_AFTER: Duration = Duration::from_secs(5);

/// A condition that a command waits for.
pub(crate) struct Wait<'a> {
    /// Longest duration, wall time.
    pub(crate) timeout: Option<Duration>,
    /// What holds after the wait ends without its condition: `t-1 continues; `wattle cancel t-1` cancels it`.
    pub(crate) otherwise: &'a str,
    /// Printed once when the condition does not hold after five seconds.
    pub(crate) slow: Option<&'a str>,
}

/// Whether a later reading may succeed: the server or the service is away.
fn may_pass(error: &anyhow::Error) -> bool {
    error.downcast_ref::<BusError>().is_some_and(|error| {
        error.is_transient()
            || matches!(
                error,
                BusError::NoResponder { .. }
                    | BusError::NoStorage { .. }
                    | BusError::StorageUnanswered { .. }
            )
    })
}

fn pauses_between_readings() -> impl Iterator<Item = Duration> {
    std::iter::successors(Some(PAUSE), |pause| Some((2 * *pause).min(PAUSE_MAX)))
}

impl Wait<'_> {
    /// Reads until `read` returns a value.
    ///
    /// # Errors
    /// [`Exit`] after the time limit and a signal, which are reported; an error of `read` that may not pass.
    pub(crate) async fn until<T>(
        &self,
        read: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        let (mut interrupt, mut terminate) =
            (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
        let limit = async {
            match self.timeout {
                Some(timeout) => tokio::time::sleep(timeout).await,
                None => std::future::pending().await,
            }
        };
        let (ended, code) = tokio::select! {
            reached = self.reached(read) => return reached,
            () = limit => ("the time limit of --timeout has passed", TIMED_OUT),
            _ = interrupt.recv() => ("interrupted", INTERRUPTED),
            _ = terminate.recv() => ("terminated", TERMINATED),
        };
        note(&format!("{ended}: {}", self.otherwise));
        Err(Exit(code).into())
    }

    async fn reached<T>(
        &self,
        mut read: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        let began = Instant::now();
        let (mut away, mut slow) = (false, self.slow);
        let mut pauses = pauses_between_readings();
        loop {
            match read().await {
                Ok(found) => {
                    if std::mem::take(&mut away) {
                        note("connected again");
                    }
                    if let Some(found) = found {
                        return Ok(found);
                    }
                }
                Err(error) if may_pass(&error) => {
                    if !std::mem::replace(&mut away, true) {
                        note(&format!(
                            "still waiting, and reading again until it succeeds: {error:#}"
                        ));
                    }
                }
                Err(error) => return Err(error),
            }
            if began.elapsed() >= SLOW_AFTER
                && let Some(text) = slow.take().filter(|_| !away)
            {
                note(text);
            }
            tokio::time::sleep(pauses.next().unwrap_or(PAUSE_MAX)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Wait<'_> = Wait { timeout: None, otherwise: "the job continues", slow: None };

    fn code(error: &anyhow::Error) -> Option<u8> {
        error.downcast_ref::<Exit>().map(|exit| exit.0)
    }

    fn disconnected() -> anyhow::Error {
        let url = "nats://a:1".to_owned();
        anyhow::Error::from(BusError::Disconnected { url }).context("the record cannot be read")
    }

    #[tokio::test]
    async fn a_server_that_is_away_is_read_again() {
        let mut readings = 0;
        let reached = WAIT
            .until(async || {
                readings += 1;
                match readings {
                    1 => Ok(None),
                    2 => Err(disconnected()),
                    _ => Ok(Some(readings)),
                }
            })
            .await;
        assert_eq!(reached.unwrap(), 3);
    }

    #[tokio::test]
    async fn an_error_that_lasts_ends_the_wait() {
        let error = WAIT.until::<()>(async || Err(anyhow::anyhow!("no right"))).await.unwrap_err();
        assert_eq!((error.to_string().as_str(), code(&error)), ("no right", None));
    }

    /// Also while the server is away, and during a reading that does not end.
    #[tokio::test]
    async fn the_time_limit_ends_the_wait_with_its_own_code() {
        let wait = Wait { timeout: Some(Duration::from_millis(1)), ..WAIT };
        let ended = [
            wait.until::<()>(async || Ok(None)).await,
            wait.until::<()>(async || Err(disconnected())).await,
            wait.until::<()>(std::future::pending).await,
        ];
        for ended in ended {
            assert_eq!(code(&ended.unwrap_err()), Some(TIMED_OUT));
        }
    }

    #[test]
    fn readings_become_rarer() {
        let day = 86_400_000;
        let mut pauses = 0;
        let total: u128 = pauses_between_readings()
            .inspect(|_| pauses += 1)
            .map(|pause| pause.as_millis())
            .take(43_200)
            .sum();
        assert!(total.abs_diff(day) < 10_000, "a day of {total} ms has {pauses} readings");
    }
}
