//! The operating points of two jobs that share GPUs.
//!
//! Both jobs have the same GPUs and setting. Surfaces state the speed of each beside the other at the
//! default setting. At another setting the slow-downs by setting and by co-tenant are assumed independent,
//! and the pair's power above idle falls like that of the exclusive jobs.

use wattle_common::job::GpuSetting;

use crate::policies::wattle::market::Bid;
use crate::policies::wattle::upper_envelope::OperatingCurve;
use crate::power::energy_cost::Charge;
use crate::state::job::Job;
use crate::state::job_forecast::expected_on;
use crate::state::operating_points::OperatingPoint;

/// Jobs whose relative speeds sum to no more than this never share: they are no faster together than one
/// after the other.
const SPEED_SUM_MIN: f64 = 1.0;

/// Joint operating points of two jobs by number of GPUs.
pub(super) struct JointCurve {
    pub(super) sizes: Vec<JointSize>,
}

/// Their joint operating point at one number of GPUs.
pub(super) struct JointSize {
    pub(super) gpus: u32,
    pub(super) restart_s: f64,
    points: Vec<JointPoint>,
    /// The greatest speed of each job and the least cost over all points.
    speeds_max: [f64; 2],
    cost_min: f64,
}

/// One setting for both.
pub(super) struct JointPoint {
    pub(super) speeds: [f64; 2],
    /// The cost of energy.
    cost: f64,
    pub(super) setting: GpuSetting,
}

impl JointSize {
    fn new(gpus: u32, restart_s: f64, points: Vec<JointPoint>) -> Self {
        let speed_max = |k: usize| points.iter().map(|point| point.speeds[k]).fold(0.0, f64::max);
        let speeds_max = [0, 1].map(speed_max);
        let cost_min = points.iter().map(|point| point.cost).fold(f64::INFINITY, f64::min);
        Self { gpus, restart_s, points, speeds_max, cost_min }
    }

    /// An upper bound of the value of any point.
    pub(super) fn value_bound(&self, bids: [&Bid; 2]) -> f64 {
        let earned: f64 = (0..2).map(|k| bids[k].work_price * self.speeds_max[k]).sum();
        earned - self.cost_min
    }

    /// The point with the greatest value among those with these least speeds, and its value.
    pub(super) fn best_point(
        &self,
        bids: [&Bid; 2],
        speeds_min: [f64; 2],
    ) -> Option<(&JointPoint, f64)> {
        let is_fast_enough = |point: &&JointPoint| {
            point.speeds[0] >= speeds_min[0] && point.speeds[1] >= speeds_min[1]
        };
        let value = |point: &JointPoint| {
            bids[0].work_price * point.speeds[0] + bids[1].work_price * point.speeds[1] - point.cost
        };
        let values = self.points.iter().filter(is_fast_enough).map(|point| (point, value(point)));
        values.reduce(|best, next| if next.1 > best.1 { next } else { best })
    }
}

impl JointCurve {
    /// `None` if sharing pays on no size that both jobs may have.
    pub(super) fn new(
        curves: [&OperatingCurve<'_>; 2],
        jobs: [&Job; 2],
        charge: Charge,
        joule: f64,
        gpus_max: u32,
    ) -> Option<Self> {
        let sizes = curves[0].sizes.iter().filter(|size| size.gpus <= gpus_max);
        let sizes: Vec<JointSize> = sizes
            .filter_map(|size| joint_size(curves, jobs, charge, joule, (size.gpus, size.restart_s)))
            .collect();
        (!sizes.is_empty()).then_some(Self { sizes })
    }
}

fn joint_size(
    curves: [&OperatingCurve<'_>; 2],
    jobs: [&Job; 2],
    charge: Charge,
    joule: f64,
    (gpus, restart_s): (u32, f64),
) -> Option<JointSize> {
    let gpu_type = &curves[0].known.gpu_type;
    let exclusive = curves.map(|curve| curve.known.with_gpus(gpus));
    if exclusive[1].is_empty() {
        return None;
    }
    let nodes = exclusive[0].first()?.nodes;
    let a = expected_on(jobs[0], gpu_type, gpus, nodes, &[jobs[1]])?;
    let b = expected_on(jobs[1], gpu_type, gpus, nodes, &[jobs[0]])?;
    let relative = [a.relative_speed.mean, b.relative_speed.mean];
    let power_w = f64::midpoint(a.gpu_power_w.mean, b.gpu_power_w.mean);
    let is_valid = relative.iter().all(|s| s.is_finite() && *s > 0.0) && power_w.is_finite();
    if !is_valid || relative[0] + relative[1] <= SPEED_SUM_MIN {
        return None;
    }
    let at_default = |curve: &OperatingCurve<'_>| {
        curve.known.point(gpus, GpuSetting::DEFAULT).map(|point| above_idle_w(&charge, point))
    };
    let default_w = [at_default(curves[0])?, at_default(curves[1])?];
    let points = exclusive[0].iter().filter_map(|one| {
        let two = curves[1].known.point(gpus, one.setting)?;
        let power_ratio = f64::midpoint(
            above_idle_w(&charge, one) / default_w[0],
            above_idle_w(&charge, two) / default_w[1],
        );
        let gpu_power_w = charge.idle_w() + (power_w - charge.idle_w()) * power_ratio;
        let speeds = [
            relative[0] * one.steps_per_s / curves[0].unit,
            relative[1] * two.steps_per_s / curves[1].unit,
        ];
        let cost = joule * charge.watts(&OperatingPoint { gpu_power_w, ..*one });
        Some(JointPoint { speeds, cost, setting: one.setting })
    });
    let points: Vec<JointPoint> = points.collect();
    (!points.is_empty()).then(|| JointSize::new(gpus, restart_s, points))
}

/// Power of one GPU above idle, watts; at least 1.
fn above_idle_w(charge: &Charge, point: &OperatingPoint) -> f64 {
    (point.gpu_power_w - charge.idle_w()).max(1.0)
}
