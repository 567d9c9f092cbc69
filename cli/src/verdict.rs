//! What is stored of the budget and the aim, for the verdict of `wattle jobs` and `wattle doctor`.

use serde::de::DeserializeOwned;
use wattle_common::Timestamp;
use wattle_common::messages::{AimStatus, BudgetRecord, BudgetStatus, JobRecord, TwinStatus};
use wattle_common::subject::{AIM_STATUS, BUDGET_SET, BUDGET_STATUS, Bucket, TWIN_STATUS};
use wattle_runtime::bus::Bus;
use wattle_view::verdict::Stored;

use crate::job_records;

/// The values of the bucket `budget`; each is absent if it is not stored, or this person may not read it.
#[derive(Clone, Debug, Default)]
pub(crate) struct BudgetValues {
    /// The budget in force.
    pub(crate) set: Option<BudgetRecord>,
    /// Its consumption.
    pub(crate) status: Option<BudgetStatus>,
    /// The state of the energy aim.
    pub(crate) aim: Option<AimStatus>,
    /// The sums of the twin.
    pub(crate) twin: Option<TwinStatus>,
}

impl BudgetValues {
    /// Reads them.
    pub(crate) async fn read(bus: &Bus) -> Self {
        async fn value<T: DeserializeOwned>(bus: &Bus, key: &str) -> Option<T> {
            let bucket = bus.bucket(Bucket::Budget).await.ok()?;
            bucket.get(key).await.ok().flatten().map(|(value, _)| value)
        }
        if !job_records::reads_storage(bus) {
            return Self::default();
        }
        Self {
            set: value(bus, BUDGET_SET).await,
            status: value(bus, BUDGET_STATUS).await,
            aim: value(bus, AIM_STATUS).await,
            twin: value(bus, TWIN_STATUS).await,
        }
    }

    /// They and these jobs, of which the ended ones do not count.
    pub(crate) fn stored<'a>(
        &'a self,
        jobs: impl Iterator<Item = &'a JobRecord>,
        now: Timestamp,
    ) -> Stored<'a> {
        Stored {
            jobs: jobs.filter(|record| !record.phase.is_final()).collect(),
            budget: self.set.as_ref(),
            status: self.status.as_ref(),
            aim: self.aim.as_ref(),
            twin: self.twin.as_ref(),
            now,
        }
    }
}
