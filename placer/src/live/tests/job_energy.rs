//! The energy of a job in its record.

use std::time::Duration;

use wattle_common::comparison::ComparedEnergy;
use wattle_common::job::JobPhase;
use wattle_common::messages::{JobEnergy, UnknownCause, UnknownEnergy};
use wattle_common::{AdmissionId, Energy};

use super::*;
use crate::live::tests::world::World;

fn entry(from: Timestamp, seconds: u64, joules: u64) -> LedgerEntry {
    let until = from + Duration::from_secs(seconds);
    LedgerEntry {
        jobs: vec![JobEnergy {
            job: job_id("a"),
            admission: None,
            energy_mj: Energy::from_j(joules),
            user: None,
            project: None,
            compared: Some(ComparedEnergy {
                energy_mj: Energy::from_j(joules),
                energy_mj_default: Energy::from_j(2 * joules),
                ..ComparedEnergy::default()
            }),
        }],
        ..wattle_testkit::ledger_entry("n0", from, until, Energy::ZERO)
    }
}

/// Time of a GPU of `a` without a meter, of this submission.
fn no_meter(from_us: Timestamp, until_us: Timestamp, of: Option<&AdmissionId>) -> UnknownEnergy {
    UnknownEnergy {
        gpu: 0,
        cause: UnknownCause::NoMeter,
        from_us,
        until_us,
        energy_mj: Energy::ZERO,
        unmeasured: true,
        estimate_mj: None,
        jobs: vec![job_id("a")],
        admissions: of.map(|of| (job_id("a"), of.clone())).into_iter().collect(),
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
    let compared = world.record("a").compared.unwrap();
    assert!((compared.saved_mj() - 570_000.0).abs() < 1e-6, "once for each entry: {compared:?}");
    let node = NodeId::new("n0").unwrap();
    assert_eq!(world.record("a").energy_until_us[&node], second.until_us);
}

#[test]
fn gpu_time_without_a_meter_is_recorded_once_and_is_no_energy() {
    let mut world = World::new(1, 2);
    world.pass(1);
    world.submit(spec("a", 2));
    world.pass(2);
    let from = world.now;
    let until = from + Duration::from_secs(60);
    let unmetered = LedgerEntry {
        jobs: Vec::new(),
        unknown: vec![no_meter(from, until, None)],
        energy_mj_gpus: vec![None, None],
        ..entry(from, 60, 0)
    };
    for _ in 0..2 {
        world.deliver(Event::EnergyMetered(Box::new(unmetered.clone())));
        let record = world.record("a");
        assert_eq!((record.energy_mj, record.unmetered_ms), (None, 60_000), "also if repeated");
    }
    // One of two GPUs has a meter.
    let partly = LedgerEntry {
        unknown: vec![no_meter(until, until + Duration::from_secs(60), None)],
        energy_mj_gpus: vec![None, Some(Energy::from_j(500))],
        ..entry(until, 60, 500)
    };
    world.deliver(Event::EnergyMetered(Box::new(partly)));
    let record = world.record("a");
    assert_eq!((record.energy_mj, record.unmetered_ms), (Some(Energy::from_j(500)), 120_000));
}

#[test]
fn gpu_time_without_a_meter_counts_for_its_own_submission() {
    let mut world = World::new(1, 2);
    world.pass(1);
    world.submit(spec("a", 2));
    world.pass(2);
    let own = world.record("a").admission.clone().expect("the placer gives one");
    let before = AdmissionId::accepted(Timestamp::from_s(1), 1);
    let mut from = world.now;
    let mut counted = |of: Option<&AdmissionId>| {
        let until = from + Duration::from_secs(60);
        let unmetered = LedgerEntry {
            jobs: Vec::new(),
            unknown: vec![no_meter(from, until, of)],
            energy_mj_gpus: vec![None],
            ..entry(from, 60, 0)
        };
        from = until;
        world.deliver(Event::EnergyMetered(Box::new(unmetered)));
        world.record("a").unmetered_ms
    };
    assert_eq!(counted(Some(&before)), 0, "an earlier submission of the name");
    assert_eq!(counted(Some(&own)), 60_000);
    assert_eq!(counted(None), 120_000, "an earlier version names none");
}
