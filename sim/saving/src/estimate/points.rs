//! The points of the curve of a saving: what is saved where jobs may complete later by a given share.

use serde::Serialize;

use super::draw::{Draw, Draws};
use super::interval::{model_error, prediction_error, spread};
use super::runs::Pooled;
use super::totals::{mean, rounded, totals};
use super::{Saved, SavingBound, Totals};
use crate::schedule::Schedule;

/// A point of the curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SavingPoint {
    /// The share by which jobs may complete later on average.
    pub allowed: f64,
    /// Whether the schedule is within it. Otherwise not even the one with free energy is, which stands here.
    pub is_within: bool,
    /// Mean completion time relative to the baseline's, minus 1.
    pub jct_mean_change: f64,
    /// The same of the 95th percentile.
    pub jct_p95_change: f64,
    /// Saved energy relative to the baseline's.
    pub energy_share: f64,
    /// The saving.
    pub saved: Saved,
    /// The baseline over the period of both.
    #[serde(skip)]
    pub baseline: Totals,
    /// Wattle's schedule.
    #[serde(skip)]
    pub wattle: Totals,
    /// Energy price of the schedule, s/J.
    pub price: f64,
}

impl SavingPoint {
    /// Adds cost and emissions: those of the schedules where they have them, otherwise at constants.
    pub(super) fn priced(&mut self, per_kwh: Option<f64>, g_per_kwh: Option<f64>) {
        let by_series = |of: fn(&Totals) -> Option<f64>| {
            of(&self.baseline).zip(of(&self.wattle)).map(|(before, after)| before - after)
        };
        let kwh = self.saved.energy_kwh;
        let cost = by_series(|totals| totals.cost).or(per_kwh.map(|price| kwh * price));
        let carbon_kg = by_series(|totals| totals.carbon_kg);
        self.saved.carbon_kg = carbon_kg.or(g_per_kwh.map(|intensity| kwh * intensity / 1e3));
        self.saved.cost = cost;
    }
}

/// A point with its schedules, and the half-widths of its interval.
pub(super) struct Measured {
    pub(super) point: SavingPoint,
    /// The baseline and Wattle's schedule of each draw over one period.
    pub(super) schedules: Vec<(Schedule, Schedule)>,
    /// From the simulated jobs to all jobs.
    pub(super) scale: f64,
    pub(super) by_seeds: f64,
    pub(super) by_model: f64,
    /// The prediction error behind `by_model`.
    pub(super) error: Option<f64>,
}

/// The runs behind a point.
pub(super) struct Behind<'a> {
    pub(super) bound: SavingBound,
    pub(super) is_within: bool,
    pub(super) price: f64,
    /// The runs on predictions.
    pub(super) main: &'a Pooled,
    /// Saved energy of each seed on exact surfaces, kWh, before scaling.
    pub(super) saved_seeds: Vec<f64>,
}

impl Behind<'_> {
    /// Measures the point. `all_kwh` is the energy of the baseline of all jobs of a sampled trace.
    pub(super) fn measure(
        self,
        drawer: &Draws<'_>,
        draws: &[Draw],
        all_kwh: Option<f64>,
    ) -> Measured {
        let runs = &self.main.runs;
        let pairs = || draws.iter().zip(runs);
        let schedules: Vec<(Schedule, Schedule)> =
            pairs().map(|(draw, run)| drawer.one_period(draw, run)).collect();
        let energy_kwh = mean(schedules.iter().map(|(before, _)| before.energy_kwh));
        let scale = all_kwh.map_or(1.0, |all| all / energy_kwh.max(f64::MIN_POSITIVE));
        let saved_seeds: Vec<f64> = self.saved_seeds.iter().map(|kwh| scale * kwh).collect();
        let by_seeds = spread(&saved_seeds);
        let by_models: Vec<f64> = pairs()
            .filter_map(|(draw, run)| model_error(&draw.scenario, &draw.baseline, run))
            .collect();
        let errors: Vec<f64> =
            runs.iter().filter_map(|run| prediction_error(run.prediction.as_ref())).collect();
        // Runs without a measured error contribute nothing.
        let by_model = if by_models.is_empty() { 0.0 } else { scale * mean(by_models.into_iter()) };
        let error = (!errors.is_empty()).then(|| mean(errors.into_iter()));
        let baseline = totals(schedules.iter().map(|(before, after)| (before, after)), scale);
        let wattle = totals(schedules.iter().map(|(before, after)| (after, before)), scale);
        let saved_kwh = baseline.energy_kwh - wattle.energy_kwh;
        let half_width = by_seeds.hypot(by_model);
        let change = |of: fn(&Totals) -> f64| {
            let (old, new) = (of(&baseline), of(&wattle));
            if old > 0.0 { rounded(new / old - 1.0) } else { 0.0 }
        };
        let point = SavingPoint {
            allowed: self.bound.allowed().mean,
            is_within: self.is_within,
            jct_mean_change: change(|totals| totals.jct_s_mean),
            jct_p95_change: change(|totals| totals.jct_s_p95),
            energy_share: -change(|totals| totals.energy_kwh),
            saved: Saved {
                energy_kwh: rounded(saved_kwh),
                energy_kwh_low: rounded(saved_kwh - half_width),
                // A schedule saves at most all of the baseline's energy.
                energy_kwh_high: rounded((saved_kwh + half_width).min(baseline.energy_kwh)),
                cost: None,
                carbon_kg: None,
            },
            baseline,
            wattle,
            price: self.price,
        };
        Measured { point, schedules, scale, by_seeds, by_model, error }
    }
}
