//! `wattle nodes`: the nodes with their GPUs, caps, clocks, sleep states and jobs.

use std::collections::BTreeMap;

use clap::Args;
use serde::Serialize;
use wattle_common::messages::{LaunchReport, LaunchState, NodeDesired, NodeSleep, PowerReport};
use wattle_common::subject::{Bucket, Reporter};
use wattle_common::{JobId, NodeId};
use wattle_runtime::bus::Bus;

use crate::connection::{Connection, block_on};
use crate::output::{Align, Table, note, print_json, span};

/// List the nodes and their GPUs.
#[derive(Args)]
#[command(after_help = "Examples:\n  wattle nodes\n  wattle nodes --json")]
pub(crate) struct Nodes {
    #[command(flatten)]
    connection: Connection,
    /// Print the nodes' reports as a JSON array
    #[arg(long)]
    json: bool,
}

/// The reports of a node.
#[derive(Serialize)]
pub(crate) struct Node {
    /// Its id.
    pub(crate) node: NodeId,
    /// The report of its power agent; absent before the first report.
    pub(crate) power: Option<PowerReport>,
    /// The report of its launcher; absent before the first report.
    pub(crate) launcher: Option<LaunchReport>,
    /// Its sleep state; absent if it is awake.
    pub(crate) sleep: Option<NodeSleep>,
}

/// Every node that has reported, by id.
pub(crate) async fn nodes(bus: &Bus) -> anyhow::Result<Vec<Node>> {
    let bucket = bus.bucket(Bucket::Actual).await?;
    let mut nodes: BTreeMap<NodeId, Node> = BTreeMap::new();
    for key in bucket.keys().await? {
        let Some((reporter, node)) = Reporter::parse(&key) else { continue };
        let entry = nodes.entry(node.clone()).or_insert_with(|| Node {
            node,
            power: None,
            launcher: None,
            sleep: None,
        });
        let read = match reporter {
            Reporter::Power => bucket.get(&key).await.map(|v| entry.power = v.map(|(r, _)| r)),
            Reporter::Launcher => {
                bucket.get(&key).await.map(|v| entry.launcher = v.map(|(r, _)| r))
            }
        };
        if let Err(error) = read {
            note(&format!("warning: {key} cannot be read: {error}"));
        }
    }
    let orders = bus.bucket(Bucket::Desired).await?;
    for (node, known) in &mut nodes {
        match orders.get::<NodeDesired>(node.as_str()).await {
            Ok(order) => known.sleep = order.and_then(|(order, _)| order.sleep),
            Err(error) => note(&format!("warning: the order of {node} cannot be read: {error}")),
        }
    }
    Ok(nodes.into_values().collect())
}

/// The jobs that run on a GPU of the node.
fn jobs_on(report: Option<&LaunchReport>, gpu: u32) -> Vec<&JobId> {
    let jobs = report.map(|report| report.jobs.as_slice()).unwrap_or_default();
    jobs.iter()
        .filter(|job| matches!(job.state, LaunchState::Running | LaunchState::Stopping))
        .filter(|job| job.gpus.contains(&gpu))
        .map(|job| &job.job)
        .collect()
}

/// Runs the command.
pub(crate) fn run(command: Nodes) -> anyhow::Result<()> {
    block_on(async {
        let bus = command.connection.open().await?;
        let nodes = nodes(&bus).await?;
        if command.json {
            return print_json(&nodes);
        }
        let is_below = |node: &Node| node.power.as_ref()?.switch.clone();
        let switched = nodes.iter().any(|node| is_below(node).is_some());
        let mut columns = vec![
            ("NODE", Align::Left),
            ("GPU", Align::Right),
            ("TYPE", Align::Left),
            ("STATE", Align::Left),
            ("CAP", Align::Right),
            ("CLOCK", Align::Right),
            ("MEMORY", Align::Right),
            ("REPORTED", Align::Right),
            ("JOBS", Align::Left),
        ];
        if switched {
            columns.insert(1, ("SWITCH", Align::Left));
        }
        let mut table = Table::new(&columns);
        let now = wattle_runtime::clock::now();
        for node in &nodes {
            let Some(power) = &node.power else {
                note(&format!("{}: its power agent has not reported", node.node));
                continue;
            };
            let reported = format!("{} ago", span(now.since(power.at_us).as_secs_f64()));
            let state = node.sleep.map(|sleep| sleep.state.label());
            for gpu in &power.gpus {
                let jobs: Vec<&str> = jobs_on(node.launcher.as_ref(), gpu.gpu)
                    .into_iter()
                    .map(JobId::as_str)
                    .collect();
                let mut row = vec![
                    node.node.to_string(),
                    gpu.gpu.to_string(),
                    gpu.gpu_type.clone(),
                    state.unwrap_or(if gpu.healthy { "ok" } else { "lost" }).to_owned(),
                    gpu.cap_mw.map(|cap| cap.to_string()).unwrap_or_else(|| "?".to_owned()),
                    gpu.clock_mhz_max.map(|clock| clock.to_string()).unwrap_or_default(),
                    format!("{:.0} GiB", gpu.memory_mib as f64 / 1_024.0),
                    reported.clone(),
                    jobs.join(" "),
                ];
                if switched {
                    let switch = is_below(node).map(|switch| switch.to_string());
                    row.insert(1, switch.unwrap_or_default());
                }
                table.row(row);
            }
            if node.launcher.is_none() {
                note(&format!("{}: its launcher has not reported", node.node));
            }
            for gpu in
                power.gpus.iter().filter_map(|gpu| gpu.last_error.as_ref().map(|r| (gpu.gpu, r)))
            {
                note(&format!("{} GPU {}: refused: {}", node.node, gpu.0, gpu.1));
            }
        }
        table.print()?;
        if nodes.is_empty() {
            note(&format!(
                "no node of cluster {} has reported; --cluster selects another",
                bus.cluster()
            ));
        }
        Ok(())
    })
}
