//! From an event of the server to its intervals with times and depths.
//!
//! All here are functions of the event and the configuration, so a restart of the service changes nothing: a random
//! shift of the start is drawn from the names of the client and the event.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use wattle_common::event::{Depth, PRIORITY_MAX, Participation, SOURCE_LEN_MAX};
use wattle_common::hash::fnv1a;
use wattle_common::rng::Stream;
use wattle_common::time::scaled;
use wattle_common::{Power, Timestamp};

use crate::period::{self, Length, Start};
use crate::wire::{self, Event, IntervalPeriod, Payload, PayloadDescriptor, Program, shown};

/// A limit of the site's power, kW.
pub const IMPORT_CAPACITY_LIMIT: &str = "IMPORT_CAPACITY_LIMIT";
/// A level from 0 (normal operation) to 3.
pub const SIMPLE: &str = "SIMPLE";
/// An emergency: the event may not be declined.
pub const ALERT_GRID_EMERGENCY: &str = "ALERT_GRID_EMERGENCY";

/// Longest random shift of a start.
const RANDOMIZE_MAX: Duration = Duration::from_secs(86_400);
/// Largest number of an interval: ids of grid events are short.
const INTERVAL_ID_MAX: i64 = 99_999_999;
/// Largest limit, kW.
const KW_MAX: f64 = 1e9;
/// What the id of each announced event begins with.
const ID_PREFIX: &str = "openadr-";
/// Longest part of the server's id in the id of a grid event: that of a UUID.
const SHORT_ID_LEN: usize = 36;

/// What the configuration states about events.
#[derive(Clone, Debug, PartialEq)]
pub struct Site {
    /// The name of this client.
    pub ven_name: String,
    /// The name of the site as a resource.
    pub resource_name: String,
    /// Further labels by which events are addressed to this site.
    pub targets: Vec<String>,
    /// Reduction at the levels 1 to 3, per cent.
    pub levels: [f64; 3],
}

impl Site {
    /// All labels of this site.
    #[must_use]
    pub fn labels(&self) -> Vec<&str> {
        let named = [self.ven_name.as_str(), self.resource_name.as_str()];
        self.targets.iter().map(String::as_str).chain(named).collect()
    }
}

/// What an interval requests of the site.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// By how much less the site draws.
    pub depth: Depth,
    /// Whether it may be declined.
    pub participation: Participation,
}

/// An interval in time.
#[derive(Clone, Debug, PartialEq)]
pub struct Slot {
    /// Its number.
    pub id: i64,
    /// Its start.
    pub from: Timestamp,
    /// Its end; [`Timestamp::FOREVER`]: none.
    pub until: Timestamp,
    /// What it requests; absent: nothing that is understood, or normal operation.
    pub request: Option<Request>,
}

/// An event as it is understood.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Understood {
    /// The intervals, in the order of the event. Those without a duration are left out.
    pub slots: Vec<Slot>,
    /// Whether the times count from when it was first read.
    pub starts_now: bool,
    /// Its order in lists.
    pub priority: u32,
    /// The kinds of payloads that are not understood.
    pub ignored: BTreeSet<String>,
}

/// The beginning of the ids of all grid events of this event of the server.
#[must_use]
pub fn id_prefix(event: &str) -> String {
    if event.len() <= SHORT_ID_LEN {
        return format!("{ID_PREFIX}{event}-");
    }
    // Ids consist of ASCII characters (`wire::is_id`).
    let begin = event.get(..SHORT_ID_LEN - 17).unwrap_or_default();
    format!("{ID_PREFIX}{begin}-{:016x}-", fnv1a(event.as_bytes()))
}

/// Whether a grid event was announced by this service, by its id and its source.
#[must_use]
pub fn is_ours(id: &str, source: &str) -> bool {
    id.starts_with(ID_PREFIX) && source.starts_with("openadr ")
}

/// The source of the events of a program.
#[must_use]
pub fn source(program: &Program) -> String {
    let source = format!("openadr {}", shown(&program.program_name));
    source.chars().take(SOURCE_LEN_MAX).collect()
}

/// Whether an event is addressed to this site: it has no targets, or one of the site's.
#[must_use]
pub fn is_addressed(event: &Event, site: &Site) -> bool {
    let targets = event.targets.as_deref().unwrap_or_default();
    let labels = site.labels();
    targets.is_empty() || targets.iter().any(|target| target.is_one_of(&labels))
}

/// The parsed times of an interval.
struct Times {
    start: Option<Start>,
    length: Option<Length>,
    shift: Option<Shift>,
}

/// A shift of a start.
#[derive(Clone, Copy, Default)]
struct Shift {
    by: Duration,
    is_later: bool,
}

impl Shift {
    /// Drawn uniformly between both bounds; the same in each draw of this name.
    fn drawn(most: Duration, name: &str) -> Self {
        let share = 2.0 * Stream::new(fnv1a(name.as_bytes()), "randomized start").unit() - 1.0;
        Self { by: scaled(most, share.abs()), is_later: share > 0.0 }
    }

    fn of(self, at: Timestamp) -> Timestamp {
        if self.is_later { at + self.by } else { at - self.by }
    }
}

fn times(period: Option<&IntervalPeriod>, name: &str) -> Result<Times, String> {
    let Some(period) = period else { return Ok(Times { start: None, length: None, shift: None }) };
    let length = |text: &Option<String>, is_absolute| {
        text.as_deref().map(|text| period::duration(text, is_absolute)).transpose()
    };
    let shift = match length(&period.randomize_start, true)? {
        None | Some(Length::Of(Duration::ZERO)) => None,
        Some(Length::Of(most)) if most <= RANDOMIZE_MAX => Some(Shift::drawn(most, name)),
        Some(_) => return Err("randomizeStart is longer than a day".to_owned()),
    };
    let start = period.start.as_deref().map(period::start).transpose()?;
    Ok(Times { start, length: length(&period.duration, false)?, shift })
}

/// The unit of a kind of payload: of the event, else of its program.
fn units<'a>(kind: &str, event: &'a Event, program: &'a Program) -> Option<&'a str> {
    let of = |descriptors: &'a Option<Vec<PayloadDescriptor>>| {
        let mut all = descriptors.iter().flatten();
        all.find(|descriptor| descriptor.payload_type == kind)?.units.as_deref()
    };
    of(&event.payload_descriptors).or_else(|| of(&program.payload_descriptors))
}

fn one_number(payload: &Payload) -> Result<f64, String> {
    let number = match payload.values.as_slice() {
        [value] => value.as_f64().filter(|number| number.is_finite()),
        _ => None,
    };
    number.ok_or_else(|| format!("{} has not one number as its value", payload.kind))
}

/// What the payloads of an interval request: a limit before a level, and an emergency alone as level 3.
fn request(
    payloads: &[Payload],
    event: &Event,
    program: &Program,
    site: &Site,
    ignored: &mut BTreeSet<String>,
) -> Result<Option<Request>, String> {
    let (mut limit, mut level, mut participation) = (None, None, Participation::Voluntary);
    for payload in payloads {
        match payload.kind.as_str() {
            IMPORT_CAPACITY_LIMIT => {
                let unit = units(IMPORT_CAPACITY_LIMIT, event, program).unwrap_or("KW");
                if unit != "KW" {
                    let unit = shown(unit);
                    return Err(format!("{IMPORT_CAPACITY_LIMIT} in `{unit}`: KW is accepted"));
                }
                let kw = one_number(payload)?;
                if !(0.0..=KW_MAX).contains(&kw) {
                    return Err(format!(
                        "{IMPORT_CAPACITY_LIMIT} of {kw} kW: 0 to {KW_MAX} kW are accepted"
                    ));
                }
                limit = Some(Power::from_w_f64(kw * 1e3));
            }
            SIMPLE => {
                let number = one_number(payload)?;
                let levels = [0.0_f64, 1.0, 2.0, 3.0];
                let found = levels.iter().position(|level| level.total_cmp(&number).is_eq());
                level = Some(found.ok_or_else(|| {
                    format!("{SIMPLE} of {number}: the levels 0, 1, 2 and 3 are accepted")
                })?);
            }
            ALERT_GRID_EMERGENCY => participation = Participation::Mandatory,
            other => {
                ignored.insert(shown(other));
            }
        }
    }
    let is_emergency = participation == Participation::Mandatory;
    let level = level.or(is_emergency.then_some(3)).unwrap_or(0);
    let percent = level.checked_sub(1).and_then(|i| site.levels.get(i).copied());
    let depth = match (limit, percent) {
        (Some(power_mw), _) => Some(Depth::Target { power_mw }),
        (None, percent) => percent.map(|percent| Depth::Percent { percent }),
    };
    Ok(depth.map(|depth| Request { depth, participation }))
}

/// The intervals of an event. `now` is when it was first read, for those that start then.
///
/// # Errors
/// Why the event is refused.
pub fn understood(
    event: &Event,
    program: &Program,
    site: &Site,
    now: Timestamp,
) -> Result<Understood, String> {
    event.check()?;
    let name = format!("{} {}", site.ven_name, event.id);
    let whole = times(event.interval_period.as_ref(), &name)?;
    let mut shift = whole.shift.unwrap_or_default();
    let mut understood = Understood {
        priority: event.priority.map_or(PRIORITY_MAX, |given| {
            u32::try_from(given.max(0)).map_or(PRIORITY_MAX, |given| given.min(PRIORITY_MAX))
        }),
        ..Understood::default()
    };
    let intervals = event.intervals.as_deref().unwrap_or_default();
    // An event that only requests reports may have a period and no interval.
    let implied = wire::Interval { id: 0, interval_period: None, payloads: None };
    let is_implied = intervals.is_empty() && event.interval_period.is_some();
    let intervals = if is_implied { std::slice::from_ref(&implied) } else { intervals };
    let mut begin: Option<Timestamp> = None;
    let mut end: Option<Timestamp> = None;
    let mut ids = BTreeSet::new();
    for interval in intervals {
        let id = interval.id;
        if !(0..=INTERVAL_ID_MAX).contains(&id) || !ids.insert(id) {
            return Err(format!(
                "interval {id}: numbers from 0 to {INTERVAL_ID_MAX} are accepted, each once"
            ));
        }
        let own = times(interval.interval_period.as_ref(), &format!("{name} {id}"))?;
        shift = own.shift.unwrap_or(shift);
        let from = match (own.start, end, whole.start) {
            (Some(Start::At(at)), ..) => shift.of(at),
            // Where the one before ends.
            (_, Some(end), _) => end,
            (_, None, Some(Start::At(at))) => shift.of(at),
            (Some(Start::Now), None, _) | (None, None, Some(Start::Now)) => {
                understood.starts_now = true;
                now
            }
            (None, None, None) => return Err(format!("interval {id} has no start")),
        };
        let length = own.length.or(whole.length);
        let until = length.ok_or_else(|| format!("interval {id} has no duration"))?.after(from);
        let payloads = interval.payloads.as_deref().unwrap_or_default();
        let request = request(payloads, event, program, site, &mut understood.ignored)
            .map_err(|error| format!("interval {id}: {error}"))?;
        begin.get_or_insert(from);
        end = Some(until);
        understood.slots.push(Slot { id, from, until, request });
    }
    cut(event, &mut understood.slots, begin, end)?;
    understood.slots.retain(|slot| slot.from < slot.until);
    Ok(understood)
}

/// Ends the intervals at the event's own duration, where it has one.
fn cut(
    event: &Event,
    slots: &mut [Slot],
    begin: Option<Timestamp>,
    end: Option<Timestamp>,
) -> Result<(), String> {
    let whole = event.duration.as_deref().map(|text| period::duration(text, false)).transpose()?;
    let (Some(whole), Some(begin), Some(end)) = (whole, begin, end) else { return Ok(()) };
    // Some servers write the default of other durations.
    if whole == Length::Of(Duration::ZERO) {
        return Ok(());
    }
    let last = whole.after(begin);
    let requests = slots.iter().any(|slot| slot.request.is_some());
    if last > end && requests {
        return Err(
            "its duration is longer than its intervals, and repeated intervals are not supported"
                .to_owned(),
        );
    }
    for slot in slots {
        slot.until = slot.until.min(last);
    }
    Ok(())
}

/// The programs of these names among those of the server, by their ids, and the names without a program.
#[must_use]
pub fn chosen(
    programs: Vec<Program>,
    names: &[String],
) -> (BTreeMap<String, Program>, Vec<String>) {
    let is_chosen = |program: &Program| names.contains(&program.program_name);
    let found: BTreeMap<String, Program> = programs
        .into_iter()
        .filter(is_chosen)
        .map(|program| (program.id.clone(), program))
        .collect();
    let is_missing = |name: &&String| !found.values().any(|program| program.program_name == **name);
    let missing = names.iter().filter(is_missing).cloned().collect();
    (found, missing)
}

/// A value of JSON for a number.
#[must_use]
pub fn number(value: f64) -> Value {
    Value::from((value * 1e6).round() / 1e6)
}

#[cfg(test)]
#[path = "translate_tests.rs"]
mod tests;
