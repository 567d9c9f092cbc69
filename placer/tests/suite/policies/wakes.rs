//! Below a power limit a node wakes only for a start that the limits permit, under every policy.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use wattle_baselines::{NAMES, policy};
use wattle_common::{Power, PowerSeries, Timestamp};
use wattle_placer::{JobFacts, JobKey, NodeDecision, NodeKey, Policy, State, Wakefulness, check};

use crate::policies::bounds::bounded;
use crate::policies::feeders::feeder;
use crate::policies::helpers::{arrive, facts, report};
use crate::support::Site;

/// The period of the limits.
const DAY: Duration = Duration::from_secs(86_400);

fn hour(hours: u64) -> Timestamp {
    Timestamp::from_s(hours * 3_600)
}

/// An awake node of four GPUs without jobs draws this, watts, and a sleeping one 30 W ([`bounded`]).
const AWAKE_W: u64 = 460;
/// What a GPU with a job of the class heavy draws above idle at the setting with the most work per joule, and at
/// the lowest cap, watts.
const FLOOR_W: u64 = 90;
const LOWEST_W: u64 = 60;

/// Sleeping nodes of four GPUs.
fn asleep(nodes: usize) -> Site {
    let mut site = bounded(&vec![4; nodes]);
    site.limits.nodes_sleep = true;
    site.limits.caps_enforced = true;
    for node in 0..nodes {
        site.wakefulness_changed(NodeKey::at(node), Wakefulness::Asleep);
    }
    site
}

fn cannot_stop(name: &str, gpus: u32) -> JobFacts {
    JobFacts { can_stop: false, ..facts(name, gpus) }
}

/// The site's limit over time, from each instant on, seconds and watts; it repeats after a day.
fn limit(site: &mut Site, steps: &[(u64, u64)]) {
    let steps = steps.iter().map(|&(at_s, watts)| (at_s, Power::from_w(watts))).collect();
    let series = PowerSeries { starts_at_us: Timestamp::EPOCH, steps, period_s: DAY.as_secs() };
    site.limits.power_max = Some(series.at(site.now()));
    site.limits.power_over_time = Some(Arc::new(series.into()));
}

/// Lets time pass until `until`, with rounds where a plan, a wake-up or the limit requests one. Returns the wake-ups of
/// each node with their times, seconds.
fn watch(site: &mut Site, policy: &dyn Policy, until: Timestamp) -> Vec<(u64, usize)> {
    let mut waking: BTreeMap<NodeKey, Timestamp> = BTreeMap::new();
    let mut woken = Vec::new();
    loop {
        let mut again_at = None;
        for rounds in 0.. {
            assert!(rounds < 60, "{} does not converge at {}", policy.name(), site.now());
            let plan = site.plan(policy);
            assert_eq!(check(site.input(), &plan), [], "{} made {plan:?}", policy.name());
            site.apply(&plan);
            site.complete_stops();
            for decision in &plan.nodes {
                if let NodeDecision::Wake { node, .. } = decision {
                    let wakes_in = site.node(*node).facts.watts.unwrap().wakes_in;
                    waking.insert(*node, site.now() + wakes_in);
                    woken.push((site.now().as_us() / 1_000_000, node.index()));
                }
            }
            again_at = plan.again_at;
            if plan.is_empty() {
                break;
            }
        }
        let series = site.limits.power_over_time.clone();
        let changes_at = series.as_ref().and_then(|limit| limit.changes_after(site.now()));
        let events = waking.values().copied().chain(again_at).chain(changes_at);
        let Some(next) = events.filter(|at| *at > site.now() && *at < until).min() else {
            return woken;
        };
        site.advance_to(next);
        site.limits.power_max = series.and_then(|limit| limit.at(next)).or(site.limits.power_max);
        let awake: Vec<NodeKey> =
            waking.iter().filter(|(_, at)| **at <= next).map(|(node, _)| *node).collect();
        for node in awake {
            waking.remove(&node);
            site.wakefulness_changed(node, Wakefulness::Awake);
        }
    }
}

fn runs(site: &Site, job: JobKey) -> bool {
    matches!(site.job(job).unwrap().state, State::Running { .. })
}

/// The share of one GPU in its node fits the low limit, the whole node does not. The job behind it can stop.
#[test]
fn no_node_wakes_for_a_job_that_cannot_stop_below_the_low_limit_of_the_day() {
    for name in NAMES {
        let policy = policy(name).unwrap();
        let mut site = asleep(2);
        limit(&mut site, &[(0, 2_000), (43_200, AWAKE_W)]);
        let kept = arrive(&mut site, cannot_stop("kept", 1), Some(2));
        assert_eq!(watch(&mut site, &*policy, hour(1)), [], "{name}");
        let behind = arrive(&mut site, facts("behind", 4), Some(2));
        let woken = watch(&mut site, &*policy, hour(12));
        assert_eq!(woken.len(), 1, "{name}: {woken:?}");
        assert!(runs(&site, behind) && !runs(&site, kept), "{name}");
    }
}

/// An awake node fits the limit beside the first job, and a second job on it does not.
#[test]
fn no_node_wakes_for_a_start_that_exceeds_the_limit_of_the_site_or_of_a_feeder() {
    for name in NAMES {
        for is_local in [false, true] {
            let policy = policy(name).unwrap();
            let mut site = asleep(2);
            let most_w = 2 * AWAKE_W + 4 * FLOOR_W + 2 * LOWEST_W;
            if is_local {
                site.limits.power_bounds = Arc::new(vec![feeder(&[0, 1], most_w)].into());
            } else {
                site.limits.power_max = Some(Power::from_w(most_w));
            }
            let first = arrive(&mut site, cannot_stop("first", 4), Some(2));
            let second = arrive(&mut site, facts("second", 4), Some(2));
            let woken = watch(&mut site, &*policy, hour(24));
            assert_eq!(woken, [(0, 0)], "{name}, of a feeder: {is_local}");
            assert!(runs(&site, first) && !runs(&site, second), "{name}");
        }
    }
}

/// The budget admits two awake nodes with one job.
#[test]
fn no_node_wakes_for_a_start_that_a_budget_does_not_admit() {
    for name in NAMES {
        let policy = policy(name).unwrap();
        let mut site = asleep(2);
        let admitted_w = 2 * AWAKE_W + 4 * FLOOR_W + 2 * LOWEST_W;
        site.limits.admission_limit = Some(Power::from_w(admitted_w));
        let first = arrive(&mut site, cannot_stop("first", 4), Some(2));
        let second = arrive(&mut site, facts("second", 4), Some(2));
        let woken = watch(&mut site, &*policy, hour(24));
        assert_eq!(woken, [(0, 0)], "{name}");
        assert!(runs(&site, first) && !runs(&site, second), "{name}");
    }
}

/// Waking takes 120 s, and an unused node sleeps after 300 s. `wattle` plans no start that its price of power does not
/// pay for, so that no node is planned for it.
#[test]
fn a_node_stays_awake_for_a_start_that_a_rising_limit_permits_soon() {
    for name in NAMES.into_iter().filter(|name| *name != "wattle") {
        for can_stop in [true, false] {
            for (rises_s, wakes) in [(580, vec![]), (3_600, vec![(3_600, 0)])] {
                let policy = policy(name).unwrap();
                let mut site = asleep(1);
                site.wakefulness_changed(NodeKey::at(0), Wakefulness::Awake);
                limit(&mut site, &[(0, AWAKE_W + LOWEST_W / 2), (rises_s, 2_000)]);
                let job = JobFacts { can_stop, ..facts("waits", 4) };
                let job = arrive(&mut site, job, Some(2));
                report(&mut site, job, 0, 3_600);
                let woken = watch(&mut site, &*policy, hour(2));
                assert_eq!(woken, wakes, "{name}, can stop: {can_stop}, rises at {rises_s} s");
                assert!(runs(&site, job), "{name}");
            }
        }
    }
}
