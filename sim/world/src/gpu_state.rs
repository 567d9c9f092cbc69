//! State of one GPU and its tenants: speed, power, clock, utilisation, memory.
//!
//! Two factors slow a tenant and multiply: its co-tenants (interference.rs), and the tighter of the
//! locked clock and the power cap. The cap is one budget for the complete GPU: each tenant is
//! throttled as under exclusive use at the cap that leaves it the same share of its active power,
//! `idle + (cap - idle) * own active / peak active`. With one tenant this is the cap itself, and the
//! measured row is returned exactly.

use wattle_common::{Frequency, Power};

use crate::gpu::GpuModel;
use crate::interference::{Interference, Sharing};
use crate::sharing::{TENANTS_MAX, delays, mean_active, peak_active};
use crate::workload::{Response, Scaled, Workload};

/// Settings of a GPU; `None` is the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// Power cap.
    pub cap: Option<Power>,
    /// Upper limit on the core clock.
    pub clock_max: Option<Frequency>,
}

/// A job on the GPU.
#[derive(Clone, Copy, Debug)]
pub struct Tenant<'a> {
    /// Its workload.
    pub workload: &'a Workload,
    /// Total number of its GPUs.
    pub gpus: u32,
    /// Number of nodes that hold them.
    pub nodes: u32,
}

/// State of a GPU with its tenants.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuState {
    /// Power draw.
    pub power: Power,
    /// Core clock.
    pub clock: Frequency,
    /// Share of time with a kernel running, 0..=1.
    pub utilization_gpu: f64,
    /// Share of time with memory accesses, 0..=1.
    pub utilization_memory: f64,
    /// Whether the cap limits its power.
    pub power_capped: bool,
    /// Its tenants, in input order.
    pub tenants: Vec<TenantState>,
}

/// Performance of one tenant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TenantState {
    /// Speed relative to exclusive use of the same GPUs at default cap and clock.
    pub speed: f64,
    /// Steps per second of the job if all its GPUs are in this state.
    pub steps_per_s: f64,
    /// Its share of the GPU's time, 0..=1.
    pub utilization_gpu: f64,
    /// Device memory in use, MiB.
    pub memory_mib: u64,
}

/// Lower bound on reported speed: a running job always makes progress.
const SPEED_MIN: f64 = 1e-4;

/// The cap counts as binding if it leaves less than this share of the active power.
const CAPPED_BELOW: f64 = 0.995;

pub(crate) fn state(
    gpu: &GpuModel,
    setting: Setting,
    tenants: &[Tenant<'_>],
    sharing: &Sharing,
) -> GpuState {
    let limits = Limits::of(gpu, setting);
    if tenants.is_empty() {
        return idle(gpu, &limits);
    }
    let counted = &tenants[..tenants.len().min(TENANTS_MAX)];
    let n = counted.len();
    let mut exclusive =
        [Scaled { time: 1.0, busy: 0.0, active_w: 0.0, computing: 1.0 }; TENANTS_MAX];
    let (mut busy, mut delay) = ([0.0; TENANTS_MAX], [0.0; TENANTS_MAX]);
    let mut uncapped = [(0.0, 0.0); TENANTS_MAX];
    for (i, tenant) in counted.iter().enumerate() {
        exclusive[i] = tenant.workload.scaled(response(gpu, tenant), tenant.gpus, tenant.nodes);
        busy[i] = exclusive[i].busy;
        uncapped[i] = (exclusive[i].busy, exclusive[i].active_w);
    }
    match sharing.interference {
        Interference::Mild => delay[..n].fill(sharing.mild.delay(&busy[..n])),
        Interference::Pairs => {
            let per_neighbour = sharing.delay_per_neighbour;
            delays(&busy[..n], per_neighbour, &mut delay[..n]);
            if n > 1 {
                apply_measured_pairs(gpu, counted, &busy[..n], per_neighbour, &mut delay[..n]);
            }
        }
    }

    let peak_w = peak_active(&uncapped[..n]);
    let (mut capped, mut active) = (uncapped, uncapped);
    let mut gpu_busy = 0.0;
    let mut memory_busy = 0.0;
    let mut states = Vec::with_capacity(tenants.len());
    for (i, tenant) in counted.iter().enumerate() {
        let response = response(gpu, tenant);
        let share = if peak_w > 0.0 { exclusive[i].active_w / peak_w } else { 1.0 };
        let (cap_speed, cap_w) = under_cap(gpu, response, exclusive[i], limits.budget_w * share);
        let core = (response.core_bound * exclusive[i].computing).min(1.0);
        let (clock_speed, clock_active) = limits.at_clock(response);
        let clock_speed = 1.0 / (1.0 - core + core / clock_speed.max(SPEED_MIN));
        capped[i].1 = cap_w;
        active[i].1 = cap_w.min(exclusive[i].active_w * clock_active);
        let throttle = cap_speed.min(clock_speed);
        let speed = (throttle / (1.0 + delay[i])).clamp(SPEED_MIN, 1.0);
        // Throttling lengthens the kernels but not the input, so the idle share shrinks.
        let on_gpu = 1.0 - (1.0 - busy[i]) * throttle;
        gpu_busy += on_gpu;
        memory_busy += response.memory_busy * speed;
        states.push(TenantState {
            speed,
            steps_per_s: speed * tenant.workload.steps_per_epoch as f64
                / (response.epoch_s * exclusive[i].time),
            utilization_gpu: on_gpu,
            memory_mib: tenant.workload.memory_mib,
        });
    }
    for tenant in &mut states {
        tenant.utilization_gpu /= f64::max(1.0, gpu_busy);
    }
    // Tenants beyond TENANTS_MAX make no progress; device memory excludes the case.
    states.extend(tenants[n..].iter().map(|tenant| TenantState {
        speed: SPEED_MIN,
        steps_per_s: 0.0,
        utilization_gpu: 0.0,
        memory_mib: tenant.workload.memory_mib,
    }));

    let (active_w, capped_w) = (mean_active(&active[..n]), mean_active(&capped[..n]));
    let remaining = capped_w / mean_active(&uncapped[..n]).max(1e-9);
    let binds = remaining < CAPPED_BELOW;
    GpuState {
        power: (gpu.idle + Power::from_w_f64(active_w)).min(limits.cap),
        clock: if binds { clock_at(gpu, remaining).min(limits.clock) } else { limits.clock },
        utilization_gpu: f64::min(1.0, gpu_busy),
        utilization_memory: f64::min(1.0, memory_busy),
        power_capped: binds && active_w + 1e-9 >= capped_w,
        tenants: states,
    }
}

/// Effective limits of a setting.
struct Limits {
    cap: Power,
    /// Active power that the cap allows, in watts.
    budget_w: f64,
    clock: Frequency,
    /// Speed and active power of a compute-bound job at that clock, relative to the top clock.
    clock_speed: f64,
    clock_active: f64,
}

impl Limits {
    fn of(gpu: &GpuModel, setting: Setting) -> Self {
        let cap = setting.cap.unwrap_or(gpu.cap_default).clamp(gpu.cap_min, gpu.cap_max);
        let budget_w = (cap.as_w() - gpu.idle.as_w()).max(0.0);
        let top = gpu.clock_max();
        let lowest = gpu.clocks.last().copied().unwrap_or(top);
        let clock = setting.clock_max.map_or(top, |clock| clock.clamp(lowest, top));
        if clock == top {
            return Self { cap, budget_w, clock, clock_speed: 1.0, clock_active: 1.0 };
        }
        let mhz = f64::from(clock.as_mhz());
        let (clock_speed, clock_active) = (gpu.clock_speed.at(mhz), gpu.clock_active.at(mhz));
        Self { cap, budget_w, clock, clock_speed, clock_active }
    }

    /// Relative speed of the core-bound share and relative active power at the clock: from the
    /// workload's own curve if it has one.
    fn at_clock(&self, response: &Response) -> (f64, f64) {
        let Some((speed, active)) = &response.clock else {
            return (self.clock_speed, self.clock_active);
        };
        let mhz = f64::from(self.clock.as_mhz());
        (speed.at(mhz), active.at(mhz))
    }
}

/// A GPU without tenants runs at its lowest clock.
fn idle(gpu: &GpuModel, limits: &Limits) -> GpuState {
    GpuState {
        power: gpu.idle,
        clock: gpu.clocks.last().copied().unwrap_or(limits.clock),
        utilization_gpu: 0.0,
        utilization_memory: 0.0,
        power_capped: false,
        tenants: Vec::new(),
    }
}

fn response<'a>(gpu: &GpuModel, tenant: &Tenant<'a>) -> &'a Response {
    // A workload from another catalog may lack this GPU model; its first response applies.
    let all = &tenant.workload.responses;
    all.get(gpu.index).unwrap_or(&all[0])
}

/// Speed and active power of a tenant whose active power is limited to `budget_w`.
fn under_cap(gpu: &GpuModel, response: &Response, exclusive: Scaled, budget_w: f64) -> (f64, f64) {
    let demand_w = exclusive.active_w;
    let law = |budget_w: f64| {
        let remaining = (budget_w / demand_w.max(1e-9)).min(1.0);
        if remaining >= 1.0 {
            return 1.0;
        }
        let core = (response.core_bound * exclusive.computing).min(1.0);
        1.0 / (1.0 - core + core / gpu.throttle.at(remaining).max(SPEED_MIN))
    };
    let Some((speeds, actives)) = &response.caps else {
        return (law(budget_w), budget_w.min(demand_w));
    };
    // Rows were measured at `response.active_w`; other GPU counts scale with the demand.
    let scale = demand_w / response.active_w.max(1e-9);
    let idle_w = gpu.idle.as_w();
    let cap_w = idle_w + budget_w / scale.max(1e-9);
    let lowest_w = speeds.first().0;
    // The measured slowdown applies to the computing share.
    let measured = |cap_w: f64| {
        1.0 / (1.0 + (1.0 / speeds.at(cap_w).max(SPEED_MIN) - 1.0) * exclusive.computing)
    };
    if cap_w >= lowest_w {
        return (measured(cap_w), (actives.at(cap_w) * scale).min(budget_w));
    }
    // Below the lowest measured cap the GPU's general law continues from the measured point.
    let lowest_budget_w = (lowest_w - idle_w) * scale;
    let speed = measured(lowest_w) * (law(budget_w) / law(lowest_budget_w).max(SPEED_MIN)).min(1.0);
    (speed, (actives.first().1 * scale).min(budget_w))
}

/// Replaces the modelled delay by the measured one for each pair of tenants whose families were
/// measured together. With more tenants the differences of all pairs add up.
fn apply_measured_pairs(
    gpu: &GpuModel,
    tenants: &[Tenant<'_>],
    busy: &[f64],
    delay_per_neighbour: f64,
    delay: &mut [f64],
) {
    for i in 0..tenants.len() {
        let family = response(gpu, &tenants[i]).family;
        if family.is_none() {
            continue;
        }
        for j in (0..tenants.len()).filter(|&j| j != i) {
            let other = response(gpu, &tenants[j]).family;
            let Some(speed) = gpu.pair_speed(family, other) else { continue };
            let mut modelled = [0.0; 2];
            delays(&[busy[i], busy[j]], delay_per_neighbour, &mut modelled);
            delay[i] += 1.0 / speed - 1.0 - modelled[0];
        }
        delay[i] = delay[i].max(0.0);
    }
}

/// Clock at which relative active power equals `share`.
fn clock_at(gpu: &GpuModel, share: f64) -> Frequency {
    let mhz = gpu.clock_of_active.at(share);
    // The highest supported clock at or below it; clocks are sorted in descending order.
    let above = gpu.clocks.partition_point(|clock| f64::from(clock.as_mhz()) > mhz + 1e-6);
    gpu.clocks.get(above).or(gpu.clocks.last()).copied().unwrap_or(Frequency::ZERO)
}
