//! A model of a node, which executes the machine's actions.
//!
//! It may refuse settings and lose GPUs, and another program may change its caps. The model does not use
//! the machine's internals.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use proptest::prelude::*;
use wattle_common::messages::{CapBound, DesiredGpu, MemoryRepair, NodeDesired, PowerReport};
use wattle_common::{Frequency, GpuIndex, Machine, NodeId, Power, Timestamp};
use wattle_gpu::{GpuHealth, Slowdown};
use wattle_power_agent::persisted::Boot;
use wattle_power_agent::{
    Action, Event, GpuFacts, GpuStatus, Note, PersistedCaps, PowerMachine, SetError, Settings,
};
use wattle_testkit as kit;

pub(crate) const GPUS: u32 = 3;
pub(crate) const SAFE_W: u64 = 200;
const DEFAULT: Power = Power::from_w(300);

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Command {
        generation: u64,
        age_s: u64,
        lease_s: u64,
        power_limited: bool,
        gpus: Vec<(u32, Option<u64>, Option<u32>)>,
    },
    Advance {
        ms: u64,
    },
    AnswerOne,
    AnswerAll,
    Lose(u32),
    Return(u32),
    Refuse(u32, bool),
    ExternalCap(u32, u64),
    Mig(u32, bool),
    Driver(bool),
    Crash,
}

/// Steps with MIG mode and loads of the driver.
pub(crate) fn step_with_modes() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => step(),
        1 => (0..GPUS, any::<bool>()).prop_map(|(gpu, on)| Step::Mig(gpu, on)),
        1 => any::<bool>().prop_map(Step::Driver),
    ]
}

/// Bounds of every cap in an order: of every other generation, without a limit of some, for some seconds.
fn caps_ahead(issued_at: Timestamp, generation: u64, power_limited: bool) -> Vec<CapBound> {
    let bound = |after_s, watts: Option<u64>| CapBound {
        from_us: issued_at + Duration::from_secs(after_s),
        cap_mw: watts.map(Power::from_w),
        ..CapBound::default()
    };
    if generation.is_multiple_of(2) || (!power_limited && generation < 5) {
        return Vec::new();
    }
    vec![bound(generation, Some(60 * generation)), bound(20, Some(170)), bound(30, None)]
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    let gpu_desired = (0..GPUS + 1, prop::option::of(0u64..500), prop::option::of(0u32..2_500));
    prop_oneof![
        4 => (0u64..6, 0u64..30, 0u64..40, any::<bool>(), prop::collection::vec(gpu_desired, 0..5)).prop_map(
            |(generation, age_s, lease_s, power_limited, gpus)| Step::Command { generation, age_s, lease_s, power_limited, gpus }
        ),
        4 => (0u64..25_000).prop_map(|ms| Step::Advance { ms }),
        3 => Just(Step::AnswerOne),
        3 => Just(Step::AnswerAll),
        1 => (0..GPUS).prop_map(Step::Lose),
        1 => (0..GPUS).prop_map(Step::Return),
        1 => (0..GPUS, any::<bool>()).prop_map(|(g, on)| Step::Refuse(g, on)),
        1 => (0..GPUS, 100u64..=300).prop_map(|(g, w)| Step::ExternalCap(g, w)),
        1 => Just(Step::Crash),
    ]
}

pub(crate) struct ModelGpu {
    pub(crate) cap: Power,
    pub(crate) clock: Option<Frequency>,
    pub(crate) lost: bool,
    pub(crate) refuses: bool,
    /// Whether it is in MIG mode, and whether the machine has read that.
    pub(crate) mig: bool,
    pub(crate) mig_read: bool,
    pub(crate) ecc_errors: u64,
}

impl ModelGpu {
    fn health(&self) -> GpuHealth {
        GpuHealth {
            mig_enabled: Some(self.mig),
            persistence_enabled: Some(true),
            ecc_errors_uncorrected: Some(self.ecc_errors),
            memory_repair: Some(MemoryRepair::None),
            slowdown: Some(Slowdown::default()),
        }
    }
}

pub(crate) struct Node {
    pub(crate) machine: PowerMachine,
    pub(crate) settings: Settings,
    pub(crate) gpus: Vec<ModelGpu>,
    pub(crate) driver_loaded: bool,
    pub(crate) now: Timestamp,
    pub(crate) waiting: VecDeque<Action>,
    pub(crate) newest: Option<NodeDesired>,
    /// The last stored caps.
    caps: PersistedCaps,
    /// Shares of a power limit, from the last order that was in force.
    shares: Option<BTreeMap<GpuIndex, Power>>,
    /// Bounds of every cap, from the same order.
    ahead: Vec<CapBound>,
    /// Cap of each GPU when it was first read.
    first: BTreeMap<GpuIndex, Power>,
    pub(crate) stopped: bool,
    /// Whether the last order arrived at once, or none has arrived.
    prompt: bool,
    pub(crate) reported: Option<PowerReport>,
    pub(crate) notes: Vec<Note>,
    /// Whether caps without a lease are compared with the model's.
    pub(crate) is_checked: bool,
}

pub(crate) fn facts() -> GpuFacts {
    GpuFacts {
        uuid: "GPU-x".into(),
        gpu_type: "v100".into(),
        memory_mib: Some(16_384),
        cap_default: Some(Power::from_w(300)),
        cap_range: Some((Power::from_w(100), Power::from_w(300))),
        clock_range: Some((Frequency::from_mhz(135), Frequency::from_mhz(1_530))),
    }
}

/// The cap that the GPU supports and is nearest to this one.
fn nearest(cap: Power) -> Power {
    cap.clamp(Power::from_w(100), Power::from_w(300))
}

pub(crate) fn node_id() -> NodeId {
    kit::node("n0")
}

impl Node {
    pub(crate) fn new(ramp_w: u64) -> Self {
        Self::with_limit(ramp_w, None)
    }

    /// A node with a power limit of its own, watts.
    pub(crate) fn with_limit(ramp_w: u64, limit_w: Option<u64>) -> Self {
        let settings = Settings {
            safe_cap: Some(Power::from_w(SAFE_W)),
            node_limit: limit_w.map(Power::from_w),
            ramp_step: Power::from_w(ramp_w),
            ramp_every: Duration::from_millis(500),
            heartbeat: Duration::from_secs(5),
            // Issue times are versions here, long before the start.
            lease_max: Duration::from_secs(86_400),
            can_sleep: true,
            ..Settings::default()
        };
        let model = |i: u32| ModelGpu {
            cap: Power::from_w(100 + 60 * u64::from(i)),
            clock: Some(Frequency::from_mhz(900)),
            lost: false,
            refuses: false,
            mig: false,
            mig_read: false,
            ecc_errors: 4,
        };
        Self {
            machine: PowerMachine::new(node_id(), settings.clone()),
            settings,
            gpus: (0..GPUS).map(model).collect(),
            driver_loaded: true,
            now: Timestamp::from_s(1_000),
            waiting: VecDeque::new(),
            newest: None,
            caps: PersistedCaps::default(),
            shares: None,
            ahead: Vec::new(),
            first: BTreeMap::new(),
            stopped: false,
            prompt: true,
            reported: None,
            notes: Vec::new(),
            is_checked: true,
        }
    }

    pub(crate) fn in_force(&self) -> Option<&NodeDesired> {
        self.newest.as_ref().filter(|desired| desired.expires_at_us > self.now)
    }

    /// The cap that a GPU must have without a lease.
    pub(crate) fn safe_cap(&self, gpu: GpuIndex) -> Power {
        let safe = Power::from_w(SAFE_W);
        let cap = if self.stopped { self.first.get(&gpu).copied().unwrap_or(safe) } else { safe };
        let Some(shares) = &self.shares else { return self.bounded(cap) };
        self.bounded(cap.min(shares.get(&gpu).map_or(DEFAULT, |share| nearest(*share))))
    }

    /// The cap within the bound of every cap that holds now.
    fn bounded(&self, cap: Power) -> Power {
        let begun = self.ahead.iter().rev().find(|bound| bound.from_us <= self.now);
        begun.and_then(|bound| bound.cap_mw).map_or(cap, |bound| cap.min(nearest(bound)))
    }

    /// The caps within the node's limit for these requested ones: the highest common level that fits.
    fn within_limit(&self, requested: &[Power]) -> Vec<Power> {
        let at = |level: u64| requested.iter().map(move |cap| (*cap).min(Power::from_w(level)));
        let fits = |level: &u64| {
            self.settings.node_limit.is_none_or(|limit| at(*level).sum::<Power>() <= limit)
        };
        at((100..=300).rev().find(fits).unwrap_or(100)).collect()
    }

    pub(crate) fn sum(&self) -> Power {
        self.gpus.iter().map(|gpu| gpu.cap).sum()
    }

    fn take(&mut self, out: Vec<Action>) {
        for action in out {
            if let Action::SetCap { gpu, .. } | Action::SetClock { gpu, .. } = &action {
                let model = &self.gpus[*gpu as usize];
                assert!(!(model.mig && model.mig_read), "{action:?} in MIG mode");
            }
            match &action {
                Action::SetCap { .. } | Action::SetClock { .. } if self.settings.advise_only => {
                    panic!("an agent that only advises issues {action:?}")
                }
                Action::SetCap { gpu, cap } => {
                    assert!(
                        (Power::from_w(100)..=Power::from_w(300)).contains(cap),
                        "GPU {gpu}: {cap} is outside its limits"
                    );
                    let is_checked = self.is_checked && self.settings.node_limit.is_none();
                    if is_checked && self.in_force().is_none() {
                        assert_eq!(*cap, self.safe_cap(*gpu), "GPU {gpu} without a lease");
                    }
                }
                Action::SetClock { clock, .. } => {
                    if let Some(clock) = clock {
                        let mhz = clock.as_mhz();
                        assert!((135..=1_530).contains(&mhz), "{mhz} MHz");
                        assert!(self.in_force().is_some(), "locked without a lease");
                    }
                }
                Action::Report(report) => {
                    let last = self.reported.replace(report.clone());
                    assert!(last.is_none_or(|last| last.at_us < report.at_us), "{report:?}");
                    continue;
                }
                Action::StoreCaps(caps) => {
                    self.caps = caps.clone();
                    continue;
                }
                Action::Log(note) => {
                    self.notes.push(note.clone());
                    continue;
                }
                Action::Sleep(_) => continue,
                Action::ReadGpus => {}
            }
            self.waiting.push_back(action);
            // One reading, and one cap and one clock for each GPU, at most.
            assert!(self.waiting.len() <= 1 + 2 * GPUS as usize, "{:?}", self.waiting);
        }
    }

    pub(crate) fn event(&mut self, event: Event) {
        let mut out = Vec::new();
        self.machine.handle(self.now, event, &mut out);
        self.take(out);
    }

    pub(crate) fn answer(&mut self) -> bool {
        let Some(action) = self.waiting.pop_front() else { return false };
        let absent = !self.driver_loaded;
        let error = |model: &ModelGpu| {
            (absent || model.lost || model.refuses)
                .then(|| SetError { unsupported: false, message: "no permission".into() })
        };
        let event = match action {
            Action::ReadGpus if absent => Event::GpusUnreadable("no driver".to_owned()),
            Action::ReadGpus => {
                for model in self.gpus.iter_mut().filter(|model| !model.lost) {
                    model.mig_read = model.mig;
                }
                let read = |(gpu, model): (GpuIndex, &ModelGpu)| {
                    if model.lost {
                        return (gpu, Err("lost".to_owned()));
                    }
                    self.first.entry(gpu).or_insert(model.cap);
                    let facts = GpuFacts { uuid: format!("GPU-{gpu}"), ..facts() };
                    let status = GpuStatus {
                        facts,
                        cap: Some(model.cap),
                        clock: model.clock,
                        energy_total: None,
                        no_meter: false,
                        health: model.health(),
                    };
                    (gpu, Ok(status))
                };
                Event::GpusRead((0..).zip(&self.gpus).map(read).collect())
            }
            Action::SetCap { gpu, cap } => {
                let model = &mut self.gpus[gpu as usize];
                let result = error(model).map_or(Ok(()), Err);
                let raised = result.is_ok() && cap > model.cap;
                if result.is_ok() {
                    model.cap = cap;
                }
                if let Some(limit) = self.settings.node_limit.filter(|_| raised) {
                    assert!(self.sum() <= limit, "{} after GPU {gpu} rose to {cap}", self.sum());
                }
                Event::CapSet { gpu, cap, result }
            }
            Action::SetClock { gpu, clock } => {
                let model = &mut self.gpus[gpu as usize];
                let result = error(model).map_or(Ok(()), Err);
                if result.is_ok() {
                    model.clock = clock;
                }
                Event::ClockSet { gpu, clock, result }
            }
            Action::Report(_) | Action::Log(_) | Action::Sleep(_) | Action::StoreCaps(_) => {
                return true;
            }
        };
        self.event(event);
        true
    }

    pub(crate) fn advance(&mut self, span: Duration, answering: bool) {
        let until = self.now + span;
        for _ in 0..10_000 {
            while answering && self.answer() {}
            match self.machine.next_wake() {
                Some((at, _)) if at <= until => {
                    let before = (self.now, at);
                    self.now = self.now.max(at);
                    let mut out = Vec::new();
                    self.machine.wake(self.now, &mut out);
                    self.take(out);
                    let again = self.machine.next_wake().expect("there is always a heartbeat").0;
                    assert!(again > self.now, "wakes without progress: {before:?}, {again}");
                }
                _ => {
                    self.now = until;
                    return;
                }
            }
        }
        panic!("more wakes than time");
    }

    pub(crate) fn apply(&mut self, step: Step) {
        match step {
            Step::Command { generation, age_s, lease_s, power_limited, gpus } => {
                // The first order and one that follows a prompt one may be late: its age is then known.
                let late = if self.prompt { Duration::from_secs(age_s) } else { Duration::ZERO };
                let last = self.newest.as_ref().map_or(Timestamp::EPOCH, |last| last.issued_at_us);
                let issued_at = (self.now - late).max(last);
                let expires_at = issued_at + Duration::from_secs(lease_s);
                let desired = NodeDesired {
                    node: node_id(),
                    generation,
                    issued_at_us: issued_at,
                    expires_at_us: expires_at,
                    gpus: gpus
                        .into_iter()
                        .map(|(gpu, cap, clock)| DesiredGpu {
                            gpu,
                            cap_mw: cap.map(Power::from_w),
                            clock_mhz_max: clock.map(Frequency::from_mhz),
                        })
                        .collect(),
                    jobs: Vec::new(),
                    power_limited,
                    caps_ahead: caps_ahead(issued_at, generation, power_limited),
                    event_until_us: None,
                    sleep: None,
                };
                self.order(desired);
            }
            Step::Advance { ms } => self.advance(Duration::from_millis(ms), false),
            Step::AnswerOne => {
                self.answer();
            }
            Step::AnswerAll => while self.answer() {},
            Step::Lose(gpu) => self.gpus[gpu as usize].lost = true,
            Step::Return(gpu) => self.gpus[gpu as usize].lost = false,
            Step::Refuse(gpu, on) => self.gpus[gpu as usize].refuses = on,
            Step::ExternalCap(gpu, w) => self.gpus[gpu as usize].cap = Power::from_w(w),
            Step::Mig(gpu, on) => self.gpus[gpu as usize].mig = on,
            Step::Driver(loaded) => {
                if loaded && !self.driver_loaded {
                    for model in &mut self.gpus {
                        (model.cap, model.clock, model.ecc_errors) = (DEFAULT, None, 0);
                    }
                }
                self.driver_loaded = loaded;
            }
            Step::Crash => self.restart(self.now, None),
        }
    }

    /// The agent is killed and starts again, when the clock has been set to this time. A boot, if stated, is the present
    /// one by that clock.
    pub(crate) fn restart(&mut self, now: Timestamp, boot: Option<Boot>) {
        self.now = now;
        self.gpus.iter_mut().for_each(|model| model.mig_read = false);
        let caps = self.caps.clone().on_clock(boot);
        self.machine = PowerMachine::new(node_id(), self.settings.clone()).with_caps(caps);
        self.waiting.clear();
        self.newest = None;
        self.prompt = true;
        self.reported = None;
    }

    /// Time passes, and longer while a ramp to the last bound may not have ended.
    pub(crate) fn settle(&mut self, span: Duration) {
        const RAMP: Duration = Duration::from_secs(3);
        self.advance(span, true);
        let begun = |bound: &CapBound, now| bound.from_us <= now && now < bound.from_us + RAMP;
        while self.ahead.iter().any(|bound| begun(bound, self.now)) {
            self.advance(RAMP, true);
        }
    }

    /// An order arrives.
    pub(crate) fn order(&mut self, desired: NodeDesired) {
        let key = |o: &NodeDesired| (o.generation, o.issued_at_us);
        if self.newest.as_ref().is_none_or(|newest| key(newest) < key(&desired)) {
            self.newest = Some(desired.clone());
            self.prompt = desired.issued_at_us == self.now;
            let shares = desired.gpus.iter().filter_map(|gpu| Some((gpu.gpu, gpu.cap_mw?)));
            let shares: BTreeMap<GpuIndex, Power> = shares.collect();
            let ahead = desired.caps_ahead.clone();
            if desired.expires_at_us > self.now {
                self.shares = desired.power_limited.then_some(shares);
                self.ahead = ahead;
            } else {
                // An expired order lowers shares, and adds bounds where there are none.
                if self.ahead.is_empty() {
                    self.ahead = ahead;
                }
                let shares = shares.into_iter().filter(|_| desired.power_limited);
                if desired.power_limited {
                    self.shares.get_or_insert_default();
                }
                for (gpu, share) in shares {
                    let known = self.shares.get_or_insert_default();
                    let lower = known.get(&gpu).map_or(share, |known| share.min(*known));
                    known.insert(gpu, lower);
                }
            }
        }
        self.event(Event::DesiredChanged(desired));
    }

    pub(crate) fn check_reached(&self) {
        let desired: Option<BTreeMap<GpuIndex, DesiredGpu>> =
            self.in_force().map(|desired| desired.gpus.iter().map(|g| (g.gpu, *g)).collect());
        let power_limited = self.in_force().is_some_and(|desired| desired.power_limited);
        let requested = |(gpu, model): (GpuIndex, &ModelGpu)| {
            let Some(desired) = &desired else { return self.safe_cap(gpu) };
            let cap = desired.get(&gpu).and_then(|d| d.cap_mw).unwrap_or(DEFAULT);
            let cap = self.bounded(cap);
            match facts().check_cap(cap) {
                Ok(()) => cap,
                Err(_) if power_limited => nearest(cap),
                // The previous cap stays in force.
                Err(_) => model.cap,
            }
        };
        let requested: Vec<Power> = (0..).zip(&self.gpus).map(requested).collect();
        let caps = self.within_limit(&requested);
        for ((gpu, model), expected) in (0..).zip(&self.gpus).zip(caps) {
            assert_eq!(model.cap, expected, "GPU {gpu}, requested {requested:?}");
            let Some(desired) = &desired else {
                assert_eq!(model.clock, None, "GPU {gpu} without a lease");
                continue;
            };
            let of_gpu = desired.get(&gpu);
            let cap = self.bounded(of_gpu.and_then(|d| d.cap_mw).unwrap_or(DEFAULT));
            let clock = of_gpu.and_then(|d| d.clock_mhz_max);
            if clock.is_none_or(|clock| facts().check_clock(clock).is_ok()) {
                assert_eq!(model.clock, clock, "GPU {gpu}, desired {of_gpu:?}");
            }
            let refused = facts().check_cap(cap).is_err()
                || clock.is_some_and(|clock| facts().check_clock(clock).is_err());
            let report = &self.reported.as_ref().expect("reported").gpus[gpu as usize];
            assert_eq!(report.last_error.is_some(), refused, "GPU {gpu}: {report:?}");
            assert_eq!(report.cap_mw, Some(model.cap), "the report states the actual value");
            assert_eq!(report.clock_mhz_max, model.clock, "the report states the actual value");
        }
    }
}
