//! The machine, the model of Slurm and the placer, connected by messages that arrive late, with faults.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use wattle_common::job::JobPhase;
use wattle_common::messages::{JobRecord, NodeDesired};
use wattle_common::rng::Stream;
use wattle_common::{JobId, Machine, NodeId};
use wattle_slurm::{Action, Event, Level, PersistedState, Settings, SlurmMachine};

use crate::model::{GPUS, Program, Slurm};
use crate::placer::Placer;

/// What a run of the world does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) level: Level,
    pub(crate) seed: u64,
    pub(crate) nodes: u32,
    pub(crate) jobs: u32,
    pub(crate) has_accounting: bool,
    /// Whether slurmctld loses its memory; without accounting, nothing can find a lost completion.
    pub(crate) loses_memory: bool,
}

pub(crate) struct World {
    plan: Plan,
    pub(crate) slurm: Slurm,
    pub(crate) placer: Placer,
    machine: SlurmMachine,
    stored: PersistedState,
    /// Values that the machine has not read yet, by key.
    late_orders: BTreeMap<NodeId, VecDeque<NodeDesired>>,
    late_records: BTreeMap<JobId, VecDeque<JobRecord>>,
    sent_orders: BTreeMap<NodeId, NodeDesired>,
    sent_records: BTreeMap<JobId, JobRecord>,
    pub(crate) tags: Vec<String>,
    pub(crate) cancelled: BTreeSet<String>,
    pub(crate) alarms: Vec<String>,
    /// The job whose history is printed: Slurm's id in `WATTLE_SLURM_TRACE`.
    traced: Option<u32>,
    rng: Stream,
}

pub(crate) fn settings(plan: &Plan) -> Settings {
    Settings {
        level: plan.level,
        partitions: BTreeSet::from(["gpu".to_owned()]),
        gpu_types: Vec::new(),
        start_patience: Duration::from_secs(12),
        checkpoint_grace: Duration::from_secs(20),
        absence_max: Duration::from_secs(40),
        heartbeat: Duration::from_secs(5),
        lease_max: Duration::from_secs(600),
        retry: Duration::from_secs(5),
        has_accounting: plan.has_accounting,
        offset_s: 0,
    }
}

impl World {
    pub(crate) fn new(plan: Plan) -> Self {
        let state = PersistedState::default();
        Self {
            plan,
            slurm: Slurm::new(plan.nodes, plan.seed),
            placer: Placer::new(plan.seed, plan.level == Level::Share),
            machine: SlurmMachine::new(settings(&plan), state.clone(), String::new()),
            stored: state,
            late_orders: BTreeMap::new(),
            late_records: BTreeMap::new(),
            sent_orders: BTreeMap::new(),
            sent_records: BTreeMap::new(),
            tags: Vec::new(),
            cancelled: BTreeSet::new(),
            alarms: Vec::new(),
            traced: std::env::var("WATTLE_SLURM_TRACE").ok().and_then(|id| id.parse().ok()),
            rng: Stream::new(plan.seed, "world"),
        }
    }

    /// A line of the history, which a failed test shows.
    #[expect(clippy::print_stdout, clippy::unused_self, reason = "shown if the test fails")]
    pub(crate) fn trace(&self, text: &str) {
        println!("{text}");
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.rng.below(one_in) == 0
    }

    pub(crate) fn submit(&mut self) {
        let signals = [None, Some("TERM"), Some("TERM"), Some("USR1")];
        let signal = *self.rng.pick(&signals).unwrap();
        let exit = (signal.is_some() && self.chance(2)).then_some(85);
        let program = Program {
            work_ms: 1_000 + self.rng.below(60_000),
            done_ms: 0,
            // A program that catches SIGTERM ends with 0 there, as a requeue expects.
            signal,
            exit: exit.filter(|_| signal == Some("USR1")),
            completed_at: None,
            ambiguous: false,
            stop_at: None,
            requeued: false,
            starts: 0,
        };
        let nodes = if self.chance(4) { 2 } else { 1 };
        let gpus = 1 + self.rng.below(u64::from(GPUS)) as u32;
        let share = self.chance(2);
        let tag = self.slurm.submit("ada", nodes, gpus, program, share);
        self.tags.push(tag);
    }

    /// Users, administrators or faults act.
    fn disturb(&mut self) {
        let ids: Vec<u32> = self
            .slurm
            .jobs
            .iter()
            .filter(|(_, job)| job.shown.partition == "gpu" && !job.shown.state.is_final())
            .map(|(id, _)| *id)
            .collect();
        let id = self.rng.pick(&ids).copied();
        match self.rng.below(14) {
            0 if self.plan.loses_memory => self.slurm.kill(),
            1 => self.slurm.up = false,
            2 => self.slurm.database_up = false,
            3 => {
                let node = self.rng.pick(self.slurm.nodes()).cloned().unwrap();
                let span = Duration::from_secs(5 + self.rng.below(60));
                self.slurm.fail_node(&node, self.slurm.now + span);
            }
            4 | 5 => self.restart(),
            6 => {
                let gpus = 1 + self.rng.below(2) as u32;
                let work_ms = 1_000 + self.rng.below(20_000);
                self.slurm.submit_foreign(gpus, work_ms);
            }
            _ if !self.slurm.up => {}
            7 => {
                // The owner's or an administrator's requeue.
                if let Some(id) = id {
                    let tag = self.tag(id);
                    self.slurm.requeue(id, false);
                    if let Some(program) = self.slurm.programs.get_mut(&tag) {
                        program.requeued = true;
                    }
                }
            }
            8 => {
                if let Some(id) = id {
                    self.slurm.release(id);
                }
            }
            9 => {
                if let Some(id) = id.filter(|_| self.rng.below(4) == 0) {
                    let tag = self.tag(id);
                    self.cancelled.insert(tag);
                    self.slurm.cancel(id);
                }
            }
            10 => {
                let jobs: Vec<JobId> = self.placer.records.keys().cloned().collect();
                if let Some(job) = self.rng.pick(&jobs).filter(|_| self.plan.seed.is_multiple_of(2))
                    && !self.placer.records[job].phase.is_final()
                {
                    let job = job.clone();
                    let suffix = job.as_str().rsplit('-').next().unwrap_or_default();
                    self.cancelled.insert(suffix.to_owned());
                    self.placer.cancel(self.slurm.now, &job);
                }
            }
            _ => {}
        }
    }

    fn tag(&self, id: u32) -> String {
        let comment = &self.slurm.jobs[&id].shown.admin_comment;
        comment
            .split_whitespace()
            .find_map(|word| word.strip_prefix("tag="))
            .unwrap_or("")
            .to_owned()
    }

    /// The machine's process is killed and starts with what is stored.
    fn restart(&mut self) {
        let state = self.stored.clone();
        self.machine = SlurmMachine::new(settings(&self.plan), state, String::new());
        self.late_orders.clear();
        self.late_records.clear();
        // A new process reads the newest values first.
        let now = self.slurm.now;
        let mut out = Vec::new();
        for record in self.placer.records.values() {
            self.machine.handle(now, Event::RecordChanged(Box::new(record.clone())), &mut out);
        }
        for desired in self.placer.desired.values() {
            self.machine.handle(now, Event::DesiredChanged(desired.clone()), &mut out);
        }
        self.sent_orders.clone_from(&self.placer.desired);
        self.sent_records.clone_from(&self.placer.records);
        self.act(out, false);
    }

    /// Messages arrive, in the order of each key.
    fn deliver(&mut self, calm: bool) {
        for (node, desired) in &self.placer.desired {
            if self.sent_orders.get(node) != Some(desired) {
                self.sent_orders.insert(node.clone(), desired.clone());
                self.late_orders.entry(node.clone()).or_default().push_back(desired.clone());
            }
        }
        for (job, record) in &self.placer.records {
            if self.sent_records.get(job) != Some(record) {
                self.sent_records.insert(job.clone(), record.clone());
                self.late_records.entry(job.clone()).or_default().push_back(record.clone());
            }
        }
        let (now, mut out) = (self.slurm.now, Vec::new());
        for queue in self.late_orders.values_mut() {
            while !queue.is_empty() && (calm || self.rng.below(3) > 0) {
                if let Some(desired) = queue.pop_front() {
                    self.machine.handle(now, Event::DesiredChanged(desired), &mut out);
                }
            }
        }
        for queue in self.late_records.values_mut() {
            while !queue.is_empty() && (calm || self.rng.below(3) > 0) {
                if let Some(record) = queue.pop_front() {
                    self.machine.handle(now, Event::RecordChanged(Box::new(record)), &mut out);
                }
            }
        }
        self.act(out, calm);
    }

    /// Carries out actions; the process may be killed after each of them.
    fn act(&mut self, actions: Vec<Action>, calm: bool) {
        let mut queue: VecDeque<Action> = actions.into();
        while let Some(action) = queue.pop_front() {
            let mut more = Vec::new();
            self.carry_out(action, calm, &mut more);
            queue.extend(more);
            if !calm && self.chance(60) {
                self.restart();
                return;
            }
        }
    }

    fn carry_out(&mut self, action: Action, calm: bool, out: &mut Vec<Action>) {
        let now = self.slurm.now;
        if self.traced.is_some() && !matches!(action, Action::Report(_)) {
            self.trace(&format!("{now} {action:?}"));
        }
        match action {
            Action::Submit(spec, submission) => {
                if calm || !self.chance(5) {
                    self.placer.submit(now, *spec, submission);
                }
            }
            Action::Cancel(job, _) => {
                if calm || !self.chance(5) {
                    self.placer.cancel(now, &job);
                }
            }
            Action::Command(command) => {
                if !calm && self.chance(30) {
                    // The command takes effect, and its answer is lost.
                    let _ = self.slurm.execute(&command);
                    let error = "timed out".to_owned();
                    let away =
                        wattle_slurm::SlurmError::Away { command: "scontrol".to_owned(), error };
                    self.machine.handle(now, Event::CommandEnded(command, Err(away)), out);
                    return;
                }
                if !calm && self.chance(4) {
                    // Time passes between the view and the command.
                    let span = Duration::from_millis(1 + self.rng.below(1_500));
                    self.slurm.tick(span);
                }
                let result = self.slurm.execute(&command);
                self.machine.handle(self.slurm.now, Event::CommandEnded(command, result), out);
            }
            Action::Lookup { ids, .. } => {
                let runs = self.slurm.past(&ids);
                self.machine.handle(now, Event::PastRead { ids, runs }, out);
            }
            Action::Report(report) => self.placer.report(report),
            Action::StoreReleased(job, released) => {
                let suffix = job.as_str().rsplit('-').next().unwrap_or_default();
                if let Some(program) = self.slurm.programs.get_mut(suffix) {
                    program.stop_at = released.stop_at_us;
                    // Slurm's times are whole seconds: it may have completed just before.
                    let second = |at: wattle_common::Timestamp| at.as_us() / 1_000_000;
                    program.ambiguous |= program.exit.is_none()
                        && program.stop_at.is_some()
                        && program.completed_at.map(second) >= program.stop_at.map(second);
                }
                let known = self.stored.released.insert(job, released);
                assert!(
                    known.is_none_or(|known| known.attempt <= released.attempt),
                    "an attempt is never released after a later one"
                );
                assert!(
                    known.is_none_or(|known| known.attempt < released.attempt
                        || known.restarts == released.restarts),
                    "an attempt is released twice: {known:?} {released:?}"
                );
            }
            Action::Forget(job) => {
                self.stored.released.remove(&job);
            }
            Action::StoreObeyed(obeyed) => self.stored.obeyed = obeyed,
            Action::StoreEnergy(job) => {
                self.stored.energy.insert(job);
            }
            Action::Alarm(alarm) => self.alarms.push(alarm.to_string()),
        }
    }

    /// One step of the world.
    pub(crate) fn step(&mut self, calm: bool) {
        let span = Duration::from_millis(100 + self.rng.below(1_200));
        self.slurm.tick(span);
        if calm {
            (self.slurm.up, self.slurm.database_up) = (true, true);
            self.slurm.down.clear();
        } else {
            if self.tags.len() < self.plan.jobs as usize && self.chance(8) {
                self.submit();
            }
            if self.chance(12) {
                self.disturb();
            }
            let (up, database_up) = (self.chance(10), self.chance(10));
            self.slurm.up |= up;
            self.slurm.database_up |= database_up;
        }
        if calm || !self.chance(4) {
            self.deliver(calm);
        }
        let mut out = Vec::new();
        match self.slurm.view() {
            Ok(view) => self.machine.handle(self.slurm.now, Event::Viewed(view), &mut out),
            Err(_) => self.machine.wake(self.slurm.now, &mut out),
        }
        self.act(out, calm);
        if calm || !self.chance(4) {
            self.placer.round(self.slurm.now, calm);
        }
        self.check();
        if let Some(id) = self.traced {
            let job = self.slurm.jobs.get(&id).map(|job| &job.shown);
            let job = job.map(|job| (job.state, job.held, job.restarts, job.on.len()));
            let prefix = format!("slurm-{id}-");
            let mut records = self.placer.records.values();
            let record = records.find(|record| record.spec.job.as_str().starts_with(&prefix));
            let record = record.map(|record| (record.phase, record.next_phase, record.attempt));
            let (now, up) = (self.slurm.now, self.slurm.up);
            self.trace(&format!("{now} up {up} {job:?} {record:?}"));
        }
    }

    /// No GPU has two processes of jobs that do not share.
    fn check(&self) {
        for ((node, gpu), tags) in self.slurm.shared() {
            let consent = |tag: &String| {
                let mut jobs = self.placer.records.iter();
                jobs.any(|(id, record)| {
                    id.as_str().ends_with(tag.as_str()) && record.spec.consents_to_sharing
                })
            };
            assert!(
                self.plan.level == Level::Share && tags.len() <= 2 && tags.iter().all(consent),
                "{node}:{gpu} is shared by {tags:?}"
            );
        }
    }

    /// Whether every job is over, in Slurm and in the records.
    pub(crate) fn is_over(&self) -> bool {
        let jobs = self.slurm.jobs.values().filter(|job| job.shown.partition == "gpu");
        let mut records = self.placer.records.values();
        jobs.into_iter().all(|job| job.shown.state.is_final())
            && records.all(|record| record.phase.is_final())
    }

    /// What is not over, for a failed test.
    pub(crate) fn open(&self) -> String {
        let jobs = self.slurm.jobs.values().filter(|job| !job.shown.state.is_final());
        let records = self.placer.records.values().filter(|record| !record.phase.is_final());
        let brief = |record: &JobRecord| {
            (
                record.spec.job.clone(),
                record.phase,
                record.next_phase,
                record.attempt,
                record.placement.clone(),
            )
        };
        format!(
            "{:#?}\n{:#?}\nreleased {:?}",
            jobs.collect::<Vec<_>>(),
            records.map(brief).collect::<Vec<_>>(),
            self.stored.released
        )
    }

    /// Every job that Slurm has not lost and that was not cancelled has completed, and its record has it.
    pub(crate) fn check_ends(&self) {
        for tag in &self.tags {
            let program = &self.slurm.programs[tag];
            let record = self
                .placer
                .records
                .values()
                .find(|record| record.spec.job.as_str().ends_with(tag.as_str()));
            let Some(record) = record else {
                // Lost before the machine saw it, or cancelled while it was held.
                assert!(self.plan.loses_memory || self.cancelled.contains(tag), "{tag} was lost");
                continue;
            };
            if self.cancelled.contains(tag) {
                continue;
            }
            let vanished = self
                .alarms
                .iter()
                .any(|alarm| alarm.contains(tag) && alarm.contains("neither in Slurm"));
            // A requeue by others that slurmctld has forgotten: its SIGTERM ended the program.
            let is_forgotten = self.plan.loses_memory && program.requeued;
            if is_forgotten && record.phase == JobPhase::Failed {
                continue;
            }
            if record.phase == JobPhase::Cancelled {
                assert!(
                    vanished && self.plan.loses_memory,
                    "{tag} was cancelled without a request: {record:#?}"
                );
                continue;
            }
            assert_eq!(record.phase, JobPhase::Finished, "{record:#?} {program:?}");
            assert!(
                program.completed_at.is_some() || is_forgotten,
                "{tag} has not completed: {record:#?}"
            );
        }
    }
}
