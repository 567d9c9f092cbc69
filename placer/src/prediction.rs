//! The part of a job's surface that explains its placement: the placement itself and alternatives.
//!
//! The alternatives differ from the placement in one respect: the number of GPUs, the cap, the clock
//! or the co-tenants. `wattle explain` prints them.

use wattle_common::job::{GpuRequest, GpuSetting};
use wattle_common::messages::job_record::ALTERNATIVES_MAX;
use wattle_common::messages::{Prediction, Surface, SurfacePoint};
use wattle_common::{Timestamp, WorkloadId};

use crate::state::job_forecast;
use crate::{ClusterState, GpuSet, JobKey};

/// Most alternatives of each kind: sizes, caps, clocks, co-tenants.
const KIND_MAX: usize = ALTERNATIVES_MAX / 4;

/// A configuration of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// GPUs on all nodes.
    pub gpus: u32,
    /// Number of nodes.
    pub nodes: u32,
    /// Cap and clock.
    pub setting: GpuSetting,
    /// Workload classes of its co-tenants as the surface names them, sorted.
    pub neighbours: Vec<WorkloadId>,
}

/// The prediction of `surface` for a configuration, with its alternatives within `request`.
#[must_use]
pub fn prediction(
    surface: &Surface,
    request: GpuRequest,
    here: &Configuration,
    at: Timestamp,
) -> Prediction {
    let setting =
        |p: &SurfacePoint| GpuSetting { cap_mw: p.cap_mw, clock_mhz_max: p.clock_mhz_max };
    let points = || surface.points.iter().filter(|p| p.global_batch.is_none());
    let same_size = |p: &SurfacePoint| (p.gpus, p.nodes) == (here.gpus, here.nodes);
    let placed = points()
        .find(|p| same_size(p) && setting(p) == here.setting && p.neighbours == here.neighbours)
        .cloned();
    let exclusive = |p: &&SurfacePoint| p.neighbours.is_empty();
    // Sizes at the placement's setting, on the fewest nodes.
    let mut sizes: Vec<&SurfacePoint> = points()
        .filter(exclusive)
        .filter(|p| p.gpus != here.gpus && (request.min..=request.max).contains(&p.gpus))
        .filter(|p| setting(p) == here.setting)
        .collect();
    sizes.sort_by_key(|p| (p.gpus, p.nodes));
    sizes.dedup_by_key(|p| p.gpus);
    // Caps and clocks of the same GPUs with the same co-tenants, the default included.
    let settings = |of: fn(&GpuSetting) -> bool| -> Vec<&SurfacePoint> {
        let mut found: Vec<&SurfacePoint> = points()
            .filter(|p| same_size(p) && p.neighbours == here.neighbours)
            .filter(|p| setting(p) != here.setting && of(&setting(p)))
            .collect();
        found.sort_by_key(|p| (p.cap_mw, p.clock_mhz_max));
        found
    };
    let default = settings(GpuSetting::is_default);
    let caps = settings(|s| s.cap_mw.is_some() && s.clock_mhz_max.is_none());
    let clocks = settings(|s| s.cap_mw.is_none() && s.clock_mhz_max.is_some());
    // Other co-tenants at the default setting, which is the only one predicted for co-location.
    let mut shared: Vec<&SurfacePoint> = points()
        .filter(|p| same_size(p) && p.neighbours != here.neighbours)
        .filter(|p| setting(p).is_default() && p.neighbours.len() <= 1)
        .collect();
    shared.sort_by(|a, b| a.neighbours.cmp(&b.neighbours));
    let alternatives = [spread(&sizes), default, spread(&caps), spread(&clocks), spread(&shared)]
        .concat()
        .into_iter()
        .take(ALTERNATIVES_MAX)
        .cloned()
        .collect();
    Prediction {
        at_us: at,
        predictor: surface.predictor.clone(),
        gpu_type: surface.gpu_type.clone(),
        windows: surface.windows,
        basis: surface.basis.clone(),
        placed,
        alternatives,
    }
}

/// At most [`KIND_MAX`] of the points, evenly spread, the first and the last included.
fn spread<'a>(points: &[&'a SurfacePoint]) -> Vec<&'a SurfacePoint> {
    if points.len() <= KIND_MAX {
        return points.to_vec();
    }
    (0..KIND_MAX).map(|i| points[i * (points.len() - 1) / (KIND_MAX - 1)]).collect()
}

/// The prediction for a job on these GPUs of the cluster, next to the jobs that share them.
pub(crate) fn on(
    state: &ClusterState,
    key: JobKey,
    on: &GpuSet,
    setting: GpuSetting,
) -> Option<Prediction> {
    let job = state.job(key)?;
    let (first, _) = on.gpus().next()?;
    let surface = job.surface_on(&state.node(first).facts.gpu_type)?;
    let mut others: Vec<JobKey> = on
        .gpus()
        .flat_map(|(node, gpu)| state.node(node).tenants(gpu).to_vec())
        .filter(|tenant| *tenant != key)
        .collect();
    others.sort_unstable();
    others.dedup();
    let others: Vec<_> = others.into_iter().filter_map(|other| state.job(other)).collect();
    let (gpus, nodes) = (on.gpu_count(), on.node_count());
    // The surface names some classes and has one for all others.
    let neighbours = job_forecast::expected_on(job, &surface.gpu_type, gpus, nodes, &others)
        .map(|point| point.neighbours.clone())
        .unwrap_or_default();
    let here = Configuration { gpus, nodes, setting, neighbours };
    Some(prediction(surface, job.facts.request, &here, state.now()))
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact figures are meant")]
mod tests {
    use wattle_common::{Frequency, Power};
    use wattle_testkit as testkit;

    use super::*;

    #[test]
    fn alternatives_differ_in_one_respect() {
        let bert = testkit::workload("bert");
        let mut points = vec![
            testkit::point(1, 1.0, 200.0),
            testkit::point(2, 1.8, 190.0),
            testkit::point(4, 3.0, 170.0),
            testkit::point(8, 4.0, 150.0),
            SurfacePoint { neighbours: vec![bert.clone()], ..testkit::point(2, 1.2, 240.0) },
            SurfacePoint { neighbours: vec![bert.clone()], ..testkit::point(4, 2.2, 240.0) },
        ];
        points.extend((0..9).map(|i| SurfacePoint {
            cap_mw: Some(Power::from_w(100 + 20 * i)),
            ..testkit::point(2, 1.0 + 0.1 * i as f64, 100.0)
        }));
        points.extend([900, 1_200].map(|mhz| SurfacePoint {
            clock_mhz_max: Some(Frequency::from_mhz(mhz)),
            ..testkit::point(2, 1.4, 120.0)
        }));
        let surface = testkit::surface("j", "v100", points);
        let request = GpuRequest { min: 1, max: 4 };
        let here = Configuration {
            gpus: 2,
            nodes: 1,
            setting: GpuSetting::DEFAULT,
            neighbours: Vec::new(),
        };
        let found = prediction(&surface, request, &here, Timestamp::EPOCH);
        assert_eq!(found.placed.unwrap().steps_per_s.unwrap().mean, 1.8);
        let shown: Vec<(u32, Option<u64>, Option<u32>, usize)> = found
            .alternatives
            .iter()
            .map(|p| {
                let cap = p.cap_mw.map(|cap| cap.as_mw() / 1_000);
                (p.gpus, cap, p.clock_mhz_max.map(Frequency::as_mhz), p.neighbours.len())
            })
            .collect();
        // Eight GPUs are outside the request; four of nine caps are kept, both ends included.
        assert_eq!(
            shown,
            [
                (1, None, None, 0),
                (4, None, None, 0),
                (2, Some(100), None, 0),
                (2, Some(140), None, 0),
                (2, Some(200), None, 0),
                (2, Some(260), None, 0),
                (2, None, Some(900), 0),
                (2, None, Some(1_200), 0),
                (2, None, None, 1),
            ]
        );
        // From a capped and co-located placement, default and exclusive are alternatives.
        let setting = GpuSetting { cap_mw: Some(Power::from_w(100)), ..GpuSetting::DEFAULT };
        let capped = Configuration { setting, ..here.clone() };
        let found = prediction(&surface, request, &capped, Timestamp::EPOCH);
        assert!(found.alternatives.iter().any(|p| p.gpus == 2
            && p.cap_mw.is_none()
            && p.clock_mhz_max.is_none()
            && p.neighbours.is_empty()));
        let shared = Configuration { neighbours: vec![bert], ..here };
        let found = prediction(&surface, request, &shared, Timestamp::EPOCH);
        assert!(found.alternatives.iter().any(|p| p.gpus == 2 && p.neighbours.is_empty()));
    }
}
