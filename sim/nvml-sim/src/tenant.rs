//! Cards and the claims on them: the values a node's state is made of.

use wattle_common::units::EnergyMeter;
use wattle_common::{Energy, Frequency, JobId, Power, WorkloadId};

use crate::fault::{Fault, READINGS};

/// Most processes that can hold cards of one node at once.
pub const CLAIMS_MAX: usize = 64;
/// Most processes on one card. More than the four that published co-location work tries.
pub const TENANTS_MAX: usize = 8;

/// Steps in billionths: the unit of a rate of steps. A rate times microseconds gives
/// [`FEMTOSTEPS`].
pub const NANOSTEPS: f64 = 1e9;
/// How many of the unit in which steps are counted make one step.
pub const FEMTOSTEPS: u128 = 1_000_000_000_000_000;

/// What one process has on one card.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Which claim of the node.
    pub claim: usize,
    /// Its part of the card's utilisation, 0 to 1.
    pub utilization: f64,
}

/// One card.
#[derive(Clone, Debug, PartialEq)]
pub struct Card {
    /// The power cap in force.
    pub cap: Power,
    /// The highest clock that is allowed, where one is locked.
    pub clock_max: Option<Frequency>,
    /// Energy until the node was last settled.
    pub meter: EnergyMeter,
    /// Power since then.
    pub power: Power,
    /// The clock it runs at.
    pub clock: Frequency,
    /// Share of time its cores are busy, 0 to 1.
    pub utilization_gpu: f64,
    /// Share of time its memory is busy, 0 to 1.
    pub utilization_memory: f64,
    /// Whether the cap holds its power down.
    pub power_capped: bool,
    /// Fallen off the bus.
    pub lost: bool,
    /// Settings are refused.
    pub no_permission: bool,
    /// The value at which the energy counter is stuck.
    pub energy_stuck: Option<Energy>,
    /// Bits of the [`Reading`]s it does not support.
    pub unsupported: u64,
    /// Who is on it, in the order of their claims.
    pub shares: Vec<Share>,
}

impl Card {
    /// What is wrong with it.
    #[must_use]
    pub fn faults(&self) -> Vec<Fault> {
        let unsupported =
            READINGS.iter().filter(|(reading, _)| self.unsupported & reading.bit() != 0);
        let flags = [
            (self.lost, Fault::Lost),
            (self.no_permission, Fault::NoPermission),
            (self.energy_stuck.is_some(), Fault::StuckEnergy),
        ];
        let set = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, fault)| fault);
        set.chain(unsupported.map(|(reading, _)| Fault::Unsupported(*reading))).collect()
    }
}

/// How far a claim is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Holds memory and waits for the job's other processes; computes nothing.
    Waiting,
    /// Trains.
    Running,
    /// Has ended by itself, done or checkpointed; computes nothing and will soon be gone.
    Ended,
}

/// What a process takes when it comes: the same on each of its cards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRequest {
    /// The process.
    pub pid: u32,
    /// The job it trains.
    pub job: JobId,
    /// What kind of job that is.
    pub workload: WorkloadId,
    /// Which start of the job this is.
    pub attempt: u32,
    /// Which of the job's processes this is, from 0.
    pub rank: u32,
    /// How many processes, and so nodes, the job has.
    pub nodes: u32,
    /// The cards it takes on this node: bit `i` for card `i`.
    pub cards: u64,
}

/// A process on this node's cards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Distinguishes it from earlier claims in the same place.
    pub serial: u64,
    /// What it asked for.
    pub request: ClaimRequest,
    /// How far it is.
    pub phase: Phase,
    /// How many cards its job has in all, on every node.
    pub gpus_total: u32,
    /// Device memory it holds on each of its cards.
    pub memory_mib: u64,
    /// What this node alone would let it do, in nanosteps a second.
    pub rate_here: u64,
    /// What the slowest of its other nodes allows, in nanosteps a second.
    pub rate_max: u64,
    /// Steps until the node was last settled, in [`FEMTOSTEPS`].
    pub femtosteps: u128,
}

impl Claim {
    /// The rate at which it advances, in nanosteps a second.
    #[must_use]
    pub fn rate(&self) -> u64 {
        if self.phase == Phase::Running { self.rate_here.min(self.rate_max) } else { 0 }
    }
}
