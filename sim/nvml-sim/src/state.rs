//! What is true of a simulated node, and how events change it: values only.
//!
//! Between two events everything is constant: each card's power, each claim's rate of steps. An
//! event first settles (adds what the constants came to since the last event, in integers, so
//! nothing is lost however often it happens), then changes something, then asks the world for the
//! new constants. This module reads no clock, maps no memory and knows no process.

use std::time::Duration;

use wattle_common::units::EnergyMeter;
use wattle_common::{Energy, Frequency, Power, Timestamp, WorkloadId};
use wattle_world::{GpuModel, Setting, Tenant, World};

use crate::fault::{Fault, Reading};
pub use crate::tenant::{
    CLAIMS_MAX, Card, Claim, ClaimRequest, FEMTOSTEPS, NANOSTEPS, Phase, Share, TENANTS_MAX,
};

/// Why an event cannot happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// No such card.
    #[error("the node has no card {0}")]
    NoCard(u32),
    /// The card is lost.
    #[error("card {0} is lost; clear it with: wattle-simnode fault --gpu {0} clear")]
    Lost(u32),
    /// The catalog does not have the workload.
    #[error("the catalog has no workload `{0}`")]
    NoWorkload(WorkloadId),
    /// Device memory does not suffice.
    #[error("out of memory on card {card}: {asked} MiB asked, {free} MiB free")]
    OutOfMemory {
        /// The card.
        card: usize,
        /// What the claim needs.
        asked: u64,
        /// What was left.
        free: u64,
    },
    /// Too many processes.
    #[error("no room for another process: at most {TENANTS_MAX} on a card, {CLAIMS_MAX} on a node")]
    Full,
    /// Settings are refused.
    #[error("card {0} refuses settings: no permission")]
    NoPermission(u32),
    /// The card cannot do that.
    #[error("not supported by card {0}")]
    Unsupported(u32),
    /// Outside what the card can do.
    #[error("{asked} is outside {min} to {max}")]
    OutOfRange {
        /// What was asked.
        asked: String,
        /// The least that is possible.
        min: String,
        /// The most that is possible.
        max: String,
    },
    /// The claim has gone meanwhile.
    #[error("the process holds no cards any more")]
    NoClaim,
}

/// A whole node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeState {
    /// Until when energy and steps are counted.
    pub settled_at: Timestamp,
    /// The serial of the next claim.
    pub next_serial: u64,
    /// Its cards.
    pub cards: Vec<Card>,
    /// Who holds cards; a claim keeps its place for its whole life.
    pub claims: Vec<Option<Claim>>,
}

/// What the events need to know of the world: the catalog, and this node's kind of card.
#[derive(Clone, Copy, Debug)]
pub struct Physics<'a> {
    /// The catalog and its laws.
    pub world: &'a World,
    /// The node's kind of card.
    pub gpu: &'a GpuModel,
}

impl NodeState {
    /// A node of `gpus` idle cards at their default cap, since `at`.
    #[must_use]
    pub fn new(physics: Physics<'_>, gpus: usize, at: Timestamp) -> Self {
        let card = Card {
            cap: physics.gpu.cap_default,
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
            shares: Vec::new(),
        };
        let mut state = Self {
            settled_at: at,
            next_serial: 1,
            cards: vec![card; gpus],
            claims: vec![None; CLAIMS_MAX],
        };
        state.refresh(physics);
        state
    }

    /// Counts energy and steps up to `at`. An instant in the past counts nothing.
    pub fn settle(&mut self, at: Timestamp) {
        let span = at.since(self.settled_at);
        for card in &mut self.cards {
            card.meter.add(card.power, span);
        }
        for claim in self.claims.iter_mut().flatten() {
            claim.femtosteps += u128::from(claim.rate()) * span.as_micros();
        }
        self.settled_at = self.settled_at.max(at);
    }

    /// Asks the world for what is constant from now on.
    fn refresh(&mut self, physics: Physics<'_>) {
        for claim in self.claims.iter_mut().flatten() {
            let here = claim.phase == Phase::Running && claim.request.cards != 0;
            claim.rate_here = if here { u64::MAX } else { 0 };
        }
        for index in 0..self.cards.len() {
            self.refresh_card(physics, index);
        }
    }

    fn refresh_card(&mut self, physics: Physics<'_>, index: usize) {
        let lost = self.lost_cards();
        let bit = 1 << index;
        let mut present = Vec::new();
        let mut tenants = Vec::new();
        for (place, claim) in self.claims.iter().enumerate() {
            let Some(claim) = claim.as_ref().filter(|c| c.request.cards & bit != 0) else {
                continue;
            };
            // A job that has lost one of its cards stands still on all of them.
            let computes = claim.phase == Phase::Running && claim.request.cards & lost == 0;
            let workload = physics.world.workload(claim.request.workload.as_str());
            if let Some(workload) = workload.filter(|_| computes) {
                tenants.push(Tenant {
                    workload,
                    gpus: claim.gpus_total.max(1),
                    nodes: claim.request.nodes.max(1),
                });
                present.push((place, true));
            } else {
                present.push((place, false));
            }
        }
        let card = &mut self.cards[index];
        let setting = Setting { cap: Some(card.cap), clock_max: card.clock_max };
        let now = physics.world.gpu_state(physics.gpu, setting, &tenants);
        card.power = now.power;
        card.clock = now.clock;
        card.utilization_gpu = now.utilization_gpu;
        card.utilization_memory = now.utilization_memory;
        card.power_capped = now.power_capped;
        card.shares.clear();
        let mut computing = now.tenants.iter();
        for (claim, computes) in present {
            let tenant = if computes { computing.next() } else { None };
            let utilization = tenant.map_or(0.0, |tenant| tenant.utilization_gpu);
            let rate = tenant.map_or(0, |tenant| (tenant.steps_per_s * NANOSTEPS).round() as u64);
            card.shares.push(Share { claim, utilization });
            if let Some(claim) = &mut self.claims[claim] {
                // The slowest of its cards sets a synchronous job's pace.
                claim.rate_here = claim.rate_here.min(rate);
            }
        }
    }

    fn lost_cards(&self) -> u64 {
        self.cards.iter().enumerate().filter(|(_, c)| c.lost).fold(0, |bits, (i, _)| bits | 1 << i)
    }

    /// Whether a claim has lost a card under it.
    #[must_use]
    pub fn has_lost_card(&self, claim: &Claim) -> bool {
        claim.request.cards & self.lost_cards() != 0
    }

    fn card_mut(&mut self, index: u32) -> Result<&mut Card, StateError> {
        self.cards.get_mut(index as usize).ok_or(StateError::NoCard(index))
    }

    /// The card, where it answers and supports `reading`.
    ///
    /// # Errors
    /// Where there is no such card, it is lost, or it cannot do that.
    pub fn card(&self, index: u32, reading: Option<Reading>) -> Result<&Card, StateError> {
        let card = self.cards.get(index as usize).ok_or(StateError::NoCard(index))?;
        if card.lost {
            return Err(StateError::Lost(index));
        }
        match reading {
            Some(reading) if card.unsupported & reading.bit() != 0 => {
                Err(StateError::Unsupported(index))
            }
            _ => Ok(card),
        }
    }

    /// Sets a card's cap from `at` on.
    ///
    /// # Errors
    /// Outside the card's limits, or where the card refuses.
    pub fn set_cap(
        &mut self,
        physics: Physics<'_>,
        at: Timestamp,
        index: u32,
        cap: Power,
    ) -> Result<(), StateError> {
        let gpu = physics.gpu;
        if self.card(index, Some(Reading::Cap))?.no_permission {
            return Err(StateError::NoPermission(index));
        }
        if cap < gpu.cap_min || cap > gpu.cap_max {
            return Err(StateError::OutOfRange {
                asked: cap.to_string(),
                min: gpu.cap_min.to_string(),
                max: gpu.cap_max.to_string(),
            });
        }
        self.event(physics, at, |state| {
            state.cards[index as usize].cap = cap;
            Ok(())
        })
    }

    /// Allows a card's clock at most `clock_max` from `at` on; `None` frees it.
    ///
    /// # Errors
    /// Where the card refuses.
    pub fn set_clock_max(
        &mut self,
        physics: Physics<'_>,
        at: Timestamp,
        index: u32,
        clock_max: Option<Frequency>,
    ) -> Result<(), StateError> {
        if self.card(index, Some(Reading::LockedClocks))?.no_permission {
            return Err(StateError::NoPermission(index));
        }
        self.event(physics, at, |state| {
            state.cards[index as usize].clock_max = clock_max;
            Ok(())
        })
    }

    /// Makes something go wrong with a card from `at` on, or all well again.
    ///
    /// # Errors
    /// Where there is no such card.
    pub fn set_fault(
        &mut self,
        physics: Physics<'_>,
        at: Timestamp,
        index: u32,
        fault: Fault,
    ) -> Result<(), StateError> {
        self.event(physics, at, |state| {
            let card = state.card_mut(index)?;
            match fault {
                Fault::Lost => card.lost = true,
                Fault::NoPermission => card.no_permission = true,
                Fault::Unsupported(reading) => card.unsupported |= reading.bit(),
                Fault::StuckEnergy => {
                    card.energy_stuck = card.energy_stuck.or(Some(card.meter.total()));
                }
                Fault::Clear => {
                    card.lost = false;
                    card.no_permission = false;
                    card.unsupported = 0;
                    card.energy_stuck = None;
                }
            }
            Ok(())
        })
    }

    /// Whether a claim may come, and where: a free place for which `is_free` holds.
    ///
    /// # Errors
    /// Says what is in its way.
    pub fn place_for(
        &self,
        physics: Physics<'_>,
        request: &ClaimRequest,
        mut is_free: impl FnMut(usize) -> bool,
    ) -> Result<usize, StateError> {
        let workload = physics
            .world
            .workload(request.workload.as_str())
            .ok_or_else(|| StateError::NoWorkload(request.workload.clone()))?;
        for index in (0..64u32).filter(|index| request.cards & (1 << index) != 0) {
            let card = self.card(index, None)?;
            if card.shares.len() >= TENANTS_MAX {
                return Err(StateError::Full);
            }
            let free = physics.gpu.memory_mib.saturating_sub(self.memory_mib(card));
            if workload.memory_mib > free {
                let (card, asked) = (index as usize, workload.memory_mib);
                return Err(StateError::OutOfMemory { card, asked, free });
            }
        }
        (0..self.claims.len())
            .find(|place| self.claims[*place].is_none() && is_free(*place))
            .ok_or(StateError::Full)
    }

    /// Lets a process onto its cards at `at`, in the place that [`Self::place_for`] found. It
    /// waits until it is told to run. Gives the claim's serial.
    ///
    /// # Errors
    /// Where the catalog does not have its workload.
    pub fn claim(
        &mut self,
        physics: Physics<'_>,
        at: Timestamp,
        place: usize,
        request: ClaimRequest,
    ) -> Result<u64, StateError> {
        let workload = physics.world.workload(request.workload.as_str());
        let memory_mib =
            workload.ok_or_else(|| StateError::NoWorkload(request.workload.clone()))?.memory_mib;
        let gpus_total = request.cards.count_ones();
        let serial = self.next_serial;
        self.event(physics, at, |state| {
            state.next_serial += 1;
            state.claims[place] = Some(Claim {
                serial,
                request,
                phase: Phase::Waiting,
                gpus_total,
                memory_mib,
                rate_here: 0,
                rate_max: u64::MAX,
                femtosteps: 0,
            });
            Ok(serial)
        })
    }

    /// Changes a claim at `at`: its phase, how many cards its job has, how fast its peers are.
    ///
    /// # Errors
    /// Where the claim is gone.
    pub fn change_claim(
        &mut self,
        physics: Physics<'_>,
        at: Timestamp,
        (place, serial): (usize, u64),
        (phase, gpus_total, rate_max): (Phase, u32, u64),
    ) -> Result<(), StateError> {
        self.event(physics, at, |state| {
            let claim = state.claims.get_mut(place).and_then(Option::as_mut);
            let claim = claim.filter(|c| c.serial == serial).ok_or(StateError::NoClaim)?;
            (claim.phase, claim.gpus_total, claim.rate_max) = (phase, gpus_total, rate_max);
            Ok(())
        })
    }

    /// Takes the claims at `places` off their cards at `at`.
    pub fn release(&mut self, physics: Physics<'_>, at: Timestamp, places: &[usize]) {
        let done: Result<(), StateError> = self.event(physics, at, |state| {
            for place in places {
                state.claims[*place] = None;
            }
            Ok(())
        });
        debug_assert_eq!(done, Ok(()));
    }

    fn event<T>(
        &mut self,
        physics: Physics<'_>,
        at: Timestamp,
        change: impl FnOnce(&mut Self) -> Result<T, StateError>,
    ) -> Result<T, StateError> {
        self.settle(at);
        let changed = change(self)?;
        self.refresh(physics);
        Ok(changed)
    }

    /// What a card's energy counter has counted at `at`, with its part of a millijoule.
    #[must_use]
    pub fn energy(&self, card: &Card, at: Timestamp) -> EnergyMeter {
        let mut meter = card.meter;
        meter.add(card.power, at.since(self.settled_at));
        meter
    }

    /// What a card's energy counter shows at `at`.
    #[must_use]
    pub fn energy_shown(&self, card: &Card, at: Timestamp) -> Energy {
        card.energy_stuck.unwrap_or_else(|| self.energy(card, at).total())
    }

    /// Whole steps that a claim has done at `at`.
    #[must_use]
    pub fn steps(&self, claim: &Claim, at: Timestamp) -> u64 {
        let span = at.since(self.settled_at).as_micros();
        ((claim.femtosteps + u128::from(claim.rate()) * span) / FEMTOSTEPS) as u64
    }

    /// How long from `at` until a claim has done `steps` whole steps at its present rate; `None`
    /// if it stands still.
    #[must_use]
    pub fn until_steps(&self, claim: &Claim, at: Timestamp, steps: u64) -> Option<Duration> {
        let span = at.since(self.settled_at).as_micros();
        let rate = u128::from(claim.rate());
        let done = claim.femtosteps + rate * span;
        let missing = (u128::from(steps) * FEMTOSTEPS).saturating_sub(done);
        let micros = if missing == 0 { 0 } else { missing.checked_add(rate)?.checked_div(rate)? };
        Some(Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)))
    }

    /// Device memory in use on a card.
    #[must_use]
    pub fn memory_mib(&self, card: &Card) -> u64 {
        card.shares
            .iter()
            .filter_map(|share| self.claims.get(share.claim)?.as_ref())
            .map(|claim| claim.memory_mib)
            .sum()
    }
}
