//! Changes over seeds, computed by hand from the runs.

use std::path::PathBuf;

use wattle_placer::policy;
use wattle_saving::seeds::{SeedStudy, changes};
use wattle_simulator::{RunOptions, Scenario, gather, run_with, trace};
use wattle_world::World;

/// The demo's Slurm export under three seeds: changes equal those computed by hand from the runs.
#[test]
fn changes_on_a_slurm_export_have_the_spread_of_its_runs() {
    let world = World::builtin();
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy/demo/sacct.txt");
    let mut trace = trace::read(&path).unwrap();
    assert!(trace.jobs.len() > 200, "{trace:?}");
    trace.jobs.truncate(100);
    let cluster = "4x8:a100".parse().unwrap();
    let runs: Vec<_> = (1..=3)
        .map(|seed| {
            let scenario = Scenario::from_trace(&world, &trace, &cluster, seed).unwrap();
            assert!(scenario.load.is_some_and(|load| (0.3..1.5).contains(&load)), "{scenario:?}");
            ["fifo", "eaco"]
                .map(|name| {
                    run_with(&world, &scenario, &*policy(name).unwrap(), &RunOptions::default())
                        .unwrap()
                })
                .to_vec()
        })
        .collect();
    let all = changes(&runs);
    let [saving] = &all[..] else { panic!("{all:?}") };
    assert_eq!((saving.policy.as_str(), saving.baseline.as_str()), ("eaco", "fifo"));
    let mut energy: Vec<f64> =
        runs.iter().map(|runs| runs[1].energy_kwh / runs[0].energy_kwh - 1.0).collect();
    energy.sort_by(f64::total_cmp);
    let spread = saving.energy.unwrap();
    assert!((spread.min - energy[0]).abs() < 1e-5 && (spread.max - energy[2]).abs() < 1e-5);
    assert!((spread.mean - energy.iter().sum::<f64>() / 3.0).abs() < 1e-5, "{spread:?}");
    assert!(spread.min < spread.max, "seeds draw other workloads: {spread:?}");
    assert_eq!(saving.carbon, None);
    let scenario = Scenario::from_trace(&world, &trace, &cluster, 1).unwrap();
    let outcome = gather(&scenario, runs[0].clone());
    let table = SeedStudy { outcome, changes: all }.to_table();
    assert!(table.contains("eaco against fifo over 3 seeds: energy "), "{table}");
    let mut lines = table.lines().filter(|line| !line.starts_with("note: "));
    assert!(lines.all(|line| line.chars().count() <= 80), "{table}");
}
