//! Restores the live placer from the buckets after a restart.

use std::time::Duration;

use wattle_common::messages::{
    AimStatus, BudgetRecord, BudgetStatus, GridStatus, JobRecord, LaunchReport, NodeDesired,
    PowerReport, StoreRestored, Surface,
};
use wattle_common::{NodeId, Timestamp};

use super::job_records::JobRecords;
use super::{Event, Placer, bounds, restarts};

/// The contents of the buckets when the placer starts.
#[derive(Clone, Debug, Default)]
pub struct PersistedState {
    /// Bucket `jobs`.
    pub jobs: Vec<JobRecord>,
    /// Bucket `desired`.
    pub desired: Vec<NodeDesired>,
    /// The power agents' part of bucket `actual`.
    pub power: Vec<PowerReport>,
    /// The launchers' part of bucket `actual`.
    pub launch: Vec<LaunchReport>,
    /// Bucket `surfaces`.
    pub surfaces: Vec<Surface>,
    /// Bucket `budget`.
    pub budget: Option<BudgetRecord>,
    /// The status in the same bucket.
    pub budget_status: Option<BudgetStatus>,
    /// Bucket `budget`, key `grid`.
    pub grid: Option<GridStatus>,
    /// The state of the energy aim.
    pub aim_status: Option<AimStatus>,
    /// The mark of a store that was restored from a backup.
    pub restored: Option<StoreRestored>,
}

impl Placer {
    /// Restores jobs, nodes, budget and surfaces, in the order of their dependencies.
    pub(super) fn restore(&mut self, persisted: PersistedState, now: Timestamp) {
        self.controller.set_aim(persisted.aim_status.as_ref(), now);
        if let Some(record) = persisted.budget {
            self.spending.restore(
                now,
                record,
                persisted.budget_status,
                &mut self.nodes,
                &mut self.controller,
                &mut self.outbox,
            );
        }
        let intensity = self.spending.record().and_then(|record| record.intensity.as_ref());
        let grid = persisted.grid.as_ref();
        self.grid.restore(now, &self.config.grid, grid, intensity, &mut self.outbox);
        self.use_carbon(now);
        self.look_at_grid(now);
        for report in persisted.power {
            let event = Event::PowerReported(report);
            if !bounds::is_within(now, &event, &self.nodes, &mut self.outbox) {
                continue;
            }
            let Event::PowerReported(report) = event else { continue };
            self.nodes.power_restored(now, report, &mut self.outbox);
        }
        for desired in persisted.desired {
            self.nodes.order_restored(now, desired);
        }
        let mut records = persisted.jobs;
        records.retain(|record| bounds::is_restorable(now, record, &mut self.outbox));
        // In order of arrival. Observed jobs are placed after the co-tenants that they joined.
        records.sort_by(|a, b| {
            let order = |record: &JobRecord| (record.spec.submitted_at_us, record.spec.job.clone());
            order(a).cmp(&order(b))
        });
        for record in &records {
            self.jobs.restore(record, &mut self.controller);
        }
        // The work of completed jobs, in order of completion.
        let mut past: Vec<&JobRecord> = records.iter().filter(|r| r.work_s.is_some()).collect();
        past.sort_by_key(|record| record.ended_at_us);
        past.iter()
            .filter_map(|r| r.work_s)
            .for_each(|work_s| self.controller.events().work_remembered(work_s));
        for observing in [false, true] {
            for record in records.iter().filter(|record| record.observing == observing) {
                JobRecords::restore_placement(record, &mut self.nodes, &mut self.controller);
            }
        }
        for record in &records {
            let Some(key) = self.controller.state().job_key(&record.spec.job) else { continue };
            let time = |ms: Option<u64>| Duration::from_millis(ms.unwrap_or(0));
            self.controller.restore_usage(key, time(record.gpu_time_ms), time(record.run_time_ms));
            restarts::restore(self.controller.events(), key, record);
        }
        for record in &records {
            restarts::restore_costs(self.controller.events(), record);
        }
        for surface in persisted.surfaces {
            let event = Event::SurfaceKnown(Box::new(surface));
            if !bounds::is_within(now, &event, &self.nodes, &mut self.outbox) {
                continue;
            }
            let Event::SurfaceKnown(surface) = event else { continue };
            self.surface_known(*surface);
        }
        for report in persisted.launch {
            let event = Event::LaunchReported(report);
            if !bounds::is_within(now, &event, &self.nodes, &mut self.outbox) {
                continue;
            }
            let Event::LaunchReported(report) = event else { continue };
            let node = report.node.clone();
            if self.nodes.launch_restored(now, report, &mut self.outbox) {
                self.comparison.reported(now, &node, false, &self.jobs, &mut self.nodes);
            }
        }
        self.nodes.restore_sleep(now, &mut self.controller, &mut self.outbox);
        if let Some(restored) = persisted.restored {
            self.comparison.store_was_restored(now, restored, &mut self.nodes);
        }
        let nodes: Vec<NodeId> = self.nodes.ids().cloned().collect();
        for node in &nodes {
            self.refresh(now, node);
        }
        // The first wake completes what a kill interrupted.
        self.jobs.reconcile_all();
        self.nodes.order_all();
    }
}
