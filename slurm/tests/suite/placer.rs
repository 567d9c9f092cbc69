//! A small placer: first fit, random stops, and the adoption of runs that no order names.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wattle_common::id::SubmissionId;
use wattle_common::job::{JobPhase, JobSpec, NodeShare, Placement};
use wattle_common::messages::{
    DesiredJob, JobRecord, LaunchReport, LaunchState, LaunchedJob, NodeDesired,
};
use wattle_common::rng::Stream;
use wattle_common::{GpuIndex, JobId, NodeId, Timestamp};

use crate::model::GPUS;

pub(crate) struct Placer {
    pub(crate) records: BTreeMap<JobId, JobRecord>,
    pub(crate) desired: BTreeMap<NodeId, NodeDesired>,
    reports: BTreeMap<NodeId, LaunchReport>,
    /// Whether jobs that consent share GPUs.
    shares: bool,
    rng: Stream,
}

impl Placer {
    pub(crate) fn new(seed: u64, shares: bool) -> Self {
        Self {
            records: BTreeMap::new(),
            desired: BTreeMap::new(),
            reports: BTreeMap::new(),
            shares,
            rng: Stream::new(seed, "placer"),
        }
    }

    pub(crate) fn submit(&mut self, now: Timestamp, spec: JobSpec, submission: SubmissionId) {
        let job = spec.job.clone();
        self.records.entry(job).or_insert_with(|| JobRecord {
            submission: Some(submission),
            ..JobRecord::queued(spec, now)
        });
    }

    pub(crate) fn cancel(&mut self, now: Timestamp, job: &JobId) {
        let Some(record) = self.records.get_mut(job) else { return };
        if record.phase == JobPhase::Queued {
            Self::end(record, now, JobPhase::Cancelled);
        } else if !record.phase.is_final() {
            record.phase = JobPhase::Stopping;
            record.next_phase = Some(JobPhase::Cancelled);
        }
    }

    pub(crate) fn report(&mut self, report: LaunchReport) {
        self.reports.insert(report.node.clone(), report);
    }

    fn end(record: &mut JobRecord, now: Timestamp, phase: JobPhase) {
        record.placement = None;
        record.phase = phase;
        record.next_phase = None;
        record.ended_at_us = phase.is_final().then_some(now);
    }

    /// One round: adopts, follows, stops and places; writes the orders.
    pub(crate) fn round(&mut self, now: Timestamp, calm: bool) {
        self.adopt();
        let jobs: Vec<JobId> = self.records.keys().cloned().collect();
        for job in &jobs {
            self.follow(now, job);
        }
        for job in &jobs {
            self.plan(job, calm);
        }
        self.write_orders(now);
    }

    fn run_of(&self, node: &NodeId, job: &JobId, attempt: u32) -> Option<&LaunchedJob> {
        let report = self.reports.get(node)?;
        report.jobs.iter().find(|run| run.job == *job && run.attempt == attempt)
    }

    /// A live run of a later attempt than its record's is adopted, and a run on other GPUs has them.
    fn adopt(&mut self) {
        let mut runs: BTreeMap<(JobId, u32), Vec<NodeShare>> = BTreeMap::new();
        for (node, report) in &self.reports {
            for run in report.jobs.iter().filter(|run| is_live(&run.state)) {
                let share = NodeShare { node: node.clone(), gpus: run.gpus.clone() };
                runs.entry((run.job.clone(), run.attempt)).or_default().push(share);
            }
        }
        for ((job, attempt), shares) in runs {
            let Some(record) = self.records.get_mut(&job) else { continue };
            // The reports of its nodes are written one after the other.
            let count = record.spec.site.as_ref().and_then(|site| site.nodes).unwrap_or(1);
            if shares.len() != count as usize {
                continue;
            }
            let is_later = attempt > record.attempt && !record.phase.is_final();
            let is_placed = record.attempt == attempt
                && matches!(record.phase, JobPhase::Starting | JobPhase::Running);
            if is_later {
                record.attempt = attempt;
                record.phase = JobPhase::Running;
                record.next_phase = None;
            }
            if is_later || is_placed {
                record.placement = Some(Placement { shares });
            }
        }
    }

    fn follow(&mut self, now: Timestamp, job: &JobId) {
        let record = &self.records[job];
        let Some(placement) = record.placement.clone() else { return };
        let states: Vec<Option<LaunchState>> = placement
            .shares
            .iter()
            .map(|share| self.run_of(&share.node, job, record.attempt).map(|run| run.state.clone()))
            .collect();
        let Some(record) = self.records.get_mut(job) else { return };
        let all = |is: &dyn Fn(&LaunchState) -> bool| {
            states.iter().all(|state| state.as_ref().is_some_and(is))
        };
        let any = |is: &dyn Fn(&LaunchState) -> bool| {
            states.iter().any(|state| state.as_ref().is_some_and(is))
        };
        let is_over = |state: &LaunchState| !is_live(state);
        if all(&|state| *state == LaunchState::exited(0)) {
            Self::end(record, now, JobPhase::Finished);
        } else if all(&is_over) {
            let failed = any(&|state| {
                matches!(state, LaunchState::Exited { .. } | LaunchState::Refused { .. })
            });
            let next = record.next_phase.unwrap_or(JobPhase::Queued);
            let next = if failed && next == JobPhase::Queued { JobPhase::Failed } else { next };
            Self::end(record, now, next);
        } else if record.phase == JobPhase::Starting && all(&is_live) {
            record.phase = JobPhase::Running;
        }
    }

    /// The GPUs of a node that a job may get.
    fn free(&self, node: &NodeId, consents: bool) -> BTreeSet<GpuIndex> {
        let Some(report) = self.reports.get(node) else { return BTreeSet::new() };
        let site = report.site.as_ref();
        if site.is_none_or(|site| site.unavailable.is_some()) {
            return BTreeSet::new();
        }
        let mut tenants: BTreeMap<GpuIndex, (u32, bool)> = BTreeMap::new();
        for record in self.records.values() {
            for share in record.placement.iter().flat_map(|placement| &placement.shares) {
                for gpu in share.gpus.iter().filter(|_| share.node == *node) {
                    let known = tenants.entry(*gpu).or_insert((0, true));
                    known.0 += 1;
                    known.1 &= record.spec.consents_to_sharing;
                }
            }
        }
        let taken: BTreeSet<GpuIndex> =
            site.into_iter().flat_map(|site| site.gpus_taken.iter().copied()).collect();
        let is_free = |gpu: &GpuIndex| match tenants.get(gpu) {
            None => true,
            Some((count, consent)) => self.shares && consents && *consent && *count < 2,
        };
        (0..GPUS).filter(|gpu| !taken.contains(gpu) && is_free(gpu)).collect()
    }

    fn plan(&mut self, job: &JobId, calm: bool) {
        let record = &self.records[job];
        match record.phase {
            JobPhase::Running if record.spec.checkpoint_signal.is_some() && !calm => {
                if self.rng.below(60) == 0
                    && let Some(record) = self.records.get_mut(job)
                {
                    record.phase = JobPhase::Stopping;
                    record.next_phase = Some(JobPhase::Queued);
                }
            }
            JobPhase::Queued => self.place(job),
            _ => {}
        }
    }

    fn place(&mut self, job: &JobId) {
        let record = &self.records[job];
        let Some(site) = record.spec.site.clone().filter(|site| !site.placed_by_site) else {
            return;
        };
        let count = site.nodes.unwrap_or(1);
        let range = record.spec.gpus;
        let consents = record.spec.consents_to_sharing;
        let steps = u64::from((range.max - range.min) / count) + 1;
        let each = (range.min / count + self.rng.below(steps) as u32).min(GPUS);
        let nodes: Vec<NodeId> = self.reports.keys().cloned().collect();
        let first = self.rng.below(nodes.len() as u64 + 1) as usize;
        let mut shares: Vec<NodeShare> = Vec::new();
        let mut common: Option<BTreeSet<GpuIndex>> = None;
        for node in nodes.iter().cycle().skip(first).take(nodes.len()) {
            let free = self.free(node, consents);
            let both = common.as_ref().map_or_else(|| free.clone(), |known| &free & known);
            if both.len() >= each as usize && shares.len() < count as usize {
                common = Some(both);
                shares.push(NodeShare { node: node.clone(), gpus: Vec::new() });
            }
        }
        if shares.len() < count as usize {
            return;
        }
        let gpus: Vec<GpuIndex> = common.into_iter().flatten().take(each as usize).collect();
        shares.iter_mut().for_each(|share| share.gpus.clone_from(&gpus));
        if let Some(record) = self.records.get_mut(job) {
            record.attempt += 1;
            record.phase = JobPhase::Starting;
            record.placement = Some(Placement { shares });
        }
    }

    fn write_orders(&mut self, now: Timestamp) {
        for node in self.reports.keys() {
            let mut jobs = Vec::new();
            for (job, record) in &self.records {
                let Some(placement) = &record.placement else { continue };
                for (rank, share) in (0..).zip(&placement.shares).filter(|(_, s)| s.node == *node) {
                    jobs.push(DesiredJob {
                        job: job.clone(),
                        admission: None,
                        user: record.spec.user.clone(),
                        attempt: record.attempt,
                        gpus: share.gpus.clone(),
                        rank,
                        shares: placement.shares.clone(),
                        command: Vec::new(),
                        environment: Vec::new(),
                        working_dir: None,
                        checkpoint_signal: record.spec.checkpoint_signal.clone(),
                        stop: record.phase == JobPhase::Stopping,
                    });
                }
            }
            let known = self.desired.get(node);
            if known.is_some_and(|known| known.jobs == jobs) {
                continue;
            }
            let desired = NodeDesired {
                node: node.clone(),
                generation: known.map_or(0, |known| known.generation) + 1,
                issued_at_us: now,
                expires_at_us: now + Duration::from_secs(60),
                gpus: Vec::new(),
                jobs,
                power_limited: false,
                caps_ahead: Vec::new(),
                event_until_us: None,
                sleep: None,
            };
            self.desired.insert(node.clone(), desired);
        }
    }
}

const fn is_live(state: &LaunchState) -> bool {
    matches!(state, LaunchState::Running | LaunchState::Stopping)
}
