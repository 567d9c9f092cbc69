//! Operating points of a job: the part of its surface that holds for the job without co-tenants.
//!
//! Elastic policies read every operating point of every job at every event, so the points are extracted
//! once, when the surface arrives: no co-tenants, the job's own batch size, and the fewest nodes of each
//! number of GPUs.
//!
//! The points hold expected values, with two exceptions. Reserved power ([`crate::power::budget`]) uses
//! the upper bound of a GPU's power. And for a job without measurements that can change its size, each
//! rate is the upper bound of its prior ([`OperatingPoints::optimistic`]): by its mean alone, a size that
//! is underestimated would never be tried, for this job and all jobs of its class (optimism in the face
//! of uncertainty: Lai and Robbins 1985). The first measured window of the job ends this.

use std::collections::BTreeMap;

use wattle_common::Power;
use wattle_common::job::{GpuRequest, GpuSetting};
use wattle_common::messages::{Estimate, Surface};

use crate::state::job::JobFacts;

/// Plausible rates, steps per second: a training step takes between a microsecond and a month. Other
/// values are predictor errors.
const RATES: std::ops::RangeInclusive<f64> = 4e-7..=1e6;
/// Plausible power of one GPU, watts: up to ten times that of the largest.
const POWERS_W: std::ops::RangeInclusive<f64> = 1e-3..=1e4;

/// A number of GPUs with cap and clock, and the job's rate and power there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OperatingPoint {
    /// Number of GPUs.
    pub gpus: u32,
    /// Number of nodes.
    pub nodes: u32,
    /// Cap and clock.
    pub setting: GpuSetting,
    /// Steps per second.
    pub steps_per_s: f64,
    /// Power of one GPU including idle power, watts.
    pub gpu_power_w: f64,
    /// Upper bound of that power, watts.
    pub gpu_power_w_max: f64,
}

/// The operating points of a job on one GPU type.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OperatingPoints {
    /// The GPU type.
    pub gpu_type: String,
    /// Unique, sorted by GPUs, then by setting. Rates and powers are plausible.
    points: Vec<OperatingPoint>,
}

impl OperatingPoints {
    /// The operating points of a surface for a request: the powers of two between its limits, and both
    /// limits. Empty if the surface has no absolute rates.
    #[must_use]
    pub fn of(surface: &Surface, request: GpuRequest) -> Self {
        Self::read(surface, request, |rate| rate.mean)
    }

    /// As [`Self::of`], for a job that can change its size: until its first measured window, each rate
    /// is the upper bound of its prior.
    #[must_use]
    pub fn optimistic(surface: &Surface, request: GpuRequest) -> Self {
        if surface.windows > 0 {
            return Self::of(surface, request);
        }
        Self::read(surface, request, |rate| {
            if RATES.contains(&rate.high) { rate.mean.max(rate.high) } else { rate.mean }
        })
    }

    /// The operating points of a surface for this job.
    ///
    /// A job that cannot be stopped keeps its GPUs to its end, so its rates are not optimistic: that would
    /// not be corrected.
    #[must_use]
    pub fn of_job(surface: &Surface, job: &JobFacts) -> Self {
        let read = if job.can_stop { Self::optimistic } else { Self::of };
        let mut points = read(surface, job.request);
        if let Some(permille) = job.max_slowdown_permille {
            points.limit_slowdown(f64::from(permille) / 1e3);
        }
        points
    }

    fn read(surface: &Surface, request: GpuRequest, rate_of: fn(&Estimate) -> f64) -> Self {
        let requested = |gpus: u32| {
            (request.min..=request.max).contains(&gpus)
                && (gpus.is_power_of_two() || gpus == request.min || gpus == request.max)
        };
        let mut best: BTreeMap<(u32, GpuSetting), OperatingPoint> = BTreeMap::new();
        for point in &surface.points {
            let Some(rate) = point.steps_per_s.as_ref().map(rate_of) else { continue };
            let power = point.gpu_power_w.mean;
            let plausible = RATES.contains(&rate) && POWERS_W.contains(&power);
            if !plausible
                || !requested(point.gpus)
                || !point.neighbours.is_empty()
                || point.global_batch.is_some()
            {
                continue;
            }
            let setting = GpuSetting { cap_mw: point.cap_mw, clock_mhz_max: point.clock_mhz_max };
            let found = OperatingPoint {
                gpus: point.gpus,
                nodes: point.nodes,
                setting,
                steps_per_s: rate,
                gpu_power_w: power,
                gpu_power_w_max: power.max(point.gpu_power_w.high.min(*POWERS_W.end())),
            };
            best.entry((point.gpus, setting))
                .and_modify(|known| {
                    if found.nodes < known.nodes {
                        *known = found;
                    }
                })
                .or_insert(found);
        }
        Self { gpu_type: surface.gpu_type.clone(), points: best.into_values().collect() }
    }

    /// Removes the points that are slower than the default setting on the same GPUs by more than this share
    /// of the run time: 0.05 for 5 %.
    pub fn limit_slowdown(&mut self, max_slowdown: f64) {
        let least = |point: &OperatingPoint, points: &[OperatingPoint]| {
            let same = points.iter().filter(|other| other.gpus == point.gpus);
            let default = same.filter(|other| other.setting.is_default());
            default.map(|default| default.steps_per_s / (1.0 + max_slowdown)).next()
        };
        let all = self.points.clone();
        self.points
            .retain(|point| least(point, &all).is_none_or(|least| point.steps_per_s >= least));
    }

    /// Removes the points with a locked clock.
    pub fn remove_clocks(&mut self) {
        self.points.retain(|point| point.setting.clock_mhz_max.is_none());
    }

    /// Removes the points with a cap below this one.
    pub fn remove_caps_below(&mut self, least: Power) {
        self.points.retain(|point| point.setting.cap_mw.is_none_or(|cap| cap >= least));
    }

    /// All points, sorted by GPUs, then by setting.
    #[must_use]
    pub fn points(&self) -> &[OperatingPoint] {
        &self.points
    }

    /// The points with this number of GPUs.
    #[must_use]
    pub fn with_gpus(&self, gpus: u32) -> &[OperatingPoint] {
        let from = self.points.partition_point(|point| point.gpus < gpus);
        let until = self.points.partition_point(|point| point.gpus <= gpus);
        &self.points[from..until]
    }

    /// The numbers of GPUs with points, ascending.
    pub fn sizes(&self) -> impl Iterator<Item = u32> {
        self.points.chunk_by(|a, b| a.gpus == b.gpus).map(|equal| equal[0].gpus)
    }

    /// Steps per second and GPU at the smallest size and the default setting. The unit in which the
    /// work of different workloads is compared; it depends on the GPU type.
    #[must_use]
    pub fn unit_rate(&self) -> Option<f64> {
        let least = self.points.first()?.gpus;
        let point = self.point(least, GpuSetting::DEFAULT).or(self.points.first())?;
        Some(point.steps_per_s / f64::from(point.gpus))
    }

    /// The point with this number of GPUs and this setting.
    #[must_use]
    pub fn point(&self, gpus: u32, setting: GpuSetting) -> Option<&OperatingPoint> {
        self.with_gpus(gpus).iter().find(|point| point.setting == setting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattle_common::Frequency;
    use wattle_common::messages::SurfacePoint;
    use wattle_testkit as testkit;

    fn point(gpus: u32, nodes: u32, clock: Option<u32>, rate: f64) -> SurfacePoint {
        SurfacePoint {
            nodes,
            clock_mhz_max: clock.map(Frequency::from_mhz),
            ..testkit::point(gpus, rate, 200.0)
        }
    }

    fn surface(points: Vec<SurfacePoint>) -> Surface {
        testkit::surface("j", "v100", points)
    }

    #[test]
    fn unmeasured_sizes_have_the_upper_bound_of_the_rate() {
        let mut surface = surface(vec![point(1, 1, None, 1.0), point(2, 1, None, 1.5)]);
        let unsure = |high: f64| Some(Estimate { mean: 1.5, low: 1.0, high });
        let speed_of_two = |surface: &Surface| {
            let points = OperatingPoints::optimistic(surface, GpuRequest { min: 1, max: 2 });
            points.with_gpus(2)[0].steps_per_s.to_bits()
        };
        surface.windows = 0;
        surface.points[1].steps_per_s = unsure(1.9);
        assert_eq!(speed_of_two(&surface), 1.9_f64.to_bits());
        // An implausible bound is ignored in favour of the mean.
        for bound in [f64::INFINITY, f64::NAN, 1e300, 0.0, -1.0] {
            surface.points[1].steps_per_s = unsure(bound);
            assert_eq!(speed_of_two(&surface), 1.5_f64.to_bits(), "{bound}");
        }
        surface.points[1].steps_per_s = unsure(1.9);
        surface.windows = 1;
        assert_eq!(speed_of_two(&surface), 1.5_f64.to_bits());
    }

    #[test]
    fn points_are_within_the_request_and_on_the_fewest_nodes() {
        let surface = surface(vec![
            point(4, 2, None, 2.0),
            point(4, 1, None, 3.0),
            point(4, 1, Some(900), 2.5),
            point(3, 1, None, 2.8),
            point(1, 1, None, 1.0),
            point(6, 1, None, 4.0),
            point(6, 1, Some(900), f64::NAN),
            point(6, 1, Some(800), 1e12),
            point(6, 1, Some(700), 0.0),
        ]);
        let points = OperatingPoints::of(&surface, GpuRequest { min: 1, max: 6 });
        assert_eq!(points.sizes().collect::<Vec<_>>(), [1, 4, 6]);
        assert_eq!(points.with_gpus(4).len(), 2);
        let four = points.point(4, GpuSetting::DEFAULT).unwrap();
        assert_eq!((four.nodes, four.steps_per_s), (1, 3.0));
        assert!(points.with_gpus(2).is_empty());
        // Implausible rates are dropped.
        assert_eq!(points.with_gpus(6).len(), 1);
    }

    #[test]
    fn a_bound_on_slowdown_removes_slower_settings() {
        let points = vec![
            point(1, 1, None, 1.0),
            point(1, 1, Some(1_200), 0.97),
            point(1, 1, Some(900), 0.8),
        ];
        let surface = testkit::surface("j", "v100", points);
        let mut points = OperatingPoints::of(&surface, GpuRequest::exactly(1));
        points.limit_slowdown(0.05);
        let rates: Vec<f64> = points.points().iter().map(|point| point.steps_per_s).collect();
        assert_eq!(rates, [1.0, 0.97]);
        points.limit_slowdown(0.0);
        assert_eq!(points.points().len(), 1);
    }
}
