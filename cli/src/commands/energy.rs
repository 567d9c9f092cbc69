//! `wattle energy`: the energy of jobs, users, projects, nodes, days or causes from the energy ledger.
//!
//! The ledger is measured: profilers write it once a minute. It is read without a running placer.

mod report;

use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use wattle_common::bounds::plausible_ledger_entry;
use wattle_common::duration::parse_span;
use wattle_common::messages::JobRecord;
use wattle_common::subject::StreamName;
use wattle_common::{AdmissionId, Timestamp};
use wattle_runtime::bus::Bus;
use wattle_runtime::clock;

use self::report::Report;
use crate::commands::budget;
use crate::commands::jobs::records;
use crate::connection::{Connection, block_on};
use crate::job_records;
use crate::output::{note, print, print_json, terminal_width};
use wattle_view::emissions::Rates;
use wattle_view::energy::{Accounts, Submission};

/// Report the energy of jobs, users, projects, nodes or days from the ledger.
#[derive(Args)]
#[command(
    name = "energy",
    after_help = "Energy of GPUs is measured, that of hosts follows from the configured host power.\n\
        GPU energy without a job and without a process is idle energy. GPU energy without a known\n\
        owner is unknown, with its cause. Jobs, idle GPUs, unknown and hosts sum to the nodes' energy.\n\
        The ledger is at most one minute behind. Days are in UTC.\n\n\
        Examples:\n  wattle energy\n  wattle energy --by project --since 7d\n  wattle energy --by day --csv > energy.csv"
)]
pub(crate) struct EnergyCommand {
    /// One row for each job, user, project, node or day, or for each cause of unknown energy
    #[arg(long, value_enum, default_value = "job")]
    by: By,
    /// Only the energy of the last SPAN: 90m, 24h, 7d [default: the whole ledger]
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
pub(crate) enum By {
    /// A job.
    Job,
    /// A user who submitted jobs.
    User,
    /// A project for which jobs were submitted.
    Project,
    /// A node.
    Node,
    /// A day in UTC.
    Day,
    /// A cause of unknown energy.
    Cause,
}

/// Counts the ledger from `since` on.
async fn read(bus: &Bus, since: Timestamp, rates: &Rates) -> anyhow::Result<Accounts> {
    let mut accounts = Accounts::default();
    let mut replay =
        bus.replay(StreamName::Ledger, None).await.context("the ledger cannot be read")?;
    while let Some(message) = replay.next_message().await.context("the ledger cannot be read")? {
        match plausible_ledger_entry(&message.subject, &message.payload, clock::now()) {
            Some(entry) => accounts.count_at(&entry, since, rates),
            None => accounts.unreadable += 1,
        }
    }
    Ok(accounts)
}

/// Runs the command.
pub(crate) fn run(command: &EnergyCommand) -> anyhow::Result<()> {
    block_on(async {
        let bus = command.connection.open().await?;
        job_records::require_storage(&bus, "energy")?;
        let since = command.since.map_or(Timestamp::EPOCH, |span| {
            let now = clock::now().as_us();
            Timestamp::from_us(now.saturating_sub(span.as_micros() as u64))
        });
        let rates = budget::rates(&bus).await?;
        let accounts = read(&bus, since, &rates).await?;
        let records = match command.by {
            By::Job | By::User | By::Project => records(&bus).await?,
            By::Node | By::Day | By::Cause => Vec::new(),
        };
        let owner_of = |(job, admission): &Submission| {
            let is_its = |record: &&JobRecord| {
                record.spec.job == *job
                    && AdmissionId::may_be(record.admission.as_ref(), admission.as_ref())
            };
            let record = records.iter().find(is_its);
            let spec = record.map(|record| &record.spec);
            let project = spec.and_then(|spec| spec.project.as_ref()).map(ToString::to_string);
            (spec.and_then(|spec| spec.user.clone()), project)
        };
        let report = Report::new(command.by, &accounts, owner_of).with_rates(&accounts, &rates);
        if command.json {
            return print_json(&report);
        }
        if command.csv {
            return print(&report.csv()?);
        }
        if accounts.from.is_none() {
            note("no energy in the ledger for this time; profilers write it once a minute");
            return Ok(());
        }
        print(&format!("{}\n\n", report.verdict()))?;
        report.table(terminal_width()).print()?;
        report.warnings(&accounts).iter().for_each(|text| note(text));
        Ok(())
    })
}
