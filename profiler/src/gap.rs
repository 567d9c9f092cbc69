//! Intervals of a GPU whose energy has no obvious owner.
//!
//! Energy between two readings belongs to the tenants at the later one if the readings are at most
//! `gap_max` apart. Over a longer gap, or while the launcher has not reported its jobs, this rule decides:
//!
//! * The tenants' energy, or idle energy, if the tenants before and after the gap are the same (the same
//!   starts of the same jobs) and the gap is at most [`SAME_TENANTS_MAX`]. A co-tenant that came and went
//!   within the gap would not be noticed, which limits the length.
//! * Otherwise it is unknown, with the cause of the gap.
//!
//! A counter may restart while it is not read, and pass its last value before it is read again. Its energy is
//! then a lower bound, and stated as not measured completely, where the driver failed or the gap is longer
//! than [`SAME_TENANTS_MAX`], unless the counter's value is more than a GPU can draw in the gap.
//!
//! Where energy was not measured, the mean of the power before and after the gap gives an estimate, under the
//! same condition. An estimate is part of no sum.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use wattle_common::messages::{UnknownCause, UnknownEnergy};
use wattle_common::units::Energy;
use wattle_common::{AdmissionId, GpuIndex, JobId, Power, Timestamp};

use crate::energy::{EnergySpent, Measured};

/// Longest gap over which the same tenants before and after are considered its tenants: several restarts of
/// the profiler, and shorter than the co-location trial of a job.
pub const SAME_TENANTS_MAX: Duration = Duration::from_secs(120);

/// The identity of a tenant: two readings with equal tenants are of the same jobs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TenantKey {
    /// The job; absent: processes of no job.
    pub job: Option<JobId>,
    /// The number of its start.
    pub attempt: u32,
    /// Its submission; absent: not known, as in the state of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<AdmissionId>,
}

impl TenantKey {
    /// Whether both are the same start of the same job, as far as their submissions are known.
    fn is_same(&self, other: &Self) -> bool {
        let submissions = self.admission.as_ref().zip(other.admission.as_ref());
        (&self.job, self.attempt) == (&other.job, other.attempt)
            && submissions.is_none_or(|(own, other)| own == other)
    }
}

/// A GPU's energy whose owner is not decided yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenGap {
    /// The last reading before it.
    pub from_us: Timestamp,
    /// The last reading in it.
    pub until_us: Timestamp,
    /// Why its owner is not known.
    pub cause: UnknownCause,
    /// The energy measured in it.
    pub energy_mj: Energy,
    /// Whether more energy may have been consumed.
    pub unmeasured: bool,
    /// The tenants before it.
    pub tenants: Vec<TenantKey>,
    /// The power before it.
    pub power_mw: Option<Power>,
}

/// The owner of a gap's energy.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Owner {
    /// The tenants of the GPU, or idle energy without any.
    Tenants(EnergySpent),
    /// Unknown.
    Unknown(UnknownEnergy),
}

impl OpenGap {
    /// A gap after a reading at `from`.
    pub(crate) const fn new(
        from_us: Timestamp,
        cause: UnknownCause,
        tenants: Vec<TenantKey>,
        power_mw: Option<Power>,
    ) -> Self {
        let (energy_mj, unmeasured) = (Energy::ZERO, false);
        Self { from_us, until_us: from_us, cause, energy_mj, unmeasured, tenants, power_mw }
    }

    /// Adds the energy until `now`.
    pub(crate) fn add(&mut self, now: Timestamp, measured: &Measured) {
        self.until_us = now;
        self.energy_mj += measured.energy;
        if let Some(cause) = measured.unmeasured {
            self.unmeasured = true;
            if cause != UnknownCause::NoCounter {
                self.cause = cause;
            }
        }
        // A driver that failed, or that was not observed for long, may have been reloaded.
        let failed = matches!(self.cause, UnknownCause::GpuLost | UnknownCause::DriverFailed);
        let unobserved = measured.span > SAME_TENANTS_MAX;
        self.unmeasured |= measured.may_have_restarted && (failed || unobserved);
    }

    /// Its length.
    pub(crate) const fn span(&self) -> Duration {
        self.until_us.since(self.from_us)
    }

    /// Decides the owner by the tenants and the power after the gap.
    pub(crate) fn decide(
        self,
        gpu: GpuIndex,
        tenants: &[TenantKey],
        power: Option<Power>,
        same_max: Duration,
    ) -> Owner {
        let span = self.span();
        let same = self.tenants.len() == tenants.len()
            && self.tenants.iter().zip(tenants).all(|(before, after)| before.is_same(after))
            && span <= same_max;
        if same && !self.unmeasured {
            return Owner::Tenants(EnergySpent { energy: self.energy_mj, span });
        }
        let estimate = || {
            let mean = Power::from_mw((self.power_mw? + power?).as_mw() / 2);
            Some(mean.over(span).saturating_sub(self.energy_mj))
        };
        let estimate_mj = if same && self.unmeasured { estimate() } else { None };
        Owner::Unknown(UnknownEnergy { estimate_mj, ..self.as_unknown(gpu) })
    }

    /// The energy as unknown.
    pub(crate) const fn as_unknown(&self, gpu: GpuIndex) -> UnknownEnergy {
        UnknownEnergy {
            gpu,
            cause: self.cause,
            from_us: self.from_us,
            until_us: self.until_us,
            energy_mj: self.energy_mj,
            unmeasured: self.unmeasured,
            estimate_mj: None,
            jobs: Vec::new(),
            admissions: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use wattle_common::JobId;

    use super::*;

    fn tenant(job: &str, attempt: u32) -> TenantKey {
        TenantKey { job: Some(JobId::new(job).unwrap()), attempt, admission: None }
    }

    #[test]
    fn another_submission_of_a_name_is_another_tenant() {
        let of = |at_s| TenantKey {
            admission: Some(AdmissionId::accepted(Timestamp::from_s(at_s), 1)),
            ..tenant("a", 1)
        };
        let owned = |before, after| {
            matches!(decide(gap(vec![before], 60, false), &[after]), Owner::Tenants(_))
        };
        assert!(owned(of(1), of(1)) && !owned(of(1), of(2)));
        assert!(owned(tenant("a", 1), of(2)), "the state of an earlier version names none");
    }

    fn gap(tenants: Vec<TenantKey>, seconds: u64, unmeasured: bool) -> OpenGap {
        let (from, power) = (Timestamp::from_s(100), Some(Power::from_w(200)));
        let mut gap = OpenGap::new(from, UnknownCause::CounterReset, tenants, power);
        let measured = Measured {
            energy: Energy::from_j(1_000),
            span: Duration::from_secs(seconds),
            unmeasured: unmeasured.then_some(UnknownCause::CounterReset),
            may_have_restarted: false,
        };
        gap.add(Timestamp::from_s(100 + seconds), &measured);
        gap
    }

    fn decide(gap: OpenGap, after: &[TenantKey]) -> Owner {
        gap.decide(0, after, Some(Power::from_w(100)), SAME_TENANTS_MAX)
    }

    #[test]
    fn the_same_tenants_own_a_short_gap() {
        let a = || vec![tenant("a", 1)];
        let energy = Energy::from_j(1_000);
        let span = Duration::from_secs(60);
        assert_eq!(decide(gap(a(), 60, false), &a()), Owner::Tenants(EnergySpent { energy, span }));
        assert!(matches!(decide(gap(vec![], 60, false), &[]), Owner::Tenants(_)), "idle");
        let unknown = |owner| match owner {
            Owner::Unknown(unknown) => unknown,
            Owner::Tenants(_) => panic!("{owner:?}"),
        };
        for (gap, after) in [
            (gap(a(), 121, false), a()),
            (gap(a(), 60, false), vec![]),
            (gap(vec![], 60, false), a()),
            (gap(a(), 60, false), vec![tenant("a", 2)]),
            (gap(a(), 60, false), vec![tenant("a", 1), tenant("b", 1)]),
        ] {
            let unknown = unknown(decide(gap, &after));
            assert_eq!((unknown.energy_mj, unknown.unmeasured), (energy, false));
            assert_eq!(unknown.estimate_mj, None);
        }
    }

    #[test]
    fn unmeasured_energy_is_estimated_for_the_same_tenants_only() {
        let a = || vec![tenant("a", 1)];
        let estimate = |owner| match owner {
            Owner::Unknown(unknown) if unknown.unmeasured => unknown.estimate_mj,
            owner => panic!("{owner:?}"),
        };
        // 60 s at the mean of 200 W and 100 W, less the measured part.
        let expected = Some(Energy::from_j(9_000 - 1_000));
        assert_eq!(estimate(decide(gap(a(), 60, true), &a())), expected);
        assert_eq!(estimate(decide(gap(a(), 60, true), &[])), None);
        assert_eq!(estimate(decide(gap(a(), 600, true), &a())), None);
    }
}
