//! When the next planning round is due.

use std::time::Duration;

use wattle_common::Timestamp;

/// The planning rounds: their number and the time of the next one.
pub(super) struct Rounds {
    at: Option<Timestamp>,
    made: u64,
    /// The time during which events are collected before a round.
    delay: Duration,
}

impl Rounds {
    /// The first round follows after the delay.
    pub(super) fn new(delay: Duration, now: Timestamp) -> Self {
        Self { at: Some(now + delay), made: 0, delay }
    }

    /// Number of rounds since the start.
    pub(super) const fn made(&self) -> u64 {
        self.made
    }

    /// When the next round is due.
    pub(super) const fn at(&self) -> Option<Timestamp> {
        self.at
    }

    /// A round follows after the delay.
    pub(super) fn soon(&mut self, now: Timestamp) {
        self.by(now, now);
    }

    /// A round follows at `at`, and not before the delay.
    pub(super) fn by(&mut self, now: Timestamp, at: Timestamp) {
        let at = at.max(now + self.delay);
        self.at = Some(self.at.map_or(at, |sooner| sooner.min(at)));
    }

    /// A round begins; the next one is not due yet.
    pub(super) const fn begin(&mut self) {
        self.at = None;
        self.made += 1;
    }
}
