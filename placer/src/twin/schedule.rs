//! The schedule of a baseline: the planning round on a copy of the cluster, with the ends of its jobs.
//!
//! A schedule is a value. At each instant it applies the ends that are due and the inputs of the instant, and then
//! plans, by the same round as the cluster ([`crate::pipeline`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use wattle_common::aim::Baseline;
use wattle_common::job::{GpuSetting, Sharing};
use wattle_common::messages::{TwinJob, TwinWork};
use wattle_common::time::span_s;
use wattle_common::{JobId, NodeId, Timestamp};

use super::history::Input;
use super::{Submission, policy_of};
use crate::accounts::rules::AccountRules;
use crate::pipeline;
use crate::plan::Decision;
use crate::plan::check::check;
use crate::plan::input::{PlanningInput, PlanningLimits};
use crate::state::cluster::ClusterState;
use crate::state::gpu_set::{GpuSet, JobKey, NodeGpus};
use crate::state::job::{Job, JobFacts, State};
use crate::state::node::NodeFacts;

/// Known or estimated run times.
pub(super) type RunTimes = BTreeMap<Submission, Duration>;

/// The life of a job in the schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Run {
    /// When it first started.
    pub(super) start: Option<Timestamp>,
    /// When it ended by itself.
    pub(super) end: Option<Timestamp>,
    /// When it was withdrawn or rejected.
    pub(super) withdrawn: Option<Timestamp>,
    /// When it ends, while it runs and its run time is known.
    ends_at: Option<Timestamp>,
    /// Its run time before its present placement.
    done: Duration,
}

/// The state of the schedule at an instant.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    baseline: Baseline,
    state: ClusterState,
    limits: PlanningLimits,
    keys: BTreeMap<Submission, JobKey>,
    submissions: BTreeMap<JobKey, Submission>,
    runs: BTreeMap<Submission, Run>,
    ends: BTreeSet<(Timestamp, Submission)>,
    again_at: Option<Timestamp>,
    /// Number of inputs that were applied.
    pub(super) applied: u64,
}

impl Schedule {
    pub(super) fn new(baseline: Baseline, accounts: Arc<AccountRules>, now: Timestamp) -> Self {
        let mut state = ClusterState::new();
        // It rejects no job: what no node can hold leaves when the cluster rejects it.
        state.inventory_known(false);
        state.sharing_known(Sharing::Never);
        state.advance_to(now);
        Self {
            baseline,
            state,
            limits: PlanningLimits {
                tenants_max: 1,
                share: Sharing::Never,
                accounts,
                ..PlanningLimits::default()
            },
            keys: BTreeMap::new(),
            submissions: BTreeMap::new(),
            runs: BTreeMap::new(),
            ends: BTreeSet::new(),
            again_at: None,
            applied: 0,
        }
    }

    pub(super) const fn now(&self) -> Timestamp {
        self.state.now()
    }

    /// The next instant at which a job ends or a plan is due.
    pub(super) fn next_at(&self) -> Option<Timestamp> {
        self.ends.first().map(|(at, _)| *at).into_iter().chain(self.again_at).min()
    }

    pub(super) fn run(&self, submission: Submission) -> Option<&Run> {
        self.runs.get(&submission)
    }

    pub(super) fn forget(&mut self, submission: Submission) {
        if !self.keys.contains_key(&submission) {
            self.runs.remove(&submission);
        }
    }

    /// Number of jobs that wait, and that run.
    pub(super) fn presence(&self) -> (usize, usize) {
        (self.state.queue_len(), self.state.running().count())
    }

    /// The jobs that run, each with the number of its GPUs.
    pub(super) fn running(&self) -> impl Iterator<Item = (Submission, u32)> {
        self.state.running().filter_map(|(key, job)| {
            let on = job.state.gpus()?;
            let gpus = on.by_node.iter().map(|here| here.gpus.count_ones()).sum();
            Some((*self.submissions.get(&key)?, gpus))
        })
    }

    /// The jobs that wait or run.
    pub(super) fn present_jobs(&self) -> impl Iterator<Item = &Job> {
        self.state.queue().chain(self.state.running()).map(|(_, job)| job)
    }

    /// Time has reached `at`.
    pub(super) const fn advance_to(&mut self, at: Timestamp) {
        self.state.advance_to(at);
    }

    /// The jobs whose end is due leave.
    pub(super) fn end_due(&mut self) {
        let now = self.now();
        while let Some((_, submission)) = self.ends.first().copied().filter(|(at, _)| *at <= now) {
            self.leave(submission, |run| run.end = Some(now));
        }
    }

    /// A job leaves the queue or its GPUs.
    fn leave(&mut self, submission: Submission, how: impl FnOnce(&mut Run)) {
        let Some(key) = self.keys.remove(&submission) else { return };
        self.submissions.remove(&key);
        self.state.job_ended(key);
        if let Some(run) = self.runs.get_mut(&submission) {
            if let Some(at) = run.ends_at.take() {
                self.ends.remove(&(at, submission));
            }
            how(run);
        }
    }

    /// Applies an input of this instant.
    pub(super) fn apply(&mut self, input: &Input) {
        let now = self.now();
        self.applied += 1;
        match input {
            Input::Submitted(submission, facts) => {
                let key = self.state.job_arrived(facts_in_twin(*submission, facts));
                self.keys.insert(*submission, key);
                self.submissions.insert(key, *submission);
                self.runs.insert(*submission, Run::default());
            }
            Input::Withdrawn(submission) => {
                self.leave(*submission, |run| run.withdrawn = Some(now));
            }
            Input::Nodes(nodes, places) => {
                for (facts, (switch, board)) in nodes.iter().zip(places.iter()) {
                    let key = self.state.node_known(facts.clone());
                    self.state.switch_known(key, *switch);
                    self.state.boards_known(key, *board);
                }
                self.stop_on_lost_gpus(nodes);
            }
        }
    }

    /// The life of a job for storage.
    pub(super) fn stored(&self, submission: Submission) -> TwinJob {
        let run = self.runs.get(&submission).copied().unwrap_or_default();
        let key = self.keys.get(&submission);
        let (mut on, mut since_us) = (Vec::new(), None);
        if let Some(State::Running { on: set, since, .. }) =
            key.and_then(|key| self.state.job(*key)).map(|job| &job.state)
        {
            let node = |here: &NodeGpus| (self.state.node(here.node).facts.id.clone(), here.gpus);
            (on, since_us) = (set.by_node.iter().map(node).collect(), Some(*since));
        }
        TwinJob {
            job: JobId::new("j").expect("a letter is an id"),
            submitted_at_us: Timestamp::EPOCH,
            left_at_us: None,
            start_us: run.start,
            end_us: run.end,
            on,
            since_us,
            done_s: run.done.as_secs_f64(),
            work: TwinWork::default(),
        }
    }

    /// A job is in the schedule now; `begun`: it has started or ended. One whose GPUs are unknown waits.
    pub(super) fn restore(
        &mut self,
        submission: Submission,
        facts: &JobFacts,
        begun: Option<&TwinJob>,
    ) {
        let mut run = Run::default();
        if let Some(job) = begun {
            (run.start, run.end) = (job.start_us, job.end_us);
            run.done = span_s(job.done_s);
        }
        self.runs.insert(submission, run);
        if run.end.is_some() {
            return;
        }
        self.again_at = Some(self.now());
        let key = self.state.job_arrived(facts_in_twin(submission, facts));
        self.keys.insert(submission, key);
        self.submissions.insert(key, submission);
        let placed = begun.and_then(|job| Some((self.gpu_set(&job.on)?, job.since_us?)));
        if let Some((on, since)) = placed {
            self.state.job_restored(key, on, GpuSetting::DEFAULT, since, false);
        }
    }

    fn gpu_set(&self, on: &[(NodeId, u64)]) -> Option<GpuSet> {
        let share = |(id, gpus): &(NodeId, u64)| {
            let node = self.state.node_key(id)?;
            let free = self.state.node(node).free();
            (gpus & !free == 0).then_some(NodeGpus { node, gpus: *gpus })
        };
        let by_node: Option<Vec<NodeGpus>> = on.iter().map(share).collect();
        by_node.filter(|by_node| !by_node.is_empty()).map(|by_node| GpuSet { by_node })
    }

    /// The jobs on GPUs that are not healthy return to the queue and keep their work.
    fn stop_on_lost_gpus(&mut self, nodes: &[NodeFacts]) {
        if nodes.iter().all(|facts| !facts.is_damaged()) {
            return;
        }
        let now = self.now();
        let is_lost = |job: &Job| {
            let mut on = job.state.gpus().into_iter().flat_map(|on| &on.by_node);
            on.any(|here| here.gpus & !self.state.node(here.node).facts.healthy != 0)
        };
        let lost: Vec<(JobKey, Duration)> = self
            .state
            .running()
            .filter(|(_, job)| is_lost(job))
            .map(|(key, job)| (key, ran_here(job, now)))
            .collect();
        for (key, ran) in lost {
            self.state.job_stopped(key);
            let Some(submission) = self.submissions.get(&key) else { continue };
            let Some(run) = self.runs.get_mut(submission) else { continue };
            run.done += ran;
            if let Some(at) = run.ends_at.take() {
                self.ends.remove(&(at, *submission));
            }
        }
    }

    /// Plans this instant, and starts jobs.
    ///
    /// # Panics
    /// In debug builds if the baseline breaks a rule.
    pub(super) fn plan(&mut self, run_times: &RunTimes) {
        let now = self.now();
        let input = PlanningInput {
            state: &self.state,
            limits: &self.limits,
            sizes_max: None,
            cache: None,
        };
        let plan = pipeline::solve(policy_of(self.baseline).as_ref(), input).plan;
        debug_assert!(check(input, &plan).is_empty(), "{:?}", check(input, &plan));
        self.again_at = plan.again_at.filter(|at| *at > now);
        for decision in &plan.decisions {
            if let Decision::Reject { job, .. } = decision
                && let Some(submission) = self.submissions.get(job).copied()
            {
                self.leave(submission, |run| run.withdrawn = Some(now));
            }
        }
        plan.apply_to(&mut self.state);
        for decision in &plan.decisions {
            if let Decision::Start { job, .. } = decision
                && let Some(submission) = self.submissions.get(job).copied()
            {
                if let Some(run) = self.runs.get_mut(&submission) {
                    run.start.get_or_insert(now);
                }
                if let Some(run_time) = run_times.get(&submission) {
                    self.run_time_known(submission, *run_time);
                }
            }
        }
    }

    /// When a job ends or ended, with this run time; `None` before its start.
    pub(super) fn end_with(&self, submission: Submission, run_time: Duration) -> Option<Timestamp> {
        let run = self.runs.get(&submission)?;
        let Some(key) = self.keys.get(&submission) else {
            return Some(run.start? + run_time);
        };
        match &self.state.job(*key)?.state {
            State::Running { since, .. } => Some(*since + run_time.saturating_sub(run.done)),
            State::Queued | State::Stopping { .. } => None,
        }
    }

    /// The end of a job that has ended follows this run time.
    pub(super) fn end_corrected(&mut self, submission: Submission, run_time: Duration) {
        if let Some(run) = self.runs.get_mut(&submission)
            && let (Some(start), Some(_)) = (run.start, run.end)
        {
            run.end = Some(start + run_time);
        }
    }

    /// A running job ends after this run time, or now.
    pub(super) fn run_time_known(&mut self, submission: Submission, run_time: Duration) {
        if !self.keys.contains_key(&submission) {
            return;
        }
        let Some(at) = self.end_with(submission, run_time) else { return };
        let at = at.max(self.now());
        let Some(run) = self.runs.get_mut(&submission) else { return };
        if let Some(before) = run.ends_at.replace(at) {
            self.ends.remove(&(before, submission));
        }
        self.ends.insert((at, submission));
    }

    /// The ends of all running jobs follow these run times.
    pub(super) fn run_times_known(&mut self, run_times: &RunTimes) {
        let running: Vec<Submission> = self.keys.keys().copied().collect();
        for submission in running {
            if let Some(run_time) = run_times.get(&submission) {
                self.run_time_known(submission, *run_time);
            }
        }
    }
}

/// The run time of a job on the GPUs that it holds.
fn ran_here(job: &Job, now: Timestamp) -> Duration {
    match &job.state {
        State::Running { since, .. } => now.since(*since),
        State::Queued | State::Stopping { .. } => Duration::ZERO,
    }
}

/// The facts of a job in the twin: exclusive, without deferral, and under a name of its own.
fn facts_in_twin(submission: Submission, facts: &JobFacts) -> JobFacts {
    let id = JobId::new(&format!("s{}", submission.0)).expect("a letter and digits are an id");
    JobFacts {
        id,
        exclusive: true,
        slack: None,
        deadline: None,
        max_slowdown_permille: None,
        flexibility: None,
        ..facts.clone()
    }
}
