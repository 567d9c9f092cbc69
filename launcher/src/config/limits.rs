//! Limits of the jobs of a node, which the kernel enforces by a cgroup for each attempt.

use serde::Deserialize;

/// The delegated cgroup of `deploy/systemd/wattle-jobs.service`.
const CGROUP: &str = "/system.slice/wattle-jobs.service";
/// Limits of `cpus_per_gpu`: the kernel's least quota, and more than any node has.
const CPUS: std::ops::RangeInclusive<f64> = 0.01..=65_536.0;
/// Most GiB and processes: more than any node has.
const COUNT_MAX: u64 = 1 << 30;

/// The table `[job_limits]`; an absent limit is none.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobLimits {
    /// Memory of a job for each of its GPUs on this node, GiB.
    pub memory_gib_per_gpu: Option<u64>,
    /// CPU time of a job for each of its GPUs on this node, CPUs.
    pub cpus_per_gpu: Option<f64>,
    /// Number of processes and threads of a job on this node.
    pub processes_max: Option<u64>,
    /// The cgroup below which each attempt gets one. Named without a limit, attempts get cgroups
    /// without limits.
    pub cgroup: Option<String>,
}

/// A value of the table is wrong.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("job_limits.{key} = {value}: {remedy}")]
pub struct InvalidLimit {
    key: &'static str,
    value: String,
    remedy: &'static str,
}

impl JobLimits {
    /// Whether attempts get cgroups of their own.
    #[must_use]
    pub const fn uses_cgroups(&self) -> bool {
        self.cgroup.is_some()
            || self.memory_gib_per_gpu.is_some()
            || self.cpus_per_gpu.is_some()
            || self.processes_max.is_some()
    }

    /// These limits, with a cgroup for each attempt below the delegated one.
    #[must_use]
    pub fn in_delegated_cgroup(&self) -> Self {
        Self { cgroup: Some(self.parent().to_owned()), ..self.clone() }
    }

    /// The cgroup below which each attempt gets one.
    #[must_use]
    pub fn parent(&self) -> &str {
        self.cgroup.as_deref().unwrap_or(CGROUP)
    }

    /// Checks each value.
    ///
    /// # Errors
    /// The first wrong value and the remedy.
    pub(super) fn check(&self) -> Result<(), InvalidLimit> {
        let counts = [
            ("memory_gib_per_gpu", self.memory_gib_per_gpu),
            ("processes_max", self.processes_max),
        ];
        for (key, count) in counts {
            if let Some(value) = count.filter(|count| !(1..=COUNT_MAX).contains(count)) {
                let remedy = "write a number from 1 to 2^30, or remove it for no limit";
                return Err(InvalidLimit { key, value: value.to_string(), remedy });
            }
        }
        if let Some(value) = self.cpus_per_gpu.filter(|cpus| !CPUS.contains(cpus)) {
            let remedy = "write a number from 0.01 to 65,536, or remove it for no limit";
            return Err(InvalidLimit { key: "cpus_per_gpu", value: value.to_string(), remedy });
        }
        let path = self.parent();
        let is_part = |part: &str| !part.is_empty() && !part.starts_with('.');
        if !path.strip_prefix('/').is_some_and(|path| path.split('/').all(is_part)) {
            let remedy = "write its path from the root of the cgroups, such as /system.slice/NAME";
            return Err(InvalidLimit { key: "cgroup", value: format!("\"{path}\""), remedy });
        }
        Ok(())
    }
}
