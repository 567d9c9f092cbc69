//! The power agent's promises, under any sequence of events.
//!
//! A model of a node executes the machine's actions. It may refuse settings and lose GPUs, and
//! another program may change its caps. The model does not use the machine's internals.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use proptest::prelude::*;
use wattle_common::messages::{DesiredGpu, NodeDesired, PowerReport};
use wattle_common::{Frequency, GpuIndex, Machine, NodeId, Power, Timestamp};
use wattle_power_agent::{
    Action, Event, GpuFacts, GpuStatus, PersistedCaps, PowerMachine, SetError, Settings,
};
use wattle_testkit as kit;

const GPUS: u32 = 3;
const SAFE_W: u64 = 200;

#[derive(Clone, Debug)]
enum Step {
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
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
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

struct ModelGpu {
    cap: Power,
    clock: Option<Frequency>,
    lost: bool,
    refuses: bool,
}

struct Node {
    machine: PowerMachine,
    settings: Settings,
    gpus: Vec<ModelGpu>,
    now: Timestamp,
    waiting: VecDeque<Action>,
    newest: Option<NodeDesired>,
    /// The last stored caps.
    caps: PersistedCaps,
    /// Shares of a power limit, from the last order that was in force.
    shares: BTreeMap<GpuIndex, Power>,
    /// Cap of each GPU when it was first read.
    first: BTreeMap<GpuIndex, Power>,
    stopped: bool,
    /// Whether the last order arrived at once, or none has arrived.
    prompt: bool,
    reported: Option<PowerReport>,
}

fn facts() -> GpuFacts {
    GpuFacts {
        uuid: "GPU-x".into(),
        gpu_type: "v100".into(),
        memory_mib: 16_384,
        cap_default: Some(Power::from_w(300)),
        cap_range: Some((Power::from_w(100), Power::from_w(300))),
        clock_range: Some((Frequency::from_mhz(135), Frequency::from_mhz(1_530))),
    }
}

fn node_id() -> NodeId {
    kit::node("n0")
}

impl Node {
    fn new(ramp_w: u64) -> Self {
        let settings = Settings {
            safe_cap: Some(Power::from_w(SAFE_W)),
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
        };
        Self {
            machine: PowerMachine::new(node_id(), settings.clone()),
            settings,
            gpus: (0..GPUS).map(model).collect(),
            now: Timestamp::from_s(1_000),
            waiting: VecDeque::new(),
            newest: None,
            caps: PersistedCaps::default(),
            shares: BTreeMap::new(),
            first: BTreeMap::new(),
            stopped: false,
            prompt: true,
            reported: None,
        }
    }

    fn in_force(&self) -> Option<&NodeDesired> {
        self.newest.as_ref().filter(|desired| desired.expires_at_us > self.now)
    }

    /// The cap that a GPU must have without a lease.
    fn safe_cap(&self, gpu: GpuIndex) -> Power {
        let safe = Power::from_w(SAFE_W);
        let cap = if self.stopped { self.first.get(&gpu).copied().unwrap_or(safe) } else { safe };
        let share = self.shares.get(&gpu).filter(|cap| facts().check_cap(**cap).is_ok());
        share.map_or(cap, |share| cap.min(*share))
    }

    fn take(&mut self, out: Vec<Action>) {
        for action in out {
            match &action {
                Action::SetCap { gpu, cap } => {
                    assert!(
                        (Power::from_w(100)..=Power::from_w(300)).contains(cap),
                        "GPU {gpu}: {cap} is outside its limits"
                    );
                    if self.in_force().is_none() {
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
                    self.reported = Some(report.clone());
                    continue;
                }
                Action::StoreCaps(caps) => {
                    self.caps = caps.clone();
                    continue;
                }
                Action::Log(_) | Action::Sleep(_) => continue,
                Action::ReadGpus => {}
            }
            self.waiting.push_back(action);
            // One reading, and one cap and one clock for each GPU, at most.
            assert!(self.waiting.len() <= 1 + 2 * GPUS as usize, "{:?}", self.waiting);
        }
    }

    fn event(&mut self, event: Event) {
        let mut out = Vec::new();
        self.machine.handle(self.now, event, &mut out);
        self.take(out);
    }

    fn answer(&mut self) -> bool {
        let Some(action) = self.waiting.pop_front() else { return false };
        let error = |model: &ModelGpu| {
            (model.lost || model.refuses)
                .then(|| SetError { unsupported: false, message: "no permission".into() })
        };
        let event = match action {
            Action::ReadGpus => {
                let read = |(gpu, model): (GpuIndex, &ModelGpu)| {
                    if model.lost {
                        return (gpu, Err("lost".to_owned()));
                    }
                    self.first.entry(gpu).or_insert(model.cap);
                    let facts = GpuFacts { uuid: format!("GPU-{gpu}"), ..facts() };
                    (gpu, Ok(GpuStatus { facts, cap: Some(model.cap), clock: model.clock }))
                };
                Event::GpusRead((0..).zip(&self.gpus).map(read).collect())
            }
            Action::SetCap { gpu, cap } => {
                let model = &mut self.gpus[gpu as usize];
                let result = error(model).map_or(Ok(()), Err);
                if result.is_ok() {
                    model.cap = cap;
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

    fn advance(&mut self, span: Duration, answering: bool) {
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

    fn apply(&mut self, step: Step) {
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
                    sleep: None,
                };
                let key = |o: &NodeDesired| (o.generation, o.issued_at_us);
                if self.newest.as_ref().is_none_or(|newest| key(newest) < key(&desired)) {
                    self.newest = Some(desired.clone());
                    self.prompt = issued_at == self.now;
                    if expires_at > self.now {
                        let shares = desired.gpus.iter().filter(|_| power_limited);
                        let shares = shares.filter_map(|gpu| Some((gpu.gpu, gpu.cap_mw?)));
                        self.shares = shares.collect();
                    }
                }
                self.event(Event::DesiredChanged(desired));
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
            Step::Crash => {
                self.machine = PowerMachine::new(node_id(), self.settings.clone())
                    .with_caps(self.caps.clone());
                self.waiting.clear();
                self.newest = None;
                self.prompt = true;
                self.reported = None;
            }
        }
    }

    fn check_reached(&self) {
        let desired: Option<BTreeMap<GpuIndex, DesiredGpu>> =
            self.in_force().map(|desired| desired.gpus.iter().map(|g| (g.gpu, *g)).collect());
        for (gpu, model) in (0..).zip(&self.gpus) {
            let Some(desired) = &desired else {
                assert_eq!(model.cap, self.safe_cap(gpu), "GPU {gpu} without a lease");
                assert_eq!(model.clock, None, "GPU {gpu} without a lease");
                continue;
            };
            let of_gpu = desired.get(&gpu);
            let cap = of_gpu.and_then(|d| d.cap_mw).unwrap_or(Power::from_w(300));
            if facts().check_cap(cap).is_ok() {
                assert_eq!(model.cap, cap, "GPU {gpu}, desired {of_gpu:?}");
            }
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Every setting is within the limits and of the newest desired state (checked at each action).
    /// Once the faults are over, the GPUs have the newest desired caps and clocks, and are in the
    /// safe state when the lease is over.
    #[test]
    fn gpus_reach_the_newest_desired_state_or_the_safe_state(ramp_w in prop_oneof![Just(0u64), Just(70)], steps in prop::collection::vec(step(), 0..60)) {
        let mut node = Node::new(ramp_w);
        for step in steps {
            node.apply(step);
        }
        for model in &mut node.gpus {
            model.lost = false;
            model.refuses = false;
        }
        // Two heartbeats: the first may still find a refused setting. The longest ramp, 200 W in
        // steps of 70 W, is shorter.
        node.advance(Duration::from_secs(11), true);
        node.check_reached();
        node.advance(Duration::from_secs(60), true);
        assert!(node.in_force().is_none(), "no lease of this test is longer");
        node.check_reached();
        assert!(node.machine.is_safe());
    }

    /// A shutdown sets the caps that the first agent found, from any state and after any crashes.
    #[test]
    fn a_shutdown_restores_the_caps_that_were_found(steps in prop::collection::vec(step(), 0..40)) {
        let mut node = Node::new(50);
        for step in steps {
            node.apply(step);
        }
        for model in &mut node.gpus {
            model.lost = false;
            model.refuses = false;
        }
        node.advance(Duration::from_secs(11), true);
        // From here on only the caps that were found are allowed.
        node.newest = None;
        node.stopped = true;
        node.event(Event::StopRequested);
        while node.answer() {}
        node.check_reached();
        assert!(node.machine.is_safe());
    }
}

fn desired(generation: u64, now: Timestamp, gpus: Vec<DesiredGpu>) -> NodeDesired {
    let expires_at = now + Duration::from_secs(30);
    NodeDesired { gpus, ..kit::node_desired("n0", generation, now, expires_at) }
}

#[test]
fn a_node_with_a_wrong_clock_obeys_within_a_lease() {
    for (ahead_s, behind_s) in [(0, 0), (3_600, 0), (0, 500)] {
        let mut node = Node::new(0);
        node.advance(Duration::from_secs(1), true);
        let cap = |w| DesiredGpu { gpu: 0, cap_mw: Some(Power::from_w(w)), clock_mhz_max: None };
        let placer = |node: &Node| {
            node.now + Duration::from_secs(behind_s) - Duration::from_secs(ahead_s.min(900))
        };
        // Renewals every 10 s; the second one is obeyed at the latest.
        for _ in 0..2 {
            let order = desired(3, placer(&node), vec![cap(150)]);
            node.newest = Some(NodeDesired { expires_at_us: Timestamp::FOREVER, ..order.clone() });
            node.event(Event::DesiredChanged(order));
            node.advance(Duration::from_secs(10), true);
        }
        assert_eq!(node.gpus[0].cap, Power::from_w(150), "{ahead_s} s ahead, {behind_s} s behind");
        // The placer is away: the lease ends 30 s after its last renewal was received.
        node.advance(Duration::from_secs(19), true);
        assert_eq!(node.gpus[0].cap, Power::from_w(150));
        node.newest = None;
        node.advance(Duration::from_secs(2), true);
        assert_eq!(node.gpus[0].cap, Power::from_w(SAFE_W));
    }
}

#[test]
fn no_cap_rises_after_the_lease_under_a_power_limit() {
    for restarts in [false, true] {
        let mut node = Node::new(0);
        node.advance(Duration::from_secs(1), true);
        let cap = |gpu, w| DesiredGpu { gpu, cap_mw: Some(Power::from_w(w)), clock_mhz_max: None };
        let gpus = [cap(0, 110), cap(1, 150), cap(2, 250)];
        node.apply(Step::Command {
            generation: 1,
            age_s: 0,
            lease_s: 30,
            power_limited: true,
            gpus: gpus
                .iter()
                .map(|gpu| (gpu.gpu, gpu.cap_mw.map(|cap| cap.as_mw() / 1_000), None))
                .collect(),
        });
        node.advance(Duration::from_secs(5), true);
        if restarts {
            node.apply(Step::Crash);
        }
        node.advance(Duration::from_secs(60), true);
        let caps: Vec<u64> = node.gpus.iter().map(|gpu| gpu.cap.as_mw() / 1_000).collect();
        assert_eq!(caps, [110, 150, SAFE_W], "restarted: {restarts}");
    }
}

#[test]
fn a_start_brings_the_gpus_to_their_safe_state() {
    let mut node = Node::new(0);
    node.advance(Duration::from_secs(1), true);
    assert!(node.gpus.iter().all(|c| c.cap == Power::from_w(SAFE_W) && c.clock.is_none()));
    assert_eq!(node.reported.unwrap().lease_until_us, None);
}

#[test]
fn a_hung_driver_is_reported_and_read_once() {
    let mut node = Node::new(0);
    node.advance(Duration::from_secs(1), true);
    node.advance(Duration::from_secs(60), false);
    assert_eq!(node.waiting.len(), 1, "{:?}", node.waiting);
    let report = node.reported.clone().unwrap();
    assert!(report.gpus.iter().all(|gpu| !gpu.healthy));
    assert!(node.now.since(report.at_us) <= node.settings.heartbeat, "reports continue");
    node.advance(Duration::from_secs(6), true);
    assert!(node.reported.unwrap().gpus.iter().all(|gpu| gpu.healthy));
}

#[test]
fn one_lost_gpu_does_not_affect_the_others() {
    let mut node = Node::new(0);
    node.advance(Duration::from_secs(1), true);
    node.gpus[1].lost = true;
    node.advance(Duration::from_secs(6), true);
    let cap = |gpu| DesiredGpu { gpu, cap_mw: Some(Power::from_w(150)), clock_mhz_max: None };
    let desired = desired(3, node.now, vec![cap(0), cap(1), cap(2)]);
    node.newest = Some(desired.clone());
    node.event(Event::DesiredChanged(desired));
    node.advance(Duration::from_secs(1), true);
    let report = node.reported.clone().unwrap();
    assert_eq!(report.observed_generation, 3);
    let healthy: Vec<bool> = report.gpus.iter().map(|gpu| gpu.healthy).collect();
    assert_eq!(healthy, [true, false, true]);
    assert_eq!(report.gpus[2].cap_mw, Some(Power::from_w(150)));
    assert_eq!(report.gpus[1].cap_mw, None, "a missing reading stays missing");
    node.gpus[1].lost = false;
    node.advance(Duration::from_secs(6), true);
    assert_eq!(node.gpus[1].cap, Power::from_w(150), "set to the desired cap");
}
