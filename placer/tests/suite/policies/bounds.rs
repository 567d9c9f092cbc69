//! Plans of every policy under a power limit, an admission limit, a preemption limit and an energy price.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{SETTLED, Site, gpu_power};
use proptest::prelude::*;
use wattle_baselines::{NAMES, policy};
use wattle_common::job::{GpuRequest, GpuSetting};
use wattle_common::{Frequency, Power, Timestamp};
use wattle_placer::policies::Capabilities;
use wattle_placer::power::model::{PowerEstimate, expected_power, min_power};
use wattle_placer::{
    Decision, FixedCaps, GpuSet, JobFacts, JobKey, NodeKey, Plan, PlanningInput, Policy, Reads,
    Reason, State, check,
};

use crate::policies::helpers::{arrive, cluster, facts, show, surface};

/// Nodes whose hosts draw 300 W, with GPUs of 250 W that idle at 40 W.
pub(super) fn bounded(sizes: &[u32]) -> Site {
    let mut site = cluster(sizes);
    let draw = gpu_power(40, 250, 100, 300);
    site.gpu_power_known([("v100".to_owned(), draw)].into());
    site
}

/// One round, checked and applied; stopping jobs still hold their GPUs.
fn round(site: &mut Site, policy: &dyn Policy) -> Plan {
    let plan = site.plan(policy);
    assert_eq!(check(site.input(), &plan), [], "{} made {plan:?}", policy.name());
    site.apply(&plan);
    plan
}

/// Rounds until a plan is empty, with immediate stops. Returns the highest expected power between them.
fn rest(site: &mut Site, policy: &dyn Policy) -> Power {
    let mut most = Power::ZERO;
    for _ in 0..60 {
        let plan = round(site, policy);
        site.complete_stops();
        most = most.max(expected_power(site.input()));
        if plan.is_empty() {
            return most;
        }
    }
    panic!("{} does not converge", policy.name());
}

fn setting(site: &Site, key: JobKey) -> Option<GpuSetting> {
    match &site.job(key)?.state {
        State::Running { setting, .. } => Some(*setting),
        _ => None,
    }
}

fn at(mhz: u32) -> Option<GpuSetting> {
    Some(GpuSetting { clock_mhz_max: Some(Frequency::from_mhz(mhz)), cap_mw: None })
}

/// Where a lower limit begins, the idle draw of unused nodes is power that jobs could have. A job that waits for
/// room keeps them awake otherwise.
#[test]
fn unused_nodes_sleep_at_once_while_the_limit_is_exceeded() {
    let fifo = policy("fifo").unwrap();
    for waits in [false, true] {
        let mut site = bounded(&[4, 4]);
        arrive(&mut site, facts("j", 1), Some(2));
        if waits {
            arrive(&mut site, facts("wide", 6), Some(2));
        }
        site.limits.nodes_sleep = true;
        let drawn = rest(&mut site, &*fifo);
        site.limits.power_max = Some(drawn);
        assert!(round(&mut site, &*fifo).nodes.is_empty(), "the limit is kept");
        site.limits.power_max = Some(drawn.saturating_sub(Power::from_w(150)));
        let plan = round(&mut site, &*fifo);
        let asleep = show(&site, &plan).lines().filter(|line| line.contains("sleeps")).count();
        assert_eq!(asleep, 1, "a job waits: {waits}");
    }
}

#[test]
fn clocks_are_lowered_before_jobs_wait_and_raised_when_power_is_left() {
    let fifo = policy("fifo").unwrap();
    let mut site = bounded(&[4]);
    let keys: Vec<JobKey> =
        (0..4).map(|i| arrive(&mut site, facts(&format!("j{i}"), 1), Some(2))).collect();
    // 300 W and four GPUs of 200 W are 1,100 W; with GPUs of 160 W, 940 W.
    site.limits.power_max = Some(Power::from_w(1_000));
    assert_eq!(rest(&mut site, &*fifo), Power::from_w(940));
    assert!(keys.iter().all(|&key| setting(&site, key) == at(1_200)));
    // Less than the minimum of four: the last arrival is stopped.
    site.limits.power_max = Some(Power::from_w(650));
    rest(&mut site, &*fifo);
    assert!(expected_power(site.input()) <= Power::from_w(650), "{}", expected_power(site.input()));
    assert_eq!(setting(&site, keys[3]), None);
    assert!(setting(&site, keys[0]).is_some());
    // Without the limit the default settings return.
    site.limits.power_max = None;
    rest(&mut site, &*fifo);
    assert!(keys.iter().all(|&key| setting(&site, key) == Some(GpuSetting::DEFAULT)));
    assert_eq!(expected_power(site.input()), Power::from_w(1_100));
}

/// Where the settings with the most work per joule exceed the limit, the newest jobs are stopped. Until they have
/// stopped they and the others are lowered to the limit, as far as their GPUs permit.
#[test]
fn a_limit_that_falls_stops_jobs_and_lowers_them_until_they_have_stopped() {
    let fifo = policy("fifo").unwrap();
    // 300 W and GPUs that idle at 40 W; a job adds 90 W at its floor and 60 W at the lowest cap.
    for (limit_w, jobs) in [(900, 4), (750, 3), (650, 2)] {
        let mut site = bounded(&[4]);
        let keys: Vec<JobKey> =
            (0..4).map(|i| arrive(&mut site, facts(&format!("j{i}"), 1), Some(2))).collect();
        rest(&mut site, &*fifo);
        let limit = Power::from_w(limit_w);
        site.limits.power_max = Some(limit);
        round(&mut site, &*fifo);
        let lowest = Power::from_w(300 + 4 * 100);
        let drawn = expected_power(site.input());
        assert!(drawn <= limit.max(lowest), "{drawn} while jobs stop for {limit}");
        site.complete_stops();
        assert!(rest(&mut site, &*fifo) <= limit);
        let settings: Vec<_> = keys.iter().map(|&key| setting(&site, key)).collect();
        assert!(settings[..jobs].iter().all(|&setting| setting == at(1_080)), "{settings:?}");
        assert!(settings[jobs..].iter().all(Option::is_none), "{settings:?}");
    }
}

#[test]
fn a_bound_on_the_slowdown_gives_way_last_with_a_reason() {
    let fifo = policy("fifo").unwrap();
    let mut site = bounded(&[2]);
    let bound = JobFacts { can_stop: false, max_slowdown_permille: Some(20), ..facts("kept", 1) };
    let kept = arrive(&mut site, bound, Some(2));
    let other = arrive(&mut site, facts("other", 1), Some(2));
    // 380 W without jobs. The bound permits the default setting alone, 160 W above idle.
    site.limits.power_max = Some(Power::from_w(380 + 160 + 90));
    rest(&mut site, &*fifo);
    assert_eq!(
        (setting(&site, kept), setting(&site, other)),
        (Some(GpuSetting::DEFAULT), at(1_080))
    );
    // The other job gives way first, and nothing else can.
    site.limits.power_max = Some(Power::from_w(380 + 160 + 60));
    rest(&mut site, &*fifo);
    assert_eq!((setting(&site, kept), setting(&site, other)), (Some(GpuSetting::DEFAULT), None));
    site.limits.power_max = Some(Power::from_w(380 + 100));
    let plan = round(&mut site, &*fifo);
    let reasons: Vec<String> =
        plan.decisions.iter().map(|each| each.reason().to_string()).collect();
    assert_eq!(
        reasons,
        [
            "slowed by more than the 2 % that its owner permits: no other job can give up power within the limit of 0.48 kW"
        ]
    );
}

#[test]
fn fixed_caps_count_in_the_limit_and_predictions_in_the_expected_power() {
    let fifo = policy("fifo").unwrap();
    let mut site = bounded(&[2]);
    let (node, _) = site.keyed_nodes().next().unwrap();
    site.caps_fixed(node, Some(FixedCaps { highest: Some(Power::from_w(250)) }));
    let keys: Vec<JobKey> =
        (0..2).map(|i| arrive(&mut site, facts(&format!("j{i}"), 1), Some(2))).collect();
    let running = |site: &Site| keys.iter().filter(|&&key| setting(site, key).is_some()).count();
    // The host, an idle GPU of 40 W and one at its cap; the job draws 200 W at the default setting.
    for (limit_w, jobs, expected_w) in [(589, 0, 380), (590, 1, 540), (800, 2, 700)] {
        site.limits.power_max = Some(Power::from_w(limit_w));
        rest(&mut site, &*fifo);
        assert_eq!(running(&site), jobs, "{limit_w} W");
        assert_eq!(expected_power(site.input()), Power::from_w(expected_w), "{limit_w} W");
    }
    assert!(keys.iter().all(|&key| setting(&site, key) == Some(GpuSetting::DEFAULT)));
}

#[test]
fn a_job_without_a_surface_counts_with_the_highest_power_and_is_capped() {
    let fifo = policy("fifo").unwrap();
    let mut site = bounded(&[2]);
    let keys = ["a", "b"].map(|name| arrive(&mut site, facts(name, 1), None));
    site.limits.power_max = Some(Power::from_w(300 + 2 * 130));
    rest(&mut site, &*fifo);
    let cap = Some(GpuSetting { cap_mw: Some(Power::from_mw(125_000)), clock_mhz_max: None });
    assert_eq!(keys.map(|key| setting(&site, key)), [cap, cap]);
    // A job without any bound on its power is not started.
    site.job_ended(keys[0]);
    site.gpu_power_known([].into());
    let late = arrive(&mut site, facts("late", 1), None);
    let plan = round(&mut site, &*fifo);
    assert!(plan.decisions.iter().all(|d| !matches!(d, Decision::Start { .. })), "{plan:?}");
    assert_eq!(setting(&site, late), None);
}

#[test]
fn new_jobs_are_held_back_and_running_jobs_continue() {
    let fifo = policy("fifo").unwrap();
    let mut site = bounded(&[4]);
    let first = arrive(&mut site, facts("first", 1), Some(2));
    rest(&mut site, &*fifo);
    site.limits.admission_limit = Some(Power::from_w(590));
    let second = arrive(&mut site, facts("second", 1), Some(2));
    let third = arrive(&mut site, facts("third", 1), Some(2));
    let plan = round(&mut site, &*fifo);
    // 460 W idle; each job adds a minimum power of 90 W.
    let reason = plan.blocked.unwrap().reason.to_string();
    assert_eq!(reason, "with it the site would draw 0.64 kW; at most 0.59 kW is permitted");
    assert!(setting(&site, second).is_none() && setting(&site, third).is_none());
    site.limits.admission_limit = Some(Power::from_w(680));
    rest(&mut site, &*fifo);
    assert!(setting(&site, second).is_some() && setting(&site, third).is_none());
    site.limits.admission_limit = Some(Power::from_w(1));
    rest(&mut site, &*fifo);
    assert!(setting(&site, first).is_some(), "no work is stopped");
}

/// The highest power of a job is known only after it has run: the only job is admitted by its mean.
#[test]
fn a_job_alone_is_admitted_on_its_mean_power() {
    let fifo = policy("fifo").unwrap();
    let mut site = bounded(&[4]);
    // 460 W idle; the job adds a minimum power of 90 W, at most 210 W.
    site.limits.admission_limit = Some(Power::from_w(600));
    let keys = ["a", "b"].map(|name| {
        let facts = facts(name, 1);
        let mut surface = surface(&facts.id, 2, facts.request);
        surface.points.iter_mut().for_each(|point| point.gpu_power_w.high = 250.0);
        let key = arrive(&mut site, facts, None);
        site.surface_known(key, Arc::new(surface));
        key
    });
    rest(&mut site, &*fifo);
    let runs = |site: &Site| keys.map(|key| setting(site, key).is_some());
    assert_eq!(runs(&site), [true, false], "with another job the upper power counts");
    site.job_ended(keys[0]);
    site.limits.admission_limit = Some(Power::from_w(540));
    let plan = round(&mut site, &*fifo);
    assert_eq!(runs(&site), [false, false]);
    let reason = plan.blocked.unwrap().reason.to_string();
    assert_eq!(reason, "with it the site would draw 0.55 kW; at most 0.54 kW is permitted");
}

/// The unused node sleeps after the time that the operator has set for all.
#[test]
fn the_node_of_a_job_held_back_sleeps_after_the_usual_time() {
    let fifo = policy("fifo").unwrap();
    let mut site = bounded(&[1, 1]);
    site.limits.nodes_sleep = true;
    site.limits.idle_before_sleep = Duration::from_secs(3_600);
    arrive(&mut site, facts("first", 1), Some(2));
    rest(&mut site, &*fifo);
    site.limits.admission_limit =
        Some(min_power(site.input(), PowerEstimate::under(fifo.capabilities())).upper);
    arrive(&mut site, facts("second", 1), Some(2));
    site.advance_to(Timestamp::from_s(600));
    let plan = site.plan(&*fifo);
    assert!(matches!(plan.blocked.as_ref().unwrap().reason, Reason::HeldBack { .. }), "{plan:?}");
    assert_eq!((plan.decisions, plan.nodes), (vec![], vec![]));
    assert_eq!(plan.again_at, Some(Timestamp::from_s(3_600)));
    site.advance_to(Timestamp::from_s(3_600));
    assert_eq!(site.plan(&*fifo).nodes.len(), 1);
}

#[test]
fn the_last_arrival_is_paused_and_resumed() {
    let fifo = policy("fifo").unwrap();
    let mut site = bounded(&[4]);
    let keys = ["a", "b", "c"].map(|name| arrive(&mut site, facts(name, 1), Some(2)));
    rest(&mut site, &*fifo);
    // 460 W idle; each job adds a minimum power of 90 W: two jobs fit.
    site.limits.admission_limit = Some(Power::from_w(640));
    site.limits.preemption_limit = Some(Power::from_w(645));
    let plan = round(&mut site, &*fifo);
    let reason = plan.decisions[0].reason().to_string();
    assert_eq!(
        reason,
        "the running jobs need 0.73 kW at their lowest caps; the budget permits 0.65 kW"
    );
    rest(&mut site, &*fifo);
    let runs = |site: &Site| keys.map(|key| setting(site, key).is_some());
    assert_eq!(runs(&site), [true, true, false]);
    // While it stops no other job starts in its place.
    let late = arrive(&mut site, facts("late", 1), Some(2));
    rest(&mut site, &*fifo);
    assert_eq!(setting(&site, late), None);
    site.limits.preemption_limit = None;
    site.limits.admission_limit = Some(Power::from_w(740));
    rest(&mut site, &*fifo);
    assert_eq!((runs(&site), setting(&site, late)), ([true; 3], None));
}

#[test]
fn a_price_sets_the_clocks_of_policies_that_set_none() {
    for name in ["fifo", "fifo-packed", "srtf", "tiresias", "gandiva", "afs", "eaco"] {
        let policy = policy(name).unwrap();
        let mut site = bounded(&[4]);
        site.limits.price_sets_clocks = true;
        let job = arrive(&mut site, facts("a", 2), Some(2));
        rest(&mut site, &*policy);
        assert_eq!(setting(&site, job), Some(GpuSetting::DEFAULT), "{name}: free energy");
        // The step from 1,080 to 1,200 MHz saves 0.55 of time per energy, the next one 0.19.
        site.limits.price = 0.3;
        rest(&mut site, &*policy);
        assert_eq!(setting(&site, job), at(1_200), "{name}");
        site.limits.price = 8.0;
        rest(&mut site, &*policy);
        assert_eq!(setting(&site, job), at(1_080), "{name}");
        assert_eq!(
            min_power(site.input(), PowerEstimate::Settings),
            expected_power(site.input()).into(),
            "{name}"
        );
    }
}

/// A policy with constant decisions.
pub(super) struct Constant(pub(super) Vec<Decision>);

impl Policy for Constant {
    fn name(&self) -> &str {
        "constant"
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities { reads: Reads::All, is_elastic: true, ..Capabilities::default() }
    }
    fn solve(&self, _: PlanningInput<'_>) -> Plan {
        Plan { decisions: self.0.clone(), ..Plan::default() }
    }
}

/// Starts a job on these GPUs of the first node.
fn starts(job: JobKey, gpus: u64, observe: bool) -> Decision {
    let (on, reason) =
        (GpuSet::on(NodeKey::at(0), gpus), Reason::Share { gpus: gpus.count_ones() });
    Decision::Start { job, on, setting: GpuSetting::DEFAULT, observe, reason }
}

#[test]
fn no_job_is_observed_with_a_job_that_is_held_back() {
    let mut site = bounded(&[4]);
    site.limits.tenants_max = 3;
    let [runs, moved, new] =
        ["runs", "moved", "new"].map(|name| arrive(&mut site, facts(name, 1), Some(0)));
    round(&mut site, &Constant(vec![starts(runs, 0b10, false), starts(moved, 0b100, false)]));
    site.pass(SETTLED);
    let reason = Reason::Share { gpus: 1 };
    let stop = Decision::Stop { job: moved, next_gpus: Some(1), next_gpu_type: None, reason };
    round(&mut site, &Constant(vec![stop]));
    site.job_stopped(moved);
    // No new job starts; a job that is moved continues.
    site.limits.admission_limit = Some(Power::from_w(1));
    let observes = |gpus: u64| {
        let plan = Constant(vec![starts(new, gpus, false), starts(moved, gpus, true)]);
        let plan = round(&mut site.clone(), &plan);
        assert_eq!(plan.decisions.iter().map(Decision::job).collect::<Vec<_>>(), [moved]);
        matches!(plan.decisions[0], Decision::Start { observe: true, .. })
    };
    assert!(!observes(0b1), "alone");
    assert!(observes(0b10), "with a running job");
}

#[test]
fn no_job_starts_with_a_job_that_is_paused() {
    let mut site = bounded(&[4]);
    let [old, runs, new] =
        ["old", "runs", "new"].map(|name| arrive(&mut site, facts(name, 1), Some(0)));
    round(&mut site, &Constant(vec![starts(old, 0b1, false), starts(runs, 0b10, false)]));
    // 460 W idle, and 90 W for one of the jobs.
    site.limits.preemption_limit = Some(Power::from_w(560));
    let beside = |gpus: u64| round(&mut site.clone(), &Constant(vec![starts(new, gpus, true)]));
    let jobs = |plan: Plan| plan.decisions.iter().map(Decision::job).collect::<Vec<_>>();
    assert_eq!(jobs(beside(0b10)), [runs], "only paused");
    assert_eq!(jobs(beside(0b1)), [new, runs]);
}

/// A job of 1,000 s that has just arrived.
fn lasting(i: usize, request: GpuRequest, site: &Site) -> JobFacts {
    JobFacts {
        request,
        submitted_at: site.now(),
        duration_alone: Some(Duration::from_secs(1_000)),
        ..facts(&format!("j{i}"), request.min)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// The minimum power of the running jobs stays within the preemption limit unless they cannot stop,
    /// and plans converge.
    #[test]
    fn running_jobs_are_paused_down_to_the_limit(
        sizes in prop::collection::vec(1u32..9, 1..4),
        which in 0..NAMES.len(),
        above_w in 200u64..4_000,
        sleeps in any::<bool>(),
        jobs in prop::collection::vec((1u32..5, 1u32..3, prop::option::of(0usize..3)), 1..14),
    ) {
        let policy = policy(NAMES[which]).unwrap();
        let mut site = bounded(&sizes);
        site.limits.nodes_sleep = sleeps;
        site.limits.price_sets_clocks = true;
        for (i, (gpus, times, class)) in jobs.into_iter().enumerate() {
            let facts = lasting(i, GpuRequest { min: gpus, max: gpus * times }, &site);
            arrive(&mut site, facts, class);
        }
        rest(&mut site, &*policy);
        let above = Power::from_w(above_w);
        // A new job may be planned with a job that is paused.
        let mut just_now = site.clone();
        for i in 0..4 {
            arrive(&mut just_now, facts(&format!("late{i}"), 1), Some(i % 3));
        }
        just_now.limits.preemption_limit = Some(above);
        round(&mut just_now, &*policy);
        site.limits.price = 1e6;
        site.limits.admission_limit = Some(above);
        site.limits.preemption_limit = Some(above);
        rest(&mut site, &*policy);
        let needs = min_power(site.input(), PowerEstimate::under(policy.capabilities())).upper;
        let stays = site.running().any(|(_, job)| job.facts.can_stop);
        prop_assert!(needs <= above || !stays, "{} needs {needs} of {above}", policy.name());
    }

    /// No plan exceeds the power limit, unless the baseline or jobs that cannot stop already exceed it.
    #[test]
    fn no_plan_exceeds_the_power_limit(
        sizes in prop::collection::vec(1u32..9, 1..4),
        which in 0..NAMES.len(),
        limit_w in 200u64..6_000,
        tighter in 0.4f64..1.0,
        sleeps in any::<bool>(),
        priced in prop_oneof![Just(None), (0.0f64..8.0).prop_map(Some)],
        jobs in prop::collection::vec(
            (1u32..5, 1u32..3, prop::option::of(0usize..3), any::<bool>(), 0u64..400), 1..14),
    ) {
        let policy = policy(NAMES[which]).unwrap();
        let mut site = bounded(&sizes);
        let empty = expected_power(site.input());
        site.limits.nodes_sleep = sleeps;
        site.limits.price_sets_clocks = priced.is_some();
        site.limits.price = priced.unwrap_or(0.0);
        let mut keys = Vec::new();
        for (i, (gpus, times, class, ends, after)) in jobs.into_iter().enumerate() {
            // The limit is lowered midway.
            let limit = Power::from_w(limit_w).scale(if i > 6 { tighter } else { 1.0 });
            site.limits.power_max = Some(limit);
            site.pass(Duration::from_secs(after));
            let facts = lasting(i, GpuRequest { min: gpus, max: gpus * times }, &site);
            keys.push(arrive(&mut site, facts, class));
            if ends && i > 2 && site.job(keys[i / 2]).is_some() {
                let key = keys[i / 2];
                if matches!(site.job(key).unwrap().state, State::Running { .. }) {
                    site.job_ended(key);
                }
            }
            let most = rest(&mut site, &*policy);
            let may = limit.max(empty);
            prop_assert!(most.as_mw() <= may.as_mw() + 100, "{} drew {most} of {may}", policy.name());
        }
    }
}
