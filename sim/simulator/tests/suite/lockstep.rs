//! The simulator and the live placer are the same decision code: on the same trace they make the same
//! decisions, at the same instants and for the same reasons.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use wattle_common::job::{NodeShare, Placement};
use wattle_common::messages::{LaunchState, LaunchedJob, NodeDesired, SubmitJob};
use wattle_common::{JobId, Machine, NodeId, Timestamp};
use wattle_placer::controller::probes::ProbeConfig;
use wattle_placer::state::gpu_set::bits;
use wattle_placer::{Action, Config, Event, GpuSet, PersistedState, Placer, policy};
use wattle_simulator::{Recording, RunOptions, Scenario, run_recorded, run_with, trace};
use wattle_testkit as testkit;
use wattle_world::World;

/// The live placer's clock when the trace begins.
const START: Timestamp = Timestamp::from_s(1_000);

/// When, which job, where or off where, and why.
type Made = BTreeSet<(Timestamp, JobId, String, String)>;

const TRACE: &str = "job_id,submit_s,duration_s,num_gpus,vc\n\
    a,0,9000,4,x\nb,60,1800,4,x\nc,120,7200,8,x\nd,180,600,1,x\ne,4000,30000,2,x\n\
    f,4000,1200,8,x\ng,9000,60,16,x\nh,20000,4000,3,x\n";

/// No tick, lease or silence falls into a run: the trace alone makes rounds.
const CONFIG: &str = "cluster = \"main\"\nnodes_expected = 2\ntick_ms = 1000000000000\n\
    lease_ms = 1000000000000\nround_delay_ms = 0\nnode_stale_after_ms = 1000000000000\n\
    node_lost_after_ms = 1000000000000\n";
const NATS: &str = "[nats]\nurl = \"nats://127.0.0.1:4222\"\n";

fn config() -> Config {
    let with_nats = format!("{CONFIG}{NATS}");
    // The key exists where the placer is built with its service.
    toml::from_str(&with_nats).or_else(|_| toml::from_str(CONFIG)).unwrap()
}

/// The decisions of a simulated run.
fn simulated(recording: &Recording) -> Made {
    let placement = |on: &GpuSet| Placement {
        shares: on
            .by_node
            .iter()
            .map(|part| NodeShare {
                node: recording.nodes[part.node.index()].id.clone(),
                gpus: bits(part.gpus).collect(),
            })
            .collect(),
    };
    let mut made = Made::new();
    for job in &recording.jobs {
        for placed in &job.placements {
            let (on, from) = (placement(&placed.on), START + micros(placed.from_us));
            let start = format!("placed on {on}");
            made.insert((from, job.id.clone(), start, placed.reason.to_string()));
            if let Some(reason) = &placed.stopped {
                let at = START + micros(placed.until_us);
                made.insert((at, job.id.clone(), format!("taken off {on}"), reason.to_string()));
            }
        }
    }
    made
}

fn micros(us: u64) -> Duration {
    Duration::from_micros(us)
}

/// The live placer, with nodes that obey at once.
struct Live {
    placer: Placer,
    desired: BTreeMap<NodeId, NodeDesired>,
    runs: BTreeMap<NodeId, BTreeMap<JobId, LaunchedJob>>,
    made: Made,
    name: String,
    reports: u64,
}

impl Live {
    fn new(name: &str, nodes: &[(NodeId, u32)]) -> Self {
        let placer = Placer::new(config(), policy(name).unwrap(), PersistedState::default(), START);
        let mut live = Self {
            placer,
            desired: BTreeMap::new(),
            runs: nodes.iter().map(|(node, _)| (node.clone(), BTreeMap::new())).collect(),
            made: Made::new(),
            name: name.to_owned(),
            reports: 0,
        };
        for (node, gpus) in nodes {
            let mut gpus: Vec<_> =
                (0..*gpus).map(|gpu| testkit::applied_gpu(gpu, "v100")).collect();
            gpus.iter_mut().for_each(|gpu| gpu.healthy = true);
            let report = testkit::power_report(node.as_str(), START, gpus);
            live.handle(START, Event::PowerReported(report));
        }
        live.report(START);
        live
    }

    fn handle(&mut self, now: Timestamp, event: Event) {
        let mut out = Vec::new();
        self.placer.handle(now, event, &mut out);
        self.obey(out);
    }

    /// Every launcher reports; reports of one instant are distinguished by a microsecond.
    fn report(&mut self, now: Timestamp) {
        let nodes: Vec<NodeId> = self.runs.keys().cloned().collect();
        for node in nodes {
            self.reports += 1;
            let generation = self.desired.get(&node).map_or(0, |desired| desired.generation);
            let jobs: Vec<LaunchedJob> = self.runs[&node].values().cloned().collect();
            let at = Timestamp::from_us(self.reports);
            let report = testkit::launch_report(node.as_str(), at, generation, jobs);
            self.handle(now, Event::LaunchReported(report));
        }
    }

    fn obey(&mut self, out: Vec<Action>) {
        for action in out {
            match action {
                Action::StoreDesired(desired) => {
                    let runs = self.runs.get_mut(&desired.node).unwrap();
                    let wanted: BTreeSet<&JobId> = desired.jobs.iter().map(|j| &j.job).collect();
                    runs.retain(|job, _| wanted.contains(job));
                    for job in &desired.jobs {
                        let state = match (job.stop, runs.get(&job.job)) {
                            (true, _) => LaunchState::Stopped,
                            (false, Some(run)) if run.attempt == job.attempt => continue,
                            (false, _) => LaunchState::Running,
                        };
                        let run = testkit::launched_job(
                            job.job.as_str(),
                            job.attempt,
                            job.gpus.clone(),
                            state,
                            desired.issued_at_us,
                        );
                        runs.insert(job.job.clone(), run);
                    }
                    self.desired.insert(desired.node.clone(), desired);
                }
                Action::StoreJob(record) => {
                    let decisions = record.reasons.iter().filter(|reason| {
                        let decided = ["placed on", "taken off"];
                        reason.policy == self.name
                            && decided.iter().any(|text| reason.decision.starts_with(text))
                    });
                    let job = &record.spec.job;
                    self.made.extend(decisions.map(|reason| {
                        let (decision, why) = (reason.decision.clone(), reason.reason.clone());
                        (reason.at_us, job.clone(), decision, why)
                    }));
                }
                Action::Alarm(alarm) => panic!("{alarm}"),
                _ => {}
            }
        }
    }

    /// Wakes the placer until nothing is due at `now`, with reports in between.
    fn settle(&mut self, now: Timestamp) {
        for _ in 0..20 {
            let mut out = Vec::new();
            self.placer.wake(now, &mut out);
            let idle = out.is_empty();
            self.obey(out);
            self.report(now);
            if idle && self.next_wake().is_none_or(|at| at > now) {
                return;
            }
        }
        panic!("the placer does not settle at {now}");
    }

    fn next_wake(&self) -> Option<Timestamp> {
        self.placer.next_wake().map(|(at, _)| at)
    }

    /// Lets time pass to `until`, with the rounds that fall before it.
    fn pass(&mut self, until: Timestamp) {
        while let Some(at) = self.next_wake().filter(|at| *at < until) {
            self.settle(at);
        }
    }

    fn complete(&mut self, job: &JobId) {
        for runs in self.runs.values_mut() {
            if let Some(run) = runs.get_mut(job) {
                run.state = LaunchState::Exited { code: 0 };
            }
        }
    }
}

/// The decisions of the live placer when jobs arrive and complete as they did in `recording`.
fn live(name: &str, recording: &Recording) -> Made {
    let nodes: Vec<_> = recording.nodes.iter().map(|node| (node.id.clone(), node.gpus)).collect();
    let mut live = Live::new(name, &nodes);
    let instants: BTreeSet<u64> = recording
        .jobs
        .iter()
        .flat_map(|job| [Some(job.submit_us), job.finished_us])
        .flatten()
        .collect();
    let mut requests = 0;
    for at_us in instants {
        let now = START + micros(at_us);
        live.pass(now);
        for job in recording.jobs.iter().filter(|job| job.finished_us == Some(at_us)) {
            live.complete(&job.id);
        }
        live.report(now);
        for job in recording.jobs.iter().filter(|job| job.submit_us == at_us) {
            let mut spec = testkit::job_spec(job.id.as_str(), job.request.min);
            spec.gpus = job.request;
            spec.workload = Some(job.workload.clone());
            spec.checkpoint_signal = Some("SIGUSR1".to_owned());
            requests += 1;
            live.handle(now, Event::Submitted(requests, Box::new(SubmitJob { spec })));
        }
        live.settle(now);
    }
    live.made
}

#[test]
fn simulator_and_live_placer_make_the_same_decisions() {
    let world = World::builtin();
    let trace = trace::parse("lockstep.csv", TRACE.as_bytes()).unwrap();
    let scenario = Scenario::from_trace(&world, &trace, &"2x8:v100".parse().unwrap(), 7).unwrap();
    for name in ["fifo", "tiresias", "tiresias:3600"] {
        let options = RunOptions::default();
        let (outcome, recording) = run_recorded(
            &world,
            &scenario,
            policy(name).unwrap().as_ref(),
            &options,
            &mut |_, _| {},
        )
        .unwrap();
        assert_eq!(outcome.finished, scenario.jobs.len(), "{name}");
        let (simulated, live) = (simulated(&recording), live(name, &recording));
        let only = |a: &Made, b: &Made| a.difference(b).cloned().collect::<Vec<_>>();
        assert_eq!(only(&simulated, &live), [], "{name}: decided in the simulator only");
        assert_eq!(only(&live, &simulated), [], "{name}: decided live only");
        if name != "fifo" {
            assert!(simulated.iter().any(|made| made.2.starts_with("taken off")), "{name}");
        }
    }
}

/// Probes that the predictor proposes are granted and carried out in a simulation, too.
#[test]
fn probes_run_in_a_simulation_where_they_are_enabled() {
    let world = World::builtin();
    let trace = trace::parse("lockstep.csv", TRACE.as_bytes()).unwrap();
    let scenario = Scenario::from_trace(&world, &trace, &"2x8:v100".parse().unwrap(), 7).unwrap();
    let enabled = ProbeConfig { enabled: true, time_share_max: 0.2, energy_kwh_per_day_max: 1e3 };
    let energy = |probe| {
        let options = RunOptions { probe, ..RunOptions::default() };
        let powerflow = policy("powerflow").unwrap();
        run_with(&world, &scenario, powerflow.as_ref(), &options).unwrap().energy_kwh
    };
    let probed = energy(enabled);
    assert_eq!(probed.to_bits(), energy(enabled).to_bits(), "a run repeats itself");
    assert_ne!(probed.to_bits(), energy(ProbeConfig::default()).to_bits());
}

/// The simulator has no way to a decision but the controller.
#[test]
fn the_engine_decides_only_through_the_controller() {
    const FORBIDDEN: [&str; 8] = [
        "wattle_placer::solve",
        "pipeline::",
        ".solve(",
        ".steer(",
        "min_power(",
        "enforced_cap(",
        "apply_to(",
        "judge(",
    ];
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut folders = vec![src];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let here = FORBIDDEN.iter().filter(|call| text.contains(**call));
            found.extend(here.map(|call| format!("{}: {call}", path.display())));
        }
    }
    assert_eq!(found, Vec::<String>::new(), "call the placer's controller instead");
}
