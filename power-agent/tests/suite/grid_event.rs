//! The steps of a grid event, followed without a placer: down on time, up at its end only, and never above the shares from
//! before it.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use wattle_common::messages::{CapBound, DesiredGpu, NodeDesired};
use wattle_common::{Power, Timestamp};
use wattle_power_agent::persisted::Boot;
use wattle_testkit::node_desired;

use crate::model::{GPUS, Node, SAFE_W, Step};

const LEASE: Duration = Duration::from_secs(60);
const DEFAULT_W: u64 = 300;
/// The steps of an event with three steps down, by the placer's clock: seconds and watts.
const STEPS: [(u64, u64); 3] = [(1_000, 170), (1_010, 150), (1_020, 120)];
/// The end of its ramp up.
const END_S: u64 = 2_000;
/// The shares before it: the last GPU has no ordered cap.
const BEFORE: [u64; 2] = [180, 130];

fn at(second: u64) -> Timestamp {
    Timestamp::from_s(second)
}

fn second(at: Timestamp) -> u64 {
    at.as_us() / 1_000_000
}

/// An order that is issued in this second, with the steps that remain.
fn order(issued: u64, caps: &[u64], steps: &[(u64, u64)], end: Option<u64>) -> NodeDesired {
    let gpu = |(gpu, watts): (u32, &u64)| DesiredGpu {
        gpu,
        cap_mw: Some(Power::from_w(*watts)),
        clock_mhz_max: None,
    };
    let bound = |second, cap_mw| CapBound { from_us: at(second), cap_mw, ..CapBound::default() };
    let remain = steps.iter().filter(|step| step.0 > issued);
    let down = remain.map(|(second, watts)| bound(*second, Some(Power::from_w(*watts))));
    let up = end.map(|end| bound(end, None));
    let begun = steps.first().is_some_and(|step| step.0 <= issued);
    NodeDesired {
        gpus: (0..).zip(caps).map(gpu).collect(),
        power_limited: !caps.is_empty(),
        caps_ahead: down.chain(up).collect(),
        event_until_us: end.filter(|_| begun).map(at),
        ..node_desired("n0", issued, at(issued), at(issued) + LEASE)
    }
}

/// The order of a placer in this second of the event.
fn in_event(issued: u64) -> NodeDesired {
    let caps: &[u64] = if issued < STEPS[0].0 { &BEFORE } else { &[110, 115, 110] };
    order(issued, caps, &STEPS, Some(END_S))
}

/// A node whose clock is this much ahead of the placer's, at a second of the placer's.
fn node(now: u64) -> Node {
    let mut node = Node::with_limit(0, None);
    node.now = at(now);
    // The steps are checked here.
    node.is_checked = false;
    node
}

fn caps(node: &Node) -> Vec<u64> {
    node.gpus.iter().map(|gpu| gpu.cap.as_mw() / 1_000).collect()
}

/// Time passes until this second of the node's clock, and settings are made.
fn caps_at(node: &mut Node, until: u64) -> Vec<u64> {
    node.advance(at(until).since(node.now), true);
    while node.answer() {}
    caps(node)
}

/// A node of which the last orders are one from before the event and one of this second.
fn last_ordered(issued: u64) -> Node {
    let mut node = node(800);
    caps_at(&mut node, 801);
    for issued in [801, issued] {
        caps_at(&mut node, issued);
        node.order(in_event(issued));
    }
    node
}

/// The cap of each GPU after the lease of the order of this second.
fn expected(issued: u64, now: u64) -> Vec<u64> {
    let order = in_event(issued);
    let of_gpu = |gpu: u32| {
        let ordered = order.gpus.get(gpu as usize).and_then(|gpu| gpu.cap_mw);
        let before = BEFORE.get(gpu as usize).copied();
        let share = if now < END_S { ordered.map(|cap| cap.as_mw() / 1_000) } else { before };
        let bound = STEPS.iter().rev().find(|step| step.0 <= now && step.0 > issued);
        let bound = bound.filter(|_| now < END_S).map(|step| step.1);
        [share, bound, Some(SAFE_W)].into_iter().flatten().min().unwrap()
    };
    (0..GPUS).map(of_gpu).collect()
}

#[test]
fn the_steps_are_followed_on_time_wherever_placer_and_agent_are_killed() {
    // Before the start, on the ramp down, at the target, on the ramp up.
    for issued in [900, 1_012, 1_500, 1_950] {
        for restarted in [None, Some(970), Some(1_005), Some(1_015), Some(1_600), Some(1_960)] {
            let mut node = last_ordered(issued);
            let first = issued + LEASE.as_secs() + 1;
            for now in (first..2_100).step_by(5) {
                if restarted.is_some_and(|at| now >= at && now < at + 5) {
                    node.apply(Step::Crash);
                }
                let caps = caps_at(&mut node, now + 1);
                assert_eq!(caps, expected(issued, now + 1), "{issued}, {restarted:?}, at {now}");
            }
        }
    }
}

#[test]
fn an_order_without_a_limit_names_an_event_that_begins_later() {
    let mut node = node(100);
    caps_at(&mut node, 101);
    node.order(order(101, &[], &STEPS, Some(END_S)));
    assert_eq!(caps_at(&mut node, 150), [DEFAULT_W; 3]);
    assert_eq!(caps_at(&mut node, 999), [SAFE_W; 3]);
    assert_eq!(caps_at(&mut node, 1_000), [170; 3]);
    assert_eq!(caps_at(&mut node, 1_999), [120; 3]);
    assert_eq!(caps_at(&mut node, 2_000), [SAFE_W; 3]);
}

#[test]
fn an_event_that_was_cancelled_while_the_agent_was_cut_off_ends_with_the_next_order() {
    let mut node = last_ordered(1_100);
    assert_eq!(caps_at(&mut node, 1_400), [110, 115, 110], "the cancellation has not arrived");
    node.order(order(1_400, &BEFORE, &[], None));
    assert_eq!(caps_at(&mut node, 1_401), [180, 130, DEFAULT_W]);
    assert_eq!(caps_at(&mut node, 2_100), [180, 130, SAFE_W], "no step is left");
}

#[test]
fn a_gpu_whose_job_promises_more_has_its_own_bound() {
    let mut node = last_ordered(900);
    let mut order = in_event(901);
    for bound in order.caps_ahead.iter_mut().filter(|bound| bound.cap_mw.is_some()) {
        bound.gpus = [(0, Power::from_w(175)), (1, Power::from_w(160))].into();
    }
    node.order(order);
    assert_eq!(caps_at(&mut node, 1_100), [175, 130, 120], "never above its share");
}

/// The boot of the machine by a clock that is this much ahead.
fn boot(ahead_s: u64) -> Option<Boot> {
    Some(Boot { id: "boot".to_owned(), at_us: at(10 + ahead_s) })
}

#[test]
fn a_clock_that_is_set_between_two_agents_moves_no_step() {
    for (before_s, after_s) in [(5_000, 2_000), (5_000, 9_000)] {
        let mut node = node(800 + before_s);
        node.restart(node.now, boot(before_s));
        let clock = |second: u64| second + before_s;
        caps_at(&mut node, clock(801));
        // The second order of two is obeyed on any clock.
        for issued in [801, 802, 840, 841] {
            caps_at(&mut node, clock(issued));
            node.order(in_event(issued));
        }
        assert_eq!(caps_at(&mut node, clock(999)), [180, 130, SAFE_W]);
        node.restart(at(999 + after_s), boot(after_s));
        for (now, expected) in
            [(1_000, [170, 130, 170]), (1_999, [120; 3]), (2_000, [180, 130, SAFE_W])]
        {
            assert_eq!(caps_at(&mut node, now + after_s), expected, "{after_s}: {now}");
        }
    }
}

#[test]
fn no_step_is_undone_by_a_clock_that_is_set_back_between_two_boots() {
    let mut node = last_ordered(900);
    assert_eq!(caps_at(&mut node, 1_015), [150, 130, 150]);
    node.restart(at(300), None);
    assert_eq!(caps_at(&mut node, 301), [150, 130, 150]);
    assert_eq!(caps_at(&mut node, 1_021), [120; 3]);
    assert_eq!(caps_at(&mut node, 2_010), [180, 130, SAFE_W]);
    node.restart(at(500), None);
    assert_eq!(caps_at(&mut node, 501), [180, 130, SAFE_W], "the event is over");
}

/// What happens to a node.
#[derive(Clone, Debug)]
enum Happening {
    /// The placer orders, twice.
    Order { caps: Vec<u64>, is_event: bool },
    /// Time passes.
    Pass(u64),
    /// The agent is killed, and its clock is set to be this much ahead.
    Restart { ahead_s: u64 },
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        3 => (prop::collection::vec(100u64..300, 0..4), any::<bool>())
            .prop_map(|(caps, is_event)| Happening::Order { caps, is_event }),
        4 => (2u64..200).prop_map(Happening::Pass),
        1 => prop_oneof![Just(10_000u64), Just(9_000), Just(12_345)]
            .prop_map(|ahead_s| Happening::Restart { ahead_s }),
    ]
}

/// What a node must have: the last order, and the shares from before its event.
#[derive(Default)]
struct Known {
    order: Option<NodeDesired>,
    shares: Option<BTreeMap<u32, u64>>,
    before: Option<Option<BTreeMap<u32, u64>>>,
    lease_until: u64,
}

impl Known {
    fn ordered(&mut self, order: NodeDesired) {
        let cap = |gpu: &DesiredGpu| (gpu.gpu, gpu.cap_mw.unwrap().as_mw() / 1_000);
        let shares = order.power_limited.then(|| order.gpus.iter().map(cap).collect());
        let before = self.before.take().unwrap_or_else(|| self.shares.clone());
        self.before = order.event_until_us.map(|_| before);
        self.shares = shares;
        self.lease_until = second(order.expires_at_us);
        self.order = Some(order);
    }

    fn cap(&self, gpu: u32, now: u64) -> u64 {
        let Some(order) = &self.order else { return SAFE_W };
        let bound = order.caps_ahead.iter().rev().find(|bound| second(bound.from_us) <= now);
        let bound = bound.and_then(|bound| bound.cap_mw).map(|bound| bound.as_mw() / 1_000);
        let of = |shares: &Option<BTreeMap<u32, u64>>| {
            shares.as_ref().map(|shares| shares.get(&gpu).copied().unwrap_or(DEFAULT_W))
        };
        let is_leased = now < self.lease_until;
        let returned = order.event_until_us.is_some_and(|until| second(until) <= now);
        let share = match &self.before {
            Some(before) if returned && !is_leased => of(before),
            _ => of(&self.shares),
        };
        let most = if is_leased { DEFAULT_W } else { SAFE_W };
        [share, bound].into_iter().flatten().fold(most, u64::min).max(100)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Whatever happens, in whichever order and on any clock: each cap is that of the last order, its steps and the shares
    /// from before the event.
    #[test]
    fn the_steps_are_followed_in_any_history(first_s in 300u64..600, lasts_s in 60u64..600, happenings in prop::collection::vec(happening(), 1..40)) {
        let (mut now, mut ahead_s) = (200, 10_000);
        let mut node = node(now + ahead_s);
        node.restart(node.now, boot(ahead_s));
        let steps = [(first_s, 260), (first_s + 20, 190), (first_s + 40, 140)];
        let end = first_s + 40 + lasts_s;
        let mut known = Known::default();
        for happening in happenings {
            match happening {
                Happening::Order { caps, is_event } => {
                    // The second order of two is obeyed on any clock.
                    for _ in 0..2 {
                        now += 1;
                        caps_at(&mut node, now + ahead_s);
                        let is_event = is_event && now < end;
                        let (steps, end): (&[_], _) = if is_event { (&steps, Some(end)) } else { (&[], None) };
                        let order = order(now, &caps, steps, end);
                        node.order(order.clone());
                        known.ordered(order);
                    }
                }
                Happening::Pass(seconds) => now += seconds,
                Happening::Restart { ahead_s: next } => {
                    ahead_s = next;
                    node.restart(at(now + ahead_s), boot(ahead_s));
                    known.lease_until = 0;
                }
            }
            now += 1;
            let caps = caps_at(&mut node, now + ahead_s);
            let expected: Vec<u64> = (0..GPUS).map(|gpu| known.cap(gpu, now)).collect();
            prop_assert_eq!(caps, expected, "at {}", now);
        }
    }
}
