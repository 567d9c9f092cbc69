//! Energy and carbon spent in each budget window, from measurements.
//!
//! Windows are consecutive from the time the budget was set. Energy reported across a boundary is
//! split by time.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use wattle_common::Timestamp;

use crate::power::budget::forecast::Grid;
use crate::power::budget::series::grams;

/// Number of closed windows that are kept.
const KEPT: usize = 400;

/// Energy and carbon spent in one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spent {
    /// Start of the window.
    pub from_us: Timestamp,
    /// End of the window; for the open one, the time of the last report.
    pub until_us: Timestamp,
    /// Energy, joules.
    pub energy_j: f64,
    /// Emissions, grams; 0 without a carbon intensity.
    pub carbon_g: f64,
}

/// Account of the energy and carbon spent, by window.
#[derive(Clone, Debug, PartialEq)]
pub struct Ledger {
    window: Duration,
    open: Spent,
    closed: Vec<Spent>,
}

impl Ledger {
    /// An empty ledger whose first window begins at `from`.
    #[must_use]
    pub fn new(from: Timestamp, window: Duration) -> Self {
        let open = Spent { from_us: from, until_us: from, ..Spent::default() };
        Self { window: window.max(Duration::from_secs(1)), open, closed: Vec::new() }
    }

    /// Continues from a persisted window.
    #[must_use]
    pub fn resumed(open: Spent, window: Duration) -> Self {
        Self { open, ..Self::new(open.from_us, window) }
    }

    /// The open window.
    #[must_use]
    pub const fn open(&self) -> &Spent {
        &self.open
    }

    /// The closed windows, oldest first.
    #[must_use]
    pub fn closed(&self) -> &[Spent] {
        &self.closed
    }

    /// End of the open window.
    #[must_use]
    pub fn ends(&self) -> Timestamp {
        self.open.from_us + self.window
    }

    /// Adds energy spent evenly from `from` until `until`. A part before the open window counts in the
    /// open window.
    pub fn add(&mut self, from: Timestamp, until: Timestamp, joules: f64, grid: Option<&Grid>) {
        let span = until.since(from).as_secs_f64();
        let joules = if joules.is_finite() { joules.max(0.0) } else { 0.0 };
        let mut at = from.max(self.open.from_us);
        if span > 0.0 && from < self.open.from_us {
            let late = joules * until.min(self.open.from_us).since(from).as_secs_f64() / span;
            self.open.energy_j += late;
            let emitted = grid.map(|grid| grams(late, grid.mean(from, until)));
            self.open.carbon_g += emitted.unwrap_or(0.0);
        }
        loop {
            let end = until.min(self.ends()).max(at);
            let part = if span > 0.0 { end.since(at).as_secs_f64() / span } else { 0.0 };
            let spent = joules * part;
            self.open.energy_j += spent;
            if let Some(grid) = grid {
                self.open.carbon_g += grams(spent, grid.mean(at, end));
            }
            self.open.until_us = self.open.until_us.max(end);
            if until < self.ends() {
                return;
            }
            at = self.ends();
            self.close();
            if self.open.from_us == Timestamp::FOREVER {
                return;
            }
        }
    }

    /// Closes the windows that ended before `now`.
    pub fn close_until(&mut self, now: Timestamp) {
        let window_us = u64::try_from(self.window.as_micros()).unwrap_or(u64::MAX);
        let elapsed_us = now.as_us().saturating_sub(self.open.from_us.as_us());
        let surplus = (elapsed_us / window_us).saturating_sub(2 * KEPT as u64);
        if surplus > 0 {
            // Windows that would not be kept are not closed one by one.
            self.close();
            let from = Timestamp::from_us(self.open.from_us.as_us() + (surplus - 1) * window_us);
            self.open = Spent { from_us: from, until_us: from, ..Spent::default() };
        }
        while now >= self.ends() && self.open.from_us < Timestamp::FOREVER {
            self.close();
        }
    }

    fn close(&mut self) {
        let next = self.ends();
        self.open.until_us = next;
        self.closed.push(self.open);
        if self.closed.len() > KEPT {
            self.closed.remove(0);
        }
        self.open = Spent { from_us: next, until_us: next, ..Spent::default() };
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact figures are meant")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::power::budget::forecast::ForecastSource;
    use crate::power::budget::series::Series;

    #[test]
    fn energy_across_a_boundary_is_split_by_time() {
        let mut ledger = Ledger::new(Timestamp::from_s(100), Duration::from_secs(60));
        let two = Series::constant(2.0).unwrap();
        let grid = Grid::new(two, ForecastSource::Perfect, Timestamp::EPOCH);
        ledger.add(Timestamp::from_s(140), Timestamp::from_s(180), 40.0, Some(&grid));
        assert_eq!(ledger.closed().len(), 1);
        assert_eq!((ledger.closed()[0].energy_j, ledger.open().energy_j), (20.0, 20.0));
        assert_eq!(ledger.open().carbon_g, grams(20.0, grid.at(Timestamp::EPOCH)));
        assert_eq!(ledger.ends(), Timestamp::from_s(220));
        // Windows without reports.
        ledger.close_until(Timestamp::from_s(100 + 60 * 5));
        assert_eq!(ledger.closed().len(), 5);
        assert_eq!(ledger.open().energy_j, 0.0);
    }

    proptest! {
        /// The windows add up to the reported energy.
        #[test]
        fn energy_is_conserved(parts in prop::collection::vec((0u64..500, 0.0f64..1e6), 1..40)) {
            let mut ledger = Ledger::new(Timestamp::EPOCH, Duration::from_secs(77));
            let (mut at, mut reported) = (0, 0.0);
            for (span, joules) in parts {
                let from = Timestamp::from_s(at);
                at += span;
                ledger.add(from, Timestamp::from_s(at), joules, None);
                reported += if span > 0 { joules } else { 0.0 };
            }
            let spent: f64 = ledger.closed().iter().chain([ledger.open()]).map(|w| w.energy_j).sum();
            prop_assert!((spent - reported).abs() <= 1e-9 * reported.max(1.0));
            prop_assert!(ledger.closed().windows(2).all(|w| w[0].until_us == w[1].from_us));
        }
    }
}
