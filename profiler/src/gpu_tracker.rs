//! The energy and the tenants of one GPU between two sampling instants.
//!
//! The tenants of a GPU are the jobs that the launcher placed on it, every other job with a
//! process on it, and one tenant for all processes of no job. A placed job is a tenant before its
//! process opens the GPU, because the GPU is reserved for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use wattle_common::bounds::{GPU_POWER_W_MAX, MEMORY_MIB_MAX};
use wattle_common::messages::{GpuSample, GpuSummary, TenantSample};
use wattle_common::units::Energy;
use wattle_common::{Frequency, GpuIndex, JobId, Power, Timestamp};
use wattle_gpu::{GpuReading, ProcessReading};

use crate::attribution;
use crate::config::Settings;
use crate::energy::EnergyMeasure;
use crate::jobs::JobTable;
use crate::process_tree::ProcessOrigin;
use crate::window::Mean;

/// How long a process's utilisation stays valid: NVML samples it a few times per second, and does
/// not sample an idle process.
const BUSY_VALID: Duration = Duration::from_secs(2);

/// The identity of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuFacts {
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
    pub(crate) energy: Option<Energy>,
    /// The time since the reading before.
    pub(crate) span: Duration,
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
    energy: Option<Energy>,
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
            energy: None,
            last: None,
            power: Mean::default(),
            busy: Mean::default(),
            recent_busy: BTreeMap::new(),
            jobs: Vec::new(),
        }
    }

    /// Records that it could not be read; returns whether it could before.
    pub(crate) fn failed(&mut self, error: String) -> bool {
        let core = self.error.is_none();
        self.error = Some(error);
        self.last = None;
        self.recent_busy.clear();
        core
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
        reading.memory_used_mib = reading.memory_used_mib.filter(|mib| *mib <= MEMORY_MIB_MAX);
        let processes = reading.processes.as_deref().unwrap_or_default();
        let owners: Vec<Option<JobId>> =
            (0..processes.len()).map(|at| table.owner(origins.get(at)?).cloned()).collect();
        self.update_recent_busy(now, processes);
        let mut tenants = self.tenants(gpu, processes, &owners, table);
        if tenants.is_empty() && reading.processes.is_some() {
            self.idle = [self.idle, reading.power].into_iter().flatten().min();
        }
        if let ([tenant], Some(busy)) = (tenants.as_mut_slice(), reading.utilization_gpu_percent) {
            // The utilisation of a single tenant is the GPU's, which NVML samples more finely.
            tenant.busy = Some(busy.into());
        }
        let spent = self.measure.read(now, &reading);
        if let Some(spent) = spent {
            *self.energy.get_or_insert_default() += spent.energy;
            if spent.span <= settings.gap_max {
                let idle = self.idle.or(settings.idle).unwrap_or(Power::ZERO).over(spent.span);
                let busy: Vec<u64> = tenants.iter().map(|t| t.busy.unwrap_or(0)).collect();
                let parts = attribution::split(spent.energy.as_mj(), idle.as_mj(), &busy);
                for (tenant, part) in tenants.iter_mut().zip(parts) {
                    tenant.energy = Some(Energy::from_mj(part));
                }
            }
        }
        let energy = spent.map(|spent| spent.energy);
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
            energy,
            span: spent.map(|spent| spent.span).unwrap_or_default(),
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
            utilization_gpu_percent_mean: percent.and_then(|p| u8::try_from(p).ok()),
            memory_used_mib: last.and_then(|l| l.memory_used_mib),
            clock_mhz: last.and_then(|l| l.clock),
            cap_mw: last.and_then(|l| l.cap),
            temperature_c: last.and_then(|l| l.temperature_c),
            throttle_reasons: last.and_then(|l| l.throttle_reasons),
            jobs: self.jobs.clone(),
            error: self.error.clone(),
        }
    }
}
