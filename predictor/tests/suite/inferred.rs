//! Inferred step rates give relative speeds only.

use crate::common::{Truth, job, point, seen};
use wattle_common::messages::{JobWindow, Surface};
use wattle_common::rng::Stream;
use wattle_common::{Power, Timestamp};
use wattle_predictor::{Predictor, PredictorConfig};

const HUNGRY: Truth = Truth { rate: 12.0, demand_w: 235.0, steepness: 0.06, busy: 0.95 };
/// Steps per iteration that is detected in power.
const STEPS: f64 = 8.0;

fn inferred(window: JobWindow) -> JobWindow {
    JobWindow {
        steps: None,
        step: None,
        steps_per_s: window.steps_per_s.map(|rate| rate / STEPS),
        steps_inferred: true,
        ..window
    }
}

/// Windows of the job `name` at three caps, each modified by `change`.
fn show(p: &mut Predictor, name: &str, change: fn(JobWindow) -> JobWindow) -> Surface {
    let mut rng = Stream::new(7, name);
    for minute in 0..9 {
        let cap = [250.0, 150.0, 100.0][minute as usize % 3];
        let window = change(seen(&HUNGRY, name, minute, cap, 0.015, &mut rng));
        p.observe(Timestamp::from_s(60 * minute), &window);
    }
    p.surface(Timestamp::from_s(9_000), &job(name)).unwrap()
}

fn predictor() -> Predictor {
    Predictor::new(PredictorConfig::shipped())
}

fn relative(surface: &Surface, cap_w: u64) -> f64 {
    let cap = Some(Power::from_w(cap_w));
    surface.points.iter().find(|p| p.cap_mw == cap).unwrap().relative_speed.mean
}

#[test]
fn inferred_rate_gives_relative_speed() {
    let surface = show(&mut predictor(), "j", inferred);
    for cap in [175u64, 125] {
        let off = relative(&surface, cap) / HUNGRY.speed(cap as f64) - 1.0;
        assert!(off.abs() < 0.06, "{cap} W: {off}");
    }
    assert!(surface.points.iter().all(|point| point.steps_per_s.is_none()));
}

#[test]
fn inferred_rates_do_not_reach_the_class() {
    let mut p = predictor();
    let own = show(&mut p, "silent", inferred);
    assert!(own.class.is_some());
    let rate = |surface: &Surface| point(surface, None, &[]).steps_per_s.unwrap().mean;
    // A job with reported steps has its own rate, although the class has only inferred ones.
    let first = show(&mut p, "speaks", |window| window);
    assert!((rate(&first) / HUNGRY.rate - 1.0).abs() < 0.05, "{}", rate(&first));
    // Absolute rates are not transferred between jobs with inferred and with reported steps.
    let second = show(&mut p, "silent-2", inferred);
    assert!(second.points.iter().all(|point| point.steps_per_s.is_none()));
    let mut fresh = predictor();
    let without = show(&mut fresh, "speaks", |window| window);
    assert!((rate(&first) / rate(&without) - 1.0).abs() < 0.02);
}

#[test]
fn reported_rates_replace_inferred_ones() {
    let mut p = predictor();
    show(&mut p, "j", inferred);
    let mut rng = Stream::new(8, "later");
    for minute in 20..23 {
        let window = seen(&HUNGRY, "j", minute, 250.0, 0.015, &mut rng);
        p.observe(Timestamp::from_s(60 * minute), &window);
    }
    let surface = p.surface(Timestamp::from_s(9_000), &job("j")).unwrap();
    let rate = point(&surface, None, &[]).steps_per_s.unwrap().mean;
    assert!((rate / HUNGRY.rate - 1.0).abs() < 0.05, "{rate}");
}
