//! Expected starts and ends of the jobs of a cluster, by the controller that plans it.

use std::sync::Arc;
use std::time::Duration;

use wattle_common::job::GpuRequest;
use wattle_common::messages::{ExpectedTimes, NotExpected, SurfacePoint, TradeOff};
use wattle_common::{Frequency, Timestamp};
use wattle_placer::controller::{Controller, ControllerConfig};
use wattle_placer::expected::{EVERY, Expected};
use wattle_placer::{JobFacts, JobKey, Policy, Progress, Wakefulness, policy};

use crate::support::{job_facts, node_facts, node_watts};

struct World {
    controller: Controller<Box<dyn Policy>>,
}

impl World {
    fn new(policy_name: &str, gpus: &[u32]) -> Self {
        let config = ControllerConfig::default();
        let mut controller = Controller::new(config, policy(policy_name).unwrap());
        let state = controller.events();
        state.inventory_known(true);
        for (i, gpus) in gpus.iter().enumerate() {
            let mut node = node_facts(&format!("n{i}"), "v100", *gpus, 16_000);
            node.watts = Some(node_watts(40, 200, 20, 120));
            state.node_known(node);
        }
        controller.set_expected(Expected::new(Timestamp::EPOCH));
        Self { controller }
    }

    fn submit(&mut self, name: &str, gpus: u32, seconds: Option<u64>) -> JobKey {
        let request = GpuRequest { min: gpus, max: gpus };
        let facts = JobFacts {
            can_stop: false,
            duration_alone: seconds.map(Duration::from_secs),
            submitted_at: self.controller.state().now(),
            ..job_facts(name, request)
        };
        self.controller.admit(facts).unwrap()
    }

    fn round(&mut self) {
        let round = self.controller.plan();
        self.controller.apply(&round.plan);
        self.controller.follow_expected(&round.reports);
    }

    fn pass(&mut self, seconds: u64) {
        let then = self.controller.state().now() + Duration::from_secs(seconds);
        self.controller.advance_to(then);
    }

    fn times(&self, job: JobKey) -> ExpectedTimes {
        self.controller.expected().unwrap().times(job).cloned().unwrap()
    }

    /// Expected start and end, s.
    fn start_and_end(&self, job: JobKey) -> (Option<f64>, Option<f64>) {
        let times = self.times(job);
        let s = |of: Option<wattle_common::messages::ExpectedInstant>| of.map(|of| of.at_us.as_s());
        (s(times.start), s(times.end))
    }
}

#[test]
fn jobs_start_in_order_as_gpus_become_free() {
    let mut world = World::new("fifo", &[4]);
    let runs = world.submit("a", 4, Some(100));
    let next = world.submit("b", 2, Some(50));
    let last = world.submit("c", 4, None);
    world.round();
    assert_eq!(world.start_and_end(runs), (None, Some(100.0)));
    assert_eq!(world.start_and_end(next), (Some(100.0), Some(150.0)));
    assert_eq!(world.start_and_end(last), (Some(150.0), None));
    assert_eq!(world.times(last).unknown, Some(NotExpected::RunTime));
    // A forecast follows the next one by ten seconds at least.
    world.pass(EVERY.as_secs() - 1);
    let late = world.submit("d", 1, Some(5));
    world.round();
    assert!(world.controller.expected().unwrap().times(late).is_none());
    world.pass(1);
    world.round();
    let (start, _) = world.start_and_end(late);
    assert_eq!(start, Some(150.0 + 3_600.0), "behind a job of unknown length");
}

#[test]
fn a_job_that_never_fits_shows_why_and_blocks_a_strict_order() {
    let mut world = World::new("fifo", &[4]);
    let mut damaged = node_facts("n1", "v100", 8, 16_000);
    damaged.healthy = 0b11;
    world.controller.events().node_known(damaged);
    let large = world.submit("a", 8, Some(100));
    let small = world.submit("b", 1, Some(100));
    world.round();
    assert_eq!(world.times(large).unknown, Some(NotExpected::TooFewGpus));
    assert_eq!(world.times(small).unknown, Some(NotExpected::Behind));
    let mut world = World::new("backfill", &[4]);
    let mut damaged = node_facts("n1", "v100", 8, 16_000);
    damaged.healthy = 0b11;
    world.controller.events().node_known(damaged);
    let large = world.submit("a", 8, Some(100));
    let runs = world.submit("b", 4, Some(100));
    let small = world.submit("c", 4, Some(100));
    world.round();
    assert_eq!(world.times(large).unknown, Some(NotExpected::TooFewGpus));
    assert_eq!(world.start_and_end(runs), (None, Some(100.0)));
    assert_eq!(world.start_and_end(small).0, Some(100.0));
}

#[test]
fn a_sleeping_node_is_free_once_it_has_woken() {
    let mut world = World::new("fifo", &[4]);
    let node = world.controller.state().node_key(&"n0".parse().unwrap()).unwrap();
    world.controller.events().wakefulness_changed(node, Wakefulness::Waking);
    let waits = world.submit("a", 4, Some(100));
    world.round();
    assert_eq!(world.start_and_end(waits), (Some(120.0), Some(220.0)));
}

#[test]
fn errors_count_once_the_instants_are_known() {
    let mut world = World::new("fifo", &[1]);
    let first = world.submit("a", 1, Some(100));
    let second = world.submit("b", 1, Some(100));
    world.round();
    world.pass(160);
    world.controller.job_completed(first);
    world.round();
    let errors = world.controller.expected().unwrap().errors();
    let (starts, ends) = (errors.of(false, true), errors.of(true, true));
    assert_eq!((starts.forecasts(), ends.forecasts()), (1, 1), "b's start and a's end");
    for of in [&starts, &ends] {
        let error_s = of.error_s(1.0).unwrap();
        assert!((50.0..70.0).contains(&error_s), "{error_s} s, in bins of a quarter of a doubling");
        assert_eq!(of.coverage(), Some(1.0), "within the prior");
    }
    // A job that does not complete has no end.
    world.controller.job_ended(second, wattle_placer::twin::Departure::Failed);
    assert_eq!(world.controller.expected().unwrap().errors().of(true, true).forecasts(), 1);
}

/// Speed 1/s at 200 W by default, 0.8/s at 120 W and 0.5/s at 110 W.
fn settings_known(world: &mut World, job: JobKey, steps_total: u64) {
    let point = |clock: Option<u32>, rate: f64, power_w: f64| SurfacePoint {
        clock_mhz_max: clock.map(Frequency::from_mhz),
        ..wattle_testkit::point(1, rate, power_w)
    };
    let points =
        [point(None, 1.0, 200.0), point(Some(900), 0.8, 120.0), point(Some(500), 0.5, 110.0)];
    let surface = wattle_testkit::surface("any", "v100", points);
    let at = world.controller.state().now();
    let state = world.controller.events();
    state.surface_known(job, Arc::new(surface));
    let progress = Progress { at, steps_total: Some(steps_total), ..Progress::default() };
    state.job_progressed(job, progress);
}

#[test]
fn slower_settings_are_traded_against_completion_times() {
    let mut world = World::new("fifo", &[1]);
    let runs = world.submit("a", 1, None);
    let waits = world.submit("b", 1, None);
    world.round();
    assert_eq!(world.controller.what_if(&world.controller.plan().reports), None, "no predictions");
    settings_known(&mut world, runs, 8_000);
    settings_known(&mut world, waits, 8_000);
    let round = world.controller.plan();
    let trade = world.controller.what_if(&round.reports).unwrap();
    assert_eq!((trade.jobs, trade.not_counted), (2, 0));
    // They end after 8,000 and 16,000 s, on 200 W.
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-3 * b.abs().max(1.0), "{a} {b}");
    near(trade.completion_s, 12_000.0);
    near(trade.energy_mj.as_j(), 200.0 * 16_000.0);
    assert_eq!(trade.planned, TradeOff::default(), "the policy sets no clocks");
    // At 0.8/s both take 1.25 times as long and 0.75 of the energy; at 0.5/s they would use more.
    let [at_default, slower] = trade.points[..] else { panic!("{:?}", trade.points) };
    assert_eq!(at_default, TradeOff::default());
    near(slower.later, 0.25);
    near(slower.saved, 0.25);
    near(trade.saved_at(0.1).unwrap(), 0.1);
    // A job whose power is not predicted does not count.
    world.submit("c", 1, Some(100));
    let trade = world.controller.what_if(&round.reports).unwrap();
    assert_eq!((trade.jobs, trade.not_counted), (2, 1));
}
