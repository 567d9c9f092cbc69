//! Budgets, the aim, carbon intensities and prices.

use wattle_common::PowerSeries;
use wattle_common::aim::Baseline;
use wattle_common::messages::{
    AimProject, LimitCost, PowerMargin, TradeOff, TwinAbsence, TwinJob, TwinOpen, TwinRow,
    TwinStatus, TwinSums, TwinWork, WhatIf,
};

use super::*;

#[test]
fn budgets() {
    let budget = Budget::from_human(Some(120.0), Some(30.0), Some(9.5), None).unwrap();
    let intensity = IntensitySeries {
        name: "grid.csv".into(),
        starts_at_us: at(1),
        steps: vec![
            (0, CarbonIntensity::from_g_per_kwh(250.0)),
            (3_600, CarbonIntensity::from_g_per_kwh(310.5)),
        ],
        period_s: 7_200,
        origins: Vec::new(),
    };
    check("set-budget", &SetBudget { budget: budget.clone(), intensity: Some(intensity.clone()) });
    let power_series = PowerSeries {
        starts_at_us: at(0),
        steps: vec![(0, Power::from_w(9_500)), (57_600, Power::from_w(5_000))],
        period_s: 86_400,
    };
    let over_time = Budget { power_series: Some(power_series), ..budget.clone() };
    check("set-budget-over-time", &SetBudget { budget: over_time, intensity: None });
    let stored = |generation| BudgetReply::Stored { budget: budget.clone(), generation };
    check("budget-reply-stored", &stored(0));
    check("budget-reply-generation", &stored(3));
    let error = "a carbon budget needs the grid's intensity: give --carbon FILE".into();
    check("budget-reply-refused", &BudgetReply::Refused { error });
    let record_with = |intensity| BudgetRecord {
        generation: 0,
        budget: budget.clone(),
        since_us: at(1),
        intensity: Some(intensity),
    };
    let record = record_with(intensity);
    check("budget-record", &record);
    check("budget-record-generation", &BudgetRecord { generation: 3, ..record });
    let status = BudgetStatus {
        at_us: at(3),
        observed_generation: 0,
        window_from_us: at(1),
        window_until_us: at(86_401),
        energy_mj: Energy::from_j(5_400_000),
        carbon_ug: Some(Carbon::from_ug(375_000_000)),
        overrun_previous: Some(0.002),
        price: 0.42,
        price_integral: None,
        policy_price: 0.42,
        power_mw_expected: Power::from_w(4_200),
        power_mw_baseline: None,
        power_mw_budget_mean: None,
        intensity_mg_per_kwh: Some(CarbonIntensity::from_g_per_kwh(250.0)),
        limit_cost: None,
        power_margin: None,
        counted_until_us: [(node(), at(3))].into(),
    };
    check("budget-status", &status);
    let observed = BudgetStatus { observed_generation: 3, ..status.clone() };
    check("budget-status-generation", &observed);
    let aim = AimStatus {
        at_us: at(3),
        baseline: None,
        max_slowdown: 0.05,
        present_s: 86_400.0,
        delay_s: 3_600.0,
        price: 0.42,
        policy_price: 0.0013,
        max_project_slowdown: None,
        projects: Vec::new(),
    };
    check("aim-status", &aim);
    let project =
        AimProject { project: "vision".into(), present_s: 4_000.0, delay_s: -120.0, price: 0.9 };
    let of_projects = AimStatus {
        baseline: Some(Baseline::Backfill),
        max_project_slowdown: Some(0.1),
        projects: vec![project],
        ..aim
    };
    check("aim-status-projects", &of_projects);
    let carbon = SignalStatus {
        provider: "electricity-maps DE".into(),
        accounting: Some(Accounting::Average),
        in_use: InUse::LastKnown,
        since_us: at(7),
        origin: Origin::Forecast,
        read_at_us: Some(at(5)),
        valid_until_us: Some(at(86_405)),
        error: Some("https://api.electricitymaps.com does not answer: timeout".into()),
    };
    let price = SignalStatus {
        provider: "/var/lib/wattle/day-ahead.xml".into(),
        accounting: None,
        in_use: InUse::Live,
        origin: Origin::Measured,
        error: None,
        ..carbon.clone()
    };
    let prices =
        PriceSeries { currency: "EUR".into(), steps: vec![(at(0), 118_600), (at(900), -4_350)] };
    let grid = GridStatus {
        at_us: at(9),
        observed_generation: 0,
        carbon: Some(carbon),
        price: Some(price),
        prices: Some(prices),
    };
    check("grid-status", &grid);
    check("grid-status-generation", &GridStatus { observed_generation: 3, ..grid });
    let origins = vec![(0, Origin::Measured), (3_600, Origin::Forecast), (7_200, Origin::Static)];
    let provided = IntensitySeries {
        name: "electricity-maps DE, average, measured".into(),
        starts_at_us: at(1),
        steps: vec![
            (0, CarbonIntensity::from_g_per_kwh(250.0)),
            (3_600, CarbonIntensity::from_g_per_kwh(310.5)),
            (7_200, CarbonIntensity::from_g_per_kwh(380.0)),
        ],
        period_s: 316_231_200,
        origins,
    };
    check("budget-record-of-a-provider", &record_with(provided));
    let (power_mw_baseline, power_mw_budget_mean) =
        (Some(Power::from_w(450)), Some(Power::from_w(4_975)));
    let held = BudgetStatus { price: 1.0, price_integral: Some(0.44), ..status.clone() };
    check("budget-status-held", &held);
    let cost = LimitCost { price_s_per_kwh: 360.0, saved_s_per_kw: Some(240.0) };
    check("budget-status-limit", &BudgetStatus { limit_cost: Some(cost), ..status.clone() });
    let margin = PowerMargin {
        correction: 0.875,
        jobs_below: 14,
        jobs_above: 1,
        jobs_measured: 16,
        measured_ratio: None,
        plan_margin: None,
        unused_share: Some(0.012),
    };
    check("budget-status-margin", &BudgetStatus { power_margin: Some(margin), ..status.clone() });
    let measured = PowerMargin { measured_ratio: Some(0.85), plan_margin: Some(0.025), ..margin };
    let measured = BudgetStatus { power_margin: Some(measured), ..status.clone() };
    check("budget-status-measured", &measured);
    check("budget-status-fed", &BudgetStatus { power_mw_baseline, power_mw_budget_mean, ..status });
}

#[test]
fn feeders() {
    let named = |name: &str| FeederId::new(name).unwrap();
    let of = |name: &str, parent: Option<&str>, watts: u64| FeederStatus {
        feeder: Feeder {
            name: named(name),
            parent: parent.map(named),
            limit_mw: Power::from_w(watts),
            static_load_mw: Power::from_w(500),
        },
        power_mw_expected: Power::from_w(12_300),
        power_mw_worst: Power::from_w(12_300),
        lost: None,
    };
    let raised = FeederStatus {
        power_mw_worst: Power::from_w(23_600),
        lost: Some(named("board-b")),
        ..of("pdu-a1", Some("board-a"), 45_000)
    };
    let feeds = Connection {
        nodes: [node()].into(),
        feeds: vec![named("pdu-a1"), named("pdu-b1")],
        min_feeds: 1,
    };
    let status = FeedersStatus {
        at_us: at(3),
        feeders: vec![of("board-a", None, 90_000), raised],
        connections: vec![feeds],
        power_margin: None,
    };
    check("feeders-status", &status);
}

#[test]
fn what_if() {
    let point = |later, saved| TradeOff { later, saved };
    let trade = WhatIf {
        at_us: at(300),
        jobs: 12,
        not_counted: 2,
        completion_s: 5_400.5,
        energy_mj: Energy::from_mj(36_000_000),
        planned: point(0.02, 0.08),
        points: vec![TradeOff::default(), point(0.03, 0.11), point(0.12, 0.19)],
    };
    check("what-if", &trade);
}

#[test]
fn expected_status() {
    let status = ExpectedStatus {
        at_us: at(300),
        since_us: at(0),
        ratios: vec![ExpectedRatios {
            kind: ExpectedKind::EndRunning,
            class: 2,
            counts: [(-3, 4), (0, 60), (11, 1)].into(),
        }],
        errors: vec![ExpectedErrors {
            of_end: true,
            first: false,
            within: 60,
            counts: [(0, 12), (25, 53)].into(),
        }],
    };
    check("expected-status", &status);
}

#[test]
fn twin() {
    let sums = TwinSums {
        jobs: 3,
        completion_s: 5_400.5,
        completion_s_twin: 5_600.0,
        wait_s: 60.0,
        wait_s_twin: 600.0,
        delay_square_s2: 13_400.0,
        compared: 2,
        gpu_j: 720_000.0,
        gpu_j_idle: 180_000.0,
        gpu_j_twin: 900_000.0,
        gpu_j_twin_idle: 170_000.0,
        error_j: 21_000.0,
        error_square_j2: 221_000_000.0,
        settings_j: 90_000.0,
        rest_j: 1_900_000.0,
        slept_j: 350_000.0,
        sharing_j: 60_000.0,
        sizes_j: 30_000.0,
        node_s: 7_200.0,
        node_s_asleep: 1_200.0,
    };
    let row =
        TwinRow { day: 20_000, user: Some("ada".into()), project: Some("vision".into()), sums };
    let ahead = TwinRow { user: None, project: None, ..row.clone() };
    let status = TwinStatus {
        at_us: at(300),
        since_us: at(0),
        baseline: Baseline::Backfill,
        waiting: 1,
        running: 2,
        rows: vec![row],
        ahead: vec![ahead],
        corrected_late: 1,
        absences: vec![TwinAbsence { from_us: at(60), until_us: at(960) }],
        replayed_at_us: None,
    };
    check("twin", &status);
    check("twin-replayed", &TwinStatus { replayed_at_us: Some(at(200)), ..status });
    let work = TwinWork {
        done_s: 300.0,
        done_error_s: 12.0,
        run_time_s: Some(900.0),
        gpu_s: 320.0,
        gpu_s_shared: 40.0,
        gpu_s_resized: 20.0,
        gpu_w: Some(210.5),
        gpu_idle_w: Some(40.0),
        error: Some(0.1),
        energy_j: Some(60_000.0),
        unmetered: false,
        settings_j: 5_000.0,
    };
    let job = TwinJob {
        job: "train-1".parse().unwrap(),
        submitted_at_us: at(1),
        left_at_us: Some(at(290)),
        start_us: Some(at(2)),
        end_us: None,
        on: vec![(node(), 0b1010)],
        since_us: Some(at(2)),
        done_s: 280.0,
        work,
    };
    check("twin-open", &TwinOpen { at_us: at(300), jobs: vec![job], not_stored: 4 });
}
