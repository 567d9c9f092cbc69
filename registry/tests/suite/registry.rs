//! The registry's decisions: surfaces in force, states, priors, restarts and limits.

use std::collections::BTreeMap;

use proptest::prelude::*;
use wattle_common::Timestamp;
use wattle_common::id::{AdmissionId, JobId, PredictorId};
use wattle_common::job::GpuRequest;
use wattle_common::messages::{Champion, Estimate, PredictorState, PredictorStatus, Surface};
use wattle_registry::score::Record;
use wattle_registry::{Action, Event, Notice, Registry, RegistryConfig};
use wattle_testkit::{job, predictor as named};

use crate::bench::{Bench, at, closed, estimate, on, surface};

#[test]
fn only_the_champions_surfaces_are_in_force() {
    let mut bench = Bench::new();
    bench.propose(1, surface("physical", "a", at(1), &[(None, 10.0, 180.0)]));
    bench.propose(1, surface("rival", "a", at(1), &[(None, 9.0, 170.0)]));
    let passed: Vec<_> = bench.written().into_iter().map(|s| s.predictor).collect();
    assert_eq!(passed, [named("physical")]);
    assert_eq!(bench.registry.may_promote(&named("rival")), Ok(()));
    let error = bench.registry.may_promote(&named("rivla")).unwrap_err();
    assert_eq!(error.to_string(), "no predictor `rivla`; known predictors: physical, rival");

    let champion = Champion { predictor: named("rival"), since_us: at(2), generation: 2 };
    let observed = |bench: &Bench| -> Vec<(String, u64, bool)> {
        let statuses = bench.out.iter().filter_map(|action| match action {
            Action::WriteStatus(status) => {
                Some((status.name.to_string(), status.observed_generation, status.champion))
            }
            _ => None,
        });
        statuses.collect()
    };
    assert_eq!(bench.status(2, "physical").observed_generation, 1);
    bench.event(2, Event::Promoted(champion));
    // Both statuses reflect the promotion at once.
    let expected = [("physical".to_owned(), 2, false), ("rival".to_owned(), 2, true)];
    assert_eq!(observed(&bench), expected);
    bench.propose(3, surface("physical", "a", at(3), &[(None, 10.0, 180.0)]));
    // Proposed again on request, unchanged: it is now the champion's.
    bench.propose(3, surface("rival", "a", at(1), &[(None, 9.0, 170.0)]));
    let passed: Vec<_> = bench.written().into_iter().map(|s| s.predictor).collect();
    assert_eq!(passed, [named("rival")]);
    assert_eq!(bench.status(3, "rival").state, PredictorState::Champion);
    assert_eq!(bench.status(3, "physical").state, PredictorState::Challenger);

    // Duplicate and late proposals have no effect; newer ones do.
    bench.propose(4, surface("rival", "a", at(1), &[(None, 9.0, 170.0)]));
    bench.propose(4, surface("rival", "a", at(0), &[(None, 8.0, 170.0)]));
    assert_eq!(bench.written(), []);
    bench.propose(5, surface("rival", "a", at(5), &[(None, 9.5, 170.0)]));
    assert_eq!(bench.written().len(), 1);
    // A proposal after the job's end has no effect.
    bench.event(6, Event::JobEnded(job("a"), None));
    bench.propose(7, surface("rival", "a", at(7), &[(None, 9.5, 170.0)]));
    assert_eq!(bench.written(), []);
}

#[test]
fn a_name_that_is_submitted_again_begins_without_its_surface() {
    let [first, second] = [1, 2].map(|s| Some(AdmissionId::accepted(at(s), 1)));
    let of = |admission: &Option<AdmissionId>, seconds| Surface {
        admission: admission.clone(),
        ..surface("physical", "b", at(seconds), &[(None, 9.0, 170.0)])
    };
    let mut bench = Bench::new();
    bench.describe_submission(1, "b", first.clone());
    bench.propose(2, of(&first, 2));
    assert_eq!(bench.written(), [of(&first, 2)]);
    bench.event(3, Event::JobEnded(job("b"), first.clone()));
    bench.out.clear();
    // The second submission is a job of its own, also for what arrives late of the first one.
    bench.describe_submission(4, "b", second.clone());
    bench.propose(5, of(&first, 5));
    assert_eq!(bench.written(), [], "a late proposal");
    bench.propose(6, of(&second, 6));
    assert_eq!(bench.written(), [of(&second, 6)]);
    bench.event(7, Event::JobEnded(job("b"), first.clone()));
    bench.propose(8, of(&second, 8));
    assert_eq!(bench.written(), [of(&second, 8)], "the second one has not ended");
}

#[test]
fn a_surface_that_was_found_counts_for_its_own_submission() {
    let [first, second] = [1, 2].map(|s| Some(AdmissionId::accepted(at(s), 1)));
    let prior_of = |found: Option<AdmissionId>| {
        let mut bench = Bench::new();
        bench.describe_submission(1, "b", second.clone());
        bench.event(2, Event::SurfaceFound(job("b"), found));
        let is_removed = bench.out.contains(&Action::RemoveSurface(job("b")));
        bench.wake(3_600);
        let priors = bench.written().into_iter().filter(|surface| surface.job == job("b"));
        (is_removed, priors.map(|surface| surface.admission).collect::<Vec<_>>())
    };
    assert_eq!(prior_of(second.clone()), (false, vec![]));
    assert_eq!(prior_of(None), (false, vec![]), "an earlier version named none");
    assert_eq!(prior_of(first), (true, vec![second.clone()]));
}

#[test]
fn stored_champion_and_counts_are_limited() {
    let champion =
        Champion { predictor: named("physical"), since_us: Timestamp::FOREVER, generation: 2 };
    let stored = r#"{"speed":{"prior":[],"new_config":[],"same_config":[]},
        "power":{"prior":[],"new_config":[],"same_config":[]},"latency_ms":[],
        "proposals":18446744073709551615,"refused":18446744073709551615,"uncovered":0}"#;
    let record: Record = serde_json::from_str(stored).unwrap();
    let records = vec![(named("physical"), record)];
    let config = RegistryConfig::shipped();
    let registry = Registry::new(at(0), config, Some(champion), records);
    assert_eq!(registry.champion().since_us, at(0));
    let mut bench = Bench { registry, out: Vec::new() };
    bench.describe(0, "a");
    bench.propose(1, surface("physical", "a", at(1), &[(None, 10.0, 180.0)]));
    assert_eq!(bench.written().len(), 1);
}

#[test]
fn invalid_surfaces_are_refused_and_three_make_a_predictor_failing() {
    let mut bench = Bench::new();
    let good = surface("rival", "a", at(1), &[(None, 10.0, 180.0)]);
    let wrong = |change: &dyn Fn(&mut Surface)| {
        let mut wrong = good.clone();
        change(&mut wrong);
        wrong
    };
    let there = |kind: &str| on(kind, good.clone());
    let cases: [(&str, Surface); 13] = [
        ("type v100 occurs twice", wrong(&|s| s.other_gpu_types = vec![there("v100")])),
        (
            "type p100 occurs twice",
            wrong(&|s| s.other_gpu_types = vec![there("p100"), there("p100")]),
        ),
        (
            "has other_gpu_types of its own",
            wrong(&|s| {
                s.other_gpu_types =
                    vec![Surface { other_gpu_types: vec![there("a")], ..there("p100") }];
            }),
        ),
        (
            "more than 8 GPU types",
            wrong(&|s| s.other_gpu_types = (0..8).map(|i| there(&format!("k{i}"))).collect()),
        ),
        ("no points", wrong(&|s| s.points.clear())),
        ("gpu_power_w", wrong(&|s| s.points[0].gpu_power_w.mean = f64::NAN)),
        ("in order", wrong(&|s| s.points[0].relative_speed.low = 1.5)),
        (
            "gpu_power_w",
            wrong(&|s| s.points[0].gpu_power_w = Estimate { mean: -3.0, low: -4.0, high: 1.0 }),
        ),
        ("steps_per_s", wrong(&|s| s.points[0].steps_per_s = Some(estimate(0.0)))),
        ("gpus and nodes", wrong(&|s| s.points[0].nodes = 2)),
        ("future", wrong(&|s| s.at_us = at(10_000))),
        ("the subject names", wrong(&|s| s.job = job("b"))),
        ("gpu_type", wrong(&|s| s.gpu_type = "a GPU".into())),
    ];
    for (i, (word, wrong)) in cases.into_iter().enumerate() {
        let surface = Ok(Box::new(wrong));
        let event = Event::Proposed { predictor: named("rival"), job: job("a"), surface };
        bench.event(2, event);
        let refusal = bench.out.drain(..).find_map(|action| match action {
            Action::Log(Notice::Refused { error, .. }) => Some(error.to_string()),
            _ => None,
        });
        assert!(refusal.as_ref().is_some_and(|why| why.contains(word)), "{word}: {refusal:?}");
        assert_eq!(bench.status(2, "rival").refused, i as u64 + 1);
    }
    let status = bench.status(2, "rival");
    assert_eq!(status.state, PredictorState::Failing);
    assert!(status.error.unwrap().contains("gpu_type"));
    // The registry's own name is reserved.
    let prior = surface("prior", "a", at(1), &[(None, 10.0, 180.0)]);
    bench.propose(2, prior);
    assert_eq!(bench.status(2, "prior").refused, 1);
    // A valid proposal ends the failure.
    bench.propose(3, good);
    assert_eq!(bench.status(3, "rival").state, PredictorState::Challenger);
}

#[test]
fn prior_replaces_a_silent_champion_until_it_proposes_again() {
    let mut bench = Bench::new();
    bench.propose(1, surface("physical", "a", at(1), &[(None, 10.0, 180.0)]));
    bench.written();
    // Windows are unanswered, although its service answers.
    bench.close(16, closed("a", at(16), 250));
    for seconds in 17..80 {
        bench.found(seconds, &["physical", "rival"]);
        bench.wake(seconds);
    }
    let status = bench.status(80, "physical");
    assert_eq!((status.state, status.champion), (PredictorState::Silent, true));
    assert!(status.error.unwrap().contains("a window of 1 job unanswered since"));
    let changes = |out: &[Action], state| {
        let is = |action: &&Action| {
            matches!(action, Action::Log(Notice::StateChanged { predictor, state: now, .. })
                if *predictor == named("physical") && *now == state)
        };
        out.iter().filter(is).count()
    };
    assert_eq!(changes(&bench.out, PredictorState::Silent), 1, "logged once");
    // Its last surface stays in force; then a prior replaces it, once.
    assert_eq!(bench.written(), []);
    (600..620).for_each(|seconds| bench.wake(seconds));
    let priors = bench.written();
    assert_eq!(priors.len(), 1, "{priors:?}");
    assert_eq!((priors[0].predictor.as_str(), priors[0].windows), ("prior", 0));
    let basis = priors[0].basis.as_ref().unwrap();
    assert_eq!(basis, "prior: predictor physical silent since 00:16:56 UTC");
    // It proposes again: its surface replaces the prior and all others are requested.
    bench.propose(700, surface("physical", "a", at(700), &[(None, 10.0, 180.0)]));
    assert_eq!(changes(&bench.out, PredictorState::Champion), 1);
    assert_eq!(bench.written()[0].predictor, named("physical"));
    bench.wake(701);
    assert_eq!(bench.written(), []);
}

#[test]
fn champion_whose_service_is_gone_is_silent_at_once_and_proposes_all_jobs_on_return() {
    let mut bench = Bench::new();
    bench.describe(0, "b");
    for name in ["a", "b"] {
        bench.propose(1, surface("physical", name, at(1), &[(None, 10.0, 180.0)]));
    }
    bench.found(2, &["rival"]);
    assert_eq!(
        bench.status(2, "physical").state,
        PredictorState::Champion,
        "one answer may be lost"
    );
    bench.found(4, &["rival"]);
    let status = bench.status(4, "physical");
    assert_eq!(status.state, PredictorState::Silent);
    assert!(status.error.unwrap().starts_with("its service is gone"));
    bench.wake(5);
    bench.written();
    // A new job has no surface.
    bench.describe(6, "c");
    bench.wake(12);
    let given = bench.written();
    assert_eq!(given.len(), 1);
    assert_eq!((given[0].job.as_str(), given[0].predictor.as_str()), ("c", "prior"));
    assert!(given[0].basis.as_ref().unwrap().contains("physical has proposed no surface"));
    bench.wake(610);
    assert_eq!(bench.written().len(), 2);
    bench.found(620, &["physical", "rival"]);
    bench.wake(621);
    assert_eq!(bench.status(621, "physical").state, PredictorState::Champion);
    let requested = |action: &Action| matches!(action, Action::WriteChampion(_));
    assert_eq!(bench.out.iter().filter(|action| requested(action)).count(), 1);
}

#[test]
fn scores_and_champion_survive_a_restart() {
    let mut bench = Bench::new();
    bench.propose(1, surface("rival", "a", at(1), &[(None, 20.0, 180.0)]));
    bench.close(16, closed("a", at(16), 250));
    bench.wake(30);
    let kept: Vec<(PredictorId, Record)> = bench
        .out
        .iter()
        .filter_map(|action| match action {
            Action::WriteScores(name, record) => Some((name.clone(), (**record).clone())),
            _ => None,
        })
        .collect();
    let champion = Champion { predictor: named("rival"), since_us: at(20), generation: 2 };
    let config = RegistryConfig::shipped();
    let next = Registry::new(at(40), config, Some(champion.clone()), kept);
    assert_eq!(next.champion(), &champion);
    let before = bench.status(30, "rival");
    let after = next.status(at(40), &named("rival")).unwrap();
    assert_eq!((after.speed, after.power, after.proposals), (before.speed, before.power, 1));
    assert!(after.speed.prior.is_some());
}

#[test]
fn lost_challengers_are_removed_and_predictors_beyond_the_limit_ignored() {
    let mut bench = Bench::new();
    for i in 0..20 {
        bench.propose(1, surface(&format!("p{i}"), "a", at(1), &[(None, 10.0, 180.0)]));
    }
    assert!(bench.registry.may_promote(&named("p5")).is_ok());
    assert!(bench.registry.may_promote(&named("p6")).is_err(), "the limit is eight");
    let turned = |action: &Action| matches!(action, Action::Log(Notice::TooManyPredictors(_)));
    assert!(bench.out.iter().any(turned));
    bench.wake(90_000);
    let error = bench.registry.may_promote(&named("rival")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no predictor `rival`; known predictors: physical",
        "the champion is never removed"
    );
}

/// An event with one of a few jobs, predictors and values.
fn any_event() -> impl Strategy<Value = (u64, Event)> {
    let predictor = prop::sample::select(vec!["physical", "rival", "p1", "p2", "p3", "prior"]);
    let of = prop::sample::select((0..12).map(|i| format!("j{i}")).collect::<Vec<_>>());
    let value = prop_oneof![4 => 0.1f64..100.0, 1 => any::<f64>()];
    let proposed = (predictor.clone(), of.clone(), 0u64..2_000, value.clone(), value.clone())
        .prop_map(|(name, of, when, rate, power)| {
            let caps = [(None, rate, power), (Some(100), rate, power)];
            let surface = Ok(Box::new(surface(name, &of, at(when), &caps)));
            Event::Proposed { predictor: named(name), job: job(&of), surface }
        });
    let closed = (of.clone(), 0u64..2_000, 50u64..300, value).prop_map(|(of, until, cap, rate)| {
        let mut window = closed(&of, at(until), cap);
        window.steps_per_s = Some(rate);
        Event::WindowClosed(Box::new(window))
    });
    let described = (of.clone(), any::<bool>()).prop_map(|(of, started)| Event::JobDescribed {
        job: job(&of),
        admission: None,
        workload: None,
        gpus: GpuRequest::exactly(1),
        gpu_type: started.then(|| "p100".to_owned()),
        started,
    });
    let found = prop::collection::btree_map(predictor.prop_map(named), Just("1".to_owned()), 0..4);
    let event = prop_oneof![
        8 => proposed,
        8 => closed,
        2 => described,
        1 => of.clone().prop_map(|of| Event::JobEnded(job(&of), None)),
        1 => of.prop_map(|of| Event::SurfaceFound(job(&of), None)),
        2 => found.prop_map(Event::ServicesFound),
    ];
    (0u64..2_000, event)
}

proptest! {
    /// For any sequence of events: surfaces in force are valid and the champion's or a prior, memory
    /// is bounded, statuses contain only finite numbers, and an ended job has no surface.
    #[test]
    fn invariants_hold_for_any_events(mut events in prop::collection::vec(any_event(), 1..150), ordered: bool) {
        if ordered {
            events.sort_by_key(|(seconds, _)| *seconds);
        }
        let mut bench = Bench::new();
        let mut standing: BTreeMap<JobId, bool> = BTreeMap::new();
        let mut ended = Vec::new();
        for (seconds, event) in events {
            if let Event::JobEnded(job, _) = &event {
                ended.push(job.clone());
            }
            bench.event(seconds, event);
            bench.wake(seconds);
            for action in bench.out.drain(..) {
                match action {
                    Action::WriteSurface(surface) => {
                        prop_assert!(["physical", "prior"].contains(&surface.predictor.as_str()));
                        prop_assert!(!ended.contains(&surface.job));
                        for point in &surface.points {
                            let power = point.gpu_power_w;
                            prop_assert!(power.low <= power.mean && power.mean <= power.high);
                            prop_assert!(power.mean > 0.0 && power.high.is_finite());
                        }
                        standing.insert(surface.job.clone(), true);
                    }
                    Action::RemoveSurface(job) => {
                        standing.remove(&job);
                    }
                    Action::WriteStatus(status) => {
                        let text = serde_json::to_string(&status).unwrap();
                        let back: PredictorStatus = serde_json::from_str(&text).unwrap();
                        prop_assert_eq!(back, *status, "a value is not finite");
                    }
                    _ => {}
                }
            }
            let (jobs, windows, proposals) = bench.registry.kept();
            prop_assert!(jobs <= 8 && windows <= 8 * 8 && proposals <= 2 * 4 * 8, "{jobs} {windows} {proposals}");
        }
        for job in &ended {
            prop_assert!(!standing.contains_key(job));
        }
    }
}
