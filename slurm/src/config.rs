//! The service's configuration, as in `deploy/slurm.toml`.
//!
//! Durations are in system time (`wattle_common::time::TimeScale`), except those with `wall` in their names.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use wattle_common::ClusterId;
use wattle_common::bounds::LEASE_MAX_DEFAULT;
use wattle_common::config::non_zero;
use wattle_common::lease::{SERVICE_LEASE_DEFAULT, SERVICE_LEASE_MIN};
use wattle_site::Level;

use crate::machine::Settings;

/// The configuration file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The cluster.
    pub cluster: ClusterId,
    /// The metrics endpoint.
    #[serde(default)]
    pub metrics: wattle_common::config::MetricsConfig,
    /// The bus.
    #[cfg(feature = "service")]
    pub nats: wattle_runtime::bus::BusConfig,
    /// What Wattle decides.
    pub level: Level,
    /// The partitions whose GPU jobs are Wattle's.
    pub partitions: BTreeSet<String>,
    /// Node features that name a GPU type.
    #[serde(default)]
    pub gpu_types: Vec<String>,
    /// The folder with the released attempts; it must survive restarts and reboots.
    pub state_dir: PathBuf,
    /// The folder of Slurm's programs; absent: they are found by `PATH`.
    #[serde(default)]
    pub commands: Option<PathBuf>,
    /// The file that shows the intake plugin that this service runs; absent: none.
    #[serde(default)]
    pub heartbeat_file: Option<PathBuf>,
    /// The socket at which Slurm's epilog requests a poll of Slurm; absent: none.
    #[serde(default)]
    pub bell: Option<PathBuf>,
    /// Whether Slurm has an accounting database.
    #[serde(default = "default_accounting")]
    pub accounting: bool,
    /// Interval of polls of Slurm, wall time.
    #[serde(default = "default_poll_wall_ms", deserialize_with = "non_zero")]
    pub poll_wall_ms: u64,
    /// Longest time of one of Slurm's programs, wall time.
    #[serde(default = "default_command_wall_ms", deserialize_with = "non_zero")]
    pub command_wall_ms: u64,
    /// How long a released job may wait in Slurm before it is taken back and placed again.
    #[serde(default = "default_start_patience_ms", deserialize_with = "non_zero")]
    pub start_patience_ms: u64,
    /// How long a job has to write its checkpoint after its signal, before it is requeued with `SIGTERM`.
    #[serde(default = "default_checkpoint_grace_ms", deserialize_with = "non_zero")]
    pub checkpoint_grace_ms: u64,
    /// How long a job may be absent from Slurm and from its accounting database before it is cancelled.
    #[serde(default = "default_absence_ms", deserialize_with = "non_zero")]
    pub absence_ms: u64,
    /// Interval after which a refused command, submission or query is repeated.
    #[serde(default = "default_retry_ms", deserialize_with = "non_zero")]
    pub retry_ms: u64,
    /// Interval of reports while nothing changes: at most a third of the placer's `node_stale_after_ms`.
    #[serde(default = "default_heartbeat_ms", deserialize_with = "non_zero")]
    pub heartbeat_ms: u64,
    /// Longest lease of a desired state, whatever the desired state declares.
    #[serde(default = "default_lease_max_ms", deserialize_with = "non_zero")]
    pub lease_max_ms: u64,
    /// Length of the lease by which one of several services is active, wall time.
    #[serde(default = "default_service_lease_wall_ms", deserialize_with = "non_zero")]
    pub service_lease_wall_ms: u64,
}

const fn default_accounting() -> bool {
    true
}
/// `squeue` of 10,000 jobs takes 30 ms of slurmctld's time.
const fn default_poll_wall_ms() -> u64 {
    1_000
}
const fn default_command_wall_ms() -> u64 {
    30_000
}
/// Slurm starts a job on free GPUs within a few seconds, with `batch_sched_delay` at its default.
const fn default_start_patience_ms() -> u64 {
    12_000
}
/// Writing a checkpoint of tens of GiB to a shared disk takes minutes.
const fn default_checkpoint_grace_ms() -> u64 {
    120_000
}
const fn default_absence_ms() -> u64 {
    300_000
}
const fn default_retry_ms() -> u64 {
    10_000
}
const fn default_heartbeat_ms() -> u64 {
    5_000
}
const fn default_lease_max_ms() -> u64 {
    LEASE_MAX_DEFAULT.as_millis() as u64
}
const fn default_service_lease_wall_ms() -> u64 {
    SERVICE_LEASE_DEFAULT.as_millis() as u64
}

/// Values of a configuration that contradict each other.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidConfig {
    /// No partition.
    #[error("partitions = [] has no partition: name those whose GPU jobs are Wattle's")]
    NoPartition,
    /// A path is relative.
    #[error("{key} = \"{}\" is not absolute: write the full path", path.display())]
    RelativePath {
        /// The key.
        key: &'static str,
        /// Its value.
        path: PathBuf,
    },
    /// Jobs would not be held.
    #[error(
        "level = \"{level}\" needs heartbeat_file: the intake plugin holds jobs only while it is new"
    )]
    NoHeartbeat {
        /// The level.
        level: Level,
    },
    /// The lease is too short.
    #[error("service_lease_wall_ms = {given} is below {min}: raise it")]
    ShortLease {
        /// The given length.
        given: u64,
        /// The shortest length.
        min: u64,
    },
}

impl Config {
    /// Checks constraints between values.
    ///
    /// # Errors
    /// The keys and the remedy.
    pub fn check(&self) -> Result<(), InvalidConfig> {
        if self.partitions.is_empty() {
            return Err(InvalidConfig::NoPartition);
        }
        let paths = [
            ("state_dir", Some(&self.state_dir)),
            ("commands", self.commands.as_ref()),
            ("heartbeat_file", self.heartbeat_file.as_ref()),
            ("bell", self.bell.as_ref()),
        ];
        for (key, path) in paths {
            if let Some(path) = path.filter(|path| !path.is_absolute()) {
                return Err(InvalidConfig::RelativePath { key, path: path.clone() });
            }
        }
        if self.level.places() && self.heartbeat_file.is_none() {
            return Err(InvalidConfig::NoHeartbeat { level: self.level });
        }
        let min = u64::try_from(SERVICE_LEASE_MIN.as_millis()).unwrap_or(u64::MAX);
        let given = self.service_lease_wall_ms;
        if given < min {
            return Err(InvalidConfig::ShortLease { given, min });
        }
        Ok(())
    }

    /// How the machine works; `offset_s`: seconds by which local time is ahead of UTC.
    #[must_use]
    pub fn settings(&self, offset_s: i64) -> Settings {
        Settings {
            level: self.level,
            partitions: self.partitions.clone(),
            gpu_types: self.gpu_types.clone(),
            start_patience: Duration::from_millis(self.start_patience_ms),
            checkpoint_grace: Duration::from_millis(self.checkpoint_grace_ms),
            absence_max: Duration::from_millis(self.absence_ms),
            heartbeat: Duration::from_millis(self.heartbeat_ms),
            lease_max: Duration::from_millis(self.lease_max_ms),
            retry: Duration::from_millis(self.retry_ms),
            has_accounting: self.accounting,
            offset_s,
        }
    }
}
