//! Metrics of a predictor: windows, surfaces and jobs. The errors of its predictions are the registry's.

use wattle_common::id::PredictorId;
use wattle_runtime::metrics::{Counters, Gauges, Metrics};

use crate::machine::Action;

/// The metrics of one predictor. Clones share them.
#[derive(Clone)]
pub struct PredictorMetrics {
    name: String,
    active: Gauges<1>,
    jobs: Gauges<1>,
    windows: Counters<2>,
    surfaces: Counters<1>,
}

impl PredictorMetrics {
    /// Registers the metrics of the predictor `name`.
    #[must_use]
    pub fn new(metrics: &Metrics, name: &PredictorId) -> Self {
        let name = name.to_string();
        let active = metrics.gauges(
            "wattle_predictor_active",
            "Whether this process predicts: 1, or 0 on standby",
            ["predictor"],
        );
        active.set([&name], Some(0.0));
        let windows = metrics.counters(
            "wattle_predictor_windows_total",
            "Received windows: learned or unusable",
            ["predictor", "result"],
        );
        windows.begin([[name.as_str(), "learned"], [name.as_str(), "unusable"]]);
        let surfaces = metrics.counters(
            "wattle_predictor_surfaces_total",
            "Surfaces that were proposed",
            ["predictor"],
        );
        surfaces.begin([[name.as_str()]]);
        Self {
            active,
            jobs: metrics.gauges(
                "wattle_predictor_jobs",
                "Jobs that the predictor keeps in memory",
                ["predictor"],
            ),
            windows,
            surfaces,
            name,
        }
    }

    /// This process becomes active, or returns to standby.
    pub(super) fn is_active(&self, active: bool) {
        self.active.set([&self.name], Some(f64::from(u8::from(active))));
    }

    /// Number of jobs in memory.
    pub(super) fn has_jobs(&self, jobs: usize) {
        self.jobs.set([&self.name], Some(jobs as f64));
    }

    /// A window was handled and gave these actions.
    pub(super) fn window(&self, actions: &[Action]) {
        let is_unusable = |action: &Action| {
            matches!(action, Action::ReportUnusable { .. } | Action::ReportOutOfBounds { .. })
        };
        let result = if actions.iter().any(is_unusable) { "unusable" } else { "learned" };
        self.windows.increment([&self.name, result]);
    }

    /// A window could not be decoded.
    pub(super) fn undecodable(&self) {
        self.windows.increment([&self.name, "unusable"]);
    }

    /// A surface was proposed.
    pub(super) fn proposed(&self) {
        self.surfaces.increment([&self.name]);
    }
}
