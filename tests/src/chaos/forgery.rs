//! Forged and replayed messages: an attacker without a key, with the key of a user, and with the key of a node.
//!
//! It records what its keys may read: orders, reports and job records. It sends them again, changed or on the
//! subjects of others, and invents orders, reports, records, requests and entries of the ledger. The server
//! refuses most of them; what it lets through must have no effect ([`effects`]).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use wattle_common::codec::encode_json as json;
use wattle_common::job::JobPhase;
use wattle_common::messages::{
    BudgetRecord, CancelJob, DesiredJob, JobRecord, LaunchReport, LedgerEntry, NodeDesired, Reply,
    SetBudget, SubmitJob,
};
use wattle_common::rng::Stream;
use wattle_common::subject::{BUDGET_SET, Bucket, ROOT, Reporter};
use wattle_common::{Budget, ClusterId, Energy, JobId, NodeId, Power, Timestamp, codec};
use wattle_runtime::bus::{Bus, BusConfig};
use wattle_runtime::{clock, testing};
use wattle_testkit::{job_record, job_spec, launch_report, ledger_entry, node_desired};

use super::site::Site;

/// Whose keys the attacker has.
pub const USER: &str = "mallory";
const NODE: &str = "g0";
/// Forged jobs and orders have ids with this beginning.
const FORGED: &str = "forged";
/// Pause between two messages.
const EVERY: Duration = Duration::from_millis(250);
/// Most recorded messages.
const RECORDED_MAX: usize = 200;

/// The attacker at work.
pub struct Attacker {
    sent: Arc<AtomicU64>,
    answered: Arc<AtomicU64>,
    marker: PathBuf,
    task: tokio::task::JoinHandle<()>,
}

impl Attacker {
    /// Begins, with the draws of a seed.
    ///
    /// # Errors
    /// If a key cannot be used.
    pub async fn start(site: &Site, seed: u64) -> Result<Self> {
        let marker = site.folder.join("forged-order-was-run");
        let (sent, answered) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let attack = Attack {
            draws: Stream::new(seed, "forgery"),
            user: site.bus(&format!("user-{USER}")).await?,
            node: site.bus(&format!("node-{NODE}")).await?,
            keyless: site.keyless(),
            other: site.nodes.last().cloned().unwrap_or_default(),
            marker: marker.clone(),
            recorded: Vec::new(),
            jobs: Vec::new(),
            count: 0,
            sent: sent.clone(),
            answered: answered.clone(),
        };
        Ok(Self { sent, answered, marker, task: tokio::spawn(attack.run()) })
    }

    /// Ends the attack. Returns the number of messages, and of those that a service accepted.
    pub async fn end(self) -> (u64, u64) {
        self.task.abort();
        let _ = self.task.await;
        let was_run = u64::from(self.marker.exists());
        (self.sent.load(Ordering::Relaxed), self.answered.load(Ordering::Relaxed) + was_run)
    }
}

/// A message that the attacker could read.
struct Recorded {
    key: String,
    payload: Vec<u8>,
}

struct Attack {
    draws: Stream,
    user: Bus,
    node: Bus,
    keyless: BusConfig,
    /// A node of which the attacker has no key.
    other: String,
    marker: PathBuf,
    recorded: Vec<Recorded>,
    jobs: Vec<JobId>,
    count: u64,
    sent: Arc<AtomicU64>,
    answered: Arc<AtomicU64>,
}

fn subject(rest: &str) -> String {
    format!("{ROOT}.main.{rest}")
}

/// An entry of the ledger over the last minute.
fn a_minute(node: &str, now: Timestamp) -> LedgerEntry {
    let span = Duration::from_secs(60);
    ledger_entry(node, now - span, now, Power::from_w(300).over(span))
}

impl Attack {
    async fn run(mut self) {
        loop {
            if self.count.is_multiple_of(8) {
                self.record().await;
            }
            self.count += 1;
            match self.draws.below(12) {
                0..=4 => self.as_user().await,
                5..=10 => self.as_node().await,
                _ => self.without_key().await,
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    fn cluster(&self) -> &ClusterId {
        self.node.cluster()
    }

    /// Reads the order of the node, its reports and the records of jobs.
    async fn record(&mut self) {
        let read = async {
            let orders = self.node.bucket(Bucket::Desired).await.ok()?;
            let (order, _) = orders.get_bytes(NODE).await.ok()??;
            Some(order.to_vec())
        };
        let order = tokio::time::timeout(Duration::from_secs(5), read).await.ok().flatten();
        let mut found: Vec<Recorded> = Vec::new();
        if let Some(payload) = order {
            if let Ok(order) = codec::decode_json::<NodeDesired>(&payload) {
                self.jobs.extend(order.jobs.into_iter().map(|job| job.job));
            }
            found.push(Recorded { key: NODE.to_owned(), payload });
        }
        let stream = Bucket::Actual.stream(self.cluster());
        for reporter in ["launcher", "power"] {
            let key = format!("{reporter}.{NODE}");
            let own = Bucket::Actual.subject(self.cluster(), &key);
            let body = json(&json!({ "last_by_subj": own }));
            let get = format!("$JS.API.STREAM.MSG.GET.{stream}");
            let Some(reply) = testing::request(&self.node, &get, body).await else { continue };
            let reply: Value = serde_json::from_slice(&reply).unwrap_or_default();
            let payload = reply["message"]["data"].as_str().map(|data| STANDARD.decode(data));
            if let Some(Ok(payload)) = payload {
                found.push(Recorded { key, payload });
            }
        }
        self.recorded.extend(found);
        let surplus = self.recorded.len().saturating_sub(RECORDED_MAX);
        self.recorded.drain(..surplus);
        self.jobs.dedup();
        let surplus = self.jobs.len().saturating_sub(RECORDED_MAX);
        self.jobs.drain(..surplus);
    }

    /// A job of another person, if one is known.
    fn victim(&mut self) -> Option<JobId> {
        self.draws.pick(&self.jobs).cloned()
    }

    fn submission(&self, job: &str, user: &str) -> Vec<u8> {
        let mut spec = job_spec(job, 1);
        spec.user = Some(user.to_owned());
        spec.command = self.mark();
        json(&SubmitJob { spec, submission: None, user_proven: true })
    }

    /// A command that leaves a mark.
    fn mark(&self) -> Vec<String> {
        ["touch".to_owned(), self.marker.display().to_string()].to_vec()
    }

    async fn as_user(&mut self) {
        let Some(victim) = self.victim() else { return };
        let cancel = json(&CancelJob { job: victim.clone() });
        let forged = format!("{FORGED}-{}", self.count);
        let budget = Budget { power_mw: Some(Power::from_w(1)), ..Budget::default() };
        let budget = json(&SetBudget { budget, intensity: None });
        let jobs = self.cluster_subject(Bucket::Jobs, victim.as_str());
        let order = self.cluster_subject(Bucket::Desired, &self.other);
        let (to, payload) = match self.draws.below(11) {
            0 => (subject("job.submitted.user.ada"), self.submission(&forged, "ada")),
            1 => (subject("job.submitted.operator.olga"), self.submission(&forged, "olga")),
            2 => (subject("job.cancelled.user.ada"), cancel),
            3 => (subject("job.cancelled.operator.olga"), cancel),
            // The server permits these; the placer refuses them.
            4 | 5 => (subject(&format!("job.cancelled.user.{USER}")), cancel),
            6 => {
                let own = format!("job.submitted.user.{USER}");
                (subject(&own), self.submission(victim.as_str(), "ada"))
            }
            7 => (subject("budget.set.operator.olga"), budget),
            8 => (subject(&format!("budget.set.user.{USER}")), budget),
            9 => (jobs, json(&job_record(job_spec(victim.as_str(), 1), JobPhase::Cancelled))),
            _ => (order, json(&self.order(u64::from(u32::MAX)))),
        };
        self.sent.fetch_add(1, Ordering::Relaxed);
        // A request is refused by the server, which is no answer, or by the placer.
        let reply = testing::request(&self.user, &to, payload).await;
        let accepted = reply.is_some_and(|reply| {
            matches!(codec::decode_json::<Reply>(&reply), Ok(Reply::Accepted { .. }))
                || String::from_utf8_lossy(&reply).contains("\"stored\"")
        });
        // The job of the victim may have ended or be the attacker's own repeated request: neither exists here.
        if accepted {
            super::log(&format!("a forged request on {to} was accepted"));
            self.answered.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn cluster_subject(&self, bucket: Bucket, key: &str) -> String {
        bucket.subject(self.cluster(), key)
    }

    /// An order of the other node that runs a command.
    fn order(&self, generation: u64) -> NodeDesired {
        let now = clock::now();
        let job = DesiredJob {
            job: JobId::new(&format!("{FORGED}-{}", self.count)).expect("an id"),
            admission: None,
            user: Some("ada".to_owned()),
            attempt: 1,
            gpus: vec![0],
            rank: 0,
            shares: Vec::new(),
            command: self.mark(),
            environment: Vec::new(),
            working_dir: None,
            checkpoint_signal: None,
            stop: false,
        };
        NodeDesired {
            jobs: vec![job],
            ..node_desired(&self.other, generation, now, now + Duration::from_secs(60))
        }
    }

    fn absurd_entry(&mut self, node: &str) -> LedgerEntry {
        let now = clock::now();
        let mut entry = a_minute(node, now);
        match self.draws.below(5) {
            0 => entry.energy_mj_gpus = vec![Some(Energy::from_mj(u64::MAX)); 2],
            1 => entry.energy_mj_host = Energy::from_mj(u64::MAX / 2),
            2 => entry.until_us = Timestamp::from_us(u64::MAX),
            3 => entry.from_us = Timestamp::from_us(1),
            _ => {
                let power = Power::from_w(9_000_000);
                entry.energy_mj_gpus = vec![Some(power.over(Duration::from_secs(60)))];
            }
        }
        entry
    }

    async fn as_node(&mut self) {
        let (own, other) = (NODE.to_owned(), self.other.clone());
        let Some(victim) = self.victim() else { return };
        let now = clock::now();
        let generation = [1, 1_000_000, u64::MAX][self.draws.below(3) as usize];
        let no_jobs = LaunchReport {
            instance: "process 1".to_owned(),
            ..launch_report(&other, now, 1_000_000, [])
        };
        let report_key = Reporter::Launcher.key(&NodeId::new(&other).expect("an id"));
        let (to, payload) = match self.draws.below(14) {
            // Replays, on the same key and on that of another node.
            0..=3 => {
                let Some(recorded) = self.draws.pick(&self.recorded) else { return };
                let payload = recorded.payload.clone();
                let key = recorded.key.clone();
                let key = if self.draws.below(2) == 0 { key } else { key.replace(&own, &other) };
                let bucket = recorded_bucket(&key);
                (self.cluster_subject(bucket, &key), payload)
            }
            4 => (self.cluster_subject(Bucket::Desired, &other), json(&self.order(generation))),
            5 => (self.cluster_subject(Bucket::Actual, &report_key), json(&no_jobs)),
            // About another node, on the attacker's own subject.
            6 => (self.cluster_subject(Bucket::Actual, &format!("launcher.{own}")), json(&no_jobs)),
            7 => {
                let entry = self.absurd_entry(&own);
                (subject(&format!("energy.metered.{own}")), json(&entry))
            }
            8 => {
                let entry = self.absurd_entry(&other);
                (subject(&format!("energy.metered.{own}")), json(&entry))
            }
            9 => {
                // Plausible, but about another node.
                let entry = a_minute(&other, now);
                let from = [&own, &other][self.draws.below(2) as usize];
                (subject(&format!("energy.metered.{from}")), json(&entry))
            }
            10 => (subject("job.cancelled.operator.olga"), json(&CancelJob { job: victim })),
            11 => {
                let progress = json!({ "job": victim, "node": other, "attempt": 1, "at_us": now,
                    "step": 123_456_789 });
                (subject(&format!("job.progressed.{other}.{victim}")), json(&progress))
            }
            12 => {
                let record = job_record(job_spec(victim.as_str(), 1), JobPhase::Finished);
                (self.cluster_subject(Bucket::Jobs, victim.as_str()), json(&record))
            }
            _ => (
                self.cluster_subject(Bucket::Leases, "placer"),
                br#"{"holder":"mallory","until_us":18446744073709551615}"#.to_vec(),
            ),
        };
        self.sent.fetch_add(1, Ordering::Relaxed);
        // While the server is away the client keeps the message for later.
        let _ = testing::publish(&self.node, &to, payload).await;
    }

    /// Tries to connect.
    async fn without_key(&mut self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
        let tried = Bus::connect_within(
            &self.keyless,
            self.cluster().clone(),
            "mallory",
            Duration::from_secs(1),
        );
        if tried.await.is_ok() {
            super::log("a connection without a key was accepted");
            self.answered.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn recorded_bucket(key: &str) -> Bucket {
    if key.contains('.') { Bucket::Actual } else { Bucket::Desired }
}

/// Effects of forged messages in the records, the budget and the logs at the end of a run: foreign jobs
/// cancelled, forged records and orders, attempts that the placer has not ordered, another budget than that of
/// the operator, and nodes for which another process has reported.
pub async fn effects(
    site: &Site,
    bus: &Bus,
    records: &BTreeMap<String, JobRecord>,
    started: &[(String, u32)],
    limit: Option<Power>,
) -> Vec<String> {
    let mut found = Vec::new();
    for (job, record) in records {
        if job.starts_with(FORGED) {
            found.push(format!("{job} has a record"));
        }
        if record.phase == JobPhase::Cancelled {
            found.push(format!("{job} was cancelled"));
        }
        if record.spec.user.as_deref() != Some("ada") {
            found.push(format!("{job} belongs to {:?}", record.spec.user));
        }
        if record.step == Some(123_456_789) {
            found.push(format!("{job} has a forged step"));
        }
    }
    for (job, attempt) in started {
        let ordered = records.get(job).map_or(0, |record| record.attempt);
        if *attempt == 0 || *attempt > ordered {
            found.push(format!("attempt {attempt} of {job} was started, {ordered} were ordered"));
        }
    }
    if let Ok(bucket) = bus.bucket(Bucket::Budget).await
        && let Ok(set) = bucket.get::<BudgetRecord>(BUDGET_SET).await
    {
        let set = set.and_then(|(record, _)| record.budget.power_mw);
        if set != limit {
            found.push(format!("the power limit is {set:?}, the operator set {limit:?}"));
        }
    }
    for host in ["ctl0", "ctl1"] {
        let log = std::fs::read_to_string(site.folder.join(host).join("placer.log"));
        let log = log.unwrap_or_default();
        let second = log.lines().filter(|line| {
            line.contains("report as node") && !line.contains(&format!("report as node {NODE}:"))
        });
        found.extend(second.map(str::to_owned));
        found.extend(log.lines().filter(|line| line.contains("panicked")).map(str::to_owned));
    }
    found
}

/// The attempts that job processes have noted in this file: `JOB ATTEMPT` in each line.
#[must_use]
pub fn attempts(file: &Path) -> Vec<(String, u32)> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let pair = |line: &str| {
        let (job, attempt) = line.split_once(' ')?;
        Some((job.to_owned(), attempt.parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}
