//! Carbon deferral: jobs with slack wait while the carbon intensity is high, under every policy.
//!
//! A job that declares slack starts later, or pauses at the end of an epoch, while the carbon intensity
//! is above the quantile [`CLEAN_SHARE`] of the next day's forecast. The intensity must be forecast to
//! fall to this quantile before the job's latest start.
//!
//! The latest start is bounded by the slack less the time the job has waited so far, for any reason. If
//! the job has a deadline, it is also bounded by the deadline less 1.25 times the remaining run time. If
//! the policy, an energy price or a power limit sets clocks or caps, the remaining run time is that at
//! the slowest operating point. A job with a deadline and an unknown run time is not deferred. Without a
//! forecast less than a day old, no job is deferred.
//!
//! Source: suspension above a quantile of the day's intensities is Wait Awhile (Wiesner et al.,
//! Middleware 2021), here with declared bounds and our own quantile. Deferral increases completion time;
//! every outcome reports the deferred time.

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::job::GpuSetting;

use crate::allocation::settling::restart_cost;
use crate::plan::capabilities::Capabilities;
use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{Decision, Plan};
use crate::power::budget::GridForecast;
use crate::power::model::PowerEstimate;
use crate::state::gpu_set::JobKey;
use crate::state::job::{Job, State};
use crate::state::job_forecast::remaining_alone;
use wattle_common::time::{scaled, span_s};

/// Quantile of the next day's forecast up to which the intensity counts as clean.
const CLEAN_SHARE: f64 = 0.6;
/// Factor above the clean intensity from which running jobs pause, because pausing costs a restart.
const WORTH_PAUSING: f64 = 1.1;
/// Safety margin before a deadline, as a share of the remaining run time.
const DEADLINE_MARGIN: f64 = 0.25;
/// Time after the start of an epoch within which a job may still pause as at the epoch's end.
const EPOCH_END_TOLERANCE: Duration = Duration::from_secs(60);
/// Remaining run time below which a job does not pause.
const NEARLY_DONE: Duration = Duration::from_secs(900);

/// Jobs deferred to a cleaner grid, each with its latest start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Deferrals {
    /// Queued jobs that do not start yet.
    pub waiting: BTreeMap<JobKey, Timestamp>,
    /// Running jobs that pause now.
    pub pausing: BTreeMap<JobKey, Timestamp>,
    /// Time of the next evaluation.
    pub again_at: Option<Timestamp>,
    now: f64,
    clean: f64,
}

impl Deferrals {
    /// The jobs deferred now under this policy.
    #[must_use]
    pub fn of(policy: Capabilities, input: PlanningInput<'_>) -> Self {
        let mut found = Self::default();
        let Some(grid) = input.limits.grid.as_deref().filter(|grid| input.now() < grid.until)
        else {
            return found;
        };
        found.clean = clean(grid);
        found.now = grid.now;
        if grid.now <= found.clean {
            return found;
        }
        let pace = Pace::under(policy, input);
        for (key, job) in input.state.queue().chain(input.state.running()) {
            let Some(until) = latest_start(input, pace, job) else { continue };
            if input.now() >= until || !is_cleaner_before(grid, found.clean, input.now(), until) {
                continue;
            }
            match &job.state {
                State::Queued => {
                    found.waiting.insert(key, until);
                    found.evaluate_at(until);
                }
                State::Running { .. } if grid.now >= WORTH_PAUSING * found.clean => {
                    match epoch_end(input, job) {
                        Some(at) if at > input.now() => found.evaluate_at(at),
                        Some(_) => {
                            found.pausing.insert(key, until);
                        }
                        None => {}
                    }
                }
                State::Running { .. } | State::Stopping { .. } => {}
            }
        }
        found
    }

    /// Whether no job is deferred and no evaluation is due.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.pausing.is_empty() && self.again_at.is_none()
    }

    fn evaluate_at(&mut self, at: Timestamp) {
        self.again_at = Some(self.again_at.map_or(at, |sooner| sooner.min(at)));
    }

    /// Replaces the plan's decisions about pausing jobs by stops.
    pub(crate) fn pause(&self, plan: &mut Plan) {
        if !self.pausing.is_empty() {
            plan.decisions.retain(|decision| !self.pausing.contains_key(&decision.job()));
        }
        for (&job, &until) in &self.pausing {
            let reason = Reason::Deferred { now: self.now, below: self.clean, until };
            plan.decisions.push(Decision::Stop {
                job,
                next_gpus: None,
                next_gpu_type: None,
                reason,
            });
        }
        let again = [plan.again_at, self.again_at].into_iter().flatten().min();
        plan.again_at = again;
    }

    /// When a deferred job is expected to start: once the forecast permits it, at the latest by its latest start.
    #[must_use]
    pub(crate) fn expected_end(&self, input: PlanningInput<'_>, job: JobKey) -> Option<Timestamp> {
        let until = *self.waiting.get(&job)?;
        let expected = input.limits.grid.as_deref().map_or(&[][..], |grid| &grid.expected);
        let is_clean = |(at, g): &&(Timestamp, f64)| *at > input.now() && *g <= self.clean;
        let clean_at = expected.iter().find(is_clean).map(|(at, _)| *at);
        Some(clean_at.map_or(until, |at| at.min(until)))
    }

    /// Reason for deferring a queued job, if it is deferred.
    #[must_use]
    pub fn reason(&self, job: JobKey) -> Option<Reason> {
        let until = *self.waiting.get(&job)?;
        Some(Reason::Deferred { now: self.now, below: self.clean, until })
    }
}

/// Intensity up to which the grid counts as clean, g/kWh.
fn clean(grid: &GridForecast) -> f64 {
    let mut expected: Vec<f64> = grid.expected.iter().map(|(_, g)| *g).collect();
    expected.sort_by(f64::total_cmp);
    let rank = (expected.len() as f64 * CLEAN_SHARE).ceil() as usize;
    // Without forecast values every intensity counts as clean.
    expected.get(rank.saturating_sub(1)).copied().unwrap_or(f64::INFINITY)
}

fn is_cleaner_before(grid: &GridForecast, clean: f64, now: Timestamp, until: Timestamp) -> bool {
    grid.expected.iter().any(|(at, g)| *at > now && *at < until && *g <= clean)
}

/// Lower bound on the speed of jobs once they run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// The speed at the site's default setting.
    Default,
    /// The speed of the slowest operating point.
    SlowestPoint,
    /// Unknown: the policy fixes a setting that is not necessarily an operating point.
    Unknown,
}

impl Pace {
    fn under(policy: Capabilities, input: PlanningInput<'_>) -> Self {
        let sets =
            policy.sets_gpus || input.limits.price_sets_clocks || input.limits.is_power_limited();
        match PowerEstimate::under(policy) {
            PowerEstimate::Fixed => Self::Unknown,
            PowerEstimate::Settings | PowerEstimate::Sizes if sets => Self::SlowestPoint,
            PowerEstimate::Settings | PowerEstimate::Sizes => Self::Default,
        }
    }

    /// Largest run time of a job on this number of GPUs relative to the default setting; `None` if
    /// unknown.
    fn slowdown(self, job: &Job, gpus: u32) -> Option<f64> {
        match self {
            Self::Default => Some(1.0),
            Self::Unknown => None,
            Self::SlowestPoint => {
                let operating_points = job.operating_points.as_deref()?;
                let default = operating_points.point(gpus, GpuSetting::DEFAULT)?.steps_per_s;
                let speeds =
                    operating_points.with_gpus(gpus).iter().map(|choice| choice.steps_per_s);
                let slowest = speeds.reduce(f64::min)?;
                Some((default / slowest).max(1.0))
            }
        }
    }
}

/// Latest start of a job that does not run until then; `None` if it may not be deferred.
fn latest_start(input: PlanningInput<'_>, pace: Pace, job: &Job) -> Option<Timestamp> {
    let slack = job.facts.slack?;
    let by_slack = job.facts.submitted_at + job.run_time(input.now()) + slack;
    let Some(deadline) = job.facts.deadline else { return Some(by_slack) };
    let gpus = job.facts.request.min;
    let node = input.state.nodes().iter().map(|node| node.facts.gpus).max().unwrap_or(1).max(1);
    let left = remaining_alone(input.now(), job, gpus, gpus.div_ceil(node))?;
    let longest = scaled(left, pace.slowdown(job, gpus)?);
    let needed = scaled(longest, 1.0 + DEADLINE_MARGIN) + restart_cost(input, job, gpus);
    Some(by_slack.min(deadline - needed))
}

/// Next end of an epoch of a running job: now if an epoch has just ended or the job reports no epochs.
/// `None` if the job may not pause, because it cannot stop or is nearly done.
fn epoch_end(input: PlanningInput<'_>, job: &Job) -> Option<Timestamp> {
    let State::Running { on, since, trial: None, .. } = &job.state else { return None };
    let started = *since + restart_cost(input, job, on.gpu_count());
    if !job.facts.can_stop || input.now() < started {
        return None;
    }
    let left = remaining_alone(input.now(), job, on.gpu_count(), on.node_count());
    if left.is_some_and(|left| left <= NEARLY_DONE) {
        return None;
    }
    let progress = job.progress.and_then(|p| Some((p, p.steps_per_epoch?, p.steps_per_s?)));
    let Some((progress, epoch, rate)) =
        progress.filter(|(_, epoch, rate)| *epoch > 0 && *rate > 0.0)
    else {
        return Some(input.now());
    };
    let ahead = input.now().since(progress.at).as_secs_f64() * rate;
    let into_s = ((progress.step as f64 + ahead) % epoch as f64) / rate;
    let epoch_s = epoch as f64 / rate;
    // An epoch shorter than the tolerance is always at its end.
    if into_s <= EPOCH_END_TOLERANCE.as_secs_f64() || epoch_s <= EPOCH_END_TOLERANCE.as_secs_f64() {
        return Some(input.now());
    }
    Some(input.now() + span_s((epoch_s - into_s).clamp(1.0, 1e9)))
}
