//! The profiler's decisions: what a sampling instant means, and what is worth telling.
//!
//! Told of samples, of the jobs' own lines and of who runs where, it tells of samples (batches,
//! summaries), of jobs (progress, windows) and of energy (the ledger). Everything it keeps is
//! bounded by the node's cards and jobs, whatever arrives.

use std::collections::BTreeMap;

use wattle_common::messages::{
    AppliedGpu, GpuSample, JobProgressed, JobRecord, JobWindow, LaunchReport, LedgerEntry,
    Neighbour, NodeSummary, PowerReport, TelemetryBatch,
};
use wattle_common::progress::Progress;
use wattle_common::{Frequency, GpuIndex, JobId, Machine, NodeId, Timestamp};

use crate::card::{Card, CardFacts, CardNow, CardSample};
use crate::config::Settings;
use crate::feed;
use crate::jobs::JobBook;
use crate::ledger::{CardState, Ledger, State};
use crate::note::Note;
use crate::window::{Conditions, OpenWindow};

/// Samples in one batch; some 100 bytes each, so a batch stays far below NATS's megabyte.
const BATCH_SAMPLES_MAX: usize = 2_048;
/// An entry that the bus did not take is tried again after this part of the ledger's interval.
const LEDGER_RETRY_PARTS: u32 = 10;

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// These are the node's cards.
    CardsFound(Vec<CardFacts>),
    /// Every card was read, or tried to be.
    Sampled {
        /// When, which is a little before it is told.
        at: Timestamp,
        /// What they said.
        cards: Vec<CardSample>,
    },
    /// No card can be read: the driver is not there.
    DriverAway(String),
    /// A job said how far it is.
    Progressed {
        /// When its line arrived.
        at: Timestamp,
        /// The line.
        line: Progress,
    },
    /// The launcher of this node reported.
    Launched(LaunchReport),
    /// The power agent of this node reported.
    Capped(PowerReport),
    /// The placer's record of a job is this now.
    Recorded(Box<JobRecord>),
    /// The placer's record of a job was deleted.
    Forgotten(JobId),
    /// The bus has stored the ledger entry that begins then, or has not.
    LedgerStored {
        /// The entry's beginning.
        from: Timestamp,
        /// Whether it is stored.
        stored: bool,
    },
    /// The service is being stopped.
    StopRequested,
}

/// What must be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Publish these samples.
    PublishBatch(TelemetryBatch),
    /// Publish this second.
    PublishSummary(NodeSummary),
    /// Publish how far a job is.
    PublishProgress(JobProgressed),
    /// Store this window.
    StoreWindow(Box<JobWindow>),
    /// Write this where it outlives the service, before the next action.
    SaveState(State),
    /// Store this entry, and answer with [`Event::LedgerStored`].
    StoreLedger(LedgerEntry),
    /// Say this in the log.
    Log(Note),
}

/// The decisions of one node's profiler.
#[derive(Clone, Debug)]
pub struct ProfilerMachine {
    node: NodeId,
    settings: Settings,
    book: JobBook,
    cards: BTreeMap<GpuIndex, Card>,
    locks: BTreeMap<GpuIndex, Frequency>,
    ledger: Ledger,
    /// What is in the state file: the cards at the last entry's end.
    kept: State,
    /// What an earlier run left; taken with the first reading of each card.
    earlier: Option<State>,
    batch: Vec<GpuSample>,
    sequence: u64,
    batch_at: Timestamp,
    summary_at: Timestamp,
    ledger_at: Timestamp,
    /// A ledger entry is with the bus.
    storing: bool,
    samples: u32,
    readings_failed: u32,
    away: Option<String>,
}

impl ProfilerMachine {
    /// A machine that continues from what an earlier run left, if it left something.
    #[must_use]
    pub fn new(node: NodeId, settings: Settings, earlier: Option<State>) -> Self {
        let mut ledger = Ledger::new(node.clone(), settings.host_power);
        ledger.pending = earlier.as_ref().and_then(|state| state.pending.clone());
        Self {
            book: JobBook::new(node.clone()),
            node,
            settings,
            cards: BTreeMap::new(),
            locks: BTreeMap::new(),
            ledger,
            kept: earlier.clone().unwrap_or_default(),
            earlier,
            batch: Vec::new(),
            sequence: 0,
            batch_at: Timestamp::EPOCH,
            summary_at: Timestamp::EPOCH,
            ledger_at: Timestamp::EPOCH,
            storing: false,
            samples: 0,
            readings_failed: 0,
            away: None,
        }
    }

    /// Whether a ledger entry is still on its way to the bus.
    #[must_use]
    pub const fn ledger_waits(&self) -> bool {
        self.storing
    }

    fn cards_found(&mut self, now: Timestamp, found: Vec<CardFacts>) {
        for facts in found {
            let gap_max = self.settings.gap_max;
            let card = self.cards.entry(facts.gpu).or_insert_with(|| Card::new(gap_max));
            if card.uuid == facts.uuid {
                continue;
            }
            // Another card in this place, or the first.
            *card = Card::new(gap_max);
            // A state from the future is another clock's.
            let earlier = self.earlier.as_ref().filter(|state| state.until_us <= now);
            let same = |state: &&CardState| state.uuid == facts.uuid;
            if let Some(earlier) = earlier
                && let Some(state) = earlier.cards.iter().find(same)
            {
                card.idle = state.idle_mw;
                if let Some(counter) = state.energy_mj_counter {
                    card.measure =
                        crate::energy::EnergyMeasure::resumed(gap_max, earlier.until_us, counter);
                }
            }
            card.uuid = facts.uuid;
            card.kind = facts.kind;
        }
    }

    fn sampled(&mut self, now: Timestamp, samples: Vec<CardSample>, out: &mut Vec<Action>) {
        self.away = None;
        self.samples += 1;
        if self.ledger.from().is_none() {
            self.begin_ledger(now, &samples);
        }
        let mut cards = BTreeMap::new();
        for sample in samples {
            let gap_max = self.settings.gap_max;
            let card = self.cards.entry(sample.gpu).or_insert_with(|| Card::new(gap_max));
            let reading = match sample.reading {
                Ok(reading) => reading,
                Err(error) => {
                    self.readings_failed += 1;
                    if card.failed(error.clone()) {
                        out.push(Action::Log(Note::Lost(sample.gpu, error)));
                    }
                    continue;
                }
            };
            let (was_lost, was_stuck) = (card.error.is_some(), card.measure.stuck());
            let origins = &sample.origins;
            let (card_now, telemetry) =
                card.read(now, sample.gpu, reading, origins, &self.book, &self.settings);
            if was_lost {
                out.push(Action::Log(Note::Back(sample.gpu)));
            }
            if card.measure.stuck() && !was_stuck {
                out.push(Action::Log(Note::CounterStuck(sample.gpu)));
            }
            if let Some(energy) = card_now.energy {
                self.ledger.spend(sample.gpu, energy);
            }
            for tenant in &card_now.tenants {
                if let (Some(job), Some(energy)) = (&tenant.job, tenant.energy) {
                    self.ledger.attribute(job, energy);
                }
            }
            if self.batch.len() < BATCH_SAMPLES_MAX {
                self.batch.push(telemetry);
            }
            cards.insert(sample.gpu, card_now);
        }
        self.feed_windows(now, &cards, out);
    }

    /// The ledger goes on where the earlier run's ended, if a card's counter shows that the node
    /// has run since; otherwise it begins now.
    fn begin_ledger(&mut self, now: Timestamp, samples: &[CardSample]) {
        let counter = |sample: &CardSample| {
            let total = sample.reading.as_ref().ok()?.energy_total?;
            let before = self.cards.get(&sample.gpu)?.measure.counter()?;
            Some(total >= before)
        };
        let continues = samples.iter().any(|sample| counter(sample) == Some(true));
        let earlier = self.earlier.take().filter(|_| continues);
        self.ledger.begin(earlier.map_or(now, |state| state.until_us));
        self.ledger_at = now + self.settings.ledger_every;
    }

    fn feed_windows(
        &mut self,
        now: Timestamp,
        cards: &BTreeMap<GpuIndex, CardNow>,
        out: &mut Vec<Action>,
    ) {
        let ids: Vec<JobId> = self.book.local.keys().cloned().collect();
        for id in ids {
            let conditions = self.conditions(&id, cards);
            if let Some(job) = self.book.local.get_mut(&id) {
                let window = feed::sample(job, &id, now, conditions, cards, &self.settings);
                self.store(&id, window, out);
            }
        }
    }

    fn store(&self, id: &JobId, window: Option<(OpenWindow, bool)>, out: &mut Vec<Action>) {
        let Some((window, early)) = window else { return };
        let kind = |gpu: &GpuIndex| self.cards.get(gpu).map(|card| card.kind.clone());
        let gpu_type = window.conditions.declared.gpus.first().and_then(kind).unwrap_or_default();
        let window = window.into_message(id.clone(), self.node.clone(), gpu_type, early);
        out.push(Action::StoreWindow(Box::new(window)));
    }

    /// The conditions under which a job runs, where all of them are known: its record agrees with
    /// the launcher, and each of its cards was read.
    fn conditions(&self, id: &JobId, cards: &BTreeMap<GpuIndex, CardNow>) -> Option<Conditions> {
        let job = self.book.local.get(id)?;
        let declared = self.book.declared.get(id).filter(|d| d.gpus == job.gpus)?;
        let mine: Vec<&CardNow> =
            job.gpus.iter().map(|gpu| cards.get(gpu)).collect::<Option<_>>()?;
        if mine.is_empty() {
            return None;
        }
        let mut neighbours: Vec<Neighbour> = Vec::new();
        let others = mine.iter().flat_map(|card| &card.tenants);
        for other in others.filter_map(|tenant| tenant.job.as_ref()).filter(|job| *job != id) {
            if neighbours.iter().all(|neighbour| neighbour.job != *other) {
                let workload = self.book.declared.get(other).and_then(|d| d.workload.clone());
                neighbours.push(Neighbour { job: other.clone(), workload });
            }
        }
        neighbours.sort();
        Some(Conditions {
            declared: declared.clone(),
            attempt: job.attempt,
            caps: mine.iter().map(|card| card.cap).collect(),
            locks: job.gpus.iter().map(|gpu| self.locks.get(gpu).copied()).collect(),
            neighbours,
            foreign: mine.iter().any(|card| card.tenants.iter().any(|t| t.job.is_none())),
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
        let gpus = self.cards.iter_mut().map(|(gpu, card)| card.summarize(*gpu)).collect();
        out.push(Action::PublishSummary(NodeSummary {
            node: self.node.clone(),
            at_us: now,
            samples: std::mem::take(&mut self.samples),
            readings_failed: std::mem::take(&mut self.readings_failed),
            gpus,
        }));
    }

    /// What a later run must know of the entry that ends now.
    fn keep(&mut self, until: Timestamp) {
        let cards = self.cards.values().filter(|card| !card.uuid.is_empty());
        self.kept = State {
            until_us: until,
            cards: cards
                .map(|card| CardState {
                    uuid: card.uuid.clone(),
                    energy_mj_counter: card.measure.counter(),
                    idle_mw: card.idle,
                })
                .collect(),
            pending: self.ledger.pending.clone(),
        };
    }

    /// Makes the next entry, or sends the one that waits once more.
    fn settle_ledger(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        if self.storing {
            self.ledger_at = now + self.settings.ledger_every;
            return;
        }
        if let Some(pending) = self.ledger.pending.clone() {
            self.storing = true;
            self.ledger_at = now + self.settings.ledger_every / LEDGER_RETRY_PARTS;
            out.push(Action::StoreLedger(pending));
            return;
        }
        self.ledger_at = now + self.settings.ledger_every;
        let gpu_count = self.cards.keys().last().map_or(0, |last| last + 1);
        if let Some(entry) = self.ledger.close(now, gpu_count).cloned() {
            self.storing = true;
            self.keep(now);
            out.push(Action::SaveState(self.kept.clone()));
            out.push(Action::StoreLedger(entry));
        }
    }

    fn ledger_stored(&mut self, from: Timestamp, stored: bool, out: &mut Vec<Action>) {
        self.storing = false;
        if stored && self.ledger.acknowledged(from) {
            // The counters stay what they were at the entry's end.
            self.kept.pending = None;
            out.push(Action::SaveState(self.kept.clone()));
        }
    }

    /// What is due at `now`, by the clock alone.
    fn settle(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        if now >= self.batch_at || self.batch.len() >= BATCH_SAMPLES_MAX {
            self.flush(now, out);
        }
        if now >= self.summary_at {
            self.summarize(now, out);
        }
        if now >= self.ledger_at {
            self.settle_ledger(now, out);
        }
    }

    fn launched(&mut self, report: &LaunchReport, out: &mut Vec<Action>) {
        for (id, mut job) in self.book.launched(report) {
            let window = feed::end(&mut job, &self.settings);
            self.store(&id, window, out);
        }
    }

    fn stop(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        let mut local = std::mem::take(&mut self.book.local);
        for (id, job) in &mut local {
            let window = feed::end(job, &self.settings);
            self.store(id, window, out);
        }
        self.flush(now, out);
        if !self.storing {
            self.settle_ledger(now, out);
        }
    }
}

impl Machine for ProfilerMachine {
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Timestamp, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::CardsFound(found) => self.cards_found(now, found),
            Event::Sampled { at, cards } => self.sampled(at, cards, out),
            Event::DriverAway(error) => {
                for card in self.cards.values_mut() {
                    card.failed(error.clone());
                }
                self.readings_failed += self.cards.len() as u32;
                if self.away.as_ref() != Some(&error) {
                    out.push(Action::Log(Note::DriverAway(error.clone())));
                    self.away = Some(error);
                }
                // No card, no conditions: what is open ends here.
                self.feed_windows(now, &BTreeMap::new(), out);
            }
            Event::Progressed { at, line } => {
                let every = self.settings.progress_every;
                let progress = self.book.progressed(at, &line, every);
                out.extend(progress.map(Action::PublishProgress));
            }
            Event::Launched(report) if report.node == self.node => self.launched(&report, out),
            Event::Capped(report) if report.node == self.node => {
                let lock = |gpu: &AppliedGpu| Some((gpu.gpu, gpu.clock_mhz_max?));
                self.locks = report.gpus.iter().filter_map(lock).collect();
            }
            Event::Launched(_) | Event::Capped(_) => {}
            Event::Recorded(record) => self.book.recorded(&record),
            Event::Forgotten(job) => self.book.forgotten(&job),
            Event::LedgerStored { from, stored } => self.ledger_stored(from, stored, out),
            Event::StopRequested => self.stop(now, out),
        }
        self.settle(now, out);
    }

    fn wake(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        self.settle(now, out);
    }

    fn next_wake(&self) -> Option<(Timestamp, &'static str)> {
        let batch = (!self.batch.is_empty()).then_some((self.batch_at, "batch is due"));
        let summary = Some((self.summary_at, "summary is due"));
        let ledger = Some((self.ledger_at, "ledger entry is due"));
        [batch, summary, ledger].into_iter().flatten().min_by_key(|(at, _)| *at)
    }
}
