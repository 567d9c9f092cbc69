//! The reports that events request: when each is due, and what it contains.
//!
//! A report has a value for each interval of which one is known; an interval without a value is left out. It is sent
//! again when its content has changed, under the same name, and the server then has the newest.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};
use wattle_common::Timestamp;
use wattle_common::event::EventRecord;
use wattle_grid::instant;

use crate::translate::{Site, Slot, number};
use crate::wire::{self, Report, ReportDescriptor, shown};

/// Time after an interval after which its minutes are stored: each follows within a minute.
const METERED_AFTER: Duration = Duration::from_secs(150);
/// Pause before the minutes are read again where a node was not metered.
const MEASURE_AGAIN: Duration = Duration::from_secs(300);
/// Number of times that the minutes of an interval are read.
const MEASURES_MAX: u32 = 3;
/// A report is sent until this time after its last interval.
const SENT_FOR: Duration = Duration::from_secs(86_400);
/// Joules of a kilowatt-hour.
const J_PER_KWH: f64 = 3.6e6;

/// The kinds of values that are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The energy of the site.
    Usage,
    /// The power before the notice.
    Baseline,
    /// By how much the target is below the power before.
    Reduction,
}

impl Kind {
    fn of(name: &str) -> Option<Self> {
        match name {
            "USAGE" => Some(Self::Usage),
            "BASELINE" => Some(Self::Baseline),
            "LOAD_SHED_DELTA_AVAILABLE" => Some(Self::Reduction),
            _ => None,
        }
    }

    /// How the values are obtained, in OpenADR's terms.
    const fn reading(self) -> &'static str {
        match self {
            Self::Usage => "DIRECT_READ",
            Self::Baseline => "MEAN",
            Self::Reduction => "FORECAST",
        }
    }

    /// The unit: that of the request, else energy for what is used, and power otherwise.
    fn unit(self, descriptor: &ReportDescriptor) -> Result<Unit, String> {
        match descriptor.units.as_deref() {
            None if self == Self::Usage => Ok(Unit::Kwh),
            None | Some("KW") => Ok(Unit::Kw),
            Some("KWH") => Ok(Unit::Kwh),
            Some(other) => Err(format!("in `{}`: KW and KWH are supported", shown(other))),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Kwh,
    Kw,
}

impl Unit {
    const fn name(self) -> &'static str {
        match self {
            Self::Kwh => "KWH",
            Self::Kw => "KW",
        }
    }
}

/// The value of an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Found {
    /// It may become known.
    Pending,
    /// It will not.
    Missing,
    /// In the unit of the report.
    Known(f64),
}

/// Why a requested report is not sent.
///
/// # Errors
/// Names the kind or the unit.
pub fn check(descriptor: &ReportDescriptor) -> Result<(), String> {
    let name = shown(&descriptor.payload_type);
    let kind = Kind::of(&name).ok_or_else(|| {
        format!("report {name} is not sent: USAGE, BASELINE and LOAD_SHED_DELTA_AVAILABLE are")
    })?;
    kind.unit(descriptor).map_err(|error| format!("report {name} is not sent {error}"))?;
    if kind == Kind::Usage && descriptor.historical == Some(false) {
        return Err(
            "report USAGE as a forecast is not sent: the energy of the future is not known"
                .to_owned(),
        );
    }
    Ok(())
}

/// An interval whose energy is to be read.
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    /// The event of the server.
    pub event: String,
    /// The interval.
    pub slot: Slot,
}

#[derive(Clone, Debug)]
struct Measured {
    slot: Slot,
    next: Timestamp,
    tries: u32,
    /// Absent: not known yet.
    joules: Option<Found>,
}

/// The reports of an event.
#[derive(Clone, Debug, Default)]
pub struct EventReports {
    measured: BTreeMap<i64, Measured>,
    /// What the server has accepted, by the place of the descriptor.
    accepted: BTreeMap<usize, Report>,
    outstanding: BTreeSet<usize>,
}

/// What a report is made from.
pub struct Sources<'a> {
    /// The configuration.
    pub site: &'a Site,
    /// The event of the server.
    pub event: &'a wire::Event,
    /// Its intervals.
    pub slots: &'a [Slot],
    /// The record of an interval's grid event.
    pub record: &'a dyn Fn(&Slot) -> Option<EventRecord>,
}

/// The intervals that a report is about.
fn selected<'a>(slots: &'a [Slot], descriptor: &ReportDescriptor) -> &'a [Slot] {
    let at = |given: Option<i64>| given.and_then(|given| usize::try_from(given).ok());
    let from = at(descriptor.start_interval).unwrap_or(0).min(slots.len());
    let most = at(descriptor.num_intervals).unwrap_or(usize::MAX);
    &slots[from..from.saturating_add(most).min(slots.len())]
}

impl EventReports {
    /// The reports that are due now by the place of their descriptors, and an interval whose energy is to be read.
    pub fn due(
        &mut self,
        sources: &Sources<'_>,
        now: Timestamp,
    ) -> (Vec<(usize, Report)>, Option<Measure>) {
        let (mut reports, mut measure) = (Vec::new(), None);
        let labels = sources.site.labels();
        for (i, descriptor) in sources.event.report_descriptors.iter().flatten().enumerate() {
            let targets = descriptor.targets.as_deref().unwrap_or_default();
            let is_ours =
                targets.is_empty() || targets.iter().any(|target| target.is_one_of(&labels));
            let slots = selected(sources.slots, descriptor);
            let is_late = slots.last().is_none_or(|last| last.until + SENT_FOR < now);
            let Some(kind) =
                Kind::of(&descriptor.payload_type).filter(|_| check(descriptor).is_ok())
            else {
                continue;
            };
            if !is_ours || is_late || self.outstanding.contains(&i) {
                continue;
            }
            let Ok(unit) = kind.unit(descriptor) else { continue };
            let mut rows = Vec::new();
            let mut is_complete = true;
            for slot in slots {
                let found = self.value(kind, unit, descriptor, slot, sources, now);
                if kind == Kind::Usage && found == Found::Pending && measure.is_none() {
                    measure = self.measure(&sources.event.id, slot, now);
                }
                is_complete &= found != Found::Pending;
                if let Found::Known(value) = found {
                    rows.push((slot, value));
                }
            }
            let before = self.accepted.get(&i).map_or(0, rows_of);
            let frequency = descriptor.frequency.and_then(|given| usize::try_from(given).ok());
            let is_due = frequency.is_some_and(|every| rows.len() >= before + every.max(1));
            let is_changed = before > 0 && rows.len() >= before;
            if rows.is_empty() || !(is_complete || is_due || is_changed) {
                continue;
            }
            let report = report(i, descriptor, (kind, unit), &rows, sources);
            if self.accepted.get(&i) != Some(&report) {
                self.outstanding.insert(i);
                reports.push((i, report));
            }
        }
        (reports, measure)
    }

    fn value(
        &self,
        kind: Kind,
        unit: Unit,
        descriptor: &ReportDescriptor,
        slot: &Slot,
        sources: &Sources<'_>,
        now: Timestamp,
    ) -> Found {
        let length_s = slot.until.since(slot.from).as_secs_f64();
        if kind == Kind::Usage {
            let measured = self.measured.get(&slot.id).filter(|known| known.slot == *slot);
            return match measured.and_then(|measured| measured.joules) {
                Some(Found::Known(joules)) => Found::Known(match unit {
                    Unit::Kwh => joules / J_PER_KWH,
                    Unit::Kw => joules / length_s / 1e3,
                }),
                Some(found) => found,
                None => Found::Pending,
            };
        }
        let is_forecast = kind == Kind::Reduction || descriptor.historical == Some(false);
        let is_over = slot.until <= now;
        if !(is_forecast || is_over) {
            return Found::Pending;
        }
        let record = (sources.record)(slot);
        let power = record.as_ref().and_then(|record| match kind {
            Kind::Reduction => record.reduction(),
            Kind::Baseline | Kind::Usage => record.baseline.map(|baseline| baseline.power_mw),
        });
        match power.map(|power| power.as_w() / 1e3) {
            Some(kw) if unit == Unit::Kw => Found::Known(kw),
            Some(_) if slot.until == Timestamp::FOREVER => Found::Missing,
            Some(kw) => Found::Known(kw * length_s / 3_600.0),
            // Normal operation, or it is not announced yet.
            None if slot.request.is_none() || is_over => Found::Missing,
            None => Found::Pending,
        }
    }

    /// Whether the energy of an interval is to be read now.
    fn measure(&mut self, event: &str, slot: &Slot, now: Timestamp) -> Option<Measure> {
        let first = slot.until + METERED_AFTER;
        let fresh = || Measured { slot: slot.clone(), next: first, tries: 0, joules: None };
        let known = self.measured.entry(slot.id).or_insert_with(fresh);
        if known.slot != *slot {
            *known = fresh();
        }
        (known.next <= now).then(|| Measure { event: event.to_owned(), slot: slot.clone() })
    }

    /// The energy of an interval was read. Returns whether its energy will not become known.
    pub fn measured(&mut self, slot: &Slot, joules: Option<f64>, now: Timestamp) -> bool {
        let Some(known) = self.measured.get_mut(&slot.id).filter(|known| known.slot == *slot)
        else {
            return false;
        };
        known.tries += 1;
        known.next = now + MEASURE_AGAIN;
        known.joules = match joules {
            Some(joules) => Some(Found::Known(joules)),
            None => (known.tries >= MEASURES_MAX).then_some(Found::Missing),
        };
        known.joules == Some(Found::Missing)
    }

    /// A report was sent; `accepted` where the server has it.
    pub fn sent(&mut self, place: usize, accepted: Option<Report>) {
        self.outstanding.remove(&place);
        if let Some(report) = accepted {
            self.accepted.insert(place, report);
        }
    }
}

fn rows_of(report: &Report) -> usize {
    let intervals = report.resources.first().and_then(|resource| resource["intervals"].as_array());
    intervals.map_or(0, Vec::len)
}

fn report(
    place: usize,
    descriptor: &ReportDescriptor,
    (kind, unit): (Kind, Unit),
    rows: &[(&Slot, f64)],
    sources: &Sources<'_>,
) -> Report {
    let name = &descriptor.payload_type;
    let resource = match descriptor.aggregate {
        Some(true) => "AGGREGATED_REPORT",
        _ => &sources.site.resource_name,
    };
    let row = |(slot, value): &(&Slot, f64)| {
        let duration = match slot.until {
            Timestamp::FOREVER => "P9999Y".to_owned(),
            until => format!("PT{}S", until.since(slot.from).as_secs()),
        };
        json!({
            "id": slot.id,
            "intervalPeriod": { "start": instant::shown(slot.from), "duration": duration },
            "payloads": [{ "type": name, "values": [number(*value)] }],
        })
    };
    let intervals: Vec<Value> = rows.iter().map(row).collect();
    Report {
        report_name: format!("wattle-{name}-{place}"),
        event_id: sources.event.id.clone(),
        client_name: sources.site.ven_name.clone(),
        payload_descriptors: vec![json!({
            "objectType": "REPORT_PAYLOAD_DESCRIPTOR",
            "payloadType": name,
            "readingType": kind.reading(),
            "units": unit.name(),
        })],
        resources: vec![json!({ "resourceName": resource, "intervals": intervals })],
    }
}
