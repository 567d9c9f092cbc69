//! Status line of `wattle up`: updated in place on a terminal, printed periodically elsewhere.

use std::collections::BTreeMap;
use std::io::IsTerminal;

use wattle_common::codec;
use wattle_common::job::JobPhase;
use wattle_common::messages::{JobRecord, NodeSummary};
use wattle_common::subject::{Bucket, Topic};
use wattle_common::{JobId, NodeId, Power};
use wattle_runtime::bus::Bus;
use wattle_runtime::clock;

use crate::output::{note, replace_line, span};
use crate::progress::update_interval;

/// Prints the status until dropped.
pub(crate) async fn show(bus: Bus, expected: Option<usize>) -> anyhow::Result<()> {
    let live = std::io::stderr().is_terminal();
    let began = clock::now();
    let mut summaries = bus.subscribe(&Topic::NodeSummarized.pattern(bus.cluster())).await?;
    let bucket = bus.bucket(Bucket::Jobs).await?;
    let mut changes = bucket.watch().await?;
    let mut power: BTreeMap<NodeId, Power> = BTreeMap::new();
    let mut phases: BTreeMap<JobId, JobPhase> = BTreeMap::new();
    let mut tick = tokio::time::interval(update_interval(live));
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

/// The line fits 80 columns with three digits per count, because a wrapped line cannot be redrawn.
fn line(phases: &BTreeMap<JobId, JobPhase>, power: Power, expected: Option<usize>) -> String {
    let count = |wanted: &[JobPhase]| phases.values().filter(|p| wanted.contains(p)).count();
    let queued = count(&[JobPhase::Queued]);
    let running = count(&[JobPhase::Starting, JobPhase::Running, JobPhase::Stopping]);
    let finished = count(&[JobPhase::Finished]);
    let of = expected.map(|expected| format!("/{expected}")).unwrap_or_default();
    let mut text = format!("{queued:>3} queued {running:>3} running {finished:>3}{of} finished");
    let watts = format!("{:.0} W", power.as_w());
    let (failed, cancelled) = (count(&[JobPhase::Failed]), count(&[JobPhase::Cancelled]));
    if failed + cancelled == 0 {
        return format!("{text}   GPUs draw {watts}");
    }
    for (jobs, what) in [(failed, "failed"), (cancelled, "cancelled")] {
        if jobs > 0 {
            text.push_str(&format!(" {jobs} {what}"));
        }
    }
    format!("{text} {watts}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phases(jobs: &[(JobPhase, usize)]) -> BTreeMap<JobId, JobPhase> {
        let all = jobs.iter().flat_map(|&(phase, n)| std::iter::repeat_n(phase, n));
        all.enumerate().map(|(i, phase)| (JobId::new(&format!("j{i}")).unwrap(), phase)).collect()
    }

    #[test]
    fn status_line_fits_80_columns() {
        let power = Power::from_w(99_999);
        let all = [
            (JobPhase::Queued, 300),
            (JobPhase::Running, 100),
            (JobPhase::Finished, 300),
            (JobPhase::Failed, 150),
            (JobPhase::Cancelled, 149),
        ];
        for some in [&all[..3], &all[..4], &all] {
            let line = at(99.0 * 86_400.0, &line(&phases(some), power, Some(999)));
            assert!(line.len() <= 80, "{} columns: {line}", line.len());
        }
        let few = [(JobPhase::Finished, 2), (JobPhase::Failed, 1)];
        let text = line(&phases(&few), power, Some(24));
        assert_eq!(text, "  0 queued   0 running   2/24 finished 1 failed 99999 W");
        let text = line(&phases(&few[..1]), power, None);
        assert_eq!(text, "  0 queued   0 running   2 finished   GPUs draw 99999 W");
    }
}
