//! Queued jobs that need more power than the budget ever supplies, under every policy.
//!
//! Such a job exceeds the admission limit even alone on the cluster and at its lowest power.

use std::collections::BTreeMap;

use crate::plan::capabilities::Capabilities;
use crate::plan::input::PlanningInput;
use crate::plan::reason::Reason;
use crate::power::bounds::held_back;
use crate::power::model::{PowerEstimate, alone_w};
use crate::state::gpu_set::JobKey;

/// The queued jobs that exceed the admission limit alone.
pub(crate) fn jobs_over_budget(
    policy: Capabilities,
    input: PlanningInput<'_>,
) -> BTreeMap<JobKey, Reason> {
    let mut found = BTreeMap::new();
    let Some(below) = input.limits.admission_limit else { return found };
    let estimate = PowerEstimate::under(policy);
    for (key, job) in input.state.queue() {
        // A job that continues with another size is admitted already.
        if job.next_gpus.is_some() {
            continue;
        }
        let drawn = alone_w(input, estimate, job);
        if drawn > below.as_w() {
            found.insert(key, held_back(drawn, below.as_w()));
        }
    }
    found
}
