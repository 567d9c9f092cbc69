//! Who has priority is served first, whatever the policy.

use std::time::Duration;

use wattle_placer::policies::NAMES;
use wattle_placer::{JobFacts, JobKey, Problem, State, policy};

use crate::policies::helpers::{arrive, cluster, decide, facts, stopping};

fn runs(problem: &Problem, key: JobKey) -> bool {
    matches!(problem.job(key).unwrap().state, State::Running { .. })
}

fn settled(problem: &mut Problem, name: &str) {
    for _ in 0..8 {
        decide(problem, &*policy(name).unwrap());
        stopping(problem).iter().for_each(|&key| problem.job_stopped(key));
    }
}

#[test]
fn whoever_has_priority_goes_first_when_a_gpu_is_free() {
    for name in NAMES {
        let mut problem = cluster(&[1]);
        // Nobody shares a GPU of whom nothing is known.
        let first =
            arrive(&mut problem, JobFacts { can_stop: false, ..facts("first", 1) }, Some(2));
        settled(&mut problem, name);
        assert!(runs(&problem, first), "{name}");
        let late = Duration::from_secs(60);
        problem.now = problem.now + late;
        let mine = |name: &str, priority| JobFacts {
            exclusive: true,
            priority,
            submitted_at: problem.now,
            ..facts(name, 1)
        };
        let (low, high) = (mine("low", 0), mine("high", 1));
        let low = arrive(&mut problem, low, Some(2));
        let high = arrive(&mut problem, high, Some(2));
        settled(&mut problem, name);
        assert!(!runs(&problem, low) && !runs(&problem, high), "{name}");
        problem.job_ended(first);
        settled(&mut problem, name);
        assert!(runs(&problem, high) && !runs(&problem, low), "{name}");
    }
}

#[test]
fn who_has_priority_takes_gpus_where_a_policy_takes_any() {
    for name in ["srtf", "tiresias", "afs", "powerflow", "greenflow", "wattle"] {
        let mut problem = cluster(&[2]);
        let known = |name: &str, gpus, priority, hours: u64| JobFacts {
            priority,
            exclusive: true,
            duration_alone: Some(Duration::from_secs(3_600 * hours)),
            ..facts(name, gpus)
        };
        let low = arrive(&mut problem, known("low", 2, 0, 1), Some(2));
        settled(&mut problem, name);
        assert!(runs(&problem, low), "{name}");
        // Longer, and with as much: nothing but its priority speaks for it.
        problem.now = problem.now + Duration::from_secs(600);
        let high = arrive(&mut problem, known("high", 2, 5, 9), Some(2));
        settled(&mut problem, name);
        assert!(runs(&problem, high) && !runs(&problem, low), "{name}");
    }
}
