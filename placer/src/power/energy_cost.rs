//! What a choice of GPUs and setting is charged, in watts.
//!
//! A job pays for what its cards draw above idle. Where nodes may sleep, a GPU that is used keeps its
//! node awake, so the job also pays that GPU's share of what the node would save asleep: its idle
//! card, and an equal share of the host less what the node draws asleep. Where nodes never sleep,
//! all that is spent whatever is decided, and nobody is charged for it.

use crate::plan::input::PlanningInput;
use crate::state::operating_points::OperatingPoint;

/// Charged at least, so that no choice is free, watts a GPU.
const LEAST_W: f64 = 1.0;

/// What a card of one kind is charged for besides its own work.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Charge {
    /// What it draws idle, watts: counted in a surface's power, and taken off it.
    idle_w: f64,
    /// What it is charged for being used at all, watts.
    share_w: f64,
}

impl Charge {
    /// The charge on cards of `kind`, from the first node of that kind that says what it draws.
    #[must_use]
    pub fn on(input: PlanningInput<'_>, kind: &str) -> Self {
        let nodes = input.state.nodes().iter().filter(|node| node.facts.gpu_type == kind);
        let known = nodes.filter_map(|node| Some((node.facts.watts?, node.facts.gpus))).next();
        let Some((watts, gpus)) = known else { return Self::default() };
        let idle_w = watts.card_idle.as_w();
        let host_w = watts.host.saturating_sub(watts.asleep).as_w();
        let share_w = idle_w + host_w / f64::from(gpus.max(1));
        Self { idle_w, share_w: if input.limits.nodes_sleep { share_w } else { 0.0 } }
    }

    /// What a card draws idle, watts; 0 where nobody says so.
    #[must_use]
    pub const fn idle_w(&self) -> f64 {
        self.idle_w
    }

    /// What a card is charged for being used at all, watts; 0 where nodes never sleep.
    #[must_use]
    pub const fn share_w(&self) -> f64 {
        self.share_w
    }

    /// What a choice is charged, watts for all its GPUs.
    #[must_use]
    pub fn watts(&self, choice: &OperatingPoint) -> f64 {
        let card = (choice.gpu_power_w - self.idle_w + self.share_w).max(LEAST_W);
        f64::from(choice.gpus) * card
    }

    /// Energy of one step, joules.
    #[must_use]
    pub fn joules_a_step(&self, choice: &OperatingPoint) -> f64 {
        self.watts(choice) / choice.steps_per_s
    }
}
