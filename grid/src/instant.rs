//! Instants of the providers: RFC 3339 with an offset, with or without seconds.

use wattle_common::Timestamp;

use crate::parse_error::ParseError;

/// Reads an instant as `2026-01-31T15:00Z` or `2026-01-31T16:00:00.000+01:00`.
///
/// # Errors
/// [`ParseError::Time`] without an offset, before 1970, or if it is not a time.
pub fn parse(text: &str) -> Result<Timestamp, ParseError> {
    let text = text.trim();
    let wrong = || {
        let short: String = text.chars().take(40).collect();
        ParseError::Time(short)
    };
    let at: jiff::Timestamp = text.parse().map_err(|_| wrong())?;
    u64::try_from(at.as_microsecond()).map(Timestamp::from_us).map_err(|_| wrong())
}

/// An instant in UTC to the second, as `2026-01-31T15:00:00Z`.
#[must_use]
pub fn shown(at: Timestamp) -> String {
    let seconds = i64::try_from(at.as_us() / 1_000_000).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| at.to_string(), |at| at.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_required_and_applied() {
        let at = |text| parse(text).map(|at| at.as_us() / 1_000_000);
        assert_eq!(at("1970-01-01T01:00Z"), Ok(3_600));
        assert_eq!(at("1970-01-01T01:00:00.000Z"), Ok(3_600));
        assert_eq!(at("1970-01-01T02:00:00.5092741+01:00"), Ok(3_600));
        for wrong in ["", "1970-01-01T01:00", "1970-01-01 01:00:00", "noon", "1969-12-31T23:00Z"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(shown(Timestamp::from_s(3_600)), "1970-01-01T01:00:00Z");
    }
}
