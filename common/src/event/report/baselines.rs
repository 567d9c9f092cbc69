//! The baselines of a report: what the site would have drawn without the event.
//!
//! * **Like days.** The mean of the same minutes over the most recent like days (weekdays, or days of a weekend) without
//!   events, times the ratio of the hours before the notice to the same hours of these days, bounded. It is the rule
//!   "10 of 10 with a same-day adjustment of 20 %" of the California ISO (Baseline Accuracy Work Group Proposal,
//!   2017), with three differences: minutes in place of hours, up to ten days of a weekend in
//!   place of four, and the adjustment from the hours before the notice in place of those before the start, so that nothing
//!   done after the notice changes the baseline. Holidays are not known.
//! * **Meter before.** The mean of the 15 minutes before the start, known as meter before / meter after. The mean after the return is stated beside it, and does
//!   not change it.
//! * **Twin.** What the site would draw under its former scheduler in that minute, as the placer recorded it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;

use super::{Phase, ReportMinute, SiteMinutes, minute_of, next_minute};
use crate::aim::Baseline;
use crate::event::EventRecord;
use crate::messages::SiteMinute;
use crate::messages::site_minute::MINUTE;
use crate::time::Timestamp;
use crate::units::Power;

const DAY: Duration = Duration::from_secs(86_400);
/// How many days back like days are looked for.
pub const DAYS_BACK: u32 = 45;
/// Most like days.
pub const DAYS_MOST: usize = 10;
/// Fewest like days: of weekdays, and of weekend days.
pub const DAYS_LEAST: (usize, usize) = (5, 4);
/// By how much the same-day adjustment changes the mean at most, a share.
pub const ADJUSTMENT_MOST: f64 = 0.2;
/// Hours before the notice from which the adjustment is computed.
const ADJUSTED_BY: Duration = Duration::from_secs(3 * 3_600);
/// Share of the minutes that must be measured.
const MEASURED_LEAST: f64 = 0.9;
/// The interval before the start of the meter before, and after the return.
const BEFORE: Duration = Duration::from_secs(900);
/// Fewest measured minutes of it.
pub const BEFORE_LEAST: usize = 10;

/// A way to compute what would have been drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BaselineMethod {
    /// The same minutes of like days.
    LikeDays,
    /// The minutes before the start.
    MeterBefore,
    /// The twin.
    Twin,
}

impl BaselineMethod {
    /// All methods.
    pub const ALL: [Self; 3] = [Self::LikeDays, Self::MeterBefore, Self::Twin];

    /// In words.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LikeDays => "like days",
            Self::MeterBefore => "meter before",
            Self::Twin => "twin",
        }
    }
}

/// The same-day adjustment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Adjustment {
    /// Power in the hours before the notice over that of the like days.
    pub measured: f64,
    /// The ratio within its bounds.
    pub applied: f64,
}

/// What a baseline is computed from.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "from")]
pub enum Basis {
    /// Like days.
    LikeDays {
        /// The start of the event on each of them, the most recent first.
        days_us: Vec<Timestamp>,
        /// Whether they are days of a weekend.
        weekend: bool,
        /// The same-day adjustment; absent: none.
        #[serde(skip_serializing_if = "Option::is_none")]
        adjustment: Option<Adjustment>,
        /// Why there is none.
        #[serde(skip_serializing_if = "Option::is_none")]
        not_adjusted: Option<String>,
    },
    /// The minutes before the start.
    MeterBefore {
        /// Their mean power.
        power_mw: Power,
        /// Number of measured minutes.
        minutes: usize,
        /// Mean power of the 15 minutes after the return; absent: it is not over, or not measured.
        #[serde(skip_serializing_if = "Option::is_none")]
        after_mw: Option<Power>,
    },
    /// The twin.
    Twin {
        /// Its policy.
        policy: Baseline,
    },
}

/// Whether a day of the calendar is a Saturday or a Sunday, in UTC.
const fn is_weekend(at: Timestamp) -> bool {
    // Day 0, 1970-01-01, was a Thursday.
    matches!((at.as_us() / 86_400_000_000 + 4) % 7, 0 | 6)
}

const fn day_of(at: Timestamp) -> u64 {
    at.as_us() / 86_400_000_000
}

pub(super) fn needed_from(record: &EventRecord) -> Timestamp {
    let first = record.notice_us.min(record.event.start_us) - ADJUSTED_BY;
    minute_of(first - DAY * (DAYS_BACK + 1))
}

/// Each baseline, written to the minutes, with what it is computed from or why it is not.
pub(super) fn all(
    record: &EventRecord,
    site: &SiteMinutes,
    minutes: &mut [ReportMinute],
) -> Vec<(BaselineMethod, Result<Basis, String>)> {
    let mut all = Vec::new();
    for method in BaselineMethod::ALL {
        let found = if minutes.is_empty() {
            Err("no minute of the event has passed yet".to_owned())
        } else {
            match method {
                BaselineMethod::LikeDays => like_days(record, site, minutes),
                BaselineMethod::MeterBefore => meter_before(record, site),
                BaselineMethod::Twin if record.event.feeder.is_some() => {
                    Err("the twin computes the power of the whole site, not of a feeder".to_owned())
                }
                BaselineMethod::Twin => twin(minutes),
            }
        };
        let basis = found.map(|(basis, power)| {
            for minute in minutes.iter_mut() {
                if let Some(power) = power(minute) {
                    minute.baseline_mw.insert(method, power);
                }
            }
            basis
        });
        all.push((method, basis));
    }
    all
}

/// What a baseline is computed from, and its power in a minute.
type Found = (Basis, Box<dyn Fn(&ReportMinute) -> Option<Power>>);

/// The mean power of the complete minutes of an interval, with their number; `None`: there is none.
fn mean(site: &SiteMinutes, from: Timestamp, until: Timestamp) -> Option<(f64, usize)> {
    let powers = site.range(from..until).filter_map(|(_, minute)| minute.power());
    let (sum_w, count) = powers.fold((0.0, 0), |(sum, n), power| (sum + power.as_w(), n + 1));
    (count > 0).then(|| (sum_w / count as f64, count))
}

/// As [`mean`], where enough of the interval was measured.
fn mean_of_most(site: &SiteMinutes, from: Timestamp, until: Timestamp) -> Option<f64> {
    let most = until.since(from).as_secs_f64() / MINUTE.as_secs_f64();
    mean(site, from, until)
        .filter(|(_, count)| *count as f64 >= MEASURED_LEAST * most)
        .map(|it| it.0)
}

fn meter_before(record: &EventRecord, site: &SiteMinutes) -> Result<Found, String> {
    let start = minute_of(record.event.start_us);
    let found = mean(site, start - BEFORE, start);
    let count = found.map_or(0, |(_, count)| count);
    let Some((watts, minutes)) = found.filter(|_| count >= BEFORE_LEAST) else {
        return Err(format!(
            "{count} of the 15 minutes before the start were measured, {BEFORE_LEAST} are needed"
        ));
    };
    let power_mw = Power::from_w_f64(watts);
    let after = next_minute(record.settled());
    let after = mean(site, after, after + BEFORE).filter(|(_, count)| *count >= BEFORE_LEAST);
    let after_mw = after.map(|(watts, _)| Power::from_w_f64(watts));
    let basis = Basis::MeterBefore { power_mw, minutes, after_mw };
    Ok((basis, Box::new(move |_| Some(power_mw))))
}

fn twin(minutes: &[ReportMinute]) -> Result<Found, String> {
    let within = minutes.iter().filter(|minute| minute.phase != Phase::Return);
    let sites: Vec<&SiteMinute> =
        within.clone().filter_map(|minute| minute.site.as_ref()).collect();
    let known: Vec<_> = sites.iter().filter_map(|site| site.twin).collect();
    let (count, all) = (known.len(), sites.len());
    let Some(policy) = known.last().map(|twin| twin.policy) else {
        return Err(
            "the twin's power was known in no minute: it needs the power of idle nodes and a prediction for each of its \
             running jobs"
                .to_owned(),
        );
    };
    if (count as f64) < MEASURED_LEAST * all as f64 {
        return Err(format!(
            "the twin's power was known in {count} of {all} minutes, 90 % are needed"
        ));
    }
    let power = |minute: &ReportMinute| Some(minute.site.as_ref()?.twin?.power_mw);
    Ok((Basis::Twin { policy }, Box::new(power)))
}

fn like_days(
    record: &EventRecord,
    site: &SiteMinutes,
    minutes: &[ReportMinute],
) -> Result<Found, String> {
    let start = record.event.start_us;
    // Frozen: nothing that was measured after the notice counts.
    let frozen = minute_of(record.notice_us.min(start));
    let (from, until) =
        (next_minute(start), minute_of(record.returned()).max(next_minute(start) + MINUTE));
    let weekend = is_weekend(start);
    let with_events: BTreeSet<u64> = site
        .range(..minute_of(start))
        .filter(|(_, minute)| minute.has_event())
        .map(|(at, _)| day_of(*at))
        .collect();
    let mut days = Vec::new();
    let (mut like, mut eventful) = (0, 0);
    for back in (1..=DAYS_BACK).map(|day| DAY * day) {
        if days.len() == DAYS_MOST {
            break;
        }
        if is_weekend(start - back) != weekend || until - back > frozen {
            continue;
        }
        like += 1;
        let within = [day_of(start - back), day_of(until - back)];
        if within.iter().any(|day| with_events.contains(day)) {
            eventful += 1;
        } else if mean_of_most(site, from - back, until - back).is_some() {
            days.push(back);
        }
    }
    let least = if weekend { DAYS_LEAST.1 } else { DAYS_LEAST.0 };
    if days.len() < least {
        let kind = if weekend { "days of weekends" } else { "weekdays" };
        return Err(format!(
            "{} of the {like} {kind} before the notice were measured without an event ({eventful} had one), {least} are needed",
            days.len()
        ));
    }
    let (adjustment, not_adjusted) = match adjustment(record, site, &days, frozen) {
        Ok(adjustment) => (Some(adjustment), None),
        Err(reason) => (None, Some(reason)),
    };
    let ratio = adjustment.map_or(1.0, |adjustment| adjustment.applied);
    let powers: BTreeMap<Timestamp, Power> = minutes
        .iter()
        .filter_map(|minute| {
            let at = minute.minute_us;
            let of_day = days.iter().filter_map(|back| site.get(&(at - *back))?.power());
            let (sum_w, count) =
                of_day.fold((0.0, 0), |(sum, n), power| (sum + power.as_w(), n + 1));
            let mean_w = (count > 0).then(|| sum_w / f64::from(count))?;
            Some((at, Power::from_w_f64(ratio * mean_w)))
        })
        .collect();
    let days_us = days.iter().map(|back| start - *back).collect();
    let basis = Basis::LikeDays { days_us, weekend, adjustment, not_adjusted };
    Ok((basis, Box::new(move |minute| powers.get(&minute.minute_us).copied())))
}

/// The ratio of the hours before the notice to the same hours of the like days.
fn adjustment(
    record: &EventRecord,
    site: &SiteMinutes,
    days: &[Duration],
    frozen: Timestamp,
) -> Result<Adjustment, String> {
    if record.event.start_us.since(record.notice_us) > DAY {
        return Err("the notice was more than a day before the start".to_owned());
    }
    let from = frozen - ADJUSTED_BY;
    let needed = "of the 3 h before the notice less than 90 % were measured";
    let own = mean_of_most(site, from, frozen).ok_or_else(|| needed.to_owned())?;
    let mut of_days = Vec::new();
    for back in days {
        of_days.extend(mean_of_most(site, from - *back, frozen - *back));
    }
    let sum: f64 = of_days.iter().sum();
    if of_days.len() < days.len().div_ceil(2) || sum <= 0.0 {
        return Err("these hours were measured on less than half of the like days".to_owned());
    }
    let measured = own * of_days.len() as f64 / sum;
    let applied = measured.clamp(1.0 - ADJUSTMENT_MOST, 1.0 + ADJUSTMENT_MOST);
    Ok(Adjustment { measured, applied })
}
