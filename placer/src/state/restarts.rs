//! Restarts of a job: what they cost, and which sizes the job has left.
//!
//! The **restart cost** is the time without progress while the job holds GPUs: from the stop request until its
//! processes are gone, and from the next start until it reaches the step it had. Waiting in the queue does
//! not count. It is measured from the progress reports after each restart ([`Restarts::measured`]).
//!
//! The prediction for a number of GPUs is a formula times a learned factor. The formula is ElasticFlow's
//! (pkusys/ElasticFlow, Apache-2.0), measured on A100 nodes: `2 + 2 (log2 n + 1)` seconds to regroup on `n`
//! GPUs, and 27 s for a restart of the process. The factor is a mean of measured costs over the formula's, on
//! the logarithmic scale: of all jobs, of the jobs of the workload and of the job itself, each shrunk towards
//! the one before with the weight of [`PRIOR_WEIGHT`] measurements.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use wattle_common::time::{scaled, span_s};

use wattle_common::bounds::STOPS_MAX;
use wattle_common::{Timestamp, WorkloadId};

/// The weight of the more general factor, in measurements: our own choice.
const PRIOR_WEIGHT: f64 = 1.0;
/// Bounds of a measured factor. A cost outside them is a clock or reporting error.
const FACTORS: std::ops::RangeInclusive<f64> = 0.02..=50.0;
/// The most workloads with a factor of their own.
const WORKLOADS_MAX: usize = 4_096;
/// Measured restarts kept for each job; the oldest are dropped.
pub const MEASURED_MAX: usize = 16;

/// The restart cost on this number of GPUs by ElasticFlow's formula.
#[must_use]
pub fn typical_cost(gpus: u32) -> Duration {
    let doublings = f64::from(gpus.max(1)).log2();
    span_s(27.0 + 2.0 + 2.0 * (doublings + 1.0))
}

/// More than any predicted restart cost on this number of GPUs: by the greatest factor, without a logarithm.
pub(crate) const fn cost_bound(gpus: u32) -> Duration {
    let doublings = 1 + (gpus | 1).ilog2() as u64;
    Duration::from_secs((*FACTORS.end() as u64 + 1) * (31 + 2 * doublings))
}

/// A sum of measured factors, on the logarithmic scale.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Factors {
    count: u32,
    sum_ln: f64,
}

impl Factors {
    fn add(&mut self, ln: f64) {
        self.count = self.count.saturating_add(1);
        self.sum_ln += ln;
    }

    /// The mean logarithm, shrunk towards that of a more general group.
    fn shrunk(&self, general_ln: f64) -> f64 {
        (self.sum_ln + PRIOR_WEIGHT * general_ln) / (f64::from(self.count) + PRIOR_WEIGHT)
    }
}

/// The logarithm of a measured cost over the formula's; `None` for an implausible cost.
fn factor_ln(measured: &MeasuredRestart) -> Option<f64> {
    let factor = measured.cost.as_secs_f64() / typical_cost(measured.gpus).as_secs_f64();
    FACTORS.contains(&factor).then(|| factor.ln())
}

/// The measured restart costs of all jobs.
#[derive(Clone, Debug, Default)]
pub struct RestartCosts {
    all: Factors,
    by_workload: BTreeMap<WorkloadId, Factors>,
}

impl RestartCosts {
    /// A restart was measured.
    pub(crate) fn add(&mut self, workload: Option<&WorkloadId>, measured: &MeasuredRestart) {
        let Some(ln) = factor_ln(measured) else { return };
        self.all.add(ln);
        let Some(workload) = workload else { return };
        if let Some(known) = self.by_workload.get_mut(workload) {
            known.add(ln);
        } else if self.by_workload.len() < WORKLOADS_MAX {
            let mut known = Factors::default();
            known.add(ln);
            self.by_workload.insert(workload.clone(), known);
        }
    }

    /// The predicted cost of a restart on this number of GPUs, of a job with this workload and these
    /// measured restarts.
    #[must_use]
    pub fn predicted(
        &self,
        workload: Option<&WorkloadId>,
        restarts: &Restarts,
        gpus: u32,
    ) -> Duration {
        scaled(typical_cost(gpus), self.factor(workload, restarts))
    }

    /// The predicted cost over the formula's.
    #[must_use]
    pub fn factor(&self, workload: Option<&WorkloadId>, restarts: &Restarts) -> f64 {
        if self.all.count == 0 {
            return 1.0;
        }
        let of_workload = workload.and_then(|workload| self.by_workload.get(workload));
        let general = of_workload.copied().unwrap_or_default().shrunk(self.all.shrunk(0.0));
        let mut own = Factors::default();
        restarts.measured.iter().filter_map(factor_ln).for_each(|ln| own.add(ln));
        own.shrunk(general).exp()
    }
}

/// A restart and its measured cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasuredRestart {
    /// The number of GPUs after the restart.
    pub gpus: u32,
    /// The time without progress while it held GPUs.
    pub cost: Duration,
}

/// A size that a job had and left for another, and the knowledge at that time.
#[derive(Clone, Debug, PartialEq)]
pub struct LeftSize {
    /// The size.
    pub gpus: u32,
    /// Its GPU type.
    pub gpu_type: Arc<str>,
    /// The knowledge when it left.
    pub known: Knowledge,
}

/// The knowledge about the sizes of a job. [`Knowledge::differs_from`] defines a significant change.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Knowledge {
    /// The sizes with their predicted steps per second, ascending.
    pub rates: Vec<(u32, f64)>,
    /// The energy price.
    pub price: f64,
    /// Number of jobs that have arrived or ended so far.
    pub competition: u64,
    /// Healthy GPUs of the cluster.
    pub gpus: u32,
}

/// The change of a relative speed or of the energy price that is significant: our own choice. The speed of a
/// measured size is known to a few per cent.
const SIGNIFICANT: f64 = 0.1;

impl Knowledge {
    /// Whether the knowledge about `size` differs significantly for a job that has the size `present`: a job
    /// arrived or ended, a GPU failed or returned, or the energy price or the speed of `size` over that of
    /// `present` differs by more than 10 %.
    #[must_use]
    pub fn differs_from(&self, then: &Self, size: u32, present: u32) -> bool {
        let ratio_differs = |now: f64, then: f64| {
            let (low, high) = (now.min(then), now.max(then));
            high > low * (1.0 + SIGNIFICANT)
        };
        let speeds = (self.relative_speed(size, present), then.relative_speed(size, present));
        self.competition != then.competition
            || self.gpus != then.gpus
            || ratio_differs(self.price, then.price)
            || match speeds {
                (Some(now), Some(then)) => ratio_differs(now, then),
                (now, then) => now.is_some() != then.is_some(),
            }
    }

    /// The speed of one size over that of another.
    fn relative_speed(&self, size: u32, other: u32) -> Option<f64> {
        let rate = |gpus| self.rates.iter().find(|(size, _)| *size == gpus).map(|(_, rate)| *rate);
        Some(rate(size)? / rate(other)?)
    }
}

/// A stop whose restart has not been measured yet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Interruption {
    /// The time from the stop request until all processes were gone.
    stopping: Duration,
    /// Start on the next GPUs, with their number and the step at that time.
    resumed: Option<(Timestamp, u32, u64)>,
}

/// The restarts of one job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Restarts {
    /// The last measured restarts, at most [`MEASURED_MAX`].
    pub measured: Vec<MeasuredRestart>,
    /// Stops by a plan before the job had run for ten times its restart cost.
    pub early_stops: u32,
    /// Its last stops by plans, oldest first, at most [`STOPS_MAX`].
    pub stops: Vec<Timestamp>,
    /// Sizes that it had and left for others; one entry for each size.
    pub left_sizes: Vec<LeftSize>,
    pub(crate) stop_requested: Option<Timestamp>,
    pub(crate) interruption: Option<Interruption>,
}

impl Restarts {
    pub(crate) const fn new() -> Self {
        Self {
            measured: Vec::new(),
            early_stops: 0,
            stops: Vec::new(),
            left_sizes: Vec::new(),
            stop_requested: None,
            interruption: None,
        }
    }

    /// A plan stops the job.
    pub(crate) fn stop_requested_at(&mut self, now: Timestamp) {
        self.stop_requested = Some(now);
        if self.stops.len() >= STOPS_MAX {
            self.stops.remove(0);
        }
        self.stops.push(now);
    }

    /// Its stops within the last `span`, oldest first.
    pub(crate) fn stops_since(
        &self,
        now: Timestamp,
        span: Duration,
    ) -> impl Iterator<Item = &Timestamp> + Clone {
        self.stops.iter().filter(move |at| now.since(**at) < span)
    }

    /// All processes are gone. `has_progress`: whether the job ever reported progress.
    pub(crate) fn stopped(&mut self, now: Timestamp, has_progress: bool) {
        let requested = self.stop_requested.take().unwrap_or(now);
        self.interruption =
            has_progress.then(|| Interruption { stopping: now.since(requested), resumed: None });
    }

    /// The job started on this many GPUs, at this step.
    pub(crate) fn resumed(&mut self, now: Timestamp, gpus: u32, step: u64) {
        if let Some(interruption) = &mut self.interruption {
            interruption.resumed = Some((now, gpus, step));
        }
    }

    /// The job reported progress. Returns the cost of its last restart once that is known: the instant at
    /// which the job passed its former step follows from the report's rate.
    pub(crate) fn progressed(
        &mut self,
        at: Timestamp,
        step: u64,
        steps_per_s: Option<f64>,
    ) -> Option<MeasuredRestart> {
        let interruption = self.interruption?;
        let (since, gpus, from) = interruption.resumed?;
        if at <= since || step <= from {
            return None;
        }
        self.interruption = None;
        let rate = steps_per_s.filter(|rate| *rate > 0.0);
        let ahead_s = rate.map_or(0.0, |rate| (step - from) as f64 / rate);
        let starting_s = (at.since(since).as_secs_f64() - ahead_s).max(0.0);
        let cost = interruption.stopping + span_s(starting_s);
        let measured = MeasuredRestart { gpus, cost };
        self.remember(measured);
        Some(measured)
    }

    /// Adds a measured restart.
    pub(crate) fn remember(&mut self, measured: MeasuredRestart) {
        if self.measured.len() >= MEASURED_MAX {
            self.measured.remove(0);
        }
        self.measured.push(measured);
    }

    /// The job leaves a size. An earlier entry of the size is replaced.
    pub(crate) fn left(&mut self, size: LeftSize) {
        self.left_sizes.retain(|known| known.gpus != size.gpus || known.gpu_type != size.gpu_type);
        self.left_sizes.push(size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(gpus: u32, cost_s: u64) -> MeasuredRestart {
        MeasuredRestart { gpus, cost: Duration::from_secs(cost_s) }
    }

    #[test]
    fn the_cost_of_a_restart_is_that_of_elasticflow() {
        assert_eq!(typical_cost(1).as_secs(), 31);
        assert_eq!(typical_cost(8).as_secs(), 37);
        assert_eq!(typical_cost(0), typical_cost(1));
    }

    #[test]
    fn the_cost_is_measured_from_the_stop_request_to_the_former_step_without_the_queue() {
        let at = Timestamp::from_s;
        let mut restarts = Restarts { stop_requested: Some(at(100)), ..Restarts::default() };
        restarts.stopped(at(107), true);
        restarts.resumed(at(500), 4, 1_000);
        assert_eq!(restarts.progressed(at(510), 900, Some(2.0)), None, "not where it was");
        // 60 steps at 2 steps/s after its former step: that was at 550 s.
        assert_eq!(restarts.progressed(at(580), 1_060, Some(2.0)), Some(measured(4, 7 + 50)));
        assert_eq!(restarts.progressed(at(590), 1_080, Some(2.0)), None, "measured once");
    }

    #[test]
    fn a_prediction_moves_from_the_formula_to_the_workload_and_to_the_job() {
        let mut costs = RestartCosts::default();
        let (slow, other): (WorkloadId, WorkloadId) =
            ("slow".parse().unwrap(), "other".parse().unwrap());
        let fresh = Restarts::default();
        let predict = |costs: &RestartCosts, workload: &WorkloadId, job: &Restarts| {
            costs.predicted(Some(workload), job, 1).as_secs_f64()
        };
        assert!((predict(&costs, &slow, &fresh) - 31.0).abs() < 1e-9);
        let mut own = Restarts::default();
        for _ in 0..8 {
            costs.add(Some(&slow), &measured(1, 310));
            own.remember(measured(1, 310));
        }
        let (of_job, of_class) = (predict(&costs, &slow, &own), predict(&costs, &slow, &fresh));
        assert!(of_job > of_class && of_class > predict(&costs, &other, &fresh), "{of_class}");
        assert!(of_job > 290.0 && of_job < 310.0, "{of_job}");
        // A clock error changes nothing.
        costs.add(Some(&slow), &measured(1, 1_000_000));
        assert!((predict(&costs, &slow, &own) - of_job).abs() < 1e-9);
    }

    #[test]
    fn a_significant_change_of_knowledge_is_ten_per_cent_or_another_job() {
        let knowledge = |four: f64| {
            let rates = vec![(1, 1.0), (2, 1.2), (4, four)];
            Knowledge { rates, price: 1.0, competition: 7, gpus: 8 }
        };
        let then = knowledge(1.5);
        let differs = |now: &Knowledge| now.differs_from(&then, 4, 1);
        assert!(!differs(&then));
        assert!(!differs(&Knowledge { price: 1.05, ..knowledge(1.6) }));
        // Of the sizes 2 and 1 nothing is new.
        assert!(!knowledge(1.7).differs_from(&then, 2, 1));
        let changed = [
            knowledge(1.7),
            Knowledge { rates: vec![(1, 1.0)], ..knowledge(1.5) },
            Knowledge { price: 0.8, ..knowledge(1.5) },
            Knowledge { price: 0.0, ..knowledge(1.5) },
            Knowledge { competition: 8, ..knowledge(1.5) },
            Knowledge { gpus: 7, ..knowledge(1.5) },
        ];
        changed.iter().for_each(|now| assert!(differs(now), "{now:?}"));
    }
}
