//! `wattle simulate`: what its options change.

use std::process::Command;

use serde_json::Value;
use wattle_tests::program;

/// Mean completion times of the policies, s, by name.
fn completion_s(args: &[&str]) -> Vec<(String, f64)> {
    let base = ["simulate", "--jobs", "30", "--cluster", "4x8:v100", "--price", "0", "--json"];
    let output = Command::new(program("wattle")).args([&base, args].concat()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let policies = found["policies"].as_array().unwrap();
    let of =
        |one: &Value| (one["policy"].as_str().unwrap().into(), one["jct_s_mean"].as_f64().unwrap());
    policies.iter().map(of).collect()
}

#[test]
fn open_sizes_are_those_of_policies_that_change_sizes() {
    let both = ["--policy", "fifo,wattle"];
    let of_trace = completion_s(&both);
    let open = completion_s(&[&both[..], &["--sizes", "any"]].concat());
    assert_eq!(of_trace[0], open[0], "fifo keeps the sizes of the trace");
    assert!(
        open[1].1 < of_trace[1].1,
        "{open:?} {of_trace:?}: more GPUs for jobs while some are idle"
    );
}
