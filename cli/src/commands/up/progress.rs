//! What a person sees while the system runs: on a terminal one line that changes, elsewhere a line
//! now and then.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use wattle_common::codec;
use wattle_common::job::JobPhase;
use wattle_common::messages::{JobRecord, NodeSummary};
use wattle_common::subject::{Bucket, Topic};
use wattle_common::{JobId, NodeId, Power};
use wattle_runtime::bus::Bus;
use wattle_runtime::clock;

use crate::output::{note, span};

/// How often the line on a terminal changes, wall time.
const LIVE_EVERY: Duration = Duration::from_millis(500);
/// How often a line is printed elsewhere, wall time.
const PRINT_EVERY: Duration = Duration::from_secs(10);

/// Shows how it goes until dropped.
pub(crate) async fn show(bus: Bus, expected: Option<usize>) -> anyhow::Result<()> {
    let live = std::io::stderr().is_terminal();
    let began = clock::now();
    let mut summaries = bus.subscribe(&Topic::NodeSummarized.pattern(bus.cluster())).await?;
    let bucket = bus.bucket(Bucket::Jobs).await?;
    let mut changes = bucket.watch().await?;
    let mut power: BTreeMap<NodeId, Power> = BTreeMap::new();
    let mut phases: BTreeMap<JobId, JobPhase> = BTreeMap::new();
    let mut tick = tokio::time::interval(if live { LIVE_EVERY } else { PRINT_EVERY });
    loop {
        tokio::select! {
            Some(delivery) = summaries.next() => {
                if let Ok(summary) = codec::decode_json::<NodeSummary>(&delivery.payload) {
                    let sum = summary.gpus.iter().filter_map(|gpu| gpu.power_mw_mean).sum();
                    power.insert(summary.node, sum);
                }
            }
            Some(change) = changes.next() => {
                let record = change.value.as_deref().map(codec::decode_json::<JobRecord>);
                if let Some(Ok(record)) = record {
                    phases.insert(record.spec.job, record.phase);
                }
            }
            _ = tick.tick() => {
                let line = line(&phases, power.values().copied().sum(), expected);
                let line = format!("+{:<7} {line}", span(clock::now().since(began).as_secs_f64()));
                if live {
                    let mut err = std::io::stderr().lock();
                    let _ = write!(err, "\r\x1b[K{line}");
                    let _ = err.flush();
                } else {
                    note(&line);
                }
            }
        }
    }
}

/// Leaves the line that changes.
pub(crate) fn end() {
    if std::io::stderr().is_terminal() {
        note("");
    }
}

fn line(phases: &BTreeMap<JobId, JobPhase>, power: Power, expected: Option<usize>) -> String {
    let count = |wanted: &[JobPhase]| phases.values().filter(|p| wanted.contains(p)).count();
    let queued = count(&[JobPhase::Queued]);
    let running = count(&[JobPhase::Starting, JobPhase::Running, JobPhase::Stopping]);
    let finished = count(&[JobPhase::Finished]);
    let other = count(&[JobPhase::Failed, JobPhase::Cancelled]);
    let mut text = format!("{queued:>3} queued {running:>3} running {finished:>3} finished");
    if other > 0 {
        text.push_str(&format!(" {other} failed or cancelled"));
    }
    if let Some(expected) = expected {
        text.push_str(&format!(" of {expected}"));
    }
    format!("{text}   GPUs draw {:.0} W", power.as_w())
}
