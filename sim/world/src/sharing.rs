//! Contention of the tenants of one GPU: delays and power.
//!
//! Each job alternates between two phases: input and other work off the GPU, and its kernels, which
//! take the share `busy` of its time under exclusive use. The jobs of a GPU form a closed queueing
//! network with one customer per class, a delay station (the input) and one processor-sharing
//! server (the GPU, which time-slices between processes). The exact solution has product form: the
//! normalising constant over the set S is `G(S) = sum_k k! e_k`, where `e_k` is the k-th elementary
//! symmetric sum with weight `busy` for jobs at the GPU and `1 - busy` for the others. The cycle of
//! job j takes `G(S) / G(S - j)` of its exclusive time.
//!
//! Two corrections apply. Training steps are not random arrivals: while the GPU has idle time, jobs
//! synchronise into each other's gaps, so the waiting time is weighted with `min(1, sum of busy)`.
//! Each co-tenant also adds `delay_per_neighbour` (host cores, memory, disks), a fitted constant.
//! docs/world.md states how the form was chosen and how well it fits.

/// Maximum number of tenants of one GPU that are modelled; device memory limits real GPUs to fewer.
pub const TENANTS_MAX: usize = 16;

/// Normalising constant of the network over `busy`, excluding the job at `without`.
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
            let at_gpu = if k > 0 { sums[k - 1] * share } else { 0.0 };
            sums[k] = sums[k] * (1.0 - share) + at_gpu;
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

/// Writes into `delays` the extra step time of each job due to its co-tenants, relative to exclusive
/// use.
///
/// `busy` holds each job's GPU share under exclusive use, 0..=1, for at most [`TENANTS_MAX`] jobs.
/// Adding a job never reduces another job's delay.
pub(crate) fn delays(busy: &[f64], delay_per_neighbour: f64, delays: &mut [f64]) {
    if busy.len() < 2 {
        delays.fill(0.0);
        return;
    }
    let utilization = busy.iter().sum::<f64>().min(1.0);
    let all = normaliser(busy, usize::MAX);
    for (index, delay) in delays.iter_mut().enumerate() {
        let waiting = (all / normaliser(busy, index) - 1.0).max(0.0);
        *delay = delay_per_neighbour * (busy.len() - 1) as f64 + utilization * waiting;
    }
}

/// Mean active power (above idle) of a shared GPU, in watts.
///
/// `tenants` gives (busy share, active power) under exclusive use. Measured node power rises with
/// the square root of summed utilisation (arXiv 2412.08294, ten rows), so squares add up; above a
/// summed utilisation of 1 the tenants alternate, and the weighted mean applies.
pub(crate) fn mean_active(tenants: &[(f64, f64)]) -> f64 {
    let (mut squares, mut busy) = (0.0, 0.0);
    for (share, active) in tenants {
        squares += active * active;
        busy += share;
    }
    (squares / f64::max(1.0, busy)).sqrt()
}

/// Highest active power of a mix of tenants that fills the GPU, in watts: the power a cap limits.
///
/// A cap acts within milliseconds, on each time slice, so low-power tenants do not relax it for
/// high-power ones. At least [`mean_active`] and each tenant's own active power; adding a tenant
/// never reduces it. Equal to the mean if summed utilisation is at most 1.
pub(crate) fn peak_active(tenants: &[(f64, f64)]) -> f64 {
    let total: f64 = tenants.iter().map(|(busy, _)| busy).sum();
    if total <= 1.0 || tenants.len() < 2 {
        return mean_active(tenants);
    }
    // Fill the GPU's time in descending order of squared power per busy share.
    let mut order = [(0.0, 0.0); TENANTS_MAX];
    let order = &mut order[..tenants.len().min(TENANTS_MAX)];
    for (slot, (busy, active)) in order.iter_mut().zip(tenants) {
        *slot = (*busy, active * active / busy.max(1e-6));
    }
    order.sort_unstable_by(|a, b| b.1.total_cmp(&a.1));
    let (mut squares, mut left) = (0.0, 1.0_f64);
    for (busy, density) in order {
        let slice = busy.min(left);
        squares += *density * slice;
        left -= slice;
    }
    squares.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn two_saturating_jobs_halve_each_other() {
        let mut out = [0.0; 2];
        delays(&[1.0, 1.0], 0.0, &mut out);
        assert!(out.iter().all(|d| (d - 1.0).abs() < 1e-12), "{out:?}");
        // The first waits with probability 0.5 for 0.2 of its time; utilisation is 0.7.
        delays(&[0.2, 0.5], 0.0, &mut out);
        assert!((out[0] - 0.7 * 0.1).abs() < 1e-12, "{out:?}");
    }

    #[test]
    fn mean_power_averages_time_slices_and_peak_power_takes_the_highest() {
        let equal = [(1.0, 190.0), (1.0, 190.0)];
        assert!((mean_active(&equal) - 190.0).abs() < 1e-9);
        assert!((peak_active(&equal) - 190.0).abs() < 1e-9);
        let mixed = [(1.0, 60.0), (1.0, 190.0)];
        assert!((mean_active(&mixed) - 140.9).abs() < 0.1);
        assert!((peak_active(&mixed) - 190.0).abs() < 1e-9);
        // Utilisation below 1: sqrt(30^2 + 40^2).
        assert!((peak_active(&[(0.3, 30.0), (0.4, 40.0)]) - 50.0).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn adding_a_tenant_never_reduces_delays(busy in prop::collection::vec(0.0f64..=1.0, 2..TENANTS_MAX)) {
            let (mut few, mut many) = (vec![0.0; busy.len() - 1], vec![0.0; busy.len()]);
            delays(&busy[..busy.len() - 1], 0.018, &mut few);
            delays(&busy, 0.018, &mut many);
            for (a, b) in few.iter().zip(&many) {
                prop_assert!(b.is_finite() && *b + 1e-9 >= *a, "{few:?} {many:?}");
            }
        }

        #[test]
        fn adding_a_tenant_never_reduces_peak_power(tenants in prop::collection::vec((0.0f64..=1.0, 0.0f64..300.0), 2..TENANTS_MAX)) {
            let few = peak_active(&tenants[..tenants.len() - 1]);
            let many = peak_active(&tenants);
            prop_assert!(many + 1e-6 >= few && many + 1e-6 >= mean_active(&tenants), "{few} {many}");
        }
    }
}
