//! What a site or a feeder can deliver during a grid event, before it is accepted.
//!
//! The present jobs with their promises are followed through the event in steps of at most 15 minutes: they end and start
//! as expected ([`crate::expected`]), and the means at each step are those that a live placer chooses
//! ([`crate::power::means`]). Hosts and idle GPUs do not give way. A job without a promise gives way first, and a start
//! that does not fit is held back. Jobs that are submitted later are not known, and do not count. On a feeder the jobs that
//! run there count, by the parts of their power that it carries; where a queued job will run is not known.
//!
//! The lowest target with which every promise is kept is found by halving. Without an event each of the next 24 hours
//! stands for an event of an hour.
//!
//! **Interval.** The event is followed another [`DRAWS`] times. Each time the power and the speed below a cap of each
//! workload are drawn from their prediction intervals, and the start and the end of each job from theirs. Of `n` such
//! values and a further one of the same kind, the further one is within their range with a probability of
//! `(n - 1) / (n + 1)`: 90 % of 19.
//!
//! Pure: equal inputs give equal plans; the draws have fixed numbers. A live placer copies its state for it, and computes
//! beside its rounds.

mod loads;
mod run;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::budget::Budget;
use wattle_common::event::{
    EventBook, EventRecord, EventTargets, JobPerformance, Participation, TargetSteps,
};
use wattle_common::messages::{
    EventPlan, ExpectedTimes, PLANNED_JOBS_MAX, PlannedJob, PlannedSpan,
};
use wattle_common::{FeederId, JobId, LimitOverTime, Power, Timestamp};

use crate::controller::budget::LIMIT_LEAD;
use crate::controller::{Controller, PolicyHandle};
use crate::plan::input::{PlanningInput, PlanningLimits};
use crate::power::bounds::Bound;
use crate::power::model::baseline_w;
use crate::power::promises::{EventPromises, SHORTFALL_STEP_W};
use crate::state::cluster::ClusterState;
use crate::state::gpu_set::JobKey;

use loads::{Load, Present, loads};
use run::{Draw, Drawn, Rules, Run, Step, run};

/// Times that an event is followed with drawn errors: the range of 19 holds a further one with a probability of 18/20.
const DRAWS: u64 = 19;
/// Most and least time of a step.
const STEP_MAX: Duration = Duration::from_secs(900);
const STEP_MIN: Duration = Duration::from_secs(60);
/// Steps of an event, roughly.
const STEPS: u32 = 16;
/// Rows of the table of an event.
const SPANS_MAX: u32 = 24;
const HOUR: Duration = Duration::from_secs(3_600);
/// Halvings of the interval in which the lowest target is.
const HALVINGS: u32 = 10;
/// A target that is short by less than this is reached, watts.
const SHORT_LEAST_W: f64 = 1.0;
/// Least half width of an interval, as a share of the reduction: the margin of plans for predicted power.
const POWER_LEAST: f64 = 0.02;
/// Least half width of the interval of a loss, a share of the throughput: the steps of caps.
const LOSS_LEAST: f64 = 0.01;
/// The instants at which a job slows and returns have this error, s: the placer looks once a minute.
const EDGE_S: f64 = 60.0;

/// What is planned.
pub enum PlanOf {
    /// An event.
    Event(Box<EventRecord>),
    /// The next day of the site or of a feeder.
    Day(Option<FeederId>),
}

/// The input of a plan, copied from a controller.
pub struct EventPlanning {
    state: ClusterState,
    limits: PlanningLimits,
    is_elastic: bool,
    times: BTreeMap<JobKey, ExpectedTimes>,
    record: Option<EventRecord>,
    /// The feeder of the event; absent: the site.
    feeder: Option<FeederId>,
    /// The limit without the event: of the budget or the feeder, and of other events.
    constant: Option<Power>,
    budget: Option<Budget>,
    others: TargetSteps,
    counted: BTreeMap<JobId, JobPerformance>,
}

impl EventPlanning {
    /// The input of the plan of an event, or without one of the next day of the site or a feeder. `book`: the known events,
    /// with or without this one.
    pub fn of<P: PolicyHandle>(
        controller: &Controller<P>,
        book: &EventBook,
        promises: &EventPromises,
        of: PlanOf,
        now: Timestamp,
    ) -> Self {
        let (record, feeder) = match of {
            PlanOf::Event(record) => (Some((*record).clone()), record.event.feeder),
            PlanOf::Day(feeder) => (None, feeder),
        };
        let mut state = controller.state().clone();
        state.advance_to(now);
        // As it will be under the target.
        let limits = PlanningLimits { caps_enforced: true, ..controller.limits().clone() };
        let id = record.as_ref().map(|record| &record.event.event);
        let others = book.events.values();
        let others = others.filter(|one| Some(&one.event.event) != id && one.settled() > now);
        let others = EventTargets::of(others).on(feeder.as_ref()).cloned().unwrap_or_default();
        let counted = id.and_then(|id| promises.performances().events.get(id));
        let keys = state.running().chain(state.queue()).map(|(key, _)| key);
        let times = controller.expected();
        let times = keys.filter_map(|key| Some((key, times?.times(key)?.clone()))).collect();
        // The budget limits the site.
        let budget = controller.budget().filter(|_| feeder.is_none());
        let budget = budget.map(|budget| budget.controller().budget().clone());
        let constant = match &feeder {
            None => budget.as_ref().and_then(|budget| budget.power_mw),
            Some(feeder) => limits.carried.on(feeder).map(|carried| carried.limit),
        };
        Self {
            feeder,
            constant,
            is_elastic: controller.capabilities().is_elastic,
            times,
            record,
            budget,
            others,
            counted: counted.cloned().unwrap_or_default(),
            state,
            limits,
        }
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> EventPlan {
        let input = PlanningInput::new(&self.state, &self.limits);
        let under_way = |record: &EventRecord| record.event.start_us <= self.state.now();
        let bound = Bound::of_events(input, self.feeder.as_ref(), Power::ZERO);
        let (loads, waiting) = loads(&Present {
            input,
            bound: bound.as_ref(),
            is_elastic: self.is_elastic,
            times: &self.times,
            counted: &self.counted,
            is_lowered: self.record.as_ref().is_some_and(under_way),
        });
        let site = Site {
            base_w: bound.map_or(0.0, |bound| {
                let nodes = bound.shares(&self.state);
                baseline_w(input, nodes, std::iter::empty()) + bound.static_w()
            }),
            loads,
            now: self.state.now(),
        };
        let plan = match &self.record {
            Some(record) => self.event(&site, record),
            None => self.day(&site),
        };
        EventPlan { jobs_waiting: waiting, ..plan }
    }

    /// The limit without the event, watts; infinite without one.
    fn other_w(&self) -> impl Fn(Timestamp) -> f64 + '_ {
        let over_time = LimitOverTime::new(self.budget.as_ref(), self.others.clone());
        let constant = self.constant;
        move |at| {
            let changing = over_time.as_ref().and_then(|limit| limit.at(at));
            let limit = changing.into_iter().chain(constant).min();
            limit.map_or(f64::INFINITY, Power::as_w)
        }
    }

    /// The plan of an event.
    fn event(&self, site: &Site, record: &EventRecord) -> EventPlan {
        let other_w = self.other_w();
        // As if no shortfall were declared yet.
        let requested = EventRecord { shortfall_mw: Power::ZERO, ..record.clone() };
        let targets = TargetSteps::of([&requested]);
        let returned = record.returned();
        let from = record.event.start_us.max(site.now);
        let spans = spans(from, returned);
        let cuts = [record.reached(), record.end_us];
        let limit_w = |at: Timestamp| {
            // Plans follow a lower limit beforehand.
            targets.least(at, at + LIMIT_LEAD).map_or(f64::INFINITY, Power::as_w)
        };
        let longest = (returned.since(from) / STEPS).max(STEP_MIN);
        // Of a long event the means of an hour stay.
        let is_long = spans.len() as u32 >= SPANS_MAX;
        let longest = if is_long { HOUR.max(longest) } else { longest.min(STEP_MAX) };
        let steps = steps(&spans, &cuts, longest, |at| (other_w(at), limit_w(at)));
        let steps: Vec<Step> = steps
            .into_iter()
            .map(|step| Step { at_target: cuts[0] <= step.from && step.until <= cuts[1], ..step })
            .collect();
        let expected = Draw::expected(&site.loads);
        let is_mandatory = record.event.participation == Participation::Mandatory;
        // A voluntary event declares its shortfall beforehand.
        let short_step_w = if is_mandatory { 1.0 } else { SHORTFALL_STEP_W };
        let requested_w = record.target_mw.as_w();
        let short_w = run::short_w(&site.loads, requested_w, site.base_w, from, returned);
        let declared_w = run::multiple(short_w, short_step_w);
        let follow = |draw: &Draw, may_break: bool| {
            let declared_w = if may_break { 0.0 } else { declared_w };
            let rules = Rules { may_break, declared_w, short_step_w, raises: true };
            run(&site.loads, &steps, draw, site.base_w, returned, rules)
        };
        let kept = follow(&expected, false);
        let is_short = kept.steps.iter().any(|step| step.short_w > SHORT_LEAST_W);
        let broken = if is_short { follow(&expected, true) } else { kept.clone() };
        let draws: Vec<Run> =
            (0..DRAWS).map(|number| follow(&Draw::of(number, &site.loads), is_mandatory)).collect();
        let table = Table { site, steps: &steps, kept: &kept, broken: &broken, draws: &draws };
        let delivered = if is_mandatory { &broken } else { &kept };
        let hours =
            (0..spans.len()).map(|span| table.span(&spans, |step| step.span == span, delivered));
        let at_target = (record.reached().max(from), record.end_us);
        let at_target = (at_target.0 < at_target.1)
            .then(|| table.span(&[at_target], |step| step.at_target, delivered));
        let least_w = steps.iter().zip(&broken.steps).filter(|(step, _)| step.at_target);
        let least_w = least_w.map(|(step, _)| site.least_w(step)).fold(0.0, f64::max);
        let (jobs, jobs_left_out) = table.jobs(delivered);
        EventPlan {
            at_us: site.now,
            record: Some(record.clone()),
            at_target,
            hours: hours.collect(),
            least_kept_mw: Some(Power::from_w_f64(site.least_kept_w(&steps, returned))),
            least_mw: Some(Power::from_w_f64(least_w)),
            jobs,
            jobs_left_out,
            jobs_waiting: 0,
        }
    }

    /// The plan of the next 24 hours, each of which stands for an event of an hour.
    fn day(&self, site: &Site) -> EventPlan {
        let other_w = self.other_w();
        let hours = (0..24).map(|hour| {
            let from = site.now + HOUR * hour;
            let until = from + HOUR;
            let at = |at| (other_w(at), f64::INFINITY);
            let steps = steps(&[(from, until)], &[], STEP_MAX, at);
            let steps: Vec<Step> =
                steps.into_iter().map(|step| Step { at_target: true, ..step }).collect();
            let least_w = site.least_kept_w(&steps, until);
            let steps: Vec<Step> = steps
                .into_iter()
                .map(|step| Step { limit_w: least_w.min(step.other_w), ..step })
                .collect();
            let follow =
                |draw: &Draw| run(&site.loads, &steps, draw, site.base_w, until, Rules::AT_FLOORS);
            let kept = follow(&Draw::expected(&site.loads));
            let draws: Vec<Run> =
                (0..DRAWS).map(|number| follow(&Draw::of(number, &site.loads))).collect();
            let table = Table { site, steps: &steps, kept: &kept, broken: &kept, draws: &draws };
            let span = table.span(&[(from, until)], |_| true, &kept);
            let least = steps.iter().map(|step| site.least_w(step)).fold(0.0, f64::max);
            let breaks_mw =
                span.drawn_mw.saturating_sub(span.less_mw).saturating_sub(Power::from_w_f64(least));
            PlannedSpan { target_mw: None, breaks_mw, short_mw: Power::ZERO, ..span }
        });
        EventPlan {
            at_us: site.now,
            record: None,
            at_target: None,
            hours: hours.collect(),
            least_kept_mw: None,
            least_mw: None,
            jobs: Vec::new(),
            jobs_left_out: 0,
            jobs_waiting: 0,
        }
    }
}

/// The site or feeder and its jobs.
struct Site {
    now: Timestamp,
    /// What it draws without jobs, watts.
    base_w: f64,
    loads: Vec<Load>,
}

impl Site {
    /// The power in a step where every job that can stop is stopped, and no other starts; the rest are at their lowest
    /// settings.
    fn least_w(&self, step: &Step) -> f64 {
        let stays = |load: &&Load| {
            let is_over = load.end.is_some_and(|end| end.at_us <= step.from);
            !load.can_stop && load.start.is_none() && !is_over
        };
        let lowest_w = |load: &Load| load.own.last().map_or(0.0, |rung| rung.watts);
        self.base_w + self.loads.iter().filter(stays).map(lowest_w).sum::<f64>()
    }

    /// The lowest constant target with which every promise is kept. The ramps keep their shape.
    fn least_kept_w(&self, steps: &[Step], returned: Timestamp) -> f64 {
        let draw = Draw::expected(&self.loads);
        let follow = |steps: &[Step]| {
            run(&self.loads, steps, &draw, self.base_w, returned, Rules::AT_FLOORS)
        };
        let is_kept = |target_w: f64| {
            let lowered: Vec<Step> = steps
                .iter()
                .filter(|step| step.at_target)
                .map(|step| Step { limit_w: target_w, ..*step })
                .collect();
            let from = lowered.first().map_or(returned, |step| step.from);
            let short_w = run::short_w(&self.loads, target_w, self.base_w, from, returned);
            short_w <= SHORT_LEAST_W
                && follow(&lowered).steps.iter().all(|step| step.short_w <= SHORT_LEAST_W)
        };
        let unlimited: Vec<Step> =
            steps.iter().map(|step| Step { limit_w: f64::INFINITY, ..*step }).collect();
        let most_w = follow(&unlimited).steps.iter().map(|step| step.without_w).fold(0.0, f64::max);
        let (mut short_w, mut kept_w) = (self.base_w, self.base_w + most_w);
        if is_kept(short_w) {
            return short_w;
        }
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(short_w, kept_w);
            if is_kept(middle) { kept_w = middle } else { short_w = middle }
        }
        kept_w
    }
}

/// The spans of a table: hours, or of a long event equal parts of whole hours.
fn spans(from: Timestamp, until: Timestamp) -> Vec<(Timestamp, Timestamp)> {
    let hours = until.since(from).as_secs().div_ceil(HOUR.as_secs());
    let length = HOUR * u32::try_from(hours.div_ceil(u64::from(SPANS_MAX))).unwrap_or(1).max(1);
    let mut spans = Vec::new();
    let mut at = from;
    while at < until {
        let end = (at + length).min(until);
        spans.push((at, end));
        at = end;
    }
    spans
}

/// The steps of the spans, cut at these instants: `limits` has the limit without the event, and that of the event.
fn steps(
    spans: &[(Timestamp, Timestamp)],
    cuts: &[Timestamp],
    longest: Duration,
    limits: impl Fn(Timestamp) -> (f64, f64),
) -> Vec<Step> {
    let mut found = Vec::new();
    for (span, &(from, until)) in spans.iter().enumerate() {
        let mut edges = vec![from, until];
        edges.extend(cuts.iter().copied().filter(|cut| from < *cut && *cut < until));
        edges.sort_unstable();
        for edge in edges.windows(2) {
            let (from, until) = (edge[0], edge[1]);
            let length = until.since(from);
            let count = length.as_micros().div_ceil(longest.as_micros().max(1)).max(1) as u32;
            for part in 0..count {
                let at = |part: u32| from + length * part / count;
                let (from, until) = (at(part), at(part + 1));
                let (other_w, event_w) = limits(from + until.since(from) / 2);
                let limit_w = other_w.min(event_w);
                found.push(Step { from, until, span, other_w, limit_w, at_target: false });
            }
        }
    }
    found
}

/// The runs of an event, of which the tables are made.
struct Table<'a> {
    site: &'a Site,
    steps: &'a [Step],
    /// With every promise kept.
    kept: &'a Run,
    /// With promises broken where they exceed the target.
    broken: &'a Run,
    draws: &'a [Run],
}

impl Table<'_> {
    /// The mean of a value over the steps of a span.
    fn mean(
        &self,
        run: &Run,
        is_in: &dyn Fn(&Step) -> bool,
        of: impl Fn(&Step, &Drawn) -> f64,
    ) -> f64 {
        let within = self.steps.iter().zip(&run.steps).filter(|(step, _)| is_in(step));
        let (sum, seconds) = within.fold((0.0, 0.0), |(sum, seconds), (step, drawn)| {
            (sum + of(step, drawn) * step.seconds(), seconds + step.seconds())
        });
        if seconds > 0.0 { sum / seconds } else { 0.0 }
    }

    fn span(
        &self,
        spans: &[(Timestamp, Timestamp)],
        is_in: impl Fn(&Step) -> bool,
        delivered: &Run,
    ) -> PlannedSpan {
        let within = self.steps.iter().filter(|step| is_in(step));
        let index = within.clone().next().map_or(0, |step| step.span.min(spans.len() - 1));
        let (from_us, until_us) = spans[index];
        let is_in: &dyn Fn(&Step) -> bool = &is_in;
        let base_w = self.site.base_w;
        let less = |_: &Step, drawn: &Drawn| (drawn.without_w - drawn.with_w).max(0.0);
        let less_w = self.mean(self.kept, is_in, less);
        let delivered_w = self.mean(delivered, is_in, less);
        let drawn: Vec<f64> = self.draws.iter().map(|run| self.mean(run, is_in, less)).collect();
        let least_w = POWER_LEAST * delivered_w;
        let low = drawn.iter().copied().fold(f64::INFINITY, f64::min).min(delivered_w - least_w);
        let high = drawn.iter().copied().fold(0.0, f64::max).max(delivered_w + least_w);
        let means = |of: fn(&Drawn) -> f64| self.mean(self.kept, is_in, |_, drawn| of(drawn));
        let parts = [means(|d| d.caps_w), means(|d| d.gpus_w), means(|d| d.pauses_w)];
        let sum: f64 = parts.iter().sum();
        let [caps, gpus, pauses] =
            parts.map(|part| if sum > 0.0 { less_w * part / sum } else { 0.0 });
        let breaks_w = self.mean(self.broken, is_in, less) - less_w;
        let over = |step: &Step, drawn: &Drawn| (base_w + drawn.with_w - step.limit_w).max(0.0);
        let short_w = self.mean(self.broken, is_in, over);
        let target_w = self.mean(self.kept, is_in, |step, _| step.limit_w);
        let watts = |watts: f64| Power::from_w_f64(watts.max(0.0));
        PlannedSpan {
            from_us,
            until_us,
            drawn_mw: watts(base_w + means(|drawn| drawn.without_w)),
            target_mw: target_w.is_finite().then(|| watts(target_w)),
            less_mw: watts(less_w),
            less_mw_low: watts(low - (delivered_w - less_w)),
            less_mw_high: watts(high - (delivered_w - less_w)),
            caps_mw: watts(caps),
            gpus_mw: watts(gpus),
            pauses_mw: watts(pauses),
            breaks_mw: watts(breaks_w),
            short_mw: watts(short_w),
        }
    }

    /// What the jobs lose, those that lose most first, and the number of those that are left out.
    fn jobs(&self, delivered: &Run) -> (Vec<PlannedJob>, u32) {
        let loads = &self.site.loads;
        let mut order: Vec<usize> =
            (0..loads.len()).filter(|&job| self.broken.jobs[job].is_broken).collect();
        order.sort_by(|&a, &b| loads[a].weight().total_cmp(&loads[b].weight()).then(a.cmp(&b)));
        let place: BTreeMap<usize, u32> = order.into_iter().zip(1..).collect();
        let target_s: f64 =
            self.steps.iter().filter(|step| step.at_target).map(Step::seconds).sum();
        let present = (0..loads.len()).filter(|&job| {
            let followed = &delivered.jobs[job];
            followed.present_s > 0.0 || followed.held_s > 0.0
        });
        let one = |job: usize| {
            let (load, followed) = (&loads[job], &delivered.jobs[job]);
            let loss = followed.loss().max(0.0);
            // A draw in which the job is not present does not count.
            let drawn = self.draws.iter().map(|run| &run.jobs[job]);
            let drawn: Vec<f64> =
                drawn.filter(|one| one.present_s > 0.0).map(run::Followed::loss).collect();
            let least = LOSS_LEAST + loss * EDGE_S / followed.present_s.max(EDGE_S);
            let low = drawn.iter().copied().fold(loss - least, f64::min);
            let high = drawn.iter().copied().fold(loss + least, f64::max);
            let before_s = load.counted.map_or(0.0, |(_, lost_s)| lost_s);
            let breaks_w = self.broken.jobs[job].broken_j / target_s.max(1.0);
            let breaks = place.get(&job).copied();
            PlannedJob {
                job: load.id.clone(),
                gpus: load.gpus,
                promise: load.promise,
                loss,
                loss_low: low.max(0.0),
                loss_high: high.min(1.0),
                later_s: (followed.lost_s - before_s).max(0.0) + followed.held_s,
                paused_s: followed.paused_s,
                fewer_gpus_s: followed.fewer_gpus_s,
                breaks,
                breaks_mw: breaks.map(|_| Power::from_w_f64(breaks_w)),
            }
        };
        let mut jobs: Vec<PlannedJob> = present.map(one).collect();
        let rank = |job: &PlannedJob| (job.breaks.is_some(), job.later_s);
        jobs.sort_by(|a, b| {
            let ((a_breaks, a_s), (b_breaks, b_s)) = (rank(a), rank(b));
            b_breaks.cmp(&a_breaks).then(b_s.total_cmp(&a_s)).then(a.job.cmp(&b.job))
        });
        let left_out = jobs.len().saturating_sub(PLANNED_JOBS_MAX);
        jobs.truncate(PLANNED_JOBS_MAX);
        (jobs, u32::try_from(left_out).unwrap_or(u32::MAX))
    }
}
