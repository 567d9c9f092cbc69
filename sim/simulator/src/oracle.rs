//! True surfaces, made from the world: an upper bound on the value of better predictions.
//!
//! They have the form of predicted surfaces, with intervals of zero width, from a job's arrival on;
//! policies cannot distinguish them. A co-tenant's effect depends on its number of GPUs, so the
//! classes on the co-location axis consist of workload and shape. The surfaces cover one co-tenant
//! at a time; no policy places more than two jobs on a GPU.

use std::collections::BTreeMap;
use std::sync::Arc;

use wattle_common::id::PredictorId;
use wattle_common::job::{GpuRequest, GpuSetting};
use wattle_common::messages::{Estimate, Surface, SurfacePoint};
use wattle_common::{Frequency, JobId, Power, Timestamp, WorkloadId};
use wattle_placer::{OperatingPoints, Reads};
use wattle_world::{GpuModel, Setting, Tenant, Workload, World};

use crate::scenario::Scenario;
use crate::surface_noise::SurfaceNoise;

/// The distance of the caps of a surface.
const CAP_STEP: Power = Power::from_w(5);

/// Largest number of nodes of a surface point, as a multiple of the fewest.
const SPREADS: u32 = 4;

/// A workload with its GPUs and nodes.
#[derive(Clone, Copy)]
pub(crate) struct Shaped<'w> {
    pub(crate) workload: &'w Workload,
    pub(crate) gpus: u32,
    pub(crate) nodes: u32,
}

impl<'w> Shaped<'w> {
    fn tenant(self) -> Tenant<'w> {
        Tenant { workload: self.workload, gpus: self.gpus, nodes: self.nodes }
    }

    fn class(self) -> WorkloadId {
        let name = format!("{}-on-{}x{}", self.workload.id, self.gpus, self.nodes);
        // Without the shape if the id would be too long.
        WorkloadId::new(&name).unwrap_or_else(|_| self.workload.id.clone())
    }

    fn key(self) -> (&'w WorkloadId, u32, u32) {
        (&self.workload.id, self.gpus, self.nodes)
    }
}

/// The true values of one shape on one GPU type.
struct Truth {
    utilization_gpu_percent: f64,
    utilization_memory_percent: f64,
    memory_mib: u64,
    points: Vec<SurfacePoint>,
}

/// A surface of all GPU counts and settings, with its operating points.
type FullSurface = (Arc<Surface>, Arc<OperatingPoints>);

/// Makes true surfaces, optionally with errors of a known size.
pub(crate) struct Oracle<'w> {
    world: &'w World,
    /// Errors of its surfaces, if any.
    surface_noise: Option<SurfaceNoise>,
    gpus_per_node: u32,
    /// Every possible co-tenant.
    axis: Vec<Shaped<'w>>,
    known: BTreeMap<(&'w str, &'w WorkloadId, u32, u32), Truth>,
    name: PredictorId,
    /// Whether surfaces cover all GPU counts and settings.
    full: bool,
    full_surfaces: BTreeMap<(&'w str, &'w WorkloadId, u32, u32), FullSurface>,
    /// Whether settings are caps in place of clocks.
    caps: bool,
}

impl<'w> Oracle<'w> {
    pub(crate) fn new(
        world: &'w World,
        scenario: &Scenario,
        reads: Reads,
        surface_noise: Option<SurfaceNoise>,
    ) -> Self {
        let gpus_per_node = scenario.cluster.nodes().map(|(gpus, _)| gpus).max().unwrap_or(1);
        let mut oracle = Self {
            world,
            surface_noise,
            gpus_per_node,
            axis: Vec::new(),
            known: BTreeMap::new(),
            name: PredictorId::new("oracle").expect("the name is a valid id"),
            full: reads == Reads::All,
            full_surfaces: BTreeMap::new(),
            caps: false,
        };
        for job in &scenario.jobs {
            let Some(workload) = world.workload(job.workload.as_str()) else { continue };
            let gpus = job.gpus.min;
            for group in scenario.cluster.groups() {
                let nodes = gpus.div_ceil(group.gpus_per_node.max(1)).max(1);
                let shape = Shaped { workload, gpus, nodes };
                if !oracle.axis.iter().any(|known| known.key() == shape.key()) {
                    oracle.axis.push(shape);
                }
            }
        }
        oracle
    }

    /// The same with caps in place of clocks as settings.
    pub(crate) fn with_caps(self, caps: bool) -> Self {
        Self { caps, ..self }
    }

    /// The settings of a surface besides the default.
    fn settings(&self, gpu: &GpuModel) -> Vec<GpuSetting> {
        let default = GpuSetting::DEFAULT;
        if self.caps {
            let caps = selectable_caps(gpu).into_iter();
            return caps.map(|cap| GpuSetting { cap_mw: Some(cap), ..default }).collect();
        }
        let clocks = selectable_clocks(gpu).into_iter();
        clocks.map(|clock| GpuSetting { clock_mhz_max: Some(clock), ..default }).collect()
    }

    /// Whether its surfaces cover all GPU counts and settings.
    pub(crate) fn covers_all_points(&self) -> bool {
        self.full
    }

    /// The true surface of a job at every GPU count of its request and every selectable clock, and
    /// with each workload as a co-tenant on the same number of GPUs.
    pub(crate) fn full_surface(
        &mut self,
        now: Timestamp,
        job: &JobId,
        shape: Shaped<'w>,
        request: GpuRequest,
        gpu: &'w GpuModel,
    ) -> Option<FullSurface> {
        if !self.full {
            return None;
        }
        let key = (gpu.gpu_type.as_str(), &shape.workload.id, request.min, request.max);
        if let Some(known) = self.full_surfaces.get(&key) {
            return Some(known.clone());
        }
        let mut points = Vec::new();
        for gpus in gpu_counts(request) {
            let shape = self.expected_shape(shape.workload, gpus);
            points.push(self.point(shape, gpu, GpuSetting::DEFAULT, None));
            for setting in self.settings(gpu) {
                points.push(self.point(shape, gpu, setting, None));
            }
            let others: BTreeMap<&WorkloadId, &'w Workload> =
                self.axis.iter().map(|other| (&other.workload.id, other.workload)).collect();
            for &workload in others.values() {
                let other = Shaped { workload, ..shape };
                let mut point = self.point(shape, gpu, GpuSetting::DEFAULT, Some(other));
                point.neighbours = vec![workload.id.clone()];
                points.push(point);
            }
        }
        let exclusive = self.world.gpu_state(gpu, Setting::default(), &[shape.tenant()]);
        let surface = Arc::new(Surface {
            job: job.clone(),
            admission: None,
            predictor: self.name.clone(),
            at_us: now,
            gpu_type: gpu.gpu_type.clone(),
            windows: 0,
            basis: Some("simulated world".to_owned()),
            class: Some(shape.workload.id.clone()),
            utilization_gpu_percent: Some(100.0 * exclusive.utilization_gpu),
            utilization_memory_percent: Some(100.0 * exclusive.utilization_memory),
            memory_mib_max: Some(exclusive.tenants[0].memory_mib),
            points,
            other_gpu_types: Vec::new(),
        });
        let operating_points = Arc::new(OperatingPoints::of(&surface, request));
        self.full_surfaces.insert(key, (surface.clone(), operating_points.clone()));
        Some((surface, operating_points))
    }

    /// The shape of a job without a placement: on the fewest nodes.
    pub(crate) fn expected_shape(&self, workload: &'w Workload, gpus: u32) -> Shaped<'w> {
        Shaped { workload, gpus, nodes: gpus.div_ceil(self.gpus_per_node).max(1) }
    }

    /// The true surface of `job` with this shape on this GPU type.
    pub(crate) fn surface(
        &mut self,
        now: Timestamp,
        job: &JobId,
        shape: Shaped<'w>,
        gpu: &'w GpuModel,
    ) -> Arc<Surface> {
        let (workload, gpus, nodes) = shape.key();
        let key = (gpu.gpu_type.as_str(), workload, gpus, nodes);
        if !self.known.contains_key(&key) {
            let truth = self.truth(shape, gpu);
            self.known.insert(key, truth);
        }
        let truth = &self.known[&key];
        Arc::new(Surface {
            job: job.clone(),
            admission: None,
            predictor: self.name.clone(),
            at_us: now,
            gpu_type: gpu.gpu_type.clone(),
            windows: 0,
            basis: Some("simulated world".to_owned()),
            class: Some(shape.class()),
            utilization_gpu_percent: Some(truth.utilization_gpu_percent),
            utilization_memory_percent: Some(truth.utilization_memory_percent),
            memory_mib_max: Some(truth.memory_mib),
            points: truth.points.clone(),
            other_gpu_types: Vec::new(),
        })
    }

    fn truth(&self, shape: Shaped<'w>, gpu: &GpuModel) -> Truth {
        let exclusive = self.world.gpu_state(gpu, Setting::default(), &[shape.tenant()]);
        let default = GpuSetting::DEFAULT;
        let mut points = vec![self.point(shape, gpu, default, None)];
        let fewest = self.expected_shape(shape.workload, shape.gpus).nodes;
        for nodes in fewest..=(fewest * SPREADS).min(shape.gpus) {
            if nodes != shape.nodes {
                points.push(self.point(Shaped { nodes, ..shape }, gpu, default, None));
            }
        }
        let with_co_tenant = |&other: &Shaped<'w>| self.point(shape, gpu, default, Some(other));
        points.extend(self.axis.iter().map(with_co_tenant));
        Truth {
            utilization_gpu_percent: 100.0 * exclusive.utilization_gpu,
            utilization_memory_percent: 100.0 * exclusive.utilization_memory,
            memory_mib: exclusive.tenants[0].memory_mib,
            points,
        }
    }

    fn point(
        &self,
        shape: Shaped<'w>,
        gpu: &GpuModel,
        setting: GpuSetting,
        other: Option<Shaped<'w>>,
    ) -> SurfacePoint {
        let tenants: Vec<Tenant<'_>> =
            [Some(shape), other].into_iter().flatten().map(Shaped::tenant).collect();
        let GpuSetting { cap_mw, clock_mhz_max } = setting;
        let set = Setting { cap: cap_mw, clock_max: clock_mhz_max };
        let state = self.world.gpu_state(gpu, set, &tenants);
        let speed = state.tenants[0].speed;
        let steps_per_s = speed * shape.workload.steps_per_s(gpu, shape.gpus, shape.nodes);
        let (mut rate, mut relative_speed, mut power) = (steps_per_s, speed, state.power.as_w());
        if let Some(surface_noise) = &self.surface_noise {
            let of = |what, other| {
                surface_noise.factor(what, shape.workload.id.as_str(), shape.gpus, other)
            };
            rate *= of("speed", "");
            power *= of("power", "");
            if let Some(other) = other {
                let relative = of("relative", other.workload.id.as_str()).min(1.0 / speed);
                (rate, relative_speed) = (rate * relative, relative_speed * relative);
                power *= of("power", other.workload.id.as_str());
            }
        }
        SurfacePoint {
            gpus: shape.gpus,
            nodes: shape.nodes,
            cap_mw,
            clock_mhz_max,
            global_batch: None,
            neighbours: other.into_iter().map(Shaped::class).collect(),
            steps_per_s: Some(exactly(rate)),
            relative_speed: exactly(relative_speed),
            gpu_power_w: exactly(power),
        }
    }
}

/// The GPU counts considered for a job: powers of two between its limits, and both limits.
pub fn gpu_counts(request: GpuRequest) -> impl Iterator<Item = u32> {
    let within = move |n: &u32| (request.min..=request.max).contains(n);
    let powers = (0..31).map(|k| 1 << k).filter(within);
    let mut all: Vec<u32> = powers.chain([request.min, request.max]).collect();
    all.sort_unstable();
    all.dedup();
    all.into_iter()
}

/// The clocks a policy may choose besides the unlocked one, highest first: evenly spaced over the
/// upper two fifths of the GPU's range, below which no measured job saves energy.
pub fn selectable_clocks(gpu: &GpuModel) -> Vec<Frequency> {
    /// The number of clocks in comparisons, with the unlocked one.
    const CLOCKS: u32 = 12;
    /// 870 of 1410 MHz: the lowest that was measured on the A100 (perseus stage profile).
    const LOWEST: f64 = 870.0 / 1410.0;
    let top = f64::from(gpu.clock_max().as_mhz());
    let step = top * (1.0 - LOWEST) / f64::from(CLOCKS - 1);
    (1..CLOCKS)
        .map(|k| top - step * f64::from(k))
        .filter_map(|mhz| {
            let distance = |clock: &&Frequency| (f64::from(clock.as_mhz()) - mhz).abs() as u32;
            gpu.clocks.iter().min_by_key(distance).copied()
        })
        .collect()
}

/// The caps below the default one, highest first, [`CAP_STEP`] apart.
pub fn selectable_caps(gpu: &GpuModel) -> Vec<Power> {
    let most = gpu.cap_default.saturating_sub(gpu.cap_min).as_mw() / CAP_STEP.as_mw();
    (1..=most).map(|n| gpu.cap_default.saturating_sub(CAP_STEP.scale(n as f64))).collect()
}

fn exactly(value: f64) -> Estimate {
    Estimate { mean: value, low: value, high: value }
}
