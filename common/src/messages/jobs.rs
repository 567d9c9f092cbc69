//! Request for the records of jobs: a part of them in the order of a list, or all.
//!
//! A list of many jobs needs few of their records. People without access to the bucket `jobs` also read
//! all records this way.
//!
//! * **Publisher:** `wattle jobs` and other commands with the key of a user or monitor.
//! * **Listeners:** placer, through the NATS service API.
//! * **How often:** on request.
//! * **Delivery:** request and reply ([`JobsReply`]), in pages.
//! * **Lost or doubled:** repeat the request: it changes nothing.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::id::JobId;
use crate::job::JobPhase;
use crate::messages::JobRecord;

/// Most bytes of the records of one reply, as JSON; one longer record is a page of its own.
pub const PAGE_LEN_MAX: usize = 256 << 10;

/// Number of jobs in each phase.
pub type JobCounts = BTreeMap<JobPhase, u64>;

/// Request: the records of the jobs that the requester may see, in the order of their ids, or as a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadJobs {
    /// Only this job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// Only jobs after this one: the last job of the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<JobId>,
    /// Records in the order of a list ([`JobRecord::list_order`]); absent: all, by id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list: Option<JobList>,
}

/// The extent of a list of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobList {
    /// Whether ended jobs are included.
    pub ended: bool,
}

/// The placer's reply to [`ReadJobs`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "result")]
pub enum JobsReply {
    /// A page of records.
    Jobs {
        /// The records.
        records: Vec<JobRecord>,
        /// Whether further jobs follow after the last one.
        more: bool,
        /// In the first page of a list: the jobs that the requester may see, ended ones included.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        counts: Option<JobCounts>,
    },
    /// The request is refused.
    Refused {
        /// The cause and the remedy.
        error: String,
    },
}

impl JobRecord {
    /// The order of a list: jobs that hold GPUs, then queued ones, then ended ones; the newest first.
    #[must_use]
    pub fn list_order(&self) -> (u8, Reverse<Timestamp>, &JobId) {
        let group = match self.phase {
            JobPhase::Starting | JobPhase::Running | JobPhase::Stopping => 0,
            JobPhase::Queued => 1,
            JobPhase::Finished | JobPhase::Failed | JobPhase::Cancelled => 2,
        };
        (group, Reverse(self.spec.submitted_at_us), &self.spec.job)
    }
}
