//! A part of the list of nodes, with every GPU.

use serde_json::{Map, Value, json};
use wattle_common::total::Total;
use wattle_common::{FeederId, JobId, NodeId, Power};
use wattle_view::node::{Node, cap_when_read};

use super::{budget, rounded, watts};
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
        "power": power(node, model),
        "sleep": node.sleep.map(|sleep| sleep.state.label()),
        "host_w": node.host_power().map(watts),
        "switch": report.and_then(|report| report.switch.as_ref()).map(ToString::to_string),
        "advise_only": report.is_some_and(|report| report.advise_only),
        "leased": report.is_some_and(|report| report.lease_until_us.is_some_and(|end| end > now.at)),
        "silent": silent,
    })
}

/// Measured power of a node against the caps of its GPUs and its own limit; the feeders that it draws from.
fn power(node: &Node, model: &Model) -> Value {
    let (mut drawn, mut caps) = (Total::<Power>::default(), Total::<Power>::default());
    for (gpu, reading) in node.gpus() {
        drawn.add(reading.and_then(|reading| reading.power_mw_mean));
        caps.add(cap_when_read(gpu, reading));
    }
    let feeds = |id: &NodeId| -> Vec<&str> {
        let connections = model.feeders.iter().flat_map(|status| &status.connections);
        let of = connections.filter(|connection| connection.nodes.contains(id));
        of.flat_map(|connection| &connection.feeds).map(FeederId::as_str).collect()
    };
    json!({
        "gpus_w": drawn.known().map(watts),
        "is_partial": (drawn.known().is_some() && !drawn.is_complete()).then_some(true),
        "host_w": node.host_power().map(watts),
        "caps_w": caps.known().filter(|_| caps.is_complete()).map(watts),
        "limit_w": node.power.as_ref().and_then(|report| report.node_limit_mw).map(watts),
        "feeds": feeds(&node.node),
    })
}

/// The sums over nodes.
fn totals(nodes: &[Node]) -> Value {
    let (mut drawn, mut caps) = (Total::<Power>::default(), Total::<Power>::default());
    let (mut gpus, mut busy) = (0_u32, 0_u32);
    for node in nodes {
        for (gpu, reading) in node.gpus().filter(|_| node.sleep.is_none()) {
            drawn.add(reading.and_then(|reading| reading.power_mw_mean));
            caps.add(cap_when_read(gpu, reading));
        }
        for (gpu, _) in node.gpus() {
            gpus += 1;
            busy += u32::from(!node.jobs_on(gpu.gpu).is_empty());
        }
    }
    let hosts: Power = nodes.iter().filter_map(Node::host_power).sum();
    json!({
        "gpus": gpus,
        "busy": busy,
        "asleep": nodes.iter().filter(|node| node.sleep.is_some()).count(),
        "gpus_w": drawn.known().map(watts),
        "is_partial": (drawn.known().is_some() && !drawn.is_complete()).then_some(true),
        "caps_w": caps.known().filter(|_| caps.is_complete()).map(watts),
        "hosts_w": (hosts > Power::ZERO).then(|| watts(hosts)),
    })
}

/// The content of the page.
pub(super) fn content(list: &List, model: &Model, now: Now) -> Value {
    let matches =
        |id: &NodeId| list.search.is_empty() || id.as_str().to_lowercase().contains(&list.search);
    let found: Vec<&NodeId> = model.nodes.keys().filter(|id| matches(id)).collect();
    let part: Vec<&NodeId> = found.iter().skip(list.page * ROWS).take(ROWS).copied().collect();
    let nodes = model.nodes_with_readings(matches);
    let rows: Map<String, Value> = nodes
        .iter()
        .filter(|node| part.contains(&&node.node))
        .map(|node| (node.node.to_string(), row(node, model, now)))
        .collect();
    json!({
        "rows": rows,
        "feeders": budget::feeders(model),
        "order": part.iter().map(|id| id.as_str()).collect::<Vec<_>>(),
        "search": list.search,
        "number": list.page,
        "totals": totals(&nodes),
        "total": found.len(),
        "pages": found.len().div_ceil(ROWS).max(1),
    })
}

#[cfg(test)]
mod tests {
    use wattle_common::Timestamp;
    use wattle_common::codec;
    use wattle_common::messages::AppliedGpu;
    use wattle_testkit as testkit;

    use super::*;
    use crate::model::tests::{example, now, summary};

    #[test]
    fn the_power_of_a_node_is_against_its_caps_its_limit_and_its_feeders() {
        let mut model = example();
        let node = |model: &Model| {
            content(&List::default(), model, now(100))["rows"]["n0"]["power"].clone()
        };
        let plain = node(&model);
        assert_eq!((&plain["gpus_w"], &plain["caps_w"]), (&json!(240), &json!(500)));
        assert_eq!((&plain["limit_w"], &plain["feeds"]), (&Value::Null, &json!([])));
        let gpu = |index| AppliedGpu {
            cap_mw: Some(Power::from_w(250)),
            ..testkit::applied_gpu(index, "v100")
        };
        let mut report = testkit::power_report("n0", Timestamp::from_s(99), [gpu(0), gpu(1)]);
        report.node_limit_mw = Some(Power::from_w(450));
        model.report("power.n0", Some(&codec::encode_json(&report)), now(100));
        model.feeders = Some(testkit::feeders_status());
        let limited = node(&model);
        assert_eq!((&limited["limit_w"], &limited["host_w"]), (&json!(450), &json!(100)));
        assert_eq!(limited["feeds"], json!(["pdu-a", "pdu-b"]));
        let feeders = &content(&List::default(), &model, now(100))["feeders"];
        assert_eq!(feeders[1]["limit_w"], json!(1_500));
        // A GPU without a reading and one without a cap.
        let mut partial = summary("n0", 120);
        (partial.gpus[0].power_mw_mean, partial.gpus[1].cap_mw) = (None, None);
        report.gpus[1].cap_mw = None;
        model.report("power.n0", Some(&codec::encode_json(&report)), now(100));
        model.summary(&codec::encode_json(&partial), now(100));
        let partial = node(&model);
        assert_eq!((&partial["gpus_w"], &partial["is_partial"]), (&json!(120), &json!(true)));
        assert_eq!(
            partial["caps_w"],
            Value::Null,
            "a power is not compared with a part of the caps"
        );
    }
}
