//! The limits of feeders and nodes in the rounding: what they leave to the running jobs on their nodes.
//!
//! A job that keeps its GPUs counts within the limits of their nodes. A job that starts or moves counts within the
//! power of the site alone ([`crate::power::headroom::total_w`]), because its GPUs are chosen later, by what the limits leave
//! then ([`crate::power::headroom::Headroom`]).

use std::collections::BTreeMap;

use crate::plan::input::PlanningInput;
use crate::policies::wattle::bidders::Bidder;
use crate::power::bounds::Bound;
use crate::power::model::{JobGpus, PowerSum};
use crate::state::gpu_set::JobKey;
use crate::state::job::{Job, State};

/// What each limit leaves to the GPUs of running bidders above idle, watts.
#[derive(Clone, Debug, Default)]
pub(super) struct LocalLimits {
    pub(super) left_w: Vec<f64>,
    /// The parts of a running job's power that count within each limit.
    parts: BTreeMap<JobKey, Parts>,
}

/// The limits within which a job counts while it keeps its GPUs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Parts {
    /// The number of its GPUs.
    pub(super) gpus: u32,
    /// The part of its power that counts within each limit.
    pub(super) of: Vec<(usize, f64)>,
}

impl LocalLimits {
    /// `None` without limits of feeders and nodes.
    pub(super) fn of(input: PlanningInput<'_>, bidders: &[Bidder<'_>]) -> Option<Self> {
        if input.limits.power_bounds.is_empty() {
            return None;
        }
        let bounds: Vec<Bound> = Bound::all(input).into_iter().filter(Bound::is_local).collect();
        let located = |job: &'_ Job| match &job.state {
            State::Running { on, setting, .. } => Some((on.clone(), *setting)),
            State::Queued | State::Stopping { .. } => None,
        };
        let mut parts = BTreeMap::new();
        let mut corrected_w = vec![0.0; bounds.len()];
        for bidder in bidders {
            let Some((on, setting)) = located(bidder.job) else { continue };
            let Some(gpu_type) = input.state.gpu_type_of(bidder.job) else { continue };
            let gpus = JobGpus::on(input, bidder.job, gpu_type, &on);
            // The market counts with predictions.
            let off_w = gpus.predicted_w(input, setting) - gpus.expected_w(input, setting);
            let of: Vec<(usize, f64)> = (bounds.iter().enumerate())
                .map(|(index, bound)| (index, bound.part_of(&on)))
                .filter(|(_, part)| *part > 0.0)
                .collect();
            for &(index, part) in of.iter().filter(|_| off_w.is_finite()) {
                corrected_w[index] += part * f64::from(gpus.gpus) * off_w;
            }
            parts.insert(bidder.key, Parts { gpus: gpus.gpus, of });
        }
        let mut others = PowerSum::new(input);
        for (_, job) in input.state.running().filter(|(key, _)| !parts.contains_key(key)) {
            let (State::Running { on, setting, .. } | State::Stopping { on, setting }) = &job.state
            else {
                continue;
            };
            let Some(gpu_type) = input.state.gpu_type_of(job) else { continue };
            others.add(on, JobGpus::on(input, job, gpu_type, on).expected_w(input, *setting));
        }
        let left = bounds.iter().zip(corrected_w).map(|(bound, corrected_w)| {
            bound.limit_w - others.bounded_w(bound, std::iter::empty()) + corrected_w
        });
        Some(Self { left_w: left.collect(), parts })
    }

    /// The limits within which a job counts while it keeps its GPUs.
    pub(super) fn parts_of(&self, job: JobKey) -> Parts {
        self.parts.get(&job).cloned().unwrap_or_default()
    }
}
