//! The picture of `wattle capacity`: mean completion time over the power limit.

use super::format::Unit;
use super::frontier_plot::{self, Curve, Run};
use crate::estimate::CapacityEstimate;

/// Completion time over the limit under Wattle and FIFO, and without a limit, as an SVG file.
#[must_use]
pub fn capacity_figure(estimate: &CapacityEstimate) -> String {
    let most_kw = estimate.curve.iter().map(|point| point.0).fold(estimate.limit_kw, f64::max);
    let unit = Unit::power(1e3 * most_kw);
    let curve = |name: &'static str, slot: usize, points: &[(f64, f64)]| {
        let run = |&(kw, jct_s): &(f64, f64)| {
            let total = 1e3 * kw;
            let title =
                format!("{name} at {}: {}", unit.format(total), Unit::hours(jct_s).format(jct_s));
            Run { total, jct_s, title, best: true, selected: false }
        };
        Curve { name, slot, runs: points.iter().map(run).collect(), others: Vec::new() }
    };
    let baseline = if estimate.recorded { "as recorded" } else { "fifo, no limit" };
    let ends = [estimate.curve.first(), estimate.curve.last()];
    let target: Vec<(f64, f64)> =
        ends.into_iter().flatten().map(|&(kw, _)| (kw, estimate.baseline.jct_s_mean)).collect();
    let curves = [
        curve("wattle", 0, &estimate.curve),
        curve("fifo", 1, &estimate.fifo),
        curve(baseline, 2, &target),
    ];
    let title = format!("{} on {}", estimate.trace, estimate.cluster);
    frontier_plot::figure(&title, &curves, None, "Power limit", unit)
}
