//! The service's configuration, as in `deploy/power-agent.toml`.
//!
//! Durations are of the system's time, which is the wall's but beside simulated hardware.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use wattle_common::id::SwitchId;
use wattle_common::{ClusterId, NodeId, Power};

/// What the machine needs to know beside the cards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The cap of a card on which no lease runs; absent: the card's default.
    pub safe_cap: Option<Power>,
    /// How far a cap moves at once; zero: all the way.
    pub ramp_step: Power,
    /// How long between two such moves.
    pub ramp_every: Duration,
    /// How often the cards are read and reported.
    pub heartbeat: Duration,
    /// Whether there is a command that puts the node to sleep.
    pub can_sleep: bool,
    /// The leaf switch the node is below.
    pub switch: Option<SwitchId>,
    /// GPUs on each of its boards.
    pub gpus_per_board: Option<u32>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            safe_cap: None,
            ramp_step: Power::ZERO,
            ramp_every: Duration::from_millis(DEFAULT_RAMP_MS),
            heartbeat: Duration::from_millis(DEFAULT_HEARTBEAT_MS),
            can_sleep: false,
            switch: None,
            gpus_per_board: None,
        }
    }
}

/// A third of the half minute for which the placer waits before it calls a node silent.
const DEFAULT_HEARTBEAT_MS: u64 = 10_000;
/// A card settles on a new cap within some tens of milliseconds; this leaves it time.
const DEFAULT_RAMP_MS: u64 = 250;

const fn heartbeat_ms() -> u64 {
    DEFAULT_HEARTBEAT_MS
}

const fn ramp_ms() -> u64 {
    DEFAULT_RAMP_MS
}

/// The configuration file. `B` is the table `[nats]`, which only the shell can read.
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
    /// The cap of a card on which no lease runs, in watts; absent: the card's default.
    #[serde(default)]
    pub safe_cap_w: Option<u64>,
    /// How far a cap moves at once, in watts; 0: all the way.
    #[serde(default)]
    pub ramp_w_step: u64,
    /// Milliseconds between two such moves.
    #[serde(default = "ramp_ms", deserialize_with = "wattle_common::config::non_zero")]
    pub ramp_ms: u64,
    /// Milliseconds between two readings and reports.
    #[serde(default = "heartbeat_ms", deserialize_with = "wattle_common::config::non_zero")]
    pub heartbeat_ms: u64,
    /// The program, with its arguments, that puts this node to sleep; `{node}` stands for its id.
    /// Absent: it is never put to sleep. It must do no harm when it is run twice.
    #[serde(default)]
    pub sleep_command: Option<Vec<String>>,
    /// The leaf switch this node is below; absent: not known.
    #[serde(default)]
    pub switch: Option<SwitchId>,
    /// GPUs on each board of this node, a power of two; absent: not known.
    #[serde(default, deserialize_with = "wattle_common::config::board")]
    pub gpus_per_board: Option<u32>,
    /// Where the bus is.
    pub nats: B,
}

impl<B> Config<B> {
    /// The part that the machine needs.
    #[must_use]
    pub fn settings(&self) -> Settings {
        Settings {
            // A watt figure no card has must not overflow on its way to milliwatts.
            safe_cap: self.safe_cap_w.map(|w| Power::from_mw(w.saturating_mul(1_000))),
            ramp_step: Power::from_mw(self.ramp_w_step.saturating_mul(1_000)),
            ramp_every: Duration::from_millis(self.ramp_ms),
            heartbeat: Duration::from_millis(self.heartbeat_ms),
            can_sleep: self.sleep_command.is_some(),
            switch: self.switch.clone(),
            gpus_per_board: self.gpus_per_board,
        }
    }
}
