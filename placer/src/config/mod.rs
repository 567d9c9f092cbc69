//! What an operator sets for a placer: one commented TOML, `deploy/placer.toml`.
//!
//! Durations count the system's time, as everything but the bus does.

pub mod node_sleep;

use std::time::Duration;

use serde::Deserialize;
use wattle_common::config::non_zero;
use wattle_common::job::GpuSetting;
use wattle_common::{ClusterId, Frequency, Power};

use crate::config::node_sleep::SleepConfig;
use crate::controller::ControllerConfig;
use crate::plan::input::TENANTS_MAX_DEFAULT;
use crate::probing::ProbeConfig;

/// What an operator sets for a placer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The cluster it places for.
    pub cluster: ClusterId,
    /// Where the bus is.
    #[cfg(feature = "service")]
    pub nats: wattle_runtime::bus::BusConfig,
    /// The policy's name.
    #[serde(default = "default_policy")]
    pub policy: String,
    /// Most jobs on one GPU, whatever a policy would like.
    #[serde(default = "default_tenants_max")]
    pub tenants_max: u32,
    /// How many nodes the cluster has. Until as many have been heard of, no job is called too
    /// large; without it, that is so for one patience after the start.
    #[serde(default)]
    pub nodes_expected: Option<u32>,
    /// For how long an order may be obeyed; renewed at a third of it.
    #[serde(default = "default_lease_ms", deserialize_with = "non_zero")]
    pub lease_ms: u64,
    /// How often to look at everything when nothing happens.
    #[serde(default = "default_tick_ms", deserialize_with = "non_zero")]
    pub tick_ms: u64,
    /// How long to wait after an event before planning, so that many events make one round.
    #[serde(default = "default_round_delay_ms")]
    pub round_delay_ms: u64,
    /// How old a node's last heartbeat may be before it is given no new job.
    #[serde(default = "default_node_stale_after_ms", deserialize_with = "non_zero")]
    pub node_stale_after_ms: u64,
    /// How old it may be before the node's jobs are placed anew.
    #[serde(default = "default_node_lost_after_ms", deserialize_with = "non_zero")]
    pub node_lost_after_ms: u64,
    /// How often a job's progress is stored between its epochs.
    #[serde(default = "default_progress_store_ms", deserialize_with = "non_zero")]
    pub progress_store_ms: u64,
    /// How often a job is started before it counts as failed.
    #[serde(default = "default_attempts_max")]
    pub attempts_max: u32,
    /// How many jobs may wait or run; more are refused.
    #[serde(default = "default_jobs_max")]
    pub jobs_max: usize,
    /// How many ended jobs are kept in the bucket `jobs`.
    #[serde(default = "default_ended_kept")]
    pub ended_kept: usize,
    /// A power cap for every GPU of the site, watts.
    #[serde(default)]
    pub gpu_cap_w: Option<u64>,
    /// A highest SM clock for every GPU of the site, MHz.
    #[serde(default)]
    pub gpu_clock_mhz_max: Option<u32>,
    /// Whether running jobs are looked at under lower caps for a while, and what that may cost.
    #[serde(default)]
    pub probe: ProbeConfig,
    /// Whether and how nodes sleep when nobody needs them.
    #[serde(default)]
    pub sleep: SleepConfig,
}

fn default_policy() -> String {
    "eaco".to_owned()
}
const fn default_tenants_max() -> u32 {
    TENANTS_MAX_DEFAULT
}
const fn default_lease_ms() -> u64 {
    60_000
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

impl Config {
    /// What cannot hold together although each value may stand alone.
    ///
    /// # Errors
    /// Names the keys and the remedy.
    pub fn check(&self) -> Result<(), String> {
        crate::policy(&self.policy).map_err(|error| format!("policy: {error}"))?;
        if self.node_lost_after_ms < self.node_stale_after_ms {
            return Err(format!(
                "node_lost_after_ms = {} is below node_stale_after_ms = {}: a node would be lost \
                 before it is late; raise the first",
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
        self.sleep.check(self.node_stale_after())?;
        self.probe.check()
    }
    pub(crate) fn controller(&self) -> ControllerConfig {
        ControllerConfig {
            tenants_max: self.tenants_max,
            jobs_max: self.jobs_max,
            price: 0.0,
            nodes_sleep: self.sleep.is_on(),
            idle_before_sleep: self.sleep.idle_before_sleep(),
            site_setting: GpuSetting { cap_mw: self.gpu_cap(), clock_mhz_max: self.gpu_clock() },
            probe: self.probe,
        }
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
