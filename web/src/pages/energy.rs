//! Energy and carbon by user and project, and by day.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use wattle_common::{Carbon, Energy, Timestamp};
use wattle_view::emissions::static_share;

use super::{grams, rounded, seconds, watt_hours};
use crate::model::tally::{Sums, day_of};
use crate::model::{Model, Now};
use crate::topic::Period;

/// Days of the chart.
const DAYS: u64 = 30;
/// Rows of each table; the rest is one row.
const ROWS_MAX: usize = 50;

/// The rows of a table, the largest energy first.
fn by(sums: &Sums, name: impl Fn(&(Option<String>, Option<String>)) -> Option<String>) -> Value {
    let mut groups: BTreeMap<Option<String>, (Energy, Option<Carbon>)> = BTreeMap::new();
    for (owner, (energy, carbon)) in &sums.owners {
        let sum = groups.entry(name(owner)).or_default();
        sum.0 += *energy;
        if let Some(carbon) = carbon {
            sum.1 = Some(sum.1.unwrap_or_default() + *carbon);
        }
    }
    let mut rows: Vec<_> = groups.into_iter().collect();
    rows.sort_by_key(|(_, (energy, _))| std::cmp::Reverse(*energy));
    let hidden = rows.len().saturating_sub(ROWS_MAX);
    let total = sums.uses.total();
    let row = |(name, (energy, carbon)): (Option<String>, (Energy, Option<Carbon>))| {
        json!({
            "name": name, "wh": watt_hours(energy), "carbon_g": carbon.map(grams),
            "share": rounded(energy.ratio(total), 4),
        })
    };
    let rows: Vec<Value> = rows.into_iter().take(ROWS_MAX).map(row).collect();
    json!({ "rows": rows, "hidden": hidden })
}

fn uses(sums: &Sums) -> Value {
    json!({
        "total_wh": watt_hours(sums.uses.total()),
        "jobs_wh": watt_hours(sums.uses.jobs),
        "idle_wh": watt_hours(sums.uses.idle),
        "unknown_wh": watt_hours(sums.uses.unknown),
        "hosts_wh": watt_hours(sums.uses.hosts),
        "carbon_g": sums.carbon.map(grams),
        "carbon_is_partial": sums.carbon.is_some() && sums.carbon_is_partial,
    })
}

/// The content of the page.
pub(super) fn content(period: Period, model: &Model, now: Now) -> Value {
    let today = day_of(now.at);
    let series = model.budget.as_ref().and_then(|set| set.intensity.as_ref());
    let sums = model.tally.sums((today + 1).saturating_sub(period.days()), today, series);
    let first = (today + 1).saturating_sub(DAYS);
    let days: Map<String, Value> = (first..=today)
        .map(|day| (day.to_string(), uses(&model.tally.sums(day, day, series))))
        .collect();
    json!({
        "period": period.name(),
        "sums": uses(&sums),
        "users": by(&sums, |(user, _)| user.clone()),
        "projects": by(&sums, |(_, project)| project.clone()),
        "days": days,
        "grid": super::budget::grid(model, now),
        "static_share": series.map(|series| {
            let day = |day: u64| Timestamp::from_s(day * 86_400);
            let begins = day((today + 1).saturating_sub(period.days()));
            rounded(static_share(series, begins.max(series.starts_at_us), now.at), 3)
        }),
        "series": series.map(|series| series.name.clone()),
        "until_s": model.tally.until().map(seconds),
        "ledger_read": model.ledger_read,
    })
}
