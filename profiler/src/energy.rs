//! The energy of a GPU since its last reading.
//!
//! It comes from the GPU's energy counter if there is one, otherwise from integrating power. Three
//! faults occur in practice and are distinguished: a counter that restarts (the driver was
//! reloaded), one that does not advance under load (power is integrated until it does), and a gap
//! too long to integrate over. An unknown energy is `None`, never zero.

use std::time::Duration;

use wattle_common::bounds::{GPU_POWER_W_MAX, METER_GRACE};
use wattle_common::units::{Energy, EnergyMeter};
use wattle_common::{Power, Timestamp};
use wattle_gpu::{EnergyCounter, EnergyStep, GpuReading};

/// Longest time a counter may not advance while the GPU draws power. Counters are refreshed every
/// 20 to 100 ms (arXiv 2312.02741, boards of ten years).
const STILL_MAX: Duration = Duration::from_secs(10);

/// Measures one GPU's energy.
#[derive(Clone, Debug)]
pub struct EnergyMeasure {
    /// Longest gap between two readings over which power is integrated.
    gap_max: Duration,
    counter: EnergyCounter,
    counter_last: Option<Energy>,
    at: Option<Timestamp>,
    power: Option<Power>,
    meter: EnergyMeter,
    metered: Energy,
    /// Since when the counter does not advance, and the energy integrated since.
    still_since: Option<(Timestamp, Energy)>,
    stuck: bool,
}

/// The energy since the last reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EnergySpent {
    /// The energy.
    pub energy: Energy,
    /// The time since the last reading.
    pub span: Duration,
}

impl EnergySpent {
    /// The mean power; `None` over no time.
    #[must_use]
    pub fn mean_power(&self) -> Option<Power> {
        self.energy.mean_power(self.span)
    }
}

impl EnergyMeasure {
    /// A measure without a reading; power is integrated over gaps of at most `gap_max`.
    #[must_use]
    pub fn new(gap_max: Duration) -> Self {
        Self {
            gap_max,
            counter: EnergyCounter::default(),
            counter_last: None,
            at: None,
            power: None,
            meter: EnergyMeter::default(),
            metered: Energy::ZERO,
            still_since: None,
            stuck: false,
        }
    }

    /// A measure that continues from the counter's reading at `at` of an earlier run of the
    /// service.
    #[must_use]
    pub fn resumed(gap_max: Duration, at: Timestamp, counter: Energy) -> Self {
        let mut measure = Self::new(gap_max);
        (measure.counter_last, measure.at) = (Some(counter), Some(at));
        measure.counter.step(counter);
        measure
    }

    /// The counter's last reading.
    #[must_use]
    pub const fn counter(&self) -> Option<Energy> {
        self.counter_last
    }

    /// Whether the counter is considered stuck.
    #[must_use]
    pub const fn stuck(&self) -> bool {
        self.stuck
    }

    /// Applies a reading; returns the energy since the last one, if it is known.
    pub fn read(&mut self, now: Timestamp, reading: &GpuReading) -> Option<EnergySpent> {
        let span = self.at.map(|at| now.since(at));
        let integrated = span.and_then(|span| self.integrate(span, reading.power));
        let energy = match reading.energy_total {
            Some(total) => self.count(now, total, integrated, span),
            None => {
                self.counter.clear();
                self.counter_last = None;
                (self.still_since, self.stuck) = (None, false);
                integrated
            }
        };
        self.at = Some(now);
        self.power = reading.power;
        Some(EnergySpent { energy: energy?, span: span? })
    }

    fn integrate(&mut self, span: Duration, power: Option<Power>) -> Option<Energy> {
        if span > self.gap_max {
            return None;
        }
        // The mean of both ends, which is exact for constant power.
        let mean = Power::from_mw((self.power? + power?).as_mw() / 2);
        self.meter.add(mean, span);
        let energy = self.meter.total() - self.metered;
        self.metered = self.meter.total();
        Some(energy)
    }

    fn count(
        &mut self,
        now: Timestamp,
        total: Energy,
        integrated: Option<Energy>,
        span: Option<Duration>,
    ) -> Option<Energy> {
        self.counter_last = Some(total);
        // More than a GPU can draw: an invalid reading or an invalid restored counter.
        let most = Power::from_w(GPU_POWER_W_MAX).over(span.unwrap_or_default() + METER_GRACE);
        match self.counter.step(total) {
            EnergyStep::First => integrated,
            EnergyStep::Reset(energy) | EnergyStep::Spent(energy) if energy > most => integrated,
            EnergyStep::Reset(energy) => {
                (self.still_since, self.stuck) = (None, false);
                Some(energy)
            }
            EnergyStep::Spent(energy) if energy > Energy::ZERO => {
                self.still_since = None;
                // The energy counted for the stuck time has been integrated already.
                if std::mem::take(&mut self.stuck) { integrated } else { Some(energy) }
            }
            EnergyStep::Spent(_) if self.stuck => integrated,
            EnergyStep::Spent(_) => {
                let integrated = integrated.unwrap_or(Energy::ZERO);
                let (since, mut missed) = self.still_since.unwrap_or((now, Energy::ZERO));
                missed += integrated;
                if now.since(since) > STILL_MAX && missed > Energy::ZERO {
                    (self.still_since, self.stuck) = (None, true);
                    return Some(missed);
                }
                self.still_since = Some((since, missed));
                Some(Energy::ZERO)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GAP: Duration = Duration::from_secs(5);

    fn reading(power_w: Option<u64>, total_mj: Option<u64>) -> GpuReading {
        GpuReading {
            power: power_w.map(Power::from_w),
            energy_total: total_mj.map(Energy::from_mj),
            ..GpuReading::default()
        }
    }

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_us(ms * 1_000)
    }

    #[test]
    fn the_counter_has_precedence_over_power() {
        let mut measure = EnergyMeasure::new(GAP);
        assert_eq!(measure.read(at(0), &reading(Some(100), Some(5_000))), None);
        let spent = measure.read(at(100), &reading(Some(100), Some(36_000))).unwrap();
        assert_eq!((spent.energy, spent.span), (Energy::from_j(31), Duration::from_millis(100)));
        // Over any gap.
        let spent = measure.read(at(3_600_000), &reading(None, Some(1_036_000))).unwrap();
        assert_eq!(spent.energy, Energy::from_j(1_000));
        // After the driver was reloaded, at least the counter's value.
        let spent = measure.read(at(3_600_100), &reading(None, Some(7))).unwrap();
        assert_eq!(spent.energy, Energy::from_mj(7));
    }

    #[test]
    fn impossible_steps_of_the_counter_are_replaced_by_power() {
        let mut measure = EnergyMeasure::new(GAP);
        let mut read = |ms, mj| measure.read(at(ms), &reading(Some(100), Some(mj)));
        assert_eq!(read(0, 5_000_000_000_000), None);
        let second = Energy::from_j(100);
        let mut read = |ms, mj| read(ms, mj).unwrap().energy;
        assert_eq!(read(1_000, u64::MAX), second);
        assert_eq!(read(2_000, 5_000_000_000_000), second, "a reset to an impossible value");
        assert_eq!(read(3_000, 5_000_000_090_000), Energy::from_j(90));
    }

    #[test]
    fn no_counter_and_a_long_gap_is_no_energy() {
        let mut measure = EnergyMeasure::new(GAP);
        measure.read(at(0), &reading(Some(100), None));
        let spent = measure.read(at(1_000), &reading(Some(200), None)).unwrap();
        assert_eq!(spent.energy, Energy::from_j(150));
        assert_eq!(measure.read(at(7_000), &reading(Some(200), None)), None);
        assert_eq!(measure.read(at(8_000), &reading(None, None)), None);
        assert_eq!(measure.read(at(9_000), &reading(Some(200), None)), None);
    }

    #[test]
    fn a_stuck_counter_is_replaced_until_it_moves() {
        let mut measure = EnergyMeasure::new(GAP);
        let mut total = Energy::ZERO;
        for i in 0..=200 {
            let spent = measure.read(at(i * 100), &reading(Some(250), Some(1_000)));
            total += spent.map_or(Energy::ZERO, |s| s.energy);
        }
        assert!(measure.stuck());
        assert_eq!(total, Power::from_w(250).over(Duration::from_millis(20_000)));
        // The counter jumps by the missed energy, which was integrated already.
        let spent = measure.read(at(20_100), &reading(Some(250), Some(6_026_000))).unwrap();
        assert_eq!((spent.energy, measure.stuck()), (Energy::from_j(25), false));
        let spent = measure.read(at(20_200), &reading(Some(250), Some(6_050_000))).unwrap();
        assert_eq!(spent.energy, Energy::from_j(24));
    }

    #[test]
    fn an_earlier_run_is_continued() {
        let mut measure = EnergyMeasure::resumed(GAP, at(1_000), Energy::from_j(10));
        let spent = measure.read(at(61_000), &reading(Some(100), Some(6_010_000))).unwrap();
        assert_eq!((spent.energy, spent.span.as_secs()), (Energy::from_j(6_000), 60));
    }

    proptest! {
        /// Without a counter, constant power for t gives P x t to the millijoule, for any sampling.
        #[test]
        fn constant_power_is_exact(mw in 0u64..1_000_000, cuts in prop::collection::vec(1u64..5_000_000, 1..100)) {
            let reading = GpuReading { power: Some(Power::from_mw(mw)), ..GpuReading::default() };
            let mut measure = EnergyMeasure::new(GAP);
            let (mut us, mut total) = (0, Energy::ZERO);
            measure.read(Timestamp::from_us(us), &reading);
            for cut in cuts {
                us += cut;
                total += measure.read(Timestamp::from_us(us), &reading).unwrap().energy;
            }
            prop_assert_eq!(total, Power::from_mw(mw).over(Duration::from_micros(us)));
        }
    }
}
