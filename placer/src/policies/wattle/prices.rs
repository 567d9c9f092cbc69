//! Prices: of the two scarce resources, GPU-seconds and power below a limit, now and expected; and of energy.

use crate::plan::input::PlanningInput;

/// Prices at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Prices {
    /// Of a GPU-second, s.
    pub(super) gpu: f64,
    /// Of a joule that is drawn below the power limit, s/J; 0 where power is not scarce.
    pub(super) power: f64,
}

impl Prices {
    /// Both prices, mixed with this weight of the first.
    fn mix(first: Self, second: Self, weight: f64) -> Self {
        let mix = |first: f64, second: f64| second + (first - second) * weight;
        Self { gpu: mix(first.gpu, second.gpu), power: mix(first.power, second.power) }
    }
}

/// The price of energy, seconds of completion time per joule.
#[derive(Clone, Copy, Debug)]
pub(super) struct EnergyPrice {
    /// At the grid's present carbon intensity.
    pub(super) now: f64,
    /// At its mean.
    pub(super) mean: f64,
}

impl EnergyPrice {
    pub(super) fn of(input: PlanningInput<'_>) -> Self {
        Self { now: input.limits.price_now(), mean: input.limits.price }
    }
}

/// The prices of a joule: for the energy, and for the power while it is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct JoulePrices {
    /// The energy price at the grid's present carbon intensity, s/J.
    pub(super) energy: f64,
    /// The price of power, s/J.
    pub(super) power: f64,
}

impl JoulePrices {
    /// The cost of this charged power, of which a power limit counts `drawn_w`, watts; s/s.
    pub(super) fn cost(self, watts: f64, drawn_w: f64) -> f64 {
        self.energy * watts + self.power * drawn_w
    }

    /// The sum of both.
    pub(super) fn total(self) -> f64 {
        self.energy + self.power
    }
}

/// The longest time over which the price of power is averaged, s.
const MEAN_OVER_S: f64 = 20.0 * 86_400.0;

/// The mean price of power so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct MeanPowerPrice {
    /// s/J.
    pub(super) value: f64,
    /// The time over which it is the mean, s.
    over_s: f64,
}

impl MeanPowerPrice {
    /// The mean after power had this price for a while.
    pub(super) fn with(self, price: f64, lasted_s: f64) -> Self {
        let over_s = (self.over_s + lasted_s).min(MEAN_OVER_S);
        let share = if over_s > 0.0 { (lasted_s / over_s).min(1.0) } else { 0.0 };
        Self { value: self.value + share * (price - self.value), over_s }
    }
}

/// The expected prices over time: they return to their long-run values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct PriceForecast {
    pub(super) long_run: Prices,
    /// The time constant with which the present prices decay to them, s.
    pub(super) tau_s: f64,
}

impl PriceForecast {
    /// The weight of the present prices after this time.
    pub(super) fn decay(&self, seconds: f64) -> f64 {
        (-seconds / self.tau_s).exp()
    }

    /// The expected prices where the present ones have this weight.
    pub(super) fn decayed(&self, now: Prices, decay: f64) -> Prices {
        Prices::mix(now, self.long_run, decay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_price_of_power_is_over_the_time_that_each_price_lasted() {
        let mean = MeanPowerPrice::default().with(0.0, 300.0).with(4e-4, 100.0);
        assert!((mean.value - 1e-4).abs() < 1e-12, "{mean:?}");
        assert_eq!(mean.with(9e-4, 0.0), mean);
        // Prices of long ago count less and less.
        let long = (0..100).fold(mean, |mean, _| mean.with(2e-4, MEAN_OVER_S / 10.0));
        assert!((long.value - 2e-4).abs() < 1e-8, "{long:?}");
        assert!((mean.with(3e-4, 1e9).value - 3e-4).abs() < 1e-12);
    }

    #[test]
    fn the_forecast_returns_to_the_long_run_prices() {
        let long_run = Prices { gpu: 0.1, power: 1e-4 };
        let forecast = PriceForecast { long_run, tau_s: 100.0 };
        let now = Prices { gpu: 2.0, power: 0.0 };
        let after = |seconds| forecast.decayed(now, forecast.decay(seconds));
        let (first, last) = (after(0.0), after(1e6));
        assert!((first.gpu - 2.0).abs() < 1e-12 && first.power.abs() < 1e-12);
        assert!((last.gpu - 0.1).abs() < 1e-12 && (last.power - 1e-4).abs() < 1e-12);
    }
}
