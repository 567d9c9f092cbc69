//! The profiler in this process: its sampler, its socket, and their results.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::sync::mpsc;
use wattle_common::messages::JobWindow;
use wattle_common::progress::Progress;
use wattle_common::{Machine as _, NodeId, Timestamp};
use wattle_gpu::GpuReading;
use wattle_profiler::shell::{sampler, socket};
use wattle_profiler::{Action, Event, ProfilerMachine, Settings};
use wattle_runtime::clock;

use super::Plan;

/// Sampling rate, the default of the service.
const SAMPLE_HZ: u64 = 10;
const SAMPLE_HZ_WALL_MAX: u64 = 100;
const EVENTS_MAX: usize = 1_024;
/// Interval between checks of a condition without events (wall time).
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A profiler and what it has received.
pub(super) struct Profiler {
    pub(super) node: NodeId,
    gpu: u32,
    machine: ProfilerMachine,
    inbox: mpsc::Receiver<Event>,
    pub(super) socket: PathBuf,
    _sampler: sampler::Sampler,
    /// Readings of the GPU by time.
    pub(super) samples: Vec<(Timestamp, GpuReading)>,
    /// Progress reports by time of arrival.
    pub(super) reports: Vec<(Timestamp, Progress)>,
    /// Windows that the profiler closed.
    pub(super) windows: Vec<JobWindow>,
    /// Current error of the GPU or the driver.
    error: Option<String>,
}

impl Profiler {
    pub(super) fn start(plan: &Plan, directory: &Path) -> Result<Self> {
        let rate = clock::scale().rate;
        let own = Duration::from_secs(1) / SAMPLE_HZ as u32;
        let every = own.max(Duration::from_secs(1) / SAMPLE_HZ_WALL_MAX as u32 * rate);
        let path = directory.join("progress.sock");
        let (events, inbox) = mpsc::channel(EVENTS_MAX);
        let listening = socket::open(&path, 0o600)?;
        tokio::spawn(socket::listen(listening, events.clone()));
        let sampler = sampler::start(plan.library.clone(), every, events, |_, _| {})
            .context("cannot start the sampler's thread")?;
        let node = NodeId::new("suite").context("node id")?;
        Ok(Self {
            machine: ProfilerMachine::new(
                node.clone(),
                Settings::default().at_rate(rate),
                None,
                None,
            ),
            node,
            gpu: plan.gpu,
            inbox,
            socket: path,
            _sampler: sampler,
            samples: Vec::new(),
            reports: Vec::new(),
            windows: Vec::new(),
            error: None,
        })
    }

    /// Passes an event to the profiler.
    pub(super) fn handle(&mut self, event: Event) {
        match &event {
            Event::Sampled { at, gpus } => {
                self.error = None;
                for sample in gpus.iter().filter(|sample| sample.gpu == self.gpu) {
                    match &sample.reading {
                        Ok(reading) => self.samples.push((*at, reading.clone())),
                        Err(error) => self.error = Some(error.clone()),
                    }
                }
            }
            Event::Progressed { at, line, .. } => self.reports.push((*at, line.clone())),
            Event::DriverFailed(error) => self.error = Some(error.clone()),
            _ => {}
        }
        let mut actions = Vec::new();
        self.machine.handle(clock::now(), event, &mut actions);
        for action in actions {
            if let Action::StoreWindow(window) = action {
                self.windows.push(*window);
            }
        }
    }

    /// Processes events until `done` returns a value.
    pub(super) async fn run_until<T>(
        &mut self,
        mut done: impl FnMut(&Self) -> Option<T>,
    ) -> Result<T> {
        loop {
            if let Some(found) = done(self) {
                return Ok(found);
            }
            match tokio::time::timeout(CHECK_INTERVAL, self.inbox.recv()).await {
                Ok(Some(event)) => self.handle(event),
                Ok(None) => bail!("the sampler has stopped"),
                Err(_) => {}
            }
            if let Some(error) = &self.error {
                bail!("cannot read the GPU: {error}");
            }
        }
    }

    /// Discards everything received so far.
    pub(super) fn clear(&mut self) {
        self.samples.clear();
        self.reports.clear();
        self.windows.clear();
    }

    /// Readings of the GPU before any job starts.
    pub(super) async fn measure_idle(
        &mut self,
        span: Duration,
    ) -> Result<Vec<(Timestamp, GpuReading)>> {
        self.clear();
        let until = clock::now() + span;
        self.run_until(|_| (clock::now() >= until).then_some(())).await?;
        Ok(std::mem::take(&mut self.samples))
    }
}
