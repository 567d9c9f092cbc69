//! When each job is expected to start and to end.
//!
//! The present plan is run forward ([`forward`]): running jobs end at their present rate, and queued jobs start in the
//! order in which the policy serves them, by first fit on the GPUs that become free. Assumed is that
//!
//! * no further job is submitted, none is cancelled, and no node changes, beside those that wake now;
//! * the predictions are true: a running job keeps its GPUs, setting and co-tenants, a queued one gets the least size
//!   that it requests, for itself, at the mean speed of the running jobs relative to the default setting;
//! * an elastic policy serves the shortest jobs first, less four fifths of their age, and stops others only for one that
//!   has waited for longer than the policy lets it ([`Service::ShortestFirst`](crate::policies::Service::ShortestFirst));
//! * a job that is deferred for a cleaner grid starts no earlier than the forecast of the intensity permits;
//! * a job that waits for a budget, a power limit or a quota has no expected start, and takes no GPUs of others.
//!
//! The errors of these assumptions are measured: when a job starts or ends, its earlier forecasts are compared with the
//! actual instant, and the [`errors`] give later forecasts their intervals. A forecast of a job is kept for this at its
//! first planning round, and then every [`KEPT_EVERY`] or less often, so that each job keeps at most [`KEPT_MAX`].
//!
//! The twin ([`crate::twin`]) runs whole planning rounds, 3 ms of processor time for each of 50,000 jobs (`docs/twin.md`).
//! A forecast starts every queued job again each time, so it has its own loop over numbers of free GPUs.
//!
//! The [`consequences`] of a decision follow from two forecasts, one of the plan and one with the job elsewhere. What the
//! jobs would use at other settings follows from some more ([`what_if`]).
//!
//! Beside these forecasts a second one may be followed whose lengths are the time limits of the jobs, as those of a
//! scheduler without predictions are ([`Expected::beside_limits`]).
//!
//! Forecasts decide nothing.

pub(crate) mod consequences;
mod errors;
mod forward;
mod free_gpus;
mod outlook;
mod what_if;

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::messages::{ExpectedStatus, ExpectedTimes};

use crate::pipeline::StageReports;
use crate::plan::capabilities::{Capabilities, Service};
use crate::plan::input::PlanningInput;
use crate::policies::{Backfill, Policy};
use crate::state::gpu_set::JobKey;
use crate::state::job::State;

use errors::Forecast;
pub use errors::{Errors, ForecastErrors, KINDS};
use outlook::{Scheduled, Settings, scheduled};
pub(crate) use what_if::what_if;

/// Least time between two forecasts: those of planning rounds that follow sooner are left out.
pub const EVERY: Duration = Duration::from_secs(10);
/// Time between two forecasts of a job that are kept for comparison; doubled when it has [`KEPT_MAX`].
const KEPT_EVERY: Duration = Duration::from_mins(10);
/// Most forecasts of a job that are kept.
const KEPT_MAX: usize = 16;

/// Capabilities of a scheduler that serves its queue by time limits.
fn backfilled(can: Capabilities) -> Capabilities {
    let serves = match can.serves {
        by_limits @ Service::ByLimits { .. } => by_limits,
        Service::InOrder | Service::ShortestFirst { .. } => {
            Backfill::default().capabilities().serves
        }
    };
    Capabilities { serves, ..can }
}

/// A forecast of a job that is kept until its instant is known.
#[derive(Clone, Copy, Debug)]
struct Kept {
    at: Timestamp,
    /// Whether it is the first of its job.
    first: bool,
    /// With whether its ratio counts.
    start: Option<(Forecast, bool)>,
    end: Option<(Forecast, bool)>,
}

/// The forecasts of a job.
#[derive(Clone, Debug, Default)]
struct Followed {
    times: Option<ExpectedTimes>,
    kept: Vec<Kept>,
    every: Duration,
}

impl Followed {
    /// Whether a further forecast is to be kept.
    fn is_due(&self, now: Timestamp) -> bool {
        self.kept.last().is_none_or(|last| now.since(last.at) >= self.every)
    }

    fn keep(&mut self, kept: Kept) {
        if self.kept.len() == KEPT_MAX {
            let mut index = 0;
            self.kept.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.every *= 2;
        }
        self.kept.push(kept);
    }
}

/// The expected times of the jobs of a cluster, and their errors so far.
#[derive(Clone, Debug)]
pub struct Expected {
    since: Timestamp,
    /// When the next forecast may be made.
    next: Timestamp,
    jobs: BTreeMap<JobKey, Followed>,
    errors: ForecastErrors,
    /// Number of forecasts.
    made: u64,
    lengths: Lengths,
    /// The same with the time limits as lengths.
    by_limits: Option<Box<Self>>,
}

/// The lengths of the jobs in a forecast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lengths {
    Predicted,
    Limits,
}

impl Expected {
    /// Without earlier forecasts.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        let (jobs, errors) = (BTreeMap::new(), ForecastErrors::default());
        let (lengths, by_limits) = (Lengths::Predicted, None);
        Self { since: now, next: now, jobs, errors, made: 0, lengths, by_limits }
    }

    /// Beside a forecast whose lengths are the time limits, of backfilling by priority and arrival. Its instants are as
    /// they follow, without a correction by earlier errors; the interval is from now until then, because a limit is the
    /// greatest length.
    #[must_use]
    pub fn beside_limits(self) -> Self {
        let by_limits = Self { lengths: Lengths::Limits, ..Self::new(self.since) };
        Self { by_limits: Some(Box::new(by_limits)), ..self }
    }

    /// The forecast by time limits, if it is followed.
    #[must_use]
    pub fn by_limits(&self) -> Option<&Self> {
        self.by_limits.as_deref()
    }

    /// Continues from the stored errors. Forecasts of jobs that were present then do not count.
    #[must_use]
    pub fn restored(now: Timestamp, stored: Option<&ExpectedStatus>) -> Self {
        let Some(stored) = stored.filter(|stored| stored.at_us <= now) else {
            return Self::new(now);
        };
        let errors = ForecastErrors::restored(stored);
        Self { since: stored.since_us, errors, ..Self::new(now) }
    }

    /// The errors so far, to be stored.
    #[must_use]
    pub fn status(&self, now: Timestamp) -> ExpectedStatus {
        self.errors.status(now, self.since)
    }

    /// The errors so far.
    #[must_use]
    pub const fn errors(&self) -> &ForecastErrors {
        &self.errors
    }

    /// Number of forecasts made, each of all jobs.
    #[must_use]
    pub const fn made(&self) -> u64 {
        self.made
    }

    /// The last expected times of a job.
    #[must_use]
    pub fn times(&self, job: JobKey) -> Option<&ExpectedTimes> {
        self.jobs.get(&job)?.times.as_ref()
    }

    /// A job has got GPUs.
    pub(crate) fn started(&mut self, job: JobKey, now: Timestamp) {
        if let Some(by_limits) = &mut self.by_limits {
            by_limits.started(job, now);
        }
        let Some(followed) = self.jobs.get_mut(&job) else { return };
        for kept in &mut followed.kept {
            if let Some((start, counts)) = kept.start.take() {
                self.errors.add(kept.at, &start, kept.first, counts, now);
            }
        }
    }

    /// A job has completed.
    pub(crate) fn completed(&mut self, job: JobKey, now: Timestamp) {
        if let Some(by_limits) = &mut self.by_limits {
            by_limits.completed(job, now);
        }
        let kept = self.jobs.remove(&job).map(|followed| followed.kept).unwrap_or_default();
        for Kept { at, first, end, .. } in kept {
            if let Some((end, counts)) = end {
                self.errors.add(at, &end, first, counts, now);
            }
        }
    }

    /// A job has left without having completed: its forecasts do not count.
    pub(crate) fn left(&mut self, job: JobKey) {
        if let Some(by_limits) = &mut self.by_limits {
            by_limits.left(job);
        }
        self.jobs.remove(&job);
    }

    /// Makes a forecast from the state after a planning round, if one is due. Returns whether it did.
    pub(crate) fn follow(
        &mut self,
        input: PlanningInput<'_>,
        can: Capabilities,
        reports: &StageReports,
    ) -> bool {
        let now = input.now();
        if now < self.next {
            return false;
        }
        self.next = now + EVERY;
        self.made += 1;
        if let Some(by_limits) = &mut self.by_limits {
            by_limits.follow(input, can, reports);
        }
        let intervals = self.errors.intervals();
        let (can, settings) = match self.lengths {
            Lengths::Predicted => (can, Settings::Planned),
            Lengths::Limits => (backfilled(can), Settings::Limits),
        };
        for Scheduled { job, start, end, unknown } in scheduled(input, can, reports, None, settings)
        {
            let forecast = |kind, at| match self.lengths {
                Lengths::Predicted => intervals.forecast(now, kind, at),
                Lengths::Limits => Forecast::no_later_than(now, kind, at),
            };
            let start = start.map(|at| forecast(wattle_common::messages::ExpectedKind::Start, at));
            let end = end.map(|(at, kind)| forecast(kind, at));
            let shown = |of: Option<Forecast>| of.map(|forecast| forecast.shown);
            let every = KEPT_EVERY;
            let new = || Followed { times: None, kept: Vec::new(), every };
            let followed = self.jobs.entry(job).or_insert_with(new);
            let first = followed.times.is_none();
            followed.times =
                Some(ExpectedTimes { at_us: now, start: shown(start), end: shown(end), unknown });
            if followed.is_due(now) {
                let errors = &mut self.errors;
                let mut counted = |of: Forecast| (of, errors.counts(now, &of));
                let (start, end) = (start.map(&mut counted), end.map(&mut counted));
                followed.keep(Kept { at: now, first, start, end });
            }
        }
        true
    }

    /// Number of queued jobs without an expected start, and with one, by the last forecast.
    #[must_use]
    pub fn queued(&self, state: &crate::ClusterState) -> (usize, usize) {
        let queued = self.jobs.iter().filter(|(key, _)| {
            state.job(**key).is_some_and(|job| matches!(job.state, State::Queued))
        });
        let times = queued.filter_map(|(_, followed)| followed.times.as_ref());
        times.fold((0, 0), |(without, with), times| match times.start {
            Some(_) => (without, with + 1),
            None => (without + 1, with),
        })
    }
}
