//! The budget, its burn-down and the forecast of the window's end.

use serde_json::{Map, Value, json};
use wattle_common::messages::SignalStatus;
use wattle_common::verdict::aim_breached;
use wattle_common::{Budget, Energy, FeederId, NodeId, Power, Timestamp};
use wattle_view::aim::nothing_to_save;
use wattle_view::budget::Allowance;
use wattle_view::feeders::{Row, drawn, rows};
use wattle_view::{event, power_margin, what_if};

use super::{rounded, seconds, watt_hours, watts};
use crate::model::tally::day_of;
use crate::model::{Model, Now};

/// Share above the budget that counts as on course: the reserve of the price controller.
const TOLERANCE: f64 = 0.01;
/// Most points of the curve.
const POINTS_MAX: usize = 288;

/// Spending of the window that is limited, and where it leads.
#[derive(Clone, Debug)]
pub(super) struct Course {
    /// Spent share of the budget.
    spent: f64,
    /// Expected share at the end of the window; absent: the power or the carbon intensity is not known.
    expected: Option<f64>,
    /// `energy` or `carbon`, whichever is closer to its limit.
    of: &'static str,
    /// Passed share of the window.
    passed: f64,
    /// End of the window.
    until: Timestamp,
    /// The GPUs without a meter in the window, whose energy is not counted; absent: none.
    missing: Option<String>,
}

impl Course {
    /// Whether the expected spending exceeds the budget.
    pub(super) fn is_over(&self) -> bool {
        self.expected.is_some_and(|expected| expected > 1.0 + TOLERANCE)
    }

    /// `budget on course`, `budget 12 % over at its end`.
    pub(super) fn words(&self) -> String {
        let of = self.of;
        if self.spent > 1.0 {
            return format!("{of} budget exceeded by {:.0} %", 100.0 * (self.spent - 1.0));
        }
        match self.expected {
            None => format!("{:.0} % of the {of} budget spent, no forecast", 100.0 * self.spent),
            Some(expected) if self.is_over() => {
                format!("{of} budget {:.0} % over at its end", 100.0 * (expected - 1.0))
            }
            Some(_) => format!("{of} budget on course"),
        }
    }

    pub(super) fn shown(&self) -> Value {
        json!({
            "spent": rounded(self.spent, 3), "expected": self.expected.map(|expected| rounded(expected, 3)), "of": self.of,
            "passed": rounded(self.passed, 3), "until_s": seconds(self.until),
            "words": self.words(), "over": self.is_over(), "missing": self.missing,
        })
    }
}

/// The expected power: that of the placer, else the measured one.
fn expected_power(model: &Model) -> Option<Power> {
    let expected = model.status.as_ref().map(|status| status.power_mw_expected);
    expected.filter(|power| *power > Power::ZERO).or_else(|| model.power())
}

/// The course of the budget; `None` without a limited window.
pub(super) fn course(model: &Model, now: Now) -> Option<Course> {
    let budget = &model.budget.as_ref()?.budget;
    let status = model.status.as_ref().filter(|_| budget.has_window())?;
    let (from, until) = (status.window_from_us, status.window_until_us);
    let left = until.since(now.at);
    let window = until.since(from).as_secs_f64().max(1.0);
    let more = expected_power(model).map(|power| power.over(left));
    let energy = budget.energy_mj.map(|limit| {
        let expected = more.map(|more| (status.energy_mj + more).ratio(limit));
        ("energy", status.energy_mj.ratio(limit), expected)
    });
    let carbon = budget.carbon_ug.zip(status.carbon_ug).map(|(limit, spent)| {
        let more = more.zip(status.intensity_mg_per_kwh).map(|(more, mean)| more.carbon(mean));
        let expected = more.map(|more| (spent + more).as_g() / limit.as_g());
        ("carbon", spent.as_g() / limit.as_g(), expected)
    });
    let both = [energy, carbon].into_iter().flatten();
    // Without a forecast the spent share decides which of both is closer to its limit.
    let share = |(_, spent, expected): &(&str, f64, Option<f64>)| expected.unwrap_or(*spent);
    let (of, spent, expected) = both.max_by(|a, b| share(a).total_cmp(&share(b)))?;
    let passed = now.at.since(from).as_secs_f64() / window;
    let missing = model.tally.missing_gpus(day_of(from));
    Some(Course { spent, expected, of, passed: passed.min(1.0), until, missing })
}

/// The curve of spending in the window: seconds and watt-hours.
fn burned(model: &Model, from: Timestamp, spent: Energy) -> Map<String, Value> {
    let points = model.tally.burned(from);
    // The first interval may begin before the window, so the curve ends at what the placer counts.
    let last = points.last().map_or(Energy::ZERO, |(_, sum)| *sum);
    let surplus = last.saturating_sub(spent);
    let step = points.len().div_ceil(POINTS_MAX).max(1);
    let chosen = points.iter().rev().step_by(step);
    chosen
        .map(|(at, sum)| (seconds(*at).to_string(), watt_hours(sum.saturating_sub(surplus))))
        .collect()
}

/// The sources of carbon intensity and electricity price; absent: no provider is configured.
pub(super) fn grid(model: &Model, now: Now) -> Option<Value> {
    let grid = model.grid.as_ref()?;
    let signal = |signal: &SignalStatus| {
        json!({
            "source": signal.source(), "in_use": signal.in_use.name(), "origin": signal.origin.name(),
            "fallback": signal.is_fallback(), "since_s": seconds(signal.since_us),
            "read_s": signal.read_at_us.map(seconds), "error": signal.error,
        })
    };
    let price = grid.prices.as_ref().and_then(|prices| Some((prices, prices.at(now.at)?)));
    Some(json!({
        "carbon": grid.carbon.as_ref().map(signal),
        "price": grid.price.as_ref().map(signal),
        "per_kwh": price.map(|(_, price)| rounded(price, 4)),
        "currency": price.map(|(prices, _)| prices.currency.clone()),
    }))
}

/// The feeders as a tree; absent: there are none, or their power is not known yet.
pub(super) fn feeders(model: &Model) -> Option<Vec<Value>> {
    let reading = |id: &NodeId| drawn(model.nodes.get(id), model.summaries.get(id));
    let row = |row: Row| {
        json!({
            "key": row.feeder.as_str(),
            "depth": row.depth,
            "limit_w": watts(row.limit_mw),
            "measured_w": row.measured_mw.map(watts),
            "is_partial": row.is_partial.then_some(true),
            "expected_w": watts(row.expected_mw),
            "worst_w": watts(row.worst_mw),
            "lost": row.lost.as_ref().map(FeederId::as_str),
            "nodes": row.nodes,
            "fault": row.fault(),
        })
    };
    let rows = rows(model.feeders.as_ref()?, reading);
    Some(rows.into_iter().map(row).collect())
}

/// What a budget that a person enters would allow, against the present draw.
#[must_use]
pub fn allowance(budget: &Budget, model: &Model, now: Now) -> Value {
    let intensity = model.budget.as_ref().and_then(|set| set.intensity.as_ref());
    let status = model.status.as_ref();
    let allows = Allowance::of(budget, intensity, status, now.at);
    let drawn = model.drawn();
    json!({
        "mean_w": allows.mean.map(watts),
        "limit_w": allows.limit.map(watts),
        "below_idle": allows.below_idle,
        "lacks_intensity": allows.lacks_intensity,
        "window_s": budget.has_window().then(|| budget.window().as_secs()),
        "idle_w": status.and_then(|status| status.power_mw_baseline).map(watts),
        "now_w": drawn.known().map(watts),
        "is_partial": !drawn.is_complete,
    })
}

/// What the present jobs would use and when they would complete at other settings; absent: not known.
fn trade(model: &Model, now: Now) -> Option<Value> {
    let trade = what_if::current(model.what_if.as_ref(), now.at)?;
    let percent = |share: f64| rounded(100.0 * share, 1);
    let points = trade.points.iter().map(|point| [percent(point.later), percent(point.saved)]);
    Some(json!({
        "jobs": what_if::jobs(trade),
        "words": what_if::sentence(trade),
        "of_plan": what_if::of_plan(trade),
        "planned": [percent(trade.planned.later), percent(trade.planned.saved)],
        "points": points.collect::<Vec<_>>(),
    }))
}

/// The content of the page.
pub(super) fn content(model: &Model, now: Now) -> Value {
    let set = model.budget.as_ref().filter(|set| !set.budget.is_none());
    let budget = set.map(|set| &set.budget);
    let status = model.status.as_ref();
    let margin = status.and_then(|status| status.power_margin.as_ref());
    let margin = margin.or_else(|| model.feeders.as_ref()?.power_margin.as_ref());
    let window = status.filter(|_| budget.is_some_and(Budget::has_window)).map(|status| {
        json!({
            "from_s": seconds(status.window_from_us),
            "until_s": seconds(status.window_until_us),
            "energy_wh": watt_hours(status.energy_mj),
            "missing": model.tally.missing_gpus(day_of(status.window_from_us)),
            "carbon_g": status.carbon_ug.map(super::grams),
            "overrun_previous": status.overrun_previous.map(|share| rounded(share, 4)),
            "burned": burned(model, status.window_from_us, status.energy_mj),
        })
    });
    let aim = model.aim.as_ref().filter(|_| window.is_none()).map(|aim| {
        json!({
            "bound": aim.bound().to_string(),
            "max_slowdown": aim.max_slowdown,
            "slowdown": aim.slowdown().map(|share| rounded(share, 4)),
            "price": rounded(aim.price, 3),
            "latest_project": aim.latest_project().map(|(project, slowdown)| {
                json!({ "project": project, "slowdown": rounded(slowdown, 4) })
            }),
            "nothing_to_save": nothing_to_save(aim),
            "breached": aim_breached(aim, model.twin.as_ref(), now.at).is_some(),
        })
    });
    json!({
        "limits": budget.map(|budget| json!({
            "energy_wh": budget.energy_mj.map(watt_hours),
            "carbon_g": budget.carbon_ug.map(super::grams),
            "power_w": budget.power_at(now.at).map(watts),
            "power_next": budget.power_series.as_ref().map(|series| {
                let at = series.changes_after(now.at);
                json!({ "w": budget.power_at(at).map(watts), "at_s": seconds(at) })
            }),
            "window_s": budget.window().as_secs(),
            "since_s": set.map(|set| seconds(set.since_us)),
        })),
        "window": window,
        "course": course(model, now).map(|course| course.shown()),
        "price": status.map(|status| rounded(status.price, 3)),
        "power": {
            "now_w": model.power().map(watts),
            "is_partial": !model.drawn().is_complete,
            "expected_w": status.map(|status| watts(status.power_mw_expected)),
            "baseline_w": status.and_then(|status| status.power_mw_baseline).map(watts),
            "limit_cost": status
                .and_then(|status| status.limit_cost)
                .zip(budget.and_then(|budget| budget.power_at(now.at)))
                .map(|(cost, limit)| cost.sentence(limit)),
            "event": model.events.as_ref().and_then(|events| event::in_force(events, None, now.at)),
            "margin": margin.and_then(power_margin::correction),
            "unused": margin.and_then(power_margin::unused),
            "budget_mean_w": status.and_then(|status| status.power_mw_budget_mean).map(watts),
        },
        "feeders": feeders(model),
        "aim": aim,
        "what_if": trade(model, now),
        "intensity_g_per_kwh": intensity(model, now.at),
        "grid": grid(model, now),
        "series": model.budget.as_ref().and_then(|set| set.intensity.as_ref()).map(|s| s.name.clone()),
    })
}

/// Carbon intensity now.
pub(super) fn intensity(model: &Model, at: Timestamp) -> Option<Value> {
    let series = model.budget.as_ref()?.intensity.as_ref()?;
    let now = wattle_view::intensity::intensity_at(series, at)?;
    Some(rounded(now.as_g_per_kwh(), 0))
}

#[cfg(test)]
mod tests {
    use wattle_common::messages::{
        AimStatus, BudgetRecord, BudgetStatus, LimitCost, TradeOff, WhatIf,
    };
    use wattle_common::{Budget, Carbon};

    use super::*;
    use crate::model::tests::{budget_status, example, now};

    #[test]
    fn course_extrapolates_the_expected_power() {
        let mut model = example();
        let budget = Budget { energy_mj: Some(Energy::from_j(1_000)), ..Budget::default() };
        let at = Timestamp::from_s;
        model.budget =
            Some(BudgetRecord { generation: 1, budget, since_us: at(0), intensity: None });
        let mut status = BudgetStatus {
            window_until_us: at(200),
            energy_mj: Energy::from_j(400),
            power_mw_expected: Power::from_w(4),
            ..budget_status()
        };
        model.status = Some(status.clone());
        let course = course(&model, now(100)).unwrap();
        assert_eq!((course.words().as_str(), course.is_over()), ("energy budget on course", false));
        let expected = course.expected.unwrap();
        assert!((expected - 0.8).abs() < 1e-9 && (course.passed - 0.5).abs() < 1e-9);
        status.power_mw_expected = Power::from_w(8);
        model.status = Some(status);
        let course = super::course(&model, now(100)).unwrap();
        assert_eq!(course.words(), "energy budget 20 % over at its end");
        // Neither the placer nor a reading states a power, and the intensity is not known.
        let status = model.status.as_mut().unwrap();
        status.power_mw_expected = Power::ZERO;
        status.carbon_ug = Some(Carbon::from_ug(1_000_000));
        model.summaries.clear();
        let unknown = super::course(&model, now(100)).unwrap();
        assert_eq!(unknown.words(), "40 % of the energy budget spent, no forecast");
        assert_eq!((unknown.is_over(), &unknown.shown()["expected"]), (false, &Value::Null));
        let carbon_ug = Some(Carbon::from_ug(2_000_000));
        model.budget.as_mut().unwrap().budget = Budget { carbon_ug, ..Budget::default() };
        model.status.as_mut().unwrap().power_mw_expected = Power::from_w(8);
        let unknown = super::course(&model, now(100)).unwrap();
        assert_eq!(unknown.words(), "50 % of the carbon budget spent, no forecast");
    }

    #[test]
    fn the_trade_of_energy_for_time_is_that_of_the_command_line() {
        let mut model = example();
        assert_eq!(content(&model, now(100))["what_if"], Value::Null);
        let point = |later, saved| TradeOff { later, saved };
        let trade = WhatIf {
            at_us: Timestamp::from_s(90),
            jobs: 4,
            not_counted: 1,
            completion_s: 900.0,
            energy_mj: Energy::from_j(1_000),
            planned: point(0.012, 0.071),
            points: vec![point(0.0, 0.0), point(0.0301, 0.1204), point(0.2, 0.24)],
        };
        model.what_if = Some(trade.clone());
        let shown = content(&model, now(100))["what_if"].clone();
        assert_eq!(shown["points"], json!([[0, 0], [3, 12], [20, 24]]));
        assert_eq!(
            (&shown["planned"], &shown["jobs"]),
            (&json!([1.2, 7.1]), &json!(what_if::jobs(&trade)))
        );
        assert_eq!(shown["words"], json!(what_if::sentence(&trade)));
        assert_eq!(content(&model, now(9_000))["what_if"], Value::Null, "of jobs of hours ago");
    }

    #[test]
    fn an_entered_budget_is_compared_with_the_present_and_the_idle_draw() {
        let mut model = example();
        let allows = |model: &Model, kwh| {
            let budget = Budget::from_human(Some(kwh), None, None, None).unwrap();
            allowance(&budget, model, now(100))
        };
        let first = allows(&model, 5.0);
        assert_eq!((&first["mean_w"], &first["now_w"]), (&json!(207), &json!(680)));
        assert_eq!((&first["idle_w"], &first["below_idle"]), (&Value::Null, &Value::Null));
        let power_mw_baseline = Some(Power::from_w(450));
        model.status = Some(BudgetStatus { power_mw_baseline, ..budget_status() });
        let low = allows(&model, 5.0);
        let text = low["below_idle"].as_str().unwrap();
        assert!(text.ends_with("the budget allows 0.207 kW on average"), "{text}");
        let enough = allows(&model, 24.0);
        assert_eq!((&enough["mean_w"], &enough["below_idle"]), (&json!(995), &Value::Null));
        model.summaries.clear();
        assert_eq!(allows(&model, 24.0)["now_w"], Value::Null, "an absent reading is no zero");
    }

    #[test]
    fn the_cost_of_the_power_limit_is_stated() {
        let mut model = example();
        let stated = |model: &Model| content(model, now(100))["power"]["limit_cost"].clone();
        let limit_cost = Some(LimitCost { price_s_per_kwh: 9.0, saved_s_per_kw: Some(240.0) });
        model.status = Some(BudgetStatus { limit_cost, ..budget_status() });
        assert_eq!(stated(&model), json!(null), "without a limit");
        let budget = Budget { power_mw: Some(Power::from_w(28_000)), ..Budget::default() };
        let since_us = Timestamp::EPOCH;
        model.budget = Some(BudgetRecord { generation: 1, budget, since_us, intensity: None });
        let text =
            "the power limit binds: 1 kW more would complete jobs about 4 min sooner on average";
        assert_eq!(stated(&model), json!(text));
    }

    #[test]
    fn the_correction_of_power_is_stated_where_it_acts() {
        let mut model = example();
        let stated = |model: &Model| content(model, now(100))["power"]["margin"].clone();
        let mut margin = wattle_testkit::power_margin();
        let status = |margin| Some(BudgetStatus { power_margin: Some(margin), ..budget_status() });
        model.status = status(margin);
        let text = wattle_view::power_margin::correction(&margin).unwrap();
        assert_eq!(stated(&model), json!(text));
        (margin.jobs_below, margin.jobs_above) = (0, 0);
        model.status = status(margin);
        assert_eq!(stated(&model), Value::Null);
    }

    #[test]
    fn feeders_are_shown_with_their_power() {
        let mut model = example();
        assert_eq!(super::content(&model, now(100))["feeders"], Value::Null);
        model.feeders = Some(wattle_testkit::feeders_status());
        let shown = super::content(&model, now(100))["feeders"].clone();
        let keys: Vec<&str> =
            shown.as_array().unwrap().iter().filter_map(|row| row["key"].as_str()).collect();
        assert_eq!(keys, ["board-a", "pdu-a", "board-b", "pdu-b"]);
        let row = &shown[3];
        assert_eq!(
            (&row["depth"], &row["limit_w"], &row["worst_w"]),
            (&json!(1), &json!(900), &json!(950))
        );
        assert_eq!(row["lost"], "board-a");
        assert!(row["fault"].as_str().unwrap().contains("above its limit of 900 W"), "{row}");
        // A node without any reading adds nothing, and the sum is a lower bound.
        model.summaries.clear();
        let silent = super::content(&model, now(100))["feeders"].clone();
        assert_eq!(
            (&silent[3]["measured_w"], &silent[3]["is_partial"]),
            (&Value::Null, &json!(true))
        );
        assert_eq!(silent[0]["measured_w"], 50);
    }

    #[test]
    fn a_breach_of_the_aim_is_stated() {
        let mut model = example();
        let aim = |delay_s| AimStatus {
            at_us: Timestamp::from_s(100),
            baseline: None,
            max_slowdown: 0.05,
            present_s: 1_000.0 + delay_s,
            delay_s,
            price: 0.4,
            policy_price: 1.0,
            max_project_slowdown: None,
            projects: Vec::new(),
        };
        let is_stated = |model: &Model| content(model, now(100))["aim"]["breached"].clone();
        model.aim = Some(aim(50.0));
        assert_eq!(is_stated(&model), json!(false));
        model.aim = Some(aim(112.0));
        assert_eq!(is_stated(&model), json!(true));
    }
}
