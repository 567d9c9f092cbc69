//! Cells of Slurm's accounting: dates, durations and the GPUs in lists of resources.
//!
//! The texts are read by [`wattle_slurm::text`], as by the service beside Slurm. A date without an offset is
//! in the site's local time, and is noted as such: see [`super::local_times`].

use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use wattle_common::gpu_type::is_slice;
use wattle_slurm::text::gres::GresList;
use wattle_slurm::text::{TextError, values};

use super::RowError;
use super::row::{RowNotes, span};
use crate::text::sanitize;

/// A number of GPUs, and their type where it is stated.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Gpus {
    pub(super) count: u32,
    /// The type, if all have one.
    pub(super) gpu_type: Option<String>,
    /// Whether some are slices of GPUs (MIG).
    pub(super) slices: bool,
    /// Whether the list has shares of GPUs (`gres/shard`, `gres/mps`).
    pub(super) shares: bool,
}

/// A date as the time since 1970; `None` for an unknown date.
///
/// The service selects seconds since 1970 (`SLURM_TIME_FORMAT=%s`); an export may have any format. A local time
/// counts as if its zone were UTC.
pub(super) fn instant(
    column: &'static str,
    text: &str,
    notes: &mut RowNotes,
) -> Result<Option<Duration>, RowError> {
    let no_date = || RowError::NotADate(column);
    let at = if let Ok(at) = values::instant(text) {
        let Some(at) = at else { return Ok(None) };
        at.as_us() as f64 / 1e6
    } else if let Ok(at) = text.parse::<Timestamp>() {
        at.as_duration().as_secs_f64()
    } else if let Ok(at) = jiff::fmt::strtime::parse("%Y-%m-%dT%H:%M:%S%z", text) {
        // %z of strftime writes offsets without a colon.
        at.to_timestamp().map_err(|_| no_date())?.as_duration().as_secs_f64()
    } else {
        let at: DateTime = text.parse().map_err(|_| no_date())?;
        notes.is_local = true;
        let at = at.to_zoned(TimeZone::UTC).map_err(|_| no_date())?;
        at.timestamp().as_duration().as_secs_f64()
    };
    span(at).map(Some).ok_or_else(no_date)
}

/// A duration in Slurm's notation ([`values::duration`]).
pub(super) fn elapsed(column: &'static str, text: &str) -> Result<Duration, RowError> {
    let duration = values::duration(text).ok().and_then(|duration| span(duration.as_secs_f64()));
    duration.ok_or_else(|| RowError::NotADuration { column, cell: sanitize(text) })
}

/// The GPUs in a list of trackable resources: `billing=8,gres/gpu:a100=4,gres/gpu=4,node=1`.
pub(super) fn tres(column: &'static str, text: &str) -> Result<Gpus, RowError> {
    gpus(column, text, GresList::of_tres(text))
}

/// The GPUs of one node in a list of generic resources, in the notation of older versions: `gpu:4`,
/// `gpu:a100:4`, `gres:gpu:2`, `gpu:2(S:0-1)`.
pub(super) fn gres(column: &'static str, text: &str) -> Result<Gpus, RowError> {
    gpus(column, text, GresList::parse(text))
}

fn gpus(
    column: &'static str,
    text: &str,
    list: Result<GresList, TextError>,
) -> Result<Gpus, RowError> {
    let list =
        list.map_err(|error| RowError::InvalidGpus { column, cell: sanitize(&error.text) })?;
    let wrong = || RowError::InvalidGpus { column, cell: sanitize(text) };
    let mut types = list.types("gpu").map(|(gpu_type, _)| gpu_type);
    let only = match (types.next(), types.next()) {
        (Some(one), None) if !one.is_empty() => Some(one.to_owned()),
        _ => None,
    };
    Ok(Gpus {
        count: u32::try_from(list.count("gpu")).map_err(|_| wrong())?,
        gpu_type: only,
        slices: list.types("gpu").any(|(gpu_type, _)| is_slice(gpu_type)),
        shares: ["shard", "mps"].iter().any(|name| list.count(name) > 0),
    })
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
        let at = |text| {
            instant("Start", text, &mut RowNotes::default()).map(|at| at.map(|at| at.as_secs()))
        };
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
        assert_eq!(gres("gpu:a100"), gpus(1, Some("a100")));
        assert!(gres("gpu:4x").is_err());
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
