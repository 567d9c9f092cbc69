//! Unit tests of the live placer, and a scenario on a small cluster with a kill before every write.

mod adoption;
mod advised;
mod bounds;
mod budget;
mod clock;
mod conditions;
mod extremes;
mod fault_injection;
mod forced_colocation;
mod grid;
mod identity;
mod job_energy;
mod kinds;
mod limits_under_faults;
mod listing;
mod measured_power;
mod measures;
mod node;
mod node_faults;
mod node_sleep;
mod power_over_time;
mod power_shares;
mod settling;
mod site_jobs;
mod stages;
mod times;
mod verdict;
mod world;

use std::time::Duration;

use wattle_common::id::SubmissionId;
use wattle_common::job::{GpuRequest, JobPhase, JobSpec};
use wattle_common::messages::{LaunchState, ReachedLimit};
use wattle_common::{GpuIndex, Power};

use super::*;
use crate::state::job::{Job, State};
use crate::{Plan, PlanningInput, Reason, Target, plan_transition};
use world::World;

fn job_id(job: &str) -> JobId {
    JobId::new(job).unwrap()
}

fn spec(job: &str, gpus: u32) -> JobSpec {
    JobSpec {
        memory_mib_max: Some(1_000),
        consents_to_sharing: true,
        checkpoint_signal: Some("SIGUSR1".to_owned()),
        ..wattle_testkit::job_spec(job, gpus)
    }
}

/// The reply to a request which the record of this generation reflects.
fn accepted(job: &str, generation: u64) -> Reply {
    Reply::Accepted { job: job_id(job), generation }
}

fn refused(reply: &Reply) -> &str {
    match reply {
        Reply::Refused { error } => error,
        Reply::Accepted { job, .. } => panic!("{job} was accepted"),
    }
}

#[test]
fn job_is_stored_then_acknowledged_then_ordered() {
    let mut world = World::new(1, 2);
    world.pass(1);
    let before = world.log.len();
    world.submit(spec("a", 1));
    world.pass(2);
    let writes: Vec<&str> = world.log[before..]
        .iter()
        .map(String::as_str)
        .filter(|line| !line.starts_with("renew"))
        .collect();
    assert_eq!(
        writes,
        ["a queued", "answer a accepted", "a starting", "order n0 2: a.1", "a running"]
    );
    let reasons = &world.record("a").reasons;
    assert_eq!(reasons[0].decision, "placed on n0:0");
    world.pass(10);
    assert_eq!(world.record("a").phase, JobPhase::Finished);
    assert_eq!(world.record("a").exit_code, Some(0));
    assert!(world.desired("n0").jobs.is_empty());
}

#[test]
fn invalid_submissions_are_refused_with_a_reason() {
    let mut world = World::new(2, 2);
    world.set_gpu_type("n1", "p100");
    world.pass(20);
    let mut no_command = spec("a", 1);
    no_command.command.clear();
    let mut late = spec("a", 1);
    late.deadline_at_us = Some(Timestamp::from_s(5));
    let mut signal = spec("a", 1);
    signal.checkpoint_signal = Some("SIGKILL".to_owned());
    let mut long = spec("a", 1);
    long.command = vec!["x".repeat(40_000)];
    let mut none = spec("a", 1);
    none.gpus = GpuRequest { min: 0, max: 0 };
    let mut memory = spec("a", 1);
    memory.memory_mib_max = Some(1 << 40);
    let of_gpu_type =
        |kind: &str, gpus| JobSpec { gpu_type: Some(kind.to_owned()), ..spec("a", gpus) };
    let mut project = spec("a", 1);
    project.project = Some("-p".parse().unwrap());
    for (spec, why) in [
        (spec("-rf", 1), "invalid id `-rf`: it begins with a dash"),
        (project, "invalid id `-p`"),
        (no_command, "the command is empty"),
        (late, "has passed"),
        (signal, "invalid checkpoint signal `SIGKILL`"),
        (long, "put the command into a script"),
        (none, "invalid number of GPUs"),
        (memory, "no GPU of the cluster has that much"),
        (of_gpu_type("k80", 1), "requests GPUs of type k80; the cluster has: p100, v100"),
        (of_gpu_type("../k80", 1), "invalid GPU type `../k80`: `wattle nodes` lists the GPU types"),
        (of_gpu_type("p100", 3), "3 GPUs of type p100; the cluster's 2 cannot provide them"),
        (spec("a", 5), "requests 5 GPUs; the cluster of 4 cannot provide them"),
    ] {
        let reply = world.request_submit(spec);
        assert!(refused(&reply).contains(why), "{reply:?}");
    }
    assert!(world.jobs.is_empty(), "refused jobs are not stored");
    // Without a submission id, an equal specification is accepted again; another one is refused.
    assert_eq!(world.request_submit(spec("a", 1)), accepted("a", 1));
    let mut short = spec("a", 1);
    short.checkpoint_signal = Some("USR1".to_owned());
    assert_eq!(world.request_submit(short), accepted("a", 1));
    let reply = world.request_submit(spec("a", 2));
    assert!(refused(&reply).contains("job `a` exists already ("), "{reply:?}");
    assert_eq!(world.jobs.len(), 1);
    let reply = world.request_cancel("unknown");
    assert!(refused(&reply).contains("unknown job `unknown`"), "{reply:?}");
}

/// A repeated request is acknowledged, also after a restart; a second submission is refused, even with
/// an equal specification.
#[test]
fn a_known_job_id_is_refused_to_another_submission() {
    let submit = |world: &mut World, id: &str| {
        let submission = Some(SubmissionId::new(id).unwrap());
        world.request_submission(SubmitJob { spec: spec("a", 1), submission, user_proven: false })
    };
    let mut world = World::new(1, 2);
    world.long = true;
    world.pass(20);
    let accepted = accepted("a", 1);
    assert_eq!(submit(&mut world, "first"), accepted);
    world.pass(60);
    assert_eq!(submit(&mut world, "first"), accepted);
    let reply = submit(&mut world, "second");
    assert!(refused(&reply).contains("exists already (running); choose another id"), "{reply:?}");
    world.restart();
    world.pass(20);
    assert_eq!(submit(&mut world, "first"), accepted);
    world.request_cancel("a");
    world.pass(60);
    let reply = submit(&mut world, "second");
    assert!(refused(&reply).contains("(cancelled)"), "{reply:?}");
}

#[test]
fn placement_follows_reported_switches_and_boards() {
    let mut world = World::new(4, 8);
    world.policy = || crate::policy("powerflow").unwrap();
    world.config.nodes_expected = Some(4);
    for (node, switch) in [("n0", "a"), ("n1", "b"), ("n2", "a"), ("n3", "b")] {
        world.set_location(node, switch, Some(4));
    }
    world.restart();
    world.pass(2);
    let placed = |world: &World, job: &str| world.record(job).reasons[0].decision.clone();
    world.long = true;
    // Two nodes below one switch, not adjacent in node order.
    world.submit(spec("wide", 16));
    world.pass(2);
    let all = "0,1,2,3,4,5,6,7";
    assert_eq!(placed(&world, "wide"), format!("placed on n0:{all} n2:{all}"));
    // Two jobs of three GPUs on one node, each on one board.
    world.submit(spec("three", 3));
    world.submit(spec("more", 3));
    world.pass(2);
    assert_eq!(placed(&world, "three"), "placed on n1:0,1,2");
    assert_eq!(placed(&world, "more"), "placed on n1:4,5,6");
    // Changed switches are used from the next report.
    for job in ["wide", "three", "more"] {
        world.cancel(job);
    }
    for (node, switch) in [("n1", "c"), ("n2", "c"), ("n0", "b")] {
        world.set_location(node, switch, Some(4));
    }
    world.pass(4);
    world.submit(spec("again", 16));
    world.pass(2);
    assert_eq!(placed(&world, "again"), format!("placed on n1:{all} n2:{all}"));
    // An invalid board size is ignored.
    for node in ["n0", "n3"] {
        world.set_location(node, "b", Some(3));
    }
    world.submit(spec("odd", 3));
    world.submit(spec("odder", 3));
    world.pass(2);
    assert_eq!(placed(&world, "odder"), "placed on n0:3,4,5");
}

#[test]
fn no_job_is_too_large_before_the_inventory_is_complete() {
    let mut world = World::new(2, 2);
    assert_eq!(world.request_submit(spec("big", 64)), accepted("big", 1));
    world.pass(30);
    let record = world.record("big");
    assert_eq!(record.phase, JobPhase::Failed);
    assert!(record.error.as_ref().unwrap().contains("cannot provide them"), "{record:?}");
}

#[test]
fn cancelled_job_stops_and_stays_cancelled() {
    let mut world = World::new(1, 2);
    world.submit(spec("a", 2));
    world.submit(spec("b", 2));
    world.pass(3);
    assert_eq!(world.record("b").reasons[0].decision, "waits");
    assert_eq!(world.request_cancel("b"), accepted("b", 2));
    assert_eq!(world.record("b").phase, JobPhase::Cancelled, "it held no GPUs");
    assert_eq!(world.request_cancel("a"), accepted("a", 2));
    assert_eq!(world.request_cancel("a"), accepted("a", 2), "repeated request");
    assert_eq!((world.record("a").phase, world.record("a").generation), (JobPhase::Stopping, 2));
    assert!(world.desired("n0").jobs[0].stop);
    world.pass(3);
    assert_eq!(world.record("a").phase, JobPhase::Cancelled);
    world.restart();
    assert_eq!(world.request_cancel("a"), accepted("a", 2), "repeated request");
    assert_eq!(world.record("a").generation, 2);
    world.submit(spec("c", 1));
    world.pass(12);
    assert!(refused(&world.request_cancel("c")).contains("has finished already"));
}

#[test]
fn failing_rank_stops_the_others() {
    let mut world = World::new(2, 2);
    world.submit(spec("wide", 4));
    world.pass(3);
    assert_eq!(world.record("wide").phase, JobPhase::Running);
    assert_eq!(world.desired("n1").jobs[0].rank, 1);
    world.set_state("n1", "wide", LaunchState::exited(3));
    world.pass(3);
    let record = world.record("wide");
    assert_eq!((record.phase, record.exit_code), (JobPhase::Failed, Some(3)));
    assert_eq!(
        record.error.as_deref(),
        Some("its program ended with exit code 3 on n1; its output is in /log/wide")
    );
    assert_eq!(record.log_paths, ["/log/wide", "/log/wide"]);
    assert!(world.idle(), "the other rank was stopped");
}

/// A host goes down; the rank on the other one ends with an error before the first can report its loss.
#[test]
fn job_with_a_lost_rank_is_placed_again_although_another_rank_failed() {
    let mut world = World::new(2, 2);
    world.submit(spec("wide", 4));
    world.pass(3);
    world.cut_off("n1", true);
    world.set_state("n0", "wide", LaunchState::exited(1));
    world.pass(3);
    assert_eq!(world.record("wide").phase, JobPhase::Stopping);
    world.reboot("n1");
    world.cut_off("n1", false);
    world.pass(5);
    let record = world.record("wide");
    assert_eq!(record.error, None);
    world.pass(10);
    let record = world.record("wide");
    assert_eq!((record.phase, record.attempt), (JobPhase::Finished, 2), "{:?}", record.reasons);
}

#[test]
fn reached_limit_is_the_reason_of_the_failure() {
    let mut world = World::new(2, 2);
    world.submit(spec("wide", 4));
    world.pass(3);
    // The other rank ends because it waits in vain.
    world.set_state("n0", "wide", LaunchState::exited(1));
    let limit = Some(ReachedLimit::MemoryMib(65_536));
    world.set_state("n1", "wide", LaunchState::Exited { code: 137, limit });
    world.pass(3);
    let record = world.record("wide");
    assert_eq!((record.phase, record.exit_code), (JobPhase::Failed, Some(137)));
    assert_eq!(record.limit, limit);
    let reason = "it exceeded its memory limit of 64 GiB on n1 (exit code 137); its output is in \
                  /log/wide";
    assert_eq!(record.error.as_deref(), Some(reason));
    assert_eq!(record.reasons.last().unwrap().reason, reason);
}

#[test]
fn missing_program_fails_the_job_with_the_launchers_error() {
    let mut world = World::new(1, 2);
    world.refuse.insert(job_id("a"));
    world.submit(spec("a", 1));
    world.pass(3);
    let record = world.record("a");
    assert_eq!(record.phase, JobPhase::Failed);
    assert_eq!(record.error.as_deref(), Some("it cannot be started on n0: no such program"));
}

#[test]
fn lost_supervisor_or_gpu_restarts_the_job_up_to_attempts_max() {
    let mut world = World::new(1, 2);
    world.config.attempts_max = 3;
    world.restart();
    world.submit(spec("a", 1));
    world.pass(3);
    let lost = || LaunchState::Lost { error: "its supervisor was killed".to_owned() };
    world.set_state("n0", "a", lost());
    world.pass(3);
    assert_eq!((world.record("a").phase, world.record("a").attempt), (JobPhase::Running, 2));
    // A program that ends because its GPU failed is restarted.
    world.set_unhealthy("n0", 0, true);
    world.set_state("n0", "a", LaunchState::exited(1));
    world.pass(3);
    let record = world.record("a");
    assert_eq!((record.phase, record.attempt), (JobPhase::Running, 3));
    assert_eq!(record.placement.as_ref().unwrap().to_string(), "n0:1");
    world.set_state("n0", "a", lost());
    world.pass(3);
    let record = world.record("a");
    assert_eq!(record.phase, JobPhase::Failed);
    assert!(record.error.as_ref().unwrap().contains("attempts_max"), "{record:?}");
}

#[test]
fn silent_node_gets_no_jobs_and_then_loses_its_jobs() {
    let mut world = World::new(2, 2);
    world.long = true;
    world.submit(spec("a", 2));
    world.pass(3);
    assert_eq!(world.record("a").placement.as_ref().unwrap().to_string(), "n0:0,1");
    world.cut_off("n0", true);
    world.pass(40);
    assert_eq!(world.record("a").attempt, 1, "stale, not lost");
    world.pass(90);
    let record = world.record("a");
    assert_eq!((record.phase, record.attempt), (JobPhase::Running, 2));
    assert_eq!(record.placement.as_ref().unwrap().to_string(), "n1:0,1");
    let why = &record.reasons[1];
    assert_eq!(why.reason, "n0 has not reported for 120 s");
    // The node returns while the old attempt still runs: its GPUs are not used until it ends.
    world.submit(spec("b", 1));
    world.slow_stop = true;
    world.cut_off("n0", false);
    world.pass(4);
    assert!(world.is_live("n0", "a", 1), "it is still stopping");
    assert_eq!(world.record("b").phase, JobPhase::Queued);
    world.slow_stop = false;
    world.pass(4);
    assert!(!world.is_live("n0", "a", 1));
    assert_eq!(world.record("b").placement.as_ref().unwrap().to_string(), "n0:0");
}

#[test]
fn no_node_is_lost_while_the_bus_is_away() {
    let mut world = World::new(1, 2);
    world.long = true;
    world.submit(spec("a", 1));
    world.pass(3);
    world.bus_outage(1_000);
    world.pass(60);
    assert_eq!((world.record("a").attempt, world.record("a").phase), (1, JobPhase::Running));
}

#[test]
fn lease_is_renewed_after_a_third_with_the_same_generation() {
    let mut world = World::new(1, 1);
    world.pass(3);
    let first = world.desired("n0").clone();
    world.pass(15);
    assert!(world.desired("n0").issued_at_us == first.issued_at_us);
    world.pass(5);
    let renewed = world.desired("n0");
    assert_eq!(renewed.generation, first.generation);
    assert!(renewed.issued_at_us > first.issued_at_us);
    assert_eq!(renewed.expires_at_us.since(renewed.issued_at_us).as_secs(), 60);
}

#[test]
fn generation_exceeds_observed_generation_after_orders_are_lost() {
    let mut world = World::new(1, 2);
    world.long = true;
    world.submit(spec("a", 1));
    world.pass(3);
    let generation = world.desired("n0").generation;
    world.orders.clear();
    world.restart();
    world.pass(3);
    assert!(world.desired("n0").generation > generation);
    assert_eq!(world.desired("n0").jobs.len(), 1);
}

#[test]
fn site_cap_is_ordered_for_every_gpu() {
    let mut world = World::new(1, 2);
    world.config.gpu_cap_w = Some(150);
    world.config.gpu_clock_mhz_max = Some(1_200);
    world.restart();
    world.pass(3);
    let caps: Vec<(GpuIndex, Option<Power>)> =
        world.desired("n0").gpus.iter().map(|gpu| (gpu.gpu, gpu.cap_mw)).collect();
    assert_eq!(caps, [(0, Some(Power::from_w(150))), (1, Some(Power::from_w(150)))]);
}

#[test]
fn progress_of_other_attempts_is_ignored() {
    let mut world = World::new(1, 2);
    world.long = true;
    world.submit(spec("a", 1));
    world.pass(3);
    let mut report = JobProgressed {
        job: job_id("a"),
        admission: None,
        node: NodeId::new("n0").unwrap(),
        attempt: 1,
        at_us: world.now,
        step: 400,
        steps_total: Some(4_000),
        epoch: Some(1),
        steps_per_epoch: Some(400),
        steps_per_s: Some(10.0),
    };
    world.deliver(Event::Progressed(report.clone()));
    assert_eq!((world.record("a").step, world.record("a").epoch), (Some(400), Some(1)));
    report.attempt = 7;
    report.step = 9;
    report.epoch = Some(2);
    world.deliver(Event::Progressed(report));
    assert_eq!(world.record("a").step, Some(400));
}

#[test]
fn old_records_are_deleted() {
    let mut world = World::new(1, 2);
    world.config.ended_kept = 2;
    world.restart();
    for job in ["a", "b", "c"] {
        world.submit(spec(job, 2));
        world.pass(15);
    }
    assert_eq!(world.jobs.keys().map(JobId::as_str).collect::<Vec<_>>(), ["b", "c"]);
}

#[test]
fn invalid_plan_is_discarded() {
    struct Wrong;
    impl Policy for Wrong {
        fn name(&self) -> &'static str {
            "wrong"
        }
        fn solve(&self, input: crate::PlanningInput<'_>) -> crate::Plan {
            let mut plan = crate::Plan::default();
            for (job, _) in input.state.queue() {
                plan.decisions.push(crate::Decision::Start {
                    job,
                    on: crate::GpuSet::default(),
                    setting: wattle_common::job::GpuSetting::DEFAULT,
                    observe: true,
                    reason: crate::Reason::FirstFit,
                });
            }
            plan
        }
    }
    let mut world = World::new(1, 2);
    world.policy = || Box::new(Wrong);
    world.restart();
    world.submit(spec("a", 1));
    world.pass(10);
    assert_eq!(world.record("a").phase, JobPhase::Queued);
    let alarms: Vec<_> = world.log.iter().filter(|line| line.starts_with("alarm")).collect();
    assert_eq!(alarms.len(), 1, "one alarm: {alarms:?}");
    assert!(alarms[0].contains("job a is placed on no GPU"), "{alarms:?}");
}

/// A scenario with every kind of job event. The placer is killed before write `kill_at`.
fn scenario(kill_at: Option<usize>) -> World {
    let mut world = World::new(2, 2);
    world.policy = || Box::new(forced_colocation::ForcedColocation);
    world.restart();
    world.kill_at = kill_at.map(|write| write + world.writes);
    world.submit(spec("a", 1));
    world.pass(2);
    world.submit(spec("undo-me", 1));
    world.pass(1);
    world.submit(spec("wide", 4));
    world.submit(spec("cancelled", 2));
    world.pass(4);
    world.cancel("cancelled");
    world.submit(spec("short", 1));
    world.pass(30);
    world.submit(spec("late", 2));
    world.submit(spec("late-cancelled", 2));
    world.pass(3);
    world.cancel("late-cancelled");
    world.pass(60);
    world
}

#[test]
fn kill_before_any_write_loses_and_duplicates_no_job() {
    let undisturbed = scenario(None);
    let undone = undisturbed.record("undo-me");
    assert!(undone.reasons.iter().any(|reason| reason.decision.starts_with("taken off")));
    assert!(undisturbed.writes > 40, "the scenario has only {} writes", undisturbed.writes);
    for kill_at in 0..undisturbed.writes {
        let world = scenario(Some(kill_at));
        let history = || format!("killed before write {kill_at}:\n{}", world.log.join("\n"));
        for job in ["a", "undo-me", "wide", "late", "short"] {
            assert_eq!(world.record(job).phase, JobPhase::Finished, "{job}, {}", history());
        }
        for job in ["cancelled", "late-cancelled"] {
            assert_eq!(world.record(job).phase, JobPhase::Cancelled, "{job}, {}", history());
        }
        assert_eq!(world.unanswered(), 0, "{}", history());
        assert!(world.idle(), "{}", history());
        for node in ["n0", "n1"] {
            assert!(world.desired(node).jobs.is_empty(), "{}", history());
        }
    }
}

/// The one GPU goes to a job with less than a minute of GPU time, then to the one that has it.
struct LeastAttained;

impl Policy for LeastAttained {
    fn name(&self) -> &'static str {
        "least-attained"
    }

    fn solve(&self, input: PlanningInput<'_>) -> Plan {
        let jobs = input.state.running().chain(input.state.queue());
        let jobs = jobs.filter(|(_, job)| !matches!(job.state, State::Stopping { .. }));
        let rank = |job: &Job| {
            let is_long = job.gpu_time(input.now()) >= Duration::from_secs(60);
            (is_long, job.state == State::Queued, job.arrival)
        };
        let first = jobs.min_by_key(|(_, job)| rank(job));
        let targets: Vec<Target> =
            first.map(|(key, _)| Target::exclusive(key, 1)).into_iter().collect();
        plan_transition(input, &targets, &Reason::Outranked { before: 1 })
    }
}

/// A policy reads the GPU time of jobs, also after a restart of the placer.
#[test]
fn gpu_time_survives_a_restart() {
    let mut world = World::new(1, 1);
    world.policy = || Box::new(LeastAttained);
    world.long = true;
    world.restart();
    world.submit(spec("long", 1));
    world.pass(40);
    // GPU time of the running job continues to count.
    world.restart();
    world.pass(30);
    world.submit(spec("new", 1));
    world.pass(20);
    assert_eq!(world.record("new").phase, JobPhase::Running);
    assert_eq!(world.record("long").phase, JobPhase::Queued);
    let gpu_time_ms = world.record("long").gpu_time_ms.unwrap();
    assert!((60_000..80_000).contains(&gpu_time_ms), "{gpu_time_ms} ms");
    // On one GPU. The GPU time ends with the request to stop, the run time when the job has stopped.
    let run_time_ms = world.record("long").run_time_ms.unwrap();
    let stopping_ms = run_time_ms - gpu_time_ms;
    assert!((500..2_000).contains(&stopping_ms), "{run_time_ms} ms and {gpu_time_ms} ms");
    // After a restart, a new job without GPU time still ranks before the queued one.
    world.submit(spec("newest", 1));
    world.restart();
    world.pass(20);
    world.cancel("new");
    world.pass(20);
    assert_eq!(world.record("newest").phase, JobPhase::Running);
    assert_eq!(
        world.record("long").gpu_time_ms,
        Some(gpu_time_ms),
        "a queued job gains no GPU time"
    );
    // A record without GPU time.
    let old = world.jobs.get_mut(&job_id("long")).unwrap();
    (old.gpu_time_ms, old.run_time_ms) = (None, None);
    world.restart();
    world.pass(5);
    assert_eq!(world.record("long").phase, JobPhase::Queued);
}
