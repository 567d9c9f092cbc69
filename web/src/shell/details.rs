//! Reads what only some pages need: surface and windows of a followed job, the power of the site for a followed grid event
//! or the page of energy, and the processes that answer.

use std::sync::Arc;
use std::time::Duration;

use wattle_common::messages::{JobRecord, JobWindow, Surface};
use wattle_common::subject::{Bucket, StreamName, Subject};
use wattle_common::{JobId, codec};
use wattle_runtime::bus::{BusError, FoundService};
use wattle_runtime::shell::chain;
use wattle_runtime::{clock, site_minutes};

use super::Shared;
use crate::model::Process;

/// Interval in which a followed job is read again, wall time.
const READ_EVERY: Duration = Duration::from_secs(15);
/// Interval in which the power of the site is read for followed pages, wall time.
const SITE_EVERY: Duration = Duration::from_secs(5);
/// Time limit of this, wall time: a report needs 45 days.
const SITE_WITHIN: Duration = Duration::from_secs(30);
/// Interval of the discovery of processes, wall time.
const DISCOVER_EVERY: Duration = Duration::from_secs(5);
/// Time for their answers, wall time.
const ANSWERS_WITHIN: Duration = Duration::from_millis(700);
/// Time limit of reading one job, wall time.
const READ_WITHIN: Duration = Duration::from_secs(5);
/// Interval in which this task looks for work, wall time.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Most windows of one job that are read.
const WINDOWS_MAX: usize = 20_000;

/// Reads until shutdown.
pub(super) async fn keep(shared: Arc<Shared>) {
    let mut discovered: Option<Duration> = None;
    let mut site_read: Option<Duration> = None;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if !shared.bus.is_connected() {
            continue;
        }
        let steady = clock::monotonic();
        let due = |read: Option<Duration>, every| {
            read.is_none_or(|read| steady.saturating_sub(read) >= every)
        };
        let jobs: Vec<JobId> = {
            let model = shared.model();
            let details = model.details.iter().filter(|(_, detail)| due(detail.read, READ_EVERY));
            details.map(|(job, _)| job.clone()).collect()
        };
        for job in jobs {
            let read = tokio::time::timeout(READ_WITHIN, read(&shared, &job)).await;
            if let Ok(Err(error)) = read {
                tracing::debug!(%job, error = chain(&error), "job not read; retrying");
            }
        }
        let missing = shared.model().site_missing_from();
        // The first read of a page does not wait.
        let is_first = shared.model().site_from.is_none();
        if let Some(from) = missing.filter(|_| is_first || due(site_read, SITE_EVERY)) {
            site_read = Some(steady);
            match tokio::time::timeout(SITE_WITHIN, site_minutes::read(&shared.bus, from)).await {
                Ok(Ok(minutes)) => shared.model().take_site(from, minutes),
                Ok(Err(error)) => {
                    tracing::debug!(error = chain(&error), "power of the site not read; retrying");
                }
                Err(_) => tracing::debug!("power of the site not read in time; retrying"),
            }
        }
        if shared.hub().follows_services() && due(discovered, DISCOVER_EVERY) {
            discovered = Some(steady);
            if let Ok(found) = shared.bus.all_services(ANSWERS_WITHIN).await {
                let mut processes: Vec<Process> = found.iter().map(process).collect();
                processes.sort();
                shared.model().processes = Some(processes);
            }
        }
    }
}

/// Reads the record, the surface and the windows of a job.
async fn read(shared: &Shared, job: &JobId) -> Result<(), BusError> {
    let bus = &shared.bus;
    let record = bus.bucket(Bucket::Jobs).await?.get::<JobRecord>(job.as_str()).await;
    let surface = bus.bucket(Bucket::Surfaces).await?.get::<Surface>(job.as_str()).await;
    let filter = Subject::windows_of(bus.cluster(), job);
    let mut replay = bus.replay(StreamName::Windows, Some(&filter)).await?;
    let mut windows = Vec::new();
    while let Some(payload) = replay.next().await? {
        if windows.len() < WINDOWS_MAX {
            windows.extend(codec::decode_json::<JobWindow>(&payload).ok());
        }
    }
    let mut model = shared.model();
    if let Some(detail) = model.details.get_mut(job) {
        detail.record = record.ok().flatten().map(|(record, _)| record).or(detail.record.take());
        let surface = surface.ok().flatten().map(|(surface, _)| surface);
        detail.take(surface, windows, clock::monotonic());
    }
    Ok(())
}

fn process(found: &FoundService) -> Process {
    Process {
        service: found.short_name().to_owned(),
        of: found.of(),
        state: found.state().to_owned(),
        host: found.entry("host").to_owned(),
        pid: found.entry("pid").to_owned(),
        version: found.version.clone(),
    }
}
