//! Lower bounds on the mean job completion time at a given energy: how good any scheduler could be.
//!
//! A ratio against a weak baseline says little; the distance to a bound cannot be flattered. Two
//! bounds stand here, both frontiers of energy against completion time:
//! [`contention_free`] lets every job run alone from its arrival on, as if nobody else were there;
//! [`priced`] also knows how many GPUs there are, by a price on them that changes with time, and is
//! never below the first. Both know all arrivals and sizes, rescale for nothing and split a job's
//! time between configurations as they like, so whatever keeps to a job's options stands above them.
//!
//! With the grid's intensity as what a joule counts as, [`priced_over`] bounds the completion time at
//! a given carbon: it knows all hours to come, and lets every job wait for the cleanest.
//!
//! They hold for schedules in which a GPU serves one job at a time. Jobs that share a GPU split its
//! idle watts and may finish sooner than a bound says; energy that no job is charged (sleeping
//! nodes, say) is added by the caller with [`BoundFrontier::shifted_kwh`].
//!
//! Pure functions of their arguments: no clock, no draw, no thread, and the same input gives the
//! same bytes. Nothing here decides anything; no policy may read it.
//!
//! ```
//! use wattle_experiments::bound::{BoundJob, BoundOption, contention_free};
//!
//! let options: std::sync::Arc<[BoundOption]> = [
//!     BoundOption { gpus: 1, steps_per_s: 1.0, power_w: 100.0 },
//!     BoundOption { gpus: 2, steps_per_s: 1.5, power_w: 300.0 },
//! ].into();
//! let job = BoundJob { arrival_s: 0.0, work: 3_600.0, options };
//! let bound = contention_free(&[job], 2)?;
//! assert_eq!(bound.points(), [(0.1, 3_600.0), (0.2, 2_400.0)]);
//! // Half of the work each way.
//! assert_eq!(bound.jct_s_at(0.15), Some(3_000.0));
//! assert_eq!(bound.jct_s_at(0.09), None);
//! # Ok::<(), wattle_experiments::bound::BoundError>(())
//! ```

mod contention_free;
mod dual;
mod frontier;
mod priced;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_exact;
mod weights;

use std::sync::Arc;

pub use contention_free::contention_free;
pub use frontier::BoundFrontier;
pub use priced::{PricePath, Priced, PricedSearch, priced, priced_over};

/// Joules in a kilowatt-hour.
const JOULES_PER_KWH: f64 = 3.6e6;

/// One way to run a job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BoundOption {
    /// GPUs it takes, at least one.
    pub gpus: u32,
    /// Speed, above zero.
    pub steps_per_s: f64,
    /// Watts charged to the whole job, by whatever accounting the caller compares with.
    pub power_w: f64,
}

/// A job as the bounds see it.
#[derive(Debug, Clone)]
pub struct BoundJob {
    /// When it arrives, in seconds.
    pub arrival_s: f64,
    /// Its size in steps, in the unit of its options' speed.
    pub work: f64,
    /// The ways it may run. Jobs of one class share them; equal lists count as one class too.
    pub options: Arc<[BoundOption]>,
}

/// Why there is no bound.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BoundError {
    /// No jobs.
    #[error("a bound on the mean completion time needs at least one job")]
    NoJobs,
    /// Not a number, infinite, or negative.
    #[error("job {job}: {what} is {value}; give a finite number, not below zero")]
    Job {
        /// Which job, by its place in the input.
        job: usize,
        /// What of it.
        what: &'static str,
        /// What was given.
        value: f64,
    },
    /// An option without GPUs or speed, or with a power that is no power.
    #[error(
        "job {job}, option {option}: {given:?}; give at least one GPU, a speed above zero and a power not below zero"
    )]
    Option {
        /// Which job, by its place in the input.
        job: usize,
        /// Which of its options.
        option: usize,
        /// What was given.
        given: BoundOption,
    },
    /// Every option of a job wants more GPUs than there are.
    #[error("job {job} has no option of at most {gpus} GPUs; give it one or leave the job out")]
    NoneFits {
        /// Which job, by its place in the input.
        job: usize,
        /// GPUs of the cluster.
        gpus: u32,
    },
    /// A setting of the search that makes no sense.
    #[error("{what} is {value}; {remedy}")]
    Setting {
        /// Which setting.
        what: &'static str,
        /// What was given.
        value: f64,
        /// What to give.
        remedy: &'static str,
    },
}

/// The jobs of one list of options.
#[derive(Debug)]
struct Class {
    /// Only what fits the cluster; never empty.
    options: Vec<BoundOption>,
    /// Arrival and work of each job, in the order of the input.
    jobs: Vec<(f64, f64)>,
}

impl Class {
    /// Steps of all its jobs.
    fn work(&self) -> f64 {
        self.jobs.iter().map(|&(_, work)| work).sum()
    }
}

/// Checks the input and gathers jobs with equal options.
fn classes(jobs: &[BoundJob], gpus: u32) -> Result<Vec<Class>, BoundError> {
    if jobs.is_empty() {
        return Err(BoundError::NoJobs);
    }
    // Shared lists are recognised by their address, which is quick; equal ones by their content,
    // so that the result does not depend on who shares what.
    let mut lists: Vec<(&Arc<[BoundOption]>, usize)> = Vec::new();
    let mut classes: Vec<(&[BoundOption], Class)> = Vec::new();
    for (index, job) in jobs.iter().enumerate() {
        for (what, value) in [("the arrival", job.arrival_s), ("the work", job.work)] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(BoundError::Job { job: index, what, value });
            }
        }
        let known = lists.iter().find(|(list, _)| Arc::ptr_eq(list, &job.options));
        let class = if let Some(&(_, class)) = known {
            class
        } else {
            let class =
                if let Some(class) = classes.iter().position(|(list, _)| *list == &*job.options) {
                    class
                } else {
                    let options = usable(index, &job.options, gpus)?;
                    classes.push((&job.options, Class { options, jobs: Vec::new() }));
                    classes.len() - 1
                };
            lists.push((&job.options, class));
            class
        };
        classes[class].1.jobs.push((job.arrival_s, job.work));
    }
    Ok(classes.into_iter().map(|(_, class)| class).collect())
}

/// The options that fit.
fn usable(job: usize, options: &[BoundOption], gpus: u32) -> Result<Vec<BoundOption>, BoundError> {
    for (option, &given) in options.iter().enumerate() {
        let speed = given.steps_per_s.is_finite() && given.steps_per_s > 0.0;
        let power = given.power_w.is_finite() && given.power_w >= 0.0;
        if given.gpus == 0 || !speed || !power {
            return Err(BoundError::Option { job, option, given });
        }
    }
    let fitting: Vec<_> = options.iter().copied().filter(|option| option.gpus <= gpus).collect();
    if fitting.is_empty() { Err(BoundError::NoneFits { job, gpus }) } else { Ok(fitting) }
}
