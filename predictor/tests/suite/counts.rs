//! Power per GPU and the effect of caps depend on a job's number of GPUs; both are learned by class.

use crate::common::{class, job, one_gpu, window};
use wattle_common::rng::Stream;
use wattle_common::{Power, Timestamp};
use wattle_predictor::configurations::Configuration;
use wattle_predictor::{Predictor, PredictorConfig};

/// 230 W on one GPU; on several, each waits for the others and draws less.
fn watts(gpus: u32) -> f64 {
    60.0 + 170.0 * (0.3 + 0.7 / f64::from(gpus).sqrt())
}

/// Caps slow only the computing share of the time, not waiting.
fn rate(gpus: u32, cap_w: f64) -> f64 {
    let left = ((cap_w - 40.0) / (watts(gpus) - 40.0)).min(1.0);
    5.0 * f64::from(gpus).sqrt() * left.powf(0.35)
}

fn learn(p: &mut Predictor, name: &str, minute: u64, gpus: u32, cap_w: f64, rng: &mut Stream) {
    let mut noisy = |value: f64| value * (1.0 + 0.01 * rng.normal());
    let mut seen = window(name, Some("waits"), minute);
    seen.gpus = (0..gpus).collect();
    seen.gpus_total = gpus;
    seen.cap_mw = Some(Power::from_w_f64(cap_w));
    seen.steps_per_s = Some(noisy(rate(gpus, cap_w)));
    let gpu = noisy(watts(gpus).min(cap_w));
    seen.power_mw_gpus = Some(Power::from_w_f64(gpu * f64::from(gpus)));
    p.learn(seen.until_us, &seen);
}

fn at(gpus: u32, cap: Option<f64>) -> Configuration {
    Configuration { gpus, cap: cap.map(Power::from_w_f64), ..one_gpu() }
}

/// For a new job of the class.
#[test]
fn power_on_some_numbers_of_gpus_is_not_used_for_others() {
    let mut rng = Stream::new(5, "noise");
    let mut p = Predictor::new(PredictorConfig::shipped());
    // Each ran on one number of GPUs, the last of them on eight.
    for (name, gpus) in [("a", 1), ("b", 1), ("c", 4), ("d", 8), ("e", 8), ("f", 8)] {
        for minute in 0..2 {
            learn(&mut p, name, minute, gpus, 250.0, &mut rng);
        }
    }
    let any = wattle_common::job::GpuRequest { min: 1, max: 8 };
    p.describe(Timestamp::from_s(600), job("new"), Some(class("waits")), any, Some("v100"));
    for gpus in [1, 2, 4, 8] {
        let predicted = p.predict(&job("new"), &at(gpus, None)).unwrap().gpu_power_w;
        let off = predicted.mean / watts(gpus) - 1.0;
        assert!(off.abs() < 0.06, "{gpus} GPUs: {off:+.3}");
        assert!(
            predicted.low < watts(gpus) && watts(gpus) < predicted.high,
            "{gpus} GPUs: {predicted:?}"
        );
    }
}

/// A cap limits a job on one GPU and not on eight.
#[test]
fn caps_cost_less_where_power_per_gpu_is_lower() {
    let mut rng = Stream::new(6, "noise");
    let mut p = Predictor::new(PredictorConfig::shipped());
    for (name, gpus) in [("a", 1), ("b", 1), ("c", 8), ("d", 8)] {
        for (minute, cap) in [250.0, 150.0, 250.0].into_iter().enumerate() {
            learn(&mut p, name, minute as u64, gpus, cap, &mut rng);
        }
    }
    let any = wattle_common::job::GpuRequest { min: 1, max: 8 };
    p.describe(Timestamp::from_s(600), job("new"), Some(class("waits")), any, Some("v100"));
    for gpus in [1, 8] {
        let predicted =
            p.predict(&job("new"), &at(gpus, Some(150.0))).unwrap().steps_per_s.unwrap();
        let off = predicted.mean / rate(gpus, 150.0) - 1.0;
        assert!(off.abs() < 0.06, "{gpus} GPUs: {off:+.3}");
    }
}

/// A class was measured on one GPU, and on 16 only below a cap near its power there: its step rates show that these
/// mostly wait.
#[test]
fn power_on_more_gpus_follows_from_the_step_rates() {
    let mut p = Predictor::new(PredictorConfig::shipped());
    let work = 16.0_f64.powf(-0.7);
    let truth = 60.0 + 170.0 * work.sqrt();
    for (name, gpus, cap_w, watts, rate) in
        [("a", 1, 250.0, 230.0, 5.0), ("b", 16, 130.0, truth, 5.0 * 16.0 * work)]
    {
        for minute in 0..3 {
            let mut seen = window(name, Some("waits"), minute);
            seen.gpus = (0..gpus).collect();
            seen.gpus_total = gpus;
            seen.cap_mw = Some(Power::from_w_f64(cap_w));
            seen.steps_per_s = Some(rate);
            seen.power_mw_gpus = Some(Power::from_w_f64(watts * f64::from(gpus)));
            p.learn(seen.until_us, &seen);
        }
    }
    let predicted = p.predict(&job("b"), &at(16, None)).unwrap().gpu_power_w;
    let off = predicted.mean / truth - 1.0;
    assert!(off.abs() < 0.2, "{off:+.3}: {predicted:?}");
    assert!(predicted.low < truth && truth < predicted.high, "{predicted:?}");
}
