//! The cluster at its start, and the configuration of its placer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wattle_common::aim::Baseline;
use wattle_common::job::Sharing;
use wattle_common::{NodeId, Timestamp};

use super::World;
use crate::Config;
use crate::accounts::rules::AccountRules;
use crate::live::tests::node::{Node, SimulatedSleep};
use crate::live::{PersistedState, Placer};
use crate::policies::{Fifo, Policy};

fn config() -> Config {
    Config {
        traces: wattle_common::config::TracesConfig::default(),
        service_lease_wall_ms: 5_000,
        aim: wattle_common::Aim::Time,
        no_later_than: Baseline::default(),
        by: None,
        no_project_later_than: None,
        max_slowdown: Some(0.05),
        cluster: wattle_common::ClusterId::new("main").unwrap(),
        #[cfg(feature = "service")]
        nats: wattle_runtime::bus::BusConfig::at("nats://127.0.0.1:4222"),
        metrics: wattle_common::config::MetricsConfig::default(),
        policy: "fifo".to_owned(),
        restarts: crate::allocation::restart_rules::RestartRules::default(),
        tenants_max: 2,
        share: Sharing::Consented,
        nodes_expected: None,
        lease_ms: 60_000,
        tick_ms: 5_000,
        round_delay_ms: 100,
        node_stale_after_ms: 15_000,
        node_lost_after_ms: 120_000,
        progress_store_ms: 30_000,
        attempts_max: 100,
        jobs_max: 100,
        ended_kept: 100,
        gpu_cap_w: None,
        gpu_clock_mhz_max: None,
        accounts: AccountRules::default(),
        feeder: Vec::new(),
        node: Vec::new(),
        power_groups: None,
        sleep: crate::config::node_sleep::SleepConfig::default(),
        grid: wattle_grid::GridConfig::default(),
    }
}

impl World {
    pub(in crate::live::tests) fn new(nodes: usize, gpus: u32) -> Self {
        let now = Timestamp::from_s(1_000);
        let fifo: fn() -> Box<dyn Policy> = || Box::new(Fifo);
        let mut world = Self {
            now,
            config: config(),
            policy: fifo,
            placer: Placer::new(config(), fifo(), PersistedState::default(), now),
            jobs: BTreeMap::new(),
            orders: BTreeMap::new(),
            nodes: (0..nodes)
                .map(|at| Node {
                    id: NodeId::new(&format!("n{at}")).unwrap(),
                    gpu_type: "v100",
                    place: (None, None),
                    gpus,
                    instance: 1,
                    behind: Duration::ZERO,
                    unhealthy: BTreeSet::new(),
                    conditions: BTreeMap::new(),
                    unread: BTreeSet::new(),
                    cut_off: false,
                    is_broken: false,
                    fault: None,
                    reconnected: false,
                    refuses: None,
                    limit: None,
                    advises: false,
                    without_cap: BTreeSet::new(),
                    site: None,
                    seen: None,
                    reads_older_order: false,
                    keeps_ends: false,
                    runs: BTreeMap::new(),
                    sleep: SimulatedSleep::default(),
                })
                .collect(),
            work: BTreeMap::new(),
            started: BTreeSet::new(),
            requests: BTreeMap::new(),
            requests_sent: 0,
            writes: 0,
            kill_at: None,
            log: Vec::new(),
            refuse: BTreeSet::new(),
            killed_by: None,
            tenants_max: 2,
            long: false,
            slow_stop: false,
            faults: None,
            budget: None,
            budget_status: None,
            events: None,
            event_jobs: None,
            site_minutes: Vec::new(),
            ledger: Vec::new(),
            event_reply: None,
            aim_status: None,
            grid: None,
            feeders: None,
            twin: None,
            expected: None,
            what_if: None,
            budget_reply: None,
            restored: None,
            orders_may_be_forged: false,
            ahead_s: 0,
            placers: 1,
        };
        world.report();
        world
    }
}
