//! The profiler in this process: its sampler and its socket, and what they said.

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

/// Samples a second, as the service takes by default.
const SAMPLE_HZ: u64 = 10;
const SAMPLE_HZ_WALL_MAX: u64 = 100;
const EVENTS_MAX: usize = 1_024;
/// How often (wall) a condition is looked at where nothing arrives.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The profiler and its ears.
pub(super) struct Watch {
    pub(super) node: NodeId,
    gpu: u32,
    machine: ProfilerMachine,
    inbox: mpsc::Receiver<Event>,
    pub(super) socket: PathBuf,
    _sampler: sampler::Sampler,
    /// What the card read, by instant.
    pub(super) samples: Vec<(Timestamp, GpuReading)>,
    /// What jobs said, by arrival.
    pub(super) lines: Vec<(Timestamp, Progress)>,
    /// What the profiler made of it.
    pub(super) windows: Vec<JobWindow>,
    /// Why the card or the driver cannot be read, if it cannot.
    failed: Option<String>,
}

impl Watch {
    pub(super) fn start(plan: &Plan, folder: &Path) -> Result<Self> {
        let rate = clock::scale().rate;
        let own = Duration::from_secs(1) / SAMPLE_HZ as u32;
        let every = own.max(Duration::from_secs(1) / SAMPLE_HZ_WALL_MAX as u32 * rate);
        let path = folder.join("progress.sock");
        let (events, inbox) = mpsc::channel(EVENTS_MAX);
        let listening = socket::open(&path, 0o600)?;
        tokio::spawn(socket::listen(listening, events.clone()));
        let sampler = sampler::start(plan.library.clone(), every, events)
            .context("the sampler's thread does not start")?;
        let node = NodeId::new("suite").context("an id")?;
        Ok(Self {
            machine: ProfilerMachine::new(node.clone(), Settings::default().at_rate(rate), None),
            node,
            gpu: plan.gpu,
            inbox,
            socket: path,
            _sampler: sampler,
            samples: Vec::new(),
            lines: Vec::new(),
            windows: Vec::new(),
            failed: None,
        })
    }

    /// Tells the profiler something.
    pub(super) fn tell(&mut self, event: Event) {
        match &event {
            Event::Sampled { at, gpus: cards } => {
                self.failed = None;
                for card in cards.iter().filter(|card| card.gpu == self.gpu) {
                    match &card.reading {
                        Ok(reading) => self.samples.push((*at, reading.clone())),
                        Err(error) => self.failed = Some(error.clone()),
                    }
                }
            }
            Event::Progressed { at, line } => self.lines.push((*at, line.clone())),
            Event::DriverFailed(error) => self.failed = Some(error.clone()),
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

    /// Listens until `done` says something.
    pub(super) async fn listen<T>(
        &mut self,
        mut done: impl FnMut(&Self) -> Option<T>,
    ) -> Result<T> {
        loop {
            if let Some(found) = done(self) {
                return Ok(found);
            }
            match tokio::time::timeout(LOOK_EVERY, self.inbox.recv()).await {
                Ok(Some(event)) => self.tell(event),
                Ok(None) => bail!("the sampler has ended"),
                Err(_) => {}
            }
            if let Some(error) = &self.failed {
                bail!("the card cannot be read: {error}");
            }
        }
    }

    /// Forgets what was seen so far.
    pub(super) fn begin(&mut self) {
        self.samples.clear();
        self.lines.clear();
        self.windows.clear();
    }

    /// What the card reads with nothing of ours on it.
    pub(super) async fn idle(&mut self, span: Duration) -> Result<Vec<(Timestamp, GpuReading)>> {
        self.begin();
        let until = clock::now() + span;
        self.listen(|_| (clock::now() >= until).then_some(())).await?;
        Ok(std::mem::take(&mut self.samples))
    }
}
