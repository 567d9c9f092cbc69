//! From measured power to the correction of predicted power, and the unused share of the limit.
//!
//! The caller passes the readings of each node to [`Controller::power_measured`], and calls
//! [`Controller::look_at_power`] after them or once per tick. Only below a power limit do measurements count.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use wattle_common::event::TargetSteps;
use wattle_common::messages::PowerMargin;
use wattle_common::{FeederId, LimitOverTime, Power, Timestamp};

use crate::controller::budget::LIMIT_LEAD;
use crate::controller::{Controller, PolicyHandle};
use crate::plan::input::PlanningInput;
use crate::power::bounds::{Bound, Counted};
use crate::power::correction::{
    CapReading, DRAWN_LEAST, JobReading, PowerCorrection, PowerFactors, ReadSpan, silent_after,
};
use crate::power::model::{
    JobGpus, baseline_by_node_w, corrected_by_w, enforced_cap, expected_by_node, expected_power,
    idle_w, least_baseline,
};
use crate::state::gpu_set::{GpuSet, JobKey, NodeGpus, NodeKey};
use crate::state::job::{Job, State};
use crate::state::node::Node;

/// Share of a cap above idle from which a GPU counts as at its cap.
const AT_CAP: f64 = 0.99;
/// Least predicted power above idle of a GPU that is compared, watts.
const COMPARED_LEAST_W: f64 = 5.0;
/// A cap in force above the ordered one by more than this is not carried out yet.
const CAP_ROUNDING: Power = Power::from_w(1);
/// How long measured power may lag behind the target of an event.
const FOLLOWS_WITHIN: Duration = Duration::from_secs(2);
/// The time constant of the unused share, s.
const FADES_IN_S: f64 = 3_600.0;

/// The mean power of one GPU over an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuReading {
    /// The GPU.
    pub gpu: u32,
    /// Its power.
    pub power: Power,
    /// The cap in force; absent: not known.
    pub cap: Option<Power>,
    /// Whether its driver lowers its clock for the cap. Then it may draw less than the cap, because the cap cuts its
    /// peaks.
    pub is_capped: bool,
}

/// Measured power beside predicted power.
#[derive(Clone, Debug, Default)]
pub(super) struct MeasuredPower {
    correction: PowerCorrection,
    /// The corrections that were adopted last.
    adopted: Arc<PowerFactors>,
    nodes: BTreeMap<NodeKey, NodeReading>,
    unused: UnusedPower,
}

/// The last reading of a node.
#[derive(Clone, Copy, Debug)]
struct NodeReading {
    /// Its power above that of the awake node without jobs, watts.
    above_w: f64,
    /// Until when it counts.
    until: Timestamp,
    /// For how long it counts.
    lasts: Duration,
}

/// The share of the power limit that was unused while jobs waited, of about the last hour.
#[derive(Clone, Copy, Debug, Default)]
struct UnusedPower {
    until: Timestamp,
    /// The fading time while jobs waited, s, and its integral of the unused share.
    waited_s: f64,
    unused_s: f64,
}

impl UnusedPower {
    /// From the last call until `now`, but at most for `most`, this share was unused; absent: no job waited, or it is
    /// not known.
    fn add(&mut self, now: Timestamp, most: Duration, unused: Option<f64>) {
        let span_s = now.since(self.until).min(most).as_secs_f64();
        self.until = self.until.max(now);
        let Some(unused) = unused else { return };
        let left = (-span_s / FADES_IN_S).exp();
        self.waited_s = self.waited_s * left + span_s;
        self.unused_s = self.unused_s * left + unused * span_s;
    }

    fn share(&self) -> Option<f64> {
        (self.waited_s > 0.0).then(|| self.unused_s / self.waited_s)
    }
}

/// The readings of one job on a node.
struct OnNode<'a> {
    job: &'a Job,
    on: &'a GpuSet,
    gpus: u32,
    measured_w: f64,
    is_at_cap: bool,
    /// The power and the caps of the GPUs that are at their caps, watts, and their number.
    at_caps: (f64, f64, u32),
    /// Whether all its GPUs have carried out their caps and have no other job.
    counts: bool,
}

impl<P: PolicyHandle> Controller<P> {
    /// The power of a node's GPUs over an interval. A GPU without a reading is left out. Returns whether a plan may
    /// differ after it.
    pub fn power_measured(
        &mut self,
        node: NodeKey,
        span: ReadSpan,
        readings: &[GpuReading],
    ) -> bool {
        let input = PlanningInput::new(&self.state, &self.limits);
        let Some(known) = self.state.nodes().get(node.index()) else { return false };
        if !self.limits.limits_power_of(&known.facts.id) || !known.is_awake() {
            self.measured.nodes.remove(&node);
            return false;
        }
        let idle = idle_w(input, known);
        let mut above_w = 0.0;
        let mut jobs: BTreeMap<JobKey, OnNode<'_>> = BTreeMap::new();
        for reading in readings.iter().filter(|reading| reading.gpu < known.facts.gpus) {
            let gpu_w = reading.power.as_w() - idle;
            above_w += gpu_w;
            let cap = enforced_cap(input, node, reading.gpu);
            let tenants = known.tenants(reading.gpu);
            for &key in tenants {
                let Some(job) = self.state.job(key) else { continue };
                let State::Running { on, .. } = &job.state else { continue };
                let begin = || OnNode {
                    job,
                    on,
                    gpus: 0,
                    measured_w: 0.0,
                    is_at_cap: false,
                    at_caps: (0.0, 0.0, 0),
                    counts: true,
                };
                let here = jobs.entry(key).or_insert_with(begin);
                here.gpus += 1;
                here.measured_w += gpu_w;
                let in_force = reading.cap.into_iter().chain(cap).min();
                let at_cap = in_force
                    .filter(|cap| reading.is_capped || gpu_w >= AT_CAP * (cap.as_w() - idle));
                here.is_at_cap |= reading.is_capped || at_cap.is_some();
                if let Some(cap) = at_cap {
                    let (drawn_w, cap_w, gpus) = here.at_caps;
                    here.at_caps = (drawn_w + reading.power.as_w(), cap_w + cap.as_w(), gpus + 1);
                }
                let is_late = cap.zip(reading.cap).is_some_and(|(cap, is)| is > cap + CAP_ROUNDING);
                here.counts &= tenants.len() == 1 && !is_late;
            }
        }
        let complete = readings.len() as u32 >= known.facts.gpus;
        // Only within the target of an event, of the site or of a feeder.
        let draws_count = self.drawn_least(span.until).is_some()
            || self.limits.power_bounds.is_targeted(&known.facts.id);
        let of_job = |here: &OnNode<'_>| reading(input, node, here, span, draws_count);
        let of_jobs: Vec<JobReading> = jobs.values().filter_map(of_job).collect();
        if complete {
            let lasts = silent_after(span.until.since(span.from));
            let reading = NodeReading { above_w, until: span.until + lasts, lasts };
            self.measured.nodes.insert(node, reading);
        } else {
            self.measured.nodes.remove(&node);
        }
        for reading in &of_jobs {
            self.measured.correction.measured(reading);
        }
        self.adopt_factors(span.until, false)
    }

    /// Looks for silent nodes, ended jobs and exceeded limits. Returns whether a plan may differ after it.
    pub fn look_at_power(&mut self, now: Timestamp) -> bool {
        if !self.limits.is_power_limited() {
            self.measured = MeasuredPower::default();
            return self.adopt_factors(now, true);
        }
        let input = PlanningInput::new(&self.state, &self.limits);
        let running: BTreeMap<u64, &GpuSet> = self
            .state
            .running()
            .filter_map(|(_, job)| Some((job.arrival, running_on(job)?)))
            .collect();
        let runs_on = |arrival: u64, node: NodeKey| {
            let on = running.get(&arrival).map(|on| &on.by_node);
            on.is_some_and(|on| on.iter().any(|here| here.node == node))
        };
        self.measured.correction.look(now, runs_on);
        let nodes = &mut self.measured.nodes;
        nodes.retain(|_, reading| now <= reading.until);
        let lasts = nodes.values().map(|reading| reading.lasts).max().unwrap_or_default();
        let by_node = if nodes.is_empty() { None } else { power_by_node(input, nodes) };
        let mut unused = None;
        let site_w = self.site_limit_lately(now).map_or(f64::INFINITY, Power::as_w);
        for bound in Bound::all(input).iter().filter(|bound| bound.counted == Counted::Nodes) {
            let Some((by_node, is_complete)) = &by_node else { break };
            let drawn =
                bound.shares(input.state).map(|(node, share)| share * by_node[node.index()]);
            let drawn_w: f64 = drawn.sum();
            // A plan follows the limit of the site and the target of a feeder before they fall.
            let limit_w = match bound.target_of() {
                Some(feeder) => self
                    .target_lately(Some(feeder), now)
                    .map_or(f64::INFINITY, |most| most.as_w() - bound.static_w()),
                None if bound.is_local() => bound.limit_w,
                None => site_w,
            };
            // To the milliwatt, as powers are.
            if drawn_w > limit_w + 1e-3 {
                let by = drawn_w / limit_w.max(1.0) - 1.0;
                self.measured.correction.exceeded(now, by, |node| bound.covers(node));
            }
            if !bound.is_local() && *is_complete {
                unused = Some((1.0 - drawn_w / bound.limit_w).max(0.0));
            }
        }
        let waits = self.state.queue_len() > 0;
        self.measured.unused.add(now, lasts, unused.filter(|_| waits));
        self.adopt_factors(now, true)
    }

    /// The limit of the site's budget now or soon.
    fn budget_limit(&self, from: Timestamp, until: Timestamp) -> Option<Power> {
        let budget = self.budget.as_ref()?.controller().budget();
        match LimitOverTime::new(Some(budget), TargetSteps::default()) {
            Some(over_time) => over_time.least(from, until),
            None => budget.power_mw,
        }
    }

    /// The highest target of the site or of a feeder in the last seconds.
    fn target_lately(&self, feeder: Option<&FeederId>, now: Timestamp) -> Option<Power> {
        self.event_targets.on(feeder)?.most(now - FOLLOWS_WITHIN, now)
    }

    /// The limit of the site now: the budget's, and the highest target of the last seconds.
    fn site_limit_lately(&self, now: Timestamp) -> Option<Power> {
        let target = self.target_lately(None, now);
        target.into_iter().chain(self.budget_limit(now, now)).min()
    }

    /// The least share of a cap that may count in place of the cap, by the limits that caps keep; absent: caps count.
    fn drawn_least(&self, now: Timestamp) -> Option<f64> {
        let until = now + LIMIT_LEAD;
        let target = self.event_targets.site.least(now, until)?;
        let own = self.budget_limit(now, until);
        let least = own.map_or(0.0, |own| target.as_w() / own.as_w().max(1.0)).max(DRAWN_LEAST);
        (least < 1.0).then_some(least)
    }

    /// The corrections with the shares of caps that the limits permit.
    fn permitted_factors(&self, now: Timestamp) -> Arc<PowerFactors> {
        let factors = self.measured.correction.factors();
        if !factors.has_drawn() {
            return Arc::clone(factors);
        }
        let Some(least) = self.drawn_least(now) else {
            return Arc::new(factors.with_drawn(|_| None));
        };
        let bounds = &self.limits.power_bounds;
        let is_bounded = |on: &GpuSet| {
            let node = |here: &NodeGpus| self.state.node(here.node);
            on.by_node.iter().any(|here| bounds.cover(&node(here).facts.id))
        };
        let running = self.state.running().filter_map(|(_, job)| Some((job, running_on(job)?)));
        let permitted: BTreeSet<u64> =
            running.filter(|(_, on)| !is_bounded(on)).map(|(job, _)| job.arrival).collect();
        Arc::new(factors.with_drawn(|arrival| permitted.contains(&arrival).then_some(least)))
    }

    /// The power of the site or of a feeder by the last readings; a node without readings counts with its expected power.
    /// `None` without a power limit, or where nothing was read.
    #[must_use]
    pub fn measured_power(&self, feeder: Option<&FeederId>, now: Timestamp) -> Option<Power> {
        let input = PlanningInput::new(&self.state, &self.limits);
        let nodes = self.measured.nodes.iter().filter(|(_, reading)| now <= reading.until);
        let nodes: BTreeMap<_, _> = nodes.map(|(key, reading)| (*key, *reading)).collect();
        let (by_node, _) = if nodes.is_empty() { None } else { power_by_node(input, &nodes) }?;
        let Some(feeder) = feeder else { return Some(Power::from_w_f64(by_node.iter().sum())) };
        let carried = self.limits.carried.on(feeder)?;
        Some(Power::from_w_f64(
            carried
                .power_w(|node| self.state.node_key(node).map_or(0.0, |key| by_node[key.index()])),
        ))
    }

    /// When the correction changes next if the power of each GPU stays as it was measured last.
    #[must_use]
    pub fn correction_at(&self) -> Option<Timestamp> {
        self.measured.correction.changes_at()
    }

    /// The state of the correction; `None` without a power limit of the site or a feeder.
    #[must_use]
    pub fn power_margin(&self) -> Option<PowerMargin> {
        if !self.limits.is_power_limited() {
            return None;
        }
        let input = PlanningInput::new(&self.state, &self.limits);
        let (jobs_below, jobs_above) = self.limits.power_factors.counts();
        let jobs = |jobs: usize| u32::try_from(jobs).unwrap_or(u32::MAX);
        let baseline_w = least_baseline(input).map_or(0.0, Power::as_w);
        let expected_w = (expected_power(input).as_w() - baseline_w).max(0.0);
        let predicted_w = expected_w + corrected_by_w(input);
        let is_corrected = !self.limits.power_factors.is_empty() && predicted_w > 0.0;
        let measured = self.measured.correction.measured_ratio();
        Some(PowerMargin {
            correction: if is_corrected { expected_w / predicted_w } else { 1.0 },
            jobs_below: jobs(jobs_below),
            jobs_above: jobs(jobs_above),
            jobs_measured: jobs(self.measured.correction.measured_jobs()),
            measured_ratio: measured.map(|(ratio, _)| ratio),
            plan_margin: measured.map(|(_, margin)| margin),
            unused_share: self.measured.unused.share(),
        })
    }

    /// Adopts the corrections if they have changed, and `always` by what the limits permit now.
    fn adopt_factors(&mut self, now: Timestamp, always: bool) -> bool {
        let factors = self.measured.correction.factors();
        if !always && Arc::ptr_eq(factors, &self.measured.adopted) {
            return false;
        }
        self.measured.adopted = Arc::clone(factors);
        let permitted = self.permitted_factors(now);
        let differ = permitted != self.limits.power_factors;
        if differ {
            self.limits.power_factors = permitted;
        }
        differ
    }
}

/// The GPUs of a running job.
fn running_on(job: &Job) -> Option<&GpuSet> {
    match &job.state {
        State::Running { on, .. } => Some(on),
        State::Queued | State::Stopping { .. } => None,
    }
}

/// The reading of a job on a node; `None` where it cannot be compared: with co-tenants, with fixed caps, or with a GPU that
/// was not read or has not carried out its cap; where what it draws of its cap does not count, also at the lowest cap.
fn reading(
    input: PlanningInput<'_>,
    node: NodeKey,
    here: &OnNode<'_>,
    span: ReadSpan,
    draws_count: bool,
) -> Option<JobReading> {
    let State::Running { setting, .. } = &here.job.state else { return None };
    let held = here.on.by_node.iter().find(|held| held.node == node)?;
    let known = input.state.node(node);
    let gpus = JobGpus::on(input, here.job, &known.facts.gpu_type, here.on);
    let predicted_w = gpus.predicted_w(input, *setting) - idle_w(input, known);
    let is_correctable = gpus.can_be_lowered(input, *setting);
    let is_compared = here.counts
        && (is_correctable || draws_count)
        && here.gpus == held.gpus.count_ones()
        && !gpus.is_fixed
        && predicted_w.is_finite()
        && predicted_w >= COMPARED_LEAST_W;
    is_compared.then(|| JobReading {
        arrival: here.job.arrival,
        node,
        nodes: here.on.by_node.len(),
        gpus: here.gpus,
        setting: *setting,
        span,
        measured_w: here.measured_w,
        predicted_w: f64::from(here.gpus) * predicted_w,
        is_correctable,
        is_at_cap: here.is_at_cap,
        at_caps: (draws_count && here.at_caps.2 == here.gpus).then(|| {
            let (drawn_w, cap_w, gpus) = here.at_caps;
            CapReading { share: drawn_w / cap_w.max(1.0), cap_w: cap_w / f64::from(gpus) }
        }),
    })
}

/// The power of each node in node order, watts, and whether all of it is measured: a node without readings counts
/// with its expected power.
fn power_by_node(
    input: PlanningInput<'_>,
    measured: &BTreeMap<NodeKey, NodeReading>,
) -> Option<(Vec<f64>, bool)> {
    let expected = expected_by_node(input)?;
    let baseline = baseline_by_node_w(input);
    let mut is_complete = true;
    let of_node = |((key, node), expected): ((NodeKey, &Node), &Power)| {
        let above_w = measured.get(&key).map(|reading| reading.above_w);
        is_complete &= above_w.is_some() || !node.is_awake();
        above_w.map_or(expected.as_w(), |above_w| baseline[key.index()] + above_w)
    };
    let by_node = input.state.keyed_nodes().zip(&expected).map(of_node).collect();
    Some((by_node, is_complete))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unused_share_counts_the_time_in_which_jobs_wait() {
        const MOST: Duration = Duration::from_secs(5);
        let mut unused = UnusedPower::default();
        assert_eq!(unused.share(), None);
        for second in 1..=600 {
            unused.add(Timestamp::from_s(second), MOST, (second > 300).then_some(0.1));
        }
        assert!((unused.share().unwrap() - 0.1).abs() < 1e-9, "only while jobs wait");
        // Silence counts at most once.
        unused.add(Timestamp::from_s(10_000), MOST, Some(0.5));
        assert!(unused.share().unwrap() < 0.12);
        for second in 10_001..30_000 {
            unused.add(Timestamp::from_s(second), MOST, Some(0.02));
        }
        let share = unused.share().unwrap();
        assert!((share - 0.02).abs() < 1e-3, "older shares fade: {share}");
    }
}
