//! What tenants of one card do to each other's time.
//!
//! Each job is a loop of two phases: input and everything else off the card, and its kernels on the
//! card, which take the share `busy` of its time when it is alone. Jobs of one card are then the
//! textbook closed queueing network with one customer of each class, a delay (the input) and one
//! processor-sharing server (the card, which time-slices between processes). Its exact solution is
//! a product form: the normalising constant over the set S is the sum over the jobs at the card,
//! `G(S) = sum_k k! e_k`, with `e_k` the k-th elementary sum of `busy` inside and `1 - busy`
//! outside, and a job's cycle takes `G(S) / G(S without it)` of its time alone.
//!
//! Two things are laid over it. Training steps are not random arrivals: as long as there is room
//! the jobs settle into each other's gaps, so waiting counts by the share of the card that is
//! taken (`min(1, sum of busy)`). And each neighbour costs a little time whatever the card does
//! (the host's cores, memory and disks): `delay_per_neighbour`, fitted. How the form was chosen,
//! and how well it does: docs/world.md.

/// Most tenants of one card whose times are worked out one by one; more are refused by the memory
/// of any card long before.
pub const TENANTS_MAX: usize = 16;

/// Normalising constant of the network over `busy`, leaving out the job at `without`.
fn normaliser(busy: &[f64], without: usize) -> f64 {
    let mut sums = [0.0; TENANTS_MAX + 1];
    sums[0] = 1.0;
    let mut count = 0;
    for (index, &share) in busy.iter().enumerate() {
        if index == without {
            continue;
        }
        count += 1;
        for k in (0..=count).rev() {
            let here = if k > 0 { sums[k - 1] * share } else { 0.0 };
            sums[k] = sums[k] * (1.0 - share) + here;
        }
    }
    let (mut total, mut factorial) = (0.0, 1.0);
    for (k, sum) in sums.iter().enumerate().take(count + 1) {
        if k > 1 {
            factorial *= k as f64;
        }
        total += factorial * sum;
    }
    total
}

/// Writes into `delays` how much longer each job's step takes for the others, relative to alone.
///
/// `busy` holds each job's share of time on the card when alone, 0..=1; at most [`TENANTS_MAX`] of
/// them. Adding a job never lowers another one's delay.
pub(crate) fn delays(busy: &[f64], delay_per_neighbour: f64, delays: &mut [f64]) {
    if busy.len() < 2 {
        delays.fill(0.0);
        return;
    }
    let taken = busy.iter().sum::<f64>().min(1.0);
    let all = normaliser(busy, usize::MAX);
    for (index, delay) in delays.iter_mut().enumerate() {
        let waiting = (all / normaliser(busy, index) - 1.0).max(0.0);
        *delay = delay_per_neighbour * (busy.len() - 1) as f64 + taken * waiting;
    }
}

/// Mean active power of a card (above idle) whose tenants draw `active` each when alone, in watts.
///
/// `tenants` gives (busy, active). Measured node power rises with the square root of summed
/// utilisation (arXiv 2412.08294, ten rows), so squares add up; past a whole card the tenants take
/// turns, and their mean counts.
pub(crate) fn mean_active(tenants: &[(f64, f64)]) -> f64 {
    let (mut squares, mut busy) = (0.0, 0.0);
    for (share, active) in tenants {
        squares += active * active;
        busy += share;
    }
    (squares / f64::max(1.0, busy)).sqrt()
}

/// Active power of the hungriest mix of turns that fills the card, in watts: what a cap must hold.
///
/// A card's limit acts within milliseconds, on each turn, so light tenants that take turns between
/// heavy ones do not loosen it. Never below [`mean_active`] or any tenant's own; one more tenant
/// never lowers it. Equal to the mean where the tenants fit the card together.
pub(crate) fn peak_active(tenants: &[(f64, f64)]) -> f64 {
    let total: f64 = tenants.iter().map(|(busy, _)| busy).sum();
    if total <= 1.0 || tenants.len() < 2 {
        return mean_active(tenants);
    }
    // Hungriest by square of power for share of time; the card's time is filled from there.
    let mut order = [(0.0, 0.0); TENANTS_MAX];
    let order = &mut order[..tenants.len().min(TENANTS_MAX)];
    for (slot, (busy, active)) in order.iter_mut().zip(tenants) {
        *slot = (*busy, active * active / busy.max(1e-6));
    }
    order.sort_unstable_by(|a, b| b.1.total_cmp(&a.1));
    let (mut squares, mut left) = (0.0, 1.0_f64);
    for (busy, density) in order {
        let turn = busy.min(left);
        squares += *density * turn;
        left -= turn;
    }
    squares.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn two_that_fill_the_card_halve_each_other() {
        let mut out = [0.0; 2];
        delays(&[1.0, 1.0], 0.0, &mut out);
        assert!(out.iter().all(|d| (d - 1.0).abs() < 1e-12), "{out:?}");
        // a waits for b with probability 0.5 for 0.2 of its time; 0.7 of the card is taken
        delays(&[0.2, 0.5], 0.0, &mut out);
        assert!((out[0] - 0.7 * 0.1).abs() < 1e-12, "{out:?}");
    }

    #[test]
    fn power_of_turns_is_their_mean_and_a_cap_sees_the_hungriest() {
        let alike = [(1.0, 190.0), (1.0, 190.0)];
        assert!((mean_active(&alike) - 190.0).abs() < 1e-9);
        assert!((peak_active(&alike) - 190.0).abs() < 1e-9);
        let unlike = [(1.0, 60.0), (1.0, 190.0)];
        assert!((mean_active(&unlike) - 140.9).abs() < 0.1);
        assert!((peak_active(&unlike) - 190.0).abs() < 1e-9);
        // Room for both: sqrt(30^2 + 40^2).
        assert!((peak_active(&[(0.3, 30.0), (0.4, 40.0)]) - 50.0).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn one_more_never_helps(busy in prop::collection::vec(0.0f64..=1.0, 2..TENANTS_MAX)) {
            let (mut few, mut many) = (vec![0.0; busy.len() - 1], vec![0.0; busy.len()]);
            delays(&busy[..busy.len() - 1], 0.018, &mut few);
            delays(&busy, 0.018, &mut many);
            for (a, b) in few.iter().zip(&many) {
                prop_assert!(b.is_finite() && *b + 1e-9 >= *a, "{few:?} {many:?}");
            }
        }

        #[test]
        fn one_more_never_loosens_a_cap(tenants in prop::collection::vec((0.0f64..=1.0, 0.0f64..300.0), 2..TENANTS_MAX)) {
            let few = peak_active(&tenants[..tenants.len() - 1]);
            let many = peak_active(&tenants);
            prop_assert!(many + 1e-6 >= few && many + 1e-6 >= mean_active(&tenants), "{few} {many}");
        }
    }
}
