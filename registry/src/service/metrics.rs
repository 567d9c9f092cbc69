//! Metrics of the registry: windows, surfaces, and the state and errors of each predictor.
//!
//! The label `predictor` has at most [`crate::RegistryConfig::predictors_max`] values at a time.

use wattle_common::id::PredictorId;
use wattle_common::messages::{PredictorStatus, Score, Scores};
use wattle_runtime::metrics::{Counter, Counters, Gauge, Gauges, Metrics};

use crate::event::{Action, Notice};
use crate::registry::is_trouble;

/// The knowledge of a job at a prediction, as in [`Scores`].
const KNOWLEDGE: [&str; 3] = ["prior", "new-config", "same-config"];

/// The metrics of one registry. Clones share them.
#[derive(Clone)]
pub struct RegistryMetrics {
    active: Gauge,
    windows: Counter,
    surfaces: Counter,
    priors: Counter,
    working: Gauges<1>,
    champion: Gauges<1>,
    proposals: Counters<1>,
    refused: Counters<1>,
    error: Gauges<3>,
    coverage: Gauges<3>,
    latency: Gauges<1>,
}

impl RegistryMetrics {
    /// Registers the metrics.
    #[must_use]
    pub fn new(metrics: &Metrics) -> Self {
        let active = metrics
            .gauge("wattle_registry_active", "Whether this registry works: 1, or 0 on standby");
        active.set([], Some(0.0));
        let by_score = ["predictor", "quantity", "knowledge"];
        Self {
            active,
            windows: metrics.counter("wattle_registry_windows_total", "Windows received"),
            surfaces: metrics
                .counter("wattle_registry_surfaces_total", "Surfaces passed on to the placer"),
            priors: metrics.counter(
                "wattle_registry_priors_total",
                "Jobs that got a prior because the champion sent no surface",
            ),
            working: metrics.gauges(
                "wattle_registry_predictor_working",
                "Whether a predictor responds with valid surfaces: 1 or 0",
                ["predictor"],
            ),
            champion: metrics.gauges(
                "wattle_registry_predictor_champion",
                "Whether the placer uses the predictor's surfaces: 1 or 0",
                ["predictor"],
            ),
            proposals: metrics.counters(
                "wattle_registry_proposals_total",
                "Accepted surfaces of a predictor",
                ["predictor"],
            ),
            refused: metrics.counters(
                "wattle_registry_proposals_refused_total",
                "Refused surfaces of a predictor",
                ["predictor"],
            ),
            error: metrics.gauges(
                "wattle_registry_predictor_error_ratio",
                "Mean relative error over the newest windows, of speed or power, by the knowledge of the \
                 job: prior, new-config or same-config",
                by_score,
            ),
            coverage: metrics.gauges(
                "wattle_registry_predictor_coverage_ratio",
                "Share of the newest windows within the predicted 90 % interval, of speed or power, by the \
                 knowledge of the job",
                by_score,
            ),
            latency: metrics.gauges(
                "wattle_registry_predictor_latency_median_seconds",
                "Median time from a window's end to the proposal, seconds of system time",
                ["predictor"],
            ),
        }
    }

    /// This registry becomes active, or returns to standby.
    pub(super) fn is_active(&self, active: bool) {
        self.active.set([], Some(f64::from(u8::from(active))));
    }

    /// A window was received.
    pub(super) fn window(&self) {
        self.windows.increment([]);
    }

    /// The registry returned an action.
    pub(super) fn acted(&self, action: &Action) {
        match action {
            Action::WriteSurface(_) => self.surfaces.increment([]),
            Action::WriteStatus(status) => self.status(status),
            Action::RemovePredictor(name) => self.gone(name),
            Action::Log(Notice::PriorsWritten { jobs, .. }) => self.priors.add([], *jobs as f64),
            Action::RemoveSurface(_)
            | Action::WriteChampion(_)
            | Action::WriteScores(..)
            | Action::Log(_) => {}
        }
    }

    fn status(&self, status: &PredictorStatus) {
        let name = status.name.as_str();
        let truth = |value: bool| Some(f64::from(u8::from(value)));
        self.working.set([name], truth(!is_trouble(status.state)));
        self.champion.set([name], truth(status.champion));
        self.proposals.advance([name], status.proposals as f64);
        self.refused.advance([name], status.refused as f64);
        self.latency.set([name], status.latency.map(|latency| latency.ms_p50 as f64 / 1e3));
        self.scores(name, "speed", Some(&status.speed));
        self.scores(name, "power", Some(&status.power));
    }

    fn scores(&self, name: &str, quantity: &str, scores: Option<&Scores>) {
        let of = |scores: &Scores| [scores.prior, scores.new_config, scores.same_config];
        let scores: [Option<Score>; 3] = scores.map(of).unwrap_or_default();
        for (knowledge, score) in KNOWLEDGE.into_iter().zip(scores) {
            let labels = [name, quantity, knowledge];
            self.error.set(labels, score.map(|score| score.mape_percent / 100.0));
            self.coverage.set(labels, score.map(|score| score.coverage90_percent / 100.0));
        }
    }

    fn gone(&self, name: &PredictorId) {
        let name = name.as_str();
        self.working.set([name], None);
        self.champion.set([name], None);
        self.latency.set([name], None);
        self.proposals.remove([name]);
        self.refused.remove([name]);
        self.scores(name, "speed", None);
        self.scores(name, "power", None);
    }
}
