//! Examples of every rule, and a property over random histories.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::order::tests::{config, desired_job};

const S: u64 = 1_000_000;

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_s(1_000 + seconds)
}

fn node() -> NodeId {
    NodeId::new("n0").unwrap()
}

fn run(job: &str, attempt: u32) -> Run {
    Run { job: JobId::new(job).unwrap(), attempt }
}

fn desired(generation: u64, jobs: Vec<DesiredJob>) -> NodeDesired {
    NodeDesired {
        node: node(),
        generation,
        issued_at_us: at(generation),
        expires_at_us: at(generation + 30),
        gpus: vec![],
        jobs,
        sleep: None,
    }
}

/// A launcher, and what it did in few words.
struct Bench {
    launcher: Launcher,
    now: Timestamp,
}

impl Bench {
    fn new(memory: PersistedState) -> Self {
        Self { launcher: Launcher::new(config(), memory), now: at(0) }
    }
    fn tell(&mut self, event: Event) -> String {
        let mut out = Vec::new();
        self.launcher.handle(self.now, event, &mut out);
        words(&out)
    }
    fn pass(&mut self, seconds: u64) -> String {
        let until = Timestamp::from_us(self.now.as_us() + seconds * S);
        let mut said = Vec::new();
        while let Some((wake, _)) = self.launcher.next_wake().filter(|(wake, _)| *wake <= until) {
            self.now = self.now.max(wake);
            let mut out = Vec::new();
            self.launcher.wake(self.now, &mut out);
            out.retain(|action| !matches!(action, Action::Report(_)));
            said.extend(out);
        }
        self.now = until;
        words(&said)
    }
    fn desire(&mut self, generation: u64, jobs: Vec<DesiredJob>) -> String {
        self.tell(Event::DesiredChanged(desired(generation, jobs)))
    }
}

fn words(out: &[Action]) -> String {
    let each = out.iter().map(|action| match action {
        Action::Start(order) => format!("start {}.{}", order.job, order.attempt),
        Action::Stop(run, stage) => format!("{stage:?} {}.{}", run.job, run.attempt),
        Action::Forget(run) => format!("forget {}.{}", run.job, run.attempt),
        Action::Remember(generation, _) => format!("remember {generation}"),
        Action::Report(report) => {
            let jobs: Vec<String> = report
                .jobs
                .iter()
                .map(|job| {
                    let state = match &job.state {
                        LaunchState::Refused { error } => format!("Refused: {error}"),
                        LaunchState::Lost { error } => format!("Lost: {error}"),
                        state => format!("{state:?}"),
                    };
                    format!("{}.{} {state}", job.job, job.attempt)
                })
                .collect();
            format!("report {} [{}]", report.observed_generation, jobs.join(", "))
        }
    });
    each.collect::<Vec<_>>().join("; ")
}

fn stopping(mut job: DesiredJob) -> DesiredJob {
    job.stop = true;
    job
}

#[test]
fn a_job_is_started_once_and_reported() {
    let mut bench = Bench::new(PersistedState::default());
    let a = desired_job("a", 1, "n0");
    assert_eq!(bench.desire(1, vec![a.clone()]), "remember 1; start a.1; report 1 []");
    // The same again, and a renewed lease: nothing new.
    assert_eq!(bench.desire(1, vec![a.clone()]), "");
    assert_eq!(bench.tell(Event::Started(run("a", 1), 77)), "report 1 [a.1 Running]");
    assert_eq!(bench.tell(Event::Started(run("a", 1), 77)), "");
    let ended = bench.tell(Event::Ended(run("a", 1), Outcome::Code(0)));
    assert_eq!(ended, "report 1 [a.1 Exited { code: 0 }]");
    // It is still named, and yet not started a second time.
    assert_eq!(bench.desire(2, vec![a.clone()]), "remember 2; report 2 [a.1 Exited { code: 0 }]");
    assert_eq!(bench.desire(3, vec![]), "remember 3; report 3 []");
    assert_eq!(bench.desire(4, vec![a]), "remember 4; report 4 [a.1 Exited { code: 0 }]");
}

#[test]
fn stopping_grows_harder_after_each_grace() {
    let mut bench = Bench::new(PersistedState::default());
    bench.desire(1, vec![desired_job("a", 1, "n0")]);
    bench.tell(Event::Started(run("a", 1), 77));
    let stop = stopping(desired_job("a", 1, "n0"));
    assert_eq!(
        bench.desire(2, vec![stop.clone()]),
        "remember 2; Checkpoint a.1; report 2 [a.1 Stopping]"
    );
    assert_eq!(bench.desire(3, vec![stop]), "remember 3; report 3 [a.1 Stopping]");
    assert_eq!(bench.pass(9), "");
    assert_eq!(bench.pass(1), "Terminate a.1");
    assert_eq!(bench.pass(5), "Kill a.1");
    assert_eq!(bench.pass(5), "Kill a.1", "again, until it is gone");
    let ended = bench.tell(Event::Ended(run("a", 1), Outcome::Code(137)));
    assert_eq!(ended, "report 3 [a.1 Stopped]", "a job that was asked to stop did not fail");
}

#[test]
fn a_job_without_checkpoint_signal_is_terminated() {
    let mut bench = Bench::new(PersistedState::default());
    let mut a = desired_job("a", 1, "n0");
    a.checkpoint_signal = None;
    bench.desire(1, vec![a]);
    bench.tell(Event::Started(run("a", 1), 77));
    assert_eq!(bench.desire(2, vec![]), "remember 2; Terminate a.1; report 2 [a.1 Stopping]");
}

#[test]
fn a_start_that_is_not_wanted_any_more_is_told_until_it_is_gone() {
    let mut bench = Bench::new(PersistedState::default());
    bench.desire(1, vec![desired_job("a", 1, "n0")]);
    assert_eq!(bench.desire(2, vec![]), "remember 2; report 2 [a.1 Stopping]");
    assert_eq!(
        bench.tell(Event::Started(run("a", 1), 7)),
        "Checkpoint a.1; report 2 [a.1 Stopping]"
    );
    assert_eq!(bench.tell(Event::Ended(run("a", 1), Outcome::Code(0))), "report 2 []");
}

#[test]
fn a_new_attempt_waits_for_the_old_one() {
    let mut bench = Bench::new(PersistedState::default());
    bench.desire(1, vec![desired_job("a", 1, "n0")]);
    bench.tell(Event::Started(run("a", 1), 77));
    let said = bench.desire(2, vec![desired_job("a", 2, "n0")]);
    assert_eq!(said, "remember 2; Checkpoint a.1; report 2 [a.1 Stopping]");
    let said = bench.tell(Event::Ended(run("a", 1), Outcome::Code(0)));
    assert_eq!(said, "start a.2; report 2 []");
    let said = bench.desire(3, vec![desired_job("a", 1, "n0")]);
    assert!(said.contains("a.1 Stopped"), "known to have ended: {said}");
}

#[test]
fn older_orders_are_ignored_over_restarts() {
    let mut bench = Bench::new(PersistedState { obeyed: Some((5, at(5))), runs: Vec::new() });
    assert_eq!(bench.desire(4, vec![desired_job("a", 1, "n0")]), "");
    let mut stale = desired(5, vec![desired_job("a", 1, "n0")]);
    stale.issued_at_us = at(4);
    assert_eq!(bench.tell(Event::DesiredChanged(stale)), "");
    let mut other = desired(9, vec![]);
    other.node = NodeId::new("n9").unwrap();
    assert_eq!(bench.tell(Event::DesiredChanged(other)), "", "another node's");
    // What was obeyed last is obeyed again after a restart.
    assert_eq!(bench.desire(5, vec![desired_job("a", 1, "n0")]), "start a.1; report 5 []");
}

#[test]
fn without_orders_everything_goes_on() {
    let order = Order::new(&desired_job("a", 1, "n0"), &node(), &config()).unwrap();
    let runs = vec![(order, Found::Live(77, None), at(0))];
    let mut bench = Bench::new(PersistedState { obeyed: Some((5, at(5))), runs });
    assert_eq!(bench.pass(3_600), "", "an expired lease stops nothing");
    let said = bench.desire(5, vec![desired_job("a", 1, "n0")]);
    assert_eq!(said, "", "it is running already");
}

#[test]
fn a_restart_continues_where_it_was() {
    let order = |job: &str| Order::new(&desired_job(job, 1, "n0"), &node(), &config()).unwrap();
    let memory = PersistedState {
        obeyed: Some((3, at(0))),
        runs: vec![
            (order("ended"), Found::Ended(Outcome::Code(3), false), at(0)),
            (order("half-started"), Found::Ordered, at(0)),
            (order("lost"), Found::Ended(Outcome::Lost("node restarted".into()), false), at(0)),
            (order("stopping"), Found::Live(9, Some((Stage::Terminate, at(0)))), at(0)),
            (order("withdrawn"), Found::Ordered, at(0)),
        ],
    };
    let mut bench = Bench::new(memory);
    let jobs = ["ended", "half-started", "lost"].map(|job| desired_job(job, 1, "n0")).to_vec();
    assert_eq!(
        bench.desire(4, jobs),
        "remember 4; forget withdrawn.1; start half-started.1; report 4 [ended.1 Exited { code: 3 }, \
         lost.1 Lost: node restarted, stopping.1 Stopping]"
    );
    assert_eq!(bench.pass(5), "Kill stopping.1");
}

#[test]
fn what_cannot_run_is_refused_with_the_reason() {
    let mut bench = Bench::new(PersistedState::default());
    let mut a = desired_job("a", 1, "n0");
    a.command.clear();
    let said = bench.desire(1, vec![a.clone()]);
    assert!(said.contains("a.1 Refused: the command is empty"), "{said}");
    assert!(!said.contains("start"), "{said}");
    assert_eq!(bench.desire(1, vec![a]), "", "said once");
    // Asked to stop before it was ever started: there is nothing to stop.
    let said = bench.desire(2, vec![stopping(desired_job("b", 1, "n0"))]);
    assert_eq!(said, "remember 2; report 2 [b.1 Stopped]");
    bench.desire(3, vec![desired_job("c", 2, "n0")]);
    let said = bench.desire(4, vec![desired_job("c", 1, "n0")]);
    assert!(said.contains("c.1 Refused: attempt 1 is older than attempt 2"), "{said}");
}

#[test]
fn the_ended_are_forgotten_at_last() {
    let mut bench = Bench::new(PersistedState::default());
    let mut said = String::new();
    for i in 0..6 {
        let job = format!("j{i}");
        bench.desire(2 * i + 1, vec![desired_job(&job, 1, "n0")]);
        bench.tell(Event::Ended(run(&job, 1), Outcome::Code(0)));
        bench.now = at(i + 1);
        said = bench.desire(2 * i + 2, vec![]);
    }
    assert_eq!(said, "remember 12; forget j1.1; report 12 []", "four are kept");
}

#[test]
fn retiring_stops_everything_and_starts_nothing() {
    let mut bench = Bench::new(PersistedState::default());
    bench.desire(1, vec![desired_job("a", 1, "n0")]);
    bench.tell(Event::Started(run("a", 1), 77));
    assert_eq!(bench.tell(Event::Retired), "Checkpoint a.1; report 1 [a.1 Stopping]");
    bench.desire(2, vec![desired_job("b", 1, "n0")]);
    assert!(!bench.launcher.is_idle());
    bench.tell(Event::Ended(run("a", 1), Outcome::Code(0)));
    assert!(bench.launcher.is_idle());
}

/// What may happen, in the property below.
#[derive(Clone, Debug)]
enum Step {
    /// Job i shall run in this attempt (0: not at all), or stop.
    Desire(Vec<(u32, bool)>),
    /// The order before comes once more.
    Stale,
    /// What was asked of the world last comes true for one job.
    Happen(usize, i32),
    Pass(u64),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => prop::collection::vec((0u32..4, any::<bool>()), 3).prop_map(Step::Desire),
        1 => Just(Step::Stale),
        6 => (0usize..3, -1i32..3).prop_map(|(job, code)| Step::Happen(job, code)),
        1 => (1u64..30).prop_map(Step::Pass),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    /// Whatever is desired and happens, with restarts in between: no attempt starts twice, no job
    /// has two live attempts, and nothing is stopped that is desired to run.
    #[test]
    fn never_two_live_attempts(steps in prop::collection::vec(step(), 1..60)) {
        // More than there are attempts below: what is forgotten may start again.
        let config = || Config { ended_kept: 20, ..config() };
        let mut launcher = Launcher::new(config(), PersistedState::default());
        // The world: what is stored, what lives, what has ended.
        let mut stored: BTreeMap<Run, Order> = BTreeMap::new();
        let mut live: BTreeMap<Run, Option<Stage>> = BTreeMap::new();
        let mut ended: BTreeMap<Run, (i32, bool)> = BTreeMap::new();
        let mut started: BTreeSet<Run> = BTreeSet::new();
        let mut obeyed = None;
        let mut wanted = desired(0, vec![]);
        let mut before = wanted.clone();
        let mut now = at(0);
        for (count, step) in steps.into_iter().enumerate() {
            now = now + std::time::Duration::from_secs(1);
            let mut out = Vec::new();
            match step {
                Step::Desire(jobs) => {
                    before = wanted.clone();
                    let jobs = jobs.into_iter().enumerate().filter(|(_, (attempt, _))| *attempt > 0);
                    let jobs = jobs.map(|(i, (attempt, stop))| {
                        let mut job = desired_job(&format!("j{i}"), attempt, "n0");
                        job.stop = stop;
                        job
                    });
                    wanted = desired(count as u64 + 1, jobs.collect());
                    launcher.handle(now, Event::DesiredChanged(wanted.clone()), &mut out);
                }
                Step::Stale => launcher.handle(now, Event::DesiredChanged(before.clone()), &mut out),
                Step::Happen(at, code) => {
                    if let Some(run) = live.keys().nth(at).cloned() {
                        if code < 0 {
                            launcher.handle(now, Event::Started(run, 7), &mut out);
                        } else {
                            let asked = live.remove(&run).flatten().is_some();
                            ended.insert(run.clone(), (code, asked));
                            launcher.handle(now, Event::Ended(run, Outcome::Code(code)), &mut out);
                        }
                    }
                }
                Step::Pass(seconds) => {
                    now = now + std::time::Duration::from_secs(seconds);
                    launcher.wake(now, &mut out);
                }
                Step::Restart => {
                    let runs = stored.iter().map(|(run, order)| {
                        let found = match (live.get(run), ended.get(run)) {
                            (Some(stage), _) => Found::Live(7, stage.map(|stage| (stage, now))),
                            (None, Some((code, asked))) => Found::Ended(Outcome::Code(*code), *asked),
                            (None, None) => Found::Ordered,
                        };
                        (order.clone(), found, now)
                    }).collect();
                    launcher = Launcher::new(config(), PersistedState { obeyed, runs });
                    if obeyed.is_some() {
                        launcher.handle(now, Event::DesiredChanged(wanted.clone()), &mut out);
                    }
                }
            }
            for action in out {
                match action {
                    Action::Start(order) => {
                        let run = Run { job: order.job.clone(), attempt: order.attempt };
                        stored.insert(run.clone(), *order);
                        prop_assert!(started.insert(run.clone()), "{run:?} started twice");
                        prop_assert!(!live.keys().any(|other| other.job == run.job), "{run:?} is the second");
                        prop_assert!(wanted.jobs.iter().any(|job| job.job == run.job && job.attempt == run.attempt && !job.stop));
                        live.insert(run, None);
                    }
                    Action::Stop(run, stage) => {
                        prop_assert!(!wanted.jobs.iter().any(|job| job.job == run.job && job.attempt == run.attempt && !job.stop) || live.get(&run).is_some_and(Option::is_some), "{run:?} is desired");
                        if let Some(entry) = live.get_mut(&run) { *entry = Some(stage); }
                    }
                    Action::Forget(run) => {
                        prop_assert!(!live.contains_key(&run));
                        stored.remove(&run);
                    }
                    Action::Remember(generation, issued) => {
                        prop_assert!(obeyed <= Some((generation, issued)));
                        obeyed = Some((generation, issued));
                    }
                    Action::Report(report) => {
                        prop_assert_eq!(report.observed_generation, obeyed.map_or(0, |(generation, _)| generation));
                    }
                }
            }
        }
    }
}
