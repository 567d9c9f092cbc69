//! A site of eleven hosts under faults for three quarters of a minute: every promise holds. `wattle-chaos` runs it for longer.

use std::process::Command;

use wattle_runtime::testing::{Weight, turn};
use wattle_tests::program;

/// Three servers, two hosts with central services, four GPU nodes.
#[test]
#[ignore = "minutes: tests/full chaos"]
fn promises_hold_on_several_hosts_under_faults() {
    let _turn = turn(Weight::Alone);
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(program("wattle-chaos"))
        .args(["--seed", "2", "--minutes", "0.75", "--nodes", "4", "--dir"])
        .arg(folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let log = String::from_utf8_lossy(&output.stderr);
    println!("{text}\n{log}");
    if !output.status.success() {
        println!("logs: {}", folder.keep().display());
    }
    assert!(output.status.success(), "a promise did not hold");
}
