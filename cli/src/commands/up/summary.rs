//! The summary after a trace: the live run, a simulation of the same trace under the same policy and limits,
//! simulations under backfilling and FIFO without caps, and what was saved by the twin of the live run.

use std::time::Duration;

use serde::Serialize;
use wattle_common::duration::DurationUnit;
use wattle_common::job::JobPhase;
use wattle_common::messages::{
    JobRecord, LedgerEntry, TWIN_COUNTS_AFTER, TWIN_STATUS_EVERY, TwinStatus,
};
use wattle_common::subject::{StreamName, TWIN_STATUS};
use wattle_common::units::Carbon;
use wattle_common::{Budget, Energy, Timestamp, codec};
use wattle_runtime::bus::Bus;
use wattle_runtime::shell::Shutdown;
use wattle_simulator::text::hang;
use wattle_simulator::{CarbonSeries, PolicyOutcome, RunOptions};
use wattle_view::saved::{Saved, SavedBy};
use wattle_world::World;

use super::Up;
use super::hardware::Hardware;
use super::replay::Trace;
use crate::commands::jobs::records;
use crate::commands::simulate::one;
use crate::commands::{budget, saved};
use crate::output::{Align, Table, note, print, print_json};

/// Time limit for the last ledger entries, wall time; a node writes one per minute of simulated time.
const LEDGER_PATIENCE: Duration = Duration::from_secs(75);
/// Time limit for the figures of the twin, wall time; they have all jobs after about three minutes of simulated time.
const TWIN_PATIENCE: Duration = Duration::from_mins(5);
/// Time limit for either after an interrupt, wall time.
const HURRY: Duration = Duration::from_secs(2);
/// Polling interval, wall time.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The run that has ended.
pub(crate) struct Run<'a> {
    /// The command.
    pub(crate) command: &'a Up,
    /// Its trace.
    pub(crate) trace: &'a Trace,
    /// The budget that was set.
    pub(crate) budget: Option<Budget>,
    /// When the trace began.
    pub(crate) began: Timestamp,
}

/// The summary as JSON.
#[derive(Serialize)]
struct Summary {
    runs: Vec<Column>,
    /// What was saved by the twin of the live run; absent after an interrupt.
    saved: Option<Saved>,
}

/// One row of the table.
#[derive(Serialize)]
struct Column {
    run: String,
    jobs: usize,
    finished: usize,
    jct_s_mean: Option<f64>,
    makespan_s: f64,
    energy_kwh: Option<f64>,
    carbon_kg: Option<f64>,
}

impl Column {
    fn simulated(run: String, outcome: &PolicyOutcome) -> Self {
        Self {
            run,
            jobs: outcome.jobs,
            finished: outcome.finished,
            jct_s_mean: outcome.jct_s_mean,
            makespan_s: outcome.makespan_s,
            energy_kwh: Some(outcome.energy_kwh),
            carbon_kg: outcome.carbon_kg,
        }
    }
}

/// The part of an entry between two instants; its energy is distributed evenly over its span.
fn within(
    entry: &LedgerEntry,
    from: Timestamp,
    until: Timestamp,
) -> (Energy, Timestamp, Timestamp) {
    let (start, end) = (entry.from_us.max(from), entry.until_us.min(until));
    let whole = entry.until_us.since(entry.from_us).as_secs_f64();
    let all = entry.gpus() + entry.energy_mj_host;
    let share = if whole > 0.0 { end.since(start).as_secs_f64() / whole } else { 0.0 };
    (all.scale(share), start, end)
}

/// Reads the ledger until it reaches `until` on every node, or until the time limit.
async fn ledger(
    bus: &Bus,
    nodes: usize,
    until: Timestamp,
    shutdown: &Shutdown,
) -> Vec<LedgerEntry> {
    let patience = if shutdown.requested() { HURRY } else { LEDGER_PATIENCE };
    let mut entries: Vec<LedgerEntry> = Vec::new();
    let read = async {
        let mut consumer = bus.consume(StreamName::Ledger, "wattle-up").await?;
        while let Some(delivery) = consumer.next().await {
            if let Ok(entry) = codec::decode_json::<LedgerEntry>(&delivery.payload) {
                let known = |e: &LedgerEntry| e.node == entry.node && e.from_us == entry.from_us;
                if !entries.iter().any(known) {
                    entries.push(entry);
                }
            }
            delivery.ack().await?;
            let mut reached: Vec<_> =
                entries.iter().filter(|e| e.until_us >= until).map(|e| &e.node).collect();
            reached.sort_unstable();
            reached.dedup();
            if reached.len() >= nodes {
                break;
            }
        }
        anyhow::Ok(())
    };
    match tokio::time::timeout(patience, read).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => note(&format!("warning: the ledger cannot be read: {error:#}")),
        Err(_) => {
            note("warning: the ledger does not reach the end of the run; its energy is incomplete");
        }
    }
    entries
}

/// Whether the sums of a twin have all `finished` jobs, of which the last ended at `last`. The twin of a folder that is
/// used again may lack earlier ones.
fn has_all(status: &TwinStatus, finished: usize, last: Timestamp) -> bool {
    let counts = last + TWIN_COUNTS_AFTER;
    let jobs: u64 = status.all_rows().map(|row| row.sums.jobs).sum();
    status.at_us >= counts
        && (jobs >= finished as u64 || status.at_us >= counts + TWIN_STATUS_EVERY)
}

/// What was saved, once the twin has all `finished` jobs, of which the last ended at `last`.
async fn saved_in_all(
    bus: &Bus,
    finished: usize,
    last: Timestamp,
    shutdown: &Shutdown,
) -> Option<Saved> {
    let patience = if shutdown.requested() { HURRY } else { TWIN_PATIENCE };
    let read = async {
        loop {
            let status: Option<TwinStatus> = budget::read(bus, TWIN_STATUS).await?;
            if let Some(status) = status.filter(|status| has_all(status, finished, last)) {
                return Ok(saved::figures(bus, &status, SavedBy::Day).await?.0);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    let read: anyhow::Result<Saved> = match tokio::time::timeout(patience, read).await {
        Ok(read) => read,
        Err(_) => Err(anyhow::anyhow!("the placer has not stored them")),
    };
    let problem = |error| note(&format!("warning: no figures of `wattle saved`: {error:#}"));
    read.map_err(problem).ok()
}

fn live(
    policy: &str,
    records: &[&JobRecord],
    entries: &[LedgerEntry],
    carbon: Option<&CarbonSeries>,
    began: Timestamp,
) -> Column {
    let finished: Vec<&&JobRecord> =
        records.iter().filter(|record| record.phase == JobPhase::Finished).collect();
    let jct = |record: &&&JobRecord| {
        record.ended_at_us.map(|end| end.since(record.spec.submitted_at_us).as_secs_f64())
    };
    let times: Vec<f64> = finished.iter().filter_map(jct).collect();
    let mean = (!times.is_empty()).then(|| times.iter().sum::<f64>() / times.len() as f64);
    let first = records.iter().map(|r| r.spec.submitted_at_us).min().unwrap_or(began);
    let last = records.iter().filter_map(|r| r.ended_at_us).max().unwrap_or(first);
    let mut energy = Energy::ZERO;
    let mut emitted = Carbon::ZERO;
    for entry in entries {
        let (spent, from, until) = within(entry, first, last);
        energy += spent;
        if let Some(series) = carbon {
            emitted += series.emitted(spent, from.since(first), until.since(first));
        }
    }
    Column {
        run: format!("{policy}, live"),
        jobs: records.len(),
        finished: finished.len(),
        jct_s_mean: mean,
        makespan_s: last.since(first).as_secs_f64(),
        energy_kwh: (!entries.is_empty()).then(|| energy.as_kwh()),
        carbon_kg: carbon.filter(|_| !entries.is_empty()).map(|_| emitted.as_kg()),
    }
}

/// Saving relative to `before`: `12.3 %`; negative for an increase.
fn saving(now: Option<f64>, before: Option<f64>) -> String {
    match (now, before) {
        (Some(now), Some(before)) if before > 0.0 => {
            format!("{:.1} %", 100.0 * (before - now) / before)
        }
        _ => "?".to_owned(),
    }
}

/// Change relative to `before`: `-12.3 %`.
fn change(now: Option<f64>, before: Option<f64>) -> String {
    match (now, before) {
        (Some(now), Some(before)) if before > 0.0 => {
            format!("{:+.1} %", 100.0 * (now - before) / before)
        }
        _ => "?".to_owned(),
    }
}

fn table(columns: &[Column]) -> Table {
    let mut table = Table::new(&[
        ("", Align::Left),
        ("jobs finished", Align::Right),
        ("mean completion", Align::Right),
        ("makespan", Align::Right),
        ("energy", Align::Right),
        ("carbon", Align::Right),
    ]);
    let completion = DurationUnit::of_all(columns.iter().filter_map(|column| column.jct_s_mean));
    let makespan = DurationUnit::of_all(columns.iter().map(|column| column.makespan_s));
    for column in columns {
        let number = |value: Option<f64>, unit: &str| {
            value.map_or("-".to_owned(), |value| format!("{value:.2} {unit}"))
        };
        table.row(vec![
            column.run.clone(),
            format!("{} of {}", column.finished, column.jobs),
            column.jct_s_mean.map_or("-".to_owned(), |s| completion.format(s)),
            makespan.format(column.makespan_s),
            number(column.energy_kwh, "kWh"),
            number(column.carbon_kg, "kg"),
        ]);
    }
    table
}

/// Prints the summary.
pub(crate) async fn show(
    run: Run<'_>,
    bus: &Bus,
    hardware: &Hardware,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let Run { command, trace, mut budget, began } = run;
    let all = records(bus).await?;
    let ours: Vec<&JobRecord> = all.iter().filter(|r| trace.ids().contains(&r.spec.job)).collect();
    let last = ours.iter().filter_map(|r| r.ended_at_us).max().unwrap_or(began);
    note("reading the ledger and simulating the same trace");
    let entries = ledger(bus, hardware.nodes.len(), last, shutdown).await;
    let carbon = trace.scenario.carbon.as_ref();
    let policy = &command.policy;
    let mut columns = vec![live(policy, &ours, &entries, carbon, began)];
    let world = World::builtin();
    let (share, tenants_max) = (command.share, command.tenants_max);
    let fifo_options = RunOptions { share, tenants_max, ..RunOptions::default() };
    let aim = command.aim_bound()?;
    if let Some(series) = budget.as_mut().and_then(|budget| budget.power_series.as_mut()) {
        *series = series.counted_from(began);
    }
    let same_options =
        RunOptions { aim, budget, nodes_sleep: command.sleep, ..fifo_options.clone() };
    let same = one(&world, &trace.scenario, policy, &same_options)?;
    columns.push(Column::simulated(format!("{policy}, simulated"), &same));
    let mut limits = None;
    for baseline in ["backfill", "fifo"] {
        let outcome = one(&world, &trace.scenario, baseline, &fifo_options)?;
        limits = limits.or(outcome.time_limits().map(|limits| format!("{baseline}: {limits}")));
        columns.push(Column::simulated(format!("{baseline} without caps, simulated"), &outcome));
    }
    let finished = all.iter().filter(|record| record.phase == JobPhase::Finished).count();
    let is_whole = columns[0].finished >= columns[3].finished;
    let saved = if is_whole { saved_in_all(bus, finished, last, shutdown).await } else { None };
    if command.json {
        return print_json(&Summary { runs: columns, saved });
    }
    print("")?;
    table(&columns).print()?;
    let [live, same, _, fifo] = &columns[..] else { unreachable!("four were pushed") };
    if !is_whole {
        return print("the run was interrupted; live and simulated results are not comparable");
    }
    print(&format!(
        "live against simulated: mean completion {}, energy {}",
        change(live.jct_s_mean, same.jct_s_mean),
        change(live.energy_kwh, same.energy_kwh),
    ))?;
    print(&format!(
        "saving against fifo: energy {}, carbon {}, mean completion {}",
        saving(live.energy_kwh, fifo.energy_kwh),
        saving(live.carbon_kg, fifo.carbon_kg),
        saving(live.jct_s_mean, fifo.jct_s_mean),
    ))?;
    if let Some(limits) = limits {
        print(&hang(&limits, 2))?;
    }
    let awake = if command.sleep {
        format!("unused ones asleep under {policy}")
    } else {
        "all awake".to_owned()
    };
    print(&format!(
        "energy: whole nodes, {awake}, from the first submission to the last completion"
    ))?;
    let Some(saved) = saved else { return Ok(()) };
    print("by the twin of the live run, as in `wattle saved`:")?;
    saved.verdict().split("; ").try_for_each(|line| print(&format!("  {line}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattle_common::NodeId;

    #[test]
    fn entry_counts_only_within_the_run() {
        let entry = LedgerEntry {
            node: NodeId::new("n0").unwrap(),
            from_us: Timestamp::from_s(60),
            until_us: Timestamp::from_s(120),
            energy_mj_gpus: vec![Some(Energy::from_j(500)), None],
            energy_mj_host: Energy::from_j(100),
            jobs: Vec::new(),
            unknown: Vec::new(),
        };
        let spent =
            |from, until| within(&entry, Timestamp::from_s(from), Timestamp::from_s(until)).0;
        assert_eq!(spent(0, 1_000), Energy::from_j(600));
        assert_eq!(spent(90, 1_000), Energy::from_j(300));
        assert_eq!(spent(200, 1_000), Energy::ZERO);
    }

    #[test]
    fn changes_are_signed() {
        assert_eq!(change(Some(88.0), Some(100.0)), "-12.0 %");
        assert_eq!(change(None, Some(100.0)), "?");
        assert_eq!(saving(Some(88.0), Some(100.0)), "12.0 %");
        assert_eq!(saving(Some(101.0), Some(100.0)), "-1.0 %");
    }
}
