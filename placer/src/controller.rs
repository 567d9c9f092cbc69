//! The placer's decisions, driven by the live service and by the simulator alike.
//!
//! A [`Controller`] holds the cluster's state, the limits in force and the policy. Its caller feeds
//! it events, requests a plan, carries the plan out and reports what came of it. The live placer adds
//! records, generations and leases; the simulator adds a clock, a world and measurements. Neither
//! decides anything itself.
//!
//! * [`admission`]: which jobs are accepted;
//! * [`expected`]: when jobs are expected to start and to end;
//! * [`lifecycle`]: restored, stopped, completed and ended jobs;
//! * [`aim`]: the price of the energy aim;
//! * [`budget`]: from metered energy to a price and power limits;
//! * [`measured_power`]: from measured power to the correction of predicted power;
//! * [`planning`]: plan, check, apply; which cap and clock each GPU gets;
//! * [`twin`]: the schedule of the site's former scheduler on the same jobs;
//! * [`sleep`]: which decisions about nodes can be carried out now.
//!
//! The controller does no I/O and reads no clock: the same calls give the same answers.

pub mod admission;
pub mod aim;
pub mod budget;
pub mod expected;
pub mod lifecycle;
pub mod measured_power;
pub mod planning;
pub mod sleep;
pub mod twin;

use std::sync::Arc;
use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::aim::AimBound;
use wattle_common::event::EventTargets;
use wattle_common::feeders::FeederTree;
use wattle_common::job::{GpuSetting, Sharing};

use crate::accounts::rules::AccountRules;
use crate::allocation::restart_rules::RestartRules;
use crate::expected::Expected;
use crate::plan::input::{
    IDLE_BEFORE_SLEEP, PlanningInput, PlanningLimits, PolicyCache, TENANTS_MAX_DEFAULT,
};
use crate::policies::{Capabilities, Policy, Reads};
use crate::power::bounds::PowerBounds;
use crate::power::carried::Carried;
use crate::power::limit_cost::LimitCost;
use crate::power::slowdown::SlowdownController;
use crate::state::cluster::ClusterState;

use budget::ActiveBudget;
use measured_power::MeasuredPower;

/// Configuration of a controller.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    /// Most jobs on one GPU.
    pub tenants_max: u32,
    /// The site's rule on sharing GPUs.
    pub share: Sharing,
    /// Quotas and fair shares of users and projects.
    pub accounts: Arc<AccountRules>,
    /// The site's rules on restarts.
    pub restarts: RestartRules,
    /// The feeders and the nodes on them.
    pub feeders: Arc<FeederTree>,
    /// Most queued and running jobs.
    pub jobs_max: usize,
    /// The least price of a joule, in the policy's unit. A budget may raise it.
    pub price: f64,
    /// The bound of the energy aim. `None`: the price is [`Self::price`].
    pub aim: Option<AimBound>,
    /// Whether idle nodes may sleep.
    pub nodes_sleep: bool,
    /// How long a node must have been idle before it sleeps.
    pub idle_before_sleep: Duration,
    /// The site's cap and clock, upper limits for every GPU.
    pub site_setting: GpuSetting,
}

impl Default for ControllerConfig {
    fn default() -> Self {
        Self {
            tenants_max: TENANTS_MAX_DEFAULT,
            share: Sharing::Any,
            accounts: Arc::default(),
            restarts: RestartRules::default(),
            feeders: Arc::default(),
            jobs_max: usize::MAX,
            price: 0.0,
            aim: None,
            nodes_sleep: false,
            idle_before_sleep: IDLE_BEFORE_SLEEP,
            site_setting: GpuSetting::DEFAULT,
        }
    }
}

/// An owned or borrowed policy.
pub trait PolicyHandle {
    /// The policy.
    fn policy(&self) -> &dyn Policy;
}

impl PolicyHandle for Box<dyn Policy> {
    fn policy(&self) -> &dyn Policy {
        self.as_ref()
    }
}

impl PolicyHandle for &dyn Policy {
    fn policy(&self) -> &dyn Policy {
        *self
    }
}

/// Decides for one cluster.
pub struct Controller<P> {
    config: ControllerConfig,
    policy: P,
    can: Capabilities,
    state: ClusterState,
    pub(crate) limits: PlanningLimits,
    cache: Option<PolicyCache>,
    budget: Option<ActiveBudget>,
    /// The targets of grid events.
    event_targets: EventTargets,
    /// When the power limit over time next changes for plans.
    power_step_at: Option<Timestamp>,
    aim: Option<SlowdownController>,
    limit_cost: LimitCost,
    measured: MeasuredPower,
    followed: Option<twin::Followed>,
    expected: Option<Expected>,
}

impl<P: PolicyHandle> Controller<P> {
    /// A controller of an empty cluster.
    #[must_use]
    pub fn new(config: ControllerConfig, policy: P) -> Self {
        let limits = PlanningLimits {
            tenants_max: config.tenants_max,
            share: config.share,
            price: config.price,
            nodes_sleep: config.nodes_sleep,
            idle_before_sleep: config.idle_before_sleep,
            accounts: Arc::clone(&config.accounts),
            restarts: config.restarts,
            power_bounds: Arc::new(PowerBounds::of_feeders(&config.feeders)),
            carried: Arc::new(Carried::by(&config.feeders)),
            caps_enforced: !config.feeders.is_empty(),
            ..PlanningLimits::default()
        };
        let mut state = ClusterState::new();
        state.sharing_known(config.share);
        Self {
            can: policy.policy().capabilities(),
            config,
            policy,
            state,
            limits,
            cache: None,
            budget: None,
            event_targets: EventTargets::default(),
            power_step_at: None,
            aim: None,
            limit_cost: LimitCost::default(),
            measured: MeasuredPower::default(),
            followed: None,
            expected: None,
        }
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &dyn Policy {
        self.policy.policy()
    }

    /// The capabilities of the policy.
    #[must_use]
    pub const fn capabilities(&self) -> &Capabilities {
        &self.can
    }

    /// The surfaces that plans depend on: those that the policy reads, and of all jobs under a budget, a power limit or
    /// a grid event.
    #[must_use]
    pub fn reads(&self) -> Reads {
        let limits = self.budget.as_ref().map(|budget| budget.controller().budget());
        let is_limited = limits.is_some_and(|budget| budget.has_window() || budget.limits_power());
        let is_limited =
            is_limited || !self.limits.power_bounds.is_empty() || !self.event_targets.is_empty();
        if is_limited { Reads::All } else { self.can.reads }
    }

    /// The cluster's state.
    #[must_use]
    pub const fn state(&self) -> &ClusterState {
        &self.state
    }

    /// The cluster's state, to record an event in it. Jobs are admitted, restored and ended through
    /// the controller's own methods.
    pub const fn events(&mut self) -> &mut ClusterState {
        &mut self.state
    }

    /// Lets policies plan with sleeping nodes: the site's scheduler has put one to sleep.
    pub const fn nodes_sleep_at_site(&mut self) {
        self.limits.nodes_sleep = true;
    }
    /// The limits in force.
    #[must_use]
    pub const fn limits(&self) -> &PlanningLimits {
        &self.limits
    }

    /// What the power limit costs.
    #[must_use]
    pub const fn limit_cost(&self) -> &LimitCost {
        &self.limit_cost
    }

    /// The input of a plan made now.
    #[must_use]
    pub const fn input(&self) -> PlanningInput<'_> {
        PlanningInput {
            state: &self.state,
            limits: &self.limits,
            sizes_max: None,
            cache: self.cache.as_ref(),
        }
    }

    /// Time has reached `now`.
    pub const fn advance_to(&mut self, now: Timestamp) {
        self.state.advance_to(now);
    }
}
