//! Metrics of the page: viewers and updates.

use wattle_runtime::metrics::{Counter, Gauge, Metrics};

/// The metrics of one service. Clones share them.
#[derive(Clone)]
pub struct WebMetrics {
    viewers: Gauge,
    updates: Counter,
}

impl WebMetrics {
    /// Registers the metrics.
    #[must_use]
    pub fn new(metrics: &Metrics) -> Self {
        let viewers = metrics.gauge("wattle_web_viewers", "Open pages that receive updates");
        viewers.set([], Some(0.0));
        let updates = metrics.counter(
            "wattle_web_updates_total",
            "Updates of the followed pages, each for all viewers",
        );
        Self { viewers, updates }
    }

    /// The pages were updated for this number of viewers.
    pub(super) fn updated(&self, viewers: usize) {
        self.viewers.set([], Some(viewers as f64));
        if viewers > 0 {
            self.updates.add([], 1.0);
        }
    }
}
