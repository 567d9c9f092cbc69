//! The jobs of this node, joined from three sources.
//!
//! The launcher reports which job runs on which GPUs and how its processes are recognised. The
//! placer's record contains the workload and the complete placement. The job reports its progress.
//! These arrive in any order, and each waits for the others. All state is bounded: a job that
//! neither runs nor is placed on this node is forgotten.

use std::collections::{BTreeMap, VecDeque};

use wattle_common::comparison::DefaultRatio;
use wattle_common::messages::{
    JobProcesses, JobProgressed, JobRecord, LaunchReport, LaunchState, LaunchedJob,
};
use wattle_common::progress::Progress;
use wattle_common::{AdmissionId, GpuIndex, JobId, NodeId, Timestamp};

use crate::process_tree::ProcessOrigin;
use crate::sender::Sender;
use crate::steps::StepMeter;
use crate::window::{Conditions, DeclaredJob, OpenWindow};

/// Number of reports from which the published step rate is computed.
const RATE_REPORTS: usize = 16;
/// Most jobs whose progress is kept before the launcher reports them.
const UNPLACED_MAX: usize = 64;

/// A job's progress as it reports it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReportedProgress {
    pub(crate) step: Option<u64>,
    pub(crate) steps_total: Option<u64>,
    pub(crate) steps_per_epoch: Option<u64>,
    pub(crate) epoch: Option<u32>,
    pub(crate) global_batch: Option<u32>,
    recent: VecDeque<(Timestamp, u64)>,
    published_at: Option<Timestamp>,
}

impl ReportedProgress {
    /// Adds a line; returns whether it ended an epoch.
    pub(crate) fn report(&mut self, now: Timestamp, line: &Progress) -> bool {
        self.steps_total = line.steps_total.or(self.steps_total);
        self.steps_per_epoch = line.steps_per_epoch.or(self.steps_per_epoch);
        self.global_batch = line.global_batch.or(self.global_batch);
        if self.step.is_some_and(|step| line.step < step) {
            return false; // a rank that is behind
        }
        self.step = Some(line.step);
        if self.recent.back().is_none_or(|(at, _)| *at < now) {
            if self.recent.len() == RATE_REPORTS {
                self.recent.pop_front();
            }
            self.recent.push_back((now, line.step));
        }
        let counted = || {
            let epochs = line.step.checked_div(self.steps_per_epoch?)?;
            u32::try_from(epochs).ok()
        };
        let epoch = line.epoch.or_else(counted);
        let ended = epoch.is_some_and(|epoch| self.epoch.is_some_and(|before| epoch > before));
        self.epoch = epoch.max(self.epoch);
        ended
    }

    fn per_s(&self) -> Option<f64> {
        let mut meter = StepMeter::default();
        for (at, step) in &self.recent {
            meter.report(*at, *step);
        }
        meter.rate().map(|rate| rate.per_s)
    }
}

/// A job whose processes run on this node.
#[derive(Clone, Debug)]
pub(crate) struct LocalJob {
    pub(crate) admission: Option<AdmissionId>,
    pub(crate) attempt: u32,
    pub(crate) gpus: Vec<GpuIndex>,
    pub(crate) processes: Option<JobProcesses>,
    /// User of the verified sender of its progress.
    verified: Option<u32>,
    pub(crate) pace: ReportedProgress,
    pub(crate) meter: StepMeter,
    /// Its conditions at the last sampling instant; `None` if they were not known completely.
    pub(crate) conditions: Option<Conditions>,
    pub(crate) window: Option<OpenWindow>,
    /// Earliest opening of a window.
    pub(crate) opens_from: Timestamp,
    /// Number of windows stored on this placement.
    pub(crate) windows: u32,
    /// Whether an epoch ended since the last sample.
    pub(crate) epoch_ended: bool,
}

/// Whether `name` is the id without its last part. The environment of a job that Slurm places has only
/// `slurm-42`. A shortened id is accepted only from processes of that job.
fn is_shortened(name: &JobId, id: &JobId) -> bool {
    id.as_str().rsplit_once('-').is_some_and(|(start, _)| start == name.as_str())
}

/// All jobs of this node.
#[derive(Clone, Debug)]
pub(crate) struct JobTable {
    node: NodeId,
    /// When the launcher last reported its jobs.
    pub(crate) reported_at: Option<Timestamp>,
    /// The newest desired state that this report reflects.
    pub(crate) observed_generation: u64,
    pub(crate) local: BTreeMap<JobId, LocalJob>,
    pub(crate) declared: BTreeMap<JobId, DeclaredJob>,
    /// The default setting against that of each declared job, where its prediction compares them.
    pub(crate) ratios: BTreeMap<JobId, DefaultRatio>,
    /// Progress of jobs that the launcher has not reported yet, with its sender.
    unplaced: BTreeMap<JobId, (ReportedProgress, Sender)>,
}

/// The effect of a progress line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ProgressResult {
    /// Kept; this message is due, if any.
    Kept(Option<JobProgressed>),
    /// Ignored: the sender does not speak for the job.
    Refused,
}

impl JobTable {
    pub(crate) fn new(node: NodeId) -> Self {
        Self {
            node,
            reported_at: None,
            observed_generation: 0,
            local: BTreeMap::new(),
            declared: BTreeMap::new(),
            ratios: BTreeMap::new(),
            unplaced: BTreeMap::new(),
        }
    }

    /// Applies the launcher's report. Returns the jobs that no longer run, for their last windows.
    pub(crate) fn launched(
        &mut self,
        now: Timestamp,
        report: &LaunchReport,
    ) -> Vec<(JobId, LocalJob)> {
        self.reported_at = Some(now);
        self.observed_generation = report.observed_generation;
        let mut before = std::mem::take(&mut self.local);
        let mut ended = Vec::new();
        for job in &report.jobs {
            // A stopping job still draws power while it writes its checkpoint.
            if !matches!(job.state, LaunchState::Running | LaunchState::Stopping) {
                continue;
            }
            let mut gpus = job.gpus.clone();
            gpus.sort_unstable();
            gpus.dedup();
            let same = before.remove(&job.job).and_then(|known| {
                let is_same = (known.attempt, &known.admission) == (job.attempt, &job.admission);
                if is_same && known.gpus == gpus {
                    return Some(known);
                }
                ended.push((job.job.clone(), known));
                None
            });
            let mut local = same.unwrap_or_else(|| LocalJob {
                admission: job.admission.clone(),
                attempt: job.attempt,
                gpus,
                processes: None,
                verified: None,
                pace: self.unplaced_progress(job),
                meter: StepMeter::default(),
                conditions: None,
                window: None,
                opens_from: Timestamp::EPOCH,
                windows: 0,
                epoch_ended: false,
            });
            local.processes.clone_from(&job.processes);
            self.local.insert(job.job.clone(), local);
        }
        ended.extend(before);
        ended
    }

    /// What the job's own processes reported before the launcher did.
    fn unplaced_progress(&mut self, job: &LaunchedJob) -> ReportedProgress {
        let shortened = || {
            let own = |name: &JobId, sender: &Sender| {
                is_shortened(name, &job.job) && sender.is_of(job.processes.as_ref())
            };
            let (name, _) = self.unplaced.iter().find(|(name, (_, sender))| own(name, sender))?;
            Some(name.clone())
        };
        let name = if self.unplaced.contains_key(&job.job) { None } else { shortened() };
        let found = self.unplaced.remove(name.as_ref().unwrap_or(&job.job));
        let own = found.filter(|(_, sender)| sender.speaks_for(job.processes.as_ref(), None));
        own.map(|(progress, _)| progress).unwrap_or_default()
    }

    /// Applies the placer's record of a job.
    pub(crate) fn recorded(&mut self, record: &JobRecord) {
        let here = record.placement.as_ref().filter(|_| !record.phase.is_final()).and_then(|all| {
            let share = all.shares.iter().find(|share| share.node == self.node)?;
            let mut gpus = share.gpus.clone();
            gpus.sort_unstable();
            Some(DeclaredJob {
                admission: record.admission.clone(),
                workload: record.spec.workload.clone(),
                user: record.spec.user.clone(),
                project: record.spec.project.clone(),
                gpus,
                gpus_total: all.gpu_count(),
                nodes_total: all.node_count(),
            })
        });
        let job = &record.spec.job;
        let Some(declared) = here else { return self.forgotten(job) };
        self.declared.insert(job.clone(), declared);
        match record.prediction_placed.as_deref().and_then(DefaultRatio::of) {
            Some(ratio) => self.ratios.insert(job.clone(), ratio),
            None => self.ratios.remove(job),
        };
    }

    /// Removes a deleted record.
    pub(crate) fn forgotten(&mut self, job: &JobId) {
        self.declared.remove(job);
        self.ratios.remove(job);
    }

    /// Applies a job's progress line.
    pub(crate) fn progressed(
        &mut self,
        now: Timestamp,
        line: &Progress,
        sender: &Sender,
        every: std::time::Duration,
    ) -> ProgressResult {
        let job = self.named_by(line, sender);
        let Some(local) = self.local.get_mut(&job) else {
            if self.unplaced.len() < UNPLACED_MAX || self.unplaced.contains_key(&line.job) {
                let new = || (ReportedProgress::default(), sender.clone());
                let entry = self.unplaced.entry(line.job.clone()).or_insert_with(new);
                if entry.1 != *sender {
                    *entry = new();
                }
                entry.0.report(now, line);
            } else {
                // A flood of invented names displaces other invented names.
                self.unplaced.pop_first();
            }
            return ProgressResult::Kept(None);
        };
        if !sender.speaks_for(local.processes.as_ref(), local.verified) {
            return ProgressResult::Refused;
        }
        if sender.is_of(local.processes.as_ref()) {
            local.verified = sender.uid;
        }
        let ended = local.pace.report(now, line);
        local.meter.report(now, line.step);
        local.epoch_ended |= ended;
        let due = local.pace.published_at.is_none_or(|at| now.since(at) >= every);
        let Some(step) = local.pace.step.filter(|_| ended || due) else {
            return ProgressResult::Kept(None);
        };
        local.pace.published_at = Some(now);
        ProgressResult::Kept(Some(JobProgressed {
            job,
            admission: local.admission.clone(),
            node: self.node.clone(),
            attempt: local.attempt,
            at_us: now,
            step,
            steps_total: local.pace.steps_total,
            epoch: local.pace.epoch,
            steps_per_epoch: local.pace.steps_per_epoch,
            steps_per_s: local.pace.per_s(),
        }))
    }

    /// The job that a line names, whole or shortened.
    fn named_by(&self, line: &Progress, sender: &Sender) -> JobId {
        if self.local.contains_key(&line.job) {
            return line.job.clone();
        }
        let owner = self.owner(&sender.origin).filter(|owner| is_shortened(&line.job, owner));
        owner.unwrap_or(&line.job).clone()
    }

    /// The submissions of jobs, as far as the launcher has reported them.
    pub(crate) fn admissions(&self, jobs: &[JobId]) -> BTreeMap<JobId, AdmissionId> {
        let of = |job: &JobId| Some((job.clone(), self.local.get(job)?.admission.clone()?));
        jobs.iter().filter_map(of).collect()
    }

    /// The record of the submission that runs here. A record may be of another submission of the same name,
    /// whose owner may be another person.
    pub(crate) fn declared(&self, job: &JobId) -> Option<&DeclaredJob> {
        let running = self.local.get(job).and_then(|local| local.admission.as_ref());
        self.declared
            .get(job)
            .filter(|known| running.is_none() || known.admission.as_ref() == running)
    }

    /// The job that a process belongs to.
    pub(crate) fn owner(&self, origin: &ProcessOrigin) -> Option<&JobId> {
        let owns = |job: &LocalJob| job.processes.as_ref().is_some_and(|own| origin.is_of(own));
        self.local.iter().find(|(_, job)| owns(job)).map(|(id, _)| id)
    }
}
