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
}

/// Every [`Feature`] with its name on the command line.
pub const FEATURES: [(Feature, &str); 11] = [
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
];

impl Feature {
    /// Bit of the feature in [`crate::state::Gpu::unsupported`].
    #[must_use]
    pub const fn bit(self) -> u64 {
        1 << self as u8
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
    /// Removes all faults.
    Clear,
}

/// An unknown fault name.
#[derive(Debug, thiserror::Error)]
#[error(
    "unknown fault `{0}`: use lost, no-permission, stuck-energy, clear, or unsupported:NAME with NAME one of {names}",
    names = FEATURES.map(|(_, name)| name).join(", ")
)]
pub struct UnknownFault(String);

impl FromStr for Fault {
    type Err = UnknownFault;
    fn from_str(text: &str) -> Result<Self, UnknownFault> {
        let unknown = || UnknownFault(text.to_owned());
        Ok(match text {
            "lost" => Self::Lost,
            "no-permission" => Self::NoPermission,
            "stuck-energy" => Self::StuckEnergy,
            "clear" => Self::Clear,
            _ => {
                let name = text.strip_prefix("unsupported:").ok_or_else(unknown)?;
                let known = FEATURES.iter().find(|(_, known)| *known == name);
                Self::Unsupported(known.ok_or_else(unknown)?.0)
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
            Self::Clear => f.write_str("clear"),
            Self::Unsupported(feature) => {
                let name = FEATURES.iter().find(|(known, _)| known == feature).map(|(_, n)| *n);
                write!(f, "unsupported:{}", name.unwrap_or("unknown"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_round_trip_through_text() {
        let mut all = vec![Fault::Lost, Fault::NoPermission, Fault::StuckEnergy, Fault::Clear];
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
