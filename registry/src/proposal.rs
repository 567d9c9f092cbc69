//! A proposed surface in compact form, and its interpolation at the configuration of a window.

use wattle_common::Timestamp;
use wattle_common::id::WorkloadId;
use wattle_common::messages::{Estimate, Surface};
use wattle_common::observation::{Observation, unknown};

use crate::gpu_types::GpuType;

/// Points kept of each GPU type. A predictor orders its points by importance.
const POINTS_KEPT_MAX: usize = 256;
/// Two caps or clocks with logarithms closer than this are equal.
const SAME: f64 = 0.005;

/// What the registry had observed of the job when a proposal arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// Whether any window had been observed.
    pub(crate) any: bool,
    /// Number of configurations observed.
    pub(crate) configurations: usize,
}

/// A proposal as it is kept for scoring.
#[derive(Clone, Debug)]
pub(crate) struct Proposal {
    /// When the predictor made it.
    pub(crate) at: Timestamp,
    /// When it arrived.
    pub(crate) received: Timestamp,
    /// What the registry had observed of the job by then.
    pub(crate) known: Known,
    by_gpu_type: Box<[Points]>,
}

/// The points of one GPU type.
#[derive(Clone, Debug)]
struct Points {
    gpu_type: Box<str>,
    points: Box<[Point]>,
    /// The distinct lists of neighbours, to which points refer by index; index 0 is the empty list.
    neighbours: Box<[Box<[WorkloadId]>]>,
}

/// One point: 72 bytes.
#[derive(Clone, Copy, Debug)]
struct Point {
    gpus: u32,
    nodes: u32,
    neighbours: u16,
    cap_w: Option<f32>,
    clock_mhz: Option<f32>,
    batch: Option<u32>,
    /// Mean, low and high, as below; a mean of zero: absent.
    rate: [f32; 3],
    relative: [f32; 3],
    power: [f32; 3],
}

/// A proposal's prediction for one configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Prediction {
    /// Steps per second, where predicted.
    pub(crate) steps_per_s: Option<Estimate>,
    /// Speed relative to exclusive GPUs at the default cap and clock.
    pub(crate) relative_speed: Estimate,
    /// Power of one GPU, watts.
    pub(crate) gpu_power_w: Estimate,
}

fn packed(estimate: Estimate) -> [f32; 3] {
    [estimate.mean as f32, estimate.low as f32, estimate.high as f32]
}

/// Linear interpolation of the logarithms: speed and power are close to powers of cap and clock.
fn interpolate(a: [f32; 3], b: [f32; 3], share: f64) -> Estimate {
    let at = |i: usize| {
        let (a, b) = (f64::from(a[i]).max(1e-12), f64::from(b[i]).max(1e-12));
        (a.ln() + share * (b.ln() - a.ln())).exp()
    };
    Estimate { mean: at(0), low: at(1), high: at(2) }
}

impl Proposal {
    /// The compact form of a valid surface.
    pub(crate) fn of(surface: &Surface, received: Timestamp, known: Known) -> Self {
        let all = std::iter::once(surface).chain(&surface.other_gpu_types);
        Self { at: surface.at_us, received, known, by_gpu_type: all.map(Points::of).collect() }
    }

    /// The prediction for the configuration of `window`; `None` where the proposal has no point
    /// there and no two points around it.
    pub(crate) fn predict(
        &self,
        gpu_type: &str,
        window: &Observation,
        gpu: &GpuType,
    ) -> Option<Prediction> {
        self.by_gpu_type.iter().find(|on| *on.gpu_type == *gpu_type)?.predict(window, gpu)
    }
}

impl Points {
    fn of(surface: &Surface) -> Self {
        let mut lists: Vec<Box<[WorkloadId]>> = vec![Box::default()];
        let mut points = Vec::with_capacity(surface.points.len().min(POINTS_KEPT_MAX));
        for point in surface.points.iter().take(POINTS_KEPT_MAX) {
            let index = lists.iter().position(|list| **list == *point.neighbours);
            let index = index.unwrap_or_else(|| {
                lists.push(point.neighbours.clone().into());
                lists.len() - 1
            });
            points.push(Point {
                gpus: point.gpus,
                nodes: point.nodes,
                neighbours: u16::try_from(index).expect("at most one list per point kept"),
                cap_w: point.cap_mw.map(|cap| cap.as_w() as f32),
                clock_mhz: point.clock_mhz_max.map(|clock| clock.as_mhz() as f32),
                batch: point.global_batch,
                rate: point.steps_per_s.map_or([0.0; 3], packed),
                relative: packed(point.relative_speed),
                power: packed(point.gpu_power_w),
            });
        }
        Self {
            gpu_type: surface.gpu_type.as_str().into(),
            points: points.into(),
            neighbours: lists.into(),
        }
    }

    fn predict(&self, window: &Observation, gpu: &GpuType) -> Option<Prediction> {
        let neighbours = self.index_of(&window.neighbours)?;
        let here = |p: &&Point| {
            p.gpus == window.gpus && p.nodes == window.nodes && p.neighbours == neighbours
        };
        let batch = window.global_batch.filter(|batch| {
            self.points.iter().filter(here).any(|point| point.batch == Some(*batch))
        });
        let points = self.points.iter().filter(here).filter(|point| point.batch == batch);
        // A point without a cap is at the default; an unknown default is a value of its own.
        let default = gpu.cap_known.then_some(gpu.cap_default_w);
        let ln_cap = |cap: Option<f64>| cap.or(default).map_or(0.0, f64::ln);
        let same = |a: f64, b: f64| (a - b).abs() < SAME;
        let cap = ln_cap(window.cap_w.map(|cap| default.map_or(cap, |default| cap.min(default))));
        let axis: Vec<(f64, &Point)> = match window.clock_mhz_max {
            None => points
                .filter(|point| point.clock_mhz.is_none())
                .map(|point| (ln_cap(point.cap_w.map(f64::from)), point))
                .collect(),
            Some(_) => points
                .filter(|point| same(ln_cap(point.cap_w.map(f64::from)), cap))
                .filter_map(|point| Some((f64::from(point.clock_mhz?).ln(), point)))
                .collect(),
        };
        let at = window.clock_mhz_max.map_or(cap, f64::ln);
        let below = axis.iter().filter(|(x, _)| *x <= at + SAME).max_by(|a, b| a.0.total_cmp(&b.0));
        let above = axis.iter().filter(|(x, _)| *x >= at - SAME).min_by(|a, b| a.0.total_cmp(&b.0));
        let ((x0, a), (x1, b)) = (below?, above?);
        let share = if same(*x0, *x1) { 0.0 } else { ((at - x0) / (x1 - x0)).clamp(0.0, 1.0) };
        let has_rates = a.rate[0] > 0.0 && b.rate[0] > 0.0;
        Some(Prediction {
            steps_per_s: has_rates.then(|| interpolate(a.rate, b.rate, share)),
            relative_speed: interpolate(a.relative, b.relative, share),
            gpu_power_w: interpolate(a.power, b.power, share),
        })
    }

    /// The index of a list of neighbours. A workload that no point names is read as `unknown`, as
    /// the placer does.
    fn index_of(&self, neighbours: &[WorkloadId]) -> Option<u16> {
        let find = |wanted: &[WorkloadId]| {
            let index = self.neighbours.iter().position(|list| **list == *wanted)?;
            u16::try_from(index).ok()
        };
        find(neighbours).or_else(|| {
            let named = |class: &WorkloadId| self.neighbours.iter().any(|l| l.contains(class));
            let read = |class: &WorkloadId| if named(class) { class.clone() } else { unknown() };
            let mut list: Vec<WorkloadId> = neighbours.iter().map(read).collect();
            list.sort();
            find(&list)
        })
    }
}
