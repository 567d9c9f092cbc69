//! Co-location trials: new pairs are observed, and slow ones are undone once.

use std::time::Duration;

use crate::support::Site;
use wattle_baselines::policy;
use wattle_common::Timestamp;
use wattle_placer::{Decision, JobFacts, JobKey, Progress, Reason, State};

use crate::policies::helpers::{arrive, cluster, decide, facts, learn};

const PACKERS: [&str; 3] = ["fifo-packed", "gandiva", "wattle"];

/// All jobs report this many steps, with 50 in an epoch.
pub(super) fn report(site: &mut Site, jobs: &[JobKey], step: u64) {
    let at = site.now();
    for &key in jobs {
        let progress = Progress {
            at,
            step,
            steps_total: Some(100_000),
            steps_per_epoch: Some(50),
            ..Progress::default()
        };
        site.job_progressed(key, progress);
    }
}

fn pass(site: &mut Site, seconds: u64) {
    site.pass(Duration::from_secs(seconds));
}

fn runs(site: &Site, key: JobKey) -> bool {
    matches!(site.job(key).unwrap().state, State::Running { .. })
}

/// One GPU with an old job and a new co-tenant. Both are light: one step per second exclusively, and
/// predicted speeds that sum to 1.96.
pub(super) fn paired(name: &str) -> (Site, JobKey, JobKey) {
    let policy = policy(name).unwrap();
    let mut site = cluster(&[1]);
    site.advance_to(Timestamp::from_s(100));
    let old = arrive(&mut site, facts("old", 1), Some(0));
    report(&mut site, &[old], 0);
    let plan = decide(&mut site, &*policy);
    let [Decision::Start { observe: false, .. }] = &plan.decisions[..] else { panic!("{plan:?}") };
    pass(&mut site, 10);
    let new = arrive(&mut site, facts("new", 1), Some(0));
    report(&mut site, &[old, new], 0);
    let plan = decide(&mut site, &*policy);
    let [Decision::Start { job, observe, .. }] = &plan.decisions[..] else {
        panic!("{name}: {plan:?}")
    };
    assert!(*job == new && *observe, "{name}: a new pair is observed: {plan:?}");
    report(&mut site, &[old, new], 0);
    (site, old, new)
}

#[test]
fn a_pair_slower_than_time_sharing_is_undone_and_not_tried_again() {
    for name in PACKERS {
        let packer = policy(name).unwrap();
        let (mut site, old, new) = paired(name);
        pass(&mut site, 60);
        report(&mut site, &[old, new], 27);
        assert!(decide(&mut site, &*packer).is_empty(), "{name}: not before an epoch is over");
        // 0.45 steps per second each: slower than time-sharing.
        pass(&mut site, 60);
        report(&mut site, &[old, new], 54);
        let plan = decide(&mut site, &*packer);
        let [Decision::Undo { job, reason: Reason::PairLoses { sum, .. } }] = plan.decisions[..]
        else {
            panic!("{name}: {plan:?}")
        };
        assert!(job == new && (sum - 0.9).abs() < 1e-6, "{name}: {plan:?}");
        site.job_stopped(new);
        for _ in 0..20 {
            let plan = decide(&mut site, &*packer);
            assert!(plan.is_empty(), "{name}: the set is not tried again: {plan:?}");
            assert_eq!(plan.blocked.map(|blocked| blocked.job), Some(new), "{name}");
            pass(&mut site, 60);
        }
        assert!(runs(&site, old), "{name}");
        // It may return to those GPUs once they are free.
        site.job_ended(old);
        decide(&mut site, &*packer);
        assert!(runs(&site, new), "{name}");
    }
}

#[test]
fn a_pair_faster_than_time_sharing_is_kept() {
    for name in PACKERS {
        let packer = policy(name).unwrap();
        let (mut site, old, new) = paired(name);
        pass(&mut site, 90);
        report(&mut site, &[old, new], 54);
        let plan = decide(&mut site, &*packer);
        let [Decision::Confirm { job, reason: Reason::PairHolds { sum: Some(sum), .. } }] =
            plan.decisions[..]
        else {
            panic!("{name}: {plan:?}")
        };
        assert!(job == new && (sum - 1.2).abs() < 1e-6, "{name}: {plan:?}");
        // A kept pair is not evaluated again.
        pass(&mut site, 600);
        report(&mut site, &[old, new], 60);
        assert!(decide(&mut site, &*packer).is_empty(), "{name}");
        assert!(runs(&site, old) && runs(&site, new), "{name}");
    }
}

#[test]
fn a_job_undone_three_times_runs_exclusively() {
    for name in ["fifo-packed", "gandiva"] {
        let packer = policy(name).unwrap();
        let mut site = cluster(&[1, 1, 1, 1]);
        let mut all_jobs: Vec<JobKey> =
            (0..4).map(|i| arrive(&mut site, facts(&format!("old{i}"), 1), Some(0))).collect();
        report(&mut site, &all_jobs, 0);
        decide(&mut site, &*packer);
        let new = arrive(&mut site, facts("new", 1), Some(0));
        all_jobs.push(new);
        for (undone, step) in [(0, 0), (1, 100), (2, 200)] {
            assert_eq!(site.job(new).unwrap().undone_on.len(), undone, "{name}");
            decide(&mut site, &*packer);
            assert!(runs(&site, new), "{name} tries another set");
            report(&mut site, &all_jobs, step);
            pass(&mut site, 300);
            report(&mut site, &all_jobs, step + 100);
            decide(&mut site, &*packer);
            site.job_stopped(new);
        }
        let plan = decide(&mut site, &*packer);
        assert!(plan.is_empty() && plan.blocked.is_some(), "{name}: {plan:?}");
    }
}

/// A job without a known exclusive speed is not undone.
#[test]
fn wattle_undoes_a_pair_for_a_deadline_that_could_be_met_exclusively() {
    let wattle = policy("wattle").unwrap();
    for (deadline_s, undone) in [(110_000, true), (200_000, false), (50_000, false)] {
        let mut site = cluster(&[1]);
        site.advance_to(Timestamp::from_s(100));
        let deadline = Some(Timestamp::from_s(deadline_s));
        let old = arrive(&mut site, JobFacts { deadline, ..facts("old", 1) }, Some(0));
        report(&mut site, &[old], 0);
        decide(&mut site, &*wattle);
        pass(&mut site, 10);
        let new = arrive(&mut site, facts("new", 1), Some(0));
        learn(&mut site, new, 0);
        report(&mut site, &[old, new], 0);
        decide(&mut site, &*wattle);
        assert!(runs(&site, new), "{deadline_s}");
        report(&mut site, &[old, new], 0);
        // 100,000 steps at 0.7 a second take 142,857 s.
        pass(&mut site, 100);
        report(&mut site, &[old, new], 70);
        let plan = decide(&mut site, &*wattle);
        let taken_off = |d: &Decision| matches!(d, Decision::Undo { job, .. } if *job == new);
        assert_eq!(plan.decisions.iter().any(taken_off), undone, "{deadline_s}: {plan:?}");
    }
}
