//! The report of a grid event in words and as CSV: what the command line prints and the web page shows.

use wattle_common::event::report::{
    BaselineMethod, BaselineReport, Basis, Cost, Delivered, EventReport, Kept, TOLERANCE,
};
use wattle_common::event::{EventState, kw};
use wattle_common::{CarbonIntensity, Power, Timestamp};

use crate::date::{date, minute};

const DAY_US: u64 = 86_400_000_000;

/// What was delivered against a baseline, as text with units.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct DeliveredText {
    /// Mean power under the baseline at the target.
    pub baseline: String,
    /// Mean measured power in the same minutes.
    pub measured: String,
    /// The difference.
    pub less: String,
    /// The difference as a share of the baseline.
    pub share: String,
    /// Energy that was not drawn, ramps included.
    pub energy: String,
    /// What it costs; `-`: no price is known.
    pub cost: String,
    /// Its emissions; `-`: no carbon intensity is known.
    pub carbon: String,
}

/// Kilowatts of a difference: `-1.2 kW`.
fn signed_kw(mw: i64) -> String {
    format!("{} kW", (mw as f64 / 1e3).round() / 1e3 + 0.0)
}

fn cost(cost: &Cost) -> String {
    format!("{} {:.2}", cost.currency, cost.micros as f64 / 1e6)
}

impl DeliveredText {
    /// The text of these figures.
    #[must_use]
    pub fn of(delivered: &Delivered) -> Self {
        let dash = || "-".to_owned();
        Self {
            baseline: kw(delivered.baseline_mw),
            measured: kw(delivered.measured_mw),
            less: signed_kw(delivered.less_mw),
            share: format!("{:.1} %", 100.0 * delivered.share()),
            energy: digits(delivered.energy_mj as f64 / 3.6e9, "kWh"),
            cost: delivered.cost.as_ref().map_or_else(dash, cost),
            carbon: delivered
                .carbon
                .map_or_else(dash, |carbon| digits(carbon.ug as f64 / 1e9, "kg")),
        }
    }
}

/// A quantity with three to four digits.
fn digits(value: f64, unit: &str) -> String {
    let decimals = if value.abs() < 10.0 { 3 } else { 1 };
    format!("{value:.decimals$} {unit}")
}

fn percent(share: f64) -> String {
    format!("{} %", (1_000.0 * share).round() / 10.0)
}

/// In how many minutes a target was kept: `57 of 60 minutes (95 %), 2 not measured`.
#[must_use]
pub fn kept(kept: &Kept) -> String {
    let Some(share) = kept.share() else { return "no minute yet".to_owned() };
    let missing = kept.minutes - kept.measured;
    let missing = if missing > 0 { format!(", {missing} not measured") } else { String::new() };
    format!("{} of {} minutes ({}){missing}", kept.within, kept.minutes, percent(share))
}

/// The report in one sentence.
#[must_use]
pub fn verdict(report: &EventReport) -> String {
    let (record, target) = (&report.record, report.compliance.target);
    let id = &record.event.event;
    if !record.has_target() {
        return format!("grid event {id} was {}: nothing is reported", report.state.as_str());
    }
    if report.state == EventState::Planned {
        let start = minute(record.event.start_us);
        return format!("grid event {id} begins at {start} UTC: there is no report yet");
    }
    let so_far = match report.state {
        _ if report.is_final => String::new(),
        state if state.is_over() => format!(", {}, its last minutes follow", state.as_str()),
        state => format!(", {}, so far", state.as_str()),
    };
    if target.minutes == 0 {
        let ramps = kept(&report.compliance.ramps);
        return format!(
            "grid event {id}{so_far}: no minute at the target of {} yet; within the ramp in {ramps}",
            kw(record.target_mw)
        );
    }
    let less = report.first_delivered().map_or_else(
        || "; no baseline could be computed".to_owned(),
        |(method, delivered)| {
            let text = DeliveredText::of(delivered);
            format!(", and drew {} ({}) less than {}", text.less, text.share, than(method))
        },
    );
    format!(
        "grid event {id}{so_far}: {} was within the target of {} in {}{less}",
        record.event.place(),
        kw(record.target_mw),
        kept(&target)
    )
}

/// A baseline in a comparison.
const fn than(method: BaselineMethod) -> &'static str {
    match method {
        BaselineMethod::LikeDays => "on like days",
        BaselineMethod::MeterBefore => "before",
        BaselineMethod::Twin => "the twin",
    }
}

/// How compliance counts.
#[must_use]
pub fn tolerance() -> String {
    format!(
        "a minute is within the target where its mean power is at most {} above it",
        percent(TOLERANCE)
    )
}

/// How a baseline was computed, or why it was not.
#[must_use]
pub fn method(baseline: &BaselineReport) -> String {
    if let Some(reason) = &baseline.unavailable {
        return format!("not available: {reason}");
    }
    match &baseline.basis {
        None => "not available".to_owned(),
        Some(Basis::LikeDays { days_us, weekend, adjustment, not_adjusted }) => {
            let day = |at: Option<&Timestamp>| at.map_or(0, |at| at.as_us() / DAY_US);
            let (first, last) = (date(day(days_us.last())), date(day(days_us.first())));
            let kind = if *weekend { "days of weekends" } else { "weekdays" };
            let adjusted = match (adjustment, not_adjusted) {
                (Some(ratio), _) if (ratio.measured - ratio.applied).abs() < 1e-9 => format!(
                    "times {:.3}, the ratio of the 3 h before the notice to the same hours of these days",
                    ratio.applied
                ),
                (Some(ratio), _) => format!(
                    "times {:.3}, the bound of the ratio of the 3 h before the notice to the same hours of these days \
                     ({:.3})",
                    ratio.applied, ratio.measured
                ),
                (None, reason) => {
                    let reason = reason.as_deref().unwrap_or("not known");
                    format!("without a same-day adjustment: {reason}")
                }
            };
            format!(
                "mean of the same minutes of {} {kind} without events from {first} to {last}, {adjusted}; frozen at the \
                 notice",
                days_us.len()
            )
        }
        Some(Basis::MeterBefore { power_mw, minutes, after_mw }) => {
            let after = after_mw.map_or_else(String::new, |after| {
                format!("; in the 15 minutes after the return it was {}", kw(after))
            });
            format!(
                "mean of the 15 minutes before the start, {minutes} of them measured: {}{after}",
                kw(*power_mw)
            )
        }
        Some(Basis::Twin { policy }) => format!(
            "what the jobs would draw under {policy} at default caps and clocks with all nodes awake, computed in each \
             minute"
        ),
    }
}

/// The bases of energy, cost and carbon of a baseline.
#[must_use]
pub fn bases(delivered: &Delivered) -> String {
    let mut parts =
        vec![format!("energy over {} minutes with both powers", delivered.energy_minutes)];
    if let Some(cost) = &delivered.cost {
        parts.push(format!("cost by the price of each of {} minutes", cost.minutes));
    }
    if let Some(carbon) = delivered.carbon {
        parts.push(format!("CO2 by the carbon intensity of each of {} minutes", carbon.minutes));
    }
    parts.join(", ")
}

/// The measured energy of the event with its ramps.
#[must_use]
pub fn energy(report: &EventReport) -> String {
    let asleep = match report.asleep_mj.as_mj() {
        0 => String::new(),
        _ => {
            let kwh = digits(report.asleep_mj.as_kwh(), "kWh");
            format!(", and {kwh} of sleeping nodes by the configuration")
        }
    };
    let kwh = digits(report.energy_mj.as_kwh(), "kWh");
    format!("{kwh} by the energy ledger over {} minutes{asleep}", report.energy_minutes)
}

/// The minutes as CSV. A value that is not known is empty.
#[must_use]
pub fn csv(report: &EventReport) -> String {
    let mut text = "minute,phase,target_kw,limit_kw,measured_kw,energy_kwh,nodes,nodes_metered,nodes_asleep,\
                    like_days_kw,meter_before_kw,twin_kw,less_than_like_days_kw,less_than_meter_before_kw,\
                    less_than_twin_kw,price_per_kwh,currency,intensity_g_per_kwh\n"
        .to_owned();
    // Exact to the milliwatt.
    let kilowatts = |power: Power| power.as_mw() as f64 / 1e6;
    let or_empty = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    for row in &report.minutes {
        let site = row.site.as_ref();
        let at = minute(row.minute_us);
        let limit = row.limit_mw.or(row.target_mw);
        let powers = [row.target_mw, limit, row.measured_mw];
        let mut cells = vec![format!("{}Z", at.replace(' ', "T")), row.phase.as_str().to_owned()];
        cells.extend(powers.map(|power| or_empty(power.map(kilowatts))));
        cells.push(or_empty(site.map(|site| site.energy_mj.as_kwh())));
        let counts = site.map(|site| [site.nodes, site.metered, site.asleep]);
        cells.extend(
            (0..3).map(|n| counts.map_or_else(String::new, |counts| counts[n].to_string())),
        );
        let baseline = |method| row.baseline_mw.get(&method).copied().map(kilowatts);
        cells.extend(BaselineMethod::ALL.map(|method| or_empty(baseline(method))));
        let less = |method| row.less_mw(method).map(|mw| mw as f64 / 1e6);
        cells.extend(BaselineMethod::ALL.map(|method| or_empty(less(method))));
        let price = site.and_then(|site| site.price.as_ref());
        cells.push(or_empty(price.map(|price| price.micros_per_kwh as f64 / 1e6)));
        // The currency is the operator's text.
        let plain = |c: &char| c.is_alphanumeric() || *c == ' ';
        let currency = price.map(|price| price.currency.chars().filter(plain).collect::<String>());
        cells.push(currency.unwrap_or_default());
        let intensity = site.and_then(|site| site.intensity_mg_per_kwh);
        cells.push(or_empty(intensity.map(CarbonIntensity::as_g_per_kwh)));
        text.push_str(&cells.join(","));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use wattle_common::EventId;
    use wattle_common::event::report::{SiteMinutes, event_report};
    use wattle_common::event::{
        Closed, Depth, EventBook, EventRecord, GridEvent, MeasuredBy, MeasuredMean, Participation,
        SiteFigures,
    };
    use wattle_common::messages::{Price, SiteMinute};

    const MINUTE: Duration = Duration::from_secs(60);
    /// 2026-11-29 14:25 UTC.
    const NOTICE: Timestamp = Timestamp::from_s(1_795_962_300);

    /// Ten minutes at 70 kW from 20 minutes after the notice on, with ramps of two minutes from 94.8 kW.
    fn record() -> EventRecord {
        let event = GridEvent {
            event: EventId::new("peak").unwrap(),
            source: "utility".to_owned(),
            feeder: None,
            start_us: NOTICE + 20 * MINUTE,
            ramp_down_s: 120,
            depth: Depth::Target { power_mw: Power::from_w(70_000) },
            duration_s: 600,
            ramp_up_s: 120,
            priority: 0,
            participation: Participation::Voluntary,
        };
        let drawn = Some(MeasuredMean {
            power_mw: Power::from_w(94_800),
            from_us: NOTICE - 15 * MINUTE,
            until_us: NOTICE,
            method: MeasuredBy::EnergyLedger,
        });
        let mut book = EventBook::default();
        book.add(event, NOTICE, &SiteFigures { drawn, idle: None }).unwrap();
        book.events.into_values().next().unwrap()
    }

    fn site() -> SiteMinutes {
        let minute = |n: u32| {
            let watts = if (20..34).contains(&n) { 69_000 } else { 94_800 };
            SiteMinute {
                minute_us: NOTICE + n * MINUTE,
                energy_mj: Power::from_w(watts).over(MINUTE),
                nodes: 33,
                metered: if n == 25 { 32 } else { 33 },
                asleep: 0,
                asleep_mw: Power::ZERO,
                limit_mw: None,
                target_mw: None,
                twin: None,
                price: (n != 26)
                    .then(|| Price { micros_per_kwh: 210_000, currency: "EUR".to_owned() }),
                intensity_mg_per_kwh: None,
                feeders: BTreeMap::new(),
                ledger_from: 1,
            }
        };
        (0..50).map(|n| (NOTICE + n * MINUTE, minute(n))).collect()
    }

    fn report(record: &EventRecord, after: u32) -> EventReport {
        event_report(record, &BTreeMap::new(), &site(), NOTICE + after * MINUTE)
    }

    #[test]
    fn the_report_reads_verdict_first() {
        let record = record();
        let last = report(&record, 90);
        let mut text = vec![verdict(&last), energy(&last)];
        text.extend(last.baselines.iter().map(method));
        let (_, delivered) = last.first_delivered().unwrap();
        text.push(bases(delivered));
        text.push(format!("{:?}", DeliveredText::of(delivered)));
        text.push(verdict(&report(&record, 5)));
        let mut so_far = site();
        so_far.retain(|at, _| *at < NOTICE + 21 * MINUTE);
        let early = event_report(&record, &BTreeMap::new(), &so_far, NOTICE + 21 * MINUTE);
        text.push(verdict(&early));
        let mut declined = record;
        declined.closed = Some(Closed::Declined { at_us: NOTICE });
        text.push(verdict(&report(&declined, 90)));
        expect_test::expect![[r#"
            grid event peak: the site was within the target of 70 kW in 9 of 10 minutes (90 %), 1 not measured, and drew 25.8 kW (27.2 %) less than before
            14.9 kWh by the energy ledger over 13 minutes
            not available: 0 of the 13 days of weekends before the notice were measured without an event (0 had one), 4 are needed
            mean of the 15 minutes before the start, 15 of them measured: 94.8 kW
            not available: the twin's power was known in no minute: it needs the power of idle nodes and a prediction for each of its running jobs
            energy over 13 minutes with both powers, cost by the price of each of 12 minutes
            DeliveredText { baseline: "94.8 kW", measured: "69 kW", less: "25.8 kW", share: "27.2 %", energy: "5.590 kWh", cost: "EUR 1.08", carbon: "-" }
            grid event peak begins at 2026-11-29 14:45 UTC: there is no report yet
            grid event peak, ramping down, so far: no minute at the target of 70 kW yet; within the ramp in 1 of 1 minutes (100 %)
            grid event peak was declined: nothing is reported"#]].assert_eq(&text.join("\n"));
    }

    #[test]
    fn the_file_has_every_minute_and_empty_cells_for_what_is_not_known() {
        let text = csv(&report(&record(), 90));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 1 + 14 + 15);
        let columns = lines[0].split(',').count();
        assert!(lines.iter().all(|line| line.split(',').count() == columns), "{text}");
        expect_test::expect![[r#"
            2026-11-29T14:45Z,ramp down,87.566666,87.566666,69,1.15,33,33,0,,94.8,,,25.8,,0.21,EUR,
            2026-11-29T14:47Z,target,70,70,69,1.15,33,33,0,,94.8,,,25.8,,0.21,EUR,
            2026-11-29T14:50Z,target,70,70,,1.15,33,32,0,,94.8,,,,,0.21,EUR,
            2026-11-29T14:51Z,target,70,70,69,1.15,33,33,0,,94.8,,,25.8,,,,"#]]
        .assert_eq(&[lines[1], lines[3], lines[6], lines[7]].join("\n"));
    }
}
