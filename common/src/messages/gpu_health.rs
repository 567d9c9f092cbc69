//! The health of a GPU in the power agent's report ([`crate::messages::PowerReport`]): what was read,
//! and the conditions that the agent derives from it.
//!
//! A quantity that cannot be read is absent. A condition begins and ends by the agent's decision, so a
//! reading that changes back and forth does not change it at once.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// The health of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuHealth {
    /// Whether it is divided into instances (MIG).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_enabled: Option<bool>,
    /// Whether its settings outlive the last program that uses it (persistence mode).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistence_enabled: Option<bool>,
    /// Uncorrected memory errors since the driver was loaded or the GPU was reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecc_errors_uncorrected: Option<u64>,
    /// Whether defective memory is to be replaced by spare memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_repair: Option<MemoryRepair>,
    /// Whether it gets no new jobs because of a condition; running jobs continue.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_new_jobs: bool,
    /// Its conditions, the most severe first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<GpuCondition>,
}

/// State of the replacement of defective memory: page retirement or row remapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryRepair {
    /// Nothing is to be replaced.
    None,
    /// Memory is replaced at the next reset of the GPU.
    Pending,
    /// Memory could not be replaced.
    Failed,
}

/// A condition of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuCondition {
    /// Which one.
    pub condition: GpuConditionKind,
    /// Since when.
    pub since_us: Timestamp,
    /// The driver's error or a count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// The conditions of a GPU, the most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuConditionKind {
    /// No GPU of the node can be read.
    DriverFailed,
    /// It does not respond, or has responded again for less than the hold time.
    Lost,
    /// Defective memory could not be replaced.
    MemoryRepairFailed,
    /// Uncorrected memory errors increase.
    EccErrors,
    /// Defective memory is replaced at the next reset.
    MemoryRepairPending,
    /// It is divided into instances.
    MigEnabled,
    /// It is slowed because of its temperature.
    ThermalSlowdown,
    /// It is slowed by an external power brake.
    PowerBrake,
    /// It is slowed by hardware for another cause.
    HardwareSlowdown,
    /// Its settings are lost when the last program that uses it ends.
    PersistenceOff,
    /// A condition that this release does not know.
    #[serde(other)]
    Other,
}

impl GpuConditionKind {
    /// Every known condition.
    pub const ALL: [Self; 10] = [
        Self::DriverFailed,
        Self::Lost,
        Self::MemoryRepairFailed,
        Self::EccErrors,
        Self::MemoryRepairPending,
        Self::MigEnabled,
        Self::ThermalSlowdown,
        Self::PowerBrake,
        Self::HardwareSlowdown,
        Self::PersistenceOff,
    ];

    /// Whether a GPU with this condition gets no new jobs.
    #[must_use]
    pub const fn keeps_jobs_away(self) -> bool {
        match self {
            Self::DriverFailed
            | Self::Lost
            | Self::MemoryRepairFailed
            | Self::EccErrors
            | Self::MemoryRepairPending
            | Self::MigEnabled => true,
            Self::ThermalSlowdown
            | Self::PowerBrake
            | Self::HardwareSlowdown
            | Self::PersistenceOff
            | Self::Other => false,
        }
    }

    /// Whether something is broken; the other conditions are modes and limits.
    #[must_use]
    pub const fn is_fault(self) -> bool {
        self.keeps_jobs_away() && !matches!(self, Self::MigEnabled)
    }

    /// Its name in messages and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DriverFailed => "driver-failed",
            Self::Lost => "lost",
            Self::MemoryRepairFailed => "memory-repair-failed",
            Self::EccErrors => "ecc-errors",
            Self::MemoryRepairPending => "memory-repair-pending",
            Self::MigEnabled => "mig-enabled",
            Self::ThermalSlowdown => "thermal-slowdown",
            Self::PowerBrake => "power-brake",
            Self::HardwareSlowdown => "hardware-slowdown",
            Self::PersistenceOff => "persistence-off",
            Self::Other => "other",
        }
    }

    /// The condition in words; its subject is the GPU.
    #[must_use]
    pub const fn description(self) -> &'static str {
        match self {
            Self::DriverFailed => "cannot be read: the driver does not work",
            Self::Lost => "does not respond, or responds again only since a moment ago",
            Self::MemoryRepairFailed => "has defective memory that cannot be replaced: no new jobs",
            Self::EccErrors => "has uncorrected memory errors: no new jobs",
            Self::MemoryRepairPending => {
                "has defective memory that is replaced at its next reset: no new jobs"
            }
            Self::MigEnabled => "is in MIG mode: Wattle places no jobs on it and sets nothing",
            Self::ThermalSlowdown => "is slowed because of its temperature",
            Self::PowerBrake => "is slowed by the power brake",
            Self::HardwareSlowdown => "is slowed by hardware; the driver does not report the cause",
            Self::PersistenceOff => {
                "has persistence mode off: its cap and clock are lost when the last program that \
                 uses it ends"
            }
            Self::Other => "has a condition that this release does not know",
        }
    }

    /// What an operator does about it.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::DriverFailed => "run `nvidia-smi`; load the driver, or reboot the node",
            Self::Lost => {
                "look for Xid messages in the kernel log; reset the GPU with `nvidia-smi -r`, or \
                 reboot the node"
            }
            Self::MemoryRepairFailed => "replace the GPU",
            Self::EccErrors => {
                "let its jobs end, then reset it with `nvidia-smi -r`; replace it if errors return"
            }
            Self::MemoryRepairPending => "let its jobs end, then reset it with `nvidia-smi -r`",
            Self::MigEnabled => "`nvidia-smi -mig 0` returns it to Wattle",
            Self::ThermalSlowdown => "check fans, air flow and the temperature of the room",
            Self::PowerBrake => "check the power supplies of the node and the rack",
            Self::HardwareSlowdown => "check the temperature and the power supplies",
            Self::PersistenceOff => "run nvidia-persistenced, or `nvidia-smi -pm 1`",
            Self::Other => "update this program",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_messages() {
        for condition in GpuConditionKind::ALL {
            let name = serde_json::to_value(condition).unwrap();
            assert_eq!(name, condition.as_str());
        }
    }

    #[test]
    fn conditions_are_in_order_of_severity() {
        assert!(GpuConditionKind::ALL.is_sorted());
        let away = GpuConditionKind::ALL.map(GpuConditionKind::keeps_jobs_away);
        assert!(away.is_sorted_by(|a, b| a >= b), "those without jobs come first: {away:?}");
    }

    #[test]
    fn unknown_condition_of_a_newer_agent_is_readable() {
        let text = r#"{"condition":"on-fire","since_us":7}"#;
        let condition: GpuCondition = serde_json::from_str(text).unwrap();
        assert_eq!(condition.condition, GpuConditionKind::Other);
    }
}
