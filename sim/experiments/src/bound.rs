//! Lower bounds on the mean job completion time at a given energy.
//!
//! Both bounds are frontiers of completion time over energy. [`contention_free`] runs every job
//! from its arrival on without contention. [`priced`] also limits the number of GPUs, by a GPU
//! price that varies with time (Lagrangian relaxation), and is never below the first. Both know all
//! arrivals and work, resize at no cost and divide a job's time between options freely, so every
//! schedule that uses the jobs' options is above them.
//!
//! With energy weighted by the grid's carbon intensity, [`priced_over`] bounds the completion time
//! at given emissions, with perfect knowledge of the intensity and unlimited deferral.
//!
//! A [`Supply`] with a power limit adds a price of power over time to the price of GPUs, so [`priced`]
//! holds for the schedules that never draw more. [`over_limits`] is the bound on the mean completion
//! time over the limit. Power that no job is charged, such as that of sleeping nodes, is subtracted
//! from the limit by the caller.
//!
//! The bounds hold for schedules with one job per GPU. Jobs that share a GPU divide its idle power
//! and may finish below a bound. Energy that is not charged to jobs, such as that of sleeping
//! nodes, is added by the caller with [`BoundFrontier::shifted`].
//!
//! All functions are pure and deterministic. No policy may use them.
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
mod limited;
mod priced;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_exact;
#[cfg(test)]
mod tests_limited;
mod weights;

use std::sync::Arc;

pub use contention_free::contention_free;
pub use frontier::BoundFrontier;
pub use limited::over_limits;
pub use priced::{PricePath, Priced, PricedSearch, priced, priced_over};

/// Joules in a kilowatt-hour.
const JOULES_PER_KWH: f64 = 3.6e6;

/// One way to run a job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BoundOption {
    /// Number of GPUs, at least one.
    pub gpus: u32,
    /// Speed, steps per second, above zero.
    pub steps_per_s: f64,
    /// Power charged to the job, W, in the caller's accounting.
    pub power_w: f64,
}

/// A job.
#[derive(Debug, Clone)]
pub struct BoundJob {
    /// Arrival, seconds.
    pub arrival_s: f64,
    /// Work, steps.
    pub work: f64,
    /// Its options. Jobs with equal options form a class.
    pub options: Arc<[BoundOption]>,
}

impl BoundJob {
    /// The least power of its options of at most `gpus` GPUs, W.
    fn least_w(&self, gpus: u32) -> f64 {
        let fits = self.options.iter().filter(|option| option.gpus <= gpus);
        fits.map(|option| option.power_w).fold(f64::INFINITY, f64::min)
    }
}

/// What a cluster offers to its jobs at every instant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Supply {
    /// Number of GPUs.
    pub gpus: u32,
    /// Power in the caller's accounting of [`BoundOption::power_w`], W; infinite without a limit.
    pub watts: f64,
}

impl Supply {
    /// Whether the power is limited.
    #[must_use]
    pub fn is_power_limited(&self) -> bool {
        self.watts.is_finite()
    }
}

impl From<u32> for Supply {
    /// GPUs without a power limit.
    fn from(gpus: u32) -> Self {
        Self { gpus, watts: f64::INFINITY }
    }
}

/// Why a bound cannot be computed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BoundError {
    /// No jobs.
    #[error("a bound on the mean completion time needs at least one job")]
    NoJobs,
    /// A value is not finite, or negative.
    #[error("job {job}: {what} is {value}; give a finite number, not below zero")]
    Job {
        /// The job's index.
        job: usize,
        /// The quantity.
        what: &'static str,
        /// The given value.
        value: f64,
    },
    /// An option without GPUs or speed, or with an invalid power.
    #[error(
        "job {job}, option {option}: {given:?}; give at least one GPU, a speed above zero and a power not below zero"
    )]
    Option {
        /// The job's index.
        job: usize,
        /// The option's index.
        option: usize,
        /// The given value.
        given: BoundOption,
    },
    /// Every option of a job needs more GPUs than the cluster has.
    #[error("job {job} has no option of at most {gpus} GPUs; give it one or leave the job out")]
    NoneFits {
        /// The job's index.
        job: usize,
        /// The cluster's number of GPUs.
        gpus: u32,
    },
    /// Every option of a job draws more power than the limit leaves.
    #[error(
        "job {job} draws at least {least_w:.0} W, and the limit leaves {watts:.0} W to jobs; raise the limit or leave the job out"
    )]
    LimitTooLow {
        /// The job's index.
        job: usize,
        /// The least power of an option, W.
        least_w: f64,
        /// The limit, W.
        watts: f64,
    },
    /// A setting of the search is invalid.
    #[error("{what} is {value}; {remedy}")]
    Setting {
        /// The setting.
        what: &'static str,
        /// The given value.
        value: f64,
        /// The remedy.
        remedy: &'static str,
    },
}

/// Jobs with equal options.
#[derive(Debug)]
struct Class {
    /// Options that fit the cluster; never empty.
    options: Vec<BoundOption>,
    /// Arrival and work of each job, in input order.
    jobs: Vec<(f64, f64)>,
}

impl Class {
    /// Steps of all its jobs.
    fn work(&self) -> f64 {
        self.jobs.iter().map(|&(_, work)| work).sum()
    }
}

/// Validates the input and groups jobs by options.
fn classes(jobs: &[BoundJob], gpus: u32) -> Result<Vec<Class>, BoundError> {
    if jobs.is_empty() {
        return Err(BoundError::NoJobs);
    }
    // Shared lists are compared by address, which is fast; others by content, so that the result
    // does not depend on sharing.
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

/// The options that fit the cluster.
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
