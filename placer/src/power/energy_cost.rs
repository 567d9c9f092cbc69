//! The power charged to a job at an operating point, in watts.
//!
//! A job is charged its GPUs' power above idle. If nodes may sleep, a used GPU keeps its node awake, so
//! the job is also charged that GPU's share of the saving: the GPU's idle power, and an equal share of
//! the host's power less the node's power asleep. If nodes never sleep, that power does not depend on
//! any decision and is not charged.

use wattle_common::Power;

use crate::plan::input::PlanningInput;
use crate::state::operating_points::OperatingPoint;

/// Lower bound of the charge, so that no operating point is free, watts per GPU.
const LEAST_W: f64 = 1.0;

/// Power charges of a GPU of one type.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Charge {
    /// Idle power, watts; subtracted from the surface's power, which includes it.
    idle_w: f64,
    /// Charge for keeping the node awake, watts.
    share_w: f64,
}

impl Charge {
    /// With this idle power, and this charge for keeping the node awake, watts.
    #[cfg(test)]
    pub(crate) const fn new(idle_w: f64, share_w: f64) -> Self {
        Self { idle_w, share_w }
    }

    /// The charges for a GPU type, from the first node of that type with known power; otherwise from the
    /// measured idle power of the type.
    #[must_use]
    pub fn on(input: PlanningInput<'_>, gpu_type: &str) -> Self {
        let known = input.state.metered_node(gpu_type);
        let known = known.and_then(|node| Some((node.facts.watts?, node.facts.gpus)));
        let Some((watts, gpus)) = known else {
            let measured = input.state.gpu_power(gpu_type).map_or(Power::ZERO, |power| power.idle);
            return Self { idle_w: measured.as_w(), share_w: 0.0 };
        };
        let idle_w = watts.gpu_idle.as_w();
        let host_w = watts.host.saturating_sub(watts.asleep).as_w();
        let share_w = idle_w + host_w / f64::from(gpus.max(1));
        Self { idle_w, share_w: if input.limits.nodes_sleep { share_w } else { 0.0 } }
    }

    /// Idle power of a GPU, watts; 0 if unknown.
    #[must_use]
    pub const fn idle_w(&self) -> f64 {
        self.idle_w
    }

    /// Charge of a GPU for keeping its node awake, watts; 0 if nodes never sleep.
    #[must_use]
    pub const fn share_w(&self) -> f64 {
        self.share_w
    }

    /// Charge of an operating point for all its GPUs, watts.
    #[must_use]
    pub fn watts(&self, point: &OperatingPoint) -> f64 {
        let per_gpu = (point.gpu_power_w - self.idle_w + self.share_w).max(LEAST_W);
        f64::from(point.gpus) * per_gpu
    }

    /// Power above idle of all GPUs of an operating point, watts.
    #[must_use]
    pub fn above_idle_w(&self, point: &OperatingPoint) -> f64 {
        self.watts(point) - f64::from(point.gpus) * self.share_w
    }

    /// Charged energy of one training step, joules.
    #[must_use]
    pub fn joules_per_step(&self, point: &OperatingPoint) -> f64 {
        self.watts(point) / point.steps_per_s
    }
}
