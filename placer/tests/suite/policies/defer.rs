//! Carbon deferral: which jobs wait for a cleaner grid, and how long.

use std::sync::Arc;
use std::time::Duration;

use crate::support::Site;
use proptest::prelude::*;
use wattle_baselines::policy;
use wattle_common::Timestamp;
use wattle_placer::power::budget::GridForecast;
use wattle_placer::{Decision, JobFacts, JobKey, Progress, Stage, State, check, solve};

use crate::policies::helpers::{arrive, cluster, facts};

const HOUR: u64 = 3_600;

/// A forecast at `now`: dirty for the first hours, then clean, for a day.
fn outlook(now: Timestamp, dirty_hours: u64) -> Option<Arc<GridForecast>> {
    let g = |hour: u64| if hour < dirty_hours { 400.0 } else { 100.0 };
    let expected = (0..24).map(|h| (now + Duration::from_secs(h * HOUR), g(h))).collect();
    Some(Arc::new(GridForecast {
        now: g(0),
        until: now + Duration::from_secs(24 * HOUR),
        expected,
    }))
}

fn patient(name: &str, slack_h: u64) -> JobFacts {
    JobFacts { slack: Some(Duration::from_secs(slack_h * HOUR)), ..facts(name, 1) }
}

fn step(site: &mut Site, policy: &str) -> Option<Timestamp> {
    let policy = self::policy(policy).unwrap();
    for _ in 0..20 {
        let plan = site.plan(&*policy);
        assert_eq!(check(site.input(), &plan), [], "{plan:?}");
        site.apply(&plan);
        site.complete_stops();
        if plan.is_empty() {
            return plan.again_at;
        }
    }
    panic!("{} does not converge", policy.name());
}

fn runs(site: &Site, key: JobKey) -> bool {
    site.job(key).is_some_and(|job| matches!(job.state, State::Running { .. }))
}

#[test]
fn jobs_with_slack_wait_while_the_grid_is_dirty() {
    for name in ["fifo", "eaco", "powerflow", "wattle", "tiresias"] {
        let mut site = cluster(&[1]);
        let waits = arrive(&mut site, patient("waits", 8), Some(0));
        let goes = arrive(&mut site, facts("goes", 1), Some(0));
        site.limits.grid = outlook(site.now(), 4);
        let again = step(&mut site, name);
        assert!(!runs(&site, waits) && runs(&site, goes), "{name}");
        assert!(again.is_some_and(|at| at <= Timestamp::from_s(8 * HOUR)), "{name}: {again:?}");
        let reports = solve(&*policy(name).unwrap(), site.input()).reports;
        assert_eq!(reports.held_back().collect::<Vec<_>>(), [(Stage::CarbonDeferral, waits)]);
        // The grid is clean: the job starts.
        site.job_ended(goes);
        site.advance_to(Timestamp::from_s(4 * HOUR));
        site.limits.grid = outlook(site.now(), 0);
        step(&mut site, name);
        assert!(runs(&site, waits), "{name}");
    }
}

#[test]
fn no_job_waits_for_a_clean_grid_beyond_its_patience() {
    let starts = |slack_h: u64, grid: Option<Arc<GridForecast>>, now_h: u64| {
        let mut site = cluster(&[1]);
        let key = arrive(&mut site, patient("a", slack_h), Some(0));
        site.advance_to(Timestamp::from_s(now_h * HOUR));
        site.limits.grid = grid;
        step(&mut site, "fifo");
        runs(&site, key)
    };
    assert!(!starts(8, outlook(Timestamp::EPOCH, 4), 0), "it is worth waiting");
    assert!(starts(8, None, 0), "nothing is known of the grid");
    assert!(
        starts(3, outlook(Timestamp::EPOCH, 4), 0),
        "its patience ends before the grid is clean"
    );
    assert!(starts(48, outlook(Timestamp::EPOCH, 4), 24), "the signal is a day old");
    assert!(starts(48, outlook(Timestamp::EPOCH, 24), 0), "every instant is as dirty as this");
    // The forecast was wrong and stays wrong: patience ends all the same.
    assert!(!starts(8, outlook(Timestamp::from_s(6 * HOUR), 1), 6));
    assert!(starts(8, outlook(Timestamp::from_s(8 * HOUR), 1), 8));
}

#[test]
fn a_running_job_pauses_at_the_end_of_its_epoch() {
    let mut site = cluster(&[1]);
    let key = arrive(&mut site, patient("a", 8), Some(0));
    step(&mut site, "fifo");
    let report = |site: &mut Site, step: u64| {
        let progress = Progress {
            at: site.now(),
            step,
            steps_total: Some(1_000_000),
            steps_per_epoch: Some(1_000),
            steps_per_s: Some(1.0),
            ..Progress::default()
        };
        site.job_progressed(key, progress);
    };
    site.advance_to(Timestamp::from_s(2_400));
    report(&mut site, 2_400);
    site.limits.grid = outlook(site.now(), 4);
    let again = step(&mut site, "fifo");
    assert!(runs(&site, key), "in the middle of an epoch");
    assert_eq!(again, Some(Timestamp::from_s(3_000)), "when the epoch ends");
    site.advance_to(Timestamp::from_s(3_000));
    step(&mut site, "fifo");
    assert!(!runs(&site, key));
    let fixed = JobFacts { can_stop: false, ..patient("fixed", 8) };
    let mut site = cluster(&[1]);
    let fixed = arrive(&mut site, fixed, Some(0));
    step(&mut site, "fifo");
    site.advance_to(Timestamp::from_s(2_400));
    site.limits.grid = outlook(site.now(), 4);
    step(&mut site, "fifo");
    assert!(runs(&site, fixed), "it cannot be stopped");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Whatever the forecast error, deferral causes no missed deadline and never exceeds the slack.
    #[test]
    fn no_deadline_is_missed_by_deferral(
        lasts in 600u64..50_000,
        margin in 1.3f64..5.0,
        slack_h in 1u64..60,
        hours in prop::collection::vec(0u64..24, 100),
        epoch in 100u64..5_000,
    ) {
        let mut site = cluster(&[1]);
        let deadline = Timestamp::from_s((lasts as f64 * margin) as u64 + 120);
        let facts = JobFacts {
            deadline: Some(deadline),
            duration_alone: Some(Duration::from_secs(lasts)),
            ..patient("a", slack_h)
        };
        // Only the owner's duration is known: one step per second.
        let key = arrive(&mut site, facts, None);
        let (mut done, mut waited, mut starts) = (0u64, 0u64, 0u64);
        let minute = 60;
        for tick in 0u64.. {
            site.advance_to(Timestamp::from_s(tick * minute));
            if tick % 60 == 0 {
                let which = usize::try_from(tick / 60).unwrap() % hours.len();
                site.limits.grid = outlook(site.now(), hours[which]);
            }
            let before = runs(&site, key);
            step(&mut site, "fifo");
            if runs(&site, key) {
                starts += u64::from(!before);
                // A restart costs half a minute; here a full minute is lost.
                let lost = u64::from(!before && starts > 1);
                done += minute * (1 - lost);
                let progress = Progress {
                    at: site.now() + Duration::from_secs(minute),
                    step: done,
                    steps_total: Some(lasts),
                    steps_per_epoch: Some(epoch),
                    steps_per_s: Some(1.0),
                    ..Progress::default()
                };
                site.job_progressed(key, progress);
            } else {
                waited += minute;
            }
            if done >= lasts {
                break;
            }
            prop_assert!(tick < 20_000);
        }
        prop_assert!(waited <= slack_h * HOUR + 2 * minute, "waited {waited} s");
        prop_assert!(site.now() + Duration::from_secs(minute) <= deadline + Duration::from_secs(2 * minute),
            "{} after {deadline}; {starts} starts", site.now());
    }
}

/// A deadline bounds the deferral by the run time at the slowest setting. A fixed setting with unknown
/// effect prevents deferral.
#[test]
fn a_job_that_may_be_slowed_waits_less_before_its_deadline() {
    let waits = |name: &str, price: f64, deadline_s: u64| {
        let mut site = cluster(&[1]);
        (site.limits.price, site.limits.price_sets_clocks) = (price, price > 0.0);
        let facts = JobFacts {
            deadline: Some(Timestamp::from_s(deadline_s)),
            duration_alone: Some(Duration::from_secs(10 * HOUR)),
            ..patient("a", 12)
        };
        let key = arrive(&mut site, facts, Some(2));
        site.limits.grid = outlook(site.now(), 4);
        step(&mut site, name);
        !runs(&site, key)
    };
    // Four hours until the grid is clean plus 1.25 times ten hours: 16.5 h. At the lowest clock the
    // speed is 0.85: 18.7 h.
    for (deadline_h, usual, slower) in [(16, false, false), (18, true, false), (20, true, true)] {
        let deadline_s = deadline_h * HOUR;
        assert_eq!(waits("fifo", 0.0, deadline_s), usual, "{deadline_h} h");
        assert_eq!(waits("fifo", 0.3, deadline_s), slower, "{deadline_h} h, priced");
        assert_eq!(waits("powerflow", 0.3, deadline_s), slower, "{deadline_h} h");
        assert_eq!(waits("wattle", 1e-3, deadline_s), slower, "{deadline_h} h");
        assert!(!waits("fifo@825", 0.0, deadline_s) && !waits("fifo+zeus", 0.0, deadline_s));
    }
}

#[test]
fn the_reason_states_the_end_of_the_wait() {
    let mut site = cluster(&[1]);
    arrive(&mut site, patient("a", 8), Some(0));
    site.limits.grid = outlook(site.now(), 4);
    let plan = site.plan(&*policy("fifo").unwrap());
    let starts = |decision: &Decision| matches!(decision, Decision::Start { .. });
    assert!(!plan.decisions.iter().any(starts));
    let reason = plan.blocked.unwrap().reason.to_string();
    assert_eq!(
        reason,
        "deferred until 1970-01-01 08:00:00 UTC at the latest: grid at 400 g/kWh, expected to fall to 100 g/kWh"
    );
}
