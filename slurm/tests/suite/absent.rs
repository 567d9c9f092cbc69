//! Jobs that Slurm no longer has: their end is in the accounting database, or they have vanished. And the energy
//! that is written there.

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::job::JobPhase;
use wattle_common::messages::{JobRecord, LaunchState};
use wattle_common::units::Energy;
use wattle_slurm::{
    Action, Command, Event, Level, PastRun, PastState, Released, SlurmJob, SlurmMachine,
    SlurmState, SlurmView,
};

use crate::rounds::{away, placed, released};
use crate::rules::{
    NOW, after, after_at, alarms, commands, machine, node, order, running, states, view,
};

const SECOND: Duration = Duration::from_secs(1);

fn absent() -> SlurmView {
    SlurmView { jobs: BTreeMap::new(), ..view(&running(None)) }
}

/// A machine with a running job that Slurm does not have, and its record.
fn vanished() -> (SlurmMachine, JobRecord) {
    let record = placed(JobPhase::Running, None, None);
    let run =
        Released { attempt: 1, restarts: 0, at_us: NOW, stop_at_us: None, is_signalled: false };
    let mut machine = released(&record, run);
    after(&mut machine, Event::DesiredChanged(order(&record, false)));
    (machine, record)
}

fn run(state: PastState, exit: (i32, i32)) -> PastRun {
    let job = running(None);
    PastRun {
        id: 1,
        user: job.user,
        state,
        exit,
        submitted_at: NOW,
        started_at: Some(NOW),
        ended_at: Some(NOW),
        admin_comment: job.admin_comment,
        script: None,
    }
}

/// The state in the report after the accounting database has answered with these runs, and the actions.
fn read(runs: Vec<PastRun>) -> (Option<LaunchState>, Vec<Action>) {
    let (mut machine, _) = vanished();
    let first = after(&mut machine, Event::Viewed(absent()));
    let requested = |action: &Action| matches!(action, Action::Lookup { ids, .. } if *ids == [1]);
    assert!(first.iter().any(requested), "{first:?}");
    after(&mut machine, Event::PastRead { ids: vec![1], runs: Ok(runs) });
    let actions = after_at(&mut machine, NOW + SECOND * 5, Event::Viewed(absent()));
    (states(&actions).pop().map(|(_, _, state)| state), actions)
}

fn cancels(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::Cancel(..)))
}

#[test]
fn the_accounting_database_has_the_end_of_an_absent_job() {
    let ended = |state, exit| read(vec![run(PastState::Job(state), exit)]);
    assert_eq!(ended(SlurmState::Completed, (0, 0)).0, Some(LaunchState::exited(0)));
    assert_eq!(ended(SlurmState::Failed, (3, 0)).0, Some(LaunchState::exited(3)));
    assert_eq!(ended(SlurmState::Failed, (0, 11)).0, Some(LaunchState::exited(139)));
    let (state, actions) = ended(SlurmState::Cancelled, (0, 15));
    assert!(cancels(&actions), "the placer must not start it again: {actions:?}");
    assert_eq!(state, Some(LaunchState::Stopping), "until the placer has cancelled it");
    // The last run counts.
    let runs =
        vec![run(PastState::Requeued, (0, 15)), run(PastState::Job(SlurmState::Completed), (0, 0))];
    assert_eq!(read(runs).0, Some(LaunchState::exited(0)));
}

#[test]
fn runs_of_other_jobs_that_had_the_id_do_not_count() {
    let completed = run(PastState::Job(SlurmState::Completed), (0, 0));
    let foreign = PastRun { user: "mallory".to_owned(), ..completed.clone() };
    assert_eq!(read(vec![foreign]).0, None);
    let admin_comment = "wattle: tag=ffff nodes=1 gpus_per_node=1".to_owned();
    assert_eq!(read(vec![PastRun { admin_comment, ..completed.clone() }]).0, None);
    // Slurm shows no tag of a job that ended before its comment was stored.
    let admin_comment = String::new();
    let untagged = PastRun { admin_comment, ..completed };
    assert_eq!(read(vec![untagged]).0, Some(LaunchState::exited(0)));
}

#[test]
fn a_job_that_is_nowhere_is_cancelled_after_a_time() {
    let open = vec![run(PastState::Job(SlurmState::Running), (0, 0))];
    for runs in [Vec::new(), open] {
        let (mut machine, _) = vanished();
        let limit = Duration::from_secs(40);
        let mut look = |at: Timestamp| {
            let actions = after_at(&mut machine, at, Event::Viewed(absent()));
            after_at(&mut machine, at, Event::PastRead { ids: vec![1], runs: Ok(runs.clone()) });
            (cancels(&actions), alarms(&actions))
        };
        assert_eq!(look(NOW), (false, String::new()));
        assert_eq!(look(NOW + limit - SECOND), (false, String::new()));
        let (cancels, alarm) = look(NOW + limit);
        assert!(cancels && alarm.contains("slurm-1-"), "{alarm}");
    }
}

#[test]
fn nothing_is_concluded_without_an_answer_or_from_an_unreadable_job() {
    let (mut machine, _) = vanished();
    for seconds in 0..100 {
        let at = NOW + SECOND * seconds;
        let actions = after_at(&mut machine, at, Event::Viewed(absent()));
        assert!(!cancels(&actions), "after {seconds} s: {actions:?}");
        after_at(&mut machine, at, Event::PastRead { ids: vec![1], runs: Err(away()) });
    }
    let (mut machine, _) = vanished();
    for seconds in 0..100 {
        let view = SlurmView { unreadable: [1].into(), ..absent() };
        let actions = after_at(&mut machine, NOW + SECOND * seconds, Event::Viewed(view));
        assert!(!actions.iter().any(|action| matches!(action, Action::Lookup { .. })));
        assert!(!cancels(&actions));
    }
}

/// The command that writes the energy, at a time after the end of the job.
fn energy(
    level: Level,
    counted_until: Timestamp,
    after_end: Duration,
    ended_at: Option<Timestamp>,
) -> Option<String> {
    let mut record = placed(JobPhase::Finished, None, None);
    record.ended_at_us = Some(NOW);
    record.energy_mj = Some(Energy::from_mj(5_000));
    record.energy_until_us.insert(node(), counted_until);
    let mut machine = machine(level);
    after(&mut machine, Event::RecordChanged(Box::new(record)));
    let mut view = absent();
    view.jobs.extend(ended_at.map(|at| {
        let (state, ended_at) = (SlurmState::Completed, Some(at));
        (1, SlurmJob { state, ended_at, on: Vec::new(), ..running(None) })
    }));
    let actions = after_at(&mut machine, NOW + after_end, Event::Viewed(view));
    match commands(&actions).pop() {
        Some(Command::SetAdminComment { text, .. }) => Some(text),
        Some(other) => panic!("{other:?}"),
        None => None,
    }
}

#[test]
fn energy_is_written_when_the_ledger_has_the_end_of_the_job() {
    let day = Duration::from_secs(86_400);
    let written = |until, after_end| energy(Level::Caps, until, after_end, None).is_some();
    assert!(written(NOW, SECOND));
    assert!(!written(NOW - SECOND, SECOND), "the ledger is behind");
    assert!(!written(NOW - SECOND, SECOND * 599));
    assert!(written(NOW - SECOND, SECOND * 600), "a node that does not return");
    assert!(written(NOW, day - SECOND));
    // It ended while this service was away, ten seconds before the time in its record.
    let away = |until| energy(Level::Caps, until, SECOND, Some(NOW - SECOND * 10)).is_some();
    assert!(away(NOW - SECOND * 9));
    assert!(!away(NOW - SECOND * 10), "Slurm's times are whole seconds");
    assert!(!written(NOW, day), "Slurm no longer has it");
    assert_eq!(energy(Level::Advise, NOW, SECOND, None), None);
    let text = energy(Level::Exact, NOW, SECOND, None).unwrap();
    assert!(text.ends_with("energy_j=5"), "{text}");
}

#[test]
fn the_time_of_absence_begins_again_when_a_job_has_returned() {
    let (mut machine, _) = vanished();
    let mut look = |seconds: u32, view: SlurmView| {
        let at = NOW + SECOND * seconds;
        let actions = after_at(&mut machine, at, Event::Viewed(view));
        after_at(&mut machine, at, Event::PastRead { ids: vec![1], runs: Ok(Vec::new()) });
        cancels(&actions)
    };
    assert!(!look(0, absent()));
    assert!(!look(30, view(&running(None))));
    assert!(!look(35, absent()));
    assert!(!look(74, absent()), "39 s");
    assert!(look(75, absent()));
}

#[test]
fn runs_are_looked_up_in_the_thirty_days_before() {
    let (mut machine, _) = vanished();
    let now = NOW + Duration::from_secs(86_400) * 100;
    let actions = after_at(&mut machine, now, Event::Viewed(absent()));
    let since = actions.iter().find_map(|action| match action {
        Action::Lookup { since, .. } => Some(*since),
        _ => None,
    });
    assert_eq!(since, Some(now - Duration::from_secs(86_400) * 30));
}

/// The record of an ended job with energy in the ledger, with the Slurm id of `running` if that is 1.
fn counted(slurm_id: u32, phase: JobPhase) -> JobRecord {
    let mut record = placed(phase, None, None);
    let id = record.spec.job.as_str().replacen("-1-", &format!("-{slurm_id}-"), 1);
    record.spec.job = id.parse().unwrap();
    record.ended_at_us = Some(NOW);
    record.energy_mj = Some(Energy::from_mj(5_000));
    record.energy_until_us.insert(node(), NOW);
    record
}

#[test]
fn energy_of_a_job_that_ended_while_the_service_was_away_is_written_at_once() {
    let ended = NOW - SECOND * 600;
    let written = |counted_until: Timestamp| {
        let (mut machine, mut record) = vanished();
        after(&mut machine, Event::Viewed(absent()));
        let completed = run(PastState::Job(SlurmState::Completed), (0, 0));
        let runs = Ok(vec![PastRun { ended_at: Some(ended), ..completed }]);
        after(&mut machine, Event::PastRead { ids: vec![1], runs });
        after(&mut machine, Event::Viewed(absent()));
        record.phase = JobPhase::Finished;
        record.ended_at_us = Some(NOW);
        record.energy_mj = Some(Energy::from_mj(5_000));
        record.energy_until_us.insert(node(), counted_until);
        after(&mut machine, Event::RecordChanged(Box::new(record)));
        commands(&after_at(&mut machine, NOW + SECOND, Event::Viewed(absent()))).len()
    };
    assert_eq!(written(ended + SECOND), 1);
    assert_eq!(written(ended), 0, "the ledger is behind");
}

#[test]
fn energy_is_written_in_parts_and_marked_as_written_for_its_job_alone() {
    let mut machine = machine(Level::Caps);
    for slurm_id in 101..=160 {
        let record = counted(slurm_id, JobPhase::Finished);
        after(&mut machine, Event::RecordChanged(Box::new(record)));
    }
    let sent = commands(&after(&mut machine, Event::Viewed(absent())));
    assert_eq!(sent.len(), 50);
    let ended = after(&mut machine, Event::CommandEnded(sent[0].clone(), Ok(())));
    let [Action::StoreEnergy(job)] = &ended[..] else { panic!("{ended:?}") };
    assert_eq!(sent[0].ids(), [wattle_slurm::intake::slurm_id(job).unwrap()]);
    // Of two jobs that had the same id, the one that has ended.
    let earlier = counted(7, JobPhase::Finished);
    let mut later = counted(7, JobPhase::Running);
    later.spec.job = "slurm-7-ffff".parse().unwrap();
    later.ended_at_us = None;
    for record in [earlier.clone(), later] {
        after(&mut machine, Event::RecordChanged(Box::new(record)));
    }
    let text = "wattle: energy_j=5".to_owned();
    let done = Event::CommandEnded(Command::SetAdminComment { id: 7, text }, Ok(()));
    let ended = after(&mut machine, done);
    assert!(matches!(&ended[..], [Action::StoreEnergy(job)] if *job == earlier.spec.job));
}

#[test]
fn energy_is_written_when_the_job_is_over_in_slurm_and_after_a_failure_later() {
    let job = SlurmJob {
        state: SlurmState::Completed,
        ended_at: Some(NOW),
        on: Vec::new(),
        ..running(None)
    };
    let mut machine = machine(Level::Caps);
    let record = counted(1, JobPhase::Finished);
    after(&mut machine, Event::RecordChanged(Box::new(record)));
    let mut at = |at: Timestamp, job: &SlurmJob, fails: bool| {
        let mut sent = commands(&after_at(&mut machine, at, Event::Viewed(view(job))));
        let command = sent.pop();
        if let Some(command) = command.clone().filter(|_| fails) {
            after_at(&mut machine, at, Event::CommandEnded(command, Err(away())));
        }
        matches!(command, Some(Command::SetAdminComment { .. }))
    };
    let runs = SlurmJob { state: SlurmState::Running, ..job.clone() };
    assert!(!at(NOW, &runs, false), "it runs still");
    let foreign = SlurmJob { admin_comment: "billing: x".to_owned(), ..job.clone() };
    assert!(!at(NOW, &foreign, false), "the comment of another program");
    assert!(at(NOW, &job, true));
    assert!(!at(NOW + SECOND * 4, &job, false));
    assert!(at(NOW + SECOND * 5, &job, false));
}
