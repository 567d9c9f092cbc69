//! Durations and starts as OpenADR writes them.
//!
//! A duration is ISO 8601: a year counts 365 days, a month 30. `P9999Y` stands for one without an end. The start
//! `0001-01-01`, with or without a time, stands for now.

use std::time::Duration;

use jiff::fmt::temporal::SpanParser;
use wattle_common::Timestamp;
use wattle_grid::instant;

/// A duration that is longer has no end.
const ENDLESS_FROM: Duration = Duration::from_secs(1_000 * 365 * 86_400);

/// A duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// It ends.
    Of(Duration),
    /// It does not.
    Endless,
}

impl Length {
    /// The end of what begins at `from`.
    #[must_use]
    pub fn after(self, from: Timestamp) -> Timestamp {
        match self {
            Self::Of(length) => from + length,
            Self::Endless => Timestamp::FOREVER,
        }
    }
}

/// A start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At an instant.
    At(Timestamp),
    /// Now, or where the interval before ends.
    Now,
}

fn quoted(text: &str) -> String {
    let short: String = text.chars().filter(|c| !c.is_control()).take(40).collect();
    format!("`{short}`")
}

/// Reads a duration, as `PT1H30M`; the sign of a negative one is ignored where `is_absolute`.
///
/// # Errors
/// Names the text and what is accepted.
pub fn duration(text: &str, is_absolute: bool) -> Result<Length, String> {
    let wrong = || format!("{} is not a duration of ISO 8601, as PT1H", quoted(text));
    let span = SpanParser::new().parse_span(text).map_err(|_| wrong())?;
    let days = 365 * i64::from(span.get_years())
        + 30 * i64::from(span.get_months())
        + 7 * i64::from(span.get_weeks())
        + i64::from(span.get_days());
    let seconds = i128::from(days) * 86_400
        + i128::from(span.get_hours()) * 3_600
        + i128::from(span.get_minutes()) * 60
        + i128::from(span.get_seconds());
    let micros = seconds * 1_000_000
        + i128::from(span.get_milliseconds()) * 1_000
        + i128::from(span.get_microseconds());
    let micros = if is_absolute { micros.abs() } else { micros };
    let length = u64::try_from(micros).map(Duration::from_micros).map_err(|_| wrong())?;
    Ok(if length < ENDLESS_FROM { Length::Of(length) } else { Length::Endless })
}

/// Reads a start.
///
/// # Errors
/// Names the text and what is accepted.
pub fn start(text: &str) -> Result<Start, String> {
    // 0000-00-00 is the form of earlier revisions.
    if text.starts_with("0001-01-01") || text.starts_with("0000-0") {
        return Ok(Start::Now);
    }
    instant::parse(text).map(Start::At).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_iso_8601() {
        let of = |text| duration(text, false);
        let seconds = |s| Ok(Length::Of(Duration::from_secs(s)));
        for (text, expected) in [
            ("PT0S", seconds(0)),
            ("PT1H", seconds(3_600)),
            ("PT1H30M", seconds(5_400)),
            ("P1DT1S", seconds(86_401)),
            ("P2W", seconds(14 * 86_400)),
            ("P1M", seconds(30 * 86_400)),
            ("P1Y", seconds(365 * 86_400)),
            ("PT0.5H", seconds(1_800)),
            ("P9999Y", Ok(Length::Endless)),
        ] {
            assert_eq!(of(text), expected, "{text}");
        }
        for wrong in ["", "P", "1h", "PT", "-PT1H", "PT1X", "P99999999999Y", "PT1H\n"] {
            let error = of(wrong).unwrap_err();
            assert!(error.ends_with("is not a duration of ISO 8601, as PT1H"), "{wrong}: {error}");
        }
        assert_eq!(duration("-PT1H", true), seconds(3_600));
    }

    #[test]
    fn the_first_of_january_of_the_year_1_is_now() {
        for now in ["0001-01-01", "0001-01-01T00:00:00", "0001-01-01T00:00:00Z", "0000-00-00"] {
            assert_eq!(start(now), Ok(Start::Now), "{now}");
        }
        let at = Timestamp::from_s(1_795_962_300);
        assert_eq!(start("2026-11-29T14:25:00.000Z"), Ok(Start::At(at)));
        assert!(start("2026-11-29T14:25:00").is_err(), "without an offset");
        assert!(start("noon").unwrap_err().contains("`noon`"));
    }
}
