//! Randomised fault injection, by seed: messages lost, duplicated, delayed and reordered; jobs slow to
//! stop; nodes unreachable or rebooted, unhealthy GPUs, refused caps; the placer killed before any write; a
//! faulty predictor; nodes of a second GPU type and jobs that require it. In half of the runs also budgets,
//! power limits, jobs with slack, node sleep and failover ([`limits_under_faults`]). Under every policy:
//!
//! * the invariants of `world` hold at every step: no job runs twice, no GPU has too many jobs, attempt
//!   numbers and order generations never decrease;
//! * no policy makes an invalid plan, however wrong its inputs are;
//! * after the faults end, every accepted job reaches a final phase, every request gets a reply, and no
//!   node has orders left.

use wattle_common::id::PredictorId;
use wattle_common::job::{GpuRequest, JobPhase, JobSpec};
use wattle_common::messages::{Estimate, JobProgressed, Reply, Surface, SurfacePoint};
use wattle_common::rng::Stream;
use wattle_common::{Frequency, JobId, NodeId, Timestamp, WorkloadId};
use wattle_testkit::cases;

use crate::live::Event;
use crate::live::tests::limits_under_faults::{self, Limits};
use crate::live::tests::spec;
use crate::live::tests::world::World;
use crate::policies::NAMES;
use crate::{Policy, policy};

/// Duration of the faults, and the limit until all jobs have ended afterwards, s.
const FAULTS_S: u64 = 100;
const CALM_S: u64 = 900;
const NODES: [&str; 3] = ["n0", "n1", "n2"];

/// All policies of the placer.
const POLICIES: [fn() -> Box<dyn Policy>; NAMES.len()] = [
    || policy("fifo").unwrap(),
    || policy("backfill").unwrap(),
    || policy("fifo-packed").unwrap(),
    || policy("eaco").unwrap(),
    || policy("powerflow").unwrap(),
    || policy("greenflow").unwrap(),
    || policy("wattle").unwrap(),
];

/// Policies that co-locate jobs.
const PACK: [&str; 3] = ["fifo-packed", "eaco", "wattle"];

/// Faults of the message transport.
pub(super) struct Faults {
    rng: Stream,
    /// Probability of each fault per message.
    share: f64,
    /// Delayed messages.
    held: Vec<Event>,
}

impl Faults {
    fn of(seed: u64) -> Self {
        Self { rng: Stream::new(seed, "weather"), share: 0.15, held: Vec::new() }
    }
    /// Whether an order is delayed.
    pub(super) fn is_late(&mut self) -> bool {
        self.rng.unit() < self.share
    }
    /// Whether a stopping job is still writing its checkpoint.
    pub(super) fn is_slow(&mut self) -> bool {
        self.rng.unit() < 0.7
    }
    /// The messages that arrive now, in order of arrival.
    pub(super) fn transmit(&mut self, events: impl Iterator<Item = Event>) -> Vec<Event> {
        let mut arrives = Vec::new();
        for event in events {
            let fault = self.rng.unit() / self.share;
            if fault < 1.0 {
                continue; // lost
            } else if fault < 2.0 {
                self.held.push(event);
            } else if fault < 3.0 {
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

pub(super) fn one_in(rng: &mut Stream, n: u64) -> bool {
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

/// An estimate with mean `mean`, or one that only a faulty predictor makes.
fn estimate(rng: &mut Stream, faulty: bool, mean: f64) -> Estimate {
    const INVALID: [f64; 10] = [
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        0.0,
        -1.0,
        1e300,
        1e-300,
        f64::MIN,
        // Valid but wrong.
        9e3,
        1e-5,
    ];
    if faulty && one_in(rng, 2) {
        let mut invalid = || INVALID[rng.below(INVALID.len() as u64) as usize];
        return Estimate { mean: invalid(), low: invalid(), high: invalid() };
    }
    Estimate { mean, low: 0.9 * mean, high: 1.1 * mean }
}

fn a_surface(rng: &mut Stream, job: &JobId, now: Timestamp) -> Surface {
    let faulty = one_in(rng, 2);
    let mut points = Vec::new();
    for gpus in [1, 2, 4, 8, 16] {
        for clock in [None, Some(1_200), Some(900)] {
            for neighbours in [vec![], vec![class(rng)]] {
                if one_in(rng, 10) {
                    continue;
                }
                let rate = f64::from(gpus).sqrt();
                let steps_per_s = (!one_in(rng, 10)).then(|| estimate(rng, faulty, rate));
                points.push(SurfacePoint {
                    gpus,
                    nodes: gpus.div_ceil(4),
                    cap_mw: None,
                    clock_mhz_max: clock.map(Frequency::from_mhz),
                    global_batch: None,
                    relative_speed: estimate(
                        rng,
                        faulty,
                        if neighbours.is_empty() { 1.0 } else { 0.8 },
                    ),
                    neighbours,
                    steps_per_s,
                    gpu_power_w: estimate(rng, faulty, 200.0),
                });
            }
        }
    }
    Surface {
        job: job.clone(),
        admission: None,
        predictor: PredictorId::new("physical").unwrap(),
        at_us: now,
        gpu_type: if one_in(rng, 20) { "h200" } else { "v100" }.to_owned(),
        windows: 3,
        basis: None,
        class: Some(class(rng)),
        utilization_gpu_percent: Some(if faulty { 400.0 } else { 50.0 }),
        utilization_memory_percent: None,
        memory_mib_max: one_in(rng, 2).then(|| rng.below(60_000)),
        points,
        other_gpu_types: Vec::new(),
    }
}

fn a_progress_report(rng: &mut Stream, world: &World, job: &JobId) -> Option<JobProgressed> {
    let record = &world.jobs[job];
    let share = record.placement.as_ref()?.shares.first()?;
    let node: NodeId = share.node.clone();
    Some(JobProgressed {
        job: job.clone(),
        admission: None,
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

/// Injects the faults and messages of one second.
fn inject(
    rng: &mut Stream,
    mut types: Option<&mut Stream>,
    mut limits: Option<&mut Limits>,
    world: &mut World,
    accepted: &mut Vec<JobId>,
) {
    let node = NODES[rng.below(3) as usize];
    if let Some(limits) = limits.as_deref_mut() {
        limits.inject(world);
    }
    match rng.below(12) {
        0..3 => {
            let mut job = a_job(rng, accepted.len(), world.now);
            if let Some(types) = types.as_deref_mut()
                && one_in(types, 3)
            {
                let gpu_type = if one_in(types, 2) { "p100" } else { "v100" };
                job.gpu_type = Some(gpu_type.to_owned());
            }
            if let Some(limits) = limits.as_deref_mut() {
                limits.change_job(&mut job);
            }
            accepted.push(job.job.clone());
            // If the placer is killed before its reply, the request is repeated.
            if let Reply::Refused { error } = world.request_submit(job)
                && error != "no answer"
            {
                // The placer's clock is ahead.
                assert!(limits.is_some() && error.starts_with("its deadline"), "{error}");
                accepted.pop();
            }
        }
        3 if !accepted.is_empty() => {
            let job = &accepted[rng.below(accepted.len() as u64) as usize];
            world.request_cancel(job.as_str());
        }
        4 => world.cut_off(node, true),
        5 | 6 => world.cut_off(node, false),
        7 => world.set_unhealthy(node, rng.below(4) as u32, one_in(rng, 2)),
        8 => world.reboot(node),
        9 => world.kill_at = Some(world.writes + rng.below(6) as usize),
        10 => {
            let refuses = one_in(rng, 2) && limits.is_none_or(|limits| limits.permits_refusals());
            world.refuses_caps(node, refuses.then_some("no permission"));
        }
        _ => world.bus_outage(1 + rng.below(30)),
    }
    let known: Vec<JobId> = world.jobs.keys().cloned().collect();
    for job in known {
        if one_in(rng, 4) {
            let mut surface = a_surface(rng, &job, world.now);
            if let Some(types) = types.as_deref_mut()
                && !one_in(types, 4)
            {
                let other = a_surface(types, &job, world.now);
                surface.other_gpu_types = vec![Surface { gpu_type: "p100".to_owned(), ..other }];
            }
            world.deliver(Event::SurfaceKnown(Box::new(surface)));
        }
        if one_in(rng, 3)
            && let Some(report) = a_progress_report(rng, world, &job)
        {
            world.deliver(Event::Progressed(report));
        }
    }
}

fn run_with_faults(seed: u64) -> Result<World, String> {
    let mut rng = Stream::new(seed, "storm");
    let mut world = World::new(NODES.len(), 4);
    world.policy = POLICIES[(seed % POLICIES.len() as u64) as usize];
    if !PACK.contains(&(world.policy)().name()) {
        world.tenants_max = 1;
    }
    world.config.ended_kept = usize::MAX;
    // Short enough that nodes are lost during the faults.
    (world.config.node_stale_after_ms, world.config.node_lost_after_ms) = (5_000, 20_000);
    world.config.nodes_expected = Some(3);
    world.config.attempts_max = u32::MAX;
    // In a third of the runs one node has another GPU type, and some jobs require a type.
    let mut types = seed.is_multiple_of(3).then(|| Stream::new(seed, "kinds"));
    if types.is_some() {
        world.set_gpu_type("n2", "p100");
    }
    let mut limits = limits_under_faults::of(seed / POLICIES.len() as u64, seed);
    if let Some(limits) = &mut limits {
        limits.begin(&mut world, &NODES);
    }
    world.restart();
    let mut accepted: Vec<JobId> = Vec::new();
    if let Some(limits) = &mut limits {
        limits.set_power_limit(&mut world);
    }
    world.faults = Some(Faults::of(seed));
    for _ in 0..FAULTS_S {
        inject(&mut rng, types.as_mut(), limits.as_mut(), &mut world, &mut accepted);
        world.pass(1);
        if let Some(limits) = &mut limits {
            limits.check(&mut world);
        }
    }
    world.faults = None;
    if let Some(limits) = &mut limits {
        limits.end(&mut world);
    }
    for node in NODES {
        world.cut_off(node, false);
        world.refuses_caps(node, None);
        (0..4).for_each(|gpu| world.set_unhealthy(node, gpu, false));
    }
    let over = |world: &World| world.jobs.values().all(|record| record.phase.is_final());
    for _ in 0..CALM_S {
        if over(&world) && world.idle() && world.unanswered() == 0 {
            break;
        }
        world.pass(1);
        if let Some(limits) = &mut limits {
            limits.check(&mut world);
        }
    }
    let failed = |what: String| Err(format!("seed {seed}: {what}\n{}", world.log.join("\n")));
    let limits_are_set = limits.is_some();
    if let Some(what) = limits.and_then(Limits::violation) {
        return failed(what);
    }
    if let Some(alarm) = world.log.iter().find(|line| line.contains("is invalid and was discarded"))
    {
        return failed(alarm.clone());
    }
    for job in &accepted {
        match world.jobs.get(job).map(|record| record.phase) {
            // Its request was repeated after its deadline.
            None if limits_are_set && world.is_refused(job) => {}
            None => return failed(format!("{job} is lost")),
            Some(JobPhase::Finished | JobPhase::Cancelled) => {}
            Some(phase) => {
                return failed(format!("{job} is {phase}: {:?}", world.jobs[job].reasons));
            }
        }
    }
    if world.unanswered() > 0 || !world.idle() {
        return failed(format!("{} requests have no reply", world.unanswered()));
    }
    let left = |node: &&&str| !world.desired(node).jobs.is_empty();
    if let Some(node) = NODES.iter().find(left) {
        return failed(format!("{node} has orders left"));
    }
    Ok(world)
}

#[test]
fn accepted_jobs_survive_random_faults() {
    let run = |seeds: std::ops::Range<u64>| {
        let mut failed: Vec<String> = Vec::new();
        let mut writes = 0;
        for seed in seeds {
            match std::panic::catch_unwind(|| run_with_faults(seed)) {
                Ok(Ok(world)) => writes += world.writes,
                Ok(Err(what)) => failed.push(what),
                Err(_) => failed.push(format!("seed {seed}: an invariant is broken, see above")),
            }
        }
        (writes, failed)
    };
    let seeds = u64::from(cases(84, 1_000));
    let half = seeds / 2;
    let (writes, failed) = std::thread::scope(|scope| {
        let second = scope.spawn(move || run(half..seeds));
        let (writes, mut failed) = run(0..half);
        let (more, others) = second.join().unwrap();
        failed.extend(others);
        (writes + more, failed)
    });
    let first_lines: Vec<&str> = failed.iter().filter_map(|what| what.lines().next()).collect();
    let all = first_lines.join("\n");
    assert!(failed.is_empty(), "{} runs failed, the first: {}\n{all}", failed.len(), failed[0]);
    assert!(writes > 100 * seeds as usize, "too few writes for a meaningful test: {writes}");
}
