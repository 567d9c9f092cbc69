//! WattTime, API v3: marginal emission rate of a region.
//!
//! `/login` with the user's name and password (basic authentication) returns a token for 30 minutes, which
//! later requests carry as bearer token. `/v3/forecast` has the coming values in steps of five minutes,
//! `/v3/historical` the past ones; both need a subscription, except in the region `CAISO_NORTH`.
//! `/v3/signal-index` is a percentile without an emission rate, so it is not read.
//! Source: <https://docs.watttime.org>.

use std::time::Duration;

use serde::Deserialize;
use wattle_common::Timestamp;
use wattle_common::messages::Origin;

use crate::instant;
use crate::parse_error::ParseError;
use crate::series::{Signal, SignalSeries};

/// The public server.
pub const URL: &str = "https://api.watttime.org";

/// Grams in a pound: the international avoirdupois pound is 0.45359237 kg by definition (International
/// yard and pound agreement, 1959; NIST Handbook 44, appendix C).
const GRAMS_PER_POUND: f64 = 453.592_37;
/// Kilowatt-hours in a megawatt-hour.
const KWH_PER_MWH: f64 = 1_000.0;

/// Time for which a token is used; it is valid for 30 minutes.
pub const TOKEN_FOR: Duration = Duration::from_secs(25 * 60);

/// The path of the login.
pub const LOGIN: &str = "/login";

/// The path of the forecast of the next 24 hours.
#[must_use]
pub fn forecast_path(region: &str, signal_type: &str) -> String {
    format!("/v3/forecast?region={region}&signal_type={signal_type}&horizon_hours=24")
}

/// The path of the values between two instants.
#[must_use]
pub fn historical_path(
    region: &str,
    signal_type: &str,
    from: Timestamp,
    until: Timestamp,
) -> String {
    let (start, end) = (instant::shown(from), instant::shown(until));
    format!("/v3/historical?region={region}&signal_type={signal_type}&start={start}&end={end}")
}

#[derive(Deserialize)]
struct Login {
    token: String,
}

#[derive(Deserialize)]
struct Answer {
    data: Vec<Point>,
    meta: Meta,
}

#[derive(Deserialize)]
struct Point {
    point_time: String,
    value: f64,
    #[serde(default)]
    imputed_data_used: Option<bool>,
}

#[derive(Deserialize)]
struct Meta {
    region: String,
    units: String,
    #[serde(default)]
    data_point_period_seconds: Option<u64>,
}

/// Parses the answer of `/login`: the token.
///
/// # Errors
/// [`ParseError::Format`] without a token.
pub fn token(body: &[u8]) -> Result<String, ParseError> {
    let login: Login = serde_json::from_slice(body).map_err(|error| ParseError::json(&error))?;
    Ok(login.token)
}

/// Parses an answer of `/v3/forecast` or `/v3/historical`.
///
/// # Errors
/// [`ParseError`] names what is wrong; a unit other than pounds of CO2 per MWh is refused.
pub fn series(region: &str, body: &[u8], is_forecast: bool) -> Result<SignalSeries, ParseError> {
    let answer: Answer = serde_json::from_slice(body).map_err(|error| ParseError::json(&error))?;
    if answer.meta.region != region {
        let given = answer.meta.region.chars().take(40).collect();
        return Err(ParseError::Zone { given, wanted: region.to_owned() });
    }
    let units = answer.meta.units;
    // `lbs_co2_per_mwh` in the reference; equivalents have `co2e`.
    if !matches!(units.as_str(), "lbs_co2_per_mwh" | "lbs_co2e_per_mwh") {
        let given = units.chars().take(40).collect();
        return Err(ParseError::Unit { given, expected: "lbs_co2_per_mwh" });
    }
    let period = answer.meta.data_point_period_seconds.unwrap_or(300).clamp(1, 86_400);
    let mut points = Vec::with_capacity(answer.data.len());
    for point in answer.data {
        let origin = match (is_forecast, point.imputed_data_used) {
            (true, _) => Origin::Forecast,
            (false, Some(true)) => Origin::Estimated,
            (false, _) => Origin::Measured,
        };
        let g_per_kwh = point.value * GRAMS_PER_POUND / KWH_PER_MWH;
        points.push((instant::parse(&point.point_time)?, Some(g_per_kwh), origin));
    }
    SignalSeries::from_points(Signal::Carbon, points, Duration::from_secs(period))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Modelled after the examples of the reference; not recorded from the real service.
    fn answer(region: &str, units: &str) -> String {
        format!(
            r#"{{"data":[{{"point_time":"2026-07-15T00:00:00+00:00","value":870.0}},
            {{"point_time":"2026-07-15T00:05:00+00:00","value":1000.0}}],
            "meta":{{"data_point_period_seconds":300,"region":"{region}","signal_type":"co2_moer",
            "units":"{units}","warnings":[],"model":{{"date":"2026-03-01"}},
            "generated_at":"2026-07-15T00:00:00+00:00","generated_at_period_seconds":300}}}}"#
        )
    }

    #[test]
    fn pounds_per_megawatt_hour_become_grams_per_kilowatt_hour() {
        let text = answer("CAISO_NORTH", "lbs_co2_per_mwh");
        let series = series("CAISO_NORTH", text.as_bytes(), true).unwrap();
        let values: Vec<f64> = series.intervals.iter().map(|interval| interval.value).collect();
        assert!((values[0] - 394.625_361_9).abs() < 1e-9, "{values:?}");
        assert!((values[1] - 453.592_37).abs() < 1e-9, "{values:?}");
        assert_eq!(series.until(), instant::parse("2026-07-15T00:10Z").unwrap());
    }

    #[test]
    fn other_units_and_regions_are_refused() {
        let percentile = answer("CAISO_NORTH", "percentile");
        let error = series("CAISO_NORTH", percentile.as_bytes(), true).unwrap_err().to_string();
        assert_eq!(error, "the unit is `percentile`, expected lbs_co2_per_mwh");
        let other = answer("PJM", "lbs_co2_per_mwh");
        let error = series("CAISO_NORTH", other.as_bytes(), false).unwrap_err();
        assert!(matches!(error, ParseError::Zone { .. }));
        assert_eq!(token(br#"{"token":"abc"}"#).unwrap(), "abc");
        assert!(token(b"{}").is_err());
    }
}
