//! Grid events of feeders in simulations: no minute of a feeder is above its target, and the others are not limited.

use wattle_baselines::policy;
use wattle_common::event::{Depth, Participation};
use wattle_common::feeders::{Connection, Feeder, FeederTree};
use wattle_common::job::GpuRequest;
use wattle_common::rng::Stream;
use wattle_common::{FeederId, JobId, NodeId, Power};
use wattle_simulator::{PlannedEvent, PolicyOutcome, RunOptions, Scenario, SimJob, Work, run_with};
use wattle_testkit::cases;
use wattle_world::World;

use crate::grid_events::{event, random_history};

const HOUR: std::time::Duration = std::time::Duration::from_secs(3_600);

fn id(name: &str) -> FeederId {
    FeederId::new(name).unwrap()
}

/// Two boards that carry all nodes within their limits; n1 is on both, n0 on the first, the others on the second.
fn tree() -> FeederTree {
    let board = |name: &str, static_w: u64| Feeder {
        name: id(name),
        parent: None,
        limit_mw: Power::from_w(20_000),
        static_load_mw: Power::from_w(static_w),
    };
    let on = |nodes: &[&str], feeds: &[&str]| Connection {
        nodes: nodes.iter().map(|node| NodeId::new(node).unwrap()).collect(),
        feeds: feeds.iter().map(|feed| id(feed)).collect(),
        min_feeds: 1,
    };
    let connections =
        vec![on(&["n0"], &["a"]), on(&["n1"], &["a", "b"]), on(&["n2", "n3"], &["b"])];
    FeederTree::new(vec![board("a", 100), board("b", 0)], connections).unwrap()
}

/// The lowest power of a feeder with all GPUs of its nodes at their lowest caps, watts.
fn least_w(feeder: &str) -> u64 {
    match feeder {
        "a" => 100 + 3 * (240 + 4 * 80) / 2,
        _ => 5 * (240 + 4 * 80) / 2,
    }
}

/// Beside events of the site, or in their place, one or two of feeders.
#[test]
fn no_random_history_on_feeders_is_above_a_target_at_any_instant() {
    let world = World::builtin();
    let (mut minutes, seeds) = (0, u64::from(cases(20, 500)));
    for seed in 0..seeds {
        let random = &mut Stream::new(seed, "feeder events");
        let (mut scenario, name, mut options) = random_history(&world, seed, random);
        scenario.set_feeders(&world, tree()).unwrap();
        options.events.truncate(random.below(2) as usize);
        for n in 0..1 + random.below(3) {
            let feeder = if random.below(2) == 0 { "a" } else { "b" };
            let power_mw = Power::from_w(least_w(feeder) + random.below(800));
            let depth = Depth::Target { power_mw };
            let mut planned = event(&format!("f{n}"), random.below(30), depth);
            planned.event.feeder = Some(id(feeder));
            planned.event.duration_s = 600 + random.below(3 * 3_600);
            (planned.event.ramp_down_s, planned.event.ramp_up_s) =
                (random.below(600), random.below(600));
            if random.below(2) == 0 {
                planned.event.participation = Participation::Mandatory;
            }
            options.events.push(planned);
        }
        let run = run_with(&world, &scenario, policy(name).unwrap().as_ref(), &options).unwrap();
        let kept = run.events.as_ref().unwrap();
        let what = format!("seed {seed}, {name}, {:?}", options.events);
        assert_eq!((kept.refused, kept.minutes_above), (0, 0), "{what}: {kept:?}");
        assert_eq!(run.finished, run.jobs, "{what}");
        minutes += kept.minutes;
    }
    assert!(minutes > 60 * seeds, "{minutes}");
}

/// Jobs of four GPUs for a day on four nodes; the first is on the first feeder.
fn run(world: &World, name: &str, events: Vec<PlannedEvent>) -> PolicyOutcome {
    let job = |n: usize| {
        let id = JobId::new(&format!("j{n}")).unwrap();
        let workload = "resnet50-imagenet-b256".parse().unwrap();
        let mut job =
            SimJob::new(id, std::time::Duration::ZERO, 4, workload, Work::Lasts(24 * HOUR));
        job.gpus = GpuRequest::exactly(4);
        job
    };
    let jobs = (0..4).map(job).collect();
    let mut scenario = Scenario::new("feeders", "4x4:v100".parse().unwrap(), jobs, 1);
    scenario.set_feeders(world, tree()).unwrap();
    let options = RunOptions { events, oracle: true, ..RunOptions::default() };
    run_with(world, &scenario, policy(name).unwrap().as_ref(), &options).unwrap()
}

/// The jobs of the other feeder lose nothing.
#[test]
fn an_event_of_a_feeder_slows_the_jobs_of_that_feeder_alone() {
    let world = World::builtin();
    for name in ["fifo", "wattle"] {
        let mut deep = event("deep", 6, Depth::Percent { percent: 30.0 });
        deep.event.feeder = Some(id("a"));
        let (with, without) = (run(&world, name, vec![deep]), run(&world, name, Vec::new()));
        let kept = with.events.as_ref().unwrap();
        assert_eq!((kept.events, kept.minutes_above), (1, 0), "{name}: {kept:?}");
        assert_eq!(kept.minutes, 180 + 2 * 15 + 15, "{name}");
        // Of four equal jobs two are on the feeder.
        let slower = with.jct_s_mean.unwrap() - without.jct_s_mean.unwrap();
        let longest = with.makespan_s - without.makespan_s;
        println!("{name}: on average {slower:.0} s later, at most {longest:.0} s");
        assert!(slower > 60.0, "{name}: {slower}");
        assert!(slower < 0.55 * longest, "{name}: {slower} of {longest}");
    }
}

#[test]
fn an_event_of_an_unknown_feeder_is_refused_with_a_note() {
    let world = World::builtin();
    let mut unknown = event("u", 6, Depth::Percent { percent: 30.0 });
    unknown.event.feeder = Some(id("pdu"));
    let run = run(&world, "fifo", vec![unknown]);
    assert_eq!(run.events.as_ref().map(|kept| (kept.events, kept.refused)), Some((0, 1)));
    let note = run.notes.iter().find(|note| note.contains("grid event u was refused")).unwrap();
    assert!(note.contains("feeder = pdu: expected one of a, b"), "{note}");
}
