//! GPUs that support no cap, no lock of their clock, or no reading: they work, and what is ordered for them is
//! advice.

use std::collections::VecDeque;
use std::time::Duration;

use wattle_common::messages::{AppliedGpu, DesiredGpu, NodeDesired, PowerReport};
use wattle_common::{Frequency, Machine, Power, Timestamp};
use wattle_gpu::GpuHealth;
use wattle_power_agent::{
    Action, Event, GpuFacts, GpuStatus, Note, PowerMachine, SetError, Settings,
};
use wattle_testkit as kit;

fn w(watts: u64) -> Power {
    Power::from_w(watts)
}

/// Two GPUs, of which the first lacks something.
struct Node {
    machine: PowerMachine,
    now: Timestamp,
    facts: GpuFacts,
    no_meter: bool,
    /// Whether it states no cap.
    no_cap: bool,
    /// Whether its driver sets caps and locks clocks.
    sets: (bool, bool),
    caps: [Power; 2],
    /// Settings of the first GPU that reached the driver.
    tried: Vec<Action>,
    notes: Vec<Note>,
    report: Option<PowerReport>,
}

fn facts(gpu: u32) -> GpuFacts {
    GpuFacts {
        uuid: format!("GPU-{gpu}"),
        gpu_type: "v100".into(),
        memory_mib: Some(16_384),
        cap_default: Some(w(300)),
        cap_range: Some((w(100), w(300))),
        clock_range: Some((Frequency::from_mhz(135), Frequency::from_mhz(1_530))),
    }
}

impl Node {
    fn new(settings: Settings) -> Self {
        Self {
            machine: PowerMachine::new(kit::node("n0"), settings),
            now: Timestamp::from_s(1_000),
            facts: facts(0),
            no_meter: false,
            no_cap: false,
            sets: (true, true),
            caps: [w(300); 2],
            tried: Vec::new(),
            notes: Vec::new(),
            report: None,
        }
    }

    fn event(&mut self, event: Event) {
        let mut out = Vec::new();
        self.machine.handle(self.now, event, &mut out);
        self.answer(out);
    }

    /// Carries out the machine's actions and their consequences.
    fn answer(&mut self, out: Vec<Action>) {
        let unsupported = || SetError { unsupported: true, message: "not supported".into() };
        let mut waiting = VecDeque::from(out);
        while let Some(action) = waiting.pop_front() {
            if let Action::SetCap { gpu: 0, .. } | Action::SetClock { gpu: 0, .. } = action {
                self.tried.push(action.clone());
            }
            let event = match action {
                Action::ReadGpus => {
                    Event::GpusRead((0..2).map(|gpu| (gpu, Ok(self.read(gpu)))).collect())
                }
                Action::SetCap { gpu, cap } => {
                    let works = gpu > 0 || self.sets.0;
                    if works {
                        self.caps[gpu as usize] = cap;
                    }
                    let result = if works { Ok(()) } else { Err(unsupported()) };
                    Event::CapSet { gpu, cap, result }
                }
                Action::SetClock { gpu, clock } => {
                    let result = if gpu > 0 || self.sets.1 { Ok(()) } else { Err(unsupported()) };
                    Event::ClockSet { gpu, clock, result }
                }
                Action::Report(report) => {
                    self.report = Some(report);
                    continue;
                }
                Action::Log(note) => {
                    self.notes.push(note);
                    continue;
                }
                Action::Sleep(_) | Action::StoreCaps(_) => continue,
            };
            let mut out = Vec::new();
            self.machine.handle(self.now, event, &mut out);
            waiting.extend(out);
        }
    }

    fn read(&self, gpu: u32) -> GpuStatus {
        GpuStatus {
            facts: if gpu == 0 { self.facts.clone() } else { facts(gpu) },
            cap: (gpu > 0 || !self.no_cap).then_some(self.caps[gpu as usize]),
            clock: None,
            energy_total: None,
            no_meter: gpu == 0 && self.no_meter,
            health: GpuHealth::default(),
        }
    }

    /// Lets the time pass to the end of several heartbeats.
    fn pass(&mut self, seconds: u64) {
        let until = self.now + Duration::from_secs(seconds);
        while let Some((at, _)) = self.machine.next_wake().filter(|(at, _)| *at <= until) {
            self.now = self.now.max(at);
            let mut out = Vec::new();
            self.machine.wake(self.now, &mut out);
            self.answer(out);
        }
        self.now = until;
    }

    fn order(&mut self, cap: u64, clock: u32) {
        let gpus = (0..2).map(|gpu| DesiredGpu {
            gpu,
            cap_mw: Some(w(cap)),
            clock_mhz_max: Some(Frequency::from_mhz(clock)),
        });
        let desired = NodeDesired {
            gpus: gpus.collect(),
            ..kit::node_desired("n0", 1, self.now, self.now + Duration::from_secs(600))
        };
        self.event(Event::DesiredChanged(desired));
    }

    fn gpu(&self, gpu: usize) -> &AppliedGpu {
        &self.report.as_ref().unwrap().gpus[gpu]
    }
}

#[test]
fn a_gpu_that_reports_no_memory_and_no_meter_works() {
    let mut node = Node::new(Settings::default());
    (node.facts.memory_mib, node.no_meter) = (None, true);
    node.pass(1);
    let gpu = node.gpu(0);
    assert_eq!((gpu.memory_mib, gpu.no_meter), (None, true));
    assert!(gpu.healthy && gpu.accepts_jobs(), "{gpu:?}");
    assert_eq!((node.gpu(1).memory_mib, node.gpu(1).no_meter), (Some(16_384), false));
    node.order(200, 1_200);
    assert_eq!(node.gpu(0).cap_mw, Some(w(200)));
}

#[test]
fn a_cap_that_the_driver_refuses_as_unsupported_is_advice() {
    let mut node = Node::new(Settings { safe_cap: Some(w(250)), ..Settings::default() });
    node.sets = (false, true);
    node.pass(60);
    let caps = |node: &Node| {
        node.tried.iter().filter(|action| matches!(action, Action::SetCap { .. })).count()
    };
    assert_eq!(caps(&node), 1, "it is not tried again at each heartbeat");
    node.order(200, 1_200);
    node.pass(60);
    let (gpu, other) = (node.gpu(0), node.gpu(1));
    assert_eq!((gpu.cap_mw, gpu.cap_mw_advised), (Some(w(300)), Some(w(200))));
    assert_eq!((gpu.cap_mw_min, gpu.cap_mw_max), (None, None), "the policy knows");
    assert!(gpu.cap_unsupported && gpu.is_managed() && !gpu.sets_caps());
    assert_eq!(gpu.clock_mhz_max, Some(Frequency::from_mhz(1_200)), "its clock is locked");
    assert_eq!(gpu.last_error, None);
    assert_eq!((other.cap_mw, other.cap_mw_advised), (Some(w(200)), None));
    assert!(!other.cap_unsupported && other.sets_caps());
    assert_eq!(caps(&node), 1);
    assert_eq!(node.notes.iter().filter(|note| **note == Note::NoCap { gpu: 0 }).count(), 1);
    node.event(Event::StopRequested);
    assert!(node.machine.is_safe() && node.machine.leaves_nothing_behind());
}

#[test]
fn a_gpu_without_limits_for_a_cap_and_without_clocks_is_advised_only() {
    let mut node = Node::new(Settings::default());
    (node.facts.cap_range, node.facts.clock_range) = (None, None);
    node.sets = (false, false);
    node.pass(1);
    node.order(200, 1_200);
    node.pass(60);
    let gpu = node.gpu(0);
    assert!(gpu.cap_unsupported && gpu.clock_unsupported && gpu.last_error.is_none(), "{gpu:?}");
    assert_eq!(gpu.cap_mw_advised, Some(w(200)));
    assert_eq!(gpu.clock_mhz_max_advised, Some(Frequency::from_mhz(1_200)));
    assert!(node.tried.iter().all(|action| matches!(action, Action::SetClock { clock: None, .. })));
    let noted = [Note::NoCap { gpu: 0 }, Note::NoLock { gpu: 0 }];
    assert!(noted.iter().all(|note| node.notes.contains(note)), "{:?}", node.notes);
}

/// It counts neither as 0 W nor silently.
#[test]
fn a_gpu_that_states_no_cap_is_named_where_the_node_has_a_limit() {
    let limited = Settings { node_limit: Some(w(400)), ..Settings::default() };
    let unbounded = |settings: &Settings, no_cap: bool| {
        let mut node = Node::new(settings.clone());
        if no_cap {
            (node.facts.cap_range, node.facts.cap_default) = (None, None);
        }
        (node.no_cap, node.sets.0) = (no_cap, !no_cap);
        node.pass(120);
        let is_it = |note: &&Note| **note == Note::NodeLimitUnbounded { limit: w(400), gpu: 0 };
        node.notes.iter().filter(is_it).count()
    };
    assert_eq!(unbounded(&limited, true), 1, "once");
    assert_eq!(unbounded(&limited, false), 0);
    assert_eq!(unbounded(&Settings::default(), true), 0, "nothing is limited");
}

#[test]
fn a_clock_that_cannot_be_locked_is_tried_once() {
    let mut node = Node::new(Settings::default());
    node.sets = (true, false);
    node.pass(120);
    let gpu = node.gpu(0);
    assert!(gpu.clock_unsupported && gpu.last_error.is_none(), "{gpu:?}");
    assert_eq!(gpu.clock_mhz_supported_max, None, "the policy knows");
    let clocks = node.tried.iter().filter(|action| matches!(action, Action::SetClock { .. }));
    assert_eq!(clocks.count(), 1);
    node.order(200, 1_200);
    assert_eq!(node.gpu(0).cap_mw, Some(w(200)));
    assert_eq!(node.gpu(0).clock_mhz_max_advised, Some(Frequency::from_mhz(1_200)));
    assert_eq!(node.gpu(1).clock_mhz_max, Some(Frequency::from_mhz(1_200)));
}
