//! Numbers outside their limits in desired states: no panic, and no lasting harm.

use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use wattle_common::job::NodeShare;
use wattle_common::messages::{DesiredGpu, NodeSleep, SleepState};
use wattle_common::{Machine, Power, Timestamp};
use wattle_launcher::{Action, Event, Launcher, PersistedState};

use crate::support::{at, config, desired, desired_job, node};

fn extreme() -> impl Strategy<Value = u64> {
    let now = at(0).as_us();
    let known = [0, 1, now - 1, now, now + 1, now + 60_000_000, 1 << 53, u64::MAX - 1, u64::MAX];
    prop_oneof![4 => prop::sample::select(known.to_vec()), 1 => any::<u64>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Whatever desired states arrive, no call panics, and a current one with a low generation is obeyed
    /// after the longest lease.
    #[test]
    fn no_desired_state_panics_or_bricks_the_launcher(
        orders in prop::collection::vec(
            (extreme(), extreme(), extreme(), any::<u32>(), any::<u32>(), 0usize..70), 1..12),
    ) {
        let config = config(Path::new("/"));
        let lease_max = config.lease_max();
        let mut launcher = Launcher::new(config, PersistedState::default());
        for (generation, issued, expires, gpu, attempt, count) in orders {
            let mut job = desired_job("a", attempt);
            job.rank = gpu;
            job.gpus = vec![gpu; count];
            job.shares = vec![NodeShare { node: node(), gpus: vec![gpu; count] }; count];
            let mut order = desired(0, vec![job; count]);
            order.generation = generation;
            order.issued_at_us = Timestamp::from_us(issued);
            order.expires_at_us = Timestamp::from_us(expires);
            let (cap_mw, clock_mhz_max) = (Some(Power::from_mw(expires)), None);
            order.gpus = vec![DesiredGpu { gpu, cap_mw, clock_mhz_max }; count];
            let since_us = Timestamp::from_us(expires);
            order.sleep = Some(NodeSleep { state: SleepState::EnteringSleep, since_us });
            launcher.handle(at(0), Event::DesiredChanged(order), &mut Vec::new());
            launcher.wake(at(0), &mut Vec::new());
        }
        let later = at(0) + lease_max * 2;
        let mut order = desired(0, vec![]);
        (order.generation, order.issued_at_us) = (1, later);
        order.expires_at_us = later + Duration::from_secs(60);
        let mut out = Vec::new();
        launcher.handle(later, Event::DesiredChanged(order), &mut out);
        let reported = out.iter().find_map(|action| match action {
            Action::Report(report) => Some(report.observed_generation),
            _ => None,
        });
        prop_assert_eq!(reported, Some(1));
    }
}
