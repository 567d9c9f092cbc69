//! A node whose energy is known: GPUs with counters, jobs, a clock that is set, a bus that is away, and
//! the profiler as a process that is killed and continues from its state file.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use wattle_common::job::{JobPhase, NodeShare, Placement};
use wattle_common::messages::{
    JobProcesses, JobRecord, LaunchReport, LaunchState, LaunchedJob, LedgerEntry,
};
use wattle_common::rng::Stream;
use wattle_common::{Energy, JobId, Machine, Power, Timestamp};
use wattle_gpu::{GpuReading, ProcessReading};
use wattle_profiler::resume::Boot;
use wattle_profiler::{
    Action, Event, GpuIdentity, ProcessOrigin, ProfilerMachine, SampledGpu, Settings, State,
};
use wattle_testkit as kit;

/// True time at the start, which is also the date of the first clock.
const START_US: u64 = 1_790_000_000_000_000;
const SECOND_US: u64 = 1_000_000;
/// Time after which JetStream accepts a repeated message id as a new message: its default.
const DUPLICATES: Duration = Duration::from_secs(120);
const IDLE_MW: u64 = 40_000;
const FOREIGN_MW: u64 = 60_000;

/// The true use of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Use {
    Job,
    Idle,
    Other,
}

/// Energy that no counter shows, because it restarted.
#[derive(Clone, Debug)]
pub(crate) struct Lost {
    pub(crate) gpu: usize,
    pub(crate) from: Duration,
    pub(crate) until: Duration,
    pub(crate) joules: f64,
    /// When the counter was read again.
    pub(crate) read_at: Duration,
    /// [`Node::steps`] at the last reading before.
    pub(crate) steps: usize,
}

#[derive(Default)]
struct Gpu {
    /// Energy by use in nanojoules (milliwatts times microseconds).
    spent: BTreeMap<Use, u128>,
    counter: u128,
    lost: bool,
    /// Time, counter, process and steps of the clock at the last reading.
    seen: Option<(u64, u128, u32, usize)>,
    /// Energy that a restart of the counter hides since the last reading.
    hidden: Option<(u64, u128)>,
    /// Whether the node was restarted since the last reading.
    restarted: bool,
}

struct Job {
    attempt: u32,
    pid: u32,
    gpus: BTreeSet<usize>,
    mw: u64,
}

/// The node.
pub(crate) struct Node {
    pub(crate) every: Duration,
    pub(crate) unmeasured: Vec<Lost>,
    /// Starts and ends of jobs and processes, and all else that changes the owner of energy.
    pub(crate) changes: u32,
    /// Starts of the profiler with a clock that was set.
    pub(crate) steps: usize,
    machine: Option<ProfilerMachine>,
    file: Option<State>,
    us: u64,
    /// The wall clock's lead on true time, and that of the process's clock.
    wall_us: i64,
    clock_us: i64,
    process: u32,
    boot: u32,
    booted_us: u64,
    on: bool,
    driver: bool,
    gpus: Vec<Gpu>,
    jobs: BTreeMap<JobId, Job>,
    foreign: Option<usize>,
    pids: u32,
    bus: bool,
    /// Messages of the stream with the time of their storage.
    stream: Vec<(u64, LedgerEntry)>,
    /// When each entry was closed, the clock's lead and the number of its steps then.
    closed: BTreeMap<Timestamp, (u64, i64, usize)>,
    results: VecDeque<(u64, Timestamp, bool)>,
    bad_result: u8,
    rng: Stream,
    reported_us: u64,
    base: u128,
}

impl Node {
    pub(crate) fn new(gpus: usize, every: Duration) -> Self {
        let mut node = Self {
            every,
            unmeasured: Vec::new(),
            changes: 0,
            steps: 0,
            machine: None,
            file: None,
            us: START_US,
            wall_us: 0,
            clock_us: 0,
            process: 0,
            boot: 0,
            booted_us: START_US - 1_000 * SECOND_US,
            on: true,
            driver: true,
            gpus: (0..gpus).map(|_| Gpu::default()).collect(),
            jobs: BTreeMap::new(),
            foreign: None,
            pids: 100,
            bus: true,
            stream: Vec::new(),
            closed: BTreeMap::new(),
            results: VecDeque::new(),
            bad_result: 0,
            rng: Stream::new(every.as_millis() as u64, "node of the day"),
            reported_us: 0,
            base: 0,
        };
        node.begin();
        node
    }

    pub(crate) fn seconds(&self) -> u64 {
        (self.us - START_US) / SECOND_US
    }

    /// The most that a GPU draws.
    pub(crate) fn power_max(&self) -> Power {
        Power::from_mw(IDLE_MW + FOREIGN_MW + 3 * 150_000)
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_us(self.us.saturating_add_signed(self.clock_us))
    }

    fn begin(&mut self) {
        if self.machine.is_some() || !self.on {
            return;
        }
        self.process += 1;
        self.steps += usize::from(self.clock_us != self.wall_us);
        self.clock_us = self.wall_us;
        let boot = Boot {
            id: self.boot.to_string(),
            at_us: Timestamp::from_us(self.booted_us.saturating_add_signed(self.clock_us)),
        };
        let step_min = Duration::from_secs(2);
        let file = self.file.clone().inspect(|state| {
            state.check(&kit::node("n0"), self.now(), Some(&boot), step_min).unwrap();
        });
        let settings = Settings { idle: Some(Power::from_w(40)), ..Settings::default() };
        self.machine = Some(ProfilerMachine::new(kit::node("n0"), settings, file, Some(boot)));
        self.reported_us = 0;
    }

    fn event(&mut self, event: Event) {
        let (now, mut out) = (self.now(), Vec::new());
        let Some(machine) = &mut self.machine else { return };
        machine.handle(now, event, &mut out);
        self.act(out);
    }

    fn act(&mut self, out: Vec<Action>) {
        for action in out {
            match action {
                Action::SaveState(state) => self.file = Some(state),
                Action::StoreLedger(entry) => self.store(entry),
                _ => {}
            }
        }
    }

    /// Stores an entry and sends the result, some seconds later.
    fn store(&mut self, entry: LedgerEntry) {
        let from = entry.from_us;
        self.closed.entry(from).or_insert((self.us, self.clock_us, self.steps));
        if self.bus {
            let repeated = self.stream.iter().rev().any(|(at, stored)| {
                stored.from_us == from && self.us - at < DUPLICATES.as_micros() as u64
            });
            if !repeated {
                self.stream.push((self.us, entry));
            }
        }
        let due = self.us + self.rng.below(5 * SECOND_US);
        let bad = std::mem::take(&mut self.bad_result);
        self.results.push_back((due, from, self.bus && bad != 1));
        if bad == 2 {
            let again = due + self.rng.below(90 * SECOND_US);
            self.results.push_back((again, from, self.bus));
        }
    }

    /// Passes time without the profiler: energy only.
    fn spend(&mut self, us: u64) {
        self.us += us;
        if !self.on {
            return;
        }
        for (index, gpu) in self.gpus.iter_mut().enumerate() {
            let on: Vec<&Job> =
                self.jobs.values().filter(|job| job.gpus.contains(&index)).collect();
            let foreign = self.foreign == Some(index);
            let mw = IDLE_MW
                + on.iter().map(|job| job.mw).sum::<u64>()
                + if foreign { FOREIGN_MW } else { 0 };
            let of = match (on.is_empty(), foreign) {
                (false, _) => Use::Job,
                (true, true) => Use::Other,
                (true, false) => Use::Idle,
            };
            let energy = u128::from(mw) * u128::from(us);
            *gpu.spent.entry(of).or_default() += energy;
            gpu.counter += energy;
        }
    }

    fn power(&self, index: usize) -> Power {
        let on = self.jobs.values().filter(|job| job.gpus.contains(&index));
        let foreign = if self.foreign == Some(index) { FOREIGN_MW } else { 0 };
        Power::from_mw(IDLE_MW + on.map(|job| job.mw).sum::<u64>() + foreign)
    }

    /// Passes time with readings, wakes, results and reports.
    pub(crate) fn pass(&mut self, seconds: u64) {
        self.pass_with(seconds, true);
    }

    fn pass_with(&mut self, seconds: u64, readings: bool) {
        let end = self.us + seconds * SECOND_US;
        let every = self.every.as_micros() as u64;
        while self.us < end {
            let next = self.us + every * 3 / 4 + self.rng.below(every / 2);
            while self.us < next {
                let wake = self.machine.as_ref().and_then(wattle_common::Machine::next_wake);
                let wake_us = wake
                    .map_or(u64::MAX, |(at, _)| at.as_us().saturating_add_signed(-self.clock_us));
                let result = self.results.iter().map(|(due, ..)| *due).min().unwrap_or(u64::MAX);
                let until = next.min(wake_us).min(result).max(self.us + 1);
                self.spend(until - self.us);
                self.deliver();
                if wake_us <= self.us {
                    let (now, mut out) = (self.now(), Vec::new());
                    if let Some(machine) = &mut self.machine {
                        machine.wake(now, &mut out);
                    }
                    self.act(out);
                }
            }
            if readings {
                self.sample();
            }
        }
    }

    fn deliver(&mut self) {
        while let Some(at) = self.results.iter().position(|(due, ..)| *due <= self.us) {
            let (_, from, stored) = self.results.remove(at).expect("found above");
            self.event(Event::LedgerStored { from, stored });
        }
        if self.bus && self.on && self.us >= self.reported_us + 10 * SECOND_US {
            self.report();
        }
    }

    /// The launcher's heartbeat, with the records of its jobs.
    fn report(&mut self) {
        if !self.bus || self.machine.is_none() {
            return;
        }
        self.reported_us = self.us;
        let gpus = |job: &Job| job.gpus.iter().map(|gpu| *gpu as u32).collect::<Vec<_>>();
        let launched = self.jobs.iter().map(|(id, job)| LaunchedJob {
            job: id.clone(),
            admission: None,
            attempt: job.attempt,
            gpus: gpus(job),
            state: LaunchState::Running,
            processes: Some(JobProcesses::Session(job.pid)),
            since_us: self.now(),
            log_path: String::new(),
        });
        let report = LaunchReport {
            instance: String::new(),
            node: kit::node("n0"),
            at_us: self.now(),
            observed_generation: 1,
            has_ended: false,
            fault: None,
            site: None,
            jobs: launched.collect(),
        };
        let records: Vec<JobRecord> = self
            .jobs
            .iter()
            .map(|(id, job)| JobRecord {
                placement: Some(Placement {
                    shares: vec![NodeShare { node: kit::node("n0"), gpus: gpus(job) }],
                }),
                ..kit::job_record(
                    kit::job_spec(id.as_str(), job.gpus.len() as u32),
                    JobPhase::Running,
                )
            })
            .collect();
        self.event(Event::LaunchReported(report));
        for record in records {
            self.event(Event::JobRecorded(Box::new(record)));
        }
    }

    fn sample(&mut self) {
        if self.machine.is_none() {
            return;
        }
        if !self.driver {
            return self.event(Event::DriverFailed("no driver".to_owned()));
        }
        let found = (0..).zip(&self.gpus).filter(|(_, gpu)| !gpu.lost);
        let facts = found.map(|(gpu, _)| GpuIdentity {
            gpu,
            uuid: format!("GPU-{gpu}"),
            gpu_type: "v100".to_owned(),
        });
        let facts = facts.collect();
        self.event(Event::GpusFound(facts));
        let gpus = (0..self.gpus.len()).map(|gpu| self.read(gpu)).collect();
        self.event(Event::Sampled { at: self.now(), gpus });
    }

    fn read(&mut self, index: usize) -> SampledGpu {
        let on = self.jobs.values().filter(|job| job.gpus.contains(&index));
        let mut pids: Vec<(u32, u8)> = on.map(|job| (job.pid, 40)).collect();
        pids.extend((self.foreign == Some(index)).then_some((99, 20)));
        let (us, process, power) = (self.us, self.process, self.power(index));
        let gpu = &mut self.gpus[index];
        if gpu.lost {
            return SampledGpu {
                gpu: index as u32,
                reading: Err("lost".to_owned()),
                origins: vec![],
            };
        }
        if gpu.seen.is_none() {
            self.base += gpu.spent.values().sum::<u128>();
        }
        if let (Some((until, hidden)), Some((from, before, by, steps))) =
            (gpu.hidden.take(), gpu.seen)
        {
            // A counter that passed its last value hides the restart.
            let difference = gpu.counter.checked_sub(before).filter(|_| !gpu.restarted);
            let shown = difference.unwrap_or(gpu.counter);
            let integrated = by == process && us - from <= 5 * SECOND_US;
            if !integrated {
                let at = |us: u64| Duration::from_micros(us - START_US);
                self.unmeasured.push(Lost {
                    gpu: index,
                    from: at(from),
                    until: at(until),
                    joules: (hidden + gpu.counter - shown) as f64 / 1e9,
                    read_at: at(us),
                    steps,
                });
            }
        }
        gpu.restarted = false;
        gpu.seen = Some((us, gpu.counter, process, self.steps));
        let processes = pids.iter().map(|(pid, busy)| ProcessReading {
            pid: *pid,
            memory_mib: Some(1_000),
            utilization_gpu_percent: Some(*busy),
        });
        let reading = GpuReading {
            power: Some(power),
            energy_total: Some(Energy::from_mj((gpu.counter / 1_000_000) as u64)),
            processes: Some(processes.collect()),
            utilization_gpu_percent: Some(50),
            ..GpuReading::default()
        };
        let origin = |(pid, _): &(u32, u8)| {
            Arc::new(ProcessOrigin { sessions: vec![*pid, 1], cgroups: vec![], slurm_jobs: vec![] })
        };
        SampledGpu {
            gpu: index as u32,
            reading: Ok(reading),
            origins: pids.iter().map(origin).collect(),
        }
    }

    pub(crate) fn start_job(&mut self, gpus: u64) {
        if self.jobs.len() >= 3 {
            return;
        }
        self.pids += 1;
        self.changes += 1;
        let gpus = match gpus {
            2 => BTreeSet::from([0, 1]),
            one => BTreeSet::from([one as usize]),
        };
        let id = kit::job(&format!("job-{}", self.pids % 5));
        let mw = 90_000 + self.rng.below(60_000);
        self.jobs.insert(id, Job { attempt: self.pids, pid: self.pids, gpus, mw });
        self.report();
    }

    pub(crate) fn end_job(&mut self, rng: &mut Stream) {
        let at = rng.below(4) as usize;
        if let Some(id) = self.jobs.keys().nth(at).cloned() {
            self.jobs.remove(&id);
            self.changes += 1;
            self.report();
        }
    }

    pub(crate) fn start_foreign(&mut self, gpu: usize) {
        self.foreign = Some(gpu);
        self.changes += 1;
    }

    pub(crate) fn end_foreign(&mut self) {
        self.changes += u32::from(self.foreign.take().is_some());
    }

    /// The profiler is killed and started again later; a job may end meanwhile.
    pub(crate) fn kill(&mut self, seconds: u64, ends: bool) {
        self.machine = None;
        self.results.clear();
        self.spend(seconds * SECOND_US / 2);
        if ends {
            self.changes += u32::from(self.jobs.pop_first().is_some());
        }
        self.spend(seconds * SECOND_US / 2);
        self.begin();
    }

    /// The profiler is paused, as by a pause of its machine.
    pub(crate) fn pause(&mut self, seconds: u64) {
        self.spend(seconds * SECOND_US);
    }

    /// The driver blocks all readings.
    pub(crate) fn hang(&mut self, seconds: u64) {
        self.pass_with(seconds, false);
    }

    pub(crate) fn lose_gpu(&mut self, gpu: usize, resets: bool) {
        self.gpus[gpu].lost = true;
        if resets {
            self.reset_counter(gpu);
        }
    }

    pub(crate) fn find_gpus(&mut self) {
        self.gpus.iter_mut().for_each(|gpu| gpu.lost = false);
    }

    pub(crate) fn reset_counter(&mut self, index: usize) {
        let gpu = &mut self.gpus[index];
        let shown = gpu.seen.filter(|_| gpu.hidden.is_none()).map_or(0, |(_, counter, ..)| counter);
        let before = gpu.hidden.map_or(0, |(_, joules)| joules);
        if gpu.seen.is_some() {
            gpu.hidden = Some((self.us, before + gpu.counter - shown));
        }
        gpu.counter = 0;
    }

    pub(crate) fn reload_driver(&mut self, seconds: u64) {
        self.driver = false;
        self.pass(seconds);
        (0..self.gpus.len()).for_each(|gpu| self.reset_counter(gpu));
        self.driver = true;
    }

    pub(crate) fn bus_lost(&mut self) {
        self.bus = false;
    }

    pub(crate) fn bus_back(&mut self) {
        self.bus = true;
    }

    pub(crate) fn step_clock(&mut self, seconds: i64) {
        self.wall_us += seconds * 1_000_000 + self.rng.below(SECOND_US) as i64;
    }

    /// The next result is lost, or repeated later.
    pub(crate) fn acknowledge_badly(&mut self) {
        self.bad_result = 1 + self.rng.below(2) as u8;
    }

    /// The node is switched off with its jobs, and on again.
    pub(crate) fn restart(&mut self, seconds: u64) {
        self.machine = None;
        self.results.clear();
        self.on = false;
        self.changes += 1 + self.jobs.len() as u32;
        self.jobs.clear();
        self.foreign = None;
        self.us += seconds * SECOND_US;
        self.on = true;
        self.boot += 1;
        self.booted_us = self.us;
        // The driver is loaded 20 s later.
        self.spend(20 * SECOND_US);
        (0..self.gpus.len()).for_each(|gpu| self.reset_counter(gpu));
        self.gpus.iter_mut().for_each(|gpu| gpu.restarted = true);
        self.spend(10 * SECOND_US);
        self.begin();
    }

    /// Ends all faults.
    pub(crate) fn recover(&mut self) {
        self.find_gpus();
        self.bus_back();
    }

    /// Stops the profiler; its last entry is stored.
    pub(crate) fn stop(&mut self) {
        self.sample();
        self.event(Event::StopRequested);
        self.spend(100 * SECOND_US);
        self.deliver();
    }

    /// Energy that the counters show, from the first to the last reading.
    pub(crate) fn counted_j(&self) -> f64 {
        let unread = |gpu: &Gpu| match (gpu.hidden, gpu.seen) {
            (Some((_, hidden)), _) => hidden + gpu.counter,
            (None, seen) => gpu.counter - seen.map_or(0, |(_, counter, ..)| counter),
        };
        let of = |gpu: &Gpu| gpu.spent.values().sum::<u128>() - unread(gpu);
        let all: u128 = self.gpus.iter().map(of).sum::<u128>() - self.base;
        all as f64 / 1e9 - self.unmeasured.iter().map(|lost| lost.joules).sum::<f64>()
    }

    pub(crate) fn true_j(&self, of: Use) -> f64 {
        self.gpus.iter().filter_map(|gpu| gpu.spent.get(&of)).sum::<u128>() as f64 / 1e9
    }

    /// The entries as consumers count them: once for each start.
    pub(crate) fn ledger(&self) -> Vec<LedgerEntry> {
        let mut known = BTreeSet::new();
        let entries = self.stream.iter().map(|(_, entry)| entry);
        entries.filter(|entry| known.insert(entry.from_us)).cloned().collect()
    }

    /// True time since the start of a date in an entry.
    pub(crate) fn date(&self, entry: &LedgerEntry, at: Timestamp) -> Duration {
        let (_, lead, _) = self.closed[&entry.from_us];
        Duration::from_micros(at.as_us().saturating_add_signed(-lead).saturating_sub(START_US))
    }

    /// The first entry that was closed after energy was lost; `None`: the clock was set since, so that dates
    /// cannot be compared.
    pub(crate) fn entry_of<'a>(
        &self,
        lost: &Lost,
        entries: &'a [LedgerEntry],
    ) -> Option<&'a LedgerEntry> {
        let closed = |entry: &LedgerEntry| self.closed[&entry.from_us];
        let read_us = START_US + lost.read_at.as_micros() as u64;
        let next = entries.iter().filter(|entry| closed(entry).0 >= read_us);
        next.min_by_key(|entry| closed(entry).0).filter(|entry| closed(entry).2 == lost.steps)
    }
}
