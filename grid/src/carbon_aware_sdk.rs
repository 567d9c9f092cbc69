//! Carbon Aware SDK of the Green Software Foundation: the REST service (`WebApi`) of a site.
//!
//! `/emissions/bylocation` has observed values, `/emissions/forecasts/current` the newest forecast; ratings are
//! g/kWh. Whether they are average or marginal depends on the data source behind the service. A forecast's
//! points carry the name of the source's own zone, so only the forecast's location is compared.
//! Source: `casdk-docs/docs/tutorial-basics/carbon-aware-webapi.md` of the project's repository.

use std::time::Duration;

use serde::Deserialize;
use wattle_common::Timestamp;
use wattle_common::messages::Origin;

use crate::instant;
use crate::parse_error::ParseError;
use crate::series::{Interval, Signal, SignalSeries};

/// Interval of an observed value without a duration.
const HOUR: Duration = Duration::from_secs(3_600);

/// The path of the observed values between two instants.
#[must_use]
pub fn observed_path(location: &str, from: Timestamp, until: Timestamp) -> String {
    let (from, until) = (instant::shown(from), instant::shown(until));
    format!("/emissions/bylocation?location={location}&time={from}&toTime={until}")
}

/// The path of the newest forecast.
#[must_use]
pub fn forecast_path(location: &str) -> String {
    format!("/emissions/forecasts/current?location={location}")
}

#[derive(Deserialize)]
struct Observed {
    #[serde(default)]
    location: Option<String>,
    time: String,
    rating: f64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Forecast {
    location: String,
    forecast_data: Vec<Point>,
}

#[derive(Deserialize)]
struct Point {
    timestamp: String,
    /// Minutes.
    duration: u64,
    value: f64,
}

fn short(text: &str) -> String {
    text.chars().take(40).collect()
}

/// Parses an answer of `/emissions/bylocation`. The points carry the source's own zone, which is not compared with
/// the configuration's; two zones are two series.
///
/// # Errors
/// [`ParseError`] names what is wrong.
pub fn observed(body: &[u8]) -> Result<SignalSeries, ParseError> {
    let all: Vec<Observed> =
        serde_json::from_slice(body).map_err(|error| ParseError::json(&error))?;
    let mut points = Vec::with_capacity(all.len());
    let mut own: Option<String> = None;
    for point in all {
        if let Some(location) = point.location {
            let own = own.get_or_insert_with(|| location.clone());
            if *own != location {
                return Err(ParseError::TwoSeries(short(own), short(&location)));
            }
        }
        points.push((instant::parse(&point.time)?, Some(point.rating), Origin::Measured));
    }
    SignalSeries::from_points(Signal::Carbon, points, HOUR)
}

/// Parses an answer of `/emissions/forecasts/current`.
///
/// # Errors
/// [`ParseError`] names what is wrong.
pub fn forecast(location: &str, body: &[u8]) -> Result<SignalSeries, ParseError> {
    let all: Vec<Forecast> =
        serde_json::from_slice(body).map_err(|error| ParseError::json(&error))?;
    let Some(first) = all.first() else { return Err(ParseError::Empty) };
    let given = short(&first.location);
    // An answer may have the forecasts of several locations.
    let Some(forecast) = all.into_iter().find(|forecast| forecast.location == location) else {
        return Err(ParseError::Zone { given, wanted: location.to_owned() });
    };
    let mut intervals = Vec::with_capacity(forecast.forecast_data.len());
    for point in forecast.forecast_data {
        let from = instant::parse(&point.timestamp)?;
        let until = from + Duration::from_secs(60 * point.duration.min(1_440));
        intervals.push(Interval { from, until, value: point.value, origin: Origin::Forecast });
    }
    SignalSeries::new(Signal::Carbon, intervals)
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact figures are meant")]
mod tests {
    use super::*;

    // Modelled after the examples of the documentation; not recorded from a running service.
    const FORECAST: &str = r#"[{"requestedAt":"2026-07-19T13:37:49+00:00",
        "generatedAt":"2026-07-19T13:35:00+00:00","location":"northeurope",
        "dataStartAt":"2026-07-19T14:00:00Z","dataEndAt":"2026-07-19T14:20:00Z","windowSize":10,
        "optimalDataPoints":[{"location":"IE","timestamp":"2026-07-19T14:10:00+00:00","duration":10,
        "value":448.4451043375}],
        "forecastData":[{"location":"IE","timestamp":"2026-07-19T14:00:00+00:00","duration":10,
        "value":532.02293146},{"location":"IE","timestamp":"2026-07-19T14:10:00+00:00","duration":10,
        "value":448.4451043375}]}]"#;

    #[test]
    fn forecast_has_ten_minutes_each() {
        let series = forecast("northeurope", FORECAST.as_bytes()).unwrap();
        let at = |text| series.at(instant::parse(text).unwrap()).map(|i| i.value);
        assert_eq!(at("2026-07-19T14:09Z"), Some(532.022_931_46));
        assert_eq!(at("2026-07-19T14:10Z"), Some(448.445_104_337_5));
        assert_eq!(at("2026-07-19T14:20Z"), None);
        assert!(matches!(forecast("eastus", FORECAST.as_bytes()), Err(ParseError::Zone { .. })));
        assert_eq!(forecast("eastus", b"[]").unwrap_err(), ParseError::Empty);
    }

    #[test]
    fn observed_values_hold_until_the_next() {
        let text = br#"[{"location":"IE","time":"2026-05-17T20:00:11.5+00:00","rating":70,"duration":"01:00:00"},
            {"location":"IE","time":"2026-05-17T19:00:11.5+00:00","rating":64.5}]"#;
        let series = observed(text).unwrap();
        assert_eq!(series.intervals[0].value, 64.5);
        assert_eq!(series.intervals[0].until, series.intervals[1].from);
        assert_eq!(observed(b"[]").unwrap_err(), ParseError::Empty);
    }

    #[test]
    fn the_own_series_of_several_is_read_and_two_of_one_are_refused() {
        let other = FORECAST.replace("northeurope", "eastus").replace("448.4", "99.9");
        let two = format!("[{},{}", &other[1..other.len() - 1], &FORECAST[1..]);
        assert_eq!(
            forecast("northeurope", two.as_bytes()),
            forecast("northeurope", FORECAST.as_bytes())
        );
        let mixed = br#"[{"location":"IE","time":"2026-05-17T19:00:00Z","rating":70},
            {"location":"DE","time":"2026-05-17T20:00:00Z","rating":64.5}]"#;
        let error = observed(mixed).unwrap_err().to_string();
        assert!(error.contains("`IE`") && error.contains("`DE`"), "{error}");
    }
}
