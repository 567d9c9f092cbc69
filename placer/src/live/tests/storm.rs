//! Everything goes wrong at once, by seed: messages lost, doubled, late and out of order; jobs slow to
//! stop; nodes cut off or rebooted, cards that do not answer, caps refused; the placer killed before any write; a
//! predictor that lies; nodes of another kind, and jobs that must have it. Under every policy, whatever
//! happens:
//!
//! * the world's own rules hold at every step (`world`): nobody runs twice, no GPU is overfull,
//!   attempts and orders never go back;
//! * no policy makes a plan that breaks the rules, however wrong what it is told;
//! * once the weather clears, every job that was accepted comes to its end, every request is
//!   answered, and nothing is left on any node.

use wattle_common::id::PredictorId;
use wattle_common::job::{GpuRequest, JobPhase, JobSpec};
use wattle_common::messages::{Estimate, JobProgressed, Reply, Surface, SurfacePoint};
use wattle_common::rng::Stream;
use wattle_common::{Frequency, JobId, NodeId, Timestamp, WorkloadId};

use crate::live::Event;
use crate::live::tests::spec;
use crate::live::tests::world::World;
use crate::{Policy, policy};

/// How many storms there are.
const SEEDS: u64 = 1_000;
/// Seconds of storm, and the most until everything has come to its end afterwards.
const STORM_S: u64 = 100;
const CALM_S: u64 = 900;
const NODES: [&str; 3] = ["n0", "n1", "n2"];

/// Every policy there is.
const POLICIES: [fn() -> Box<dyn Policy>; 10] = [
    || policy("fifo").unwrap(),
    || policy("fifo-packed").unwrap(),
    || policy("srtf").unwrap(),
    || policy("tiresias").unwrap(),
    || policy("gandiva").unwrap(),
    || policy("afs").unwrap(),
    || policy("eaco").unwrap(),
    || policy("powerflow").unwrap(),
    || policy("greenflow").unwrap(),
    || policy("wattle").unwrap(),
];

/// Those that put two jobs on one GPU.
const PACK: [&str; 4] = ["fifo-packed", "gandiva", "eaco", "wattle"];

/// What becomes of messages.
pub(super) struct Weather {
    rng: Stream,
    /// The share of messages that each of these befalls.
    share: f64,
    /// Messages that come later, if they come.
    held: Vec<Event>,
}

impl Weather {
    fn of(seed: u64) -> Self {
        Self { rng: Stream::new(seed, "weather"), share: 0.15, held: Vec::new() }
    }
    /// Whether an order is not seen yet.
    pub(super) fn is_late(&mut self) -> bool {
        self.rng.unit() < self.share
    }
    /// Whether who stops is still writing its checkpoint.
    pub(super) fn is_slow(&mut self) -> bool {
        self.rng.unit() < 0.7
    }
    /// What of these arrives now, and in which order.
    pub(super) fn carry(&mut self, events: impl Iterator<Item = Event>) -> Vec<Event> {
        let mut arrives = Vec::new();
        for event in events {
            let fate = self.rng.unit() / self.share;
            if fate < 1.0 {
                continue; // lost
            } else if fate < 2.0 {
                self.held.push(event);
            } else if fate < 3.0 {
                arrives.extend([event.clone(), event]);
            } else {
                arrives.push(event);
            }
        }
        if !self.held.is_empty() && self.rng.unit() < 0.5 {
            let which = self.rng.below(self.held.len() as u64) as usize;
            arrives.push(self.held.swap_remove(which));
        }
        arrives
    }
}

fn one_in(rng: &mut Stream, n: u64) -> bool {
    rng.below(n) == 0
}

fn class(rng: &mut Stream) -> WorkloadId {
    WorkloadId::new(["bert", "resnet50"][rng.below(2) as usize]).unwrap()
}

fn a_job(rng: &mut Stream, number: usize, now: Timestamp) -> JobSpec {
    let min = 1 << rng.below(3);
    let s = std::time::Duration::from_secs;
    JobSpec {
        workload: (!one_in(rng, 4)).then(|| class(rng)),
        gpus: GpuRequest { min, max: if one_in(rng, 2) { min } else { 4 } },
        exclusive: one_in(rng, 5),
        priority: u8::from(one_in(rng, 6)),
        deadline_at_us: one_in(rng, 4).then(|| now + s(5 + rng.below(100))),
        duration_ms_estimate: (!one_in(rng, 3)).then(|| 1_000 + rng.below(100_000)),
        memory_mib_max: (!one_in(rng, 4)).then(|| 1 + rng.below(30_000)),
        checkpoint_signal: (!one_in(rng, 4)).then(|| "SIGUSR1".to_owned()),
        submitted_at_us: now,
        ..spec(&format!("j{number}"), 1)
    }
}

/// A number as it should be, or as only a broken predictor says it.
fn said(rng: &mut Stream, lies: bool, mean: f64) -> Estimate {
    const LIES: [f64; 10] = [
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        0.0,
        -1.0,
        1e300,
        1e-300,
        f64::MIN,
        // What could just be, but is not.
        9e3,
        1e-5,
    ];
    if lies && one_in(rng, 2) {
        let mut lie = || LIES[rng.below(LIES.len() as u64) as usize];
        return Estimate { mean: lie(), low: lie(), high: lie() };
    }
    Estimate { mean, low: 0.9 * mean, high: 1.1 * mean }
}

fn a_surface(rng: &mut Stream, job: &JobId, now: Timestamp) -> Surface {
    let lies = one_in(rng, 2);
    let mut points = Vec::new();
    for gpus in [1, 2, 4, 8, 16] {
        for clock in [None, Some(1_200), Some(900)] {
            for neighbours in [vec![], vec![class(rng)]] {
                if one_in(rng, 10) {
                    continue;
                }
                let rate = f64::from(gpus).sqrt();
                let steps_per_s = (!one_in(rng, 10)).then(|| said(rng, lies, rate));
                points.push(SurfacePoint {
                    gpus,
                    nodes: gpus.div_ceil(4),
                    cap_mw: None,
                    clock_mhz_max: clock.map(Frequency::from_mhz),
                    global_batch: None,
                    relative_speed: said(rng, lies, if neighbours.is_empty() { 1.0 } else { 0.8 }),
                    neighbours,
                    steps_per_s,
                    gpu_power_w: said(rng, lies, 200.0),
                });
            }
        }
    }
    Surface {
        job: job.clone(),
        predictor: PredictorId::new("physical").unwrap(),
        at_us: now,
        gpu_type: if one_in(rng, 20) { "h200" } else { "v100" }.to_owned(),
        windows: 3,
        basis: None,
        class: Some(class(rng)),
        utilization_gpu_percent: Some(if lies { 400.0 } else { 50.0 }),
        utilization_memory_percent: None,
        memory_mib_max: one_in(rng, 2).then(|| rng.below(60_000)),
        points,
        other_gpu_types: Vec::new(),
        probe: None,
    }
}

fn a_word_of_progress(rng: &mut Stream, world: &World, job: &JobId) -> Option<JobProgressed> {
    let record = &world.jobs[job];
    let share = record.placement.as_ref()?.shares.first()?;
    let node: NodeId = share.node.clone();
    Some(JobProgressed {
        job: job.clone(),
        node,
        attempt: record.attempt - u32::from(one_in(rng, 5) && record.attempt > 0),
        at_us: world.now,
        step: rng.below(10_000),
        steps_total: (!one_in(rng, 3)).then(|| rng.below(10_000)),
        epoch: Some(rng.below(20) as u32),
        steps_per_epoch: Some(rng.below(200)),
        steps_per_s: Some([1.0, 0.0, f64::NAN, -3.0][rng.below(4) as usize]),
    })
}

/// One second's worth of trouble.
fn trouble(
    rng: &mut Stream,
    mut kinds: Option<&mut Stream>,
    world: &mut World,
    accepted: &mut Vec<JobId>,
) {
    let node = NODES[rng.below(3) as usize];
    match rng.below(12) {
        0..3 => {
            let mut job = a_job(rng, accepted.len(), world.now);
            if let Some(kinds) = kinds.as_deref_mut()
                && one_in(kinds, 3)
            {
                let kind = if one_in(kinds, 2) { "p100" } else { "v100" };
                job.gpu_type = Some(kind.to_owned());
            }
            accepted.push(job.job.clone());
            // Killed before it answers, the placer is asked again until it does.
            if let Reply::Refused { error } = world.ask_submit(job) {
                assert_eq!(error, "no answer");
            }
        }
        3 if !accepted.is_empty() => {
            let job = &accepted[rng.below(accepted.len() as u64) as usize];
            world.ask_cancel(job.as_str());
        }
        4 => world.cut_off(node, true),
        5 | 6 => world.cut_off(node, false),
        7 => world.sick(node, rng.below(4) as u32, one_in(rng, 2)),
        8 => world.reboot(node),
        9 => world.kill_at = Some(world.writes + rng.below(6) as usize),
        10 => world.refuses_caps(node, one_in(rng, 2).then_some("no permission")),
        _ => world.away(1 + rng.below(30)),
    }
    let known: Vec<JobId> = world.jobs.keys().cloned().collect();
    for job in known {
        if one_in(rng, 4) {
            let mut surface = a_surface(rng, &job, world.now);
            if let Some(kinds) = kinds.as_deref_mut()
                && !one_in(kinds, 4)
            {
                let other = a_surface(kinds, &job, world.now);
                surface.other_gpu_types = vec![Surface { gpu_type: "p100".to_owned(), ..other }];
            }
            world.tell(Event::SurfaceKnown(Box::new(surface)));
        }
        if one_in(rng, 3)
            && let Some(word) = a_word_of_progress(rng, world, &job)
        {
            world.tell(Event::Progressed(word));
        }
    }
}

fn storm(seed: u64) -> Result<World, String> {
    let mut rng = Stream::new(seed, "storm");
    let mut world = World::new(NODES.len(), 4);
    world.policy = POLICIES[(seed % POLICIES.len() as u64) as usize];
    if !PACK.contains(&(world.policy)().name()) {
        world.tenants_max = 1;
    }
    world.config.ended_kept = usize::MAX;
    // A node is given up within a storm.
    (world.config.node_stale_after_ms, world.config.node_lost_after_ms) = (5_000, 20_000);
    world.config.nodes_expected = Some(3);
    world.config.attempts_max = u32::MAX;
    // In some storms one node has other cards, and some jobs must have these or the others.
    let mut kinds = seed.is_multiple_of(3).then(|| Stream::new(seed, "kinds"));
    if kinds.is_some() {
        world.is_of_kind("n2", "p100");
    }
    world.restart();
    world.weather = Some(Weather::of(seed));
    let mut accepted: Vec<JobId> = Vec::new();
    for _ in 0..STORM_S {
        trouble(&mut rng, kinds.as_mut(), &mut world, &mut accepted);
        world.pass(1);
    }
    world.weather = None;
    for node in NODES {
        world.cut_off(node, false);
        world.refuses_caps(node, None);
        (0..4).for_each(|gpu| world.sick(node, gpu, false));
    }
    let over = |world: &World| world.jobs.values().all(|record| record.phase.is_final());
    for _ in 0..CALM_S {
        if over(&world) && world.idle() && world.unanswered() == 0 {
            break;
        }
        world.pass(1);
    }
    let told = |what: String| Err(format!("seed {seed}: {what}\n{}", world.log.join("\n")));
    if let Some(alarm) = world.log.iter().find(|line| line.contains("breaks rules")) {
        return told(alarm.clone());
    }
    for job in &accepted {
        match world.jobs.get(job).map(|record| record.phase) {
            None => return told(format!("{job} is lost")),
            Some(JobPhase::Finished | JobPhase::Cancelled) => {}
            Some(phase) => return told(format!("{job} is {phase}: {:?}", world.jobs[job].reasons)),
        }
    }
    if world.unanswered() > 0 || !world.idle() {
        return told(format!("{} requests are open", world.unanswered()));
    }
    let left = |node: &&&str| !world.desired(node).jobs.is_empty();
    if let Some(node) = NODES.iter().find(left) {
        return told(format!("{node} has orders left"));
    }
    Ok(world)
}

#[test]
fn whatever_goes_wrong_nothing_accepted_is_lost() {
    let run = |seeds: std::ops::Range<u64>| {
        let mut failed: Vec<String> = Vec::new();
        let mut writes = 0;
        for seed in seeds {
            match std::panic::catch_unwind(|| storm(seed)) {
                Ok(Ok(world)) => writes += world.writes,
                Ok(Err(what)) => failed.push(what),
                Err(_) => failed.push(format!("seed {seed}: a rule of the world is broken, above")),
            }
        }
        (writes, failed)
    };
    let half = SEEDS / 2;
    let (writes, failed) = std::thread::scope(|scope| {
        let second = scope.spawn(move || run(half..SEEDS));
        let (writes, mut failed) = run(0..half);
        let (more, others) = second.join().unwrap();
        failed.extend(others);
        (writes + more, failed)
    });
    assert!(failed.is_empty(), "{} of {SEEDS} storms, the first: {}", failed.len(), failed[0]);
    assert!(writes > 100 * SEEDS as usize, "storms worth the name: {writes} writes");
}
