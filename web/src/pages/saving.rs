//! Energy saved so far: today, in the last week and in the last month.

use serde_json::{Map, Value, json};

use super::{rounded, seconds, significant};
use crate::model::tally::{Sums, day_of};
use crate::model::{Model, Now};
use crate::topic::Period;

/// Days of the chart.
const DAYS: u64 = 30;

fn shown(sums: &Sums) -> Value {
    let saved = &sums.saved;
    let wh = |mj: f64| significant(mj / 3.6e6);
    json!({
        "saved_wh": wh(saved.saved_mj()),
        "share": saved.share().map(|share| rounded(share, 4)),
        "used_wh": wh(saved.compared_mj),
        "baseline_wh": wh(saved.baseline_mj),
        "jobs_wh": wh(saved.jobs_mj),
        "coverage": saved.coverage().map(|share| rounded(share, 3)),
        "slowdown": saved.slowdown().map(|share| rounded(share, 4)),
        "carbon_g": sums.all.carbon.map(|_| significant(sums.carbon_saved_ug / 1e6)),
        "cost": sums.all.cost.map(|_| significant(sums.cost_saved)),
    })
}

/// The content of the page.
pub(super) fn content(model: &Model, now: Now) -> Value {
    let today = day_of(now.at);
    let rates = model.rates();
    let sums = |days: u64| model.tally.sums((today + 1).saturating_sub(days), today, rates);
    let periods: Map<String, Value> = Period::ALL
        .into_iter()
        .map(|period| (period.name().to_owned(), shown(&sums(period.days()))))
        .collect();
    let first = (today + 1).saturating_sub(DAYS);
    let days: Map<String, Value> = (first..=today)
        .map(|day| (day.to_string(), shown(&model.tally.sums(day, day, rates))))
        .collect();
    json!({
        "periods": periods,
        "days": days,
        "currency": rates.prices.map(|prices| prices.currency.clone()),
        "until_s": model.tally.until().map(seconds),
        "ledger_read": model.ledger_read,
    })
}
