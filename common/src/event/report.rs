//! The report of a grid event: what was delivered, minute by minute, against three baselines.
//!
//! A report is a pure function of the event's record, the power of the site by minute and what the jobs lost
//! ([`event_report`]). The command line, the CSV file and the web page show this one value.
//!
//! Only minutes that are entirely within the event count. A minute in which some node was not metered has no power: it is
//! neither within the target nor above it, and no baseline is compared with it.

mod baselines;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::{EventRecord, EventState, JobPerformance, PromiseOutcome, TargetSteps};
use crate::id::JobId;
use crate::messages::site_minute::{LATE, MINUTE, Price, SiteMinute, minute_of};
use crate::time::Timestamp;
use crate::units::{CarbonIntensity, Energy, Power};

pub use baselines::{
    ADJUSTMENT_MOST, Adjustment, BEFORE_LEAST, BaselineMethod, Basis, DAYS_BACK, DAYS_LEAST,
    DAYS_MOST,
};

/// Power up to this share above the target counts as within it: what a power limit and its readings resolve.
pub const TOLERANCE: f64 = 0.02;
/// The record of a minute may follow after this time.
const AWAITED: Duration = Duration::from_secs(LATE.as_secs() + 60);

/// The power of the site by the start of the minute.
pub type SiteMinutes = BTreeMap<Timestamp, SiteMinute>;

/// A part of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// The ramp down.
    RampDown,
    /// At the target.
    Target,
    /// The ramp up.
    RampUp,
    /// After it, while the power is at most that of before.
    Return,
}

impl Phase {
    /// In words.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RampDown => "ramp down",
            Self::Target => "target",
            Self::RampUp => "ramp up",
            Self::Return => "return",
        }
    }
}

/// A minute of an event.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReportMinute {
    /// Its start.
    pub minute_us: Timestamp,
    /// The part of the event.
    pub phase: Phase,
    /// The mean target, of a ramp and of the return too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_mw: Option<Power>,
    /// The mean limit with the declared shortfall, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_mw: Option<Power>,
    /// The mean measured power; absent: some node was not metered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_mw: Option<Power>,
    /// The power under each baseline.
    pub baseline_mw: BTreeMap<BaselineMethod, Power>,
    /// The record of the minute; absent: nothing was metered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<SiteMinute>,
}

impl ReportMinute {
    /// By how much the site drew less than under a baseline; negative: more.
    #[must_use]
    pub fn less_mw(&self, method: BaselineMethod) -> Option<i64> {
        let baseline = self.baseline_mw.get(&method)?;
        Some(signed(baseline.as_mw()) - signed(self.measured_mw?.as_mw()))
    }

    fn price(&self) -> Option<&Price> {
        self.site.as_ref()?.price.as_ref()
    }

    fn intensity(&self) -> Option<CarbonIntensity> {
        self.site.as_ref()?.intensity_mg_per_kwh
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// In how many minutes the site kept a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Kept {
    /// Minutes so far.
    pub minutes: u32,
    /// Of these, minutes with a measured power.
    pub measured: u32,
    /// Of these, minutes within the target and the tolerance.
    pub within: u32,
    /// Minutes within the limit with the declared shortfall; equal where there is none.
    pub within_limit: u32,
}

impl Kept {
    /// The share of all minutes that are within; `None`: there is no minute yet.
    #[must_use]
    pub fn share(&self) -> Option<f64> {
        (self.minutes > 0).then(|| f64::from(self.within) / f64::from(self.minutes))
    }

    fn count(&mut self, minute: &ReportMinute) {
        let Some(target) = minute.target_mw else { return };
        self.minutes += 1;
        let Some(measured) = minute.measured_mw else { return };
        self.measured += 1;
        let within = |target: Power| measured.as_w() <= target.as_w() * (1.0 + TOLERANCE);
        self.within += u32::from(within(target));
        self.within_limit += u32::from(within(minute.limit_mw.unwrap_or(target)));
    }
}

/// Compliance with the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Compliance {
    /// The tolerance, a share of the target.
    pub tolerance: f64,
    /// Over the duration of the target.
    pub target: Kept,
    /// Over both ramps.
    pub ramps: Kept,
    /// After them: the power is at most that of before.
    pub after: Kept,
}

/// What was delivered against one baseline.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Delivered {
    /// Minutes at the target in which both powers are known.
    pub minutes: u32,
    /// Mean power under the baseline in these.
    pub baseline_mw: Power,
    /// Mean measured power in these.
    pub measured_mw: Power,
    /// By how much less was drawn on average; negative: more.
    pub less_mw: i64,
    /// Energy that was not drawn over the event with its ramps; negative: more was drawn.
    pub energy_mj: i64,
    /// Number of minutes of the energy.
    pub energy_minutes: u32,
    /// What that energy costs at the price of each minute; absent: no price is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// Its emissions at the carbon intensity of each minute; absent: no intensity is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub carbon: Option<CarbonAvoided>,
}

impl Delivered {
    /// By how much less was drawn on average, a share of the baseline.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.less_mw as f64 / (self.baseline_mw.as_mw() as f64).max(1.0)
    }
}

/// A cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// Millionths of the currency.
    pub micros: i64,
    /// The currency.
    pub currency: String,
    /// Minutes with a price.
    pub minutes: u32,
}

/// Emissions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CarbonAvoided {
    /// Micrograms of CO2 equivalent.
    pub ug: i64,
    /// Minutes with a carbon intensity.
    pub minutes: u32,
}

/// One baseline and what was delivered against it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BaselineReport {
    /// The method.
    pub method: BaselineMethod,
    /// What it is computed from; absent: it cannot be computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub basis: Option<Basis>,
    /// Why it cannot be computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
    /// What was delivered; absent: no minute has both powers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivered: Option<Delivered>,
}

/// A job over the event.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ReportJob {
    /// What it promised and lost.
    #[serde(flatten)]
    pub performance: JobPerformance,
    /// What has become of its promise.
    pub outcome: PromiseOutcome,
}

/// The report of an event.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EventReport {
    /// The event.
    pub record: EventRecord,
    /// Its state.
    pub state: EventState,
    /// The time of the report.
    pub at_us: Timestamp,
    /// Whether nothing is added to it any more; otherwise it is a report so far.
    pub is_final: bool,
    /// Energy by the ledger over the event with its ramps, in the minutes in which all nodes were metered.
    pub energy_mj: Energy,
    /// Of the nodes that slept in these, by the configuration.
    pub asleep_mj: Energy,
    /// Number of these minutes.
    pub energy_minutes: u32,
    /// Compliance with the target.
    pub compliance: Compliance,
    /// The baselines: like days, meter before, twin.
    pub baselines: Vec<BaselineReport>,
    /// The jobs.
    pub jobs: BTreeMap<JobId, ReportJob>,
    /// The minutes until now.
    pub minutes: Vec<ReportMinute>,
}

impl EventReport {
    /// The first baseline that could be computed, with what was delivered.
    #[must_use]
    pub fn first_delivered(&self) -> Option<(BaselineMethod, &Delivered)> {
        self.baselines
            .iter()
            .find_map(|baseline| Some((baseline.method, baseline.delivered.as_ref()?)))
    }
}

/// The first minute that the report of an event needs.
#[must_use]
pub fn needed_from(record: &EventRecord) -> Timestamp {
    baselines::needed_from(record)
}

/// The report of an event now, of a feeder's event by the power of that feeder.
#[must_use]
pub fn event_report(
    record: &EventRecord,
    jobs: &BTreeMap<JobId, JobPerformance>,
    site: &SiteMinutes,
    now: Timestamp,
) -> EventReport {
    let of_feeder = record.event.feeder.as_ref().map(|feeder| {
        let minutes = site.iter();
        let own = minutes.filter_map(|(at, minute)| Some((*at, minute.of_feeder(feeder)?)));
        own.collect::<SiteMinutes>()
    });
    let site = of_feeder.as_ref().unwrap_or(site);
    let mut minutes = if record.has_target() { minutes(record, site, now) } else { Vec::new() };
    let baselines = baselines::all(record, site, &mut minutes);
    let mut compliance = Compliance { tolerance: TOLERANCE, ..Compliance::default() };
    let (mut energy_mj, mut asleep_mj, mut energy_minutes) = (Energy::ZERO, Energy::ZERO, 0);
    for minute in &minutes {
        match minute.phase {
            Phase::Target => compliance.target.count(minute),
            Phase::RampDown | Phase::RampUp => compliance.ramps.count(minute),
            Phase::Return => compliance.after.count(minute),
        }
        let complete = minute.site.as_ref().filter(|site| site.is_complete());
        if let Some(site) = complete.filter(|_| minute.phase != Phase::Return) {
            energy_mj += site.energy_mj;
            asleep_mj += site.asleep_mw.over(MINUTE);
            energy_minutes += 1;
        }
    }
    let baselines = baselines.into_iter().map(|(method, basis)| {
        let (basis, unavailable) = match basis {
            Ok(basis) => (Some(basis), None),
            Err(reason) => (None, Some(reason)),
        };
        let delivered = basis.as_ref().and_then(|_| delivered(method, &minutes));
        BaselineReport { method, basis, unavailable, delivered }
    });
    let outcome = |job: &JobPerformance| ReportJob {
        performance: *job,
        outcome: job.outcome(now, record.returned()),
    };
    EventReport {
        state: record.state(now),
        at_us: now,
        is_final: now >= record.settled() + AWAITED || !record.has_target(),
        energy_mj,
        asleep_mj,
        energy_minutes,
        compliance,
        baselines: baselines.collect(),
        jobs: jobs.iter().map(|(id, job)| (id.clone(), outcome(job))).collect(),
        minutes,
        record: record.clone(),
    }
}

/// The start of the first minute that begins at an instant or later.
fn next_minute(at: Timestamp) -> Timestamp {
    minute_of(at + (MINUTE - Duration::from_micros(1)))
}

/// The minutes entirely within an event and its return, until the last one that is known or would be known by now.
fn minutes(record: &EventRecord, site: &SiteMinutes, now: Timestamp) -> Vec<ReportMinute> {
    let announced = EventRecord { shortfall_mw: Power::ZERO, ..record.clone() };
    let (target, limit) = (TargetSteps::of([&announced]), TargetSteps::of([record]));
    let known = site.last_key_value().map_or(Timestamp::EPOCH, |(_, last)| last.until());
    let end = minute_of(record.settled().min(known.max(now - AWAITED)));
    let mut from = next_minute(record.event.start_us);
    let mut rows = Vec::new();
    while from < end {
        let until = from + MINUTE;
        let phase = if from >= record.returned() {
            Phase::Return
        } else if from >= record.reached() && until <= record.end_us {
            Phase::Target
        } else if from < record.end_us.min(record.reached()) {
            Phase::RampDown
        } else {
            Phase::RampUp
        };
        let known = site.get(&from).cloned();
        rows.push(ReportMinute {
            minute_us: from,
            phase,
            target_mw: target.mean(from, until),
            limit_mw: limit.mean(from, until).filter(|_| record.shortfall_mw > Power::ZERO),
            measured_mw: known.as_ref().and_then(SiteMinute::power),
            baseline_mw: BTreeMap::new(),
            site: known,
        });
        from = until;
    }
    rows
}

/// What was delivered against a baseline; `None`: no minute at the target has both powers.
fn delivered(method: BaselineMethod, minutes: &[ReportMinute]) -> Option<Delivered> {
    let both = |minute: &ReportMinute| {
        Some((minute.baseline_mw.get(&method)?.as_mw(), minute.measured_mw?.as_mw()))
    };
    let at_target: Vec<(u64, u64)> =
        minutes.iter().filter(|minute| minute.phase == Phase::Target).filter_map(both).collect();
    let count = at_target.len() as u64;
    if count == 0 {
        return None;
    }
    let mean = |of: fn(&(u64, u64)) -> u64| {
        Power::from_mw((at_target.iter().map(of).sum::<u64>() + count / 2) / count)
    };
    let (baseline_mw, measured_mw) = (mean(|both| both.0), mean(|both| both.1));
    let (mut energy_mj, mut energy_minutes) = (0_i64, 0);
    let (mut cost, mut carbon): (Option<Cost>, Option<CarbonAvoided>) = (None, None);
    for minute in minutes.iter().filter(|minute| minute.phase != Phase::Return) {
        let Some(less_mw) = minute.less_mw(method) else { continue };
        let mj = less_mw * signed(MINUTE.as_secs());
        energy_mj += mj;
        energy_minutes += 1;
        let kwh = mj as f64 / 3.6e9;
        if let Some(price) = minute.price() {
            let currency = price.currency.clone();
            let sum = cost.get_or_insert(Cost { micros: 0, currency, minutes: 0 });
            // Amounts of two currencies have no sum.
            if sum.currency == price.currency {
                sum.micros += (kwh * price.micros_per_kwh as f64).round() as i64;
                sum.minutes += 1;
            }
        }
        if let Some(intensity) = minute.intensity() {
            let sum = carbon.get_or_insert(CarbonAvoided { ug: 0, minutes: 0 });
            sum.ug += (kwh * intensity.as_g_per_kwh() * 1e6).round() as i64;
            sum.minutes += 1;
        }
    }
    Some(Delivered {
        minutes: at_target.len() as u32,
        baseline_mw,
        measured_mw,
        less_mw: signed(baseline_mw.as_mw()) - signed(measured_mw.as_mw()),
        energy_mj,
        energy_minutes,
        cost,
        carbon,
    })
}
