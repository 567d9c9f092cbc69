//! Reports and desired states of nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::id::GpuIndex;
use wattle_common::messages::{
    AppliedGpu, LaunchReport, LaunchState, LaunchedJob, LedgerEntry, NodeDesired, PowerReport,
    SiteMinute,
};
use wattle_common::{Energy, Power, Timestamp};

use crate::id;

/// A healthy GPU of 32 GiB that reports no cap and no clock.
#[must_use]
pub fn applied_gpu(gpu: GpuIndex, gpu_type: &str) -> AppliedGpu {
    AppliedGpu {
        gpu,
        uuid: format!("GPU-{gpu}"),
        gpu_type: gpu_type.to_owned(),
        memory_mib: Some(32_768),
        healthy: true,
        cap_mw: None,
        cap_mw_default: None,
        cap_mw_min: None,
        cap_mw_max: None,
        clock_mhz_max: None,
        clock_mhz_supported_min: None,
        clock_mhz_supported_max: None,
        cap_mw_advised: None,
        clock_mhz_max_advised: None,
        last_error: None,
        no_meter: false,
        cap_unsupported: false,
        clock_unsupported: false,
        health: None,
    }
}

/// A power agent's report without a lease, from a node that cannot sleep.
#[must_use]
pub fn power_report(
    node: &str,
    at: Timestamp,
    gpus: impl IntoIterator<Item = AppliedGpu>,
) -> PowerReport {
    PowerReport {
        instance: String::new(),
        node: id::node(node),
        at_us: at,
        observed_generation: 0,
        lease_until_us: None,
        gpus: gpus.into_iter().collect(),
        can_sleep: false,
        sleep_result: None,
        switch: None,
        gpus_per_board: None,
        node_limit_mw: None,
        advise_only: false,
        driver_error: None,
        read_at_us: None,
    }
}

/// A launcher's report for desired generation `generation`.
#[must_use]
pub fn launch_report(
    node: &str,
    at: Timestamp,
    generation: u64,
    jobs: impl IntoIterator<Item = LaunchedJob>,
) -> LaunchReport {
    LaunchReport {
        instance: String::new(),
        node: id::node(node),
        at_us: at,
        observed_generation: generation,
        has_ended: false,
        fault: None,
        site: None,
        jobs: jobs.into_iter().collect(),
    }
}

/// One job's processes in a launcher's report, without a session.
#[must_use]
pub fn launched_job(
    job: &str,
    attempt: u32,
    gpus: impl IntoIterator<Item = GpuIndex>,
    state: LaunchState,
    since: Timestamp,
) -> LaunchedJob {
    LaunchedJob {
        job: id::job(job),
        admission: None,
        attempt,
        gpus: gpus.into_iter().collect(),
        state,
        processes: None,
        since_us: since,
        log_path: String::new(),
    }
}

/// Desired state with no jobs, caps or clocks.
#[must_use]
pub fn node_desired(
    node: &str,
    generation: u64,
    issued_at: Timestamp,
    expires_at: Timestamp,
) -> NodeDesired {
    NodeDesired {
        node: id::node(node),
        generation,
        issued_at_us: issued_at,
        expires_at_us: expires_at,
        gpus: Vec::new(),
        jobs: Vec::new(),
        power_limited: false,
        caps_ahead: Vec::new(),
        event_until_us: None,
        sleep: None,
    }
}

/// A minute of a site of two nodes, both metered throughout, with this mean power; nothing else of it is known.
#[must_use]
pub fn site_minute(minute: Timestamp, power: Power) -> SiteMinute {
    SiteMinute {
        minute_us: minute,
        energy_mj: power.over(Duration::from_secs(60)),
        nodes: 2,
        metered: 2,
        asleep: 0,
        asleep_mw: Power::ZERO,
        limit_mw: None,
        target_mw: None,
        twin: None,
        price: None,
        intensity_mg_per_kwh: None,
        feeders: BTreeMap::new(),
        ledger_from: 1,
    }
}

/// A ledger entry of a node without GPUs: host energy only.
#[must_use]
pub fn ledger_entry(node: &str, from: Timestamp, until: Timestamp, host: Energy) -> LedgerEntry {
    LedgerEntry {
        node: id::node(node),
        from_us: from,
        until_us: until,
        energy_mj_gpus: Vec::new(),
        energy_mj_host: host,
        jobs: Vec::new(),
        unknown: Vec::new(),
    }
}
