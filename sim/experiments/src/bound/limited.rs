//! The bound on the mean completion time over a power limit.
//!
//! At given paths of prices the dual function (`dual.rs`) falls linearly with the limit `W`, by `int mu
//! dt` for each watt. So the paths that a search finds at one limit prove a line over all limits, and
//! the bound is the maximum of the lines of several limits and of the one without a limit: a convex
//! decreasing curve.
//!
//! Work has no energy price here. The search starts without a limit and continues at ever lower ones,
//! each from the prices of the one before.

use super::dual::{Dual, Paths};
use super::frontier::{BoundFrontier, Line};
use super::priced::{PricedSearch, ascend, buckets, units};
use super::weights::Weights;
use super::{BoundError, BoundJob, Supply, classes};

/// A lower bound on the mean completion time over the power limit of a cluster of `gpus` GPUs, as (W,
/// seconds): the limit counts the power of [`super::BoundOption::power_w`]. It is searched at `limits_w`
/// and without a limit; the first corner is the least limit at which every job can run. The energy
/// prices of `search` are not used.
///
/// # Errors
/// As [`super::contention_free`], for an invalid setting, and for a limit that is not a positive number.
pub fn over_limits(
    jobs: &[BoundJob],
    gpus: u32,
    search: &PricedSearch,
    limits_w: &[f64],
) -> Result<BoundFrontier, BoundError> {
    search.check()?;
    let classes = classes(jobs, gpus)?;
    if let Some(&value) = limits_w.iter().find(|limit| !(limit.is_finite() && **limit > 0.0)) {
        let (what, remedy) = ("a power limit in watts", "give a finite number above zero");
        return Err(BoundError::Setting { what, value, remedy });
    }
    let least_w = jobs.iter().map(|job| job.least_w(gpus)).fold(0.0, f64::max);
    let mut supplies = vec![Supply::from(gpus)];
    supplies.extend(limits_w.iter().map(|&watts| Supply { gpus, watts: watts.max(least_w) }));
    supplies.sort_by(|a, b| b.watts.total_cmp(&a.watts));
    supplies.dedup();
    // All searches have the longest horizon, so that each continues the one before.
    let lowest = supplies[supplies.len() - 1];
    let (origin_s, bucket_s, count) = buckets(jobs, &classes, lowest, search);
    let weights = Weights::one(count);
    let mut paths = Paths::of(count, 0.0, 0.0);
    let mut lines = Vec::with_capacity(supplies.len());
    for supply in supplies {
        let mut dual = Dual::new(&classes, supply, 0.0, (origin_s, bucket_s), &weights);
        let best = ascend(&mut dual, paths, search.steps, supply, units(&classes));
        paths = best.paths;
        let jobs = jobs.len() as f64;
        let refund_s = if supply.is_power_limited() { supply.watts * best.per_watt_s } else { 0.0 };
        lines.push(Line {
            slope: -best.per_watt_s / jobs,
            intercept: (best.value_s + refund_s) / jobs,
        });
    }
    Ok(BoundFrontier::from_lines(lines, least_w))
}
