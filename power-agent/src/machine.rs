//! The power agent's decisions: which cap and clock each card shall have now.
//!
//! Told of orders, readings and the driver's answers, it says what to set next. At any instant each
//! card has one goal: the newest order's while its lease runs, the safe state otherwise. At most
//! one setting of a kind is on its way to a card; its answer brings the next. So answers may come
//! late or never (a hung driver), and nothing piles up.
//!
//! Moves within a lease follow the ramp. The way to the safe state does not: it is at once.
//!
//! An order to fall asleep is carried out once for each instant that it names, and only while its
//! lease runs and it names no job: a node that has slept reads it again when it wakes, perhaps
//! before it hears that it was woken.

use std::collections::BTreeMap;

use wattle_common::messages::{
    AppliedGpu, DesiredGpu, NodeDesired, PowerReport, SleepResult, SleepState,
};
use wattle_common::{Frequency, GpuIndex, Machine, NodeId, Power, Timestamp, topology};

use crate::card::{Card, CardFacts, CardRead, Refusal};
use crate::config::Settings;
use crate::note::Note;

/// How far above its lock a card's clock may be read before the lock is doubted: two of the
/// 15 MHz steps in which NVIDIA's cards offer their clocks.
const CLOCK_SLACK: Frequency = Frequency::from_mhz(30);

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The node's desired state is this now.
    DesiredChanged(NodeDesired),
    /// Every card was read; one that did not answer has the driver's words instead.
    CardsRead(Vec<(GpuIndex, Result<CardRead, String>)>),
    /// No card could be read: the driver is not there.
    CardsUnreadable(String),
    /// The driver answered a [`Action::SetCap`].
    CapAnswered {
        /// The card.
        gpu: GpuIndex,
        /// The cap it was told.
        cap: Power,
        /// Whether it stands.
        answer: Result<(), Refusal>,
    },
    /// The driver answered a [`Action::SetClock`].
    ClockAnswered {
        /// The card.
        gpu: GpuIndex,
        /// The lock it was told.
        clock: Option<Frequency>,
        /// Whether it stands.
        answer: Result<(), Refusal>,
    },
    /// The sleep command has ended, perhaps after the node has slept.
    SleepAnswered(SleepResult),
    /// The service is being stopped.
    StopRequested,
}

/// What must be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read every card, and answer with [`Event::CardsRead`].
    ReadCards,
    /// Set a card's cap, and answer with [`Event::CapAnswered`].
    SetCap {
        /// The card.
        gpu: GpuIndex,
        /// The cap.
        cap: Power,
    },
    /// Lock a card's clock at most here, or free it, and answer with [`Event::ClockAnswered`].
    SetClock {
        /// The card.
        gpu: GpuIndex,
        /// The highest clock; `None` frees it.
        clock: Option<Frequency>,
    },
    /// Run the operator's sleep command, and answer with [`Event::SleepAnswered`] for this order.
    Sleep(Timestamp),
    /// Publish what stands.
    Report(PowerReport),
    /// Say this in the log.
    Log(Note),
}

/// The order that is in force.
#[derive(Clone, Debug)]
struct Lease {
    generation: u64,
    until: Timestamp,
    gpus: BTreeMap<GpuIndex, DesiredGpu>,
}

/// The decisions of one node's power agent.
#[derive(Clone, Debug)]
pub struct PowerMachine {
    node: NodeId,
    settings: Settings,
    cards: BTreeMap<GpuIndex, Card>,
    /// (generation, issued at) of the newest order that came, obeyed or not.
    newest: Option<(u64, Timestamp)>,
    generation_obeyed: u64,
    lease: Option<Lease>,
    stopping: bool,
    read_at: Timestamp,
    /// Since when an answer to [`Action::ReadCards`] is awaited.
    reading_since: Option<Timestamp>,
    /// The driver's words, while no card can be read.
    away: Option<String>,
    reported: Option<PowerReport>,
    /// The newest order to fall asleep that was carried out, by its instant.
    sleep_ordered: Option<Timestamp>,
    sleep_result: Option<SleepResult>,
}

impl PowerMachine {
    /// A machine that knows nothing yet: it reads the cards at its first wake, and brings them to
    /// their safe state, for an earlier life of it may have left caps behind.
    #[must_use]
    pub fn new(node: NodeId, settings: Settings) -> Self {
        Self {
            node,
            settings,
            cards: BTreeMap::new(),
            newest: None,
            generation_obeyed: 0,
            lease: None,
            stopping: false,
            read_at: Timestamp::EPOCH,
            reading_since: None,
            away: None,
            reported: None,
            sleep_ordered: None,
            sleep_result: None,
        }
    }

    /// Whether every card that answers is at its safe state, so that the service may end.
    #[must_use]
    pub fn at_rest(&self) -> bool {
        self.lease.is_none()
            && self.cards.values().filter(|c| c.healthy).all(|c| {
                (c.settled() || c.cap_blocked || c.clock_blocked)
                    && !c.cap_pending
                    && !c.clock_pending
            })
    }

    fn desired(&mut self, now: Timestamp, desired: NodeDesired, out: &mut Vec<Action>) {
        if self.stopping {
            return;
        }
        if desired.node != self.node {
            out.push(Action::Log(Note::ForeignNode { node: desired.node }));
            return;
        }
        let order = (desired.generation, desired.issued_at_us);
        if let Some(newest) = self.newest {
            if order == newest {
                return; // the bus replays the last value after each reconnect
            }
            if order < newest {
                let note = Note::Older { generation: order.0, newest: newest.0 };
                out.push(Action::Log(note));
                return;
            }
        }
        let newer_generation = self.newest.is_none_or(|newest| newest.0 < order.0);
        self.newest = Some(order);
        if desired.expires_at_us <= now {
            // What it replaced is older still, so nothing is in force now.
            out.push(Action::Log(Note::Stale {
                generation: desired.generation,
                expired_at: desired.expires_at_us,
            }));
            self.lease = None;
        } else {
            self.generation_obeyed = desired.generation;
            self.sleep(&desired, out);
            let gpus: BTreeMap<_, _> = desired.gpus.into_iter().map(|g| (g.gpu, g)).collect();
            // Said once for a generation: its renewals come every few seconds.
            if newer_generation && !self.cards.is_empty() {
                for gpu in gpus.keys().filter(|gpu| !self.cards.contains_key(gpu)) {
                    out.push(Action::Log(Note::NoSuchGpu { gpu: *gpu }));
                }
            }
            self.lease = Some(Lease { generation: order.0, until: desired.expires_at_us, gpus });
        }
        self.aim_all(out);
    }

    /// Falls asleep where a current order says so and no job stands here.
    fn sleep(&mut self, desired: &NodeDesired, out: &mut Vec<Action>) {
        let Some(sleep) = desired.sleep.filter(|sleep| sleep.state == SleepState::EnteringSleep)
        else {
            return;
        };
        let requested_at_us = sleep.since_us;
        if !desired.jobs.is_empty()
            || self.sleep_ordered.is_some_and(|last| last >= requested_at_us)
        {
            return;
        }
        self.sleep_ordered = Some(requested_at_us);
        if self.settings.can_sleep {
            self.sleep_result = None;
            out.push(Action::Log(Note::FallsAsleep));
            out.push(Action::Sleep(requested_at_us));
        } else {
            let error = "the node has no sleep_command: set it in its power-agent.toml".to_owned();
            self.slept(SleepResult { requested_at_us, error: Some(error) }, out);
        }
    }

    fn slept(&mut self, answer: SleepResult, out: &mut Vec<Action>) {
        if let Some(error) = &answer.error {
            out.push(Action::Log(Note::StaysAwake { error: error.clone() }));
        }
        self.sleep_result = Some(answer);
    }

    /// Gives every card the goal that stands now.
    fn aim_all(&mut self, out: &mut Vec<Action>) {
        for (gpu, card) in &mut self.cards {
            aim(card, *gpu, self.lease.as_ref(), &self.settings, out);
        }
    }

    fn cards_read(
        &mut self,
        now: Timestamp,
        reads: Vec<(GpuIndex, Result<CardRead, String>)>,
        out: &mut Vec<Action>,
    ) {
        self.away = None;
        let known = self.cards.len();
        let missing: Vec<GpuIndex> = self
            .cards
            .keys()
            .filter(|gpu| reads.iter().all(|(read, _)| read != *gpu))
            .copied()
            .collect();
        for gpu in missing {
            self.card_lost(gpu, "the driver does not list it any more".to_owned(), out);
        }
        for (gpu, read) in reads {
            match read {
                Ok(read) => self.card_read(gpu, read, out),
                Err(error) => self.card_lost(gpu, error, out),
            }
        }
        if self.cards.len() != known
            && let Err(error) = self.boards()
        {
            out.push(Action::Log(Note::NoSuchBoards { error: error.to_string() }));
        }
        self.read_done(now);
    }

    /// Whether the cards can be on boards as the operator says.
    fn boards(&self) -> Result<(), topology::BoardError> {
        let board = self.settings.gpus_per_board;
        board.map_or(Ok(()), |board| topology::check_board(self.cards.len() as u32, board))
    }

    fn card_read(&mut self, gpu: GpuIndex, read: CardRead, out: &mut Vec<Action>) {
        let lease = self.lease.as_ref();
        let card = self.cards.entry(gpu).or_insert_with(|| {
            let mut card = Card::new(read.facts.clone(), &self.settings);
            aim(&mut card, gpu, lease, &self.settings, out);
            card
        });
        // A card that could not be read when the service started is known by its index alone.
        if card.facts != read.facts {
            card.facts = read.facts;
            aim(card, gpu, lease, &self.settings, out);
        }
        if !card.healthy {
            card.healthy = true;
            card.cap = None;
            out.push(Action::Log(Note::Back { gpu }));
        }
        if let (Some(set), false) = (card.cap, card.cap_pending)
            && read.cap != Some(set)
        {
            out.push(Action::Log(Note::ForeignCap { gpu, set, found: read.cap }));
        }
        if let (Some(Some(set)), Some(found)) = (card.clock, read.clock)
            && found > set + CLOCK_SLACK
        {
            out.push(Action::Log(Note::ForeignClock { gpu, set, found }));
        }
        card.cap = read.cap;
        card.cap_blocked = false;
        card.clock_blocked = false;
        // No driver call tells a lock, so it is set anew after each reading: whoever changed it
        // meanwhile, in either direction, is overruled.
        card.clock_doubted = true;
    }

    fn card_lost(&mut self, gpu: GpuIndex, error: String, out: &mut Vec<Action>) {
        let unknown = || CardFacts {
            uuid: String::new(),
            kind: String::new(),
            memory_mib: 0,
            cap_default: None,
            cap_range: None,
            clock_range: None,
        };
        let first = !self.cards.contains_key(&gpu);
        let card = self.cards.entry(gpu).or_insert_with(|| Card::new(unknown(), &self.settings));
        if card.healthy || first {
            out.push(Action::Log(Note::Lost { gpu, error }));
        }
        card.healthy = false;
        card.cap = None;
        card.clock = None;
        card.cap_refused = None;
        card.clock_refused = None;
    }

    /// A reading has come, or will not: the next is due a heartbeat from now.
    fn read_done(&mut self, now: Timestamp) {
        self.reading_since = None;
        self.read_at = now + self.settings.heartbeat;
    }

    fn cap_answered(
        &mut self,
        gpu: GpuIndex,
        cap: Power,
        answer: Result<(), Refusal>,
        out: &mut Vec<Action>,
    ) {
        let Some(card) = self.cards.get_mut(&gpu) else { return };
        card.cap_pending = false;
        match answer {
            Ok(()) => {
                if card.healthy {
                    card.cap = Some(cap);
                }
                card.cap_refused = None;
            }
            Err(refusal) => {
                card.cap_blocked = true;
                refuse(&mut card.cap_refused, gpu, refusal.error, out);
            }
        }
    }

    fn clock_answered(
        &mut self,
        gpu: GpuIndex,
        clock: Option<Frequency>,
        answer: Result<(), Refusal>,
        out: &mut Vec<Action>,
    ) {
        let Some(card) = self.cards.get_mut(&gpu) else { return };
        card.clock_pending = false;
        match answer {
            Ok(()) => {
                card.clock = Some(clock);
                card.clock_refused = None;
            }
            // A card whose clock cannot be locked has a free clock.
            Err(refusal) if refusal.unsupported && clock.is_none() => card.clock = Some(None),
            Err(refusal) => {
                card.clock_blocked = true;
                refuse(&mut card.clock_refused, gpu, refusal.error, out);
            }
        }
    }

    /// Sends what is due to the cards, and the report if it says something new.
    fn drive(&mut self, now: Timestamp, heartbeat: bool, out: &mut Vec<Action>) {
        let leased = self.lease.is_some();
        if self.away.is_none() {
            for (gpu, card) in self.cards.iter_mut().filter(|(_, card)| card.healthy) {
                drive_card(*gpu, card, now, leased, &self.settings, out);
            }
        }
        self.report(now, heartbeat, out);
    }

    fn report(&mut self, now: Timestamp, heartbeat: bool, out: &mut Vec<Action>) {
        if self.cards.is_empty() && self.away.is_none() {
            return; // nothing has been read yet: an empty inventory would be a lie
        }
        let gpus_per_board = self.settings.gpus_per_board.filter(|_| self.boards().is_ok());
        let gpus = self.cards.iter().map(|(gpu, card)| AppliedGpu {
            gpu: *gpu,
            uuid: card.facts.uuid.clone(),
            gpu_type: card.facts.kind.clone(),
            memory_mib: card.facts.memory_mib,
            healthy: card.healthy && self.away.is_none(),
            cap_mw: card.cap,
            cap_mw_default: card.facts.cap_default,
            cap_mw_min: card.facts.cap_range.map(|(min, _)| min),
            cap_mw_max: card.facts.cap_range.map(|(_, max)| max),
            clock_mhz_max: card.clock.flatten(),
            clock_mhz_supported_min: card.facts.clock_range.map(|(lowest, _)| lowest),
            clock_mhz_supported_max: card.facts.clock_range.map(|(_, highest)| highest),
            last_error: card.last_error(),
        });
        let mut report = PowerReport {
            node: self.node.clone(),
            at_us: now,
            observed_generation: self.generation_obeyed,
            lease_until_us: self.lease.as_ref().map(|lease| lease.until),
            gpus: gpus.collect(),
            can_sleep: self.settings.can_sleep,
            sleep_result: self.sleep_result.clone(),
            switch: self.settings.switch.clone(),
            gpus_per_board,
        };
        let news = self.reported.as_mut().is_none_or(|last| {
            std::mem::swap(&mut last.at_us, &mut report.at_us);
            let same = *last == report;
            std::mem::swap(&mut last.at_us, &mut report.at_us);
            !same
        });
        if news || heartbeat {
            self.reported = Some(report.clone());
            out.push(Action::Report(report));
        }
    }

    /// Ends a lease that has run out. Before anything else at every instant: an order must not be
    /// carried a step further after its time because another event happened to come first.
    fn expire(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        if let Some(lease) = self.lease.take_if(|lease| lease.until <= now) {
            out.push(Action::Log(Note::LeaseEnded { generation: lease.generation }));
            self.aim_all(out);
        }
    }

    fn read(&mut self, now: Timestamp, out: &mut Vec<Action>) -> bool {
        if now < self.read_at {
            return false;
        }
        self.read_at = now + self.settings.heartbeat;
        if let Some(since) = self.reading_since {
            // The driver hangs. It is not asked again; what is known is reported, as not healthy.
            if self.away.is_none() {
                let error = format!("the driver has not answered since {since}");
                out.push(Action::Log(Note::DriverAway { error: error.clone() }));
                self.away = Some(error);
            }
            return true;
        }
        self.reading_since = Some(now);
        out.push(Action::ReadCards);
        false
    }
}

impl Machine for PowerMachine {
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Timestamp, event: Event, out: &mut Vec<Action>) {
        self.expire(now, out);
        let mut heartbeat = false;
        match event {
            Event::DesiredChanged(desired) => self.desired(now, desired, out),
            Event::CardsRead(reads) => {
                self.cards_read(now, reads, out);
                heartbeat = true;
            }
            Event::CardsUnreadable(error) => {
                if self.away.as_ref() != Some(&error) {
                    out.push(Action::Log(Note::DriverAway { error: error.clone() }));
                }
                self.away = Some(error);
                self.read_done(now);
                heartbeat = true;
            }
            Event::CapAnswered { gpu, cap, answer } => self.cap_answered(gpu, cap, answer, out),
            Event::ClockAnswered { gpu, clock, answer } => {
                self.clock_answered(gpu, clock, answer, out);
            }
            Event::SleepAnswered(answer) => self.slept(answer, out),
            Event::StopRequested => {
                self.stopping = true;
                self.lease = None;
                self.aim_all(out);
                for card in self.cards.values_mut() {
                    card.cap_blocked = false;
                    card.clock_blocked = false;
                }
            }
        }
        self.drive(now, heartbeat, out);
    }

    fn wake(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        self.expire(now, out);
        let heartbeat = self.read(now, out);
        self.drive(now, heartbeat, out);
    }

    fn next_wake(&self) -> Option<(Timestamp, &'static str)> {
        let lease = self.lease.as_ref().map(|lease| (lease.until, "lease ends"));
        let step = self
            .cards
            .values()
            .filter(|c| c.healthy && !c.cap_pending && !c.cap_blocked)
            .filter(|c| self.away.is_none() && c.next_cap(self.settings.ramp_step).is_some())
            .map(|c| (c.step_at, "ramp's next step"))
            .min();
        let read = Some((self.read_at, "heartbeat"));
        [lease, step, read].into_iter().flatten().min_by_key(|(at, _)| *at)
    }
}

fn aim(
    card: &mut Card,
    gpu: GpuIndex,
    lease: Option<&Lease>,
    settings: &Settings,
    out: &mut Vec<Action>,
) {
    let before = card.order_refused.clone();
    match lease {
        Some(lease) => card.aim(lease.gpus.get(&gpu)),
        None => card.aim_safe(settings),
    }
    if card.order_refused != before
        && let Some(error) = card.order_refused.clone()
    {
        out.push(Action::Log(Note::Refused { gpu, error }));
    }
}

fn refuse(stands: &mut Option<String>, gpu: GpuIndex, error: String, out: &mut Vec<Action>) {
    if stands.as_ref() != Some(&error) {
        out.push(Action::Log(Note::Refused { gpu, error: error.clone() }));
        *stands = Some(error);
    }
}

fn drive_card(
    gpu: GpuIndex,
    card: &mut Card,
    now: Timestamp,
    leased: bool,
    settings: &Settings,
    out: &mut Vec<Action>,
) {
    let step = if leased { settings.ramp_step } else { Power::ZERO };
    let ramping = step != Power::ZERO;
    // What was refused once and stands nonetheless is refused no more: orders change, and so do
    // cards under foreign hands.
    if card.goal.cap.is_none() || card.cap == card.goal.cap {
        card.cap_refused = None;
    }
    if card.clock == Some(card.goal.clock) && !card.clock_doubted {
        card.clock_refused = None;
    }
    if !card.cap_pending
        && !card.cap_blocked
        && (!ramping || now >= card.step_at)
        && let Some(cap) = card.next_cap(step)
    {
        card.cap_pending = true;
        if ramping {
            card.step_at = now + settings.ramp_every;
        }
        out.push(Action::SetCap { gpu, cap });
    }
    let agreed = card.clock == Some(card.goal.clock) && !card.clock_doubted;
    if !card.clock_pending && !card.clock_blocked && !agreed {
        card.clock_pending = true;
        card.clock_doubted = false;
        out.push(Action::SetClock { gpu, clock: card.goal.clock });
    }
}
