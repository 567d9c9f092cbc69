//! Random histories under power limits that change: limits of the site and of feeders with any one lost, jobs that cannot
//! stop, predictions with errors. No simulated instant exceeds a limit.

use wattle_baselines::{NAMES, policy};
use wattle_common::feeders::FeederTree;
use wattle_common::job::GpuRequest;
use wattle_common::rng::Stream;
use wattle_common::{Budget, Power, PowerSeries, Timestamp};
use wattle_simulator::{RunOptions, Scenario, generator, run_with};
use wattle_testkit::{cases, connection, feeder};
use wattle_world::World;

const NODES: u64 = 4;
/// What a node with four V100 GPUs draws without jobs, watts, rounded up.
const NODE_IDLE_W: u64 = 240;
/// The lowest cap of a V100 above its idle draw, watts, rounded up.
const GPU_LEAST_W: u64 = 80;
/// Most GPUs of a job.
const GPUS_MAX: u32 = 4;
/// The least limit at which every job can run at the lowest caps while all nodes are awake.
const LEAST_W: u64 = NODES * NODE_IDLE_W + GPUS_MAX as u64 * GPU_LEAST_W;
/// What the limits are drawn from, above the least.
const SPAN_W: u64 = 2_400;

/// Seeds of histories that have exceeded a limit: 32, because an unused node stayed awake for a job that was held
/// back; 400, because the nodes of jobs that cannot stop counted in part.
const ONCE_EXCEEDED: [u64; 2] = [32, 400];

/// A limit of one to six steps, each of up to six hours.
fn series(random: &mut Stream) -> PowerSeries {
    let (mut at_s, mut steps) = (0, Vec::new());
    for _ in 0..=random.below(6) {
        steps.push((at_s, Power::from_w(LEAST_W + random.below(SPAN_W))));
        at_s += 60 + random.below(6 * 3_600);
    }
    PowerSeries { starts_at_us: Timestamp::EPOCH, steps, period_s: at_s }
}

fn scenario(world: &World, seed: u64, random: &mut Stream) -> Scenario {
    let trace = generator::generate(30, seed);
    let cluster = "4x4:v100".parse().unwrap();
    let mut scenario = Scenario::from_trace(world, &trace, &cluster, seed).unwrap();
    let cannot_stop = random.unit();
    for job in &mut scenario.jobs {
        job.gpus = GpuRequest::exactly(job.gpus.min.min(GPUS_MAX));
        job.can_stop = random.unit() > cannot_stop;
    }
    scenario.set_load(world, 0.4 + random.unit()).unwrap();
    if random.below(2) == 0 {
        let side_w = LEAST_W + random.below(SPAN_W);
        let feeders = vec![feeder("a", None, side_w, 0), feeder("b", None, side_w, 0)];
        let nodes = ["n0", "n1", "n2", "n3"];
        let tree = FeederTree::new(feeders, vec![connection(&nodes, &["a", "b"], 1)]).unwrap();
        scenario.set_feeders(world, tree).unwrap();
    }
    scenario
}

#[test]
fn no_random_history_exceeds_a_limit_at_any_instant() {
    let world = World::builtin();
    let mut has_finished = 0;
    let seeds: Vec<u64> = (0..u64::from(cases(20, 1_000))).chain(ONCE_EXCEEDED).collect();
    for &seed in &seeds {
        let random = &mut Stream::new(seed, "power histories");
        let scenario = scenario(&world, seed, random);
        let budget = Budget { power_series: Some(series(random)), ..Budget::default() };
        let name = if random.below(2) == 0 { "wattle" } else { random.pick(&NAMES).unwrap() };
        let options = RunOptions {
            budget: Some(budget),
            nodes_sleep: random.below(2) == 0,
            oracle: false,
            ..RunOptions::default()
        };
        let run = run_with(&world, &scenario, policy(name).unwrap().as_ref(), &options).unwrap();
        let spending = run.spending.as_ref().unwrap();
        let what = format!("seed {seed}, {name}, {:?}", options.budget);
        assert_eq!(spending.power_exceeded_s, Some(0.0), "{what}: {spending:?}");
        for used in &run.feeders {
            assert_eq!(used.power_exceeded_s.to_bits(), 0, "{what}: {used:?}");
        }
        has_finished += usize::from(run.finished == run.jobs);
    }
    assert_eq!(has_finished, seeds.len(), "every job ends");
}
