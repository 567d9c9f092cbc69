//! SRTF, Tiresias, Gandiva and AFS in small examples, and the clock options of policies.

use std::time::Duration;

use crate::support::{SETTLED, Site};
use wattle_baselines::policy;
use wattle_common::Timestamp;
use wattle_common::job::{GpuRequest, GpuSetting};
use wattle_placer::{Decision, GpuSet, JobFacts, JobKey, NodeKey};

use crate::helpers::{arrive, cluster, converge, decide, facts, learn, report};

fn lasting(name: &str, gpus: u32, s: u64) -> JobFacts {
    JobFacts { duration_alone: Some(Duration::from_secs(s)), ..facts(name, gpus) }
}

fn ranging(name: &str, min: u32, max: u32) -> JobFacts {
    JobFacts { request: GpuRequest { min, max }, ..facts(name, min) }
}

fn pass(site: &mut Site, s: u64) {
    site.pass(Duration::from_secs(s));
}

#[test]
fn srtf_stops_the_longest_job_and_fills_gaps() {
    let srtf = policy("srtf").unwrap();
    let mut site = cluster(&[4]);
    arrive(&mut site, facts("unknown", 1), None);
    let long = arrive(&mut site, lasting("long", 3, 1_000), None);
    expect_test::expect![[r#"
        long on n0:0,1,2: 3 GPUs: its share of the GPUs, which the policy divides among all jobs
        unknown on n0:3: 1 GPU: its share of the GPUs, which the policy divides among all jobs
    "#]]
    .assert_eq(&converge(&mut site, &*srtf));
    // The long job has 900 s left and does not fit with the short one; a longer one does.
    pass(&mut site, 100);
    report(&mut site, long, 10, 100);
    arrive(&mut site, lasting("nearly", 2, 950), None);
    arrive(&mut site, lasting("short", 2, 500), None);
    expect_test::expect![[r#"
        unknown stopped: 2 jobs are before it in the policy's order
        long stopped: 2 jobs are before it in the policy's order
        short on n0:0,1: 2 GPUs: its share of the GPUs, which the policy divides among all jobs
        nearly on n0:2,3: 2 GPUs: its share of the GPUs, which the policy divides among all jobs
        long waits: 1 job is before it in the policy's order
    "#]]
    .assert_eq(&converge(&mut site, &*srtf));
    // Completed work counts: 900 s are less than 950 s.
    site.end("short");
    expect_test::expect![[r#"
        nearly stopped: 2 jobs are before it in the policy's order
        unknown on n0:0: 1 GPU: its share of the GPUs, which the policy divides among all jobs
        long on n0:1,2,3: 3 GPUs: its share of the GPUs, which the policy divides among all jobs
        nearly waits: 1 job is before it in the policy's order
    "#]]
    .assert_eq(&converge(&mut site, &*srtf));
}

#[test]
fn tiresias_stops_jobs_at_their_threshold_and_requests_a_round_then() {
    let tiresias = policy("tiresias").unwrap();
    let mut site = cluster(&[4]);
    arrive(&mut site, facts("first", 4), None);
    let plan = decide(&mut site, &*tiresias);
    assert_eq!(plan.again_at, None, "no job waits");
    pass(&mut site, 100);
    arrive(&mut site, facts("second", 2), None);
    arrive(&mut site, facts("third", 2), None);
    let plan = decide(&mut site, &*tiresias);
    assert!(plan.is_empty(), "all are in the first queue, and the first runs: {plan:?}");
    // 3,250 GPU-seconds on four GPUs.
    assert_eq!(plan.again_at, Some(Timestamp::from_us(812_500_000)));
    site.advance_to(Timestamp::from_us(812_499_999));
    assert!(decide(&mut site, &*tiresias).is_empty());
    site.advance_to(Timestamp::from_us(812_500_000));
    expect_test::expect![[r#"
        first stopped: 2 jobs are before it in the policy's order
        second on n0:0,1: 2 GPUs: its share of the GPUs, which the policy divides among all jobs
        third on n0:2,3: 2 GPUs: its share of the GPUs, which the policy divides among all jobs
        first waits: 2 jobs are before it in the policy's order
    "#]]
    .assert_eq(&converge(&mut site, &*tiresias));
    // Both others have attained as much now: running jobs continue until they complete.
    pass(&mut site, 2_000);
    assert!(decide(&mut site, &*tiresias).is_empty());
    site.end("second");
    site.end("third");
    expect_test::expect![[r#"
        first on n0:0,1,2,3: 4 GPUs: its share of the GPUs, which the policy divides among all jobs
    "#]]
    .assert_eq(&converge(&mut site, &*tiresias));
}

/// Also without arrivals and completions.
#[test]
fn tiresias_separates_co_tenants_of_another_policy() {
    let mut site = cluster(&[4]);
    let jobs = ["one", "other"].map(|name| arrive(&mut site, facts(name, 2), Some(0)));
    let together = |key| (key, GpuSet::on(NodeKey::at(0), 0b11));
    for (key, on) in jobs.map(together) {
        site.job_restored(key, on, GpuSetting::DEFAULT, Timestamp::EPOCH, false);
    }
    site.pass(SETTLED);
    expect_test::expect![[r#"
        other stopped for 2: 2 GPUs: its share of the GPUs, which the policy divides among all jobs
        other on n0:2,3: 2 GPUs: its share of the GPUs, which the policy divides among all jobs
    "#]]
    .assert_eq(&converge(&mut site, &*policy("tiresias").unwrap()));
}

#[test]
fn tiresias_accepts_other_thresholds() {
    let mut site = cluster(&[1]);
    arrive(&mut site, facts("a", 1), None);
    arrive(&mut site, facts("b", 1), None);
    let plan = decide(&mut site, &*policy("tiresias:60").unwrap());
    assert_eq!(plan.again_at, Some(Timestamp::from_s(60)));
}

#[test]
fn gandiva_pairs_only_if_demand_exceeds_the_gpus() {
    let gandiva = policy("gandiva").unwrap();
    let mut site = cluster(&[2]);
    for name in ["a", "b"] {
        arrive(&mut site, facts(name, 1), Some(0));
    }
    expect_test::expect![[r#"
        a on n0:0: 1 GPU: its share of the GPUs, which the policy divides among all jobs
        b on n0:1: 1 GPU: its share of the GPUs, which the policy divides among all jobs
    "#]]
    .assert_eq(&converge(&mut site, &*gandiva));
    // Speeds of two heavy jobs sum to 0.76: they are not paired, nor are jobs of unequal size.
    for (name, gpus, class) in
        [("heavy", 1, Some(2)), ("heavier", 1, Some(2)), ("wide", 2, Some(0)), ("unknown", 1, None)]
    {
        arrive(&mut site, facts(name, gpus), class);
    }
    expect_test::expect![[r#"
        heavy on n0:0, observed: more jobs than GPUs: shared with job a; together 1.60 times the work of one job alone
        heavier on n0:1, observed: more jobs than GPUs: shared with job b; together 1.60 times the work of one job alone
        wide waits: 2 jobs are before it in the policy's order
    "#]].assert_eq(&converge(&mut site, &*gandiva));
    // A pair whose new prediction is below the threshold is separated.
    let a = site.job_key(&"a".parse().unwrap()).unwrap();
    learn(&mut site, a, 2);
    site.pass(SETTLED);
    expect_test::expect![[r#"
        heavy stopped: 2 jobs are before it in the policy's order
        heavy waits: 2 jobs are before it in the policy's order
    "#]]
    .assert_eq(&converge(&mut site, &*gandiva));
}

#[test]
fn gandiva_separates_pairs_once_all_jobs_fit() {
    let gandiva = policy("gandiva").unwrap();
    let mut site = cluster(&[1, 1]);
    for name in ["a", "b", "c"] {
        arrive(&mut site, facts(name, 1), Some(0));
    }
    converge(&mut site, &*gandiva);
    let of = |site: &Site, name: &str| site.job_key(&name.parse().unwrap()).unwrap();
    // The exclusive job completes.
    let alone: Vec<JobKey> = ["a", "b", "c"]
        .into_iter()
        .map(|name| of(&site, name))
        .filter(|key| {
            let on = site.job(*key).unwrap().state.gpus().unwrap();
            on.gpus().all(|(node, gpu)| site.node(node).tenants(gpu) == [*key])
        })
        .collect();
    let [alone] = alone[..] else { panic!("two of three share: {alone:?}") };
    site.job_ended(alone);
    site.pass(SETTLED);
    let plans = converge(&mut site, &*gandiva);
    assert!(plans.contains("stopped for 1"), "{plans}");
    assert!(site.nodes().iter().all(|node| node.tenants(0).len() == 1), "{plans}");
}

#[test]
fn afs_doubles_the_job_that_gains_most_per_gpu_and_shrinks_it_for_new_jobs() {
    let afs = policy("afs").unwrap();
    let mut site = cluster(&[8]);
    // Speed-up of each doubling: 1.3 for the light job, 1.9 for the heavy job.
    arrive(&mut site, ranging("light", 1, 8), Some(0));
    arrive(&mut site, ranging("heavy", 1, 8), Some(2));
    expect_test::expect![[r#"
        light on n0:0,1,2,3: 4 GPUs: its share of the GPUs, which the policy divides among all jobs
        heavy on n0:4,5,6,7: 4 GPUs: its share of the GPUs, which the policy divides among all jobs
    "#]]
    .assert_eq(&converge(&mut site, &*afs));
    site.pass(SETTLED);
    for name in ["x", "y"] {
        arrive(&mut site, ranging(name, 2, 2), Some(1));
    }
    expect_test::expect![[r#"
        light stopped for 2: 2 GPUs: its share of the GPUs, which the policy divides among all jobs
        heavy stopped for 2: 2 GPUs: its share of the GPUs, which the policy divides among all jobs
        light on n0:0,1: 2 GPUs: its share of the GPUs, which the policy divides among all jobs
        heavy on n0:2,3: 2 GPUs: its share of the GPUs, which the policy divides among all jobs
        x on n0:4,5: 2 GPUs: its share of the GPUs, which the policy divides among all jobs
        y on n0:6,7: 2 GPUs: its share of the GPUs, which the policy divides among all jobs
    "#]]
    .assert_eq(&converge(&mut site, &*afs));
}

#[test]
fn afs_leaves_gpus_free_that_gain_less_than_its_floor() {
    for (spelling, sizes) in [("afs", [4, 4]), ("afs:0.5", [1, 4]), ("afs:0.95", [1, 1])] {
        let mut site = cluster(&[8]);
        let jobs = [("light", 0), ("heavy", 2)]
            .map(|(name, class)| arrive(&mut site, ranging(name, 1, 4), Some(class)));
        decide(&mut site, &*policy(spelling).unwrap());
        let has = |key| site.job(key).unwrap().intended_gpus().unwrap();
        assert_eq!(jobs.map(has), sizes, "{spelling}");
    }
}

#[test]
fn one_clock_applies_to_all_jobs_and_zeus_chooses_for_each() {
    let mut site = cluster(&[2]);
    let a = arrive(&mut site, facts("a", 1), Some(0));
    expect_test::expect![[r#"
        a on n0:0 at 1080 MHz: first in the queue, on the first free GPUs in node order
    "#]]
    .assert_eq(&converge(&mut site, &*policy("fifo@1080").unwrap()));
    // Zeus: (160 + 200) / 2 / 0.95 = 189 joules per step at 1200 MHz, 200 by default, 194 at 1080 MHz.
    arrive(&mut site, facts("b", 1), Some(1));
    arrive(&mut site, facts("c", 1), None);
    site.job_ended(a);
    expect_test::expect![[r#"
        b on n0:0 at 1200 MHz: first in the queue, on the first free GPUs in node order
        c on n0:1: first in the queue, on the first free GPUs in node order
    "#]]
    .assert_eq(&converge(&mut site, &*policy("fifo+zeus").unwrap()));
    let c = site.job_key(&"c".parse().unwrap()).unwrap();
    learn(&mut site, c, 0);
    let plan = decide(&mut site, &*policy("fifo+zeus").unwrap());
    assert!(matches!(plan.decisions[..], [Decision::Set { .. }]), "{plan:?}");
}
