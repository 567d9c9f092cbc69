//! Calibration: intervals are scored by later windows and scaled by the scores, which are stored.

use crate::common::{job, one_gpu, window};
use wattle_common::rng::Stream;
use wattle_common::{Power, Timestamp};
use wattle_predictor::configurations::Configuration;
use wattle_predictor::{Predictor, PredictorConfig};

const CAPS: [u64; 6] = [250, 225, 200, 175, 150, 125];

fn at(cap: u64) -> Configuration {
    Configuration { cap: Some(Power::from_w(cap)), ..one_gpu() }
}

/// Jobs of one family whose readings scatter by `noise`, each under all caps.
fn seen(predictor: &mut Predictor, noise: f64, jobs: std::ops::Range<u64>) {
    let mut rng = Stream::new(3, "calibration");
    for j in jobs {
        for (i, cap) in CAPS.into_iter().enumerate() {
            let class = format!("family-b{}-x", 1 << (j % 4));
            let mut w = window(&format!("j{j}"), Some(&class), 10 * j + i as u64);
            let speed = (cap as f64 / 250.0).powf(0.4);
            w.cap_mw = Some(Power::from_w(cap));
            w.steps_per_s = Some(10.0 * speed * (noise * rng.normal()).exp());
            w.steps_per_s_error = None;
            w.power_mw_gpus = Some(Power::from_w_f64(0.9 * cap as f64));
            predictor.learn(Timestamp::from_s(60 * j), &w);
        }
    }
}

/// Interval width of the step rate under a third cap, of a job with windows under two.
fn width(predictor: &Predictor) -> f64 {
    let mut p = predictor.clone();
    for (minute, cap) in [(9_000, 250), (9_001, 125)] {
        let mut w = window("new", Some("family-b3-x"), minute);
        w.cap_mw = Some(Power::from_w(cap));
        w.steps_per_s = Some(10.0 * (cap as f64 / 250.0).powf(0.4));
        w.steps_per_s_error = None;
        w.power_mw_gpus = Some(Power::from_w_f64(0.9 * cap as f64));
        p.learn(Timestamp::from_s(600_000), &w);
    }
    let rate = p.predict(&job("new"), &at(175)).unwrap().steps_per_s.unwrap();
    assert!(rate.low <= rate.mean && rate.mean <= rate.high);
    (rate.high / rate.low).ln()
}

#[test]
fn noisy_family_has_wider_intervals() {
    let of = |noise| {
        let mut predictor = Predictor::new(PredictorConfig::shipped());
        seen(&mut predictor, noise, 0..12);
        width(&predictor)
    };
    let (calm, noisy) = (of(0.005), of(0.15));
    assert!(noisy > 2.0 * calm, "{noisy} {calm}");
}

#[test]
fn scores_are_restored_from_storage() {
    let mut predictor = Predictor::new(PredictorConfig::shipped());
    seen(&mut predictor, 0.1, 0..12);
    let stored = predictor.take_changed_scores();
    assert!(!stored.is_empty());
    assert!(predictor.take_changed_scores().is_empty());
    let mut after = Predictor::new(PredictorConfig::shipped());
    for (gpu_type, name, scores) in stored {
        let text = serde_json::to_string(&scores).unwrap();
        assert!(after.restore_scores(&gpu_type, &name, serde_json::from_str(&text).unwrap()));
    }
    assert_eq!(after.calibration(), predictor.calibration());
    let unread = serde_json::from_str("{\"families\":{\"a\":[[1,-1.0]]}}").unwrap();
    assert!(!after.restore_scores("v100", "speed-setting-similar_config", unread));
}
