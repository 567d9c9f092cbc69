//! What was saved against the site's former scheduler: today, in the last week, in the last month and since the twin
//! began.

use std::time::Duration;

use serde_json::{Map, Value, json};
use wattle_common::messages::TwinAbsence;
use wattle_view::saved::{Saved, SavedBy, SavedRates, SavedRow};

use super::{rounded, seconds, significant};
use crate::model::tally::day_of;
use crate::model::{Model, Now};
use crate::topic::Period;

/// Days of the chart.
const DAYS: u64 = 30;
/// Most users and projects.
const OWNERS_MAX: usize = 50;

/// The figures of a row; energies in Wh, shares of one.
pub(super) fn shown(row: &SavedRow) -> Value {
    let has_energy = row.energy_kwh_before > 0.0;
    let share = |kwh: f64| has_energy.then(|| rounded(kwh / row.energy_kwh_before, 4));
    let parts: Vec<Value> = row
        .parts()
        .into_iter()
        .map(|(name, kwh)| json!({ "name": name, "wh": significant(1e3 * kwh) }))
        .collect();
    json!({
        "name": row.name,
        "jobs": row.jobs,
        "compared": row.jobs_compared,
        "saved_wh": has_energy.then(|| significant(1e3 * row.saved_kwh)),
        "before_wh": has_energy.then(|| significant(1e3 * row.energy_kwh_before)),
        "share": share(row.saved_kwh),
        "share_low": share(row.saved_kwh_low),
        "share_high": share(row.saved_kwh_high),
        "later": row.later.map(|share| rounded(share, 4)),
        "later_text": (row.jobs > 0).then(|| row.later_text()),
        "completion_s": row.completion_s_mean.map(|mean| rounded(mean, 0)),
        "completion_s_before": row.completion_s_mean_before.map(|mean| rounded(mean, 0)),
        "wait_s": row.wait_s_mean.map(|mean| rounded(mean, 0)),
        "wait_s_before": row.wait_s_mean_before.map(|mean| rounded(mean, 0)),
        "parts": parts,
        "awake": row.awake_text(),
        "carbon_g": row.carbon_kg.map(|kg| significant(1e3 * kg)),
        "cost": row.cost.map(significant),
    })
}

/// The figures of the last `days` days.
fn last(model: &Model, by: SavedBy, days: u64, now: Now) -> Option<Saved> {
    let rates = model.rates();
    let rates = SavedRates { intensity: rates.intensity, prices: rates.prices };
    let span = Duration::from_hours(24 * days);
    let status = Saved::of_last(model.twin.clone()?, span, now.at);
    Some(Saved::new(&status, by, rates))
}

/// The saving of today, for the overview.
pub(super) fn today(model: &Model, now: Now) -> Option<SavedRow> {
    Some(last(model, SavedBy::Day, 1, now)?.total)
}

/// A time without a placer: its ends, in seconds.
fn absence(of: &TwinAbsence) -> [Value; 2] {
    [seconds(of.from_us), seconds(of.until_us)].map(Into::into)
}

/// The content of the page.
pub(super) fn content(model: &Model, now: Now) -> Value {
    let Some(twin) = &model.twin else { return json!({}) };
    let of =
        |by, days| last(model, by, days, now).unwrap_or_else(|| unreachable!("a twin is known"));
    let periods: Map<String, Value> = Period::ALL
        .into_iter()
        .map(|period| (period.name().to_owned(), shown(&of(SavedBy::Day, period.days()).total)))
        .collect();
    let rows = of(SavedBy::Day, DAYS).rows;
    let today = day_of(now.at);
    let day = |day: u64| {
        let row = rows.iter().find(|row| row.day == Some(day));
        (day.to_string(), row.map_or_else(|| json!({}), shown))
    };
    let days: Map<String, Value> = ((today + 1).saturating_sub(DAYS)..=today).map(day).collect();
    let owners = |by| {
        let mut rows = of(by, DAYS).rows;
        rows.retain(|row| !row.is_nodes);
        rows.sort_by(|a, b| b.saved_kwh.total_cmp(&a.saved_kwh));
        rows.iter().take(OWNERS_MAX).map(shown).collect::<Vec<_>>()
    };
    json!({
        "verdict": of(SavedBy::Day, DAYS).verdict(),
        "baseline": twin.baseline.name(),
        "since_s": seconds(twin.since_us),
        "until_s": seconds(twin.at_us),
        "periods": periods,
        "days": days,
        "users": owners(SavedBy::User),
        "projects": owners(SavedBy::Project),
        "currency": model.rates().prices.map(|prices| prices.currency.clone()),
        "absences": twin.absences.iter().map(absence).collect::<Vec<_>>(),
        "replayed_s": twin.replayed_at_us.map(seconds),
    })
}

#[cfg(test)]
mod tests {
    use wattle_common::aim::Baseline;
    use wattle_common::messages::{TwinRow, TwinStatus, TwinSums};
    use wattle_common::{Timestamp, codec};

    use super::*;
    use crate::model::tests::now;

    #[test]
    fn periods_are_of_the_twin() {
        const DAY_S: u64 = 86_400;
        let row = |day: u64, user: &str, saved: f64| TwinRow {
            day,
            user: Some(user.to_owned()),
            project: None,
            sums: TwinSums {
                jobs: 1,
                completion_s: 110.0,
                completion_s_twin: 100.0,
                compared: 1,
                gpu_j: 3.6e6 * (1.0 - saved),
                gpu_j_twin: 3.6e6,
                ..TwinSums::default()
            },
        };
        let status = TwinStatus {
            at_us: Timestamp::from_s(100 * DAY_S + 60),
            since_us: Timestamp::from_s(50 * DAY_S),
            baseline: Baseline::Backfill,
            waiting: 0,
            running: 0,
            rows: vec![row(50, "eve", 0.9), row(97, "ada", 0.5), row(100, "bob", 0.1)],
            ahead: Vec::new(),
            corrected_late: 0,
            absences: vec![TwinAbsence {
                from_us: Timestamp::from_s(60),
                until_us: Timestamp::from_s(960),
            }],
            replayed_at_us: Some(Timestamp::from_s(99 * DAY_S)),
        };
        let mut model = Model::new("test");
        assert_eq!(content(&model, now(100 * DAY_S + 60)), json!({}));
        model.budget("twin", Some(&codec::encode_json(&status)));
        let page = content(&model, now(100 * DAY_S + 60));
        let saved = |period: &str| page["periods"][period]["saved_wh"].as_f64().unwrap();
        let saved = [saved("day"), saved("week"), saved("month")].map(|wh| wh.round() as u64);
        assert_eq!(saved, [100, 600, 600]);
        assert_eq!(page["days"].as_object().unwrap().len(), 30);
        assert_eq!(page["users"][0]["name"], "ada");
        assert_eq!(page["absences"], json!([[60, 960]]));
        assert_eq!(page["replayed_s"], 99 * DAY_S);
        assert_eq!(page["periods"]["week"]["later_text"], "10.0 % (10 s) later");
        let verdict = page["verdict"].as_str().unwrap();
        assert!(verdict.starts_with("saved: 600 Wh of 2.00 kWh (30.0 %"), "{verdict}");
    }
}
