//! The jobs and GPUs of a cluster as an input of the forward schedule.

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::job::GpuSetting;
use wattle_common::messages::{ExpectedKind, NotExpected};
use wattle_common::time::span_s;

use super::forward::{Held, QueueDiscipline, Run, Waiting, forward};
use super::free_gpus::{FreeGpus, Part};
use crate::allocation::feasibility::{same_shape, suits};
use crate::pipeline::{Stage, StageReports};
use crate::plan::capabilities::{Capabilities, Service};
use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::state::cluster::ClusterState;
use crate::state::gpu_set::{JobKey, bits};
use crate::state::job::{Job, State};
use crate::state::job_forecast::{remaining_work, running_rate};
use crate::state::node::{NodeFacts, Wakefulness};
use crate::state::operating_points::{OperatingPoint, OperatingPoints};

/// Rest of a job that is stopping, or past its expected end: as under the policy `backfill`.
const OVERDUE: Duration = Duration::from_secs(30);
/// Run time of a job for which nothing is known, so that the jobs behind it have a start.
const RUN_TIME_PRIOR: Duration = Duration::from_hours(1);
/// Bounds of the mean speed of running jobs relative to the default setting.
const PACE: (f64, f64) = (0.2, 5.0);
/// The share of a job's age that is subtracted from its rest in the order of an elastic policy, as in the policy `wattle`.
const AGE_SHARE: f64 = 0.8;

/// The expected times of a job.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scheduled {
    pub(super) job: JobKey,
    /// Its start, if it waits.
    pub(super) start: Option<Timestamp>,
    /// Its end, with the kind of the forecast.
    pub(super) end: Option<(Timestamp, ExpectedKind)>,
    pub(super) unknown: Option<NotExpected>,
}

/// A run time, and how it is known.
#[derive(Clone, Copy, Debug)]
struct Rest {
    left: Duration,
    basis: Basis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Basis {
    /// The job or its owner states its length.
    Stated,
    /// Its length is estimated from past jobs.
    PastJobs,
    /// Nothing is known.
    Nothing,
}

impl Rest {
    /// The kind of a forecast of the end; `None` if the run time is not predicted.
    fn kind(self, of_known: ExpectedKind) -> Option<ExpectedKind> {
        match self.basis {
            Basis::Stated => Some(of_known),
            Basis::PastJobs => Some(ExpectedKind::EndEstimated),
            Basis::Nothing => None,
        }
    }
}

/// The shapes of the nodes, each with the facts of its first node.
struct Shapes<'a> {
    facts: Vec<&'a NodeFacts>,
}

/// Another place of a job than in the state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Elsewhere {
    /// It holds the GPUs that it has in the state until this instant, and ends then.
    Holds { until: Timestamp },
    /// It holds no GPUs and is the first of the queue, with this number of GPUs and this run time.
    First { gpus: u32, run_time: Duration },
    /// It is stopping, and returns to the queue.
    Returns,
}

/// The settings of all jobs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Settings {
    /// Those of the plan. Queued jobs get the mean speed of the running ones relative to the default setting.
    Planned,
    /// Those that pay at this price of energy, s/J; at 0 the default.
    Priced(f64),
    /// Those of the plan, with which each job runs until its time limit.
    Limits,
}

/// The expected times of each job that is present; `instead`: a job that is elsewhere than in the state.
pub(super) fn scheduled(
    input: PlanningInput<'_>,
    can: Capabilities,
    reports: &StageReports,
    instead: Option<(JobKey, Elsewhere)>,
    settings: Settings,
) -> Vec<Scheduled> {
    let (state, now) = (input.state, input.now());
    let elsewhere = |key| instead.filter(|(job, _)| *job == key).map(|(_, place)| place);
    let returning = |key, job: &Job| match elsewhere(key) {
        None => returns(job),
        Some(place) => place == Elsewhere::Returns,
    };
    let mut scheduled = Vec::with_capacity(state.job_count());
    let mut ends: BTreeMap<JobKey, (Timestamp, Timestamp)> = BTreeMap::new();
    for (key, job) in state.running() {
        if let Some(Elsewhere::First { .. }) = elsewhere(key) {
            ends.insert(key, (now, now));
            continue;
        }
        let by_limit = || {
            let left = limit_end(can, job, now, now + OVERDUE).since(now);
            Rest { left, basis: Basis::Stated }
        };
        let rest = match settings {
            Settings::Limits => by_limit(),
            Settings::Planned | Settings::Priced(_) => running_rest(state, job, settings),
        };
        let holds = match elsewhere(key) {
            Some(Elsewhere::Holds { until }) => Some((until, Some(ExpectedKind::EndRunning))),
            _ => None,
        };
        let (end, end_kind) = holds.unwrap_or_else(|| match &job.state {
            State::Running { .. } => {
                let end = now + rest.left.max(Duration::from_secs(1));
                (end, rest.kind(ExpectedKind::EndRunning))
            }
            State::Stopping { .. } | State::Queued => (now + OVERDUE, None),
        });
        ends.insert(key, (end, limit_end(can, job, now, end)));
        let is_running = matches!(job.state, State::Running { .. });
        if returning(key, job) {
            continue;
        }
        scheduled.push(Scheduled {
            job: key,
            start: None,
            end: end_kind.map(|kind| (end, kind)),
            unknown: (is_running && end_kind.is_none()).then_some(NotExpected::RunTime),
        });
    }
    let (shapes, free, held) = gpus(state, &ends);
    let speed = QueuedSpeed { pace: pace(state), settings, can };
    let mut waiting = Vec::new();
    let mut of_waiting = Vec::new();
    if let Some((key, Elsewhere::First { gpus, run_time })) = instead
        && let Some(job) = state.job(key)
    {
        let rest = Rest { left: run_time, basis: Basis::Stated };
        waiting.push(Waiting {
            gpus,
            shapes: shapes.suiting(job),
            not_before: now,
            run_times: vec![run_time; shapes.facts.len()],
            limit: limit(can, job),
        });
        of_waiting.push((key, vec![rest; shapes.facts.len()]));
    }
    for (key, job) in queue(can, state, speed, returning) {
        if elsewhere(key).is_some_and(|place| place != Elsewhere::Returns) {
            continue;
        }
        if let Some(unknown) = held_back(reports, key) {
            scheduled.push(Scheduled { job: key, start: None, end: None, unknown: Some(unknown) });
            continue;
        }
        let suited = shapes.suiting(job);
        if suited.is_empty() {
            let unknown = Some(NotExpected::NoGpuType);
            scheduled.push(Scheduled { job: key, start: None, end: None, unknown });
            continue;
        }
        let rests =
            shapes.facts.iter().map(|facts| queued_rest(state, job, &facts.gpu_type, speed));
        let rests: Vec<Rest> = rests.collect();
        waiting.push(Waiting {
            gpus: size(job),
            shapes: suited,
            not_before: not_before(input, reports, key, job),
            run_times: rests.iter().map(|rest| rest.left).collect(),
            limit: limit(can, job),
        });
        of_waiting.push((key, rests));
    }
    let order = if can.serves == Service::InOrder {
        QueueDiscipline::Strict
    } else {
        QueueDiscipline::Backfilled
    };
    // A job that the healthy GPUs cannot hold blocks a strict order, and nothing otherwise.
    let healthy = shapes.healthy(state);
    let runs = forward(now, order, free.clone(), held, &waiting);
    let can_stop = stoppable_gpus(state);
    for ((run, job), (key, rests)) in runs.into_iter().zip(&waiting).zip(of_waiting) {
        let Some(Run { mut start, mut end, on }) = run else {
            let fits = healthy.has_room(&job.shapes, job.gpus);
            let unknown = if fits { NotExpected::Behind } else { NotExpected::TooFewGpus };
            scheduled.push(Scheduled { job: key, start: None, end: None, unknown: Some(unknown) });
            continue;
        };
        let shape = on.first().map_or(0, |part| free.shape_of(part.node)) as usize;
        let patient_until = state.job(key).zip(rests.get(shape));
        let patient_until =
            patient_until.and_then(|(job, rest)| patience_ends(can, job, now, *rest));
        if let Some(at) = patient_until.filter(|at| *at < start && job.gpus <= can_stop) {
            end = at + end.since(start);
            start = at;
        }
        let kind = rests.get(shape).and_then(|rest| rest.kind(ExpectedKind::EndQueued));
        scheduled.push(Scheduled {
            job: key,
            start: Some(start),
            end: kind.map(|kind| (end, kind)),
            unknown: kind.is_none().then_some(NotExpected::RunTime),
        });
    }
    scheduled
}

impl Shapes<'_> {
    fn suiting(&self, job: &Job) -> Vec<u32> {
        let suited = self.facts.iter().enumerate().filter(|(_, facts)| suits(facts, job));
        suited.map(|(shape, _)| shape as u32).collect()
    }

    /// All healthy GPUs, free.
    fn healthy(&self, state: &ClusterState) -> FreeGpus {
        let mut free = FreeGpus::default();
        self.facts.iter().for_each(|facts| {
            free.add_shape(facts.gpus);
        });
        for node in state.nodes() {
            let shape = self.facts.iter().position(|facts| same_shape(facts, &node.facts));
            free.add_node(shape.unwrap_or(0) as u32, node.facts.healthy.count_ones());
        }
        free
    }
}

/// The shapes, the GPUs that are free now, and those that are held. The GPUs of a node that sleeps become free once it
/// has woken. A GPU with several jobs becomes free after the last of them.
fn gpus<'a>(
    state: &'a ClusterState,
    ends: &BTreeMap<JobKey, (Timestamp, Timestamp)>,
) -> (Shapes<'a>, FreeGpus, Vec<Held>) {
    let mut shapes = Shapes { facts: Vec::new() };
    let (mut free, mut held) = (FreeGpus::default(), Vec::new());
    for (index, node) in state.nodes().iter().enumerate() {
        let facts = &*node.facts;
        let known = shapes.facts.iter().position(|known| same_shape(known, facts));
        let shape = known.map_or_else(
            || {
                shapes.facts.push(facts);
                free.add_shape(facts.gpus)
            },
            |known| known as u32,
        );
        free.add_node(shape, node.free().count_ones());
        let node_at = index as u32;
        if node.wakefulness != Wakefulness::Awake {
            let at = state.now() + facts.watts.map_or(OVERDUE, |watts| watts.wakes_in);
            let part = Part { node: node_at, gpus: facts.healthy.count_ones() };
            held.push(Held { part, until: at, limit_at: at });
            continue;
        }
        let mut releases: BTreeMap<(Timestamp, Timestamp), u32> = BTreeMap::new();
        for gpu in bits(node.occupied & facts.healthy) {
            let tenants = node.tenants(gpu).iter().filter_map(|job| ends.get(job));
            let last = tenants.copied().reduce(|a, b| (a.0.max(b.0), a.1.max(b.1)));
            let soon = state.now() + OVERDUE;
            *releases.entry(last.unwrap_or((soon, soon))).or_default() += 1;
        }
        held.extend(releases.into_iter().map(|((until, limit_at), gpus)| Held {
            part: Part { node: node_at, gpus },
            until,
            limit_at,
        }));
    }
    (shapes, free, held)
}

/// Whether a job stops to continue on other GPUs.
fn returns(job: &Job) -> bool {
    matches!(job.state, State::Stopping { .. }) && job.next_gpus.is_some()
}

/// The queued jobs and those that return to the queue, in the order of service.
fn queue(
    can: Capabilities,
    state: &ClusterState,
    speed: QueuedSpeed,
    returning: impl Fn(JobKey, &Job) -> bool,
) -> Vec<(JobKey, &Job)> {
    let stopping = state.running().filter(|(key, job)| returning(*key, job));
    let mut queue: Vec<(JobKey, &Job)> = state.queue().chain(stopping).collect();
    queue.sort_by_key(|(_, job)| job.arrival);
    match can.serves {
        Service::InOrder => {}
        Service::ByLimits { .. } => {
            // As in the policy `backfill`; the order of arrival is kept.
            let priority = |job: &Job| (job.facts.priority, job.facts.site_priority);
            queue.sort_by_key(|(_, job)| std::cmp::Reverse(priority(job)));
        }
        Service::ShortestFirst { .. } => {
            let rank = |job: &Job| {
                let gpu_type = job.surface.as_ref().map_or("", |surface| &surface.gpu_type);
                let left_s = queued_rest(state, job, gpu_type, speed).left.as_secs_f64();
                let age_s = state.now().since(job.facts.submitted_at).as_secs_f64();
                let ms = ((left_s - AGE_SHARE * age_s) * 1e3) as i64;
                (std::cmp::Reverse(job.facts.priority), ms, job.arrival)
            };
            queue.sort_by_cached_key(|(_, job)| rank(job));
        }
    }
    // The plan has GPUs for a job that continues.
    queue.sort_by_key(|(_, job)| !returns(job));
    queue
}

/// Why a queued job has no expected start although GPUs for it become free.
fn held_back(reports: &StageReports, job: JobKey) -> Option<NotExpected> {
    match reports.why_held_back(job)? {
        // The limits of power hold what the budget sustains.
        (_, Reason::Paused { .. }) => Some(NotExpected::Budget),
        (Stage::Budget, Reason::LowestLimit { .. }) | (Stage::PowerLimits, _) => {
            Some(NotExpected::Power)
        }
        (Stage::Budget, _) => Some(NotExpected::Budget),
        (Stage::Accounts, _) => Some(NotExpected::Quota),
        _ => None,
    }
}

/// When a queued job may start.
fn not_before(
    input: PlanningInput<'_>,
    reports: &StageReports,
    key: JobKey,
    job: &Job,
) -> Timestamp {
    let deferred = reports.deferral.expected_end(input, key);
    let stopping = matches!(job.state, State::Stopping { .. }).then(|| input.now() + OVERDUE);
    deferred.into_iter().chain(stopping).fold(input.now(), Timestamp::max)
}

/// The number of GPUs that a queued job gets: those with which it continues, else the least that it requests.
fn size(job: &Job) -> u32 {
    job.next_gpus.unwrap_or(job.facts.request.min)
}

/// The time limit of a job under a policy that reads them.
fn limit(can: Capabilities, job: &Job) -> Option<Duration> {
    let Service::ByLimits { limit_default } = can.serves else { return None };
    Some(job.facts.time_limit.or(job.facts.duration_alone).unwrap_or(limit_default))
}

/// When a running job is expected to end by the policy.
fn limit_end(can: Capabilities, job: &Job, now: Timestamp, end: Timestamp) -> Timestamp {
    let by_limit = match &job.state {
        State::Running { since, .. } => limit(can, job).map(|limit| *since + limit),
        State::Queued | State::Stopping { .. } => None,
    };
    by_limit.map_or(end, |at| if at > now { at } else { now + OVERDUE })
}

/// Until when a job waits at most under a policy that stops others for it.
fn patience_ends(can: Capabilities, job: &Job, now: Timestamp, rest: Rest) -> Option<Timestamp> {
    let Service::ShortestFirst { patience, patience_s } = can.serves else { return None };
    let waited = now.since(job.facts.submitted_at).saturating_sub(job.run_time(now));
    let longest = span_s(patience * rest.left.as_secs_f64() + patience_s);
    Some(now + longest.saturating_sub(waited).max(OVERDUE))
}

/// Number of GPUs of running jobs that can stop.
fn stoppable_gpus(state: &ClusterState) -> u32 {
    let stoppable = state.running().filter(|(_, job)| job.facts.can_stop);
    stoppable.filter_map(|(_, job)| Some(job.state.gpus()?.gpu_count())).sum()
}

/// The mean speed of the running jobs relative to their size at the default setting without co-tenants.
fn pace(state: &ClusterState) -> f64 {
    let relative = state.running().filter_map(|(_, job)| {
        let gpus = job.state.gpus()?.gpu_count();
        let points = job.operating_points_on(state.gpu_type_of(job)?)?;
        let default = points.point(gpus, GpuSetting::DEFAULT)?.steps_per_s;
        let relative = running_rate(state, job)? / default;
        (relative.is_finite() && relative > 0.0).then_some(relative)
    });
    let (sum, count) = relative.fold((0.0, 0_u32), |(sum, count), one| (sum + one, count + 1));
    if count == 0 { 1.0 } else { (sum / f64::from(count)).clamp(PACE.0, PACE.1) }
}

/// When a running job is expected to end at its present rate.
pub(super) fn running_end(state: &ClusterState, job: &Job) -> Timestamp {
    state.now() + running_rest(state, job, Settings::Planned).left
}

/// The rest of a running job at these settings.
fn running_rest(state: &ClusterState, job: &Job, settings: Settings) -> Rest {
    let measured = job.progress.and_then(|progress| progress.steps_per_s);
    let at_present = running_rate(state, job).or(measured);
    let planned = || point_of(state, job, Settings::Planned);
    let relative = match settings {
        Settings::Planned | Settings::Limits => None,
        Settings::Priced(_) => point_of(state, job, settings)
            .zip(planned())
            .map(|(priced, planned)| priced.steps_per_s / planned.steps_per_s),
    };
    let rate = at_present.map(|rate| rate * relative.unwrap_or(1.0));
    rest(state, job, rate.filter(|rate| *rate > 0.0))
}

/// How fast queued jobs will run.
#[derive(Clone, Copy, Debug)]
struct QueuedSpeed {
    /// The mean speed of the running jobs relative to the default setting.
    pace: f64,
    settings: Settings,
    can: Capabilities,
}

/// The run time of a queued job on the GPUs of a type.
fn queued_rest(state: &ClusterState, job: &Job, gpu_type: &str, speed: QueuedSpeed) -> Rest {
    if let Some(left) = limit(speed.can, job).filter(|_| speed.settings == Settings::Limits) {
        return Rest { left, basis: Basis::Stated };
    }
    let points = job.operating_points_on(gpu_type);
    let point = points.and_then(|points| setting_at(points, size(job), speed.settings));
    let pace = if speed.settings == Settings::Planned { speed.pace } else { 1.0 };
    let rate = point.map(|point| point.steps_per_s * pace).filter(|rate| *rate > 0.0);
    rest(state, job, rate)
}

/// The operating point of a job at these settings, on the GPUs that it has or waits for: of a queued job by the
/// default setting where the plan sets it.
pub(super) fn point_of<'a>(
    state: &'a ClusterState,
    job: &'a Job,
    settings: Settings,
) -> Option<&'a OperatingPoint> {
    if let (State::Running { on, setting, .. }, Some(gpu_type)) =
        (&job.state, state.gpu_type_of(job))
    {
        let points = job.operating_points_on(gpu_type)?;
        return match settings {
            Settings::Planned | Settings::Limits => points.point(on.gpu_count(), *setting),
            Settings::Priced(_) => setting_at(points, on.gpu_count(), settings),
        };
    }
    let mut all = job.all_operating_points();
    setting_at(all.next()?, size(job), settings)
}

/// The operating point on this number of GPUs at which a step costs least in time and energy.
fn setting_at(points: &OperatingPoints, gpus: u32, settings: Settings) -> Option<&OperatingPoint> {
    let default = points.point(gpus, GpuSetting::DEFAULT);
    let Settings::Priced(price) = settings else { return default };
    if price <= 0.0 {
        return default;
    }
    let power_w = |point: &OperatingPoint| point.gpu_power_w * f64::from(point.gpus);
    let cost = |point: &OperatingPoint| (1.0 + price * power_w(point)) / point.steps_per_s;
    let all = points.with_gpus(gpus).iter();
    all.min_by(|a, b| cost(a).total_cmp(&cost(b)))
}

/// The rest of a job at a rate, steps per second.
fn rest(state: &ClusterState, job: &Job, rate: Option<f64>) -> Rest {
    if let Some((unit, rate)) = job.unit_rate().zip(rate) {
        let work = remaining_work(state, job, unit);
        let basis = match (work.is_known, state.work_history().is_empty()) {
            (true, _) => Basis::Stated,
            (false, false) => Basis::PastJobs,
            (false, true) => Basis::Nothing,
        };
        return Rest { left: span_s(work.left_s * unit / rate), basis };
    }
    let ran = job.run_time(state.now());
    if let Some(alone) = job.facts.duration_alone {
        return Rest { left: alone.saturating_sub(ran), basis: Basis::Stated };
    }
    let gpus = f64::from(size(job).max(1));
    match state.work_history().remaining_s(ran.as_secs_f64() * gpus) {
        Some(left_s) => Rest { left: span_s(left_s / gpus), basis: Basis::PastJobs },
        None => Rest { left: RUN_TIME_PRIOR, basis: Basis::Nothing },
    }
}
