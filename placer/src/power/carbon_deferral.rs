//! Carbon deferral: jobs with declared slack wait while the grid is dirty, under every policy.
//!
//! A job with slack may start later, or pause at the end of an epoch, while the grid's carbon intensity exceeds the
//! quantile [`CLEAN_QUANTILE`] of the next day's forecast, if the forecast falls to that quantile before the job's
//! patience ends. Patience is the slack less all time that the job has waited so far for any reason. For a job with
//! a deadline it also ends when the rest of the work, with a quarter in reserve, fits the time to the deadline; if
//! the policy, an energy price or a power limit chooses settings, the rest of the work counts at the slowest
//! setting. A job with a deadline and an unknown duration is never deferred. Without a grid signal, or with one
//! older than a day, no job is deferred: a missing signal delays nothing.
//!
//! Source: suspending above a quantile of the day's intensities is Wait Awhile (Wiesner et al., Middleware 2021)
//! with declared bounds; the quantile is our own choice. Deferral always costs completion time, which every result
//! reports.

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::job::GpuSetting;

use crate::allocation::restart_cost::restart;
use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::plan::{Decision, Plan};
use crate::policies::Policy;
use crate::power::budget::GridForecast;
use crate::power::model::PowerEstimate;
use crate::state::gpu_set::JobKey;
use crate::state::job::{Job, State};
use crate::state::job_forecast::remaining_alone;

/// The quantile of the next day's intensities up to which the grid counts as clean.
const CLEAN_QUANTILE: f64 = 0.6;
/// A running job pauses only above this multiple of the clean intensity: pausing costs a restart.
const PAUSE_RATIO: f64 = 1.1;
/// The reserve before a deadline, as a share of the time for the rest of the work.
const DEADLINE_RESERVE: f64 = 0.25;
/// A job whose epoch began at most this long ago counts as at the end of an epoch.
const EPOCH_END_TOLERANCE: Duration = Duration::from_secs(60);
/// A job with at most this remaining time is not paused.
const NEARLY_DONE: Duration = Duration::from_secs(900);

/// The jobs that wait for a cleaner grid, each with the end of its patience.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Deferrals {
    /// Queued jobs that do not start yet.
    pub waiting: BTreeMap<JobKey, Timestamp>,
    /// Running jobs that pause now.
    pub pausing: BTreeMap<JobKey, Timestamp>,
    /// When the next job may change.
    pub again_at: Option<Timestamp>,
    now: f64,
    clean: f64,
}

impl Deferrals {
    /// The deferrals now under this policy.
    #[must_use]
    pub fn of(policy: &dyn Policy, input: PlanningInput<'_>) -> Self {
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
            let Some(until) = patience(input, pace, job) else { continue };
            if input.now() >= until || !is_cleaner_before(grid, found.clean, input.now(), until) {
                continue;
            }
            match &job.state {
                State::Queued => {
                    found.waiting.insert(key, until);
                    found.look_at(until);
                }
                State::Running { .. } if grid.now >= PAUSE_RATIO * found.clean => {
                    match epochs_end(input, job) {
                        Some(at) if at > input.now() => found.look_at(at),
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

    /// Whether no job waits and none will.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.pausing.is_empty() && self.again_at.is_none()
    }

    fn look_at(&mut self, at: Timestamp) {
        self.again_at = Some(self.again_at.map_or(at, |sooner| sooner.min(at)));
    }

    /// Pauses jobs, overriding the plan.
    pub(crate) fn add_to(&self, plan: &mut Plan) {
        if !self.pausing.is_empty() {
            plan.decisions.retain(|decision| !self.pausing.contains_key(&decision.job()));
        }
        for (&job, &until) in &self.pausing {
            let reason = Reason::Deferred { now: self.now, below: self.clean, until };
            plan.decisions.push(Decision::Stop { job, next_gpus: None, next_kind: None, reason });
        }
        let again = [plan.again_at, self.again_at].into_iter().flatten().min();
        plan.again_at = again;
    }

    /// Why a job waits, if it does.
    #[must_use]
    pub fn reason(&self, job: JobKey) -> Option<Reason> {
        let until = *self.waiting.get(&job)?;
        Some(Reason::Deferred { now: self.now, below: self.clean, until })
    }
}

/// The intensity up to which the grid counts as clean.
fn clean(grid: &GridForecast) -> f64 {
    let mut expected: Vec<f64> = grid.expected.iter().map(|(_, g)| *g).collect();
    expected.sort_by(f64::total_cmp);
    let rank = (expected.len() as f64 * CLEAN_QUANTILE).ceil() as usize;
    // Without a forecast every instant counts as clean.
    expected.get(rank.saturating_sub(1)).copied().unwrap_or(f64::INFINITY)
}

fn is_cleaner_before(grid: &GridForecast, clean: f64, now: Timestamp, until: Timestamp) -> bool {
    grid.expected.iter().any(|(at, g)| *at > now && *at < until && *g <= clean)
}

/// The slowest speed of a job once it runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// At the default setting.
    Default,
    /// At the slowest of its operating points.
    SlowestPoint,
    /// At a fixed setting that no operating point need have.
    Unknown,
}

impl Pace {
    fn under(policy: &dyn Policy, input: PlanningInput<'_>) -> Self {
        let sets = policy.capabilities().sets_cards
            || input.limits.price_sets_clocks
            || input.limits.power_max.is_some();
        match PowerEstimate::under(policy) {
            PowerEstimate::Fixed => Self::Unknown,
            PowerEstimate::Settings | PowerEstimate::Sizes if sets => Self::SlowestPoint,
            PowerEstimate::Settings | PowerEstimate::Sizes => Self::Default,
        }
    }

    /// The greatest factor by which the run time exceeds that at the default setting; `None` if unknown.
    fn slowdown_max(self, job: &Job, gpus: u32) -> Option<f64> {
        match self {
            Self::Default => Some(1.0),
            Self::Unknown => None,
            Self::SlowestPoint => {
                let points = job.menu.as_deref()?;
                let at_default = points.choice(gpus, GpuSetting::DEFAULT)?.steps_per_s;
                let speeds = points.with_gpus(gpus).iter().map(|point| point.steps_per_s);
                let slowest = speeds.reduce(f64::min)?;
                Some((at_default / slowest).max(1.0))
            }
        }
    }
}

/// The end of a job's patience; `None` if it may not wait.
fn patience(input: PlanningInput<'_>, pace: Pace, job: &Job) -> Option<Timestamp> {
    let slack = job.facts.slack?;
    let by_slack = job.facts.submitted_at + job.run_time(input.now()) + slack;
    let Some(deadline) = job.facts.deadline else { return Some(by_slack) };
    let gpus = job.facts.request.min;
    let node = input.state.nodes().iter().map(|node| node.facts.gpus).max().unwrap_or(1).max(1);
    let left = remaining_alone(input.now(), job, gpus, gpus.div_ceil(node))?;
    let longest = left.mul_f64(pace.slowdown_max(job, gpus)?);
    let needs = longest.mul_f64(1.0 + DEADLINE_RESERVE) + restart(gpus);
    Some(by_slack.min(deadline - needs))
}

/// When a running job next ends an epoch: now, if it has just ended one or reports none. `None` if it cannot be
/// paused or is nearly done.
fn epochs_end(input: PlanningInput<'_>, job: &Job) -> Option<Timestamp> {
    let State::Running { on, since, observation: None, .. } = &job.state else { return None };
    let started = *since + restart(on.gpu_count());
    if !job.facts.can_stop || input.now() < started {
        return None;
    }
    let left = remaining_alone(input.now(), job, on.gpu_count(), on.node_count());
    if left.is_some_and(|left| left <= NEARLY_DONE) {
        return None;
    }
    let reported = job.progress.and_then(|p| Some((p, p.steps_per_epoch?, p.steps_per_s?)));
    let Some((progress, epoch, rate)) =
        reported.filter(|(_, epoch, rate)| *epoch > 0 && *rate > 0.0)
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
    Some(input.now() + Duration::from_secs_f64((epoch_s - into_s).clamp(1.0, 1e9)))
}
