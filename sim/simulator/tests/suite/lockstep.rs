//! The simulator and the live placer are the same decision code: on the same trace they make the same
//! decisions, at the same instants and for the same reasons.
//!
//! [`observed`] records the input of each planning round of a simulated run. [`live`] drives the state
//! machine of the live placer with messages of that content: submissions, completions, surfaces, progress
//! and ledger entries, at the instants of the simulation. Compared are the starts and stops with their
//! reasons, and at each planning round the GPUs, caps and clocks of all jobs, the energy price and the power
//! limits.
//!
//! Not compared:
//! * the caps that power agents apply: the simulator's hardware is not visible from outside. Both compute
//!   them by the same function ([`wattle_placer::controller::Controller::gpu_setting`]);
//! * node sleep: the live placer waits for reports of a node that falls asleep, the simulated node sleeps
//!   at once (`placer/src/live/tests/node_sleep.rs` covers the live part);
//! * the correction of predicted power by measured power: the recording has no power of each GPU. So a power limit
//!   is compared on true surfaces, which measurements confirm (`placer/src/live/tests/measured_power.rs` covers the
//!   live part).

mod live;
mod observed;

use std::fs;
use std::path::Path;
use std::time::Duration;

use wattle_common::Budget;
use wattle_simulator::{RunOptions, Scenario, Work, run_recorded, trace};
use wattle_world::World;

use live::{Made, replay, simulated};
use observed::{ObservedPolicy, Round};

/// The first submission: later than zero, so that ledger entries can precede it.
const START: Duration = Duration::from_secs(1_000);

const TRACE: &str = "job_id,submit_s,duration_s,num_gpus,vc\n\
    a,0,9000,4,x\nb,60,1800,4,x\nc,120,7200,8,x\nd,180,600,1,x\ne,4000,30000,2,x\n\
    f,4000,1200,8,x\ng,9000,60,16,x\nh,20000,4000,3,x\n";

/// More jobs than GPUs at once, in two hours.
const CROWDED: &str = "job_id,submit_s,duration_s,num_gpus,vc\n\
    a,0,3000,2,x\nb,10,1800,2,x\nc,20,2400,4,x\nd,30,600,1,x\ne,40,3000,2,x\n\
    f,300,1200,4,x\ng,400,900,1,x\nh,900,1500,2,x\ni,1800,700,4,x\n";

fn scenario(world: &World, trace: &str, cluster: &str) -> Scenario {
    let trace = trace::parse("lockstep.csv", trace.as_bytes()).unwrap();
    let mut scenario = Scenario::from_trace(world, &trace, &cluster.parse().unwrap(), 7).unwrap();
    scenario.jobs.iter_mut().for_each(|job| job.submit += START);
    scenario
}

/// Runs a scenario in the simulator and with the live placer, and compares. Returns the decisions.
fn assert_lockstep(world: &World, scenario: &Scenario, name: &str, options: &RunOptions) -> Made {
    let observed = ObservedPolicy::new(name);
    let (outcome, recording) =
        run_recorded(world, scenario, &observed, options, &mut |_, _| {}).unwrap();
    assert_eq!(outcome.finished, scenario.jobs.len(), "{name}: {:?}", outcome.notes);
    let rounds = observed.rounds();
    let (decided, by_simulator) = (simulated(&recording), &rounds);
    let (made, by_live) = replay(world, scenario, name, options, &recording, by_simulator);
    // The first round of an instant shows what the last plan left in force.
    for pair in by_simulator.chunk_by(|a, b| a.at == b.at) {
        let round: &Round = &pair[0];
        let same = by_live.iter().find(|other| other.at == round.at);
        let same = same.unwrap_or_else(|| panic!("{name}: no live round at {}", round.at));
        assert_eq!(same.held(), round.held(), "{name} at {}", round.at);
        assert_eq!(same.limits(), round.limits(), "{name} at {}", round.at);
    }
    let only = |a: &Made, b: &Made| a.difference(b).cloned().collect::<Vec<_>>();
    assert_eq!(only(&decided, &made), [], "{name}: decided in the simulator only");
    assert_eq!(only(&made, &decided), [], "{name}: decided live only");
    decided
}

fn stops(made: &Made) -> usize {
    made.iter().filter(|made| made.2.starts_with("taken off")).count()
}

#[test]
fn simulator_and_live_placer_make_the_same_decisions() {
    let world = World::builtin();
    let mut scenario = scenario(&world, TRACE, "2x8:v100");
    // Live jobs have no other limits.
    for job in &mut scenario.jobs {
        let Work::Lasts(span) = job.work else { unreachable!("the trace has durations") };
        job.time_limit = Some(2 * span);
    }
    let mut made = Vec::new();
    for name in ["fifo", "backfill", "tiresias", "tiresias:3600"] {
        made.push(assert_lockstep(&world, &scenario, name, &RunOptions::default()));
        assert_eq!(stops(&made[made.len() - 1]) > 0, name.starts_with("tiresias"), "{name}");
    }
    assert_ne!(made[0], made[1], "a job is backfilled");
}

/// With the predictor's surfaces, progress reports and early observation.
#[test]
fn policies_that_read_surfaces_make_the_same_decisions() {
    let world = World::builtin();
    let mut scenario = scenario(&world, CROWDED, "2x4:v100");
    scenario.jobs[4].can_stop = false;
    for job in &mut scenario.jobs {
        job.gpus.max = 4;
    }
    for name in ["eaco", "gandiva", "afs", "powerflow", "wattle"] {
        let made = assert_lockstep(&world, &scenario, name, &RunOptions::default());
        assert!(made.len() >= scenario.jobs.len(), "{name}");
    }
}

#[test]
fn a_power_limit_leads_to_the_same_decisions() {
    let world = World::builtin();
    let scenario = scenario(&world, CROWDED, "2x4:v100");
    let budget = Budget::from_human(None, None, Some(1.5), None).unwrap();
    let options = RunOptions { budget: Some(budget), oracle: true, ..RunOptions::default() };
    for name in ["fifo", "eaco", "wattle"] {
        assert_lockstep(&world, &scenario, name, &options);
    }
}

#[test]
fn an_energy_budget_leads_to_the_same_decisions() {
    let world = World::builtin();
    let scenario = scenario(&world, CROWDED, "2x4:v100");
    // Control steps every 8 s, which the recorded levels resolve.
    let window = Some(Duration::from_secs(5_760));
    let budget = Budget::from_human(Some(3.0), None, None, window).unwrap();
    let options = RunOptions { budget: Some(budget), ..RunOptions::default() };
    for name in ["fifo", "powerflow", "wattle"] {
        assert_lockstep(&world, &scenario, name, &options);
    }
}

/// The simulator has no way to a decision but the controller.
#[test]
fn the_engine_decides_only_through_the_controller() {
    const FORBIDDEN: [&str; 8] = [
        "wattle_placer::solve",
        "pipeline::",
        ".solve(",
        ".steer(",
        "min_power(",
        "enforced_cap(",
        "apply_to(",
        ".job_arrived(",
    ];
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut folders = vec![src];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let here = FORBIDDEN.iter().filter(|call| text.contains(**call));
            found.extend(here.map(|call| format!("{}: {call}", path.display())));
        }
    }
    assert_eq!(found, Vec::<String>::new(), "call the placer's controller instead");
}
