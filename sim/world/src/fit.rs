//! Fits the sharing parameters of a node to measured runs of single jobs and of co-located jobs.
//!
//! The figures of sharing.toml and eaco.toml come from this fit to EaCO's tables. It is a function
//! so that tests can leave rows out, and so that other machines' measurements can be fitted. The
//! formulas are those of `sharing`, so the fitted values are the world's values.
//!
//! A job without an exclusive run is inferred from the co-located runs that contain it.

use wattle_common::numerics::mean;

use crate::sharing::{TENANTS_MAX, delays, mean_active};

/// Iterations of the alternating estimates; jobs with an exclusive run need one.
const ROUNDS: usize = 200;

/// One measured run of jobs that share a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Distinct job numbers.
    pub jobs: Vec<usize>,
    /// Mean node power, watts.
    pub power_w: f64,
    /// Mean completion time of the jobs, in any unit.
    pub time: f64,
    /// Mean GPU utilisation, 0..=1.
    pub utilization: f64,
}

/// Fitted parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    /// Node power extrapolated to zero utilisation, watts.
    pub base_w: f64,
    /// Additional power at full utilisation, watts: `power = base_w + full_w * sqrt(utilization)`.
    pub full_w: f64,
    /// Extra time per co-tenant, relative to an exclusive step.
    pub delay_per_neighbour: f64,
    /// Busy share of each job under exclusive use.
    pub busy: Vec<f64>,
    /// Power above the base of each job under exclusive use, watts.
    pub active_w: Vec<f64>,
    /// Completion time of each job under exclusive use.
    pub time: Vec<f64>,
}

impl Parameters {
    /// Power of a node shared by these jobs, watts.
    ///
    /// # Panics
    /// If a job number is out of range.
    #[must_use]
    pub fn power_w(&self, jobs: &[usize]) -> f64 {
        let exclusive: Vec<(f64, f64)> =
            jobs.iter().map(|&job| (self.busy[job], self.active_w[job])).collect();
        self.base_w + mean_active(&exclusive)
    }

    /// Mean completion time of jobs that share a node.
    ///
    /// # Panics
    /// If a job number is out of range.
    #[must_use]
    pub fn time(&self, jobs: &[usize]) -> f64 {
        let (exclusive, waits, neighbours) = self.components(jobs);
        exclusive + waits + self.delay_per_neighbour * neighbours
    }

    /// Mean exclusive time, mean waiting time, and the derivative with respect to the delay per
    /// co-tenant.
    fn components(&self, jobs: &[usize]) -> (f64, f64, f64) {
        let mut busy = [0.0; TENANTS_MAX];
        let mut delay = [0.0; TENANTS_MAX];
        let n = jobs.len().min(TENANTS_MAX);
        for (share, &job) in busy.iter_mut().zip(jobs) {
            *share = self.busy[job];
        }
        delays(&busy[..n], 0.0, &mut delay[..n]);
        let count = jobs.len().max(1) as f64;
        let exclusive = jobs.iter().map(|&job| self.time[job]).sum::<f64>() / count;
        let waits =
            jobs.iter().zip(&delay).map(|(&job, delay)| self.time[job] * delay).sum::<f64>()
                / count;
        (exclusive, waits, exclusive * (count - 1.0))
    }
}

/// Fits `jobs` jobs to `runs`; `None` if the runs do not determine the parameters: a job in no run,
/// fewer than two levels of utilisation, or no co-located run.
///
/// Busy shares and active power come from exclusive runs, or from the remainder of co-located runs.
/// Base and full power are the least-squares line of power over the square root of utilisation
/// (relative errors, all runs). The delay per co-tenant is a least-squares estimate (relative
/// errors, co-located runs).
#[must_use]
pub fn fit(jobs: usize, runs: &[Run]) -> Option<Parameters> {
    let in_range = runs.iter().flat_map(|run| &run.jobs).all(|&job| job < jobs);
    let covered = (0..jobs).all(|job| runs.iter().any(|run| run.jobs.contains(&job)));
    if !in_range || !covered || !runs.iter().any(|run| run.jobs.len() > 1) {
        return None;
    }
    let exclusive = |job: usize| runs.iter().find(|run| run.jobs == [job]);
    let (base_w, full_w) = line(runs)?;
    let mut fitted = Parameters {
        base_w,
        full_w,
        delay_per_neighbour: 0.0,
        busy: (0..jobs).map(|job| exclusive(job).map_or(0.1, |run| run.utilization)).collect(),
        active_w: vec![0.0; jobs],
        time: Vec::new(),
    };
    let missing: Vec<usize> = (0..jobs).filter(|&job| exclusive(job).is_none()).collect();
    for _ in 0..ROUNDS {
        for &job in &missing {
            let left = runs.iter().filter(|run| run.jobs.contains(&job)).map(|run| {
                let others = run.jobs.iter().filter(|&&other| other != job);
                run.utilization - others.map(|&other| fitted.busy[other]).sum::<f64>()
            });
            fitted.busy[job] = mean(left)?.clamp(0.005, 1.0);
        }
    }
    for job in 0..jobs {
        let inferred = full_w * fitted.busy[job].sqrt();
        fitted.active_w[job] =
            exclusive(job).map_or(inferred, |run| (run.power_w - base_w).max(0.0));
    }
    let typical = mean(runs.iter().map(|run| run.time))?;
    fitted.time = (0..jobs).map(|job| exclusive(job).map_or(typical, |run| run.time)).collect();
    for _ in 0..ROUNDS {
        let (mut top, mut bottom) = (0.0, 0.0);
        for run in runs.iter().filter(|run| run.jobs.len() > 1) {
            let (exclusive, waits, neighbours) = fitted.components(&run.jobs);
            let slope = neighbours / run.time;
            top += slope * (run.time - exclusive - waits) / run.time;
            bottom += slope * slope;
        }
        fitted.delay_per_neighbour = (top / bottom).max(0.0);
        for &job in &missing {
            // The remainder of the co-located runs at the fitted delays.
            let (mut left, mut weight) = (0.0, 0.0);
            for run in runs.iter().filter(|run| run.jobs.contains(&job)) {
                let n = run.jobs.len() as f64;
                left += n * (run.time - fitted.time(&run.jobs)) + fitted.time[job];
                weight += 1.0;
            }
            fitted.time[job] = left / weight;
        }
    }
    let finite =
        fitted.delay_per_neighbour.is_finite() && fitted.time.iter().all(|t| t.is_finite());
    finite.then_some(fitted)
}

/// Intercept and slope of power over the square root of utilisation.
fn line(runs: &[Run]) -> Option<(f64, f64)> {
    let (mut aa, mut ab, mut bb, mut a, mut b) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for run in runs {
        let (one, root) = (1.0 / run.power_w, run.utilization.sqrt() / run.power_w);
        aa += one * one;
        ab += one * root;
        bb += root * root;
        a += one;
        b += root;
    }
    let determinant = aa * bb - ab * ab;
    (determinant > 1e-12 * aa * bb)
        .then(|| ((a * bb - b * ab) / determinant, (aa * b - ab * a) / determinant))
}
