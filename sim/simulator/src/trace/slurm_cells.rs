//! Cells of Slurm's accounting: dates, durations and lists of resources.
//!
//! A date without an offset is in the site's local time; hours that a change to or from summer time
//! skips or repeats are not corrected.

use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use wattle_common::gpu_type::is_slice;

use super::RowError;
use super::row::span;
use crate::text::sanitize;

/// A number of GPUs, and their type where it is stated.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Gpus {
    pub(super) count: u32,
    pub(super) gpu_type: Option<String>,
    /// Whether some are slices of GPUs (MIG).
    pub(super) slices: bool,
    /// Whether the list has shares of GPUs (`gres/shard`, `gres/mps`).
    pub(super) shares: bool,
}

/// A date as the time since 1970; `None` for an unknown date.
pub(super) fn instant(column: &'static str, text: &str) -> Result<Option<Duration>, RowError> {
    if matches!(text, "Unknown" | "None" | "N/A" | "(null)") {
        return Ok(None);
    }
    let no_date = || RowError::NotADate(column);
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
pub(super) fn elapsed(column: &'static str, text: &str) -> Result<Duration, RowError> {
    let wrong = || RowError::NotADuration { column, cell: sanitize(text) };
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
pub(super) fn tres(column: &'static str, text: &str) -> Result<Gpus, RowError> {
    let (mut plain, mut typed, mut types, mut gpus) = (None, 0u32, Vec::new(), Gpus::default());
    for resource in text.split(',') {
        let Some((name, count)) = resource.split_once('=') else { continue };
        let (name, gpu_type) = match name.trim().split_once(':') {
            Some((name, gpu_type)) => (name, Some(gpu_type)),
            None => (name.trim(), None),
        };
        gpus.shares |= matches!(name, "gres/shard" | "gres/mps") && count.trim() != "0";
        if name != "gres/gpu" {
            continue;
        }
        let wrong = || RowError::InvalidGpus { column, cell: sanitize(resource) };
        let count: u32 = count.trim().parse().map_err(|_| wrong())?;
        match gpu_type {
            None => plain = Some(count),
            Some(gpu_type) => {
                typed = typed.checked_add(count).ok_or_else(wrong)?;
                gpus.slices |= is_slice(gpu_type) && count > 0;
                types.push(gpu_type);
            }
        }
    }
    gpus.gpu_type = if let [one] = types[..] { Some(one.to_owned()) } else { None };
    gpus.count = plain.unwrap_or(typed);
    Ok(gpus)
}

/// The GPUs of one node in a list of generic resources, in the notation of older versions: `gpu:4`,
/// `gpu:a100:4`, `gres:gpu:2`, `gpu:2(S:0-1)`.
pub(super) fn gres(column: &'static str, text: &str) -> Result<Gpus, RowError> {
    let mut gpus = Gpus::default();
    let mut types = 0;
    for resource in text.split(',') {
        let resource = resource.split('(').next().unwrap_or_default().trim();
        let resource = resource.strip_prefix("gres:").unwrap_or(resource);
        let resource = resource.strip_prefix("gres/").unwrap_or(resource);
        let parts: Vec<&str> = resource.split([':', '=']).collect();
        let (gpu_type, count) = match parts[..] {
            ["gpu"] => (None, "1"),
            ["gpu", count] => (None, count),
            ["gpu", gpu_type, count] => (Some(gpu_type), count),
            ["shard" | "mps", ..] => {
                gpus.shares = true;
                continue;
            }
            _ => continue,
        };
        let wrong = || RowError::InvalidGpus { column, cell: sanitize(resource) };
        let count: u32 = count.parse().map_err(|_| wrong())?;
        gpus.count = gpus.count.checked_add(count).ok_or_else(wrong)?;
        gpus.slices |= gpu_type.is_some_and(is_slice) && count > 0;
        types += 1;
        gpus.gpu_type = gpu_type.filter(|_| types == 1).map(str::to_owned);
    }
    Ok(gpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_in_slurms_notation() {
        let seconds = |text| elapsed("Elapsed", text).map(|span| span.as_secs_f64());
        assert_eq!(seconds("00:00:59"), Ok(59.0));
        assert_eq!(seconds("2-03:04:05"), Ok(183_845.0));
        assert_eq!(seconds("12:30"), Ok(750.0));
        assert_eq!(seconds("01:02.500"), Ok(62.5));
        for wrong in ["", "INVALID", "5", "-1:00:00", "1:2:3:4", "1-", "00:0x:00", "a-00:00:01"] {
            assert!(elapsed("Elapsed", wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn dates_in_every_slurm_time_format() {
        let at = |text| instant("Start", text).map(|at| at.map(|at| at.as_secs()));
        assert_eq!(at("2024-05-01T13:00:00"), Ok(Some(1_714_568_400)));
        assert_eq!(at("2024-05-01 13:00:00"), Ok(Some(1_714_568_400)));
        assert_eq!(at("2024-05-01T13:00:00+0200"), Ok(Some(1_714_561_200)));
        assert_eq!(at("2024-05-01T13:00:00+02:00"), Ok(Some(1_714_561_200)));
        assert_eq!(at("2024-05-01T13:00:00Z"), Ok(Some(1_714_568_400)));
        assert_eq!(at("1714568400"), Ok(Some(1_714_568_400)));
        assert_eq!(at("Unknown"), Ok(None));
        for wrong in ["Ystday 09:10", "-5", "12 May 10:00", "13:00:00", "2024-13-01T00:00:00"] {
            let error = at(wrong).unwrap_err().to_string();
            assert!(error.contains("SLURM_TIME_FORMAT=standard"), "{wrong}: {error}");
        }
    }

    #[test]
    fn gpus_are_counted_once() {
        let gpus = |count, gpu_type: Option<&str>| {
            Ok(Gpus { count, gpu_type: gpu_type.map(str::to_owned), ..Gpus::default() })
        };
        let tres = |text| super::tres("AllocTRES", text);
        let gres = |text| super::gres("ReqGRES", text);
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

    #[test]
    fn slices_and_shares_are_marked() {
        let tres = |text| super::tres("AllocTRES", text).unwrap();
        let slice = tres("gres/gpu:a100_3g.20gb=1,gres/gpu=1");
        assert!(slice.slices && slice.count == 1);
        assert!(!tres("gres/gpu:a100_3g.20gb=0,gres/gpu:a100=2").slices);
        assert!(!tres("gres/gpu:nvidia_a100-sxm4-80gb=2").slices);
        let share = tres("cpu=4,gres/shard=2");
        assert!(share.shares && share.count == 0);
        assert!(super::gres("ReqGRES", "mps:50").unwrap().shares);
        assert!(super::gres("ReqGRES", "gpu:1g.5gb:1").unwrap().slices);
    }
}
