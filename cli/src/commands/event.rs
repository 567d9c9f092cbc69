//! `wattle event`: announces, lists, plans, changes, cancels, declines and reports grid events.
//!
//! The records are read from the bucket, so they are available without a running placer. Requests are sent to the placer,
//! which replies after storing them.

mod jobs;
mod plan;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use wattle_common::duration::{parse_span, span};
use wattle_common::event::{
    Closed, Depth, EventBook, EventRecord, MeasuredMean, Participation, kw,
};
use wattle_common::messages::{EventReply, EventRequest};
use wattle_common::subject::{Bucket, EVENTS, RequestTopic};
use wattle_common::{EventId, Power, Timestamp};
use wattle_runtime::bus::Bus;
use wattle_runtime::clock;

use crate::connection::{Connection, block_on};
use wattle_view::event::{sentence, verdict};

use crate::date::{minute, near};
use crate::event_file::{EventOptions, When, announced, parse_when};
use crate::job_records;
use crate::output::{Align, Table, print, print_json, terminal_width, usage};
use crate::takeover;

/// Announce, list, plan, change, cancel, decline or report grid events.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  wattle event plan --start 90m --reduce 25% --duration 3h\n  wattle event add --start 90m --ramp-down 15m --reduce 25% --duration 3h --ramp-up 15m\n  wattle event add --file peak.toml\n  wattle event list\n  wattle event change peak-1 --duration 2h\n  wattle event cancel peak-1\n  wattle event report peak-1"
)]
pub(crate) struct EventCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Announce an event, or those of a file.
    Add(Add),
    /// List the events with their targets.
    List(List),
    /// Show one event.
    Show(Show),
    /// What the site or a feeder can deliver during an event, before it is accepted.
    Plan(Plan),
    /// Shorten or extend an event, also one that has begun.
    Change(Change),
    /// Cancel an event; one that has begun ramps up from now on.
    Cancel(Cancel),
    /// Decline a voluntary event before its start.
    Decline(Decline),
    /// Report what an event delivered, also while it lasts.
    Report(report::Report),
}

/// Connection and form of the output.
#[derive(Args)]
struct Common {
    #[command(flatten)]
    connection: Connection,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Announce an event, or those of a file.
#[derive(Args)]
#[command(
    after_help = "The file has one table [[event]] for each event, with the names of the options: id, source, feeder,\nstart, ramp_down, reduce or to, duration or end, ramp_up, priority, mandatory; or the same as JSON:\n{\"event\": [{\"start\": \"90m\", \"reduce\": \"25%\", \"duration\": \"3h\"}]}\n\nExamples:\n  wattle event add --start now --to 70kW --duration 2h\n  wattle event add --id peak-1 --source utility --mandatory --start 2026-11-29T16:25:00Z --ramp-down 15m --reduce 25% --duration 3h --ramp-up 15m\n  wattle event add --feeder board-a --start now --reduce 25% --duration 2h\n  wattle event add --file peak.toml"
)]
struct Add {
    #[command(flatten)]
    event: EventOptions,
    /// File of events, in place of the options: TOML or JSON
    #[arg(long, value_name = "FILE", conflicts_with_all = ["start", "reduce", "to", "duration", "end"])]
    file: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// List the events with their targets.
#[derive(Args)]
#[command(after_help = "Example:\n  wattle event list --all")]
struct List {
    /// Also those that are over
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    common: Common,
}

/// Show one event.
#[derive(Args)]
#[command(after_help = "Example:\n  wattle event show peak-1")]
struct Show {
    /// The event
    event: EventId,
    #[command(flatten)]
    common: Common,
}

/// What the site or a feeder can deliver during an event, before it is accepted.
#[derive(Args)]
#[command(
    after_help = "Give the options of an event, or only --id of an announced one. With neither, each of the next 24 hours\nstands for an event of an hour, of the site or with --feeder of a feeder. Nothing is announced.\n\nExamples:\n  wattle event plan\n  wattle event plan --start 90m --ramp-down 15m --reduce 25% --duration 3h --ramp-up 15m\n  wattle event plan --id peak-1 --json"
)]
struct Plan {
    #[command(flatten)]
    event: EventOptions,
    #[command(flatten)]
    common: Common,
}

/// Shorten or extend an event, also one that has begun.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  wattle event change peak-1 --duration 2h\n  wattle event change peak-1 --end 30m"
)]
struct Change {
    /// The event
    event: EventId,
    /// Time at the target, in all
    #[arg(long, value_name = "SPAN", value_parser = parse_span, required_unless_present = "end")]
    duration: Option<Duration>,
    /// End of the target, in place of --duration: a span from now, or a time
    #[arg(long, value_name = "WHEN", value_parser = parse_when, conflicts_with = "duration")]
    end: Option<When>,
    #[command(flatten)]
    common: Common,
}

/// Cancel an event.
#[derive(Args)]
#[command(after_help = "Example:\n  wattle event cancel peak-1")]
struct Cancel {
    /// The event
    event: EventId,
    #[command(flatten)]
    common: Common,
}

/// Decline a voluntary event.
#[derive(Args)]
#[command(after_help = "Example:\n  wattle event decline peak-1")]
struct Decline {
    /// The event
    event: EventId,
    #[command(flatten)]
    common: Common,
}

/// The stored events.
async fn stored(bus: &Bus) -> anyhow::Result<EventBook> {
    let value = bus.bucket(Bucket::Budget).await?.get::<EventBook>(EVENTS).await?;
    Ok(value.map(|(book, _)| book).unwrap_or_default())
}

/// A stored event.
fn find(book: EventBook, event: &EventId) -> anyhow::Result<EventRecord> {
    let mut book = book;
    book.events
        .remove(event)
        .ok_or_else(|| usage(format!("no event `{event}`; `wattle event list --all` lists all")))
}

/// Sends a request. A refusal is a usage error.
async fn request(bus: &Bus, request: &EventRequest) -> anyhow::Result<EventRecord> {
    match takeover::request(bus, RequestTopic::EventSet, "placer", request).await? {
        EventReply::Stored { record, .. } => Ok(*record),
        EventReply::Refused { error } => Err(usage(error)),
    }
}

const fn participation(record: &EventRecord) -> &'static str {
    match record.event.participation {
        Participation::Voluntary => "voluntary",
        Participation::Mandatory => "mandatory",
    }
}

/// The rows of a list. Only where an event has a feeder is there a column for it.
fn table(records: &[&EventRecord], now: Timestamp) -> Table {
    let mut columns = vec![
        ("EVENT", Align::Left),
        ("STATE", Align::Left),
        ("START", Align::Left),
        ("END", Align::Left),
        ("TARGET", Align::Right),
        ("LESS", Align::Right),
        ("KIND", Align::Left),
        ("SOURCE", Align::Left),
    ];
    let has_feeders = records.iter().any(|record| record.event.feeder.is_some());
    if has_feeders {
        columns.insert(1, ("FEEDER", Align::Left));
    }
    let mut table = Table::new(&columns);
    for record in records {
        let mut row = vec![
            record.event.event.to_string(),
            record.state(now).as_str().to_owned(),
            near(record.event.start_us, now),
            near(record.end_us, now),
            kw(record.limit()),
            record.reduction().map_or_else(|| "-".to_owned(), kw),
            participation(record).to_owned(),
            record.event.source.clone(),
        ];
        if has_feeders {
            let feeder = record.event.feeder.as_ref();
            row.insert(1, feeder.map_or_else(|| "-".to_owned(), ToString::to_string));
        }
        table.row(row);
    }
    table
}

/// A mean with its interval and method.
fn mean(measured: &MeasuredMean) -> String {
    let (from, until) = (minute(measured.from_us), minute(measured.until_us));
    format!("{}, {} from {from} to {until} UTC", kw(measured.power_mw), measured.method.as_str())
}

/// One event: its state first, then what was announced and measured.
fn details(record: &EventRecord, now: Timestamp) -> String {
    let event = &record.event;
    let mut lines = vec![sentence(record, now)];
    let mut line = |name: &str, value: String| lines.push(format!("{name:<10} {value}"));
    let depth = match event.depth {
        Depth::Target { power_mw } => format!("to {}", kw(power_mw)),
        Depth::Reduction { power_mw } => format!("{} less", kw(power_mw)),
        Depth::Percent { percent } => format!("{percent} % less"),
    };
    let of = record.reduction().map(|less| format!(", {} less than before", kw(less)));
    line("target", format!("{}{}", kw(record.target_mw), of.unwrap_or_default()));
    if let Some(feeder) = &event.feeder {
        line("feeder", feeder.to_string());
    }
    line("announced", format!("{depth}, by {} at {} UTC", event.source, minute(record.notice_us)));
    line("kind", format!("{}, priority {}", participation(record), event.priority));
    let ramp = |seconds: u64| match seconds {
        0 => "no ramp".to_owned(),
        seconds => format!("a ramp of {}", span(seconds as f64)),
    };
    line("start", format!("{} UTC, {}", minute(event.start_us), ramp(event.ramp_down_s)));
    line("end", format!("{} UTC, {}", minute(record.end_us), ramp(event.ramp_up_s)));
    if record.shortfall_mw > Power::ZERO {
        let (short, limit) = (kw(record.shortfall_mw), kw(record.limit()));
        line(
            "shortfall",
            format!("{short}, so that promises hold: {} draws up to {limit}", event.place()),
        );
    }
    if let Some(baseline) = &record.baseline {
        line("baseline", mean(baseline));
    }
    if let Some(before) = &record.before {
        line("before", mean(before));
    }
    match record.closed {
        Some(Closed::Cancelled { at_us }) => line("cancelled", format!("{} UTC", minute(at_us))),
        Some(Closed::Declined { at_us }) => line("declined", format!("{} UTC", minute(at_us))),
        None => {}
    }
    lines.join("\n")
}

/// Prints what a request has changed.
fn changed(record: &EventRecord, json: bool) -> anyhow::Result<()> {
    if json {
        return print_json(record);
    }
    print(&details(record, clock::now()))
}

async fn add(command: Add) -> anyhow::Result<()> {
    // Invalid events are refused before the connection; the system's clock is known behind it.
    let events = |now| match &command.file {
        Some(path) => announced(path, now),
        None => match command.event.is_empty() {
            true => Err(usage(
                "no event given: give --start, --duration and --reduce or --to, or --file FILE",
            )),
            false => Ok(vec![command.event.event(now).map_err(usage)?]),
        },
    };
    events(clock::wall_now())?;
    let bus = command.common.connection.open().await?;
    let mut records = Vec::new();
    let mut refused = Ok(());
    for event in events(clock::now())? {
        match request(&bus, &EventRequest::Add { event }).await {
            Ok(record) => records.push(record),
            Err(error) => {
                refused = Err(error);
                break;
            }
        }
    }
    // Those before a refused one are stored.
    if command.common.json {
        print_json(&records)?;
    } else if !records.is_empty() {
        let now = clock::now();
        let texts: Vec<String> = records.iter().map(|record| details(record, now)).collect();
        print(&texts.join("\n\n"))?;
    }
    refused
}

async fn list(command: List) -> anyhow::Result<()> {
    let bus = command.common.connection.open().await?;
    job_records::require_storage(&bus, "event list")?;
    let (book, now) = (stored(&bus).await?, clock::now());
    let records = book.in_order();
    let shown = records.iter().filter(|record| command.all || !record.state(now).is_over());
    let shown: Vec<&EventRecord> = shown.copied().collect();
    if command.common.json {
        return print_json(&shown);
    }
    print(&verdict(&records, now))?;
    if shown.is_empty() {
        return Ok(());
    }
    let source = if shown.iter().any(|record| record.event.feeder.is_some()) { 8 } else { 7 };
    table(&shown, now).fit(source, terminal_width()).print()
}

async fn change(command: Change) -> anyhow::Result<()> {
    let bus = command.common.connection.open().await?;
    let event = command.event;
    let duration_s = match (command.duration, command.end) {
        (Some(duration), _) => duration.as_secs(),
        (None, Some(end)) => {
            job_records::require_storage(&bus, "event change --end")?;
            let record = find(stored(&bus).await?, &event)?;
            let (end, reached) = (end.at(clock::now()), record.reached());
            if end <= reached {
                return Err(usage(format!(
                    "the end is not after {} UTC, when the target is reached: give a later one, or cancel the event",
                    minute(reached)
                )));
            }
            end.since(reached).as_secs()
        }
        (None, None) => return Err(usage("give --duration or --end")),
    };
    changed(&request(&bus, &EventRequest::Change { event, duration_s }).await?, command.common.json)
}

async fn close(common: Common, of: EventRequest) -> anyhow::Result<()> {
    let bus = common.connection.open().await?;
    changed(&request(&bus, &of).await?, common.json)
}

/// Runs the command.
pub(crate) fn run(command: EventCommand) -> anyhow::Result<()> {
    match command.action {
        Action::Add(inner) => block_on(add(inner)),
        Action::List(inner) => block_on(list(inner)),
        Action::Show(inner) => block_on(jobs::show(inner)),
        Action::Plan(inner) => block_on(plan::plan(inner)),
        Action::Change(inner) => block_on(change(inner)),
        Action::Report(inner) => block_on(report::report(inner)),
        Action::Cancel(Cancel { event, common }) => {
            block_on(close(common, EventRequest::Cancel { event }))
        }
        Action::Decline(Decline { event, common }) => {
            block_on(close(common, EventRequest::Decline { event }))
        }
    }
}

#[cfg(test)]
mod tests {
    use wattle_common::FeederId;
    use wattle_common::event::{GridEvent, MeasuredBy, SiteFigures};

    use super::*;

    /// 2026-11-29 14:25 UTC.
    const NOW: Timestamp = Timestamp::from_s(1_795_962_300);

    fn book() -> EventBook {
        let drawn = MeasuredMean {
            power_mw: Power::from_w(94_800),
            from_us: NOW - Duration::from_secs(900),
            until_us: NOW,
            method: MeasuredBy::EnergyLedger,
        };
        let site = SiteFigures { drawn: Some(drawn), idle: None };
        let mut book = EventBook::default();
        for (name, start_h, participation) in
            [("peak-1", 2, Participation::Mandatory), ("peak-2", 30, Participation::Voluntary)]
        {
            let event = GridEvent {
                event: EventId::new(name).unwrap(),
                source: "utility".to_owned(),
                feeder: None,
                start_us: NOW + Duration::from_secs(3_600 * start_h),
                ramp_down_s: 900,
                depth: Depth::Percent { percent: 25.0 },
                duration_s: 10_800,
                ramp_up_s: 900,
                priority: 0,
                participation,
            };
            book.add(event, NOW, &site).unwrap();
        }
        book
    }

    #[test]
    fn a_list_begins_with_what_is_under_way() {
        let book = book();
        let later = |minutes: u64| NOW + Duration::from_secs(60 * minutes);
        let records = book.in_order();
        let texts = [0, 125, 200, 320, 400].map(|minutes| verdict(&records, later(minutes)) + "\n");
        expect_test::expect![[r#"
            no grid event is under way; grid event peak-1 is planned: at most 71.1 kW, from 16:25 until 19:40 UTC
            grid event peak-1 is ramping down: at most 71.1 kW from 16:40 UTC on
            grid event peak-1 is active: at most 71.1 kW until 19:40 UTC
            grid event peak-1 is ramping up until 19:55 UTC
            no grid event is under way; grid event peak-2 is planned: at most 71.1 kW, from 11-30 20:25 until 11-30 23:40 UTC
        "#]].assert_eq(&texts.concat());
        expect_test::expect![[r#"
            EVENT   STATE    START        END           TARGET     LESS  KIND       SOURCE
            peak-1  active   16:25        19:40        71.1 kW  23.7 kW  mandatory  utility
            peak-2  planned  11-30 20:25  11-30 23:40  71.1 kW  23.7 kW  voluntary  utility
        "#]]
        .assert_eq(&table(&records, later(200)).render(false));
        let mut rack = records[1].clone();
        rack.event.feeder = FeederId::new("board-a").ok();
        expect_test::expect![[r#"
            EVENT   FEEDER   STATE    START        END           TARGET     LESS  KIND       SOURCE
            peak-1  -        active   16:25        19:40        71.1 kW  23.7 kW  mandatory  utility
            peak-2  board-a  planned  11-30 20:25  11-30 23:40  71.1 kW  23.7 kW  voluntary  utility
        "#]]
        .assert_eq(&table(&[records[0], &rack], later(200)).render(false));
        assert_eq!(
            verdict(&[], NOW),
            "no grid event is under way or planned; `wattle event add` announces one"
        );
    }

    #[test]
    fn one_event_is_shown_with_its_baseline() {
        let mut book = book();
        let event = EventId::new("peak-1").unwrap();
        let later = NOW + Duration::from_secs(9_000);
        book.cancel(&event, later).unwrap();
        expect_test::expect![[r#"
            grid event peak-1 is ramping up until 17:10 UTC
            target     71.1 kW, 23.7 kW less than before
            announced  25 % less, by utility at 2026-11-29 14:25 UTC
            kind       mandatory, priority 0
            start      2026-11-29 16:25 UTC, a ramp of 15 min
            end        2026-11-29 16:55 UTC, a ramp of 15 min
            baseline   94.8 kW, mean of the energy ledger from 2026-11-29 14:10 to 2026-11-29 14:25 UTC
            cancelled  2026-11-29 16:55 UTC"#]].assert_eq(&details(&book.events[&event], later));
    }
}
