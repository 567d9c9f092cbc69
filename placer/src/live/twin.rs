//! The twin of the live cluster: what it stores, what it continues from, and the energy of its jobs.

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::Timestamp;
use wattle_common::job::JobPhase;
use wattle_common::messages::{
    JobRecord, LedgerEntry, TWIN_STATUS_EVERY, TwinOpen, TwinStatus, TwinSums,
};

use crate::config::Config;
use crate::live::job_records::{JobRecords, departure};
use crate::live::site_jobs::placed_by_site;
use crate::live::{Action, LiveController};
use crate::twin::{RecordedJob, Records, Twin};
use crate::{ClusterState, JobFacts};

/// When the twin is stored.
pub(super) struct TwinStore {
    stored_at: Timestamp,
    /// The last sums that were stored.
    measures: Option<TwinMeasures>,
    /// Whether these have all jobs, of an empty cluster.
    has_all: bool,
}

/// The twin in numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TwinMeasures {
    /// The sums over all jobs.
    pub total: TwinSums,
    /// Number of jobs that wait in the twin.
    pub waiting: u64,
    /// Number of jobs that run in the twin.
    pub running: u64,
}

impl TwinStore {
    pub(super) const fn new(now: Timestamp) -> Self {
        Self { stored_at: now, measures: None, has_all: false }
    }

    pub(super) const fn measures(&self) -> Option<TwinMeasures> {
        self.measures
    }

    /// Stores the sums and the open jobs, where it is due.
    pub(super) fn store(
        &mut self,
        now: Timestamp,
        controller: &LiveController,
        out: &mut Vec<Action>,
    ) {
        let Some(twin) = controller.twin() else { return };
        // The figures of a cluster that has become empty are final but for further submissions.
        let had_all = std::mem::replace(&mut self.has_all, twin.has_all());
        let is_complete = self.has_all && !had_all;
        if !is_complete && now.since(self.stored_at) < TWIN_STATUS_EVERY {
            return;
        }
        self.stored_at = now;
        let status = twin.status();
        let mut total = TwinSums::default();
        status.all_rows().for_each(|row| total += row.sums);
        let (waiting, running) = (status.waiting, status.running);
        self.measures = Some(TwinMeasures { total, waiting, running });
        out.push(Action::StoreTwin(Box::new((status, twin.open()))));
    }
}

/// The twin that continues from the stored values and the records, in order of arrival.
pub(super) fn restored(
    config: &Config,
    stored: Option<(&TwinStatus, &TwinOpen)>,
    records: &[JobRecord],
    state: &ClusterState,
) -> Twin {
    let jobs: Vec<RecordedJob> = records.iter().map(recorded).collect();
    let accounts = config.controller().accounts;
    let known = Records { jobs: &jobs, complete_from: complete_from(records, config.ended_kept) };
    let mut twin = Twin::restored(config.no_later_than, accounts, stored, known, state);
    for record in records {
        meter_record(record, |energy_j, settings_j, unmetered| {
            twin.metered(&record.spec.job, energy_j, settings_j, unmetered);
        });
    }
    twin
}

fn recorded(record: &JobRecord) -> RecordedJob {
    let left = record.ended_at_us.filter(|_| record.phase.is_final());
    RecordedJob {
        facts: JobFacts::from(&record.spec),
        waits_at_site: placed_by_site(&record.spec) && !record.phase.has_gpus(),
        left: left.map(|at| (at, departure(record.phase))),
        ran: Duration::from_millis(record.run_time_ms.unwrap_or_default()),
        work: record.twin_work.as_deref().copied(),
    }
}

/// From when on each job has a record with its work: after the last completed one without it, and, once records of ended
/// jobs have been dropped, from the oldest end on that is kept of the user with most of them.
fn complete_from(records: &[JobRecord], ended_kept: usize) -> Timestamp {
    let ended = || records.iter().filter(|record| record.phase.is_final());
    let lacks_work =
        |record: &&JobRecord| record.phase == JobPhase::Finished && record.twin_work.is_none();
    let without = ended().filter(lacks_work).filter_map(|record| record.ended_at_us).max();
    let mut of_users: BTreeMap<Option<&str>, (usize, Timestamp)> = BTreeMap::new();
    for record in ended() {
        let oldest = record.ended_at_us.unwrap_or(Timestamp::EPOCH);
        let of_user = of_users.entry(record.spec.user.as_deref()).or_insert((0, oldest));
        *of_user = (of_user.0 + 1, of_user.1.min(oldest));
    }
    let most = of_users.into_values().max_by_key(|(jobs, _)| *jobs);
    let dropped = most.filter(|_| ended().count() >= ended_kept).map(|(_, oldest)| oldest);
    without.into_iter().chain(dropped).max().unwrap_or(Timestamp::EPOCH)
}

/// The twin reads the energy of the jobs of a ledger entry from their records, which count it.
pub(super) fn meter(entry: &LedgerEntry, jobs: &JobRecords, controller: &mut LiveController) {
    let unknown = entry.unknown.iter().flat_map(|unknown| &unknown.jobs);
    for job in entry.jobs.iter().map(|part| &part.job).chain(unknown) {
        if let Some(record) = jobs.get(job) {
            meter_record(record, |energy_j, settings_j, unmetered| {
                controller.job_metered(job, energy_j, settings_j, unmetered);
            });
        }
    }
}

fn meter_record(record: &JobRecord, count: impl FnOnce(f64, f64, bool)) {
    let Some(energy) = record.energy_mj else { return };
    let settings_j = record.compared.map_or(0.0, |compared| compared.saved_mj() / 1e3);
    count(energy.as_j(), settings_j, record.unmetered_ms > 0);
}
