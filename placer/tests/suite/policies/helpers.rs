//! Small clusters, jobs of three classes, and plans as text.

use std::sync::Arc;

use crate::support::{Site, job_facts, node_facts, node_watts};
use wattle_common::job::GpuRequest;
use wattle_common::messages::{Surface, SurfacePoint};
use wattle_common::{Frequency, JobId};
use wattle_placer::{
    Decision, JobFacts, JobKey, NodeDecision, NodeFacts, Plan, Policy, Progress, Wakefulness, check,
};
use wattle_testkit::{exactly, workload};

/// Name, exclusive utilisation in per cent, peak memory in MiB.
const CLASSES: [(&str, f64, u64); 3] =
    [("light", 10.0, 2_000), ("middle", 45.0, 6_000), ("heavy", 95.0, 9_000)];

/// Relative speed of a job of one class with a co-tenant of another.
fn shared_speed(class: usize, other: usize) -> f64 {
    [[0.98, 0.95, 0.70], [0.96, 0.85, 0.50], [0.90, 0.60, 0.38]][class][other]
}

/// The speed-up of each doubling of GPUs.
const SCALING: [f64; 3] = [1.3, 1.6, 1.9];

/// Clock in megahertz, relative speed, watts; the first is the default setting.
const CLOCKS: [(Option<u32>, f64, f64); 3] =
    [(None, 1.0, 200.0), (Some(1_200), 0.95, 160.0), (Some(1_080), 0.85, 130.0)];

pub(crate) fn node(i: usize, gpus: u32) -> NodeFacts {
    let facts = node_facts(&format!("n{i}"), "v100", gpus, 16_384);
    NodeFacts { watts: Some(node_watts(40, 300, 30, 120)), ..facts }
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
    job_facts(name, GpuRequest::exactly(gpus))
}

/// A surface with every size of the job, exclusively at three clocks and with a co-tenant of each class.
pub(crate) fn surface(job: &JobId, class: usize, request: GpuRequest) -> Surface {
    let sizes = (request.min..=request.max)
        .filter(|n| n.is_power_of_two() || *n == request.min || *n == request.max);
    let mut points = Vec::new();
    for gpus in sizes {
        let speed = SCALING[class].powf(f64::from(gpus).log2());
        let point = |neighbour: Option<usize>, clock: usize| {
            let (clock_mhz, slower, watts) = CLOCKS[clock];
            SurfacePoint {
                nodes: 1,
                clock_mhz_max: clock_mhz.map(Frequency::from_mhz),
                neighbours: neighbour.map(|n| workload(CLASSES[n].0)).into_iter().collect(),
                steps_per_s: neighbour.is_none().then(|| exactly(speed * slower)),
                relative_speed: exactly(neighbour.map_or(slower, |n| shared_speed(class, n))),
                ..wattle_testkit::point(gpus, speed * slower, watts)
            }
        };
        points.extend((0..CLOCKS.len()).map(|clock| point(None, clock)));
        points.extend((0..CLASSES.len()).map(|other| point(Some(other), 0)));
    }
    Surface {
        class: Some(workload(CLASSES[class].0)),
        utilization_gpu_percent: Some(CLASSES[class].1),
        memory_mib_max: Some(CLASSES[class].2),
        ..wattle_testkit::surface(job.as_str(), "v100", points)
    }
}

/// The surface of a job arrives.
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

/// The job reports its steps, at one per second.
pub(crate) fn report(site: &mut Site, key: JobKey, step: u64, steps_total: u64) {
    let at = site.now();
    let steps_per_s = Some(1.0);
    let progress =
        Progress { at, step, steps_total: Some(steps_total), steps_per_s, ..Progress::default() };
    site.job_progressed(key, progress);
}

/// Solves, checks, applies, and solves again.
pub(crate) fn decide(site: &mut Site, policy: &dyn Policy) -> Plan {
    let plan = site.plan(policy);
    assert_eq!(check(site.input(), &plan), [], "{} made {plan:?}", policy.name());
    site.apply(&plan);
    let again = site.plan(policy);
    assert!(again.is_empty(), "{}: {plan:?} left {again:?} to do", policy.name());
    plan
}

/// Plans until nothing is left to do. Nearly always one plan suffices; a plan that undoes a co-location or
/// clears a block may leave an improvement to the next.
pub(crate) fn decide_until_empty(site: &mut Site, policy: &dyn Policy) {
    let mut plans = Vec::new();
    for _ in 0..4 {
        let plan = site.plan(policy);
        assert_eq!(check(site.input(), &plan), [], "{} made {plan:?}", policy.name());
        site.apply(&plan);
        if plan.is_empty() {
            return;
        }
        plans.push(plan);
    }
    panic!("{} does not converge: {plans:?}", policy.name());
}

/// Decides, with immediate stops, until a plan is empty.
/// The plans as text.
pub(crate) fn converge(site: &mut Site, policy: &dyn Policy) -> String {
    let mut text = String::new();
    for _ in 0..10 {
        let before = site.clone();
        let plan = decide(site, policy);
        let stopping = site.stopping();
        site.complete_stops();
        if plan.is_empty() || stopping.is_empty() {
            return text + &show(&before, &plan);
        }
        text += &show(&before, &Plan { blocked: None, ..plan });
    }
    panic!("{} does not converge: {text}", policy.name());
}

/// Completes all wake-ups.
pub(crate) fn wake(site: &mut Site) {
    let waking = |site: &Site| {
        let mut nodes = site.keyed_nodes();
        nodes.find(|(_, node)| node.wakefulness == Wakefulness::Waking).map(|(key, _)| key)
    };
    while let Some(key) = waking(site) {
        site.wakefulness_changed(key, Wakefulness::Awake);
    }
}

/// The plan as text.
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
            Decision::Confirm { .. } => "confirmed".to_owned(),
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
