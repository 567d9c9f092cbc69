//! The one clock.
//!
//! Beside real hardware the system's time is the wall's. Beside a simulated node it may run faster:
//! the file that `WATTLE_CLOCK` names begins with a [`TimeScale`]. It is read once. Sampling rates,
//! leases and everything else a service decides about count the system's time, which this module
//! gives; what concerns NATS (time-outs, pings, retries) counts the wall's and does not come here.

use std::io::Read;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use wattle_common::time::{TimeScale, TimeScaleError};
use wattle_common::{Timestamp, env};

/// Longest time slept at once, in wall time: after it the clock is asked again, so that a stepped
/// wall clock is noticed within a minute.
const NAP_MAX: Duration = Duration::from_secs(60);

static SCALE: OnceLock<TimeScale> = OnceLock::new();

/// Why there is no clock.
#[derive(Debug, thiserror::Error)]
pub enum ClockError {
    /// The file that `WATTLE_CLOCK` names cannot be read.
    #[error("cannot read {path}, which {} names; unset it to live by the wall clock", env::CLOCK)]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// It is no clock.
    #[error(
        "{path}, which {} names, holds no clock; unset it to live by the wall clock",
        env::CLOCK
    )]
    NoClock {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: TimeScaleError,
    },
}

/// Reads how the system's time follows the wall's. [`crate::config::load`] does it for a service.
///
/// # Errors
/// Where `WATTLE_CLOCK` names a file that holds no clock.
pub fn init() -> Result<TimeScale, ClockError> {
    if let Some(scale) = SCALE.get() {
        return Ok(*scale);
    }
    let scale = match std::env::var_os(env::CLOCK).filter(|path| !path.is_empty()) {
        Some(path) => read_scale(path.into())?,
        None => TimeScale::WALL,
    };
    Ok(*SCALE.get_or_init(|| scale))
}

/// Reads how the system's time follows the wall's from `path`, whatever the environment says; for
/// a command that finds a running system on this machine.
///
/// # Errors
/// Where the file holds no clock.
pub fn use_file(path: &std::path::Path) -> Result<TimeScale, ClockError> {
    let scale = read_scale(path.to_owned())?;
    Ok(*SCALE.get_or_init(|| scale))
}

fn read_scale(path: PathBuf) -> Result<TimeScale, ClockError> {
    let mut head = [0; TimeScale::HEADER_LEN];
    let read = std::fs::File::open(&path).and_then(|mut file| file.read_exact(&mut head));
    match read {
        Ok(()) => TimeScale::from_bytes(&head).map_err(|s| ClockError::NoClock { path, source: s }),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            Err(ClockError::NoClock { path, source: TimeScaleError::NotAState })
        }
        Err(source) => Err(ClockError::Unreadable { path, source }),
    }
}

/// How the system's time follows the wall's.
///
/// # Panics
/// Where `WATTLE_CLOCK` names no clock and nobody asked [`init`] first, which says so properly.
pub fn scale() -> TimeScale {
    match init() {
        Ok(scale) => scale,
        Err(error) => panic!("{error}: call wattle_runtime::clock::init() first"),
    }
}

/// The system's time, now.
pub fn now() -> Timestamp {
    scale().system(wall_now().as_us())
}

/// What the wall shows, now; for whoever makes a clock, or measures what a person waits for.
#[expect(clippy::disallowed_methods, reason = "this is the one reader of the clock")]
pub fn wall_now() -> Timestamp {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Timestamp::from_us(u64::try_from(wall.as_micros()).unwrap_or(u64::MAX))
}

/// Sleeps until the system's time is `at`; returns at once if it has passed.
pub async fn sleep_until(at: Timestamp) {
    loop {
        let ahead = at.since(now());
        if ahead.is_zero() {
            return;
        }
        tokio::time::sleep(scale().wall_span(ahead).min(NAP_MAX)).await;
    }
}

/// Sleeps for `span` of the system's time.
pub async fn sleep(span: Duration) {
    tokio::time::sleep(scale().wall_span(span)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_clock_is_an_error_that_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let error = read_scale(path.clone()).unwrap_err();
        assert!(matches!(error, ClockError::Unreadable { .. }));
        assert!(error.to_string().contains("WATTLE_CLOCK"), "{error}");
        std::fs::write(&path, b"short").unwrap();
        let error = read_scale(path.clone()).unwrap_err();
        assert!(matches!(error, ClockError::NoClock { source: TimeScaleError::NotAState, .. }));
        let scale = TimeScale { epoch_us: 1_700_000_000_000_000, rate: 60 };
        let mut state = scale.to_bytes().to_vec();
        state.extend([9; 1_000]);
        std::fs::write(&path, state).unwrap();
        assert_eq!(read_scale(path).unwrap(), scale);
    }

    #[tokio::test]
    async fn what_has_passed_is_not_slept_for() {
        let before = now();
        sleep_until(before).await;
        sleep_until(Timestamp::EPOCH).await;
        let at = before + Duration::from_millis(20);
        sleep_until(at).await;
        assert!(now() >= at);
    }
}
