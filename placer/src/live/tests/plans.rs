//! Plans: placement by reported switches and boards, invalid plans, and the GPU time that a policy reads.

use std::time::Duration;

use wattle_common::job::JobPhase;

use crate::live::tests::world::World;
use crate::live::tests::{job_id, spec};
use crate::policies::Policy;
use crate::state::job::{Job, State};
use crate::{Plan, PlanningInput, Reason, Target, plan_transition};

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
