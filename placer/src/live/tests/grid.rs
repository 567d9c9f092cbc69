//! Providers of the grid's signals in the simulated cluster: deferral follows the forecast, a silent provider
//! leads to the last known values and then to the constant, and a restart continues.

use std::time::Duration;

use wattle_common::job::{JobPhase, JobSpec};
use wattle_common::messages::{BudgetReply, InUse, Origin, SetBudget};
use wattle_common::{Budget, CarbonIntensity, Timestamp};
use wattle_grid::{GridConfig, Interval, Signal, SignalSeries};

use crate::live::Event;
use crate::live::tests::spec;
use crate::live::tests::world::World;

const CONFIG: &str = "[carbon]\nprovider = \"electricity-maps\"\nzone = \"DE\"\n\
     credential_file = \"/token\"\nfallback_g_per_kwh = 380\nalarm_after_s = 3600\n\
     [price]\nfile = \"/prices.xml\"\nfallback_per_kwh = 0.21\n";

/// A world whose placer has a provider.
fn world() -> World {
    let mut world = World::new(1, 1);
    world.config.grid = toml::from_str::<GridConfig>(CONFIG).unwrap();
    world.bus_outage(100_000);
    world.restart();
    world.pass(5);
    world
}

/// Half hours from `from` on, the first one measured.
fn reading(from: Timestamp, values: &[f64]) -> Box<SignalSeries> {
    let at = |i: usize| from + Duration::from_secs(1_800 * i as u64);
    let intervals = values.iter().enumerate().map(|(i, value)| Interval {
        from: at(i),
        until: at(i + 1),
        value: *value,
        origin: if i == 0 { Origin::Measured } else { Origin::Forecast },
    });
    Box::new(SignalSeries { intervals: intervals.collect(), ..SignalSeries::default() })
}

fn read(world: &mut World, result: Result<Box<SignalSeries>, &str>) {
    world.deliver(Event::GridRead(Signal::Carbon, result.map_err(str::to_owned)));
}

fn source(world: &World) -> (InUse, f64) {
    let status = world.grid.as_ref().and_then(|grid| grid.carbon.as_ref()).unwrap();
    let now = world.budget_status.as_ref().and_then(|status| status.intensity_mg_per_kwh);
    (status.in_use, now.map_or(-1.0, CarbonIntensity::as_g_per_kwh))
}

fn name(world: &World) -> &str {
    &world.budget.as_ref().unwrap().intensity.as_ref().unwrap().name
}

#[test]
fn without_a_read_the_constant_is_in_use_and_named() {
    let world = world();
    assert_eq!(source(&world), (InUse::Static, 380.0));
    assert_eq!(name(&world), "static value, no current value of electricity-maps DE");
    let prices = world.grid.as_ref().unwrap().prices.as_ref().unwrap();
    assert_eq!((prices.currency.as_str(), prices.at(world.now)), ("EUR", Some(0.21)));
}

#[test]
fn jobs_wait_for_the_forecast_of_the_provider() {
    let mut world = world();
    // Clean from the third half hour on.
    let mut values = vec![100.0; 50];
    values[..3].copy_from_slice(&[500.0, 480.0, 450.0]);
    let before = world.grid.as_ref().unwrap().observed_generation;
    let now = world.now;
    read(&mut world, Ok(reading(now, &values)));
    assert_eq!(source(&world), (InUse::Live, 500.0));
    // The new series is a change of the budget, which the source names.
    let named = world.grid.as_ref().unwrap().observed_generation;
    assert_eq!((before, named), (1, world.budget.as_ref().unwrap().generation));
    assert!(named > before);
    assert_eq!(name(&world), "electricity-maps DE, average, measured");
    let patient = JobSpec { slack_ms: Some(14_400_000), ..spec("patient", 1) };
    world.submit(patient);
    world.submit(spec("urgent", 1));
    world.pass(5);
    assert_eq!(world.record("patient").phase, JobPhase::Queued, "high carbon intensity");
    assert_ne!(world.record("urgent").phase, JobPhase::Queued, "no slack");
    world.cancel("urgent");
    world.pass(1_900);
    assert_eq!(source(&world), (InUse::Live, 480.0), "the value follows the forecast");
    assert_eq!(world.record("patient").phase, JobPhase::Queued);
    world.pass(3_600);
    assert_ne!(world.record("patient").phase, JobPhase::Queued, "the carbon intensity has fallen");
}

#[test]
fn a_silent_provider_leads_to_the_constant_with_one_alarm() {
    let mut world = world();
    let now = world.now;
    read(&mut world, Ok(reading(now, &[500.0, 100.0, 90.0, 80.0])));
    world.pass(2_000);
    read(&mut world, Err("https://x does not answer: timeout"));
    assert_eq!(source(&world), (InUse::LastKnown, 100.0));
    assert_eq!(name(&world), "last known values of electricity-maps DE, average, forecast");
    let alarms = |world: &World| {
        let is_alarm = |line: &&String| line.starts_with("alarm electricity-maps DE");
        world.log.iter().filter(is_alarm).cloned().collect::<Vec<_>>()
    };
    assert!(alarms(&world).is_empty());
    world.pass(3_700);
    let expected = "alarm electricity-maps DE: the last known values are in use for 60 min: https://x does not \
                    answer: timeout";
    assert_eq!(alarms(&world), [expected]);
    // The forecast ends: no event is needed.
    world.pass(3_000);
    assert_eq!(source(&world), (InUse::Static, 380.0));
    world.pass(10_000);
    assert_eq!(alarms(&world).len(), 1, "one alarm");
    let now = world.now;
    read(&mut world, Ok(reading(now, &[250.0, 240.0])));
    assert_eq!(source(&world), (InUse::Live, 250.0));
}

#[test]
fn a_restart_continues_with_known_values_and_spending() {
    let mut world = world();
    let now = world.now;
    read(&mut world, Ok(reading(now, &[500.0, 100.0, 90.0, 80.0])));
    let budget = Budget::from_human(None, Some(30.0), None, None).unwrap();
    world.deliver(Event::BudgetSet(
        7,
        Box::new(SetBudget { budget: budget.clone(), intensity: None }),
    ));
    assert!(matches!(world.budget_reply, Some(BudgetReply::Stored { .. })));
    let since = world.budget.as_ref().unwrap().since_us;
    world.pass(2_000);
    world.restart();
    world.pass(5);
    // The new process has not read yet, but the values are those of a successful read.
    assert_eq!(source(&world), (InUse::Live, 100.0));
    let now = world.now;
    read(&mut world, Ok(reading(now, &[70.0])));
    assert_eq!(source(&world), (InUse::Live, 70.0));
    let record = world.budget.as_ref().unwrap();
    assert_eq!((record.since_us, &record.budget), (since, &budget), "the window continues");
    let history = record.intensity.as_ref().unwrap();
    let is_first = |step: &(u64, CarbonIntensity)| step.1 == CarbonIntensity::from_g_per_kwh(500.0);
    assert!(history.steps.iter().any(is_first), "past values are kept: {history:?}");
}

#[test]
fn a_series_of_a_user_is_refused_beside_a_provider() {
    let mut world = world();
    let intensity = world.budget.as_ref().unwrap().intensity.clone();
    let request = SetBudget { budget: Budget::default(), intensity };
    world.deliver(Event::BudgetSet(7, Box::new(request)));
    let Some(BudgetReply::Refused { error }) = &world.budget_reply else { panic!("accepted") };
    assert!(error.contains("electricity-maps DE") && error.contains("[grid.carbon]"), "{error}");
}

#[test]
fn prices_of_the_file_replace_the_constant() {
    let mut world = world();
    let now = world.now;
    let prices = reading(now, &[0.1, -0.02, 0.3]);
    world.deliver(Event::GridRead(Signal::Price, Ok(prices)));
    let prices = world.grid.as_ref().unwrap().prices.clone().unwrap();
    let later = |minutes: u64| prices.at(now + Duration::from_secs(60 * minutes));
    assert_eq!(
        [later(0), later(30), later(60), later(100)],
        [Some(0.1), Some(-0.02), Some(0.3), Some(0.21)]
    );
    let measures = world.placer.measures().grid;
    assert_eq!(measures.per_kwh, Some((0.1, "EUR".to_owned())));
}
