//! Restores the live placer from the buckets after a restart.

use std::time::Duration;

use wattle_common::bounds::check_ledger_entry;
use wattle_common::event::{EventBook, EventPerformances};
use wattle_common::messages::{
    AimStatus, BudgetRecord, BudgetStatus, ExpectedStatus, GridStatus, JobRecord, LaunchReport,
    LedgerEntry, NodeDesired, PowerReport, SiteMinute, StoreRestored, Surface, TwinOpen,
    TwinStatus,
};
use wattle_common::{NodeId, Timestamp};

use super::job_records::JobRecords;
use super::{Placer, Turn, bounds, restarts, twin};
use crate::expected::Expected;

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
    /// Bucket `budget`, key `events`.
    pub events: Option<EventBook>,
    /// Bucket `budget`, key `event-jobs`.
    pub event_jobs: Option<EventPerformances>,
    /// The last minute of the site's power, and the entries of the ledger that later ones need.
    pub site_power: (Option<SiteMinute>, Vec<LedgerEntry>),
    /// Bucket `budget`, key `grid`.
    pub grid: Option<GridStatus>,
    /// The state of the energy aim.
    pub aim_status: Option<AimStatus>,
    /// The sums of the twin, and its open jobs.
    pub twin: Option<(TwinStatus, TwinOpen)>,
    /// The errors of the expected starts and ends.
    pub expected: Option<ExpectedStatus>,
    /// The mark of a store that was restored from a backup.
    pub restored: Option<StoreRestored>,
}

impl Placer {
    /// Restores jobs, nodes, budget and surfaces, in the order of their dependencies.
    pub(super) fn restore(&mut self, persisted: PersistedState, now: Timestamp) {
        self.controller.set_aim(persisted.aim_status.as_ref(), now);
        let Self { config, controller, nodes, spending, events, site_power, grid, outbox, .. } =
            self;
        let turn = &mut Turn { now, controller, outbox };
        if let Some(record) = persisted.budget {
            spending.restore(turn, record, persisted.budget_status, nodes);
        }
        if let Some(book) = persisted.events {
            events.restore(turn, book, persisted.event_jobs.unwrap_or_default());
        }
        let (last, entries) = persisted.site_power;
        site_power.restore(last.as_ref());
        for entry in entries.iter().filter(|entry| check_ledger_entry(entry, now).is_ok()) {
            events.metered(entry);
            site_power.metered(entry);
        }
        let intensity = spending.record().and_then(|record| record.intensity.as_ref());
        grid.restore(turn, &config.grid, persisted.grid.as_ref(), intensity);
        self.use_carbon(now);
        self.look_at_grid(now);
        let Self { controller, nodes, outbox, .. } = self;
        let turn = &mut Turn { now, controller, outbox };
        for report in persisted.power {
            if bounds::is_power_report_within(turn, &report, nodes) {
                nodes.power_restored(turn, report);
            }
        }
        for desired in persisted.desired {
            nodes.order_restored(now, desired);
        }
        let mut records = persisted.jobs;
        records.retain(|record| bounds::is_restorable(turn, record));
        // In order of arrival.
        records.sort_by(|a, b| {
            let order = |record: &JobRecord| (record.spec.submitted_at_us, record.spec.job.clone());
            order(a).cmp(&order(b))
        });
        self.restore_jobs(&records);
        for surface in persisted.surfaces {
            let Self { controller, outbox, .. } = self;
            if bounds::is_surface_within(&mut Turn { now, controller, outbox }, &surface) {
                self.surface_known(surface);
            }
        }
        let Self { config, controller, jobs, nodes, comparison, outbox, .. } = self;
        let turn = &mut Turn { now, controller, outbox };
        for report in persisted.launch {
            let node = report.node.clone();
            if bounds::is_launch_report_within(turn, &report, nodes)
                && nodes.launch_restored(turn, report)
            {
                comparison.reported(now, &node, false, jobs, nodes, turn.outbox);
            }
        }
        nodes.restore_sleep(turn);
        if let Some(restored) = persisted.restored {
            comparison.store_was_restored(now, restored, nodes);
        }
        let ids: Vec<NodeId> = nodes.ids().cloned().collect();
        for node in &ids {
            nodes.refresh(turn, node, jobs);
        }
        let stored = persisted.twin.as_ref().map(|(status, open)| (status, open));
        let twin = twin::restored(config, stored, &records, controller.state());
        controller.set_twin(twin);
        controller.set_expected(Expected::restored(now, persisted.expected.as_ref()));
        // The first wake completes what a kill interrupted.
        jobs.reconcile_all();
        nodes.order_all();
    }

    /// Restores the jobs, in order of arrival.
    fn restore_jobs(&mut self, records: &[JobRecord]) {
        let Self { controller, jobs, nodes, .. } = self;
        for record in records {
            jobs.restore(record, controller);
        }
        // The work of completed jobs, in order of completion.
        let mut past: Vec<&JobRecord> = records.iter().filter(|r| r.work_s.is_some()).collect();
        past.sort_by_key(|record| record.ended_at_us);
        for work_s in past.iter().filter_map(|record| record.work_s) {
            controller.events().work_remembered(work_s);
        }
        // Observed jobs are placed after the co-tenants that they joined.
        for observing in [false, true] {
            for record in records.iter().filter(|record| record.observing == observing) {
                JobRecords::restore_placement(record, nodes, controller);
            }
        }
        for record in records {
            let Some(key) = controller.state().job_key(&record.spec.job) else { continue };
            let time = |ms: Option<u64>| Duration::from_millis(ms.unwrap_or(0));
            controller.restore_usage(key, time(record.gpu_time_ms), time(record.run_time_ms));
            restarts::restore(controller.events(), key, record);
        }
        for record in records {
            restarts::restore_costs(controller.events(), record);
        }
    }
}
