//! The energy aim: a price from the estimated slowdown, where no budget sets one.

use wattle_common::Timestamp;
use wattle_common::messages::AimStatus;

use crate::controller::budget::Controlled;
use crate::controller::{Controller, PolicyHandle};
use crate::power::slowdown::SlowdownController;

/// What sets the energy price.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetsPrice {
    /// A budget with a window.
    Budget,
    /// The energy aim.
    Aim,
}

impl<P: PolicyHandle> Controller<P> {
    /// What sets the energy price, if something does.
    pub(crate) fn sets_price(&self) -> Option<SetsPrice> {
        if self.budget_sets_price() {
            return Some(SetsPrice::Budget);
        }
        self.aim.as_ref().map(|_| SetsPrice::Aim)
    }

    /// Puts the energy aim in force if the configuration has one and the policy reads a price.
    pub fn set_aim(&mut self, persisted: Option<&AimStatus>, now: Timestamp) {
        let bound = self.config.aim.filter(|_| self.can.prices.is_some());
        self.aim = bound.map(|bound| SlowdownController::new(bound, persisted, now));
    }

    /// The state of the energy aim, if it sets the price.
    #[must_use]
    pub fn aim_status(&self) -> Option<AimStatus> {
        let aim = self.aim.as_ref().filter(|_| !self.budget_sets_price())?;
        Some(aim.status(self.limits.price))
    }

    /// Position of the energy price in the policy's range, 0 (free) to 1; absent if nothing sets a price.
    pub(crate) fn price_position(&self) -> Option<f64> {
        match &self.budget {
            Some(budget) if self.budget_sets_price() => Some(budget.position()),
            _ => self.aim.as_ref().map(SlowdownController::position),
        }
    }

    /// Whether a budget with a window sets the price.
    fn budget_sets_price(&self) -> bool {
        self.budget.as_ref().is_some_and(|budget| budget.controller().budget().has_window())
    }

    /// When the next step of the energy aim is due. While no job is present, or while a budget sets the
    /// price, no step is due.
    pub(super) fn aim_step_at(&self) -> Option<Timestamp> {
        let aim = self.aim.as_ref().filter(|_| !self.budget_sets_price())?;
        let has_jobs = self.state.queue_len() > 0 || self.state.running().next().is_some();
        has_jobs.then(|| aim.next_step())
    }

    /// Takes a step of the energy aim if one is due.
    pub(super) fn control_aim(&mut self, now: Timestamp) -> Controlled {
        if self.aim_step_at().is_none_or(|at| now < at) {
            return Controlled::default();
        }
        let (Some(aim), Some(range)) = (&mut self.aim, self.can.prices) else {
            return Controlled::default();
        };
        let twin = self.followed.as_ref().map(|followed| &followed.twin);
        let price = aim.step(&self.state, twin, range).max(self.config.price);
        let changed = price.total_cmp(&self.limits.price).is_ne();
        self.limits.price = price;
        Controlled { limits_changed: changed, plan_again: changed }
    }
}
