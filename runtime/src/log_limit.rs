//! A limit on log lines: a flood of equal lines fills no disk.
//!
//! Each place in the code may log [`LINES_MAX`] lines in [`WINDOW`]. Further ones are counted, and
//! [`report_suppressed`] logs their number. The number of places is fixed, so the state is bounded.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use tracing::{Event, Level, Metadata};
use tracing_subscriber::layer::{Context, Filter};

use crate::clock;

/// Most lines of one place in [`WINDOW`]: a busy placer's lines about single jobs, and 100 times less than
/// a flood.
const LINES_MAX: u32 = 100;
/// Time in which lines are counted, wall time.
const WINDOW: Duration = Duration::from_secs(10);

/// A place in the code: file and line.
type Place = (&'static str, u32);

/// Lines of one place.
#[derive(Clone, Copy, Debug)]
struct Lines {
    since: Duration,
    logged: u32,
    suppressed: u64,
}

/// The limit on the lines of each place. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct LogLimit {
    places: Arc<Mutex<BTreeMap<Place, Lines>>>,
    now: fn() -> Duration,
}

static LIMIT: LazyLock<LogLimit> = LazyLock::new(|| LogLimit::new(clock::boot_time));

/// The limit of this process.
pub(crate) fn limit() -> LogLimit {
    LIMIT.clone()
}

impl LogLimit {
    fn new(now: fn() -> Duration) -> Self {
        Self { places: Arc::default(), now }
    }

    /// Counts a line; false where it is to be suppressed.
    fn admits(&self, meta: &'static Metadata<'static>) -> bool {
        // Debugging was requested.
        if *meta.level() > Level::INFO {
            return true;
        }
        let (Some(file), Some(line)) = (meta.file(), meta.line()) else { return true };
        let place = (file, line);
        let now = (self.now)();
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = places.entry(place).or_insert(Lines { since: now, logged: 0, suppressed: 0 });
        if now.saturating_sub(lines.since) >= WINDOW {
            (lines.since, lines.logged) = (now, 0);
        }
        if lines.logged < LINES_MAX {
            lines.logged += 1;
            return true;
        }
        lines.suppressed = lines.suppressed.saturating_add(1);
        false
    }

    /// The numbers of suppressed lines since the last call, by place.
    fn take_suppressed(&self) -> Vec<(Place, u64)> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let taken =
            places.iter_mut().map(|(at, lines)| (*at, std::mem::take(&mut lines.suppressed)));
        taken.filter(|(_, lines)| *lines > 0).collect()
    }
}

impl<S> Filter<S> for LogLimit {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        self.admits(event.metadata())
    }
}

/// Logs the numbers of suppressed lines every ten seconds, for as long as the service runs.
pub(crate) async fn report_regularly() {
    loop {
        tokio::time::sleep(WINDOW).await;
        report_suppressed();
    }
}

/// Logs the numbers of suppressed lines since the last report.
pub(crate) fn report_suppressed() {
    for ((file, line), lines) in LIMIT.take_suppressed() {
        tracing::warn!(lines, file, line, "log lines suppressed");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use tracing_subscriber::Layer;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    /// Counts the lines that pass.
    struct Count(Arc<AtomicU64>);

    impl<S: tracing::Subscriber> Layer<S> for Count {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn flood_of_lines_is_limited_and_counted() {
        static NOW_S: AtomicU64 = AtomicU64::new(50);
        let limit = LogLimit::new(|| Duration::from_secs(NOW_S.load(Ordering::Relaxed)));
        let passed = Arc::new(AtomicU64::new(0));
        let layer = Count(passed.clone()).with_filter(limit.clone());
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, || {
            let flood = || (0..60_000).for_each(|request| tracing::warn!(request, "not readable"));
            flood();
            assert_eq!(passed.load(Ordering::Relaxed), u64::from(LINES_MAX));
            let suppressed: Vec<u64> = limit.take_suppressed().iter().map(|(_, n)| *n).collect();
            assert_eq!(suppressed, [60_000 - u64::from(LINES_MAX)]);
            assert!(limit.take_suppressed().is_empty());
            // Another place has its own limit, and each is renewed after the window.
            tracing::error!("the disk is full");
            assert_eq!(passed.load(Ordering::Relaxed), u64::from(LINES_MAX) + 1);
            NOW_S.fetch_add(WINDOW.as_secs(), Ordering::Relaxed);
            flood();
            assert_eq!(passed.load(Ordering::Relaxed), 2 * u64::from(LINES_MAX) + 1);
        });
    }
}
