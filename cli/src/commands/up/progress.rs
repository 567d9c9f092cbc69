//! Status line of `wattle up`: updated in place on a terminal, printed periodically elsewhere.

use std::collections::BTreeMap;
use std::io::IsTerminal;

use wattle_common::codec;
use wattle_common::duration::span;
use wattle_common::job::JobPhase;
use wattle_common::messages::{JobRecord, NodeSummary};
use wattle_common::subject::{Bucket, Topic};
use wattle_common::total::Total;
use wattle_common::{JobId, NodeId, Power};
use wattle_runtime::bus::Bus;
use wattle_runtime::clock;

use crate::output::{note, replace_line};
use crate::progress::update_interval;

/// Prints the status until dropped.
pub(crate) async fn show(bus: Bus, expected: Option<usize>) -> anyhow::Result<()> {
    let live = std::io::stderr().is_terminal();
    let began = clock::now();
    let mut summaries = bus.subscribe(&Topic::NodeSummarized.pattern(bus.cluster())).await?;
    let bucket = bus.bucket(Bucket::Jobs).await?;
    let mut changes = bucket.watch().await?;
    let mut power: BTreeMap<NodeId, Vec<Option<Power>>> = BTreeMap::new();
    let mut phases: BTreeMap<JobId, JobPhase> = BTreeMap::new();
    let mut tick = tokio::time::interval(update_interval(live));
    loop {
        tokio::select! {
            Some(delivery) = summaries.next() => {
                if let Ok(summary) = codec::decode_json::<NodeSummary>(&delivery.payload) {
                    let gpus = summary.gpus.iter().map(|gpu| gpu.power_mw_mean).collect();
                    power.insert(summary.node, gpus);
                }
            }
            Some(change) = changes.next() => {
                let record = change.value.as_deref().map(codec::decode_json::<JobRecord>);
                if let Some(Ok(record)) = record {
                    phases.insert(record.spec.job, record.phase);
                }
            }
            // Before the first readings the power would be shown as 0 W.
            _ = tick.tick(), if !power.is_empty() => {
                let drawn = power.values().flatten().copied().collect();
                let line = line(&phases, drawn, expected);
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
    use super::*;

    fn phases(jobs: &[(JobPhase, usize)]) -> BTreeMap<JobId, JobPhase> {
        let all = jobs.iter().flat_map(|&(phase, n)| std::iter::repeat_n(phase, n));
        all.enumerate().map(|(i, phase)| (JobId::new(&format!("j{i}")).unwrap(), phase)).collect()
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
