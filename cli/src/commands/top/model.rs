//! The state that `wattle top` shows, updated by messages.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use wattle_common::messages::{
    AimStatus, BudgetRecord, BudgetStatus, JobRecord, NodeSummary, ServiceLease, TwinStatus,
};
use wattle_common::subject::{AIM_STATUS, BUDGET_SET, BUDGET_STATUS, LeaseKey, TWIN_STATUS};
use wattle_common::total::Total;
use wattle_common::{JobId, NodeId, Power, Timestamp, codec};

use super::selection::Selection;
use wattle_view::Summaries;
use wattle_view::job::JobView;
use wattle_view::node::{self, Node, cap_when_read};

/// Age from which a summary is no reading any more, wall time: profilers publish one a second.
const READING_VALID: Duration = Duration::from_secs(5);

/// Most ended jobs on the screen.
const ENDED_MAX: usize = 100;

/// The state of the cluster as received.
#[derive(Default)]
pub(crate) struct Model {
    /// The cluster's name.
    pub(crate) cluster: String,
    /// The server's address.
    pub(crate) url: String,
    /// The nodes; their summaries are in `summaries`.
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    /// The jobs' records.
    pub(crate) records: BTreeMap<JobId, JobRecord>,
    /// The last summary of each node, and when it was received.
    pub(crate) summaries: BTreeMap<NodeId, (Instant, NodeSummary)>,
    /// The budget in force.
    pub(crate) budget: Option<BudgetRecord>,
    /// Its consumption.
    pub(crate) status: Option<BudgetStatus>,
    /// The state of the energy aim.
    pub(crate) aim: Option<AimStatus>,
    /// The sums of the twin.
    pub(crate) twin: Option<TwinStatus>,
    /// The lease of the placer, and when it was received; absent: not read.
    pub(crate) placer: Option<(Instant, Option<ServiceLease>)>,
    /// Since when the bus is away.
    pub(crate) lost_since: Option<Instant>,
    /// The last message that could not be read.
    pub(crate) fault: Option<String>,
    /// First job shown.
    pub(crate) first_job: usize,
    /// Which jobs are listed, and in which order.
    pub(crate) selection: Selection,
}

/// The content of the screen at one instant.
pub(crate) struct View {
    /// The nodes with their current readings.
    pub(crate) nodes: Vec<Node>,
    /// Running jobs, then queued ones, in order of submission.
    pub(crate) jobs: Vec<JobView>,
    /// The listed ones of them, in the selected order.
    pub(crate) listed: Vec<JobView>,
    /// The listed ended jobs, the last one first, at most [`ENDED_MAX`].
    pub(crate) ended: Vec<JobView>,
    /// Number of all ended jobs.
    pub(crate) ended_count: usize,
    /// System time.
    pub(crate) now: Timestamp,
    /// How long the bus has been away.
    pub(crate) lost: Option<Duration>,
    /// Whether no placer is active.
    pub(crate) placer_away: bool,
}

impl Model {
    /// Applies a change of the bucket `jobs`.
    pub(crate) fn record(&mut self, key: &str, value: Option<&[u8]>) {
        let Ok(job) = JobId::new(key) else { return };
        match value.map(codec::decode_json::<JobRecord>) {
            Some(Ok(record)) => {
                self.records.insert(job, record);
            }
            Some(Err(error)) => self.fault = Some(format!("job {key} cannot be read: {error}")),
            None => {
                self.records.remove(&job);
            }
        }
    }

    /// Applies a change of the bucket `actual`.
    pub(crate) fn reported(&mut self, key: &str, value: Option<&[u8]>) {
        self.fault = node::reported(&mut self.nodes, key, value).err().or(self.fault.take());
    }

    /// Applies a change of the bucket `desired`.
    pub(crate) fn desired(&mut self, key: &str, value: Option<&[u8]>) {
        self.fault = node::desired(&mut self.nodes, key, value).err().or(self.fault.take());
    }

    /// Applies a change of the bucket `budget`.
    pub(crate) fn budgeted(&mut self, key: &str, value: Option<&[u8]>) {
        match key {
            BUDGET_SET => self.budget = value.and_then(|value| codec::decode_json(value).ok()),
            BUDGET_STATUS => self.status = value.and_then(|value| codec::decode_json(value).ok()),
            TWIN_STATUS => self.twin = value.and_then(|value| codec::decode_json(value).ok()),
            AIM_STATUS => self.aim = value.and_then(|value| codec::decode_json(value).ok()),
            _ => {}
        }
    }

    /// Applies a change of the bucket `leases`.
    pub(crate) fn leased(&mut self, key: &str, value: Option<&[u8]>, at: Instant) {
        if LeaseKey::parse(key) == Some(LeaseKey::Placer) {
            self.placer = Some((at, value.and_then(|value| codec::decode_json(value).ok())));
        }
    }

    /// Whether no placer is active: it renews its lease at every third of it.
    fn placer_away(&self, at: Instant) -> bool {
        self.placer.as_ref().is_some_and(|(changed, lease)| {
            lease.as_ref().is_none_or(|lease| {
                let length = Duration::from_millis(lease.length_ms);
                lease.released || at.saturating_duration_since(*changed) > 2 * length
            })
        })
    }

    /// Applies a node's summary.
    pub(crate) fn summarized(&mut self, payload: &[u8], at: Instant) {
        match codec::decode_json::<NodeSummary>(payload) {
            Ok(summary) => {
                self.summaries.insert(summary.node.clone(), (at, summary));
            }
            Err(error) => self.fault = Some(format!("a summary cannot be read: {error}")),
        }
    }

    /// Notes whether the bus is connected.
    pub(crate) fn connected(&mut self, connected: bool, at: Instant) {
        self.lost_since = (!connected).then(|| self.lost_since.unwrap_or(at));
    }

    /// The view at an instant. While the bus is away the last readings remain.
    pub(crate) fn view(&self, at: Instant, now: Timestamp) -> View {
        // A lost bus is detected after the last reading.
        let newest = self.summaries.values().map(|(received, _)| *received).max();
        let until = self.lost_since.and(newest).unwrap_or(at);
        let is_valid =
            |received: Instant| until.saturating_duration_since(received) <= READING_VALID;
        let summaries: Summaries = self
            .summaries
            .iter()
            .filter(|(_, (received, _))| is_valid(*received))
            .map(|(node, (_, summary))| (node.clone(), summary.clone()))
            .collect();
        let mut nodes: Vec<Node> = self.nodes.values().cloned().collect();
        let all: Vec<JobView> = {
            let mut records: Vec<JobRecord> =
                self.records.values().filter(|r| !r.phase.is_final()).cloned().collect();
            crate::commands::jobs::sort(&mut records);
            records.into_iter().map(|record| JobView::new(record, &summaries, now)).collect()
        };
        let ended_count = self.records.len() - all.len();
        let ended = self.ended(&summaries, now);
        let (mut jobs, queued): (Vec<_>, Vec<_>) = all.into_iter().partition(JobView::is_running);
        jobs.extend(queued);
        let mut listed: Vec<JobView> =
            jobs.iter().filter(|view| self.selection.keeps(view)).cloned().collect();
        self.selection.order.sort(&mut listed);
        node::summarize(&mut nodes, summaries);
        let lost = self.lost_since.map(|since| at - since);
        let placer_away = self.placer_away(at);
        View { nodes, jobs, listed, ended, ended_count, now, lost, placer_away }
    }

    /// The listed jobs that ended last.
    fn ended(&self, summaries: &Summaries, now: Timestamp) -> Vec<JobView> {
        let mut ended: Vec<&JobRecord> =
            self.records.values().filter(|record| record.phase.is_final()).collect();
        ended.sort_by_key(|record| std::cmp::Reverse(record.ended_at_us));
        let views = ended.into_iter().map(|record| JobView::new(record.clone(), summaries, now));
        views.filter(|view| self.selection.keeps(view)).take(ENDED_MAX).collect()
    }

    /// Scrolls the jobs.
    pub(crate) fn scroll(&mut self, by: isize, jobs: usize) {
        let last = jobs.saturating_sub(1);
        self.first_job = self.first_job.saturating_add_signed(by).min(last);
    }
}

impl View {
    /// Measured power of the GPUs of all nodes that are awake.
    fn drawn(&self) -> Total<Power> {
        let awake = self.nodes.iter().filter(|node| node.sleep.is_none());
        let readings = awake.flat_map(Node::gpus);
        readings.map(|(_, reading)| reading.and_then(|read| read.power_mw_mean)).collect()
    }

    /// Measured power of all GPUs and configured power of the hosts.
    pub(crate) fn power(&self) -> Option<Power> {
        let hosts: Power = self.nodes.iter().filter_map(Node::host_power).sum();
        self.drawn().known().map(|gpus| gpus + hosts)
    }

    /// The GPUs that the power lacks, in words.
    pub(crate) fn power_missing(&self) -> Option<String> {
        self.drawn().missing("GPU")
    }

    /// The sum of the caps and the power of the hosts.
    pub(crate) fn power_max(&self) -> Option<Power> {
        let gpus = self.nodes.iter().flat_map(Node::gpus);
        let caps: Vec<Power> = gpus.filter_map(|(gpu, read)| cap_when_read(gpu, read)).collect();
        let hosts: Power = self.nodes.iter().filter_map(Node::host_power).sum();
        (!caps.is_empty()).then(|| caps.into_iter().sum::<Power>() + hosts)
    }
}
