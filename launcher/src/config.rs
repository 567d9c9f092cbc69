//! The service's configuration, as in `deploy/launcher.toml`.
//!
//! Durations are in system time (`wattle_common::time::TimeScale`).

mod limits;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use wattle_common::bounds::LEASE_MAX_DEFAULT;
use wattle_common::config::non_zero;
use wattle_common::{ClusterId, NodeId};

pub use limits::{InvalidLimit, JobLimits};

/// The configuration file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The cluster this node belongs to.
    pub cluster: ClusterId,
    /// This node.
    pub node: NodeId,
    /// The metrics endpoint.
    #[serde(default)]
    pub metrics: wattle_common::config::MetricsConfig,
    /// The bus.
    #[cfg(feature = "service")]
    pub nats: wattle_runtime::bus::BusConfig,
    /// The folder with the state of every run; it must survive restarts and reboots.
    pub state_dir: PathBuf,
    /// The folder for the output of jobs, one file for each job and node.
    pub log_dir: PathBuf,
    /// The folder for the jobs' checkpoints, one folder per job. It must be shared by all nodes, or
    /// a moved job starts from scratch.
    pub checkpoint_dir: PathBuf,
    /// The socket jobs report their steps to: the profiler's `progress_socket`.
    pub progress_socket: PathBuf,
    /// Longest time a job has to write its checkpoint, before it is requested to terminate.
    #[serde(default = "default_checkpoint_grace_ms", deserialize_with = "non_zero")]
    pub checkpoint_grace_ms: u64,
    /// Longest time a job has to terminate, before it is killed.
    #[serde(default = "default_terminate_grace_ms", deserialize_with = "non_zero")]
    pub terminate_grace_ms: u64,
    /// Interval of reports while nothing changes: at most a third of the placer's
    /// `node_stale_after_ms`.
    #[serde(default = "default_heartbeat_ms", deserialize_with = "non_zero")]
    pub heartbeat_ms: u64,
    /// Longest lease of a desired state, whatever the desired state declares: after it, the node
    /// accepts a current desired state of any generation.
    #[serde(default = "default_lease_max_ms", deserialize_with = "non_zero")]
    pub lease_max_ms: u64,
    /// First of the ports at which the processes of a job meet.
    #[serde(default = "default_master_port_min")]
    pub master_port_min: u16,
    /// Last of these ports.
    #[serde(default = "default_master_port_max")]
    pub master_port_max: u16,
    /// The address of each node for the other nodes; 127.0.0.1 for a node that is absent.
    #[serde(default)]
    pub node_addresses: BTreeMap<String, String>,
    /// Environment variables of every job on this node.
    #[serde(default)]
    pub job_environment: BTreeMap<String, String>,
    /// The user under which jobs run.
    #[serde(default)]
    pub job_user: JobUser,
    /// Jobs of users with a lower id are refused, unless they run as this service's user.
    #[serde(default = "default_job_uid_min")]
    pub job_uid_min: u32,
    /// Largest output of a job on this node, MiB; what a job writes beyond it is dropped.
    #[serde(default = "default_log_mib_max", deserialize_with = "non_zero")]
    pub log_mib_max: u64,
    /// Limits of each job on this node.
    #[serde(default)]
    pub job_limits: JobLimits,
    /// Number of ended runs that are kept, so that none of them is started again.
    #[serde(default = "default_ended_kept")]
    pub ended_kept: usize,
    /// Whether the jobs are stopped, with time for a checkpoint, when the launcher stops. If
    /// `false`, they continue and the next launcher resumes them.
    #[serde(default)]
    pub stop_jobs_at_exit: bool,
}

/// The user under which jobs run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub enum JobUser {
    /// The user under which the launcher runs: `"service"`.
    #[default]
    Service,
    /// The user that submitted the job: `"owner"`. The launcher must run as root.
    Owner,
    /// One user for all jobs, by name. The launcher must run as root.
    Named(String),
}

impl From<String> for JobUser {
    fn from(name: String) -> Self {
        match name.as_str() {
            "service" => Self::Service,
            "owner" => Self::Owner,
            _ => Self::Named(name),
        }
    }
}

/// Writing a checkpoint of tens of GiB to a shared disk takes minutes.
const fn default_checkpoint_grace_ms() -> u64 {
    120_000
}
/// Container engines and systemd give a process 10 s to 90 s by default.
const fn default_terminate_grace_ms() -> u64 {
    10_000
}
const fn default_heartbeat_ms() -> u64 {
    5_000
}
const fn default_lease_max_ms() -> u64 {
    LEASE_MAX_DEFAULT.as_millis() as u64
}
/// torchrun's default port.
const fn default_master_port_min() -> u16 {
    29_500
}
const fn default_master_port_max() -> u16 {
    30_499
}
/// Debian and most other systems give people ids from 1,000 on.
const fn default_job_uid_min() -> u32 {
    1_000
}
const fn default_log_mib_max() -> u64 {
    256
}
const fn default_ended_kept() -> usize {
    1_000
}

/// Values of a configuration that contradict each other.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidConfig {
    /// The range of ports is empty.
    #[error("master_port_min = {min} is above master_port_max = {max}: swap them")]
    Ports {
        /// `master_port_min`.
        min: u16,
        /// `master_port_max`.
        max: u16,
    },
    /// A path is relative, and jobs start in other folders.
    #[error("{key} = \"{}\" is not absolute: write the full path", path.display())]
    RelativePath {
        /// The key.
        key: &'static str,
        /// Its value.
        path: PathBuf,
    },
    /// A limit of jobs is wrong.
    #[error(transparent)]
    Limit(#[from] InvalidLimit),
}

impl Config {
    /// Checks constraints between values.
    ///
    /// # Errors
    /// The keys and the remedy.
    pub fn check(&self) -> Result<(), InvalidConfig> {
        let (min, max) = (self.master_port_min, self.master_port_max);
        if min > max {
            return Err(InvalidConfig::Ports { min, max });
        }
        for (key, path) in [
            ("state_dir", &self.state_dir),
            ("log_dir", &self.log_dir),
            ("checkpoint_dir", &self.checkpoint_dir),
            ("progress_socket", &self.progress_socket),
        ] {
            if !path.is_absolute() {
                return Err(InvalidConfig::RelativePath { key, path: path.clone() });
            }
        }
        Ok(self.job_limits.check()?)
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
    /// [`Config::lease_max_ms`].
    #[must_use]
    pub const fn lease_max(&self) -> Duration {
        Duration::from_millis(self.lease_max_ms)
    }
    /// [`Config::heartbeat_ms`].
    #[must_use]
    pub const fn heartbeat(&self) -> Duration {
        Duration::from_millis(self.heartbeat_ms)
    }
}
