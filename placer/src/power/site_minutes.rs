//! The energy of the site and of feeders by minute, from the energy ledger.
//!
//! An entry of the ledger counts in each minute with the part of its interval there, so the sums of consecutive minutes are
//! the energy of the ledger. A minute is closed once every node was metered until its end, or [`LATE`] after it; each minute
//! once, in order. One without energy is left out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use wattle_common::feeders::FeederLimit;
use wattle_common::messages::LedgerEntry;
use wattle_common::messages::site_minute::{LATE, MINUTE, minute_of};
use wattle_common::{Energy, NodeId, Power, Timestamp};

/// A node that was metered within this time before the end of a minute belongs to the site.
pub const SITE_WITHIN: Duration = Duration::from_secs(900);
/// Share of a minute in which a node must have been metered, per cent.
const COVERED_LEAST_PERCENT: u64 = 99;

/// Whether a node can be metered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is awake.
    Awake,
    /// It sleeps, with this power.
    Asleep(Power),
    /// It does not report.
    Lost,
}

/// A minute of the site and of the feeders that were requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedSite {
    /// The site.
    pub site: ClosedMinute,
    /// The feeders, in the given order, without their static loads.
    pub feeders: Vec<ClosedMinute>,
}

/// A minute of the site or of a feeder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosedMinute {
    /// Its start.
    pub from: Timestamp,
    /// The metered energy.
    pub energy: Energy,
    /// Number of nodes.
    pub nodes: u32,
    /// Number of nodes that were metered throughout.
    pub metered: u32,
    /// Number of nodes that slept, and their power.
    pub asleep: (u32, Power),
}

impl ClosedMinute {
    /// Without nodes.
    const fn none(from: Timestamp) -> Self {
        Self { from, energy: Energy::ZERO, nodes: 0, metered: 0, asleep: (0, Power::ZERO) }
    }
}

/// The sums of a minute, as nodes are added.
#[derive(Clone, Copy)]
struct Sum {
    minute: ClosedMinute,
    energy_mj: u128,
}

impl Sum {
    fn add(&mut self, energy_mj: u128, is_metered: bool, asleep: Option<Power>) {
        let minute = &mut self.minute;
        minute.nodes += 1;
        self.energy_mj += energy_mj;
        if is_metered {
            minute.metered += 1;
        } else if let Some(power) = asleep {
            minute.asleep.0 += 1;
            minute.asleep.1 += power;
        }
    }

    fn closed(self) -> ClosedMinute {
        let energy = Energy::from_mj(u64::try_from(self.energy_mj).unwrap_or(u64::MAX));
        ClosedMinute { energy, ..self.minute }
    }
}

/// An entry of the ledger.
#[derive(Clone, Copy, Debug)]
struct Metered {
    from: Timestamp,
    until: Timestamp,
    energy: Energy,
    is_unmeasured: bool,
}

impl Metered {
    /// The energy from its start until an instant; the parts of an entry add up to it.
    fn until(&self, at: Timestamp) -> u128 {
        let span_us = self.until.since(self.from).as_micros();
        let part_us = at.min(self.until).since(self.from).as_micros();
        u128::from(self.energy.as_mj()) * part_us / span_us.max(1)
    }
}

/// The entries that minutes which are not closed yet may need.
#[derive(Clone, Debug)]
pub struct SiteMinutes {
    by_node: BTreeMap<NodeId, VecDeque<Metered>>,
    /// The first minute that is not closed; `None`: nothing was metered.
    next: Option<Timestamp>,
    /// Entries from before this instant may still arrive: start of the process, or return of the bus.
    since: Timestamp,
}

impl SiteMinutes {
    /// No energy yet.
    #[must_use]
    pub const fn new(now: Timestamp) -> Self {
        Self { by_node: BTreeMap::new(), next: None, since: now }
    }

    /// Minutes before `next` are closed.
    pub const fn continue_from(&mut self, next: Timestamp) {
        self.next = Some(next);
    }

    /// Entries that were metered while the bus was away may arrive.
    pub const fn bus_returned(&mut self, now: Timestamp) {
        self.since = now;
    }

    /// A node was metered. An entry that arrives again does not count twice.
    pub fn metered(&mut self, entry: &LedgerEntry) {
        let entries = self.by_node.entry(entry.node.clone()).or_default();
        let (from, until) = (entry.from_us, entry.until_us);
        if until <= from || entries.back().is_some_and(|last| from < last.until) {
            return;
        }
        entries.push_back(Metered {
            from,
            until,
            energy: entry.gpus() + entry.energy_mj_host,
            is_unmeasured: entry.unknown.iter().any(|unknown| unknown.unmeasured),
        });
        // The first minute is the first whole one.
        self.next.get_or_insert_with(|| minute_of(from + MINUTE - Duration::from_micros(1)));
    }

    /// Whether the next minute is over.
    #[must_use]
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.next.is_some_and(|next| next + MINUTE <= now)
    }

    /// Closes the next minute, if it is complete or late. `presence` has the nodes of the cluster.
    pub fn close(
        &mut self,
        now: Timestamp,
        presence: &BTreeMap<NodeId, Presence>,
        feeders: &[Arc<FeederLimit>],
    ) -> Option<ClosedSite> {
        loop {
            let from = self.next?;
            let until = from + MINUTE;
            self.forget_before(until - SITE_WITHIN);
            let is_late = now >= until + LATE && now >= self.since + LATE;
            let awake = |node: &NodeId| {
                !matches!(presence.get(node), Some(Presence::Asleep(_) | Presence::Lost))
            };
            let awaited = |node: &NodeId| {
                let last = self.by_node.get(node).and_then(VecDeque::back);
                awake(node) && last.is_none_or(|last| last.until < until)
            };
            let mut nodes: BTreeSet<&NodeId> = self.by_node.keys().collect();
            let present = presence.iter().filter(|(_, presence)| **presence != Presence::Lost);
            nodes.extend(present.map(|(node, _)| node));
            if now < until || (!is_late && nodes.iter().any(|node| awaited(node))) {
                return None;
            }
            let closed = self.minute(from, &nodes, presence, feeders);
            self.next = Some(until);
            if closed.site.energy > Energy::ZERO {
                return Some(closed);
            }
            // Of the minutes without energy only those that may still get some remain.
            let first =
                self.by_node.values().flatten().map(|entry| entry.until).filter(|at| *at > until);
            let begin =
                self.by_node.values().flatten().map(|entry| entry.from).filter(|at| *at > until);
            let first = first.chain(begin).min();
            let open = minute_of((now.max(self.since) - LATE).max(until));
            self.next = Some(first.map_or(open, |first| minute_of(first).min(open)).max(until));
        }
    }

    /// The sums of a minute over these nodes.
    fn minute(
        &self,
        from: Timestamp,
        nodes: &BTreeSet<&NodeId>,
        presence: &BTreeMap<NodeId, Presence>,
        feeders: &[Arc<FeederLimit>],
    ) -> ClosedSite {
        let until = from + MINUTE;
        let none = Sum { minute: ClosedMinute::none(from), energy_mj: 0 };
        let (mut site, mut by_feeder) = (none, vec![none; feeders.len()]);
        for node in nodes {
            let (mut covered_us, mut is_unmeasured) = (0, false);
            let mut energy_mj = 0;
            let entries = self.by_node.get(*node).into_iter().flatten();
            for entry in entries.filter(|entry| entry.until > from && entry.from < until) {
                covered_us += entry.until.min(until).since(entry.from.max(from)).as_micros();
                energy_mj += entry.until(until) - entry.until(from);
                is_unmeasured |= entry.is_unmeasured;
            }
            let least_us = MINUTE.as_micros() * u128::from(COVERED_LEAST_PERCENT) / 100;
            let asleep = match presence.get(*node) {
                Some(Presence::Asleep(power)) if covered_us == 0 => Some(*power),
                _ => None,
            };
            let is_metered = covered_us >= least_us && !is_unmeasured;
            site.add(energy_mj, is_metered, asleep);
            for (sum, feeder) in by_feeder.iter_mut().zip(feeders) {
                let Some(share) = feeder.shares.get(*node) else { continue };
                let energy_mj = (energy_mj as f64 * share).round() as u128;
                sum.add(energy_mj, is_metered, asleep.map(|power| power.scale(*share)));
            }
        }
        let feeders = by_feeder.into_iter().map(Sum::closed).collect();
        ClosedSite { site: site.closed(), feeders }
    }

    /// Drops the entries that end before an instant.
    fn forget_before(&mut self, at: Timestamp) {
        self.by_node.retain(|_, entries| {
            while entries.front().is_some_and(|first| first.until <= at) {
                entries.pop_front();
            }
            !entries.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wattle_testkit::ledger_entry;

    const START: u64 = 6_000_000;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_s(START + seconds)
    }

    fn present(nodes: &[(&str, Presence)]) -> BTreeMap<NodeId, Presence> {
        nodes.iter().map(|(node, presence)| (NodeId::new(node).unwrap(), *presence)).collect()
    }

    fn all(
        minutes: &mut SiteMinutes,
        now: Timestamp,
        nodes: &[(&str, Presence)],
    ) -> Vec<ClosedMinute> {
        let presence = present(nodes);
        std::iter::from_fn(|| minutes.close(now, &presence, &[]))
            .map(|closed| closed.site)
            .collect()
    }

    #[test]
    fn a_minute_waits_for_every_node_and_is_closed_once() {
        let both = [("a", Presence::Awake), ("b", Presence::Awake)];
        let mut minutes = SiteMinutes::new(at(0));
        let joules = |from: u64, until: u64, watts: u64| Energy::from_j((until - from) * watts);
        let entry = |node, from, until, watts| {
            ledger_entry(node, at(from), at(until), joules(from, until, watts))
        };
        for n in 0..3 {
            minutes.metered(&entry("a", 20 + 60 * n, 80 + 60 * n, 100));
            minutes.metered(&entry("a", 20 + 60 * n, 80 + 60 * n, 100));
        }
        assert_eq!(all(&mut minutes, at(205), &both), [], "node b is awaited");
        minutes.metered(&entry("b", 0, 120, 30));
        let closed = |from, watts: u64, metered| ClosedMinute {
            from: at(from),
            energy: Energy::from_j(60 * watts),
            nodes: 2,
            metered,
            asleep: (0, Power::ZERO),
        };
        // The first whole minute of the first entry is the first one.
        assert_eq!(all(&mut minutes, at(205), &both), [closed(60, 130, 2)]);
        assert_eq!(all(&mut minutes, at(205), &both), []);
        // Later the node counts as not metered, and what it metered comes too late.
        assert_eq!(all(&mut minutes, at(479), &both), []);
        assert_eq!(all(&mut minutes, at(480), &both), [closed(120, 100, 1)]);
        minutes.metered(&entry("b", 120, 180, 30));
        assert_eq!(all(&mut minutes, at(490), &both), []);
        // A node that sleeps is not awaited.
        let asleep = [("a", Presence::Awake), ("b", Presence::Asleep(Power::from_w(5)))];
        minutes.metered(&entry("a", 200, 240, 100));
        let slept = ClosedMinute { asleep: (1, Power::from_w(5)), ..closed(180, 100, 1) };
        assert_eq!(all(&mut minutes, at(490), &asleep), [slept]);
    }

    #[test]
    fn a_feeder_has_its_part_of_each_node() {
        let limit = |name: &str, shares: &[(&str, f64)]| {
            let shares = shares.iter().map(|(node, share)| (NodeId::new(node).unwrap(), *share));
            Arc::new(FeederLimit {
                feeder: wattle_common::FeederId::new(name).unwrap(),
                lost: None,
                limit: Power::from_w(1_000),
                static_load: Power::ZERO,
                shares: shares.collect(),
            })
        };
        let feeders =
            [limit("a", &[("a", 0.5), ("b", 1.0), ("c", 1.0)]), limit("b", &[("a", 0.5)])];
        let mut minutes = SiteMinutes::new(at(0));
        minutes.metered(&ledger_entry("a", at(0), at(60), Energy::from_j(60)));
        minutes.metered(&ledger_entry("b", at(0), at(60), Energy::from_j(30)));
        let asleep = Presence::Asleep(Power::from_w(8));
        let presence = present(&[("a", Presence::Awake), ("b", Presence::Awake), ("c", asleep)]);
        let closed = minutes.close(at(70), &presence, &feeders).unwrap();
        let sums = |minute: &ClosedMinute| {
            (minute.energy.as_mj(), minute.nodes, minute.metered, minute.asleep)
        };
        assert_eq!(sums(&closed.site), (90_000, 3, 2, (1, Power::from_w(8))));
        let found: Vec<_> = closed.feeders.iter().map(sums).collect();
        let none = (0, Power::ZERO);
        assert_eq!(found, [(60_000, 3, 2, (1, Power::from_w(8))), (30_000, 1, 1, none)]);
    }

    #[test]
    fn minutes_without_energy_are_left_out() {
        let mut minutes = SiteMinutes::new(at(0));
        let one = [("a", Presence::Awake)];
        minutes.metered(&ledger_entry("a", at(0), at(60), Energy::from_j(60)));
        minutes.metered(&ledger_entry("a", at(864_000), at(864_120), Energy::from_j(120)));
        let closed = all(&mut minutes, at(864_130), &one);
        let from: Vec<Timestamp> = closed.iter().map(|minute| minute.from).collect();
        assert_eq!(from, [at(0), at(864_000), at(864_060)]);
        // A node that was never metered, and one that is away, do not hide the others.
        let three = [("a", Presence::Awake), ("b", Presence::Awake), ("c", Presence::Lost)];
        minutes.metered(&ledger_entry("a", at(864_120), at(864_180), Energy::from_j(60)));
        assert_eq!(all(&mut minutes, at(864_200), &three), []);
        let closed = all(&mut minutes, at(864_480), &three);
        assert_eq!((closed[0].nodes, closed[0].metered), (2, 1));
    }

    #[test]
    fn entries_that_waited_for_the_bus_count() {
        let both = [("a", Presence::Awake), ("b", Presence::Awake)];
        let mut minutes = SiteMinutes::new(at(0));
        minutes.bus_returned(at(3_600));
        minutes.metered(&ledger_entry("a", at(0), at(60), Energy::from_j(60)));
        assert_eq!(all(&mut minutes, at(3_610), &both), []);
        minutes.metered(&ledger_entry("b", at(0), at(60), Energy::from_j(60)));
        assert_eq!(all(&mut minutes, at(3_611), &both)[0].metered, 2);
    }

    proptest! {
        #[test]
        fn the_minutes_have_the_energy_of_the_ledger(
            entries in prop::collection::vec((1_u64..200_000_000, 0_u64..1_000_000), 1..80),
            restart in 0_usize..80,
        ) {
            let names = ["a", "b", "c"];
            let mut until = [at(0); 3];
            let (mut minutes, mut closed, mut sum) = (SiteMinutes::new(at(0)), Vec::new(), 0);
            let mut stored: Vec<LedgerEntry> = Vec::new();
            minutes.continue_from(at(0));
            let presence = present(&names.map(|name| (name, Presence::Awake)));
            for (place, (span_us, mj)) in entries.iter().enumerate() {
                // The node that was metered least far is next: none is late.
                let node = (0..3).min_by_key(|node| until[*node]).unwrap();
                let (from, to) = (until[node], until[node] + Duration::from_micros(*span_us));
                until[node] = to;
                sum += mj;
                stored.push(ledger_entry(names[node], from, to, Energy::from_mj(*mj)));
                minutes.metered(stored.last().unwrap());
                let now = *until.iter().max().unwrap();
                closed.extend(std::iter::from_fn(|| minutes.close(now, &presence, &[])));
                if place == restart {
                    // The next process has the last closed minute, and the entries that later ones need.
                    let next = closed.last().map_or(at(0), |last| last.site.from + MINUTE);
                    minutes = SiteMinutes::new(now);
                    minutes.continue_from(next);
                    stored.iter().for_each(|entry| minutes.metered(entry));
                }
            }
            let end = *until.iter().max().unwrap();
            closed.extend(std::iter::from_fn(|| {
                minutes.close(end + LATE + LATE + MINUTE, &presence, &[])
            }));
            let starts: BTreeSet<Timestamp> = closed.iter().map(|minute| minute.site.from).collect();
            prop_assert_eq!(starts.len(), closed.len());
            let metered: u64 = closed.iter().map(|minute| minute.site.energy.as_mj()).sum();
            prop_assert_eq!(metered, sum);
        }
    }
}
