//! The profiler and the predictor of a simulation.
//!
//! Policies have no access to the world. Each running job yields windows made from the world with
//! measurement noise (step rate, power, utilization, memory, co-tenants); the predictor's library
//! learns from them, and policies receive its surfaces. A job that has not run has the prior of its
//! class. Each configuration yields two windows, where a live profiler yields one per minute:
//! further windows would add little information and much cost. In large scenarios it learns from a
//! sample of the jobs ([`crate::sampled`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use wattle_common::job::GpuRequest;
use wattle_common::messages::window::Neighbour;
use wattle_common::messages::{JobWindow, Surface};
use wattle_common::rng::Stream;
use wattle_common::{Energy, Frequency, JobId, NodeId, Power, Timestamp, WorkloadId};
use wattle_placer::{JobFacts, OperatingPoints, Reads};
use wattle_predictor::{Predictor, PredictorConfig};
use wattle_world::GpuState;

use crate::sampled::{Sample, SurfaceWithPoints};

/// End of a configuration's windows, microseconds from its start. The first is the live profiler's
/// first early window (15 s, after a second of settling); the second spans several counter updates
/// of any GPU.
pub(crate) const WINDOWS_CLOSE_US: [u64; 2] = [16_000_000, 600_000_000];

/// Relative standard deviation of a measured rate or power. Repeated runs differ by 1 to 3 % in the
/// Zeus traces (ml-energy/zeus, NSDI'23), and a window averages over many steps.
const NOISE: f64 = 0.015;

/// Most points of a surface for policies that do not resize jobs. The predictor puts the exclusive
/// points at every cap first, then one co-tenant of each class; these policies read no others, and
/// points with several co-tenants cost the most time. Elastic policies use the predictor's default
/// limit.
const POINTS_MAX: u64 = 100;

/// The measurements of one job for a window.
pub(crate) struct WindowInput<'a> {
    /// The placer's facts of the job.
    pub(crate) facts: &'a JobFacts,
    /// Whether it was left out of the sample at an earlier window.
    pub(crate) is_left_out: bool,
    pub(crate) job: &'a JobId,
    pub(crate) workload: &'a WorkloadId,
    pub(crate) node: NodeId,
    pub(crate) gpu_type: &'a str,
    pub(crate) attempt: u32,
    pub(crate) from_us: u64,
    pub(crate) until_us: u64,
    pub(crate) gpus_here: Vec<u32>,
    pub(crate) gpus: u32,
    pub(crate) nodes: u32,
    pub(crate) cap: Power,
    /// The locked clock of its GPUs.
    pub(crate) clock_max: Option<Frequency>,
    pub(crate) neighbours: Vec<Neighbour>,
    pub(crate) steps_per_s: f64,
    pub(crate) step: u64,
    /// The state of the job's first GPU.
    pub(crate) gpu_state: &'a GpuState,
    /// Index of the job among the GPU's tenants.
    pub(crate) tenant: usize,
}

/// The profiler and the predictor of a simulation.
pub(crate) struct Profiles {
    predictor: Predictor,
    noise: Stream,
    /// Number of learned windows by class.
    learned: BTreeMap<WorkloadId, u32>,
    /// The sample of jobs; absent where every window is learned.
    sample: Option<Sample>,
    /// The lowest cap of each GPU type. The live placer leaves out what is below it, too.
    caps_min: BTreeMap<String, Power>,
}

/// Result of a window.
pub(crate) enum Learned {
    /// The job's new surface.
    Own(Arc<Surface>),
    /// The predictor learned nothing from it.
    Nothing,
    /// The job is left out of the sample. It gets this surface at its first window.
    LeftOut(Option<SurfaceWithPoints>),
}

/// Removes the points with caps that a GPU of the type cannot have.
fn remove_impossible_caps(caps_min: &BTreeMap<String, Power>, surface: &mut Surface) {
    let Some(&least) = caps_min.get(&surface.gpu_type) else { return };
    surface.points.retain(|point| point.cap_mw.is_none_or(|cap| cap >= least));
}

impl Profiles {
    pub(crate) fn new(
        seed: u64,
        reads: Reads,
        is_sampled: bool,
        caps_min: BTreeMap<String, Power>,
        tenants_max: u32,
    ) -> Self {
        let shipped = PredictorConfig::shipped();
        let points_max = if reads == Reads::All { shipped.points_max } else { POINTS_MAX };
        let predictor = Predictor::new(PredictorConfig { points_max, ..shipped });
        // Most points have several co-tenants, more than a GPU has here.
        let neighbours_max = tenants_max.saturating_sub(1) as usize;
        Self {
            predictor: predictor.without_points_beyond(neighbours_max),
            noise: Stream::new(seed, "profiles"),
            learned: BTreeMap::new(),
            sample: is_sampled.then(Sample::default),
            caps_min,
        }
    }

    pub(crate) fn arrived(
        &mut self,
        now: Timestamp,
        job: &JobId,
        workload: &WorkloadId,
        gpus: GpuRequest,
        gpu_type: &str,
    ) {
        self.predictor.describe(now, job.clone(), Some(workload.clone()), gpus, Some(gpu_type));
    }

    pub(crate) fn ended(&mut self, job: &JobId) {
        self.predictor.forget(job);
    }

    /// Whether it learns from a sample of the jobs.
    pub(crate) fn is_sampled(&self) -> bool {
        self.sample.is_some()
    }

    /// Number of learned windows of a class.
    pub(crate) fn learned(&self, class: &WorkloadId) -> u32 {
        self.learned.get(class).copied().unwrap_or(0)
    }

    /// The surfaces of a job without windows, on its GPU type and on the others.
    pub(crate) fn priors<'a>(
        &mut self,
        now: Timestamp,
        job: &JobFacts,
        gpu_types: impl Iterator<Item = &'a str>,
    ) -> Vec<SurfaceWithPoints> {
        let learned = job.workload.as_ref().map_or(0, |class| self.learned(class));
        if let Some(known) = self.sample.as_mut().and_then(|sample| sample.prior(job, learned)) {
            return known;
        }
        let own = self.predictor.surface(now, &job.id);
        let on = own.as_ref().map(|surface| surface.gpu_type.clone());
        let others = gpu_types.filter(move |gpu_type| on.as_deref() != Some(*gpu_type));
        let others =
            others.filter_map(|gpu_type| self.predictor.surface_elsewhere(now, &job.id, gpu_type));
        let surfaces = own.into_iter().chain(others).map(|mut surface| {
            remove_impossible_caps(&self.caps_min, &mut surface);
            let points = OperatingPoints::of_job(&surface, job);
            (Arc::new(surface), Arc::new(points))
        });
        let surfaces: Vec<SurfaceWithPoints> = surfaces.collect();
        if let Some(sample) = &mut self.sample {
            sample.keep_prior(job, learned, &surfaces);
        }
        surfaces
    }

    /// Closes a window; the predictor learns it if the job is in the sample.
    pub(crate) fn window(&mut self, input: &WindowInput<'_>) -> Learned {
        if let Some(sample) = &mut self.sample {
            if input.is_left_out {
                return Learned::LeftOut(None);
            }
            let own = self.predictor.knowledge_of(input.job);
            if own.is_none_or(|known| known.windows().is_empty())
                && let Some(known) = sample.left_out(input.facts)
            {
                return Learned::LeftOut(Some(known));
            }
        }
        let window = self.measure(input);
        let Some(mut surface) = self.predictor.observe(window.until_us, &window) else {
            return Learned::Nothing;
        };
        remove_impossible_caps(&self.caps_min, &mut surface);
        let surface = Arc::new(surface);
        *self.learned.entry(input.workload.clone()).or_default() += 1;
        if let Some(sample) = &mut self.sample {
            sample.learned(input.facts, &surface);
        }
        Learned::Own(surface)
    }

    /// The window that a profiler would close.
    fn measure(&mut self, input: &WindowInput<'_>) -> JobWindow {
        let now = Timestamp::from_us(input.until_us);
        let own = input.gpu_state.tenants[input.tenant];
        let mut noisy = |value: f64| value * (1.0 + NOISE * self.noise.normal()).max(0.5);
        let steps_per_s = noisy(input.steps_per_s);
        let power_w = noisy(input.gpu_state.power.as_w()) * input.gpus_here.len() as f64;
        let busy = noisy(100.0 * input.gpu_state.utilization_gpu).min(100.0);
        let own_busy = noisy(100.0 * own.utilization_gpu).min(busy);
        let memory_busy = noisy(100.0 * input.gpu_state.utilization_memory).min(100.0);
        let power = Power::from_w_f64(power_w);
        let span_us = input.until_us - input.from_us;
        JobWindow {
            job: input.job.clone(),
            admission: None,
            workload: Some(input.workload.clone()),
            node: input.node.clone(),
            gpu_type: input.gpu_type.to_owned(),
            attempt: input.attempt,
            from_us: Timestamp::from_us(input.from_us),
            until_us: now,
            gpus: input.gpus_here.clone(),
            gpus_total: input.gpus,
            nodes_total: input.nodes,
            global_batch: None,
            cap_mw: Some(input.cap),
            clock_mhz_mean: Some(input.gpu_state.clock),
            clock_mhz_max: input.clock_max,
            neighbours: input.neighbours.clone(),
            steps: Some((steps_per_s * span_us as f64 / 1e6) as u64),
            steps_per_s: Some(steps_per_s),
            // 90 % of a normal distribution lie within 1.645 standard deviations.
            steps_per_s_error: Some(1.645 * NOISE),
            steps_inferred: false,
            step: Some(input.step),
            epoch: None,
            early: true,
            power_mw_gpus: Some(power),
            power_mw_job: None,
            energy_mj_gpus: Some(Energy::from_mj(
                (u128::from(power.as_mw()) * u128::from(span_us) / 1_000_000) as u64,
            )),
            utilization_gpu_percent: Some(busy),
            utilization_gpu_percent_job: Some(own_busy),
            utilization_memory_percent: Some(memory_busy),
            memory_mib_max_job: Some(own.memory_mib),
            // At the live profiler's 10 Hz.
            samples: u32::try_from(span_us / 100_000).unwrap_or(u32::MAX),
        }
    }
}
