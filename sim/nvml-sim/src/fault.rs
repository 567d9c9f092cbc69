//! What can be made to go wrong with a simulated card, by name.
//!
//! A fault lies in the node's state, so every process sees it, and stays until it is cleared.

use std::fmt;
use std::str::FromStr;

/// A group of driver calls that a card may lack, as older or cut-down cards do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
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
    /// Power limit: reading and setting.
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

/// Every [`Reading`] with its name on the command line.
pub const READINGS: [(Reading, &str); 11] = [
    (Reading::Power, "power"),
    (Reading::Energy, "energy"),
    (Reading::Utilization, "utilization"),
    (Reading::Memory, "memory"),
    (Reading::Temperature, "temperature"),
    (Reading::Clock, "clock"),
    (Reading::Cap, "cap"),
    (Reading::LockedClocks, "locked-clocks"),
    (Reading::ThrottleReasons, "throttle-reasons"),
    (Reading::Processes, "processes"),
    (Reading::ProcessUtilization, "process-utilization"),
];

impl Reading {
    /// Its bit in the state.
    #[must_use]
    pub const fn bit(self) -> u64 {
        1 << self as u8
    }
}

/// One thing that goes wrong, or all put right again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The card has fallen off the bus: every call fails, its tenants stop.
    Lost,
    /// Setting caps and clocks is refused, as to a user without the right.
    NoPermission,
    /// Calls of this group answer "not supported".
    Unsupported(Reading),
    /// The energy counter shows the same value for ever.
    StuckEnergy,
    /// All faults of the card are gone.
    Clear,
}

/// A text that names no fault.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{0}` is no fault; use lost, no-permission, stuck-energy, clear, or unsupported:NAME with NAME one of {names}",
    names = READINGS.map(|(_, name)| name).join(", ")
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
                let known = READINGS.iter().find(|(_, known)| *known == name);
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
            Self::Unsupported(reading) => {
                let name = READINGS.iter().find(|(known, _)| known == reading).map(|(_, n)| *n);
                write!(f, "unsupported:{}", name.unwrap_or("unknown"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_read_as_they_show() {
        let mut all = vec![Fault::Lost, Fault::NoPermission, Fault::StuckEnergy, Fault::Clear];
        all.extend(READINGS.map(|(reading, _)| Fault::Unsupported(reading)));
        for fault in all {
            assert_eq!(fault.to_string().parse::<Fault>().unwrap(), fault);
        }
        let error = "unsupported:teapot".parse::<Fault>().unwrap_err().to_string();
        assert!(error.contains("process-utilization"), "{error}");
    }

    #[test]
    fn bits_are_distinct() {
        let bits = READINGS.iter().fold(0, |bits, (reading, _)| bits | reading.bit());
        assert_eq!(bits.count_ones() as usize, READINGS.len());
    }
}
