//! Properties for arbitrary windows in any order.

use crate::common::{Truth, class, job, seen, window};
use proptest::prelude::*;
use wattle_common::job::GpuRequest;
use wattle_common::messages::{JobWindow, Neighbour, Surface};
use wattle_common::observation::UnusableWindow;
use wattle_common::rng::Stream;
use wattle_common::{Energy, Frequency, Power, Timestamp};
use wattle_predictor::method::Method;
use wattle_predictor::predictor::Learned;
use wattle_predictor::{Predictor, PredictorConfig};
use wattle_testkit::cases;

fn any_float() -> impl Strategy<Value = Option<f64>> {
    prop_oneof![
        1 => Just(None),
        4 => (0.0f64..120.0).prop_map(Some),
        1 => any::<f64>().prop_map(Some),
        1 => prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(0.0), Just(-1.0)].prop_map(Some),
    ]
}

fn any_power() -> impl Strategy<Value = Option<Power>> {
    prop_oneof![
        Just(None),
        (0u64..900_000).prop_map(|mw| Some(Power::from_mw(mw))),
        any::<u64>().prop_map(|mw| Some(Power::from_mw(mw))),
    ]
}

fn any_window() -> impl Strategy<Value = JobWindow> {
    let place = (0u64..40, 0u64..200, prop::collection::vec(0u32..16, 0..5), 0u32..20, 0u32..6);
    let numbers = (any_float(), any_float(), any_float(), any_float(), any_float());
    let powers =
        (any_power(), any_power(), prop::option::of(any::<u32>()), prop::option::of(0u32..2_000));
    let ids = (
        0usize..4,
        prop::option::of(0usize..3),
        prop::collection::vec(prop::option::of(0usize..3), 0..4),
    );
    (place, numbers, powers, ids, prop::option::of(any::<u64>())).prop_map(
        |(place, numbers, powers, ids, steps)| {
            let mut w =
                window(["j", "k", "l", "m"][ids.0], ids.1.map(|i| ["a", "b", "c"][i]), place.0);
            w.until_us = Timestamp::from_us(w.from_us.as_us().saturating_add(place.1 * 500_000));
            (w.gpus, w.gpus_total, w.nodes_total) = (place.2, place.3, place.4);
            w.steps_per_s = numbers.0;
            w.steps_per_s_error = numbers.1;
            w.utilization_gpu_percent = numbers.2;
            w.utilization_gpu_percent_job = numbers.3;
            w.utilization_memory_percent = numbers.4;
            (w.cap_mw, w.power_mw_gpus) = (powers.0, powers.1);
            w.clock_mhz_mean = powers.2.map(Frequency::from_mhz);
            w.clock_mhz_max = powers.3.map(Frequency::from_mhz);
            w.energy_mj_gpus = steps.map(Energy::from_mj);
            w.steps = steps;
            w.neighbours = ids
                .2
                .into_iter()
                .map(|c| Neighbour {
                    job: job("n"),
                    workload: c.map(|i| class(["a", "b", "c"][i])),
                })
                .collect();
            w
        },
    )
}

fn any_method() -> impl Strategy<Value = Method> {
    prop::sample::select(vec![Method::Physical, Method::Statistical])
}

fn check(surface: &Surface, points_max: u64) {
    assert!(!surface.points.is_empty() && surface.points.len() as u64 <= points_max);
    for p in &surface.points {
        for e in [Some(p.relative_speed), Some(p.gpu_power_w), p.steps_per_s].into_iter().flatten()
        {
            assert!(e.low <= e.mean && e.mean <= e.high, "{p:?}");
            assert!(e.low > 0.0 && e.high.is_finite(), "{p:?}");
        }
        assert!(p.relative_speed.high <= 1.05, "{p:?}");
        assert!(p.gpus >= p.nodes && p.nodes > 0, "{p:?}");
    }
    // It can be encoded and decoded.
    let bytes = serde_json::to_vec(surface).unwrap();
    assert!(bytes.len() < 256 * 1_024, "{} bytes", bytes.len());
    assert_eq!(&serde_json::from_slice::<Surface>(&bytes).unwrap(), surface);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(64, 256)))]

    #[test]
    fn arbitrary_windows_give_valid_surfaces(
        windows in prop::collection::vec(any_window(), 1..40),
        method in any_method(),
    ) {
        let config = PredictorConfig {
            method,
            jobs_max: 3,
            windows_per_job_max: 8,
            classes_max: 2,
            points_max: 60,
            ..PredictorConfig::shipped()
        };
        let mut p = Predictor::new(config);
        p.describe(Timestamp::EPOCH, job("j"), Some(class("a")), GpuRequest { min: 0, max: u32::MAX }, Some("v100"));
        for (i, w) in windows.iter().enumerate() {
            if let Some(surface) = p.observe(Timestamp::from_s(i as u64), w) {
                check(&surface, 60);
            }
            prop_assert!(p.job_count() <= 3);
        }
        for id in p.jobs().cloned().collect::<Vec<_>>() {
            check(&p.surface(Timestamp::from_s(99), &id).unwrap(), 60);
            prop_assert!(p.knowledge_of(&id).unwrap().windows().len() <= 8);
        }
    }
}

const TRUTH: Truth = Truth { rate: 7.0, demand_w: 230.0, steepness: 0.05, busy: 0.8 };

fn windows() -> Vec<JobWindow> {
    let mut rng = Stream::new(9, "noise");
    let caps = [250.0, 200.0, 150.0, 100.0];
    (0..16).map(|m| seen(&TRUTH, "j", m, caps[m as usize % 4], 0.02, &mut rng)).collect()
}

fn bytes_after<'a>(windows: impl Iterator<Item = &'a JobWindow>) -> Vec<u8> {
    let mut p = Predictor::new(PredictorConfig::shipped());
    for w in windows {
        p.observe(Timestamp::from_s(60), w);
    }
    serde_json::to_vec(&p.surface(Timestamp::from_s(9_000), &job("j")).unwrap()).unwrap()
}

#[test]
fn surface_is_independent_of_order_and_duplicates() {
    let windows = windows();
    let once = bytes_after(windows.iter());
    assert_eq!(once, bytes_after(windows.iter()));
    assert_eq!(once, bytes_after(windows.iter().rev()));
    assert_eq!(once, bytes_after(windows.iter().chain(&windows)));
}

#[test]
fn unusable_window_is_reported_and_changes_nothing() {
    let mut p = Predictor::new(PredictorConfig::shipped());
    let now = Timestamp::from_s(60);
    let mut w = window("j", None, 0);
    w.until_us = w.from_us;
    assert_eq!(p.learn(now, &w), Learned::Unusable(UnusableWindow::EmptyPeriod));
    let mut w = window("j", None, 0);
    w.gpu_type = "v 100.>".into();
    assert!(matches!(p.learn(now, &w), Learned::Unusable(_)));
    let mut w = window("j", None, 0);
    (w.steps_per_s, w.power_mw_gpus) = (Some(f64::NAN), None);
    assert!(matches!(p.learn(now, &w), Learned::Unusable(_)));
    assert_eq!(p.job_count(), 0);
    // A window without a rate gives power only.
    w.power_mw_gpus = Some(Power::from_w(120));
    let surface = p.observe(now, &w).unwrap();
    let exclusive = &surface.points[0];
    assert!(
        exclusive.steps_per_s.is_none() && (exclusive.gpu_power_w.mean / 120.0 - 1.0).abs() < 0.05
    );
}

#[test]
fn surface_is_the_same_after_restoring() {
    let mut p = Predictor::new(PredictorConfig::shipped());
    for w in windows() {
        p.observe(Timestamp::from_s(60), &w);
    }
    let job_json = serde_json::to_string(p.knowledge_of(&job("j")).unwrap()).unwrap();
    let mut q = Predictor::new(PredictorConfig::shipped());
    for (gpu_type, class, kept) in p.take_changed_classes() {
        let json = serde_json::to_string(&kept).unwrap();
        assert!(q.restore_class(&gpu_type, class, serde_json::from_str(&json).unwrap()));
    }
    assert!(q.restore_job(job("j"), serde_json::from_str(&job_json).unwrap()));
    let now = Timestamp::from_s(9_000);
    assert_eq!(p.surface(now, &job("j")), q.surface(now, &job("j")));
}
