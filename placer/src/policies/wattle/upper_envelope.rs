//! A job's operating points at the present energy price, as upper envelopes of straight lines.
//!
//! At a fixed energy price an operating point with speed `v`, power `P` and `n` GPUs is a line twice:
//! its surplus `v p - lambda P` is linear in the value of work `p`, and the cost of a unit of work
//! `(1 + lambda P + n nu) / v` is linear in the GPU price `nu`. Only lines on the upper envelope are ever
//! best, and the best one is found by binary search.
//!
//! The surplus uses the energy price at the grid's present carbon intensity, the cost of work its mean
//! price. Work is counted in seconds on one GPU ([`crate::Job::unit_rate`]), surplus in seconds of
//! completion time per second.

use wattle_common::job::GpuSetting;

use crate::plan::input::PlanningInput;
use crate::power::energy_cost::Charge;
use crate::state::operating_points::OperatingPoints;
use crate::state::restarts::typical_cost;

/// A line `slope * x - cost`, with the least `x` at which it is the highest of its envelope.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<T> {
    pub(super) slope: f64,
    pub(super) cost: f64,
    from: f64,
    pub(super) label: T,
}

impl<T> Line<T> {
    pub(super) fn new(slope: f64, cost: f64, label: T) -> Self {
        Self { slope, cost, from: 0.0, label }
    }

    pub(super) fn at(&self, x: f64) -> f64 {
        self.slope * x - self.cost
    }

    fn with_label<U>(&self, label: U) -> Line<U> {
        Line { slope: self.slope, cost: self.cost, from: self.from, label }
    }
}

/// The lines that are highest somewhere at `x >= 0`, by slope. Of equal lines the first remains.
pub(super) fn envelope<T>(mut lines: Vec<Line<T>>) -> Vec<Line<T>> {
    lines.sort_by(|a, b| a.slope.total_cmp(&b.slope).then(a.cost.total_cmp(&b.cost)));
    lines.dedup_by(|next, kept| next.slope <= kept.slope);
    let mut kept: Vec<Line<T>> = Vec::with_capacity(lines.len());
    for mut line in lines {
        line.from = 0.0;
        while let Some(last) = kept.last() {
            let crossing = (line.cost - last.cost) / (line.slope - last.slope);
            if crossing > last.from {
                line.from = crossing;
                break;
            }
            kept.pop();
        }
        kept.push(line);
    }
    kept
}

/// The index of the highest line of an envelope at `x >= 0`.
pub(super) fn highest<T>(envelope: &[Line<T>], x: f64) -> usize {
    envelope.partition_point(|line| line.from <= x).saturating_sub(1)
}

/// The operating points with one number of GPUs.
#[derive(Clone, Debug)]
pub(super) struct SizeCurve {
    pub(super) gpus: u32,
    /// Seconds without progress after a start on them, by the formula. A job's own cost is a multiple.
    pub(super) restart_s: f64,
    /// The envelope of surplus over the value of work: the slope is the speed, the cost that of energy.
    pub(super) points: Vec<Line<GpuSetting>>,
}

impl SizeCurve {
    /// The point with the greatest surplus among those with at least this speed.
    pub(super) fn best_point(&self, work_price: f64, speed_min: f64) -> Option<&Line<GpuSetting>> {
        let best = highest(&self.points, work_price);
        if self.points.get(best)?.slope >= speed_min {
            return self.points.get(best);
        }
        self.points.get(self.points.partition_point(|point| point.slope < speed_min))
    }

    pub(super) fn speed_max(&self) -> f64 {
        self.points.last().map_or(0.0, |point| point.slope)
    }
}

/// The price of a joule, seconds of completion time.
#[derive(Clone, Copy, Debug)]
pub(super) struct JoulePrice {
    /// At the grid's present carbon intensity.
    pub(super) now: f64,
    /// At its mean.
    pub(super) mean: f64,
}

impl JoulePrice {
    pub(super) fn of(input: PlanningInput<'_>) -> Self {
        Self { now: input.limits.price_now(), mean: input.limits.price }
    }
}

/// The operating points of a job at the present energy price.
#[derive(Clone, Debug)]
pub(super) struct OperatingCurve<'a> {
    pub(super) known: &'a OperatingPoints,
    /// Training steps in a unit of work.
    pub(super) unit: f64,
    /// By number of GPUs, ascending; never empty.
    pub(super) sizes: Vec<SizeCurve>,
    /// The envelope of the negative cost of a unit of work over the GPU price, with the speed.
    cheapest: Vec<Line<f64>>,
}

impl<'a> OperatingCurve<'a> {
    /// `None` if no operating point has at most `gpus_max` GPUs.
    pub(super) fn new(
        known: &'a OperatingPoints,
        unit: f64,
        charge: Charge,
        joule: JoulePrice,
        gpus_max: u32,
    ) -> Option<Self> {
        let mut sizes = Vec::with_capacity(known.sizes().count());
        let mut costs = Vec::with_capacity(known.points().len());
        for points in known.points().chunk_by(|a, b| a.gpus == b.gpus) {
            let gpus = points[0].gpus;
            if gpus > gpus_max || gpus == 0 {
                continue;
            }
            let lines = points.iter().map(|point| {
                let watts = charge.watts(point);
                Line::new(point.steps_per_s / unit, joule.now * watts, (point.setting, watts))
            });
            let envelope = envelope(lines.collect());
            let mut add_cost = |speed: f64, watts: f64| {
                let cost = (1.0 + joule.mean * watts) / speed;
                costs.push(Line::new(-f64::from(gpus) / speed, cost, speed));
            };
            // A point below the surplus envelope is never the cheapest either, if energy has a price at
            // both intensities or at neither.
            if (joule.now > 0.0) == (joule.mean > 0.0) {
                envelope.iter().for_each(|line| add_cost(line.slope, line.label.1));
            } else {
                points.iter().for_each(|p| add_cost(p.steps_per_s / unit, charge.watts(p)));
            }
            let points = envelope.iter().map(|line| line.with_label(line.label.0)).collect();
            let restart_s = typical_cost(gpus).as_secs_f64();
            sizes.push(SizeCurve { gpus, restart_s, points });
        }
        let is_valid = unit.is_finite() && unit > 0.0 && !sizes.is_empty();
        is_valid.then(|| Self { known, unit, sizes, cheapest: self::envelope(costs) })
    }

    /// The least cost of a unit of work at a GPU price.
    pub(super) fn work_cost(&self, gpu_price: f64) -> f64 {
        -self.cheapest[highest(&self.cheapest, gpu_price)].at(gpu_price)
    }

    /// The speed at which a unit of work costs least.
    pub(super) fn cheapest_speed(&self, gpu_price: f64) -> f64 {
        self.cheapest[highest(&self.cheapest, gpu_price)].label
    }

    pub(super) fn speed_max(&self) -> f64 {
        self.sizes.iter().map(SizeCurve::speed_max).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_envelope_is_the_highest_line_everywhere() {
        let all = [(1.0, 0.0), (2.0, 1.0), (3.0, 5.0), (2.5, 3.5), (1.5, 2.0), (2.0, 0.9)];
        let lines = || all.iter().map(|&(slope, cost)| Line::new(slope, cost, ())).collect();
        let kept = envelope(lines());
        assert_eq!(kept.len(), 3);
        for step in 0..100 {
            let x = f64::from(step) * 0.1;
            let best = all.iter().map(|(slope, cost)| slope * x - cost).fold(f64::MIN, f64::max);
            let found = kept[highest(&kept, x)].at(x);
            assert!((found - best).abs() < 1e-9, "{found} {best} at {x}");
        }
        // Without costs the slope alone decides, and of equal lines the first remains.
        let free = vec![Line::new(1.0, 0.0, 1), Line::new(2.0, 0.0, 2), Line::new(2.0, 0.0, 3)];
        let free = envelope(free);
        assert_eq!((free.len(), free[0].label), (1, 2));
    }
}
