//! A dated series as CSV: `at,g_per_kwh` for intensities, `at,eur_per_mwh` or `at,eur_per_kwh` for prices in any
//! currency of three letters.
//!
//! `at` is an instant with an offset, as `2026-01-31T15:00+01:00`, so the hours of a time change are distinct.
//! A value holds for the shortest distance of two rows. A row without a value is a gap.

use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::messages::Origin;

use crate::instant;
use crate::parse_error::ParseError;
use crate::series::{INTERVALS_MAX, Signal, SignalSeries};

const HOUR: Duration = Duration::from_secs(3_600);

fn wrong(cause: String) -> ParseError {
    ParseError::Format { expected: "a table with the header at,g_per_kwh or at,eur_per_mwh", cause }
}

/// What the second column has: the signal, the currency, and the factor to its unit.
fn column(name: &str) -> Option<(Signal, Option<String>, f64)> {
    if name == "g_per_kwh" {
        return Some((Signal::Carbon, None, 1.0));
    }
    let (currency, factor) = match name.split_once("_per_")? {
        (currency, "mwh") => (currency, 1e-3),
        (currency, "kwh") => (currency, 1.0),
        _ => return None,
    };
    let is_code = currency.len() == 3 && currency.bytes().all(|byte| byte.is_ascii_lowercase());
    is_code.then(|| (Signal::Price, Some(currency.to_ascii_uppercase()), factor))
}

/// Parses a table.
///
/// # Errors
/// [`ParseError`] names the line or what is wrong.
pub fn parse(bytes: &[u8]) -> Result<(Signal, SignalSeries), ParseError> {
    let text = std::str::from_utf8(bytes).map_err(|error| wrong(error.to_string()))?;
    let mut lines = (1u32..).zip(text.trim_start_matches('\u{feff}').lines());
    let header = lines.next().map_or("", |(_, line)| line.trim());
    let short = || header.chars().take(60).collect::<String>();
    let found = header.split_once(',').filter(|(at, _)| at.trim() == "at");
    let (signal, currency, factor) = found
        .and_then(|(_, name)| column(name.trim()))
        .ok_or_else(|| wrong(format!("the header is `{}`", short())))?;
    let mut points: Vec<(Timestamp, Option<f64>, Origin)> = Vec::new();
    for (line, row) in lines.filter(|(_, row)| !row.trim().is_empty()) {
        let (at, value) =
            row.split_once(',').ok_or_else(|| wrong(format!("line {line} has one column")))?;
        let at = instant::parse(at).map_err(|error| wrong(format!("line {line}: {error}")))?;
        let value = match value.trim() {
            "" => None,
            value => Some(
                value
                    .parse::<f64>()
                    .map_err(|_| wrong(format!("line {line}: the value is not a number")))?,
            ),
        };
        points.push((at, value.map(|value| value * factor), Origin::Measured));
        if points.len() > INTERVALS_MAX {
            return Err(ParseError::TooMany(INTERVALS_MAX));
        }
    }
    let mut series = SignalSeries::from_points(signal, points, HOUR)?;
    series.currency = currency;
    Ok((signal, series))
}

/// Parses a file of prices: ENTSO-E's XML or a table.
///
/// # Errors
/// [`ParseError`] names what is wrong; a table of intensities is refused.
pub fn prices(bytes: &[u8]) -> Result<SignalSeries, ParseError> {
    let first = bytes
        .iter()
        .find(|byte| !byte.is_ascii_whitespace() && !matches!(**byte, 0xef | 0xbb | 0xbf));
    if first == Some(&b'<') {
        return crate::entsoe::parse(bytes);
    }
    match parse(bytes)? {
        (Signal::Price, series) => Ok(series),
        (Signal::Carbon, _) => {
            Err(ParseError::Unit { given: "g_per_kwh".to_owned(), expected: "eur_per_mwh" })
        }
    }
}

/// Parses a file of carbon intensities.
///
/// # Errors
/// [`ParseError`] names what is wrong; a table of prices is refused.
pub fn intensities(bytes: &[u8]) -> Result<SignalSeries, ParseError> {
    match parse(bytes)? {
        (Signal::Carbon, series) => Ok(series),
        (Signal::Price, _) => {
            Err(ParseError::Unit { given: "a price".to_owned(), expected: "g_per_kwh" })
        }
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact figures are meant")]
mod tests {
    use super::*;

    #[test]
    fn units_are_in_the_header() {
        let rows = "2026-10-25T02:00+02:00,120\n2026-10-25T02:00+01:00,-80\n";
        for (header, value) in [("at,eur_per_mwh", 0.12), ("at,chf_per_kwh", 120.0)] {
            let series = prices(format!("{header}\n{rows}").as_bytes()).unwrap();
            assert_eq!(series.intervals.len(), 2, "the hour of the time change is there twice");
            assert_eq!(series.intervals[0].value, value);
        }
        let gap = "at,g_per_kwh\n2026-01-01T00:00Z,1\n2026-01-01T01:00Z,\n2026-01-01T02:00Z,2\n";
        let series = intensities(gap.as_bytes()).unwrap();
        assert!(series.at(instant::parse("2026-01-01T01:30Z").unwrap()).is_none());
        assert_eq!(series.until(), instant::parse("2026-01-01T03:00Z").unwrap());
        let series = intensities(b"at,g_per_kwh\r\n2026-01-01T00:00Z,120\r\n").unwrap();
        assert_eq!(series.until(), instant::parse("2026-01-01T01:00Z").unwrap());
    }

    #[test]
    fn wrong_tables_name_the_line() {
        let error = |text: &str| prices(text.as_bytes()).unwrap_err().to_string();
        assert!(error("time,price\n").contains("the header is `time,price`"));
        assert!(error("at,euro_per_mwh\n").contains("the header"));
        assert!(error("at,eur_per_mwh\n2026-01-01T00:00Z,much").contains("line 2: the value"));
        assert!(error("at,eur_per_mwh\n2026-01-01 00:00,1").contains("line 2: `2026-01-01 00:00`"));
        assert!(error("at,eur_per_mwh\n").contains("no value"));
        assert!(error("at,g_per_kwh\n2026-01-01T00:00Z,1").contains("the unit is `g_per_kwh`"));
        let twice = "at,eur_per_mwh\n2026-01-01T00:00Z,1\n2026-01-01T00:00Z,1";
        assert!(error(twice).contains("two values for 2026-01-01T00:00:00Z"));
        assert!(intensities(b"at,eur_per_mwh\n2026-01-01T00:00Z,1").is_err());
    }
}
