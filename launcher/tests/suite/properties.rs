//! Safety of the launcher under random histories, with an engine in memory.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use tokio::sync::mpsc;
use wattle_common::Machine;
use wattle_common::bounds::OrderVersion;
use wattle_common::messages::NodeDesired;
use wattle_launcher::engine::{Engine, StatusSender};
use wattle_launcher::{Action, Config, Event, Launcher, Outcome, PersistedState, Run};

use crate::memory_engine::{Cluster, MemoryEngine};
use crate::support::{at, config, desired, desired_job, stopping};

/// A step of a random history.
#[derive(Clone, Debug)]
enum Step {
    /// The desired state of each job: its attempt (0: not desired), and whether it is to stop.
    Desire(Vec<(u32, bool)>),
    /// The desired state before the current one arrives again.
    Stale,
    /// A live run is reported as running (code < 0), or ends with this code.
    Change(usize, i32),
    /// Seconds pass.
    Wait(u64),
    /// The launcher and its engine restart.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => prop::collection::vec((0u32..4, any::<bool>()), 3).prop_map(Step::Desire),
        1 => Just(Step::Stale),
        6 => (0usize..3, -1i32..3).prop_map(|(job, code)| Step::Change(job, code)),
        1 => (1u64..30).prop_map(Step::Wait),
        1 => Just(Step::Restart),
    ]
}

fn is_desired(desired: &NodeDesired, run: &Run) -> bool {
    desired.jobs.iter().any(|job| job.job == run.job && job.attempt == run.attempt && !job.stop)
}

proptest! {
    /// No attempt starts twice, no job has two live attempts, and no run is stopped that is
    /// desired to run, whatever is desired and happens, with restarts in between.
    #[test]
    fn no_attempt_starts_twice_and_no_job_has_two_live_attempts(
        steps in prop::collection::vec(step(), 1..60)
    ) {
        // More than the attempts below, because a forgotten run may start again.
        let config = || Config { ended_kept: 20, ..config(Path::new("/")) };
        let cluster = Cluster::default();
        let engine = || MemoryEngine::new(cluster.clone(), StatusSender::new(mpsc::channel(1).0));
        let mut launcher = Launcher::new(config(), PersistedState::default());
        let mut by = engine();
        let mut started: BTreeSet<Run> = BTreeSet::new();
        let mut reported = None;
        let mut obeyed: Option<OrderVersion> = None;
        let mut wanted = desired(0, vec![]);
        let mut before = wanted.clone();
        let mut now = at(0);
        for (count, step) in steps.into_iter().enumerate() {
            // Some events share an instant.
            now = now + Duration::from_secs(count as u64 % 2);
            let mut out = Vec::new();
            match step {
                Step::Desire(jobs) => {
                    let jobs = jobs.into_iter().enumerate().filter(|(_, (attempt, _))| *attempt > 0);
                    let jobs = jobs.map(|(i, (attempt, stop))| {
                        let job = desired_job(&format!("j{i}"), attempt);
                        if stop { stopping(job) } else { job }
                    });
                    let next = desired(count as u64 + 1, jobs.collect());
                    before = std::mem::replace(&mut wanted, next);
                    launcher.handle(now, Event::DesiredChanged(wanted.clone()), &mut out);
                }
                Step::Stale => launcher.handle(now, Event::DesiredChanged(before.clone()), &mut out),
                Step::Change(at, code) => {
                    if let Some(run) = cluster.live().get(at).cloned() {
                        let status = if code < 0 {
                            cluster.running(&run)
                        } else {
                            cluster.ended(&run, Outcome::Code(code))
                        };
                        launcher.handle(now, Event::StatusChanged(run, status), &mut out);
                    }
                }
                Step::Wait(seconds) => {
                    now = now + Duration::from_secs(seconds);
                    launcher.wake(now, &mut out);
                }
                Step::Restart => {
                    reported = None;
                    by = engine();
                    let runs = pollster(by.resume());
                    launcher = Launcher::new(config(), PersistedState { obeyed, runs });
                    if obeyed.is_some() {
                        launcher.handle(now, Event::DesiredChanged(wanted.clone()), &mut out);
                    }
                }
            }
            for action in out {
                match action {
                    Action::Start(spec) => {
                        let run = spec.run();
                        prop_assert!(started.insert(run.clone()), "{run:?} started twice");
                        let second = cluster.live().iter().any(|other| other.job == run.job);
                        prop_assert!(!second, "{run:?} is the second");
                        prop_assert!(is_desired(&wanted, &run));
                        by.start(&spec);
                    }
                    Action::Stop(run, stage) => {
                        let stopped = cluster.runs().get(&run).is_some_and(|run| run.stop.is_some());
                        prop_assert!(stopped || !is_desired(&wanted, &run), "{run:?} is desired");
                        by.stop(&run, stage);
                    }
                    Action::Forget(run) => {
                        prop_assert!(!cluster.live().contains(&run));
                        by.forget(&run);
                    }
                    Action::StoreObeyed(version) => {
                        prop_assert!(obeyed <= Some(version));
                        obeyed = Some(version);
                    }
                    Action::Alarm(refused) => prop_assert!(false, "{refused}"),
                    Action::Test | Action::FaultAlarm(_) | Action::FaultEnded => {
                        prop_assert!(false, "no start of this engine fails");
                    }
                    Action::Report(report) => {
                        let seen = obeyed.map_or(0, |obeyed| obeyed.generation);
                        prop_assert_eq!(report.observed_generation, seen);
                        prop_assert!(reported < Some(report.at_us));
                        reported = Some(report.at_us);
                    }
                }
            }
        }
    }
}

/// The result of a future that is ready at once.
fn pollster<T, E: std::fmt::Debug>(future: impl Future<Output = Result<T, E>>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(result) => result.unwrap(),
        std::task::Poll::Pending => panic!("the engine in memory waits for nothing"),
    }
}
