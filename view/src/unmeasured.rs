//! GPU time in which energy may be missing, by cause.
//!
//! An interval whose energy became known later, such as that of a GPU whose counter was kept while it could
//! not be read, does not count.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use wattle_common::messages::{LedgerEntry, UnknownCause};
use wattle_common::{Energy, GpuIndex, NodeId, Timestamp};

/// Most intervals of one GPU; of more, the earliest are forgotten. One that continues the last one extends it.
const INTERVALS_MAX: usize = 4_096;

/// An interval of a GPU's energy without a known owner.
#[derive(Clone, Copy, Debug)]
struct Interval {
    from: Timestamp,
    until: Timestamp,
    cause: UnknownCause,
    unmeasured: bool,
    estimate: Energy,
}

/// The intervals of each GPU in which energy may be missing, and those that became known later.
#[derive(Clone, Debug, Default)]
pub struct Intervals {
    by_gpu: BTreeMap<(NodeId, GpuIndex), VecDeque<Interval>>,
}

impl Intervals {
    /// Adds the intervals of an entry, which must not have been added before.
    pub fn add(&mut self, entry: &LedgerEntry) {
        for unknown in &entry.unknown {
            let own = self.by_gpu.entry((entry.node.clone(), unknown.gpu)).or_default();
            let estimate = unknown.estimate_mj.unwrap_or_default();
            let last = own.back_mut().filter(|last| {
                let is_same = (last.cause, last.unmeasured) == (unknown.cause, unknown.unmeasured);
                is_same && last.until == unknown.from_us
            });
            if let Some(last) = last {
                last.until = unknown.until_us;
                last.estimate += estimate;
                continue;
            }
            own.push_back(Interval {
                from: unknown.from_us,
                until: unknown.until_us,
                cause: unknown.cause,
                unmeasured: unknown.unmeasured,
                estimate,
            });
            if own.len() > INTERVALS_MAX {
                own.pop_front();
            }
        }
    }

    /// Forgets intervals that ended before this instant.
    pub fn forget_before(&mut self, at: Timestamp) {
        self.by_gpu.retain(|_, own| {
            while own.front().is_some_and(|first| first.until < at) {
                own.pop_front();
            }
            !own.is_empty()
        });
    }

    /// The GPU time since an instant in which energy may be missing, and its estimate as far as there is one,
    /// by cause.
    #[must_use]
    pub fn unmeasured(&self, since: Timestamp) -> BTreeMap<UnknownCause, (Duration, Energy)> {
        let mut causes: BTreeMap<UnknownCause, (Duration, Energy)> = BTreeMap::new();
        for intervals in self.by_gpu.values() {
            let known = intervals.iter().filter(|interval| !interval.unmeasured);
            let mut covered: Vec<(Timestamp, Timestamp)> =
                known.map(|interval| (interval.from, interval.until)).collect();
            let recent = |one: &&Interval| one.unmeasured && one.until > since;
            for interval in intervals.iter().rev().filter(recent) {
                let from = interval.from.max(since);
                let missing = outside(from, interval.until, &mut covered);
                if missing > Duration::ZERO {
                    let sum = causes.entry(interval.cause).or_default();
                    sum.0 += missing;
                    sum.1 += interval.estimate_since(from);
                }
                covered.push((interval.from, interval.until));
            }
        }
        causes
    }
}

impl Interval {
    /// The part of the estimate for the time from an instant on.
    fn estimate_since(&self, from: Timestamp) -> Energy {
        let whole = u128::from(self.until.as_us().saturating_sub(self.from.as_us())).max(1);
        let part = u128::from(self.until.as_us().saturating_sub(from.as_us()));
        // At most the estimate, so it fits.
        Energy::from_mj((u128::from(self.estimate.as_mj()) * part / whole) as u64)
    }
}

/// The part of an interval outside others.
fn outside(from: Timestamp, until: Timestamp, others: &mut [(Timestamp, Timestamp)]) -> Duration {
    others.sort_unstable();
    let (mut at, mut outside) = (from, Duration::ZERO);
    for (begin, end) in others {
        outside += (*begin).min(until).since(at);
        at = at.max(*end);
    }
    outside + until.since(at)
}

#[cfg(test)]
mod tests {
    use wattle_common::messages::UnknownEnergy;
    use wattle_testkit as testkit;

    use super::*;

    fn late(from_s: u64, until_s: u64) -> LedgerEntry {
        let (from, until) = (Timestamp::from_s(from_s), Timestamp::from_s(until_s));
        let unknown = UnknownEnergy {
            gpu: 0,
            cause: UnknownCause::ReadingsLate,
            from_us: from,
            until_us: until,
            energy_mj: Energy::ZERO,
            unmeasured: true,
            estimate_mj: Some(Energy::from_j(60)),
            jobs: Vec::new(),
            admissions: [].into(),
        };
        let entry = testkit::ledger_entry("n0", from, until, Energy::ZERO);
        LedgerEntry { unknown: vec![unknown], ..entry }
    }

    #[test]
    fn intervals_that_follow_each_other_are_one_and_old_ones_are_forgotten() {
        let mut intervals = Intervals::default();
        let of = |intervals: &Intervals, since_s| {
            let causes = intervals.unmeasured(Timestamp::from_s(since_s));
            causes.get(&UnknownCause::ReadingsLate).map(|(span, e)| (span.as_secs(), e.as_j()))
        };
        for minute in 0..10_000 {
            intervals.add(&late(minute * 60, minute * 60 + 60));
        }
        assert_eq!(intervals.by_gpu.values().map(VecDeque::len).sum::<usize>(), 1);
        assert_eq!(of(&intervals, 0), Some((600_000, 600_000.0)));
        assert_eq!(of(&intervals, 599_880), Some((120, 120.0)), "the part since then");
        for minute in 0..2 * INTERVALS_MAX as u64 {
            intervals.add(&late(700_000 + minute * 60, 700_030 + minute * 60));
        }
        assert_eq!(intervals.by_gpu.values().map(VecDeque::len).sum::<usize>(), INTERVALS_MAX);
        intervals.forget_before(Timestamp::from_s(10_000_000));
        assert!(intervals.by_gpu.is_empty());
    }
}
