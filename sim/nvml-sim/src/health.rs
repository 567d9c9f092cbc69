//! Modes and faults of a simulated GPU that reduce or end its use: MIG, persistence mode, memory errors,
//! slowdowns.

use wattle_common::Frequency;
use wattle_world::GpuModel;

use crate::fault::SlowdownCause;

/// GPU types before Ampere: without MIG, and with page retirement in place of row remapping.
const BEFORE_AMPERE: [&str; 5] = ["k80", "p100", "v100", "t4", "rtx6000"];
/// Beginnings of GPU types with MIG: data-centre GPUs of Ampere and later.
const WITH_MIG: [&str; 4] = ["a100", "h100", "h200", "b200"];

/// Whether a GPU type has MIG.
#[must_use]
pub fn has_mig(model: &GpuModel) -> bool {
    WITH_MIG.iter().any(|family| model.gpu_type.starts_with(family))
}

/// Whether a GPU type replaces defective rows; older types retire pages.
#[must_use]
pub fn remaps_rows(model: &GpuModel) -> bool {
    !BEFORE_AMPERE.contains(&model.gpu_type.as_str())
}

/// Modes and faults of one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Whether MIG is enabled.
    pub mig: bool,
    /// Whether persistence mode is off.
    pub persistence_off: bool,
    /// Whether defective memory is replaced at the next load of the driver.
    pub repair_pending: bool,
    /// Whether defective memory could not be replaced.
    pub repair_failed: bool,
    /// Uncorrected memory errors since the driver was loaded.
    pub ecc_errors: u64,
    /// Cause of a slowdown from outside.
    pub slowdown: Option<SlowdownCause>,
}

impl Health {
    /// After the driver was loaded again: counts are zero, memory is replaced, persistence mode is off.
    #[must_use]
    pub fn reloaded(self) -> Self {
        Self { persistence_off: true, repair_pending: false, ecc_errors: 0, ..self }
    }

    /// Upper limit of the clock under a slowdown: half of the highest, as documented for hardware
    /// slowdowns.
    #[must_use]
    pub fn clock_max(self, model: &GpuModel) -> Option<Frequency> {
        self.slowdown?;
        let half = model.clock_max().as_mhz() / 2;
        let below = model.clocks.iter().filter(|clock| clock.as_mhz() <= half).max();
        below.or(model.clocks.iter().min()).copied()
    }
}
