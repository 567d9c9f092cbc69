//! Attempts: the number of a run that Slurm shows, the end of one that waits again, and orders of several nodes.

use std::time::Duration;

use wattle_common::NodeId;
use wattle_common::job::{JobPhase, NodeShare, Placement};
use wattle_common::messages::{JobRecord, LaunchState, NodeDesired};
use wattle_slurm::{
    Action, Command, Event, Level, PastRun, PastState, Released, SlurmJob, SlurmState,
};

use crate::rounds::{pending, placed, released};
use crate::rules::{NOW, after, after_at, commands, machine, order, running, states, view};

const SECOND: Duration = Duration::from_secs(1);

fn run(attempt: u32, restarts: u32) -> Released {
    Released { attempt, restarts, at_us: NOW, stop_at_us: None, is_signalled: false }
}

/// The attempt that is reported for a run with this restart count, and what was stored.
fn reported(
    record: &JobRecord,
    known: Option<Released>,
    ordered: bool,
    restarts: u32,
) -> (u32, Option<Released>) {
    let mut machine = match known {
        Some(known) => released(record, known),
        None => machine(Level::Exact),
    };
    after(&mut machine, Event::RecordChanged(Box::new(record.clone())));
    if ordered {
        after(&mut machine, Event::DesiredChanged(order(record, false)));
    }
    let job = SlurmJob { restarts, ..running(None) };
    let actions = after_at(&mut machine, NOW + SECOND, Event::Viewed(view(&job)));
    let stored = actions.iter().find_map(|action| match action {
        Action::StoreReleased(_, released) => Some(*released),
        _ => None,
    });
    let states = states(&actions);
    let [(_, attempt, LaunchState::Running)] = states[..] else { panic!("{states:?}") };
    (attempt, stored)
}

#[test]
fn a_run_has_the_number_of_its_release_or_a_new_one() {
    let record = placed(JobPhase::Running, None, None);
    assert_eq!(reported(&record, Some(run(1, 0)), true, 0), (1, None));
    // The record is behind the order, or behind the release.
    let starting = JobRecord { phase: JobPhase::Starting, ..record.clone() };
    assert_eq!(reported(&starting, Some(run(1, 0)), false, 0), (1, None));
    let queued = JobRecord { phase: JobPhase::Queued, attempt: 0, ..record.clone() };
    assert_eq!(reported(&queued, Some(run(1, 0)), false, 0), (1, None));
    // The placer has given this attempt up: the same run has a new number.
    let given_up = JobRecord { phase: JobPhase::Queued, ..record.clone() };
    assert_eq!(reported(&given_up, Some(run(1, 0)), false, 0), (2, Some(run(2, 0))));
    // Slurm has started it again.
    assert_eq!(reported(&record, Some(run(1, 0)), true, 1), (2, Some(run(2, 1))));
    // slurmctld has lost a later start.
    let lost = Released { at_us: NOW + SECOND, ..run(2, 0) };
    assert_eq!(reported(&record, Some(run(1, 1)), true, 0), (2, Some(lost)));
    // The folder of the state is new: a run on the nodes of the record is that of the record.
    assert_eq!(reported(&record, None, true, 0), (1, Some(run(1, 0))));
    let elsewhere = JobRecord {
        placement: Some(Placement {
            shares: vec![NodeShare { node: "n9".parse().unwrap(), gpus: vec![1] }],
        }),
        ..record.clone()
    };
    assert_eq!(reported(&elsewhere, None, false, 0), (2, Some(run(2, 0))));
    assert_eq!(reported(&given_up, None, false, 0), (2, Some(run(2, 0))));
}

#[test]
fn a_run_that_boots_or_ends_is_reported_as_far_as_it_is_known() {
    let record = placed(JobPhase::Starting, None, Some("TERM"));
    let state = |state, stop, ordered, restarts| {
        let mut machine = released(&record, run(1, 0));
        if ordered {
            after(&mut machine, Event::DesiredChanged(order(&record, stop)));
        }
        let job = SlurmJob { state, restarts, ..running(Some("TERM")) };
        let actions = after(&mut machine, Event::Viewed(view(&job)));
        states(&actions).pop().map(|(_, attempt, state)| (attempt, state))
    };
    let running = Some((1, LaunchState::Running));
    assert_eq!(state(SlurmState::Configuring, false, true, 0), None, "its nodes boot");
    assert_eq!(state(SlurmState::Configuring, false, false, 0), running);
    assert_eq!(state(SlurmState::Completing, false, true, 0), running);
    // Slurm counts the restart before the processes have ended.
    assert_eq!(state(SlurmState::Completing, false, true, 1), running);

    let stopping = placed(JobPhase::Stopping, Some(JobPhase::Queued), Some("TERM"));
    let mut machine = released(&stopping, run(1, 0));
    after(&mut machine, Event::DesiredChanged(order(&stopping, true)));
    let boots = SlurmJob { state: SlurmState::Configuring, ..crate::rules::running(Some("USR1")) };
    let actions = after(&mut machine, Event::Viewed(view(&boots)));
    assert_eq!(commands(&actions), [Command::RequeueHold(1)], "it has no program for the signal");
}

/// What is reported of a job that waits, held, after attempt 1 was released at the restart count `released_at`.
fn waiting(
    job: &SlurmJob,
    released_at: u32,
    stop: bool,
    runs: Vec<PastRun>,
) -> Option<LaunchState> {
    let (phase, next) = match stop {
        true => (JobPhase::Stopping, Some(JobPhase::Queued)),
        false => (JobPhase::Running, None),
    };
    let record = placed(phase, next, Some("TERM"));
    let mut machine = released(&record, run(1, released_at));
    after(&mut machine, Event::DesiredChanged(order(&record, stop)));
    let first = after(&mut machine, Event::Viewed(view(job)));
    assert_eq!(commands(&first), []);
    assert!(states(&first).is_empty(), "the accounting database is read before: {first:?}");
    after(&mut machine, Event::PastRead { ids: vec![1], runs: Ok(runs) });
    let actions = after(&mut machine, Event::Viewed(view(job)));
    assert_eq!(commands(&actions), []);
    states(&actions).pop().map(|(_, _, state)| state)
}

#[test]
fn a_job_that_waits_again_has_lost_its_run_completed_or_stopped() {
    let past = |state, exit| PastRun {
        id: 1,
        user: running(None).user,
        state,
        exit,
        submitted_at: NOW,
        started_at: Some(NOW),
        ended_at: Some(NOW + SECOND),
        admin_comment: running(None).admin_comment,
        script: None,
    };
    let job = SlurmJob { reason: "BeginTime".to_owned(), restarts: 1, ..pending(true) };
    let requeued = || vec![past(PastState::Requeued, (0, 15))];
    let lost = |state: Option<LaunchState>| match state {
        Some(LaunchState::Lost { error }) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        lost(waiting(&job, 0, false, requeued())),
        "Slurm put it back into the queue: BeginTime"
    );
    assert_eq!(waiting(&job, 0, true, requeued()), Some(LaunchState::STOPPED));
    let completed = vec![past(PastState::Job(SlurmState::Completed), (0, 0))];
    assert_eq!(waiting(&job, 0, false, completed.clone()), Some(LaunchState::exited(0)));
    assert_eq!(waiting(&job, 0, true, completed), Some(LaunchState::exited(0)));
    // Taken back before it ran.
    let never = SlurmJob { restarts: 0, ..job.clone() };
    let refused = lost(waiting(&never, 0, false, Vec::new()));
    assert_eq!(refused, "Slurm did not start it: BeginTime");
    // The database does not have the run of the restart yet.
    assert_eq!(waiting(&job, 0, false, Vec::new()), None);
    let open = PastRun { ended_at: None, ..past(PastState::Job(SlurmState::Running), (0, 0)) };
    assert_eq!(waiting(&job, 0, false, vec![open]), None);
}

/// Orders of attempt 1 for two nodes, one GPU each.
fn two_orders() -> (JobRecord, [NodeDesired; 2]) {
    let record = placed(JobPhase::Starting, None, None);
    let share = |node: &str| NodeShare { node: NodeId::new(node).unwrap(), gpus: vec![1] };
    let shares = vec![share("n0"), share("n1")];
    let record = JobRecord { placement: Some(Placement { shares: shares.clone() }), ..record };
    let at = |node: &str| {
        let mut desired = order(&record, false);
        desired.node = NodeId::new(node).unwrap();
        desired.jobs[0].shares.clone_from(&shares);
        desired
    };
    let orders = [at("n0"), at("n1")];
    (record, orders)
}

#[test]
fn a_job_of_several_nodes_is_placed_when_the_orders_of_all_agree() {
    let place = |change: fn(&mut NodeDesired), first_only: bool| {
        let (record, [first, mut second]) = two_orders();
        change(&mut second);
        let mut machine = machine(Level::Exact);
        let job = SlurmJob { nodes: 2, ..pending(true) };
        after(&mut machine, Event::RecordChanged(Box::new(record)));
        after(&mut machine, Event::DesiredChanged(first));
        if !first_only {
            after(&mut machine, Event::DesiredChanged(second));
        }
        commands(&after(&mut machine, Event::Viewed(view(&job))))
    };
    let [Command::Place(placed)] = &place(|_| {}, false)[..] else { panic!() };
    assert_eq!((placed.id, placed.gres.as_str(), placed.nodes.len()), (1, "gpu:g1:1", 2));
    assert_eq!(place(|_| {}, true), [], "one of the orders has not arrived");
    assert_eq!(place(|second| second.jobs[0].gpus = vec![0], false), []);
    assert_eq!(place(|second| second.jobs[0].attempt = 2, false), []);
    assert_eq!(place(|second| drop(second.jobs[0].shares.pop()), false), []);
    assert_eq!(place(|second| second.jobs.clear(), false), []);
    let stop = |second: &mut NodeDesired| second.jobs[0].stop = true;
    assert_eq!(place(stop, false), [], "a stop of one node stops the job");
    let other = |second: &mut NodeDesired| second.jobs[0].shares[0].node = "n9".parse().unwrap();
    assert_eq!(place(other, false), [], "the orders name different nodes");
}

#[test]
fn the_order_with_the_newest_attempt_counts() {
    for newest in ["n0", "n1"] {
        let record = JobRecord { attempt: 2, ..placed(JobPhase::Starting, None, None) };
        let mut machine = machine(Level::Exact);
        after(&mut machine, Event::RecordChanged(Box::new(record.clone())));
        for name in ["n0", "n1"] {
            let mut desired = order(&record, false);
            desired.node = NodeId::new(name).unwrap();
            desired.jobs[0].attempt = if name == newest { 2 } else { 1 };
            desired.jobs[0].shares = vec![NodeShare { node: desired.node.clone(), gpus: vec![1] }];
            after(&mut machine, Event::DesiredChanged(desired));
        }
        let sent = commands(&after(&mut machine, Event::Viewed(view(&pending(true)))));
        let [Command::Place(place)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!(place.nodes, [NodeId::new(newest).unwrap()]);
    }
}

#[test]
fn an_end_is_judged_by_the_release_that_it_belongs_to() {
    let ended = |known: Released, restarts| {
        let record = placed(JobPhase::Running, None, Some("TERM"));
        let record = JobRecord { attempt: known.attempt, ..record };
        let mut machine = released(&record, known);
        after(&mut machine, Event::DesiredChanged(order(&record, false)));
        let job = SlurmJob {
            state: SlurmState::Completed,
            exit: Some((0, 0)),
            ended_at: Some(NOW),
            on: Vec::new(),
            restarts,
            ..running(Some("TERM"))
        };
        let actions = after(&mut machine, Event::Viewed(view(&job)));
        (commands(&actions), states(&actions).pop().map(|(_, _, state)| state))
    };
    let completed = (Vec::new(), Some(LaunchState::exited(0)));
    assert_eq!(ended(run(1, 0), 0), completed);
    assert_eq!(ended(run(1, 0), 1), completed, "Slurm has started it once more");
    let again = (vec![Command::RequeueHold(1)], Some(LaunchState::Running));
    assert_eq!(ended(run(2, 1), 0), again, "slurmctld has lost a later start");
}

#[test]
fn a_run_that_the_accounting_database_never_shows_is_lost_after_a_time() {
    let record = placed(JobPhase::Running, None, Some("TERM"));
    let mut machine = released(&record, run(1, 0));
    after(&mut machine, Event::DesiredChanged(order(&record, false)));
    let job = SlurmJob { reason: "BeginTime".to_owned(), restarts: 1, ..pending(true) };
    let mut look = |seconds: u32| {
        let at = NOW + SECOND * seconds;
        let actions = after_at(&mut machine, at, Event::Viewed(view(&job)));
        after_at(&mut machine, at, Event::PastRead { ids: vec![1], runs: Ok(Vec::new()) });
        states(&actions).pop().map(|(_, _, state)| state)
    };
    assert_eq!((look(0), look(39)), (None, None));
    assert!(matches!(look(40), Some(LaunchState::Lost { .. })));
}

/// The commands for a pending job, before and after the accounting database has answered with these runs.
fn placing(
    job: &SlurmJob,
    known: Option<Released>,
    attempts: (u32, u32),
    runs: Vec<PastRun>,
) -> [Vec<Command>; 2] {
    let (recorded, ordered) = attempts;
    let with = |attempt| JobRecord { attempt, ..placed(JobPhase::Starting, None, Some("TERM")) };
    let mut machine = match known {
        Some(known) => released(&with(recorded), known),
        None => machine(Level::Exact),
    };
    after(&mut machine, Event::RecordChanged(Box::new(with(recorded))));
    after(&mut machine, Event::DesiredChanged(order(&with(ordered), false)));
    let first = commands(&after(&mut machine, Event::Viewed(view(job))));
    after(&mut machine, Event::PastRead { ids: vec![1], runs: Ok(runs) });
    [first, commands(&after(&mut machine, Event::Viewed(view(job))))]
}

#[test]
fn a_job_is_placed_when_its_earlier_runs_are_known() {
    let is_placed = |sent: &[Command]| matches!(sent, [Command::Place(_)]);
    let waits = SlurmJob { waits: true, ..pending(true) };
    let [first, then] = placing(&waits, None, (1, 1), Vec::new());
    assert_eq!((first, then), (vec![], vec![]), "its begin time or dependency");
    let [first, _] = placing(&pending(true), None, (1, 1), Vec::new());
    assert!(is_placed(&first));
    // A requeue sets a begin time.
    let requeued = SlurmJob { restarts: 1, ..waits.clone() };
    let past = PastRun {
        id: 1,
        user: running(None).user,
        state: PastState::Requeued,
        exit: (0, 15),
        submitted_at: NOW,
        started_at: Some(NOW),
        ended_at: Some(NOW + SECOND),
        admin_comment: running(None).admin_comment,
        script: None,
    };
    let [first, then] = placing(&requeued, None, (1, 1), vec![past]);
    assert!(first.is_empty() && is_placed(&then), "{first:?} {then:?}");
    // An attempt before was released and has not started.
    let [first, then] = placing(&waits, Some(run(1, 0)), (2, 2), Vec::new());
    assert!(first.is_empty() && is_placed(&then), "{first:?} {then:?}");
    // The record is behind the order, or the order behind the record.
    assert!(is_placed(&placing(&pending(true), None, (1, 2), Vec::new())[0]));
    assert!(placing(&pending(true), None, (2, 1), Vec::new())[0].is_empty());
}

#[test]
fn a_run_whose_processes_end_keeps_its_number() {
    let record = placed(JobPhase::Running, None, None);
    let number = |record: &JobRecord, known, ordered: Option<u32>| {
        let mut machine = released(record, known);
        if let Some(attempt) = ordered {
            let record = JobRecord { attempt, ..record.clone() };
            after(&mut machine, Event::DesiredChanged(order(&record, false)));
        }
        let job = SlurmJob { state: SlurmState::Completing, ..running(None) };
        let actions = after(&mut machine, Event::Viewed(view(&job)));
        states(&actions).pop().map(|(_, attempt, _)| attempt)
    };
    assert_eq!(number(&record, run(1, 0), None), Some(1));
    assert_eq!(number(&record, run(2, 0), None), Some(2), "the record is behind the release");
    assert_eq!(number(&record, run(2, 1), None), Some(1), "slurmctld has lost the release");
    let queued = JobRecord { phase: JobPhase::Queued, ..record };
    assert_eq!(number(&queued, run(1, 0), None), None, "the placer has given it up");
    assert_eq!(number(&queued, run(1, 0), Some(1)), Some(1));
    assert_eq!(number(&queued, run(1, 0), Some(2)), None);
}

#[test]
fn a_run_whose_record_is_behind_its_order_keeps_its_number() {
    let record = placed(JobPhase::Queued, None, None);
    let mut machine = released(&record, run(2, 0));
    let ordered = JobRecord { attempt: 2, ..record };
    after(&mut machine, Event::DesiredChanged(order(&ordered, false)));
    let actions = after(&mut machine, Event::Viewed(view(&running(None))));
    assert!(matches!(states(&actions)[..], [(_, 2, LaunchState::Running)]), "{actions:?}");
    assert!(!actions.iter().any(|action| matches!(action, Action::StoreReleased(..))));
}

#[test]
fn a_released_job_that_has_run_or_is_stopped_is_held_at_once() {
    let sent = |phase, next, stop| {
        let record = placed(phase, next, Some("TERM"));
        let mut machine = released(&record, run(1, 0));
        after(&mut machine, Event::DesiredChanged(order(&record, stop)));
        commands(&after(&mut machine, Event::Viewed(view(&pending(false)))))
    };
    let hold = [Command::Hold(vec![1])];
    assert_eq!(sent(JobPhase::Starting, None, false), [], "it may wait for its start");
    assert_eq!(sent(JobPhase::Running, None, false), hold, "slurmctld has lost its start");
    assert_eq!(sent(JobPhase::Stopping, Some(JobPhase::Queued), true), hold);
}

#[test]
fn an_owner_may_withdraw_the_consent_to_a_requeue() {
    let record = placed(JobPhase::Stopping, Some(JobPhase::Queued), Some("TERM"));
    let sent = |job: SlurmJob| {
        let mut machine = released(&record, run(1, 0));
        after(&mut machine, Event::DesiredChanged(order(&record, true)));
        commands(&after(&mut machine, Event::Viewed(view(&job))))
    };
    let job = running(Some("TERM"));
    assert_eq!(sent(job.clone()), [Command::RequeueHold(1)]);
    assert_eq!(sent(SlurmJob { requeue: false, ..job.clone() }), []);
    assert_eq!(sent(SlurmJob { is_batch: false, ..job }), []);
}
