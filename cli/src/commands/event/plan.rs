//! `wattle event plan`: what the site or a feeder can deliver during an event, before it is accepted.

use wattle_common::duration::span;
use wattle_common::messages::{EventPlan, EventPlanReply, PlanEvent, PlannedJob, PlannedSpan};
use wattle_common::subject::RequestTopic;
use wattle_common::{Power, Timestamp};
use wattle_runtime::clock;

use super::Plan;
use crate::date::near;
use crate::output::{Align, Table, print, print_json, terminal_width, usage};
use crate::takeover;

/// Most jobs of the table.
const JOBS_MAX: usize = 40;
/// A power below this share of the largest is not worth a word.
const LEAST_SHARE: f64 = 5e-4;

pub(super) async fn plan(command: Plan) -> anyhow::Result<()> {
    let request = |now| match (command.event.is_empty(), command.event.id()) {
        (true, Some(event)) => Ok(PlanEvent::Announced { event: event.clone() }),
        (true, None) if command.event.has_times() => {
            Err(usage("start and depth are missing: give --start, and --reduce or --to"))
        }
        (true, None) => Ok(PlanEvent::Day { feeder: command.event.feeder().cloned() }),
        (false, _) => Ok(PlanEvent::Event { event: command.event.event(now).map_err(usage)? }),
    };
    request(clock::wall_now())?;
    let bus = command.common.connection.open().await?;
    let request = request(clock::now())?;
    let reply = takeover::request(&bus, RequestTopic::EventPlanned, "placer", &request).await?;
    let plan = match reply {
        EventPlanReply::Planned { plan } => plan,
        EventPlanReply::Refused { error } => return Err(usage(error)),
    };
    if command.common.json {
        return print_json(&plan);
    }
    print(&text(&plan, terminal_width()))
}

/// Kilowatts with the decimals of the largest.
#[derive(Clone, Copy)]
struct Kilowatts {
    decimals: usize,
    /// What is not worth a word.
    least: Power,
}

impl Kilowatts {
    fn of(plan: &EventPlan) -> Self {
        let largest = plan.hours.iter().map(|hour| hour.drawn_mw).max().unwrap_or_default();
        let decimals = match largest.as_w() {
            watts if watts < 20e3 => 2,
            watts if watts < 2e6 => 1,
            _ => 0,
        };
        Self { decimals, least: largest.scale(LEAST_SHARE) }
    }

    fn number(self, power: Power) -> String {
        format!("{:.*}", self.decimals, power.as_w() / 1e3)
    }

    fn text(self, power: Power) -> String {
        format!("{} kW", self.number(power))
    }

    fn is_some(self, power: Power) -> bool {
        power > self.least
    }
}

/// The answer in one sentence.
fn verdict(plan: &EventPlan, unit: Kilowatts) -> String {
    let Some(span) = plan.at_target.as_ref().filter(|_| plan.record.is_some()) else {
        let least = plan.hours.iter().min_by_key(|hour| hour.less_mw);
        return least.map_or_else(
            || "no hour is planned".to_owned(),
            |hour| {
                format!(
                    "in each of the next {} hours at least {} less can be delivered for an hour, with every promise kept",
                    plan.hours.len(),
                    unit.text(hour.less_mw)
                )
            },
        );
    };
    let requested = span.less_mw + span.breaks_mw + span.short_mw;
    if !unit.is_some(requested) {
        return format!(
            "{} is expected to draw {}, less than the target, without the event",
            plan.record
                .as_ref()
                .map_or_else(|| "the site".to_owned(), |record| record.event.place()),
            unit.text(span.drawn_mw)
        );
    }
    let (breaks, short) = (unit.is_some(span.breaks_mw), unit.is_some(span.short_mw));
    if !breaks && !short {
        let all = unit.text(requested);
        return format!("all of the {all} less can be delivered, with every promise kept");
    }
    let mut text = format!(
        "{} of the {} less can be delivered with every promise kept",
        unit.text(span.less_mw),
        unit.text(requested)
    );
    if breaks {
        let jobs = plan.jobs.iter().filter(|job| job.breaks.is_some()).count();
        let of = if jobs == 1 { "1 job".to_owned() } else { format!("{jobs} jobs") };
        text += &format!("; {} more would break the promises of {of}", unit.text(span.breaks_mw));
    }
    if short {
        text += &format!("; {} cannot be delivered", unit.text(span.short_mw));
    }
    text
}

fn text(plan: &EventPlan, width: usize) -> String {
    let (unit, now) = (Kilowatts::of(plan), plan.at_us);
    let mut lines = vec![verdict(plan, unit)];
    let mut line = |name: &str, value: String| lines.push(format!("{name:<10} {value}"));
    if let (Some(record), Some(span)) = (&plan.record, &plan.at_target) {
        let (reached, end) = (near(span.from_us, now), near(span.until_us, now));
        let target = unit.text(record.target_mw);
        line("target", format!("at most {target} from {reached} until {end} UTC"));
        let (low, high) = (unit.number(span.less_mw_low), unit.text(span.less_mw_high));
        let parts = [
            (span.caps_mw, "by caps and clocks"),
            (span.gpus_mw, "by fewer GPUs"),
            (span.pauses_mw, "by pauses and later starts"),
        ];
        let parts = parts.into_iter().filter(|(power, _)| unit.is_some(*power));
        let parts: Vec<String> =
            parts.map(|(power, by)| format!("{} {by}", unit.number(power))).collect();
        let by = if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) };
        line(
            "delivers",
            format!("{} less, {low} to {high} with 90 %{by}", unit.text(span.less_mw)),
        );
    }
    if let (Some(kept), Some(least)) = (plan.least_kept_mw, plan.least_mw) {
        let (kept, least) = (unit.text(kept), unit.text(least));
        line("least", format!("{kept} with every promise kept, {least} with all broken"));
    }
    if plan.jobs_waiting > 0 {
        let waiting = plan.jobs_waiting;
        line(
            "waiting",
            format!("{waiting} queued jobs have no expected start, and count for nothing"),
        );
    }
    let spans = spans_table(&plan.hours, unit, now).fit(0, width).render(false);
    let mut text = format!("{}\n\n{}", lines.join("\n"), spans.trim_end());
    if !plan.jobs.is_empty() {
        let shown = &plan.jobs[..plan.jobs.len().min(JOBS_MAX)];
        let jobs = jobs_table(shown, unit).fit(0, width).render(false);
        text += &format!("\n\n{}", jobs.trim_end());
        let more = plan.jobs.len() - shown.len() + plan.jobs_left_out as usize;
        if more > 0 {
            text += &format!("\nand {more} jobs that lose less; --json prints up to 1000");
        }
    }
    text
}

/// Mean power by hour.
fn spans_table(spans: &[PlannedSpan], unit: Kilowatts, now: Timestamp) -> Table {
    let has_target = spans.iter().any(|span| span.target_mw.is_some());
    let mut columns = vec![("FROM", Align::Left), ("DRAWN kW", Align::Right)];
    columns.extend(has_target.then_some(("TARGET", Align::Right)));
    columns.extend([
        ("LESS", Align::Right),
        ("90 %", Align::Left),
        ("CAPS", Align::Right),
        ("GPUS", Align::Right),
        ("PAUSES", Align::Right),
        ("BREAKS", Align::Right),
    ]);
    columns.extend(has_target.then_some(("SHORT", Align::Right)));
    let mut table = Table::new(&columns);
    for span in spans {
        let number = |power| unit.number(power);
        let mut row = vec![near(span.from_us, now), number(span.drawn_mw)];
        if has_target {
            row.push(span.target_mw.map_or_else(|| "-".to_owned(), number));
        }
        row.push(number(span.less_mw));
        row.push(format!("{} to {}", number(span.less_mw_low), number(span.less_mw_high)));
        row.extend([span.caps_mw, span.gpus_mw, span.pauses_mw, span.breaks_mw].map(number));
        if has_target {
            row.push(number(span.short_mw));
        }
        table.row(row);
    }
    table
}

/// What jobs lose over the event.
fn jobs_table(jobs: &[PlannedJob], unit: Kilowatts) -> Table {
    let mut table = Table::new(&[
        ("JOB", Align::Left),
        ("GPUS", Align::Right),
        ("PROMISED", Align::Right),
        ("LOSES", Align::Right),
        ("90 %", Align::Left),
        ("LATER", Align::Right),
        ("PAUSED", Align::Right),
        ("PROMISE", Align::Left),
    ]);
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let time = |seconds: f64| match seconds {
        seconds if seconds < 1.0 => "-".to_owned(),
        seconds => span(seconds),
    };
    for job in jobs {
        let promise = match (job.promise, job.breaks) {
            (None, _) => "none".to_owned(),
            (Some(_), None) => "kept".to_owned(),
            (Some(_), Some(place)) => {
                let adds = job.breaks_mw.unwrap_or_default();
                format!("breaks as number {place}, for {}", unit.text(adds))
            }
        };
        table.row(vec![
            job.job.to_string(),
            job.gpus.to_string(),
            job.promise.map_or_else(|| "-".to_owned(), |promise| percent(promise.loss())),
            percent(job.loss),
            format!("{:.1} to {:.1}", 100.0 * job.loss_low, 100.0 * job.loss_high),
            time(job.later_s),
            time(job.paused_s),
            promise,
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use wattle_common::JobId;
    use wattle_common::event::{
        Depth, EventBook, EventRecord, GridEvent, MeasuredBy, MeasuredMean, Participation,
        SiteFigures,
    };
    use wattle_common::job::Flexibility;

    use super::*;

    /// 2026-11-29 14:25 UTC.
    const NOW: Timestamp = Timestamp::from_s(1_795_962_300);

    fn record() -> EventRecord {
        let drawn = MeasuredMean {
            power_mw: Power::from_w(94_800),
            from_us: NOW - Duration::from_secs(900),
            until_us: NOW,
            method: MeasuredBy::EnergyLedger,
        };
        let event = GridEvent {
            event: "peak-1".parse().unwrap(),
            source: "utility".to_owned(),
            feeder: None,
            start_us: NOW + Duration::from_secs(7_200),
            ramp_down_s: 900,
            depth: Depth::Percent { percent: 25.0 },
            duration_s: 7_200,
            ramp_up_s: 900,
            priority: 0,
            participation: Participation::Voluntary,
        };
        let mut book = EventBook::default();
        let site = SiteFigures { drawn: Some(drawn), idle: None };
        book.add(event, NOW, &site).unwrap();
        book.events.into_values().next().unwrap()
    }

    fn hour(number: u64, less_w: u64, breaks_w: u64, short_w: u64) -> PlannedSpan {
        let from_us = NOW + Duration::from_secs(7_200 + 3_600 * number);
        let watts = Power::from_w;
        PlannedSpan {
            from_us,
            until_us: from_us + Duration::from_secs(3_600),
            drawn_mw: watts(94_800),
            target_mw: Some(watts(71_100)),
            less_mw: watts(less_w),
            less_mw_low: watts(less_w - 1_000),
            less_mw_high: watts(less_w + 1_500),
            caps_mw: watts(less_w - 3_000),
            gpus_mw: Power::ZERO,
            pauses_mw: watts(3_000),
            breaks_mw: watts(breaks_w),
            short_mw: watts(short_w),
        }
    }

    fn planned(breaks_w: u64, short_w: u64) -> EventPlan {
        let less_w = 23_700 - breaks_w - short_w;
        let job = |name: &str, loss: f64, breaks: Option<u32>| PlannedJob {
            job: JobId::new(name).unwrap(),
            gpus: 48,
            promise: Some(Flexibility { loss_permille: 250, ..Flexibility::default() }),
            loss,
            loss_low: loss - 0.01,
            loss_high: loss + 0.02,
            later_s: 9_000.0 * loss,
            paused_s: 0.0,
            fewer_gpus_s: 0.0,
            breaks,
            breaks_mw: breaks.map(|_| Power::from_w(breaks_w)),
        };
        let broken = (breaks_w > 0).then_some(1);
        EventPlan {
            at_us: NOW,
            record: Some(record()),
            at_target: Some(hour(0, less_w, breaks_w, short_w)),
            hours: vec![hour(0, less_w, breaks_w, short_w), hour(1, less_w, breaks_w, short_w)],
            least_kept_mw: Some(Power::from_w(72_000)),
            least_mw: Some(Power::from_w(50_000)),
            jobs: vec![job("train", 0.24, broken), job("answers", 0.1, None)],
            jobs_left_out: 0,
            jobs_waiting: 2,
        }
    }

    #[test]
    fn a_plan_begins_with_what_can_be_delivered() {
        expect_test::expect![[r#"
            21.0 kW of the 23.7 kW less can be delivered with every promise kept; 2.0 kW more would break the promises of 1 job; 0.7 kW cannot be delivered
            target     at most 71.1 kW from 16:25 until 17:25 UTC
            delivers   21.0 kW less, 20.0 to 22.5 kW with 90 %: 18.0 by caps and clocks, 3.0 by pauses and later starts
            least      72.0 kW with every promise kept, 50.0 kW with all broken
            waiting    2 queued jobs have no expected start, and count for nothing

            FROM   DRAWN kW  TARGET  LESS  90 %          CAPS  GPUS  PAUSES  BREAKS  SHORT
            16:25      94.8    71.1  21.0  20.0 to 22.5  18.0   0.0     3.0     2.0    0.7
            17:25      94.8    71.1  21.0  20.0 to 22.5  18.0   0.0     3.0     2.0    0.7

            JOB      GPUS  PROMISED   LOSES  90 %           LATER  PAUSED  PROMISE
            train      48    25.0 %  24.0 %  23.0 to 26.0  36 min       -  breaks as number 1, for 2.0 kW
            answers    48    25.0 %  10.0 %  9.0 to 12.0   15 min       -  kept"#]].assert_eq(&text(&planned(2_000, 700), 100));
        let verdicts = [planned(0, 0), planned(0, 700)].map(|plan| {
            let unit = Kilowatts::of(&plan);
            verdict(&plan, unit) + "\n"
        });
        expect_test::expect![[r#"
            all of the 23.7 kW less can be delivered, with every promise kept
            23.0 kW of the 23.7 kW less can be delivered with every promise kept; 0.7 kW cannot be delivered
        "#]].assert_eq(&verdicts.concat());
        let day = EventPlan { record: None, at_target: None, ..planned(0, 0) };
        let unit = Kilowatts::of(&day);
        expect_test::expect!["in each of the next 2 hours at least 23.7 kW less can be delivered for an hour, with every promise kept"].assert_eq(&verdict(&day, unit));
    }
}
