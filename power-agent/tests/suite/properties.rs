//! What the power agent promises, under any order of events.
//!
//! A small model of a node answers the machine: it sets what it is told, refuses, loses cards and
//! lets a foreign hand change caps. Nothing here knows how the machine works inside.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use proptest::prelude::*;
use wattle_common::messages::{DesiredGpu, NodeDesired, PowerReport};
use wattle_common::{Frequency, GpuIndex, Machine, NodeId, Power, Timestamp};
use wattle_power_agent::{Action, CardFacts, CardRead, Event, PowerMachine, Refusal, Settings};

const GPUS: u32 = 3;
const SAFE_W: u64 = 200;

#[derive(Clone, Debug)]
enum Step {
    Order {
        generation: u64,
        issued_s: u64,
        lease_s: i64,
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
    Foreign(u32, u64),
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    let gpu_order = (0..GPUS + 1, prop::option::of(0u64..500), prop::option::of(0u32..2_500));
    prop_oneof![
        4 => (0u64..6, 0u64..4, -5i64..40, prop::collection::vec(gpu_order, 0..5)).prop_map(
            |(generation, issued_s, lease_s, gpus)| Step::Order { generation, issued_s, lease_s, gpus }
        ),
        4 => (0u64..25_000).prop_map(|ms| Step::Advance { ms }),
        3 => Just(Step::AnswerOne),
        3 => Just(Step::AnswerAll),
        1 => (0..GPUS).prop_map(Step::Lose),
        1 => (0..GPUS).prop_map(Step::Return),
        1 => (0..GPUS, any::<bool>()).prop_map(|(g, on)| Step::Refuse(g, on)),
        1 => (0..GPUS, 100u64..=300).prop_map(|(g, w)| Step::Foreign(g, w)),
        1 => Just(Step::Crash),
    ]
}

struct ModelCard {
    cap: Power,
    clock: Option<Frequency>,
    lost: bool,
    refuses: bool,
}

struct Node {
    machine: PowerMachine,
    settings: Settings,
    cards: Vec<ModelCard>,
    now: Timestamp,
    waiting: VecDeque<Action>,
    newest: Option<NodeDesired>,
    reported: Option<PowerReport>,
}

fn facts() -> CardFacts {
    CardFacts {
        uuid: "GPU-x".into(),
        kind: "v100".into(),
        memory_mib: 16_384,
        cap_default: Some(Power::from_w(300)),
        cap_range: Some((Power::from_w(100), Power::from_w(300))),
        clock_range: Some((Frequency::from_mhz(135), Frequency::from_mhz(1_530))),
    }
}

fn node_id() -> NodeId {
    NodeId::new("n0").expect("an id")
}

impl Node {
    fn new(ramp_w: u64) -> Self {
        let settings = Settings {
            safe_cap: Some(Power::from_w(SAFE_W)),
            ramp_step: Power::from_w(ramp_w),
            ramp_every: Duration::from_millis(500),
            heartbeat: Duration::from_secs(5),
            can_sleep: true,
            ..Settings::default()
        };
        let card = |i: u32| ModelCard {
            cap: Power::from_w(100 + 60 * u64::from(i)),
            clock: Some(Frequency::from_mhz(900)),
            lost: false,
            refuses: false,
        };
        Self {
            machine: PowerMachine::new(node_id(), settings.clone()),
            settings,
            cards: (0..GPUS).map(card).collect(),
            now: Timestamp::from_s(1_000),
            waiting: VecDeque::new(),
            newest: None,
            reported: None,
        }
    }

    fn in_force(&self) -> Option<&NodeDesired> {
        self.newest.as_ref().filter(|order| order.expires_at_us > self.now)
    }

    fn take(&mut self, out: Vec<Action>) {
        for action in out {
            match &action {
                Action::SetCap { gpu, cap } => {
                    assert!(
                        (Power::from_w(100)..=Power::from_w(300)).contains(cap),
                        "gpu {gpu} was told {cap}, outside its constraints"
                    );
                    if self.in_force().is_none() {
                        assert_eq!(*cap, Power::from_w(SAFE_W), "no lease runs, gpu {gpu}");
                    }
                }
                Action::SetClock { clock, .. } => {
                    if let Some(clock) = clock {
                        let mhz = clock.as_mhz();
                        assert!((135..=1_530).contains(&mhz), "told {mhz} MHz");
                        assert!(self.in_force().is_some(), "locked with no lease");
                    }
                }
                Action::Report(report) => {
                    self.reported = Some(report.clone());
                    continue;
                }
                Action::Log(_) | Action::Sleep(_) => continue,
                Action::ReadCards => {}
            }
            self.waiting.push_back(action);
            // One reading, and one cap and one clock for each card, at most.
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
        let refusal = |card: &ModelCard| {
            (card.lost || card.refuses)
                .then(|| Refusal { unsupported: false, error: "no permission".into() })
        };
        let event = match action {
            Action::ReadCards => {
                let read = |card: &ModelCard| {
                    if card.lost {
                        return Err("lost".to_owned());
                    }
                    Ok(CardRead { facts: facts(), cap: Some(card.cap), clock: card.clock })
                };
                Event::CardsRead((0..).zip(self.cards.iter().map(read)).collect())
            }
            Action::SetCap { gpu, cap } => {
                let card = &mut self.cards[gpu as usize];
                let answer = refusal(card).map_or(Ok(()), Err);
                if answer.is_ok() {
                    card.cap = cap;
                }
                Event::CapAnswered { gpu, cap, answer }
            }
            Action::SetClock { gpu, clock } => {
                let card = &mut self.cards[gpu as usize];
                let answer = refusal(card).map_or(Ok(()), Err);
                if answer.is_ok() {
                    card.clock = clock;
                }
                Event::ClockAnswered { gpu, clock, answer }
            }
            Action::Report(_) | Action::Log(_) | Action::Sleep(_) => return true,
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
            Step::Order { generation, issued_s, lease_s, gpus } => {
                let order = NodeDesired {
                    node: node_id(),
                    generation,
                    issued_at_us: Timestamp::from_s(issued_s),
                    expires_at_us: Timestamp::from_us(
                        self.now.as_us().saturating_add_signed(lease_s * 1_000_000),
                    ),
                    gpus: gpus
                        .into_iter()
                        .map(|(gpu, cap, clock)| DesiredGpu {
                            gpu,
                            cap_mw: cap.map(Power::from_w),
                            clock_mhz_max: clock.map(Frequency::from_mhz),
                        })
                        .collect(),
                    jobs: Vec::new(),
                    sleep: None,
                };
                let key = |o: &NodeDesired| (o.generation, o.issued_at_us);
                if self.newest.as_ref().is_none_or(|newest| key(newest) < key(&order)) {
                    self.newest = Some(order.clone());
                }
                self.event(Event::DesiredChanged(order));
            }
            Step::Advance { ms } => self.advance(Duration::from_millis(ms), false),
            Step::AnswerOne => {
                self.answer();
            }
            Step::AnswerAll => while self.answer() {},
            Step::Lose(gpu) => self.cards[gpu as usize].lost = true,
            Step::Return(gpu) => self.cards[gpu as usize].lost = false,
            Step::Refuse(gpu, on) => self.cards[gpu as usize].refuses = on,
            Step::Foreign(gpu, w) => self.cards[gpu as usize].cap = Power::from_w(w),
            Step::Crash => {
                self.machine = PowerMachine::new(node_id(), self.settings.clone());
                self.waiting.clear();
                self.newest = None;
                self.reported = None;
            }
        }
    }

    fn check_settled(&self) {
        let orders: Option<BTreeMap<GpuIndex, DesiredGpu>> =
            self.in_force().map(|order| order.gpus.iter().map(|g| (g.gpu, *g)).collect());
        for (gpu, card) in (0..).zip(&self.cards) {
            let Some(orders) = &orders else {
                assert_eq!(card.cap, Power::from_w(SAFE_W), "gpu {gpu} with no lease");
                assert_eq!(card.clock, None, "gpu {gpu} with no lease");
                continue;
            };
            let order = orders.get(&gpu);
            let cap = order.and_then(|o| o.cap_mw).unwrap_or(Power::from_w(300));
            if facts().check_cap(cap).is_ok() {
                assert_eq!(card.cap, cap, "gpu {gpu}, ordered {order:?}");
            }
            let clock = order.and_then(|o| o.clock_mhz_max);
            if clock.is_none_or(|clock| facts().check_clock(clock).is_ok()) {
                assert_eq!(card.clock, clock, "gpu {gpu}, ordered {order:?}");
            }
            let refused = facts().check_cap(cap).is_err()
                || clock.is_some_and(|clock| facts().check_clock(clock).is_err());
            let report = &self.reported.as_ref().expect("reported").gpus[gpu as usize];
            assert_eq!(report.last_error.is_some(), refused, "gpu {gpu}: {report:?}");
            assert_eq!(report.cap_mw, Some(card.cap), "the report says what stands");
            assert_eq!(report.clock_mhz_max, card.clock, "the report says what stands");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Whatever happened: every setting was inside the constraints and of the newest order (checked
    /// at each action); once the faults are over the cards stand as the newest order says, and at
    /// the safe state when its lease is over.
    #[test]
    fn the_newest_order_or_the_safe_state(ramp_w in prop_oneof![Just(0u64), Just(70)], steps in prop::collection::vec(step(), 0..60)) {
        let mut node = Node::new(ramp_w);
        for step in steps {
            node.apply(step);
        }
        for card in &mut node.cards {
            card.lost = false;
            card.refuses = false;
        }
        // Two heartbeats: one may find a card refusing still, the next must not. The ramp's
        // longest way, 200 W in steps of 70 W, is shorter.
        node.advance(Duration::from_secs(11), true);
        node.check_settled();
        node.advance(Duration::from_secs(60), true);
        assert!(node.in_force().is_none(), "no lease of this test is longer than that");
        node.check_settled();
        assert!(node.machine.at_rest());
    }

    /// A stop is safe from any state.
    #[test]
    fn a_stop_leaves_the_cards_safe(steps in prop::collection::vec(step(), 0..40)) {
        let mut node = Node::new(50);
        for step in steps {
            node.apply(step);
        }
        for card in &mut node.cards {
            card.lost = false;
            card.refuses = false;
        }
        node.advance(Duration::from_secs(11), true);
        node.newest = None; // from here on only the safe state may be ordered
        node.event(Event::StopRequested);
        while node.answer() {}
        node.check_settled();
        assert!(node.machine.at_rest());
    }
}

fn order(generation: u64, now: Timestamp, gpus: Vec<DesiredGpu>) -> Event {
    Event::DesiredChanged(NodeDesired {
        node: node_id(),
        generation,
        issued_at_us: now,
        expires_at_us: now + Duration::from_secs(30),
        gpus,
        jobs: Vec::new(),
        sleep: None,
    })
}

#[test]
fn a_start_brings_the_cards_to_their_safe_state() {
    let mut node = Node::new(0);
    node.advance(Duration::from_secs(1), true);
    assert!(node.cards.iter().all(|c| c.cap == Power::from_w(SAFE_W) && c.clock.is_none()));
    assert_eq!(node.reported.unwrap().lease_until_us, None);
}

#[test]
fn a_hung_driver_is_reported_and_asked_once() {
    let mut node = Node::new(0);
    node.advance(Duration::from_secs(1), true);
    node.advance(Duration::from_secs(60), false);
    assert_eq!(node.waiting.len(), 1, "{:?}", node.waiting);
    let report = node.reported.clone().unwrap();
    assert!(report.gpus.iter().all(|gpu| !gpu.healthy));
    assert!(node.now.since(report.at_us) <= node.settings.heartbeat, "still reporting");
    node.advance(Duration::from_secs(6), true);
    assert!(node.reported.unwrap().gpus.iter().all(|gpu| gpu.healthy));
}

#[test]
fn one_lost_card_does_not_keep_the_others() {
    let mut node = Node::new(0);
    node.advance(Duration::from_secs(1), true);
    node.cards[1].lost = true;
    node.advance(Duration::from_secs(6), true);
    let cap = |gpu| DesiredGpu { gpu, cap_mw: Some(Power::from_w(150)), clock_mhz_max: None };
    let event = order(3, node.now, vec![cap(0), cap(1), cap(2)]);
    if let Event::DesiredChanged(desired) = &event {
        node.newest = Some(desired.clone());
    }
    node.event(event);
    node.advance(Duration::from_secs(1), true);
    let report = node.reported.clone().unwrap();
    assert_eq!(report.observed_generation, 3);
    let healthy: Vec<bool> = report.gpus.iter().map(|gpu| gpu.healthy).collect();
    assert_eq!(healthy, [true, false, true]);
    assert_eq!(report.gpus[2].cap_mw, Some(Power::from_w(150)));
    assert_eq!(report.gpus[1].cap_mw, None, "missing is missing");
    node.cards[1].lost = false;
    node.advance(Duration::from_secs(6), true);
    assert_eq!(node.cards[1].cap, Power::from_w(150), "brought to what is desired");
}
