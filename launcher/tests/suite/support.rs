//! Configuration, runs and desired states for tests.

use std::path::Path;

use wattle_common::job::NodeShare;
use wattle_common::messages::{DesiredJob, NodeDesired};
use wattle_common::{AdmissionId, ClusterId, JobId, NodeId, Timestamp};
use wattle_launcher::{Config, Run};

pub(crate) fn node() -> NodeId {
    NodeId::new("n0").unwrap()
}

pub(crate) fn at(seconds: u64) -> Timestamp {
    Timestamp::from_s(1_000 + seconds)
}

pub(crate) fn run(job: &str, attempt: u32) -> Run {
    Run { node: node(), job: JobId::new(job).unwrap(), admission: None, attempt }
}

/// A configuration with its folders below `root`.
pub(crate) fn config(root: &Path) -> Config {
    Config {
        cluster: ClusterId::new("main").unwrap(),
        node: node(),
        metrics: wattle_common::config::MetricsConfig::default(),
        nats: wattle_runtime::bus::BusConfig::at("nats://127.0.0.1:4222"),
        state_dir: root.join("s"),
        log_dir: root.join("l"),
        checkpoint_dir: root.join("c"),
        progress_socket: root.join("p.sock"),
        checkpoint_grace_ms: 10_000,
        terminate_grace_ms: 5_000,
        heartbeat_ms: 5_000,
        lease_max_ms: 600_000,
        master_port_min: 29_500,
        master_port_max: 29_599,
        node_addresses: [("n0".to_owned(), "10.0.0.1".to_owned())].into(),
        job_environment: [
            ("WATTLE_SIM_NODE".to_owned(), "/dev/shm/n1".to_owned()),
            ("NCCL_DEBUG".to_owned(), "WARN".to_owned()),
        ]
        .into(),
        job_user: wattle_launcher::config::JobUser::Service,
        job_uid_min: 1_000,
        log_mib_max: 1,
        job_limits: wattle_launcher::config::JobLimits::default(),
        ended_kept: 4,
        stop_jobs_at_exit: false,
    }
}

/// A job with two GPUs of `n0`.
pub(crate) fn desired_job(job: &str, attempt: u32) -> DesiredJob {
    DesiredJob {
        job: JobId::new(job).unwrap(),
        admission: None,
        user: Some("ada".to_owned()),
        attempt,
        gpus: vec![0, 1],
        rank: 0,
        shares: vec![NodeShare { node: node(), gpus: vec![0, 1] }],
        command: vec!["train".to_owned()],
        environment: vec![],
        working_dir: None,
        checkpoint_signal: Some("SIGUSR1".to_owned()),
        stop: false,
    }
}

/// The same order for a submission that was accepted at `s`.
pub(crate) fn admitted(mut job: DesiredJob, s: u64) -> DesiredJob {
    job.admission = Some(AdmissionId::accepted(at(s), 1));
    job
}

pub(crate) fn stopping(mut job: DesiredJob) -> DesiredJob {
    job.stop = true;
    job
}

pub(crate) fn desired(generation: u64, jobs: Vec<DesiredJob>) -> NodeDesired {
    NodeDesired {
        node: node(),
        generation,
        issued_at_us: at(generation),
        expires_at_us: at(generation + 30),
        gpus: vec![],
        jobs,
        power_limited: false,
        caps_ahead: Vec::new(),
        event_until_us: None,
        sleep: None,
    }
}
