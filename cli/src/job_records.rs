//! The jobs' records: from the bucket, or from the placer for people without access to the bucket.
//!
//! The bucket is available without a running placer. It contains the jobs of all users, so only
//! operators may read it; the placer gives users the records of their own jobs. Lists come from the placer,
//! which sends the part that is shown.

use anyhow::Context as _;
use wattle_common::messages::{JobCounts, JobList, JobRecord, JobsReply, ReadJobs};
use wattle_common::subject::{Bucket, Rank, RequestTopic};
use wattle_common::{JobId, codec};
use wattle_runtime::bus::Bus;

use crate::commands::jobs::filter::Filter;
use crate::output::{note, usage};
use crate::takeover;

/// Whether this person reads stored state itself.
pub(crate) fn reads_storage(bus: &Bus) -> bool {
    match bus.requester().rank {
        Rank::Operator | Rank::Local => true,
        Rank::User | Rank::Monitor => !bus.has_key(),
    }
}

/// An error that names the remedy, unless this person reads stored state.
pub(crate) fn require_storage(bus: &Bus, command: &str) -> anyhow::Result<()> {
    if reads_storage(bus) {
        return Ok(());
    }
    Err(usage(format!(
        "`wattle {command}` needs the key of an operator: name it with --credentials"
    )))
}

/// An error that names the remedy, if this person changes nothing.
pub(crate) fn require_change(bus: &Bus) -> anyhow::Result<()> {
    if bus.has_key() && bus.requester().rank == Rank::Monitor {
        return Err(usage("a monitor changes nothing: name the key of a user with --credentials"));
    }
    Ok(())
}

/// One page.
async fn page(bus: &Bus, request: &ReadJobs) -> anyhow::Result<(Vec<JobRecord>, bool)> {
    match takeover::request(bus, RequestTopic::JobRequested, "placer", request).await? {
        JobsReply::Jobs { records, more, .. } => Ok((records, more)),
        JobsReply::Refused { error } => Err(usage(error)),
    }
}

/// Every record that this person may read, in any order.
pub(crate) async fn all(bus: &Bus) -> anyhow::Result<Vec<JobRecord>> {
    let mut records = Vec::new();
    if !reads_storage(bus) {
        let mut request = ReadJobs::default();
        loop {
            let (page, more) = page(bus, &request).await?;
            request.after = page.last().map(|record| record.spec.job.clone());
            records.extend(page);
            if !more || request.after.is_none() {
                return Ok(records);
            }
        }
    }
    let mut watch = bus.bucket(Bucket::Jobs).await?.watch().await?;
    for change in watch.initial().await {
        let Some(value) = change.value else { continue };
        match codec::decode_json::<JobRecord>(&value) {
            Ok(record) => records.push(record),
            Err(error) => {
                let key = change.key;
                note(&format!("warning: job {key} cannot be read: {error}"));
            }
        }
    }
    Ok(records)
}

/// Records in the order of a list, and the number of all jobs that this person may see.
pub(crate) struct Listed {
    /// The first records of the list.
    pub(crate) records: Vec<JobRecord>,
    /// Jobs by phase, ended ones included.
    pub(crate) counts: JobCounts,
}

impl Listed {
    /// The first `limit` records that meet the conditions, and the number of all that do.
    fn only(mut self, filter: &Filter, limit: usize) -> Self {
        self.records.retain(|record| filter.keeps(record));
        self.counts = counts(&self.records);
        self.records.truncate(limit);
        self
    }
}

/// The number of records in each phase.
fn counts(records: &[JobRecord]) -> JobCounts {
    let mut counts = JobCounts::new();
    for record in records {
        *counts.entry(record.phase).or_default() += 1;
    }
    counts
}

/// The first `limit` records of a list that meet the conditions, from the placer. Without a placer they come from
/// the bucket, if this person may read it.
pub(crate) async fn listed(
    bus: &Bus,
    ended: bool,
    limit: usize,
    filter: &Filter,
) -> anyhow::Result<Listed> {
    if filter.is_given() {
        return Ok(first(bus, ended, usize::MAX).await?.only(filter, limit));
    }
    first(bus, ended, limit).await
}

async fn first(bus: &Bus, ended: bool, limit: usize) -> anyhow::Result<Listed> {
    let mut request = ReadJobs { list: Some(JobList { ended }), ..ReadJobs::default() };
    let mut listed = Listed { records: Vec::new(), counts: JobCounts::new() };
    loop {
        let reply = if reads_storage(bus) {
            let subject = bus.request_subject(RequestTopic::JobRequested);
            match bus.request(&subject, &request).await {
                Ok(reply) => reply,
                Err(_) => return listed_from_bucket(bus, ended, limit).await,
            }
        } else {
            takeover::request(bus, RequestTopic::JobRequested, "placer", &request).await?
        };
        let (records, more) = match reply {
            JobsReply::Jobs { records, more, counts } => {
                listed.counts = counts.unwrap_or(listed.counts);
                (records, more)
            }
            JobsReply::Refused { error } => return Err(usage(error)),
        };
        request.after = records.last().map(|record| record.spec.job.clone());
        listed.records.extend(records);
        if !more || request.after.is_none() || listed.records.len() >= limit {
            listed.records.truncate(limit);
            return Ok(listed);
        }
    }
}

async fn listed_from_bucket(bus: &Bus, ended: bool, limit: usize) -> anyhow::Result<Listed> {
    let mut records = all(bus).await?;
    let counts = counts(&records);
    records.retain(|record| ended || !record.phase.is_final());
    records.sort_by(|a, b| a.list_order().cmp(&b.list_order()));
    records.truncate(limit);
    Ok(Listed { records, counts })
}

/// The record of a job, in one attempt.
pub(crate) async fn look(bus: &Bus, job: &JobId) -> anyhow::Result<Option<JobRecord>> {
    if reads_storage(bus) {
        return one(bus, job).await;
    }
    let request = ReadJobs { job: Some(job.clone()), ..ReadJobs::default() };
    let subject = bus.request_subject(RequestTopic::JobRequested);
    let reply = bus.request(&subject, &request).await;
    match reply.context("the placer does not answer")? {
        JobsReply::Jobs { mut records, .. } => Ok(records.pop()),
        JobsReply::Refused { error } => Err(usage(error)),
    }
}

/// The record of a job.
pub(crate) async fn one(bus: &Bus, job: &JobId) -> anyhow::Result<Option<JobRecord>> {
    if !reads_storage(bus) {
        let request = ReadJobs { job: Some(job.clone()), ..ReadJobs::default() };
        return Ok(page(bus, &request).await?.0.pop());
    }
    let bucket = bus.bucket(Bucket::Jobs).await?;
    let found = bucket.get(job.as_str()).await.context("the job's record cannot be read")?;
    Ok(found.map(|(record, _)| record))
}

/// The ids of all jobs that this person may see.
pub(crate) async fn ids(bus: &Bus) -> anyhow::Result<Vec<String>> {
    if reads_storage(bus) {
        return Ok(bus.bucket(Bucket::Jobs).await?.keys().await?);
    }
    Ok(all(bus).await?.into_iter().map(|record| record.spec.job.to_string()).collect())
}
