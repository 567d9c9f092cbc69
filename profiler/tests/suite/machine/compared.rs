//! The energy of a job against that at the default setting, in the entries of the ledger.

use wattle_common::comparison::ComparedEnergy;
use wattle_common::messages::{Prediction, SurfacePoint};
use wattle_common::units::Energy;
use wattle_common::{Power, Timestamp};
use wattle_testkit as kit;

use super::node::{Node, id};

/// A prediction for a cap, under which the default setting has 2.5 times the energy for a step.
fn capped(cap: Power) -> Prediction {
    let default = kit::point(1, 10.0, 250.0);
    let placed = SurfacePoint { cap_mw: Some(cap), ..kit::point(1, 10.0, 100.0) };
    Prediction {
        at_us: Timestamp::from_s(1_000),
        predictor: kit::predictor("physical"),
        gpu_type: "v100".to_owned(),
        windows: 3,
        basis: None,
        placed: Some(placed),
        alternatives: vec![default],
    }
}

/// The compared energy of job `a` in all entries, and its energy.
fn sums(node: &Node) -> (ComparedEnergy, Energy) {
    let (mut compared, mut energy) = (ComparedEnergy::default(), Energy::ZERO);
    for part in node.ledger.values().flat_map(|entry| &entry.jobs).filter(|job| job.job == id("a"))
    {
        energy += part.energy_mj;
        compared.add(part.compared.unwrap_or_default());
    }
    (compared, energy)
}

fn joules(energy: Energy) -> u64 {
    energy.as_j().round() as u64
}

#[test]
fn energy_is_compared_at_the_setting_that_was_in_force_then() {
    let mut node = Node::new(1);
    node.place("a", 100, &[0]);
    node.draws[0] = Power::from_w(200);
    node.cap(Power::from_w(250));
    node.record_with(&id("a"), Some(capped(Power::from_w(100))));
    // The cap is ordered and not in force yet: nothing is saved.
    node.run(60, &[]);
    node.cap(Power::from_w(100));
    node.draws[0] = Power::from_w(100);
    node.run(60, &[]);
    // Killed and started again: the open interval has its comparison.
    node.crash();
    node.cap(Power::from_w(100));
    node.record_with(&id("a"), Some(capped(Power::from_w(100))));
    node.run(60, &[]);
    // At the default setting again, with a prediction that has no saving.
    node.cap(Power::from_w(250));
    node.record_with(&id("a"), None);
    node.draws[0] = Power::from_w(200);
    node.run(120, &[]);
    let (compared, energy) = sums(&node);
    let saved = compared.saved_mj() / 1e3;
    // 100 W for two minutes, instead of 250 W: less what was read around the changes.
    assert!((17_500.0..=18_000.0).contains(&saved), "{saved} J of {energy}");
    assert!(joules(energy) - joules(compared.energy_mj) < 800, "{compared:?} of {energy}");
}

#[test]
fn shared_gpus_and_unknown_settings_are_not_compared() {
    let mut node = Node::new(1);
    node.place("a", 100, &[0]);
    node.record_with(&id("a"), Some(capped(Power::from_w(100))));
    node.draws[0] = Power::from_w(100);
    // No report of the power agent: the default cap is not known.
    node.run(120, &[]);
    assert_eq!(sums(&node).0, ComparedEnergy::default());
    node.cap(Power::from_w(100));
    node.place("b", 200, &[0]);
    node.run(120, &[]);
    let (compared, energy) = sums(&node);
    assert!(joules(compared.energy_mj) < 200 && joules(energy) > 5_000, "{compared:?} of {energy}");
}
