//! One GPU: its limits, its target and its actual cap and clock.
//!
//! Every value that is set on a GPU passes [`GpuFacts::check_cap`] or [`GpuFacts::check_clock`],
//! so this module keeps caps and clocks within the GPU's limits.

use wattle_common::messages::{DesiredGpu, GpuConditionKind};
use wattle_common::{Energy, Frequency, Power, Timestamp};
use wattle_gpu::{EnergyCounter, EnergyStep, GpuHealth};

use crate::conditions::Conditions;
use crate::node_limit::CapRequest;

/// Properties of a GPU that the power agent does not change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuFacts {
    /// Its UUID.
    pub uuid: String,
    /// Its type, such as `v100`.
    pub gpu_type: String,
    /// Device memory in MiB; absent: it does not report it.
    pub memory_mib: Option<u64>,
    /// Its default cap.
    pub cap_default: Option<Power>,
    /// The lowest and the highest cap it supports; absent if it supports none.
    pub cap_range: Option<(Power, Power)>,
    /// The lowest and the highest SM clock it can be locked to; absent if it cannot be locked.
    pub clock_range: Option<(Frequency, Frequency)>,
}

/// One reading of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuStatus {
    /// Its properties.
    pub facts: GpuFacts,
    /// Its cap.
    pub cap: Option<Power>,
    /// Its SM clock at this moment.
    pub clock: Option<Frequency>,
    /// Its energy counter, which restarts with the driver and with a reset of the GPU.
    pub energy_total: Option<Energy>,
    /// Whether it supports neither power nor energy readings.
    pub no_meter: bool,
    /// Its modes and faults.
    pub health: GpuHealth,
}

/// Why the driver did not set a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SetError {
    /// Whether the GPU does not support the setting at all.
    pub unsupported: bool,
    /// The driver's error, with the remedy.
    pub message: String,
}

/// Why a cap or clock cannot be set on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// The GPU supports no power cap.
    #[error("cap of {0}: this GPU supports no power cap")]
    NoCap(Power),
    /// The cap is out of range.
    #[error("cap of {cap}: this GPU supports {min} to {max}")]
    Cap {
        /// The cap.
        cap: Power,
        /// The lowest supported.
        min: Power,
        /// The highest supported.
        max: Power,
    },
    /// The GPU's clock cannot be locked.
    #[error("clock of {0}: this GPU's clock cannot be locked")]
    NoClock(Frequency),
    /// The clock is out of range.
    #[error("clock of {clock}: this GPU supports {min} to {max}")]
    Clock {
        /// The clock.
        clock: Frequency,
        /// The lowest supported.
        min: Frequency,
        /// The highest supported.
        max: Frequency,
    },
}

impl GpuFacts {
    /// Checks that the GPU supports `cap`.
    ///
    /// # Errors
    /// [`LimitError`] if it does not.
    pub fn check_cap(&self, cap: Power) -> Result<(), LimitError> {
        match self.cap_range {
            None => Err(LimitError::NoCap(cap)),
            Some((min, max)) if cap < min || cap > max => Err(LimitError::Cap { cap, min, max }),
            Some(_) => Ok(()),
        }
    }

    /// Checks that the GPU can be locked to `clock`.
    ///
    /// # Errors
    /// [`LimitError`] if it cannot.
    pub fn check_clock(&self, clock: Frequency) -> Result<(), LimitError> {
        match self.clock_range {
            None => Err(LimitError::NoClock(clock)),
            Some((min, max)) if clock < min || clock > max => {
                Err(LimitError::Clock { clock, min, max })
            }
            Some(_) => Ok(()),
        }
    }

    /// The supported cap that is nearest to this one. `None` if it supports no cap.
    #[must_use]
    pub fn nearest_cap(&self, cap: Power) -> Option<Power> {
        let (min, max) = self.cap_range?;
        // `clamp` would panic if a driver reported min > max.
        Some(cap.min(max).max(min)).filter(|cap| self.check_cap(*cap).is_ok())
    }

    /// The cap of the GPU without a lease: the configured one, clamped to the GPU's limits, or the
    /// GPU's default. `None` if it supports no cap.
    #[must_use]
    pub fn safe_cap(&self, configured: Option<Power>) -> Option<Power> {
        let (_, max) = self.cap_range?;
        self.nearest_cap(configured.or(self.cap_default).unwrap_or(max))
    }
}

/// The cap and clock that a GPU is to have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Target {
    /// The cap; `None` if the GPU supports none.
    pub(crate) cap: Option<Power>,
    /// The highest clock; `None`: not locked.
    pub(crate) clock: Option<Frequency>,
}

/// The state of a GPU in the machine.
#[derive(Clone, Debug)]
pub(crate) struct GpuState {
    pub(crate) facts: GpuFacts,
    pub(crate) healthy: bool,
    pub(crate) conditions: Conditions,
    pub(crate) energy: EnergyCounter,
    /// Whether it supports neither power nor energy readings.
    pub(crate) no_meter: bool,
    /// The actual cap, as last read or set; absent: not known at present.
    pub(crate) cap: Option<Power>,
    /// The last known cap.
    pub(crate) cap_last: Option<Power>,
    /// The actual lock, as last set: unknown, none or a clock. NVML cannot read it.
    pub(crate) clock: Option<Option<Frequency>>,
    /// Whether another program may have changed the lock since.
    pub(crate) clock_unverified: bool,
    /// The cap by the order or the safe state, before the node's limit.
    pub(crate) requested_cap: Option<Power>,
    pub(crate) target: Target,
    /// The desired cap and clock, where it supports none: nothing is set.
    pub(crate) advised: Target,
    /// Whether the driver stated that it cannot set a cap, though it states limits for one.
    pub(crate) cap_unsupported: bool,
    /// Whether the driver stated that it cannot lock the clock, though it lists clocks.
    pub(crate) clock_unsupported: bool,
    /// Whether it is in the log that it supports no cap, and no lock of its clock.
    pub(crate) noted: (bool, bool),
    /// Why the desired cap or clock is not the target.
    pub(crate) rejected: Option<String>,
    /// Why the driver did not set the cap, until it does.
    pub(crate) cap_error: Option<String>,
    /// Why the driver did not set the clock, until it does.
    pub(crate) clock_error: Option<String>,
    /// The cap that was sent to the driver and whose result is awaited.
    pub(crate) cap_pending: Option<Power>,
    /// Whether a clock was sent to the driver and its result is awaited.
    pub(crate) clock_pending: bool,
    /// Whether the driver refused the cap, which is not retried before the next reading.
    pub(crate) cap_blocked: bool,
    /// Whether the driver refused the clock, which is not retried before the next reading.
    pub(crate) clock_blocked: bool,
    /// Earliest time of the ramp's next step.
    pub(crate) step_at: Timestamp,
}

impl GpuState {
    pub(crate) fn new(facts: GpuFacts) -> Self {
        Self {
            facts,
            healthy: true,
            conditions: Conditions::default(),
            energy: EnergyCounter::default(),
            no_meter: false,
            cap: None,
            cap_last: None,
            clock: None,
            clock_unverified: false,
            requested_cap: None,
            target: Target { cap: None, clock: None },
            advised: Target { cap: None, clock: None },
            cap_unsupported: false,
            clock_unsupported: false,
            noted: (false, false),
            rejected: None,
            cap_error: None,
            clock_error: None,
            cap_pending: None,
            clock_pending: false,
            cap_blocked: false,
            clock_blocked: false,
            step_at: Timestamp::EPOCH,
        }
    }

    /// Makes the safe state, with this cap, the target.
    pub(crate) fn set_safe_target(&mut self, cap: Option<Power>) {
        self.requested_cap = cap;
        self.target = Target { cap, clock: None };
        self.advised = Target::default();
        self.rejected = None;
    }

    /// The facts without the settings that the driver has refused as not supported.
    pub(crate) fn supported(&self, facts: GpuFacts) -> GpuFacts {
        GpuFacts {
            cap_range: facts.cap_range.filter(|_| !self.cap_unsupported),
            clock_range: facts.clock_range.filter(|_| !self.clock_unsupported),
            ..facts
        }
    }

    /// Whether the GPU was read and supports no cap.
    pub(crate) fn has_no_cap(&self) -> bool {
        !self.facts.uuid.is_empty() && self.facts.cap_range.is_none()
    }

    /// Whether the GPU was read and its clock cannot be locked.
    pub(crate) fn has_no_lock(&self) -> bool {
        !self.facts.uuid.is_empty() && self.facts.clock_range.is_none()
    }

    /// Makes the desired cap and clock the target. A value that the GPU does not support is reported and
    /// leaves the previous one in force; under a power limit the nearest supported cap is set. Where the GPU
    /// supports no setting at all, the desired one is advice.
    pub(crate) fn set_target(&mut self, desired: Option<&DesiredGpu>, power_limited: bool) {
        let mut rejected = Vec::new();
        let (no_cap, no_lock) = (self.has_no_cap(), self.has_no_lock());
        self.advised = Target {
            cap: desired.and_then(|gpu| gpu.cap_mw).filter(|_| no_cap),
            clock: desired.and_then(|gpu| gpu.clock_mhz_max).filter(|_| no_lock),
        };
        if no_cap {
            self.requested_cap = None;
        }
        match desired.and_then(|gpu| gpu.cap_mw) {
            Some(_) if no_cap => {}
            Some(cap) => match self.facts.check_cap(cap) {
                Ok(()) => self.requested_cap = Some(cap),
                Err(error) => {
                    rejected.push(error.to_string());
                    if power_limited {
                        self.requested_cap = self.facts.nearest_cap(cap);
                    }
                }
            },
            // Without a desired cap the target is the default cap, if the GPU has one.
            None => {
                if let Some(cap) = self.facts.cap_default
                    && self.facts.check_cap(cap).is_ok()
                {
                    self.requested_cap = Some(cap);
                }
            }
        }
        self.target.cap = self.requested_cap;
        match desired.and_then(|gpu| gpu.clock_mhz_max) {
            Some(_) if no_lock => self.target.clock = None,
            Some(clock) => match self.facts.check_clock(clock) {
                Ok(()) => self.target.clock = Some(clock),
                Err(error) => rejected.push(error.to_string()),
            },
            None => self.target.clock = None,
        }
        self.rejected = (!rejected.is_empty()).then(|| rejected.join("; "));
    }

    /// Whether it is in MIG mode: nothing is set on it.
    pub(crate) fn is_mig(&self) -> bool {
        self.conditions.has(GpuConditionKind::MigEnabled)
    }

    /// Whether caps and clocks are set on it: it answers and is not in MIG mode.
    pub(crate) fn is_managed(&self) -> bool {
        self.healthy && !self.is_mig()
    }

    /// Forgets cap and clock, which are not known at present, and the energy counter. Another driver may support
    /// what the last one refused.
    pub(crate) fn forget_settings(&mut self) {
        self.cap_unsupported = false;
        self.clock_unsupported = false;
        self.energy.clear();
        self.cap = None;
        self.clock = None;
        self.cap_error = None;
        self.clock_error = None;
    }

    /// Whether the driver was loaded again or the GPU was reset since the last reading, by its energy
    /// counter.
    pub(crate) fn has_restarted(&mut self, energy_total: Option<Energy>) -> bool {
        energy_total.is_some_and(|total| matches!(self.energy.step(total), EnergyStep::Reset(_)))
    }

    /// Whether its cap can be changed now.
    fn is_settable(&self) -> bool {
        self.is_managed() && !self.cap_blocked && self.facts.cap_range.is_some()
    }

    /// The highest cap that the GPU may have: the known one, the last known one, or the highest that it
    /// supports, and the one that is being set. A GPU that was never read counts with `unread`.
    pub(crate) fn cap_at_most(&self, unread: Power) -> Power {
        let known = self.cap_known();
        known.unwrap_or(unread).max(self.cap_pending.unwrap_or_default())
    }

    fn cap_known(&self) -> Option<Power> {
        let highest = self.facts.cap_range.map(|(_, highest)| highest);
        self.cap.or(self.cap_last).or(highest).or(self.facts.cap_default)
    }

    /// Whether the GPU answers and states no cap at all: nothing bounds its power.
    pub(crate) fn is_unbounded(&self) -> bool {
        self.healthy && self.cap_known().is_none()
    }

    /// Its cap for the node's limit.
    pub(crate) fn cap_request(&self, unread: Power) -> CapRequest {
        let settable = self.requested_cap.zip(self.facts.cap_range).filter(|_| self.is_settable());
        settable.map_or(CapRequest::Fixed(self.cap_at_most(unread)), |(requested, (lowest, _))| {
            CapRequest::Settable { requested, lowest }
        })
    }

    /// Whether the known cap and clock equal the target.
    pub(crate) fn reached(&self) -> bool {
        (self.target.cap.is_none() || self.cap == self.target.cap)
            && self.clock == Some(self.target.clock)
    }

    /// The next cap on the way to the target: at most `step` from the actual cap; the target itself
    /// if `step` is zero, the actual cap is unknown, or it falls under a power limit.
    pub(crate) fn next_cap(&self, step: Power, falls_at_once: bool) -> Option<Power> {
        let target = self.target.cap?;
        let Some(cap) = self.cap else { return Some(target) };
        if cap == target {
            return None;
        }
        let next = if step == Power::ZERO || (falls_at_once && cap > target) {
            target
        } else if cap < target {
            (cap + step).min(target)
        } else {
            cap.saturating_sub(step).max(target)
        };
        // Another program may have left the cap outside the GPU's limits.
        Some(if self.facts.check_cap(next).is_ok() { next } else { target })
    }

    /// Every setting that was not applied, for the report.
    pub(crate) fn last_error(&self) -> Option<String> {
        let all: Vec<&str> = [&self.rejected, &self.cap_error, &self.clock_error]
            .into_iter()
            .filter_map(|text| text.as_deref())
            .collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

#[cfg(test)]
pub(crate) fn v100() -> GpuFacts {
    GpuFacts {
        uuid: "GPU-0".into(),
        gpu_type: "v100".into(),
        memory_mib: Some(16_384),
        cap_default: Some(Power::from_w(300)),
        cap_range: Some((Power::from_w(100), Power::from_w(300))),
        clock_range: Some((Frequency::from_mhz(135), Frequency::from_mhz(1_530))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_safe_cap_is_within_the_limits() {
        let state = v100();
        let w = Power::from_w;
        assert_eq!(state.safe_cap(None), Some(w(300)));
        assert_eq!(state.safe_cap(Some(w(180))), Some(w(180)));
        assert_eq!(state.safe_cap(Some(w(50))), Some(w(100)));
        assert_eq!(state.safe_cap(Some(w(500))), Some(w(300)));
        assert_eq!(GpuFacts { cap_range: None, ..state.clone() }.safe_cap(None), None);
        let reversed = Some((w(300), w(100)));
        assert_eq!(GpuFacts { cap_range: reversed, ..state }.safe_cap(Some(w(200))), None);
    }

    #[test]
    fn the_ramp_ends_at_the_target() {
        let w = Power::from_w;
        let mut state = GpuState::new(v100());
        state.target.cap = Some(w(100));
        state.cap = Some(w(300));
        let mut caps = Vec::new();
        while let Some(next) = state.next_cap(w(80), false) {
            caps.push(next);
            state.cap = Some(next);
        }
        assert_eq!(caps, [w(220), w(140), w(100)]);
        state.cap = Some(w(20)); // below the limits, set by another program
        assert_eq!(state.next_cap(w(50), false), Some(w(100)));
    }

    #[test]
    fn errors_state_the_supported_range() {
        let error = v100().check_cap(Power::from_w(350)).unwrap_err().to_string();
        assert_eq!(error, "cap of 350 W: this GPU supports 100 W to 300 W");
        let error = v100().check_clock(Frequency::from_mhz(2_000)).unwrap_err().to_string();
        assert_eq!(error, "clock of 2000 MHz: this GPU supports 135 MHz to 1530 MHz");
    }
}
