//! Counts log lines of level error and warn for the metrics: an alarm is such a line.

use std::sync::atomic::{AtomicU64, Ordering};

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

static ERRORS: AtomicU64 = AtomicU64::new(0);
static WARNINGS: AtomicU64 = AtomicU64::new(0);

/// Lines of level error and of level warn since the start of this process.
pub(crate) fn lines() -> (u64, u64) {
    (ERRORS.load(Ordering::Relaxed), WARNINGS.load(Ordering::Relaxed))
}

/// Counts the lines that the log filter admits, also those that the limit on lines suppresses.
pub(crate) struct CountLines;

impl<S: Subscriber> Layer<S> for CountLines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let count = match *event.metadata().level() {
            Level::ERROR => &ERRORS,
            Level::WARN => &WARNINGS,
            _ => return,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn errors_and_warnings_are_counted() {
        let (errors, warnings) = lines();
        let subscriber = tracing_subscriber::registry().with(CountLines);
        tracing::subscriber::with_default(subscriber, || {
            tracing::error!("one");
            tracing::warn!("two");
            tracing::info!("none");
        });
        let (errors_now, warnings_now) = lines();
        assert!(errors_now > errors && warnings_now > warnings);
    }
}
