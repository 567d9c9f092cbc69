//! Jobs: specification, GPU setting, placement and phase.

mod flexibility;
pub(crate) mod options;
mod site;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::{GpuIndex, JobId, NodeId, ProjectId, WorkloadId};
use crate::time::Timestamp;
use crate::units::{Frequency, Power};

pub use self::flexibility::{Flexibility, FlexibilityError, parse_flexibility};
pub use self::options::{
    JobOptions, OptionError, is_of_name, parse_gpu_type, parse_memory_mib, parse_priority,
    parse_variable,
};
pub use self::site::{NodeNeeds, SiteJob};

/// The number of GPUs a job can use, from `min` to `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuRequest {
    /// Fewest GPUs, at least 1.
    pub min: u32,
    /// Most GPUs.
    pub max: u32,
}

impl GpuRequest {
    /// Whether it permits one number only.
    #[must_use]
    pub const fn is_one_size(&self) -> bool {
        self.min == self.max
    }

    /// Exactly `count` GPUs.
    #[must_use]
    pub const fn exactly(count: u32) -> Self {
        Self { min: count, max: count }
    }
}

/// Why a text is not a [`GpuRequest`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid number of GPUs `{0}`: expected a number or a range, as in 4 or 1..8")]
pub struct GpuRequestError(String);

impl FromStr for GpuRequest {
    type Err = GpuRequestError;
    /// Parses `4` or `1..8`.
    fn from_str(text: &str) -> Result<Self, GpuRequestError> {
        let wrong = || GpuRequestError(text.to_owned());
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

/// A site's rule on sharing a GPU between jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// Every job is exclusive on its GPUs.
    Never,
    /// A job shares a GPU only if its owner consents ([`JobSpec::consents_to_sharing`]).
    Consented,
    /// Every job that is not exclusive may share a GPU.
    #[default]
    Any,
}

impl Sharing {
    /// All rules, the strictest first.
    pub const ALL: [Self; 3] = [Self::Never, Self::Consented, Self::Any];

    /// Its name in options and configuration files.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Consented => "consented",
            Self::Any => "any",
        }
    }

    /// Whether a job may share a GPU, given the consent of its owner.
    #[must_use]
    pub const fn permits(self, consents: bool) -> bool {
        match self {
            Self::Never => false,
            Self::Consented => consents,
            Self::Any => true,
        }
    }
}

/// Why a text is not a [`Sharing`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid sharing rule `{0}`: expected never, consented or any")]
pub struct SharingError(String);

impl FromStr for Sharing {
    type Err = SharingError;

    fn from_str(text: &str) -> Result<Self, SharingError> {
        let known = Self::ALL.into_iter().find(|rule| rule.as_str() == text);
        known.ok_or_else(|| SharingError(text.to_owned()))
    }
}

impl fmt::Display for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The specification of a job; it never changes after submission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Its id, unique in the cluster.
    pub job: JobId,
    /// Display name; need not be unique.
    pub name: String,
    /// The user who submitted it; [`crate::messages::JobRecord::user_proven`] states whether the identity
    /// is proven.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The project whose quota and share it counts towards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<ProjectId>,
    /// Its workload, if declared.
    #[serde(default)]
    pub workload: Option<WorkloadId>,
    /// Number of GPUs.
    pub gpus: GpuRequest,
    /// Whether its GPUs must not be shared with other jobs.
    #[serde(default)]
    pub exclusive: bool,
    /// Whether its owner consents to sharing its GPUs with other jobs; read where the site requires
    /// consent ([`Sharing::Consented`]).
    #[serde(default, skip_serializing_if = "is_false")]
    pub consents_to_sharing: bool,
    /// How much slower its GPUs may run it than at their default setting, per mille; absent: the cluster's aim
    /// and budget decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_slowdown_permille: Option<u32>,
    /// What it gives up during a grid event; absent: it has no promise and gives way as below any power limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flexibility: Option<Flexibility>,
    /// Priority: higher values are served first, equal values in order of submission.
    #[serde(default, skip_serializing_if = "is_default_priority")]
    pub priority: u8,
    /// Deadline.
    #[serde(default)]
    pub deadline_at_us: Option<Timestamp>,
    /// Total time it may be deferred for lower carbon intensity, before its start and at epoch ends,
    /// milliseconds; absent: never deferred. The deadline has precedence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slack_ms: Option<u64>,
    /// The owner's estimate of its duration on exclusive GPUs, milliseconds.
    #[serde(default)]
    pub duration_ms_estimate: Option<u64>,
    /// The time limit of a run, milliseconds, at which the site's scheduler ends it; absent: none is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_limit_ms: Option<u64>,
    /// Declared peak device memory on each GPU, MiB.
    #[serde(default)]
    pub memory_mib_max: Option<u64>,
    /// Required GPU type, as nodes report it (`v100`); absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_type: Option<String>,
    /// The signal that requests a checkpoint and exit with code 0, as in `SIGUSR1`; a job without
    /// one cannot be preempted.
    #[serde(default)]
    pub checkpoint_signal: Option<String>,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Environment variables in addition to those that Wattle sets.
    #[serde(default)]
    pub environment: Vec<(String, String)>,
    /// Working directory.
    #[serde(default)]
    pub working_dir: Option<String>,
    /// The job in the site's scheduler, which runs it; absent: a launcher runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<SiteJob>,
    /// When it was submitted.
    pub submitted_at_us: Timestamp,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde requires")]
const fn is_false(value: &bool) -> bool {
    !*value
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde requires")]
const fn is_default_priority(priority: &u8) -> bool {
    *priority == 0
}

/// Cap and clock of a job's GPUs, in addition to the site's settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GpuSetting {
    /// Cap of each of its GPUs; absent: the default cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap_mw: Option<Power>,
    /// Upper limit of the locked SM clock; absent: not locked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_mhz_max: Option<Frequency>,
}

impl GpuSetting {
    /// Default cap, no lock.
    pub const DEFAULT: Self = Self { cap_mw: None, clock_mhz_max: None };

    /// Whether cap and clock are the defaults.
    #[must_use]
    pub const fn is_default(&self) -> bool {
        self.cap_mw.is_none() && self.clock_mhz_max.is_none()
    }

    /// The lower cap and the lower clock of both.
    #[must_use]
    pub fn lower_of(self, other: Self) -> Self {
        Self {
            cap_mw: self.cap_mw.into_iter().chain(other.cap_mw).min(),
            clock_mhz_max: self.clock_mhz_max.into_iter().chain(other.clock_mhz_max).min(),
        }
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

/// A job's GPUs on one node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeShare {
    /// The node.
    pub node: NodeId,
    /// Its GPUs, ascending.
    pub gpus: Vec<GpuIndex>,
}

/// A job's GPUs, by node in rank order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Placement {
    /// One entry for each node.
    pub shares: Vec<NodeShare>,
}

impl Placement {
    /// Number of GPUs.
    #[must_use]
    pub fn gpu_count(&self) -> u32 {
        self.shares.iter().map(|s| s.gpus.len() as u32).sum()
    }
    /// Number of nodes.
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

/// Phase of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobPhase {
    /// Accepted; waits for GPUs.
    Queued,
    /// GPUs are assigned; its processes start.
    Starting,
    /// Its processes run.
    Running,
    /// Requested to checkpoint and stop.
    Stopping,
    /// Ended with exit code 0.
    Finished,
    /// Ended with another exit code, or could not be started.
    Failed,
    /// Cancelled by its owner.
    Cancelled,
}

impl JobPhase {
    /// Whether the job has ended.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Finished | Self::Failed | Self::Cancelled)
    }

    /// Whether the job holds GPUs.
    #[must_use]
    pub const fn has_gpus(self) -> bool {
        matches!(self, Self::Starting | Self::Running | Self::Stopping)
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

/// Signals that may request a checkpoint.
pub const CHECKPOINT_SIGNALS: [&str; 6] =
    ["SIGUSR1", "SIGUSR2", "SIGTERM", "SIGINT", "SIGHUP", "SIGCONT"];

/// Why a text is not a checkpoint signal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid checkpoint signal `{0}`: expected one of {list}", list = CHECKPOINT_SIGNALS.join(", "))]
pub struct SignalError(String);

/// The full name of a checkpoint signal: `USR1` and `SIGUSR1` give `SIGUSR1`.
///
/// # Errors
/// If `name` is not a signal that a process can catch for this purpose.
pub fn check_signal(name: &str) -> Result<&'static str, SignalError> {
    let full = if name.starts_with("SIG") { name.to_owned() } else { format!("SIG{name}") };
    CHECKPOINT_SIGNALS
        .into_iter()
        .find(|signal| *signal == full)
        .ok_or_else(|| SignalError(name.to_owned()))
}

/// Names and numbers of the signals that end jobs, on Linux for x86, Arm, Power and RISC-V.
const SIGNAL_NUMBERS: [(&str, i32); 9] = [
    ("SIGHUP", 1),
    ("SIGINT", 2),
    ("SIGABRT", 6),
    ("SIGKILL", 9),
    ("SIGUSR1", 10),
    ("SIGSEGV", 11),
    ("SIGUSR2", 12),
    ("SIGTERM", 15),
    ("SIGCONT", 18),
];

/// The number of a signal by its full name; `None` if it is not one that ends jobs.
#[must_use]
pub fn signal_number(name: &str) -> Option<i32> {
    SIGNAL_NUMBERS.into_iter().find(|(known, _)| *known == name).map(|(_, number)| number)
}

/// The name of a signal: `SIGUSR1`, or `signal 34` for one without a name here.
#[must_use]
pub fn signal_name(number: i32) -> String {
    let known = SIGNAL_NUMBERS.into_iter().find(|(_, known)| *known == number);
    known.map_or_else(|| format!("signal {number}"), |(name, _)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_checkpoint_signal_has_a_number() {
        for name in CHECKPOINT_SIGNALS {
            assert_eq!(signal_number(name).map(signal_name).as_deref(), Some(name));
        }
        assert_eq!((signal_number("USR1"), signal_name(34).as_str()), (None, "signal 34"));
    }

    #[test]
    fn gpu_requests_parse() {
        assert_eq!("4".parse(), Ok(GpuRequest::exactly(4)));
        assert_eq!("1..8".parse(), Ok(GpuRequest { min: 1, max: 8 }));
        for wrong in ["0", "8..1", "", "a", "1..", "-2"] {
            assert!(wrong.parse::<GpuRequest>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn sharing_rules_parse_and_permit() {
        for rule in Sharing::ALL {
            assert_eq!(rule.to_string().parse(), Ok(rule));
        }
        assert!("yes".parse::<Sharing>().unwrap_err().to_string().contains("consented"));
        let permits = |consents| Sharing::ALL.map(|rule| rule.permits(consents));
        assert_eq!((permits(false), permits(true)), ([false, false, true], [false, true, true]));
    }

    #[test]
    fn uncatchable_signals_are_refused() {
        assert_eq!(check_signal("USR1"), Ok("SIGUSR1"));
        assert!(check_signal("SIGKILL").unwrap_err().to_string().contains("SIGUSR2"));
    }
}
