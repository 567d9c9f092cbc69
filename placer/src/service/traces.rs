//! Spans of each job from its submission to its end, for OpenTelemetry. A job is a trace; its spans are:
//!
//! | span | from | to |
//! |---|---|---|
//! | `job` | submission | end |
//! | `queued` | submission, or return to the queue | decision |
//! | `starting` | decision | all its nodes report it as running |
//! | `caps` | the order of a node is written | the node's power agent reports this order as carried out |
//! | `running` | it runs | it has ended, or is back in the queue |
//!
//! All but the first are parts of `job` and have the number of the attempt. A span is sent when it ends; spans
//! of caps that are ordered while the placer restarts are missing.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use wattle_common::job::JobPhase;
use wattle_common::messages::{JobRecord, NodeDesired, PowerReport};
use wattle_common::{ClusterId, GpuIndex, JobId, NodeId, Power, Timestamp};
use wattle_runtime::traces::{Exporter, Span};

use crate::live::{Action, Event, PersistedState};

/// The span of a complete job.
const JOB: &str = "job";

/// The newest attempt of a job, as last stored.
#[derive(Clone, Copy)]
struct Known {
    phase: JobPhase,
    since: Timestamp,
    attempt: u32,
    runs_since: Option<Timestamp>,
}

impl Known {
    fn of(record: &JobRecord) -> Self {
        let runs = matches!(record.phase, JobPhase::Running | JobPhase::Stopping);
        Self {
            phase: record.phase,
            since: record.phase_since_us,
            attempt: record.attempt,
            runs_since: Some(record.phase_since_us).filter(|_| runs),
        }
    }
}

/// An order for a job's GPUs on one node that its power agent has not reported yet.
struct Ordered {
    job: JobId,
    attempt: u32,
    generation: u64,
    at: Timestamp,
    gpus: Vec<GpuIndex>,
    cap: Option<Power>,
}

/// Makes spans of records, orders and reports.
struct Spans {
    cluster: ClusterId,
    jobs: BTreeMap<JobId, Known>,
    /// The jobs of each node's last order.
    named: BTreeMap<NodeId, BTreeSet<(JobId, u32)>>,
    unconfirmed: BTreeMap<NodeId, Vec<Ordered>>,
}

impl Spans {
    fn new(cluster: &ClusterId, persisted: &PersistedState) -> Self {
        let open = persisted.jobs.iter().filter(|record| !record.phase.is_final());
        let named = |desired: &NodeDesired| {
            let jobs = desired.jobs.iter().map(|job| (job.job.clone(), job.attempt));
            (desired.node.clone(), jobs.collect())
        };
        Self {
            cluster: cluster.clone(),
            jobs: open.map(|record| (record.spec.job.clone(), Known::of(record))).collect(),
            named: persisted.desired.iter().map(named).collect(),
            unconfirmed: BTreeMap::new(),
        }
    }

    fn span(
        &self,
        job: &JobId,
        name: &str,
        attempt: u32,
        start: Timestamp,
        end: Timestamp,
    ) -> Span {
        Span {
            trace: format!("{}/{job}", self.cluster),
            id: format!("{name} {attempt}"),
            parent: Some(JOB.to_owned()),
            start,
            end,
            attributes: vec![
                ("wattle.job", job.as_str().into()),
                ("wattle.attempt", attempt.into()),
            ],
            error: None,
        }
    }

    /// A record is stored.
    fn record(&mut self, record: &JobRecord) -> Vec<Span> {
        let job = &record.spec.job;
        let mut now = Known::of(record);
        let Some(before) = self.jobs.get(job).copied() else {
            if !record.phase.is_final() {
                self.jobs.insert(job.clone(), now);
            }
            return Vec::new();
        };
        now.runs_since = now.runs_since.map(|at| before.runs_since.unwrap_or(at));
        let mut spans = Vec::new();
        let changed = (before.phase, before.attempt) != (now.phase, now.attempt);
        if changed && before.phase == JobPhase::Queued && !now.phase.is_final() {
            let mut span = self.span(job, "queued", now.attempt, before.since, now.since);
            // The reason of the placement; the limits may have lowered the setting after it.
            let why = record.reasons.iter().rfind(|reason| !reason.is_of_setting());
            let why = why.map(|reason| Value::from(reason.reason.clone()));
            let at = record.placement.as_ref().map(|at| Value::from(at.to_string()));
            span.attributes.extend(at.map(|at| ("wattle.placement", at)));
            span.attributes.extend(why.map(|why| ("wattle.reason", why)));
            spans.push(span);
        }
        if changed && before.phase == JobPhase::Starting {
            spans.push(self.span(job, "starting", before.attempt, before.since, now.since));
        }
        if let (Some(start), None) = (before.runs_since, now.runs_since) {
            spans.push(self.span(job, "running", before.attempt, start, now.since));
        }
        if record.phase.is_final() {
            self.jobs.remove(job);
            self.unconfirmed.retain(|_, orders| {
                orders.retain(|order| order.job != *job);
                !orders.is_empty()
            });
            spans.push(self.complete(record));
        } else {
            self.jobs.insert(job.clone(), now);
        }
        spans
    }

    fn complete(&self, record: &JobRecord) -> Span {
        let (job, spec) = (&record.spec.job, &record.spec);
        let end = record.ended_at_us.unwrap_or(record.phase_since_us);
        let mut span = self.span(job, JOB, record.attempt, spec.submitted_at_us, end);
        (span.id, span.parent) = (JOB.to_owned(), None);
        let text = |text: &Option<String>| text.as_deref().map(Value::from);
        let further = [
            ("wattle.name", Some(spec.name.as_str().into())),
            ("wattle.user", text(&spec.user)),
            ("wattle.phase", Some(record.phase.to_string().into())),
            ("wattle.energy_j", record.energy_mj.map(|energy| energy.as_j().into())),
        ];
        span.attributes.extend(further.into_iter().filter_map(|(key, value)| Some((key, value?))));
        if record.phase == JobPhase::Failed {
            let code = record.exit_code.map(|code| format!("exit code {code}"));
            span.error = record.error.clone().or(code).or_else(|| Some("failed".to_owned()));
        }
        span
    }

    /// The order of a node is stored.
    fn ordered(&mut self, desired: &NodeDesired) {
        let starts = desired.jobs.iter().filter(|job| !job.stop);
        let jobs: BTreeSet<(JobId, u32)> =
            starts.clone().map(|job| (job.job.clone(), job.attempt)).collect();
        let before = self.named.insert(desired.node.clone(), jobs).unwrap_or_default();
        for job in starts.filter(|job| !before.contains(&(job.job.clone(), job.attempt))) {
            let caps = desired.gpus.iter().filter(|gpu| job.gpus.contains(&gpu.gpu));
            self.unconfirmed.entry(desired.node.clone()).or_default().push(Ordered {
                job: job.job.clone(),
                attempt: job.attempt,
                generation: desired.generation,
                at: desired.issued_at_us,
                gpus: job.gpus.clone(),
                cap: caps.filter_map(|gpu| gpu.cap_mw).max(),
            });
        }
    }

    /// A power agent has reported.
    fn reported(&mut self, report: &PowerReport) -> Vec<Span> {
        let Some(orders) = self.unconfirmed.remove(&report.node) else { return Vec::new() };
        let (done, open): (Vec<Ordered>, Vec<Ordered>) =
            orders.into_iter().partition(|order| order.generation <= report.observed_generation);
        if !open.is_empty() {
            self.unconfirmed.insert(report.node.clone(), open);
        }
        let span = |order: Ordered| {
            let name = format!("caps {}", report.node);
            let mut span = self.span(&order.job, &name, order.attempt, order.at, report.at_us);
            let own = report.gpus.iter().filter(|gpu| order.gpus.contains(&gpu.gpu));
            let applied = own.filter_map(|gpu| gpu.cap_mw).max();
            let watts = |power: Power| Value::from(power.as_w());
            span.attributes.push(("wattle.node", report.node.as_str().into()));
            span.attributes.extend(order.cap.map(|cap| ("wattle.cap_ordered_w", watts(cap))));
            span.attributes.extend(applied.map(|cap| ("wattle.cap_applied_w", watts(cap))));
            span
        };
        done.into_iter().map(span).collect()
    }
}

/// Sends the spans of the jobs of one cluster.
pub(super) struct JobTraces {
    spans: Spans,
    exporter: Exporter,
}

impl JobTraces {
    pub(super) fn new(cluster: &ClusterId, persisted: &PersistedState, exporter: Exporter) -> Self {
        Self { spans: Spans::new(cluster, persisted), exporter }
    }

    /// The placer has received an event.
    pub(super) fn received(&mut self, event: &Event) {
        match event {
            Event::Batch(events) => events.iter().for_each(|event| self.received(event)),
            Event::PowerReported(report) => {
                self.spans.reported(report).into_iter().for_each(|span| self.exporter.send(span));
            }
            _ => {}
        }
    }

    /// The placer has decided.
    pub(super) fn acted(&mut self, actions: &[Action]) {
        for action in actions {
            match action {
                Action::StoreJob(record) => {
                    self.spans.record(record).into_iter().for_each(|span| self.exporter.send(span));
                }
                Action::StoreDesired(desired) => self.spans.ordered(desired),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use wattle_common::Energy;
    use wattle_common::messages::DesiredJob;
    use wattle_testkit as testkit;

    use super::*;

    const START: Timestamp = Timestamp::from_s(1_000);

    fn at(seconds: u64) -> Timestamp {
        START + Duration::from_secs(seconds)
    }

    fn empty() -> Spans {
        Spans::new(&ClusterId::new("main").unwrap(), &PersistedState::default())
    }

    fn record(phase: JobPhase, attempt: u32, since: u64) -> JobRecord {
        let mut spec = testkit::job_spec("a", 1);
        spec.submitted_at_us = START;
        JobRecord { attempt, phase_since_us: at(since), ..testkit::job_record(spec, phase) }
    }

    /// Name, parent, start and end in seconds after the submission.
    fn shown(spans: &[Span]) -> Vec<(String, Option<&str>, u64, u64)> {
        let second = |at: Timestamp| at.since(START).as_secs();
        let shown = |span: &Span| (span.id.clone(), second(span.start), second(span.end));
        let mut all = Vec::new();
        for span in spans {
            let (id, start, end) = shown(span);
            assert_eq!(span.trace, "main/a");
            all.push((id, span.parent.as_deref().map(|_| JOB), start, end));
        }
        all
    }

    #[test]
    fn a_job_that_starts_twice_has_spans_of_both_attempts() {
        let mut spans = empty();
        let mut all = Vec::new();
        let mut store = |record: &JobRecord| all.extend(spans.record(record));
        store(&record(JobPhase::Queued, 0, 0));
        store(&record(JobPhase::Queued, 0, 0));
        store(&record(JobPhase::Starting, 1, 10));
        store(&record(JobPhase::Running, 1, 12));
        // Progress.
        store(&record(JobPhase::Running, 1, 12));
        store(&record(JobPhase::Stopping, 1, 50));
        store(&record(JobPhase::Queued, 1, 55));
        store(&record(JobPhase::Starting, 2, 60));
        store(&record(JobPhase::Running, 2, 61));
        store(&JobRecord {
            ended_at_us: Some(at(90)),
            energy_mj: Some(Energy::from_mj(5_000)),
            ..record(JobPhase::Finished, 2, 90)
        });
        let part = |name: &str, start, end| (name.to_owned(), Some(JOB), start, end);
        let expected = vec![
            part("queued 1", 0, 10),
            part("starting 1", 10, 12),
            part("running 1", 12, 55),
            part("queued 2", 55, 60),
            part("starting 2", 60, 61),
            part("running 2", 61, 90),
            (JOB.to_owned(), None, 0, 90),
        ];
        assert_eq!(shown(&all), expected);
        let job = all.last().unwrap();
        assert!(job.attributes.contains(&("wattle.energy_j", 5.0.into())), "{job:?}");
        assert_eq!(job.error, None);
        assert!(spans.jobs.is_empty());
    }

    #[test]
    fn a_failed_job_names_its_error_and_a_cancelled_one_none() {
        let end = |phase, code| {
            let mut spans = empty();
            spans.record(&record(JobPhase::Queued, 0, 0));
            let record = JobRecord { exit_code: code, ..record(phase, 0, 5) };
            spans.record(&record).pop().and_then(|span| span.error)
        };
        assert_eq!(end(JobPhase::Failed, Some(3)).as_deref(), Some("exit code 3"));
        assert_eq!(end(JobPhase::Failed, None).as_deref(), Some("failed"));
        assert_eq!(end(JobPhase::Cancelled, Some(143)), None);
    }

    #[test]
    fn caps_of_a_start_end_with_the_report_of_their_order() {
        let mut spans = empty();
        let order = |generation, attempt, seconds| {
            let (issued, expires) = (at(seconds), at(seconds + 60));
            let job = DesiredJob {
                job: testkit::job("a"),
                admission: None,
                user: None,
                attempt,
                gpus: vec![0],
                rank: 0,
                shares: Vec::new(),
                command: Vec::new(),
                environment: Vec::new(),
                working_dir: None,
                checkpoint_signal: None,
                stop: false,
            };
            let desired = testkit::node_desired("n0", generation, issued, expires);
            NodeDesired { jobs: vec![job], ..desired }
        };
        let report = |generation, seconds| {
            let gpus = [testkit::applied_gpu(0, "v100")];
            let mut report = testkit::power_report("n0", at(seconds), gpus);
            report.observed_generation = generation;
            report
        };
        spans.ordered(&order(7, 1, 3));
        assert_eq!(spans.reported(&report(6, 4)), []);
        let done = spans.reported(&report(7, 5));
        assert_eq!(shown(&done), [("caps n0 1".to_owned(), Some(JOB), 3, 5)]);
        assert_eq!(spans.reported(&report(7, 6)), []);
        // A renewal of the same order is no new span; the next attempt is one.
        spans.ordered(&order(8, 1, 10));
        assert_eq!(spans.reported(&report(8, 11)), []);
        spans.ordered(&order(9, 2, 20));
        assert_eq!(
            shown(&spans.reported(&report(9, 22))),
            [("caps n0 2".to_owned(), Some(JOB), 20, 22)]
        );
        // A job that ends first leaves nothing.
        spans.record(&record(JobPhase::Running, 3, 30));
        spans.ordered(&order(10, 3, 30));
        spans.record(&record(JobPhase::Finished, 3, 31));
        assert!(spans.unconfirmed.is_empty());
    }
}
