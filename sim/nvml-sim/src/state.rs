//! State of a simulated node and the events that change it.
//!
//! Between two events the power of each GPU and the rate of each claim are constant. An event first
//! advances the integrals of energy and steps to its instant (in integers, so the number of
//! intermediate updates does not change the result), then changes the state, then computes the new
//! power and rates from the world. This module reads no clock and has no I/O.

use std::time::Duration;

use wattle_common::units::EnergyMeter;
use wattle_common::{Energy, Frequency, Power, Timestamp, WorkloadId};
use wattle_world::{GpuModel, Setting, Tenant, World};

use crate::driver::DriverState;
use crate::fault::{Fault, Feature};
use crate::health::{self, Health};
pub use crate::tenant::{
    CLAIMS_MAX, Claim, ClaimRequest, FEMTOSTEPS, Gpu, NANOSTEPS, Phase, Share, TENANTS_MAX,
};

/// Why an event is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// No GPU with this index.
    #[error("the node has no GPU {0}")]
    NoGpu(u32),
    /// The driver is not loaded.
    #[error("the driver is not loaded; load it with: wattle-simnode driver load")]
    NoDriver,
    /// The GPU is lost.
    #[error("GPU {0} is lost; clear the fault with: wattle-simnode fault --gpu {0} clear")]
    Lost(u32),
    /// The catalog lacks the workload.
    #[error("the catalog has no workload `{0}`")]
    NoWorkload(WorkloadId),
    /// Insufficient device memory.
    #[error("out of memory on GPU {gpu}: {requested} MiB requested, {free} MiB free")]
    OutOfMemory {
        /// The GPU.
        gpu: usize,
        /// Memory of the claim, MiB.
        requested: u64,
        /// Free memory, MiB.
        free: u64,
    },
    /// No free slot.
    #[error("too many processes: at most {TENANTS_MAX} per GPU and {CLAIMS_MAX} per node")]
    Full,
    /// Settings are refused by a fault.
    #[error("permission denied: cannot change settings of GPU {0}")]
    NoPermission(u32),
    /// The GPU does not support the function.
    #[error("not supported by GPU {0}")]
    Unsupported(u32),
    /// A value out of range.
    #[error("{requested} is outside {min} to {max}")]
    OutOfRange {
        /// Requested value.
        requested: String,
        /// Lowest valid value.
        min: String,
        /// Highest valid value.
        max: String,
    },
    /// The claim has been released.
    #[error("the process no longer holds GPUs")]
    NoClaim,
}

/// State of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeState {
    /// Instant up to which energy and steps are integrated.
    pub advanced_to: Timestamp,
    /// Serial number of the next claim.
    pub next_serial: u64,
    /// Whether the driver is loaded.
    pub driver: DriverState,
    /// Its GPUs.
    pub gpus: Vec<Gpu>,
    /// Claims by slot; a claim keeps its slot until it is released.
    pub claims: Vec<Option<Claim>>,
}

/// The hardware model of a node: the catalog and the GPU model.
#[derive(Clone, Copy, Debug)]
pub struct Hardware<'a> {
    /// The catalog.
    pub world: &'a World,
    /// The GPU model of the node.
    pub model: &'a GpuModel,
}

impl NodeState {
    /// A node of `gpus` idle GPUs at default cap, from `at` on.
    #[must_use]
    pub fn new(hardware: Hardware<'_>, gpus: usize, at: Timestamp) -> Self {
        let gpu = Gpu {
            cap: hardware.model.cap_default,
            clock_max: None,
            meter: EnergyMeter::default(),
            power: Power::ZERO,
            clock: Frequency::ZERO,
            utilization_gpu: 0.0,
            utilization_memory: 0.0,
            power_capped: false,
            lost: false,
            no_permission: false,
            energy_stuck: None,
            unsupported: 0,
            health: Health::default(),
            shares: Vec::new(),
        };
        let mut state = Self {
            advanced_to: at,
            next_serial: 1,
            driver: DriverState::default(),
            gpus: vec![gpu; gpus],
            claims: vec![None; CLAIMS_MAX],
        };
        state.update_rates(hardware);
        state
    }

    /// Integrates energy and steps up to `at`; no effect if `at` is in the past.
    pub fn advance(&mut self, at: Timestamp) {
        let span = at.since(self.advanced_to);
        for gpu in &mut self.gpus {
            gpu.meter.add(gpu.power, span);
        }
        for claim in self.claims.iter_mut().flatten() {
            claim.femtosteps += u128::from(claim.rate()) * span.as_micros();
        }
        self.advanced_to = self.advanced_to.max(at);
    }

    /// Computes power and rates until the next event.
    fn update_rates(&mut self, hardware: Hardware<'_>) {
        for claim in self.claims.iter_mut().flatten() {
            let active = claim.phase == Phase::Running && claim.request.gpus != 0;
            claim.local_rate = if active { u64::MAX } else { 0 };
        }
        for index in 0..self.gpus.len() {
            self.update_gpu(hardware, index);
        }
    }

    fn update_gpu(&mut self, hardware: Hardware<'_>, index: usize) {
        let lost = self.lost_gpus();
        let bit = 1 << index;
        let mut present = Vec::new();
        let mut tenants = Vec::new();
        for (slot, claim) in self.claims.iter().enumerate() {
            let Some(claim) = claim.as_ref().filter(|c| c.request.gpus & bit != 0) else {
                continue;
            };
            // A job with a lost GPU makes no progress on its other GPUs.
            let computes = claim.phase == Phase::Running && claim.request.gpus & lost == 0;
            let workload = hardware.world.workload(claim.request.workload.as_str());
            if let Some(workload) = workload.filter(|_| computes) {
                tenants.push(Tenant {
                    workload,
                    gpus: claim.gpus_total.max(1),
                    nodes: claim.request.nodes.max(1),
                });
                present.push((slot, true));
            } else {
                present.push((slot, false));
            }
        }
        let gpu = &mut self.gpus[index];
        let clock_max =
            [gpu.clock_max, gpu.health.clock_max(hardware.model)].into_iter().flatten().min();
        let setting = Setting { cap: Some(gpu.cap), clock_max };
        let now = hardware.world.gpu_state(hardware.model, setting, &tenants);
        gpu.power = now.power;
        gpu.clock = now.clock;
        gpu.utilization_gpu = now.utilization_gpu;
        gpu.utilization_memory = now.utilization_memory;
        gpu.power_capped = now.power_capped;
        gpu.shares.clear();
        let mut computing = now.tenants.iter();
        for (claim, computes) in present {
            let tenant = if computes { computing.next() } else { None };
            let utilization = tenant.map_or(0.0, |tenant| tenant.utilization_gpu);
            let rate = tenant.map_or(0, |tenant| (tenant.steps_per_s * NANOSTEPS).round() as u64);
            gpu.shares.push(Share { claim, utilization });
            if let Some(claim) = &mut self.claims[claim] {
                // A synchronous job advances at the rate of its slowest GPU.
                claim.local_rate = claim.local_rate.min(rate);
            }
        }
    }

    /// Lost GPUs; all without a driver.
    fn lost_gpus(&self) -> u64 {
        if self.driver.load().is_none() {
            return u64::MAX;
        }
        self.gpus.iter().enumerate().filter(|(_, c)| c.lost).fold(0, |bits, (i, _)| bits | 1 << i)
    }

    /// Whether a claim holds a lost GPU.
    #[must_use]
    pub fn has_lost_gpu(&self, claim: &Claim) -> bool {
        claim.request.gpus & self.lost_gpus() != 0
    }

    fn gpu_mut(&mut self, index: u32) -> Result<&mut Gpu, StateError> {
        self.gpus.get_mut(index as usize).ok_or(StateError::NoGpu(index))
    }

    /// A GPU that is not lost and supports `feature`.
    ///
    /// # Errors
    /// If the GPU does not exist, is lost, or does not support the feature.
    pub fn gpu(&self, index: u32, feature: Option<Feature>) -> Result<&Gpu, StateError> {
        let gpu = self.gpus.get(index as usize).ok_or(StateError::NoGpu(index))?;
        if self.driver.load().is_none() {
            return Err(StateError::NoDriver);
        }
        if gpu.lost {
            return Err(StateError::Lost(index));
        }
        match feature {
            Some(feature) if gpu.unsupported & feature.bit() != 0 => {
                Err(StateError::Unsupported(index))
            }
            _ => Ok(gpu),
        }
    }

    /// Sets the cap of a GPU from `at` on.
    ///
    /// # Errors
    /// If the cap is out of range or the GPU refuses.
    pub fn set_cap(
        &mut self,
        hardware: Hardware<'_>,
        at: Timestamp,
        index: u32,
        cap: Power,
    ) -> Result<(), StateError> {
        let model = hardware.model;
        self.gpu(index, Some(Feature::CapSetting))?;
        if self.gpu(index, Some(Feature::Cap))?.no_permission {
            return Err(StateError::NoPermission(index));
        }
        if cap < model.cap_min || cap > model.cap_max {
            return Err(StateError::OutOfRange {
                requested: cap.to_string(),
                min: model.cap_min.to_string(),
                max: model.cap_max.to_string(),
            });
        }
        self.event(hardware, at, |state| {
            state.gpus[index as usize].cap = cap;
            Ok(())
        })
    }

    /// Limits the clock of a GPU from `at` on; `None` removes the limit.
    ///
    /// # Errors
    /// If the GPU refuses.
    pub fn set_clock_max(
        &mut self,
        hardware: Hardware<'_>,
        at: Timestamp,
        index: u32,
        clock_max: Option<Frequency>,
    ) -> Result<(), StateError> {
        if self.gpu(index, Some(Feature::LockedClocks))?.no_permission {
            return Err(StateError::NoPermission(index));
        }
        self.event(hardware, at, |state| {
            state.gpus[index as usize].clock_max = clock_max;
            Ok(())
        })
    }

    /// Injects or clears faults of a GPU from `at` on.
    ///
    /// # Errors
    /// If the GPU does not exist.
    pub fn set_fault(
        &mut self,
        hardware: Hardware<'_>,
        at: Timestamp,
        index: u32,
        fault: Fault,
    ) -> Result<(), StateError> {
        self.event(hardware, at, |state| {
            let gpu = state.gpu_mut(index)?;
            let health = &mut gpu.health;
            match fault {
                Fault::Lost => gpu.lost = true,
                Fault::NoPermission => gpu.no_permission = true,
                Fault::Unsupported(feature) => gpu.unsupported |= feature.bit(),
                Fault::StuckEnergy => {
                    gpu.energy_stuck = gpu.energy_stuck.or(Some(gpu.meter.total()));
                }
                Fault::Mig if !health::has_mig(hardware.model) => {
                    return Err(StateError::Unsupported(index));
                }
                Fault::Mig => health.mig = true,
                Fault::PersistenceOff => health.persistence_off = true,
                Fault::EccErrors(count) => {
                    health.ecc_errors = health.ecc_errors.saturating_add(count);
                }
                Fault::RepairPending => health.repair_pending = true,
                Fault::RepairFailed => health.repair_failed = true,
                Fault::Slowdown(cause) => health.slowdown = Some(cause),
                Fault::Clear => {
                    gpu.health = Health::default();
                    gpu.lost = false;
                    gpu.no_permission = false;
                    gpu.unsupported = 0;
                    gpu.energy_stuck = None;
                }
            }
            Ok(())
        })
    }

    /// Unloads the driver from `at` on: no GPU can be used.
    pub fn unload_driver(&mut self, hardware: Hardware<'_>, at: Timestamp) {
        self.advance(at);
        self.driver = self.driver.unloaded();
        self.update_rates(hardware);
    }

    /// Loads the driver at `at`, if it is not loaded. Lost GPUs return. Caps, clocks, energy counters and
    /// counts of errors restart; persistence mode is off.
    pub fn load_driver(&mut self, hardware: Hardware<'_>, at: Timestamp) {
        self.advance(at);
        if self.driver.load().is_none() {
            self.driver = self.driver.loaded();
            for gpu in &mut self.gpus {
                gpu.cap = hardware.model.cap_default;
                gpu.clock_max = None;
                gpu.meter = EnergyMeter::default();
                gpu.energy_stuck = gpu.energy_stuck.map(|_| Energy::ZERO);
                gpu.lost = false;
                gpu.health = gpu.health.reloaded();
            }
        }
        self.update_rates(hardware);
    }

    /// Slot for a new claim: an empty one for which `is_free` holds.
    ///
    /// # Errors
    /// If the request cannot be granted.
    pub fn free_slot(
        &self,
        hardware: Hardware<'_>,
        request: &ClaimRequest,
        mut is_free: impl FnMut(usize) -> bool,
    ) -> Result<usize, StateError> {
        let workload = hardware
            .world
            .workload(request.workload.as_str())
            .ok_or_else(|| StateError::NoWorkload(request.workload.clone()))?;
        for index in (0..64u32).filter(|index| request.gpus & (1 << index) != 0) {
            let gpu = self.gpu(index, None)?;
            if gpu.shares.len() >= TENANTS_MAX {
                return Err(StateError::Full);
            }
            let free = hardware.model.memory_mib.saturating_sub(self.memory_mib(gpu));
            if workload.memory_mib > free {
                let (gpu, requested) = (index as usize, workload.memory_mib);
                return Err(StateError::OutOfMemory { gpu, requested, free });
            }
        }
        (0..self.claims.len())
            .find(|slot| self.claims[*slot].is_none() && is_free(*slot))
            .ok_or(StateError::Full)
    }

    /// Grants a claim at `at`, in the slot from [`Self::free_slot`], in phase [`Phase::Waiting`].
    /// Returns its serial number.
    ///
    /// # Errors
    /// If the catalog lacks its workload.
    pub fn claim(
        &mut self,
        hardware: Hardware<'_>,
        at: Timestamp,
        slot: usize,
        request: ClaimRequest,
    ) -> Result<u64, StateError> {
        let workload = hardware.world.workload(request.workload.as_str());
        let memory_mib =
            workload.ok_or_else(|| StateError::NoWorkload(request.workload.clone()))?.memory_mib;
        let gpus_total = request.gpus.count_ones();
        let serial = self.next_serial;
        self.event(hardware, at, |state| {
            state.next_serial += 1;
            state.claims[slot] = Some(Claim {
                serial,
                request,
                phase: Phase::Waiting,
                gpus_total,
                memory_mib,
                local_rate: 0,
                peer_rate: u64::MAX,
                femtosteps: 0,
            });
            Ok(serial)
        })
    }

    /// Changes a claim at `at`: its phase, the job's number of GPUs, the rate of its peers.
    ///
    /// # Errors
    /// If the claim has been released.
    pub fn change_claim(
        &mut self,
        hardware: Hardware<'_>,
        at: Timestamp,
        (slot, serial): (usize, u64),
        (phase, gpus_total, peer_rate): (Phase, u32, u64),
    ) -> Result<(), StateError> {
        self.event(hardware, at, |state| {
            let claim = state.claims.get_mut(slot).and_then(Option::as_mut);
            let claim = claim.filter(|c| c.serial == serial).ok_or(StateError::NoClaim)?;
            (claim.phase, claim.gpus_total, claim.peer_rate) = (phase, gpus_total, peer_rate);
            Ok(())
        })
    }

    /// Releases the claims in `slots` at `at`.
    pub fn release(&mut self, hardware: Hardware<'_>, at: Timestamp, slots: &[usize]) {
        let done: Result<(), StateError> = self.event(hardware, at, |state| {
            for slot in slots {
                state.claims[*slot] = None;
            }
            Ok(())
        });
        debug_assert_eq!(done, Ok(()));
    }

    fn event<T>(
        &mut self,
        hardware: Hardware<'_>,
        at: Timestamp,
        change: impl FnOnce(&mut Self) -> Result<T, StateError>,
    ) -> Result<T, StateError> {
        self.advance(at);
        let changed = change(self)?;
        self.update_rates(hardware);
        Ok(changed)
    }

    /// Energy of a GPU at `at`, including fractions of a millijoule.
    #[must_use]
    pub fn energy(&self, gpu: &Gpu, at: Timestamp) -> EnergyMeter {
        let mut meter = gpu.meter;
        meter.add(gpu.power, at.since(self.advanced_to));
        meter
    }

    /// Value of a GPU's energy counter at `at`.
    #[must_use]
    pub fn energy_counter(&self, gpu: &Gpu, at: Timestamp) -> Energy {
        gpu.energy_stuck.unwrap_or_else(|| self.energy(gpu, at).total())
    }

    /// Completed steps of a claim at `at`.
    #[must_use]
    pub fn steps(&self, claim: &Claim, at: Timestamp) -> u64 {
        let span = at.since(self.advanced_to).as_micros();
        ((claim.femtosteps + u128::from(claim.rate()) * span) / FEMTOSTEPS) as u64
    }

    /// Time from `at` until a claim has completed `steps` steps at its current rate; `None` if the
    /// rate is zero.
    #[must_use]
    pub fn until_steps(&self, claim: &Claim, at: Timestamp, steps: u64) -> Option<Duration> {
        let span = at.since(self.advanced_to).as_micros();
        let rate = u128::from(claim.rate());
        let done = claim.femtosteps + rate * span;
        let missing = (u128::from(steps) * FEMTOSTEPS).saturating_sub(done);
        let micros = if missing == 0 { 0 } else { missing.checked_add(rate)?.checked_div(rate)? };
        Some(Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)))
    }

    /// Device memory in use on a GPU, MiB.
    #[must_use]
    pub fn memory_mib(&self, gpu: &Gpu) -> u64 {
        gpu.shares
            .iter()
            .filter_map(|share| self.claims.get(share.claim)?.as_ref())
            .map(|claim| claim.memory_mib)
            .sum()
    }
}
