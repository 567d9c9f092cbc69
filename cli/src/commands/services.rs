//! `wattle services`: the processes of the cluster, and which of them are active.

use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use serde::Serialize;
use wattle_runtime::bus::{Bus, FoundService};

use crate::connection::{Connection, block_on};
use crate::job_records;
use crate::output::{Align, Table, print, print_json};

/// Time for answers, wall time: there is no last answer.
const PATIENCE: Duration = Duration::from_millis(1_500);
/// Services without which the cluster places no job.
const REQUIRED: [&str; 2] = ["placer", "registry"];

/// List the processes of the cluster that answer, and which of them are active.
///
/// Of several placers, registries, predictors of one name, and profilers or power agents of one node, one
/// is active and the others are on standby.
#[derive(Args)]
#[command(
    after_help = "REQUESTS and ERRORS are those that the process answered since it was registered.\n\
        A process that is paused or cut off does not answer and is not listed.\n\n\
        Examples:\n  wattle services\n  wattle services --json"
)]
pub(crate) struct Services {
    #[command(flatten)]
    connection: Connection,
    /// Print the processes as a JSON array
    #[arg(long)]
    json: bool,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Process {
    /// `placer`, `launcher`, ...
    pub(crate) service: String,
    /// Its node or predictor; empty: it serves the cluster.
    pub(crate) of: String,
    /// `active` or `standby`.
    pub(crate) state: String,
    /// Its machine.
    pub(crate) host: String,
    /// Its process id there.
    pub(crate) pid: String,
    /// Its version.
    pub(crate) version: String,
    /// Requests that it received.
    pub(crate) requests: u64,
    /// Requests that it answered with an error.
    pub(crate) errors: u64,
}

impl Process {
    fn of(found: &FoundService) -> Self {
        Self {
            service: found.short_name().to_owned(),
            of: found.of(),
            state: found.state().to_owned(),
            host: found.entry("host").to_owned(),
            pid: found.entry("pid").to_owned(),
            version: found.version.clone(),
            requests: found.endpoints.iter().map(|endpoint| endpoint.requests).sum(),
            errors: found.endpoints.iter().map(|endpoint| endpoint.errors).sum(),
        }
    }
}

/// The number of processes, and what is missing.
fn verdict(processes: &[Process]) -> String {
    let standby = processes.iter().filter(|process| process.state == "standby").count();
    let mut lines = vec![format!("{} processes, {standby} on standby", processes.len())];
    for service in REQUIRED {
        let is_active = |p: &&Process| p.service == service && p.state == "active";
        if processes.iter().find(is_active).is_none() {
            lines.push(format!("no {service} is active: start wattle-{service}"));
        }
    }
    lines.join("\n")
}

fn table(processes: &[Process]) -> Table {
    let columns = [
        ("SERVICE", Align::Left),
        ("OF", Align::Left),
        ("STATE", Align::Left),
        ("HOST", Align::Left),
        ("PROCESS", Align::Right),
        ("VERSION", Align::Left),
        ("REQUESTS", Align::Right),
        ("ERRORS", Align::Right),
    ];
    let mut table = Table::new(&columns);
    for process in processes {
        let Process { service, of, state, host, pid, version, requests, errors } = process.clone();
        let (requests, errors) = (requests.to_string(), errors.to_string());
        table.row(vec![service, of, state, host, pid, version, requests, errors]);
    }
    table
}

/// The processes that answer, in order.
pub(crate) async fn processes(bus: &Bus) -> anyhow::Result<Vec<Process>> {
    let found = bus.all_statistics(PATIENCE).await.context("the services cannot be listed")?;
    let mut processes: Vec<Process> = found.iter().map(Process::of).collect();
    processes.sort();
    Ok(processes)
}

/// Runs the command.
pub(crate) fn run(command: &Services) -> anyhow::Result<()> {
    block_on(async {
        let bus = command.connection.open().await?;
        job_records::require_storage(&bus, "services")?;
        let processes = processes(&bus).await?;
        if command.json {
            return print_json(&processes);
        }
        print(&verdict(&processes))?;
        if processes.is_empty() { Ok(()) } else { table(&processes).print() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(service: &str, state: &str) -> Process {
        let text = String::new;
        let (service, state) = (service.to_owned(), state.to_owned());
        let (requests, errors) = (0, 0);
        Process {
            service,
            of: text(),
            state,
            host: text(),
            pid: text(),
            version: text(),
            requests,
            errors,
        }
    }

    #[test]
    fn verdict_names_missing_services() {
        let all = [process("placer", "active"), process("placer", "standby")];
        let text = verdict(&all);
        assert!(text.starts_with("2 processes, 1 on standby\n"), "{text}");
        assert!(text.contains("no registry is active") && !text.contains("no placer"), "{text}");
        let text = verdict(&[process("placer", "standby"), process("registry", "active")]);
        assert!(text.ends_with("no placer is active: start wattle-placer"), "{text}");
    }
}
