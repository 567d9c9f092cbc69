//! A small model of Slurm: held jobs, releases, requeues, node failures, and a slurmctld that loses the last
//! seconds of its memory and gives job ids again.

mod running;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use wattle_common::job::{NodeNeeds, NodeShare};
use wattle_common::rng::Stream;
use wattle_common::{GpuIndex, NodeId, Timestamp};
use wattle_slurm::{
    Command, PastRun, PastState, Place, ScriptEnd, SlurmError, SlurmJob, SlurmNode, SlurmState,
    SlurmView,
};

pub(crate) const GPUS: u32 = 4;
/// How long an ended job stays in slurmctld's memory.
const MIN_JOB_AGE: Duration = Duration::from_secs(60);
/// How long slurmctld waits for a node before it requeues its jobs.
const NODE_TIMEOUT: Duration = Duration::from_secs(10);
/// How far a requeue moves the begin time.
const REQUEUE_DELAY: Duration = Duration::from_secs(121);

/// What really happened to a program, whatever slurmctld remembers.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) work_ms: u64,
    pub(crate) done_ms: u64,
    pub(crate) signal: Option<&'static str>,
    pub(crate) exit: Option<i32>,
    pub(crate) completed_at: Option<Timestamp>,
    /// Whether nothing shows that it had completed before its requeue: both were in one second, or it
    /// completed after its signal and has the same exit code for both.
    pub(crate) ambiguous: bool,
    /// Whether a user or an administrator has requeued it. If slurmctld forgets that, nothing shows that
    /// its end with code 0 was a checkpoint.
    pub(crate) requeued: bool,
    /// When the machine first requested the stop of its last run.
    pub(crate) stop_at: Option<Timestamp>,
    pub(crate) starts: u32,
}

#[derive(Clone, Debug)]
struct Process {
    slurm_id: u32,
    restarts: u32,
    on: Vec<NodeShare>,
    started_at: Timestamp,
    ends_at: Timestamp,
    /// Signalled: ends before its work is done, with this exit.
    stops: Option<(i32, i32)>,
    by_machine: bool,
}

#[derive(Clone, Debug)]
struct Ended {
    slurm_id: u32,
    restarts: u32,
    exit: (i32, i32),
    at: Timestamp,
}

#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) shown: SlurmJob,
    begin: Timestamp,
    /// Not before this instant the scheduler starts it.
    start_at: Option<Timestamp>,
    requeues: bool,
    /// Whether the machine's command released it.
    by_machine: bool,
    missing_since: Option<Timestamp>,
}

pub(crate) struct Slurm {
    pub(crate) now: Timestamp,
    pub(crate) up: bool,
    pub(crate) database_up: bool,
    pub(crate) jobs: BTreeMap<u32, Job>,
    next_id: u32,
    pub(crate) down: BTreeMap<NodeId, Timestamp>,
    nodes: Vec<NodeId>,
    processes: BTreeMap<String, Process>,
    ended: BTreeMap<String, Ended>,
    rows: Vec<(PastRun, u32)>,
    saved: VecDeque<(Timestamp, BTreeMap<u32, Job>, u32)>,
    pub(crate) programs: BTreeMap<String, Program>,
    rng: Stream,
}

fn second(at: Timestamp) -> Timestamp {
    Timestamp::from_s(at.as_us() / 1_000_000)
}

fn tag_of(job: &SlurmJob) -> String {
    job.admin_comment
        .split_whitespace()
        .find_map(|word| word.strip_prefix("tag="))
        .unwrap_or("")
        .to_owned()
}

impl Slurm {
    pub(crate) fn new(nodes: u32, seed: u64) -> Self {
        let nodes = (0..nodes).map(|node| NodeId::new(&format!("n{node}")).unwrap()).collect();
        Self {
            now: Timestamp::from_s(1_000_000),
            up: true,
            database_up: true,
            jobs: BTreeMap::new(),
            next_id: 1,
            down: BTreeMap::new(),
            nodes,
            processes: BTreeMap::new(),
            ended: BTreeMap::new(),
            rows: Vec::new(),
            saved: VecDeque::new(),
            programs: BTreeMap::new(),
            rng: Stream::new(seed, "slurm"),
        }
    }

    fn delay(&mut self, max_ms: u64) -> Duration {
        Duration::from_millis(1 + self.rng.below(max_ms))
    }

    /// Submits a job that the intake plugin holds, or one of another partition; returns its tag.
    pub(crate) fn submit(
        &mut self,
        user: &str,
        nodes: u32,
        gpus: u32,
        program: Program,
        share: bool,
    ) -> String {
        let tag = format!("{:08x}{:05x}", self.now.as_us() / 1_000_000, self.rng.below(0xf_ffff));
        let id = self.next_id;
        self.next_id += 1;
        let mut comment = String::from("wattle:");
        if let Some(signal) = program.signal {
            comment.push_str(&format!(" gpus={nodes}..{} signal={signal}", nodes * GPUS));
        }
        if let Some(exit) = program.exit {
            comment.push_str(&format!(" exit={exit}"));
        }
        if share {
            comment.push_str(" share");
        }
        let shown = SlurmJob {
            id,
            array: None,
            unsplit_tasks: Vec::new(),
            uid: 1_000,
            name: "train".to_owned(),
            user: user.to_owned(),
            account: "lab".to_owned(),
            partition: "gpu".to_owned(),
            state: SlurmState::Pending,
            reason: "JobHeldUser".to_owned(),
            held: true,
            is_batch: true,
            requeue: true,
            restarts: 0,
            submitted_at: second(self.now),
            started_at: None,
            ended_at: None,
            time_limit: None,
            waits: false,
            nodes,
            gpus_per_node: gpus,
            needs: NodeNeeds { cpus: 1, ..NodeNeeds::default() },
            features: String::new(),
            gres: format!("gpu:{gpus}"),
            required_nodes: Vec::new(),
            whole_nodes: false,
            is_special: false,
            on: Vec::new(),
            exit: None,
            comment,
            admin_comment: format!("wattle: tag={tag} nodes={nodes} gpus_per_node={gpus}"),
            output: "out".to_owned(),
        };
        self.programs.insert(tag.clone(), program);
        let job = Job {
            shown,
            begin: self.now,
            start_at: None,
            requeues: false,
            by_machine: false,
            missing_since: None,
        };
        self.jobs.insert(id, job);
        tag
    }

    /// A job of another partition, which Slurm starts itself.
    pub(crate) fn submit_foreign(&mut self, gpus: u32, work_ms: u64) {
        let program = Program {
            work_ms,
            done_ms: 0,
            signal: None,
            exit: None,
            completed_at: None,
            ambiguous: false,
            stop_at: None,
            requeued: false,
            starts: 0,
        };
        let id = self.next_id;
        let tag = self.submit("eve", 1, gpus, program, false);
        if let Some(job) = self.jobs.get_mut(&id) {
            job.shown.partition = "other".to_owned();
            job.shown.held = false;
            // The model finds its program by this word; it is no tag of the intake plugin.
            job.shown.admin_comment = format!("other tag={tag}");
        }
    }

    pub(crate) fn view(&self) -> Result<SlurmView, SlurmError> {
        self.answers()?;
        let jobs = self.jobs.iter().map(|(id, job)| (*id, job.shown.clone())).collect();
        let node = |node: &NodeId| {
            let used =
                self.jobs.values().filter(|job| job.shown.on.iter().any(|s| s.node == *node));
            let node_view = SlurmNode {
                asleep: false,
                gpus_used: Vec::new(),
                unavailable: self.down.contains_key(node).then(|| "down".to_owned()),
                cpus: 64,
                memory_mib: 64_000,
                cpus_allocated: used.count() as u32,
                memory_mib_allocated: 0,
                gpus: (0..GPUS).collect(),
                partitions: vec!["gpu".to_owned(), "other".to_owned()],
                features: Vec::new(),
            };
            (node.clone(), node_view)
        };
        Ok(SlurmView {
            at: self.now,
            jobs,
            nodes: self.nodes.iter().map(node).collect(),
            unreadable: BTreeSet::new(),
        })
    }

    fn answers(&self) -> Result<(), SlurmError> {
        let error = "Connection refused".to_owned();
        if self.up {
            Ok(())
        } else {
            Err(SlurmError::Away { command: "scontrol".to_owned(), error })
        }
    }

    pub(crate) fn past(&self, ids: &[u32]) -> Result<Vec<PastRun>, SlurmError> {
        if !self.database_up {
            let error = "Connection refused".to_owned();
            return Err(SlurmError::Away { command: "sacct".to_owned(), error });
        }
        Ok(self
            .rows
            .iter()
            .map(|(row, _)| row)
            .filter(|row| ids.contains(&row.id))
            .cloned()
            .collect())
    }

    /// Carries out a command of the machine.
    pub(crate) fn execute(&mut self, command: &Command) -> Result<(), SlurmError> {
        self.answers()?;
        let refused = |error: &str| SlurmError::Refused {
            command: format!("{command:?}"),
            error: error.to_owned(),
        };
        match command {
            Command::Hold(ids) => ids.iter().for_each(|id| self.hold(*id)),
            Command::Place(place) => return self.place(place),
            Command::Checkpoint { id, signal } => self.signal(*id, signal),
            Command::RequeueHold(id) => {
                if !self.requeue(*id, true) {
                    return Err(refused("Requested operation is presently disabled"));
                }
            }
            Command::Cancel(id) => self.cancel(*id),
            Command::SetAdminComment { .. } | Command::SplitArray { .. } => {}
        }
        Ok(())
    }

    fn hold(&mut self, id: u32) {
        if let Some(job) = self.jobs.get_mut(&id)
            && job.shown.state == SlurmState::Pending
        {
            (job.shown.held, job.start_at) = (true, None);
            job.shown.reason = "JobHeldAdmin".to_owned();
        }
    }

    fn place(&mut self, place: &Place) -> Result<(), SlurmError> {
        let now = self.now;
        let Place { id, gres, nodes, .. } = place;
        let not_applied =
            SlurmError::NotApplied { id: *id, found: "other".to_owned(), wanted: gres.clone() };
        let quirk = self.rng.below(20) == 0;
        let Some(job) = self.jobs.get_mut(id) else { return Err(not_applied) };
        let shown = &mut job.shown;
        let is_ready = shown.state == SlurmState::Pending
            && shown.held
            && shown.admin_comment == place.admin_comment;
        if !is_ready {
            return Err(not_applied);
        }
        shown.gres.clone_from(gres);
        shown.required_nodes.clone_from(nodes);
        shown.nodes = nodes.len() as u32;
        if quirk {
            return Err(not_applied);
        }
        job.begin = now;
        job.by_machine = true;
        shown.held = false;
        shown.reason = "None".to_owned();
        Ok(())
    }

    /// A user or an administrator releases a job.
    pub(crate) fn release(&mut self, id: u32) {
        if let Some(job) = self.jobs.get_mut(&id)
            && job.shown.state == SlurmState::Pending
        {
            (job.shown.held, job.by_machine) = (false, false);
            job.shown.reason = "None".to_owned();
        }
    }

    fn signal(&mut self, id: u32, signal: &str) {
        let Some(job) = self.jobs.get(&id).filter(|job| job.shown.state == SlurmState::Running)
        else {
            return;
        };
        let tag = tag_of(&job.shown);
        let took = self.delay(2_000);
        let now = self.now;
        let Some(program) = self.programs.get(&tag) else { return };
        let Some(process) = self.processes.get_mut(&tag).filter(|p| p.slurm_id == id) else {
            return;
        };
        if process.ends_at > now + took {
            process.ends_at = now + took;
            let catches = program.signal == Some(signal);
            process.stops = Some(if catches { (program.exit.unwrap_or(0), 0) } else { (0, 15) });
        }
    }

    /// Puts a job back into the queue; returns whether Slurm accepts that.
    pub(crate) fn requeue(&mut self, id: u32, hold: bool) -> bool {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&id) else { return false };
        match job.shown.state {
            SlurmState::Running => {
                job.requeues = true;
                job.shown.state = SlurmState::Completing;
                job.shown.held = hold;
                job.shown.restarts += 1;
                let tag = tag_of(&job.shown);
                let signalled = self.programs.get(&tag).and_then(|program| program.signal);
                let restarts = self.jobs[&id].shown.restarts - 1;
                self.row(id, restarts, |row| {
                    (row.state, row.ended_at) = (PastState::Requeued, Some(second(now)));
                });
                // SIGTERM: a program that does not catch it ends at once.
                let took = self.delay(1_500);
                if let Some(process) = self.processes.get_mut(&tag)
                    && process.ends_at > now + took
                {
                    process.ends_at = now + took;
                    let code = match signalled {
                        Some("TERM") => (0, 0),
                        _ => (0, 15),
                    };
                    process.stops = Some(code);
                }
                true
            }
            SlurmState::Completed | SlurmState::Failed | SlurmState::NodeFailed => {
                job.shown.restarts += 1;
                let tag = tag_of(&job.shown);
                let completed_at = self.programs.get(&tag).and_then(|program| program.completed_at);
                if completed_at.is_some_and(|at| second(at) == second(now))
                    && let Some(program) = self.programs.get_mut(&tag)
                {
                    program.ambiguous = true;
                }
                let restarts = self.jobs[&id].shown.restarts - 1;
                self.row(id, restarts, |row| {
                    (row.state, row.ended_at) = (PastState::Requeued, Some(second(now)));
                });
                self.back(id, hold, "job_requeued_in_held_state");
                true
            }
            _ => false,
        }
    }

    /// A job is pending again.
    fn back(&mut self, id: u32, hold: bool, reason: &str) {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.begin = now + REQUEUE_DELAY;
        (job.start_at, job.requeues, job.missing_since) = (None, false, None);
        job.by_machine = false;
        let shown = &mut job.shown;
        shown.state = SlurmState::Pending;
        shown.submitted_at = second(now);
        (shown.started_at, shown.ended_at, shown.exit) = (None, None, None);
        shown.on.clear();
        shown.held = hold;
        shown.reason = if hold { reason.to_owned() } else { "BeginTime".to_owned() };
    }

    pub(crate) fn cancel(&mut self, id: u32) {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&id).filter(|job| !job.shown.state.is_final()) else {
            return;
        };
        let tag = tag_of(&job.shown);
        job.shown.state = SlurmState::Cancelled;
        job.shown.ended_at = Some(second(now));
        job.shown.on.clear();
        let restarts = job.shown.restarts;
        self.processes.remove(&tag);
        self.row(id, restarts, |row| {
            row.state = PastState::Job(SlurmState::Cancelled);
            row.ended_at = Some(second(now));
        });
    }

    /// Changes the row of a run in the accounting database.
    fn row(&mut self, id: u32, restarts: u32, change: impl FnOnce(&mut PastRun)) {
        // Another job may have had the id.
        let comment = self.jobs.get(&id).map(|job| job.shown.admin_comment.clone());
        let row = self.rows.iter_mut().rev().find(|(row, count)| {
            row.id == id && *count == restarts && Some(&row.admin_comment) == comment.as_ref()
        });
        if let Some((row, _)) = row {
            change(row);
        }
    }

    /// A node fails with its processes.
    pub(crate) fn fail_node(&mut self, node: &NodeId, back_at: Timestamp) {
        self.down.insert(node.clone(), back_at);
        self.processes.retain(|_, process| process.on.iter().all(|share| share.node != *node));
    }

    pub(crate) fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// slurmctld is killed: it comes back with its state of up to five seconds before.
    pub(crate) fn kill(&mut self) {
        let lost = self.delay(5_000);
        let until = self.now - lost;
        while self.saved.len() > 1 && self.saved.back().is_some_and(|(at, ..)| *at > until) {
            self.saved.pop_back();
        }
        if let Some((_, jobs, next_id)) = self.saved.back().cloned() {
            self.jobs = jobs;
            self.next_id = next_id;
            // Slurm starts again what it has forgotten to have started.
            self.jobs.values_mut().for_each(|job| job.by_machine = false);
        }
        self.up = false;
    }
}

fn named(gres: &str, name: &str) -> BTreeSet<GpuIndex> {
    let index =
        |item: &str| item.strip_prefix(name)?.strip_prefix(":g")?.split(':').next()?.parse().ok();
    gres.split(',').filter_map(index).collect()
}
