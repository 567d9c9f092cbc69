//! Grid events as people write them: in options, and in a file of `[[event]]` tables (TOML, or the same as JSON).
//!
//! The same file serves `wattle event add` and a simulation. Spans from now are there spans from the first submission.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use wattle_common::duration::parse_span;
use wattle_common::event::{Depth, EVENTS_MAX, GridEvent, Participation};
use wattle_common::{EventId, FeederId, Power, Timestamp, id};
use wattle_runtime::shell::chain;
use wattle_simulator::PlannedEvent;
use wattle_simulator::input_file;
use wattle_view::event::default_id;

use crate::output::usage;

/// Largest accepted file, bytes.
const BYTES_MAX: u64 = 1 << 20;

/// Largest power, watts: a terawatt. In milliwatts it fits in 64 bits.
const WATTS_MAX: f64 = 1e12;

/// An instant as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// This long from now.
    In(Duration),
    /// At an instant.
    At(Timestamp),
}

impl When {
    /// The instant, from `now` on.
    pub(crate) fn at(self, now: Timestamp) -> Timestamp {
        match self {
            Self::In(span) => now + span,
            Self::At(at) => at,
        }
    }
}

/// Parses `now`, a span or a time with its offset.
pub(crate) fn parse_when(text: &str) -> Result<When, String> {
    if text == "now" {
        return Ok(When::In(Duration::ZERO));
    }
    if let Ok(span) = parse_span(text) {
        return Ok(When::In(span));
    }
    let at = text.parse::<jiff::Timestamp>().ok();
    let us = at.and_then(|at| u64::try_from(at.as_microsecond()).ok());
    us.map(|us| When::At(Timestamp::from_us(us))).ok_or_else(|| {
        format!(
            "invalid time `{text}`: give now, a span from now as in 90m, or a time as in 2026-11-29T16:25:00Z"
        )
    })
}

/// A number and its unit.
fn split(text: &str) -> Option<(f64, &str)> {
    let unit_at = text.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
    let number: f64 = text[..unit_at].parse().ok()?;
    Some((number, text[unit_at..].trim()))
}

/// Watts in a unit of power.
fn watts(unit: &str) -> Option<f64> {
    match unit {
        "W" => Some(1.0),
        "kW" => Some(1e3),
        "MW" => Some(1e6),
        _ => None,
    }
}

/// Parses `70kW`, `500 W` or `1.2MW`.
fn parse_power(text: &str) -> Result<Power, String> {
    let wrong = || format!("invalid power `{text}`: give a number with its unit, as in 70kW");
    let (number, unit) = split(text).ok_or_else(wrong)?;
    let factor = watts(unit)
        .ok_or_else(|| format!("unknown unit `{unit}` in `{text}`: give W, kW or MW"))?;
    let power = number * factor;
    if !(power > 0.0 && power <= WATTS_MAX) {
        return Err(wrong());
    }
    Ok(Power::from_w_f64(power))
}

/// Parses the power of a target.
pub(crate) fn parse_target(text: &str) -> Result<Depth, String> {
    Ok(Depth::Target { power_mw: parse_power(text)? })
}

/// Parses `25%` or `20kW`.
pub(crate) fn parse_reduction(text: &str) -> Result<Depth, String> {
    let unit = split(text).map(|(_, unit)| unit);
    match (unit, split(text)) {
        (Some("%"), Some((percent, _))) if percent > 0.0 && percent < 100.0 => {
            Ok(Depth::Percent { percent })
        }
        (Some("%"), _) => Err(format!("invalid share `{text}`: give above 0 % and below 100 %")),
        (Some(unit), _) if watts(unit).is_none() => {
            Err(format!("unknown unit `{unit}` in `{text}`: give %, W, kW or MW"))
        }
        (Some(_), _) => Ok(Depth::Reduction { power_mw: parse_power(text)? }),
        (None, _) => Err(format!(
            "invalid reduction `{text}`: give a number with its unit, as in 25% or 20kW"
        )),
    }
}

/// Parses the name of a feeder.
fn parse_feeder(text: &str) -> Result<FeederId, String> {
    FeederId::new(text).map_err(|error| error.to_string())
}

fn written<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    parse: fn(&str) -> Result<T, String>,
) -> Result<Option<T>, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse(&text).map(Some).map_err(D::Error::custom)
}

fn when<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<When>, D::Error> {
    written(deserializer, parse_when)
}

fn target<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Depth>, D::Error> {
    written(deserializer, parse_target)
}

fn reduction<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Depth>, D::Error> {
    written(deserializer, parse_reduction)
}

fn a_span<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    written(deserializer, |text| parse_span(text).map_err(|error| error.to_string()))
}

/// An event as options: the fields of a table of a file.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventOptions {
    /// Its id [default: made from its start, as event-20261129-162500]
    #[arg(long, value_name = "ID", value_parser = id::parse_chosen::<EventId>)]
    #[serde(default)]
    id: Option<EventId>,
    /// The utility, operator or program that announces it [default: operator]
    #[arg(long, value_name = "NAME")]
    #[serde(default)]
    source: Option<String>,
    /// The feeder whose power it limits [default: it limits the whole site]
    #[arg(long, value_name = "NAME", value_parser = parse_feeder)]
    #[serde(default)]
    feeder: Option<FeederId>,
    /// When it is announced, in a simulation alone [default: at its start]
    #[arg(skip)]
    #[serde(default, deserialize_with = "when")]
    notice: Option<When>,
    /// Start of the ramp down: now, a span from now (90m), or a time (2026-11-29T16:25:00Z)
    #[arg(long, value_name = "WHEN", value_parser = parse_when)]
    #[serde(default, deserialize_with = "when")]
    start: Option<When>,
    /// Time from the start until the target is reached [default: none]
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    #[serde(default, deserialize_with = "a_span")]
    ramp_down: Option<Duration>,
    /// By how much less the site or the feeder draws than in the last 15 minutes: 25%, 20kW
    #[arg(long, value_name = "DEPTH", value_parser = parse_reduction)]
    #[serde(default, deserialize_with = "reduction")]
    reduce: Option<Depth>,
    /// The most that the site or the feeder draws, in place of --reduce: 70kW
    #[arg(long, value_name = "POWER", value_parser = parse_target, conflicts_with = "reduce")]
    #[serde(default, deserialize_with = "target")]
    to: Option<Depth>,
    /// Time at the target
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    #[serde(default, deserialize_with = "a_span")]
    duration: Option<Duration>,
    /// End of the target, in place of --duration
    #[arg(long, value_name = "WHEN", value_parser = parse_when, conflicts_with = "duration")]
    #[serde(default, deserialize_with = "when")]
    end: Option<When>,
    /// Time from the end until the power may be that of before [default: none]
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    #[serde(default, deserialize_with = "a_span")]
    ramp_up: Option<Duration>,
    /// Its order in lists among events of one start, 0 first
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[serde(default)]
    priority: u32,
    /// It may not be declined
    #[arg(long)]
    #[serde(default)]
    mandatory: bool,
}

impl EventOptions {
    /// Whether nothing is given.
    pub(crate) const fn is_empty(&self) -> bool {
        self.start.is_none() && self.reduce.is_none() && self.to.is_none()
    }

    /// Its id, where one is given.
    pub(crate) const fn id(&self) -> Option<&EventId> {
        self.id.as_ref()
    }

    /// Its feeder, where one is given.
    pub(crate) const fn feeder(&self) -> Option<&FeederId> {
        self.feeder.as_ref()
    }

    /// Whether some time is given.
    pub(crate) const fn has_times(&self) -> bool {
        self.duration.is_some()
            || self.end.is_some()
            || self.ramp_down.is_some()
            || self.ramp_up.is_some()
    }

    /// The event from `now` on; errors name the field.
    pub(crate) fn event(&self, now: Timestamp) -> Result<GridEvent, String> {
        let start = self.start.ok_or("start is missing: give when the ramp down begins")?;
        let start_us = start.at(now);
        let depth = match (self.reduce, self.to) {
            (Some(depth), None) | (None, Some(depth)) => depth,
            (None, None) => {
                return Err(
                    "the depth is missing: give reduce, as in 25%, or to, as in 70kW".to_owned()
                );
            }
            (Some(_), Some(_)) => return Err("reduce and to are given: give one".to_owned()),
        };
        let ramp_down = self.ramp_down.unwrap_or_default();
        let duration = match (self.duration, self.end) {
            (Some(duration), None) => duration,
            (None, Some(end)) => {
                let (reached, end) = (start_us + ramp_down, end.at(now));
                if end <= reached {
                    return Err("end is not after the start and its ramp down: give a later one, or duration"
                        .to_owned());
                }
                end.since(reached)
            }
            (None, None) => {
                return Err("duration is missing: give the time at the target".to_owned());
            }
            (Some(_), Some(_)) => return Err("duration and end are given: give one".to_owned()),
        };
        let event = GridEvent {
            event: match self.id.clone().or_else(|| default_id(start_us)) {
                Some(event) => event,
                None => return Err("start is out of range: give an earlier one".to_owned()),
            },
            source: self.source.clone().unwrap_or_else(|| "operator".to_owned()),
            feeder: self.feeder.clone(),
            start_us,
            ramp_down_s: ramp_down.as_secs(),
            depth,
            duration_s: duration.as_secs(),
            ramp_up_s: self.ramp_up.unwrap_or_default().as_secs(),
            priority: self.priority,
            participation: if self.mandatory {
                Participation::Mandatory
            } else {
                Participation::Voluntary
            },
        };
        event.check(now).map_err(|error| error.to_string())?;
        Ok(event)
    }

    /// The event of a simulation.
    fn planned(&self) -> Result<PlannedEvent, String> {
        let absolute = [self.notice, self.start, self.end].into_iter().flatten();
        if absolute.clone().any(|when| matches!(when, When::At(_))) {
            return Err(
                "a simulation counts from its first submission: give spans, as in start = \"2h\""
                    .to_owned(),
            );
        }
        let event = self.event(Timestamp::EPOCH)?;
        let notice = self.notice.map_or(event.start_us, |notice| notice.at(Timestamp::EPOCH));
        if notice > event.start_us {
            return Err("notice is after the start: give an earlier one".to_owned());
        }
        Ok(PlannedEvent { notice, event })
    }
}

/// The file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EventFile {
    event: Vec<EventOptions>,
}

/// An error of TOML with the number and the text of its line.
fn located(text: &str, error: &toml::de::Error) -> String {
    let at = error.span().map_or(0, |span| span.start.min(text.len()));
    let before = text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count();
    let line = text.lines().nth(before).unwrap_or_default().trim();
    let remedy = if line == "[event]" { "; begin each event with [[event]]" } else { "" };
    format!(":{}: {}; the line reads `{line}`{remedy}", before + 1, error.message())
}

/// The events of a file, each by `make`.
fn read<T>(
    path: &Path,
    make: impl Fn(&EventOptions) -> Result<T, String>,
) -> anyhow::Result<Vec<T>> {
    let name = path.display();
    let text = input_file::read(path, BYTES_MAX)
        .map_err(|error| usage(format!("cannot read the events {name}: {}", chain(&error))))?;
    let text = String::from_utf8_lossy(&text);
    let file: EventFile = if text.trim_start().starts_with('{') {
        serde_json::from_str(&text).map_err(|error| usage(format!("{name}: {error}")))?
    } else {
        toml::from_str(&text).map_err(|error| usage(format!("{name}{}", located(&text, &error))))?
    };
    if file.event.is_empty() || file.event.len() > EVENTS_MAX {
        let count = file.event.len();
        return Err(usage(format!(
            "{name} has {count} events: give 1 to {EVENTS_MAX} tables [[event]]"
        )));
    }
    let made = (1..).zip(&file.event).map(|(number, options): (usize, _)| {
        let event = options.id.as_ref().map(|id| format!(" `{id}`")).unwrap_or_default();
        make(options).map_err(|error| usage(format!("{name}: event {number}{event}: {error}")))
    });
    made.collect()
}

/// The events of a file for a live placer.
pub(crate) fn announced(path: &Path, now: Timestamp) -> anyhow::Result<Vec<GridEvent>> {
    read(path, |options| match options.notice {
        Some(_) => {
            Err("notice is of a simulation: the notice of this event is now; omit it".to_owned())
        }
        None => options.event(now),
    })
}

/// The option of a simulation.
#[derive(Args, Clone, Debug, Default)]
pub struct SimulatedEvents {
    /// Grid events of the simulation: tables [[event]] with spans from the first submission (see `wattle event add`)
    #[arg(long, value_name = "FILE")]
    event: Option<PathBuf>,
}

impl SimulatedEvents {
    /// The events.
    ///
    /// # Errors
    /// Names the file, the event and the field.
    pub fn read(&self) -> anyhow::Result<Vec<PlannedEvent>> {
        self.event
            .as_deref()
            .map_or_else(|| Ok(Vec::new()), |path| read(path, EventOptions::planned))
    }

    /// The events in words; `None` without any.
    pub(crate) fn name(&self) -> Option<String> {
        Some(format!("grid events of {}", self.event.as_deref()?.file_name()?.to_string_lossy()))
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.event.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events");
        std::fs::write(&path, text).unwrap();
        (folder, path)
    }

    const TOML: &str = r#"
        [[event]]
        id = "peak-1"
        source = "utility"
        start = "2h"
        ramp_down = "15m"
        reduce = "25%"
        duration = "3h"
        ramp_up = "15m"
        mandatory = true
    "#;

    #[test]
    fn a_file_has_the_same_events_as_toml_and_as_json() {
        let json = r#"{"event": [{"id": "peak-1", "source": "utility", "start": "2h", "ramp_down": "15m",
            "reduce": "25%", "end": "5.25h", "ramp_up": "15m", "mandatory": true}]}"#;
        let now = Timestamp::from_s(1_795_753_177);
        let read = |text: &str| {
            let (_folder, path) = file(text);
            announced(&path, now).unwrap()
        };
        let events = read(TOML);
        assert_eq!(events, read(json));
        assert_eq!(events[0].start_us, now + Duration::from_secs(7_200));
        assert_eq!(events[0].depth, Depth::Percent { percent: 25.0 });
        let (_folder, path) = file(TOML);
        let planned = SimulatedEvents { event: Some(path) }.read().unwrap();
        assert_eq!(planned[0].notice, Timestamp::from_s(7_200), "at its start");
    }

    #[test]
    fn errors_name_the_line_or_the_field() {
        let refused = |from: &str, to: &str| {
            let (folder, path) = file(&TOML.replace(from, to));
            let error = SimulatedEvents { event: Some(path) }.read().unwrap_err();
            let name = format!("{}/", folder.path().display());
            format!("{error:#}\n").replace(&name, "")
        };
        let cases = [
            ("\"25%\"", "\"25 kVA\""),
            ("\"25%\"", "\"125%\""),
            ("\"25%\"", "25"),
            ("duration = \"3h\"", "duration = \"three hours\""),
            ("duration = \"3h\"", "end = \"1h\""),
            ("duration = \"3h\"", "duration = \"10m\""),
            ("duration = \"3h\"", ""),
            ("reduce = \"25%\"", ""),
            ("ramp_up", "ramp_upp"),
            ("start = \"2h\"", "start = \"2026-11-29T16:25:00Z\""),
            ("start = \"2h\"", "start = \"tomorrow\""),
            ("start = \"2h\"", "start = \"2h\"\nnotice = \"3h\""),
            ("[[event]]", "[event]"),
            ("\"utility\"", "\"\""),
        ];
        let texts: String = cases.iter().map(|(from, to)| refused(from, to)).collect();
        expect_test::expect![[r#"
            events:7: unknown unit `kVA` in `25 kVA`: give %, W, kW or MW; the line reads `reduce = "25 kVA"`
            events:7: invalid share `125%`: give above 0 % and below 100 %; the line reads `reduce = "125%"`
            events:7: invalid type: integer `25`, expected a string; the line reads `reduce = 25`
            events:8: invalid duration `three hours`: expected 90s, 45m, 12h or 3d; the line reads `duration = "three hours"`
            events: event 1 `peak-1`: end is not after the start and its ramp down: give a later one, or duration
            events: event 1 `peak-1`: ramp_down = 15 min: expected at most the duration of 10 min
            events: event 1 `peak-1`: duration is missing: give the time at the target
            events: event 1 `peak-1`: the depth is missing: give reduce, as in 25%, or to, as in 70kW
            events:9: unknown field `ramp_upp`, expected one of `id`, `source`, `feeder`, `notice`, `start`, `ramp_down`, `reduce`, `to`, `duration`, `end`, `ramp_up`, `priority`, `mandatory`; the line reads `ramp_upp = "15m"`
            events: event 1 `peak-1`: a simulation counts from its first submission: give spans, as in start = "2h"
            events:5: invalid time `tomorrow`: give now, a span from now as in 90m, or a time as in 2026-11-29T16:25:00Z; the line reads `start = "tomorrow"`
            events: event 1 `peak-1`: notice is after the start: give an earlier one
            events:2: invalid type: map, expected a sequence; the line reads `[event]`; begin each event with [[event]]
            events: event 1 `peak-1`: source = 0 characters: expected 1 to 128 characters without control characters
        "#]].assert_eq(&texts);
    }

    #[test]
    fn an_event_without_an_id_is_named_by_its_start() {
        let options = EventOptions {
            start: Some(When::In(Duration::ZERO)),
            to: Some(parse_target("1.5 kW").unwrap()),
            duration: Some(Duration::from_secs(3_600)),
            ..EventOptions::default()
        };
        let event = options.event(Timestamp::from_s(1_795_753_177)).unwrap();
        assert_eq!(event.event.as_str(), "event-20261127-041937");
        assert_eq!(event.depth, Depth::Target { power_mw: Power::from_w(1_500) });
    }
}
