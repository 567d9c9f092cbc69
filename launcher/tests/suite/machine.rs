//! The rules of the launcher's decisions, each by an example.

use std::path::Path;

use wattle_common::bounds::OrderVersion;
use wattle_common::messages::{DesiredJob, JobProcesses, LaunchState, NodeFaultKind, ReachedLimit};
use wattle_common::{Machine, NodeId, Timestamp};
use wattle_launcher::{
    Action, Event, Fault, Found, Handle, Launcher, Outcome, PersistedState, Run, RunSpec, Status,
    StopStage,
};

use crate::support::{admitted, at, config, desired, desired_job, node, run, stopping};

const S: u64 = 1_000_000;

fn version(generation: u64, issued: u64) -> Option<OrderVersion> {
    Some(OrderVersion { generation, issued_at: at(issued) })
}

fn handle() -> Handle {
    let processes = JobProcesses::Session(77);
    Handle { id: "session 77".to_owned(), processes, log_path: "/l/a.log".to_owned() }
}

fn running(job: &str, attempt: u32) -> Event {
    Event::StatusChanged(run(job, attempt), Status::Running(handle()))
}

fn ended(job: &str, attempt: u32, outcome: Outcome) -> Event {
    Event::StatusChanged(run(job, attempt), Status::Ended(outcome))
}

/// A run that the engine knows from before.
fn found(job: &str, status: Option<Status>, stop: Option<StopStage>) -> Found {
    let spec = RunSpec::new(&desired_job(job, 1), &node(), &config(Path::new("/"))).unwrap();
    Found { spec, status, stop, since: at(0) }
}

/// A launcher whose actions are shown as text.
struct Harness {
    launcher: Launcher,
    now: Timestamp,
}

impl Harness {
    fn new(state: PersistedState) -> Self {
        Self { launcher: Launcher::new(config(Path::new("/")), state), now: at(0) }
    }
    fn handle(&mut self, event: Event) -> String {
        let mut out = Vec::new();
        self.launcher.handle(self.now, event, &mut out);
        text(&out)
    }
    fn advance(&mut self, seconds: u64) -> String {
        let until = Timestamp::from_us(self.now.as_us() + seconds * S);
        let mut actions = Vec::new();
        while let Some((wake, _)) = self.launcher.next_wake().filter(|(wake, _)| *wake <= until) {
            self.now = self.now.max(wake);
            let mut out = Vec::new();
            self.launcher.wake(self.now, &mut out);
            out.retain(|action| !matches!(action, Action::Report(_)));
            actions.extend(out);
        }
        self.now = until;
        text(&actions)
    }
    fn desire(&mut self, generation: u64, jobs: Vec<DesiredJob>) -> String {
        self.handle(Event::DesiredChanged(desired(generation, jobs)))
    }
}

fn text(out: &[Action]) -> String {
    let each = out.iter().map(|action| match action {
        Action::Start(spec) => format!("start {}.{}", spec.job, spec.attempt),
        Action::Stop(run, stage) => format!("{stage:?} {}.{}", run.job, run.attempt),
        Action::Forget(run) => format!("forget {}.{}", run.job, run.attempt),
        Action::StoreObeyed(version) => format!("obeyed {}", version.generation),
        Action::Alarm(refused) => format!("alarm {refused}"),
        Action::Test => "test".to_owned(),
        Action::FaultAlarm(fault) => format!("fault {:?}: {}", fault.kind, fault.error),
        Action::FaultEnded => "fault ended".to_owned(),
        Action::Report(report) => {
            let jobs: Vec<String> = report
                .jobs
                .iter()
                .map(|job| {
                    let state = match &job.state {
                        LaunchState::Refused { error, node_fault: None } => {
                            format!("Refused: {error}")
                        }
                        LaunchState::Refused { error, node_fault: Some(kind) } => {
                            format!("{kind:?} prevents: {error}")
                        }
                        LaunchState::Stopped { killed_by: None } => "Stopped".to_owned(),
                        LaunchState::Stopped { killed_by: Some(signal) } => {
                            format!("Stopped by signal {signal}")
                        }
                        LaunchState::Lost { error } => format!("Lost: {error}"),
                        state => format!("{state:?}"),
                    };
                    format!("{}.{} {state}", job.job, job.attempt)
                })
                .collect();
            let ended = if report.has_ended { " with ended" } else { "" };
            let fault = report.fault.as_ref().map(|fault| format!(" {:?} fault", fault.kind));
            let fault = fault.unwrap_or_default();
            format!("report {} [{}]{ended}{fault}", report.observed_generation, jobs.join(", "))
        }
    });
    each.collect::<Vec<_>>().join("; ")
}

#[test]
fn a_job_is_started_once_and_reported() {
    let mut launcher = Harness::new(PersistedState::default());
    let a = desired_job("a", 1);
    assert_eq!(launcher.desire(1, vec![a.clone()]), "obeyed 1; start a.1; report 1 []");
    // The same again, and a renewed lease: nothing new.
    assert_eq!(launcher.desire(1, vec![a.clone()]), "");
    assert_eq!(launcher.handle(running("a", 1)), "report 1 [a.1 Running]");
    assert_eq!(launcher.handle(running("a", 1)), "");
    let ended = launcher.handle(ended("a", 1, Outcome::Code(0)));
    assert_eq!(ended, "report 1 [a.1 Exited { code: 0, limit: None }]");
    // It is still desired, and is not started a second time.
    assert_eq!(
        launcher.desire(2, vec![a.clone()]),
        "obeyed 2; report 2 [a.1 Exited { code: 0, limit: None }]"
    );
    assert_eq!(launcher.desire(3, vec![]), "obeyed 3; report 3 []");
    assert_eq!(
        launcher.desire(4, vec![a]),
        "obeyed 4; report 4 [a.1 Exited { code: 0, limit: None }]"
    );
}

#[test]
fn a_stop_escalates_after_each_grace() {
    let mut launcher = Harness::new(PersistedState::default());
    launcher.desire(1, vec![desired_job("a", 1)]);
    launcher.handle(running("a", 1));
    let stop = stopping(desired_job("a", 1));
    assert_eq!(
        launcher.desire(2, vec![stop.clone()]),
        "obeyed 2; Checkpoint a.1; report 2 [a.1 Stopping]"
    );
    assert_eq!(launcher.desire(3, vec![stop]), "obeyed 3; report 3 [a.1 Stopping]");
    assert_eq!(launcher.advance(9), "");
    assert_eq!(launcher.advance(1), "Terminate a.1");
    assert_eq!(launcher.advance(5), "Kill a.1");
    assert_eq!(launcher.advance(5), "Kill a.1", "repeated until it has ended");
    let ended = launcher.handle(ended("a", 1, Outcome::Code(137)));
    assert_eq!(
        ended, "report 3 [a.1 Stopped by signal 9]",
        "a job that was requested to stop has not failed"
    );
}

#[test]
fn a_job_without_checkpoint_signal_is_terminated() {
    let mut launcher = Harness::new(PersistedState::default());
    let mut a = desired_job("a", 1);
    a.checkpoint_signal = None;
    launcher.desire(1, vec![a]);
    launcher.handle(running("a", 1));
    assert_eq!(launcher.desire(2, vec![]), "obeyed 2; Terminate a.1; report 2 [a.1 Stopping]");
}

#[test]
fn a_starting_run_that_is_no_longer_desired_is_reported_until_it_has_ended() {
    let mut launcher = Harness::new(PersistedState::default());
    launcher.desire(1, vec![desired_job("a", 1)]);
    assert_eq!(launcher.desire(2, vec![]), "obeyed 2; report 2 [a.1 Stopping]");
    assert_eq!(launcher.handle(running("a", 1)), "Checkpoint a.1; report 2 [a.1 Stopping]");
    assert_eq!(launcher.handle(ended("a", 1, Outcome::Code(0))), "report 2 []");
}

#[test]
fn a_new_attempt_waits_for_the_old_one() {
    let mut launcher = Harness::new(PersistedState::default());
    launcher.desire(1, vec![desired_job("a", 1)]);
    launcher.handle(running("a", 1));
    let text = launcher.desire(2, vec![desired_job("a", 2)]);
    assert_eq!(text, "obeyed 2; Checkpoint a.1; report 2 [a.1 Stopping]");
    let text = launcher.handle(ended("a", 1, Outcome::Code(0)));
    assert_eq!(text, "start a.2; report 2 []");
    let text = launcher.desire(3, vec![desired_job("a", 1)]);
    assert!(text.contains("a.1 Stopped"), "its end is known: {text}");
}

#[test]
fn older_desired_states_are_ignored_after_a_restart() {
    let mut launcher = Harness::new(PersistedState { obeyed: version(5, 5), runs: Vec::new() });
    let text = launcher.desire(4, vec![desired_job("a", 1)]);
    assert_eq!(text, "report 5 [] with ended", "reported to the older store, and not obeyed");
    let mut stale = desired(5, vec![desired_job("a", 1)]);
    stale.issued_at_us = at(4);
    assert_eq!(launcher.handle(Event::DesiredChanged(stale)), "");
    let mut other = desired(9, vec![]);
    other.node = NodeId::new("n9").unwrap();
    assert_eq!(launcher.handle(Event::DesiredChanged(other)), "", "another node's");
    // The state that was obeyed last is obeyed again after a restart.
    assert_eq!(launcher.desire(5, vec![desired_job("a", 1)]), "start a.1; report 5 []");
}

#[test]
fn runs_continue_without_a_desired_state() {
    let runs = vec![found("a", Some(Status::Running(handle())), None)];
    let mut launcher = Harness::new(PersistedState { obeyed: version(5, 5), runs });
    assert_eq!(launcher.advance(3_600), "", "an expired lease stops nothing");
    let text = launcher.desire(5, vec![desired_job("a", 1)]);
    assert_eq!(text, "", "it runs already");
}

#[test]
fn a_restarted_launcher_resumes_every_run() {
    let ended = |outcome| Some(Status::Ended(outcome));
    let live = Some(Status::Running(handle()));
    let state = PersistedState {
        obeyed: version(3, 0),
        runs: vec![
            found("ended", ended(Outcome::Code(3)), None),
            found("half-started", None, None),
            found("lost", ended(Outcome::Lost("node restarted".into())), None),
            found("stopping", live, Some(StopStage::Terminate)),
            found("withdrawn", None, None),
        ],
    };
    let mut launcher = Harness::new(state);
    let jobs = ["ended", "half-started", "lost"].map(|job| desired_job(job, 1)).to_vec();
    assert_eq!(
        launcher.desire(4, jobs),
        "obeyed 4; forget withdrawn.1; start half-started.1; report 4 [ended.1 Exited { code: 3, limit: None }, \
         lost.1 Lost: node restarted, stopping.1 Stopping]"
    );
    assert_eq!(launcher.advance(5), "Kill stopping.1");
}

#[test]
fn jobs_that_cannot_run_are_refused_with_the_reason() {
    let mut launcher = Harness::new(PersistedState::default());
    let mut a = desired_job("a", 1);
    a.command.clear();
    let text = launcher.desire(1, vec![a.clone()]);
    assert!(text.contains("a.1 Refused: the command is empty"), "{text}");
    assert!(!text.contains("start"), "{text}");
    assert_eq!(launcher.desire(1, vec![a]), "", "reported once");
    // A job that is to stop before it was started has stopped.
    let text = launcher.desire(2, vec![stopping(desired_job("b", 1))]);
    assert_eq!(text, "obeyed 2; report 2 [b.1 Stopped]");
    launcher.desire(3, vec![desired_job("c", 2)]);
    let text = launcher.desire(4, vec![desired_job("c", 1)]);
    assert!(text.contains("c.1 Refused: attempt 1 is older than attempt 2"), "{text}");
}

#[test]
fn the_oldest_ended_runs_are_forgotten() {
    let mut launcher = Harness::new(PersistedState::default());
    let mut text = String::new();
    for i in 0..6 {
        let job = format!("j{i}");
        launcher.desire(2 * i + 1, vec![desired_job(&job, 1)]);
        launcher.handle(ended(&job, 1, Outcome::Code(0)));
        launcher.now = at(i + 1);
        text = launcher.desire(2 * i + 2, vec![]);
    }
    assert_eq!(text, "obeyed 12; forget j1.1; report 12 []", "four are kept");
}

#[test]
fn a_retiring_launcher_stops_every_run_and_starts_none() {
    let mut launcher = Harness::new(PersistedState::default());
    launcher.desire(1, vec![desired_job("a", 1)]);
    launcher.handle(running("a", 1));
    assert_eq!(launcher.handle(Event::Retired), "Checkpoint a.1; report 1 [a.1 Stopping]");
    launcher.desire(2, vec![desired_job("b", 1)]);
    assert!(!launcher.launcher.is_idle());
    launcher.handle(ended("a", 1, Outcome::Code(0)));
    assert!(launcher.launcher.is_idle());
}

#[test]
fn absurd_generation_is_refused_and_an_obeyed_one_is_recovered_from() {
    let mut launcher = Harness::new(PersistedState::default());
    launcher.desire(1, vec![desired_job("a", 1)]);
    let mut forged = desired(2, vec![]);
    forged.generation = u64::MAX;
    let refused = launcher.handle(Event::DesiredChanged(forged.clone()));
    assert!(refused.starts_with("alarm generation = 18446744073709551615"), "{refused}");
    let mut other = forged.clone();
    other.generation -= 1;
    let refused = launcher.handle(Event::DesiredChanged(other.clone()));
    assert!(refused.starts_with("alarm generation = 18446744073709551614"), "{refused}");
    for _ in 0..3 {
        for repeated in [&forged, &other] {
            let repeated_alarm = launcher.handle(Event::DesiredChanged(repeated.clone()));
            assert_eq!(repeated_alarm, "", "one alarm for each, also if they alternate");
        }
    }
    assert_eq!(launcher.desire(2, vec![desired_job("a", 1)]), "obeyed 2; report 2 []");
    // An earlier launcher has obeyed such a generation: a current order is obeyed after the longest lease.
    let state = PersistedState { obeyed: version(u64::MAX, 0), ..PersistedState::default() };
    let mut launcher = Harness::new(state);
    launcher.now = at(600);
    let mut order = desired(600, vec![]);
    order.generation = 3;
    assert_eq!(launcher.handle(Event::DesiredChanged(order)), "obeyed 3; report 3 []");
}

/// The change of a run of a submission.
fn of(job: &DesiredJob, status: Status) -> Event {
    let run = Run { admission: job.admission.clone(), ..run(job.job.as_str(), job.attempt) };
    Event::StatusChanged(run, status)
}

#[test]
fn another_submission_of_the_same_id_is_another_run() {
    let mut launcher = Harness::new(PersistedState::default());
    let [first, second, third] = [1, 2, 3].map(|s| admitted(desired_job("a", 1), s));
    launcher.desire(1, vec![first.clone()]);
    launcher.handle(of(&first, Status::Running(handle())));
    launcher.handle(of(&first, Status::Ended(Outcome::Code(0))));
    launcher.desire(2, vec![]);
    // The store was wiped, or the record was forgotten: the id is free again.
    let text = launcher.desire(3, vec![second.clone()]);
    assert_eq!(text, "obeyed 3; start a.1; report 3 []", "it has not ended before it ran");
    launcher.handle(of(&second, Status::Running(handle())));
    // A third one does not run beside the second, and is not the second.
    let text = launcher.desire(4, vec![third.clone()]);
    assert_eq!(text, "obeyed 4; Checkpoint a.1; report 4 [a.1 Stopping]");
    let text = launcher.handle(of(&second, Status::Ended(Outcome::Code(0))));
    assert_eq!(text, "start a.1; report 4 []");
    // A late event of another submission changes nothing.
    assert_eq!(launcher.handle(of(&first, Status::Ended(Outcome::Code(1)))), "");
    let text = launcher.desire(5, vec![second]);
    assert!(text.contains("a.1 Stopped"), "its end is known: {text}");
}

/// Runs that an earlier version started have no submission.
#[test]
fn runs_of_an_earlier_version_are_those_of_their_orders() {
    let end =
        |since| Found { since, ..found("ended", Some(Status::Ended(Outcome::Code(0))), None) };
    let late = 10_000;
    let runs = vec![found("live", Some(Status::Running(handle())), None), end(at(late))];
    let mut launcher = Harness::new(PersistedState { obeyed: version(5, 5), runs });
    launcher.now = at(late);
    let order = |job: &str, s| admitted(desired_job(job, 1), s);
    let text = launcher.desire(late, vec![order("live", 0), order("ended", late - 60)]);
    let runs = "[ended.1 Exited { code: 0, limit: None }, live.1 Running]";
    assert_eq!(text, format!("obeyed {late}; report {late} {runs}"), "neither starts again");
    // An end before the submission is not its end.
    let mut launcher =
        Harness::new(PersistedState { obeyed: version(5, 5), runs: vec![end(at(0))] });
    launcher.now = at(late);
    let text = launcher.desire(late, vec![order("ended", late - 60)]);
    assert_eq!(text, format!("obeyed {late}; start ended.1; report {late} []"));
    // A placer of an earlier version names no submission.
    let run = Found { since: at(0), ..found("a", Some(Status::Running(handle())), None) };
    let spec = RunSpec { admission: order("a", 0).admission, ..run.spec.clone() };
    let runs = vec![Found { spec, ..run }];
    let mut launcher = Harness::new(PersistedState { obeyed: version(5, 5), runs });
    assert_eq!(launcher.desire(6, vec![desired_job("a", 1)]), "obeyed 6; report 6 [a.1 Running]");
}

#[test]
fn an_older_store_receives_the_ended_jobs() {
    let mut launcher = Harness::new(PersistedState::default());
    let older = vec![desired_job("a", 1)];
    launcher.desire(1, older.clone());
    launcher.handle(running("a", 1));
    launcher.handle(ended("a", 1, Outcome::Code(0)));
    assert_eq!(launcher.desire(2, vec![desired_job("b", 1)]), "obeyed 2; start b.1; report 2 []");
    launcher.handle(running("b", 1));
    // Restored from a copy: the order of generation 1 is delivered again.
    let both = "report 2 [a.1 Exited { code: 0, limit: None }, b.1 Running] with ended";
    assert_eq!(launcher.desire(1, older), both);
    assert_eq!(launcher.desire(3, vec![desired_job("b", 1)]), "obeyed 3; report 3 [b.1 Running]");
}

fn full() -> Fault {
    Fault { kind: NodeFaultKind::Disk, error: "no space".to_owned() }
}

#[test]
fn a_start_that_the_node_prevents_shows_a_fault_until_a_test_succeeds() {
    let mut launcher = Harness::new(PersistedState::default());
    launcher.desire(1, vec![desired_job("a", 1), desired_job("b", 1)]);
    let prevented = launcher.handle(ended("a", 1, Outcome::Prevented(full())));
    assert_eq!(
        prevented,
        "fault Disk: no space; report 1 [a.1 Disk prevents: no space] Disk fault"
    );
    // Another start fails for the same cause: one alarm.
    let prevented = launcher.handle(ended("b", 1, Outcome::Prevented(full())));
    assert_eq!(
        prevented,
        "report 1 [a.1 Disk prevents: no space, b.1 Disk prevents: no space] Disk fault"
    );
    assert_eq!(launcher.advance(9), "");
    assert_eq!(launcher.advance(1), "test");
    assert_eq!(launcher.advance(60), "", "one test at a time");
    assert_eq!(launcher.handle(Event::Tested(Err(full()))), "");
    assert_eq!(launcher.advance(10), "test");
    assert_eq!(launcher.desire(2, vec![]), "obeyed 2; report 2 [] Disk fault");
    assert_eq!(launcher.handle(Event::Tested(Ok(()))), "fault ended; report 2 []");
    assert_eq!(launcher.advance(60), "", "a node without a fault is not tested");
    // The job's own fault closes no node.
    launcher.desire(3, vec![desired_job("c", 1)]);
    let refused = launcher.handle(ended("c", 1, Outcome::Refused("no such program".to_owned())));
    assert_eq!(refused, "report 3 [c.1 Refused: no such program]");
}

#[test]
fn a_fault_that_the_test_does_not_show_prevents_few_starts() {
    let mut launcher = Harness::new(PersistedState::default());
    let (mut prevented, mut generation) = (0, 0);
    // The placer sends a job whenever the node reports no fault.
    let until = at(3_600);
    while launcher.now < until {
        generation += 1;
        launcher.desire(generation, vec![desired_job(&format!("j{prevented}"), 1)]);
        launcher.handle(ended(&format!("j{prevented}"), 1, Outcome::Prevented(full())));
        prevented += 1;
        while launcher.advance(1) != "test" {}
        launcher.handle(Event::Tested(Ok(())));
    }
    assert!((8..=12).contains(&prevented), "{prevented} starts in an hour");
}

#[test]
fn a_fault_found_by_a_test_alone_is_reported() {
    let mut launcher = Harness::new(PersistedState::default());
    let text = launcher.handle(Event::Tested(Err(full())));
    assert_eq!(text, "fault Disk: no space; report 0 [] Disk fault");
    let other = Fault { kind: NodeFaultKind::Missing, error: "no folder".to_owned() };
    let text = launcher.handle(Event::Tested(Err(other)));
    assert_eq!(text, "fault Missing: no folder; report 0 [] Missing fault");
    assert_eq!(launcher.advance(10), "test");
}

#[test]
fn a_stop_that_a_signal_ends_differs_from_a_checkpoint() {
    const TERM: StopStage = StopStage::Terminate;
    let end = |signal: &str, stage: StopStage, outcome: Outcome| {
        let mut job = found("a", Some(Status::Ended(outcome)), Some(stage));
        job.spec.checkpoint_signal = Some(signal.to_owned()).filter(|signal| !signal.is_empty());
        let mut launcher = Harness::new(PersistedState { obeyed: version(1, 0), runs: vec![job] });
        let text = launcher.desire(2, vec![desired_job("a", 1)]);
        text.trim_start_matches("obeyed 2; report 2 [a.1 ").trim_end_matches(']').to_owned()
    };
    let (usr1, checkpoint) = ("SIGUSR1", StopStage::Checkpoint);
    let killed = |signal| format!("Stopped by signal {signal}");
    for (signal, stage, outcome, expected) in [
        // It wrote its checkpoint, whatever it exits with.
        (usr1, checkpoint, Outcome::Code(0), "Stopped".to_owned()),
        (usr1, checkpoint, Outcome::Code(1), "Stopped".to_owned()),
        (usr1, checkpoint, Outcome::Code(143), "Stopped".to_owned()),
        (usr1, TERM, Outcome::Code(0), "Stopped".to_owned()),
        ("SIGTERM", checkpoint, Outcome::Code(143), "Stopped".to_owned()),
        // No handler, or a shell in between.
        (usr1, checkpoint, Outcome::Killed(10), killed(10)),
        (usr1, checkpoint, Outcome::Code(138), killed(10)),
        ("SIGTERM", checkpoint, Outcome::Killed(15), killed(15)),
        // A fault in its handler, and the memory limit.
        (usr1, checkpoint, Outcome::Killed(11), killed(11)),
        (
            usr1,
            checkpoint,
            Outcome::Limited { code: 137, limit: ReachedLimit::MemoryMib(1) },
            killed(9),
        ),
        // The grace has passed.
        (usr1, TERM, Outcome::Killed(15), killed(15)),
        (usr1, TERM, Outcome::Code(143), killed(15)),
        (usr1, StopStage::Kill, Outcome::Killed(9), killed(9)),
        // It writes no checkpoints.
        ("", TERM, Outcome::Killed(15), "Stopped".to_owned()),
    ] {
        assert_eq!(end(signal, stage, outcome.clone()), expected, "{signal} {stage:?} {outcome:?}");
    }
}
