//! Measures what the site promises, from the simulated hardware and the stored messages.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result};
use nvml_sim::node::Node;
use wattle_common::bounds::plausible_ledger_entry;
use wattle_common::messages::{LedgerEntry, NodeDesired};
use wattle_common::subject::{Bucket, StreamName};
use wattle_common::{Energy, NodeId, Power, Timestamp};
use wattle_runtime::bus::Bus;
use wattle_runtime::clock::monotonic;

use super::site::{RATE, Site};

/// Time for a power agent to apply its safe caps on a machine that is busy.
const AGENT_SLACK: Duration = Duration::from_secs(5);
/// Time in which every copy of a value on the servers is current.
const REPLICA_DELAY: Duration = Duration::from_secs(2);
/// Time after a power limit is set in which caps are ordered everywhere.
pub const LIMIT_SLACK: Duration = Duration::from_secs(20);

/// The newest order of a node.
#[derive(Clone, Copy, Debug)]
struct Order {
    revision: u64,
    /// When this process first read it.
    read_at: Duration,
    /// Wall time.
    lease: Duration,
    limited: bool,
    /// When the last read of this order began.
    checked_at: Duration,
}

/// A lowered cap after the end of a lease, unless the node has read a newer order than this process.
struct LateCap {
    node: String,
    at: Duration,
    revision: u64,
    passed: Duration,
    cap: Power,
}

type Orders = Arc<Mutex<BTreeMap<String, Order>>>;

/// Observes nodes and orders.
pub struct Observer {
    nodes: Vec<(String, Node)>,
    default_cap: Vec<Power>,
    orders: Orders,
    reader: tokio::task::JoinHandle<()>,
    suspected: Vec<LateCap>,
    observed_at: Duration,
    limit: Option<(Power, Duration)>,
    /// Readings of the sum of a node's counters.
    readings: BTreeMap<String, Vec<(Timestamp, Energy)>>,
    /// For how long caps differed from the safe cap after the end of a lease, GPU seconds.
    pub late_caps: Duration,
    /// For how long the GPUs drew more than the power limit.
    pub over_limit: Duration,
    /// Largest draw under the limit.
    pub largest: Power,
    /// GPU seconds with a cap below the default, under a lease: the check above is not empty.
    pub capped: Duration,
    /// Times at which a lease had ended with its power agent running.
    pub ended_leases: Duration,
}

async fn read_orders(bus: Bus, nodes: Vec<String>, orders: Orders) {
    let Ok(bucket) = bus.bucket(Bucket::Desired).await else { return };
    loop {
        for node in &nodes {
            let checked_at = monotonic();
            let Ok(Some((desired, revision))) = bucket.get::<NodeDesired>(node).await else {
                continue;
            };
            let lease = desired.expires_at_us.since(desired.issued_at_us) / RATE;
            let mut orders = orders.lock().expect("no holder panics");
            match orders.get_mut(node).filter(|order| order.revision == revision) {
                Some(order) => order.checked_at = checked_at,
                None => {
                    let (limited, read_at) = (desired.power_limited, monotonic());
                    let order = Order { revision, read_at, lease, limited, checked_at };
                    orders.insert(node.clone(), order);
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

impl Observer {
    /// Begins to observe.
    ///
    /// # Errors
    /// If a node's state cannot be read.
    pub fn new(site: &Site, bus: &Bus) -> Result<Self> {
        let open =
            |name: &String| -> Result<_> { Ok((name.clone(), Node::open(&site.state_of(name))?)) };
        let nodes: Vec<(String, Node)> = site.nodes.iter().map(open).collect::<Result<_>>()?;
        let orders = Orders::default();
        let reader = tokio::spawn(read_orders(bus.clone(), site.nodes.clone(), orders.clone()));
        let mut observer = Self {
            nodes,
            default_cap: Vec::new(),
            orders,
            reader,
            suspected: Vec::new(),
            observed_at: monotonic(),
            limit: None,
            readings: BTreeMap::new(),
            late_caps: Duration::ZERO,
            over_limit: Duration::ZERO,
            largest: Power::ZERO,
            capped: Duration::ZERO,
            ended_leases: Duration::ZERO,
        };
        for (name, node) in &observer.nodes {
            let model = node.observe()?;
            let cap = model.state.gpus.first().context("a node has GPUs")?.cap;
            observer.default_cap.push(cap);
            observer.readings.insert(name.clone(), vec![(model.at, counters(&model))]);
        }
        Ok(observer)
    }

    /// A power limit has been accepted.
    pub fn limited(&mut self, limit: Power) {
        self.limit = Some((limit, monotonic()));
    }

    /// Measures the interval since the last call.
    ///
    /// # Errors
    /// If a node's state cannot be read.
    pub fn observe(&mut self, site: &Site) -> Result<()> {
        let now = monotonic();
        let passed = now.saturating_sub(self.observed_at);
        self.observed_at = now;
        let mut draw = Power::ZERO;
        for ((name, node), default) in self.nodes.iter().zip(&self.default_cap) {
            let snapshot = node.observe()?;
            let readings = self.readings.entry(name.clone()).or_default();
            readings.push((snapshot.at, counters(&snapshot)));
            let agent = format!("power-agent-{name}");
            let agent = site.processes.iter().find(|process| process.name == agent);
            let running = agent.map_or(Duration::ZERO, super::process::Process::running_for);
            let order = self.orders.lock().expect("no holder panics").get(name).copied();
            let age = order.map(|order| (order, now.saturating_sub(order.read_at)));
            for gpu in &snapshot.state.gpus {
                draw = Power::from_mw(draw.as_mw() + gpu.power.as_mw());
                let Some((order, age)) = age else { continue };
                let is_capped = gpu.cap < *default;
                if is_capped {
                    self.capped += passed;
                }
                let ended = age > order.lease + AGENT_SLACK && running > AGENT_SLACK;
                if ended {
                    self.ended_leases += passed;
                }
                // Under a power limit the share of the limit is the safe cap.
                if ended && is_capped && !order.limited {
                    let (node, revision) = (name.clone(), order.revision);
                    let late = LateCap { node, at: now, revision, passed, cap: gpu.cap };
                    self.suspected.push(late);
                }
            }
        }
        self.judge_late_caps();
        if let Some((limit, since)) = self.limit
            && now > since + LIMIT_SLACK
        {
            self.largest = self.largest.max(draw);
            if draw > limit {
                self.over_limit += passed;
                super::log(&format!("{draw} is above the limit of {limit}"));
            }
        }
        Ok(())
    }

    /// Counts lowered caps whose order was still the newest one when it was read later.
    fn judge_late_caps(&mut self) {
        let orders = self.orders.lock().expect("no holder panics").clone();
        let (judged, open) = std::mem::take(&mut self.suspected).into_iter().partition(|late| {
            orders.get(&late.node).is_none_or(|order| {
                order.revision != late.revision || order.checked_at > late.at + REPLICA_DELAY
            })
        });
        self.suspected = open;
        for late in Vec::from_iter(judged) {
            if orders.get(&late.node).is_some_and(|order| order.revision == late.revision) {
                self.late_caps += late.passed;
                super::log(&format!("{}: cap of {} after its lease", late.node, late.cap));
            }
        }
    }

    /// The ledger's GPU energy against the counters of the GPUs, from the first entry of each node to its
    /// last one: largest relative difference of a node, and of all nodes together. The GPUs are idle.
    ///
    /// # Errors
    /// If the ledger or a node cannot be read.
    pub async fn ledger_error(&self, bus: &Bus) -> Result<(f64, f64)> {
        let mut by_start: BTreeMap<NodeId, BTreeMap<Timestamp, LedgerEntry>> = BTreeMap::new();
        let mut replay = bus.replay(StreamName::Ledger, None).await?;
        while let Some(message) = replay.next_message().await? {
            // As `wattle energy` reads it: what a node reports about others does not count.
            let now = wattle_runtime::clock::now();
            let Some(entry) = plausible_ledger_entry(&message.subject, &message.payload, now)
            else {
                continue;
            };
            by_start.entry(entry.node.clone()).or_default().entry(entry.from_us).or_insert(entry);
        }
        let entries: BTreeMap<NodeId, Vec<LedgerEntry>> = by_start
            .into_iter()
            .map(|(node, of_node)| (node, of_node.into_values().collect()))
            .collect();
        let (mut worst, mut all_ledger, mut all_counter) = (0.0_f64, 0.0, 0.0);
        for (name, node) in &self.nodes {
            let of_node = entries.get(&NodeId::new(name)?).map_or(&[][..], Vec::as_slice);
            let last = of_node.iter().map(|entry| entry.until_us).max().context("an entry")?;
            let energy = of_node.iter().flat_map(|entry| entry.energy_mj_gpus.iter().flatten());
            let ledger: f64 = energy.map(|energy| energy.as_mj() as f64).sum();
            let snapshot = node.observe()?;
            let idle: f64 = snapshot.state.gpus.iter().map(|gpu| gpu.power.as_w()).sum();
            let after = snapshot.at.since(last).as_secs_f64() * idle * 1e3;
            // The part before the first entry, when the GPUs were idle too.
            let first = of_node.iter().map(|entry| entry.from_us).min().context("an entry")?;
            let (begun, at_begin) = self.readings[name][0];
            let before = at_begin.as_mj() as f64
                + (first.since(begun).as_secs_f64() - begun.since(first).as_secs_f64())
                    * idle
                    * 1e3;
            let counter = counters(&snapshot).as_mj() as f64 - after - before;
            worst = worst.max(((ledger - counter) / counter).abs());
            super::log(&format!(
                "{name}: ledger {:.3} kJ in {} entries to {:.1} s ago, counters {:.3} kJ, idle {idle:.1} W",
                ledger / 1e6,
                of_node.len(),
                snapshot.at.since(last).as_secs_f64(),
                counter / 1e6
            ));
            self.log_entries(name, of_node);
            all_ledger += ledger;
            all_counter += counter;
        }
        Ok((worst, (all_ledger - all_counter) / all_counter))
    }
}

impl Observer {
    /// Logs entries that differ from the counters at their ends by more than the interval of readings
    /// explains, gaps and overlaps.
    fn log_entries(&self, node: &str, entries: &[LedgerEntry]) {
        let readings = &self.readings[node];
        let at = |instant: Timestamp| {
            let next = readings.partition_point(|reading| reading.0 < instant);
            let (before, after) = (readings.get(next.checked_sub(1)?)?, readings.get(next)?);
            let share =
                instant.since(before.0).as_secs_f64() / after.0.since(before.0).as_secs_f64();
            Some(before.1.as_mj() as f64 + share * (after.1.as_mj() - before.1.as_mj()) as f64)
        };
        for entry in entries {
            let ledger: u64 =
                entry.energy_mj_gpus.iter().flatten().map(|energy| energy.as_mj()).sum();
            let Some(counted) = at(entry.from_us).zip(at(entry.until_us)) else { continue };
            let counted = counted.1 - counted.0;
            if (ledger as f64 - counted).abs() > 1e6 {
                super::log(&format!(
                    "{node}: entry {} to {}: ledger {:.3} kJ, counters {:.3} kJ",
                    entry.from_us,
                    entry.until_us,
                    ledger as f64 / 1e6,
                    counted / 1e6
                ));
            }
        }
        for pair in entries.windows(2).filter(|pair| pair[0].until_us != pair[1].from_us) {
            let (before, after) = (pair[0].until_us, pair[1].from_us);
            super::log(&format!("{node}: an entry ends at {before}, the next begins at {after}"));
        }
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

fn counters(snapshot: &nvml_sim::node::Snapshot) -> Energy {
    let gpus = snapshot.state.gpus.iter();
    let counters = gpus.map(|gpu| snapshot.state.energy_counter(gpu, snapshot.at).as_mj());
    Energy::from_mj(counters.sum())
}
