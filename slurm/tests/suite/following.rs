//! Submissions, jobs that Slurm places, what a node is reported with, shared GPUs, and refused orders.

use std::collections::BTreeMap;

use wattle_common::job::{JobPhase, JobSpec, NodeShare};
use wattle_common::messages::{JobRecord, LaunchReport, LaunchState, NodeDesired, SiteNode};
use wattle_common::topology::GPUS_PER_NODE_MAX;
use wattle_slurm::{Action, Command, Event, Level, SlurmJob, SlurmMachine, SlurmState, SlurmView};

use crate::rounds::{MOMENT, RETRY, copies, pending};
use crate::rules::{
    NOW, after, after_at, alarms, commands, machine, node, order, record, running, states,
    untagged, view,
};

fn submitted(actions: &[Action]) -> Vec<JobSpec> {
    let spec = |action: &Action| match action {
        Action::Submit(spec, _) => Some((**spec).clone()),
        _ => None,
    };
    actions.iter().filter_map(spec).collect()
}

fn report(actions: &[Action]) -> LaunchReport {
    let report = actions.iter().rev().find_map(|action| match action {
        Action::Report(report) => Some(report.clone()),
        _ => None,
    });
    report.expect("a report")
}

#[test]
fn a_submission_without_an_answer_is_repeated_after_a_time() {
    let mut machine = machine(Level::Exact);
    let mut at =
        |at| submitted(&after_at(&mut machine, at, Event::Viewed(view(&running(None))))).len();
    assert_eq!(at(NOW), 1);
    assert_eq!(at(NOW + RETRY - MOMENT), 0);
    assert_eq!(at(NOW + RETRY), 1);
    assert_eq!(at(NOW + RETRY + MOMENT), 0);
}

#[test]
fn a_job_is_exclusive_unless_its_owner_consents_at_level_share() {
    let exclusive = |level, comment: &str| {
        let job = SlurmJob { comment: comment.to_owned(), ..running(None) };
        submitted(&after(&mut machine(level), Event::Viewed(view(&job)))).pop().unwrap().exclusive
    };
    for level in [Level::Caps, Level::Exact] {
        assert!(exclusive(level, "wattle: share"), "{level}");
    }
    assert!(!exclusive(Level::Share, "wattle: share"));
    assert!(exclusive(Level::Share, "wattle: exclusive"));
}

#[test]
fn only_gpu_jobs_of_the_partitions_are_followed() {
    let count = |job: SlurmJob| {
        submitted(&after(&mut machine(Level::Caps), Event::Viewed(view(&job)))).len()
    };
    assert_eq!(count(untagged(running(None))), 1);
    assert_eq!(count(SlurmJob { partition: "cpu".to_owned(), ..running(None) }), 0);
    assert_eq!(count(SlurmJob { on: Vec::new(), ..untagged(running(None)) }), 0, "no GPU");
    let no_gpus = vec![NodeShare { node: node(), gpus: Vec::new() }];
    assert_eq!(count(SlurmJob { on: no_gpus, ..untagged(running(None)) }), 0);
    // Interactive jobs and components are Slurm's, whatever their tag.
    let place = |job: SlurmJob| {
        let mut machine = machine(Level::Exact);
        let spec = submitted(&after(&mut machine, Event::Viewed(view(&job)))).pop().unwrap();
        spec.site.unwrap().placed_by_site
    };
    assert!(!place(running(None)));
    assert!(place(SlurmJob { is_batch: false, ..running(None) }));
    assert!(place(SlurmJob { is_special: true, ..running(None) }));
}

#[test]
fn arrays_are_split_while_there_is_room() {
    let split = |others: u32, tasks: u32| {
        let array = SlurmJob { unsplit_tasks: (0..tasks).collect(), ..pending(true) };
        let mut view = copies(&pending(true), others);
        view.jobs.insert(1, SlurmJob { id: 1, ..array });
        let sent = commands(&after(&mut machine(Level::Exact), Event::Viewed(view)));
        sent.into_iter().find_map(|command| match command {
            Command::SplitArray { tasks, .. } => Some(tasks.len()),
            _ => None,
        })
    };
    assert_eq!(split(0, 1), None, "the last task keeps the id of the array");
    assert_eq!(split(0, 4), Some(3));
    assert_eq!(split(0, 100), Some(20));
    assert_eq!(split(990, 100), Some(9));
    assert_eq!(split(999, 100), None);
    // All arrays of one round share the room.
    let array = |id| SlurmJob {
        id,
        admin_comment: format!("wattle: tag=b{id} nodes=1 gpus_per_node=1"),
        unsplit_tasks: (0..100).collect(),
        ..pending(true)
    };
    let mut view = copies(&pending(true), 968);
    view.jobs.extend((1..=3).map(|id| (id, array(id))));
    let sent = commands(&after(&mut machine(Level::Exact), Event::Viewed(view)));
    let all = sent.iter().map(|command| match command {
        Command::SplitArray { tasks, .. } => tasks.len(),
        _ => 0,
    });
    assert_eq!(all.sum::<usize>(), 29);
}

/// A machine at level caps with a job that Slurm places, and its record in this phase.
fn followed(phase: JobPhase, next: Option<JobPhase>) -> (SlurmMachine, JobRecord) {
    let mut machine = machine(Level::Caps);
    let actions = after(&mut machine, Event::Viewed(view(&untagged(running(None)))));
    let record = record(&actions, phase, next);
    after(&mut machine, Event::RecordChanged(Box::new(record.clone())));
    (machine, record)
}

#[test]
fn a_job_that_slurm_places_is_reported_in_each_state() {
    let state = |state, restarts, phase: JobPhase, stop: bool| {
        let next = (phase == JobPhase::Stopping).then_some(JobPhase::Cancelled);
        let (mut machine, record) = followed(phase, next);
        after(&mut machine, Event::DesiredChanged(order(&record, stop)));
        let job = SlurmJob { state, restarts, ..untagged(running(None)) };
        let job = match state {
            SlurmState::Pending => {
                SlurmJob { on: Vec::new(), reason: "BeginTime".to_owned(), ..job }
            }
            _ => job,
        };
        let actions = after(&mut machine, Event::Viewed(view(&job)));
        assert_eq!(commands(&actions), []);
        states(&actions).pop().map(|(_, attempt, state)| (attempt, state))
    };
    let runs = |attempt| Some((attempt, LaunchState::Running));
    assert_eq!(state(SlurmState::Running, 0, JobPhase::Running, false), runs(1));
    assert_eq!(state(SlurmState::Running, 1, JobPhase::Running, false), runs(2));
    assert_eq!(state(SlurmState::Configuring, 0, JobPhase::Running, false), None);
    assert_eq!(state(SlurmState::Completing, 0, JobPhase::Running, false), runs(1));
    // Slurm counts a restart before the processes have ended.
    assert_eq!(state(SlurmState::Completing, 1, JobPhase::Running, false), runs(1));
    assert_eq!(state(SlurmState::Completing, 1, JobPhase::Queued, false), runs(2));
    let stopping = Some((1, LaunchState::Stopping));
    assert_eq!(state(SlurmState::Completing, 0, JobPhase::Stopping, true), stopping);
    let error = "Slurm put it back into the queue: BeginTime".to_owned();
    let lost = Some((1, LaunchState::Lost { error }));
    assert_eq!(state(SlurmState::Pending, 1, JobPhase::Running, false), lost);
    assert_eq!(state(SlurmState::Pending, 1, JobPhase::Queued, false), None);
    let finished = Some((1, LaunchState::exited(0)));
    assert_eq!(state(SlurmState::Completed, 0, JobPhase::Running, false), finished);
}

#[test]
fn a_cancelled_job_that_slurm_places_is_cancelled_there_from_level_start_on() {
    let sent = |level, state, phase: JobPhase| {
        let mut machine = machine(level);
        let job = untagged(running(None));
        let actions = after(&mut machine, Event::Viewed(view(&job)));
        let record = record(&actions, phase, None);
        after(&mut machine, Event::RecordChanged(Box::new(record)));
        commands(&after(&mut machine, Event::Viewed(view(&SlurmJob { state, ..job }))))
    };
    let cancel = [Command::Cancel(1)];
    assert_eq!(sent(Level::Exact, SlurmState::Running, JobPhase::Cancelled), cancel);
    assert_eq!(sent(Level::Exact, SlurmState::Configuring, JobPhase::Cancelled), cancel);
    assert_eq!(sent(Level::Exact, SlurmState::Completing, JobPhase::Cancelled), []);
    assert_eq!(sent(Level::Exact, SlurmState::Running, JobPhase::Finished), []);
    assert_eq!(sent(Level::Caps, SlurmState::Running, JobPhase::Cancelled), []);
}

#[test]
fn a_node_is_reported_with_what_others_leave() {
    let site = |own: Option<SlurmState>, foreign: Option<SlurmState>| -> SiteNode {
        let mut machine = machine(Level::Exact);
        let mut view = view(&running(None));
        view.nodes.values_mut().for_each(|node| {
            (node.cpus_allocated, node.memory_mib_allocated) = (6, 6_000);
        });
        let needs = |cpus, memory_mib| wattle_common::job::NodeNeeds {
            cpus,
            memory_mib,
            ..wattle_common::job::NodeNeeds::default()
        };
        let ours = own.map(|state| SlurmJob { needs: needs(2, 2_000), state, ..running(None) });
        let theirs = foreign.map(|state| SlurmJob {
            id: 2,
            state,
            partition: "other".to_owned(),
            needs: needs(4, 4_000),
            on: vec![NodeShare { node: node(), gpus: vec![0] }],
            ..untagged(running(None))
        });
        view.jobs = ours.into_iter().chain(theirs).map(|job| (job.id, job)).collect();
        let actions = after(&mut machine, Event::Viewed(view.clone()));
        if own.is_some() {
            let record = record(&actions, JobPhase::Running, None);
            let ordered = order(&record, false);
            after(&mut machine, Event::RecordChanged(Box::new(record)));
            after(&mut machine, Event::DesiredChanged(ordered));
        }
        report(&after_at(&mut machine, NOW + RETRY, Event::Viewed(view))).site.unwrap()
    };
    let free = |site: SiteNode| (site.cpus, site.memory_mib, site.gpus_taken);
    // 16 CPUs and 64,000 MiB, of which 6 and 6,000 are allocated.
    let runs = Some(SlurmState::Running);
    assert_eq!(free(site(None, None)), (10, 58_000, vec![]));
    assert_eq!(free(site(runs, None)), (12, 60_000, vec![]));
    assert_eq!(free(site(runs, runs)), (12, 60_000, vec![0]));
    assert_eq!(free(site(runs, Some(SlurmState::Configuring))), (12, 60_000, vec![0]));
    assert_eq!(free(site(runs, Some(SlurmState::Completed))), (12, 60_000, vec![]));
    // One whose nodes boot.
    assert_eq!(free(site(Some(SlurmState::Configuring), runs)), (12, 60_000, vec![0]));
}

#[test]
fn a_second_job_on_a_gpu_is_its_guest() {
    let place = |first: Option<SlurmJob>, level, shared: bool| {
        let mut machine = machine(level);
        let job = pending(true);
        let mut both = view(&job);
        both.jobs.extend(first.map(|job| (2, job)));
        let actions = after(&mut machine, Event::Viewed(both.clone()));
        let specs = submitted(&actions);
        let spec = specs.iter().find(|spec| spec.job.as_str().starts_with("slurm-1-")).unwrap();
        let base = record(&actions, JobPhase::Starting, None);
        let record = JobRecord { spec: spec.clone(), ..base };
        let mut ordered = order(&record, false);
        if shared {
            let mut other = ordered.jobs[0].clone();
            other.job = "slurm-2-c1".parse().unwrap();
            ordered.jobs.push(other);
        }
        after(&mut machine, Event::RecordChanged(Box::new(record)));
        after(&mut machine, Event::DesiredChanged(ordered));
        let sent = commands(&after_at(&mut machine, NOW + RETRY, Event::Viewed(both)));
        sent.into_iter().find_map(|command| match command {
            Command::Place(place) => Some(place.gres),
            _ => None,
        })
    };
    let gres = |text: &str| Some(text.to_owned());
    let admin_comment = "wattle: tag=c1 nodes=1 gpus_per_node=1".to_owned();
    let runs = || SlurmJob { id: 2, admin_comment: admin_comment.clone(), ..running(None) };
    assert_eq!(place(None, Level::Share, false), gres("gpu:g1:1"));
    assert_eq!(place(Some(runs()), Level::Share, true), gres("guest:g1:1"));
    // It must leave before.
    assert_eq!(place(Some(runs()), Level::Share, false), gres("gpu:g1:1"));
    assert_eq!(place(Some(runs()), Level::Exact, true), gres("gpu:g1:1"));
    let ended = SlurmJob { state: SlurmState::Completed, ..runs() };
    assert_eq!(place(Some(ended), Level::Share, true), gres("gpu:g1:1"));
    // The other one is the guest.
    let guest = SlurmJob { gres: "guest:g1:1".to_owned(), ..runs() };
    assert_eq!(place(Some(guest), Level::Share, true), gres("gpu:g1:1"));
    // One that was released and has not started holds what it requests.
    let released = SlurmJob {
        state: SlurmState::Pending,
        held: false,
        on: Vec::new(),
        gres: "gpu:g1:1".to_owned(),
        required_nodes: vec![node()],
        ..runs()
    };
    assert_eq!(place(Some(released.clone()), Level::Share, true), gres("guest:g1:1"));
    let held = SlurmJob { held: true, ..released };
    assert_eq!(place(Some(held), Level::Share, true), gres("gpu:g1:1"));
}

#[test]
fn an_order_beyond_the_bounds_is_refused_with_one_alarm_and_an_old_one_silently() {
    let job = running(None);
    let mut machine = machine(Level::Exact);
    let actions = after(&mut machine, Event::Viewed(view(&job)));
    let record = record(&actions, JobPhase::Running, None);
    let fine = order(&record, false);
    let mut absurd = fine.clone();
    absurd.jobs[0].gpus = vec![GPUS_PER_NODE_MAX];
    let refused =
        |machine: &mut SlurmMachine, order| alarms(&after(machine, Event::DesiredChanged(order)));
    assert!(refused(&mut machine, absurd.clone()).contains("n0"));
    assert_eq!(refused(&mut machine, absurd.clone()), "", "the same again");
    absurd.generation = 3;
    assert_eq!(refused(&mut machine, absurd), "", "raised once for each node and error");
    let mut newer = fine.clone();
    newer.generation = 5;
    assert_eq!(refused(&mut machine, newer), "");
    assert_eq!(refused(&mut machine, fine), "", "it is older");
    let stored = |actions: &[Action]| {
        actions.iter().any(|action| matches!(action, Action::StoreObeyed(versions) if *versions != BTreeMap::new()))
    };
    let next = after(&mut machine, Event::Viewed(view(&job)));
    assert!(stored(&next), "{next:?}");
    assert_eq!(report(&next).observed_generation, 5);
    let again = after(&mut machine, Event::Viewed(view(&job)));
    assert!(!stored(&again), "{again:?}");
    // A renewed order is that of its generation.
    for (generation, is_new) in [(6, true), (6, false), (7, true)] {
        let issued_at_us = NOW + MOMENT * generation as u32;
        let renewed = NodeDesired { generation, issued_at_us, ..order(&record, false) };
        assert_eq!(refused(&mut machine, renewed), "");
        assert_eq!(stored(&after(&mut machine, Event::Viewed(view(&job)))), is_new, "{generation}");
    }
}

#[test]
fn many_jobs_are_looked_up_in_parts() {
    let mut machine = machine(Level::Exact);
    let view = copies(&running(None), 250);
    let actions = after(&mut machine, Event::Viewed(view.clone()));
    for spec in submitted(&actions) {
        let record = JobRecord { phase: JobPhase::Queued, ..JobRecord::queued(spec, NOW) };
        after(&mut machine, Event::RecordChanged(Box::new(record)));
    }
    let absent = SlurmView { jobs: BTreeMap::new(), ..view };
    let looked_up = |machine: &mut SlurmMachine| {
        let actions = after(machine, Event::Viewed(absent.clone()));
        actions.into_iter().find_map(|action| match action {
            Action::Lookup { ids, .. } => Some(ids.len()),
            _ => None,
        })
    };
    assert_eq!(looked_up(&mut machine), Some(200));
    assert_eq!(looked_up(&mut machine), Some(50));
    assert_eq!(looked_up(&mut machine), None);
}

#[test]
fn a_run_is_reported_with_its_gpus_and_times() {
    let (mut machine, _) = followed(JobPhase::Running, None);
    let begins = NOW - RETRY;
    let job = SlurmJob { started_at: Some(begins), ..untagged(running(None)) };
    let mut launched = |at, job: &SlurmJob| {
        report(&after_at(&mut machine, at, Event::Viewed(view(job)))).jobs.pop().unwrap()
    };
    let runs = launched(NOW + RETRY, &job);
    assert_eq!((runs.gpus, runs.since_us), (vec![1], begins));
    let (state, ended_at) = (SlurmState::Completing, Some(NOW));
    let ends = launched(NOW + RETRY * 2, &SlurmJob { state, ended_at, ..job });
    assert_eq!((ends.state, ends.since_us), (LaunchState::Running, begins));
}

#[test]
fn a_requeued_job_of_slurm_keeps_its_record_and_a_later_one_with_its_id_gets_its_own() {
    let submits = |phase, change: fn(&mut SlurmJob)| {
        let (mut machine, record) = followed(phase, None);
        let mut job = untagged(running(None));
        job.submitted_at = NOW + RETRY;
        change(&mut job);
        let actions = after_at(&mut machine, NOW + RETRY, Event::Viewed(view(&job)));
        submitted(&actions).pop().map(|spec| spec.job != record.spec.job)
    };
    // A requeue changes the time of submission.
    assert_eq!(submits(JobPhase::Running, |_| {}), None);
    let new = Some(true);
    assert_eq!(submits(JobPhase::Finished, |_| {}), new, "slurmctld has lost its last job ids");
    assert_eq!(submits(JobPhase::Running, |job| job.user = "mallory".to_owned()), new);
    let tag = |job: &mut SlurmJob| {
        job.admin_comment = "wattle: tag=c1 nodes=1 gpus_per_node=1".to_owned();
    };
    assert_eq!(submits(JobPhase::Running, tag), new, "the tag has the id");
}

#[test]
fn an_end_before_the_recorded_start_is_reported_where_the_job_ran() {
    let mut machine = machine(Level::Caps);
    let job = untagged(running(None));
    let actions = after(&mut machine, Event::Viewed(view(&job)));
    let queued = record(&actions, JobPhase::Queued, None);
    let queued = JobRecord { attempt: 0, placement: None, ..queued };
    after(&mut machine, Event::RecordChanged(Box::new(queued.clone())));
    let on = job.on.clone();
    let (state, exit, ended_at) = (SlurmState::Failed, Some((7, 0)), Some(NOW));
    let ended = SlurmJob { state, exit, ended_at, on: Vec::new(), ..job };
    let actions = after_at(&mut machine, NOW + MOMENT, Event::Viewed(view(&ended)));
    assert_eq!(states(&actions), [(queued.spec.job.clone(), 1, LaunchState::exited(7))]);
    assert_eq!(report(&actions).jobs[0].gpus, on[0].gpus);
    // The report lasts until the record has the end.
    let failed = JobRecord { attempt: 1, phase: JobPhase::Failed, ..queued };
    after(&mut machine, Event::RecordChanged(Box::new(failed)));
    let actions = after_at(&mut machine, NOW + RETRY, Event::Viewed(view(&ended)));
    assert_eq!(states(&actions), []);
}

#[test]
fn a_job_that_wattle_places_is_not_found_by_its_slurm_id_alone() {
    let mut machine = machine(Level::Caps);
    let actions = after(&mut machine, Event::Viewed(view(&untagged(running(None)))));
    let mut record = record(&actions, JobPhase::Running, None);
    record.spec.site.as_mut().unwrap().placed_by_site = false;
    after(&mut machine, Event::RecordChanged(Box::new(record.clone())));
    let job = SlurmJob { submitted_at: NOW + RETRY, ..untagged(running(None)) };
    let actions = after_at(&mut machine, NOW + RETRY, Event::Viewed(view(&job)));
    let specs = submitted(&actions);
    assert!(specs.len() == 1 && specs[0].job != record.spec.job, "{specs:?}");
}

#[test]
fn a_pending_job_is_submitted_when_it_is_held_and_waits_for_nothing_else() {
    let seen = |job: SlurmJob| {
        let actions = after(&mut machine(Level::Exact), Event::Viewed(view(&job)));
        (commands(&actions), !submitted(&actions).is_empty())
    };
    let administrators = SlurmJob { reason: "JobHeldAdmin".to_owned(), ..pending(true) };
    assert_eq!(seen(administrators.clone()), (vec![], true));
    assert_eq!(seen(SlurmJob { waits: true, ..administrators.clone() }), (vec![], false));
    let (hold, is_submitted) = seen(SlurmJob { held: false, ..administrators.clone() });
    assert_eq!((hold, is_submitted), (vec![Command::Hold(vec![1])], false));
    let array = SlurmJob { unsplit_tasks: vec![0, 1], ..administrators };
    assert!(!seen(array).1, "its tasks are jobs of their own");
}

#[test]
fn each_job_of_a_node_has_its_order_and_of_two_for_one_job_the_first_counts() {
    let mut machine = machine(Level::Exact);
    let view = copies(&pending(true), 2);
    let actions = after(&mut machine, Event::Viewed(view.clone()));
    let mut desired: Option<NodeDesired> = None;
    for (spec, gpu) in submitted(&actions).into_iter().zip([0, 1]) {
        let base = record(&actions, JobPhase::Starting, None);
        let record = JobRecord { spec, ..base };
        let mut ordered = order(&record, false);
        ordered.jobs[0].gpus = vec![gpu];
        ordered.jobs[0].shares[0].gpus = vec![gpu];
        after(&mut machine, Event::RecordChanged(Box::new(record)));
        match &mut desired {
            Some(desired) => desired.jobs.append(&mut ordered.jobs),
            None => desired = Some(ordered),
        }
    }
    let mut desired = desired.unwrap();
    let mut twice = desired.jobs[0].clone();
    (twice.attempt, twice.gpus) = (2, vec![1]);
    desired.jobs.push(twice);
    after(&mut machine, Event::DesiredChanged(desired));
    let sent = commands(&after_at(&mut machine, NOW + RETRY, Event::Viewed(view)));
    let placed = sent.iter().map(|command| match command {
        Command::Place(place) => (place.id, place.gres.as_str()),
        other => panic!("{other:?}"),
    });
    assert_eq!(placed.collect::<Vec<_>>(), [(101, "gpu:g0:1"), (102, "gpu:g1:1")]);
}
