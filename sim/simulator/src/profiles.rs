//! What profiler and predictor would have told the placer, made from the world with noise.
//!
//! Policies never see the world. Where one reads profiles, each running job yields windows (its
//! step rate, power, utilisation and memory beside its neighbours, with measurement noise), the
//! predictor's own library learns from them, and its surfaces are all that a policy gets. A job
//! that has not run yet gets the prior of its class. Two windows are taken of each configuration,
//! where a live profiler takes one a minute: more of the same would teach little and cost much.

use std::collections::BTreeMap;
use std::sync::Arc;

use wattle_common::job::GpuRequest;
use wattle_common::messages::window::Neighbour;
use wattle_common::messages::{JobWindow, Surface};
use wattle_common::rng::Stream;
use wattle_common::{Energy, Frequency, JobId, NodeId, Timestamp, WorkloadId};
use wattle_placer::Reads;
use wattle_predictor::{Predictor, PredictorConfig};
use wattle_world::GpuState;

/// When the windows of a configuration close, in microseconds from its beginning: the first is the
/// live profiler's first early window (15 s, after the second in which things settle), the second
/// spans several counter updates of any card.
pub(crate) const WINDOWS_CLOSE_US: [u64; 2] = [16_000_000, 600_000_000];

/// Deviation of a measured rate or power: single runs of the same job scatter by 1 to 3 % in the
/// Zeus traces (ml-energy/zeus, NSDI'23), and a window averages over many steps.
const NOISE: f64 = 0.015;

/// Points of a surface. The predictor puts first what matters most: a job alone under every cap,
/// then beside each class. The policies read no more than that, and three neighbours at once are
/// what most of a surface's time goes into. Who changes sizes reads as many as the predictor ships
/// with: every size and cap of a job alone are more than that already.
const POINTS_MAX: u64 = 100;

/// One job's part in a window.
pub(crate) struct Seen<'a> {
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
    pub(crate) cap: wattle_common::Power,
    /// The clock its cards are locked to.
    pub(crate) clock_max: Option<Frequency>,
    pub(crate) neighbours: Vec<Neighbour>,
    pub(crate) steps_per_s: f64,
    pub(crate) step: u64,
    pub(crate) card: &'a GpuState,
    pub(crate) place: usize,
}

/// The profiler and the predictor of a simulation.
pub(crate) struct Profiles {
    predictor: Predictor,
    noise: Stream,
    /// Windows learned from, by class.
    learned: BTreeMap<WorkloadId, u32>,
}

impl Profiles {
    pub(crate) fn new(seed: u64, reads: Reads) -> Self {
        let shipped = PredictorConfig::shipped();
        let points_max = if reads == Reads::All { shipped.points_max } else { POINTS_MAX };
        Self {
            predictor: Predictor::new(PredictorConfig {
                points_max,
                // Nobody here follows what is proposed.
                probe: false,
                ..shipped
            }),
            noise: Stream::new(seed, "profiles"),
            learned: BTreeMap::new(),
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

    /// How many windows of that class have been learned from.
    pub(crate) fn learned(&self, class: &WorkloadId) -> u32 {
        self.learned.get(class).copied().unwrap_or(0)
    }

    /// What is expected of a job on its kind of GPU, and on the others.
    pub(crate) fn surfaces<'a>(
        &'a self,
        now: Timestamp,
        job: &'a JobId,
        kinds: impl Iterator<Item = &'a str> + 'a,
    ) -> impl Iterator<Item = Arc<Surface>> + 'a {
        let own = self.predictor.surface(now, job);
        let on = own.as_ref().map(|surface| surface.gpu_type.clone());
        let others = kinds.filter(move |kind| on.as_deref() != Some(*kind));
        let others =
            others.filter_map(move |kind| self.predictor.surface_elsewhere(now, job, kind));
        own.into_iter().chain(others).map(Arc::new)
    }

    /// A window has closed: what the predictor makes of it.
    pub(crate) fn window(&mut self, seen: &Seen<'_>) -> Option<Arc<Surface>> {
        let now = Timestamp::from_us(seen.until_us);
        let own = seen.card.tenants[seen.place];
        let mut noisy = |value: f64| value * (1.0 + NOISE * self.noise.normal()).max(0.5);
        let steps_per_s = noisy(seen.steps_per_s);
        let power_w = noisy(seen.card.power.as_w()) * seen.gpus_here.len() as f64;
        let busy = noisy(100.0 * seen.card.utilization_gpu).min(100.0);
        let own_busy = noisy(100.0 * own.utilization_gpu).min(busy);
        let memory_busy = noisy(100.0 * seen.card.utilization_memory).min(100.0);
        let power = wattle_common::Power::from_w_f64(power_w);
        let span_us = seen.until_us - seen.from_us;
        let window = JobWindow {
            job: seen.job.clone(),
            workload: Some(seen.workload.clone()),
            node: seen.node.clone(),
            gpu_type: seen.gpu_type.to_owned(),
            attempt: seen.attempt,
            from_us: Timestamp::from_us(seen.from_us),
            until_us: now,
            gpus: seen.gpus_here.clone(),
            gpus_total: seen.gpus,
            nodes_total: seen.nodes,
            global_batch: None,
            cap_mw: Some(seen.cap),
            clock_mhz_mean: Some(seen.card.clock),
            clock_mhz_max: seen.clock_max,
            neighbours: seen.neighbours.clone(),
            steps: Some((steps_per_s * span_us as f64 / 1e6) as u64),
            steps_per_s: Some(steps_per_s),
            // 90 % of a normal distribution lie within 1.645 deviations.
            steps_per_s_error: Some(1.645 * NOISE),
            steps_inferred: false,
            step: Some(seen.step),
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
        };
        let surface = self.predictor.observe(now, &window)?;
        *self.learned.entry(seen.workload.clone()).or_default() += 1;
        Some(Arc::new(surface))
    }
}
