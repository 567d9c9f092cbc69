//! Exclusive step rates at the default setting by configuration: the input of the throughput model.

use std::collections::BTreeMap;

use wattle_common::numerics::median_high;

use super::{Context, Job, JobModel};
use crate::fit::{Belief, Row, fit};
use crate::history::Class;
use crate::interval::LogNormal;
use crate::model::throughput::{Known, Spot, Throughput};
use crate::observation::Observation;

/// Degrees of freedom of a level that was not fitted with the others.
const DOF: f64 = 8.0;

impl Job {
    /// Global batch sizes that this job or its class was seen with, other than the job's current one,
    /// in ascending order.
    #[must_use]
    pub fn other_batches(&self, class: Option<&Class>) -> Vec<u32> {
        let own = self.windows.iter().filter_map(|w| w.global_batch);
        let levels = class.into_iter().flat_map(|c| &c.jobs).flat_map(|(_, s)| &s.levels);
        let mut batches: Vec<u32> =
            own.chain(levels.filter_map(|level| level.global_batch)).collect();
        let now = self.windows.iter().rev().find_map(|w| w.global_batch);
        batches.sort_unstable();
        batches.dedup();
        // Without a reported batch there is no other one.
        batches.retain(|batch| now.is_some_and(|now| now != *batch));
        batches
    }
}

impl JobModel {
    /// Fits the throughput model to the job's levels, and to its class's elsewhere.
    pub(super) fn fit_throughput(&mut self, windows: &[Observation], context: Context<'_>) {
        let level = |(i, spot): (usize, &Spot)| {
            let level = self.speed.belief(i);
            let variance = level.sd * level.sd;
            let ln_rate = LogNormal { mean: level.mean, variance, dof: self.speed.dof() };
            Known { spot: *spot, ln_rate }
        };
        let mut known: Vec<Known> = self.groups.iter().enumerate().map(level).collect();
        known.extend(self.levels_beyond(windows, context));
        let own = known.len();
        for (spot, level) in &context.class.levels {
            if known[..own].iter().all(|k| k.spot != *spot) {
                let variance = level.sd * level.sd;
                let ln_rate = LogNormal { mean: level.mean, variance, dof: DOF };
                known.push(Known { spot: *spot, ln_rate });
            }
        }
        let batch = windows.iter().rev().filter(|w| w.rate.is_some()).find_map(|w| w.global_batch);
        self.throughput = Throughput::fit(known, batch, &context.pooled.throughput);
    }

    /// Levels of configurations beyond the limit of the joint fit: each from its own windows, with
    /// the expected response to caps and clocks.
    fn levels_beyond(&self, windows: &[Observation], context: Context<'_>) -> Vec<Known> {
        let mut rows: BTreeMap<Spot, Vec<Row>> = BTreeMap::new();
        for window in windows.iter().filter(|w| !self.groups.contains(&w.spot())) {
            let Some(rate) = window.rate else { continue };
            let at = self.held.prepare(window.setting());
            let held = self.held.answer(&at, self.ln_power_alone(window.gpus).0, 0.0).0;
            let (offset, variance) = self.neighbours_slow(window, context);
            let variance = variance + held.fitted + held.form;
            rows.entry(window.spot()).or_default().push(Row {
                x: vec![1.0],
                y: rate.ln() + held.mean + offset,
                sd: (window.rate_sd * window.rate_sd + variance).sqrt(),
            });
        }
        let level = |(spot, rows): (Spot, Vec<Row>)| {
            let middle = median_high(rows.iter().map(|r| r.y)).unwrap_or(0.0);
            let level = fit(&rows, &[Belief { mean: middle, sd: 3.0 }]).belief(0);
            let ln_rate = LogNormal { mean: level.mean, variance: level.sd * level.sd, dof: DOF };
            Known { spot, ln_rate }
        };
        rows.into_iter().map(level).collect()
    }
}
