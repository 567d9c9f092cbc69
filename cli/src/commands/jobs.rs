//! `wattle jobs`: the jobs with power, energy, progress and predicted rest.
//!
//! The placer sends the part of the list that is shown; without a placer, operators read it from the
//! bucket. Power and the energy of the last minute come from the profilers of the nodes; without their
//! answer the cells are empty.

pub(crate) mod filter;
pub(crate) mod order;

use std::collections::BTreeSet;
use std::str::FromStr;

use clap::Args;
use wattle_common::job::JobPhase;
use wattle_common::messages::{ExpectedInstant, JobCounts, JobRecord};
use wattle_common::total::Total;
use wattle_common::{Energy, NodeId, Power, Timestamp};
use wattle_runtime::bus::Bus;

use crate::commands::nodes;
use crate::connection::{Connection, block_on};
use crate::date;
use crate::job_end;
use crate::job_records::{self, Listed};
use crate::output::{Align, Table, note, print, print_json, terminal_width};
use crate::quantity::{EnergyUnit, clock, energy, percent, power, watts};
use crate::summaries;
use crate::verdict::BudgetValues;
use filter::Filter;
use order::SortKey;
use wattle_view::Summaries;
use wattle_view::expected;
use wattle_view::job::{self, JobView};

/// List the jobs with power, energy, progress and predicted rest.
#[derive(Args)]
#[command(
    after_help = "POWER is the power attributed to the job, ENERGY its energy so far, both of its GPUs.\n\
        REST is the predicted run time that remains, without waiting, as [days-][hours:]minutes:seconds.\n\
        EXPECTED is when a queued job is expected to start and a running one to end, if no further job is submitted;\n\
        --wide has the 90 % intervals. \
        RAN is the time with GPUs, WAITED the time without, summed over all starts. DEADLINE is the time left.\n\
        A `?` behind a USER: no key has proven the identity.\n\
        An observed job runs under early observation: its placement may still be undone.\n\
        Jobs with GPUs are first, then queued, then ended ones; the newest first.\n\n\
        Examples:\n  wattle jobs\n  wattle jobs --all --wide\n  wattle jobs --user ada --phase failed\n  \
        wattle jobs --node n0 --sort energy\n  wattle jobs --limit 500\n  wattle jobs --all --json"
)]
pub(crate) struct Jobs {
    /// Include finished, failed and cancelled jobs
    #[arg(long)]
    all: bool,
    /// Most jobs to list, or `all` [default: 100; all with --json]
    #[arg(long, value_name = "JOBS")]
    limit: Option<Limit>,
    #[command(flatten)]
    filter: Filter,
    /// Order of the jobs; those without the quantity are last
    #[arg(long, value_name = "ORDER", value_enum, default_value_t)]
    sort: SortKey,
    /// All columns, and names in full
    #[arg(long)]
    wide: bool,
    #[command(flatten)]
    connection: Connection,
    /// Print the job records as a JSON array, with power_mw, energy_mj_total, done and rest_ms
    #[arg(long)]
    json: bool,
}

/// Jobs listed by default.
const LIMIT_DEFAULT: usize = 100;

/// A number of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit(usize);

impl FromStr for Limit {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match (text, text.parse()) {
            ("all", _) => Ok(Self(usize::MAX)),
            (_, Ok(jobs @ 1..)) => Ok(Self(jobs)),
            _ => Err("give a number of jobs from 1, or `all`"),
        }
    }
}

/// Every job's record, in the order of submission.
pub(crate) async fn records(bus: &Bus) -> anyhow::Result<Vec<JobRecord>> {
    let mut records = job_records::all(bus).await?;
    sort(&mut records);
    Ok(records)
}

/// Sorts records by submission.
pub(crate) fn sort(records: &mut [JobRecord]) {
    records.sort_by(|a, b| {
        (a.spec.submitted_at_us, &a.spec.job).cmp(&(b.spec.submitted_at_us, &b.spec.job))
    });
}

/// The numbers of jobs, their power and their energy, if known: `3 running, 1 queued`, `running jobs draw
/// 840 W` and `listed jobs used 2.31 kWh`.
pub(crate) fn verdict(views: &[JobView]) -> (String, [Option<String>; 2]) {
    let mut counts = JobCounts::new();
    for view in views {
        *counts.entry(view.record.phase).or_default() += 1;
    }
    (job::counts(&counts), consumption(views, true))
}

/// Power and energy of jobs. `complete`: every running job is among them.
fn consumption(views: &[JobView], complete: bool) -> [Option<String>; 2] {
    let running = views.iter().filter(|view| view.is_running());
    let drawn: Total<Power> = running.clone().map(|view| view.power_mw).collect();
    let mut spent = Total::<Energy>::default();
    for view in views {
        match (view.energy_mj_total, view.unmetered_ms_total) {
            (None, 0) => {}
            (energy, 0) => spent.add(energy),
            (energy, _) => spent.add_at_least(energy),
        }
    }
    let which = if complete { "running" } else { "listed" };
    let verb = if running.count() == 1 { "job draws" } else { "jobs draw" };
    let with = |text: String, missing: Option<String>| match missing {
        Some(missing) => format!("{text} ({missing})"),
        None => text,
    };
    let draw = drawn.stated(power).map(|power| format!("{which} {verb} {power}"));
    let used = spent.stated(energy).map(|energy| format!("listed jobs used {energy}"));
    [
        draw.map(|text| with(text, drawn.missing("job"))),
        used.map(|text| with(text, spent.missing("job"))),
    ]
}

/// Columns of every table of jobs.
const COLUMNS: usize = 7;

/// The table of jobs; the column of names fits into `width` unless `wide`.
pub(crate) fn table(views: &[JobView], now: Timestamp, wide: bool, width: usize) -> Table {
    let table = columns(views, now, wide);
    if wide { table } else { table.fit(0, width) }
}

/// The table of jobs with as many columns as have room beside whole names; only the names of a table without
/// further columns are cut.
pub(crate) fn table_within(views: &[JobView], now: Timestamp, width: usize) -> Table {
    columns(views, now, true).narrowed(COLUMNS, width).fit(0, width)
}

fn columns(views: &[JobView], now: Timestamp, wide: bool) -> Table {
    let spent = views.iter().filter_map(|view| view.energy_mj_total);
    let unit = EnergyUnit::of(spent.max().unwrap_or_default());
    let heading = match unit.name() {
        "kWh" => "ENERGY kWh",
        _ => "ENERGY Wh",
    };
    let mut columns = vec![
        ("JOB", Align::Left),
        ("PHASE", Align::Left),
        ("GPUS", Align::Right),
        ("POWER W", Align::Right),
        (heading, Align::Right),
        ("DONE", Align::Right),
        ("REST", Align::Right),
    ];
    let has_expected =
        views.iter().any(|view| expected::next(&view.record, |_| String::new()).is_some());
    columns.extend(has_expected.then_some(("EXPECTED UTC", Align::Left)));
    let has_deadline = views.iter().any(|view| view.record.spec.deadline_at_us.is_some());
    if wide {
        columns.extend(has_deadline.then_some(("DEADLINE", Align::Right)));
        if has_expected {
            columns.extend([("START BETWEEN", Align::Left), ("END BETWEEN", Align::Left)]);
        }
        columns.extend([
            ("RAN", Align::Right),
            ("WAITED", Align::Right),
            ("STEPS/s", Align::Right),
            ("SETTING", Align::Left),
            ("PLACEMENT", Align::Left),
            ("WORKLOAD", Align::Left),
            ("USER", Align::Left),
            ("PROJECT", Align::Left),
        ]);
    }
    let mut table = Table::new(&columns);
    for view in views {
        let record = &view.record;
        let mut row = vec![
            record.spec.job.to_string(),
            view.phase(),
            view.gpus(),
            view.power_mw.map(watts).unwrap_or_default(),
            energy_cell(view, unit),
            view.done.map(percent).unwrap_or_default(),
            view.rest().map(clock).unwrap_or_default(),
        ];
        let time = |at| date::near(at, now);
        let next = || expected::next(record, time).unwrap_or_default();
        row.extend(has_expected.then(next));
        if wide {
            let rate = record.steps_per_s.filter(|_| view.is_running());
            let setting = record.placement.as_ref().map(|_| record.setting.to_string());
            let placement = record.placement.as_ref().map(ToString::to_string);
            let workload = record.spec.workload.as_ref().map(ToString::to_string);
            let deadline = || view.deadline(now, clock).unwrap_or_default();
            row.extend(has_deadline.then(deadline));
            if has_expected {
                let interval = |of: &ExpectedInstant| {
                    format!("{} and {}", time(of.from_us), time(of.until_us))
                };
                let both = [expected::start(record), expected::end(record)];
                row.extend(both.map(|of| of.as_ref().map(interval).unwrap_or_default()));
            }
            row.extend([
                view.ran().map(clock).unwrap_or_default(),
                view.waited().map(clock).unwrap_or_default(),
                rate.map(|rate| format!("{rate:.2}")).unwrap_or_default(),
                setting.unwrap_or_default(),
                placement.unwrap_or_default(),
                workload.unwrap_or_default(),
                user(record),
                record.spec.project.as_ref().map(ToString::to_string).unwrap_or_default(),
            ]);
        }
        table.row(row);
    }
    table
}

/// The energy of a job: `≥` before a lower bound.
fn energy_cell(view: &JobView, unit: EnergyUnit) -> String {
    match (view.energy_mj_total, view.unmetered_ms_total) {
        (Some(energy), 0) => unit.number(energy),
        (Some(energy), _) => format!("≥ {}", unit.number(energy)),
        (None, 0) => String::new(),
        (None, _) => "not known".to_owned(),
    }
}

/// Why the energy of jobs is not known, or only in part; one line each.
fn missing_energy(views: &[JobView]) -> impl Iterator<Item = String> {
    views.iter().filter_map(|view| {
        Some(format!("energy of {}: {}", view.record.spec.job, view.energy_missing()?))
    })
}

/// Jobs of which a line below the table states the same.
const LINES_MAX: usize = 8;

/// What the further jobs with a stop without a checkpoint are, one and several.
const UNSAVED_MORE: [&str; 2] =
    ["job was stopped without a checkpoint", "jobs were stopped without a checkpoint"];

/// The first lines, and one with the number of the further ones: `what` of one and of several.
fn bounded(mut lines: Vec<String>, what: [&str; 2]) -> Vec<String> {
    let hidden = lines.len().saturating_sub(LINES_MAX);
    lines.truncate(LINES_MAX);
    let more = || format!("{hidden} more {}", what[usize::from(hidden > 1)]);
    lines.extend((hidden > 0).then(more));
    lines
}

/// The jobs that lost work because a stop left no checkpoint; one line each.
fn unsaved_stops(views: &[JobView]) -> Vec<String> {
    let of = |view: &JobView| {
        let job = &view.record.spec.job;
        Some(format!("{job}: {}; `wattle explain {job}` has the cause", view.stops_unsaved()?))
    };
    views.iter().filter_map(of).collect()
}

/// Why the failed jobs failed; one line each.
fn failures(views: &[JobView]) -> Vec<String> {
    let failed = views.iter().map(|view| &view.record);
    let failed = failed.filter(|record| record.phase == JobPhase::Failed && record.error.is_some());
    failed.map(job_end::text).collect()
}

/// An error if the cluster has no node of the filter's name; nothing where the nodes are not to be read.
pub(crate) async fn require_known_node(bus: &Bus, filter: &Filter) -> anyhow::Result<()> {
    let Some(node) = filter.node().filter(|_| job_records::reads_storage(bus)) else {
        return Ok(());
    };
    let known = nodes::ids(bus).await?;
    if known.is_empty() || known.contains(node) {
        return Ok(());
    }
    Err(nodes::unknown(bus, node, &known))
}

/// That ended jobs are not listed, with the number of the failed ones.
fn hidden_ended(ended: &JobCounts) -> Option<String> {
    let (jobs, are) = match ended.values().sum::<u64>() {
        0 => return None,
        1 => ("1 ended job".to_owned(), "is"),
        jobs => (format!("{jobs} ended jobs"), "are"),
    };
    let failed = ended.get(&JobPhase::Failed).copied().unwrap_or(0);
    let failed = if failed > 0 { format!(" ({failed} failed)") } else { String::new() };
    Some(format!("{jobs}{failed} {are} hidden; --all shows them"))
}

/// The owner, with a `?` if no key has proven its identity.
fn user(record: &JobRecord) -> String {
    let mark = if record.user_proven { "" } else { "?" };
    record.spec.user.as_ref().map(|user| format!("{user}{mark}")).unwrap_or_default()
}

/// Runs the command.
pub(crate) fn run(command: Jobs) -> anyhow::Result<()> {
    block_on(async {
        let bus = command.connection.open().await?;
        let default = if command.json { usize::MAX } else { LIMIT_DEFAULT };
        let limit = command.limit.map_or(default, |limit| limit.0);
        let filter = &command.filter;
        let shows_ended = command.all || filter.names_ended();
        let is_sorted = command.sort != SortKey::default();
        // Every job has its place in another order.
        let read = if is_sorted { usize::MAX } else { limit };
        let Listed { records, mut counts } =
            job_records::listed(&bus, shows_ended, read, filter).await?;
        if records.is_empty() {
            require_known_node(&bus, filter).await?;
        }
        let summaries = summaries::of(&bus, nodes_of(&records)).await;
        let now = wattle_runtime::clock::now();
        let mut views = views(records, &summaries, now);
        command.sort.sort(&mut views);
        views.truncate(limit);
        if command.json {
            return print_json(&views);
        }
        let ended = counts.iter().filter(|(phase, _)| phase.is_final());
        let ended: JobCounts = ended.map(|(phase, jobs)| (*phase, *jobs)).collect();
        if views.is_empty() && filter.is_given() {
            let ended = if shows_ended { "" } else { "; --all includes ended ones" };
            let all = job_records::all(&bus).await?;
            let owners = filter.owners(all.iter()).map(|owners| format!("; {owners}"));
            let owners = owners.unwrap_or_default();
            note(&format!("no job of cluster {} matches{ended}{owners}", bus.cluster()));
            return Ok(());
        }
        if views.is_empty() && ended.values().all(|jobs| *jobs == 0) {
            note(&format!("cluster {} has no jobs; --cluster selects another", bus.cluster()));
            return Ok(());
        }
        if !shows_ended {
            counts.retain(|phase, _| !phase.is_final());
        }
        print(&job::counts(&counts))?;
        let hidden = counts.values().sum::<u64>().saturating_sub(views.len() as u64);
        let with_gpus = counts.iter().filter(|(phase, _)| phase.has_gpus()).map(|(_, jobs)| jobs);
        let running = views.iter().filter(|view| view.is_running()).count() as u64;
        let complete = running >= with_gpus.sum::<u64>();
        let consumption: Vec<String> =
            consumption(&views, complete).into_iter().flatten().collect();
        if !consumption.is_empty() {
            print(&consumption.join("; "))?;
        }
        let listed = views.iter().map(|view| &view.record);
        for finding in BudgetValues::read(&bus).await.stored(listed, now).findings() {
            print(&finding.text)?;
        }
        if !views.is_empty() {
            print("")?;
            table(&views, now, command.wide, terminal_width()).print()?;
            missing_energy(&views).for_each(|line| note(&line));
            let stops = bounded(unsaved_stops(&views), UNSAVED_MORE);
            let failures = bounded(failures(&views), ["job has failed", "jobs have failed"]);
            stops.iter().chain(&failures).for_each(|line| note(line));
        }
        if hidden > 0 {
            let shown = views.len();
            note(&format!("{shown} jobs are listed, {hidden} more are not; --limit all lists all"));
        }
        if !shows_ended {
            hidden_ended(&ended).iter().for_each(|line| note(line));
        }
        Ok(())
    })
}

/// The nodes whose profilers meter one of these jobs.
fn nodes_of(records: &[JobRecord]) -> Vec<NodeId> {
    let running = records.iter().filter(|record| !record.phase.is_final());
    let shares = running.filter_map(|record| record.placement.as_ref()).flat_map(|p| &p.shares);
    let nodes: BTreeSet<&NodeId> = shares.map(|share| &share.node).collect();
    nodes.into_iter().cloned().collect()
}

/// The views of the records.
fn views(records: Vec<JobRecord>, summaries: &Summaries, now: Timestamp) -> Vec<JobView> {
    records.into_iter().map(|record| JobView::new(record, summaries, now)).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use expect_test::expect;
    use wattle_common::messages::{JobSummary, NodeSummary};
    use wattle_testkit as testkit;

    use super::*;

    fn at(s: u64) -> Timestamp {
        Timestamp::from_s(s)
    }

    /// Four jobs in different phases on two nodes.
    pub(crate) fn records() -> Vec<JobRecord> {
        let running = JobRecord {
            placement: Some(testkit::placement([("n0", [0, 1])])),
            started_at_us: Some(at(600)),
            phase_since_us: at(600),
            step: Some(4_500),
            steps_total: Some(10_000),
            step_at_us: Some(at(4_200)),
            steps_per_s: Some(1.25),
            energy_mj: Some(Energy::from_j(1_620_000)),
            energy_until_us: [(testkit::node("n0"), at(4_140))].into(),
            ..testkit::job_record(testkit::job_spec("python3-660bb7234354a", 2), JobPhase::Running)
        };
        let mut observed = JobRecord {
            placement: Some(testkit::placement([("n1", [0])])),
            observing: true,
            started_at_us: Some(at(4_000)),
            phase_since_us: at(4_000),
            ..testkit::job_record(testkit::job_spec("t-2", 1), JobPhase::Running)
        };
        observed.spec.workload = Some(testkit::workload("bert-b8"));
        let mut queued = testkit::job_record(
            testkit::job_spec(
                "a-job-with-a-name-of-the-greatest-length-that-an-id-can-have-001",
                8,
            ),
            JobPhase::Queued,
        );
        queued.spec.gpu_type = Some("p100".to_owned());
        queued.spec.gpus.min = 4;
        let failed = JobRecord {
            exit_code: Some(137),
            started_at_us: Some(at(100)),
            ended_at_us: Some(at(400)),
            energy_mj: Some(Energy::from_j(12_000)),
            ..testkit::job_record(testkit::job_spec("t-4", 1), JobPhase::Failed)
        };
        vec![running, observed, queued, failed]
    }

    /// The last summary of each node.
    pub(crate) fn last_summaries() -> Summaries {
        let job = |job: &str, watts, joules| JobSummary {
            job: testkit::job(job),
            admission: None,
            power_mw_mean: Some(Power::from_w(watts)),
            energy_mj_open: Some(Energy::from_j(joules)),
            unmetered_ms_open: 0,
        };
        let summary = |node: &str, job| NodeSummary {
            node: testkit::node(node),
            at_us: at(4_200),
            span_ms: 1_000,
            observed_generation: 0,
            samples: 10,
            readings_failed: 0,
            gpus: Vec::new(),
            jobs: vec![job],
            power_mw_host: None,
            ledger_from_us: Some(at(4_140)),
        };
        let all = [
            summary("n0", job("python3-660bb7234354a", 371, 22_000)),
            summary("n1", job("t-2", 164, 9_840)),
        ];
        all.into_iter().map(|summary| (summary.node.clone(), summary)).collect()
    }

    #[test]
    fn stops_without_a_checkpoint_are_stated_below_the_table() {
        let of = |stops: &[u32]| {
            let record = |(n, stops_unsaved): (usize, &u32)| JobRecord {
                stops_unsaved: *stops_unsaved,
                ..testkit::job_record(testkit::job_spec(&format!("j{n}"), 1), JobPhase::Queued)
            };
            let records = stops.iter().enumerate().map(record).collect();
            let lines = unsaved_stops(&views(records, &Summaries::new(), at(4_200)));
            bounded(lines, UNSAVED_MORE)
        };
        assert_eq!(of(&[0, 0]), Vec::<String>::new());
        assert_eq!(
            of(&[0, 2]),
            ["j1: 2 stops without a checkpoint: its work since the checkpoint before was lost; \
              `wattle explain j1` has the cause"]
        );
        let many = of(&[1; 10]);
        assert_eq!(many.len(), LINES_MAX + 1);
        assert_eq!(many.last().unwrap(), "2 more jobs were stopped without a checkpoint");
    }

    #[test]
    fn failed_jobs_are_listed_with_the_cause() {
        let mut records = records();
        records[3].error = Some("exit code 137 on n0".to_owned());
        let lines = failures(&views(records, &Summaries::new(), at(4_200)));
        assert_eq!(lines, ["t-4 has failed: exit code 137 on n0"]);
    }

    #[test]
    fn ended_jobs_that_are_not_listed_are_counted_with_the_failed_ones() {
        let of = |jobs: &[(JobPhase, u64)]| hidden_ended(&jobs.iter().copied().collect());
        assert_eq!(of(&[(JobPhase::Failed, 0)]), None);
        let one = of(&[(JobPhase::Finished, 1)]);
        assert_eq!(one.as_deref(), Some("1 ended job is hidden; --all shows them"));
        let some = of(&[(JobPhase::Finished, 3), (JobPhase::Failed, 2)]);
        assert_eq!(some.as_deref(), Some("5 ended jobs (2 failed) are hidden; --all shows them"));
    }

    #[test]
    fn table_fits_80_columns() {
        let views = views(records(), &last_summaries(), at(4_200));
        let (counts, consumption) = verdict(&views);
        let table = table(&views, at(4_200), false, 80).render(false);
        let shown = format!("{counts}\n{}\n\n{table}", consumption.map(Option::unwrap).join("; "));
        assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
        expect![[r#"
            2 running, 1 queued, 1 failed
            running jobs draw 535 W; listed jobs used 462 Wh

            JOB                   PHASE              GPUS  POWER W  ENERGY Wh  DONE     REST
            python3-660bb723435…  running               2      371      456.1  45 %  1:13:20
            t-2                   observed              1      164        2.7
            a-job-with-a-name-o…  queued        4..8 p100
            t-4                   failed (137)          1                 3.3
        "#]]
        .assert_eq(&shown);
    }

    #[test]
    fn energy_without_a_meter_is_never_zero() {
        let mut summaries = last_summaries();
        let unmetered = &mut summaries.get_mut(&testkit::node("n1")).unwrap().jobs[0];
        (unmetered.power_mw_mean, unmetered.energy_mj_open) = (None, None);
        unmetered.unmetered_ms_open = 60_000;
        let mut records = records();
        records[3].unmetered_ms = 5_000;
        let views = views(records, &summaries, at(4_200));
        let table = table(&views, at(4_200), false, 80).render(false);
        let cells = |row: usize| table.lines().nth(row).unwrap().to_owned();
        assert!(cells(2).contains("not known") && !table.contains("0.0"), "{table}");
        assert!(cells(4).contains("≥ 3.3"), "{table}");
        let (_, [draw, used]) = verdict(&views);
        let draw = draw.unwrap();
        assert_eq!(draw, "running jobs draw at least 371 W (1 of 2 jobs has no reading)");
        assert_eq!(used.unwrap(), "listed jobs used at least 459 Wh (2 of 3 jobs have no reading)");
        let lines: Vec<String> = missing_energy(&views).collect();
        let expected = [
            "energy of t-2: power and energy are not supported",
            "energy of t-4: power and energy are not supported by some of its GPUs",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn wide_table_has_names_in_full() {
        let mut records = records();
        records.retain(|record| !record.phase.is_final());
        let views = views(records, &last_summaries(), at(4_200));
        expect![[r#"
            JOB                                                               PHASE          GPUS  POWER W  ENERGY Wh  DONE     REST      RAN   WAITED  STEPS/s  SETTING  PLACEMENT  WORKLOAD  USER  PROJECT
            python3-660bb7234354a                                             running           2      371      456.1  45 %  1:13:20  1:00:00    10:00     1.25  default  n0:0,1
            t-2                                                               observed          1      164        2.7                    3:20  1:06:40           default  n1:0       bert-b8
            a-job-with-a-name-of-the-greatest-length-that-an-id-can-have-001  queued    4..8 p100                                              1:10:00
        "#]].assert_eq(&table(&views, at(4_200), true, 80).render(false));
    }

    #[test]
    fn deadlines_have_a_column_where_there_are_some() {
        let mut records = records();
        records.truncate(2);
        records[0].spec.deadline_at_us = Some(at(9_000));
        records[1].spec.deadline_at_us = Some(at(4_000));
        let views = views(records, &last_summaries(), at(4_200));
        let text = table(&views, at(4_200), true, 80).render(false);
        for cell in ["DEADLINE", "  1:20:00  ", "  late 3:20  "] {
            assert!(text.contains(cell), "{cell}: {text}");
        }
    }
}
