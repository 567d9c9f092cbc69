//! The mean power of a site or feeder over the last minutes, by the energy ledger: the baseline of grid events.
//!
//! Each node counts with its mean over its metered time in the window, entire nodes included. Where the power of some node
//! is not known there is no mean.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use wattle_common::event::{MeasuredBy, MeasuredMean};
use wattle_common::{NodeId, Power, Timestamp};

/// The window.
pub const WINDOW: Duration = Duration::from_secs(900);
/// Shorter entries are joined, so that few are kept.
const JOINED_LEAST: Duration = Duration::from_secs(30);

/// An entry of the ledger.
#[derive(Clone, Copy, Debug)]
struct Metered {
    from: Timestamp,
    until: Timestamp,
    joules: f64,
}

/// The metered energy of the last minutes of each node.
#[derive(Clone, Debug, Default)]
pub struct RecentPower {
    by_node: BTreeMap<NodeId, VecDeque<Metered>>,
}

impl RecentPower {
    /// Energy of a node was metered, spread evenly between two instants.
    pub fn metered(&mut self, node: &NodeId, from: Timestamp, until: Timestamp, joules: f64) {
        let entries = self.by_node.entry(node.clone()).or_default();
        // An entry that arrives again does not count twice.
        if until <= from || entries.back().is_some_and(|last| from < last.until) {
            return;
        }
        while entries.front().is_some_and(|first| until.since(first.until) > WINDOW) {
            entries.pop_front();
        }
        let joined = entries
            .back_mut()
            .filter(|last| last.until == from && last.until.since(last.from) < JOINED_LEAST);
        match joined {
            Some(last) => {
                last.until = until;
                last.joules += joules;
            }
            None => entries.push_back(Metered { from, until, joules }),
        }
    }

    /// The mean power of these nodes in the window before `now`, each by its share. A node that was not metered counts with
    /// the given power, as of one that sleeps; `None`: it is not known for some node, or there is none.
    pub fn mean<'a>(
        &self,
        now: Timestamp,
        nodes: impl IntoIterator<Item = (&'a NodeId, f64, Option<Power>)>,
    ) -> Option<MeasuredMean> {
        let begin = now - WINDOW;
        let (mut watts, mut from_us, mut until_us) = (0.0, now, begin);
        for (node, share, otherwise) in nodes {
            let entries = self.by_node.get(node).into_iter().flatten();
            let (mut span_s, mut joules) = (0.0, 0.0);
            for entry in entries.filter(|entry| entry.until > begin && entry.from < now) {
                let (from, until) = (entry.from.max(begin), entry.until.min(now));
                let within_s = until.since(from).as_secs_f64();
                span_s += within_s;
                joules += entry.joules * within_s / entry.until.since(entry.from).as_secs_f64();
                (from_us, until_us) = (from_us.min(from), until_us.max(until));
            }
            watts += share * if span_s > 0.0 { joules / span_s } else { otherwise?.as_w() };
        }
        let power_mw = Power::from_w_f64(watts);
        let method = MeasuredBy::EnergyLedger;
        (from_us < until_us).then_some(MeasuredMean { power_mw, from_us, until_us, method })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_count_with_their_metered_time_in_the_window() {
        let at = |minute: u64| Timestamp::from_s(100_000 + 60 * minute);
        let nodes = ["a", "b"].map(|node| NodeId::new(node).unwrap());
        let mut recent = RecentPower::default();
        for minute in 0..20 {
            let watts = if minute < 5 { 9_000.0 } else { 1_000.0 };
            recent.metered(&nodes[0], at(minute), at(minute + 1), 60.0 * watts);
        }
        let mean = |recent: &RecentPower, otherwise| {
            let known = nodes.iter().zip([None, otherwise]);
            let known = known.map(|(node, otherwise)| (node, 1.0, otherwise));
            recent.mean(at(20), known).map(|mean| mean.power_mw)
        };
        assert_eq!(mean(&recent, None), None, "one node is not known");
        assert_eq!(mean(&recent, Some(Power::from_w(50))), Some(Power::from_w(1_050)));
        // Half a minute of the second node, in two parts, and one of them again.
        for _ in 0..2 {
            recent.metered(&nodes[1], at(19), at(19) + Duration::from_secs(15), 15.0 * 100.0);
        }
        let (from, until) = (at(19) + Duration::from_secs(15), at(19) + Duration::from_secs(30));
        recent.metered(&nodes[1], from, until, 15.0 * 300.0);
        let all = |share: f64| nodes.iter().map(move |node| (node, share, None));
        let both = recent.mean(at(20), all(1.0)).unwrap();
        assert_eq!(both.power_mw, Power::from_w(1_200));
        assert_eq!((both.from_us, both.until_us), (at(5), at(20)));
        let half = recent.mean(at(20), all(0.5)).unwrap();
        assert_eq!(half.power_mw, Power::from_w(600), "each node counts by its share");
        assert_eq!(recent.mean(at(60), all(1.0)), None, "too old");
    }
}
