//! The reports of the stages: what each changed in a round, and why.

use std::sync::Arc;
use std::time::Duration;

use wattle_baselines::{NAMES, policy};
use wattle_common::job::{GpuSetting, NodeNeeds};
use wattle_common::{Frequency, Power, Timestamp};
use wattle_placer::power::budget::GridForecast;
use wattle_placer::state::job::SiteFacts;
use wattle_placer::{
    Decision, GpuSet, JobFacts, JobKey, NodeFacts, NodeKey, Policy, Reason, Round, SettingChange,
    Stage, StageReports, State, Wakefulness, check, solve,
};

use crate::policies::bounds::{Constant, bounded};
use crate::policies::helpers::{arrive, cluster, facts, node};
use crate::policies::watch::{paired, report};
use crate::support::Site;

/// One round of a policy, checked and applied.
fn round(site: &mut Site, policy: &dyn Policy) -> Round {
    let round = solve(policy, site.input());
    assert_eq!(check(site.input(), &round.plan), [], "{round:?}");
    assert_consistent(site, &round);
    site.apply(&round.plan);
    round
}

/// The reports state what the plan has: a held-back job does not start, a stopped one stops, a moved one starts
/// elsewhere, and the last change of a setting is that of the decision.
pub(super) fn assert_consistent(site: &Site, round: &Round) {
    let Round { plan, reports } = round;
    let decided = |job: JobKey| plan.decisions.iter().filter(move |d| d.job() == job);
    for (stage, job) in reports.held_back() {
        let starts = decided(job).any(|d| matches!(d, Decision::Start { .. }));
        assert!(!starts, "{job:?} is held back by {stage:?}: {plan:?}");
        assert_eq!(reports.why_held_back(job).map(|(first, _)| first), Some(stage));
        assert!(matches!(site.job(job).unwrap().state, State::Queued));
    }
    let stopped = reports.power_limits.stopped.keys().chain(reports.deferral.pausing.keys());
    for &job in stopped {
        assert!(decided(job).any(|d| matches!(d, Decision::Stop { .. })), "{job:?}: {plan:?}");
    }
    for (&job, from) in &reports.site_rules.moved {
        let starts = |d: &Decision| matches!(d, Decision::Start { on, .. } if on != from);
        let is_held_back = reports.why_held_back(job).is_some();
        assert!(is_held_back || decided(job).any(starts), "{job:?}: {plan:?}");
    }
    for decision in &plan.decisions {
        let (Decision::Start { setting, .. } | Decision::Set { setting, .. }) = decision else {
            continue;
        };
        if let Some((stage, change)) = reports.setting_of(decision.job()) {
            assert_eq!(change.to, *setting, "{stage:?}: {decision:?}");
            assert_ne!(change.from, change.to);
        }
    }
    for wakes in &reports.node_sleep {
        let not_woken = reports.power_limits.not_woken.contains(&wakes.node());
        assert_ne!(plan.nodes.contains(wakes), not_woken, "{wakes:?}: {plan:?}");
    }
}

fn at(mhz: u32) -> GpuSetting {
    GpuSetting { clock_mhz_max: Some(Frequency::from_mhz(mhz)), cap_mw: None }
}

#[test]
fn stages_that_change_nothing_report_nothing() {
    for name in NAMES {
        let policy = policy(name).unwrap();
        let mut site = cluster(&[4]);
        for (job, gpus) in [("a", 2), ("b", 2), ("c", 1)] {
            arrive(&mut site, facts(job, gpus), Some(2));
        }
        let reports = round(&mut site, &*policy).reports;
        assert_eq!(reports, StageReports::default(), "{name}");
    }
}

#[test]
fn a_power_limit_states_which_settings_it_lowers_and_which_jobs_wait() {
    let mut site = bounded(&[4]);
    let [a, b] = ["a", "b"].map(|job| arrive(&mut site, facts(job, 1), Some(2)));
    // 460 W idle; a GPU draws 200 W, at 1,080 MHz 130 W, at its lowest cap 100 W.
    let limit = Power::from_w(560);
    site.limits.power_max = Some(limit);
    let Round { plan, reports } = round(&mut site, &*policy("fifo@1200").unwrap());
    let [start] = &plan.decisions[..] else { panic!("{plan:?}") };
    assert_eq!((start.job(), reports.stage_of(start)), (a, None), "the policy places it");
    let by_rule = &reports.fixed_settings[&a];
    assert_eq!((by_rule.from, by_rule.to), (GpuSetting::DEFAULT, at(1_200)));
    let reason = Reason::PowerLimit { most: Some(limit) };
    let lowered = SettingChange { from: at(1_200), to: at(1_080), reason };
    assert_eq!(reports.setting_of(a), Some((Stage::PowerLimits, &lowered)));
    let blocked = plan.blocked.unwrap();
    assert_eq!(blocked.job, b);
    assert_eq!(reports.why_held_back(b), Some((Stage::PowerLimits, blocked.reason)));

    // Without the limit the rule's clock returns: the same stage raises it.
    site.limits.power_max = None;
    let Round { plan, reports } = round(&mut site, &*policy("fifo@1200").unwrap());
    let set = plan.decisions.iter().find(|d| matches!(d, Decision::Set { .. })).unwrap();
    assert_eq!((set.job(), reports.stage_of(set)), (a, Some(Stage::FixedSettings)));
    let raised = &reports.fixed_settings[&a];
    assert_eq!((raised.from, raised.to), (at(1_080), at(1_200)));
}

#[test]
fn a_preemption_limit_states_which_jobs_it_stops() {
    let fifo = policy("fifo").unwrap();
    let mut site = bounded(&[4]);
    let [_, last] = ["a", "b"].map(|job| arrive(&mut site, facts(job, 1), Some(2)));
    round(&mut site, &*fifo);
    site.limits.preemption_limit = Some(Power::from_w(560));
    let Round { plan, reports } = round(&mut site, &*fifo);
    let [stop] = &plan.decisions[..] else { panic!("{plan:?}") };
    assert_eq!((stop.job(), reports.stage_of(stop)), (last, Some(Stage::PowerLimits)));
    assert_eq!(&reports.power_limits.stopped[&last], stop.reason());
}

#[test]
fn jobs_beyond_the_budget_and_deferred_jobs_name_their_stage() {
    let fifo = policy("fifo").unwrap();
    let mut site = bounded(&[4]);
    let patient = JobFacts { slack: Some(Duration::from_secs(8 * 3_600)), ..facts("patient", 1) };
    let patient = arrive(&mut site, patient, Some(2));
    let large = arrive(&mut site, facts("large", 4), Some(2));
    let small = arrive(&mut site, facts("small", 1), Some(2));
    // One job fits, four GPUs at their lowest power do not.
    site.limits.admission_limit = Some(Power::from_w(600));
    let hour = |h: u64| Timestamp::from_s(3_600 * h);
    let expected = (0..24).map(|h| (hour(h), if h < 4 { 400.0 } else { 100.0 })).collect();
    site.limits.grid = Some(Arc::new(GridForecast { now: 400.0, until: hour(24), expected }));
    let Round { plan, reports } = round(&mut site, &*fifo);
    let held: Vec<(Stage, JobKey)> = reports.held_back().collect();
    assert_eq!(held, [(Stage::CarbonDeferral, patient), (Stage::Budget, large)]);
    assert!(matches!(reports.why_held_back(large), Some((_, Reason::HeldBack { .. }))));
    assert_eq!(plan.decisions.iter().map(Decision::job).collect::<Vec<_>>(), [small]);
    assert_eq!(reports.why_held_back(small), None);
}

#[test]
fn a_moved_start_states_where_the_policy_placed_it() {
    let fifo = policy("fifo").unwrap();
    let mut site = cluster(&[4, 4]);
    site.node_known(NodeFacts { partitions: vec!["gpu".into()], ..node(1, 4) });
    let of = |name: &str, partition: &str| {
        let partition = Some(partition.into());
        let rules = SiteFacts { nodes: 1, partition, needs: NodeNeeds::default() };
        JobFacts { site: Some(rules), ..facts(name, 1) }
    };
    let moved = arrive(&mut site, of("moved", "gpu"), None);
    let nowhere = arrive(&mut site, of("nowhere", "cpu"), None);
    let Round { plan, reports } = round(&mut site, &*fifo);
    let [start] = &plan.decisions[..] else { panic!("{plan:?}") };
    assert_eq!((start.job(), reports.stage_of(start)), (moved, Some(Stage::SiteRules)));
    assert_eq!(reports.site_rules.moved[&moved], GpuSet::on(NodeKey::at(0), 1));
    let reason = Reason::NoHostRoom { nodes: 1, gpus: 1 };
    assert_eq!(reports.why_held_back(nowhere), Some((Stage::SiteRules, reason)));
}

#[test]
fn a_job_that_has_not_settled_keeps_its_gpus_until_a_stated_time() {
    let mut site = cluster(&[4]);
    let job = arrive(&mut site, facts("a", 1), Some(2));
    let reason = || Reason::Share { gpus: 1 };
    let start = Decision::start(job, GpuSet::on(NodeKey::at(0), 1), reason());
    round(&mut site, &Constant(vec![start]));
    site.pass(Duration::from_secs(10));
    let moves = Decision::Stop { job, next_gpus: Some(2), next_gpu_type: None, reason: reason() };
    let Round { plan, reports } = round(&mut site, &Constant(vec![moves]));
    assert!(plan.is_empty(), "{plan:?}");
    // Ten times the cost of a restart on one GPU.
    let cost = site.restart_cost(site.job(job).unwrap(), 1);
    assert_eq!(reports.settling[&job], Timestamp::EPOCH + cost * 10);
}

#[test]
fn node_sleep_states_the_nodes_that_wake_and_a_limit_those_that_do_not() {
    let fifo = policy("fifo").unwrap();
    let mut site = bounded(&[4, 4]);
    site.limits.nodes_sleep = true;
    site.wakefulness_changed(NodeKey::at(1), Wakefulness::Asleep);
    arrive(&mut site, facts("a", 4), Some(2));
    let waits = arrive(&mut site, facts("waits", 4), Some(2));
    let woken = |site: &Site| {
        let round = solve(&*fifo, site.input());
        let nodes = round.reports.node_sleep.iter().map(wattle_placer::NodeDecision::node);
        (nodes.collect::<Vec<_>>(), round)
    };
    let (nodes, Round { plan, reports }) = woken(&site);
    assert_eq!(nodes, [NodeKey::at(1)]);
    assert_eq!((plan.nodes, reports.power_limits.not_woken), (reports.node_sleep, vec![]));
    // Four GPUs of at least 100 W and their host; the second host draws 300 W more.
    site.limits.admission_limit = Some(Power::from_w(1_000));
    let (nodes, Round { plan, reports }) = woken(&site);
    assert_eq!((&nodes, &plan.nodes[..]), (&reports.power_limits.not_woken, &[][..]));
    assert_eq!(reports.why_held_back(waits).map(|(stage, _)| stage), Some(Stage::PowerLimits));
}

#[test]
fn a_trial_states_the_jobs_that_it_observes_and_its_verdict() {
    for name in ["fifo-packed", "wattle"] {
        let packer = policy(name).unwrap();
        let mut site = cluster(&[1]);
        let old = arrive(&mut site, facts("old", 1), Some(0));
        report(&mut site, &[old], 0);
        round(&mut site, &*packer);
        site.pass(Duration::from_secs(10));
        let new = arrive(&mut site, facts("new", 1), Some(0));
        report(&mut site, &[old, new], 0);
        assert_eq!(round(&mut site, &*packer).reports.trial.observed, [new], "{name}");

        let (mut site, old, new) = paired(name);
        site.pass(Duration::from_secs(90));
        report(&mut site, &[old, new], 54);
        let Round { plan, reports } = round(&mut site, &*packer);
        assert_eq!(plan.decisions, reports.trial.verdicts, "{name}");
        assert_eq!(reports.stage_of(&plan.decisions[0]), Some(Stage::Trial), "{name}");
    }
}
