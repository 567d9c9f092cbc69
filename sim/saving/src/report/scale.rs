//! Scales and their ticks: where a value stands on an axis, and which numbers are written beside
//! it.
//!
//! Ticks are numbers a person would choose: 1, 2, 2.5 or 5 times a power of ten on a linear scale,
//! and a set of leading digits that gives enough of them on a logarithmic one.

use super::format::grouped;

/// A line of numbers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    log: bool,
    ticks: Vec<f64>,
}

impl Scale {
    /// From zero to at least `high`, ending on a tick.
    pub(super) fn from_zero(high: f64, about: usize) -> Self {
        let high = if high > 0.0 { high } else { 1.0 };
        let step = nice_step(high / about as f64);
        Self::stepped(0.0, (high / step - 1e-9).ceil() * step, step)
    }

    /// From `low` to `high` and no further, with ticks inside.
    pub(super) fn exact(low: f64, high: f64, about: usize) -> Self {
        let high = if high > low { high } else { low + 1.0 };
        let step = nice_step((high - low) / about as f64);
        Self::stepped(low, high, step)
    }

    /// Logarithmic where `high` is twice `low` or more, else linear; both above zero, or linear.
    pub(super) fn ratios(low: f64, high: f64, about: usize) -> Self {
        if !(low > 0.0 && high >= 2.0 * low) {
            return Self::exact(low, high, about);
        }
        /// Leading digits, the sparsest set first.
        const DIGITS: [&[f64]; 5] = [
            &[1.0],
            &[1.0, 3.0],
            &[1.0, 2.0, 5.0],
            &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0],
            &[1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0],
        ];
        let decades = low.log10().floor() as i32..=high.log10().floor() as i32;
        let ticks = |digits: &[f64]| -> Vec<f64> {
            let all = decades
                .clone()
                .flat_map(|decade| digits.iter().map(move |digit| digit * 10f64.powi(decade)));
            all.filter(|tick| (low..=high).contains(tick)).collect()
        };
        let enough = DIGITS.iter().map(|digits| ticks(digits)).find(|t| t.len() + 1 >= about);
        let ticks = enough.unwrap_or_else(|| ticks(DIGITS[DIGITS.len() - 1]));
        Self { low, high, log: true, ticks }
    }

    fn stepped(low: f64, high: f64, step: f64) -> Self {
        let first = (low / step - 1e-9).ceil() as i64;
        let last = (high / step + 1e-9).floor() as i64;
        let ticks = (first..=last).map(|i| i as f64 * step).collect();
        Self { low, high, log: false, ticks }
    }

    /// Whether equal ratios are equally long.
    pub(super) const fn is_log(&self) -> bool {
        self.log
    }

    /// Where a value stands: 0 at the beginning, 1 at the end. Values beyond are extrapolated
    /// within limits.
    pub(super) fn at(&self, value: f64) -> f64 {
        let share = if self.log {
            (value.max(f64::MIN_POSITIVE) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        share.clamp(-9.0, 9.0)
    }

    /// Ticks with their places and texts.
    pub(super) fn ticks(&self) -> impl Iterator<Item = (f64, String)> {
        self.ticks.iter().map(|&tick| (self.at(tick), label(tick)))
    }
}

/// 1, 2, 2.5 or 5 times a power of ten, at least `raw`.
fn nice_step(raw: f64) -> f64 {
    let power = 10f64.powi(raw.log10().floor() as i32);
    let lead = raw / power;
    let nice = [1.0, 2.0, 2.5, 5.0].into_iter().find(|nice| lead <= nice * (1.0 + 1e-9));
    nice.unwrap_or(10.0) * power
}

/// A tick without zeros at its end.
fn label(tick: f64) -> String {
    let text = format!("{tick:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    grouped(if text == "-0" { "0" } else { text })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(scale: &Scale) -> Vec<String> {
        scale.ticks().map(|(_, text)| text).collect()
    }

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(texts(&Scale::from_zero(47.3, 5)), ["0", "10", "20", "30", "40", "50"]);
        assert_eq!(texts(&Scale::exact(5.1, 10.9, 6)), ["6", "7", "8", "9", "10"]);
        assert_eq!(texts(&Scale::exact(0.0, 0.4, 4)), ["0", "0.1", "0.2", "0.3", "0.4"]);
        assert_eq!(texts(&Scale::ratios(12.0, 55.0, 5)), ["15", "20", "30", "50"]);
        assert_eq!(texts(&Scale::ratios(1.0, 20_000.0, 5)), ["1", "10", "100", "1,000", "10,000"]);
        // Too narrow for ratios.
        assert!(!Scale::ratios(10.0, 12.0, 4).is_log());
        // Nothing to show is no reason to fail.
        assert_eq!(texts(&Scale::from_zero(0.0, 2)), ["0", "0.5", "1"]);
    }

    #[test]
    fn ends_are_at_nought_and_one() {
        for scale in [Scale::exact(3.0, 8.0, 4), Scale::ratios(3.0, 80.0, 4)] {
            assert!(scale.at(3.0).abs() < 1e-12);
            assert!((scale.at(scale.high) - 1.0).abs() < 1e-12);
        }
        let log = Scale::ratios(1.0, 100.0, 3);
        assert!((log.at(10.0) - 0.5).abs() < 1e-12);
    }
}
