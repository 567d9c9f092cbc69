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
//! * **Caps.** A GPU that its cap slows draws less than the cap, by a few per cent. Within the target of a grid event it
//!   counts with what it draws: a share of its cap, which is measured job by job ([`cap_draw`]), and its cap is that much
//!   higher. A limit of a budget, of a feeder or of a node is kept by the caps themselves: the share is no lower than the
//!   target over the budget's limit, and 1 on a node with a limit. Where the site exceeds the target all shares are 1 at
//!   once, and after ten seconds have a greater margin, which fades over ten minutes.
//! * **Silence.** A job of which a node has sent no measurement for [`silent_after`] counts with its prediction.
//!
//! Nothing is stored: a restarted placer begins with factors of 1. No I/O, no clock.

mod cap_draw;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::job::GpuSetting;
use wattle_common::messages::PowerMargin;
use wattle_common::time::span_s;

use crate::state::gpu_set::NodeKey;

pub use cap_draw::{CapReading, DRAWN_LEAST, DrawnShares};
use cap_draw::{JobDraw, NodeDraw};

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

/// The time constant of the margin that an excess of a target adds, s.
const EXCESS_FADES_IN_S: f64 = 600.0;
/// What each excess adds to this margin beside its own size, and the most.
const EXCESS_MARGIN: f64 = 0.002;
const EXCESS_MARGIN_MOST: f64 = 0.1;

/// The corrections in force, by the arrival of jobs; 1 where there is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PowerFactors {
    /// The factors of predicted power above idle.
    factors: BTreeMap<u64, f64>,
    /// The shares of their caps that GPUs at their caps draw.
    drawn: BTreeMap<u64, DrawnShares>,
}

impl PowerFactors {
    /// The factor of the job with this arrival ([`crate::Job::arrival`]).
    #[must_use]
    pub fn of(&self, arrival: u64) -> f64 {
        self.factors.get(&arrival).copied().unwrap_or(1.0)
    }

    /// The shares of their caps that the GPUs of a job at their caps draw; absent: all of them.
    #[must_use]
    pub fn drawn(&self, arrival: u64) -> Option<&DrawnShares> {
        self.drawn.get(&arrival)
    }

    /// Whether every factor is 1.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.factors.is_empty()
    }

    /// The same with these shares only, each at least as given; absent: 1.
    #[must_use]
    pub(crate) fn with_drawn(&self, least: impl Fn(u64) -> Option<f64>) -> Self {
        let drawn = self
            .drawn
            .iter()
            .filter_map(|(arrival, shares)| Some((*arrival, shares.at_least(least(*arrival)?))));
        Self { factors: self.factors.clone(), drawn: drawn.collect() }
    }

    /// Whether a share is below 1.
    #[must_use]
    pub(crate) fn has_drawn(&self) -> bool {
        !self.drawn.is_empty()
    }

    /// Number of jobs with a factor below 1, and above 1.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let below = self.factors.values().filter(|factor| **factor < 1.0).count();
        (below, self.factors.len() - below)
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
    /// Whether its power can be corrected at its setting; otherwise only what it draws of its caps counts.
    pub is_correctable: bool,
    /// Whether a GPU draws as much as its cap allows.
    pub is_at_cap: bool,
    /// What its GPUs draw of their caps; absent: not all are at their caps.
    pub at_caps: Option<CapReading>,
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
    is_correctable: bool,
    is_at_cap: bool,
    /// The exponentially weighted share of time at its cap.
    at_cap_share: f64,
    /// What it draws of its caps.
    draw: NodeDraw,
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
            is_correctable: reading.is_correctable,
            is_at_cap: reading.is_at_cap,
            at_cap_share: 0.0,
            draw: NodeDraw::default(),
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
        self.draw.add(reading.at_caps, span);
        let at_cap = f64::from(u8::from(reading.is_at_cap));
        self.at_cap_share += weight * (at_cap - self.at_cap_share);
        (self.is_correctable, self.is_at_cap) = (reading.is_correctable, reading.is_at_cap);
    }

    /// Whether its cap rather than the job sets its power.
    fn is_capped(&self) -> bool {
        self.at_cap_share > AT_CAP_SHARE_MAX
    }

    /// The factor by these measurements.
    fn factor(&self) -> f64 {
        if !self.is_correctable {
            return 1.0;
        }
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
    /// The share of its caps that it draws.
    draw: JobDraw,
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

    /// Adopts the measured share of its caps.
    fn adopt_draw(&mut self, now: Timestamp, margin: f64) {
        if self.by_node.len() >= self.nodes {
            self.draw.adopt(now, margin, self.by_node.values().map(|estimate| &estimate.draw));
        }
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
    fn changes_at(&self, margin: f64) -> Option<Timestamp> {
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
        let settled = |estimate: &Estimate| estimate.until.max(estimate.settled_at());
        let draws = self.by_node.values().map(|estimate| (&estimate.draw, settled(estimate)));
        let is_complete = self.by_node.len() >= self.nodes;
        let drawn = is_complete.then(|| self.draw.changes_at(margin, draws)).flatten();
        released.into_iter().chain(adopted).chain(drawn).min()
    }
}

/// The corrections of all running jobs.
#[derive(Clone, Debug, Default)]
pub struct PowerCorrection {
    jobs: BTreeMap<u64, Corrected>,
    factors: Arc<PowerFactors>,
    /// The margin of all shares of caps after an excess, and when it began to fade.
    excess: (f64, Timestamp),
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
            draw: JobDraw::default(),
            nodes: reading.nodes,
            by_node: BTreeMap::new(),
        };
        let margin = self.excess_margin(reading.span.until);
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
        job.adopt_draw(reading.span.until, margin);
        Self::publish(&mut self.factors, reading.arrival, job);
    }

    fn excess_margin(&self, now: Timestamp) -> f64 {
        let (margin, since) = self.excess;
        margin * (-now.since(since).as_secs_f64() / EXCESS_FADES_IN_S).exp()
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
                job.draw.forget();
            }
        }
        self.jobs.retain(|arrival, job| {
            job.by_node.retain(|node, _| runs_on(*arrival, *node));
            !job.by_node.is_empty()
        });
        self.publish_all();
    }

    /// A limit is exceeded by this share: the factors of these jobs return to at least 1, and the shares of their caps to 1.
    pub fn exceeded(&mut self, now: Timestamp, by: f64, concerns: impl Fn(NodeKey) -> bool) {
        if self.factors.has_drawn() {
            let margin = self.excess_margin(now) + by + EXCESS_MARGIN;
            self.excess = (margin.min(EXCESS_MARGIN_MOST), now);
        }
        let jobs = self.jobs.values_mut();
        for job in jobs.filter(|job| job.by_node.keys().any(|node| concerns(*node))) {
            job.release(now);
            job.draw.release(now);
        }
        self.publish_all();
    }

    /// When a factor changes next if the power of each job stays as it is.
    #[must_use]
    pub fn changes_at(&self) -> Option<Timestamp> {
        let margin = self.excess.0;
        self.jobs.values().filter_map(|job| job.changes_at(margin)).min()
    }

    fn publish(known: &mut Arc<PowerFactors>, arrival: u64, job: &Corrected) {
        let shares = Some(&job.draw.shares).filter(|shares| !shares.is_empty());
        if known.of(arrival).total_cmp(&job.factor).is_ne() {
            let factors = &mut Arc::make_mut(known).factors;
            if job.factor.total_cmp(&1.0).is_eq() {
                factors.remove(&arrival);
            } else {
                factors.insert(arrival, job.factor);
            }
        }
        if known.drawn(arrival) != shares {
            let drawn = &mut Arc::make_mut(known).drawn;
            match shares {
                Some(shares) => drawn.insert(arrival, shares.clone()),
                None => drawn.remove(&arrival),
            };
        }
    }

    fn publish_all(&mut self) {
        let differ = self.jobs.iter().map(|(arrival, job)| (*arrival, job.factor));
        let factors = differ.filter(|(_, factor)| factor.total_cmp(&1.0).is_ne()).collect();
        let shares = self.jobs.iter().map(|(arrival, job)| (*arrival, &job.draw.shares));
        let drawn = shares.filter(|(_, shares)| !shares.is_empty());
        let drawn = drawn.map(|(arrival, shares)| (arrival, shares.clone())).collect();
        let next = PowerFactors { factors, drawn };
        if *self.factors != next {
            self.factors = Arc::new(next);
        }
    }
}

#[cfg(test)]
mod tests;
