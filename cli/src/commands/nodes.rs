//! `wattle nodes`: the GPUs of each node with power against cap, utilisation, memory, temperature and
//! jobs.
//!
//! Caps, clocks and sleep states are read from buckets. Power, utilisation and temperature come from
//! the profilers; without their answer the cells are empty.

mod advised;
mod conditions;
mod feeders;
mod filter;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use clap::Args;
use wattle_common::duration::span;
use wattle_common::messages::{AppliedGpu, NodeFault};
use wattle_common::subject::{Bucket, Reporter};
use wattle_common::total::Total;
use wattle_common::{JobId, NodeId, Power, Timestamp};
use wattle_runtime::bus::Bus;
use wattle_view::node::{Node, cap_when_read, desired, reported, summarize};

use crate::commands::jobs::filter as of_jobs;
use crate::connection::{Connection, block_on};
use crate::job_records;
use crate::output::{Align, Table, note, print, print_json, terminal_width, usage};
use crate::quantity::{power, watts};
use crate::summaries;
use filter::Filter;

/// List the nodes and their GPUs.
#[derive(Args)]
#[command(
    after_help = "POWER is the mean of the last second, CAP the power limit in force, BUSY the utilisation,\n\
        MEMORY the used and the total device memory. STATE is ok, lost (the GPU does not respond),\n\
        a condition of the GPU or fault of the node (it cannot start jobs), whose remedy stands\n\
        below the table, or the sleep state of the node.\n\n\
        With --power MEASURED adds the readings of the nodes on a feeder by their feeds, ≥ where one is missing,\n\
        EXPECTED is the draw by the plan in force, in which a silent node counts with its caps, and WORST the\n\
        highest if any single feeder is lost.\n\n\
        Examples:\n  wattle nodes\n  wattle nodes --wide\n  wattle nodes --state idle\n  \
        wattle nodes --node n0 --user ada\n  wattle nodes --power\n  wattle nodes --json"
)]
pub(crate) struct Nodes {
    #[command(flatten)]
    filter: Filter,
    /// All columns, and all jobs in full
    #[arg(long)]
    wide: bool,
    /// The feeders as a tree, with watts against their limits
    #[arg(long, conflicts_with_all = ["wide", "nodes", "states", "user"])]
    power: bool,
    #[command(flatten)]
    connection: Connection,
    /// Print the nodes' reports, or the feeders, as a JSON array
    #[arg(long)]
    json: bool,
}

/// The ids of the nodes that have reported.
pub(crate) async fn ids(bus: &Bus) -> anyhow::Result<BTreeSet<NodeId>> {
    let keys = bus.bucket(Bucket::Actual).await?.keys().await?;
    Ok(keys.iter().filter_map(|key| Reporter::parse(key)).map(|(_, node)| node).collect())
}

/// The error for the name of a node that has not reported.
pub(crate) fn unknown(bus: &Bus, node: &NodeId, known: &BTreeSet<NodeId>) -> anyhow::Error {
    let (cluster, known) = (bus.cluster(), of_jobs::listed(known.iter()));
    usage(format!("cluster {cluster} has no node `{node}`; it has {known}"))
}

/// The jobs of a user that have not ended.
async fn jobs_of(bus: &Bus, user: Option<&str>) -> anyhow::Result<BTreeSet<JobId>> {
    let Some(user) = user else { return Ok(BTreeSet::new()) };
    let filter = of_jobs::Filter::of_user(user);
    let listed = job_records::listed(bus, false, usize::MAX, &filter).await?;
    Ok(listed.records.into_iter().map(|record| record.spec.job).collect())
}

/// Every node that has reported, by id, without summaries.
pub(crate) async fn nodes(bus: &Bus) -> anyhow::Result<Vec<Node>> {
    let mut nodes: BTreeMap<NodeId, Node> = BTreeMap::new();
    for change in bus.bucket(Bucket::Actual).await?.watch().await?.initial().await {
        warn(reported(&mut nodes, &change.key, change.value.as_deref()));
    }
    for change in bus.bucket(Bucket::Desired).await?.watch().await?.initial().await {
        warn(desired(&mut nodes, &change.key, change.value.as_deref()));
    }
    Ok(nodes.into_values().collect())
}

fn warn(applied: Result<(), String>) {
    if let Err(error) = applied {
        note(&format!("warning: {error}"));
    }
}

/// The sum of the GPUs in two lines: `2 nodes, 8 GPUs: GPUs draw 1197 W of 2000 W allowed by caps`, `5
/// with jobs, 3 idle`.
pub(crate) fn verdict(nodes: &[Node]) -> String {
    let all = || nodes.iter().flat_map(|node| node.gpus().map(move |gpu| (node, gpu)));
    let count = all().count();
    let s = |count: usize| if count == 1 { "" } else { "s" };
    let mut text = format!("{} node{}, {count} GPU{}", nodes.len(), s(nodes.len()), s(count));
    // A sleeping node has no readings and draws none of this power.
    let awake = || all().filter(|(node, _)| node.sleep.is_none());
    let drawn: Total<Power> =
        awake().map(|(_, (_, reading))| reading.and_then(|read| read.power_mw_mean)).collect();
    if let Some(sum) = drawn.stated(power) {
        let caps: Total<Power> = all().map(|(_, (gpu, read))| cap_when_read(gpu, read)).collect();
        text.push_str(&format!(": GPUs draw {sum}"));
        // The caps of some GPUs bound nothing.
        if let Some(caps) = caps.known().filter(|_| caps.is_complete()) {
            text.push_str(&format!(" of {} allowed by caps", power(caps)));
        }
        if let Some(missing) = drawn.missing("GPU") {
            text.push_str(&format!(" ({missing})"));
        }
        let hosts: Power = nodes.iter().filter_map(Node::host_power).sum();
        if hosts > Power::ZERO {
            text.push_str(&format!(", hosts {}", power(hosts)));
        }
    }
    let has_jobs = |node: &Node, gpu: &AppliedGpu| !node.jobs_on(gpu.gpu).is_empty();
    let answering = || awake().filter(|(_, (gpu, _))| gpu.healthy);
    let busy = answering().filter(|(node, (gpu, _))| has_jobs(node, gpu)).count();
    let idle = answering()
        .filter(|(node, (gpu, _))| node.accepts_jobs(gpu) && !has_jobs(node, gpu))
        .count();
    let closed = answering().count() - busy - idle;
    let (lost, asleep) = (awake().count() - answering().count(), count - awake().count());
    text.push_str(&format!("\n{busy} with jobs, {idle} idle"));
    if asleep > 0 {
        text.push_str(&format!(", {asleep} asleep or waking"));
    }
    if closed > 0 {
        text.push_str(&format!(", {closed} without new jobs"));
    }
    if lost > 0 {
        text.push_str(&format!(", {lost} lost"));
    }
    text
}

/// The table of GPUs; the column of jobs fits into `width` unless `wide`.
pub(crate) fn table(nodes: &[Node], now: Timestamp, wide: bool, width: usize) -> Table {
    let switch = |node: &Node| node.power.as_ref()?.switch.as_ref().map(ToString::to_string);
    let switched = wide && nodes.iter().any(|node| switch(node).is_some());
    let limit = |node: &Node| node.power.as_ref()?.node_limit_mw;
    let limited = wide && nodes.iter().any(|node| limit(node).is_some());
    let advised = wide && nodes.iter().any(advised::is_advised);
    let mut columns = vec![
        ("NODE", Align::Left),
        ("GPU", Align::Right),
        ("TYPE", Align::Left),
        ("STATE", Align::Left),
        ("POWER W", Align::Right),
        ("CAP W", Align::Right),
        ("BUSY %", Align::Right),
        ("MEMORY GiB", Align::Right),
        ("TEMP °C", Align::Right),
    ];
    if switched {
        columns.push(("SWITCH", Align::Left));
    }
    if limited {
        columns.push(("NODE LIMIT W", Align::Right));
    }
    if advised {
        columns.extend(advised::COLUMNS);
    }
    if wide {
        columns.extend([
            ("CLOCK MHz", Align::Right),
            ("LIMIT MHz", Align::Right),
            ("REPORTED s", Align::Right),
        ]);
    }
    columns.push(("JOBS", Align::Left));
    let mut table = Table::new(&columns);
    for node in nodes {
        let Some(report) = &node.power else { continue };
        for (gpu, reading) in node.gpus() {
            let gib = |mib: u64| mib as f64 / 1_024.0;
            let memory = match (reading.and_then(|r| r.memory_used_mib), gpu.memory_mib) {
                (Some(used), Some(total)) => format!("{:.1}/{:.0}", gib(used), gib(total)),
                (None, Some(total)) => format!("{:.0}", gib(total)),
                (Some(used), None) => format!("{:.1}/?", gib(used)),
                (None, None) => "?".to_owned(),
            };
            let cap = cap_when_read(gpu, reading);
            let number = |value: Option<u64>| value.map(|v| v.to_string()).unwrap_or_default();
            let busy = reading.and_then(|r| r.utilization_gpu_percent_mean).map(u64::from);
            let temperature = reading.and_then(|r| r.temperature_c).map(u64::from);
            let mut row = vec![
                node.node.to_string(),
                gpu.gpu.to_string(),
                gpu.gpu_type.clone(),
                node.state(gpu).to_owned(),
                reading.and_then(|r| r.power_mw_mean).map(watts).unwrap_or_default(),
                cap.map_or("?".to_owned(), watts),
                number(busy),
                memory,
                number(temperature),
            ];
            if switched {
                row.push(switch(node).unwrap_or_default());
            }
            if limited {
                row.push(limit(node).map(watts).unwrap_or_default());
            }
            if advised {
                row.extend(advised::cells(gpu));
            }
            if wide {
                let clock = reading.and_then(|r| r.clock_mhz).map(|c| u64::from(c.as_mhz()));
                let limit = gpu.clock_mhz_max.map(|c| u64::from(c.as_mhz()));
                let age = now.since(report.at_us).as_secs();
                row.extend([number(clock), number(limit), age.to_string()]);
            }
            let jobs: Vec<&str> = node.jobs_on(gpu.gpu).into_iter().map(JobId::as_str).collect();
            row.push(jobs.join(" "));
            table.row(row);
        }
    }
    let jobs = columns.len() - 1;
    if wide { table } else { table.fit(jobs, width) }
}

/// Difference of a node's clock that is a fault, wall time: far above the delay of an answer.
const CLOCK_DIFFERENCE_MAX: Duration = Duration::from_secs(5);

/// Faults of a node that the table does not show. `rate`: seconds of the system's time per second of
/// wall time.
fn faults(node: &Node, now: Timestamp, rate: u32) -> Vec<String> {
    let id = &node.node;
    let mut faults = Vec::new();
    if let Some(at) = node.summary.as_ref().map(|summary| summary.at_us) {
        let difference = at.since(now).max(now.since(at));
        if difference > CLOCK_DIFFERENCE_MAX * rate {
            let side = if at > now { "ahead of" } else { "behind" };
            faults.push(format!(
                "{id}: its clock is {} s {side} this machine's: synchronise the clocks, then restart \
                 the services that started with the wrong time",
                difference.as_secs()
            ));
        }
    }
    faults.extend(advised::note(node));
    if node.power.is_none() {
        faults.push(format!("{id}: its power agent has not reported"));
    }
    if node.launcher.is_none() {
        faults.push(format!("{id}: its launcher has not reported"));
    }
    if node.summary.is_none() && node.sleep.is_none() {
        faults.push(format!("{id}: its profiler does not answer; readings are missing"));
    }
    let caps: Power = node.gpus().filter_map(|(gpu, _)| gpu.cap_mw).sum();
    if let Some(limit) = node.power.as_ref().and_then(|report| report.node_limit_mw)
        && caps > limit
    {
        faults.push(format!(
            "{id}: its caps add up to {}, above node_limit_w = {}: correct the limit, or the GPU that \
             refuses its cap",
            power(caps),
            limit.as_mw() / 1_000
        ));
    }
    if let Some(NodeFault { kind, error, since_us }) = node.fault() {
        let age = span(now.since(*since_us).as_secs_f64());
        let remedy = kind.remedy();
        faults.push(format!("{id}: it cannot start jobs for {age}: {error}: {remedy}"));
    }
    faults.extend(conditions::faults(node, now));
    faults.extend(lacks(node));
    for (gpu, reading) in node.gpus() {
        if let Some(error) = reading.and_then(|reading| reading.error.as_ref()) {
            faults.push(format!("{id} GPU {}: {error}", gpu.gpu));
        }
        if let Some(error) = &gpu.last_error {
            faults.push(format!("{id} GPU {}: setting refused: {error}", gpu.gpu));
        }
    }
    faults
}

/// What GPUs of a node do not support, where that has a consequence: one line for each.
fn lacks(node: &Node) -> Vec<String> {
    let gpus = |has: fn(&AppliedGpu) -> bool| {
        let gpus = node.gpus().filter(|(gpu, _)| has(gpu)).map(|(gpu, _)| gpu.gpu.to_string());
        let gpus: Vec<String> = gpus.collect();
        (!gpus.is_empty()).then(|| {
            format!(
                "{} GPU{} {}",
                node.node,
                if gpus.len() == 1 { "" } else { "s" },
                gpus.join(", ")
            )
        })
    };
    let no_meter = gpus(|gpu| gpu.no_meter);
    let no_cap = gpus(|gpu| gpu.cap_unsupported);
    let no_meter = no_meter
        .map(|gpus| format!("{gpus}: energy is not known: power and energy are not supported"));
    let no_cap = no_cap.map(|gpus| {
        format!("{gpus}: power caps are not supported: advised only; the node counts with its highest power")
    });
    no_meter.into_iter().chain(no_cap).collect()
}

/// Runs the command.
pub(crate) fn run(command: Nodes) -> anyhow::Result<()> {
    block_on(async {
        let bus = command.connection.open().await?;
        job_records::require_storage(&bus, "nodes")?;
        let mut nodes = nodes(&bus).await?;
        let ids = nodes.iter().map(|node| node.node.clone()).collect();
        summarize(&mut nodes, summaries::of(&bus, ids).await);
        if command.power {
            let now = wattle_runtime::clock::now();
            return feeders::show(&bus, &nodes, now, command.json).await;
        }
        let known: BTreeSet<NodeId> = nodes.iter().map(|node| node.node.clone()).collect();
        if let Some(node) = command.filter.unknown(&known).filter(|_| !known.is_empty()) {
            return Err(unknown(&bus, node, &known));
        }
        let jobs = jobs_of(&bus, command.filter.user.as_deref()).await?;
        let listed = command.filter.only(&nodes, &jobs);
        if command.json {
            return print_json(&listed);
        }
        if listed.is_empty() && command.filter.is_given() {
            note(&format!("no GPU of cluster {} matches", bus.cluster()));
            return Ok(());
        }
        if nodes.is_empty() {
            note(&format!(
                "no node of cluster {} has reported; --cluster selects another",
                bus.cluster()
            ));
            return Ok(());
        }
        print(&format!("{}\n\n", verdict(&listed)))?;
        let now = wattle_runtime::clock::now();
        table(&listed, now, command.wide, terminal_width()).print()?;
        let rate = wattle_runtime::clock::scale().rate;
        // A fault is one of the whole node.
        let is_listed = |node: &&Node| listed.iter().any(|listed| listed.node == node.node);
        let shown = nodes.iter().filter(is_listed);
        shown.flat_map(|node| faults(node, now, rate)).for_each(|fault| note(&fault));
        Ok(())
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use expect_test::expect;
    use wattle_common::Frequency;
    use wattle_common::id::SwitchId;
    use wattle_common::messages::{
        GpuSummary, LaunchState, NodeFaultKind, NodeSleep, NodeSummary, PowerReport, SleepState,
    };
    use wattle_testkit as testkit;

    use super::*;

    fn at(s: u64) -> Timestamp {
        Timestamp::from_s(s)
    }

    fn reading(gpu: u32, watts: u64, busy: u8) -> GpuSummary {
        GpuSummary {
            gpu,
            power_mw_mean: Some(Power::from_w(watts)),
            energy_mj_total: None,
            utilization_gpu_percent_mean: Some(busy),
            meter: None,
            memory_used_mib: Some(9_123),
            memory_free_mib: None,
            cap_mw_enforced: None,
            clock_mhz: Some(Frequency::from_mhz(1_380)),
            cap_mw: Some(Power::from_w(250)),
            temperature_c: Some(61),
            throttle_reasons: None,
            jobs: Vec::new(),
            error: None,
        }
    }

    /// A node with two jobs on one GPU and a lost GPU, and a sleeping node.
    pub(crate) fn two_nodes() -> Vec<Node> {
        let gpu = |index| AppliedGpu {
            cap_mw: Some(Power::from_w(250)),
            cap_mw_max: Some(Power::from_w(300)),
            ..testkit::applied_gpu(index, "v100")
        };
        let lost = AppliedGpu { healthy: false, ..gpu(2) };
        let running = |job: &str, gpus: [u32; 1]| {
            testkit::launched_job(job, 1, gpus, LaunchState::Running, at(1))
        };
        let summary = NodeSummary {
            node: testkit::node("n0"),
            at_us: at(99),
            span_ms: 1_000,
            observed_generation: 0,
            samples: 10,
            readings_failed: 1,
            gpus: vec![
                reading(0, 231, 97),
                reading(1, 41, 0),
                GpuSummary { error: Some("GPU is lost".to_owned()), ..reading(2, 0, 0) },
            ],
            jobs: Vec::new(),
            power_mw_host: None,
            ledger_from_us: None,
        };
        let report = PowerReport {
            switch: SwitchId::new("leaf-0").ok(),
            node_limit_mw: Some(Power::from_w(900)),
            ..testkit::power_report("n0", at(95), [gpu(0), gpu(1), lost])
        };
        let jobs = [running("python3-660bb7234354a", [0]), running("resnet-2", [0])];
        let awake = Node {
            power: Some(report),
            launcher: Some(testkit::launch_report("n0", at(98), 3, jobs)),
            summary: Some(summary),
            ..Node::new(testkit::node("n0"))
        };
        let asleep = Node {
            power: Some(testkit::power_report("n1", at(20), [gpu(0)])),
            launcher: Some(testkit::launch_report("n1", at(20), 3, [])),
            sleep: Some(NodeSleep { state: SleepState::Asleep, since_us: at(20) }),
            ..Node::new(testkit::node("n1"))
        };
        vec![awake, asleep]
    }

    #[test]
    fn table_fits_80_columns() {
        let nodes = two_nodes();
        let shown =
            format!("{}\n\n{}", verdict(&nodes), table(&nodes, at(100), false, 80).render(false));
        assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
        expect![[r#"
            2 nodes, 4 GPUs: GPUs draw 272 W of 1000 W allowed by caps
            1 with jobs, 1 idle, 1 asleep or waking, 1 lost

            NODE  GPU  TYPE  STATE   POWER W  CAP W  BUSY %  MEMORY GiB  TEMP °C  JOBS
            n0      0  v100  ok          231    250      97      8.9/32       61  python3-6…
            n0      1  v100  ok           41    250       0      8.9/32       61
            n0      2  v100  lost          0    250       0      8.9/32       61
            n1      0  v100  asleep             250                  32
        "#]]
        .assert_eq(&shown);
    }

    #[test]
    fn a_reading_that_a_gpu_lacks_is_absent_and_stated() {
        let mut nodes = two_nodes();
        let gpus = &mut nodes[0].summary.as_mut().unwrap().gpus;
        (gpus[0].power_mw_mean, gpus[0].memory_used_mib) = (None, None);
        let applied = &mut nodes[0].power.as_mut().unwrap().gpus;
        (applied[0].memory_mib, applied[0].no_meter) = (None, true);
        (applied[0].cap_unsupported, applied[1].cap_unsupported) = (true, true);
        let first = verdict(&nodes).lines().next().unwrap().to_owned();
        let expected = "2 nodes, 4 GPUs: GPUs draw at least 41 W of 1000 W allowed by caps \
                        (1 of 3 GPUs has no reading)";
        assert_eq!(first, expected);
        let table = table(&nodes, at(100), false, 80).render(false);
        let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(row[..7], ["n0", "0", "v100", "ok", "250", "97", "?"], "{table}");
        let shown = faults(&nodes[0], at(100), 1);
        let lines = [
            "n0 GPU 0: energy is not known: power and energy are not supported",
            "n0 GPUs 0, 1: power caps are not supported: advised only; the node counts with its highest power",
        ];
        assert!(lines.iter().all(|line| shown.contains(&(*line).to_owned())), "{shown:?}");
    }

    #[test]
    fn wide_table_has_clocks_and_jobs_in_full() {
        expect![[r#"
            NODE  GPU  TYPE  STATE   POWER W  CAP W  BUSY %  MEMORY GiB  TEMP °C  SWITCH  NODE LIMIT W  CLOCK MHz  LIMIT MHz  REPORTED s  JOBS
            n0      0  v100  ok          231    250      97      8.9/32       61  leaf-0           900       1380                      5  python3-660bb7234354a resnet-2
            n0      1  v100  ok           41    250       0      8.9/32       61  leaf-0           900       1380                      5
            n0      2  v100  lost          0    250       0      8.9/32       61  leaf-0           900       1380                      5
            n1      0  v100  asleep             250                  32                                                               80
        "#]].assert_eq(&table(&two_nodes(), at(100), true, 80).render(false));
    }

    #[test]
    fn faults_name_node_and_gpu() {
        let nodes = two_nodes();
        let shown: Vec<String> = nodes.iter().flat_map(|node| faults(node, at(100), 1)).collect();
        assert_eq!(shown, ["n0 GPU 2: GPU is lost"]);
        let mut faulty = nodes[0].clone();
        let error = "cannot write to /var/lib/wattle: no space left on device".to_owned();
        let fault = NodeFault { kind: NodeFaultKind::Disk, error, since_us: at(40) };
        faulty.launcher.as_mut().unwrap().fault = Some(fault);
        let shown = faults(&faulty, at(100), 1);
        assert!(
            shown[0].starts_with("n0: it cannot start jobs for 60 s: cannot write to"),
            "{shown:?}"
        );
        assert!(shown[0].contains("free the disk"), "{shown:?}");
        let verdict = verdict(&[faulty.clone()]);
        assert!(verdict.ends_with("1 with jobs, 0 idle, 1 without new jobs, 1 lost"), "{verdict}");
        let shown = table(&[faulty], at(100), false, 80).render(false);
        assert!(shown.contains("fault"), "{shown}");
        let silent = Node { summary: None, launcher: None, ..nodes[0].clone() };
        let shown = faults(&silent, at(100), 1);
        assert_eq!(shown[0], "n0: its launcher has not reported");
        assert_eq!(shown[1], "n0: its profiler does not answer; readings are missing");
        let mut limited = nodes[0].clone();
        limited.power.as_mut().unwrap().node_limit_mw = Some(Power::from_w(600));
        let shown = faults(&limited, at(100), 1);
        assert!(shown[0].starts_with("n0: its caps add up to 750 W, above node_limit_w = 600"));
        let wrong = |now| faults(&nodes[0], now, 1).first().cloned().unwrap_or_default();
        assert!(
            wrong(at(3_699)).contains("n0: its clock is 3600 s behind"),
            "{}",
            wrong(at(3_699))
        );
        assert!(wrong(at(9)).contains("n0: its clock is 90 s ahead of"), "{}", wrong(at(9)));
    }
}
