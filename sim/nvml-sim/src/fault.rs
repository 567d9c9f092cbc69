//! Faults that can be injected into a simulated GPU.
//!
//! A fault is part of the node's state, so it affects every process, until it is cleared.

use std::fmt;
use std::str::FromStr;

/// A group of driver functions that a GPU may not support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Power usage.
    Power,
    /// The energy counter.
    Energy,
    /// Utilisation of GPU and memory.
    Utilization,
    /// Memory used and free.
    Memory,
    /// Temperature.
    Temperature,
    /// Clocks, and the list of supported ones.
    Clock,
    /// Power cap: reading and setting.
    Cap,
    /// Locked clocks: setting and resetting.
    LockedClocks,
    /// Throttle reasons.
    ThrottleReasons,
    /// Running processes.
    Processes,
    /// Utilisation of each process.
    ProcessUtilization,
    /// MIG mode.
    Mig,
    /// Persistence mode.
    Persistence,
    /// Counts of memory errors.
    Ecc,
    /// Page retirement and row remapping.
    MemoryRepair,
    /// Setting the power cap, which can still be read.
    CapSetting,
}

/// Every [`Feature`] with its name on the command line.
pub const FEATURES: [(Feature, &str); 16] = [
    (Feature::Power, "power"),
    (Feature::Energy, "energy"),
    (Feature::Utilization, "utilization"),
    (Feature::Memory, "memory"),
    (Feature::Temperature, "temperature"),
    (Feature::Clock, "clock"),
    (Feature::Cap, "cap"),
    (Feature::LockedClocks, "locked-clocks"),
    (Feature::ThrottleReasons, "throttle-reasons"),
    (Feature::Processes, "processes"),
    (Feature::ProcessUtilization, "process-utilization"),
    (Feature::Mig, "mig"),
    (Feature::Persistence, "persistence"),
    (Feature::Ecc, "ecc"),
    (Feature::MemoryRepair, "memory-repair"),
    (Feature::CapSetting, "cap-setting"),
];

impl Feature {
    /// Bit of the feature in [`crate::state::Gpu::unsupported`].
    #[must_use]
    pub const fn bit(self) -> u64 {
        1 << self as u8
    }
}

/// A cause that reduces the clocks from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowdownCause {
    /// The driver, because of the temperature.
    SoftwareThermal,
    /// The hardware, because of the temperature.
    HardwareThermal,
    /// The power brake signal.
    PowerBrake,
    /// The hardware, without a reported cause.
    Hardware,
}

/// Every [`SlowdownCause`] with its name on the command line.
pub const SLOWDOWNS: [(SlowdownCause, &str); 4] = [
    (SlowdownCause::SoftwareThermal, "sw-thermal"),
    (SlowdownCause::HardwareThermal, "hw-thermal"),
    (SlowdownCause::PowerBrake, "power-brake"),
    (SlowdownCause::Hardware, "hw"),
];

impl SlowdownCause {
    /// Its bits in NVML's throttle reasons; a hardware cause also sets the general hardware bit.
    #[must_use]
    pub const fn bits(self) -> u64 {
        match self {
            Self::SoftwareThermal => 0x20,
            Self::HardwareThermal => 0x40 | 0x8,
            Self::PowerBrake => 0x80 | 0x8,
            Self::Hardware => 0x8,
        }
    }
}

/// A fault, or the removal of all faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The GPU fell off the bus: every call fails and its tenants stop.
    Lost,
    /// Setting caps and clocks fails with a permission error.
    NoPermission,
    /// Functions of this group return "not supported".
    Unsupported(Feature),
    /// The energy counter is constant.
    StuckEnergy,
    /// MIG is enabled. GPU types before Ampere refuse it.
    Mig,
    /// Persistence mode is off.
    PersistenceOff,
    /// Adds uncorrected memory errors.
    EccErrors(u64),
    /// Defective memory is replaced at the next load of the driver.
    RepairPending,
    /// Defective memory could not be replaced.
    RepairFailed,
    /// The clock is halved.
    Slowdown(SlowdownCause),
    /// Removes all faults.
    Clear,
}

/// An unknown fault name.
#[derive(Debug, thiserror::Error)]
#[error(
    "unknown fault `{0}`: use lost, no-permission, stuck-energy, mig, persistence-off, ecc-errors:COUNT, \
     repair-pending, repair-failed, clear, slowdown:CAUSE with CAUSE one of {causes}, or unsupported:NAME \
     with NAME one of {names}",
    causes = SLOWDOWNS.map(|(_, name)| name).join(", "),
    names = FEATURES.map(|(_, name)| name).join(", ")
)]
pub struct UnknownFault(String);

/// The value with this name.
fn named<T: Copy>(all: &[(T, &str)], name: &str) -> Option<T> {
    all.iter().find(|(_, known)| *known == name).map(|(value, _)| *value)
}

/// The name of a value.
fn name_of<T: PartialEq>(all: &[(T, &'static str)], value: &T) -> &'static str {
    all.iter().find(|(known, _)| known == value).map_or("unknown", |(_, name)| *name)
}

impl FromStr for Fault {
    type Err = UnknownFault;
    fn from_str(text: &str) -> Result<Self, UnknownFault> {
        let unknown = || UnknownFault(text.to_owned());
        Ok(match text {
            "lost" => Self::Lost,
            "no-permission" => Self::NoPermission,
            "stuck-energy" => Self::StuckEnergy,
            "mig" => Self::Mig,
            "persistence-off" => Self::PersistenceOff,
            "repair-pending" => Self::RepairPending,
            "repair-failed" => Self::RepairFailed,
            "clear" => Self::Clear,
            _ => {
                let (fault, value) = text.split_once(':').ok_or_else(unknown)?;
                let of_value = match fault {
                    "unsupported" => named(&FEATURES, value).map(Self::Unsupported),
                    "slowdown" => named(&SLOWDOWNS, value).map(Self::Slowdown),
                    "ecc-errors" => value.parse().ok().map(Self::EccErrors),
                    _ => None,
                };
                of_value.ok_or_else(unknown)?
            }
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost => f.write_str("lost"),
            Self::NoPermission => f.write_str("no-permission"),
            Self::StuckEnergy => f.write_str("stuck-energy"),
            Self::Mig => f.write_str("mig"),
            Self::PersistenceOff => f.write_str("persistence-off"),
            Self::EccErrors(count) => write!(f, "ecc-errors:{count}"),
            Self::RepairPending => f.write_str("repair-pending"),
            Self::RepairFailed => f.write_str("repair-failed"),
            Self::Slowdown(cause) => write!(f, "slowdown:{}", name_of(&SLOWDOWNS, cause)),
            Self::Clear => f.write_str("clear"),
            Self::Unsupported(feature) => write!(f, "unsupported:{}", name_of(&FEATURES, feature)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_round_trip_through_text() {
        let mut all = vec![Fault::Lost, Fault::NoPermission, Fault::StuckEnergy, Fault::Clear];
        all.extend([Fault::Mig, Fault::PersistenceOff, Fault::EccErrors(7)]);
        all.extend([Fault::RepairPending, Fault::RepairFailed]);
        all.extend(SLOWDOWNS.map(|(cause, _)| Fault::Slowdown(cause)));
        all.extend(FEATURES.map(|(feature, _)| Fault::Unsupported(feature)));
        for fault in all {
            assert_eq!(fault.to_string().parse::<Fault>().unwrap(), fault);
        }
        let error = "unsupported:teapot".parse::<Fault>().unwrap_err().to_string();
        assert!(error.contains("process-utilization"), "{error}");
    }

    #[test]
    fn bits_are_distinct() {
        let bits = FEATURES.iter().fold(0, |bits, (feature, _)| bits | feature.bit());
        assert_eq!(bits.count_ones() as usize, FEATURES.len());
    }
}
