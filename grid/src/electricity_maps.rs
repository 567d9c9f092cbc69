//! Electricity Maps, API v3: average carbon intensity of a zone.
//!
//! Requests have the header `auth-token`. `latest` has one hour, `history` the last 24, `forecast` the next
//! ones; intensities are g/kWh of CO2 equivalent, flow-traced and, by default, of the whole life cycle.
//! Source: the API reference at <https://portal.electricitymaps.com/developer-hub/api/reference>. Forecasts
//! need a subscription.

use std::time::Duration;

use serde::Deserialize;
use wattle_common::messages::Origin;

use crate::instant;
use crate::parse_error::ParseError;
use crate::series::{Signal, SignalSeries};

/// The public server.
pub const URL: &str = "https://api.electricitymaps.com";

/// Granularity of the default answers.
const HOUR: Duration = Duration::from_secs(3_600);

/// The path of an endpoint: `latest`, `history` or `forecast`. If the provider does not have the zone it may
/// answer for that of the caller's address, which [`ParseError::Zone`] refuses.
#[must_use]
pub fn path(endpoint: &str, zone: &str) -> String {
    format!("/v3/carbon-intensity/{endpoint}?zone={zone}")
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Point {
    /// In `history` and `latest`.
    zone: Option<String>,
    carbon_intensity: Option<f64>,
    datetime: String,
    #[serde(default)]
    is_estimated: Option<bool>,
}

#[derive(Deserialize)]
struct History {
    zone: String,
    history: Vec<Point>,
}

#[derive(Deserialize)]
struct Forecast {
    zone: String,
    forecast: Vec<Point>,
}

fn check_zone(given: &str, wanted: &str) -> Result<(), ParseError> {
    if given == wanted {
        return Ok(());
    }
    let given = given.chars().take(40).collect();
    Err(ParseError::Zone { given, wanted: wanted.to_owned() })
}

/// Points without an intensity are gaps: the provider sends null where it has none.
fn series(zone: &str, points: Vec<Point>, is_forecast: bool) -> Result<SignalSeries, ParseError> {
    let mut all = Vec::with_capacity(points.len());
    for point in points {
        if let Some(given) = &point.zone {
            check_zone(given, zone)?;
        }
        let origin = match (is_forecast, point.is_estimated) {
            (true, _) => Origin::Forecast,
            (false, Some(true)) => Origin::Estimated,
            (false, _) => Origin::Measured,
        };
        all.push((instant::parse(&point.datetime)?, point.carbon_intensity, origin));
    }
    SignalSeries::from_points(Signal::Carbon, all, HOUR)
}

/// Parses an answer of `latest`.
///
/// # Errors
/// [`ParseError`] names what is wrong.
pub fn latest(zone: &str, body: &[u8]) -> Result<SignalSeries, ParseError> {
    let point: Point = serde_json::from_slice(body).map_err(|error| ParseError::json(&error))?;
    series(zone, vec![point], false)
}

/// Parses an answer of `history`.
///
/// # Errors
/// [`ParseError`] names what is wrong.
pub fn history(zone: &str, body: &[u8]) -> Result<SignalSeries, ParseError> {
    let answer: History = serde_json::from_slice(body).map_err(|error| ParseError::json(&error))?;
    check_zone(&answer.zone, zone)?;
    series(zone, answer.history, false)
}

/// Parses an answer of `forecast`.
///
/// # Errors
/// [`ParseError`] names what is wrong.
pub fn forecast(zone: &str, body: &[u8]) -> Result<SignalSeries, ParseError> {
    let answer: Forecast =
        serde_json::from_slice(body).map_err(|error| ParseError::json(&error))?;
    check_zone(&answer.zone, zone)?;
    series(zone, answer.forecast, true)
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact figures are meant")]
mod tests {
    use super::*;

    // Modelled after the examples of the API reference; not recorded from the real service.
    const LATEST: &str = r#"{"zone":"DE","carbonIntensity":302,"datetime":"2026-04-25T18:00:00.000Z",
        "updatedAt":"2026-04-25T17:42:05.835Z","createdAt":"2026-04-22T18:40:01.000Z",
        "emissionFactorType":"lifecycle","isEstimated":true,"estimationMethod":"TIME_SLICER_AVERAGE"}"#;

    #[test]
    fn latest_holds_for_its_hour() {
        let series = latest("DE", LATEST.as_bytes()).unwrap();
        let at = |text| series.at(instant::parse(text).unwrap()).map(|i| (i.value, i.origin));
        assert_eq!(at("2026-04-25T18:59:59Z"), Some((302.0, Origin::Estimated)));
        assert_eq!((at("2026-04-25T19:00Z"), at("2026-04-25T17:59Z")), (None, None));
    }

    #[test]
    fn zone_and_nulls_are_checked() {
        let error = latest("FR", LATEST.as_bytes()).unwrap_err().to_string();
        assert_eq!(error, "the answer is for zone `DE`, not `FR`: correct `zone`");
        let null = br#"{"zone":"DE","carbonIntensity":null,"datetime":"2026-04-25T18:00Z"}"#;
        assert_eq!(latest("DE", null).unwrap_err(), ParseError::Empty);
        let text =
            br#"{"zone":"DE","forecast":[{"carbonIntensity":300,"datetime":"2026-04-25T18:00Z"},
            {"carbonIntensity":null,"datetime":"2026-04-25T19:00Z"},
            {"carbonIntensity":200,"datetime":"2026-04-25T20:00Z"}]}"#;
        let series = forecast("DE", text).unwrap();
        assert_eq!(series.intervals.len(), 2);
        let at = instant::parse("2026-04-25T19:00Z").unwrap();
        assert_eq!(series.intervals[0].until, at, "null ends the value before it");
        assert!(matches!(
            forecast("DE", br#"{"zone":"DE","forecast":[]}"#),
            Err(ParseError::Empty)
        ));
        assert!(matches!(history("DE", b"<html>"), Err(ParseError::Format { .. })));
    }
}
