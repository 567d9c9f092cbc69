//! Status line of `wattle up`: updated in place on a terminal, printed periodically elsewhere.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

use tokio::time::Instant;
use wattle_common::codec;
use wattle_common::duration::span;
use wattle_common::job::JobPhase;
use wattle_common::messages::{JobRecord, NodeSummary, SleepState};
use wattle_common::subject::{Bucket, Topic};
use wattle_common::total::Total;
use wattle_common::{JobId, NodeId, Power};
use wattle_runtime::bus::Bus;
use wattle_runtime::clock;
use wattle_view::node;

use crate::output::{note, replace_line};
use crate::progress::update_interval;

/// Age from which a node's summary is no reading any more, wall time: profilers publish one a second.
const READING_VALID: Duration = Duration::from_secs(5);

/// The last readings of the nodes.
struct Readings {
    /// The number of GPUs of each node of this system.
    gpus: BTreeMap<NodeId, usize>,
    /// The GPUs' powers, and when they were received.
    last: BTreeMap<NodeId, (Instant, Vec<Option<Power>>)>,
    /// The nodes with their sleep states.
    nodes: BTreeMap<NodeId, node::Node>,
}

impl Readings {
    fn reported(&mut self, node: NodeId, powers: Vec<Option<Power>>, at: Instant) {
        self.last.insert(node, (at, powers));
    }

    /// The power of all GPUs. Those of a node that has not reported, or is silent, have no reading; those of a
    /// sleeping node draw none.
    fn drawn(&self, at: Instant) -> Total<Power> {
        let of = |(node, gpus): (&NodeId, &usize)| {
            let last = self.last.get(node);
            let valid = last.filter(|(received, _)| at.duration_since(*received) <= READING_VALID);
            let mut powers = match valid {
                Some((_, powers)) => powers.clone(),
                None if self.sleeps(node) => return Vec::new(),
                None => Vec::new(),
            };
            powers.resize(powers.len().max(*gpus), None);
            powers
        };
        self.gpus.iter().flat_map(of).collect()
    }

    fn sleeps(&self, node: &NodeId) -> bool {
        let sleep = self.nodes.get(node).and_then(|node| node.sleep);
        sleep.is_some_and(|sleep| sleep.state != SleepState::WakeFailed)
    }
}

/// Prints the status until dropped. `gpus`: the number of GPUs of each node; `expected`: the jobs of a trace.
pub(crate) async fn show(
    bus: Bus,
    gpus: BTreeMap<NodeId, usize>,
    expected: Option<usize>,
) -> anyhow::Result<()> {
    let live = std::io::stderr().is_terminal();
    let began = clock::now();
    let mut summaries = bus.subscribe(&Topic::NodeSummarized.pattern(bus.cluster())).await?;
    let bucket = bus.bucket(Bucket::Jobs).await?;
    let mut changes = bucket.watch().await?;
    let mut orders = bus.bucket(Bucket::Desired).await?.watch().await?;
    let mut readings = Readings { gpus, last: BTreeMap::new(), nodes: BTreeMap::new() };
    let mut phases: BTreeMap<JobId, JobPhase> = BTreeMap::new();
    let mut tick = tokio::time::interval(update_interval(live));
    loop {
        tokio::select! {
            Some(delivery) = summaries.next() => {
                if let Ok(summary) = codec::decode_json::<NodeSummary>(&delivery.payload) {
                    let powers = summary.gpus.iter().map(|gpu| gpu.power_mw_mean).collect();
                    readings.reported(summary.node, powers, Instant::now());
                }
            }
            Some(order) = orders.next() => {
                // An order that cannot be read is in the services' logs.
                let _ = node::desired(&mut readings.nodes, &order.key, order.value.as_deref());
            }
            Some(change) = changes.next() => {
                let record = change.value.as_deref().map(codec::decode_json::<JobRecord>);
                if let Some(Ok(record)) = record {
                    phases.insert(record.spec.job, record.phase);
                }
            }
            // Before the first readings the power would be shown as 0 W.
            _ = tick.tick(), if !readings.last.is_empty() => {
                let line = line(&phases, readings.drawn(Instant::now()), expected);
                let line = at(clock::now().since(began).as_secs_f64(), &line);
                if live {
                    replace_line(&line);
                } else {
                    note(&line);
                }
            }
        }
    }
}

/// Ends the status line.
pub(crate) fn end() {
    if std::io::stderr().is_terminal() {
        note("");
    }
}

/// Prefixes the line with the elapsed time.
fn at(seconds: f64, line: &str) -> String {
    format!("+{:<6} {line}", span(seconds))
}

/// The power comes first: a terminal cuts the end of a line that it cannot hold.
///
/// With at most two digits per count, or without failed and cancelled jobs, the line fits 80 columns.
fn line(
    phases: &BTreeMap<JobId, JobPhase>,
    power: Total<Power>,
    expected: Option<usize>,
) -> String {
    let count = |wanted: &[JobPhase]| phases.values().filter(|p| wanted.contains(p)).count();
    let queued = count(&[JobPhase::Queued]);
    let running = count(&[JobPhase::Starting, JobPhase::Running, JobPhase::Stopping]);
    let finished = count(&[JobPhase::Finished]);
    let of = expected.map(|expected| format!("/{expected}")).unwrap_or_default();
    let watts = match power.known() {
        Some(sum) if power.is_complete() => format!("{:>5.0}", sum.as_w()),
        Some(sum) => format!("≥{:>4.0}", sum.as_w()),
        None => "    ?".to_owned(),
    };
    let mut text = format!(
        "GPUs {watts} W {queued:>2} queued {running:>2} running {finished:>2}{of} finished"
    );
    for (phase, label) in [(JobPhase::Failed, "failed"), (JobPhase::Cancelled, "cancelled")] {
        let jobs = count(&[phase]);
        if jobs > 0 {
            text.push_str(&format!(" {jobs:>2} {label}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use wattle_common::Timestamp;
    use wattle_common::messages::NodeSleep;

    use super::*;

    fn phases(jobs: &[(JobPhase, usize)]) -> BTreeMap<JobId, JobPhase> {
        let all = jobs.iter().flat_map(|&(phase, n)| std::iter::repeat_n(phase, n));
        all.enumerate().map(|(i, phase)| (JobId::new(&format!("j{i}")).unwrap(), phase)).collect()
    }

    #[test]
    fn a_node_without_a_current_reading_is_missing_and_a_sleeping_one_draws_nothing() {
        let id = |name: &str| NodeId::new(name).unwrap();
        let gpus = [(id("n0"), 1), (id("n1"), 2)].into();
        let mut readings = Readings { gpus, last: [].into(), nodes: [].into() };
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let watts = |watts: &[u64]| watts.iter().map(|w| Some(Power::from_w(*w))).collect();
        readings.reported(id("n0"), watts(&[100]), after(0));
        let first = readings.drawn(after(1));
        assert_eq!(
            (first.known(), first.missing("GPU").as_deref()),
            (Some(Power::from_w(100)), Some("2 of 3 GPUs have no reading"))
        );
        readings.reported(id("n1"), watts(&[30, 30]), after(1));
        let all = readings.drawn(after(2));
        assert!(all.is_complete() && all.known() == Some(Power::from_w(160)));
        readings.reported(id("n1"), watts(&[30, 30]), after(9));
        let silent = readings.drawn(after(10));
        assert_eq!(
            (silent.known(), silent.missing("GPU").as_deref()),
            (Some(Power::from_w(60)), Some("1 of 3 GPUs has no reading"))
        );
        let mut asleep = node::Node::new(id("n0"));
        asleep.sleep = Some(NodeSleep { state: SleepState::Asleep, since_us: Timestamp::EPOCH });
        readings.nodes.insert(id("n0"), asleep);
        assert!(readings.drawn(after(10)).is_complete());
    }

    #[test]
    fn status_line_fits_80_columns_and_labels_every_number() {
        let drawn = |watts: &[Option<u64>]| -> Total<Power> {
            watts.iter().map(|watts| watts.map(Power::from_w)).collect()
        };
        let power = drawn(&[Some(99_999)]);
        let many = [
            (JobPhase::Queued, 300),
            (JobPhase::Running, 100),
            (JobPhase::Finished, 300),
            (JobPhase::Failed, 99),
        ];
        let all = [
            (JobPhase::Queued, 99),
            (JobPhase::Running, 99),
            (JobPhase::Finished, 99),
            (JobPhase::Failed, 99),
            (JobPhase::Cancelled, 99),
        ];
        for (some, expected) in [(&many[..3], 999), (&many, 999), (&all, 99)] {
            let line = at(99.0 * 86_400.0, &line(&phases(some), power, Some(expected)));
            assert!(line.len() <= 80, "{} columns: {line}", line.len());
            assert!(line.contains("GPUs 99999 W"), "{line}");
        }
        let few = [(JobPhase::Finished, 2), (JobPhase::Failed, 1)];
        let text = line(&phases(&few), drawn(&[Some(839)]), Some(24));
        assert_eq!(text, "GPUs   839 W  0 queued  0 running  2/24 finished  1 failed");
        let text = line(&phases(&few), drawn(&[Some(839), None]), Some(24));
        assert!(text.starts_with("GPUs ≥ 839 W"), "a GPU without a reading: {text}");
        let text = line(&phases(&few), drawn(&[None]), Some(24));
        assert!(text.starts_with("GPUs     ? W"), "{text}");
    }
}
