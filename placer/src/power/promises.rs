//! The promises of jobs during grid events: what each job has lost, and the least speed that its promise permits now.
//!
//! A job with a flexibility of `f` may lose `f` of its throughput on average over an event with its ramps, or over the
//! part of it in which it is present. What it has not lost yet is its **allowance**; the allowance spread over the rest
//! of the event is what it may lose now, and the rest of its speed is its **floor**:
//!
//! ```text
//! allowance = f T - lost,    floor = 1 - allowance / (time left)
//! ```
//!
//! Policies and the enforcement of limits keep the floors. Where the floors exceed the target, [`choose`] decides which
//! jobs pause, and either the shortfall of a voluntary event, which its limit then contains, or which promises a
//! mandatory one breaks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use wattle_common::event::{
    EventBook, EventPerformances, EventRecord, JobPerformance, Participation,
};
use wattle_common::job::{Flexibility, GpuSetting};
use wattle_common::{FeederId, Power, Timestamp};

use crate::allocation::settling::is_held;
use crate::controller::{Controller, PolicyHandle};
use crate::plan::input::PlanningInput;
use crate::power::bounds::Bound;
use crate::power::limits::{least_gpu_w, settings_of};
use crate::power::means::{Candidate, Fewer, Means, choose};
use crate::power::model::{JobGpus, baseline_w, idle_w};
use crate::state::cluster::ClusterState;
use crate::state::gpu_set::{GpuSet, JobKey, NodeKey};
use crate::state::job::{Job, State};
use crate::state::job_forecast::remaining_work;
use crate::state::operating_points::OperatingPoints;

/// Time between two looks at the promises during an event, and how long before an event they hold.
pub const STEP: Duration = Duration::from_secs(60);
/// A declared shortfall is a multiple of this.
pub(crate) const SHORTFALL_STEP_W: f64 = 100.0;

/// The promise of a job during an event, as a plan keeps it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Promise {
    /// The number of its GPUs when the event began for it.
    pub gpus: u32,
    /// The least speed now, as a share of that at the default setting on these GPUs.
    pub floor: f64,
    /// Its allowance, seconds of that speed.
    pub left_s: f64,
    /// What it promised.
    pub flexibility: Flexibility,
    /// The most GPUs that it has for now; absent: as its policy chooses.
    pub gpus_max: Option<u32>,
    /// It gives its GPUs back for now.
    pub is_paused: bool,
}

/// The promises of jobs during events; empty without an event.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Promises {
    /// Those of the jobs that ran at the last look.
    by_job: ByJob,
    /// Until when an event of the site lasts: a job that starts has its promise at once.
    until: Option<Timestamp>,
    /// The nodes of feeders with events, until when these last.
    on_feeders: Vec<(BTreeSet<NodeKey>, Timestamp)>,
}

type ByJob = BTreeMap<JobKey, Promise>;

impl Promises {
    /// The promise of a job on this number of GPUs: by the last look, or from its start on; of an event of a feeder where
    /// its GPUs are known.
    pub(crate) fn of(
        &self,
        key: JobKey,
        job: &Job,
        (gpus, on): (u32, Option<&GpuSet>),
        now: Timestamp,
    ) -> Option<Promise> {
        let begins = || {
            let here = |nodes: &BTreeSet<NodeKey>| {
                on.is_some_and(|on| on.by_node.iter().any(|here| nodes.contains(&here.node)))
            };
            let feeders = self.on_feeders.iter().filter(|(nodes, _)| here(nodes));
            let until = self.until.into_iter().chain(feeders.map(|(_, until)| *until)).max()?;
            let flexibility = job.facts.flexibility?;
            let left_s = flexibility.loss() * until.since(now).as_secs_f64();
            let floor = 1.0 - flexibility.loss();
            let (gpus_max, is_paused) = (None, false);
            (now < until).then_some(Promise {
                gpus,
                floor,
                left_s,
                flexibility,
                gpus_max,
                is_paused,
            })
        };
        self.known(key).copied().or_else(begins)
    }

    /// The promise of a job that has run during the event.
    pub(crate) fn known(&self, key: JobKey) -> Option<&Promise> {
        self.by_job.get(&key)
    }

    /// Whether an event of the whole site lasts.
    pub(crate) const fn of_site(&self) -> bool {
        self.until.is_some()
    }

    /// The promises of all jobs that have run during the event.
    pub(crate) fn of_known(&self) -> impl Iterator<Item = &Promise> {
        self.by_job.values()
    }
}

impl Promise {
    /// The least speed now, steps per second.
    pub(crate) fn least_rate(&self, points: &OperatingPoints) -> Option<f64> {
        Some(self.floor * points.point(self.gpus, GpuSetting::DEFAULT)?.steps_per_s)
    }

    /// The weight of its performance: the share of its throughput that it does not give up.
    pub(crate) fn weight(&self) -> f64 {
        1.0 - self.flexibility.loss()
    }

    /// Whether it keeps its number of GPUs.
    pub(crate) const fn keeps_size(&self) -> bool {
        !self.flexibility.may_resize
    }

    /// The stricter one of two promises of a job.
    fn stricter(self, other: Self) -> Self {
        let (floor, left_s) = (self.floor.max(other.floor), self.left_s.min(other.left_s));
        Self { floor, left_s, ..self }
    }
}

/// The performance of jobs over events, and the promises that follow from it.
#[derive(Clone, Debug, Default)]
pub struct EventPromises {
    performances: EventPerformances,
    counted_until: Timestamp,
}

impl EventPromises {
    /// Continues from stored performances.
    #[must_use]
    pub const fn restored(performances: EventPerformances, now: Timestamp) -> Self {
        Self { performances, counted_until: now }
    }

    /// The performance of jobs over events.
    #[must_use]
    pub const fn performances(&self) -> &EventPerformances {
        &self.performances
    }

    /// When to look at the promises next.
    #[must_use]
    pub fn follow_at(book: &EventBook, now: Timestamp) -> Option<Timestamp> {
        let of_one = |record: &EventRecord| {
            let begins = record.event.start_us - STEP;
            let later = if now < begins { begins } else { now + STEP };
            (now < record.returned()).then_some(later)
        };
        book.events.values().filter(|record| record.has_target()).filter_map(of_one).min()
    }

    /// Whether an event begins soon or is under way, so that a job that starts has a promise to look at.
    #[must_use]
    pub fn is_near(book: &EventBook, now: Timestamp) -> bool {
        near(book, now).next().is_some()
    }

    /// Counts the time until an instant, since the last call, at the present speeds: of each running job the speed
    /// relative to the default setting on this number of GPUs. A job of unknown speed counts as undisturbed. An event of a
    /// feeder is counted for the jobs that have run on it.
    pub fn count(
        &mut self,
        book: &EventBook,
        input: PlanningInput<'_>,
        until: Timestamp,
        speed: impl Fn(JobKey, &Job, u32) -> Option<f64>,
    ) {
        let since = std::mem::replace(&mut self.counted_until, until);
        let state = input.state;
        for record in book.events.values().filter(|record| record.has_target()) {
            let from = since.max(record.event.start_us);
            let (until, end) = (until.min(record.returned()), record.returned());
            if from >= until {
                continue;
            }
            let jobs = self.performances.events.entry(record.event.event.clone()).or_default();
            let Some(bound) = bound_of(input, record) else { continue };
            for (key, job) in state.running() {
                if !is_on(&bound, job) && !jobs.contains_key(&job.facts.id) {
                    continue;
                }
                let begins = match job.state {
                    State::Running { since: started, .. } => from.max(started).min(until),
                    _ => from,
                };
                let begun = || entered(job, begins);
                let own = jobs.entry(job.facts.id.clone()).or_insert_with(begun);
                let speed = match job.state {
                    State::Running { .. } => speed(key, job, own.gpus).unwrap_or(1.0),
                    _ => 0.0,
                };
                count(own, until, end, speed);
            }
            for (_, job) in state.queue() {
                if let Some(own) = jobs.get_mut(&job.facts.id) {
                    count(own, until, end, 0.0);
                }
            }
        }
    }

    /// Looks at the promises: declares the shortfalls of voluntary events, and puts targets and promises in force.
    /// Returns whether the book has changed, and whether a plan may differ.
    pub fn follow<P: PolicyHandle>(
        &mut self,
        controller: &mut Controller<P>,
        book: &mut EventBook,
        now: Timestamp,
    ) -> (bool, bool) {
        self.performances.retain(book.in_order().into_iter().map(|record| &record.event.event));
        let resizes = controller.capabilities().is_elastic;
        let book_changed = self.declare_shortfalls(controller.input(), book, resizes, now);
        let targets = book.targets(now);
        let mut again = controller.set_event_targets(targets.clone(), now).plan_again;
        let mut promises = Promises::default();
        let mut places: BTreeMap<Option<&FeederId>, Place> = BTreeMap::new();
        for record in near(book, now) {
            let input = controller.input();
            let Some(bound) = bound_of(input, record) else { continue };
            if record.event.start_us <= now {
                // Also of jobs that are about to pause.
                let jobs = self.performances.events.entry(record.event.event.clone()).or_default();
                for (_, job) in input.state.running().filter(|(_, job)| is_on(&bound, job)) {
                    jobs.entry(job.facts.id.clone()).or_insert_with(|| entered(job, now));
                }
            }
            let feeder = record.event.feeder.as_ref();
            match feeder {
                None => promises.until = promises.until.max(Some(record.returned())),
                Some(_) => {
                    let nodes = bound.shares(input.state).map(|(node, _)| node).collect();
                    promises.on_feeders.push((nodes, record.returned()));
                }
            }
            let place = places.entry(feeder).or_default();
            place.is_mandatory |= record.event.participation == Participation::Mandatory;
            for (job, promise) in self.of_event(record, &bound, input.state, now) {
                let known = promises.by_job.get(&job);
                let known = known.map_or(promise, |known| promise.stricter(*known));
                promises.by_job.insert(job, known);
                place.jobs.insert(job);
            }
        }
        // Those of feeders first, as limits are enforced.
        for (feeder, place) in places.iter().rev() {
            let limit = targets.on(*feeder).and_then(|steps| steps.least(now, now + STEP));
            let bound =
                limit.and_then(|limit| Bound::of_events(controller.input(), *feeder, limit));
            if let Some(bound) = bound {
                let place = (&bound, place, resizes);
                self.choose(controller.input(), &mut promises.by_job, place, book, now);
            }
        }
        again |= controller.set_event_promises(promises);
        (book_changed, again)
    }

    /// The promises of jobs during an event: of its start, or now.
    fn of_event(
        &self,
        record: &EventRecord,
        bound: &Bound,
        state: &ClusterState,
        now: Timestamp,
    ) -> ByJob {
        let now = now.max(record.event.start_us);
        let counted = self.performances.events.get(&record.event.event);
        let of_job = |(key, job): (JobKey, &Job)| {
            let flexibility = job.facts.flexibility?;
            let known = counted.and_then(|jobs| jobs.get(&job.facts.id));
            let present = job.state.gpus().map(GpuSet::gpu_count);
            if present.is_some() && !is_on(bound, job) {
                return None;
            }
            let gpus = known.map(|known| known.gpus).or(present)?;
            let (from, lost_s) = known.map_or((now, 0.0), |known| (known.from_us, known.lost_s));
            let end =
                ends_at(state, job, gpus).map_or(record.returned(), |at| at.min(record.returned()));
            let seconds = |from: Timestamp| end.since(from).as_secs_f64();
            let left_s = flexibility.loss() * seconds(from) - lost_s;
            let floor = 1.0 - left_s / seconds(now).max(1.0);
            let floor = floor.clamp(0.0, 1.0);
            let (gpus_max, is_paused) = (None, false);
            Some((key, Promise { gpus, floor, left_s, flexibility, gpus_max, is_paused }))
        };
        state.running().chain(state.queue()).filter_map(of_job).collect()
    }

    /// Declares by how much the floors exceed the targets of voluntary events.
    fn declare_shortfalls(
        &self,
        input: PlanningInput<'_>,
        book: &mut EventBook,
        resizes: bool,
        now: Timestamp,
    ) -> bool {
        let mut declared = Vec::new();
        let open = book.events.values().filter(|record| {
            record.event.participation == Participation::Voluntary
                && record.has_target()
                && now < record.end_us
        });
        for record in open {
            let Some(bound) = bound_of(input, record) else { continue };
            let promises = self.of_event(record, &bound, input.state, now);
            let (jobs, candidates): (Vec<JobKey>, Vec<Candidate>) =
                candidates(input, &promises, (&bound, resizes), |_| true).unzip();
            let Some(left_w) = left_w(input, &jobs, &bound) else { continue };
            // Without promises all jobs give way as below any limit.
            let is_promised = !candidates.is_empty();
            let short_w =
                if is_promised { choose(&candidates, left_w, false).short_w } else { 0.0 };
            let short_w = (short_w / SHORTFALL_STEP_W).ceil() * SHORTFALL_STEP_W;
            let short = Power::from_w_f64(short_w);
            // A limit that falls during the event without a ramp would be exceeded until jobs have followed it.
            let may_fall = now < record.event.start_us;
            if short > record.shortfall_mw || (may_fall && short < record.shortfall_mw) {
                declared.push((record.event.event.clone(), short));
            }
        }
        declared.iter().for_each(|(event, short)| book.declare_shortfall(event, *short));
        !declared.is_empty()
    }

    /// Which jobs pause, and whose promises break, at a limit of the site or a feeder.
    fn choose(
        &mut self,
        input: PlanningInput<'_>,
        promises: &mut ByJob,
        (bound, place, resizes): (&Bound, &Place, bool),
        book: &EventBook,
        now: Timestamp,
    ) {
        let (jobs, candidates): (Vec<JobKey>, Vec<Candidate>) =
            candidates(input, promises, (bound, resizes), |job| place.jobs.contains(&job)).unzip();
        let Some(left_w) = left_w(input, &jobs, bound) else { return };
        let chosen = choose(&candidates, left_w, place.is_mandatory);
        for (index, (key, means)) in jobs.iter().zip(&chosen.lowest).enumerate() {
            let Some(promise) = promises.get_mut(key) else { continue };
            match *means {
                Means::Pauses => promise.is_paused = true,
                Means::Fewer(gpus) => promise.gpus_max = Some(gpus),
                Means::Runs(at) if chosen.broken.contains(&index) => {
                    let lowest = candidates[index].settings.get(at).map_or(0.0, |one| one.0);
                    promise.floor = promise.floor.min(lowest);
                }
                Means::Runs(_) => {}
            }
        }
        let is_here = |record: &&EventRecord| record.event.feeder.as_ref() == bound.target_of();
        for record in near(book, now).filter(is_here) {
            let Some(known) = self.performances.events.get_mut(&record.event.event) else {
                continue;
            };
            for &index in &chosen.broken {
                let job = input.state.job(jobs[index]);
                let own = job.and_then(|job| known.get_mut(&job.facts.id));
                own.into_iter().for_each(|own| own.broken = true);
            }
        }
    }
}

/// The events that begin within [`STEP`] or are under way.
fn near(book: &EventBook, now: Timestamp) -> impl Iterator<Item = &EventRecord> {
    let is_near = move |record: &&EventRecord| {
        record.has_target() && record.event.start_us <= now + STEP && now < record.returned()
    };
    book.events.values().filter(is_near)
}

/// The jobs with promises within the limit of the site or a feeder.
#[derive(Default)]
struct Place {
    jobs: BTreeSet<JobKey>,
    /// Whether one of its events is mandatory.
    is_mandatory: bool,
}

/// What an event limits, by its target; `None`: no node of its feeder is known.
fn bound_of(input: PlanningInput<'_>, record: &EventRecord) -> Option<Bound> {
    Bound::of_events(input, record.event.feeder.as_ref(), record.target_mw)
}

/// Whether a job has GPUs within a bound.
fn is_on(bound: &Bound, job: &Job) -> bool {
    job.state.gpus().is_some_and(|on| bound.covers_any(on))
}

/// A job for which the event begins now.
fn entered(job: &Job, now: Timestamp) -> JobPerformance {
    JobPerformance {
        promise: job.facts.flexibility,
        gpus: job.state.gpus().map_or(0, GpuSet::gpu_count),
        from_us: now,
        until_us: now,
        lost_s: 0.0,
        expected: 0.0,
        broken: false,
    }
}

/// Counts the time of a job until an instant at a speed, and what it is expected to lose until `end` at that speed.
fn count(own: &mut JobPerformance, until: Timestamp, end: Timestamp, speed: f64) {
    own.count(until, speed);
    let seconds = |from: Timestamp| end.since(from).as_secs_f64();
    let lost_s = own.lost_s + (1.0 - speed) * seconds(own.until_us);
    own.expected = lost_s / seconds(own.from_us).max(1.0);
}

/// When a job completes at the default setting on this number of GPUs, if its length is known.
fn ends_at(state: &ClusterState, job: &Job, gpus: u32) -> Option<Timestamp> {
    let points = job.operating_points.as_ref()?;
    let rate = points.point(gpus, GpuSetting::DEFAULT)?.steps_per_s;
    let unit = points.unit_rate()?;
    let remaining = remaining_work(state, job, unit);
    let left_s = remaining.left_s * unit / rate;
    remaining.is_known.then(|| state.now() + wattle_common::time::span_s(left_s))
}

/// The jobs with promises whose speeds and power are known, by the part of their power within a bound; without those that
/// another limit pauses.
fn candidates<'a>(
    input: PlanningInput<'a>,
    promises: &'a ByJob,
    (bound, resizes): (&'a Bound, bool),
    is_here: impl Fn(JobKey) -> bool + 'a,
) -> impl Iterator<Item = (JobKey, Candidate)> + 'a {
    promises.iter().filter_map(move |(&key, promise)| {
        if promise.is_paused || !is_here(key) {
            return None;
        }
        let job = input.state.job(key)?;
        let on = job.state.gpus();
        let is_paused = on.is_none();
        // A paused job may continue on any node.
        let part = on.map_or_else(|| bound.most_share(), |on| bound.part_of(on));
        let gpu_type = match input.state.gpu_type_of(job) {
            Some(gpu_type) => gpu_type,
            None => job.operating_points.as_ref()?.gpu_type.as_str(),
        };
        let settings = settings_of(input, job, gpu_type, promise.gpus, promise.gpus)?;
        let gpus = part * f64::from(promise.gpus);
        let pause_s = promise.flexibility.may_pause && job.facts.can_stop;
        Some((
            key,
            Candidate {
                settings: settings
                    .into_iter()
                    .map(|(speed, watts)| (speed, gpus * watts))
                    .collect(),
                floor: promise.floor,
                fewer: if resizes {
                    fewer(input, job, promise, gpu_type, part)
                } else {
                    Vec::new()
                },
                has_fewer: on.map(GpuSet::gpu_count).filter(|gpus| *gpus < promise.gpus),
                left_s: promise.left_s,
                weight: promise.weight(),
                can_stop: job.facts.can_stop,
                pause_s: pause_s.then_some(promise.left_s),
                restart_s: input.state.restart_cost(job, promise.gpus).as_secs_f64(),
                is_paused,
            },
        ))
    })
}

/// The smaller numbers of GPUs of a job at which its floor holds, each with the least power, by falling power; none where
/// its promise or the rules on restarts forbid another number.
fn fewer(
    input: PlanningInput<'_>,
    job: &Job,
    promise: &Promise,
    gpu_type: &str,
    part: f64,
) -> Vec<Fewer> {
    let may_resize = promise.flexibility.may_resize && job.facts.can_stop;
    let points = job.operating_points_on(gpu_type).filter(|_| may_resize && !is_held(input, job));
    let sizes = points.into_iter().flat_map(OperatingPoints::sizes);
    let mut found: Vec<Fewer> = sizes
        .filter(|&size| size < promise.gpus)
        .filter_map(|size| {
            let settings = settings_of(input, job, gpu_type, size, promise.gpus)?;
            let lowest = settings.iter().rfind(|setting| setting.0 + 1e-9 >= promise.floor)?;
            Some(Fewer { gpus: size, watts: part * f64::from(size) * lowest.1 })
        })
        .collect();
    found.sort_by(|a, b| b.watts.total_cmp(&a.watts).then(b.gpus.cmp(&a.gpus)));
    found
}

/// What a limit leaves to these jobs above idle, watts, where all others give way as below any limit: at their lowest
/// setting, or stopped. `None` while some power is not known.
fn left_w(input: PlanningInput<'_>, jobs: &[JobKey], bound: &Bound) -> Option<f64> {
    let mut left_w =
        bound.limit_w - baseline_w(input, bound.shares(input.state), std::iter::empty());
    for (key, job) in input.state.running() {
        let State::Running { on, .. } = &job.state else { continue };
        // They have the order of the promises.
        if jobs.binary_search(&key).is_ok() || job.facts.can_stop {
            continue;
        }
        let here = on.by_node.first()?;
        let node = input.state.node(here.node);
        let gpus = JobGpus::on(input, job, &node.facts.gpu_type, on);
        let gpu_w = least_gpu_w(input, gpus) - idle_w(input, node);
        left_w -= bound.part_of(on) * f64::from(gpus.gpus) * gpu_w.max(0.0);
    }
    left_w.is_finite().then_some(left_w)
}

impl<P: PolicyHandle> Controller<P> {
    /// Puts the promises of jobs during events in force. Returns whether a plan may differ.
    pub fn set_event_promises(&mut self, promises: Promises) -> bool {
        let differ = *self.limits.promises != promises;
        if differ {
            self.limits.promises = Arc::new(promises);
        }
        differ
    }
}
