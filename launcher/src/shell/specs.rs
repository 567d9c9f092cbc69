//! Commands and environments that a desired state leaves to the jobs' records.
//!
//! A desired state of many jobs with long commands would exceed the bus's largest payload, so the
//! placer then leaves them out ([`wattle_common::messages::desired::ORDER_TEXT_MAX`]). This module
//! adds them from the bucket `jobs` before the machine receives the desired state.

use std::collections::BTreeMap;
use std::time::Duration;

use wattle_common::job::JobSpec;
use wattle_common::messages::{JobRecord, NodeDesired};
use wattle_common::{AdmissionId, JobId};
use wattle_runtime::bus::{BusError, KvBucket};
use wattle_runtime::shell::chain;

use super::RETRY;

/// How long a server of several may lack a record that the others have stored.
const LAGS: Duration = Duration::from_secs(30);

/// The specifications of the jobs of the last desired state that were read from their records.
pub(super) struct Specs {
    records: KvBucket,
    /// `None`: it has no readable record.
    known: BTreeMap<(JobId, Option<AdmissionId>), Option<JobSpec>>,
}

impl Specs {
    pub(super) const fn new(records: KvBucket) -> Self {
        Self { records, known: BTreeMap::new() }
    }

    /// Adds missing commands, environments and working directories. Waits while the bus is away; a job
    /// without a readable record keeps its empty command and is refused by the machine.
    pub(super) async fn complete(&mut self, desired: &mut NodeDesired) {
        self.known.retain(|(known, admission), _| {
            desired.jobs.iter().any(|job| job.job == *known && job.admission == *admission)
        });
        let mut waited = Duration::ZERO;
        for job in desired.jobs.iter_mut().filter(|job| job.command.is_empty() && !job.stop) {
            let submission = (job.job.clone(), job.admission.clone());
            if !self.known.contains_key(&submission) {
                let spec = self.read(&submission.0, submission.1.as_ref(), &mut waited).await;
                self.known.insert(submission.clone(), spec);
            }
            if let Some(Some(spec)) = self.known.get(&submission) {
                job.command.clone_from(&spec.command);
                job.environment.clone_from(&spec.environment);
                job.working_dir.clone_from(&spec.working_dir);
            }
        }
    }

    /// The specification in a job's record. A missing record is awaited; `waited` is that time so far.
    async fn read(
        &self,
        job: &JobId,
        admission: Option<&AdmissionId>,
        waited: &mut Duration,
    ) -> Option<JobSpec> {
        loop {
            match self.records.get::<JobRecord>(job.as_str()).await {
                // The order of a placer of an earlier version names no submission.
                Ok(record) => {
                    let record = record.map(|(record, _)| record).filter(|record| {
                        admission.is_none() || record.admission.as_ref() == admission
                    });
                    if record.is_some() || *waited >= LAGS {
                        return record.map(|record| record.spec);
                    }
                    tracing::debug!(%job, "no record of the job yet; retrying");
                    tokio::time::sleep(RETRY).await;
                    *waited += RETRY;
                }
                Err(BusError::Codec(error)) => {
                    tracing::error!(%job, error = chain(&error), "job record not readable");
                    return None;
                }
                Err(error) => {
                    tracing::debug!(%job, error = chain(&error), "job record not read; retrying");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }
}
