//! The energy of a job in its record.

use wattle_common::Energy;
use wattle_common::messages::JobEnergy;

use super::*;

fn entry(from: Timestamp, seconds: u64, joules: u64) -> LedgerEntry {
    let until = from + Duration::from_secs(seconds);
    LedgerEntry {
        jobs: vec![JobEnergy {
            job: job_id("a"),
            admission: None,
            energy_mj: Energy::from_j(joules),
            user: None,
            project: None,
        }],
        ..wattle_testkit::ledger_entry("n0", from, until, Energy::ZERO)
    }
}

#[test]
fn each_ledger_entry_counts_once_also_after_the_end_of_the_job() {
    let mut world = World::new(1, 2);
    world.pass(1);
    world.submit(spec("a", 1));
    world.pass(2);
    let start = world.now;
    let metered = |world: &mut World, entry: &LedgerEntry| {
        world.deliver(Event::EnergyMetered(Box::new(entry.clone())));
        world.record("a").energy_mj.map(|energy| energy.as_j().round() as u64)
    };
    let first = entry(start, 60, 500);
    assert_eq!(metered(&mut world, &first), Some(500));
    assert_eq!(metered(&mut world, &first), Some(500), "a repeated entry");
    world.pass(10);
    assert_eq!(world.record("a").phase, JobPhase::Finished);
    let second = entry(first.until_us, 60, 70);
    assert_eq!(metered(&mut world, &second), Some(570));
    let node = NodeId::new("n0").unwrap();
    assert_eq!(world.record("a").energy_until_us[&node], second.until_us);
}
