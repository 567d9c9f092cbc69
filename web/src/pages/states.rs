//! Broken states of a cluster, each with the verdict of the overview: an operator finds the cause in it.

use wattle_common::aim::Baseline;
use wattle_common::job::JobPhase;
use wattle_common::messages::{
    AimStatus, AppliedGpu, BudgetRecord, BudgetStatus, PredictorState, PredictorStatus, Scores,
};
use wattle_common::{Budget, Power, Timestamp, codec};
use wattle_testkit as testkit;

use super::content;
use crate::model::Model;
use crate::model::tests::{example, lease, now};
use crate::topic::Topic;

/// A cluster without a problem: one running and one queued job on two nodes.
fn fine() -> Model {
    let mut model = example();
    for service in ["placer", "registry"] {
        model.lease(service, Some(&codec::encode_json(&lease())), now(100));
    }
    model
}

fn gpu(model: &mut Model, change: impl FnOnce(&mut AppliedGpu)) {
    let node = model.nodes.get_mut(&testkit::node("n1")).unwrap();
    change(&mut node.power.as_mut().unwrap().gpus[1]);
}

fn budget(model: &mut Model, energy_kwh: Option<f64>, power_kw: Option<f64>) {
    let budget = Budget::from_human(energy_kwh, None, power_kw, None).unwrap();
    let (generation, since_us) = (1, Timestamp::EPOCH);
    model.budget = Some(BudgetRecord { generation, budget, since_us, intensity: None });
    model.status = Some(BudgetStatus {
        observed_generation: 1,
        price: 1.0,
        policy_price: 1.0,
        power_mw_expected: Power::from_w(450),
        power_mw_baseline: Some(Power::from_w(450)),
        power_mw_budget_mean: energy_kwh.map(|_| Power::from_w(207)),
        ..testkit::budget_status(Timestamp::from_s(100))
    });
    // The limit is in force from now on.
    model.tick(true, now(100));
}

fn job(model: &mut Model, deadline_s: u64, estimate_s: Option<u64>) {
    let mut record = testkit::job_record(testkit::job_spec("t-7", 1), JobPhase::Running);
    record.phase_since_us = Timestamp::from_s(100);
    record.spec.deadline_at_us = Some(Timestamp::from_s(deadline_s));
    record.spec.duration_ms_estimate = estimate_s.map(|s| s * 1_000);
    model.job("t-7", Some(&codec::encode_json(&record)));
}

fn predictor(model: &mut Model, state: PredictorState, champion: bool) {
    let name = testkit::predictor("physical");
    let status = PredictorStatus {
        name: name.clone(),
        version: None,
        at_us: Timestamp::EPOCH,
        observed_generation: 1,
        state,
        champion,
        error: None,
        last_active_us: None,
        proposals: 0,
        refused: 0,
        windows_uncovered: 0,
        speed: Scores::default(),
        power: Scores::default(),
        latency: None,
    };
    model.predictors.insert(name, status);
}

/// A state and how it differs from a cluster without a problem.
type State = (&'static str, fn(&mut Model));

const STATES: &[State] = &[
    ("nothing", |_| {}),
    ("server stopped", |m| m.tick(false, now(66))),
    ("placer stopped", |m| drop(m.leases.remove("placer"))),
    ("registry stopped", |m| drop(m.leases.remove("registry"))),
    ("profiler stopped", |m| drop(m.summaries.remove(&testkit::node("n1")))),
    ("GPU off the bus", |m| gpu(m, |gpu| gpu.healthy = false)),
    ("cap refused", |m| {
        gpu(m, |gpu| gpu.last_error = Some("Insufficient Permissions".to_owned()));
    }),
    ("driver updated without a reboot", |m| {
        let node = m.nodes.get_mut(&testkit::node("n1")).unwrap();
        let error = "Driver/library version mismatch".to_owned();
        node.power.as_mut().unwrap().driver_error = Some(error);
    }),
    ("champion silent", |m| predictor(m, PredictorState::Silent, true)),
    ("challenger fails", |m| predictor(m, PredictorState::Failing, false)),
    ("power limit exceeded", |m| budget(m, None, Some(0.6))),
    ("budget below the idle draw", |m| budget(m, Some(5.0), None)),
    ("aim exceeded", |m| {
        let (at_us, max_slowdown) = (Timestamp::from_s(100), 0.05);
        let (present_s, delay_s) = (1_000.0, 99.5);
        let (price, policy_price) = (0.0, 0.0);
        m.aim = Some(AimStatus {
            at_us,
            baseline: Some(Baseline::Backfill),
            max_slowdown,
            present_s,
            delay_s,
            price,
            policy_price,
            max_project_slowdown: None,
            projects: Vec::new(),
        });
        m.twin = Some(testkit::twin_status(at_us, 20, 150.0));
    }),
    ("deadline missed", |m| job(m, 48, None)),
    ("deadline impossible", |m| job(m, 700, Some(13_200))),
    ("deadline in reach", |m| job(m, 700, Some(300))),
];

#[test]
fn the_verdict_names_the_cause() {
    let line = |(name, change): &State| {
        let mut model = fine();
        change(&mut model);
        let parameters = [("topic".to_owned(), "overview".to_owned())];
        let page = content(&Topic::parse(&parameters.into()).unwrap(), &model, now(108));
        let page = &page["page"];
        let (level, verdict) = (page["level"].as_str(), page["verdict"].as_str());
        format!("{name}: {}: {}", level.unwrap(), verdict.unwrap())
    };
    let found: Vec<String> = STATES.iter().map(line).collect();
    let usual = "680 W of 1.20 kW, 1 running, 1 queued";
    let two = "680 W of 1.20 kW, 2 running, 1 queued";
    let expected = [
        format!("nothing: ok: {usual}"),
        format!(
            "server stopped: fault: the NATS server has not answered for 42 s: the figures are old; {usual}"
        ),
        format!("placer stopped: fault: no placer is active: no job starts; {usual}"),
        format!("registry stopped: fault: no registry is active: predictions do not change; {usual}"),
        "profiler stopped: fault: the profiler of n1 does not answer: power and speed of its jobs are not \
         known; at least 340 W of 1.10 kW, 1 running, 1 queued"
            .to_owned(),
        format!(
            "GPU off the bus: fault: GPU 1 of n1 does not respond, or responds again only since a moment \
             ago; {usual}"
        ),
        format!(
            "cap refused: fault: cap or clock of GPU 1 of n1 is not set: Insufficient Permissions; {usual}"
        ),
        format!(
            "driver updated without a reboot: fault: no GPU of n1 can be read: Driver/library version \
             mismatch; {usual}"
        ),
        format!("champion silent: fault: predictor physical does not answer; {usual}"),
        format!("challenger fails: warning: predictor physical sends invalid surfaces; {usual}"),
        "power limit exceeded: fault: the power limit is exceeded: 680 W of 600 W; 680 W of 600 W, \
         1 running, 1 queued"
            .to_owned(),
        format!(
            "budget below the idle draw: fault: no job can start: the idle cluster draws 0.45 kW, but the \
             budget allows 0.207 kW on average; {usual}, energy budget 116 % over at its end"
        ),
        format!(
            "aim exceeded: warning: jobs complete 11.05 % later on average than under backfill, by estimate, and \
             the bound is 5 %; {usual}"
        ),
        format!("deadline missed: warning: t-7 is 60 s past its deadline; {two}"),
        format!(
            "deadline impossible: warning: t-7 will miss its deadline by 3.5 h, by prediction; {two}"
        ),
        format!("deadline in reach: ok: {two}"),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_node_without_reports_is_named() {
    let model = fine();
    let parameters = [("topic".to_owned(), "overview".to_owned())];
    // The leases are renewed, the reports of the nodes are not.
    let mut model = model;
    for service in ["placer", "registry"] {
        model.lease(service, Some(&codec::encode_json(&lease())), now(121));
    }
    let page = content(&Topic::parse(&parameters.into()).unwrap(), &model, now(121));
    let verdict = page["page"]["verdict"].as_str().unwrap();
    let expected = "the power-agent of n0 does not answer: caps become safe, and no job starts there (and 3 more); ";
    assert!(verdict.starts_with(expected), "{verdict}");
}
