//! The correction of predicted power by measured power, job by job.
//!
//! A power limit is planned with predictions. Where a job draws less than predicted, power is left unused while
//! others wait; where it draws more, the limit is at risk. So each job's predicted power above idle gets a factor
//!
//! ```text
//! factor = measured / predicted + margin,   margin = max(2 %, 1 % + two standard deviations, 1 W per GPU)
//! ```
//!
//! with the exponentially weighted mean and deviation of its power on each node, of which the highest factor
//! counts. It is at least [`FACTOR_LEAST`]; without the margin it may exceed 1, up to [`FACTOR_MOST`]. It is exactly 1
//! where measured and predicted power differ by at most the margin, and without measurements.
//!
//! * **Conditions.** A measurement holds for the settings under which it was taken. After a change of cap, clock or
//!   GPUs the first [`SETTLING`] do not count, and the factor stays as it was until the power was measured for
//!   [`MEASURED_MIN`] under the new ones. A new prediction takes effect at once: watts are kept, not ratios.
//! * **Guarantee.** A GPU's cap is its predicted power times the factor, where that is below 1, so the caps of a plan
//!   are within the limit whatever the jobs do: a factor that is too low slows its job. A factor above 1 counts in the
//!   plan and raises no cap.
//! * **Release.** A GPU at its cap, or whose driver lowers its clock for the cap, does not show what its job would draw, so it is no evidence for a factor below 1.
//!   If a job stays at a cap that its factor has lowered for three seconds, its factor returns to 1 and stays there
//!   for [`HELD_FOR`]. The same holds for all jobs of a limit that is exceeded.
//! * **Silence.** A job of which a node has sent no measurement for [`silent_after`] counts with its prediction.
//!
//! Nothing is stored: a restarted placer begins with factors of 1. No I/O, no clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::job::GpuSetting;
use wattle_common::messages::PowerMargin;
use wattle_common::time::span_s;

use crate::state::gpu_set::NodeKey;

/// The lowest factor. Where a job draws less, as before its training begins, its prediction is of another phase.
pub const FACTOR_LEAST: f64 = 0.7;
/// The highest factor.
pub const FACTOR_MOST: f64 = 1.3;
/// Time after a change of conditions in which measurements do not count.
pub const SETTLING: Duration = Duration::from_secs(3);
/// Time for which power must be measured before a factor falls.
pub const MEASURED_MIN: Duration = Duration::from_secs(7);
/// Time for which a factor does not fall after it was too low.
pub const HELD_FOR: Duration = Duration::from_secs(300);
/// Least time without a measurement after which a node is silent.
const SILENT_AFTER_MIN: Duration = Duration::from_secs(5);
/// A node is silent after this many intervals between two measurements.
const SILENT_INTERVALS: u32 = 2;

/// The time constant of mean and deviation, s.
const FADES_IN_S: f64 = PowerMargin::MEASURED_OVER_S;
/// The least margin above measured power, a share of the prediction.
const MARGIN: f64 = 0.02;
/// The margin of noise: a share of the prediction, and standard deviations of the measurements of a second. Then
/// noise alone hardly ever keeps a GPU at its cap for seconds.
const NOISE_MARGIN: f64 = 0.01;
const NOISE_DEVIATIONS: f64 = 2.0;
/// The margin of each GPU, watts: caps are rounded down to entire watts.
const GPU_MARGIN_W: f64 = 1.0;
/// The share of recent time at the cap above which the cap sets a job's power: three seconds without a break.
const AT_CAP_SHARE_MAX: f64 = 0.25;
/// The resolution of times.
const INSTANT: Duration = Duration::from_millis(1);
/// Least change of a factor, so that noise leads to no plan: up and down.
const STEP_UP: f64 = 0.01;
const STEP_DOWN: f64 = 0.02;

/// Time without a measurement after which a node is silent that measures once in this interval.
#[must_use]
pub fn silent_after(interval: Duration) -> Duration {
    SILENT_AFTER_MIN.max(interval.saturating_mul(SILENT_INTERVALS))
}

/// The factors of predicted power above idle, by the arrival of jobs; 1 where there is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PowerFactors(BTreeMap<u64, f64>);

impl PowerFactors {
    /// The factor of the job with this arrival ([`crate::Job::arrival`]).
    #[must_use]
    pub fn of(&self, arrival: u64) -> f64 {
        self.0.get(&arrival).copied().unwrap_or(1.0)
    }

    /// Whether every factor is 1.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of jobs with a factor below 1, and above 1.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let below = self.0.values().filter(|factor| **factor < 1.0).count();
        (below, self.0.len() - below)
    }
}

/// The interval of a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadSpan {
    /// Its start.
    pub from: Timestamp,
    /// Its end.
    pub until: Timestamp,
    /// From when on the present jobs and settings are known to be in force, if they differ from those of the reading
    /// before.
    pub holds_from: Timestamp,
}

impl ReadSpan {
    /// An interval in which nothing changed.
    #[must_use]
    pub const fn unchanged(from: Timestamp, until: Timestamp) -> Self {
        Self { from, until, holds_from: from }
    }
}

/// The power of a job's GPUs on one node over an interval.
#[derive(Clone, Copy, Debug)]
pub struct JobReading {
    /// The arrival of the job.
    pub arrival: u64,
    /// The node.
    pub node: NodeKey,
    /// Number of nodes of the job.
    pub nodes: usize,
    /// Number of its GPUs on this node.
    pub gpus: u32,
    /// Their cap and clock by the plan.
    pub setting: GpuSetting,
    /// The interval.
    pub span: ReadSpan,
    /// Measured power above idle, watts.
    pub measured_w: f64,
    /// Predicted power above idle, uncorrected, watts; above 0.
    pub predicted_w: f64,
    /// Whether a GPU draws as much as its cap allows.
    pub is_at_cap: bool,
}

/// The power of a job on one node under its present conditions.
#[derive(Clone, Copy, Debug)]
struct Estimate {
    conditions: (u32, GpuSetting),
    /// When they began.
    since: Timestamp,
    /// The end of the last reading.
    until: Timestamp,
    /// Until when the next one is expected.
    expected_until: Timestamp,
    measured_for: Duration,
    mean_w: f64,
    variance: f64,
    predicted_w: f64,
    is_at_cap: bool,
    /// The exponentially weighted share of time at its cap.
    at_cap_share: f64,
}

impl Estimate {
    fn begin(reading: &JobReading) -> Self {
        Self {
            conditions: (reading.gpus, reading.setting),
            since: reading.span.holds_from,
            until: reading.span.from,
            expected_until: reading.span.until,
            measured_for: Duration::ZERO,
            mean_w: reading.measured_w,
            variance: 0.0,
            predicted_w: reading.predicted_w,
            is_at_cap: reading.is_at_cap,
            at_cap_share: 0.0,
        }
    }

    fn settled_at(&self) -> Timestamp {
        self.since + SETTLING
    }

    fn add(&mut self, reading: &JobReading) {
        let before = self.until;
        let ReadSpan { from, until, .. } = reading.span;
        self.until = self.until.max(until);
        self.expected_until = self.until + silent_after(until.since(from));
        let span = until.since(from.max(before).max(self.settled_at()));
        self.predicted_w = reading.predicted_w;
        // A power that has not settled shows only where the first settled one may be.
        if self.measured_for.is_zero() {
            (self.mean_w, self.variance) = (reading.measured_w, 0.0);
            self.at_cap_share = f64::from(u8::from(reading.is_at_cap));
        }
        let weight = 1.0 - (-span.as_secs_f64() / FADES_IN_S).exp();
        let off = reading.measured_w - self.mean_w;
        self.mean_w += weight * off;
        self.variance = (1.0 - weight) * (self.variance + weight * off * off);
        self.measured_for = self.measured_for.saturating_add(span);
        let at_cap = f64::from(u8::from(reading.is_at_cap));
        self.at_cap_share += weight * (at_cap - self.at_cap_share);
        self.is_at_cap = reading.is_at_cap;
    }

    /// Whether its cap rather than the job sets its power.
    fn is_capped(&self) -> bool {
        self.at_cap_share > AT_CAP_SHARE_MAX
    }

    /// The factor by these measurements.
    fn factor(&self) -> f64 {
        let ratio = self.mean_w / self.predicted_w;
        if ratio > 1.0 + MARGIN {
            return ratio.min(FACTOR_MOST);
        }
        if self.is_capped() {
            return 1.0;
        }
        let noise = NOISE_MARGIN + NOISE_DEVIATIONS * self.variance.sqrt() / self.predicted_w;
        let rounding = GPU_MARGIN_W * f64::from(self.conditions.0) / self.predicted_w;
        (ratio + MARGIN.max(noise).max(rounding)).clamp(FACTOR_LEAST, 1.0)
    }

    /// The time until it has been measured for long enough.
    fn awaits(&self) -> Duration {
        MEASURED_MIN.saturating_sub(self.measured_for)
    }
}

/// The factor and the measurements of one job.
#[derive(Clone, Debug)]
struct Corrected {
    factor: f64,
    /// Until when the factor does not fall.
    held_until: Timestamp,
    nodes: usize,
    by_node: BTreeMap<NodeKey, Estimate>,
}

impl Corrected {
    /// The factor by the measurements of all nodes; `None` until all are measured for long enough under the
    /// present conditions. The highest counts.
    fn measured(&self) -> Option<f64> {
        let all = self.by_node.len() >= self.nodes;
        let enough = self.by_node.values().all(|estimate| estimate.awaits().is_zero());
        (all && enough).then(|| self.highest())
    }

    fn highest(&self) -> f64 {
        self.by_node.values().map(Estimate::factor).fold(FACTOR_LEAST, f64::max)
    }

    /// Returns to at least the prediction, and stays there for a while.
    fn release(&mut self, now: Timestamp) {
        if self.factor < 1.0 {
            (self.factor, self.held_until) = (1.0, now + HELD_FOR);
        }
    }

    /// Adopts the measured factor where it differs by more than noise.
    fn adopt(&mut self, now: Timestamp) {
        if self.by_node.values().any(Estimate::is_capped) {
            self.release(now);
        }
        if let Some(next) = self.measured().filter(|next| self.takes(*next, now)) {
            self.factor = next;
        }
    }

    fn takes(&self, next: f64, now: Timestamp) -> bool {
        let may_fall = next >= 1.0 || now >= self.held_until;
        next > self.factor + STEP_UP || (next < self.factor - STEP_DOWN && may_fall)
    }

    /// When it changes next if each power stays as it is.
    fn changes_at(&self) -> Option<Timestamp> {
        let released_at = |estimate: &Estimate| {
            let rest = (1.0 - estimate.at_cap_share) / (1.0 - AT_CAP_SHARE_MAX);
            let left = span_s(FADES_IN_S * rest.ln().max(0.0)) + INSTANT;
            let is_released = estimate.is_at_cap && self.factor < 1.0;
            is_released.then(|| estimate.until.max(estimate.settled_at()) + left)
        };
        let released = self.by_node.values().filter_map(released_at).min();
        let next = self.highest();
        let complete_at =
            |estimate: &Estimate| estimate.until.max(estimate.settled_at()) + estimate.awaits();
        let complete = self.by_node.values().map(complete_at).max();
        let complete = complete.filter(|_| self.by_node.len() >= self.nodes);
        let at = complete.map(|at| if next < self.factor { at.max(self.held_until) } else { at });
        let adopted = at.filter(|at| self.takes(next, *at));
        released.into_iter().chain(adopted).min()
    }
}

/// The corrections of all running jobs.
#[derive(Clone, Debug, Default)]
pub struct PowerCorrection {
    jobs: BTreeMap<u64, Corrected>,
    factors: Arc<PowerFactors>,
}

impl PowerCorrection {
    /// The factors in force.
    #[must_use]
    pub const fn factors(&self) -> &Arc<PowerFactors> {
        &self.factors
    }

    /// Number of jobs that were measured for long enough under their present conditions.
    #[must_use]
    pub fn measured_jobs(&self) -> usize {
        self.jobs.values().filter(|job| job.measured().is_some()).count()
    }

    /// Measured over predicted power above idle of the jobs whose factor is not 1 and which were measured for long
    /// enough under their present conditions, and the power that their factors add to the measured one, as a share
    /// of the predicted one. `None` without such a job.
    #[must_use]
    pub fn measured_ratio(&self) -> Option<(f64, f64)> {
        let corrected = self
            .jobs
            .values()
            .filter(|job| job.factor.total_cmp(&1.0).is_ne() && job.measured().is_some());
        let (mut measured_w, mut predicted_w, mut planned_w) = (0.0, 0.0, 0.0);
        for job in corrected {
            for estimate in job.by_node.values() {
                measured_w += estimate.mean_w;
                predicted_w += estimate.predicted_w;
                planned_w += job.factor * estimate.predicted_w;
            }
        }
        (predicted_w > 0.0)
            .then(|| (measured_w / predicted_w, (planned_w - measured_w) / predicted_w))
    }

    /// Adds a reading. One that is not later than the last is ignored.
    pub fn measured(&mut self, reading: &JobReading) {
        let begin = || Corrected {
            factor: 1.0,
            held_until: Timestamp::EPOCH,
            nodes: reading.nodes,
            by_node: BTreeMap::new(),
        };
        let job = self.jobs.entry(reading.arrival).or_insert_with(begin);
        job.nodes = reading.nodes;
        let estimate = job.by_node.entry(reading.node).or_insert_with(|| Estimate::begin(reading));
        if reading.span.until < estimate.until {
            return;
        }
        if estimate.conditions != (reading.gpus, reading.setting) {
            *estimate = Estimate::begin(reading);
        }
        estimate.add(reading);
        job.adopt(reading.span.until);
        let factor = job.factor;
        self.publish(reading.arrival, factor);
    }

    /// Forgets the jobs that are not among these, and returns silent jobs to their predictions. A job on a node
    /// that it does not name counts as silent.
    pub fn look(&mut self, now: Timestamp, runs_on: impl Fn(u64, NodeKey) -> bool) {
        for job in self.jobs.values_mut() {
            let is_silent = |estimate: &Estimate| now > estimate.expected_until;
            let nodes = job.by_node.len();
            job.by_node.retain(|_, estimate| !is_silent(estimate));
            if job.by_node.len() < nodes {
                job.factor = job.factor.max(1.0);
            }
        }
        self.jobs.retain(|arrival, job| {
            job.by_node.retain(|node, _| runs_on(*arrival, *node));
            !job.by_node.is_empty()
        });
        self.publish_all();
    }

    /// A limit is exceeded: the factors of these jobs return to at least 1.
    pub fn exceeded(&mut self, now: Timestamp, concerns: impl Fn(NodeKey) -> bool) {
        let jobs = self.jobs.values_mut();
        for job in jobs.filter(|job| job.by_node.keys().any(|node| concerns(*node))) {
            job.release(now);
        }
        self.publish_all();
    }

    /// When a factor changes next if the power of each job stays as it is.
    #[must_use]
    pub fn changes_at(&self) -> Option<Timestamp> {
        self.jobs.values().filter_map(Corrected::changes_at).min()
    }

    fn publish(&mut self, arrival: u64, factor: f64) {
        if self.factors.of(arrival).total_cmp(&factor).is_eq() {
            return;
        }
        let factors = &mut Arc::make_mut(&mut self.factors).0;
        if factor.total_cmp(&1.0).is_eq() {
            factors.remove(&arrival);
        } else {
            factors.insert(arrival, factor);
        }
    }

    fn publish_all(&mut self) {
        let differ = self.jobs.iter().map(|(arrival, job)| (*arrival, job.factor));
        let differ = differ.filter(|(_, factor)| factor.total_cmp(&1.0).is_ne());
        let next = PowerFactors(differ.collect());
        if *self.factors != next {
            self.factors = Arc::new(next);
        }
    }
}

#[cfg(test)]
mod tests;
