//! The system's clock.
//!
//! With real hardware the system's time is wall time. With a simulated node it may run faster: the
//! file that `WATTLE_CLOCK` names begins with a [`TimeScale`], which is read once. Decisions, sampling
//! rates and leases use the system's time; NATS time-outs, pings and retries use wall time.
//!
//! A process reads the wall clock once, when it first needs the time. From then on its time advances
//! with the kernel's boot-time clock, which also counts suspension and which no step of the wall clock
//! changes. So [`now`] never goes back, and no lease, silence or grace ends because a clock was set.
//! [`report_steps`] logs the difference; a restart of the process adopts the wall clock.

use std::io::Read;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use wattle_common::time::{TimeScale, TimeScaleError};
use wattle_common::{Timestamp, env};

/// Longest single sleep, in wall time; then the clock is read again, because timers do not count
/// suspension.
const SLEEP_MAX: Duration = Duration::from_secs(60);
/// Interval at which a service compares its time with the wall clock, wall time.
const COMPARE_EVERY: Duration = Duration::from_secs(10);
/// Difference that is logged: NTP slews smaller ones, and a leap second may be a step of 1 s.
const STEP_MIN: Duration = Duration::from_secs(2);

static SCALE: OnceLock<TimeScale> = OnceLock::new();
static STEADY: OnceLock<Steady> = OnceLock::new();

/// Wall time at one reading of the boot-time clock, and since then that clock.
#[derive(Clone, Copy, Debug)]
struct Steady {
    wall: Timestamp,
    boot: Duration,
}

impl Steady {
    /// The time when the boot-time clock reads `boot`.
    fn at(self, boot: Duration) -> Timestamp {
        self.wall + boot.saturating_sub(self.boot)
    }

    /// By how many microseconds `wall` is ahead of this process; negative: behind.
    fn step_us(self, wall: Timestamp, boot: Duration) -> i128 {
        i128::from(wall.as_us()) - i128::from(self.at(boot).as_us())
    }
}

/// Time since the machine started, including suspension.
pub(crate) fn boot_time() -> Duration {
    let read = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (s, ns) = (u64::try_from(read.tv_sec), u32::try_from(read.tv_nsec));
    Duration::new(s.unwrap_or_default(), ns.unwrap_or_default())
}

fn steady() -> Steady {
    *STEADY.get_or_init(|| Steady { wall: wall_now(), boot: boot_time() })
}

/// Why the clock is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ClockError {
    /// The file that `WATTLE_CLOCK` names cannot be read.
    #[error("cannot read {path}, which {} names; unset it to use the wall clock", env::CLOCK)]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The file does not contain a clock.
    #[error(
        "{path}, which {} names, contains no clock; unset it to use the wall clock",
        env::CLOCK
    )]
    NoClock {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: TimeScaleError,
    },
}

/// Reads the time scale. [`crate::config::load`] calls this for a service.
///
/// # Errors
/// If `WATTLE_CLOCK` names a file without a clock.
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

/// Reads the time scale from `path`, regardless of the environment; for a command that finds a running
/// system on this machine.
///
/// # Errors
/// If the file contains no clock.
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

/// The time scale.
///
/// # Panics
/// If `WATTLE_CLOCK` names no clock and [`init`], which returns the error, was not called first.
pub fn scale() -> TimeScale {
    match init() {
        Ok(scale) => scale,
        Err(error) => panic!("{error}: call wattle_runtime::clock::init() first"),
    }
}

/// Time since the machine started, including suspension; it never goes back. For spans that do not
/// depend on the system's time.
#[must_use]
pub fn monotonic() -> Duration {
    boot_time()
}

/// The id of the machine's boot and the system time at which it was; `None`: the kernel reports no id.
///
/// Within a boot, a different time in another process means that the clock was set between the starts of the
/// two processes.
#[must_use]
pub fn boot() -> Option<(String, Timestamp)> {
    let id = crate::instance::boot()?;
    let now = now();
    Some((id, now - boot_time().saturating_mul(scale().rate)))
}

/// Wall time at which this process first read a clock.
pub fn started_at() -> Timestamp {
    steady().wall
}

/// The current system time; it never goes back and does not follow steps of the wall clock.
pub fn now() -> Timestamp {
    scale().system(steady().at(boot_time()).as_us())
}

/// Logs each step of the wall clock, for as long as the service runs.
pub async fn report_steps() {
    let mut known = 0;
    loop {
        let step = steady().step_us(wall_now(), boot_time());
        if (step - known).unsigned_abs() >= STEP_MIN.as_micros() {
            known = step;
            let (s, side) =
                (step.unsigned_abs() / 1_000_000, if step < 0 { "back" } else { "ahead" });
            if s == 0 {
                tracing::warn!("the system clock agrees with this service again");
            } else {
                tracing::error!(
                    "the system clock was set: it is {s} s {side} of this service, which continues \
                     with its own time; synchronise the clocks, then restart this service"
                );
            }
        }
        tokio::time::sleep(COMPARE_EVERY).await;
    }
}

/// The current wall time; for creating a clock, and for measuring how long a person waits.
#[expect(clippy::disallowed_methods, reason = "the only reader of the clock")]
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
        tokio::time::sleep(scale().wall_span(ahead).min(SLEEP_MAX)).await;
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
    fn file_without_clock_is_an_error_with_remedy() {
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

    #[test]
    fn steps_of_the_wall_clock_do_not_change_the_time() {
        let steady = Steady { wall: Timestamp::from_s(1_000_000), boot: Duration::from_secs(50) };
        let boot = Duration::from_secs(80);
        assert_eq!(steady.at(boot), Timestamp::from_s(1_000_030));
        assert_eq!(steady.step_us(Timestamp::from_s(1_000_030), boot), 0);
        assert_eq!(steady.step_us(Timestamp::from_s(1_003_630), boot), 3_600_000_000);
        assert_eq!(steady.step_us(Timestamp::from_s(996_430), boot), -3_600_000_000);
        let (first, second) = (now(), now());
        assert!(first <= second, "time goes back from {first} to {second}");
    }

    #[tokio::test]
    async fn past_instants_return_at_once() {
        let before = now();
        sleep_until(before).await;
        sleep_until(Timestamp::EPOCH).await;
        let at = before + Duration::from_millis(20);
        sleep_until(at).await;
        assert!(now() >= at);
    }
}
