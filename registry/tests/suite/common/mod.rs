//! Ids and windows for tests.

use std::time::Duration;

use wattle_common::id::{JobId, NodeId, WorkloadId};
use wattle_common::messages::JobWindow;
use wattle_common::{Power, Timestamp};

pub(crate) fn job(text: &str) -> JobId {
    JobId::new(text).unwrap()
}

pub(crate) fn class(text: &str) -> WorkloadId {
    WorkloadId::new(text).unwrap()
}

/// One GPU of one job for one minute.
pub(crate) fn window(job_id: &str, workload: Option<&str>, minute: u64) -> JobWindow {
    let from = Timestamp::from_s(60 * minute);
    JobWindow {
        job: job(job_id),
        workload: workload.map(class),
        node: NodeId::new("n0").unwrap(),
        gpu_type: "v100".into(),
        attempt: 1,
        from_us: from,
        until_us: from + Duration::from_secs(60),
        gpus: vec![0],
        gpus_total: 1,
        nodes_total: 1,
        global_batch: None,
        cap_mw: Some(Power::from_w(250)),
        clock_mhz_mean: None,
        clock_mhz_max: None,
        neighbours: Vec::new(),
        steps: None,
        steps_per_s: Some(10.0),
        steps_per_s_error: Some(0.03),
        steps_inferred: false,
        step: None,
        epoch: None,
        early: true,
        power_mw_gpus: Some(Power::from_w(180)),
        power_mw_job: None,
        energy_mj_gpus: None,
        utilization_gpu_percent: Some(60.0),
        utilization_gpu_percent_job: Some(60.0),
        utilization_memory_percent: Some(30.0),
        memory_mib_max_job: Some(8_000),
        samples: 600,
    }
}
