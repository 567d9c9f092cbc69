//! The statistical method on windows of synthetic jobs: accuracy, interval widths and bounds.

use crate::common::{
    Truth, class, colocated, job, one_gpu, point, seen, window, windows_under_a_lock,
};
use wattle_common::job::GpuRequest;
use wattle_common::messages::{Estimate, Surface, SurfacePoint};
use wattle_common::rng::Stream;
use wattle_common::{Frequency, Power, Timestamp};
use wattle_predictor::configurations::Configuration;
use wattle_predictor::method::Method;
use wattle_predictor::{Predictor, PredictorConfig};

const LATER: Timestamp = Timestamp::from_s(90_000);

fn predictor() -> Predictor {
    Predictor::new(PredictorConfig { method: Method::Statistical, ..PredictorConfig::shipped() })
}

fn off(estimate: Estimate, truth: f64) -> f64 {
    estimate.mean / truth - 1.0
}

fn width(estimate: Estimate) -> f64 {
    estimate.high / estimate.low
}

fn truth(draw: &mut Stream) -> Truth {
    Truth {
        rate: 1.0 + 20.0 * draw.unit(),
        demand_w: 150.0 + 90.0 * draw.unit(),
        steepness: 0.06,
        busy: 0.9,
    }
}

/// Jobs of other classes, each under every cap.
fn school(p: &mut Predictor, jobs: u64, caps: &[u64]) {
    let (mut draw, mut rng) = (Stream::new(1, "truths"), Stream::new(2, "noise"));
    for i in 0..jobs {
        let truth = truth(&mut draw);
        for (minute, cap) in caps.iter().enumerate() {
            let (name, at) = (format!("old-{i}"), 100 * i + minute as u64);
            let mut w = seen(&truth, &name, at, *cap as f64, 0.015, &mut rng);
            w.workload = Some(class(&format!("class-{i}")));
            p.observe(w.until_us, &w);
        }
    }
}

const CAPS: [u64; 6] = [250, 225, 200, 150, 125, 100];

fn surface_of(p: &Predictor, id: &str) -> Surface {
    p.surface(LATER, &job(id)).unwrap()
}

/// Rates of a class belong to its batch, and a new job of the class is expected to use that batch; also
/// after the class is restored from storage.
#[test]
fn rates_of_a_class_belong_to_its_batch() {
    let mut first = predictor();
    let known = |p: &mut Predictor| {
        for minute in 0..4 {
            let mut w = window("old", Some("big"), minute);
            w.global_batch = Some(1_024);
            p.observe(w.until_us, &w);
        }
        p.forget(&job("old"));
    };
    known(&mut first);
    let mut second = predictor();
    for (gpu_type, class, kept) in first.take_changed_classes() {
        assert!(second.restore_class(&gpu_type, class, kept));
    }
    for (name, mut p) in [("taught", first), ("restored", second)] {
        let gpus = GpuRequest::exactly(1);
        p.describe(LATER, job("new"), Some(class("big")), gpus, Some("v100"));
        let rate = |global_batch| {
            let at = Configuration { global_batch, ..one_gpu() };
            p.predict(&job("new"), &at).unwrap().steps_per_s.unwrap().mean
        };
        let (own, same, small) = (rate(None), rate(Some(1_024)), rate(Some(64)));
        assert!((own / 10.0 - 1.0).abs() < 0.1, "{name}: {own}");
        assert!((same / own - 1.0).abs() < 0.01, "{name}: {same} and {own}");
        assert!(small > 2.0 * own, "{name}: {small} in a 16th of the batch");
    }
}

/// A new job with windows at the default setting only is predicted under caps from other jobs.
#[test]
fn other_jobs_predict_unseen_caps() {
    let (mut p, mut green) = (predictor(), predictor());
    school(&mut p, 12, &CAPS);
    let (mut draw, mut rng) = (Stream::new(7, "truths"), Stream::new(8, "noise"));
    let (mut taught_miss, mut green_miss, mut inside, mut all) = (0.0, 0.0, 0, 0);
    for i in 0..12 {
        let (truth, name) = (truth(&mut draw), format!("new-{i}"));
        for minute in 0..2 {
            let mut w = seen(&truth, &name, 9_000 + minute, 250.0, 0.015, &mut rng);
            w.workload = Some(class(&name));
            p.observe(w.until_us, &w);
            green.observe(w.until_us, &w);
        }
        let (taught, green) = (surface_of(&p, &name), surface_of(&green, &name));
        for cap in [200, 150, 125, 100] {
            let at = point(&taught, Some(cap), &[]);
            let speed = truth.speed(cap as f64);
            taught_miss += off(at.relative_speed, speed).abs();
            green_miss += off(point(&green, Some(cap), &[]).relative_speed, speed).abs();
            let (rate, watts) = (truth.rate * speed, truth.power(cap as f64));
            for (e, v) in [(at.steps_per_s.unwrap(), rate), (at.gpu_power_w, watts)] {
                inside += u32::from(e.low <= v && v <= e.high);
                all += 1;
            }
        }
    }
    let (taught, green) = (taught_miss / 48.0, green_miss / 48.0);
    assert!(taught < 0.05 && taught < 0.6 * green, "{taught:.3} {green:.3}");
    assert!(f64::from(inside) > 0.85 * f64::from(all), "{inside} of {all}");
}

/// A job's own readings take precedence over those of other jobs.
#[test]
fn own_readings_take_precedence() {
    let mut p = predictor();
    school(&mut p, 12, &CAPS);
    let odd = Truth { rate: 5.0, demand_w: 230.0, steepness: 0.25, busy: 0.9 };
    let mut rng = Stream::new(3, "noise");
    for (minute, cap) in [250.0, 250.0, 150.0, 150.0, 100.0, 100.0].into_iter().enumerate() {
        let w = seen(&odd, "odd", 9_000 + minute as u64, cap, 0.01, &mut rng);
        p.observe(w.until_us, &w);
    }
    let surface = surface_of(&p, "odd");
    for (cap, within) in [(None, 0.03), (Some(150), 0.08), (Some(100), 0.08)] {
        let at = point(&surface, cap, &[]);
        let speed = odd.speed(cap.unwrap_or(250) as f64);
        assert!(off(at.relative_speed, speed).abs() < within, "{cap:?} {at:?}");
        assert!(off(at.steps_per_s.unwrap(), 5.0 * speed).abs() < within, "{at:?}");
    }
    // Between two observed caps the slope is twice that of any other job, so the interval is wide. Its
    // width follows from the other jobs, so the truth may lie slightly outside.
    let between = point(&surface, Some(125), &[]).relative_speed;
    let speed = odd.speed(125.0);
    assert!(between.low <= 1.1 * speed && speed <= between.high, "{between:?}");
    assert!(width(between) > 1.1, "{speed} {between:?}");
    let exclusive = point(&surface, None, &[]);
    assert!((exclusive.relative_speed.high - exclusive.relative_speed.low).abs() < 1e-9);
    assert!(width(exclusive.steps_per_s.unwrap()) < 1.25, "{exclusive:?}");
    let basis = surface.basis.unwrap();
    assert!(basis.contains("6 windows of this job, 12 other jobs, 0 of invented"), "{basis}");
}

/// Speed and power do not rise as the cap falls, beyond noise.
#[test]
fn lower_caps_are_not_faster() {
    for jobs in [0, 3, 12] {
        let mut p = predictor();
        school(&mut p, jobs, &CAPS);
        let mut rng = Stream::new(4, "noise");
        let truth = Truth { rate: 5.0, demand_w: 225.0, steepness: 0.06, busy: 0.9 };
        let w = seen(&truth, "j", 9_000, 250.0, 0.01, &mut rng);
        p.observe(w.until_us, &w);
        let surface = surface_of(&p, "j");
        let mut last: Option<&SurfacePoint> = None;
        for cap in [None, Some(225), Some(200), Some(175), Some(150), Some(125), Some(100)] {
            let at = point(&surface, cap, &[]);
            if let Some(last) = last {
                let slower = at.relative_speed.mean <= 1.02 * last.relative_speed.mean;
                let cooler = at.gpu_power_w.mean <= 1.02 * last.gpu_power_w.mean;
                assert!(slower && cooler, "{jobs} {cap:?}: {at:?} after {last:?}");
            }
            last = Some(at);
        }
    }
}

/// Exclusive windows of both classes, then the first co-located with the second at a given speed and GPU
/// power.
fn pair(
    p: &mut Predictor,
    names: [&str; 2],
    busy: f64,
    exclusive_w: u64,
    speed: f64,
    shared_w: u64,
) {
    let at = p.job_count() as u64 * 100;
    for (i, name) in names.into_iter().enumerate() {
        for minute in 0..3 {
            let minute = at + 10 * i as u64 + minute;
            let mut w = window(&format!("job-{name}"), Some(name), minute);
            w.utilization_gpu_percent = Some(100.0 * busy);
            w.power_mw_gpus = Some(Power::from_w(exclusive_w));
            p.observe(w.until_us, &w);
        }
    }
    for minute in at + 40..at + 43 {
        let name = format!("job-{}", names[0]);
        let mut w = colocated(window(&name, Some(names[0]), minute), &[names[1]]);
        w.steps_per_s = Some(10.0 * speed);
        w.power_mw_gpus = Some(Power::from_w(shared_w));
        w.utilization_gpu_percent = Some((200.0 * busy).min(100.0));
        w.utilization_gpu_percent_job = Some((100.0 * busy).min(50.0));
        p.observe(w.until_us, &w);
    }
}

/// Input-bound pairs slow each other little, compute-bound pairs strongly, for observed and unobserved
/// pairs.
#[test]
fn input_bound_and_compute_bound_pairs_are_distinguished() {
    let mut p = predictor();
    for i in 0..4 {
        let (hot, cold) = ([format!("h{i}"), format!("g{i}")], [format!("c{i}"), format!("d{i}")]);
        pair(&mut p, [&hot[0], &hot[1]], 0.95, 220, 0.42, 245);
        pair(&mut p, [&cold[0], &cold[1]], 0.3, 110, 0.965, 170);
    }
    let at = |id: &str, neighbour: &str| point(&surface_of(&p, id), None, &[neighbour]).clone();
    let hot = at("job-h1", "g1");
    assert!(off(hot.relative_speed, 0.42).abs() < 0.12, "{hot:?}");
    assert!(off(hot.gpu_power_w, 245.0).abs() < 0.1, "{hot:?}");
    let cold = at("job-c1", "d1");
    assert!(off(cold.relative_speed, 0.965).abs() < 0.03, "{cold:?}");
    assert!(off(cold.gpu_power_w, 170.0).abs() < 0.1, "{cold:?}");
    // Jobs with exclusive windows only.
    let hot = at("job-g1", "h2");
    assert!((0.35..0.62).contains(&hot.relative_speed.mean), "{hot:?}");
    let cold = at("job-d1", "c2");
    assert!((0.9..=1.0).contains(&cold.relative_speed.mean), "{cold:?}");
    let unknown = at("job-h1", "unknown");
    assert!(width(unknown.relative_speed) > 1.2, "{unknown:?}");
}

/// Jobs of one class, each on one number of GPUs, determine the scaling of the class.
#[test]
fn jobs_of_a_class_share_their_scaling() {
    let mut p = predictor();
    let true_rate = |gpus: u32| 10.0 * f64::from(gpus).powf(0.5);
    for (i, gpus) in [1u32, 2, 4, 8, 1, 2, 4, 8].into_iter().enumerate() {
        for minute in 0..2 {
            let mut w = window(&format!("old-{i}"), Some("a"), 100 * i as u64 + minute);
            (w.gpus, w.gpus_total) = ((0..gpus).collect(), gpus);
            w.steps_per_s = Some(true_rate(gpus));
            w.power_mw_gpus = Some(Power::from_w(180 * u64::from(gpus)));
            p.observe(w.until_us, &w);
        }
    }
    p.describe(LATER, job("new"), Some(class("a")), GpuRequest { min: 1, max: 8 }, Some("v100"));
    let surface = surface_of(&p, "new");
    for at in surface
        .points
        .iter()
        .filter(|p| p.cap_mw.is_none() && p.neighbours.is_empty() && p.nodes == 1)
    {
        let rate = at.steps_per_s.unwrap();
        assert!(off(rate, true_rate(at.gpus)).abs() < 0.15, "{at:?}");
        assert!(rate.low <= true_rate(at.gpus) && true_rate(at.gpus) <= rate.high, "{at:?}");
        assert!(off(at.gpu_power_w, 180.0).abs() < 0.1, "{at:?}");
    }
    assert!(surface.basis.unwrap().starts_with("prior: "));
    // The same after a restart, from the stored history.
    let mut q = predictor();
    for (gpu_type, class, kept) in p.take_changed_classes() {
        assert!(q.restore_class(&gpu_type, class, kept));
    }
    q.refit_pooled();
    q.describe(LATER, job("new"), Some(class("a")), GpuRequest { min: 1, max: 8 }, Some("v100"));
    for at in surface_of(&q, "new")
        .points
        .iter()
        .filter(|p| p.cap_mw.is_none() && p.neighbours.is_empty() && p.nodes == 1)
    {
        assert!(off(at.steps_per_s.unwrap(), true_rate(at.gpus)).abs() < 0.15, "{at:?}");
    }
}

#[test]
fn intervals_are_wide_without_readings() {
    let mut p = predictor();
    p.describe(LATER, job("j"), None, GpuRequest { min: 1, max: 4 }, Some("v100"));
    let surface = surface_of(&p, "j");
    let exclusive = point(&surface, None, &[]);
    assert!(exclusive.steps_per_s.is_none() && width(exclusive.gpu_power_w) > 3.0, "{exclusive:?}");
    let basis = surface.basis.as_deref().unwrap();
    assert_eq!(basis, "prior: a crude formula; 0 windows of this job, 0 other jobs on v100");
    assert!(width(point(&surface, Some(100), &[]).relative_speed) > 1.1);
    // One window at the default setting carries little information on caps, GPU counts and neighbours.
    let w = window("j", None, 1);
    p.observe(w.until_us, &w);
    let surface = surface_of(&p, "j");
    let exclusive = point(&surface, None, &[]);
    let four = surface.points.iter().find(|p| p.gpus == 4).unwrap();
    assert!(width(exclusive.steps_per_s.unwrap()) < 1.25, "{exclusive:?}");
    assert!(width(four.steps_per_s.unwrap()) > 1.5, "{four:?}");
    assert!(width(point(&surface, None, &["unknown"]).relative_speed) > 1.2);
}

/// Inferred rates do not count steps: they give relative speeds only.
#[test]
fn inferred_rates_give_no_steps() {
    let mut p = predictor();
    for (minute, cap, rate) in [(0, 250, 3.0), (1, 100, 1.5)] {
        let mut w = window("j", None, minute);
        (w.cap_mw, w.steps_per_s, w.steps_inferred) = (Some(Power::from_w(cap)), Some(rate), true);
        w.power_mw_gpus = Some(Power::from_w(180.min(cap)));
        p.observe(w.until_us, &w);
    }
    let at = point(&surface_of(&p, "j"), Some(100), &[]).clone();
    assert!(at.steps_per_s.is_none(), "{at:?}");
    assert!(off(at.relative_speed, 0.5).abs() < 0.12, "{at:?}");
}

#[test]
fn locked_clocks_are_learned() {
    let mut p = predictor();
    for w in windows_under_a_lock("j") {
        p.observe(w.until_us, &w);
    }
    let at = Configuration { clock_max: Some(Frequency::from_mhz(1_050)), ..one_gpu() };
    let locked = p.predict(&job("j"), &at).unwrap();
    assert!(off(locked.relative_speed, 0.855).abs() < 0.05, "{locked:?}");
    assert!(off(locked.gpu_power_w, 150.0).abs() < 0.06, "{locked:?}");
}

/// The exclusive reading, to which others are relative, is kept after many co-located ones.
#[test]
fn exclusive_reading_is_kept() {
    let mut p = predictor();
    let truth = Truth { rate: 8.0, demand_w: 150.0, steepness: 0.05, busy: 0.7 };
    let mut rng = Stream::new(5, "noise");
    let mut minute = 0;
    for name in ["a", "b", "c", "d"] {
        for neighbour in 0..=20 {
            let mut w = seen(&truth, name, minute, 250.0, 0.01, &mut rng);
            if neighbour > 0 {
                w = colocated(w, &[&format!("n{neighbour}")]);
                w.steps_per_s = w.steps_per_s.map(|rate| 0.5 * rate);
            }
            minute += 1;
            p.observe(w.until_us, &w);
        }
    }
    let surface = surface_of(&p, "a");
    let exclusive = point(&surface, None, &[]).steps_per_s.unwrap();
    assert!((exclusive.mean / 8.0 - 1.0).abs() < 0.1, "{exclusive:?}");
    let at = Configuration { neighbours: vec![class("n20")], ..one_gpu() };
    let colocated = p.predict(&job("a"), &at).unwrap().relative_speed;
    assert!((colocated.mean - 0.5).abs() < 0.12, "{colocated:?}");
}
