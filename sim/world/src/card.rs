//! One card and all its tenants: speed, power, clock, utilisation, memory.
//!
//! Three things slow a tenant, and their effects multiply: its neighbours (interference.rs), and
//! the sharper of a locked clock and a power cap. A cap is one budget for the whole card, so each
//! tenant is as throttled as it would be alone under the cap that leaves it the same share of its
//! active power: `idle + (cap - idle) * own active / card's peak`. For a single tenant that is the
//! cap itself, and its measured row is returned exactly.

use wattle_common::{Frequency, Power};

use crate::gpu::GpuModel;
use crate::interference::{Interference, Sharing};
use crate::sharing::{TENANTS_MAX, delays, mean_active, peak_active};
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
    sharing: &Sharing,
) -> CardState {
    let limits = Limits::of(gpu, setting);
    if tenants.is_empty() {
        return idle(gpu, &limits);
    }
    // Alone on its GPUs and nodes, each tenant would be this.
    let counted = &tenants[..tenants.len().min(TENANTS_MAX)];
    let n = counted.len();
    let mut alone =
        [SpreadOut { time: 1.0, busy: 0.0, active_w: 0.0, computing: 1.0 }; TENANTS_MAX];
    let (mut busy, mut delay) = ([0.0; TENANTS_MAX], [0.0; TENANTS_MAX]);
    let mut free = [(0.0, 0.0); TENANTS_MAX];
    for (i, tenant) in counted.iter().enumerate() {
        alone[i] = tenant.workload.spread_out(response(gpu, tenant), tenant.gpus, tenant.nodes);
        busy[i] = alone[i].busy;
        free[i] = (alone[i].busy, alone[i].active_w);
    }
    match sharing.interference {
        Interference::Mild => delay[..n].fill(sharing.mild.delay(&busy[..n])),
        Interference::Pairs => {
            let per_neighbour = sharing.delay_per_neighbour;
            delays(&busy[..n], per_neighbour, &mut delay[..n]);
            if n > 1 {
                measured_pairs(gpu, counted, &busy[..n], per_neighbour, &mut delay[..n]);
            }
        }
    }

    let peak_w = peak_active(&free[..n]);
    let (mut capped, mut drawn) = (free, free);
    let mut gpu_busy = 0.0;
    let mut memory_busy = 0.0;
    let mut states = Vec::with_capacity(tenants.len());
    for (i, tenant) in counted.iter().enumerate() {
        let response = response(gpu, tenant);
        let share = if peak_w > 0.0 { alone[i].active_w / peak_w } else { 1.0 };
        let (cap_speed, cap_w) = under_cap(gpu, response, alone[i], limits.budget_w * share);
        let core = (response.core_bound * alone[i].computing).min(1.0);
        let (clock_speed, clock_active) = limits.at_clock(response);
        let clock_speed = 1.0 / (1.0 - core + core / clock_speed.max(SPEED_MIN));
        capped[i].1 = cap_w;
        drawn[i].1 = cap_w.min(alone[i].active_w * clock_active);
        let throttle = cap_speed.min(clock_speed);
        let speed = (throttle / (1.0 + delay[i])).clamp(SPEED_MIN, 1.0);
        // Throttled kernels take longer while the input does not: the idle share shrinks.
        let on_card = 1.0 - (1.0 - busy[i]) * throttle;
        gpu_busy += on_card;
        memory_busy += response.memory_busy * speed;
        states.push(TenantState {
            speed,
            steps_per_s: speed * tenant.workload.steps_per_epoch as f64
                / (response.epoch_s * alone[i].time),
            utilization_gpu: on_card,
            memory_mib: tenant.workload.memory_mib,
        });
    }
    for tenant in &mut states {
        tenant.utilization_gpu /= f64::max(1.0, gpu_busy);
    }
    // Beyond TENANTS_MAX the rest stand still, which no card's memory lets happen.
    states.extend(tenants[n..].iter().map(|tenant| TenantState {
        speed: SPEED_MIN,
        steps_per_s: 0.0,
        utilization_gpu: 0.0,
        memory_mib: tenant.workload.memory_mib,
    }));

    let (drawn_w, capped_w) = (mean_active(&drawn[..n]), mean_active(&capped[..n]));
    let left = capped_w / mean_active(&free[..n]).max(1e-9);
    let binds = left < CAPPED_BELOW;
    CardState {
        power: (gpu.idle + Power::from_w_f64(drawn_w)).min(limits.cap),
        clock: if binds { clock_at(gpu, left).min(limits.clock) } else { limits.clock },
        utilization_gpu: f64::min(1.0, gpu_busy),
        utilization_memory: f64::min(1.0, memory_busy),
        power_capped: binds && drawn_w + 1e-9 >= capped_w,
        tenants: states,
    }
}

/// What a setting comes to on a card.
struct Limits {
    cap: Power,
    /// What the cap leaves above idle, in watts.
    budget_w: f64,
    clock: Frequency,
    /// Speed of a compute-bound job and its active power at that clock, relative to the top.
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

    /// What the clock leaves of a job's speed, were it core-bound, and of its active power: by its
    /// own curve where it has one.
    fn at_clock(&self, response: &Response) -> (f64, f64) {
        let Some((speed, active)) = &response.clock else {
            return (self.clock_speed, self.clock_active);
        };
        let mhz = f64::from(self.clock.as_mhz());
        (speed.at(mhz), active.at(mhz))
    }
}

/// A card with no tenant: at its lowest clock.
fn idle(gpu: &GpuModel, limits: &Limits) -> CardState {
    CardState {
        power: gpu.idle,
        clock: gpu.clocks.last().copied().unwrap_or(limits.clock),
        utilization_gpu: 0.0,
        utilization_memory: 0.0,
        power_capped: false,
        tenants: Vec::new(),
    }
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
        let core = (response.core_bound * alone.computing).min(1.0);
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
    // What the measured run lost at this cap, it lost computing.
    let measured =
        |cap_w: f64| 1.0 / (1.0 + (1.0 / speeds.at(cap_w).max(SPEED_MIN) - 1.0) * alone.computing);
    if cap_w >= lowest_w {
        return (measured(cap_w), (actives.at(cap_w) * scale).min(budget_w));
    }
    // Below the lowest measured cap the card's general law goes on from the measured point.
    let there = (lowest_w - idle_w) * scale;
    let speed = measured(lowest_w) * (law(budget_w) / law(there).max(SPEED_MIN)).min(1.0);
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
    let mhz = gpu.clock_of_active.at(share);
    // The highest of its clocks that does not exceed it; they are listed highest first.
    let above = gpu.clocks.partition_point(|clock| f64::from(clock.as_mhz()) > mhz + 1e-6);
    gpu.clocks.get(above).or(gpu.clocks.last()).copied().unwrap_or(Frequency::ZERO)
}
