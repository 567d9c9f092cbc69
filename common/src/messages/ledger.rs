//! The energy ledger: measured energy of a node over an interval.
//!
//! * **Publisher:** profiler.
//! * **Listeners:** placer (budgets, energy of each job); reports (`wattle energy`, the table of
//!   `wattle up`).
//! * **How often:** once a minute, and when the profiler stops.
//! * **Delivery:** JetStream stream `ledger`, acknowledged, with (node, `from_us`) as message id. Each names
//!   the sequence number of the node's last one, which the server compares.
//! * **Lost or doubled:** stored before it counts; the message id removes duplicates. Entries of the last
//!   hour that the server has acknowledged and lost are stored again, so an entry may be in the stream
//!   twice. Where GPUs have an energy counter, the next entry covers the time without a profiler.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::comparison::ComparedEnergy;
use crate::id::{AdmissionId, GpuIndex, JobId, NodeId, ProjectId};
use crate::time::Timestamp;
use crate::units::Energy;

/// Energy of a node over an interval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerEntry {
    /// The node.
    pub node: NodeId,
    /// Start of the interval.
    pub from_us: Timestamp,
    /// End of the interval.
    pub until_us: Timestamp,
    /// Energy of each GPU in index order; absent: no reading.
    pub energy_mj_gpus: Vec<Option<Energy>>,
    /// Energy of the rest of the node, from the configured constant host power.
    pub energy_mj_host: Energy,
    /// GPU energy attributed to jobs; the energy of idle GPUs is not attributed.
    pub jobs: Vec<JobEnergy>,
    /// GPU energy without a known owner, and intervals without a measurement.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<UnknownEnergy>,
}

impl LedgerEntry {
    /// Measured energy of its GPUs: a lower bound where one has no reading, which `unknown` states.
    #[must_use]
    pub fn gpus(&self) -> Energy {
        self.energy_mj_gpus.iter().flatten().copied().sum()
    }

    /// GPU energy attributed to jobs.
    #[must_use]
    pub fn attributed(&self) -> Energy {
        self.jobs.iter().map(|job| job.energy_mj).sum()
    }

    /// GPU energy without a known owner.
    #[must_use]
    pub fn unknown(&self) -> Energy {
        self.unknown.iter().map(|unknown| unknown.energy_mj).sum()
    }

    /// The submissions whose GPUs had no meter, with that time summed over GPUs, milliseconds. Their energy is in
    /// no sum.
    #[must_use]
    pub fn unmetered_ms(&self) -> BTreeMap<(&JobId, Option<&AdmissionId>), u64> {
        let mut times = BTreeMap::new();
        for unknown in &self.unknown {
            for submission in unknown.submissions() {
                let time: &mut u64 = times.entry(submission).or_default();
                *time = time.saturating_add(unknown.length_ms());
            }
        }
        times
    }

    /// Energy of GPUs without a job and without a process.
    #[must_use]
    pub fn idle(&self) -> Energy {
        self.gpus().saturating_sub(self.attributed()).saturating_sub(self.unknown())
    }
}

/// Energy attributed to one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEnergy {
    /// The job.
    pub job: JobId,
    /// The submission that it is of; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<AdmissionId>,
    /// Its energy.
    pub energy_mj: Energy,
    /// The user who submitted it, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The project of the job, if it names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<ProjectId>,
    /// The part of its energy that is compared with the default setting; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compared: Option<ComparedEnergy>,
}

/// Energy of one GPU without a known owner, or an interval in which it was not measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnknownEnergy {
    /// The GPU.
    pub gpu: GpuIndex,
    /// Why the owner or the energy is unknown.
    pub cause: UnknownCause,
    /// Start of the interval; it may precede the entry.
    pub from_us: Timestamp,
    /// End of the interval.
    pub until_us: Timestamp,
    /// The measured energy; part of the GPU's energy in the entry.
    pub energy_mj: Energy,
    /// Whether more energy may have been consumed in the interval than was measured.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unmeasured: bool,
    /// Estimate of the energy that was not measured; part of no sum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate_mj: Option<Energy>,
    /// The jobs on the GPU, where it has no meter: of their energy only the amount is unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<JobId>,
    /// The submissions that those jobs are of, as far as they are known.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub admissions: BTreeMap<JobId, AdmissionId>,
}

impl UnknownEnergy {
    /// Its jobs with their submissions, as far as these are known.
    pub fn submissions(&self) -> impl Iterator<Item = (&JobId, Option<&AdmissionId>)> {
        self.jobs.iter().map(|job| (job, self.admissions.get(job)))
    }

    /// Length of the interval, milliseconds.
    #[must_use]
    pub fn length_ms(&self) -> u64 {
        self.until_us.since(self.from_us).as_millis().try_into().unwrap_or(u64::MAX)
    }
}

/// Why the owner of energy, or the energy of an interval, is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownCause {
    /// No profiler ran.
    ProfilerAway,
    /// The node was restarted or switched off.
    NodeRestarted,
    /// The clock was set while no profiler ran.
    ClockSet,
    /// The profiler ran and got no reading in time: the driver or the node was blocked.
    ReadingsLate,
    /// The driver could not be used.
    DriverFailed,
    /// The GPU could not be read.
    GpuLost,
    /// The GPU's energy counter restarted, as after a reload of the driver.
    CounterReset,
    /// The GPU's energy counter showed an impossible value.
    CounterInvalid,
    /// The GPU has no energy counter, and power was not read often enough to integrate it.
    NoCounter,
    /// The GPU supports neither power nor energy readings.
    NoMeter,
    /// The launcher had not reported the jobs yet.
    JobsNotReported,
    /// A process that belongs to no job used the GPU.
    OtherProcess,
}

impl UnknownCause {
    /// All causes.
    pub const ALL: [Self; 12] = [
        Self::ProfilerAway,
        Self::NodeRestarted,
        Self::ClockSet,
        Self::ReadingsLate,
        Self::DriverFailed,
        Self::GpuLost,
        Self::CounterReset,
        Self::CounterInvalid,
        Self::NoCounter,
        Self::NoMeter,
        Self::JobsNotReported,
        Self::OtherProcess,
    ];

    /// Its name in messages and CSV.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ProfilerAway => "profiler_away",
            Self::NodeRestarted => "node_restarted",
            Self::ClockSet => "clock_set",
            Self::ReadingsLate => "readings_late",
            Self::DriverFailed => "driver_failed",
            Self::GpuLost => "gpu_lost",
            Self::CounterReset => "counter_reset",
            Self::CounterInvalid => "counter_invalid",
            Self::NoCounter => "no_counter",
            Self::NoMeter => "no_meter",
            Self::JobsNotReported => "jobs_not_reported",
            Self::OtherProcess => "other_process",
        }
    }
}

impl fmt::Display for UnknownCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ProfilerAway => "no profiler ran",
            Self::NodeRestarted => "node restarted",
            Self::ClockSet => "clock set while no profiler ran",
            Self::ReadingsLate => "readings late",
            Self::DriverFailed => "driver failed",
            Self::GpuLost => "GPU not readable",
            Self::CounterReset => "energy counter reset",
            Self::CounterInvalid => "energy counter invalid",
            Self::NoCounter => "no energy counter",
            Self::NoMeter => "power and energy not supported",
            Self::JobsNotReported => "jobs not reported",
            Self::OtherProcess => "process of no job",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_named_as_in_messages() {
        for cause in UnknownCause::ALL {
            assert_eq!(serde_json::to_value(cause).unwrap(), cause.name());
        }
    }
}
