//! Priority under every policy.

use std::time::Duration;

use crate::support::Site;
use wattle_baselines::{NAMES, policy};
use wattle_placer::{JobFacts, JobKey, State};

use crate::policies::helpers::{arrive, cluster, decide, facts};

fn runs(site: &Site, key: JobKey) -> bool {
    matches!(site.job(key).unwrap().state, State::Running { .. })
}

fn settled(site: &mut Site, name: &str) {
    for _ in 0..8 {
        decide(site, &*policy(name).unwrap());
        site.complete_stops();
    }
}

#[test]
fn the_job_with_priority_goes_first_when_a_gpu_is_free() {
    for name in NAMES {
        let mut site = cluster(&[1]);
        // A job without a profile does not share.
        let first = arrive(&mut site, JobFacts { can_stop: false, ..facts("first", 1) }, Some(2));
        settled(&mut site, name);
        assert!(runs(&site, first), "{name}");
        let late = Duration::from_secs(60);
        site.pass(late);
        let mine = |name: &str, priority| JobFacts {
            exclusive: true,
            priority,
            submitted_at: site.now(),
            ..facts(name, 1)
        };
        let (low, high) = (mine("low", 0), mine("high", 1));
        let low = arrive(&mut site, low, Some(2));
        let high = arrive(&mut site, high, Some(2));
        settled(&mut site, name);
        assert!(!runs(&site, low) && !runs(&site, high), "{name}");
        site.job_ended(first);
        settled(&mut site, name);
        assert!(runs(&site, high) && !runs(&site, low), "{name}");
    }
}

#[test]
fn priority_preempts_where_a_policy_preempts() {
    for name in ["srtf", "tiresias", "afs", "powerflow", "greenflow", "wattle"] {
        let mut site = cluster(&[2]);
        let known = |name: &str, gpus, priority, hours: u64| JobFacts {
            priority,
            exclusive: true,
            duration_alone: Some(Duration::from_secs(3_600 * hours)),
            ..facts(name, gpus)
        };
        let low = arrive(&mut site, known("low", 2, 0, 1), Some(2));
        settled(&mut site, name);
        assert!(runs(&site, low), "{name}");
        // A longer job of equal size: only its priority justifies the preemption.
        site.pass(Duration::from_secs(600));
        let high = arrive(&mut site, known("high", 2, 5, 9), Some(2));
        settled(&mut site, name);
        assert!(runs(&site, high) && !runs(&site, low), "{name}");
    }
}
