//! The system's clock.
//!
//! With real hardware the system's time is wall time. With a simulated node it may run faster: the
//! file that `WATTLE_CLOCK` names begins with a [`TimeScale`], which is read once. Behind it is the
//! [`Grant`] that holds the time while a process of the cluster still works; each reading of the clock
//! reads it. Decisions, sampling rates and leases use the system's time; NATS time-outs, pings and
//! retries use wall time.
//!
//! A process reads the wall clock once, when it first needs the time. From then on its time advances
//! with the kernel's boot-time clock, which also counts suspension and which no step of the wall clock
//! changes. So [`now`] never goes back, and no lease, silence or grace ends because a clock was set.
//! [`report_steps`] logs the difference; a restart of the process adopts the wall clock.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use wattle_common::time::grant::Grant;
use wattle_common::time::{TimeScale, TimeScaleError};
use wattle_common::{Timestamp, env};

/// Longest single sleep, in wall time; then the clock is read again, because timers do not count
/// suspension.
const SLEEP_MAX: Duration = Duration::from_secs(60);
/// Interval at which a service compares its time with the wall clock, wall time.
const COMPARE_EVERY: Duration = Duration::from_secs(10);
/// Difference that is logged: NTP slews smaller ones, and a leap second may be a step of 1 s.
const STEP_MIN: Duration = Duration::from_secs(2);

/// Readings of the clocks of which the best is used.
const READINGS: u32 = 5;
/// Shortest sleep while the time is held, in wall time. Polling is work for which the clock is held: with 2 ms and a
/// dozen services on a busy machine it kept the clock from running.
const HELD_SLEEP_MIN: Duration = Duration::from_millis(15);

static SOURCE: OnceLock<Source> = OnceLock::new();
static STEADY: OnceLock<Steady> = OnceLock::new();
/// The latest time that this process has read, microseconds.
static LATEST_US: AtomicU64 = AtomicU64::new(0);
/// The latest result of [`monotonic`], microseconds.
static LATEST_MONOTONIC_US: AtomicU64 = AtomicU64::new(0);

/// Where the system's time comes from.
#[derive(Debug)]
struct Source {
    scale: TimeScale,
    /// The file with the grant; `None`: the time is never held.
    file: Option<File>,
}

impl Source {
    const WALL: Self = Self { scale: TimeScale::WALL, file: None };

    /// The grant in force. A file that can no longer be read holds nothing.
    fn grant(&self) -> Grant {
        let Some(file) = &self.file else { return Grant::FREE };
        let read = || {
            let mut bytes = [0; Grant::LEN];
            file.read_exact_at(&mut bytes, Grant::OFFSET as u64).map(|()| bytes).ok()
        };
        // Another process may write between two words of one reading, but not in each of two equal ones.
        let mut last = read();
        loop {
            let Some(bytes) = read() else { return Grant::FREE };
            if last == Some(bytes) {
                return Grant::from_bytes(&bytes);
            }
            last = Some(bytes);
        }
    }
}

impl Source {
    fn now(&self, steady: Steady) -> Timestamp {
        // The grant first: a newer one than the reading of the clock would give an earlier time.
        let (grant, boot) = (self.grant(), boot_time());
        self.scale.system((steady.at(boot) - grant.held(boot)).as_us())
    }
}

fn source() -> &'static Source {
    match source_or_error() {
        Ok(source) => source,
        Err(error) => panic!("{error}: call wattle_runtime::clock::init() first"),
    }
}

/// Wall time at one reading of the boot-time clock, and since then that clock.
#[derive(Clone, Copy, Debug)]
struct Steady {
    wall: Timestamp,
    boot: Duration,
    /// Time for which the simulated clock had been held then.
    held: Duration,
}

impl Steady {
    /// Reads both clocks at one instant, as nearly as this process is allowed to: the kernel may run another
    /// one between the two readings, and a rate multiplies the difference.
    fn read(grant: Grant) -> Self {
        let mut best: Option<(Duration, Self)> = None;
        for _ in 0..READINGS {
            let boot = boot_time();
            let wall = wall_now();
            let between = boot_time().saturating_sub(boot);
            if best.is_none_or(|(shortest, _)| between < shortest) {
                best = Some((between, Self { wall, boot, held: grant.held(boot) }));
            }
        }
        best.expect("there is at least one reading").1
    }

    /// The time when the boot-time clock reads `boot`, had it never been held.
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
    *STEADY.get_or_init(|| Steady::read(source().grant()))
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

/// Opens the clock. [`crate::config::load`] calls this for a service.
///
/// # Errors
/// If `WATTLE_CLOCK` names a file without a clock.
pub fn init() -> Result<TimeScale, ClockError> {
    source_or_error().map(|source| source.scale)
}

fn source_or_error() -> Result<&'static Source, ClockError> {
    if let Some(source) = SOURCE.get() {
        return Ok(source);
    }
    let source = match std::env::var_os(env::CLOCK).filter(|path| !path.is_empty()) {
        Some(path) => open(path.into())?,
        None => Source::WALL,
    };
    Ok(SOURCE.get_or_init(|| source))
}

/// Uses the clock in `path`, regardless of the environment; for a command that finds a running
/// system on this machine.
///
/// # Errors
/// If the file contains no clock.
pub fn use_file(path: &std::path::Path) -> Result<TimeScale, ClockError> {
    let source = open(path.to_owned())?;
    Ok(SOURCE.get_or_init(|| source).scale)
}

/// A clock in a file, for a process that compares the times of several.
#[derive(Debug)]
pub struct FileClock {
    source: Source,
    steady: Steady,
}

impl FileClock {
    /// Opens it.
    ///
    /// # Errors
    /// If the file contains no clock.
    pub fn open(path: &std::path::Path) -> Result<Self, ClockError> {
        let source = open(path.to_owned())?;
        let steady = Steady::read(source.grant());
        Ok(Self { source, steady })
    }

    /// Its time scale.
    #[must_use]
    pub const fn scale(&self) -> TimeScale {
        self.source.scale
    }

    /// Whether a process grants its time.
    #[must_use]
    pub fn is_granted(&self) -> bool {
        !self.source.grant().is_free()
    }

    /// Its time now.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.source.now(self.steady)
    }
}

fn open(path: PathBuf) -> Result<Source, ClockError> {
    let mut head = [0; TimeScale::HEADER_LEN];
    let file = File::open(&path).and_then(|file| file.read_exact_at(&mut head, 0).map(|()| file));
    match file {
        Ok(file) => match TimeScale::from_bytes(&head) {
            Ok(scale) => Ok(Source { scale, file: Some(file) }),
            Err(source) => Err(ClockError::NoClock { path, source }),
        },
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
    source().scale
}

/// Time since the machine started, including suspension, less the time for which a simulated clock was held
/// since this process started; it never goes back. For spans that do not depend on the system's time.
#[must_use]
pub fn monotonic() -> Duration {
    // The grant first, as for the system's time.
    let (steady, grant, boot) = (steady(), source().grant(), boot_time());
    let ran = boot.saturating_sub(grant.held(boot).saturating_sub(steady.held));
    let us = u64::try_from(ran.as_micros()).unwrap_or(u64::MAX);
    Duration::from_micros(LATEST_MONOTONIC_US.fetch_max(us, Ordering::Relaxed).max(us))
}

/// Time since the machine started, also while a simulated clock is held. For how long work takes.
#[must_use]
pub fn work_time() -> Duration {
    boot_time()
}

/// The id of the machine's boot and the system time at which it was; `None`: the kernel reports no id.
///
/// Within a boot, a different time in another process means that the clock was set between the starts of the
/// two processes.
#[must_use]
pub fn boot() -> Option<(String, Timestamp)> {
    let id = crate::instance::boot()?;
    let (now, boot) = (now(), boot_time());
    // A clock that is held has not been set. The held time may be that of several boots.
    let (held, rate) = (source().grant().held(boot), scale().rate);
    Some((id, now + held.saturating_mul(rate) - boot.saturating_mul(rate)))
}

/// Wall time at which this process first read a clock.
pub fn started_at() -> Timestamp {
    steady().wall
}

/// The current system time; it never goes back and does not follow steps of the wall clock.
pub fn now() -> Timestamp {
    let now_us = source().now(steady()).as_us();
    // Two threads may read the clocks in another order than they return.
    Timestamp::from_us(LATEST_US.fetch_max(now_us, Ordering::Relaxed).max(now_us))
}

/// The system time at a past wall time. `None` if the clock is simulated and is held at times: how long it had
/// been held then is not known.
#[must_use]
pub fn at_wall(wall: Timestamp) -> Option<Timestamp> {
    let source = source();
    (source.grant() == Grant::FREE).then(|| source.scale.system(wall.as_us()))
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
        if at <= now() {
            return;
        }
        tokio::time::sleep(wall_until(at)).await;
    }
}

/// Wall time after which to look again whether the system's time is `at`.
pub fn wall_until(at: Timestamp) -> Duration {
    let shortest =
        if source().grant().is_held(boot_time()) { HELD_SLEEP_MIN } else { Duration::ZERO };
    scale().wall_span(at.since(now())).clamp(shortest, SLEEP_MAX)
}

/// Sleeps for `span` of the system's time.
pub async fn sleep(span: Duration) {
    sleep_until(now() + span).await;
}

#[cfg(test)]
mod tests {
    use wattle_common::time::grant::Granter;

    use super::*;

    #[test]
    fn file_without_clock_is_an_error_with_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let error = open(path.clone()).unwrap_err();
        assert!(matches!(error, ClockError::Unreadable { .. }));
        assert!(error.to_string().contains("WATTLE_CLOCK"), "{error}");
        std::fs::write(&path, b"short").unwrap();
        let error = open(path.clone()).unwrap_err();
        assert!(matches!(error, ClockError::NoClock { source: TimeScaleError::NotAState, .. }));
        let scale = TimeScale { epoch_us: 1_700_000_000_000_000, rate: 60 };
        let mut state = scale.to_bytes().to_vec();
        state.resize(1_000, 0);
        std::fs::write(&path, state).unwrap();
        let source = open(path).unwrap();
        assert_eq!((source.scale, source.grant()), (scale, Grant::FREE));
    }

    #[test]
    fn a_held_clock_stands_still() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let mut granter = Granter::resume(1_000, Grant::FREE);
        let mut state =
            TimeScale { epoch_us: 1_700_000_000_000_000, rate: 1_000 }.to_bytes().to_vec();
        state.resize(Grant::OFFSET, 0);
        // The last look was a second before the start of this test.
        granter.all_asleep(boot_time().saturating_sub(Duration::from_secs(1)));
        let [limit, held] = granter.grant().to_words();
        state.extend([0, limit, held, 0, 0].iter().flat_map(|word| word.to_le_bytes()));
        std::fs::write(&path, state).unwrap();
        let clock = FileClock::open(&path).unwrap();
        let (first, until) = (clock.now(), wall_now() + Duration::from_millis(5));
        while wall_now() < until {}
        // Both clocks are read in whole microseconds, one after the other.
        assert!(clock.now().since(first) < Duration::from_secs(1), "5 s have passed at this rate");
    }

    #[test]
    fn steps_of_the_wall_clock_do_not_change_the_time() {
        let (wall, boot) = (Timestamp::from_s(1_000_000), Duration::from_secs(50));
        let steady = Steady { wall, boot, held: Duration::ZERO };
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
