//! `wattle event report`: what an event delivered, for people, as CSV and as JSON.

use clap::Args;
use wattle_common::EventId;
use wattle_common::event::report::{EventReport, event_report, needed_from};
use wattle_common::event::{EventPerformances, kw};
use wattle_common::subject::{Bucket, EVENT_JOBS};
use wattle_common::{Power, Timestamp};
use wattle_runtime::{clock, site_minutes};
use wattle_view::event_report::{
    DeliveredText, bases, csv, energy, kept, method, tolerance, verdict,
};

use super::jobs::jobs_table;
use super::{Common, find, stored};
use crate::date::minute;
use crate::job_records;
use crate::output::{Align, Table, print, print_json, terminal_width};

/// Report what an event delivered, also while it lasts.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  wattle event report peak-1\n  wattle event report peak-1 --csv > peak-1.csv"
)]
pub(super) struct Report {
    /// The event
    event: EventId,
    /// Print one line for each minute, as CSV
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    #[command(flatten)]
    common: Common,
}

pub(super) async fn report(command: Report) -> anyhow::Result<()> {
    let bus = command.common.connection.open().await?;
    job_records::require_storage(&bus, "event report")?;
    let record = find(stored(&bus).await?, &command.event)?;
    let bucket = bus.bucket(Bucket::Budget).await?;
    let performances = bucket.get::<EventPerformances>(EVENT_JOBS).await?;
    let mut performances = performances.map(|(value, _)| value).unwrap_or_default();
    let jobs = performances.events.remove(&command.event).unwrap_or_default();
    let site = site_minutes::read(&bus, needed_from(&record)).await?;
    let report = event_report(&record, &jobs, &site, clock::now());
    if command.common.json {
        return print_json(&report);
    }
    if command.csv {
        return print(csv(&report).trim_end());
    }
    show(&report, clock::now())
}

fn show(report: &EventReport, now: Timestamp) -> anyhow::Result<()> {
    let record = &report.record;
    print(&verdict(report))?;
    if report.minutes.is_empty() {
        return Ok(());
    }
    print(&facts(report))?;
    print("")?;
    baselines(report).print()?;
    print("")?;
    for baseline in &report.baselines {
        print(&format!("{:<14}{}", baseline.method.as_str(), method(baseline)))?;
    }
    if let Some((_, delivered)) = report.first_delivered() {
        print(&format!("{:<14}{}", "bases", bases(delivered)))?;
    }
    if report.jobs.is_empty() {
        return Ok(());
    }
    print("")?;
    let jobs = report.jobs.iter().map(|(id, job)| (id.clone(), job.performance)).collect();
    jobs_table(&jobs, now, record.returned()).fit(0, terminal_width()).print()
}

/// The event, compliance and energy.
fn facts(report: &EventReport) -> String {
    let record = &report.record;
    let mut lines = Vec::new();
    let mut line = |name: &str, value: String| lines.push(format!("{name:<14}{value}"));
    let (start, end) = (minute(record.event.start_us), minute(record.end_us));
    line("event", format!("by {}, from {start} until {end} UTC", record.event.source));
    line("notice", format!("{} UTC", minute(record.notice_us)));
    let compliance = &report.compliance;
    line("at target", format!("{}: {}", kept(&compliance.target), tolerance()));
    if record.shortfall_mw > Power::ZERO {
        let (within, of) = (compliance.target.within_limit, compliance.target.minutes);
        let limit = kw(record.limit());
        line(
            "shortfall",
            format!(
                "{} was declared: within {limit} in {within} of {of} minutes",
                kw(record.shortfall_mw)
            ),
        );
    }
    if compliance.ramps.minutes > 0 {
        line("ramps", kept(&compliance.ramps));
    }
    if compliance.after.minutes > 0 {
        line("return", format!("{}: at most the power before", kept(&compliance.after)));
    }
    line("drawn", energy(report));
    lines.join("\n")
}

fn baselines(report: &EventReport) -> Table {
    let mut table = Table::new(&[
        ("BASELINE", Align::Left),
        ("POWER", Align::Right),
        ("MEASURED", Align::Right),
        ("LESS", Align::Right),
        ("SHARE", Align::Right),
        ("ENERGY", Align::Right),
        ("COST", Align::Right),
        ("CO2", Align::Right),
    ]);
    for baseline in &report.baselines {
        let name = baseline.method.as_str().to_owned();
        table.row(match &baseline.delivered {
            Some(delivered) => {
                let text = DeliveredText::of(delivered);
                let DeliveredText { baseline, measured, less, share, energy, cost, carbon } = text;
                vec![name, baseline, measured, less, share, energy, cost, carbon]
            }
            None => {
                let mut cells = vec!["-".to_owned(); 8];
                cells[0] = name;
                cells
            }
        });
    }
    table
}
