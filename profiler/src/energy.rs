//! The energy of a GPU since its last reading.
//!
//! It comes from the GPU's energy counter if there is one, otherwise from integrating power. The counter of a
//! whole module, with its CPU, is not the GPU's. A GPU may support neither reading. Three
//! faults occur in practice and are distinguished: a counter that restarts (the driver was
//! reloaded), one that does not advance under load (power is integrated until it does), and a gap
//! too long to integrate over. Energy that was not measured completely is marked with its cause
//! ([`Measured::unmeasured`]), never counted as zero silently.

use std::time::Duration;

use wattle_common::bounds::{GPU_POWER_W_MAX, METER_GRACE};
use wattle_common::messages::{Meter, UnknownCause};
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
    /// Energy integrated while the counter was stuck.
    integrated_stuck: Energy,
    /// Whether the node was restarted since the last reading, which resets the counter.
    restarted: bool,
}

/// The energy since the last reading, and whether that is all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// The measured energy.
    pub energy: Energy,
    /// The time since the last reading.
    pub span: Duration,
    /// Why more energy may have been consumed than was measured; `None`: the energy is complete.
    pub unmeasured: Option<UnknownCause>,
    /// Whether the counter may have restarted since the last reading and passed its value there: a GPU can
    /// draw its present value in the time.
    pub may_have_restarted: bool,
}

/// The energy since the last reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EnergySpent {
    /// The energy.
    pub energy: Energy,
    /// The time since the last reading.
    pub span: Duration,
}

impl Measured {
    /// The measured energy and its time.
    #[must_use]
    pub const fn spent(&self) -> EnergySpent {
        EnergySpent { energy: self.energy, span: self.span }
    }
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
            integrated_stuck: Energy::ZERO,
            restarted: false,
        }
    }

    /// A measure after a restart of the node; the last reading was at `at`.
    #[must_use]
    pub fn restarted(gap_max: Duration, at: Timestamp) -> Self {
        Self { at: Some(at), restarted: true, ..Self::new(gap_max) }
    }

    /// A measure of a GPU without a counter, last read at `at`.
    #[must_use]
    pub fn resumed_without_counter(gap_max: Duration, at: Timestamp) -> Self {
        Self { at: Some(at), ..Self::new(gap_max) }
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

    /// When it was last read.
    #[must_use]
    pub const fn read_at(&self) -> Option<Timestamp> {
        self.at
    }

    /// The power at the last reading.
    #[must_use]
    pub const fn power(&self) -> Option<Power> {
        self.power
    }

    /// Whether the node was restarted since the last reading.
    #[must_use]
    pub const fn is_restarted(&self) -> bool {
        self.restarted
    }

    /// How the energy is measured by this reading; `None`: not known, because nothing was read this time.
    #[must_use]
    pub const fn meter(&self, reading: &GpuReading) -> Option<Meter> {
        if reading.has_no_meter {
            Some(Meter::None)
        } else if reading.energy_total.is_some() && !self.stuck {
            Some(Meter::Counter)
        } else if reading.power.is_some() {
            Some(Meter::Power)
        } else {
            None
        }
    }

    /// Whether the counter is considered stuck.
    #[must_use]
    pub const fn stuck(&self) -> bool {
        self.stuck
    }

    /// Applies a reading; returns the energy since the last one. `None` for the first reading, and for
    /// one without energy and power, which the next reading covers.
    pub fn read(&mut self, now: Timestamp, reading: &GpuReading) -> Option<Measured> {
        let span = self.at.map(|at| now.since(at));
        if reading.has_no_meter {
            *self = Self { at: Some(now), ..Self::new(self.gap_max) };
            let (energy, unmeasured) = (Energy::ZERO, Some(UnknownCause::NoMeter));
            return Some(Measured { energy, span: span?, unmeasured, may_have_restarted: false });
        }
        let integrated = span.and_then(|span| self.integrate(span, reading.power));
        let counted = match reading.energy_total {
            Some(total) => self.count(now, total, integrated, span),
            None if integrated.is_none() && self.counter_last.is_some() => return None,
            None => {
                self.counter.clear();
                self.counter_last = None;
                (self.still_since, self.stuck) = (None, false);
                integrated.ok_or((Energy::ZERO, UnknownCause::NoCounter))
            }
        };
        self.at = Some(now);
        self.power = reading.power;
        let (energy, unmeasured) = match counted {
            Ok(energy) => (energy, None),
            Err((energy, cause)) => (energy, Some(cause)),
        };
        let span = span?;
        let within = |total| total <= Power::from_w(GPU_POWER_W_MAX).over(span + METER_GRACE);
        let may_have_restarted = reading.energy_total.is_some_and(within);
        Some(Measured { energy, span, unmeasured, may_have_restarted })
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

    /// The energy by the counter; an error is the part that was measured, with the cause.
    fn count(
        &mut self,
        now: Timestamp,
        total: Energy,
        integrated: Option<Energy>,
        span: Option<Duration>,
    ) -> Result<Energy, (Energy, UnknownCause)> {
        self.counter_last = Some(total);
        // More than a GPU can draw: an invalid reading or an invalid restored counter.
        let most = Power::from_w(GPU_POWER_W_MAX).over(span.unwrap_or_default() + METER_GRACE);
        let invalid = (Energy::ZERO, UnknownCause::CounterInvalid);
        let restarted = std::mem::take(&mut self.restarted);
        match self.counter.step(total) {
            EnergyStep::First if restarted && total <= most => {
                Err((total, UnknownCause::NodeRestarted))
            }
            EnergyStep::First if restarted => Err(invalid),
            EnergyStep::First => integrated.ok_or((Energy::ZERO, UnknownCause::NoCounter)),
            EnergyStep::Reset(energy) | EnergyStep::Spent(energy) if energy > most => {
                integrated.ok_or(invalid)
            }
            EnergyStep::Reset(energy) => {
                (self.still_since, self.stuck) = (None, false);
                // The counter's value is a part, so the larger figure is the better one.
                let measured = integrated.map(|integrated| integrated.max(energy));
                measured.ok_or((energy, UnknownCause::CounterReset))
            }
            EnergyStep::Spent(energy) if energy > Energy::ZERO => {
                self.still_since = None;
                if !std::mem::take(&mut self.stuck) {
                    return Ok(energy);
                }
                // The energy counted for the stuck time has been integrated already.
                let before = std::mem::take(&mut self.integrated_stuck);
                Ok(integrated.unwrap_or(energy.saturating_sub(before)))
            }
            EnergyStep::Spent(_) if self.stuck => {
                self.integrated_stuck += integrated.unwrap_or_default();
                integrated.ok_or(invalid)
            }
            // No GPU draws nothing over a gap that is too long to integrate over.
            EnergyStep::Spent(_) if integrated.is_none() && span > Some(STILL_MAX) => Err(invalid),
            EnergyStep::Spent(_) => {
                let integrated = integrated.unwrap_or(Energy::ZERO);
                let (since, mut missed) = self.still_since.unwrap_or((now, Energy::ZERO));
                missed += integrated;
                if now.since(since) > STILL_MAX && missed > Energy::ZERO {
                    (self.still_since, self.stuck) = (None, true);
                    self.integrated_stuck = missed;
                    return Ok(missed);
                }
                self.still_since = Some((since, missed));
                Ok(Energy::ZERO)
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
        assert_eq!(spent.unmeasured, Some(UnknownCause::CounterReset));
    }

    #[test]
    fn a_reset_between_two_readings_is_integrated() {
        let mut measure = EnergyMeasure::new(GAP);
        measure.read(at(0), &reading(Some(100), Some(5_000_000)));
        let spent = measure.read(at(1_000), &reading(Some(100), Some(60_000))).unwrap();
        assert_eq!((spent.energy, spent.unmeasured), (Energy::from_j(100), None));
    }

    #[test]
    fn a_restart_of_the_node_leaves_the_time_before_unmeasured() {
        let mut measure = EnergyMeasure::restarted(GAP, at(1_000));
        // The counter may have passed its last value before the restart.
        let spent = measure.read(at(61_000), &reading(Some(100), Some(3_000_000))).unwrap();
        assert_eq!(spent.energy, Energy::from_j(3_000));
        assert_eq!(spent.unmeasured, Some(UnknownCause::NodeRestarted));
    }

    #[test]
    fn a_reading_without_energy_and_power_is_covered_by_the_next_one() {
        let mut measure = EnergyMeasure::new(GAP);
        measure.read(at(0), &reading(Some(100), Some(5_000)));
        assert_eq!(measure.read(at(1_000), &reading(None, None)), None);
        let spent = measure.read(at(2_000), &reading(Some(100), Some(205_000))).unwrap();
        assert_eq!((spent.energy, spent.span.as_secs()), (Energy::from_j(200), 2));
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
        for (ms, power) in [(7_000, Some(200)), (8_000, None), (9_000, Some(200))] {
            let spent = measure.read(at(ms), &reading(power, None)).unwrap();
            let unmeasured = Some(UnknownCause::NoCounter);
            assert_eq!((spent.energy, spent.unmeasured), (Energy::ZERO, unmeasured));
        }
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
