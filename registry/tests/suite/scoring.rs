//! Which windows score which proposals.

use wattle_common::messages::{JobWindow, Surface};
use wattle_common::{Frequency, Timestamp};

use crate::bench::{Bench, at, closed, estimate, on, surface};

#[test]
fn proposal_is_scored_against_later_windows() {
    let mut bench = Bench::new();
    let caps = [(None, 20.0, 180.0), (Some(200), 9.0, 160.0), (Some(100), 8.0, 90.0)];
    bench.propose(1, surface("rival", "a", at(1), &caps));
    // No window yet: a prior. 20 predicted, 10 measured: error 100 %; power is exact.
    bench.close(16, closed("a", at(16), 250));
    let status = bench.status(16, "rival");
    let prior = status.speed.prior.unwrap();
    assert_eq!((prior.windows, status.speed.same_config, status.speed.new_config), (1, None, None));
    assert!((prior.mape_percent - 100.0).abs() < 0.01 && prior.coverage90_percent == 0.0);
    let power = status.power.prior.unwrap();
    assert!(power.mape_percent < 0.01 && power.coverage90_percent > 99.9, "{power:?}");

    // Proposed again two seconds later: one window in the same configuration, one under another cap.
    bench.propose(18, surface("rival", "a", at(18), &caps));
    let latency = bench.status(18, "rival").latency.unwrap();
    assert_eq!((latency.proposals, latency.ms_p50), (1, 2_000));
    bench.close(31, closed("a", at(31), 250));
    bench.close(46, closed("a", at(46), 200));
    let speed = bench.status(46, "rival").speed;
    assert_eq!(speed.same_config.unwrap().windows, 1);
    let elsewhere = speed.new_config.unwrap();
    assert!((elsewhere.mape_percent - 10.0).abs() < 0.01, "{elsewhere:?}");

    // A duplicate window and a late one are not scored.
    bench.close(47, closed("a", at(46), 200));
    bench.close(47, closed("a", at(31), 250));
    assert_eq!(bench.status(47, "rival").speed, speed);
    // A cap between two points: interpolated in the logarithm.
    bench.close(61, closed("a", at(61), 141));
    let elsewhere = bench.status(61, "rival").speed.new_config.unwrap();
    assert_eq!(elsewhere.windows, 2);
    let between = 100.0 * (1.0 - (9.0f64 * 8.0).sqrt() / 10.0);
    assert!((elsewhere.mape_percent - (10.0 + between) / 2.0).abs() < 0.1, "{elsewhere:?}");
    // A cap beyond all points is counted as uncovered.
    bench.close(76, closed("a", at(76), 80));
    let status = bench.status(76, "rival");
    assert_eq!((status.windows_uncovered, status.speed.new_config.unwrap().windows), (1, 2));
    // A predictor without proposals has no scores.
    assert_eq!(bench.status(76, "physical").speed, Default::default());
}

/// A point of another batch, or of a locked clock, is scored only by windows with that batch or clock.
#[test]
fn batches_and_clocks_are_scored_by_matching_windows() {
    let mut bench = Bench::new();
    let mut proposal = surface("rival", "a", at(1), &[(None, 10.0, 180.0); 4]);
    let rates = [10.0, 40.0, 9.0, 4.0];
    for (point, rate) in proposal.points.iter_mut().zip(rates) {
        point.steps_per_s = Some(estimate(rate));
    }
    proposal.points[1].global_batch = Some(32);
    proposal.points[2].clock_mhz_max = Some(Frequency::from_mhz(1_200));
    proposal.points[3].clock_mhz_max = Some(Frequency::from_mhz(600));
    let window = |until: u64, batch: Option<u32>, clock: Option<u32>, rate: f64| {
        let mut window = closed("a", at(until), 250);
        window.global_batch = batch;
        window.clock_mhz_max = clock.map(Frequency::from_mhz);
        window.steps_per_s = Some(rate);
        window
    };
    bench.propose(1, proposal.clone());
    bench.close(16, window(16, None, None, 10.0));
    let prior = bench.status(16, "rival").speed.prior.unwrap();
    assert!(prior.mape_percent < 0.01, "the job's own batch, no lock: {prior:?}");

    let mut elsewhere = |bench: &mut Bench, until: u64, window: JobWindow| {
        let sum = |score: Option<wattle_common::messages::Score>| {
            score.map_or(0.0, |s| s.windows as f64 * s.mape_percent)
        };
        let before = sum(bench.status(until, "rival").speed.new_config);
        proposal.at_us = at(until - 14);
        bench.propose(until - 14, proposal.clone());
        bench.close(until, window);
        sum(bench.status(until, "rival").speed.new_config) - before
    };
    // 9 predicted under the lock, 10 measured.
    let off = elsewhere(&mut bench, 31, window(31, None, Some(1_200), 10.0));
    assert!((off - 10.0).abs() < 0.01, "{off}");
    // Between two clocks, along the logarithm.
    let middle = (600.0f64 * 1_200.0).sqrt();
    let off = elsewhere(&mut bench, 46, window(46, None, Some(middle.round() as u32), 6.0));
    assert!(off < 0.2, "{off}");
    // 40 predicted of the batch, 50 measured.
    let off = elsewhere(&mut bench, 61, window(61, Some(32), None, 50.0));
    assert!((off - 20.0).abs() < 0.01, "{off}");
    // A batch that no point names is the job's own.
    let off = elsewhere(&mut bench, 76, window(76, Some(128), None, 12.5));
    assert!((off - 20.0).abs() < 0.01, "{off}");
    // A clock below every proposed one has no prediction; the window is counted as uncovered.
    assert_eq!(bench.status(76, "rival").windows_uncovered, 0);
    let off = elsewhere(&mut bench, 91, window(91, None, Some(300), 10.0));
    assert_eq!((bench.status(91, "rival").windows_uncovered, off), (1, 0.0));
}

/// A proposal received after a window's end may depend on the window; the one before it is scored.
#[test]
fn proposal_received_after_the_window_is_not_scored() {
    let mut bench = Bench::new();
    bench.propose(1, surface("rival", "a", at(1), &[(None, 20.0, 180.0)]));
    bench.propose(17, surface("rival", "a", at(17), &[(None, 10.0, 180.0)]));
    bench.close(18, closed("a", at(16), 250));
    let prior = bench.status(18, "rival").speed.prior.unwrap();
    assert!((prior.mape_percent - 100.0).abs() < 0.01, "{prior:?}");
}

/// A predictor without step rates is scored by relative speed, once the exclusive speed is known.
#[test]
fn relative_speed_is_scored_where_no_rate_is_predicted() {
    let mut bench = Bench::new();
    let mut relative = surface("rival", "a", at(1), &[(None, 1.0, 180.0), (Some(100), 1.0, 95.0)]);
    relative.points.iter_mut().for_each(|point| point.steps_per_s = None);
    bench.propose(1, relative.clone());
    // On exclusive GPUs at the default the relative speed is 1 by definition.
    bench.close(16, closed("a", at(16), 250));
    assert_eq!(bench.status(16, "rival").speed.prior, None);
    relative.at_us = at(17);
    bench.propose(17, relative);
    let mut slow = closed("a", at(31), 100);
    slow.steps_per_s = Some(8.0);
    bench.close(31, slow);
    let elsewhere = bench.status(31, "rival").speed.new_config.unwrap();
    // 0.9 predicted, 0.8 measured.
    assert!((elsewhere.mape_percent - 12.5).abs() < 0.01, "{elsewhere:?}");
}

/// Surfaces of other GPU types reach the placer, are scored on the type on which the job runs, and
/// determine the types of a prior.
#[test]
fn surfaces_of_other_gpu_types_are_scored_there() {
    let mut bench = Bench::new();
    let there = on("p100", surface("physical", "a", at(1), &[(None, 8.0, 180.0)]));
    let proposal = surface("physical", "a", at(1), &[(None, 20.0, 180.0)]);
    let proposal = Surface { other_gpu_types: vec![there], ..proposal };
    bench.propose(1, proposal.clone());
    assert_eq!(bench.written(), std::slice::from_ref(&proposal));

    let window =
        |until: u64, kind: &str| JobWindow { gpu_type: kind.into(), ..closed("a", at(until), 250) };
    bench.close(16, window(16, "p100"));
    let prior = bench.status(16, "physical").speed.prior.unwrap();
    assert!((prior.mape_percent - 20.0).abs() < 0.01, "8 predicted, 10 measured: {prior:?}");
    // The same configuration on another GPU type is a different one.
    bench.propose(17, Surface { at_us: at(17), ..proposal.clone() });
    bench.close(31, window(31, "v100"));
    let speed = bench.status(31, "physical").speed;
    assert_eq!((speed.same_config, speed.new_config.unwrap().windows), (None, 1));

    bench.describe(32, "b");
    bench.wake(60);
    let prior = bench.written().pop().unwrap();
    assert_eq!((prior.predictor.as_str(), prior.job.as_str()), ("prior", "b"));
    let kinds: Vec<String> = prior.by_gpu_type().map(|on| on.gpu_type).collect();
    assert_eq!(kinds, ["v100", "p100"]);
}

#[test]
fn window_from_the_future_does_not_outdate_later_ones() {
    let mut bench = Bench::new();
    bench.propose(1, surface("physical", "a", at(1), &[(None, 10.0, 180.0)]));
    bench.close(20, closed("a", Timestamp::FOREVER, 300));
    bench.close(20, closed("a", at(20), 300));
    bench.close(40, closed("a", at(40), 300));
    let scored = bench.status(40, "physical").power;
    let windows = [scored.prior, scored.new_config, scored.same_config];
    assert_eq!(windows.into_iter().flatten().map(|score| score.windows).sum::<u64>(), 2);
}
