//! The operating points of two jobs that share GPUs.
//!
//! Both jobs have the same GPUs and setting. Surfaces state the speed of each beside the other at the
//! default setting. At another setting the slow-downs by setting and by co-tenant are assumed independent,
//! and the pair's power above idle falls like that of the exclusive jobs.
//!
//! A curve depends on the surfaces of both jobs and on the charge, not on prices. Most surfaces do not change
//! between two rounds, so [`JointCurves`] keeps the curves.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use wattle_common::job::GpuSetting;

use crate::policies::wattle::market::Bid;
use crate::policies::wattle::prices::JoulePrices;
use crate::policies::wattle::upper_envelope::OperatingCurve;
use crate::power::energy_cost::Charge;
use crate::state::job::Job;
use crate::state::job_forecast::expected_on;
use crate::state::operating_points::{OperatingPoint, OperatingPoints};
use crate::state::restarts::typical_cost;

/// Jobs whose relative speeds sum to no more than this never share: they are no faster together than one
/// after the other.
const SPEED_SUM_MIN: f64 = 1.0;
/// The most operating points whose curves are kept, and the most joint points of these, about 100 MB. Beyond either all
/// are dropped.
const KEPT_MAX: usize = 1_024;
const KEPT_POINTS_MAX: usize = 2_000_000;

/// Joint operating points of two jobs by number of GPUs.
#[derive(Debug, PartialEq)]
pub(super) struct JointCurve {
    pub(super) sizes: Vec<JointSize>,
}

/// Their joint operating point at one number of GPUs.
#[derive(Debug, PartialEq)]
pub(super) struct JointSize {
    pub(super) gpus: u32,
    pub(super) restart_s: f64,
    points: Vec<JointPoint>,
    /// The greatest speed of each job and the least power over all points.
    speeds_max: [f64; 2],
    watts_min: f64,
    drawn_w_min: f64,
}

/// One setting for both.
#[derive(Debug, PartialEq)]
pub(super) struct JointPoint {
    pub(super) speeds: [f64; 2],
    /// The charge by the prediction for the pair, watts.
    watts: f64,
    /// The charge that counts within a power limit, watts: until they are measured, co-located jobs count with
    /// the sum of their powers above idle.
    pub(super) drawn_w: f64,
    pub(super) setting: GpuSetting,
}

impl JointPoint {
    /// The value of both jobs' work, less the cost of power, s/s.
    pub(super) fn value(&self, bids: [&Bid; 2], joule: JoulePrices) -> f64 {
        bids[0].work_price * self.speeds[0] + bids[1].work_price * self.speeds[1]
            - joule.cost(self.watts, self.drawn_w)
    }
}

impl JointSize {
    fn new(gpus: u32, restart_s: f64, points: Vec<JointPoint>) -> Self {
        let speed_max = |k: usize| points.iter().map(|point| point.speeds[k]).fold(0.0, f64::max);
        let speeds_max = [0, 1].map(speed_max);
        let least =
            |watts: fn(&JointPoint) -> f64| points.iter().map(watts).fold(f64::INFINITY, f64::min);
        let (watts_min, drawn_w_min) = (least(|point| point.watts), least(|point| point.drawn_w));
        Self { gpus, restart_s, points, speeds_max, watts_min, drawn_w_min }
    }

    /// An upper bound of the value of any point.
    pub(super) fn value_bound(&self, bids: [&Bid; 2], joule: JoulePrices) -> f64 {
        let earned: f64 = (0..2).map(|k| bids[k].work_price * self.speeds_max[k]).sum();
        earned - joule.cost(self.watts_min, self.drawn_w_min)
    }

    /// The point with the greatest value among those with these least speeds, and its value.
    pub(super) fn best_point(
        &self,
        bids: [&Bid; 2],
        joule: JoulePrices,
        speeds_min: [f64; 2],
    ) -> Option<(&JointPoint, f64)> {
        let points = self.fast_enough(speeds_min);
        let values = points.map(|point| (point, point.value(bids, joule)));
        values.reduce(|best, next| if next.1 > best.1 { next } else { best })
    }

    /// The points with at least these speeds.
    pub(super) fn fast_enough(&self, speeds_min: [f64; 2]) -> impl Iterator<Item = &JointPoint> {
        self.points.iter().filter(move |point| {
            point.speeds[0] >= speeds_min[0] && point.speeds[1] >= speeds_min[1]
        })
    }
}

impl JointCurve {
    /// `None` if sharing pays on no size.
    fn new(
        curves: [&OperatingCurve<'_>; 2],
        jobs: [&Job; 2],
        (charge, gpu_w_max): (Charge, f64),
    ) -> Option<Self> {
        let on_size = |gpus| joint_size(curves, jobs, charge, gpu_w_max, gpus);
        let sizes: Vec<JointSize> = curves[0].known.sizes().filter_map(on_size).collect();
        (!sizes.is_empty()).then_some(Self { sizes })
    }
}

/// The curves of the pairs of one GPU type that were considered, also in earlier rounds.
#[derive(Debug, Default)]
pub(super) struct JointCurves {
    /// The charge and the highest power of a GPU, watts, with which they were computed.
    terms: Option<(Charge, f64)>,
    /// Operating points by slot. While they are kept here, no others have their address.
    kept: Vec<Option<Arc<OperatingPoints>>>,
    /// Slots by the address of the operating points.
    slots: BTreeMap<usize, usize>,
    /// By the slots of both; absent: not computed yet.
    curves: Vec<Vec<Option<Option<Arc<JointCurve>>>>>,
    /// Number of all joint points.
    points: usize,
}

/// The curves as rounds share them.
pub(super) type SharedJointCurves = Arc<Mutex<JointCurves>>;

impl JointCurves {
    /// Prepares for a round with this charge and highest power of a GPU: curves of other terms, and of operating points
    /// that no job has any more, are dropped.
    pub(super) fn begin_round(&mut self, charge: Charge, gpu_w_max: f64) {
        let terms = Some((charge, gpu_w_max));
        if self.terms != terms || self.slots.len() > KEPT_MAX || self.points > KEPT_POINTS_MAX {
            *self = Self { terms, ..Self::default() };
        }
        for slot in 0..self.kept.len() {
            let gone = self.kept[slot].take_if(|points| Arc::strong_count(points) == 1);
            let Some(points) = gone else { continue };
            self.slots.remove(&Arc::as_ptr(&points).addr());
            let column = self.curves.iter_mut().filter_map(|row| row.get_mut(slot)?.take());
            let dropped: Vec<_> = column.collect();
            let row = std::mem::take(&mut self.curves[slot]).into_iter().flatten();
            self.points -=
                dropped.into_iter().chain(row).map(|curve| point_count(&curve)).sum::<usize>();
        }
    }

    /// The curve of two jobs with these operating curves; `None` if sharing pays on no size.
    pub(super) fn of(
        &mut self,
        curves: [&OperatingCurve<'_>; 2],
        jobs: [&Job; 2],
    ) -> Option<Arc<JointCurve>> {
        let terms = self.terms?;
        let [a, b] = [self.slot(curves[0], jobs[0])?, self.slot(curves[1], jobs[1])?];
        let row = &mut self.curves[a];
        if row.len() <= b {
            row.resize(b + 1, None);
        }
        if let Some(known) = &row[b] {
            return known.clone();
        }
        let made = JointCurve::new(curves, jobs, terms).map(Arc::new);
        self.points += point_count(&made);
        row[b] = Some(made.clone());
        made
    }

    /// The slot of a job's operating points.
    fn slot(&mut self, curve: &OperatingCurve<'_>, job: &Job) -> Option<usize> {
        let address = std::ptr::from_ref(curve.known).addr();
        if let Some(&slot) = self.slots.get(&address) {
            return Some(slot);
        }
        let mut known = job.all_operating_points();
        let points = known.find(|points| std::ptr::eq(&raw const ***points, curve.known))?;
        let free = self.kept.iter().position(Option::is_none);
        let slot = free.unwrap_or_else(|| {
            self.kept.push(None);
            self.curves.push(Vec::new());
            self.kept.len() - 1
        });
        self.kept[slot] = Some(Arc::clone(points));
        self.slots.insert(address, slot);
        Some(slot)
    }
}

fn point_count(curve: &Option<Arc<JointCurve>>) -> usize {
    curve.iter().flat_map(|curve| &curve.sizes).map(|size| size.points.len()).sum()
}

fn joint_size(
    curves: [&OperatingCurve<'_>; 2],
    jobs: [&Job; 2],
    charge: Charge,
    gpu_w_max: f64,
    gpus: u32,
) -> Option<JointSize> {
    let gpu_type = &curves[0].known.gpu_type;
    let exclusive = curves.map(|curve| curve.known.with_gpus(gpus));
    if exclusive[1].is_empty() {
        return None;
    }
    let nodes = exclusive[0].first()?.nodes;
    let a = expected_on(jobs[0], gpu_type, gpus, nodes, &[jobs[1]])?;
    let b = expected_on(jobs[1], gpu_type, gpus, nodes, &[jobs[0]])?;
    let relative = [a.relative_speed.mean, b.relative_speed.mean];
    let power_w = f64::midpoint(a.gpu_power_w.mean, b.gpu_power_w.mean);
    let is_valid = relative.iter().all(|s| s.is_finite() && *s > 0.0) && power_w.is_finite();
    if !is_valid || relative[0] + relative[1] <= SPEED_SUM_MIN {
        return None;
    }
    let at_default = |curve: &OperatingCurve<'_>| {
        curve.known.point(gpus, GpuSetting::DEFAULT).map(|point| above_idle_w(&charge, point))
    };
    let default_w = [at_default(curves[0])?, at_default(curves[1])?];
    let points = exclusive[0].iter().filter_map(|one| {
        let two = curves[1].known.point(gpus, one.setting)?;
        let above_idle_w = [one, two].map(|point| above_idle_w(&charge, point));
        let power_ratio =
            f64::midpoint(above_idle_w[0] / default_w[0], above_idle_w[1] / default_w[1]);
        let gpu_power_w = charge.idle_w() + (power_w - charge.idle_w()) * power_ratio;
        let drawn_w = (charge.idle_w() + above_idle_w.iter().sum::<f64>()).min(gpu_w_max);
        let speeds = [
            relative[0] * one.steps_per_s / curves[0].unit,
            relative[1] * two.steps_per_s / curves[1].unit,
        ];
        let watts = |gpu_power_w| charge.watts(&OperatingPoint { gpu_power_w, ..*one });
        let (watts, drawn_w) = (watts(gpu_power_w), watts(drawn_w));
        Some(JointPoint { speeds, watts, drawn_w, setting: one.setting })
    });
    let points: Vec<JointPoint> = points.collect();
    (!points.is_empty()).then(|| JointSize::new(gpus, typical_cost(gpus).as_secs_f64(), points))
}

/// Power of one GPU above idle, watts; at least 1.
fn above_idle_w(charge: &Charge, point: &OperatingPoint) -> f64 {
    (point.gpu_power_w - charge.idle_w()).max(1.0)
}

#[cfg(test)]
mod tests {
    use wattle_common::Frequency;
    use wattle_common::job::GpuRequest;
    use wattle_common::messages::{Surface, SurfacePoint};
    use wattle_testkit as testkit;

    use super::*;
    use crate::policies::wattle::prices::EnergyPrice;
    use crate::state::cluster::ClusterState;
    use crate::state::gpu_set::JobKey;
    use crate::state::job::JobFacts;

    /// A job whose speed beside another one is a share of its own.
    fn arrive(state: &mut ClusterState, number: u32) -> JobKey {
        let name = format!("j{number}");
        let facts = JobFacts::new(name.parse().unwrap(), GpuRequest { min: 1, max: 4 });
        let key = state.job_arrived(facts);
        let any = || testkit::workload("any");
        let point = |gpus: u32, clock: Option<u32>| {
            let rate = f64::from(gpus).sqrt() * (1.0 + 0.01 * f64::from(number));
            let slower = clock.map_or(1.0, |mhz| f64::from(mhz) / 1_410.0);
            SurfacePoint {
                clock_mhz_max: clock.map(Frequency::from_mhz),
                ..testkit::point(gpus, rate * slower, 100.0 + 200.0 * slower)
            }
        };
        let shared = |gpus: u32| SurfacePoint {
            neighbours: vec![any()],
            relative_speed: testkit::exactly(0.7 + 0.01 * f64::from(number % 20)),
            ..point(gpus, None)
        };
        let points = [1, 2, 4]
            .into_iter()
            .flat_map(|gpus| [point(gpus, None), point(gpus, Some(1_100)), shared(gpus)]);
        let surface = Surface {
            class: Some(any()),
            utilization_gpu_percent: Some(50.0),
            memory_mib_max: Some(1_000),
            ..testkit::surface(&name, "a100", points)
        };
        state.surface_known(key, Arc::new(surface));
        key
    }

    fn points_unit(points: &OperatingPoints) -> f64 {
        points.unit_rate().unwrap()
    }

    /// All pairs of these jobs, by kept curves and computed from scratch.
    fn all_pairs_agree(
        state: &ClusterState,
        keys: &[JobKey],
        kept: &mut JointCurves,
        charge: Charge,
    ) {
        const GPU_W_MAX: f64 = 400.0;
        kept.begin_round(charge, GPU_W_MAX);
        let energy = EnergyPrice { now: 0.0, mean: 0.0 };
        let jobs: Vec<&Job> = keys.iter().filter_map(|&key| state.job(key)).collect();
        let known = jobs.iter().map(|job| job.operating_points_on("a100").unwrap());
        let curve = |points| OperatingCurve::new(points, points_unit(points), charge, energy, 8);
        let curves: Vec<OperatingCurve<'_>> = known.map(|points| curve(points).unwrap()).collect();
        for (a, curve_a) in curves.iter().enumerate() {
            for (b, curve_b) in curves.iter().enumerate() {
                let (curves, jobs) = ([curve_a, curve_b], [jobs[a], jobs[b]]);
                let fresh = JointCurve::new(curves, jobs, (charge, GPU_W_MAX));
                assert!(fresh.is_some(), "these jobs gain by sharing");
                assert_eq!(kept.of(curves, jobs).as_deref(), fresh.as_ref());
            }
        }
    }

    #[test]
    fn kept_curves_are_those_that_would_be_computed() {
        let mut state = ClusterState::new();
        let mut keys: Vec<JobKey> = (0..4).map(|number| arrive(&mut state, number)).collect();
        let mut kept = JointCurves::default();
        let mut charge = Charge::default();
        for number in 4..40 {
            all_pairs_agree(&state, &keys, &mut kept, charge);
            // Another job in place of one, whose operating points may get the address of those before.
            let at = number as usize % keys.len();
            state.job_ended(keys[at]);
            keys[at] = arrive(&mut state, number);
            // A new surface of a job, and other charges.
            if number.is_multiple_of(5) {
                let key = keys[(at + 1) % keys.len()];
                let surface = state.job(key).unwrap().surface_on("a100").unwrap();
                let more_power = |point: &SurfacePoint| SurfacePoint {
                    gpu_power_w: testkit::exactly(point.gpu_power_w.mean + 10.0),
                    ..point.clone()
                };
                let points = surface.points.iter().map(more_power).collect();
                let surface = Surface { points, ..surface.clone() };
                state.surface_known(key, Arc::new(surface));
            }
            if number.is_multiple_of(7) {
                charge = Charge::new(10.0 * f64::from(number % 3), 0.0);
            }
            let held = kept.kept.iter().flatten().count();
            assert!(held <= 4 * keys.len(), "{held} are kept for {} jobs", keys.len());
            assert_eq!(
                kept.points,
                kept.curves.iter().flatten().flatten().map(point_count).sum::<usize>()
            );
        }
    }
}
