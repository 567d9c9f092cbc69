//! Orders of nodes: generations, leases, and which order a node accepts.
//!
//! A node accepts an order of a newer version (generation, then issue time). A generation far above
//! the known one is refused, so that one wrong order cannot outlast all later ones. If the known order
//! is no longer in force, because the longest lease has passed since its issue or its issue time is
//! implausible, a current order of any generation is accepted. So a node that obeyed a wrong generation
//! recovers within the longest lease.

use std::time::Duration;

use super::{
    CLOCK_TOLERANCE, DATE_TOLERANCE, INTEGER_MAX, JOBS_PER_NODE_MAX, OutOfBounds, at_most,
    check_gpus, invalid, not_ahead,
};
use crate::messages::NodeDesired;
use crate::messages::desired::CAPS_AHEAD_MAX;
use crate::time::Timestamp;
use crate::topology::GPUS_PER_NODE_MAX;

/// Default lease of an order.
pub const LEASE_DEFAULT: Duration = Duration::from_secs(60);

/// Default of the longest lease that a node accepts: ten default leases, so that an operator can
/// lengthen the placer's lease without a change on every node.
pub const LEASE_MAX_DEFAULT: Duration = Duration::from_secs(600);

/// Largest increase of a node's generation from one received order to the next. The placer increases
/// it by one with each change: at a thousand changes per second, a node that was away for 49 days.
pub const GENERATION_JUMP_MAX: u64 = 1 << 32;

/// Largest generation.
pub const GENERATION_MAX: u64 = INTEGER_MAX;

/// Version of an order: compared by generation, then by issue time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OrderVersion {
    /// Its generation.
    pub generation: u64,
    /// When it was issued, or its lease last renewed.
    pub issued_at: Timestamp,
}

impl OrderVersion {
    /// The version of an order.
    #[must_use]
    pub const fn of(order: &NodeDesired) -> Self {
        Self { generation: order.generation, issued_at: order.issued_at_us }
    }

    /// Whether an order of this version may still be in force.
    fn may_be_in_force(self, now: Timestamp, lease_max: Duration) -> bool {
        self.generation <= GENERATION_MAX
            && self.issued_at <= now + CLOCK_TOLERANCE
            && now < self.issued_at + lease_max
    }
}

/// Why a node refuses an order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderRefused {
    /// The node knows a newer order.
    #[error("generation {generation} is outdated: {known} is known")]
    Outdated {
        /// Its generation.
        generation: u64,
        /// The known generation.
        known: u64,
    },
    /// A number is outside its limits.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
}

/// Checks whether a node accepts an order. `known` is the version of the last accepted one.
///
/// # Errors
/// Why the order is refused.
pub fn check_order(
    order: &NodeDesired,
    known: Option<OrderVersion>,
    now: Timestamp,
    lease_max: Duration,
) -> Result<(), OrderRefused> {
    check_numbers(order, now)?;
    let version = OrderVersion::of(order);
    let Some(known) = known else { return Ok(()) };
    let largest = known.generation.saturating_add(GENERATION_JUMP_MAX);
    if version >= known && version.generation <= largest {
        return Ok(());
    }
    let is_current = order.expires_at_us > now;
    let is_later = version.issued_at > known.issued_at || known.issued_at > now + CLOCK_TOLERANCE;
    if !known.may_be_in_force(now, lease_max) && is_current && is_later {
        return Ok(());
    }
    if version > known {
        let expected = format!("at most {largest}, {GENERATION_JUMP_MAX} above the known one");
        return Err(invalid("generation", version.generation, expected).into());
    }
    Err(OrderRefused::Outdated { generation: version.generation, known: known.generation })
}

fn check_numbers(order: &NodeDesired, now: Timestamp) -> Result<(), OutOfBounds> {
    at_most("generation", order.generation, GENERATION_MAX)?;
    not_ahead("issued_at_us", order.issued_at_us, now, DATE_TOLERANCE)?;
    if let Some(sleep) = order.sleep {
        not_ahead("sleep.since_us", sleep.since_us, now, DATE_TOLERANCE)?;
    }
    at_most("number of gpus", order.gpus.len(), GPUS_PER_NODE_MAX as usize)?;
    order.gpus.iter().try_for_each(|gpu| at_most("gpu", gpu.gpu, GPUS_PER_NODE_MAX - 1))?;
    at_most("number of caps_ahead", order.caps_ahead.len(), CAPS_AHEAD_MAX)?;
    for bound in &order.caps_ahead {
        at_most("number of gpus of a bound", bound.gpus.len(), GPUS_PER_NODE_MAX as usize)?;
    }
    at_most("number of jobs", order.jobs.len(), JOBS_PER_NODE_MAX)?;
    order.jobs.iter().try_for_each(|job| check_gpus("gpus of a job", &job.gpus))
}

/// End of an order's lease: its own, at most `lease_max` after its issue and after `now`.
#[must_use]
pub fn lease_end(order: &NodeDesired, now: Timestamp, lease_max: Duration) -> Timestamp {
    order.expires_at_us.min(order.issued_at_us + lease_max).min(now + lease_max)
}

/// The generation of a node's next order.
///
/// `last` is the generation of the stored order, `observed` the highest that the node's services
/// report. The next one is above both, except above an implausible one: more than
/// [`GENERATION_JUMP_MAX`] above the other.
#[must_use]
pub fn next_generation(last: Option<u64>, observed: u64) -> u64 {
    plausible_generation(last, observed).max(plausible_observed(last, observed)) + 1
}

/// `last`, or 0 if it is implausible.
fn plausible_generation(last: Option<u64>, observed: u64) -> u64 {
    let observed = if observed < GENERATION_MAX { observed } else { 0 };
    last.filter(|last| is_plausible(observed, *last)).unwrap_or(0)
}

/// `observed`, or 0 if it is implausible.
fn plausible_observed(last: Option<u64>, observed: u64) -> u64 {
    let last = plausible_generation(last, observed);
    if is_plausible(last, observed) { observed } else { 0 }
}

const fn is_plausible(known: u64, generation: u64) -> bool {
    generation < GENERATION_MAX && generation <= known.saturating_add(GENERATION_JUMP_MAX)
}

/// Whether the stored order's generation is one that the node accepts: plausible, and at least the
/// observed one.
#[must_use]
pub fn is_in_sequence(last: u64, observed: u64) -> bool {
    let base = if observed < GENERATION_MAX { observed } else { 0 };
    is_plausible(base, last) && last >= plausible_observed(Some(last), observed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::NodeId;

    const NOW: Timestamp = Timestamp::from_s(100_000);
    const LEASE: Duration = Duration::from_secs(600);

    fn order(generation: u64, issued_at: Timestamp) -> NodeDesired {
        NodeDesired {
            node: NodeId::new("n0").unwrap(),
            generation,
            issued_at_us: issued_at,
            expires_at_us: issued_at + Duration::from_secs(60),
            gpus: vec![],
            jobs: vec![],
            power_limited: false,
            caps_ahead: Vec::new(),
            event_until_us: None,
            sleep: None,
        }
    }

    fn known(generation: u64, issued_at: Timestamp) -> Option<OrderVersion> {
        Some(OrderVersion { generation, issued_at })
    }

    #[test]
    fn older_and_far_newer_orders_are_refused_while_the_known_one_is_in_force() {
        let known = known(7, NOW);
        let check = |generation| check_order(&order(generation, NOW), known, NOW, LEASE);
        assert_eq!(check(7), Ok(()));
        assert_eq!(check(8), Ok(()));
        assert_eq!(check(6), Err(OrderRefused::Outdated { generation: 6, known: 7 }));
        for far in [8 + GENERATION_JUMP_MAX, GENERATION_MAX, u64::MAX] {
            let refused = check(far).unwrap_err();
            assert!(matches!(&refused, OrderRefused::OutOfBounds(e) if e.field == "generation"));
        }
    }

    #[test]
    fn node_recovers_from_an_absurd_generation_within_the_longest_lease() {
        for absurd in [u64::MAX, GENERATION_MAX, 1 << 40] {
            let obeyed = known(absurd, NOW);
            let later = NOW + LEASE;
            let fresh = check_order(&order(3, later), obeyed, later, LEASE);
            assert_eq!(fresh, Ok(()), "{absurd}");
            // An order whose own lease is over is not current.
            let stale = order(3, NOW + LEASE / 2);
            assert!(check_order(&stale, obeyed, later, LEASE).is_err(), "{absurd}");
        }
        // An issue time far ahead does not delay it.
        let ahead = known(9, Timestamp::FOREVER);
        assert_eq!(check_order(&order(3, NOW), ahead, NOW, LEASE), Ok(()));
    }

    #[test]
    fn lease_has_a_longest_length() {
        let mut long = order(1, NOW);
        long.expires_at_us = Timestamp::FOREVER;
        assert_eq!(lease_end(&long, NOW, LEASE), NOW + LEASE);
        let late = NOW + Duration::from_secs(100);
        assert_eq!(lease_end(&long, late, LEASE), NOW + LEASE, "from its issue");
        long.issued_at_us = NOW + Duration::from_secs(3_600);
        assert_eq!(lease_end(&long, NOW, LEASE), NOW + LEASE, "from now");
    }

    #[test]
    fn next_generation_follows_the_plausible_ones() {
        assert_eq!(next_generation(None, 0), 1);
        assert_eq!(next_generation(Some(4), 2), 5);
        assert_eq!(next_generation(Some(4), 9), 10);
        assert_eq!(next_generation(None, 123_456), 123_457, "the stored order was lost");
        assert_eq!(next_generation(Some(4), u64::MAX), 5, "a forged report");
        assert_eq!(next_generation(Some(u64::MAX), 4), 5, "a forged order");
        assert_eq!(next_generation(Some(u64::MAX), u64::MAX), 1);
        assert!(is_in_sequence(4, 4) && !is_in_sequence(4, 5) && is_in_sequence(4, u64::MAX));
        assert!(!is_in_sequence(u64::MAX, 4) && !is_in_sequence(u64::MAX, u64::MAX));
    }
}
