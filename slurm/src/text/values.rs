//! Single values as Slurm writes them: times, durations and amounts of memory.

use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::time::span_s;

use super::TextError;
use super::gres::is_absent;

/// An instant in seconds since the Unix epoch, which `SLURM_TIME_FORMAT=%s` selects; absent: `Unknown`.
///
/// # Errors
/// If it is another text.
pub fn instant(text: &str) -> Result<Option<Timestamp>, TextError> {
    if is_absent(text) || text == "Unknown" {
        return Ok(None);
    }
    let seconds: u64 =
        text.parse().map_err(|_| TextError::new("instant in seconds since the epoch", text))?;
    Ok((seconds != 0).then(|| Timestamp::from_s(seconds)))
}

/// A time limit: `30:00`, `1-02:00:00`; absent: `UNLIMITED`.
///
/// # Errors
/// If it is another text.
pub fn time_limit(text: &str) -> Result<Option<Duration>, TextError> {
    if is_absent(text) || matches!(text, "UNLIMITED" | "INVALID" | "NOT_SET" | "Partition_Limit") {
        return Ok(None);
    }
    duration(text).map(Some)
}

/// A duration: `[days-][hours:]minutes:seconds`, where the seconds may have a fraction.
///
/// # Errors
/// If it is another text, or longer than [`Duration`] holds.
pub fn duration(text: &str) -> Result<Duration, TextError> {
    let invalid = || TextError::new("duration, expected as 1-02:03:04,", text);
    let number = |part: &str| {
        let is_number = part.bytes().all(|b| b.is_ascii_digit());
        part.parse::<u64>().ok().filter(|_| is_number).ok_or_else(invalid)
    };
    let (days, clock) = text.split_once('-').unwrap_or(("0", text));
    let parts: Vec<&str> = clock.split(':').collect();
    let (hours, minutes, seconds) = match parts[..] {
        [minutes, seconds] => ("0", minutes, seconds),
        [hours, minutes, seconds] => (hours, minutes, seconds),
        _ => return Err(invalid()),
    };
    let (seconds, fraction) = match seconds.split_once('.') {
        None => (seconds, 0.0),
        Some((seconds, digits)) => {
            number(digits)?;
            (seconds, format!("0.{digits}").parse().map_err(|_| invalid())?)
        }
    };
    let mut total: u64 = 0;
    for (part, per_part) in [(days, 24), (hours, 60), (minutes, 60), (seconds, 1)] {
        let sum = total.checked_add(number(part)?);
        total = sum.and_then(|sum| sum.checked_mul(per_part)).ok_or_else(invalid)?;
    }
    Ok(Duration::from_secs(total).saturating_add(span_s(fraction)))
}

/// An amount of memory in MiB: `500M`, `1.50G`, `1000` (MiB), `2T`.
///
/// # Errors
/// If it is another text.
pub fn memory_mib(text: &str) -> Result<u32, TextError> {
    let invalid = || TextError::new("amount of memory", text);
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let mib_per_unit = match &text[digits.len()..] {
        "K" => 1.0 / 1024.0,
        "" | "M" | "MB" => 1.0,
        "G" => 1024.0,
        "T" => 1024.0 * 1024.0,
        "P" => 1024.0 * 1024.0 * 1024.0,
        _ => return Err(invalid()),
    };
    let amount: f64 = digits.parse().map_err(|_| invalid())?;
    // `as` saturates.
    if amount >= 0.0 { Ok((amount * mib_per_unit).ceil() as u32) } else { Err(invalid()) }
}

/// The value of a name in a list of trackable resources: 2 of `node` in `cpu=4,mem=2000M,node=2`.
#[must_use]
pub fn tres_value<'a>(list: &'a str, name: &str) -> Option<&'a str> {
    list.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_have_units() {
        assert_eq!(instant("1795580749"), Ok(Some(Timestamp::from_s(1_795_580_749))));
        assert_eq!(instant("Unknown"), Ok(None));
        assert!(instant("2026-11-25T04:25:49").is_err());
        assert_eq!(time_limit("1-02:00:00"), Ok(Some(Duration::from_secs(93_600))));
        assert_eq!(time_limit("30:00"), Ok(Some(Duration::from_secs(1800))));
        assert_eq!(time_limit("1:30:00"), Ok(Some(Duration::from_secs(5400))));
        assert_eq!(time_limit("UNLIMITED"), Ok(None));
        assert!(time_limit("1:2:3:4").is_err());
        assert_eq!(time_limit("2-03:04:05"), Ok(Some(Duration::from_secs(183_845))));
        assert_eq!(duration("00:00:59"), Ok(Duration::from_secs(59)));
        assert_eq!(duration("01:02.500"), Ok(Duration::from_millis(62_500)));
        let never = ["", "INVALID", "5", "-1:00:00", "1:2:3:4", "1-", "00:0x:00", "a-00:00:01"];
        for wrong in never.into_iter().chain(["+1:00", "1:00.", "1:00.x", "1.5:00"]) {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        assert_eq!(memory_mib("500M"), Ok(500));
        assert_eq!(memory_mib("2G"), Ok(2048));
        assert_eq!(memory_mib("1.50G"), Ok(1536));
        assert_eq!(memory_mib("0"), Ok(0));
        assert!(memory_mib("much").is_err());
        assert_eq!(tres_value("cpu=4,mem=2000M,node=2", "node"), Some("2"));
        assert_eq!(tres_value("cpu=4", "node"), None);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = instant(&text);
            let _ = time_limit(&text);
            let _ = duration(&text);
            let _ = memory_mib(&text);
        }
    }
}
