//! Restarts in job records: measured costs, early stops and left sizes persist across a restart of the placer.

use std::sync::Arc;
use std::time::Duration;

use wattle_common::messages::{JobRecord, LeftSizeRecord, RestartRecord};

use crate::state::restarts::{Knowledge, LeftSize, MeasuredRestart};
use crate::{ClusterState, GpuSet, Job, JobKey};

/// Writes a job's restarts into its record.
pub(super) fn store(state: &ClusterState, job: &Job, record: &mut JobRecord) {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let restarts = &job.restarts;
    record.restarts = restarts
        .measured
        .iter()
        .map(|restart| RestartRecord { gpus: restart.gpus, cost_ms: ms(restart.cost) })
        .collect();
    let gpus = job.state.gpus().map_or(job.facts.request.min, GpuSet::gpu_count);
    record.restart_cost_ms = Some(ms(state.restart_cost(job, gpus)));
    record.early_stops = restarts.early_stops;
    record.stops_us.clone_from(&restarts.stops);
    record.left_sizes = restarts
        .left_sizes
        .iter()
        .map(|size| LeftSizeRecord {
            gpus: size.gpus,
            gpu_type: size.gpu_type.to_string(),
            rates: size.known.rates.clone(),
            price: size.known.price,
            gpus_healthy: size.known.gpus,
        })
        .collect();
}

/// Restores a job's restarts from its record, once all jobs are restored.
pub(super) fn restore(state: &mut ClusterState, key: JobKey, record: &JobRecord) {
    let left = record.left_sizes.iter().map(|size| LeftSize {
        gpus: size.gpus,
        gpu_type: Arc::from(size.gpu_type.as_str()),
        known: Knowledge {
            rates: size.rates.clone(),
            price: size.price,
            competition: 0,
            gpus: size.gpus_healthy,
        },
    });
    let (measured, left) = (measured(record), left.collect());
    state.job_restarts_restored(key, measured, record.early_stops, record.stops_us.clone(), left);
}

/// Adds the measured restarts of a job, which may have ended, to the costs that predictions rest on.
pub(super) fn restore_costs(state: &mut ClusterState, record: &JobRecord) {
    for restart in measured(record) {
        state.restart_remembered(record.spec.workload.as_ref(), &restart);
    }
}

fn measured(record: &JobRecord) -> impl Iterator<Item = MeasuredRestart> {
    let cost = |restart: &RestartRecord| Duration::from_millis(restart.cost_ms);
    record
        .restarts
        .iter()
        .map(move |restart| MeasuredRestart { gpus: restart.gpus, cost: cost(restart) })
}
