//! Periods of synthetic and recorded training loops are detected correctly or rejected.
//!
//! `cargo test -p wattle-profiler --test suite period_detection -- --nocapture` prints the shares
//! that the documentation of [`wattle_profiler::period_detection`] states.
#![allow(clippy::print_stdout, reason = "its figures are part of the documentation")]

use std::collections::BTreeMap;

use crate::loops::{FINE_S, Loop, PLAIN, Wave, activity, sampled};
use proptest::prelude::*;
use wattle_common::rng::Stream;
use wattle_profiler::period_detection::{NoPeriod, Period, SAMPLES_MAX, Sample, SampleSeries};

fn detect(of: &Loop, seed: u64) -> Result<Period, NoPeriod> {
    let mut rng = Stream::new(seed, "rhythm");
    let busy = activity(of, &mut rng);
    sampled(of, &busy, &mut rng).detect_period(false)
}

/// Results of the detection on many loops.
#[derive(Debug, Default)]
struct Shares {
    total: u32,
    right: u32,
    wrong: u32,
    /// Found within their own error.
    inside: u32,
    rejected: BTreeMap<NoPeriod, u32>,
}

impl Shares {
    fn of(seeds: u64, loops: &[Loop]) -> Self {
        let mut shares = Self::default();
        for of in loops {
            for seed in 0..seeds {
                shares.total += 1;
                match detect(of, seed) {
                    Ok(found) => {
                        let off = (found.period_s / of.period_s - 1.0).abs();
                        shares.inside += u32::from(off <= found.error);
                        shares.right += u32::from(off < 0.05);
                        shares.wrong += u32::from(off >= 0.05);
                    }
                    Err(reason) => *shares.rejected.entry(reason).or_default() += 1,
                }
            }
        }
        shares
    }

    fn right(&self) -> f64 {
        f64::from(self.right) / f64::from(self.total)
    }

    fn wrong(&self) -> f64 {
        f64::from(self.wrong) / f64::from(self.total)
    }
}

const WAVES: [Wave; 4] = [Wave::Pulse(0.7), Wave::Pulse(0.9), Wave::Two, Wave::Sine];

/// Loops of every waveform with these periods.
fn loops(periods_s: &[f64], of: Loop) -> Vec<Loop> {
    periods_s.iter().flat_map(|p| WAVES.map(|wave| Loop { period_s: *p, wave, ..of })).collect()
}

/// Noise of 5, 20 and 50 % of an amplitude of 80 W.
const NOISE_W: [f64; 3] = [4.0, 16.0, 40.0];

#[test]
fn periods_are_found_or_rejected() {
    // Periods; least share found at each noise in a window of 15 s, and in one of 60 s.
    let rows: [(&[f64], [f64; 3], [f64; 3]); 5] = [
        (&[0.087, 0.13, 0.19, 0.25], [0.0; 3], [0.0; 3]),
        (&[0.33, 0.4, 0.47], [0.6, 0.5, 0.15], [0.9, 0.85, 0.4]),
        (&[0.55, 0.7, 0.95], [0.75, 0.7, 0.4], [0.9, 0.9, 0.75]),
        (&[1.3, 1.7, 2.9], [0.85, 0.8, 0.55], [0.95, 0.95, 0.8]),
        (&[4.5, 8.0, 11.0], [0.0; 3], [0.95, 0.8, 0.5]),
    ];
    let (mut found, mut inside) = (0, 0);
    for (periods, short, long) in rows {
        for (window_s, least) in [(15.0, short), (60.0, long)] {
            for (noise_w, least) in NOISE_W.into_iter().zip(least) {
                let of = Loop { window_s, noise_w, ..PLAIN };
                let shares = Shares::of(4, &loops(periods, of));
                println!(
                    "{window_s} s, periods {periods:?}, noise {noise_w} W of 80: found {:.2}, wrong {:.3}",
                    shares.right(),
                    shares.wrong()
                );
                assert!(shares.right() >= least, "{window_s} {periods:?} {noise_w}: {shares:?}");
                assert!(shares.wrong() <= 0.02, "{window_s} {periods:?} {noise_w}: {shares:?}");
                found += shares.right + shares.wrong;
                inside += shares.inside;
            }
        }
    }
    let share = f64::from(inside) / f64::from(found);
    println!("within their own error: {share:.2} of {found}");
    assert!(share > 0.85, "{share}");
}

#[test]
fn training_artefacts_do_not_cause_wrong_periods() {
    let cases: [(&str, Loop); 6] = [
        ("an evaluation", Loop { pause: Some((20.0, 10.0)), ..PLAIN }),
        ("power as a mean over a second", Loop { averaged_s: 1.0, ..PLAIN }),
        ("iterations of uneven length", Loop { uneven: 0.05, ..PLAIN }),
        ("missing samples", Loop { missing: 0.15, ..PLAIN }),
        ("a shallow swing", Loop { swing_w: 15.0, noise_w: 2.0, ..PLAIN }),
        ("a sensor of instants", Loop { instants_s: Some(0.1), ..PLAIN }),
    ];
    for (name, of) in cases {
        let shares = Shares::of(4, &loops(&[0.4, 0.7, 1.7, 5.0], of));
        println!("{name}: found {:.2}, wrong {:.3}", shares.right(), shares.wrong());
        assert!(shares.right() > 0.75, "{name}: {shares:?}");
        assert_eq!(shares.wrong, 0, "{name}: {shares:?}");
        // Steps shorter than a sample are not aliased to long ones.
        let shares = Shares::of(5, &loops(&[0.06, 0.087, 0.11, 0.13, 0.19], of));
        println!("{name}, too fast: found {:.2}, wrong {:.3}", shares.right(), shares.wrong());
        assert!(shares.wrong() <= 0.01, "{name}, too fast: {shares:?}");
    }
}

fn instants(window_s: f64) -> usize {
    ((window_s + 3.0) / FINE_S) as usize
}

/// Autocorrelated noise with a time constant of `tau` seconds.
fn wandering(tau: f64, window_s: f64, rng: &mut Stream) -> Vec<f64> {
    let (decay, mut x) = ((-FINE_S / tau).exp(), 0.0);
    let mut next = || {
        x = decay * x + (1.0 - decay * decay).sqrt() * rng.normal();
        (0.5 + 0.2 * x).clamp(0.0, 1.0)
    };
    (0..instants(window_s)).map(|_| next()).collect()
}

/// Work and waiting alternately, each of a random length.
fn irregular(mean_s: f64, window_s: f64, rng: &mut Stream) -> Vec<f64> {
    let (mut works, mut left) = (false, 0.0);
    let mut next = || {
        left -= FINE_S;
        if left <= 0.0 {
            works = !works;
            left = -mean_s * (1.0 - rng.unit()).ln();
        }
        f64::from(u8::from(works))
    };
    (0..instants(window_s)).map(|_| next()).collect()
}

#[test]
fn noise_has_no_period() {
    let (mut alarms, mut all) = (0, 0);
    for window_s in [15.0, 60.0] {
        for seed in 0..60 {
            let mut rng = Stream::new(seed, "noise");
            let mut series = vec![vec![0.5; instants(window_s)]];
            series.extend([0.05, 0.3, 1.0, 5.0, 30.0].map(|t| wandering(t, window_s, &mut rng)));
            series.extend([0.3, 1.0, 4.0].map(|t| irregular(t, window_s, &mut rng)));
            for busy in series {
                let found =
                    sampled(&Loop { window_s, ..PLAIN }, &busy, &mut rng).detect_period(false);
                alarms += u32::from(found.is_ok());
                all += 1;
            }
        }
    }
    println!("false alarms: {alarms} of {all}");
    assert!(alarms * 200 < all, "{alarms} of {all}");
}

#[test]
fn two_loops_on_a_gpu_are_distinguished_or_rejected() {
    for (own, other) in [(0.7, 1.1), (0.7, 3.1), (1.0, 1.2), (0.4, 0.9), (1.6, 2.7)] {
        let (mut seen, mut wrong) = (0, 0);
        for seed in 0..30 {
            let mut rng = Stream::new(seed, "two");
            let own_busy = activity(&Loop { period_s: own, ..PLAIN }, &mut rng);
            let other_busy = activity(&Loop { period_s: other, ..PLAIN }, &mut rng);
            let both: Vec<f64> =
                own_busy.iter().zip(&other_busy).map(|(a, b)| 0.5 * (a + b)).collect();
            // Power is that of both loops; utilisation is the job's own.
            let mut own_rng = rng.clone();
            let gpu = sampled(&PLAIN, &both, &mut rng);
            let job = sampled(&PLAIN, &own_busy, &mut own_rng);
            let mut series = SampleSeries::default();
            for (gpu, job) in gpu.series().iter().zip(job.series()) {
                let busy_percent = job.busy_percent;
                series.push(Sample { busy_percent, memory_percent: None, ..*gpu });
            }
            if let Ok(found) = series.detect_period(true) {
                seen += 1;
                wrong += u32::from((found.period_s / own - 1.0).abs() > 0.05);
            }
        }
        println!("{own} s shared with {other} s: {seen} of 30 detected, {wrong} wrong");
        assert_eq!(wrong, 0, "{own} shared with {other}");
    }
}

/// A series of `of` at uneven instants.
fn series_of(of: impl Fn(f64) -> (f32, f32)) -> SampleSeries {
    let (mut series, mut rng) = (SampleSeries::default(), Stream::new(1, "made"));
    for i in 0..600 {
        let at_s = 0.1 * (f64::from(i) + 0.25 * (2.0 * rng.unit() - 1.0));
        let (watts, percent) = of(at_s);
        series.push(Sample {
            at_s,
            power_w: Some(watts),
            busy_percent: Some(percent),
            ..Sample::default()
        });
    }
    series
}

#[test]
fn each_rejection_has_its_reason() {
    let swings = |at: f64, period: f64| (at / period).fract() < 0.6;
    let wave =
        |at: f64, period: f64, low: f32, high: f32| if swings(at, period) { high } else { low };
    let both = |at: f64| (wave(at, 1.0, 100.0, 200.0), wave(at, 1.0, 20.0, 90.0));
    assert!((series_of(both).detect_period(false).unwrap().period_s - 1.0).abs() < 0.01);
    assert_eq!(SampleSeries::default().detect_period(false), Err(NoPeriod::TooFew));
    assert_eq!(series_of(|_| (250.0, 99.0)).detect_period(false), Err(NoPeriod::Constant));
    // The period of one sensor may be an alias.
    let one_sensor = |at| (wave(at, 1.0, 100.0, 200.0), 99.0);
    assert_eq!(series_of(one_sensor).detect_period(false), Err(NoPeriod::Unconfirmed));
    let apart = |at| (wave(at, 1.0, 100.0, 200.0), wave(at, 2.7, 20.0, 90.0));
    assert_eq!(series_of(apart).detect_period(false), Err(NoPeriod::Ambiguous));
    let fast = Loop { period_s: 0.19, wave: Wave::Sine, ..PLAIN };
    assert_eq!(detect(&fast, 1), Err(NoPeriod::TooFast));
    // The loop ends in the middle of the window.
    let half = |at| if at < 30.0 { both(at) } else { (100.0, 20.0) };
    assert_eq!(series_of(half).detect_period(false), Err(NoPeriod::Unsteady));
    let even = Loop { jitter: 0.01, ..PLAIN };
    assert_eq!(detect(&even, 1), Err(NoPeriod::TooEven));
}

/// A series recorded on a real machine, and the period that its loop recorded.
fn recorded(text: &str) -> (SampleSeries, Option<f64>) {
    let mut series = SampleSeries::default();
    let period = text.lines().find_map(|l| l.strip_prefix("# period_s=")?.parse().ok());
    for line in text.lines().filter(|l| l.starts_with(|c: char| c.is_ascii_digit())) {
        let mut fields = line.split(',').map(|field| field.parse::<f64>().ok());
        let mut next = || fields.next().flatten();
        series.push(Sample {
            at_s: next().unwrap(),
            spent_w: next().map(|share| (20.0 + 100.0 * share) as f32),
            busy_percent: next().map(|percent| percent as f32),
            ..Sample::default()
        });
    }
    (series, period)
}

#[test]
fn recorded_loops_are_found_or_rejected() {
    let (series, period) = recorded(include_str!("../data/loop-a.csv"));
    let (found, period) = (series.detect_period(false).unwrap(), period.unwrap());
    println!("recorded: {period:.4} s, found {found:?}");
    assert!((found.period_s / period - 1.0).abs() < 0.05, "{period} {found:?}");
    // Iterations whose length other programs disturb have no period.
    let (series, _) = recorded(include_str!("../data/loop-b.csv"));
    assert_eq!(series.detect_period(false), Err(NoPeriod::Unsteady));
}

proptest! {
    /// For any readings, detection ends, and a detected period is finite and positive.
    #[test]
    fn arbitrary_readings_are_handled(readings in prop::collection::vec((any::<f64>(), any::<f32>(), any::<f32>()), 0..300), scale in 1e-3..1e3f64, shared in any::<bool>()) {
        let mut series = SampleSeries::default();
        for (i, (at, watts, percent)) in readings.into_iter().enumerate() {
            // Mostly in order.
            let at_s = if i % 7 == 0 { at } else { scale * (i as f64 + (at.abs() % 0.9)) };
            series.push(Sample { at_s, power_w: Some(watts), spent_w: Some(-watts), busy_percent: Some(percent), memory_percent: None });
        }
        prop_assert!(series.len() <= SAMPLES_MAX);
        if let Ok(found) = series.detect_period(shared) {
            prop_assert!(found.period_s.is_finite() && found.period_s > 0.0 && found.error > 0.0);
        }
    }
}
