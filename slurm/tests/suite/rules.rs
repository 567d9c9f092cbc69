//! Single rules of the machine: levels, owners and consent.

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::job::{JobPhase, NodeShare, Placement};
use wattle_common::messages::{DesiredJob, JobRecord, LaunchState, NodeDesired};
use wattle_common::units::Energy;
use wattle_common::{JobId, Machine, NodeId, Timestamp};
use wattle_slurm::{
    Action, Command, Event, Level, PersistedState, SlurmJob, SlurmMachine, SlurmNode, SlurmState,
    SlurmView,
};

use crate::model::{Program, Slurm};
use crate::world::{Plan, settings};

pub(crate) const NOW: Timestamp = Timestamp::from_s(1_000_100);

pub(crate) fn node() -> NodeId {
    NodeId::new("n0").unwrap()
}

/// A running job on GPU 1 of n0, with a tag.
pub(crate) fn running(signal: Option<&'static str>) -> SlurmJob {
    let program = Program {
        work_ms: 1_000,
        done_ms: 0,
        signal,
        exit: None,
        completed_at: None,
        ambiguous: false,
        requeued: false,
        stop_at: None,
        starts: 0,
    };
    let mut slurm = Slurm::new(1, 1);
    slurm.submit("ada", 1, 1, program, false);
    SlurmJob {
        state: SlurmState::Running,
        held: false,
        started_at: Some(NOW),
        on: vec![NodeShare { node: node(), gpus: vec![1] }],
        ..slurm.jobs[&1].shown.clone()
    }
}

pub(crate) fn untagged(job: SlurmJob) -> SlurmJob {
    SlurmJob { admin_comment: String::new(), ..job }
}

pub(crate) fn view(job: &SlurmJob) -> SlurmView {
    let slurm_node = SlurmNode {
        unavailable: None,
        asleep: false,
        gpus_used: Vec::new(),
        cpus: 16,
        memory_mib: 64_000,
        cpus_allocated: 1,
        memory_mib_allocated: 0,
        gpus: vec![0, 1],
        partitions: vec!["gpu".to_owned()],
        features: Vec::new(),
    };
    SlurmView {
        at: NOW,
        jobs: BTreeMap::from([(job.id, job.clone())]),
        nodes: BTreeMap::from([(node(), slurm_node)]),
        ..SlurmView::default()
    }
}

pub(crate) fn machine(level: Level) -> SlurmMachine {
    let plan =
        Plan { level, seed: 1, nodes: 1, jobs: 1, has_accounting: true, loses_memory: false };
    SlurmMachine::new(settings(&plan), PersistedState::default(), String::new())
}

pub(crate) fn after(machine: &mut SlurmMachine, event: Event) -> Vec<Action> {
    after_at(machine, NOW, event)
}

pub(crate) fn after_at(machine: &mut SlurmMachine, at: Timestamp, event: Event) -> Vec<Action> {
    let mut out = Vec::new();
    machine.handle(at, event, &mut out);
    out
}

/// The record of a submitted job, placed where it runs.
pub(crate) fn record(actions: &[Action], phase: JobPhase, next: Option<JobPhase>) -> JobRecord {
    let spec = actions.iter().find_map(|action| match action {
        Action::Submit(spec, _) => Some((**spec).clone()),
        _ => None,
    });
    let shares = vec![NodeShare { node: node(), gpus: vec![1] }];
    JobRecord {
        phase,
        next_phase: next,
        attempt: 1,
        placement: Some(Placement { shares }),
        ..JobRecord::queued(spec.unwrap(), NOW)
    }
}

pub(crate) fn order(record: &JobRecord, stop: bool) -> NodeDesired {
    let shares = record.placement.clone().unwrap().shares;
    let job = DesiredJob {
        job: record.spec.job.clone(),
        admission: None,
        user: None,
        attempt: record.attempt,
        gpus: vec![1],
        rank: 0,
        shares,
        command: Vec::new(),
        environment: Vec::new(),
        working_dir: None,
        checkpoint_signal: None,
        stop,
    };
    NodeDesired {
        node: node(),
        generation: 1,
        issued_at_us: NOW,
        expires_at_us: NOW + Duration::from_secs(60),
        gpus: Vec::new(),
        jobs: vec![job],
        power_limited: false,
        caps_ahead: Vec::new(),
        event_until_us: None,
        sleep: None,
    }
}

pub(crate) fn commands(actions: &[Action]) -> Vec<Command> {
    let command = |action: &Action| match action {
        Action::Command(command) => Some(command.clone()),
        _ => None,
    };
    actions.iter().filter_map(command).collect()
}

pub(crate) fn alarms(actions: &[Action]) -> String {
    let alarm = |action: &Action| match action {
        Action::Alarm(alarm) => Some(alarm.to_string()),
        _ => None,
    };
    actions.iter().filter_map(alarm).collect()
}

/// The states in the report of n0.
pub(crate) fn states(actions: &[Action]) -> Vec<(JobId, u32, LaunchState)> {
    let report = actions.iter().rev().find_map(|action| match action {
        Action::Report(report) => Some(report.clone()),
        _ => None,
    });
    let jobs = report.map(|report| report.jobs).unwrap_or_default();
    jobs.into_iter().map(|run| (run.job, run.attempt, run.state)).collect()
}

/// Submits `job`, then orders its stop; returns the actions after that.
pub(crate) fn stopped(level: Level, job: &SlurmJob, next: JobPhase) -> Vec<Action> {
    let mut machine = machine(level);
    let submitted = after(&mut machine, Event::Viewed(view(job)));
    let record = record(&submitted, JobPhase::Stopping, Some(next));
    let ordered = order(&record, true);
    after(&mut machine, Event::RecordChanged(Box::new(record)));
    after(&mut machine, Event::DesiredChanged(ordered));
    after(&mut machine, Event::Viewed(view(job)))
}

#[test]
fn jobs_that_slurm_places_get_no_command_below_level_start() {
    let job = untagged(running(None));
    for level in [Level::Advise, Level::Caps] {
        let actions = stopped(level, &job, JobPhase::Cancelled);
        assert_eq!(commands(&actions), [], "{level}");
        assert!(alarms(&actions).contains("use scancel"), "{level}: {}", alarms(&actions));
        assert!(matches!(states(&actions)[..], [(_, 1, LaunchState::Running)]), "{level}");
    }
    let actions = stopped(Level::Start, &job, JobPhase::Cancelled);
    assert_eq!(commands(&actions), [Command::Cancel(1)]);
}

#[test]
fn a_job_is_requeued_only_with_the_consent_of_its_owner() {
    let actions = stopped(Level::Exact, &running(None), JobPhase::Queued);
    assert_eq!(commands(&actions), []);
    assert!(alarms(&actions).contains("has not declared a checkpoint signal"));
    assert!(matches!(states(&actions)[..], [(_, 1, LaunchState::Running)]));

    let actions = stopped(Level::Exact, &running(Some("TERM")), JobPhase::Queued);
    assert_eq!(commands(&actions), [Command::RequeueHold(1)]);
    assert!(matches!(states(&actions)[..], [(_, 1, LaunchState::Stopping)]));

    let forbidden = SlurmJob { requeue: false, ..running(Some("TERM")) };
    assert_eq!(commands(&stopped(Level::Exact, &forbidden, JobPhase::Queued)), []);

    let actions = stopped(Level::Exact, &running(Some("USR1")), JobPhase::Queued);
    let signal = "USR1".to_owned();
    assert_eq!(commands(&actions), [Command::Checkpoint { id: 1, signal }]);

    let actions = stopped(Level::Exact, &running(None), JobPhase::Cancelled);
    assert_eq!(commands(&actions), [Command::Cancel(1)]);
}

#[test]
fn a_record_of_another_owner_is_ignored() {
    let job = running(Some("TERM"));
    let mut machine = machine(Level::Exact);
    let submitted = after(&mut machine, Event::Viewed(view(&job)));
    let mut record = record(&submitted, JobPhase::Stopping, Some(JobPhase::Cancelled));
    record.spec.user = Some("mallory".to_owned());
    let ordered = order(&record, true);
    after(&mut machine, Event::RecordChanged(Box::new(record)));
    after(&mut machine, Event::DesiredChanged(ordered));
    let actions = after(&mut machine, Event::Viewed(view(&job)));
    assert_eq!(commands(&actions), []);
    assert!(alarms(&actions).contains("another owner"), "{}", alarms(&actions));
}

#[test]
fn energy_is_written_once_and_keeps_the_tag() {
    let job = SlurmJob { state: SlurmState::Completed, on: Vec::new(), ..running(None) };
    let submitted = after(&mut machine(Level::Caps), Event::Viewed(view(&running(None))));
    let mut record = record(&submitted, JobPhase::Finished, None);
    if let Some(site) = &mut record.spec.site {
        site.placed_by_site = false;
    }
    record.ended_at_us = Some(NOW);
    record.energy_mj = Some(Energy::from_mj(12_345_000));
    record.energy_until_us.insert(node(), NOW + Duration::from_secs(1));
    let mut machine = machine(Level::Caps);
    after(&mut machine, Event::RecordChanged(Box::new(record)));
    let written = commands(&after(&mut machine, Event::Viewed(view(&job))));
    let [Command::SetAdminComment { id: 1, text }] = &written[..] else { panic!("{written:?}") };
    let tag = job.admin_comment.split_whitespace().nth(1).unwrap();
    assert_eq!(*text, format!("wattle: {tag} energy_j=12345"));
    let ended = after(&mut machine, Event::CommandEnded(written[0].clone(), Ok(())));
    assert!(matches!(ended[..], [Action::StoreEnergy(_)]), "{ended:?}");
    assert_eq!(commands(&after(&mut machine, Event::Viewed(view(&job)))), []);
    // Another program's comment stays.
    let other = SlurmJob { admin_comment: "billing: x".to_owned(), ..job };
    assert_eq!(commands(&after(&mut machine, Event::Viewed(view(&other)))), []);
}
