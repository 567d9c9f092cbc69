//! The bound that forgets the other jobs: everybody runs alone, from arrival on.
//!
//! A job that does a part of its work in each of several configurations has, per step of work, the
//! energy and time of a point between theirs. So what one job can reach is the lower left edge of
//! the convex hull of its options' (joules, seconds) per step, and what all can reach is the sum of
//! those edges: their pieces, the steepest first. That is exact for jobs alone, for every price of
//! energy at once; no schedule of several jobs is below it, since others only take GPUs away.

use super::frontier::{BoundFrontier, Line};
use super::{BoundError, BoundJob, BoundOption, Class, JOULES_PER_KWH, classes};

/// The least mean completion time at each energy if every job ran alone from its arrival on, in a
/// cluster of `gpus`.
///
/// Its first corner is the least energy, its last every job at its fastest.
///
/// # Errors
/// When there are no jobs, a figure is not finite or has the wrong sign, or a job has no option
/// that fits.
pub fn contention_free(jobs: &[BoundJob], gpus: u32) -> Result<BoundFrontier, BoundError> {
    Ok(of_classes(&classes(jobs, gpus)?).frontier())
}

/// Energies this close, relatively, are one: the slope between them would be rounding. Their least
/// energy and least time are taken together, which can only lower the bound.
const SAME_ENERGY: f64 = 1e-7;

/// A share of the fastest mean completion time that is not worth a price of energy of its own.
const NEXT_TO_NOTHING: f64 = 2e-3;

/// The sum of all jobs' edges.
pub(super) struct Edges {
    jobs: f64,
    /// Joules and seconds of all jobs, each at its thriftiest.
    start: (f64, f64),
    /// Pieces, the steepest first: seconds won per joule as a slope (below zero), joules, seconds.
    pieces: Vec<(f64, f64, f64)>,
}

pub(super) fn of_classes(classes: &[Class]) -> Edges {
    let jobs: usize = classes.iter().map(|class| class.jobs.len()).sum();
    let mut start = (0.0, 0.0);
    let mut pieces = Vec::new();
    for class in classes {
        let work = class.work();
        let edge = edge(&class.options);
        start = (start.0 + edge[0].0 * work, start.1 + edge[0].1 * work);
        if work > 0.0 {
            pieces.extend(edge.windows(2).map(|pair| {
                let (joules, seconds) = (pair[1].0 - pair[0].0, pair[1].1 - pair[0].1);
                (seconds / joules, joules * work, seconds * work)
            }));
        }
    }
    pieces.sort_by(|a, b| a.0.total_cmp(&b.0));
    Edges { jobs: jobs as f64, start, pieces }
}

impl Edges {
    /// The corners as (kWh, mean seconds).
    fn corners(&self) -> Vec<(f64, f64)> {
        let (mut joules, mut seconds) = self.start;
        let mut corners = vec![(joules / JOULES_PER_KWH, seconds / self.jobs)];
        for (_, more_joules, more_seconds) in &self.pieces {
            joules += more_joules;
            seconds += more_seconds;
            corners.push((joules / JOULES_PER_KWH, seconds / self.jobs));
        }
        corners
    }

    pub(super) fn frontier(&self) -> BoundFrontier {
        BoundFrontier::from_corners(self.corners())
    }

    /// The lowest and the highest price of energy, in seconds per joule, at which somebody changes
    /// his mind; the last changes, which together win next to nothing, are left out. None where
    /// energy buys no time.
    pub(super) fn prices(&self) -> Option<(f64, f64)> {
        let won: f64 = self.pieces.iter().map(|&(.., seconds)| -seconds).sum();
        let fastest = self.start.1 - won;
        let mut left = NEXT_TO_NOTHING * fastest;
        let low = self.pieces.iter().rev().find(|&&(.., seconds)| {
            left += seconds;
            left < 0.0
        });
        let (&(low, ..), &(high, ..)) = (low.or(self.pieces.last())?, self.pieces.first()?);
        Some((-low, -high))
    }

    /// The lines whose highest the frontier is, the level one at its end included.
    pub(super) fn lines(&self) -> Vec<Line> {
        let corners = self.corners();
        let level = Line { slope: 0.0, intercept: corners[corners.len() - 1].1 };
        let falling = self.pieces.iter().zip(&corners).map(|(&(slope, ..), &(kwh, seconds))| {
            let slope = slope * JOULES_PER_KWH / self.jobs;
            Line { slope, intercept: seconds - slope * kwh }
        });
        falling.chain([level]).collect()
    }
}

/// The lower left edge of the hull of (joules, seconds) per step, from the thriftiest to the
/// fastest.
fn edge(options: &[BoundOption]) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = options
        .iter()
        .map(|option| (option.power_w / option.steps_per_s, 1.0 / option.steps_per_s))
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    // What costs more must be faster.
    let mut falling: Vec<(f64, f64)> = Vec::new();
    for point in points {
        match falling.last_mut() {
            Some(last) if point.1 >= last.1 => {}
            Some(last) if point.0 <= last.0 * (1.0 + SAME_ENERGY) => last.1 = point.1,
            _ => falling.push(point),
        }
    }
    let mut edge: Vec<(f64, f64)> = Vec::new();
    for point in falling {
        while let [.., a, b] = edge[..] {
            // The corner b stays only below the straight way from a to the new point.
            if (b.1 - a.1) * (point.0 - a.0) < (point.1 - a.1) * (b.0 - a.0) {
                break;
            }
            edge.pop();
        }
        edge.push(point);
    }
    edge
}
