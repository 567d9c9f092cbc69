//! Fits how tenants share a node from measured runs of single jobs and of sets of them.
//!
//! This is how sharing.toml and eaco.toml come from EaCO's tables, kept as a function so that it
//! can be run again on chosen rows (the tests leave rows out), or on another machine's. It uses the
//! same two formulas as a card does (`sharing`), so what it fits is what the world answers.
//!
//! A job that has no run alone is inferred from the sets it is in.

use crate::sharing::{TENANTS_MAX, delays, mean_active};

/// Rounds of alternating between what depends on each other; jobs with a run alone need one.
const ROUNDS: usize = 200;

/// One measured run: the jobs that shared a node, and what was seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The jobs, by number, each once.
    pub jobs: Vec<usize>,
    /// Mean power of the node, watts.
    pub power_w: f64,
    /// Mean completion time of the jobs, in any one unit.
    pub time: f64,
    /// Mean GPU utilisation, 0..=1.
    pub utilization: f64,
}

/// What a fit gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    /// Power of the node with nothing on its cards, as its runs extrapolate to it, watts.
    pub base_w: f64,
    /// Power above that at full utilisation, watts: `power = base_w + full_w * sqrt(utilization)`.
    pub full_w: f64,
    /// Extra time for each neighbour, relative to a step alone.
    pub delay_per_neighbour: f64,
    /// Each job alone: share of time on the card.
    pub busy: Vec<f64>,
    /// Each job alone: power above the base, watts.
    pub active_w: Vec<f64>,
    /// Each job alone: completion time.
    pub time: Vec<f64>,
}

impl Parameters {
    /// Power of a node whose cards these jobs share, watts.
    ///
    /// # Panics
    /// Where a job's number is none of the fit's.
    #[must_use]
    pub fn power_w(&self, jobs: &[usize]) -> f64 {
        let alone: Vec<(f64, f64)> =
            jobs.iter().map(|&job| (self.busy[job], self.active_w[job])).collect();
        self.base_w + mean_active(&alone)
    }

    /// Mean completion time of jobs that share a node's cards.
    ///
    /// # Panics
    /// Where a job's number is none of the fit's.
    #[must_use]
    pub fn time(&self, jobs: &[usize]) -> f64 {
        let (alone, waits, neighbours) = self.parts(jobs);
        alone + waits + self.delay_per_neighbour * neighbours
    }

    /// Mean time alone, mean time spent waiting for the card, and what one unit of delay for each
    /// neighbour adds.
    fn parts(&self, jobs: &[usize]) -> (f64, f64, f64) {
        let mut busy = [0.0; TENANTS_MAX];
        let mut delay = [0.0; TENANTS_MAX];
        let n = jobs.len().min(TENANTS_MAX);
        for (share, &job) in busy.iter_mut().zip(jobs) {
            *share = self.busy[job];
        }
        delays(&busy[..n], 0.0, &mut delay[..n]);
        let count = jobs.len().max(1) as f64;
        let alone = jobs.iter().map(|&job| self.time[job]).sum::<f64>() / count;
        let waits =
            jobs.iter().zip(&delay).map(|(&job, delay)| self.time[job] * delay).sum::<f64>()
                / count;
        (alone, waits, alone * (count - 1.0))
    }
}

/// Fits `jobs` jobs to `runs`; `None` where the runs do not determine them: a job in no run, fewer
/// than two levels of utilisation, or no run of several jobs.
///
/// Busy shares are those of the runs alone, or what the sets leave over. Base and full power are
/// the least-squares line of power over the square root of utilisation, relative errors, all runs.
/// Each job's active power is its own run's. The delay per neighbour is least squares, relative
/// errors, over the sets.
#[must_use]
pub fn fit(jobs: usize, runs: &[Run]) -> Option<Parameters> {
    let known = runs.iter().flat_map(|run| &run.jobs).all(|&job| job < jobs);
    let seen = (0..jobs).all(|job| runs.iter().any(|run| run.jobs.contains(&job)));
    if !known || !seen || !runs.iter().any(|run| run.jobs.len() > 1) {
        return None;
    }
    let alone = |job: usize| runs.iter().find(|run| run.jobs == [job]);
    let (base_w, full_w) = line(runs)?;
    let mut fitted = Parameters {
        base_w,
        full_w,
        delay_per_neighbour: 0.0,
        busy: (0..jobs).map(|job| alone(job).map_or(0.1, |run| run.utilization)).collect(),
        active_w: vec![0.0; jobs],
        time: Vec::new(),
    };
    let missing: Vec<usize> = (0..jobs).filter(|&job| alone(job).is_none()).collect();
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
        fitted.active_w[job] = alone(job).map_or(inferred, |run| (run.power_w - base_w).max(0.0));
    }
    let typical = mean(runs.iter().map(|run| run.time))?;
    fitted.time = (0..jobs).map(|job| alone(job).map_or(typical, |run| run.time)).collect();
    for _ in 0..ROUNDS {
        let (mut top, mut bottom) = (0.0, 0.0);
        for run in runs.iter().filter(|run| run.jobs.len() > 1) {
            let (alone, waits, neighbours) = fitted.parts(&run.jobs);
            let slope = neighbours / run.time;
            top += slope * (run.time - alone - waits) / run.time;
            bottom += slope * slope;
        }
        fitted.delay_per_neighbour = (top / bottom).max(0.0);
        for &job in &missing {
            // What the sets leave over for it, at the delays it suffers in them.
            let (mut left, mut weight) = (0.0, 0.0);
            for run in runs.iter().filter(|run| run.jobs.contains(&job)) {
                let n = run.jobs.len() as f64;
                left += n * (run.time - fitted.time(&run.jobs)) + fitted.time[job];
                weight += 1.0;
            }
            fitted.time[job] = left / weight;
        }
    }
    let sound = fitted.delay_per_neighbour.is_finite() && fitted.time.iter().all(|t| t.is_finite());
    sound.then_some(fitted)
}

/// The line of power over the square root of utilisation.
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

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}
