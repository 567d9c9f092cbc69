//! The live placer, driven by the inputs of a simulated run; its nodes obey at once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wattle_common::job::{JobSpec, NodeShare, Placement};
use wattle_common::messages::{
    JobProgressed, JobRecord, LaunchState, LaunchedJob, LedgerEntry, NodeDesired, SetBudget,
    SubmitJob,
};
use wattle_common::{AdmissionId, Energy, JobId, Machine, NodeId, Power, Timestamp};
use wattle_placer::state::gpu_set::bits;
use wattle_placer::{Action, Config, Event, GpuSet, PersistedState, Placer, Progress};
use wattle_simulator::{Recording, RunOptions, Scenario, SimJob};
use wattle_testkit as testkit;
use wattle_world::{GpuModel, World};

use crate::lockstep::START;
use crate::lockstep::observed::{ObservedPolicy, Round};

/// When, which job, where or off where, and why.
pub(super) type Made = BTreeSet<(Timestamp, JobId, String, String)>;

/// No tick, lease or silence falls into a run: the trace alone makes rounds.
const CONFIG: &str = "cluster = \"main\"\naim = \"time\"\nnodes_expected = 2\ntick_ms = 300000000000\n\
    lease_ms = 300000000000\nround_delay_ms = 0\nnode_stale_after_ms = 300000000000\n\
    node_lost_after_ms = 300000000000\n";
const NATS: &str = "[nats]\nurl = \"nats://127.0.0.1:4222\"\n";

fn config() -> Config {
    // The key exists where the placer is built with its service.
    let with_nats = toml::from_str(&format!("{CONFIG}{NATS}"));
    with_nats.or_else(|_| toml::from_str(CONFIG)).unwrap()
}

/// The starts and stops of a simulated run.
pub(super) fn simulated(recording: &Recording) -> Made {
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
            let (on, from) = (placement(&placed.on), Timestamp::from_us(placed.from_us));
            let start = format!("placed on {on}");
            made.insert((from, job.id.clone(), start, placed.reason.to_string()));
            if let Some(reason) = &placed.stopped {
                let at = Timestamp::from_us(placed.until_us);
                made.insert((at, job.id.clone(), format!("taken off {on}"), reason.to_string()));
            }
        }
    }
    made
}

/// The live placer and its nodes.
struct Live<'r> {
    placer: Placer,
    recording: &'r Recording,
    gpu: GpuModel,
    /// Host power of a node.
    host: Power,
    desired: BTreeMap<NodeId, NodeDesired>,
    runs: BTreeMap<NodeId, BTreeMap<JobId, LaunchedJob>>,
    records: BTreeMap<JobId, JobRecord>,
    progress: BTreeMap<JobId, Progress>,
    surfaces: BTreeMap<(JobId, String), Timestamp>,
    made: Made,
    policy: String,
    reports: u64,
    requests: u64,
    /// Until when the ledger has entries; absent: no budget is in force.
    metered_us: Option<u64>,
}

/// Drives the live placer through `recording`, and returns its decisions and rounds.
pub(super) fn replay(
    world: &World,
    scenario: &Scenario,
    policy: &str,
    options: &RunOptions,
    recording: &Recording,
    rounds: &[Round],
) -> (Made, Vec<Round>) {
    let observed = ObservedPolicy::new(policy);
    let mut live = Live::new(world, recording, &observed, policy);
    let start = Timestamp::EPOCH + START;
    live.measure_idle_nodes(start);
    if let Some(budget) = options.budget.clone() {
        let request = SetBudget { budget, intensity: None };
        live.handle(start, Event::BudgetSet(0, Box::new(request)));
        live.metered_us = Some(start.as_us());
    }
    let last = recording.jobs.iter().filter_map(|job| job.finished_us).max().unwrap();
    for instant in rounds.chunk_by(|a, b| a.at == b.at) {
        let now = instant[0].at;
        live.pass(now);
        live.meter(now);
        for (i, round) in instant.iter().enumerate() {
            live.progress(now, round);
            if i == 0 {
                live.complete(now);
            }
            // Stopped jobs are reported after their checkpoint, and return to the queue.
            live.report(now);
            if i == 0 {
                scenario.jobs.iter().for_each(|job| live.submit(now, job));
            }
            live.surfaces(now, round);
            live.progress(now, round);
            live.wake(now);
        }
        if now.as_us() < last {
            live.converge(now);
        }
    }
    (live.made, observed.rounds())
}

impl<'r> Live<'r> {
    fn new(
        world: &World,
        recording: &'r Recording,
        observed: &ObservedPolicy,
        policy: &str,
    ) -> Self {
        let first = &recording.nodes[0];
        let gpu = world.gpu(&first.gpu_type).unwrap().clone();
        let start = Timestamp::EPOCH;
        let policy_here = Box::new(observed.clone());
        let placer = Placer::new(config(), policy_here, PersistedState::default(), start);
        let mut live = Live {
            placer,
            recording,
            host: world.host_power_of(&gpu, first.gpus),
            gpu,
            desired: BTreeMap::new(),
            runs: recording.nodes.iter().map(|node| (node.id.clone(), BTreeMap::new())).collect(),
            records: BTreeMap::new(),
            progress: BTreeMap::new(),
            surfaces: BTreeMap::new(),
            made: Made::new(),
            policy: policy.to_owned(),
            reports: 0,
            requests: 0,
            metered_us: None,
        };
        for node in &recording.nodes {
            let mut gpus: Vec<_> =
                (0..node.gpus).map(|gpu| testkit::applied_gpu(gpu, &node.gpu_type)).collect();
            for gpu in &mut gpus {
                gpu.memory_mib = Some(live.gpu.memory_mib);
                gpu.cap_mw_default = Some(live.gpu.cap_default);
                gpu.cap_mw_min = Some(live.gpu.cap_min);
                gpu.cap_mw_max = Some(live.gpu.cap_default);
            }
            let report = testkit::power_report(node.id.as_str(), start, gpus);
            live.handle(start, Event::PowerReported(report));
        }
        live.report(start);
        live
    }

    fn handle(&mut self, now: Timestamp, event: Event) {
        let mut out = Vec::new();
        self.placer.handle(now, event, &mut out);
        self.obey(out);
    }

    fn wake(&mut self, now: Timestamp) -> bool {
        let mut out = Vec::new();
        self.placer.wake(now, &mut out);
        let acts = !out.is_empty();
        self.obey(out);
        acts
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
                    let ordered: BTreeSet<&JobId> = desired.jobs.iter().map(|j| &j.job).collect();
                    runs.retain(|job, _| ordered.contains(job));
                    for job in &desired.jobs {
                        let state = match (job.stop, runs.get(&job.job)) {
                            (true, _) => LaunchState::STOPPED,
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
                        reason.policy == self.policy
                            && decided.iter().any(|text| reason.decision.starts_with(text))
                    });
                    let job = &record.spec.job;
                    self.made.extend(decisions.map(|reason| {
                        let why = reason.reason.clone();
                        let decision = reason.decision.split(" to continue").next();
                        (reason.at_us, job.clone(), decision.unwrap_or_default().to_owned(), why)
                    }));
                    self.records.insert(job.clone(), *record);
                }
                Action::Alarm(alarm) => panic!("{alarm}"),
                _ => {}
            }
        }
    }

    /// Wakes the placer until nothing is due at `now`, with reports in between.
    fn converge(&mut self, now: Timestamp) {
        for _ in 0..20 {
            let acts = self.wake(now);
            self.report(now);
            if !acts && self.next_wake().is_none_or(|at| at > now) {
                return;
            }
        }
        panic!("the placer does not converge at {now}");
    }

    fn next_wake(&self) -> Option<Timestamp> {
        self.placer.next_wake().map(|(at, _)| at)
    }

    /// Lets time pass to `until`, with the control steps and rounds that fall before it.
    fn pass(&mut self, until: Timestamp) {
        while let Some(at) = self.next_wake().filter(|at| *at < until) {
            self.meter(at);
            self.converge(at);
        }
    }

    /// The jobs that completed at `now` in the simulation report their last step and exit.
    fn complete(&mut self, now: Timestamp) {
        let recording = self.recording;
        let completed = |job: &&wattle_simulator::RecordedJob| job.finished_us == Some(now.as_us());
        for job in recording.jobs.iter().filter(completed) {
            if let Some(last) = self.progress.get(&job.id).copied() {
                let step = last.steps_total.unwrap_or(last.step);
                self.send_progress(now, &job.id, Progress { at: now, step, ..last });
            }
            for runs in self.runs.values_mut() {
                if let Some(run) = runs.get_mut(&job.id) {
                    run.state = LaunchState::exited(0);
                }
            }
        }
    }

    fn submit(&mut self, now: Timestamp, job: &SimJob) {
        if Timestamp::EPOCH + job.submit != now {
            return;
        }
        let spec = JobSpec {
            gpus: job.gpus,
            workload: Some(job.workload.clone()),
            exclusive: job.exclusive,
            consents_to_sharing: true,
            priority: job.priority,
            checkpoint_signal: job.can_stop.then(|| "SIGUSR1".to_owned()),
            deadline_at_us: job.deadline.map(|at| Timestamp::EPOCH + at),
            duration_ms_estimate: job.duration_estimate.map(|span| span.as_millis() as u64),
            time_limit_ms: job.time_limit.map(|span| span.as_millis() as u64),
            ..testkit::job_spec(job.id.as_str(), job.gpus.min)
        };
        self.requests += 1;
        self.handle(
            now,
            Event::Submitted(
                self.requests,
                AdmissionId::accepted(now, self.requests),
                Box::new(SubmitJob { spec, submission: None, user_proven: false }),
            ),
        );
    }

    /// The surfaces that are new in a round.
    fn surfaces(&mut self, now: Timestamp, round: &Round) {
        for (job, seen) in &round.jobs {
            for surface in &seen.surfaces {
                let key = (job.clone(), surface.gpu_type.clone());
                if self.surfaces.insert(key, surface.at_us) != Some(surface.at_us) {
                    self.handle(now, Event::SurfaceKnown(Box::new((**surface).clone())));
                }
            }
        }
    }

    /// The progress that is new in a round, with the first report of each observation.
    fn progress(&mut self, now: Timestamp, round: &Round) {
        for (job, seen) in &round.jobs {
            let Some(progress) = seen.progress else { continue };
            let last = self.progress.get(job).map_or(Timestamp::EPOCH, |last| last.at);
            if let Some((at, step)) = round.mark(job).filter(|(at, _)| *at > last) {
                self.send_progress(now, job, Progress { at, step, ..progress });
            }
            if self.progress.get(job) != Some(&progress) {
                self.send_progress(now, job, progress);
            }
        }
    }

    fn send_progress(&mut self, now: Timestamp, job: &JobId, progress: Progress) {
        let Some(record) = self.records.get(job) else { return };
        let Some(share) = record.placement.as_ref().and_then(|on| on.shares.first()) else {
            return;
        };
        let message = JobProgressed {
            job: job.clone(),
            admission: None,
            node: share.node.clone(),
            attempt: record.attempt,
            at_us: progress.at,
            step: progress.step,
            steps_total: progress.steps_total,
            epoch: progress.epoch,
            steps_per_epoch: progress.steps_per_epoch,
            steps_per_s: progress.steps_per_s,
        };
        self.progress.insert(job.clone(), progress);
        self.handle(now, Event::Progressed(message));
    }

    /// Ledger entries before the first submission show the power of hosts and idle GPUs.
    fn measure_idle_nodes(&mut self, start: Timestamp) {
        let span = Duration::from_secs(60);
        for node in &self.recording.nodes {
            let idle = vec![Some(self.gpu.idle.over(span)); node.gpus as usize];
            let host = self.host.over(span);
            let entry = LedgerEntry {
                energy_mj_gpus: idle,
                ..testkit::ledger_entry(node.id.as_str(), start - span, start, host)
            };
            self.handle(start, Event::EnergyMetered(Box::new(entry)));
        }
    }

    /// The cluster's energy since the last entry, at an instant that the recorded levels resolve. The
    /// first node's entry has the GPU energy of all nodes and all hosts but its own.
    fn meter(&mut self, now: Timestamp) {
        let Some(from_us) = self.metered_us.filter(|from_us| *from_us < now.as_us()) else {
            return;
        };
        let (start_us, span_us) = (self.recording.from_us, self.recording.level_us);
        if !(now.as_us() - start_us).is_multiple_of(8_000_000)
            || !8_000_000_u64.is_multiple_of(span_us)
        {
            return;
        }
        let index = |at_us: u64| ((at_us - start_us) / span_us) as usize;
        let levels = self.recording.levels.iter().skip(index(from_us));
        let levels = levels.take(index(now.as_us()) - index(from_us));
        let joules: f64 = levels.map(|level| level.power_w * span_us as f64 / 1e6).sum();
        let from = Timestamp::from_us(from_us);
        let host = self.host.over(now.since(from));
        let others = Energy::from_mj((joules * 1e3 - host.as_j() * 1e3).round() as u64);
        let node = self.recording.nodes[0].id.clone();
        let entry = LedgerEntry {
            energy_mj_gpus: vec![Some(others)],
            ..testkit::ledger_entry(node.as_str(), from, now, host)
        };
        self.metered_us = Some(now.as_us());
        self.handle(now, Event::EnergyMetered(Box::new(entry)));
    }
}
