//! Fits of step rates and power together with the response to caps and clocks.

use wattle_common::numerics::median_high;
use wattle_common::observation::{JobShape, Observation, POWER_SD};

use super::cap_clock_response::Output;
use super::{Context, GROUPS_MAX, JobModel, isotonic};
use crate::model::cap;
use crate::model::constant::LEAST_SD;
use crate::statistics::regression::{Gaussian, Posterior, Row, fit};

impl JobModel {
    /// Fits the response of power; true where the power at the default setting was observed.
    pub(super) fn fit_held_power(
        &self,
        windows: &[Observation],
        context: Context<'_>,
    ) -> (Posterior, bool) {
        let mut rows = self.response.class_rows(Output::Power, &context.class.settings, 0);
        let power = |w: &Observation| Some((w.gpu_power_w?.ln(), POWER_SD));
        let shifts = isotonic::shifts(windows, context.gpu, power);
        for (window, shift) in windows.iter().zip(shifts).filter(|(w, _)| w.is_exclusive()) {
            let demand = self.ln_power_exclusive(window.shape()).0;
            let (x, mean, open) = self.response.columns(Output::Power, window.setting(), demand);
            let Some(watts) = window.gpu_power_w.filter(|_| x.iter().any(|x| *x != 0.0)) else {
                continue;
            };
            // An error of the default's power is common to all rows. Power under one cap varies
            // less than power between windows in general.
            let sd = LEAST_SD.get().hypot(open.sqrt());
            rows.push(Row { x, y: watts.ln() + shift - demand - mean, sd });
        }
        (fit(&rows, &self.response.priors(Output::Power)), self.power.is_seen)
    }

    /// Fits step rates and their response; true where the rate at the default setting was observed.
    pub(super) fn fit_speed(
        &mut self,
        windows: &[Observation],
        context: Context<'_>,
    ) -> (Posterior, bool) {
        let rated = || windows.iter().rev().filter(|w| w.rate.is_some());
        self.groups.clear();
        let shifts = isotonic::shifts(windows, context.gpu, |w| Some((w.rate?.ln(), w.rate_sd)));
        for window in rated() {
            let group = window.shape();
            if !self.groups.contains(&group) && self.groups.len() < GROUPS_MAX {
                self.groups.push(group);
            }
        }
        let has_exclusive =
            |shape: JobShape| rated().any(|w| w.is_exclusive() && w.shape() == shape);
        let colocated =
            rated().filter(|w| !w.is_exclusive() && !has_exclusive(w.shape())).count() as f64;
        let levels = self.groups.len();
        let mut rows = self.response.class_rows(Output::Slow, &context.class.settings, levels);
        for (window, shift) in windows.iter().zip(shifts).rev().filter(|(w, _)| w.rate.is_some()) {
            // Shared windows set the level only where no exclusive window does. The slowdown that
            // they are corrected by has a common error, so a sum of them is no more precise than one.
            if !window.is_exclusive() && has_exclusive(window.shape()) {
                continue;
            }
            let Some(group) = self.groups.iter().position(|g| *g == window.shape()) else {
                continue;
            };
            let (offset, variance) = self.neighbours_slow(window, context);
            let demand = self.ln_power_exclusive(window.shape()).0;
            let (columns, slow, open) =
                self.response.columns(Output::Slow, window.setting(), demand);
            rows.push(Row {
                x: self.speed_row(group, &columns),
                y: window.rate.map_or(0.0, f64::ln) + shift + offset + slow,
                sd: (window.rate_sd * window.rate_sd + colocated * variance + open).sqrt(),
            });
        }
        let middle = median_high(rows.iter().filter(|r| r.x[..levels].contains(&1.0)).map(|r| r.y));
        let middle = middle.unwrap_or(0.0);
        let priors: Vec<Gaussian> = self
            .groups
            .iter()
            .map(|g| {
                context.class.levels.get(g).copied().unwrap_or(Gaussian { mean: middle, sd: 3.0 })
            })
            .chain(self.response.priors(Output::Slow))
            .collect();
        self.speed = fit(&rows, &priors);
        if !self.inferred {
            let own = self.groups.iter().zip(0..).map(|(g, i)| (*g, self.speed.mean(i)));
            let like = context.class.levels.iter().map(|(g, level)| (*g, level.mean));
            // On the fewest GPUs; the job's own level takes precedence over the class's.
            self.traits.ln_rate = own.chain(like).min_by_key(|(g, _)| *g).map(|(_, rate)| rate);
        }
        self.fit_throughput(windows, context);
        let default =
            |w: &&Observation| w.is_exclusive() && cap::is_default(context.gpu, w.setting());
        let default_seen = !context.class.levels.is_empty() || rated().any(|w| default(&w));
        (self.speed.part(levels..priors.len()), default_seen)
    }

    /// Features of the step-rate fit: an indicator for each level, and minus the slowdown's features.
    pub(super) fn speed_row(&self, group: usize, columns: &[f64]) -> Vec<f64> {
        let mut row = vec![0.0; self.groups.len() + self.response.width()];
        row[group] = 1.0;
        for (cell, x) in row[self.groups.len()..].iter_mut().zip(columns) {
            *cell = -x;
        }
        row
    }
}
