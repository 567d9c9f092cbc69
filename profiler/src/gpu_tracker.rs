//! The energy and the tenants of one GPU between two sampling instants.
//!
//! The tenants of a GPU are the jobs that the launcher placed on it, every other job with a
//! process on it, and one tenant for all processes of no job. A placed job is a tenant before its
//! process opens the GPU, because the GPU is reserved for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use wattle_common::bounds::{GPU_POWER_W_MAX, MEMORY_MIB_MAX};
use wattle_common::messages::{
    GpuSample, GpuSummary, Meter, TenantSample, UnknownCause, UnknownEnergy,
};
use wattle_common::units::Energy;
use wattle_common::{Frequency, GpuIndex, JobId, Power, Timestamp};
use wattle_gpu::{GpuReading, ProcessReading};

use crate::attribution;
use crate::config::Settings;
use crate::energy::{EnergyMeasure, EnergySpent, Measured};
use crate::gap::{OpenGap, Owner, TenantKey};
use crate::jobs::JobTable;
use crate::process_tree::ProcessOrigin;
use crate::resume::GpuCounter;
use crate::window::Mean;

/// How long a process's utilisation stays valid: NVML samples it a few times per second, and does
/// not sample an idle process.
const BUSY_VALID: Duration = Duration::from_secs(2);

/// The identity of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuIdentity {
    /// Its index on the node.
    pub gpu: GpuIndex,
    /// Its UUID.
    pub uuid: String,
    /// Its type, such as `v100`.
    pub gpu_type: String,
}

/// One sampling instant of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampledGpu {
    /// The GPU.
    pub gpu: GpuIndex,
    /// The reading, or the driver's error.
    pub reading: Result<GpuReading, String>,
    /// The origin of each of the reading's processes.
    pub origins: Vec<Arc<ProcessOrigin>>,
}

/// A tenant of a GPU at one sampling instant.
#[derive(Clone, Debug)]
pub(crate) struct Tenant {
    /// The job; `None` for all processes of no job.
    pub(crate) job: Option<JobId>,
    pub(crate) busy: Option<u64>,
    pub(crate) memory_mib: Option<u64>,
    /// Its part of the GPU's energy since the instant before.
    pub(crate) energy: Option<Energy>,
}

/// A GPU's sample with its energy attributed to tenants.
#[derive(Clone, Debug)]
pub(crate) struct AttributedSample {
    pub(crate) power: Option<Power>,
    pub(crate) power_instant: Option<Power>,
    pub(crate) energy: Option<Energy>,
    /// The energy that was attributed to its tenants, or that is idle energy.
    pub(crate) owned: Option<EnergySpent>,
    /// The energy whose owner remains unknown.
    pub(crate) unknown: Option<UnknownEnergy>,
    pub(crate) busy: Option<u8>,
    pub(crate) memory_busy: Option<u8>,
    pub(crate) clock: Option<Frequency>,
    pub(crate) cap: Option<Power>,
    pub(crate) tenants: Vec<Tenant>,
}

/// The state of one GPU over time.
#[derive(Clone, Debug)]
pub(crate) struct GpuTracker {
    pub(crate) uuid: String,
    pub(crate) gpu_type: String,
    pub(crate) measure: EnergyMeasure,
    /// Lowest power read while it had no process.
    pub(crate) idle: Option<Power>,
    /// Why it cannot be read, while that is so.
    pub(crate) error: Option<String>,
    /// Why no reading was made since the last one, if that is known.
    away: Option<UnknownCause>,
    /// The energy whose owner is not decided yet.
    gap: Option<OpenGap>,
    /// The tenants at the last reading.
    keys: Vec<TenantKey>,
    energy: Option<Energy>,
    /// How its energy is measured, as far as that is known.
    pub(crate) meter: Option<Meter>,
    last: Option<GpuReading>,
    power: Mean,
    busy: Mean,
    recent_busy: BTreeMap<u32, (Timestamp, u8)>,
    jobs: Vec<JobId>,
}

impl GpuTracker {
    pub(crate) fn new(gap_max: Duration) -> Self {
        Self {
            uuid: String::new(),
            gpu_type: String::new(),
            measure: EnergyMeasure::new(gap_max),
            idle: None,
            error: None,
            away: None,
            gap: None,
            keys: Vec::new(),
            energy: None,
            meter: None,
            last: None,
            power: Mean::default(),
            busy: Mean::default(),
            recent_busy: BTreeMap::new(),
            jobs: Vec::new(),
        }
    }

    /// Continues from the last reading of an earlier run; `away` is why no reading was made since.
    pub(crate) fn resume(&mut self, earlier: GpuCounter, away: UnknownCause, gap_max: Duration) {
        self.idle = earlier.idle_mw;
        self.away = Some(away);
        let at = earlier.read_at_us.unwrap_or_default();
        self.measure = match earlier.energy_mj_counter {
            _ if earlier.reset => EnergyMeasure::restarted(gap_max, at),
            Some(counter) => EnergyMeasure::resumed(gap_max, at, counter),
            None => EnergyMeasure::resumed_without_counter(gap_max, at),
        };
        self.gap = earlier.undecided;
        self.keys = earlier.tenants;
    }

    /// Records that it could not be read, and why; returns whether it could before.
    pub(crate) fn failed(&mut self, error: String, cause: UnknownCause) -> bool {
        let was_read = self.error.is_none();
        self.error = Some(error);
        self.away.get_or_insert(cause);
        self.last = None;
        self.recent_busy.clear();
        was_read
    }

    /// The last reading, for a later run; `None` before the first.
    pub(crate) fn counter(&self, gpu: GpuIndex) -> Option<GpuCounter> {
        Some(GpuCounter {
            gpu,
            uuid: self.uuid.clone(),
            energy_mj_counter: self.measure.counter(),
            reset: self.measure.is_restarted(),
            idle_mw: self.idle,
            undecided: self.gap.clone(),
            read_at_us: Some(self.measure.read_at()?),
            tenants: self.keys.clone(),
        })
    }

    /// The undecided energy as unknown.
    pub(crate) fn give_up_gap(&mut self, gpu: GpuIndex) -> Option<UnknownEnergy> {
        self.gap.take().map(|gap| gap.as_unknown(gpu))
    }

    /// The time since the last reading, if it is longer than `gap_max`: it is not measured yet.
    pub(crate) fn unread(
        &self,
        gpu: GpuIndex,
        now: Timestamp,
        gap_max: Duration,
    ) -> Option<UnknownEnergy> {
        let from_us = self.measure.read_at().filter(|at| now.since(*at) > gap_max)?;
        let cause = self.away.unwrap_or(UnknownCause::ReadingsLate);
        Some(unmeasured(gpu, cause, from_us, now))
    }

    /// Decides the owner of the energy since the last reading; `None`: not yet.
    fn decide(
        &mut self,
        now: Timestamp,
        gpu: GpuIndex,
        before: (Vec<TenantKey>, Option<Power>),
        measured: &Measured,
        context: (&JobTable, &Settings, Option<Power>),
    ) -> Option<Owner> {
        let (table, settings, power) = context;
        let late = measured.span > settings.gap_max;
        let away = self.away.take().filter(|_| late);
        if table.reported_at.is_some()
            && !late
            && measured.unmeasured.is_none()
            && self.gap.is_none()
        {
            return Some(Owner::Tenants(measured.spent()));
        }
        let (tenants, power_before) = before;
        let mut gap = self.gap.take().unwrap_or_else(|| {
            let late = late.then_some(UnknownCause::ReadingsLate);
            let by_counter = measured.unmeasured.filter(|cause| *cause != UnknownCause::NoCounter);
            let causes = [by_counter, away, measured.unmeasured, late];
            let cause = causes.into_iter().flatten().next();
            let cause = cause.unwrap_or(UnknownCause::JobsNotReported);
            OpenGap::new(now - measured.span, cause, tenants, power_before)
        });
        gap.add(now, measured);
        if table.reported_at.is_none() {
            if gap.span() > settings.same_tenants_max {
                // The jobs can no longer decide it.
                return Some(Owner::Unknown(gap.as_unknown(gpu)));
            }
            self.gap = Some(gap);
            return None;
        }
        Some(gap.decide(gpu, &self.keys, power, settings.same_tenants_max))
    }

    /// Applies a reading.
    pub(crate) fn read(
        &mut self,
        now: Timestamp,
        gpu: GpuIndex,
        mut reading: GpuReading,
        origins: &[Arc<ProcessOrigin>],
        table: &JobTable,
        settings: &Settings,
    ) -> (AttributedSample, GpuSample) {
        self.error = None;
        // A driver's invalid value is a missing reading, so that it spoils no sum.
        let most = Power::from_w(GPU_POWER_W_MAX);
        reading.power = reading.power.filter(|power| *power <= most);
        reading.cap = reading.cap.filter(|cap| *cap <= most);
        reading.cap_enforced = reading.cap_enforced.filter(|cap| *cap <= most);
        reading.power_instant = reading.power_instant.filter(|power| *power <= most);
        reading.memory_used_mib = reading.memory_used_mib.filter(|mib| *mib <= MEMORY_MIB_MAX);
        reading.memory_free_mib = reading.memory_free_mib.filter(|mib| *mib <= MEMORY_MIB_MAX);
        let processes = reading.processes.as_deref().unwrap_or_default();
        let owners: Vec<Option<JobId>> =
            (0..processes.len()).map(|at| table.owner(origins.get(at)?).cloned()).collect();
        self.update_recent_busy(now, processes);
        let mut tenants = self.tenants(gpu, processes, &owners, table);
        // Without current reports a job is present only by its processes.
        let is_stale = |at| now.since(at) > settings.report_stale_after;
        let mut vanished = false;
        if table.reported_at.is_some_and(is_stale) {
            let before = tenants.len();
            tenants.retain(|tenant| owners.contains(&tenant.job));
            vanished = before > 0 && tenants.is_empty();
        }
        if tenants.is_empty() && !vanished && reading.processes.is_some() {
            self.idle = [self.idle, reading.power].into_iter().flatten().min();
        }
        if let ([tenant], Some(busy)) = (tenants.as_mut_slice(), reading.utilization_gpu_percent) {
            // The utilisation of a single tenant is the GPU's, which NVML samples more finely.
            tenant.busy = Some(busy.into());
        }
        let is_first = self.measure.read_at().is_none();
        let power_before = self.measure.power();
        let measured = self.measure.read(now, &reading);
        let keys = if measured.is_some() || is_first {
            std::mem::replace(&mut self.keys, keys(&tenants, table))
        } else {
            Vec::new()
        };
        let owner = measured.as_ref().and_then(|measured| {
            if is_measured(measured) {
                *self.energy.get_or_insert_default() += measured.energy;
            }
            self.decide(now, gpu, (keys, power_before), measured, (table, settings, reading.power))
        });
        let (owned, mut unknown) = match owner {
            Some(Owner::Tenants(owned)) if vanished => {
                let (cause, from) = (UnknownCause::JobsNotReported, now - owned.span);
                let unknown = unmeasured(gpu, cause, from, now);
                let energy_mj = owned.energy;
                (None, Some(UnknownEnergy { energy_mj, unmeasured: false, ..unknown }))
            }
            Some(Owner::Tenants(owned)) => (Some(owned), None),
            Some(Owner::Unknown(mut unknown)) => {
                if unknown.cause == UnknownCause::NoMeter {
                    // The process that draws it is known.
                    unknown.jobs = tenants.iter().filter_map(|tenant| tenant.job.clone()).collect();
                    unknown.admissions = table.admissions(&unknown.jobs);
                }
                (None, Some(unknown))
            }
            None => (None, None),
        };
        if let Some(owned) = owned {
            let idle = self.idle.or(settings.idle).unwrap_or(Power::ZERO).over(owned.span);
            let busy: Vec<u64> = tenants.iter().map(|t| t.busy.unwrap_or(0)).collect();
            let parts = attribution::split(owned.energy.as_mj(), idle.as_mj(), &busy);
            for (tenant, part) in tenants.iter_mut().zip(parts) {
                tenant.energy = Some(Energy::from_mj(part));
            }
            let other = tenants.iter().filter(|tenant| tenant.job.is_none());
            let other: Energy = other.filter_map(|tenant| tenant.energy).sum();
            if other > Energy::ZERO {
                let from = now - owned.span;
                let of_process = unmeasured(gpu, UnknownCause::OtherProcess, from, now);
                unknown = Some(UnknownEnergy { energy_mj: other, unmeasured: false, ..of_process });
            }
        }
        self.meter = self.measure.meter(&reading).or(self.meter);
        let energy = measured.filter(is_measured).map(|measured| measured.energy);
        self.power.add(reading.power.map(Power::as_mw));
        self.busy.add(reading.utilization_gpu_percent.map(u64::from));
        self.jobs.clear();
        self.jobs.extend(tenants.iter().filter_map(|tenant| tenant.job.clone()));
        let sample = GpuSample {
            at_us: now,
            gpu,
            power_mw: reading.power,
            energy_mj: energy,
            utilization_gpu_percent: reading.utilization_gpu_percent,
            utilization_memory_percent: reading.utilization_memory_percent,
            memory_used_mib: reading.memory_used_mib,
            clock_mhz: reading.clock,
            cap_mw: reading.cap,
            temperature_c: reading.temperature_c,
            throttle_reasons: reading.throttle_reasons,
            tenants: processes
                .iter()
                .zip(owners)
                .map(|(process, job)| TenantSample {
                    job,
                    pid: process.pid,
                    memory_used_mib: process.memory_mib,
                    utilization_gpu_percent: process.utilization_gpu_percent,
                })
                .collect(),
        };
        let tracker = AttributedSample {
            power: reading.power,
            power_instant: reading.power_instant,
            energy,
            owned,
            unknown,
            busy: reading.utilization_gpu_percent,
            memory_busy: reading.utilization_memory_percent,
            clock: reading.clock,
            cap: reading.cap,
            tenants,
        };
        self.last = Some(reading);
        (tracker, sample)
    }

    /// Updates the utilisation of each process and forgets values that are old or of ended
    /// processes.
    fn update_recent_busy(&mut self, now: Timestamp, processes: &[ProcessReading]) {
        self.recent_busy.retain(|pid, (at, _)| {
            now.since(*at) <= BUSY_VALID && processes.iter().any(|process| process.pid == *pid)
        });
        for process in processes {
            if let Some(busy) = process.utilization_gpu_percent {
                self.recent_busy.insert(process.pid, (now, busy));
            }
        }
    }

    fn tenants(
        &self,
        gpu: GpuIndex,
        processes: &[ProcessReading],
        owners: &[Option<JobId>],
        table: &JobTable,
    ) -> Vec<Tenant> {
        let tenant = |job| Tenant { job, busy: None, memory_mib: None, energy: None };
        let mut tenants: Vec<Tenant> = table
            .local
            .iter()
            .filter(|(_, job)| job.gpus.contains(&gpu))
            .map(|(id, _)| tenant(Some(id.clone())))
            .collect();
        for (process, job) in processes.iter().zip(owners) {
            let at = tenants.iter().position(|t| t.job == *job).unwrap_or_else(|| {
                tenants.push(tenant(job.clone()));
                tenants.len() - 1
            });
            let tenant = &mut tenants[at];
            let busy = self.recent_busy.get(&process.pid).map(|(_, busy)| u64::from(*busy));
            let sum = |a: Option<u64>, b: Option<u64>| match (a, b) {
                (Some(a), Some(b)) => Some(a.saturating_add(b)),
                (one, other) => one.or(other),
            };
            tenant.busy = sum(tenant.busy, busy);
            tenant.memory_mib = sum(tenant.memory_mib, process.memory_mib);
        }
        tenants
    }

    /// The summary since the last one.
    pub(crate) fn summarize(&mut self, gpu: GpuIndex) -> GpuSummary {
        let last = self.last.as_ref();
        let percent = std::mem::take(&mut self.busy).rounded();
        GpuSummary {
            gpu,
            power_mw_mean: std::mem::take(&mut self.power).rounded().map(Power::from_mw),
            energy_mj_total: self.energy,
            meter: self.meter,
            utilization_gpu_percent_mean: percent.and_then(|p| u8::try_from(p).ok()),
            memory_used_mib: last.and_then(|l| l.memory_used_mib),
            memory_free_mib: last.and_then(|l| l.memory_free_mib),
            clock_mhz: last.and_then(|l| l.clock),
            cap_mw: last.and_then(|l| l.cap),
            cap_mw_enforced: last.and_then(|l| l.cap_enforced),
            temperature_c: last.and_then(|l| l.temperature_c),
            throttle_reasons: last.and_then(|l| l.throttle_reasons),
            jobs: self.jobs.clone(),
            error: self.error.clone(),
        }
    }
}

/// An interval of a GPU in which nothing was measured.
pub(crate) const fn unmeasured(
    gpu: GpuIndex,
    cause: UnknownCause,
    from_us: Timestamp,
    until_us: Timestamp,
) -> UnknownEnergy {
    let (energy_mj, unmeasured, estimate_mj) = (Energy::ZERO, true, None);
    UnknownEnergy {
        gpu,
        cause,
        from_us,
        until_us,
        energy_mj,
        unmeasured,
        estimate_mj,
        jobs: Vec::new(),
        admissions: BTreeMap::new(),
    }
}

/// Whether any energy was measured: an energy of zero with a cause is no reading.
fn is_measured(measured: &Measured) -> bool {
    measured.unmeasured.is_none() || measured.energy > Energy::ZERO
}

fn keys(tenants: &[Tenant], table: &JobTable) -> Vec<TenantKey> {
    let key = |tenant: &Tenant| {
        let local = tenant.job.as_ref().and_then(|job| table.local.get(job));
        TenantKey {
            job: tenant.job.clone(),
            attempt: local.map_or(0, |local| local.attempt),
            admission: local.and_then(|local| local.admission.clone()),
        }
    };
    let mut keys: Vec<TenantKey> = tenants.iter().map(key).collect();
    keys.sort();
    keys
}
