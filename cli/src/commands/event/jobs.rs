//! `wattle event show`: one event, and what its jobs promised and lose.

use std::collections::BTreeMap;

use serde::Serialize;
use wattle_common::event::{EventPerformances, EventRecord, JobPerformance};
use wattle_common::subject::{Bucket, EVENT_JOBS};
use wattle_common::{JobId, Timestamp};
use wattle_runtime::clock;

use super::{Show, details, find, stored};
use crate::job_records;
use crate::output::{Align, Table, print, print_json, terminal_width};

/// An event with what its jobs lose.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    record: EventRecord,
    jobs: BTreeMap<JobId, JobPerformance>,
}

pub(super) async fn show(command: Show) -> anyhow::Result<()> {
    let bus = command.common.connection.open().await?;
    job_records::require_storage(&bus, "event show")?;
    let record = find(stored(&bus).await?, &command.event)?;
    let bucket = bus.bucket(Bucket::Budget).await?;
    let performances = bucket.get::<EventPerformances>(EVENT_JOBS).await?;
    let mut performances = performances.map(|(value, _)| value).unwrap_or_default();
    let jobs = performances.events.remove(&command.event).unwrap_or_default();
    if command.common.json {
        return print_json(&Shown { record, jobs });
    }
    print(&details(&record, clock::now()))?;
    if jobs.is_empty() {
        return Ok(());
    }
    print("")?;
    jobs_table(&jobs, clock::now(), record.returned()).fit(0, terminal_width()).print()
}

/// What the jobs of an event promised, have lost on average so far, and are expected to lose until its end.
pub(super) fn jobs_table(
    jobs: &BTreeMap<JobId, JobPerformance>,
    now: Timestamp,
    end: Timestamp,
) -> Table {
    let mut table = Table::new(&[
        ("JOB", Align::Left),
        ("GPUS", Align::Right),
        ("PROMISED", Align::Right),
        ("LOST", Align::Right),
        ("EXPECTED", Align::Right),
        ("PROMISE", Align::Left),
    ]);
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    for (id, job) in jobs {
        table.row(vec![
            id.to_string(),
            job.gpus.to_string(),
            job.promise.map_or_else(|| "-".to_owned(), |promise| percent(promise.loss())),
            percent(job.loss()),
            percent(job.expected),
            job.outcome(now, end).as_str().to_owned(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use wattle_common::job::Flexibility;

    use super::*;

    const NOW: Timestamp = Timestamp::from_s(1_795_962_300);

    #[test]
    fn the_jobs_of_an_event_have_promise_loss_and_expectation() {
        let job = |promised: Option<u32>, lost_s, expected, broken| JobPerformance {
            promise: promised
                .map(|loss_permille| Flexibility { loss_permille, ..Flexibility::default() }),
            gpus: 48,
            from_us: NOW,
            until_us: NOW + Duration::from_secs(1_000),
            lost_s,
            expected,
            broken,
        };
        let jobs = [
            ("answers", job(Some(100), 90.0, 0.0995, false)),
            ("batch", job(None, 400.0, 0.4, false)),
            ("tune", job(Some(250), 400.0, 0.36, false)),
            ("train", job(Some(500), 700.0, 0.6, true)),
            ("vision", job(Some(250), 200.0, 0.27, false)),
        ];
        let jobs = jobs.into_iter().map(|(id, job)| (JobId::new(id).unwrap(), job)).collect();
        let shown = |jobs, after_s| {
            let after = |seconds| NOW + Duration::from_secs(seconds);
            jobs_table(jobs, after(after_s), after(1_200)).render(false)
        };
        expect_test::expect![[r#"
            JOB      GPUS  PROMISED    LOST  EXPECTED  PROMISE
            answers    48    10.0 %   9.0 %    10.0 %  kept
            batch      48         -  40.0 %    40.0 %  none
            train      48    50.0 %  70.0 %    60.0 %  broken for the target
            tune       48    25.0 %  40.0 %    36.0 %  exceeded
            vision     48    25.0 %  20.0 %    27.0 %  at risk
        "#]]
        .assert_eq(&shown(&jobs, 1_000));
        // Of a job that has left, what it has lost counts.
        let left = shown(&jobs, 1_190);
        assert_eq!(left.matches("exceeded").count(), 1, "{left}");
        assert_eq!(left.matches("at risk").count(), 0, "{left}");
    }
}
