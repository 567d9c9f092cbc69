//! Tests of the fallback chain.
#![allow(
    clippy::float_cmp,
    clippy::unwrap_used,
    reason = "exact figures are meant; a test fails by panicking"
)]

use proptest::prelude::*;

use super::*;

const HOUR: Duration = Duration::from_secs(3_600);

fn at(hours: u64) -> Timestamp {
    Timestamp::from_s(hours * 3_600)
}

fn series(from: u64, values: &[(f64, Origin)]) -> SignalSeries {
    let intervals = values.iter().zip(from..).map(|((value, origin), hour)| Interval {
        from: at(hour),
        until: at(hour + 1),
        value: *value,
        origin: *origin,
    });
    SignalSeries { intervals: intervals.collect(), ..SignalSeries::default() }
}

fn config(is_constant: bool) -> ChainConfig {
    ChainConfig {
        provider: "test DE".to_owned(),
        accounting: Some(Accounting::Average),
        fallback: 380.0,
        is_constant,
        alarm_after: HOUR,
    }
}

#[test]
fn a_read_without_a_forecast_keeps_the_one_before_it() {
    use Origin::{Forecast, Measured};
    let forecast = [(500.0, Measured), (500.0, Forecast), (100.0, Forecast), (90.0, Forecast)];
    // The last value holds by assumption for two hours: until the forecast of an earlier read begins.
    let mut last = series(100, &[(480.0, Measured)]);
    last.intervals[0].until = at(102);
    last.is_end_assumed = true;
    let values = |chain: &Chain| [100, 101, 102, 103, 104].map(|hour| chain.value(at(hour)));
    let mut chain = Chain::new(config(false), Vec::new(), None, at(100));
    chain.read(at(100), Ok(series(100, &forecast)));
    chain.read(at(100), Ok(last.clone()));
    assert_eq!(values(&chain), [480.0, 500.0, 100.0, 90.0, 380.0]);

    // The value of the past hour, held beyond its end, gives way from the next step of the forecast on.
    chain.read(at(101), Ok(last.clone()));
    assert_eq!(values(&chain), [480.0, 480.0, 100.0, 90.0, 380.0]);

    // An end that the provider states replaces the forecast.
    last.is_end_assumed = false;
    last.intervals[0].until = at(104);
    chain.read(at(101), Ok(last));
    assert_eq!(values(&chain), [480.0, 480.0, 480.0, 480.0, 380.0]);
}

#[test]
fn live_then_last_known_then_static() {
    let mut chain = Chain::new(config(false), Vec::new(), None, at(100));
    assert_eq!((chain.status().in_use, chain.value(at(100))), (InUse::Static, 380.0));
    use Origin::{Forecast, Measured};
    chain.read(at(100), Ok(series(100, &[(200.0, Measured), (150.0, Forecast), (90.0, Forecast)])));
    assert_eq!((chain.status().in_use, chain.value(at(100))), (InUse::Live, 200.0));
    assert_eq!(chain.changes_after(at(100)), at(101));

    chain.read(at(101), Err("does not answer".to_owned()));
    let status = chain.status();
    assert_eq!(
        (status.in_use, status.origin, chain.value(at(101))),
        (InUse::LastKnown, Forecast, 150.0)
    );
    assert_eq!(status.error.as_deref(), Some("does not answer"));
    assert_eq!(chain.alarm(at(101)), None, "not yet");
    let alarm = chain.alarm(at(102)).unwrap();
    assert_eq!(alarm, "test DE: the last known values are in use for 60 min: does not answer");
    assert_eq!(chain.alarm(at(102)), None, "once");

    assert!(chain.look(at(103)), "the forecast has ended");
    assert_eq!((chain.status().in_use, chain.value(at(103))), (InUse::Static, 380.0));
    assert_eq!(chain.status().since_us, at(103));

    chain.read(at(104), Ok(series(104, &[(120.0, Measured)])));
    assert_eq!((chain.status().in_use, chain.alarm(at(104))), (InUse::Live, None));
    let steps = chain.steps();
    let shown: Vec<_> =
        steps.iter().map(|step| (step.from.as_us() / 3_600_000_000, step.value)).collect();
    assert_eq!(
        shown,
        [(100, 200.0), (101, 150.0), (102, 90.0), (103, 380.0), (104, 120.0), (105, 380.0)]
    );
    assert_eq!(steps.last().unwrap().origin, Origin::Static);
}

#[test]
fn values_of_a_read_count_for_a_day() {
    let mut chain = Chain::new(config(false), Vec::new(), None, at(0));
    let values = vec![(50.0, Origin::Forecast); 72];
    chain.read(at(0), Ok(series(0, &values)));
    chain.read(at(20), Err("down".to_owned()));
    assert_eq!(chain.status().valid_until_us, Some(at(24)));
    assert!(chain.look(at(24)));
    assert_eq!(chain.status().in_use, InUse::Static);
    assert_eq!(chain.steps().last().unwrap().from, at(24));
}

#[test]
fn a_constant_source_is_no_fallback() {
    let mut chain = Chain::new(config(true), Vec::new(), None, at(5));
    chain.look(at(9));
    assert!(!chain.status().is_fallback());
    assert_eq!((chain.value(at(9)), chain.alarm(at(90))), (380.0, None));
    assert_eq!(
        chain.steps(),
        [Step { from: Timestamp::EPOCH, value: 380.0, origin: Origin::Static }]
    );
}

#[test]
fn a_new_process_continues_with_the_known_values() {
    let known = series(0, &[(50.0, Origin::Forecast); 30]).intervals;
    let chain = Chain::new(config(false), known.clone(), Some(at(1)), at(3));
    assert_eq!(chain.value(at(3)), 50.0);
    // Without the time of the read nothing is known to be valid.
    assert_eq!(Chain::new(config(false), known, None, at(3)).value(at(3)), 380.0);
}

proptest! {
    /// The steps ascend, begin at or before now, and have the value in use at every later look.
    #[test]
    fn steps_agree_with_the_value(
        reads in prop::collection::vec((0u64..60, prop::option::of(prop::collection::vec(0u32..900, 1..40))), 1..8),
        later in 0u64..80,
    ) {
        let mut now = 1_000;
        let mut chain = Chain::new(config(false), Vec::new(), None, at(now));
        for (ahead, values) in reads {
            now += ahead;
            let result = values.map(|values| {
                let values: Vec<_> = values.iter().map(|v| (f64::from(*v), Origin::Forecast)).collect();
                series(now - 2, &values)
            });
            chain.read(at(now), result.ok_or_else(|| "down".to_owned()));
        }
        let steps = chain.steps();
        prop_assert!(steps.windows(2).all(|pair| pair[0].from < pair[1].from));
        prop_assert!(steps[0].from <= at(now));
        let then = at(now + later);
        let here = steps.iter().rev().find(|step| step.from <= then).unwrap();
        prop_assert_eq!(here.value, chain.value(then));
        prop_assert!(chain.changes_after(then) > then);
    }
}
