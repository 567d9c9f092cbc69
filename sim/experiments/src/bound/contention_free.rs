//! The bound without contention: every job runs from its arrival on.
//!
//! A job that divides its work between options has, per step, the energy and time of a convex
//! combination of theirs. Its frontier is the lower left edge of the convex hull of its options'
//! (joules, seconds) per step. The frontier of all jobs is the Minkowski sum of these edges: their
//! segments, steepest first. It is exact without contention, for every energy price at once, and
//! contention only removes options.

use super::frontier::{BoundFrontier, Line};
use super::{BoundError, BoundJob, BoundOption, Class, JOULES_PER_KWH, classes};

/// The least mean completion time over energy if every job runs from its arrival on without
/// contention, in a cluster of `gpus` GPUs.
///
/// The first corner has the least energy; at the last corner every job runs at its fastest.
///
/// # Errors
/// Without jobs, for invalid values, and for a job without an option that fits.
pub fn contention_free(jobs: &[BoundJob], gpus: u32) -> Result<BoundFrontier, BoundError> {
    Ok(of_classes(&classes(jobs, gpus)?).frontier())
}

/// Relative difference below which energies are equal, since the slope between them would be
/// rounding noise. The least energy and the least time are combined, which can only lower the
/// bound.
const SAME_ENERGY: f64 = 1e-7;

/// Share of the fastest mean completion time below which energy prices are not resolved.
const NEGLIGIBLE: f64 = 2e-3;

/// The Minkowski sum of all jobs' edges.
pub(super) struct Edges {
    jobs: f64,
    /// Joules and seconds of all jobs at least energy.
    start: (f64, f64),
    /// Segments, steepest first: slope in seconds per joule (negative), joules, seconds.
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

    /// The lowest and the highest energy price, seconds per joule, at which an optimal option
    /// changes; the last changes, which together save a negligible time, are left out. `None` where
    /// energy saves no time.
    pub(super) fn prices(&self) -> Option<(f64, f64)> {
        let won: f64 = self.pieces.iter().map(|&(.., seconds)| -seconds).sum();
        let fastest = self.start.1 - won;
        let mut left = NEGLIGIBLE * fastest;
        let low = self.pieces.iter().rev().find(|&&(.., seconds)| {
            left += seconds;
            left < 0.0
        });
        let (&(low, ..), &(high, ..)) = (low.or(self.pieces.last())?, self.pieces.first()?);
        Some((-low, -high))
    }

    /// The lines of which the frontier is the maximum, with the level one at its end.
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

/// The lower left edge of the hull of (joules, seconds) per step, from least energy to least time.
fn edge(options: &[BoundOption]) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = options
        .iter()
        .map(|option| (option.power_w / option.steps_per_s, 1.0 / option.steps_per_s))
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    // Keep points on which more energy saves time.
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
            // The corner b stays only below the line from a to the new point.
            if (b.1 - a.1) * (point.0 - a.0) < (point.1 - a.1) * (b.0 - a.0) {
                break;
            }
            edge.pop();
        }
        edge.push(point);
    }
    edge
}
