//! `wattle jobs`: the jobs and their progress.
//!
//! The list is read from the bucket, so it is available without a running placer.

use clap::Args;
use wattle_common::Timestamp;
use wattle_common::job::JobPhase;
use wattle_common::messages::JobRecord;
use wattle_common::subject::Bucket;
use wattle_runtime::bus::Bus;

use crate::connection::{Connection, block_on};
use crate::output::{Align, Table, note, print_json, span};

/// List the jobs.
#[derive(Args)]
#[command(after_help = "Examples:\n  wattle jobs\n  wattle jobs --all --json")]
pub(crate) struct Jobs {
    /// Include finished, failed and cancelled jobs
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    connection: Connection,
    /// Print the job records as a JSON array
    #[arg(long)]
    json: bool,
}

/// Every job's record, in the order of submission.
pub(crate) async fn records(bus: &Bus) -> anyhow::Result<Vec<JobRecord>> {
    let bucket = bus.bucket(Bucket::Jobs).await?;
    let mut records = Vec::new();
    for key in bucket.keys().await? {
        match bucket.get::<JobRecord>(&key).await {
            Ok(Some((record, _))) => records.push(record),
            Ok(None) => {}
            Err(error) => note(&format!("warning: job {key} cannot be read: {error}")),
        }
    }
    records.sort_by(|a, b| {
        (a.spec.submitted_at_us, &a.spec.job).cmp(&(b.spec.submitted_at_us, &b.spec.job))
    });
    Ok(records)
}

fn row(record: &JobRecord, now: Timestamp) -> Vec<String> {
    let placement = record.placement.as_ref().map(ToString::to_string);
    let progress = match (record.step, record.steps_total) {
        // The last progress report may arrive after the end of the job.
        (_, Some(_)) if record.phase == JobPhase::Finished => "100 %".to_owned(),
        (Some(step), Some(total)) => format!("{:.0} %", 100.0 * step as f64 / total as f64),
        (Some(step), None) => format!("step {step}"),
        (None, _) => String::new(),
    };
    let end = record.ended_at_us.unwrap_or(now);
    let waited = record.started_at_us.unwrap_or(end).since(record.spec.submitted_at_us);
    let ran = record.started_at_us.map(|start| span(end.since(start).as_secs_f64()));
    let phase = if record.observing && !record.phase.is_final() {
        format!("{} (observed)", record.phase)
    } else {
        match record.exit_code {
            Some(code) if code != 0 => format!("{} ({code})", record.phase),
            _ => record.phase.to_string(),
        }
    };
    vec![
        record.spec.job.to_string(),
        phase,
        match &record.spec.gpu_type {
            Some(kind) => format!("{} {kind}", record.spec.gpus),
            None => record.spec.gpus.to_string(),
        },
        placement.unwrap_or_default(),
        progress,
        span(waited.as_secs_f64()),
        ran.unwrap_or_default(),
        record.spec.workload.as_ref().map(ToString::to_string).unwrap_or_default(),
    ]
}

/// Runs the command.
pub(crate) fn run(command: Jobs) -> anyhow::Result<()> {
    block_on(async {
        let bus = command.connection.open().await?;
        let records = records(&bus).await?;
        let ended = records.iter().filter(|record| record.phase.is_final()).count();
        let shown: Vec<&JobRecord> =
            records.iter().filter(|record| command.all || !record.phase.is_final()).collect();
        if command.json {
            return print_json(&shown);
        }
        let mut table = Table::new(&[
            ("JOB", Align::Left),
            ("PHASE", Align::Left),
            ("GPUS", Align::Right),
            ("PLACEMENT", Align::Left),
            ("DONE", Align::Right),
            ("WAITED", Align::Right),
            ("RAN", Align::Right),
            ("WORKLOAD", Align::Left),
        ]);
        let now = wattle_runtime::clock::now();
        shown.iter().for_each(|record| table.row(row(record, now)));
        table.print()?;
        if !command.all && ended > 0 {
            note(&format!("{ended} ended jobs are hidden; --all shows them"));
        }
        if records.is_empty() {
            note(&format!("cluster {} has no jobs; --cluster selects another", bus.cluster()));
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finished_job_shows_full_progress() {
        let golden = include_str!("../../../common/tests/golden/v1/job-record.json");
        let mut record: JobRecord = serde_json::from_str(golden).unwrap();
        (record.step, record.steps_total) = (Some(30), Some(1_000));
        let done = |record: &JobRecord| row(record, Timestamp::FOREVER)[4].clone();
        record.phase = JobPhase::Running;
        assert_eq!(done(&record), "3 %");
        record.phase = JobPhase::Finished;
        assert_eq!(done(&record), "100 %");
        record.spec.gpu_type = Some("p100".to_owned());
        assert_eq!(row(&record, Timestamp::FOREVER)[2], "1..2 p100");
    }
}
