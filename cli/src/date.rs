//! Dates and times for people, in UTC.

use wattle_common::Timestamp;

/// The date of a day since the Unix epoch: `2026-11-23`.
pub(crate) fn date(day: u64) -> String {
    civil(day * 86_400).map_or_else(|| format!("day {day}"), |at| at.date().to_string())
}

/// An instant to the minute: `2026-11-23 09:41`.
pub(crate) fn minute(at: Timestamp) -> String {
    let at = civil(at.as_us() / 1_000_000);
    at.map_or_else(|| "?".to_owned(), |at| at.strftime("%Y-%m-%d %H:%M").to_string())
}

/// Seconds since the Unix epoch as a date and time in UTC.
fn civil(seconds: u64) -> Option<jiff::civil::DateTime> {
    let at = jiff::Timestamp::from_second(i64::try_from(seconds).ok()?).ok()?;
    Some(at.to_zoned(jiff::tz::TimeZone::UTC).datetime())
}

/// An instant of the last months to the second: `11-23 09:41:07Z`.
pub(crate) fn second(at: Timestamp) -> String {
    let civil = civil(at.as_us() / 1_000_000);
    civil.map_or_else(|| at.to_string(), |at| at.strftime("%m-%d %H:%M:%SZ").to_string())
}
