//! `wattle saved`: what was saved against the site's former scheduler, from the twin of the cluster.

use std::time::Duration;

use clap::{Args, ValueEnum};
use wattle_common::duration::{DurationUnit, parse_span};
use wattle_common::messages::TwinStatus;
use wattle_common::subject::TWIN_STATUS;
use wattle_runtime::bus::Bus;
use wattle_runtime::clock;
use wattle_view::saved::{Saved, SavedBy, SavedRates, SavedRow, kwh_text};

use crate::budget::tidy;
use crate::commands::budget;
use crate::connection::{Connection, block_on};
use crate::date::{date, minute};
use crate::job_records;
use crate::output::{Align, Table, note, print, print_json, terminal_width};

/// Show what was saved against the site's former scheduler.
#[derive(Args)]
#[command(
    after_help = "The placer runs the former scheduler in a model beside the cluster, on the same jobs\n\
        (docs/twin.md). Completion times and energy of the cluster are measured; those of the former\n\
        scheduler are computed from measured work and predicted speed and power. Days are in UTC.\n\n\
        Examples:\n  wattle saved\n  wattle saved --by project --since 7d\n  wattle saved --by day --csv > saved.csv"
)]
pub(crate) struct SavedCommand {
    /// One row for each day, user or project
    #[arg(long, value_enum, default_value = "day")]
    by: By,
    /// Only the last days, today among them, as many as SPAN has or begins: 7d, 1d [default: since the twin began]
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    since: Option<Duration>,
    #[command(flatten)]
    connection: Connection,
    /// Print CSV
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What a row stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    /// A day in UTC.
    Day,
    /// A user who submitted jobs.
    User,
    /// A project for which jobs were submitted.
    Project,
}

impl From<By> for SavedBy {
    fn from(by: By) -> Self {
        match by {
            By::Day => Self::Day,
            By::User => Self::User,
            By::Project => Self::Project,
        }
    }
}

/// Runs the command.
pub(crate) fn run(command: &SavedCommand) -> anyhow::Result<()> {
    block_on(async {
        let bus = command.connection.open().await?;
        job_records::require_storage(&bus, "saved")?;
        let status: Option<TwinStatus> = budget::read(&bus, TWIN_STATUS).await?;
        let Some(mut status) = status else {
            note("no figures yet: the placer stores them five minutes after its start");
            return Ok(());
        };
        if let Some(since) = command.since {
            status = Saved::of_last(status, since, clock::now());
        }
        let (saved, currency) = figures(&bus, &status, command.by.into()).await?;
        if command.json {
            return print_json(&saved);
        }
        if command.csv {
            return print(&csv(&saved, command.by)?);
        }
        print(&format!("{}\n", text(&saved, currency.as_deref())))?;
        table(&saved, command.by).fit(0, terminal_width()).print()?;
        for absence in &status.absences {
            let (from, until) = (minute(absence.from_us), minute(absence.until_us));
            note(&format!(
                "note: no placer ran from {from} to {until} UTC; sleep is not counted there"
            ));
        }
        if let Some(at) = status.replayed_at_us {
            note(&format!(
                "note: computed again on {} UTC from the records of jobs, with the nodes of then",
                minute(at)
            ));
        }
        if status.corrected_late > 0 {
            note(&format!(
                "note: the run time of {} became known too late to correct the model's queue",
                jobs(status.corrected_late)
            ));
        }
        Ok(())
    })
}

/// The figures of a status at the prices and carbon intensities in force, with the currency of the prices.
pub(crate) async fn figures(
    bus: &Bus,
    status: &TwinStatus,
    by: SavedBy,
) -> anyhow::Result<(Saved, Option<String>)> {
    let rates = budget::rates(bus).await?;
    let (intensity, prices) = (rates.intensity.as_ref(), rates.prices.as_ref());
    let saved = Saved::new(status, by, SavedRates { intensity, prices });
    Ok((saved, rates.prices.map(|prices| prices.currency)))
}

fn jobs(count: u64) -> String {
    if count == 1 { "1 job".to_owned() } else { format!("{count} jobs") }
}

/// The verdict, the times of both schedules and the parts of the saving.
fn text(saved: &Saved, currency: Option<&str>) -> String {
    let row = &saved.total;
    // A terminal has 80 columns or more.
    let mut text = saved.verdict().replace("; ", "\n");
    let (from, until) = (minute(saved.since_us), minute(saved.until_us));
    text += &format!("\nfrom {from} to {until} UTC");
    if row.jobs_compared < row.jobs {
        text += &format!("; energy is compared for {} of them", row.jobs_compared);
    }
    text += "\n";
    let times = [
        ("completion, mean", row.completion_s_mean, row.completion_s_mean_before),
        ("waiting, mean", row.wait_s_mean, row.wait_s_mean_before),
    ];
    let longest = times.iter().flat_map(|(_, own, before)| own.iter().chain(before));
    let unit = DurationUnit::of_all(longest.copied());
    for (name, own, before) in times {
        if let Some((own, before)) = own.zip(before) {
            let baseline = saved.baseline;
            let (own, before) = (unit.format(own), unit.format(before));
            text += &format!("\n{name:<17} {own:>10}, under {baseline} {before}");
        }
    }
    for (name, kwh) in row.parts() {
        if kwh.abs() >= 5e-4 {
            text += &format!("\n{name:<28} {}", kwh_text(kwh));
        }
    }
    if let Some(awake) = row.awake_text() {
        text += &format!("\n{:<28} {awake}", "nodes awake");
    }
    if let Some(carbon) = row.carbon_kg {
        text += &format!("\nCO2 saved {} kg", tidy(carbon));
    }
    if let Some((cost, currency)) = row.cost.zip(currency) {
        text += &format!("\ncost saved {cost:.2} {currency}");
    }
    text + "\n"
}

fn name(row: &SavedRow, by: By) -> String {
    match (by, row.day, &row.name) {
        (By::Day, Some(0), _) => "before".to_owned(),
        (By::Day, Some(day), _) => date(day),
        _ if row.is_nodes => "(nodes without jobs)".to_owned(),
        (_, _, Some(name)) => name.clone(),
        (By::User, ..) => "(no user)".to_owned(),
        _ => "(no project)".to_owned(),
    }
}

fn table(saved: &Saved, by: By) -> Table {
    let first = match by {
        By::Day => "DAY",
        By::User => "USER",
        By::Project => "PROJECT",
    };
    let mut table = Table::new(&[
        (first, Align::Left),
        ("JOBS", Align::Right),
        ("COMPLETED ON AVERAGE", Align::Left),
        ("SAVED", Align::Right),
        ("OF", Align::Right),
        ("SHARE %", Align::Right),
    ]);
    for row in &saved.rows {
        let later = if row.jobs > 0 { row.later_text() } else { String::new() };
        let has_energy = row.energy_kwh_before > 0.0;
        let cell = |text: String| if has_energy { text } else { String::new() };
        table.row(vec![
            name(row, by),
            if row.is_nodes { String::new() } else { row.jobs.to_string() },
            later,
            cell(kwh_text(row.saved_kwh)),
            cell(kwh_text(row.energy_kwh_before)),
            cell(format!("{:.1}", 100.0 * row.saved_kwh / row.energy_kwh_before)),
        ]);
    }
    table
}

fn csv(saved: &Saved, by: By) -> anyhow::Result<String> {
    let mut csv = ::csv::Writer::from_writer(Vec::new());
    let first = match by {
        By::Day => "day",
        By::User => "user",
        By::Project => "project",
    };
    csv.write_record([
        first,
        "jobs",
        "jobs_compared",
        "completion_s_mean",
        "completion_s_mean_before",
        "wait_s_mean",
        "wait_s_mean_before",
        "energy_kwh_before",
        "saved_kwh",
        "saved_kwh_low",
        "saved_kwh_high",
        "saved_kwh_settings",
        "saved_kwh_sleep",
        "saved_kwh_sharing",
        "saved_kwh_sizes",
        "saved_kwh_other",
        "node_h_awake",
        "node_h",
        "cost",
        "carbon_kg",
    ])?;
    let number = |value: f64| format!("{value:.6}");
    let cell = |value: Option<f64>| value.map_or_else(String::new, number);
    for row in &saved.rows {
        let first = match (by, row.day) {
            (By::Day, Some(_)) => name(row, by),
            _ if row.is_nodes => name(row, by),
            _ => row.name.clone().unwrap_or_default(),
        };
        csv.write_record([
            first,
            row.jobs.to_string(),
            row.jobs_compared.to_string(),
            cell(row.completion_s_mean),
            cell(row.completion_s_mean_before),
            cell(row.wait_s_mean),
            cell(row.wait_s_mean_before),
            number(row.energy_kwh_before),
            number(row.saved_kwh),
            number(row.saved_kwh_low),
            number(row.saved_kwh_high),
            number(row.saved_kwh_settings),
            number(row.saved_kwh_sleep),
            number(row.saved_kwh_sharing),
            number(row.saved_kwh_sizes),
            number(row.saved_kwh_other),
            cell(row.node_h_awake),
            cell(row.node_h),
            cell(row.cost),
            cell(row.carbon_kg),
        ])?;
    }
    Ok(String::from_utf8(csv.into_inner()?)?)
}
