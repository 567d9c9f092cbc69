//! The simulator against one written elsewhere, on a public trace.
//!
//! FIFO on the 5,000 jobs of Philly in Tiresias' format (github.com/SymbioticLab/Tiresias), 32 nodes
//! of 4 GPUs: the peer's mean completion time is 33,863 s and its makespan 1,795,409 s. The trace
//! is not part of this repository: the test looks for it in `$WATTLE_DATA` or beside the
//! workspace, and says loudly where it is not.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::path::PathBuf;

use wattle_simulator::{Scenario, run, trace};
use wattle_world::World;

fn data() -> PathBuf {
    std::env::var_os("WATTLE_DATA").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/data"),
        PathBuf::from,
    )
}

#[test]
fn fifo_agrees_with_its_peer_to_the_second() {
    let path = data().join("traces/philly_5k_tiresias_format.csv");
    if !path.exists() {
        println!("NOT RUN: {} is not there; set WATTLE_DATA to the folder of data", path.display());
        return;
    }
    let world = World::builtin();
    let trace = trace::read(&path).unwrap();
    let scenario = Scenario::from_trace(&world, &trace, &"32x4:v100".parse().unwrap(), 7).unwrap();
    let outcome = run(&world, &scenario, &["fifo"]).unwrap();
    let fifo = &outcome.policies[0];
    println!("{}", outcome.to_table());
    println!("{}", outcome.to_json());
    assert_eq!((fifo.jobs, fifo.finished), (5_000, 5_000));
    assert_eq!(fifo.jct_s_mean.unwrap().round() as u64, 33_863);
    assert_eq!(fifo.makespan_s.round() as u64, 1_795_409);
}
