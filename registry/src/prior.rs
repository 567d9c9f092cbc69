//! The surface that the registry writes for a job without one: wide bounds, no measurement.
//!
//! With the default cap L0 and idle power I of a GPU (watts), a cap L and n co-tenants:
//!
//! ```text
//!                           low        expected                      high
//! power                     I          n: I + (n+1)(L0/2 - I)        L
//! relative speed, cap L     L/L0       1 - (1 - L/L0)/4              1
//! relative speed, n         1/(n+1)    1/(1 + n/10)                  1
//! ```
//!
//! The bounds are physical: power lies between idle power and the cap, speed falls at most in
//! proportion to the power withdrawn, and co-tenants share the GPU's time equally at worst. The
//! expected values are near measured means: about 0.9 of the speed at 0.6 of the cap (Zeus traces,
//! ml-energy/zeus), and 0.73 to 0.99 of the speed beside one co-tenant (Lucid artifact, ASPLOS'23).
//! Step rates are unknown.

use wattle_common::Power;
use wattle_common::Timestamp;
use wattle_common::id::{AdmissionId, JobId, PredictorId, WorkloadId};
use wattle_common::job::GpuRequest;
use wattle_common::messages::{Estimate, Surface, SurfacePoint};
use wattle_common::observation::unknown;

use crate::gpu_types::GpuType;

/// The predictor id of the registry's priors; no predictor may use it.
pub const PRIOR: &str = "prior";

/// Caps of the surface as shares of the default cap.
const CAP_SHARES: [f64; 6] = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4];
/// Largest number of co-tenants on the surface.
const NEIGHBOURS_MAX: usize = 3;
/// Largest number of GPU counts on the surface.
const COUNTS_MAX: usize = 16;
/// Nodes are assumed to have this many GPUs.
const GPUS_PER_NODE: u32 = 8;
/// Expected power as a share of the default cap.
const POWER_SHARE: f64 = 0.5;
/// Expected loss of speed per share of the cap withdrawn.
const CAP_LOSS: f64 = 0.25;
/// Expected slow-down per co-tenant.
const NEIGHBOUR_LOSS: f64 = 0.1;

/// The predictor id of priors.
pub(crate) fn id() -> PredictorId {
    PredictorId::new(PRIOR).expect("letters only")
}

/// A job as its owner describes it.
pub(crate) struct Described<'a> {
    pub(crate) job: &'a JobId,
    pub(crate) admission: Option<&'a AdmissionId>,
    pub(crate) workload: Option<&'a WorkloadId>,
    pub(crate) gpus: GpuRequest,
}

/// The prior of `job` on one GPU type.
pub(crate) fn surface(
    now: Timestamp,
    job: &Described<'_>,
    (name, gpu): (&str, &GpuType),
    basis: &str,
) -> Surface {
    let mut points = Vec::new();
    for gpus in counts(job.gpus) {
        let point = |cap, neighbours, relative_speed, gpu_power_w| SurfacePoint {
            gpus,
            nodes: gpus.div_ceil(GPUS_PER_NODE),
            cap_mw: cap,
            clock_mhz_max: None,
            global_batch: None,
            neighbours,
            steps_per_s: None,
            relative_speed,
            gpu_power_w,
        };
        let default_w = gpu.cap_default_w;
        points.push(point(None, Vec::new(), exactly(1.0), power(gpu, 0, default_w)));
        for share in CAP_SHARES.into_iter().filter(|_| gpu.cap_known) {
            let cap = Power::from_w((default_w * share).round() as u64);
            let speed = Estimate { mean: 1.0 - CAP_LOSS * (1.0 - share), low: share, high: 1.0 };
            points.push(point(Some(cap), Vec::new(), speed, power(gpu, 0, cap.as_w())));
        }
        for n in 1..=NEIGHBOURS_MAX {
            let tenants = n as f64;
            let mean = 1.0 / (1.0 + NEIGHBOUR_LOSS * tenants);
            let speed = Estimate { mean, low: 1.0 / (1.0 + tenants), high: 1.0 };
            points.push(point(None, vec![unknown(); n], speed, power(gpu, n, default_w)));
        }
    }
    Surface {
        job: job.job.clone(),
        admission: job.admission.cloned(),
        predictor: id(),
        at_us: now,
        gpu_type: name.to_owned(),
        windows: 0,
        basis: Some(basis.to_owned()),
        class: job.workload.cloned(),
        utilization_gpu_percent: None,
        utilization_memory_percent: None,
        memory_mib_max: None,
        points,
        other_gpu_types: Vec::new(),
    }
}

fn exactly(mean: f64) -> Estimate {
    Estimate { mean, low: mean, high: mean }
}

/// Power of one GPU with `neighbours` co-tenants under a cap, watts.
fn power(gpu: &GpuType, neighbours: usize, cap_w: f64) -> Estimate {
    let low = gpu.idle_w.min(cap_w);
    let tenants = 1.0 + neighbours as f64;
    let mean = gpu.idle_w + tenants * (POWER_SHARE * gpu.cap_default_w - gpu.idle_w).max(0.0);
    Estimate { mean: mean.clamp(low, cap_w), low, high: cap_w }
}

/// GPU counts of the surface: the ends of the request and the powers of two between them.
fn counts(request: GpuRequest) -> Vec<u32> {
    let (min, max) = (request.min.max(1), request.max.max(request.min).max(1));
    let mut counts = vec![min, max];
    counts.extend((0..u32::BITS).map(|i| 1 << i).filter(|n| (min..=max).contains(n)));
    counts.sort_unstable();
    counts.dedup();
    counts.truncate(COUNTS_MAX);
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::check;
    use crate::gpu_types::GpuTypes;

    #[test]
    fn prior_is_a_valid_surface_with_ordered_points() {
        let job = JobId::new("a").unwrap();
        let gpus = GpuRequest { min: 1, max: 12 };
        let job = Described { job: &job, admission: None, workload: None, gpus };
        for name in ["v100", "not-in-any-data-sheet"] {
            let gpu = GpuTypes::default().get(name);
            let prior = surface(Timestamp::EPOCH, &job, (name, &gpu), "prior: test");
            let named = Surface { predictor: PredictorId::new("other").unwrap(), ..prior.clone() };
            assert_eq!(check(Timestamp::EPOCH, &named.predictor, job.job, &named), Ok(()));
            let gpus: std::collections::BTreeSet<u32> =
                prior.points.iter().map(|p| p.gpus).collect();
            assert_eq!(gpus.into_iter().collect::<Vec<_>>(), [1, 2, 4, 8, 12]);
            let capped = prior.points.iter().filter(|point| point.cap_mw.is_some()).count();
            assert_eq!(capped, if gpu.cap_known { 5 * CAP_SHARES.len() } else { 0 });
        }
    }
}
