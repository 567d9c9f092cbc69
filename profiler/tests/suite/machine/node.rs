//! A node with GPUs, jobs and a bus in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use wattle_common::job::{JobPhase, JobSpec, NodeShare, Placement};
use wattle_common::messages::{
    AppliedGpu, JobProcesses, JobRecord, JobWindow, LaunchReport, LaunchState, LaunchedJob,
    LedgerEntry, NodeSummary, Prediction,
};
use wattle_common::progress::Progress;
use wattle_common::units::Energy;
use wattle_common::{AdmissionId, GpuIndex, JobId, Machine, NodeId, Power, Timestamp};
use wattle_gpu::fake::FakeDriver;
use wattle_gpu::{Driver, ProcessReading};
use wattle_profiler::{
    Action, Event, GpuIdentity, Note, ProcessOrigin, ProfilerMachine, SampledGpu, Sender, Settings,
    State,
};
use wattle_testkit as kit;

pub(super) fn id(text: &str) -> JobId {
    kit::job(text)
}

pub(super) fn node_id() -> NodeId {
    kit::node("n0")
}

pub(super) fn settings() -> Settings {
    Settings {
        idle: Some(Power::from_w(40)),
        host_power: Power::from_w(200),
        ..Settings::default()
    }
}

/// The origin of a process that leads a session.
pub(super) fn origin(pid: u32) -> Arc<ProcessOrigin> {
    Arc::new(ProcessOrigin { sessions: vec![pid, 1], cgroups: vec![], slurm_jobs: vec![] })
}

/// A node with GPUs of given power and a bus that can be absent.
pub(super) struct Node {
    pub(super) machine: ProfilerMachine,
    pub(super) driver: FakeDriver,
    /// Power of each GPU; its counter follows.
    pub(super) draws: Vec<Power>,
    pub(super) now: Timestamp,
    pub(super) jobs: BTreeMap<JobId, (u32, Vec<GpuIndex>)>,
    /// The last submission of each job: each is placed once.
    pub(super) admissions: BTreeMap<JobId, AdmissionId>,
    pub(super) processes: BTreeMap<GpuIndex, Vec<(u32, u8)>>,
    pub(super) bus: bool,
    pub(super) file: Option<State>,
    pub(super) windows: Vec<JobWindow>,
    /// The first entry of each id, as in JetStream.
    pub(super) ledger: BTreeMap<Timestamp, LedgerEntry>,
    pub(super) summaries: Vec<NodeSummary>,
    /// Number of the launcher's reports, each of a newer desired state.
    pub(super) launches: u64,
    pub(super) batches: Vec<wattle_common::messages::TelemetryBatch>,
    pub(super) progress: Vec<wattle_common::messages::JobProgressed>,
    pub(super) notes: Vec<Note>,
}

impl Node {
    pub(super) fn new(gpus: u32) -> Self {
        let mut driver = FakeDriver::v100s(gpus);
        for fake in &mut driver.gpus {
            fake.reading.energy_total = Some(Energy::from_j(1_000));
        }
        let mut node = Self {
            machine: ProfilerMachine::new(node_id(), settings(), None, None),
            driver,
            draws: vec![Power::from_w(40); gpus as usize],
            now: Timestamp::from_s(1_000),
            jobs: BTreeMap::new(),
            admissions: BTreeMap::new(),
            processes: BTreeMap::new(),
            bus: true,
            file: None,
            windows: Vec::new(),
            ledger: BTreeMap::new(),
            summaries: Vec::new(),
            launches: 0,
            batches: Vec::new(),
            progress: Vec::new(),
            notes: Vec::new(),
        };
        node.find();
        node.launch();
        node
    }

    pub(super) fn find(&mut self) {
        let identity = |(gpu, fake): (u32, &wattle_gpu::fake::FakeGpu)| GpuIdentity {
            gpu,
            uuid: fake.info.uuid.clone(),
            gpu_type: fake.info.gpu_type.clone(),
        };
        self.event(Event::GpusFound((0..).zip(&self.driver.gpus).map(identity).collect()));
    }

    /// A kill and a restart.
    pub(super) fn crash(&mut self) {
        self.machine = ProfilerMachine::new(node_id(), settings(), self.file.clone(), None);
        self.find();
        self.launch();
        for job in self.jobs.keys().cloned().collect::<Vec<_>>() {
            self.record(&job);
        }
    }

    pub(super) fn event(&mut self, event: Event) {
        let mut out = Vec::new();
        self.machine.handle(self.now, event, &mut out);
        self.take(out);
    }

    pub(super) fn take(&mut self, out: Vec<Action>) {
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
                Action::Log(note) => self.notes.push(note),
            }
        }
    }

    pub(super) fn place(&mut self, job: &str, pid: u32, gpus: &[GpuIndex]) {
        let job = id(job);
        self.jobs.insert(job.clone(), (pid, gpus.to_vec()));
        let admission = AdmissionId::accepted(self.now, pid.into());
        self.admissions.insert(job.clone(), admission);
        for gpu in gpus {
            self.processes.entry(*gpu).or_default().push((pid, 50));
        }
        self.launch();
        self.record(&job);
    }

    pub(super) fn remove(&mut self, job: &str) {
        if let Some((pid, _)) = self.jobs.remove(&id(job)) {
            for on in self.processes.values_mut() {
                on.retain(|(other, _)| *other != pid);
            }
        }
        self.launch();
    }

    pub(super) fn launch(&mut self) {
        self.launches += 1;
        let jobs = self.jobs.iter().map(|(job, (pid, gpus))| LaunchedJob {
            job: job.clone(),
            admission: self.admissions.get(job).cloned(),
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
            observed_generation: self.launches,
            has_ended: false,
            fault: None,
            site: None,
            jobs: jobs.collect(),
        };
        self.event(Event::LaunchReported(report));
    }

    pub(super) fn record(&mut self, job: &JobId) {
        self.record_with(job, None);
    }

    /// The placer's record of a job with this prediction of its placement.
    pub(super) fn record_with(&mut self, job: &JobId, prediction: Option<Prediction>) {
        let (_, gpus) = &self.jobs[job];
        let share = NodeShare { node: node_id(), gpus: gpus.clone() };
        let spec = JobSpec {
            workload: Some(kit::workload("resnet50")),
            ..kit::job_spec(job.as_str(), gpus.len() as u32)
        };
        let record = JobRecord {
            admission: self.admissions.get(job).cloned(),
            placement: Some(Placement { shares: vec![share] }),
            prediction_placed: prediction.map(Box::new),
            ..kit::job_record(spec, JobPhase::Running)
        };
        self.event(Event::JobRecorded(Box::new(record)));
    }

    /// The power agent has set this cap on every GPU, whose default is 250 W.
    pub(super) fn cap(&mut self, cap: Power) {
        let gpus = 0..self.driver.gpus.len() as u32;
        for fake in &mut self.driver.gpus {
            fake.reading.cap = Some(cap);
        }
        let applied = gpus.map(|gpu| AppliedGpu {
            cap_mw: Some(cap),
            cap_mw_default: Some(Power::from_w(250)),
            ..kit::applied_gpu(gpu, "v100")
        });
        let report = kit::power_report("n0", self.now, applied);
        self.event(Event::PowerReported(report));
    }

    /// Samples at 10 Hz for `seconds`; jobs report at `pace` (steps per second) each second.
    pub(super) fn run(&mut self, seconds: u64, pace: &[(&str, u64)]) {
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

    pub(super) fn tick(&mut self) {
        self.sampled(Duration::from_millis(100));
    }

    /// The GPUs are read, `span` after the last time.
    pub(super) fn sampled(&mut self, span: Duration) {
        self.now = self.now + span;
        for (fake, draw) in self.driver.gpus.iter_mut().zip(&self.draws) {
            if !fake.reading.has_no_meter {
                fake.reading.power = Some(*draw);
            }
            if let Some(total) = &mut fake.reading.energy_total {
                *total += draw.over(span);
            }
        }
        let samples = (0..self.driver.gpus.len() as u32).map(|gpu| self.sample(gpu)).collect();
        self.event(Event::Sampled { at: self.now, gpus: samples });
    }

    pub(super) fn sample(&mut self, gpu: GpuIndex) -> SampledGpu {
        let on = self.processes.get(&gpu).cloned().unwrap_or_default();
        let process = |(pid, busy): &(u32, u8)| ProcessReading {
            pid: *pid,
            memory_mib: Some(1_000),
            utilization_gpu_percent: Some(*busy),
        };
        let fake = &mut self.driver.gpus[gpu as usize];
        fake.reading.processes = Some(on.iter().map(process).collect());
        fake.reading.utilization_gpu_percent =
            Some(on.iter().map(|(_, busy)| *busy).sum::<u8>().min(100));
        SampledGpu {
            gpu,
            reading: self.driver.read(gpu).map_err(|error| error.to_string()),
            origins: on.iter().map(|(pid, _)| origin(*pid)).collect(),
        }
    }

    pub(super) fn line(&mut self, text: &str) {
        let line = Progress::parse(text.as_bytes()).expect("a progress line");
        self.event(Event::Progressed { at: self.now, line, sender: Sender::root() });
    }

    /// A line of a process of user 1,000 in this session.
    pub(super) fn line_from(&mut self, session: u32, text: &str) {
        let line = Progress::parse(text.as_bytes()).expect("a progress line");
        let origin = ProcessOrigin { sessions: vec![session], cgroups: vec![], slurm_jobs: vec![] };
        let sender = Sender { uid: Some(1_000 + session), origin };
        self.event(Event::Progressed { at: self.now, line, sender });
    }

    pub(super) fn of<'a>(&'a self, job: &'a str) -> impl Iterator<Item = &'a JobWindow> {
        self.windows.iter().filter(move |window| window.job.as_str() == job)
    }
}
