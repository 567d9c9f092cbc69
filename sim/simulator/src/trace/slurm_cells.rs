//! Cells of Slurm's accounting: dates, durations and lists of resources.
//!
//! A date without an offset is in the site's local time; hours that a change to or from summer time
//! skips or repeats are not corrected.

use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::row::span;
use crate::text::sanitize;

/// A number of GPUs, and their type where it is stated.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Gpus {
    pub(super) count: u32,
    pub(super) kind: Option<String>,
}

/// A date as the time since 1970; `None` for an unknown date.
pub(super) fn instant(text: &str) -> Result<Option<Duration>, String> {
    if matches!(text, "Unknown" | "None" | "N/A" | "(null)") {
        return Ok(None);
    }
    let no_date = || {
        "is not a date such as 2024-05-01T13:00:00; export with SLURM_TIME_FORMAT=standard"
            .to_owned()
    };
    let at = if let Ok(seconds) = text.parse::<i64>() {
        // SLURM_TIME_FORMAT=%s
        seconds as f64
    } else if let Ok(at) = text.parse::<Timestamp>() {
        at.as_duration().as_secs_f64()
    } else if let Ok(at) = jiff::fmt::strtime::parse("%Y-%m-%dT%H:%M:%S%z", text) {
        // %z of strftime writes offsets without a colon.
        at.to_timestamp().map_err(|_| no_date())?.as_duration().as_secs_f64()
    } else {
        let at: DateTime = text.parse().map_err(|_| no_date())?;
        let at = at.to_zoned(TimeZone::UTC).map_err(|_| no_date())?;
        at.timestamp().as_duration().as_secs_f64()
    };
    span(at).map(Some).ok_or_else(no_date)
}

/// A duration in Slurm's notation: `[days-][hours:]minutes:seconds`, with optional fractions.
pub(super) fn elapsed(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{}` is not a duration such as 1-02:03:04", sanitize(text));
    let (days, clock) = text.split_once('-').unwrap_or(("0", text));
    let days: u32 = days.parse().map_err(|_| wrong())?;
    let mut seconds = 0.0;
    let parts: Vec<&str> = clock.split(':').collect();
    if !(2..=3).contains(&parts.len()) {
        return Err(wrong());
    }
    for (i, part) in parts.iter().enumerate() {
        let last = i + 1 == parts.len();
        if !part.bytes().all(|byte| byte.is_ascii_digit() || (last && byte == b'.')) {
            return Err(wrong());
        }
        seconds = seconds * 60.0 + part.parse::<f64>().map_err(|_| wrong())?;
    }
    span(f64::from(days) * 86_400.0 + seconds).ok_or_else(wrong)
}

/// The GPUs in a list of trackable resources: `billing=8,gres/gpu:a100=4,gres/gpu=4,node=1`.
///
/// Counts by GPU type are parts of the count without a type.
pub(super) fn tres(text: &str) -> Result<Gpus, String> {
    let (mut plain, mut typed, mut kinds) = (None, 0u32, Vec::new());
    for resource in text.split(',') {
        let Some((name, count)) = resource.split_once('=') else { continue };
        let (name, kind) = match name.trim().split_once(':') {
            Some((name, kind)) => (name, Some(kind)),
            None => (name.trim(), None),
        };
        if name != "gres/gpu" {
            continue;
        }
        let wrong = || format!("has an invalid number of GPUs: `{}`", sanitize(resource));
        let count: u32 = count.trim().parse().map_err(|_| wrong())?;
        match kind {
            None => plain = Some(count),
            Some(kind) => {
                typed = typed.checked_add(count).ok_or_else(wrong)?;
                kinds.push(kind);
            }
        }
    }
    let kind = if let [kind] = kinds[..] { Some(kind.to_owned()) } else { None };
    Ok(Gpus { count: plain.unwrap_or(typed), kind })
}

/// The GPUs of one node in a list of generic resources, in the notation of older versions: `gpu:4`,
/// `gpu:a100:4`, `gres:gpu:2`, `gpu:2(S:0-1)`.
pub(super) fn gres(text: &str) -> Result<Gpus, String> {
    let mut gpus = Gpus::default();
    let mut kinds = 0;
    for resource in text.split(',') {
        let resource = resource.split('(').next().unwrap_or_default().trim();
        let resource = resource.strip_prefix("gres:").unwrap_or(resource);
        let resource = resource.strip_prefix("gres/").unwrap_or(resource);
        let parts: Vec<&str> = resource.split([':', '=']).collect();
        let (kind, count) = match parts[..] {
            ["gpu"] => (None, "1"),
            ["gpu", count] => (None, count),
            ["gpu", kind, count] => (Some(kind), count),
            _ => continue,
        };
        let wrong = || format!("has an invalid number of GPUs: `{}`", sanitize(resource));
        let count: u32 = count.parse().map_err(|_| wrong())?;
        gpus.count = gpus.count.checked_add(count).ok_or_else(wrong)?;
        kinds += 1;
        gpus.kind = kind.filter(|_| kinds == 1).map(str::to_owned);
    }
    Ok(gpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_in_slurms_notation() {
        let seconds = |text| elapsed(text).map(|span| span.as_secs_f64());
        assert_eq!(seconds("00:00:59"), Ok(59.0));
        assert_eq!(seconds("2-03:04:05"), Ok(183_845.0));
        assert_eq!(seconds("12:30"), Ok(750.0));
        assert_eq!(seconds("01:02.500"), Ok(62.5));
        for wrong in ["", "INVALID", "5", "-1:00:00", "1:2:3:4", "1-", "00:0x:00", "a-00:00:01"] {
            assert!(elapsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn dates_in_every_slurm_time_format() {
        let at = |text| instant(text).map(|at| at.map(|at| at.as_secs()));
        assert_eq!(at("2024-05-01T13:00:00"), Ok(Some(1_714_568_400)));
        assert_eq!(at("2024-05-01 13:00:00"), Ok(Some(1_714_568_400)));
        assert_eq!(at("2024-05-01T13:00:00+0200"), Ok(Some(1_714_561_200)));
        assert_eq!(at("2024-05-01T13:00:00+02:00"), Ok(Some(1_714_561_200)));
        assert_eq!(at("2024-05-01T13:00:00Z"), Ok(Some(1_714_568_400)));
        assert_eq!(at("1714568400"), Ok(Some(1_714_568_400)));
        assert_eq!(at("Unknown"), Ok(None));
        for wrong in ["Ystday 09:10", "-5", "12 May 10:00", "13:00:00", "2024-13-01T00:00:00"] {
            let error = at(wrong).unwrap_err();
            assert!(error.contains("SLURM_TIME_FORMAT=standard"), "{wrong}: {error}");
        }
    }

    #[test]
    fn gpus_are_counted_once() {
        let gpus = |count, kind: Option<&str>| Ok(Gpus { count, kind: kind.map(str::to_owned) });
        assert_eq!(tres("billing=8,cpu=8,gres/gpu=8,mem=64G,node=1"), gpus(8, None));
        assert_eq!(tres("cpu=8,gres/gpu:a100=4,gres/gpu=4"), gpus(4, Some("a100")));
        assert_eq!(tres("gres/gpu:a100=4,gres/gpu:v100=2"), gpus(6, None));
        assert_eq!(tres("gres/gpumem=1G,gres/gpuutil=3,cpu=1"), gpus(0, None));
        assert_eq!(tres(""), gpus(0, None));
        assert!(tres("gres/gpu=-1").is_err() && tres("gres/gpu=x").is_err());
        assert_eq!(gres("gpu:4"), gpus(4, None));
        assert_eq!(gres("gres:gpu:a100:2"), gpus(2, Some("a100")));
        assert_eq!(gres("gpu:2(S:0-1),craynetwork:1"), gpus(2, None));
        assert_eq!(gres("gpu:0"), gpus(0, None));
        assert_eq!(gres("(null)"), gpus(0, None));
        assert!(gres("gpu:many").is_err());
    }
}
