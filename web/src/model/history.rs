//! The power of the cluster over the last time, for the curve on the overview.

use std::collections::VecDeque;

use wattle_common::{Power, Timestamp};

/// Points that are kept.
const POINTS_MAX: usize = 240;

/// The power at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// When.
    pub at: Timestamp,
    /// The sum of the readings; absent: there was none. The curve has a gap here.
    pub power: Option<Power>,
    /// Whether a reading of a GPU was missing: the sum is then a lower bound and the curve has a gap.
    pub is_partial: bool,
    /// The power limit that was in force; absent: none.
    pub limit: Option<Power>,
}

/// The power at instants of the last time, oldest first.
#[derive(Clone, Debug, Default)]
pub struct History {
    points: VecDeque<Point>,
}

impl History {
    /// Adds a point.
    pub fn push(&mut self, point: Point) {
        self.points.push_back(point);
        while self.points.len() > POINTS_MAX {
            self.points.pop_front();
        }
    }

    /// Begins a gap: the next point follows an unknown time without readings.
    pub fn interrupt(&mut self, at: Timestamp) {
        if let Some(last) = self.points.back().filter(|last| last.power.is_some()) {
            self.push(Point { at, power: None, is_partial: false, limit: last.limit });
        }
    }

    /// The points, oldest first.
    pub fn points(&self) -> impl Iterator<Item = &Point> {
        self.points.iter()
    }
}
