//! Energy, carbon and cost by user and project, and by day.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use wattle_common::messages::UnknownCause;
use wattle_common::total::Total;
use wattle_common::{Energy, Timestamp};
use wattle_view::emissions::static_share;

use super::{grams, rounded, seconds, significant, watt_hours};
use crate::model::tally::{Amount, Sums, Unmetered, day_of};
use crate::model::{Model, Now};
use crate::topic::Period;

/// Days of the chart.
const DAYS: u64 = 30;
/// Rows of each table; the rest is one row.
const ROWS_MAX: usize = 50;

/// The rows of a table, the largest energy first.
fn by(sums: &Sums, name: impl Fn(&(Option<String>, Option<String>)) -> Option<String>) -> Value {
    let mut groups: BTreeMap<Option<String>, Amount> = BTreeMap::new();
    for (owner, amount) in &sums.owners {
        groups.entry(name(owner)).or_default().merge(*amount);
    }
    let mut rows: Vec<_> = groups.into_iter().collect();
    rows.sort_by_key(|(_, amount)| std::cmp::Reverse(amount.energy.known()));
    let hidden = rows.len().saturating_sub(ROWS_MAX);
    let total = sums.uses.total();
    let row = |(name, amount): (Option<String>, Amount)| {
        let energy = amount.energy.known();
        json!({
            "name": name, "wh": energy.map(watt_hours), "is_partial": partial(&amount.energy),
            "carbon_g": amount.carbon.map(grams), "cost": amount.cost.map(significant),
            "share": energy.map(|energy| rounded(energy.ratio(total), 4)),
        })
    };
    let rows: Vec<Value> = rows.into_iter().take(ROWS_MAX).map(row).collect();
    json!({ "rows": rows, "hidden": hidden })
}

/// `true` if a part of the sum is missing; else absent.
fn partial(energy: &Total<Energy>) -> Option<bool> {
    (!energy.is_complete()).then_some(true)
}

/// The energy by use. A sum without a reading is absent; one that lacks the readings of some GPUs is marked.
pub(super) fn uses(sums: &Sums) -> Value {
    let known = |energy: Energy, is_partial: bool| {
        (energy > Energy::ZERO || !is_partial).then(|| watt_hours(energy))
    };
    let Unmetered { jobs, idle } = sums.unmetered;
    json!({
        "total_wh": sums.all.energy.known().map(watt_hours),
        "is_partial": partial(&sums.all.energy),
        "jobs_wh": known(sums.uses.jobs, jobs),
        "jobs_partial": jobs.then_some(true),
        "idle_wh": known(sums.uses.idle, idle),
        "idle_partial": idle.then_some(true),
        "unknown_wh": watt_hours(sums.uses.unknown),
        "hosts_wh": watt_hours(sums.uses.hosts),
        "carbon_g": sums.all.carbon.map(grams),
        "carbon_is_partial": sums.all.carbon.is_some() && sums.carbon_is_partial,
        "cost": sums.all.cost.map(significant),
        "cost_is_partial": sums.all.cost.is_some() && sums.cost_is_partial,
    })
}

/// Energy without a known owner, and GPU time in which energy may be missing, by cause, as `wattle energy`
/// states them.
fn causes(sums: &Sums, model: &Model, first_day: u64) -> Vec<Value> {
    let unmeasured = model.tally.unmeasured(first_day);
    let all: BTreeSet<&UnknownCause> = sums.causes.keys().chain(unmeasured.keys()).collect();
    let row = |cause: &UnknownCause| {
        let energy = sums.causes.get(cause).copied().unwrap_or_default();
        let missing = unmeasured.get(cause);
        let estimate = missing.map(|(_, energy)| *energy).filter(|energy| *energy > Energy::ZERO);
        json!({
            "cause": cause.to_string(),
            "wh": (energy > Energy::ZERO).then(|| watt_hours(energy)),
            "missing_gpu_s": missing.map(|(time, _)| significant(time.as_secs_f64())),
            "estimate_wh": estimate.map(watt_hours),
        })
    };
    all.into_iter().map(row).collect()
}

/// The content of the page.
pub(super) fn content(period: Period, model: &Model, now: Now) -> Value {
    let today = day_of(now.at);
    let rates = model.rates();
    let series = rates.intensity;
    let begins = (today + 1).saturating_sub(period.days());
    let sums = model.tally.sums(begins, today, rates);
    let first = (today + 1).saturating_sub(DAYS);
    let days: Map<String, Value> = (first..=today)
        .map(|day| (day.to_string(), uses(&model.tally.sums(day, day, rates))))
        .collect();
    json!({
        "period": period.name(),
        "sums": uses(&sums),
        "missing": model.tally.missing_gpus(begins),
        "causes": causes(&sums, model, begins),
        "users": by(&sums, |(user, _)| user.clone()),
        "projects": by(&sums, |(_, project)| project.clone()),
        "days": days,
        "grid": super::budget::grid(model, now),
        "static_share": series.map(|series| {
            let begins = Timestamp::from_s(begins * 86_400);
            rounded(static_share(series, begins.max(series.starts_at_us), now.at), 3)
        }),
        "series": series.map(|series| series.name.clone()),
        "currency": rates.prices.map(|prices| prices.currency.clone()),
        "until_s": model.tally.until().map(seconds),
        "ledger_read": model.ledger_read,
    })
}
