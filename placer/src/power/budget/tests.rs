//! The budget controller over days of a cluster with a one-line model.

use proptest::prelude::*;
use wattle_common::{Carbon, Energy};

use super::*;

const DAY_S: u64 = 86_400;

fn energy(kwh: f64) -> Budget {
    Budget::from_human(Some(kwh), None, None, None).unwrap()
}

fn carbon(kg: f64) -> Budget {
    Budget::from_human(None, Some(kg), None, None).unwrap()
}

fn constant(g_per_kwh: f64) -> Grid {
    Grid::new(Series::constant(g_per_kwh).unwrap(), ForecastSource::Persistence, Timestamp::EPOCH)
}

/// Days of a cluster with a demand of `full` watts at price 0 and `1 / e^0.9` of that at the highest price. Jobs
/// start up to `admission_limit`, a tenth of the running ones completes in an hour, and those above
/// `preemption_limit` are paused. Returns the controller and all its outputs.
fn days(
    mut steering: BudgetController,
    n: u64,
    full: impl Fn(u64) -> f64,
) -> (BudgetController, Vec<ControlOutput>) {
    let mut now = Timestamp::EPOCH;
    let mut all = Vec::new();
    let lowest = (-0.9f64).exp();
    // What runs, by what it would draw at no price.
    let mut running: f64 = 0.0;
    let mut orders = steering.steer(now, Power::ZERO);
    while now < Timestamp::from_s(n * DAY_S) {
        let next = orders.again_at;
        running *= 1.0 - 0.1 * next.since(now).as_secs_f64() / 3_600.0;
        let below = orders.admission_limit.map_or(f64::INFINITY, |below| below.as_w() / lowest);
        // Jobs are no fluid: the last bit stays empty.
        running = running.max(full(now.as_us() / 1_000_000).min(0.97 * below));
        let above = orders.preemption_limit.map_or(f64::INFINITY, |above| above.as_w() / lowest);
        running = running.min(above);
        let watts = running * (-0.9 * orders.position).exp();
        steering.spent(now, next, watts * next.since(now).as_secs_f64());
        now = next;
        orders = steering.steer(now, Power::from_w_f64(running * lowest));
        all.push(orders.clone());
    }
    (steering, all)
}

#[test]
fn windows_stay_within_the_budget_and_use_it() {
    // 1 kW at no price is 24 kWh a day; 15 kWh are there.
    let (steering, orders) =
        days(BudgetController::new(energy(15.0), None, Timestamp::EPOCH), 4, |_| 1e3);
    assert_eq!(steering.ledger().closed().len(), 4);
    for window in steering.ledger().closed() {
        assert!(steering.overrun(window) <= 0.01, "{window:?}");
        assert!(window.energy_j > 0.97 * 15.0 * KWH_J, "{window:?}");
    }
    // The price alone is enough: what there is at its min_power is never too much.
    let held = |o: &&ControlOutput| o.admission_limit.is_some_and(|below| below.as_w() < 400.0);
    assert!(orders.iter().filter(held).count() < 30);
    assert!(orders.iter().all(|o| o.carbon_ratio == 1.0 && o.outlook.is_none()));
}

#[test]
fn where_the_price_is_not_enough_nothing_new_starts() {
    // At the min_power 0.41 kW are drawn, of which 8 kWh a day last for two thirds.
    let (steering, orders) =
        days(BudgetController::new(energy(8.0), None, Timestamp::EPOCH), 3, |_| 1e3);
    for window in steering.ledger().closed() {
        assert!(steering.overrun(window) <= 0.01, "{window:?}");
    }
    let below = |o: &ControlOutput| o.admission_limit.map_or(f64::INFINITY, Power::as_w);
    assert!(orders.iter().all(|o| below(o) < 340.0), "no more than 8 kWh a day feed");
    // What may start does, and is then as fast as the budget lets it be.
    let used = steering.ledger().closed().iter().map(|window| window.energy_j / KWH_J);
    assert!(used.clone().all(|kwh| kwh > 7.0), "{:?}", used.collect::<Vec<_>>());
}

#[test]
fn a_carbon_budget_lasts_through_dirty_evenings() {
    let day = |i: u64| if i % 24 < 16 { 150.0 } else { 400.0 };
    let steps = (0..24).map(|i| (i * 3_600_000_000, day(i))).collect();
    let series = Series::new(Timestamp::EPOCH, steps, DAY_S * 1_000_000).unwrap();
    for forecast in [
        ForecastSource::Perfect,
        ForecastSource::Persistence,
        ForecastSource::DayAhead(series.clone()),
    ] {
        let grid = Grid::new(series.clone(), forecast.clone(), Timestamp::EPOCH);
        // 24 kWh at a mean of 233 g are 5.6 kg.
        let steering = BudgetController::new(carbon(4.0), Some(grid), Timestamp::EPOCH);
        let (steering, orders) = days(steering, 5, |_| 1e3);
        for window in steering.ledger().closed() {
            assert!(steering.overrun(window) <= 0.01, "{forecast:?} {window:?}");
            assert!(window.carbon_g > 0.9 * 4_000.0, "{forecast:?} {window:?}");
        }
        // On the first day persistence has not seen an evening yet, and work is paused in it; after
        // that the forecast no longer differs.
        let paused = orders.iter().rposition(|o| o.preemption_limit.is_some());
        let last = paused.map(|i| orders[i].again_at);
        let is_surprised = forecast == ForecastSource::Persistence;
        assert_eq!(last.is_some(), is_surprised, "{forecast:?}");
        assert!(last.is_none_or(|at| at <= Timestamp::from_s(DAY_S)), "{forecast:?} {last:?}");
        let dirty = orders.iter().map(|o| o.carbon_ratio).fold(0.0, f64::max);
        assert!(dirty > 1.5, "{dirty}");
    }
}

#[test]
fn a_restored_controller_continues() {
    let steering = BudgetController::new(energy(15.0), None, Timestamp::EPOCH);
    let (mut steering, _) = days(steering, 1, |_| 1e3);
    let now = Timestamp::from_s(DAY_S + 3_600);
    steering.spent(Timestamp::from_s(DAY_S), now, 2e6);
    let before = steering.steer(now, Power::ZERO);
    let (open, position) = (*steering.ledger().open(), steering.position());
    let mut resumed = BudgetController::resumed(energy(15.0), None, open, position, now);
    assert_eq!(resumed.allowed_w(now), steering.allowed_w(now));
    assert!((resumed.steer(now, Power::ZERO).position - before.position).abs() <= 0.02);
}

#[test]
fn without_limits_over_a_window_there_is_no_price() {
    let power = Budget::from_human(None, None, Some(5.0), None).unwrap();
    let (_, orders) =
        days(BudgetController::new(power, Some(constant(100.0)), Timestamp::EPOCH), 1, |_| 1e3);
    assert!(orders.iter().all(|o| o.position == 0.0 && o.admission_limit.is_none()));
}

#[test]
fn work_is_paused_where_the_rest_of_the_budget_does_not_feed_it() {
    // Predicted powers are a third too high, as an upper bound may be: the power draw counts.
    let mut steering = BudgetController::new(energy(24.0), None, Timestamp::EPOCH);
    let half = Timestamp::from_s(DAY_S / 2);
    steering.steer(Timestamp::EPOCH, Power::ZERO);
    steering.spent(Timestamp::EPOCH, half, 15.0 * KWH_J);
    let orders = steering.steer(half, Power::from_w(1_500));
    // 9 kWh feed 750 W for half a day, and the power draw is 1,250 W: six tenths continue.
    assert_eq!(orders.position, 1.0);
    assert_eq!(orders.preemption_limit, Some(Power::from_w(900)));
    assert!(orders.admission_limit.unwrap() < Power::from_w(750));
    // Jobs that the rest of the budget feeds continue. A small excess has a quarter of an hour to settle.
    assert_eq!(steering.steer(half, Power::from_w(740)).preemption_limit, None);
    assert_eq!(steering.steer(half, Power::from_w(800)).preemption_limit, None);
    let soon = Timestamp::from_s(DAY_S / 2 + 901);
    steering.spent(half, soon, 0.8 * 901.0 / 3_600.0 * KWH_J);
    let above = steering.steer(soon, Power::from_w(800)).preemption_limit.unwrap();
    assert!(above < Power::from_w(750), "{above}");
    // So does everything in the last minutes.
    let half = soon;
    let late = Timestamp::from_s(DAY_S - 200);
    steering.spent(half, late, 9.1 * KWH_J);
    assert_eq!(steering.steer(late, Power::from_w(1_500)).preemption_limit, None);
}

proptest! {
    /// However much dirtier than expected a day turns out: no window is overrun by more than reserved_power,
    /// where what runs can be paused.
    #[test]
    fn a_wrong_forecast_overruns_nothing(
        kg in 2.0f64..8.0, hours in prop::collection::vec(60.0f64..900.0, 24..96),
        swing in 0.0f64..0.9, period_s in 600.0f64..200_000.0,
    ) {
        let period_us = hours.len() as u64 * 3_600_000_000;
        let steps = hours.iter().enumerate().map(|(i, g)| (i as u64 * 3_600_000_000, *g)).collect();
        let series = Series::new(Timestamp::EPOCH, steps, period_us).unwrap();
        let grid = Grid::new(series, ForecastSource::Persistence, Timestamp::EPOCH);
        let full = |s: u64| 1e3 * (1.0 + swing * (s as f64 / period_s).sin());
        let steering = BudgetController::new(carbon(kg), Some(grid), Timestamp::EPOCH);
        let (steering, _) = days(steering, 4, full);
        for window in steering.ledger().closed() {
            prop_assert!(steering.overrun(window) <= 0.01, "{:?}", window);
        }
    }

    /// A carbon budget at one intensity is the energy budget that emits as much: the very orders.
    #[test]
    fn constant_intensity_makes_carbon_energy(
        fifths in 20u64..150, g_per_kwh in 1u64..1_000, swing in 0.0f64..0.9,
    ) {
        let full = |s: u64| 1e3 * (1.0 + swing * (s as f64 / 9_000.0).sin());
        // No odd tenths of a kilowatt-hour: some of them are half a milliwatt in the mean, which two
        // computations may round either way.
        let (g, tenths) = (g_per_kwh as f64, 2 * fifths);
        let joules = Energy::from_mj(tenths * 360_000_000);
        let energy = Budget { energy_mj: Some(joules), ..Budget::default() };
        let grams = Carbon::from_ug(tenths * g_per_kwh * 100_000);
        let carbon = Budget { carbon_ug: Some(grams), ..Budget::default() };
        let (_, by_energy) = days(BudgetController::new(energy, None, Timestamp::EPOCH), 2, full);
        let grid = Some(constant(g));
        let (_, by_carbon) = days(BudgetController::new(carbon, grid, Timestamp::EPOCH), 2, full);
        // The grid's own hours are looked at beside the steps: only common instants are compared.
        let by_carbon: Vec<_> = by_carbon.iter().map(|o| (o.again_at, o)).collect();
        for ours in &by_energy {
            let theirs = by_carbon.iter().find(|(at, _)| *at == ours.again_at);
            let Some((_, theirs)) = theirs else { continue };
            // Watts are whole milliwatts on the way.
            prop_assert!((ours.position - theirs.position).abs() < 1e-4);
            prop_assert_eq!(theirs.carbon_ratio, 1.0);
        }
    }

    /// However the load swings, no window is overrun by more than reserved_power, where what already runs
    /// does not need more at its min_power.
    #[test]
    fn no_window_is_overrun(
        kwh in 4.0f64..30.0, swing in 0.0f64..0.9, period_s in 600.0f64..200_000.0,
    ) {
        let full = |s: u64| 1e3 * (1.0 + swing * (s as f64 / period_s).sin());
        let (steering, orders) =
            days(BudgetController::new(energy(kwh), None, Timestamp::EPOCH), 3, full);
        for window in steering.ledger().closed() {
            prop_assert!(steering.overrun(window) <= 0.01, "{:?}", window);
        }
        prop_assert!(orders.iter().all(|o| (0.0..=1.0).contains(&o.position)));
    }
}
