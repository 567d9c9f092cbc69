//! Means over the draws of a study, and the totals of its schedules.

use super::Totals;
use crate::schedule::{Schedule, Times};

/// The mean; 0 without values.
pub(super) fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    if count > 0.0 { sum / count } else { 0.0 }
}

/// Means over the draws of the first schedule of each pair; times are over the jobs that complete in
/// both. `scale` is from the simulated jobs to all.
pub(super) fn totals<'s>(
    pairs: impl Iterator<Item = (&'s Schedule, &'s Schedule)> + Clone,
    scale: f64,
) -> Totals {
    let of = |part: fn(&Times) -> f64| {
        rounded(mean(pairs.clone().map(|(own, other)| part(&Times::of(own, other)))))
    };
    let scaled = |part: fn(&Schedule) -> Option<f64>| {
        let has_all = pairs.clone().all(|(own, _)| part(own).is_some());
        let value = mean(pairs.clone().filter_map(|(own, _)| part(own)));
        has_all.then(|| rounded(scale * value))
    };
    Totals {
        energy_kwh: rounded(scale * mean(pairs.clone().map(|(own, _)| own.energy_kwh))),
        jct_s_mean: of(|times| times.completion_s_mean),
        jct_s_p95: of(|times| times.completion_s_p95),
        wait_s_mean: of(|times| times.wait_s_mean),
        wait_s_p95: of(|times| times.wait_s_p95),
        carbon_kg: scaled(|own| own.carbon_kg),
        cost: scaled(|own| own.cost),
    }
}

/// Rounds to a millionth, which removes rounding errors from the output.
pub(super) fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}
