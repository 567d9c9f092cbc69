//! Agreement of the jobs' records with the cluster's state: both change together.

use wattle_common::job::JobPhase;

use crate::State;
use crate::live::Placer;
use crate::live::site_jobs::placed_by_site;

/// Checks the phase of every record against the job's state, and its placement against the jobs of each node.
pub(super) fn check(placer: &Placer) {
    let state = placer.controller.state();
    for record in placer.jobs.all() {
        let (job, phase) = (&record.spec.job, record.phase);
        let known = placer.jobs.key(job).and_then(|key| state.job(key)).map(|job| &job.state);
        let agrees = match (phase, known) {
            (JobPhase::Queued, None) => placed_by_site(&record.spec),
            (JobPhase::Queued, Some(State::Queued))
            | (JobPhase::Starting | JobPhase::Running, Some(State::Running { .. }))
            | (JobPhase::Stopping, Some(State::Stopping { .. })) => true,
            (phase, None) => phase.is_final(),
            (_, Some(_)) => false,
        };
        assert!(agrees, "{job} is {phase} in its record and {known:?} in the cluster's state");
        for share in record.placement.iter().flat_map(|placement| &placement.shares) {
            let is_listed = placer.jobs.on_node(&share.node).any(|listed| listed == job);
            assert_eq!(is_listed, phase.has_gpus(), "{job} on {}", share.node);
        }
    }
}
