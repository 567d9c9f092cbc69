//! The energy of the site over an interval, by the energy ledger: entire nodes, GPUs and hosts.
//!
//! Each node that was metered in the interval, or shortly before it, must have been metered during the whole interval.
//! Otherwise the energy is not known.

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::messages::LedgerEntry;
use wattle_common::{NodeId, Timestamp};

/// A node that was metered within this time before the interval belongs to the site.
const SITE_WITHIN: Duration = Duration::from_secs(900);
/// Share of the interval in which a node must have been metered. Its mean counts for the rest.
const COVERED_LEAST: f64 = 0.99;

#[derive(Clone, Copy, Debug, Default)]
struct Metered {
    last: Timestamp,
    covered_s: f64,
    joules: f64,
    is_unmeasured: bool,
}

/// The energy over an interval.
#[derive(Clone, Debug)]
pub struct Usage {
    from: Timestamp,
    until: Timestamp,
    nodes: BTreeMap<NodeId, Metered>,
}

impl Usage {
    /// No energy yet.
    #[must_use]
    pub const fn new(from: Timestamp, until: Timestamp) -> Self {
        Self { from, until, nodes: BTreeMap::new() }
    }

    /// Adds an entry of the ledger, in the order of the stream. One that is in the stream again does not count twice.
    pub fn add(&mut self, entry: &LedgerEntry) {
        let (from, until) = (entry.from_us, entry.until_us);
        let is_near = until + SITE_WITHIN > self.from && from < self.until && from < until;
        if !is_near {
            return;
        }
        let node = self.nodes.entry(entry.node.clone()).or_default();
        if from < node.last {
            return;
        }
        node.last = until;
        let within_s = until.min(self.until).since(from.max(self.from)).as_secs_f64();
        if within_s > 0.0 {
            let joules = (entry.gpus() + entry.energy_mj_host).as_j();
            node.covered_s += within_s;
            node.joules += joules * within_s / until.since(from).as_secs_f64();
            node.is_unmeasured |= entry.unknown.iter().any(|unknown| unknown.unmeasured);
        }
    }

    /// The energy, J.
    ///
    /// # Errors
    /// Why it is not known.
    pub fn joules(&self) -> Result<f64, String> {
        let length_s = self.until.since(self.from).as_secs_f64();
        if self.nodes.is_empty() {
            return Err("no node was metered".to_owned());
        }
        let mut joules = 0.0;
        for (node, metered) in &self.nodes {
            if metered.is_unmeasured || metered.covered_s < COVERED_LEAST * length_s {
                let covered_s = metered.covered_s;
                return Err(format!(
                    "node {node} was metered for {covered_s:.0} s of {length_s:.0} s"
                ));
            }
            joules += metered.joules * length_s / metered.covered_s;
        }
        Ok(joules)
    }
}

#[cfg(test)]
mod tests {
    use wattle_common::units::Energy;
    use wattle_testkit::ledger_entry;

    use super::*;

    #[test]
    fn the_energy_is_known_where_each_node_was_metered_throughout() {
        let at = |minute: u64| Timestamp::from_s(100_000 + 60 * minute);
        let entry = |node, minute, kj: u64| {
            ledger_entry(node, at(minute), at(minute + 1), Energy::from_j(1_000 * kj))
        };
        // Half a minute of the first and of the last entry are in the interval.
        let half = Duration::from_secs(30);
        let mut usage = Usage::new(at(10) + half, at(13) + half);
        assert_eq!(usage.joules(), Err("no node was metered".to_owned()));
        for minute in 5..20 {
            usage.add(&entry("a", minute, 60));
            usage.add(&entry("a", minute, 60));
        }
        assert!((usage.joules().unwrap() - 180_000.0).abs() < 1.0);
        let before = usage.clone();
        for minute in 5..12 {
            usage.add(&entry("b", minute, 6));
        }
        assert_eq!(usage.joules(), Err("node b was metered for 90 s of 180 s".to_owned()));
        for minute in 12..14 {
            usage.add(&entry("b", minute, 6));
        }
        assert!((usage.joules().unwrap() - 198_000.0).abs() < 1.0);
        // A node that was away long before is not one of the site.
        let mut usage = before;
        usage.add(&ledger_entry(
            "c",
            at(0) - SITE_WITHIN,
            at(0) - Duration::from_secs(600),
            Energy::from_j(1),
        ));
        assert!(usage.joules().is_ok());
    }
}
