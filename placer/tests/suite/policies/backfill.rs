//! Backfilling: which jobs pass the head of the queue, and that none delays it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use wattle_common::Timestamp;
use wattle_placer::{Decision, JobFacts, JobKey, Reason, policy};

use crate::policies::helpers::{cluster, decide, facts, show};
use crate::support::Site;

fn limited(name: &str, gpus: u32, limit_s: u64) -> JobFacts {
    JobFacts { time_limit: Some(Duration::from_secs(limit_s)), ..facts(name, gpus) }
}

/// The plan for these jobs (name, GPUs, time limit in seconds) on idle nodes of these sizes.
fn planned(sizes: &[u32], jobs: &[(&str, u32, u64)]) -> String {
    let mut site = cluster(sizes);
    for (name, gpus, limit_s) in jobs {
        site.job_arrived(limited(name, *gpus, *limit_s));
    }
    let before = site.clone();
    let plan = decide(&mut site, &*policy("backfill").unwrap());
    show(&before, &plan)
}

#[test]
fn a_job_that_ends_before_the_reserved_start_goes_first_and_a_longer_one_waits() {
    let jobs = [("running", 2, 1_000), ("head", 4, 60), ("long", 1, 1_001), ("short", 2, 1_000)];
    expect_test::expect![[r#"
        running on n0:0,1: first in the queue, on the first free GPUs in node order
        short on n0:2,3: backfilled: its time limit ends by the reserved start of head, 1970-01-01 00:16:40 UTC
        head waits: requests 4 GPUs; 0 free, at most 0 on one node; starts by 1970-01-01 00:16:40 UTC if jobs keep their time limits
    "#]]
    .assert_eq(&planned(&[4], &jobs));
}

#[test]
fn a_longer_job_gets_gpus_that_the_head_does_not_need() {
    // The node of two GPUs cannot hold the head.
    let jobs =
        [("a", 3, 1_000), ("b", 4, 5_000), ("head", 4, 60), ("long", 1, 9_000), ("more", 1, 9_000)];
    expect_test::expect![[r#"
        a on n0:0,1,2: first in the queue, on the first free GPUs in node order
        b on n1:0,1,2,3: first in the queue, on the first free GPUs in node order
        long on n2:0: backfilled: head can start at its reserved 1970-01-01 00:16:40 UTC without these GPUs
        more on n2:1: backfilled: head can start at its reserved 1970-01-01 00:16:40 UTC without these GPUs
        head waits: requests 4 GPUs; 1 free, at most 1 on one node; starts by 1970-01-01 00:16:40 UTC if jobs keep their time limits
    "#]]
    .assert_eq(&planned(&[4, 4, 2], &jobs));
    // At the reserved start the other node is free too.
    let jobs =
        [("a", 2, 1_000), ("b", 4, 1_000), ("head", 4, 60), ("long", 2, 9_000), ("more", 1, 9_000)];
    expect_test::expect![[r#"
        a on n0:0,1: first in the queue, on the first free GPUs in node order
        b on n1:0,1,2,3: first in the queue, on the first free GPUs in node order
        long on n0:2,3: backfilled: head can start at its reserved 1970-01-01 00:16:40 UTC without these GPUs
        head waits: requests 4 GPUs; 0 free, at most 0 on one node; starts by 1970-01-01 00:16:40 UTC if jobs keep their time limits
    "#]]
    .assert_eq(&planned(&[4, 4], &jobs));
}

#[test]
fn a_head_larger_than_a_node_reserves_entire_nodes() {
    let jobs = [("a", 1, 500), ("b", 4, 800), ("head", 8, 60), ("long", 3, 801), ("short", 3, 800)];
    expect_test::expect![[r#"
        a on n0:0: first in the queue, on the first free GPUs in node order
        b on n1:0,1,2,3: first in the queue, on the first free GPUs in node order
        short on n0:1,2,3: backfilled: its time limit ends by the reserved start of head, 1970-01-01 00:13:20 UTC
        head waits: requests 8 GPUs; 0 free, at most 0 on one node; starts by 1970-01-01 00:13:20 UTC if jobs keep their time limits
    "#]]
    .assert_eq(&planned(&[4, 4], &jobs));
}

#[test]
fn a_job_past_its_limit_is_expected_to_end_soon() {
    let policy = policy("backfill").unwrap();
    let mut site = cluster(&[4]);
    site.job_arrived(limited("overdue", 3, 100));
    decide(&mut site, &*policy);
    site.job_arrived(limited("head", 4, 60));
    site.job_arrived(limited("next", 1, 60));
    site.pass(Duration::from_secs(500));
    let before = site.clone();
    expect_test::expect![[r#"
        head waits: requests 4 GPUs; 1 free, at most 1 on one node; starts by 1970-01-01 00:08:50 UTC if jobs keep their time limits
    "#]]
    .assert_eq(&show(&before, &decide(&mut site, &*policy)));
}

/// The end of `running` on which the head waits, by the reserved start, seconds.
fn reserved_s(name: &str, running: JobFacts) -> Option<u64> {
    let policy = policy(name).unwrap();
    let mut site = cluster(&[1]);
    site.job_arrived(running);
    site.job_arrived(limited("head", 1, 60));
    let plan = decide(&mut site, &*policy);
    match plan.blocked?.reason {
        Reason::NoRoom { reserved_at, .. } => Some(reserved_at?.as_us() / 1_000_000),
        other => panic!("{other}"),
    }
}

#[test]
fn a_job_without_a_limit_has_its_estimate_or_the_default() {
    let unlimited = facts("a", 1);
    let estimated =
        JobFacts { duration_alone: Some(Duration::from_secs(700)), ..unlimited.clone() };
    assert_eq!(reserved_s("backfill", limited("a", 1, 90)), Some(90));
    assert_eq!(reserved_s("backfill", estimated), Some(700));
    assert_eq!(reserved_s("backfill", unlimited.clone()), Some(24 * 3_600));
    assert_eq!(reserved_s("backfill:0.5", unlimited.clone()), Some(1_800));
    assert_eq!(reserved_s("backfill:0", unlimited.clone()), Some(60));
    assert_eq!(reserved_s("fifo", unlimited), None, "no other policy reserves");
}

#[test]
fn the_priority_of_the_sites_scheduler_orders_jobs_of_equal_priority() {
    let mut site = cluster(&[1]);
    site.job_arrived(limited("first", 1, 60));
    site.job_arrived(JobFacts { site_priority: 7, ..limited("urgent", 1, 60) });
    site.job_arrived(JobFacts { site_priority: 7, ..limited("second", 1, 60) });
    let plan = decide(&mut site, &*policy("backfill").unwrap());
    let started = plan.decisions.iter().map(|decision| site.job(decision.job()).unwrap());
    let started: Vec<&str> = started.map(|job| job.facts.id.as_str()).collect();
    assert_eq!(started, ["urgent"]);
    // A person's priority has precedence.
    let mut site = cluster(&[1]);
    site.job_arrived(JobFacts { site_priority: 7, ..limited("urgent", 1, 60) });
    site.job_arrived(JobFacts { priority: 1, ..limited("raised", 1, 60) });
    let plan = decide(&mut site, &*policy("backfill").unwrap());
    assert_eq!(site.job(plan.decisions[0].job()).unwrap().facts.id.as_str(), "raised");
}

/// A job of a random trace.
#[derive(Clone, Debug)]
struct Traced {
    arrives_s: u64,
    gpus: u32,
    limit_s: u64,
    /// At most the limit.
    runs_s: u64,
}

fn traced() -> impl Strategy<Value = Traced> {
    let gpus = prop_oneof![4 => 1u32..3, 2 => 3u32..9, 1 => 9u32..20];
    (0u64..5_000, gpus, 1u64..4_000, 1u64..=100).prop_map(|(arrives_s, gpus, limit_s, percent)| {
        Traced { arrives_s, gpus, limit_s, runs_s: (limit_s * percent).div_ceil(100) }
    })
}

fn sizes() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(prop_oneof![Just(2u32), Just(4), Just(8)], 1..5)
}

/// Runs a trace under backfilling. Returns the start of each job, seconds, and the number of jobs that started before
/// the head of the queue. Asserts that no head starts later than its reservation.
fn run(sizes: &[u32], jobs: &[Traced]) -> (BTreeMap<usize, u64>, usize) {
    let policy = policy("backfill").unwrap();
    let mut site = cluster(sizes);
    let mut arrivals: BTreeSet<(u64, usize)> =
        jobs.iter().enumerate().map(|(i, job)| (job.arrives_s, i)).collect();
    let mut ends: BTreeSet<(u64, JobKey)> = BTreeSet::new();
    let mut known: BTreeMap<JobKey, usize> = BTreeMap::new();
    let mut reserved: BTreeMap<usize, u64> = BTreeMap::new();
    let (mut starts, mut backfilled) = (BTreeMap::new(), 0);
    loop {
        let next =
            arrivals.first().map(|(at, _)| *at).into_iter().chain(ends.first().map(|(at, _)| *at));
        let Some(now_s) = next.min() else { break };
        site.advance_to(Timestamp::from_s(now_s));
        while let Some((at, key)) = ends.first().copied().filter(|(at, _)| *at == now_s) {
            ends.remove(&(at, key));
            site.job_ended(key);
        }
        while let Some((at, i)) = arrivals.first().copied().filter(|(at, _)| *at == now_s) {
            arrivals.remove(&(at, i));
            let key = site.job_arrived(limited(&format!("j{i}"), jobs[i].gpus, jobs[i].limit_s));
            known.insert(key, i);
        }
        let plan = decide(&mut site, &*policy);
        for decision in &plan.decisions {
            let Decision::Start { job, reason, .. } = decision else { continue };
            let i = known[job];
            assert!(
                reserved.get(&i).is_none_or(|at| now_s <= *at),
                "job {i} starts at {now_s}: {reserved:?}"
            );
            starts.insert(i, now_s);
            ends.insert((now_s + jobs[i].runs_s, *job));
            backfilled += usize::from(matches!(reason, Reason::Backfilled { .. }));
        }
        let Some(blocked) = &plan.blocked else { continue };
        let Reason::NoRoom { reserved_at: Some(at), .. } = blocked.reason else {
            panic!("no reservation: {}", blocked.reason);
        };
        let at_s = at.as_us() / 1_000_000;
        let before = reserved.insert(known[&blocked.job], at_s);
        assert!(before.is_none_or(|before| at_s <= before), "{before:?} became {at_s}");
    }
    (starts, backfilled)
}

proptest! {
    /// While jobs keep their limits, the head of the queue starts at its reserved time at the latest, which never
    /// becomes later. Every job that the cluster can hold starts, and a second run is identical.
    #[test]
    fn no_backfilled_job_delays_the_head(
        sizes in sizes(),
        jobs in prop::collection::vec(traced(), 1..60),
    ) {
        let runs = run(&sizes, &jobs);
        let largest = sizes.iter().copied().max().unwrap_or(0);
        let fits = jobs.iter().enumerate().filter(|(_, job)| job.gpus <= largest);
        for (i, _) in fits {
            prop_assert!(runs.0.contains_key(&i), "job {i} never starts");
        }
        prop_assert_eq!(runs, run(&sizes, &jobs));
    }

    /// What FIFO starts, backfilling starts on the same GPUs; while every job fits, both plans are equal.
    #[test]
    fn a_plan_begins_with_that_of_fifo(
        sizes in sizes(),
        jobs in prop::collection::vec(traced(), 1..20),
    ) {
        let mut site: Site = cluster(&sizes);
        for (i, job) in jobs.iter().enumerate() {
            site.job_arrived(limited(&format!("j{i}"), job.gpus, job.limit_s));
        }
        let (fifo, backfill) = (policy("fifo").unwrap(), policy("backfill").unwrap());
        let (fifo, backfill) = (site.plan(&*fifo), site.plan(&*backfill));
        prop_assert!(backfill.decisions.starts_with(&fifo.decisions));
        if fifo.blocked.is_none() {
            prop_assert_eq!(fifo, backfill);
        }
    }
}

/// A queue in which backfilling has an effect at all.
#[test]
fn small_jobs_pass_a_large_one_that_waits() {
    let job = |arrives_s, gpus, limit_s| Traced { arrives_s, gpus, limit_s, runs_s: limit_s };
    let mut jobs = vec![job(0, 2, 1_000), job(1, 4, 500)];
    jobs.extend((0..6).map(|i| job(2 + i, 1, 400)));
    let (starts, backfilled) = run(&[4], &jobs);
    assert_eq!((starts[&1], backfilled), (1_000, 4), "{starts:?}");
}
