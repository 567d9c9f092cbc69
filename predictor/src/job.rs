//! One job: its windows, and the models fitted to them.
//!
//! Models are fitted in order of dependence: busy share; exclusive power; the effect of caps and
//! clocks on power; step rates together with the effect of caps and clocks on them
//! ([`cap_clock_response`]); and the remaining effect of neighbours. Each fit uses the history of
//! the class as its prior. The formulas are in [`crate::model`].

mod binding;
pub mod cap_clock_response;
mod colocation;
mod exclusive;
mod isotonic;
mod levels;
pub(crate) mod own_curve;
mod power;
mod record;
mod response;
mod settings;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wattle_common::id::WorkloadId;
use wattle_common::numerics::median_high;
use wattle_common::observation::{JobShape, Observation};

use crate::history::{self, AtSetting, Level, PowerLevel, Profile, SharedSet, Summary};
use crate::job::cap_clock_response::{Answer, CapClockResponse, PreparedSetting};
use crate::job::power::{ExclusivePower, GpuWork};
use crate::model;
use crate::model::cap::GpuSpec;
use crate::model::pairs::PairTraits;
use crate::model::throughput::Throughput;
use crate::pooled::{self, Pooled};
use crate::statistics::interval::LogNormal;
use crate::statistics::regression::{Gaussian, Posterior};
use crate::workload_name::WorkloadName;
pub use record::Job;

/// All constants of the models of caps and clocks.
pub const CONSTANTS: &[&model::constant::Constant] = &[
    &model::constant::LEAST_SD,
    &model::cap::BITE,
    &model::cap::CORNER,
    &model::cap::PRIOR_WIDTH,
    &model::clock::CORNER_SD,
    &model::cap_curve::POWER_PRIOR,
    &model::cap_curve::REACH_PRIOR,
    &model::cap_curve::PRIOR_SD,
    &model::transfer::WANDER_PRIOR_TIME,
    &model::transfer::WANDER_PRIOR_POWER,
    &own_curve::BETWEEN_SHARE,
    &cap_clock_response::CLOCK_WANDER_TIME,
    &cap_clock_response::CLOCK_WANDER_POWER,
    &cap_clock_response::SHIFT_SHARE,
];

/// Configurations fitted together with the cap and clock response.
const GROUPS_MAX: usize = history::LEVELS_MAX;
/// Neighbour sets fitted; of those beyond the ones kept, only sets of one neighbour are used.
const SETS_FITTED_MAX: usize = 64;

/// The effect of a cap depends on the power, and the power on the step rates: where these move its logarithm by
/// this, both are fitted again.
const POWER_MOVED: f64 = 0.02;
/// Most fits.
const FITS_MAX: usize = 3;

/// Expected profiles of a job's neighbours, by class.
pub type Profiles = BTreeMap<WorkloadId, Arc<Profile>>;

/// Inputs of a fit other than the job's own windows.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// GPU.
    pub gpu: &'a GpuSpec,
    /// Profile of the job's class, from other jobs.
    pub class: &'a Profile,
    /// Profiles of the neighbours' classes.
    pub profiles: &'a Profiles,
    /// Pooled models of the GPU type.
    pub pooled: &'a Pooled,
}

/// Fitted models of one job.
#[derive(Clone, Debug)]
pub struct JobModel {
    /// Number of windows used.
    pub windows: u32,
    /// Busy share with exclusive GPUs, 0 to 1.
    pub busy: Gaussian,
    /// Whether a busy share was observed, for this job or its class.
    pub busy_seen: bool,
    /// Memory traffic share with exclusive GPUs, 0 to 1.
    pub memory_busy: Option<f64>,
    /// Peak device memory, MiB.
    pub memory_mib: Option<u64>,
    /// Exclusive power of one GPU at the default setting.
    power: ExclusivePower,
    /// Response to caps and clocks.
    pub response: CapClockResponse,
    /// Observed power of one GPU at the default setting, by number of GPUs.
    powers: Vec<PowerLevel>,
    /// Observations under caps and clocks, without the prior.
    settings: Vec<AtSetting>,
    /// Step rates of the observed configurations, then the response to caps and clocks.
    speed: Posterior,
    groups: Vec<JobShape>,
    throughput: Throughput,
    /// Observed effect of neighbours, by their classes.
    pub shared: Vec<SharedSet>,
    /// Whether step rates are inferred from the GPU's activity. Such rates are comparable only with
    /// each other, so they give relative speeds and no level.
    pub inferred: bool,
    /// PairTraits for comparison with other jobs.
    traits: PairTraits,
    /// Observed slowdown co-located with one neighbour at a time.
    singles: Vec<(WorkloadId, Gaussian)>,
}

impl JobModel {
    /// Fits the windows of `job`.
    #[must_use]
    pub fn fit(job: &Job, context: Context<'_>) -> Self {
        let windows = &*binding::limited(rates_of_one_kind(job.windows()), context.gpu);
        let inferred = windows.iter().any(|w| w.rate.is_some() && w.rate_inferred);
        let traits = pooled::traits(job.workload.as_ref(), context.class);
        // The class's levels count reported steps; an inferred period may be another unit.
        let class = without_levels(context.class, inferred);
        let context = Context { class: &class, ..context };
        let (busy, busy_seen) = exclusive::busy(windows, context.class);
        let throughput = Throughput::fit(Vec::new(), None, &context.pooled.throughput);
        let power = exclusive::power(job, context, &throughput);
        let own = windows
            .last()
            .map_or(JobShape { gpus: job.gpus.max, nodes: 1, batch: None }, Observation::shape);
        let transfer = &context.pooled.transfer;
        let family = job.workload.as_ref().map(|w| WorkloadName::of(w.as_str()).family);
        let same_family = family.is_some_and(|family| transfer.knows(family));
        let class = &context.class.settings;
        let response = |ln_power| {
            let family = (transfer, same_family);
            CapClockResponse::expected(context.gpu, family, ln_power, windows, class)
        };
        let ln_power = power.ln_watts(GpuWork { gpus: own.gpus, ln_work: None }).0;
        let mut model = Self {
            windows: job.windows().len() as u32,
            busy,
            busy_seen,
            memory_busy: median_high(
                windows.iter().filter(|w| w.is_exclusive()).filter_map(|w| w.memory_busy),
            )
            .or(context.class.memory_busy),
            memory_mib: windows
                .iter()
                .filter_map(|w| w.memory_mib)
                .max()
                .or(context.class.memory_mib),
            power,
            response: response(ln_power),
            powers: Vec::new(),
            settings: Vec::new(),
            speed: Posterior::from_priors(&[]),
            groups: Vec::new(),
            throughput,
            shared: Vec::new(),
            inferred,
            traits,
            singles: Vec::new(),
        };
        let shapes: BTreeSet<JobShape> = windows.iter().map(Observation::shape).collect();
        for further in (0..FITS_MAX).rev() {
            let ln_power = |model: &Self, shape: &JobShape| model.ln_power_exclusive(*shape).0;
            let before: Vec<f64> = shapes.iter().map(|shape| ln_power(&model, shape)).collect();
            let (held_power, power_default_seen) = model.fit_held_power(windows, context);
            let (held_speed, speed_default_seen) = model.fit_speed(windows, context);
            // Power on GPUs without a reading of their own follows from the step rates.
            model.power = exclusive::power(job, context, &model.throughput);
            let default_seen = (speed_default_seen, power_default_seen);
            model.response.learn(held_speed, held_power, default_seen);
            let mut moves =
                shapes.iter().zip(before).map(|(shape, at)| ln_power(&model, shape) - at);
            if further == 0 || moves.all(|moved| moved.abs() < POWER_MOVED) {
                break;
            }
            model.response = response(ln_power(&model, &own));
        }
        let demand = |shape| model.ln_power_exclusive(shape).0;
        model.settings = settings::raw(windows, &model.response, context.gpu, demand);
        model.powers = exclusive::powers(job, context.gpu);
        model.fit_shared(windows, context);
        model
    }

    /// Natural logarithm of one GPU's exclusive power at the default setting (W), with its variance.
    #[must_use]
    pub fn ln_power_exclusive(&self, on: JobShape) -> (f64, f64) {
        let ln_work = self.throughput.ln_work_of_gpu(on);
        self.power.ln_watts(GpuWork { gpus: on.gpus, ln_work })
    }

    /// Natural logarithm of the exclusive step rate at the default setting (steps/s).
    #[must_use]
    pub fn ln_rate(&self, at: JobShape) -> Option<LogNormal> {
        self.throughput.ln_rate(at)
    }

    /// Natural logarithm of the exclusive step rate under a setting with slowdown `slow`. For an
    /// observed configuration, level and response are predicted together, because their errors are
    /// correlated.
    #[must_use]
    pub fn ln_rate_set(
        &self,
        shape: JobShape,
        at: &PreparedSetting,
        slow: Answer,
    ) -> Option<LogNormal> {
        let shape = self.throughput.named(shape);
        let level = self.throughput.ln_rate(shape)?;
        let variance = match self.groups.iter().position(|g| self.throughput.named(*g) == shape) {
            Some(i) => self.speed.at(&self.speed_row(i, at.columns())).1 + slow.form,
            None => level.variance + slow.fitted + slow.form,
        };
        Some(LogNormal { mean: level.mean - slow.mean, variance, dof: level.dof })
    }

    /// Residual deviations of step rates and of power, relative to the stated ones.
    #[must_use]
    pub fn noise(&self) -> (f64, f64) {
        (self.speed.noise_ratio().clamp(0.7, 4.0), self.power.noise_ratio().clamp(0.7, 4.0))
    }

    /// PairTraits for comparison with other jobs.
    #[must_use]
    pub fn traits(&self) -> PairTraits {
        let mut traits = self.traits.clone();
        traits.busy = self.busy_seen.then_some(self.busy.mean);
        traits.memory_busy = self.memory_busy;
        traits.ln_memory = self.memory_mib.map(|mib| (mib.max(1) as f64).ln());
        traits
    }

    /// Summary of the job for the history of its class.
    #[must_use]
    pub fn summary(&self, job: &Job) -> Summary {
        let own_busy = job.windows().iter().any(|w| w.busy.is_some() || w.busy_job.is_some());
        Summary {
            levels: (self.groups.iter().enumerate())
                .filter(|_| !self.inferred)
                .map(|(i, shape)| Level {
                    gpus: shape.gpus,
                    nodes: shape.nodes,
                    global_batch: shape.batch,
                    ln_rate: self.speed.marginal(i),
                })
                .collect(),
            busy: own_busy.then_some(self.busy),
            memory_busy: self.memory_busy,
            memory_mib: self.memory_mib,
            ln_power: self.power.is_seen.then(|| self.power.level()),
            powers: self.powers.clone(),
            settings: self.settings.clone(),
            shared: self.shared.clone(),
            singles: self.singles.clone(),
            scaling: self.throughput.constants().filter(|_| !self.inferred),
        }
    }
}

/// The windows without inferred rates where any rate is reported: the two may differ in unit, and
/// reported rates take precedence.
fn rates_of_one_kind(windows: &[Observation]) -> Cow<'_, [Observation]> {
    let has = |inferred| windows.iter().any(|w| w.rate.is_some() && w.rate_inferred == inferred);
    if !(has(true) && has(false)) {
        return Cow::Borrowed(windows);
    }
    let mut windows = windows.to_vec();
    for window in windows.iter_mut().filter(|w| w.rate_inferred) {
        window.rate = None;
    }
    Cow::Owned(windows)
}

fn without_levels(class: &Profile, inferred: bool) -> Cow<'_, Profile> {
    let mut class = Cow::Borrowed(class);
    if inferred {
        class.to_mut().levels.clear();
    }
    class
}
