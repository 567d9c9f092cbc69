//! A site of several hosts on one machine under faults, and what it promises against what was measured.
//!
//! Three NATS servers, two hosts with placer, registry and predictor, and GPU nodes with simulated GPUs,
//! each host in a network namespace with an address of its own, with TLS, keys and permissions. A user
//! submits jobs; faults are drawn from a seed, and an attacker sends forged messages. No power limit is in force in the first half of the run; in
//! the second half one is.

pub mod faults;
pub mod forgery;
pub mod jobs;
pub mod network;
pub mod observe;
pub mod process;
pub mod site;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use wattle_common::Power;
use wattle_common::job::JobPhase;
use wattle_common::messages::JobRecord;
use wattle_common::subject::Bucket;
use wattle_runtime::bus::Bus;
use wattle_runtime::clock::monotonic;

use self::faults::Faults;
use self::forgery::Attacker;
use self::jobs::Jobs;
use self::observe::Observer;
use self::site::Site;

/// The power limit of the second half, as a share of the GPUs' default caps.
const LIMIT_SHARE: f64 = 0.6;
/// Deadline of the site's start and of the last job.
const START_WITHIN: Duration = Duration::from_secs(120);
const END_WITHIN: Duration = Duration::from_secs(600);
const TICK: Duration = Duration::from_millis(200);

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Seed of faults and jobs.
    pub seed: u64,
    /// Duration with faults, wall time.
    pub duration: Duration,
    /// Number of GPU nodes, at most 200.
    pub nodes: u8,
    /// Whether an attacker sends forged messages.
    pub forge: bool,
}

/// What was measured.
#[derive(Debug)]
pub struct Outcome {
    /// Lines of the report: quantity, promised, measured, whether it holds.
    pub rows: Vec<(String, String, String, bool)>,
    /// Number of faults of each kind.
    pub faults: BTreeMap<&'static str, u32>,
}

impl Outcome {
    /// Whether everything that is promised held.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.rows.iter().all(|row| row.3)
    }
}

static BEGUN: std::sync::OnceLock<Duration> = std::sync::OnceLock::new();

/// A line of progress with the time since the first one.
pub fn log(line: &str) {
    let since = monotonic().saturating_sub(*BEGUN.get_or_init(monotonic));
    let _ = writeln!(std::io::stderr(), "{:6.1} s  {line}", since.as_secs_f64());
}

/// Runs the site in `folder`.
///
/// # Errors
/// If the site cannot be created, does not start, or its jobs do not end.
pub async fn run(plan: Plan, folder: &Path) -> Result<Outcome> {
    log("creates hosts and keys");
    let mut site = Site::create(folder, plan.nodes)?;
    wattle_runtime::clock::use_file(&site.state_of(&site.nodes[0]))?;
    for process in &mut site.processes {
        process.start()?;
    }
    let bus = site.bus("operator-olga").await?;
    log("servers answer");
    until_ready(&mut site).await?;
    log("all nodes report");
    let mut observer = Observer::new(&site, &bus)?;
    let mut attacker = None;
    if plan.forge {
        attacker = Some(Attacker::start(&site, plan.seed).await?);
    }
    let (mut faults, mut jobs) = (Faults::new(plan.seed), Jobs::new(plan.seed, folder));
    let begun = monotonic();
    let mut limit = PowerLimit::new(plan.nodes);
    while monotonic() < begun + plan.duration {
        tick(&mut site, &mut observer).await?;
        faults.advance(&mut site)?;
        jobs.advance(&site, true)?;
        if monotonic() > begun + plan.duration / 2 {
            limit.advance(&site, &mut observer)?;
        }
    }
    faults.end_all(&mut site)?;
    log("faults have ended");
    let ended = monotonic();
    let mut open_before = usize::MAX;
    let records = loop {
        tick(&mut site, &mut observer).await?;
        jobs.advance(&site, false)?;
        limit.advance(&site, &mut observer)?;
        let records = records(&bus).await;
        // A submission without an answer may have been accepted too.
        let unknown = jobs.accepted.iter().filter(|job| !records.contains_key(*job)).count();
        let open = unknown + records.values().filter(|record| !record.phase.is_final()).count();
        if open < open_before {
            log(&format!("{open} of {} jobs are queued or running", jobs.accepted.len()));
            open_before = open;
        }
        if open == 0 && !jobs.is_waiting() {
            break records;
        }
        if monotonic() > ended + END_WITHIN {
            break records;
        }
    };
    log("jobs have ended");
    let (forged, accepted) = match attacker {
        Some(attacker) => attacker.end().await,
        None => (0, 0),
    };
    // One more entry of the ledger: a minute of system time, and its delivery.
    let until = monotonic() + Duration::from_secs(15);
    while monotonic() < until {
        tick(&mut site, &mut observer).await?;
    }
    let (worst, total) = observer.ledger_error(&bus).await?;
    let set = limit.is_set.then_some(limit.limit);
    let effects = forgery::effects(&site, &bus, &records, &jobs.started(), set).await;
    for effect in &effects {
        log(&format!("effect of a forged message: {effect}"));
    }
    let effects = accepted + effects.len() as u64;
    let finished =
        |job: &&String| records.get(*job).is_some_and(|record| record.phase == JobPhase::Finished);
    let lost: Vec<&String> = jobs.accepted.iter().filter(|job| !finished(job)).collect();
    for job in &lost {
        let phase = records.get(*job).map(|record| (record.phase, record.attempt));
        log(&format!("{job}: {phase:?}"));
    }
    let attempts: u32 = records.values().map(|record| record.attempt).sum();
    let seconds = |span: Duration| format!("{:.1} s", span.as_secs_f64());
    let row = |what: &str, promised: &str, measured: String, holds: bool| {
        (what.to_owned(), promised.to_owned(), measured, holds)
    };
    let rows = vec![
        row("accepted jobs", "some", jobs.accepted.len().to_string(), !jobs.accepted.is_empty()),
        row("submissions without an answer", "-", jobs.refused.to_string(), true),
        row("attempts of all jobs", "-", attempts.to_string(), true),
        row("jobs lost", "0", lost.len().to_string(), lost.is_empty()),
        row("attempts started twice", "0", jobs.doubled().to_string(), jobs.doubled() == 0),
        row(
            "GPU time with a lowered cap",
            "some",
            seconds(observer.capped),
            !observer.capped.is_zero(),
        ),
        row("GPU time after a lease, agent running", "-", seconds(observer.ended_leases), true),
        row(
            "caps beyond their lease",
            "0 s",
            seconds(observer.late_caps),
            observer.late_caps.is_zero(),
        ),
        row(
            "power limit accepted",
            "yes",
            (if limit.is_set { "yes" } else { "no" }).to_owned(),
            limit.is_set,
        ),
        row("largest draw under the limit", "-", observer.largest.to_string(), true),
        row(
            "power above the limit",
            "0 s",
            seconds(observer.over_limit),
            observer.over_limit.is_zero(),
        ),
        row(
            "ledger against counters, all nodes",
            "0.1 %",
            format!("{:+.3} %", 100.0 * total),
            total.abs() <= 0.001,
        ),
        row("forged messages", "-", forged.to_string(), forged > 0 || !plan.forge),
        row("forged messages with an effect", "0", effects.to_string(), effects == 0),
        row("ledger against counters, worst node", "-", format!("{:.3} %", 100.0 * worst), true),
    ];
    let mut counts = BTreeMap::new();
    for fault in &faults.history {
        *counts.entry(fault.kind()).or_insert(0) += 1;
    }
    stop(&mut site).await?;
    Ok(Outcome { rows, faults: counts })
}

async fn tick(site: &mut Site, observer: &mut Observer) -> Result<()> {
    tokio::time::sleep(TICK).await;
    for process in &mut site.processes {
        process.supervise()?;
    }
    observer.observe(site)
}

/// Waits until every node reports, from the launcher and the power agent.
async fn until_ready(site: &mut Site) -> Result<()> {
    let begun = monotonic();
    while monotonic() < begun + START_WITHIN {
        for process in &mut site.processes {
            process.supervise()?;
        }
        if let Ok(output) = site.run("operator-olga", &["nodes", "--json"]) {
            let list: serde_json::Value = serde_json::from_slice(&output.stdout)?;
            let nodes = list.as_array().or_else(|| list["nodes"].as_array()).map_or(0, Vec::len);
            if nodes == site.nodes.len() {
                return Ok(());
            }
        }
        tokio::time::sleep(TICK).await;
    }
    bail!("the site did not start within {START_WITHIN:?}; logs are in {}", site.folder.display())
}

/// The request for a power limit, repeated until the placer accepts it.
struct PowerLimit {
    limit: Power,
    request: Option<tokio::process::Child>,
    is_set: bool,
}

impl PowerLimit {
    fn new(nodes: u8) -> Self {
        let watts = f64::from(nodes) * 2.0 * 250.0 * LIMIT_SHARE;
        Self { limit: Power::from_w(watts as u64), request: None, is_set: false }
    }

    fn advance(&mut self, site: &Site, observer: &mut Observer) -> Result<()> {
        if self.is_set {
            return Ok(());
        }
        let Some(request) = &mut self.request else {
            let kw = format!("{:.3}", self.limit.as_w() / 1e3);
            let command = site.wattle("operator-olga", &["budget", "set", "--power-kw", &kw]);
            let mut command = tokio::process::Command::from(command);
            command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
            self.request = Some(command.spawn()?);
            return Ok(());
        };
        if let Some(status) = request.try_wait()? {
            self.is_set = status.success();
            self.request = None;
            log(&format!("power limit of {}: {status}", self.limit));
            if self.is_set {
                observer.limited(self.limit);
            }
        }
        Ok(())
    }
}

/// Records of all jobs by id; those that cannot be read are absent.
async fn records(bus: &Bus) -> BTreeMap<String, JobRecord> {
    let mut records = BTreeMap::new();
    let Ok(bucket) = bus.bucket(Bucket::Jobs).await else { return records };
    for key in bucket.keys().await.unwrap_or_default() {
        if let Ok(Some((record, _))) = bucket.get(&key).await {
            records.insert(key, record);
        }
    }
    records
}

/// Ends all processes.
async fn stop(site: &mut Site) -> Result<()> {
    for process in site.processes.iter_mut().rev() {
        process.stop();
    }
    let begun = monotonic();
    while monotonic() < begun + Duration::from_secs(10) {
        for process in &mut site.processes {
            process.supervise()?;
        }
        if site.processes.iter().all(process::Process::has_ended) {
            return Ok(());
        }
        tokio::time::sleep(TICK).await;
    }
    Err(std::io::Error::from(std::io::ErrorKind::TimedOut)).context("services did not end in 10 s")
}
