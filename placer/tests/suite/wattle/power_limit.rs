//! The policy `wattle` below a power limit.

use wattle_common::feeders::FeederLimit;
use wattle_common::{FeederId, Power};
use wattle_placer::power::bounds::PowerBound;
use wattle_placer::power::model::{expected_by_node, expected_power};
use wattle_placer::{Reason, solve};

use super::*;

/// Two nodes of eight GPUs that idle at 60 W, with hosts of 1,000 W: 2,960 W without jobs.
fn limited(limit_w: u64) -> Site {
    let mut site = cluster(&[8, 8]);
    let draw = gpu_power(60, 400, 100, 1_000);
    site.gpu_power_known([("a100".to_owned(), draw)].into());
    site.limits.power_max = Some(Power::from_w(limit_w));
    site
}

/// A kind with this speed at one GPU, and the power of its GPUs above idle at a clock, watts.
const FIXED: Kind = Kind { grows: 1.0, peak: 64, ..ROOT };

fn above_idle_w(clock: u32) -> f64 {
    FIXED.point(1, Some(clock), false).gpu_power_w.mean - IDLE_W
}

#[test]
fn short_jobs_run_at_the_most_work_per_joule_and_long_ones_wait() {
    // Power for 8 of 16 GPUs at the lowest clock, with which a joule does most.
    let mut site = limited(2_960 + (8.2 * above_idle_w(900)) as u64);
    let jobs: Vec<JobKey> = (1..=4)
        .map(|k| arrive(&mut site, facts(&format!("j{k}"), 4, 4), FIXED, Some(k * 100_000)))
        .collect();
    converge(&mut site);
    let sizes = jobs.iter().map(|&job| site.size(job));
    let lowest = GpuSetting { clock_mhz_max: Some(Frequency::from_mhz(900)), cap_mw: None };
    let running: Vec<_> =
        sizes.map(|(gpus, setting)| (gpus, gpus > 0 && setting == lowest)).collect();
    assert_eq!(running, [(4, true), (4, true), (0, false), (0, false)]);
    assert!(Some(expected_power(site.input())) <= site.limits.power_max);
    // They wait in the market, and not because the limit held a planned start back.
    let plan = site.plan(&*policy("wattle").unwrap());
    let blocked = plan.blocked.map(|blocked| (blocked.job, blocked.reason));
    assert_eq!(blocked, Some((jobs[2], Reason::Outranked { before: 2 })));
}

#[test]
fn a_limit_that_leaves_power_changes_nothing() {
    let plans = [None, Some(Power::from_w(2_960 + 16 * 340 + 1))].map(|limit| {
        let mut site = limited(0);
        site.limits.power_max = limit;
        for k in 1..=5 {
            arrive(&mut site, facts(&format!("j{k}"), 1, 8), ROOT, Some(k * 9_000));
        }
        let plans = converge(&mut site);
        plans.into_iter().map(|plan| plan.decisions).collect::<Vec<_>>()
    });
    assert_eq!(plans[0], plans[1]);
}

#[test]
fn a_job_of_unknown_power_displaces_no_other() {
    let mut site = limited(2_960 + (8.2 * above_idle_w(900)) as u64);
    let known: Vec<JobKey> = (1..=3)
        .map(|k| arrive(&mut site, facts(&format!("j{k}"), 2, 2), FIXED, Some(k * 100_000)))
        .collect();
    converge(&mut site);
    site.pass(SETTLED);
    // At the default it would count with 400 W for each of its GPUs, more than the limit leaves.
    let unknown = site.job_arrived(facts("unknown", 2, 2));
    converge(&mut site);
    let (gpus, setting) = site.size(unknown);
    assert_eq!((gpus, setting.cap_mw), (2, Some(Power::from_w(100))));
    let running = known.iter().filter(|&&job| site.size(job).0 > 0).count();
    assert_eq!(running, 3, "{:?}", known.iter().map(|&job| site.size(job)).collect::<Vec<_>>());
    assert!(Some(expected_power(site.input())) <= site.limits.power_max);
}

#[test]
fn a_job_that_cannot_stop_keeps_its_gpus_below_any_limit() {
    let mut site = limited(2_960 + 16 * 340);
    let kept = JobFacts { can_stop: false, ..facts("kept", 4, 4) };
    let kept = arrive(&mut site, kept, FIXED, Some(900_000));
    let other = arrive(&mut site, facts("other", 4, 4), FIXED, Some(1_000));
    converge(&mut site);
    assert_eq!((gpus(&site, kept), gpus(&site, other)), (4, 4));
    site.pass(SETTLED);
    site.limits.power_max = Some(Power::from_w(2_960 + (4.1 * above_idle_w(900)) as u64));
    converge(&mut site);
    assert_eq!((gpus(&site, kept), gpus(&site, other)), (4, 0));
    assert!(Some(expected_power(site.input())) <= site.limits.power_max);
}

#[test]
fn overdue_jobs_get_a_quarter_of_a_scarce_power_before_others() {
    // Power for 8 of 16 GPUs at the lowest clock, so for two of them within a quarter.
    let mut site = limited(2_960 + (8.2 * above_idle_w(900)) as u64);
    let short = |site: &mut Site, name: &str| {
        let submitted_at = site.now();
        arrive(site, JobFacts { submitted_at, ..facts(name, 1, 1) }, FIXED, Some(1_000))
    };
    let first: Vec<JobKey> = (0..8).map(|i| short(&mut site, &format!("first{i}"))).collect();
    let long: Vec<JobKey> = (0..8)
        .map(|i| arrive(&mut site, facts(&format!("long{i}"), 1, 1), FIXED, Some(32_400)))
        .collect();
    converge(&mut site);
    let running =
        |site: &Site, jobs: &[JobKey]| jobs.iter().filter(|&&job| gpus(site, job) > 0).count();
    assert_eq!((running(&site, &first), running(&site, &long)), (8, 0));
    first.iter().for_each(|&job| site.job_ended(job));
    // All of the long ones have waited for more than four times their work.
    site.advance_to(Timestamp::from_s(8 * 32_400));
    let second: Vec<JobKey> = (0..12).map(|i| short(&mut site, &format!("second{i}"))).collect();
    converge(&mut site);
    assert_eq!((running(&site, &second), running(&site, &long)), (6, 2));
    assert!(Some(expected_power(site.input())) <= site.limits.power_max);
}

/// A feeder that carries all power of these nodes.
fn feeder(nodes: &[usize], limit_w: u64) -> PowerBound {
    PowerBound::Feeder(Arc::new(FeederLimit {
        feeder: FeederId::new("row").unwrap(),
        lost: None,
        limit: Power::from_w(limit_w),
        static_load: Power::ZERO,
        shares: nodes.iter().map(|i| (wattle_testkit::node(&format!("n{i}")), 1.0)).collect(),
    }))
}

/// Rounds until nothing is left to do, of which none is changed by the enforcement of limits.
fn converge_unchanged(site: &mut Site) {
    let wattle = policy("wattle").unwrap();
    for _ in 0..20 {
        let round = solve(&*wattle, site.input());
        assert_eq!(check(site.input(), &round.plan), [], "{:?}", round.plan);
        assert_eq!(round.reports.power_limits, Default::default(), "{:?}", round.plan);
        if round.plan.is_empty() {
            site.pass(Duration::from_secs(1));
            return;
        }
        site.apply(&round.plan);
        site.complete_stops();
    }
    panic!("it does not converge");
}

#[test]
fn jobs_run_where_feeders_leave_power_and_nothing_is_left_to_enforce() {
    // Two GPUs at the lowest clock on each of four nodes, of which two have a feeder together.
    let node_w = (1_480.0 + 2.05 * above_idle_w(900)) as u64;
    let mut site = limited(0);
    for name in ["n2", "n3"] {
        let facts = node_facts(name, "a100", 8, 80_000);
        site.node_known(NodeFacts { watts: Some(node_watts(60, 1_000, 50, 120)), ..facts });
    }
    site.limits.power_max = None;
    let bounds = [feeder(&[0, 1], 2 * node_w), feeder(&[2], node_w), feeder(&[3], node_w)];
    site.limits.power_bounds = Arc::new(bounds.to_vec().into());
    let jobs: Vec<JobKey> = (1..=12)
        .map(|k| arrive(&mut site, facts(&format!("j{k:02}"), 1, 1), FIXED, Some(k * 100_000)))
        .collect();
    converge_unchanged(&mut site);
    let running: Vec<usize> = (0..12).filter(|job| site.size(jobs[*job]).0 > 0).collect();
    assert_eq!(running, (0..8).collect::<Vec<_>>(), "the short ones, two for each node");
    let watts = expected_by_node(site.input()).unwrap();
    let on = |nodes: &[usize]| nodes.iter().map(|node| watts[*node]).sum::<Power>();
    assert!(on(&[0, 1]) <= Power::from_w(2 * node_w), "{watts:?}");
    assert!(on(&[2]) <= Power::from_w(node_w) && on(&[3]) <= Power::from_w(node_w), "{watts:?}");
    // A feeder that leaves more to its jobs raises their clocks, and no others.
    let bounds = [feeder(&[0, 1], 2 * node_w), feeder(&[2], node_w), feeder(&[3], 5_000)];
    site.limits.power_bounds = Arc::new(bounds.to_vec().into());
    let (_, waiting) = jobs.split_at(8);
    waiting.iter().for_each(|job| site.job_ended(*job));
    site.pass(SETTLED);
    converge_unchanged(&mut site);
    let at_default = jobs[..8].iter().filter(|job| site.size(**job).1.is_default()).count();
    assert_eq!(
        at_default,
        2,
        "{:?}",
        jobs[..8].iter().map(|job| site.size(*job)).collect::<Vec<_>>()
    );
}
