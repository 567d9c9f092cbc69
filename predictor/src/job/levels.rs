//! Step rates alone at the default, by configuration: what the throughput model is fitted to.

use std::collections::BTreeMap;

use wattle_common::numerics::median_high;

use super::{Context, Job, JobModel};
use crate::fit::{Belief, Row, fit};
use crate::history::Class;
use crate::interval::LogNormal;
use crate::model::throughput::{Known, Throughput};
use wattle_common::observation::{JobShape, Observation};

/// Degrees of freedom of a level that was not fitted with the others.
const DOF: f64 = 8.0;

impl Job {
    /// Global batch sizes that this job or its class ran with, other than the job's own now,
    /// ascending.
    #[must_use]
    pub fn other_batches(&self, class: Option<&Class>) -> Vec<u32> {
        let own = self.windows.iter().filter_map(|w| w.global_batch);
        let levels = class.into_iter().flat_map(|c| &c.jobs).flat_map(|(_, s)| &s.levels);
        let mut batches: Vec<u32> =
            own.chain(levels.filter_map(|level| level.global_batch)).collect();
        let now = self.windows.iter().rev().find_map(|w| w.global_batch);
        batches.sort_unstable();
        batches.dedup();
        // Of a job that never said its batch, none is another.
        batches.retain(|batch| now.is_some_and(|now| now != *batch));
        batches
    }
}

impl JobModel {
    /// Fits the throughput to the levels found and, where the job has none, its class's.
    pub(super) fn fit_throughput(&mut self, windows: &[Observation], context: Context<'_>) {
        let level = |(i, shape): (usize, &JobShape)| {
            let level = self.speed.belief(i);
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

    /// Levels of the configurations too many for the fit together with caps and clocks: each from
    /// its own windows, with caps and clocks as they are expected.
    fn levels_beyond(&self, windows: &[Observation], context: Context<'_>) -> Vec<Known> {
        let mut rows: BTreeMap<JobShape, Vec<Row>> = BTreeMap::new();
        for window in windows.iter().filter(|w| !self.groups.contains(&w.shape())) {
            let Some(rate) = window.rate else { continue };
            let at = self.held.prepare(window.setting());
            let held = self.held.answer(&at, self.ln_power_alone(window.gpus).0, 0.0).0;
            let (offset, variance) = self.neighbours_slow(window, context);
            let variance = variance + held.fitted + held.form;
            rows.entry(window.shape()).or_default().push(Row {
                x: vec![1.0],
                y: rate.ln() + held.mean + offset,
                sd: (window.rate_sd * window.rate_sd + variance).sqrt(),
            });
        }
        let level = |(shape, rows): (JobShape, Vec<Row>)| {
            let middle = median_high(rows.iter().map(|r| r.y)).unwrap_or(0.0);
            let level = fit(&rows, &[Belief { mean: middle, sd: 3.0 }]).belief(0);
            let ln_rate = LogNormal { mean: level.mean, variance: level.sd * level.sd, dof: DOF };
            Known { shape, ln_rate }
        };
        rows.into_iter().map(level).collect()
    }
}
