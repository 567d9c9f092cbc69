//! Durations for people: how they are read, and one rule for the unit in tables and in sentences.
//!
//! A unit holds up to 100: 99 s, then 2 min; 99 min, then 1.7 h; 99.9 h, then 4.2 d. Durations that a reader
//! compares, as those of a column, have the unit of the longest of them.

use std::time::Duration;

use crate::time::span_s;

/// A unit of durations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DurationUnit {
    name: &'static str,
    seconds: f64,
}

/// From the largest, with the shortest duration of each in seconds: 100 of the next smaller unit, as rounded.
const UNITS: [(DurationUnit, f64); 4] = [
    (DurationUnit { name: "d", seconds: 86_400.0 }, 359_820.0),
    (DurationUnit { name: "h", seconds: 3_600.0 }, 5_970.0),
    (DurationUnit { name: "min", seconds: 60.0 }, 99.5),
    (DurationUnit { name: "s", seconds: 1.0 }, 0.0),
];

impl DurationUnit {
    /// The unit of durations of which `longest_s` is the longest, in seconds.
    #[must_use]
    pub fn of(longest_s: f64) -> Self {
        let fits = UNITS.iter().find(|(_, from_s)| longest_s >= *from_s);
        fits.map_or(UNITS[3].0, |(unit, _)| *unit)
    }

    /// The unit of several durations in seconds.
    #[must_use]
    pub fn of_all(seconds: impl IntoIterator<Item = f64>) -> Self {
        Self::of(seconds.into_iter().fold(0.0, f64::max))
    }

    /// `s`, `min`, `h` or `d`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// A duration in this unit, without its name.
    #[must_use]
    pub fn value(self, seconds: f64) -> f64 {
        seconds / self.seconds
    }

    /// A duration of several with this unit: `12.3 h`, `0.02 h`.
    #[must_use]
    pub fn format(self, seconds: f64) -> String {
        let value = self.value(seconds);
        let digits = match value.abs() {
            size if size < 0.005 => 0,
            size if size < 0.995 => 2,
            _ => 1,
        };
        format!("{value:.digits$} {}", self.name)
    }
}

/// A duration on its own, in seconds: `45 s`, `12 min`, `3.4 h`, `5.1 d`.
#[must_use]
pub fn span(seconds: f64) -> String {
    let unit = DurationUnit::of(seconds);
    let digits = usize::from(matches!(unit.name, "h" | "d"));
    format!("{:.digits$} {}", unit.value(seconds), unit.name)
}

/// Why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpanError {
    /// A number alone: its unit would be a guess.
    #[error("duration `{0}` has no unit: give {0}s, {0}m, {0}h or {0}d")]
    NoUnit(String),
    /// Another text.
    #[error("invalid duration `{0}`: expected 90s, 45m, 12h or 3d")]
    Invalid(String),
}

/// Parses `90s`, `45m`, `12h` or `3d`.
///
/// # Errors
/// If the text is not a duration that is positive and shorter than 10^10 seconds.
pub fn parse_span(text: &str) -> Result<Duration, SpanError> {
    let wrong = || SpanError::Invalid(text.to_owned());
    let (number, seconds) = match text.char_indices().last() {
        Some((at, 's')) => (&text[..at], 1.0),
        Some((at, 'm')) => (&text[..at], 60.0),
        Some((at, 'h')) => (&text[..at], 3_600.0),
        Some((at, 'd')) => (&text[..at], 86_400.0),
        _ if text.parse::<f64>().is_ok_and(|number| number > 0.0 && number.is_finite()) => {
            return Err(SpanError::NoUnit(text.to_owned()));
        }
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    if !(number > 0.0 && number * seconds < 1e10) {
        return Err(wrong());
    }
    Ok(span_s(number * seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed() {
        assert_eq!(parse_span("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_span("1.5h"), Ok(Duration::from_secs(5_400)));
        for bare in ["30", "10", "1.5", "86400"] {
            let error = parse_span(bare).unwrap_err().to_string();
            assert!(error.contains("no unit") && error.contains(&format!("{bare}m")), "{error}");
        }
        for wrong in ["", "h", "-3h", "0s", "soon", "nan", "1e300d", "-10", "inf"] {
            assert!(parse_span(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_unit_holds_up_to_a_hundred() {
        let spans = [0.0, 3.0, 99.4, 99.5, 240.0, 5_969.0, 5_970.0, 9_000.0, 359_800.0, 400_000.0];
        let expected =
            ["0 s", "3 s", "99 s", "2 min", "4 min", "99 min", "1.7 h", "2.5 h", "99.9 h", "4.6 d"];
        assert_eq!(spans.map(span), expected);
    }

    #[test]
    fn compared_durations_have_the_unit_of_the_longest() {
        let hours = [60.0, 36_000.0, 652_000.0];
        let unit = DurationUnit::of_all(hours);
        assert_eq!(hours.map(|s| unit.format(s)), ["0 d", "0.42 d", "7.5 d"]);
        let unit = DurationUnit::of_all(hours[..2].iter().copied());
        assert_eq!([0.0, 60.0, 36_000.0].map(|s| unit.format(s)), ["0 h", "0.02 h", "10.0 h"]);
        assert_eq!(DurationUnit::of_all([]).name(), "s");
    }
}
