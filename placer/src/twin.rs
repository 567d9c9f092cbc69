//! The twin: the schedule that the site's former scheduler would have made of the same submissions.
//!
//! A twin runs the policy of a [`Baseline`] on a copy of the cluster, at default caps and clocks, on the requested number of
//! GPUs, without co-tenants, with all nodes awake. It follows the cluster's time and receives the cluster's
//! submissions, completions and nodes. Mean completion times, waiting times and energy of both schedules are then
//! compared on the same jobs.
//!
//! * **Work.** A job's run time in the twin ([`work`]) is its measured steps over its predicted speed at the default
//!   setting on the requested GPUs. Until the job ends in the cluster, its run time is an estimate. When it ends, the
//!   run time is known, and where the twin's past depends on it, the twin returns to a checkpoint before that instant
//!   and runs again ([`history`]).
//! * **A job that completes later in the cluster** than in the twin ends in the twin by its estimate until then.
//! * **A job that fails** fails in the twin after the same work.
//! * **A job that is cancelled** is cancelled in the twin at the same instant, unless it has ended there.
//! * **A job that is resized, moved or shares GPUs** runs in the twin without interruption on the requested GPUs.
//! * **A job on a node that is lost** returns to the queue in the twin and keeps its work.
//! * **Power limits** do not bind the twin: the former scheduler had none.
//!
//! Only jobs that completed in both schedules count in mean times, each equally ([`sums`]). The twin's energy of a job
//! is its run time there at its predicted power at the default setting ([`wattle_common::messages::Surface`]).
//!
//! The twin makes no decision about the cluster. Its figures are inputs of the energy aim and of reports.

mod history;
mod schedule;
mod stored;
mod sums;
mod work;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use wattle_common::aim::Baseline;
use wattle_common::messages::{TWIN_COUNTS_AFTER, TwinAbsence, TwinSums};
use wattle_common::{JobId, Timestamp};

use crate::accounts::rules::AccountRules;
use crate::policies::{Backfill, Fifo, Policy};
use crate::state::cluster::ClusterState;
use crate::state::job::{Job, JobFacts};
use crate::state::node::{NodeFacts, NodeWatts, Wakefulness};

use history::{History, Input};
use work::{NodeSizes, Work};

pub use stored::{RecordedJob, Records};
pub use sums::{Owner, Sums};

/// The policy of a baseline.
#[must_use]
pub fn policy_of(baseline: Baseline) -> Box<dyn Policy> {
    match baseline {
        Baseline::Backfill => Box::new(Backfill::default()),
        Baseline::Fifo => Box::new(Fifo),
    }
}

/// The number of a submission, in order. Ids of jobs may be submitted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Submission(u64);

/// What a submission is in the cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
enum InCluster {
    /// It waits or runs.
    Present,
    /// It waits in the queue of the site's scheduler, which the cluster's state does not have.
    AtSite,
    /// It completed then, after this run time.
    Completed { at: Timestamp, ran: Duration },
    /// It failed or was cancelled.
    Removed,
}

/// A submission and its work.
#[derive(Clone, Debug)]
struct Mirrored {
    /// Its facts, with its user and project.
    facts: Arc<JobFacts>,
    work: Work,
    in_cluster: InCluster,
}

impl Mirrored {
    const fn has_left(&self) -> bool {
        matches!(self.in_cluster, InCluster::Completed { .. } | InCluster::Removed)
    }
}

/// How a job left the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// It completed.
    Completed,
    /// It failed: it would have failed after the same work.
    Failed,
    /// It was cancelled, or rejected.
    Cancelled,
    /// It waits in the queue of the site's scheduler.
    WaitsAtSite,
}

/// Longest time between two steps over which the power of the nodes counts.
const SPAN_MAX: Duration = Duration::from_mins(10);

/// The nodes without jobs.
#[derive(Clone, Copy, Debug, Default)]
struct Rest {
    /// Their power, all awake, W.
    awake_w: f64,
    /// What sleep saves of it now, W.
    slept_w: f64,
    /// Number of all nodes.
    nodes: f64,
    /// Number of those asleep.
    asleep: f64,
}

/// The nodes without jobs now; `None` while the power of a node is not known.
fn rest(state: &ClusterState) -> Option<Rest> {
    let mut sum = Rest::default();
    for node in state.nodes() {
        let facts = &node.facts;
        let of_type = state.gpu_power(&facts.gpu_type);
        let (host, gpu_idle) = match (facts.watts, of_type) {
            (Some(NodeWatts { host, gpu_idle, .. }), _) => (host, gpu_idle),
            (None, Some(power)) => (power.host, power.idle),
            (None, None) => return None,
        };
        let rest_w = host.as_w() + f64::from(facts.gpus) * gpu_idle.as_w();
        sum.awake_w += rest_w;
        sum.nodes += 1.0;
        if node.wakefulness == Wakefulness::Asleep {
            sum.slept_w += rest_w - facts.watts?.asleep.as_w();
            sum.asleep += 1.0;
        }
    }
    Some(sum)
}

/// The twin of a cluster.
#[derive(Clone, Debug)]
pub struct Twin {
    baseline: Baseline,
    /// The submissions that are not in [`Self::settled`] yet.
    jobs: BTreeMap<Submission, Mirrored>,
    /// The submissions that the cluster has now.
    present: BTreeMap<JobId, Submission>,
    submissions: u64,
    history: History,
    settled: Sums,
    nodes: Arc<[NodeFacts]>,
    since: Timestamp,
    absences: Vec<TwinAbsence>,
    /// When its sums were computed from the records of jobs.
    replayed_at: Option<Timestamp>,
    /// The latest submission of each id that has left the cluster, until it is in the sums.
    left: BTreeMap<JobId, Submission>,
    /// The nodes without jobs now.
    rest: Option<Rest>,
    followed_to: Timestamp,
}

impl Twin {
    /// A twin of an empty cluster, from `now` on. Quotas and fair shares are those of the site.
    #[must_use]
    pub fn new(baseline: Baseline, accounts: Arc<AccountRules>, now: Timestamp) -> Self {
        Self {
            baseline,
            jobs: BTreeMap::new(),
            present: BTreeMap::new(),
            submissions: 0,
            history: History::new(baseline, accounts, now),
            settled: Sums::default(),
            nodes: Arc::from([]),
            since: now,
            absences: Vec::new(),
            replayed_at: None,
            left: BTreeMap::new(),
            rest: None,
            followed_to: now,
        }
    }

    /// The policy of the twin.
    #[must_use]
    pub const fn baseline(&self) -> Baseline {
        self.baseline
    }

    /// A job was submitted to the cluster. A known one is no longer in the queue of the site's scheduler.
    pub fn submitted(&mut self, facts: &JobFacts, now: Timestamp) {
        let Some(submission) = self.present.get(&facts.id) else {
            self.add(facts, now);
            return;
        };
        if let Some(mirrored) = self.jobs.get_mut(submission) {
            mirrored.in_cluster = InCluster::Present;
        }
    }

    /// A job was submitted to the site's scheduler.
    pub fn waits_at_site(&mut self, facts: &JobFacts, now: Timestamp) {
        if !self.present.contains_key(&facts.id) {
            let submission = self.add(facts, now);
            if let Some(mirrored) = self.jobs.get_mut(&submission) {
                mirrored.in_cluster = InCluster::AtSite;
            }
        }
    }

    fn next_submission(&mut self) -> Submission {
        let submission = Submission(self.submissions);
        self.submissions += 1;
        submission
    }

    fn add(&mut self, facts: &JobFacts, now: Timestamp) -> Submission {
        let submission = self.next_submission();
        self.present.insert(facts.id.clone(), submission);
        let facts = Arc::new(facts.clone());
        let mirrored = Mirrored {
            facts: Arc::clone(&facts),
            work: Work::default(),
            in_cluster: InCluster::Present,
        };
        self.jobs.insert(submission, mirrored);
        self.history.add(now, Input::Submitted(submission, facts));
        submission
    }

    /// A job leaves the cluster. `state` still has it.
    pub fn departed(&mut self, state: &ClusterState, id: &JobId, departure: Departure) {
        if departure == Departure::WaitsAtSite {
            let waiting = self.present.get(id).and_then(|waiting| self.jobs.get_mut(waiting));
            if let Some(mirrored) = waiting {
                mirrored.in_cluster = InCluster::AtSite;
            }
            return;
        }
        let Some(submission) = self.present.remove(id) else { return };
        let (now, job) = (state.now(), state.job_key(id).and_then(|key| state.job(key)));
        let Some(mirrored) = self.jobs.get_mut(&submission) else { return };
        if let Some(job) = job {
            mirrored.work.ended(state, &NodeSizes::of(state), job);
        }
        let ran = job.map_or(Duration::ZERO, |job| job.run_time(now));
        let has_run = !ran.is_zero();
        self.left.insert(id.clone(), submission);
        // Of a job whose run has no record, as after the loss of the store, there is nothing to compare.
        let is_completed = departure == Departure::Completed && has_run;
        mirrored.in_cluster =
            if is_completed { InCluster::Completed { at: now, ran } } else { InCluster::Removed };
        if is_completed || (departure == Departure::Failed && has_run) {
            let run_time = mirrored.work.run_time();
            self.history.run_time_known(submission, run_time);
        } else {
            self.history.add(now, Input::Withdrawn(submission));
        }
    }

    /// Follows the cluster to its present instant: the work of its jobs, its nodes, and time.
    pub fn advance(&mut self, state: &ClusterState) {
        let now = state.now();
        self.count_rest(state);
        self.follow_nodes(state, now);
        // A plan may reject a queued job.
        let is_rejected = |(id, submission): &(&JobId, &Submission)| {
            let known = self.jobs.get(submission);
            state.job_key(id).is_none()
                && known.is_some_and(|mirrored| mirrored.in_cluster == InCluster::Present)
        };
        let rejected: Vec<JobId> =
            self.present.iter().filter(is_rejected).map(|(id, _)| id.clone()).collect();
        for id in rejected {
            self.departed(state, &id, Departure::Cancelled);
        }
        let sizes = NodeSizes::of(state);
        for (id, submission) in &self.present {
            let Some(job) = state.job_key(id).and_then(|key| state.job(key)) else { continue };
            let Some(mirrored) = self.jobs.get_mut(submission) else { continue };
            mirrored.work.follow(state, &sizes, job);
            if let Some(run_time) = mirrored.work.run_time() {
                self.history.run_time_estimated(*submission, run_time);
            }
        }
        self.history.advance(now);
        self.settle();
    }

    /// Adds the energy of the nodes without jobs since the last call.
    fn count_rest(&mut self, state: &ClusterState) {
        let now = state.now();
        let span = now.since(std::mem::replace(&mut self.followed_to, now));
        // After a longer span it is not known which nodes slept.
        if let Some(rest) = self.rest.filter(|_| span <= SPAN_MAX) {
            let span_s = span.as_secs_f64();
            let sums = TwinSums {
                rest_j: rest.awake_w * span_s,
                slept_j: rest.slept_w * span_s,
                node_s: rest.nodes * span_s,
                node_s_asleep: rest.asleep * span_s,
                ..TwinSums::default()
            };
            self.settled.add(Owner::nodes(now), sums);
        }
        self.rest = rest(state);
    }

    /// The energy of a job in the cluster that is known now: measured on its GPUs and saved by caps and clocks, J, and
    /// whether some of it is not measured.
    pub fn metered(&mut self, id: &JobId, energy_j: f64, settings_j: f64, unmetered: bool) {
        let submission = self.present.get(id).or_else(|| self.left.get(id));
        let mirrored = submission.and_then(|submission| self.jobs.get_mut(submission));
        if let Some(Mirrored { work, .. }) = mirrored {
            let known = &mut work.known;
            (known.energy_j, known.settings_j, known.unmetered) =
                (Some(energy_j), settings_j, unmetered);
        }
    }

    /// The nodes of the cluster, for a twin that knows none: a job that arrives before the first step finds them.
    pub(crate) fn begin(&mut self, state: &ClusterState) {
        if self.nodes.is_empty() {
            self.follow_nodes(state, state.now());
        }
    }

    fn follow_nodes(&mut self, state: &ClusterState, at: Timestamp) {
        let nodes = state.nodes().iter().map(|node| node.facts.as_ref());
        if self.nodes.iter().eq(nodes.clone()) {
            return;
        }
        self.nodes = nodes.cloned().collect();
        let places = state.nodes().iter().map(|node| (node.switch, node.gpus_per_board));
        let input = Input::Nodes(Arc::clone(&self.nodes), places.collect());
        self.history.add(at, input);
    }

    /// Adds the submissions that have left both schedules for good to the sums.
    fn settle(&mut self) {
        let until = self.history.begins_at();
        let settled: Vec<Submission> = self
            .jobs
            .iter()
            .filter(|(submission, mirrored)| {
                self.counts(mirrored) && self.history.has_left(**submission, until)
            })
            .map(|(submission, _)| *submission)
            .collect();
        for submission in settled {
            if let Some(mirrored) = self.jobs.remove(&submission) {
                let id = &mirrored.facts.id;
                if self.left.get(id) == Some(&submission) {
                    self.left.remove(id);
                }
                let sums = self.compared(submission, &mirrored);
                sums.into_iter().for_each(|(owner, sums)| self.settled.add(owner, sums));
            }
            self.history.forget(submission);
        }
    }

    /// The sums of a job that completed in both schedules, with its owner.
    fn compared(&self, submission: Submission, mirrored: &Mirrored) -> Option<(Owner, TwinSums)> {
        let InCluster::Completed { at, ran } = mirrored.in_cluster else { return None };
        if !self.counts(mirrored) {
            return None;
        }
        let run = self.history.run(submission)?;
        let (start, end) = (run.start?, run.end?);
        let facts = &mirrored.facts;
        let since = |at: Timestamp| at.since(facts.submitted_at).as_secs_f64();
        let mut sums = TwinSums {
            jobs: 1,
            completion_s: since(at),
            completion_s_twin: since(end),
            wait_s: (since(at) - ran.as_secs_f64()).max(0.0),
            wait_s_twin: since(start),
            delay_square_s2: (since(at) - since(end)).powi(2),
            ..TwinSums::default()
        };
        let work = &mirrored.work.known;
        if let (Some(energy_j), Some(gpu_w), Some(idle_w), false) =
            (work.energy_j, work.gpu_w, work.gpu_idle_w, work.unmetered)
        {
            let gpu_s_twin = f64::from(facts.request.min) * work.run_time_s?;
            sums.compared = 1;
            sums.gpu_j = energy_j;
            sums.gpu_j_idle = work.gpu_s * idle_w;
            sums.gpu_j_twin = gpu_s_twin * gpu_w;
            sums.gpu_j_twin_idle = gpu_s_twin * idle_w;
            sums.error_j = sums.gpu_j_twin * work.error.unwrap_or_default();
            sums.error_square_j2 = sums.error_j * sums.error_j;
            sums.settings_j = work.settings_j;
            // What caps and clocks do not explain, by the time on GPUs.
            if work.gpu_s > 0.0 {
                let other_j = sums.jobs_saved_j() - sums.settings_j;
                sums.sharing_j = other_j * work.gpu_s_shared / work.gpu_s;
                sums.sizes_j = other_j * work.gpu_s_resized / work.gpu_s;
            }
        }
        Some((Owner::of(facts, at), sums))
    }

    /// Sums over all jobs that completed in both schedules, by day, user and project.
    #[must_use]
    pub fn sums(&self) -> Sums {
        let mut sums = self.settled.clone();
        for (submission, mirrored) in &self.jobs {
            let compared = self.compared(*submission, mirrored);
            compared.into_iter().for_each(|(owner, own)| sums.add(owner, own));
        }
        sums
    }

    /// The sums once the twin has completed the jobs that have left the cluster, for a cluster without jobs.
    #[must_use]
    pub fn completed(&self) -> Sums {
        let mut twin = self.clone();
        twin.history.complete();
        twin.followed_to = Timestamp::FOREVER;
        twin.sums()
    }

    /// The part of [`Self::completed`] that [`Self::sums`] does not have yet: of the jobs that have completed in the
    /// cluster and still wait or run in the twin. Empty while the cluster has jobs, whose work is not known.
    #[must_use]
    pub fn ahead(&self) -> Sums {
        let mut sums = Sums::ahead();
        if !self.present.is_empty() || self.presence() == (0, 0) {
            return sums;
        }
        let mut twin = self.clone();
        twin.history.complete();
        for (submission, mirrored) in &self.jobs {
            if self.compared(*submission, mirrored).is_none() {
                let compared = twin.compared(*submission, mirrored);
                compared.into_iter().for_each(|(owner, own)| sums.add(owner, own));
            }
        }
        sums
    }

    /// Whether the cluster has no job, and the energy of all that it completed is known: [`Self::sums`] and
    /// [`Self::ahead`] have each of them.
    #[must_use]
    pub fn has_all(&self) -> bool {
        let mut all = self.jobs.values();
        self.present.is_empty() && !self.jobs.is_empty() && all.all(|one| self.counts(one))
    }

    /// Whether nothing of a job in the cluster changes any more: it has left, and its energy is known.
    fn counts(&self, mirrored: &Mirrored) -> bool {
        match mirrored.in_cluster {
            InCluster::Completed { at, .. } => self.followed_to.since(at) >= TWIN_COUNTS_AFTER,
            InCluster::Present | InCluster::AtSite => false,
            InCluster::Removed => true,
        }
    }

    /// Number of jobs that wait, and that run, in the twin.
    #[must_use]
    pub fn presence(&self) -> (usize, usize) {
        self.history.presence()
    }

    /// The power of the site under this schedule, all nodes awake, at default caps and clocks, W; `None` while the power of
    /// a node or of a running job is not known.
    #[must_use]
    pub fn power_w(&self) -> Option<f64> {
        let rest_w = self.rest?.awake_w;
        let above_idle = self.history.running().map(|(submission, gpus)| {
            let work = &self.jobs.get(&submission)?.work.known;
            Some(f64::from(gpus) * (work.gpu_w? - work.gpu_idle_w?))
        });
        above_idle.sum::<Option<f64>>().map(|above_w| rest_w + above_w)
    }

    /// The jobs that wait or run in the twin, with the users and projects of the cluster's.
    pub(crate) fn present_jobs(&self) -> impl Iterator<Item = &Job> {
        self.history.present_jobs()
    }

    /// The speed of a running job of the cluster relative to its run in the twin; `None` if unknown.
    #[must_use]
    pub fn relative_speed(&self, id: &JobId) -> Option<f64> {
        self.jobs.get(self.present.get(id)?)?.work.relative_speed()
    }

    /// Number of jobs whose run time became known after the twin had forgotten the instant of their end.
    #[must_use]
    pub const fn corrected_late(&self) -> u64 {
        self.history.corrected_late()
    }
}
