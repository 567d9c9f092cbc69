//! The age of an order when it is received, although the placer's clock may differ from this node's.
//!
//! The difference of both clocks is estimated from the last two orders: the less delayed one gives it.
//! An order that arrives much later than the one before is old by that much. The first order after a
//! start is compared by the clocks alone, and counts as expired if it comes from the future.

use std::time::Duration;

use wattle_common::Timestamp;

/// Estimates the age of orders.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OrderAge {
    /// Receipt by this node's clock minus issue by the placer's of the last order, microseconds.
    last_us: Option<i128>,
}

impl OrderAge {
    /// Age of an order issued at `issued_at` by the placer's clock and received at `now`; absent: not
    /// known.
    pub(crate) fn received(
        &mut self,
        now: Timestamp,
        issued_at: Timestamp,
        lease: Duration,
    ) -> Option<Duration> {
        let difference = i128::from(now.as_us()) - i128::from(issued_at.as_us());
        let span = |us: i128| Duration::from_micros(u64::try_from(us).unwrap_or(u64::MAX));
        match self.last_us.replace(difference) {
            Some(last) => Some(span(difference - difference.min(last))),
            None if difference >= 0 => Some(span(difference)),
            None => {
                let ahead = span(-difference);
                (ahead <= lease / TOLERANCE).then_some(Duration::ZERO)
            }
        }
    }
}

/// Part of the lease by which the placer's clock may be ahead of this node's at the first order.
const TOLERANCE: u32 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(60);

    fn ages(orders: &[(u64, u64)]) -> Vec<Option<u64>> {
        let mut age = OrderAge::default();
        let s = Timestamp::from_s;
        let age = |(now, issued): &(u64, u64)| age.received(s(*now), s(*issued), LEASE);
        orders.iter().map(age).map(|age| age.map(|age| age.as_secs())).collect()
    }

    #[test]
    fn orders_of_equal_clocks_are_as_old_as_their_delay() {
        assert_eq!(ages(&[(100, 100), (121, 120), (200, 140)]), [Some(0), Some(1), Some(59)]);
        assert_eq!(ages(&[(1_000, 100)]), [Some(900)], "a stored order of a placer that is away");
    }

    #[test]
    fn a_node_ahead_or_behind_obeys_the_second_order() {
        assert_eq!(ages(&[(4_000, 400), (4_020, 420)]), [Some(3_600), Some(0)]);
        assert_eq!(ages(&[(400, 4_000), (420, 4_020)]), [None, Some(0)]);
    }

    #[test]
    fn a_step_of_the_placers_clock_costs_one_order() {
        let back = [(5_000, 5_000), (5_020, 1_420), (5_040, 1_440)];
        assert_eq!(ages(&back), [Some(0), Some(3_600), Some(0)]);
        let ahead = [(5_000, 5_000), (5_020, 8_620), (5_040, 8_640)];
        assert_eq!(ages(&ahead), [Some(0), Some(0), Some(0)]);
    }

    #[test]
    fn an_order_delivered_long_after_its_issue_is_old_on_any_clock() {
        assert_eq!(
            ages(&[(400, 4_000), (420, 4_020), (2_000, 4_040)]),
            [None, Some(0), Some(1_560)]
        );
    }
}
