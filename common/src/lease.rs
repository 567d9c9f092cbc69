//! The rules of a service lease: of several processes with one name, one is active and the others are on
//! standby.
//!
//! The lease is one value in the store ([`ServiceLease`]). Every write replaces the revision that its
//! writer has read, and the store refuses it otherwise, so of two writers one fails.
//!
//! * The **holder** renews the lease after a third of its length. It works until the end of the lease,
//!   counted from the instant at which it *sent* the last stored renewal. A refused renewal means that
//!   another process holds the lease.
//! * A process on **standby** reads the value. When the store has answered with one revision for the
//!   length of the lease, it replaces that revision. The observation begins after the renewal that it
//!   reads was sent, so the holder's own limit has passed by then.
//! * A **released** lease, one whose holder is known to have ended, and an unreadable value are replaced
//!   at once.
//!
//! Each process measures spans with its own monotonic clock; no clocks are compared. While the store does
//! not answer, no observation counts: after an outage the holder has a full length to renew the lease.
//! A process that was paused may still send one message; the buckets that matter refuse it
//! (`wattle_runtime::bus::ExclusiveBucket`).
//!
//! This module does no I/O and reads no clock. `now` is the time since an arbitrary origin.

use std::time::Duration;

use crate::messages::{LeaseHolder, ServiceLease};
use crate::time::Timestamp;

/// Length of a lease, unless configured: a process that ended is replaced within twice this time.
pub const SERVICE_LEASE_DEFAULT: Duration = Duration::from_secs(5);

/// Length of the lease of a node's power agent and profiler. It only separates two processes with one
/// node's name, and thousands of nodes renew it.
pub const NODE_LEASE: Duration = Duration::from_secs(30);

/// Shortest configurable length: several round trips to a busy server.
pub const SERVICE_LEASE_MIN: Duration = Duration::from_millis(500);

/// Longest accepted length of another process's lease.
pub const SERVICE_LEASE_MAX: Duration = Duration::from_secs(600);

/// Renewals and observations within one length of the lease.
const RENEWALS: u32 = 3;
/// Observations of a process on standby between two renewals.
const LOOKS: u32 = 3;

/// The value of a key in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredLease {
    /// Its revision; 0 if the key has never had a value.
    pub revision: u64,
    /// The lease; `None` without a readable value.
    pub lease: Option<ServiceLease>,
}

/// The next step of a process on standby.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Replace this revision by the own lease.
    Acquire {
        /// The revision.
        revision: u64,
    },
    /// Read the value again after this span.
    Read {
        /// The span.
        after: Duration,
    },
}

/// A process on standby.
#[derive(Clone, Debug)]
pub struct Standby {
    own: LeaseHolder,
    length: Duration,
    /// The revision last read, when it was first read, and when it was last read.
    seen: Option<Seen>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    revision: u64,
    since: Duration,
    last: Duration,
}

impl Standby {
    /// A process that has read nothing yet; `length`: of its own lease.
    #[must_use]
    pub const fn new(own: LeaseHolder, length: Duration) -> Self {
        Self { own, length, seen: None }
    }

    /// The value was read. `now`: when it was received, which is after its write was sent; `has_ended`:
    /// whether a holder is known to have ended.
    pub fn read(
        &mut self,
        now: Duration,
        stored: &StoredLease,
        has_ended: impl FnOnce(&LeaseHolder) -> bool,
    ) -> Step {
        let acquire = Step::Acquire { revision: stored.revision };
        let Some(lease) = &stored.lease else { return acquire };
        if lease.released || lease.holder == self.own || has_ended(&lease.holder) {
            return acquire;
        }
        let length = observed_length(lease, self.length);
        let look = length / (RENEWALS * LOOKS);
        // A gap in the observation: the store or this process was away, perhaps the holder also.
        let gap_max = length / 2;
        let seen = match self.seen {
            Some(seen)
                if seen.revision == stored.revision && now.saturating_sub(seen.last) <= gap_max =>
            {
                Seen { last: now, ..seen }
            }
            _ => Seen { revision: stored.revision, since: now, last: now },
        };
        self.seen = Some(seen);
        let over = seen.since + length;
        if now >= over {
            return acquire;
        }
        Step::Read { after: look.min(over - now) }
    }

    /// The value to write.
    #[must_use]
    pub fn lease(&self, since: Timestamp) -> ServiceLease {
        ServiceLease {
            holder: self.own.clone(),
            length_ms: u64::try_from(self.length.as_millis()).unwrap_or(u64::MAX),
            since_us: since,
            released: false,
        }
    }
}

/// The length for an observer whose own lease has length `own`: the longer of both, within limits.
fn observed_length(lease: &ServiceLease, own: Duration) -> Duration {
    Duration::from_millis(lease.length_ms).min(SERVICE_LEASE_MAX).max(own)
}

/// The process that holds the lease.
#[derive(Clone, Debug)]
pub struct Holding {
    own: LeaseHolder,
    length: Duration,
    revision: u64,
    confirmed: Duration,
}

/// The outcome of a refused renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// An earlier renewal was stored but not acknowledged, or the store lost the value: renew again.
    Renew,
    /// Another process holds the lease.
    Lost(LeaseHolder),
}

impl Holding {
    /// The process acquired the lease with a write that it sent at `sent`.
    #[must_use]
    pub const fn new(own: LeaseHolder, length: Duration, sent: Duration, revision: u64) -> Self {
        Self { own, length, revision, confirmed: sent }
    }

    /// The revision that the next renewal replaces.
    #[must_use]
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// When the last stored renewal was sent.
    #[must_use]
    pub const fn confirmed(&self) -> Duration {
        self.confirmed
    }

    /// When the lease ends unless it is renewed.
    #[must_use]
    pub fn valid_until(&self) -> Duration {
        self.confirmed + self.length
    }

    /// When the lease is to be renewed.
    #[must_use]
    pub fn renew_at(&self) -> Duration {
        self.confirmed + self.length / RENEWALS
    }

    /// A renewal that was sent at `sent` is stored.
    pub const fn renewed(&mut self, sent: Duration, revision: u64) {
        self.revision = revision;
        self.confirmed = sent;
    }

    /// A renewal was refused, and this is the stored value.
    pub fn refused(&mut self, stored: &StoredLease) -> Refusal {
        match &stored.lease {
            Some(lease) if lease.holder != self.own => Refusal::Lost(lease.holder.clone()),
            _ => {
                self.revision = stored.revision;
                Refusal::Renew
            }
        }
    }
}

#[cfg(test)]
mod takeover_tests;

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_secs(6);

    fn holder(name: &str) -> LeaseHolder {
        LeaseHolder { instance: name.to_owned(), boot: None, pid_namespace: None, pid: 1 }
    }

    fn stored(revision: u64, name: &str) -> StoredLease {
        let lease = Standby::new(holder(name), LENGTH).lease(Timestamp::EPOCH);
        StoredLease { revision, lease: Some(lease) }
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Reads at the requested times until the lease is acquired; returns when, after at most 100 reads.
    fn acquired_at(
        standby: &mut Standby,
        from: Duration,
        stored: &StoredLease,
    ) -> Option<Duration> {
        let mut now = from;
        for _ in 0..100 {
            match standby.read(now, stored, |_| false) {
                Step::Acquire { revision } => {
                    assert_eq!(revision, stored.revision);
                    return Some(now);
                }
                Step::Read { after } => {
                    assert!(!after.is_zero(), "a busy loop at {now:?}");
                    now += after;
                }
            }
        }
        None
    }

    #[test]
    fn lease_that_is_not_renewed_is_acquired_after_its_length() {
        let mut standby = Standby::new(holder("b"), LENGTH);
        assert_eq!(acquired_at(&mut standby, ms(1_000), &stored(7, "a")), Some(ms(7_000)));
    }

    #[test]
    fn renewed_lease_is_never_acquired() {
        let mut standby = Standby::new(holder("b"), LENGTH);
        let mut now = Duration::ZERO;
        // A renewal in each third, for many lengths.
        for revision in 1..100 {
            let until = now + LENGTH / 3;
            while now < until {
                match standby.read(now, &stored(revision, "a"), |_| false) {
                    Step::Read { after } => now += after,
                    Step::Acquire { .. } => panic!("acquired at {now:?}"),
                }
            }
        }
    }

    #[test]
    fn released_unreadable_absent_own_and_dead_leases_are_acquired_at_once() {
        let mut released = stored(3, "a");
        released.lease.as_mut().unwrap().released = true;
        for value in [released, StoredLease { revision: 0, lease: None }, stored(4, "b")] {
            let mut standby = Standby::new(holder("b"), LENGTH);
            let step = standby.read(ms(5), &value, |_| false);
            assert_eq!(step, Step::Acquire { revision: value.revision });
        }
        let mut standby = Standby::new(holder("b"), LENGTH);
        let step = standby.read(ms(5), &stored(9, "a"), |ended| ended.instance == "a");
        assert_eq!(step, Step::Acquire { revision: 9 });
    }

    #[test]
    fn an_outage_of_the_store_does_not_count() {
        let mut standby = Standby::new(holder("b"), LENGTH);
        let value = stored(7, "a");
        assert_ne!(standby.read(ms(0), &value, |_| false), Step::Acquire { revision: 7 });
        assert_ne!(standby.read(ms(500), &value, |_| false), Step::Acquire { revision: 7 });
        // The store, or this process, was away for ten minutes.
        let back = ms(600_500);
        assert_eq!(acquired_at(&mut standby, back, &value), Some(back + LENGTH));
    }

    #[test]
    fn the_longer_of_both_lengths_counts_within_limits() {
        let mut long = stored(7, "a");
        long.lease.as_mut().unwrap().length_ms = 20_000;
        let mut standby = Standby::new(holder("b"), LENGTH);
        assert_eq!(acquired_at(&mut standby, Duration::ZERO, &long), Some(ms(20_000)));
        long.lease.as_mut().unwrap().length_ms = 0;
        let mut standby = Standby::new(holder("b"), LENGTH);
        assert_eq!(acquired_at(&mut standby, Duration::ZERO, &long), Some(LENGTH));
        long.lease.as_mut().unwrap().length_ms = u64::MAX;
        let mut standby = Standby::new(holder("b"), LENGTH);
        assert_eq!(acquired_at(&mut standby, Duration::ZERO, &long), Some(SERVICE_LEASE_MAX));
    }

    #[test]
    fn the_holders_limit_precedes_every_takeover() {
        // The renewal was sent at 1000 and stored later; an observer reads it after that.
        let mut holding = Holding::new(holder("a"), LENGTH, Duration::ZERO, 6);
        holding.renewed(ms(1_000), 7);
        assert_eq!((holding.renew_at(), holding.valid_until()), (ms(3_000), ms(7_000)));
        for first_read in [1_000, 1_001, 1_400, 2_999] {
            let mut standby = Standby::new(holder("b"), LENGTH);
            let at = acquired_at(&mut standby, ms(first_read), &stored(7, "a")).unwrap();
            assert!(at >= holding.valid_until(), "{at:?}");
        }
    }

    #[test]
    fn refused_renewal_means_another_holder_or_a_lost_acknowledgement() {
        let mut holding = Holding::new(holder("a"), LENGTH, Duration::ZERO, 6);
        assert_eq!(holding.refused(&stored(8, "b")), Refusal::Lost(holder("b")));
        assert_eq!(holding.revision(), 6);
        assert_eq!(holding.refused(&stored(9, "a")), Refusal::Renew);
        assert_eq!(holding.revision(), 9);
        assert_eq!(holding.valid_until(), LENGTH, "not extended by an unknown write");
        // The store was lost.
        assert_eq!(holding.refused(&StoredLease { revision: 0, lease: None }), Refusal::Renew);
        assert_eq!(holding.revision(), 0);
    }
}
