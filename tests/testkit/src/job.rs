//! Jobs: specification, record, placement.

use wattle_common::Timestamp;
use wattle_common::id::GpuIndex;
use wattle_common::job::{GpuRequest, JobPhase, JobSpec, NodeShare, Placement};
use wattle_common::messages::JobRecord;

use crate::id;

/// A job that requests exactly `gpus` GPUs of any type, has no checkpoint signal, and runs `train`.
#[must_use]
pub fn job_spec(job: &str, gpus: u32) -> JobSpec {
    JobSpec {
        job: id::job(job),
        name: job.to_owned(),
        user: None,
        project: None,
        workload: None,
        gpus: GpuRequest::exactly(gpus),
        exclusive: false,
        consents_to_sharing: false,
        max_slowdown_permille: None,
        flexibility: None,
        priority: 0,
        deadline_at_us: None,
        slack_ms: None,
        duration_ms_estimate: None,
        time_limit_ms: None,
        memory_mib_max: None,
        gpu_type: None,
        checkpoint_signal: None,
        command: vec!["train".to_owned()],
        environment: Vec::new(),
        working_dir: None,
        site: None,
        submitted_at_us: Timestamp::EPOCH,
    }
}

/// The placer's record of a job in `phase`, with no placement and no history.
///
/// The attempt is 0 for a queued job and 1 otherwise.
#[must_use]
pub fn job_record(spec: JobSpec, phase: JobPhase) -> JobRecord {
    let attempt = u32::from(phase != JobPhase::Queued);
    JobRecord { phase, attempt, ..JobRecord::queued(spec, Timestamp::EPOCH) }
}

/// A placement on the named nodes, in rank order: `placement([("n0", [0, 1])])`.
#[must_use]
pub fn placement<'a, G>(shares: impl IntoIterator<Item = (&'a str, G)>) -> Placement
where
    G: IntoIterator<Item = GpuIndex>,
{
    let share = |(node, gpus): (&str, G)| NodeShare {
        node: id::node(node),
        gpus: gpus.into_iter().collect(),
    };
    Placement { shares: shares.into_iter().map(share).collect() }
}
