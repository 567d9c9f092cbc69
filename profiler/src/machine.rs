//! Decides what samples, progress and reports mean, and what is published.
//!
//! Inputs are GPU samples, the jobs' progress lines, the launcher's and the power agent's reports and
//! the placer's records. Outputs are telemetry (batches, summaries), job progress, windows and ledger
//! entries. All state is bounded by the node's GPUs and jobs.

mod accounts;

use std::collections::{BTreeMap, BTreeSet};

use wattle_common::messages::{
    AppliedGpu, GpuSample, JobProgressed, JobRecord, JobSummary, JobWindow, LaunchReport,
    LedgerEntry, Meter, Neighbour, NodeSummary, PowerReport, TelemetryBatch, UnknownCause,
};
use wattle_common::progress::Progress;
use wattle_common::{GpuIndex, JobId, Machine, NodeId, Power, Timestamp};

use crate::config::Settings;
use crate::energy::EnergySpent;
use crate::gpu_tracker::{AttributedSample, GpuIdentity, GpuTracker, SampledGpu};
use crate::jobs::{JobTable, ProgressResult};
use crate::ledger::{Ledger, Submission};
use crate::note::Note;
use crate::resume::{Boot, Resumed, State};
use crate::sender::Sender;
use crate::window::{Conditions, OpenWindow};
use crate::windowing;

/// Most samples in one batch: at some 100 bytes each, a batch stays far below NATS's limit of 1 MB.
const BATCH_SAMPLES_MAX: usize = 2_048;

/// An input of the profiler.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The node's GPUs were found.
    GpusFound(Vec<GpuIdentity>),
    /// Every GPU was read; a reading may have failed.
    Sampled {
        /// When, slightly before the event.
        at: Timestamp,
        /// The readings.
        gpus: Vec<SampledGpu>,
    },
    /// No GPU can be read: there is no driver.
    DriverFailed(String),
    /// A job reported progress.
    Progressed {
        /// When the line was received.
        at: Timestamp,
        /// The line.
        line: Progress,
        /// Its sender.
        sender: Sender,
    },
    /// The launcher of this node reported.
    LaunchReported(LaunchReport),
    /// The power agent of this node reported.
    PowerReported(PowerReport),
    /// The placer's record of a job changed.
    JobRecorded(Box<JobRecord>),
    /// The placer's record of a job was deleted.
    RecordDeleted(JobId),
    /// A ledger entry was stored, or could not be stored.
    LedgerStored {
        /// The entry's start.
        from: Timestamp,
        /// Whether it is stored.
        stored: bool,
    },
    /// The service is shutting down.
    StopRequested,
}

/// An output of the profiler.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Publish these samples.
    PublishBatch(TelemetryBatch),
    /// Publish this summary.
    PublishSummary(NodeSummary),
    /// Publish a job's progress.
    PublishProgress(JobProgressed),
    /// Store this window.
    StoreWindow(Box<JobWindow>),
    /// Store this in the state file, before the next action.
    SaveState(State),
    /// Store this entry; the result is [`Event::LedgerStored`].
    StoreLedger(LedgerEntry),
    /// Write this to the log.
    Log(Note),
}

/// The profiler of one node.
#[derive(Clone, Debug)]
pub struct ProfilerMachine {
    node: NodeId,
    settings: Settings,
    jobs: JobTable,
    gpus: BTreeMap<GpuIndex, GpuTracker>,
    /// What the power agent last reported of each GPU: its clock lock and its default cap.
    applied: BTreeMap<GpuIndex, AppliedGpu>,
    ledger: Ledger,
    boot: Option<Boot>,
    /// The content of the state file.
    saved: State,
    /// The stored state of an earlier run of the profiler; absent after the first event.
    earlier: Option<State>,
    /// The earlier state with its times by this run's clock. It still has the GPUs that this run has not found.
    resumed: Option<Resumed>,
    batch: Vec<GpuSample>,
    sequence: u64,
    batch_at: Timestamp,
    summary_at: Timestamp,
    ledger_at: Timestamp,
    checkpoint_at: Timestamp,
    /// Whether a ledger entry was sent and its result is awaited.
    storing: bool,
    samples: u32,
    /// Energy of each GPU attributed to each job since the last summary, over the time between readings.
    attributed: BTreeMap<JobId, BTreeMap<GpuIndex, EnergySpent>>,
    readings_failed: u32,
    driver_error: Option<String>,
}

impl ProfilerMachine {
    /// A machine that continues from the state of an earlier run, if there is one; `boot` is the node's
    /// current boot, if it is known.
    #[must_use]
    pub fn new(
        node: NodeId,
        settings: Settings,
        earlier: Option<State>,
        boot: Option<Boot>,
    ) -> Self {
        let mut ledger = Ledger::new(node.clone(), settings.host_power);
        ledger.pending = earlier.as_ref().and_then(|state| state.pending.clone());
        Self {
            jobs: JobTable::new(node.clone()),
            node,
            settings,
            gpus: BTreeMap::new(),
            applied: BTreeMap::new(),
            ledger,
            boot,
            saved: earlier.clone().unwrap_or_default(),
            earlier,
            resumed: None,
            batch: Vec::new(),
            sequence: 0,
            batch_at: Timestamp::EPOCH,
            summary_at: Timestamp::EPOCH,
            ledger_at: Timestamp::EPOCH,
            checkpoint_at: Timestamp::EPOCH,
            storing: false,
            samples: 0,
            attributed: BTreeMap::new(),
            readings_failed: 0,
            driver_error: None,
        }
    }

    /// Whether the result of a ledger entry is awaited.
    #[must_use]
    pub const fn ledger_pending(&self) -> bool {
        self.storing
    }

    fn sampled(&mut self, now: Timestamp, samples: Vec<SampledGpu>, out: &mut Vec<Action>) {
        self.driver_error = None;
        self.samples += 1;
        self.begin_ledger(now);
        let mut gpus = BTreeMap::new();
        for sample in samples {
            let gap_max = self.settings.gap_max;
            let tracker = self.gpus.entry(sample.gpu).or_insert_with(|| GpuTracker::new(gap_max));
            let reading = match sample.reading {
                Ok(reading) => reading,
                Err(error) => {
                    self.readings_failed += 1;
                    if tracker.failed(error.clone(), UnknownCause::GpuLost) {
                        out.push(Action::Log(Note::Lost(sample.gpu, error)));
                    }
                    continue;
                }
            };
            let (was_lost, was_stuck) = (tracker.error.is_some(), tracker.measure.stuck());
            let meter_before = tracker.meter;
            let origins = &sample.origins;
            let (attributed, telemetry) =
                tracker.read(now, sample.gpu, reading, origins, &self.jobs, &self.settings);
            if was_lost {
                out.push(Action::Log(Note::Recovered(sample.gpu)));
            }
            if tracker.measure.stuck() && !was_stuck {
                out.push(Action::Log(Note::CounterStuck(sample.gpu)));
            }
            if let Some(note) = Note::of_meter(sample.gpu, meter_before, tracker.meter) {
                out.push(Action::Log(note));
            }
            self.account(sample.gpu, &attributed);
            if self.batch.len() < BATCH_SAMPLES_MAX {
                self.batch.push(telemetry);
            }
            gpus.insert(sample.gpu, attributed);
        }
        self.sample_windows(now, &gpus, out);
    }

    fn sample_windows(
        &mut self,
        now: Timestamp,
        gpus: &BTreeMap<GpuIndex, AttributedSample>,
        out: &mut Vec<Action>,
    ) {
        let ids: Vec<JobId> = self.jobs.local.keys().cloned().collect();
        for id in ids {
            let conditions = self.conditions(&id, gpus);
            if let Some(job) = self.jobs.local.get_mut(&id) {
                let window = windowing::sample(job, &id, now, conditions, gpus, &self.settings);
                self.store(&id, window, out);
            }
        }
    }

    fn store(&self, id: &JobId, window: Option<(OpenWindow, bool)>, out: &mut Vec<Action>) {
        let Some((window, early)) = window else { return };
        let gpu_type = |gpu: &GpuIndex| self.gpus.get(gpu).map(|tracker| tracker.gpu_type.clone());
        let gpu_type =
            window.conditions.declared.gpus.first().and_then(gpu_type).unwrap_or_default();
        let window = window.into_message(id.clone(), self.node.clone(), gpu_type, early);
        out.push(Action::StoreWindow(Box::new(window)));
    }

    /// The conditions under which a job runs; `None` unless its record agrees with the launcher
    /// and each of its GPUs was read.
    fn conditions(
        &self,
        id: &JobId,
        gpus: &BTreeMap<GpuIndex, AttributedSample>,
    ) -> Option<Conditions> {
        let job = self.jobs.local.get(id)?;
        let declared = self.jobs.declared(id).filter(|d| d.gpus == job.gpus)?;
        let mine: Vec<&AttributedSample> =
            job.gpus.iter().map(|gpu| gpus.get(gpu)).collect::<Option<_>>()?;
        if mine.is_empty() {
            return None;
        }
        let mut neighbours: Vec<Neighbour> = Vec::new();
        let others = mine.iter().flat_map(|tracker| &tracker.tenants);
        for other in others.filter_map(|tenant| tenant.job.as_ref()).filter(|job| *job != id) {
            if neighbours.iter().all(|neighbour| neighbour.job != *other) {
                let workload = self.jobs.declared(other).and_then(|d| d.workload.clone());
                neighbours.push(Neighbour { job: other.clone(), workload });
            }
        }
        neighbours.sort();
        Some(Conditions {
            declared: declared.clone(),
            admission: job.admission.clone(),
            attempt: job.attempt,
            caps: mine.iter().map(|tracker| tracker.cap).collect(),
            locks: job.gpus.iter().map(|gpu| self.applied.get(gpu)?.clock_mhz_max).collect(),
            neighbours,
            unknown_processes: mine
                .iter()
                .any(|tracker| tracker.tenants.iter().any(|t| t.job.is_none())),
        })
    }

    fn flush(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        self.batch_at = now + self.settings.batch_every;
        if self.batch.is_empty() {
            return;
        }
        let samples = std::mem::take(&mut self.batch);
        self.batch.reserve(samples.len());
        let (node, sequence) = (self.node.clone(), self.sequence);
        self.sequence += 1;
        out.push(Action::PublishBatch(TelemetryBatch { node, sequence, samples }));
    }

    fn summarize(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        self.summary_at = now + self.settings.summary_every;
        let gpus = self.gpus.iter_mut().map(|(gpu, tracker)| tracker.summarize(*gpu)).collect();
        let jobs = self.summarize_jobs();
        out.push(Action::PublishSummary(NodeSummary {
            node: self.node.clone(),
            at_us: now,
            span_ms: u64::try_from(self.settings.summary_every.as_millis()).unwrap_or(u64::MAX),
            observed_generation: self.jobs.observed_generation,
            samples: std::mem::take(&mut self.samples),
            readings_failed: std::mem::take(&mut self.readings_failed),
            gpus,
            jobs,
            power_mw_host: Some(self.settings.host_power).filter(|power| *power > Power::ZERO),
            ledger_from_us: self.ledger.from(),
        }));
    }

    /// The jobs on the node and those with energy in the open ledger interval, by submission.
    fn summarize_jobs(&mut self) -> Vec<JobSummary> {
        let attributed = std::mem::take(&mut self.attributed);
        let local = self.jobs.local.iter().map(|(id, job)| (id.clone(), job.admission.clone()));
        let all: BTreeSet<Submission> = local.chain(self.ledger.submissions()).collect();
        let is_read = |id: &JobId| {
            let gpus = self.jobs.local.get(id).map(|job| job.gpus.as_slice()).unwrap_or_default();
            let is_read =
                |known: &GpuTracker| known.error.is_none() && known.meter != Some(Meter::None);
            gpus.iter().all(|gpu| self.gpus.get(gpu).is_some_and(is_read))
        };
        // Of a submission that has ended no power is attributed.
        let runs = |(id, admission): &Submission| {
            self.jobs.local.get(id).is_none_or(|local| local.admission == *admission)
        };
        all.into_iter()
            .map(|of| JobSummary {
                power_mw_mean: attributed
                    .get(&of.0)
                    .filter(|_| runs(&of) && is_read(&of.0))
                    .and_then(|gpus| gpus.values().map(EnergySpent::mean_power).sum()),
                energy_mj_open: self.ledger.attributed(&of),
                unmetered_ms_open: self.ledger.unmetered_ms(&of),
                job: of.0,
                admission: of.1,
            })
            .collect()
    }

    /// Sends the batch, the summary and the ledger entry where due.
    fn send_due(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        if now >= self.batch_at || self.batch.len() >= BATCH_SAMPLES_MAX {
            self.flush(now, out);
        }
        if now >= self.summary_at {
            self.summarize(now, out);
        }
        if now >= self.ledger_at {
            self.advance_ledger(now, out);
        }
        if now >= self.checkpoint_at {
            self.checkpoint(now, out);
        }
    }

    fn launched(&mut self, now: Timestamp, report: &LaunchReport, out: &mut Vec<Action>) {
        for (id, mut job) in self.jobs.launched(now, report) {
            let window = windowing::end(&mut job, &self.settings);
            self.store(&id, window, out);
        }
    }

    fn stop(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        let mut local = std::mem::take(&mut self.jobs.local);
        for (id, job) in &mut local {
            let window = windowing::end(job, &self.settings);
            self.store(id, window, out);
        }
        self.flush(now, out);
        // Later readings have no known owner.
        self.jobs.reported_at = None;
        if !self.storing {
            self.advance_ledger(now, out);
        }
        self.checkpoint(now, out);
    }
}

impl Machine for ProfilerMachine {
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Timestamp, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::GpusFound(found) => self.gpus_found(now, found),
            Event::Sampled { at, gpus } => self.sampled(at, gpus, out),
            Event::DriverFailed(error) => {
                for tracker in self.gpus.values_mut() {
                    tracker.failed(error.clone(), UnknownCause::DriverFailed);
                }
                self.readings_failed += self.gpus.len() as u32;
                if self.driver_error.as_ref() != Some(&error) {
                    out.push(Action::Log(Note::DriverFailed(error.clone())));
                    self.driver_error = Some(error);
                }
                // Without GPUs the conditions are unknown, which closes open windows.
                self.sample_windows(now, &BTreeMap::new(), out);
            }
            Event::Progressed { at, line, sender } => {
                let every = self.settings.progress_every;
                match self.jobs.progressed(at, &line, &sender, every) {
                    ProgressResult::Kept(progress) => {
                        out.extend(progress.map(Action::PublishProgress));
                    }
                    ProgressResult::Refused => {
                        out.push(Action::Log(Note::ForeignProgress(line.job, sender.uid)));
                    }
                }
            }
            Event::LaunchReported(report) if report.node == self.node => {
                self.launched(now, &report, out);
            }
            Event::PowerReported(report) if report.node == self.node => {
                self.applied = report.gpus.into_iter().map(|gpu| (gpu.gpu, gpu)).collect();
            }
            Event::LaunchReported(_) | Event::PowerReported(_) => {}
            Event::JobRecorded(record) => self.jobs.recorded(&record),
            Event::RecordDeleted(job) => self.jobs.forgotten(&job),
            Event::LedgerStored { from, stored } => self.ledger_stored(from, stored, out),
            Event::StopRequested => self.stop(now, out),
        }
        self.send_due(now, out);
    }

    fn wake(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        self.send_due(now, out);
    }

    fn next_wake(&self) -> Option<(Timestamp, &'static str)> {
        let batch = (!self.batch.is_empty()).then_some((self.batch_at, "batch is due"));
        let summary = Some((self.summary_at, "summary is due"));
        let ledger = Some((self.ledger_at, "ledger entry is due"));
        let checkpoint = Some((self.checkpoint_at, "state is to be saved"));
        [batch, summary, ledger, checkpoint].into_iter().flatten().min_by_key(|(at, _)| *at)
    }
}
