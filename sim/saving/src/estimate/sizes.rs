//! The sizes that jobs may get which can be resized.

use std::str::FromStr;

use wattle_common::job::GpuRequest;
use wattle_simulator::{OPEN_GPUS_MAX, Scenario, Work};
use wattle_world::World;

/// The sizes of jobs that can be resized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sizes {
    /// That of the trace.
    Trace,
    /// From one GPU to as many as a job requests: larger sizes would change what it computes.
    #[default]
    Smaller,
    /// From one GPU to 64, or to as many as a job requests if these are more.
    Any,
}

/// Unknown sizes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown sizes `{0}`: give trace, smaller or any")]
pub struct UnknownSizes(String);

impl FromStr for Sizes {
    type Err = UnknownSizes;

    fn from_str(text: &str) -> Result<Self, UnknownSizes> {
        match text {
            "trace" => Ok(Self::Trace),
            "smaller" => Ok(Self::Smaller),
            "any" => Ok(Self::Any),
            _ => Err(UnknownSizes(text.to_owned())),
        }
    }
}

impl Sizes {
    /// The assumption that they are; `None` for the usual ones.
    pub(super) const fn assumption(self) -> Option<&'static str> {
        match self {
            Self::Trace => Some("Sizes are those of the trace; no job is resized."),
            Self::Smaller => None,
            Self::Any => {
                Some("Jobs that are resized may have more GPUs than they request, up to 64.")
            }
        }
    }

    /// Opens the sizes of the jobs that can be resized. Their work is fixed as the steps of the recorded run.
    pub(super) fn open(self, world: &World, scenario: &mut Scenario) {
        let cluster = scenario.cluster.clone();
        for job in scenario.jobs.iter_mut().filter(|job| job.can_stop) {
            let gpus = job.gpus.min.max(1);
            let max = match self {
                Self::Trace => return,
                Self::Smaller => gpus,
                Self::Any => OPEN_GPUS_MAX.max(gpus),
            };
            let mut groups = cluster.groups().iter();
            let group = job.gpu_type.as_deref().map_or_else(
                || cluster.groups().first(),
                |requested| groups.find(|group| group.gpu_type == requested),
            );
            let known = group.and_then(|group| {
                let gpu = world.gpu(&group.gpu_type)?;
                let workload = world.workload(job.workload.as_str())?;
                let nodes = gpus.div_ceil(group.gpus_per_node.max(1));
                Some(workload.steps_per_s(gpu, gpus, nodes))
            });
            let Some(steps_per_s) = known else { continue };
            if let Work::Lasts(span) = job.work {
                job.work = Work::Steps(((span.as_secs_f64() * steps_per_s).round() as u64).max(1));
            }
            job.gpus = GpuRequest { min: 1, max };
        }
    }
}
