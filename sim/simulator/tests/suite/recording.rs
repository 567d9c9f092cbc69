//! A recording does not change the run, and agrees with the meter and the outcome.

use wattle_baselines::policy;
use wattle_simulator::{
    PolicyOutcome, Recording, RunOptions, Scenario, generator, run_recorded, run_with,
    run_with_progress,
};
use wattle_world::World;

fn recorded(name: &str, options: &RunOptions) -> (PolicyOutcome, PolicyOutcome, Recording) {
    let world = World::builtin();
    let trace = generator::generate(120, 7);
    let mut scenario =
        Scenario::from_trace(&world, &trace, &"4x8:v100".parse().unwrap(), 7).unwrap();
    scenario.set_load(&world, 0.8).unwrap();
    let policy = policy(name).unwrap();
    let plain = run_with(&world, &scenario, policy.as_ref(), options).unwrap();
    let (outcome, recording) =
        run_recorded(&world, &scenario, policy.as_ref(), options, &mut |_, _| ()).unwrap();
    (plain, outcome, recording)
}

#[test]
fn progress_reports_each_job_end_and_does_not_change_the_run() {
    let world = World::builtin();
    let trace = generator::generate(40, 7);
    let scenario = Scenario::from_trace(&world, &trace, &"2x8:v100".parse().unwrap(), 7).unwrap();
    let (policy, options) = (policy("fifo").unwrap(), RunOptions::default());
    let mut received = Vec::new();
    let mut progress = |ended, of| received.push((ended, of));
    let outcome =
        run_with_progress(&world, &scenario, policy.as_ref(), &options, &mut progress).unwrap();
    assert_eq!(received, (1..=40).map(|ended| (ended, 40)).collect::<Vec<_>>());
    assert_eq!(outcome, run_with(&world, &scenario, policy.as_ref(), &options).unwrap());
}

fn close(a: f64, b: f64, within: f64) {
    assert!((a - b).abs() <= within * b.abs().max(1e-9), "{a} is not {b}");
}

fn agrees(outcome: &PolicyOutcome, recording: &Recording) {
    let span_s = (recording.until_us - recording.from_us) as f64 / 1e6;
    close(span_s, outcome.makespan_s, 1e-9);
    assert!(recording.levels.len() <= 2_048);
    let level_s = recording.level_us as f64 / 1e6;
    let mut rest_s = span_s;
    let (mut energy_j, mut awake, mut waited_s, mut busy) = (0.0, 0.0, 0.0, 0.0);
    for level in &recording.levels {
        let s = level_s.min(rest_s);
        rest_s -= s;
        energy_j += level.power_w * s;
        awake += level.awake_nodes * s / span_s;
        waited_s += level.queued * s;
        busy += level.busy_gpus * s / span_s / 32.0;
    }
    assert!(rest_s < 1e-3, "{rest_s} s are missing");
    close(energy_j / 3.6e6, outcome.energy_kwh, 1e-6);
    close(awake, outcome.awake_nodes_mean, 1e-4);
    close(busy, outcome.gpu_utilization_mean, 1e-4);
    close(waited_s / outcome.jobs as f64, outcome.wait_s_mean.unwrap(), 1e-4);
    let mut ran_s = 0.0;
    for job in &recording.jobs {
        let finished = job.finished_us.unwrap();
        assert_eq!(job.placements.last().unwrap().until_us, finished);
        assert!(job.placements[0].from_us >= job.submit_us);
        assert!(job.placements.windows(2).all(|pair| pair[0].until_us <= pair[1].from_us));
        for placement in &job.placements {
            ran_s += (placement.until_us - placement.from_us) as f64 / 1e6;
            assert!(placement.on.gpu_count() >= job.request.min);
            assert!(!placement.reason.to_string().is_empty());
        }
    }
    close(ran_s / outcome.jobs as f64, outcome.runtime_s_mean.unwrap(), 1e-6);
    let asleep_s: f64 = recording
        .sleep_intervals
        .iter()
        .map(|interval| (interval.until_us - interval.from_us) as f64 / 1e6)
        .sum();
    let nodes = recording.nodes.len() as f64;
    close(nodes - asleep_s / span_s, outcome.awake_nodes_mean, 1e-4);
    assert_eq!(recording.left_out, 0);
}

#[test]
fn recording_leaves_results_unchanged_and_is_consistent() {
    let (plain, outcome, recording) = recorded("fifo", &RunOptions::default());
    assert_eq!(plain, outcome);
    agrees(&outcome, &recording);
    assert!(recording.sleep_intervals.is_empty());
    // A queued job has the placer's reason.
    let waited = recording.jobs.iter().find_map(|job| job.wait_reason.as_ref()).unwrap();
    assert!(waited.to_string().contains("requests"), "{waited}");
}

#[test]
fn sleep_intervals_and_preemptions_are_recorded() {
    let options = RunOptions { oracle: true, nodes_sleep: true, ..RunOptions::default() };
    let (plain, outcome, recording) = recorded("afs", &options);
    assert_eq!(plain, outcome);
    agrees(&outcome, &recording);
    assert!(!recording.sleep_intervals.is_empty());
    let placements: usize = recording.jobs.iter().map(|job| job.placements.len()).sum();
    assert_eq!(placements, outcome.jobs + outcome.migrations);
    let stopped = |job: &&wattle_simulator::RecordedJob| job.placements.len() > 1;
    let stopped = recording.jobs.iter().find(stopped).unwrap();
    assert!(stopped.placements[0].stopped.is_some());
}
