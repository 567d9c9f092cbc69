//! The last summary of each node, requested from its profiler.

use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use wattle_common::NodeId;
use wattle_common::messages::{NodeSummary, ReadSummary};
use wattle_common::subject::{NodeTopic, Rank, Subject};
use wattle_runtime::bus::Bus;
use wattle_view::Summaries;

use crate::commands::nodes;
use crate::job_records;

/// Requests under way at once.
const REQUESTS_MAX: usize = 64;
/// Longest wait for one profiler, wall time. An absent one is reported by the server at once.
const PATIENCE: Duration = Duration::from_secs(1);

/// Requests the last summary of every node that has reported.
pub(crate) async fn of_all_nodes(bus: &Bus) -> anyhow::Result<Summaries> {
    if !job_records::reads_storage(bus) {
        return Ok(Summaries::new());
    }
    let nodes = nodes::ids(bus).await?;
    Ok(of(bus, nodes.into_iter().collect()).await)
}

/// Requests the last summary of these nodes.
pub(crate) async fn of(bus: &Bus, nodes: Vec<NodeId>) -> Summaries {
    if bus.has_key() && bus.requester().rank == Rank::User {
        // A summary has the jobs of all users of the node.
        return Summaries::new();
    }
    let request = async |node: NodeId| {
        let subject =
            Subject::of_node(bus.cluster().clone(), NodeTopic::SummaryRequested, node.clone());
        let (subject, body) = (subject, ReadSummary {});
        let answer = bus.request::<_, NodeSummary>(&subject, &body);
        let summary = tokio::time::timeout(PATIENCE, answer).await.ok()?.ok()?;
        Some((node, summary))
    };
    let answers = stream::iter(nodes).map(request).buffer_unordered(REQUESTS_MAX);
    answers.filter_map(async |answer| answer).collect().await
}
