//! The service's configuration, as in `deploy/power-agent.toml`.
//!
//! Durations are in system time (`wattle_common::time::TimeScale`).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use wattle_common::bounds::LEASE_MAX_DEFAULT;
use wattle_common::id::SwitchId;
use wattle_common::{ClusterId, NodeId, Power};

/// The settings of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The cap of a GPU without a lease; absent: the GPU's default.
    pub safe_cap: Option<Power>,
    /// Largest sum of the caps of all GPUs; absent: no limit.
    pub node_limit: Option<Power>,
    /// Largest single change of a cap; zero: no ramp.
    pub ramp_step: Power,
    /// Time between two changes.
    pub ramp_every: Duration,
    /// Time between two readings and reports.
    pub heartbeat: Duration,
    /// Longest lease that is accepted, whatever the desired state declares.
    pub lease_max: Duration,
    /// Whether a sleep command is configured.
    pub can_sleep: bool,
    /// The node's leaf switch.
    pub switch: Option<SwitchId>,
    /// Number of GPUs on each board of the node.
    pub gpus_per_board: Option<u32>,
    /// Whether caps and clocks are only computed and reported, never set.
    pub advise_only: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            safe_cap: None,
            node_limit: None,
            ramp_step: Power::ZERO,
            ramp_every: Duration::from_millis(DEFAULT_RAMP_MS),
            heartbeat: Duration::from_millis(DEFAULT_HEARTBEAT_MS),
            lease_max: LEASE_MAX_DEFAULT,
            can_sleep: false,
            switch: None,
            gpus_per_board: None,
            advise_only: false,
        }
    }
}

/// How caps and clocks are set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Control {
    /// Through NVML, with the rights of this service.
    #[default]
    Nvml,
    /// Through zeusd, the daemon of Zeus.
    Zeusd,
    /// Not at all: they are computed and reported.
    Advise,
}

/// A third of the placer's default `node_stale_after_ms`.
const DEFAULT_HEARTBEAT_MS: u64 = 10_000;
/// A GPU reaches a new cap within tens of milliseconds.
const DEFAULT_RAMP_MS: u64 = 250;

const fn heartbeat_ms() -> u64 {
    DEFAULT_HEARTBEAT_MS
}

const fn lease_max_ms() -> u64 {
    LEASE_MAX_DEFAULT.as_millis() as u64
}

const fn ramp_ms() -> u64 {
    DEFAULT_RAMP_MS
}

/// The configuration file. `B` is the table `[nats]`, whose type only the shell knows.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config<B> {
    /// The cluster.
    pub cluster: ClusterId,
    /// This node.
    pub node: NodeId,
    /// The NVML library; absent: the system's.
    #[serde(default)]
    pub nvml_library: Option<PathBuf>,
    /// How caps and clocks are set.
    #[serde(default)]
    pub control: Control,
    /// The socket of zeusd; absent: zeusd's default.
    #[serde(default)]
    pub zeusd_socket: Option<PathBuf>,
    /// The TCP address of zeusd on this node, in place of its socket.
    #[serde(default)]
    pub zeusd_address: Option<SocketAddr>,
    /// File with the token for zeusd; absent: it requires none.
    #[serde(default)]
    pub zeusd_token_file: Option<PathBuf>,
    /// The cap of a GPU without a lease, in watts; absent: the GPU's default.
    #[serde(default)]
    pub safe_cap_w: Option<u64>,
    /// Largest sum of the caps of this node's GPUs, in watts; absent: no limit.
    #[serde(default, deserialize_with = "wattle_common::config::watts")]
    pub node_limit_w: Option<u64>,
    /// Largest single change of a cap, in watts; 0: no ramp.
    #[serde(default)]
    pub ramp_w_step: u64,
    /// Milliseconds between two changes.
    #[serde(default = "ramp_ms", deserialize_with = "wattle_common::config::non_zero")]
    pub ramp_ms: u64,
    /// Milliseconds between two readings and reports.
    #[serde(default = "heartbeat_ms", deserialize_with = "wattle_common::config::non_zero")]
    pub heartbeat_ms: u64,
    /// Longest lease of caps and clocks, whatever the desired state declares, in milliseconds.
    #[serde(default = "lease_max_ms", deserialize_with = "wattle_common::config::non_zero")]
    pub lease_max_ms: u64,
    /// Folder of the caps that outlive the service; absent: not stored, and GPUs get their safe cap at
    /// the stop.
    #[serde(default)]
    pub state_dir: Option<PathBuf>,
    /// The program and arguments that put this node to sleep; `{node}` stands for its id. Absent:
    /// the node never sleeps. The command must be idempotent.
    #[serde(default)]
    pub sleep_command: Option<Vec<String>>,
    /// The node's leaf switch; absent: unknown.
    #[serde(default)]
    pub switch: Option<SwitchId>,
    /// Number of GPUs on each board of this node, a power of two; absent: unknown.
    #[serde(default, deserialize_with = "wattle_common::config::board")]
    pub gpus_per_board: Option<u32>,
    /// The metrics endpoint.
    #[serde(default)]
    pub metrics: wattle_common::config::MetricsConfig,
    /// The bus.
    pub nats: B,
}

impl<B> Config<B> {
    /// Compares values with each other.
    ///
    /// # Errors
    /// The keys and the remedy.
    pub fn check(&self) -> Result<(), String> {
        if self.zeusd_address.is_some() && self.zeusd_socket.is_some() {
            return Err("zeusd_socket and zeusd_address: keep one of the two".to_owned());
        }
        match self.zeusd_address {
            Some(address) if !address.ip().is_loopback() => Err(format!(
                "zeusd_address = \"{address}\" is not on loopback: zeusd sets the GPUs of its own node; use \
                 127.0.0.1, or zeusd_socket"
            )),
            _ => Ok(()),
        }
    }

    /// The settings of the machine.
    #[must_use]
    pub fn settings(&self) -> Settings {
        // Saturates: an absurd number of watts must not overflow.
        let watts = |w: u64| Power::from_mw(w.saturating_mul(1_000));
        Settings {
            safe_cap: self.safe_cap_w.map(watts),
            node_limit: self.node_limit_w.map(watts),
            ramp_step: watts(self.ramp_w_step),
            ramp_every: Duration::from_millis(self.ramp_ms),
            heartbeat: Duration::from_millis(self.heartbeat_ms),
            lease_max: Duration::from_millis(self.lease_max_ms),
            can_sleep: self.sleep_command.is_some(),
            switch: self.switch.clone(),
            gpus_per_board: self.gpus_per_board,
            advise_only: self.control == Control::Advise,
        }
    }
}
