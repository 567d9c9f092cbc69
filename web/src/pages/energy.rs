//! Energy, carbon and cost by user and project, and by day.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Map, Value, json};
use wattle_common::messages::{SiteMinute, UnknownCause};
use wattle_common::total::Total;
use wattle_common::{Budget, Energy, Power, Timestamp};
use wattle_view::emissions::static_share;

use super::{grams, rounded, seconds, significant, watt_hours, watts};
use crate::model::tally::{Amount, HOUR_US, Sums, Unmetered, day_of};
use crate::model::{Model, Now};
use crate::topic::Period;

/// Days of the chart.
const DAYS: u64 = 30;
/// Hours of the chart by hour.
const HOURS: u64 = 48;
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

/// The most energy of an hour that a power limit permits: the limit over the hour.
fn limited(budget: &Budget, hour: u64) -> Option<Energy> {
    let (mut at, until) = (start_of(hour), start_of(hour + 1));
    let mut energy = Energy::ZERO;
    while at < until {
        let series = budget.power_series.as_ref();
        let next = series.map_or(until, |series| series.changes_after(at).min(until));
        energy += budget.power_at(at)?.over(next.since(at));
        at = next;
    }
    Some(energy)
}

const fn start_of(hour: u64) -> Timestamp {
    Timestamp::from_us(hour * HOUR_US)
}

/// The limits of each hour since the budget in force was set: by its power limit, and by even spending of its energy.
/// Those of an earlier budget are not known.
fn limits(first: u64, last: u64, model: &Model) -> Value {
    let set = model.budget.as_ref();
    let hours =
        (first..=last).filter(|hour| set.is_some_and(|set| set.since_us <= start_of(*hour)));
    // With a carbon budget even spending depends on the intensity of each hour.
    let mean = set.filter(|set| set.budget.energy_mj.is_some() && set.budget.carbon_ug.is_none());
    let mean = mean.and(model.status.as_ref()).and_then(|status| status.power_mw_budget_mean);
    let even = mean.map(|mean| watt_hours(mean.over(Duration::from_micros(HOUR_US))));
    let of = |hour: u64| {
        let power = set.and_then(|set| limited(&set.budget, hour)).map(watt_hours);
        let shown = json!({ "power_wh": power, "even_wh": even });
        (hour.to_string(), shown)
    };
    Value::Object(hours.map(of).collect())
}

/// Minutes of each point of the curve of power: at most 240 points.
const fn step_min(period: Period) -> u64 {
    (period.days() * 1_440).div_ceil(240)
}

/// The beginning of the curve of power: as many days of 24 hours as the period has, until now.
#[must_use]
pub fn power_from(period: Period, now: Now) -> Timestamp {
    let step_us = step_min(period) * 60_000_000;
    let first = (now.at.as_us() / step_us).saturating_sub(period.days() * 1_440 / step_min(period));
    Timestamp::from_us(first * step_us)
}

/// The power of the site over the period, by the start of each point: mean power, the lowest limit, and the mean power
/// under the former scheduler; absent: it is being read.
fn power(period: Period, model: &Model, now: Now) -> Option<Value> {
    let (from, step_s) = (power_from(period, now), step_min(period) * 60);
    model.site_from.filter(|known| *known <= from)?;
    let mut parts: BTreeMap<u64, Vec<&SiteMinute>> = BTreeMap::new();
    for (at, minute) in model.site.range(from..) {
        let start_s = seconds(*at) / step_s * step_s;
        parts.entry(start_s).or_default().push(minute);
    }
    let mean = |powers: Vec<f64>| {
        let sum: f64 = powers.iter().sum();
        // Of fewer minutes it would be that of another time.
        (powers.len() as u64 * 120 >= step_s).then(|| rounded(sum / powers.len() as f64, 0))
    };
    let point = |(start_s, minutes): (u64, Vec<&SiteMinute>)| {
        let limits = minutes.iter().flat_map(|one| one.limit_mw.into_iter().chain(one.target_mw));
        let own = minutes.iter().filter_map(|one| one.power()).map(Power::as_w);
        let before = minutes.iter().filter_map(|one| one.twin).map(|twin| twin.power_mw.as_w());
        let shown = json!({
            "w": mean(own.collect()),
            "limit_w": limits.min().map(watts),
            "before_w": mean(before.collect()),
        });
        (start_s.to_string(), shown)
    };
    let points: Map<String, Value> = parts.into_iter().map(point).collect();
    Some(json!({ "from_s": seconds(from), "step_s": step_s, "points": points }))
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
    let hour = now.at.as_us() / HOUR_US;
    let first_hour = (hour + 1).saturating_sub(HOURS);
    let hours: Map<String, Value> = (first_hour..=hour)
        .filter_map(|hour| Some((hour.to_string(), uses(&model.tally.hour(hour, rates)?))))
        .collect();
    json!({
        "period": period.name(),
        "power": power(period, model, now),
        "baseline": model.twin.as_ref().map(|twin| twin.baseline.name()),
        "hours": { "first": first_hour, "last": hour, "uses": hours, "limits": limits(first_hour, hour, model) },
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

#[cfg(test)]
mod tests {
    use wattle_common::messages::{BudgetRecord, BudgetStatus};
    use wattle_common::power_series::PowerSeries;

    use super::*;
    use crate::model::tests::{budget_status, example, now};

    const HOUR_S: u64 = 3_600;

    fn shown(budget: Budget, since_s: u64) -> Value {
        let mut model = example();
        let since_us = Timestamp::from_s(since_s);
        model.budget = Some(BudgetRecord { generation: 1, budget, since_us, intensity: None });
        let mean = Some(Power::from_w(500));
        model.status = Some(BudgetStatus { power_mw_budget_mean: mean, ..budget_status() });
        content(Period::Day, &model, now(50 * HOUR_S + 60))["hours"].take()
    }

    #[test]
    fn power_is_the_mean_of_the_minutes_of_each_point() {
        let mut model = example();
        let now = now(50 * HOUR_S + 60);
        let minute = |at_s: u64, watts: u64| {
            let at = Timestamp::from_s(at_s);
            let limit_mw = (at_s >= 49 * HOUR_S).then(|| Power::from_w(900));
            let minute = wattle_testkit::site_minute(at, Power::from_w(watts));
            (at, SiteMinute { limit_mw, ..minute })
        };
        let page = |model: &Model| content(Period::Day, model, now)["power"].clone();
        let unmetered = SiteMinute { nodes: 9, ..minute(48 * HOUR_S + 60, 0).1 };
        let minutes = (0..6).map(|i| minute(48 * HOUR_S + 60 * i, 500 + 100 * i));
        let first = minutes.chain([(unmetered.minute_us, unmetered)]).collect();
        assert_eq!(page(&model), Value::Null, "it was not read");
        model.take_site(Timestamp::from_s(26 * HOUR_S), first);
        model.take_site(
            Timestamp::from_s(49 * HOUR_S),
            (0..2).map(|i| minute(49 * HOUR_S + 60 * i, 800)).collect(),
        );
        let power = page(&model);
        assert_eq!((&power["from_s"], &power["step_s"]), (&json!(26 * HOUR_S), &json!(360)));
        // Of 500, 700, 800, 900 and 1,000 W: one of six minutes is not known.
        let points = power["points"].as_object().unwrap();
        assert_eq!(points[&(48 * HOUR_S).to_string()]["w"], json!(780));
        let last = &points[&(49 * HOUR_S).to_string()];
        assert_eq!((&last["w"], &last["limit_w"]), (&Value::Null, &json!(900)), "two of six");
    }

    #[test]
    fn an_hour_has_the_limits_of_the_budget_that_held_in_it() {
        let at = Timestamp::from_s;
        let series = PowerSeries::parse("at_s,kw\n0,1\n1800,3", at(0)).unwrap();
        let power = Budget { power_series: Some(series), ..Budget::default() };
        let hours = shown(power, 48 * HOUR_S + 1);
        assert_eq!((&hours["first"], &hours["last"]), (&json!(3), &json!(50)));
        // The budget did not hold for all of hour 48.
        let limits = hours["limits"].as_object().unwrap();
        assert_eq!(limits.keys().collect::<Vec<_>>(), ["49", "50"]);
        assert_eq!(limits["49"], json!({ "power_wh": 2_000, "even_wh": null }));
        let energy = Budget { energy_mj: Some(Energy::from_j(1_000)), ..Budget::default() };
        let hours = shown(energy, 50 * HOUR_S);
        assert_eq!(hours["limits"], json!({ "50": { "power_wh": null, "even_wh": 500 } }));
        assert_eq!(
            shown(Budget::default(), 0)["limits"]["50"],
            json!({ "power_wh": null, "even_wh": null })
        );
    }
}
