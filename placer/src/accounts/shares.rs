//! Weighted max-min fair shares: the entitlement of each account to contended GPUs.
//!
//! Every account receives GPUs in proportion to its weight until its demand is met; the others receive the rest
//! in the same way (Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2). The GPUs that jobs hold now
//! count; past usage does not.

/// The demand of an account for GPUs, and its weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Demand {
    /// GPUs.
    pub(crate) gpus: u32,
    /// Its weight, above 0.
    pub(crate) weight: f64,
}

/// The entitlement of each account to `gpus` GPUs, fractions of a GPU included; `None` if all demands can be
/// met.
pub(crate) fn entitlements(gpus: u32, demands: &[Demand]) -> Option<Vec<f64>> {
    if demands.iter().map(|demand| u64::from(demand.gpus)).sum::<u64>() <= u64::from(gpus) {
        return None;
    }
    // In the order in which demands are met as the share per weight rises.
    let mut order: Vec<usize> = (0..demands.len()).collect();
    let level = |i: &usize| f64::from(demands[*i].gpus) / demands[*i].weight;
    order.sort_by(|a, b| level(a).total_cmp(&level(b)));
    let mut left = f64::from(gpus);
    let mut weights: f64 = demands.iter().map(|demand| demand.weight).sum();
    let mut entitled = vec![0.0; demands.len()];
    for index in order {
        let Demand { gpus, weight } = demands[index];
        entitled[index] = f64::from(gpus).min(left * weight / weights);
        left -= entitled[index];
        weights -= weight;
    }
    Some(entitled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(gpus: u32, demands: &[(u32, f64)]) -> Option<Vec<f64>> {
        let demands = demands.iter().map(|&(gpus, weight)| Demand { gpus, weight });
        entitlements(gpus, &demands.collect::<Vec<_>>())
    }

    #[test]
    fn gpus_that_one_account_does_not_demand_go_to_the_others_by_weight() {
        assert_eq!(of(8, &[(4, 1.0), (4, 1.0)]), None);
        assert_eq!(of(8, &[(8, 1.0), (8, 1.0)]), Some(vec![4.0, 4.0]));
        assert_eq!(of(8, &[(2, 1.0), (8, 1.0)]), Some(vec![2.0, 6.0]));
        assert_eq!(of(8, &[(8, 3.0), (8, 1.0)]), Some(vec![6.0, 2.0]));
        assert_eq!(of(9, &[(1, 1.0), (8, 1.0), (9, 3.0)]), Some(vec![1.0, 2.0, 6.0]));
        assert_eq!(of(0, &[(1, 1.0)]), Some(vec![0.0]));
    }
}
