//! A job's operating points as upper envelopes of straight lines.
//!
//! An operating point with speed `v`, power `P` and `n` GPUs is a line twice. Its surplus `v p - e P`, over the
//! price `e` of a joule, is `v x - P` at the ratio `x = p / e` to the value of work `p`: the same lines at every
//! price. The cost of a unit of work `(1 + lambda P + n nu) / v` is linear in the GPU price `nu`. Only lines on
//! the upper envelope are ever best, and the best one is found by binary search.
//!
//! A joule costs the energy price `lambda` plus the price of power `mu`, where power is limited. The surplus
//! uses the energy price at the grid's present carbon intensity, the cost of work its mean price. Work is
//! counted in seconds on one GPU ([`crate::Job::unit_rate`]), surplus in seconds of completion time per second.

use wattle_common::job::GpuSetting;

use crate::policies::wattle::prices::{EnergyPrice, JoulePrices, Prices};
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

/// A setting on a number of GPUs.
#[derive(Clone, Copy, Debug)]
pub(super) struct CurvePoint {
    /// Work per second.
    pub(super) speed: f64,
    /// The charge for all its GPUs, watts.
    pub(super) watts: f64,
    pub(super) setting: GpuSetting,
}

impl CurvePoint {
    /// Its value at a value of work and a price of a joule, s/s.
    pub(super) fn value(&self, work_price: f64, joule: f64) -> f64 {
        work_price * self.speed - joule * self.watts
    }
}

/// An operating point of a curve without its setting.
#[derive(Clone, Copy, Debug)]
pub(super) struct SizedPoint {
    pub(super) gpus: u32,
    /// Work per second.
    pub(super) speed: f64,
    /// The charge for all its GPUs, watts.
    pub(super) watts: f64,
}

impl SizedPoint {
    pub(super) const fn of(gpus: u32, point: &CurvePoint) -> Self {
        Self { gpus, speed: point.speed, watts: point.watts }
    }
}

/// The operating points with one number of GPUs.
#[derive(Clone, Debug)]
pub(super) struct SizeCurve {
    pub(super) gpus: u32,
    /// Seconds without progress after a start on them, by the formula. A job's own cost is a multiple.
    pub(super) restart_s: f64,
    /// The envelope over the ratio of the value of work to the price of a joule, by speed and power.
    points: Vec<Line<GpuSetting>>,
    /// The best point where a joule is free: the fastest, the first one listed of several.
    fastest: CurvePoint,
    default_point: Option<CurvePoint>,
}

fn curve_point(line: &Line<GpuSetting>) -> CurvePoint {
    CurvePoint { speed: line.slope, watts: line.cost, setting: line.label }
}

impl SizeCurve {
    /// `None` without points.
    fn new(gpus: u32, restart_s: f64, points: &[CurvePoint]) -> Option<Self> {
        let faster = |best: CurvePoint, next: &CurvePoint| {
            if next.speed > best.speed { *next } else { best }
        };
        let fastest = points.iter().fold(*points.first()?, faster);
        let default_point = points.iter().find(|point| point.setting.is_default()).copied();
        let line = |point: &CurvePoint| Line::new(point.speed, point.watts, point.setting);
        let points = envelope(points.iter().map(line).collect());
        Some(Self { gpus, restart_s, points, fastest, default_point })
    }

    /// The point with the greatest value among those with at least this speed.
    pub(super) fn best_point(
        &self,
        work_price: f64,
        joule: f64,
        speed_min: f64,
    ) -> Option<CurvePoint> {
        if joule <= 0.0 {
            return (self.fastest.speed >= speed_min).then_some(self.fastest);
        }
        let best = self.points.get(highest(&self.points, work_price / joule))?;
        if best.slope >= speed_min {
            return Some(curve_point(best));
        }
        self.points
            .get(self.points.partition_point(|point| point.slope < speed_min))
            .map(curve_point)
    }

    /// The points that are best at some prices, by speed and power, ascending.
    pub(super) fn points(&self) -> impl Iterator<Item = CurvePoint> {
        self.points.iter().map(curve_point)
    }

    /// The point at the default cap and clock.
    pub(super) const fn default_point(&self) -> Option<CurvePoint> {
        self.default_point
    }

    /// The point with the most work per joule among those with at least this speed.
    pub(super) fn most_efficient_from(&self, speed_min: f64) -> Option<CurvePoint> {
        let efficiency = |point: &CurvePoint| point.speed / point.watts;
        let fast_enough = self.points().filter(|point| point.speed >= speed_min);
        fast_enough.max_by(|a, b| efficiency(a).total_cmp(&efficiency(b)))
    }

    pub(super) const fn speed_max(&self) -> f64 {
        self.fastest.speed
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
    /// The points of all sizes, by speed.
    pub(super) by_speed: Vec<SizedPoint>,
    energy: EnergyPrice,
    /// The envelope of the negative cost of a unit of work over the GPU price while power is free, with the
    /// speed.
    cheapest: Vec<Line<f64>>,
}

impl<'a> OperatingCurve<'a> {
    /// `None` if no operating point has at most `gpus_max` GPUs.
    pub(super) fn new(
        known: &'a OperatingPoints,
        unit: f64,
        charge: Charge,
        energy: EnergyPrice,
        gpus_max: u32,
    ) -> Option<Self> {
        let mut sizes = Vec::with_capacity(known.sizes().count());
        for points in known.points().chunk_by(|a, b| a.gpus == b.gpus) {
            let gpus = points[0].gpus;
            if gpus > gpus_max || gpus == 0 {
                continue;
            }
            let points: Vec<CurvePoint> = (points.iter())
                .map(|point| CurvePoint {
                    speed: point.steps_per_s / unit,
                    watts: charge.watts(point),
                    setting: point.setting,
                })
                .collect();
            sizes.extend(SizeCurve::new(gpus, typical_cost(gpus).as_secs_f64(), &points));
        }
        let costs = sizes.iter().flat_map(|size| {
            size.points().map(|point| {
                let cost = (1.0 + energy.mean * point.watts) / point.speed;
                Line::new(-f64::from(size.gpus) / point.speed, cost, point.speed)
            })
        });
        let cheapest = envelope(costs.collect());
        let all = sizes
            .iter()
            .flat_map(|size| size.points().map(|point| SizedPoint::of(size.gpus, &point)));
        let mut by_speed: Vec<SizedPoint> = all.collect();
        by_speed.sort_by(|a, b| a.speed.total_cmp(&b.speed));
        let is_valid = unit.is_finite() && unit > 0.0 && !sizes.is_empty();
        is_valid.then_some(Self { known, unit, sizes, by_speed, energy, cheapest })
    }

    /// The prices of a joule now.
    pub(super) fn joule(&self, prices: Prices) -> JoulePrices {
        JoulePrices { energy: self.energy.now, power: prices.power }
    }

    /// The points of which one has the greatest surplus where a joule has this price: of each size, and where a joule
    /// is free the fastest of each.
    pub(super) fn candidates(&self, joule: f64) -> impl Iterator<Item = SizedPoint> {
        let is_free = joule <= 0.0;
        let fastest = self.sizes.iter().map(|size| SizedPoint::of(size.gpus, &size.fastest));
        let all = self.by_speed.iter().copied();
        fastest.filter(move |_| is_free).chain(all.filter(move |_| !is_free))
    }

    /// The cost of a unit of work at a point, at these prices.
    pub(super) fn cost_at(&self, point: SizedPoint, prices: Prices) -> f64 {
        let joule = self.energy.mean + prices.power;
        (1.0 + prices.gpu * f64::from(point.gpus) + joule * point.watts) / point.speed
    }

    /// The least cost of a unit of work at these prices.
    pub(super) fn work_cost(&self, prices: Prices) -> f64 {
        if prices.power <= 0.0 {
            return -self.cheapest[highest(&self.cheapest, prices.gpu)].at(prices.gpu);
        }
        let joule = self.energy.mean + prices.power;
        let of_size = |size: &SizeCurve| Self::cost_on(size, prices.gpu, joule);
        self.sizes.iter().map(of_size).fold(f64::INFINITY, f64::min)
    }

    /// The speed at which a unit of work costs least while power is free.
    pub(super) fn cheapest_speed(&self, gpu_price: f64) -> f64 {
        self.cheapest[highest(&self.cheapest, gpu_price)].label
    }

    /// The least cost of a unit of work on this size, where a joule has this price.
    fn cost_on(size: &SizeCurve, gpu_price: f64, joule: f64) -> f64 {
        let rent = 1.0 + gpu_price * f64::from(size.gpus);
        let costs = size.points.iter().map(|point| (rent + joule * point.cost) / point.slope);
        costs.fold(f64::INFINITY, f64::min)
    }

    /// The size on which a unit of work costs least at this price of GPUs while power is free; a larger one where its
    /// speed is below `speed_min`.
    pub(super) fn size_to_keep(&self, gpu_price: f64, speed_min: f64) -> u32 {
        let cost = |size: &SizeCurve| Self::cost_on(size, gpu_price, self.energy.mean);
        let fast_enough = self.sizes.iter().filter(|size| size.speed_max() >= speed_min);
        let cheapest = fast_enough.min_by(|a, b| cost(a).total_cmp(&cost(b)));
        cheapest.map_or(u32::MAX, |size| size.gpus)
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
