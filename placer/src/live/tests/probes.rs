//! Probes in the simulated cluster: ordered, completed, interrupted and killed. No cap or clock remains
//! afterwards.

use wattle_common::id::PredictorId;
use wattle_common::messages::{DesiredGpu, Probe, Surface};
use wattle_common::{Frequency, Timestamp};

use super::*;
use crate::live::tests::forced_colocation::ForcedColocation;
use crate::live::tests::world::World;

fn proposal(at: Timestamp, job: &str, cap_w: u64) -> Event {
    proposal_of(at, job, Some(Power::from_w(cap_w)), None)
}

fn proposal_of(
    at: Timestamp,
    job: &str,
    cap_mw: Option<Power>,
    clock_mhz_max: Option<Frequency>,
) -> Event {
    Event::SurfaceKnown(Box::new(Surface {
        job: job_id(job),
        predictor: PredictorId::new("physical").unwrap(),
        at_us: at,
        gpu_type: "v100".to_owned(),
        windows: 3,
        basis: None,
        class: None,
        utilization_gpu_percent: None,
        utilization_memory_percent: None,
        memory_mib_max: None,
        points: vec![],
        other_gpu_types: Vec::new(),
        probe: Some(Probe {
            gpus: 1,
            nodes: 1,
            cap_mw,
            clock_mhz_max,
            duration_ms: 30_000,
            gain: 0.5,
            cost_time: 0.2,
            reason: Some("it reduces the uncertainty".to_owned()),
        }),
    }))
}

/// One job of 2,000 s on one of two GPUs.
fn world(policy: fn() -> Box<dyn Policy>) -> World {
    let mut world = World::new(1, 2);
    world.long = true;
    world.policy = policy;
    world.config.probe.enabled = true;
    world.restart();
    let mut long = spec("a", 1);
    long.duration_ms_estimate = Some(2_000_000);
    world.submit(long);
    world.pass(10);
    assert_eq!(world.record("a").phase, JobPhase::Running);
    world
}

fn fifo() -> Box<dyn Policy> {
    Box::new(crate::policies::Fifo)
}

fn caps(world: &World) -> Vec<(GpuIndex, Option<Power>)> {
    world.desired("n0").gpus.iter().map(|gpu: &DesiredGpu| (gpu.gpu, gpu.cap_mw)).collect()
}

fn decisions(world: &World) -> Vec<&str> {
    world.record("a").reasons.iter().map(|reason| reason.decision.as_str()).collect()
}

#[test]
fn a_probe_sets_its_cap_for_its_duration() {
    let mut world = world(fifo);
    world.deliver(proposal(world.now, "a", 150));
    let probed = [(0, Some(Power::from_w(150)))];
    assert_eq!(caps(&world), probed);
    assert_eq!(world.record("a").probes.len(), 1, "charged before it is ordered");
    world.pass(28);
    assert_eq!(caps(&world), probed);
    world.pass(3);
    assert_eq!(caps(&world), []);
    assert_eq!(decisions(&world)[1..], ["probes 150 W for 30 s", "probed 150 W for 30 s"]);
    // A proposal older than the end of the probe is ignored; a repeated probe is refused, once.
    world.deliver(proposal(Timestamp::from_s(1_020), "a", 200));
    assert_eq!(caps(&world), []);
    for _ in 0..3 {
        world.deliver(proposal(world.now, "a", 150));
        world.pass(6);
    }
    assert_eq!(decisions(&world)[3..], ["does not probe 150 W"]);
    // Three times 30 s are within 5 % of 2,000 s, four are not.
    for (cap, granted) in [(200, true), (125, true), (175, false)] {
        world.deliver(proposal(world.now, "a", cap));
        assert_eq!(!caps(&world).is_empty(), granted, "{cap} W");
        world.pass(35);
        assert_eq!(caps(&world), []);
    }
    let last = world.record("a").reasons.last().unwrap();
    assert_eq!(last.reason, "its probes would take 120 s, more than 5 % of the job's 2000 s");
}

#[test]
fn probes_respect_the_site_configuration() {
    let mut world = world(fifo);
    world.config.probe.enabled = false;
    world.restart();
    world.deliver(proposal(world.now, "a", 150));
    assert_eq!(caps(&world), []);
    world.config.probe.enabled = true;
    world.config.gpu_cap_w = Some(120);
    world.restart();
    world.pass(5);
    let site = [(0, Some(Power::from_w(120))), (1, Some(Power::from_w(120)))];
    world.deliver(proposal(world.now, "a", 150));
    assert_eq!(caps(&world), site, "never above the site's cap");
    world.deliver(proposal(world.now, "a", 100));
    assert_eq!(caps(&world)[0], (0, Some(Power::from_w(100))));
    world.pass(35);
    assert_eq!(caps(&world), site);
}

/// The clock stays below the site's clock, and is reset if the placer is killed during the probe.
#[test]
fn a_clock_probe_sets_its_clock_for_its_duration() {
    let order = |world: &World| {
        let gpus = &world.desired("n0").gpus;
        gpus.iter().map(|g| (g.gpu, g.cap_mw, g.clock_mhz_max)).collect::<Vec<_>>()
    };
    let clock =
        |world: &World, mhz| proposal_of(world.now, "a", None, Some(Frequency::from_mhz(mhz)));
    let mut world = world(fifo);
    world.deliver(clock(&world, 900));
    let probed = [(0, None, Some(Frequency::from_mhz(900)))];
    assert_eq!(order(&world), probed);
    let made = &world.record("a").probes[0];
    assert_eq!(made.clock_mhz_max, Some(Frequency::from_mhz(900)));
    assert_eq!(made.cap_mw, Power::from_w(250), "the default cap");
    world.pass(28);
    assert_eq!(order(&world), probed);
    world.pass(3);
    assert_eq!(order(&world), []);
    assert_eq!(decisions(&world)[1..], ["probes 900 MHz for 30 s", "probed 900 MHz for 30 s"]);
    world.deliver(clock(&world, 905));
    assert_eq!(order(&world), [], "already probed");

    world.config.gpu_clock_mhz_max = Some(1_200);
    world.config.gpu_cap_w = Some(200);
    world.restart();
    world.pass(5);
    let site = |gpu, mhz| (gpu, Some(Power::from_w(200)), Some(Frequency::from_mhz(mhz)));
    world.deliver(clock(&world, 1_300));
    assert_eq!(order(&world), [site(0, 1_200), site(1, 1_200)], "never above the site's clock");
    world.deliver(clock(&world, 1_000));
    assert_eq!(order(&world), [site(0, 1_000), site(1, 1_200)]);
    world.restart();
    world.pass(5);
    assert_eq!(order(&world), [site(0, 1_200), site(1, 1_200)], "killed during the probe");
    assert_eq!(world.record("a").probes.len(), 2);
}

/// Otherwise the probe's cap would slow the co-tenant and bias its observation.
#[test]
fn a_co_tenant_ends_a_probe() {
    let mut world = world(|| Box::new(ForcedColocation));
    world.deliver(proposal(world.now, "a", 150));
    assert!(!caps(&world).is_empty());
    world.submit(spec("undo-b", 1));
    world.pass(2);
    assert!(world.record("undo-b").placement.is_some());
    assert_eq!(caps(&world), []);
    let last = world.record("a").reasons.last().unwrap();
    assert_eq!(last.reason, "the job no longer runs alone on its GPUs");
}

#[test]
fn no_cap_remains_after_the_job_ends() {
    let mut world = world(fifo);
    world.deliver(proposal(world.now, "a", 150));
    world.cancel("a");
    world.pass(3);
    assert_eq!(world.record("a").phase, JobPhase::Cancelled);
    assert_eq!(caps(&world), []);
}

/// Killed at any write during a probe: the probe may be charged without effect, but no cap remains and
/// the probing budget holds.
#[test]
fn no_cap_remains_and_costs_persist_after_a_kill_at_any_write() {
    for kill in 0..12 {
        let mut world = world(fifo);
        world.kill_at = Some(world.writes + kill);
        for _ in 0..4 {
            let before = world.record("a").probes.len();
            world.deliver(proposal(world.now, "a", 150 - 10 * before as u64));
            world.pass(40);
            assert_eq!(caps(&world), [], "killed at {kill}: {:?}", world.log);
        }
        let record = world.record("a");
        assert_eq!(record.probes.len(), 3, "killed at {kill}: {:?}", record.reasons);
    }
}
