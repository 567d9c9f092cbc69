//! Decodes the values of buckets: what cannot be used is logged with its key, and ignored.

use serde::de::DeserializeOwned;
use wattle_common::bounds::check_record;
use wattle_common::codec;
use wattle_common::id::{AdmissionId, JobId};
use wattle_common::messages::JobRecord;
use wattle_common::subject::Bucket;

use super::Change;
use crate::clock;
use crate::shell::chain;

/// What a change of the bucket `jobs` states.
#[derive(Clone, Debug, PartialEq)]
pub enum JobChange {
    /// The job is queued or has processes.
    Active(Box<JobRecord>),
    /// The job has ended, or its record was deleted; then its submission is not known.
    Ended(JobId, Option<AdmissionId>),
}

impl Change {
    /// The value in `bucket`; `None` without one, or if it cannot be decoded.
    #[must_use]
    pub fn decode<T: DeserializeOwned>(&self, bucket: Bucket) -> Option<T> {
        match codec::decode_json(self.value.as_ref()?) {
            Ok(value) => Some(value),
            Err(error) => {
                tracing::error!(
                    bucket = bucket.token(),
                    key = self.key,
                    revision = self.revision,
                    error = chain(&error),
                    "value ignored: it cannot be decoded"
                );
                None
            }
        }
    }

    /// The job of a change of the bucket `jobs`; `None` if the record cannot be decoded or has a number
    /// outside its limits.
    #[must_use]
    pub fn job(&self) -> Option<JobChange> {
        if self.value.is_none() {
            return JobId::new(&self.key).ok().map(|job| JobChange::Ended(job, None));
        }
        let record: JobRecord = self.decode(Bucket::Jobs)?;
        if let Err(error) = check_record(&record, clock::now()) {
            tracing::error!(key = self.key, %error, "job record ignored");
            return None;
        }
        Some(if record.phase.is_final() {
            JobChange::Ended(record.spec.job, record.admission)
        } else {
            JobChange::Active(Box::new(record))
        })
    }

    /// Whether the change is of a job that has not ended.
    #[must_use]
    pub fn is_active_job(&self) -> bool {
        matches!(self.job(), Some(JobChange::Active(_)))
    }
}
