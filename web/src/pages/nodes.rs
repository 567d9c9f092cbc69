//! A part of the list of nodes, with every GPU.

use serde_json::{Map, Value, json};
use wattle_common::{JobId, NodeId};
use wattle_view::node::Node;

use super::{rounded, watts};
use crate::model::{Model, Now};
use crate::topic::List;

/// Nodes of one part.
const ROWS: usize = 25;

/// A GPU of a node; `is_silent`: its power agent is, so its state is not known.
fn gpu(node: &Node, index: usize, is_silent: bool) -> Option<Value> {
    let (gpu, reading) = node.gpus().nth(index)?;
    let jobs: Vec<&str> = node.jobs_on(gpu.gpu).into_iter().map(JobId::as_str).collect();
    let cap = reading.and_then(|reading| reading.cap_mw).or(gpu.cap_mw);
    Some(json!({
        "type": gpu.gpu_type,
        "state": if is_silent { "silent" } else { node.state(gpu) },
        "w": reading.and_then(|reading| reading.power_mw_mean).map(watts),
        "cap_w": cap.map(watts),
        "cap_default_w": gpu.cap_mw_default.map(watts),
        "clock_mhz": reading.and_then(|reading| reading.clock_mhz).map(wattle_common::Frequency::as_mhz),
        "clock_max_mhz": gpu.clock_mhz_max.map(wattle_common::Frequency::as_mhz),
        "busy": reading.and_then(|reading| reading.utilization_gpu_percent_mean),
        "memory_gib": reading
            .and_then(|reading| reading.memory_used_mib)
            .map(|mib| rounded(mib as f64 / 1_024.0, 1)),
        "memory_total_gib": gpu.memory_mib.map(|mib| rounded(mib as f64 / 1_024.0, 0)),
        "temperature_c": reading.and_then(|reading| reading.temperature_c),
        "jobs": jobs,
        "error": gpu.last_error,
    }))
}

fn row(node: &Node, model: &Model, now: Now) -> Value {
    let report = node.power.as_ref();
    let count = report.map_or(0, |report| report.gpus.len());
    let is_silent = model.is_overdue(node, true, now);
    let gpus: Map<String, Value> = (0..count)
        .filter_map(|index| Some((index.to_string(), gpu(node, index, is_silent)?)))
        .collect();
    let silent: Vec<&str> = [(true, "power agent"), (false, "launcher")]
        .into_iter()
        .filter(|(power, _)| model.is_overdue(node, *power, now))
        .map(|(_, name)| name)
        .chain(model.is_unread(node, now).then_some("profiler"))
        .collect();
    json!({
        "gpus": gpus,
        "sleep": node.sleep.map(|sleep| sleep.state.label()),
        "host_w": node.host_power().map(watts),
        "switch": report.and_then(|report| report.switch.as_ref()).map(ToString::to_string),
        "advise_only": report.is_some_and(|report| report.advise_only),
        "leased": report.is_some_and(|report| report.lease_until_us.is_some_and(|end| end > now.at)),
        "silent": silent,
    })
}

/// The content of the page.
pub(super) fn content(list: &List, model: &Model, now: Now) -> Value {
    let matches =
        |id: &NodeId| list.search.is_empty() || id.as_str().to_lowercase().contains(&list.search);
    let found: Vec<&NodeId> = model.nodes.keys().filter(|id| matches(id)).collect();
    let part: Vec<&NodeId> = found.iter().skip(list.page * ROWS).take(ROWS).copied().collect();
    let nodes = model.nodes_with_readings(|id| part.contains(&id));
    let rows: Map<String, Value> =
        nodes.iter().map(|node| (node.node.to_string(), row(node, model, now))).collect();
    json!({
        "rows": rows,
        "order": part.iter().map(|id| id.as_str()).collect::<Vec<_>>(),
        "search": list.search,
        "number": list.page,
        "total": found.len(),
        "pages": found.len().div_ceil(ROWS).max(1),
    })
}
