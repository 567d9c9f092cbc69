//! The charge: the power for which a job pays at an operating point.
//!
//! A job pays for the power of its GPUs above idle. Where nodes may sleep, a used GPU keeps its node awake, so the
//! job also pays that GPU's share of the power that the node would save asleep: its idle GPU, and an equal share of
//! the host less the node's sleeping power. Where nodes never sleep that power is spent in any case and is not
//! charged.

use crate::plan::input::PlanningInput;
use crate::state::operating_points::OperatingPoint;

/// The least charge of a GPU, watts, so that no operating point is free.
const CHARGE_MIN_W: f64 = 1.0;

/// The charge of the GPUs of one type.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Charge {
    /// Idle power of a GPU, watts: part of a surface's power, and subtracted from it.
    idle_w: f64,
    /// The charge of a used GPU for keeping its node awake, watts.
    share_w: f64,
}

impl Charge {
    /// The charge of GPUs of a type, from the first node of that type with known power.
    #[must_use]
    pub fn on(input: PlanningInput<'_>, gpu_type: &str) -> Self {
        let nodes = input.state.nodes().iter().filter(|node| node.facts.gpu_type == gpu_type);
        let known = nodes.filter_map(|node| Some((node.facts.watts?, node.facts.gpus))).next();
        let Some((watts, gpus)) = known else { return Self::default() };
        let idle_w = watts.card_idle.as_w();
        let host_w = watts.host.saturating_sub(watts.asleep).as_w();
        let share_w = idle_w + host_w / f64::from(gpus.max(1));
        Self { idle_w, share_w: if input.limits.nodes_sleep { share_w } else { 0.0 } }
    }

    /// Idle power of a GPU, watts; 0 if unknown.
    #[must_use]
    pub const fn idle_w(&self) -> f64 {
        self.idle_w
    }

    /// The charge of a used GPU for keeping its node awake, watts; 0 where nodes never sleep.
    #[must_use]
    pub const fn share_w(&self) -> f64 {
        self.share_w
    }

    /// The charge of an operating point, watts for all its GPUs.
    #[must_use]
    pub fn watts(&self, point: &OperatingPoint) -> f64 {
        let gpu_w = (point.gpu_power_w - self.idle_w + self.share_w).max(CHARGE_MIN_W);
        f64::from(point.gpus) * gpu_w
    }

    /// Charged energy of one training step, joules.
    #[must_use]
    pub fn joules_a_step(&self, point: &OperatingPoint) -> f64 {
        self.watts(point) / point.steps_per_s
    }
}
