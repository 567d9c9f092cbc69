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
