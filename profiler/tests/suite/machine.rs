//! The profiler's machine on a node in memory: windows, ledger, progress and faults.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use wattle_common::bounds::check_ledger_entry;
use wattle_common::job::{JobPhase, JobSpec, NodeShare, Placement};
use wattle_common::messages::{
    JobProcesses, JobRecord, JobWindow, LaunchReport, LaunchState, LaunchedJob, LedgerEntry,
    NodeSummary,
};
use wattle_common::progress::Progress;
use wattle_common::units::Energy;
use wattle_common::{GpuIndex, JobId, Machine, NodeId, Power, Timestamp};
use wattle_gpu::fake::{FakeDriver, FaultMode};
use wattle_gpu::{Driver, ProcessReading};
use wattle_profiler::{
    Action, Event, GpuFacts, ProcessOrigin, ProfilerMachine, SampledGpu, Sender, Settings, State,
};
use wattle_testkit as kit;

fn id(text: &str) -> JobId {
    kit::job(text)
}

fn node_id() -> NodeId {
    kit::node("n0")
}

fn settings() -> Settings {
    Settings {
        idle: Some(Power::from_w(40)),
        host_power: Power::from_w(200),
        ..Settings::default()
    }
}

/// The origin of a process that leads a session.
fn origin(pid: u32) -> Arc<ProcessOrigin> {
    Arc::new(ProcessOrigin { sessions: vec![pid, 1], cgroups: vec![], slurm_jobs: vec![] })
}

/// A node with GPUs of given power and a bus that can be absent.
struct Node {
    machine: ProfilerMachine,
    driver: FakeDriver,
    /// Power of each GPU; its counter follows.
    draws: Vec<Power>,
    now: Timestamp,
    jobs: BTreeMap<JobId, (u32, Vec<GpuIndex>)>,
    processes: BTreeMap<GpuIndex, Vec<(u32, u8)>>,
    bus: bool,
    file: Option<State>,
    windows: Vec<JobWindow>,
    /// The first entry of each id, as in JetStream.
    ledger: BTreeMap<Timestamp, LedgerEntry>,
    summaries: Vec<NodeSummary>,
    batches: Vec<wattle_common::messages::TelemetryBatch>,
    progress: Vec<wattle_common::messages::JobProgressed>,
}

impl Node {
    fn new(gpus: u32) -> Self {
        let mut driver = FakeDriver::v100s(gpus);
        for tracker in &mut driver.gpus {
            tracker.reading.energy_total = Some(Energy::from_j(1_000));
        }
        let mut node = Self {
            machine: ProfilerMachine::new(node_id(), settings(), None, None),
            driver,
            draws: vec![Power::from_w(40); gpus as usize],
            now: Timestamp::from_s(1_000),
            jobs: BTreeMap::new(),
            processes: BTreeMap::new(),
            bus: true,
            file: None,
            windows: Vec::new(),
            ledger: BTreeMap::new(),
            summaries: Vec::new(),
            batches: Vec::new(),
            progress: Vec::new(),
        };
        node.find();
        node.launch();
        node
    }

    fn find(&mut self) {
        let facts = |(gpu, tracker): (u32, &wattle_gpu::fake::FakeGpu)| GpuFacts {
            gpu,
            uuid: tracker.info.uuid.clone(),
            gpu_type: tracker.info.gpu_type.clone(),
        };
        self.event(Event::GpusFound((0..).zip(&self.driver.gpus).map(facts).collect()));
    }

    /// A kill and a restart.
    fn crash(&mut self) {
        self.machine = ProfilerMachine::new(node_id(), settings(), self.file.clone(), None);
        self.find();
        self.launch();
        for job in self.jobs.keys().cloned().collect::<Vec<_>>() {
            self.record(&job);
        }
    }

    fn event(&mut self, event: Event) {
        let mut out = Vec::new();
        self.machine.handle(self.now, event, &mut out);
        self.take(out);
    }

    fn take(&mut self, out: Vec<Action>) {
        for action in out {
            match action {
                Action::StoreLedger(entry) => {
                    let from = entry.from_us;
                    if self.bus {
                        self.ledger.entry(from).or_insert(entry);
                    }
                    self.event(Event::LedgerStored { from, stored: self.bus });
                }
                Action::SaveState(state) => self.file = Some(state),
                Action::StoreWindow(window) => self.windows.push(*window),
                Action::PublishSummary(summary) => self.summaries.push(summary),
                Action::PublishBatch(batch) => self.batches.push(batch),
                Action::PublishProgress(progress) => self.progress.push(progress),
                Action::Log(_) => {}
            }
        }
    }

    fn place(&mut self, job: &str, pid: u32, gpus: &[GpuIndex]) {
        let job = id(job);
        self.jobs.insert(job.clone(), (pid, gpus.to_vec()));
        for gpu in gpus {
            self.processes.entry(*gpu).or_default().push((pid, 50));
        }
        self.launch();
        self.record(&job);
    }

    fn remove(&mut self, job: &str) {
        if let Some((pid, _)) = self.jobs.remove(&id(job)) {
            for on in self.processes.values_mut() {
                on.retain(|(other, _)| *other != pid);
            }
        }
        self.launch();
    }

    fn launch(&mut self) {
        let jobs = self.jobs.iter().map(|(job, (pid, gpus))| LaunchedJob {
            job: job.clone(),
            attempt: 1,
            gpus: gpus.clone(),
            state: LaunchState::Running,
            processes: Some(JobProcesses::Session(*pid)),
            since_us: self.now,
            log_path: String::new(),
        });
        let report = LaunchReport {
            instance: String::new(),
            node: node_id(),
            at_us: self.now,
            observed_generation: 1,
            has_ended: false,
            site: None,
            jobs: jobs.collect(),
        };
        self.event(Event::LaunchReported(report));
    }

    fn record(&mut self, job: &JobId) {
        let (_, gpus) = &self.jobs[job];
        let share = NodeShare { node: node_id(), gpus: gpus.clone() };
        let spec = JobSpec {
            workload: Some(kit::workload("resnet50")),
            ..kit::job_spec(job.as_str(), gpus.len() as u32)
        };
        let record = JobRecord {
            placement: Some(Placement { shares: vec![share] }),
            ..kit::job_record(spec, JobPhase::Running)
        };
        self.event(Event::JobRecorded(Box::new(record)));
    }

    /// Samples at 10 Hz for `seconds`; jobs report at `pace` (steps per second) each second.
    fn run(&mut self, seconds: u64, pace: &[(&str, u64)]) {
        for tick in 1..=seconds * 10 {
            self.tick();
            if tick % 10 == 0 {
                let second = self.now.as_us() / 1_000_000;
                for (job, per_s) in pace {
                    self.line(&format!("job={job} step={} steps_per_epoch=1000", second * per_s));
                }
            }
        }
    }

    fn tick(&mut self) {
        self.sampled(Duration::from_millis(100));
    }

    /// The GPUs are read, `span` after the last time.
    fn sampled(&mut self, span: Duration) {
        self.now = self.now + span;
        for (tracker, draw) in self.driver.gpus.iter_mut().zip(&self.draws) {
            tracker.reading.power = Some(*draw);
            if let Some(total) = &mut tracker.reading.energy_total {
                *total += draw.over(span);
            }
        }
        let samples = (0..self.driver.gpus.len() as u32).map(|gpu| self.sample(gpu)).collect();
        self.event(Event::Sampled { at: self.now, gpus: samples });
    }

    fn sample(&mut self, gpu: GpuIndex) -> SampledGpu {
        let on = self.processes.get(&gpu).cloned().unwrap_or_default();
        let process = |(pid, busy): &(u32, u8)| ProcessReading {
            pid: *pid,
            memory_mib: Some(1_000),
            utilization_gpu_percent: Some(*busy),
        };
        let tracker = &mut self.driver.gpus[gpu as usize];
        tracker.reading.processes = Some(on.iter().map(process).collect());
        tracker.reading.utilization_gpu_percent =
            Some(on.iter().map(|(_, busy)| *busy).sum::<u8>().min(100));
        SampledGpu {
            gpu,
            reading: self.driver.read(gpu).map_err(|error| error.to_string()),
            origins: on.iter().map(|(pid, _)| origin(*pid)).collect(),
        }
    }

    fn line(&mut self, text: &str) {
        let line = Progress::parse(text.as_bytes()).expect("a progress line");
        self.event(Event::Progressed { at: self.now, line, sender: Sender::root() });
    }

    /// A line of a process of user 1,000 in this session.
    fn line_from(&mut self, session: u32, text: &str) {
        let line = Progress::parse(text.as_bytes()).expect("a progress line");
        let origin = ProcessOrigin { sessions: vec![session], cgroups: vec![], slurm_jobs: vec![] };
        let sender = Sender { uid: Some(1_000 + session), origin };
        self.event(Event::Progressed { at: self.now, line, sender });
    }

    fn of<'a>(&'a self, job: &'a str) -> impl Iterator<Item = &'a JobWindow> {
        self.windows.iter().filter(move |window| window.job.as_str() == job)
    }
}

#[test]
fn an_exclusive_job_is_measured() {
    let mut node = Node::new(2);
    node.run(5, &[]);
    node.draws[0] = Power::from_w(250);
    node.place("a", 100, &[0]);
    node.run(120, &[("a", 20)]);
    let windows: Vec<&JobWindow> = node.of("a").collect();
    assert!(windows.len() >= 4, "{}", windows.len());
    let window = windows[1];
    assert_eq!(window.gpu_type, "v100");
    assert_eq!(window.until_us.since(window.from_us), Duration::from_secs(15));
    assert_eq!(window.power_mw_gpus, Some(Power::from_w(250)));
    assert_eq!(window.power_mw_job, Some(Power::from_w(250)), "an exclusive job gets all energy");
    assert_eq!(window.energy_mj_gpus, Some(Energy::from_j(250 * 15)));
    assert!((window.steps_per_s.unwrap() - 20.0).abs() < 0.01, "{:?}", window.steps_per_s);
    assert!(window.steps_per_s_error.unwrap() < 0.02);
    assert_eq!(window.utilization_gpu_percent_job, Some(50.0));
    assert_eq!(window.workload.as_ref().unwrap().as_str(), "resnet50");
    assert_eq!((window.gpus_total, window.nodes_total), (1, 1));
    assert!(window.early);
    // The energy of an idle GPU belongs to no job.
    let entry = node.ledger.values().next().unwrap();
    assert_eq!(entry.jobs.len(), 1);
    assert!(entry.energy_mj_gpus[1].is_some());
}

#[test]
fn the_energy_of_two_tenants_is_split() {
    let mut node = Node::new(1);
    node.run(3, &[]);
    node.draws[0] = Power::from_w(240);
    node.place("a", 100, &[0]);
    node.place("b", 200, &[0]);
    node.processes.insert(0, vec![(100, 60), (200, 20)]);
    node.run(40, &[("a", 10), ("b", 5)]);
    let (a, b) = (node.of("a").next().unwrap(), node.of("b").next().unwrap());
    // 240 W, 40 of them idle: 200 by 60 to 20, and 20 each.
    assert_eq!(a.power_mw_job, Some(Power::from_w(170)));
    assert_eq!(b.power_mw_job, Some(Power::from_w(70)));
    assert_eq!(a.power_mw_gpus, Some(Power::from_w(240)));
    assert_eq!(a.neighbours[0].job, id("b"));
    assert_eq!(b.neighbours[0].job, id("a"));
    assert_eq!(a.utilization_gpu_percent_job, Some(60.0));
    let last = node.summaries.last().unwrap();
    assert_eq!(last.gpus[0].jobs, [id("a"), id("b")]);
    let powers: Vec<_> =
        last.jobs.iter().map(|job| (job.job.clone(), job.power_mw_mean.unwrap())).collect();
    assert_eq!(powers, [(id("a"), Power::from_w(170)), (id("b"), Power::from_w(70))]);
    // The open interval of the ledger, from its start to the summary.
    let open = last.at_us.since(last.ledger_from_us.unwrap()).as_secs_f64();
    let a = last.jobs[0].energy_mj_open.as_j();
    assert!(a > 0.0 && a <= 170.0 * open, "{a} J in {open} s");
}

#[test]
fn the_power_of_a_job_does_not_depend_on_when_a_summary_falls_between_late_readings() {
    let mut node = Node::new(1);
    node.draws[0] = Power::from_w(240);
    node.place("a", 100, &[0]);
    // Readings are late by up to two seconds, summaries are on time.
    for span_ms in [100, 900, 300, 1_900, 150, 600, 1_400, 50].repeat(4) {
        let read_at = node.now + Duration::from_millis(span_ms);
        while let Some((due, _)) = node.machine.next_wake().filter(|(due, _)| *due < read_at) {
            let mut out = Vec::new();
            node.machine.wake(due, &mut out);
            node.take(out);
        }
        node.sampled(Duration::from_millis(span_ms));
    }
    let powers = node.summaries.iter().flat_map(|summary| &summary.jobs);
    let powers: Vec<_> = powers.filter_map(|job| job.power_mw_mean).collect();
    assert!(powers.len() > 10, "{powers:?}");
    assert!(powers.iter().all(|power| *power == Power::from_w(240)), "{powers:?}");
}

#[test]
fn the_end_of_an_early_epoch_closes_a_window() {
    let mut node = Node::new(1);
    node.place("a", 100, &[0]);
    // Epochs of 1000 steps at 100 steps per second: one in 10 s, shorter than an early window.
    node.run(11, &[]);
    node.now = Timestamp::from_s(2_000);
    let first = node.windows.len();
    for second in 0..40u64 {
        for _ in 0..10 {
            node.tick();
        }
        node.line(&format!("job=a step={} steps_per_epoch=1000", (second + 1) * 100));
    }
    let lengths: Vec<u64> =
        node.windows[first..].iter().map(|w| w.until_us.since(w.from_us).as_secs()).collect();
    assert!(lengths.contains(&10), "{lengths:?}");
    // Each epoch is published at once.
    let epochs: Vec<Option<u32>> = node.progress.iter().map(|p| p.epoch).collect();
    for epoch in 1..=4 {
        assert!(epochs.contains(&Some(epoch)), "{epochs:?}");
    }
    let late = node.progress.last().unwrap();
    assert!((late.steps_per_s.unwrap() - 100.0).abs() < 1.0);
}

#[test]
fn progress_of_other_processes_is_ignored() {
    let mut node = Node::new(2);
    // Before the launcher's report, a process of another job claims progress.
    node.line_from(200, "job=a step=1000000");
    node.place("a", 100, &[0]);
    node.place("b", 200, &[1]);
    node.line_from(200, "job=a step=2000000");
    assert_eq!(node.progress, [], "{:?}", node.progress);
    node.line_from(100, "job=a step=7");
    node.line_from(200, "job=b step=8");
    let steps: Vec<(&str, u64)> = node.progress.iter().map(|p| (p.job.as_str(), p.step)).collect();
    assert_eq!(steps, [("a", 7), ("b", 8)]);
}

#[test]
fn the_rate_of_a_job_without_reports_is_detected() {
    let mut node = Node::new(2);
    node.place("silent", 100, &[0]);
    node.place("speaks", 200, &[1]);
    let mut rng = wattle_common::rng::Stream::new(3, "instants");
    // Sampled with the jitter of the service. Both work 0.7 of each 0.9 s.
    let begin = node.now;
    for tick in 1..=1_200_u64 {
        let at = begin + Duration::from_micros(100_000 * tick + rng.below(50_000));
        let works = (at.since(begin).as_secs_f64() / 0.9).fract() < 0.75;
        node.draws = vec![Power::from_w(if works { 240 } else { 90 }); 2];
        let busy = if works { 95 } else { 5 };
        node.processes.insert(0, vec![(100, busy)]);
        node.processes.insert(1, vec![(200, busy)]);
        node.sampled(at.since(node.now));
        if tick % 10 == 0 {
            node.line(&format!("job=speaks step={} global_batch=256", tick / 3));
        }
    }
    let silent: Vec<&JobWindow> = node.of("silent").collect();
    assert!(silent.len() >= 4, "{}", silent.len());
    for window in silent {
        assert!(window.steps_inferred);
        let rate = window.steps_per_s.unwrap();
        assert!((rate * 0.9 - 1.0).abs() < 0.02, "{rate}");
        assert!((0.005..0.1).contains(&window.steps_per_s_error.unwrap()));
        assert_eq!((window.steps, window.step, window.global_batch), (None, None, None));
    }
    // From its first report on, the reported rate counts.
    let spoken = node.of("speaks").last().unwrap();
    assert!(!spoken.steps_inferred);
    assert!((spoken.steps_per_s.unwrap() - 3.33).abs() < 0.1);
    assert_eq!(spoken.global_batch, Some(256));
}

#[test]
fn a_settled_job_has_long_windows() {
    let mut node = Node::new(1);
    node.place("a", 100, &[0]);
    node.run(400, &[("a", 50)]);
    let last = node.of("a").last().unwrap();
    assert!(!last.early);
    assert_eq!(last.until_us.since(last.from_us), Duration::from_secs(60));
}

#[test]
fn missing_readings_stay_missing() {
    let mut node = Node::new(1);
    let reading = &mut node.driver.gpus[0].reading;
    (reading.energy_total, reading.clock, reading.cap) = (None, None, None);
    node.place("a", 100, &[0]);
    node.run(61, &[]);
    let window = node.of("a").next().unwrap();
    assert_eq!((window.clock_mhz_mean, window.cap_mw, window.steps_per_s), (None, None, None));
    assert_eq!(window.utilization_memory_percent, None);
    // No counter, but power: integrated, exactly.
    let span = window.until_us.since(window.from_us);
    assert_eq!(window.energy_mj_gpus, Some(Power::from_w(40).over(span)));
    let sample = &node.batches[0].samples[0];
    assert_eq!((sample.energy_mj, sample.clock_mhz, sample.cap_mw), (None, None, None));
}

#[test]
fn one_lost_gpu_does_not_affect_the_others() {
    let mut node = Node::new(2);
    node.place("a", 100, &[0]);
    node.place("b", 200, &[1]);
    node.run(20, &[]);
    node.driver.gpus[0].fault = FaultMode::Lost;
    let (a, b) = (node.of("a").count(), node.of("b").count());
    node.run(40, &[]);
    let summary = node.summaries.last().unwrap();
    assert!(summary.gpus[0].error.as_ref().unwrap().contains("lost"));
    assert_eq!(summary.gpus[0].power_mw_mean, None);
    assert_eq!(summary.gpus[1].error, None);
    assert_eq!(summary.readings_failed, 10);
    // Its window was closed at the loss, and no other was opened.
    assert_eq!(node.of("a").count(), a + usize::from(node.of("a").count() > a));
    assert!(node.of("b").count() > b);
    node.driver.gpus[0].fault = FaultMode::None;
    let until = node.now;
    node.run(40, &[]);
    assert!(node.of("a").any(|window| window.from_us > until));
    assert_eq!(node.summaries.last().unwrap().gpus[0].error, None);
}

#[test]
fn a_missing_driver_is_logged_and_survived() {
    let mut node = Node::new(2);
    node.run(2, &[]);
    node.event(Event::DriverFailed("no NVIDIA driver".into()));
    node.now = node.now + Duration::from_secs(2);
    let mut out = Vec::new();
    node.machine.wake(node.now, &mut out);
    node.take(out);
    let summary = node.summaries.last().unwrap();
    assert!(summary.gpus.iter().all(|gpu| gpu.error.is_some()), "{summary:?}");
    node.run(2, &[]);
    assert!(node.summaries.last().unwrap().gpus.iter().all(|gpu| gpu.error.is_none()));
}

#[test]
fn an_absent_bus_causes_one_long_entry() {
    let mut node = Node::new(1);
    node.draws[0] = Power::from_w(100);
    node.bus = false;
    node.run(600, &[]);
    assert!(node.ledger.is_empty());
    node.bus = true;
    node.run(130, &[]);
    let entries: Vec<&LedgerEntry> = node.ledger.values().collect();
    assert!(entries.windows(2).all(|pair| pair[0].until_us == pair[1].from_us), "no gap");
    assert!(entries.len() <= 4, "{}", entries.len());
    let total: Energy = entries.iter().map(|e| e.energy_mj_gpus[0].unwrap()).sum();
    let span = entries.last().unwrap().until_us.since(entries[0].from_us);
    assert_eq!(total, Power::from_w(100).over(span));
    let host: Energy = entries.iter().map(|e| e.energy_mj_host).sum();
    assert_eq!(host, Power::from_w(200).over(span));
}

#[test]
fn invented_jobs_fill_nothing() {
    let mut node = Node::new(1);
    for i in 0..10_000 {
        node.line(&format!("job=x{i} step={i}"));
    }
    node.line("job=a step=5");
    node.place("a", 100, &[0]);
    node.run(2, &[]);
    assert!(node.progress.is_empty(), "nothing is published of jobs that do not run here");
}

#[derive(Clone, Debug)]
enum Step {
    Run(u64),
    Draw(usize, u64),
    Cap(usize, u64),
    Place(usize, Vec<GpuIndex>),
    Remove(usize),
    Lose(usize, bool),
    Bus(bool),
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    let gpus = prop::collection::btree_set(0u32..3, 1..3);
    prop_oneof![
        6 => (1u64..40).prop_map(Step::Run),
        2 => (0usize..3, 30u64..300).prop_map(|(g, w)| Step::Draw(g, w)),
        2 => (0usize..3, 100u64..300).prop_map(|(g, w)| Step::Cap(g, w)),
        3 => (0usize..4, gpus).prop_map(|(j, g)| Step::Place(j, g.into_iter().collect())),
        1 => (0usize..4).prop_map(Step::Remove),
        1 => (0usize..3, any::<bool>()).prop_map(|(g, on)| Step::Lose(g, on)),
        1 => any::<bool>().prop_map(Step::Bus),
        1 => Just(Step::Crash),
    ]
}

const JOBS: [&str; 4] = ["a", "b", "c", "d"];

impl Node {
    fn apply(&mut self, step: Step, changes: &mut Vec<(Timestamp, GpuIndex)>) {
        let now = self.now;
        match step {
            Step::Run(seconds) => self.run(seconds, &[("a", 20), ("b", 3)]),
            Step::Draw(gpu, w) => self.draws[gpu] = Power::from_w(w),
            Step::Cap(gpu, w) => {
                if self.driver.gpus[gpu].reading.cap != Some(Power::from_w(w)) {
                    self.driver.gpus[gpu].reading.cap = Some(Power::from_w(w));
                    changes.push((now, gpu as u32));
                }
            }
            Step::Place(job, gpus) => {
                self.apply(Step::Remove(job), changes);
                changes.extend(gpus.iter().map(|gpu| (self.now, *gpu)));
                self.place(JOBS[job], 100 + job as u32, &gpus);
                self.tick();
            }
            Step::Remove(job) => {
                if let Some((_, gpus)) = self.jobs.get(&id(JOBS[job])) {
                    changes.extend(gpus.iter().map(|gpu| (now, *gpu)));
                }
                self.remove(JOBS[job]);
                // No job leaves and returns between two samples.
                self.tick();
            }
            Step::Lose(gpu, lost) => {
                self.driver.gpus[gpu].fault = if lost { FaultMode::Lost } else { FaultMode::None };
            }
            Step::Bus(up) => self.bus = up,
            Step::Crash => self.crash(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// No window spans a change on its GPUs; windows of one job do not overlap; their figures are
    /// consistent.
    #[test]
    fn no_window_spans_a_change(steps in prop::collection::vec(step(), 1..25)) {
        let mut node = Node::new(3);
        let mut changes = Vec::new();
        for step in steps {
            node.apply(step, &mut changes);
        }
        for window in &node.windows {
            for (at, gpu) in &changes {
                let inside = *at > window.from_us && *at < window.until_us;
                prop_assert!(!(inside && window.gpus.contains(gpu)), "gpu {gpu} at {at}: {window:?}");
            }
            prop_assert!(window.samples >= 5);
            prop_assert!(window.power_mw_job <= window.power_mw_gpus);
        }
        for job in JOBS {
            let windows: Vec<&JobWindow> = node.of(job).collect();
            for pair in windows.windows(2) {
                prop_assert!(pair[0].until_us <= pair[1].from_us);
            }
        }
    }

    /// Through crashes, an absent bus and lost GPUs: the entries join without gap or overlap, and
    /// the energy of each GPU equals its counter, to the millijoule.
    #[test]
    fn the_ledger_equals_the_counters(steps in prop::collection::vec(step(), 1..25)) {
        let mut node = Node::new(3);
        let mut changes = Vec::new();
        node.tick();
        let before: Vec<Energy> =
            node.driver.gpus.iter().map(|c| c.reading.energy_total.unwrap()).collect();
        for step in steps {
            // Without a saved state yet, a crash leaves nothing to continue from.
            if matches!(step, Step::Crash) && node.file.is_none() {
                continue;
            }
            node.apply(step, &mut changes);
        }
        node.bus = true;
        for tracker in &mut node.driver.gpus {
            tracker.fault = FaultMode::None;
        }
        node.run(150, &[]);
        node.event(Event::StopRequested);
        let entries: Vec<&LedgerEntry> = node.ledger.values().collect();
        for pair in entries.windows(2) {
            prop_assert_eq!(pair[0].until_us, pair[1].from_us);
        }
        prop_assert_eq!(entries.last().unwrap().until_us, node.now);
        for (gpu, before) in before.iter().enumerate() {
            let spent: Energy = entries.iter().filter_map(|entry| entry.energy_mj_gpus[gpu]).sum();
            let counted = node.driver.gpus[gpu].reading.energy_total.unwrap() - *before;
            prop_assert_eq!(spent, counted, "gpu {}", gpu);
        }
        for entry in entries {
            prop_assert!(entry.attributed() + entry.unknown() <= entry.gpus(), "{entry:?}");
            prop_assert_eq!(check_ledger_entry(entry, node.now), Ok(()));
        }
    }
}
