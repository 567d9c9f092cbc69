//! The power of the cluster over the last time, for the curve on the overview.

use std::collections::VecDeque;

use wattle_common::{Power, Timestamp};

/// Points that are kept.
const POINTS_MAX: usize = 240;

/// The power at instants of the last time, oldest first.
#[derive(Clone, Debug, Default)]
pub struct History {
    points: VecDeque<(Timestamp, Power)>,
}

impl History {
    /// Adds a reading.
    pub fn push(&mut self, at: Timestamp, power: Power) {
        self.points.push_back((at, power));
        while self.points.len() > POINTS_MAX {
            self.points.pop_front();
        }
    }

    /// The points, oldest first.
    pub fn points(&self) -> impl Iterator<Item = &(Timestamp, Power)> {
        self.points.iter()
    }
}
