//! The reasons of decisions state what each changes, for the job and for others.

use wattle_common::Frequency;
use wattle_common::job::{GpuRequest, GpuSetting, JobPhase};
use wattle_common::messages::{Consequence, SurfacePoint};
use wattle_testkit as testkit;

use super::kinds::surface;
use super::*;
use crate::live::tests::world::World;
use crate::policies::{Capabilities, Fifo, Policy};
use crate::{Decision, Plan, PlanningInput, Reads, Reason};

/// The sizes of an elastic job with steps per second; each GPU draws 200 W.
const SIZES: [(u32, f64); 4] = [(1, 1.0), (2, 1.9), (4, 3.4), (8, 5.0)];

fn world() -> World {
    let mut world = World::new(1, 8);
    world.policy = || crate::policy("wattle").unwrap();
    world.long = true;
    world.restart();
    world.pass(20);
    world
}

/// Submits a job of this many hours on one GPU, with a prediction of each size.
fn submit(world: &mut World, job: &str, gpus: GpuRequest, hours: u64) {
    let mut spec = spec(job, gpus.min);
    spec.gpus = gpus;
    spec.duration_ms_estimate = Some(hours * 3_600_000 / u64::from(gpus.min));
    spec.checkpoint_signal = Some("SIGUSR1".to_owned());
    world.submit(spec);
    let points: Vec<SurfacePoint> =
        SIZES.map(|(gpus, rate)| testkit::point(gpus, rate, 200.0)).into();
    world.deliver(Event::SurfaceKnown(Box::new(Surface { points, ..surface(job, "v100", 1.0) })));
}

/// The consequence of the last decision of this kind.
fn consequence(world: &World, job: &str, decision: &str) -> Consequence {
    let record = world.record(job);
    let mut of_kind = record.reasons.iter().rev().filter(|r| r.decision.starts_with(decision));
    let reason = of_kind.next().unwrap_or_else(|| panic!("{:#?}", record.reasons));
    reason.consequence.clone().unwrap_or_else(|| panic!("{:#?}", record.reasons))
}

const ELASTIC: GpuRequest = GpuRequest { min: 1, max: 8 };

#[test]
fn a_start_on_fewer_gpus_is_compared_with_the_largest_size() {
    let mut world = world();
    for job in ["a", "b"] {
        submit(&mut world, job, ELASTIC, 10);
    }
    world.pass(10);
    let placed = consequence(&world, "a", "placed on");
    // 36,000 steps take 10,588 s on 4 GPUs; on 8 they take 7,200 s, which begin when b ends after 10,588 s.
    assert_eq!(placed.in_place_of, "waiting for 8 GPUs");
    assert_eq!(placed.end_later_s.map(f64::round), Some(-7_200.0));
    assert_eq!(placed.energy_more_j.map(|j| (j / 1e3).round()), Some(-3_049.0));
    assert_eq!((placed.queued_sooner, placed.queued_later), (None, None), "no job is queued");
}

#[test]
fn a_job_that_gives_gpus_to_another_states_which_starts_sooner() {
    let mut world = world();
    submit(&mut world, "a", ELASTIC, 100);
    world.pass(1_000);
    assert_eq!(world.record("a").placement.as_ref().unwrap().gpu_count(), 8);
    submit(&mut world, "b", GpuRequest { min: 4, max: 4 }, 4);
    world.pass(20);
    assert_eq!(world.record("b").phase, JobPhase::Running, "{:#?}", world.record("a").reasons);
    let taken = consequence(&world, "a", "taken off");
    assert_eq!(taken.in_place_of, "staying on its GPUs");
    // Otherwise b, of one hour, would have waited until the policy stops another job for it.
    let sooner = taken.queued_sooner.expect("b starts sooner");
    assert_eq!(sooner.jobs, 1);
    assert!((17_000.0..19_000.0).contains(&sooner.by_s), "{} s", sooner.by_s);
    let later_s = taken.end_later_s.expect("a is predicted");
    assert!(later_s > 3_600.0, "{later_s} s");
    assert!(taken.energy_more_j.is_some_and(|j| j < 0.0), "fewer GPUs are more efficient");
}

/// The lower clock of [`SlowWithQueue`].
const SLOW: GpuSetting =
    GpuSetting { cap_mw: None, clock_mhz_max: Some(Frequency::from_mhz(1_080)) };

/// FIFO, with a lower clock for a running job as long as another one waits.
struct SlowWithQueue;

impl Policy for SlowWithQueue {
    fn name(&self) -> &'static str {
        "slow-with-queue"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { reads: Reads::All, ..Fifo.capabilities() }
    }

    fn solve(&self, input: PlanningInput<'_>) -> Plan {
        let mut plan = Fifo.solve(input);
        let waits = input.state.queue().next().is_some();
        let running = input.state.running().filter(|(_, job)| job.setting() != Some(SLOW));
        let slower = |(job, _)| Decision::Set { job, setting: SLOW, reason: Reason::FirstFit };
        plan.decisions.extend(running.filter(|_| waits).map(slower));
        plan
    }
}

#[test]
fn a_lower_clock_states_which_queued_jobs_start_later() {
    let mut world = World::new(1, 1);
    world.policy = || Box::new(SlowWithQueue);
    world.long = true;
    world.restart();
    world.pass(20);
    let one = GpuRequest { min: 1, max: 1 };
    for job in ["a", "b", "c"] {
        submit(&mut world, job, one, 1);
        let slow =
            SurfacePoint { clock_mhz_max: SLOW.clock_mhz_max, ..testkit::point(1, 0.8, 120.0) };
        let points = vec![testkit::point(1, 1.0, 200.0), slow];
        world.deliver(Event::SurfaceKnown(Box::new(Surface {
            points,
            ..surface(job, "v100", 1.0)
        })));
    }
    world.pass(20);
    let set = consequence(&world, "a", "set to");
    assert_eq!(set.in_place_of, "the default setting");
    // An hour takes 1.25 hours; so much later b starts, and c behind it.
    let later_s = set.end_later_s.expect("a is predicted");
    assert!((850.0..=900.0).contains(&later_s), "{set:?}");
    let queued = set.queued_later.expect("b and c wait for the GPU of a");
    assert_eq!((queued.jobs, set.queued_sooner), (2, None), "{set:?}");
    assert!((queued.by_s - later_s).abs() < 30.0, "{set:?}");
    assert!(set.energy_more_j.is_some_and(|more_j| more_j < 0.0), "{set:?}");
}
