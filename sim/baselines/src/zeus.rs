//! Zeus's power cap for each job: the cap of its GPUs is the one with the least cost
//! `eta E + (1 - eta) P_max T` (You et al., Zeus, NSDI 2023; docs of github.com/ml-energy/zeus). `E` and `T`
//! are the energy and time of a training step on the GPUs it has, and `P_max` is their highest power. Zeus
//! optimises each job separately, so it considers neither queue nor budget.
//!
//! Our own choices: `eta` = 0.5, Zeus's default. Batch sizes, which Zeus also searches, stay as submitted.
//! Where a surface has no caps but clocks, the clock is chosen instead. `P_max` is the largest cap of the job's
//! operating points or, without caps, the highest power of a GPU under any of them. Operating points come from
//! the job's surface and are not tried one by one. A GPU with two jobs obeys the lower of both settings.

use std::cmp::Ordering;

use wattle_common::job::GpuSetting;
use wattle_placer::Job;
use wattle_placer::plan::Plan;
use wattle_placer::plan::input::PlanningInput;
use wattle_placer::policies::{Addition, Capabilities, Policy, Reads};
use wattle_placer::state::operating_points::{OperatingPoint, OperatingPoints};

/// Zeus's default weight of energy against time.
const ETA: f64 = 0.5;

/// `NAME+zeus`.
pub(crate) const ADDITION: Addition =
    Addition { name: "zeus", around: |policy| Box::new(Zeus::around(policy)) };

/// A policy under which each job has the cap of least cost.
pub struct Zeus {
    name: String,
    policy: Box<dyn Policy>,
    /// The weight of energy against time, 0 to 1.
    eta: f64,
}

impl Zeus {
    /// This rule in place of the caps and clocks of `policy`.
    #[must_use]
    pub fn around(policy: Box<dyn Policy>) -> Self {
        Self { name: format!("{}+{}", policy.name(), ADDITION.name), policy, eta: ETA }
    }
}

impl Policy for Zeus {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        let fixed = self.policy.capabilities().with_fixed_settings();
        Capabilities { reads: Reads::All, ..fixed }
    }

    fn solve(&self, input: PlanningInput<'_>) -> Plan {
        self.policy.solve(input)
    }

    fn fixed_setting(&self, job: &Job, gpu_type: &str, gpus: u32) -> Option<GpuSetting> {
        job.operating_points_on(gpu_type).and_then(|points| least_cost(points, gpus, self.eta))
    }
}

/// The setting of least cost on this number of GPUs; `None` if it has no operating point.
fn least_cost(points: &OperatingPoints, gpus: u32, eta: f64) -> Option<GpuSetting> {
    let cap = |point: &OperatingPoint| point.setting.cap_mw.map(wattle_common::Power::as_w);
    let most = |a: f64, b: f64| a.max(b);
    let highest_cap = points.points().iter().filter_map(cap).reduce(most);
    let highest_power = points.points().iter().map(|point| point.gpu_power_w).reduce(most)?;
    let power_max = highest_cap.unwrap_or(highest_power);
    let caps_only = highest_cap.is_some();
    let cost = |point: &OperatingPoint| {
        (eta * point.gpu_power_w + (1.0 - eta) * power_max) / point.steps_per_s
    };
    let candidates = points.with_gpus(gpus).iter();
    let candidates = candidates.filter(|point| !caps_only || point.setting.clock_mhz_max.is_none());
    let cheapest = candidates.min_by(|a, b| match cost(a).total_cmp(&cost(b)) {
        // Of equal costs the default setting.
        Ordering::Equal => b.setting.is_default().cmp(&a.setting.is_default()),
        unequal => unequal,
    });
    cheapest.map(|point| point.setting)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattle_common::job::GpuRequest;
    use wattle_common::messages::SurfacePoint;
    use wattle_common::{Frequency, Power};
    use wattle_testkit as testkit;

    /// Operating points from (cap in watts, clock in megahertz, steps per second, watts).
    fn operating_points(rows: &[(Option<u64>, Option<u32>, f64, f64)]) -> OperatingPoints {
        let points = rows.iter().map(|&(cap, clock, rate, watts)| SurfacePoint {
            cap_mw: cap.map(Power::from_w),
            clock_mhz_max: clock.map(Frequency::from_mhz),
            ..testkit::point(2, rate, watts)
        });
        let surface = testkit::surface("j", "v100", points);
        OperatingPoints::of(&surface, GpuRequest::exactly(2))
    }

    #[test]
    fn the_cap_of_least_cost_is_chosen_and_clocks_only_without_caps() {
        // Costs at 250 W: (240 + 250) / 2 = 245; at 150 W: (150 + 250) / 2 / 0.9 = 222; at 100 W:
        // (100 + 250) / 2 / 0.5 = 350. The clock would cost (100 + 250) / 2 / 0.99 = 177.
        let caps = [
            (Some(250), None, 1.0, 240.0),
            (Some(150), None, 0.9, 150.0),
            (Some(100), None, 0.5, 100.0),
            (None, Some(900), 0.99, 100.0),
        ];
        let chosen = least_cost(&operating_points(&caps), 2, ETA).unwrap();
        assert_eq!(chosen.to_string(), "150 W");
        // Only time counts.
        assert_eq!(least_cost(&operating_points(&caps), 2, 0.0).unwrap().to_string(), "250 W");
        let clocks = [(None, None, 1.0, 240.0), (None, Some(900), 0.9, 150.0)];
        assert_eq!(least_cost(&operating_points(&clocks), 2, ETA).unwrap().to_string(), "900 MHz");
        assert_eq!(least_cost(&operating_points(&clocks), 4, ETA), None);
    }
}
