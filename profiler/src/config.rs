//! The service's configuration, as in `deploy/profiler.toml`.
//!
//! Durations and rates are in system time (`wattle_common::time::TimeScale`). If system time runs
//! faster than wall time, sampling and publishing are limited by a wall-time rate
//! ([`Settings::at_rate`]), so that a faster clock does not cost more processor time.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use wattle_common::{ClusterId, NodeId, Power};

use crate::gap::SAME_TENANTS_MAX;

/// The settings of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Time between telemetry batches.
    pub batch_every: Duration,
    /// Time between summaries.
    pub summary_every: Duration,
    /// Time between reports of a job's progress, besides those at an epoch's end.
    pub progress_every: Duration,
    /// Length of a window.
    pub window: Duration,
    /// Length of a window in a job's early epochs.
    pub window_early: Duration,
    /// Time after a change that belongs to no window.
    pub settle: Duration,
    /// Fewest sampling instants of a window that is stored.
    pub samples_min: u32,
    /// Epochs in which a job is early.
    pub early_epochs: u32,
    /// Windows on one placement during which a job is early.
    pub early_windows: u32,
    /// Time between ledger entries.
    pub ledger_every: Duration,
    /// Time between checkpoints of the open ledger interval.
    pub checkpoint_every: Duration,
    /// Power of an idle GPU, until it has been measured.
    pub idle: Option<Power>,
    /// Power of the node without its GPUs.
    pub host_power: Power,
    /// Longest gap between two samples over which power is integrated and energy attributed.
    pub gap_max: Duration,
    /// Longest gap that belongs to the tenants before and after it, if they are the same.
    pub same_tenants_max: Duration,
    /// Age from which the launcher's last report is stale: the bus is away, or the launcher.
    pub report_stale_after: Duration,
    /// Least difference of the clocks of two runs that is a step of the clock.
    pub clock_step_min: Duration,
}

/// Time between telemetry batches, between summaries, and between reports of a job's progress.
const BATCH_EVERY: Duration = Duration::from_millis(500);
const SUMMARY_EVERY: Duration = Duration::from_secs(1);
const PROGRESS_EVERY: Duration = Duration::from_secs(10);
/// Ampere GPUs, except GA100 (A100, A30), and later ones report their average power over the last second.
const SETTLE: Duration = Duration::from_secs(1);
/// Fewest sampling instants of a window that is stored: half a second at the usual rate.
const SAMPLES_MIN: u32 = 5;
/// A job is early until it has completed this many epochs, if it reports their length, and this many windows on
/// its placement.
const EARLY_EPOCHS: u32 = 2;
const EARLY_WINDOWS: u32 = 4;
/// Most samples of each GPU in a second of wall time.
const SAMPLE_HZ_WALL_MAX: u32 = 100;
/// Training power varies within seconds, so a longer gap cannot be interpolated.
const GAP_MAX: Duration = Duration::from_secs(5);
/// After a kill, energy since the last checkpoint has no known owner, unless the same jobs run before and
/// after; after a restart of the node it is unmeasured.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(5);
/// Several heartbeats of the launcher.
const REPORT_STALE_AFTER: Duration = Duration::from_secs(30);
/// NTP slews smaller differences.
const CLOCK_STEP_MIN: Duration = Duration::from_secs(2);

impl Default for Settings {
    /// The settings of a configuration file without keys.
    fn default() -> Self {
        let ms = Duration::from_millis;
        Self {
            batch_every: BATCH_EVERY,
            summary_every: SUMMARY_EVERY,
            progress_every: PROGRESS_EVERY,
            window: ms(window_ms()),
            window_early: ms(window_ms_early()),
            settle: SETTLE,
            samples_min: SAMPLES_MIN,
            early_epochs: EARLY_EPOCHS,
            early_windows: EARLY_WINDOWS,
            ledger_every: ms(ledger_ms()),
            checkpoint_every: CHECKPOINT_EVERY,
            idle: None,
            host_power: Power::ZERO,
            gap_max: GAP_MAX,
            same_tenants_max: SAME_TENANTS_MAX,
            report_stale_after: REPORT_STALE_AFTER,
            clock_step_min: CLOCK_STEP_MIN,
        }
    }
}

impl Settings {
    /// These settings for system time that runs `rate` times as fast as wall time: at most 20
    /// batches, 10 summaries and 10 progress reports per job in a second of wall time.
    #[must_use]
    pub fn at_rate(mut self, rate: u32) -> Self {
        let wall = |ms: u64| Duration::from_millis(ms) * rate;
        if rate > 1 {
            self.batch_every = self.batch_every.max(wall(50));
            self.summary_every = self.summary_every.max(wall(100));
            self.progress_every = self.progress_every.max(wall(100));
            // A quarter of a wall second: a busy machine may miss some samples.
            self.gap_max = self.gap_max.max(wall(250));
            self.same_tenants_max = self.same_tenants_max.max(self.gap_max);
            self.checkpoint_every = self.checkpoint_every.max(wall(1_000));
            self.report_stale_after = self.report_stale_after.max(wall(3_000));
            self.clock_step_min = CLOCK_STEP_MIN * rate;
        }
        self
    }
}

macro_rules! default_values {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $value:expr;)*) => {
        $($(#[$doc])* fn $name() -> $type { $value })*
    };
}

default_values! {
    /// NVML refreshes power every 20 to 100 ms on most boards (arXiv 2312.02741).
    sample_hz: u32 = 10;
    window_ms: u64 = 60_000;
    window_ms_early: u64 = 15_000;
    ledger_ms: u64 = 60_000;
    progress_socket: PathBuf = PathBuf::from("/run/wattle/progress.sock");
    progress_socket_mode: u32 = 0o666;
    state_dir: PathBuf = PathBuf::from("/var/lib/wattle/profiler");
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
    /// Samples per second of each GPU.
    #[serde(default = "sample_hz")]
    pub sample_hz: u32,
    /// Milliseconds a window lasts.
    #[serde(default = "window_ms", deserialize_with = "wattle_common::config::non_zero")]
    pub window_ms: u64,
    /// Milliseconds a window lasts in a job's early epochs.
    #[serde(default = "window_ms_early", deserialize_with = "wattle_common::config::non_zero")]
    pub window_ms_early: u64,
    /// Milliseconds between ledger entries.
    #[serde(default = "ledger_ms", deserialize_with = "wattle_common::config::non_zero")]
    pub ledger_ms: u64,
    /// Power of an idle GPU in watts, until it has been measured.
    #[serde(default)]
    pub idle_w: Option<u32>,
    /// Power of the node without its GPUs, in watts.
    #[serde(default)]
    pub host_power_w: u32,
    /// The socket to which jobs send their progress.
    #[serde(default = "progress_socket")]
    pub progress_socket: PathBuf,
    /// The socket's permission bits.
    #[serde(default = "progress_socket_mode")]
    pub progress_socket_mode: u32,
    /// The folder for the state that outlives the service: the GPUs' counters at the last ledger
    /// entry.
    #[serde(default = "state_dir")]
    pub state_dir: PathBuf,
    /// Whether each GPU also has metrics under the names of NVIDIA's dcgm-exporter.
    #[serde(default)]
    pub dcgm_names: bool,
    /// The metrics endpoint.
    #[serde(default)]
    pub metrics: wattle_common::config::MetricsConfig,
    /// The bus.
    pub nats: B,
}

impl<B> Config<B> {
    /// The settings of the machine.
    #[must_use]
    pub fn settings(&self) -> Settings {
        let ms = Duration::from_millis;
        Settings {
            window: ms(self.window_ms),
            window_early: ms(self.window_ms_early),
            ledger_every: ms(self.ledger_ms),
            idle: self.idle_w.map(|w| Power::from_w(w.into())),
            host_power: Power::from_w(self.host_power_w.into()),
            ..Settings::default()
        }
    }

    /// Time between two samples, in system time that runs `rate` times as fast as wall time.
    #[must_use]
    pub fn sample_every(&self, rate: u32) -> Duration {
        let own = Duration::from_secs(1) / self.sample_hz.max(1);
        let wall = Duration::from_secs(1) / SAMPLE_HZ_WALL_MAX;
        own.max(wall * rate)
    }
}
