//! What an operator sets for a launcher: one commented TOML, `deploy/launcher.toml`.
//!
//! Durations count the system's time, as everything but the bus does.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use wattle_common::config::non_zero;
use wattle_common::{ClusterId, NodeId};

/// What an operator sets for a launcher.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The cluster this node belongs to.
    pub cluster: ClusterId,
    /// This node.
    pub node: NodeId,
    /// Where the bus is.
    #[cfg(feature = "service")]
    pub nats: wattle_runtime::bus::BusConfig,
    /// The folder that remembers every start; it must outlive the launcher, and a reboot.
    pub state_dir: PathBuf,
    /// The folder of the jobs' output, one file for each job.
    pub log_dir: PathBuf,
    /// The folder of the jobs' checkpoints, one folder for each job. Every node must see the same
    /// one, or a job that is moved starts from nothing.
    pub checkpoint_dir: PathBuf,
    /// The socket jobs report their steps to: the profiler's `progress_socket`.
    pub progress_socket: PathBuf,
    /// How long a job may take to write its checkpoint before it is asked to terminate.
    #[serde(default = "default_checkpoint_grace_ms", deserialize_with = "non_zero")]
    pub checkpoint_grace_ms: u64,
    /// How long a job may take to terminate before it is killed.
    #[serde(default = "default_terminate_grace_ms", deserialize_with = "non_zero")]
    pub terminate_grace_ms: u64,
    /// How often to report when nothing changes: three times within the placer's patience.
    #[serde(default = "default_heartbeat_ms", deserialize_with = "non_zero")]
    pub heartbeat_ms: u64,
    /// First of the ports that jobs of several processes meet on.
    #[serde(default = "default_master_port_min")]
    pub master_port_min: u16,
    /// Last of these ports.
    #[serde(default = "default_master_port_max")]
    pub master_port_max: u16,
    /// Under which address the other nodes reach a node; one that is not here is 127.0.0.1.
    #[serde(default)]
    pub node_addresses: BTreeMap<String, String>,
    /// Environment variables that every job of this node gets.
    #[serde(default)]
    pub job_environment: BTreeMap<String, String>,
    /// How many ended starts are remembered, so that none of them is started again.
    #[serde(default = "default_ended_kept")]
    pub ended_kept: usize,
    /// Whether the jobs are stopped, with time for a checkpoint, when the launcher is asked to
    /// stop. With `false` they go on, and the next launcher finds them.
    #[serde(default)]
    pub stop_jobs_at_exit: bool,
}

/// Writing a checkpoint of tens of GiB to a shared disk takes minutes.
const fn default_checkpoint_grace_ms() -> u64 {
    120_000
}
/// What container engines and systemd give a process by default is 10 s to 90 s.
const fn default_terminate_grace_ms() -> u64 {
    10_000
}
const fn default_heartbeat_ms() -> u64 {
    5_000
}
/// torchrun's own default port is the first.
const fn default_master_port_min() -> u16 {
    29_500
}
const fn default_master_port_max() -> u16 {
    30_499
}
const fn default_ended_kept() -> usize {
    1_000
}

impl Config {
    /// What cannot hold together although each value may stand alone.
    ///
    /// # Errors
    /// Names the keys and the remedy.
    pub fn check(&self) -> Result<(), String> {
        if self.master_port_min > self.master_port_max {
            return Err(format!(
                "master_port_min = {} is above master_port_max = {}: swap them",
                self.master_port_min, self.master_port_max
            ));
        }
        let relative = [
            ("state_dir", &self.state_dir),
            ("log_dir", &self.log_dir),
            ("checkpoint_dir", &self.checkpoint_dir),
            ("progress_socket", &self.progress_socket),
        ]
        .into_iter()
        .find(|(_, path)| !path.is_absolute());
        match relative {
            Some((key, path)) => Err(format!(
                "{key} = \"{}\" is not absolute: jobs start in folders of their own, so write the whole path",
                path.display()
            )),
            None => Ok(()),
        }
    }
    /// [`Config::checkpoint_grace_ms`].
    #[must_use]
    pub const fn checkpoint_grace(&self) -> Duration {
        Duration::from_millis(self.checkpoint_grace_ms)
    }
    /// [`Config::terminate_grace_ms`].
    #[must_use]
    pub const fn terminate_grace(&self) -> Duration {
        Duration::from_millis(self.terminate_grace_ms)
    }
    /// [`Config::heartbeat_ms`].
    #[must_use]
    pub const fn heartbeat(&self) -> Duration {
        Duration::from_millis(self.heartbeat_ms)
    }
}
