//! The contest's machine by itself: who is passed on, who is scored how, who is silent, and what
//! stands then.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common::{job, window};
use proptest::prelude::*;
use wattle_common::id::{JobId, PredictorId};
use wattle_common::job::GpuRequest;
use wattle_common::messages::{
    Champion, Estimate, JobWindow, PredictorState, PredictorStatus, Surface, SurfacePoint,
};
use wattle_common::{Frequency, Machine, Power, Timestamp};
use wattle_registry::RegistryConfig;
use wattle_registry::score::Record;
use wattle_registry::{Action, Event, Notice, Registry};

fn named(name: &str) -> PredictorId {
    PredictorId::new(name).unwrap()
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_s(1_000 + seconds)
}

fn estimate(mean: f64) -> Estimate {
    Estimate { mean, low: 0.95 * mean, high: 1.05 * mean }
}

/// A surface of one GPU under some caps: (watts, steps a second, card's watts).
fn surface(who: &str, of: &str, when: Timestamp, caps: &[(Option<u64>, f64, f64)]) -> Surface {
    let point = |(cap, rate, power): &(Option<u64>, f64, f64)| SurfacePoint {
        gpus: 1,
        nodes: 1,
        cap_mw: cap.map(Power::from_w),
        clock_mhz_max: None,
        global_batch: None,
        neighbours: Vec::new(),
        steps_per_s: Some(estimate(*rate)),
        relative_speed: estimate(0.9),
        gpu_power_w: estimate(*power),
    };
    Surface {
        job: job(of),
        predictor: named(who),
        at_us: when,
        gpu_type: "v100".into(),
        windows: 1,
        basis: None,
        class: None,
        utilization_gpu_percent: None,
        utilization_memory_percent: None,
        memory_mib_max: None,
        points: caps.iter().map(point).collect(),
        other_gpu_types: Vec::new(),
        probe: None,
    }
}

/// A window of ten steps a second and 180 W under a cap, closed at `until`.
fn closed(of: &str, until: Timestamp, cap: u64) -> JobWindow {
    let mut window = window(of, None, 0);
    (window.from_us, window.until_us) = (until - Duration::from_secs(15), until);
    window.cap_mw = Some(Power::from_w(cap));
    window
}

struct Bench {
    registry: Registry,
    out: Vec<Action>,
}

impl Bench {
    fn new() -> Self {
        let config =
            RegistryConfig { jobs_scored_max: 4, jobs_max: 8, ..RegistryConfig::shipped() };
        let mut bench =
            Self { registry: Registry::new(at(0), config, None, Vec::new()), out: Vec::new() };
        bench.found(0, &["physical", "rival"]);
        bench.describe(0, "a");
        bench
    }

    fn event(&mut self, seconds: u64, event: Event) {
        self.registry.handle(at(seconds), event, &mut self.out);
    }

    fn found(&mut self, seconds: u64, names: &[&str]) {
        let found = names.iter().map(|name| (named(name), "1.2.3".to_owned())).collect();
        self.event(seconds, Event::ServicesFound(found));
    }

    fn describe(&mut self, seconds: u64, name: &str) {
        let gpus = GpuRequest::exactly(1);
        let event = Event::JobDescribed {
            job: job(name),
            workload: None,
            gpus,
            gpu_type: None,
            started: false,
        };
        self.event(seconds, event);
    }

    fn propose(&mut self, seconds: u64, surface: Surface) {
        let (predictor, job) = (surface.predictor.clone(), surface.job.clone());
        let surface = Ok(Box::new(surface));
        self.event(seconds, Event::Proposed { predictor, job, surface });
    }

    fn close(&mut self, seconds: u64, window: JobWindow) {
        self.event(seconds, Event::WindowClosed(Box::new(window)));
    }

    fn wake(&mut self, seconds: u64) {
        self.registry.wake(at(seconds), &mut self.out);
    }

    /// The surfaces that reach the placer since last asked: who says what of whom.
    fn passed_on(&mut self) -> Vec<Surface> {
        let written = self.out.drain(..).filter_map(|action| match action {
            Action::WriteSurface(surface) => Some(*surface),
            _ => None,
        });
        written.collect()
    }

    fn status(&self, seconds: u64, name: &str) -> PredictorStatus {
        self.registry.status(at(seconds), &named(name)).unwrap()
    }
}

#[test]
fn only_the_champion_reaches_the_placer_until_another_is_promoted() {
    let mut bench = Bench::new();
    bench.propose(1, surface("physical", "a", at(1), &[(None, 10.0, 180.0)]));
    bench.propose(1, surface("rival", "a", at(1), &[(None, 9.0, 170.0)]));
    let passed: Vec<_> = bench.passed_on().into_iter().map(|s| s.predictor).collect();
    assert_eq!(passed, [named("physical")]);
    assert_eq!(bench.registry.may_promote(&named("rival")), Ok(()));
    let error = bench.registry.may_promote(&named("rivla")).unwrap_err();
    assert_eq!(error.to_string(), "no predictor `rivla`; known predictors: physical, rival");

    let champion = Champion { predictor: named("rival"), since_us: at(2) };
    bench.event(2, Event::Promoted(champion));
    bench.propose(3, surface("physical", "a", at(3), &[(None, 10.0, 180.0)]));
    // Said once more as asked for, with nothing new in it: it is the champion's now.
    bench.propose(3, surface("rival", "a", at(1), &[(None, 9.0, 170.0)]));
    let passed: Vec<_> = bench.passed_on().into_iter().map(|s| s.predictor).collect();
    assert_eq!(passed, [named("rival")]);
    assert_eq!(bench.status(3, "rival").state, PredictorState::Champion);
    assert_eq!(bench.status(3, "physical").state, PredictorState::Challenger);

    // Doubled and late ones change nothing; what is newer does.
    bench.propose(4, surface("rival", "a", at(1), &[(None, 9.0, 170.0)]));
    bench.propose(4, surface("rival", "a", at(0), &[(None, 8.0, 170.0)]));
    assert_eq!(bench.passed_on(), []);
    bench.propose(5, surface("rival", "a", at(5), &[(None, 9.5, 170.0)]));
    assert_eq!(bench.passed_on().len(), 1);
    // What comes after the job's end brings nothing back.
    bench.event(6, Event::JobEnded(job("a")));
    bench.propose(7, surface("rival", "a", at(7), &[(None, 9.5, 170.0)]));
    assert_eq!(bench.passed_on(), []);
}

#[test]
fn what_was_said_before_is_scored_by_what_then_came() {
    let mut bench = Bench::new();
    let caps = [(None, 20.0, 180.0), (Some(200), 9.0, 160.0), (Some(100), 8.0, 90.0)];
    bench.propose(1, surface("rival", "a", at(1), &caps));
    // Of a job never seen: a prior. 20 foretold, 10 seen: 100 % off; power is right.
    bench.close(16, closed("a", at(16), 250));
    let status = bench.status(16, "rival");
    let prior = status.speed.prior.unwrap();
    assert_eq!((prior.windows, status.speed.same_config, status.speed.new_config), (1, None, None));
    assert!((prior.mape_percent - 100.0).abs() < 0.01 && prior.coverage90_percent == 0.0);
    let power = status.power.prior.unwrap();
    assert!(power.mape_percent < 0.01 && power.coverage90_percent > 99.9, "{power:?}");

    // Said again two seconds after: once the configuration is known, and once under another cap.
    bench.propose(18, surface("rival", "a", at(18), &caps));
    let latency = bench.status(18, "rival").latency.unwrap();
    assert_eq!((latency.proposals, latency.ms_p50), (1, 2_000));
    bench.close(31, closed("a", at(31), 250));
    bench.close(46, closed("a", at(46), 200));
    let speed = bench.status(46, "rival").speed;
    assert_eq!(speed.same_config.unwrap().windows, 1);
    let elsewhere = speed.new_config.unwrap();
    assert!((elsewhere.mape_percent - 10.0).abs() < 0.01, "{elsewhere:?}");

    // The same window again, and one that is too late, count no second time.
    bench.close(47, closed("a", at(46), 200));
    bench.close(47, closed("a", at(31), 250));
    assert_eq!(bench.status(47, "rival").speed, speed);
    // A cap between two that were said: between them, by the logarithm.
    bench.close(61, closed("a", at(61), 141));
    let elsewhere = bench.status(61, "rival").speed.new_config.unwrap();
    assert_eq!(elsewhere.windows, 2);
    let between = 100.0 * (1.0 - (9.0f64 * 8.0).sqrt() / 10.0);
    assert!((elsewhere.mape_percent - (10.0 + between) / 2.0).abs() < 0.1, "{elsewhere:?}");
    // A cap beyond all that were said: no answer, which is counted.
    bench.close(76, closed("a", at(76), 80));
    let status = bench.status(76, "rival");
    assert_eq!((status.windows_uncovered, status.speed.new_config.unwrap().windows), (1, 2));
    // Who said nothing has no scores.
    assert_eq!(bench.status(76, "physical").speed, Default::default());
}

/// Points of another batch, and of a locked clock, are scored by windows in that batch and under that
/// clock, and by no others.
#[test]
fn batches_and_clocks_are_scored_each_by_their_own_windows() {
    let mut bench = Bench::new();
    let mut said = surface("rival", "a", at(1), &[(None, 10.0, 180.0); 4]);
    let rates = [10.0, 40.0, 9.0, 4.0];
    for (point, rate) in said.points.iter_mut().zip(rates) {
        point.steps_per_s = Some(estimate(rate));
    }
    said.points[1].global_batch = Some(32);
    said.points[2].clock_mhz_max = Some(Frequency::from_mhz(1_200));
    said.points[3].clock_mhz_max = Some(Frequency::from_mhz(600));
    let window = |until: u64, batch: Option<u32>, clock: Option<u32>, rate: f64| {
        let mut window = closed("a", at(until), 250);
        window.global_batch = batch;
        window.clock_mhz_max = clock.map(Frequency::from_mhz);
        window.steps_per_s = Some(rate);
        window
    };
    bench.propose(1, said.clone());
    bench.close(16, window(16, None, None, 10.0));
    let prior = bench.status(16, "rival").speed.prior.unwrap();
    assert!(prior.mape_percent < 0.01, "the job's own batch, no lock: {prior:?}");

    let mut elsewhere = |bench: &mut Bench, until: u64, window: JobWindow| {
        let sum = |score: Option<wattle_common::messages::Score>| {
            score.map_or(0.0, |s| s.windows as f64 * s.mape_percent)
        };
        let before = sum(bench.status(until, "rival").speed.new_config);
        said.at_us = at(until - 14);
        bench.propose(until - 14, said.clone());
        bench.close(until, window);
        sum(bench.status(until, "rival").speed.new_config) - before
    };
    // 9 foretold under the lock, 10 seen.
    let off = elsewhere(&mut bench, 31, window(31, None, Some(1_200), 10.0));
    assert!((off - 10.0).abs() < 0.01, "{off}");
    // Between two clocks, along the logarithm.
    let middle = (600.0f64 * 1_200.0).sqrt();
    let off = elsewhere(&mut bench, 46, window(46, None, Some(middle.round() as u32), 6.0));
    assert!(off < 0.2, "{off}");
    // 40 foretold of the batch, 50 seen.
    let off = elsewhere(&mut bench, 61, window(61, Some(32), None, 50.0));
    assert!((off - 20.0).abs() < 0.01, "{off}");
    // A batch that no point names is the job's own.
    let off = elsewhere(&mut bench, 76, window(76, Some(128), None, 12.5));
    assert!((off - 20.0).abs() < 0.01, "{off}");
    // A clock below all that were said has no answer, which is counted.
    assert_eq!(bench.status(76, "rival").windows_uncovered, 0);
    let off = elsewhere(&mut bench, 91, window(91, None, Some(300), 10.0));
    assert_eq!((bench.status(91, "rival").windows_uncovered, off), (1, 0.0));
}

/// A proposal that comes after a window's end may rest on the window itself, in whatever order the
/// two arrive: the one before it is scored.
#[test]
fn nobody_is_scored_by_what_he_knew() {
    let mut bench = Bench::new();
    bench.propose(1, surface("rival", "a", at(1), &[(None, 20.0, 180.0)]));
    bench.propose(17, surface("rival", "a", at(17), &[(None, 10.0, 180.0)]));
    bench.close(18, closed("a", at(16), 250));
    let prior = bench.status(18, "rival").speed.prior.unwrap();
    assert!((prior.mape_percent - 100.0).abs() < 0.01, "{prior:?}");
}

/// A predictor that says no rates is scored by its relative speeds, once the job was seen alone.
#[test]
fn relative_speeds_are_scored_where_no_rates_are_said() {
    let mut bench = Bench::new();
    let mut relative = surface("rival", "a", at(1), &[(None, 1.0, 180.0), (Some(100), 1.0, 95.0)]);
    relative.points.iter_mut().for_each(|point| point.steps_per_s = None);
    bench.propose(1, relative.clone());
    // Alone at the default a relative speed is 1 by definition: nothing to score.
    bench.close(16, closed("a", at(16), 250));
    assert_eq!(bench.status(16, "rival").speed.prior, None);
    relative.at_us = at(17);
    bench.propose(17, relative);
    let mut slow = closed("a", at(31), 100);
    slow.steps_per_s = Some(8.0);
    bench.close(31, slow);
    let elsewhere = bench.status(31, "rival").speed.new_config.unwrap();
    // 0.9 foretold, 0.8 seen.
    assert!((elsewhere.mape_percent - 12.5).abs() < 0.01, "{elsewhere:?}");
}

fn on(kind: &str, surface: Surface) -> Surface {
    Surface { gpu_type: kind.into(), ..surface }
}

/// What was said of a job on other kinds of card is passed on with the rest, and scored where the job
/// then runs; a prior that stands in speaks of the same kinds.
#[test]
fn what_is_said_of_other_kinds_of_card_counts_there() {
    let mut bench = Bench::new();
    let there = on("p100", surface("physical", "a", at(1), &[(None, 8.0, 180.0)]));
    let said = surface("physical", "a", at(1), &[(None, 20.0, 180.0)]);
    let said = Surface { other_gpu_types: vec![there], ..said };
    bench.propose(1, said.clone());
    assert_eq!(bench.passed_on(), std::slice::from_ref(&said));

    let window =
        |until: u64, kind: &str| JobWindow { gpu_type: kind.into(), ..closed("a", at(until), 250) };
    bench.close(16, window(16, "p100"));
    let prior = bench.status(16, "physical").speed.prior.unwrap();
    assert!((prior.mape_percent - 20.0).abs() < 0.01, "8 foretold, 10 seen: {prior:?}");
    // The same configuration on another kind of card is another configuration.
    bench.propose(17, Surface { at_us: at(17), ..said.clone() });
    bench.close(31, window(31, "v100"));
    let speed = bench.status(31, "physical").speed;
    assert_eq!((speed.same_config, speed.new_config.unwrap().windows), (None, 1));

    bench.describe(32, "b");
    bench.wake(60);
    let prior = bench.passed_on().pop().unwrap();
    assert_eq!((prior.predictor.as_str(), prior.job.as_str()), ("prior", "b"));
    let kinds: Vec<String> = prior.by_gpu_type().map(|on| on.gpu_type).collect();
    assert_eq!(kinds, ["v100", "p100"]);
}

#[test]
fn nonsense_is_refused_and_whoever_talks_it_is_failing() {
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
            "an elsewhere of its own",
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
        ("not finite", wrong(&|s| s.points[0].gpu_power_w.mean = f64::NAN)),
        ("in order", wrong(&|s| s.points[0].relative_speed.low = 1.5)),
        (
            "not within",
            wrong(&|s| s.points[0].gpu_power_w = Estimate { mean: -3.0, low: -4.0, high: 1.0 }),
        ),
        ("not within", wrong(&|s| s.points[0].steps_per_s = Some(estimate(0.0)))),
        ("gpus and nodes", wrong(&|s| s.points[0].nodes = 2)),
        ("future", wrong(&|s| s.at_us = at(10_000))),
        ("the subject names", wrong(&|s| s.job = job("b"))),
        ("gpu_type", wrong(&|s| s.gpu_type = "a card".into())),
    ];
    for (i, (word, wrong)) in cases.into_iter().enumerate() {
        let surface = Ok(Box::new(wrong));
        let event = Event::Proposed { predictor: named("rival"), job: job("a"), surface };
        bench.event(2, event);
        let said = bench.out.drain(..).find_map(|action| match action {
            Action::Log(Notice::Refused { error, .. }) => Some(error.to_string()),
            _ => None,
        });
        assert!(said.as_ref().is_some_and(|why| why.contains(word)), "{word}: {said:?}");
        assert_eq!(bench.status(2, "rival").refused, i as u64 + 1);
    }
    let status = bench.status(2, "rival");
    assert_eq!(status.state, PredictorState::Failing);
    assert!(status.error.unwrap().contains("gpu_type"));
    // The registry's own name is nobody else's.
    let prior = surface("prior", "a", at(1), &[(None, 10.0, 180.0)]);
    bench.propose(2, prior);
    assert_eq!(bench.status(2, "prior").refused, 1);
    // One good word, and it is taken seriously again.
    bench.propose(3, good);
    assert_eq!(bench.status(3, "rival").state, PredictorState::Challenger);
}

#[test]
fn a_silent_champion_is_stood_in_for_and_comes_back() {
    let mut bench = Bench::new();
    bench.propose(1, surface("physical", "a", at(1), &[(None, 10.0, 180.0)]));
    bench.passed_on();
    // Windows go unanswered; the registry hears it answer as a service all the while.
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
    assert_eq!(changes(&bench.out, PredictorState::Silent), 1, "it is said once");
    // Its last surface stands; then a prior takes its place, once.
    assert_eq!(bench.passed_on(), []);
    (600..620).for_each(|seconds| bench.wake(seconds));
    let stood_in = bench.passed_on();
    assert_eq!(stood_in.len(), 1, "{stood_in:?}");
    assert_eq!((stood_in[0].predictor.as_str(), stood_in[0].windows), ("prior", 0));
    let basis = stood_in[0].basis.as_ref().unwrap();
    assert_eq!(basis, "prior: predictor physical silent since 00:16:56 UTC");
    // It speaks again: its surface is back at once, and it is asked for all the others.
    bench.propose(700, surface("physical", "a", at(700), &[(None, 10.0, 180.0)]));
    assert_eq!(changes(&bench.out, PredictorState::Champion), 1);
    assert_eq!(bench.passed_on()[0].predictor, named("physical"));
    bench.wake(701);
    assert_eq!(bench.passed_on(), []);
}

#[test]
fn a_champion_that_is_gone_is_silent_at_once_and_asked_for_everything_when_it_is_back() {
    let mut bench = Bench::new();
    bench.describe(0, "b");
    for name in ["a", "b"] {
        bench.propose(1, surface("physical", name, at(1), &[(None, 10.0, 180.0)]));
    }
    bench.found(2, &["rival"]);
    assert_eq!(bench.status(2, "physical").state, PredictorState::Champion, "one answer got lost");
    bench.found(4, &["rival"]);
    let status = bench.status(4, "physical");
    assert_eq!(status.state, PredictorState::Silent);
    assert!(status.error.unwrap().starts_with("its service is gone"));
    bench.wake(5);
    bench.passed_on();
    // A job that comes now has no last good surface.
    bench.describe(6, "c");
    bench.wake(12);
    let given = bench.passed_on();
    assert_eq!(given.len(), 1);
    assert_eq!((given[0].job.as_str(), given[0].predictor.as_str()), ("c", "prior"));
    assert!(given[0].basis.as_ref().unwrap().contains("physical has proposed no surface"));
    bench.wake(610);
    assert_eq!(bench.passed_on().len(), 2);
    bench.found(620, &["physical", "rival"]);
    bench.wake(621);
    assert_eq!(bench.status(621, "physical").state, PredictorState::Champion);
    let asked = |action: &Action| matches!(action, Action::WriteChampion(_));
    assert_eq!(bench.out.iter().filter(|action| asked(action)).count(), 1);
}

#[test]
fn scores_and_the_champion_survive_the_registry() {
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
    let champion = Champion { predictor: named("rival"), since_us: at(20) };
    let config = RegistryConfig::shipped();
    let next = Registry::new(at(40), config, Some(champion.clone()), kept);
    assert_eq!(next.champion(), &champion);
    let before = bench.status(30, "rival");
    let after = next.status(at(40), &named("rival")).unwrap();
    assert_eq!((after.speed, after.power, after.proposals), (before.speed, before.power, 1));
    assert!(after.speed.prior.is_some());
}

#[test]
fn challengers_long_gone_are_forgotten_and_a_crowd_is_turned_away() {
    let mut bench = Bench::new();
    for i in 0..20 {
        bench.propose(1, surface(&format!("p{i}"), "a", at(1), &[(None, 10.0, 180.0)]));
    }
    assert!(bench.registry.may_promote(&named("p5")).is_ok());
    assert!(bench.registry.may_promote(&named("p6")).is_err(), "eight are listened to");
    let turned = |action: &Action| matches!(action, Action::Log(Notice::TooManyPredictors(_)));
    assert!(bench.out.iter().any(turned));
    bench.wake(90_000);
    let error = bench.registry.may_promote(&named("rival")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no predictor `rival`; known predictors: physical",
        "the champion is never forgotten"
    );
}

/// One thing that may happen, from a handful of jobs, predictors and values.
fn any_event() -> impl Strategy<Value = (u64, Event)> {
    let who = prop::sample::select(vec!["physical", "rival", "p1", "p2", "p3", "prior"]);
    let of = prop::sample::select((0..12).map(|i| format!("j{i}")).collect::<Vec<_>>());
    let value = prop_oneof![4 => 0.1f64..100.0, 1 => any::<f64>()];
    let proposed = (who.clone(), of.clone(), 0u64..2_000, value.clone(), value.clone()).prop_map(
        |(who, of, when, rate, power)| {
            let caps = [(None, rate, power), (Some(100), rate, power)];
            let surface = Ok(Box::new(surface(who, &of, at(when), &caps)));
            Event::Proposed { predictor: named(who), job: job(&of), surface }
        },
    );
    let closed = (of.clone(), 0u64..2_000, 50u64..300, value).prop_map(|(of, until, cap, rate)| {
        let mut window = closed(&of, at(until), cap);
        window.steps_per_s = Some(rate);
        Event::WindowClosed(Box::new(window))
    });
    let described = (of.clone(), any::<bool>()).prop_map(|(of, started)| Event::JobDescribed {
        job: job(&of),
        workload: None,
        gpus: GpuRequest::exactly(1),
        gpu_type: started.then(|| "p100".to_owned()),
        started,
    });
    let found = prop::collection::btree_map(who.prop_map(named), Just("1".to_owned()), 0..4);
    let event = prop_oneof![
        8 => proposed,
        8 => closed,
        2 => described,
        1 => of.clone().prop_map(|of| Event::JobEnded(job(&of))),
        1 => of.prop_map(|of| Event::SurfaceFound(job(&of))),
        2 => found.prop_map(Event::ServicesFound),
    ];
    (0u64..2_000, event)
}

proptest! {
    /// Whatever happens in whatever order: what reaches the placer is sound and the champion's or a
    /// prior, nothing is kept beyond its bounds, no status has a value that is no number, and a
    /// job that ended has no surface after its end.
    #[test]
    fn whatever_happens(mut events in prop::collection::vec(any_event(), 1..150), ordered: bool) {
        if ordered {
            events.sort_by_key(|(seconds, _)| *seconds);
        }
        let mut bench = Bench::new();
        let mut standing: BTreeMap<JobId, bool> = BTreeMap::new();
        let mut ended = Vec::new();
        for (seconds, event) in events {
            if let Event::JobEnded(job) = &event {
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
                        prop_assert_eq!(back, *status, "a value that is no number reads as none");
                    }
                    _ => {}
                }
            }
            let (jobs, asked, said) = bench.registry.kept();
            prop_assert!(jobs <= 8 && asked <= 8 * 8 && said <= 2 * 4 * 8, "{jobs} {asked} {said}");
        }
        for job in &ended {
            prop_assert!(!standing.contains_key(job));
        }
    }
}
