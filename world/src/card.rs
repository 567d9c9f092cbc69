//! One card and all its tenants: speed, power, clock, utilisation, memory.
//!
//! Three things slow a tenant, and their effects multiply: its neighbours (sharing.rs, or the
//! measured pair), and the sharper of a locked clock and a power cap. A cap is one budget for the
//! whole card, so each tenant is as throttled as it would be alone under the cap that leaves it
//! the same share of its active power: `idle + (cap - idle) * own active / card's active`. For a
//! single tenant that is the cap itself, and its measured row is returned exactly.

use wattle_common::{Frequency, Power};

use crate::gpu::GpuModel;
use crate::sharing::{TENANTS_MAX, combined_active, delays};
use crate::workload::{Response, SpreadOut, Workload};

/// What a card is set to; `None` is the card's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// Its power cap.
    pub cap: Option<Power>,
    /// The highest core clock it may use.
    pub clock_max: Option<Frequency>,
}

/// A job that runs on the card.
#[derive(Clone, Copy, Debug)]
pub struct Tenant<'a> {
    /// What kind of job it is.
    pub workload: &'a Workload,
    /// How many GPUs it has in all.
    pub gpus: u32,
    /// Over how many nodes they are spread.
    pub nodes: u32,
}

/// What a card does with the tenants it has.
#[derive(Clone, Debug, PartialEq)]
pub struct CardState {
    /// What it draws.
    pub power: Power,
    /// The core clock it runs at.
    pub clock: Frequency,
    /// Share of time with a kernel on it, 0..=1.
    pub utilization_gpu: f64,
    /// Share of time with its memory in use, 0..=1.
    pub utilization_memory: f64,
    /// Whether the cap holds it back.
    pub power_capped: bool,
    /// Each tenant, in the order given.
    pub tenants: Vec<TenantState>,
}

/// What a tenant gets from the card.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TenantState {
    /// Speed relative to the same job alone on as many GPUs and nodes at default cap and clock.
    pub speed: f64,
    /// Steps of the whole job in a second, were all its cards in this state.
    pub steps_per_s: f64,
    /// Its share of the card's busy time, 0..=1.
    pub utilization_gpu: f64,
    /// Device memory it holds, MiB.
    pub memory_mib: u64,
}

/// Slowest speed ever reported: a job that nothing stops makes some way.
const SPEED_MIN: f64 = 1e-4;

/// Held back by the cap: the card draws less than this share of what it would.
const CAPPED_BELOW: f64 = 0.995;

pub(crate) fn state(
    gpu: &GpuModel,
    setting: Setting,
    tenants: &[Tenant<'_>],
    delay_per_neighbour: f64,
) -> CardState {
    let idle_w = gpu.idle.as_w();
    let cap = setting.cap.unwrap_or(gpu.cap_default).clamp(gpu.cap_min, gpu.cap_max);
    let ceiling = setting.clock_max.unwrap_or_else(|| gpu.clock_max()).min(gpu.clock_max());
    let (clock_speed, clock_active) = if ceiling >= gpu.clock_max() {
        (1.0, 1.0)
    } else {
        let mhz = f64::from(ceiling.as_mhz());
        (gpu.clock_speed.at(mhz), gpu.clock_active.at(mhz))
    };
    if tenants.is_empty() {
        let clock = gpu.clocks.last().copied().unwrap_or(Frequency::ZERO).min(ceiling);
        return CardState {
            power: gpu.idle.min(cap),
            clock,
            utilization_gpu: 0.0,
            utilization_memory: 0.0,
            power_capped: false,
            tenants: Vec::new(),
        };
    }

    // Alone on its GPUs and nodes, each tenant would be this; beyond TENANTS_MAX the rest stand
    // still, which no card's memory lets happen.
    let counted = &tenants[..tenants.len().min(TENANTS_MAX)];
    let n = counted.len();
    let mut alone = [SpreadOut { time: 1.0, busy: 0.0, active_w: 0.0 }; TENANTS_MAX];
    let mut busy = [0.0; TENANTS_MAX];
    let mut delay = [0.0; TENANTS_MAX];
    for (i, tenant) in counted.iter().enumerate() {
        let response = response(gpu, tenant);
        alone[i] = tenant.workload.spread_out(response, tenant.gpus, tenant.nodes);
        busy[i] = alone[i].busy;
    }
    delays(&busy[..n], delay_per_neighbour, &mut delay[..n]);
    if n > 1 {
        measured_pairs(gpu, counted, &busy[..n], delay_per_neighbour, &mut delay[..n]);
    }

    let demand_w = combined_active(alone[..n].iter().map(|a| (a.busy, a.active_w)));
    let budget_w = (cap.as_w() - idle_w).max(0.0);
    let mut throttled = [(0.0, 0.0); TENANTS_MAX];
    let mut state = CardState {
        power: gpu.idle,
        clock: ceiling,
        utilization_gpu: 0.0,
        utilization_memory: 0.0,
        power_capped: false,
        tenants: Vec::with_capacity(tenants.len()),
    };
    let mut capped_w = [(0.0, 0.0); TENANTS_MAX];
    for (i, tenant) in counted.iter().enumerate() {
        let response = response(gpu, tenant);
        let share = if demand_w > 0.0 { alone[i].active_w / demand_w } else { 1.0 };
        let (cap_speed, cap_active) = under_cap(gpu, response, alone[i], budget_w * share);
        let core = response.core_bound;
        let clock_speed = 1.0 / (1.0 - core + core / clock_speed.max(SPEED_MIN));
        let throttle = cap_speed.min(clock_speed);
        capped_w[i] = (busy[i], cap_active);
        throttled[i] = (busy[i], cap_active.min(alone[i].active_w * clock_active));
        let speed = (throttle / (1.0 + delay[i])).clamp(SPEED_MIN, 1.0);
        // Throttled kernels take longer while the input does not: the idle share shrinks.
        let on_card = 1.0 - (1.0 - busy[i]) * throttle;
        state.utilization_gpu += on_card;
        state.utilization_memory += response.memory_busy * speed;
        state.tenants.push(TenantState {
            speed,
            steps_per_s: speed * tenant.workload.steps_per_epoch as f64
                / (response.epoch_s * alone[i].time),
            utilization_gpu: on_card,
            memory_mib: tenant.workload.memory_mib,
        });
    }
    if state.utilization_gpu > 1.0 {
        for tenant in &mut state.tenants {
            tenant.utilization_gpu /= state.utilization_gpu;
        }
        state.utilization_gpu = 1.0;
    }
    state.utilization_memory = state.utilization_memory.min(1.0);
    for tenant in &tenants[n..] {
        let memory_mib = tenant.workload.memory_mib;
        let still =
            TenantState { speed: SPEED_MIN, steps_per_s: 0.0, utilization_gpu: 0.0, memory_mib };
        state.tenants.push(still);
    }

    let active_w = combined_active(throttled[..n].iter().copied());
    let capped_w = combined_active(capped_w[..n].iter().copied());
    state.power = (gpu.idle + Power::from_w_f64(active_w)).min(cap.max(gpu.idle));
    state.power_capped = active_w + 1e-9 >= capped_w && capped_w < CAPPED_BELOW * demand_w;
    if capped_w < CAPPED_BELOW * demand_w {
        state.clock = clock_at(gpu, capped_w / demand_w).min(ceiling);
    }
    state
}

fn response<'a>(gpu: &GpuModel, tenant: &Tenant<'a>) -> &'a Response {
    // A workload of another catalog than the card's may know fewer cards; it then runs as on the
    // first it knows rather than ending the process.
    let all = &tenant.workload.responses;
    all.get(gpu.index).unwrap_or(&all[0])
}

/// Speed and active power of a tenant, alone, where the cap leaves it `budget_w` above idle.
fn under_cap(gpu: &GpuModel, response: &Response, alone: SpreadOut, budget_w: f64) -> (f64, f64) {
    let demand_w = alone.active_w;
    let law = |budget_w: f64| {
        let left = (budget_w / demand_w.max(1e-9)).min(1.0);
        if left >= 1.0 {
            return 1.0;
        }
        let core = response.core_bound;
        1.0 / (1.0 - core + core / gpu.throttle.at(left).max(SPEED_MIN))
    };
    let Some((speeds, actives)) = &response.caps else {
        return (law(budget_w), budget_w.min(demand_w));
    };
    // Measured on `response.active_w`; on other GPU counts the same share of the demand counts.
    let scale = demand_w / response.active_w.max(1e-9);
    let idle_w = gpu.idle.as_w();
    let cap_w = idle_w + budget_w / scale.max(1e-9);
    let lowest_w = speeds.first().0;
    if cap_w >= lowest_w {
        return (speeds.at(cap_w), (actives.at(cap_w) * scale).min(budget_w));
    }
    // Below the lowest measured cap the card's general law goes on from the measured point.
    let there = (lowest_w - idle_w) * scale;
    let speed = speeds.first().1 * (law(budget_w) / law(there).max(SPEED_MIN)).min(1.0);
    (speed, (actives.first().1 * scale).min(budget_w))
}

/// Replaces, for each two tenants whose families were measured side by side, the model's delay of
/// that pair by the measured one. With more tenants the difference is added for each neighbour.
fn measured_pairs(
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
            let beside = response(gpu, &tenants[j]).family;
            let Some(speed) = gpu.pair_speed(family, beside) else { continue };
            let mut modelled = [0.0; 2];
            delays(&[busy[i], busy[j]], delay_per_neighbour, &mut modelled);
            delay[i] += 1.0 / speed - 1.0 - modelled[0];
        }
        delay[i] = delay[i].max(0.0);
    }
}

/// The clock at which the card's active power is this share of what it is at the top.
fn clock_at(gpu: &GpuModel, share: f64) -> Frequency {
    let mhz = gpu.clock_active.inverse(share);
    // The highest of its clocks that does not exceed it; they are listed highest first.
    let fits = |clock: &&Frequency| f64::from(clock.as_mhz()) <= mhz + 1e-6;
    gpu.clocks.iter().find(fits).or(gpu.clocks.last()).copied().unwrap_or(Frequency::ZERO)
}
