//! A job as the tables show it: power now, energy so far, progress and predicted rest.

use std::time::Duration;

use serde::Serialize;
use wattle_common::job::{GpuRequest, JobPhase};
use wattle_common::messages::{JobCounts, JobRecord, JobSummary, Late, NodeSummary, ReachedLimit};
use wattle_common::{AdmissionId, Energy, NodeId, Power, Timestamp};

use crate::Summaries;

/// A job with the quantities that follow from its record and the last readings.
#[derive(Clone, Debug, Serialize)]
pub struct JobView {
    /// The placer's record.
    #[serde(flatten)]
    pub record: JobRecord,
    /// Power attributed to it now; absent: it does not run, or there is no reading.
    pub power_mw: Option<Power>,
    /// Energy so far: the ledger, and the open interval of the nodes that answer.
    pub energy_mj_total: Option<Energy>,
    /// Time of its GPUs without a meter so far, summed over GPUs, milliseconds: their energy is not known.
    #[serde(skip_serializing_if = "is_zero")]
    pub unmetered_ms_total: u64,
    /// Completed share of its work, 0 to 1.
    pub done: Option<f64>,
    /// Remaining run time without waiting, milliseconds.
    pub rest_ms: Option<u64>,
    /// Time with GPUs until now or its end, milliseconds.
    pub ran_ms: Option<u64>,
    /// Time without GPUs from its submission until now or its end, milliseconds.
    pub waited_ms: Option<u64>,
    /// How late it is.
    #[serde(skip)]
    pub late: Option<Late>,
}

impl JobView {
    /// The view of a record at `now`.
    #[must_use]
    pub fn new(record: JobRecord, summaries: &Summaries, now: Timestamp) -> Self {
        Self::on(record, &summaries.values().collect::<Vec<_>>(), now)
    }

    /// As [`Self::new`], with the summaries of those nodes only that may have energy of the job.
    #[must_use]
    pub fn on(record: JobRecord, summaries: &[&NodeSummary], now: Timestamp) -> Self {
        let ms = |span: Duration| span.as_millis() as u64;
        Self {
            power_mw: power(&record, summaries),
            energy_mj_total: energy(&record, summaries),
            unmetered_ms_total: unmetered_ms(&record, summaries),
            done: record.done(now),
            rest_ms: record.rest(now).map(ms),
            ran_ms: record.ran(now).map(ms),
            waited_ms: record.waited(now).map(ms),
            late: record.late(now),
            record,
        }
    }

    /// Its energy so far in words: `at least ...` or `not known` where a GPU has no meter; `None`: no reading yet.
    pub fn energy_stated(&self, format: impl FnOnce(Energy) -> String) -> Option<String> {
        match (self.energy_mj_total, self.unmetered_ms_total) {
            (Some(energy), 0) => Some(format(energy)),
            (Some(energy), _) => Some(format!("at least {}", format(energy))),
            (None, 0) => None,
            (None, _) => Some("not known".to_owned()),
        }
    }

    /// Why its energy is not known, or only in part.
    pub fn energy_missing(&self) -> Option<&'static str> {
        let of = match (self.energy_mj_total, self.unmetered_ms_total) {
            (_, 0) => return None,
            (Some(_), _) => "power and energy are not supported by some of its GPUs",
            (None, _) => "power and energy are not supported",
        };
        Some(of)
    }

    /// Its stops without a checkpoint in a sentence; `None`: it had none.
    pub fn stops_unsaved(&self) -> Option<String> {
        let stops = match self.record.stops_unsaved {
            0 => return None,
            1 => "1 stop".to_owned(),
            stops => format!("{stops} stops"),
        };
        Some(format!("{stops} without a checkpoint: its work since the checkpoint before was lost"))
    }

    /// Remaining run time without waiting.
    pub fn rest(&self) -> Option<Duration> {
        self.rest_ms.map(Duration::from_millis)
    }

    /// The phase in one word; the limit that a failed program reached, or its exit code, follows it.
    pub fn phase(&self) -> String {
        let record = &self.record;
        let limit =
            record.limit.filter(|_| record.phase == JobPhase::Failed).map(|limit| match limit {
                ReachedLimit::MemoryMib(_) => "memory",
                ReachedLimit::Processes(_) => "processes",
                ReachedLimit::Seconds(_) => "time",
            });
        match record.exit_code {
            _ if let Some(limit) = limit => format!("{} ({limit})", record.phase),
            _ if record.observing && record.phase == JobPhase::Running => "observed".to_owned(),
            Some(code) if code != 0 => format!("{} ({code})", record.phase),
            _ => record.phase.to_string(),
        }
    }

    /// The number of assigned GPUs, else the requested number with its type.
    pub fn gpus(&self) -> String {
        let spec = &self.record.spec;
        let count = match &self.record.placement {
            Some(placement) => GpuRequest::exactly(placement.gpu_count()),
            None => spec.gpus,
        };
        match &spec.gpu_type {
            Some(gpu_type) => format!("{count} {gpu_type}"),
            None => count.to_string(),
        }
    }

    /// Time with GPUs, summed over its starts; `None`: it has not held any.
    pub fn ran(&self) -> Option<Duration> {
        self.ran_ms.map(Duration::from_millis)
    }

    /// Time without GPUs from its submission to its end; `None`: not known.
    pub fn waited(&self) -> Option<Duration> {
        self.waited_ms.map(Duration::from_millis)
    }

    /// The time to its deadline, or how late it is: `2:00:00`, `late 0:45`; `time` formats a duration.
    pub fn deadline(&self, now: Timestamp, time: impl Fn(Duration) -> String) -> Option<String> {
        let deadline = self.record.spec.deadline_at_us?;
        match self.late {
            Some(Late::Passed(by)) => Some(format!("late {}", time(by))),
            Some(Late::Predicted(_)) => Some(format!("{} (missed)", time(deadline.since(now)))),
            None => (!self.record.phase.is_final()).then(|| time(deadline.since(now))),
        }
    }

    /// Whether its processes may draw power.
    pub fn is_running(&self) -> bool {
        self.record.phase.has_gpus()
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// The number of jobs in each phase, in one line: `3 running, 1 starting, 1 queued`. Running and queued jobs are
/// named also where there are none.
#[must_use]
pub fn counts(counts: &JobCounts) -> String {
    let always = [JobPhase::Running, JobPhase::Queued];
    let words = [
        JobPhase::Running,
        JobPhase::Starting,
        JobPhase::Stopping,
        JobPhase::Queued,
        JobPhase::Finished,
        JobPhase::Failed,
        JobPhase::Cancelled,
    ]
    .into_iter()
    .map(|phase| (phase, counts.get(&phase).copied().unwrap_or(0)))
    .filter(|(phase, jobs)| *jobs > 0 || always.contains(phase))
    .map(|(phase, jobs)| format!("{jobs} {phase}"));
    words.collect::<Vec<_>>().join(", ")
}

/// The attributed power of a running job over its nodes; `None` unless each of them has a reading.
fn power(record: &JobRecord, summaries: &[&NodeSummary]) -> Option<Power> {
    let placement = record.placement.as_ref().filter(|_| record.phase.has_gpus())?;
    let on = |node: &NodeId| {
        let jobs = &summaries.iter().find(|summary| summary.node == *node)?.jobs;
        jobs.iter().find(|job| is_of(job, record))?.power_mw_mean
    };
    placement.shares.iter().map(|share| on(&share.node)).sum()
}

/// The energy in the ledger, plus that of the open intervals that follow the counted entries.
fn energy(record: &JobRecord, summaries: &[&NodeSummary]) -> Option<Energy> {
    let open = open_intervals(record, summaries).filter_map(|job| job.energy_mj_open);
    record.energy_mj.into_iter().chain(open).reduce(|sum, part| sum + part)
}

/// The GPU time without a meter in the ledger, plus that of the open intervals.
fn unmetered_ms(record: &JobRecord, summaries: &[&NodeSummary]) -> u64 {
    let open = open_intervals(record, summaries).map(|job| job.unmetered_ms_open);
    open.fold(record.unmetered_ms, u64::saturating_add)
}

/// The job in the open intervals that follow the counted entries.
fn open_intervals<'s>(
    record: &'s JobRecord,
    summaries: &'s [&NodeSummary],
) -> impl Iterator<Item = &'s JobSummary> {
    summaries.iter().filter_map(|summary| {
        let node = &summary.node;
        let counted = record.energy_until_us.get(node).copied().unwrap_or_default();
        // A summary from before the last counted entry holds energy that is counted already.
        let job = summary.jobs.iter().find(|job| is_of(job, record))?;
        (summary.ledger_from_us? >= counted).then_some(job)
    })
}

/// Whether a summary is of the record's submission: its name may have been submitted before.
fn is_of(summary: &JobSummary, record: &JobRecord) -> bool {
    summary.job == record.spec.job
        && AdmissionId::may_be(record.admission.as_ref(), summary.admission.as_ref())
}

#[cfg(test)]
mod tests {
    use wattle_common::messages::{JobSummary, NodeSummary};
    use wattle_testkit as testkit;

    use super::*;

    fn at(s: u64) -> Timestamp {
        Timestamp::from_s(s)
    }

    fn running() -> JobRecord {
        JobRecord {
            placement: Some(testkit::placement([("n0", [0, 1]), ("n1", [0, 1])])),
            started_at_us: Some(at(10)),
            step: Some(100),
            steps_total: Some(1_000),
            step_at_us: Some(at(100)),
            steps_per_s: Some(2.0),
            energy_mj: Some(Energy::from_j(500)),
            energy_until_us: [(testkit::node("n0"), at(60))].into(),
            ..testkit::job_record(testkit::job_spec("a", 4), JobPhase::Running)
        }
    }

    fn summary(node: &str, from: u64, watts: Option<u64>) -> NodeSummary {
        NodeSummary {
            node: testkit::node(node),
            at_us: at(100),
            span_ms: 1_000,
            observed_generation: 0,
            samples: 10,
            readings_failed: 0,
            gpus: Vec::new(),
            jobs: vec![JobSummary {
                job: testkit::job("a"),
                admission: None,
                power_mw_mean: watts.map(Power::from_w),
                energy_mj_open: Some(Energy::from_j(40)),
                unmetered_ms_open: 0,
            }],
            power_mw_host: None,
            ledger_from_us: Some(at(from)),
        }
    }

    fn summaries(all: [NodeSummary; 2]) -> Summaries {
        all.into_iter().map(|summary| (summary.node.clone(), summary)).collect()
    }

    #[test]
    fn every_phase_is_counted_as_itself() {
        let of = |all: &[(JobPhase, u64)]| counts(&all.iter().copied().collect());
        assert_eq!(of(&[]), "0 running, 0 queued");
        assert_eq!(
            of(&[(JobPhase::Starting, 1), (JobPhase::Stopping, 2), (JobPhase::Failed, 3)]),
            "0 running, 1 starting, 2 stopping, 0 queued, 3 failed"
        );
    }

    #[test]
    fn power_needs_a_reading_of_every_node() {
        let both = summaries([summary("n0", 60, Some(150)), summary("n1", 60, Some(50))]);
        let view = JobView::new(running(), &both, at(100));
        assert_eq!(view.power_mw, Some(Power::from_w(200)));
        let one = summaries([summary("n0", 60, Some(150)), summary("n1", 60, None)]);
        assert_eq!(JobView::new(running(), &one, at(100)).power_mw, None);
        let ended = JobRecord { phase: JobPhase::Finished, ..running() };
        assert_eq!(JobView::new(ended, &both, at(100)).power_mw, None);
    }

    #[test]
    fn stops_without_a_checkpoint_are_named() {
        let stops = |stops_unsaved| {
            let record = JobRecord { stops_unsaved, ..running() };
            JobView::new(record, &Summaries::new(), at(100)).stops_unsaved()
        };
        let text = |stops: &str| {
            let lost = "without a checkpoint: its work since the checkpoint before was lost";
            Some(format!("{stops} {lost}"))
        };
        assert_eq!([stops(0), stops(1), stops(2)], [None, text("1 stop"), text("2 stops")]);
    }

    #[test]
    fn failed_jobs_show_their_limit_or_exit_code() {
        let phase = |limit| {
            let record =
                JobRecord { phase: JobPhase::Failed, exit_code: Some(137), limit, ..running() };
            JobView::new(record, &Summaries::new(), at(100)).phase()
        };
        assert_eq!(phase(None), "failed (137)");
        assert_eq!(phase(Some(ReachedLimit::MemoryMib(1_024))), "failed (memory)");
        assert_eq!(phase(Some(ReachedLimit::Processes(64))), "failed (processes)");
    }

    /// Run for 78 min in two starts, and queued again since 5 h after the submission.
    #[test]
    fn run_time_and_waits_are_sums_over_the_starts() {
        let (minute, hour) = (60, 3_600);
        let mut record = JobRecord {
            attempt: 2,
            phase: JobPhase::Queued,
            phase_since_us: at(5 * hour),
            run_time_ms: Some(78 * minute * 1_000),
            placement: None,
            ..running()
        };
        record.spec.submitted_at_us = at(0);
        let times = |record: &JobRecord, now| {
            let view = JobView::new(record.clone(), &Summaries::new(), at(now));
            (view.ran().map(|ran| ran.as_secs()), view.waited())
        };
        let of = |ran_min: u64, waited_min: u64| {
            (Some(ran_min * minute), Some(Duration::from_secs(waited_min * minute)))
        };
        assert_eq!(times(&record, 8 * hour), of(78, 8 * 60 - 78), "no run time while queued");
        record.phase = JobPhase::Running;
        assert_eq!(times(&record, 6 * hour), of(78 + 60, 6 * 60 - 78 - 60), "it runs for an hour");
        record.phase = JobPhase::Failed;
        record.run_time_ms = Some(90 * minute * 1_000);
        record.ended_at_us = Some(at(6 * hour));
        assert_eq!(times(&record, 9 * hour), of(90, 6 * 60 - 90), "an ended job keeps both");
    }

    #[test]
    fn readings_of_another_submission_of_the_name_do_not_count() {
        let [first, second] = [1, 2].map(|s| Some(AdmissionId::accepted(at(s), 1)));
        let mut both = summary("n0", 60, Some(150));
        both.jobs[0].admission = first.clone();
        both.jobs.push(JobSummary { admission: second.clone(), ..both.jobs[0].clone() });
        both.jobs[1].energy_mj_open = Some(Energy::from_j(7));
        both.jobs[1].power_mw_mean = Some(Power::from_w(50));
        let placement = Some(testkit::placement([("n0", [0, 1])]));
        let shown = |admission| {
            let record = JobRecord { admission, placement: placement.clone(), ..running() };
            let view = JobView::on(record, &[&both], at(100));
            (view.energy_mj_total, view.power_mw)
        };
        let of =
            |joules: u64, watts| (Some(Energy::from_j(500 + joules)), Some(Power::from_w(watts)));
        assert_eq!((shown(first), shown(second)), (of(40, 150), of(7, 50)));
    }

    #[test]
    fn open_interval_counts_once() {
        let after = summaries([summary("n0", 60, None), summary("n1", 60, None)]);
        let view = JobView::new(running(), &after, at(100));
        assert_eq!(view.energy_mj_total, Some(Energy::from_j(580)));
        // The entry of n0 from 0 to 60 s is counted; a summary from before it is out of date.
        let stale = summaries([summary("n0", 0, None), summary("n1", 60, None)]);
        let view = JobView::new(running(), &stale, at(100));
        assert_eq!(view.energy_mj_total, Some(Energy::from_j(540)));
    }

    #[test]
    fn energy_without_a_meter_is_not_zero() {
        let stated = |stored: Option<u64>, open: Option<u64>, unmetered| {
            let mut one = summary("n0", 60, None);
            one.jobs[0].energy_mj_open = open.map(Energy::from_j);
            one.jobs[0].unmetered_ms_open = unmetered;
            let record = JobRecord { energy_mj: stored.map(Energy::from_j), ..running() };
            let summaries = [(one.node.clone(), one)].into_iter().collect();
            let view = JobView::new(record, &summaries, at(100));
            let text = view.energy_stated(|energy| format!("{} J", energy.as_j()));
            (text, view.energy_missing())
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(stated(None, None, 0), (None, None), "no reading yet");
        assert_eq!(stated(Some(500), Some(40), 0), (text("540 J"), None));
        let all = "power and energy are not supported";
        assert_eq!(stated(None, None, 5_000), (text("not known"), Some(all)));
        let some = "power and energy are not supported by some of its GPUs";
        assert_eq!(stated(None, Some(40), 5_000), (text("at least 40 J"), Some(some)));
        assert_eq!(stated(Some(500), None, 5_000), (text("at least 500 J"), Some(some)));
    }

    #[test]
    fn rest_follows_from_steps_and_rate() {
        let view = |record: JobRecord, now| JobView::new(record, &Summaries::new(), at(now));
        let now = view(running(), 150);
        assert_eq!((now.done, now.rest()), (Some(0.2), Some(Duration::from_secs(400))));
        let queued = JobRecord { phase: JobPhase::Queued, ..running() };
        assert_eq!(view(queued, 150).rest(), Some(Duration::from_secs(450)));
        let finished = JobRecord { phase: JobPhase::Finished, ..running() };
        assert_eq!(
            (view(finished.clone(), 150).done, view(finished, 150).rest()),
            (Some(1.0), None)
        );
        let mut estimated = JobRecord { steps_total: None, step: None, ..running() };
        estimated.spec.duration_ms_estimate = Some(600_000);
        estimated.phase_since_us = at(10);
        estimated.spec.deadline_at_us = Some(at(100));
        assert_eq!(view(estimated.clone(), 70).rest(), Some(Duration::from_secs(540)));
        let deadline = |now| {
            let seconds = |span: Duration| format!("{} s", span.as_secs());
            view(estimated.clone(), now).deadline(at(now), seconds)
        };
        assert_eq!(deadline(70).as_deref(), Some("30 s (missed)"));
        assert_eq!(deadline(160).as_deref(), Some("late 60 s"));
        // Without a measured rate the prediction of the placement is used.
        let prediction = wattle_common::messages::Prediction {
            at_us: at(1),
            predictor: testkit::predictor("physical"),
            gpu_type: "v100".to_owned(),
            windows: 0,
            basis: None,
            placed: Some(testkit::point(4, 3.0, 200.0)),
            alternatives: Vec::new(),
        };
        let fresh = JobRecord {
            steps_per_s: None,
            prediction_placed: Some(Box::new(prediction)),
            ..running()
        };
        assert_eq!(view(fresh, 150).rest(), Some(Duration::from_secs(300)));
    }
}
