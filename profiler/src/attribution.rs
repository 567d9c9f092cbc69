//! Who of a GPU's tenants spent what.
//!
//! A GPU has one meter, and tenants share it. The rule:
//!
//! ```text
//! part(tenant) = (total - idle) x busy(tenant) / sum of busy  +  idle / tenants
//! ```
//!
//! where `idle` is what the GPU would spend with nobody on it (at most `total`), and `busy` the
//! share of the GPU's time that the tenant's processes took. Where nobody is known to be busy, the
//! first term is split evenly too. It is a convention, not a measurement: two tenants equally busy
//! may draw unequally. What it does promise is that the parts sum to exactly the total, so that no
//! joule of the ledger is counted twice or not at all; the odd millijoules that whole numbers leave
//! go to the largest remainders, the earlier tenant first.
//!
//! Idle power is the lowest that the GPU has read with no process on it; before that has been
//! seen, the configured `idle_w`; without that either, zero, and everything follows busy time.

/// The parts of `total`, in the tenants' order. Empty for no tenants.
#[must_use]
pub fn split(total: u64, idle: u64, busy: &[u64]) -> Vec<u64> {
    let idle = idle.min(total);
    let even = vec![1; busy.len()];
    let above = if busy.iter().all(|b| *b == 0) { &even } else { busy };
    let mut parts = proportional(total - idle, above);
    for (part, share) in parts.iter_mut().zip(proportional(idle, &even)) {
        *part += share;
    }
    parts
}

/// `whole` in proportion to `weights` (not all zero), by largest remainder.
fn proportional(whole: u64, weights: &[u64]) -> Vec<u64> {
    let sum: u128 = weights.iter().map(|w| u128::from(*w)).sum();
    if sum == 0 {
        return Vec::new();
    }
    let exact = |w: &u64| u128::from(whole) * u128::from(*w);
    // A part is at most the whole, so it fits.
    let mut parts: Vec<u64> = weights.iter().map(|w| (exact(w) / sum) as u64).collect();
    let left = whole - parts.iter().sum::<u64>();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|i| std::cmp::Reverse(exact(&weights[*i]) % sum));
    for i in order.into_iter().take(left as usize) {
        parts[i] += 1;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_rule_by_hand() {
        // 300 J, 40 of them idle: 260 by 3 to 1, and 20 each.
        assert_eq!(split(300_000, 40_000, &[75, 25]), [215_000, 85_000]);
        // Nobody known to be busy: evenly.
        assert_eq!(split(300_000, 40_000, &[0, 0]), [150_000, 150_000]);
        // A tenant that does nothing still holds its part of the GPU.
        assert_eq!(split(300_000, 40_000, &[100, 0]), [280_000, 20_000]);
        // Below idle there is nothing to split by use.
        assert_eq!(split(30, 40, &[100, 0]), [15, 15]);
        assert_eq!(split(100, 0, &[1, 1, 1]), [34, 33, 33]);
        assert_eq!(split(100, 10, &[]), [0u64; 0]);
    }

    proptest! {
        #[test]
        fn parts_sum_to_the_whole(total in any::<u64>(), idle in any::<u64>(), busy in prop::collection::vec(0u64..=10_000, 1..16)) {
            let parts = split(total, idle, &busy);
            prop_assert_eq!(parts.iter().map(|p| u128::from(*p)).sum::<u128>(), u128::from(total));
        }

        #[test]
        fn who_is_busier_never_pays_less(total in 0u64..1 << 40, idle in 0u64..1 << 40, busy in prop::collection::vec(0u64..=100, 2..8)) {
            let parts = split(total, idle, &busy);
            for i in 0..busy.len() {
                for j in 0..busy.len() {
                    if busy[i] > busy[j] {
                        // Within the two odd units that rounding may give away.
                        prop_assert!(parts[i] + 2 >= parts[j]);
                    }
                }
            }
        }
    }
}
