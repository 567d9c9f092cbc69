//! The placer's configuration: `deploy/placer.toml` with comments.
//!
//! Durations are of the system's clock, which a simulation may scale. Only the bus uses wall time.

pub mod feeders;
pub mod node_sleep;

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_spanned::Spanned;
use wattle_common::aim::{Aim, AimBound, Baseline};
use wattle_common::bounds::LEASE_DEFAULT;
use wattle_common::config::{Problem, non_zero, service_lease, service_lease_default};
use wattle_common::feeders::FeederTree;
use wattle_common::job::{GpuSetting, Sharing};
use wattle_common::{ClusterId, Frequency, Power};
use wattle_grid::GridConfig;

use crate::accounts::rules::AccountRules;
use crate::allocation::restart_rules::RestartRules;
use crate::config::feeders::{FeederConfig, NodeConfig};
use crate::config::node_sleep::SleepConfig;
use crate::controller::ControllerConfig;
use crate::plan::input::TENANTS_MAX_DEFAULT;
use crate::policies::UnknownPolicy;

/// The placer's configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The cluster's id.
    pub cluster: ClusterId,
    /// Where spans of jobs are sent.
    #[serde(default)]
    pub traces: wattle_common::config::TracesConfig,
    /// The metrics endpoint.
    #[serde(default)]
    pub metrics: wattle_common::config::MetricsConfig,
    /// The connection to the bus.
    #[cfg(feature = "service")]
    pub nats: wattle_runtime::bus::BusConfig,
    /// The policy's name.
    #[serde(default = "default_policy")]
    pub policy: String,
    /// What the scheduler optimises. A budget that is set at run time takes precedence.
    #[serde(default)]
    pub aim: Aim,
    /// The site's former scheduler, which runs in a model beside the cluster ([`crate::twin`]). The energy aim refers
    /// to its completion times.
    #[serde(default)]
    pub no_later_than: Baseline,
    /// Bound of the energy aim: how much later jobs may complete on average than under that scheduler, a share.
    #[serde(default)]
    pub by: Option<f64>,
    /// Bound of the energy aim on the jobs of each project (or user, for jobs without a project): how much later they may
    /// complete on average than under that scheduler, a share. Absent: projects are not bounded.
    #[serde(default)]
    pub no_project_later_than: Option<f64>,
    /// Bound of the energy aim relative to the time aim, in place of `by`, a share.
    #[serde(default)]
    pub max_slowdown: Option<f64>,
    /// Limit of jobs on one GPU, for every policy.
    #[serde(default = "default_tenants_max")]
    pub tenants_max: u32,
    /// Which jobs may share a GPU.
    #[serde(default = "default_share")]
    pub share: Sharing,
    /// Number of nodes of the cluster. No job is rejected as too large before this many nodes have
    /// reported. Absent: before `node_stale_after_ms` has passed since the start.
    #[serde(default)]
    pub nodes_expected: Option<u32>,
    /// Lease of an order; renewed after a third of it.
    #[serde(default = "default_lease_ms", deserialize_with = "non_zero")]
    pub lease_ms: u64,
    /// Length of the leading placer's lease, wall time; renewed after a third of it.
    #[serde(default = "service_lease_default", deserialize_with = "service_lease")]
    pub service_lease_wall_ms: u64,
    /// Longest time between two checks of all jobs and nodes.
    #[serde(default = "default_tick_ms", deserialize_with = "non_zero")]
    pub tick_ms: u64,
    /// Delay of a planning round after an event, so that one round covers many events.
    #[serde(default = "default_round_delay_ms")]
    pub round_delay_ms: u64,
    /// Age of a node's last heartbeat above which it gets no new jobs.
    #[serde(default = "default_node_stale_after_ms", deserialize_with = "non_zero")]
    pub node_stale_after_ms: u64,
    /// Age of a node's last heartbeat above which its jobs are queued again.
    #[serde(default = "default_node_lost_after_ms", deserialize_with = "non_zero")]
    pub node_lost_after_ms: u64,
    /// Longest time between two writes of a running job's progress.
    #[serde(default = "default_progress_store_ms", deserialize_with = "non_zero")]
    pub progress_store_ms: u64,
    /// Number of starts after which a job that has not completed fails.
    #[serde(default = "default_attempts_max")]
    pub attempts_max: u32,
    /// Limit of queued and running jobs; further submissions are refused.
    #[serde(default = "default_jobs_max")]
    pub jobs_max: usize,
    /// Number of ended jobs kept in the bucket `jobs`.
    #[serde(default = "default_ended_kept")]
    pub ended_kept: usize,
    /// A power cap for every GPU of the site, watts.
    #[serde(default)]
    pub gpu_cap_w: Option<u64>,
    /// A limit of the SM clock of every GPU of the site, MHz.
    #[serde(default)]
    pub gpu_clock_mhz_max: Option<u32>,
    /// Quotas and fair shares of users and projects.
    #[serde(default)]
    pub accounts: AccountRules,
    /// What a restart of a running job costs, and how many it may have.
    #[serde(default)]
    pub restarts: RestartRules,
    /// Power feeders.
    #[serde(default)]
    pub feeder: Vec<Spanned<FeederConfig>>,
    /// The nodes on them.
    #[serde(default)]
    pub node: Vec<Spanned<NodeConfig>>,
    /// Of earlier versions; feeders replace it.
    #[serde(default)]
    pub power_groups: Option<Spanned<IgnoredAny>>,
    /// Sleep of idle nodes.
    #[serde(default)]
    pub sleep: SleepConfig,
    /// Providers of carbon intensity and electricity price.
    #[serde(default)]
    pub grid: GridConfig,
}

fn default_policy() -> String {
    "wattle".to_owned()
}
const fn default_tenants_max() -> u32 {
    TENANTS_MAX_DEFAULT
}
/// Without a declaration of its owner a job is exclusive.
const fn default_share() -> Sharing {
    Sharing::Consented
}
const fn default_lease_ms() -> u64 {
    LEASE_DEFAULT.as_millis() as u64
}
const fn default_tick_ms() -> u64 {
    5_000
}
const fn default_round_delay_ms() -> u64 {
    100
}
/// Three of the power agent's default heartbeats, six of the launcher's.
const fn default_node_stale_after_ms() -> u64 {
    30_000
}
/// A reboot takes longer than this, a restarted service or switch does not.
const fn default_node_lost_after_ms() -> u64 {
    120_000
}
const fn default_progress_store_ms() -> u64 {
    30_000
}
const fn default_attempts_max() -> u32 {
    100
}
const fn default_jobs_max() -> usize {
    10_000
}
const fn default_ended_kept() -> usize {
    10_000
}

/// What replaces the groups of nodes of earlier versions.
const GROUPS_REPLACED: &str = "[[power_groups]] is replaced by feeders: for each group write [[feeder]] with its name \
    and limit_w, and [[node]] with name, the list of its nodes, and feeds, the list with its feeder; a group within \
    another one has it as parent";

impl Config {
    /// Checks the values, and values that depend on each other.
    ///
    /// # Errors
    /// Names the keys and the remedy.
    pub fn check(&self) -> Result<(), Problem> {
        self.check_values()?;
        if let Some(groups) = &self.power_groups {
            return Err(Problem {
                at: Some(groups.span().start),
                text: GROUPS_REPLACED.to_owned(),
            });
        }
        self.feeders().map(drop)
    }
    /// The feeders and the nodes on them.
    ///
    /// # Errors
    /// The first place that is invalid, with the remedy.
    pub fn feeders(&self) -> Result<FeederTree, Problem> {
        feeders::tree(&self.feeder, &self.node)
    }
    fn check_values(&self) -> Result<(), String> {
        crate::policy(&self.policy).map_err(|error| match error {
            UnknownPolicy::Name { .. } => format!(
                "policy: {error}; the policies of the laboratory (`wattle-lab simulate`) place no live jobs"
            ),
            error => format!("policy: {error}"),
        })?;
        if self.node_lost_after_ms < self.node_stale_after_ms {
            return Err(format!(
                "node_lost_after_ms = {} is below node_stale_after_ms = {}: a node would be lost \
                 before it is stale; raise node_lost_after_ms",
                self.node_lost_after_ms, self.node_stale_after_ms
            ));
        }
        for (key, value) in [
            ("tenants_max", u64::from(self.tenants_max)),
            ("attempts_max", u64::from(self.attempts_max)),
            ("jobs_max", self.jobs_max as u64),
            ("gpu_cap_w", self.gpu_cap_w.unwrap_or(1)),
            ("gpu_clock_mhz_max", self.gpu_clock_mhz_max.map_or(1, u64::from)),
        ] {
            if value == 0 {
                return Err(format!("{key} must be greater than 0"));
            }
        }
        for (key, share) in [
            ("by", self.by),
            ("no_project_later_than", self.no_project_later_than),
            ("max_slowdown", self.max_slowdown),
        ] {
            if let Some(share) = share.filter(|share| !(0.0..=1.0).contains(share)) {
                return Err(format!(
                    "{key} = {share}: give a share from 0 to 1, as in 0.05 for 5 %"
                ));
            }
        }
        let former = [("by", self.by), ("no_project_later_than", self.no_project_later_than)];
        for (key, _) in former.iter().filter(|(_, share)| share.is_some()) {
            if self.max_slowdown.is_some() {
                return Err(format!(
                    "{key} and max_slowdown are two bounds of one aim: remove one of them"
                ));
            }
        }
        self.accounts.check()?;
        self.restarts.check().map_err(|error| format!("restarts: {error}"))?;
        self.sleep.check(self.node_stale_after())?;
        self.grid.check()
    }
    pub(crate) fn controller(&self) -> ControllerConfig {
        ControllerConfig {
            tenants_max: self.tenants_max,
            share: self.share,
            accounts: Arc::new(self.accounts.clone()),
            restarts: self.restarts,
            feeders: Arc::new(self.feeders().expect("a configuration is checked before use")),
            jobs_max: self.jobs_max,
            price: 0.0,
            aim: (self.aim == Aim::Energy).then(|| self.aim_bound()),
            nodes_sleep: self.sleep.is_on(),
            idle_before_sleep: self.sleep.idle_before_sleep(),
            site_setting: self.site_setting(),
        }
    }
    /// The bound of the energy aim.
    fn aim_bound(&self) -> AimBound {
        match self.max_slowdown {
            Some(share) => AimBound::mean(None, share),
            None => AimBound {
                baseline: Some(self.no_later_than),
                share: self.by.unwrap_or(0.0),
                project: self.no_project_later_than,
            },
        }
    }
    /// The cap and clock of every GPU of the site.
    pub(crate) fn site_setting(&self) -> GpuSetting {
        GpuSetting { cap_mw: self.gpu_cap(), clock_mhz_max: self.gpu_clock() }
    }
    pub(crate) const fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }
    pub(crate) const fn tick(&self) -> Duration {
        Duration::from_millis(self.tick_ms)
    }
    pub(crate) const fn round_delay(&self) -> Duration {
        Duration::from_millis(self.round_delay_ms)
    }
    pub(crate) const fn node_stale_after(&self) -> Duration {
        Duration::from_millis(self.node_stale_after_ms)
    }
    pub(crate) const fn node_lost_after(&self) -> Duration {
        Duration::from_millis(self.node_lost_after_ms)
    }
    /// Time without activity after which the placer itself was away: half of the time after which a node
    /// is stale, and more than a late tick.
    pub(crate) fn absence_min(&self) -> Duration {
        (self.node_stale_after() / 2).max(self.tick() * 3)
    }
    /// Difference of a node's clock that is alarmed: half of a lease's renewal interval.
    pub(crate) fn clock_difference_max(&self) -> Duration {
        self.lease() / 6
    }
    pub(crate) const fn progress_store(&self) -> Duration {
        Duration::from_millis(self.progress_store_ms)
    }
    pub(crate) fn gpu_cap(&self) -> Option<Power> {
        self.gpu_cap_w.map(Power::from_w)
    }
    pub(crate) fn gpu_clock(&self) -> Option<Frequency> {
        self.gpu_clock_mhz_max.map(Frequency::from_mhz)
    }
}
