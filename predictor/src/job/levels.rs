//! Exclusive step rates at the default setting by configuration: the input of the throughput model.

use std::collections::BTreeMap;

use wattle_common::numerics::median_high;
use wattle_common::observation::{JobShape, Observation};

use super::{Context, JobModel};
use crate::model::throughput::{Known, Throughput};
use crate::statistics::interval::LogNormal;
use crate::statistics::regression::{Gaussian, Row, fit};

/// Degrees of freedom of a level that was not fitted with the others.
const DOF: f64 = 8.0;

impl JobModel {
    /// Fits the throughput model to the job's levels, and to its class's elsewhere.
    pub(super) fn fit_throughput(&mut self, windows: &[Observation], context: Context<'_>) {
        let level = |(i, shape): (usize, &JobShape)| {
            let level = self.speed.marginal(i);
            let variance = level.sd * level.sd;
            let ln_rate = LogNormal { mean: level.mean, variance, dof: self.speed.dof() };
            Known { shape: *shape, ln_rate }
        };
        let mut known: Vec<Known> = self.groups.iter().enumerate().map(level).collect();
        known.extend(self.levels_beyond(windows, context));
        let own = known.len();
        for (shape, level) in &context.class.levels {
            if known[..own].iter().all(|k| k.shape != *shape) {
                let variance = level.sd * level.sd;
                let ln_rate = LogNormal { mean: level.mean, variance, dof: DOF };
                known.push(Known { shape: *shape, ln_rate });
            }
        }
        let batch = windows.iter().rev().filter(|w| w.rate.is_some()).find_map(|w| w.global_batch);
        self.throughput = Throughput::fit(known, batch, &context.pooled.throughput);
    }

    /// Levels of configurations beyond the limit of the joint fit: each from its own windows, with
    /// the expected response to caps and clocks.
    fn levels_beyond(&self, windows: &[Observation], context: Context<'_>) -> Vec<Known> {
        let mut rows: BTreeMap<JobShape, Vec<Row>> = BTreeMap::new();
        for window in windows.iter().filter(|w| !self.groups.contains(&w.shape())) {
            let Some(rate) = window.rate else { continue };
            let at = self.response.prepare(window.setting());
            let effect =
                self.response.answer(&at, self.ln_power_exclusive(window.shape()).0, 0.0).0;
            let (offset, variance) = self.neighbours_slow(window, context);
            let variance = variance + effect.fitted + effect.form;
            rows.entry(window.shape()).or_default().push(Row {
                x: vec![1.0],
                y: rate.ln() + effect.mean + offset,
                sd: (window.rate_sd * window.rate_sd + variance).sqrt(),
            });
        }
        let level = |(shape, rows): (JobShape, Vec<Row>)| {
            let middle = median_high(rows.iter().map(|r| r.y)).unwrap_or(0.0);
            let level = fit(&rows, &[Gaussian { mean: middle, sd: 3.0 }]).marginal(0);
            let ln_rate = LogNormal { mean: level.mean, variance: level.sd * level.sd, dof: DOF };
            Known { shape, ln_rate }
        };
        rows.into_iter().map(level).collect()
    }
}
