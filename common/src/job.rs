//! Jobs: what their owner asks for, and what has become of them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::{GpuIndex, JobId, NodeId, WorkloadId};
use crate::time::Timestamp;
use crate::units::{Frequency, Power};

/// How many GPUs a job takes: exactly `min` where both are equal, anything between otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuRequest {
    /// Fewest GPUs it runs on, at least 1.
    pub min: u32,
    /// Most GPUs it can use.
    pub max: u32,
}

impl GpuRequest {
    /// Exactly `count` GPUs.
    #[must_use]
    pub const fn exactly(count: u32) -> Self {
        Self { min: count, max: count }
    }
}

impl FromStr for GpuRequest {
    type Err = String;
    /// Reads `4` or `1..8`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no number of GPUs; write 4, or 1..8");
        let (min, max) = text.split_once("..").unwrap_or((text, text));
        let request =
            Self { min: min.parse().map_err(|_| wrong())?, max: max.parse().map_err(|_| wrong())? };
        if request.min == 0 || request.min > request.max { Err(wrong()) } else { Ok(request) }
    }
}

impl fmt::Display for GpuRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.min == self.max {
            write!(f, "{}", self.min)
        } else {
            write!(f, "{}..{}", self.min, self.max)
        }
    }
}

/// What a job's owner asks for. It never changes after submission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Its id, unique in the cluster.
    pub job: JobId,
    /// What its owner calls it; need not be unique.
    pub name: String,
    /// Which kind of job it is, where its owner says so.
    #[serde(default)]
    pub workload: Option<WorkloadId>,
    /// How many GPUs.
    pub gpus: GpuRequest,
    /// Never to share a GPU with another job.
    #[serde(default)]
    pub exclusive: bool,
    /// Who has more is served first; among equals, who came first.
    #[serde(default, skip_serializing_if = "is_none")]
    pub priority: u8,
    /// When it must be done.
    #[serde(default)]
    pub deadline_at_us: Option<Timestamp>,
    /// How long it may wait in all, before it starts and at the ends of its epochs, for cleaner
    /// energy: milliseconds; absent, it never does. Its deadline stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slack_ms: Option<u64>,
    /// How long it takes alone on the GPUs it asks for, where its owner knows: milliseconds.
    #[serde(default)]
    pub duration_ms_estimate: Option<u64>,
    /// Peak device memory it needs on each GPU, where its owner knows: MiB.
    #[serde(default)]
    pub memory_mib_max: Option<u64>,
    /// The kind of GPU it must have, as nodes report theirs (`v100`); absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_type: Option<String>,
    /// The signal that asks it to write a checkpoint and exit with code 0, as in `SIGUSR1`;
    /// without one it cannot be moved, only run to its end.
    #[serde(default)]
    pub checkpoint_signal: Option<String>,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Environment variables it needs, beside those that Wattle sets.
    #[serde(default)]
    pub environment: Vec<(String, String)>,
    /// The folder it starts in.
    #[serde(default)]
    pub working_dir: Option<String>,
    /// When it was submitted.
    pub submitted_at_us: Timestamp,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_none(priority: &u8) -> bool {
    *priority == 0
}

/// What a job's cards are set to, beside what the site sets for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GpuSetting {
    /// The cap of each of its cards; absent: the card's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap_mw: Option<Power>,
    /// Their locked highest SM clock; absent: not locked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_mhz_max: Option<Frequency>,
}

impl GpuSetting {
    /// Default cap, no lock.
    pub const DEFAULT: Self = Self { cap_mw: None, clock_mhz_max: None };

    /// Whether nothing is set.
    #[must_use]
    pub const fn is_default(&self) -> bool {
        self.cap_mw.is_none() && self.clock_mhz_max.is_none()
    }
}

impl fmt::Display for GpuSetting {
    /// `default`, `1080 MHz`, `150 W`, or both.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.cap_mw, self.clock_mhz_max) {
            (None, None) => f.write_str("default"),
            (None, Some(clock)) => write!(f, "{} MHz", clock.as_mhz()),
            (Some(cap), None) => write!(f, "{} W", cap.as_w()),
            (Some(cap), Some(clock)) => write!(f, "{} W, {} MHz", cap.as_w(), clock.as_mhz()),
        }
    }
}

/// GPUs of one node that a job has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeShare {
    /// The node.
    pub node: NodeId,
    /// Its GPUs, ascending.
    pub gpus: Vec<GpuIndex>,
}

/// All GPUs a job has, by node in rank order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Placement {
    /// One entry for each node.
    pub shares: Vec<NodeShare>,
}

impl Placement {
    /// How many GPUs it has.
    #[must_use]
    pub fn gpu_count(&self) -> u32 {
        self.shares.iter().map(|s| s.gpus.len() as u32).sum()
    }
    /// How many nodes it is spread over.
    #[must_use]
    pub fn node_count(&self) -> u32 {
        self.shares.len() as u32
    }
}

impl fmt::Display for Placement {
    /// `n0:0,1,2,3 n1:0,1`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, share) in self.shares.iter().enumerate() {
            let gpus: Vec<String> = share.gpus.iter().map(ToString::to_string).collect();
            write!(f, "{}{}:{}", if i == 0 { "" } else { " " }, share.node, gpus.join(","))?;
        }
        Ok(())
    }
}

/// What has become of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobPhase {
    /// Accepted, waiting for GPUs.
    Queued,
    /// GPUs are assigned; its processes are being started.
    Starting,
    /// Its processes run.
    Running,
    /// Asked to write a checkpoint and stop, to be placed anew.
    Stopping,
    /// Done, exit code 0.
    Finished,
    /// Ended with another exit code, or could not be started.
    Failed,
    /// Its owner took it back.
    Cancelled,
}

impl JobPhase {
    /// Whether nothing more will happen to the job.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Finished | Self::Failed | Self::Cancelled)
    }
}

impl fmt::Display for JobPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Queued => "queued",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        })
    }
}

/// A signal a job can be asked to checkpoint with.
///
/// # Errors
/// Where `name` is no signal a process can catch, with the ones that may be used.
pub fn check_signal(name: &str) -> Result<&'static str, String> {
    const ALLOWED: [&str; 6] = ["SIGUSR1", "SIGUSR2", "SIGTERM", "SIGINT", "SIGHUP", "SIGCONT"];
    let full = if name.starts_with("SIG") { name.to_owned() } else { format!("SIG{name}") };
    ALLOWED.into_iter().find(|signal| *signal == full).ok_or_else(|| {
        format!("`{name}` is no checkpoint signal; use one of {}", ALLOWED.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_read_as_people_write_them() {
        assert_eq!("4".parse(), Ok(GpuRequest::exactly(4)));
        assert_eq!("1..8".parse(), Ok(GpuRequest { min: 1, max: 8 }));
        for wrong in ["0", "8..1", "", "a", "1..", "-2"] {
            assert!(wrong.parse::<GpuRequest>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn signals_that_no_process_can_catch_are_refused() {
        assert_eq!(check_signal("USR1"), Ok("SIGUSR1"));
        assert!(check_signal("SIGKILL").unwrap_err().contains("SIGUSR2"));
    }
}
