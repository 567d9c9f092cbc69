//! The status of a budget, and that of a twin.

use std::collections::BTreeMap;

use wattle_common::aim::Baseline;
use wattle_common::messages::{BudgetStatus, PowerMargin, TwinRow, TwinStatus, TwinSums};
use wattle_common::{Energy, Power, Timestamp};

/// Two of three measured jobs draw 15 % less above idle than predicted.
#[must_use]
pub const fn power_margin() -> PowerMargin {
    PowerMargin {
        correction: 0.9,
        jobs_below: 2,
        jobs_above: 0,
        jobs_measured: 3,
        measured_ratio: Some(0.85),
        plan_margin: Some(0.02),
        unused_share: None,
    }
}

/// A status without spending, of a window that is one day long and began at the epoch.
#[must_use]
pub fn budget_status(at: Timestamp) -> BudgetStatus {
    BudgetStatus {
        at_us: at,
        observed_generation: 0,
        window_from_us: Timestamp::EPOCH,
        window_until_us: Timestamp::from_s(86_400),
        energy_mj: Energy::ZERO,
        carbon_ug: None,
        overrun_previous: None,
        price: 0.0,
        price_integral: None,
        policy_price: 0.0,
        power_mw_expected: Power::ZERO,
        power_mw_baseline: None,
        power_mw_budget_mean: None,
        intensity_mg_per_kwh: None,
        limit_cost: None,
        power_margin: None,
        counted_until_us: BTreeMap::new(),
    }
}

/// The status of a twin of backfilling on the first day: jobs that took 1000 s there and this much longer in the
/// cluster.
#[must_use]
pub fn twin_status(at: Timestamp, jobs: u64, delay_s: f64) -> TwinStatus {
    let all = jobs as f64;
    let sums = TwinSums {
        jobs,
        completion_s: all * (1_000.0 + delay_s),
        completion_s_twin: all * 1_000.0,
        delay_square_s2: all * delay_s * delay_s,
        ..TwinSums::default()
    };
    TwinStatus {
        at_us: at,
        since_us: Timestamp::EPOCH,
        baseline: Baseline::Backfill,
        waiting: 0,
        running: 0,
        rows: vec![TwinRow { day: 0, user: None, project: None, sums }],
        ahead: Vec::new(),
        corrected_late: 0,
        absences: Vec::new(),
        replayed_at_us: None,
    }
}
