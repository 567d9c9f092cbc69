//! A cluster's budget: limits on energy and carbon over a window, and on power at every instant.
//!
//! The command line parses a budget; the placer and the simulator enforce it, energy and carbon
//! through an energy price, power as a hard limit.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::power_series::PowerSeries;
use crate::time::Timestamp;
use crate::units::{Carbon, Energy, Power};

/// Default window: one day.
pub const WINDOW_DEFAULT: Duration = Duration::from_secs(86_400);

/// Shortest window; below it one planning round is a noticeable part of the window.
pub const WINDOW_MIN: Duration = Duration::from_secs(60);

/// Longest window: one year.
pub const WINDOW_MAX: Duration = Duration::from_secs(366 * 86_400);

/// Limits on energy, carbon and power; an absent quantity is not limited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Energy in each window, complete nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_mj: Option<Energy>,
    /// Emissions in each window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carbon_ug: Option<Carbon>,
    /// Power at every instant, complete nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_mw: Option<Power>,
    /// Power over time, complete nodes. Of two limits the lower one counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_series: Option<PowerSeries>,
    /// Length of a window, milliseconds. Windows follow each other from the time the budget is set.
    #[serde(default = "window_ms_default")]
    pub window_ms: u64,
}

const fn window_ms_default() -> u64 {
    WINDOW_DEFAULT.as_secs() * 1_000
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            energy_mj: None,
            carbon_ug: None,
            power_mw: None,
            power_series: None,
            window_ms: window_ms_default(),
        }
    }
}

/// Why a budget is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// A quantity that is not a positive number.
    #[error("{flag} {given}: give a number greater than 0")]
    Quantity {
        /// The option.
        flag: &'static str,
        /// The given value.
        given: String,
    },
    /// A window that is too short or too long.
    #[error("--window of {} s: give a length from 1m to 366d, as in 90m, 24h or 7d", given.as_secs())]
    Window {
        /// The given value.
        given: Duration,
    },
}

impl Budget {
    /// A budget from kilowatt-hours, kilograms of CO2, kilowatts, and a window.
    ///
    /// # Errors
    /// [`BudgetError`] names the option and the remedy.
    pub fn from_human(
        energy_kwh: Option<f64>,
        carbon_kg: Option<f64>,
        power_kw: Option<f64>,
        window: Option<Duration>,
    ) -> Result<Self, BudgetError> {
        /// In milli-units, any quantity up to a gigawatt-year fits in 64 bits.
        const QUANTITY_MAX: f64 = 1e10;
        let check = |flag: &'static str, value: Option<f64>| match value {
            Some(value) if !(value > 0.0 && value <= QUANTITY_MAX) => {
                Err(BudgetError::Quantity { flag, given: value.to_string() })
            }
            value => Ok(value),
        };
        let rounded = |value: f64| (value.round() as u64).max(1);
        let energy = check("--energy-kwh", energy_kwh)?.map(|kwh| rounded(kwh.min(5e9) * 3.6e9));
        let carbon = check("--carbon-kg", carbon_kg)?.map(|kg| rounded(kg * 1e9));
        let power = check("--power-kw", power_kw)?.map(|kw| rounded(kw * 1e6));
        let window = window.unwrap_or(WINDOW_DEFAULT);
        if !(WINDOW_MIN..=WINDOW_MAX).contains(&window) {
            return Err(BudgetError::Window { given: window });
        }
        Ok(Self {
            energy_mj: energy.map(Energy::from_mj),
            carbon_ug: carbon.map(Carbon::from_ug),
            power_mw: power.map(Power::from_mw),
            power_series: None,
            window_ms: u64::try_from(window.as_millis()).unwrap_or(u64::MAX),
        })
    }

    /// Whether nothing is limited.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.energy_mj.is_none() && self.carbon_ug.is_none() && !self.limits_power()
    }

    /// Whether power is limited.
    #[must_use]
    pub const fn limits_power(&self) -> bool {
        self.power_mw.is_some() || self.power_series.is_some()
    }

    /// The power limit at an instant.
    #[must_use]
    pub fn power_at(&self, at: Timestamp) -> Option<Power> {
        self.least_power(at, at)
    }

    /// The lowest power limit from `from` until before `until`; for an empty interval, that at `from`.
    #[must_use]
    pub fn least_power(&self, from: Timestamp, until: Timestamp) -> Option<Power> {
        let in_series = self.power_series.as_ref().map(|series| series.least(from, until));
        self.power_mw.into_iter().chain(in_series).min()
    }

    /// Whether energy or carbon is limited, which requires a price.
    #[must_use]
    pub const fn has_window(&self) -> bool {
        self.energy_mj.is_some() || self.carbon_ug.is_some()
    }

    /// Length of a window.
    #[must_use]
    pub const fn window(&self) -> Duration {
        Duration::from_millis(self.window_ms)
    }

    /// Whether the values are in range: an allowed window length, and no zero quantity.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        (WINDOW_MIN..=WINDOW_MAX).contains(&self.window())
            && self.energy_mj.is_none_or(|energy| energy > Energy::ZERO)
            && self.carbon_ug.is_none_or(|carbon| carbon > Carbon::ZERO)
            && self.power_mw.is_none_or(|power| power > Power::ZERO)
            && self.power_series.as_ref().is_none_or(|series| series.check().is_ok())
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact figures are meant")]
mod tests {
    use super::*;

    #[test]
    fn human_units_are_converted() {
        let budget = Budget::from_human(
            Some(1.5),
            Some(0.25),
            Some(12.0),
            Some(Duration::from_secs(21_600)),
        )
        .unwrap();
        assert_eq!(budget.energy_mj, Some(Energy::from_j(5_400_000)));
        assert_eq!(budget.carbon_ug, Some(Carbon::from_ug(250_000_000)));
        assert_eq!(budget.power_mw, Some(Power::from_w(12_000)));
        assert_eq!(budget.window(), Duration::from_secs(21_600));
        assert!(budget.is_valid() && budget.has_window() && !budget.is_none());
        let nothing = Budget::from_human(None, None, None, None).unwrap();
        assert_eq!(nothing, Budget::default());
        assert!(nothing.is_none() && nothing.is_valid());
    }

    #[test]
    fn errors_name_the_option_and_the_remedy() {
        let refused = |energy, window_s: Option<u64>| {
            let window = window_s.map(Duration::from_secs);
            Budget::from_human(energy, None, None, window).unwrap_err().to_string()
        };
        expect_test::expect![[r#"
            --energy-kwh 0: give a number greater than 0
            --energy-kwh -3: give a number greater than 0
            --energy-kwh NaN: give a number greater than 0
            --window of 3 s: give a length from 1m to 366d, as in 90m, 24h or 7d
            --window of 34560000 s: give a length from 1m to 366d, as in 90m, 24h or 7d
        "#]]
        .assert_eq(
            &[
                refused(Some(0.0), None),
                refused(Some(-3.0), None),
                refused(Some(f64::NAN), None),
                refused(None, Some(3)),
                refused(None, Some(400 * 86_400)),
            ]
            .map(|error| error + "\n")
            .concat(),
        );
    }

    #[test]
    fn of_two_power_limits_the_lower_one_counts() {
        let at = Timestamp::from_s;
        let series = PowerSeries::parse("at_s,kw\n0,10\n60,5\n120,10", at(0)).unwrap();
        let mut budget = Budget { power_series: Some(series), ..Budget::default() };
        assert!(budget.limits_power() && !budget.is_none());
        assert_eq!(budget.power_at(at(10)), Some(Power::from_w(10_000)));
        budget.power_mw = Some(Power::from_w(7_000));
        let limits = [10, 70].map(|s| budget.power_at(at(s)));
        assert_eq!(limits, [7_000, 5_000].map(|w| Some(Power::from_w(w))));
        assert_eq!(budget.least_power(at(10), at(61)), Some(Power::from_w(5_000)));
        assert_eq!(Budget::default().power_at(at(0)), None);
    }

    #[test]
    fn missing_window_defaults_to_a_day() {
        let budget: Budget = serde_json::from_str(r#"{"power_mw": 5000}"#).unwrap();
        assert_eq!(budget.window(), WINDOW_DEFAULT);
        let zero: Budget = serde_json::from_str(r#"{"energy_mj": 0}"#).unwrap();
        assert!(!zero.is_valid());
    }
}
