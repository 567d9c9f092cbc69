//! What the page knows of the cluster: the last values of the buckets, readings, and sums of the ledger.

pub mod detail;
pub mod history;
pub mod jobs;
pub mod life;
pub mod occupancy;
pub mod power;
pub mod tally;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use wattle_common::bounds::plausible_ledger_entry;
use wattle_common::event::report::{SiteMinutes, needed_from};
use wattle_common::event::{EventBook, EventPerformances};
use wattle_common::id::PredictorId;
use wattle_common::messages::{
    AimStatus, BudgetRecord, BudgetStatus, FeedersStatus, GridStatus, JobRecord, NodeSummary,
    PredictorStatus, ServiceLease, TwinStatus, WhatIf,
};
use wattle_common::subject::{
    AIM_STATUS, BUDGET_SET, BUDGET_STATUS, EVENT_JOBS, EVENTS, FEEDERS_STATUS, GRID_STATUS,
    PredictorKey, Reporter, TWIN_STATUS, WHAT_IF,
};
use wattle_common::{AdmissionId, EventId, JobId, NodeId, Power, Timestamp, codec};
use wattle_view::Summaries;
use wattle_view::node::{self, Node};

use self::detail::Detail;
use self::history::History;
use self::jobs::Jobs;
use self::occupancy::Occupancy;
use self::tally::{RatesRef, Tally};

/// Most jobs whose details are kept.
const DETAILS_MAX: usize = 64;

/// The present, on the clocks that matter.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// The system's time.
    pub at: Timestamp,
    /// A steady clock of this machine, wall time.
    pub steady: Duration,
    /// Seconds of the system's time per second of wall time.
    pub rate: u32,
}

/// A lease and when its value last changed.
#[derive(Clone, Debug)]
pub struct Lease {
    /// Its value.
    pub lease: ServiceLease,
    /// When it changed, on the steady clock.
    pub changed: Duration,
}

impl Lease {
    /// Whether its holder is active: it renews its lease at every third of it.
    #[must_use]
    pub fn is_active(&self, steady: Duration) -> bool {
        let length = Duration::from_millis(self.lease.length_ms);
        !self.lease.released && steady.saturating_sub(self.changed) <= 2 * length
    }
}

/// A process that answers on the bus.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Process {
    /// `placer`, `launcher` and so on.
    pub service: String,
    /// Its node or predictor; empty: it serves the cluster.
    pub of: String,
    /// `active` or `standby`.
    pub state: String,
    /// Its machine.
    pub host: String,
    /// Its process id there.
    pub pid: String,
    /// Its version.
    pub version: String,
}

/// The state of the cluster as received.
#[derive(Debug, Default)]
pub struct Model {
    /// The cluster's name.
    pub cluster: String,
    /// The nodes; their summaries are in `summaries`.
    pub nodes: BTreeMap<NodeId, Node>,
    /// When each report of a node last changed, on the steady clock.
    reported: BTreeMap<(bool, NodeId), Duration>,
    /// The last summary of each node.
    pub summaries: Summaries,
    /// When each summary was received, on the steady clock.
    summarized: BTreeMap<NodeId, Duration>,
    /// The jobs.
    pub jobs: Jobs,
    /// Which jobs had which GPUs.
    pub occupancy: Occupancy,
    /// The budget in force.
    pub budget: Option<BudgetRecord>,
    /// What the present jobs would use and when they would complete at other settings.
    pub what_if: Option<WhatIf>,
    /// The sources of carbon intensity and electricity price.
    pub grid: Option<GridStatus>,
    /// Its consumption.
    pub status: Option<BudgetStatus>,
    /// The power of the feeders.
    pub feeders: Option<FeedersStatus>,
    /// The grid events.
    pub events: Option<EventBook>,
    /// What jobs lose over them.
    pub event_jobs: EventPerformances,
    /// The power of the site by minute, while the page of an event or of energy is followed.
    pub site: SiteMinutes,
    /// From when on it is known; absent: it was not read.
    pub site_from: Option<Timestamp>,
    /// From when on the followed pages of energy show it; absent: there are none.
    site_since: Option<Timestamp>,
    /// The events whose pages are followed.
    pub followed_events: BTreeSet<EventId>,
    /// The state of the energy aim.
    pub aim: Option<AimStatus>,
    /// The sums of the twin.
    pub twin: Option<TwinStatus>,
    /// The predictors.
    pub predictors: BTreeMap<PredictorId, PredictorStatus>,
    /// The leases by key.
    pub leases: BTreeMap<String, Lease>,
    /// The sums of the ledger.
    pub tally: Tally,
    /// Whether the stored ledger has been read.
    pub ledger_read: bool,
    /// The power curve.
    pub history: History,
    history_at: Option<Duration>,
    /// The power limit in force: that of the last budget for which the placer has planned.
    limit: Option<Power>,
    /// Since when each node that does not sleep is known to be awake, on the steady clock.
    awake_since: BTreeMap<NodeId, Duration>,
    /// The processes that answered the last query; absent before the first.
    pub processes: Option<Vec<Process>>,
    /// Details of the jobs that viewers follow.
    pub details: BTreeMap<JobId, Detail>,
    /// Since when the bus is away, on the steady clock.
    lost_since: Option<Duration>,
    /// Values that could not be read.
    pub unreadable: u64,
    /// The last of them.
    pub fault: Option<String>,
}

impl Model {
    /// The model of a cluster of which nothing is known.
    #[must_use]
    pub fn new(cluster: &str) -> Self {
        Self { cluster: cluster.to_owned(), ..Self::default() }
    }

    /// The rates of emissions and cost.
    #[must_use]
    pub fn rates(&self) -> RatesRef<'_> {
        RatesRef {
            intensity: self.budget.as_ref().and_then(|set| set.intensity.as_ref()),
            prices: self.grid.as_ref().and_then(|grid| grid.prices.as_ref()),
        }
    }

    fn failed(&mut self, what: String) {
        self.unreadable += 1;
        self.fault = Some(what);
    }

    /// Applies a change of the bucket `jobs`.
    pub fn job(&mut self, key: &str, value: Option<&[u8]>) {
        let Ok(job) = JobId::new(key) else { return };
        match value.map(codec::decode_json::<JobRecord>) {
            Some(Ok(record)) => {
                if let Some(detail) = self.details.get_mut(&job) {
                    detail.record = Some(record.clone());
                }
                self.occupancy.follow(&record);
                self.jobs.insert(record);
            }
            Some(Err(error)) => self.failed(format!("job {key} cannot be read: {error}")),
            None => {
                self.occupancy.remove(&job);
                self.jobs.remove(&job);
            }
        }
    }

    /// Applies a change of the bucket `actual`.
    pub fn report(&mut self, key: &str, value: Option<&[u8]>, now: Now) {
        if let Err(error) = node::reported(&mut self.nodes, key, value) {
            self.failed(error);
        } else if let Some((reporter, node)) = Reporter::parse(key) {
            self.reported.insert((reporter == Reporter::Power, node), now.steady);
        }
    }

    /// Applies a change of the bucket `desired`.
    pub fn order(&mut self, key: &str, value: Option<&[u8]>) {
        if let Err(error) = node::desired(&mut self.nodes, key, value) {
            self.failed(error);
        }
    }

    /// Applies a change of the bucket `budget`.
    pub fn budget(&mut self, key: &str, value: Option<&[u8]>) {
        match key {
            BUDGET_SET => self.budget = value.and_then(|value| codec::decode_json(value).ok()),
            BUDGET_STATUS => self.status = value.and_then(|value| codec::decode_json(value).ok()),
            GRID_STATUS => self.grid = value.and_then(|value| codec::decode_json(value).ok()),
            FEEDERS_STATUS => {
                self.feeders = value.and_then(|value| codec::decode_json(value).ok());
            }
            EVENTS => self.events = value.and_then(|value| codec::decode_json(value).ok()),
            EVENT_JOBS => {
                let jobs = value.and_then(|value| codec::decode_json(value).ok());
                self.event_jobs = jobs.unwrap_or_default();
            }
            TWIN_STATUS => self.twin = value.and_then(|value| codec::decode_json(value).ok()),
            AIM_STATUS => self.aim = value.and_then(|value| codec::decode_json(value).ok()),
            WHAT_IF => self.what_if = value.and_then(|value| codec::decode_json(value).ok()),
            _ => {}
        }
    }

    /// Applies a change of the bucket `predictors`.
    pub fn predictor(&mut self, key: &str, value: Option<&[u8]>) {
        let Some(PredictorKey::Status(name)) = PredictorKey::parse(key) else { return };
        match value.map(codec::decode_json::<PredictorStatus>) {
            Some(Ok(status)) => drop(self.predictors.insert(name, status)),
            Some(Err(error)) => self.failed(format!("predictor {key} cannot be read: {error}")),
            None => drop(self.predictors.remove(&name)),
        }
    }

    /// Applies a change of the bucket `leases`.
    pub fn lease(&mut self, key: &str, value: Option<&[u8]>, now: Now) {
        match value.map(codec::decode_json::<ServiceLease>) {
            Some(Ok(lease)) => {
                self.leases.insert(key.to_owned(), Lease { lease, changed: now.steady });
            }
            Some(Err(error)) => self.failed(format!("lease {key} cannot be read: {error}")),
            None => drop(self.leases.remove(key)),
        }
    }

    /// Applies a node's summary.
    pub fn summary(&mut self, payload: &[u8], now: Now) {
        match codec::decode_json::<NodeSummary>(payload) {
            Ok(summary) => {
                self.summarized.insert(summary.node.clone(), now.steady);
                self.summaries.insert(summary.node.clone(), summary);
            }
            Err(error) => self.failed(format!("a summary cannot be read: {error}")),
        }
    }

    /// Counts an entry of the ledger that was stored under this subject.
    pub fn entry(&mut self, subject: &str, payload: &[u8], now: Now) {
        let Some(entry) = plausible_ledger_entry(subject, payload, now.at) else {
            return self.failed("an entry of the ledger is unreadable or implausible".to_owned());
        };
        let jobs = &self.jobs;
        // The record may be of another submission of the name, whose owner may be another person.
        let owner = |job: &JobId, admission: Option<&AdmissionId>| {
            let record = jobs.get(job).filter(|record| {
                AdmissionId::has_run(record.admission.as_ref(), admission, entry.until_us)
            });
            let spec = record.map(|record| &record.spec);
            let project = spec.and_then(|spec| spec.project.as_ref());
            (spec.and_then(|spec| spec.user.clone()), project.map(ToString::to_string))
        };
        self.tally.count(&entry, owner);
    }

    /// Since when the bus is away, on the steady clock.
    #[must_use]
    pub const fn lost_since(&self) -> Option<Duration> {
        self.lost_since
    }

    /// Begins to keep the details of a job.
    pub fn follow(&mut self, job: &JobId) {
        if !self.details.contains_key(job) && self.details.len() < DETAILS_MAX {
            self.details.insert(job.clone(), Detail::default());
        }
    }

    /// The followed pages of energy show the power of the site from this instant on; `None`: there are none.
    pub const fn follow_power(&mut self, since: Option<Timestamp>) {
        self.site_since = since;
    }

    /// The pages of these events are followed. Where no page shows the power of the site it is forgotten.
    pub fn follow_events(&mut self, events: BTreeSet<EventId>) {
        if events.is_empty() && self.site_since.is_none() {
            (self.site, self.site_from) = (SiteMinutes::new(), None);
        }
        self.followed_events = events;
    }

    /// From which minute on the power of the site is to be read next, for the followed pages; `None`: for none.
    #[must_use]
    pub fn site_missing_from(&self) -> Option<Timestamp> {
        let events = self.events.iter().flat_map(|book| {
            self.followed_events.iter().filter_map(move |event| book.events.get(event))
        });
        let needed = events.map(needed_from).chain(self.site_since).min()?;
        let last = self.site.last_key_value().map_or(needed, |(last, _)| *last);
        Some(if self.site_from.is_some_and(|from| from <= needed) { last } else { needed })
    }

    /// The power of the site from an instant on was read.
    pub fn take_site(&mut self, from: Timestamp, minutes: SiteMinutes) {
        self.site.extend(minutes);
        let known = self.site_from.map_or(from, |known| known.min(from));
        self.site_from = Some(known);
    }

    /// Forgets the details of all jobs but these.
    pub fn keep_details(&mut self, jobs: &BTreeSet<JobId>) {
        self.details.retain(|job, _| jobs.contains(job));
    }

    /// The nodes with their current readings; only those that `wanted` accepts.
    #[must_use]
    pub fn nodes_with_readings(&self, wanted: impl Fn(&NodeId) -> bool) -> Vec<Node> {
        let with = |(id, node): (&NodeId, &Node)| Node {
            summary: self.summaries.get(id).cloned(),
            ..node.clone()
        };
        self.nodes.iter().filter(|(id, _)| wanted(id)).map(with).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use wattle_common::job::JobPhase;
    use wattle_common::messages::{GpuSummary, LaunchState};
    use wattle_testkit as testkit;

    use super::*;

    pub(crate) fn now(s: u64) -> Now {
        Now { at: Timestamp::from_s(s), steady: Duration::from_secs(s), rate: 1 }
    }

    pub(crate) fn json<T: Serialize>(value: &T) -> Vec<u8> {
        codec::encode_json(value)
    }

    pub(crate) fn summary(node: &str, watts: u64) -> NodeSummary {
        let gpu = |gpu| GpuSummary {
            gpu,
            power_mw_mean: Some(Power::from_w(watts)),
            energy_mj_total: None,
            utilization_gpu_percent_mean: Some(50),
            meter: None,
            memory_used_mib: Some(1_024),
            memory_free_mib: None,
            clock_mhz: None,
            cap_mw: Some(Power::from_w(250)),
            cap_mw_enforced: None,
            temperature_c: Some(50),
            throttle_reasons: None,
            jobs: Vec::new(),
            error: None,
        };
        NodeSummary {
            node: testkit::node(node),
            at_us: Timestamp::from_s(100),
            span_ms: 1_000,
            observed_generation: 0,
            samples: 10,
            readings_failed: 0,
            gpus: vec![gpu(0), gpu(1)],
            jobs: Vec::new(),
            power_mw_host: Some(Power::from_w(100)),
            ledger_from_us: None,
        }
    }

    /// A status without spending.
    pub(crate) fn budget_status() -> BudgetStatus {
        testkit::budget_status(Timestamp::from_s(100))
    }

    /// A cluster of two nodes with a running and a queued job.
    pub(crate) fn example() -> Model {
        let mut model = Model::new("test");
        for node in ["n0", "n1"] {
            let gpu = |index| wattle_common::messages::AppliedGpu {
                cap_mw: Some(Power::from_w(250)),
                ..testkit::applied_gpu(index, "v100")
            };
            let report = testkit::power_report(node, Timestamp::from_s(99), [gpu(0), gpu(1)]);
            model.report(&format!("power.{node}"), Some(&json(&report)), now(100));
            let running = LaunchState::Running;
            let jobs = [testkit::launched_job("a", 1, [0], running, Timestamp::from_s(1))];
            let jobs = if node == "n0" { &jobs[..] } else { &[] };
            let report =
                testkit::launch_report(node, Timestamp::from_s(99), 1, jobs.iter().cloned());
            model.report(&format!("launcher.{node}"), Some(&json(&report)), now(100));
            model.summary(&json(&summary(node, 120)), now(100));
        }
        let mut running = testkit::job_record(testkit::job_spec("a", 1), JobPhase::Running);
        running.placement = Some(testkit::placement([("n0", [0, 1])]));
        running.steps_total = Some(1_000);
        running.step = Some(250);
        running.step_at_us = Some(Timestamp::from_s(100));
        running.steps_per_s = Some(1.0);
        model.job("a", Some(&json(&running)));
        let queued = testkit::job_record(testkit::job_spec("b", 2), JobPhase::Queued);
        model.job("b", Some(&json(&queued)));
        model.tick(true, now(100));
        model
    }

    #[test]
    fn unreadable_values_are_counted_and_change_nothing() {
        let mut model = example();
        model.job("a", Some(b"{"));
        model.report("power.n0", Some(b"7"), now(100));
        model.summary(b"", now(100));
        assert_eq!(model.unreadable, 3);
        assert_eq!((model.jobs.on_gpus(), model.power()), (1, Some(Power::from_w(680))));
        model.job("a", None);
        assert_eq!(model.jobs.on_gpus(), 0);
    }

    #[test]
    fn a_lease_that_is_not_renewed_is_not_active() {
        let mut model = example();
        let value = lease();
        model.lease("placer", Some(&json(&value)), now(100));
        let known = &model.leases["placer"];
        assert!(known.is_active(now(110).steady) && !known.is_active(now(111).steady));
    }

    pub(crate) fn lease() -> ServiceLease {
        ServiceLease {
            holder: wattle_common::messages::LeaseHolder {
                instance: "host-1".to_owned(),
                boot: None,
                pid_namespace: None,
                pid: 1,
            },
            length_ms: 5_000,
            since_us: Timestamp::from_s(1),
            released: false,
        }
    }
}
