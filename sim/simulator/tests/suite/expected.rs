//! Expected starts and ends against the runs in which they are computed.

use std::time::Duration;

use wattle_placer::policy;
use wattle_simulator::{ExpectedOutcome, Lengths, RunOptions, Scenario, generator, run_with};
use wattle_world::World;

fn scenario(world: &World, jobs: usize, cluster: &str, seed: u64) -> Scenario {
    let trace = generator::generate(jobs, seed);
    Scenario::from_trace(world, &trace, &cluster.parse().unwrap(), seed).unwrap()
}

fn expected(
    world: &World,
    scenario: &Scenario,
    name: &str,
    options: &RunOptions,
) -> ExpectedOutcome {
    let options = RunOptions { expected_times: true, ..options.clone() };
    let policy = policy(name).unwrap();
    run_with(world, scenario, policy.as_ref(), &options).unwrap().expected.unwrap()
}

/// With exact predictions, known lengths and no later submission, nothing is left to err.
#[test]
fn forecasts_under_fifo_are_exact_without_later_submissions() {
    let world = World::builtin();
    let mut of = scenario(&world, 80, "2x8:v100", 3);
    for job in &mut of.jobs {
        job.submit = Duration::ZERO;
    }
    let options = RunOptions { oracle: true, lengths: Lengths::Known, ..RunOptions::default() };
    let errors = expected(&world, &of, "fifo", &options);
    let [starts, ends] = [&errors.start_at_submission, &errors.end_at_submission];
    assert!(starts.forecasts >= 70 && ends.forecasts >= 75, "{errors:?}");
    // Lengths are rounded to steps, and errors are in bins of a quarter of a doubling.
    for errors in [starts, ends] {
        assert!(errors.error_s_p90.unwrap() < 3.0, "{errors:?}");
        assert!(errors.coverage.unwrap() > 0.999, "{errors:?}");
    }
}

/// Limits that are far above the lengths make the forecasts by limits too late, and predictions are not.
#[test]
fn forecasts_by_time_limits_are_too_late_by_what_the_limits_exceed() {
    let world = World::builtin();
    let mut trace = generator::generate(60, 3);
    for job in &mut trace.jobs {
        job.time_limit = Some(10 * job.duration + Duration::from_hours(1));
    }
    let mut of = Scenario::from_trace(&world, &trace, &"2x8:v100".parse().unwrap(), 3).unwrap();
    for job in &mut of.jobs {
        job.submit = Duration::ZERO;
    }
    let options = RunOptions { oracle: true, lengths: Lengths::Known, ..RunOptions::default() };
    let errors = expected(&world, &of, "backfill", &options);
    let [own, limits] = [&errors.start_at_submission, &errors.start_at_submission_by_limits];
    assert_eq!(own.forecasts, limits.forecasts, "{errors:?}");
    let [own_s, limits_s] = [own, limits].map(|errors| errors.error_s_median.unwrap());
    assert!(limits_s > 2.0 * own_s + 600.0, "{errors:?}");
    assert!(limits.coverage.unwrap() > 0.9, "{errors:?}");
}

#[test]
fn forecasts_change_no_schedule() {
    let world = World::builtin();
    let mut of = scenario(&world, 60, "2x8:v100", 4);
    of.set_load(&world, 0.9).unwrap();
    for name in ["fifo", "wattle"] {
        let policy = policy(name).unwrap();
        let run = |expected_times| {
            let options = RunOptions { expected_times, ..RunOptions::default() };
            run_with(&world, &of, policy.as_ref(), &options).unwrap()
        };
        assert_eq!(run(false).jct_s_mean, run(true).jct_s_mean, "{name}");
    }
}
