//! Jobs without a declared class, matched to a class by their windows.

use crate::common::{class, colocated, job, point, window};
use wattle_common::job::GpuRequest;
use wattle_common::messages::{Estimate, JobWindow, Surface};
use wattle_common::{Power, Timestamp};
use wattle_predictor::method::Method;
use wattle_predictor::{Predictor, PredictorConfig};

const LATER: Timestamp = Timestamp::from_s(900_000);

fn predictor(method: Method) -> Predictor {
    Predictor::new(PredictorConfig { method, ..PredictorConfig::shipped() })
}

/// Shape of a job's windows: busy share, memory traffic in per cent, MiB, W.
type Shape = (f64, f64, u64, u64);

const VISION: Shape = (95.0, 55.0, 12_000, 230);
const RANKING: Shape = (25.0, 10.0, 3_000, 70);
const STRANGE: Shape = (60.0, 80.0, 28_000, 140);

fn of(shape: Shape, name: &str, declared: Option<&str>, minute: u64) -> JobWindow {
    let mut w = window(name, declared, minute);
    w.utilization_gpu_percent = Some(shape.0);
    w.utilization_gpu_percent_job = Some(shape.0);
    w.utilization_memory_percent = Some(shape.1);
    w.memory_mib_max_job = Some(shape.2);
    w.power_mw_gpus = Some(Power::from_w(shape.3));
    w
}

/// Two classes, three jobs each; `vision` halves under 100 W and co-located with `ranking`.
fn school(p: &mut Predictor) {
    for i in 0..3u64 {
        for (shape, name, at) in [(VISION, "vision", 0), (RANKING, "ranking", 50)] {
            let id = format!("{name}-{i}");
            for minute in 0..3 {
                let w = of(shape, &id, Some(name), 100 * i + at + minute);
                p.observe(w.until_us, &w);
            }
        }
        for minute in 10..13 {
            let mut capped = of(VISION, &format!("vision-{i}"), Some("vision"), 100 * i + minute);
            (capped.cap_mw, capped.steps_per_s) = (Some(Power::from_w(100)), Some(5.0));
            capped.power_mw_gpus = Some(Power::from_w(98));
            p.observe(capped.until_us, &capped);
            let shared = of(VISION, &format!("vision-{i}"), Some("vision"), 100 * i + minute + 5);
            let mut shared = colocated(shared, &["ranking"]);
            shared.steps_per_s = Some(5.0);
            p.observe(shared.until_us, &shared);
        }
    }
}

fn show(p: &mut Predictor, shape: Shape, id: &str, windows: std::ops::Range<u64>) -> Surface {
    for minute in windows {
        let w = of(shape, id, None, 5_000 + minute);
        p.observe(w.until_us, &w);
    }
    p.surface(LATER, &job(id)).unwrap()
}

fn off(estimate: Estimate, truth: f64) -> f64 {
    (estimate.mean / truth - 1.0).abs()
}

#[test]
fn a_job_that_matches_a_class_uses_its_history() {
    for method in [Method::Physical, Method::Statistical] {
        let mut p = predictor(method);
        school(&mut p);
        let surface = show(&mut p, VISION, "j", 0..3);
        assert_eq!(surface.class, Some(class("vision")), "{method:?} {:?}", surface.basis);
        let basis = surface.basis.as_deref().unwrap();
        assert!(basis.contains(", like vision (9") && basis.ends_with(" %)"), "{basis}");
        let capped = point(&surface, Some(100), &[]).relative_speed;
        assert!(off(capped, 0.5) < 0.12, "{method:?} {capped:?}");
        let shared = point(&surface, None, &["ranking"]).relative_speed;
        assert!(off(shared, 0.5) < 0.12, "{method:?} {shared:?}");
        // The class does not learn from a match.
        let before = p.take_changed_classes();
        show(&mut p, VISION, "j", 3..6);
        assert!(p.forget(&job("j")));
        assert!(!before.is_empty() && p.take_changed_classes().is_empty());
    }
}

#[test]
fn a_job_unlike_any_class_is_not_matched() {
    let mut p = predictor(Method::Physical);
    school(&mut p);
    let surface = show(&mut p, STRANGE, "j", 0..3);
    assert_eq!(surface.class, None);
    assert_eq!(surface.basis.as_deref(), Some("3 windows of this job on v100"));
}

#[test]
fn a_match_may_change_and_a_declaration_takes_precedence() {
    let mut p = predictor(Method::Physical);
    school(&mut p);
    assert_eq!(show(&mut p, RANKING, "j", 0..1).class, Some(class("ranking")));
    // The first window was the warm-up.
    assert_eq!(show(&mut p, VISION, "j", 1..9).class, Some(class("vision")));
    let one = GpuRequest::exactly(1);
    assert!(p.describe(LATER, job("j"), Some(class("other")), one, None));
    let surface = p.surface(LATER, &job("j")).unwrap();
    assert_eq!(surface.class, Some(class("other")));
    assert!(!surface.basis.unwrap().contains("like"));
    // All counts are consistent: the neighbour axis is empty once all jobs are gone.
    let jobs: Vec<_> = p.jobs().cloned().collect();
    jobs.iter().for_each(|job| assert!(p.forget(job)));
    p.describe(LATER, job("new"), None, one, Some("v100"));
    let axis = p.surface(LATER, &job("new")).unwrap();
    let unknown = class("unknown");
    assert!(axis.points.iter().flat_map(|p| &p.neighbours).all(|n| *n == unknown));
}

/// In a window, an undeclared neighbour has the class that it matches.
#[test]
fn neighbours_refer_to_a_matched_job_by_its_class() {
    let mut p = predictor(Method::Physical);
    school(&mut p);
    let ranking = show(&mut p, RANKING, "r", 0..3);
    assert_eq!(ranking.class, Some(class("ranking")));
    for minute in 0..3 {
        let mut w = colocated(of(STRANGE, "s", Some("strange"), 6_000 + minute), &["x"]);
        (w.neighbours[0].job, w.neighbours[0].workload) = (job("r"), None);
        p.observe(w.until_us, &w);
    }
    let known = p.knowledge_of(&job("s")).unwrap();
    assert!(known.windows().iter().all(|w| w.neighbours == [class("ranking")]));
}

#[test]
fn recurring_undeclared_jobs_share_an_anonymous_class() {
    let mut p = predictor(Method::Physical);
    school(&mut p);
    show(&mut p, STRANGE, "first", 0..2);
    let mut capped = of(STRANGE, "first", None, 5_500);
    (capped.cap_mw, capped.steps_per_s) = (Some(Power::from_w(100)), Some(7.0));
    capped.power_mw_gpus = Some(Power::from_w(98));
    p.observe(capped.until_us, &capped);
    p.take_changed_classes();
    assert!(p.forget(&job("first")));
    let left = p.take_changed_classes();
    assert!(left.len() == 1 && left[0].1 == class("anonymous-1"), "{left:?}");
    let surface = show(&mut p, STRANGE, "second", 0..3);
    assert_eq!(surface.class, Some(class("anonymous-1")));
    let speed = point(&surface, Some(100), &[]).relative_speed;
    assert!(off(speed, 0.7) < 0.1, "{speed:?}");
    // It contributes to that class.
    p.forget(&job("second"));
    let left = p.take_changed_classes();
    assert!(left.len() == 1 && left[0].2.jobs.len() == 2, "{left:?}");
    // A job with few windows founds no class.
    show(&mut p, (10.0, 90.0, 900, 240), "short", 0..1);
    p.forget(&job("short"));
    assert!(p.take_changed_classes().is_empty());
}

#[test]
fn anonymous_classes_are_bounded() {
    let mut p = predictor(Method::Physical);
    for i in 0..60u64 {
        // Each differs from all others in device memory.
        let shape =
            (50.0, 50.0, 100 * 14u64.pow(i as u32 % 8) / 10u64.pow(i as u32 % 8) + 900 * i, 150);
        let id = format!("j{i}");
        show(&mut p, (shape.0, (i % 10) as f64 * 10.0, shape.2, 40 + 20 * (i % 7)), &id, 0..3);
        p.forget(&job(&id));
    }
    let mut names: Vec<String> =
        p.take_changed_classes().iter().map(|(_, class, _)| class.to_string()).collect();
    names.sort();
    names.dedup();
    assert!((20..=32).contains(&names.len()), "{names:?}");
    assert!(names.iter().all(|name| name.starts_with("anonymous-")));
}
