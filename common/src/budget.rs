//! What a cluster may spend: energy and carbon over a window, power at every instant.
//!
//! A budget is one value that the command line reads, the placer keeps, and the simulator is run
//! with. Energy and carbon are held by a price, over a whole window; power is a bound at every
//! instant. How, is the placer's business; nothing here decides.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::units::{Carbon, Energy, Power};

/// A window where nobody says how long: a day.
pub const WINDOW_DEFAULT: Duration = Duration::from_secs(86_400);

/// The shortest window: below it one round of planning is a noticeable part of it.
pub const WINDOW_MIN: Duration = Duration::from_secs(60);

/// The longest window: a year.
pub const WINDOW_MAX: Duration = Duration::from_secs(366 * 86_400);

/// What a cluster may spend. What is absent is not limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Energy in each window, whole nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_mj: Option<Energy>,
    /// Emissions in each window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carbon_ug: Option<Carbon>,
    /// Power at every instant, whole nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_mw: Option<Power>,
    /// How long a window is, milliseconds. One follows the other, from when the budget was set.
    #[serde(default = "window_ms_default")]
    pub window_ms: u64,
}

const fn window_ms_default() -> u64 {
    WINDOW_DEFAULT.as_secs() * 1_000
}

impl Default for Budget {
    fn default() -> Self {
        Self { energy_mj: None, carbon_ug: None, power_mw: None, window_ms: window_ms_default() }
    }
}

/// Why a budget is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// A quantity that is no positive number.
    #[error("{flag} {given}: give a number greater than 0")]
    Quantity {
        /// Which option.
        flag: &'static str,
        /// What was given.
        given: String,
    },
    /// A window that is too short or too long.
    #[error("--window of {} s: give a length from 1m to 366d, as in 90m, 24h or 7d", given.as_secs())]
    Window {
        /// What was given.
        given: Duration,
    },
}

impl Budget {
    /// A budget from what people write: kilowatt-hours, kilograms, kilowatts, and a window.
    ///
    /// # Errors
    /// Names the option and the remedy.
    pub fn from_human(
        energy_kwh: Option<f64>,
        carbon_kg: Option<f64>,
        power_kw: Option<f64>,
        window: Option<Duration>,
    ) -> Result<Self, BudgetError> {
        /// A milli-unit of anything up to a gigawatt-year fits in 64 bits.
        const MOST: f64 = 1e10;
        let sound = |flag: &'static str, value: Option<f64>| match value {
            Some(value) if !(value > 0.0 && value <= MOST) => {
                Err(BudgetError::Quantity { flag, given: value.to_string() })
            }
            value => Ok(value),
        };
        let whole = |value: f64| (value.round() as u64).max(1);
        let energy = sound("--energy-kwh", energy_kwh)?.map(|kwh| whole(kwh.min(5e9) * 3.6e9));
        let carbon = sound("--carbon-kg", carbon_kg)?.map(|kg| whole(kg * 1e9));
        let power = sound("--power-kw", power_kw)?.map(|kw| whole(kw * 1e6));
        let window = window.unwrap_or(WINDOW_DEFAULT);
        if !(WINDOW_MIN..=WINDOW_MAX).contains(&window) {
            return Err(BudgetError::Window { given: window });
        }
        Ok(Self {
            energy_mj: energy.map(Energy::from_mj),
            carbon_ug: carbon.map(Carbon::from_ug),
            power_mw: power.map(Power::from_mw),
            window_ms: u64::try_from(window.as_millis()).unwrap_or(u64::MAX),
        })
    }

    /// Whether nothing is limited.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.energy_mj.is_none() && self.carbon_ug.is_none() && self.power_mw.is_none()
    }

    /// Whether something is limited over a window, and so needs a price.
    #[must_use]
    pub const fn has_window(&self) -> bool {
        self.energy_mj.is_some() || self.carbon_ug.is_some()
    }

    /// How long a window is.
    #[must_use]
    pub const fn window(&self) -> Duration {
        Duration::from_millis(self.window_ms)
    }

    /// Whether a message holds what can be: a window of a length that is allowed, and no zero.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        (WINDOW_MIN..=WINDOW_MAX).contains(&self.window())
            && self.energy_mj.is_none_or(|energy| energy > Energy::ZERO)
            && self.carbon_ug.is_none_or(|carbon| carbon > Carbon::ZERO)
            && self.power_mw.is_none_or(|power| power > Power::ZERO)
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact figures are meant")]
mod tests {
    use super::*;

    #[test]
    fn budgets_read_as_people_write_them() {
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
        assert!(budget.is_sound() && budget.has_window() && !budget.is_none());
        let nothing = Budget::from_human(None, None, None, None).unwrap();
        assert_eq!(nothing, Budget::default());
        assert!(nothing.is_none() && nothing.is_sound());
    }

    #[test]
    fn what_is_no_budget_is_refused_with_its_remedy() {
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
    fn a_message_without_a_window_means_a_day() {
        let budget: Budget = serde_json::from_str(r#"{"power_mw": 5000}"#).unwrap();
        assert_eq!(budget.window(), WINDOW_DEFAULT);
        let zero: Budget = serde_json::from_str(r#"{"energy_mj": 0}"#).unwrap();
        assert!(!zero.is_sound());
    }
}
