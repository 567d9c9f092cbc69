//! Numbers outside their limits in desired states: no panic, no lease beyond the longest, no lasting harm.

use std::time::Duration;

use proptest::prelude::*;
use wattle_common::messages::{DesiredGpu, NodeDesired, NodeSleep, SleepState};
use wattle_common::{Frequency, Machine, Power, Timestamp};
use wattle_power_agent::{Action, Event, PowerMachine, Settings};
use wattle_testkit as kit;

const NOW: Timestamp = Timestamp::from_s(100_000);
const LEASE: Duration = Duration::from_secs(60);

fn agent() -> PowerMachine {
    let mut machine = PowerMachine::new(kit::node("n0"), Settings::default());
    // So that it reports.
    machine.handle(NOW, Event::GpusUnreadable("no driver".to_owned()), &mut Vec::new());
    machine
}

/// Handles an order; returns the generation and lease of the last report, if there is one.
fn handle(
    machine: &mut PowerMachine,
    now: Timestamp,
    order: NodeDesired,
) -> Option<(u64, Option<Timestamp>)> {
    let mut out = Vec::new();
    machine.handle(now, Event::DesiredChanged(order), &mut out);
    out.into_iter().rev().find_map(|action| match action {
        Action::Report(report) => Some((report.observed_generation, report.lease_until_us)),
        _ => None,
    })
}

fn order(generation: u64, issued: Timestamp, expires: Timestamp) -> NodeDesired {
    kit::node_desired("n0", generation, issued, expires)
}

#[test]
fn lease_ends_after_the_longest_lease() {
    let longest = Settings::default().lease_max;
    let mut machine = agent();
    let report = handle(&mut machine, NOW, order(1, NOW, Timestamp::FOREVER));
    assert_eq!(report, Some((1, Some(NOW + longest))));
    let mut out = Vec::new();
    machine.wake(NOW + longest, &mut out);
    let report = out.iter().rev().find_map(|action| match action {
        Action::Report(report) => Some(report.lease_until_us),
        _ => None,
    });
    assert_eq!(report, Some(None));
}

#[test]
fn absurd_generation_is_refused_and_an_obeyed_one_is_recovered_from() {
    let mut machine = agent();
    assert_eq!(handle(&mut machine, NOW, order(1, NOW, NOW + LEASE)), Some((1, Some(NOW + LEASE))));
    assert_eq!(handle(&mut machine, NOW, order(u64::MAX, NOW, NOW + LEASE)), None);
    let later = NOW + Duration::from_secs(1);
    let next = handle(&mut machine, later, order(2, later, later + LEASE));
    assert_eq!(next, Some((2, Some(later + LEASE))));
    // The first order of a restarted agent has a plausible but wrong generation.
    let mut machine = agent();
    handle(&mut machine, NOW, order(1 << 52, NOW, Timestamp::FOREVER));
    let later = NOW + Settings::default().lease_max;
    let next = handle(&mut machine, later, order(3, later, later + LEASE));
    assert_eq!(next, Some((3, Some(later + LEASE))));
}

fn extreme() -> impl Strategy<Value = u64> {
    let now = NOW.as_us();
    let known = [0, 1, now - 1, now, now + 1, now + 60_000_000, 1 << 53, u64::MAX - 1, u64::MAX];
    prop_oneof![4 => prop::sample::select(known.to_vec()), 1 => any::<u64>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Whatever orders arrive, no call panics, every lease ends within the longest one, and a current
    /// order with the next generation is obeyed after that.
    #[test]
    fn no_order_panics_or_bricks_the_agent(
        orders in prop::collection::vec(
            (extreme(), extreme(), extreme(), extreme(), any::<u32>(), 0usize..70), 1..12),
    ) {
        let longest = Settings::default().lease_max;
        let mut machine = agent();
        for (generation, issued, expires, number, gpu, count) in orders {
            let at = Timestamp::from_us;
            let cap_mw = Some(Power::from_mw(number));
            let clock_mhz_max = Some(Frequency::from_mhz(gpu));
            let mut order = order(generation, at(issued), at(expires));
            order.gpus = vec![DesiredGpu { gpu, cap_mw, clock_mhz_max }; count];
            order.sleep = Some(NodeSleep { state: SleepState::EnteringSleep, since_us: at(number) });
            if let Some((_, lease)) = handle(&mut machine, NOW, order) {
                prop_assert!(lease.is_none_or(|until| until <= NOW + longest));
            }
            machine.wake(NOW, &mut Vec::new());
        }
        // Two leases: the known order may be issued ahead by the tolerated difference of clocks.
        let later = NOW + longest * 2;
        handle(&mut machine, later, order(1, later, later + LEASE));
        // A renewal: an order with another clock before it makes the first one seem old.
        let later = later + LEASE / 3;
        let next = handle(&mut machine, later, order(1, later, later + LEASE));
        prop_assert_eq!(next, Some((1, Some(later + LEASE))));
    }
}
