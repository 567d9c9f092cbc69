//! Small clusters, jobs of three classes, and plans as text.

use std::sync::Arc;
use std::time::Duration;

use crate::support::Site;
use wattle_common::job::GpuRequest;
use wattle_common::messages::{Estimate, Surface, SurfacePoint};
use wattle_common::{Frequency, JobId, NodeId, Power, Timestamp, WorkloadId};
use wattle_placer::{
    Decision, JobFacts, JobKey, NodeDecision, NodeFacts, NodeWatts, Plan, Policy, Progress, State,
    Wakefulness, check,
};

/// Name, busy share alone in per cent, peak memory in MiB.
const CLASSES: [(&str, f64, u64); 3] =
    [("light", 10.0, 2_000), ("middle", 45.0, 6_000), ("heavy", 95.0, 9_000)];

/// How fast a job of one class runs beside one of another.
fn beside(class: usize, other: usize) -> f64 {
    [[0.98, 0.95, 0.70], [0.96, 0.85, 0.50], [0.90, 0.60, 0.38]][class][other]
}

/// What each doubling of its GPUs makes of a job's speed.
const SCALING: [f64; 3] = [1.3, 1.6, 1.9];

/// Clock in megahertz, relative speed, watts: the first is as the site sets cards.
const CLOCKS: [(Option<u32>, f64, f64); 3] =
    [(None, 1.0, 200.0), (Some(1_200), 0.95, 160.0), (Some(1_080), 0.85, 130.0)];

pub(crate) fn node(i: usize, gpus: u32) -> NodeFacts {
    let id = NodeId::new(&format!("n{i}")).unwrap();
    NodeFacts {
        id,
        gpu_type: "v100".into(),
        gpus,
        memory_mib: 16_384,
        healthy: u64::MAX,
        watts: Some(NodeWatts {
            card_idle: Power::from_mw(40_000),
            host: Power::from_mw(300_000),
            asleep: Power::from_mw(30_000),
            wakes_in: Duration::from_secs(120),
        }),
    }
}

pub(crate) fn cluster(sizes: &[u32]) -> Site {
    let mut site = Site::new();
    for (i, &gpus) in sizes.iter().enumerate() {
        site.node_known(node(i, gpus));
    }
    site.inventory_known(true);
    site
}

pub(crate) fn facts(name: &str, gpus: u32) -> JobFacts {
    JobFacts {
        id: JobId::new(name).unwrap(),
        workload: None,
        request: GpuRequest::exactly(gpus),
        exclusive: false,
        priority: 0,
        can_stop: true,
        deadline: None,
        slack: None,
        duration_alone: None,
        memory_mib_max: None,
        gpu_type: None,
        submitted_at: Timestamp::EPOCH,
    }
}

/// A surface of every size that the job may have, alone under three clocks and beside each class.
pub(crate) fn surface(job: &JobId, class: usize, request: GpuRequest) -> Surface {
    let exactly = |mean| Estimate { mean, low: mean, high: mean };
    let sizes = (request.min..=request.max)
        .filter(|n| n.is_power_of_two() || *n == request.min || *n == request.max);
    let mut points = Vec::new();
    for gpus in sizes {
        let speed = SCALING[class].powf(f64::from(gpus).log2());
        let point = |neighbour: Option<usize>, clock: usize| {
            let (clock_mhz, slower, watts) = CLOCKS[clock];
            SurfacePoint {
                gpus,
                nodes: 1,
                cap_mw: None,
                clock_mhz_max: clock_mhz.map(Frequency::from_mhz),
                global_batch: None,
                neighbours: neighbour
                    .map(|n| WorkloadId::new(CLASSES[n].0).unwrap())
                    .into_iter()
                    .collect(),
                steps_per_s: neighbour.is_none().then(|| exactly(speed * slower)),
                relative_speed: exactly(neighbour.map_or(slower, |n| beside(class, n))),
                gpu_power_w: exactly(watts),
            }
        };
        points.extend((0..CLOCKS.len()).map(|clock| point(None, clock)));
        points.extend((0..CLASSES.len()).map(|other| point(Some(other), 0)));
    }
    Surface {
        job: job.clone(),
        predictor: "test".parse().unwrap(),
        at_us: Timestamp::EPOCH,
        gpu_type: "v100".into(),
        windows: 3,
        basis: None,
        class: Some(WorkloadId::new(CLASSES[class].0).unwrap()),
        utilization_gpu_percent: Some(CLASSES[class].1),
        utilization_memory_percent: None,
        memory_mib_max: Some(CLASSES[class].2),
        other_gpu_types: Vec::new(),
        probe: None,
        points,
    }
}

/// Somebody says what is to be expected of a job.
pub(crate) fn learn(site: &mut Site, key: JobKey, class: usize) {
    let facts = site.job(key).unwrap().facts.clone();
    site.surface_known(key, Arc::new(surface(&facts.id, class, facts.request)));
}

pub(crate) fn arrive(site: &mut Site, facts: JobFacts, class: Option<usize>) -> JobKey {
    let key = site.job_arrived(facts);
    if let Some(class) = class {
        learn(site, key, class);
    }
    key
}

/// The job has done so many of so many steps, and does one a second.
pub(crate) fn report(site: &mut Site, key: JobKey, step: u64, steps_total: u64) {
    let at = site.now();
    let steps_per_s = Some(1.0);
    let said =
        Progress { at, step, steps_total: Some(steps_total), steps_per_s, ..Progress::default() };
    site.job_progressed(key, said);
}

/// Solves, checks, applies, and solves again.
pub(crate) fn decide(site: &mut Site, policy: &dyn Policy) -> Plan {
    let plan = policy.solve(site.input());
    assert_eq!(check(site.input(), &plan), [], "{} made {plan:?}", policy.name());
    site.apply(&plan);
    let again = policy.solve(site.input());
    assert!(again.is_empty(), "{}: {plan:?} left {again:?} to do", policy.name());
    plan
}

/// Decides, and lets everybody who is asked to stop do so at once, until there is nothing to do.
/// The plans as text.
pub(crate) fn settle(site: &mut Site, policy: &dyn Policy) -> String {
    let mut text = String::new();
    for _ in 0..10 {
        let before = site.clone();
        let plan = decide(site, policy);
        let stopping = stopping(site);
        stopping.iter().for_each(|&key| site.job_stopped(key));
        if plan.is_empty() || stopping.is_empty() {
            return text + &show(&before, &plan);
        }
        text += &show(&before, &Plan { blocked: None, ..plan });
    }
    panic!("{} does not come to rest: {text}", policy.name());
}

/// Whoever wakes is awake.
pub(crate) fn wake(site: &mut Site) {
    let waking = |site: &Site| {
        let mut nodes = site.keyed_nodes();
        nodes.find(|(_, node)| node.wakefulness == Wakefulness::Waking).map(|(key, _)| key)
    };
    while let Some(key) = waking(site) {
        site.node_is(key, Wakefulness::Awake);
    }
}

/// Who was asked to stop and holds its GPUs still.
pub(crate) fn stopping(site: &Site) -> Vec<JobKey> {
    let stops = site.running().filter(|(_, job)| matches!(job.state, State::Stopping { .. }));
    stops.map(|(key, _)| key).collect()
}

/// The plan as text: who goes where, and why.
pub(crate) fn show(site: &Site, plan: &Plan) -> String {
    let name =
        |key: JobKey| site.job(key).map_or("(gone)".to_owned(), |job| job.facts.id.to_string());
    let mut text = String::new();
    for decision in &plan.decisions {
        let what = match decision {
            Decision::Start { on, observe, setting, .. } => {
                let set =
                    if setting.is_default() { String::new() } else { format!(" at {setting}") };
                format!(
                    "on {}{set}{}",
                    site.placement(on),
                    if *observe { ", observed" } else { "" }
                )
            }
            Decision::Undo { .. } => "undone".to_owned(),
            Decision::Stop { next_gpus: None, .. } => "stopped".to_owned(),
            Decision::Stop { next_gpus: Some(gpus), .. } => format!("stopped for {gpus}"),
            Decision::Set { setting, .. } => format!("set to {setting}"),
            Decision::Settle { .. } => "settled".to_owned(),
            Decision::Reject { .. } => "rejected".to_owned(),
        };
        text += &format!("{} {what}: {}\n", name(decision.job()), decision.reason());
    }
    for decision in &plan.nodes {
        let id = &site.node(decision.node()).facts.id;
        text += &match decision {
            NodeDecision::Sleep { reason, .. } => format!("{id} sleeps: {reason}\n"),
            NodeDecision::Wake { reason, .. } => format!("{id} wakes: {reason}\n"),
        };
    }
    if let Some(blocked) = &plan.blocked {
        text += &format!("{} waits: {}\n", name(blocked.job), blocked.reason);
    }
    text
}
