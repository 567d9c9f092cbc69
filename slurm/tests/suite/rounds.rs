//! Rounds of the machine: number and repetition of commands, holds, ends, heartbeats, and what is forgotten.

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::job::JobPhase;
use wattle_common::messages::{JobRecord, LaunchState};
use wattle_common::{JobId, Machine, Timestamp};
use wattle_slurm::{
    Action, Command, Event, Level, PersistedState, Released, SlurmError, SlurmJob, SlurmMachine,
    SlurmState, SlurmView,
};

use crate::rules::{
    NOW, after, after_at, alarms, commands, machine, order, record, running, states, view,
};
use crate::world::{Plan, settings};

pub(crate) const RETRY: Duration = Duration::from_secs(5);
pub(crate) const MOMENT: Duration = Duration::from_micros(1);

/// `count` copies of a job with ids from 101, which have the order of their texts, and tags of their own.
pub(crate) fn copies(job: &SlurmJob, count: u32) -> SlurmView {
    let copy = |id| {
        let admin_comment = format!("wattle: tag=a{id:x} nodes=1 gpus_per_node=1");
        (id, SlurmJob { id, admin_comment, ..job.clone() })
    };
    SlurmView { jobs: (101..=100 + count).map(copy).collect(), ..view(job) }
}

pub(crate) fn pending(held: bool) -> SlurmJob {
    SlurmJob {
        state: SlurmState::Pending,
        held,
        started_at: None,
        on: Vec::new(),
        ..running(Some("TERM"))
    }
}

fn refused() -> SlurmError {
    SlurmError::Refused { command: "scontrol".to_owned(), error: "no".to_owned() }
}

pub(crate) fn away() -> SlurmError {
    SlurmError::Away { command: "scontrol".to_owned(), error: "no answer".to_owned() }
}

/// A machine that continues from a released attempt of the job with this record.
pub(crate) fn released(record: &JobRecord, released: Released) -> SlurmMachine {
    let plan = Plan {
        level: Level::Exact,
        seed: 1,
        nodes: 1,
        jobs: 1,
        has_accounting: true,
        loses_memory: false,
    };
    let state = PersistedState {
        released: BTreeMap::from([(record.spec.job.clone(), released)]),
        ..PersistedState::default()
    };
    let mut machine = SlurmMachine::new(settings(&plan), state, String::new());
    after(&mut machine, Event::RecordChanged(Box::new(record.clone())));
    machine
}

/// The record that the placer has of a running job.
pub(crate) fn placed(
    phase: JobPhase,
    next: Option<JobPhase>,
    signal: Option<&'static str>,
) -> JobRecord {
    let submitted = after(&mut machine(Level::Exact), Event::Viewed(view(&running(signal))));
    record(&submitted, phase, next)
}

#[test]
fn a_round_has_a_limited_number_of_commands() {
    let view = copies(&running(None), 60);
    let mut machine = machine(Level::Exact);
    let submitted = after(&mut machine, Event::Viewed(view.clone()));
    for action in submitted {
        if let Action::Submit(spec, _) = action {
            let record = JobRecord { phase: JobPhase::Cancelled, ..JobRecord::queued(*spec, NOW) };
            after(&mut machine, Event::RecordChanged(Box::new(record)));
        }
    }
    let first = commands(&after(&mut machine, Event::Viewed(view.clone())));
    assert_eq!(first, (101..=150).map(Command::Cancel).collect::<Vec<_>>());
    // Those that have ended make room.
    let mut rest = view;
    rest.jobs.retain(|id, _| *id > 150);
    let second = commands(&after(&mut machine, Event::Viewed(rest)));
    assert_eq!(second, (151..=160).map(Command::Cancel).collect::<Vec<_>>());
}

#[test]
fn a_failed_command_is_repeated_after_a_time_and_a_successful_one_at_once() {
    for error in [refused(), away()] {
        let job = running(None);
        let mut machine = machine(Level::Exact);
        let record = placed(JobPhase::Stopping, Some(JobPhase::Cancelled), None);
        let stop = order(&record, true);
        after(&mut machine, Event::RecordChanged(Box::new(record)));
        after(&mut machine, Event::DesiredChanged(stop));
        let cancel = vec![Command::Cancel(1)];
        assert_eq!(commands(&after(&mut machine, Event::Viewed(view(&job)))), cancel);
        let ended = Event::CommandEnded(cancel[0].clone(), Err(error));
        assert!(alarms(&after(&mut machine, ended)).contains("scontrol"));
        let mut at = |at| commands(&after_at(&mut machine, at, Event::Viewed(view(&job))));
        assert_eq!(at(NOW + RETRY - MOMENT), []);
        assert_eq!(at(NOW + RETRY), cancel);
        let done = Event::CommandEnded(cancel[0].clone(), Ok(()));
        after_at(&mut machine, NOW + RETRY, done);
        let again = after_at(&mut machine, NOW + RETRY, Event::Viewed(view(&job)));
        assert_eq!(commands(&again), cancel, "it runs still");
    }
}

/// The process was killed after it stored the stop and before the signal was sent, or after both and before the
/// answer was stored.
#[test]
fn a_restart_sends_a_checkpoint_signal_that_was_only_stored() {
    let job = running(Some("USR1"));
    let record = placed(JobPhase::Stopping, Some(JobPhase::Queued), Some("USR1"));
    let run =
        Released { attempt: 1, restarts: 0, at_us: NOW, stop_at_us: None, is_signalled: false };
    let stored = |actions: &[Action]| {
        let mut stored = actions.iter().filter_map(|action| match action {
            Action::StoreReleased(_, released) => Some(*released),
            _ => None,
        });
        stored.next_back()
    };
    let started = |run| {
        let mut machine = released(&record, run);
        after(&mut machine, Event::DesiredChanged(order(&record, true)));
        machine
    };
    let signal = vec![Command::Checkpoint { id: 1, signal: "USR1".to_owned() }];
    let first = after(&mut started(run), Event::Viewed(view(&job)));
    assert_eq!(commands(&first), signal);
    let intended = stored(&first).unwrap();
    assert_eq!((intended.stop_at_us, intended.is_signalled), (Some(NOW), false));

    let mut machine = started(intended);
    let again = after_at(&mut machine, NOW + MOMENT, Event::Viewed(view(&job)));
    assert_eq!(commands(&again), signal, "it was only stored");
    let ended = after(&mut machine, Event::CommandEnded(signal[0].clone(), Ok(())));
    let signalled = stored(&ended).unwrap();
    assert_eq!(signalled, Released { is_signalled: true, ..intended });
    assert_eq!(commands(&after_at(&mut machine, NOW + MOMENT, Event::Viewed(view(&job)))), []);

    let mut machine = started(signalled);
    assert_eq!(commands(&after_at(&mut machine, NOW + RETRY, Event::Viewed(view(&job)))), []);
    // The grace is 20 s.
    let due = after_at(&mut machine, NOW + RETRY * 4, Event::Viewed(view(&job)));
    assert_eq!(commands(&due), [Command::RequeueHold(1)]);
}

#[test]
fn a_checkpoint_signal_is_repeated_only_if_it_may_not_have_arrived() {
    for (error, is_repeated) in [(away(), true), (refused(), false)] {
        let job = running(Some("USR1"));
        let record = placed(JobPhase::Stopping, Some(JobPhase::Queued), Some("USR1"));
        let run =
            Released { attempt: 1, restarts: 0, at_us: NOW, stop_at_us: None, is_signalled: false };
        let mut machine = released(&record, run);
        after(&mut machine, Event::DesiredChanged(order(&record, true)));
        let signal = vec![Command::Checkpoint { id: 1, signal: "USR1".to_owned() }];
        assert_eq!(commands(&after(&mut machine, Event::Viewed(view(&job)))), signal);
        after(&mut machine, Event::CommandEnded(signal[0].clone(), Err(error)));
        let again = after_at(&mut machine, NOW + RETRY, Event::Viewed(view(&job)));
        assert_eq!(commands(&again) == signal, is_repeated);
        // The grace is 20 s.
        let due = after_at(&mut machine, NOW + RETRY * 4, Event::Viewed(view(&job)));
        assert_eq!(commands(&due), [Command::RequeueHold(1)]);
    }
}

#[test]
fn pending_jobs_that_are_not_held_are_held_in_few_commands() {
    let mut machine = machine(Level::Exact);
    let view = copies(&pending(false), 250);
    let held = commands(&after(&mut machine, Event::Viewed(view.clone())));
    assert_eq!(held, [Command::Hold((101..=300).collect()), Command::Hold((301..=350).collect())]);
    // A failed hold is repeated in the next round.
    after(&mut machine, Event::CommandEnded(Command::Hold(vec![101]), Err(away())));
    assert_eq!(commands(&after(&mut machine, Event::Viewed(view))), held);
}

#[test]
fn a_job_that_its_owner_holds_is_left_alone_until_it_is_released() {
    let theirs = SlurmJob {
        reason: "JobHeldUser".to_owned(),
        admin_comment: "wattle: tag=a1 nodes=1 gpus_per_node=1 held_by_owner".to_owned(),
        ..pending(true)
    };
    let actions = after(&mut machine(Level::Exact), Event::Viewed(view(&theirs)));
    assert!(!actions.iter().any(|action| matches!(action, Action::Submit(..))), "{actions:?}");
    assert_eq!(commands(&actions), []);
    // Held by the intake.
    let ours = SlurmJob { admin_comment: pending(true).admin_comment, ..theirs };
    let actions = after(&mut machine(Level::Exact), Event::Viewed(view(&ours)));
    assert!(actions.iter().any(|action| matches!(action, Action::Submit(..))), "{actions:?}");
    assert_eq!(commands(&actions), [Command::Hold(vec![1])]);
}

#[test]
fn a_released_job_may_wait_for_a_limited_time() {
    let record = placed(JobPhase::Starting, None, Some("TERM"));
    let run =
        Released { attempt: 1, restarts: 0, at_us: NOW, stop_at_us: None, is_signalled: false };
    let mut machine = released(&record, run);
    after(&mut machine, Event::DesiredChanged(order(&record, false)));
    let mut at = |seconds| {
        let at = NOW + Duration::from_secs(seconds);
        commands(&after_at(&mut machine, at, Event::Viewed(view(&pending(false)))))
    };
    assert_eq!(at(11), []);
    assert_eq!(at(12), [Command::Hold(vec![1])]);
}

#[test]
fn every_end_in_slurm_has_its_state() {
    let requeue = || vec![Command::RequeueHold(1)];
    let ended = |job: &SlurmJob, stop_at: Option<Timestamp>| {
        let record = placed(JobPhase::Running, None, Some("TERM"));
        let restarts = job.restarts;
        let run =
            Released { attempt: 1, restarts, at_us: NOW, stop_at_us: stop_at, is_signalled: false };
        let mut machine = released(&record, run);
        after(&mut machine, Event::DesiredChanged(order(&record, false)));
        let actions = after(&mut machine, Event::Viewed(view(job)));
        let state = states(&actions).pop().map(|(_, _, state)| state);
        (commands(&actions), state)
    };
    let job = |state, exit| SlurmJob {
        state,
        exit: Some(exit),
        ended_at: Some(NOW),
        on: Vec::new(),
        ..running(Some("TERM"))
    };
    let exited = |code| Some(LaunchState::exited(code));
    let none = Vec::new;
    assert_eq!(ended(&job(SlurmState::Completed, (0, 0)), None), (none(), exited(0)));
    assert_eq!(ended(&job(SlurmState::Failed, (7, 0)), None), (none(), exited(7)));
    assert_eq!(ended(&job(SlurmState::Failed, (0, 9)), None), (none(), exited(137)));
    assert_eq!(ended(&job(SlurmState::Failed, (0, 0)), None), (none(), exited(1)));
    assert_eq!(ended(&job(SlurmState::TimedOut, (0, 0)), None), (none(), exited(143)));
    let (_, state) = ended(&job(SlurmState::OutOfMemory, (0, 0)), None);
    assert!(matches!(state, Some(LaunchState::Exited { code: 137, .. })), "{state:?}");
    // After a request to stop, an end is that of a checkpoint.
    let stopped = Some(NOW);
    let running = || Some(LaunchState::Running);
    assert_eq!(ended(&job(SlurmState::Completed, (0, 0)), stopped), (requeue(), running()));
    assert_eq!(ended(&job(SlurmState::Failed, (1, 0)), stopped), (requeue(), running()));
    let before = Some(NOW + Duration::from_secs(1));
    assert_eq!(ended(&job(SlurmState::Completed, (0, 0)), before), (none(), exited(0)));
    // The declared code of a checkpoint.
    let comment = "wattle: signal=TERM exit=85".to_owned();
    let declared = |state, exit| SlurmJob { comment: comment.clone(), ..job(state, exit) };
    assert_eq!(ended(&declared(SlurmState::Failed, (85, 0)), None), (requeue(), running()));
    assert_eq!(ended(&declared(SlurmState::Completed, (0, 0)), stopped), (none(), exited(0)));
    // A failed node is not the job's failure, unless it must not run again.
    assert_eq!(ended(&job(SlurmState::NodeFailed, (0, 0)), None), (requeue(), running()));
    let once = SlurmJob { requeue: false, ..job(SlurmState::NodeFailed, (0, 0)) };
    let (sent, state) = ended(&once, None);
    assert!(sent.is_empty() && matches!(state, Some(LaunchState::Refused { .. })), "{state:?}");
}

#[test]
fn a_pending_job_that_has_ended_for_the_placer_is_cancelled() {
    let record = placed(JobPhase::Cancelled, None, None);
    let mut machine = machine(Level::Exact);
    after(&mut machine, Event::RecordChanged(Box::new(record)));
    let actions = after(&mut machine, Event::Viewed(view(&pending(true))));
    assert_eq!(commands(&actions), [Command::Cancel(1)]);
}

#[test]
fn reports_are_repeated_as_a_heartbeat() {
    let heartbeat = Duration::from_secs(5);
    let mut machine = machine(Level::Exact);
    assert_eq!(machine.next_wake(), None);
    let reports = |actions: &[Action]| {
        actions.iter().filter(|action| matches!(action, Action::Report(_))).count()
    };
    let first = after(&mut machine, Event::Viewed(view(&running(None))));
    assert_eq!(reports(&first), 1);
    assert_eq!(machine.next_wake().map(|(at, _)| at), Some(NOW + heartbeat));
    let mut out = Vec::new();
    machine.wake(NOW + heartbeat - MOMENT, &mut out);
    assert_eq!(reports(&out), 0);
    machine.wake(NOW + heartbeat, &mut out);
    assert_eq!(reports(&out), 1);
    assert_eq!(machine.next_wake().map(|(at, _)| at), Some(NOW + heartbeat * 2));
}

#[test]
fn a_release_is_forgotten_when_slurm_and_the_placer_are_done_with_the_job() {
    let run =
        Released { attempt: 1, restarts: 0, at_us: NOW, stop_at_us: None, is_signalled: false };
    let forgotten = |phase, view: SlurmView| {
        let record = placed(phase, None, None);
        let mut machine = released(&record, run);
        let actions = after(&mut machine, Event::Viewed(view));
        let forget = |action: &Action| match action {
            Action::Forget(job) => Some(job.clone()),
            _ => None,
        };
        (actions.iter().filter_map(forget).collect::<Vec<JobId>>(), record.spec.job)
    };
    let present = || view(&running(None));
    let absent = || SlurmView { jobs: BTreeMap::new(), ..present() };
    let unreadable = || SlurmView { unreadable: [1].into(), ..absent() };
    let (jobs, job) = forgotten(JobPhase::Finished, absent());
    assert_eq!(jobs, [job]);
    assert_eq!(forgotten(JobPhase::Finished, unreadable()).0, []);
    assert_eq!(forgotten(JobPhase::Finished, present()).0, []);
    assert_eq!(forgotten(JobPhase::Running, absent()).0, []);
}

#[test]
fn each_alarm_is_raised_once() {
    let mut machine = machine(Level::Exact);
    let failed = || Event::CommandEnded(Command::Cancel(7), Err(refused()));
    assert!(!alarms(&after(&mut machine, failed())).is_empty());
    assert_eq!(alarms(&after(&mut machine, failed())), "");
}

#[test]
fn a_gpu_that_slurm_counts_as_used_without_a_job_is_taken_after_a_time() {
    let mut machine = machine(Level::Exact);
    let taken = |machine: &mut SlurmMachine, seconds: u64, view: SlurmView| {
        let at = NOW + Duration::from_secs(seconds);
        let actions = after_at(machine, at, Event::Viewed(view));
        let report = actions.iter().find_map(|action| match action {
            Action::Report(report) => Some(report.site.as_ref().unwrap().gpus_taken.clone()),
            _ => None,
        });
        (report, alarms(&actions))
    };
    let used = |gpus: &[u32], jobs: bool| {
        let mut view = view(&running(None));
        if !jobs {
            view.jobs.clear();
        }
        view.nodes.values_mut().for_each(|node| node.gpus_used = gpus.to_vec());
        view
    };
    assert_eq!(taken(&mut machine, 0, used(&[0], false)), (Some(vec![]), String::new()));
    assert_eq!(taken(&mut machine, 5, used(&[], false)).0, Some(vec![]), "it was a start");
    assert_eq!(taken(&mut machine, 10, used(&[0], false)).0, Some(vec![]));
    assert_eq!(taken(&mut machine, 15, used(&[0], false)).0, Some(vec![]));
    let (gpus, alarm) = taken(&mut machine, 22, used(&[0], false));
    assert_eq!(gpus, Some(vec![0]));
    assert!(alarm.contains("GPU 0 of n0"), "{alarm}");
    assert_eq!(
        taken(&mut machine, 23, used(&[], false)).0,
        Some(vec![]),
        "slurmctld was restarted"
    );
    // The GPU of a running job.
    for seconds in [30, 60, 90] {
        assert_eq!(taken(&mut machine, seconds, used(&[1], true)).1, "");
    }
    // Another GPU of its node.
    let mut has_0 = |seconds| {
        let (gpus, _) = taken(&mut machine, seconds, used(&[0, 1], true));
        gpus.is_some_and(|gpus| gpus.contains(&0))
    };
    assert!(!has_0(100));
    assert!(has_0(112));
}

#[test]
fn only_a_refused_requeue_ends_a_job_whose_node_failed() {
    let record = placed(JobPhase::Running, None, Some("TERM"));
    let failed = SlurmJob {
        state: SlurmState::NodeFailed,
        ended_at: Some(NOW),
        on: Vec::new(),
        ..running(Some("TERM"))
    };
    let requeue = vec![Command::RequeueHold(1)];
    for (error, is_repeated) in [(away(), true), (refused(), false)] {
        let run =
            Released { attempt: 1, restarts: 0, at_us: NOW, stop_at_us: None, is_signalled: false };
        let mut machine = released(&record, run);
        after(&mut machine, Event::DesiredChanged(order(&record, false)));
        assert_eq!(commands(&after(&mut machine, Event::Viewed(view(&failed)))), requeue);
        after(&mut machine, Event::CommandEnded(requeue[0].clone(), Err(error)));
        let again = after_at(&mut machine, NOW + RETRY, Event::Viewed(view(&failed)));
        assert_eq!(commands(&again) == requeue, is_repeated);
        let is_over = matches!(states(&again)[..], [(_, 1, LaunchState::Refused { .. })]);
        assert_eq!(is_over, !is_repeated, "{again:?}");
    }
}

#[test]
fn the_time_of_the_next_command_is_kept_while_a_job_is_not_readable() {
    let job = running(None);
    let record = placed(JobPhase::Stopping, Some(JobPhase::Cancelled), None);
    let mut machine = machine(Level::Exact);
    after(&mut machine, Event::RecordChanged(Box::new(record.clone())));
    after(&mut machine, Event::DesiredChanged(order(&record, true)));
    let cancel = vec![Command::Cancel(1)];
    assert_eq!(commands(&after(&mut machine, Event::Viewed(view(&job)))), cancel);
    after(&mut machine, Event::CommandEnded(cancel[0].clone(), Err(away())));
    let unreadable = SlurmView { jobs: BTreeMap::new(), unreadable: [1].into(), ..view(&job) };
    after_at(&mut machine, NOW + MOMENT, Event::Viewed(unreadable));
    let mut at = |at| commands(&after_at(&mut machine, at, Event::Viewed(view(&job))));
    assert_eq!(at(NOW + RETRY - MOMENT), []);
    assert_eq!(at(NOW + RETRY), cancel);
}
