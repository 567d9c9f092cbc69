//! Caps and clocks: predictions from other classes, then from one reading, two, three.

use crate::common::{Truth, class, job, one_gpu, seen, window};
use wattle_common::messages::{Estimate, SurfacePoint};
use wattle_common::rng::Stream;
use wattle_common::{Frequency, Power, Timestamp};
use wattle_predictor::configurations::Configuration;
use wattle_predictor::model::cap_forms::{Basis, FAMILIES_MIN};
use wattle_predictor::{Predictor, PredictorConfig};

const CAPS: [f64; 7] = [250.0, 225.0, 200.0, 175.0, 150.0, 125.0, 100.0];

fn at(cap: Option<f64>, clock: Option<u32>) -> Configuration {
    Configuration {
        cap: cap.map(Power::from_w_f64),
        clock_max: clock.map(Frequency::from_mhz),
        ..one_gpu()
    }
}

fn teach(p: &mut Predictor, name: &str, truth: &Truth, caps: &[f64], noise: f64, rng: &mut Stream) {
    for (minute, cap) in caps.iter().enumerate() {
        let mut w = seen(truth, name, minute as u64, *cap, noise, rng);
        w.workload = Some(class(name));
        p.learn(w.until_us, &w);
    }
}

fn predict(p: &Predictor, name: &str, cap: f64) -> SurfacePoint {
    p.predict(&job(name), &at(Some(cap), None)).unwrap()
}

/// Mean relative errors of rate and power over the unknown caps, and the mean width of the rate.
fn errors(p: &Predictor, name: &str, truth: &Truth, known: &[f64]) -> [f64; 3] {
    let unknown: Vec<f64> = CAPS.into_iter().filter(|cap| !known.contains(cap)).collect();
    let mut sums = [0.0; 3];
    for cap in &unknown {
        let point = predict(p, name, *cap);
        let rate = point.steps_per_s.unwrap();
        sums[0] += (rate.mean / (truth.rate * truth.speed(*cap)) - 1.0).abs();
        sums[1] += (point.gpu_power_w.mean / truth.power(*cap) - 1.0).abs();
        sums[2] += rate.high / rate.low - 1.0;
    }
    sums.map(|sum| sum / unknown.len() as f64)
}

/// Classes of similar steepness on a GPU where caps cost more than the prior expects.
fn other_classes(rng: &mut Stream) -> Predictor {
    let mut p = Predictor::new(PredictorConfig::shipped());
    for i in 0..24u32 {
        let truth = Truth {
            rate: 5.0,
            demand_w: 90.0 + 6.5 * f64::from(i),
            steepness: 0.025 + 0.01 * rng.unit(),
            busy: 0.9,
        };
        teach(&mut p, &format!("other-{i}"), &truth, &CAPS, 0.01, rng);
    }
    p
}

#[test]
fn each_reading_reduces_the_error_from_none_to_three_caps() {
    let mut rng = Stream::new(11, "noise");
    let others = other_classes(&mut rng);
    let without_others = Predictor::new(PredictorConfig::shipped());
    let mut means = [[0.0; 3]; 4];
    let jobs = 12u32;
    for i in 0..jobs {
        let truth = Truth {
            rate: 8.0,
            demand_w: 150.0 + 7.0 * f64::from(i),
            steepness: 0.02 + 0.02 * rng.unit(),
            busy: 0.9,
        };
        let ways: [(&Predictor, &[f64]); 4] = [
            (&without_others, &[250.0]),
            (&others, &[250.0]),
            (&others, &[250.0, 100.0]),
            (&others, &[250.0, 175.0, 100.0]),
        ];
        for ((before, caps), mean) in ways.into_iter().zip(&mut means) {
            let mut p = before.clone();
            teach(&mut p, "new", &truth, caps, 0.01, &mut rng);
            let errors = errors(&p, "new", &truth, caps);
            for (sum, error) in mean.iter_mut().zip(errors) {
                *sum += error / f64::from(jobs);
            }
        }
    }
    let [prior, pooled, two, three] = means;
    assert!(pooled[0] < 0.5 * prior[0], "{means:?}");
    assert!(two[0] < pooled[0] && three[0] < pooled[0] && three[0] < 0.03, "{means:?}");
    assert!(pooled[1] < 0.06 && three[1] < 0.03, "{means:?}");
    // The interval narrows as well.
    assert!(prior[2] > pooled[2] && pooled[2] > two[2], "{means:?}");
}

#[test]
fn one_outlier_under_a_setting_is_rejected() {
    let truth = Truth { rate: 12.0, demand_w: 235.0, steepness: 0.06, busy: 0.95 };
    let caps: Vec<f64> = [250.0, 175.0, 100.0].into_iter().flat_map(|cap| [cap; 4]).collect();
    for (outlier, slower) in [(2usize, 3.0), (5, 0.3), (9, 4.0)] {
        let mut p = Predictor::new(PredictorConfig::shipped());
        let mut rng = Stream::new(4, "noise");
        for (minute, cap) in caps.iter().enumerate() {
            let mut w = seen(&truth, "j", minute as u64, *cap, 0.01, &mut rng);
            if minute == outlier {
                w.steps_per_s = w.steps_per_s.map(|r| r / slower);
                w.power_mw_gpus = Some(Power::from_w(30));
            }
            p.learn(w.until_us, &w);
        }
        for cap in [225.0, 200.0, 150.0, 125.0, 110.0] {
            let point = predict(&p, "j", cap);
            let rate = point.steps_per_s.unwrap().mean / (truth.rate * truth.speed(cap));
            let power = point.gpu_power_w.mean / truth.power(cap);
            assert!(
                (rate - 1.0).abs() < 0.06 && (power - 1.0).abs() < 0.06,
                "{outlier} {cap}: {rate} {power}"
            );
        }
    }
}

#[test]
fn speed_never_rises_as_the_cap_falls() {
    let mut rng = Stream::new(21, "noise");
    let others = other_classes(&mut rng);
    for i in 0..40u64 {
        let truth = Truth {
            rate: 3.0,
            demand_w: 45.0 + 200.0 * rng.unit(),
            steepness: 0.08 * rng.unit(),
            busy: 0.5,
        };
        let caps: Vec<f64> = CAPS.into_iter().filter(|_| rng.unit() < 0.5).collect();
        let mut p =
            if i % 2 == 0 { others.clone() } else { Predictor::new(PredictorConfig::shipped()) };
        teach(&mut p, "new", &truth, &caps, 0.05, &mut rng);
        p.describe(
            Timestamp::EPOCH,
            job("new"),
            Some(class("new")),
            wattle_common::job::GpuRequest::exactly(1),
            Some("v100"),
        );
        for neighbours in [Vec::new(), vec![class("other-3")]] {
            let (mut speed, mut power) = (f64::INFINITY, f64::INFINITY);
            for cap in (30..=250).rev().step_by(4) {
                let setting = Configuration {
                    neighbours: neighbours.clone(),
                    ..at(Some(f64::from(cap)), None)
                };
                let point = p.predict(&job("new"), &setting).unwrap();
                let now = point.relative_speed.mean;
                // With neighbours the difference of two curves is added, which may vary a little.
                let slack = if neighbours.is_empty() { 1.0001 } else { 1.01 };
                assert!(now <= speed * slack && now > 0.0, "{i}: {cap} W {now} {speed}");
                assert!(
                    neighbours.len() == 1 || point.gpu_power_w.mean <= power * 1.0001,
                    "{i}: {cap} W"
                );
                (speed, power) = (now, point.gpu_power_w.mean);
            }
        }
    }
}

/// A job whose time is partly core-bound and whose power has a voltage floor.
fn clocked(mhz: u32) -> (f64, f64) {
    let f = f64::from(mhz);
    let rate = 10.0 / (0.4 + 0.6 * 1_410.0 / f);
    (rate, 90.0 + 0.1 * f + 0.35 * (f - 1_100.0).max(0.0))
}

fn under_clocks(clocks: &[u32]) -> Predictor {
    let mut p = Predictor::new(PredictorConfig::shipped());
    for (minute, mhz) in clocks.iter().enumerate() {
        let mut w = window("j", None, minute as u64);
        w.gpu_type = "a100".into();
        w.cap_mw = Some(Power::from_w(400));
        w.clock_mhz_max = Some(Frequency::from_mhz(*mhz));
        let (rate, watts) = clocked(*mhz);
        w.steps_per_s = Some(rate);
        w.power_mw_gpus = Some(Power::from_w_f64(watts));
        p.learn(w.until_us, &w);
    }
    p
}

#[test]
fn four_clocks_predict_the_others_better_than_two() {
    let off = |p: &Predictor, mhz: u32| {
        let point = p.predict(&job("j"), &at(None, Some(mhz))).unwrap();
        let (rate, watts) = clocked(mhz);
        let width = |e: Estimate| e.high / e.low;
        let rate_of = point.steps_per_s.unwrap();
        (
            (rate_of.mean / rate - 1.0).abs(),
            (point.gpu_power_w.mean / watts - 1.0).abs(),
            width(rate_of),
        )
    };
    let (four, one) = (under_clocks(&[1_410, 1_230, 1_035, 855]), under_clocks(&[1_410]));
    for mhz in [900, 975, 1_110, 1_170, 1_305, 1_380] {
        let (rate, power, width) = off(&four, mhz);
        assert!(rate < 0.006 && power < 0.05, "{mhz}: {rate} {power}");
        assert!(width < off(&one, mhz).2, "{mhz}");
    }
    // Between one known clock and the top clock the power law follows the reading.
    let (rate, power, _) = off(&under_clocks(&[1_410, 1_035]), 1_035);
    assert!(rate < 0.01 && power < 0.03, "{rate} {power}");
    let surface = four.surface(Timestamp::from_s(99), &job("j")).unwrap();
    for mhz in [1_230, 1_035, 855] {
        assert!(surface.points.iter().any(|p| p.clock_mhz_max == Some(Frequency::from_mhz(mhz))));
    }
}

/// Six networks on a GPU type where speed falls steeply below a knee.
#[test]
fn a_restarted_predictor_chooses_the_same_forms_from_the_stored_windows() {
    let networks =
        ["resnet50-b32", "vgg16-b64", "bert-b8", "lstm-b20", "alexnet-b128", "inception3-b32"];
    let mut rng = Stream::new(5, "noise");
    let mut live = Predictor::new(PredictorConfig::shipped());
    let mut stored = Vec::new();
    for (i, name) in (0u32..).zip(networks) {
        let demand_w = 170.0 + 12.0 * f64::from(i);
        let truth = Truth { rate: 6.0, demand_w, steepness: 0.05, busy: 0.9 };
        for (minute, cap) in CAPS.iter().enumerate() {
            let mut w = seen(&truth, name, minute as u64, *cap, 0.005, &mut rng);
            w.workload = Some(class(name));
            live.learn(w.until_us, &w);
            stored.push(w);
        }
    }
    let chosen = live.cap_forms("v100");
    assert!(chosen.families >= FAMILIES_MIN, "{chosen:?}");
    assert_eq!(chosen.basis, Basis::Blend, "{chosen:?}");
    // After a restart the windows are replayed in batches, and the pooled models are fitted once.
    let mut restarted = Predictor::new(PredictorConfig::shipped());
    for batch in stored.chunks(10) {
        restarted.learn_all(batch.last().unwrap().until_us, batch);
    }
    restarted.refit_pooled();
    let again = restarted.cap_forms("v100");
    assert_eq!((again.basis, again.families), (chosen.basis, chosen.families));
    for (before, after) in chosen.shares.iter().zip(again.shares) {
        assert!((before - after).abs() < 0.1, "{chosen:?} {again:?}");
    }
}
