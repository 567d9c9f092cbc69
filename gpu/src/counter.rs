//! Differences of a card's energy counter.
//!
//! The counter starts when the driver is loaded and starts again when it is loaded again or the
//! card is reset. A difference across such a start is not energy, and neither is the first reading,
//! so both are told apart here rather than passed on as a number.

use wattle_common::units::Energy;

/// Remembers the counter's last reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EnergyCounter {
    last: Option<Energy>,
}

/// What a reading adds to the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There was none before.
    First,
    /// So much was spent since.
    Spent(Energy),
    /// The counter began again; what was spent since the reading before is not known, but it is at
    /// least this much, which the counter shows since its new beginning.
    Restarted(Energy),
}

impl EnergyCounter {
    /// Takes the next reading.
    pub fn step(&mut self, total: Energy) -> Step {
        match self.last.replace(total) {
            None => Step::First,
            Some(last) if total >= last => Step::Spent(total - last),
            Some(_) => Step::Restarted(total),
        }
    }

    /// Forgets the last reading, as after a card was lost: the next one is a first again.
    pub fn forget(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_is_not_a_difference() {
        let mut counter = EnergyCounter::default();
        assert_eq!(counter.step(Energy::from_mj(500)), Step::First);
        assert_eq!(counter.step(Energy::from_mj(500)), Step::Spent(Energy::ZERO));
        assert_eq!(counter.step(Energy::from_mj(750)), Step::Spent(Energy::from_mj(250)));
        assert_eq!(counter.step(Energy::from_mj(20)), Step::Restarted(Energy::from_mj(20)));
        assert_eq!(counter.step(Energy::from_mj(21)), Step::Spent(Energy::from_mj(1)));
        counter.forget();
        assert_eq!(counter.step(Energy::from_mj(99)), Step::First);
    }

    #[test]
    fn steps_add_up_to_the_counter() {
        let readings = [7, 7, 19, 400, 401, u64::MAX];
        let mut counter = EnergyCounter::default();
        let spent: Energy = readings
            .iter()
            .filter_map(|mj| match counter.step(Energy::from_mj(*mj)) {
                Step::Spent(energy) => Some(energy),
                Step::First | Step::Restarted(_) => None,
            })
            .sum();
        assert_eq!(spent, Energy::from_mj(u64::MAX - 7));
    }
}
