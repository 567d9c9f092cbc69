//! Jobs whose owners let them wait do so while the grid is dirty: one rule for every policy.
//!
//! A job that declares slack may start later, or pause at an epoch's end, while the grid's carbon
//! intensity is above the quantile [`CLEAN_SHARE`] of what is expected of the next day, and only if
//! it is expected to fall to that before the job's patience ends. Patience is the slack less all that
//! the job has waited so far, for whatever reason; and where it has a deadline, what is left of it
//! once the rest of the work, with a quarter to spare, is taken off; where the policy, a price of energy
//! or a power limit chooses settings, the rest of the work at the slowest that there is. A job with a
//! deadline of which nobody knows how long it may take never waits. Where nothing is known of the grid, or nothing new has
//! been heard of it for a day, nobody waits: a signal that does not come holds nothing up.
//!
//! Source: suspending above a quantile of the day's intensities is Wait Awhile (Wiesner et al.,
//! Middleware 2021) with declared bounds; the quantile is our own choice. Waiting always costs
//! completion time: how much is told in every outcome.

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

/// The share of the next day's instants that count as clean.
const CLEAN_SHARE: f64 = 0.6;
/// A running job pauses only for an intensity so much above a clean one: pausing costs a restart.
const WORTH_PAUSING: f64 = 1.1;
/// What is kept in hand of a deadline: a share of the time the rest of the work takes.
const TO_SPARE: f64 = 0.25;
/// A job whose epoch began no longer ago than this is at an epoch's end, as far as pausing goes.
const AT_EPOCHS_END: Duration = Duration::from_secs(60);
/// A job that is done so soon is not paused.
const NEARLY_DONE: Duration = Duration::from_secs(900);

/// Who waits for a cleaner grid, and until when at most.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Deferrals {
    /// Queued jobs that are not to start yet.
    pub waiting: BTreeMap<JobKey, Timestamp>,
    /// Running jobs that are to pause now.
    pub pausing: BTreeMap<JobKey, Timestamp>,
    /// When to look again.
    pub again_at: Option<Timestamp>,
    now: f64,
    clean: f64,
}

impl Deferrals {
    /// Who waits now under this policy.
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
                State::Running { .. } if grid.now >= WORTH_PAUSING * found.clean => {
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

    /// Whether nobody waits and nobody is to be looked at.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.pausing.is_empty() && self.again_at.is_none()
    }

    fn look_at(&mut self, at: Timestamp) {
        self.again_at = Some(self.again_at.map_or(at, |sooner| sooner.min(at)));
    }

    /// Pauses those who are to, whatever the plan says of them.
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

    /// Why a job waits, where it does.
    #[must_use]
    pub fn reason(&self, job: JobKey) -> Option<Reason> {
        let until = *self.waiting.get(&job)?;
        Some(Reason::Deferred { now: self.now, below: self.clean, until })
    }
}

/// The intensity up to which an instant of the next day counts as clean.
fn clean(grid: &GridForecast) -> f64 {
    let mut expected: Vec<f64> = grid.expected.iter().map(|(_, g)| *g).collect();
    expected.sort_by(f64::total_cmp);
    let rank = (expected.len() as f64 * CLEAN_SHARE).ceil() as usize;
    // Nothing expected: every instant is as clean as another.
    expected.get(rank.saturating_sub(1)).copied().unwrap_or(f64::INFINITY)
}

fn is_cleaner_before(grid: &GridForecast, clean: f64, now: Timestamp, until: Timestamp) -> bool {
    grid.expected.iter().any(|(at, g)| *at > now && *at < until && *g <= clean)
}

/// How fast jobs go once they run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// As the site sets its cards.
    Usual,
    /// As slowly as anything on their menus, at worst.
    OnTheMenu,
    /// At a setting that was chosen for good and that no menu need have.
    Unknown,
}

impl Pace {
    fn under(policy: &dyn Policy, input: PlanningInput<'_>) -> Self {
        let sets = policy.capabilities().sets_cards
            || input.limits.price_sets_clocks
            || input.limits.power_max.is_some();
        match PowerEstimate::under(policy) {
            PowerEstimate::Fixed => Self::Unknown,
            PowerEstimate::Settings | PowerEstimate::Sizes if sets => Self::OnTheMenu,
            PowerEstimate::Settings | PowerEstimate::Sizes => Self::Usual,
        }
    }

    /// How many times as long as usual a job on so many GPUs takes at worst; `None` where nobody knows.
    fn times_as_long(self, job: &Job, gpus: u32) -> Option<f64> {
        match self {
            Self::Usual => Some(1.0),
            Self::Unknown => None,
            Self::OnTheMenu => {
                let menu = job.menu.as_deref()?;
                let usual = menu.choice(gpus, GpuSetting::DEFAULT)?.steps_per_s;
                let speeds = menu.with_gpus(gpus).iter().map(|choice| choice.steps_per_s);
                let slowest = speeds.reduce(f64::min)?;
                Some((usual / slowest).max(1.0))
            }
        }
    }
}

/// Until when a job may wait, if nothing more is done for it before; `None` where it may not at all.
fn patience(input: PlanningInput<'_>, pace: Pace, job: &Job) -> Option<Timestamp> {
    let slack = job.facts.slack?;
    let by_slack = job.facts.submitted_at + job.run_time(input.now()) + slack;
    let Some(deadline) = job.facts.deadline else { return Some(by_slack) };
    let gpus = job.facts.request.min;
    let node = input.state.nodes().iter().map(|node| node.facts.gpus).max().unwrap_or(1).max(1);
    let left = remaining_alone(input.now(), job, gpus, gpus.div_ceil(node))?;
    let longest = left.mul_f64(pace.times_as_long(job, gpus)?);
    let needs = longest.mul_f64(1.0 + TO_SPARE) + restart(gpus);
    Some(by_slack.min(deadline - needs))
}

/// When a running job next ends an epoch: now, if it has just ended one, or says nothing of them.
/// `None` where it is not to be paused: it cannot be, or is nearly done.
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
    let said = job.progress.and_then(|p| Some((p, p.steps_per_epoch?, p.steps_per_s?)));
    let Some((progress, epoch, rate)) = said.filter(|(_, epoch, rate)| *epoch > 0 && *rate > 0.0)
    else {
        return Some(input.now());
    };
    let ahead = input.now().since(progress.at).as_secs_f64() * rate;
    let into_s = ((progress.step as f64 + ahead) % epoch as f64) / rate;
    let epoch_s = epoch as f64 / rate;
    // An epoch shorter than what counts as its end is always at its end.
    if into_s <= AT_EPOCHS_END.as_secs_f64() || epoch_s <= AT_EPOCHS_END.as_secs_f64() {
        return Some(input.now());
    }
    Some(input.now() + Duration::from_secs_f64((epoch_s - into_s).clamp(1.0, 1e9)))
}
