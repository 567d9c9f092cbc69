//! The input of a planning round: cluster state, planning limits and policy cache.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use wattle_common::job::Sharing;
use wattle_common::{FeederId, LimitOverTime, NodeId, Power, Timestamp};

use crate::accounts::rules::AccountRules;
use crate::allocation::restart_rules::RestartRules;
use crate::power::bounds::PowerBounds;
use crate::power::carried::Carried;
use crate::power::correction::PowerFactors;
use crate::power::promises::Promises;
use crate::state::cluster::ClusterState;
use crate::state::gpu_set::JobKey;
use crate::state::node::Node;

/// Default limit of jobs on one GPU: our own choice. The published tables of EaCO
/// (arXiv 2412.08294) show no further saving beyond three, and each co-tenant adds risk.
pub const TENANTS_MAX_DEFAULT: u32 = 2;

/// How long a node must have been idle before it sleeps, by default.
pub const IDLE_BEFORE_SLEEP: Duration = Duration::from_secs(300);

/// The limits and prices of one planning round, set by the controller.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanningLimits {
    /// Limit of jobs on one GPU.
    pub tenants_max: u32,
    /// The site's rule on sharing GPUs. [`ClusterState::job_arrived`] applies it to every job, and the
    /// plan checker verifies it.
    pub share: Sharing,
    /// The price of a joule, in the policy's own unit. 0: energy is free. The higher, the more
    /// completion time a policy gives up to save energy.
    pub price: f64,
    /// The grid's carbon intensity now over its expected mean in the budget's window; 1 where the
    /// intensity is unknown.
    pub carbon_ratio: f64,
    /// Whether the price sets each job's cap and clock where the policy sets none.
    pub price_sets_clocks: bool,
    /// Power limit of all nodes together, at any instant.
    pub power_max: Option<Power>,
    /// The power limit of all nodes together over time, where it changes: of the budget and of grid events.
    pub power_over_time: Option<Arc<LimitOverTime>>,
    /// The limits of feeders over time by grid events.
    pub feeders_over_time: Arc<BTreeMap<FeederId, LimitOverTime>>,
    /// What each feeder carries with every feeder in operation.
    pub carried: Arc<Carried>,
    /// The promises of jobs during grid events.
    pub promises: Arc<Promises>,
    /// Power limits of feeders, whole and with each single feeder lost, and of single nodes.
    pub power_bounds: Arc<PowerBounds>,
    /// Whether each GPU's cap enforces the power reserved for it. Then no GPU reserves less than
    /// the lowest cap it accepts.
    pub caps_enforced: bool,
    /// The corrections of the predicted power of running jobs by measurements, below a power limit.
    pub power_factors: Arc<PowerFactors>,
    /// Power, with every job at its lowest, above which no new job starts.
    pub admission_limit: Option<Power>,
    /// Power, with every job at its lowest, above which running jobs are preempted.
    pub preemption_limit: Option<Power>,
    /// The grid's carbon intensity and its forecast.
    pub grid: Option<Arc<GridForecast>>,
    /// Quotas and fair shares of users and projects.
    pub accounts: Arc<AccountRules>,
    /// The site's rules on restarts.
    pub restarts: RestartRules,
    /// Whether idle nodes may sleep.
    pub nodes_sleep: bool,
    /// How long a node must have been idle before it sleeps.
    pub idle_before_sleep: Duration,
}

impl Default for PlanningLimits {
    fn default() -> Self {
        Self {
            tenants_max: TENANTS_MAX_DEFAULT,
            share: Sharing::Any,
            price: 0.0,
            carbon_ratio: 1.0,
            price_sets_clocks: false,
            power_max: None,
            power_over_time: None,
            feeders_over_time: Arc::default(),
            carried: Arc::default(),
            promises: Arc::default(),
            power_bounds: Arc::default(),
            caps_enforced: false,
            power_factors: Arc::default(),
            admission_limit: None,
            preemption_limit: None,
            grid: None,
            accounts: Arc::default(),
            restarts: RestartRules::default(),
            nodes_sleep: false,
            idle_before_sleep: IDLE_BEFORE_SLEEP,
        }
    }
}

impl PlanningLimits {
    /// Whether the power of any node is limited at every instant.
    #[must_use]
    pub fn is_power_limited(&self) -> bool {
        self.power_max.is_some() || !self.power_bounds.is_empty()
    }

    /// Whether the power of this node is limited at every instant.
    #[must_use]
    pub fn limits_power_of(&self, node: &NodeId) -> bool {
        self.power_max.is_some() || self.power_bounds.cover(node)
    }

    /// The limits over time: of the site first, then of feeders.
    pub fn over_time(&self) -> impl Iterator<Item = (Option<&FeederId>, &LimitOverTime)> {
        let site = self.power_over_time.as_deref().map(|limit| (None, limit));
        let feeders = self.feeders_over_time.iter().map(|(feeder, limit)| (Some(feeder), limit));
        site.into_iter().chain(feeders)
    }

    /// How long this node must have been idle before it sleeps: at least as long as its waking takes.
    #[must_use]
    pub fn idle_before_sleep_of(&self, node: &Node) -> Duration {
        let wakes_in = node.facts.watts.map(|watts| watts.wakes_in);
        self.idle_before_sleep.max(wakes_in.unwrap_or_default())
    }

    /// The price of a joule at the grid's present intensity: the price times the carbon ratio.
    #[must_use]
    pub fn price_now(&self) -> f64 {
        self.price * self.carbon_ratio
    }
}

/// The grid's carbon intensity at one instant and its forecast.
#[derive(Clone, Debug, PartialEq)]
pub struct GridForecast {
    /// The intensity now, g/kWh.
    pub now: f64,
    /// When the forecast expires.
    pub until: Timestamp,
    /// The forecast for the next day, as steps: start time and intensity, g/kWh.
    pub expected: Vec<(Timestamp, f64)>,
}

/// A value that a policy keeps between its rounds to save work, opaque to everything else.
///
/// A policy returns it with its plan and gets it back with the next round's input. It is never
/// stored: a restart loses it, and the policy then plans from scratch.
#[derive(Clone)]
pub struct PolicyCache {
    value: Arc<dyn Any + Send + Sync>,
    validity: Validity,
}

/// In which rounds the allocation of a cache may be repeated.
#[derive(Clone, Copy)]
enum Validity {
    Any,
    At(Timestamp),
    None,
}

impl PolicyCache {
    /// Wraps a policy's value.
    #[must_use]
    pub fn new<T: Any + Send + Sync>(value: T) -> Self {
        Self { value: Arc::new(value), validity: Validity::Any }
    }

    /// The same value for rounds at this instant alone. A later stage has removed some of the policy's decisions: later
    /// rounds plan from scratch, and those of this instant repeat the same plan, so that once it is applied nothing is
    /// left to do.
    pub(crate) fn only_at(self, now: Timestamp) -> Self {
        Self { validity: Validity::At(now), ..self }
    }

    /// The same value, whose allocation no round may repeat.
    pub(crate) fn voided(&self) -> Self {
        Self { validity: Validity::None, ..self.clone() }
    }

    /// Whether a round at this instant may repeat its allocation. Where it may not, the value still helps with
    /// what does not depend on that, such as the prices that a search begins at.
    #[must_use]
    pub fn is_valid_at(&self, now: Timestamp) -> bool {
        match self.validity {
            Validity::Any => true,
            Validity::At(at) => at == now,
            Validity::None => false,
        }
    }

    /// The value, if it is of this type.
    #[must_use]
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.value.downcast_ref()
    }
}

impl fmt::Debug for PolicyCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PolicyCache")
    }
}

/// Equal to any other: a cache changes how fast a policy plans, not what a plan decides.
impl PartialEq for PolicyCache {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// The input of a planning round. Policies only read it.
#[derive(Clone, Copy, Debug)]
pub struct PlanningInput<'a> {
    /// The cluster.
    pub state: &'a ClusterState,
    /// The limits in force.
    pub limits: &'a PlanningLimits,
    /// The largest sizes of jobs whose account is limited.
    pub sizes_max: Option<&'a BTreeMap<JobKey, u32>>,
    /// The cache returned with the last applied plan, if any.
    pub cache: Option<&'a PolicyCache>,
}

impl<'a> PlanningInput<'a> {
    /// An input without a cache.
    #[must_use]
    pub const fn new(state: &'a ClusterState, limits: &'a PlanningLimits) -> Self {
        Self { state, limits, sizes_max: None, cache: None }
    }

    /// The instant to plan for.
    #[must_use]
    pub const fn now(&self) -> Timestamp {
        self.state.now()
    }

    /// The same limits and cache over another state.
    #[must_use]
    pub const fn with_state<'b>(self, state: &'b ClusterState) -> PlanningInput<'b>
    where
        'a: 'b,
    {
        PlanningInput { state, ..self }
    }
}
