//! Differences of a GPU's energy counter.
//!
//! The counter starts at zero when the driver is loaded, and again when the driver is reloaded or
//! the GPU is reset. Neither the first reading nor a difference across a reset is energy spent, so
//! both have their own variant of [`EnergyStep`].

use wattle_common::units::Energy;

/// The last reading of one GPU's energy counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EnergyCounter {
    last: Option<Energy>,
}

/// The change of the counter between two readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnergyStep {
    /// First reading: no difference yet.
    First,
    /// Energy spent since the previous reading.
    Spent(Energy),
    /// The counter was reset. The energy spent since the previous reading is unknown, but at least
    /// this much: the counter's value since the reset.
    Reset(Energy),
}

impl EnergyCounter {
    /// Records a reading and returns the change since the previous one.
    pub fn step(&mut self, total: Energy) -> EnergyStep {
        match self.last.replace(total) {
            None => EnergyStep::First,
            Some(last) if total >= last => EnergyStep::Spent(total - last),
            Some(_) => EnergyStep::Reset(total),
        }
    }

    /// Discards the last reading, as after a GPU was lost: the next one is a first again.
    pub fn clear(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reset_is_not_a_difference() {
        let mut counter = EnergyCounter::default();
        assert_eq!(counter.step(Energy::from_mj(500)), EnergyStep::First);
        assert_eq!(counter.step(Energy::from_mj(500)), EnergyStep::Spent(Energy::ZERO));
        assert_eq!(counter.step(Energy::from_mj(750)), EnergyStep::Spent(Energy::from_mj(250)));
        assert_eq!(counter.step(Energy::from_mj(20)), EnergyStep::Reset(Energy::from_mj(20)));
        assert_eq!(counter.step(Energy::from_mj(21)), EnergyStep::Spent(Energy::from_mj(1)));
        counter.clear();
        assert_eq!(counter.step(Energy::from_mj(99)), EnergyStep::First);
    }

    #[test]
    fn steps_add_up_to_the_counter() {
        let readings = [7, 7, 19, 400, 401, u64::MAX];
        let mut counter = EnergyCounter::default();
        let spent: Energy = readings
            .iter()
            .filter_map(|mj| match counter.step(Energy::from_mj(*mj)) {
                EnergyStep::Spent(energy) => Some(energy),
                EnergyStep::First | EnergyStep::Reset(_) => None,
            })
            .sum();
        assert_eq!(spent, Energy::from_mj(u64::MAX - 7));
    }
}
