//! The saving on recorded schedules whose times and durations differ: suspended jobs, and clocks that
//! change.

use wattle_saving::estimate::{SavingBound, SavingEstimate, SavingInput, SavingOptions, estimate};
use wattle_simulator::{Restartable, trace};
use wattle_world::World;

const HEADER: &str =
    "JobID|JobName|User|Submit|Start|End|Elapsed|State|AllocTRES|NNodes|NodeList\n";

/// The saving of an export on the cluster that it shows, without sleeping nodes.
fn made(rows: &str) -> SavingEstimate {
    let world = World::builtin();
    let trace = trace::parse("s.txt", format!("{HEADER}{rows}").as_bytes()).unwrap();
    let cluster = trace::infer(&world, &trace).unwrap().shape;
    let input = SavingInput {
        world: &world,
        trace: &trace,
        cluster: &cluster,
        carbon: None,
        prices: None,
        restartable: &Restartable::None,
    };
    let bound = SavingBound::MaxSlowdown(0.05);
    let (sleep, seeds, threads) = (false, 2, 2);
    let options = SavingOptions { bound, sleep, seeds, threads, ..SavingOptions::default() };
    estimate(&input, options, &mut |_, _| ()).unwrap()
}

fn saved_kwh(rows: &str) -> f64 {
    made(rows).saved.energy_kwh
}

fn job(id: u32, start: &str, end: &str, elapsed: &str) -> String {
    format!("{id}|train{id}|u|{start}|{start}|{end}|{elapsed}|COMPLETED|gres/gpu:a100=8|1|n1\n")
}

fn assert_same(one: f64, other: f64) {
    assert!((one - other).abs() < 0.02 * other.abs().max(0.1), "{one} against {other} kWh");
}

#[test]
fn the_time_of_a_suspension_is_no_saving() {
    let last = job(2, "1715018400", "1715025600", "02:00:00");
    let suspended = job(1, "1714982400", "1715018400", "02:00:00") + &last;
    let not = job(1, "1714982400", "1714989600", "02:00:00") + &last;
    let (suspended, not) = (made(&suspended), made(&not));
    assert_same(suspended.saved.energy_kwh, not.saved.energy_kwh);
    let assumed = |made: &SavingEstimate| made.assumptions.join("\n");
    assert!(assumed(&suspended).contains("1 job for 8.0 h"), "{}", assumed(&suspended));
    assert!(!assumed(&not).contains("Suspended"), "{}", assumed(&not));
}

#[test]
fn an_export_in_local_time_saves_what_the_one_in_seconds_saves() {
    let spring = job(1, "2024-03-31T00:00:00", "2024-03-31T05:00:00", "04:00:00")
        + &job(2, "2024-03-31T05:00:00", "2024-03-31T09:00:00", "04:00:00");
    let seconds = job(1, "1711839600", "1711854000", "04:00:00")
        + &job(2, "1711854000", "1711868400", "04:00:00");
    assert_same(saved_kwh(&spring), saved_kwh(&seconds));
}

/// Parts interact, so that two of them can each be more than half of the saving.
#[test]
fn most_of_a_saving_is_of_one_part() {
    let mut made = made(&job(1, "1714982400", "1714989600", "02:00:00"));
    (made.saved.energy_kwh, made.saved.energy_kwh_low) = (340.0, 300.0);
    (made.parts.sleep, made.parts.settings) = (190.0, 190.0);
    assert!(!made.conclusion().contains("Most of it"), "{}", made.conclusion());
    made.parts.settings = 100.0;
    assert!(made.conclusion().contains("Most of it"), "{}", made.conclusion());
}
