//! Pages of job records.

use wattle_common::job::JobPhase;
use wattle_common::messages::{JobCounts, JobList, JobsReply, ReadJobs};
use wattle_common::subject::{Rank, Requester};

use super::world::World;
use super::{job_id, spec};

fn page(
    world: &World,
    requester: &Requester,
    request: &ReadJobs,
) -> (Vec<String>, bool, Option<JobCounts>) {
    match world.placer.records(requester, request) {
        JobsReply::Jobs { records, more, counts } => {
            (records.iter().map(|record| record.spec.job.to_string()).collect(), more, counts)
        }
        JobsReply::Refused { error } => panic!("{error}"),
    }
}

fn requester(rank: Rank, user: &str) -> Requester {
    Requester { rank, user: user.parse().unwrap() }
}

/// Two running jobs, 60 queued jobs of 20 kB that fill several pages, and a cancelled one.
#[test]
fn list_has_active_and_newest_jobs_first_in_complete_pages() {
    let mut world = World::new(1, 2);
    world.long = true;
    world.pass(1);
    for i in 0..63 {
        let mut job = spec(&format!("job-{:02}", (i * 8) % 63), 1);
        job.command = vec!["train".to_owned(), "x".repeat(20_000)];
        job.user = (i % 9 == 0).then(|| "ada".to_owned());
        world.submit(job);
        world.pass(1);
    }
    world.cancel("job-21");
    world.pass(2);
    let operator = requester(Rank::Operator, "op");
    let list = Some(JobList { ended: true });
    let mut request = ReadJobs { list, ..ReadJobs::default() };
    let (first, mut more, counts) = page(&world, &operator, &request);
    let expected = [(JobPhase::Queued, 60), (JobPhase::Running, 2), (JobPhase::Cancelled, 1)];
    assert_eq!(counts, Some(expected.into()));
    assert_eq!(first[..3], ["job-08", "job-00", "job-55"], "two run; the newest waits");
    let mut all = first;
    while more {
        request.after = Some(job_id(all.last().unwrap()));
        let (next, further, counts) = page(&world, &operator, &request);
        assert_eq!(counts, None, "counted for the first page");
        all.extend(next);
        more = further;
    }
    assert_eq!(all.last().map(String::as_str), Some("job-21"), "ended jobs are last");
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 63, "each job once");

    // Users see their own jobs only, and count no others.
    let list = Some(JobList { ended: false });
    let (own, more, counts) =
        page(&world, &requester(Rank::User, "ada"), &ReadJobs { list, ..ReadJobs::default() });
    assert_eq!((own.len(), more, counts.unwrap().values().sum::<u64>()), (7, false, 7));
}
