//! What the placer answers to people without any change: pages of job records, and the input of plans of events.

use wattle_common::messages::jobs::PAGE_LEN_MAX;
use wattle_common::messages::{JobCounts, JobList, JobRecord, JobsReply, PlanEvent, ReadJobs};
use wattle_common::subject::Requester;
use wattle_common::{JobId, Timestamp, codec};

use crate::live::Placer;
use crate::power::event_plan::EventPlanning;

impl Placer {
    /// The owner of a job; `None` for an unknown job.
    #[must_use]
    pub fn owner(&self, job: &JobId) -> Option<Option<&str>> {
        self.jobs.get(job).map(|record| record.spec.user.as_deref())
    }

    /// Size of the specifications of a user's jobs that have not ended, bytes.
    #[must_use]
    pub fn unfinished_bytes(&self, user: &str) -> u64 {
        self.jobs.unfinished_bytes(user)
    }

    /// The input of a plan of what can be delivered during a grid event.
    ///
    /// # Errors
    /// Why there is none, with the remedy.
    pub fn event_planning(
        &self,
        now: Timestamp,
        request: &PlanEvent,
    ) -> Result<EventPlanning, String> {
        let site = (&self.spending, &self.nodes);
        let planning = self.events.planning(now, request, site, &self.controller);
        planning.map_err(|error| error.to_string())
    }

    /// A page of the records that `requester` may see.
    #[must_use]
    pub fn records(&self, requester: &Requester, request: &ReadJobs) -> JobsReply {
        let may_see = |record: &&JobRecord| requester.may_see(record.spec.user.as_deref());
        if let Some(job) = &request.job {
            let record = self.jobs.get(job).filter(may_see);
            return page(record.into_iter(), None);
        }
        let Some(list) = request.list else {
            return page(self.jobs.after(request.after.as_ref()).filter(may_see), None);
        };
        let seen = || self.jobs.all().filter(may_see);
        let after = request.after.as_ref().and_then(|job| self.jobs.get(job));
        let records = in_list_order(seen(), list, after);
        let counts = request.after.is_none().then(|| counts(seen()));
        page(records.into_iter(), counts)
    }
}

/// The records of a list after the one of `after`.
fn in_list_order<'r>(
    records: impl Iterator<Item = &'r JobRecord>,
    list: JobList,
    after: Option<&JobRecord>,
) -> Vec<&'r JobRecord> {
    let listed = records.filter(|record| {
        (list.ended || !record.phase.is_final())
            && after.is_none_or(|after| record.list_order() > after.list_order())
    });
    let mut listed: Vec<_> = listed.collect();
    listed.sort_by_key(|record| record.list_order());
    listed
}

fn counts<'r>(records: impl Iterator<Item = &'r JobRecord>) -> JobCounts {
    let mut counts = JobCounts::new();
    for record in records {
        *counts.entry(record.phase).or_default() += 1;
    }
    counts
}

/// The first records that fit into one reply.
fn page<'r>(seen: impl Iterator<Item = &'r JobRecord>, counts: Option<JobCounts>) -> JobsReply {
    let (mut records, mut len, mut more) = (Vec::new(), 0, false);
    for record in seen {
        len += codec::encode_json(record).len();
        if len > PAGE_LEN_MAX && !records.is_empty() {
            more = true;
            break;
        }
        records.push(record.clone());
    }
    JobsReply::Jobs { records, more, counts }
}
