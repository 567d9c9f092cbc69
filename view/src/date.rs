//! Dates and times for people, in UTC.

use wattle_common::Timestamp;

/// The date of a day since the Unix epoch: `2026-11-23`.
#[must_use]
pub fn date(day: u64) -> String {
    civil(day * 86_400).map_or_else(|| format!("day {day}"), |at| at.date().to_string())
}

/// An instant to the minute: `2026-11-23 09:41`.
#[must_use]
pub fn minute(at: Timestamp) -> String {
    let at = civil(at.as_us() / 1_000_000);
    at.map_or_else(|| "?".to_owned(), |at| at.strftime("%Y-%m-%d %H:%M").to_string())
}

/// A near instant to the minute: `09:41`, or `11-23 09:41` where it is on another day than `now`.
#[must_use]
pub fn near(at: Timestamp, now: Timestamp) -> String {
    let s = |at: Timestamp| at.as_us() / 1_000_000;
    let Some(civil) = civil(s(at)) else { return "?".to_owned() };
    let format = match s(at) / 86_400 == s(now) / 86_400 {
        true => "%H:%M",
        false if s(at).abs_diff(s(now)) < 300 * 86_400 => "%m-%d %H:%M",
        false => "%Y-%m-%d",
    };
    civil.strftime(format).to_string()
}

/// An instant as part of a name: `20261129-162500`; `None`: it has no date.
#[must_use]
pub fn compact(at: Timestamp) -> Option<String> {
    civil(at.as_us() / 1_000_000).map(|at| at.strftime("%Y%m%d-%H%M%S").to_string())
}

/// Seconds since the Unix epoch as a date and time in UTC.
fn civil(seconds: u64) -> Option<jiff::civil::DateTime> {
    let at = jiff::Timestamp::from_second(i64::try_from(seconds).ok()?).ok()?;
    Some(at.to_zoned(jiff::tz::TimeZone::UTC).datetime())
}

/// An instant of the last months to the second: `11-23 09:41:07Z`.
#[must_use]
pub fn second(at: Timestamp) -> String {
    let civil = civil(at.as_us() / 1_000_000);
    civil.map_or_else(|| at.to_string(), |at| at.strftime("%m-%d %H:%M:%SZ").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_instant_has_the_date_only_on_another_day() {
        let at = |hours: u64| Timestamp::from_s(1_700_006_400 + 3_600 * hours);
        assert_eq!(near(at(1), at(0)), "01:00");
        assert_eq!(near(at(25), at(0)), "11-16 01:00");
        assert_eq!(near(at(0), at(25)), "11-15 00:00");
        assert_eq!(near(at(24 * 400), at(0)), "2024-12-19");
    }
}
