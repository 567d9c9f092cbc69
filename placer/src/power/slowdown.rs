//! Control of the energy aim: the highest energy price at which jobs complete on average at most a given
//! share later than under a reference: the site's former scheduler, or the time aim.
//!
//! The mean completion time under the reference is not observable, so it is estimated. By Little's law the sum
//! of completion times equals the integral of the number of jobs in the system. The slowdown is therefore
//!
//! ```text
//! slowdown = integral of d dt / integral of (N - d) dt
//! ```
//!
//! where `N` is the number of jobs and `d` the delay that all jobs accrue per second relative to the reference.
//!
//! # Relative to a baseline
//! The [`Twin`] has the numbers of jobs of the baseline:
//!
//! ```text
//! d = Q - Q' + sum over running jobs of (1 - v / v'),    N - d = Q' + R'
//! ```
//!
//! with `Q` jobs in the queue, `Q'` in the twin's queue and `R'` running in the twin. `v / v'` is the predicted speed of a
//! job relative to its run in the twin. Over the life of a job the sum of `1 - v / v'` is its run time minus that in the
//! twin, so `d` integrates to the difference of completion times; unlike the difference of the numbers of running jobs,
//! it follows a change of speed at once. It is negative while jobs run faster than in the twin.
//!
//! # Relative to the time aim
//! `d` is estimated by a [`Shadow`]:
//!
//! * A running job accrues `1 - v / v0`: its speed over its greatest speed on the same GPUs without
//!   co-tenants, or on more GPUs where free GPUs would allow its request.
//! * The sum of what a job accrued is its **lead** under the time aim. A job whose lead exceeds its remaining
//!   run time would have completed. The GPUs that it still holds would be free. Queued jobs that fit them, and
//!   queued jobs that would have completed, accrue their full waiting time. In this way the estimate includes
//!   queueing delay.
//!
//! Speeds and remaining times are those of the surfaces, which the predictor corrects by measurements.
//! Co-location that shortens the queue counts as a loss of speed only, so the estimate is cautious.
//!
//! # Price
//! The price follows the ratio of accrued to permitted delay by the control law of the budgets
//! ([`crate::power::budget::PriceController`]), in the opposite direction: too much delay lowers the price. The
//! permitted delay is the bound's share of the time in the system, plus what was not used over the last [`HORIZON`].
//!
//! Where the jobs of each project are bounded, each project has the same sums and a price of its own. The least of
//! these prices is in force for all jobs.

mod hold;
mod shadow;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::aim::AimBound;
use wattle_common::messages::{AIM_PROJECTS_MAX, AimProject, AimStatus};

use crate::plan::capabilities::PriceRange;
use crate::state::cluster::ClusterState;
use crate::state::job::Job;
use crate::twin::Twin;

use hold::{Accrual, Hold};
use shadow::Shadow;

/// Time over which the bound holds: past delay is forgotten with this time constant. The price crosses its
/// range in a twenty-fourth of it.
pub const HORIZON: Duration = Duration::from_secs(86_400);
/// Time between two control steps.
pub const STEP: Duration = Duration::from_secs(60);
/// Highest position of the price. Position 1 is above the range and is left to budgets.
const POSITION_MAX: f64 = 0.999;
/// The part of the policy's price range, on its logarithmic scale, that the aim uses. At its end a job's
/// energy costs about four times its time, so that settings are close to those of least energy. Above it the
/// order of jobs would hardly depend on their completion times.
const RANGE_USED: f64 = 0.65;
/// How far the price of a bound that does not decide may be above the one in force, of the range.
const LEAD: f64 = 0.05;
/// Job-seconds below which a project without jobs is forgotten.
const FORGOTTEN_S: f64 = 60.0;

/// Controller of the energy aim.
#[derive(Clone, Debug)]
pub struct SlowdownController {
    bound: AimBound,
    shadow: Shadow,
    stepped_at: Timestamp,
    /// Position of the price in its range, 0 to 1: the least that a bound permits.
    position: f64,
    /// The bound on all jobs.
    all: Hold,
    /// The bounds on the jobs of each project, where projects are bounded.
    projects: BTreeMap<Arc<str>, Hold>,
}

impl SlowdownController {
    /// A controller that holds this bound. It continues from a persisted state, or starts at price 0.
    #[must_use]
    pub fn new(bound: AimBound, persisted: Option<&AimStatus>, now: Timestamp) -> Self {
        let persisted = persisted.filter(|persisted| persisted.baseline == bound.baseline);
        let all = persisted.map_or((0.0, 0.0, 0.0), |p| (p.present_s, p.delay_s, p.price));
        let project = bound.project.filter(|_| bound.baseline.is_some());
        let stored = persisted.into_iter().flat_map(|persisted| &persisted.projects);
        let hold = |of: &AimProject| {
            let hold = Hold::new(project?, of.present_s, of.delay_s, of.price);
            Some((Arc::from(of.project.as_str()), hold))
        };
        let all = Hold::new(bound.share, all.0, all.1, all.2);
        Self {
            bound: AimBound { project, ..bound },
            shadow: Shadow::default(),
            stepped_at: now,
            position: all.position(),
            all,
            projects: stored.take(AIM_PROJECTS_MAX).filter_map(hold).collect(),
        }
    }

    /// The state to persist; `policy_price` is the price in force.
    #[must_use]
    pub fn status(&self, policy_price: f64) -> AimStatus {
        let project = |(project, hold): (&Arc<str>, &Hold)| AimProject {
            project: project.to_string(),
            present_s: hold.present_s,
            delay_s: hold.delay_s,
            price: hold.position(),
        };
        AimStatus {
            at_us: self.stepped_at,
            baseline: self.bound.baseline,
            max_slowdown: self.bound.share,
            present_s: self.all.present_s,
            delay_s: self.all.delay_s,
            price: self.position(),
            policy_price,
            max_project_slowdown: self.bound.project,
            projects: self.projects.iter().map(project).collect(),
        }
    }

    /// Position of the price in its range, 0 to 1.
    #[must_use]
    pub const fn position(&self) -> f64 {
        self.position
    }

    /// When the next step is due.
    #[must_use]
    pub fn next_step(&self) -> Timestamp {
        self.stepped_at + STEP
    }

    /// Performs a control step and returns the price, in the range of the policy's prices. `twin` is the cluster under
    /// the baseline, if the bound refers to one.
    pub fn step(&mut self, state: &ClusterState, twin: Option<&Twin>, prices: PriceRange) -> f64 {
        let range = PriceRange { most: prices.at(RANGE_USED), ..prices };
        let now = state.now();
        let past = now.since(self.stepped_at);
        self.stepped_at = now;
        // No steps are taken while no job is present: the jobs did not wait through all of a longer span.
        let span = past.min(2 * STEP);
        let twin = twin.filter(|_| self.bound.baseline.is_some());
        let all = match twin {
            Some(twin) => relative_to(twin, state),
            None => {
                let jobs = state.queue_len() + state.running().count();
                let delay = self.shadow.advance(state, span.as_secs_f64());
                Accrual { jobs: jobs as f64, delay }
            }
        };
        let published = self.all.step(all, past, span);
        self.position = self.all.position();
        let Some(mut published) = published else { return range.at(self.position) };
        if let (Some(twin), Some(bound)) = (twin, self.bound.project) {
            let mut now = by_project(twin, state);
            for project in now.keys() {
                let first = || Hold::new(bound, 0.0, 0.0, self.position);
                self.projects.entry(Arc::clone(project)).or_insert_with(first);
            }
            for (project, hold) in &mut self.projects {
                // A project without jobs cannot become earlier, so its bound does not decide.
                let own = hold.step(now.remove(project).unwrap_or_default(), past, span);
                let Some(own) = own else { continue };
                published = published.min(own);
                self.position = self.position.min(hold.position());
            }
            self.projects.retain(|_, hold| hold.present_s >= FORGOTTEN_S);
            self.forget_small_projects();
            let holds = self.projects.values_mut().chain([&mut self.all]);
            holds.for_each(|hold| hold.follow(self.position, LEAD));
        }
        range.at(published)
    }

    /// Keeps the projects with the most job-seconds.
    fn forget_small_projects(&mut self) {
        while self.projects.len() > AIM_PROJECTS_MAX {
            let least = self.projects.iter().min_by(|a, b| a.1.present_s.total_cmp(&b.1.present_s));
            let Some(least) = least.map(|(project, _)| Arc::clone(project)) else { return };
            self.projects.remove(&least);
        }
    }
}

/// The jobs of the cluster relative to the twin.
fn relative_to(twin: &Twin, state: &ClusterState) -> Accrual {
    let (queued, running) = twin.presence();
    let speeds = state.running().map(|(_, job)| twin.relative_speed(&job.facts.id).unwrap_or(1.0));
    let lost: f64 = speeds.map(|speed| 1.0 - speed).sum();
    let delay = state.queue_len() as f64 - queued as f64 + lost;
    Accrual { jobs: (queued + running) as f64 + delay, delay }
}

/// The same of each project, or user of jobs without a project.
fn by_project(twin: &Twin, state: &ClusterState) -> BTreeMap<Arc<str>, Accrual> {
    let mut projects: BTreeMap<Arc<str>, Accrual> = BTreeMap::new();
    let mut add = |job: &Job, in_twin: f64, delay: f64| {
        if let Some(project) = job.facts.project_or_user() {
            let sum = projects.entry(Arc::clone(project)).or_default();
            sum.jobs += in_twin + delay;
            sum.delay += delay;
        }
    };
    state.queue().for_each(|(_, job)| add(job, 0.0, 1.0));
    for (_, job) in state.running() {
        add(job, 0.0, 1.0 - twin.relative_speed(&job.facts.id).unwrap_or(1.0));
    }
    for job in twin.present_jobs() {
        add(job, 1.0, if job.state.gpus().is_some() { 0.0 } else { -1.0 });
    }
    projects
}
