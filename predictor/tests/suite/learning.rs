//! The physical method on windows of synthetic jobs.

use crate::common::{
    Truth, class, colocated, job, one_gpu, point, seen, window, windows_under_a_lock,
};
use wattle_common::job::GpuRequest;
use wattle_common::messages::{Estimate, Surface};
use wattle_common::rng::Stream;
use wattle_common::{Frequency, NodeId, Power, Timestamp};
use wattle_predictor::configurations::Configuration;
use wattle_predictor::{Predictor, PredictorConfig};

const HUNGRY: Truth = Truth { rate: 12.0, demand_w: 235.0, steepness: 0.06, busy: 0.95 };

fn predictor() -> Predictor {
    Predictor::new(PredictorConfig::shipped())
}

fn off(estimate: Estimate, truth: f64) -> f64 {
    estimate.mean / truth - 1.0
}

fn width(estimate: Estimate) -> f64 {
    estimate.high / estimate.low
}

fn taught(truth: &Truth, caps: &[f64], each: u64, noise: f64, seed: u64) -> (Predictor, Surface) {
    let (mut p, mut rng) = (predictor(), Stream::new(seed, "noise"));
    let mut minute = 0;
    for cap in caps {
        for _ in 0..each {
            minute += 1;
            p.observe(
                Timestamp::from_s(60 * minute),
                &seen(truth, "j", minute, *cap, noise, &mut rng),
            );
        }
    }
    let surface = p.surface(Timestamp::from_s(9_000), &job("j")).unwrap();
    (p, surface)
}

#[test]
fn three_caps_predict_the_others() {
    let (_, surface) = taught(&HUNGRY, &[250.0, 150.0, 100.0], 3, 0.015, 1);
    for cap in [225u64, 200, 175, 125] {
        let cap_w = cap as f64;
        let Some(p) = surface.points.iter().find(|p| p.cap_mw == Some(Power::from_w(cap))) else {
            continue;
        };
        assert!(off(p.relative_speed, HUNGRY.speed(cap_w)).abs() < 0.06, "{cap} W: {p:?}");
        assert!(off(p.gpu_power_w, HUNGRY.power(cap_w)).abs() < 0.06, "{cap} W: {p:?}");
        let rate = HUNGRY.rate * HUNGRY.speed(cap_w);
        assert!(off(p.steps_per_s.unwrap(), rate).abs() < 0.06, "{cap} W: {p:?}");
    }
    let exclusive = point(&surface, None, &[]);
    assert!((exclusive.relative_speed.mean - 1.0).abs() < 1e-12);
    assert!(off(exclusive.steps_per_s.unwrap(), 12.0).abs() < 0.03, "{exclusive:?}");
    assert!(off(exclusive.gpu_power_w, HUNGRY.power(250.0)).abs() < 0.03, "{exclusive:?}");
}

#[test]
fn job_of_low_power_is_not_slowed_by_caps() {
    let truth = Truth { rate: 50.0, demand_w: 60.0, steepness: 0.06, busy: 0.1 };
    let (_, surface) = taught(&truth, &[250.0], 2, 0.02, 2);
    let p = point(&surface, Some(100), &[]);
    // Its power may alternate between idle and limited phases.
    assert!(p.relative_speed.mean > 0.98 && p.relative_speed.low > 0.86, "{p:?}");
    assert!(off(p.gpu_power_w, 60.0).abs() < 0.05, "{p:?}");
}

/// Coverage of 90 % intervals by later windows, at observed caps and between.
#[test]
fn intervals_cover_later_windows() {
    let (mut inside, mut all) = ([0u32; 2], 0u32);
    let mut draw = Stream::new(5, "truths");
    for seed in 0..60 {
        let truth = Truth {
            rate: 1.0 + 20.0 * draw.unit(),
            demand_w: 120.0 + 125.0 * draw.unit(),
            steepness: 0.02 + 0.1 * draw.unit(),
            busy: 0.9,
        };
        let (_, surface) = taught(&truth, &[250.0, 150.0, 100.0], 2, 0.02, seed);
        let mut rng = Stream::new(seed, "later");
        for cap in [225u64, 200, 175, 150, 125, 100] {
            let Some(p) = surface.points.iter().find(|p| p.cap_mw == Some(Power::from_w(cap)))
            else {
                continue;
            };
            let later = seen(&truth, "j", 99, cap as f64, 0.02, &mut rng);
            let inside_of = |e: Estimate, v: f64| u32::from(e.low <= v && v <= e.high);
            inside[0] += inside_of(p.steps_per_s.unwrap(), later.steps_per_s.unwrap());
            inside[1] += inside_of(p.gpu_power_w, later.power_mw_gpus.unwrap().as_w());
            all += 1;
        }
    }
    for (what, count) in [("rate", inside[0]), ("power", inside[1])] {
        let share = f64::from(count) / f64::from(all);
        assert!((0.84..=0.995).contains(&share), "{what}: {share:.3} of {all}");
    }
}

#[test]
fn more_windows_narrow_the_interval() {
    let width_after = |n| {
        let (_, surface) = taught(&HUNGRY, &[250.0], n, 0.02, 3);
        width(point(&surface, None, &[]).steps_per_s.unwrap())
    };
    let (one, four, twenty) = (width_after(1), width_after(4), width_after(20));
    assert!(one > four && four > twenty && twenty > 1.0, "{one} {four} {twenty}");
    // With one window the rate is as precise as a window repeats; the effect of caps is not.
    let (_, surface) = taught(&HUNGRY, &[250.0], 1, 0.02, 3);
    assert!(one < 1.15, "{one}");
    assert!(width(point(&surface, Some(100), &[]).relative_speed) > 1.3);
}

#[test]
fn one_outlier_is_rejected() {
    let (mut p, mut rng) = (predictor(), Stream::new(4, "noise"));
    for minute in 1..=6 {
        let mut w = seen(&HUNGRY, "j", minute, 250.0, 0.01, &mut rng);
        if minute == 3 {
            w.steps_per_s = w.steps_per_s.map(|r| r * 3.0);
            w.power_mw_gpus = Some(Power::from_w(40));
        }
        p.observe(Timestamp::from_s(60 * minute), &w);
    }
    let surface = p.surface(Timestamp::from_s(9_000), &job("j")).unwrap();
    let exclusive = point(&surface, None, &[]);
    assert!(off(exclusive.steps_per_s.unwrap(), 12.0).abs() < 0.03, "{exclusive:?}");
    assert!(off(exclusive.gpu_power_w, HUNGRY.power(250.0)).abs() < 0.03, "{exclusive:?}");
}

/// Exclusive windows of two classes, then `a` co-located with `b` at a given speed and GPU power.
fn pair(p: &mut Predictor, busy: f64, exclusive_w: u64, speed: f64, shared_w: u64) {
    for (name, at) in [("a", 0), ("b", 20)] {
        for minute in at..at + 3 {
            let mut w = window(&format!("job-{name}"), Some(name), minute);
            w.utilization_gpu_percent = Some(100.0 * busy);
            w.power_mw_gpus = Some(Power::from_w(exclusive_w));
            p.observe(w.until_us, &w);
        }
    }
    for minute in 40..43 {
        let mut w = colocated(window("job-a", Some("a"), minute), &["b"]);
        w.steps_per_s = Some(10.0 * speed);
        w.power_mw_gpus = Some(Power::from_w(shared_w));
        w.utilization_gpu_percent = Some((200.0 * busy).min(100.0));
        w.utilization_gpu_percent_job = Some((100.0 * busy).min(50.0));
        p.observe(w.until_us, &w);
    }
}

#[test]
fn measured_pair_takes_precedence_over_the_curve() {
    // Compute-bound: each at 0.385 of its speed, as published for two ResNet-50 on one GPU.
    let mut p = predictor();
    pair(&mut p, 0.95, 220, 0.385, 245);
    let surface = p.surface(Timestamp::from_s(9_000), &job("job-a")).unwrap();
    let measured = point(&surface, None, &["b"]);
    assert!(off(measured.relative_speed, 0.385).abs() < 0.08, "{measured:?}");
    assert!(off(measured.gpu_power_w, 245.0).abs() < 0.08, "{measured:?}");
    assert!(off(measured.steps_per_s.unwrap(), 3.85).abs() < 0.08, "{measured:?}");
    // The interval of an unknown class is wider.
    let unknown = point(&surface, None, &["unknown"]);
    assert!(width(unknown.relative_speed) > width(measured.relative_speed), "{unknown:?}");
    // The exclusive prediction is unchanged.
    let exclusive = point(&surface, None, &[]);
    assert!(off(exclusive.steps_per_s.unwrap(), 10.0).abs() < 0.03, "{exclusive:?}");
}

#[test]
fn input_bound_pairs_slow_each_other_little() {
    let mut p = predictor();
    pair(&mut p, 0.3, 110, 0.965, 170);
    let surface = p.surface(Timestamp::from_s(9_000), &job("job-a")).unwrap();
    let measured = point(&surface, None, &["b"]);
    assert!(off(measured.relative_speed, 0.965).abs() < 0.03, "{measured:?}");
    assert!(off(measured.gpu_power_w, 170.0).abs() < 0.05, "{measured:?}");
    // Without windows of b in this pair, the curve predicts it with a wider interval.
    let other = p.surface(Timestamp::from_s(9_000), &job("job-b")).unwrap();
    let predicted = point(&other, None, &["a"]);
    assert!((0.9..1.0).contains(&predicted.relative_speed.mean), "{predicted:?}");
    assert!(width(predicted.relative_speed) > width(measured.relative_speed));
    // Two of them: more than one, still mild.
    let two = point(&surface, None, &["b", "b"]);
    assert!(
        two.relative_speed.mean < measured.relative_speed.mean && two.relative_speed.mean > 0.85
    );
}

#[test]
fn class_history_is_the_prior_of_its_next_job() {
    let mut p = predictor();
    pair(&mut p, 0.3, 110, 0.9, 170);
    assert!(p.forget(&job("job-a")) && !p.forget(&job("job-a")));
    let now = Timestamp::from_s(9_000);
    p.describe(now, job("new"), Some(class("a")), GpuRequest::exactly(1), Some("v100"));
    let surface = p.surface(now, &job("new")).unwrap();
    assert_eq!(surface.windows, 0);
    assert_eq!(surface.basis.as_deref(), Some("prior: 1 jobs of a seen on v100"));
    assert!((surface.utilization_gpu_percent.unwrap() - 30.0).abs() < 1.0);
    assert_eq!(surface.memory_mib_max, Some(8_000));
    let exclusive = point(&surface, None, &[]);
    assert!(off(exclusive.steps_per_s.unwrap(), 10.0).abs() < 0.02, "{exclusive:?}");
    assert!(off(point(&surface, None, &["b"]).relative_speed, 0.9).abs() < 0.05);
    // Its own windows take precedence over the class: this job is half as fast.
    for minute in 200..206 {
        let mut w = window("new", Some("a"), minute);
        w.steps_per_s = Some(5.0);
        p.observe(w.until_us, &w);
    }
    let surface = p.surface(now, &job("new")).unwrap();
    assert!(off(point(&surface, None, &[]).steps_per_s.unwrap(), 5.0).abs() < 0.05);
}

#[test]
fn surface_without_evidence_has_wide_intervals() {
    let mut p = predictor();
    let now = Timestamp::from_s(1);
    assert!(p.surface(now, &job("j")).is_none());
    assert!(p.describe(now, job("j"), None, GpuRequest { min: 1, max: 4 }, Some("v100")));
    assert!(!p.describe(now, job("j"), None, GpuRequest { min: 1, max: 4 }, Some("v100")));
    let surface = p.surface(now, &job("j")).unwrap();
    assert_eq!((surface.windows, surface.utilization_gpu_percent), (0, None));
    assert_eq!(surface.basis.as_deref(), Some("prior: nothing like it was seen"));
    let exclusive = point(&surface, None, &[]);
    assert!(exclusive.steps_per_s.is_none() && width(exclusive.gpu_power_w) > 3.0, "{exclusive:?}");
    assert!(width(point(&surface, None, &["unknown"]).relative_speed) > 1.2);
}

#[test]
fn gpus_and_nodes_scale_as_measured() {
    let mut p = predictor();
    let mut minute = 0;
    for (gpus, nodes, rate) in [(1u32, 1u32, 10.0), (2, 1, 18.5), (4, 1, 34.0), (8, 2, 48.0)] {
        for node in 0..nodes {
            minute += 1;
            let mut w = window("j", None, minute);
            w.node = NodeId::new(&format!("n{node}")).unwrap();
            w.gpus = (0..gpus / nodes).collect();
            (w.gpus_total, w.nodes_total) = (gpus, nodes);
            w.power_mw_gpus = Some(Power::from_w(200 * u64::from(gpus / nodes)));
            // Only rank 0 reports steps.
            w.steps_per_s = (node == 0).then_some(rate);
            p.observe(w.until_us, &w);
        }
    }
    let now = Timestamp::from_s(9_000);
    p.describe(now, job("j"), None, GpuRequest { min: 1, max: 16 }, None);
    let surface = p.surface(now, &job("j")).unwrap();
    let rate = |gpus, nodes| {
        let at = |p: &&wattle_common::messages::SurfacePoint| {
            (p.gpus, p.nodes) == (gpus, nodes) && p.cap_mw.is_none() && p.neighbours.is_empty()
        };
        surface.points.iter().find(at).unwrap().steps_per_s.unwrap()
    };
    assert!(off(rate(4, 1), 34.0).abs() < 0.03 && off(rate(8, 2), 48.0).abs() < 0.03);
    assert!(rate(8, 1).mean > 48.0 && rate(8, 1).mean < 70.0, "{:?}", rate(8, 1));
    assert!(rate(16, 2).mean > 48.0 && width(rate(16, 2)) > width(rate(8, 2)));
    let power = surface.points[0].gpu_power_w;
    assert!(off(power, 200.0).abs() < 0.05, "summed over a job's GPUs here: {power:?}");
}

#[test]
fn locked_clocks_are_learned() {
    let mut p = predictor();
    for w in windows_under_a_lock("j") {
        p.observe(w.until_us, &w);
    }
    let at = Configuration { clock_max: Some(Frequency::from_mhz(1_050)), ..one_gpu() };
    let locked = p.predict(&job("j"), &at).unwrap();
    assert!(off(locked.relative_speed, 0.855).abs() < 0.04, "{locked:?}");
    assert!(off(locked.gpu_power_w, 150.0).abs() < 0.05, "{locked:?}");
    let exclusive = p.predict(&job("j"), &Configuration { clock_max: None, ..at });
    assert!(off(exclusive.unwrap().gpu_power_w, 200.0).abs() < 0.03);
}

#[test]
fn a_cap_beside_a_clock_counts_only_where_it_is_the_tighter_one() {
    let under = |cap_w: u64, (clock, rate, watts): (u32, f64, u64)| {
        let mut p = predictor();
        for mut w in windows_under_a_lock("j") {
            if w.clock_mhz_max.is_some() {
                w.cap_mw = Some(Power::from_w(cap_w));
                w.clock_mhz_mean = Some(Frequency::from_mhz(clock));
                w.steps_per_s = Some(rate);
                w.power_mw_gpus = Some(Power::from_w(watts));
            }
            p.observe(w.until_us, &w);
        }
        p
    };
    let at = |p: &Predictor, mhz: u32| {
        let clock_max = Some(Frequency::from_mhz(mhz));
        p.predict(&job("j"), &Configuration { clock_max, ..one_gpu() }).unwrap()
    };
    // Loose caps, near the power and far from it: what the clock alone does.
    for cap_w in [160, 190] {
        let locked = at(&under(cap_w, (1_050, 8.55, 150)), 1_050);
        assert!(off(locked.relative_speed, 0.855).abs() < 0.04, "{cap_w} W: {locked:?}");
        assert!(off(locked.gpu_power_w, 150.0).abs() < 0.05, "{cap_w} W: {locked:?}");
    }
    // A tight one lowers the clock to 800 MHz: what that clock does, and more at the locked one.
    let tight = under(110, (800, 6.0, 108));
    let (lowered, locked) = (at(&tight, 800), at(&tight, 1_050));
    assert!(off(lowered.relative_speed, 0.6).abs() < 0.05, "{lowered:?}");
    assert!(off(lowered.gpu_power_w, 108.0).abs() < 0.05, "{lowered:?}");
    assert!(locked.relative_speed.mean > 0.68, "{locked:?}");
    assert!(locked.gpu_power_w.mean > 120.0, "{locked:?}");
}
