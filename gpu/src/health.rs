//! Readings of a GPU's modes and faults.
//!
//! A quantity that cannot be read is `None`, never "no fault". The power agent derives conditions from
//! the readings; this crate does not.

use wattle_common::messages::MemoryRepair;

/// Modes and faults of a GPU at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuHealth {
    /// Whether it is divided into instances (MIG). Absent before Ampere, which has no MIG.
    pub mig_enabled: Option<bool>,
    /// Whether its settings outlive the last program that uses it (persistence mode).
    pub persistence_enabled: Option<bool>,
    /// Uncorrected memory errors since the driver was loaded or the GPU was reset. Absent without ECC.
    pub ecc_errors_uncorrected: Option<u64>,
    /// Page retirement (before Ampere) or row remapping.
    pub memory_repair: Option<MemoryRepair>,
    /// Why its clocks are reduced.
    pub slowdown: Option<Slowdown>,
}

/// Causes that reduce a GPU's clocks from outside: neither its cap nor a locked clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slowdown {
    /// Its temperature, by software or hardware.
    pub thermal: bool,
    /// The power brake signal of its board, node or rack.
    pub power_brake: bool,
    /// Hardware, without a reported cause.
    pub hardware: bool,
}

impl Slowdown {
    /// NVML's `HwSlowdown`: set with each of the two more specific hardware causes.
    pub const HARDWARE: u64 = 0x8;
    /// NVML's `SwThermalSlowdown`.
    pub const SOFTWARE_THERMAL: u64 = 0x20;
    /// NVML's `HwThermalSlowdown`.
    pub const HARDWARE_THERMAL: u64 = 0x40;
    /// NVML's `HwPowerBrakeSlowdown`.
    pub const POWER_BRAKE: u64 = 0x80;

    /// The causes in NVML's throttle reasons.
    #[must_use]
    pub const fn of(throttle_reasons: u64) -> Self {
        let thermal = throttle_reasons & (Self::SOFTWARE_THERMAL | Self::HARDWARE_THERMAL) != 0;
        let power_brake = throttle_reasons & Self::POWER_BRAKE != 0;
        let cause_known = throttle_reasons & (Self::HARDWARE_THERMAL | Self::POWER_BRAKE) != 0;
        let hardware = throttle_reasons & Self::HARDWARE != 0 && !cause_known;
        Self { thermal, power_brake, hardware }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_slowdown_counts_under_its_reported_cause() {
        let none = Slowdown::default();
        // Idle, locked clock, power cap: not from outside.
        assert_eq!(Slowdown::of(1 | 2 | 4), none);
        let thermal = Slowdown { thermal: true, ..none };
        assert_eq!(Slowdown::of(0x20), thermal);
        assert_eq!(Slowdown::of(0x48), thermal);
        assert_eq!(Slowdown::of(0x88), Slowdown { power_brake: true, ..none });
        assert_eq!(Slowdown::of(0x8), Slowdown { hardware: true, ..none });
        // Software thermal slowdown is no cause of the hardware's.
        assert_eq!(Slowdown::of(0x28), Slowdown { thermal: true, hardware: true, ..none });
    }
}
