//! Attributes a GPU's energy to its tenants.
//!
//! A GPU has one meter, which its tenants share. The rule:
//!
//! ```text
//! part(tenant) = (total - idle) x busy(tenant) / sum of busy  +  idle / tenants
//! ```
//!
//! `idle` is the energy of the GPU without tenants (at most `total`), and `busy` the utilisation
//! by the tenant's processes. If no utilisation is known, the first term is split evenly too. The
//! rule is a convention: two tenants with equal utilisation may draw different power. The parts
//! sum to exactly the total, so that every joule of the ledger is counted once; the millijoules
//! left by rounding go to the largest remainders, the earlier tenant first.
//!
//! Idle power is the lowest that was read without a process on the GPU; before any such reading,
//! the configured `idle_w`; without either, zero, and all energy follows utilisation.

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

/// `total` in proportion to `weights` (not all zero), by largest remainder.
fn proportional(total: u64, weights: &[u64]) -> Vec<u64> {
    let sum: u128 = weights.iter().map(|w| u128::from(*w)).sum();
    if sum == 0 {
        return Vec::new();
    }
    let exact = |w: &u64| u128::from(total) * u128::from(*w);
    // A part is at most the total, so it fits.
    let mut parts: Vec<u64> = weights.iter().map(|w| (exact(w) / sum) as u64).collect();
    let left = total - parts.iter().sum::<u64>();
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
    fn parts_by_hand() {
        // 300 J, 40 of them idle: 260 by 3 to 1, and 20 each.
        assert_eq!(split(300_000, 40_000, &[75, 25]), [215_000, 85_000]);
        // Without known utilisation: evenly.
        assert_eq!(split(300_000, 40_000, &[0, 0]), [150_000, 150_000]);
        // A tenant with no utilisation gets its part of the idle energy.
        assert_eq!(split(300_000, 40_000, &[100, 0]), [280_000, 20_000]);
        // Below idle energy nothing is split by utilisation.
        assert_eq!(split(30, 40, &[100, 0]), [15, 15]);
        assert_eq!(split(100, 0, &[1, 1, 1]), [34, 33, 33]);
        assert_eq!(split(100, 10, &[]), [0u64; 0]);
    }

    proptest! {
        #[test]
        fn parts_sum_to_the_total(total in any::<u64>(), idle in any::<u64>(), busy in prop::collection::vec(0u64..=10_000, 1..16)) {
            let parts = split(total, idle, &busy);
            prop_assert_eq!(parts.iter().map(|p| u128::from(*p)).sum::<u128>(), u128::from(total));
        }

        #[test]
        fn a_busier_tenant_never_pays_less(total in 0u64..1 << 40, idle in 0u64..1 << 40, busy in prop::collection::vec(0u64..=100, 2..8)) {
            let parts = split(total, idle, &busy);
            for i in 0..busy.len() {
                for j in 0..busy.len() {
                    if busy[i] > busy[j] {
                        // Rounding moves at most two units.
                        prop_assert!(parts[i] + 2 >= parts[j]);
                    }
                }
            }
        }
    }
}
