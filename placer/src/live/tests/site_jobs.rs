//! Jobs that the site's scheduler runs.

use wattle_common::job::{JobPhase, JobSpec, NodeNeeds, SiteJob};
use wattle_common::messages::{LaunchState, Reply, SiteNode};

use super::world::World;
use super::{refused, spec};
use crate::live::measures::NodeCounts;

fn node() -> SiteNode {
    SiteNode {
        unavailable: None,
        asleep: false,
        partitions: Vec::new(),
        cpus: 32,
        memory_mib: 64_000,
        gpus_taken: Vec::new(),
    }
}

fn site(placed_by_site: bool, nodes: Option<u32>) -> Option<SiteJob> {
    let needs = NodeNeeds { cpus_per_gpu: 8, ..NodeNeeds::default() };
    Some(SiteJob { id: "42".to_owned(), placed_by_site, nodes, partition: None, needs })
}

fn job(name: &str, gpus: u32, placed_by_site: bool) -> JobSpec {
    JobSpec { command: Vec::new(), site: site(placed_by_site, None), ..spec(name, gpus) }
}

/// A cluster in the site's scheduler whose jobs end only by its reports.
fn world(nodes: usize) -> World {
    let mut world = World::new(nodes, 4);
    world.long = true;
    world.policy = || crate::policy("fifo").unwrap();
    world.restart();
    for at in 0..nodes {
        world.set_site(&format!("n{at}"), node());
    }
    world.pass(2);
    world
}

fn placed(world: &World, job: &str) -> (JobPhase, u32, String) {
    let record = world.record(job);
    let at = record.placement.as_ref().map(ToString::to_string).unwrap_or_default();
    (record.phase, record.attempt, at)
}

#[test]
fn a_job_placed_by_the_site_follows_its_scheduler() {
    let mut world = world(1);
    let reply = world.request_submit(job("s", 2, true));
    assert!(matches!(reply, Reply::Accepted { .. }), "{reply:?}");
    world.pass(10);
    assert_eq!(
        placed(&world, "s"),
        (JobPhase::Queued, 0, String::new()),
        "never started by an order"
    );
    world.site_run("n0", "s", 1, &[1, 3], LaunchState::Running);
    world.pass(3);
    assert_eq!(placed(&world, "s"), (JobPhase::Running, 1, "n0:1,3".to_owned()));
    // It is exclusive, and never stopped for another job.
    world.submit(job("w", 2, false));
    world.submit(job("x", 2, false));
    world.pass(5);
    assert_eq!(placed(&world, "w"), (JobPhase::Running, 1, "n0:0,2".to_owned()));
    assert_eq!(world.record("x").phase, JobPhase::Queued);
    // A restart of the placer changes nothing.
    world.restart();
    world.pass(5);
    assert_eq!(placed(&world, "s"), (JobPhase::Running, 1, "n0:1,3".to_owned()));
    // The site's scheduler requeues it, and starts it elsewhere.
    world.site_run("n0", "s", 1, &[1, 3], LaunchState::Lost { error: "requeued".to_owned() });
    world.pass(3);
    assert_eq!(world.record("s").phase, JobPhase::Queued);
    assert_eq!(placed(&world, "x"), (JobPhase::Running, 1, "n0:1,3".to_owned()));
    world.restart();
    world.pass(5);
    assert_eq!(world.record("s").phase, JobPhase::Queued, "no order starts it after a restart");
    world.site_run("n0", "x", 1, &[1, 3], LaunchState::exited(0));
    world.site_run("n0", "s", 2, &[1, 3], LaunchState::Running);
    world.pass(3);
    assert_eq!(world.record("x").phase, JobPhase::Finished);
    assert_eq!(placed(&world, "s"), (JobPhase::Running, 2, "n0:1,3".to_owned()));
    world.site_run("n0", "s", 2, &[1, 3], LaunchState::exited(3));
    world.pass(3);
    let record = world.record("s");
    assert_eq!(
        (record.phase, record.exit_code),
        (JobPhase::Failed, Some(3)),
        "{record:#?} {:#?}",
        world.log
    );
}

#[test]
fn a_job_that_ends_before_its_start_is_recorded_has_its_end() {
    let mut world = world(1);
    world.keep_ends("n0");
    for job_id in ["short", "failing", "requeued"] {
        assert!(matches!(world.request_submit(job(job_id, 1, true)), Reply::Accepted { .. }));
    }
    world.pass(2);
    world.site_run("n0", "short", 1, &[1], LaunchState::exited(0));
    world.site_run("n0", "failing", 1, &[2], LaunchState::exited(7));
    world.site_run("n0", "requeued", 1, &[1], LaunchState::Lost { error: "requeued".to_owned() });
    world.pass(3);
    let end = |name: &str| {
        let record = world.record(name);
        (record.phase, record.attempt, record.exit_code)
    };
    assert_eq!(end("short"), (JobPhase::Finished, 1, Some(0)));
    assert_eq!(end("failing"), (JobPhase::Failed, 1, Some(7)));
    assert_eq!(end("requeued"), (JobPhase::Queued, 1, None));
    // The same report again ends no later attempt.
    world.site_run("n0", "requeued", 2, &[1], LaunchState::Running);
    world.pass(3);
    assert_eq!(placed(&world, "requeued"), (JobPhase::Running, 2, "n0:1".to_owned()));
}

#[test]
fn a_placed_job_that_runs_without_an_order_is_adopted() {
    let mut world = world(1);
    world.submit(spec("first", 4));
    world.pass(3);
    world.submit(job("w", 2, false));
    world.pass(5);
    assert_eq!(placed(&world, "w").0, JobPhase::Queued);
    world.site_run("n0", "first", 1, &[0, 1, 2, 3], LaunchState::exited(0));
    world.site_run("n0", "w", 1, &[2, 3], LaunchState::Running);
    world.pass(3);
    assert_eq!(placed(&world, "w"), (JobPhase::Running, 1, "n0:2,3".to_owned()));
    let reasons = &world.record("w").reasons;
    assert!(
        reasons.iter().any(|reason| reason.reason == "the site's scheduler has started it there"),
        "{reasons:?}"
    );
}

#[test]
fn gpus_that_the_site_has_chosen_count() {
    let mut world = world(1);
    world.submit(job("w", 2, false));
    world.pass(5);
    assert_eq!(placed(&world, "w"), (JobPhase::Running, 1, "n0:0,1".to_owned()));
    world.site_run("n0", "w", 1, &[0, 3], LaunchState::Running);
    world.pass(3);
    assert_eq!(placed(&world, "w"), (JobPhase::Running, 1, "n0:0,3".to_owned()));
    assert_eq!(world.desired("n0").jobs[0].gpus, [0, 3]);
    world.submit(job("x", 2, false));
    world.pass(5);
    assert_eq!(placed(&world, "x"), (JobPhase::Running, 1, "n0:1,2".to_owned()));
    // A cancellation that was under way continues.
    world.slow_stop = true;
    world.cancel("w");
    world.pass(2);
    world.slow_stop = false;
    world.pass(5);
    assert_eq!(world.record("w").phase, JobPhase::Cancelled);
}

#[test]
fn drained_nodes_taken_gpus_and_missing_cpus_get_no_jobs() {
    let mut world = world(2);
    world.set_site("n0", SiteNode { gpus_taken: vec![0, 1, 2], ..node() });
    world.set_site("n1", SiteNode { cpus: 15, ..node() });
    world.submit(job("pair", 2, false));
    world.pass(5);
    assert_eq!(world.record("pair").phase, JobPhase::Queued, "two GPUs need 16 CPUs");
    let reasons = &world.record("pair").reasons;
    let waits = |text: &str| reasons.iter().any(|reason| reason.reason.contains(text));
    assert!(waits("has the CPUs and the memory"), "{reasons:?}");
    world.set_site("n1", SiteNode { unavailable: Some("drained: bad DIMM".to_owned()), ..node() });
    world.pass(5);
    assert_eq!(world.record("pair").phase, JobPhase::Queued);
    world.set_site("n1", SiteNode { cpus: 16, ..node() });
    world.pass(5);
    assert_eq!(placed(&world, "pair"), (JobPhase::Running, 1, "n1:0,1".to_owned()));
    // A drained node finishes its jobs.
    world.set_site("n1", SiteNode { unavailable: Some("drained".to_owned()), ..node() });
    world.pass(20);
    assert_eq!(placed(&world, "pair"), (JobPhase::Running, 1, "n1:0,1".to_owned()));
}

#[test]
fn a_job_wakes_a_node_that_the_site_has_put_to_sleep_only_if_no_other_has_room() {
    let mut world = world(2);
    world.set_site("n0", SiteNode { asleep: true, ..node() });
    world.pass(120);
    assert_eq!(
        world.placer.measures().nodes,
        NodeCounts { ready: 1, asleep: 1, ..NodeCounts::default() }
    );
    world.submit(job("first", 3, false));
    world.pass(5);
    assert_eq!(placed(&world, "first"), (JobPhase::Running, 1, "n1:0,1,2".to_owned()));
    world.submit(job("second", 2, false));
    world.pass(5);
    assert_eq!(placed(&world, "second"), (JobPhase::Running, 1, "n0:0,1".to_owned()));
    assert_eq!(world.placer.measures().nodes.waking, 1);
    let woken = world.log.iter().any(|line| line.starts_with("wake "));
    assert!(!woken, "the site's scheduler wakes it");
    world.set_site("n0", node());
    world.pass(5);
    assert_eq!(world.placer.measures().nodes.ready, 2);
    // Only the site's scheduler puts it to sleep again.
    world.site_run("n0", "second", 1, &[0, 1], LaunchState::exited(0));
    world.pass(600);
    assert_eq!(world.record("second").phase, JobPhase::Finished);
    assert_eq!(world.placer.measures().nodes.ready, 2);
}

#[test]
fn a_node_of_the_site_sleeps_on_if_the_job_that_needed_it_is_cancelled() {
    let mut world = world(1);
    world.set_site("n0", SiteNode { asleep: true, ..node() });
    world.pass(60);
    world.submit(job("late", 4, false));
    world.pass(5);
    world.cancel("late");
    world.pass(20);
    assert_eq!(world.record("late").phase, JobPhase::Cancelled);
    assert_eq!(world.placer.measures().nodes.waking, 1);
    world.pass(200);
    assert_eq!(world.placer.measures().nodes.asleep, 1);
}

#[test]
fn two_nodes_get_the_same_indices() {
    let mut world = world(2);
    world.set_site("n0", SiteNode { gpus_taken: vec![0], ..node() });
    world.submit(JobSpec { site: site(false, Some(2)), ..job("wide", 4, false) });
    world.pass(5);
    assert_eq!(placed(&world, "wide"), (JobPhase::Running, 1, "n0:2,3 n1:2,3".to_owned()));
}

#[test]
fn jobs_run_on_while_the_service_of_the_site_is_away() {
    let mut world = world(2);
    world.submit(job("w", 1, false));
    world.submit(job("s", 1, true));
    world.site_run("n1", "s", 1, &[0], LaunchState::Running);
    world.pass(5);
    for node in ["n0", "n1"] {
        world.cut_off(node, true);
    }
    world.pass(400);
    for job in ["w", "s"] {
        assert_eq!(world.record(job).phase, JobPhase::Running, "{job}");
    }
    for node in ["n0", "n1"] {
        world.cut_off(node, false);
    }
    world.pass(5);
    for job in ["w", "s"] {
        assert_eq!((world.record(job).phase, world.record(job).attempt), (JobPhase::Running, 1));
    }
}

#[test]
fn implausible_jobs_of_the_site_are_refused() {
    let mut world = world(1);
    let with = |id: &str, nodes| {
        let site = site(false, nodes).map(|site| SiteJob { id: id.to_owned(), ..site });
        JobSpec { site, ..job("a", 1, false) }
    };
    for (spec, field) in [
        (with("", None), "site.id"),
        (with("42; scancel", None), "site.id"),
        (with("4242", Some(0)), "site.nodes"),
    ] {
        let reply = world.request_submit(spec);
        assert!(refused(&reply).contains(field), "{reply:?}");
    }
}
