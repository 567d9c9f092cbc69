//! Values of a node's state: GPUs and the claims on them.

use wattle_common::units::EnergyMeter;
use wattle_common::{Energy, Frequency, JobId, Power, WorkloadId};

use crate::fault::{FEATURES, Fault};
use crate::health::Health;

/// Maximum number of processes that hold GPUs of one node.
pub const CLAIMS_MAX: usize = 64;
/// Maximum number of processes per GPU; published work on co-location uses up to four.
pub const TENANTS_MAX: usize = 8;

/// Nanosteps per step. Rates are in nanosteps per second, so rate times microseconds is in
/// femtosteps.
pub const NANOSTEPS: f64 = 1e9;
/// Femtosteps per step: the unit of counted steps.
pub const FEMTOSTEPS: u128 = 1_000_000_000_000_000;

/// Use of one GPU by one process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Slot of its claim.
    pub claim: usize,
    /// Its share of the GPU's time, 0 to 1.
    pub utilization: f64,
}

/// A simulated GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    /// Power cap in force.
    pub cap: Power,
    /// Upper limit on the clock, if locked.
    pub clock_max: Option<Frequency>,
    /// Energy up to [`crate::state::NodeState::advanced_to`].
    pub meter: EnergyMeter,
    /// Power since then.
    pub power: Power,
    /// Current clock.
    pub clock: Frequency,
    /// Share of time with a kernel running, 0 to 1.
    pub utilization_gpu: f64,
    /// Share of time with memory accesses, 0 to 1.
    pub utilization_memory: f64,
    /// Whether the cap limits power.
    pub power_capped: bool,
    /// Whether it fell off the bus.
    pub lost: bool,
    /// Whether settings are refused.
    pub no_permission: bool,
    /// Value of a stuck energy counter.
    pub energy_stuck: Option<Energy>,
    /// Bits of unsupported [`crate::fault::Feature`]s.
    pub unsupported: u64,
    /// Its modes and faults.
    pub health: Health,
    /// Its tenants, by slot of their claims.
    pub shares: Vec<Share>,
}

impl Gpu {
    /// Its current faults.
    #[must_use]
    pub fn faults(&self) -> Vec<Fault> {
        let unsupported =
            FEATURES.iter().filter(|(feature, _)| self.unsupported & feature.bit() != 0);
        let flags = [
            (self.lost, Fault::Lost),
            (self.no_permission, Fault::NoPermission),
            (self.energy_stuck.is_some(), Fault::StuckEnergy),
        ];
        let health = self.health;
        let modes = [
            (health.mig, Fault::Mig),
            (health.persistence_off, Fault::PersistenceOff),
            (health.ecc_errors > 0, Fault::EccErrors(health.ecc_errors)),
            (health.repair_pending, Fault::RepairPending),
            (health.repair_failed, Fault::RepairFailed),
        ];
        let flags = flags.into_iter().chain(modes);
        let set = flags.filter(|(is_set, _)| *is_set).map(|(_, fault)| fault);
        let slowdown = health.slowdown.map(Fault::Slowdown);
        set.chain(slowdown)
            .chain(unsupported.map(|(feature, _)| Fault::Unsupported(*feature)))
            .collect()
    }
}

/// Phase of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Holds memory and waits for the job's other processes; idle.
    Waiting,
    /// Training.
    Running,
    /// Completed or checkpointed; idle and about to be released.
    Ended,
}

/// Request of a process for GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRequest {
    /// Process id.
    pub pid: u32,
    /// Its job.
    pub job: JobId,
    /// The job's workload.
    pub workload: WorkloadId,
    /// Attempt number of the job.
    pub attempt: u32,
    /// Rank of the process in the job, from 0.
    pub rank: u32,
    /// Number of the job's processes, one per node.
    pub nodes: u32,
    /// Requested GPUs of this node: bit `i` for GPU `i`.
    pub gpus: u64,
}

/// GPUs held by one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Unique number of the claim on its node.
    pub serial: u64,
    /// The granted request.
    pub request: ClaimRequest,
    /// Current phase.
    pub phase: Phase,
    /// Total number of the job's GPUs on all nodes.
    pub gpus_total: u32,
    /// Device memory in use per GPU, MiB.
    pub memory_mib: u64,
    /// Rate that this node allows, nanosteps per second.
    pub local_rate: u64,
    /// Rate that the slowest other node allows, nanosteps per second.
    pub peer_rate: u64,
    /// Femtosteps up to [`crate::state::NodeState::advanced_to`].
    pub femtosteps: u128,
}

impl Claim {
    /// Current rate, nanosteps per second.
    #[must_use]
    pub fn rate(&self) -> u64 {
        if self.phase == Phase::Running { self.local_rate.min(self.peer_rate) } else { 0 }
    }
}
